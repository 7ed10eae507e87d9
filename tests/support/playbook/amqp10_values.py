"""AMQP 1.0 values and frames for tests, built byte by byte and read in the simplest way."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

NULL: Final = b"\x40"
LIST_0: Final = b"\x45"
TRANSFER, DISPOSITION, FLOW = 0x14, 0x15, 0x13
ACCEPTED: Final = b"\x00\x53\x24\x45"
EMPTY_FRAME: Final = b"\0\0\0\x08\x02\0\0\0"


class Described(NamedTuple):
    """A described value (1.2), and whether the descriptor is a one-byte number."""

    descriptor: object
    value: object
    small: bool


def uint(value: int) -> bytes:
    return b"\x43" if not value else bytes([0x52, value]) if value < 256 else struct.pack(">BI", 0x70, value)


def wide_uint(value: int) -> bytes:
    """Return the longest encoding."""
    return struct.pack(">BI", 0x70, value)


def boolean(value: bool) -> bytes:  # noqa: FBT001 - it is one
    return b"\x41" if value else b"\x42"


def binary(value: bytes) -> bytes:
    if len(value) < 256:
        return bytes([0xA0, len(value)]) + value
    return struct.pack(">BI", 0xB0, len(value)) + value


def symbol(value: bytes) -> bytes:
    return bytes([0xA3, len(value)]) + value


def list_of(fields: Sequence[bytes], *, wide: bool = False) -> bytes:
    values = b"".join(fields)
    if not wide and len(values) < 255:
        return bytes([0xC0, len(values) + 1, len(fields)]) + values
    return struct.pack(">BII", 0xD0, len(values) + 4, len(fields)) + values


def map_of(*values: bytes) -> bytes:
    inside = b"".join(values)
    return struct.pack(">BII", 0xD1, len(inside) + 4, len(values)) + inside


def described(code: int, value: bytes) -> bytes:
    return bytes([0, 0x53, code]) + value


def frame(channel: int, body: bytes, *, doff: int = 2, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), doff, kind, channel) + body


def performative(code: int, *fields: bytes, wide: bool = False) -> bytes:
    return described(code, list_of(fields, wide=wide))


def transfer(
    channel: int,
    handle: int,
    delivery_id: int | None,
    payload: bytes = b"",
    *,
    settled: bool = False,
    more: bool = False,
) -> bytes:
    number = NULL if delivery_id is None else uint(delivery_id)
    tag = NULL if delivery_id is None else binary(struct.pack(">I", delivery_id))
    fields = [uint(handle), number, tag, uint(0), boolean(settled), boolean(more)]
    return frame(channel, performative(TRANSFER, *fields) + payload)


def disposition(
    channel: int, first: int, last: int | None = None, *, receiver: bool = True, settled: bool = True
) -> bytes:
    """Return one that accepts deliveries."""
    numbers = [uint(first), NULL if last is None else uint(last)]
    return frame(channel, performative(DISPOSITION, boolean(receiver), *numbers, boolean(settled), ACCEPTED))


class UnreadableError(Exception):
    """Invalid bytes."""


class Reader:
    """Reads values one by one. Lists and maps at depth ``depth`` are skipped."""

    def __init__(self, data: bytes, depth: int = 9) -> None:
        self.data = data
        self.at = 0
        self.depth = depth

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise UnreadableError
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self) -> Any:
        """Return the next value: None, a list, a described value, or one with its type."""
        constructor = self.take(1)[0]
        if constructor == 0:
            is_small = self.data[self.at : self.at + 1] == b"\x53"
            return Described(self.value(), self.value(), is_small)
        if constructor not in _READERS:
            raise UnreadableError
        return _READERS[constructor](self)

    def _compound(self, width: str) -> list[Any]:
        size, count = struct.Struct(f">{width}"), struct.Struct(f">{width}")
        (length,) = size.unpack(self.take(size.size))
        inside = Reader(self.take(length), self.depth - 1)
        (values,) = count.unpack(inside.take(count.size))
        if not self.depth:
            return []
        if values > length:
            raise UnreadableError
        found = [inside.value() for _ in range(values)]
        if inside.at != len(inside.data):
            raise UnreadableError
        return found


class Typed(NamedTuple):
    type: str
    value: Any


def _fixed(type_: str, pattern: str) -> Callable[[Reader], Typed]:
    layout = struct.Struct(f">{pattern}")
    return lambda reader: Typed(type_, layout.unpack(reader.take(layout.size))[0])


def _variable(type_: str, pattern: str) -> Callable[[Reader], Typed]:
    layout = struct.Struct(f">{pattern}")
    return lambda reader: Typed(type_, reader.take(layout.unpack(reader.take(layout.size))[0]))


def _as_boolean(reader: Reader) -> Typed:
    byte = reader.take(1)[0]
    if byte > 1:
        raise UnreadableError
    return Typed("boolean", bool(byte))


_READERS: Final[dict[int, Callable[[Reader], Any]]] = {
    0x40: lambda _: None,
    0x41: lambda _: Typed("boolean", True),
    0x42: lambda _: Typed("boolean", False),
    0x56: _as_boolean,
    0x43: lambda _: Typed("uint", 0),
    0x52: _fixed("uint", "B"),
    0x70: _fixed("uint", "I"),
    0x44: lambda _: Typed("ulong", 0),
    0x53: _fixed("ulong", "B"),
    0x80: _fixed("ulong", "Q"),
    0x50: _fixed("ubyte", "B"),
    0x60: _fixed("ushort", "H"),
    0xA0: _variable("binary", "B"),
    0xB0: _variable("binary", "I"),
    0xA1: _variable("string", "B"),
    0xB1: _variable("string", "I"),
    0xA3: _variable("symbol", "B"),
    0xB3: _variable("symbol", "I"),
    0x45: lambda _: [],
    0xC0: lambda reader: reader._compound("B"),
    0xD0: lambda reader: reader._compound("I"),
    0xC1: lambda reader: Typed("map", reader._compound("B")),
    0xD1: lambda reader: Typed("map", reader._compound("I")),
}
