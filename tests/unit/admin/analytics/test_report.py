"""Results that need no Spark."""

import pytest

from admin.analytics.report import _week
from admin.analytics.words import DAY_S, HOUR_S, WEEK_S

NOON_S = 1_800_000_000


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
