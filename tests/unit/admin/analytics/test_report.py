"""Results that need no Spark."""

from typing import Any

import pytest

from admin.analytics.report import _clocks, _week
from admin.analytics.words import DAY_S, HOUR_S, WEEK_S

NOON_S = 1_800_000_000


def _sidecars(*spans: tuple[float, float]) -> list[dict[str, Any]]:
    """Return what is known of sidecars that ran from one hour to another."""
    return [
        {"instance": str(at), "from_s": NOON_S + HOUR_S * begin, "newest_s": NOON_S + HOUR_S * end}
        for at, (begin, end) in enumerate(spans)
    ]


@pytest.mark.parametrize(
    ("spans", "ahead"),
    [
        ([(0, 9), (0, 9), (3, 12)], {"2": 3}),
        ([(0, 9), (0, 9), (-3, 6)], {"2": -3}),
        ([(0, 9), (0.1, 9.1), (0, 8.9)], {}),
        # It ended early, or started late.
        ([(0, 9), (0, 9), (0, 6)], {}),
        ([(0, 9), (0, 9), (6, 9)], {}),
        # Of two it is not known which is right.
        ([(0, 9), (3, 12)], {}),
    ],
)
def test_clocks_that_differ_from_most_are_named(spans: list[tuple[float, float]], ahead: dict[str, int]) -> None:
    assert {each["instance"]: each["ahead_s"] / HOUR_S for each in _clocks(_sidecars(*spans))} == ahead


@pytest.mark.parametrize("more_s", [0, 1, 1860, HOUR_S - 1])
def test_both_weeks_are_of_whole_hours_and_as_long_as_each_other(more_s: int) -> None:
    until_s = NOON_S + more_s
    week = _week([], until_s - 2 * WEEK_S, until_s)
    assert week is not None
    assert week["until_s"] == NOON_S + (HOUR_S if more_s else 0)
    assert (week["from_s"], week["before_until_s"]) == (week["until_s"] - WEEK_S, week["until_s"] - WEEK_S)
    assert week["before_from_s"] == week["from_s"] - WEEK_S
    assert _week([], until_s - 2 * WEEK_S + 1, until_s) is None
    assert _week([], until_s - DAY_S, until_s) is None
