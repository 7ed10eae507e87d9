"""Live edits laid over the configured rules, a few at a time.

An edit takes as long with thousands of rules as with ten. What it comes to is what ``Rulebook.rules`` makes of all of
them at once.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import TypeVar

from admin.rule_fields import Target, target_of
from admin.rulebook import Rulebook, Strictest, is_strict, stand_in_rules
from limiter.resource import Resource
from limiter.rule import Rule
from limiter.rules import RuleSet

T = TypeVar("T", float, tuple[float, float])


class Layers:
    """The rules in force, and the edits that are among them. It never changes; ``edited`` makes others.

    Args:
        rulebook: the configuration's rules.
        edits: the rules of edits, the latest last: of equally literal patterns that one wins.
        version: of the rule set is one more.
        enabled: whether limiting is on.
        off_kinds: kinds whose limiting is switched off.

    Attributes:
        rule_set: the rules in force.
        edits: the rules of edits, by what they are for, the latest last.
    """

    def __init__(
        self, rulebook: Rulebook, edits: Iterable[Rule], version: int, *, enabled: bool, off_kinds: frozenset[str]
    ) -> None:
        self._rulebook = rulebook
        self._configured: dict[Target, list[Rule]] = {}
        for rule in rulebook.configured:
            self._configured.setdefault(target_of(rule), []).append(rule)
        self._strict = _Strict(rulebook.sent_to)
        for rule in rulebook.configured:
            self._strict.add(rule)
        self._stand_ins: dict[Target, Rule] = {}
        self.edits: dict[Target, Rule] = {}
        self.rule_set = RuleSet(rulebook.configured, version=version)
        changed = {target_of(rule): rule for rule in edits}
        other = self.edited(changed, enabled=enabled, off_kinds=off_kinds)
        self._strict, self._stand_ins = other._strict, other._stand_ins  # noqa: SLF001 - one of its own
        self.edits, self.rule_set = other.edits, other.rule_set

    def edited(self, changed: Mapping[Target, Rule | None], *, enabled: bool, off_kinds: frozenset[str]) -> "Layers":
        """Return the layers with some edits more, others or fewer.

        Args:
            changed: the rules of edits, by what they are for, the latest last; None for what is not edited any more.
            enabled: whether limiting is on.
            off_kinds: kinds whose limiting is switched off.
        """
        other = copy(self)
        other._edit(self, changed, enabled=enabled, off_kinds=off_kinds)  # noqa: SLF001 - one of its own
        return other

    def _edit(
        self, old: "Layers", changed: Mapping[Target, Rule | None], *, enabled: bool, off_kinds: frozenset[str]
    ) -> None:
        # Far quicker than dict(…), if some have gone from it.
        self.edits = old.edits.copy()
        self._strict = self._strict.copy()
        put: list[Rule] = []
        drop: list[Rule] = []
        for target, rule in changed.items():
            before = self.rules_of(target)
            # The latest edit is the last of all.
            self.edits.pop(target, None)
            if rule is not None:
                self.edits[target] = rule
            after = self.rules_of(target)
            drop += [each for each in before if not _is_in(each, after)]
            # The strongest is put last; what was there already is put again to be later than others.
            put += [each for each in reversed(after) if each is rule or not _is_in(each, before)]
            for each in before:
                self._strict.remove(each)
            for each in after:
                self._strict.add(each)
        stood_in, self._stand_ins = self._stand_ins, self._standing_in()
        put += [rule for target, rule in self._stand_ins.items() if rule != stood_in.get(target)]
        drop += [rule for target, rule in stood_in.items() if target not in self._stand_ins]
        keys = {rule.key for rule in put}
        dropped = [rule.key for rule in drop if rule.key not in keys]
        self.rule_set = old.rule_set.edited(put, dropped, enabled=enabled, off_kinds=off_kinds)

    @property
    def targets(self) -> Iterable[Target]:
        """Everything that has a rule of its own."""
        return dict.fromkeys((*self._configured, *self.edits, *self._stand_ins))

    @property
    def stand_ins(self) -> Mapping[Target, Rule]:
        """The rules of what cannot be read, where no other rule names it."""
        return self._stand_ins

    def configured(self, target: Target) -> Sequence[Rule]:
        """Return the configuration's rules of a name, the strongest first."""
        rules = self._configured.get(target)
        if rules is not None:
            return rules
        return [self._stand_ins[target]] if target in self._stand_ins else []

    def rules_of(self, target: Target) -> list[Rule]:
        """Return the rules of a name that are in the rule set, the strongest first; without stand-ins."""
        return list(laid_over(self.edits.get(target), self._configured.get(target, ())))

    def _standing_in(self) -> dict[Target, Rule]:
        def named(resource: Resource) -> bool:
            target = Target(*resource)
            return target in self._configured or target in self.edits

        rules = stand_in_rules(self._rulebook.reader.protocols, self._strict.strictest(), named)
        return {target_of(rule): rule for rule in rules}


class _Strict:
    """Keeps the strictest of many limits at hand."""

    def __init__(self, sent_to: frozenset[str]) -> None:
        self._sent_to = sent_to
        self._count = 0
        self._rates: list[float] = []
        self._of_bytes: list[tuple[float, float]] = []

    def copy(self) -> "_Strict":
        other = _Strict(self._sent_to)
        other._count, other._rates, other._of_bytes = self._count, self._rates.copy(), self._of_bytes.copy()
        return other

    def add(self, rule: Rule) -> None:
        if is_strict(rule, self._sent_to):
            self._count += 1
            if rule.rate_per_s:
                insort(self._rates, rule.rate_per_s)
            if rule.bytes_per_s:
                insort(self._of_bytes, (rule.bytes_per_s, rule.bytes_burst_s))

    def remove(self, rule: Rule) -> None:
        if is_strict(rule, self._sent_to):
            self._count -= 1
            if rule.rate_per_s:
                _remove(self._rates, rule.rate_per_s)
            if rule.bytes_per_s:
                _remove(self._of_bytes, (rule.bytes_per_s, rule.bytes_burst_s))

    def strictest(self) -> Strictest | None:
        if not self._count:
            return None
        return Strictest(next(iter(self._rates), None), next(iter(self._of_bytes), None))


def laid_over(edit: Rule | None, rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield the rules of one name with an edit over them, the strongest first."""
    if edit is not None:
        yield edit
    for rule in rules:
        if edit is None or (edit.hours is not None and rule.hours != edit.hours):
            yield rule


def _is_in(rule: Rule, rules: Iterable[Rule]) -> bool:
    return any(each is rule for each in rules)


def _remove(numbers: list[T], number: T) -> None:
    del numbers[bisect_left(numbers, number)]
