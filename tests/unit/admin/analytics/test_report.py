"""Results and days that need no Spark."""

from datetime import date

import pytest

from admin.analytics.report import _week
from admin.analytics.tables import Days, day_of
from admin.analytics.words import DAY_S, HOUR_S, WEEK_S

NOON_S = 1_800_000_000


def test_days_are_those_of_seconds() -> None:
    assert (day_of(DAY_S - 1), day_of(DAY_S)) == (date(1970, 1, 1), date(1970, 1, 2))
    found = Days.of_seconds(DAY_S, 2 * DAY_S)
    assert [day in found for day in (date(1970, 1, 1), date(1970, 1, 2), date(1970, 1, 3))] == [False, True, False]
    assert date(1970, 1, 3) in Days.of_seconds(DAY_S, 2 * DAY_S + 1)
    assert all(date(1970, 1, 1) in days for days in (Days(), Days.of_seconds(None, 1), Days.of_seconds(0, None)))


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
