"""Rule sets: the immutable collection of rules in force, and which of them holds for what.

Of the rules for *each* name the most specific wins: the exact name, then the pattern with most literal
characters or the longest prefix (of equals one with hours, then the one written first), then the kind's default,
which is the rule with the pattern ``*``. A kind without a default is unlimited. Shared rules, which limit *all*
names that they match together, are matched in the same way among themselves: so one rule for each and one total
can hold for the same name.

A rule with hours takes part only while it holds; then it wins over one of the same pattern without. ``at`` makes
the rule set of one moment. Where rules come from (files, flags, the API) is the business of who builds them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from limiter.rules.errors import RuleError
from limiter.rules.patterns import DEFAULT_PATTERN, Matcher
from limiter.rules.resource import SCOPES, TOTAL, Resource
from limiter.rules.rule import Dimension, Rule, RuleKey
from limiter.rules.schedule import Hours

# ruff: noqa: SLF001 - sets and maps of one lineage share what they are made of


K = TypeVar("K")
V = TypeVar("V")

MOST_CHANGES: Final = 256
"""Changes kept apart: copied with each edit, while all is copied only once in so many."""


# A mapping that never changes, and of which one with a few changes is made without copying all of it.
#
# Thousands of rules stay when one is edited, many times a second. So a map is a large dictionary, which it shares
# with the maps that it came from, and a small one of what is different from that; when the small one has grown, both
# become a large one again.
class SharedMap(Generic[K, V]):
    """A mapping that never changes; None is no value.

    Args:
        items: what is in it; taken over, and not to be changed any more.
    """

    __slots__ = ("_changes", "_length", "_shared")

    def __init__(self, items: dict[K, V]) -> None:
        self._shared = items
        #: None is what is there no more.
        self._changes: dict[K, V | None] = {}
        self._length = len(items)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        changes = self._changes
        if changes and key in changes:
            return changes[key]
        return self._shared.get(key)

    def __contains__(self, key: K) -> bool:
        """Say whether there is such a key."""
        return self.get(key) is not None

    def __len__(self) -> int:
        """Return how many keys there are."""
        return self._length

    def __iter__(self) -> Iterator[K]:
        """Yield all keys."""
        return (key for key, _ in self.items())

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield all keys with their values; the changed ones last."""
        changes = self._changes
        yield from (
            (item for item in self._shared.items() if item[0] not in changes) if changes else self._shared.items()
        )
        for key, value in changes.items():
            if value is not None:
                yield key, value

    def edited(self, put: dict[K, V], drop: Iterable[K] = ()) -> "SharedMap[K, V]":
        """Return a map with other values for some keys, and without others; what is put is not dropped."""
        changes: dict[K, V | None] = self._changes | dict.fromkeys(drop) | put
        other: SharedMap[K, V] = SharedMap(self._shared)
        other._changes = changes
        other._length = self._length
        for key, value in changes.items():
            other._length += (value is not None) - (self.get(key) is not None)
        return SharedMap(dict(other.items())) if len(changes) > MOST_CHANGES else other

    def differing(self, other: "SharedMap[K, V]") -> Iterator[K]:
        """Yield the keys whose values are not the very same in another map; quickly, if it shares most of them."""
        alike = self._shared is other._shared
        keys = self._changes.keys() | other._changes.keys() if alike else {*self, *other}
        return (key for key in keys if self.get(key) is not other.get(key))


Rank = int
"""Where a rule stands among all; what comes first has the smallest."""

_MOMENTS: Final = 2
"""Answers remembered: each edit is made of the rules at no moment, and then put in force at one."""


