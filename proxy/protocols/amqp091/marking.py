"""Tracks one connection's publishes that wait for consumer acks, and the acks that its own consumers send.

A waiting publish is forwarded as a transient message with a mark, which is removed on delivery. The client does not get
the broker's ack for it, but does get a nack.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from limiter.plans.plans import Confirming
from proxy.deciding.batch import ConnectionInfo
from proxy.protocols.amqp.names import Names, Target
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.after_consume import AfterConsume, Destination, Inbox, Waiting
from proxy.protocols.amqp091.channel import Channel, Consumer, Content
from proxy.protocols.amqp091.wire import Malformed, Mark
from proxy.protocols.base import SessionContext

#: A client with this many unconfirmed publishes on a channel does not wait for each fsync, so its publishes are
#: not marked.
MAX_UNCONFIRMED: Final = 16
_AHEAD_NS: Final = 1_000_000_000
MAX_ANSWERED: Final = 512  # per call, which takes a few milliseconds

#: Using this pseudo-queue as reply-to without consuming from it is a channel error.
REPLIES: Final = b"amq.rabbitmq.reply-to"
SETTLES: Final = frozenset(
    (wire.BASIC_ACK, wire.BASIC_NACK, wire.BASIC_REJECT, wire.BASIC_RECOVER, wire.BASIC_RECOVER_ASYNC)
)


class Marking:
    def __init__(self, context: SessionContext, who: Callable[[], ConnectionInfo], hub: AfterConsume) -> None:
        self._context = context
        self._who = who
        self._hub = hub
        self._inbox = Inbox(context.wake)
        #: Publishes that measure the broker's latency: the tag, when it was forwarded, and the destination.
        self._samples: dict[Channel, tuple[int, int, Destination]] = {}
        self._ends = False

    def part(self) -> None:
        self._samples.clear()
        del self._who, self._context

    @property
    def active(self) -> bool:
        return self._context.after_consume()

    def is_idle(self) -> bool:
        return not self.active and not self._samples and self._inbox.due_ns() is None

    def _rule(self, target: Target) -> Confirming | None:
        return self._context.terms(self._who(), target.resources[:1], False).confirm

    def may_wait(self, channel: Channel, target: Target, now_ns: int) -> bool:
        if not self._can_wait(channel, target, self._rule(target)) or self._runs_ahead(channel, now_ns):
            return False
        until_ns = self._destination(target).paused_until_ns
        if now_ns < until_ns:
            channel.runs_ahead_until_ns = min(until_ns, now_ns + _AHEAD_NS)
            return False
        return True

    def _can_wait(self, channel: Channel, target: Target, rule: Confirming | None) -> bool:
        if channel.confirms is None or channel.transacts or channel.closes or self._ends:
            return False
        return rule is not None and _queues(target, rule) > 0

    def _runs_ahead(self, channel: Channel, now_ns: int) -> bool:
        confirms = channel.confirms
        if confirms is not None and confirms.outstanding() + len(channel.waiting) >= MAX_UNCONFIRMED:
            channel.runs_ahead_until_ns = now_ns + _AHEAD_NS
        return now_ns < channel.runs_ahead_until_ns

    def _destination(self, target: Target) -> Destination:
        return self._hub.destination(target.resources[0], is_queue=not target.exchange)

    def is_small(self, target: Target, body_bytes: int) -> bool:
        rule = self._rule(target)
        return rule is not None and body_bytes < rule.below_bytes

    def mark(self, content: Content, frames: bytes, max_payload_bytes: int, now_ns: int) -> bytes:
        """Return ``frames`` with a mark, or empty bytes if the publish must not wait for consumers.

        ``frames`` is empty if the publish is incomplete.
        """
        channel, target, sequence = content.lane.channel, content.target, content.number
        confirms, rule = channel.confirms, self._rule(target)
        assert confirms is not None  # noqa: S101 - the publish has a number
        confirms.sent(sequence)
        if rule is None:
            return b""
        hub = self._hub
        destination = self._destination(target)
        number = hub.takes(destination, now_ns) if frames and self._can_wait(channel, target, rule) else 0
        if number and channel not in self._samples and destination.begins_sample(now_ns):
            self._samples[channel] = confirms.latest(), now_ns, destination
            number = 0
        marked = _marked(frames, hub.maker, number, max_payload_bytes) if number else b""
        if not marked:
            destination.broker_total += 1
            return b""
        channel.waiting[sequence] = number
        hub.begin(
            Waiting(
                *(number, destination, self._inbox, channel, sequence, confirms.withhold()),
                *(frames, now_ns, rule.within_ns, rule.persists, _queues(target, rule)),
            )
        )
        return marked

    def heard(self, now_ns: int) -> None:
        for channel, (tag, since_ns, destination) in list(self._samples.items()):
            assert channel.confirms is not None  # noqa: S101 - it had a number
            if not channel.confirms.is_open(tag):
                del self._samples[channel]
                destination.sampled(now_ns - since_ns, now_ns)

    def nacked(self, channel: Channel, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._hub.forget(self._hub.get(channel.waiting.pop(sequence, 0)))

    def returned(self, channel: Channel, mark: wire.Mark) -> None:
        """Let the broker confirm a publish that it has returned as unroutable."""
        message = self._hub.find(mark.maker, mark.number)
        if message is not None and message.channel is channel:
            del channel.waiting[message.sequence]
            self._hub.forget(message)
            assert channel.confirms is not None  # noqa: S101 - it had a number
            channel.confirms.release(message.tag)

    def due_ns(self) -> int | None:
        return self._inbox.due_ns()

    def answer(self, now_ns: int) -> tuple[dict[Channel, list[bytes]], list[Waiting]]:
        """Return each channel's confirms and the messages to republish, for at most MAX_ANSWERED messages."""
        inbox = self._inbox
        late = inbox.all() if self._ends else inbox.due(now_ns)
        for message in list(islice(late, MAX_ANSWERED)):
            self._hub.fall_back(message, "parted" if self._ends else "late", now_ns)
        answers: dict[Channel, list[bytes]] = {}
        again: list[Waiting] = []
        for _ in range(min(len(inbox.ended), MAX_ANSWERED)):
            message, outcome = inbox.ended.popleft()
            channel, sequence = message.channel, message.sequence
            if channel.waiting.pop(sequence, None) is None:
                continue
            assert channel.confirms is not None  # noqa: S101 - it had a number
            channel.confirms.settle(message.tag)
            if outcome != "consumed" and message.persists:
                again.append(message)
                continue
            make = wire.ack if outcome == "consumed" else wire.nack
            answers.setdefault(channel, []).append(make(channel.number, sequence))
        if inbox.ended:
            self._context.wake()
        return answers, again

    def end(self) -> None:
        if not self._ends:
            self._ends = True
            self._context.wake()

    def forget_all(self) -> None:
        self._ends = True
        for message in list(self._inbox.all()):
            message.channel.waiting.pop(message.sequence, None)
            self._hub.forget(message)
        for message, _ in self._inbox.ended:
            message.channel.waiting.pop(message.sequence, None)
        self._inbox.ended.clear()

    def forget(self, channel: Channel) -> None:
        for number in channel.waiting.values():
            self._hub.forget(self._hub.get(number))
        channel.waiting.clear()
        self._samples.pop(channel, None)


