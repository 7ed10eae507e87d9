"""Logs with known contents: the command's report, another engine, and the contents agree."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from duck_tables import TABLES, DuckTables
from log_truth import (
    AHEAD,
    BATCH,
    EAST_1,
    EAST_2,
    FLOOD_PER_S,
    LIMIT_PER_S,
    NASTY,
    SET_BACK,
    SHARES,
    SKEW_S,
    STEADY,
    SUMMER_ENDS_S,
    TWICE,
    WEST_1,
    WEST_2,
)

from admin.analytics import tables

if TYPE_CHECKING:
    from conftest import Case


@pytest.fixture(scope="module")
def duck(case: "Case", tmp_path_factory: pytest.TempPathFactory) -> DuckTables:
    return DuckTables(case.logs, tmp_path_factory.mktemp("duck"))


@pytest.fixture
def query(case: "Case") -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the tables of the report."""
    with duckdb.connect() as connection:
        for table in tables.BY_DAY:
            files = f"read_parquet('{case.out}/{table.name}/dt=*/*.parquet', hive_partitioning = true)"
            connection.execute(f"CREATE VIEW {table.name} AS FROM {files}")
        yield connection


@pytest.mark.parametrize("table", tables.BY_DAY, ids=lambda table: table.name)
def test_a_table_equals_another_engines_for_the_same_files(case: "Case", duck: DuckTables, table: tables.Table) -> None:
    assert duck.differences(table.name, case.out, table.names) == []
    assert duck.count(table.name) > 0


@pytest.mark.parametrize(
    "what",
    [
        "minutes WHERE more_clients",
        "minutes WHERE repeated_messages > 0 AND len(second_repeated) > 1",
        "minutes WHERE len(second_shadowed) > 1",
        "minutes WHERE cardinality(languages) > 1",
        "minutes WHERE max_delay_s = 9.5",
        # The last second is from the second run.
        "minutes WHERE name = 'several' AND action = 'shadow'",
        "minutes WHERE fair_by IS NOT NULL",
        "storms WHERE shadow",
        "storms WHERE is_open",
        "storms WHERE len(rules) > 1",
        "storms WHERE client_count > 10",
        "coverage WHERE copies > 0",
        "coverage WHERE limiting_off_minutes > 0 AND bypassed_requests = 6",
    ],
)
def test_rare_rows_were_among_them(duck: DuckTables, what: str) -> None:
    assert duck.count(what) > 0


def test_all_engines_count_the_same(case: "Case", duck: DuckTables) -> None:
    inputs, truth = case.results["inputs"], case.truth
    assert (duck.records, duck.copies, duck.bad_lines) == (truth.records, truth.duplicates, truth.bad_lines)
    assert [inputs[name] for name in ("records", "duplicates", "bad_lines")] == [
        truth.records, truth.duplicates, truth.bad_lines
    ]  # fmt: skip
    damaged = {Path(each["file"]).name for each in inputs["set_aside"] if not each["lines"]}
    assert (damaged, inputs["skipped_files"]) == (truth.damaged, len(truth.damaged))


def test_storms_and_totals_are_those_that_were_written(case: "Case", query: duckdb.DuckDBPyConnection) -> None:
    storms = query.execute(
        "SELECT (instance, kind, name), shadow, start_s, end_s, messages, clients, client_count FROM storms"
    ).fetchall()
    expected = {(*storm[:5], len(storm[5])): storm[5] for storm in case.truth.storms()}
    assert {(*storm[:5], storm[6]) for storm in storms} == expected.keys()
    for *storm, clients, count in storms:
        shares = expected[*storm, count]
        largest = sorted(shares, key=lambda each: (-each[1], each[0]))[:10]
        assert [(each["name"], each["messages"]) for each in clients] == largest
    outcomes = [(each, place) for each in ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped")
                for place in range(3)]  # fmt: skip
    sums = ", ".join(f"sum({each}_{('requests', 'messages', 'bytes')[place]})::BIGINT" for each, place in outcomes)
    rows = query.execute(f"SELECT (instance, kind, name), {sums} FROM minutes GROUP BY ALL").fetchall()
    found = {resource: dict(zip(outcomes, row, strict=True)) for resource, *row in rows}
    assert found == {name: {each: total[each] for each in outcomes} for name, total in case.truth.totals.items()}


def test_curves_add_up(case: "Case") -> None:
    assert len(case.results["curves"]) == 6
    for curve in case.results["curves"]:
        total = case.truth.totals[curve["instance"], curve["kind"], curve["name"]]
        each = {"messages": 1, "requests": BATCH}
        drawn = sum(point["refused_per_s"] * curve["step_s"] * each[point["count"]] for point in curve["points"])
        assert drawn == pytest.approx(curve["refused"], rel=1e-5)
        assert curve["refused"] == total["refused", 1] + total["dropped", 1]
    (batches,) = (each for each in case.results["curves"] if each["name"] == "imports")
    assert {point["count"] for point in batches["points"]} == {"requests"}
    assert max(point["peak_per_s"] for point in batches["points"]) == (LIMIT_PER_S + 40) / BATCH


