"""The AMQP 1.0 encoding. Section numbers refer to the OASIS standard.

Input is untrusted. Invalid input raises only ``Malformed``, and parsing takes linear time.

Performatives keep their fields encoded, so unknown fields are forwarded unchanged. Like RabbitMQ 4.0.5, Sluice accepts
a symbol or a number of any type as a descriptor. Unlike RabbitMQ, it does not accept a map in place of a list: if the
broker read the map differently, the limits would be bypassed.
"""

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final

import msgspec

from proxy.protocols.amqp091 import wire as amqp091
from proxy.protocols.base import Buffer

AMQP: Final = 0
SASL: Final = 1

HEADER_BYTES: Final = 8
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
# Applies until both peers have stated their maximum (2.4.1).
MIN_MAX_FRAME_BYTES: Final = 512

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
_ERROR: Final = 0x1D
_REJECTED: Final = 0x25
_SOURCE: Final = 0x28
_TARGET: Final = 0x29
_COORDINATOR: Final = 0x30
SASL_INIT: Final = 0x41
_HEADER: Final = 0x70
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
_FOOTER: Final = 0x78
SECTIONS: Final = range(_HEADER, _FOOTER + 1)
UNKNOWN: Final = -1

_SYMBOLS: Final = {
    b"amqp:open:list": OPEN,
    b"amqp:begin:list": BEGIN,
    b"amqp:attach:list": ATTACH,
    b"amqp:flow:list": FLOW,
    b"amqp:transfer:list": TRANSFER,
    b"amqp:disposition:list": DISPOSITION,
    b"amqp:detach:list": DETACH,
    b"amqp:end:list": END,
    b"amqp:close:list": CLOSE,
    b"amqp:source:list": _SOURCE,
    b"amqp:target:list": _TARGET,
    b"amqp:coordinator:list": _COORDINATOR,
    b"amqp:sasl-init:list": SASL_INIT,
    b"amqp:header:list": _HEADER,
    b"amqp:delivery-annotations:map": 0x71,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": 0x74,
    b"amqp:data:binary": 0x75,
    b"amqp:amqp-sequence:list": 0x76,
    b"amqp:amqp-value:*": 0x77,
    b"amqp:footer:map": _FOOTER,
}

NULL: Final = b"\x40"

RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"

MAX_FIELDS: Final = 64
MAX_PERFORMATIVE_BYTES: Final = 1 << 20  # an attach lists unsettled deliveries
MAX_VALUES: Final = 4096
MAX_DESCRIBED: Final = 16

_u32_at: Final = Struct(">I").unpack_from
_header_at: Final = Struct(">IBBH").unpack_from
_header: Final = Struct(">IBBH").pack
_constructor_u32: Final = Struct(">BI").pack
_list32: Final = Struct(">BII").pack
# Format codes of integers with at least one byte (1.6).
_SIGNED: Final = (0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83)
_INTEGERS: Final = (0x50, 0x52, 0x53, 0x60, 0x70, 0x73, 0x80, *_SIGNED)

_DESCRIBED: Final = 0x00
_DELIVERY_ID, _DELIVERY_TAG, _MESSAGE_FORMAT, _MORE = 1, 2, 3, 5
_FIRST, _LAST, _STATE = 1, 2, 4
_REJECTED_STATE: Final = bytes((0x00, 0x53, _REJECTED))
_TRUE, _FALSE, _UINT0, _ULONG0, _LIST0 = 0x41, 0x42, 0x43, 0x44, 0x45
_UBYTE, _SMALL_UINT, _SMALL_ULONG, _BOOLEAN, _UINT = 0x50, 0x52, 0x53, 0x56, 0x70
_USHORT: Final = 0x60
_BINARY8, _STRING8, _SYMBOL8 = 0xA0, 0xA1, 0xA3
_BINARY32, _STRING32, _SYMBOL32 = 0xB0, 0xB1, 0xB3
_LIST8, _MAP8, _LIST32, _MAP32 = 0xC0, 0xC1, 0xD0, 0xD1
_DESCRIPTORS: Final = frozenset((*_INTEGERS, _UINT0, _ULONG0, _SYMBOL8, _SYMBOL32))

_BY_SIZE8, _BY_SIZE32, _BY_DESCRIPTOR, _NO_TYPE = -1, -2, -3, -4
# The number of bytes after each constructor. Its upper four bits determine it (1.2).
_WIDTHS: Final = tuple(
    width for width in (*(_NO_TYPE,) * 4, *(0, 1, 2, 4, 8, 16), *(_BY_SIZE8, _BY_SIZE32) * 3) for _ in range(16)
)
_WIDTH_OF: Final = (_BY_DESCRIPTOR, *_WIDTHS[1:])


