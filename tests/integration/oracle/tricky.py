"""Generates headers: mostly like those of clients, with tricks mixed in, or real ones with changed bytes."""

import struct
from collections.abc import Sequence
from random import Random

_CODES = (310, 310, 310, 10, 320, 324, 325, 36, 11, 34)
_CONSUMING_CODES = (11, 11, 361, 200_050)
_KEYS = ("a", "b", "m", "topic", "producerGroup", "batch", "group")
# The broker requires these in a pull or a pop, in addition to group and topic.
_NUMBERS_OF_A_PULL = (
    *("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion"),
    *("invisibleTime", "pollTime", "bornTime", "initMode"),
)
_OTHER_KEYS = (*_KEYS, "c", "i", "n", "properties", "d", "z", "$ref", "@type", "longerthaneight", "B", "zz\u00e9")
_OTHER_MEMBERS = (
    "code",
    "opaque",
    "flag",
    "extFields",
    "version",
    "language",
    "remark",
    "serializeTypeCurrentRPC",
    "body",
    "suspended",
    "x",
    "unknownkey",
    "$ref",
    "@type",
    "type",
    "processTimer",
    "callbackList",
    "customHeader",
    "\u00e9",
    "extFieldz",
)
_SPACES = (*(" ", "\t", "\n", "\r", "\f", "\b", "  ") * 2, "\0", "/*c*/", "//c\n", "\v", "\x1a")
_ODD_TEXT = (
    *(r"\n", r"\q", r"\0", r"\u12", "\\", "\0", "\x01", "\x1a", '"', "'", r"\"", r"\'", r"\v", r"\7"),
    *(r"\u0000", r"\ud800", r"\ud83d\ude00"),
)
_VALUES = (
    *('"x"', '"T"', '"quiet"', '"T T"', '"%RETRY%g"', '"%RETRY%"', '"\u00e9"', '""', "'T'", r'"\u0054"', "T"),
    *('"true"', '"TRUE"', '"false"', '"1"', '" true"', '"tRue"', "true", "false", "TRUE", "null", "nul"),
    *("1", "0", "-7", "1.5", "+5", "007", "1e3", "12345678901234567890", "0.0", "00", "-", "undefined"),
    *("[]", "{}", '["T"]', "[true]", '["true"]', '{"b":"U"}', '[1,{"b":"U"},"x"]', '{"b":[{"b":[["x"]]}]}'),
    *('{"$ref":"$"}', "[1,]", '{"a":1,}', '{"b":"U" "m":1}', "[1 2]", "Set[1]", '"a\x01b\x02"', '"\0"', r'"a\u0001b"'),
)
_ODD_EXT = (
    *("null", '""', "[]", "{}", '"x"', "1", "true", '[{"b":"T"}]', '{"$ref":"$"}', '{"$ref":"$.extFields"}'),
    r'"{\"b\":\"U\"}"',
)


