import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
import retry_formula
from admin.analytics.recommend import recommend, recommendations
from minute_rows import MONDAY_S, Asked, Limit, coverage, frame, hours_of, minute
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import retries, tables
from admin.analytics.demand import PERCENTILES, demand
from admin.analytics.options import Options
from admin.client.recommendations import read as read_file
from admin.wire.recommendations import Period, Recommendation

DAY_S = 86_400
LIMITED = Limit("topic:orders", 300.0)


def inputs(
    spark: SparkSession,
    minutes: Sequence[Mapping[str, Any]],
    known: Sequence[Mapping[str, Any]],
    *,
    storms: Sequence[Mapping[str, Any]] = (),
    limits: Sequence[Mapping[str, Any]] = (),
) -> dict[str, DataFrame]:
    rows = {"minutes": minutes, "hours": hours_of(minutes), "storms": storms, "limits": limits, "coverage": known}
    return {name: frame(spark, tables.TABLES[name], found) for name, found in rows.items()}


def by_name(frame_: DataFrame) -> dict[str, Row]:
    return {row["name"]: row for row in frame_.collect()}


def exact(values: Sequence[float], observed: int) -> list[float]:
    """Percentiles with the seconds that nobody asked in, interpolated: what SQL calls percentile_cont."""
    every = sorted([*values, *([0.0] * (observed - len(values)))])
    cuts = quantiles(every, n=1000, method="inclusive")
    return [every[-1] if share == 1 else cuts[round(share * 1000) - 1] for share in PERCENTILES]


def test_percentiles_are_exact_over_all_seconds_observed(spark: SparkSession) -> None:
    rng = random.Random(1)
    asked = {
        at_s: {
            offset: Asked(rng.randrange(500), rng.choice((0, 0, 50)), size_bytes=rng.randrange(1, 9999))
            for offset in sorted(rng.sample(range(60), 40))
        }
        for at_s in range(MONDAY_S, MONDAY_S + 600, 60)
    }
    asked = {
        at_s: {offset: each for offset, each in seconds.items() if each.admitted} for at_s, seconds in asked.items()
    }
    minutes = [minute("orders", at_s, seconds, LIMITED) for at_s, seconds in asked.items()]
    found = by_name(demand(inputs(spark, minutes, coverage([MONDAY_S], 3600))))["orders"]
    every = [each for seconds in asked.values() for each in seconds.values()]
    assert found["observed_s"] == 3600
    assert found["active_s"] == len(every)
    assert found["demand_per_s"] == pytest.approx(exact([each.admitted + each.refused for each in every], 3600))
    assert found["bytes_per_s"] == pytest.approx(exact([each.size_bytes for each in every], 3600))
    per_minute = [sum(each.admitted + each.refused for each in seconds.values()) for seconds in asked.values()]
    assert found["per_minute"] == pytest.approx(exact(per_minute, 60))
    assert found["per_hour"] == pytest.approx([sum(per_minute)] * 5)
    assert found["messages"] == sum(per_minute)


def test_what_is_corrected_for_retries_is_what_the_formula_says(spark: SparkSession) -> None:
    cases = [
        (admitted, refused, {"JAVA": (900, java), "GO": (900, go), "CPP": (10, cpp)}, busy)
        for admitted in (0, 1, 70, 300)
        for refused in (0, 5, 300)
        for java, go, cpp in ((1, 0, 0), (30, 10, 5), (0, 7, 0), (0, 0, 0))
        for busy in (0, 20, 1000)
    ]
    rows = spark.createDataFrame(
        cases,
        "admitted BIGINT, refused BIGINT, languages MAP<STRING, STRUCT<requests: BIGINT, refused: BIGINT>>, busy INT",
    )
    parts = retries.weights_columns(F.col("languages"), F.col("busy"))
    column = retries.corrected_column(F.col("admitted"), F.col("refused"), parts)
    for row in rows.select("*", column.alias("left")).collect():
        languages = {name: (each["requests"], each["refused"]) for name, each in row["languages"].items()}
        weights = retry_formula.weights(languages, row["busy"])
        assert row["left"] == pytest.approx(retry_formula.corrected(row["admitted"], row["refused"], weights)), row


