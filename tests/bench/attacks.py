"""Round trips of a quiet client during an attack on its proxy: Sluice and HAProxy (TCP) in one run.

    .venv/bin/python tests/bench/attacks.py              # everything, about seven minutes
    .venv/bin/python tests/bench/attacks.py --quick      # one round, about two minutes
    .venv/bin/python tests/bench/attacks.py --attack idle --attack garbage

The quiet client sends a message at a steady pace to the embedded broker and waits for its answer. The attack goes to
another listener of the same process, with a sink behind it. The round trip is measured from when a message was due, so
a stall counts for every message that it delays. ``less waits`` is the p99 of the time since sending, without the time
in which the proxy, the broker or the client itself waited for a core. On a machine with other work, look at this
figure, which the ratios use. Both proxies take turns, round by round. A ratio is within a round, a figure is the median
of its rounds. ``x alone`` is the p99 against the same proxy's without an attack. ``x HAProxy`` is Sluice's p99 against
HAProxy's in the same attack. ``done`` is the attacker's actions a second: it waits for the proxy, and shares its core
with the quiet client and the broker, which have priority. ``failed`` is the share that was refused or cut off. ``MiB``
is the proxy's resident memory at the end of the attack.

Sluice has its default configuration, without limits for the attacked listener.
"""

import argparse
import contextlib
import os
import random
import resource
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final

import machine
import trio
from peers import (
    LOAD_CORE,
    PROXY_CORE,
    START_DEADLINE_S,
    BenchError,
    listens,
    metrics_page,
    open_files,
    process,
    sluice_program,
)
from report import aligned

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from playbook import frames

from admin.demo.broker import serve_broker

# Headers that are slow to read, each in its own way.
WORST_HEADERS: Final = (
    frames.send("a", body=bytes(64 << 10)),
    frames.frame(b'{"code":34,' + b" " * 63_988 + b"?"),
    frames.frame(b'{"code":34,"' + b'\\"' * 8186),
    frames.frame(b'{"code":"310","x":[' + b"1," * 500 + b"1]}"),
    frames.frame(
        b'{"code":"310","extFields":{"b":"x"'
        + (b',"' + b"\\n" * 20 + b'":1') * 18
        + b'},"remark":"'
        + b"x\\n" * 10_581
        + b'"}'
    ),
    frames.send("a", body=bytes(256 << 10)),
    frames.frame(b'{"code":310,"opaque":1,"extFields":{"b":"x"' + b',"b":"yy"' * 29_000 + b"}}"),
)

ALONE: Final = "alone"
HAPROXY, SLUICE = "haproxy", "sluice"
WAYS: Final = (HAPROXY, SLUICE)
# Descriptors of a proxy other than those of the idle connections, of which each takes two.
_OTHER_FILES: Final = 600
_MEGA: Final = 1 << 20
_TLS_START: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
_SMALL: Final = frames.send("a", body=b"x")
_LARGE: Final = frames.send("a", body=bytes(4096))
# A possible frame without its last byte.
_HUGE: Final = struct.pack(">i", 16 * _MEGA - 4) + frames.send("a", body=b"")[4:]

_HAPROXY_CONFIG: Final = """global
    nbthread 1
defaults
    mode tcp
    timeout connect 10s
    timeout client 1h
    timeout server 1h
listen quiet
    bind 127.0.0.1:{quiet}
    server broker 127.0.0.1:{broker}
listen attacked
    bind 127.0.0.1:{attacked}
    server sink 127.0.0.1:{sink}
"""
_SLUICE_CONFIG: Final = """
state_dir = "off"
[[listeners]]
name = "quiet"
listen = "127.0.0.1:{quiet}"
broker = "127.0.0.1:{broker}"
[[listeners]]
name = "attacked"
listen = "127.0.0.1:{attacked}"
broker = "127.0.0.1:{sink}"
[bounds]
max_connections = 100_000
[defaults.topic]
rate = 1_000_000
"""


@dataclass(frozen=True)
class Attack:
    connections: int = 0
    first: bytes = b""
    steps_per_s: float = 0
    step: "Callable[[Attacker, int], bool] | None" = None


