"""Applies a fleet limit in one member of the fleet. See ``limiter.fleet``.

A *lease* is a member's account with one of the fleet's buckets. The lease's limiter stores the remaining permits and
never refills, so the compiled extension can spend them like those of any limiter. When they run out, Python releases
the *advance* reserved for the lease, and requests more permits. While Redis is unreachable, the limiter is a local
bucket.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from limiter.buckets.limiter import Admission, Limiter, LimiterState
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

ROUND_NS: Final = 200_000_000
"""Interval between requests for permits while a name is in use."""
_NEVER_NS: Final = 1 << 62
_EVERYTHING: Final = 1 << 62
_WINDOW_NS: Final = 150_000_000
_ENDING: Final = 0.5
_MIN_ELAPSED_NS: Final = 50_000_000
_SOON_NS: Final = 10_000_000
_LESS_SOON_NS: Final = 50_000_000
_SHORTAGES: Final = 5
"""After this many shortages in a row, asking sooner does not help."""
_AHEAD_S: Final = 0.3
_MIN_DEMAND_PER_S: Final = 0.01
_MAX_IDLE_NS: Final = 10 * NS_PER_S
_KEEP_NS: Final = 60 * NS_PER_S
"""How long an idle lease keeps its permits if it has no advance and no other member is waiting for permits."""


class Fleet(Protocol):
    members: int
    turns: int

    def next_ns(self) -> int | None: ...

    def advance(self, capacity: float) -> int: ...

    def wants(self, lease: "Lease", gap_ns: int) -> None: ...

    def local_share(self, share: float | None) -> float | None: ...


def figures_of(rule: Rule) -> tuple[float, float]:
    return rule.rate_upermits_per_s / UPERMITS_PER_PERMIT, rule.capacity_upermits / UPERMITS_PER_PERMIT


class Lease:
    __slots__ = (
        *("__weakref__", "answered_ns", "asked_per_s", "base_upermits", "counted", "counted_ns", "fleet", "held"),
        *("is_idle", "is_local", "is_scarce", "key", "lent", "limiter", "share", "shortages", "spent", "used_ns"),
    )

    def __init__(self, fleet: Fleet, key: str, limiter: "FleetLimiter", now_ns: int) -> None:
        self.fleet, self.key, self.limiter = fleet, key, limiter
        self.held = 0  # permits granted but not spent. Negative if the advance or a large request has left a debt
        self.spent = 0
        self.lent = 0  # the advance, if it has been released to the limiter
        self.base_upermits = 0  # the limiter's balance when ``held`` was last updated
        self.counted = 0  # permits that were spent or refused since ``counted_ns``
        self.counted_ns = self.used_ns = now_ns
        self.answered_ns: int | None = None
        self.asked_per_s = 0.0
        self.share: float | None = None  # fraction of the fleet's demand, from the last response
        self.shortages = 0  # consecutive responses that granted fewer permits than wanted
        self.is_idle = self.is_local = False
        self.is_scarce = False  # whether another member is waiting for permits

    @property
    def rule(self) -> Rule:
        return self.limiter.rule

    @property
    def advance(self) -> int:
        return self.fleet.advance(figures_of(self.rule)[1])

    @property
    def unlent(self) -> int:
        """The number of permits in the advance that can still be released to the limiter."""
        return 0 if self.is_local or self.lent else self.advance

    def settle(self) -> None:
        """Update ``held`` and ``spent`` with the permits spent since the last call."""
        limiter = self.limiter
        spent = -((limiter.stored_upermits - self.base_upermits) // UPERMITS_PER_PERMIT)
        self.base_upermits -= spent * UPERMITS_PER_PERMIT
        self.counted += max(0, spent) + limiter.refused
        limiter.refused = 0
        if not self.is_local:
            self.spent += spent
            self.held -= spent

    def put(self) -> None:
        """Set the limiter's balance to the held permits. If none are held, add the released advance.

        Call ``settle`` first.
        """
        self.lent = self.advance if self.held <= 0 and self.lent else 0
        limiter = self.limiter
        limiter.at_ns = _NEVER_NS
        limiter.stored_upermits = self.base_upermits = (self.held + self.lent) * UPERMITS_PER_PERMIT
        # The rate of a lease's limiter only affects how long clients are told to wait.
        self._set_rate(self.share or 1 / self.fleet.members)

    def _set_rate(self, share: float) -> None:
        rate = self.rule.rate_upermits_per_s
        self.limiter.rate_upermits_per_s = max(1, int(rate * share)) if rate else 0

    def release(self) -> None:
        """Release the advance to the limiter, which has run out of permits, and request more from the fleet."""
        if self.is_local:
            return
        self.is_idle = False
        if not self.lent:
            self.lent = self.advance
            self.limiter.stored_upermits += self.lent * UPERMITS_PER_PERMIT
            self.base_upermits += self.lent * UPERMITS_PER_PERMIT
        self._ask_soon()

    def _ask_soon(self) -> None:
        gap_ns = _LESS_SOON_NS if 0 < self.shortages < _SHORTAGES else ROUND_NS if self.shortages else _SOON_NS
        self.fleet.wants(self, gap_ns)

    def report(self, now_ns: int) -> tuple[int, float]:
        """Settle and give up unneeded permits. Return the number of permits wanted, and the demand per second."""
        self.settle()
        elapsed_ns = max(now_ns - self.counted_ns, 1)
        recent_per_s = self.counted * NS_PER_S / max(elapsed_ns, _MIN_ELAPSED_NS)
        if self.counted:
            self.used_ns = now_ns
        # Use the higher demand of the last two windows to reduce noise, unless demand is ending.
        is_ending = elapsed_ns >= _WINDOW_NS and recent_per_s < _ENDING * self.asked_per_s
        demand = recent_per_s if is_ending else max(self.asked_per_s, recent_per_s)
        if elapsed_ns >= _WINDOW_NS:
            self.asked_per_s, self.counted, self.counted_ns = recent_per_s, 0, now_ns
        rate, _ = figures_of(self.rule)
        # If the limit is low, a member that waits long for its turn is not idle.
        idle_ns = max(NS_PER_S, min(_MAX_IDLE_NS, int(2 * self.fleet.members / rate * NS_PER_S))) if rate else 0
        if rate and not self.is_scarce and not self.advance:
            idle_ns = _KEEP_NS
        self.is_idle = now_ns - self.used_ns >= idle_ns
        target = 0 if self.is_idle else max(1, -int(-min(demand, rate) * _AHEAD_S * self.fleet.turns // 1))
        self.held = min(self.held, target)
        if self.is_idle and not self.held:
            self.lent, demand = 0, 0.0
        else:
            demand = max(demand, _MIN_DEMAND_PER_S)
        self.put()
        return max(0, target - self.held), demand

    def take(self, now_ns: int, granted: int, wanted: int, share: float, *, is_scarce: bool) -> None:
        self.settle()
        self.held += granted
        self.share, self.answered_ns, self.is_scarce = share, now_ns, is_scarce
        self.shortages = self.shortages + 1 if granted < wanted else 0
        self.put()
        if self.lent:
            self._ask_soon()

    def expire(self) -> None:
        """Discard the held permits. The fleet counts them as spent."""
        self.settle()
        if self.held > 0:
            self.spent, self.held = self.spent + self.held, 0

    def begin_local(self, now_ns: int, *, is_full: bool = False) -> None:
        """Switch to a local bucket. Unless ``is_full`` is set, it starts with the permits left in the limiter."""
        self.expire()
        self.lent, self.is_local = 0, True
        limiter, rule, share = self.limiter, self.rule, self.fleet.local_share(self.share)
        if share is None:
            stored, limiter.at_ns = _EVERYTHING, _NEVER_NS
        else:
            capacity = limiter.capacity_upermits = max(UPERMITS_PER_PERMIT, int(rule.capacity_upermits * share))
            self._set_rate(share)
            stored = capacity if is_full else min(limiter.stored_upermits, capacity)
            limiter.at_ns = now_ns
        limiter.stored_upermits = self.base_upermits = stored

    def end_local(self, now_ns: int) -> None:
        """Switch back to the fleet's bucket. The lease starts without permits, but keeps any debt."""
        limiter = self.limiter
        owed = min(0, limiter.refill(now_ns) // UPERMITS_PER_PERMIT)
        self.spent += self.held - owed
        self.held, self.lent, self.is_local = owed, 0, False
        limiter.capacity_upermits = _EVERYTHING
        self.put()

    def move(self, now_ns: int, limiter: "FleetLimiter") -> None:
        self.settle()
        old, self.limiter = self.limiter, limiter
        old.retired = True
        limiter.stored_upermits, old.stored_upermits = old.stored_upermits, 0
        if self.is_local:
            self.begin_local(now_ns)
        else:
            self.put()


class FleetLimiter(Limiter):
    __slots__ = ("lease", "refused")

    lease: Lease

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(resource, rule, now_ns)
        self.refused = 0
        self.capacity_upermits, self.stored_upermits, self.at_ns = _EVERYTHING, 0, _NEVER_NS
        self._allow_debt()

    def _allow_debt(self) -> None:
        # No member holds the full burst, so one permit must be enough to admit the largest request.
        more = max(0, self.rule.capacity_upermits - UPERMITS_PER_PERMIT)
        self.max_debt_upermits = self.rule.max_debt_upermits + more

    def settled(self, now_ns: int) -> tuple[int, int]:
        return (self.stored_upermits, now_ns) if self.at_ns == _NEVER_NS else super().settled(now_ns)

    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        admission = super().check(now_ns, costs)
        if admission.admitted < len(costs) and not admission.alone:
            self.lease.release()
            admission = super().check(now_ns, costs)
            self.refused += sum(costs[admission.admitted :])
        return admission

    def affords(self, now_ns: int, price: int, most: int) -> int:
        if super().affords(now_ns, price, most) < most:
            self.lease.release()
        return super().affords(now_ns, price, most)

    def refuse(self, now_ns: int) -> int:
        self.last_refused_ns, self.last_wait_us = now_ns, max(1, self.wait_us_behind(now_ns, 0))
        return self.last_wait_us

    def _stored_from_ns(self, next_free_ns: int) -> int:
        if self.lease.is_local:
            return super()._stored_from_ns(next_free_ns)
        # Responses grant whole permits only.
        permit_ns = UPERMITS_PER_PERMIT * NS_PER_S // self.rate_upermits_per_s
        return max(next_free_ns + permit_ns, self.lease.fleet.next_ns() or 0)

    def reconfigure(self, now_ns: int, rule: Rule) -> None:
        self.lease.settle()
        self.rule = rule
        self._allow_debt()
        if self.lease.is_local or not rule.fleet:
            self.lease.begin_local(now_ns)
        else:
            self.lease.put()

    def inherit(self, other: Limiter, now_ns: int) -> None:  # type: ignore[override]
        """Do nothing, because the balance is in the fleet's bucket."""

    def idle_at_ns(self) -> int | None:
        if self.lease.is_local:
            return super().idle_at_ns()
        return None if self.lease.held or self.lease.lent else self.lease.used_ns

    def state(self, now_ns: int) -> LimiterState:
        stored = self.settled(now_ns)[0] + self.lease.unlent * UPERMITS_PER_PERMIT
        return LimiterState(
            resource=self.resource,
            rule=self.rule.name,
            rate_per_s=figures_of(self.rule)[0],
            stored_permits=stored / UPERMITS_PER_PERMIT,
            open=False,
            wait_us=0 if stored > 0 and self.rate_upermits_per_s else self.wait_us_behind(now_ns, 0),
            last_refused_ns=self.last_refused_ns,
            last_wait_us=self.last_wait_us,
        )