# The rules of a set that are more than one name's at all times: those with patterns, totals, those with hours.
#
# They are few where exact names may be many, so what finds them is made anew when one of them changes or the clock
# switches, and only then.
class RulesInForce:
    """Those of them that hold at the same time, and what finds them.

    Attributes:
        rules: in order, first those with hours.
        each: finds a pattern's rule for each name, by kind.
        totals: finds the shared rule that a name falls under, by kind.
        exact: rules of exact names that hold by their hours, and the shared ones under the names of their totals.
        limiting: the kinds that any of them limits.
    """

    __slots__ = ("each", "exact", "limiting", "rules", "totals")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.each = _matchers(rule for rule in self.rules if not rule.shared)
        self.totals = _matchers(rule for rule in self.rules if rule.shared)
        self.exact = {
            Resource(kind, name): rule for kind, matcher in self.each.items() for name, rule in matcher.exact.items()
        }
        for matcher in self.totals.values():
            self.exact |= {Resource(TOTAL, rule.target): rule for rule in matcher.in_order()}
        self.limiting = frozenset(rule.kind for rule in self.rules if rule.limits)

    def named(self, bare_name: str) -> Rule | None:
        """Return the rule with a pattern for each name that has this bare name and wins over others that have."""
        return next((rule for rule in self.rules if rule.bare_name == bare_name), None)


class OtherRules:
    """All of them, holding now or not. They never change.

    Args:
        placed: the rules, each with its place.

    Attributes:
        placed: as given.
        schedules: the different hours that they have.
    """

    __slots__ = ("_in_force", "placed", "schedules")

    def __init__(self, placed: dict[RuleKey, tuple[Rank, Rule]]) -> None:
        self.placed = placed
        self.schedules = frozenset(rule.hours for _, rule in placed.values() if rule.hours is not None)
        self._in_force: dict[frozenset[Hours], RulesInForce] = {}

    def edited(self, put: dict[RuleKey, tuple[Rank, Rule]], drop: Iterable[RuleKey]) -> "OtherRules":
        """Return them with some put in and others dropped; themselves, if nothing changes."""
        dropped = {key for key in drop if key in self.placed and key not in put}
        if not put and not dropped:
            return self
        return OtherRules({key: placed for key, placed in (self.placed | put).items() if key not in dropped})

    def in_force(self, now: frozenset[Hours]) -> RulesInForce:
        """Return those without hours, and those with the hours given; the last few answers are remembered."""
        in_force = self._in_force.get(now)
        if in_force is None:
            # Of two rules for one pattern the one with hours comes first, and so wins.
            ordered = list(self.in_order())
            held = [rule for rule in ordered if rule.hours in now]
            held += [rule for rule in ordered if rule.hours is None]
            if len(self._in_force) >= _MOMENTS:
                self._in_force.clear()
            in_force = self._in_force[now] = RulesInForce(held)
        return in_force

    def in_order(self) -> Iterator[Rule]:
        """Yield them as they are placed."""
        return (rule for _, rule in sorted(self.placed.values(), key=itemgetter(0)))


def _matchers(rules: Iterable[Rule]) -> dict[str, Matcher[Rule]]:
    """Return what finds one of the rules, by their kind."""
    by_kind: dict[str, list[Rule]] = {}
    for rule in rules:
        by_kind.setdefault(rule.kind, []).append(rule)
    return {kind: Matcher((rule.matches, rule) for rule in of_kind) for kind, of_kind in by_kind.items()}


class Changes(NamedTuple):
    """What holds otherwise under one rule set than under another.

    Attributes:
        switched: limiting was switched, of some kind or all; or the order of the patterns is another.
        exact: what has another rule of its own, has one now, or has none any more; totals included.
        patterns: the rules with patterns for each name that hold now and did not, or did and do not any more.
        totals: whether other names fall under totals, or under other ones.
    """

    switched: bool
    exact: frozenset[Resource]
    patterns: tuple[Rule, ...]
    totals: bool

    @property
    def only_exact(self) -> bool:
        """Whether nothing but exact names' own rules changed."""
        return not (self.switched or self.patterns or self.totals)


