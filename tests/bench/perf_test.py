"""RabbitMQ's own load generator against a real RabbitMQ: directly, through HAProxy (TCP) and through Sluice.

    .venv/bin/python tests/bench/perf_test.py

The ways take turns, round by round in one run, first without publisher confirms and then with them. Each measurement is
one PerfTest: so many producers and consumers, messages of ``--size`` bytes through the default exchange to one queue,
which keeps the newest of them. Messages a second are those that consumers received, the mean of a PerfTest's seconds
once Java is warm: what is sent without confirms comes in bursts, as far as buffers go. A figure is the median of its
rounds; ratios are within a round. Sluice has one limit on the queue, which is not reached.

Broker, PerfTest and what stands between share all cores, so a figure says what a message costs all of them together.
Beside it is that processor time, Java's start included, and the part of what stands between: these are worth something
on a machine that is not quiet, too. Everything listens on 127.0.0.1 alone, and ends with
the script. It needs RabbitMQ, PerfTest (`make parts`), Java and HAProxy, and takes between two and three minutes.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import load_generator
import machine
import peers
import script
from load_generator import WARMUP_S
from peers import BenchError, Place
from report import aligned
from rows import DIRECT, HAPROXY

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice

SLUICE = "sluice"
WAYS = (DIRECT, HAPROXY, SLUICE)
QUEUE = "perf"
NEWEST = 10_000
"""Messages that the queue keeps: where publishes are faster than deliveries memory does not grow."""
PLENTY = 1_000_000_000
GOAL = 0.9
"""Messages a second through Sluice against HAProxy's."""
UNCONFIRMED = 256
START_DEADLINE_S = 20.0
_RATE = re.compile(r"(sent|received): ([\d.]+) msg/s")
_AVERAGE = re.compile(r"receiving rate avg: ([\d.]+) msg/s")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Way:
    """How PerfTest reaches the broker: where it connects, the broker's process, and that between, if there is one."""

    name: str
    address: str
    broker: int
    between: int | None = None

    def cpu_s(self) -> tuple[float, float]:
        """Return the processor time so far: of what stands between, and of all, PerfTests that have ended included."""
        between = 0.0 if self.between is None else cpu_s(self.between)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return between, between + cpu_s(self.broker) + ended.ru_utime + ended.ru_stime


