"""What is in the tables, how they are written again, and what their readers see."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from admin.analytics.derive import derive
from admin.analytics.reading import parse, read_lines
from log_maker.dirt import MIDNIGHT_S
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import tables
from admin.analytics.digest import Digest
from admin.analytics.findings import Culprit, Inputs, Share, Storm
from admin.analytics.options import Options
from admin.analytics.words import DAY_S

if TYPE_CHECKING:
    from conftest import Case

GAP_S = 30
ALL = tables.Days()
DEFAULTS = Options()


@pytest.fixture
def storms(case: "Case", spark: SparkSession) -> dict[str, list[Row]]:
    """Return the storms at the edge, by the name of their resource."""
    rows = tables.read(spark, str(case.out), tables.STORMS).where("instance = 'edge'").orderBy("start_s")
    found: dict[str, list[Row]] = {}
    for row in rows.collect():
        found.setdefault(row["name"], []).append(row)
    return found


def test_a_storm_over_midnight_is_one_on_the_day_it_began(storms: dict[str, list[Row]]) -> None:
    (storm,) = storms["over midnight"]
    assert (storm["start_s"], storm["end_s"]) == (MIDNIGHT_S - 40, MIDNIGHT_S + 40)
    assert storm["dt"] == tables.day_of(MIDNIGHT_S - 1)


def test_refusals_exactly_the_gap_apart_are_of_one_storm(storms: dict[str, list[Row]]) -> None:
    assert len(storms["exactly the gap"]) == 1
    assert len(storms["a second more"]) == 3
    assert len(storms["over the hour"]) == 2


def test_what_was_only_held_is_no_storm(storms: dict[str, list[Row]]) -> None:
    assert "only held" not in storms
    assert storms["nothing in it"][0]["clients"][0]["share"] == 0.0


def test_a_storm_is_open_while_the_log_ends_within_its_gap(storms: dict[str, list[Row]]) -> None:
    assert [storms[name][0]["is_open"] for name in ("still open", "just over", "at the end")] == [True, False, True]


def test_ties_are_broken_by_name(storms: dict[str, list[Row]]) -> None:
    (storm,) = storms["ties"]
    assert [client["name"] for client in storm["clients"]] == [f"10.0.0.{place:02d}" for place in range(10)]
    assert storm["client_count"] == 30
    assert [(group["name"], group["messages"]) for group in storm["producer_groups"]] == [("", 90), ("g", 90)]
    assert (storm["peak_per_s"], storm["peak_at_s"]) == (180, MIDNIGHT_S + 100)


def test_users_and_products_are_told_apart(case: "Case", spark: SparkSession, storms: dict[str, list[Row]]) -> None:
    (storm,) = storms["users"]
    assert [(user["name"], user["messages"]) for user in storm["users"]] == [("u1", 225), ("u0", 210)]
    assert storm["user_count"] == 2
    assert [(user["name"], user["share"]) for user in storms["ties"][0]["users"]] == [("", 1.0)]
    culprits = tables.read(spark, str(case.out), tables.CULPRITS).where("name = 'users' AND rank < 4").orderBy("rank")
    assert [tuple(row)[3:8] for row in culprits.collect()] == [
        ("10.0.0.04", "u1", "p2", "g", 1),
        ("10.0.0.03", "u0", "p1", "g", 1),
        ("10.0.0.02", "u1", "p0", "g", 1),
    ]


def test_storms_are_those_of_sparks_own_sessions(case: "Case", spark: SparkSession) -> None:
    sessions = (
        parse(read_lines(spark, [str(file) for file in case.files()]))
        .records.dropDuplicates(["run", "n"])
        .where("type = 'rejection' AND verdict = 'refuse'")
        .groupBy("instance", "kind", "name", F.session_window(F.timestamp_seconds("at_s"), f"{GAP_S} seconds"))
        .agg(F.min("at_s").alias("start_s"), (F.max("at_s") + 1).alias("end_s"), F.sum("messages").alias("messages"))
        .select("instance", "kind", "name", "start_s", "end_s", "messages")
    )
    ours = tables.read(spark, str(case.out), tables.STORMS).select(*sessions.columns)
    assert sorted(ours.collect()) == sorted(sessions.collect())


def _record(at_s: int, n: int, **other: Any) -> dict[str, Any]:
    return {
        "type": "rejection", "v": 1, "instance": "i", "run": "r", "n": n, "at_s": at_s, "kind": "topic", "name": "t",
        "client": "c", "rule": "r", "verdict": "refuse", "requests": 1, "messages": 1, "bytes": 1, **other,
    }  # fmt: skip


@pytest.fixture
def write(spark: SparkSession, tmp_path: Path) -> Callable[..., str]:
    """Derive and write tables of some records, their storms if nothing else is said."""

    def write(
        *records: dict[str, Any],
        days: tables.Days = ALL,
        options: Options = DEFAULTS,
        tables_: tuple[tables.Table, ...] = (tables.STORMS,),
    ) -> str:
        file = tmp_path / "a.jsonl"
        file.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
        derived = derive(parse(read_lines(spark, [str(file)])).records, options)
        for table in tables_:
            tables.write(derived.tables[table.name], str(tmp_path / "out"), table, days)
        derived.release()
        return str(tmp_path / "out")

    return write


def _found(digest: Digest) -> tuple[Storm, Culprit]:
    """Return the one storm and the one culprit of a report."""
    found = digest.findings("", "", Inputs(), {}, ())
    (storm,), (culprit,) = found.storms, found.culprits
    return storm, culprit


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row["start_s"], row["end_s"], row["messages"]) for row in frame.collect())


def test_a_run_replaces_its_days_and_leaves_others(spark: SparkSession, write: Callable[..., str]) -> None:
    write(_record(100, 1), _record(DAY_S + 100, 2), _record(2 * DAY_S + 100, 3))
    second_day = tables.Days(date(1970, 1, 2), date(1970, 1, 2))
    out = write(_record(DAY_S + 500, 1), days=second_day)
    expected = [(100, 101, 1), (DAY_S + 500, DAY_S + 501, 1), (2 * DAY_S + 100, 2 * DAY_S + 101, 1)]
    assert _rows(tables.read(spark, out, tables.STORMS)) == expected
    # Again, and now there is nothing on that day.
    write(_record(DAY_S + 500, 1, verdict="hold"), days=second_day)
    assert _rows(tables.read(spark, out, tables.STORMS)) == [expected[0], expected[2]]
    assert _rows(tables.read(spark, out, tables.STORMS, second_day)) == []


def test_what_a_killed_job_left_is_seen_by_nobody_and_removed(spark: SparkSession, write: Callable[..., str]) -> None:
    out = write(_record(100, 1))
    left = Path(out, "storms", ".spark-staging-1", "dt=1970-01-01")
    left.mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"half")
    assert len(duckdb.sql(f"FROM read_parquet('{out}/storms/dt=*/*.parquet')").fetchall()) == 1
    assert _rows(tables.read(spark, out, tables.STORMS)) == [(100, 101, 1)]
    write(_record(200, 1))
    assert not left.parent.exists()
    assert sorted(entry.name for entry in Path(out, "storms").iterdir()) == ["dt=1970-01-01"]


def test_a_table_that_is_not_there_has_its_columns_and_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    frame = tables.read(spark, str(tmp_path), tables.MINUTES)
    assert frame.columns == [column.split()[0] for column in tables.MINUTES.columns]
    assert frame.collect() == []


def test_tables_that_an_older_sluice_wrote_name_no_users(
    spark: SparkSession, write: Callable[..., str], tmp_path: Path
) -> None:
    out = write(_record(100, 1, user="alice", product="pika 1.4.4"), tables_=(tables.STORMS, tables.REFUSALS))
    older = tmp_path / "older"
    for table, new in (("storms", ("users", "user_count")), ("refusals", ("user", "product"))):
        frame = spark.read.parquet(f"{out}/{table}").drop(*new)
        frame.write.partitionBy("dt").parquet(str(older / table))
    found = [_found(Digest(spark, str(each), DEFAULTS)) for each in (out, older)]
    assert [(storm.users, culprit.user, culprit.product) for storm, culprit in found] == [
        ((Share(name="alice", messages=1, share=1.0),), "alice", "pika 1.4.4"),
        ((), "", ""),
    ]


def test_a_range_cuts_a_storm(spark: SparkSession, write: Callable[..., str]) -> None:
    records = [_record(at_s, at_s) for at_s in range(100, 200)]
    out = write(*records, options=replace(Options(), since_s=120, until_s=150))
    assert _rows(tables.read(spark, out, tables.STORMS)) == [(120, 150, 30)]


def test_wide_gaps_are_as_exact_as_narrow_ones(spark: SparkSession, write: Callable[..., str]) -> None:
    at = [10, 3610, 7211, 7212]
    records = [_record(at_s, n) for n, at_s in enumerate(at, 1)]
    out = write(*records, options=Options(storm_gap_s=3600))
    assert _rows(tables.read(spark, out, tables.STORMS)) == [(10, 3611, 2), (7211, 7213, 2)]
    out = write(*records, options=Options(storm_gap_s=1))
    assert _rows(tables.read(spark, out, tables.STORMS)) == [(10, 11, 1), (3610, 3611, 1), (7211, 7213, 2)]
