"""The connections of the admin address: how many, how slow, and in which turn.

HTTP itself is hypercorn's; its TCP server has no bound on connections and none on how long a client may take to read
an answer, so both are here. One who opens thousands of connections, or is slow on purpose, costs neither the data path
its descriptors and its time, nor others their answers:

- ``MAX_CONNECTIONS`` at once. Above it the one that has waited longest without a request on it is closed for the new
  one, then the one that has not read for longest; if all are busy, the new one is closed.
- A request's head, and a TLS handshake, must be there within ``HEAD_TIMEOUT_S`` of their first byte or of the
  connection, the next request within ``KEEP_ALIVE_S``; a client that reads nothing is closed after ``WRITE_TIMEOUT_S``.
- New connections are taken at ``ACCEPTS_PER_S``. What comes over a connection that has not shown a token yet is looked
  at one piece in a turn of the event loop, and no more than ``PIECES_PER_S``, so that a flood here gets no more of the
  loop than a few busy connections of the data path.
"""

import errno
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import h11
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState, H11SendableEvent, LifespanState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from admin.problems import problem
from proxy.log_rate import LogRate
from proxy.pace import turn

MAX_CONNECTIONS: Final = 256
HEAD_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 75.0
WRITE_TIMEOUT_S: Final = 30.0
ACCEPTS_PER_S: Final = 500.0
TLS_ACCEPTS_PER_S: Final = 200.0
"""A handshake costs about as much as ten requests."""
PIECES_PER_S: Final = 50.0
"""A piece is what one read brings, most often a request."""
FIRST_PIECES_PER_S: Final = 100.0
"""The first one of a connection, as probes bring it, does not stand in line behind those who have had theirs."""
PIECES_AT_ONCE: Final = 100
"""After a pause; a page is made of some twenty files."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""Of a request: more is answered with 431."""

_HEAD_FAULTS: Final = {
    431: f"the request's head has more than {MAX_HEAD_BYTES} bytes",
    501: "this transfer encoding is not known here; chunked is",
}
#: After the last answer, what the client still sends is read for so long: else it might never see the answer.
_LINGER_S: Final = 1.0
#: Of one connection in its turn; as a head may be whole in one piece, this much more is taken for one.
_READ_BYTES: Final = 16 * 1024
_WRITE_BYTES: Final = 64 * 1024
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_OUT_OF_DESCRIPTORS_PAUSE_S: Final = 0.1

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Count = Callable[[str], None]

_log = structlog.get_logger(__name__)


class Trust:
    """Whether a connection has shown a token; the application finds it in the request's state, under ``trust``."""

    __slots__ = ("given",)

    def __init__(self) -> None:
        self.given = False


