"""How long a scrape delays messages: a steady pace through Sluice, with and without scrapes each second, in one run.

And how long the page does: in phases of their own somebody follows the events of its table.

    .venv/bin/python tests/bench/scrape_delay.py

Sluice stands in front of the embedded broker with 10 000 live resources, each with a label of its own. One message at
a time is sent at a steady pace, topic after topic, and its round trip is taken from the moment it was *due*, so that a
stall is paid by every message that it delays. Phases with and without scrapes take turns, so that drift of the machine
hits both. Everything runs on 127.0.0.1; all processes end with the script.

It is no test: its figures depend on what else the machine does. ``above`` counts the messages that took longer than
``--bound-ms``; ``waited`` is the share of the time in which Sluice was ready to run while something else had its core,
and above a few percent the machine was not quiet enough. For that case there are the rows ``less waits``: round trips
from when each was really sent, without the time in which Sluice, the broker or the sender waited for a core.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path

import trio
from peers import LOAD_CORE, PROXY_CORE, START_DEADLINE_S, BenchError, listens, metrics_page, process, sluice_program

from admin.demo.broker import serve_broker
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

_CONFIG = """
state_dir = "off"
[[listeners]]
name = "main"
listen = "127.0.0.1:{listen}"
broker = "127.0.0.1:{broker}"
[defaults.topic]
rate = 1_000_000
[bounds]
max_resource_labels = {topics}
"""
_LENGTH = struct.Struct(">i")
_BUFFER = bytearray(1024 * 1024)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scrape_delay.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=10_000, help="live resources (default 10000)")
    parser.add_argument("--pace", type=float, default=100, help="messages a second (default 100)")
    parser.add_argument("--seconds", type=float, default=10, help="length of one phase (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="phases of each kind (default 3)")
    parser.add_argument("--bound-ms", type=float, default=5, help="count the messages above this (default 5)")
    parser.add_argument("--base-port", type=int, default=21100, help="first of 3 ports on 127.0.0.1 (default 21100)")
    return parser.parse_args(arguments)


def broker(port: int) -> None:
    """Serve as the broker, for ever, in a process of its own."""
    os.sched_setaffinity(0, {LOAD_CORE})
    trio.run(serve_broker, port)


def load(port: int, orders: Connection) -> None:
    """Do what is ordered to the admin address until told to stop, in a process of its own; report what was done."""
    os.sched_setaffinity(0, {LOAD_CORE})
    os.nice(5)
    while kind := orders.recv():
        orders.send(scrape(port, orders) if kind == "scrapes" else follow(port, orders))
        orders.recv()


def scrape(port: int, orders: Connection) -> list[tuple[float, int]]:
    """Scrape each second; return how long each took, and how big it was. Nothing is parsed."""
    taken: list[tuple[float, int]] = []
    while not orders.poll(max(0.0, 1.0 - (taken[-1][0] if taken else 0.0))):
        began, size = time.perf_counter(), 0
        with ask(port, "/metrics", "Accept: application/openmetrics-text; version=1.0.0", "Connection: close") as peer:
            while read := peer.recv_into(_BUFFER):
                size += read
        taken.append((time.perf_counter() - began, size))
    return taken


def follow(port: int, orders: Connection) -> list[tuple[float, int]]:
    """Follow the page's events, of a large page in the order of what moves; return how long, and how much came."""
    began, size = time.perf_counter(), 0
    with ask(port, "/api/v1/events?limit=500&sort=passed&order=desc") as peer:
        while not orders.poll():
            peer.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                size += peer.recv_into(_BUFFER)
    return [(time.perf_counter() - began, size)]


