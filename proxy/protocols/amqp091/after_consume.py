"""Confirms by consumers: which messages wait for them, and whether more are to, for each queue or exchange.

A message waits until as many queues' consumers as it goes to have acknowledged it. Then its publisher's session answers
it. When that cannot be waited for any longer, or not at all, it *falls back*: that session publishes it again as it
came, and leaves the confirm to the broker, or refuses it.

Whether messages of a destination wait at all is its state, looked at for each of them:

=============  ===================================================  ================================================
state          begins when                                          ends when
=============  ===================================================  ================================================
after_consume  none of the others is                                one of the others begins
no_consumer    the queue has no consumer here                       it has one
auto_ack       a consumer of the queue here acknowledges nothing    the last such consumer has ended
behind         the oldest message waits for longer than a fifth of  nothing waits any more; if one was not consumed in
               the time it has                                      time, 1 s later, the next time 2 s, up to 60 s
falls_back     a message falls back for what a consumer did         1 s later, the next time 2 s, up to 60 s
no_gain        publishers would hear the broker nearly as soon      1 s later, the next time 2 s, up to 60 s
memory         what waits takes as much memory as it may            less does
=============  ===================================================  ================================================

The first that is true holds, from ``no_consumer`` downwards. Of exchanges the consumers are not known. In all states
but the first messages go as they came, and so does what is beyond the window. The window doubles each time as many as
it is wide were consumed soon; it begins anew after all other states but ``memory``.

What the broker would take is sampled: a few messages go as they came after the first that were consumed, and then one a
second. Consumers have to be sooner by a fifth; for less the rule is not worth the processor's time. Once they are, the
next pause is 1 s again.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from random import SystemRandom
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from limiter.plans.plans import Confirming
from limiter.rules.resource import Resource
from proxy.stats.snapshot import ConfirmState

if TYPE_CHECKING:
    from proxy.protocols.amqp091.channel import Channel

State = Literal["after_consume", "no_consumer", "auto_ack", "behind", "falls_back", "no_gain", "memory"]
Outcome = Literal["consumed", "late", "undone", "parted"]
"""Why a message waits no more: its consumers acknowledged it; they did not in time; something else became of it that
nobody can expect an ack after; or there is nobody to wait for, for a reason that is no fault of the destination."""

#: How many messages of a destination may wait at first, and at most.
FIRST_WINDOW: Final = 16
MAX_WINDOW: Final = 10_000
#: A message that waits for longer than this part of its time is late.
_SOON: Final = 5
#: After so many messages that were consumed one is a sample of the broker, for the first few samples.
_BETWEEN_SAMPLES: Final = 4
_FIRST_SAMPLES: Final = 4
_SAMPLE_EACH_NS: Final = 1_000_000_000
#: Means are of about so many; a sample is a rare thing.
_MEAN_OF_SAMPLES: Final = 4
_MEAN_OF_CONSUMED: Final = 16
_FIRST_PAUSE_NS: Final = 1_000_000_000
_MAX_PAUSE_NS: Final = 60 * _FIRST_PAUSE_NS
#: What a message that waits takes in memory besides its bytes, about.
_OBJECT_BYTES: Final = 1536
#: Destinations that are remembered; beyond it those of which nothing waits are forgotten, and their sums.
MAX_DESTINATIONS: Final = 4096
#: How many are looked at when there are more.
_LOOKED_AT: Final = 64
_MS: Final = 1_000_000
_BITS: Final = 64


class Consumers:
    """The consumers of one queue that are connected here.

    Attributes:
        acknowledging: how many of them acknowledge what they get.
        automatic: how many do not.
        destination: what is published straight to the queue, if something was.
    """

    __slots__ = ("acknowledging", "automatic", "destination")

    def __init__(self) -> None:
        self.acknowledging = self.automatic = 0
        self.destination: Destination | None = None


class Delivery(NamedTuple):
    """One delivery of a message that waits.

    Attributes:
        message: the message.
        queue: where the consumer got it from.
    """

    message: "Waiting"
    queue: bytes


class Deliveries:
    """What one consumer's channel was given of messages that wait, and has not settled.

    Attributes:
        by_tag: by their numbers there, in order.
    """

    __slots__ = ("by_tag",)

    def __init__(self) -> None:
        self.by_tag: OrderedDict[int, Delivery] = OrderedDict()

    def upto(self, tag: int, *, multiple: bool) -> list[int]:
        """Return the numbers that one of the consumer's answers is for; with ``multiple`` all up to it, 0 is all."""
        if not multiple:
            return [tag] if tag in self.by_tag else []
        return list(takewhile(lambda each: not tag or each <= tag, self.by_tag))