class Tricks:
    def __init__(self, random: Random, level: float, *, consuming: bool = False) -> None:
        self._random = random
        self._level = level
        self._consuming = consuming

    def header(self) -> bytes:
        random = self._random
        names = ["code", "opaque", "flag", "extFields", "version", "language"]
        if self._plays(0.5):
            names += random.choices(_OTHER_MEMBERS, k=random.randrange(4))
        if random.random() < 0.6:
            random.shuffle(names)
        if self._plays(0.1):
            names.pop()
        text = self._object([self._member(name, self._value_of(name)) for name in names])
        if self._plays(0.1):
            before = random.choice(("", " ", "\n", "\0", "\ufeff", "/**/"))
            after = random.choice(("", " ", "\n", "\0", "\0\0", ",", "x", "}", "//", "\f"))
            text = before + text + after
        return text.encode() if random.random() < 0.9 else text.encode("latin-1", "replace")

    def _plays(self, probability: float) -> bool:
        return self._random.random() < probability * self._level

    def _space(self) -> str:
        return self._random.choice(_SPACES) if self._plays(0.15) else ""

    def _object(self, members: Sequence[str]) -> str:
        text = self._space()
        for index, member in enumerate(members):
            text += self._space() + member + self._space()
            if index < len(members) - 1:
                text += self._random.choice(("", " ", ",,", ";", ":")) if self._plays(0.01) else ","
            elif self._plays(0.03):
                text += ","
        return f"{{{text}{self._space()}}}"

    def _member(self, name: str, value: str) -> str:
        quoted = self._odd_name(name) if self._plays(0.1) else f'"{name}"'
        return f"{quoted}{self._space()}:{self._space()}{value}"

    def _odd_name(self, name: str) -> str:
        return self._random.choice(
            (
                *(self._quoted(name) for _ in range(20)),
                rf'"{name}\u0000"',
                *(f'"{name}\0"', f'"\0{name}"', f'"{name} "', f'" {name}"', f'"{name.upper()}"', f'"_{name}"'),
                *(f'"{name}-"', name, f'"is{name.capitalize()}"', rf'"\{name}"', f'{name}"', f'"{name}', '""'),
            )
        )

    def _quoted(self, text: str) -> str:
        if self._plays(0.3):
            text = "".join(map(self._escaped, text))
            if self._plays(0.05):
                text += self._random.choice(_ODD_TEXT)
        quote = "'" if self._plays(0.1) else '"'
        return f"{quote}{text}{quote}"

    def _escaped(self, character: str) -> str:
        spellings = (character,) * 10 + (rf"\u{ord(character):04x}", rf"\u{ord(character):04X}")
        return self._random.choice(
            (*spellings, rf"\x{ord(character) & 0xFF:02x}" if character.isascii() else character)
        )

    def _value_of(self, name: str) -> str:
        random = self._random
        odd = self._plays(0.15)
        if name == "code":
            code = random.choice(_CONSUMING_CODES if self._consuming else _CODES)
            return self._number(code) if odd else str(code)
        if name in {"opaque", "version"}:
            return self._number(random.randrange(1, 600)) if odd else str(random.randrange(1, 9))
        if name == "flag":
            return self._number(random.randrange(3)) if odd else random.choice(("0", "0", "0", "0", "2", "1"))
        if name == "extFields":
            return random.choice(_ODD_EXT) if self._plays(0.05) else self._ext_fields()
        if name == "language" and not odd:
            return '"JAVA"'
        return random.choice(_VALUES)

    def _number(self, n: int) -> str:
        return self._random.choice(
            (
                *(f"{n}.0", f"{n}.9", f'"{n}"', f"'{n}'", f'"{n}.0"', f"+{n}", f'"+{n}"', f"0{n}", f"{n} ", f"{-n}")
                * 2,
                *("true", "false", "null", '""', '"null"', '"true"', "-0", "-", "NaN", "1e999"),
                *(f"{n}.", f"{n}.{n}", f"{n - 1}.99999999999999999999", f"{n}.00000000001", f"00{n}", f'"0{n}"'),
                *(f"{n}L", f"{n}S", f'"{n}L"', f"{n}e0", f"{n}E+0", f"{n}0e-1", f"{n / 100}e2", f".{n}e3", f"0x{n:x}"),
                *(f"{n + 2**32}", f"{n + 2**32}.0", f'" {n}"', f"[{n}]", f'{{"x":{n}}}', f"{n}'", f'"{n}', f"{n}\0"),
                str(self._random.randrange(-(2**33), 2**33)),
            )
        )

    def _ext_fields(self) -> str:
        random = self._random
        keys = ["a", "b", "m"] if random.random() < 0.5 else random.sample(_KEYS, random.randrange(1, 7))
        if self._consuming:
            keys = ["consumerGroup", "topic", *random.choices(("consumerGroup", "topic"), k=random.random() < 0.2)]
        if self._plays(0.7):
            keys += random.choices(_OTHER_KEYS, k=random.randrange(4))
        if random.random() < 0.3:
            random.shuffle(keys)
        members = [self._member(key, self._field_value(key)) for key in keys]
        if self._consuming:
            members += [f'"{key}":"1"' for key in _NUMBERS_OF_A_PULL]
        return self._object(members)

    def _field_value(self, key: str) -> str:
        usual: tuple[str, ...] = (
            ('"false"', '"true"', "true", "false", '"0"', '"1"') if key in {"m", "batch"} else ('"T"', '"T2"')
        )
        if self._plays(0.5):
            usual = (*usual, self._quoted("T"), self._quoted("%RETRY%g"), self._random.choice(_VALUES))
        return self._random.choice(usual)


