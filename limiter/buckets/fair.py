"""Fair shares: a limit is divided among its active callers, so that a flood from one does not starve the others.

An ordinary bucket, the *total*, has the rule's rate R and capacity C. Each of the n *active* keys (such as clients) has
a *share*: a bucket with rate R / n and capacity C / n that holds part of the total. The rest is the *pool*, from which
every key may borrow.

If the share's balance is positive, a request is charged to the share and the total. Otherwise, if the pool is positive,
the request is charged to the total only. Otherwise, it is refused, which opens only this share's breaker. A full
share's refill goes to the pool. A request may leave a debt of up to the rule's ``max_debt_s`` in the pool, or 1 / n of
that in a share.

**Active keys.** A key is active if it has sent a request within the last 10 s, has a debt, or has an open breaker. Keys
beyond ``max_fair_keys`` share the key ``_other``. A new share contains one micro-permit, so that its first request is
admitted on credit. When a key becomes inactive, its permits return to the pool. A caller that can invent keys can take
all unused shares.

**Guarantee.** Whatever other callers do, a share admits at least as much as a separate bucket with rate R / n and
capacity C / n. All keys together admit less than ::

    integral of the rate + capacity + (n + 1) * largest cost

because each share and the pool can end with a debt smaller than the cost of one request. A share's breaker closes early
when the total is full, so that no permits are lost while a caller is refused.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from limiter.buckets.bucket import Bucket, closes_at_ns, is_open
from limiter.buckets.limiter import (
    REFUSE_ALL_WAIT_US,
    Admission,
    Gate,
    Limiter,
    LimiterState,
    ShareState,
    affordable,
    until_us,
)
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule, debt_upermits

OTHER_KEY: Final = "_other"
ACTIVE_NS: Final = 10 * NS_PER_S

_NEVER_NS: Final = 2**63


class _Split(NamedTuple):
    """How a batch is split between a share and the pool: the permits spent from each, and the micro-permits left."""

    admitted: int
    own: int
    pooled: int
    stored: int
    pool: int


class FairShare(Gate):
    """One key's share. Use it only at the ``now_ns`` for which ``FairLimiter.share`` returned it."""

    __slots__ = ("key", "seen_ns", "total")

    def __init__(self, total: "FairLimiter", key: str, now_ns: int) -> None:
        super().__init__(total.resource, total.rule, now_ns)
        self.rate_upermits_per_s = self.capacity_upermits = self.stored_upermits = 0
        self.total = total
        self.key = key
        self.seen_ns = now_ns

    @property
    def max_permits(self) -> int:
        return (self.capacity_upermits + self.max_debt_upermits) // UPERMITS_PER_PERMIT

    def spend(self, permits: int) -> None:
        super().spend(permits)
        self.total.spend(permits)

    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        count = len(costs)
        if not count:
            return Admission(0, 0)
        total = self.total
        if not total.rate_upermits_per_s:
            return Admission(0, total.refuse_all_wait_us())
        most = total.rule.max_permits
        if self.open_next_free_ns is not None and self.is_open(now_ns):
            if costs[0] > most:
                return self._alone(now_ns, costs, 0, most)
            return Admission(0, self._wait_us(now_ns, self.open_next_free_ns, 0))
        admitted, own, pooled, stored, pool = self._split(now_ns, costs)
        if admitted == count:
            return Admission(count, 0)
        if stored > 0 or pool > 0:
            here = (stored + self.max_debt_upermits) // UPERMITS_PER_PERMIT if stored > 0 else 0
            there = (pool + total.rule.max_debt_upermits) // UPERMITS_PER_PERMIT if pool > 0 else 0
            return self._alone(now_ns, costs, admitted, max(here, there))
        if costs[admitted] > most:
            return self._alone(now_ns, costs, admitted, most)
        next_free_ns = self._ready_ns(now_ns, stored, self.settled(now_ns)[1], pool, 0)
        return Admission(admitted, self._wait_us(now_ns, next_free_ns, own + pooled))

    def commit(self, now_ns: int, costs: Sequence[int]) -> None:
        if not costs:
            return
        stays_open = self._stays_open(now_ns)
        split = self._split(now_ns, costs)
        self.refill(now_ns)
        self.total.refill(now_ns)
        self.total.spend(split.pooled)
        self.spend(split.own)
        if stays_open:
            self.on_debt_changed(now_ns)

    def _split(self, now_ns: int, costs: Sequence[int]) -> _Split:
        stored, pool = self.settled(now_ns)[0], self.total.pool_upermits(now_ns)
        max_debt, max_debt_of_pool = self.max_debt_upermits, self.rule.max_debt_upermits
        admitted = own = pooled = 0
        for cost in costs:
            price = cost * UPERMITS_PER_PERMIT
            if stored > 0 and stored - price >= -max_debt:
                stored -= price
                own += cost
            elif pool > 0 and pool - price >= -max_debt_of_pool:
                pool -= price
                pooled += cost
            else:
                break
            admitted += 1
        return _Split(admitted, own, pooled, stored, pool)

    def refuse(self, now_ns: int) -> int:
        """Open the share's breaker. Return the wait in µs, assuming that no other key borrows or becomes active."""
        total = self.total
        if not total.rate_upermits_per_s:
            wait_us = total.refuse_all_wait_us()
        else:
            next_free_ns = self.open_next_free_ns
            if next_free_ns is None or not self._stays_open(now_ns):
                next_free_ns = self.open_next_free_ns = self.ready_ns(now_ns)
            wait_us = self._wait_us(now_ns, next_free_ns, 0)
        total.last_refused_ns = now_ns
        total.last_wait_us = wait_us
        return wait_us

    def refuse_alone(self, now_ns: int, permits: int) -> int:
        total = self.total
        total.last_refused_ns = now_ns
        total.last_wait_us = wait_us = self.wait_us_alone(now_ns, permits)
        return wait_us

    def charge(self, now_ns: int, permits: int) -> None:
        stays_open = self._stays_open(now_ns)
        own = self.refill(now_ns) > 0 or self.total.pool_upermits(now_ns) <= 0
        self.total.refill(now_ns)
        (self if own else self.total).spend(permits)
        if stays_open:
            self.on_debt_changed(now_ns)

    def affords(self, now_ns: int, price: int, most: int) -> int:
        if not self.total.rate_upermits_per_s or (self.open_next_free_ns is not None and self.is_open(now_ns)):
            return 0
        return min(most, sum(self._affordable(now_ns, price)))

    def _affordable(self, now_ns: int, price: int) -> tuple[int, int]:
        return (
            affordable(self.settled(now_ns)[0], self.max_debt_upermits, price),
            affordable(self.total.pool_upermits(now_ns), self.rule.max_debt_upermits, price),
        )

    def take(self, now_ns: int, price: int, count: int) -> None:
        self.close_if_due(now_ns)
        own = min(count, self._affordable(now_ns, price)[0])
        self.refill(now_ns)
        self.total.refill(now_ns)
        self.total.spend((count - own) * price)
        self.spend(own * price)

    def give_back(self, now_ns: int, permits: int) -> None:
        self.stored_upermits = min(self.capacity_upermits, self.refill(now_ns) + permits * UPERMITS_PER_PERMIT)
        self.total.give_back(now_ns, permits)
        if not self.rule.break_ns:
            # Permits may be available earlier than expected.
            self.open_next_free_ns = None

    def wait_us_behind(self, now_ns: int, permits: int, cost: int = 1) -> int:
        if not self.total.rate_upermits_per_s:
            return self.total.refuse_all_wait_us()
        needed = permits * UPERMITS_PER_PERMIT
        stored, at_ns = self.settled(now_ns)
        pool = self.total.pool_upermits(now_ns)
        if cost * UPERMITS_PER_PERMIT > self.max_debt_upermits:
            return self._wait_us_of_large(now_ns, needed, cost * UPERMITS_PER_PERMIT)
        if stored > needed:
            return 0
        if max(stored, 0) + max(pool, 0) > needed:
            return 0
        return until_us(now_ns, self._ready_ns(now_ns, stored, at_ns, pool, needed))

    def _wait_us_of_large(self, now_ns: int, needed: int, price: int) -> int:
        total = self.total
        stored, at_ns = self.settled(now_ns)
        floor = needed + max(1, price - self.max_debt_upermits)
        if stored >= floor or total.pool_upermits(now_ns) >= needed + max(1, price - total.rule.max_debt_upermits):
            return 0
        if not self.rate_upermits_per_s or floor > self.capacity_upermits:
            return REFUSE_ALL_WAIT_US
        return until_us(now_ns, at_ns - (-(floor - stored) * NS_PER_S // self.rate_upermits_per_s))

    def is_open(self, now_ns: int) -> bool:
        total = self.total
        return (
            is_open(self.open_next_free_ns, total.rule.break_ns, now_ns)
            and total.settled(now_ns)[0] < total.capacity_upermits
        )

    def has_permits(self, now_ns: int) -> bool:
        return self.settled(now_ns)[0] > 0 or self.total.pool_upermits(now_ns) > 0

    def ready_ns(self, now_ns: int) -> int:
        """Return when a request would be admitted, ignoring the breaker, if no other key borrows.

        The rate must not be 0.
        """
        stored, at_ns = self.settled(now_ns)
        pool = self.total.pool_upermits(now_ns)
        return now_ns if stored > 0 or pool > 0 else self._ready_ns(now_ns, stored, at_ns, pool, 0)

    def active_until_ns(self) -> int | None:
        """Return when the key will become inactive, or None if it never will."""
        until_ns = self.seen_ns + ACTIVE_NS
        # The share must regain its initial micro-permit first, so that short-lived keys do not drain the pool.
        missing = min(1, self.capacity_upermits) - self.stored_upermits
        if missing > 0:
            if not self.rate_upermits_per_s:
                return None
            until_ns = max(until_ns, self.at_ns - (-missing * NS_PER_S // self.rate_upermits_per_s))
        if self.open_next_free_ns is not None:
            until_ns = max(until_ns, closes_at_ns(self.open_next_free_ns, self.rule.break_ns))
        return until_ns

    def set_rate(self, now_ns: int, rate_upermits_per_s: int, capacity_upermits: int) -> None:
        stored = self.refill(now_ns)
        if stored > 0 and capacity_upermits < self.capacity_upermits:
            self.stored_upermits = stored * capacity_upermits // self.capacity_upermits
        self.put(now_ns, rate_upermits_per_s, capacity_upermits)

    def resize(self, now_ns: int, rate_upermits_per_s: int, capacity_upermits: int) -> None:
        self.refill(now_ns)
        self.put(now_ns, rate_upermits_per_s, capacity_upermits)
        self.stored_upermits = min(self.stored_upermits, capacity_upermits)
        if not self.rule.break_ns:
            self.open_next_free_ns = None

    def put(self, now_ns: int, rate_upermits_per_s: int, capacity_upermits: int) -> None:
        self.at_ns = max(self.at_ns, now_ns)
        self.rate_upermits_per_s = rate_upermits_per_s
        self.capacity_upermits = capacity_upermits
        self.max_debt_upermits = debt_upermits(rate_upermits_per_s, self.rule.max_debt_ns)

    def close_if_due(self, now_ns: int) -> None:
        if not self.rule.break_ns:
            self.open_next_free_ns = None
        self._stays_open(now_ns)

    def on_debt_changed(self, now_ns: int) -> None:
        if self.open_next_free_ns is not None:
            self.open_next_free_ns = max(self.open_next_free_ns, self.ready_ns(now_ns))

    def state(self, now_ns: int) -> ShareState:
        return ShareState(
            key=self.key,
            stored_permits=self.settled(now_ns)[0] / UPERMITS_PER_PERMIT,
            open=self.rule.break_ns > 0 and self.is_open(now_ns),
            wait_us=self.check(now_ns, (1,)).wait_us,
        )

    def _stays_open(self, now_ns: int) -> bool:
        if self.open_next_free_ns is not None and self.is_open(now_ns):
            return True
        self.open_next_free_ns = None
        return False

    def _wait_us(self, now_ns: int, next_free_ns: int, permits: int) -> int:
        total = self.total
        stored, at_ns = total.settled(now_ns)
        missing = total.capacity_upermits - stored + permits * UPERMITS_PER_PERMIT
        full_at_ns = at_ns - (-missing * NS_PER_S // total.rate_upermits_per_s)
        closes_ns = min(closes_at_ns(next_free_ns, self.rule.break_ns), full_at_ns)
        return until_us(now_ns, max(next_free_ns, closes_ns))

    def _ready_ns(self, now_ns: int, stored: int, at_ns: int, pool: int, needed: int) -> int:
        """Return when the share and pool will together exceed ``needed`` micro-permits if no other key spends any."""
        total = self.total
        rate = self.rate_upermits_per_s
        shares = total.shares
        ready_ns = _NEVER_NS
        if rate and self.capacity_upermits:
            ready_ns = at_ns - (-(needed + 1 - stored) * NS_PER_S // rate)
            shares = [share for share in shares if share is not self]
        enough = needed + len(shares) + 2
        fill_ns = sorted(share.fills_in_ns(now_ns) for share in shares) if rate else []
        pool_rate = total.rate_upermits_per_s - rate * len(total.shares)
        passed_ns = 0
        for end_ns in (*fill_ns, _NEVER_NS):
            for balance, grows in ((pool, pool_rate), (pool + stored, pool_rate + rate)):
                if balance >= enough:
                    ready_ns = min(ready_ns, now_ns + passed_ns)
                elif grows:
                    ready_ns = min(ready_ns, now_ns + passed_ns - ((balance - enough) * NS_PER_S // grows))
            if ready_ns <= now_ns + end_ns:
                break
            pool += pool_rate * (end_ns - passed_ns) // NS_PER_S
            stored += rate * (end_ns - passed_ns) // NS_PER_S
            passed_ns = end_ns
            pool_rate += rate
        return max(ready_ns, now_ns)

    def fills_in_ns(self, now_ns: int) -> int:
        missing = self.capacity_upermits - self.settled(now_ns)[0]
        return -(-missing * NS_PER_S // self.rate_upermits_per_s)


class FairLimiter(Limiter):
    """Divides a limit's permits among keys. The limiter's own bucket is the total of all shares and the pool."""

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(resource, rule, now_ns)
        self._shares: dict[str, FairShare] = {}
        # Whether there is a debt whose key is unknown. Until it is paid, there are no shares. New shares would
        # give credit, so each toggle of ``fair_by`` would admit another request per key.
        self._has_shared_debt = False
        self._look_ns = _NEVER_NS

    @property
    def shares(self) -> Sequence[FairShare]:
        return list(self._shares.values())

    def share(self, key: str, now_ns: int) -> Gate:
        """Return a key's share. As long as there is an unpaid debt whose key is unknown, return ``self``."""
        if self._has_shared_debt:
            if self.refill(now_ns) <= 0:
                return self
            self._has_shared_debt, self.open_next_free_ns = False, None
            # The total has paid the debt, so the pool must not pay it again.
            if self._shares.pop(OTHER_KEY, None):
                self._divide(now_ns)
        if now_ns >= self._look_ns:
            self._drop_inactive(now_ns)
        share = self._shares.get(key)
        if share is None:
            told_apart = len(self._shares) - (OTHER_KEY in self._shares)
            if told_apart >= self.rule.max_fair_keys:
                key = OTHER_KEY
            share = self._shares.get(key) or self._add(key, now_ns)
        share.seen_ns = max(share.seen_ns, now_ns)
        return share

    def pool_upermits(self, now_ns: int) -> int:
        return self.settled(now_ns)[0] - sum(share.settled(now_ns)[0] for share in self._shares.values())

    def reconfigure(self, now_ns: int, rule: Rule) -> None:
        """Apply another rule to the total and the shares.

        If the limit is raised, shares that can spend again close their breakers. Keys that belong to the previous
        ``fair_by`` or exceed a lowered ``max_fair_keys`` remain until they become inactive.
        """
        for share in self._shares.values():
            share.close_if_due(now_ns)
        raised = rule.rate_upermits_per_s > self.rate_upermits_per_s or rule.capacity_upermits > self.capacity_upermits
        super().reconfigure(now_ns, rule)
        rate, capacity = self._part()
        for share in self._shares.values():
            share.rule = rule
            share.set_rate(now_ns, rate, capacity)
        for share in self._shares.values():
            if rule.break_ns and rule.rate_upermits_per_s and not (raised and share.has_permits(now_ns)):
                share.on_debt_changed(now_ns)
            else:
                share.open_next_free_ns = None
        self._look_again()

    def inherit(self, other: Bucket, now_ns: int) -> None:
        """Adopt another bucket's balance if it is lower. An inherited debt is charged to the key ``_other``."""
        super().inherit(other, now_ns)
        self._settle(now_ns, -self.pool_upermits(now_ns))

    def debit(self, now_ns: int, upermits: int) -> None:
        super().debit(now_ns, upermits)
        self._settle(now_ns, min(upermits, -self.pool_upermits(now_ns)))

    def _settle(self, now_ns: int, lacking: int) -> None:
        if lacking <= 0:
            return
        stored = sum(max(0, share.refill(now_ns)) for share in self._shares.values())
        taken = min(lacking, stored)
        for share in self._shares.values():
            if share.stored_upermits > 0:
                share.stored_upermits -= -(-share.stored_upermits * taken // stored)
        if lacking > taken:
            share = self._shares.get(OTHER_KEY) or self._add(OTHER_KEY, now_ns)
            share.stored_upermits += self.pool_upermits(now_ns)
        self._has_shared_debt = self._has_shared_debt or self.stored_upermits <= 0
        self._look_again()

    def put_back(self, shares: Iterable[tuple[str, int, int, int | None, int]]) -> None:
        for key, stored_upermits, at_ns, open_next_free_ns, seen_ns in shares:
            share = self._shares[key] = FairShare(self, key, seen_ns)
            share.stored_upermits, share.at_ns, share.open_next_free_ns = stored_upermits, at_ns, open_next_free_ns
        rate, capacity = self._part()
        for share in self._shares.values():
            share.put(share.at_ns, rate, capacity)
        other = self._shares.get(OTHER_KEY)
        # If there is room for more keys, ``_other`` exists only because of a debt whose key is unknown.
        room = len(self._shares) <= self.rule.max_fair_keys
        self._has_shared_debt = other is not None and other.stored_upermits < 0 and room
        self._look_again()

    def idle_at_ns(self) -> int | None:
        idle_at_ns = super().idle_at_ns()
        for share in self._shares.values():
            until_ns = share.active_until_ns()
            if idle_at_ns is None or until_ns is None:
                return None
            idle_at_ns = max(idle_at_ns, until_ns)
        return idle_at_ns

    def state(self, now_ns: int) -> LimiterState:
        shares = tuple(share.state(now_ns) for share in self._shares.values())
        return super().state(now_ns)._replace(shares=shares)

    def _add(self, key: str, now_ns: int) -> FairShare:
        share = self._shares[key] = FairShare(self, key, now_ns)
        self._divide(now_ns)
        share.stored_upermits = min(1, share.capacity_upermits)
        return share

    def _drop_inactive(self, now_ns: int) -> None:
        count = len(self._shares)
        for key, share in list(self._shares.items()):
            until_ns = share.active_until_ns()
            if until_ns is not None and until_ns <= now_ns:
                del self._shares[key]
                # A caller may still hold a reference.
                share.resize(now_ns, 0, 0)
        if len(self._shares) < count:
            self._divide(now_ns)
        else:
            self._look_again()

    def _divide(self, now_ns: int) -> None:
        self.refill(now_ns)
        # If the clock runs backwards, shares must not count time that the total has already counted.
        now_ns = max(now_ns, self.at_ns)
        rate, capacity = self._part()
        for share in self._shares.values():
            share.resize(now_ns, rate, capacity)
        self._look_again()

    def _part(self) -> tuple[int, int]:
        count = max(1, len(self._shares))
        return self.rate_upermits_per_s // count, self.capacity_upermits // count

    def _look_again(self) -> None:
        times_ns = (share.active_until_ns() for share in self._shares.values())
        self._look_ns = min((until_ns for until_ns in times_ns if until_ns is not None), default=_NEVER_NS)
