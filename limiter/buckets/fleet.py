"""A fleet's limit in one member: spends permits leased from the fleet's bucket without asking it.

A *lease* is a member's account with one bucket. Its limiter stores the remaining permits and never refills, so the
compiled part spends them as with any limiter, and the balance shows how many have passed. When they run out, Python
releases the *advance* reserved for the lease in the fleet's bucket, and fetches more at once. So an idle name costs
nothing, and its first message passes.

While the fleet's bucket is away, the limiter is a local bucket. See ``limiter.fleet``.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from limiter.buckets.limiter import Admission, Limiter, LimiterState
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

ROUND_NS: Final = 200_000_000
"""How often names in use are requested."""
_NEVER_NS: Final = 1 << 62
_EVERYTHING: Final = 1 << 62
_WINDOW_NS: Final = 150_000_000
_ENDING: Final = 0.5
_MIN_ELAPSED_NS: Final = 50_000_000
_SOON_NS: Final = 10_000_000
_LESS_SOON_NS: Final = 50_000_000
_SHORTAGES: Final = 5
"""After this many in a row, asking sooner is pointless."""
_AHEAD_S: Final = 0.3
_MIN_DEMAND_PER_S: Final = 0.01
_MAX_IDLE_NS: Final = 10 * NS_PER_S
_MIN_WAIT_US: Final = 100_000


class Fleet(Protocol):
    """The member, as its leases see it."""

    members: int

    def advance(self, capacity: float) -> int: ...

    def wants(self, lease: "Lease", gap_ns: int) -> None: ...

    def local_share(self, share: float | None) -> float | None: ...


class Lease:
    """A member's account with one bucket, in whole permits.

    Spending reduces ``held``. It is negative by the debt: the spent advance, and requests of several permits that began
    with one.
    """

    __slots__ = (
        *("__weakref__", "answered_ns", "asked_per_s", "base_upermits", "counted", "counted_ns", "fleet", "held"),
        *("is_idle", "is_local", "key", "lent", "limiter", "share", "shortages", "spent", "used_ns"),
    )

    def __init__(self, fleet: Fleet, key: str, limiter: "FleetLimiter", now_ns: int) -> None:
        self.fleet, self.key, self.limiter = fleet, key, limiter
        self.held = 0  # granted and not spent
        self.spent = 0  # total, as reported to the fleet's bucket
        self.lent = 0  # part of the advance released to the limiter
        self.base_upermits = 0  # the limiter's balance when ``held`` was last updated
        self.counted = 0  # permits requested since ``counted_ns``
        self.counted_ns = self.used_ns = now_ns
        self.answered_ns: int | None = None
        self.asked_per_s = 0.0
        self.share: float | None = None  # of the fleet's demand, in the last answer
        self.shortages = 0  # consecutive answers with less than wanted
        self.is_idle = self.is_local = False

    @property
    def rule(self) -> Rule:
        return self.limiter.rule

    @property
    def advance(self) -> int:
        return self.fleet.advance(self.rule.capacity_upermits / UPERMITS_PER_PERMIT)

    def settle(self) -> None:
        """Subtract spent permits from ``held``."""
        limiter = self.limiter
        spent = -((limiter.stored_upermits - self.base_upermits) // UPERMITS_PER_PERMIT)
        self.base_upermits -= spent * UPERMITS_PER_PERMIT
        self.counted += max(0, spent) + limiter.refused
        limiter.refused = 0
        if not self.is_local:
            self.spent += spent
            self.held -= spent

    def put(self) -> None:
        """Give the limiter the held permits, or the advance if there are none. Call ``settle`` first."""
        self.lent = self.advance if self.held <= 0 and self.lent else 0
        rule, limiter = self.rule, self.limiter
        limiter.at_ns = _NEVER_NS
        limiter.stored_upermits = self.base_upermits = (self.held + self.lent) * UPERMITS_PER_PERMIT
        # Only for the wait stated to clients.
        share = 1 / self.fleet.members if self.share is None else self.share
        limiter.rate_upermits_per_s = max(1, int(rule.rate_upermits_per_s * share)) if rule.rate_upermits_per_s else 0

    def release(self) -> None:
        """Release the advance to an empty limiter, and request more permits."""
        if self.is_local:
            return
        self.is_idle = False
        if not self.lent:
            self.lent = self.advance
            self.limiter.stored_upermits += self.lent * UPERMITS_PER_PERMIT
            self.base_upermits += self.lent * UPERMITS_PER_PERMIT
        self._sync_soon()

    def _sync_soon(self) -> None:
        if self.shortages < _SHORTAGES:
            self.fleet.wants(self, _SOON_NS if not self.shortages else _LESS_SOON_NS)
        else:
            self.fleet.wants(self, ROUND_NS)

    def report(self, now_ns: int) -> tuple[int, float]:
        """Settle, give back unused permits, and return (permits wanted, demand per second)."""
        self.settle()
        elapsed_ns = max(now_ns - self.counted_ns, 1)
        recent_per_s = self.counted * NS_PER_S / max(elapsed_ns, _MIN_ELAPSED_NS)
        if self.counted:
            self.used_ns = now_ns
        # The larger of two windows, against noise, unless the demand is ending.
        is_ending = elapsed_ns >= _WINDOW_NS and recent_per_s < _ENDING * self.asked_per_s
        demand = recent_per_s if is_ending else max(self.asked_per_s, recent_per_s)
        if elapsed_ns >= _WINDOW_NS:
            self.asked_per_s, self.counted, self.counted_ns = recent_per_s, 0, now_ns
        rate = self.rule.rate_upermits_per_s / UPERMITS_PER_PERMIT
        # A member of a small limit waits for its turn, however low its demand.
        idle_ns = max(NS_PER_S, min(_MAX_IDLE_NS, int(2 * self.fleet.members / rate * NS_PER_S))) if rate else 0
        self.is_idle = now_ns - self.used_ns >= idle_ns
        target = 0 if self.is_idle else max(1, -int(-min(demand, rate) * _AHEAD_S // 1))
        self.held = min(self.held, target)
        if self.is_idle and not self.held:
            self.lent, demand = 0, 0.0
        else:
            demand = max(demand, _MIN_DEMAND_PER_S)
        self.put()
        return max(0, target - self.held), demand

    def take(self, now_ns: int, granted: int, wanted: int, share: float) -> None:
        self.settle()
        self.held += granted
        self.share, self.answered_ns = share, now_ns
        self.shortages = self.shortages + 1 if granted < wanted else 0
        self.put()
        if self.lent:
            self._sync_soon()

    def expire(self) -> None:
        """Drop the held permits. The fleet counts them as spent."""
        self.settle()
        if self.held > 0:
            self.spent, self.held = self.spent + self.held, 0

    def begin_local(self, now_ns: int, *, is_full: bool = False) -> None:
        """Decide without the fleet: the held permits become the balance of a local bucket."""
        self.expire()
        self.lent, self.is_local = 0, True
        limiter, rule, share = self.limiter, self.rule, self.fleet.local_share(self.share)
        if share is None:
            stored, limiter.at_ns = _EVERYTHING, _NEVER_NS
        else:
            capacity = limiter.capacity_upermits = max(UPERMITS_PER_PERMIT, int(rule.capacity_upermits * share))
            limiter.rate_upermits_per_s = max(1, int(rule.rate_upermits_per_s * share)) if rule.rate_per_s else 0
            stored = capacity if is_full else min(limiter.stored_upermits, capacity)
            limiter.at_ns = now_ns
        limiter.stored_upermits = self.base_upermits = stored

    def end_local(self, now_ns: int) -> None:
        """Decide with the fleet again: no permits are held, debts stay."""
        limiter = self.limiter
        owed = min(0, limiter.refill(now_ns) // UPERMITS_PER_PERMIT)
        self.spent += self.held - owed
        self.held, self.lent, self.is_local = owed, 0, False
        limiter.capacity_upermits = _EVERYTHING
        self.put()

    def move(self, now_ns: int, limiter: "FleetLimiter") -> None:
        """Move to another limiter of the same name."""
        self.settle()
        old, self.limiter = self.limiter, limiter
        old.retired = True
        limiter.stored_upermits, old.stored_upermits = old.stored_upermits, 0
        if self.is_local:
            self.begin_local(now_ns)
        else:
            self.put()


class FleetLimiter(Limiter):
    """A fleet's limit for one resource. Only its bucket decides. It has no breaker."""

    __slots__ = ("lease", "refused")

    lease: Lease

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(resource, rule, now_ns)
        self.refused = 0
        self.capacity_upermits, self.stored_upermits, self.at_ns = _EVERYTHING, 0, _NEVER_NS

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
        self.last_refused_ns = now_ns
        self.last_wait_us = max(_MIN_WAIT_US, self.wait_us_behind(now_ns, 0))
        return self.last_wait_us

    def reconfigure(self, now_ns: int, rule: Rule) -> None:
        self.lease.settle()
        self.rule, self.max_debt_upermits = rule, rule.max_debt_upermits
        if self.lease.is_local or not rule.fleet:
            # A limit that leaves the fleet keeps its remaining permits.
            self.lease.begin_local(now_ns)
        else:
            self.lease.put()

    def inherit(self, other: Limiter, now_ns: int) -> None:  # type: ignore[override]
        """Inherit nothing: the fleet's bucket has the state."""

    def idle_at_ns(self) -> int | None:
        return None if self.lease.held or self.lease.lent or self.lease.is_local else self.lease.used_ns

    def state(self, now_ns: int) -> LimiterState:
        wait_us = self.wait_us_behind(now_ns, 0)
        return LimiterState(
            resource=self.resource,
            rule=self.rule.name,
            rate_per_s=self.rule.rate_upermits_per_s / UPERMITS_PER_PERMIT,
            stored_permits=self.settled(now_ns)[0] / UPERMITS_PER_PERMIT,
            open=False,
            wait_us=wait_us,
            last_refused_ns=self.last_refused_ns,
            last_wait_us=self.last_wait_us,
        )
