"""Medians, ratios and faults from made-up measurements."""

from typing import Any

import pytest
from report import Table, aligned, faults
from rows import EVERYBODY, Row

THROUGHPUT = Row("throughput-64", "flood", EVERYBODY)
RTT = Row("rtt-low", "rtt", EVERYBODY, 1)


def flood(frames_per_s: float, cpu_us: float | None = 1.0, **other: Any) -> dict[str, Any]:
    share = None if cpu_us is None else frames_per_s * cpu_us / 1e6
    return {
        "mb_per_s": frames_per_s * 536 / 1e6,
        "decided_per_s": frames_per_s,
        "cpu_us_per_frame": cpu_us,
        "cpu_share": share,
        "waited_share": None if cpu_us is None else 0.0,
        "lost": 0,
        "broken": 0,
        "busy": 0,
        "arrived": 1,
        "bypassed": {},
    } | other


def round_trip(p50_us: float) -> dict[str, Any]:
    return {"p50_us": p50_us, "p99_us": 2 * p50_us, "p999_us": 3 * p50_us, "lost": 0, "busy": 0, "bypassed": {}}


def table(row: Row, **rounds: list[dict[str, Any]]) -> Table:
    made = Table(row)
    for peer, measurements in rounds.items():
        for measurement in measurements:
            made.add(peer.replace("_", "-"), measurement)
    return made


def test_ratio_compares_within_a_round_so_that_drift_cancels_out() -> None:
    drifting = table(
        THROUGHPUT,
        haproxy=[flood(1000), flood(500), flood(250)],
        sluice_limited_python=[flood(500), flood(250), flood(125)],
    )
    assert drifting.summary("sluice-limited-python")["against_haproxy"] == 0.5
    assert drifting.summary("sluice-limited-python")["spread"] == pytest.approx(1.5)


def test_cpu_over_the_trio_relay_is_shown_for_sluice_alone() -> None:
    made = table(
        THROUGHPUT,
        haproxy=[flood(1000, 0.3)],
        trio_relay=[flood(1000, 0.4)],
        sluice_limited_python=[flood(100, 3.4)],
    )
    assert made.summary("sluice-limited-python")["over_trio_relay_us"] == pytest.approx(3.0)
    assert made.summary("haproxy")["over_trio_relay_us"] is None


def test_added_round_trip_is_measured_from_direct() -> None:
    made = table(
        RTT,
        direct=[round_trip(20), round_trip(30), round_trip(20)],
        haproxy=[round_trip(120), round_trip(130), round_trip(120)],
        trio_relay=[round_trip(197), round_trip(207), round_trip(197)],
    )
    assert made.summary("trio-relay")["added_p50_us"] == 177
    assert made.summary("trio-relay")["added_against_haproxy"] == pytest.approx(1.77)
    assert made.summary("direct")["added_p50_us"] is None


def test_stretch_of_a_quiet_clients_round_trips_is_compared_with_haproxys() -> None:
    made = table(
        Row("quiet", "quiet", EVERYBODY),
        haproxy=[{"p50_x_alone": 20.0, "p99_x_alone": 30.0}, {"p50_x_alone": 40.0, "p99_x_alone": 60.0}],
        sluice_limited_python=[{"p50_x_alone": 30.0, "p99_x_alone": 15.0}, {"p50_x_alone": 60.0, "p99_x_alone": 30.0}],
    )
    summary = made.summary("sluice-limited-python")
    assert summary["quiet_p50_x_haproxy"] == 1.5
    assert summary["quiet_p99_x_haproxy"] == 0.5


def test_a_single_peer_has_no_ratios() -> None:
    alone = table(THROUGHPUT, direct=[flood(1000, None)])
    assert alone.summary("direct")["against_haproxy"] is None
    assert "1,000" in alone.text()


def test_table_names_row_rounds_and_peers() -> None:
    text = table(RTT, direct=[round_trip(20)], haproxy=[round_trip(120)]).text()
    title, heading, direct, haproxy = text.splitlines()
    assert title == f"rtt-low: {RTT.title} (median of 1)"
    assert RTT.title == "round trip, one request at a time, 1 connection, 536-byte frames, json header, topics: 1"
    assert heading.split("  ")[0] == "peer"
    assert direct.startswith("direct ")
    assert haproxy.startswith("haproxy ")


def test_publishes_are_called_so() -> None:
    for kind in ("publishes", "confirms"):
        made = table(Row(f"{kind}-128", kind, EVERYBODY, frame_bytes=128, window=256), haproxy=[flood(1000)])
        title, heading, _ = made.text().splitlines()
        assert "64 connections, a channel each, 128-byte bodies, queues: 1" in title
        assert "publishes/s" in heading
        assert "CPU us/publish" in heading


def test_columns_are_aligned() -> None:
    assert aligned([["a", "long"], ["bcd", "1"]]) == "a    long\nbcd     1"


def test_sound_measurements_have_no_faults() -> None:
    assert faults("haproxy", flood(1000)) == []
    assert faults("sluice-refused-python", flood(1000, arrived=0, busy=1000)) == []
    assert faults("sluice-limited-python", round_trip(100)) == []


@pytest.mark.parametrize(
    ("peer", "wrong", "word"),
    [
        ("haproxy", {"lost": 3}, "3 frames unaccounted for"),
        ("haproxy", {"broken": 1}, "broken inside a frame"),
        ("sluice-limited-python", {"busy": 5}, "5 requests refused"),
        (
            "sluice-limited-python",
            {"bypassed": {'{reason="late"}': 7}},
            '7 requests bypassed the limiter: {reason="late"}',
        ),
        ("sluice-refused-python", {"quiet_busy": 4, "arrived": 0}, "4 requests of the quiet client refused"),
        ("sluice-refused-python", {"busy": 9, "arrived": 2}, "2 frames passed"),
    ],
)
def test_worthless_measurements_are_named(peer: str, wrong: dict[str, Any], word: str) -> None:
    (fault,) = faults(peer, flood(1000, **wrong))
    assert word in fault
