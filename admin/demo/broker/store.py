"""Topics, queues and the messages in them, in memory and bounded: the oldest messages go first.

Messages are kept as the records that a pull answers with, so that a pull only joins bytes. The store knows
nothing of groups, connections or time; the caller says when a message was stored.
"""

import ipaddress
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from zlib import crc32

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackConfig:
    """Everything configurable; the defaults suit the demo.

    Attributes:
        host: IP address that both listeners bind.
        broker_port: TCP port of the broker; 0 takes a free one.
        name_server_port: TCP port of the name server; 0 takes a free one.
        cluster: name of the cluster in routes.
        broker_name: name of the broker in routes.
        default_queues: queues of the template topic, and the most that an auto-created topic gets.
        max_queue_messages: messages that one queue keeps; the oldest go first.
        max_queue_bytes: bytes that one queue keeps.
        max_store_bytes: bytes that all queues keep together.
        max_topics: topics beyond this are refused.
        max_groups: consumer groups beyond this are refused.
        max_held_pulls: long polls of one connection; beyond it they are answered at once.
        max_pull_bytes: bytes of one pull's answer, unless its first message alone is larger.
    """

    host: str = "127.0.0.1"
    broker_port: int = 10911
    name_server_port: int = 9876
    cluster: str = "DefaultCluster"
    broker_name: str = "loopback"
    default_queues: int = 8
    max_queue_messages: int = 10_000
    max_queue_bytes: int = 4 << 20
    max_store_bytes: int = 32 << 20
    max_topics: int = 10_000
    max_groups: int = 10_000
    max_held_pulls: int = 1_000
    max_pull_bytes: int = 256 << 10


MAGIC = 0xDAA320A7
#: sysFlag bits that say that the host has 16 address bytes.
BORN_HOST_V6 = 1 << 4
STORE_HOST_V6 = 1 << 5

MAX_TOPIC_BYTES = 127
MAX_PROPERTIES_BYTES = 32_767

_IPV4_HOST_BYTES = 8
#: Everything before the born host, and the fixed parts after it.
_HEAD = struct.Struct(">iIiiiqqiq")
_STORE_TIMESTAMP = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
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


def pack_host(host: str, port: int) -> bytes:
    """Return 8 or 20 bytes for an address; a name that is no IP address counts as 127.0.0.1."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        address = b"\x7f\x00\x00\x01"
    return address + port.to_bytes(4, "big")


# What is stored, within bounds, and as it travels in the answer to a pull: one record for each message.
#
# A record is (big-endian) ``i32 totalSize``, ``i32 magic``, ``i32 bodyCRC``, ``i32 queueId``, ``i32 flag``,
# ``i64 queueOffset``, ``i64 physicalOffset``, ``i32 sysFlag``, ``i64 bornTimestamp``, born host,
# ``i64 storeTimestamp``, store host, ``i32 reconsumeTimes``, ``i64 preparedTransactionOffset``, ``i32 bodyLen`` and
# body, ``i8 topicLen`` and topic, ``i16 propertiesLen`` and properties; a host is its 4 or 16 address bytes and an
# ``i32`` port.
#
# Requests and answers themselves are not this module's: see ``proxy.protocols.rocketmq.wire.command``.
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


#: What a stored message costs besides its record: the objects and table entries around it, measured.
_OVERHEAD_BYTES: Final = 400

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4

#: The template whose route producers ask for before they send to a topic that does not exist yet.
TEMPLATE_TOPIC: Final = "TBW102"


_NAME_CHARACTERS: Final = frozenset("%|-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def is_legal_name(name: str, max_characters: int = MAX_TOPIC_BYTES) -> bool:
    """Return whether a topic or group may have this name."""
    return 0 < len(name) <= max_characters and _NAME_CHARACTERS.issuperset(name)


class TopicRefusedError(Exception):
    """A topic was not made: its name is illegal, or there are as many as the configuration allows."""


class Found(Enum):
    """How a read of a queue ended; the names are the remarks of a real broker."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"


class Stored(msgspec.Struct, gc=False, frozen=True):
    """One message in its queue.

    Attributes:
        record: the bytes a pull answers with.
        queue_offset: its number in the queue.
        physical_offset: its place in the log, by which clients send it back.
        store_ms: when it was stored, Unix milliseconds.
        tag: value of its property TAGS, or empty.
    """

    record: bytes
    queue_offset: int
    physical_offset: int
    store_ms: int
    tag: str


class Reading(msgspec.Struct, gc=False):
    """What a read of a queue gave."""

    found: Found
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""


class Queue:
    """The messages of one queue; ``min_offset`` is the oldest that is still there."""

    __slots__ = ("max_offset", "messages", "size_bytes")

    def __init__(self) -> None:
        self.messages: deque[Stored] = deque()
        self.max_offset = 0
        self.size_bytes = 0

    @property
    def min_offset(self) -> int:
        """Return the offset of the oldest message, or of the next one when there is none."""
        return self.max_offset - len(self.messages)


