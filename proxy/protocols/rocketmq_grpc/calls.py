"""Calls: HTTP/2 streams from the client's HEADERS to the end, and the answers that Sluice writes itself.

The DATA of a LIMITED method is kept back until its message has been decided. A call has one of these states:

======== ============================================== ===============================================================
state    its DATA                                       left by
======== ============================================== ===============================================================
GATHERS  is kept until the message is complete, or      ASKED. PASSES or REFUSED if the message cannot be read
         enough of it has arrived for a decision
ASKED    is kept, in a batch                            the verdict
HELD     is kept                                        its ticket or its deadline: PASSES or REFUSED
PASSES   is forwarded                                   END_STREAM of both peers, or a reset
REFUSED  is discarded. The broker gets RST_STREAM, the  at once: there is no Call any more
         client an answer
======== ============================================== ===============================================================

The broker executes a call only when its message is complete, so a refused call has no effect.
"""

import re
from typing import Final, NamedTuple

from proxy.deciding.batch import Request
from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq_grpc import http2, messages

PASSES: Final = 0
GATHERS: Final = 1
ASKED: Final = 2
HELD: Final = 3

TELEMETRY: Final = "Telemetry"
#: A request is decided once this much of it has arrived, because the whole request may exceed any window.
CUT_BYTES: Final = 32 * 1024
#: Maximum size of a message that is rewritten.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
#: How long before the client's deadline a held call is refused, so that the client receives the reason.
BEFORE_DEADLINE_NS: Final = 100_000_000
#: Deadlines are multiples of this, so that one tick is enough for many calls.
_DEADLINE_STEP_NS: Final = 50_000_000

_SERVICE: Final = b"/apache.rocketmq.v2.MessagingService/"
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_NS: Final = dict(zip(b"HMSmun", (3_600_000_000_000, 60_000_000_000, 10**9, 10**6, 1000, 1), strict=True))


class Start(NamedTuple):
    method: str = ""  # empty if it is a method of another service
    timeout_ns: int = 0  # 0 if there is none
    access_key: str = ""
    client_id: str = ""
    language: str = ""
    version: str = ""


def read_start(headers: http2.Headers) -> Start:
    found = dict(headers)
    path, timeout = found.get(b":path", b""), _TIMEOUT.fullmatch(found.get(b"grpc-timeout", b""))
    return Start(
        path.removeprefix(_SERVICE).decode(errors="replace") if path.startswith(_SERVICE) else "",
        0 if timeout is None else int(timeout[1]) * _UNITS_NS[timeout[2][0]],
        messages.access_key(_text(found, b"authorization")),
        messages.printable(_text(found, b"x-mq-client-id")),
        # The Node.js client sends HTTP here. Its Telemetry settings contain the language.
        messages.printable(_text(found, b"x-mq-language")).replace("HTTP", ""),
        messages.printable(_text(found, b"x-mq-client-version")),
    )


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode(errors="replace")


class Call:
    """One HTTP/2 stream. It is also the handle of its request.

    Attributes:
        deadline_ns: when to refuse it if it is still held. 0 if never.
        client_ended, broker_ended: whether this peer has sent END_STREAM.
        answered: whether the broker has begun to answer.
        is_inspected: whether the session has read its first message.
        since_ns: when it began, or when its request was forwarded, if its round trip is measured.
        content: the content of its DATA that is kept back.
        window_used: bytes of DATA kept back, minus the bytes granted by WINDOW_UPDATEs of the broker.
        request: its request, once it is part of a batch.
        messages, size_bytes: the amounts of its request once forwarded, or those that a consumer received.
        answer: splits the broker's answer into messages, if the session reads it.
    """

    __slots__ = (
        *("_counter", "_left_bytes", "_skip_bytes", "access_key", "answer", "answered", "broker_ended", "client_ended"),
        *("content", "deadline_ns", "id", "is_inspected", "is_over", "messages", "method", "request", "route"),
        *("since_ns", "size_bytes", "state", "window_used"),
    )

    def __init__(self, stream: int, start: Start, now_ns: int) -> None:
        self.id = stream
        self.method = start.method
        self.access_key = start.access_key
        latest_ns = now_ns + start.timeout_ns - BEFORE_DEADLINE_NS
        self.deadline_ns = latest_ns // _DEADLINE_STEP_NS * _DEADLINE_STEP_NS if start.timeout_ns else 0
        self.state = PASSES
        self.is_over = self.client_ended = self.broker_ended = self.answered = self.is_inspected = False
        self.content = bytearray()
        self.window_used = 0
        self.request: Request | None = None
        self.messages = self.size_bytes = 0
        self.since_ns = now_ns
        self.answer: http2.Messages | None = None
        self.route: RouteAnswer | None = None
        # For a request decided by its beginning: the bytes to skip before its message, and those until its end.
        self._counter: messages.MessageCounter | None = None
        self._skip_bytes = self._left_bytes = 0

    @property
    def is_long_lived(self) -> bool:
        """Whether it is a long poll or the Telemetry stream."""
        return self.method == TELEMETRY or self.method in messages.CONSUMING

    @property
    def counts(self) -> bool:
        """Whether the messages in further DATA are counted."""
        return self._counter is not None

    def ask(self, initial_window: int) -> tuple[messages.Asked | None, int] | None:
        """Return what the message asks for and its size, or None if not enough of it has arrived.

        ``initial_window`` is the broker's initial window for each stream. Raises ValueError if the message is invalid.
        """
        content = self.content
        have = len(content) - http2.MESSAGE_PREFIX_BYTES
        flag, length = http2.prefix_of(content) if have >= 0 else (0, 1)
        if flag:
            raise ValueError("a compressed request")
        is_cut = have < length
        if is_cut:
            # If the window is used up, the client cannot send more.
            if not self.client_ended and len(content) < CUT_BYTES and self.window_used < initial_window:
                return None
            if self.client_ended or have < 0:
                raise ValueError("a request that is too short or too long")
        with memoryview(content)[http2.MESSAGE_PREFIX_BYTES : http2.MESSAGE_PREFIX_BYTES + length] as message:
            asked = messages.read_request(self.method, bytes(message), is_cut=is_cut)
        size_bytes = http2.MESSAGE_PREFIX_BYTES + length
        if is_cut:
            self._counter = messages.MessageCounter()
            self._skip_bytes, self._left_bytes = http2.MESSAGE_PREFIX_BYTES, size_bytes
        return asked, size_bytes

    def count_rest(self, frame: Buffer, flags: int) -> int:
        """Return how many messages a forwarded frame adds to those decided. Raises ValueError if ambiguous."""
        counter, request = self._counter, self.request
        if counter is None or request is None:
            return 0
        content = http2.content_of(frame, flags)
        before = max(request.messages, counter.count)
        counter.feed(content[self._skip_bytes : self._left_bytes])
        self._skip_bytes = max(0, self._skip_bytes - len(content))
        self._left_bytes = max(0, self._left_bytes - len(content))
        return max(0, counter.count - before)

    def message_id(self) -> bytes:
        """Return the id of its first message, or an empty value if this is not kept back."""
        if self.method != "SendMessage":
            return b""
        try:
            return messages.message_id(bytes(self.content[http2.MESSAGE_PREFIX_BYTES :]))
        except ValueError:
            return b""


