"""Which binary headers are plain."""

import struct

import pytest
from playbook.extension import Extension

from proxy.protocols.rocketmq.wire.header import classify


def _fields(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value for key, value in fields)


def _header(
    *fields: tuple[bytes, bytes],
    code: int = 310,
    flag: int = 0,
    opaque: int = 7,
    remark: bytes = b"",
    raw: bytes = b"",
    more: int = 0,
) -> bytes:
    ext = _fields(*fields) + raw
    fixed = struct.pack(">hBhiii", code, 0, 513, opaque, flag, len(remark))
    return fixed + remark + struct.pack(">i", len(ext) + more) + ext


_TOPIC = (b"b", b"orders")


@pytest.mark.parametrize(
    ("header", "reading"),
    [
        (_header((b"a", b"pg"), _TOPIC, (b"m", b"false")), ("topic", "orders", "pg", 310, 7, 0)),
        (_header((b"i", b"\0\1b\0\0\0\1U"), _TOPIC), ("topic", "orders", "", 310, 7, 0)),
        (_header((b"producerGroup", b"pg"), (b"topic", b"orders"), code=10), ("topic", "orders", "pg", 10, 7, 0)),
        (_header((b"group", b"cg"), code=36), ("retry_group", "cg", "", 36, 7, 0)),
        (_header((b"b", b"%RETRY%cg"), flag=2), ("retry_group", "cg", "", 310, 7, 2)),
        (_header((b"a", b""), _TOPIC, (b"", b""), opaque=-(2**31)), ("topic", "orders", "", 310, -(2**31), 0)),
        (_header(_TOPIC, (b"i", b"\xff\0\n")), ("topic", "orders", "", 310, 7, 0)),
        (_header((b"b", "größe".encode())), ("topic", "größe", "", 310, 7, 0)),
        (_header((b"b", b"x" * 255)), ("topic", "x" * 255, "", 310, 7, 0)),
        (_header(_TOPIC, (b"m", b"0")), ("topic", "orders", "", 310, 7, 0)),
    ],
)
def test_an_everyday_send_is_plain(extension: Extension, header: bytes, reading: tuple[object, ...]) -> None:
    for _ in range(3):
        assert extension.read(header, 1) == reading
    assert extension.read(header, 1).agrees_with(classify(header, 1))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(_header(_TOPIC)[:20], id="cut off in the numbers"),
        pytest.param(_header(_TOPIC)[:-1], id="cut off in a value"),
        pytest.param(_header(_TOPIC) + b"\0", id="a byte too many"),
        pytest.param(_header(_TOPIC, more=1), id="fields longer than the header"),
        pytest.param(_header(_TOPIC, more=-1), id="fields shorter than the header"),
        pytest.param(_header(_TOPIC, more=-(2**30)), id="fields of negative length"),
        pytest.param(_header(_TOPIC, raw=b"\0"), id="half a key"),
        pytest.param(_header(_TOPIC, raw=b"\0\1x\0\0\0"), id="half a length"),
        pytest.param(_header(_TOPIC, raw=b"\0\1x\0\0\0\1"), id="a value beyond the end"),
        pytest.param(_header(_TOPIC, raw=b"\0\1x\x7f\xff\xff\xff"), id="a value far beyond the end"),
        pytest.param(_header(_TOPIC, raw=b"\0\1x\xff\xff\xff\xff"), id="a value of negative length"),
        pytest.param(_header(_TOPIC, raw=b"\xff\xff\0\0\0\0"), id="a key of negative length"),
        pytest.param(_header(_TOPIC, raw=b"\x7f\xffx"), id="a key beyond the end"),
        pytest.param(_header(_TOPIC, remark=b"hello"), id="remark"),
        pytest.param(_header(_TOPIC, _TOPIC), id="topic twice"),
        pytest.param(_header(_TOPIC, (b"m", b"false"), (b"m", b"true")), id="batch said twice"),
        pytest.param(_header(_TOPIC, (b"m", b"true")), id="batch"),
        pytest.param(_header(_TOPIC, (b"f", b"4")), id="half message"),
        pytest.param(_header(_TOPIC, (b"f", b"128")), id="inner batch"),
        pytest.param(_header(_TOPIC, (b"m", b"True")), id="batch in another case"),
        pytest.param(_header(_TOPIC, (b"m", b"")), id="batch left empty"),
        pytest.param(_header((b"B", b"orders")), id="key in another case"),
        pytest.param(_header((b"topic", b"orders")), id="key of another request"),
        pytest.param(_header((b"b", b"")), id="empty topic"),
        pytest.param(_header((b"b", b"%RETRY%")), id="empty retry group"),
        pytest.param(_header((b"b", b"x" * 256)), id="long topic"),
        pytest.param(_header((b"a", b"x" * 256), _TOPIC), id="long group"),
        pytest.param(_header((b"b", b"\xff")), id="topic that is not UTF-8"),
        pytest.param(_header((b"b", b"\xef\xbf\xbd")), id="replacement character"),
        pytest.param(_header((b"a", b"\xff"), _TOPIC), id="group that is not UTF-8"),
        pytest.param(_header(_TOPIC, flag=1), id="answer"),
        pytest.param(_header(_TOPIC, code=11), id="another request"),
        pytest.param(_header(), id="no fields"),
    ],
)
def test_what_may_be_read_otherwise_is_not_plain(extension: Extension, header: bytes) -> None:
    assert extension.read(header, 1) is None
