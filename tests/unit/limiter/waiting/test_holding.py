from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.deciding.limits import Caller, Denial, Held, Limits
from limiter.plans.registry import DEFAULT_MAX_LIVE
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.waiting.holding import RELEASED_AT_ONCE, Bounds

S = 1_000_000_000
MS = 1_000_000
T = Resource("topic", "t")
PULL = Resource("subscription", "g@t")
ASKER = Caller("10.0.0.1", "g", "main")


class Waiting(Held):
    """A held request that records its outcome."""

    __slots__ = ("name", "room")

    def __init__(self, room: Room, name: str, resource: Resource, **more: Any) -> None:
        caller = more.pop("caller", ASKER)
        more = {"connection": 1, "order_key": None} | more
        super().__init__((resource,), caller, more.pop("messages", 1), more.pop("size_bytes", 100), **more)
        self.room = room
        self.name = name

    def resolved(self, stop: Denial | None) -> None:
        self.room.outcomes.append((self.room.now_ns, self.name, stop and stop.rule.name))


class Room:
    """Limits with a manual clock, and the outcomes of held requests."""

    def __init__(self, *rules: Rule, max_live: int = DEFAULT_MAX_LIVE) -> None:
        self.limits = Limits(RuleSet(rules), max_live)
        self.holding = self.limits.holding
        self.now_ns = 0
        self.outcomes: list[tuple[int, str, str | None]] = []
        self.waiting: dict[str, Waiting] = {}

    def ask(self, name: str, resource: Resource = T, **more: Any) -> str:
        """Ask for one request like the handler. Return its immediate outcome."""
        held = Waiting(self, name, resource, **more)
        leader = self.holding.previous_of_key(held.connection, held.order_key)
        if leader is not None:
            stop = self.limits.delays.follow(self.now_ns, held, leader)
        else:
            sizes = [0 if held.caller.by_answer else held.size_bytes]
            decision = self.limits.decide(self.now_ns, (resource,), held.caller, [held.messages], lambda: sizes)
            if decision.stop is None:
                return "pass"
            if not decision.delays:
                return "refuse"
            stop = self.limits.delays.hold(self.now_ns, decision, held)
        if stop is not None:
            return "refuse"
        self.waiting[name] = held
        return "hold"

    def until(self, now_ns: int) -> None:
        """Let time pass with all due work."""
        while (due_ns := self.holding.next_due_ns()) is not None and due_ns <= now_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.holding.release(self.now_ns)
        self.now_ns = now_ns

    def swap(self, *rules: Rule, enabled: bool = True) -> None:
        self.limits.swap(self.limits.rule_set.replace(rules=rules, enabled=enabled), self.now_ns)

    @property
    def passed(self) -> list[str]:
        return [name for _, name, rule in self.outcomes if rule is None]

    @property
    def refused(self) -> list[str]:
        return [name for _, name, rule in self.outcomes if rule is not None]

    def stored(self, resource: Resource = T) -> float:
        state = self.limits.state(resource, self.now_ns)
        assert state is not None
        return state.stored_permits


def delay(rate_per_s: float = 10, *, max_delay_s: float = 2, kind: str = "topic", **more: Any) -> Rule:
    return Rule(kind, more.pop("pattern", "*"), rate_per_s, action="delay", max_delay_s=max_delay_s, **more)


def filled(room: Room, count: int, **more: Any) -> list[str]:
    return [room.ask(str(number), **more) for number in range(count)]


