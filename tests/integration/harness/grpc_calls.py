"""A small client of RocketMQ's gRPC service without I/O: unary calls on one HTTP/2 connection."""

import itertools
from typing import Final

from hpack import Decoder, Encoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
_FRAME_HEADER_BYTES: Final = 9
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


class Answer:
    """The messages of one stream, and the headers of the last block, which are the trailers."""

    def __init__(self) -> None:
        self.body = b""
        self.headers: dict[str, str] = {}
        self.reset = False

    @property
    def message(self) -> bytes:
        """The first message, or an empty one."""
        return self.body[5 : 5 + int.from_bytes(self.body[1:5])]


class GrpcCalls:
    """One connection.

    ``replies`` are bytes to be written in addition to calls, such as window updates. ``goodbye`` is the peer's GOAWAY.
    """

    def __init__(self, client_id: str = "harness") -> None:
        self._encoder, self._decoder = Encoder(), Decoder()
        self._streams = itertools.count(1, 2)
        self._open: dict[int, Answer] = {}
        self._left = b""
        self._block = b""
        self._headers = {
            ":method": "POST",
            ":scheme": "http",
            ":authority": "sluice",
            "te": "trailers",
            "content-type": "application/grpc",
            "grpc-timeout": "10S",
            "x-mq-client-id": client_id,
            "x-mq-language": "PYTHON",
            "x-mq-client-version": "5.1.2",
            "x-mq-protocol": "v2",
        }
        self.replies = PREFACE + frame(SETTINGS, 0, 0)
        self.goodbye: str | None = None

    def call(self, method: str, message: bytes) -> tuple[int, bytes]:
        stream = next(self._streams)
        self._open[stream] = Answer()
        block = self._encoder.encode([(":path", _SERVICE + method), *self._headers.items()])
        data = b"\0" + len(message).to_bytes(4) + message
        return stream, frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, data)

    def feed(self, data: bytes) -> list[tuple[int, Answer]]:
        """Parse bytes and return the calls that they complete."""
        data, at, ended = self._left + data, 0, []
        while len(data) - at >= _FRAME_HEADER_BYTES:
            size = int.from_bytes(data[at : at + 3])
            end = at + _FRAME_HEADER_BYTES + size
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9])
            if self._take(kind, flags, stream, data[at + _FRAME_HEADER_BYTES : end]):
                ended.append((stream, self._open.pop(stream)))
            at = end
        self._left = data[at:]
        return ended

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """Handle a frame. Return whether it ends an open call."""
        answer = self._open.get(stream)
        if kind == SETTINGS and not flags & ACK:
            self.replies += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self.replies += frame(PING, ACK, 0, payload)
        elif kind == GOAWAY:
            self.goodbye = payload[8:].decode()
        elif kind == DATA:
            if payload:
                self.replies += frame(WINDOW_UPDATE, 0, 0, len(payload).to_bytes(4))
            if answer is not None:
                answer.body += payload
        elif kind in {HEADERS, CONTINUATION}:
            self._block += payload
            if flags & END_HEADERS:
                headers = {str(name): str(value) for name, value in self._decoder.decode(self._block)}
                self._block = b""
                if answer is not None:
                    answer.headers = headers
        elif kind == RST_STREAM and answer is not None:
            answer.reset = True
            return True
        return answer is not None and kind in {DATA, HEADERS} and bool(flags & END_STREAM)

    def take_replies(self) -> bytes:
        """Return bytes to be written, once."""
        replies, self.replies = self.replies, b""
        return replies


def send_request(topic: str, body: bytes, message_id: str) -> bytes:
    properties = _field(3, message_id.encode()) + b"\x30\x01"
    message = _field(1, _field(2, topic.encode())) + _field(3, properties) + _field(4, body)
    return _field(1, message)


def _field(number: int, value: bytes) -> bytes:
    size = len(value)
    length = bytes([size]) if size < 0x80 else bytes((size & 0x7F | 0x80, size >> 7))
    return bytes((number << 3 | 2,)) + length + value
