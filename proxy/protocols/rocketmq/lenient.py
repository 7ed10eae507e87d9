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
from collections.abc import Iterator, Mapping
from typing import Final

from proxy.protocols.rocketmq.codes import (
    FLAG_RESPONSE,
    LANGUAGE_CODES,
    LANGUAGES,
    LIMITABLE,
    MAX_NAME_CHARS,
    SEND_V1_FIELDS,
    SEND_V2_FIELDS,
)
from proxy.protocols.rocketmq.reading import LENIENT, REPLACEMENT, UNPARSABLE, Header, charge

#: Longer headers are not read here: this is Python, token by token, on the data path.
MAX_JSON_BYTES: Final = 65_536
#: More tokens than this, four to a field, are not read here for the same reason.
MAX_TOKENS: Final = 1024
_MAX_DEPTH: Final = 16
_MAX_NAME_BYTES: Final = 128


class _UnsureError(Exception):
    """The broker refuses it too, or may read it differently."""


class _Number(bytes):
    """A number as it is spelled."""

    __slots__ = ()


class _Word(bytes):
    """A name without quotes, or true, false or null."""

    __slots__ = ()


class _String(bytes):
    """What stands between a string's quotes."""

    __slots__ = ()

    def text(self) -> str:
        """Return the string itself; bytes that are not UTF-8 are replaced."""
        text = self.decode(errors="replace")
        return _ESCAPE.sub(_unescape, text) if "\\" in text else text


class _Nested:
    """An array or an object that was skipped."""

    __slots__ = ()


_NESTED: Final = _Nested()

_Token = _String | _Number | _Word | int
_Value = _String | _Number | bool | _Nested | None
_Fields = Mapping[str, _Value]

# --- Tokens ---------------------------------------------------------------------------------------

# The broker's strings end where these do, whether they are UTF-8 or not: a lead byte takes its share of bytes
# along, a quote among them. A continuation byte without a lead byte is an error there.
_STRING: Final = (
    rb"%(quote)b((?:[^%(quote)b\\\x80-\xff]"
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
)
#: By the number of the group that matched.
_TYPES: Final = (_Word, _String, _String, _Number, _Word)
_MARK: Final = len(_TYPES)
_OPEN, _CLOSE, _OPEN_ARRAY, _CLOSE_ARRAY, _COLON, _COMMA = b"{}[]:,"
_END: Final = re.compile(rb"[ \t\n\r\f\b\0]*+\Z")
_LITERALS: Final[Mapping[bytes, bool | None]] = {b"true": True, b"false": False, b"null": None}

_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _unescape(match: re.Match[str]) -> str:
    unicode, latin, single = match.groups()
    if single is not None:
        return _ESCAPES.get(single, single)
    return chr(int(unicode or latin, 16))


def _split(data: bytes) -> list[_Token]:
    """Return the tokens of a header; braces, brackets, colons and commas are numbers."""
    tokens: list[_Token] = []
    end = 0
    for match in _TOKEN.finditer(data):
        if match.start() != end:
            raise _UnsureError
        end = match.end()
        kind = match.lastindex or 0
        text = match[kind]
        tokens.append(text[0] if kind == _MARK else _TYPES[kind](text))
        if len(tokens) > MAX_TOKENS:
            raise _UnsureError
    if _END.match(data, end) is None:
        raise _UnsureError
    return tokens


