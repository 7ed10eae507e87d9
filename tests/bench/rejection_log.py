"""What the rejection log costs the data path, and by how much it grows.

First Sluice with the log and without it, from socket to socket: both are started anew for each round of each row and
take turns within it, off, on, on, off. What counts is Sluice's own processor time for a request, everything that it
does for the log included, as a ratio of the two within a round; a busy machine spoils it less than requests a second.
Then refusals are handed to the data path's tally at two rates, one ten times the other, over the same topics, each of
which is refused ten times a second; the clocks are the bench's own, so that it is of a whole minute and comes to the
same on any machine. The log's own files tell how many bytes a second it grows. See README.md for the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, cast

import peers
import trio
from peers import BenchError, Peer, Place, Running
from report import aligned

from admin.edits.model import Change
from admin.edits.service import EditService
from admin.rejection_log.files import Bounds
from admin.rejection_log.recorder import Recorder
from limiter.counting.seconds import Sender
from limiter.rules.limit_text import parse_limit
from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Request, Side

LOAD_DEADLINE_S = 150.0
LIMITED = "topic:*=1000000000/s"
REFUSED = "topic:*=0/s"
OFF, ON = "off", "on"
#: Off, on, on, off: a drift within a round hits both alike.
TURNS = (OFF, ON, ON, OFF)
#: How often each topic is refused in a second, whatever the rate.
TIMES_PER_S = 10
#: The growth begins with a minute, so that it is of a whole one.
BEGINS_S = 1_800_000_000
SENDER = Sender("192.0.2.1", "JAVA")


@dataclass(frozen=True)
class Row:
    """One question: what the traffic is.

    Attributes:
        name: for the table.
        limit: of every topic.
        topics: that take turns.
        connections: of the load.
        rate_per_s: one request in each batch, at this pace; None is big batches, as fast as they are taken.
    """

    name: str
    limit: str
    topics: int
    connections: int
    rate_per_s: float | None = None


@dataclass
class Found:
    """What one row came to: one value for each round.

    Attributes:
        cpu_us: processor time for a request, in microseconds, without the log and with it.
        per_s: requests a second, likewise.
        log_bytes_per_s: by which the log grew while there was traffic.
    """

    row: Row
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {OFF: [], ON: []})
    per_s: dict[str, list[float]] = field(default_factory=lambda: {OFF: [], ON: []})
    log_bytes_per_s: list[float] = field(default_factory=list)

    def line(self) -> list[str]:
        """Return the figures, each the median of the rounds, with the spread of the ratios."""
        cpu, rates = ratios(self.cpu_us), ratios(self.per_s)
        return [
            self.row.name,
            f"{median(self.cpu_us[OFF]):.1f}",
            f"{median(self.cpu_us[ON]):.1f}",
            f"{median(cpu):.3f}",
            f"{min(cpu):.3f} to {max(cpu):.3f}",
            f"{median(self.per_s[OFF]):,.0f}",
            f"{median(rates):.3f}",
            f"{min(rates):.3f} to {max(rates):.3f}",
            f"{median(self.log_bytes_per_s):,.0f}",
        ]


HEADS = (
    "",
    "CPU us/request off",
    "on",
    "on/off",
    "of rounds",
    "requests/s off",
    "on/off",
    "of rounds",
    "log bytes/s",
)


def ratios(figures: dict[str, list[float]]) -> list[float]:
    """Return what it is with the log against without it, round by round."""
    return [on / off for off, on in zip(figures[OFF], figures[ON], strict=True)]


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="rejection_log.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each row (default 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (default 1)")
    parser.add_argument("--warmup", type=float, default=0.3, help="seconds before each measurement (default 0.3)")
    parser.add_argument("--topics", type=int, default=1000, help="of the rows with many topics (default 1000)")
    parser.add_argument("--rate", type=float, default=2000.0, help="requests per second one by one (default 2000)")
    parser.add_argument("--row", action="append", help="only rows with this in their name; may be repeated")
    parser.add_argument("--refusals", type=float, default=100_000.0, help="per second to the tally (default 100000)")
    parser.add_argument(
        "--growth-seconds", type=int, default=60, help="of the log for each rate; 0: left out (default 60)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every figure here")
    parser.add_argument("--base-port", type=int, default=21500, help="first of 8 ports on 127.0.0.1 (default 21500)")
    return parser.parse_args(arguments)


def rows(given: argparse.Namespace) -> list[Row]:
    """Return what is asked for."""
    many, rate = given.topics, given.rate
    everything = [
        Row("passes, 1 topic, big batches", LIMITED, 1, 1),
        Row(f"passes, {many} topics, big batches", LIMITED, many, 1),
        Row("passes, 1 topic, one by one", LIMITED, 1, 16, rate),
        Row(f"passes, {many} topics, one by one", LIMITED, many, 16, rate),
        Row("refused, 1 topic, big batches", REFUSED, 1, 1),
        Row(f"refused, {many} topics, big batches", REFUSED, many, 1),
        Row(f"refused, {many} topics, one by one", REFUSED, many, 16, rate),
    ]
    return [row for row in everything if not given.row or any(part in row.name for part in given.row)]


# --- From socket to socket ------------------------------------------------------------------------


def sluice(row: Row, log: str) -> Peer:
    """Return Sluice with the log where it usually is, or without one."""
    peer = peers.sluice_peer(f"log {log}", row.limit)
    assert peer.command is not None
    plain = peer.command

    def command(place: Place) -> list[str]:
        folder = "off" if log == OFF else str(place.scratch / "rejections")
        return ["env", f"SLUICE_REJECTION_LOG_DIR={folder}", *plain(place)]

    return replace(peer, command=command)


def measured(row: Row, running: Running, control: int, given: argparse.Namespace) -> tuple[float, float]:
    """Measure once; return processor seconds for, and requests, of the measurement and its warm-up together."""
    command = [str(peers.LOAD), "rtt" if row.rate_per_s else "flood", "--target", f"127.0.0.1:{running.target}"]
    command += ["--topics", str(row.topics), "--connections", str(row.connections)]
    command += ["--warmup", str(given.warmup), "--seconds", str(given.seconds)]
    command += ["--rate", str(row.rate_per_s)] if row.rate_per_s else ["--control", f"127.0.0.1:{control}"]
    command += [] if row.rate_per_s else ["--pid", str(running.pid)]
    before_s = cpu_s(running)
    load = subprocess.run(
        peers.pinned(peers.LOAD_CORE, command),
        capture_output=True,
        text=True,
        check=False,
        timeout=given.warmup + given.seconds + LOAD_DEADLINE_S,
    )
    if load.returncode:
        raise BenchError(f"{row.name}, {running.peer.name}: {load.stderr.strip()}{peers.last_words(running.log)}")
    said: dict[str, Any] = json.loads(load.stdout)
    if said["lost"]:
        raise BenchError(f"{row.name}, {running.peer.name}: {said['lost']} requests are unaccounted for")
    if row.rate_per_s:
        requests = row.rate_per_s * (given.warmup + given.seconds)
        return (cpu_s(running) - before_s) / requests * 1e6, row.rate_per_s
    return said["cpu_us_per_frame"], said["frames_per_s"] + said["busy_per_s"]


def cpu_s(running: Running) -> float:
    """Return how long Sluice has computed, all of its threads."""
    fields = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_round(found: Found, given: argparse.Namespace) -> None:
    """Start Sluice without the log and with it, and let them take turns."""
    row, port = found.row, given.base_port
    with tempfile.TemporaryDirectory(prefix="sluice-log-") as scratch:
        at = {
            log: Place(number, number + 1, port + 4, Path(scratch) / log)
            for log, number in ((OFF, port), (ON, port + 2))
        }
        with (
            peers.sink(port + 4, port + 5, swallow=row.rate_per_s is None, scratch=Path(scratch)),
            peers.started(sluice(row, OFF), at[OFF]) as off,
            peers.started(sluice(row, ON), at[ON]) as on,
        ):
            figures: dict[str, list[tuple[float, float]]] = {OFF: [], ON: []}
            folder, began_s, bytes_before, took_s = at[ON].scratch / "rejections", 0.0, 0, 0.0
            for log in TURNS:
                if log == ON and not figures[ON]:
                    began_s, bytes_before = time.monotonic(), size_bytes(folder)
                figures[log].append(measured(row, {OFF: off, ON: on}[log], port + 5, given))
                if log == ON:
                    took_s = time.monotonic() - began_s
            # The last second was written when it was over, and the last turn is without the log.
            grown = size_bytes(folder) - bytes_before
            bypassed = off.bypassed() + on.bypassed()
    if bypassed.total():
        raise BenchError(f"{row.name}: {bypassed.total()} requests went past the limiter")
    for log, pairs in figures.items():
        found.cpu_us[log].append(sum(cpu for cpu, _ in pairs) / len(pairs))
        found.per_s[log].append(sum(rate for _, rate in pairs) / len(pairs))
    found.log_bytes_per_s.append(grown / took_s)


def size_bytes(folder: Path) -> int:
    """Return the bytes of the log."""
    return sum(file.stat().st_size for file in folder.rglob("*.jsonl*") if file.is_file())


# --- Growth ---------------------------------------------------------------------------------------


class NoEdits:
    """Limits that nobody changes."""

    def __init__(self, rule_set: RuleSet) -> None:
        self.rule_set = rule_set

    async def changes(self) -> AsyncIterator[Change]:
        """Yield nothing, ever."""
        send, receive = trio.open_memory_channel[Change](0)
        async with send, receive:
            async for change in receive:
                yield change


@dataclass(frozen=True)
class Growth:
    """How the log grew at one rate.

    Attributes:
        refusals_per_s: handed to the tally.
        bytes_per_s: by which the log grew.
    """

    refusals_per_s: float
    bytes_per_s: float


class Clock:
    """Both clocks, in the bench's hand."""

    def __init__(self) -> None:
        self.now_ns = 0

    def wall_s(self) -> float:
        """Return the seconds since 1970."""
        return BEGINS_S + self.now_ns / 1e9

    def wall(self) -> datetime:
        """Return the time of day."""
        return datetime.fromtimestamp(self.wall_s(), UTC)


