"""A fleet in one process: members, their traffic and Redis, on manual clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from fleet_bucket import FleetRedis

from limiter.buckets.fleet import FleetLimiter
from limiter.fleet.member import Call, Member
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

NS_PER_S = 1_000_000_000
STEP_NS = 1_000_000
EPOCH_US = 1.8e15


class SimulatedMember:
    def __init__(self, name: str, rule: Rule, now_ns: int) -> None:
        self.member = Member("f", name, now_ns)
        self.limiter = FleetLimiter(Resource("topic", "orders"), rule, now_ns)
        self.member.join("messages", self.limiter, now_ns)
        self.admitted_ns: list[int] = []
        self.refused_ns: list[int] = []
        self.rounds_ns: list[int] = []
        self.owed = 0.0  # requests of the traffic that are not sent yet
        self.pending: deque[tuple[int, Call, list[int]]] = deque()

    def offer(self, now_ns: int, per_s: float) -> None:
        self.owed += per_s * STEP_NS / NS_PER_S
        while self.owed >= 1:
            self.owed -= 1
            admitted = self.limiter.acquire(now_ns, (1,)).admitted
            (self.admitted_ns if admitted else self.refused_ns).append(now_ns)


class Simulation:
    """``members`` at first. Each round trip takes ``trip_ns``. All of them have been in contact before time 0."""

    def __init__(self, rule: Rule, members: int, trip_ns: int = 2_000_000) -> None:
        self.rule, self.trip_ns = rule, trip_ns
        self.redis = FleetRedis()
        self.now_ns = 10 * NS_PER_S
        self.began_ns = self.now_ns
        self.members: list[SimulatedMember] = []
        for _ in range(members):
            self.add()
        self.run(2.0, lambda _: [0.0] * members)
        self.began_ns = self.now_ns

    def add(self) -> SimulatedMember:
        """Add a member that has had its first contact."""
        one = SimulatedMember(f"m{len(self.members)}", self.rule, self.now_ns)
        self.members.append(one)
        self.exchange(one, trip_ns=0)
        return one

    def exchange(self, one: SimulatedMember, trip_ns: int) -> None:
        calls = one.member.ask(self.now_ns)
        if calls:
            one.rounds_ns.append(self.now_ns)
        for call in calls:
            answer = self.redis.call(EPOCH_US + self.now_ns / 1e3, call.keys, call.args)
            one.pending.append((self.now_ns + trip_ns, call, answer))
        while one.pending and one.pending[0][0] <= self.now_ns:
            _, call, answer = one.pending.popleft()
            one.member.take(self.now_ns, call, answer)

    def run(self, seconds: float, traffic: Callable[[float], Sequence[float]]) -> None:
        """``traffic`` returns each member's requests per second, by seconds since the beginning."""
        for _ in range(round(seconds * NS_PER_S / STEP_NS)):
            self.now_ns += STEP_NS
            rates = traffic((self.now_ns - self.began_ns) / NS_PER_S)
            for index, one in enumerate(self.members):
                one.offer(self.now_ns, rates[index])
                self.exchange(one, self.trip_ns)

    @property
    def admitted(self) -> int:
        return sum(len(one.admitted_ns) for one in self.members)

    @property
    def refused(self) -> int:
        return sum(len(one.refused_ns) for one in self.members)

    def max_beyond(self) -> float:
        """Return by how much any period exceeds the rate and one burst, or a value of at most 0."""
        rate, burst = self.rule.rate_upermits_per_s / 1e6, self.rule.capacity_upermits / 1e6
        level, at_ns, worst = 0.0, 0, -burst
        for each in sorted(each for one in self.members for each in one.admitted_ns):
            level = max(0.0, level - rate * (each - at_ns) / NS_PER_S) + 1
            at_ns = each
            worst = max(worst, level - burst)
        return worst

    def max_rounds_per_second(self) -> int:
        return max(
            sum(1 for each in one.rounds_ns if begin <= each < begin + NS_PER_S)
            for one in self.members
            for begin in one.rounds_ns
        )
