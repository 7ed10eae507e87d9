"""Divides an adaptive limit into shares, with weighted max-min fairness among names.

Each name has a *share*, an independent bucket. While there is no limit, every call of ``follow`` fills the bucket to
``_ALL`` permits. The share then admits everything, and the permits missing at the next call are its throughput. While
there is a limit, each share refills at the *level* times its weight. The level is max-min fair (water-filling,
Bertsekas and Gallager, Data Networks, 6.5.2). Because demand is noisy, names slightly above the level are not limited
either if names far above it can spare the permits.

Callers gain little by inventing names: a new name starts with only 0.25 seconds' worth of permits at the level.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from limiter.buckets.bucket import Bucket
from limiter.buckets.fair import ACTIVE_NS, OTHER_KEY
from limiter.buckets.limiter import Admission, Limiter, LimiterState
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, OF_MESSAGES, UPERMITS_PER_PERMIT, Rule

MAX_KEYS: Final = 2_000

_ALL: Final = 1 << 62
_NEAR: Final = 1.2
_SPARED: Final = 0.8
"""Names may use up to ``_NEAR`` times the level if the others still get at least ``_SPARED`` times the level."""
_MIN_BURST: Final = 20 * UPERMITS_PER_PERMIT
_DEBT_S: Final = 10
_MIN_DEBT: Final = 100 * UPERMITS_PER_PERMIT
_BURSTS_PER_S: Final = 4
_SMOOTHED_NS: Final = NS_PER_S // 2


class Demand(NamedTuple):
    """A name's demand and throughput in messages per second, averaged over about half a second."""

    key: str
    passed_per_s: float
    asked_per_s: float
    share_per_s: float | None
    weight: int


