"""How long a quiet client waits beside one that sends the worst headers, in one run with and without.

    .venv/bin/python tests/bench/beside_worst_headers.py                          # 100 a second, over one connection
    .venv/bin/python tests/bench/beside_worst_headers.py --connections 20         # 100 a second over each of 20

The quiet one sends a message at a steady pace through Sluice to the embedded broker and waits for its answer; the other
sends headers of one sort, through another listener of the same process to a sink, and is never refused. Phases take
turns, so that drift of the machine hits all. The rows are those of ``scrape_delay.py``, and so is what spoils them:
``less waits`` is without the time in which Sluice, the broker or the sender waited for a core: the row to look at where
the machine is not quiet. ``x without`` is the p99 against that of the phases without such headers. ``plain`` are frames
of the same size whose headers are short: what such traffic takes by itself.
"""

import argparse
import contextlib
import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from peers import LOAD_CORE, PROXY_CORE, START_DEADLINE_S, BenchError, listens, process, sluice_program
from scrape_delay import Phases, Sender, broker, child
from worst_headers import Genes

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from playbook import frames

_CONFIG: Final = """
state_dir = "off"
[[listeners]]
name = "quiet"
listen = "127.0.0.1:{quiet}"
broker = "127.0.0.1:{broker}"
[[listeners]]
name = "other"
listen = "127.0.0.1:{other}"
broker = "127.0.0.1:{sink}"
# A header that cannot be read ends the connection of who is limited.
exempt = ["127.0.0.1"]
[defaults.topic]
rate = 1_000_000
"""
_KIB: Final = 1024
_NAMES: Final = Genes(b'{"code":"310","extFields":{"b":"x"', b',"' + b"\\n" * 20 + b'":1', b'},"remark":"')
SORTS: Final[Mapping[str, bytes]] = {
    "plain 64 KiB": frames.send("a", body=bytes(64 * _KIB)),
    "blanks 64 KiB": frames.frame(Genes(b'{"code":34,', b" ", b"?").header(64_000, binary=False)),
    "quotes 16 KiB": frames.frame(Genes(b'{"code":34,"', b'\\"', b"").header(16 * _KIB, binary=False)),
    "tokens 1 KiB": frames.frame(Genes(b'{"code":"310","x":[', b"1,", b"1]}").header(_KIB, binary=False)),
    "lenient 32 KiB": frames.frame(_NAMES.header(900, binary=False) + b"x\\n" * (31 * _KIB // 3) + b'"}'),
    "plain 256 KiB": frames.send("a", body=bytes(256 * _KIB)),
    "strict 256 KiB": frames.frame(
        Genes(b'{"code":310,"opaque":1,"extFields":{"b":"x"', b',"b":"yy"', b"}}").header(255 * _KIB, binary=False)
    ),
}


def sink(port: int) -> None:
    """Take connections and throw away what comes, for ever, in a process of its own."""
    os.sched_setaffinity(0, {LOAD_CORE})
    buffer = bytearray(_KIB * _KIB)
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
    """Read what is there; returns whether more may come."""
    try:
        return bool(peer.recv_into(buffer))
    except ConnectionResetError:
        return False


def other(port: int, pace: float, connections: int, orders: Connection) -> None:
    """Send what is ordered until told to stop, in a process of its own; report how many frames were sent."""
    os.sched_setaffinity(0, {LOAD_CORE})
    os.nice(5)
    while sort := orders.recv():
        whole, sent = SORTS[sort], 0
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(connections)]
            start = time.perf_counter()
            while not orders.poll(max(0.0, start + sent / pace - time.perf_counter())):
                for peer in peers:
                    peer.sendall(whole)
                sent += 1
        orders.recv()
        orders.send(sent / (time.perf_counter() - start))


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="beside_worst_headers.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--pace", type=float, default=100, help="of both, on each connection (default 100 a second)")
    parser.add_argument("--connections", type=int, default=1, help="of the one that is not quiet (default 1)")
    parser.add_argument("--seconds", type=float, default=5, help="length of one phase (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="phases of each sort (default 3)")
    parser.add_argument("--sort", action="append", choices=SORTS, help="only these sorts of headers; may be repeated")
    parser.add_argument("--base-port", type=int, default=21120, help="first of 5 ports on 127.0.0.1 (default 21120)")
    return parser.parse_args(arguments)


def start_brokers(stack: contextlib.ExitStack, upstream: int, drain: int) -> int:
    """Start the embedded broker and the sink, on ports of their own, for as long as the stack; return the broker's pid.

    Raises:
        BenchError: one of them does not listen.
    """
    broker_pid = stack.enter_context(child(broker, upstream))
    stack.enter_context(child(sink, drain))
    deadline = time.monotonic() + START_DEADLINE_S
    while not (listens(upstream) and listens(drain)):
        if time.monotonic() > deadline:
            raise BenchError("the embedded broker or the sink does not listen")
        time.sleep(0.05)
    return broker_pid


def main(arguments: Sequence[str]) -> None:
    """Measure and print.

    Raises:
        BenchError: something does not start, or ends.
    """
    given = options(arguments)
    quiet, hostile, admin, upstream, drain = range(given.base_port, given.base_port + 5)
    orders, theirs = get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory(prefix="sluice-beside-") as scratch, contextlib.ExitStack() as stack:
        config = Path(scratch) / "sluice.toml"
        config.write_text(_CONFIG.format(quiet=quiet, other=hostile, broker=upstream, sink=drain))
        broker_pid = start_brokers(stack, upstream, drain)
        command = [str(sluice_program()), "run", "--config", str(config), "--admin", f"127.0.0.1:{admin}"]
        pid = stack.enter_context(process("sluice", command, PROXY_CORE, quiet, Path(scratch) / "log"))
        stack.enter_context(child(other, hostile, given.pace, given.connections, theirs))
        os.sched_setaffinity(0, {LOAD_CORE})
        sender = Sender(quiet, 10)
        sender.fill()
        sorts = ("", *(given.sort or SORTS))
        phases = {sort: Phases(pid, broker_pid, os.getpid()) for sort in sorts}
        paces: dict[str, list[float]] = {sort: [] for sort in sorts}
        sender.phase(given.pace, 1)
        for _, sort in product(range(given.rounds), sorts):
            if sort:
                orders.send(sort)
            phases[sort].add(sender, given.pace, given.seconds)
            if sort:
                orders.send("enough")
                paces[sort].append(orders.recv())
            sender.phase(given.pace, 0.5)
    print(f"{given.pace:g} frames a second over each of {given.connections}; load average {os.getloadavg()[0]:.1f}")
    head = "".join(f"{word:>9}" for word in ("messages", "p50", "p99", "p99.9", "max", "above 5", "waited"))
    print(f"{'round trip, ms':18}{head}")
    for sort in sorts:
        print(phases[sort].rows(sort or "without", 5))
        if sort:
            due, less = (one / base for one, base in zip(phases[sort].p99_ms(), phases[""].p99_ms(), strict=True))
            slowest = min(paces[sort])
            print(f"  x without: {due:.2f}, less waits {less:.2f}; sent {slowest:.0f} a second on each connection")


if __name__ == "__main__":
    main(sys.argv[1:])
