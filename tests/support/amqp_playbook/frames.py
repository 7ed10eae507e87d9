"""Frames of clients and brokers, independent of the code under test."""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

# In the order of their flags and their values.
PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
HEADER = b"AMQP\0\0\x09\x01"
FRAME_MAX = 4096
NACK = struct.pack(">HH", 60, 120)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


HEARTBEAT = frame(8, 0, b"")


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return bytes((len(raw),)) + raw


def long(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(raw)) + raw


def table(fields: Mapping[str, str | list[str] | bytes]) -> bytes:
    """Encode a field table. Bytes are a value with its type in front."""
    out = b""
    for name, value in fields.items():
        out += short(name)
        if isinstance(value, bytes):
            out += value
        elif isinstance(value, str):
            out += b"S" + long(value)
        else:
            out += b"A" + long(b"".join(b"S" + long(each) for each in value))
    return long(out)


def content(
    channel: int,
    begin: bytes,
    body: bytes,
    *,
    headers: Mapping[str, str | list[str] | bytes] | None = None,
    body_bytes: int = FRAME_MAX - 8,
) -> list[bytes]:
    flags, properties = (0, b"") if headers is None else (1 << 15 | 1 << 13, short("text/plain") + table(headers))
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    bodies = [frame(3, channel, body[at : at + body_bytes]) for at in range(0, len(body), body_bytes)]
    return [begin, frame(2, channel, header), *bodies]


def publish(channel: int, exchange: str | bytes, key: str | bytes, body: bytes = b"", **more: object) -> list[bytes]:
    begin = method(channel, 60, 40, b"\0\0" + short(exchange) + short(key) + b"\0")
    return content(channel, begin, body, **more)  # type: ignore[arg-type]  # as content's


def header(size: int, *, mode: int | None = 2, headers: bytes | None = None, **others: bytes) -> bytes:
    if mode is not None:
        others["delivery_mode"] = bytes((mode,))
    if headers is not None:
        others["headers"] = struct.pack(">I", len(headers)) + headers
    flags = sum(1 << 15 - at for at, name in enumerate(PROPERTIES) if name in others)
    return struct.pack(">HHQH", 60, 0, size, flags) + b"".join(others[name] for name in PROPERTIES if name in others)


def with_header(channel: int, begin: bytes, header: bytes, body: bytes, body_bytes: int = FRAME_MAX - 8) -> bytes:
    """Return a content with a header made by ``header``."""
    bodies = [frame(3, channel, body[at : at + body_bytes]) for at in range(0, len(body), body_bytes)]
    return b"".join((begin, frame(2, channel, header), *bodies))


def durable(
    channel: int, key: str, body: bytes, exchange: str = "", *, mandatory: bool = False, **properties: bytes
) -> bytes:
    """Return a publish of a durable message. Properties as for ``header``."""
    begin = method(channel, 60, 40, b"\0\0" + short(exchange) + short(key) + bytes((mandatory,)))
    return with_header(channel, begin, header(len(body), **properties), body)  # type: ignore[arg-type]  # as header's


def reject(channel: int, tag: int, *, requeue: bool) -> bytes:
    return method(channel, 60, 90, struct.pack(">QB", tag, requeue))


def give_back(channel: int, tag: int, *, multiple: bool = False, requeue: bool = True) -> bytes:
    """Return a consumer's basic.nack."""
    return method(channel, 60, 120, struct.pack(">QB", tag, multiple | requeue << 1))


def recover(channel: int) -> bytes:
    return method(channel, 60, 110, b"\1")


def subscribe(channel: int, queue: str, tag: str, *, automatic: bool = False) -> bytes:
    return method(channel, 60, 20, b"\0\0" + short(queue) + short(tag) + bytes((automatic << 1,)) + table({}))


