"""Spark's tables against those of another engine over the same files; see ``duck_tables``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import duck_tables
import duckdb
import pytest
from log_maker import SHAPES
from log_maker.dirt import bad_lines

from admin.analytics.tables import TABLES

pytestmark = pytest.mark.long

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
    set_aside = {each.file.rpartition("/")[2] for each in case.inputs.set_aside}
    assert set_aside == {"bad.jsonl"}
    assert sum(each.lines for each in case.inputs.set_aside) == len(bad_lines())


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_another_engine_makes_of_the_same_files(
    name: str, case: "Case", duck: duckdb.DuckDBPyConnection
) -> None:
    # Histograms and parts of storms have tests of their own, and what is made of the latter is compared here.
    columns = tuple(column for column in TABLES[name].names if column not in {"demand", "storm_parts"})
    # Hours without traffic are there for their refusals.
    where = "minutes > 0" if name == "hours" else "true"
    assert duck_tables.differences(duck, name, case.out, columns, where) == []
    assert duck.execute(f"SELECT count(*) > 0 FROM duck_{name}").fetchone() == (True,)


def test_timestamps_are_the_seconds_beside_them(case: "Case", duck: duckdb.DuckDBPyConnection) -> None:
    for table in TABLES.values():
        for seconds, moment in table.moments.items():
            wrong = duck.execute(
                f"SELECT count(*) FROM read_parquet('{case.out}/{table.name}/dt=*/*.parquet')"
                f' WHERE epoch("{moment}") IS DISTINCT FROM {seconds}'
            )
            assert wrong.fetchone() == (0,), (table.name, moment)


def test_all_shapes_of_traffic_were_among_them(case: "Case", duck: duckdb.DuckDBPyConnection) -> None:
    for name in ("minutes", "storms", "coverage"):
        found = duck.execute(f"SELECT DISTINCT split_part(instance, '-', 1) FROM duck_{name}").fetchall()
        assert {shape for (shape,) in found} >= set(SHAPES)


@pytest.mark.parametrize(
    "what",
    [
        "duck_minutes WHERE more_clients",
        "duck_minutes WHERE repeated_messages > 0 AND identified > 0",
        "duck_minutes WHERE len(second_shadowed) > 0",
        "duck_storms WHERE shadow",
        "duck_coverage WHERE copies > 0",
    ],
)
def test_what_is_rare_was_among_them(what: str, duck: duckdb.DuckDBPyConnection) -> None:
    assert duck.execute(f"SELECT count(*) > 0 FROM {what}").fetchone() == (True,)
