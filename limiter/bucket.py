"""The token bucket: permits that accrue with time, up to a burst, and may be borrowed once.

It follows Guava's ``SmoothBursty``: nothing runs in the background, one call computes the refill from
``now_ns``, and a request that finds something stored is admitted whatever it costs, leaving a debt that the
next ones wait for. It never sleeps, reads no clock and does not know what a refusal does to later requests;
that is the breaker's part.

The state is four integers, so that it can lie in shared memory: micro-permits (one permit is
1 000 000) and nanoseconds. Guava's ``nextFreeTicketMicros`` is not stored but derived from the debt.

**The bound.** Over any stretch of time the permits admitted are at most ::

    ceil(integral of the rate + capacity) + largest cost - 1

because each admission needs a positive balance, so all *earlier* ones together cost less than integral +
capacity; being whole permits, they cost at most its ceiling less one. The rounding up is real: half a
permit is enough to admit a whole one. Guava also admits on a balance of exactly zero (its ``nextFree <=
now``), which would add one more request to the bound; here zero admits nothing.
"""

from typing import Final

UPERMITS_PER_PERMIT: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000


class Bucket:
    """One bucket: a rate, a capacity, what is stored and until when that is accounted for.

    Attributes:
        rate_upermits_per_s: refill in micro-permits per second; 0 never refills.
        capacity_upermits: the most that is ever stored.
        stored_upermits: the balance at ``at_ns``; negative is a debt.
        at_ns: the time up to which refill is in ``stored_upermits``. It never moves back.
    """

    __slots__ = ("at_ns", "capacity_upermits", "rate_upermits_per_s", "stored_upermits")

    def __init__(self, rate_upermits_per_s: int, capacity_upermits: int, now_ns: int, *, empty: bool = False) -> None:
        self.rate_upermits_per_s = rate_upermits_per_s
        self.capacity_upermits = capacity_upermits
        self.stored_upermits = 0 if empty else capacity_upermits
        self.at_ns = now_ns

    def settled(self, now_ns: int) -> tuple[int, int]:
        """Return what ``stored_upermits`` and ``at_ns`` are after a refill at ``now_ns``; changes nothing.

        Time that did not make a whole micro-permit stays unaccounted, so frequent calls lose nothing but
        the part of it below one nanosecond. A clock that runs backwards refills nothing.
        """
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

    def refill(self, now_ns: int) -> int:
        """Bring the balance up to ``now_ns`` and return it, in micro-permits."""
        # As settled says, written out: a call and a tuple less for each limit of each request.
        elapsed_ns = now_ns - self.at_ns
        if elapsed_ns <= 0:
            return self.stored_upermits
        rate = self.rate_upermits_per_s
        accrued, leftover = divmod(elapsed_ns * rate, NS_PER_S)
        stored = self.stored_upermits
        if accrued:
            stored += accrued
            if stored >= self.capacity_upermits:
                stored = self.capacity_upermits
                self.at_ns = now_ns
            else:
                self.at_ns = now_ns - leftover // rate
            self.stored_upermits = stored
        return stored

    def spend(self, permits: int) -> None:
        """Take ``permits`` off the balance, which may become a debt. The caller has refilled."""
        self.stored_upermits -= permits * UPERMITS_PER_PERMIT

    def whole_permits(self) -> int:
        """Return how many permits can be spent without leaving a debt. The caller has refilled."""
        return max(0, self.stored_upermits // UPERMITS_PER_PERMIT)

    def next_free_ns(self) -> int:
        """Return when the debt, as last refilled, is paid: Guava's ``nextFreeTicket``. The rate must not be 0."""
        return free_at_ns(self.stored_upermits, self.at_ns, self.rate_upermits_per_s)

    def full_at_ns(self) -> int | None:
        """Return when the bucket is full if nothing is spent; None if that never happens (a debt at rate 0)."""
        missing = self.capacity_upermits - self.stored_upermits
        if missing <= 0:
            return self.at_ns
        if not self.rate_upermits_per_s:
            return None
        return self.at_ns - (-missing * NS_PER_S // self.rate_upermits_per_s)

    def set_rate(self, now_ns: int, rate_upermits_per_s: int, capacity_upermits: int) -> None:
        """Change rate and capacity from ``now_ns`` on.

        A lowered rate scales stored permits down in proportion, as Guava's ``setRate`` does; a raised one
        adds none; from 0 the bucket starts empty. A debt is in permits and stays as it is: were it scaled
        down too, lowering and raising the rate in turn would forgive it.
        """
        old_rate = self.rate_upermits_per_s
        stored = self.refill(now_ns)
        if stored > 0:
            if rate_upermits_per_s < old_rate:
                stored = stored * rate_upermits_per_s // old_rate
            self.stored_upermits = min(stored, capacity_upermits)
        # The unaccounted time before now_ns belongs to the old rate: at the new one it could be worth far more.
        self.at_ns = max(self.at_ns, now_ns)
        self.rate_upermits_per_s = rate_upermits_per_s
        self.capacity_upermits = capacity_upermits

    def drain(self, now_ns: int) -> None:
        """Drop what is stored and what accrued until ``now_ns``; a debt stays."""
        self.stored_upermits = min(self.stored_upermits, 0)
        self.at_ns = max(self.at_ns, now_ns)


def free_at_ns(stored_upermits: int, at_ns: int, rate_upermits_per_s: int) -> int:
    """Return the first nanosecond from ``at_ns`` on at which nothing is owed."""
    return at_ns - (min(stored_upermits, 0) * NS_PER_S // rate_upermits_per_s)