def deliver(channel: int, tag: int, body: bytes = b"", consumer: str = "c") -> list[bytes]:
    arguments = short(consumer) + struct.pack(">QB", tag, 0) + short("") + short("q")
    return content(channel, method(channel, 60, 60, arguments), body)


def returned(channel: int, body: bytes = b"") -> list[bytes]:
    arguments = struct.pack(">H", 312) + short("NO_ROUTE") + short("") + short("q")
    return content(channel, method(channel, 60, 50, arguments), body)


def ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    return method(channel, 60, 80, struct.pack(">QB", tag, multiple))


def nack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    return method(channel, 60, 120, struct.pack(">QB", tag, multiple))


def channel_open(channel: int) -> bytes:
    return method(channel, 20, 10, short(""))


def confirm_select(channel: int) -> bytes:
    return method(channel, 85, 10, b"\0")


def declare(channel: int, queue: str = "q", bits: int = 0) -> bytes:
    return method(channel, 50, 10, b"\0\0" + short(queue) + bytes((bits,)) + table({}))


def declare_ok(channel: int, queue: str) -> bytes:
    return method(channel, 50, 11, short(queue) + bytes(8))


def consume(channel: int, queue: str, tag: str, *, no_wait: bool = False) -> bytes:
    # Without acknowledgements.
    return method(channel, 60, 20, b"\0\0" + short(queue) + short(tag) + bytes((2 | no_wait << 3,)) + table({}))


def cancel(channel: int, tag: str, *, no_wait: bool = False) -> bytes:
    return method(channel, 60, 30, short(tag) + bytes((no_wait,)))


def cancel_ok(channel: int, tag: str) -> bytes:
    return method(channel, 60, 31, short(tag))


def get(channel: int, queue: str) -> bytes:
    return method(channel, 60, 70, b"\0\0" + short(queue) + b"\0")


def got(channel: int, body: bytes) -> list[bytes]:
    return content(channel, method(channel, 60, 71, bytes(9) + short("") + short("orders") + bytes(4)), body)


def consume_ok(channel: int, tag: str) -> bytes:
    return method(channel, 60, 21, short(tag))


def close(channel: int, code: int = 200, text: str = "") -> bytes:
    class_id, method_id = (20, 40) if channel else (10, 50)
    return method(channel, class_id, method_id, struct.pack(">H", code) + short(text) + bytes(4))


def close_ok(channel: int) -> bytes:
    return method(channel, 20, 41) if channel else method(0, 10, 51)


def blocked(reason: str) -> bytes:
    return method(0, 10, 60, short(reason))


def unblocked() -> bytes:
    return method(0, 10, 61)


def greeting(
    vhost: str = "/",
    frame_max: int = FRAME_MAX,
    heartbeat_s: int = 0,
    user: str = "guest",
    hears_blocked: bytes = b"t\1",
) -> bytes:
    """Return a client's frames until its connection is open. ``hears_blocked``: a value with its type in front."""
    return HEADER + start_ok(user, hears_blocked) + tune_ok(2047, frame_max, heartbeat_s) + connection_open(vhost)


def start_ok(user: str = "guest", hears_blocked: bytes = b"t\1") -> bytes:
    capabilities = b"F" + table({"publisher_confirms": b"t\1", "connection.blocked": hears_blocked})
    said: dict[str, str | list[str] | bytes] = {
        "product": "pika",
        "version": "1.3.2",
        "platform": "Python 3.11.2",
        "capabilities": capabilities,
        "connection_name": "orders-1",
    }
    arguments = table(said) + short("PLAIN") + long(f"\0{user}\0secret") + short("en_US")
    return method(0, 10, 11, arguments)


def tune_ok(channel_max: int, frame_max: int = FRAME_MAX, heartbeat_s: int = 0) -> bytes:
    return method(0, 10, 31, struct.pack(">HIH", channel_max, frame_max, heartbeat_s))


def connection_open(vhost: str = "/") -> bytes:
    return method(0, 10, 40, short(vhost) + b"\0\0")


