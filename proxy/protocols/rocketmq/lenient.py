"""The slow reading of a JSON header: as the broker reads what no well-behaved client writes.

The rules were found by asking the broker's own decoder (RocketMQ 5.5.0, fastjson2 2.0.59): the differential
test in ``tests/integration/oracle`` holds this module to it. What a client might plausibly write is read:
duplicate keys, escaped and single-quoted names and strings, codes as strings or fractions, nulls, numbers and
booleans in ``extFields``, unknown keys, raw control characters, text that is not UTF-8, stray trailing commas
and NULs. What only someone who plays games would write (comments, references, missing commas, numbers with
exponents or suffixes, arrays where strings belong) is answered with UNPARSABLE: it has a limit of its own, so
it is no way around one, and no second JSON library has to be imitated down to its bugs.
"""

import re
from collections.abc import Mapping
from typing import Final

from proxy.protocols.rocketmq.codes import (
    FLAG_RESPONSE,
    LANGUAGE_CODES,
    LANGUAGES,
    LIMITABLE,
    LIMITABLE_OR_CONSUMING,
    MAX_NAME_CHARS,
    SEND_V1_FIELDS,
    SEND_V2_FIELDS,
    SUBSCRIPTION_FIELDS,
    KeyFields,
)
from proxy.protocols.rocketmq.json_scanner import NESTED, OPEN, Nested, Number, Parser, String, UnsureError, Value
from proxy.protocols.rocketmq.reading import LENIENT, REPLACEMENT, UNPARSABLE, Header, charge

#: Longer headers are not read here: this is Python, token by token, on the data path.
MAX_JSON_BYTES: Final = 65_536

_Fields = Mapping[str, Value]

# --- Names of the header's own keys ---------------------------------------------------------------

#: What the broker's class can be given by JSON, whether it then uses it or not.
_KEYS: Final = (
    "code",
    "language",
    "version",
    "opaque",
    "flag",
    "remark",
    "extFields",
    "serializeTypeCurrentRPC",
    "body",
    "suspended",
    "processTimer",
    "callbackList",
)
#: Unknown keys with longer names are not worth the time that hashing them takes.
_MAX_UNKNOWN_CHARS: Final = 32
_MAX_PACKED_CHARS: Final = 8


