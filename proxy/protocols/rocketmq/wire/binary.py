"""Reads of a binary header what deciding needs, exactly as the broker reads it; ``command`` decodes whole commands."""

import struct
from collections.abc import Mapping
from typing import Final

from proxy.protocols.rocketmq.wire.codes import (
    FLAG_RESPONSE,
    LANGUAGES,
    LIMITABLE,
    LIMITABLE_OR_CONSUMING,
    MAX_NAME_CHARS,
    SEND_V1_FIELDS,
    SEND_V2_FIELDS,
    SUBSCRIPTION_FIELDS,
    KeyFields,
)
from proxy.protocols.rocketmq.wire.reading import LENIENT, REPLACEMENT, UNPARSABLE, Header, charge

_FIXED = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_fixed_at = _FIXED.unpack_from
_i32_at = struct.Struct(">i").unpack_from
_i16_at = struct.Struct(">h").unpack_from
# More fields are not read: each takes half a microsecond. Clients write some twenty.
MAX_FIELDS: Final = 128


class _UnreadableError(Exception):
    """The broker cannot read it either, or it is longer than we read."""


def read_binary(header: bytes, *, subscriptions: bool = False) -> Header:
    """Return what the broker reads, or UNPARSABLE where it fails.

    The broker may read past the header's end into the body, but then fails at the body's end; so the header's end is
    the end here. Of fields with the same name the last wins. With ``subscriptions``, requests that consume are
    limitable.
    """
    try:
        return _walk(header, LIMITABLE_OR_CONSUMING if subscriptions else LIMITABLE)
    except (_UnreadableError, struct.error):
        return UNPARSABLE


def _walk(header: bytes, limitable: Mapping[int, KeyFields]) -> Header:
    size = len(header)
    code, language_code, version, opaque, flag, remark_bytes = _fixed_at(header)
    if remark_bytes < 0:
        raise _UnreadableError
    at = _FIXED.size + remark_bytes
    (ext_bytes,) = _i32_at(header, at)
    at += 4
    language = LANGUAGES[language_code] if language_code < len(LANGUAGES) else ""
    answer = Header("", "", code, opaque, flag, "", False, version, language)
    fields = None if flag & FLAG_RESPONSE else limitable.get(code)
    if fields is None:
        return answer
    ext: dict[bytes, bytes] = {}
    end = at + ext_bytes  # the last field begins before this and may end later
    left = MAX_FIELDS
    while at < end:
        if not left:
            raise _UnreadableError
        left -= 1
        (key_bytes,) = _i16_at(header, at)
        value_at = at + 2 + key_bytes
        key = header[at + 2 : value_at]
        (value_bytes,) = _i32_at(header, value_at)
        at = value_at + 4 + value_bytes
        value = header[value_at + 4 : at]
        if len(key) != key_bytes or len(value) != value_bytes:
            raise _UnreadableError  # cut off, or of negative length
        ext[key] = value
    if at != size:
        answer.reading = LENIENT  # the broker counts the rest of the header to the body
    name = _text(ext, fields.resource)
    if name is None and fields is SEND_V2_FIELDS:
        name = _text(ext, SEND_V1_FIELDS.resource)  # the current broker refuses such a send; others may not
        answer.reading = LENIENT
    if name is None:
        return answer
    if len(name) > MAX_NAME_CHARS or REPLACEMENT in name:
        raise _UnreadableError
    group = _text(ext, fields.producer_group)
    if fields is SUBSCRIPTION_FIELDS and group is not None and (len(group) > MAX_NAME_CHARS or REPLACEMENT in group):
        raise _UnreadableError
    charge(answer, fields, name, group, batch=_text(ext, fields.batch), sys_flag=_text(ext, fields.sys_flag))
    if answer.is_batch and at != size:
        raise _UnreadableError  # the broker stores messages that are not in the frame's body
    return answer


def _text(ext: Mapping[bytes, bytes], name: str | None) -> str | None:
    value = ext.get(name.encode()) if name is not None else None
    return value.decode(errors="replace") if value else None


def read_answer_binary(header: bytes | memoryview) -> tuple[int, int, int]:
    """Return code, opaque and flag of a header that came from the broker.

    Raises:
        struct.error: it is too short.
    """
    code, _, _, opaque, flag, _ = _fixed_at(header)
    return code, opaque, flag