def welcome(frame_max: int = FRAME_MAX, heartbeat_s: int = 0) -> bytes:
    """Return a broker's frames until a client's connection is open."""
    return start() + tune(2047, frame_max, heartbeat_s) + open_ok()


def start() -> bytes:
    arguments = b"\0\x09" + table({"product": "RabbitMQ"}) + long("PLAIN AMQPLAIN") + long("en_US")
    return method(0, 10, 10, arguments)


def tune(channel_max: int, frame_max: int = FRAME_MAX, heartbeat_s: int = 0) -> bytes:
    return method(0, 10, 30, struct.pack(">HIH", channel_max, frame_max, heartbeat_s))


def open_ok() -> bytes:
    return method(0, 10, 41, b"\0")


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> tuple[int, int]:
        class_id, method_id = struct.unpack_from(">HH", self.payload)
        return class_id, method_id

    @property
    def tag(self) -> int:
        (tag,) = struct.unpack_from(">Q", self.payload, 4)
        return int(tag)

    @property
    def multiple(self) -> bool:
        return self.payload[12] & 1 == 1


def read(data: bytes) -> Iterator[Frame]:
    at = 0
    while at < len(data):
        kind, channel, length = struct.unpack_from(">BHI", data, at)
        stop = at + 7 + length
        assert data[stop] == 0xCE
        yield Frame(kind, channel, data[at + 7 : stop])
        at = stop + 1


@dataclass(frozen=True, slots=True)
class Message:
    channel: int
    method: tuple[int, int]
    arguments: bytes
    header: bytes | None = None
    body: bytes = b""


def messages(data: bytes) -> Iterator[Message]:
    """Join complete frames to methods with contents. A frame that interrupts a content is an error."""
    open_contents: dict[int, tuple[Frame, Frame | None, bytes]] = {}
    for each in read(data):
        begun = open_contents.pop(each.channel, None)
        if each.kind == 8:
            assert begun is None
            yield Message(0, (0, 0), b"")
            continue
        if begun is None:
            assert each.kind == 1, each
            if each.method in {(60, 40), (60, 50), (60, 60), (60, 71)}:
                open_contents[each.channel] = (each, None, b"")
            else:
                yield Message(each.channel, each.method, each.payload[4:])
            continue
        begin, header, body = begun
        if header is None:
            assert each.kind == 2, each
            header = each
        else:
            assert each.kind == 3, each
            body += each.payload
        (size,) = struct.unpack_from(">Q", header.payload, 4)
        assert len(body) <= size
        if len(body) == size:
            yield Message(each.channel, begin.method, begin.payload[4:], header.payload, body)
        else:
            open_contents[each.channel] = (begin, header, body)
    assert not open_contents


def by_channel(data: bytes) -> dict[int, tuple[bytes, Counter[bytes]]]:
    """Return the frames of each channel, with nacks separately.

    The order between channels, and of refusals, is not determined.
    """
    frames_of: dict[int, tuple[bytes, Counter[bytes]]] = {}
    at = 0
    while at < len(data):
        _, channel, length = struct.unpack_from(">BHI", data, at)
        frame = data[at : at + length + 8]
        others, nacks = frames_of.get(channel, (b"", Counter()))
        if frame[7:11] == NACK:
            nacks[frame] += 1
        else:
            others += frame
        frames_of[channel] = others, nacks
        at += len(frame)
    return frames_of


def mixed(random: Random, contents: Iterable[list[bytes]]) -> bytes:
    """Interleave the frames of contents of several channels."""
    lines: dict[int, list[bytes]] = {}
    for content in contents:
        lines.setdefault(content[0][2], []).extend(content)
    out = b""
    while lines:
        channel = random.choice(list(lines))
        count = random.choice((1, 3, 9))
        out += b"".join(lines[channel][:count])
        del lines[channel][:count]
        if not lines[channel]:
            del lines[channel]
    return out
