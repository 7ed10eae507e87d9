"""RocketMQ frames for tests, built byte by byte."""

import json
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

ONEWAY: Final = 2
RESPONSE: Final = 1

LANGUAGE_JAVA: Final = 0
VERSION: Final = 513


def frame(header: bytes, body: bytes = b"", *, header_type: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), header_type << 24 | len(header)) + header + body


def json_frame(
    code: int,
    fields: Mapping[str, object] | None = None,
    *,
    opaque: int = 1,
    flag: int = 0,
    body: bytes = b"",
    remark: str | None = None,
) -> bytes:
    header: dict[str, object] = {
        "code": code,
        "language": "JAVA",
        "version": VERSION,
        "opaque": opaque,
        "flag": flag,
        "serializeTypeCurrentRPC": "JSON",
    }
    if fields is not None:
        header["extFields"] = fields
    if remark is not None:
        header["remark"] = remark
    return frame(json.dumps(header, separators=(",", ":")).encode(), body)


def binary_frame(
    code: int, fields: Mapping[str, str] | None = None, *, opaque: int = 1, flag: int = 0, body: bytes = b""
) -> bytes:
    ext = b"".join(
        struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for key, value in (fields or {}).items()
    )
    fixed = struct.pack(">hBhiiii", code, LANGUAGE_JAVA, VERSION, opaque, flag, 0, len(ext))
    return frame(fixed + ext, body, header_type=1)


def send(
    topic: str,
    opaque: int = 1,
    *,
    body: bytes = b"hello",
    code: int = 310,
    flag: int = 0,
    group: str = "producers",
    batch: bool = False,
    binary: bool = False,
    filler: int = 0,
    sys_flag: object = "0",
    properties: Mapping[str, str] | None = None,
) -> bytes:
    """Return a send in the Java client's encoding. ``filler`` makes its header longer."""
    spelled = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
    fields = {"a": group, "b": topic, "i": spelled + "x" * filler, "m": "true" if batch else "false"}
    if binary:
        return binary_frame(code, {**fields, "f": str(sys_flag)}, opaque=opaque, flag=flag, body=body)
    return json_frame(code, {**fields, "f": sys_flag}, opaque=opaque, flag=flag, body=body)


def send_batch(
    topic: str, messages: int, opaque: int = 1, *, message: bytes = b"hello", flag: int = 0, group: str = "producers"
) -> bytes:
    body = batch_body(messages, message)
    return send(topic, opaque, code=320, batch=True, body=body, flag=flag, group=group)


def batch_body(messages: int, message: bytes = b"hello") -> bytes:
    """Return the body of a batch of equal messages without properties."""
    return (struct.pack(">iiiii", 22 + len(message), 0, 0, 0, len(message)) + message + b"\0\0") * messages


# By these the broker recognizes a half message, in addition to its sysFlag.
HALF: Final = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "id"}


def send_half(topic: str, opaque: int = 1, *, group: str = "producers", **changes: str) -> bytes:
    """Return a send of a half message in the Java client's encoding, perhaps with other properties."""
    return send(topic, opaque, sys_flag="4", properties=HALF | changes, group=group)


def stored(opaque: int, offset: int, *, queue_offset: int = 0, transaction: str = "id", code: int = 0) -> bytes:
    """Return the broker's answer to the send of a message stored at an offset of the commit log."""
    fields = {"msgId": f"7F00000200002A9F{offset:016X}", "queueId": "0", "queueOffset": str(queue_offset)}
    return json_frame(code, {**fields, "transactionId": transaction}, opaque=opaque, flag=RESPONSE)


def end_transaction(
    offset: int, opaque: int = 1, *, queue_offset: int = 0, group: str = "producers", what: int = 8, flag: int = ONEWAY
) -> bytes:
    """Return a producer's end of a transaction (37): 8 commits, 12 rolls back, 0 is unknown."""
    fields = {
        "producerGroup": group,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(offset),
        "commitOrRollback": str(what),
        "fromTransactionCheck": "false",
        "msgId": "id",
    }
    return json_frame(37, fields, opaque=opaque, flag=flag)


