"""One connection that publishes to a slow and to a fast queue, or publishes and consumes: AMQP 1.0 against 0.9.1.

    .venv/bin/python tests/bench/shared_connection.py --root .parts/rabbitmq4/root      # about ten minutes; needs root

These are RabbitMQ's own two comparisons of the protocols' flow control ("Ten benefits of AMQP 1.0 flow control", with
the programs two_senders and one_sender_one_receiver): with 0.9.1 a queue that is behind holds the whole connection up,
with 1.0 one link alone. Here they run directly and through Sluice, in turns, in one run:

- ``two senders``: settled (0.9.1: without confirms), as fast as it goes, to a classic and to a quorum queue.
- ``sender and receiver``: to the quorum queue in batches of 10,000, of which the next begins when all are confirmed;
  and from a classic queue, with a prefetch or credit of 200, each message acked by itself.

A quorum queue waits for its disk, and each fsync of this broker takes ``--sync-ms`` longer than the disk does. Then
both once more with what is slow made so by Sluice's limit: ``--limit`` messages a second to a classic queue. Nothing
limits the direct way, so its publisher keeps to that rate by itself there.

RabbitMQ is 4.0 or newer, such as that of Debian 13 which `make rabbitmq4` fetches. Messages a second are what arrived
in the queues by the broker's own count, and what the client received. A figure is the median of its rounds; ratios are
within a round. Broker, load and what stands between share all cores: HAProxy (TCP) says what a relay costs where the
processor is what is full. So that it is not, ``--share 0.6`` measures in each round first what AMQP 1.0 does directly,
as fast as it goes, and then keeps every way to that share of it: the fast queue gets so many messages a second, or the
client accepts so many.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import machine
import peers
import script
from peers import BenchError, Place
from perf_test import PLENTY, START_DEADLINE_S, cpu_s
from report import aligned
from rows import DIRECT, HAPROXY

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness.amqp import AmqpClient
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice

SLUICE = "sluice"
OLD, NEW = "amqp091", "amqp10"
FAST, SLOW, LIMITED, STOCK = "fast", "slow", "limited", "stock"
QUEUES = {FAST: "classic", SLOW: "quorum", LIMITED: "classic", STOCK: "classic"}
#: What is read late by a broker whose client has gone keeps the next measurement waiting.
SETTINGS = {"tcp_listen_options.recbuf": "131072"}
#: Messages that are there to be consumed when a measurement begins.
IN_STOCK = 400_000
FILL_DEADLINE_S = 300.0
TIMES_AS_MANY = {"two senders": 4.0, "sender and receiver": 73.0}
"""What RabbitMQ's makers found: 1.0's messages a second against 0.9.1's."""
OF_DIRECT = 0.95


@dataclass(frozen=True)
class Task:
    """What the connection does.

    Attributes:
        name: in words.
        counted: whether what counts is consumed, else what arrived in queues.
        limited: whether Sluice's limit makes slow what is slow, else the broker's disk.
    """

    name: str
    counted: str
    limited: bool

    def arguments(self, way: "Way", limit: int, at_most_per_s: float | None = None) -> list[str]:
        """Return what the load is told; ``at_most_per_s`` is the pace of what would go as fast as it goes."""
        return [*self._arguments(way, limit), *([] if at_most_per_s is None else ["--at-most", f"{at_most_per_s:.0f}"])]

    def _arguments(self, way: "Way", limit: int) -> list[str]:
        slow = LIMITED if self.limited else SLOW
        paced = ["--pace", f"{slow}={limit}"] if self.limited and way.name != SLUICE else None
        if self.counted == "received":
            return ["--receive", STOCK, *(paced or ["--batches", slow])]
        return ["--send", FAST, *paced] if paced else ["--send", f"{FAST},{slow}"]


TASKS = tuple(
    Task(name, counted, limited)
    for limited in (False, True)
    for name, counted in (("two senders", "sent"), ("sender and receiver", "received"))
)


@dataclass(frozen=True)
class Way:
    """How the load reaches the broker: by which protocol, where it connects, and the process between, if one is."""

    name: str
    protocol: str
    address: str
    between: int | None = None


