"""Stored messages in the form of a pull's answer, written and read."""

import struct
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import msgspec

_MAGIC: Final = 0xDAA320A7
_HEAD: Final = struct.Struct(">iIiiiqqiq8sq8siqi")
_PROPERTIES_LENGTH: Final = struct.Struct(">h")
# ``sysFlag`` bits of hosts with 16 address bytes. Here all have 4.
_V6_HOSTS: Final = 1 << 4 | 1 << 5


class Message(msgspec.Struct, gc=False):
    """A stored message. Times are Unix milliseconds, hosts are 4 address bytes and a port of 4 bytes."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int = 0


class Record(msgspec.Struct, gc=False):
    """A decoded record: the message and where and when it was stored."""

    message: Message
    queue_offset: int
    physical_offset: int
    store_ms: int
    store_host: bytes


def encode_record(
    message: Message, *, queue_offset: int, physical_offset: int, store_ms: int, store_host: bytes
) -> bytes:
    """Return a message's record.

    It is (big-endian) ``i32 totalSize``, ``i32 magic``, ``i32 bodyCRC``, ``i32 queueId``, ``i32 flag``,
    ``i64 queueOffset``, ``i64 physicalOffset``, ``i32 sysFlag``, ``i64 bornTimestamp``, born host,
    ``i64 storeTimestamp``, store host, ``i32 reconsumeTimes``, ``i64 preparedTransactionOffset``, ``i32 bodyLen`` and
    body, ``i8 topicLen`` and topic, ``i16 propertiesLen`` and properties.

    Raises:
        struct.error: a number or a length does not fit its field.
    """
    topic, body, properties = message.topic.encode(), message.body, message.properties
    total = _HEAD.size + len(body) + 1 + len(topic) + _PROPERTIES_LENGTH.size + len(properties)
    head = _HEAD.pack(
        total,
        _MAGIC,
        crc32(body) & 0x7FFF_FFFF,
        message.queue_id,
        message.flag,
        queue_offset,
        physical_offset,
        message.sys_flag & ~_V6_HOSTS,
        message.born_ms,
        message.born_host,
        store_ms,
        store_host,
        message.reconsume_times,
        0,
        len(body),
    )
    return b"".join((head, body, bytes([len(topic)]), topic, _PROPERTIES_LENGTH.pack(len(properties)), properties))


def decode_records(body: bytes) -> Iterator[Record]:
    """Parse the body of a pull's answer.

    Raises: ValueError: the bytes are not complete records.
    """
    while body:
        size = int.from_bytes(body[:4], "big")
        if not _HEAD.size < size <= len(body):
            raise ValueError(f"a record of {size} bytes in the {len(body)} that are left")
        yield _decode(body[:size])
        body = body[size:]


def _decode(record: bytes) -> Record:
    _, magic, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, *rest = _HEAD.unpack_from(
        record
    )
    store_ms, store_host, reconsume_times, _, body_length = rest
    topic_at = _HEAD.size + body_length + 1
    topic_end = topic_at + record[topic_at - 1]
    properties_at = topic_end + _PROPERTIES_LENGTH.size
    (properties_length,) = _PROPERTIES_LENGTH.unpack_from(record, topic_end)
    if magic != _MAGIC or properties_at + properties_length != len(record):
        raise ValueError(f"not a stored message: {record[:100]!r}")
    message = Message(
        topic=record[topic_at:topic_end].decode(),
        queue_id=queue_id,
        body=record[_HEAD.size : topic_at - 1],
        properties=record[properties_at:],
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
    )
    return Record(message, queue_offset, physical_offset, store_ms, store_host)
