"""A limiter is a bucket and a breaker for one resource.

Costs are whole permits. They must not be negative, but this is not checked.

``acquire`` decides on a batch, with the same result as if its requests were passed one by one until the first is
refused. If multiple limiters apply to the requests, take the steps separately::

    admissions = [limiter.check(now_ns, costs) for limiter in limiters]      # no effect
    admitted = min(admission.admitted for admission in admissions)
    for limiter, admission in zip(limiters, admissions):
        limiter.commit(now_ns, costs[:admitted])                             # spends permits
        if admission.admitted == admitted < len(costs):
            limiter.refuse(now_ns)                                           # opens the breaker

A request is refused *alone* if it would leave a debt above ``max_debt_s``, or if it costs more than the limit can ever
admit. Refusing it spends nothing, leaves the breaker unchanged and does not affect later requests.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from limiter.buckets.bucket import Bucket, closes_at_ns, free_at_ns, is_open
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

_NS_PER_US: Final = 1_000
_NS_PER_MS: Final = 1_000_000
_TURN_NS: Final = 10 * _NS_PER_MS
"""A turn grants the permits that accrue in this time."""
_TURN_OF_LINE_NS: Final = _NS_PER_MS // 2
"""With many wait queues, a turn lasts this long for each queue, so there are at most 2 000 turns per second."""
_ROUND_NS: Final = 1000 * _NS_PER_MS
"""Every waiting request should get a turn within this time."""
_MAX_SHORTENING: Final = 10
REFUSE_ALL_WAIT_US: Final = 1_000_000


class Admission(NamedTuple):
    admitted: int
    wait_us: int  # 0 if all requests are admitted
    # How many of the next requests are refused alone. The rest must be checked again. If 0, no more are admitted.
    alone: int = 0


class Gate(Bucket, ABC):
    __slots__ = ()

    key: str  # the share's key, empty for a limiter

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(rule.rate_upermits_per_s, rule.capacity_upermits, now_ns)
        self.resource = resource
        self.rule = rule
        self.max_debt_upermits = rule.max_debt_upermits

    @property
    def max_permits(self) -> int:
        """The largest cost that this limiter or share can ever admit, whatever other callers spend."""
        return self.rule.max_permits

    @abstractmethod
    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        """Return how many of the requests, in order, would be admitted. Spends nothing."""

    @abstractmethod
    def commit(self, now_ns: int, costs: Sequence[int]) -> None:
        """Spend the permits for these requests. ``check`` must have admitted them at the same ``now_ns``."""

    @abstractmethod
    def refuse(self, now_ns: int) -> int:
        """Open the breaker. Return how long the client should wait, in microseconds, rounded up."""

    @abstractmethod
    def refuse_alone(self, now_ns: int, permits: int) -> int:
        """Record that one request is refused, without opening the breaker. Return the wait in microseconds.

        The wait is ``REFUSE_ALL_WAIT_US`` if the request can never be admitted.
        """

    @abstractmethod
    def charge(self, now_ns: int, permits: int) -> None:
        """Deduct permits for requests that have already passed, without limiting the debt.

        This may keep an open breaker open for longer.
        """

    @abstractmethod
    def wait_us_behind(self, now_ns: int, permits: int, cost: int = 1) -> int:
        """Return how long a request that costs ``cost`` must wait behind requests that cost ``permits`` in total.

        The wait is in microseconds, rounded up, and ignores the breaker. It is 0 if the request would be admitted
        immediately. If the rate is 0, it is a constant.
        """

    @abstractmethod
    def affords(self, now_ns: int, price: int, most: int) -> int:
        """Return how many requests, at ``price`` permits each, would be admitted, up to ``most``. Spends nothing.

        ``price`` must be from 1 to ``max_permits``.
        """

    @abstractmethod
    def take(self, now_ns: int, price: int, count: int) -> None:
        """Spend the permits for ``count`` requests, which ``affords`` must have allowed at the same ``now_ns``."""

    @abstractmethod
    def give_back(self, now_ns: int, permits: int) -> None:
        """Return unused permits to the bucket. An open breaker may close earlier."""

    def turn(self, price: int, waiting: int, lines: int) -> int:
        """Return how many requests, at ``price`` permits each, to grant in one turn. The result is at least 1.

        Turns are shorter if more requests are ``waiting``, and longer if there are more wait queues (``lines``).
        """
        longest_ns = max(_TURN_NS, lines * _TURN_OF_LINE_NS)
        turn_ns = max(longest_ns // _MAX_SHORTENING, min(longest_ns, _ROUND_NS // waiting)) if waiting else longest_ns
        # At most half the capacity, because a full bucket loses its refill.
        enough = min(self.rate_upermits_per_s * turn_ns // NS_PER_S, self.capacity_upermits // 2)
        return max(1, enough // (price * UPERMITS_PER_PERMIT))

    def open_us(self, now_ns: int) -> int:
        next_free_ns, break_ns = self.open_next_free_ns, self.rule.break_ns
        if next_free_ns is None or not is_open(next_free_ns, break_ns, now_ns):
            return 0
        return until_us(now_ns, closes_at_ns(next_free_ns, break_ns))

    def wait_us_alone(self, now_ns: int, permits: int, before: int = 0) -> int:
        if permits > self.rule.max_permits:
            return REFUSE_ALL_WAIT_US
        return max(1, self.wait_us_behind(now_ns, before, permits))

    def _alone(self, now_ns: int, costs: Sequence[int], admitted: int, most: int) -> Admission:
        alone = count_larger(costs, admitted, most, self.rule.max_permits)
        return Admission(admitted, self.wait_us_alone(now_ns, costs[admitted], sum(costs[:admitted])), alone)


class ShareState(NamedTuple):
    key: str
    stored_permits: float  # negative if in debt
    open: bool
    wait_us: int


class LimiterState(NamedTuple):
    resource: Resource
    rule: str
    rate_per_s: float
    stored_permits: float
    open: bool
    wait_us: int
    last_refused_ns: int | None  # includes refusals that a shadow rule only counts
    last_wait_us: int
    shares: tuple[ShareState, ...] = ()


class Limiter(Gate):
    """A resource's live limit: a bucket and a breaker. The bucket starts full, and the breaker starts closed.

    Both are one object to save memory. All state is in ``Cell``, so that the compiled extension can create limiters.
    """

    key = ""

    __slots__ = ()

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(resource, rule, now_ns)
        self.asked_ns = now_ns

    def acquire(self, now_ns: int, costs: Sequence[int]) -> Admission:
        if not costs:
            return Admission(0, 0)
        if self.open_next_free_ns is not None and self._stays_open(now_ns):
            if costs[0] > self.rule.max_permits:
                self.refuse_alone(now_ns, costs[0])
                return self.check(now_ns, costs)
            return Admission(0, self.refuse(now_ns))
        permits = sum(costs)
        if self.admits(now_ns, permits - costs[-1], permits):
            self.spend(permits)
            return Admission(len(costs), 0)
        admission = self.check(now_ns, costs)
        self.commit(now_ns, costs[: admission.admitted])
        if admission.alone:
            self.refuse_alone(now_ns, costs[admission.admitted])
        elif admission.admitted < len(costs):
            self.refuse(now_ns)
        return admission

    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        if not costs:
            return Admission(0, 0)
        next_free_ns = self.open_next_free_ns
        if next_free_ns is not None and is_open(next_free_ns, self.rule.break_ns, now_ns):
            if costs[0] > self.rule.max_permits:
                return self._alone(now_ns, costs, 0, self.rule.max_permits)
            return Admission(0, self._wait_us(now_ns, next_free_ns))
        stored, at_ns = self.settled(now_ns)
        room = (stored - 1) // UPERMITS_PER_PERMIT
        count = len(costs)
        most = (stored + self.max_debt_upermits) // UPERMITS_PER_PERMIT
        if not self.rate_upermits_per_s:
            return Admission(0, self.refuse_all_wait_us())
        spent = list(accumulate(costs, initial=0))
        admitted = bisect_right(spent, room, 0, count)
        if admitted and spent[admitted] > most:
            return self._alone(now_ns, costs, admitted - 1, most - spent[admitted - 1])
        if admitted == count:
            return Admission(count, 0)
        if costs[admitted] > self.rule.max_permits:
            return self._alone(now_ns, costs, admitted, self.rule.max_permits)
        left = stored - spent[admitted] * UPERMITS_PER_PERMIT
        return Admission(admitted, self._wait_us(now_ns, free_at_ns(left, at_ns, self.rate_upermits_per_s)))

    def commit(self, now_ns: int, costs: Sequence[int]) -> None:
        if costs:
            self.charge(now_ns, sum(costs))

    def refuse(self, now_ns: int) -> int:
        if not self.rate_upermits_per_s:
            wait_us = self.refuse_all_wait_us()
        else:
            next_free_ns = self.open_next_free_ns
            if next_free_ns is None or not self._stays_open(now_ns):
                self.refill(now_ns)
                next_free_ns = self.next_free_ns()
                if self.rule.break_ns:
                    self.open_next_free_ns = next_free_ns
            wait_us = self._wait_us(now_ns, next_free_ns)
        self.last_refused_ns = now_ns
        self.last_wait_us = wait_us
        return wait_us

    def refuse_alone(self, now_ns: int, permits: int) -> int:
        if self.open_next_free_ns is None or not self._stays_open(now_ns):
            self.refill(now_ns)
        self.last_refused_ns = now_ns
        self.last_wait_us = wait_us = self.wait_us_alone(now_ns, permits)
        return wait_us

    def charge(self, now_ns: int, permits: int) -> None:
        self.refill(now_ns)
        self.spend(permits)
        self._on_debt_changed(now_ns)

    def wait_us_behind(self, now_ns: int, permits: int, cost: int = 1) -> int:
        if not self.rate_upermits_per_s:
            return self.refuse_all_wait_us()
        stored, at_ns = self.settled(now_ns)
        # The balance needed beyond one micro-permit to keep the debt within its maximum.
        more = max(0, cost * UPERMITS_PER_PERMIT - self.max_debt_upermits - 1)
        left = stored - self.price_upermits(now_ns, permits) - more
        if left > 0:
            return 0
        return until_us(now_ns, self._stored_from_ns(free_at_ns(left, at_ns, self.rate_upermits_per_s)))

    def affords(self, now_ns: int, price: int, most: int) -> int:
        if not self.rate_upermits_per_s or is_open(self.open_next_free_ns, self.rule.break_ns, now_ns):
            return 0
        return min(most, affordable(self.settled(now_ns)[0], self.max_debt_upermits, price))

    def take(self, now_ns: int, price: int, count: int) -> None:
        self.charge(now_ns, count * price)

    def give_back(self, now_ns: int, permits: int) -> None:
        self.stored_upermits = min(self.capacity_upermits, self.refill(now_ns) + permits * UPERMITS_PER_PERMIT)
        self._on_debt_changed(now_ns)

    def debit(self, now_ns: int, upermits: int) -> None:
        """Deduct permits that another process has spent. A negative number gives permits back."""
        self.stored_upermits = min(self.capacity_upermits, self.refill(now_ns) - upermits)
        self._on_debt_changed(now_ns)

    def price_upermits(self, now_ns: int, permits: int) -> int:  # noqa: ARG002 - for limiters whose prices change
        return permits * UPERMITS_PER_PERMIT

    def share(self, key: str, now_ns: int) -> Gate:  # noqa: ARG002 - for limiters that distinguish callers
        return self

    def reconfigure(self, now_ns: int, rule: Rule) -> None:
        """Apply another rule, as described under "Edits" in ``bucket``.

        If the limit is raised and permits are available, close the breaker.
        """
        self._stays_open(now_ns)
        raised = rule.rate_upermits_per_s > self.rate_upermits_per_s or rule.capacity_upermits > self.capacity_upermits
        self.set_rate(now_ns, rule.rate_upermits_per_s, rule.capacity_upermits)
        if (rule.action == "shadow") is not (self.rule.action == "shadow"):
            self.last_refused_ns, self.last_wait_us = None, 0
        self.rule = rule
        self.max_debt_upermits = rule.max_debt_upermits
        if rule.break_ns and rule.rate_upermits_per_s and not (raised and self.stored_upermits > 0):
            self._on_debt_changed(now_ns)
        else:
            self.open_next_free_ns = None

    def inherit(self, other: Bucket, now_ns: int) -> None:
        """Adopt another bucket's balance if it is lower, and its forgiven permits if there are more of them."""
        if other.refill(now_ns) < self.refill(now_ns):
            self.stored_upermits = other.stored_upermits
            self.at_ns = max(self.at_ns, other.at_ns)
        self.forgiven_upermits = max(self.forgiven_upermits, other.forgiven_upermits)

    def idle_at_ns(self) -> int | None:
        """Return when this limiter, if unused, will be equivalent to a new one, or None if it never will."""
        full_at_ns = self.full_at_ns()
        if full_at_ns is None or self.open_next_free_ns is None:
            return full_at_ns
        return max(full_at_ns, closes_at_ns(self.open_next_free_ns, self.rule.break_ns))

    def state(self, now_ns: int) -> LimiterState:
        stored, _ = self.settled(now_ns)
        return LimiterState(
            resource=self.resource,
            rule=self.rule.name,
            rate_per_s=self.rate_upermits_per_s / UPERMITS_PER_PERMIT,
            stored_permits=stored / UPERMITS_PER_PERMIT,
            open=is_open(self.open_next_free_ns, self.rule.break_ns, now_ns),
            wait_us=self.check(now_ns, (1,)).wait_us,
            last_refused_ns=self.last_refused_ns,
            last_wait_us=self.last_wait_us,
        )

    def _stays_open(self, now_ns: int) -> bool:
        if is_open(self.open_next_free_ns, self.rule.break_ns, now_ns):
            return True
        self.open_next_free_ns = None
        return False

    def _on_debt_changed(self, now_ns: int) -> None:
        if self.open_next_free_ns is not None and self._stays_open(now_ns) and self.stored_upermits <= 0:
            self.open_next_free_ns = self.next_free_ns()

    def _wait_us(self, now_ns: int, next_free_ns: int) -> int:
        closes_ns = closes_at_ns(next_free_ns, self.rule.break_ns)
        return until_us(now_ns, max(self._stored_from_ns(next_free_ns), closes_ns))

    def _stored_from_ns(self, next_free_ns: int) -> int:
        # A balance of zero is not enough, so add the time for the first micro-permit.
        return next_free_ns - (-NS_PER_S // self.rate_upermits_per_s)

    def refuse_all_wait_us(self) -> int:
        return -(-self.rule.break_ns // _NS_PER_US) or REFUSE_ALL_WAIT_US


def affordable(stored_upermits: int, max_debt_upermits: int, price: int) -> int:
    """Return how many requests a balance admits if each costs ``price`` permits. The last may leave a debt."""
    price_upermits = price * UPERMITS_PER_PERMIT
    return max(0, min(-(-stored_upermits // price_upermits), (stored_upermits + max_debt_upermits) // price_upermits))


def until_us(now_ns: int, ready_ns: int) -> int:
    return max(1, -((now_ns - ready_ns) // _NS_PER_US))


def count_larger(costs: Sequence[int], start: int, most: int, max_ever: int) -> int:
    """Return how many consecutive costs, beginning at index ``start``, are above ``most``.

    If the first cost is above ``max_ever``, stop at the first cost that is not. Otherwise, stop at the first that is.
    """
    end, never = start, costs[start] > max_ever
    while end < len(costs) and costs[end] > most and (costs[end] > max_ever) is never:
        end += 1
    return end - start
