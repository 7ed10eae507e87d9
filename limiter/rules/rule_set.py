"""A rule set finds the rules that apply to a resource.

The most specific rule wins (see ``patterns``). Among equally specific rules, a scheduled one wins, or else the first.
Shared rules, which limit *all* matching names together, are matched separately, so a name's rule and a total can both
apply.
"""

from collections.abc import Iterable
from copy import copy
from datetime import datetime
from functools import lru_cache

from limiter.rules.errors import RuleError
from limiter.rules.patterns import DEFAULT_PATTERN, Matcher
from limiter.rules.resource import SCOPES, TOTAL, Resource
from limiter.rules.rule import Dimension, Rule, RuleKey

# ruff: noqa: SLF001 - rule sets made from each other share unchanged parts


class _Patterns:
    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.each = _matchers(rule for rule in self.rules if not rule.shared)
        self.totals = _matchers(rule for rule in self.rules if rule.shared)
        self.exact = {
            Resource(kind, name): rule for kind, matcher in self.each.items() for name, rule in matcher.exact.items()
        }
        for matcher in self.totals.values():
            self.exact |= {Resource(TOTAL, rule.target): rule for rule in matcher.in_order()}


def _matchers(rules: Iterable[Rule]) -> dict[str, Matcher[Rule]]:
    by_kind: dict[str, list[Rule]] = {}
    for rule in rules:
        by_kind.setdefault(rule.kind, []).append(rule)
    return {kind: Matcher((rule.matches, rule) for rule in of_kind) for kind, of_kind in by_kind.items()}


def layer_rules(*sources: Iterable[Rule]) -> tuple[Rule, ...]:
    """Merge sources of rules, given from lowest to highest precedence.

    If rules have the same kind, pattern and hours, the last source wins. A rule without hours also replaces scheduled
    rules from earlier sources. In the result, rules from the last source come first.

    Raises:
        RuleError: two rules in one source have the same kind, pattern and hours.
    """
    layered: dict[RuleKey, Rule] = {}
    for rules in reversed(sources):
        stronger = frozenset(layered)
        for key, rule in by_key(rules).items():
            always = rule.key._replace(hours=None)
            if not stronger & {key, always}:
                layered[key] = rule
    return tuple(layered.values())


def by_key(rules: Iterable[Rule]) -> dict[RuleKey, Rule]:
    found: dict[RuleKey, Rule] = {}
    for rule in rules:
        other = found.setdefault(rule.key, rule)
        if other is not rule:
            raise RuleError(
                f"{rule.source}: duplicate rule for {rule.name}: {rule}; the other is {other} ({other.source})",
                "one rule for each kind, pattern and schedule; remove one of them",
            )
    return found