class ConsumerAcks:
    def __init__(self, names: Names, hub: AfterConsume) -> None:
        self._names = names
        self._hub = hub

    def _name(self, queue: bytes) -> str:
        return self._names.delivery(queue)[0].name

    def begin(self, channel: Channel, tag: bytes, queue: bytes, *, automatic: bool) -> None:
        channel.consumers.setdefault(tag, []).append(Consumer(queue, automatic))
        channel.latest = queue
        channel.takes_replies = channel.takes_replies or queue == REPLIES
        self._hub.add_consumer(self._name(queue), automatic=automatic)

    def end(self, channel: Channel, tag: bytes, now_ns: int) -> None:
        consumers = channel.consumers.get(tag)
        if consumers:
            self._remove(consumers.pop(0), now_ns)
            if not consumers:
                del channel.consumers[tag]

    def _remove(self, consumer: Consumer, now_ns: int) -> None:
        self._hub.remove_consumer(self._name(consumer.queue), now_ns, automatic=consumer.automatic)

    def close(self, channel: Channel, now_ns: int) -> None:
        for consumers in channel.consumers.values():
            for each in consumers:
                self._remove(each, now_ns)
        channel.consumers.clear()
        self.give_back(channel, now_ns)

    def give_back(self, channel: Channel, now_ns: int) -> None:
        self._hub.given_back(channel.deliveries, list(channel.deliveries.by_tag), now_ns)

    def delivered(self, channel: Channel, mark: Mark, consumer: bytes | None, tag: int, now_ns: int) -> None:
        """Record the delivery of a marked message. ``consumer`` is None if the client used basic.get."""
        message = self._hub.find(mark.maker, mark.number)
        if message is None:
            return
        consumers = [] if consumer is None else channel.consumers.get(consumer, [])
        if mark.died or channel.transacts or not consumers or any(each.automatic for each in consumers):
            self._hub.fall_back(message, "undone", now_ns)
        elif not channel.dead and not channel.left:
            self._hub.delivered(message, channel.deliveries, tag, consumers[0].queue)

    def transact(self, channel: Channel, now_ns: int) -> None:
        """Let all delivered messages fall back, because acks in a transaction take effect only at the commit."""
        self._hub.rejected(channel.deliveries, list(channel.deliveries.by_tag), now_ns)

    def settled(self, method: int, channel: Channel, tag: int, bits: int, now_ns: int) -> None:
        deliveries, hub = channel.deliveries, self._hub
        multiple = method != wire.BASIC_REJECT and bits & wire.MULTIPLE != 0
        unknown = multiple and tag not in deliveries.by_tag
        if unknown and any(each.automatic for consumers in channel.consumers.values() for each in consumers):
            # The tag may belong to an auto-ack delivery. The broker refuses to ack such a delivery.
            return
        tags = deliveries.up_to(tag, multiple=multiple)
        if method == wire.BASIC_ACK:
            hub.acknowledged(deliveries, tags, now_ns)
        elif bits & (wire.REJECT_REQUEUE if method == wire.BASIC_REJECT else wire.NACK_REQUEUE):
            hub.given_back(deliveries, tags, now_ns)
        else:
            hub.rejected(deliveries, tags, now_ns)


def _queues(target: Target, rule: Confirming) -> int:
    return rule.queues or 0 if target.exchange else 1


def _marked(frames: bytes, maker: int, number: int, max_payload_bytes: int) -> bytes:
    try:
        start, stop = wire.content_header_at(frames)
        header = wire.mark_header(frames[start:stop], maker, number)
    except Malformed:
        return b""
    if header is None or len(header) > max_payload_bytes:
        return b""
    return wire.with_header(frames, start, stop, header)
