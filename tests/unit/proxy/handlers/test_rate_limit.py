from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limiter.limiter import LimiterState
from limiter.registry import Registry
from limiter.resource import Resource
from limiter.rule import Rule
from limiter.rules import RuleSet
from proxy.batch import NO_VERDICTS, Batch, Refuse, Verdicts
from proxy.handlers.rate_limit import PLUGIN, RateLimitOptions
from proxy.pipeline import HandlerServices

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

KIND = "line_topic"
NS_PER_S = 1_000_000_000


@dataclass
class Limiting:
    """The handler with its registry, so that tests can look at both."""

    registry: Registry
    handler: Any

    @classmethod
    def by(cls, *rules: Rule) -> Limiting:
        registry = Registry(RuleSet(rules))
        return cls(registry, PLUGIN.build(RateLimitOptions(), HandlerServices(registry, lambda: 0)))

    def decide(self, batch: Batch, now_ns: int = 0) -> Verdicts:
        verdicts: Verdicts = self.handler.on_requests(batch, now_ns)
        batch.add_verdicts(verdicts)
        return verdicts

    def state(self, name: str, now_ns: int = 0) -> LimiterState:
        state = self.registry.state(Resource(KIND, name), now_ns)
        assert state is not None
        return state

    def stored(self, name: str, now_ns: int = 0) -> float:
        return self.state(name, now_ns).stored_permits


def rule(name: str, rate_per_s: float | None, *, break_s: float = 1.0) -> Rule:
    return Rule(KIND, name, rate_per_s, break_s=break_s)


def test_what_is_over_the_limit_is_refused(batch_of: MakeBatch) -> None:
    limiting = Limiting.by(rule("a", 2))
    verdicts = limiting.decide(batch_of("a", "a", "a", "a"))
    assert verdicts.keys() == {2, 3}
    refuse = verdicts[2]
    assert refuse == verdicts[3]
    assert isinstance(refuse, Refuse)
    assert refuse.resource == Resource(KIND, "a")
    assert refuse.rule == "line_topic:a"
    assert 1_000_000 <= refuse.wait_us <= 1_000_001


def test_nothing_refused_is_no_verdicts(batch_of: MakeBatch) -> None:
    assert Limiting.by(rule("a", 2)).decide(batch_of("a", "a")) is NO_VERDICTS


def test_unlimited_resource_has_no_limiter(batch_of: MakeBatch) -> None:
    limiting = Limiting.by(rule("a", None))
    assert limiting.decide(batch_of("a", "other")) is NO_VERDICTS
    assert limiting.registry.live == 0


def test_each_resource_has_its_own_limit(batch_of: MakeBatch) -> None:
    limiting = Limiting.by(rule("*", 1))
    assert limiting.decide(batch_of("a", "b", "a", "c", "b")).keys() == {2, 4}


def test_batch_of_messages_costs_its_messages(batch_of: MakeBatch) -> None:
    limiting = Limiting.by(rule("a", 10))
    assert limiting.decide(batch_of("a", "a", "a", costs=[4, 6, 1])).keys() == {2}
    assert limiting.stored("a") == 0


def test_refused_request_spends_nothing(batch_of: MakeBatch) -> None:
    limiting = Limiting.by(rule("a", 1, break_s=0))
    limiting.decide(batch_of("a", "a", costs=[1, 1000]))
    assert limiting.stored("a") == 0


class TestSeveralResources:
    def test_all_must_admit(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("wide", 10), rule("narrow", 2))
        verdicts = limiting.decide(batch_of(*[("wide", "narrow")] * 5))
        assert verdicts.keys() == {2, 3, 4}
        assert {verdict.rule for verdict in verdicts.values() if isinstance(verdict, Refuse)} == {"line_topic:narrow"}

    def test_refusal_spends_from_none(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("wide", 10), rule("narrow", 2))
        limiting.decide(batch_of(*[("wide", "narrow")] * 5))
        assert limiting.stored("wide") == 8
        assert limiting.stored("narrow") == 0

    def test_only_who_refused_opens_its_breaker(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("wide", 10), rule("narrow", 2))
        limiting.decide(batch_of(*[("wide", "narrow")] * 5))
        assert not limiting.state("wide").open
        assert limiting.state("narrow").open

    def test_unlimited_ones_have_no_say(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 1), rule("free", None))
        assert limiting.decide(batch_of(("free", "a"), ("a", "free"), ("free",))).keys() == {1}

    def test_all_of_them_unlimited_is_unlimited(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("free", None))
        assert limiting.decide(batch_of(("free", "other"))) is NO_VERDICTS
        assert limiting.registry.live == 0

    def test_both_that_stop_at_the_same_request_open(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 3), rule("b", 3))
        assert limiting.decide(batch_of(*[("a", "b")] * 4)).keys() == {3}
        assert limiting.state("a").open
        assert limiting.state("b").open


