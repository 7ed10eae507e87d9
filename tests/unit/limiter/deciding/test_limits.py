from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from live_states import states_of

from limiter.buckets.fair import FairLimiter
from limiter.buckets.limiter import LimiterState
from limiter.deciding.limits import Caller, Decision, Denial, Held, Limits
from limiter.rules.resource import CLIENT, LISTENER, PRODUCER_GROUP, TOTAL, Resource
from limiter.rules.rule import Dimension, Rule
from limiter.rules.rule_set import RuleSet
from limiter.waiting.lines import Credit

NS_PER_S = 1_000_000_000
ORDERS = Resource("topic", "orders")
AUDIT = Resource("topic", "audit")
ASKER = Caller("10.1.2.3", "g", "main")


def topic(pattern: str, rate_per_s: float | None, **more: Any) -> Rule:
    return Rule("topic", pattern, rate_per_s, **more)


def limits_by(*rules: Rule, **more: Any) -> Limits:
    return Limits(RuleSet(rules), **more)


def decide(
    limits: Limits,
    messages: Sequence[int],
    *resources: Resource,
    now_ns: int = 0,
    caller: Caller = ASKER,
    sizes: Sequence[int] = (),
) -> Decision:
    return limits.decide(now_ns, resources or (ORDERS,), caller, messages, lambda: sizes or [100] * len(messages))


def stored(limits: Limits, resource: Resource, dimension: Dimension = "messages", now_ns: int = 0) -> float | None:
    states: dict[tuple[Resource, str], LimiterState] = {}
    for name, registry in limits._registries.items():
        for state in states_of(registry, now_ns):
            states[state.resource, name] = state
    found = states.get((resource, dimension))
    return None if found is None else found.stored_permits


def stopped_by(decision: Decision) -> str:
    assert decision.stop is not None
    return f"{decision.stop.resource} by {decision.stop.rule.name}"


@pytest.mark.parametrize("by", [("client", None), (None, "client"), ("topic", "producer_group")])
def test_an_edit_of_fair_by_gives_an_adaptive_limit_new_shares(by: tuple[Any, Any]) -> None:
    first, second = (Rule("listener", "main", None, adaptive=True, floor_per_s=1, fair_by=each) for each in by)
    limits = limits_by(first, topic("orders", None, weight=3))
    assert decide(limits, [1]).admitted == 1
    limits.swap(RuleSet([second, topic("orders", None, weight=3)], version=2), 0)
    assert decide(limits, [1]).admitted == 1
    limiter = limits.adaptive("main", NS_PER_S)
    assert limiter is not None
    limiter.follow(NS_PER_S, 100)
    key, weight = {None: ("topic:orders", 3), "client": ("10.1.2.3", 1), "producer_group": ("g", 1)}[by[1]]
    assert [(demand.key, demand.weight) for demand in limiter.demands()] == [(key, weight)]


def test_credit_for_more_than_a_share_is_granted_and_charged_in_full() -> None:
    """While the other key is busy, a share of 50 kB/s never admits more than 550 kB."""
    limits = limits_by(topic("*", None, bytes_per_s=100_000, fair_by="client", action="delay"))
    one, other = (ASKER._replace(client=f"10.0.0.{number}", refusable=False) for number in (1, 2))
    for caller in (one, other):
        decide(limits, [1], caller=caller, sizes=[1])
    now_ns = 2 * NS_PER_S
    for _ in range(20):
        granted = limits.grant(now_ns, (ORDERS,), one, Credit(1, 1, 800_000))
        if granted.messages:
            limits.charge(now_ns, (ORDERS,), one, -1, -800_000)
    assert stored(limits, ORDERS, "bytes", now_ns) == 100_000
    assert limits.grant(now_ns, (ORDERS,), one, Credit(1, 1, 800_000)).messages == 1
    assert stored(limits, ORDERS, "bytes", now_ns) == -700_000


class TestBytes:
    def test_refusal_spends_from_neither(self) -> None:
        limits = limits_by(topic("*", 10, bytes_per_s=250))
        decide(limits, [2] * 5)
        assert stored(limits, ORDERS) == 4
        assert stored(limits, ORDERS, "bytes") == -50


