"""Live edits of limits beside the demand: what held before one and after it, and since when a curve's limit holds.

A record of an edit knows the rule that was edited and nothing else: where a topic gets its first limit of its own,
that of a pattern held before, and the record says nothing of it. What held then is in the traffic of the minutes
around the edit, or in the rules as they were written down; unless something else was changed in between.

The traffic has one limit a minute, the one at its end. Seconds before an edit in that minute had the one before.

Pure: no Spark. Times are whole seconds since 1970 UTC, rates per second.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from admin.analytics.findings import Curve, Edit, Held, LimitChange, Point
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S
from limiter.rules.errors import RuleError
from limiter.rules.patterns import Pattern, glob_of, read_glob, read_network
from limiter.rules.resource import CLIENT

NEAR_S: Final = HOUR_S
"""What held so long before an edit or after it may be another limit by then: some hold by the clock."""


class Between(NamedTuple):
    """An edit, and the time around it in which nothing else changed what its resource meets.

    Attributes:
        change: of one resource's own limit.
        from_s: of the last other change; 0 if there is none.
        rules_from_s: likewise, of changes that are no edit of the resource's own limit.
        until_s: of the next other change; None if there is none.
    """

    change: LimitChange
    from_s: int
    rules_from_s: int
    until_s: int | None


class Piece(NamedTuple):
    """A limit from one moment to another; None is unlimited or not known."""

    from_s: int
    until_s: int
    limit_per_s: float | None


def read_pattern(kind: str, text: str) -> Pattern | None:
    """Read what a rule is for; None if it is none."""
    try:
        return read_network(text) if kind == CLIENT else read_glob(text)
    except RuleError:
        return None


def is_own(change: LimitChange, kind: str, name: str) -> bool:
    """Say whether it edits a resource's own limit."""
    return change.kind == kind and change.name in {name, glob_of(name)}


def concerns(change: LimitChange, kind: str, name: str) -> bool:
    """Say whether it may change the limit that a resource meets."""
    if change.action == "reload":
        return True
    if change.kind != kind or not change.name:
        return False
    pattern = read_pattern(kind, change.name)
    return pattern is None or pattern.stands_for(name)


def unclear(changes: Sequence[LimitChange], shown: Iterable[LimitChange]) -> list[Between]:
    """Return the edits of one resource's own limit before or after which it had none.

    Args:
        changes: all that are known, the latest first.
        shown: those of them that are asked for.
    """
    found = []
    for change in shown:
        pattern = read_pattern(change.kind, change.name) if change.kind and change.name else None
        if pattern is None or pattern.exact_name is None:
            continue
        if change.rate_before_per_s is not None and change.rate_after_per_s is not None:
            continue
        name = pattern.exact_name
        others = [each for each in changes if each.instance == change.instance and concerns(each, change.kind, name)]
        at = next(index for index, each in enumerate(others) if each is change)
        earlier, later = others[at + 1 :], others[:at]
        rules = [each for each in earlier if not is_own(each, change.kind, name)]
        found.append(
            Between(
                change,
                earlier[0].at_s if earlier else 0,
                rules[0].at_s if rules else 0,
                later[-1].at_s if later else None,
            )
        )
    return found


def exact_name(change: LimitChange) -> str:
    """Return the name of the one resource that an edit is of; as it is written, if it is of none."""
    pattern = read_pattern(change.kind, change.name)
    return change.name if pattern is None or pattern.exact_name is None else pattern.exact_name


def stood(rules: Iterable[Mapping[str, Any]], instance: str, at_s: int) -> list[Mapping[str, Any]]:
    """Return an instance's rules as they were written down last before a moment; none if that is not known.

    Of a day only those are known that were written down last, so that later ones on the same day hide them.

    Args:
        rules: of all instances and days; ``instance``, ``seen_s`` and what ``by_rules`` needs of each.
        instance: whose.
        at_s: the moment.
    """
    day_ends_s = at_s - at_s % DAY_S + DAY_S
    its = [rule for rule in rules if rule["instance"] == instance and rule["seen_s"] < day_ends_s]
    last_s = max((rule["seen_s"] for rule in its), default=0)
    # All are written down at once; a minute is more than that takes.
    return [rule for rule in its if rule["seen_s"] > last_s - MINUTE_S] if last_s <= at_s else []


