"""How tables are written again, by day and by hour."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from equal_tables import unequal
from log_rows import Asked, Limit, Run, lines_of
from pyspark.sql import SparkSession

from admin.analytics import tables
from admin.analytics.inputs import find
from admin.analytics.lines import Wanted
from admin.analytics.options import Options
from admin.analytics.report import Tools, find_instances, make_tables, recommend
from admin.analytics.words import DAY_S, HOUR_S
from admin.rejection_log.records import LimitChangeRecord

pytestmark = pytest.mark.long

Report = Callable[..., Tools]


@pytest.fixture
def report(tools: Callable[[Path], Tools], tmp_path: Path) -> Report:
    """Makes the tables of some records in ``out``."""

    def make(run: Run, wanted: Wanted = Wanted(), out: str = "out", **options: Any) -> Tools:  # noqa: B008 - frozen
        file = tmp_path / "a.jsonl"
        file.write_bytes(b"\n".join(lines_of(run.records)))
        its, wish = tools(tmp_path / out), Options(since_s=wanted.since_s, until_s=wanted.until_s, **options)
        make_tables(its, find([str(file)]), wish, wanted)
        recommend(its, wish, find_instances(its, wish))
        return its

    return make


def _refusals(*at: int) -> Run:
    run = Run()
    for at_s in at:
        run.rejection(at_s)
    return run


def _storms(its: Tools) -> list[tuple[int, int, int]]:
    rows = its.store.read(tables.STORMS).collect()
    return sorted((row["start_s"], row["end_s"], row["messages"]) for row in rows)


def test_a_run_replaces_its_days_and_leaves_others(report: Report) -> None:
    report(_refusals(100, DAY_S + 100, 2 * DAY_S + 100))
    second_day = Wanted(since_s=DAY_S, until_s=2 * DAY_S)
    its = report(_refusals(100, 200, DAY_S + 500), second_day)
    assert _storms(its) == [(100, 101, 1), (DAY_S + 500, DAY_S + 501, 1), (2 * DAY_S + 100, 2 * DAY_S + 101, 1)]
    # Again, and now nothing was refused on that day.
    run = Run()
    run.rejection(DAY_S + 500, verdict="hold")
    its = report(run, second_day)
    assert _storms(its) == [(100, 101, 1), (2 * DAY_S + 100, 2 * DAY_S + 101, 1)]
    # Of all days, those that the log has nothing of any more are removed.
    its = report(_refusals(DAY_S + 7))
    assert _storms(its) == [(DAY_S + 7, DAY_S + 8, 1)]
    assert its.store.read(tables.COVERAGE).count() == 1


def test_a_range_cuts_a_storm(report: Report) -> None:
    its = report(_refusals(*range(100, 200)), Wanted(since_s=120, until_s=150))
    assert _storms(its) == [(120, 150, 30)]


def test_a_table_that_is_not_there_has_its_columns_and_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    store = tables.Store(spark, str(tmp_path))
    for table in tables.BY_DAY:
        frame = store.read(table)
        assert frame.columns == [column.split()[0] for column in table.ddl_columns]
        assert frame.isEmpty()


def _busy(shift: int) -> Run:
    """Two days of a sidecar, five hours of each; another shift is another log of the same time."""
    run = Run(run=f"run-{shift}")
    for hour_s in (day * DAY_S + hour * HOUR_S for day in (1, 2) for hour in (3, 4, 5, 6, 23)):
        run.limit(hour_s, Limit("topic:orders", 10.0 + shift))
        run.limit(hour_s, Limit("topic:once", 5.0), name=f"once-{hour_s // HOUR_S}")
        run.other(LimitChangeRecord, hour_s + 9 + shift, change_id=1, action="reload")
        run.traffic(hour_s, {0: Asked(10 + shift, 5)}, Limit("topic:orders", 10.0))
        run.rejection(hour_s, 5 + shift)
        run.rejection(hour_s + HOUR_S - 10, 5 + shift)
        run.heartbeat(hour_s)
    return run


def test_hours_that_are_made_anew_leave_all_others_as_they_were(report: Report, tmp_path: Path) -> None:
    before, after = _busy(0), _busy(1)
    its = report(before)
    touched = frozenset(DAY_S + hour * HOUR_S for hour in (4, 23))
    untouched_day = sorted((tmp_path / "out" / "minutes" / "dt=1970-01-03").iterdir())
    report(after, Wanted(hours=touched))
    assert sorted((tmp_path / "out" / "minutes" / "dt=1970-01-03").iterdir()) == untouched_day
    # The same is made of the one log's hours and the other's at once.
    both = Run()
    both.records = [
        record for log in (before, after) for record in log.records
        if (record.at_s - record.at_s % HOUR_S in touched) is (log is after)
    ]  # fmt: skip
    report(both, out="both")
    assert unequal(tmp_path / "out", tmp_path / "both") == {}
    assert its.store.read(tables.MINUTES).count() == 10