class TestDelay:
    def test_requests_over_the_limit_wait_up_to_the_maximum(self) -> None:
        assert filled(Room(delay()), 35) == ["pass"] * 10 + ["hold"] * 20 + ["refuse"] * 5

    def test_released_in_order_at_the_rate(self) -> None:
        room = Room(delay())
        filled(room, 15)
        room.until(10 * S)
        assert room.passed == ["10", "11", "12", "13", "14"]
        times = [at_ns for at_ns, _, _ in room.outcomes]
        assert [round(at_ns / MS) for at_ns in times] == [0, 100, 200, 300, 400]

    def test_refused_at_the_deadline_by_the_rule_it_waited_for(self) -> None:
        room = Room(delay())
        filled(room, 12)
        room.limits.charge(0, (T,), ASKER, 100, 0)
        room.until(3 * S)
        assert room.outcomes == [(2 * S, "10", "topic:*"), (2 * S, "11", "topic:*")]
        state = room.limits.state(T, room.now_ns)
        assert state is not None
        assert state.last_refused_ns == 2 * S

    def test_rate_0_refuses_at_once(self) -> None:
        room = Room(delay(0))
        assert room.ask("a") == "refuse"
        assert room.limits.held == (0, 0)

    def test_bytes_are_waited_for_as_well(self) -> None:
        room = Room(delay(1000, bytes_per_s=1000))
        assert filled(room, 32) == ["pass"] * 10 + ["hold"] * 20 + ["refuse"] * 2
        room.until(10 * S)
        assert room.passed == [str(number) for number in range(10, 30)]
        assert round(room.outcomes[-1][0] / MS) == 1900

    def test_fair_shares_wait_in_lines_of_their_own(self) -> None:
        room = Room(delay(10, fair_by="producer_group"))
        small = ASKER._replace(producer_group="small")
        answers = filled(room, 60)
        assert answers.count("refuse") > 0
        assert room.ask("first of small", caller=small) == "pass"
        assert room.ask("second of small", caller=small) == "hold"
        assert len(room.holding.lines) == 2
        room.until(500 * MS)
        assert "second of small" in room.passed

    def test_lines_never_wait_for_each_other_in_a_circle(self) -> None:
        """Requests with both limits wait for one of them each, crosswise."""
        room = Room(delay(1, max_delay_s=50, pattern="t"), delay(2, max_delay_s=50, kind="client", burst_s=0.5))
        other = Resource("topic", "other")
        for number in range(8):
            room.ask(f"t{number}")
            room.ask(f"o{number}", other)
        room.until(60 * S)
        assert not room.refused
        for letter in "to":
            numbers = [int(name[1:]) for name in room.passed if name[0] == letter]
            assert numbers == sorted(numbers)
        assert len(room.passed) == len(room.waiting)


class TestRulesChange:
    @pytest.mark.parametrize("rules", [(), (delay(None),), (Rule("topic", "*", 1, action="off"),)])  # type: ignore[arg-type]  # unlimited
    def test_limit_that_is_gone_releases_all(self, rules: tuple[Rule, ...]) -> None:
        room = Room(delay(1, max_delay_s=60))
        filled(room, 600)
        room.swap(*rules)
        room.until(1)
        assert room.passed == list(room.waiting)
        assert room.limits.held == (0, 0)

    @pytest.mark.parametrize("rule", [Rule("topic", "*", 0), delay(0)])
    def test_limit_of_nothing_refuses_all(self, rule: Rule) -> None:
        room = Room(delay())
        filled(room, 15)
        room.swap(rule)
        room.until(1)
        assert room.refused == list(room.waiting)


class TestBounds:
    @pytest.mark.parametrize(
        ("bounds", "name"),
        [
            (Bounds(requests=3), "max_held"),
            (Bounds(size_bytes=399), "max_held_bytes"),
            (Bounds(requests_per_connection=3), "max_held_per_connection"),
            (Bounds(size_bytes_per_connection=399), "max_held_bytes_per_connection"),
        ],
    )
    def test_over_a_bound_is_refused_and_counted(self, bounds: Bounds, name: str) -> None:
        room = Room(delay())
        room.holding.bounds = bounds
        assert filled(room, 15) == ["pass"] * 10 + ["hold"] * 3 + ["refuse"] * 2
        assert room.limits.refused_by_bound == {name: 2}
        assert room.limits.held == (3, 300)

    def test_those_behind_are_counted_as_well(self) -> None:
        room = Room(delay())
        room.holding.bounds = Bounds(requests=0)
        decision = room.limits.decide(0, (T,), ASKER, [1] * 17, list)
        assert room.limits.delays.hold(0, decision, Waiting(room, "x", T), behind=6) is not None
        assert room.limits.refused_by_bound == {"max_held": 7}

    def test_room_is_free_again_after_release_refusal_and_drop(self) -> None:
        room = Room(delay())
        room.holding.bounds = Bounds(requests=1)
        for name in ("released", "dropped", "refused"):
            while room.ask(name) == "pass":
                pass
            assert room.limits.held == (1, 100)
            if name == "dropped":
                room.holding.drop(room.waiting[name])
            elif name == "refused":
                room.limits.charge(room.now_ns, (T,), ASKER, 1000, 0)
            room.until(room.now_ns + (100 * MS if name == "released" else 2 * S))
            assert room.limits.held == (0, 0)
        assert room.holding._connections == {}