class Attacker:
    """The attacker, in a separate process."""

    def __init__(self, attack: Attack, port: int) -> None:
        self._attack = attack
        self._port = port
        self.peers = [self.connect(attack.first) for _ in range(attack.connections)]
        self.places = [0] * len(self.peers)

    def connect(self, first: bytes = b"") -> socket.socket | None:
        """Open a connection and send its beginning. Return None if that fails."""
        peer = socket.socket()
        try:
            # Closed connections must not occupy a port for a minute.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.settimeout(5)
            peer.connect(("127.0.0.1", self._port))
            peer.sendall(first)
        except OSError:
            peer.close()
            return None
        return peer

    def send(self, index: int, data: bytes) -> bool:
        """Send on an open connection, which is opened again if it was closed. Return whether it was."""
        peer = self.peers[index]
        if peer is not None:
            try:
                peer.sendall(data)
            except OSError:
                peer.close()
            else:
                return False
        self.peers[index], self.places[index] = self.connect(self._attack.first), 0
        return True

    def close(self) -> None:
        for peer in self.peers:
            if peer is not None:
                peer.close()


def _drip(attacker: Attacker, number: int) -> bool:
    """Send the next byte of a whole frame on the next connection."""
    index = number % len(attacker.peers)
    place = attacker.places[index]
    attacker.places[index] += 1
    return attacker.send(index, _LARGE[place % len(_LARGE)].to_bytes(1, "big"))


def _more_of_huge(attacker: Attacker, number: int) -> bool:
    return attacker.send(number % len(attacker.peers), b"x")


def _bomb(attacker: Attacker, number: int) -> bool:
    return attacker.send(number % len(attacker.peers), WORST_HEADERS[number % len(WORST_HEADERS)])


def _garbage(attacker: Attacker, number: int) -> bool:
    """Connect, send garbage, and leave."""
    start = (b"", _TLS_START, b"PROXY TCP4 1.2.3.4 ", b"AMQP\0\0\11\1", b"GET / HTTP/1.1\r\n")[number % 5]
    peer = attacker.connect(start + random.Random(number).randbytes(500))
    if peer is None:
        return True
    peer.close()
    return False


def _come_and_go(attacker: Attacker, number: int) -> bool:
    del number
    peer = attacker.connect()
    if peer is None:
        return True
    peer.close()
    return False


def attacks(connections: int) -> dict[str, Attack]:
    """Return all attacks by name. One has this many idle connections."""
    return {
        "idle": Attack(connections=connections, first=_SMALL),
        "silent": Attack(connections=connections),
        "byte by byte": Attack(min(connections, 500), b"", 2000, _drip),
        "huge frames": Attack(8, _HUGE, 8, _more_of_huge),
        "header bombs": Attack(4, b"", 50, _bomb),
        "garbage": Attack(0, b"", 300, _garbage),
        "come and go": Attack(0, b"", 1000, _come_and_go),
    }


def attacker(connections: int, orders: Connection) -> None:
    """Attack until told to stop, in a separate process. Report the numbers of actions and failures."""
    os.sched_setaffinity(0, {LOAD_CORE})
    os.nice(5)
    open_files()
    known = attacks(connections)
    while order := orders.recv():
        name, port = order
        attack = known[name]
        begun = time.perf_counter()
        one = Attacker(attack, port)
        failed = sum(peer is None for peer in one.peers)
        done, took_s = len(one.peers), time.perf_counter() - begun
        orders.send(None)
        if attack.step is not None:
            start, done, failed = time.perf_counter(), 0, 0
            while not orders.poll(max(0.0, start + done / attack.steps_per_s - time.perf_counter())):
                failed += attack.step(one, done)
                done += 1
            took_s = time.perf_counter() - start
        orders.recv()
        one.close()
        orders.send((done / took_s, failed / max(1, done)))


@dataclass(frozen=True)
class Measured:
    p50_ms: float
    p99_ms: float
    less_ms: float
    done_per_s: float = 0
    failed: float = 0
    resident_mib: float = 0