@dataclass(frozen=True)
class Measured:
    """One measurement.

    Attributes:
        fast_per_s: messages that arrived in the fast queue.
        slow_per_s: in that which is slow, or limited.
        received_per_s: messages consumed.
        refused_per_s: publishes that came back. Under 0.9.1 Sluice cannot stop those of one queue alone.
        cpu_us: processor time of what stands between, for each of these messages; 0 if nothing does.
    """

    fast_per_s: float
    slow_per_s: float
    received_per_s: float
    refused_per_s: float
    cpu_us: float

    def counted(self, task: Task) -> float:
        """Return what counts of it."""
        return self.received_per_s if task.counted == "received" else self.fast_per_s + self.slow_per_s

    def fastest(self, task: Task) -> float:
        """Return what of it goes as fast as it goes."""
        return self.received_per_s if task.counted == "received" else self.fast_per_s


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="shared_connection.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each way, of each task (default 3)")
    parser.add_argument("--seconds", type=float, default=6, help="of a measurement (default 6)")
    parser.add_argument("--warmup", type=float, default=3, help="seconds before it (default 3)")
    parser.add_argument(
        "--root", type=lambda text: Path(text).resolve(), help="of another Debian, whose RabbitMQ is taken"
    )
    parser.add_argument(
        "--sync-ms", type=int, default=50, help="that each fsync of the broker takes longer (default 50)"
    )
    parser.add_argument("--limit", type=int, default=500, help="messages a second of what Sluice limits (default 500)")
    parser.add_argument("--share", type=float, help="of what goes directly, for every way; see above")
    parser.add_argument("--task", action="append", choices=[task.name for task in TASKS], help="only this; repeatable")
    parser.add_argument(
        "--by", choices=["disk", "limit"], help="only what is slow by the broker's disk, or by the limit"
    )
    parser.add_argument("--way", action="append", choices=[DIRECT, HAPROXY, SLUICE], help="only this; repeatable")
    parser.add_argument("--protocol", action="append", choices=[OLD, NEW], help="only this; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args(arguments)
    if min(given.rounds, given.seconds, given.warmup, given.sync_ms, given.limit) <= 0:
        parser.error("--rounds, --seconds, --warmup, --sync-ms and --limit must be above 0")
    if given.share is not None and not 0 < given.share < 1:
        parser.error("--share must be between 0 and 1, as 0.6")
    return given


@contextlib.contextmanager
def started(scratch: Path, given: argparse.Namespace) -> Iterator[RabbitMQ]:
    """Run a broker with its queues."""
    home = scratch / "rabbitmq"
    with RabbitMQ(home, settings=SETTINGS, root=given.root, sync_ms=given.sync_ms) as broker:
        with broker.connect() as client:
            channel = client.open_channel()
            for queue, kind in QUEUES.items():
                arguments = {"x-queue-type": kind}
                client.call(channel, "queue.declare", queue=queue, durable=True, arguments=arguments)
        yield broker


@contextlib.contextmanager
def opened(name: str, protocol: str, broker: RabbitMQ, limit: int) -> Iterator[Way]:
    """Start what stands in front of the broker: anew each time, as Sluice keeps what it could not pass on."""
    with tempfile.TemporaryDirectory(prefix=f"sluice-bench-{name}-") as folder:
        if name == HAPROXY:
            with _haproxy(protocol, broker, Path(folder)) as way:
                yield way
        elif name == SLUICE:
            with _sluice(protocol, broker, Path(folder), limit) as way:
                yield way
        else:
            yield Way(name, protocol, broker.address)


@contextlib.contextmanager
def _haproxy(protocol: str, broker: RabbitMQ, folder: Path) -> Iterator[Way]:
    port = free_port()
    command = peers.haproxy(Place(port, 0, broker.port, folder))
    with ManagedProcess(HAPROXY, command, log=folder / "log", cwd=folder) as haproxy:
        deadline_s = time.monotonic() + START_DEADLINE_S
        while not peers.listens(port):
            if not haproxy.running or time.monotonic() > deadline_s:
                raise haproxy.failure("does not listen")
            time.sleep(0.05)
        yield Way(HAPROXY, protocol, f"127.0.0.1:{port}", haproxy.pid)


@contextlib.contextmanager
def _sluice(protocol: str, broker: RabbitMQ, folder: Path, limit: int) -> Iterator[Way]:
    route = Route(f"127.0.0.1:{free_port()}", broker.address)
    rates = [("queue", LIMITED, limit), ("queue", "*", PLENTY), ("delivery", "*", PLENTY)]
    config = "".join(
        f'[[limits]]\nkind = "{kind}"\nname = "{name}"\nrate = {rate}\naction = "delay"\n\n'
        for kind, name, rate in rates
    )
    sluice = Sluice(folder, [route], config=config, protocol=protocol, covered=False)
    try:
        yield Way(SLUICE, protocol, route.listen, sluice.process.pid)
    finally:
        sluice.process.stop()


def _load(way: Way, *more: str) -> list[str]:
    return [str(peers.LOAD), "shared", "--target", way.address, "--protocol", way.protocol, *more]


def _counts(client: AmqpClient, channel: int) -> dict[str, int]:
    return {
        queue: int(client.call(channel, "queue.declare", queue=queue, passive=True)["message_count"])
        for queue in QUEUES
    }


def prepare(broker: RabbitMQ, task: Task) -> None:
    """Empty what is sent to, and fill what is consumed from."""
    with broker.connect() as client:
        channel = client.open_channel()
        before: dict[str, int] = {}
        # What was on its way when a load ended is still coming.
        while (now := _counts(client, channel)) != before:
            before = now
            time.sleep(0.5)
        for queue in (FAST, SLOW, LIMITED):
            client.call(channel, "queue.purge", queue=queue)
    if task.counted == "received" and (missing := IN_STOCK - now[STOCK]) > 0:
        direct = Way(DIRECT, NEW, broker.address)
        command = _load(direct, "--batches", STOCK, "--count", str(missing))
        subprocess.run(command, check=True, timeout=FILL_DEADLINE_S)


def measured(
    broker: RabbitMQ, task: Task, way: Way, given: argparse.Namespace, at_most_per_s: float | None = None
) -> Measured:
    """Run one task over one way, with the pace that ``Task.arguments`` has.

    Raises:
        BenchError: the load failed, or something was refused by link credit.
    """
    prepare(broker, task)
    command = _load(way, *task.arguments(way, given.limit, at_most_per_s))
    command += ["--warmup", str(given.warmup), "--seconds", str(given.seconds)]
    readings: list[tuple[float, dict[str, Any], dict[str, int], float]] = []
    with broker.connect() as client:
        channel = client.open_channel()
        load = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert load.stdout is not None
        try:
            for line in load.stdout:
                counts = _counts(client, channel)
                used_s = 0.0 if way.between is None else cpu_s(way.between)
                readings.append((time.monotonic(), json.loads(line), counts, used_s))
                if len(readings) == 2:
                    break
        finally:
            _, said = load.communicate()
    if load.returncode or len(readings) < 2:
        raise BenchError(f"{task.name} by {way.protocol}, {way.name}: {said.strip()}")
    (from_s, seen, counts, used_s), (to_s, seen_then, counts_then, used_then_s) = readings
    if seen_then["refused"] and way.protocol == NEW:
        raise BenchError(f"{task.name} by {way.protocol}, {way.name}: {seen_then['refused']} were refused")
    arrived = {queue: counts_then[queue] - counts[queue] for queue in QUEUES}
    seen_s = seen_then["at_s"] - seen["at_s"]
    received, refused = (seen_then[key] - seen[key] for key in ("received", "refused"))
    seconds, slow = to_s - from_s, arrived[SLOW] + arrived[LIMITED]
    messages = arrived[FAST] + slow + received
    return Measured(
        arrived[FAST] / seconds,
        slow / seconds,
        received / seen_s,
        refused / seen_s,
        (used_then_s - used_s) * 1e6 / max(messages, 1),
    )


Rounds = dict[tuple[str, str], list[Measured]]
"""By protocol and way."""


def ratios(task: Task, rounds: Rounds, mine: tuple[str, str], other: tuple[str, str]) -> list[float]:
    """Divide what counts of one way by what counts of another, within rounds; empty if one was not measured."""
    pairs = zip(rounds.get(mine, []), rounds.get(other, []), strict=False)
    return [each.counted(task) / max(theirs.counted(task), 1e-9) for each, theirs in pairs]


def said(values: Sequence[float]) -> str:
    """Write a median with its range."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"


def table(task: Task, rounds: Rounds, share: float | None = None) -> str:
    """Lay out one task."""
    by = "Sluice's limit" if task.limited else "the broker's disk"
    rates = ["fast/s", "slow/s", "received/s", "refused/s"]
    lines = [["protocol", "way", *rates, "x direct", "x HAProxy", "x 0.9.1", "CPU us/message"]]
    for (protocol, way), each in rounds.items():
        figures = ("fast_per_s", "slow_per_s", "received_per_s", "refused_per_s")
        cells = [f"{median(getattr(one, figure) for one in each):,.0f}" for figure in figures]
        against = ((protocol, DIRECT), (protocol, HAPROXY), (OLD, way))
        cells += [said(ratios(task, rounds, (protocol, way), other)) for other in against]
        lines.append([protocol, way, *cells, f"{median(one.cpu_us for one in each):.1f}"])
    count = len(next(iter(rounds.values())))
    pace = "" if share is None else f"; paced to {share:.0%} of what goes directly"
    return f"{task.name}, one connection; slow by {by}{pace} (median of {count})\n{aligned(lines)}"


def goals(task: Task, rounds: Rounds) -> list[str]:
    """Say which goals are met."""
    if (NEW, SLUICE) not in rounds:
        return []
    times = TIMES_AS_MANY[task.name]
    by = "limit" if task.limited else "disk"
    found = []
    direct = ratios(task, rounds, (NEW, DIRECT), (OLD, DIRECT))
    mine = ratios(task, rounds, (NEW, SLUICE), (OLD, SLUICE))
    if mine:
        shown = bool(direct) and median(direct) >= times
        met = "met" if median(mine) >= times else "NOT met" if shown else "nor does direct show it"
        found.append(f"{task.name} ({by}): 1.0 x 0.9.1 through Sluice {said(mine)}, wanted >= {times:g}: {met}")
        found[-1] += f"; directly {said(direct)}"
    if values := ratios(task, rounds, (NEW, SLUICE), (NEW, DIRECT)):
        met = "met" if median(values) >= OF_DIRECT else "NOT met"
        haproxy = said(ratios(task, rounds, (NEW, HAPROXY), (NEW, DIRECT)))
        found.append(f"{task.name} ({by}): 1.0 through Sluice x direct {said(values)}, wanted >= {OF_DIRECT:g}: {met}")
        found[-1] += f"; HAProxy {haproxy}"
    return found


def bench(given: argparse.Namespace) -> int:
    """Measure everything; return the exit status."""
    peers.build_load()
    where = machine.described()
    print(
        f"{where['cpu']}, {where['cores']} cores; {given.seconds:g} s each, fsync {given.sync_ms} ms longer", end="\n\n"
    )
    busy_before, began_s = machine.busy_share(), time.monotonic()
    tasks = [task for task in TASKS if not given.task or task.name in given.task]
    tasks = [task for task in tasks if not given.by or task.limited == (given.by == "limit")]
    kept: dict[str, dict[str, list[Measured]]] = {}
    held: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        started(Path(folder), given) as broker,
    ):
        names = given.way or [DIRECT, HAPROXY, SLUICE]
        ways = [(protocol, name) for protocol in given.protocol or (OLD, NEW) for name in names]
        # What a relay costs is the question where 1.0 comes near to the direct way.
        ways = [way for way in ways if way != (OLD, HAPROXY)]
        for task in tasks:
            rounds: Rounds = {way: [] for way in ways}
            for _ in range(given.rounds):
                pace = None
                if given.share is not None:
                    pace = given.share * measured(broker, task, Way(DIRECT, NEW, broker.address), given).fastest(task)
                for protocol, name in ways:
                    with opened(name, protocol, broker, given.limit) as way:
                        rounds[protocol, name].append(measured(broker, task, way, given, pace))
            print(table(task, rounds, given.share), end="\n\n", flush=True)
            held += goals(task, rounds)
            name = f"{task.name}, slow by {'limit' if task.limited else 'disk'}"
            kept[name] = {f"{protocol} {way}": each for (protocol, way), each in rounds.items()}
    print(*held, sep="\n")
    busy = max(busy_before, machine.busy_share())
    if busy > machine.QUIET:
        print(f"This machine was up to {busy:.0%} busy with other work: the figures are worth little.")
    print(f"{(time.monotonic() - began_s) / 60:.1f} minutes", flush=True)
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1, default=asdict) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(script.status("shared_connection", lambda: bench(options(sys.argv[1:]))))