def replace_asker(**changes: Any) -> Caller:
    return ASKER._replace(**changes)


class TestScopes:
    RULES = (
        topic("*", 100),
        Rule(CLIENT, "10.0.0.0/8", 4),
        Rule(PRODUCER_GROUP, "*", 8),
        Rule(LISTENER, "main", 16),
    )

    def test_caller_without_a_rule_is_not_limited(self) -> None:
        decision = decide(limits_by(*self.RULES), [1] * 9, caller=Caller("192.0.2.1", "", "other"))
        assert decision == Decision(9)


class TestTotals:
    def test_stack_upon_the_limits_of_each(self) -> None:
        limits = limits_by(topic("*", 3), topic("*", 5, shared=True))
        assert decide(limits, [1] * 4).admitted == 3
        decision = decide(limits, [1] * 4, AUDIT)
        assert decision.admitted == 2
        assert stopped_by(decision) == "total:topic:* by total:topic:*"

    def test_of_a_network_are_one_bucket(self) -> None:
        limits = limits_by(Rule(CLIENT, "10.0.0.0/8", 3, shared=True))
        assert decide(limits, [1] * 2).admitted == 2
        assert decide(limits, [1] * 2, caller=replace_asker(client="10.9.9.9")).admitted == 1

    def test_are_charged_for_each_resource_that_falls_under_them(self) -> None:
        limits = limits_by(topic("*", 10, shared=True))
        assert decide(limits, [1, 2, 3, 1], ORDERS, AUDIT).admitted == 3
        assert stored(limits, Resource(TOTAL, "topic:*")) == -2


class TestSeveralResources:
    def test_names_that_share_an_overflow_limiter_are_each_charged_to_it(self) -> None:
        limits = limits_by(topic("*", 4), max_live=1)
        decide(limits, [1])
        names = (Resource("topic", "x"), Resource("topic", "y"))
        assert decide(limits, [1, 1, 1], *names).admitted == 2
        assert stored(limits, Resource("topic", "_overflow")) == 0


class TestShadow:
    def test_is_used_by_all_that_passes(self) -> None:
        limits = limits_by(topic("*", 3, action="shadow"))
        decide(limits, [1] * 10)
        assert limits.used(ORDERS, NS_PER_S)["messages"].last_1s == pytest.approx(10 / 3)


class TestFair:
    def test_shares_are_kept_apart_by_user(self) -> None:
        limits = limits_by(topic("*", 10, fair_by="user", break_s=0))
        flood, small = (replace_asker(scopes=(Resource("vhost", "/"), Resource("user", name))) for name in "fs")
        decide(limits, [1] * 100, caller=flood)
        assert decide(limits, [1], caller=flood).admitted == 0
        assert decide(limits, [1], caller=small).admitted == 1
        state = limits.state(ORDERS, 0)
        assert state is not None
        assert {share.key for share in state.shares} == {"f", "s"}

    def test_shares_are_separate_by_client_also_for_consuming(self) -> None:
        limits = limits_by(topic("*", 10, fair_by="client", break_s=0))
        flood, small = (
            Caller(client, "", "main", consumes=True, by_answer=True) for client in ("10.0.0.1", "10.0.0.2")
        )
        decide(limits, [1] * 100, caller=flood)
        assert decide(limits, [1], caller=flood).admitted == 0
        assert decide(limits, [1], caller=small).admitted == 1


