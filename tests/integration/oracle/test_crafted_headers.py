"""Hand-made headers with one trick each, compared with the real broker's reading."""

import struct

import pytest
from oracle.asking import Comparison, Oracle, compare, frame, resource_of

from proxy.protocols.rocketmq.wire.codes import MAX_FRAME_BYTES
from proxy.protocols.rocketmq.wire.header import UNPARSABLE, classify

pytestmark = pytest.mark.integration

# Names of more than eight characters are only distinguished by a 64-bit hash. These two have that of another name.
_HASHED_AS_CODE = "\u9b6e\u6257\u6774\u94ef\u708d\u644c\u918f\u5686\u5450\u5eb1\u587e\u59a7"
_HASHED_AS_FLAG = "\u9b6e\u6257\u6774\u94ef\u708d\u644c\u918f\u4e15\u5954\ub0d8\u5563\u557d"
# Shorter names are packed into the number instead. These are the hash of "extFields".
_PACKED_AS_EXT_FIELDS = "A\u009b-\u00c4\u00fe\u00ebXa"

_EXT = '"extFields":{"a":"g","b":"T"}'

# A client, or a library between client and proxy, might write these: all of them must be read.
_PLAUSIBLE_CODES = (
    "310",
    '"310"',
    "310.0",
    '"310.0"',
    " 310 ",
    "310\t",
    "'310'",
    r'"31\u0030"',
    "+310",
    '"0310"',
    "0310",
    "10",
    "320",
    "324",
    "325",
    "36",
    "11",
    "null",
    '""',
    "true",
    "-310",
)
_PLAUSIBLE_MEMBERS = (
    '"code":10,',
    r'"\u0063ode":10,',
    "'code':10,",
    '"code":null,',
    '"flag":2,',
    '"flag":"2",',
    '"flag":1,',
    '"flag":true,',
    '"flag":null,',
    '"flag":2.0,',
    '"opaque":"9",',
    '"opaque":null,',
    '"opaque":-2147483648,',
    '"version":"5",',
    '"version":null,',
    '"language":"GO",',
    '"language":9,',
    '"language":"go",',
    '"language":null,',
    '"language":"XX",',
    '"remark":null,',
    '"remark":"",',
    '"remark":5,',
    '"remark":{"x":1},',
    '"serializeTypeCurrentRPC":"JSON",',
    '"serializeTypeCurrentRPC":0,',
    '"suspended":false,',
    '"unknown":1,',
    '"unknown":"x",',
    '"unknown":{"a":[1,{"code":10}]},',
    '"unknown":"\u00e9",',
    '"\u00e9":"x",',
    '"customHeader":{"b":"U"},',
    '"onewayRPC":true,',
    '"body":null,',
    '"@type":"java.util.HashMap",',
    '"extFields":{"b":"U"},',
    '"extFields":null,',
    '"extFields":"",',
    '"":1,',
    "\n\t ",
    "\f\b",
)
_PLAUSIBLE_FIELDS = (
    '"b":"T","b":"U"',
    '"b":"U","b":"T"',
    '"b":null',
    '"b":"T","b":null',
    '"b":7',
    '"b":-7',
    '"b":true',
    '"b":12345678901234567890123',
    '"b":""',
    r'"\u0062":"T"',
    r'"b":"\u0054"',
    r'"b":"\x54"',
    "'b':'T'",
    r'"b":"T\/"',
    '"b":"T",',
    '"b" : "T"',
    '"b":"\u00e9"',
    r'"b":"\ud83d\ude00"',
    '"b":"%RETRY%g"',
    r'"b":"%RETRY\u0025g"',
    '"b":"%RETRY%"',
    '"b":"%retry%g"',
    '"b":"%RETRY%%RETRY%g"',
    '"b":" T "',
    '"B":"T"',
    '"b":"T","m":true',
    '"b":"T","m":"TRUE"',
    '"b":"T","m":"1"',
    '"b":"T","m":1',
    '"b":"T","m":"0"',
    '"b":"T","m":null',
    '"b":"T","m":" true"',
    r'"b":"T","m":"\u0074rue"',
    '"b":"T","m":"false","m":"true"',
    '"b":"T","m":"true","m":"false"',
    '"b":"T","a":null',
    '"b":"T","a":5',
    '"b":"T","i":"KEYS\x01k\x02"',
    r'"b":"T","i":"KEYS\u0001k\u0002"',
    '"b":"T","i":"price $ref 5$"',
    r'"b":"T","i":"{\"b\":\"U\"}"',
    '"b":"T","z":{"b":"U"}',
    '"b":"T","z":["b",{"b":"U"}]',
    '"b":"T","z":1.5e3',
    '"b":"T","z":false',
    '"topic":"T"',
    '"b":"T","topic":"U"',
    '"group":"T"',
)
_PLAUSIBLE_WHOLES = (
    '{"code":310,"opaque":7,"flag":0,%s}',
    '\n {%s ,\t"code" : 310 , "opaque":7}\r\n',
    '{"code":310,"opaque":7,%s,}',
    '{"code":310,"opaque":7,%s}\0',
    '{%s,"opaque":7,"flag":0,"code":310}',
    '{"code":36,"opaque":7,"extFields":{"group":"G"}}',
    '{"code":36,"opaque":7,"extFields":{"group":"%%RETRY%%G"}}',
    '{"code":10,"opaque":7,"extFields":{"topic":"T","producerGroup":"g","batch":"true"}}',
    '{"code":324,"opaque":7,"extFields":{"topic":"T","b":"U"}}',
    '{"code":310,"opaque":7}',
    '{"code":310,"opaque":7,"extFields":{}}',
    "{}",
)