class RouteAnswer:
    """The answer to a route query. Its length changes, because it is rewritten.

    DATA that exceeds the client's window for the stream waits here, so that it does not block other answers. The
    broker's window for the stream is restored immediately. ``target`` contains the endpoints that the client used.
    """

    def __init__(self, stream: int, outlet: http2.Outlet) -> None:
        self.target: bytes | None = None
        self.messages = http2.Messages(MAX_MESSAGE_BYTES)
        self._stream = stream
        self._outlet = outlet
        # As in Call, with the client's WINDOW_UPDATEs.
        self._window_used = 0
        self._data = bytearray()
        self._end = b""

    @property
    def waits(self) -> bool:
        return len(self._data) > 0

    def put(self, data: bytes, end: bytes = b"") -> None:
        """Write DATA as far as the window allows, followed by the frame ``end``."""
        self._data += data
        self._end += end
        self._outlet.queued_bytes += len(data) + len(end)
        self.flush()

    def update(self, size: int) -> None:
        self._window_used -= size
        self.flush()

    def flush(self) -> None:
        outlet, data = self._outlet, self._data
        while data and (window := outlet.initial - self._window_used) > 0:
            piece = bytes(data[: min(window, http2.DEFAULT_FRAME_BYTES)])
            del data[: len(piece)]
            self._window_used += len(piece)
            outlet.queued_bytes -= len(piece)
            outlet.add(len(piece))
            outlet.put(http2.frame_of(http2.DATA, 0, self._stream, piece), len(piece))
        if self._end and not data:
            outlet.queued_bytes -= len(self._end)
            outlet.put(self._end)
            self._end = b""

    def drop(self) -> None:
        self._outlet.queued_bytes -= len(self._data) + len(self._end)
        self._data.clear()
        self._end = b""


_FIRST_HEADERS: Final = b"\x88" + http2.literal(b"content-type", b"application/grpc")
_TRAILERS: Final = http2.literal(b"grpc-status", b"0")


def refusal(call: Call, text: str, begin: bytes, max_bytes: int, *, was_held: bool) -> tuple[bytes, int]:
    """Return the frames that refuse a call, and the bytes of DATA in them.

    ``begin`` is the prefix of the first header block. If the answer would exceed ``max_bytes``, it consists of trailers
    only, with grpc-status 8 (RESOURCE_EXHAUSTED).
    """
    stream, message = call.id, http2.message_of(0, messages.refuse(call.method, text, was_held=was_held))
    if len(message) > max_bytes:
        status = http2.literal(b"grpc-status", b"8") + http2.literal(b"grpc-message", _percent(text))
        return http2.headers_of(http2.END_STREAM, stream, begin + _FIRST_HEADERS + status), 0
    first = http2.headers_of(0, stream, begin + _FIRST_HEADERS)
    frames = first + http2.frame_of(http2.DATA, 0, stream, message)
    return frames + http2.headers_of(http2.END_STREAM, stream, _TRAILERS), len(message)


def _percent(text: str) -> bytes:
    """Percent-encode a text for ``grpc-message``."""
    plain = frozenset(range(0x20, 0x7F)) - {0x25}
    return b"".join(b"%c" % byte if byte in plain else b"%%%02X" % byte for byte in text.encode())
