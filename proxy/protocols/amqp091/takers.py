"""A consumer's side of confirms by consumers: who takes what from which queue, and what becomes of it there."""

from typing import Final

from proxy.protocols.amqp.names import Names
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.after_consume import AfterConsume
from proxy.protocols.amqp091.channel import Channel
from proxy.protocols.amqp091.wire import Mark

#: Those of a consumer that say what becomes of its deliveries.
SETTLES: Final = frozenset(
    (wire.BASIC_ACK, wire.BASIC_NACK, wire.BASIC_REJECT, wire.BASIC_RECOVER, wire.BASIC_RECOVER_ASYNC)
)


class Takers:
    """The consumers of one connection.

    Args:
        names: of its queues.
        hub: of all sessions of the broker.
    """

    def __init__(self, names: Names, hub: AfterConsume) -> None:
        self._names = names
        self._hub = hub

    def _name(self, queue: bytes) -> str:
        return self._names.delivery(queue)[0].name

    def begin(self, channel: Channel, tag: bytes, queue: bytes, *, automatic: bool) -> None:
        """Note that a consumer has begun."""
        channel.takers.setdefault(tag, []).append((self._name(queue), automatic))
        self._hub.add_consumer(self._name(queue), automatic=automatic)

    def end(self, channel: Channel, tag: bytes, now_ns: int) -> None:
        """Note that the consumer with that tag has ended that began first."""
        takers = channel.takers.get(tag)
        if takers:
            name, automatic = takers.pop(0)
            if not takers:
                del channel.takers[tag]
            self._hub.remove_consumer(name, now_ns, automatic=automatic)

    def close(self, channel: Channel, now_ns: int) -> None:
        """Note that a channel is closed: what it was given is for others again."""
        for takers in channel.takers.values():
            for name, automatic in takers:
                self._hub.remove_consumer(name, now_ns, automatic=automatic)
        channel.takers.clear()
        self.give_back(channel, now_ns)

    def give_back(self, channel: Channel, now_ns: int) -> None:
        """Note that all that a channel was given is for others again."""
        self._hub.given_back(channel.deliveries, list(channel.deliveries.by_tag), now_ns)

    def delivered(self, channel: Channel, mark: Mark, consumer: bytes | None, tag: int, now_ns: int) -> None:
        """Note that a consumer was given a message that may wait for it.

        Args:
            channel: where.
            mark: of the message.
            consumer: its tag; None if the message was asked for.
            tag: the number of the delivery.
            now_ns: on the monotonic clock.
        """
        message = self._hub.find(mark.maker, mark.number)
        if message is None:
            return
        takers = [] if consumer is None else channel.takers.get(consumer, [])
        if mark.died or channel.transacts or not takers or any(automatic for _, automatic in takers):
            self._hub.fall_back(message, "undone", now_ns)
        elif not channel.dead and not channel.left:
            assert consumer is not None  # noqa: S101 - or there were none
            queue = channel.consumed.get(consumer, channel.latest)
            self._hub.delivered(message, channel.deliveries, tag, queue)

    def transact(self, channel: Channel, now_ns: int) -> None:
        """Note that what a channel says of its deliveries counts only once it is committed."""
        self._hub.rejected(channel.deliveries, list(channel.deliveries.by_tag), now_ns)

    def settled(self, method: int, channel: Channel, tag: int, bits: int, now_ns: int) -> None:
        """Take what a consumer says of deliveries that it has not settled."""
        deliveries, hub = channel.deliveries, self._hub
        multiple = method != wire.BASIC_REJECT and bits & wire.MULTIPLE != 0
        if multiple and tag not in deliveries.by_tag and any(each for of in channel.takers.values() for _, each in of):
            # It may be the number of a delivery that needs no ack. The broker refuses that.
            return
        tags = deliveries.upto(tag, multiple=multiple)
        if method == wire.BASIC_ACK:
            hub.acknowledged(deliveries, tags, now_ns)
        elif bits & (wire.REJECT_REQUEUE if method == wire.BASIC_REJECT else wire.NACK_REQUEUE):
            hub.given_back(deliveries, tags, now_ns)
        else:
            hub.rejected(deliveries, tags, now_ns)