# Only an attacker would write these, to be read differently by proxy and broker.
_GAMES_CODES = (
    "310L",
    '"310"L',
    "310S",
    "310.",
    "310.9",
    "309.99999999999999999999",
    "3.1e2",
    "31e1",
    '"3.1e2"',
    ".310e3",
    "3100e-1",
    "4294967606",
    '"4294967606"',
    "4294967606.0",
    '"4294967606.0"',
    "9007199254740993.0",
    "18446744073709551926",
    "1e999",
    "2147483648",
    "-2147483649",
    "[310]",
    '["310"]',
    '{"x":310}',
    "0x136",
    "310/**/",
    "NaN",
    "-",
    r'"\x33\x31\x30"',
    "'\"310\"'",
    '" 310"',
    "310\0",
    "\0310",
)
_GAMES_MEMBERS = (
    '"Code":10,',
    '"CODE":10,',
    '"_code":10,',
    '"co-de":10,',
    '"code ":10,',
    r'"code\u0000":10,',
    '"code\0":10,',
    r'"code\0":10,',
    '"\0code":10,',
    r'"\x63ode":10,',
    r'"c\ode":10,',
    "code:10,",
    f'"{_HASHED_AS_CODE}":10,',
    f"'{_HASHED_AS_CODE}':10,",
    f'"{_HASHED_AS_FLAG}":1,',
    f'"{_PACKED_AS_EXT_FIELDS}":{{"b":"U"}},',
    r'"\x41\x9b\x2d\xc4\xfe\xeb\x58\x61":{"b":"U"},',
    '"ext_fields":{"b":"U"},',
    '"extfields":{"b":"U"},',
    r'"extFields\u0000":{"b":"U"},',
    '"extFields":[{"b":"U"}],',
    '"extFields":{"$ref":"$"},',
    '"extFields":{"$ref":"$.extFields"},',
    "\"extFields\":{ '$ref' : '$' },",
    r'"extFields":{"\u0024ref":"$"},',
    '"$ref":"$",',
    '"x":{"$ref":"$.extFields"},',
    '/*"code":10,*/',
    '//"code":10,\n',
    '/*c*/"code":10,',
    '"x":1 "code":10,',
    '"x":"y""code":10,',
    '"x":1,,',
    '"x":1;',
    '"x":NaN,',
    '"x":undefined,',
    '"x":01,',
    '"x":.5,',
    '"x":1e,',
    r'"x":"\q",',
    r'"x":"\ud800",',
    '"x":"\0",',
    '"x":"\x1a",',
    '"x":Set[1],',
    '"x":[1,],',
    '"x":[1 2],',
    '"x":{"y":1 "z":2},',
    '"body":[1,2],',
    '"body":"AAAA",',
    '"suspended":"x",',
    '"processTimer":{},',
    '"callbackList":[],',
    '"language":99,',
    '"language":{"b":1},',
    '"flag":4294967297,',
    '"flag":4294967297.0,',
    '"opaque":4294967305,',
    '"type":"RESPONSE_COMMAND",',
    "\v",
    "\u00a0",
    "\u3000",
    "\ufeff",
    "\0",
)
_GAMES_FIELDS = (
    '"b":["T"]',
    '"b":[]',
    '"b":{"x":1}',
    '"b":{"$ref":"$.code"}',
    '"b":1.50',
    '"b":1e2',
    '"b":+5',
    '"b":007',
    '"b":1e400',
    '"b":T',
    'b:"T"',
    '"b":"T" "b":"U"',
    '"b":"T""b":"U"',
    '"b":"T","b\0":"U"',
    '"group":"T","group\0":"U"',
    '"topic\0":"U","topic":"T"',
    r'"b\u0000":"T"',
    r'"\x62":"T"',
    r'"\b":"T"',
    r'"b":"T\u0000"',
    r'"b":"\T"',
    r'"b":"\0"',
    r'"b":"\054"',
    r'"b":"T\v"',
    r'"b":"\ud800"',
    '"b":"T\0"',
    '"b":"T\x1a"',
    '"$ref":"$"',
    '"$ref":"$.x","b":"T"',
    '"b":"T","$ref":"$"',
    '"@type":"java.util.TreeMap","b":"T"',
    '/*c*/"b":"T"',
    '"b":"T"/*c*/',
    '{"b":"T"}',
    '"b"="T"',
    '"b":"T";"b":"U"',
    '"b":"T","m":["true"]',
    '"b":"T","m":[true]',
    '"b":"T","m":{"x":true}',
    '"b":"T","m":1.0',
    '"b":"T","d":"x"',
    '"b":"' + "T" * 256 + '"',
    '"b":"' + "T" * 100_000 + '"',
    '"b":"T","z":' + "[" * 100 + "]" * 100,
    '"b":"T","z":' + "[" * 3000 + "]" * 3000,
)
_GAMES_WHOLES = (
    "",
    "{",
    "[]",
    "null",
    "true",
    '""',
    "1",
    '[{"code":310,"opaque":7,%s}]',
    '[]{"code":310,"opaque":7,%s}',
    '\ufeff{"code":310,"opaque":7,%s}',
    '\0{"code":310,"opaque":7,%s}',
    '{"code":310,"opaque":7,%s},',
    '{"code":310,"opaque":7,%s}{"code":11}',
    '{"code":310,"opaque":7,%s}x',
    '{"code":310,"opaque":7,%s}/*c*/',
    '/*c*/{"code":310,"opaque":7,%s}',
    '//c\n{"code":310,"opaque":7,%s}',
    '{"code":310,"opaque":7,%s',
    '{,"code":310,"opaque":7,%s}',
    '{"code":310,"opaque":7,%s,,}',
    '({"code":310,"opaque":7,%s})',
    '{"code"=310,"opaque"=7,%s}',
    "{code:310,opaque:7,extFields:{b:'T'}}",
    '{"$ref":"$","code":310,"opaque":7,%s}',
    '{"code":310,%s}',
    '{"remark":"{\\"b\\":\\"U\\"}","code":310,"opaque":7,"extFields":{"$ref":"$.remark"},%s}',
)
_NOT_UTF8 = (b"\xe2", b"\xff", b"\x80", b"\xc3", b"\xc0\x80", b"\xf0", b"\xed\xa0\x80", b'\xe2",', b'\xc3"', b'\xf0","')


