"""Recommendations as Spark moves what they are made of; what is decided, and why, has tests without it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_rows import MONDAY_S, Asked, Limit, Run, lines_of
from pyspark.sql import SparkSession

from admin.analytics.digest import Picked
from admin.analytics.inputs import find
from admin.analytics.lines import Wanted
from admin.analytics.making import _write_recommendations
from admin.analytics.options import Options
from admin.analytics.report import Recommended, Tools, find_instances, make_tables, recommend
from admin.client.apply import read_recommendations as read_file
from admin.common.recommendations import Recommendation

pytestmark = pytest.mark.long

DAY_S = 86_400
DAYS = 9
"""More than a week, so that several are replayed."""


@pytest.fixture(scope="module")
def log() -> Run:
    """Nine days of three topics on two sidecars: too low a limit, one with room, none; and a limit that nobody uses."""
    run, other = Run(), Run("b", "s")
    tight = {offset: Asked(300, 60 if offset < 20 else 0) for offset in range(60)}
    for day in range(DAYS):
        for minute in range(10):
            at_s = MONDAY_S + DAY_S * day + 60 * minute
            run.traffic(at_s, tight if minute % 3 == 0 else {7: Asked(80)}, Limit("topic:tight", 300.0), name="tight")
            run.traffic(at_s, {offset: Asked(40) for offset in range(60)}, Limit("topic:roomy", 1000.0), name="roomy")
            other.traffic(at_s, {offset: Asked(25) for offset in range(60)}, name="roomy")
            for each in (run, other):
                each.heartbeat(at_s)
            for offset in range(20 * (minute % 3 == 0)):
                run.rejection(at_s + offset, 60, name="tight", rule="topic:tight")
    for name in ("old", "tight", "log-*"):
        run.limit(MONDAY_S, Limit(f"topic:{name}", 10.0), name=name)
    run.records += other.records
    return run


@pytest.fixture(scope="module")
def tables(log: Run, tools: Callable[[Path], Tools], tmp_path_factory: pytest.TempPathFactory) -> Tools:
    folder = tmp_path_factory.mktemp("recommend")
    (folder / "a.jsonl").write_bytes(b"\n".join(lines_of(log.records)))
    its = tools(folder / "out")
    make_tables(its, find([str(folder / "a.jsonl")]), Options(), Wanted())
    return its


@pytest.fixture(scope="module")
def recommended(tables: Tools) -> Recommended:
    return recommend(tables, Options(), find_instances(tables, Options()))


def _by_name(found: Recommended) -> dict[tuple[str, str], Recommendation]:
    return {(each.instance, each.name): each for each in found.all()}


def test_each_resource_gets_its_recommendation(recommended: Recommended) -> None:
    found = _by_name(recommended)
    assert {name: each.action for name, each in found.items()} == {
        ("a", "tight"): "raise", ("a", "roomy"): "keep", ("a", "old"): "unused", ("b", "roomy"): "keep"
    }  # fmt: skip
    assert list(found) == sorted(found, key=lambda each: (each[0], "topic", each[1]))
    tight = found["a", "tight"].backtest
    assert tight.logged is not None
    assert tight.recommended is not None
    assert tight.logged.refused_messages == 60 * 20 * 4 * DAYS
    assert tight.recommended.refused_messages == 0
    # Nothing of the others is loud, so nothing of them is replayed.
    rows = {(row["instance"], row["name"]): row for row in recommended.frame.collect()}
    assert rows["a", "tight"]["refused_messages"] == 60 * 20 * 4 * DAYS
    assert rows["a", "old"]["messages"] == 0


def test_how_many_tasks_there_are_makes_no_difference(tables: Tools, recommended: Recommended) -> None:
    before = [row.asDict(recursive=True) for row in recommended.frame.orderBy("instance", "name").collect()]
    again = recommend(replace(tables, tasks=1), Options(), find_instances(tables, Options()))
    assert [row.asDict(recursive=True) for row in again.frame.orderBy("instance", "name").collect()] == before


def test_a_capacity_is_shared_out_among_the_limits_of_each_sidecar(tables: Tools) -> None:
    found = _by_name(
        recommend(tables, Options(capacity_per_s=200.0), find_instances(tables, Options(capacity_per_s=200.0)))
    )
    rates = {name: each.recommended_rate_per_s or 0.0 for name, each in found.items()}
    assert 180.0 <= rates["a", "tight"] + rates["a", "roomy"] <= 200.0
    # Where no limit was there is one then.
    assert found["b", "roomy"].action == "new"
    assert 0 < rates["b", "roomy"] <= 200.0
    assert "fair share" in found["a", "tight"].evidence


def test_of_nothing_there_are_none(spark: SparkSession, tools: Callable[[Path], Any], tmp_path: Path) -> None:
    its = tools(tmp_path / "out")
    recommended = recommend(its, Options(), find_instances(its, Options()))
    path = tmp_path / "recommendations.json"
    picked = Picked((), ())
    _write_recommendations(path, "2026-11-22T00:00:00Z", recommended, {}, picked)
    assert picked.counts == {}
    assert read_file(str(path)).recommendations == ()
