"""Reading binary headers. The oracle tests compare this with the real broker's decoder."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook.frames import pull

from proxy.protocols.rocketmq.wire.header import MAX_FIELDS, STRICT, UNPARSABLE, Header, read_binary

_Fields = Sequence[tuple[bytes, bytes]]
_SEND: _Fields = [(b"a", b"pg"), (b"b", b"orders"), (b"i", b"k\x01v\x02"), (b"m", b"false")]


def _ext(fields: _Fields) -> bytes:
    return b"".join(struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value for key, value in fields)


def _header(fields: _Fields, code: int = 310, flag: int = 0, remark: bytes = b"", language: int = 0) -> bytes:
    ext = _ext(fields)
    fixed = struct.pack(">hBhiii", code, language, 513, 7, flag, len(remark))
    return fixed + remark + struct.pack(">i", len(ext)) + ext


@pytest.mark.parametrize(
    ("more", "name", "is_batch"),
    [
        ((b"b", b"hot"), "hot", False),
        ((b"m", b"TRUE"), "orders", True),
        ((b"m", b"1"), "orders", False),
        ((b"z", b"\0\1b\0\0\0\3hot"), "orders", False),
        ((b"z", b"\0\1m\0\0\0\4true"), "orders", False),
    ],
)
def test_the_last_of_equal_keys_wins_and_values_are_not_keys(
    more: tuple[bytes, bytes], name: str, *, is_batch: bool
) -> None:
    answer = read_binary(_header([*_SEND, more]))
    assert (answer.name, answer.is_batch, answer.reading) == (name, is_batch, STRICT)


def test_an_empty_topic_is_none() -> None:
    assert read_binary(_header([*_SEND, (b"b", b"")])).kind == ""


def test_a_name_that_is_not_utf8_is_unparsable() -> None:
    assert read_binary(_header([(b"a", b"pg"), (b"b", b"\xff")])) is UNPARSABLE


def test_too_many_fields_are_unparsable() -> None:
    fields = [(b"k%d" % number, b"v") for number in range(MAX_FIELDS)]
    assert read_binary(_header([*fields[1:], (b"b", b"orders")])).name == "orders"
    assert read_binary(_header([*fields, (b"b", b"orders")])) is UNPARSABLE


@given(st.binary())
def test_any_fields_are_read_without_an_error(ext: bytes) -> None:
    fixed = struct.pack(">hBhiiii", 310, 0, 513, 7, 0, 0, len(ext))
    assert isinstance(read_binary(fixed + ext), Header)


# --- Requests that consume ------------------------------------------------------------------------


def consuming(whole: bytes) -> Header:
    header_bytes = int.from_bytes(whole[5:8])
    return read_binary(whole[8 : 8 + header_bytes], subscriptions=True)


@pytest.mark.parametrize(("group", "topic"), [("", "orders"), ("g", "")])
def test_one_that_names_no_subscription_is_for_the_broker_to_refuse(group: str, topic: str) -> None:
    assert consuming(pull(binary=True, group=group, topic=topic)).kind == ""


@pytest.mark.parametrize("size", range(len(_header(_SEND))))
def test_a_header_cut_short_is_unparsable_or_not_limitable(size: int) -> None:
    assert read_binary(_header(_SEND)[:size]) is UNPARSABLE