class Malformed(Exception):  # noqa: N818 - says what the bytes are
    pass


class CutOff(Malformed):
    """A value extends beyond the available bytes."""


class Frame(msgspec.Struct, gc=False):
    size: int
    doff: int  # offset of the body in bytes
    type: int
    channel: int


def frame_header(buffer: Buffer | bytearray, at: int) -> Frame:
    """Read a frame header. Raises Malformed if the frame is shorter than its header."""
    size, doff, kind, channel = _header_at(buffer, at)
    doff *= 4
    if doff < HEADER_BYTES or size < doff:
        raise Malformed(f"a frame of {size} bytes with an invalid header length of {doff} bytes")
    return Frame(size, doff, kind, channel)


def skip(buffer: Buffer | bytearray, at: int, stop: int) -> int:
    """Return the offset at which a value ends. Raises Malformed if the value is invalid or truncated."""
    wanted = 1
    described = 0
    while wanted:
        if at >= stop:
            raise CutOff("a truncated value")
        constructor = buffer[at]
        width = _WIDTH_OF[constructor]
        at += 1
        if width >= 0:
            at += width
        elif width == _BY_SIZE8:
            if at >= stop:
                raise CutOff("a truncated value")
            at += 1 + buffer[at]
        elif width == _BY_SIZE32:
            if at + 4 > stop:
                raise CutOff("a truncated value")
            at += 4 + _u32_at(buffer, at)[0]
        elif width == _BY_DESCRIPTOR:
            described += 1
            wanted += 2
            if described > MAX_DESCRIBED:
                raise Malformed(f"a value with more than {MAX_DESCRIBED} descriptors")
        else:
            raise Malformed(f"a value of unknown type 0x{constructor:02x}")
        wanted -= 1
    if at > stop:
        raise CutOff(f"a value that extends {at - stop} bytes past the end of the data")
    return at


class Performative:
    """A described list: a performative, or a source, target, state or error in a performative.

    Fields stay encoded, and missing fields are null. Methods that decode a field return None for null, and raise
    Malformed if it has the wrong type.
    """

    __slots__ = ("_descriptor", "code", "fields", "stop")

    def __init__(self, code: int, descriptor: bytes, fields: list[bytes], stop: int) -> None:
        self.code = code
        self._descriptor = descriptor
        self.fields = fields
        self.stop = stop

    def raw(self, number: int) -> bytes:
        fields = self.fields
        return fields[number] if number < len(fields) else NULL

    def uint(self, number: int) -> int | None:
        return self._unsigned(number, "uint", _UINT, _SMALL_UINT, _UINT0)

    def ushort(self, number: int) -> int | None:
        return self._unsigned(number, "ushort", _USHORT)

    def ubyte(self, number: int) -> int | None:
        return self._unsigned(number, "ubyte", _UBYTE)

    def _unsigned(self, number: int, name: str, *constructors: int) -> int | None:
        raw = self.raw(number)
        if raw == NULL:
            return None
        if raw[0] not in constructors:
            raise self._is_no(name, number)
        return int.from_bytes(raw[1:])

    def boolean(self, number: int, default: bool = False) -> bool:  # noqa: FBT001, FBT002 - it is one
        raw = self.raw(number)
        constructor = raw[0]
        if raw == NULL:
            return default
        if constructor == _BOOLEAN and raw[1] <= 1:
            return raw[1] == 1
        if constructor not in {_TRUE, _FALSE}:
            raise self._is_no("boolean", number)
        return constructor == _TRUE

    def octets(self, number: int) -> bytes | None:
        return self._variable(number, "string", _STRING8, _STRING32)

    def symbol(self, number: int) -> bytes | None:
        return self._variable(number, "symbol", _SYMBOL8, _SYMBOL32)

    def binary(self, number: int) -> bytes | None:
        return self._variable(number, "binary", _BINARY8, _BINARY32)

    def _variable(self, number: int, name: str, short: int, long: int) -> bytes | None:
        raw = self.raw(number)
        constructor = raw[0]
        if constructor == short:
            return raw[2:]
        if constructor == long:
            return raw[5:]
        if raw == NULL:
            return None
        raise self._is_no(name, number)

    def _is_no(self, name: str, number: int) -> Malformed:
        return Malformed(
            f"a value of type 0x{self.raw(number)[0]:02x} instead of {name} in field {number} of the list with"
            f" descriptor 0x{max(self.code, 0):02x}"
        )

    def replaced(self, changes: Mapping[int, bytes]) -> bytes:
        fields = [*self.fields, *[NULL] * (max(changes, default=0) + 1 - len(self.fields))]
        for number, raw in changes.items():
            fields[number] = raw
        return self._descriptor + list_of(fields)


