"""gRPC calls, and the answers that Sluice writes itself. A call is an HTTP/2 stream.

If the method is LIMITED, Sluice keeps back the call's DATA until the request has been decided:

======== ================================================= ============================================================
state    DATA is                                           next state
======== ================================================= ============================================================
GATHERS  kept until the message is complete, or enough of  ASKED. PASSES or REFUSED if the message cannot be read
         it has arrived for a decision
ASKED    kept while the request is in a batch              PASSES, HELD or REFUSED, as the verdict requires
HELD     kept until the ticket is resolved or the          PASSES or REFUSED
         deadline is reached
PASSES   forwarded                                         over after END_STREAM from both peers, or a reset
REFUSED  discarded                                         over immediately. The broker gets a RST_STREAM, and the
                                                           client an answer
======== ================================================= ============================================================

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
#: A request is decided when this much of it has arrived, because the complete request may be larger than any window.
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
    timeout_ns: int = 0  # 0 if the client sets none
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
    """One HTTP/2 stream. It is also the ``handle`` of its request.

    Attributes:
        deadline_ns: when to refuse the call if it is still held. 0 if never.
        is_inspected: whether the session has read the client's first message.
        since_ns: when the call began, or when its request was forwarded if the round trip is measured.
        content: DATA that is kept back, without frame headers and padding.
        window_used: bytes of DATA kept back, minus the bytes that the broker has granted in WINDOW_UPDATEs.
        messages: for a send, messages that the broker has not answered. For a consumer, messages received.
        answer: splits the broker's answer into messages. None if the session does not read the answer.
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
        # For a request decided before it is complete: bytes to skip before its message, and bytes left until its end.
        self._counter: messages.MessageCounter | None = None
        self._skip_bytes = self._left_bytes = 0

    @property
    def is_long_lived(self) -> bool:
        return self.method == TELEMETRY or self.method in messages.CONSUMING

    @property
    def counts(self) -> bool:
        """Whether further DATA is searched for messages to count."""
        return self._counter is not None

    def ask(self, initial_window: int) -> tuple[messages.Asked | None, int] | None:
        """Read the request. Return its content and size, or None if not enough of it has arrived.

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
        """Return how many undecided messages a frame adds to the request. Raises ValueError if that is ambiguous."""
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
        """Return the id of the first message, or empty bytes if that message is not kept back."""
        if self.method != "SendMessage":
            return b""
        try:
            return messages.message_id(bytes(self.content[http2.MESSAGE_PREFIX_BYTES :]))
        except ValueError:
            return b""


class RouteAnswer:
    """The answer to a route query. Sluice rewrites it, which changes its length.

    DATA that exceeds the client's window for the stream waits here, so it does not block other answers. The broker's
    window for the stream is restored immediately. ``target`` contains the endpoints to which the client connected.
    """

    def __init__(self, stream: int, outlet: http2.Outlet) -> None:
        self.target: bytes | None = None
        self.messages = http2.Messages(MAX_MESSAGE_BYTES)
        self._stream = stream
        self._outlet = outlet
        # Bytes of DATA written, minus the bytes that the client has granted in WINDOW_UPDATEs.
        self._window_used = 0
        self._data = bytearray()
        self._end = b""

    @property
    def waits(self) -> bool:
        return len(self._data) > 0

    def put(self, data: bytes, end: bytes = b"") -> None:
        """Write ``data`` as far as the window allows, and the rest later. The frame ``end`` follows all of it."""
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
    """Return the frames that refuse a call, and their number of DATA bytes.

    ``begin`` is the prefix of the first header block. If the DATA would exceed ``max_bytes``, the answer consists only
    of trailers with grpc-status 8 (RESOURCE_EXHAUSTED).
    """
    stream, message = call.id, http2.message_of(0, messages.refuse(call.method, text, was_held=was_held))
    if len(message) > max_bytes:
        status = http2.literal(b"grpc-status", b"8") + http2.literal(b"grpc-message", _percent(text))
        return http2.headers_of(http2.END_STREAM, stream, begin + _FIRST_HEADERS + status), 0
    first = http2.headers_of(0, stream, begin + _FIRST_HEADERS)
    frames = first + http2.frame_of(http2.DATA, 0, stream, message)
    return frames + http2.headers_of(http2.END_STREAM, stream, _TRAILERS), len(message)


def _percent(text: str) -> bytes:
    plain = frozenset(range(0x20, 0x7F)) - {0x25}
    return b"".join(b"%c" % byte if byte in plain else b"%%%02X" % byte for byte in text.encode())