Rounds = dict[tuple[str, str], list[Measured]]
"""By attack and way."""


def percentiles(trips: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(trips)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def table(rounds: Rounds) -> str:
    rows = [["attack", "way", "done/s", "failed", "MiB", "p50 ms", "p99 ms", "less waits", "x alone", "x HAProxy"]]
    for (attack, way), measured in rounds.items():
        against = _ratios(measured, rounds.get((ALONE, way), []))
        theirs = _ratios(measured, rounds.get((attack, HAPROXY), [])) if way == SLUICE else "-"
        rows.append(
            [
                *(attack, way, f"{median(each.done_per_s for each in measured):,.0f}" if attack != ALONE else "-"),
                f"{median(each.failed for each in measured):.0%}" if attack != ALONE else "-",
                f"{median(each.resident_mib for each in measured):.0f}",
                f"{median(each.p50_ms for each in measured):.2f}",
                f"{median(each.p99_ms for each in measured):.2f}",
                f"{median(each.less_ms for each in measured):.2f}",
                against if attack != ALONE else "-",
                theirs,
            ]
        )
    return aligned(rows)


def _ratios(measured: Sequence[Measured], base: Sequence[Measured]) -> str:
    ratios = [one.less_ms / other.less_ms for one, other in zip(measured, base, strict=False) if other.less_ms]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"


def sink(port: int) -> None:
    """Accept connections and discard data, in a separate process."""
    os.sched_setaffinity(0, {LOAD_CORE})
    buffer = bytearray(1 << 20)
    with socket.create_server(("127.0.0.1", port), backlog=1000) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket) and not _drained(key.fileobj, buffer):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def _drained(peer: socket.socket, buffer: bytearray) -> bool:
    """Read available data. Return whether more may come."""
    try:
        return bool(peer.recv_into(buffer))
    except ConnectionResetError:
        return False


def start_brokers(stack: contextlib.ExitStack, upstream: int, drain: int) -> int:
    """Start the embedded broker and the sink for as long as the stack. Return the broker's pid."""
    broker_pid = stack.enter_context(child(broker, upstream))
    stack.enter_context(child(sink, drain))
    deadline = time.monotonic() + START_DEADLINE_S
    while not (listens(upstream) and listens(drain)):
        if time.monotonic() > deadline:
            raise BenchError("the embedded broker or the sink does not listen")
        time.sleep(0.05)
    return broker_pid


def broker(port: int) -> None:
    """Serve as the broker, in a separate process."""
    os.sched_setaffinity(0, {LOAD_CORE})
    trio.run(serve_broker, port)


class Sender:
    def __init__(self, port: int, topics: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = [frames.send(f"topic-{number}", number, body=b"x" * 128) for number in range(topics)]
        self._next = 0

    def send(self) -> None:
        self._socket.sendall(self._frames[self._next])
        self._next = (self._next + 1) % len(self._frames)
        length = int.from_bytes(self._socket.recv(4, socket.MSG_WAITALL))
        if len(self._socket.recv(length, socket.MSG_WAITALL)) < length:
            raise BenchError("sluice closed the connection")

    def fill(self) -> None:
        for _ in self._frames:
            self.send()

    def phase(self, pace: float, seconds: float, pids: Sequence[int] = ()) -> list[tuple[float, float]]:
        """Send at that pace. Return the round trips in ms: since each was due, and since sending without waits."""
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


def waited_s(pid: int) -> float:
    """Return how long a process has been ready without a core. See the kernel's sched-stats.rst."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run a function in a separate process, and end it."""
    process = get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process.pid or 0
    finally:
        process.terminate()
        process.join()


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="attacks.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--pace", type=float, default=100, help="messages of the quiet client a second (default 100)")
    parser.add_argument("--seconds", type=float, default=5, help="length of an attack (default 5)")
    parser.add_argument("--rounds", type=int, help="attacks of each sort on each proxy (default 3)")
    parser.add_argument(
        "--connections", type=int, default=10_000, help="that are idle; fewer where there are not so many descriptors"
    )
    parser.add_argument("--attack", action="append", choices=attacks(1), help="only this; repeatable")
    parser.add_argument("--quick", action="store_true", help="one round, unless said otherwise")
    parser.add_argument("--base-port", type=int, default=21140, help="first of 7 ports on 127.0.0.1 (default 21140)")
    given = parser.parse_args(arguments)
    given.rounds = given.rounds if given.rounds is not None else 1 if given.quick else 3
    given.attack = given.attack or list(attacks(1))
    if min(given.pace, given.seconds, given.rounds, given.connections) <= 0:
        parser.error("--pace, --seconds, --rounds and --connections must be above 0")
    return given