def _json(
    codes: tuple[str, ...], members: tuple[str, ...], fields: tuple[str, ...], wholes: tuple[str, ...]
) -> list[str]:
    headers = [f'{{"code":{code},"opaque":7,"extFields":{{"b":"T","topic":"V1","group":"G"}}}}' for code in codes]
    headers += [f'{{"code":310,"opaque":7,{member}{_EXT}}}' for member in members]
    headers += [f'{{{_EXT},"opaque":7,"code":310,{member.rstrip(",")}}}' for member in members]
    headers += [f'{{"code":{code},"opaque":7,"extFields":{{{field}}}}}' for code in (310, 10, 36) for field in fields]
    headers += [whole % _EXT if "%s" in whole else whole.replace("%%", "%") for whole in wholes]
    return headers


def _typed(headers: list[str]) -> list[tuple[bytes, int]]:
    return [(header.encode(), 0) for header in headers]


def _report(comparison: Comparison) -> str:
    return "\n".join([str(dict(comparison.counts)), *comparison.wrong])


def test_valid_headers_are_read_as_the_broker_reads_them(oracle: Oracle) -> None:
    comparison = compare(
        oracle, _typed(_json(_PLAUSIBLE_CODES, _PLAUSIBLE_MEMBERS, _PLAUSIBLE_FIELDS, _PLAUSIBLE_WHOLES))
    )
    assert not comparison.wrong, _report(comparison)
    assert comparison.unparsed == []