def _hashes(name: str) -> frozenset[int]:
    """Return what the broker's JSON library may tell the name apart by.

    That is 64 bits: the FNV-1a hash, but for up to 8 characters of Latin-1 the characters themselves.
    """
    number = 0xCBF29CE484222325
    for character in name:
        number = ((number ^ ord(character)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    packed = name.encode("latin-1", "ignore")
    if len(packed) == len(name) <= _MAX_PACKED_CHARS:
        return frozenset((number, int.from_bytes(packed, "little")))
    return frozenset((number,))


_KEY_HASHES: Final = frozenset().union(*map(_hashes, _KEYS))
_FOLDED_KEYS: Final = frozenset(key.lower() for key in _KEYS)


def _check_unknown(name: str) -> None:
    """Raise unless every broker is sure to ignore a key of this name.

    The current one goes by a hash whose collisions are easily made; older ones also took ``Code``, ``co_de``
    and the like for ``code``. The hash goes over UTF-16, so a name with characters of two units is left alone,
    and so is one in which something was replaced.
    """
    if len(name) > _MAX_UNKNOWN_CHARS or not name.isprintable() or max(name, default="") >= REPLACEMENT:
        raise UnsureError
    folded = name.lower().replace("_", "").replace("-", "")
    if folded in _FOLDED_KEYS or not _KEY_HASHES.isdisjoint(_hashes(name)):
        raise UnsureError


# --- The header -----------------------------------------------------------------------------------

_REFERENCE: Final = re.compile(rb"[\"']\$ref[\"']")


def read_json(header: bytes, *, subscriptions: bool = False) -> Header:
    """Read a JSON header as the broker does, or return UNPARSABLE.

    Args:
        header: exactly the frame's header bytes.
        subscriptions: whether requests that consume are limitable.
    """
    # A reference lets the broker put one part of the header in another's place when all is read.
    if len(header) > MAX_JSON_BYTES or _REFERENCE.search(header):
        return UNPARSABLE
    try:
        return _interpret(Parser(header), LIMITABLE_OR_CONSUMING if subscriptions else LIMITABLE)
    except UnsureError:
        return UNPARSABLE


def _interpret(parser: Parser, limitable: Mapping[int, KeyFields]) -> Header:
    top: dict[str, Value] = {}
    ext: dict[str, Value] = {}
    for name in parser.members():
        if name == "extFields":
            ext = _read_ext_fields(parser)
        elif name in _KEYS:
            top[name] = parser.value()
        elif parser.is_utf8:
            _check_unknown(name)
            parser.value()
        else:
            raise UnsureError  # the broker ends a string that it skips elsewhere than one that it reads
    parser.end()
    # A request without a number gets one from the broker; no client could match the answer anyway.
    header = Header("", "", _integer(top.get("code")), _integer(top.get("opaque")), _integer(top.get("flag")))
    header.version = _integer(top.get("version"))
    header.language = _language(top["language"]) if "language" in top else LANGUAGES[0]
    header.reading = LENIENT
    return _charge(header, ext, limitable)


def _read_ext_fields(parser: Parser) -> dict[str, Value]:
    if parser.next() == OPEN:
        return {name: parser.value() for name in parser.members()}
    if parser.value() not in (None, b""):
        raise UnsureError
    return {}


#: More digits behind the point are not plausible, and from some number on they make a difference.
_INTEGER: Final = re.compile(r"([+-]?[0-9]{1,12})(?:\.[0-9]{0,5})?", re.ASCII)
_WORDS: Final = {"": 0, "null": 0, "false": 0, "true": 1}


def _integer(value: Value) -> int:
    """Return what the broker makes of a value where an i32 belongs; fractions lose their fraction."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Nested):
        raise UnsureError
    spelled = value.text() if isinstance(value, String) else value.decode()
    if spelled in _WORDS:
        return _WORDS[spelled]
    match = _INTEGER.fullmatch(spelled)
    if match is None:
        raise UnsureError
    integer = int(match[1])
    if not -(2**31) <= integer < 2**31:
        raise UnsureError
    return integer


def _language(value: Value) -> str:
    if isinstance(value, String):
        name = value.text()
        return name if name.upper() in LANGUAGE_CODES else ""
    if isinstance(value, Number) and value.isdigit() and int(value) < len(LANGUAGES):
        return LANGUAGES[int(value)]
    return ""


#: A resource's name with every character escaped.
_MAX_SPELLED_BYTES: Final = 6 * MAX_NAME_CHARS
_PLAIN_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)")


def _text(value: Value) -> str | None:
    """Return the string that the broker makes of a value in ``extFields``."""
    if value is None:
        return None
    if isinstance(value, String):
        if len(value) > _MAX_SPELLED_BYTES:
            raise UnsureError
        return value.text()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number) and _PLAIN_INTEGER.fullmatch(value):
        return value.decode()
    raise UnsureError


def _charge(header: Header, ext: _Fields, limitable: Mapping[int, KeyFields]) -> Header:
    """Fill in the resource, if the header has one."""
    fields = None if header.flag & FLAG_RESPONSE else limitable.get(header.code)
    if fields is None:
        return header
    value = _text(ext.get(fields.resource))
    if value is None and fields is SEND_V2_FIELDS:
        value = _text(ext.get(SEND_V1_FIELDS.resource))  # the current broker refuses such a send; others may not
    if value is None:
        return header
    if len(value) > MAX_NAME_CHARS or REPLACEMENT in value:
        raise UnsureError
    if fields is SUBSCRIPTION_FIELDS:
        return _subscribe(header, fields, value, _text(ext.get(fields.producer_group or "")))
    group = ext.get(fields.producer_group) if fields.producer_group else None
    batch = ext.get(fields.batch) if fields.batch else None
    if batch is NESTED:
        raise UnsureError  # the broker takes ["true"] for "true"
    return charge(
        header,
        fields,
        value,
        group.text() if isinstance(group, String) else None,
        "true" if batch is True else batch.text() if isinstance(batch, String) else None,
    )


def _subscribe(header: Header, fields: KeyFields, topic: str, group: str | None) -> Header:
    """Fill in the subscription, of which the group is a part."""
    if group is not None and (len(group) > MAX_NAME_CHARS or REPLACEMENT in group):
        raise UnsureError
    return charge(header, fields, topic, group, None)
