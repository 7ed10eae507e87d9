"""The AMQP 0.9.1 encoding of frames and of the methods that Sluice reads or writes.

Input is untrusted. Invalid input raises only ``Malformed``, and parsing takes linear time.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # # noqa: N812
from typing import Final, NamedTuple

from proxy.protocols.base import Buffer

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_TYPES: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))

PREFIX_BYTES: Final = 7
FRAME_BYTES: Final = 8
FRAME_END: Final = 0xCE
DEFAULT_FRAME_MAX: Final = 131072  # the maximum before tune-ok, including the framing

MAX_CHANNEL: Final = 65535

PROTOCOL_HEADER_BYTES: Final = 8
PROTOCOL_HEADERS: Final = (b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09")

REPLY_SUCCESS: Final = 200
CONNECTION_FORCED: Final = 320
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
INTERNAL_ERROR: Final = 541

prefix_at: Final = Struct(">BHI").unpack_from  # type, channel, payload length
_u16_at: Final = Struct(">H").unpack_from
_u32_at: Final = Struct(">I").unpack_from
_u64_at: Final = Struct(">Q").unpack_from


def method_of(frame: Buffer | bytearray) -> int:
    number: int = _u32_at(frame, PREFIX_BYTES)[0]
    return number


def arguments(frame: Buffer | bytearray) -> "Reader":
    return Reader(frame, PREFIX_BYTES + 4, len(frame) - 1)


def payload(frame: bytes) -> bytes:
    return frame[PREFIX_BYTES:-1]


def with_payload(frame: bytes, payload: bytes) -> bytes:
    return b"".join((frame[:3], len(payload).to_bytes(4, "big"), payload, frame[-1:]))


def method(class_id: int, method_id: int) -> int:
    return class_id << 16 | method_id


CONNECTION_START_OK: Final = method(10, 11)
CONNECTION_TUNE: Final = method(10, 30)
CONNECTION_TUNE_OK: Final = method(10, 31)
CONNECTION_OPEN: Final = method(10, 40)
CONNECTION_OPEN_OK: Final = method(10, 41)
CONNECTION_CLOSE: Final = method(10, 50)
CONNECTION_CLOSE_OK: Final = method(10, 51)
CONNECTION_BLOCKED: Final = method(10, 60)
CONNECTION_UNBLOCKED: Final = method(10, 61)
CHANNEL_OPEN: Final = method(20, 10)
CHANNEL_OPEN_OK: Final = method(20, 11)
CHANNEL_FLOW_OK: Final = method(20, 21)
CHANNEL_CLOSE: Final = method(20, 40)
CHANNEL_CLOSE_OK: Final = method(20, 41)
QUEUE_DECLARE: Final = method(50, 10)
QUEUE_DECLARE_OK: Final = method(50, 11)
QUEUE_DELETE: Final = method(50, 40)
BASIC: Final = 60
BASIC_QOS: Final = method(BASIC, 10)
BASIC_CONSUME: Final = method(BASIC, 20)
BASIC_CONSUME_OK: Final = method(BASIC, 21)
BASIC_CANCEL: Final = method(BASIC, 30)
BASIC_CANCEL_OK: Final = method(BASIC, 31)
BASIC_PUBLISH: Final = method(BASIC, 40)
BASIC_RETURN: Final = method(BASIC, 50)
BASIC_DELIVER: Final = method(BASIC, 60)
BASIC_GET: Final = method(BASIC, 70)
BASIC_GET_OK: Final = method(BASIC, 71)
BASIC_GET_EMPTY: Final = method(BASIC, 72)
BASIC_ACK: Final = method(BASIC, 80)
BASIC_REJECT: Final = method(BASIC, 90)
BASIC_RECOVER_ASYNC: Final = method(BASIC, 100)
BASIC_RECOVER: Final = method(BASIC, 110)
BASIC_RECOVER_OK: Final = method(BASIC, 111)
BASIC_NACK: Final = method(BASIC, 120)
CONFIRM_SELECT: Final = method(85, 10)
TX: Final = 90
TX_SELECT: Final = method(TX, 10)
TX_COMMIT: Final = method(TX, 20)
TX_COMMIT_OK: Final = method(TX, 21)

MULTIPLE: Final = 1
NACK_REQUEUE: Final = 2
REJECT_REQUEUE: Final = 1
CONSUME_NO_ACK: Final = 2
GET_NO_ACK: Final = 1
DECLARE_PASSIVE: Final = 1
DECLARE_EXCLUSIVE: Final = 4
DELETE_ON_CONDITION: Final = 3  # if-unused and if-empty
DECLARE_NO_WAIT: Final = 16
CONSUME_NO_WAIT: Final = 8
CANCEL_NO_WAIT: Final = 1
DELETE_NO_WAIT: Final = 4

_FLAG_CONTENT_TYPE: Final = 1 << 15
_FLAG_CONTENT_ENCODING: Final = 1 << 14
_FLAG_HEADERS: Final = 1 << 13
_FLAG_DELIVERY_MODE: Final = 1 << 12
_FLAG_MORE_FLAGS: Final = 1
_FLAGS_AT: Final = 12
_CONTENT_HEADER_BYTES: Final = 14
#: The length of a value by its type, or None if four length bytes precede the value.
_FIELD_BYTES: Final[dict[int, int | None]] = {
    **dict.fromkeys(b"SxAF", None),
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"sUu", 2),
    **dict.fromkeys(b"Iif", 4),
    ord("D"): 5,
    **dict.fromkeys(b"lLdT", 8),
    ord("V"): 0,
}
_TABLE: Final = ord("F")
_BOOLEAN: Final = ord("t")
_ARRAY: Final = ord("A")
_LONG_STRING: Final = ord("S")
MAX_SHORT_BYTES: Final = 255
MAX_FIELDS: Final = 2048
MAX_KEYS: Final = 256


class Malformed(Exception):  # noqa: N818 - says what the bytes are
    pass


class Reader:
    __slots__ = ("_buffer", "position", "stop")

    def __init__(self, buffer: Buffer | bytearray, position: int, stop: int) -> None:
        self._buffer = buffer
        self.position = position
        self.stop = stop

    def step(self, count: int) -> int:
        position = self.position
        if count > self.stop - position:
            raise Malformed(f"a truncated value ({count} bytes expected, {self.stop - position} available)")
        self.position = position + count
        return position

    def octet(self) -> int:
        return self._buffer[self.step(1)]

    def short(self) -> int:
        value: int = _u16_at(self._buffer, self.step(2))[0]
        return value

    def long(self) -> int:
        value: int = _u32_at(self._buffer, self.step(4))[0]
        return value

    def longlong(self) -> int:
        value: int = _u64_at(self._buffer, self.step(8))[0]
        return value

    def raw(self, count: int) -> bytes:
        position = self.step(count)
        return bytes(self._buffer[position : position + count])

    def short_string(self) -> bytes:
        return self.raw(self.octet())

    def long_string(self) -> bytes:
        return self.raw(self.long())

    def table(self) -> Iterator[tuple[bytes, int, "Reader"]]:
        return self.inner().named()

    def named(self) -> Iterator[tuple[bytes, int, "Reader"]]:
        for _ in self.fields():
            name = self.short_string()
            yield name, *self.value()

    def array(self) -> Iterator[tuple[int, "Reader"]]:
        inner = self.inner()
        for _ in inner.fields():
            yield inner.value()

    def fields(self) -> Iterator[None]:
        for _ in range(MAX_FIELDS):
            if self.position >= self.stop:
                return
            yield
        if self.position < self.stop:
            raise Malformed(f"a table or array with more than {MAX_FIELDS} fields")

    def inner(self) -> "Reader":
        length = self.long()
        begins = self.step(length)
        return Reader(self._buffer, begins, begins + length)

    def value(self) -> tuple[int, "Reader"]:
        kind = self.octet()
        if kind not in _FIELD_BYTES:
            raise Malformed(f"a field of unknown type {chr(kind)!r}")
        length = _FIELD_BYTES[kind]
        begins = self.position
        self.step(self.long() if length is None else length)
        return kind, Reader(self._buffer, begins, self.position)


def read_texts(reader: Reader, *names: bytes) -> dict[bytes, bytes]:
    """Read a table and return the long strings that have these names. A value of any other type is returned as b"".

    If a name repeats, the first field counts, as in RabbitMQ.
    """
    found: dict[bytes, bytes] = {}
    for name, kind, value in reader.table():
        if name in names and name not in found:
            found[name] = value.long_string() if kind == _LONG_STRING else b""
    return found


def reads_true(reader: Reader, table: bytes, name: bytes) -> bool:
    """Return whether ``name`` is true in the nested table ``table``. If a name repeats, the first field counts."""
    for outer, kind, value in reader.table():
        if outer == table:
            if kind != _TABLE:
                return False
            for inner, its_kind, its_value in value.table():
                if inner == name:
                    return its_kind == _BOOLEAN and its_value.octet() != 0
            return False
    return False


class _Header(NamedTuple):
    begin: bytes
    flags: int
    before: bytes  # content type and encoding
    fields: bytes | None
    behind: bytes  # the other properties, starting with the delivery mode

    def payload(self, fields: bytes | None, behind: bytes) -> bytes:
        if fields is None:
            return b"".join((self.begin, (self.flags & ~_FLAG_HEADERS).to_bytes(2, "big"), self.before, behind))
        flags = (self.flags | _FLAG_HEADERS).to_bytes(2, "big")
        return b"".join((self.begin, flags, self.before, len(fields).to_bytes(4, "big"), fields, behind))


def _split(header: bytes) -> _Header:
    if len(header) < _CONTENT_HEADER_BYTES:
        raise Malformed(f"a content header of only {len(header)} bytes; the minimum is {_CONTENT_HEADER_BYTES}")
    flags: int = _u16_at(header, _FLAGS_AT)[0]
    reader = Reader(header, _CONTENT_HEADER_BYTES, len(header))
    for flag in (_FLAG_CONTENT_TYPE, _FLAG_CONTENT_ENCODING):
        if flags & flag:
            reader.short_string()
    before = header[_CONTENT_HEADER_BYTES : reader.position]
    fields = reader.long_string() if flags & _FLAG_HEADERS else None
    return _Header(header[:_FLAGS_AT], flags, before, fields, header[reader.position :])


def read_content_header(header: bytes, *, copies: bool = True) -> tuple[int, int, list[bytes], int]:
    """Read the payload of a header frame.

    Returns:
        The class id, the body size in bytes, the routing keys in CC and BCC if ``copies`` is set, and the number of
        fields read.

    Raises:
        Malformed: The header is too short, or its table may contain CC or BCC but is unreadable or too long.
    """
    if len(header) < _CONTENT_HEADER_BYTES:
        raise Malformed(f"a content header of only {len(header)} bytes; the minimum is {_CONTENT_HEADER_BYTES}")
    class_id: int = _u16_at(header, 0)[0]
    body_bytes: int = _u64_at(header, 4)[0]
    table = _split(header).fields if copies and b"CC" in header else None
    keys: dict[bytes, None] = {}
    fields = 0
    for name, kind, value in Reader(table, 0, len(table)).named() if table else ():
        fields += 1
        if kind == _ARRAY and name in {b"CC", b"BCC"}:
            for each, text in value.array():
                fields += 1
                if fields > MAX_FIELDS:
                    raise Malformed(f"a content header with more than {MAX_FIELDS} fields")
                if each == _LONG_STRING:
                    keys[text.long_string()[:MAX_SHORT_BYTES]] = None
    if len(keys) > MAX_KEYS:
        raise Malformed(f"a content header with {len(keys)} routing keys in CC and BCC; the maximum is {MAX_KEYS}")
    return class_id, body_bytes, list(keys), fields


#: The properties before the expiration, as types or as lengths in bytes.
_BEFORE_EXPIRATION: Final = ("short", "short", "long", 1, 1, "short", "short")
_FLAG_EXPIRATION: Final = 1 << 8
_EXPIRATION_DIGITS: Final = 10  # RabbitMQ's maximum is 2^32 ms


def content_header_at(content: Buffer | bytearray) -> tuple[int, int]:
    begins = FRAME_BYTES + _u32_at(content, 3)[0]
    return begins + PREFIX_BYTES, begins + PREFIX_BYTES + _u32_at(content, begins + 3)[0]


def read_expiration(content: Buffer | bytearray) -> int | None:
    """Return a message's expiration in milliseconds, or None if it is missing or not a number."""
    try:
        start, stop = content_header_at(content)
        flags: int = _u16_at(content, start + _FLAGS_AT)[0]
        if not flags & _FLAG_EXPIRATION or stop > len(content):
            return None
        reader = Reader(content, start + _CONTENT_HEADER_BYTES, stop)
        for bit, length in enumerate(_BEFORE_EXPIRATION):
            if flags & _FLAG_CONTENT_TYPE >> bit:
                if isinstance(length, int):
                    reader.step(length)
                else:
                    reader.step(reader.octet() if length == "short" else reader.long())
        text = reader.short_string()
    except (Malformed, StructError, IndexError):
        return None
    return int(text) if text.isdigit() and len(text) <= _EXPIRATION_DIGITS else None


