"""The reading of a binary header: only what deciding needs, exactly as the broker reads it.

There is one reading and a shorter way to the same for what the Java client writes. Whole commands are decoded
in ``command``, not here.
"""

import re
import struct
from collections.abc import Mapping
from typing import Final

from proxy.protocols.rocketmq.wire.codes import (
    FLAG_RESPONSE,
    LANGUAGES,
    LIMITABLE,
    LIMITABLE_OR_CONSUMING,
    MAX_NAME_CHARS,
    PLAIN_SYS_FLAGS,
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
#: More fields than this are not read: it is Python, field by field, on the data path, half a microsecond for each.
#: Clients write some twenty.
MAX_FIELDS: Final = 128


class _UnreadableError(Exception):
    """The broker cannot read it either, or it is more than we want to read."""


def read_binary(header: bytes, *, subscriptions: bool = False) -> Header:
    """Return what the broker reads, or UNPARSABLE where it fails.

    Args:
        header: exactly the frame's header bytes.
        subscriptions: whether requests that consume are limitable.
    """
    send = read_java_send(header)
    if send is None:
        return _read_any(header, LIMITABLE_OR_CONSUMING if subscriptions else LIMITABLE)
    code, language_code, version, opaque, flag, name, group = send
    language = LANGUAGES[language_code] if language_code < len(LANGUAGES) else ""
    return charge(Header("", "", code, opaque, flag, "", False, version, language), SEND_V2_FIELDS, name, group, None)


def _read_any(header: bytes, limitable: Mapping[int, KeyFields]) -> Header:
    """Read field by field; of fields with the same name the last wins.

    The broker may read past the header's end into the body, but then it misses those bytes at the body's end
    and fails; so the header's end is the end here.
    """
    try:
        return _walk(header, limitable)
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
    end = at + ext_bytes  # the last field begins before; it may end later
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
        answer.reading = LENIENT  # the broker counts what is left of the header to the body
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
    charge(answer, fields, name, group, _text(ext, fields.batch), sys_flag=_text(ext, fields.sys_flag))
    if answer.is_batch and at != size:
        raise _UnreadableError  # whatever its messages are, they are not what the frame's body holds
    return answer


def _text(ext: Mapping[bytes, bytes], name: str | None) -> str | None:
    """Return the text of a field; an empty one is None, as the broker has it."""
    value = ext.get(name.encode()) if name is not None else None
    return value.decode(errors="replace") if value else None


# --- The shorter way ------------------------------------------------------------------------------

# Code, language, version, opaque, flag, length of the remark and of extFields, first key, length of its value.
_JAVA_START = struct.Struct(">hBhiiii3si")
_java_start_at = _JAVA_START.unpack_from
_JAVA_START_BYTES: Final = _JAVA_START.size
_EXT_AT: Final = _FIXED.size + 4
_key_at = struct.Struct(">3si").unpack_from
#: Keys of one letter as they stand in front of a value's length: their own i16 length and themselves.
_KEY_A: Final = b"\0\1a"
_KEY_B: Final = b"\0\1b"
#: A key that makes a difference: another group or topic, or a batch flag that is not spelled false, or a message that
#: needs a closer look.
_find_other_key: Final = re.compile(
    rb"\x00\x01(?:[ab]|m(?!\x00\x00\x00\x05false)|f(?!%b))"
    % b"|".join(struct.pack(">i", len(flag)) + flag.encode() for flag in PLAIN_SYS_FLAGS)
).search
_V2_CODES: Final = frozenset(code for code, fields in LIMITABLE.items() if fields is SEND_V2_FIELDS)


JavaSend = tuple[int, int, int, int, int, str, str]
"""Request code, number of the language, version, opaque, flag; the topic as it is written, and the producer group."""


def read_java_send(header: bytes) -> JavaSend | None:
    """Read a send that is no batch, laid out as the Java client does: producer group first, topic second.

    Returns None where the header is another or may be read otherwise. Walking over all fields would take three
    times as long. It is not needed: the key of a second topic, which would win, is the three bytes ``_KEY_B``
    wherever fields begin and end, so where they do not occur there is none; and likewise for the batch flag.
    """
    size = len(header)
    if size < _JAVA_START_BYTES:
        return None
    code, language_code, version, opaque, flag, remark_bytes, ext_bytes, key, group_bytes = _java_start_at(header)
    group_end = _JAVA_START_BYTES + group_bytes
    start = group_end + 7
    if (
        code not in _V2_CODES
        or key != _KEY_A
        or flag & FLAG_RESPONSE
        or remark_bytes
        or ext_bytes != size - _EXT_AT
        or not 0 < group_bytes <= MAX_NAME_CHARS
        or size < start
    ):
        return None
    key, topic_bytes = _key_at(header, group_end)
    end = start + topic_bytes
    if key != _KEY_B or not 0 < topic_bytes <= MAX_NAME_CHARS or size < end or _find_other_key(header, end):
        return None
    try:
        name = header[start:end].decode()
        group = header[_JAVA_START_BYTES:group_end].decode()
    except UnicodeDecodeError:
        return None
    return code, language_code, version, opaque, flag, name, group


def read_answer_binary(header: bytes | memoryview) -> tuple[int, int, int]:
    """Return code, opaque and flag of a header that came from the broker.

    Raises:
        struct.error: it is too short.
    """
    code, _, _, opaque, flag, _ = _fixed_at(header)
    return code, opaque, flag
