from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_states import states_of
from trio.testing import MockClock, wait_all_tasks_blocked

from admin.config.faults import FaultsError, read
from limiter.buckets.limiter import LimiterState
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import (
    LATER,
    Batch,
    Charge,
    ConnectionInfo,
    Hold,
    Later,
    Refuse,
    Request,
    Shadow,
    Side,
    Ticket,
    Verdicts,
)
from proxy.deciding.pipeline import HandlerServices
from proxy.deciding.rate_limit import PLUGIN, RateLimitOptions

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

KIND = "line_topic"
NS_PER_S = 1_000_000_000


@dataclass
class Limiting:
    limits: Limits
    handler: Any

    @classmethod
    def by(cls, *rules: Rule, options: RateLimitOptions | None = None, max_live: int = 1000) -> Limiting:
        limits = Limits(RuleSet(rules), max_live)
        return cls(limits, PLUGIN.build(options or RateLimitOptions(), HandlerServices(limits, lambda: 0)))

    def decide(self, batch: Batch, now_ns: int = 0) -> Verdicts:
        verdicts: Verdicts = self.handler.on_requests(batch, now_ns)
        batch.add_verdicts(verdicts)
        return verdicts

    def state(self, name: str, now_ns: int = 0) -> LimiterState:
        state = self.limits.state(Resource(KIND, name), now_ns)
        assert state is not None
        return state

    def stored(self, name: str, now_ns: int = 0) -> float:
        return self.state(name, now_ns).stored_permits


def rule(name: str, rate_per_s: float | None, *, break_s: float = 1.0) -> Rule:
    return Rule(KIND, name, rate_per_s, break_s=break_s)


def test_requests_over_the_limit_are_refused(batch_of: MakeBatch) -> None:
    limiting = Limiting.by(rule("a", 2))
    verdicts = limiting.decide(batch_of("a", "a", "a", "a"))
    assert verdicts.keys() == {2, 3}
    refuse = verdicts[2]
    assert refuse == verdicts[3]
    assert isinstance(refuse, Refuse)
    assert refuse.resource == Resource(KIND, "a")
    assert refuse.rule == "line_topic:a"
    assert 1_000_000 <= refuse.wait_us <= 1_000_001


