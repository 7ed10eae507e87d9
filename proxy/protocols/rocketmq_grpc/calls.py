"""One call: an HTTP/2 stream from the client's HEADERS to its end; and the answer that refuses it.

The DATA of a LIMITED method is kept back until its message has been decided:

======== ============================================== ===============================================================
state    its DATA                                       ends with
======== ============================================== ===============================================================
GATHERS  is kept until the message is complete, or its  ASKED; PASSES or REFUSED if it cannot be read
         beginning long enough to be decided
ASKED    is kept, in a batch                            the verdict
LATER    is kept                                        the verdict, once another call is resolved
HELD     is kept                                        its ticket, or its deadline: PASSES or REFUSED
PASSES   goes on                                        both peers' END_STREAM, or a reset
REFUSED  is swallowed. The broker gets RST_STREAM, the  at once: there is no Call any more
         client our answer
======== ============================================== ===============================================================

A unary call whose message is not complete is never run by the broker, so a refused call has left no trace there.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from proxy.deciding.batch import Request
from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq.wire.codes import MAX_NAME_CHARS
from proxy.protocols.rocketmq_grpc import http2, messages

PASSES: Final = 0
GATHERS: Final = 1
ASKED: Final = 2
LATER: Final = 3
HELD: Final = 4

TELEMETRY: Final = "Telemetry"
#: A request is decided by so much of it at the latest, as it may be longer than any window.
CUT_BYTES: Final = 32 * 1024
#: Of a message that is compressed, or rewritten.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
#: How long before the client's deadline a held call is refused, so that the client sees why.
BEFORE_DEADLINE_NS: Final = 100_000_000

_SERVICE: Final = b"/apache.rocketmq.v2.MessagingService/"
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_NS: Final = dict(zip(b"HMSmun", (3_600_000_000_000, 60_000_000_000, 10**9, 10**6, 1000, 1), strict=True))


class Start(NamedTuple):
    """What the headers of a call say."""

    method: str = ""  # empty for other services
    timeout_ns: int = 0  # 0: none
    encoding: bytes = b""
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
        found.get(b"grpc-encoding", b""),
        messages.access_key(_text(found, b"authorization")),
        _text(found, b"x-mq-client-id")[:MAX_NAME_CHARS],
        # Node's client names its language in Telemetry's settings only.
        _text(found, b"x-mq-language").replace("HTTP", "")[:MAX_NAME_CHARS],
        _text(found, b"x-mq-client-version")[:MAX_NAME_CHARS],
    )


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode(errors="replace")


class Asking(NamedTuple):
    """What a call asks for, as far as its message has come."""

    asked: messages.Asked | None  # None: it passes
    size_bytes: int  # of the whole message


class Call:
    """One stream; the handle of its request.

    Attributes:
        deadline_ns: when it is to be refused at the latest, if it is held; 0 if it may wait for ever.
        is_over: there is no such call any more; client_ended, broker_ended: that peer has sent its END_STREAM.
        answered: the broker has begun to answer.
        is_looked_at: its first message was, if it passes unasked.
        since_ns: when it began; or when its request went on, if that is timed.
        kept, waiting: frames of the chunk in hand that are kept back, with their bytes of DATA; and the sum of these,
            which count as waiting in the outlet.
        stored: what earlier frames have brought, if there were any.
        granted, sent: of its own window: of the client's DATA while it is gathered, or of an answer that is rewritten.
        request: once it was asked about.
        messages, size_bytes: of its request, once that has gone on; or what a consumer got.
        answer: cuts the broker's answer, if that is read.
        target: the endpoints that the client has used.
    """

    __slots__ = (
        *(
            "_counter",
            "_left_bytes",
            "_skip_bytes",
            "answer",
            "answered",
            "broker_ended",
            "client_ended",
            "deadline_ns",
        ),
        *(
            "encoding",
            "granted",
            "id",
            "is_looked_at",
            "is_over",
            "kept",
            "messages",
            "method",
            "request",
            "sent",
            "since_ns",
        ),
        *("size_bytes", "state", "stored", "target", "waiting"),
    )

    def __init__(self, stream: int, start: Start, now_ns: int) -> None:
        self.id = stream
        self.method = start.method
        self.encoding = start.encoding
        self.deadline_ns = now_ns + start.timeout_ns - BEFORE_DEADLINE_NS if start.timeout_ns else 0
        self.state = PASSES
        self.is_over = self.client_ended = self.broker_ended = self.answered = self.is_looked_at = False
        self.kept: list[tuple[Buffer, int]] = []
        self.stored: bytearray | None = None
        self.waiting = self.granted = self.sent = 0
        self.request: Request | None = None
        self.messages = self.size_bytes = 0
        self.since_ns = now_ns
        self.answer: http2.Messages | None = None
        self.target: bytes | None = None
        # Counts the messages in the rest of a request that was decided by its beginning: what it skips of the next
        # bytes, and where the message ends in them.
        self._counter: messages.MessageCounter | None = None
        self._skip_bytes = self._left_bytes = 0

    @property
    def is_long(self) -> bool:
        """Whether it waits for something to happen, however long that takes."""
        return self.method == TELEMETRY or self.method in messages.CONSUMING

    def keep(self, frame: Buffer, size: int) -> None:
        """Keep a frame for as long as its chunk is in hand."""
        self.kept.append((frame, size))
        self.waiting += size

    def store(self) -> int:
        """Store what the frames that are kept bring; returns their bytes, which do not wait any more."""
        stored = self.stored = bytearray() if self.stored is None else self.stored
        for frame, _ in self.kept:
            stored += http2.content_of(frame, frame[4])
        size, self.waiting = self.waiting, 0
        self.kept.clear()
        return size

    def forget_kept(self) -> int:
        """Drop all that is kept or stored; returns the bytes that do not wait any more."""
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
        """Return what the message asks for, once enough of it is here.

        Args:
            initial_window: of each stream, as the broker has set it.

        Raises:
            ValueError: it cannot be read.
        """
        content = self._content()
        have = len(content) - http2.MESSAGE_PREFIX_BYTES
        flag, length = http2.prefix_of(content) if have >= 0 else (0, 1)
        is_cut = have < length
        if is_cut:
            # Without more window, no more will come.
            has_window = initial_window + self.granted > self.sent
            if not self.client_ended and len(content) < CUT_BYTES and has_window:
                return None
            if self.client_ended or have < 0 or flag:
                raise ValueError("too short, or too long to be read")
        with memoryview(content)[http2.MESSAGE_PREFIX_BYTES : http2.MESSAGE_PREFIX_BYTES + length] as message:
            asked = messages.read_request(self.method, bytes(self.plain(flag, message)), is_cut=is_cut)
        size_bytes = http2.MESSAGE_PREFIX_BYTES + length
        if is_cut and self.method == "SendMessage":
            self._counter = messages.MessageCounter()
            self._skip_bytes, self._left_bytes = http2.MESSAGE_PREFIX_BYTES, size_bytes
        return Asking(asked, size_bytes)

    def plain(self, flag: int, message: Buffer) -> Buffer:
        """Return a message of the client, decompressed; raises ValueError if that cannot be."""
        if flag > 1:
            raise ValueError("an unknown flag")
        return http2.decompressed(message, self.encoding, MAX_MESSAGE_BYTES) if flag else message

    def count_rest(self, frame: Buffer, flags: int) -> int:
        """Return how many messages a frame that goes on adds to those that were asked about; mostly 0.

        Raises:
            ValueError: it cannot be read, or could be understood in two ways.
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
        """Return the id of its first message, while that is kept; empty if it has none."""
        if self.method != "SendMessage" or not (self.kept or self.stored):
            return b""
        content = bytes(self._content())
        try:
            return messages.message_id(self.plain(content[0], content[http2.MESSAGE_PREFIX_BYTES :]))
        except ValueError:
            return b""


