"""A small AMQP 0.9.1 publisher, with publisher confirms; and the few questions that the demo asks a broker itself."""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import trio

from admin.common.errors import StartError
from admin.config.addresses import Endpoint
from admin.demo.client import Client, Outcome

_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_METHOD, _CONTENT, _BODY, _END = 1, 2, 3, b"\xce"
_FRAME: Final = struct.Struct("!BHI")
#: Longer than any that the demo gets.
_MAX_FRAME_BYTES: Final = 131_072
_READ_BYTES: Final = 64 * 1024
_TEXT: Final = b"sluice demo " * 8
_TIMEOUT_S: Final = 30.0

_START_OK, _TUNE, _TUNE_OK, _OPEN, _OPEN_OK = (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
_START, _CHANNEL_OPEN, _CHANNEL_OPEN_OK = (10, 10), (20, 10), (20, 11)
_DECLARE, _DECLARE_OK = (50, 10), (50, 11)
_PUBLISH, _ACK, _NACK = (60, 40), (60, 80), (60, 120)
_SELECT, _SELECT_OK = (85, 10), (85, 11)
#: The client understands these.
_CAPABILITIES: Final = ("publisher_confirms", "basic.nack")
_PERSISTENT: Final = struct.pack("!HB", 0x1000, 2)
_DURABLE: Final = 2

Method = tuple[int, int]


class _Frame(NamedTuple):
    """A method frame.

    Attributes:
        method: class and method.
        arguments: what follows them.
    """

    method: Method
    arguments: bytes


class Publisher(Client):
    """One queue's client."""

    async def greet(self, stream: trio.SocketStream) -> None:
        """Open a connection and a channel with confirms."""
        await _open(stream)
        await _call(stream, 1, _SELECT, b"\0", _SELECT_OK)

    def message(self, number: int) -> bytes:
        """Write a persistent message to the queue, in three frames; confirms go by its number."""
        del number
        header = struct.pack("!HHQ", 60, 0, len(_TEXT)) + _PERSISTENT
        arguments = b"\0\0" + _short("") + _short(self.topic) + b"\0"
        return _method(1, _PUBLISH, arguments) + _frame(_CONTENT, 1, header) + _frame(_BODY, 1, _TEXT)

    def answers(self, data: bytearray) -> Iterable[tuple[int, Outcome]]:
        """Read confirms, one number or all up to it."""
        found: list[tuple[int, Outcome]] = []
        for frame in _cut(data):
            if frame.method in {_ACK, _NACK}:
                number, bits = struct.unpack("!QB", frame.arguments[:9])
                outcome: Outcome = "passed" if frame.method == _ACK else "refused"
                numbers = self.waiting_up_to(number) if bits & 1 else [number]
                found += [(each, outcome) for each in numbers]
        return found


async def declare(server: Endpoint, queue: str, *, passive: bool) -> int:
    """Make a durable queue, or look at one that is there; returns how many messages are ready in it.

    Raises:
        StartError: there was no answer, or it said no.
    """
    try:
        with trio.fail_after(_TIMEOUT_S):
            async with await trio.open_tcp_stream(*server) as stream:
                await _open(stream)
                bits = _DURABLE | passive
                arguments = b"\0\0" + _short(queue) + struct.pack("!BI", bits, 0)
                answer = await _call(stream, 1, _DECLARE, arguments, _DECLARE_OK)
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise StartError(f"{server} does not answer: {error}") from None
    (ready,) = struct.unpack_from("!I", answer, 1 + answer[0])
    return int(ready)


async def _open(stream: trio.SocketStream) -> None:
    """Log in as guest, without heartbeats, and open a channel."""
    await stream.send_all(_HEADER)
    await _expect(stream, _START)
    flags = b"".join(_short(each) + b"t\x01" for each in _CAPABILITIES)
    named = _short("product") + b"S" + _long(b"sluice demo") + _short("capabilities") + b"F" + _long(flags)
    await stream.send_all(
        _method(0, _START_OK, _long(named) + _short("PLAIN") + _long(b"\0guest\0guest") + _short("en_US"))
    )
    await _expect(stream, _TUNE)
    await stream.send_all(_method(0, _TUNE_OK, struct.pack("!HIH", 2047, _MAX_FRAME_BYTES, 0)))
    await _call(stream, 0, _OPEN, _short("/") + _short("") + b"\0", _OPEN_OK)
    await _call(stream, 1, _CHANNEL_OPEN, _short(""), _CHANNEL_OPEN_OK)


async def _call(stream: trio.SocketStream, channel: int, method: Method, arguments: bytes, answer: Method) -> bytes:
    await stream.send_all(_method(channel, method, arguments))
    return await _expect(stream, answer)


async def _expect(stream: trio.SocketStream, method: Method) -> bytes:
    """Return the arguments of the next method, which nothing follows before it is answered.

    Raises:
        OSError: it is another one, or the connection ended.
    """
    data = bytearray()
    while True:
        for frame in _cut(data):
            if frame.method != method:
                raise OSError(f"the broker said {frame.method} where {method} was due: {frame.arguments[:100]!r}")
            return frame.arguments
        chunk = await stream.receive_some(_READ_BYTES)
        if not chunk:
            raise OSError(f"the broker closed the connection before it said {method}")
        data += chunk


def _cut(data: bytearray) -> Iterator[_Frame]:
    """Take whole frames off the beginning; yields those that are methods.

    Raises:
        OSError: the bytes are no frames.
    """
    at = 0
    try:
        while len(data) - at >= _FRAME.size:
            kind, _, size = _FRAME.unpack_from(data, at)
            end = at + _FRAME.size + size
            if size > _MAX_FRAME_BYTES:
                raise OSError(f"a frame of {size} bytes")
            if end >= len(data):
                break
            payload = bytes(data[at + _FRAME.size : end])
            at = end + len(_END)
            if kind == _METHOD:
                yield _Frame((payload[1], payload[3]), payload[4:])
    finally:
        del data[:at]


def _method(channel: int, method: Method, arguments: bytes) -> bytes:
    return _frame(_METHOD, channel, struct.pack("!HH", *method) + arguments)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def _long(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data