class TestTooLarge:
    def test_a_batch_that_can_never_be_admitted_blocks_no_other(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 50))
        verdicts = limiting.decide(batch_of("a", "a", "a", "a", costs=[1, 10_000, 190_000, 1]))
        refuse = Refuse(Resource(KIND, "a"), "line_topic:a", 1_000_000, most=550)
        assert verdicts == {1: refuse, 2: refuse}
        assert limiting.stored("a") == 48
        assert not limiting.state("a").open

    def test_the_refusal_of_one_too_large_for_now_states_the_wait(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(rule("a", 50))
        limiting.decide(batch_of(*["a"] * 30))
        verdicts = limiting.decide(batch_of("a", "a", costs=[530, 1]))
        assert verdicts == {0: Refuse(Resource(KIND, "a"), "line_topic:a", 200_000)}

    def test_shadow_counts_it_alone(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(replace(rule("a", 50), action="shadow"))
        verdicts = limiting.decide(batch_of("a", "a", "a", costs=[1, 10_000, 1]))
        assert verdicts == {1: Shadow(Resource(KIND, "a"), "line_topic:a")}

    def test_it_is_refused_and_not_held_and_those_behind_it_are_held(self, batch_of: MakeBatch) -> None:
        limiting = Limiting.by(Rule(KIND, "a", 10, action="delay", max_delay_s=60, max_debt_s=1))
        limiting.decide(batch_of(*["a"] * 10))
        verdicts = limiting.decide(batch_of("a", "a", "a", costs=[1, 21, 1]))
        assert [type(verdicts[index]) for index in range(3)] == [Hold, Refuse, Hold]
        assert verdicts[1] == Refuse(Resource(KIND, "a"), "line_topic:a", 1_000_000, most=20)


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
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_batch_is_decided_as_its_single_requests_are(
    batch_of: MakeBatch, break_s: float, steps: list[tuple[list[tuple[str, int]], int]]
) -> None:
    """For resources in one set only. Overlapping sets share permits in the order of the groups."""
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
        assert states_of(together.limits, now_ns) == states_of(singly.limits, now_ns)


@given(steps=STEPS, overlap=st.permutations([("a",), ("a", "b"), ("b",)]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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


def request(name: str = "a", **more: Any) -> Request:
    resources = (Resource(more.pop("kind", KIND), name),)
    fields: dict[str, Any] = {"messages": 1, "size_bytes": 100, "producer_group": "g", "refusal": "answered"}
    return Request(resources, **{**fields, "order_key": None, "handle": None, **more})


def batch_by(
    *requests: Request,
    charges: tuple[Charge, ...] = (),
    exempt: bool = False,
    number: int = 1,
    spools: bool = False,
    side: Side = Side.CLIENT,
) -> Batch:
    info = ConnectionInfo(number, "main", "scope", f"10.1.2.3:{4000 + number}", "10.1.2.3", exempt, spools=spools)
    return Batch(info, side, requests, charges)


class TestScopes:
    @pytest.mark.parametrize(("kind", "name"), [("client", "10.1.2.3"), ("producer_group", "g"), ("listener", "scope")])
    def test_are_taken_from_the_connection_and_the_request(self, kind: str, name: str) -> None:
        limiting = Limiting.by(Rule(kind, name, 1, busy_code=215))
        verdicts = limiting.decide(batch_by(request("a"), request("b"), request("c", producer_group="h")))
        refuse = verdicts[1]
        assert isinstance(refuse, Refuse)
        assert (refuse.resource, refuse.rule, refuse.busy_code) == (Resource(kind, name), f"{kind}:{name}", 215)
        assert (2 in verdicts) is (kind != "producer_group")


class TestShadow:
    def test_is_the_verdict_of_requests_over_a_shadow_limit(self) -> None:
        limiting = Limiting.by(Rule(KIND, "a", 2, action="shadow"))
        verdicts = limiting.decide(batch_by(request(), request("free"), request(), request()))
        assert verdicts == {3: Shadow(Resource(KIND, "a"), "line_topic:a")}


def delay(rate_per_s: float, name: str = "*", max_delay_s: float = 2) -> Rule:
    return Rule(KIND, name, rate_per_s, action="delay", max_delay_s=max_delay_s, max_debt_s=3600)


def tickets_of(verdicts: Verdicts) -> list[Ticket]:
    return [verdict.ticket for verdict in verdicts.values() if isinstance(verdict, Hold)]


class TestHolding:
    def test_delayable_requests_get_a_ticket_and_the_rest_is_refused(self) -> None:
        limiting = Limiting.by(delay(1))
        verdicts = limiting.decide(batch_by(*(request() for _ in range(6))))
        assert [type(verdicts[index]) for index in sorted(verdicts)] == [Hold, Hold, Refuse, Refuse, Refuse]
        hold = verdicts[1]
        assert isinstance(hold, Hold)
        assert (hold.resource, hold.rule) == (Resource(KIND, "a"), "line_topic:*")
        assert verdicts[3] is verdicts[5]
        assert limiting.limits.held == (2, 200)

    def test_requests_of_one_group_and_order_key_follow_each_other(self) -> None:
        limiting = Limiting.by(delay(1, "slow"))
        assert len(tickets_of(limiting.decide(batch_by(request("slow"), request("slow", order_key=1))))) == 1
        again = limiting.decide(batch_by(*(request("slow", order_key=1) for _ in range(3))))
        assert len(tickets_of(again)) == 3

    def test_one_that_cannot_be_refused_is_held_and_those_behind_it_come_later(self) -> None:
        limiting = Limiting.by(rule("slow", 1))
        many = [request("slow", refusal="impossible", order_key=1) for _ in range(3)]
        other = request("slow", refusal="impossible", order_key=2)
        free = request("free", refusal="impossible", order_key=3)
        first = limiting.decide(batch_by(*many, other, free))
        assert [type(first[index]) for index in sorted(first)] == [Hold, Later, Hold]
        assert limiting.limits.held == (2, 200)
        again = limiting.decide(batch_by(*many))
        assert again == dict.fromkeys(range(3), LATER)

    def test_unrefusable_requests_pass_once_a_drain_has_ended(self) -> None:
        limiting = Limiting.by(rule("slow", 0))
        limiting.limits.holding.drain(0)
        assert limiting.decide(batch_by(request("slow", refusal="impossible"))) == {}

    def test_spooled_requests_stay_once_a_drain_has_ended(self) -> None:
        limiting = Limiting.by(replace(delay(1, "slow"), spool=True))
        limiting.limits.holding.drain(0)
        asks = [request("slow", refusal="impossible", order_key=1, since_ns=1) for _ in range(2)]
        assert limiting.decide(batch_by(*asks, spools=True), NS_PER_S) == dict.fromkeys(range(2), LATER)

    def test_bounds_are_the_options(self) -> None:
        limiting = Limiting.by(delay(100), options=RateLimitOptions(max_held=3))
        verdicts = limiting.decide(batch_by(*(request() for _ in range(110))))
        assert [type(verdicts[index]) for index in sorted(verdicts)] == [Hold] * 3 + [Refuse] * 7
        assert limiting.limits.refused_by_bound == {"max_held": 7}

    def test_first_spoolable_request_is_held_despite_the_bounds(self) -> None:
        options = RateLimitOptions(max_held=0)
        limiting = Limiting.by(replace(delay(1, "slow"), spool=True), options=options)
        first = limiting.decide(batch_by(*(request("slow") for _ in range(4)), spools=True))
        assert [type(first.get(index)) for index in range(4)] == [type(None), Hold, Later, Later]
        assert [verdict.spools for verdict in first.values() if isinstance(verdict, Hold)] == [True]
        assert limiting.limits.held == (1, 100)
        assert not limiting.limits.refused_by_bound

    def test_nothing_is_spooled_without_a_spool(self) -> None:
        limiting = Limiting.by(replace(delay(1, "slow"), spool=True))
        verdicts = limiting.decide(batch_by(*(request("slow") for _ in range(4))))
        assert [type(verdicts[index]) for index in (1, 2, 3)] == [Hold, Hold, Refuse]

    @pytest.mark.parametrize("side", Side)
    def test_consuming_requests_are_never_spooled(self, side: Side) -> None:
        limiting = Limiting.by(replace(delay(1, "slow"), spool=True))
        asks = [request("slow", consumes=side is Side.CLIENT) for _ in range(3)]
        verdicts = limiting.decide(batch_by(*asks, spools=True, side=side))
        assert [type(verdicts[index]) for index in (1, 2)] == [Hold, Hold]

    @pytest.mark.parametrize(("spool", "rest"), [(None, [Later] * 2), (False, [Refuse] * 2)])
    def test_requests_over_a_bound_are_spooled(self, *, spool: bool | None, rest: list[type]) -> None:
        limiting = Limiting.by(replace(delay(1, "slow"), spool=spool), options=RateLimitOptions(max_held=1))
        verdicts = limiting.decide(batch_by(*(request("slow", order_key=1) for _ in range(2)), spools=True))
        assert isinstance(verdicts[1], Hold)
        assert not verdicts[1].spools
        behind = limiting.decide(batch_by(*(request("slow", order_key=1) for _ in range(2)), spools=True))
        assert [type(behind[index]) for index in range(2)] == rest
        assert limiting.limits.refused_by_bound == ({} if spool is None else {"max_held": 2})
        alone = limiting.decide(batch_by(request("slow", order_key=2), spools=True))
        assert isinstance(alone[0], Hold if spool is None else Refuse)

    @pytest.mark.parametrize(("waited_s", "verdict"), [(0, Hold), (40, Hold), (55, Refuse), (61, Refuse)])
    def test_spooled_request_is_refused_at_its_maximum_age(self, waited_s: float, verdict: type) -> None:
        limiting = Limiting.by(Rule(KIND, "slow", 0.1, action="delay", burst_s=10, max_delay_s=60, spool=True))
        now_ns = 100 * NS_PER_S
        assert limiting.decide(batch_by(request("slow", messages=2), spools=True), now_ns) == {}
        waiting = request("slow", since_ns=now_ns - round(waited_s * NS_PER_S))
        got = limiting.decide(batch_by(waiting, spools=True), now_ns)[0]
        assert isinstance(got, verdict)

    def test_held_spooled_request_keeps_its_remaining_time(self) -> None:
        slow = Rule(KIND, "slow", 1, action="delay", max_delay_s=60, spool=True)
        limiting = Limiting.by(slow)
        now_ns = 100 * NS_PER_S
        waiting = request("slow", since_ns=now_ns - 50 * NS_PER_S)
        held = limiting.decide(batch_by(request("slow", messages=2), waiting, spools=True), now_ns)[1]
        assert isinstance(held, Hold)
        limiting.limits.swap(RuleSet((replace(slow, rate_per_s=0.001, burst_s=1000),)), now_ns)
        due_ns = limiting.limits.holding.next_due_ns()
        while due_ns is not None:
            limiting.limits.holding.release(due_ns)
            last_ns, due_ns = due_ns, limiting.limits.holding.next_due_ns()
        assert held.ticket.refuse is not None
        assert last_ns == now_ns + 10 * NS_PER_S

    def test_failure_half_way_drops_the_tickets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limiting = Limiting.by(delay(1), delay(1, "b"))
        real = limiting.limits.decide

        def failing(now_ns: int, resources: tuple[Resource, ...], *rest: Any) -> Any:
            if resources[0].name == "b":
                raise RuntimeError("broken")
            return real(now_ns, resources, *rest)

        monkeypatch.setattr(limiting.limits, "decide", failing)
        with pytest.raises(RuntimeError, match="broken"):
            limiting.decide(batch_by(request(), request(), request("b")))
        assert limiting.limits.held == (0, 0)


@pytest.mark.parametrize("name", list(RateLimitOptions.__dataclass_fields__))
def test_options_are_not_negative(name: str) -> None:
    with pytest.raises(FaultsError, match="at least 0"):
        read(RateLimitOptions, {name: -1})
    read(RateLimitOptions, {name: 0})


@dataclass
class Timed:
    limiting: Limiting
    now_ns: Callable[[], int]
    clock: MockClock
    resolved: list[tuple[float, int, str | None]] = field(default_factory=list)

    def ask(self, *requests: Request) -> Verdicts:
        batch = batch_by(*requests)
        verdicts = self.limiting.decide(batch, self.now_ns())
        for index, verdict in verdicts.items():
            if isinstance(verdict, Hold):
                verdict.ticket.attach(lambda ticket, index=index: self.note(index, ticket))  # type: ignore[misc]  # a default
        return verdicts

    def note(self, index: int, ticket: Ticket) -> None:
        rule = None if ticket.refuse is None else ticket.refuse.rule
        self.resolved.append((round(trio.current_time(), 3), index, rule))

    async def jump(self, seconds: float) -> None:
        self.clock.jump(seconds)
        await wait_all_tasks_blocked()


StartTimed = Callable[..., Timed]


@pytest.fixture
async def start(nursery: trio.Nursery, now_ns: Callable[[], int], mock_clock: MockClock) -> StartTimed:
    def run(*rules: Rule) -> Timed:
        limits = Limits(RuleSet(rules))
        handler = PLUGIN.build(RateLimitOptions(), HandlerServices(limits, now_ns))
        nursery.start_soon(handler.run)
        return Timed(Limiting(limits, handler), now_ns, mock_clock)

    return run


class TestTask:
    async def test_releases_each_when_its_time_has_come(self, start: StartTimed) -> None:
        timed = start(delay(10))
        timed.ask(*(request() for _ in range(13)))
        await timed.jump(0.001)
        assert [index for _, index, _ in timed.resolved] == [10]
        await timed.jump(0.098)
        assert len(timed.resolved) == 1
        await timed.jump(0.002)
        await timed.jump(0.1)
        assert timed.resolved == [(0.001, 10, None), (0.101, 11, None), (0.201, 12, None)]

    async def test_shadow_verdict_of_a_released_request_is_on_its_ticket(self, start: StartTimed) -> None:
        timed = start(delay(10), Rule("client", "*", 0, action="shadow"))
        verdicts = timed.ask(*(request() for _ in range(12)))
        first, second = tickets_of(verdicts)
        await timed.jump(0.001)
        assert (first.refuse, first.shadow) == (None, Shadow(Resource("client", "10.1.2.3"), "client:*"))
        assert (second.resolved, second.shadow) == (False, None)

    async def test_change_of_the_rules_releases_at_once(self, start: StartTimed) -> None:
        timed = start(delay(1, "a", 3600))
        timed.ask(*(request() for _ in range(1000)))
        await timed.jump(0.5)
        timed.limiting.limits.swap(timed.limiting.limits.rule_set.replace(rules=()), timed.now_ns())
        await wait_all_tasks_blocked()
        assert [index for at_s, index, _ in timed.resolved if at_s == 0.5] == list(range(1, 1000))


class TestLog:
    def test_logs_the_client_over_each_rule_once_a_second(self, log: list[Any]) -> None:
        limits = Limits(RuleSet((Rule(KIND, "a", 0), Rule("client", "*", 3))))
        now = [0]
        handler = PLUGIN.build(RateLimitOptions(), HandlerServices(limits, lambda: now[0]))
        for now[0] in (5 * NS_PER_S, 5 * NS_PER_S + 1, 6 * NS_PER_S - 1, 6 * NS_PER_S):
            handler.on_requests(batch_by(*(request() for _ in range(10))), now[0])
        handler.on_requests(batch_by(*(request("b") for _ in range(10))), now[0])
        now[0] = 7 * NS_PER_S
        handler.on_requests(batch_by(*(request("b") for _ in range(10))), now[0])
        assert [(line["event"], line["rule"], line["resource"], line["not_logged"]) for line in log] == [
            ("limit exceeded; requests refused", "line_topic:a", "line_topic:a", 0),
            ("limit exceeded; requests refused", "line_topic:a", "line_topic:a", 29),
            ("limit exceeded; requests refused", "client:*", "client:10.1.2.3", 0),
            ("limit exceeded; requests refused", "client:*", "client:10.1.2.3", 6),
        ]
        assert {line["client"] for line in log} == {"10.1.2.3"}
        assert log[0]["wait_us"] == 1_000_000
        assert [line.get("for") for line in log] == [None, None, "line_topic:b", "line_topic:b"]


def test_ten_thousand_held_cost_less_than_a_kibibyte_each_with_their_tickets(batch_of: MakeBatch) -> None:
    """Without the copies of their bytes, which the sessions own."""
    limiting = Limiting.by(delay(1000, "a", 60), options=RateLimitOptions(max_held_per_connection=1000))
    limiting.decide(batch_by(*(request() for _ in range(1000)), number=99))
    batches = [batch_by(*(request() for _ in range(1000)), number=number) for number in range(10)]
    for batch in batches:
        assert batch.groups
    gc.collect()
    tracemalloc.start()
    try:
        tickets = [tickets_of(limiting.decide(batch)) for batch in batches]
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert limiting.limits.held == (10_000, 1_000_000)
    assert used_bytes / 10_000 < 1024
    for ticket in tickets[3]:
        ticket.drop()
    assert limiting.limits.held.requests == 9_000
