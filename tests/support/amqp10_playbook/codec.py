"""AMQP 1.0's types and frames, independent of the code under test."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEADER = b"AMQP\x00\x01\x00\x00"
EMPTY = b"\0\0\0\x08\x02\0\0\0"


class UInt(int):
    """A uint."""


class ULong(int):
    """A ulong."""


class UShort(int):
    """A ushort."""


class UByte(int):
    """A ubyte."""


class Long(int):
    """A long."""


class Symbol(str):
    __slots__ = ()


class Array(list[Any]):
    """An array of symbols."""


@dataclass
class Raw:
    """An encoded value, for encodings that ``encode`` would not choose."""

    data: bytes


@dataclass
class Described:
    descriptor: Any
    value: Any


def encode(value: Any) -> bytes:
    match value:
        case None:
            return b"\x40"
        case Raw():
            return value.data
        case Described():
            return b"\0" + encode(value.descriptor) + encode(value.value)
        case bool():
            return b"\x41" if value else b"\x42"
        case UByte():
            return struct.pack(">BB", 0x50, value)
        case UShort():
            return struct.pack(">BH", 0x60, value)
        case UInt():
            return b"\x43" if value == 0 else bytes((0x52, value)) if value < 256 else struct.pack(">BI", 0x70, value)
        case ULong():
            return b"\x44" if value == 0 else bytes((0x53, value)) if value < 256 else struct.pack(">BQ", 0x80, value)
        case int():
            return struct.pack(">Bq", 0x81, value)
        case float():
            return struct.pack(">Bd", 0x82, value)
        case Symbol():
            return variable(0xA3, value.encode())
        case str():
            return variable(0xA1, value.encode())
        case bytes():
            return variable(0xA0, value)
        case Array():
            data = b"".join(struct.pack(">I", len(each)) + each.encode() for each in value)
            return struct.pack(">BIIB", 0xF0, len(data) + 5, len(value), 0xB3) + data
        case list():
            return b"\x45" if not value else compound(0xC0, [encode(each) for each in value])
        case dict():
            return compound(0xC1, [encode(each) for pair in value.items() for each in pair])
    raise TypeError(f"{value!r} has no type of AMQP")


def variable(constructor: int, data: bytes) -> bytes:
    if len(data) < 256:
        return bytes((constructor, len(data))) + data
    return struct.pack(">BI", constructor + 0x10, len(data)) + data


def compound(constructor: int, values: list[bytes]) -> bytes:
    data = b"".join(values)
    if len(data) < 255 and len(values) < 256:
        return bytes((constructor, len(data) + 1, len(values))) + data
    return struct.pack(">BII", constructor + 0x10, len(data) + 4, len(values)) + data


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return a value and its end. Raises ValueError, struct.error or IndexError."""
    constructor = data[at]
    if constructor == 0:
        descriptor, at = decode(data, at + 1)
        value, at = decode(data, at)
        return Described(descriptor, value), at
    return _decode(constructor, data, at + 1)


_FIXED: dict[int, tuple[str, Any]] = {
    0x50: (">B", UByte),
    0x51: (">b", Long),
    0x52: (">B", UInt),
    0x53: (">B", ULong),
    0x54: (">b", Long),
    0x55: (">b", Long),
    0x56: (">B", bool),
    0x60: (">H", UShort),
    0x61: (">h", Long),
    0x70: (">I", UInt),
    0x71: (">i", Long),
    0x72: (">f", float),
    0x73: (">I", Long),
    0x80: (">Q", ULong),
    0x81: (">q", Long),
    0x82: (">d", float),
    0x83: (">q", Long),
    0x98: (">16s", bytes),
}


def _decode(constructor: int, data: bytes, at: int) -> tuple[Any, int]:
    constants = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}
    if constructor in constants:
        return constants[constructor], at
    if constructor == 0x45:
        return [], at
    if constructor in _FIXED:
        form, kind = _FIXED[constructor]
        return kind(struct.unpack_from(form, data, at)[0]), at + struct.calcsize(form)
    wide = bool(constructor >> 4 & 1)
    size = struct.unpack_from(">I", data, at)[0] if wide else data[at]
    at += 4 if wide else 1
    ends = at + size
    if ends > len(data):
        raise ValueError("a value that ends too early")
    raw = data[at:ends]
    match constructor & 0xEF:
        case 0xA0:
            return raw, ends
        case 0xA1:
            return raw.decode(), ends
        case 0xA3:
            return Symbol(raw.decode()), ends
    count, at = (struct.unpack_from(">I", raw)[0], 4) if wide else (raw[0], 1)
    values = []
    if count > len(raw):
        raise ValueError(f"{count} values in {len(raw)} bytes")
    if constructor & 0xEF == 0xE0:
        element, at = raw[at], at + 1
        for _ in range(count):
            value, at = _decode(element, raw, at)
            values.append(value)
        return Array(values), ends
    for _ in range(count):
        value, at = decode(raw, at)
        values.append(value)
    if at != len(raw):
        raise ValueError(f"{count} values take {at} of {len(raw)} bytes")
    if constructor & 0xEF == 0xC0:
        return values, ends
    if constructor & 0xEF == 0xC1:
        return dict(zip(values[::2], values[1::2], strict=True)), ends
    raise ValueError(f"no type 0x{constructor:02x}")


