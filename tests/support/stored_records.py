"""Reads stored messages back from the answer to a pull; admin.demo.broker.store writes them."""

from collections.abc import Iterator

import msgspec

from admin.demo.broker.store import HEAD, MAGIC, PROPERTIES_LENGTH, Message


class Record(msgspec.Struct, gc=False):
    """A record read back: the message and where and when it was stored."""

    message: Message
    queue_offset: int
    physical_offset: int
    store_ms: int
    store_host: bytes


def decode_records(body: bytes) -> Iterator[Record]:
    """Read the body of a pull's answer, record after record; hosts have IPv4 addresses.

    Raises:
        ValueError: the bytes are not whole records.
    """
    while body:
        size = int.from_bytes(body[:4], "big")
        if not HEAD.size < size <= len(body):
            raise ValueError(f"a record of {size} bytes in the {len(body)} that are left")
        yield _decode(body[:size])
        body = body[size:]


def _decode(record: bytes) -> Record:
    _, magic, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, *rest = HEAD.unpack_from(
        record
    )
    store_ms, store_host, reconsume_times, _, body_length = rest
    topic_at = HEAD.size + body_length + 1
    topic_end = topic_at + record[topic_at - 1]
    properties_at = topic_end + PROPERTIES_LENGTH.size
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(record, topic_end)
    if magic != MAGIC or properties_at + properties_length != len(record):
        raise ValueError(f"no stored message: {record[:100]!r}")
    message = Message(
        topic=record[topic_at:topic_end].decode(),
        queue_id=queue_id,
        body=record[HEAD.size : topic_at - 1],
        properties=record[properties_at:],
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
    )
    return Record(message, queue_offset, physical_offset, store_ms, store_host)