class TestOrderKeys:
    def test_follower_is_asked_for_by_its_own_limits_in_its_turn(self) -> None:
        room = Room(delay(pattern="t"), Rule("topic", "tight", 0), delay(1, pattern="slow"))
        filled(room, 10)
        room.ask("fills slow", Resource("topic", "slow"), messages=2)
        room.ask("leader", order_key="k")
        room.ask("refused", Resource("topic", "tight"), order_key="k")
        room.ask("slow", Resource("topic", "slow"), order_key="k")
        room.ask("last", order_key="k")
        room.until(10 * S)
        assert [(name, rule) for _, name, rule in room.outcomes] == [
            ("leader", None),
            ("refused", "topic:tight"),
            ("slow", None),
            ("last", None),
        ]
        assert round(room.outcomes[-1][0] / MS) == 1000

    def test_dropping_the_leader_releases_its_followers(self) -> None:
        room = Room(delay(pattern="t"))
        filled(room, 10)
        for name in ("leader", "gone", "follower"):
            room.ask(name, T if name == "leader" else Resource("topic", "free"), order_key=1)
        room.holding.drop(room.waiting["gone"])
        room.holding.drop(room.waiting["leader"])
        room.until(1)
        assert room.passed == ["follower"]
        assert room.holding._orders == {}

    def test_follower_is_refused_at_its_deadline_if_its_leader_still_waits(self) -> None:
        room = Room(delay(pattern="t", max_delay_s=10), delay(pattern="u", max_delay_s=1))
        filled(room, 10)
        room.limits.charge(0, (T,), ASKER, 50, 0)
        room.ask("leader", order_key=1)
        room.ask("follower", order_key=1)
        room.swap(delay(0.5, pattern="t", max_delay_s=10), delay(pattern="u", max_delay_s=1))
        room.until(20 * S)
        assert [(at_ns, name) for at_ns, name, _ in room.outcomes] == [(10 * S, "leader"), (10 * S, "follower")]


class TestShared:
    """Names with one limiter share its line: separate lines would be checked in vain for every permit."""

    @pytest.mark.parametrize("share", ["fair share", "overflow limiter"])
    def test_is_asked_once_for_each_permit(self, share: str) -> None:
        fair = share == "fair share"
        more: dict[str, Any] = {"fair_by": "producer_group", "max_fair_keys": 3} if fair else {}
        room = Room(delay(100, **more), max_live=3)
        for number in range(500):
            resource = T if fair else Resource("topic", str(number))
            room.ask(str(number), resource, caller=ASKER._replace(producer_group=str(number)))
        held = room.holding.now.requests
        assert 100 < held < 250
        asks, ask, releases = 0, room.holding._ask, 0

        def counted(request: Held, now_ns: int) -> Any:
            nonlocal asks
            asks += 1
            return ask(request, now_ns)

        room.holding._ask = counted
        while (due_ns := room.holding.next_due_ns()) is not None:
            room.now_ns = max(room.now_ns, due_ns)
            room.holding.release(room.now_ns)
            releases += 1
        assert asks <= 2 * held + releases
        assert releases <= 2 * held
        assert len(room.outcomes) == held


class TestConsuming:
    """Requests that cost nothing until their answer arrives."""

    CONSUMER = ASKER._replace(consumes=True, by_answer=True)

    def room(self, rate_per_s: float = 100) -> Room:
        return Room(delay(rate_per_s, kind="subscription", max_delay_s=10))

    def pull(self, room: Room, name: str) -> str:
        return room.ask(name, PULL, messages=0, caller=self.CONSUMER)

    def answer(self, room: Room, messages: int) -> None:
        room.limits.charge(room.now_ns, (PULL,), self.CONSUMER, messages, messages * 100)

    def test_as_many_at_a_time_as_the_stored_permits_allow(self) -> None:
        room = self.room()
        self.pull(room, "first")
        self.answer(room, 32)
        self.answer(room, 69)
        self.answer(room, 10)
        for name in "abcdef":
            assert self.pull(room, name) == "hold"
        room.now_ns = 360 * MS  # 25 are stored, and each answer is expected to cost 10
        room.until(360 * MS)
        assert room.passed == ["a", "b", "c"]

    def test_expected_cost_expires_without_an_answer(self) -> None:
        room = self.room(rate_per_s=10)
        self.pull(room, "first")
        self.answer(room, 30)
        for name in "ab":
            self.pull(room, name)
        room.until(10 * S)
        assert [(name, round(at_ns / MS)) for at_ns, name, _ in room.outcomes] == [("a", 2000), ("b", 3000)]

    def test_empty_answer_ends_the_expected_cost(self) -> None:
        room = self.room(rate_per_s=10)
        self.pull(room, "first")
        self.answer(room, 30)
        for name in "ab":
            self.pull(room, name)
        room.until(2100 * MS)
        assert room.passed == ["a"]
        self.answer(room, 0)
        room.until(2100 * MS)
        assert room.passed == ["a", "b"]

    def test_where_requests_are_counted_an_answer_costs_nothing(self) -> None:
        room = Room(delay(1, kind="subscription", max_delay_s=10, count="requests"))
        assert self.pull(room, "a") == "pass"
        self.answer(room, 500)
        for name in "bcd":
            assert self.pull(room, name) == "hold"
        room.until(5 * S)
        assert [(name, round(at_ns / MS)) for at_ns, name, _ in room.outcomes] == [("b", 0), ("c", 1000), ("d", 2000)]


