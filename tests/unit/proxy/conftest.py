"""Fixtures of the data path's tests: batches, a manual clock, and a data path between real sockets.

Only ``jump`` moves the mock clock. The sockets are real, on loopback, so a test waits for bytes, for an end of stream,
or with ``until`` for other events.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import entry_points
from inspect import iscoroutinefunction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.limit_text import parse_limit
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.batch import Batch, Charge, ConnectionInfo, Request, Side
from proxy.deciding.pipeline import HandlerConfig
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.net import broker_watch
from proxy.net.connection import Connection
from proxy.net.server import ListenerConfig
from proxy.net.sockets import format_address
from proxy.protocols.base import Protocol
from proxy.stats.snapshot import Snapshot

HOST = "127.0.0.1"
KIND = "line_topic"
PATIENCE = 20_000
"""Turns of the loop that ``until`` waits for an immediate event."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test that uses ``mock_clock`` through a fixture run on that clock."""
    here = Path(__file__).parent
    for item in items:
        if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj) and item.path.is_relative_to(here):
            item.add_marker(pytest.mark.trio(run=partial(_run_on_mock_clock, item)))


def _run_on_mock_clock(item: pytest.Function, test: Any, *, clock: Any, instruments: Any) -> Any:
    mock_clock: Any = item.funcargs.get("mock_clock")
    return trio.run(test, clock=clock or mock_clock, instruments=instruments)


async def until(predicate: Callable[[], object]) -> None:
    """Run the other tasks until a condition is true, without a change of time."""
    for _ in range(PATIENCE):
        if predicate():
            return
        await wait_all_tasks_blocked()
    pytest.fail(f"did not come about within {PATIENCE} turns")


async def settle() -> None:
    """Run the other tasks until all are idle."""
    for _ in range(5):
        await wait_all_tasks_blocked()


class Peer:
    """One end of a TCP connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._read = bytearray()

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as much as the kernel accepts. Return the number of bytes."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            sent = self.send_now(rest)
            if not sent:
                await trio.lowlevel.wait_writable(self.sock)
            rest = rest[sent:]

    async def send_until_stalled(self, data: bytes) -> int:
        """Send ``data`` over and over until the kernel accepts no more. Return the number of bytes."""
        total = 0
        for _ in range(1000):
            sent = -1
            while sent:
                offset = total % len(data)
                total += (sent := self.send_now(data[offset:]))
            before = total
            await settle()
            total += self.send_now(data[total % len(data) :])
            if total == before:
                return total
        pytest.fail(f"still not stalled after {total} bytes")

    async def _receive_some(self) -> bytes:
        while True:
            try:
                return self.sock.recv(1 << 20)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.sock)

    async def receive(self, size: int) -> bytes:
        while len(self._read) < size:
            chunk = await self._receive_some()
            assert chunk, f"the stream ended after {bytes(self._read)!r}"
            self._read += chunk
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    async def receive_line(self) -> bytes:
        while b"\n" not in self._read:
            chunk = await self._receive_some()
            assert chunk, f"the stream ended after {bytes(self._read)!r}"
            self._read += chunk
        return await self.receive(self._read.index(b"\n") + 1)

    async def receive_to_end(self) -> bytes:
        """Read to the end of the stream. Raises ConnectionResetError at a reset."""
        while chunk := await self._receive_some():
            self._read += chunk
        data = bytes(self._read)
        self._read.clear()
        return data

    def pending(self) -> bytes:
        with suppress(BlockingIOError):
            while chunk := self.sock.recv(1 << 20):
                self._read += chunk
        return bytes(self._read)

    def end(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class ScriptedBroker:
    """A listening socket whose connections the test controls.

    Its address must be reserved while it is stopped.
    """

    def __init__(self, peers: list[Peer], address: tuple[str, int]) -> None:
        self._peers = peers
        self.address = address
        self._listening = self._listen()

    def _listen(self) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(self.address)
        sock.listen(128)
        sock.setblocking(False)
        return sock

    async def accept(self, *, ended: bool = False) -> Peer:
        """Return the next connection that has not ended, as probes of the listener have.

        With ``ended`` it may have.
        """
        while True:
            try:
                sock, _ = self._listening.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._listening)
                continue
            peer = Peer(sock)
            self._peers.append(peer)
            with suppress(BlockingIOError):
                if not ended and sock.recv(1, socket.MSG_PEEK) == b"":
                    continue
            return peer

    def stop(self) -> None:
        self._listening.close()

    def restart(self) -> None:
        self._listening = self._listen()


@dataclass
class Rig:
    path: LocalDataPath
    broker: ScriptedBroker
    peers: list[Peer]
    scope: trio.CancelScope
    listener: str = "main"

    @property
    def address(self) -> tuple[str, int]:
        return self.path.server.bound(self.listener)

    @property
    def closed(self) -> Mapping[str, int]:
        """The number of ended connections by reason."""
        reasons: Counter[str] = Counter()
        for (_, reason), count in self.path.server.counters.closed.items():
            reasons[reason] += count
        return reasons

    @property
    def connections(self) -> list[Connection]:
        return list(self.path.server.each_connection())

    async def client(self, *, receive_buffer: int = 0, source: str = "") -> Peer:
        """Connect a client, from a given address of this machine if necessary."""
        sock = socket.socket(socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            sock.bind((source, 0))
        peer = Peer(sock)
        self.peers.append(peer)
        with suppress(BlockingIOError):
            sock.connect(self.address)
        await trio.lowlevel.wait_writable(sock)
        return peer

    def client_in_backlog(self) -> Peer:
        """Connect a client that is not accepted yet."""
        peer = Peer(socket.create_connection(self.address))
        self.peers.append(peer)
        return peer

    async def connect(self, *, receive_buffer: int = 0, source: str = "") -> tuple[Peer, Peer]:
        """Connect a client. Return it and the broker's end, once there is a session."""
        client = await self.client(receive_buffer=receive_buffer, source=source)
        broker = await self.broker.accept()
        name = format_address(client.sock.getsockname())
        server = self.path.server
        await until(
            lambda: any(each.info.peer == name for each in (*server.connections.values(), *server.new.values()))
        )
        return client, broker

    async def until(self, predicate: Callable[[], object]) -> None:
        await until(predicate)

    async def settle(self) -> None:
        await settle()

    async def until_closed(self, reason: str, count: int = 1) -> None:
        """Wait until this many connections have ended, all for that reason."""
        await until(lambda: sum(self.closed.values()) >= count)
        assert self.closed == {reason: count}

    async def passes(self, client: Peer, broker: Peer, request: bytes) -> bool:
        """Send one request. Return whether it reached the broker."""
        await client.send(request + b"\n")
        await until(lambda: client.pending() or broker.pending())
        if broker.pending():
            assert await broker.receive_line() == request + b"\n"
            return True
        assert (await client.receive_line()).startswith(b"BUSY " + request.split()[0])
        return False

    async def snapshot(self) -> Snapshot:
        return await self.path.snapshot()

    async def requests(self, name: str) -> dict[str, int]:
        """Return the outcomes of a topic's requests so far by verdict, without zeros."""
        counts = (await self.path.snapshot()).resources.get((KIND, name))
        return {verdict: count for verdict, count in counts.requests.items() if count} if counts else {}


