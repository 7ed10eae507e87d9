"""A short run of the bench: builds the load, measures the peers that are always there, and cleans up."""

import json
import socket
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")
# One of each kind that needs only the load generator.
ROWS = (
    *("throughput-1", "connections-64", "rtt-low", "rtt-50", "rtt-open", "accept", "quiet", "memory"),
    *("publishes-128", "confirms-1024", "transfers-128", "transfers-settled", "transfers-plenty-1024"),
)
FLOODS = ("flood", "answered", "quiet", "memory", "publishes", "confirms", "transfers")


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "--rounds", "1", "--seconds", "0.1", "--warmup", "0.05", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_every_frame_is_accounted_for_and_every_figure_kept(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    chosen = [word for name in ROWS for word in ("--row", name)]
    ran = bench("--peer", "direct", "--peer", "trio-relay", "--base-port", "21900", "--json", str(kept), *chosen)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(kept.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {*ROWS, "answered-64"}, "a share of saturation brings its measurement along"
    for row in rows.values():
        assert "trio-relay" in row["peers"]
        for figures in row["peers"].values():
            (measured,) = figures["rounds"]
            assert measured["lost"] == 0
            assert measured["sent" if row["kind"] in FLOODS else "requests"] > 0
            if row["kind"] in ("confirms", "transfers"):
                assert measured["unanswered"] == 0
    memory = rows["memory"]["peers"]["trio-relay"]["median"]
    assert 0 < memory["idle_kib"] < memory["busy_kib"]
    assert {goal["met"] for goal in found["goals"]} == {"not measured"}


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 21951)):
        ran = bench("--peer", "direct", "--row", "rtt-low", "--base-port", "21950")
    assert ran.returncode == 2
    assert ran.stderr == "bench: port 21951 on 127.0.0.1 is taken: choose others with --base-port\n"


def test_frames_are_changed_in_named_rows_only() -> None:
    ran = bench("--size", "128")
    assert ran.returncode == 2
    assert "change rows that are named by --row" in ran.stderr