class Share(Limiter):
    __slots__ = (
        "asked_per_s",
        "before_upermits",
        "key",
        "lacking",
        "owner",
        "passed_per_s",
        "refused",
        "seen_ns",
        "weight",
    )

    def __init__(self, owner: "AdaptiveLimiter", key: str, weight: int, now_ns: int) -> None:
        super().__init__(owner.resource, owner.rule, now_ns)
        self.owner, self.key, self.weight = owner, key, weight
        self.seen_ns = now_ns
        self.passed_per_s = self.asked_per_s = 0.0
        self.refused = self.lacking = 0
        self.put(now_ns, None)

    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        admission = super().check(now_ns, costs)
        self.lacking = sum(costs[admission.admitted :])
        if self.lacking:
            self.owner.is_refusing = True
        return admission

    def refuse(self, now_ns: int) -> int:
        self.refused += self.lacking or 1
        self.lacking = 0
        owner = self.owner
        owner.last_refused_ns, owner.last_wait_us = now_ns, super().refuse(now_ns)
        return owner.last_wait_us

    def put(self, now_ns: int, rate_per_s: float | None) -> None:
        if rate_per_s is None:
            rate = 1
            stored = capacity = self.max_debt_upermits = _ALL
        else:
            rate = max(1, int(rate_per_s * UPERMITS_PER_PERMIT))
            burst = max(_MIN_BURST, rate // _BURSTS_PER_S)
            self.max_debt_upermits = debt = max(_MIN_DEBT, rate * _DEBT_S)
            had = _MIN_BURST if self.capacity_upermits == _ALL else self.stored_upermits
            stored = max(-debt, min(had, burst))
            # Add room for one second of refill: a bucket that filled up between steps would hide throughput.
            capacity = burst + rate
        self.rate_upermits_per_s, self.capacity_upermits = rate, capacity
        self.stored_upermits = self.before_upermits = stored
        self.at_ns = max(self.at_ns, now_ns)


class AdaptiveLimiter(Limiter):
    """A listener's adaptive limit. The limiter's own bucket admits everything. Only the shares limit requests."""

    __slots__ = (
        *("_answerable_per_s", "_at_ns", "_level", "_passed_per_s", "_shares", "_took", "_weight_of", "is_refusing"),
        *("limit_per_s", "swaps"),
    )

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(resource, rule, now_ns)
        self.rate_upermits_per_s = 1
        self.capacity_upermits = self.stored_upermits = _ALL
        self.limit_per_s: float | None = None
        self.is_refusing = False
        self._passed_per_s = self._answerable_per_s = 0.0
        self.swaps = -1
        self._level: float | None = None
        self._shares: dict[str, Share] = {}
        self._weight_of: Callable[[str], int] = _equal
        self._at_ns = now_ns
        self._took = 0

    @property
    def is_by_name(self) -> bool:
        """Whether shares are keyed by resource rather than by client or group."""
        return self.rule.fair_by is None or self.rule.fair_by in OF_MESSAGES

    def share(self, key: str, now_ns: int) -> Share:
        share = self._shares.get(key)
        if share is not None:
            share.retired = False
            return share
        weight = self._weight(key)
        if len(self._shares) >= MAX_KEYS and key != OTHER_KEY and weight == 1:
            return self.share(OTHER_KEY, now_ns)
        share = self._shares[key] = Share(self, key, weight, now_ns)
        if self._level is not None:
            share.put(now_ns, self._level * weight)
            rate = share.rate_upermits_per_s
            share.stored_upermits = max(UPERMITS_PER_PERMIT, rate // _BURSTS_PER_S)
            share.before_upermits = share.stored_upermits - max(0, now_ns - self._at_ns) * rate // NS_PER_S
        return share

    def plain_share(self, key: str, now_ns: int) -> Share | None:
        share = self.share(key, now_ns)
        return None if self.rule.action == "shadow" and self.limit_per_s is not None else share

    def set_weight_of(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        for key, share in self._shares.items():
            share.weight = self._weight(key)

    def _weight(self, key: str) -> int:
        return self._weight_of(key) if self.is_by_name and key not in {"", OTHER_KEY} else 1

    def follow(self, now_ns: int, limit_per_s: float | None, answerable: int | None = None) -> None:
        """Measure the demand since the last step, and divide the limit among the names.

        Args:
            now_ns: monotonic time. Counts are exact only if steps are at most one second apart.
            limit_per_s: maximum number of messages per second to forward to the broker. None if unlimited.
            answerable: number of messages forwarded since the last step that the broker will answer, including those
                for exempt names. If None, the number of messages that have passed the shares is used.
        """
        elapsed_ns = max(1, now_ns - self._at_ns)
        self._at_ns = max(self._at_ns, now_ns)
        part, per_s = min(1.0, elapsed_ns / _SMOOTHED_NS), NS_PER_S / elapsed_ns
        idle, took = [], self._took
        for share in self._shares.values():
            accrued = share.rate_upermits_per_s * elapsed_ns // NS_PER_S
            missing = min(share.before_upermits + accrued, share.capacity_upermits) - share.refill(now_ns)
            passed = max(0, (missing + UPERMITS_PER_PERMIT // 2) // UPERMITS_PER_PERMIT)
            if passed or share.refused:
                share.seen_ns = now_ns
            elif now_ns - share.seen_ns >= ACTIVE_NS and share.stored_upermits > 0:
                idle.append(share.key)
            self._took += passed
            share.passed_per_s += part * (passed * per_s - share.passed_per_s)
            share.asked_per_s += part * ((passed + share.refused) * per_s - share.asked_per_s)
            share.refused = 0
        for key in idle:
            self._shares.pop(key).retired = True
        took = self._took - took
        part = min(1.0, elapsed_ns / NS_PER_S)
        self._passed_per_s += part * (took * per_s - self._passed_per_s)
        self._answerable_per_s += part * ((took if answerable is None else answerable) * per_s - self._answerable_per_s)
        if self.rule.action == "shadow" and (limit_per_s is None) is not (self.limit_per_s is None):
            self.retire_shares()
        self.limit_per_s = limit_per_s
        if limit_per_s is None:
            self._level = None
            for share in self._shares.values():
                share.put(now_ns, None)
            return
        limit_of_shares = max(self.rule.floor_per_s, self._of_shares(limit_per_s))
        self._level, above = levels_of(limit_of_shares, self._shares.values())
        near = self._level if above == self._level else _NEAR * self._level
        for share in self._shares.values():
            is_near = share.asked_per_s <= _NEAR * self._level * share.weight
            share.put(now_ns, share.weight * (near if is_near else above))

    def _of_shares(self, limit_per_s: float) -> float:
        passed, answerable = self._passed_per_s, self._answerable_per_s
        if answerable >= passed:
            return limit_per_s - (answerable - passed)
        return limit_per_s * passed / max(answerable, 1.0)

    def demands(self) -> Sequence[Demand]:
        demands = (
            Demand(
                share.key,
                share.passed_per_s,
                share.asked_per_s,
                None if self._level is None else share.rate_upermits_per_s / UPERMITS_PER_PERMIT,
                share.weight,
            )
            for share in self._shares.values()
        )
        return sorted(demands, key=lambda demand: demand.asked_per_s, reverse=True)

    def took(self) -> tuple[int, bool]:
        took, self._took = (self._took, self.is_refusing), 0
        self.is_refusing = False
        return took

    def reconfigure(self, now_ns: int, rule: Rule) -> None:
        if rule.fair_by != self.rule.fair_by:
            self.follow(now_ns, self.limit_per_s)  # count the messages that have passed the old shares
            self.retire_shares()
            self._shares.clear()
        self.rule = rule
        for share in self._shares.values():
            share.rule = rule

    def inherit(self, other: Bucket, now_ns: int) -> None:
        """Do nothing, because the adaptive limit is not known yet."""

    def retire_shares(self) -> None:
        for share in self._shares.values():
            share.retired = True

    def idle_at_ns(self) -> int | None:
        return None

    def state(self, now_ns: int) -> LimiterState:
        return super().state(now_ns)._replace(rate_per_s=self.limit_per_s or 0.0, stored_permits=0.0)


def levels_of(limit_per_s: float, shares: Collection[Share]) -> tuple[float, float]:
    """Return the max-min fair level and the level for names far above it, in messages per second per unit of weight.

    The second level is lower if names near the fair level are not limited. Both levels are equal if the names far above
    it cannot spare permits.
    """
    left, weight, level = limit_per_s, sum(share.weight for share in shares), limit_per_s
    asked = sorted((share.asked_per_s / share.weight, share.weight) for share in shares)
    for each, share_weight in asked:
        level = left / weight
        if each > level:
            break
        left -= each * share_weight
        weight -= share_weight
    near = [(each, share_weight) for each, share_weight in asked if each <= _NEAR * level]
    weight = sum(share_weight for _, share_weight in asked[len(near) :])
    above = (limit_per_s - sum(each * share_weight for each, share_weight in near)) / weight if weight else 0.0
    return level, above if above >= _SPARED * level else level


def _equal(_key: str) -> int:
    return 1
