"""Rule sets: the immutable collection of rules in force, and which of them holds for what.

Of the rules for *each* name the most specific wins: the exact name, then the pattern with most literal
characters or the longest prefix (of equals the one written first), then the kind's default, which is the rule
with the pattern ``*``. A kind without a default is unlimited. Shared rules, which limit *all* names that they
match together, are matched in the same way among themselves: so one rule for each and one total can hold for the
same name.

A rule with hours takes part only while it holds; then it wins over one of the same pattern without. ``at`` makes
the rule set of one moment. Where rules come from (files, flags, the API) is the business of who builds them.
"""

from collections.abc import Iterable, KeysView
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from limiter.errors import RuleError
from limiter.patterns import DEFAULT_PATTERN, Matcher
from limiter.resource import SCOPES, TOTAL, Resource
from limiter.rule import Dimension, Rule

_MAX_REMEMBERED: Final = 65_536
"""Matches remembered by each rule set; names come from clients."""


def layer_rules(*sources: Iterable[Rule]) -> tuple[Rule, ...]:
    """Lay sources of rules over each other, weakest first: of one kind and pattern the last source's rule stays.

    The result has the strongest source's rules first, so that of two equally literal patterns the stronger
    source's one wins, and within a source the one written first.

    Raises:
        RuleError: two rules of one source share kind and pattern.
    """
    layered: dict[object, Rule] = {}
    for rules in reversed(sources):
        for key, rule in _by_key(rules).items():
            layered.setdefault(key, rule)
    return tuple(layered.values())