_FIRST_HEADERS: Final = b"\x88" + http2.literal(b"content-type", b"application/grpc")


@lru_cache(maxsize=1024)
def refusal(method: str, text: str, begin: bytes, most_bytes: int, *, was_held: bool) -> tuple[tuple[bytes, ...], int]:
    """Return the frames that refuse a call.

    Args:
        method: of the call.
        text: for people.
        begin: what its header blocks begin with.
        most_bytes: the client's window for the answer. If that is not enough, the answer is trailers only, with
            grpc-status 8, which is RESOURCE_EXHAUSTED.
        was_held: it has waited.

    Returns:
        What stands between the four bytes of the stream's number, each time; and the bytes of DATA in it.
    """
    message = http2.message_of(0, messages.refuse(method, text, was_held=was_held))
    size = len(message)
    end = http2.END_HEADERS | http2.END_STREAM
    frames: tuple[bytes, ...] = (
        http2.frame_of(http2.HEADERS, http2.END_HEADERS, 0, begin + _FIRST_HEADERS),
        http2.frame_of(http2.DATA, 0, 0, message),
        http2.frame_of(http2.HEADERS, end, 0, http2.literal(b"grpc-status", b"0")),
    )
    if size > most_bytes:
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
    """Spell a text as gRPC spells ``grpc-message``."""
    plain = frozenset(range(0x20, 0x7F)) - {0x25}
    return b"".join(b"%c" % byte if byte in plain else b"%%%02X" % byte for byte in text.encode())