def performative(buffer: Buffer | bytearray, start: int, stop: int, *, whole: bool = True) -> Performative | None:
    """Read the performative in a frame body. Return None if it is incomplete and the frame is not ``whole``.

    Raises:
        Malformed: The performative is not a described list, or is too long.
    """
    try:
        return _performative(buffer, start, stop)
    except CutOff:
        if whole:
            raise
        return None


def described(raw: bytes) -> Performative | None:
    return None if raw == NULL else _performative(raw, 0, len(raw))


def _performative(buffer: Buffer | bytearray, start: int, stop: int) -> Performative:
    if start >= stop:
        raise CutOff("a frame without a performative")
    if buffer[start] != _DESCRIBED:
        raise Malformed(f"a value of type 0x{buffer[start]:02x} instead of a described list")
    code, at = descriptor(buffer, start + 1, stop)
    described_by = bytes(buffer[start:at])
    stops = ends(buffer, at, stop)
    kind = buffer[at]
    if kind == _LIST0:
        return Performative(code, described_by, [], stops)
    if kind not in {_LIST8, _LIST32}:
        raise Malformed(f"a value of type 0x{kind:02x} instead of a list of fields")
    if stops - at > MAX_PERFORMATIVE_BYTES:
        raise Malformed(f"a performative of {stops - at} bytes; the maximum is {MAX_PERFORMATIVE_BYTES}")
    if stops > stop:
        raise CutOff(f"a performative that extends {stops - stop} bytes past the end of its frame")
    first = at + (3 if kind == _LIST8 else 9)
    if first > stops:
        raise Malformed("a list without a count")
    count = buffer[first - 1] if kind == _LIST8 else _u32_at(buffer, first - 4)[0]
    if count > MAX_FIELDS:
        raise Malformed(f"a performative with {count} fields; the maximum is {MAX_FIELDS}")
    return Performative(code, described_by, _values(buffer, first, stops, count), stops)


def descriptor(buffer: Buffer | bytearray, at: int, stop: int) -> tuple[int, int]:
    # Check early, so that Sluice does not wait for the rest of an invalid descriptor.
    if at >= stop:
        raise CutOff("a truncated descriptor")
    constructor = buffer[at]
    if constructor not in _DESCRIPTORS:
        raise Malformed(f"a descriptor of invalid type 0x{constructor:02x}")
    if constructor == _SYMBOL32 and at + 5 <= stop and _u32_at(buffer, at + 1)[0] > 255:
        raise Malformed(f"a descriptor of {_u32_at(buffer, at + 1)[0]} bytes; the maximum is 255")
    ends = skip(buffer, at, stop)
    name = octets(bytes(buffer[at:ends]))
    if name is not None:
        return _SYMBOLS.get(name, UNKNOWN), ends
    return max(int.from_bytes(buffer[at + 1 : ends], signed=constructor in _SIGNED), UNKNOWN), ends


def ends(buffer: Buffer | bytearray, at: int, stop: int) -> int:
    """Return the offset at which a list or map ends. It may lie beyond the available bytes."""
    if at >= stop:
        raise CutOff("a truncated list or map")
    constructor = buffer[at]
    if constructor == _LIST0:
        return at + 1
    if constructor in {_LIST8, _MAP8}:
        if at + 2 > stop:
            raise CutOff("a truncated list or map")
        return at + 2 + buffer[at + 1]
    if constructor in {_LIST32, _MAP32}:
        if at + 5 > stop:
            raise CutOff("a truncated list or map")
        size: int = _u32_at(buffer, at + 1)[0]
        return at + 5 + size
    raise Malformed(f"a value of type 0x{constructor:02x} instead of a list or map")


def _values(buffer: Buffer | bytearray, at: int, stop: int, count: int) -> list[bytes]:
    body = bytes(buffer[at:stop])
    at, size = 0, len(body)
    values = []
    try:
        for _ in range(count):
            ends = skip(body, at, size)
            values.append(body[at:ends])
            at = ends
    except CutOff as error:
        raise Malformed(f"a list or map with fewer values than its count of {count}") from error
    if at != size:
        raise Malformed(f"a list or map whose {count} values take up only {at} of its {size} bytes")
    return values


