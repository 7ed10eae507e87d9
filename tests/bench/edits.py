"""Live edits next to traffic: what they cost the data path, in one run with the same process.

Requests go through Sluice on a fixed schedule; latency counts from the moment at which one was due. The modes take
turns, round by round: without edits; edits in batches; edits that are each a request of its own, at a rate and, last,
as fast as they go. Each edit is durable when it is answered. Sluice, the load, the sink that is the broker and the
editor are processes of their own. See README.md for the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import peers
from peers import BenchError, Place, Running

EDITOR = peers.BENCH / "editor.py"
DEADLINE_S = 60.0
QUANTILES = ("p50_us", "p99_us", "p999_us")
#: The editor begins before the load measures, and ends after it.
LEAD_S = 0.5

SLUICE = peers.sluice_peer("sluice", "topic:*=1000000000/s")


@dataclass(frozen=True)
class Mode:
    """What the editor does.

    Attributes:
        name: for the table.
        requests_per_s: 0 is as many as it goes; None edits nothing.
        batch: edits in a request; 0 is PUT of one limit.
        connections: over which it edits.
    """

    name: str
    requests_per_s: float | None = None
    batch: int = 0
    connections: int = 1


@dataclass
class Round:
    """What one measurement found.

    Attributes:
        load: latencies of the traffic, as ``load rtt`` tells them.
        edits: what the editor tells; empty without one.
        cpu: share of a core that Sluice used.
    """

    load: dict[str, Any]
    edits: dict[str, Any]
    cpu: float


@dataclass
class Rounds:
    """All measurements of one mode."""

    mode: Mode
    rounds: list[Round] = field(default_factory=list)

    def line(self) -> list[str]:
        """Return the figures, each the median of the rounds."""
        cells = [self.mode.name]
        cells += [f"{median(each.load[name] for each in self.rounds) / 1000:.2f}" for name in QUANTILES]
        cells.append(f"{median(each.cpu for each in self.rounds):.0%}")
        if self.mode.requests_per_s is None:
            return cells
        found = [each.edits for each in self.rounds]
        cells.append(f"{median(each['edits'] / each['seconds'] for each in found):.0f}")
        cells += [f"{median(quantile(each['latencies_ms'], share) for each in found):.1f}" for share in (0.5, 0.99)]
        cells.append(f"{median(each['groups'] / each['seconds'] for each in found):.0f}")
        cells.append(str(sum(each["failed"] for each in found)))
        return cells


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile; there is at least one value."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="edits.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each mode (default 3)")
    parser.add_argument("--edits", type=float, default=200.0, help="edits per second in batches (default 200)")
    parser.add_argument("--batch", type=int, default=20, help="edits in a batch (default 20)")
    parser.add_argument("--single", type=float, default=10.0, help="edits per second one by one (default 10)")
    parser.add_argument("--connections", type=int, default=16, help="of those who edit one by one (default 16)")
    parser.add_argument(
        "--rate", type=float, default=1000.0, help="requests per second of the data path (default 1000)"
    )
    parser.add_argument("--base-port", type=int, default=21400, help="first of 4 ports on 127.0.0.1 (default 21400)")
    return parser.parse_args(arguments)


def modes(given: argparse.Namespace) -> list[Mode]:
    """Return what is measured, in turn."""
    return [
        Mode("no edits"),
        Mode(f"{given.edits:g}/s by {given.batch}", given.edits / given.batch, given.batch, 4),
        Mode(f"{given.single:g}/s one by one", given.single, 0, given.connections),
        Mode("one by one, flat out", 0, 0, given.connections),
    ]


def measured(running: Running, mode: Mode, given: argparse.Namespace) -> Round:
    """Measure the traffic's latency once."""
    load = [str(peers.LOAD), "rtt", "--target", f"127.0.0.1:{running.target}", "--connections", "4"]
    load += ["--rate", str(given.rate), "--warmup", str(LEAD_S), "--seconds", str(given.seconds)]
    load += ["--size", "536", "--header", "json", "--topics", "4"]
    commands = [load]
    if mode.requests_per_s is not None:
        editor = [sys.executable, str(EDITOR), "--port", str(running.admin), "--batch", str(mode.batch)]
        editor += ["--connections", str(mode.connections), "--rate", str(mode.requests_per_s)]
        commands.append([*editor, "--seconds", str(given.seconds + 2 * LEAD_S)])
    began_s = cpu_s(running)
    said = together(commands, given.seconds + DEADLINE_S, running)
    cpu = (cpu_s(running) - began_s) / (given.seconds + 2 * LEAD_S)
    return Round(json.loads(said[0]), json.loads(said[1]) if len(said) > 1 else {}, cpu)


def together(commands: Sequence[Sequence[str]], timeout_s: float, running: Running) -> list[str]:
    """Run programs at the same time and return what they print."""
    children: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            pinned = peers.pinned(peers.LOAD_CORE, list(command))
            children.append(subprocess.Popen(pinned, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        said = [child.communicate(timeout=timeout_s) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    for child, command, (_, error) in zip(children, commands, said, strict=True):
        if child.returncode:
            raise BenchError(f"{Path(command[0]).name}: {error.strip()[-2000:]}{peers.last_words(running.log)}")
    return [output for output, _ in said]


def cpu_s(running: Running) -> float:
    """Return how long Sluice has computed, all of its threads."""
    fields = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(found: Sequence[Rounds]) -> str:
    """Return all figures as text."""
    heads = ["", "p50 ms", "p99 ms", "p99.9 ms", "core", "edits/s", "edit p50 ms", "p99 ms", "commits/s", "failed"]
    lines = [heads, *(each.line() for each in found)]
    widths = [max(len(line[column]) for line in lines if column < len(line)) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=False))
        )
        for line in lines
    )


def load_average() -> str:
    """Say how busy the machine has been in the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def bench(given: argparse.Namespace) -> int:
    """Run all rounds and print the figures."""
    peers.build_load()
    found = [Rounds(mode) for mode in modes(given)]
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="sluice-edits-") as scratch:
        place = Place(given.base_port, given.base_port + 1, given.base_port + 2, Path(scratch))
        with (
            peers.sink(place.broker, given.base_port + 3, swallow=False, scratch=Path(scratch)),
            peers.started(SLUICE, place) as running,
        ):
            for _ in range(given.rounds):
                for each in found:
                    each.rounds.append(measured(running, each.mode, given))
            bypassed = running.bypassed().total()
    print(
        f"{given.rate:g} requests/s; {given.rounds} rounds of {given.seconds:g} s; load average {before} before,"
        f" {load_average()} after; a commit is one fdatasync of the journal"
    )
    print(table(found))
    failed = sum(each.edits.get("failed", 0) for rounds in found for each in rounds.rounds)
    if failed or bypassed:
        print(f"fault: {failed} edits failed, {bypassed} requests went past the limiter", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Run the bench for the command line."""
    try:
        return bench(options(sys.argv[1:]))
    except (BenchError, subprocess.TimeoutExpired) as error:
        print(f"edits.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
