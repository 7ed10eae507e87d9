"""The benchmark of Sluice: every peer in one run, on one machine, round by round in turn.

See README.md beside this file for what is measured and how to read it.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import peers
import report
from peers import BenchError, Peer, Place, Running
from report import Measurement, Row, Table

# The load's own deadlines (drain, late answers) end it long before this.
LOAD_DEADLINE_S = 150.0
# Above this share of other work the figures come with a warning.
QUIET = 0.05
RTT_PEERS = tuple(peer for peer in peers.PEERS if peer is not peers.SLUICE_REFUSED)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    names = [peer.name for peer in peers.PEERS]
    rows = ["throughput-1", "throughput-64", "rtt-low", "rtt-open"]
    parser.add_argument("--quick", action="store_true", help="3 short rounds, about a minute in all; for a first look")
    parser.add_argument("--rounds", type=positive_int, help="measurements of each peer in each row (default 5)")
    parser.add_argument("--seconds", type=positive, help="length of one measurement (default 2)")
    parser.add_argument("--warmup", type=positive, help="seconds before each measurement (default 0.5)")
    parser.add_argument("--row", action="append", choices=rows, help="only this row; may be repeated")
    parser.add_argument("--peer", action="append", choices=names, help="only this peer; may be repeated")
    parser.add_argument("--without", action="append", choices=names, default=[], help="leave this peer out")
    parser.add_argument("--size", type=int, default=536, help="bytes of a frame (default 536)")
    parser.add_argument("--header", choices=["json", "binary"], default="json")
    parser.add_argument("--topics", type=int, default=1, help="topics that take turns (default 1)")
    parser.add_argument("--rate", type=positive, default=2000, help="requests per second of rtt-open (default 2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    parser.add_argument("--base-port", type=int, default=21000, help="first of 20 ports on 127.0.0.1 (default 21000)")
    given = parser.parse_args(arguments)
    rounds, seconds, warmup = (3, 0.4, 0.2) if given.quick else (5, 2.0, 0.5)
    given.rounds = given.rounds or rounds
    given.seconds = given.seconds or seconds
    given.warmup = given.warmup or warmup
    given.row = given.row or rows
    return given


def positive(text: str) -> float:
    """Read a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def positive_int(text: str) -> int:
    """Read a whole number above 0."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def rows_of(given: argparse.Namespace) -> list[Row]:
    """Return the rows asked for."""
    frames = (given.size, given.header, given.topics)
    rows = [
        Row("throughput-1", "throughput", 1, *frames),
        Row("throughput-64", "throughput", 64, *frames),
        Row("rtt-low", "rtt", 1, *frames),
        Row("rtt-open", "rtt", 1, *frames, rate_per_s=given.rate),
    ]
    return [row for row in rows if row.name in given.row]


def measure(row: Row, running: Running, control: int, given: argparse.Namespace) -> Measurement:
    """Put one row's question to one peer."""
    command = [str(peers.LOAD), "flood" if row.kind == "throughput" else "rtt"]
    command += ["--target", f"127.0.0.1:{running.target}"]
    command += ["--size", str(row.frame_bytes), "--header", row.header, "--topics", str(row.topics)]
    command += ["--warmup", str(given.warmup), "--seconds", str(given.seconds)]
    if row.kind == "throughput":
        command += ["--control", f"127.0.0.1:{control}", "--connections", str(row.connections)]
        command += [] if running.pid is None else ["--pid", str(running.pid)]
    elif row.rate_per_s is None:
        command += ["--one-at-a-time"]
    else:
        command += ["--rate", str(row.rate_per_s), "--connections", str(row.connections)]
    bypassed = running.bypassed()
    try:
        load = subprocess.run(
            peers.pinned(peers.LOAD_CORE, command),
            capture_output=True,
            text=True,
            check=False,
            timeout=given.warmup + given.seconds + LOAD_DEADLINE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{running.peer.name}, {row.name}: no result after {error.timeout:.0f} s") from error
    if load.returncode:
        raise BenchError(f"{running.peer.name}, {row.name}: {load.stderr.strip()}{peers.last_words(running.log)}")
    measurement: Measurement = json.loads(load.stdout)
    measurement["bypassed"] = dict(running.bypassed() - bypassed)
    if row.kind == "throughput":
        measurement["decided_per_s"] = measurement["frames_per_s"] + measurement["busy_per_s"]
    return measurement


@contextlib.contextmanager
def all_started(
    chosen: Sequence[Peer], *, swallow: bool, base_port: int, scratch: Path
) -> Iterator[tuple[list[Running], int]]:
    """Start the sink and every peer in front of it; yield the peers and the port of the sink's counters."""
    broker, control = base_port, base_port + 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(peers.sink(broker, control, swallow=swallow, scratch=scratch))
        running = []
        for number, peer in enumerate(chosen, start=1):
            place = Place(base_port + 2 * number, base_port + 2 * number + 1, broker, scratch / peer.name)
            running.append(stack.enter_context(peers.started(peer, place)))
        yield running, control


def run_rows(
    rows: Sequence[Row], chosen: Sequence[Peer], given: argparse.Namespace, scratch: Path
) -> tuple[list[Table], list[str]]:
    """Measure rows that share one kind of sink; return their tables and what was wrong."""
    tables: list[Table] = []
    wrong: list[str] = []
    swallow = rows[0].kind == "throughput"
    with all_started(chosen, swallow=swallow, base_port=given.base_port, scratch=scratch) as (running, control):
        for row in rows:
            table = Table(row)
            for number in range(1, given.rounds + 1):
                for each in running:
                    name = each.peer.name
                    progress(f"{row.name}, round {number} of {given.rounds}: {name}")
                    measurement = measure(row, each, control, given)
                    table.add(name, measurement)
                    faults = report.faults(name, measurement)
                    wrong += [f"{name}, {row.name}, round {number}: {fault}" for fault in faults]
            progress("")
            print(table.text(), end="\n\n", flush=True)
            tables.append(table)
    return tables, wrong


def progress(text: str) -> None:
    """Show where the run stands, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Say where the figures come from."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name"))
    return {
        "cpu": next(models, platform.machine()),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def busy_share() -> float:
    """Look for a second at how busy all cores are; before and after the run that is other people's work."""

    def times() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    total, idle = times()
    time.sleep(1)
    total_later, idle_later = times()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def check_machine() -> None:
    """Raise BenchError where the figures would mean nothing."""
    if platform.system() != "Linux":
        raise BenchError("the bench runs on Linux only: it pins processes and reads /proc")
    cores = os.sched_getaffinity(0)
    if not {peers.PROXY_CORE, peers.LOAD_CORE} <= cores:
        raise BenchError(f"the bench needs cores 0 and 1, one for the proxy and one for the load; it may use {cores}")
    for tool in ("taskset", "setpriv"):
        if shutil.which(tool) is None:
            raise BenchError(f"the bench needs {tool}: install it with `apt-get install util-linux`")


def bench(given: argparse.Namespace) -> int:
    """Run everything; return the exit status."""
    check_machine()
    chosen = [p for p in peers.PEERS if p.name not in given.without and p.name in (given.peer or p.name)]
    if not chosen:
        raise BenchError("no peer is left to measure")
    for peer in chosen:
        peer.check()
    peers.build_load()
    where = machine()
    print(
        f"{where['cpu']}, {where['cores']} cores, Linux {where['kernel']}, Python {where['python']}; "
        f"{given.rounds} rounds of {given.seconds:g} s\n",
        flush=True,
    )
    busy_before = busy_share()
    tables: list[Table] = []
    wrong: list[str] = []
    rows = rows_of(given)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        for kind, able in (("throughput", peers.PEERS), ("rtt", RTT_PEERS)):
            of_kind = [row for row in rows if row.kind == kind]
            taking_part = [peer for peer in chosen if peer in able]
            if of_kind and taking_part:
                done, faults = run_rows(of_kind, taking_part, given, Path(scratch))
                tables += done
                wrong += faults
    busy_after = busy_share()
    if max(busy_before, busy_after) > QUIET:
        print(
            f"This machine was {busy_before:.0%} busy with other work before the run and {busy_after:.0%} after it: "
            "the figures are worth little.",
            flush=True,
        )
    if given.json:
        where |= {"busy_before": round(busy_before, 3), "busy_after": round(busy_after, 3)}
        settings = {"rounds": given.rounds, "seconds": given.seconds, "warmup": given.warmup}
        kept = {"machine": where, "settings": settings, "rows": [t.as_json() for t in tables], "faults": wrong}
        given.json.write_text(json.dumps(kept, indent=1) + "\n")
    for fault in wrong:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    """Run the bench for the command line; every child has ended when this returns."""
    # Asked for by name: a shell's background jobs start with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return bench(options(sys.argv[1:]))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