StartRig = Callable[..., Awaitable[Rig]]
MakeBatch = Callable[..., Batch]


@pytest.fixture
def lines() -> Protocol:
    """The protocol of the external plug-in package."""
    for entry in entry_points(group="sluice.protocols", name="lines"):
        protocol: Protocol = entry.load()
        return protocol
    pytest.fail("the plug-in package of the tests is missing: .venv/bin/pip install -e tests/plugin")


@pytest.fixture
def now_ns(mock_clock: MockClock) -> Callable[[], int]:
    """The data path's clock, callable from any thread."""
    return lambda: round(mock_clock.current_time() * 1e9)


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    opened: list[Peer] = []
    yield opened
    for peer in opened:
        peer.sock.close()


@pytest.fixture
def broker(peers: list[Peer], reserve: Callable[..., int]) -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker(peers, (HOST, reserve()))
    yield scripted
    scripted.stop()


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
async def start_rig(  # noqa: PLR0917 - fixtures
    nursery: trio.Nursery,
    lines: Protocol,
    broker: ScriptedBroker,
    peers: list[Peer],
    now_ns: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[StartRig]:
    """Start data paths, by default with one listener with the protocol of lines and the rate limiter.

    Topic ``a`` admits two requests a second, ``zero`` none, ``free`` all. At the broker's end of a connection, the
    client's is ended at once.
    """
    monkeypatch.setattr(broker_watch, "SETTLE_S", 0.0)
    scopes: list[trio.CancelScope] = []

    async def start(
        *limits: str,
        protocol: Protocol = lines,
        options: Any = None,
        handlers: Sequence[HandlerConfig] = (HandlerConfig(RATE_LIMIT, RateLimitOptions()),),
        listeners: tuple[ListenerConfig, ...] = (),
        rules: Sequence[Rule] = (),
        listen: str = HOST,
        listen_at: tuple[str, int] | None = None,
        run_with: Mapping[str, Any] = MappingProxyType({}),
        wall_clock: Callable[[], datetime] = lambda: datetime.fromtimestamp(trio.current_time(), UTC),
        **config: Any,
    ) -> Rig:
        assert now_ns() == round(trio.current_time() * 1e9), "the test does not run on the mock clock"
        if not listeners:
            given = options or protocol.options()
            listeners = (ListenerConfig("main", protocol, given, listen_at or (listen, 0), broker.address),)
        texts = limits or (f"{KIND}:a=2/s", f"{KIND}:zero=0/s", f"{KIND}:free=unlimited")
        rule_set = RuleSet((*map(parse_limit, texts), *rules))
        path = LocalDataPath(DataPathConfig(listeners, tuple(handlers), rule_set, **config), now_ns, wall_clock)

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await path.run(**run_with, task_status=task_status)

        scopes.append(scope := trio.CancelScope())
        await nursery.start(run)
        return Rig(path, broker, peers, scope, listeners[0].name)

    yield start
    for scope in scopes:
        scope.cancel()


@pytest.fixture
async def rig(start_rig: StartRig) -> Rig:
    return await start_rig()


@pytest.fixture
def connection() -> ConnectionInfo:
    return ConnectionInfo(1, "main", "main", "192.0.2.1:40000", "192.0.2.1")


@pytest.fixture
def batch_of() -> MakeBatch:
    """Make batches: ``batch_of("a", ("b", "c"))`` has two requests, the second with two resources."""

    def make(
        *names: str | tuple[str, ...],
        costs: Sequence[int] = (),
        connection_id: int = 1,
        side: Side = Side.CLIENT,
        charges: Sequence[tuple[str, int]] = (),
    ) -> Batch:
        info = ConnectionInfo(connection_id, "main", "main", f"192.0.2.1:{40000 + connection_id}", "192.0.2.1")
        requests = [
            Request(
                resources=tuple(Resource(KIND, name) for name in ((group,) if isinstance(group, str) else group)),
                messages=cost,
                size_bytes=100,
                producer_group="",
                refusal="answered",
                order_key=None,
                handle=None,
            )
            for group, cost in zip(names, costs or [1] * len(names), strict=True)
        ]
        return Batch(info, side, requests, [Charge((Resource(KIND, name),), cost) for name, cost in charges])

    return make
