"""Confirms publishes after consumers have acknowledged the messages.

A message waits until each of its queues has had an ack from a consumer. The publisher's session then sends the confirm.
If a consumer rejects the message or takes too long, the message *falls back*: depending on the rule, the session either
republishes it unmarked and lets the broker confirm it, or refuses it.

``docs/confirm-after-consume.md`` describes a destination's states, window, samples and pauses.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Final, Literal

from limiter.rules.resource import Resource
from proxy.protocols.amqp091.channel import Channel, Deliveries, Delivery
from proxy.protocols.amqp091.memory import SharedMemory
from proxy.stats.snapshot import ConfirmState

State = Literal["after_consume", "no_consumer", "auto_ack", "behind", "falls_back", "no_gain", "memory"]
Outcome = Literal["consumed", "late", "undone", "parted"]
"""Why a message stopped waiting: it was acknowledged (``consumed``), it timed out (``late``), it can no longer be
acknowledged (``undone``), or its consumers or its publisher have left (``parted``).
"""

FIRST_WINDOW: Final = 16
MAX_WINDOW: Final = 10_000
_SOON: Final = 5  # within 1/5 of the allowed time
#: The first samples are taken after this many consumed messages each. Later ones are _SAMPLE_EACH_NS apart.
_BETWEEN_SAMPLES: Final = 4
_FIRST_SAMPLES: Final = 4
_SAMPLE_EACH_NS: Final = 1_000_000_000
_MEAN_OF_SAMPLES: Final = 4
_MEAN_OF_CONSUMED: Final = 16
_FIRST_PAUSE_NS: Final = 1_000_000_000
_MAX_PAUSE_NS: Final = 60 * _FIRST_PAUSE_NS
_OBJECT_BYTES: Final = 1536
MAX_DESTINATIONS: Final = 4096
_LOOKED_AT: Final = 64
_MS: Final = 1_000_000
_BITS: Final = 64


@dataclass(eq=False, slots=True)
class Consumers:
    acknowledging: int = 0
    automatic: int = 0
    destination: "Destination | None" = None


@dataclass(eq=False, slots=True)
class Waiting:
    number: int  # random, so clients cannot guess it
    destination: "Destination"
    inbox: "Inbox"
    channel: Channel
    sequence: int  # the client's publish sequence number
    tag: int  # the broker's publish sequence number
    frames: bytes
    since_ns: int
    within_ns: int
    persists: bool
    missing: int  # number of queues whose consumers must acknowledge it
    acked: set[bytes] = field(default_factory=set)
    deliveries: list[tuple[Deliveries, int]] = field(default_factory=list)
    ended: bool = False

    def size_bytes(self) -> int:
        return len(self.frames) + _OBJECT_BYTES


@dataclass(eq=False, slots=True)
class Destination:
    resource: Resource
    consumers: Consumers | None
    waiting: OrderedDict[int, Waiting] = field(default_factory=OrderedDict)  # by number, oldest first
    window: int = FIRST_WINDOW
    after_consume_total: int = 0
    broker_total: int = 0
    persisted_total: int = 0
    nacked_total: int = 0
    _soon: int = 0
    # Since the last reset:
    _consumed: int = 0
    _consumers_ns: int = 0  # mean latency of consumer acks
    _samples: int = 0  # samples started
    _sample_ns: int = 0
    _sampled: int = 0  # samples completed
    _broker_ns: int = 0  # mean latency of the broker's confirms
    _gains: bool = False  # whether consumers are faster than the broker
    _is_behind: bool = False
    paused_until_ns: int = 0
    _paused_as: State = "behind"
    _pause_ns: int = 0

    def update(self, now_ns: int, *, is_full: bool) -> State:
        state = self._state(now_ns)
        if state != "after_consume":
            self.window, self._soon = FIRST_WINDOW, 0
            self._consumed = self._samples = self._sampled = 0
            self._gains = False
        elif is_full:
            return "memory"
        return state

    def _state(self, now_ns: int) -> State:
        consumers = self.consumers
        if consumers is not None:
            if consumers.automatic:
                return "auto_ack"
            if not consumers.acknowledging:
                return "no_consumer"
        if now_ns < self.paused_until_ns:
            return self._paused_as
        if not self.waiting:
            self._is_behind = False
        elif not self._is_behind:
            oldest = next(iter(self.waiting.values()))
            self._is_behind = now_ns - oldest.since_ns > oldest.within_ns // _SOON
        return "behind" if self._is_behind else "after_consume"

    def consumed(self, message: Waiting, now_ns: int) -> None:
        self.after_consume_total += 1
        self._consumed += 1
        self._consumers_ns = _mean(self._consumers_ns, now_ns - message.since_ns, self._consumed, _MEAN_OF_CONSUMED)
        if now_ns - message.since_ns > message.within_ns // _SOON or self._is_behind or now_ns < self.paused_until_ns:
            return
        self._soon += 1
        if self._soon >= self.window:
            self._soon = 0
            self.window = min(2 * self.window, MAX_WINDOW)
            if self._gains:
                self._pause_ns = 0

    def begins_sample(self, now_ns: int) -> bool:
        if self._samples < _FIRST_SAMPLES:
            due = self._consumed >= _BETWEEN_SAMPLES * (self._samples + 1)
        else:
            due = now_ns - self._sample_ns >= _SAMPLE_EACH_NS
        if due:
            self._samples += 1
            self._sample_ns = now_ns
        return due

    def sampled(self, took_ns: int, now_ns: int) -> None:
        self._sampled += 1
        self._broker_ns = _mean(self._broker_ns, took_ns, self._sampled, _MEAN_OF_SAMPLES)
        if self._sampled >= _FIRST_SAMPLES and self._consumed >= _FIRST_SAMPLES:
            self._gains = 5 * self._consumers_ns <= 4 * self._broker_ns
            if not self._gains:
                self.pause("no_gain", now_ns)

    def pause(self, state: State, now_ns: int) -> None:
        if now_ns >= self.paused_until_ns:
            self._pause_ns = min(max(_FIRST_PAUSE_NS, 2 * self._pause_ns), _MAX_PAUSE_NS)
            self.paused_until_ns = now_ns + self._pause_ns
            self._paused_as = state


def _mean(mean_ns: int, value_ns: int, count: int, most: int) -> int:
    return mean_ns + (value_ns - mean_ns) // min(count, most)


class Inbox:
    """One connection's publishes that wait for consumers. ``ended`` lists those to answer now, in order."""

    __slots__ = ("_waiting", "_wake", "ended")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.ended: deque[tuple[Waiting, Outcome]] = deque()
        self._waiting: dict[int, OrderedDict[int, Waiting]] = {}  # by allowed time, then oldest first

    def add(self, message: Waiting) -> None:
        of_time = self._waiting.get(message.within_ns)
        if of_time is None:
            of_time = self._waiting[message.within_ns] = OrderedDict()
            self._wake()
        of_time[message.number] = message

    def discard(self, message: Waiting) -> None:
        of_time = self._waiting[message.within_ns]
        del of_time[message.number]
        if not of_time:
            del self._waiting[message.within_ns]

    def tell(self, message: Waiting, outcome: Outcome) -> None:
        if not self.ended:
            self._wake()
        self.ended.append((message, outcome))

    def all(self) -> Iterator[Waiting]:
        return (message for of_time in self._waiting.values() for message in of_time.values())

    def due(self, now_ns: int) -> Iterator[Waiting]:
        for within_ns, of_time in self._waiting.items():
            for message in of_time.values():
                if message.since_ns + within_ns > now_ns:
                    break
                yield message

    def due_ns(self) -> int | None:
        times = [next(iter(of_time.values())).since_ns + within_ns for within_ns, of_time in self._waiting.items()]
        return min(times, default=None)


