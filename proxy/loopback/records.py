"""Stored messages as they travel in the answer to a pull: one record for each message.

A record is (big-endian) ``i32 totalSize``, ``i32 magic``, ``i32 bodyCRC``, ``i32 queueId``, ``i32 flag``,
``i64 queueOffset``, ``i64 physicalOffset``, ``i32 sysFlag``, ``i64 bornTimestamp``, born host, ``i64 storeTimestamp``,
store host, ``i32 reconsumeTimes``, ``i64 preparedTransactionOffset``, ``i32 bodyLen`` and body, ``i8 topicLen`` and
topic, ``i16 propertiesLen`` and properties; a host is its 4 or 16 address bytes and an ``i32`` port.

Requests and answers themselves are not this module's: see ``proxy.protocols.rocketmq.command``.
"""

import ipaddress
import struct
from collections.abc import Iterator
from zlib import crc32

import msgspec

MAGIC = 0xDAA320A7
#: sysFlag bits that say that the host has 16 address bytes.
BORN_HOST_V6 = 1 << 4
STORE_HOST_V6 = 1 << 5
#: sysFlag bits 2 and 3: 0 no transaction, 4 prepared, 8 commit, 12 rollback.
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8

MAX_TOPIC_BYTES = 127
MAX_PROPERTIES_BYTES = 32_767

_IPV4_HOST_BYTES = 8
#: Everything before the born host, and the fixed parts after it.
_HEAD = struct.Struct(">iIiiiqqiq")
_STORE_TIMESTAMP = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
_TOTAL_SIZE = struct.Struct(">i")
_PROPERTIES_LENGTH = struct.Struct(">h")
_FIXED_BYTES = _HEAD.size + _STORE_TIMESTAMP.size + _TAIL.size + 1 + _PROPERTIES_LENGTH.size


class Message(msgspec.Struct, gc=False):
    """A message on its way into a queue; times are Unix milliseconds.

    Attributes:
        topic: name of the topic.
        queue_id: queue of that topic.
        body: as the producer sent it, compressed or not.
        properties: name, byte 1, value, byte 2, repeated, UTF-8.
        flag: the producer's own flag.
        sys_flag: compression, tags and transaction bits.
        born_ms: when the producer sent it.
        born_host: the producer's address and port, packed by ``pack_host``.
        reconsume_times: how often it was redelivered.
    """

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
    """A record read back: the message and where and when it was stored."""

    message: Message
    queue_offset: int
    physical_offset: int
    store_ms: int
    store_host: bytes
    body_crc: int
    prepared_offset: int


def pack_host(host: str, port: int) -> bytes:
    """Return 8 or 20 bytes for an address; a name that is no IP address counts as 127.0.0.1."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        address = b"\x7f\x00\x00\x01"
    return address + port.to_bytes(4, "big")


def encode_record(
    message: Message, *, queue_offset: int, physical_offset: int, store_ms: int, store_host: bytes
) -> bytes:
    """Return the record of a message at its place in the log.

    Raises:
        ValueError: the topic or the properties are too long for their length fields.
    """
    topic = message.topic.encode()
    body, properties, born_host = message.body, message.properties, message.born_host
    if len(topic) > MAX_TOPIC_BYTES or len(properties) > MAX_PROPERTIES_BYTES:
        raise ValueError(
            f"a topic of {len(topic)} bytes or properties of {len(properties)} do not fit:"
            f" the limits are {MAX_TOPIC_BYTES} and {MAX_PROPERTIES_BYTES}"
        )
    sys_flag = message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(born_host) > _IPV4_HOST_BYTES:
        sys_flag |= BORN_HOST_V6
    if len(store_host) > _IPV4_HOST_BYTES:
        sys_flag |= STORE_HOST_V6
    total = _FIXED_BYTES + len(born_host) + len(store_host) + len(body) + len(topic) + len(properties)
    return b"".join(
        (
            _HEAD.pack(
                total,
                MAGIC,
                crc32(body) & 0x7FFF_FFFF,
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                sys_flag,
                message.born_ms,
            ),
            born_host,
            _STORE_TIMESTAMP.pack(store_ms),
            store_host,
            _TAIL.pack(message.reconsume_times, 0, len(body)),
            body,
            len(topic).to_bytes(1, "big"),
            topic,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    )


def decode_record(record: bytes) -> Record:
    """Read one record back.

    Raises:
        ValueError: the bytes are no record.
    """
    try:
        total, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(record)
        if total != len(record) or magic != MAGIC:
            raise ValueError(f"no stored message: size {total} of {len(record)}, magic {magic:#x}")
        at = _HEAD.size
        born_end = at + (20 if sys_flag & BORN_HOST_V6 else 8)
        (store_ms,) = _STORE_TIMESTAMP.unpack_from(record, born_end)
        store_at = born_end + _STORE_TIMESTAMP.size
        store_end = store_at + (20 if sys_flag & STORE_HOST_V6 else 8)
        reconsume_times, prepared_offset, body_length = _TAIL.unpack_from(record, store_end)
        body_at = store_end + _TAIL.size
        topic_at = body_at + body_length + 1
        topic_end = topic_at + record[topic_at - 1]
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(record, topic_end)
    except (struct.error, IndexError) as error:
        raise ValueError(f"no stored message: {error}") from error
    properties_at = topic_end + _PROPERTIES_LENGTH.size
    message = Message(
        topic=record[topic_at:topic_end].decode(),
        queue_id=queue_id,
        body=record[body_at : body_at + body_length],
        properties=record[properties_at : properties_at + properties_length],
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=record[at:born_end],
        reconsume_times=reconsume_times,
    )
    return Record(message, queue_offset, physical_offset, store_ms, record[store_at:store_end], crc, prepared_offset)


def decode_records(body: bytes) -> Iterator[Record]:
    """Read the body of a pull's answer, record after record.

    Raises:
        ValueError: the bytes are not whole records.
    """
    at = 0
    while at < len(body):
        if len(body) - at < _TOTAL_SIZE.size:
            raise ValueError(f"{len(body) - at} bytes left over after the last record")
        (size,) = _TOTAL_SIZE.unpack_from(body, at)
        if size <= 0 or size > len(body) - at:
            raise ValueError(f"a record of {size} bytes in the {len(body) - at} that are left")
        yield decode_record(body[at : at + size])
        at += size
