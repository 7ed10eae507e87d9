"""The grouped step alone: rows of one resource, in batches."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from demands import DAY_S, START_S, flowing, limited

from admin.analytics.demand import Known
from admin.analytics.options import Options
from admin.analytics.resources import _advise

KEY = tuple(map(pa.scalar, ("a", "topic", "orders")))
SIDECARS = {"a": Known(DAY_S, until_s=START_S + DAY_S)}


def advised(*batches: pa.RecordBatch, sidecars: Any = SIDECARS) -> list[dict[str, Any]]:
    return [row for found in _advise(sidecars, Options())(KEY, iter(batches)) for row in found.to_pylist()]


def with_first(minutes: pa.RecordBatch, *rows: dict[str, Any]) -> pa.RecordBatch:
    first = pa.Table.from_pylist(list(rows))
    return pa.concat_tables([first, pa.table(minutes)], promote_options="permissive").combine_chunks().to_batches()[0]


def test_storms_come_before_minutes_and_minutes_in_several_batches() -> None:
    recorded = flowing(limited(100.0), {"web": np.where(np.arange(DAY_S) < 3600, 120, 50)}, DAY_S)
    batch = with_first(recorded.minutes(), {"minute_s": None, "storms": recorded.storms(), "is_limit": None})
    (row,) = advised(batch.slice(0, 500), batch.slice(500))
    assert (row["action"], row["recommended_rate_per_s"], row["messages"]) == ("raise", 150, 3600 * 120 + 82_800 * 50)
    assert (row["need_per_s"], row["limit_per_s"]) == (150, 100)
    assert "in 1 storm" in row["evidence"]
    assert '"backtest"' in row["recommendation"]


@pytest.mark.parametrize(("sidecars", "actions"), [(SIDECARS, ["unused"]), ({}, [])])
def test_a_limit_without_demand_is_unused_if_its_sidecar_ran(sidecars: Any, actions: list[str]) -> None:
    minutes = flowing(limited(100.0), {"web": np.full(60, 1)}, 60).minutes()
    batch = with_first(minutes, {"minute_s": None, "storms": None, "is_limit": True, **asdict(limited(5.0))})
    found = advised(batch.slice(0, 1), sidecars=sidecars)
    assert [row["action"] for row in found] == actions
    assert [row["rate_per_s"] for row in found] == [5.0] * len(actions)


def test_a_limit_with_storms_whose_minutes_are_lost_is_not_unused() -> None:
    recorded = flowing(limited(100.0), {"web": np.full(60, 120)}, 60)
    rows = [{"minute_s": None, "storms": recorded.storms(), "is_limit": None}, {"minute_s": None, "is_limit": True}]
    batch = with_first(recorded.minutes(), rows[0], rows[1] | asdict(limited(5.0)))
    assert advised(batch.slice(0, 2)) == []