def test_no_trick_names_another_resource_than_the_broker(oracle: Oracle) -> None:
    comparison = compare(oracle, _typed(_json(_GAMES_CODES, _GAMES_MEMBERS, _GAMES_FIELDS, _GAMES_WHOLES)))
    assert not comparison.wrong, _report(comparison)


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (f'"{_HASHED_AS_CODE}":36', ("retry_group", "G")),
        (r'"code\u0000":36', ("retry_group", "G")),
        (f'"{_HASHED_AS_FLAG}":1', None),
        (f'"{_PACKED_AS_EXT_FIELDS}":{{"b":"U"}}', ("topic", "U")),
    ],
)
def test_the_broker_takes_a_name_for_another_of_the_same_hash(
    oracle: Oracle, member: str, expected: tuple[str, str] | None
) -> None:
    header = f'{{"code":310,"opaque":7,"extFields":{{"b":"T","group":"G"}},{member}}}'.encode()
    (reading,) = oracle.read([frame(header)])
    assert resource_of(reading) == expected
    assert classify(header, 0) is UNPARSABLE


def test_text_that_is_not_utf8_names_no_other_resource(oracle: Oracle) -> None:
    patterns = (
        b'{"code":310,"opaque":7,"extFields":{"z":"%b","b":"T","c":"x","d":"1"}}',
        b'{"code":310,"opaque":7,"extFields":{"b":"%b","c":"x","d":"1"}}',
        b'{"code":310,"opaque":7,"extFields":{"%b":"x","b":"T","c":"x","d":"1"}}',
        b'{"code":310,"opaque":7,"extFields":{"z":["%b"],"b":"T","c":"x","d":"1"}}',
        b'{"code":310,"opaque":7,"remark":"%b","extFields":{"b":"T","c":"x","d":"1"}}',
        b'{"code":310,"opaque":7,"x":"%b","extFields":{"b":"T","c":"x","d":"1"}}',
        b'{"code":310,"opaque":7,"x":{"y":"%b"},"extFields":{"b":"T","c":"x","d":"1"}}',
        b'{"code":310,"opaque":7,"%b":"x","extFields":{"b":"T","c":"x","d":"1"}}',
        b"{'code':310,'opaque':7,'extFields':{'z':'%b','b':'T','c':'x','d':'1'}}",
    )
    comparison = compare(oracle, [(pattern % bad, 0) for pattern in patterns for bad in _NOT_UTF8])
    assert not comparison.wrong, _report(comparison)


