"""Topics, queues and the messages in them, in memory and bounded: the oldest messages go first.

Messages are kept as the records that a pull answers with, so that a pull only joins bytes. The store knows
nothing of groups, connections or time; the caller says when a message was stored.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final

import msgspec

from proxy.loopback.config import LoopbackConfig
from proxy.loopback.records import MAX_TOPIC_BYTES, Message, encode_record

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

    def reserve(self, size_bytes: int) -> int:
        """Take a place in the log for a message that is stored elsewhere; nothing is found there."""
        physical_offset = self._next_physical_offset
        self._next_physical_offset += size_bytes
        return physical_offset

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

    def at(self, physical_offset: int) -> Stored | None:
        """Return the message at a place in the log, or None when it is gone."""
        entry = self._log.get(physical_offset)
        return None if entry is None else entry[1]

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

    def offset_at(self, queue: Queue, store_ms: int) -> int:
        """Return the offset of the first message stored at or after a time; the end when there is none."""
        return next((s.queue_offset for s in queue.messages if s.store_ms >= store_ms), queue.max_offset)

    def stored(self) -> Mapping[str, int]:
        """Return how many messages each topic has been given so far, the dropped ones included."""
        return {name: topic.stored for name, topic in self.topics.items() if topic.stored}

    def records(self, topic_name: str) -> Iterator[bytes]:
        """Return the records that a topic still keeps, queue after queue."""
        topic = self.topics.get(topic_name)
        for queue in () if topic is None else topic.queues.values():
            for stored in queue.messages:
                yield stored.record
