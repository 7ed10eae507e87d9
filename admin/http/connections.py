"""The connections of the admin address: HTTP/1.1 for an ASGI application, with bounds on how many and how slow.

h11 reads and writes HTTP; HTTP/2 and WebSocket are not supported. A client that opens thousands of connections, or is
slow on purpose, takes neither descriptors nor time from the data path, and keeps no other client from its answer:

- A connection that waits for its client is closed when its place is needed: by a new connection if all places are
  taken, or by another request if too many of the same use are under way. Connections without a request are closed
  first, then those whose client does not send the rest of its request or does not read the answer; in each group the
  one that has waited longest.
- Probes, scrapes and all other requests have separate room and separate turns (``Room``). A request that finds no room
  within ``ADMIT_TIMEOUT_S`` is answered with 503. So there is always room to read a request, and to answer a probe.
- The head of a request, and a TLS handshake, must be complete within ``HEAD_TIMEOUT_S``, and the next request must
  begin within ``KEEP_ALIVE_S``. A client that reads nothing for ``WRITE_TIMEOUT_S`` is disconnected.
- Connections are accepted at ``ACCEPTS_PER_S``. Requests on a connection that has not shown a token yet are answered
  one in each turn of the event loop, and at most ``REQUESTS_PER_S``, so that a flood gets no more of the loop than a
  few busy connections of the data path. An incomplete head takes no turn away from other connections.
- Where no tokens are configured, every caller may do everything, and only probes and the page's files are paced. Other
  requests are paced by nothing but a turn of the event loop before each.
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
from proxy.net.sockets import plain_address

PROBES: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = "/metrics"

HEAD_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 75.0
WRITE_TIMEOUT_S: Final = 30.0
ADMIT_TIMEOUT_S: Final = 5.0
"""A request that finds no room for this long is answered with 503."""
ACCEPTS_PER_S: Final = 500.0
TLS_ACCEPTS_PER_S: Final = 200.0
"""One handshake costs about as much as ten requests."""
REQUESTS_PER_S: Final = 50.0
"""For connections without a token, for each use; also the rate of reads that do not complete a request."""
FIRST_REQUESTS_PER_S: Final = 100.0
"""A connection's first request does not queue behind the later requests of others."""
REQUESTS_AT_ONCE: Final = 100
"""Burst after a pause; the page consists of some twenty files."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""A longer head is answered with 431."""
RETRY_AFTER_S: Final = 1


