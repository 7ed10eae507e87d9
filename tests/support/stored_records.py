"""Reads stored messages back from the answer to a pull; admin.demo.broker.store writes them."""

import struct
from collections.abc import Iterator

import msgspec

from admin.demo.broker.store import (
    _HEAD,
    _PROPERTIES_LENGTH,
    _STORE_TIMESTAMP,
    _TAIL,
    BORN_HOST_V6,
    MAGIC,
    STORE_HOST_V6,
    Message,
)

_TOTAL_SIZE = struct.Struct(">i")


class Record(msgspec.Struct, gc=False):
    """A record read back: the message and where and when it was stored."""

    message: Message
    queue_offset: int
    physical_offset: int
    store_ms: int
    store_host: bytes
    body_crc: int
    prepared_offset: int


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
