"""Replays publishes without confirms that an earlier process left in the spool, because no client resends them.

Sluice has no credentials, so it uses the next connection with the same user, vhost and listener. It sends on a channel
that was not offered to the client (see ``client_info``). Replayed messages wait for limits. They get a header field,
because they may be duplicates. An entry leaves the spool when it is written to the broker.

A broker that refuses a message closes the channel without saying which message it was. Therefore only one queue, the
channel's *owner*, sends at a time, and the next queue sends on a new channel. If the broker closes the channel, the
rest of the owner's queue is dropped.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Final

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Hold, Later, Request, Side
from proxy.protocols.amqp.names import Names
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.wire import Malformed, Reader
from proxy.protocols.base import Replayed, SessionContext
from proxy.spool.queue import Queue
from proxy.spool.spool import QueueName, Spool

_MAX_AT_ONCE: Final = 8
_MAX_IN_TURN: Final = 256
_MAX_UNWRITTEN_BYTES: Final = 256 * 1024
_MAX_DROPPED: Final = 1024
_AGAIN_NS: Final = 10_000_000  # before a message is decided again
_FORCED: Final = wire.CONNECTION_FORCED  # this connection did not cause the close
#: A queue that has made the broker close this many connections is dropped.
_MAX_FAILURES: Final = 3
_KEY_BITS: Final = (1 << 62) - 1


class _Head(Enum):
    UNKNOWN = 1
    READING = 2
    ASKED = 3
    HELD = 4
    GRANTED = 5


class _Line:
    __slots__ = ("dropped", "expired", "frames", "head", "name", "queue", "request", "sent")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.name = QueueName.read(queue.name)
        self.head = _Head.UNKNOWN
        self.request: Request | None = None
        self.frames = b""
        self.sent = self.expired = self.dropped = 0


class _Channel(Enum):
    SHUT = 1
    OPENING = 2
    OPEN = 3
    CLOSING = 4


class Replay:
    """Replays ``queues`` from the spool.

    Args:
        send: Writes frames to the broker, or returns False if that is not possible now.
        listen: Turns calls to ``written`` on or off.
        failures: How many connections the broker closed because of each queue, shared by all sessions.
    """

    side = Side.CLIENT

    def __init__(
        self,
        context: SessionContext,
        queues: Sequence[Queue],
        names: Names,
        number: int,
        max_payload_bytes: int,
        *,
        send: Callable[[bytes], bool],
        listen: Callable[[bool], None],
        failures: dict[int, int],
    ) -> None:
        assert context.spool is not None  # noqa: S101 - the queues come from it
        self.number = number
        self.again_ns: int | None = None
        self.charges: list[Charge] = []
        self._spool: Spool = context.spool
        self._wake, self._give_up, self._report = context.wake, context.give_up, context.replayed
        self._names, self._max_payload_bytes = names, max_payload_bytes
        self._send, self._listen, self._failures = send, listen, failures
        self._channel = _Channel.SHUT
        self._later = deque(_Line(queue) for queue in queues)
        self._lines: deque[_Line] = deque()
        self._owner: _Line | None = None
        self._turn = 0
        self._unwritten_bytes = 0
        self._answer = b""
        self._is_stopped = False
        self._begin_some()

    def asks(self) -> bool:
        return any(line.head is _Head.UNKNOWN for line in self._lines)

    def ask(self, now_ns: int) -> list[Request]:
        self.again_ns = None
        requests = []
        for line in list(self._lines):
            if line.head is _Head.UNKNOWN:
                request = self._next(line, now_ns)
                if request is not None:
                    requests.append(request)
        self.resume()
        return requests

    def _next(self, line: _Line, now_ns: int) -> Request | None:
        queue = line.queue
        for _ in range(_MAX_DROPPED):
            entry = queue.head()
            if entry is None:
                line.head = _Head.READING
                return None
            if queue.ending(now_ns) == "expired":
                queue.pop("expired")
                line.expired += 1
                continue
            if entry.content is None:
                line.head = _Head.READING
                queue.fetch()
                return None
            try:
                publish = wire.read_publish(b"".join(entry.content))
                line.frames = publish.frames(self.number, self._max_payload_bytes)
            except Malformed:
                queue.pop()
                line.dropped += 1
                continue
            target = self._names.target(publish.exchange, publish.routing_key)
            resources = self._names.with_copies(target, publish.keys) if publish.keys else target.resources
            line.head = _Head.ASKED
            line.request = Request(
                resources,
                entry.messages,
                entry.cost_bytes or entry.size_bytes,
                "",
                "impossible",
                hash(("replay", queue.number)) & _KEY_BITS,
                line,
                since_ns=entry.entered_ns,
                returns=True,
            )
            return line.request
        self._wake()
        return None

    def asked(self, batch: Batch, now_ns: int) -> None:
        for index, request in enumerate(batch.requests):
            line, verdict = request.handle, batch.verdicts.get(index)
            if not isinstance(line, _Line):
                continue
            if line.request is not request:
                if isinstance(verdict, Hold):
                    self._give_up((request,))
            elif isinstance(verdict, Hold):
                line.head = _Head.HELD
            elif isinstance(verdict, Later):
                line.head, line.request = _Head.UNKNOWN, None
                self.again_ns = now_ns + _AGAIN_NS
            else:
                line.head, line.request = _Head.GRANTED, None
        self.resume()

    def resolved(self, request: Request) -> bool:
        """Handle a request that no longer waits. Return whether the request belongs to this replay."""
        line = request.handle
        if not isinstance(line, _Line):
            return False
        if line.request is request:
            line.head, line.request = _Head.GRANTED, None
            self.resume()
        return True

    def resume(self) -> None:
        while not self._is_stopped and self._step():
            pass

    def _step(self) -> bool:
        if self._answer and not self._send(self._answer):
            return False
        self._answer = b""
        if self._channel is _Channel.SHUT:
            owner = self._granted()
            if owner is not None and self._send(wire.channel_open(self.number)):
                self._channel, self._owner, self._turn = _Channel.OPENING, owner, 0
        owner = self._owner
        if self._channel is not _Channel.OPEN or owner is None:
            return False
        is_over = self._turn >= _MAX_IN_TURN
        yields = (is_over or owner.head in {_Head.HELD, _Head.READING}) and self._granted(owner) is not None
        if yields or not owner.queue.count:
            if self._send(wire.channel_close(self.number)):
                self._channel = _Channel.CLOSING
            return False
        return owner.head is _Head.GRANTED and self._send_head(owner)

    def _send_head(self, line: _Line) -> bool:
        frames = line.frames
        if self._unwritten_bytes >= _MAX_UNWRITTEN_BYTES or not self._send(frames):
            return False
        self._set_unwritten(self._unwritten_bytes + len(frames))
        self._turn += 1
        line.queue.pop()
        line.sent += 1
        line.head, line.frames = _Head.UNKNOWN, b""
        self._wake()
        return True

    def _set_unwritten(self, count: int) -> None:
        self._unwritten_bytes = count
        self._listen(count > 0)

    def _granted(self, but: _Line | None = None) -> _Line | None:
        for line in list(self._lines):
            if not line.queue.count and line is not self._owner:
                self._finish(line)
        return next((line for line in self._lines if line.head is _Head.GRANTED and line is not but), None)

    def written(self) -> None:
        if self._unwritten_bytes:
            self._set_unwritten(0)
            self._wake()

    def receive(self, method: int, arguments: Reader) -> None:
        if self._is_stopped:
            return
        owner = self._owner
        if method == wire.CHANNEL_CLOSE:
            code, text = arguments.short(), arguments.short_string().decode(errors="replace")
            self._answer = wire.channel_close_ok(self.number)
            self._channel, self._owner = _Channel.SHUT, None
            if owner is not None:
                self._drop(owner, f"the broker closed the channel: {code} {text}")
        elif (method, self._channel) == (wire.CHANNEL_OPEN_OK, _Channel.OPENING):
            self._channel = _Channel.OPEN
        elif (method, self._channel) == (wire.CHANNEL_CLOSE_OK, _Channel.CLOSING) and owner is not None:
            self._channel, self._owner = _Channel.SHUT, None
            self._lines.remove(owner)
            self._lines.append(owner)

    def stop(self, code: int = _FORCED, text: str = "") -> None:
        """Stop, and leave the remaining messages to another connection.

        ``code`` and ``text`` are from the broker's connection.close, if it sent one.
        """
        self._is_stopped = True
        suspect = self._owner
        if code != _FORCED and suspect is not None:
            failures = self._failures.get(suspect.queue.number, 0) + 1
            self._failures[suspect.queue.number] = failures
            if failures >= _MAX_FAILURES:
                self._drop(
                    suspect, f"the broker closed {failures} connections that replayed these messages: {code} {text}"
                )
        self._channel, self._owner, self._answer = _Channel.SHUT, None, b""
        self._set_unwritten(0)
        lines = [*self._lines, *self._later]
        self._lines.clear()
        self._later.clear()
        for line in lines:
            if not line.queue.count:
                self._end(line)
                continue
            self._forget_head(line)
            if line.sent or line.expired or line.dropped:
                self._tell(line, line.queue.count, 0, "")
            self._spool.give_back(line.queue)

    def purge(self, resource: Resource) -> int:
        count = 0
        for line in (*self._lines, *self._later):
            if (line.name.kind, line.name.name) == (resource.kind, resource.name):
                self._forget_head(line)
                dropped = line.queue.purge()
                line.dropped += dropped
                count += dropped
        self.resume()
        return count

    def _drop(self, line: _Line, reason: str) -> None:
        self._forget_head(line)
        dropped = line.queue.purge()
        self._finish(line, dropped, reason)

    def _finish(self, line: _Line, dropped: int = 0, reason: str = "") -> None:
        self._lines.remove(line)
        self._end(line, dropped, reason)
        self._begin_some()

    def _end(self, line: _Line, dropped: int = 0, reason: str = "") -> None:
        self._forget_head(line)
        self._failures.pop(line.queue.number, None)
        line.queue.close()
        line.queue.ready = _ignore
        self._tell(line, 0, dropped, reason)

    def _forget_head(self, line: _Line) -> None:
        request, line.request = line.request, None
        if request is not None and line.head is _Head.HELD:
            self._give_up((request,))
        line.head, line.frames = _Head.UNKNOWN, b""

    def _tell(self, line: _Line, left: int, dropped: int, reason: str) -> None:
        self._report(Replayed(line.name, line.sent, line.expired, line.dropped + dropped, left, reason))

    def _begin_some(self) -> None:
        while self._later and len(self._lines) < _MAX_AT_ONCE:
            line = self._later.popleft()
            line.queue.ready = partial(self._ready, line)
            self._lines.append(line)
            self._wake()

    def _ready(self, line: _Line, _: Queue) -> None:
        if line.head is _Head.READING:
            line.head = _Head.UNKNOWN
            self._wake()


def _ignore(_: Queue) -> None:
    """Replaces the callback of a closed queue, to break a reference cycle."""