_MARK: Final = b"\x11x-sluice-replayedt\x01"


class Publish(NamedTuple):
    exchange: bytes
    routing_key: bytes
    keys: list[bytes]
    header: bytes
    body: bytes

    def frames(self, channel: int, max_payload_bytes: int) -> bytes:
        """Encode the publish for ``channel`` with a replay mark, and without the flags mandatory and immediate.

        The mark is omitted if it would make the header too long.

        Raises:
            Malformed: The header is too long even without the mark.
        """
        header = _marked(self.header)
        if len(header) > max_payload_bytes:
            header = self.header
            if len(header) > max_payload_bytes:
                raise Malformed(f"a content header of {len(header)} bytes; the maximum is {max_payload_bytes}")
        target = _short_string(self.exchange) + _short_string(self.routing_key)
        method = Struct(">IH").pack(BASIC_PUBLISH, 0) + target + b"\0"
        out = [frame(METHOD, channel, method), frame(HEADER, channel, header)]
        body = memoryview(self.body)
        out += [
            frame(BODY, channel, body[at : at + max_payload_bytes]) for at in range(0, len(body), max_payload_bytes)
        ]
        return b"".join(out)


def read_publish(data: bytes) -> Publish:
    """Decode the frames of a publish. Raises Malformed unless ``data`` is exactly one publish."""
    payloads: dict[int, list[memoryview]] = {METHOD: [], HEADER: [], BODY: []}
    view, position, size = memoryview(data), 0, len(data)
    while position < size:
        if size - position < FRAME_BYTES:
            raise Malformed(f"{size - position} extra bytes after the frames of a publish")
        kind, _, length = prefix_at(data, position)
        stop = position + length + FRAME_BYTES
        if stop > size or data[stop - 1] != FRAME_END or kind not in payloads:
            raise Malformed("an incomplete or unexpected frame in a publish")
        payloads[kind].append(view[position + PREFIX_BYTES : stop - 1])
        position = stop
    methods, headers = payloads[METHOD], payloads[HEADER]
    if len(methods) != 1 or len(headers) != 1:
        raise Malformed(
            f"a publish with {len(methods)} method frames and {len(headers)} content headers; expected one of each"
        )
    header, body = bytes(headers[0]), b"".join(payloads[BODY])
    arguments = Reader(methods[0], 0, len(methods[0]))
    is_publish = arguments.long() == BASIC_PUBLISH
    arguments.short()
    exchange, routing_key = arguments.short_string(), arguments.short_string()
    class_id, body_bytes, keys, _ = read_content_header(header)
    if not is_publish or class_id != BASIC or body_bytes != len(body):
        raise Malformed(
            f"content that is not a complete publish: class {class_id}, {len(body)} of {body_bytes} body bytes"
        )
    return Publish(exchange, routing_key, keys, header, body)


