"""Handles the stream from the broker to the client: limits deliveries, and translates the numbers in confirms."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from proxy.deciding.batch import Request, Side
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import (
    DROPPED,
    GENERATED,
    NEW,
    WAITING,
    Channel,
    Content,
    Lane,
    Method,
    Tags,
)
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.stream import Owner, Shared, Stream
from proxy.protocols.amqp091.wire import Malformed, Reader

_BEHIND_DELIVERIES: Final = frozenset((wire.BASIC_CANCEL, wire.BASIC_CANCEL_OK, wire.BASIC_RECOVER_OK))
_STREAM_FIELD: Final = b"\x0fx-stream-offset"
_UNSENT: Final = frozenset((NEW, WAITING))
_BYTES_OF_STEP: Final = 8


@dataclass(eq=False, slots=True)
class _Delivery(Content):
    is_answer: bool = False
    tag: int = 0  # 0 if untracked
    automatic: bool = True  # whether the consumer uses auto-ack. Also True while the tag is untracked
    consumer: bytes = b""


class Answers(Stream):
    side = Side.BROKER

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        super().__init__(memory, shared, owner)
        self._signals = shared.context.signals
        self.limited = False
        self.reason = b""
        self.brokers_reason: bytes | None = None
        self.silent = False  # whether the connection is closing, so connection.blocked is no longer sent
        self._told = b""
        self.left_channels: set[Channel] = set()

    def _take_method(self, method: int, frame: bytes, number: int) -> None:
        channel = self._channels.get(number)
        if number == 0:
            self._take_connection_method(method, frame)
        elif number == self._about.own_channel:
            self._owner.on_own_channel(method, wire.arguments(frame))
        elif channel is None:
            self._pass(frame)
        elif method in {wire.BASIC_DELIVER, wire.BASIC_GET_OK, wire.BASIC_RETURN}:
            self._take_content(method, channel, frame)
        elif channel.left:
            self._take_left(method, channel, wire.arguments(frame))
        elif method in {wire.BASIC_ACK, wire.BASIC_NACK} and channel.confirms is not None:
            self._take_confirm(method, channel, frame)
        else:
            self._take_other(method, channel, frame)

    def _take_connection_method(self, method: int, frame: bytes) -> None:
        if method == wire.CONNECTION_TUNE and self._owner.withholds():
            frame = wire.with_payload(frame, self._about.withhold(wire.payload(frame)))
        self._about.receive(method, wire.arguments(frame))
        if self._about.opened and self._about.tuned_bytes:
            self.max_payload_bytes = self._about.tuned_bytes - wire.FRAME_BYTES
        if method == wire.CONNECTION_CLOSE:
            self.silent = True
            self._owner.broker_ends(wire.arguments(frame))
        elif method == wire.CONNECTION_BLOCKED:
            reason = wire.arguments(frame).short_string()
            self._signals.blocked += self.brokers_reason is None
            self.brokers_reason = reason
            self._stages.block(on=True)
        elif method == wire.CONNECTION_UNBLOCKED:
            self.unblocked()
            self._stages.block(on=False)
            if self._told:
                frame = wire.connection_blocked(self._told)
        self._pass(frame)

    def unblocked(self) -> None:
        self._signals.blocked -= self.brokers_reason is not None
        self.brokers_reason = None

    def flush(self) -> None:
        super().flush()
        if self.reason == self._told or self.silent or not self.at_boundary():
            return
        self._told = self.reason
        reason = self.reason or self.brokers_reason
        frame = wire.UNBLOCKED_FRAME if reason is None else wire.connection_blocked(reason)
        self.out.append(frame)
        self.own_bytes += len(frame)

    def is_plain(self) -> bool:
        told = self.reason or self._told or self.brokers_reason is not None
        return not (self.silent or self.left_channels or told) and super().is_plain()

    def _take_confirm(self, method: int, channel: Channel, frame: bytes) -> None:
        reader = wire.arguments(frame)
        tag, multiple = reader.longlong(), reader.octet() & wire.MULTIPLE != 0
        assert channel.confirms is not None  # noqa: S101 - the caller has checked
        refused = method == wire.BASIC_NACK
        before = channel.confirms.unanswered()
        numbers = channel.confirms.answered(tag, multiple=multiple, refused=refused)
        # Count nacks, too. RabbitMQ nacks publishes to a full queue even if it is not busy.
        self._signals.answers += before - channel.confirms.unanswered()
        if numbers is None:
            self._pass(frame)
            return
        if refused and channel.waiting:
            self._marking.nacked(channel, numbers)
        for each in numbers:
            self._pass((wire.nack if refused else wire.ack)(channel.number, each))

    def _take_content(self, method: int, channel: Channel, frame: bytes) -> None:
        content = _Delivery(channel.to_client, is_answer=method == wire.BASIC_GET_OK)
        if channel.left:
            content.fate = DROPPED
        self._open_content(content, frame)
        if method == wire.BASIC_RETURN or channel.left:
            return
        # All deliveries on a channel stay in order, because an ack may cover every tag up to its own.
        content.key = channel.number
        if method == wire.BASIC_DELIVER and not self.limited and channel.tags is None:
            return
        arguments = wire.arguments(frame)
        if method == wire.BASIC_DELIVER:
            tag = content.consumer = arguments.short_string()
            consumers = channel.consumers.get(tag)
            queue, automatic = (channel.latest, False) if consumers is None else consumers[0]
            if consumers is not None and len(consumers) > 1:
                # Two consumers have used this tag, and the broker may already have cancelled the first.
                automatic = automatic or consumers[-1].automatic
                content.resources = self._names.delivery(channel.resolve(consumers[-1].queue))
        else:
            queue, automatic = channel.getting.popleft() if channel.getting else (b"", False)
        if self.limited or channel.tags is not None:
            self._number(channel, content, arguments.longlong(), automatic=automatic)
        if self.limited:
            charged_to = self._names.delivery(channel.resolve(queue))
            if content.resources != charged_to:
                content.resources = charged_to + content.resources

    def _number(self, channel: Channel, content: _Delivery, number: int, *, automatic: bool) -> None:
        tags = channel.tags
        if tags is None:
            tags = channel.tags = Tags(number - 1)
        tags.latest = content.tag = number
        content.automatic = automatic
        if automatic:
            tags.settle(number)

    def shown(self, channel: Channel) -> tuple[int, bool]:
        """Return the last delivery tag sent to the client, and whether Sluice still holds later deliveries."""
        first = next(self._waiting_of(channel), None)
        return (self._latest(channel), False) if first is None else (first.tag - 1, True)

    def _latest(self, channel: Channel) -> int:
        return 0 if channel.tags is None else channel.tags.latest

    def _waiting_of(self, channel: Channel) -> Iterator[_Delivery]:
        lane = channel.to_client
        in_lines = (content for line in lane.lines.values() for content in line.contents)
        in_hand = (owner for owner, _ in self._pieces)
        for content in chain(lane.ready, in_lines, lane.after, in_hand, (lane.content,)):
            if isinstance(content, _Delivery) and content.lane is lane and content.tag and content.fate in _UNSENT:
                yield content

    def _recovered(self, channel: Channel) -> None:
        """Drop the waiting deliveries that the broker will resend. Keep every get-ok, because the client expects it."""
        channel.recovered = self._latest(channel)
        if channel.tags is not None:
            channel.tags.settle(channel.recovered, multiple=True)
        self._consumers.give_back(channel, self._stages.now_ns)
        for content in list(self._waiting_of(channel)):
            if not content.automatic and not content.is_answer:
                self._forget(content)
        for line in list(channel.to_client.lines.values()):
            self._advance(line)

    def _fate(self, content: Content) -> int:
        fate = super()._fate(content)
        if fate != WAITING or not isinstance(content, _Delivery) or content.is_answer:
            return fate
        if not content.automatic and content.tag <= content.lane.channel.recovered:
            self._drop(content)
            return DROPPED
        return fate

    def _take_other(self, method: int, channel: Channel, frame: bytes) -> None:
        if method in _BEHIND_DELIVERIES:
            if self._hears(method, channel, frame):
                self._pass_method(channel.to_client, frame, barrier=True)
            return
        if method == wire.BASIC_CONSUME_OK and channel.consuming:
            queue, wants, automatic = channel.consuming.popleft()
            tag = wire.arguments(frame).short_string()
            self._consumers.begin(channel, tag, channel.resolve(queue), automatic=automatic)
            if not wants:
                return
        self._pass(frame)
        if method == wire.QUEUE_DECLARE_OK:
            name = wire.arguments(frame).short_string()
            if name.startswith(GENERATED):
                channel.named = name
            self._take_declared(channel, name)
        elif method == wire.TX_COMMIT_OK:
            channel.committing -= 1
        elif method == wire.BASIC_GET_EMPTY:
            if channel.getting:
                channel.getting.popleft()
        elif method == wire.CHANNEL_CLOSE:
            self._owner.channel_dies(channel)
        elif method == wire.CHANNEL_CLOSE_OK:
            self._owner.channel_closes(channel.number)

    def _hears(self, method: int, channel: Channel, frame: bytes) -> bool:
        if method == wire.BASIC_RECOVER_OK:
            self._recovered(channel)
            return not channel.recovering or channel.recovering.popleft()
        tag = wire.arguments(frame).short_string()
        self._consumers.end(channel, tag, self._stages.now_ns)
        unwanted = channel.cancelling.pop(tag, 0) if method == wire.BASIC_CANCEL_OK else 0
        if unwanted > 1:
            channel.cancelling[tag] = unwanted - 1
        if unwanted and not channel.transacts:
            self._end_deliveries(channel.to_client, tag)
        return not unwanted

    def _take_declared(self, channel: Channel, queue: bytes) -> None:
        declares = channel.declaring.popleft() if channel.declaring else b""
        if declares:
            self._owner.queue_declared(queue, declares)

    def _take_left(self, method: int, channel: Channel, arguments: Reader) -> None:
        if method == wire.QUEUE_DECLARE_OK:
            self._take_declared(channel, arguments.short_string())
        elif method == wire.TX_COMMIT_OK:
            channel.committing -= 1
            self._owner.on_abandoned_channel(channel, method)
        elif method == wire.CHANNEL_CLOSE or (
            method == wire.CHANNEL_CLOSE_OK and channel.to_broker.shut and not channel.dead
        ):
            self._owner.on_abandoned_channel(channel, method)
        elif method == wire.CHANNEL_CLOSE_OK:
            # Sluice's close-ok to the client may still be waiting for a content to end.
            for frame in [item for item in channel.to_client.ready if isinstance(item, bytes)]:
                self._pass(frame)
            self._owner.channel_closes(channel.number)

    def _forwards_now(self, method: Method) -> bool:
        """Forward a method or queue it. Return whether it was forwarded.

        A cancel-ok overtakes waiting deliveries, except in a transaction, where deliveries cannot be requeued.
        """
        lane, frame = method.lane, method.frame
        ends = wire.method_of(frame) == wire.BASIC_CANCEL_OK
        if not ends or not lane.lines or lane.after or lane.channel.transacts:
            return super()._forwards_now(method)
        self._end_deliveries(lane, wire.arguments(frame).short_string())
        self._flush(lane)
        return True

    def _end_deliveries(self, lane: Lane, consumer: bytes) -> None:
        """Requeue a cancelled consumer's waiting deliveries.

        Auto-ack deliveries cannot be requeued, so they are charged and forwarded immediately. Deliveries from streams
        are dropped, because streams keep their messages.
        """
        passed: list[Request] = []
        for line in list(lane.lines.values()):
            contents, line.contents = line.contents, deque()
            for content in contents:
                if not isinstance(content, _Delivery) or content.consumer != consumer:
                    line.contents.append(content)
                elif content.automatic:
                    content.tag = 0
                    self._passes(content, passed)
                    self._make_ready(lane, content)
                else:
                    is_of_stream = _is_of_stream(content)
                    self._forget(content)
                    if not is_of_stream:
                        self._owner.requeue(lane.channel, content.tag)
            self._advance(line)
        if self.charges:
            self._context.pass_on(passed)
            self._context.wake()

    def _unmarked(self, content: Content, frame: bytes) -> bytes:
        header = wire.payload(frame)
        at = header.find(wire.CONFIRM_FIELD)
        if at < 0:
            return frame
        self._steps += at // _BYTES_OF_STEP
        try:
            mark = wire.read_mark(header)
        except Malformed:
            # The publisher wrote this field, so an error in it must not close a consumer's connection.
            return frame
        if mark is None:
            return frame
        assert isinstance(content, _Delivery)  # noqa: S101 - all contents from the broker are
        method, arguments, channel = wire.method_of(content.data), wire.arguments(content.data), content.lane.channel
        if method == wire.BASIC_RETURN:
            self._marking.returned(channel, mark)
        else:
            consumer = arguments.short_string() if method == wire.BASIC_DELIVER else None
            number = arguments.longlong()
            self._consumers.delivered(channel, mark, consumer, number, self._stages.now_ns)
            if channel.tags is None and channel.deliveries.by_tag:
                self._number(channel, content, number, automatic=False)
        return wire.with_payload(frame, mark.header)

    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        del keys
        lane = content.lane
        return not lane.after and content.key not in lane.lines

    def _make_request(self, content: Content) -> Request:
        return Request(content.resources, 1, content.size_bytes, "", "impossible", content.key, content, consumes=True)


def _is_of_stream(content: Content) -> bool:
    start, stop = wire.content_header_at(content.data)
    return _STREAM_FIELD in content.data[start:stop]