class AfterConsume:
    def __init__(self) -> None:
        self._random = SystemRandom()
        self.maker = self._random.getrandbits(_BITS)
        self.waiting_bytes = 0
        self.max_bytes = 0
        self._waiting: dict[int, Waiting] = {}
        self._destinations: OrderedDict[Resource, Destination] = OrderedDict()
        self._consumers: dict[str, Consumers] = {}

    def destination(self, resource: Resource, *, is_queue: bool) -> Destination:
        destination = self._destinations.get(resource)
        if destination is None:
            if len(self._destinations) >= MAX_DESTINATIONS:
                self._forget_some()
            consumers = self._consumers_of(resource.name) if is_queue else None
            destination = self._destinations[resource] = Destination(resource, consumers)
            if consumers is not None:
                consumers.destination = destination
        return destination

    def _forget_some(self) -> None:
        for _ in range(min(_LOOKED_AT, len(self._destinations) // 2)):
            resource, each = self._destinations.popitem(last=False)
            if each.waiting:
                self._destinations[resource] = each
            elif each.consumers is not None:
                each.consumers.destination = None
                self._forget_unused(resource.name)

    def states(self, now_ns: int) -> Sequence[ConfirmState]:
        return [self._shown(each, now_ns) for each in self._destinations.values()]

    def _shown(self, each: Destination, now_ns: int) -> ConfirmState:
        state = each.update(now_ns, is_full=self._is_full())
        oldest = next(iter(each.waiting.values()), None)
        waits = state == "after_consume"
        return ConfirmState(
            each.resource.kind,
            each.resource.name,
            "after_consume" if waits else "broker",
            "" if waits else state,
            len(each.waiting),
            0 if oldest is None else max(0, now_ns - oldest.since_ns) // _MS,
            each.window,
            each.after_consume_total,
            each.broker_total,
            each.persisted_total,
            each.nacked_total,
        )

    def _is_full(self) -> bool:
        return self.waiting_bytes >= self.max_bytes

    def takes(self, destination: Destination, now_ns: int) -> int:
        """Return a random id for a new message, or 0 if the message must not wait for consumers."""
        state = destination.update(now_ns, is_full=self._is_full())
        if state != "after_consume" or len(destination.waiting) >= destination.window:
            return 0
        return self._random.getrandbits(_BITS) or 1

    def begin(self, message: Waiting) -> None:
        self._waiting[message.number] = message
        message.destination.waiting[message.number] = message
        message.inbox.add(message)
        self.waiting_bytes += message.size_bytes()

    def get(self, number: int) -> Waiting | None:
        return self._waiting.get(number)

    def forget(self, message: Waiting | None) -> None:
        if message is None or message.ended:
            return
        message.ended = True
        del self._waiting[message.number]
        del message.destination.waiting[message.number]
        message.inbox.discard(message)
        self.waiting_bytes -= message.size_bytes()
        for deliveries, tag in message.deliveries:
            del deliveries.by_tag[tag]
        message.deliveries.clear()

    def fall_back(self, message: Waiting, outcome: Outcome, now_ns: int) -> None:
        if message.ended:
            return
        destination = message.destination
        self.forget(message)
        if message.persists:
            destination.persisted_total += 1
        else:
            destination.nacked_total += 1
        if outcome != "parted":
            destination.pause("behind" if outcome == "late" else "falls_back", now_ns)
        message.inbox.tell(message, outcome)

    def _consumers_of(self, queue: str) -> Consumers:
        consumers = self._consumers.get(queue)
        if consumers is None:
            consumers = self._consumers[queue] = Consumers()
        return consumers

    def _forget_unused(self, queue: str) -> None:
        consumers = self._consumers.get(queue)
        if consumers is not None and not (consumers.acknowledging or consumers.automatic or consumers.destination):
            del self._consumers[queue]

    def add_consumer(self, queue: str, *, automatic: bool) -> None:
        consumers = self._consumers_of(queue)
        consumers.automatic += automatic
        consumers.acknowledging += not automatic

    def remove_consumer(self, queue: str, now_ns: int, *, automatic: bool) -> None:
        """Remove a consumer. If no consumer that sends acks is left, the queue's undelivered messages fall back."""
        consumers = self._consumers_of(queue)
        consumers.automatic -= automatic
        consumers.acknowledging -= not automatic
        if consumers.destination is not None and not (automatic or consumers.acknowledging):
            for message in [each for each in consumers.destination.waiting.values() if not each.deliveries]:
                self.fall_back(message, "parted", now_ns)
        self._forget_unused(queue)

    def find(self, maker: int, number: int) -> Waiting | None:
        return self._waiting.get(number) if maker == self.maker else None

    def delivered(self, message: Waiting, deliveries: Deliveries, tag: int, queue: bytes) -> None:
        if tag in deliveries.by_tag:
            self._take_back(deliveries, tag)
        deliveries.by_tag[tag] = Delivery(message.number, queue)
        message.deliveries.append((deliveries, tag))

    def _take_back(self, deliveries: Deliveries, tag: int) -> tuple[Waiting, bytes]:
        number, queue = deliveries.by_tag.pop(tag)
        message = self._waiting[number]
        message.deliveries.remove((deliveries, tag))
        return message, queue

    def acknowledged(self, deliveries: Deliveries, tags: Iterable[int], now_ns: int) -> None:
        for tag in tags:
            if tag not in deliveries.by_tag:
                continue
            message, queue = self._take_back(deliveries, tag)
            # Count queues, not acks, because the broker may redeliver the message before it sees the ack.
            message.acked.add(queue)
            if len(message.acked) < message.missing:
                continue
            destination = message.destination
            self.forget(message)
            destination.consumed(message, now_ns)
            message.inbox.tell(message, "consumed")

    def rejected(self, deliveries: Deliveries, tags: Iterable[int], now_ns: int) -> None:
        for tag in tags:
            if tag in deliveries.by_tag:
                self.fall_back(self._waiting[deliveries.by_tag[tag].number], "undone", now_ns)

    def given_back(self, deliveries: Deliveries, tags: Iterable[int], now_ns: int) -> None:
        for tag in tags:
            message, _ = self._take_back(deliveries, tag)
            consumers = message.destination.consumers
            if consumers is not None and not consumers.acknowledging and not message.deliveries:
                self.fall_back(message, "parted", now_ns)


@dataclass(slots=True)
class Hub(SharedMemory):
    # How many connections the broker closed because of replays, by queue number.
    failures: dict[int, int] = field(default_factory=dict)
    after_consume: AfterConsume = field(default_factory=AfterConsume)

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.after_consume.waiting_bytes


def confirm_states(hub: Hub, now_ns: int) -> Sequence[ConfirmState]:
    return hub.after_consume.states(now_ns)
