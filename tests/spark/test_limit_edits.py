"""What a report says of live edits: what held beside them, and since when the limit of a curve holds."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from minute_rows import MONDAY_S, Asked, Limit, coverage, frame, minute
from pyspark.sql import SparkSession

from admin.analytics import edits, tables, words
from admin.analytics.digest import Digest
from admin.analytics.findings import Inputs
from admin.analytics.options import Options

pytestmark = pytest.mark.long

_BY_PATTERN = Limit("topic:orders-*", 200.0)
_OWN = Limit("topic:orders-1", 1000.0)


def _change(n: int, at_s: int, name: str, before: float | None, after: float | None) -> dict[str, Any]:
    row = {"instance": "a", "run": "r", "n": n, "at_s": MONDAY_S + at_s, "change_id": n}
    rates = {"rate_before_per_s": before, "rate_after_per_s": after}
    row["action"] = "set" if after else "unset"
    return row | rates | {"kind": "topic", "name": name, "by": "ada", "reason": "", "dt": tables.day_of(MONDAY_S)}


def test_an_edit_shows_what_held_beside_it_and_is_drawn_at_its_time(spark: SparkSession, tmp_path: Path) -> None:
    asked = {offset: Asked(200, 100) for offset in range(60)}
    minutes = [minute("orders-1", MONDAY_S + 60 * at, asked, _OWN if at in {1, 2} else _BY_PATTERN) for at in range(5)]
    rule: dict[str, Any] = {"instance": "a", "kind": "topic", "action": "reject", "dt": tables.day_of(MONDAY_S)}
    rules = [
        rule | {"name": name, "rule": f"topic:{name}", "rate_per_s": rate, "seen_s": MONDAY_S}
        for name, rate in (("quiet-*", 30.0), ("quiet-1", 7.0), ("orders-*", 1.0))
    ]
    changes = [
        _change(1, 100, "orders-1", None, 1000.0),
        _change(2, 150, "quiet-1", None, 5.0),
        _change(3, 160, "strange", None, 5.0),
        _change(4, 200, "orders-1", 1000.0, None),
    ]
    made = {"minutes": minutes, "limits": rules, "limit_changes": changes, "coverage": coverage([MONDAY_S], 300)}
    for table in tables.BY_DAY:
        tables.write(frame(spark, table, made.get(table.name, [])), str(tmp_path), table, tables.Days())
    tables.write(
        tables.read(spark, str(tmp_path), tables.MINUTES).selectExpr(
            "*", "minute_s AS hour_s", "1 AS minutes", "0 AS demand_peak_per_minute"
        ).select(*(column.split()[0] for column in tables.HOURS.columns)),
        str(tmp_path),
        tables.HOURS,
        tables.Days(),
    )  # fmt: skip
    found = Digest(spark, str(tmp_path), Options()).findings("2025-11-24T01:00:00Z", "out", Inputs(), {}, ())

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