class TestDropping:
    def test_drop_frees_everything_without_callbacks(self) -> None:
        room = Room(delay())
        filled(room, 25, order_key=3)
        for held in room.waiting.values():
            room.holding.drop(held)
            room.holding.drop(held)
        assert room.limits.held == (0, 0)
        assert room.holding.lines == {}
        assert room.holding._orders == {}
        assert room.holding.next_due_ns() is None
        room.until(10 * S)
        assert room.outcomes == []

    def test_failure_of_one_does_not_strand_the_others(self) -> None:
        room = Room(delay(1, max_delay_s=60))
        filled(room, 5)

        class Broken(Waiting):
            __slots__ = ()

            def resolved(self, stop: Denial | None) -> None:
                raise RuntimeError("broken")

        room.waiting["2"].__class__ = Broken
        room.swap()
        with pytest.raises(RuntimeError, match="broken"):
            room.until(S)
        room.until(S)
        assert room.passed == ["1", "3", "4"]
        assert room.limits.held == (0, 0)


class TestDraining:
    def test_releases_on_until_shortly_before_the_end_and_refuses_the_rest(self) -> None:
        room = Room(delay())
        filled(room, 20)
        room.holding.drain(500 * MS)
        room.until(S)
        assert room.passed == ["10", "11", "12"]
        assert len(room.refused) == 7
        assert {at_ns for at_ns, _, rule in room.outcomes if rule} == {300 * MS}


class TestTimer:
    def test_notifies_only_when_the_next_due_time_moves_earlier(self) -> None:
        room = Room(delay(max_delay_s=2), delay(100, kind="client"))
        told: list[int] = []
        room.holding.earlier = lambda: told.append(room.now_ns)
        filled(room, 12)
        assert len(told) == 2  # a deadline, and before it the release
        room.holding.next_due_ns()
        room.ask("behind")
        assert len(told) == 2
        room.limits.charge(0, (T,), ASKER, 50, 0)
        assert len(told) == 2
        room.swap(delay(1000))
        assert len(told) == 3

    def test_one_release_rechecks_a_bounded_number(self) -> None:
        room = Room(delay(1000, max_delay_s=60))
        filled(room, 2000)
        room.swap()
        room.holding.release(0)
        assert len(room.passed) == RELEASED_AT_ONCE
        assert room.holding.next_due_ns() == 0
        room.until(0)
        assert room.passed == list(room.waiting)

    def test_released_requests_use_no_memory(self) -> None:
        room = Room(delay(1, max_delay_s=3600))
        filled(room, 2)
        for number in range(5000):
            assert room.ask(f"x{number}") == "hold"
            room.holding.drop(room.waiting.pop(f"x{number}"))
            room.holding.recheck_all_soon(room.now_ns)
            room.holding.release(room.now_ns)
        (line,) = room.holding.lines.values()
        assert max(len(room.holding._deadlines), len(room.holding._dues), len(line._heap)) < 200


