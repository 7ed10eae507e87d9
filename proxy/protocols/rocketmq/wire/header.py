"""The fast parser for request headers. It reads only the fields needed for a decision.

It accepts a header only if the broker is certain to read the same values. ``lenient`` reads all other headers. If it
cannot read a header either, the header is ``UNPARSABLE``, and Sluice closes the connection if it is subject to limits.
"""

import struct
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from proxy.protocols.rocketmq.wire import lenient
from proxy.protocols.rocketmq.wire.codes import (
    CONSUMING,
    FLAG_RESPONSE,
    HEADER_BINARY,
    HEADER_JSON,
    KIND_SUBSCRIPTION,
    LANGUAGES,
    LIMITABLE,
    LIMITABLE_OR_CONSUMING,
    MAX_NAME_CHARS,
    SEND_BACK_FIELDS,
    SEND_V1_FIELDS,
    SEND_V2_FIELDS,
    SUBSCRIPTION_FIELDS,
    KeyFields,
)
from proxy.protocols.rocketmq.wire.frame import (
    LENIENT,
    REPLACEMENT,
    STRICT,
    UNPARSABLE,
    UNPARSED,
    Header,
    charge,
    subscription_name,
)

__all__ = ["LENIENT", "STRICT", "UNPARSABLE", "UNPARSED", "Answer", "Header", "classify", "read_answer"]

# This also bounds the time, because parsing a long number takes quadratic time.
_I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _ExtFields(msgspec.Struct, gc=False):
    a: str | None = None
    b: str | None = None
    m: str | bool | None = None
    f: str | _I32 | None = None
    topic: str | None = None
    producerGroup: str | None = None  # noqa: N815 - the wire's name
    batch: str | bool | None = None
    sysFlag: str | _I32 | None = None  # noqa: N815 - the wire's name
    group: str | None = None


class _JsonHeader(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    code: _I32
    opaque: _I32
    flag: _I32 = 0
    extFields: _ExtFields | None = None  # noqa: N815 - the wire's name
    version: _I32 = 0
    language: str = ""
    remark: str | None = None
    serializeTypeCurrentRPC: str | None = None  # noqa: N815 - the wire's name


class _Subscription(msgspec.Struct, gc=False):
    topic: str | None = None
    consumerGroup: str | None = None  # noqa: N815 - the wire's name


class _ConsumingHeader(msgspec.Struct, gc=False):
    extFields: _Subscription | None = None  # noqa: N815 - the wire's name


_decode_json = msgspec.json.Decoder(_JsonHeader).decode
_decode_consuming = msgspec.json.Decoder(_ConsumingHeader).decode

_DOLLAR: Final = ord("$")


def classify(header: bytes | memoryview, header_type: int, subscriptions: bool = False) -> Header:  # noqa: FBT001, FBT002 - once a frame
    """Read the header of a client's frame. ``subscriptions`` states whether consuming requests can be limited."""
    if type(header) is not bytes:
        header = bytes(header)
    if header_type != HEADER_JSON:
        return read_binary(header, subscriptions=subscriptions) if header_type == HEADER_BINARY else UNPARSABLE
    try:
        raw = _decode_json(header)
        if not header.isascii():
            header.decode()  # msgspec does not check skipped strings, but the broker may see them end elsewhere
    except (msgspec.DecodeError, ValueError, RecursionError):
        return lenient.read_json(header, subscriptions=subscriptions)
    if _DOLLAR in header and b'"$ref"' in header:
        # The broker resolves references, which may overwrite these fields.
        return lenient.read_json(header, subscriptions=subscriptions)
    code = raw.code
    fields = LIMITABLE.get(code)
    if fields is None or raw.flag & FLAG_RESPONSE:
        if subscriptions and code in CONSUMING and not raw.flag & FLAG_RESPONSE:
            return _read_consuming(header, raw)
        return Header("", "", code, raw.opaque, raw.flag, "", False, raw.version, raw.language)
    ext = raw.extFields
    if ext is None:
        return lenient.read_json(header)
    batch: str | bool | None
    if fields is SEND_V2_FIELDS:
        name, group, batch, sys_flag = ext.b, ext.a, ext.m, ext.f
    elif fields is SEND_V1_FIELDS:
        name, group, batch, sys_flag = ext.topic, ext.producerGroup, ext.batch, ext.sysFlag
    elif fields is SEND_BACK_FIELDS:
        name, group, batch, sys_flag = ext.group, None, None, None
    else:
        name, group, batch, sys_flag = ext.producerGroup, ext.producerGroup, None, None
    if name is None or len(name) > MAX_NAME_CHARS or (group is not None and len(group) > MAX_NAME_CHARS):
        return lenient.read_json(header)
    answer = Header("", "", code, raw.opaque, raw.flag, "", False, raw.version, raw.language)
    return charge(answer, fields, name, group, batch=batch, sys_flag=sys_flag)


def _read_consuming(header: bytes, raw: _JsonHeader) -> Header:
    try:
        ext = _decode_consuming(header).extFields
    except (msgspec.DecodeError, ValueError, RecursionError):
        ext = None
    if (
        ext is None
        or ext.topic is None
        or ext.consumerGroup is None
        or len(ext.topic) > MAX_NAME_CHARS
        or len(ext.consumerGroup) > MAX_NAME_CHARS
    ):
        return lenient.read_json(header, subscriptions=True)
    name = subscription_name(ext.consumerGroup, ext.topic)
    return Header(KIND_SUBSCRIPTION, name, raw.code, raw.opaque, raw.flag, "", False, raw.version, raw.language)


class Answer(msgspec.Struct, gc=False):
    code: int
    opaque: int
    flag: int = 0


_decode_answer = msgspec.json.Decoder(Answer).decode
_OPENING_BRACE: Final = ord("{")


def read_answer(header: bytes | memoryview) -> Answer | None:
    """Read the header of an answer or request from the broker. Return None if a field of Answer is missing.

    A binary header looks like JSON only if its code is above 31 000.
    """
    try:
        if header[0] == _OPENING_BRACE:
            return _decode_answer(header)
        code, _, _, opaque, flag, _ = _fixed_at(header)
        return Answer(code, opaque, flag)
    except (msgspec.DecodeError, ValueError, RecursionError, IndexError, struct.error):
        return None


_FIXED = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_fixed_at = _FIXED.unpack_from
_i32_at = struct.Struct(">i").unpack_from
_i16_at = struct.Struct(">h").unpack_from
# Each takes half a microsecond. Clients send about 20.
MAX_FIELDS: Final = 128


class _UnreadableError(Exception):
    pass


def read_binary(header: bytes, *, subscriptions: bool = False) -> Header:
    """Read a binary header as the broker does. Return UNPARSABLE if the broker would fail.

    The broker may read past the end of the header, and fails only at the end of the body. If a name repeats, the last
    field wins.
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
    end = at + ext_bytes  # the last field starts before this and may end after it
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
            raise _UnreadableError  # truncated, or with a negative length
        ext[key] = value
    if at != size:
        answer.reading = LENIENT  # the broker reads the rest as part of the body
    name = _text(ext, fields.resource)
    if name is None and fields is SEND_V2_FIELDS:
        name = _text(ext, SEND_V1_FIELDS.resource)  # the current broker refuses such a send
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
        raise _UnreadableError  # the broker would store messages from outside the body
    return answer


def _text(ext: Mapping[bytes, bytes], name: str | None) -> str | None:
    value = ext.get(name.encode()) if name is not None else None
    return value.decode(errors="replace") if value else None