def changes_between(old: RulesInForce, new: RulesInForce) -> Changes:
    """Return what differs between the rules that are more than one name's at all times."""
    if new is old:
        return Changes(switched=False, exact=frozenset(), patterns=(), totals=False)
    keys = new.exact.keys() | old.exact.keys()
    exact = frozenset(key for key in keys if new.exact.get(key) is not old.exact.get(key))
    before, after = _patterns(old), _patterns(new)
    known, stay = {id(rule) for rule in before}, {id(rule) for rule in after}
    came = [rule for rule in after if id(rule) not in known]
    went = [rule for rule in before if id(rule) not in stay]
    kept = [rule for rule in before if id(rule) in stay], [rule for rule in after if id(rule) in known]
    reordered = any(one is not other for one, other in zip(*kept, strict=True))
    return Changes(reordered, exact, (*came, *went), _totals(old) != _totals(new))


def _patterns(in_force: RulesInForce) -> list[Rule]:
    """Return the rules with patterns for each name."""
    return [rule for rule in in_force.rules if not rule.shared and rule.exact_name is None]


def _totals(in_force: RulesInForce) -> list[int]:
    """Return which rules are shared, in order."""
    return [id(rule) for rule in in_force.rules if rule.shared]


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
        for key, rule in by_key(rules).items():
            always = rule.key._replace(hours=None)
            if not stronger & {key, always}:
                layered[key] = rule
    return tuple(layered.values())


def by_key(rules: Iterable[Rule]) -> dict[RuleKey, Rule]:
    """Return rules by their keys, in their order.

    Raises:
        RuleError: two of them share kind, pattern and hours.
    """
    found: dict[RuleKey, Rule] = {}
    for rule in rules:
        other = found.setdefault(rule.key, rule)
        if other is not rule:
            raise RuleError(
                f"{rule.source}: a second rule for {rule.name}: {rule}, besides {other} ({other.source})",
                "one rule for each kind, pattern and schedule; delete one of them",
            )
    return found


# ruff: noqa: SLF001 - sets and maps of one lineage share what they are made of


_MAX_REMEMBERED: Final = 65_536
"""Names whose rule each rule set remembers; they come from clients."""


