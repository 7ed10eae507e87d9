"""What is exempt is asked of no limit; all else of plans is seen in what the limits decide."""

from __future__ import annotations

import pytest
from live_states import states_of

from limiter.deciding.limits import Caller, Decision, Limits
from limiter.rules.resource import CLIENT, LISTENER, PRODUCER_GROUP, Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.waiting.lines import Denial, Held

NS_PER_S = 1_000_000_000
REPLIES = Resource("topic", "c_REPLY_TOPIC")
ORDERS = Resource("topic", "orders")
ASKER = Caller("10.1.2.3", "g", "main")
EXEMPT = Rule("topic", "*_REPLY_TOPIC", None, exempt=True)
ROUND_ABOUT = (
    Rule("topic", "*", 0, shared=True),
    Rule(CLIENT, "*", 0, bytes_per_s=0),
    Rule(CLIENT, "*", 0, shared=True),
    Rule(PRODUCER_GROUP, "g", 0, action="delay"),
    Rule(LISTENER, "*", 0, action="shadow"),
)


def decide(limits: Limits, *resources: Resource, now_ns: int = 0) -> Decision:
    return limits.decide(now_ns, resources, ASKER, [1, 1], lambda: [100, 100])


@pytest.mark.parametrize("rule", ROUND_ABOUT)
def test_what_is_exempt_passes_whatever_scopes_and_totals_say(rule: Rule) -> None:
    limits = Limits(RuleSet((EXEMPT, Rule("topic", "*", 100), rule)))
    assert decide(limits, REPLIES) == Decision(2)
    assert decide(limits, ORDERS).admitted < 2 or decide(limits, ORDERS).shades
    limits.charge(0, (REPLIES,), ASKER, 50, 5000)
    assert all(state.resource != REPLIES and state.stored_permits >= 0 for state in states_of(limits, 0))


def test_an_exact_rule_takes_a_name_out_of_an_exempt_pattern() -> None:
    limits = Limits(RuleSet((EXEMPT, Rule("topic", "c_REPLY_TOPIC", 1))))
    assert decide(limits, REPLIES).admitted == 1


def test_of_several_resources_only_the_others_limit_and_the_scopes_are_asked() -> None:
    limits = Limits(RuleSet((EXEMPT, Rule("topic", "*", 100, shared=True), Rule(CLIENT, "*", 1))))
    assert decide(limits, REPLIES, ORDERS).admitted == 1
    assert {state.resource.kind for state in states_of(limits, 0)} == {"total", CLIENT}


class Waiting(Held):
    outcomes: list[Denial | None]

    def resolved(self, stop: Denial | None) -> None:
        self.outcomes.append(stop)


def test_what_is_held_goes_on_when_it_becomes_exempt() -> None:
    limits = Limits(RuleSet((Rule("topic", "orders", 0.1, burst_s=10, action="delay", max_delay_s=60), ROUND_ABOUT[4])))
    decision = decide(limits, ORDERS)
    held = Waiting((ORDERS,), ASKER, 1, 100, connection=1, order_key=None)
    held.outcomes = []
    assert limits.hold(0, decision, held) is None
    limits.swap(RuleSet((Rule("topic", "orders", None, exempt=True), Rule(CLIENT, "*", 0))), NS_PER_S)
    limits.holding.release(NS_PER_S)
    assert held.outcomes == [None]