def ask(port: int, path: str, *headers: str) -> socket.socket:
    """Connect and send the head of a request."""
    peer = socket.create_connection(("127.0.0.1", port), 30)
    peer.sendall("\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode())
    return peer


class Sender:
    """One connection that sends a message and waits for its answer."""

    def __init__(self, port: int, topics: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = [_send(f"topic-{number}", number) for number in range(topics)]
        self._next = 0

    def send(self) -> None:
        """Send to the next topic, and wait for the answer."""
        self._socket.sendall(self._frames[self._next])
        self._next = (self._next + 1) % len(self._frames)
        length = _LENGTH.unpack(self._socket.recv(4, socket.MSG_WAITALL))[0]
        if len(self._socket.recv(length, socket.MSG_WAITALL)) < length:
            raise BenchError("sluice closed the connection")

    def fill(self) -> None:
        """Send once to every topic."""
        for _ in self._frames:
            self.send()

    def phase(self, pace: float, seconds: float, pids: Sequence[int] = ()) -> list[tuple[float, float]]:
        """Send at that pace; return the round trips in ms: from when each was due, and what it took less waits."""
        trips: list[tuple[float, float]] = []
        start = time.perf_counter()
        for number in range(round(pace * seconds)):
            due = start + number / pace
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            waits, sent = sum(map(waited_s, pids)), time.perf_counter()
            self.send()
            done = time.perf_counter()
            waits = sum(map(waited_s, pids)) - waits
            trips.append(((done - due) * 1000, (done - sent - waits) * 1000))
        return trips


def _send(topic: str, opaque: int) -> bytes:
    fields = {"a": "bench", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "m": "false"}
    return encode(RemotingCommand(code=310, opaque=opaque, fields=fields, body=b"x" * 128))


def waited_s(pid: int) -> float:
    """Return how long a process has been ready without a core, see the kernel's sched-stats.rst."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run a function in a process of its own, and end it."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process.pid or 0
    finally:
        process.terminate()
        process.join()


class Phases:
    """The phases of one kind, together."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._trips: list[tuple[float, float]] = []
        self._waited_s = self._took_s = 0.0

    def add(self, sender: Sender, pace: float, seconds: float) -> None:
        """Measure one more."""
        began, waited = time.perf_counter(), waited_s(self._pids[0])
        self._trips += sender.phase(pace, seconds, self._pids)
        self._took_s += time.perf_counter() - began
        self._waited_s += waited_s(self._pids[0]) - waited

    def p99_ms(self) -> tuple[float, float]:
        """Return the 99th percentile of the round trips, and of what they took less waits."""
        due, less = (sorted(trips) for trips in zip(*self._trips, strict=True))
        at = min(len(due) - 1, int(len(due) * 0.99))
        return due[at], less[at]

    def rows(self, name: str, bound_ms: float) -> str:
        """Return two lines of the table."""
        due = row(name, [trip for trip, _ in self._trips], bound_ms)
        less = row("  less waits", [trip for _, trip in self._trips], bound_ms)
        return f"{due}{self._waited_s / self._took_s:9.1%}\n{less}"


def row(name: str, trips: Sequence[float], bound_ms: float) -> str:
    """Return the figures of some round trips."""
    ordered = sorted(trips)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    above = sum(trip > bound_ms for trip in ordered)
    figures = "".join(f"{at(share):9.2f}" for share in (0.5, 0.99, 0.999, 1.0))
    return f"{name:18}{len(ordered):9}{figures}{above:9}"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    given = options(arguments)
    listen, admin, upstream = range(given.base_port, given.base_port + 3)
    orders, theirs = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory(prefix="sluice-scrape-") as scratch, contextlib.ExitStack() as stack:
        config = Path(scratch) / "sluice.toml"
        config.write_text(_CONFIG.format(listen=listen, broker=upstream, topics=given.topics))
        command = [str(sluice_program()), "run", "--config", str(config), "--admin", f"127.0.0.1:{admin}"]
        broker_pid = stack.enter_context(child(broker, upstream))
        deadline = time.monotonic() + START_DEADLINE_S
        while not listens(upstream):
            if time.monotonic() > deadline:
                raise BenchError("the embedded broker does not listen")
            time.sleep(0.05)
        pid = stack.enter_context(process("sluice", command, PROXY_CORE, listen, Path(scratch) / "log"))
        stack.enter_context(child(load, admin, theirs))
        os.sched_setaffinity(0, {LOAD_CORE})
        sender = Sender(listen, given.topics)
        sender.fill()
        kinds = ("", "scrapes", "streams")
        phases = {kind: Phases(pid, broker_pid, os.getpid()) for kind in kinds}
        done: dict[str, list[tuple[float, int]]] = {kind: [] for kind in kinds}
        sender.phase(given.pace, 1)
        for _, kind in product(range(given.rounds), kinds):
            if kind:
                orders.send(kind)
            phases[kind].add(sender, given.pace, given.seconds)
            if kind:
                orders.send("enough")
                done[kind] += orders.recv()
            # What was begun for the page ends some seconds after it.
            sender.phase(given.pace, 1)
        shown = metrics_page(admin).count('\nsluice_requests_total{kind="topic",resource="topic-')
    scrapes, streams = done["scrapes"], done["streams"]
    print(f"{given.topics} live resources, {shown} samples of sluice_requests_total, {given.pace:g} messages/s")
    print(f"{len(scrapes)} scrapes of {max(size for _, size in scrapes) / 1e6:.1f} MB, {max(scrapes)[0]:.2f} s at most")
    print(f"streams of {sum(size for _, size in streams) / sum(took for took, _ in streams) / 1000:.0f} kB/s")
    print(f"load average {os.getloadavg()[0]:.1f}")
    head = "".join(f"{word:>9}" for word in ("messages", "p50", "p99", "p99.9", "max", "above", "waited"))
    print(f"{'round trip, ms':18}{head}")
    for kind in kinds:
        print(phases[kind].rows(f"with {kind}" if kind else "without", given.bound_ms))


if __name__ == "__main__":
    main(sys.argv[1:])
