"""Saves and restores limiters across a restart or a take-over. Times are monotonic and count from boot."""

from typing import Final, NamedTuple

from limiter.buckets.factory import Join, apply_rule, kind_of
from limiter.buckets.fair import FairLimiter
from limiter.buckets.fleet import FleetLimiter
from limiter.buckets.limiter import Limiter
from limiter.buckets.warm_up import WarmUpLimiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

MAX_DEBT_S: Final = 86_400


class SavedShare(NamedTuple):
    key: str
    stored_upermits: int
    at_ns: int
    open_next_free_ns: int | None
    seen_ns: int


class SavedLimiter(NamedTuple):
    kind: str
    name: str
    rule: str
    shared: bool  # whether this is the rule's overflow limiter
    rate_upermits_per_s: int
    capacity_upermits: int
    stored_upermits: int
    forgiven_upermits: int
    at_ns: int
    open_next_free_ns: int | None
    last_refused_ns: int | None
    last_wait_us: int
    cold_upermits: int
    coldest_upermits: int
    shares: tuple[SavedShare, ...]

    @property
    def resource(self) -> Resource:
        return Resource(self.kind, self.name)

    def balance_upermits(self, now_ns: int) -> int:
        accrued = max(0, now_ns - self.at_ns) * self.rate_upermits_per_s // NS_PER_S
        return min(self.capacity_upermits, self.stored_upermits + accrued)


def save(limiter: Limiter, now_ns: int, *, shared: bool) -> SavedLimiter | None:
    """Return a limiter's state, or None if it is equivalent to a new limiter.

    Fleet limiters are not saved, because the next process joins the fleet as a new member.
    """
    if isinstance(limiter, FleetLimiter):
        return None
    idle_at_ns = limiter.idle_at_ns()
    if idle_at_ns is not None and idle_at_ns <= now_ns:
        return None
    shares = limiter.shares if isinstance(limiter, FairLimiter) else ()
    cold, coldest = (limiter.cold_upermits, limiter.coldest_upermits) if isinstance(limiter, WarmUpLimiter) else (0, 0)
    return SavedLimiter(
        limiter.resource.kind,
        limiter.resource.name,
        limiter.rule.bare_name,
        shared,
        limiter.rate_upermits_per_s,
        limiter.capacity_upermits,
        limiter.stored_upermits,
        limiter.forgiven_upermits,
        limiter.at_ns,
        limiter.open_next_free_ns,
        limiter.last_refused_ns,
        limiter.last_wait_us,
        cold,
        coldest,
        tuple(
            SavedShare(share.key, share.stored_upermits, share.at_ns, share.open_next_free_ns, share.seen_ns)
            for share in shares
        ),
    )


def restore(saved: SavedLimiter, rule: Rule, now_ns: int, join: Join | None = None) -> Limiter:
    """Recreate a saved limiter, apply the current rule to it, and cap its debts.

    Raises:
        ValueError: the saved values are out of range.
    """
    times = (saved.at_ns, *(each for share in saved.shares for each in (share.at_ns, share.seen_ns)))
    if (
        not 0 <= min(times) <= max(times) <= now_ns
        or saved.stored_upermits > saved.capacity_upermits
        or min(saved.rate_upermits_per_s, saved.capacity_upermits, saved.forgiven_upermits) < 0
    ):
        raise ValueError(f"{saved.resource}: the saved state is out of range")
    limiter: Limiter
    coldest_upermits = 0
    if saved.coldest_upermits > 0:
        limiter = warm = WarmUpLimiter(saved.resource, rule, saved.at_ns)
        coldest_upermits = warm.coldest_upermits
        warm.coldest_upermits = saved.coldest_upermits
        warm.cold_upermits = min(max(0, saved.cold_upermits), saved.coldest_upermits)
    elif saved.shares:
        limiter = FairLimiter(saved.resource, rule, saved.at_ns)
    else:
        limiter = Limiter(saved.resource, rule, saved.at_ns)
    limiter.rate_upermits_per_s, limiter.capacity_upermits = saved.rate_upermits_per_s, saved.capacity_upermits
    limiter.stored_upermits, limiter.forgiven_upermits = saved.stored_upermits, saved.forgiven_upermits
    limiter.open_next_free_ns = saved.open_next_free_ns
    limiter.last_wait_us = saved.last_wait_us
    if saved.last_refused_ns is not None:
        limiter.last_refused_ns = min(saved.last_refused_ns, now_ns)
    if isinstance(limiter, FairLimiter):
        most = limiter.capacity_upermits
        limiter.put_back(share._replace(stored_upermits=min(share.stored_upermits, most)) for share in saved.shares)
    had = (type(limiter), limiter.rate_upermits_per_s, limiter.capacity_upermits, saved.coldest_upermits)
    if had != (kind_of(rule), rule.rate_upermits_per_s, rule.capacity_upermits, coldest_upermits):
        limiter = apply_rule(limiter, now_ns, rule, join)
    bound_debt(limiter, now_ns)
    return limiter


def bound_debt(limiter: Limiter, now_ns: int) -> None:
    """Cap debts at ``MAX_DEBT_S`` seconds of the rate, so that damaged state cannot block a limit forever."""
    most = (limiter.rate_upermits_per_s or UPERMITS_PER_PERMIT) * MAX_DEBT_S
    for bucket in (limiter, *(limiter.shares if isinstance(limiter, FairLimiter) else ())):
        bucket.stored_upermits = max(bucket.stored_upermits, -most)
        bucket.forgiven_upermits = min(bucket.forgiven_upermits, most)
        if bucket.open_next_free_ns is not None:
            bucket.open_next_free_ns = min(bucket.open_next_free_ns, now_ns + MAX_DEBT_S * NS_PER_S)