def _marked(header: bytes) -> bytes:
    parts = _split(header)
    if parts.flags & _FLAG_MORE_FLAGS:
        raise Malformed("a content header with unknown properties")
    return parts.payload(_MARK + (parts.fields or b""), parts.behind)


CONFIRM_FIELD: Final = b"\x10x-sluice-confirm"
_TRANSIENT: Final = b"\1"
_DURABLE: Final = b"\2"
#: A mark consists of two hexadecimal numbers and a flag for whether the message had headers.
_CONFIRM_VALUE_BYTES: Final = 33
_HEX: Final = frozenset(b"0123456789abcdef")
_DEATHS: Final = b"\x07x-death"


class Mark(NamedTuple):
    header: bytes
    maker: int
    number: int
    died: bool  # whether the message may have been dead-lettered


def mark_header(header: bytes, maker: int, number: int) -> bytes | None:
    """Mark a header and make its message transient. ``read_mark`` reverses this.

    Returns None if the message is not durable, can expire, is already marked, or has been dead-lettered: a second
    dead-lettering could not be told from the first.
    """
    parts = _split(header)
    if parts.flags & (_FLAG_MORE_FLAGS | _FLAG_EXPIRATION) or not parts.flags & _FLAG_DELIVERY_MODE:
        return None
    if CONFIRM_FIELD in header or _DEATHS in header or not parts.behind.startswith(_DURABLE):
        return None
    value = b"%016x%016x%c" % (maker, number, b"nt"[parts.fields is not None])
    mark = CONFIRM_FIELD + b"S" + len(value).to_bytes(4, "big") + value
    return parts.payload(mark + (parts.fields or b""), _TRANSIENT + parts.behind[1:])


