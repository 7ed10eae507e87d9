"""Sources of rules laid over each other: which of their rules are left to make a rule set of.

What the sources are is the business of who reads them; which of the rules left holds for a name is ``rules``.
"""

from collections.abc import Iterable

from limiter.errors import RuleError
from limiter.rule import Rule, RuleKey


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
