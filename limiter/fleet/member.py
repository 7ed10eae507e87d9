"""A member of a fleet: builds the calls to Redis for all leases of this process."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import floor
from struct import unpack
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

from limiter.buckets.fleet import ROUND_NS, FleetLimiter, Lease
from limiter.rules.resource import OVERFLOW_NAME
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT

WhenAway = Literal["last", "equal", "unlimited", "refuse"]
"""What members do without Redis: keep their last share, take an equal share, admit everything, or refuse everything."""

AWAY_NS: Final = 400_000_000
"""Redis counts as away after this long without an answer. Members hold permits for longer than that."""
HEARTBEAT_NS: Final = NS_PER_S // 2
MAX_ROUNDS_PER_S: Final = 10
MAX_SLOTS: Final = 8
"""How many members get an advance of one permit. The rest of the reserve is divided among all members."""
MAX_NAMES: Final = 100
"""Maximum names per call, so that a call keeps Redis busy for a few ms only."""


class Call(NamedTuple):
    """One call of the script. All calls of a round may be sent at once, in order."""

    keys: list[str]
    args: list[str | int | float]
    leases: list[tuple[Lease, int]]  # each with the permits wanted


class LeaseState(NamedTuple):
    key: str  # DIMENSION:KIND:NAME
    rate_per_s: float
    share: float | None  # 0 to 1, of the fleet's demand. None before the first answer
    held: int  # permits. Negative: a debt. 0 while the member decides alone
    asked_per_s: float


class MemberState(NamedTuple):
    """The state of this member, for operators."""

    member: str
    members: int  # in the fleet, including this one, in the last answer
    answered_ns: int | None  # time of the last answer
    away_since_ns: int | None  # None while Redis answers
    leases: list[LeaseState]  # in use, largest demand first


class Member:
    """All leases of one process.

    The caller sends the calls from ``ask`` at ``next_ns``, which may change when ``wake`` is called. It passes each
    answer to ``take``, or calls ``failed`` after half a second without one. Late answers must be dropped.

    Args:
        fleet: name of the fleet. Empty: everything is decided locally.
        member: unique among the fleet's processes, and never reused.
        members: last known size of the fleet.
    """

    def __init__(
        self, fleet: str = "", member: str = "", now_ns: int = 0, when_away: WhenAway = "last", members: int = 1
    ) -> None:
        self.fleet, self.member, self.when_away = fleet, member, when_away
        self.members = members
        self.part, self.slot = 0.0, -1  # share of all advances
        self._reserved = 0.0  # the part that other members must not get yet
        self.away_since_ns: int | None = None if fleet else now_ns
        self.answered_ns: int | None = None
        self.edits_version: bytes | None = None  # version of the edit log in the last answer
        self._began_ns = now_ns
        self._leases: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self._active: dict[Lease, None] = {}
        self._number = 0
        self._gap_ns = HEARTBEAT_NS
        self._waiting: list[Call] = []
        self._rounds: deque[int] = deque(maxlen=MAX_ROUNDS_PER_S)

    def wake(self) -> None:
        """Replaced by the caller: called when ``next_ns`` gets earlier."""

    def join(self, dimension: str, limiter: FleetLimiter, now_ns: int) -> None:
        key = f"{dimension}:{limiter.resource}"
        if limiter.resource.name == OVERFLOW_NAME:
            key += f":{limiter.rule.bare_name}"
        lease = self._leases.get(key)
        if lease is not None:
            limiter.lease = lease
            lease.move(now_ns, limiter)
            if lease.is_local and not self._is_local:
                lease.end_local(now_ns)
            return
        lease = self._leases[key] = limiter.lease = Lease(self, key, limiter, now_ns)
        lease.put()
        if self._is_local:
            lease.begin_local(now_ns, is_full=True)

    @property
    def _is_local(self) -> bool:
        return self.away_since_ns is not None and self.when_away != "refuse"

    def wants(self, lease: Lease, gap_ns: int) -> None:
        """Request a lease in the next round, at most ``gap_ns`` after the last one."""
        self._active[lease] = None
        if gap_ns < self._gap_ns:
            self._gap_ns = gap_ns
            self.wake()

    def advance(self, capacity: float) -> int:
        """Return the permits that this member may spend before it has a lease. Must agree with ``bucket.lua``."""
        slots = min(floor(0.75 * (capacity - 1)), MAX_SLOTS)
        parts = capacity / 2 - slots
        return (floor(parts * self.part) if parts >= 2 else 0) + (0 <= self.slot < slots)

    def local_share(self, share: float | None) -> float | None:
        """Return this member's part of a limit without Redis. None: unlimited."""
        if self.when_away == "unlimited":
            return None
        return share if self.when_away == "last" and share else 1 / self.members

    def next_ns(self) -> int | None:
        """Return the time of the next ``ask``. None while calls are pending."""
        if self._waiting:
            return None
        if not self._rounds:
            return self._began_ns
        last_ns = self._rounds[-1]
        first_ns = self._rounds[0] + NS_PER_S if len(self._rounds) == MAX_ROUNDS_PER_S else last_ns
        return max(last_ns + self._gap_ns, first_ns)

    def ask(self, now_ns: int) -> list[Call]:
        """Return the calls to send now. Empty before ``next_ns``."""
        next_ns = self.next_ns()
        if not self.fleet or next_ns is None or now_ns < next_ns:
            return []
        self._rounds.append(now_ns)
        active = [] if self._is_local else list(self._active)
        self._gap_ns = ROUND_NS if active else HEARTBEAT_NS
        self._waiting = self._calls(now_ns, active, self._reserved)
        return list(self._waiting)

    def leave(self, now_ns: int) -> list[Call]:
        """Return the calls that give everything back. They need no answer. The member must not be used afterwards."""
        leases = [lease for lease in self._leases.values() if lease in self._active or lease.held]
        self.part, self.slot = 0.0, -1
        for lease in leases:
            lease.settle()
            lease.held, lease.lent = min(0, lease.held), 0
            lease.put()
        return self._calls(now_ns, leases, -1.0)

    def _calls(self, now_ns: int, leases: Sequence[Lease], part: float) -> list[Call]:
        starts = range(0, len(leases), MAX_NAMES) or (0,)
        return [self._call(now_ns, leases[start : start + MAX_NAMES], part) for start in starts]

    def _call(self, now_ns: int, leases: Sequence[Lease], part: float) -> Call:
        self._number += 1
        call = Call([key_of(self.fleet, "members")], [self.member, self._number, part, self.slot], [])
        for lease in leases:
            wanted, demand = (0, 0.0) if part < 0 else lease.report(now_ns)
            rule = lease.rule
            age_s = -1 if lease.answered_ns is None else (now_ns - lease.answered_ns) / NS_PER_S
            call.keys.append(key_of(self.fleet, f"b:{lease.key}"))
            rate, capacity = (each / UPERMITS_PER_PERMIT for each in (rule.rate_upermits_per_s, rule.capacity_upermits))
            call.args.extend((rate, capacity, lease.spent, lease.held, wanted, round(demand, 3), round(age_s, 3)))
            call.leases.append((lease, wanted))
        call.keys.append(key_of(self.fleet, "edits"))
        return call

    def take(self, now_ns: int, call: Call, answer: Sequence[Any]) -> None:
        """Process the answer to a call."""
        self._waiting.remove(call)
        if not answer:
            return
        self.members, part, self.edits_version = answer[0], answer[1] / 1e9, answer[-1]
        self.answered_ns = now_ns
        if self.away_since_ns is not None:
            self.away_since_ns = None
            for lease in self._leases.values():
                if lease.is_local:
                    lease.end_local(now_ns)
        if part != self.part:
            # The parts of the others change once Redis knows this one.
            self._gap_ns = min(self._gap_ns, ROUND_NS)
        is_less = part < self.part or answer[2] != self.slot
        self.part, self.slot = part, answer[2]
        for index, (lease, wanted) in enumerate(call.leases):
            granted, share, _ = answer[3 * index + 3 : 3 * index + 6]
            lease.take(now_ns, granted, wanted, share / 1e6)
            if lease.is_idle and not lease.held:
                self._active.pop(lease, None)
        if is_less:
            for lease in self._active:
                lease.settle()
                lease.put()
        if part > self._reserved or (
            part < self._reserved and not any(lease.held < -lease.advance for lease in self._active)
        ):
            # Keep the larger part reserved until its debt is paid.
            self._reserved = part

    def failed(self, now_ns: int, call: Call | None = None) -> None:
        """Handle a call without an answer. None: no call could be made."""
        self._waiting = [] if call is None else [each for each in self._waiting if each is not call]
        since_ns = self._began_ns if self.answered_ns is None else self.answered_ns
        if self.away_since_ns is None and now_ns - since_ns >= AWAY_NS:
            self.away_since_ns = since_ns
            for lease in self._leases.values():
                if self._is_local:
                    lease.begin_local(now_ns)
                else:
                    lease.expire()
                    lease.put()

    def state(self, most: int = 100) -> MemberState:
        """Return the state for operators, with at most ``most`` leases."""
        leases = sorted(self._active, key=lambda lease: lease.asked_per_s, reverse=True)
        states = [
            LeaseState(*(lease.key, lease.rule.rate_per_s or 0.0, lease.share, held, lease.asked_per_s))
            for lease in leases[:most]
            for held in [0 if lease.is_local else lease.held]
        ]
        return MemberState(self.member, self.members, self.answered_ns, self.away_since_ns, states)


def key_of(fleet: str, name: str) -> str:
    """Return a fleet's key in Redis. In a Cluster, all keys of a fleet are in one slot."""
    return f"sluice:{{{fleet}}}:{name}"


def members_in(members: Mapping[bytes, bytes]) -> Iterator[tuple[str, int]]:
    """Yield each member in the hash ``…:members`` and its last call: Unix time in microseconds, by Redis's clock."""
    for member, figures in members.items():
        if member:
            yield member.decode(), int(unpack(">d", figures[:8])[0])


def shares_in(bucket: Mapping[bytes, bytes]) -> Iterator[tuple[str, float, int]]:
    """Yield each member in a bucket's hash, its share of the demand (0 to 1), and the most permits that it may hold."""
    weights = {member.decode(): unpack(">3d", figures[:24]) for member, figures in bucket.items() if member}
    total = sum(weight for _, _, weight in weights.values())
    for member, (_, held, weight) in weights.items():
        yield member, weight / total if total else 0.0, int(held)