@dataclass(frozen=True)
class Measured:
    """One PerfTest."""

    received_per_s: float
    sent_per_s: float
    cpu_us: float
    all_cpu_us: float


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="perf_test.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each way, of both kinds (default 3)")
    parser.add_argument("--seconds", type=int, default=6, help=f"of a PerfTest, {WARMUP_S} to warm up (default 6)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (default 128)")
    parser.add_argument("--producers", type=int, default=2, help="connections that publish (default 2)")
    parser.add_argument("--consumers", type=int, default=1, help="connections that consume (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args(arguments)
    if min(given.rounds, given.producers, given.consumers, given.size) < 1:
        parser.error("--rounds, --producers, --consumers and --size must be above 0")
    if given.seconds <= WARMUP_S:
        parser.error(f"--seconds must be above {WARMUP_S}")
    return given


@contextlib.contextmanager
def started(scratch: Path) -> Iterator[list[Way]]:
    """Run a broker, HAProxy and Sluice; yield the ways to the broker."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(RabbitMQ(scratch / "rabbitmq"))
        with broker.connect() as client:
            keeping = {"x-max-length": NEWEST}
            client.call(client.open_channel(), "queue.declare", queue=QUEUE, durable=True, arguments=keeping)
        port = free_port()
        folder = scratch / HAPROXY
        folder.mkdir()
        haproxy = stack.enter_context(
            ManagedProcess(HAPROXY, peers.haproxy(Place(port, 0, broker.port, folder)), log=folder / "log", cwd=folder)
        )
        deadline_s = time.monotonic() + START_DEADLINE_S
        while not peers.listens(port):
            if not haproxy.running or time.monotonic() > deadline_s:
                raise haproxy.failure("does not listen")
            time.sleep(0.05)
        route = Route(f"127.0.0.1:{free_port()}", broker.address)
        folder = scratch / SLUICE
        folder.mkdir()
        limit = f"queue:{QUEUE}={PLENTY}/s"
        sluice = Sluice(folder, [route], limits=[limit], protocol="amqp091", covered=False)
        stack.callback(sluice.process.stop)
        yield [
            Way(DIRECT, broker.address, broker.pid),
            Way(HAPROXY, f"127.0.0.1:{port}", broker.pid, haproxy.pid),
            Way(SLUICE, route.listen, broker.pid, sluice.process.pid),
        ]


def measured(way: Way, given: argparse.Namespace, scratch: Path, *, confirms: bool) -> Measured:
    """Run one PerfTest."""
    arguments = [
        *("--size", str(given.size), "--routing-key", QUEUE, "--queue", QUEUE, "--autoack"),
        *("--producers", str(given.producers), "--consumers", str(given.consumers)),
    ]
    if confirms:
        arguments += ["--confirm", str(UNCONFIRMED)]
    before = way.cpu_s()
    lines = load_generator.ran(way.address, *arguments, seconds=given.seconds, scratch=scratch)
    after = way.cpu_s()
    try:
        received_per_s, sent_per_s, average_per_s = rates(lines)
    except ValueError as error:
        raise BenchError(f"PerfTest through {way.name}: {error}; it said:\n" + "\n".join(lines[-20:])) from error
    messages = average_per_s * given.seconds
    cpu_us, all_cpu_us = ((later - sooner) * 1e6 / messages for sooner, later in zip(before, after, strict=True))
    return Measured(received_per_s, sent_per_s, cpu_us, all_cpu_us)


def rates(lines: Sequence[str]) -> tuple[float, float, float]:
    """Read what PerfTest printed."""
    seconds = [dict(_RATE.findall(line)) for line in load_generator.warm(lines)]
    received = [float(each.get("received", 0)) for each in seconds]
    sent = [float(each.get("sent", 0)) for each in seconds]
    average = next((float(found[1]) for line in lines if (found := _AVERAGE.search(line))), 0.0)
    if not average or not any(received):
        raise ValueError("nothing was received")
    return mean(received), mean(sent), average


def table(title: str, rounds: dict[str, list[Measured]]) -> tuple[str, float]:
    """Lay out one kind; return it, and Sluice's messages a second against HAProxy's."""
    lines = [["way", "received/s", "spread", "sent/s", "x direct", "x HAProxy", "rounds", "CPU us/message", "of all"]]
    against: dict[str, list[float]] = {}
    for name, each in rounds.items():
        received = [one.received_per_s for one in each]
        cells = [f"{median(received):,.0f}", f"{(max(received) - min(received)) / median(received):.0%}"]
        cells.append(f"{median(one.sent_per_s for one in each):,.0f}")
        for other in (DIRECT, HAPROXY):
            pairs = zip(each, rounds[other], strict=True)
            ratios = [mine.received_per_s / theirs.received_per_s for mine, theirs in pairs]
            cells.append(f"{median(ratios):.2f}")
            if other == HAPROXY:
                against[name] = ratios
        cells.append(f"{min(against[name]):.2f} to {max(against[name]):.2f}")
        cells.append(f"{median(one.cpu_us for one in each):.1f}")
        cells.append(f"{median(one.all_cpu_us for one in each):.1f}")
        lines.append([name, *cells])
    return f"{title} (median of {len(rounds[DIRECT])})\n{aligned(lines)}", median(against[SLUICE])


def bench(given: argparse.Namespace) -> int:
    """Measure everything; return the exit status."""
    where = machine.described()
    said = f"{where['cpu']}, {where['cores']} cores; PerfTest, {given.seconds} s each, {given.size}-byte bodies, "
    print(f"{said}producers: {given.producers}, consumers: {given.consumers}", end="\n\n", flush=True)
    busy_before, began_s = machine.busy_share(), time.monotonic()
    kept: dict[str, dict[str, list[Measured]]] = {}
    held = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, started(Path(folder)) as ways:
        for confirms in (False, True):
            title = f"with confirms, {UNCONFIRMED} outstanding on each" if confirms else "without confirms"
            rounds: dict[str, list[Measured]] = {way.name: [] for way in ways}
            for _ in range(given.rounds):
                for way in ways:
                    rounds[way.name].append(measured(way, given, Path(folder), confirms=confirms))
            text, reached = table(title, rounds)
            print(text, end="\n\n", flush=True)
            kept["confirms" if confirms else "plain"] = rounds
            met = "met" if reached >= GOAL else "NOT met"
            held.append(f"Sluice x HAProxy, {title}: {reached:.2f}, wanted >= {GOAL:g}: {met}")
    print(*held, sep="\n")
    busy = max(busy_before, machine.busy_share())
    if busy > machine.QUIET:
        print(f"This machine was up to {busy:.0%} busy with other work: the figures are worth little.")
    print(f"{(time.monotonic() - began_s) / 60:.1f} minutes", flush=True)
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1, default=asdict) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(script.status("perf_test", lambda: bench(options(sys.argv[1:]))))
