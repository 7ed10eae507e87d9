"""Measures one row at one peer with the load generator."""

import json
import subprocess
from pathlib import Path
from typing import Any

import peers
from peers import BenchError, Running
from report import Measurement
from rows import ACCEPT, ANSWERED, CONFIRMS, FLOOD, LOADED, MEMORY, PUBLISHES, QUIET, ROCKETMQ, TRANSFERS, Row

# The load's own deadlines (drain, late answers, all topics) end it long before this.
LOAD_DEADLINE_S = 480.0
# For a machine so busy that hardly anything passed.
MIN_REQUESTS = 10
# The load itself is late above this.
MAX_REQUESTS_PER_S = 300_000.0
MIB = 1 << 20
KIB = 1 << 10


class Asker:
    def __init__(self, control: int, seconds: float, warmup: float) -> None:
        self.control = control
        self.seconds = seconds
        self.warmup = warmup

    def measure(
        self, row: Row, running: Running, rate_per_s: float | None = None, *, known: bool = False
    ) -> Measurement:
        bypassed = running.bypassed()
        measurement = self._load(row, running, row.rate_per_s or rate_per_s, known=known)
        measurement["bypassed"] = dict(running.bypassed() - bypassed)
        if row.kind == QUIET:
            for figure in ("p50", "p99"):
                measurement[f"{figure}_x_alone"] = measurement[f"{figure}_us"] / measurement[f"alone_{figure}_us"]
        if row.kind in (FLOOD, ANSWERED, MEMORY, QUIET, PUBLISHES, CONFIRMS, TRANSFERS):
            measurement["decided_per_s"] = measurement["frames_per_s"] + measurement["busy_per_s"]
        if row.kind == MEMORY:
            fresh, idle, busy = (measurement[f"{when}_bytes"] for when in ("fresh", "idle", "busy"))
            measurement["fresh_mb"] = fresh / MIB
            measurement["idle_kib"] = (idle - fresh) / row.connections / KIB
            measurement["busy_kib"] = (busy - fresh) / row.connections / KIB
        return measurement

    def _load(self, row: Row, running: Running, rate_per_s: float | None, *, known: bool) -> Measurement:
        command = self._command(row, running, rate_per_s)
        if known and row.kind == FLOOD:
            command.append("--known-topics")
        try:
            load = subprocess.run(
                peers.pinned(peers.LOAD_CORE, command),
                capture_output=True,
                text=True,
                check=False,
                timeout=self.warmup + self.seconds * row.stretch + LOAD_DEADLINE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{running.peer.name}, {row.name}: no result after {error.timeout:.0f} s") from error
        if load.returncode:
            raise BenchError(f"{running.peer.name}, {row.name}: {load.stderr.strip()}{peers.last_words(running.log)}")
        measurement: Measurement = json.loads(load.stdout)
        return measurement

    def _command(self, row: Row, running: Running, rate_per_s: float | None) -> list[str]:
        counted = ["--control", f"127.0.0.1:{self.control}", "--connections", str(row.connections)]
        pid = [] if running.pid is None else ["--pid", str(running.pid)]
        window = [] if row.window is None else ["--window", str(row.window)]
        if row.kind in (FLOOD, ANSWERED):
            mode, more = "flood", [*counted, *window, *pid]
        elif row.kind in (PUBLISHES, CONFIRMS):
            mode, more = "flood", [*counted, *window, *pid, "--protocol", row.protocol]
        elif row.kind == TRANSFERS:
            settled = ["--settled"] if row.settled else []
            mode, more = "flood", [*counted, *pid, "--protocol", row.protocol, *settled]
        elif row.kind == MEMORY:
            mode, more = "flood", [*counted, *window, *pid, "--memory"]
        elif row.kind == QUIET:
            mode, more = "quiet", [*counted, *pid]
        elif row.kind == ACCEPT:
            mode, more = "accept", ["--at-once", str(row.connections), *pid]
        elif rate_per_s is None:
            mode, more = "rtt", ["--one-at-a-time"]
        else:
            mode, more = "rtt", ["--rate", f"{rate_per_s:.0f}", "--connections", str(row.connections)]
        command = [str(peers.LOAD), mode, "--target", f"127.0.0.1:{running.target}"]
        command += ["--size", str(row.frame_bytes), "--topics", str(row.topics)]
        if row.protocol == ROCKETMQ:
            command += ["--header", row.header]
        # Links get more credit step by step at first.
        warmup = 4 * self.warmup if row.kind == TRANSFERS else self.warmup
        return [*command, "--warmup", str(warmup), "--seconds", str(self.seconds * row.stretch), *more]

    def measure_loaded(
        self, row: Row, running: Running, saturation: float, haproxy: Running | None
    ) -> list[Measurement]:
        """Measure round trips at a share of the peer's saturation, and HAProxy's at the same rate right after it."""
        assert row.kind == LOADED
        assert row.share is not None
        rate_per_s = min(max(MIN_REQUESTS / self.seconds, saturation * row.share), MAX_REQUESTS_PER_S)
        mine = self.measure(row, running, rate_per_s)
        if haproxy is None:
            return [mine]
        theirs = self.measure(row, haproxy, rate_per_s)
        for figure in ("p50_us", "p99_us", "p999_us", "late_p99_us"):
            mine[f"haproxy_{figure}"] = theirs[figure]
        mine["p99_against_haproxy"] = mine["p99_us"] / theirs["p99_us"] if theirs["p99_us"] else None
        return [mine, theirs]


def decisions(rounds: int, seconds: float, core: int, scratch: Path) -> dict[str, list[dict[str, Any]]]:
    """Let Guava's limiter and Sluice's decide in turns, in a separate process. Return lines of the table by name."""
    kept = scratch / "decisions.json"
    command = [peers.python(), str(peers.BENCH / "against_guava.py"), "--json", str(kept)]
    command += ["--rounds", str(rounds), "--seconds", str(seconds)]
    ran = subprocess.run(peers.pinned(core, command), capture_output=True, text=True, check=False, timeout=600)
    if ran.returncode:
        raise BenchError(f"decisions against Guava's: {ran.stderr.strip()}")
    lines: dict[str, list[dict[str, Any]]] = json.loads(kept.read_text())["lines"]
    return lines
