"""From rows of tables to recommendations: what is known of sidecars, what is decided, replayed by week, and settled."""

import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from log_rows import MONDAY_S, Asked, Limit, Run, lines_of, rows_of

from admin.analytics import advice, kernels
from admin.analytics.advice import Advice
from admin.analytics.combine import demand_from
from admin.analytics.demand import demand_of, storms_of
from admin.analytics.figures import Known
from admin.analytics.figures import Limit as LimitOf
from admin.analytics.kernels import HOURS_COLUMNS, MINUTES_COLUMNS, Instance, Kernel
from admin.analytics.options import Options
from admin.analytics.storms import storms
from admin.analytics.tables import COVERAGE, HOURS, LIMIT_KEY, LIMITS, MINUTES, RESOURCE_KEY, arrow_struct
from admin.analytics.words import WEEK_S
from admin.common.recommendations import Recommendation

TIGHT = Limit("topic:tight", 300.0)
ROOMY = Limit("topic:roomy", 1000.0)
OPTIONS = Options(attempts={"JAVA": 3}, capacity_per_s=None)
DAYS = 3
REFUSED = 260 * 600 * DAYS
INSTANCES = {
    "a": Instance(
        known=Known(DAYS * 86_400, 0, 0, {MONDAY_S // 86_400 + day: 86_400 for day in range(DAYS)}, {}),
        newest_s=MONDAY_S + DAYS * 86_400,
    )
}


@pytest.fixture(scope="module")
def rows() -> Mapping[str, list[dict[str, Any]]]:
    """Three days of three topics: one whose limit is too low, one with room, and refusals without traffic."""
    run = Run()
    for day in range(DAYS):
        for minute in range(10):
            at_s = MONDAY_S + 86_400 * day + 60 * minute
            # Clients that try three times: of 300 admitted and 260 refused 333 were wanted.
            busy = {offset: Asked(300, 260, size_bytes=9000) for offset in range(60)}
            run.traffic(at_s, busy, TIGHT, name="tight", language="JAVA")
            run.traffic(at_s, {offset: Asked(40) for offset in range(60)}, ROOMY, name="roomy")
            for offset in range(60):
                run.rejection(at_s + offset, 260, name="tight", rule="topic:tight")
    run.rejection(MONDAY_S + 5, 9, name="unseen")
    return rows_of(lines_of(run.records), attempts=OPTIONS.attempts)


def _through(
    kernel: Kernel, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, cut: int = 1000
) -> list[dict[str, Any]]:
    """Give rows to a kernel, so many in a batch; return its rows."""
    batches = pa.Table.from_pylist([dict(row) for row in rows], schema=schema).to_batches(max_chunksize=cut)
    return [row for batch in kernel(batches) for row in batch.to_pylist()]


def _schema(columns: Iterable[str], names: Sequence[str]) -> pa.Schema:
    of = {field.name: field.type for field in arrow_struct(columns)}
    return pa.schema([(name, of[name]) for name in names])


HOURS_SCHEMA = _schema(HOURS.columns, HOURS_COLUMNS)
MINUTES_SCHEMA = _schema((*MINUTES.columns, "advice BINARY", "refused BIGINT"), MINUTES_COLUMNS)
LIMITS_SCHEMA = _schema(LIMITS.columns, (*RESOURCE_KEY, *LIMIT_KEY))
COVERAGE_SCHEMA = _schema(COVERAGE.columns, kernels.COVERAGE_COLUMNS)


def _of_hours(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    return sorted(rows["hours"], key=lambda row: (row["name"], row["hour_s"]))


def _judged(
    rows: Mapping[str, list[dict[str, Any]]], options: Options = OPTIONS, cut: int = 1000
) -> list[dict[str, Any]]:
    return _through(kernels.judge(INSTANCES, options), _of_hours(rows), HOURS_SCHEMA, cut)


def _decided(rows: Mapping[str, list[dict[str, Any]]], options: Options = OPTIONS) -> dict[str, dict[str, Any]]:
    return {row["decided"]["name"]: row["decided"] for row in _judged(rows, options) if row["made"] == "decided"}


# What is known of sidecars


def _known(*rows: Mapping[str, Any]) -> dict[str, Instance]:
    usual = {
        "instance": "a", "run": "r", "hour_s": MONDAY_S, "minutes": 60, "seconds": 3600, "limiting_off_minutes": 0,
        "connections_max": 0, "bypassed_requests": 0, "other": 0, "lost_records": 0, "records": 10, "copies": 0,
        "first_n": 1, "last_n": 10, "newest_s": 0, "version": "1",
    }  # fmt: skip
    every = [usual | row for row in rows]
    for row in every:
        row.setdefault("first_minute_s", row["hour_s"])
        row.setdefault("last_minute_s", row["hour_s"] + 3540)
    every.sort(key=lambda row: (row["instance"], row["run"], row["hour_s"]))
    found = _through(kernels.know(), every, COVERAGE_SCHEMA, cut=1)
    return {row["instance"]: kernels.read_instance(row["known"]) for row in found}


def test_what_is_known_of_a_sidecar_is_added_up_over_runs_and_hours() -> None:
    day_s = 86_400
    found = _known(
        {"newest_s": MONDAY_S + 3599, "bypassed_requests": 2, "other": 3, "copies": 4},
        {"hour_s": MONDAY_S + day_s, "first_n": 11, "last_n": 20, "newest_s": MONDAY_S + day_s + 900, "version": "2"},
        {"run": "s", "hour_s": MONDAY_S + day_s + 3600, "seconds": 100, "minutes": 2, "limiting_off_minutes": 1,
         "last_minute_s": MONDAY_S + day_s + 3660, "newest_s": 7},
        {"instance": "b", "newest_s": 5},
    )  # fmt: skip
    assert set(found) == {"a", "b"}
    one = found["a"]
    day = MONDAY_S // day_s
    assert one.known == Known(7300, 0, 3, {day: 3600, day + 1: 3700}, {0: 3600, 24: 3600, 25: 100})
    assert (one.newest_s, one.records, one.copies) == (MONDAY_S + day_s + 900, 30, 4)
    of = one.coverage
    assert of is not None
    assert (of.from_s, of.until_s, of.minutes) == (MONDAY_S, MONDAY_S + day_s + 3720, 122)
    assert (of.versions, of.bypassed_requests, of.limiting_off_minutes) == (("1", "2"), 2, 1)
    assert of.gap_minutes == 1440 + 62 - 122


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        # Numbers that are missing within a run, also between hours; and what it says itself, whichever is more.
        ([{"records": 8}], 2),
        ([{"last_n": 20}, {"hour_s": MONDAY_S + 3600, "first_n": 21, "last_n": 30}], 10),
        ([{"lost_records": 7}], 7),
        ([{"lost_records": 7, "last_n": 19}], 9),
        ([{"lost_records": 5}, {"hour_s": MONDAY_S + 3600, "first_n": 11, "last_n": 20, "lost_records": 7}], 7),
        # What was before the log is not missing in it, and every run counts anew.
        ([{"first_n": 101, "last_n": 110}], 0),
        ([{"records": 9}, {"run": "s", "records": 7}], 4),
        ([{"first_n": 11, "last_n": 20}, {"hour_s": MONDAY_S + 3600, "first_n": 1, "last_n": 10}], 0),
    ],
)
def test_records_that_are_missing_are_counted(rows: list[dict[str, Any]], lost: int) -> None:
    one = _known(*rows)["a"]
    assert one.known.lost_records == lost
    assert one.coverage is not None
    assert one.coverage.lost_records == lost


# Storms and decisions


@pytest.mark.parametrize("cut", [1, 2, 1000])
def test_each_resource_is_judged_by_all_of_its_hours(rows: Mapping[str, list[dict[str, Any]]], cut: int) -> None:
    found = _judged(rows, cut=cut)
    of_storms = [row["storm"] for row in found if row["made"] == "storm"]
    assert [(row["name"], row["messages"]) for row in of_storms] == [("tight", REFUSED // DAYS)] * DAYS + [
        ("unseen", 9)
    ]
    decided = {row["decided"]["name"]: row["decided"] for row in found if row["made"] == "decided"}
    # Of a topic without traffic nothing can be decided.
    assert set(decided) == {"tight", "roomy"}
    for name, row in decided.items():
        its = [each for each in _of_hours(rows) if each["name"] == name]
        parts = [part for each in its for part in each["storm_parts"]]
        newest_s = INSTANCES["a"].newest_s
        of_it = storms(("a", "topic", name), parts, gap_s=30, newest_s=newest_s, top=10)
        limit = LimitOf(**{key: its[-1][key] for key in LIMIT_KEY})
        hours = [(each["hour_s"], limit, demand_from(each["demand"])) for each in its]
        demand = demand_of("a", "topic", name, hours, storms_of(of_it, limit.rule), INSTANCES["a"].known)
        assert kernels.read_advice(row["advice"]) == advice.decide(demand, OPTIONS)
    assert decided["tight"]["least_rate_per_s"] <= 300.0
    assert decided["tight"]["least_bytes_per_s"] is None
    assert decided["tight"]["burst_s"] == 1.0


def test_of_a_sidecar_that_says_nothing_of_itself_nothing_is_known_but_all_is_judged(
    rows: Mapping[str, list[dict[str, Any]]],
) -> None:
    found = _through(kernels.judge({}, OPTIONS), _of_hours(rows), HOURS_SCHEMA)
    assert sum(row["made"] == "decided" for row in found) == 2
    assert {row["storm"]["is_open"] for row in found if row["made"] == "storm"} == {True}


def test_under_a_capacity_each_gets_its_part(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    decided = _decided(rows)
    kernel = kernels.share_out({"a": 0.5}, 250.0)
    schema = pa.schema(list(kernels.JUDGED.field("decided").type))
    found = _through(kernel, list(decided.values()), schema)
    for row in found:
        before = kernels.read_advice(decided[row["name"]]["advice"])
        assert kernels.read_advice(row["advice"]) == advice.share_out(before, 0.5, 250.0)
    limits = {row["name"]: row["limits_per_s"] for row in found}
    assert limits["tight"] == 150.0 < decided["tight"]["limits_per_s"]


# Replays


def _loud(rows: Mapping[str, list[dict[str, Any]]], name: str, of: Advice) -> list[dict[str, Any]]:
    written = kernels.encode(of)
    return [
        {
            **{each: row[each] for each in MINUTES_COLUMNS if each in row},
            "refused": row["refused_messages"] + row["dropped_messages"] + row["shadowed_messages"],
            "refused_requests": row["refused_requests"] + row["dropped_requests"],
            "advice": written,
        }
        for row in sorted(rows["minutes"], key=lambda row: row["minute_s"])
        if row["name"] == name
    ]


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_what_is_replayed_is_what_the_minutes_say(rows: Mapping[str, list[dict[str, Any]]], cut: int) -> None:
    of = kernels.read_advice(_decided(rows)["tight"]["advice"])
    (found,) = _through(kernels.replay_weeks(OPTIONS.attempts), _loud(rows, "tight", of), MINUTES_SCHEMA, cut)
    assert {name: found[name] for name in RESOURCE_KEY} == {"instance": "a", "kind": "topic", "name": "tight"}
    assert len(found["refused"]) == len(of.candidates) > 1
    # The limit in force refuses what it did.
    assert found["refused"][0] == pytest.approx(REFUSED, rel=0.02)
    assert found["error"] == found["refused"][0] - REFUSED
    # Some candidates are replayed without retries, of which there are some here.
    by_wanted = {each.wanted: each_refused for each, each_refused in zip(of.candidates, found["refused"], strict=True)}
    assert set(by_wanted) == {True, False}


def test_a_week_is_replayed_by_itself_whatever_comes_to_the_same_task(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    of = kernels.read_advice(_decided(rows)["tight"]["advice"])
    # The last minute of a week and the first of the next: a bucket is emptied in the one.
    (first, *_) = _loud(rows, "tight", of)
    border_s = -(-MONDAY_S // WEEK_S) * WEEK_S
    late = first | {"minute_s": border_s - 60, "second_admitted": [300] * 60, "second_refused": [900] * 60}
    early = first | {"minute_s": border_s}
    kernel = kernels.replay_weeks({})
    apart = [*_through(kernel, [late], MINUTES_SCHEMA), *_through(kernel, [early], MINUTES_SCHEMA)]
    assert _through(kernel, [late, early], MINUTES_SCHEMA) == apart


# Recommendations


def _replayed(of: Advice, *refused: tuple[Sequence[int], int]) -> list[dict[str, Any]]:
    key = {name: getattr(of, name) for name in RESOURCE_KEY}
    advised = {**key, "advice": kernels.encode(of), "refused": None, "error": 0}
    return [*({**key, "advice": None, "refused": list(each), "error": error} for each, error in refused), advised]


def test_weeks_are_added_up_wherever_the_advice_stands_among_them(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    of = {name: kernels.read_advice(row["advice"]) for name, row in _decided(rows).items()}
    count = len(of["tight"].candidates)
    weeks: list[tuple[Sequence[int], int]] = [([10] * count, 3), ([5] * count, -1)]
    for place in range(3):
        of_tight = _replayed(of["tight"], *weeks)
        of_tight.insert(place, of_tight.pop())
        of_tight = [*_replayed(of["roomy"]), *of_tight]
        found = _through(kernels.settle(), of_tight, kernels.REPLAYED, cut=1)
        assert [row["name"] for row in found] == ["roomy", "tight"]
        assert [kernels.read_recommendation(row["recommendation"]) for row in found] == [
            advice.recommendation(of["roomy"], None, 0), advice.recommendation(of["tight"], [15] * count, 2)
        ]  # fmt: skip
        for row in found:
            said = kernels.read_recommendation(row["recommendation"])
            assert isinstance(said, Recommendation)
            assert (row["action"], row["recommended_rate_per_s"]) == (said.action, said.recommended_rate_per_s)
            assert (row["messages"], row["refused_messages"]) == (
                of[row["name"]].messages, of[row["name"]].refused_messages
            )  # fmt: skip


def test_a_raised_limit_would_have_refused_nothing(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    of = kernels.read_advice(_decided(rows)["tight"]["advice"])
    (replayed,) = _through(kernels.replay_weeks(OPTIONS.attempts), _loud(rows, "tight", of), MINUTES_SCHEMA)
    (row,) = _through(kernels.settle(), _replayed(of, (replayed["refused"], replayed["error"])), kernels.REPLAYED)
    said = kernels.read_recommendation(row["recommendation"])
    assert said.action == "raise"
    assert said.backtest.recommended is not None
    assert said.backtest.recommended.refused_messages == 0
    assert said.backtest.logged is not None
    assert said.backtest.logged.refused_messages == REFUSED


def test_limits_that_nobody_used_are_recommended_to_go_where_the_log_knows_anything() -> None:
    limit = {key: getattr(replace(TIGHT, rule="r"), key) for key in LIMIT_KEY}
    of = {"instance": "a", "kind": "topic", "name": "old"} | limit
    unknown = of | {"instance": "b"}
    (row,) = _through(kernels.unused(INSTANCES), [of, unknown], LIMITS_SCHEMA)
    (settled,) = _through(kernels.settle(), [row], kernels.REPLAYED)
    assert (settled["name"], settled["action"], settled["messages"]) == ("old", "unused", 0)


def test_the_hours_of_a_resource_are_gone_through_without_being_kept(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    hour = _of_hours(rows)[0]
    seconds = {"values": [float(value) for value in range(100)], "seconds": [1] * 100}
    hour = hour | {"demand": hour["demand"] | {"calm": seconds, "loud_asked": seconds}}
    hours = [hour | {"hour_s": hour["hour_s"] + 3600 * at} for at in range(2000)]
    (batch,) = pa.Table.from_pylist(hours, schema=HOURS_SCHEMA).to_batches()
    tracemalloc.start()
    try:
        found = [row for each in kernels.judge(INSTANCES, OPTIONS)([batch]) for row in each.to_pylist()]
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row["made"] for row in found].count("decided") == 1
    assert most_bytes < batch.nbytes