class RuleSet:
    """All rules at one moment. It never changes; ``replace``, ``edited`` and ``at`` make others.

    Sets that come from each other share what did not change, so that an edit takes as long with thousands of rules
    as with ten.

    Args:
        rules: the rules, in the order they were written.
        enabled: the global switch; False limits nothing.
        version: counts up with every ``replace`` and ``edited``.
        moment: for rules with hours, the moment at which they are looked at; None leaves them all out.
        off_kinds: kinds whose limiting is switched off. A total belongs to the kind that it limits.

    Raises:
        RuleError: two rules share kind, pattern and hours.
    """

    __slots__ = (
        "_enabled",
        "_exact",
        "_first_place",
        "_in_force",
        "_limited",
        "_limiting_exact",
        "_matched",
        "_matched_totals",
        "_moment",
        "_now",
        "_off_kinds",
        "_others",
        "_rules",
        "_scopes",
        "_version",
        "_written",
    )

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        enabled: bool = True,  # noqa: FBT001, FBT002 - by name everywhere
        version: int = 1,
        moment: datetime | None = None,
        off_kinds: Iterable[str] = (),
    ) -> None:
        self._write(tuple(rules))
        self._settle(enabled=enabled, version=version, moment=moment, off_kinds=frozenset(off_kinds))

    def _write(self, rules: tuple[Rule, ...]) -> None:
        found = by_key(rules)
        self._rules: tuple[Rule, ...] | None = rules
        #: The rules that were there before all edits, with their places.
        self._written = {key: (place, rule) for place, (key, rule) in enumerate(found.items())}
        self._first_place = 0
        exact = {_resource(key): rule for key, rule in found.items() if _is_plain(key)}
        self._exact: SharedMap[Resource, Rule] = SharedMap(exact)
        #: By kind, how many of the exact names' rules limit.
        self._limiting_exact = Counter(rule.kind for rule in exact.values() if rule.limits)
        self._others = OtherRules({key: placed for key, placed in self._written.items() if not _is_plain(key)})

    def _settle(self, *, enabled: bool, version: int, moment: datetime | None, off_kinds: frozenset[str]) -> None:
        self._enabled = enabled
        self._version = version
        self._moment = moment
        self._off_kinds = off_kinds
        self._now = frozenset(hours for hours in self._others.schedules if moment is not None and hours.holds(moment))
        self._in_force = self._others.in_force(self._now)
        limiting = self._in_force.limiting.union(kind for kind, count in self._limiting_exact.items() if count)
        self._limited = limiting - off_kinds if enabled else frozenset()
        self._scopes = self._limited & frozenset(SCOPES)
        self._matched: dict[Resource, Rule] = {}
        self._matched_totals: dict[Resource, Rule | None] = {}

    def __repr__(self) -> str:
        """Return what tells it from others."""
        rules, off_kinds = len(self._exact) + len(self._others.placed), set(self.off_kinds)
        return f"RuleSet(version={self.version}, enabled={self.enabled}, off_kinds={off_kinds}, {rules} rules)"

    @property
    def enabled(self) -> bool:
        """The global switch."""
        return self._enabled

    @property
    def version(self) -> int:
        """The number that counts up."""
        return self._version

    @property
    def moment(self) -> datetime | None:
        """The moment at which rules with hours are looked at."""
        return self._moment

    @property
    def off_kinds(self) -> frozenset[str]:
        """The kinds whose limiting is switched off."""
        return self._off_kinds

    @property
    def scopes(self) -> frozenset[str]:
        """The kinds of scopes that some rule limits now."""
        return self._scopes

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in the order they were written; those that were edited stand first. Takes its time, once."""
        if self._rules is None:
            written = self._written
            exact = [(written.get(rule.key), rule) for _, rule in self._exact.items()]
            edited = [rule for placed, rule in exact if placed is None or placed[1] is not rule]
            placed = [placed for placed, rule in exact if placed is not None and placed[1] is rule]
            placed += self._others.placed.values()
            self._rules = (*edited, *(rule for _, rule in sorted(placed, key=itemgetter(0))))
        return self._rules

    @property
    def in_force(self) -> tuple[Rule, ...]:
        """The rules that take part now: first those with hours, last those of exact names. Takes its time."""
        return (*self._in_force.rules, *(rule for _, rule in self._exact.items()))

    @property
    def has_hours(self) -> bool:
        """Whether some rule does not always hold."""
        return bool(self._others.schedules)

    @property
    def with_hours(self) -> tuple[Rule, ...]:
        """The rules that do not always hold."""
        rules = self._others.in_order() if self.has_hours else ()
        return tuple(rule for rule in rules if rule.hours is not None)

    def holds(self, rule: Rule) -> bool:
        """Say whether one of the rules holds now, as far as the hours go."""
        return rule.hours is None or rule.hours in self._now

    def rule(self, key: RuleKey) -> Rule | None:
        """Return the rule that was written for exactly this, in force or not."""
        if _is_plain(key):
            return self._exact.get(_resource(key))
        placed = self._others.placed.get(key)
        return None if placed is None else placed[1]

    def match(self, resource: Resource) -> Rule:
        """Return the one rule for each that holds for a resource, limiting or not, whatever the switches say.

        Of a resource of kind ``total``, return the shared rule of that name.
        """
        rule = self._matched.get(resource)
        if rule is None:
            rule = self.exact_rule(resource) or self._found(resource) or _unlimited(_limited_kind(resource))
            if len(self._matched) >= _MAX_REMEMBERED:
                self._matched.clear()
            self._matched[resource] = rule
        return rule

    def exact_rule(self, resource: Resource) -> Rule | None:
        """Return the rule that a resource has of its own and that holds now, totals included; None if it has none."""
        return self._in_force.exact.get(resource) or self._exact.get(resource)

    def _found(self, resource: Resource) -> Rule | None:
        matcher = self._in_force.each.get(resource.kind)
        return matcher.match(resource.name) if matcher is not None else None

    def match_total(self, resource: Resource) -> Rule | None:
        """Return the shared rule that a resource falls under, or None."""
        matcher = self._in_force.totals.get(resource.kind)
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
        """Return what limits one dimension of a resource, or None: unlimited, off, or switched off."""
        return self.match(resource).part(dimension) if self.limiting(resource) else None

    def limiting(self, resource: Resource) -> bool:
        """Say whether limiting is switched on for a resource; a total goes by the kind that it limits."""
        return self._enabled and (not self._off_kinds or _limited_kind(resource) not in self._off_kinds)

    def limits_kind(self, kind: str) -> bool:
        """Say whether any rule that holds now limits something of this kind."""
        return kind in self._limited

    def default(self, kind: str) -> Rule:
        """Return the kind's default: the rule ``KIND:*``, or else an unlimited one."""
        matcher = self._in_force.each.get(kind)
        return (matcher.default if matcher is not None else None) or _unlimited(kind)

    def pattern_rule(self, bare_name: str) -> Rule | None:
        """Return the rule that holds now for each name of a pattern, by its name without hours."""
        return self._in_force.named(bare_name)

    def has_own(self, resource: Resource) -> bool:
        """Say whether a resource has a rule of its own now, totals included."""
        return resource in self._in_force.exact or resource in self._exact

    @property
    def exact_resources(self) -> frozenset[Resource]:
        """The resources that have a rule of their own now, totals included. Takes its time; see ``has_own``."""
        return frozenset((*self._exact, *self._in_force.exact))

    @property
    def tried(self) -> tuple[Rule, ...]:
        """The rules as they are tried: exact names, then patterns, then defaults, then totals; for people to read."""
        by_hours = self._in_force.exact
        exact = [by_hours.get(resource, rule) for resource, rule in self._exact.items()]
        exact += [rule for name, rule in by_hours.items() if name.kind != TOTAL and name not in self._exact]
        matchers = self._in_force.each.values()
        rest = [rule for matcher in matchers for rule in matcher.in_order() if rule.exact_name is None]
        defaults = [rule for rule in rest if rule.pattern == DEFAULT_PATTERN]
        patterns = [rule for rule in rest if rule.pattern != DEFAULT_PATTERN]
        totals = [rule for matcher in self._in_force.totals.values() for rule in matcher.in_order()]
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

    def replace(
        self,
        *,
        rules: Iterable[Rule] | None = None,
        enabled: bool | None = None,
        off_kinds: Iterable[str] | None = None,
    ) -> "RuleSet":
        """Return the next version, with other rules or the switches changed.

        Raises:
            RuleError: two of the rules share kind, pattern and hours.
        """
        if rules is None:
            return self.edited(enabled=enabled, off_kinds=off_kinds)
        return RuleSet(
            rules,
            self.enabled if enabled is None else enabled,
            self.version + 1,
            self.moment,
            self.off_kinds if off_kinds is None else off_kinds,
        )

    def edited(
        self,
        put: Iterable[Rule] = (),
        drop: Iterable[RuleKey] = (),
        *,
        enabled: bool | None = None,
        off_kinds: Iterable[str] | None = None,
    ) -> "RuleSet":
        """Return the next version, with some rules more, others or fewer. Takes as long as the edits are many.

        Args:
            put: rules that replace those with the same keys. They stand before all others, the last one first; but a
                rule that was there before all edits, put in again, stands in its old place.
            drop: keys of rules that go, if they are there; what is put stays.
            enabled: the global switch.
            off_kinds: kinds whose limiting is switched off.

        Raises:
            RuleError: two of the rules put share kind, pattern and hours.
        """
        other = RuleSet.__new__(RuleSet)
        other._written = self._written
        other._first_place = self._first_place
        others: dict[RuleKey, tuple[Rank, Rule]] = {}
        exact: dict[Resource, Rule] = {}
        for key, rule in by_key(put).items():
            if _is_plain(key):
                exact[_resource(key)] = rule
                continue
            placed = self._written.get(key)
            if placed is None or placed[1] is not rule:
                other._first_place -= 1
                placed = (other._first_place, rule)
            others[key] = placed
        drop = list(drop)
        dropped = [_resource(key) for key in drop if _is_plain(key)]
        other._exact = self._exact.edited(exact, dropped) if exact or dropped else self._exact
        other._others = self._others.edited(others, drop)
        unchanged = other._exact is self._exact and other._others is self._others
        other._rules = self._rules if unchanged else None
        other._limiting_exact = Counter(self._limiting_exact)
        for resource in {*exact, *dropped}:
            before, after = self._exact.get(resource), other._exact.get(resource)
            other._limiting_exact[resource.kind] += _limits(after) - _limits(before)
        other._settle(
            enabled=self.enabled if enabled is None else enabled,
            version=self.version + 1,
            moment=self.moment,
            off_kinds=self.off_kinds if off_kinds is None else frozenset(off_kinds),
        )
        return other

    def at(self, moment: datetime) -> "RuleSet":
        """Return the same version as it holds at a moment, which knows its time zone."""
        if not self._others.schedules:
            return self
        other = RuleSet.__new__(RuleSet)
        for attribute in ("_written", "_first_place", "_exact", "_others", "_rules", "_limiting_exact"):
            setattr(other, attribute, getattr(self, attribute))
        other._settle(enabled=self.enabled, version=self.version, moment=moment, off_kinds=self.off_kinds)
        return other

    def next_change(self, after: datetime) -> datetime | None:
        """Return the next moment at which some rule begins or ceases to hold, in UTC; None if none ever does."""
        changes = (hours.next_change(after) for hours in self._others.schedules)
        return min((change for change in changes if change is not None), default=None)

    def changes_since(self, old: "RuleSet") -> Changes:
        """Return what holds otherwise than under another rule set; quickly, if this one came from it by edits."""
        few = changes_between(old._in_force, self._in_force)
        switched = self.enabled != old.enabled or self.off_kinds != old.off_kinds
        exact = few.exact.union(self._exact.differing(old._exact) if self._exact is not old._exact else ())
        exact = frozenset(each for each in exact if self.exact_rule(each) is not old.exact_rule(each))
        return Changes(switched or few.switched, exact, few.patterns, few.totals)

    def take_over(self, old: "RuleSet", changes: Changes) -> None:
        """Go on with what another rule set remembers of which rule holds for what, as far as it still is so.

        Args:
            old: the rule set that this one takes the place of; it forgets.
            changes: since that one.
        """
        matched, old._matched = old._matched, {}
        totals, old._matched_totals = old._matched_totals, {}
        if not changes.patterns and not changes.switched:
            self._matched = matched
            for resource in changes.exact:
                matched.pop(resource, None)
        if not changes.totals:
            self._matched_totals = totals


def _is_plain(key: RuleKey) -> bool:
    """Say whether a rule with this key is simply for one name at all times."""
    return key.exact and key.hours is None and not key.shared


def _resource(key: RuleKey) -> Resource:
    return Resource(key.kind, key.pattern)


def _limits(rule: Rule | None) -> bool:
    return rule is not None and rule.limits


def _limited_kind(resource: Resource) -> str:
    """Return the kind that is limited; the name of a total begins with it."""
    return resource.name.partition(":")[0] if resource.kind == TOTAL else resource.kind


@lru_cache(maxsize=64)
def _unlimited(kind: str) -> Rule:
    """Return the rule for what no rule matches, totals that are gone among it."""
    return Rule(kind, DEFAULT_PATTERN, None)