def by_rules(rules: Iterable[Mapping[str, Any]], kind: str, name: str) -> Held | None:
    """Return the limit of a resource that has no rate of its own; None if that cannot be said.

    Args:
        rules: all that stand; ``kind``, ``name``, ``rule``, ``rate_per_s`` and ``action`` of each.
        kind: of the resource.
        name: of the resource.
    """
    best: tuple[int, Held] | None = None
    for rule in rules:
        pattern = read_pattern(kind, rule["name"]) if rule["kind"] == kind else None
        if pattern is None or not pattern.stands_for(name):
            continue
        if rule["rule"] != f"{kind}:{rule['name']}":
            # It holds at certain hours.
            return None
        if pattern.exact_name is not None and rule["rate_per_s"] is not None:
            # What was written down is the edit.
            continue
        literals = pattern.literals + (pattern.exact_name is not None)
        if best is None or literals > best[0]:
            best = literals, held(rule)
    return None if best is None else best[1]


def held(limit: Mapping[str, Any]) -> Held:
    """Return a limit as a change shows it; ``rule``, ``rate_per_s`` and ``action`` of it."""
    return Held(rule=limit["rule"], rate_per_s=None if limit["action"] == "off" else limit["rate_per_s"])


def placed(
    points: Sequence[Point], step_s: int, changes: Iterable[LimitChange], kind: str, name: str
) -> tuple[tuple[Point, ...], tuple[Edit, ...]]:
    """Put edits in their places in a curve.

    Args:
        points: of the curve, with the limit at the end of each one's minute.
        step_s: between them.
        changes: of the instance; others than of this resource are left out.
        kind: of the resource.
        name: of the resource.

    Returns:
        the points with the limit at their own end, and the edits, both in order.
    """
    window_s = max(step_s, MINUTE_S)
    ends = {point.at_s - point.at_s % window_s: point.limit_per_s for point in points}
    by_window: dict[int, list[LimitChange]] = {}
    for change in sorted(changes, key=lambda each: (each.at_s, each.change_id)):
        if concerns(change, kind, name):
            by_window.setdefault(change.at_s - change.at_s % window_s, []).append(change)
    edits: list[Edit] = []
    now: float | None = None
    for window in sorted(ends.keys() | by_window.keys()):
        there = by_window.get(window, [])
        for change in there:
            own = is_own(change, kind, name)
            before = change.rate_before_per_s if own and change.rate_before_per_s is not None else now
            if window in ends and change is there[-1]:
                now = ends[window]
            elif own:
                now = change.rate_after_per_s
            edits.append(Edit(at_s=change.at_s, before_per_s=before, after_per_s=now))
        now = ends.get(window, now)
    return tuple(_at_its_end(point, step_s, window_s, edits) for point in points), tuple(edits)


def _at_its_end(point: Point, step_s: int, window_s: int, edits: Iterable[Edit]) -> Point:
    end_s, window_end_s = point.at_s + step_s, point.at_s - point.at_s % window_s + window_s
    later = next((edit for edit in edits if end_s <= edit.at_s < window_end_s), None)
    if later is None:
        return point
    return Point(
        at_s=point.at_s,
        admitted_per_s=point.admitted_per_s,
        refused_per_s=point.refused_per_s,
        peak_per_s=point.peak_per_s,
        limit_per_s=later.before_per_s,
    )


def limit_line(curve: Curve) -> list[Piece]:
    """Return the limit over a curve's steps, cut where it was edited."""
    pieces = []
    for point in curve.points:
        end_s = point.at_s + curve.step_s
        within = [edit for edit in curve.edits if point.at_s < edit.at_s < end_s]
        cuts = [point.at_s, *(edit.at_s for edit in within), end_s]
        limits = [*(edit.before_per_s for edit in within), point.limit_per_s]
        pieces += [Piece(*ends, limit) for ends, limit in zip(pairwise(cuts), limits, strict=True) if ends[0] < ends[1]]
    return pieces
