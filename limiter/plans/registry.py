"""The registry keeps live limiters in bounded memory.

At most ``max_live`` limiters are kept, because clients can invent names. Only *idle* limiters, which are equivalent to
new ones (full, closed, cold and without active keys), are evicted, so eviction never forgives a debt. Limiters of
resources that have their own rule are neither evicted nor counted. While no limiter can be evicted, new names that
match the same rule share an *overflow* limiter. A name that later gets its own limiter inherits the deficit.

**Swaps.** After rules change, a limiter catches up on its next use by applying each rule set that it missed. If it
applied only the last one, a limit that was lowered and raised again would admit too much or too little. Only the last
few rule sets are kept. A limiter that missed older ones may gain one burst, but never loses one.

**Initial state.** A limiter starts full, so that a new name below its limit is not refused. It keeps its state if
``shared`` or a total's pattern is edited. Otherwise each edit would grant another burst.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from limiter.buckets.factory import apply_rule, new_limiter, restart_limiter
from limiter.buckets.fleet import FleetLimiter
from limiter.buckets.limiter import Limiter, LimiterState
from limiter.buckets.saved import SavedLimiter, restore, save
from limiter.compiled import COMPILED
from limiter.fleet.member import Member
from limiter.rules.resource import OVERFLOW_NAME, Resource
from limiter.rules.rule import DIMENSIONS, Dimension, Rule
from limiter.rules.rule_set import RuleSet

DEFAULT_MAX_LIVE: Final = 100_000

_LONG_AGO_NS: Final = -(2**63)
_MAX_CHECKS: Final = 16
"""Maximum number of limiters to check when making room, which takes about 20 µs."""
_REMEMBERED: Final = 16


class _Swap(NamedTuple):
    epoch: int
    at_ns: int
    rule_set: RuleSet


class Spent(NamedTuple):
    dimension: Dimension
    kind: str
    name: str
    rule: str
    shared: bool
    upermits: int  # negative if they were reserved but not spent


class Live:
    """The live limiters for one dimension. ``is_idle`` returns whether a resource's limiter can be evicted."""

    def __init__(self, max_live: int, is_idle: Callable[[Resource, int], bool]) -> None:
        self.overflow: dict[str, Limiter] = {}
        self.evicted_total = 0
        self.unpinned = 0
        self._max_live = max_live
        self._is_idle = is_idle
        self._limiters: dict[Resource, Limiter] = {}
        self.get = self._limiters.get
        self._order: deque[Resource] = deque()
        self._no_room_ns = _LONG_AGO_NS

    def __len__(self) -> int:
        return len(self._limiters)

    def all(self) -> list[Limiter]:
        return list(self._limiters.values())

    def put(self, limiter: Limiter) -> None:
        old = self._limiters.get(limiter.resource)
        if old is None:
            self._order.append(limiter.resource)
        self.unpinned += (not limiter.pinned) - (old is not None and not old.pinned)
        self._limiters[limiter.resource] = limiter

    def pin(self, limiter: Limiter, pinned: bool) -> None:  # noqa: FBT001 - same signature as the compiled class
        self.unpinned += limiter.pinned - pinned
        limiter.pinned = pinned

    def make_room(self, now_ns: int, epoch: int) -> bool:  # noqa: ARG002 - used by the compiled class
        """Evict idle limiters until there is room for another. Return False if a few checks find too few of them."""
        if now_ns == self._no_room_ns and self.unpinned >= self._max_live:
            return False
        for _ in range(min(_MAX_CHECKS, len(self._order))):
            if self.unpinned < self._max_live:
                return True
            resource = self._order.popleft()
            if self._limiters[resource].pinned or not self._is_idle(resource, now_ns):
                self._order.append(resource)
                continue
            self._limiters.pop(resource).retired = True
            self.unpinned -= 1
            self.evicted_total += 1
        if self.unpinned < self._max_live:
            return True
        self._no_room_ns = now_ns
        return False


PythonLive = Live
if not TYPE_CHECKING and COMPILED is not None:
    Live = COMPILED.Live


