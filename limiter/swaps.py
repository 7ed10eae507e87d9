"""The swaps of rules that limiters have yet to go through.

A swap that changes rules of exact names only is no matter of this: the few limiters it is about go through it at
once. Every other may be about any name, so limiters go through it when they are next looked at; its *epoch* says
which of them a limiter has seen. The last few are remembered with their rule sets. Of those before them it is
remembered which patterns they changed and when, so that a limiter which slept through hundreds of edits of other
limits is not taken for one whose own was changed. Only when that would be too much to remember is the limit of
every name without a rule of its own taken for changed.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from limiter.changes import Changes
from limiter.patterns import DEFAULT_PATTERN
from limiter.resource import Resource
from limiter.rule import Rule, RuleKey
from limiter.rules import RuleSet

_REMEMBERED: Final = 16
"""Swaps with their rule sets: what a limiter goes through step by step."""
_MOST_PATTERNS: Final = 256
"""Patterns changed by earlier swaps that are told apart: each costs a limiter that missed them a comparison."""


class Swap(NamedTuple):
    """A rule set, and when it came into force.

    Attributes:
        epoch: counts swaps.
        at_ns: when.
        rule_set: the rules from then on.
        patterns: whose limit is another since, by the rules that came and went; None is anybody's.
    """

    epoch: int
    at_ns: int
    rule_set: RuleSet
    patterns: tuple[Rule, ...] | None


class _Forgotten(NamedTuple):
    epoch: int
    at_ns: int
    rule: Rule


class Swaps:
    """What is remembered of them.

    Args:
        rule_set: the first, in force from the start.
    """

    def __init__(self, rule_set: RuleSet) -> None:
        # Nothing is older than the first rule set, so its time is never asked for.
        self._last: deque[Swap] = deque([Swap(0, 0, rule_set, None)])
        #: By pattern, the last swap that changed it and is remembered no more.
        self._patterns: dict[RuleKey, _Forgotten] = {}
        #: The last swap remembered no more that may have changed any limit; and any of names without their own rule.
        self._any: tuple[int, int] = (0, 0)
        self._any_of_patterns: tuple[int, int] = (0, 0)

    @property
    def first(self) -> Swap:
        """The first that is remembered with its rules."""
        return self._last[0]

    @property
    def last(self) -> Swap:
        """The last."""
        return self._last[-1]

    def add(self, at_ns: int, rule_set: RuleSet, changes: Changes, *, anybody: bool) -> int:
        """Remember one more, and return its epoch."""
        epoch = self.last.epoch + 1
        self._last.append(Swap(epoch, at_ns, rule_set, None if anybody else changes.patterns))
        if len(self._last) > _REMEMBERED:
            self._forget(self._last.popleft())
        return epoch

    def since(self, epoch: int) -> Iterator[Swap]:
        """Yield those after an epoch that are remembered with their rules."""
        return (swap for swap in self._last if swap.epoch > epoch)

    def backwards(self) -> Iterator[Swap]:
        """Yield those that are remembered with their rules, the last first."""
        return reversed(self._last)

    def changed_ns(self, resource: Resource, epoch: int = 0) -> int | None:
        """Return when a swap whose rules are forgotten may last have changed a limit; None if surely none has.

        Args:
            resource: whose limit, as it was when the first remembered swap came.
            epoch: swaps up to this one do not matter.
        """
        rules = self.first.rule_set
        changed = [self._any] if self._any[0] > epoch else []
        # Were a rule of its own changed, the resource's limiter would have gone through that at once.
        if not rules.has_own(resource):
            rule = rules.match(resource)
            changed += [self._any_of_patterns] if self._any_of_patterns[0] > epoch else []
            changed += (
                (forgotten.epoch, forgotten.at_ns)
                for forgotten in self._patterns.values()
                if forgotten.epoch > epoch and _concerns(forgotten.rule, resource, rule)
            )
        return max((at_ns for _, at_ns in changed), default=None)

    def first_changed(self, resource: Resource) -> bool:
        """Say whether the first swap that is remembered may have changed a limit."""
        first = self.first
        if first.patterns is None:
            return True
        rule = first.rule_set.match(resource)
        return not first.rule_set.has_own(resource) and any(
            _concerns(changed, resource, rule) for changed in first.patterns
        )

    def _forget(self, swap: Swap) -> None:
        if not swap.epoch:
            return
        if swap.patterns is None:
            self._any = (swap.epoch, swap.at_ns)
            return
        self._patterns.update({rule.key: _Forgotten(swap.epoch, swap.at_ns, rule) for rule in swap.patterns})
        if len(self._patterns) > _MOST_PATTERNS:
            self._patterns.clear()
            self._any_of_patterns = (swap.epoch, swap.at_ns)


def _concerns(changed: Rule, resource: Resource, rule: Rule) -> bool:
    """Say whether a rule that came or went may have been in force for a resource before another one, or be that.

    One with a less specific pattern has no say as long as the other stays.
    """
    stronger = changed.matches.text != DEFAULT_PATTERN and changed.matches.literals >= rule.matches.literals
    is_it = changed.key == rule.key or rule.matches.text == DEFAULT_PATTERN
    return (stronger or is_it) and changed.applies_to(resource)