@pytest.fixture(scope="module")
def fortnight(spark: SparkSession) -> Mapping[str, Row]:
    """Two weeks and a day: one demand grows day by day, one comes on Mondays at nine."""
    minutes = []
    for day in range(15):
        for hour in (3, 9, 15):
            at_s = MONDAY_S + day * DAY_S + hour * 3600
            usual = {0: Asked(1000)}
            minutes.append(minute("grows", at_s, {0: Asked(1000 + 100 * day)}, Limit()))
            minutes.append(minute("even", at_s, usual, Limit()))
            weekly = {offset: Asked(200) for offset in range(60)} if day % 7 == 0 and hour == 9 else usual
            minutes.append(minute("mondays", at_s, weekly, Limit()))
    known = coverage([MONDAY_S + hour * 3600 for hour in range(15 * 24)])
    return by_name(demand(inputs(spark, minutes, known)))


def test_a_trend_is_found_where_there_is_one(fortnight: Mapping[str, Row]) -> None:
    grows, even = fortnight["grows"], fortnight["even"]
    # 100 more a day of 1 700 on average.
    assert grows["trend_per_week"] == pytest.approx(7 * 100 / 1700)
    assert grows["trend_fit"] == pytest.approx(1)
    assert even["trend_per_week"] == pytest.approx(0, abs=1e-9)
    assert even["trend_fit"] == 0


def test_the_busiest_hour_of_the_week_is_found(fortnight: Mapping[str, Row]) -> None:
    mondays = fortnight["mondays"]
    assert mondays["hour_of_week"] == 9
    # Three Mondays, an hour each.
    assert mondays["hour_per_s"] == pytest.approx(12_000 / 3600)
    # In most hours nobody asks for anything.
    assert mondays["hour_times"] is None


def test_a_short_log_has_neither(spark: SparkSession) -> None:
    found = by_name(demand(inputs(spark, [minute("a", MONDAY_S, {0: Asked(5)}, Limit())], coverage([MONDAY_S]))))["a"]
    assert [found[name] for name in ("trend_per_week", "hour_per_s", "hour_of_week")] == [None, None, None]


STORM = {
    "instance": "a",
    "kind": "topic",
    "name": "stormed",
    "start_s": MONDAY_S + 20,
    "end_s": MONDAY_S + 30,
    "messages": 20_000,
    "rules": [("topic:stormed", 20_000, 1.0)],
    "clients": [("10.0.0.1", 19_000, 0.95), ("10.0.0.2", 500, 0.025)],
    "client_count": 4,
    "dt": tables.day_of(MONDAY_S),
}
"""Ten seconds; one client has nearly all of it."""


@pytest.fixture(scope="module")
def decided(spark: SparkSession) -> DataFrame:
    """Two days of four topics, and a limit that nobody asks for."""
    minutes = []
    for index in range(20):
        at_s = MONDAY_S + index * 60
        # Clients that try three times: of 300 admitted and 260 refused 333 were wanted.
        busy = {offset: Asked(300, 260, size_bytes=56_000) for offset in range(60)}
        # On both days: it is no single flood.
        minutes.append(minute("orders", at_s + DAY_S * (index % 2), busy, LIMITED, language="JAVA"))
        minutes.append(minute("roomy", at_s, {offset: Asked(40) for offset in range(60)}, Limit("topic:roomy", 1000.0)))
        minutes.append(minute("free", at_s, {offset: Asked(40) for offset in range(60)}, Limit()))
        storm = {offset: Asked(100, 2000) if index == 0 and 20 <= offset < 30 else Asked(40) for offset in range(60)}
        minutes.append(minute("stormed", at_s, storm, Limit("topic:stormed", 100.0)))
    known = coverage([MONDAY_S + hour * 3600 for hour in range(48)], 25)
    limits = [
        {"instance": "a", "kind": "topic", "name": name, "rule": f"topic:{name}", "rate_per_s": 10.0, "burst_s": 1.0}
        | {"break_s": 1.0, "count": "messages", "bytes_burst_s": 1.0, "action": "reject", "seen_s": MONDAY_S}
        | {"dt": tables.day_of(MONDAY_S)}
        for name in ("old", "orders", "log-*")
    ]
    found = inputs(spark, minutes, known, storms=[STORM], limits=limits)
    return recommendations(found, Options(headroom=0.3), []).cache()


def test_each_resource_gets_its_recommendation(decided: DataFrame) -> None:
    found = {name: (row["action"], row["recommended_rate_per_s"]) for name, row in by_name(decided).items()}
    assert found == {
        "orders": ("raise", 440.0),
        "roomy": ("keep", 1000.0),
        "free": ("keep", None),
        "stormed": ("keep", 100.0),
        "old": ("unused", None),
    }


def test_the_replay_of_the_limit_in_force_comes_to_what_was_refused(decided: DataFrame) -> None:
    orders = by_name(decided)["orders"]
    assert orders["refused_messages"] == 20 * 60 * 260
    assert abs(orders["model_error"]) < 0.02
    assert orders["recommended_refused"] == 0
    assert orders["wanted_messages"] < orders["messages"]
    assert "with the retries of what was refused" in orders["evidence"]