def pairs(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    found = _compound(raw, _MAP8, _MAP32)
    if len(found) % 2:
        raise Malformed(f"a map with an odd number of keys and values ({len(found)})")
    return zip(found[::2], found[1::2], strict=True)


def values(raw: bytes) -> list[bytes]:
    """Return the encoded values of a list, or an empty list for other types."""
    return _compound(raw, _LIST8, _LIST32) if raw[0] in {_LIST8, _LIST32} else []


def _compound(raw: bytes, short: int, long: int) -> list[bytes]:
    constructor, size = raw[0], len(raw)
    if raw == NULL:
        return []
    if constructor == short and size > 2:
        begins, count = 3, raw[2]
    elif constructor == long and size > 8:
        begins, count = 9, _u32_at(raw, 5)[0]
    else:
        raise Malformed(f"a value of type 0x{constructor:02x} instead of a list or map")
    if count > MAX_VALUES:
        raise Malformed(f"a list or map with {count} values; the maximum is {MAX_VALUES}")
    return _values(raw, begins, size, count)


def octets(raw: bytes) -> bytes | None:
    """Return the content of a string or a symbol, or None for other types."""
    constructor = raw[0]
    if constructor in {_STRING8, _SYMBOL8}:
        return raw[2:]
    if constructor in {_STRING32, _SYMBOL32}:
        return raw[5:]
    return None


def list_of(fields: list[bytes]) -> bytes:
    count = len(fields)
    while count and fields[count - 1] == NULL:
        count -= 1
    if not count:
        return b"\x45"
    values = b"".join(fields[:count])
    size = len(values)
    if size < 255 and count < 256:
        return bytes((_LIST8, size + 1, count)) + values
    return _list32(_LIST32, size + 4, count) + values


def composite(code: int, *fields: bytes) -> bytes:
    return bytes((_DESCRIBED, _SMALL_ULONG, code)) + list_of([*fields])


def uint(value: int) -> bytes:
    if value > 255:
        return _constructor_u32(_UINT, value)
    return bytes((_SMALL_UINT, value)) if value else b"\x43"


def optional_uint(value: int | None) -> bytes:
    return NULL if value is None else uint(value)


def boolean(value: bool) -> bytes:  # noqa: FBT001 - it is one
    return b"\x41" if value else b"\x42"


def symbol(text: str | bytes) -> bytes:
    return _variable(_SYMBOL8, text)


def string(text: str | bytes) -> bytes:
    return _variable(_STRING8, text)


def _variable(constructor: int, text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode(errors="replace")
    size = len(raw)
    if size < 256:
        return bytes((constructor, size)) + raw
    return _constructor_u32(constructor + 0x10, size) + raw


def error(condition: str, description: str) -> bytes:
    return composite(_ERROR, symbol(condition), string(description))


def frame(channel: int, body: bytes, payload_bytes: int = 0) -> bytes:
    return _header(HEADER_BYTES + len(body) + payload_bytes, 2, AMQP, channel) + body


def transfer_start(
    channel: int, performative: Performative, delivery_id: int, payload_bytes: int, max_bytes: int
) -> tuple[bytes, int]:
    """Encode a transfer with a new delivery-id but without its payload. Return the bytes and the number of frames.

    If one frame would exceed ``max_bytes``, the payload belongs to a second frame.
    """
    body = performative.replaced({_DELIVERY_ID: uint(delivery_id)})
    if HEADER_BYTES + len(body) + payload_bytes <= max_bytes:
        return frame(channel, body, payload_bytes), 1
    first = performative.replaced({_DELIVERY_ID: uint(delivery_id), _MORE: boolean(True)})
    left_out = (_DELIVERY_ID, _DELIVERY_TAG, _MESSAGE_FORMAT)
    rest = performative.replaced(dict.fromkeys(left_out, NULL))
    return frame(channel, first) + frame(channel, rest, payload_bytes), 2


def disposition_of(channel: int, performative: Performative, first: int, last: int, max_bytes: int) -> bytes:
    """Encode a disposition with a new range. If a rejection would exceed ``max_bytes``, its error is dropped."""
    changes = {_FIRST: uint(first)}
    if performative.uint(_LAST) is not None:
        changes[_LAST] = uint(last)
    body = performative.replaced(changes)
    state = performative.raw(_STATE)
    if HEADER_BYTES + len(body) > max_bytes and state.startswith(_REJECTED_STATE):
        body = performative.replaced(changes | {_STATE: _REJECTED_STATE + bytes((_LIST0,))})
    return frame(channel, body)


def flow_frame(
    channel: int,
    next_incoming_id: int | None,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    *,
    link: tuple[int, int | None, int, bool] | None = None,
) -> bytes:
    fields = [optional_uint(next_incoming_id), uint(incoming_window), uint(next_outgoing_id), uint(outgoing_window)]
    if link is not None:
        handle, delivery_count, credit, drain = link
        fields += [uint(handle), optional_uint(delivery_count), uint(credit), NULL, b"\x41" if drain else NULL]
    return frame(channel, composite(FLOW, *fields))


def rejection_frame(channel: int, delivery_id: int, condition: str, description: str) -> bytes:
    rejected = composite(_REJECTED, error(condition, description))
    return frame(channel, composite(DISPOSITION, boolean(True), uint(delivery_id), NULL, boolean(True), rejected))


def close_frame(why: bytes = NULL) -> bytes:
    return frame(0, composite(CLOSE, why))


class Opened(msgspec.Struct, frozen=True):
    container: bytes
    hostname: bytes | None  # RabbitMQ reads the vhost from it
    max_frame_bytes: int
    idle_time_out_ms: int | None
    properties: dict[bytes, bytes]


def read_open(open_: Performative) -> Opened:
    max_frame_bytes = open_.uint(2)
    properties: dict[bytes, bytes] = {}
    for key, value in pairs(open_.raw(9)):
        name, said = octets(key), octets(value)
        if name is not None and said is not None:
            properties.setdefault(name, said)
    return Opened(
        open_.octets(0) or b"",
        open_.octets(1),
        (1 << 32) - 1 if max_frame_bytes is None else max_frame_bytes,
        # All known brokers treat 0 as a missing value.
        open_.uint(4) or None,
        properties,
    )


class Terminus(msgspec.Struct, frozen=True):
    """A source or target (3.5.3, 3.5.4), or a transaction coordinator (4.5.1)."""

    address: bytes | None = None
    dynamic: bool = False  # whether the other peer creates the node
    coordinator: bool = False


class Attached(msgspec.Struct, frozen=True):
    name: bytes
    handle: int
    receiver: bool
    snd_settle_mode: int  # 0: unsettled, 1: settled, 2: both
    source: Terminus | None
    target: Terminus | None
    initial_delivery_count: int | None


def read_attach(attach: Performative) -> Attached:
    name, handle = attach.octets(0), attach.uint(1)
    if name is None or handle is None:
        raise Malformed("an attach that lacks a name or handle")
    snd_settle_mode = attach.ubyte(3)
    return Attached(
        name,
        handle,
        attach.boolean(2),
        2 if snd_settle_mode is None else snd_settle_mode,
        _terminus(attach.raw(5)),
        _terminus(attach.raw(6)),
        attach.uint(9),
    )


def _terminus(raw: bytes) -> Terminus | None:
    node = described(raw)
    if node is None:
        return None
    if node.code == _COORDINATOR:
        return Terminus(coordinator=True)
    if node.code not in {_SOURCE, _TARGET}:
        raise Malformed(f"a terminus with unknown descriptor 0x{node.code & 0xFFFF:02x}")
    return Terminus(node.octets(0), node.boolean(4))


def read_sasl_init(init: Performative) -> bytes:
    """Return the user name, or empty bytes if the initial response does not contain it (5.3.3.2)."""
    mechanism, response = init.symbol(0) or b"", init.binary(1) or b""
    user = b""
    if mechanism == b"PLAIN":  # RFC 4616
        _, _, signed = response.partition(b"\0")
        user = signed.partition(b"\0")[0]
    elif mechanism == b"AMQPLAIN":
        table = len(response).to_bytes(4, "big") + response  # an AMQP 0.9.1 table without its length
        try:
            user = amqp091.read_texts(amqp091.Reader(table, 0, len(table)), b"LOGIN").get(b"LOGIN", b"")
        except amqp091.Malformed as error:
            raise Malformed(str(error)) from error
    elif mechanism.startswith(b"SCRAM-"):  # RFC 5802
        user = _scram_user(response)
    return user[: amqp091.MAX_SHORT_BYTES]


_BEFORE_USER: Final = 2  # SCRAM's channel binding and authorization identity precede the user


def _scram_user(message: bytes) -> bytes:
    for part in message.split(b",", _BEFORE_USER + 2)[_BEFORE_USER:]:
        if part.startswith(b"n="):
            return part[2:].replace(b"=2C", b",").replace(b"=3D", b"=")
    return b""