class RuleSet:
    """An immutable set of rules. ``replace``, ``edited`` and ``at`` return new rule sets.

    ``moment`` determines which scheduled rules apply. Kinds in ``off_kinds`` are not limited, not even by totals.

    Raises:
        RuleError: two rules have the same kind, pattern and hours.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        enabled: bool = True,  # noqa: FBT001, FBT002 - always passed by name
        version: int = 1,
        moment: datetime | None = None,
        off_kinds: Iterable[str] = (),
    ) -> None:
        self._written = by_key(rules)
        # Edits to ``_written``, oldest first. None means that the rule was removed.
        self._edits: dict[RuleKey, Rule | None] = {}
        self._plain = {_resource(key): rule for key, rule in self._written.items() if _is_plain(key)}
        self.enabled = enabled
        self.version = version
        self.off_kinds = frozenset(off_kinds)
        self.moment = moment
        self._find_others()

    def _find_others(self) -> None:
        self._others = tuple(rule for rule in self.rules if not _is_plain(rule.key))
        self._schedules = frozenset(rule.hours for rule in self._others if rule.hours is not None)
        self._find_patterns()

    def _find_patterns(self) -> None:
        moment = self.moment
        self._now = frozenset(hours for hours in self._schedules if moment is not None and hours.holds(moment))
        with_hours = (rule for rule in self._others if rule.hours in self._now)
        always = (rule for rule in self._others if rule.hours is None)
        self._patterns = _Patterns((*with_hours, *always))
        self._find_own()

    def _find_own(self) -> None:
        self._own = self._plain | self._patterns.exact if self._patterns.exact else self._plain
        self._limited: frozenset[str] | None = None
        self._after_consume: bool | None = None

    def __repr__(self) -> str:
        off_kinds, rules = set(self.off_kinds), len(self.rules)
        return f"RuleSet(version={self.version}, enabled={self.enabled}, off_kinds={off_kinds}, {rules} rules)"

    @property
    def scopes(self) -> frozenset[str]:
        return self.limited_kinds & frozenset(SCOPES)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, including inactive ones. Edited rules come first, starting with the latest edit."""
        edits = self._edits
        edited = [rule for rule in reversed(edits.values()) if rule is not None]
        return (*edited, *(rule for key, rule in self._written.items() if key not in edits))

    @property
    def in_force(self) -> tuple[Rule, ...]:
        """The rules that apply now. Scheduled rules come first, and rules for exact names come last."""
        return (*self._patterns.rules, *self._plain.values())

    @property
    def has_hours(self) -> bool:
        return bool(self._schedules)

    @property
    def with_hours(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self._others if rule.hours is not None)

    def holds(self, rule: Rule) -> bool:
        return rule.hours is None or rule.hours in self._now

    def rule(self, key: RuleKey) -> Rule | None:
        return self._edits[key] if key in self._edits else self._written.get(key)

    def match(self, resource: Resource) -> Rule:
        """Return the rule that matches a resource, even if limits are switched off."""
        rule = self._own.get(resource)
        if rule is None:
            matcher = self._patterns.each.get(resource.kind)
            rule = None if matcher is None else matcher.match(resource.name)
        return rule or _unlimited(limited_kind(resource))

    def match_total(self, resource: Resource) -> Rule | None:
        matcher = self._patterns.totals.get(resource.kind)
        return None if matcher is None else matcher.match(resource.name)

    def limit(self, resource: Resource, dimension: Dimension = "messages") -> Rule | None:
        """Return the rule that currently limits a resource, or None if the resource is unlimited."""
        return self.match(resource).part(dimension) if self.limiting(resource) else None

    def limits_otherwise(self, resource: Resource, dimension: Dimension) -> bool:
        """Return whether another limit may apply to requests for a resource.

        For a name, this is a total. For a total, it is any limit on its kind.
        """
        if not self.limiting(resource):
            return False
        if resource.kind == TOTAL:
            return self.limits_kind(limited_kind(resource))
        total = self.match_total(resource)
        return total is not None and total.part(dimension) is not None

    def limiting(self, resource: Resource) -> bool:
        return self.enabled and (not self.off_kinds or limited_kind(resource) not in self.off_kinds)

    def limits_kind(self, kind: str) -> bool:
        return kind in self.limited_kinds

    @property
    def limited_kinds(self) -> frozenset[str]:
        if self._limited is None:
            self._limited = frozenset(rule.kind for rule in self.in_force if rule.limits) - self.off_kinds
        return self._limited if self.enabled else frozenset()

    @property
    def confirms_after_consume(self) -> bool:
        if self._after_consume is None:
            kinds = {rule.kind for rule in self.in_force if rule.confirms_after_consume}
            self._after_consume = not kinds <= self.off_kinds
        return self._after_consume and self.enabled

    def ends(self, kind: str) -> tuple[tuple[str, str], ...] | None:
        """Return ``Matcher.ends`` of a kind's patterns, or None if the kind has totals."""
        matcher = self._patterns.each.get(kind)
        return None if kind in self._patterns.totals else () if matcher is None else matcher.ends

    def default(self, kind: str) -> Rule:
        matcher = self._patterns.each.get(kind)
        return (matcher.default if matcher is not None else None) or _unlimited(kind)

    def pattern_rule(self, bare_name: str) -> Rule | None:
        return next((rule for rule in self._patterns.rules if rule.bare_name == bare_name), None)

    @property
    def own(self) -> dict[Resource, Rule]:
        """Names and totals that currently have a rule of their own. Do not modify the dict."""
        return self._own

    def has_own(self, resource: Resource) -> bool:
        return resource in self._own

    def own_since(self, old: "RuleSet") -> dict[Resource, bool]:
        """Return the resources that have gained (True) or lost (False) a rule of their own since ``old``."""
        return {resource: resource in self._own for resource in self._own.keys() ^ old._own.keys()}

    @property
    def tried(self) -> tuple[Rule, ...]:
        exact = [rule for resource, rule in self._own.items() if resource.kind != TOTAL]
        matchers = self._patterns.each.values()
        rest = [rule for matcher in matchers for rule in matcher.in_order() if rule.exact_name is None]
        defaults = [rule for rule in rest if rule.pattern == DEFAULT_PATTERN]
        patterns = [rule for rule in rest if rule.pattern != DEFAULT_PATTERN]
        totals = [rule for matcher in self._patterns.totals.values() for rule in matcher.in_order()]
        return (*exact, *patterns, *defaults, *totals)

    @property
    def untried(self) -> tuple[Rule, ...]:
        tried = {rule.key for rule in self.tried}
        return tuple(rule for rule in self.rules if rule.key not in tried)

    def replace(
        self,
        *,
        rules: Iterable[Rule] | None = None,
        enabled: bool | None = None,
        off_kinds: Iterable[str] | None = None,
    ) -> "RuleSet":
        """Return the next version of the rule set, with the given parts replaced.

        Raises:
            RuleError: two rules have the same kind, pattern and hours.
        """
        other = self.edited(enabled=enabled, off_kinds=off_kinds)
        return (
            other
            if rules is None
            else RuleSet(rules, other.enabled, other.version, self.moment, off_kinds=other.off_kinds)
        )

    def edited(
        self,
        put: Iterable[Rule] = (),
        drop: Iterable[RuleKey] = (),
        *,
        enabled: bool | None = None,
        off_kinds: Iterable[str] | None = None,
    ) -> "RuleSet":
        """Return the next version of the rule set, without the rules in ``drop`` and with those in ``put``.

        The rules in ``put`` replace rules with the same key. Added rules come first, starting with the latest. An
        original rule that is added again returns to its old place.

        Raises:
            RuleError: two of the added rules have the same kind, pattern and hours.
        """
        other = copy(self)
        other.version += 1
        if enabled is not None:
            other.enabled = enabled
        if off_kinds is not None:
            other.off_kinds = frozenset(off_kinds)
        found = by_key(put)
        changed: dict[RuleKey, Rule | None] = {key: None for key in drop if key not in found} | found
        other._edits, other._plain = self._edits.copy(), self._plain.copy()
        for key, rule in changed.items():
            other._edits.pop(key, None)
            if rule is not self._written.get(key):
                other._edits[key] = rule
            if not _is_plain(key):
                continue
            if rule is None:
                other._plain.pop(_resource(key), None)
            else:
                other._plain[_resource(key)] = rule
        if all(map(_is_plain, changed)):
            other._find_own()
        else:
            other._find_others()
        return other

    def at(self, moment: datetime) -> "RuleSet":
        """Return the rule set as it applies at ``moment``, which must have a time zone."""
        if not self._schedules:
            return self
        other = copy(self)
        other.moment = moment
        other._find_patterns()
        return other

    def next_change(self, after: datetime) -> datetime | None:
        """Return the UTC time at which a rule will next start or stop applying, or None if no rule will."""
        changes = (hours.next_change(after) for hours in self._schedules)
        return min((change for change in changes if change is not None), default=None)


def _is_plain(key: RuleKey) -> bool:
    return key.exact and key.hours is None and not key.shared


def _resource(key: RuleKey) -> Resource:
    return Resource(key.kind, key.pattern)


def limited_kind(resource: Resource) -> str:
    return resource.name.partition(":")[0] if resource.kind == TOTAL else resource.kind


@lru_cache(maxsize=64)
def _unlimited(kind: str) -> Rule:
    return Rule(kind, DEFAULT_PATTERN, None)
