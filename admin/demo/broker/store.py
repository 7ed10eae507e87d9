"""Topics, queues and the messages in them, in memory and bounded: the oldest messages go first.

Messages are kept as the records that a pull answers with, so that a pull only joins bytes. The store knows
nothing of groups, connections or time; the caller says when a message was stored.
"""

import re
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

#: The template whose route producers ask for before they send to a topic that does not exist yet.
TEMPLATE_TOPIC: Final = "TBW102"
#: Queues of the template, and the most that a topic gets which is made by its first message.
DEFAULT_QUEUES: Final = 8

MAGIC: Final = 0xDAA320A7
HEAD: Final = struct.Struct(">iIiiiqqiq8sq8siqi")
#: The type of the length in front of the properties.
PROPERTIES_LENGTH: Final = struct.Struct(">h")

#: Bytes of all messages together.
_MAX_STORE_BYTES: Final = 32 << 20
#: What a stored message costs besides its record: the objects and table entries around it, measured.
_OVERHEAD_BYTES: Final = 400
#: ``sysFlag`` bits that say that a host has 16 address bytes; here all have 4.
_V6_HOSTS: Final = 1 << 4 | 1 << 5
_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")


class IllegalNameError(ValueError):
    """A topic was not made: no topic may have this name."""


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


def pack_host(host: str, port: int) -> bytes:
    """Return the 8 bytes of an IPv4 address and a port."""
    return socket.inet_aton(host) + port.to_bytes(4, "big")


def encode_record(
    message: Message, *, queue_offset: int, physical_offset: int, store_ms: int, store_host: bytes
) -> bytes:
    """Return the record of a message at its place in the log, as it travels in the answer to a pull.

    A record is (big-endian) ``i32 totalSize``, ``i32 magic``, ``i32 bodyCRC``, ``i32 queueId``, ``i32 flag``,
    ``i64 queueOffset``, ``i64 physicalOffset``, ``i32 sysFlag``, ``i64 bornTimestamp``, born host,
    ``i64 storeTimestamp``, store host, ``i32 reconsumeTimes``, ``i64 preparedTransactionOffset``, ``i32 bodyLen`` and
    body, ``i8 topicLen`` and topic, ``i16 propertiesLen`` and properties; a host is its 4 address bytes and an ``i32``
    port.

    Raises:
        struct.error: a number or a length does not fit its field.
    """
    topic, body, properties = message.topic.encode(), message.body, message.properties
    total = HEAD.size + len(body) + 1 + len(topic) + PROPERTIES_LENGTH.size + len(properties)
    head = HEAD.pack(
        total,
        MAGIC,
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
    return b"".join((head, body, bytes([len(topic)]), topic, PROPERTIES_LENGTH.pack(len(properties)), properties))


class Stored(NamedTuple):
    """One message in its queue: the bytes that a pull answers with, and the value of its property TAGS or nothing."""

    record: bytes
    tag: str


class Place(NamedTuple):
    """Where a message was stored: its number in the queue, and its place in the log of all queues."""

    queue_offset: int
    physical_offset: int


class Queue:
    """The messages of one queue; ``max_offset`` is the offset that the next one gets."""

    __slots__ = ("max_offset", "messages")

    def __init__(self) -> None:
        self.messages: deque[Stored] = deque()
        self.max_offset = 0

    @property
    def min_offset(self) -> int:
        """Return the offset of the oldest message, or of the next one when there is none."""
        return self.max_offset - len(self.messages)


class Topic:
    """One topic; ``stored`` counts all messages that it was given, those dropped since included."""

    __slots__ = ("name", "queues", "stored")

    def __init__(self, name: str, queue_count: int) -> None:
        self.name = name
        self.queues = [Queue() for _ in range(queue_count)]
        self.stored = 0


class Store:
    """All topics, and the order in which their messages came.

    Attributes:
        topics: by name.
        store_host: packed address that stored messages and message ids name.
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.store_host = pack_host("127.0.0.1", 0)
        self._size_bytes = 0
        self._next_physical_offset = 0
        #: For each message that is kept its queue, oldest first.
        self._log: deque[Queue] = deque()
        self.create_topic(TEMPLATE_TOPIC, DEFAULT_QUEUES)

    def create_topic(self, name: str, queue_count: int) -> Topic:
        """Return the topic, made if it is not there.

        Raises:
            IllegalNameError: no topic may have this name.
        """
        topic = self.topics.get(name)
        if topic is None:
            if not _LEGAL_NAME.fullmatch(name):
                raise IllegalNameError("a topic's name is 1 to 127 of A-Z a-z 0-9 % | - _")
            topic = self.topics[name] = Topic(name, queue_count)
        return topic

    def append(self, topic: Topic, message: Message, tag: str, store_ms: int) -> Place:
        """Store a message at the end of its queue, and drop the oldest of all messages if they take too much memory.

        Raises:
            struct.error: the message does not fit a record.
        """
        queue = topic.queues[message.queue_id]
        place = Place(queue.max_offset, self._next_physical_offset)
        record = encode_record(message, **place._asdict(), store_ms=store_ms, store_host=self.store_host)
        queue.messages.append(Stored(record, tag))
        queue.max_offset += 1
        topic.stored += 1
        self._next_physical_offset += len(record)
        self._log.append(queue)
        self._size_bytes += len(record) + _OVERHEAD_BYTES
        while self._size_bytes > _MAX_STORE_BYTES:
            self._size_bytes -= len(self._log.popleft().messages.popleft().record) + _OVERHEAD_BYTES
        return place

    def stored(self) -> Mapping[str, int]:
        """Return how many messages each topic has been given so far, the dropped ones included."""
        return {name: topic.stored for name, topic in self.topics.items() if topic.stored}
