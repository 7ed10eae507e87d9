"""An HTTP/1.1 server for ASGI applications, based on trio and h11. It does not support HTTP/2 or WebSocket.

The numbers of connections and of unsent bytes are limited. If a limit is exceeded, the server closes the connection
that has made no progress for the longest time, preferably one without a request.

In each turn of the event loop, the server reads a few requests but starts to handle only one of them, so that a flood
of requests cannot delay the data path. Requests for probes do not wait for their turn.
"""

import socket
import ssl
from collections.abc import Collection, Iterable
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

import h11
import structlog
import trio
from starlette.types import ASGIApp, Message, Scope

from admin.http.problems import Refusals, problem
from proxy.common.log_rate import LogRate
from proxy.net.sockets import plain_address

MAX_CONNECTIONS: Final = 256
MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of unsent bytes on all connections together."""
MAX_HEAD_BYTES: Final = 16 * 1024
HEAD_TIMEOUT_S: Final = 10.0
"""Time limit for a TLS handshake, for the first request head, and for each later head after its first byte."""
KEEP_ALIVE_S: Final = 75.0
WRITE_TIMEOUT_S: Final = 30.0
"""A client that reads nothing for this long is disconnected."""

_HEAD_FAULTS: Final = {
    431: f"the request head exceeds {MAX_HEAD_BYTES} bytes",
    501: "unsupported transfer encoding; use chunked",
}
#: How long to keep reading after the last response. Closing at once could reset the connection and lose the response.
_LINGER_S: Final = 1.0
_READ_BYTES: Final = 16 * 1024
_WRITE_BYTES: Final = 64 * 1024
#: Maximum number of connections to accept, and of connections to read from, in one turn of the event loop.
_MAX_PER_TURN: Final = 8
#: How long to pause if a connection cannot be accepted, for example because there are too many open files.
_PAUSE_S: Final = 0.1
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

_log = structlog.get_logger(__name__)


class Http1Server:
    def __init__(
        self,
        app: ASGIApp,
        *,
        probes: Collection[str] = (),
        tls: ssl.SSLContext | None = None,
        refusals: Refusals | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_unsent_bytes: int = MAX_UNSENT_BYTES,
    ) -> None:
        self.app, self.tls = app, tls
        self.refusals = Refusals() if refusals is None else refusals
        self._probes = {path.encode() for path in probes}
        #: Tasks hold a slot or the lock for one turn of the event loop.
        self._reads, self._turns = trio.Semaphore(_MAX_PER_TURN), trio.StrictFIFOLock()
        self._max_connections, self._max_unsent_bytes = max_connections, max_unsent_bytes
        #: Open connections. The one that made progress least recently comes first.
        self._open: dict[_Connection, None] = {}
        self._log_rate = LogRate()

    async def serve(
        self, sock: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        sock.setblocking(False)
        async with trio.open_nursery() as nursery:
            with sock:
                task_status.started()
                while True:
                    await trio.lowlevel.wait_readable(sock)
                    try:
                        for _ in range(_MAX_PER_TURN):
                            self._enter(sock.accept()[0], nursery)
                    except BlockingIOError:
                        continue
                    except OSError:
                        await trio.sleep(_PAUSE_S)

    def _enter(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        if len(self._open) >= self._max_connections:
            self._evict(next((each for each in self._open if not each.busy), next(iter(self._open))))
        connection = _Connection(self, trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
        self._open[connection] = None
        nursery.start_soon(self._run, connection)

    async def read(self) -> None:
        async with self._reads:
            pass

    async def begin(self, target: bytes) -> None:
        if target not in self._probes:
            async with self._turns:
                pass

    def progressed(self, connection: "_Connection") -> None:
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def make_room(self, writer: "_Connection") -> None:
        while sum(each.unsent for each in self._open) > self._max_unsent_bytes:
            victim = next((each for each in self._open if each.unsent and each is not writer), None)
            if victim is None:
                return
            self._evict(victim)

    def _evict(self, connection: "_Connection") -> None:
        del self._open[connection]
        self.refusals["evicted"] += 1
        connection.scope.cancel()

    async def _run(self, connection: "_Connection") -> None:
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001 - one connection's error must not end the others
            if (more := self._log_rate.take("connection", trio.current_time())) is not None:
                _log.warning("admin connection failed", error=repr(error), not_logged=more)
        finally:
            self._open.pop(connection, None)


class _Connection:
    """An open connection. Cancelling ``scope`` closes it. ``unsent`` is the number of bytes still to be sent."""

    def __init__(self, server: Http1Server, transport: trio.SocketStream) -> None:
        self.scope = trio.CancelScope()
        self.busy = False
        self.unsent = 0
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport = transport
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = transport
        self._start: Message | None = None
        #: The status of the response if the body is not valid HTTP.
        self._body_fault: int | None = None
        self._body_complete = self._left = False

    async def run(self) -> None:
        try:
            with self.scope:
                if await self._shake_hands():
                    await self._serve()
        except _GONE:
            pass
        finally:
            self._transport.socket.close()

    async def _shake_hands(self) -> bool:
        if self._server.tls is None:
            return True
        with trio.move_on_after(HEAD_TIMEOUT_S), suppress(trio.BrokenResourceError):
            await trio.lowlevel.wait_readable(self._transport.socket)
            await self._server.read()
            self._stream = trio.SSLStream(self._transport, self._server.tls, server_side=True, https_compatible=True)
            await self._stream.do_handshake()
            return True
        self._server.refusals["handshake"] += 1
        return False

    async def _serve(self) -> None:
        sock = self._transport.socket
        client, server = plain_address(sock.getpeername()), sock.getsockname()[:2]
        timeout_s = HEAD_TIMEOUT_S
        while (request := await self._next_request(timeout_s)) is not None:
            self.busy = True
            await self._server.begin(request.target)
            raw_path, _, query_string = request.target.partition(b"?")
            await self._answer(
                {
                    "type": "http",
                    "asgi": {"spec_version": "2.3", "version": "3.0"},
                    "scheme": "http" if self._server.tls is None else "https",
                    "client": client,
                    "server": server,
                    "root_path": "",
                    "extensions": {},
                    "method": request.method.decode("ascii"),
                    "http_version": request.http_version.decode("ascii"),
                    "path": unquote(raw_path.decode("ascii")),
                    "raw_path": raw_path,
                    "query_string": query_string,
                    "headers": list(request.headers),
                    "state": {},
                }
            )
            self.busy = False
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                break
            self._http.start_next_cycle()
            timeout_s = KEEP_ALIVE_S
        await self._linger()

    async def _next_request(self, timeout_s: float) -> h11.Request | None:
        begun = False
        with trio.move_on_after(timeout_s) as patience:
            try:
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    await self._receive()
                    if not begun:
                        patience.deadline = min(patience.deadline, trio.current_time() + HEAD_TIMEOUT_S)
                        begun = True
            except h11.RemoteProtocolError as error:
                status = error.error_status_hint
                await self._refuse(status, _HEAD_FAULTS.get(status, "the request is not HTTP/1.1"))
                return None
            if not begun:
                # The request arrived together with the previous one, without waiting for a read slot.
                await self._server.read()
            return event if isinstance(event, h11.Request) else None
        if begun or timeout_s == HEAD_TIMEOUT_S:
            self._server.refusals["slow_head"] += 1
        return None

    async def _receive(self) -> None:
        data = await self._stream.receive_some(_READ_BYTES)
        self._server.progressed(self)
        await self._server.read()
        self._http.receive_data(bytes(data))

    async def _answer(self, scope: Scope) -> None:
        self._start, self._body_complete = None, False
        await self._server.app(scope, self._asgi_receive, self._asgi_send)
        if self._body_fault is not None and not self._left:
            await self._refuse(self._body_fault, "the body is not valid HTTP/1.1")

    async def _asgi_receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        try:
            while not self._body_complete:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    return {"type": "http.request", "body": bytes(event.data), "more_body": True}
                if isinstance(event, h11.EndOfMessage):
                    self._body_complete = True
                    return {"type": "http.request", "body": b"", "more_body": False}
                if self._http.they_are_waiting_for_100_continue:
                    await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                await self._receive()
            while not self._http.trailing_data[1]:
                if len(self._http.trailing_data[0]) > MAX_HEAD_BYTES:
                    # Leave further requests in the socket. If the client disconnects, the next write fails.
                    await trio.sleep_forever()
                await self._receive()
        except h11.RemoteProtocolError as error:
            self._body_fault = error.error_status_hint
            self._left = self._http.trailing_data[1]
        except trio.BrokenResourceError:
            self._left = True
        return {"type": "http.disconnect"}

    async def _asgi_send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        events: list[h11.Event] = []
        if self._start is not None:
            events.append(_response(self._start["status"], list(self._start.get("headers", []))))
            self._start = None
        events.append(h11.Data(data=message.get("body", b"")))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
        await self._write(*events)

    async def _refuse(self, status: int, detail: str) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            refused = problem(status, detail, headers={"connection": "close"})
            response = _response(status, refused.raw_headers)
            await self._write(response, h11.Data(data=bytes(refused.body)), h11.EndOfMessage())

    async def _write(self, *events: h11.Event) -> None:
        # Do not copy the data, because a body can be large.
        parts = [part for event in events for part in self._http.send_with_data_passthrough(event) or ()]
        self.unsent = sum(map(len, parts))
        if self.unsent <= _WRITE_BYTES:
            parts = [b"".join(parts)]
        else:
            self._server.make_room(self)
        try:
            for part in parts:
                view = memoryview(part)
                for start in range(0, len(view), _WRITE_BYTES):
                    piece = view[start : start + _WRITE_BYTES]
                    with trio.fail_after(WRITE_TIMEOUT_S):
                        await self._stream.send_all(piece)
                    self.unsent -= len(piece)
                    self._server.progressed(self)
        except trio.TooSlowError:
            self._server.refusals["slow_reader"] += 1
            self.scope.cancel()
        except _GONE:
            self.scope.cancel()

    async def _linger(self) -> None:
        if self._server.tls is None:
            # TLS cannot close only one direction.
            with suppress(OSError):
                self._transport.socket.shutdown(trio.socket.SHUT_WR)
        with trio.move_on_after(_LINGER_S):
            while await self._stream.receive_some(_READ_BYTES):
                pass


def _response(status: int, headers: Iterable[tuple[bytes, bytes]]) -> h11.Response:
    dated = [*headers, (b"date", formatdate(usegmt=True).encode())]
    return h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=dated)
