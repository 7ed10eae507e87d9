"""The rules of a set that are more than one name's at all times: those with patterns, totals, those with hours.

They are few where exact names may be many, so what finds them is made anew when one of them changes or the clock
switches, and only then.
"""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from limiter.patterns import Matcher
from limiter.resource import TOTAL, Resource
from limiter.rule import Rule, RuleKey
from limiter.schedule import Hours

Place = int
"""Where a rule stands among all; what comes first has the smallest."""

_MOMENTS: Final = 2
"""Answers remembered: each edit is made of the rules at no moment, and then put in force at one."""


class InForce:
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

    def __init__(self, placed: dict[RuleKey, tuple[Place, Rule]]) -> None:
        self.placed = placed
        self.schedules = frozenset(rule.hours for _, rule in placed.values() if rule.hours is not None)
        self._in_force: dict[frozenset[Hours], InForce] = {}

    def edited(self, put: dict[RuleKey, tuple[Place, Rule]], drop: Iterable[RuleKey]) -> "OtherRules":
        """Return them with some put in and others dropped; themselves, if nothing changes."""
        dropped = {key for key in drop if key in self.placed and key not in put}
        if not put and not dropped:
            return self
        return OtherRules({key: placed for key, placed in (self.placed | put).items() if key not in dropped})

    def in_force(self, now: frozenset[Hours]) -> InForce:
        """Return those without hours, and those with the hours given; the last few answers are remembered."""
        in_force = self._in_force.get(now)
        if in_force is None:
            # Of two rules for one pattern the one with hours comes first, and so wins.
            ordered = list(self.in_order())
            held = [rule for rule in ordered if rule.hours in now]
            held += [rule for rule in ordered if rule.hours is None]
            if len(self._in_force) >= _MOMENTS:
                self._in_force.clear()
            in_force = self._in_force[now] = InForce(held)
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