@pytest.mark.no_cover
class TestTenThousand:
    @staticmethod
    def held(connections: int = 10) -> Room:
        room = Room(delay(1000, max_delay_s=60))
        for number in range(11_000):
            room.ask(str(number), connection=number % connections)
        assert room.limits.held == (10_000, 1_000_000)
        assert room.ask("one more") == "refuse"
        return room

    def test_pass_in_order_and_each_once(self) -> None:
        room = self.held()
        room.until(60 * S)
        assert room.passed == [str(number) for number in range(1000, 11_000)]
        assert not room.refused
        assert round(room.outcomes[-1][0] / S, 2) == 10

    def test_cost_less_than_a_kibibyte_each_besides_their_bytes(self) -> None:
        room = Room(delay(1000, max_delay_s=60))
        filled(room, 1000)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(10_000):
                room.holding.bounds = Bounds(requests_per_connection=10_000)
                assert room.ask("x") == "hold"
            room.waiting.clear()
            used_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert room.limits.held.requests == 10_000
        assert used_bytes / 10_000 < 1024


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("ab"), st.sampled_from([None, 1, 2]), st.integers(1, 5)),
        st.tuples(st.just("drop"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.sampled_from([1, 10 * MS, 300 * MS, S])),
        st.tuples(st.just("charge"), st.sampled_from("ab"), st.integers(1, 5)),
        st.tuples(st.just("swap"), st.sampled_from([1, 3, 50])),
    ),
    max_size=60,
)


@given(actions=ACTIONS)
def test_every_request_is_resolved_once_in_order_and_in_time(actions: list[tuple[Any, ...]]) -> None:
    room = Room(delay(3), delay(4, kind="client", max_delay_s=1))
    asked: dict[str, tuple[int, str, int | None]] = {}
    dropped: set[str] = set()

    def ask(topic: str, order_key: int | None, messages: int) -> None:
        name = str(len(asked))
        answer = room.ask(name, Resource("topic", topic), order_key=order_key, messages=messages)
        asked[name] = (room.now_ns, topic, order_key)
        if answer == "pass":
            room.outcomes.append((room.now_ns, name, None))
        elif answer == "refuse":
            room.outcomes.append((room.now_ns, name, "at once"))

    def drop(number: int) -> None:
        held = room.waiting.get(str(number))
        if held is not None and not held.gone:
            dropped.add(held.name)
            room.holding.drop(held)

    perform: dict[str, Callable[..., None]] = {
        "ask": ask,
        "drop": drop,
        "wait": lambda pause_ns: room.until(room.now_ns + pause_ns),
        "charge": lambda topic, messages: room.limits.charge(
            room.now_ns, (Resource("topic", topic),), ASKER, messages, 0
        ),
        "swap": lambda rate: room.swap(delay(rate), delay(4, kind="client", max_delay_s=1)),
    }
    for name, *given_ in actions:
        perform[name](*given_)
        assert room.holding.now.requests == len(asked) - len(room.outcomes) - len(dropped)
    room.until(room.now_ns + 10 * S)
    names = [name for _, name, _ in room.outcomes]
    assert len(set(names)) == len(names)
    assert set(names) | dropped == set(asked)
    assert room.limits.held == (0, 0)
    assert not room.holding.lines
    assert not room.holding._orders
    for at_ns, name, _ in room.outcomes:
        assert at_ns - asked[name][0] <= 2 * S
    for topic in "ab":
        for order_key in (1, 2):
            numbers = [int(name) for name in room.passed if asked[name][1:] == (topic, order_key)]
            assert numbers == sorted(numbers)
    for order_key in (1, 2):
        numbers = [int(name) for name in room.passed if asked[name][2] == order_key]
        assert numbers == sorted(numbers)


class TestWhatCannotBeRefused:
    CALLER = ASKER._replace(refusable=False)

    def ask(self, room: Room, name: str, **more: Any) -> str:
        return room.ask(name, caller=self.CALLER, **more)

    def test_counts_for_no_bound_of_those_that_can_be_refused(self) -> None:
        room = Room(delay(1, max_delay_s=60))
        room.holding.bounds = Bounds(requests=1, requests_per_connection=1)
        assert [self.ask(room, str(number)) for number in range(5)] == ["pass"] + ["hold"] * 4
        assert [room.ask("refusable"), room.ask("another")] == ["hold", "refuse"]
        assert room.limits.held == (5, 500)
        assert room.limits.refused_by_bound == {"max_held": 1}

    def test_waits_for_ever_for_a_limit_of_nothing_until_the_rule_changes(self) -> None:
        room = Room(Rule("topic", "*", 0))
        assert self.ask(room, "patient") == "hold"
        room.until(3600 * S)
        assert not room.outcomes
        room.swap(Rule("topic", "*", 5))
        room.until(3601 * S)
        assert room.passed == ["patient"]

    def test_passes_at_the_end_of_a_drain(self) -> None:
        room = Room(Rule("topic", "*", 0))
        self.ask(room, "first")
        self.ask(room, "second", order_key=1)
        room.holding.drain(10 * S)
        room.until(10 * S)
        assert sorted(room.passed) == ["first", "second"]
        assert room.holding.is_over(10 * S)
