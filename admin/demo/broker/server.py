"""The embedded broker on trio: listeners, one reader and one writer for each connection, and the timers.

The embedded broker is not on the data path, so it opens its own sockets, with trio's streams. What is answered is
decided in ``broker``, which does no I/O.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio
from trio.abc import Stream

from admin.demo.broker.broker import Broker
from admin.demo.broker.channel import Channel, Role
from admin.demo.broker.store import LoopbackConfig
from proxy.protocols.rocketmq.wire.codes import RemoteProtocolError

#: Bytes that may wait for one client; beyond it nothing more is read from it.
_MAX_WAITING_BYTES: Final = 4 << 20
_READ_BYTES: Final = 64 << 10
_NS_PER_S: Final = 1_000_000_000

Address = tuple[str, int]
_Listeners = list[tuple[Role, trio.SocketListener]]


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _now_ns() -> int:
    return round(trio.current_time() * _NS_PER_S)


class Loopback:
    """A running embedded broker; ``serve_broker`` makes it.

    Attributes:
        broker: everything but the sockets.
        addresses: where the two servers listen.
    """

    def __init__(self, config: LoopbackConfig, wall_clock_ms: Callable[[], int]) -> None:
        self.broker = Broker(config, wall_clock_ms)
        self.addresses: dict[Role, Address] = {
            Role.BROKER: (config.host, config.broker_port),
            Role.NAME_SERVER: (config.host, config.name_server_port),
        }
        self._timers_changed = trio.Event()
        self._timers_due_ns: int | None = None

    @property
    def broker_address(self) -> str:
        """Return ``address:port`` where the broker listens."""
        return _join(self.addresses[Role.BROKER])

    @property
    def name_server_address(self) -> str:
        """Return ``address:port`` where the name server listens."""
        return _join(self.addresses[Role.NAME_SERVER])

    def stored(self, topic: str) -> int:
        """Return how many messages a topic has been given so far."""
        return self.broker.stored(topic)

    def stored_by_topic(self) -> Mapping[str, int]:
        """Return how many messages each topic has been given so far."""
        return self.broker.stored_by_topic()

    def advertise(self, address: str) -> None:
        """Name this ``address:port`` in routes from now on, usually the sidecar's."""
        self.broker.advertise(address)

    async def run(self, task_status: trio.TaskStatus["Loopback"] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and serve until cancelled.

        Raises:
            OSError: an address is taken or not ours; the message names it.
        """
        listeners = await self._open_listeners()
        self.advertise(self.broker_address)
        async with trio.open_nursery() as nursery:
            for role, listener in listeners:
                nursery.start_soon(trio.serve_listeners, partial(self._serve_socket, role), [listener])
            nursery.start_soon(self._run_timers)
            task_status.started(self)

    async def serve_stream(self, stream: Stream, role: Role = Role.BROKER, peer: Address = ("127.0.0.1", 0)) -> None:
        """Serve one connection until it ends, and close it; for connections in memory, and by the listeners."""
        await _Connection(self.broker, stream, role, peer, self._check_timers).run()

    async def _open_listeners(self) -> _Listeners:
        listeners: _Listeners = []
        try:
            for role, (host, port) in self.addresses.items():
                try:
                    opened = await trio.open_tcp_listeners(port, host=host)
                except OSError as error:
                    raise OSError(error.errno, f"{role.value} {_join((host, port))}: {error.strerror}") from error
                listeners.extend((role, listener) for listener in opened)
                self.addresses[role] = opened[0].socket.getsockname()[:2]
        except BaseException:
            for _, listener in listeners:
                listener.socket.close()
            raise
        return listeners

    async def _run_timers(self) -> None:
        broker = self.broker
        while True:
            due_ns = self._timers_due_ns = broker.next_timer_ns()
            self._timers_changed = trio.Event()
            with trio.move_on_at(math.inf if due_ns is None else due_ns / _NS_PER_S) as scope:
                await self._timers_changed.wait()
            if scope.cancelled_caught and due_ns is not None:
                # The deadline went through a float: it may be a nanosecond early.
                broker.run_timers(max(due_ns, _now_ns()))

    def _check_timers(self) -> None:
        due_ns = self.broker.next_timer_ns()
        if due_ns is not None and (self._timers_due_ns is None or due_ns < self._timers_due_ns):
            self._timers_changed.set()

    async def _serve_socket(self, role: Role, stream: trio.SocketStream) -> None:
        try:
            peer = stream.socket.getpeername()[:2]
        except OSError:
            # Gone between being accepted and now.
            await trio.aclose_forcefully(stream)
            return
        await self.serve_stream(stream, role, peer)


class _Connection:
    """One connection: a task that reads and answers, and one that writes what comes up in between.

    Only one of them writes at a time; it goes on until nothing waits, so the other never has to.
    """

    def __init__(
        self, broker: Broker, stream: Stream, role: Role, peer: Address, check_timers: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._stream = stream
        self._check_timers = check_timers
        self._wake = trio.Event()
        self._receiving = False
        self._writing = False
        self._written = trio.Event()
        self._channel: Channel = broker.connect(role, *peer, self._woken)

    def _woken(self) -> None:
        # What is queued while the reader is busy it writes itself, without waking another task for it.
        if not self._receiving and not self._writing:
            self._wake.set()

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_in_between, nursery.cancel_scope)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._broker.disconnect(self._channel)
            self._check_timers()
            await trio.aclose_forcefully(self._stream)

    async def _read(self) -> None:
        try:
            try:
                while chunk := await self._stream.receive_some(_READ_BYTES):
                    self._receive(bytes(chunk))
                    await self._flush()
                    await self._written_down_to(_MAX_WAITING_BYTES)
            except RemoteProtocolError:
                # As with a real broker, such a connection ends; what was answered before is still written.
                await self._flush()
            await self._written_down_to(0)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _receive(self, chunk: bytes) -> None:
        self._receiving = True
        try:
            self._broker.receive(self._channel, chunk, _now_ns())
        finally:
            self._receiving = False
            self._check_timers()

    async def _write_in_between(self, scope: trio.CancelScope) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    async def _flush(self) -> None:
        if self._writing:
            return
        self._writing = True
        try:
            while waiting := self._channel.take():
                await self._stream.send_all(waiting)
        finally:
            self._writing = False
            self._written.set()

    async def _written_down_to(self, size_bytes: int) -> None:
        """Wait while the other task writes and more than this is queued behind it."""
        while self._writing and self._channel.waiting_bytes >= size_bytes:
            self._written = trio.Event()
            await self._written.wait()


def _join(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve_broker(
    config: LoopbackConfig | None = None,
    *,
    wall_clock_ms: Callable[[], int] = _wall_clock_ms,
    task_status: trio.TaskStatus[Loopback] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the embedded broker and name server until cancelled.

    Args:
        config: what is configured; None takes the defaults.
        wall_clock_ms: Unix milliseconds, for the timestamps of stored messages; nothing else reads a wall clock.
        task_status: started with the running broker once both servers listen.

    Raises:
        OSError: an address is taken or not ours; the message names it.
    """
    await Loopback(config or LoopbackConfig(), wall_clock_ms).run(task_status)