def connections_possible(wanted: int) -> int:
    """Return the number of connections that a proxy has descriptors for, up to the wanted one."""
    return min(wanted, (open_files() - _OTHER_FILES) // 2)


@contextlib.contextmanager
def started(scratch: Path, way: str, ports: dict[str, int]) -> Iterator[int]:
    """Run a proxy. Yield its process id."""
    config = scratch / f"{way}.config"
    config.write_text((_HAPROXY_CONFIG if way == HAPROXY else _SLUICE_CONFIG).format(**ports))
    sluice = [str(sluice_program()), "run", "--config", str(config), "--admin", f"127.0.0.1:{ports['admin']}"]
    command = ["haproxy", "-db", "-f", str(config)] if way == HAPROXY else sluice
    with process(way, command, PROXY_CORE, ports["quiet"], scratch / f"{way}.log") as pid:
        yield pid


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MEGA


def closed(port: int) -> dict[str, int]:
    reasons: dict[str, int] = defaultdict(int)
    for line in metrics_page(port).splitlines():
        if line.startswith("sluice_connections_closed_total{"):
            labels, _, count = line.rpartition(" ")
            reasons[labels.partition('reason="')[2].partition('"')[0]] += round(float(count))
    return reasons


def main(arguments: Sequence[str]) -> None:
    given = options(arguments)
    machine.check()
    connections = connections_possible(given.connections)
    if connections < given.connections:
        print(f"{connections} connections instead of {given.connections}: ulimit -Hn is too low for more")
    upstream, drain, admin, *listen = range(given.base_port, given.base_port + 7)
    shared = {"broker": upstream, "sink": drain, "admin": admin}
    ports = {way: shared | {"quiet": listen[2 * at], "attacked": listen[2 * at + 1]} for at, way in enumerate(WAYS)}
    orders, theirs = get_context("spawn").Pipe()
    rounds: Rounds = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="sluice-attacks-") as scratch, contextlib.ExitStack() as stack:
        broker_pid = start_brokers(stack, upstream, drain)
        pids = {way: stack.enter_context(started(Path(scratch), way, ports[way])) for way in WAYS}
        stack.enter_context(child(attacker, connections, theirs))
        os.sched_setaffinity(0, {LOAD_CORE})
        senders = {way: Sender(ports[way]["quiet"], 10) for way in WAYS}
        for sender in senders.values():
            sender.fill()
            sender.phase(given.pace, 1)
        for _ in range(given.rounds):
            for attack in (ALONE, *given.attack):
                for way in WAYS:
                    if attack != ALONE:
                        orders.send((attack, ports[way]["attacked"]))
                        orders.recv()
                    trips = senders[way].phase(given.pace, given.seconds, (pids[way], broker_pid, os.getpid()))
                    mib = resident_mib(pids[way])
                    done = (0.0, 0.0)
                    if attack != ALONE:
                        orders.send("enough")
                        done = orders.recv()
                    p50, p99 = percentiles([due for due, _ in trips])
                    _, less = percentiles([took for _, took in trips])
                    rounds[attack, way].append(Measured(p50, p99, less, *done, mib))
                    # Let the rest of it end.
                    senders[way].phase(given.pace, 1)
        reasons = closed(admin)
    print(f"{given.pace:g} messages a second, {connections} idle connections; load average {os.getloadavg()[0]:.1f}")
    print(table(rounds))
    print("Sluice closed:", ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items())))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BenchError as error:
        sys.exit(f"attacks.py: {error}")
