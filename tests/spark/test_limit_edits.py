"""What a report says of live edits: what held beside them, and since when the limit of a curve holds."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from log_rows import MONDAY_S, Asked, Limit, Run, lines_of
from pyspark.sql import SparkSession

from admin.analytics import edits, words
from admin.analytics.digest import Digest, Picked
from admin.analytics.findings import Inputs
from admin.analytics.inputs import find
from admin.analytics.lines import Wanted
from admin.analytics.options import Options
from admin.analytics.report import Tools, make_tables, recommend
from admin.rejection_log.records import LimitChangeRecord

pytestmark = pytest.mark.long

_BY_PATTERN = Limit("topic:orders-*", 200.0)
_OWN = Limit("topic:orders-1", 1000.0)


def _log() -> Run:
    run = Run()
    for name, rate in (("quiet-*", 30.0), ("quiet-1", 7.0), ("orders-*", 1.0)):
        run.limit(MONDAY_S, Limit(f"topic:{name}", rate), name=name)
    asked = {offset: Asked(200, 100) for offset in range(60)}
    for at in range(5):
        run.traffic(MONDAY_S + 60 * at, asked, _OWN if at in {1, 2} else _BY_PATTERN, name="orders-1")
        run.heartbeat(MONDAY_S + 60 * at)
    for change_id, (at_s, name, before, after) in enumerate(
        (
            (100, "orders-1", None, 1000.0),
            (150, "quiet-1", None, 5.0),
            (160, "strange", None, 5.0),
            (200, "orders-1", 1000.0, None),
        ),
        1,
    ):
        run.other(
            LimitChangeRecord, MONDAY_S + at_s, change_id=change_id, action="set" if after else "unset", kind="topic",
            name=name, rate_before_per_s=before, rate_after_per_s=after, by="ada",
        )  # fmt: skip
    return run


def test_an_edit_shows_what_held_beside_it_and_is_drawn_at_its_time(
    spark: SparkSession, tools: Callable[[Path], Tools], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines_of(_log().records)))
    its = tools(tmp_path / "out")
    make_tables(its, find([str(tmp_path / "a.jsonl")]), Options(), Wanted())
    recommended = recommend(its, Options())
    digest = Digest(spark, its.store, Options(), recommended.instances)
    found = digest.findings("2025-11-24T01:00:00Z", "out", Inputs(), Picked((), ()), recommended.decided)

    assert [words.edit(each) for each in found.limit_changes] == [
        "1,000/s → 200/s (by orders-*)",
        "own limit: none → 5/s",
        "30/s (by quiet-*) → 5/s",
        "200/s (by orders-*) → 1,000/s",
    ]
    (curve,) = found.curves
    assert curve.step_s == 1
    limits = [(piece.from_s - MONDAY_S, piece.limit_per_s) for piece in edits.limit_line(curve)]
    steps = [(at, limit) for (_, before), (at, limit) in pairwise(limits) if before != limit]
    assert steps == [(100, 1000.0), (200, 200.0)]
