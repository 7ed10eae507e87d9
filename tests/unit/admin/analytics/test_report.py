"""Results and days, without Spark."""

from datetime import date
from typing import Any

import pytest

from admin.analytics.report import _sidecar, _week
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


def run(name: str, first: int, last: int, seconds: int | None = None) -> dict[str, Any]:
    """Return the description of a run that recorded whole minutes of the first hour."""
    minutes = last - first
    return {
        "run": name, "hour_s": 0, "first_s": 60 * first, "last_s": 60 * last, "minutes": minutes,
        "seconds": 60 * minutes if seconds is None else seconds, "newest_s": 60 * last, "version": "1",
        "killed_run": "",
        **dict.fromkeys(("records", "first_n", "last_n"), 1),
        **dict.fromkeys(("lost_records", "other", "bypassed_requests", "limiting_off_minutes"), 0),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "minutes", "observed_s", "why"),
    [
        ([run("a", 0, 30), run("b", 30, 60)], 60, 3600, ""),
        # A minute with a kill and the next start, and a slow take-over.
        ([run("a", 0, 30, 1780), run("b", 29, 60, 1840)], 60, 3600, ""),
        ([run("a", 0, 35), run("b", 25, 60)], 60, 3600, ""),
        ([run("a", 0, 60), run("b", 20, 40)], 60, 3600, "Two processes recorded as x"),
        ([run("a", 0, 40), run("b", 0, 1), run("c", 29, 60)], 60, 3600, "Two processes recorded as x"),
        # One was suspended while the other ran.
        ([run("a", 0, 60) | {"minutes": 20, "seconds": 1200}, run("b", 10, 50)], 60, 3600, ""),
        ([run("a", 0, 60, 3600 + 601)], 60, 3600, "The clock of x"),
        # None of its heartbeats arrived.
        ([run("a", 0, 60), run("b", 0, 0)], 60, 3600, ""),
    ],
)
def test_minutes_that_are_recorded_twice_count_once_and_say_why(
    runs: list[dict[str, Any]], minutes: int, observed_s: int, why: str
) -> None:
    known, row = _sidecar("x", runs)
    assert (row["minutes"], row["gap_minutes"], known.observed_s) == (minutes, 0, observed_s)
    assert known.twice == row["recorded_twice"]
    assert known.twice.partition(" at the same time")[0].partition(" was set")[0] == why


def test_a_killed_run_is_known_by_the_next_one() -> None:
    runs = [run("a", 0, 30), run("b", 30, 60) | {"killed_run": "a"}, run("c", 60, 90) | {"killed_run": "earlier"}]
    assert _sidecar("x", runs)[1]["killed_s"] == [1800]
    # Tables of an earlier release do not have it.
    assert _sidecar("x", [run("a", 0, 30) | {"killed_run": None}])[1]["killed_s"] == []
