"""The registry: from a resource to its live limiter, in bounded memory.

Names come from clients, so anybody can make up a million of them. The registry holds at most ``max_live``
limiters and evicts only those that are *idle*: full and closed at the time of the question (and cold, if they warm
up, and without active keys, if they keep shares), so that nobody could tell them from new ones and eviction forgives
no one. Resources with a rule of their own, totals among them, are an operator's choice: they are not evicted and
stand outside the bound. While nothing can be evicted, the new names that a rule matches share one *overflow* limiter
of that rule; for most names that is the kind's default. A name that gets a limiter after all takes along what is
missing in the shared one, unless a swap has put it under another rule meanwhile: then it may get one more burst.

**Swaps.** A new rule set holds at once for everybody, but each limiter follows it only when it is next looked at. It
then goes through the swaps that it missed, one by one, and ends as if it had been there: in a single step a limit that
was lowered and raised again meanwhile would give more than it allowed, or less than the lowest that ever held. Where a
rule needs another kind of limiter, one takes its place. The last few swaps are remembered for that; a limiter that
missed earlier ones as well goes on as if they had not been, which may give it one more burst and never takes one away.

**What a limit begins with.** Nobody who is below a limit may be refused because the limit is new, so a limiter begins
full: that of a name which nobody has asked for, since it was idle all along, and that of a name which had no limit
until now, since it was unlimited or limiting was switched off. What was stored, owed or open before counts no more.
Only where ``shared`` is switched, or the pattern of a total is edited, the names were limited all along: by their own
limits or by a total. Each of these goes on from what it was, or else every edit would give another burst.

It reads no clock, is not made for several threads, and does not limit how long names are: protocols do.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from limiter.buckets.factory import begun_anew, new_limiter, put_in_force
from limiter.buckets.limiter import Limiter, LimiterState
from limiter.buckets.saved import SavedLimiter, restore, save
from limiter.rules.resource import Resource
from limiter.rules.rule import DIMENSIONS, Dimension, Rule
from limiter.rules.rule_set import RuleSet

if TYPE_CHECKING:
    from sluice_native import Resources

DEFAULT_MAX_LIVE: Final = 100_000
OVERFLOW_NAME: Final = "_overflow"
"""The resource name under which overflow limiters appear."""

_LONG_AGO_NS: Final = -(2**63)
_MAX_LOOKS: Final = 16
"""Limiters looked at to make room for one: some 20 us, which each request for a new name costs while none is idle."""
_SHOWN: Final = 64
"""Names of limiters that compiled code is asked for at once."""
_REMEMBERED: Final = 16
"""Swaps that a limiter goes through step by step if it has missed them."""


class _Swap(NamedTuple):
    """A rule set, and when it came into force; the epoch counts them."""

    epoch: int
    at_ns: int
    rule_set: RuleSet


class Spent(NamedTuple):
    """What one process has spent of a limit, for another one that goes on with it.

    Attributes:
        dimension: which limit.
        kind: of what is limited.
        name: of what is limited.
        rule: as in ``SavedLimiter``.
        shared: likewise.
        upermits: in micro-permits; negative is what was set aside and not spent.
    """

    dimension: Dimension
    kind: str
    name: str
    rule: str
    shared: bool
    upermits: int


class Registry:
    """All live limiters.

    Args:
        rule_set: the rules in force from the start.
        max_live: how many limiters may live besides those that have a rule of their own.
        dimension: which limit of the rules is kept here; a registry knows one.

    Raises:
        ValueError: ``max_live`` is less than 1.

    Attributes:
        max_live: the bound.
        dimension: as given.
        number: that of the dimension.
        evicted_total: limiters evicted to make room.
        overflowed_total: lookups answered with an overflow limiter.
        limiters: those that live here, by what they limit; only the registry changes it.
        overflow: the overflow limiters, by the bare names of their rules; likewise.
    """

    def __init__(self, rule_set: RuleSet, max_live: int = DEFAULT_MAX_LIVE, dimension: Dimension = "messages") -> None:
        if max_live < 1:
            raise ValueError(f"max_live is {max_live}; allowed: 1 or more")
        self.max_live = max_live
        self.dimension: Dimension = dimension
        self.number = DIMENSIONS.index(dimension)
        self.evicted_total = 0
        self.overflowed_total = 0
        #: Where compiled code begins limiters within the same bound.
        self._resources: Resources | None = None
        self.limiters: dict[Resource, Limiter] = {}
        #: The resources of all live limiters, in the order in which they are looked at for eviction.
        self._order: deque[Resource] = deque()
        self._unpinned = 0
        self.overflow: dict[str, Limiter] = {}
        self._rule_set = rule_set
        #: When room was looked for in vain. A chunk may have hundreds of new names: one look for all of them.
        self._no_room_ns = _LONG_AGO_NS
        #: The number of swaps so far. A limiter keeps it, too; negated by ``~`` if it had no limit then.
        self._epoch = 0
        self._swaps: deque[_Swap] = deque(maxlen=_REMEMBERED)
        # Were the clock to run backwards, nobody may be given the same stretch of time twice: new limiters and
        # new rules count from the latest time ever seen.
        self._latest_ns = _LONG_AGO_NS

    @property
    def rule_set(self) -> RuleSet:
        """The rules in force."""
        return self._rule_set

    @property
    def live(self) -> int:
        """How many limiters live, those with a rule of their own included, overflow limiters not."""
        return len(self.limiters)

    def get(self, resource: Resource, now_ns: int) -> Limiter | None:
        """Return the limiter that decides for a resource, or None if nothing limits it.

        It is good for decisions at this ``now_ns``, however many others are asked for meanwhile. Keep no
        reference beyond that: an evicted limiter decides for nobody.
        """
        if now_ns > self._latest_ns:  # noqa: PLR1730 - max() is a call more on the hottest path
            self._latest_ns = now_ns
        limiter = self.limiters.get(resource)
        if limiter is not None and limiter.epoch == self._epoch:
            limiter.asked_ns = now_ns
            return limiter
        if limiter is None and (self._resources is None or self._take_over(resource) is None):
            rule = self._rule_set.limit(resource, self.dimension)
            return None if rule is None else self._create(resource, rule, now_ns)
        limiter = self.current(resource)
        if limiter is not None:
            limiter.asked_ns = now_ns
        return limiter

    def _take_over(self, resource: Resource) -> Limiter | None:
        """Take over the limiter that compiled code began for a name, if it did."""
        taken = None if self._resources is None else self._resources.take(*resource, self.number)
        if taken is None:
            return None
        rule, epoch, cell = taken
        limiter = new_limiter(resource, rule, cell.at_ns)
        limiter.stored_upermits, limiter.forgiven_upermits = cell.stored_upermits, cell.forgiven_upermits
        limiter.epoch, limiter.asked_ns = epoch, cell.asked_ns
        self.limiters[resource] = limiter
        self._order.append(resource)
        self._count(not self._rule_set.has_own(resource))
        return limiter

    def _names(self) -> Iterator[Resource | None]:
        """Yield what has a limiter, here or begun by compiled code, and None for some; each step is short."""
        live = self.limiters.copy()
        yield from live
        # From the newest on, so that what is begun meanwhile has no part in it.
        number = sys.maxsize
        while self._resources is not None and (names := self._resources.names_begun(self.number, number, _SHOWN)):
            for _, kind, name in names:
                resource = Resource(kind, name)
                # What was taken over before may still be among them.
                yield None if resource in live else resource
            number = names[-1][0]

    def share_bound_with(self, resources: "Resources") -> None:
        """Have compiled code begin limiters, within the same bound."""
        self._resources = resources
        self._count(0)

    def _count(self, more: int) -> None:
        """Note that there are more limiters of names without a rule of their own."""
        self._unpinned += more
        if self._resources is not None:
            self._resources.set_most_begun(self.number, max(0, self.max_live - self._unpinned))

    def swap(self, rule_set: RuleSet, now_ns: int, own: Mapping[Resource, bool] | None = None) -> None:
        """Put another rule set in force from ``now_ns`` on.

        Work for the names that get or lose a rule of their own, and for the overflow limiters in use.

        Args:
            rule_set: the rules.
            now_ns: the time.
            own: ``own_since`` the rules in force, if it is known.
        """
        own = rule_set.own_since(self._rule_set) if own is None else own
        for resource in own:
            # What compiled code begins has no rule of its own.
            self.current(resource)
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        self._rule_set = rule_set
        self._epoch += 1
        self._swaps.append(_Swap(self._epoch, at_ns, rule_set))
        for resource, pinned in own.items():
            if resource in self.limiters:
                self._count(-1 if pinned else 1)
        for name, limiter in list(self.overflow.items()):
            rule = self._limit_named(name)
            if rule is None:
                del self.overflow[name]
            elif rule is not limiter.rule:
                self.overflow[name] = put_in_force(limiter, at_ns, rule)

    def _limit_named(self, bare_name: str) -> Rule | None:
        rule = self._rule_set.pattern_rule(bare_name)
        limiting = rule is not None and self._rule_set.limiting(Resource(rule.kind, ""))
        return rule.part(self.dimension) if rule is not None and limiting else None

    def reset(self, resource: Resource, now_ns: int) -> LimiterState | None:
        """Let a resource's own limiter begin anew; return what it was, or None if there is none."""
        limiter = self.current(resource)
        if limiter is None:
            return None
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        before = limiter.state(at_ns)
        self.limiters[resource] = begun_anew(limiter, at_ns, limiter.rule)
        return before

    def reset_all_of(self, rule: Rule, now_ns: int) -> Iterator[LimiterState | None]:
        """Let the limiters begin anew of all names for which the rule of that kind and pattern is in force.

        That which names share for which there is no room is among them. As ``each_state``, in steps that are all short.
        """
        for resource in self._names():
            if resource is None or resource.kind != rule.kind:
                yield None
            else:
                is_its = self._rule_set.match(resource).bare_name == rule.bare_name
                yield self.reset(resource, now_ns) if is_its else None
        limiter = self.overflow.get(rule.bare_name)
        if limiter is not None:
            at_ns = self._latest_ns = max(self._latest_ns, now_ns)
            self.overflow[rule.bare_name] = begun_anew(limiter, at_ns, limiter.rule)
            yield limiter.state(at_ns)

    def state(self, resource: Resource, now_ns: int) -> LimiterState | None:
        """Return the state of a resource's own limiter, or None if it has none; creates none."""
        limiter = self.current(resource)
        return None if limiter is None else limiter.state(now_ns)

    def each_state(self, now_ns: int) -> Iterator[LimiterState | None]:
        """Yield the states of all live limiters, then of the overflow limiters, in steps that are all short.

        Safe while the registry changes between two steps: None stands for what is evicted meanwhile or no longer
        limited, and what is new is left out. Only references are copied at the start; each state is built when its turn
        comes.
        """
        for resource in self._names():
            yield None if resource is None else self.state(resource, now_ns)
        for name in list(self.overflow):
            shared = self.overflow.get(name)
            yield None if shared is None else shared.state(now_ns)

    def save(self, now_ns: int) -> Iterator[SavedLimiter | None]:
        """Yield what another process needs in order to go on with all limiters, in steps as ``each_state`` has them.

        A limiter that is spent from between two steps is saved as it is when its turn comes; None is also one that is
        as good as new.
        """
        for resource in self._names():
            limiter = None if resource is None else self.current(resource)
            yield None if limiter is None else save(limiter, now_ns, shared=False)
        for name in list(self.overflow):
            limiter = self.overflow.get(name)
            yield None if limiter is None else save(limiter, now_ns, shared=True)

    def restore(self, saved: SavedLimiter, now_ns: int) -> bool:
        """Go on with another process's limiter, before anybody asks for it.

        Returns:
            Whether it is limited here, too, and there is room.

        Raises:
            ValueError: no limiter was ever like this.
        """
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        if saved.shared:
            rule = self._limit_named(saved.rule)
            if rule is not None:
                self.overflow[saved.rule] = restore(saved, rule, at_ns)
            return rule is not None
        resource = saved.resource
        rule, pinned = self._rule_set.limit(resource, self.dimension), self._rule_set.has_own(resource)
        if rule is None or resource in self.limiters or not (pinned or self._has_room()):
            return False
        limiter = restore(saved, rule, at_ns)
        limiter.epoch = self._epoch
        self.limiters[resource] = limiter
        self._order.append(resource)
        self._count(not pinned)
        return True

    def of(self, spent: Spent, now_ns: int) -> Limiter | None:
        """Return the limiter of which another process has spent something; None if nothing limits that here."""
        return self.overflow.get(spent.rule) if spent.shared else self.get(Resource(spent.kind, spent.name), now_ns)

    def spent_since(self, saved: Iterable[SavedLimiter], since_ns: int, now_ns: int) -> Iterator[Spent]:
        """Yield what was spent since ``save`` was asked.

        Args:
            saved: what it said.
            since_ns: when that was.
            now_ns: the time.
        """
        known = {(each.rule if each.shared else "", each.resource): each for each in saved}
        live = (("", self.current(resource)) for resource in self._names() if resource is not None)
        for rule, limiter in chain(live, self.overflow.items()):
            if limiter is None or (not rule and limiter.asked_ns < since_ns):
                continue
            before = known.get((rule, limiter.resource))
            left = limiter.capacity_upermits if before is None else before.balance_upermits(now_ns)
            upermits = left - limiter.settled(now_ns)[0]
            if upermits:
                yield self.spent(limiter, upermits)

    def spent(self, limiter: Limiter, upermits: int) -> Spent:
        """Return what was spent of one of the limiters here."""
        resource, rule = limiter.resource, limiter.rule.bare_name
        return Spent(self.dimension, *resource, rule, self.overflow.get(rule) is limiter, upermits)

    def _create(self, resource: Resource, rule: Rule, now_ns: int) -> Limiter:
        pinned = self._rule_set.has_own(resource)
        if not pinned and not self._make_room(now_ns):
            self.overflowed_total += 1
            return self._overflow_limiter(resource.kind, rule)
        limiter = new_limiter(resource, rule, self._latest_ns)
        limiter.epoch = self._epoch
        limiter.asked_ns = now_ns
        self.limiters[resource] = limiter
        self._order.append(resource)
        if not pinned:
            # The name may have been served by the overflow limiter: what that one lacks, this one may have spent.
            overflow = self.overflow.get(rule.bare_name)
            if overflow is not None:
                limiter.inherit(overflow, self._latest_ns)
            self._count(1)
        return limiter

    def current(self, resource: Resource) -> Limiter | None:
        """Return the resource's limiter, led through the swaps it has missed; None without one, or without a limit."""
        limiter = self.limiters.get(resource) or self._take_over(resource)
        if limiter is None or limiter.epoch == self._epoch:
            return limiter
        if limiter.epoch == ~self._epoch:
            return None
        epoch, unlimited = (limiter.epoch, False) if limiter.epoch >= 0 else (~limiter.epoch, True)
        for swap in self._swaps:
            if swap.epoch <= epoch:
                continue
            rule = swap.rule_set.limit(resource, self.dimension)
            unlimited = rule is None
            if rule is None:
                # Once it was without any limit it is not to go on.
                limiter.retired = limiter.retired or not swap.rule_set.limits_otherwise(resource, self.dimension)
            elif limiter.retired:
                limiter = begun_anew(limiter, swap.at_ns, rule)
            elif rule is not limiter.rule:
                limiter = put_in_force(limiter, swap.at_ns, rule)
        limiter.epoch = ~self._epoch if unlimited else self._epoch
        self.limiters[resource] = limiter
        return None if unlimited else limiter

    def _make_room(self, now_ns: int) -> bool:
        """Evict until one more limiter fits within the bound; say whether it does."""
        if now_ns == self._no_room_ns and not self._has_room():
            return False
        if self._resources is not None and not self._has_room():
            for kind, name in self._resources.make_room(self.number, now_ns):
                self.current(Resource(kind, name))
        for _ in range(min(_MAX_LOOKS, len(self._order))):
            if self._has_room():
                return True
            resource = self._order.popleft()
            if self._rule_set.has_own(resource) or not self._is_idle(resource, now_ns):
                self._order.append(resource)
                continue
            self.limiters.pop(resource).retired = True
            self._count(-1)
            self.evicted_total += 1
        has_room = self._has_room()
        if not has_room:
            self._no_room_ns = now_ns
        return has_room

    def _has_room(self) -> bool:
        begun = 0 if self._resources is None else self._resources.begun[self.number]
        return self._unpinned + begun < self.max_live

    def _is_idle(self, resource: Resource, now_ns: int) -> bool:
        """Say whether nobody could tell a resource's limiter from a new one, and nobody was handed it just now."""
        limiter = self.current(resource)
        if limiter is None:
            return True
        idle_at_ns = limiter.idle_at_ns()
        return limiter.asked_ns != now_ns and idle_at_ns is not None and idle_at_ns <= now_ns

    def _overflow_limiter(self, kind: str, rule: Rule) -> Limiter:
        limiter = self.overflow.get(rule.bare_name)
        if limiter is None:
            limiter = new_limiter(Resource(kind, OVERFLOW_NAME), rule, self._latest_ns)
            self.overflow[rule.bare_name] = limiter
        limiter.refill(self._latest_ns)
        return limiter
