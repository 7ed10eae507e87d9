"""What the spool costs: memory, disk, and time for each entry, next to RabbitMQ's own classic queue, in one run.

    .venv/bin/python tests/bench/spool.py                          # a million entries, about two minutes
    .venv/bin/python tests/bench/spool.py --count 10_000_000       # about twenty minutes, 4 GB in --dir

All entries are put in, and then all are taken out; that each comes once and in its order is checked exactly, here and
there. Entries go to the queues in turn. Every spool is a process of its own, with the settings that Sluice has by
default, and does nothing else: what is measured is the spool with the least loop around it that can be, the check
included. The first table is of entries of ``--size`` bytes:

- before, peak, after: resident memory of the process; before anything was put in, the most there ever was, and when all
  was out again. The whole of Python is in it.
- in memory: the most that the spool itself counted.
- disk: bytes on disk for each entry, while all of them were in.
- in, out: seconds by the clock; us are of the processor, for each entry, and of them those of the event loop's own
  thread. The others are the store's thread.

The second table is by the state that entries are in as they wait: ``alpha`` are small ones for which there is memory,
``delta`` small ones that were on disk with their index. ``beta`` and ``gamma`` are large: their index alone is read
before their content is asked for; those of gamma are recoverable. What is on disk is in the cache of the system there.

RabbitMQ gets the same bodies as persistent messages in durable classic queues, from one publisher with confirms, at
most ``UNCONFIRMED`` of them outstanding, and hands them to one consumer that need not acknowledge. Its memory is of the
broker's process, its disk all of its data, and it does much more with a message than the spool does: the figures say
what it costs to leave them there, not which is the better queue. It needs Debian's rabbitmq-server.
"""

import argparse
import contextlib
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, cast

import machine
from peers import BenchError
from perf_test import cpu_s
from report import aligned

from proxy.spool.queue import Queue
from proxy.spool.spool import Hooks, Spool, SpoolSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness.amqp import PROTOCOL_HEADER, method, publish
from harness.paths import MissingPartError
from harness.process import ProcessFailedError
from harness.rabbitmq import RabbitMQ

UNCONFIRMED = 20_000
#: So many are published in one write, and asked about the order together.
_TOGETHER: Final = 1000
#: Of the process: a look costs some microseconds.
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 3600.0
_NUMBER: Final = struct.Struct(">Q")
_LARGE_BYTES: Final = 1024 * 1024
_LARGE_COUNT: Final = 1000
_SMALL_COUNT: Final = 200_000
_ACK: Final = struct.Struct(">7s4xQ?x")
_ACK_KEY: Final = b"\x01\0\x01\0\0\0\x0d"
#: connection.close and channel.close.
_CLOSES: Final = {struct.pack(">HH", 10, 50), struct.pack(">HH", 20, 40)}


class OrderError(Exception):
    """Something came twice, too early, or not at all."""


class _Loop:
    """The least event loop: does what the store posts, and ticks."""

    def __init__(self, folder: Path, settings: SpoolSettings) -> None:
        self._posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._next_ns = 0
        self.stopped = False
        self.most_bytes = 0
        hooks = Hooks(self._flow, self._alarm, self._alarm)
        self.spool, _ = Spool.open(
            folder, settings, hooks, self._posted.put, now_ns=time.monotonic_ns(), clock_ns=0, recover=False
        )

    def turn(self) -> None:
        """Do what is there to be done, without waiting."""
        with contextlib.suppress(Empty):
            while True:
                self._posted.get_nowait()()
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + round(_LOOK_S * 1e9)
            self.spool.tick(now_ns)
            self.most_bytes = max(self.most_bytes, self.spool.figures().memory_bytes)

    def wait(self) -> None:
        """Wait for the store, and take what it has done."""
        self._posted.get(timeout=60)()
        self.turn()

    def settle(self) -> None:
        """Wait until all that was given to the store is written."""
        done: list[bool] = []
        self.spool.sync(done.append)
        while not done:
            self.wait()

    def _flow(self, stops: bool) -> None:  # noqa: FBT001 - as the spool calls it
        self.stopped = stops

    def _alarm(self, reason: object) -> None:
        if reason is not None:
            raise OrderError(f"the disk failed: {reason}")


