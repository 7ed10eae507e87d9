"""The columns of the tables, and days. ``tests/spark`` has what is written and replaced."""

from datetime import date

import pytest

from admin.analytics import tables
from admin.analytics.tables import Days, Table, day_of


@pytest.mark.parametrize(
    ("table", "moments"),
    [
        (tables.MINUTES, {"minute_s": "minute_at"}),
        (tables.REFUSALS, {"at_s": "at"}),
        (tables.STORMS, {"start_s": "start_at", "flood_s": "flood_at", "end_s": "end_at", "peak_at_s": "peak_at"}),
        (tables.CULPRITS, {}),
        (tables.LIMITS, {"seen_s": "seen_at"}),
        (tables.LIMIT_CHANGES, {"at_s": "at"}),
        (
            tables.COVERAGE,
            {"hour_s": "hour_at", "first_minute_s": "first_minute_at", "last_minute_s": "last_minute_at"},
        ),
    ],
    ids=lambda each: each.name if isinstance(each, Table) else "",
)
def test_beside_each_second_since_1970_is_a_timestamp(table: Table, moments: dict[str, str]) -> None:
    assert {name: at for name, at in table.moments.items() if name in moments} == moments
    *columns, day = table.ddl_columns
    names = [column.split()[0] for column in columns]
    assert (names, day) == ([*table.names[:-1], *table.moments.values()], "dt DATE")
    assert columns[len(table.names) - 1 :] == [f"{name} TIMESTAMP" for name in table.moments.values()]


def test_days_are_those_of_seconds() -> None:
    assert day_of(86_399) == date(1970, 1, 1)
    assert day_of(86_400) == date(1970, 1, 2)
    found = Days.of_seconds(86_400, 2 * 86_400)
    assert [day in found for day in (date(1970, 1, 1), date(1970, 1, 2), date(1970, 1, 3))] == [False, True, False]
    assert date(1970, 1, 3) in Days.of_seconds(86_400, 2 * 86_400 + 1)
    assert all(date(1970, 1, 1) in days for days in (Days(), Days.of_seconds(None, 1), Days.of_seconds(0, None)))
    assert "1970-01-01" not in Days()