_INSERTS = (
    *(b'"b":"U",', b'"topic":"U",', b'"group":"U",', b'"m":"true",', b'"code":10,', b'"flag":1,', b'"x":"', b"null"),
    *(b'"extFields":{"b":"U"},', b"\\u0062", b"//", b"/*", b"\\", b"\xe2", b"\xc3", b"\0\0", b"\xff\xff"),
    *(b"\0\1b\0\0\0\1U", b"\0\1m\0\0\0\4true"),
)
_NOISE = b"\"',:{}[]\\ \0\n0123456789bmctu$-+./_"


def changed(random: Random, header: bytes, others: Sequence[bytes]) -> bytes:
    """Return a real header with some bytes changed, dropped, repeated, or replaced by another's end."""
    data = bytearray(header)
    for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
        at = random.randrange(len(data) + 1)
        what = random.random()
        if what < 0.2:
            data[at : at + 1] = bytes([random.randrange(256)])
        elif what < 0.4:
            data[at:at] = bytes([random.choice(_NOISE)])
        elif what < 0.55:
            del data[at : at + 1]
        elif what < 0.65:
            data[at:at] = data[random.randrange(len(data) + 1) :][:60]
        elif what < 0.7:
            del data[at : at + random.randrange(1, 20)]
        elif what < 0.8:
            data[at : at + 1] = bytes(byte ^ 1 << random.randrange(8) for byte in data[at : at + 1])
        elif what < 0.93:
            data[at:at] = random.choice(_INSERTS)
        else:
            other = random.choice(others)
            data[at:] = other[random.randrange(len(other) + 1) :]
    return bytes(data)


_BINARY_KEYS = {10: ("producerGroup", "topic"), 324: ("producerGroup", "topic"), 36: ("group",), 11: ("topic",)}
_BINARY_VALUES = (
    *(b"T", b"T2", b"", b"%RETRY%g", b"true", b"TRUE", b"false", b"\xff\xfe", b"\xc3\xa9", b"x" * 40),
    *(b"\0\1b\0\0\0\1U", b"\0\1m\0\0\0\4true", b"\0\1b", b"\0\1a\0\0\0\1h"),
)


def binary(random: Random, *, consuming: bool = False) -> bytes:
    """Return a binary header, sometimes with a wrong length or key."""

    def string(text: bytes, length_format: str) -> bytes:
        length = len(text)
        if random.random() < 0.02:
            length = random.choice((-1, 0, length - 1, length + 1, length + 7, 300, 2**15 - 1, -(2**15)))
        return struct.pack(length_format, length) + text

    code = random.choice((11, 361) if consuming else _CODES)
    usual = ("consumerGroup", "topic") if consuming else _BINARY_KEYS.get(code, ("a", "b"))
    keys = [*usual, *random.choices((*_KEYS, "", "i", "n", "z"), k=random.randrange(6))]
    if random.random() < 0.3:
        random.shuffle(keys)
    ext = b""
    for key in keys:
        odd = random.random() < 0.03
        ext += string(random.choice((b"\xc1\xa2", b"\0b", b"b\0")) if odd else key.encode(), ">h")
        ext += string(random.choice(_BINARY_VALUES), ">i")
    for key in _NUMBERS_OF_A_PULL if consuming else ():
        ext += struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", 1) + b"1"
    ext_bytes = len(ext)
    if random.random() < 0.12:
        shorter = random.randrange(ext_bytes + 1)
        ext_bytes = random.choice((0, -1, ext_bytes - 1, ext_bytes + 1, shorter, 1000, 2**31 - 1, -(2**31)))
    fixed = struct.pack(
        ">hBhii",
        code,
        random.randrange(20),
        random.randrange(600),
        random.randrange(2**20),
        random.choice((0, 0, 0, 0, 1, 2, 3, -1)),
    )
    remark = string(b"" if random.random() < 0.8 else b"hello", ">i")
    tail = random.choice((b"abc", bytes(30))) if random.random() < 0.1 else b""
    return fixed + remark + struct.pack(">i", ext_bytes) + ext + tail