def put_in(loop: _Loop, queues: list[Queue], content: bytes, count: int, *, is_recoverable: bool) -> None:
    """Append entries to queues in turn; each begins with its number."""
    rest, many, number = content[_NUMBER.size :], len(queues), 0
    while number < count:
        now_ns = time.monotonic_ns()
        for number in range(number, min(number + _TOGETHER, count)):  # noqa: B020 - goes on where it was
            data = (_NUMBER.pack(number) + rest,)
            queues[number % many].append(data, number, now_ns, is_recoverable=is_recoverable)
        number += 1
        loop.turn()
        while loop.stopped:
            loop.wait()


def take_out(loop: _Loop, queues: list[Queue], count: int) -> int:
    """Take all entries, from queues in turn, and return how many came without their content at first."""
    many, without, left = len(queues), 0, count
    wanted = list(range(many))
    asked = [False] * many
    while left:
        before = left
        for index in range(many):
            queue = queues[index]
            for _ in range(_TOGETHER if many == 1 else 1):
                entry = queue.head()
                if entry is None:
                    break
                if entry.content is None:
                    without += not asked[index]
                    asked[index] = True
                    queue.fetch()
                    break
                queue.pop()
                number = wanted[index]
                if entry.handle != number or _NUMBER.unpack_from(entry.content[0])[0] != number:
                    raise OrderError(f"queue {index}: {entry.handle} instead of {number}")
                wanted[index] += many
                asked[index] = False
                left -= 1
        loop.turn()
        if left == before:
            loop.wait()
    if any(queues):
        raise OrderError("more came out than was put in")
    return without


def resident_mib(field: str = "VmRSS", pid: int | str = "self") -> float:
    """Return what of a process is in memory; ``VmHWM`` is the most there ever was."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def disk_bytes(folder: Path) -> int:
    """Return what is on disk below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


class _Watch:
    """The clock, and the processor time of this process and of this thread of it."""

    def __init__(self) -> None:
        self._since = time.perf_counter(), time.process_time(), time.thread_time()

    def read(self, count: int) -> dict[str, float]:
        """Return seconds by the clock, and microseconds of the processor for each entry."""
        clock, process, thread = self._since
        return {
            "s": time.perf_counter() - clock,
            "us": (time.process_time() - process) / count * 1e6,
            "loop_us": (time.thread_time() - thread) / count * 1e6,
        }


def measured(
    folder: Path, *, count: int, queues: int, size: int, memory_bytes: int | None = None, is_recoverable: bool = False
) -> dict[str, Any]:
    """Put all in, take all out, and return the figures; in a process of its own."""
    settings = SpoolSettings(least_free_bytes=0, max_disk_bytes=1 << 40)
    if memory_bytes is not None:
        settings = SpoolSettings(memory_bytes=memory_bytes, least_free_bytes=0, max_disk_bytes=1 << 40)
    loop = _Loop(folder, settings)
    made = [loop.spool.queue(b"bench", lambda _: None) for _ in range(queues)]
    before_mib = resident_mib()
    watch = _Watch()
    put_in(loop, made, bytes(size), count, is_recoverable=is_recoverable)
    loop.settle()
    there = watch.read(count)
    states = loop.spool.figures().states
    figures = {
        "alpha": states.alpha,
        "beta": states.beta,
        "gamma": states.gamma,
        "delta": states.delta,
        "disk_bytes": disk_bytes(folder),
        "full_mib": resident_mib(),
    }
    watch = _Watch()
    figures["without"] = take_out(loop, made, count)
    back = watch.read(count)
    loop.turn()
    figures |= {"before_mib": before_mib, "peak_mib": resident_mib("VmHWM"), "after_mib": resident_mib()}
    figures |= {"counted_mib": loop.most_bytes / 1024**2}
    loop.spool.close()
    return {"count": count, "queues": queues, "in": there, "out": back, **figures}