class TestCharges:
    def test_charges_go_to_the_callers_share(self) -> None:
        limits = limits_by(topic("*", 10, fair_by="producer_group", break_s=0))
        other = replace_asker(producer_group="other")
        decide(limits, [1], caller=other)
        limits.charge(0, (ORDERS,), ASKER, 30, 0)
        assert stored(limits, ORDERS) == -21
        limiter = limits._registries["messages"].get(ORDERS, 0)
        assert isinstance(limiter, FairLimiter)
        assert {share.key: share.stored_upermits // 1_000_000 for share in limiter.shares} == {"g": -30, "other": -1}


class TestEdits:
    """A rule set with other own rules for some names leaves everything else unchanged."""

    def test_edits_apply_to_the_next_request_in_every_plan(self) -> None:
        limits = limits_by(topic("*", None), topic("orders", 5), Rule(CLIENT, "10.1.2.3", 100))
        assert decide(limits, [1] * 9).admitted == 5
        assert decide(limits, [1] * 9, AUDIT, ORDERS, now_ns=10 * NS_PER_S).admitted == 5
        limits.swap(limits.rule_set.edited([topic("orders", 0), topic("audit", 3)]), 20 * NS_PER_S)
        assert decide(limits, [1] * 9, now_ns=20 * NS_PER_S).admitted == 0
        assert decide(limits, [1] * 9, AUDIT, ORDERS, now_ns=20 * NS_PER_S).admitted == 0
        assert stopped_by(decide(limits, [1] * 9, AUDIT, now_ns=30 * NS_PER_S)) == "topic:audit by topic:audit"
        limits.swap(limits.rule_set.edited([Rule(CLIENT, "10.1.2.3", 0)], [topic("orders", 1).key]), 40 * NS_PER_S)
        assert stopped_by(decide(limits, [1], now_ns=50 * NS_PER_S)) == "client:10.1.2.3 by client:10.1.2.3"

    def test_of_the_first_scope_and_of_a_pattern_are_seen_as_well(self) -> None:
        limits = limits_by(topic("*", None))
        assert decide(limits, [1] * 9).admitted == 9
        limits.swap(limits.rule_set.edited([Rule(CLIENT, "10.1.2.3", 0)]), 1)
        assert decide(limits, [1]).admitted == 0
        limits.swap(limits.rule_set.edited([topic("ord*", 0)], [Rule(CLIENT, "10.1.2.3", 0).key]), 2)
        assert stopped_by(decide(limits, [1])) == "topic:orders by topic:ord*"

    @pytest.mark.parametrize("without", [topic("orders", None), topic("orders", None, exempt=True)])
    def test_name_seen_without_a_limit_starts_fresh(self, without: Rule) -> None:
        limits = limits_by(topic("*", 10), topic("orders", 5))
        limits.charge(0, (ORDERS,), ASKER, 1000, 0)
        limits.swap(limits.rule_set.edited([without]), 1)
        assert decide(limits, [1] * 9, now_ns=1).admitted == 9
        limits.swap(limits.rule_set.edited([topic("orders", 5)]), 2)
        assert decide(limits, [1] * 9, now_ns=2).admitted == 5

    def test_switching_a_kind_off_disables_its_totals(self) -> None:
        limits = limits_by(topic("*", 1), topic("o*", 0, shared=True), Rule(CLIENT, "*", 3))
        limits.swap(limits.rule_set.replace(off_kinds={"topic"}), 0)
        assert decide(limits, [1] * 9).admitted == 3
        applied = limits.explain(0, (ORDERS,), ASKER)
        assert [each.why.rpartition("; ")[2] for each in applied if not each.limits] == [
            "limiting of kind topic is switched off"
        ] * 2
        limits.swap(limits.rule_set.replace(off_kinds=()), 0)
        assert decide(limits, [1]).admitted == 0


class TestUsages:
    def test_are_shares_of_the_rate_by_limit(self) -> None:
        limits = limits_by(topic("*", 10, bytes_per_s=1000), Rule(CLIENT, "*", 100))
        for second in range(1, 6):
            decide(limits, [1] * 5, now_ns=second * NS_PER_S)
        limits.charge(5 * NS_PER_S, (ORDERS,), ASKER, 3, 0)
        found = {
            (resource.kind, dimension): msgspec.structs.astuple(usage)
            for resource, usages in limits.usages(6 * NS_PER_S)
            for dimension, usage in usages.items()
        }
        assert found == {
            ("topic", "messages"): (0.8, 0.28, pytest.approx(28 / 600)),
            ("topic", "bytes"): (0.5, 0.25, pytest.approx(2500 / 60_000)),
            (CLIENT, "messages"): (0.08, 0.028, pytest.approx(28 / 6000)),
        }

    def test_continue_under_another_rule_and_end_without_one(self) -> None:
        limits = limits_by(topic("*", 10))
        decide(limits, [1] * 10)
        limits.swap(limits.rule_set.replace(rules=[topic("*", 20)]), 1)
        decide(limits, [1] * 2, now_ns=2)
        assert [usages["messages"].last_1s for _, usages in limits.usages(NS_PER_S)] == [0.6]
        limits.swap(limits.rule_set.replace(rules=[]), NS_PER_S)
        assert limits.used(ORDERS, NS_PER_S) == {}


def test_batch_is_decided_by_rules_of_all_sorts_as_its_single_requests_are() -> None:
    rules = (
        topic("*", 7, bytes_per_s=550, break_s=0),
        Rule(CLIENT, "*", 6, count="requests"),
        topic("*", 9, shared=True),
        Rule(LISTENER, "*", 4, action="shadow"),
    )
    together, singly = limits_by(*rules), limits_by(*rules)
    for now_ns in (0, NS_PER_S // 3, NS_PER_S, 5 * NS_PER_S):
        decision = decide(together, [1, 2, 1, 1, 3, 1], now_ns=now_ns)
        one_by_one = [decide(singly, [cost], now_ns=now_ns) for cost in (1, 2, 1, 1, 3, 1)]
        admitted = [each.admitted for each in one_by_one]
        assert admitted == [1] * decision.admitted + [0] * (6 - decision.admitted)
        first_shaded = next((at for at, each in enumerate(one_by_one) if each.shadow_denials), None)
        assert first_shaded == (decision.shadow_denials[0].first if decision.shadow_denials else None)
        assert states_of(together, now_ns) == states_of(singly, now_ns)


def test_unrefusable_request_costs_at_most_the_largest_admissible_one() -> None:
    limits = limits_by(Rule("topic", "*", 1, shared=True, max_debt_s=0))
    many = tuple(Resource("topic", name) for name in "abcdef")
    patient = replace_asker(refusable=False)
    assert limits.decide(0, many, patient, [1], lambda: [0]).admitted == 1
    decision = limits.decide(0, many, patient, [1], lambda: [0])
    assert (decision.admitted, len(decision.delays), decision.stop and decision.stop.most) == (0, 1, None)


class Asks(Held):
    """A request for credit that waits."""

    __slots__ = ("over",)

    def __init__(self, caller: Caller) -> None:
        super().__init__((ORDERS,), caller, 0, 0, connection=1, order_key=None)
        self.credit = Credit(1, 10, 0)
        self.over = False

    def resolved(self, stop: Denial | None) -> None:
        assert stop is None
        self.over = True


class TestDefaultActionOfEachProtocol:
    """A rule without an action, where some connections are limited by credit and others are not."""

    LIMIT = topic("orders", 10, credit_waits=True)
    ASKS_CREDIT = ASKER._replace(asks="delaying", refusable=False)

    def test_caller_limited_by_credit_waits(self) -> None:
        limits = limits_by(self.LIMIT)
        terms = limits.terms((ORDERS,), ASKER)
        assert (terms.delays, terms.refuses) == (True, False)
        assert limits.grant(0, (ORDERS,), self.ASKS_CREDIT, Credit(1, 10, 0)).messages == 10
        granted = limits.grant(0, (ORDERS,), self.ASKS_CREDIT, Credit(1, 10, 0))
        assert (granted.messages, len(granted.stops)) == (0, 1)

    def test_neither_starves_the_other(self) -> None:
        limits, asks = limits_by(self.LIMIT), None
        decide(limits, [1] * 10)
        passed = credited = 0
        for tick in range(2000):
            now_ns = tick * NS_PER_S // 200
            limits.holding.release(now_ns)
            if asks is None or asks.over:
                credited += 0 if asks is None else asks.messages
                asks = Asks(self.ASKS_CREDIT)
                granted = limits.grant(now_ns, (ORDERS,), self.ASKS_CREDIT, Credit(1, 10, 0))
                assert granted.stops
                limits.delays.hold_credit(now_ns, granted, asks)
            passed += decide(limits, [1], now_ns=now_ns).admitted
        assert passed + credited <= 10 * 10 + 1
        assert min(passed, credited) >= 25