def test_a_lone_lead_byte_hides_no_topic(oracle: Oracle) -> None:
    # To most parsers z is one byte long. The broker lets it swallow the quote, so the next name is not a name.
    header = b"""{"code":310,"opaque":7,"extFields":{"b":"T","z":"\xc3","'b':'U'}}//":""}}"""
    (reading,) = oracle.read([frame(header)])
    assert resource_of(reading) == ("topic", "U")
    assert classify(header, 0) is UNPARSABLE


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_read_by_neither(oracle: Oracle, encoding: str) -> None:
    header = f'{{"code":310,"opaque":7,{_EXT}}}'.encode(encoding)
    comparison = compare(oracle, [(header, 0)])
    assert comparison.counts == {"closed by the broker": 1}


def _string(text: bytes, length_format: str, length: int | None = None) -> bytes:
    return struct.pack(length_format, len(text) if length is None else length) + text


def _field(key: bytes, value: bytes, key_bytes: int | None = None, value_bytes: int | None = None) -> bytes:
    return _string(key, ">h", key_bytes) + _string(value, ">i", value_bytes)


def _binary(
    *fields: bytes,
    code: int = 310,
    flag: int = 0,
    language: int = 0,
    remark: bytes = _string(b"", ">i"),
    ext_bytes: int | None = None,
    tail: bytes = b"",
) -> bytes:
    ext = b"".join(fields)
    fixed = struct.pack(">hBhii", code, language, 513, 7, flag)
    return fixed + remark + _string(ext, ">i", ext_bytes) + tail


_A, _B, _M = _field(b"a", b"g"), _field(b"b", b"T"), _field(b"m", b"false")
_BINARY = (
    _binary(_A, _B, _M),
    _binary(_B, _A),
    _binary(_B),
    _binary(_A),
    _binary(),
    b"",
    b"\0",
    _binary()[:-1],
    _binary(_A, _B, remark=_string(b"hello", ">i")),
    *(_binary(_A, _B, remark=struct.pack(">i", length)) for length in (-1, -4, -(2**31), 500, 2**31 - 1)),
    *(_binary(_A, _B, ext_bytes=length) for length in (-1, 0, 1, 8, 9, 15, 17, 18, 40, 10**6, 2**31 - 1, -(2**31))),
    _binary(_A, _B, _field(b"b", b"U")),
    _binary(_A, _B, _field(b"b", b"")),
    _binary(_A, _B, _field(b"a", b"h")),
    _binary(_A, _B, _field(b"m", b"true")),
    _binary(_A, _B, _field(b"m", b"TRUE"), _field(b"m", b"false")),
    _binary(_A, _B, _field(b"m", b"false"), _field(b"m", b"tRue")),
    _binary(_A, _B, _field(b"m", b"1")),
    _binary(_A, _B, _field(b"z", _field(b"b", b"U"))),
    _binary(_A, _B, _field(b"z", _field(b"m", b"true"))),
    _binary(_A, _field(b"b", _field(b"b", b"U"))),
    _binary(_A, _field(b"b", b"%RETRY%g")),
    _binary(_A, _field(b"b", b"\xc3\xa9")),
    _binary(_A, _field(b"b", b"\xff\xfe")),
    _binary(_field(b"a", b"\xff\xfe"), _B),
    _binary(_field(b"a", b""), _B),
    _binary(_A, _field(b"b", b"")),
    _binary(_A, _field(b"b", b"T" * 255)),
    _binary(_A, _field(b"b", b"T" * 256)),
    _binary(_field(b"a", b"g" * 300), _B),
    _binary(_field(b"", b"x"), _A, _B),
    _binary(_field(b"\xc1\xa2", b"U"), _B),
    _binary(_field(b"b\0", b"U"), _B),
    *(_binary(_field(b"z", b"x", length, None), _A, _B) for length in (-1, -3, -(2**15), 2, 300, 2**15 - 1)),
    *(_binary(_field(b"z", b"x", None, length), _A, _B) for length in (-1, -7, -(2**31), 2, 300, 2**31 - 1)),
    *(_binary(_A, _B, _field(b"z", b"x", None, length)) for length in (-1, -7, 0, 2, 300)),
    _binary(_A, _B, tail=b"abc"),
    _binary(_A, _B, _field(b"m", b"true"), tail=b"abc"),
    *(_binary(_A, _B, language=language) for language in (1, 13, 14, 99, 255)),
    *(_binary(_A, _B, flag=flag) for flag in (1, 2, 3, -1, 2**31 - 1)),
    *(_binary(_A, _B, code=code) for code in (10, 11, 320, 324, 325, 36, -310, -1, 0)),
    *(
        _binary(_field(b"topic", b"T"), _field(b"batch", b"True"), _field(b"group", b"G"), code=code)
        for code in (10, 324, 36, 310, 325)
    ),
    _binary(_field(b"group", b"%RETRY%g"), code=36),
    _binary(*(_field(b"k%d" % i, b"v") for i in range(100)), _B),
)