def in_a_process(folder: Path, **what: Any) -> dict[str, Any]:
    """Measure in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice-spool-", dir=folder) as home:
        command = [sys.executable, __file__, "--measure", json.dumps({"folder": home, **what})]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise OrderError(f"{what}: {ran.stderr}")
    return cast("dict[str, Any]", json.loads(ran.stdout))


class _Peak:
    """Looks at the memory of a process until it is told to stop."""

    def __init__(self, pid: int) -> None:
        self.mib = 0.0
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.mib = max(self.mib, resident_mib(pid=self._pid))

    def stop(self) -> float:
        """Return the most that was seen."""
        self._over.set()
        self._thread.join()
        return self.mib


class _Connection:
    """A connection with a channel that takes a few kinds of frames apart in large pieces."""

    def __init__(self, broker: RabbitMQ) -> None:
        self._tail = b""
        self.socket = socket.create_connection((broker.host, broker.port), timeout=_PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.call(PROTOCOL_HEADER)
        login = {"mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"}
        self.call(method(0, "connection.start-ok", client_properties={}, **login))
        tuned = method(0, "connection.tune-ok", channel_max=1, frame_max=131_072)
        self.call(tuned + method(0, "connection.open", virtual_host="/"))
        self.call(method(1, "channel.open"))

    def call(self, frames: bytes) -> None:
        """Send something and wait for one frame: whatever it is, nothing else is sent to who did nothing wrong."""
        self.socket.sendall(frames)
        head = self._exactly(7)
        rest = self._exactly(int.from_bytes(head[3:], "big") + 1)
        if rest[:4] in _CLOSES:
            raise BenchError(f"RabbitMQ: {rest[:-1]!r}")

    def _exactly(self, size: int) -> bytes:
        data = self.socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise BenchError("RabbitMQ has ended the connection")
        return data

    def read(self, apart: struct.Struct) -> Iterator[tuple[Any, ...]]:
        """Read something and take it apart: all of it are frames of that form."""
        more = self.socket.recv(262_144)
        if not more:
            raise BenchError("RabbitMQ has ended the connection")
        data = self._tail + more
        whole = len(data) - len(data) % apart.size
        self._tail = data[whole:]
        return apart.iter_unpack(memoryview(data)[:whole])


def publish_all(connection: _Connection, queues: list[str], size: int, count: int) -> None:
    """Publish bodies to queues in turn, and wait for the last confirm."""
    connection.call(method(1, "confirm.select"))
    heads = [publish(1, name, bytes(size), delivery_mode=2)[: -size - 1] for name in queues]
    rest, many = bytes(size - _NUMBER.size) + b"\xce", len(queues)
    below, beyond, sent = 0, set[int](), 0
    while below < count:
        if sent < count and sent - below - len(beyond) < UNCONFIRMED:
            until = min(sent + _TOGETHER, count)
            numbers = range(sent, until)
            connection.socket.sendall(
                b"".join([heads[number % many] + _NUMBER.pack(number) + rest for number in numbers])
            )
            sent = until
            continue
        for key, tag, multiple in connection.read(_ACK):
            if key != _ACK_KEY:
                raise BenchError("RabbitMQ has not confirmed all")
            if multiple:
                below = max(below, tag)
                beyond = {each for each in beyond if each > below} if beyond else beyond
            else:
                beyond.add(tag)
            while below + 1 in beyond:
                below += 1
                beyond.remove(below)


def consume_all(connection: _Connection, queues: list[str], count: int, size: int) -> None:
    """Consume from all queues until all are here, and check their order."""
    length, many = len(queues[0]), len(queues)
    # The frame of the method with its tag, number, flag, exchange and routing key; that of the header, with the
    # delivery mode; and the body's.
    form = f">11x1x{length}x8x1x1x1x{length}s1x" + "7x14x1x1x" + f"7xQ{size - _NUMBER.size}x1x"
    apart = struct.Struct(form)
    for name in queues:
        connection.socket.sendall(method(1, "basic.consume", queue=name, consumer_tag=name, no_ack=True, nowait=True))
    wanted = {name.encode(): number for number, name in enumerate(queues)}
    while count:
        for name, number in connection.read(apart):
            if wanted.get(name) != number:
                raise OrderError(f"{name!r}: {number} instead of {wanted.get(name)}")
            wanted[name] += many
            count -= 1


def of_rabbitmq(folder: Path, *, count: int, queues: int, size: int) -> dict[str, Any]:
    """Do the same with a broker of its own."""
    names = [f"bench-{number:06}" for number in range(queues)]
    with tempfile.TemporaryDirectory(prefix="sluice-spool-", dir=folder) as home, RabbitMQ(Path(home, "b")) as broker:
        publisher = _Connection(broker)
        for name in names:
            publisher.call(method(1, "queue.declare", queue=name, durable=True))
        before_mib, peak = resident_mib(pid=broker.pid), _Peak(broker.pid)
        figures: dict[str, Any] = {"count": count, "queues": queues, "before_mib": before_mib}
        for way in ("in", "out"):
            since_s, used_s = time.perf_counter(), cpu_s(broker.pid)
            if way == "in":
                publish_all(publisher, names, size, count)
            else:
                consume_all(_Connection(broker), names, count, size)
            took_s = time.perf_counter() - since_s
            figures[way] = {"s": took_s, "us": (cpu_s(broker.pid) - used_s) / count * 1e6}
            if way == "in":
                figures["disk_bytes"] = disk_bytes(Path(home))
        return {**figures, "peak_mib": peak.stop(), "after_mib": resident_mib(pid=broker.pid)}


def main_table(measured: list[tuple[str, dict[str, Any]]]) -> str:
    """Lay out what was measured of small entries."""
    head = ["", "entries", "queues", "before", "peak", "after MiB", "in memory", "disk B each"]
    rows = [[*head, "in s", "out s", "in us", "loop", "out us", "loop"]]
    for name, its in measured:
        row = [name, f"{its['count']:,}", f"{its['queues']:,}"]
        row += [f"{its[key]:.0f}" for key in ("before_mib", "peak_mib", "after_mib")]
        row += [f"{its['counted_mib']:.1f}" if "counted_mib" in its else "", f"{its['disk_bytes'] / its['count']:.0f}"]
        row += [f"{its[way]['s']:.1f}" for way in ("in", "out")]
        for way in ("in", "out"):
            row += [f"{its[way]['us']:.2f}", f"{its[way]['loop_us']:.2f}" if "loop_us" in its[way] else ""]
        rows.append(row)
    return aligned(rows)


def state_table(measured: dict[str, dict[str, Any]]) -> str:
    """Lay out what an entry costs by its state."""
    rows = [["state", "entries", "so at the end", "in us", "loop", "out us", "loop"]]
    for name, its in measured.items():
        state, _, size = name.partition(" ")
        there = its["without"] if state in {"beta", "gamma"} else its[state]
        row = [f"{state}, {size}", f"{its['count']:,}", f"{there / its['count']:.0%}"]
        for way in ("in", "out"):
            row += [f"{its[way]['us']:.2f}", f"{its[way]['loop_us']:.2f}"]
        rows.append(row)
    return aligned(rows)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="spool.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="entries of each spool (default 1,000,000)")
    parser.add_argument(
        "--rabbitmq-count", type=int, metavar="COUNT", help="of RabbitMQ (default: the same); 0 is none"
    )
    parser.add_argument(
        "--queues", type=int, nargs="+", default=[1, 1000], help="how many, one after the other (1 1000)"
    )
    parser.add_argument("--size", type=int, default=150, help="bytes of an entry (default 150)")
    parser.add_argument("--dir", type=Path, help="where spools and RabbitMQ store (default: where temporary files go)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures here")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if min(given.count, *given.queues) < 1 or given.size < _NUMBER.size or (given.rabbitmq_count or 0) < 0:
        parser.error("--count and --queues must be at least 1, --size at least 8, --rabbitmq-count at least 0")
    return given


def main() -> int:
    """Measure and print."""
    given = options()
    if given.measure:
        folder = Path(given.measure.pop("folder"))
        json.dump(measured(folder, **given.measure), sys.stdout)
        return 0
    rabbitmq_count = given.count if given.rabbitmq_count is None else given.rabbitmq_count
    small, large = {"queues": 1, "size": given.size}, {"queues": 1, "size": _LARGE_BYTES, "count": _LARGE_COUNT}
    print(f"{machine.busy_share():.0%} of the machine is busy with other work")
    figures: list[tuple[str, dict[str, Any]]] = []
    try:
        for queues in given.queues:
            what = {"count": given.count, "queues": queues, "size": given.size}
            figures.append(("spool", in_a_process(given.dir, **what)))
            if rabbitmq_count:
                what["count"] = rabbitmq_count
                figures.append(("RabbitMQ", of_rabbitmq(given.dir, **what)))
        states = {
            "alpha": in_a_process(given.dir, **small, count=_SMALL_COUNT, memory_bytes=1 << 30),
            "delta": in_a_process(given.dir, **small, count=_SMALL_COUNT, memory_bytes=1 << 20),
            "beta": in_a_process(given.dir, **large),
            "gamma": in_a_process(given.dir, **large, is_recoverable=True),
        }
    except (BenchError, MissingPartError, ProcessFailedError, OrderError) as error:
        print(f"spool.py: {error}", file=sys.stderr)
        return 1
    small_text, large_text = f"{given.size} B", f"{_LARGE_BYTES // 1024**2} MiB"
    sizes = {"alpha": small_text, "delta": small_text, "beta": large_text, "gamma": large_text}
    print(main_table(figures), state_table({f"{name} {sizes[name]}": its for name, its in states.items()}), sep="\n\n")
    if given.json:
        given.json.write_text(json.dumps({"machine": machine.described(), "main": figures, "states": states}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