def read_mark(header: bytes) -> Mark | None:
    if CONFIRM_FIELD not in header:
        return None
    parts = _split(header)
    fields = parts.fields
    if fields is None or not parts.flags & _FLAG_DELIVERY_MODE or not parts.behind:
        return None
    value, reader, at = b"", Reader(fields, 0, len(fields)), 0
    for name, kind, inside in reader.named():
        if name == CONFIRM_FIELD[1:] and kind == _LONG_STRING:
            value, fields = inside.long_string(), fields[:at] + fields[reader.position :]
            break
        at = reader.position
    digits, had_headers = value[:-1], value[-1:]
    if len(value) != _CONFIRM_VALUE_BYTES or not _HEX.issuperset(digits) or had_headers not in {b"t", b"n"}:
        return None
    restored = parts.payload(fields if fields or had_headers == b"t" else None, _DURABLE + parts.behind[1:])
    half = len(digits) // 2
    return Mark(restored, int(digits[:half], 16), int(digits[half:], 16), _DEATHS in fields)


def with_header(content: bytes, start: int, stop: int, header: bytes) -> bytes:
    length = len(header).to_bytes(4, "big")
    return b"".join((content[: start - 4], length, header, content[stop:]))


_ANSWER: Final = Struct(">BHIIQBB")


