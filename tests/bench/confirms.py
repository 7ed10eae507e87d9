"""The effect of confirms after the consumers' ack: PerfTest against a real RabbitMQ, by queues, windows and disks.

    .venv/bin/python tests/bench/confirms.py             # everything, about 25 minutes
    .venv/bin/python tests/bench/confirms.py --quick     # one queue, one round, two minutes
    .venv/bin/python tests/bench/confirms.py --root .parts/rabbitmq4/root     # with RabbitMQ 4, needs root

Each measurement is one PerfTest: durable classic queues, and for each of them two producers with two channels, three
consumers with three channels, persistent messages of ``--size`` bytes through the default exchange, publisher confirms
with a window of outstanding ones on each channel, and manual acks. It connects to the broker directly, through Sluice
without a rule for confirms, and through Sluice with ``confirm = "after_consume"``, in turns, round by round. All queues
are emptied in between. The disk is the machine's, and then one whose fsyncs each take ``--sync-ms`` longer.

Confirmed messages a second are the mean of a PerfTest's seconds once Java is warm. p50 and p99 of the time until a
confirm are the medians of PerfTest's figures for these seconds. A figure is the median of its rounds. Ratios are within
a round. Broker, PerfTest and Sluice share all cores: where these are full, the disk is not the bottleneck. ``after`` is
the share of the publishes confirmed by the consumers' ack, by Sluice's own count. ``syncs`` are the broker's fsyncs per
confirmed message, which the slow disk counts. ``CPU us`` is Sluice's processor time per message.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import machine
import script
from peers import BenchError
from report import aligned
from rows import DIRECT

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness.paths import program, rabbitmq_classpath
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice

WITHOUT, WITH = "sluice without", "sluice with"
WAYS = (DIRECT, WITHOUT, WITH)
AS_IS, SLOW = "as it is", "slow"
DISKS = (AS_IS, SLOW)
QUEUES = (1, 2, 4, 15)
WINDOWS = (1, 100)
PRODUCERS, PRODUCER_CHANNELS, CONSUMERS, CONSUMER_CHANNELS = 2, 2, 3, 3
"""Connections for each queue, and channels of each."""
AT_LEAST, AT_ONE_QUEUE = 0.95, 3.0
"""Confirmed messages a second with the rule relative to without it: everywhere, and at one queue with the slow disk."""
WARMUP_S = 2
"""Seconds of each run that do not count, because Java compiles."""
# Beyond its own time: Java's start, and its threads' end.
END_DEADLINE_S = 45.0
_SECOND = re.compile(r"time:? [\d.]+ ?s, .*")
# It warms up at once, and has few threads.
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_CONFIRMED = re.compile(r"confirmed: ([\d.]+) msg/s")
_LATENCY = re.compile(r"confirm latency: ([\d/]+) .s")
_RULE = """
[[limits]]
kind = "queue"
name = "*"
rate = "unlimited"
"""


@dataclass(frozen=True)
class Cell:
    """One comparison: the number of queues, the window on each channel, and the disk."""

    queues: int
    window: int
    disk: str

    @property
    def title(self) -> str:
        return f"queues: {self.queues}, window: {self.window}, disk: {self.disk}"


@dataclass(frozen=True)
class Measured:
    confirmed_per_s: float
    p50_ms: float
    p99_ms: float
    after_share: float | None = None
    syncs_each: float | None = None
    cpu_us: float | None = None


@dataclass(frozen=True)
class Way:
    """A connection to the broker: name, address, and the Sluice between, if there is one."""

    name: str
    address: str
    sluice: Sluice | None = None


Rounds = dict[str, list[Measured]]
"""By way."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="confirms.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, help="measurements of each way, of each row (default 3)")
    parser.add_argument("--seconds", type=int, default=6, help=f"of a PerfTest, {WARMUP_S} to warm up (default 6)")
    parser.add_argument("--size", type=int, default=1500, help="bytes of a body (default 1500)")
    parser.add_argument(
        "--sync-ms", type=int, default=5, help="that each fsync of the slow disk takes longer (default 5)"
    )
    parser.add_argument("--queues", type=int, action="append", help=f"only so many; repeatable (default {QUEUES})")
    parser.add_argument("--window", type=int, action="append", help=f"only this; repeatable (default {WINDOWS})")
    parser.add_argument("--disk", action="append", choices=DISKS, help="only this; repeatable")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this; repeatable")
    parser.add_argument(
        "--root", type=lambda text: Path(text).resolve(), help="of another Debian, whose RabbitMQ is taken; needs root"
    )
    parser.add_argument("--quick", action="store_true", help="one queue and one round, unless said otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args(arguments)
    given.rounds = given.rounds if given.rounds is not None else 1 if given.quick else 3
    given.queues = given.queues or ([1] if given.quick else list(QUEUES))
    given.window = given.window or list(WINDOWS)
    given.way = [way for way in WAYS if not given.way or way in given.way]
    if min(given.rounds, given.size, given.sync_ms, *given.queues, *given.window) < 1:
        parser.error("--rounds, --size, --sync-ms, --queues and --window must be above 0")
    if given.seconds <= WARMUP_S:
        parser.error(f"--seconds must be above {WARMUP_S}")
    return given


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the comparisons, one disk after the other, because each needs a broker."""
    disks = [disk for disk in DISKS if not given.disk or disk in given.disk]
    return [Cell(queues, window, disk) for disk in disks for queues in given.queues for window in given.window]


def queue_names(queues: int) -> list[str]:
    """Return the names that PerfTest's ``confirms-%d`` stands for."""
    return [f"confirms-{number}" for number in range(1, queues + 1)]


@contextlib.contextmanager
def started(scratch: Path, disk: str, given: argparse.Namespace) -> Iterator[tuple[RabbitMQ, list[Way]]]:
    """Run a broker with its queues and both Sluices. Yield the broker and the ways to it."""
    with contextlib.ExitStack() as stack:
        home = scratch / disk.replace(" ", "-")
        broker = stack.enter_context(RabbitMQ(home, root=given.root, sync_ms=given.sync_ms if disk == SLOW else 0))
        with broker.connect() as client:
            channel = client.open_channel()
            for queue in queue_names(max(given.queues)):
                client.call(channel, "queue.declare", queue=queue, durable=True)
        ways = [Way(DIRECT, broker.address)] if DIRECT in given.way else []
        for name in given.way:
            if name == DIRECT:
                continue
            folder = home / name.replace(" ", "-")
            folder.mkdir()
            route = Route(f"127.0.0.1:{free_port()}", broker.address)
            config = _RULE + ('confirm = "after_consume"\n' if name == WITH else "")
            sluice = Sluice(folder, [route], config=config, protocol="amqp091", covered=False)
            stack.callback(sluice.process.stop)
            ways.append(Way(name, route.listen, sluice))
        yield broker, ways


def empty(broker: RabbitMQ, queues: Sequence[str]) -> None:
    """Purge the queues until no late messages of the last PerfTest arrive."""
    with broker.connect() as client:
        channel = client.open_channel()
        while sum(client.call(channel, "queue.purge", queue=queue)["message_count"] for queue in queues):
            time.sleep(0.2)


def measured(broker: RabbitMQ, way: Way, cell: Cell, given: argparse.Namespace, scratch: Path) -> Measured:
    empty(broker, queue_names(max(given.queues)))
    arguments = [
        *("--size", str(given.size), "--flag", "persistent", "--confirm", str(cell.window), "--skip-binding-queues"),
        *("--queue-pattern", "confirms-%d", "--queue-pattern-from", "1", "--queue-pattern-to", str(cell.queues)),
        *("--producers", str(PRODUCERS * cell.queues), "--producer-channel-count", str(PRODUCER_CHANNELS)),
        *("--consumers", str(CONSUMERS * cell.queues), "--consumer-channel-count", str(CONSUMER_CHANNELS)),
    ]
    before = counted(way.sluice) if way.sluice else {}
    used_s = machine.cpu_s(way.sluice.process.pid) if way.sluice else 0.0
    syncs = broker.syncs if cell.disk == SLOW else 0
    lines = _ran(way.address, *arguments, seconds=given.seconds, scratch=scratch)
    try:
        confirmed_per_s, p50_ms, p99_ms = confirms(lines)
    except ValueError as error:
        raise BenchError(f"PerfTest, {way.name}, {cell.title}: {error}; it said:\n" + "\n".join(lines[-20:])) from error
    messages = confirmed_per_s * given.seconds
    each = (broker.syncs - syncs) / messages if cell.disk == SLOW else None
    cpu_us = (machine.cpu_s(way.sluice.process.pid) - used_s) * 1e6 / messages if way.sluice else None
    after = {name: count - before[name] for name, count in counted(way.sluice).items()} if way.sluice else {}
    share = after.get("after_consume", 0.0) / sum(after.values()) if sum(after.values()) else None
    return Measured(confirmed_per_s, p50_ms, p99_ms, share, each, cpu_us)


def _ran(address: str, *arguments: str, seconds: int, scratch: Path) -> list[str]:
    """Run PerfTest against ``host:port`` for these seconds. Return its output lines."""
    command = [
        *(program("java"), *_JAVA, "-cp", rabbitmq_classpath(), "com.rabbitmq.perf.PerfTest"),
        *("--uri", f"amqp://{address}", "--time", str(seconds), "--predeclared", "--exchange", ""),
        *arguments,
    ]
    with ManagedProcess("PerfTest", command, log=scratch / "perf-test.log", cwd=scratch) as process:
        process.wait(timeout_s=seconds + END_DEADLINE_S)
        return process.lines


def counted(sluice: Sluice) -> dict[str, float]:
    """Return Sluice's counts of confirms by kind."""
    metrics = sluice.metrics()
    return {
        way: metrics.total("sluice_confirms_total", way=way)
        for way in ("after_consume", "broker", "persisted", "nacked")
    }


def confirms(lines: Sequence[str]) -> tuple[float, float, float]:
    """Parse PerfTest's output of the warm seconds: confirmed messages a second, and p50 and p99 in ms."""
    warm = [line for line in lines if _SECOND.search(line)][WARMUP_S:]
    rates = [float(found[1]) for line in warm if (found := _CONFIRMED.search(line))]
    # In this order: min/median/75th/95th/99th, in microseconds.
    latencies = [tuple(map(int, found[1].split("/"))) for line in warm if (found := _LATENCY.search(line))]
    if not any(rates) or not latencies:
        raise ValueError("nothing was confirmed")
    return mean(rates), median(each[1] for each in latencies) / 1000, median(each[4] for each in latencies) / 1000


def ratios(rounds: Rounds, mine: str, other: str) -> list[float]:
    """Divide the confirmed messages of one way by those of another, within rounds. Empty if one was not measured."""
    pairs = zip(rounds.get(mine, []), rounds.get(other, []), strict=False)
    return [each.confirmed_per_s / theirs.confirmed_per_s for each, theirs in pairs]


def said(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"


def table(cell: Cell, rounds: Rounds) -> str:
    lines = [["way", "confirmed/s", "x direct", "x without", "p50 ms", "p99 ms", "after", "syncs each", "CPU us"]]
    for name, each in rounds.items():
        row = [name, f"{median(one.confirmed_per_s for one in each):,.0f}"]
        row += [said(ratios(rounds, name, other)) for other in (DIRECT, WITHOUT)]
        row += [f"{median(getattr(one, key) for one in each):,.1f}" for key in ("p50_ms", "p99_ms")]
        shares = [one.after_share for one in each if one.after_share is not None]
        row.append(f"{median(shares):.0%}" if shares else "-")
        for key, digits in (("syncs_each", 2), ("cpu_us", 0)):
            values = [getattr(one, key) for one in each if getattr(one, key) is not None]
            row.append(f"{median(values):.{digits}f}" if values else "-")
        lines.append(row)
    return f"{cell.title} (median of {len(next(iter(rounds.values())))})\n{aligned(lines)}"


def goals(found: dict[Cell, Rounds]) -> list[str]:
    held = []
    for cell, rounds in found.items():
        if not (values := ratios(rounds, WITH, WITHOUT)):
            continue
        wanted = [AT_LEAST] + [AT_ONE_QUEUE] * (cell.queues == 1 and cell.disk == SLOW)
        met = [f"wanted >= {least:g}: {'met' if median(values) >= least else 'NOT met'}" for least in wanted]
        held.append(f"{cell.title}: with x without {said(values)}, {', '.join(met)}")
    return held


def sync_ms(folder: Path) -> float:
    """Return the duration of an fsync in ms, as the median of fifty."""
    taken = []
    with (folder / "synced").open("wb") as file:
        for _ in range(50):
            file.write(bytes(1500))
            file.flush()
            before_s = time.monotonic()
            os.fsync(file.fileno())
            taken.append(time.monotonic() - before_s)
    return median(taken) * 1000


def bench(given: argparse.Namespace) -> int:
    """Measure everything. Return the exit status."""
    where = machine.described()
    busy_before, began_s = machine.busy_share(), time.monotonic()
    found: dict[Cell, Rounds] = {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        scratch = Path(folder)
        disk = f"fsync: {sync_ms(scratch):.2f} ms, and {given.sync_ms} ms longer where slow"
        print(f"{where['cpu']}, {where['cores']} cores; {disk}")
        print(f"PerfTest, {given.seconds} s each, {given.size}-byte bodies", flush=True)
        by_disk: dict[str, list[Cell]] = {}
        for cell in cells(given):
            by_disk.setdefault(cell.disk, []).append(cell)
        for name, each in by_disk.items():
            with started(scratch, name, given) as (broker, ways):
                for cell in each:
                    rounds: Rounds = {way.name: [] for way in ways}
                    for _ in range(given.rounds):
                        for way in ways:
                            rounds[way.name].append(measured(broker, way, cell, given, scratch))
                    found[cell] = rounds
                    print(f"\n{table(cell, rounds)}", flush=True)
    print("", *goals(found), sep="\n")
    busy = max(busy_before, machine.busy_share())
    if busy > machine.QUIET:
        print(f"This machine was up to {busy:.0%} busy with other work: the figures are worth little.")
    print(f"{(time.monotonic() - began_s) / 60:.1f} minutes", flush=True)
    if given.json:
        kept = {cell.title: rounds for cell, rounds in found.items()}
        given.json.write_text(json.dumps(kept, indent=1, default=asdict) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(script.status("confirms", lambda: bench(options(sys.argv[1:]))))
