"""Spark's tables against those of another engine over the same files; see ``duck_tables``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import duck_tables
import duckdb
import pytest
from log_maker import SHAPES
from pyspark.sql import SparkSession

from admin.analytics import tables
from admin.analytics.demand import PERCENTILES, demand
from admin.analytics.tables import TABLES

if TYPE_CHECKING:
    from conftest import Case


@pytest.fixture(scope="module")
def duck(case: "Case") -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the records of the case and the tables made of them."""
    with duckdb.connect() as connection:
        bad, duplicates = duck_tables.load(connection, case.files())
        assert (bad, duplicates) == (case.soiled.bad_lines, case.soiled.duplicates)
        duck_tables.create(connection)
        yield connection


def test_bad_lines_and_duplicates_are_counted(case: "Case") -> None:
    assert (case.inputs.bad_lines, case.inputs.duplicates) == (case.soiled.bad_lines, case.soiled.duplicates)
    assert case.inputs.records == case.records + case.soiled.records


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_another_engine_makes_of_the_same_files(
    name: str, case: "Case", duck: duckdb.DuckDBPyConnection
) -> None:
    columns = tuple(column.split()[0] for column in TABLES[name].columns)
    assert duck_tables.differences(duck, name, case.out, columns) == []
    assert duck.execute(f"SELECT count(*) > 0 FROM duck_{name}").fetchone() == (True,)


def test_all_shapes_of_traffic_were_among_them(case: "Case", duck: duckdb.DuckDBPyConnection) -> None:
    for name in ("minutes", "storms", "coverage"):
        found = duck.execute(f"SELECT DISTINCT split_part(instance, '-', 1) FROM duck_{name}").fetchall()
        assert {shape for (shape,) in found} >= set(SHAPES)


def test_several_records_of_a_minute_were_among_them(case: "Case", duck: duckdb.DuckDBPyConnection) -> None:
    assert duck.execute("SELECT count(*) > 0 FROM duck_minutes WHERE more_clients").fetchone() == (True,)


def test_percentiles_of_demand_are_those_of_another_engine(
    case: "Case", spark: SparkSession, duck: duckdb.DuckDBPyConnection
) -> None:
    names = ("minutes", "hours", "storms", "coverage")
    rows = demand({name: tables.read(spark, str(case.out), TABLES[name]) for name in names}).select(
        "instance", "kind", "name", "demand_per_s", "per_minute", "per_hour"
    )
    ours = {tuple(row[:3]): [value for part in row[3:] for value in part] for row in rows.collect()}
    theirs = {row[:3]: [value for part in row[3:] for value in part] for row in duck.execute(_PERCENTILES).fetchall()}
    assert ours == {key: pytest.approx(values, rel=1e-12) for key, values in theirs.items()}


_WANTED = f"[{', '.join(map(str, PERCENTILES))}]"


def _of(one: str, length_s: int) -> str:
    """Percentiles of minutes or hours; those without a row count as 0."""
    return f"""{one}s AS (SELECT instance, kind, name, quantile_cont(value::DOUBLE, {_WANTED}) AS at FROM (
        SELECT instance, kind, name, demand_messages AS value FROM duck_{one}s
        UNION ALL
        SELECT instance, kind, name, unnest(repeat([0], greatest(0, ceil(observed_s / {length_s}) - there)::BIGINT))
        FROM resources JOIN (SELECT instance, kind, name, count(*) AS there FROM duck_{one}s GROUP BY ALL)
            USING (instance, kind, name)) GROUP BY ALL)"""


_PERCENTILES = f"""
WITH known AS (SELECT instance, sum(seconds) AS known_s FROM duck_coverage GROUP BY ALL),
resources AS (SELECT instance, kind, name, sum(len(second)) AS active_s,
    greatest(any_value(known_s), sum(len(second))) AS observed_s
    FROM duck_minutes JOIN known USING (instance) GROUP BY ALL),
seconds AS (SELECT instance, kind, name, unnest(second_admitted) + unnest(second_refused) AS value FROM duck_minutes),
per_second AS (SELECT instance, kind, name, quantile_cont(value::DOUBLE, {_WANTED}) AS at FROM (
    FROM seconds
    UNION ALL
    SELECT instance, kind, name, unnest(repeat([0], (observed_s - active_s)::BIGINT)) FROM resources) GROUP BY ALL),
{_of("minute", 60)},
{_of("hour", 3600)}
SELECT instance, kind, name, per_second.at, minutes.at, hours.at
FROM per_second JOIN minutes USING (instance, kind, name) JOIN hours USING (instance, kind, name)"""
