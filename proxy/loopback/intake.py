"""The way of a message into the store: at once, after a delay level, or to the dead letters.

Used alike by sends, send-backs and ended transactions. It knows message properties, but no requests.
"""

import os
from collections.abc import Callable
from typing import Final

import msgspec

from proxy.loopback.config import LoopbackConfig
from proxy.loopback.records import Message
from proxy.loopback.store import PERM_READ, PERM_WRITE, Store, Stored, Topic
from proxy.loopback.timers import Timers
from proxy.protocols.rocketmq.codes import RETRY_PREFIX

DLQ_PREFIX: Final = "%DLQ%"
REGION: Final = "DefaultRegion"

_NS_PER_S: Final = 1_000_000_000
_MAX_LEVEL_DIGITS: Final = 9
_NAME_END: Final = "\x01"
_VALUE_END: Final = "\x02"


class DelayedFullError(Exception):
    """As many bytes wait for a delay level as the configuration allows."""


def property_of(properties: str, name: str) -> str | None:
    """Return one property's value; the last one wins, as in the clients."""
    start = properties.rfind(f"{_VALUE_END}{name}{_NAME_END}")
    if start >= 0:
        start += len(name) + 2
    elif properties.startswith(name + _NAME_END):
        start = len(name) + 1
    else:
        return None
    end = properties.find(_VALUE_END, start)
    return properties[start:] if end < 0 else properties[start:end]


def with_property(properties: str, name: str, value: str) -> str:
    """Return the properties with one more; an earlier value of the same name is taken out."""
    if property_of(properties, name) is not None:
        pairs = [pair for pair in properties.split(_VALUE_END) if pair and not pair.startswith(name + _NAME_END)]
        properties = "".join(pair + _VALUE_END for pair in pairs)
    elif properties and not properties.endswith(_VALUE_END):
        properties += _VALUE_END
    return f"{properties}{name}{_NAME_END}{value}{_VALUE_END}"


def delay_level(properties: str) -> int:
    """Return the delay level that a message asks for; 0 is none."""
    level = property_of(properties, "DELAY") if "DELAY\x01" in properties else None
    # No client writes more digits, and Python refuses to read very many.
    return int(level) if level and level.isdecimal() and len(level) <= _MAX_LEVEL_DIGITS else 0


class Intake:
    """Puts messages where they belong and tells ``arrived`` about every queue that got one."""

    def __init__(
        self,
        config: LoopbackConfig,
        store: Store,
        timers: Timers,
        wall_ms: Callable[[], int],
        arrived: Callable[[str, int], None],
    ) -> None:
        self._config = config
        self._store = store
        self._timers = timers
        self._wall_ms = wall_ms
        self._arrived = arrived
        self._unique = os.urandom(10).hex().upper()
        self._made = 0
        self.delayed_bytes = 0
        self.delayed = 0

    def unique_key(self) -> str:
        """Return a UNIQ_KEY for a message whose client gave it none: 32 hexadecimal digits."""
        self._made += 1
        return f"{self._unique}{self._made & 0xFFFF_FFFF_FFFF:012X}"

    def put(self, topic: Topic, message: Message, tag: str) -> Stored:
        """Store a message so that consumers see it.

        Raises:
            ValueError: it does not fit a record.
        """
        stored = self._store.append(topic, message, tag, self._wall_ms())
        self._arrived(topic.name, message.queue_id)
        return stored

    def put_later(self, topic: Topic, message: Message, properties: str, level: int, now_ns: int) -> int:
        """Store a message once its delay level has passed; returns the place in the log that it takes now.

        Args:
            topic: where it goes then.
            message: its ``properties`` are made from the next argument.
            properties: what it carries; the level, topic and queue are added, as a real broker does.
            level: 1 or more; too high a level counts as the highest.
            now_ns: monotonic nanoseconds.

        Raises:
            DelayedFullError: too much waits already.
        """
        size = len(message.body) + len(properties)
        if self.delayed_bytes + size > self._config.max_delayed_bytes:
            raise DelayedFullError(f"{self.delayed} delayed messages wait already; the bound is max_delayed_bytes")
        levels = self._config.delay_levels_s
        level = min(level, len(levels))
        properties = with_property(properties, "DELAY", str(level))
        properties = with_property(properties, "REAL_TOPIC", topic.name)
        properties = with_property(properties, "REAL_QID", str(message.queue_id))
        message = msgspec.structs.replace(message, properties=properties.encode())
        tag = property_of(properties, "TAGS") or ""
        self.delayed += 1
        self.delayed_bytes += size

        def deliver(_now_ns: int) -> None:
            self.delayed -= 1
            self.delayed_bytes -= size
            self.put(topic, message, tag)

        self._timers.at(now_ns + round(levels[level - 1] * _NS_PER_S), deliver)
        return self._store.reserve(size)

    def retry_topic(self, group: str) -> Topic:
        """Return a group's retry topic, made if it is not there.

        Raises:
            TopicRefusedError: it is not to be had.
        """
        return self._store.create_topic(RETRY_PREFIX + group, 1)

    def dead_letters(self, group: str) -> Topic:
        """Return a group's dead-letter topic, made if it is not there.

        Raises:
            TopicRefusedError: it is not to be had.
        """
        return self._store.create_topic(DLQ_PREFIX + group, 1, PERM_READ | PERM_WRITE)
