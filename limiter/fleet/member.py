"""Builds a fleet member's calls to Redis, and processes the responses."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from math import ceil, floor
from operator import attrgetter
from struct import unpack
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakValueDictionary
from zlib import crc32

from limiter.buckets.fleet import ROUND_NS, FleetLimiter, Lease, figures_of
from limiter.rules.resource import OVERFLOW_NAME
from limiter.rules.rule import DIMENSIONS, NS_PER_S, Rule

WhenAway = Literal["last", "equal", "unlimited", "refuse"]
"""What members do while Redis is unreachable: keep their last share, take an equal share, admit all, or refuse all."""

AWAY_NS: Final = 400_000_000
"""Redis is considered unreachable after this long without a response."""
HEARTBEAT_NS: Final = NS_PER_S // 2
MAX_ROUNDS_PER_S: Final = 10
MAX_SLOTS: Final = 8
"""How many members get an advance of one permit."""
MAX_NAMES: Final = 100
"""Maximum number of names per call, so that a call keeps Redis busy for only a few ms."""
MAX_NAMES_PER_ROUND: Final = 1000

_demand: Final = attrgetter("asked_per_s")


class Call(NamedTuple):
    """A call to ``bucket.lua``. All calls in a round may be sent in one batch, in order."""

    keys: list[str]
    args: list[str | int | float]
    leases: list[tuple[Lease, int]]  # each lease with the number of permits wanted


class LeaseState(NamedTuple):
    key: str  # DIMENSION:KIND:NAME, or DIMENSION:KIND:PATTERN
    rate_per_s: float
    share: float  # this member's share of the demand. An equal share before the first response, 0 if unused
    permits: int  # leased but not spent. Negative if in debt. 0 while the member decides alone
    asked_per_s: float


class Member:
    """Manages all leases in one process.

    The caller must call ``ask`` at the time returned by ``next_ns``, send the resulting calls, and pass each response
    to ``take``. ``wake`` signals that ``next_ns`` has become earlier. After half a second without a response, the
    caller must call ``failed`` and drop late responses.

    Args:
        fleet: name of the fleet. If empty, this process decides alone.
        member: a name that is unique in the fleet and never reused.
        members: last known number of members.
    """

    def __init__(
        self, fleet: str = "", member: str = "", now_ns: int = 0, when_away: WhenAway = "last", members: int = 1
    ) -> None:
        self.fleet, self.member, self.when_away = fleet, member, when_away
        self.members = members
        self.turns = 1  # rounds needed to request all names in use
        self.other = ""  # another member that has different limits
        self.differs_ns: int | None = None  # when such a member first appeared
        self.part, self.slot = 0.0, -1  # this member's part of the advances
        self._reserved = 0.0  # the part that other members must not get yet
        self.away_since_ns: int | None = None if fleet else now_ns
        self.answered_ns: int | None = None
        self.edits_version: bytes | None = None  # version of the edit log in the last response
        self._began_ns = now_ns
        self._leases: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self._active: dict[Lease, None] = {}
        self._short: dict[Lease, None] = {}  # active leases that have run out of permits since their last turn
        self.figures: dict[str, tuple[float, float]] = {}
        self._rules: dict[str, Rule] = {}
        self._digest = 0
        self._number = 0
        self._gap_ns = HEARTBEAT_NS
        self._waiting: list[Call] = []
        self._rounds: deque[int] = deque(maxlen=MAX_ROUNDS_PER_S)

    def wake(self) -> None:
        """Called when ``next_ns`` becomes earlier. Users of this class replace the method."""

    def note_rules(self, rules: Sequence[Rule]) -> None:
        """Set the active rules, which are shown to operators and compared with those of other members."""
        self._rules = {
            f"{dimension}:{rule.bare_name}": part
            for rule in reversed(rules)
            if rule.fleet
            for dimension in DIMENSIONS
            if (part := rule.part(dimension)) is not None
        }
        self.figures = {key: figures_of(self._rules[key]) for key in sorted(self._rules)}
        self._digest = crc32(repr(self.figures).encode())

    def join(self, dimension: str, limiter: FleetLimiter, now_ns: int) -> None:
        is_overflow = limiter.resource.name == OVERFLOW_NAME
        key = f"{dimension}:{f'{OVERFLOW_NAME} {limiter.rule.bare_name}' if is_overflow else limiter.resource}"
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
        """Include a lease in the next round, which begins at most ``gap_ns`` after the last one."""
        self._active[lease] = self._short[lease] = None
        if gap_ns < self._gap_ns:
            self._gap_ns = gap_ns
            self.wake()

    def advance(self, capacity: float) -> int:
        """Return how many permits this member may spend before it has a lease. Must match ``bucket.lua``."""
        slots = min(floor(0.75 * (capacity - 1)), MAX_SLOTS)
        parts = capacity / 2 - slots
        return (floor(parts * self.part) if parts >= 2 else 0) + (0 <= self.slot < slots)

    def local_share(self, share: float | None) -> float | None:
        """Return this member's share of a limit while Redis is unreachable, or None for no limit."""
        if self.when_away == "unlimited":
            return None
        return share if self.when_away == "last" and share else 1 / self.members

    def next_ns(self) -> int | None:
        """Return the time of the next ``ask``, or None while calls are pending."""
        if self._waiting:
            return None
        if not self._rounds:
            return self._began_ns
        last_ns = self._rounds[-1]
        first_ns = self._rounds[0] + NS_PER_S if len(self._rounds) == MAX_ROUNDS_PER_S else last_ns
        return max(last_ns + self._gap_ns, first_ns)

    def ask(self, now_ns: int) -> list[Call]:
        """Return the calls to send now. There are none before ``next_ns``."""
        next_ns = self.next_ns()
        if not self.fleet or next_ns is None or now_ns < next_ns:
            return []
        self._rounds.append(now_ns)
        active = [] if self._is_local else self._next_leases()
        self._gap_ns = ROUND_NS if active else HEARTBEAT_NS
        self._waiting = self._calls(now_ns, active, self._reserved)
        return list(self._waiting)

    def _next_leases(self) -> list[Lease]:
        self.turns = ceil(len(self._active) / MAX_NAMES_PER_ROUND) or 1
        short, most = self._short, MAX_NAMES_PER_ROUND // min(self.turns, 2)
        # In a full round, leases without permits get at most half of the places, so that no lease starves. Half of
        # these places go to the busiest leases, so that many new names do not delay them.
        most_asked = nlargest(most // 2, short, key=_demand) if len(short) > most else ()
        first = list(islice(dict.fromkeys((*most_asked, *islice(short, most))), most))
        others = list(islice(self._active, MAX_NAMES_PER_ROUND - len(first)))
        for lease in first:
            del short[lease]
        for lease in others if self.turns > 1 else ():
            del self._active[lease]
            self._active[lease] = None
        return list(dict.fromkeys((*first, *others)))

    def leave(self, now_ns: int) -> list[Call]:
        """Return the calls that give back all permits. Ignore the responses, and do not use the member afterwards."""
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
        call = Call([key_of(self.fleet, "members")], [self.member, self._number, part, self.slot, self._digest], [])
        for lease in leases:
            wanted, demand = (0, 0.0) if part < 0 else lease.report(now_ns)
            age_s = -1 if lease.answered_ns is None else (now_ns - lease.answered_ns) / NS_PER_S
            call.keys.append(key_of(self.fleet, f"b:{lease.key}"))
            call.args.extend(
                (*figures_of(lease.rule), lease.spent, lease.held, wanted, round(demand, 3), round(age_s, 3))
            )
            call.leases.append((lease, wanted))
        call.keys.append(key_of(self.fleet, "edits"))
        return call

    def take(self, now_ns: int, call: Call, answer: Sequence[Any]) -> None:
        self._waiting.remove(call)
        if not answer:
            return
        self.members, part, self.edits_version = answer[0], answer[1] / 1e9, answer[-1]
        self.answered_ns, self.other = now_ns, answer[3].decode(errors="replace")
        self.differs_ns = (self.differs_ns or now_ns) if self.other else None
        if self.away_since_ns is not None:
            self.away_since_ns = None
            for lease in self._leases.values():
                if lease.is_local:
                    lease.end_local(now_ns)
        if part != self.part:
            # The parts are still changing, so call again soon.
            self._gap_ns = min(self._gap_ns, ROUND_NS)
        is_less = part < self.part or answer[2] != self.slot
        self.part, self.slot = part, answer[2]
        for index, (lease, wanted) in enumerate(call.leases):
            granted, share, waits = answer[3 * index + 4 : 3 * index + 7]
            lease.take(now_ns, granted, wanted, share / 1e6, is_scarce=waits > 0)
            # Keep calling while Redis counts this member, for example until it has paid off a debt.
            if lease.is_idle and not (wanted or lease.held):
                self._active.pop(lease, None)
        if is_less:
            for lease in self._active:
                lease.settle()
                lease.put()
        if part > self._reserved or (
            part < self._reserved and not any(lease.held < -lease.advance for lease in self._active)
        ):
            # Keep the larger part reserved until the debt is paid.
            self._reserved = part

    def failed(self, now_ns: int) -> None:
        """Abandon all pending calls."""
        self._waiting = []
        since_ns = self._began_ns if self.answered_ns is None else self.answered_ns
        if self.away_since_ns is None and now_ns - since_ns >= AWAY_NS:
            self.away_since_ns = since_ns
            for lease in self._leases.values():
                if self._is_local:
                    lease.begin_local(now_ns)
                else:
                    lease.expire()
                    lease.put()

    def state(self, most: int = 100) -> list[LeaseState]:
        """Return the state of up to ``most`` of the fleet's limits, starting with those in highest demand."""
        active = sorted(self._active, key=lambda lease: lease.asked_per_s, reverse=True)
        used = {f"{lease.key.partition(':')[0]}:{lease.rule.bare_name}" for lease in active}
        unused = [each for each in self._rules.items() if each[0] not in used]
        return [self._state(*each) for each in [*((lease.key, lease.rule) for lease in active), *unused][:most]]

    def _state(self, key: str, rule: Rule) -> LeaseState:
        lease = self._leases.get(key)
        if lease is None or lease not in self._active:
            share = 0.0 if self.away_since_ns is None else 1 / self.members
            return LeaseState(key, rule.rate_per_s or 0.0, share, 0, 0.0)
        share, permits = 1 / self.members if lease.share is None else lease.share, 0 if lease.is_local else lease.held
        return LeaseState(key, rule.rate_per_s or 0.0, share, permits, lease.asked_per_s)


def key_of(fleet: str, name: str) -> str:
    """Return the Redis key for ``name``. In Redis Cluster, all keys of a fleet have the same hash slot."""
    return f"sluice:{{{fleet}}}:{name}"


def members_in(members: Mapping[bytes, bytes]) -> Iterator[tuple[str, int]]:
    """Yield each member in the hash ``…:members`` with the time of its last call, in µs according to Redis's clock."""
    for member, figures in members.items():
        if member:
            yield member.decode(errors="replace"), int(unpack(">d", figures[:8])[0])
