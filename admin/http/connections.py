"""The connections of the admin address: HTTP/1.1 for an ASGI application, with bounds on how many and how slow.

h11 reads and writes HTTP; there is no HTTP/2 and no WebSocket. One who opens thousands of connections, or is slow on
purpose, costs neither the data path its descriptors and its time, nor others their answers:

- A connection that waits for its client makes room for others: for a new one if there are as many as may be open, and
  for another request if there are as many of its use as may be under way. Those without a request go first, then those
  whose client does not send the rest of it or does not read the answer; the longest wait first.
- Probes, scrapes and all other requests have room and turns of their own each (``Room``). What finds no room within
  ``ADMIT_TIMEOUT_S`` is answered with 503. So there is always room to read another request, and to answer a probe.
- A request's head, and a TLS handshake, must be there within ``HEAD_TIMEOUT_S`` of their first byte or of the
  connection, the next request within ``KEEP_ALIVE_S``; a client that reads nothing is closed after ``WRITE_TIMEOUT_S``.
- New connections are taken at ``ACCEPTS_PER_S``. Requests of a connection that has not shown a token yet are answered
  one in a turn of the event loop, and no more than ``REQUESTS_PER_S``, so that a flood here gets no more of the loop
  than a few busy connections of the data path. A head that is not whole takes nobody's turn.
"""

import errno
import os
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import h11
import structlog
import trio
from starlette.types import ASGIApp, Message, Scope

from admin.http.answering import Headers, problem
from proxy.common.cooperative import turn
from proxy.common.log_rate import LogRate

PROBES: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = "/metrics"

HEAD_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 75.0
WRITE_TIMEOUT_S: Final = 30.0
ADMIT_TIMEOUT_S: Final = 5.0
"""What finds no room for so long is answered with 503."""
ACCEPTS_PER_S: Final = 500.0
TLS_ACCEPTS_PER_S: Final = 200.0
"""A handshake costs about as much as ten requests."""
REQUESTS_PER_S: Final = 50.0
"""Of those who have shown no token, by use; and so many pieces that are not a whole request."""
FIRST_REQUESTS_PER_S: Final = 100.0
"""The first one of a connection does not stand in line behind those who have had theirs."""
REQUESTS_AT_ONCE: Final = 100
"""After a pause; a page is made of some twenty files."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""Of a request: more is answered with 431."""
RETRY_AFTER_S: Final = 1


