"""Warm-up: after idle time, the rate rises gradually to its full value, as in Guava's ``SmoothWarmingUp``.

While the limiter is cold, a permit costs more *time*: up to three times the warm price (Guava's ``coldFactor``). In
Guava's terms, with a rate R and a warm-up of W seconds, ``maxPermits`` is M = W * R, and the threshold H is half of M.
*Stored* permits measure how cold the limiter is. With H + a stored permits, the next one costs
``1 / R * (1 + 2 * a / H)`` seconds. Up to H, it costs 1 / R. Idle time stores R permits per second, up to M. Warming up
from M to H therefore takes W seconds under load, and cooling down takes W idle seconds. A new limiter is cold.

Unlike in Guava, the permits that accrue in the first ``burst_s`` seconds of idle time can be spent immediately. Only
longer idle time cools the limiter.

The balance is an amount of time, expressed in micro-permits at the warm price. The price depends only on how cold the
limiter is, so a batch costs exactly as much as its requests would cost one by one.

**The bound.** The limiter admits no more than a plain bucket. The cap on a request's debt assumes the warm price, so a
cold limiter takes up to three times as long to pay the debt.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from limiter.buckets.bucket import free_at_ns
from limiter.buckets.limiter import Admission, Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

_COLD_FACTOR: Final = 3


class WarmUpLimiter(Limiter):
    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(resource, rule, now_ns)
        self.coldest_upermits = _coldest_upermits(rule)  # Guava's ``maxPermits``
        self.cold_upermits = self.coldest_upermits

    def admits(self, now_ns: int, before: int, permits: int) -> bool:
        left = self.refill(now_ns) - self._price(self.cold_upermits, before)
        return left > 0 and left - (permits - before) * UPERMITS_PER_PERMIT >= -self.rule.max_debt_upermits

    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        if not costs:
            return Admission(0, 0)
        if not self.rate_upermits_per_s:
            return Admission(0, self.refuse_all_wait_us())
        stored, at_ns = self.settled(now_ns)
        cold = self._settled_cold(now_ns)
        spent = [self._price(cold, permits) for permits in accumulate(costs, initial=0)]
        admitted = bisect_left(spent, stored, 0, len(costs))
        if admitted:
            most = (stored - spent[admitted - 1] + self.rule.max_debt_upermits) // UPERMITS_PER_PERMIT
            if costs[admitted - 1] > most:
                return self._alone(now_ns, costs, admitted - 1, most)
        if admitted == len(costs):
            return Admission(admitted, 0)
        if costs[admitted] > self.rule.max_permits:
            return self._alone(now_ns, costs, admitted, self.rule.max_permits)
        next_free_ns = free_at_ns(stored - spent[admitted], at_ns, self.rate_upermits_per_s)
        return Admission(admitted, self._wait_us(now_ns, next_free_ns))

    def affords(self, now_ns: int, price: int, most: int) -> int:
        if not self.rate_upermits_per_s:
            return 0
        stored, cold = self.settled(now_ns)[0], self._settled_cold(now_ns)
        count = bisect_left(range(most), stored, key=lambda before: self._price(cold, before * price))
        if count:
            left = stored - self._price(cold, (count - 1) * price) + self.rule.max_debt_upermits
            count -= price * UPERMITS_PER_PERMIT > left
        return count

    def turn(self, price: int, waiting: int, lines: int) -> int:
        # A cold limiter may afford only a third of the requests.
        return max(1, super().turn(price, waiting, lines) // _COLD_FACTOR)

    def give_back(self, now_ns: int, permits: int) -> None:
        super().give_back(now_ns, permits)
        self.cold_upermits = min(self.coldest_upermits, self.cold_upermits + permits * UPERMITS_PER_PERMIT)

    def price_upermits(self, now_ns: int, permits: int) -> int:
        return self._price(self._settled_cold(now_ns), permits)

    def refill(self, now_ns: int) -> int:
        self.cold_upermits = self._settled_cold(now_ns)
        return super().refill(now_ns)

    def spend(self, permits: int) -> None:
        self.stored_upermits -= self._price(self.cold_upermits, permits)
        self.cold_upermits = max(0, self.cold_upermits - permits * UPERMITS_PER_PERMIT)

    def whole_permits(self) -> int:
        at_most = range(1, super().whole_permits() + 1)
        return bisect_right(at_most, self.stored_upermits, key=lambda permits: self._price(self.cold_upermits, permits))

    def reconfigure(self, now_ns: int, rule: Rule) -> None:
        """Apply another rule. Relative coldness is kept, as in Guava's ``setRate``. After rate 0, the limiter is cold.

        If the new rule has no warm-up, the balance is converted to the permits it could buy.
        """
        self.refill(now_ns)
        if not rule.warm_up_ns:
            self.stored_upermits = min(self.stored_upermits, self.whole_permits() * UPERMITS_PER_PERMIT)
        super().reconfigure(now_ns, rule)
        old, new = self.coldest_upermits, _coldest_upermits(rule)
        self.cold_upermits = -(-self.cold_upermits * new // old) if old else new
        self.coldest_upermits = new

    def idle_at_ns(self) -> int | None:
        full_at_ns, idle_at_ns = self.full_at_ns(), super().idle_at_ns()
        if full_at_ns is None or idle_at_ns is None:
            return None
        missing = self.coldest_upermits - self.cold_upermits
        cold_at_ns = full_at_ns - (-missing * NS_PER_S // self.rate_upermits_per_s) if missing else full_at_ns
        return max(idle_at_ns, cold_at_ns)

    def _settled_cold(self, now_ns: int) -> int:
        if now_ns <= self.at_ns:
            return self.cold_upermits
        accrued = (now_ns - self.at_ns) * self.rate_upermits_per_s // NS_PER_S
        excess = max(0, self.stored_upermits + accrued - self.capacity_upermits)
        return min(self.coldest_upermits, self.cold_upermits + excess)

    def _price(self, cold_upermits: int, permits: int) -> int:
        """Return the price of permits in micro-permits, like Guava's ``storedPermitsToWaitTime``."""
        taken = permits * UPERMITS_PER_PERMIT
        threshold = self.coldest_upermits // 2
        above = cold_upermits - threshold
        if above <= 0:
            return taken
        left = max(0, above - taken)
        # The area under a line that falls from coldFactor to 1, as the difference between two triangles.
        height = self.coldest_upermits - threshold
        steepness = _COLD_FACTOR - 1
        return taken + above * above * steepness // (2 * height) - left * left * steepness // (2 * height)


def _coldest_upermits(rule: Rule) -> int:
    return rule.warm_up_ns * rule.rate_upermits_per_s // NS_PER_S
