"""AMQP 0.9.1 frames for tests, built byte by byte."""

import struct
from collections.abc import Iterator
from typing import Final

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END: Final = b"\xce"
# A frame's bytes around its payload.
AROUND_BYTES: Final = 8


def frame(kind: int, channel: int, payload: bytes, end: bytes = END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def publish(channel: int, exchange: bytes, routing_key: bytes, bits: int = 0) -> bytes:
    return method(channel, 60, 40, bytes(2) + short(exchange) + short(routing_key) + bytes([bits]))


def header(channel: int, body_bytes: int, flags: int = 0, properties: bytes = b"") -> bytes:
    return frame(HEADER, channel, struct.pack(">HHQH", 60, 0, body_bytes, flags) + properties)


def table(*fields: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """Return flags and a table of names and typed values."""
    inside = b"".join(short(name) + value for name, value in fields)
    return 1 << 13, struct.pack(">I", len(inside)) + inside


def text(value: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(value)) + value


def array(*values: bytes) -> bytes:
    return b"A" + struct.pack(">I", sum(map(len, values))) + b"".join(values)


def content(channel: int, exchange: bytes, routing_key: bytes, body: bytes, frame_bytes: int = 131_072) -> list[bytes]:
    most = frame_bytes - AROUND_BYTES
    bodies = [frame(BODY, channel, body[at : at + most]) for at in range(0, len(body), most)]
    return [publish(channel, exchange, routing_key), header(channel, len(body)), *bodies]


def confirm(channel: int, number: int, *, multiple: bool = False, method_id: int = 80) -> bytes:
    """Return the broker's ack, or with 120 its nack."""
    return method(channel, 60, method_id, struct.pack(">QB", number, multiple))


def split(stream: bytes) -> Iterator[bytes]:
    """Return the frames of a stream of complete ones."""
    while stream:
        (size,) = struct.unpack(">I", stream[3:7])
        yield stream[: size + AROUND_BYTES]
        stream = stream[size + AROUND_BYTES :]
