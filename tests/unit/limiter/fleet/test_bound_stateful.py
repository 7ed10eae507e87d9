"""Whatever happens to members, messages, clocks and Redis, the admitted sum stays within the bound."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fleet_bucket import FleetRedis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from limiter.buckets.fleet import FleetLimiter
from limiter.fleet.member import Call, Member
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

indices = st.integers(0, 9)
fates = st.sampled_from(["answered"] * 6 + ["call lost", "answer lost", "call late", "answer late"])


def a_rule(rate: float) -> Rule:
    return Rule("topic", "orders", rate, fleet=True)


class Process:
    def __init__(self, name: str, rate: float, now_ns: int) -> None:
        self.member = Member("f", name, now_ns, when_away="refuse")
        self.limiter = FleetLimiter(Resource("topic", "orders"), a_rule(rate), now_ns)
        self.member.join("messages", self.limiter, now_ns)
        self.name, self.is_thought_dead = name, False
        self.waiting: list[tuple[Call, Sequence[int] | None, int]] = []


class Fleets(RuleBasedStateMachine):
    rates: Sequence[float] = (20, 60, 70)
    redis_fails = False
    largest = 1

    def __init__(self) -> None:
        super().__init__()
        self.redis = FleetRedis()
        self.now_ns = NS_PER_S
        self.offset_ns = 10**18
        self.rate = float(self.rates[len(self.rates) // 2])
        self.late: list[Call] = []
        self.processes: list[Process] = []
        self.began = 0
        self.level, self.level_ns = 0.0, self.now_ns
        # The largest capacity so far, and the documented exceptions.
        self.capacity = self.allowed = self.rate
        for _ in range(4):
            self.begins()

    def call(self, call: Call) -> Sequence[int]:
        answer = self.redis.call((self.now_ns + self.offset_ns) / 1e3, call.keys, call.args)
        alive = self.redis.hashes.get("sluice:{f}:members", {})
        for one in self.processes:
            is_dead = one.member.answered_ns is not None and one.name not in alive
            # Another may have its advance at once, for which the bucket pays with its next call.
            self.allowed += one.limiter.lease.advance if is_dead and not one.is_thought_dead else 0
            one.is_thought_dead = is_dead
        self.check()
        return answer

    def one(self, index: int) -> Process:
        return self.processes[index % len(self.processes)]

    @property
    def most(self) -> float:
        return max([self.rate, *(one.limiter.rule.rate_per_s or 0 for one in self.processes)])

    @precondition(lambda self: len(self.processes) < 10)
    @rule()
    def begins(self) -> None:
        self.began += 1
        one = Process(f"m{self.began}", self.rate, self.now_ns)
        self.processes.append(one)
        self.allowed += self.largest - 1
        for call in one.member.ask(self.now_ns):
            one.member.take(self.now_ns, call, self.call(call))

    @rule(index=indices, cost=st.integers(1, 3))
    def is_asked(self, index: int, cost: int) -> None:
        self.requests(self.one(index), min(cost, self.largest))

    def requests(self, one: Process, cost: int = 1) -> None:
        admitted = one.limiter.acquire(self.now_ns, (cost,) * 100).admitted
        self.level += cost * admitted
        self.check()

    def check(self) -> None:
        """Add the permits that could be admitted at this moment: in Redis, of members, and advances.

        In Redis they are negative while the bucket pays for dead members.
        """
        store = self.redis.hashes.get("sluice:{f}:b:messages:topic:orders", {}).get("", [0.0, 0.0])[1]
        leases = [one.limiter.lease for one in self.processes]
        members = sum(
            max(0, lease.limiter.stored_upermits // UPERMITS_PER_PERMIT + (0 if lease.lent else lease.advance))
            for lease in leases
        )
        assert self.level + store + members <= self.allowed + 1e-6

    @rule(
        millis=st.sampled_from([10, 50, 200, 1000, 4000]),
        steps=st.integers(1, 8),
        asking=st.frozensets(st.integers(0, 4), max_size=5),
        silent=st.integers(0, 12),
    )
    def time_passes(self, millis: int, steps: int, asking: frozenset[int], silent: int) -> None:
        for _ in range(steps):
            self.now_ns += millis * 1_000_000
            self.level = max(0.0, self.level - self.most * millis / 1000)
            for index, one in enumerate(self.processes):
                self.talks(one, "call lost" if index == silent else "answered")
            for index, one in enumerate(self.processes):
                if index in asking:
                    self.requests(one)

    @rule()
    def all_are_idle(self) -> None:
        """All buckets and advances are whole again, so the next rush can reach the bound."""
        self.time_passes(200, 20, frozenset(), 12)

    @rule(seconds=st.sampled_from([0.2, 1]))
    def all_are_flat_out(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            self.now_ns += NS_PER_S // 20
            self.level = max(0.0, self.level - self.most / 20)
            for one in self.processes:
                self.requests(one)
                self.talks(one, "answered")
                self.requests(one)

    @rule(index=indices, silent_s=st.sampled_from([0.2, 1, 2.5]))
    def stands_still_with_what_it_holds(self, index: int, silent_s: float) -> None:
        """Shorter than the time after which it counts as dead. Then it spends first."""
        one = self.one(index)
        for _ in range(5):
            self.requests(one)
            self.time_passes(100, 1, frozenset(), 12)
        self.processes.remove(one)
        self.time_passes(100, round(silent_s * 10), frozenset(), 12)
        self.processes.insert(0, one)
        self.requests(one)
        self.all_are_flat_out(0.2)

    @rule(index=indices, later=st.integers(1, 20))
    def a_call_is_late(self, index: int, later: int) -> None:
        """After later calls of its member."""
        one = self.one(index)
        self.all_are_idle()
        self.level += one.limiter.acquire(self.now_ns, (1,)).admitted
        self.talks(one, "call late")
        for _ in range(later):
            self.requests(one)
            self.time_passes(50, 1, frozenset(), 12)
        self.late_call_arrives()
        self.all_are_flat_out(0.2)

    @rule(count=st.integers(1, 9))
    def some_die_in_a_rush(self, count: int) -> None:
        """Those with an advance first. Others replace them once they count as dead."""
        while len(self.processes) < 10:
            self.begins()
        self.all_are_idle()
        self.all_are_flat_out(0.2)
        for one in sorted(self.processes, key=lambda one: one.member.slot)[:count]:
            self.ends(self.processes.index(one), cleanly=False)
        self.all_are_flat_out(3.2)
        for _ in range(count):
            self.begins()

    @rule(index=indices, fate=fates)
    def exchanges(self, index: int, fate: str) -> None:
        self.talks(self.one(index), fate)

    def talks(self, one: Process, fate: str) -> None:
        waiting, one.waiting = one.waiting, []
        for call, answer, since_ns in waiting:
            if answer is None or self.now_ns - since_ns >= NS_PER_S:
                one.member.failed(self.now_ns)
            else:
                one.member.take(self.now_ns, call, answer)
        for call in one.member.ask(self.now_ns):
            if fate == "answered":
                one.member.take(self.now_ns, call, self.call(call))
            elif fate == "answer late":
                one.waiting.append((call, self.call(call), self.now_ns))
            else:
                if fate == "call late":
                    self.late.append(call)
                elif fate == "answer lost":
                    self.call(call)
                one.waiting.append((call, None, self.now_ns))

    @precondition(lambda self: self.late)
    @rule()
    def late_call_arrives(self) -> None:
        for call in self.late:
            self.call(call)
        self.late = []

    @precondition(lambda self: len(self.processes) > 1)
    @rule(index=indices, cleanly=st.booleans())
    def ends(self, index: int, cleanly: bool) -> None:  # noqa: FBT001
        one = self.one(index)
        self.requests(one)
        self.processes.remove(one)
        if cleanly:
            for call in one.member.leave(self.now_ns):
                self.call(call)
        elif one.limiter.lease.answered_ns is None:
            self.allowed += one.limiter.lease.advance

    @rule(data=st.data())
    def is_edited(self, data: st.DataObject) -> None:
        rate = float(data.draw(st.sampled_from(self.rates)))
        self.rate = rate
        self.allowed += max(0.0, rate - self.capacity)
        self.capacity = max(self.capacity, rate)

    @rule(index=indices)
    def follows_the_edit(self, index: int) -> None:
        limiter = self.one(index).limiter
        if limiter.rule.rate_per_s != self.rate:
            limiter.reconfigure(self.now_ns, a_rule(self.rate))

    @precondition(lambda self: self.redis_fails)
    @rule()
    def redis_comes_back_empty(self) -> None:
        self.redis.flush()
        self.allowed += self.capacity

    @precondition(lambda self: self.redis_fails)
    @rule(millis=st.sampled_from([-10_000, -100, 100, 1500, 10_000]))
    def clock_of_redis_is_set(self, millis: int) -> None:
        self.offset_ns += millis * 1_000_000
        if millis > 0:
            self.allowed += min(self.capacity, self.most * millis / 1000)


class FleetsOfAFailingRedis(Fleets):
    redis_fails = True
    largest = 3


class FleetsWithoutEdits(Fleets):
    """Edits leave some of the bound unused."""

    rates = (20,)


class FleetsOfASmallLimit(Fleets):
    rates = (5,)


TestFleets = Fleets.TestCase
TestFleetsOfAFailingRedis = FleetsOfAFailingRedis.TestCase
TestFleetsWithoutEdits = FleetsWithoutEdits.TestCase
TestFleetsOfASmallLimit = FleetsOfASmallLimit.TestCase
TestFleets.settings = TestFleetsOfAFailingRedis.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None
)
TestFleetsWithoutEdits.settings = TestFleetsOfASmallLimit.settings = TestFleets.settings


@pytest.mark.parametrize(
    ("what", "arguments"),
    [("stands_still_with_what_it_holds", (3, 1)), ("a_call_is_late", (0, 2)), ("some_die_in_a_rush", (2,))],
)
def test_each_guard_of_the_bound_is_necessary(what: str, arguments: tuple[int, ...]) -> None:
    """The clip by held permits, the numbers of calls, and the charge for dead members: without each, the test fails."""
    fleets = FleetsOfASmallLimit()
    for _ in range(4):
        fleets.begins()
    fleets.all_are_idle()
    getattr(fleets, what)(*arguments)
