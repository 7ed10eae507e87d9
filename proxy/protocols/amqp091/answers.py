"""Broker to client: confirms get the client's numbers, deliveries are limited, and everything else passes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from proxy.deciding.batch import Charge, Request
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import (
    DROPPED,
    GENERATED,
    GRANTED,
    NEW,
    WAITING,
    Channel,
    Content,
    Lane,
    Method,
    Tags,
)
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.stream import MAX_GATHERED_OF_BROKER_BYTES, Owner, Shared, Stream
from proxy.protocols.amqp091.wire import Malformed, Reader
from proxy.protocols.base import Buffer

_ARGUMENTS_AT: Final = wire.PREFIX_BYTES + 4
_DELIVER: Final = wire.BASIC_DELIVER
_ACK: Final = wire.BASIC_ACK
_NACK: Final = wire.BASIC_NACK
#: Methods that must not overtake waiting deliveries.
_BEHIND_DELIVERIES: Final = frozenset((wire.BASIC_CANCEL, wire.BASIC_CANCEL_OK, wire.BASIC_RECOVER_OK))
_STREAM_FIELD: Final = b"\x0fx-stream-offset"  # the header field of a message from a stream
_UNSENT: Final = frozenset((NEW, WAITING))  # the fate of deliveries that the client has not been sent
#: Bytes of headers before a mark that count as one step: about a field.
_BYTES_OF_STEP: Final = 8
_method_at = wire.method_at


@dataclass(eq=False, slots=True)
class _Delivery(Content):
    """A message for the client."""

    method: Buffer = b""  # its first frame, valid while its chunk is current
    is_answer: bool = False  # to a basic.get
    tag: int = 0  # if those of the channel are tracked; otherwise 0
    automatic: bool = True  # the client does not acknowledge it, or its tag is unknown
    consumer: bytes = b""  # the consumer's tag, if deliveries are limited


class Answers(Stream):
    """The broker's stream."""

    peer = "broker"
    reads_copies = False

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        super().__init__(memory, shared, owner)
        self.limited = False  # some rule limits deliveries
        self.reason = b""  # why Sluice blocks the client (connection.blocked); sent at the next boundary
        self.brokers_reason: bytes | None = None  # why the broker blocks the client
        self.silent = False  # the connection is being closed, so the client hears no more of this
        self._told = b""  # the reason that the client was told
        #: Channels that the client has left and that are open at the broker.
        self.left_channels: set[Channel] = set()
        self._names = shared.names
        self._channels = shared.channels
        self._about = shared.about
        self._consumers = shared.consumers

    def _take_method(self, method: int, buffer: Buffer, position: int, stop: int, number: int) -> None:
        if number == 0:
            if method == wire.CONNECTION_TUNE and self._owner.withholds():
                payload = self._about.withhold(bytes(buffer[position + wire.PREFIX_BYTES : stop - 1]))
                self._about.hear(method, Reader(payload, 4, len(payload)))
                self._replace(buffer, position, stop, payload)
                return
            self._about.hear(method, Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
            if self._about.opened and self._about.tuned_bytes:
                self.most_payload_bytes = self._about.tuned_bytes - wire.FRAME_BYTES
            if method == wire.CONNECTION_CLOSE:
                self.silent = True
                self._owner.broker_ends(Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
            elif method == wire.CONNECTION_BLOCKED:
                self.brokers_reason = Reader(buffer, position + _ARGUMENTS_AT, stop - 1).short_string()
                self._stages.block(on=True)
            elif method == wire.CONNECTION_UNBLOCKED:
                self.brokers_reason = None
                self._stages.block(on=False)
                if self._told:
                    # Sluice still blocks it.
                    self._special = True
                    frame = wire.connection_blocked(self._told)
                    self._pass(frame, 0, len(frame), None)
                    return
            self._pass(buffer, position, stop, None)
            return
        if number == self._about.own_channel:
            self._special = True
            self._owner.hear_own(method, Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
            return
        channel = self._channels.get(number)
        if channel is None:
            self._pass(buffer, position, stop, None)
        elif method in {_DELIVER, wire.BASIC_GET_OK, wire.BASIC_RETURN}:
            self._take_content(method, channel, buffer, position, stop)
        elif channel.left:
            self._special = True
            self._take_left(method, channel, Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
        elif method in {_ACK, _NACK} and channel.confirms is not None:
            self._take_confirm(method, channel, buffer, position, stop)
        else:
            self._take_other(method, channel, buffer, position, stop)

    def flush(self) -> None:
        super().flush()
        if self.reason == self._told or self.silent or not self.at_boundary():
            return
        self._told = self.reason
        stands = self.reason or self.brokers_reason
        frame = wire.UNBLOCKED_FRAME if stands is None else wire.connection_blocked(stands)
        self.out.append(frame)
        self.own_bytes += len(frame)

    def is_plain(self) -> bool:
        told = self.reason or self._told or self.brokers_reason is not None
        return not (self.silent or self.left_channels or told) and super().is_plain()

    def _take_confirm(self, method: int, channel: Channel, buffer: Buffer, position: int, stop: int) -> None:
        reader = Reader(buffer, position + _ARGUMENTS_AT, stop - 1)
        tag, multiple = reader.longlong(), reader.octet() & wire.MULTIPLE != 0
        assert channel.confirms is not None  # noqa: S101 - the caller has checked
        refused = method == _NACK
        numbers = channel.confirms.answered(tag, multiple=multiple, refused=refused)
        if numbers is None:
            self._pass(buffer, position, stop, None)
            return
        self._special = True
        if numbers:
            make = wire.nack if refused else wire.ack
            if refused and channel.waiting:
                self._shared.marking.nacked(channel, numbers)
            frames = b"".join([make(channel.number, each) for each in numbers])
            self._pass(frames, 0, len(frames), None)

    def _take_content(self, method: int, channel: Channel, buffer: Buffer, position: int, stop: int) -> None:
        content = _Delivery(channel.to_client, method=buffer[position:stop], is_answer=method == wire.BASIC_GET_OK)
        if channel.left:
            content.fate = DROPPED
            self._special = True
        self._open_content(content, buffer, position, stop)
        if method == wire.BASIC_RETURN or channel.left:
            return
        # One key for the channel, whatever the consumer: the client may acknowledge all up to a tag.
        content.key = channel.number
        if method == _DELIVER and not self.limited and channel.tags is None:
            return
        arguments = Reader(buffer, position + _ARGUMENTS_AT, stop - 1)
        if method == _DELIVER:
            tag = content.consumer = arguments.short_string()
            consumers = channel.consumers.get(tag)
            queue, automatic = (channel.latest, False) if consumers is None else consumers[0]
            if consumers is not None and len(consumers) > 1:
                # The broker may have ended the former one already.
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
        """Track a delivery tag. One without acks counts as settled."""
        tags = channel.tags
        if tags is None:
            tags = channel.tags = Tags(number - 1)
        tags.latest = content.tag = number
        content.automatic = automatic
        if automatic:
            tags.settle(number)

    def shown(self, channel: Channel) -> tuple[int, bool]:
        """Return the last tag sent to the client, and whether more wait, those of the current chunk included."""
        lane = channel.to_client
        waits = lane.lines or lane.ready or lane.after or self._begun or self._begun_only
        first = next(self._waiting_of(channel), None) if waits else None
        return (self._latest(channel), False) if first is None else (first.tag - 1, True)

    def _latest(self, channel: Channel) -> int:
        return 0 if channel.tags is None else channel.tags.latest

    def _waiting_of(self, channel: Channel) -> Iterator[_Delivery]:
        lane = channel.to_client
        in_lines = (content for line in lane.lines.values() for content in line.contents)
        for content in chain(lane.ready, in_lines, lane.after, self._begun, self._begun_only):
            if isinstance(content, _Delivery) and content.lane is lane and content.tag and content.fate in _UNSENT:
                yield content

    def _recovered(self, channel: Channel) -> None:
        """Forget waiting deliveries that the broker took back and sends again. The client still waits for a get-ok."""
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
        """Drop a delivery that would have to wait and that the broker has taken back."""
        fate = super()._fate(content)
        if fate != WAITING or not isinstance(content, _Delivery) or content.is_answer:
            return fate
        if not content.automatic and content.tag <= content.lane.channel.recovered:
            self._drop(content)
            return DROPPED
        return fate

    def _take_other(self, method: int, channel: Channel, buffer: Buffer, position: int, stop: int) -> None:
        lane = channel.to_client
        if method in _BEHIND_DELIVERIES:
            if method == wire.BASIC_RECOVER_OK:
                self._recovered(channel)
                if channel.recovering and not channel.recovering.popleft():
                    self._special = True
                    return
            else:
                tag = Reader(buffer, position + _ARGUMENTS_AT, stop - 1).short_string()
                self._consumers.end(channel, tag, self._stages.now_ns)
                if method == wire.BASIC_CANCEL_OK and self._is_unwanted(channel, tag):
                    self._special = True
                    if not channel.transacts:
                        self._end_deliveries(lane, tag)
                    return
            self._pass(buffer, position, stop, lane.barrier)
            return
        if method == wire.BASIC_CONSUME_OK and channel.consuming:
            tag = Reader(buffer, position + _ARGUMENTS_AT, stop - 1).short_string()
            queue, wants, automatic = channel.consuming.popleft()
            self._consumers.begin(channel, tag, channel.resolve(queue), automatic=automatic)
            if not wants:
                self._special = True
                return
        self._pass(buffer, position, stop, None)
        if method == wire.QUEUE_DECLARE_OK:
            name = Reader(buffer, position + _ARGUMENTS_AT, stop - 1).short_string()
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

    def _take_declared(self, channel: Channel, queue: bytes) -> None:
        declares = channel.declaring.popleft() if channel.declaring else b""
        if declares:
            self._owner.queue_declared(queue, declares)

    def _take_left(self, method: int, channel: Channel, arguments: Reader) -> None:
        if method == wire.QUEUE_DECLARE_OK:
            self._take_declared(channel, arguments.short_string())
        elif method == wire.TX_COMMIT_OK:
            channel.committing -= 1
            self._owner.hear_left(channel, method)
        elif method == wire.CHANNEL_CLOSE or (
            method == wire.CHANNEL_CLOSE_OK and channel.to_broker.shut and not channel.dead
        ):
            self._owner.hear_left(channel, method)
        elif method == wire.CHANNEL_CLOSE_OK:
            # The close-ok for the client may still wait for the end of a content.
            for frame in [item for item in channel.to_client.ready if isinstance(item, bytes)]:
                self._pass(frame, 0, len(frame), None)
            self._owner.channel_closes(channel.number)

    def _method_goes(self, owner: Method, buffer: Buffer, start: int, stop: int) -> bool:
        """Let the end of a consumer overtake deliveries, except in a transaction, where nothing can be requeued."""
        lane = owner.lane
        ends = bool(lane.lines) and not lane.after and not lane.channel.transacts
        for frame in wire.frames_of(buffer[start:stop]) if ends else ():
            ends = ends and _method_at(frame, wire.PREFIX_BYTES)[0] == wire.BASIC_CANCEL_OK
            if ends:
                self._end_deliveries(lane, Reader(frame, _ARGUMENTS_AT, len(frame) - 1).short_string())
        return ends or super()._method_goes(owner, buffer, start, stop)

    def _end_deliveries(self, lane: Lane, consumer: bytes) -> None:
        """Requeue the waiting deliveries of a consumer that has ended.

        A stream keeps its messages and takes none back. A delivery without acks would be lost, so it is forwarded at
        once and charged.
        """
        passed: list[Request] = []
        for line in list(lane.lines.values()):
            contents, line.contents = line.contents, deque()
            for content in contents:
                if not isinstance(content, _Delivery) or content.consumer != consumer:
                    line.contents.append(content)
                elif content.automatic:
                    content.tag = 0  # it overtakes others
                    if content.request is not None:
                        passed.append(content.request)
                        content.request = None
                    content.verdict = GRANTED
                    self.charges.append(Charge(content.resources, 1, content.size_bytes, consumes=True))
                    self._let_go(lane, content)
                else:
                    is_of_stream = _is_of_stream(content)
                    self._forget(content)
                    if not is_of_stream:
                        self._owner.requeue(lane.channel, content.tag)
            self._advance(line)
        if self.charges:
            self._context.pass_on(passed)
            self._context.wake()

    @staticmethod
    def _is_unwanted(channel: Channel, tag: bytes) -> bool:
        """Say whether the client does not want a cancel-ok, and count it."""
        left = channel.cancelling.pop(tag, 0)
        if left > 1:
            channel.cancelling[tag] = left - 1
        return left > 0

    def _restore(self, content: Content, lead: Buffer, buffer: Buffer, position: int, stop: int) -> bytes:
        """Restore the header of a marked message, and take note of its consumer."""
        header = bytes(buffer[position + wire.PREFIX_BYTES : stop - 1])
        at = header.find(wire.CONFIRM_FIELD)
        if at < 0:
            return b""
        self._steps += at // _BYTES_OF_STEP
        try:
            mark = wire.read_mark(header)
        except Malformed:
            # The publisher wrote that. Its consumers must not lose their connections over it.
            return b""
        if mark is None:
            return b""
        assert isinstance(content, _Delivery)  # noqa: S101 - brokers send no others
        method, channel = lead or content.method, content.lane.channel
        arguments, kind = Reader(method, _ARGUMENTS_AT, len(method) - 1), _method_at(method, wire.PREFIX_BYTES)[0]
        if kind == wire.BASIC_RETURN:
            self._shared.marking.returned(channel, mark)
        else:
            consumer = arguments.short_string() if kind == _DELIVER else None
            number = arguments.longlong()
            self._consumers.delivered(channel, mark, consumer, number, self._stages.now_ns)
            if channel.tags is None and channel.deliveries.by_tag:
                self._number(channel, content, number, automatic=False)
        return wire.frame(wire.HEADER, channel.number, mark.header)

    def _most_gathered_bytes(self) -> int:
        return MAX_GATHERED_OF_BROKER_BYTES

    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        del keys
        lane = content.lane
        return not lane.after and content.key not in lane.lines

    def _make_request(self, content: Content) -> Request:
        return Request(content.resources, 1, content.size_bytes, "", "impossible", content.key, content, consumes=True)


def _is_of_stream(content: Content) -> bool:
    start, stop = wire.content_header_at(content.data)
    return _STREAM_FIELD in content.data[start:stop]