def check_transaction(
    offset: int,
    opaque: int = 1,
    *,
    queue_offset: int = 0,
    transaction: str = "id",
    group: str = "producers",
    topic: str = "orders",
    body: bytes = b"body",
    hosts: tuple[bytes, bytes] = (bytes(8), bytes(8)),
) -> bytes:
    """Return the broker's question about a transaction (39), with the half message as stored."""
    fields = {"tranStateTableOffset": str(queue_offset), "commitLogOffset": str(offset), "transactionId": transaction}
    properties = "".join(
        f"{name}\x01{value}\x02" for name, value in (HALF | {"PGROUP": group, "REAL_TOPIC": topic}).items()
    )
    flags = 4 | (0x10 if len(hosts[0]) > 8 else 0) | (0x20 if len(hosts[1]) > 8 else 0)
    record = struct.pack(">5i2qiq", 0, -626843481, 0, 0, 0, queue_offset, offset, flags, 0)
    record += hosts[0] + bytes(8) + hosts[1] + struct.pack(">iqi", 0, 0, len(body)) + body
    record += struct.pack(">B", len(topic)) + topic.encode() + struct.pack(">H", len(properties)) + properties.encode()
    return json_frame(39, fields, opaque=opaque, flag=ONEWAY, body=record)


def send_back(group: str, opaque: int = 1, *, flag: int = 0) -> bytes:
    """Return a consumer's send-back (36)."""
    return json_frame(36, {"group": group, "offset": "12", "delayLevel": "0"}, opaque=opaque, flag=flag)


def pull(
    opaque: int = 1, *, code: int = 11, group: str = "g", topic: str = "orders", flag: int = 0, binary: bool = False
) -> bytes:
    """Return a pull request, which the broker may hold open."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    return (binary_frame if binary else json_frame)(code, fields, opaque=opaque, flag=flag)


def records(*sizes: int) -> bytes:
    """Return the body of an answer with records of these lengths, at least 91 each."""
    return b"".join(struct.pack(">i", size) + b"r" * (size - 4) for size in sizes)


def heartbeat(opaque: int = 1, *, body: bytes = b"{}", binary: bool = False) -> bytes:
    """Return an unlimited request with an immediate answer."""
    return (binary_frame if binary else json_frame)(34, opaque=opaque, body=body)


def view_limits(opaque: int = 1, *, flag: int = 0, body: bytes = b"", binary: bool = False) -> bytes:
    return (binary_frame if binary else json_frame)(9002, opaque=opaque, flag=flag, body=body)


def update_limit(
    topic: str | None,
    qps: str | None,
    opaque: int = 1,
    *,
    flag: int = 0,
    body: bytes = b"",
    binary: bool = False,
    **others: str,
) -> bytes:
    """Return a request to change a limit, in a Java tool's encoding."""
    fields = {"topic": topic, "topicLimitQps": qps, **others}
    given = {name: value for name, value in fields.items() if value is not None}
    return (binary_frame if binary else json_frame)(9003, given, opaque=opaque, flag=flag, body=body)


def unparsable(opaque: int = 1, *, body: bytes = b"") -> bytes:
    """Return a frame with an unreadable header."""
    return frame(b"this is no header, %d" % opaque, body)


def answer(opaque: int = 1, code: int = 0, *, body: bytes = b"", filler: int = 0) -> bytes:
    """Return a broker's answer. ``filler`` makes its header longer."""
    return json_frame(code, {"msgId": "7F00000200002A9F" + "0" * filler}, opaque=opaque, flag=RESPONSE, body=body)


def broker_request(opaque: int = 1, code: int = 40) -> bytes:
    """Return one of the broker's own requests to a client."""
    return json_frame(code, {"consumerGroup": "g"}, opaque=opaque, flag=ONEWAY)


def cut(stream: bytes, *offsets: int) -> Iterator[bytes]:
    """Yield the pieces of a stream cut at these offsets. Those outside it are ignored."""
    edges = sorted({0, len(stream), *(offset for offset in offsets if 0 < offset < len(stream))})
    for start, stop in pairwise(edges):
        yield stream[start:stop]


def split(stream: bytes) -> Iterator[bytes]:
    """Yield the frames of a stream of complete ones."""
    at = 0
    while at < len(stream):
        (length,) = struct.unpack_from(">i", stream, at)
        stop = at + 4 + length
        if length < 4 or stop > len(stream):
            raise ValueError(f"no whole frame at offset {at}")
        yield stream[at:stop]
        at = stop


def read_body(whole: bytes) -> bytes:
    (word,) = struct.unpack_from(">I", whole, 4)
    return whole[8 + (word & 0xFFFFFF) :]


def read_header(whole: bytes) -> dict[str, object]:
    (word,) = struct.unpack_from(">I", whole, 4)
    if word >> 24:
        raise ValueError("not a JSON header")
    header = json.loads(whole[8 : 8 + word])
    assert isinstance(header, dict)
    return header