def growth(refusals_per_s: float, topics: int, seconds: int) -> Growth:
    """Refuse so many requests a second for some seconds, and look at the files."""
    with tempfile.TemporaryDirectory(prefix="sluice-log-") as scratch:
        return trio.run(_grow, refusals_per_s, topics, seconds, Path(scratch))


async def _grow(refusals_per_s: float, topics: int, seconds: int, scratch: Path) -> Growth:
    rule_set, clock = RuleSet((parse_limit(REFUSED),)), Clock()
    data_path = LocalDataPath(DataPathConfig((), (), rule_set), lambda: clock.now_ns, clock.wall)
    live = cast("EditService", NoEdits(rule_set))
    bounds = Bounds(64 * 1024 * 1024, 3600.0, 1024 * 1024 * 1024)
    log = Recorder(data_path, live, scratch, instance="bench", bounds=bounds, max_resources=10_000, wall_s=clock.wall_s)
    batches = _refused(topics, max(1, round(refusals_per_s / topics / TIMES_PER_S)))
    handed = 0
    await log._begin()
    for _ in range(seconds):
        for _ in range(TIMES_PER_S):
            for batch in batches:
                data_path._tally.count(batch, clock.now_ns, SENDER)
                handed += len(batch.requests)
            clock.now_ns += 1_000_000_000 // TIMES_PER_S
        await log._step()
    await log.finish()
    lost = log.files.figures.lost.total()
    if lost or log.files.figures.other_runs:
        raise BenchError(f"{lost} records were lost, {log.files.figures.other_runs} counted together: {log.error}")
    return Growth(handed / seconds, size_bytes(scratch) / seconds)