@dataclass(frozen=True, slots=True, eq=False)
class RuleSet:
    """All rules at one moment. It never changes; ``replace`` and ``at`` make others.

    Attributes:
        rules: the rules, in the order they were written.
        enabled: the global switch; False limits nothing.
        version: counts up with every ``replace``.
        moment: for rules with hours, the moment at which they are looked at; None leaves them all out.
        in_force: the rules that take part now, first those with hours.
        scopes: the kinds of scopes that some rule limits now.

    Raises:
        RuleError: two rules share kind, pattern and hours.
    """

    rules: tuple[Rule, ...] = ()
    enabled: bool = True
    version: int = 1
    moment: datetime | None = None
    in_force: tuple[Rule, ...] = field(init=False, repr=False)
    scopes: frozenset[str] = field(init=False)
    _each: dict[str, Matcher[Rule]] = field(init=False, repr=False)
    _totals: dict[str, Matcher[Rule]] = field(init=False, repr=False)
    _exact: dict[Resource, Rule] = field(init=False, repr=False)
    _limited: frozenset[str] = field(init=False, repr=False)
    _remembered: dict[Resource, Rule] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _by_key(self.rules)
        # Stable: of two rules for one pattern the one with hours comes first, and so wins.
        held = sorted((rule for rule in self.rules if self._holds(rule)), key=lambda rule: rule.hours is None)
        kinds = {rule.kind for rule in held}
        each, totals = (
            {
                kind: Matcher((rule.matches, rule) for rule in held if rule.kind == kind and rule.shared is shared)
                for kind in kinds
            }
            for shared in (False, True)
        )
        exact = {Resource(kind, name): rule for kind, matcher in each.items() for name, rule in matcher.exact.items()}
        for matcher in totals.values():
            exact |= {Resource(TOTAL, rule.target): rule for rule in matcher.in_order()}
        limited = {rule.kind for rule in held if rule.limits} if self.enabled else set()
        object.__setattr__(self, "in_force", tuple(held))
        object.__setattr__(self, "scopes", frozenset(limited & set(SCOPES)))
        object.__setattr__(self, "_each", each)
        object.__setattr__(self, "_totals", totals)
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_limited", frozenset(limited))
        object.__setattr__(self, "_remembered", {})

    def _holds(self, rule: Rule) -> bool:
        return rule.hours is None or (self.moment is not None and rule.hours.holds(self.moment))

    def match(self, resource: Resource) -> Rule:
        """Return the one rule for each that holds for a resource, limiting or not, whatever the global switch says.

        Of a resource of kind ``total``, return the shared rule of that name.
        """
        rule = self._exact.get(resource) or self._remembered.get(resource)
        if rule is not None:
            return rule
        matcher = self._each.get(resource.kind)
        rule = (matcher and matcher.match(resource.name)) or _unlimited(resource.kind)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[resource] = rule
        return rule

    def match_total(self, resource: Resource) -> Rule | None:
        """Return the shared rule that a resource falls under, or None."""
        matcher = self._totals.get(resource.kind)
        return matcher.match(resource.name) if matcher is not None else None

    def limit(self, resource: Resource, dimension: Dimension = "messages") -> Rule | None:
        """Return what limits one dimension of a resource, or None: unlimited, off, or all switched off."""
        return self.match(resource).part(dimension) if self.enabled else None

    def limits_kind(self, kind: str) -> bool:
        """Say whether any rule that holds now limits something of this kind."""
        return kind in self._limited

    def default(self, kind: str) -> Rule:
        """Return the kind's default: the rule ``KIND:*``, or else an unlimited one."""
        matcher = self._each.get(kind)
        return (matcher.default if matcher is not None else None) or _unlimited(kind)

    @property
    def exact_resources(self) -> KeysView[Resource]:
        """The resources that have a rule of their own, totals included."""
        return self._exact.keys()

    @property
    def in_match_order(self) -> tuple[Rule, ...]:
        """The rules as they are tried: exact names, then patterns, then defaults, then totals; for people to read.

        Those whose hours are not now come last.
        """
        exact = [rule for matcher in self._each.values() for rule in matcher.exact.values()]
        rest = [rule for matcher in self._each.values() for rule in matcher.in_order() if rule.exact_name is None]
        defaults = [rule for rule in rest if rule.pattern == DEFAULT_PATTERN]
        patterns = [rule for rule in rest if rule.pattern != DEFAULT_PATTERN]
        totals = [rule for matcher in self._totals.values() for rule in matcher.in_order()]
        shown = (*exact, *patterns, *defaults, *totals)
        return (*shown, *(rule for rule in self.rules if all(rule is not other for other in shown)))

    def replace(self, *, rules: Iterable[Rule] | None = None, enabled: bool | None = None) -> "RuleSet":
        """Return the next version, with other rules or the global switch changed.

        Raises:
            RuleError: two of the rules share kind, pattern and hours.
        """
        return RuleSet(
            rules=self.rules if rules is None else tuple(rules),
            enabled=self.enabled if enabled is None else enabled,
            version=self.version + 1,
            moment=self.moment,
        )

    def at(self, moment: datetime) -> "RuleSet":
        """Return the same version as it holds at a moment, which knows its time zone."""
        if all(rule.hours is None for rule in self.rules):
            return self
        return RuleSet(self.rules, self.enabled, self.version, moment)

    def next_change(self, after: datetime) -> datetime | None:
        """Return the next moment at which some rule begins or ceases to hold, in UTC; None if none ever does."""
        changes = (rule.hours.next_change(after) for rule in self.rules if rule.hours is not None)
        return min((change for change in changes if change is not None), default=None)


def _by_key(rules: Iterable[Rule]) -> dict[object, Rule]:
    by_key: dict[object, Rule] = {}
    for rule in rules:
        other = by_key.setdefault(rule.key, rule)
        if other is not rule:
            raise RuleError(
                f"two rules for {rule.name}: {other} ({other.source}) and {rule} ({rule.source})",
                "one rule for each kind, pattern and schedule; delete one of them",
            )
    return by_key


@lru_cache(maxsize=64)
def _unlimited(kind: str) -> Rule:
    return Rule(kind, DEFAULT_PATTERN, None)
