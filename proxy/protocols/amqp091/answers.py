"""Broker to client: confirms get the client's numbers, deliveries are limited, and all else passes."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from proxy.deciding.batch import Charge, Request
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import DROPPED, GRANTED, NEW, UNTOLD, WAITING, Channel, Content, Lane, Method, Tags
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.reading import MAX_GATHERED_OF_BROKER_BYTES, Shared
from proxy.protocols.amqp091.stream import Stream
from proxy.protocols.amqp091.wire import Malformed, Mark, Reader
from proxy.protocols.base import Buffer

_ARGUMENTS_AT: Final = wire.PREFIX_BYTES + 4
_DELIVER: Final = wire.BASIC_DELIVER
_ACK: Final = wire.BASIC_ACK
_NACK: Final = wire.BASIC_NACK
#: Those that must not overtake deliveries that wait.
_BEHIND_DELIVERIES: Final = frozenset((wire.BASIC_CANCEL, wire.BASIC_CANCEL_OK, wire.BASIC_RECOVER_OK))
#: Where a message lies in a stream, in its headers.
_STREAM_FIELD: Final = b"\x0fx-stream-offset"
#: What becomes of deliveries that the client has not been sent.
_UNSENT: Final = frozenset((NEW, WAITING))
#: So many bytes of headers in front of a mark count as a step: about a field.
_BYTES_OF_STEP: Final = 8
_method_at = wire.method_at


class _Delivery(Content):
    """One message for the client.

    Attributes:
        method: the frame that begins it, as long as the chunk is in hand where it came.
        tag: its number, if those of its channel are known; otherwise 0.
        automatic: the client does not acknowledge it, or its number is not known.
        consumer: the tag of the consumer that it is for, if deliveries are limited; otherwise empty.
        is_answer: to a request for one message.
    """

    __slots__ = ("automatic", "consumer", "is_answer", "method", "tag")

    def __init__(self, lane: Lane, method: Buffer, *, is_answer: bool) -> None:
        super().__init__(lane)
        self.method = method
        self.is_answer = is_answer
        self.tag = 0
        self.automatic = True
        self.consumer = b""


class Answers(Stream):
    """The broker's stream.

    Args:
        memory: as for every stream.
        shared: likewise.

    Attributes:
        opened: told of each channel that the broker uses and nobody has opened.
        limited: some rule limits deliveries.
        dies: told of each channel that the broker closes.
        closed: told of each channel whose close the broker agrees to.
        declared: told of each exclusive queue that the broker has made, with the frame that declared it.
        given_back: told of each delivery, by its number, that is to go back to its queue.
        left: told of what the broker says on a channel that the client has left, if something is to be done about it.
        ends: told that the broker closes the connection, with the arguments of that.
        own: told of each method on the channel that is Sluice's own, with its arguments.
        withholds: asked whether there is to be such a channel.
        reason: why the client is to publish nothing more for now, of Sluice's own; empty if it may. It is told as soon
            as a frame can be written.
        nacked: told of the publishes of a channel, by the client's numbers, of which it hears that they are refused.
        returned: told of each marked publish that comes back, with its mark.
        brokers_reason: likewise of the broker's, which it tells itself; None if the client may.
        silent: the client is told nothing of this any more, since the connection is being closed.
    """

    peer = "broker"
    reads_copies = False

    def __init__(self, memory: Memory, shared: Shared) -> None:
        super().__init__(memory, shared)
        self.limited = False
        self.opened: Callable[[Channel], None] = lambda _: None
        self.dies: Callable[[Channel], None] = lambda _: None
        self.closed: Callable[[int], None] = lambda _: None
        self.declared: Callable[[bytes, bytes], None] = lambda *_: None
        self.given_back: Callable[[Channel, int], None] = lambda *_: None
        self.left: Callable[[Channel, int], None] = lambda *_: None
        self.ends: Callable[[Reader], None] = lambda _: None
        self.own: Callable[[int, Reader], None] = lambda *_: None
        self.withholds: Callable[[], bool] = lambda: False
        self.nacked: Callable[[Channel, Sequence[int]], None] = lambda *_: None
        self.returned: Callable[[Channel, Mark], None] = lambda *_: None
        self.reason = b""
        self.brokers_reason: bytes | None = None
        self.silent = False
        #: The reason of Sluice's own that the client was told, and not yet that it is over.
        self._told = b""
        #: Channels that are open at the broker though the client has left them.
        self.left_channels: set[Channel] = set()
        self._names = shared.names
        self._channels = shared.channels
        self._about = shared.about
        self._takers = shared.takers

    def part(self) -> None:
        """Forget all contents and channels, as the base class says, and the session."""
        super().part()
        del self.opened, self.dies, self.closed, self.ends, self.own, self.withholds, self.nacked, self.returned
        del self.declared, self.given_back, self.left

    def _take_method(self, method: int, buffer: Buffer, position: int, stop: int, number: int) -> None:
        """Take a method frame, as the base class says."""
        if number == 0:
            if method == wire.CONNECTION_TUNE and self.withholds():
                payload = self._about.withhold(bytes(buffer[position + wire.PREFIX_BYTES : stop - 1]))
                self._about.hear(method, Reader(payload, 4, len(payload)))
                self._replace(buffer, position, stop, payload)
                return
            self._about.hear(method, Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
            if self._about.opened and self._about.tuned_bytes:
                self.most_payload_bytes = self._about.tuned_bytes - wire.FRAME_BYTES
            if method == wire.CONNECTION_CLOSE:
                self.silent = True
                self.ends(Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
            elif method == wire.CONNECTION_BLOCKED:
                self.brokers_reason = Reader(buffer, position + _ARGUMENTS_AT, stop - 1).short_string()
                self._stages.block(on=True)
            elif method == wire.CONNECTION_UNBLOCKED:
                self.brokers_reason = None
                self._stages.block(on=False)
                if self._told:
                    # It is to wait all the same.
                    self._special = True
                    frame = wire.connection_blocked(self._told)
                    self._pass(frame, 0, len(frame), None)
                    return
            self._pass(buffer, position, stop, None)
            return
        if number == self._about.own_channel:
            self._special = True
            self.own(method, Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
            return
        channel = self._channels.get(number)
        if method in {_DELIVER, wire.BASIC_GET_OK, wire.BASIC_RETURN}:
            if channel is None:
                channel = Channel(number)
                self.opened(channel)
            self._take_content(method, channel, buffer, position, stop)
        elif channel is None:
            self._pass(buffer, position, stop, None)
        elif channel.left:
            self._special = True
            self._take_left(method, channel, Reader(buffer, position + _ARGUMENTS_AT, stop - 1))
        elif method in {_ACK, _NACK} and channel.confirms is not None:
            self._take_confirm(method, channel, buffer, position, stop)
        else:
            self._take_other(method, channel, buffer, position, stop)

    def flush(self) -> None:
        """Queue what is ready and can be written, and what the client is to be told of alarms."""
        super().flush()
        if self.reason == self._told or self.silent or not self.at_boundary():
            return
        self._told = self.reason
        stands = self.reason or self.brokers_reason
        frame = wire.UNBLOCKED_FRAME if stands is None else wire.connection_blocked(stands)
        self.out.append(frame)
        self.own_bytes += len(frame)

    def _scan(self, chunk: memoryview, position: int) -> int:
        native = self._shared.native
        # Deliveries that nobody limits are like any other bytes, as long as none waits from when somebody did.
        contents = not self.limited and not self.waiting
        if native is None or native.channels is None or self.left_channels or not (contents or native.confirms):
            return position
        stop, frames, parts = native.channels.settle(chunk, position, contents)
        if stop == position:
            return position
        self.frames += frames
        if parts is None:
            self._pass(chunk, position, stop, None)
            return stop
        self._special = True
        for part in parts:
            if isinstance(part, bytes):
                self._pass(part, 0, len(part), None)
            else:
                self._pass(chunk, *part, None)
        return stop

    def _take_confirm(self, method: int, channel: Channel, buffer: Buffer, position: int, stop: int) -> None:
        reader = Reader(buffer, position + _ARGUMENTS_AT, stop - 1)
        tag, multiple = reader.longlong(), reader.octet() & wire.MULTIPLE != 0
        assert channel.confirms is not None  # noqa: S101 - only then it is a confirm
        refused = method == _NACK
        numbers = channel.confirms.answered(tag, multiple=multiple, refused=refused)
        if numbers is None:
            self._pass(buffer, position, stop, None)
            return
        self._special = True
        if numbers:
            make = wire.nack if refused else wire.ack
            if refused and channel.waiting:
                self.nacked(channel, numbers)
            frames = b"".join([make(channel.number, each) for each in numbers])
            self._pass(frames, 0, len(frames), None)

    def _take_content(self, method: int, channel: Channel, buffer: Buffer, position: int, stop: int) -> None:
        content = _Delivery(channel.to_client, buffer[position:stop], is_answer=method == wire.BASIC_GET_OK)
        if channel.left:
            content.fate = DROPPED
            self._special = True
        self._open_content(content, buffer, position, stop)
        if method == wire.BASIC_RETURN or channel.left:
            return
        # All of one channel, whatever their consumer: the client may acknowledge them up to a number.
        content.key = channel.number
        if method == _DELIVER and not self.limited and channel.tags is None:
            return
        arguments = Reader(buffer, position + _ARGUMENTS_AT, stop - 1)
        if method == _DELIVER:
            tag = content.consumer = arguments.short_string()
            automatic = False
            for _, each in channel.takers.get(tag, ()):
                automatic = automatic or each
            queue = channel.consumed.get(tag, channel.latest)
            following = channel.following.get(tag)
            if following is not None:
                # The former consumer may have ended without a word of the broker.
                content.resources = self._names.delivery(channel.resolve(following))
        else:
            queue, automatic = channel.getting.popleft() if channel.getting else (b"", False)
        if self.limited or channel.tags is not None:
            self._number(channel, content, arguments.longlong(), automatic=automatic)
        if self.limited:
            charged_to = self._names.delivery(channel.resolve(queue))
            if content.resources != charged_to:
                content.resources = charged_to + content.resources

    # --- Numbers of deliveries --------------------------------------------------------------------

    def _number(self, channel: Channel, content: _Delivery, number: int, *, automatic: bool) -> None:
        """Note the number of a delivery; one that the client does not acknowledge is settled."""
        tags = channel.tags
        if tags is None:
            tags = channel.tags = Tags(number - 1)
            native = self._shared.native
            if native is not None and native.channels is not None:
                native.channels.track(channel.number)
        tags.latest = content.tag = number
        content.automatic = automatic
        if automatic:
            tags.settle(number)

    def shown(self, channel: Channel) -> tuple[int, bool]:
        """Return the number of the last delivery that was sent to the client, and whether more wait.

        Deliveries of the chunk in hand count as waiting until it is decided.
        """
        lane = channel.to_client
        waits = lane.lines or lane.ready or lane.after or self._begun or self._begun_only
        first = next(self._waiting_of(channel), None) if waits else None
        return (self._latest(channel), False) if first is None else (first.tag - 1, True)

    def _latest(self, channel: Channel) -> int:
        """Return the number of the last delivery that was read."""
        tags, native = channel.tags, self._shared.native
        if tags is None:
            return 0
        if native is not None and native.channels is not None:
            tags.latest = max(tags.latest, native.channels.delivered(channel.number))
        return tags.latest

    def _waiting_of(self, channel: Channel) -> Iterator[_Delivery]:
        """Go through the deliveries of a channel that the client has not been sent, in order."""
        lane = channel.to_client
        in_lines = (content for line in lane.lines.values() for content in line.contents)
        for content in chain(lane.ready, in_lines, lane.after, self._begun, self._begun_only):
            if isinstance(content, _Delivery) and content.lane is lane and content.tag and content.fate in _UNSENT:
                yield content

    def _recovered(self, channel: Channel) -> None:
        """Forget deliveries that wait and were given back to the broker: they come again, with other numbers.

        What the client has asked for goes on, as it waits for the answer.
        """
        channel.recovered = self._latest(channel)
        if channel.tags is not None:
            channel.tags.settle(channel.recovered, multiple=True)
        self._takers.give_back(channel, self._stages.now_ns)
        held: list[Request] = []
        for content in list(self._waiting_of(channel)):
            if not content.automatic and not content.is_answer:
                self._forget(content, held)
        if held:
            self._give_up(held)
        for line in list(channel.to_client.lines.values()):
            self._advance(line)

    def _fate(self, content: Content) -> int:
        """Say what becomes of a content, as the base class says; what was given back to the broker does not wait."""
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
                self._takers.end(channel, tag, self._stages.now_ns)
                channel.consumed.pop(tag, None)
                if tag in channel.following:
                    channel.consumed[tag] = channel.following.pop(tag)
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
            channel.latest = channel.consumed[tag] = channel.resolve(queue)
            self._takers.begin(channel, tag, channel.latest, automatic=automatic)
            if not wants:
                self._special = True
                return
        self._pass(buffer, position, stop, None)
        if method == wire.QUEUE_DECLARE_OK:
            name = Reader(buffer, position + _ARGUMENTS_AT, stop - 1).short_string()
            if name.startswith(UNTOLD):
                channel.named = name
            self._take_declared(channel, name)
        elif method == wire.TX_COMMIT_OK:
            channel.committing -= 1
        elif method == wire.BASIC_GET_EMPTY:
            if channel.getting:
                channel.getting.popleft()
        elif method == wire.CHANNEL_CLOSE:
            self.dies(channel)
        elif method == wire.CHANNEL_CLOSE_OK:
            self.closed(channel.number)

    def _take_declared(self, channel: Channel, queue: bytes) -> None:
        declares = channel.declaring.popleft() if channel.declaring else b""
        if declares:
            self.declared(queue, declares)

    def _take_left(self, method: int, channel: Channel, arguments: Reader) -> None:
        """Take what the broker says on a channel that the client has left; the client does not hear it."""
        if method == wire.QUEUE_DECLARE_OK:
            self._take_declared(channel, arguments.short_string())
        elif method == wire.TX_COMMIT_OK:
            channel.committing -= 1
            self.left(channel, method)
        elif method == wire.CHANNEL_CLOSE or (
            method == wire.CHANNEL_CLOSE_OK and channel.to_broker.shut and not channel.dead
        ):
            self.left(channel, method)
        elif method == wire.CHANNEL_CLOSE_OK:
            # The agreement to the client's close may still wait for the end of a content.
            for frame in [item for item in channel.to_client.ready if isinstance(item, bytes)]:
                self._pass(frame, 0, len(frame), None)
            self.closed(channel.number)

    def _method_goes(self, owner: Method, buffer: Buffer, start: int, stop: int) -> bool:
        """Say whether methods go on now, as the base class says: the end of a consumer waits for no delivery.

        In a transaction nothing can go back before it is committed, so there it waits.
        """
        lane = owner.lane
        ends = bool(lane.lines) and not lane.after and not lane.channel.transacts
        for frame in wire.frames_of(buffer[start:stop]) if ends else ():
            ends = ends and _method_at(frame, wire.PREFIX_BYTES)[0] == wire.BASIC_CANCEL_OK
            if ends:
                self._end_deliveries(lane, Reader(frame, _ARGUMENTS_AT, len(frame) - 1).short_string())
        return ends or super()._method_goes(owner, buffer, start, stop)

    def _end_deliveries(self, lane: Lane, consumer: bytes) -> None:
        """Have nothing wait any more that is for a consumer which has ended.

        It goes back to its queue. A stream keeps its messages, and takes none back. Where the broker expects no acks
        a delivery would be lost there: it goes to the client at once, and is charged.
        """
        held: list[Request] = []
        passed: list[Request] = []
        for line in list(lane.lines.values()):
            contents, line.contents = line.contents, deque()
            for content in contents:
                if not isinstance(content, _Delivery) or content.consumer != consumer:
                    line.contents.append(content)
                elif content.automatic:
                    # It overtakes others.
                    content.tag = 0
                    if content.request is not None:
                        passed.append(content.request)
                        content.request = None
                    content.verdict = GRANTED
                    self.charges.append(Charge(content.resources, 1, content.size_bytes, consumes=True))
                    self._let_go(lane, content)
                else:
                    is_of_stream = _is_of_stream(content)
                    self._forget(content, held)
                    if not is_of_stream:
                        self.given_back(lane.channel, content.tag)
            self._advance(line)
        self._give_up(held)
        if self.charges:
            self._shared.pass_on(passed)
            self._shared.wake()

    @staticmethod
    def _is_unwanted(channel: Channel, tag: bytes) -> bool:
        """Say whether the client does not want to hear that a consumer has ended, and count that it has."""
        left = channel.cancelling.pop(tag, 0)
        if left > 1:
            channel.cancelling[tag] = left - 1
        return left > 0

    def _restore(self, content: Content, lead: Buffer, buffer: Buffer, position: int, stop: int) -> bytes:
        """Restore the header of a message that is marked, and note who was given it."""
        header = bytes(buffer[position + wire.PREFIX_BYTES : stop - 1])
        at = header.find(wire.CONFIRM_FIELD)
        if at < 0:
            return b""
        self._steps += at // _BYTES_OF_STEP
        try:
            mark = wire.read_mark(header)
        except Malformed:
            # Whoever published it wrote that: its consumers are not to lose their connections over it.
            return b""
        if mark is None:
            return b""
        assert isinstance(content, _Delivery)  # noqa: S101 - there is no other content from a broker
        method, channel = lead or content.method, content.lane.channel
        arguments, kind = Reader(method, _ARGUMENTS_AT, len(method) - 1), _method_at(method, wire.PREFIX_BYTES)[0]
        if kind == wire.BASIC_RETURN:
            self.returned(channel, mark)
        else:
            consumer = arguments.short_string() if kind == _DELIVER else None
            number = arguments.longlong()
            self._takers.delivered(channel, mark, consumer, number, self._stages.now_ns)
            if channel.tags is None and channel.deliveries.by_tag:
                self._number(channel, content, number, automatic=False)
        return wire.header_frame(channel.number, mark.header)

    def _most_gathered_bytes(self) -> int:
        """Return how long a method or a header may be, as the base class says."""
        return MAX_GATHERED_OF_BROKER_BYTES

    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        """Take a content, as the base class says."""
        del keys
        lane = content.lane
        return not lane.after and content.key not in lane.lines

    def _make_request(self, content: Content) -> Request:
        """Make a request of a delivery."""
        return Request(content.resources, 1, content.size_bytes, "", "impossible", content.key, content, consumes=True)


def _is_of_stream(content: Content) -> bool:
    """Say whether a delivery is from a stream, which says so in the header."""
    start, stop = wire.content_header_at(content.data)
    return _STREAM_FIELD in content.data[start:stop]