class Topic:
    """One topic. Queues are made when they are first written, so that a made-up topic costs little."""

    __slots__ = ("name", "perm", "queue_count", "queues", "stored")

    def __init__(self, name: str, queue_count: int, perm: int) -> None:
        self.name = name
        self.queue_count = queue_count
        self.perm = perm
        self.queues: dict[int, Queue] = {}
        self.stored = 0


_EMPTY_QUEUE: Final = Queue()


class Store:
    """All topics and the one log that their messages share."""

    def __init__(self, config: LoopbackConfig, store_host: bytes) -> None:
        self._config = config
        self.store_host = store_host
        self.topics: dict[str, Topic] = {}
        self.dropped = 0
        self.size_bytes = 0
        self._next_physical_offset = 0
        self._log: OrderedDict[int, tuple[Topic, Stored]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many messages are kept."""
        return len(self._log)

    def create_topic(self, name: str, queue_count: int, perm: int = PERM_READ | PERM_WRITE) -> Topic:
        """Return the topic, made if it is not there.

        Raises:
            TopicRefusedError: the name is illegal, or the configured number of topics is reached.
        """
        topic = self.topics.get(name)
        if topic is None:
            if not is_legal_name(name):
                raise TopicRefusedError(f"a topic's name is 1 to {MAX_TOPIC_BYTES} of A-Z a-z 0-9 % | - _")
            if len(self.topics) >= self._config.max_topics:
                raise TopicRefusedError(f"topic {name} was not made: there are already {len(self.topics)} topics")
            topic = self.topics[name] = Topic(name, queue_count, perm)
        return topic

    def append(self, topic: Topic, message: Message, tag: str, store_ms: int) -> Stored:
        """Store a message at the end of its queue; what exceeds the bounds is dropped from the old end.

        Raises:
            ValueError: the message does not fit a record.
        """
        queue = topic.queues.get(message.queue_id)
        if queue is None:
            queue = topic.queues[message.queue_id] = Queue()
        queue_offset, physical_offset = queue.max_offset, self._next_physical_offset
        record = encode_record(
            message,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            store_ms=store_ms,
            store_host=self.store_host,
        )
        stored = Stored(record, queue_offset, physical_offset, store_ms, tag)
        self._next_physical_offset += len(record)
        queue.messages.append(stored)
        queue.max_offset += 1
        size = len(record) + _OVERHEAD_BYTES
        queue.size_bytes += size
        self.size_bytes += size
        topic.stored += 1
        self._log[physical_offset] = (topic, stored)
        config = self._config
        while len(queue.messages) > config.max_queue_messages or queue.size_bytes > config.max_queue_bytes:
            self._drop_oldest(queue)
        while self.size_bytes > config.max_store_bytes:
            topic_of_oldest, oldest = self._log[next(iter(self._log))]
            self._drop_oldest(self._queue_of(topic_of_oldest, oldest))
        return stored

    def _queue_of(self, topic: Topic, stored: Stored) -> Queue:
        # The oldest message of the log is the oldest of its queue, so its queue is the one that starts with it.
        return next(q for q in topic.queues.values() if q.messages and q.messages[0] is stored)

    def _drop_oldest(self, queue: Queue) -> None:
        stored = queue.messages.popleft()
        size = len(stored.record) + _OVERHEAD_BYTES
        queue.size_bytes -= size
        self.size_bytes -= size
        self.dropped += 1
        del self._log[stored.physical_offset]

    def queue(self, topic_name: str, queue_id: int) -> Queue:
        """Return a queue to look at; one that was never written is empty."""
        topic = self.topics.get(topic_name)
        return _EMPTY_QUEUE if topic is None else topic.queues.get(queue_id, _EMPTY_QUEUE)

    def read(
        self, queue: Queue, offset: int, *, max_messages: int, max_bytes: int, accepts: Callable[[str], bool] | None
    ) -> Reading:
        """Read messages from ``offset`` on; ``accepts`` says by a message's tag whether it is wanted."""
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return Reading(Found.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return Reading(Found.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Reading(Found.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Reading(Found.OFFSET_OVERFLOW_BADLY, high, low, high)
        parts: list[bytes] = []
        size = 0
        messages = queue.messages
        while offset < high and len(parts) < max_messages:
            stored = messages[offset - low]
            if accepts is None or accepts(stored.tag):
                if parts and size + len(stored.record) > max_bytes:
                    break
                size += len(stored.record)
                parts.append(stored.record)
            offset += 1
        found = Found.FOUND if parts else Found.NO_MATCHED_MESSAGE
        return Reading(found, offset, low, high, b"".join(parts))

    def stored(self) -> Mapping[str, int]:
        """Return how many messages each topic has been given so far, the dropped ones included."""
        return {name: topic.stored for name, topic in self.topics.items() if topic.stored}
