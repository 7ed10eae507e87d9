"""One call: an HTTP/2 stream from the client's HEADERS to its end. And the answer that refuses it.

The DATA of a LIMITED method is kept back until its message has been decided:

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

The broker runs a unary call only when its message is complete. So a refused call has no effect there.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from proxy.deciding.batch import Request
from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq_grpc import http2, messages

PASSES: Final = 0
GATHERS: Final = 1
ASKED: Final = 2
HELD: Final = 3

TELEMETRY: Final = "Telemetry"
#: A request is decided once this much of it has arrived, because the whole may be longer than any window.
CUT_BYTES: Final = 32 * 1024
#: Limit for a message that is rewritten.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
#: A held call is refused this long before the client's deadline, so that the client gets the reason.
BEFORE_DEADLINE_NS: Final = 100_000_000
#: Deadlines are rounded down to these, so that one tick is enough for many calls.
_DEADLINE_STEP_NS: Final = 50_000_000

_SERVICE: Final = b"/apache.rocketmq.v2.MessagingService/"
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_NS: Final = dict(zip(b"HMSmun", (3_600_000_000_000, 60_000_000_000, 10**9, 10**6, 1000, 1), strict=True))


class Start(NamedTuple):
    """What the headers of a call say."""

    method: str = ""  # empty for other services
    timeout_ns: int = 0  # 0: none
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
        # Node's client says HTTP here. Its Telemetry settings have the language.
        messages.printable(_text(found, b"x-mq-language")).replace("HTTP", ""),
        messages.printable(_text(found, b"x-mq-client-version")),
    )


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode(errors="replace")


class Asking(NamedTuple):
    """What a call asks for, by the part of its message that has arrived."""

    asked: messages.Asked | None  # None: it passes
    size_bytes: int  # the whole message


class Call:
    """One stream. It is the handle of its request.

    Attributes:
        deadline_ns: when to refuse it if it is still held. 0: there is no deadline.
        is_over: the session has forgotten it.
        client_ended, broker_ended: that peer has sent END_STREAM.
        answered: the broker has begun to answer.
        is_inspected: its first message has been inspected, if it passes undecided.
        since_ns: when it began. If its round trip is measured: when its request was forwarded.
        kept: frames of the current chunk that are kept back, with their bytes of DATA.
        waiting: the sum of these bytes, which count as waiting in the outlet.
        stored: the content of earlier frames, if any.
        granted, sent: for the stream's own window: for the client's DATA while it is gathered, or for an answer that is
            rewritten.
        request: set once it has been put into a batch.
        messages, size_bytes: those of its request once forwarded, or those that a consumer received.
        answer: splits the broker's answer into messages, if the session reads it.
        target: the endpoints that the client used.
    """

    __slots__ = (
        *("_counter", "_left_bytes", "_skip_bytes", "access_key", "answer", "answered", "broker_ended", "client_ended"),
        *("deadline_ns", "granted", "id", "is_inspected", "is_over", "kept", "messages", "method", "request", "sent"),
        *("since_ns", "size_bytes", "state", "stored", "target", "waiting"),
    )

    def __init__(self, stream: int, start: Start, now_ns: int) -> None:
        self.id = stream
        self.method = start.method
        self.access_key = start.access_key
        latest_ns = now_ns + start.timeout_ns - BEFORE_DEADLINE_NS
        self.deadline_ns = latest_ns // _DEADLINE_STEP_NS * _DEADLINE_STEP_NS if start.timeout_ns else 0
        self.state = PASSES
        self.is_over = self.client_ended = self.broker_ended = self.answered = self.is_inspected = False
        self.kept: list[tuple[Buffer, int]] = []
        self.stored: bytearray | None = None
        self.waiting = self.granted = self.sent = 0
        self.request: Request | None = None
        self.messages = self.size_bytes = 0
        self.since_ns = now_ns
        self.answer: http2.Messages | None = None
        self.target: bytes | None = None
        # Counts the messages in the rest of a request that was decided by its beginning. Then the bytes to skip before
        # the message, and the bytes until its end.
        self._counter: messages.MessageCounter | None = None
        self._skip_bytes = self._left_bytes = 0

    @property
    def is_long_lived(self) -> bool:
        """Whether it is a long poll or the Telemetry stream."""
        return self.method == TELEMETRY or self.method in messages.CONSUMING

    def keep(self, frame: Buffer, size: int) -> None:
        """Keep a frame while its chunk is valid."""
        self.kept.append((frame, size))
        self.waiting += size

    def store(self) -> int:
        """Copy the content of the kept frames. Return their bytes of DATA, which no longer wait."""
        stored = self.stored = bytearray() if self.stored is None else self.stored
        for frame, _ in self.kept:
            stored += http2.content_of(frame, frame[4])
        size, self.waiting = self.waiting, 0
        self.kept.clear()
        return size

    def forget_kept(self) -> int:
        """Drop all kept and stored data. Return the bytes of DATA that no longer wait."""
        size, self.waiting = self.waiting, 0
        self.kept, self.stored = [], None
        return size

    def _content(self) -> Buffer | bytearray:
        if self.stored is not None:
            return self.stored
        if len(self.kept) == 1:
            frame = self.kept[0][0]
            return http2.content_of(frame, frame[4])
        return b"".join(http2.content_of(frame, frame[4]) for frame, _ in self.kept)

    def ask(self, initial_window: int) -> Asking | None:
        """Return what the message asks for, once enough of it has arrived.

        Args:
            initial_window: the broker's initial window of each stream.

        Raises:
            ValueError: it cannot be read.
        """
        content = self._content()
        have = len(content) - http2.MESSAGE_PREFIX_BYTES
        flag, length = http2.prefix_of(content) if have >= 0 else (0, 1)
        if flag:
            raise ValueError("compressed")
        is_cut = have < length
        if is_cut:
            # Without window left, the client cannot send more.
            has_window = initial_window + self.granted > self.sent
            if not self.client_ended and len(content) < CUT_BYTES and has_window:
                return None
            if self.client_ended or have < 0:
                raise ValueError("too short, or too long to be read")
        with memoryview(content)[http2.MESSAGE_PREFIX_BYTES : http2.MESSAGE_PREFIX_BYTES + length] as message:
            asked = messages.read_request(self.method, bytes(message), is_cut=is_cut)
        size_bytes = http2.MESSAGE_PREFIX_BYTES + length
        if is_cut:
            self._counter = messages.MessageCounter()
            self._skip_bytes, self._left_bytes = http2.MESSAGE_PREFIX_BYTES, size_bytes
        return Asking(asked, size_bytes)

    def count_rest(self, frame: Buffer, flags: int) -> int:
        """Return how many messages a forwarded frame adds to those already decided. Usually 0.

        Raises:
            ValueError: it cannot be read, or is ambiguous.
        """
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
        """Return the id of its first message while that is kept. Empty if it has none."""
        if self.method != "SendMessage" or not (self.kept or self.stored):
            return b""
        try:
            return messages.message_id(bytes(self._content())[http2.MESSAGE_PREFIX_BYTES :])
        except ValueError:
            return b""


_FIRST_HEADERS: Final = b"\x88" + http2.literal(b"content-type", b"application/grpc")


@lru_cache(maxsize=1024)
def refusal(method: str, text: str, begin: bytes, max_bytes: int, *, was_held: bool) -> tuple[tuple[bytes, ...], int]:
    """Return the frames that refuse a call.

    Args:
        method: the call's method.
        text: the reason, for people.
        begin: the prefix of its first header block.
        max_bytes: the client's window for the answer. If it is too small, the answer is trailers only, with
            grpc-status 8 (RESOURCE_EXHAUSTED).
        was_held: the call was held.

    Returns:
        The pieces to join with the four bytes of the stream id. And the bytes of DATA in them.
    """
    message = http2.message_of(0, messages.refuse(method, text, was_held=was_held))
    size = len(message)
    end = http2.END_HEADERS | http2.END_STREAM
    frames: tuple[bytes, ...] = (
        http2.frame_of(http2.HEADERS, http2.END_HEADERS, 0, begin + _FIRST_HEADERS),
        http2.frame_of(http2.DATA, 0, 0, message),
        http2.frame_of(http2.HEADERS, end, 0, http2.literal(b"grpc-status", b"0")),
    )
    if size > max_bytes:
        status = http2.literal(b"grpc-status", b"8") + http2.literal(b"grpc-message", _percent(text))
        frames, size = (http2.frame_of(http2.HEADERS, end, 0, begin + _FIRST_HEADERS + status),), 0
    return _around_stream(frames), size


def _around_stream(frames: Sequence[bytes]) -> tuple[bytes, ...]:
    pieces = [b""]
    for frame in frames:
        pieces[-1] += frame[:5]
        pieces.append(frame[9:])
    return tuple(pieces)


def _percent(text: str) -> bytes:
    """Encode a text as gRPC encodes ``grpc-message``."""
    plain = frozenset(range(0x20, 0x7F)) - {0x25}
    return b"".join(b"%c" % byte if byte in plain else b"%%%02X" % byte for byte in text.encode())