class Room(NamedTuple):
    """How many connections and requests there may be at once.

    Attributes:
        connections: more than all requests together, so that there is room for connections that have not sent a
            request yet.
        probes: requests for ``/healthz`` and ``/readyz`` under way.
        scrapes: requests for ``/metrics`` under way.
        requests: all other requests under way, event streams included.
    """

    connections: int = 256
    probes: int = 32
    scrapes: int = 16
    requests: int = 160

    @classmethod
    def of(cls, connections: int) -> "Room":
        """Share out fewer connections in the same proportion, with at least one for each use."""
        most = cls()
        shares = (max(1, share * connections // most.connections) for share in most[1:])
        return cls(connections, *shares) if connections < most.connections else most


_ROOM: Final = Room()
_HEAD_FAULTS: Final = {
    431: f"the request's head has more than {MAX_HEAD_BYTES} bytes",
    501: "this transfer encoding is not known here; chunked is",
}
#: After the last answer, what the client still sends is read for this long; otherwise it might never see the answer.
_LINGER_S: Final = 1.0
#: How often to look whether a client has stalled, so that its place can be taken.
_LOOK_AGAIN_S: Final = 0.05
#: At most this much is read or written at a time.
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
        count: is called with the reason when a connection is closed, or a connection or a request refused:
            ``connections``, ``busy``, ``evicted``, ``slow_head``, ``slow_reader``, ``handshake``.
        room: how many connections and requests there may be.

    Attributes:
        waiting: connections without a request under way, longest wait first.
        stalled: connections whose client holds up its request: it does not send the body, does not read the answer, or
            sends one request after another.
        handshakes: turns of TLS handshakes.
        pieces: turns of reads that do not complete a head.
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
        # A connection's first probe is answered as soon as the connection is accepted.
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
        """Return the use that a request for this path belongs to."""
        return self._probes if path in PROBES else self._scrapes if path == METRICS else self._requests

    async def admit(self, connection: "_Connection", use: "_Use") -> bool:
        """Wait for room for a request, if need be by closing a stalled connection; returns whether there is room."""
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
        """Close the first of these connections; returns whether there was one."""
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
        """Log what went wrong with a connection, at a bounded rate."""
        if (more := self._log_rate.take("connection", trio.current_time())) is not None:
            _log.warning("admin connection failed", error=repr(error), more=more)


class _Connection:
    """One connection, from its first byte to its last.

    Attributes:
        scope: runs the whole connection; its deadline is the one that the client must keep.
        http: the state of the protocol.
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
        """Stop pacing this connection: it has shown a token."""
        self._trusted = True

    async def _serve(self) -> None:
        await self._shake_hands()
        socket = self._transport.socket
        fixed: dict[str, Any] = {
            "type": "http",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "scheme": "https" if isinstance(self._stream, trio.SSLStream) else "http",
            "client": plain_address(socket.getpeername()),
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
                # Many requests at the same moment must not hold up the data path.
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
        """Begin to wait for a request; meanwhile the connection may be closed to make room for others."""
        self._server.waiting[self] = None
        self.scope.deadline = trio.current_time() + timeout_s

    async def _request(self) -> h11.Request | None:
        """Return the head of the next request; None if there is none, or if it was refused."""
        begun = False
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                if begun:
                    # Most heads come in one piece; clients that send theirs in drips share these turns.
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
        """Answer with a problem, and end the connection."""
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers, body = problem(status, detail)
        named = [*headers, *more, (b"connection", b"close")]
        data = self.http.send(_response(status, named)) or b""
        data += self.http.send(h11.Data(data=body)) or b""
        await self.send(data + (self.http.send(h11.EndOfMessage()) or b""))

    async def read_body(self) -> None:
        """Pass another piece of a request's body to h11, or its end."""
        self._server.stalled[self] = None
        try:
            data = await self._read()
        finally:
            self._server.stalled.pop(self, None)
        await (turn() if self._trusted else self._server.pieces.take())
        self.http.receive_data(data)

    async def read_ahead(self) -> bool:
        """Read what the client sends while its request is answered; returns whether it is still connected."""
        if len(self.http.trailing_data[0]) > MAX_HEAD_BYTES:
            # Further requests stay in the socket; that the client has left is noticed on the next write.
            await trio.sleep_forever()
        data = await self._read()
        self.http.receive_data(data)
        return bool(data)

    async def _read(self) -> bytes:
        """Read what the client sends; empty if it has left, also by a reset: the application is told so."""
        try:
            return bytes(await self._stream.receive_some(_READ_BYTES))
        except trio.BrokenResourceError:
            return b""

    async def send(self, data: bytes) -> None:
        """Send all of it, or end the connection."""
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
        """Write what the system accepts at once, and return the rest: only with a rest is the client slow."""
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
        """End our side, and read on for a moment until the client ends its own."""
        self._timeout_reason = None
        self._wait(_LINGER_S)
        if not isinstance(self._stream, trio.SSLStream):
            # TLS cannot end one side alone; there the client knows from the length that the answer is complete.
            with suppress(OSError):
                self._transport.socket.shutdown(trio.socket.SHUT_WR)
        while await self._stream.receive_some(_READ_BYTES):
            pass


class _Exchange:
    """One request and its answer, as ASGI has them.

    Attributes:
        over: the application has finished.
        left: the client has closed its side early.
        fault: the status to answer with if the body is not valid HTTP.
    """

    def __init__(self, connection: _Connection) -> None:
        self.over = self.left = False
        self.fault: int | None = None
        self._connection = connection
        self._has_body = False
        #: Written and not sent yet.
        self._head = b""

    async def receive(self) -> Message:
        """Return a piece of the body, and afterwards that the client has left."""
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
        """Send the head together with the first piece of the body where its length is known: a write is expensive."""
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
    """The requests of one use: probes, scrapes, or others.

    Args:
        room: how many may be under way.
        first_per_s: rate of the first requests of connections without a token.

    Attributes:
        queue: lets one request at a time wait for room.
        first: turns of first requests without a token.
        later: turns of later requests without a token.
    """

    def __init__(self, room: int, first_per_s: float) -> None:
        self.room = room
        self.queue = trio.StrictFIFOLock()
        self.under_way: set[_Connection] = set()
        self.first = _Turns(first_per_s)
        self.later = _Turns(REQUESTS_PER_S)


class _Turns:
    """Turns, first come first served: one in each turn of the event loop, at a bounded rate.

    Args:
        per_s: the rate.
        burst: how many may be taken at once after a pause.
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