def test_what_may_be_a_flood_raises_nothing_and_what_is_no_flood_raises(spark: SparkSession) -> None:
    flood = {offset: Asked(300, 9000) for offset in range(5, 45)}
    shadow = Limit("topic:shadow", 300.0, action="shadow")
    shadowed = {"shadowed_requests": 40 * 9000, "shadowed_messages": 40 * 9000}
    minutes = [
        minute("runaway", MONDAY_S, flood, LIMITED),
        minute("shadow", MONDAY_S, {at: Asked(9300) for at in flood}, shadow) | shadowed,
    ]
    for index in range(20):
        at_s = MONDAY_S + 60 * index
        tight = {offset: Asked(300, 60 if offset < 2 else 0) for offset in range(60)}
        minutes.append(minute("tight", at_s, tight, Limit("topic:tight", 300.0)))
        usual = {offset: Asked(100) for offset in range(60)} if index else flood
        minutes.append(minute("seldom", at_s, usual, Limit("topic:seldom", 300.0)))
    tables_ = inputs(spark, minutes, coverage([MONDAY_S], 1200))
    found = by_name(recommendations(tables_, Options(), []))
    assert {name: (row["action"], row["recommended_rate_per_s"]) for name, row in found.items()} == {
        "runaway": ("keep", 300.0),
        "shadow": ("keep", 300.0),
        "seldom": ("keep", 300.0),
        "tight": ("raise", 440.0),
    }
    assert "quiet time to tell demand from a flood: nothing of it" in found["runaway"]["evidence"]
    # The same limit refuses the same share, though most of what it refuses were retries.
    assert found["runaway"]["recommended_share"] == found["runaway"]["current_share"] > 0.5
    assert "quiet time to tell demand from a flood: nothing of it" in found["shadow"]["evidence"]
    assert "20 minutes of log are too few to tell demand from a flood" in found["seldom"]["evidence"]
    assert {row["confidence"] for row in found.values()} == {"low"}


def test_a_capacity_is_shared_out(spark: SparkSession) -> None:
    asked = {"big": 900, "mid": 300, "small": 20, "none": 100}
    minutes = [
        minute(name, MONDAY_S + 60 * index, {offset: Asked(per_s) for offset in range(60)}, limit)
        for index in range(10)
        for name, per_s in asked.items()
        for limit in (Limit() if name == "none" else Limit(f"topic:{name}", float(per_s)),)
    ]
    found = by_name(
        recommendations(inputs(spark, minutes, coverage([MONDAY_S], 600)), Options(capacity_per_s=1000), [])
    )
    rates = {name: row["recommended_rate_per_s"] for name, row in found.items()}
    assert sum(rates.values()) <= 1000
    assert sum(rates.values()) >= 900
    assert found["none"]["action"] == "new"
    assert all("fair share" in found[name]["evidence"] for name in ("big", "mid"))


def test_the_table_and_the_file_say_the_same_and_a_rerun_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    minutes = [minute("orders", MONDAY_S, {offset: Asked(300, 130) for offset in range(60)}, LIMITED)]
    found = inputs(spark, minutes, coverage([MONDAY_S], 60))
    for name, rows in found.items():
        tables.write(rows, str(tmp_path), tables.TABLES[name], tables.Days())
    path = tmp_path / "recommendations.json"
    written: list[bytes] = []
    for _ in range(2):
        recommended = recommend(spark, str(tmp_path), Options())
        recommended.write_file(path, "2026-11-22T00:00:00Z", Period(from_s=MONDAY_S, until_s=MONDAY_S + 60))
        written.append(path.read_bytes())
    content, again = written
    assert content == again
    assert recommended.counts == {"keep": 1}
    read = read_file(str(path))
    assert list(read.recommendations) == recommended.first(10) == list(recommended.all())
    assert read.instances == ("a",)
    assert json.loads(content)["period"] == {"from": MONDAY_S, "until": MONDAY_S + 60}
    (each,) = read.recommendations
    assert isinstance(each, Recommendation)
    assert each.backtest.current is not None
    assert each.backtest.current.refused_share > 0.2


def test_of_nothing_there_are_none(spark: SparkSession, tmp_path: Path) -> None:
    recommended = recommend(spark, str(tmp_path), Options())
    assert recommended.counts == {}
    path = tmp_path / "recommendations.json"
    recommended.write_file(path, "2026-11-22T00:00:00Z", Period())
    assert read_file(str(path)).recommendations == ()
