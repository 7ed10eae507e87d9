"""What the script draws: the storms and the demand over time, on one axis, as plain data.

The names in it are untrusted: they reach the page as JSON, and the script only ever draws or writes them as text.
"""

from collections.abc import Callable
from typing import Any, Final

from admin.analytics import words
from admin.analytics.findings import Curve, Findings, Point, Storm
from admin.analytics.page.markup import label

_LEAST_S: Final = 60
"""Shortest time that is drawn, and shortest margin around a storm."""
_MARGIN_STEPS: Final = 10
"""So many steps of a curve are shown before and after a storm at least."""


def resource_words(findings: Findings) -> Callable[[Any], str]:
    """Return what names a resource here: with its sidecar if there are several, with its kind if that must be said."""
    several = findings.instance_count > 1

    def name(thing: Any) -> str:
        words_ = words.resource(thing.kind, thing.name)
        return f"{words_} on {thing.instance}" if several else words_

    return name


def figures(findings: Findings) -> dict[str, Any]:
    """Return all that is drawn over time.

    Returns:
        ``whole``, the two ends of the time axis; ``storms``, or None; ``curves``, in their order on the page.
    """
    return {
        "whole": whole(findings),
        "storms": _storms(findings) if findings.storms else None,
        "curves": [_curve(curve) for curve in findings.curves],
    }


def whole(findings: Findings) -> tuple[int, int]:
    """Return the time that all charts have in common: the period, and what is drawn beyond it."""
    ends = [each for each in (findings.period.from_s, findings.period.until_s) if each is not None]
    ends += [end for storm in findings.storms for end in (storm.start_s, storm.end_s)]
    for curve in findings.curves:
        ends += [end for point in curve.points for end in (point.at_s, point.at_s + curve.step_s)]
    start_s = min(ends, default=0)
    return start_s, max(max(ends, default=0), start_s + _LEAST_S)


def around(storm: Storm, findings: Findings) -> tuple[int, int]:
    """Return the time in which a storm is to be seen, with something before and after it."""
    step_s = next((each.step_s for each in findings.curves if _same(each, storm)), 1)
    margin_s = max(storm.end_s - storm.start_s, _MARGIN_STEPS * step_s, _LEAST_S)
    start_s, end_s = whole(findings)
    return max(start_s, storm.start_s - margin_s), min(end_s, storm.end_s + margin_s)


def _same(curve: Curve, storm: Storm) -> bool:
    return (curve.instance, curve.kind, curve.name) == (storm.instance, storm.kind, storm.name)


def when(storm: Storm) -> str:
    """Say from when to when a storm was."""
    return words.span(storm.start_s, storm.end_s) + (", may go on" if storm.is_open else "")


def _storms(findings: Findings) -> dict[str, Any]:
    """Return a row for each resource, and the storms with the rows that they are in."""
    name_of = resource_words(findings)
    names = list(dict.fromkeys(map(name_of, findings.storms)))
    return {
        "rows": [label(name) for name in names],
        "storms": [
            {
                "row": names.index(name_of(storm)),
                "from": storm.start_s,
                "until": storm.end_s,
                "peak": storm.peak_at_s,
                "messages": storm.messages,
                "shadow": storm.shadow,
                "says": f"{label(name_of(storm), 80)}, {when(storm)}: {words.counted(storm.messages, 'message')} "
                f"{words.refused(shadow=storm.shadow)}, at most {words.rate(storm.peak_per_s)}",
            }
            for storm in findings.storms
        ],
    }


def _curve(curve: Curve) -> dict[str, list[Any]]:
    """Return the demand of one resource in columns.

    Each row holds until the next one; where steps without a request were left out, nothing was asked for.
    """
    rows: list[tuple[Any, ...]] = []
    for at, point in enumerate(curve.points):
        rows.append((point.at_s, *_demand(point), point.limit_per_s))
        end_s = point.at_s + curve.step_s
        if at + 1 == len(curve.points) or end_s < curve.points[at + 1].at_s:
            rows.append((end_s, 0, 0, 0, 0, point.limit_per_s))
    names = ("at", "peak", "asked", "admitted", "plain", "limit")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}


def _demand(point: Point) -> tuple[float, ...]:
    plain_per_s = max(0.0, point.admitted_per_s - point.shadowed_per_s)
    each = (point.peak_per_s, point.admitted_per_s + point.refused_per_s, point.admitted_per_s, plain_per_s)
    return tuple(float(f"{per_s:.6g}") for per_s in each)
