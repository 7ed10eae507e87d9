"""Whole commands."""

import json
import struct

import pytest
from harness.wire_bytes import decode_all
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.rocketmq.wire.codes import (
    HEADER_BINARY,
    HEADER_JSON,
    LANGUAGES,
    MAX_FRAME_BYTES,
    LocalProtocolError,
    RemoteProtocolError,
)
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

_i16 = st.integers(-(2**15), 2**15 - 1)
_i32 = st.integers(-(2**31), 2**31 - 1)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_commands = st.builds(
    RemotingCommand,
    code=_i16,
    opaque=_i32,
    flag=_i32,
    language=st.sampled_from(LANGUAGES),
    version=_i16,
    remark=st.none() | _text.filter(bool),
    fields=st.dictionaries(_text, _text, max_size=4),
    body=st.binary(max_size=30),
    header_type=st.sampled_from((HEADER_JSON, HEADER_BINARY)),
)


@given(_commands)
def test_a_command_is_read_as_it_was_written(command: RemotingCommand) -> None:
    assert decode(encode(command)) == command


@given(st.lists(_commands, max_size=4))
def test_frames_are_read_one_after_another(commands: list[RemotingCommand]) -> None:
    assert list(decode_all(b"".join(map(encode, commands)))) == commands


def test_an_answer_has_the_shape_that_clients_read() -> None:
    frame = encode(RemotingCommand(code=0, opaque=9, flag=1, version=513, fields={"msgId": "1"}, body=b"body"))
    length, word = struct.unpack_from(">iI", frame)
    assert (length, word >> 24) == (len(frame) - 4, HEADER_JSON)
    header = frame[8 : 8 + word]
    assert json.loads(header) == {
        "code": 0,
        "language": "JAVA",
        "version": 513,
        "opaque": 9,
        "flag": 1,
        "extFields": {"msgId": "1"},
    }
    assert frame[8 + len(header) :] == b"body"


def _frame(header: bytes, header_type: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header), header_type << 24 | len(header)) + header


def test_numbers_and_booleans_among_the_fields_become_strings() -> None:
    header = (
        b'{"code":1,"language":"CPP","version":1,"opaque":1,"flag":0,"extFields":{"a":1,"b":true,"c":null,"d":"x"}}'
    )
    assert decode(_frame(header)).fields == {"a": "1", "b": "true", "d": "x"}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0\4\0\0\0",
        b"\0\0\0\4\0\0\0\0",
        _frame(b"{}"),
        _frame(b"{}", 2),
        _frame(b"\0" * 20, 1),
        _frame(b"{}") + b"x",
        _frame(b"{}")[:-1],
        struct.pack(">iI", 4, 1),
        struct.pack(">iI", -4, 0),
        _frame(struct.pack(">hBhiiii", 1, 0, 1, 1, 0, 0, 1), 1),
        _frame(struct.pack(">hBhiiii", 1, 0, 1, 1, 0, -1, 0), 1),
        _frame(struct.pack(">hBhiiiih", 1, 0, 1, 1, 0, 0, 2, -1), 1),
        _frame(struct.pack(">hBhiiiihi", 1, 0, 1, 1, 0, 0, 6, 0, 9), 1),
    ],
)
def test_invalid_command_is_a_remote_error(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(frame)


@given(st.binary(max_size=100), st.integers(0, 2))
def test_any_header_is_read_or_refused(header: bytes, header_type: int) -> None:
    try:
        decode(_frame(header, header_type))
    except RemoteProtocolError as error:
        assert error.reason == "bad_header"  # noqa: PT017 - most headers are refused, a few are read


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(code=200_050, opaque=1, header_type=HEADER_BINARY),
        RemotingCommand(code=1, opaque=1, language="COBOL", header_type=HEADER_BINARY),
        RemotingCommand(code=1, opaque=1, fields={"x" * 32_768: ""}, header_type=HEADER_BINARY),
        RemotingCommand(code=1, opaque=1, body=bytes(MAX_FRAME_BYTES)),
    ],
)
def test_unwritable_command_is_a_local_error(command: RemotingCommand) -> None:
    with pytest.raises(LocalProtocolError):
        encode(command)