def test_minutes_and_records_that_are_lost_are_counted(case: "Case") -> None:
    truth, found = case.truth, {each["instance"]: each for each in case.results["coverage"]}
    for instance, there in truth.minutes.items():
        its = found[instance]
        assert its["minutes"] == len(there)
        assert its["gap_minutes"] == max(there) - min(there) + 1 - len(there)
        assert (its["lost_records"], its["missing_minutes"]) == (
            truth.lost_records[instance], truth.missing_minutes[instance]
        )  # fmt: skip
    # Minutes of a damaged file are missing though the sidecar ran. While it was down there were none.
    assert (found[WEST_1]["missing_minutes"], found[EAST_2]["missing_minutes"]) == (3, 0)
    assert found[EAST_2]["gap_minutes"] - found[EAST_1]["gap_minutes"] == 5
    totals = case.results["totals"]
    assert (totals["lost_records"], totals["missing_minutes"]) == (5 + truth.lost_records[WEST_1], 3)


def test_beside_each_second_is_its_timestamp(query: duckdb.DuckDBPyConnection) -> None:
    for table in tables.BY_DAY:
        for seconds, moment in table.moments.items():
            wrong = f'SELECT count(*) FROM {table.name} WHERE epoch("{moment}") IS DISTINCT FROM {seconds}'
            assert query.execute(wrong).fetchone() == (0,), (table.name, moment)


def test_one_flood_at_three_sidecars_is_one(case: "Case", query: duckdb.DuckDBPyConnection) -> None:
    found = query.execute("SELECT instance, sidecars FROM storms WHERE name = 'everywhere'").fetchall()
    # One more had the same three hours later, by its clock.
    assert dict(found) == {EAST_1: 3, EAST_2: 3, WEST_1: 3, AHEAD: 1}
    assert query.execute("SELECT DISTINCT sidecars FROM storms WHERE name != 'everywhere'").fetchall() == [(1,)]
    storms = sum(not shadow for _, shadow, *_ in case.truth.storms())
    assert case.results["totals"]["storms"] == storms - 2


def test_a_clock_that_is_hours_ahead_is_reported(case: "Case") -> None:
    (found,) = case.results["clocks"]
    assert (found["instance"], found["ahead_s"]) == (AHEAD, pytest.approx(SKEW_S[AHEAD], abs=120))


def test_sidecars_with_minutes_recorded_twice_are_reported(case: "Case") -> None:
    set_back, together = case.results["recorded_twice"]
    assert set_back.startswith(f"The clock of {SET_BACK} was set back")
    assert together.startswith(f"Two processes recorded as {TWICE} at the same time")


def test_the_flood_comes_first_with_the_shares_of_its_clients(case: "Case") -> None:
    storm = case.results["storms"][0]
    assert (storm["instance"], storm["name"], storm["messages"]) == (EAST_1, "orders", 300 * FLOOD_PER_S)
    assert [each["share"] for each in storm["clients"]] == pytest.approx([share / 100 for share in SHARES])
    assert (storm["peak_per_s"], storm["end_s"] - storm["start_s"]) == (FLOOD_PER_S, 300)
    assert {each["client"] for each in case.results["culprits"][:4]} == {f"10.1.0.{at}" for at in (1, 2, 3, 4)}
    callers = Counter[str]()
    for (_, shadow), refused in case.truth.refused.items():
        for (_, client), messages in refused.items():
            callers[client] += 0 if shadow else messages
    assert [(each["client"], each["messages"]) for each in case.results["callers"]] == callers.most_common(3)
    assert case.results["callers"][0]["share"] == pytest.approx(callers.most_common(1)[0][1] / callers.total())


def test_advice_names_the_percentile_of_steady_topics(case: "Case") -> None:
    evidences = {(each["instance"], each["name"]): each["evidence"] for each in case.recommendations}
    for name, (_, high) in STEADY.items():
        for instance in (EAST_1, EAST_2, WEST_1, WEST_2, AHEAD):
            evidence = evidences[instance, name]
            assert evidence.startswith("p99 of demand over ")
            assert f" is {high}/s, and the limit of 2,000/s refused nothing" in evidence


def test_the_limit_is_that_after_the_last_edit(case: "Case") -> None:
    (orders,) = (each for each in case.recommendations if (each["instance"], each["name"]) == (EAST_1, "orders"))
    assert orders["rate_per_s"] == 250.0
    changes = [each for each in case.results["limit_changes"] if each["instance"] == EAST_1]
    rates = [(each["rate_before_per_s"], each["rate_after_per_s"], each["reason"]) for each in changes]
    assert rates == [(200.0, 250.0, NASTY), (100.0, 200.0, NASTY)]
    assert changes[0]["fair_by_after"] == "client"


def test_a_killed_run_is_named_with_its_time(case: "Case") -> None:
    assert [list(each) for each in case.results["killed"]] == [[EAST_1, SUMMER_ENDS_S + 19]]


def test_no_character_of_a_name_is_lost_or_means_anything(case: "Case") -> None:
    (storm,) = (each for each in case.results["storms"] if each["name"] == NASTY)
    assert (storm["instance"], [each["name"] for each in storm["users"]]) == (WEST_1, [NASTY])
    assert "<script>alert(1)" not in (case.out / "report.html").read_text(encoding="utf-8")


def test_all_tables_are_compared() -> None:
    assert TABLES.keys() == {table.name for table in tables.BY_DAY}