class Waiting:
    """One message that waits for its consumers.

    Attributes:
        number: of this process; nobody can guess it.
        destination: where it was published.
        inbox: of the session that has published it.
        channel: where that did.
        sequence: the client's number of it there.
        tag: the broker's number of it there.
        frames: as they came.
        since_ns: when it went on.
        within_ns: for how long it waits.
        missing: how many queues' consumers are still to acknowledge it.
        persists: it is published again if it falls back; otherwise it is refused.
        acked: the queues whose consumers have, if more than one is to.
        deliveries: where it is at a consumer.
        ended: it waits no more.
    """

    __slots__ = (
        "acked",
        "channel",
        "deliveries",
        "destination",
        "ended",
        "frames",
        "inbox",
        "missing",
        "number",
        "persists",
        "sequence",
        "since_ns",
        "tag",
        "within_ns",
    )

    def __init__(  # noqa: PLR0917 - all of one message
        self,
        number: int,
        destination: "Destination",
        inbox: "Inbox",
        channel: "Channel",
        sequence: int,
        frames: bytes,
        since_ns: int,
        confirming: Confirming,
        queues: int,
    ) -> None:
        self.number = number
        self.destination = destination
        self.inbox = inbox
        self.channel = channel
        self.sequence = sequence
        self.tag = 0
        self.frames = frames
        self.since_ns = since_ns
        self.within_ns = confirming.within_ns
        self.persists = confirming.persists
        self.missing = queues
        self.acked: set[bytes] | None = set() if queues > 1 else None
        self.deliveries: list[tuple[Deliveries, int]] = []
        self.ended = False

    def size_bytes(self) -> int:
        """Return what it takes in memory."""
        return len(self.frames) + _OBJECT_BYTES


class Destination:
    """One queue or exchange to which something is published.

    Attributes:
        resource: its name.
        consumers: of the queue; None of an exchange.
        waiting: the messages that wait, by their numbers, the oldest first.
        window: how many may.
        after_consume_total: how many messages their consumers confirmed; the next likewise.
        broker_total: went on as they came.
        persisted_total: were published again.
        nacked_total: were refused instead.
    """

    __slots__ = (
        "_broker_ns",
        "_consumed",
        "_consumers_ns",
        "_gains",
        "_is_behind",
        "_pause_ns",
        "_paused_as",
        "_sample_ns",
        "_sampled",
        "_samples",
        "_soon",
        "_until_ns",
        "after_consume_total",
        "broker_total",
        "consumers",
        "nacked_total",
        "persisted_total",
        "resource",
        "waiting",
        "window",
    )

    def __init__(self, resource: Resource, consumers: Consumers | None) -> None:
        self.resource = resource
        self.consumers = consumers
        self.waiting: OrderedDict[int, Waiting] = OrderedDict()
        self.window = FIRST_WINDOW
        self.after_consume_total = self.broker_total = self.persisted_total = self.nacked_total = 0
        #: How many were consumed soon since the window was as wide as it is.
        self._soon = 0
        #: Since messages wait again: how many were consumed, and how long that took in the mean; how many samples of
        #: the broker were begun, the last one when, how many have ended, and how long they took.
        self._consumed = self._consumers_ns = 0
        self._samples = self._sample_ns = self._sampled = self._broker_ns = 0
        #: Consumers were seen to be the sooner ones.
        self._gains = False
        self._is_behind = False
        #: Until when it pauses, as which state, and for how long it does or did.
        self._until_ns = 0
        self._paused_as: State = "behind"
        self._pause_ns = 0

    def look(self, now_ns: int, *, is_full: bool) -> State:
        """Return the state it is in now; ``is_full`` says that what waits takes as much memory as it may."""
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
        if now_ns < self._until_ns:
            return self._paused_as
        if not self.waiting:
            self._is_behind = False
        elif not self._is_behind:
            oldest = next(iter(self.waiting.values()))
            self._is_behind = now_ns - oldest.since_ns > oldest.within_ns // _SOON
        return "behind" if self._is_behind else "after_consume"

    def consumed(self, message: Waiting, now_ns: int) -> None:
        """Note that consumers have confirmed a message."""
        self.after_consume_total += 1
        self._consumed += 1
        self._consumers_ns = _mean(self._consumers_ns, now_ns - message.since_ns, self._consumed, _MEAN_OF_CONSUMED)
        if now_ns - message.since_ns > message.within_ns // _SOON or self._is_behind or now_ns < self._until_ns:
            return
        self._soon += 1
        if self._soon >= self.window:
            self._soon = 0
            self.window = min(2 * self.window, MAX_WINDOW)
            if self._gains:
                self._pause_ns = 0

    def begins_sample(self, now_ns: int) -> bool:
        """Say whether a message that may wait is to go as it came, to see how long the broker takes; it does then."""
        if self._samples < _FIRST_SAMPLES:
            due = self._consumed >= _BETWEEN_SAMPLES * (self._samples + 1)
        else:
            due = now_ns - self._sample_ns >= _SAMPLE_EACH_NS
        if due:
            self._samples += 1
            self._sample_ns = now_ns
        return due

    def sampled(self, took_ns: int, now_ns: int) -> None:
        """Take how long the broker took to confirm such a message."""
        self._sampled += 1
        self._broker_ns = _mean(self._broker_ns, took_ns, self._sampled, _MEAN_OF_SAMPLES)
        if self._sampled >= _FIRST_SAMPLES and self._consumed >= _FIRST_SAMPLES:
            self._gains = 5 * self._consumers_ns <= 4 * self._broker_ns
            if not self._gains:
                self.pause("no_gain", now_ns)

    def paused_until_ns(self) -> int:
        """Return until when nothing is to wait."""
        return self._until_ns

    def pause(self, state: State, now_ns: int) -> None:
        """Have nothing wait for a while, unless that is so already."""
        if now_ns >= self._until_ns:
            self._pause_ns = min(max(_FIRST_PAUSE_NS, 2 * self._pause_ns), _MAX_PAUSE_NS)
            self._until_ns = now_ns + self._pause_ns
            self._paused_as = state


