"""The registry: from a resource to its live limiter, in bounded memory.

Names come from clients, so anybody can make up a million of them. The registry holds at most ``max_live``
limiters and evicts only those that are *idle*: full and closed at the time of the question (and cold, if they warm
up, and without active keys, if they keep shares), so that nobody could tell them from new ones and eviction forgives
no one. Resources with a rule of their own, totals among them, are an operator's choice: they are not evicted and
stand outside the bound. While nothing can be evicted, the new names that a rule matches share one *overflow* limiter
of that rule; for most names that is the kind's default. A name that gets a limiter after all takes along what is
missing in the shared one, unless a swap has put it under another rule meanwhile: then it may get one more burst.

A new rule set holds at once for everybody. Limiters whose resource's own rule changed go through the swap at once,
which leaves all others alone, however many such edits there are; all other swaps they go through only when they are
next looked at, one by one, and end as if they had been there. Where the new rule needs another kind of limiter, one
takes its place. The last few swaps are remembered for that; a limiter that missed earlier ones as well goes on as if
they had not been, which may give it one more burst and never takes one away.

**What a limit begins with.** Nobody who is below a limit may be refused because the limit is new, so a limiter begins
full: that of a name which nobody has asked for, since it was idle all along, and that of a name which had no limit
until now, since it was unlimited or limiting was switched off. What was stored, owed or open before counts no more.

It reads no clock, is not made for several threads, and does not limit how long names are: protocols do.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from limiter.buckets.factory import begun_anew, new_limiter, put_in_force
from limiter.buckets.limiter import Limiter, LimiterState
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension, Rule
from limiter.rules.rule_set import Changes, RuleSet

_SLOT_BITS: Final = 24
"""A slot is 2**24 ns, about 17 ms."""

T = TypeVar("T")


# A timer wheel: files things under the time at which they are next worth a look.
#
# The registry files every limiter that it may evict under the time at which that one turns idle. The wheel
# only files and hands out again; whether a thing really is idle is for the caller to judge.
#
# Slots are coarse and kept in a dict, so that empty ones cost nothing; a heap knows the earliest. Filing and
# handing out are constant work, but for the heap's when a slot is opened or emptied.
class TimerWheel(Generic[T]):
    """Things in slots of time."""

    __slots__ = ("_due", "_never", "_slots", "_times")

    def __init__(self) -> None:
        self._slots: dict[int, list[T]] = {}
        self._times: list[int] = []
        self._due: list[list[T]] = []
        self._never: list[T] = []

    def file(self, thing: T, at_ns: int | None) -> None:
        """File a thing under a time; with None it is not handed out before ``recall``."""
        if at_ns is None:
            self._never.append(thing)
            return
        # Rounded up: what nobody touches in between has really reached its time when its slot is due.
        slot = -(-at_ns >> _SLOT_BITS)
        things = self._slots.get(slot)
        if things is None:
            self._slots[slot] = [thing]
            heappush(self._times, slot)
        else:
            things.append(thing)

    def pop_due(self, now_ns: int) -> T | None:
        """Take out and return a thing whose time has come, or None."""
        while self._due:
            things = self._due[-1]
            if things:
                return things.pop()
            self._due.pop()
        if self._times and self._times[0] << _SLOT_BITS <= now_ns:
            self._due.append(self._slots.pop(heappop(self._times)))
            return self._due[-1].pop()
        return None

    def recall(self) -> None:
        """Make everything due, for when the times it was filed under no longer hold."""
        self._due.extend(self._slots.values())
        if self._never:
            self._due.append(self._never)
        self._slots = {}
        self._times = []
        self._never = []


DEFAULT_MAX_LIVE: Final = 100_000
OVERFLOW_NAME: Final = "_overflow"
"""The resource name under which overflow limiters appear."""

_LONG_AGO_NS: Final = -(2**63)
_MAX_UNLIMITED: Final = 16_384
_MAX_LOOKS: Final = 1_024
"""Limiters looked at for one eviction at most: a bound on what one unlucky request can cost, about 1 ms."""


_AT_ONCE: Final = 256
"""Limiters that go through a swap at once at most: a bound on what an edit of thousands of limits can cost."""
_REMEMBERED: Final = 16
"""Swaps that a limiter goes through step by step if it has missed them."""


class _RuleChange(NamedTuple):
    """A rule set, and when it came into force; the epoch counts them."""

    epoch: int
    at_ns: int
    rule_set: RuleSet


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
        evicted_total: limiters evicted to make room.
        overflowed_total: lookups answered with an overflow limiter.
    """

    def __init__(self, rule_set: RuleSet, max_live: int = DEFAULT_MAX_LIVE, dimension: Dimension = "messages") -> None:
        if max_live < 1:
            raise ValueError(f"max_live is {max_live}; allowed: 1 or more")
        self.max_live = max_live
        self.dimension: Dimension = dimension
        self.evicted_total = 0
        self.overflowed_total = 0
        self._live: dict[Resource, Limiter] = {}
        self._unpinned = 0
        # Of resources: the limiter that lives under one may be replaced.
        self._wheel: TimerWheel[Resource] = TimerWheel()
        self._overflow: dict[str, Limiter] = {}
        self._unlimited: set[Resource] = set()
        self._rule_set = rule_set
        #: The last swap that may have been about any name. Those of exact names' own rules are not counted: the few
        #: limiters that they are about go through them at once.
        self._epoch = 0
        self._swaps: deque[_RuleChange] = deque(maxlen=_REMEMBERED)
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
        return len(self._live)

    @property
    def pinned(self) -> int:
        """How many of the live ones have a rule of their own and stand outside the bound."""
        return len(self._live) - self._unpinned

    def get(self, resource: Resource, now_ns: int) -> Limiter | None:
        """Return the limiter that decides for a resource, or None if nothing limits it.

        It is good for decisions at this ``now_ns``, however many others are asked for meanwhile. Keep no
        reference beyond that: an evicted limiter decides for nobody.
        """
        if now_ns > self._latest_ns:  # noqa: PLR1730 - max() is a call more on the hottest path
            self._latest_ns = now_ns
        limiter = self._live.get(resource)
        if limiter is not None and limiter.epoch == self._epoch:
            limiter.asked_ns = now_ns
            return limiter
        if resource in self._unlimited:
            return None
        if limiter is not None:
            limiter = self._up_to_date(resource)
            if limiter is not None:
                limiter.asked_ns = now_ns
                return limiter
        else:
            rule = self._rule_set.limit(resource, self.dimension)
            if rule is not None:
                return self._create(resource, rule, now_ns)
        if len(self._unlimited) >= _MAX_UNLIMITED:
            self._unlimited.clear()
        self._unlimited.add(resource)
        return None

    def swap(self, rule_set: RuleSet, now_ns: int, changes: Changes | None = None) -> None:
        """Put another rule set in force from ``now_ns`` on.

        Work for the names whose own rules change; otherwise constant, but for the overflow limiters in use.

        Args:
            rule_set: the rules.
            now_ns: the time.
            changes: since the rules in force, if they are known.
        """
        old = self._rule_set
        changes = rule_set.changes_since(old) if changes is None else changes
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        self._rule_set = rule_set
        anybody = changes.switched or len(changes.exact) > _AT_ONCE
        for resource in changes.exact:
            self._pin(resource, old, at_ns)
            if not anybody:
                self._edit(resource, old, at_ns)
        if anybody or changes.patterns:
            self._swap_overflow(rule_set, at_ns)
            # Limiters are filed by the time at which they are idle under the rule they had.
            self._wheel.recall()
            self._unlimited.clear()
            # Who has just gone through the swap goes through it once more, to no effect.
            self._epoch += 1
            self._swaps.append(_RuleChange(self._epoch, at_ns, rule_set))
        # Names that lost their own rules may be too many.
        self._make_room(at_ns, others=0)

    def _pin(self, resource: Resource, old: RuleSet, at_ns: int) -> None:
        """Take a live limiter out of the bound if its resource has got a rule of its own, or back into it."""
        limiter = self._live.get(resource)
        pinned = self._rule_set.has_own(resource)
        if limiter is None or pinned == old.has_own(resource):
            return
        self._unpinned += -1 if pinned else 1
        if not pinned and not limiter.filed:
            self._file(limiter, at_ns)

    def _edit(self, resource: Resource, old: RuleSet, at_ns: int) -> None:
        """Lead one resource's limiter over from the rules before, as if it had been asked just then."""
        self._unlimited.discard(resource)
        before, after = old.limit(resource, self.dimension), self._rule_set.limit(resource, self.dimension)
        limiter = self._live.get(resource)
        if before is after or limiter is None:
            return
        if after is None:
            # It begins anew when there is a limit again.
            limiter.epoch = ~self._epoch
            return
        if before is None:
            limiter = begun_anew(limiter, at_ns, after)
        else:
            limiter = put_in_force(self._replayed(limiter), at_ns, after)
        limiter.epoch = self._epoch
        self._live[resource] = limiter

    def reset(self, resource: Resource, now_ns: int) -> LimiterState | None:
        """Let a resource's own limiter begin anew; return what it was, or None if there is none."""
        limiter = self._up_to_date(resource)
        if limiter is None:
            return None
        at_ns = self._latest_ns = max(self._latest_ns, now_ns)
        before = limiter.state(at_ns)
        self._live[resource] = begun_anew(limiter, at_ns, limiter.rule)
        return before

    def reset_all_of(self, rule: Rule, now_ns: int) -> Iterator[LimiterState | None]:
        """Let the limiters begin anew of all names for which the rule of that kind and pattern is in force.

        That which names share for which there is no room is among them. As ``each_state``, in steps that are all short.
        """
        for resource in list(self._live):
            is_its = resource.kind == rule.kind and self._rule_set.match(resource).bare_name == rule.bare_name
            yield self.reset(resource, now_ns) if is_its else None
        limiter = self._overflow.get(rule.bare_name)
        if limiter is not None:
            at_ns = self._latest_ns = max(self._latest_ns, now_ns)
            self._overflow[rule.bare_name] = begun_anew(limiter, at_ns, limiter.rule)
            yield limiter.state(at_ns)

    def state(self, resource: Resource, now_ns: int) -> LimiterState | None:
        """Return the state of a resource's own limiter, or None if it has none; creates none."""
        limiter = self._up_to_date(resource)
        return None if limiter is None else limiter.state(now_ns)

    def states(self, now_ns: int) -> Iterator[LimiterState]:
        """Yield the states of all live limiters, then of the overflow limiters.

        Safe while the registry changes between two steps: what is evicted meanwhile or no longer limited is
        left out, and so is what is new. Only references are copied at the start; each state is built when its turn
        comes.
        """
        return (state for state in self.each_state(now_ns) if state is not None)

    def each_state(self, now_ns: int) -> Iterator[LimiterState | None]:
        """Do as ``states`` does, with None for what is left out, so that no step takes long."""
        live, overflow = list(self._live), list(self._overflow)
        for resource in live:
            yield self.state(resource, now_ns)
        for name in overflow:
            shared = self._overflow.get(name)
            yield None if shared is None else shared.state(now_ns)

    def _create(self, resource: Resource, rule: Rule, now_ns: int) -> Limiter:
        pinned = self._rule_set.has_own(resource)
        if not pinned and not self._make_room(now_ns):
            self.overflowed_total += 1
            return self._overflow_limiter(resource.kind, rule)
        limiter = new_limiter(resource, rule, self._latest_ns)
        limiter.epoch = self._epoch
        limiter.asked_ns = now_ns
        self._live[resource] = limiter
        if not pinned:
            # The name may have been served by the overflow limiter: what that one lacks, this one may have spent.
            overflow = self._overflow.get(rule.bare_name)
            if overflow is not None:
                limiter.inherit(overflow, self._latest_ns)
            self._unpinned += 1
            self._file(limiter, limiter.idle_at_ns())
        return limiter

    def _up_to_date(self, resource: Resource) -> Limiter | None:
        """Return the resource's limiter, led through the swaps it has missed; None without one, or without a limit.

        A limiter whose resource is not limited now stays as it is, to go through the swaps when it is again.
        """
        limiter = self._live.get(resource)
        if limiter is None or limiter.epoch == self._epoch:
            return limiter
        if self._rule_set.limit(resource, self.dimension) is None:
            return None
        limiter = self._live[resource] = self._replayed(limiter)
        limiter.epoch = self._epoch
        return limiter

    def _replayed(self, limiter: Limiter) -> Limiter:
        """Return what decides after the swaps that a limiter has missed; another one where a rule needs that."""
        epoch, unlimited = (limiter.epoch, False) if limiter.epoch >= 0 else (~limiter.epoch, True)
        for swap in self._swaps:
            if swap.epoch <= epoch:
                continue
            rule = swap.rule_set.limit(limiter.resource, self.dimension)
            if rule is None:
                unlimited = True
            elif unlimited:
                limiter = begun_anew(limiter, swap.at_ns, rule)
                unlimited = False
            elif rule is not limiter.rule:
                limiter = put_in_force(limiter, swap.at_ns, rule)
        return limiter

    def _make_room(self, now_ns: int, others: int = 1) -> bool:
        """Evict until so many other limiters fit within the bound; say whether they do."""
        looks = 0
        while self._unpinned + others > self.max_live and looks < _MAX_LOOKS:
            resource = self._wheel.pop_due(now_ns)
            if resource is None:
                return False
            looks += 1
            self._live[resource].filed = False
            if self._rule_set.has_own(resource):
                continue
            limiter = self._up_to_date(resource)
            if limiter is not None:
                worth_a_look_ns = now_ns + 1 if limiter.asked_ns == now_ns else limiter.idle_at_ns()
                if worth_a_look_ns is None or worth_a_look_ns > now_ns:
                    self._file(limiter, worth_a_look_ns)
                    continue
            del self._live[resource]
            self._unpinned -= 1
            self.evicted_total += 1
        return self._unpinned + others <= self.max_live

    def _file(self, limiter: Limiter, at_ns: int | None) -> None:
        limiter.filed = True
        self._wheel.file(limiter.resource, at_ns)

    def _overflow_limiter(self, kind: str, rule: Rule) -> Limiter:
        limiter = self._overflow.get(rule.bare_name)
        if limiter is None:
            limiter = new_limiter(Resource(kind, OVERFLOW_NAME), rule, self._latest_ns)
            self._overflow[rule.bare_name] = limiter
        limiter.refill(self._latest_ns)
        return limiter

    def _swap_overflow(self, rule_set: RuleSet, at_ns: int) -> None:
        """Lead the overflow limiters over to another rule set; they are few, and gone if their rule is."""
        for name, limiter in list(self._overflow.items()):
            rule = self._limit_named(rule_set, name)
            if rule is None:
                del self._overflow[name]
            elif rule is not limiter.rule:
                self._overflow[name] = put_in_force(limiter, at_ns, rule)

    def _limit_named(self, rule_set: RuleSet, bare_name: str) -> Rule | None:
        rule = rule_set.pattern_rule(bare_name)
        return rule.part(self.dimension) if rule is not None and rule_set.limiting(Resource(rule.kind, "")) else None