# The fields of performatives, by code.
FIELDS = {
    0x10: "container_id hostname max_frame_size channel_max idle_time_out outgoing_locales incoming_locales "
    "offered_capabilities desired_capabilities properties",
    0x11: "remote_channel next_outgoing_id incoming_window outgoing_window handle_max "
    "offered_capabilities desired_capabilities properties",
    0x12: "name handle role snd_settle_mode rcv_settle_mode source target unsettled incomplete_unsettled "
    "initial_delivery_count max_message_size offered_capabilities desired_capabilities properties",
    0x13: "next_incoming_id incoming_window next_outgoing_id outgoing_window handle delivery_count link_credit "
    "available drain echo properties",
    0x14: "handle delivery_id delivery_tag message_format settled more rcv_settle_mode state resume aborted batchable",
    0x15: "role first last settled state batchable",
    0x16: "handle closed error",
    0x17: "error",
    0x18: "error",
    0x40: "mechanisms",
    0x41: "mechanism initial_response hostname",
    0x42: "challenge",
    0x43: "response",
    0x44: "code additional_data",
}
# RabbitMQ's properties in its open.
RABBITMQ = {Symbol("product"): "RabbitMQ"}
NAMES = {
    "open": 0x10,
    "begin": 0x11,
    "attach": 0x12,
    "flow": 0x13,
    "transfer": 0x14,
    "disposition": 0x15,
    "detach": 0x16,
    "end": 0x17,
    "close": 0x18,
    "sasl_mechanisms": 0x40,
    "sasl_init": 0x41,
    "sasl_challenge": 0x42,
    "sasl_response": 0x43,
    "sasl_outcome": 0x44,
}
_BY_CODE = {code: name for name, code in NAMES.items()}
_UINTS = (
    "max_frame_size idle_time_out next_outgoing_id incoming_window outgoing_window handle_max handle "
    "initial_delivery_count next_incoming_id delivery_count link_credit available delivery_id message_format first last"
)
_TYPES: dict[str, type] = {
    **dict.fromkeys(_UINTS.split(), UInt),
    **dict.fromkeys(["channel_max", "remote_channel"], UShort),
    **dict.fromkeys(["snd_settle_mode", "rcv_settle_mode", "code"], UByte),
    "max_message_size": ULong,
    "mechanism": Symbol,
}


def performative(name: str, /, **fields: Any) -> bytes:
    """Encode a performative. Numbers take the type of their field."""
    code = NAMES[name]
    names = FIELDS[code].split()
    values: list[Any] = []
    for each in names:
        value = fields.pop(each, None)
        if each in _TYPES and isinstance(value, int | str) and not isinstance(value, bool):
            value = _TYPES[each](value)
        values.append(value)
    if fields:
        raise TypeError(f"{name} has no {list(fields)}")
    while values and values[-1] is None:
        values.pop()
    return encode(Described(ULong(code), values))


def frame(channel: int, body: bytes, payload: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body) + len(payload), 2, kind, channel) + body + payload


def say(channel: int, name: str, payload: bytes = b"", /, **fields: Any) -> bytes:
    return frame(channel, performative(name, **fields), payload, kind=1 if name.startswith("sasl_") else 0)


@dataclass
class Said:
    """A decoded frame."""

    channel: int
    name: str
    fields: dict[str, Any]
    payload: bytes
    data: bytes = field(repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.fields.get(name)


def read(data: bytes) -> tuple[list[Said], bytes]:
    said = []
    at = 0
    while len(data) - at >= 8:
        size, doff, _, channel = struct.unpack_from(">IBBH", data, at)
        if size < 8 or doff < 2 or doff * 4 > size:
            raise ValueError(f"a frame of {size} bytes with a header of {doff} words")
        if len(data) - at < size:
            break
        raw = data[at : at + size]
        said.append(_said(channel, raw, doff * 4))
        at += size
    return said, data[at:]


def _said(channel: int, raw: bytes, begins: int) -> Said:
    if begins == len(raw):
        return Said(channel, "", {}, b"", raw)
    body, ends = decode(raw, begins)
    if not isinstance(body, Described) or not isinstance(body.value, list):
        raise TypeError(f"no performative: {body!r}")
    code = int(body.descriptor)
    names = FIELDS[code].split()
    if len(body.value) > len(names):
        raise ValueError(f"{_BY_CODE[code]} with {len(body.value)} fields")
    fields = {name: value for name, value in zip(names, body.value, strict=False) if value is not None}
    return Said(channel, _BY_CODE[code], fields, raw[ends:], raw)


def message(
    body: bytes = b"",
    *,
    to: str | None = None,
    subject: str | None = None,
    annotations: dict[Any, Any] | None = None,
    application: dict[str, Any] | None = None,
    durable: bool = False,
) -> bytes:
    sections: list[Described] = []
    if durable:
        sections.append(Described(ULong(0x70), [True]))
    if annotations is not None:
        sections.append(Described(ULong(0x72), annotations))
    if to is not None or subject is not None:
        sections.append(Described(ULong(0x73), [None, None, to, *([] if subject is None else [subject])]))
    if application is not None:
        sections.append(Described(ULong(0x74), application))
    sections.append(Described(ULong(0x75), body))
    return b"".join(map(encode, sections))


def in_chunks(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]