def _mean(mean_ns: int, value_ns: int, count: int, most: int) -> int:
    """Return the mean of ``count`` values of which one more has come, the latest ``most`` above all."""
    return mean_ns + (value_ns - mean_ns) // min(count, most)


class Inbox:
    """What one session has published that waits, and what has ended of it.

    Args:
        wake: has the session look, soon.

    Attributes:
        ended: what the session has to answer, and why; in order.
    """

    __slots__ = ("_waiting", "_wake", "ended")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.ended: deque[tuple[Waiting, Outcome]] = deque()
        #: By how long they may wait, the oldest first.
        self._waiting: dict[int, OrderedDict[int, Waiting]] = {}

    def add(self, message: Waiting) -> None:
        """Add a message that waits."""
        of_time = self._waiting.get(message.within_ns)
        if of_time is None:
            of_time = self._waiting[message.within_ns] = OrderedDict()
            # Nobody calls at the time that it will be due.
            self._wake()
        of_time[message.number] = message

    def discard(self, message: Waiting) -> None:
        """Take out one that waits no more."""
        of_time = self._waiting[message.within_ns]
        del of_time[message.number]
        if not of_time:
            del self._waiting[message.within_ns]

    def tell(self, message: Waiting, outcome: Outcome) -> None:
        """Have the session answer a message."""
        if not self.ended:
            self._wake()
        self.ended.append((message, outcome))

    def all(self) -> Iterator[Waiting]:
        """Go through all that wait."""
        return (message for of_time in self._waiting.values() for message in of_time.values())

    def due(self, now_ns: int) -> Iterator[Waiting]:
        """Go through those that have waited for as long as they may."""
        for within_ns, of_time in self._waiting.items():
            for message in of_time.values():
                if message.since_ns + within_ns > now_ns:
                    break
                yield message

    def due_ns(self) -> int | None:
        """Return when the first will have; None if nothing waits."""
        times = [next(iter(of_time.values())).since_ns + within_ns for within_ns, of_time in self._waiting.items()]
        return min(times, default=None)


