"""Rule sets: the immutable collection of rules in force, and which of them holds for what.

Of the rules for *each* name the most specific wins: the exact name, then the pattern with most literal
characters or the longest prefix (of equals one with hours, then the one written first), then the kind's default,
which is the rule with the pattern ``*``. A kind without a default is unlimited. Shared rules, which limit *all*
names that they match together, are matched in the same way among themselves: so one rule for each and one total
can hold for the same name.

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
from limiter.rule import Dimension, Rule, RuleKey
from limiter.schedule import Hours

_MAX_REMEMBERED: Final = 65_536
"""Names whose rule each rule set remembers; they come from clients."""


def layer_rules(*sources: Iterable[Rule]) -> tuple[Rule, ...]:
    """Lay sources of rules over each other, weakest first: of one kind and pattern the last source's rule stays.

    A rule without hours replaces those of weaker sources with hours, too; one with hours only its like, so that
    the weaker source's rule holds at other times. The result has the strongest source's rules first, so that of two
    equally literal patterns the stronger source's one wins, and within a source the one written first.

    Raises:
        RuleError: two rules of one source share kind, pattern and hours.
    """
    layered: dict[RuleKey, Rule] = {}
    for rules in reversed(sources):
        stronger = frozenset(layered)
        for key, rule in _by_key(rules).items():
            always = rule.key._replace(hours=None)
            if not stronger & {key, always}:
                layered[key] = rule
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
    _matched: dict[Resource, Rule] = field(init=False, repr=False)
    _matched_totals: dict[Resource, Rule | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _by_key(self.rules)
        # Of two rules for one pattern the one with hours comes first, and so wins.
        moment = self.moment
        now = {hours for hours in self._schedules() if moment is not None and hours.holds(moment)}
        held = [rule for rule in self.rules if rule.hours in now]
        held += [rule for rule in self.rules if rule.hours is None]
        each = _matchers(rule for rule in held if not rule.shared)
        totals = _matchers(rule for rule in held if rule.shared)
        exact = {Resource(kind, name): rule for kind, matcher in each.items() for name, rule in matcher.exact.items()}
        for matcher in totals.values():
            exact |= {Resource(TOTAL, rule.target): rule for rule in matcher.in_order()}
        limited = frozenset(rule.kind for rule in held if rule.limits and self.enabled)
        self._derive("in_force", tuple(held))
        self._derive("scopes", limited & frozenset(SCOPES))
        self._derive("_each", each)
        self._derive("_totals", totals)
        self._derive("_exact", exact)
        self._derive("_limited", limited)
        self._derive("_matched", {})
        self._derive("_matched_totals", {})

    def _derive(self, attribute: str, value: object) -> None:
        object.__setattr__(self, attribute, value)

    def _schedules(self) -> set[Hours]:
        """Return the different hours of the rules: many rules have the same ones."""
        return {rule.hours for rule in self.rules if rule.hours is not None}

    def match(self, resource: Resource) -> Rule:
        """Return the one rule for each that holds for a resource, limiting or not, whatever the global switch says.

        Of a resource of kind ``total``, return the shared rule of that name.
        """
        rule = self._matched.get(resource)
        if rule is None:
            rule = self._exact.get(resource) or self._found(resource) or _unlimited(resource)
            if len(self._matched) >= _MAX_REMEMBERED:
                self._matched.clear()
            self._matched[resource] = rule
        return rule

    def _found(self, resource: Resource) -> Rule | None:
        matcher = self._each.get(resource.kind)
        return matcher.match(resource.name) if matcher is not None else None

    def match_total(self, resource: Resource) -> Rule | None:
        """Return the shared rule that a resource falls under, or None."""
        matcher = self._totals.get(resource.kind)
        if matcher is None:
            return None
        try:
            return self._matched_totals[resource]
        except KeyError:
            rule = matcher.match(resource.name)
        if len(self._matched_totals) >= _MAX_REMEMBERED:
            self._matched_totals.clear()
        self._matched_totals[resource] = rule
        return rule

    def limit(self, resource: Resource, dimension: Dimension = "messages") -> Rule | None:
        """Return what limits one dimension of a resource, or None: unlimited, off, or all switched off."""
        return self.match(resource).part(dimension) if self.enabled else None

    def limits_kind(self, kind: str) -> bool:
        """Say whether any rule that holds now limits something of this kind."""
        return kind in self._limited

    def default(self, kind: str) -> Rule:
        """Return the kind's default: the rule ``KIND:*``, or else an unlimited one."""
        matcher = self._each.get(kind)
        return (matcher.default if matcher is not None else None) or _unlimited_kind(kind)

    @property
    def exact_resources(self) -> KeysView[Resource]:
        """The resources that have a rule of their own, totals included."""
        return self._exact.keys()

    @property
    def tried(self) -> tuple[Rule, ...]:
        """The rules as they are tried: exact names, then patterns, then defaults, then totals; for people to read."""
        exact = [rule for matcher in self._each.values() for rule in matcher.exact.values()]
        rest = [rule for matcher in self._each.values() for rule in matcher.in_order() if rule.exact_name is None]
        defaults = [rule for rule in rest if rule.pattern == DEFAULT_PATTERN]
        patterns = [rule for rule in rest if rule.pattern != DEFAULT_PATTERN]
        totals = [rule for matcher in self._totals.values() for rule in matcher.in_order()]
        return (*exact, *patterns, *defaults, *totals)

    @property
    def untried(self) -> tuple[Rule, ...]:
        """The rules that hold for nothing now: it is not their hour, or another one of the same pattern has it."""
        tried = {rule.key for rule in self.tried}
        return tuple(rule for rule in self.rules if rule.key not in tried)

    @property
    def in_match_order(self) -> tuple[Rule, ...]:
        """All rules: as they are tried, and last those that hold for nothing now; for people to read."""
        return (*self.tried, *self.untried)

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
        changes = (hours.next_change(after) for hours in self._schedules())
        return min((change for change in changes if change is not None), default=None)


def _matchers(rules: Iterable[Rule]) -> dict[str, Matcher[Rule]]:
    """Return what finds one of the rules, by their kind."""
    by_kind: dict[str, list[Rule]] = {}
    for rule in rules:
        by_kind.setdefault(rule.kind, []).append(rule)
    return {kind: Matcher((rule.matches, rule) for rule in of_kind) for kind, of_kind in by_kind.items()}


def _by_key(rules: Iterable[Rule]) -> dict[RuleKey, Rule]:
    by_key: dict[RuleKey, Rule] = {}
    for rule in rules:
        other = by_key.setdefault(rule.key, rule)
        if other is not rule:
            raise RuleError(
                f"{rule.source}: a second rule for {rule.name}: {rule}, besides {other} ({other.source})",
                "one rule for each kind, pattern and schedule; delete one of them",
            )
    return by_key


def _unlimited(resource: Resource) -> Rule:
    """Return the rule for what no rule matches; the name of a total that is gone begins with the kind it limited."""
    return _unlimited_kind(resource.name.partition(":")[0] if resource.kind == TOTAL else resource.kind)


@lru_cache(maxsize=64)
def _unlimited_kind(kind: str) -> Rule:
    return Rule(kind, DEFAULT_PATTERN, None)
