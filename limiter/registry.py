"""The registry: from a resource to its live limiter, in bounded memory.

Names come from clients, so anybody can make up a million of them. The registry holds at most ``max_live``
limiters and evicts only those that are *idle*: full and closed at the time of the question (and cold, if they warm
up, and without active keys, if they keep shares), so that nobody could tell them from new ones and eviction forgives
no one. Resources with a rule of their own, totals among them, are an operator's choice: they are not evicted and
stand outside the bound. While nothing can be evicted, the new names
that a rule matches share one *overflow* limiter of that rule; for most names that is the kind's default. A
name that gets a limiter after all takes along what is missing in the shared one, unless a swap has
put it under another rule meanwhile: then it may get one more burst.

A new rule set holds at once for everybody. Limiters whose resource's own rule changed go through the swap at once,
which leaves all others alone, however many such edits there are; all other swaps they go through only when they are
next looked at (see ``swaps``), one by one, and end as if they had been there. Where the new rule needs another
kind of limiter, one takes its place. A resource without a limiter is treated as one that was idle all along: it is
full, unless a swap less than a burst ago says otherwise. A limiter whose limit may have been changed by a swap that
is forgotten keeps its debt and loses its stored permits, which errs to the strict side.

It reads no clock, is not made for several threads, and does not limit how long names are: protocols do.
"""

from collections.abc import Iterator
from typing import Final

from limiter.changes import Changes
from limiter.kinds import new_limiter, put_in_force
from limiter.limiter import Limiter, LimiterState
from limiter.resource import Resource
from limiter.rule import Dimension, Rule
from limiter.rules import RuleSet
from limiter.swaps import Swaps
from limiter.wheel import Wheel

DEFAULT_MAX_LIVE: Final = 100_000
OVERFLOW_NAME: Final = "_overflow"
"""The resource name under which overflow limiters appear."""

_LONG_AGO_NS: Final = -(2**63)
_MAX_UNLIMITED: Final = 16_384
_MAX_LOOKS: Final = 1_024
"""Limiters looked at for one eviction at most: a bound on what one unlucky request can cost, about 1 ms."""


_AT_ONCE: Final = 256
"""Limiters that go through a swap at once at most: a bound on what an edit of thousands of limits can cost."""


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
        self._wheel: Wheel[Resource] = Wheel()
        self._overflow: dict[str, Limiter] = {}
        self._unlimited: set[Resource] = set()
        self._rule_set = rule_set
        self._epoch = 0
        self._swaps = Swaps(rule_set)
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
            self._epoch = self._swaps.add(at_ns, rule_set, changes, anybody=anybody)
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
        """Lead one resource's limiter over from the rules before, as if it had been asked just then.

        A resource that had none gets one, so that what its limit was need not be known later.
        """
        self._unlimited.discard(resource)
        before, after = old.limit(resource, self.dimension), self._rule_set.limit(resource, self.dimension)
        known = before or after
        if before is after or known is None:
            return
        limiter = self._live.get(resource)
        if limiter is not None:
            limiter = self._replayed(limiter)
        elif not (self._rule_set.has_own(resource) or self._make_room(at_ns)):
            return
        else:
            limiter = self._as_if_always_there(resource, known)
            if not self._rule_set.has_own(resource):
                self._unpinned += 1
                self._file(limiter, at_ns)
        if after is None:
            # It stays as it is, and begins anew when there is a limit again.
            limiter.epoch = ~self._epoch
        else:
            limiter = put_in_force(limiter, at_ns, after, restart=before is None)
            limiter.epoch = self._epoch
        self._live[resource] = limiter

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
        limiter = self._as_if_always_there(resource, rule)
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

    def _as_if_always_there(self, resource: Resource, rule: Rule) -> Limiter:
        """Return what a limiter that nobody has asked since the first rule set would be now."""
        now_ns = self._latest_ns
        if self._no_swap_within_burst(rule):
            limiter = new_limiter(resource, rule, now_ns)
        else:
            first = self._swaps.first
            first_rule = first.rule_set.limit(resource, self.dimension)
            begin_ns, empty = self._begin(resource)
            limiter = new_limiter(resource, first_rule or rule, begin_ns, empty=empty)
            limiter.epoch = first.epoch if first_rule is not None else ~first.epoch
            limiter = self._replayed(limiter)
            if limiter.rule is not rule:
                # Its own rule changed when there was no room for it.
                limiter = put_in_force(limiter, now_ns, rule)
            limiter.refill(now_ns)
        limiter.epoch = self._epoch
        return limiter

    def _begin(self, resource: Resource) -> tuple[int, bool]:
        """Return when to begin with what nobody has asked for, to go through the swaps; and whether it is empty."""
        first = self._swaps.first
        rule = first.rule_set.limit(resource, self.dimension)
        if rule is None:
            return first.at_ns, True
        if self._swaps.first_changed(resource):
            return first.at_ns, first.epoch > 0
        changed_ns = self._swaps.changed_ns(resource)
        if changed_ns is None or first.at_ns - changed_ns >= rule.burst_ns:
            return first.at_ns, False
        return changed_ns, True

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
        epoch, restart = limiter.epoch, False
        if epoch < 0:
            epoch, restart = ~epoch, True
        elif epoch + 1 < self._swaps.first.epoch:
            restart = self._swaps.changed_ns(limiter.resource, epoch) is not None
        for swap in self._swaps.since(epoch):
            rule = swap.rule_set.limit(limiter.resource, self.dimension)
            if rule is None:
                restart = True
            elif restart or rule is not limiter.rule:
                limiter = put_in_force(limiter, swap.at_ns, rule, restart=restart)
                restart = False
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
            since_ns = self._in_force_since_ns(rule)
            full = since_ns is None or self._latest_ns - since_ns >= rule.burst_ns
            start_ns = self._latest_ns if since_ns is None or full else since_ns
            limiter = new_limiter(Resource(kind, OVERFLOW_NAME), rule, start_ns, empty=not full)
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

    def _in_force_since_ns(self, rule: Rule) -> int | None:
        """Return since when a pattern's rule is in force, or the time of a later swap; None if it always was."""
        since_ns: int | None = self._latest_ns
        for swap in self._swaps.backwards():
            if self._limit_named(swap.rule_set, rule.bare_name) is not rule:
                break
            since_ns = swap.at_ns if swap.epoch else None
        return since_ns

    def _limit_named(self, rule_set: RuleSet, bare_name: str) -> Rule | None:
        rule = rule_set.pattern_rule(bare_name)
        return rule.part(self.dimension) if rule is not None and rule_set.limiting(Resource(rule.kind, "")) else None

    def _no_swap_within_burst(self, rule: Rule) -> bool:
        """Say whether the last swap is so long ago that who owes nothing is full, whatever the rules were."""
        last = self._swaps.last
        return not last.epoch or self._latest_ns - last.at_ns >= rule.burst_ns