def test_no_trick_in_a_binary_header_names_another_resource(oracle: Oracle) -> None:
    comparison = compare(oracle, [(header, 1) for header in _BINARY])
    assert not comparison.wrong, _report(comparison)


def test_binary_headers_that_the_broker_reads_are_read(oracle: Oracle) -> None:
    comparison = compare(oracle, [(header, 1) for header in _BINARY])
    # Names that are not UTF-8 or too long for a topic, and a batch whose body would begin inside the header.
    assert len(comparison.unparsed) == 3


@pytest.mark.parametrize("header_type", [2, 3, 127, 128, 255])
def test_other_header_types_are_closed_by_the_broker(oracle: Oracle, header_type: int) -> None:
    headers = [_binary(_A, _B), f'{{"code":310,"opaque":7,{_EXT}}}'.encode()]
    readings = oracle.read([frame(header, header_type) for header in headers])
    assert [resource_of(reading) or reading["open"] for reading in readings] == [False, False]


@pytest.mark.parametrize("length", [0, 1, 2, 3, -1, -4, -5, -(2**31), MAX_FRAME_BYTES - 3, 2**31 - 1])
def test_frames_outside_the_allowed_lengths_are_closed_by_the_broker(oracle: Oracle, length: int) -> None:
    (reading,) = oracle.read([struct.pack(">i", length) + bytes(8)])
    assert reading == {"open": False}


def test_the_longest_frame_is_read_and_one_byte_more_is_not(oracle: Oracle) -> None:
    header = f'{{"code":310,"opaque":7,{_EXT}}}'.encode()
    body_bytes = MAX_FRAME_BYTES - 8 - len(header)
    readings = oracle.read([frame(header, 0, bytes(size)) for size in (body_bytes, body_bytes + 1)])
    assert [resource_of(reading) for reading in readings] == [("topic", "T"), None]


@pytest.mark.parametrize("header_type", [0, 1])
def test_a_header_that_reaches_into_the_body_is_closed_by_the_broker(oracle: Oracle, header_type: int) -> None:
    header = _binary(_A, _B) if header_type else f'{{"code":310,"opaque":7,{_EXT}}}'.encode()
    frames = []
    for short in range(1, len(header)):
        inside, outside = header[:-short], header[-short:]
        frames += [frame(inside, header_type, outside), frame(inside, header_type, outside + bytes(100))]
    assert {reading["open"] for reading in oracle.read(frames)} == {False}
