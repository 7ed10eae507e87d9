"""Marks a send that an earlier process of Sluice may have sent already: adds the property ``SLUICE_REPLAYED=true``.

Consumers can tell possible duplicates by it. Some requests cannot be marked and stay as they are: a send-back has no
properties, a signed send (ACL) would lose its signature, and unusual encodings are left alone.
"""

import struct
from typing import Any, Final

import msgspec

from proxy.protocols.rocketmq.wire.codes import (
    HEADER_BINARY,
    HEADER_JSON,
    MAX_FRAME_BYTES,
    PREFIX_BYTES,
    SEND_V1_FIELDS,
    SEND_V2_FIELDS,
    SENDS,
    KeyFields,
)
from proxy.protocols.rocketmq.wire.frame import HEADER_LENGTH, prefix_at

PROPERTY: Final = "SLUICE_REPLAYED"
# Between a property's name and its value, and between two properties.
_OF: Final = "\x01"
_NEXT: Final = "\x02"
# The field of a message's properties.
_PROPERTIES_AT: Final[dict[KeyFields, str]] = {SEND_V1_FIELDS: "properties", SEND_V2_FIELDS: "i"}
# A request with this field is signed.
_SIGNATURE: Final = "Signature"
_MAX_PROPERTIES_BYTES: Final = 32_767

_prefix = struct.Struct(">iI").pack
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
# A binary header: code, language, version, opaque, flag, length of the remark.
_BINARY: Final = struct.Struct(">hBhiii")
# A message of a batch: totalSize, magic, crc, flag, length of the body.
_MESSAGE: Final = struct.Struct(">iiiii")


def mark_replayed(frame: bytes) -> bytes:
    """Return a whole frame with the property, or unchanged if it cannot have one."""
    word: int = prefix_at(frame)[1]
    header_type, body_at = word >> 24, PREFIX_BYTES + (word & HEADER_LENGTH)
    header, body = frame[PREFIX_BYTES:body_at], frame[body_at:]
    try:
        if header_type == HEADER_JSON:
            header, is_batch = _mark_json(header)
        elif header_type == HEADER_BINARY:
            header, is_batch = _mark_binary(header)
        else:
            return frame
        if is_batch:
            body = _mark_batch(body)
    except (msgspec.DecodeError, struct.error, UnicodeDecodeError, _UnmarkedError, RecursionError):
        return frame
    length = 4 + len(header) + len(body)
    if 4 + length > MAX_FRAME_BYTES:
        return frame
    return _prefix(length, header_type << 24 | len(header)) + header + body


class _UnmarkedError(Exception):
    """It goes as it is."""


def _mark_json(header: bytes) -> tuple[bytes, bool]:
    raw: Any = msgspec.json.decode(header)
    fields = raw.get("extFields") if isinstance(raw, dict) else None
    if not isinstance(fields, dict) or _SIGNATURE in fields:
        raise _UnmarkedError
    names, at = _places(raw.get("code"))
    fields[at] = _mark(fields.get(at) or "")
    return msgspec.json.encode(raw), _is_true(fields.get(names.batch or ""))


def _mark_binary(header: bytes) -> tuple[bytes, bool]:
    code, *_, remark_bytes = _BINARY.unpack_from(header)
    names, wanted = _places(code)
    start = at = _BINARY.size + remark_bytes + _I32.size
    values: dict[str, tuple[int, int]] = {}
    while at < len(header):
        value_at = at + _I16.size + _I16.unpack_from(header, at)[0]
        name = header[at + _I16.size : value_at].decode()
        begin = value_at + _I32.size
        end = begin + _I32.unpack_from(header, value_at)[0]
        if not value_at <= begin <= end <= len(header) or value_at < at:
            raise _UnmarkedError
        values[name] = (begin, end)
        at = end
    if _SIGNATURE in values:
        raise _UnmarkedError
    begin, end = values.get(wanted, (at, at))
    marked = _mark(header[begin:end].decode()).encode()
    if wanted in values:
        fields = header[start : begin - _I32.size] + _I32.pack(len(marked)) + marked + header[end:]
    else:
        name_bytes = wanted.encode()
        fields = header[start:] + _I16.pack(len(name_bytes)) + name_bytes + _I32.pack(len(marked)) + marked
    batch = values.get(names.batch or "", (0, 0))
    return (
        header[: start - _I32.size] + _I32.pack(len(fields)) + fields,
        _is_true(header[batch[0] : batch[1]].decode()),
    )


def _places(code: object) -> tuple[KeyFields, str]:
    names = SENDS.get(code) if isinstance(code, int) else None
    at = None if names is None else _PROPERTIES_AT.get(names)
    if names is None or at is None:
        raise _UnmarkedError
    return names, at


def _mark_batch(body: bytes) -> bytes:
    marked: list[bytes] = []
    at = 0
    while at < len(body):
        total, magic, crc, flag, body_bytes = _MESSAGE.unpack_from(body, at)
        properties_at = at + _MESSAGE.size + body_bytes
        (length,) = _I16.unpack_from(body, properties_at)
        end = properties_at + _I16.size + length
        if body_bytes < 0 or length < 0 or end != at + total or end > len(body):
            raise _UnmarkedError
        properties = _mark(body[end - length : end].decode()).encode()
        head = _MESSAGE.pack(total - length + len(properties), magic, crc, flag, body_bytes)
        marked += head, body[at + _MESSAGE.size : properties_at], _I16.pack(len(properties)), properties
        at = end
    return b"".join(marked)


def _mark(properties: object) -> str:
    if not isinstance(properties, str):
        raise _UnmarkedError
    if any(each.startswith(PROPERTY + _OF) for each in properties.split(_NEXT)):
        return properties
    # Some clients end the last property, too.
    ends = not properties or properties.endswith(_NEXT)
    added = f"{properties}{'' if ends else _NEXT}{PROPERTY}{_OF}true{_NEXT if ends else ''}"
    if len(added.encode()) > _MAX_PROPERTIES_BYTES:
        raise _UnmarkedError
    return added


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"