def ack(channel: int, tag: int) -> bytes:
    return _ANSWER.pack(METHOD, channel, 13, BASIC_ACK, tag, 0, FRAME_END)


def nack(channel: int, tag: int) -> bytes:
    return _ANSWER.pack(METHOD, channel, 13, BASIC_NACK, tag, 0, FRAME_END)


def settling(method: int, channel: int, tag: int, bits: int) -> bytes:
    return _ANSWER.pack(METHOD, channel, 13, method, tag, bits, FRAME_END)


def basic_recover(channel: int, bits: int) -> bytes:
    return _method_frame(channel, Struct(">IB").pack(BASIC_RECOVER, bits))


def cancel(channel: int, consumer: bytes) -> bytes:
    return _method_frame(channel, Struct(">I").pack(BASIC_CANCEL) + _short_string(consumer) + bytes((CANCEL_NO_WAIT,)))


def consume(channel: int, queue: bytes) -> bytes:
    bits = bytes((CONSUME_NO_ACK | CONSUME_NO_WAIT,))
    payload = Struct(">IH").pack(BASIC_CONSUME, 0) + _short_string(queue) + _short_string(b"") + bits + bytes(4)
    return _method_frame(channel, payload)


def queue_delete(channel: int, queue: bytes) -> bytes:
    return _method_frame(channel, Struct(">IH").pack(QUEUE_DELETE, 0) + _short_string(queue) + bytes((DELETE_NO_WAIT,)))


def connection_close(code: int, text: str) -> bytes:
    if code == CONNECTION_FORCED:
        text = f"CONNECTION_FORCED - {text}"
    payload = Struct(">IH").pack(CONNECTION_CLOSE, code) + _short_string(text.encode()) + bytes(4)
    return _method_frame(0, payload)


def connection_blocked(reason: bytes) -> bytes:
    return _method_frame(0, Struct(">I").pack(CONNECTION_BLOCKED) + _short_string(reason))


def _short_string(text: bytes) -> bytes:
    if len(text) > MAX_SHORT_BYTES:
        text = text[:MAX_SHORT_BYTES].decode(errors="ignore").encode()
    return bytes((len(text),)) + text


def _method_frame(channel: int, payload: bytes) -> bytes:
    return frame(METHOD, channel, payload)


def frame(kind: int, channel: int, payload: Buffer) -> bytes:
    return b"".join((Struct(">BHI").pack(kind, channel, len(payload)), payload, bytes((FRAME_END,))))


def channel_open(channel: int) -> bytes:
    return _method_frame(channel, Struct(">IB").pack(CHANNEL_OPEN, 0))


def channel_close(channel: int) -> bytes:
    return _method_frame(channel, Struct(">IHBHH").pack(CHANNEL_CLOSE, REPLY_SUCCESS, 0, 0, 0))


def channel_close_ok(channel: int) -> bytes:
    return _method_frame(channel, Struct(">I").pack(CHANNEL_CLOSE_OK))


UNBLOCKED_FRAME: Final = _method_frame(0, Struct(">I").pack(CONNECTION_UNBLOCKED))
CLOSE_OK_FRAME: Final = Struct(">BHIIB").pack(METHOD, 0, 4, CONNECTION_CLOSE_OK, FRAME_END)
HEARTBEAT_FRAME: Final = bytes((HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END))
