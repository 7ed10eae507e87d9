"""What is picked of the tables, as far as Spark is not needed for it."""

from typing import Any

from admin.analytics.digest import _Resource, _Resources, _week_until_s
from admin.analytics.words import HOUR_S, WEEK_S

HOUR: int = 1_800_000_000
SUMS: dict[str, Any] = dict.fromkeys(_Resource.__struct_fields__[3:], 0)


def test_both_weeks_are_of_whole_hours_and_as_long_as_each_other() -> None:
    one = _Resource("a", "topic", "orders", **SUMS)
    found = _Resources.of([one], since_s=0)
    for until_s in (HOUR, HOUR + 1, HOUR + 1860, HOUR + HOUR_S - 1):
        week = found.week(until_s - 2 * WEEK_S, until_s)
        assert week is not None
        assert week.until_s == _week_until_s(until_s) == (HOUR if until_s == HOUR else HOUR + HOUR_S)
        assert (week.from_s % HOUR_S, week.before_until_s) == (0, week.from_s)
        assert week.until_s - week.from_s == week.before_until_s - week.before_from_s == WEEK_S
    assert found.week(HOUR - 2 * WEEK_S + 1, HOUR) is None
