"""The bench itself, for a moment: builds the load, measures the peers that are always there, and cleans up."""

import json
import socket
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "--rounds", "1", "--seconds", "0.1", "--warmup", "0.05", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_every_frame_is_accounted_for_and_every_figure_kept(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    ran = bench("--peer", "direct", "--peer", "trio-relay", "--base-port", "21900", "--json", str(kept))
    assert ran.returncode == 0, ran.stderr
    rows = {row["name"]: row["peers"] for row in json.loads(kept.read_text())["rows"]}
    assert list(rows) == ["throughput-1", "throughput-64", "rtt-low", "rtt-open"]
    for name, peers in rows.items():
        assert list(peers) == ["direct", "trio-relay"]
        for figures in peers.values():
            (measured,) = figures["rounds"]
            assert measured["lost"] == 0
            assert measured["sent" if name.startswith("throughput") else "requests"] > 0


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 21951)):
        ran = bench("--peer", "direct", "--row", "rtt-low", "--base-port", "21950")
    assert ran.returncode == 2
    assert ran.stderr == "bench: port 21951 on 127.0.0.1 is taken: choose others with --base-port\n"