class AfterConsume:
    """What the sessions of one broker know of messages that wait for consumers.

    Attributes:
        maker: a number that no other process has.
        waiting_bytes: what all that wait take in memory.
        most_bytes: what they may.
    """

    def __init__(self) -> None:
        self._random = SystemRandom()
        self.maker = self._random.getrandbits(_BITS)
        self.waiting_bytes = 0
        self.most_bytes = 0
        self._waiting: dict[int, Waiting] = {}
        self._destinations: OrderedDict[Resource, Destination] = OrderedDict()
        self._consumers: dict[str, Consumers] = {}

    # --- Destinations -----------------------------------------------------------------------------

    def destination(self, resource: Resource, *, is_queue: bool) -> Destination:
        """Return what is known of a destination; its name is one that consumers give if it is a queue."""
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
        """Forget those of the oldest destinations of which nothing waits; however many there are, few are looked at."""
        for _ in range(min(_LOOKED_AT, len(self._destinations) // 2)):
            resource, each = self._destinations.popitem(last=False)
            if each.waiting:
                self._destinations[resource] = each
            elif each.consumers is not None:
                each.consumers.destination = None
                self._forget_unused(resource.name)

    def states(self, now_ns: int) -> Sequence[ConfirmState]:
        """Return how all of them are at a time."""
        return [self._shown(each, now_ns) for each in self._destinations.values()]

    def _shown(self, each: Destination, now_ns: int) -> ConfirmState:
        state = each.look(now_ns, is_full=self._is_full())
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
        return self.waiting_bytes >= self.most_bytes

    # --- Messages ---------------------------------------------------------------------------------

    def takes(self, destination: Destination, now_ns: int) -> int:
        """Return the number of a message that is to wait now; 0 if it is to go as it came."""
        state = destination.look(now_ns, is_full=self._is_full())
        if state != "after_consume" or len(destination.waiting) >= destination.window:
            return 0
        # Who sees a mark cannot guess others.
        return self._random.getrandbits(_BITS) or 1

    def begin(self, message: Waiting) -> None:
        """Have a message wait, numbered by ``takes``."""
        self._waiting[message.number] = message
        message.destination.waiting[message.number] = message
        message.inbox.add(message)
        self.waiting_bytes += message.size_bytes()

    def forget(self, message: Waiting) -> None:
        """Have a message wait no more, of which nobody is to be told."""
        if message.ended:
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
        """Have a message wait no more though its consumers did not confirm it."""
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

    # --- Consumers --------------------------------------------------------------------------------

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
        """Note that a queue has one more consumer."""
        consumers = self._consumers_of(queue)
        consumers.automatic += automatic
        consumers.acknowledging += not automatic

    def remove_consumer(self, queue: str, now_ns: int, *, automatic: bool) -> None:
        """Note that it has one less. Without any, what waits falls back unless one that was there has it still."""
        consumers = self._consumers_of(queue)
        consumers.automatic -= automatic
        consumers.acknowledging -= not automatic
        if consumers.destination is not None and not (automatic or consumers.acknowledging):
            for message in [each for each in consumers.destination.waiting.values() if not each.deliveries]:
                self.fall_back(message, "parted", now_ns)
        self._forget_unused(queue)

    def find(self, maker: int, number: int) -> Waiting | None:
        """Return a message that waits, by what its mark says; None if it is none of this process, or waits no more."""
        return self._waiting.get(number) if maker == self.maker else None

    def delivered(self, message: Waiting, deliveries: Deliveries, tag: int, queue: bytes) -> None:
        """Note that a consumer was given a message that waits, with a number of its channel."""
        if tag in deliveries.by_tag:
            # No broker does that.
            self._take_back(deliveries, tag)
        deliveries.by_tag[tag] = Delivery(message, queue)
        message.deliveries.append((deliveries, tag))

    def _take_back(self, deliveries: Deliveries, tag: int) -> Delivery:
        delivery = deliveries.by_tag.pop(tag)
        delivery.message.deliveries.remove((deliveries, tag))
        return delivery

    def acknowledged(self, deliveries: Deliveries, tags: Iterable[int], now_ns: int) -> None:
        """Note that a consumer has acknowledged some of its deliveries."""
        for tag in tags:
            if tag not in deliveries.by_tag:
                # It was given the same message twice.
                continue
            message, queue = self._take_back(deliveries, tag)
            if message.acked is not None:
                # One may be given again to the consumers of a queue, as the broker has not heard of its ack.
                message.acked.add(queue)
                if len(message.acked) < message.missing:
                    continue
            destination = message.destination
            self.forget(message)
            destination.consumed(message, now_ns)
            message.inbox.tell(message, "consumed")

    def rejected(self, deliveries: Deliveries, tags: Iterable[int], now_ns: int) -> None:
        """Note that a consumer wants some of its deliveries no more, nor is anybody else to have them."""
        for tag in tags:
            if tag in deliveries.by_tag:
                self.fall_back(deliveries.by_tag[tag].message, "undone", now_ns)

    def given_back(self, deliveries: Deliveries, tags: Iterable[int], now_ns: int) -> None:
        """Note that some deliveries are for any consumer again."""
        for tag in tags:
            message = self._take_back(deliveries, tag).message
            consumers = message.destination.consumers
            if consumers is not None and not consumers.acknowledging and not message.deliveries:
                self.fall_back(message, "parted", now_ns)