class Room(NamedTuple):
    """How much there may be at once.

    Attributes:
        connections: more than all requests together, so that there is room for those that have not said yet what they
            want.
        probes: requests of ``/healthz`` and ``/readyz`` under way.
        scrapes: requests of ``/metrics``.
        requests: all others, event streams included.
    """

    connections: int = 256
    probes: int = 32
    scrapes: int = 16
    requests: int = 160

    @classmethod
    def of(cls, connections: int) -> "Room":
        """Share out fewer connections in the same proportion, at least one for each use."""
        most = cls()
        shares = (max(1, share * connections // most.connections) for share in most[1:])
        return cls(connections, *shares) if connections < most.connections else most


_ROOM: Final = Room()
_HEAD_FAULTS: Final = {
    431: f"the request's head has more than {MAX_HEAD_BYTES} bytes",
    501: "this transfer encoding is not known here; chunked is",
}
#: After the last answer, what the client still sends is read for so long: else it might never see the answer.
_LINGER_S: Final = 1.0
#: Room that a client makes because it has stalled for long enough is noticed after so long.
_LOOK_AGAIN_S: Final = 0.05
#: Of one connection in its turn.
_READ_BYTES: Final = 16 * 1024
_WRITE_BYTES: Final = 64 * 1024
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_OUT_OF_DESCRIPTORS_PAUSE_S: Final = 0.1

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Count = Callable[[str], None]

_log = structlog.get_logger(__name__)


class Connections:
    """Serves an application to a bounded number of connections.

    Args:
        app: answers the requests.
        tls: makes it HTTPS.
        count: is told why a connection was closed, or a request or a connection not taken: ``connections``, ``busy``,
            ``evicted``, ``slow_head``, ``slow_reader``, ``handshake``.
        room: for how much.

    Attributes:
        waiting: connections without a request that is under way, in the order in which they began to wait for one.
        stalled: connections whose client holds up a request: it does not send its body or does not read the answer, or
            it asks for one after the other.
        handshakes: turns of those who begin TLS.
        pieces: turns of what is not a whole head.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tls: ssl.SSLContext | None = None,
        count: Count = lambda _: None,
        room: Room | None = None,
    ) -> None:
        room = room or Room()
        self.app = app
        self.count = count
        self.waiting: dict[_Connection, None] = {}
        self.stalled: dict[_Connection, None] = {}
        self.handshakes = _Turns(TLS_ACCEPTS_PER_S)
        self.pieces = _Turns(REQUESTS_PER_S)
        self._tls = tls
        self._max = room.connections
        self._open: set[_Connection] = set()
        # Each connection's first one is answered as soon as the connection is taken.
        self._probes = _Use(room.probes, ACCEPTS_PER_S)
        self._scrapes = _Use(room.scrapes, FIRST_REQUESTS_PER_S)
        self._requests = _Use(room.requests, FIRST_REQUESTS_PER_S)
        self._log_rate = LogRate()

    async def serve(
        self, listener: trio.SocketListener, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and answer until cancelled."""
        turns = _Turns(ACCEPTS_PER_S if self._tls is None else TLS_ACCEPTS_PER_S, burst=self._max)
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
                if len(self._open) >= self._max and not (self._evict(self.waiting) or self._evict(self.stalled)):
                    self.count("connections")
                    await trio.aclose_forcefully(stream)
                else:
                    connection = _Connection(self, stream, self._tls)
                    self._open.add(connection)
                    nursery.start_soon(self._run, connection)
                await turns.take()

    def use(self, path: str) -> "_Use":
        """Return what a request of that path shares room and turns with."""
        return self._probes if path in PROBES else self._scrapes if path == METRICS else self._requests

    async def admit(self, connection: "_Connection", use: "_Use") -> bool:
        """Give a request room, if there is some soon or a client that dawdles makes it; returns whether it has it."""
        with trio.move_on_after(ADMIT_TIMEOUT_S) as patience:
            async with use.queue:
                while len(use.under_way) >= use.room and not self._evict(  # noqa: ASYNC110 - a client may dawdle later
                    each for each in self.stalled if each in use.under_way
                ):
                    await trio.sleep(_LOOK_AGAIN_S)
                use.under_way.add(connection)
                self.waiting.pop(connection, None)
        if patience.cancelled_caught:
            self.count("busy")
        return not patience.cancelled_caught

    def _evict(self, candidates: Iterable["_Connection"]) -> bool:
        """Close the first of them; returns whether there was one."""
        connection = next(iter(candidates), None)
        if connection is None:
            return False
        self._forget(connection)
        self.count("evicted")
        connection.scope.cancel()
        return True

    def _forget(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        self.waiting.pop(connection, None)
        self.stalled.pop(connection, None)
        for use in (self._probes, self._scrapes, self._requests):
            use.under_way.discard(connection)

    async def _run(self, connection: "_Connection") -> None:
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001 - one connection's trouble is not the others'
            self.failed(error)
        finally:
            self._forget(connection)

    def failed(self, error: Exception) -> None:
        """Write a line about what went wrong with a connection, at a bounded rate."""
        if (more := self._log_rate.take("connection", trio.current_time())) is not None:
            _log.warning("admin connection failed", error=repr(error), more=more)


class _Connection:
    """One connection, from its first byte to its last.

    Attributes:
        scope: all of it; its deadline is what the client must keep.
        http: what has been read and written of it.
    """

    def __init__(self, server: Connections, stream: trio.SocketStream, tls: ssl.SSLContext | None) -> None:
        self.scope = trio.CancelScope()
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._server = server
        self._transport = stream
        self._stream: Stream = (
            stream if tls is None else trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        )
        self._trusted = False
        self._sending = trio.Lock()
        self._timeout_reason: str | None = "slow_head"
        self._wait(HEAD_TIMEOUT_S)

    async def run(self) -> None:
        try:
            with self.scope:
                await self._serve()
            if self.scope.cancelled_caught and trio.current_time() >= self.scope.deadline and self._timeout_reason:
                self._server.count(self._timeout_reason)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has left, or we have had enough of it.
            pass
        finally:
            self._transport.socket.close()

    def _trust(self) -> None:
        """Let this connection go on at its own pace, since it has shown a token."""
        self._trusted = True

    async def _serve(self) -> None:
        await self._shake_hands()
        socket = self._transport.socket
        fixed: dict[str, Any] = {
            "type": "http",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "scheme": "https" if isinstance(self._stream, trio.SSLStream) else "http",
            "client": socket.getpeername()[:2],
            "server": socket.getsockname()[:2],
            "root_path": "",
            "extensions": {},
        }
        first = True
        while (request := await self._request()) is not None:
            raw_path, _, query_string = request.target.partition(b"?")
            scope: Scope = {
                **fixed,
                "method": request.method.decode("ascii").upper(),
                "http_version": request.http_version.decode("ascii"),
                "path": unquote(raw_path.decode("ascii")),
                "raw_path": raw_path,
                "query_string": query_string,
                "headers": list(request.headers),
                "state": {"trust": self._trust},
            }
            use = self._server.use(scope["path"])
            self.scope.deadline = float("inf")
            if not await self._server.admit(self, use):
                await self._refuse(
                    503, "too much is under way here; ask again", (b"retry-after", b"%d" % RETRY_AFTER_S)
                )
                break
            if self._trusted:
                # Nobody holds up the data path: many who write together take turns.
                await turn()
            elif first:
                await use.first.take()
            else:
                self._server.stalled[self] = None
                await use.later.take()
                self._server.stalled.pop(self, None)
            await self._answer(scope)
            use.under_way.discard(self)
            if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
                break
            self.http.start_next_cycle()
            self._wait(KEEP_ALIVE_S)
            first = False
        await self._linger()

    async def _shake_hands(self) -> None:
        if not isinstance(self._stream, trio.SSLStream):
            return
        self._timeout_reason = "handshake"
        try:
            await trio.lowlevel.wait_readable(self._transport.socket)
            await self._server.handshakes.take()
            await self._stream.do_handshake()
        except trio.BrokenResourceError:
            self._server.count("handshake")
            raise
        self._timeout_reason = "slow_head"

    def _wait(self, timeout_s: float) -> None:
        """Begin to wait for a request; meanwhile this is the kind of connection that makes room for others."""
        self._server.waiting[self] = None
        self.scope.deadline = trio.current_time() + timeout_s

    async def _request(self) -> h11.Request | None:
        """Return the next request's head; None if there will be none, or it has been refused."""
        begun = False
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                if begun:
                    # A whole one most often comes in one piece; those who drip share these turns.
                    await self._server.pieces.take()
                data = await self._stream.receive_some(_READ_BYTES)
                if data and not begun:
                    begun = True
                    self.scope.deadline = min(self.scope.deadline, trio.current_time() + HEAD_TIMEOUT_S)
                self.http.receive_data(bytes(data))
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            await self._refuse(status, _HEAD_FAULTS.get(status, "this is not HTTP/1.1"))
            return None
        return event if isinstance(event, h11.Request) else None

    async def _answer(self, scope: Scope) -> None:
        """Let the application answer one request."""
        exchange = _Exchange(self)
        try:
            await self._server.app(scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client gets an answer and the log the reason
            self._server.failed(error)
        finally:
            exchange.over = True
        if self.http.our_state is h11.SEND_RESPONSE and not exchange.left:
            if exchange.fault is None:
                await self._refuse(500, "internal error; the log has the reason")
            else:
                await self._refuse(exchange.fault, "the body is not what HTTP/1.1 has")

    async def _refuse(self, status: int, detail: str, *more: tuple[bytes, bytes]) -> None:
        """Answer with a problem, and end it."""
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers, body = problem(status, detail)
        named = [*headers, *more, (b"connection", b"close")]
        data = self.http.send(_response(status, named)) or b""
        data += self.http.send(h11.Data(data=body)) or b""
        await self.send(data + (self.http.send(h11.EndOfMessage()) or b""))

    async def read_body(self) -> None:
        """Give h11 some more of a request's body, or that there will be no more."""
        self._server.stalled[self] = None
        try:
            data = await self._read()
        finally:
            self._server.stalled.pop(self, None)
        await (turn() if self._trusted else self._server.pieces.take())
        self.http.receive_data(data)

    async def read_ahead(self) -> bool:
        """Read what comes while a request is answered; returns whether the client is still there."""
        if len(self.http.trailing_data[0]) > MAX_HEAD_BYTES:
            # Further requests wait where they are; that the client has left is seen when it is sent something.
            await trio.sleep_forever()
        data = await self._read()
        self.http.receive_data(data)
        return bool(data)

    async def _read(self) -> bytes:
        """Read what comes; nothing when the client has left, be it by a reset: that is for the application to hear."""
        try:
            return bytes(await self._stream.receive_some(_READ_BYTES))
        except trio.BrokenResourceError:
            return b""

    async def send(self, data: bytes) -> None:
        """Send it all, or end the connection."""
        server = self._server
        try:
            async with self._sending:
                for start in range(0, len(data), _WRITE_BYTES):
                    piece = self._taken_at_once(data[start : start + _WRITE_BYTES])
                    if piece:
                        server.stalled[self] = None
                        with trio.fail_after(WRITE_TIMEOUT_S):
                            await self._stream.send_all(piece)
                        server.stalled.pop(self, None)
                    else:
                        await trio.lowlevel.checkpoint()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._end()
        except trio.TooSlowError:
            server.count("slow_reader")
            self._end()

    def _taken_at_once(self, data: bytes) -> bytes:
        """Write what the system takes, and return the rest: then it is the client who is slow."""
        if isinstance(self._stream, trio.SSLStream):
            return data
        try:
            return data[os.write(self._transport.socket.fileno(), data) :]
        except BlockingIOError:
            return data

    def _end(self) -> None:
        self._timeout_reason = None
        self.scope.cancel()

    async def _linger(self) -> None:
        """End our side, and read on for a moment until the other's ends."""
        self._timeout_reason = None
        self._wait(_LINGER_S)
        if not isinstance(self._stream, trio.SSLStream):
            # There is no end of one side in TLS; there the client knows from the length that it has all of it.
            with suppress(OSError):
                self._transport.socket.shutdown(trio.socket.SHUT_WR)
        while await self._stream.receive_some(_READ_BYTES):
            pass


class _Exchange:
    """One request and its answer, as ASGI has them.

    Attributes:
        over: the application is done with it.
        left: the client has closed its side before all was said.
        fault: the status that the body deserves, if it is not what HTTP has.
    """

    def __init__(self, connection: _Connection) -> None:
        self.over = self.left = False
        self.fault: int | None = None
        self._connection = connection
        self._has_body = False
        #: Written and not sent yet.
        self._head = b""

    async def receive(self) -> Message:
        """Return a piece of the body, or later that the client has left."""
        await trio.lowlevel.checkpoint()
        http = self._connection.http
        while not (self._has_body or self.left or self.fault):
            try:
                event = http.next_event()
            except h11.RemoteProtocolError as error:
                self.left, self.fault = http.trailing_data[1], error.error_status_hint
                break
            if isinstance(event, h11.Data):
                return {"type": "http.request", "body": bytes(event.data), "more_body": True}
            if isinstance(event, h11.EndOfMessage):
                self._has_body = True
                return {"type": "http.request", "body": b"", "more_body": False}
            if http.they_are_waiting_for_100_continue:
                await self._connection.send(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            await self._connection.read_body()
        while not (self.left or self.fault or self.over):
            self.left = not await self._connection.read_ahead()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send the head together with the body's first piece if that is at hand: a write costs as much as a route."""
        http = self._connection.http
        try:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                self._head = http.send(_response(message["status"], headers)) or b""
                if any(name.lower() == b"content-length" for name, _ in headers):
                    return
                data = b""
            else:
                data = http.send(h11.Data(data=message.get("body", b""))) or b""
                if not message.get("more_body", False):
                    data += http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError:
            if http.their_state is not h11.ERROR:
                raise
            return
        data, self._head = self._head + data, b""
        await self._connection.send(data)


class _Use:
    """Requests of one use.

    Args:
        room: how many may be under way.
        first_per_s: how many are begun for those who have shown no token, if it is the first of its connection.

    Attributes:
        queue: of those who wait for room.
        first: turns of those.
        later: turns of others.
    """

    def __init__(self, room: int, first_per_s: float) -> None:
        self.room = room
        self.queue = trio.StrictFIFOLock()
        self.under_way: set[_Connection] = set()
        self.first = _Turns(first_per_s)
        self.later = _Turns(REQUESTS_PER_S)


class _Turns:
    """One after the other, first come first served: one in a turn of the event loop, and so many in a second.

    Args:
        per_s: how many.
        burst: so many at once after a pause.
    """

    def __init__(self, per_s: float, burst: int = REQUESTS_AT_ONCE) -> None:
        self._lock = trio.StrictFIFOLock()
        self._interval_s = 1 / per_s
        self._ahead_s = burst / per_s
        self._due_s = float("-inf")

    async def take(self) -> None:
        async with self._lock:
            now_s = trio.current_time()
            self._due_s = max(self._due_s, now_s) + self._interval_s
            await trio.sleep(max(0.0, self._due_s - now_s - self._ahead_s))


def _response(status: int, headers: Headers) -> h11.Response:
    dated = [*headers, (b"date", formatdate(usegmt=True).encode())]
    return h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=dated)