def _refused(topics: int, requests: int) -> list[Batch]:
    """Return a batch of so many refused requests for each topic."""
    refuse = Refuse(Resource("topic", "*"), "topic:*", 1_000_000)
    info = ConnectionInfo(1, "main", "main", f"{SENDER.address}:40000", SENDER.address)
    batches = []
    for number in range(topics):
        resources = (Resource("topic", f"bench{number:06}"),)
        batch = Batch(
            info,
            Side.CLIENT,
            [Request(resources, 1, 536, "producers", "answered", None, None) for _ in range(requests)],
        )
        batch.add_verdicts(dict.fromkeys(range(requests), refuse))
        batches.append(batch)
    return batches


# --- All of it ------------------------------------------------------------------------------------


def bench(given: argparse.Namespace) -> int:
    """Run everything and print the figures."""
    before = load_average()
    found = [Found(row) for row in rows(given)]
    if found and given.rounds:
        peers.build_load()
        for number in range(1, given.rounds + 1):
            for each in found:
                if sys.stderr.isatty():
                    print(
                        f"\r\033[K{each.row.name}, round {number} of {given.rounds}",
                        end="",
                        file=sys.stderr,
                        flush=True,
                    )
                one_round(each, given)
        print(f"{given.rounds} rounds of {len(TURNS)} x {given.seconds:g} s for each row")
        print(aligned([HEADS, *(each.line() for each in found)]), end="\n\n", flush=True)
    grown: list[Growth] = []
    if given.growth_seconds:
        grown = [growth(rate, given.topics, given.growth_seconds) for rate in (given.refusals / 10, given.refusals)]
        heads = [f"refusals/s over {given.topics} topics", "log bytes/s", "per refusal"]
        lines = [
            [f"{each.refusals_per_s:,.0f}", f"{each.bytes_per_s:,.0f}", f"{each.bytes_per_s / each.refusals_per_s:.2f}"]
            for each in grown
        ]
        print(aligned([heads, *lines]), end="\n\n")
    print(f"load average {before} before, {load_average()} after; on a busy machine only the ratios mean something")
    if given.json:
        kept = {"rows": [asdict(each) for each in found], "growth": [asdict(each) for each in grown]}
        given.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


def load_average() -> str:
    """Say how busy the machine has been in the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def main() -> int:
    """Run the bench for the command line."""
    try:
        return bench(options(sys.argv[1:]))
    except (BenchError, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
