"""Encodes and decodes complete commands, for rare requests, the embedded broker and the tests.

It decodes only headers in the form that clients and brokers write. ``header`` reads all headers that brokers accept.
"""

import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from proxy.protocols.rocketmq.wire.codes import (
    HEADER_BINARY,
    HEADER_JSON,
    LANGUAGE_CODES,
    LANGUAGES,
    MAX_FRAME_BYTES,
    MIN_LENGTH,
    PREFIX_BYTES,
    LocalProtocolError,
    RemoteProtocolError,
)

MAX_DECODED_HEADER_BYTES: Final = 4 * 1024

_prefix = struct.Struct(">iI")
_BINARY = struct.Struct(">hBhiii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class RemotingCommand(msgspec.Struct, kw_only=True):
    code: int  # request or response code: i32, or i16 in a binary header
    opaque: int  # the request's number, i32
    flag: int = 0
    language: str = "JAVA"
    version: int = 0  # i16 in a binary header
    remark: str | None = None
    fields: Mapping[str, str] = {}  # ``extFields``, with values as Java prints them
    body: bytes = b""
    header_type: int = HEADER_JSON


class _Json(msgspec.Struct, kw_only=True):
    code: int
    language: str = ""
    version: int = 0
    opaque: int
    flag: int = 0
    remark: str | None = None
    extFields: Mapping[str, str | int | float | bool | None] | None = None  # noqa: N815 - the wire's name


_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(_Json).decode


def encode(command: RemotingCommand) -> bytes:
    """Encode a frame.

    Raises:
        LocalProtocolError: A value does not fit into the binary header, or the frame is too long.
    """
    if command.header_type == HEADER_BINARY:
        header = _encode_binary(command)
    else:
        header = _encode_json(
            {
                "code": command.code,
                "language": command.language,
                "version": command.version,
                "opaque": command.opaque,
                "flag": command.flag,
                **({} if command.remark is None else {"remark": command.remark}),
                **({"extFields": command.fields} if command.fields else {}),
            }
        )
    length = 4 + len(header) + len(command.body)
    if 4 + length > MAX_FRAME_BYTES:
        raise LocalProtocolError("too_long", f"a frame of {4 + length} bytes; the maximum is {MAX_FRAME_BYTES}")
    return _prefix.pack(length, command.header_type << 24 | len(header)) + header + command.body


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode()
    try:
        parts = [
            _BINARY.pack(
                command.code,
                LANGUAGE_CODES[command.language],
                command.version,
                command.opaque,
                command.flag,
                len(remark),
            ),
            remark,
            b"",
        ]
        for name, value in command.fields.items():
            key, text = name.encode(), value.encode()
            parts += (_I16.pack(len(key)), key, _I32.pack(len(text)), text)
    except (struct.error, KeyError) as error:
        raise LocalProtocolError("bad_header", f"the command does not fit into a binary header: {error}") from error
    parts[2] = _I32.pack(sum(map(len, parts[3:])))
    return b"".join(parts)


def decode(frame: bytes) -> RemotingCommand:
    """Decode a frame. Raises RemoteProtocolError if it is not exactly one frame, or its header is invalid."""
    if len(frame) < PREFIX_BYTES:
        raise RemoteProtocolError("bad_frame", f"a frame of only {len(frame)} bytes; the minimum is {PREFIX_BYTES}")
    length, word = _prefix.unpack_from(frame)
    header_type, header_bytes = word >> 24, word & 0xFFFFFF
    if length != len(frame) - 4 or header_bytes > length - MIN_LENGTH:
        raise RemoteProtocolError(
            "bad_frame",
            f"a frame of {len(frame)} bytes that announces length {length} and a header of {header_bytes} bytes",
        )
    body_at = PREFIX_BYTES + header_bytes
    return decode_header(frame[PREFIX_BYTES:body_at], header_type, frame[body_at:])


def decode_header(header: bytes, header_type: int, body: bytes = b"") -> RemotingCommand:
    """Decode a header. Raises RemoteProtocolError if it is invalid."""
    if header_type == HEADER_JSON:
        return _read_json(header, body)
    if header_type == HEADER_BINARY:
        return _read_binary(header, body)
    raise RemoteProtocolError("bad_header", f"unknown header type {header_type}")


def _read_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        raw = _decode_json(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RemoteProtocolError("bad_header", f"invalid JSON header: {error}") from error
    fields = raw.extFields or {}
    return RemotingCommand(
        code=raw.code,
        opaque=raw.opaque,
        flag=raw.flag,
        language=raw.language,
        version=raw.version,
        remark=raw.remark,
        fields={name: _spell(value) for name, value in fields.items() if value is not None},
        body=body,
    )


def _spell(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_NOT_EXT: Final = "the fields do not end where the binary header ends"


def _read_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY.unpack_from(header)
        remark, at = _read_string(header, _BINARY.size, remark_bytes)
        (ext_bytes,) = _I32.unpack_from(header, at)
        at += _I32.size
        if at + max(ext_bytes, 0) != len(header):
            raise RemoteProtocolError("bad_header", _NOT_EXT)
        fields: dict[str, str] = {}
        while at < len(header):
            (length,) = _I16.unpack_from(header, at)
            name, at = _read_string(header, at + _I16.size, length)
            (length,) = _I32.unpack_from(header, at)
            fields[name], at = _read_string(header, at + _I32.size, length)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError("bad_header", f"invalid binary header: {error}") from error
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        language=LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
        version=version,
        remark=remark or None,
        fields=fields,
        body=body,
        header_type=HEADER_BINARY,
    )


def _read_string(header: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if length < 0 or end > len(header):
        raise RemoteProtocolError("bad_header", _NOT_EXT)
    return header[at:end].decode(), end