class TestEarlierHandlers:
    def test_their_refusals_are_not_charged(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 10))
        batch = batch_of("a", "a", "a", costs=[4, 3, 2])
        batch.add_verdicts({1: Refuse(Resource(KIND, "a"), "other", 0)})
        assert limiting.decide(batch) is NO_VERDICTS
        assert limiting.stored("a") == 4

    def test_their_refusals_keep_the_others_apart(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 2))
        batch = batch_of("a", "a", "a", "a")
        batch.add_verdicts({0: Refuse(Resource(KIND, "a"), "other", 0)})
        assert limiting.decide(batch).keys() == {3}

    def test_batch_refused_throughout_touches_no_limiter(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 2))
        batch = batch_of("a")
        batch.add_verdicts({0: Refuse(Resource(KIND, "a"), "other", 0)})
        limiting.decide(batch)
        assert limiting.stored("a") == 2


class TestCharges:
    def test_are_debited_into_debt_and_refuse_nothing_themselves(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 2))
        assert limiting.decide(batch_of(charges=[("a", 5)])) is NO_VERDICTS
        assert limiting.stored("a") == -3
        assert limiting.decide(batch_of("a")).keys() == {0}

    def test_of_what_is_unlimited_are_nothing(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", None))
        assert limiting.decide(batch_of(charges=[("a", 5)])) is NO_VERDICTS

    def test_come_after_the_requests_of_their_chunk(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 2))
        assert limiting.decide(batch_of("a", charges=[("a", 100)])) is NO_VERDICTS


STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(["a", "b", "pair"]), st.integers(1, 4)), min_size=1, max_size=12),
        st.sampled_from([0, 1, NS_PER_S // 3, NS_PER_S, 3 * NS_PER_S]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("break_s", [0, 1.0])
@given(steps=STEPS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_is_decided_as_its_single_requests_are(
    batch_of: MakeBatch, break_s: float, steps: list[tuple[list[tuple[str, int]], int]]
) -> None:
    """For resources that stand in one set only; sets that overlap share permits in the order of the groups."""
    resources: dict[str, str | tuple[str, ...]] = {"a": "a", "b": "b", "pair": ("c", "d")}
    rules = [rule(name, rate, break_s=break_s) for name, rate in {"a": 3, "b": 7, "c": 5, "d": 4}.items()]
    together, singly = Limiting.by(*rules), Limiting.by(*rules)
    now_ns = 0
    for wanted, pause_ns in steps:
        now_ns += pause_ns
        names = [resources[name] for name, _ in wanted]
        costs = [cost for _, cost in wanted]
        expected = {}
        for index, (name, cost) in enumerate(zip(names, costs, strict=True)):
            for verdict in singly.decide(batch_of(name, costs=[cost]), now_ns).values():
                expected[index] = verdict
        assert together.decide(batch_of(*names, costs=costs), now_ns) == expected
        assert list(together.registry.states(now_ns)) == list(singly.registry.states(now_ns))


@given(steps=STEPS, overlap=st.permutations([("a",), ("a", "b"), ("b",)]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_overlapping_resources_never_admit_more_than_their_limits(
    batch_of: MakeBatch,
    steps: list[tuple[list[tuple[str, int]], int]],
    overlap: list[tuple[str, ...]],
) -> None:
    sets = dict(zip(["a", "b", "pair"], overlap, strict=True))
    rates = {"a": 3, "b": 7}
    limiting = Limiting.by(*(rule(name, rate, break_s=0) for name, rate in rates.items()))
    admitted = dict.fromkeys(rates, 0)
    now_ns = 0
    for wanted, pause_ns in steps:
        now_ns += pause_ns
        verdicts = limiting.decide(batch_of(*(sets[name] for name, _ in wanted), costs=[c for _, c in wanted]), now_ns)
        for index, (name, cost) in enumerate(wanted):
            if index not in verdicts:
                for resource in sets[name]:
                    admitted[resource] += cost
    largest = 4
    for resource, rate in rates.items():
        assert admitted[resource] <= rate * (now_ns / NS_PER_S) + rate + largest


def test_a_refusal_by_a_shared_overflow_limiter_names_the_requests_own_resource(batch_of: MakeBatch) -> None:
    registry = Registry(RuleSet((rule("*", 1),)), max_live=1)
    limiting = Limiting(registry, PLUGIN.build(RateLimitOptions(), HandlerServices(registry, lambda: 0)))
    verdicts = limiting.decide(batch_of("a", "a", "b", "b"))
    refused = [verdict.resource.name for verdict in verdicts.values() if isinstance(verdict, Refuse)]
    assert refused == ["a", "b"]


def test_names_that_share_an_overflow_limiter_are_each_charged_to_it(batch_of: MakeBatch) -> None:
    registry = Registry(RuleSet((rule("*", 4),)), max_live=1)
    limiting = Limiting(registry, PLUGIN.build(RateLimitOptions(), HandlerServices(registry, lambda: 0)))
    limiting.decide(batch_of("a"))
    both = (Resource(KIND, "x"), Resource(KIND, "y"))
    batch = batch_of("x", "x", "x")
    for request in batch.requests:
        request.resources = both
    assert limiting.decide(batch).keys() == {2}
