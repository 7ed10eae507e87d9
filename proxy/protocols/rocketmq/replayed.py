"""Sets the property ``SLUICE_REPLAYED=true`` on sends that an earlier process may already have forwarded.

Send-backs and signed sends are not marked (see ``docs/what-can-be-lost.md``).
"""

import struct
from typing import Final

from proxy.protocols.rocketmq.wire.codes import SEND_V1_FIELDS, SEND_V2_FIELDS, SENDS, KeyFields, ProtocolError
from proxy.protocols.rocketmq.wire.command import decode, encode

PROPERTY: Final = "SLUICE_REPLAYED"
_OF: Final = "\x01"
_NEXT: Final = "\x02"
_PROPERTIES_AT: Final[dict[KeyFields, str]] = {SEND_V1_FIELDS: "properties", SEND_V2_FIELDS: "i"}
_SIGNATURE: Final = "Signature"
_MAX_PROPERTIES_BYTES: Final = 32_767

_I16: Final = struct.Struct(">h")
# The start of a message in a batch: totalSize, magic, crc, flag, length of the body.
_MESSAGE: Final = struct.Struct(">iiiii")


def mark_replayed(frame: bytes) -> bytes:
    """Set the property in a complete frame, or return the frame unchanged if that is impossible."""
    try:
        send = decode(frame)
        names = SENDS.get(send.code)
        at = None if names is None else _PROPERTIES_AT.get(names)
        if names is None or at is None or not (send.fields and send.language) or _SIGNATURE in send.fields:
            return frame
        send.fields = {**send.fields, at: _mark(send.fields.get(at, ""))}
        if names.batch and send.fields.get(names.batch, "").lower() == "true":
            send.body = _mark_batch(send.body)
        return encode(send)
    except (ProtocolError, struct.error, UnicodeDecodeError, _UnmarkedError):
        return frame


class _UnmarkedError(Exception):
    pass


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


def _mark(properties: str) -> str:
    if any(each.startswith(PROPERTY + _OF) for each in properties.split(_NEXT)):
        return properties
    # Some clients also terminate the last property.
    ends = not properties or properties.endswith(_NEXT)
    added = f"{properties}{'' if ends else _NEXT}{PROPERTY}{_OF}true{_NEXT if ends else ''}"
    if len(added.encode()) > _MAX_PROPERTIES_BYTES:
        raise _UnmarkedError
    return added
