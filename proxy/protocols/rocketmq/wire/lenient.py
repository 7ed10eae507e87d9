"""The slow parser for JSON headers. It reads unusual headers as the broker does.

Its rules come from the broker's decoder (RocketMQ 5.5.0, fastjson2 2.0.59). The differential test in
``tests/integration/oracle`` compares the two. The parser accepts oddities that clients might send, such as duplicate
keys, escaped names, codes as strings, raw control characters and invalid UTF-8. Headers with other oddities, such as
comments, references and missing commas, are UNPARSABLE, so they cannot bypass a limit. So are headers that take too
long to parse.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from proxy.protocols.rocketmq.wire.codes import (
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
from proxy.protocols.rocketmq.wire.frame import LENIENT, REPLACEMENT, UNPARSABLE, Header, charge

# Each token is a step of about a microsecond, so a field takes four steps. A usual send takes a third of this.
MAX_STEPS: Final = 256
_MAX_DEPTH: Final = 16
_MAX_NAME_BYTES: Final = 128


class UnsureError(Exception):
    """The broker refuses the header, or may read it differently."""


class Number(bytes):
    __slots__ = ()


class _Word(bytes):
    __slots__ = ()


class String(bytes):
    __slots__ = ()

    def text(self) -> str:
        """Decode the string. The result can always be encoded as UTF-8."""
        text = self.decode(errors="replace")
        if "\\" not in text:
            return text
        text = _ESCAPE.sub(_unescape, text)
        if _SURROGATE.search(text) is None:
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Nested:
    __slots__ = ()


NESTED: Final = Nested()

_Token = String | Number | _Word | int
Value = String | Number | bool | Nested | None


# Strings end where the broker ends them. A UTF-8 lead byte can be followed by any bytes, even a quote. No pattern
# backtracks, so matching takes linear time.
_STRING: Final = (
    rb"%(quote)b((?:[^%(quote)b\\\x80-\xff]++"
    rb"|\\(?:[\"'\\/bfnrt]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})"
    rb"|[\xc0-\xdf].|[\xe0-\xef]..|[\xf0-\xf7]...)*+)%(quote)b"
)
_TOKEN: Final = re.compile(
    rb"[ \t\n\r\f\b]*+(?:%b|%b|%b|%b|%b)"
    % (
        _STRING % {b"quote": b'"'},
        _STRING % {b"quote": b"'"},
        rb"([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++))",
        rb"([A-Za-z_][A-Za-z0-9_]*+)",
        rb"([{}\[\]:,])",
    ),
    re.DOTALL,
).match
_TYPES: Final = (_Word, String, String, Number, _Word)
_MARK: Final = len(_TYPES)
OPEN, _CLOSE, _OPEN_ARRAY, _CLOSE_ARRAY, _COLON, _COMMA = b"{}[]:,"
_END: Final = re.compile(rb"[ \t\n\r\f\b\0]*+\Z").match
_LITERALS: Final[Mapping[bytes, bool | None]] = {b"true": True, b"false": False, b"null": None}

_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _unescape(match: re.Match[str]) -> str:
    unicode, latin, single = match.groups()
    if single is not None:
        return _ESCAPES.get(single, single)
    return chr(int(unicode or latin, 16))


class Parser:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = 0
        self._steps_left = MAX_STEPS
        self._token: _Token | None = None
        self._step()
        try:
            data.decode()
        except UnicodeDecodeError:
            self.is_utf8 = False
        else:
            self.is_utf8 = True

    def spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise UnsureError

    def _step(self) -> None:
        self.spend(1)
        match = _TOKEN(self._data, self._end)
        if match is None:
            if _END(self._data, self._end) is None:
                raise UnsureError
            self._token = None
            return
        self._end = match.end()
        kind = match.lastindex or 0
        text = match[kind]
        self._token = text[0] if kind == _MARK else _TYPES[kind](text)

    def next(self) -> _Token:
        if self._token is None:
            raise UnsureError
        return self._token

    def skip(self, mark: int) -> bool:
        if self.next() != mark:
            return False
        self._step()
        return True

    def expect(self, mark: int) -> None:
        if not self.skip(mark):
            raise UnsureError

    def end(self) -> None:
        if self._token is not None:
            raise UnsureError

    def members(self) -> Iterator[str]:
        """Yield the member names of an object. The caller must read each value before the next name."""
        self.expect(OPEN)
        while not self.skip(_CLOSE):
            yield self._name()
            if self.next() != _CLOSE:
                self.expect(_COMMA)  # the broker allows some missing commas

    def _name(self) -> str:
        token = self.next()
        self._step()
        if isinstance(token, String) and len(token) <= _MAX_NAME_BYTES:
            self.spend(token.count(b"\\"))
            name = token.text()
        elif isinstance(token, _Word):
            name = token.decode()  # RocketMQ 5.5.0 refuses unquoted names, older versions accept them
        else:
            raise UnsureError
        # The broker packs a short name into a number without its length, so "code\0" equals "code".
        if "\0" in name:
            raise UnsureError
        self.expect(_COLON)
        return name

    def value(self, depth: int = 0) -> Value:
        token = self.next()
        if token in (OPEN, _OPEN_ARRAY):
            self._skip_nested(depth + 1)
            return NESTED
        self._step()
        if isinstance(token, _Word) and token in _LITERALS:
            return _LITERALS[token]
        if isinstance(token, String | Number):
            return token
        raise UnsureError

    def _skip_nested(self, depth: int) -> None:
        if depth > _MAX_DEPTH or not self.is_utf8:
            raise UnsureError
        closing = _CLOSE if self.skip(OPEN) else _CLOSE_ARRAY
        if closing == _CLOSE_ARRAY:
            self.expect(_OPEN_ARRAY)
        if self.skip(closing):
            return
        while True:
            if closing == _CLOSE:
                self._name()
            self.value(depth)
            if self.skip(closing):
                return
            self.expect(_COMMA)


# The broker's maximum for properties. Captured headers are up to half a KiB long.
MAX_JSON_BYTES: Final = 32 * 1024

_Fields = Mapping[str, Value]


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
_MAX_UNKNOWN_CHARS: Final = 32
_CHARS_PER_STEP: Final = 8  # characters hashed
_MAX_PACKED_CHARS: Final = 8


def _hashes(name: str) -> frozenset[int]:
    """Return the numbers by which fastjson may identify a name: its FNV-1a hash, and the bytes of a short name."""
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
    """Raise UnsureError unless all brokers are certain to ignore a key with this name.

    Current brokers compare hashes over UTF-16, which collide easily. Older brokers read ``Code`` and ``co_de`` as
    ``code``.
    """
    if len(name) > _MAX_UNKNOWN_CHARS or not name.isprintable() or max(name, default="") >= REPLACEMENT:
        raise UnsureError
    folded = name.lower().replace("_", "").replace("-", "")
    if folded in _FOLDED_KEYS or not _KEY_HASHES.isdisjoint(_hashes(name)):
        raise UnsureError


_REFERENCE: Final = re.compile(rb"[\"']\$ref[\"']")


def read_json(header: bytes, *, subscriptions: bool = False) -> Header:
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
            parser.spend(len(name) // _CHARS_PER_STEP)
            _check_unknown(name)
            parser.value()
        else:
            raise UnsureError  # for the broker, skipped strings may end elsewhere
    parser.end()
    # If the opaque is missing, the broker assigns one, which no client can match.
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


_MAX_SPELLED_BYTES: Final = 6 * MAX_NAME_CHARS  # all characters escaped
# With more decimals, the broker may read a different number.
_INTEGER: Final = re.compile(r"([+-]?[0-9]{1,12})(?:\.[0-9]{0,5})?", re.ASCII)
_WORDS: Final = {"": 0, "null": 0, "false": 0, "true": 1}


def _integer(value: Value) -> int:
    if value is None:
        return 0
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Nested) or len(value) > _MAX_SPELLED_BYTES:
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
    if not isinstance(value, String | Number) or len(value) > _MAX_SPELLED_BYTES:
        return ""
    if isinstance(value, String):
        name = value.text()
        return name if name.upper() in LANGUAGE_CODES else ""
    if value.isdigit() and int(value) < len(LANGUAGES):
        return LANGUAGES[int(value)]
    return ""


_PLAIN_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)")


def _text(value: Value) -> str | None:
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
    fields = None if header.flag & FLAG_RESPONSE else limitable.get(header.code)
    if fields is None:
        return header
    value = _text(ext.get(fields.resource))
    if value is None and fields is SEND_V2_FIELDS:
        value = _text(ext.get(SEND_V1_FIELDS.resource))  # the current broker refuses such a send
    if value is None:
        return header
    if len(value) > MAX_NAME_CHARS or REPLACEMENT in value:
        raise UnsureError
    if fields is SUBSCRIPTION_FIELDS:
        return _subscribe(header, fields, value, _text(ext.get(fields.producer_group or "")))
    group = ext.get(fields.producer_group) if fields.producer_group else None
    batch = ext.get(fields.batch) if fields.batch else None
    if batch is NESTED:
        raise UnsureError  # the broker reads ["true"] as "true"
    if isinstance(batch, String) and len(batch) > _MAX_SPELLED_BYTES:
        batch = None
    return charge(
        header,
        fields,
        value,
        # A character may take two escapes. The name is truncated later anyway.
        String(group[: 2 * _MAX_SPELLED_BYTES]).text() if isinstance(group, String) else None,
        batch=batch.text() if isinstance(batch, String) else batch is True,
        sys_flag=_text(ext.get(fields.sys_flag)) if fields.sys_flag else None,
    )


def _subscribe(header: Header, fields: KeyFields, topic: str, group: str | None) -> Header:
    if group is not None and (len(group) > MAX_NAME_CHARS or REPLACEMENT in group):
        raise UnsureError
    return charge(header, fields, topic, group)
