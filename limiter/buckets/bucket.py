"""A token bucket. Permits accrue at a rate until the bucket is full.

The algorithm follows Guava's ``SmoothBursty``. While the balance is positive, the bucket admits the next request,
whatever it costs. If the cost exceeds the balance, the bucket goes into debt. The state consists of integers:
micro-permits and nanoseconds.

**The bound.** Over any period, the bucket admits at most this many permits ::

    ceil(integral of the rate + capacity) + largest cost - 1

Each admission requires a positive balance, so all requests *before* the last one together cost less than the integral
plus the capacity.

**Edits.** The bound still holds when the rate and the capacity change, with the largest capacity in the period. Time
that passes at rate 0 is credited at the next rate. A full bucket stays full when the limit is raised. When the limit is
lowered, stored permits are scaled down, as in Guava's ``setRate``, so no debt arises. Scaling also reduces the number
of missing permits, and this reduction is recorded as *forgiven*. When the limit is raised again, forgiven permits must
accrue first, so alternating edits never grant a second burst.
"""

from limiter.buckets.cell import Cell
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT


class Bucket(Cell):
    __slots__ = ()

    def __init__(self, rate_upermits_per_s: int, capacity_upermits: int, now_ns: int) -> None:
        super().__init__()
        self.rate_upermits_per_s = rate_upermits_per_s
        self.capacity_upermits = self.stored_upermits = capacity_upermits
        self.at_ns = now_ns

    def settled(self, now_ns: int) -> tuple[int, int]:
        """Return the values to which ``refill`` would set ``stored_upermits`` and ``at_ns``."""
        stored = self.stored_upermits
        at_ns = self.at_ns
        if now_ns <= at_ns:
            return stored, at_ns
        rate = self.rate_upermits_per_s
        accrued, leftover = divmod((now_ns - at_ns) * rate, NS_PER_S)
        if not accrued:
            return stored, at_ns
        stored += accrued
        if stored >= self.capacity_upermits:
            return self.capacity_upermits, now_ns
        return stored, now_ns - leftover // rate

    def whole_permits(self) -> int:
        return max(0, self.stored_upermits // UPERMITS_PER_PERMIT)

    def next_free_ns(self) -> int:
        """Return when any debt will have been paid off. Call ``refill`` first. The rate must not be 0."""
        return free_at_ns(self.stored_upermits, self.at_ns, self.rate_upermits_per_s)

    def full_at_ns(self) -> int | None:
        """Return when the bucket will be full, or None if it never will be."""
        missing = self.capacity_upermits - self.stored_upermits + self.forgiven_upermits
        if missing <= 0:
            return self.at_ns
        if not self.rate_upermits_per_s:
            return None
        return self.at_ns - (-missing * NS_PER_S // self.rate_upermits_per_s)

    def set_rate(self, now_ns: int, rate_upermits_per_s: int, capacity_upermits: int) -> None:
        """Change the rate and the capacity. Debt is not scaled. Otherwise, alternating edits could erase it."""
        stored = self.refill(now_ns)
        missing = self.capacity_upermits - stored + self.forgiven_upermits
        if not self.rate_upermits_per_s:
            refilled = max(0, now_ns - self.at_ns) * rate_upermits_per_s // NS_PER_S
            stored = min(stored + refilled, capacity_upermits)
            missing = max(0, missing - refilled)
        elif stored > 0 and capacity_upermits < self.capacity_upermits:
            stored = stored * capacity_upermits // self.capacity_upermits
        self.stored_upermits = stored = max(stored, capacity_upermits - missing)
        self.forgiven_upermits = missing - (capacity_upermits - stored)
        if self.rate_upermits_per_s or rate_upermits_per_s:
            self.at_ns = max(self.at_ns, now_ns)
        self.rate_upermits_per_s = rate_upermits_per_s
        self.capacity_upermits = capacity_upermits


def free_at_ns(stored_upermits: int, at_ns: int, rate_upermits_per_s: int) -> int:
    return at_ns - (min(stored_upermits, 0) * NS_PER_S // rate_upermits_per_s)


# The circuit breaker: after it has refused a request, it refuses everything until the bucket has recovered.
#
#     closed   permits available           admits the request
#     closed   no permits available        opens and refuses. The client must wait until the breaker closes
#     open     now - next_free < break     refuses, at no cost
#     open     now - next_free >= break    closes, then decides as if closed
#
# When the breaker opens, ``next_free`` is set to the time when the bucket will admit requests again. If the break is at
# most as long as the burst, the bucket does not overflow while the breaker is open, so a saturated limiter still admits
# its full rate on average.
def is_open(next_free_ns: int | None, break_ns: int, now_ns: int) -> bool:
    return next_free_ns is not None and now_ns - next_free_ns < break_ns


def closes_at_ns(next_free_ns: int, break_ns: int) -> int:
    return next_free_ns + break_ns