class Registry:
    """Finds or creates the limiters for one dimension.

    Limiters of names that have their own rule do not count toward ``max_live``.

    Raises:
        ValueError: ``max_live`` is less than 1.
    """

    def __init__(
        self,
        rule_set: RuleSet,
        max_live: int = DEFAULT_MAX_LIVE,
        dimension: Dimension = "messages",
        fleet: Member | None = None,
    ) -> None:
        if max_live < 1:
            raise ValueError(f"max_live must be 1 or more, not {max_live}")
        self.dimension: Dimension = dimension
        self.number = DIMENSIONS.index(dimension)
        self._join = partial((Member() if fleet is None else fleet).join, dimension)
        self.limiters = Live(max_live, self._is_idle)
        self.overflowed_total = 0
        self.overflow = self.limiters.overflow
        self._find = self.limiters.get
        self._rule_set = rule_set
        # Number of swaps. Each limiter stores the number of its last swap, inverted with ``~`` if it had no limit then.
        self._epoch = 0
        self._swaps: deque[_Swap] = deque(maxlen=_REMEMBERED)
        # If the clock runs backwards, the same period must not refill twice.
        self._latest_ns = _LONG_AGO_NS

    @property
    def rule_set(self) -> RuleSet:
        return self._rule_set

    @property
    def live(self) -> int:
        return len(self.limiters)

    @property
    def evicted_total(self) -> int:
        return self.limiters.evicted_total

    def get(self, resource: Resource, now_ns: int) -> Limiter | None:
        """Return a resource's limiter, or None if it has no limit. Use the limiter only at this ``now_ns``."""
        if now_ns > self._latest_ns:  # noqa: PLR1730 - max() is an additional call on the hottest path
            self._latest_ns = now_ns
        limiter = self._find(resource)
        if limiter is None:
            rule = self._rule_set.limit(resource, self.dimension)
            return None if rule is None else self._create(resource, rule, now_ns)
        if limiter.epoch != self._epoch:
            limiter = self.current(resource)
            if limiter is None:
                return None
        limiter.asked_ns = now_ns
        return limiter

    def swap(self, rule_set: RuleSet, now_ns: int, own: Mapping[Resource, bool] | None = None) -> None:
        """Replace the rule set. Pass ``rule_set.own_since(self.rule_set)`` as ``own`` if it is already known."""
        own = rule_set.own_since(self._rule_set) if own is None else own
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        self._rule_set = rule_set
        self._epoch += 1
        self._swaps.append(_Swap(self._epoch, at_ns, rule_set))
        for resource, pinned in own.items():
            # Apply swaps now, because the compiled extension assumes that a limiter with missed swaps has not switched
            # between its kind's default and its own rule.
            self.current(resource)
            limiter = self._find(resource)
            if limiter is not None:
                self.limiters.pin(limiter, pinned)
        for name, limiter in list(self.overflow.items()):
            rule = self._limit_named(name)
            if rule is None:
                del self.overflow[name]
            elif rule is not limiter.rule:
                self.overflow[name] = apply_rule(limiter, at_ns, rule, self._join)

    def _limit_named(self, bare_name: str) -> Rule | None:
        rule = self._rule_set.pattern_rule(bare_name)
        limiting = rule is not None and self._rule_set.limiting(Resource(rule.kind, ""))
        return rule.part(self.dimension) if rule is not None and limiting else None

    def reset(self, resource: Resource, now_ns: int) -> LimiterState | None:
        limiter = self.current(resource)
        if limiter is None:
            return None
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        before = limiter.state(at_ns)
        self.limiters.put(restart_limiter(limiter, at_ns, limiter.rule, self._join))
        return before

    def reset_all_of(self, rule: Rule, now_ns: int) -> Iterator[LimiterState | None]:
        for each in self.limiters.all():
            resource = each.resource
            is_its = resource.kind == rule.kind and self._rule_set.match(resource).target == rule.target
            yield self.reset(resource, now_ns) if is_its else None
        limiter = self.overflow.get(rule.bare_name)
        if limiter is not None:
            at_ns = self._latest_ns = max(self._latest_ns, now_ns)
            self.overflow[rule.bare_name] = restart_limiter(limiter, at_ns, limiter.rule, self._join)
            yield limiter.state(at_ns)

    def state(self, resource: Resource, now_ns: int) -> LimiterState | None:
        limiter = self.current(resource)
        return None if limiter is None else limiter.state(now_ns)

    def each_state(self, now_ns: int) -> Iterator[LimiterState | None]:
        """Yield each limiter's state, or None for one that no longer applies. Limiters may change while you iterate."""
        for limiter in self.limiters.all():
            yield self.state(limiter.resource, now_ns)
        for name in list(self.overflow):
            shared = self.overflow.get(name)
            yield None if shared is None else shared.state(now_ns)

    def save(self, now_ns: int) -> Iterator[SavedLimiter | None]:
        for each in self.limiters.all():
            limiter = self.current(each.resource)
            yield None if limiter is None else save(limiter, now_ns, shared=False)
        for name in list(self.overflow):
            limiter = self.overflow.get(name)
            yield None if limiter is None else save(limiter, now_ns, shared=True)

    def restore(self, saved: SavedLimiter, now_ns: int) -> bool:
        """Restore a limiter that another process has saved. Return False if there is no limit, or no room.

        Raises:
            ValueError: the saved values are invalid.
        """
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        if saved.shared:
            rule = self._limit_named(saved.rule)
            if rule is not None:
                self.overflow[saved.rule] = restore(saved, rule, at_ns, self._join)
            return rule is not None
        resource = saved.resource
        rule, pinned = self._rule_set.limit(resource, self.dimension), self._rule_set.has_own(resource)
        if (
            rule is None
            or self._find(resource) is not None
            or not (pinned or self.limiters.make_room(at_ns, self._epoch))
        ):
            return False
        limiter = restore(saved, rule, at_ns, self._join)
        limiter.epoch, limiter.pinned = self._epoch, pinned
        self.limiters.put(limiter)
        return True

    def of(self, spent: Spent, now_ns: int) -> Limiter | None:
        return self.overflow.get(spent.rule) if spent.shared else self.get(Resource(spent.kind, spent.name), now_ns)

    def spent_since(self, saved: Iterable[SavedLimiter], since_ns: int, now_ns: int) -> Iterator[Spent]:
        known = {(each.rule if each.shared else "", each.resource): each for each in saved}
        live = (("", self.current(each.resource)) for each in self.limiters.all())
        for rule, limiter in chain(live, self.overflow.items()):
            if limiter is None or isinstance(limiter, FleetLimiter) or (not rule and limiter.asked_ns < since_ns):
                continue
            before = known.get((rule, limiter.resource))
            left = limiter.capacity_upermits if before is None else before.balance_upermits(now_ns)
            upermits = left - limiter.settled(now_ns)[0]
            if upermits:
                yield self.spent(limiter, upermits)

    def spent(self, limiter: Limiter, upermits: int) -> Spent:
        resource, rule = limiter.resource, limiter.rule.bare_name
        return Spent(self.dimension, *resource, rule, self.overflow.get(rule) is limiter, upermits)

    def _create(self, resource: Resource, rule: Rule, now_ns: int) -> Limiter:
        # An adaptive limiter is never idle.
        pinned = self._rule_set.has_own(resource) or rule.adaptive
        if not pinned and not self.limiters.make_room(now_ns, self._epoch):
            self.overflowed_total += 1
            return self._overflow_limiter(resource.kind, rule)
        limiter = new_limiter(resource, rule, self._latest_ns, self._join)
        limiter.epoch, limiter.pinned, limiter.asked_ns = self._epoch, pinned, now_ns
        self.limiters.put(limiter)
        overflow = None if pinned else self.overflow.get(rule.bare_name)
        if overflow is not None:
            limiter.inherit(overflow, self._latest_ns)
        return limiter

    def current(self, resource: Resource) -> Limiter | None:
        """Return a resource's limiter after applying missed swaps. Return None if there is no limiter or no limit."""
        limiter = self._find(resource)
        if limiter is None or limiter.epoch == self._epoch:
            return limiter
        if limiter.epoch == ~self._epoch:
            return None
        had = limiter
        epoch, unlimited = (limiter.epoch, False) if limiter.epoch >= 0 else (~limiter.epoch, True)
        for swap in self._swaps:
            if swap.epoch <= epoch:
                continue
            rule = swap.rule_set.limit(resource, self.dimension)
            unlimited = rule is None
            if rule is None:
                limiter.retired = limiter.retired or not swap.rule_set.limits_otherwise(resource, self.dimension)
            elif limiter.retired:
                limiter = restart_limiter(limiter, swap.at_ns, rule, self._join)
            elif rule is not limiter.rule:
                limiter = apply_rule(limiter, swap.at_ns, rule, self._join)
        limiter.epoch = ~self._epoch if unlimited else self._epoch
        if limiter is not had:
            self.limiters.put(limiter)
        return None if unlimited else limiter

    def _is_idle(self, resource: Resource, now_ns: int) -> bool:
        limiter = self.current(resource)
        if limiter is None:
            return True
        idle_at_ns = limiter.idle_at_ns()
        return limiter.asked_ns != now_ns and idle_at_ns is not None and idle_at_ns <= now_ns

    def _overflow_limiter(self, kind: str, rule: Rule) -> Limiter:
        limiter = self.overflow.get(rule.bare_name)
        if limiter is None:
            limiter = new_limiter(Resource(kind, OVERFLOW_NAME), rule, self._latest_ns, self._join)
            self.overflow[rule.bare_name] = limiter
        limiter.refill(self._latest_ns)
        return limiter