class _Parser:
    """Takes the tokens of one header one after another.

    Attributes:
        is_utf8: all of the header is.
    """

    __slots__ = ("_at", "_tokens", "is_utf8")

    def __init__(self, data: bytes) -> None:
        self._tokens = _split(data)
        self._at = 0
        try:
            data.decode()
        except UnicodeDecodeError:
            self.is_utf8 = False
        else:
            self.is_utf8 = True

    def next(self) -> _Token:
        """Return the next token, which stays."""
        if self._at >= len(self._tokens):
            raise _UnsureError
        return self._tokens[self._at]

    def skip(self, mark: int) -> bool:
        """Step over ``mark`` if it comes next."""
        if self.next() != mark:
            return False
        self._at += 1
        return True

    def expect(self, mark: int) -> None:
        """Step over ``mark``, which must come next."""
        if not self.skip(mark):
            raise _UnsureError

    def end(self) -> None:
        """Make sure that nothing is left."""
        if self._at < len(self._tokens):
            raise _UnsureError

    def members(self) -> Iterator[str]:
        """Read an object; after each name the caller reads the value. One trailing comma is allowed."""
        self.expect(_OPEN)
        while not self.skip(_CLOSE):
            yield self._name()
            if self.next() != _CLOSE:
                self.expect(_COMMA)  # the broker goes on without a comma here and there

    def _name(self) -> str:
        r"""Read a member's name and the colon behind it.

        A name with a NUL in it is left alone: the broker packs short names into a number and forgets their
        length, so that it takes ``"code\u0000"`` for ``"code"``.
        """
        token = self.next()
        self._at += 1
        if isinstance(token, _String) and len(token) <= _MAX_NAME_BYTES:
            name = token.text()
        elif isinstance(token, _Word):
            name = token.decode()  # 5.5.0 refuses bare names, brokers with an older JSON library read them
        else:
            raise _UnsureError
        if "\0" in name:
            raise _UnsureError
        self.expect(_COLON)
        return name

    def value(self, depth: int = 0) -> _Value:
        """Read a value; an array or object is only checked and skipped."""
        token = self.next()
        if token in (_OPEN, _OPEN_ARRAY):
            self._skip_nested(depth + 1)
            return _NESTED
        self._at += 1
        if isinstance(token, _Word) and token in _LITERALS:
            return _LITERALS[token]
        if isinstance(token, _String | _Number):
            return token
        raise _UnsureError

    def _skip_nested(self, depth: int) -> None:
        if depth > _MAX_DEPTH or not self.is_utf8:
            raise _UnsureError
        closing = _CLOSE if self.skip(_OPEN) else _CLOSE_ARRAY
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
    and the like for ``code``.
    """
    if len(name) > _MAX_UNKNOWN_CHARS or not name.isprintable():
        raise _UnsureError
    folded = name.lower().replace("_", "").replace("-", "")
    if folded in _FOLDED_KEYS or not _KEY_HASHES.isdisjoint(_hashes(name)):
        raise _UnsureError


# --- The header -----------------------------------------------------------------------------------

_REFERENCE: Final = re.compile(rb"[\"']\$ref[\"']")


def read_json(header: bytes) -> Header:
    """Read a JSON header as the broker does, or return UNPARSABLE."""
    # A reference lets the broker put one part of the header in another's place when all is read.
    if len(header) > MAX_JSON_BYTES or _REFERENCE.search(header):
        return UNPARSABLE
    try:
        return _interpret(_Parser(header))
    except _UnsureError:
        return UNPARSABLE


def _interpret(parser: _Parser) -> Header:
    top: dict[str, _Value] = {}
    ext: dict[str, _Value] = {}
    for name in parser.members():
        if name == "extFields":
            ext = _read_ext_fields(parser)
        elif name in _KEYS:
            top[name] = parser.value()
        elif parser.is_utf8:
            _check_unknown(name)
            parser.value()
        else:
            raise _UnsureError  # the broker ends a string that it skips elsewhere than one that it reads
    parser.end()
    # A request without a number gets one from the broker; no client could match the answer anyway.
    header = Header("", "", _integer(top.get("code")), _integer(top.get("opaque")), _integer(top.get("flag")))
    header.version = _integer(top.get("version"))
    header.language = _language(top["language"]) if "language" in top else LANGUAGES[0]
    header.reading = LENIENT
    return _charge(header, ext)


def _read_ext_fields(parser: _Parser) -> dict[str, _Value]:
    if parser.next() == _OPEN:
        return {name: parser.value() for name in parser.members()}
    if parser.value() not in (None, b""):
        raise _UnsureError
    return {}


#: More digits behind the point are not plausible, and from some number on they make a difference.
_INTEGER: Final = re.compile(r"([+-]?[0-9]{1,12})(?:\.[0-9]{0,5})?", re.ASCII)
_WORDS: Final = {"": 0, "null": 0, "false": 0, "true": 1}


def _integer(value: _Value) -> int:
    """Return what the broker makes of a value where an i32 belongs; fractions lose their fraction."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, _Nested):
        raise _UnsureError
    spelled = value.text() if isinstance(value, _String) else value.decode()
    if spelled in _WORDS:
        return _WORDS[spelled]
    match = _INTEGER.fullmatch(spelled)
    if match is None:
        raise _UnsureError
    integer = int(match[1])
    if not -(2**31) <= integer < 2**31:
        raise _UnsureError
    return integer


def _language(value: _Value) -> str:
    if isinstance(value, _String):
        name = value.text()
        return name if name.upper() in LANGUAGE_CODES else ""
    if isinstance(value, _Number) and value.isdigit() and int(value) < len(LANGUAGES):
        return LANGUAGES[int(value)]
    return ""


#: A resource's name with every character escaped.
_MAX_SPELLED_BYTES: Final = 6 * MAX_NAME_CHARS
_PLAIN_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)")


def _text(value: _Value) -> str | None:
    """Return the string that the broker makes of a value in ``extFields``."""
    if value is None:
        return None
    if isinstance(value, _String):
        if len(value) > _MAX_SPELLED_BYTES:
            raise _UnsureError
        return value.text()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Number) and _PLAIN_INTEGER.fullmatch(value):
        return value.decode()
    raise _UnsureError


def _charge(header: Header, ext: _Fields) -> Header:
    """Fill in the resource, if the header has one."""
    fields = None if header.flag & FLAG_RESPONSE else LIMITABLE.get(header.code)
    if fields is None:
        return header
    value = _text(ext.get(fields.resource))
    if value is None and fields is SEND_V2_FIELDS:
        value = _text(ext.get(SEND_V1_FIELDS.resource))  # the current broker refuses such a send; others may not
    if value is None:
        return header
    if len(value) > MAX_NAME_CHARS or REPLACEMENT in value:
        raise _UnsureError
    group = ext.get(fields.producer_group) if fields.producer_group else None
    batch = ext.get(fields.batch) if fields.batch else None
    if batch is _NESTED:
        raise _UnsureError  # the broker takes ["true"] for "true"
    return charge(
        header,
        fields,
        value,
        group.text() if isinstance(group, _String) else None,
        "true" if batch is True else batch.text() if isinstance(batch, _String) else None,
    )
