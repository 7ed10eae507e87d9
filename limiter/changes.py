"""What holds otherwise under one rule set than under another, for whoever keeps something that was made of the rules.

How rule sets come to differ is the business of ``rules``.
"""

from typing import NamedTuple

from limiter.matching import InForce
from limiter.resource import Resource
from limiter.rule import Rule


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


def changes_between(old: InForce, new: InForce) -> Changes:
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


def _patterns(in_force: InForce) -> list[Rule]:
    """Return the rules with patterns for each name."""
    return [rule for rule in in_force.rules if not rule.shared and rule.exact_name is None]


def _totals(in_force: InForce) -> list[int]:
    """Return which rules are shared, in order."""
    return [id(rule) for rule in in_force.rules if rule.shared]
