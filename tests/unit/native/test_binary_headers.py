"""Common binary headers are plain. test_soundness.py checks that plain headers have only one reading."""

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
        (_header((b"a", b"pg"), _TOPIC, (b"m", b"false")), ("topic", "orders", "pg", 7)),
        (_header((b"i", b"\0\1b\0\0\0\1U"), _TOPIC), ("topic", "orders", "", 7)),
        (_header((b"producerGroup", b"pg"), (b"topic", b"orders"), code=10), ("topic", "orders", "pg", 7)),
        (_header((b"group", b"cg"), code=36), ("retry_group", "cg", "", 7)),
        (_header((b"b", b"%RETRY%cg"), flag=2), ("retry_group", "cg", "", None)),
        (_header((b"a", b""), _TOPIC, (b"", b""), opaque=-(2**31)), ("topic", "orders", "", -(2**31))),
        (_header(_TOPIC, (b"i", b"\xff\0\n")), ("topic", "orders", "", 7)),
        (_header((b"b", "größe".encode())), ("topic", "größe", "", 7)),
        (_header((b"b", b"x" * 255)), ("topic", "x" * 255, "", 7)),
        (_header(_TOPIC, (b"m", b"0")), ("topic", "orders", "", 7)),
    ],
)
def test_an_everyday_send_is_plain(extension: Extension, header: bytes, reading: tuple[object, ...]) -> None:
    for _ in range(3):
        assert extension.read_header(header, 1) == reading
    assert extension.read_header(header, 1).agrees_with(classify(header, 1))
