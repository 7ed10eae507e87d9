"""Histograms of durations, and the measured steps of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from admin.edits.effective import EDIT_SOURCE
from limiter.rules.rule import Rule
from proxy.stats.snapshot import BUCKETS_S, Durations
from proxy.stats.timing import Histogram

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.proxy.conftest import Rig, StartRig

MS = 1_000_000


def spread(durations: Durations) -> dict[float, int]:
    """Return the counts of buckets by upper bound, without empty ones."""
    bounds = (*BUCKETS_S, float("inf"))
    return {bound: count for bound, count in zip(bounds, durations.counts, strict=True) if count}


def test_duration_is_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for duration_ns in (0, 50_000, 50_001, 10_000 * MS, 10_000 * MS + 1):
        histogram.observe(duration_ns)
    assert spread(histogram.durations()) == {50e-6: 2, 100e-6: 1, 10.0: 1, float("inf"): 1}


def test_requests_that_took_the_same_are_counted_at_once() -> None:
    histogram = Histogram()
    histogram.observe(3 * MS, 500)
    assert spread(histogram.durations()) == {5e-3: 500}
    assert histogram.durations().sum_s == pytest.approx(1.5)


async def test_each_request_is_timed_once_whatever_becomes_of_it(rig: Rig) -> None:
    client, broker = await rig.connect()
    await client.send(b"a 1\na 2\na 3\nfree 1\nzero 1\n")
    await broker.receive(15)
    durations = (await rig.snapshot()).processing
    assert sum(durations.counts) == 5
    # The mock clock does not move.
    assert (spread(durations), durations.sum_s) == ({50e-6: 5}, 0)


async def test_request_is_timed_while_it_is_held_and_not_as_processing(
    start_rig: StartRig, mock_clock: MockClock
) -> None:
    slow = Rule("line_topic", "slow", 1.0, action="delay", max_delay_s=3.0)
    rig = await start_rig(rules=(slow,))
    client, broker = await rig.connect()
    await client.send(b"slow 1\nslow 2\n")
    assert await broker.receive_line() == b"slow 1\n"
    held_since = mock_clock.current_time()
    mock_clock.jump(2.0)
    assert await broker.receive_line() == b"slow 2\n"
    snapshot = await rig.snapshot()
    assert sum(snapshot.processing.counts) == 1
    assert spread(snapshot.held_for) == {2.5: 1}
    assert snapshot.held_for.sum_s == pytest.approx(mock_clock.current_time() - held_since)


async def test_active_limits_are_reported_with_their_source(start_rig: StartRig) -> None:
    rules = (
        Rule("line_topic", "free", None, source="--limit"),
        Rule("line_topic", "log-*", 5.0, bytes_per_s=1000.0, source="file:sluice.toml:3"),
        Rule("line_topic", "log-*", 50.0, shared=True, source=f"{EDIT_SOURCE} 7"),
        Rule("line_topic", "kept", 5.0, action="off"),
        Rule("line_topic", "never", None, exempt=True, source="built-in"),
    )
    rig = await start_rig("line_topic:a=1/s", rules=rules)
    limits = (await rig.snapshot()).limits
    del limits["line_topic", "a", "messages"]  # type: ignore[attr-defined] # the test's own
    assert {key: (limit.per_s, limit.origin) for key, limit in limits.items()} == {
        ("line_topic", "free", "messages"): (float("inf"), "configuration"),
        ("line_topic", "log-*", "messages"): (5, "configuration"),
        ("line_topic", "log-*", "bytes"): (1000, "configuration"),
        ("total", "line_topic:log-*", "messages"): (50, "edit"),
    }


async def test_reported_limits_are_bounded(start_rig: StartRig) -> None:
    rig = await start_rig(*(f"line_topic:{name}=5/s" for name in "abcdef"), max_resource_labels=4)
    assert len((await rig.snapshot()).limits) == 4
