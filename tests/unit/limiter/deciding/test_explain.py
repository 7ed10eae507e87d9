from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from limiter.deciding.limits import Applied, Caller, Limits
from limiter.rules.resource import CLIENT, LISTENER, Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours

S = 1_000_000_000
ORDERS = Resource("topic", "orders.eu")
ASKER = Caller("10.1.2.3", "g", "main")


def limits_by(*rules: Rule, **more: Any) -> Limits:
    return Limits(RuleSet(rules, **more))


def explain(limits: Limits, caller: Caller = ASKER, now_ns: int = 0) -> tuple[Applied, ...]:
    return limits.explain(now_ns, [ORDERS], caller)


def test_shows_that_exempt_requests_have_no_limit() -> None:
    rules = (
        Rule("topic", "orders.*", None, exempt=True),
        Rule("topic", "*", 9, shared=True),
        Rule(CLIENT, "*", 9),
        Rule(LISTENER, "*", 9, action="off"),
    )
    assert [(one.rule.name, one.limits, one.why) for one in explain(limits_by(*rules))] == [
        ("topic:orders.*", False, "pattern with 7 literal characters; exempt from all limits"),
        (
            "total:topic:*",
            False,
            "total: the default for kind topic; does not apply to exempt requests",
        ),
        ("client:*", False, "the default for kind client; does not apply to exempt requests"),
        ("listener:*", False, "the default for kind listener; action off"),
    ]


def test_creates_no_limiter_and_shows_the_state_of_those_that_live() -> None:
    limits = limits_by(Rule("topic", "*", 10))
    assert explain(limits)[0].state is None
    assert explain(limits)[0].usage is None
    assert limits.live == 0
    limits.decide(0, (ORDERS,), ASKER, [4], list)
    (one,) = explain(limits, now_ns=S)
    assert one.state is not None
    assert one.state.stored_permits == 10
    assert one.usage is not None
    assert one.usage.last_1s == 0.4


class TestNotLimited:
    def why(self, limits: Limits) -> list[str]:
        found = explain(limits)
        assert all(one.state is None and one.held == 0 for one in found if not one.limits)
        return [one.why for one in found if not one.limits]

    def test_by_no_rule(self) -> None:
        assert self.why(limits_by()) == ["no rule matches; unlimited"]

    def test_by_an_unlimited_rule(self) -> None:
        assert self.why(limits_by(Rule("topic", "orders.eu", None))) == ["exact name; unlimited"]

    def test_by_a_rule_that_is_off(self) -> None:
        assert self.why(limits_by(Rule("topic", "orders.eu", 5, action="off"))) == ["exact name; action off"]

    def test_at_other_hours(self) -> None:
        hours = read_hours("09:00-18:00", [], "UTC")
        rules = (
            Rule("topic", "orders.*", 5, hours=hours),
            Rule("topic", "other", 5, hours=hours),
            Rule("topic", "*", 9, hours=hours, shared=True),
            Rule("topic", "*", 7),
        )
        night = limits_by(*rules, moment=datetime(2024, 1, 1, 3, tzinfo=UTC))
        assert self.why(night) == [
            f"pattern with 7 literal characters; not now: {hours}",
            f"total: the default for kind topic; not now: {hours}",
        ]
        assert [one.rule.rate_per_s for one in explain(night) if one.limits] == [7]
        day = limits_by(*rules, moment=datetime(2024, 1, 1, 12, tzinfo=UTC))
        assert self.why(day) == []
        assert [one.rule.rate_per_s for one in explain(day)] == [5, 9]