class Connections:
    """Serves an application to a bounded number of connections.

    Args:
        app: answers the requests.
        tls: makes it HTTPS.
        count: is told why a connection was closed or not taken: ``connections``, ``evicted``, ``slow_head``,
            ``slow_reader``, ``handshake``.
        max_connections: at once.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tls: ssl.SSLContext | None = None,
        count: Count = lambda _: None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        # The two describe the same ASGI in types that do not meet.
        self.app = wrap_app(cast("ASGIFramework", app), MAX_HEAD_BYTES, "asgi")
        self.config = _config()
        self.context = WorkerContext(None)
        self.count = count
        self.log_rate = LogRate()
        self._tls = tls
        self._max = max_connections
        self._open: set[_Connection] = set()
        # In the order in which they began to wait, which is that of a dictionary.
        self.waiting: dict[_Connection, None] = {}
        self.stalled: dict[_Connection, None] = {}
        self._pieces = _Turns(PIECES_PER_S)
        self._first_pieces = _Turns(FIRST_PIECES_PER_S)

    async def serve(
        self, listener: trio.SocketListener, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and answer until cancelled."""
        pace = _Pace(ACCEPTS_PER_S if self._tls is None else TLS_ACCEPTS_PER_S, burst=self._max)
        async with trio.open_nursery() as nursery, listener:
            task_status.started()
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in _OUT_OF_DESCRIPTORS:
                        raise
                    await trio.sleep(_OUT_OF_DESCRIPTORS_PAUSE_S)
                    continue
                if not self._make_room():
                    self.count("connections")
                    await trio.aclose_forcefully(stream)
                else:
                    connection = _Connection(self, stream, self._tls)
                    self._open.add(connection)
                    nursery.start_soon(self._run, connection)
                await pace.keep()

    async def turn(self, *, first: bool) -> None:
        """Wait until it is a stranger's turn, with the first piece that it sends or another one."""
        await (self._first_pieces if first else self._pieces).take()

    def _make_room(self) -> bool:
        """Close a connection if that makes room for a new one; returns whether there is room."""
        if len(self._open) < self._max:
            return True
        for candidates in (self.waiting, self.stalled):
            if candidates:
                connection = next(iter(candidates))
                self._forget(connection)
                self.count("evicted")
                connection.scope.cancel()
                return True
        return False

    def _forget(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        self.waiting.pop(connection, None)
        self.stalled.pop(connection, None)

    async def _run(self, connection: "_Connection") -> None:
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001 - one connection's trouble is not the others'
            if (more := self.log_rate.take("connection", trio.current_time())) is not None:
                _log.warning("admin connection failed", error=repr(error), more=more)
        finally:
            self._forget(connection)


class _Connection:
    """One connection, from its first byte to its last.

    Attributes:
        scope: all of it; its deadline is what the client must keep.
    """

    def __init__(self, server: Connections, stream: trio.SocketStream, tls: ssl.SSLContext | None) -> None:
        self.scope = trio.CancelScope()
        self._server = server
        self._transport = stream
        self._is_tls = tls is not None
        self._stream: Stream = (
            stream if tls is None else trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        )
        self._protocol: _Http11 | None = None
        self._sending = trio.Lock()
        self._closing = False
        self._head_begun = False
        self._timeout_reason = "slow_head"
        self._wait(HEAD_TIMEOUT_S)

    async def run(self) -> None:
        try:
            with self.scope:
                await self._serve()
            if self.scope.cancelled_caught and trio.current_time() >= self.scope.deadline and not self._closing:
                self._server.count(self._timeout_reason)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has left, or we have had enough of it.
            pass
        finally:
            await trio.aclose_forcefully(self._transport)

    async def _serve(self) -> None:
        if isinstance(self._stream, trio.SSLStream):
            self._timeout_reason = "handshake"
            try:
                await self._server.turn(first=True)
                await self._stream.do_handshake()
            except trio.BrokenResourceError:
                self._server.count("handshake")
                raise
            self._timeout_reason = "slow_head"
        data = await self._stream.receive_some(_READ_BYTES)
        if not data:
            return
        # Only now is it worth a protocol: most of those who flood never say a word.
        socket = self._transport.socket
        client, here = socket.getpeername()[:2], socket.getsockname()[:2]
        server = self._server
        async with TaskGroup() as tasks:
            trust = Trust()
            state = ConnectionState(LifespanState({"trust": trust}))
            self._protocol = protocol = _Http11(
                server.app, server.config, server.context, tasks, state, self._is_tls, client, here, self._on_event
            )
            first = True
            while data:
                if not self._closing:
                    if self in server.waiting and not self._head_begun:
                        self._head_begun = True
                        self.scope.deadline = min(self.scope.deadline, trio.current_time() + HEAD_TIMEOUT_S)
                    if trust.given:
                        # Nobody holds up the data path: many who write together take turns.
                        await turn()
                    else:
                        await server.turn(first=first)
                    first = False
                    await protocol.handle(RawData(bytes(data)))
                data = await self._stream.receive_some(_READ_BYTES)
            await protocol.handle(RawData(b""))
            await protocol.handle(Closed())

    def _wait(self, timeout_s: float) -> None:
        """Wait for a request; meanwhile this is the kind of connection that makes room for others."""
        self._head_begun = False
        self._server.waiting[self] = None
        self.scope.deadline = trio.current_time() + timeout_s

    async def _on_event(self, event: Event) -> None:
        """Do what the protocol wants."""
        match event:
            case RawData():
                await self._send(event.data)
            case Updated(idle=True):
                self._wait(KEEP_ALIVE_S)
            case Updated():
                self._server.waiting.pop(self, None)
                self.scope.deadline = float("inf")
            case Closed():
                self._close()

    async def _send(self, data: bytes) -> None:
        try:
            async with self._sending:
                for start in range(0, len(data), _WRITE_BYTES):
                    self._server.stalled[self] = None
                    with trio.fail_after(WRITE_TIMEOUT_S):
                        await self._stream.send_all(data[start : start + _WRITE_BYTES])
                    self._server.stalled.pop(self, None)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.scope.cancel()
        except trio.TooSlowError:
            self._server.count("slow_reader")
            self.scope.cancel()

    def _close(self) -> None:
        """End our side, and let the reading end the other's; without waiting: the application may be over by then."""
        if self._closing:
            return
        self._closing = True
        self._server.waiting[self] = None
        self.scope.deadline = trio.current_time() + _LINGER_S
        if not self._is_tls:
            # There is no end of one side in TLS; there the client knows from the length that it has all of it.
            with suppress(OSError):
                self._transport.socket.shutdown(trio.socket.SHUT_WR)


class _Http11(H11Protocol):
    """HTTP/1.1 that cannot be talked into HTTP/2, which nothing bounds here, and says what is wrong with a head."""

    #: Written and not sent yet.
    _head = b""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Stay: an offer to upgrade may be ignored, and HTTP/2 without one is no request that is answered."""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """Send a head whose body is at hand together with the body's first piece: a write costs as much as a route."""
        try:
            data = self.connection.send(event) or b""
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = data
            return
        data, self._head = self._head + data, b""
        if data:
            await self.send(RawData(data))

    async def _send_error_response(self, status_code: int) -> None:
        headers, body = problem(status_code, _HEAD_FAULTS.get(status_code, "this is not HTTP/1.1"))
        await self._send_h11_event(
            h11.Response(
                status_code=status_code,
                headers=[*headers, (b"connection", b"close"), *self.config.response_headers("h11")],
            )
        )
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class _Pace:
    """Lets things happen so often, after a burst.

    Args:
        per_s: how often.
        burst: so many at once after a pause.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._interval_s = 1 / per_s
        self._ahead_s = burst / per_s
        self._due_s = float("-inf")

    async def keep(self) -> None:
        now_s = trio.current_time()
        self._due_s = max(self._due_s, now_s) + self._interval_s
        await trio.sleep(max(0.0, self._due_s - now_s - self._ahead_s))


class _Turns:
    """One after the other, first come first served: one in a turn of the event loop, and so many in a second."""

    def __init__(self, per_s: float) -> None:
        self._lock = trio.StrictFIFOLock()
        self._pace = _Pace(per_s, PIECES_AT_ONCE)

    async def take(self) -> None:
        async with self._lock:
            await self._pace.keep()


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEAD_BYTES
    # A client that writes a thousand times a second would be closed every second.
    config.keep_alive_max_requests = sys.maxsize
    return config
