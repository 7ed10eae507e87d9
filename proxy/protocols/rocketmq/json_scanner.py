"""The tokens and values of a JSON header, told apart as the broker's JSON library does.

What a header means is the business of ``lenient``, which this module serves; it raises UnsureError wherever the
broker is not sure to read the same.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

#: More tokens than this, four to a field, are not read: this is Python, token by token, on the data path.
MAX_TOKENS: Final = 1024
_MAX_DEPTH: Final = 16
_MAX_NAME_BYTES: Final = 128


class UnsureError(Exception):
    """The broker refuses it too, or may read it differently."""


class Number(bytes):
    """A number as it is spelled."""

    __slots__ = ()


class _Word(bytes):
    """A name without quotes, or true, false or null."""

    __slots__ = ()


class String(bytes):
    """What stands between a string's quotes."""

    __slots__ = ()

    def text(self) -> str:
        """Return the string itself, which can always be written as UTF-8.

        Bytes that are not UTF-8 are replaced, and so are surrogates that are escaped without their other half.
        """
        text = self.decode(errors="replace")
        if "\\" not in text:
            return text
        text = _ESCAPE.sub(_unescape, text)
        if _SURROGATE.search(text) is None:
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Nested:
    """An array or an object that was skipped."""

    __slots__ = ()


NESTED: Final = Nested()

_Token = String | Number | _Word | int
Value = String | Number | bool | Nested | None

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
_TYPES: Final = (_Word, String, String, Number, _Word)
_MARK: Final = len(_TYPES)
OPEN, _CLOSE, _OPEN_ARRAY, _CLOSE_ARRAY, _COLON, _COMMA = b"{}[]:,"
_END: Final = re.compile(rb"[ \t\n\r\f\b\0]*+\Z")
_LITERALS: Final[Mapping[bytes, bool | None]] = {b"true": True, b"false": False, b"null": None}

_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
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
            raise UnsureError
        end = match.end()
        kind = match.lastindex or 0
        text = match[kind]
        tokens.append(text[0] if kind == _MARK else _TYPES[kind](text))
        if len(tokens) > MAX_TOKENS:
            raise UnsureError
    if _END.match(data, end) is None:
        raise UnsureError
    return tokens


class Parser:
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
            raise UnsureError
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
            raise UnsureError

    def end(self) -> None:
        """Make sure that nothing is left."""
        if self._at < len(self._tokens):
            raise UnsureError

    def members(self) -> Iterator[str]:
        """Read an object; after each name the caller reads the value. One trailing comma is allowed."""
        self.expect(OPEN)
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
        if isinstance(token, String) and len(token) <= _MAX_NAME_BYTES:
            name = token.text()
        elif isinstance(token, _Word):
            name = token.decode()  # 5.5.0 refuses bare names, brokers with an older JSON library read them
        else:
            raise UnsureError
        if "\0" in name:
            raise UnsureError
        self.expect(_COLON)
        return name

    def value(self, depth: int = 0) -> Value:
        """Read a value; an array or object is only checked and skipped."""
        token = self.next()
        if token in (OPEN, _OPEN_ARRAY):
            self._skip_nested(depth + 1)
            return NESTED
        self._at += 1
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
