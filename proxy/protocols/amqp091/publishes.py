"""Handles the stream from the client to the broker: limits publishes, and keeps other methods in order behind them.

A refused publish is answered with basic.nack. On a channel without confirms, publishes cannot be refused, so they wait.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.deciding.batch import Request, Side
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.after_consume import Waiting
from proxy.protocols.amqp091.channel import GENERATED, MAX_CONSUMERS, MAX_UNANSWERED, Channel, Content, Lane, Method
from proxy.protocols.amqp091.confirms import Confirms
from proxy.protocols.amqp091.marking import REPLIES, SETTLES
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.stream import Owner, Shared, Stream
from proxy.protocols.amqp091.wire import Malformed
from proxy.protocols.base import Buffer

#: Methods that are forwarded while publishes on their channel wait.
_GOES_ON: Final = SETTLES | {wire.BASIC_QOS, wire.BASIC_CONSUME, wire.BASIC_CANCEL}
#: The classes exchange and queue, whose effects outlast the channel.
_LASTING: Final = frozenset((40, 50))
_IN_TRANSACTION: Final = _LASTING | {wire.TX}
_RESERVED: Final = b"amq."
#: If a client has more, the oldest are deleted only when the broker's connection closes.
_MAX_EXCLUSIVE: Final = 10_000
_MAX_DECLARE_BYTES: Final = 1024
_RECOVERS: Final = frozenset((wire.BASIC_RECOVER, wire.BASIC_RECOVER_ASYNC))
_KEY_BITS: Final = (1 << 62) - 1
_NS: Final = 1_000_000_000


class Publishes(Stream):
    side = Side.CLIENT

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        super().__init__(memory, shared, owner)
        spool = self._spool = shared.context.spool
        self._max_age_ns = 0 if spool is None else round(spool.settings.max_age_s * _NS)
        self.exclusive: dict[bytes, bytes] = {}
        self.deleting: dict[int, dict[bytes, bytes]] = {}
        self.published = False
        self.last_channel = 0
        self.max_body_bytes = shared.context.options.max_message_bytes
        self._last_words = b""  # the client's connection.close, held until its publishes have been forwarded
        self._completes = False

    def _take_method(self, method: int, frame: bytes, number: int) -> None:
        lane = self._lanes.get(number)
        if number == 0:
            self._take_connection_method(method, frame)
        elif self.finished:
            if lane is not None and method == wire.BASIC_PUBLISH:
                self._open_content(Content(lane), frame)
        elif lane is None:
            if method == wire.CHANNEL_OPEN and len(self._channels) < self._about.channel_max:
                self._owner.channel_opens(Channel(number))
            self._pass(frame)
        elif lane.channel.left:
            self._take_successor(method, lane.channel, frame)
        elif method == wire.BASIC_PUBLISH:
            self._take_publish(lane, frame)
        elif method in _GOES_ON:
            self._take_ongoing(method, lane, frame)
        elif method == wire.CHANNEL_FLOW_OK:
            self._pass(frame)
        elif method == wire.CHANNEL_CLOSE_OK:
            # The broker has closed the channel and ignores all frames on it except a close.
            if lane.channel.dead:
                for each in [item for item in lane.ready if isinstance(item, bytes)]:
                    self._pass(each)
                self._owner.channel_closes(number)
            self._pass(frame)
        else:
            channel = lane.channel
            if method == wire.CONFIRM_SELECT:
                channel.confirms = channel.confirms or Confirms()
            elif method == wire.TX_SELECT:
                channel.transacts = True
                self._consumers.transact(channel, self._stages.now_ns)
            elif method == wire.TX_COMMIT:
                channel.committing += 1
            elif method == wire.CHANNEL_CLOSE:
                channel.closes = True
                self._marking.forget(channel)
            elif method in {wire.BASIC_GET, wire.QUEUE_DECLARE, wire.QUEUE_DELETE} and not channel.dead:
                self._take_queue(method, channel, frame)
            self._pass_method(lane, frame, barrier=True)

    def _take_publish(self, lane: Lane, frame: bytes) -> None:
        self.published = True
        arguments = wire.arguments(frame)
        arguments.short()
        exchange, routing_key = arguments.short_string(), arguments.short_string()
        if arguments.position != len(frame) - 2:
            raise Malformed("a basic.publish whose length does not match its exchange and routing key")
        target = self._names.target(exchange, routing_key)
        content = Content(lane, target=target)
        content.whole = self._marking.active and self._marking.may_wait(lane.channel, target, self._stages.now_ns)
        self._open_content(content, frame)

    def _take_ongoing(self, method: int, lane: Lane, frame: bytes) -> None:
        channel = lane.channel
        if method in {wire.BASIC_CONSUME, wire.BASIC_CANCEL} and not channel.dead:
            frame = self._take_consumer(method, channel, frame)
        elif method in _RECOVERS or (channel.tags is not None and method in SETTLES):
            frame = self._take_settling(method, channel, frame)
        if frame:
            self._pass_method(lane, frame, barrier=False)

    def _take_connection_method(self, method: int, frame: bytes) -> None:
        if method == wire.CONNECTION_CLOSE:
            if not self.finished:
                self._about.take(method, wire.arguments(frame))
                self._last_words = frame
                self._marking.forget_all()
            self.finished = True
        elif self.finished:
            # After a close, only close-ok matters. If the client has sent a close, close-ok must follow it.
            if method == wire.CONNECTION_CLOSE_OK and self._about.closed_by is Side.BROKER:
                if self._last_words:
                    self._last_words += frame
                else:
                    self._pass(frame)
        else:
            if self._about.take(method, wire.arguments(frame)):
                frame = wire.with_payload(frame, self._about.agree(wire.payload(frame)))
            elif method == wire.CONNECTION_OPEN:
                self._names.enter(self._about.vhost)
            self._pass(frame)

    def _take_queue(self, method: int, channel: Channel, frame: bytes) -> None:
        queue, bits, _ = _queue_of(frame)
        if method == wire.BASIC_GET:
            self._check_unanswered(len(channel.getting))
            channel.getting.append((queue or channel.declared, bits & wire.GET_NO_ACK != 0))
            return
        queue = queue.translate(None, b"\r\n")  # as RabbitMQ does
        if method == wire.QUEUE_DELETE:
            if not bits & wire.DELETE_ON_CONDITION:
                self.exclusive.pop(queue or channel.declared, None)
            return
        answers = not bits & wire.DECLARE_NO_WAIT
        channel.declared = queue or (b"" if answers else GENERATED)
        exclusive = bits & (wire.DECLARE_EXCLUSIVE | wire.DECLARE_PASSIVE) == wire.DECLARE_EXCLUSIVE
        exclusive = exclusive and len(frame) <= _MAX_DECLARE_BYTES
        if answers:
            self._check_unanswered(len(channel.declaring))
            channel.declaring.append(frame if exclusive else b"")
        elif exclusive and queue:
            self.declared(queue, frame)

    def _take_consumer(self, method: int, channel: Channel, frame: bytes) -> bytes:
        arguments = wire.arguments(frame)
        begins = method == wire.BASIC_CONSUME
        no_wait = wire.CONSUME_NO_WAIT if begins else wire.CANCEL_NO_WAIT
        if begins:
            arguments.short()
        queue, tag = arguments.short_string() if begins else b"", arguments.short_string()
        bits_at = arguments.position
        bits = arguments.octet()
        wants = not bits & no_wait
        automatic = bits & wire.CONSUME_NO_ACK != 0
        if begins and len(channel.consumers) >= MAX_CONSUMERS:
            raise self._stop(
                wire.RESOURCE_ERROR, f"a basic.consume on a channel that already has {MAX_CONSUMERS} consumers"
            )
        if begins and not wants and tag:
            # Do not request an answer: RabbitMQ 3.10 fails if a cancel then follows immediately.
            self._consumers.begin(channel, tag, channel.resolve(queue or channel.declared), automatic=automatic)
            return frame
        if begins:
            self._check_unanswered(len(channel.consuming))
            channel.consuming.append((queue or channel.declared, wants, automatic))
        elif not wants:
            self._check_unanswered(len(channel.cancelling))
            channel.cancelling[tag] = channel.cancelling.get(tag, 0) + 1
        return frame[:bits_at] + bytes((bits & ~no_wait,)) + frame[bits_at + 1 :]

    def _take_settling(self, method: int, channel: Channel, frame: bytes) -> bytes:
        """Rewrite an ack, nack, reject or recover so that it settles only deliveries that the client has seen."""
        if channel.dead or channel.closes:
            return frame
        now_ns = self._stages.now_ns
        if method in _RECOVERS:
            self._check_unanswered(len(channel.recovering))
            channel.recovering.append(method == wire.BASIC_RECOVER)
            self._consumers.give_back(channel, now_ns)
            if method == wire.BASIC_RECOVER:
                return frame
            return wire.basic_recover(channel.number, wire.arguments(frame).octet())
        arguments, tags = wire.arguments(frame), channel.tags
        tag, bits = arguments.longlong(), arguments.octet()
        multiple = method != wire.BASIC_REJECT and bits & wire.MULTIPLE != 0
        is_all = multiple and not tag
        assert tags is not None  # noqa: S101 - the caller has checked
        if channel.recovering:
            # The deliveries that the client has seen are already being requeued.
            return b"" if is_all else frame
        shown, waits = self._owner.shown(channel)
        if is_all:
            tag = tags.last_open(shown) if waits else shown
            if not tag:
                return b"" if waits else frame
        elif not 0 < tag <= shown or not tags.is_open(tag):
            if tags.is_known(tag):
                channel.doomed = True
                self._consumers.give_back(channel, now_ns)
            if not waits or tag <= shown or (tag <= tags.latest and not tags.is_open(tag)):
                return frame
            # Without Sluice, the broker would refuse this tag. Send tag 0, which it also refuses.
            return wire.settling(method, channel.number, 0, bits ^ multiple)
        tags.settle(tag, multiple=multiple)
        if channel.deliveries.by_tag and not channel.doomed:
            self._consumers.settled(method, channel, tag, bits, now_ns)
        return wire.settling(method, channel.number, tag, bits) if is_all and waits else frame

    def _take_successor(self, method: int, former: Channel, frame: bytes) -> None:
        if method != wire.CHANNEL_OPEN:
            raise self._stop(wire.CHANNEL_ERROR, f"a method on channel {former.number}, which is closed")
        former.successor = channel = Channel(former.number)
        lane = channel.to_broker
        lane.shut = True
        self._lanes[-former.number] = former.to_broker
        self._lanes[former.number] = lane
        self._defer(Method(lane, frame, barrier=True))

    def succeed(self, channel: Channel) -> None:
        channel.to_broker.shut = False
        self._advance_after(channel.to_broker)
        if channel.closes and channel.to_broker.after:
            self._owner.channel_left(channel)
        self.flush()

    def leave(self, channel: Channel, consumers: Iterable[bytes]) -> None:
        """Close a channel that the client has left, so that the broker requeues its deliveries.

        If publishes are waiting, the channel is reopened to forward them, and then closed again. Uncommitted publishes
        are dropped, and so are methods that affect only the client's channel. If a commit is waiting, the channel stays
        open until the commit has been sent, because the broker already has the start of the transaction. In that case,
        only the ``consumers`` are cancelled now.
        """
        lane = channel.to_broker
        if channel.left or channel.dead:
            return
        if lane.shut or lane.is_within_content():
            # The channel was never opened, or the rest of a content is missing.
            self.give_up(lane)
            return
        channel.left, channel.confirms = True, None
        after, lane.after = lane.after, deque()
        commit = max((at for at, item in enumerate(after) if _has(item, wire.TX_COMMIT)), default=-1)
        begin = min((at for at, item in enumerate(after) if _has(item, wire.TX_SELECT)), default=-1)
        stop = max(commit, begin) + 1 if channel.transacts else len(after)
        if channel.transacts and not stop:
            self.give_up(lane)
        for at, item in enumerate(after):
            if isinstance(item, Content):
                if at < stop:
                    lane.after.append(item)
                else:
                    self._forget(item)
                continue
            self._undefer(item)
            method = wire.method_of(item.frame)
            lasting = method >> 16 in (_LASTING if commit < 0 else _IN_TRANSACTION)
            if at < stop and method in SETTLES:
                self._make_ready(lane, item.frame)
            elif at < stop and lasting and not _is_exclusive(method, item.frame):
                super()._defer(Method(lane, item.frame, barrier=True))
        close = wire.channel_close(channel.number)
        if commit >= 0:
            for tag in consumers:
                self.insert(lane, wire.cancel(channel.number, tag))
            self._advance_after(lane)
            self.flush()
        elif channel.committing:
            # Nothing may be sent before the broker has committed.
            return
        elif lane.lines or lane.after:
            self.insert(lane, close)
            lane.shut = True
            super()._defer(Method(lane, close, barrier=True))
        else:
            self.insert(lane, close)

    def committed(self, channel: Channel) -> None:
        if not channel.committing:
            lane = channel.to_broker
            super()._defer(Method(lane, wire.channel_close(channel.number), barrier=True))
            self._advance_after(lane)
            self.flush()

    def reopen(self, channel: Channel) -> None:
        lane, number = channel.to_broker, channel.number
        lane.shut = False
        self._make_ready(lane, wire.channel_open(number))
        if channel.takes_replies:
            self._make_ready(lane, wire.consume(number, REPLIES))
        for line in list(lane.lines.values()):
            self._advance(line)
        self._advance_after(lane)
        self.flush()

    def cannot_close(self) -> bool:
        return any(lane.channel.latest and lane.is_within_content() for lane in self._lanes.values())

    def forget_exclusive(self) -> None:
        for lane in self._lanes.values():
            for line in list(lane.lines.values()):
                if not self._targets_exclusive(line.first()):
                    continue
                for content in line.in_memory():
                    self._forget(content)
                self._drop_spooled(line)
                self._advance(line)
            for item in lane.after:
                if isinstance(item, Content) and self._targets_exclusive(item):
                    self._forget(item)

    def _targets_exclusive(self, content: Content) -> bool:
        target = content.target
        return not target.exchange and target.routing_key in self.exclusive and content.resources is target.resources

    def declared(self, queue: bytes, frame: bytes) -> None:
        self.exclusive[queue] = frame
        if len(self.exclusive) > _MAX_EXCLUSIVE:
            del self.exclusive[next(iter(self.exclusive))]

    def delete_exclusive(self) -> None:
        """Delete the client's exclusive queues, as the broker does when a connection closes.

        Each queue is redeclared first. This fails if the queue now belongs to another client, so it is not deleted.
        """
        queues, self.exclusive = self.exclusive, {}
        self._delete([queues] if queues else [])

    def delete_one_by_one(self, number: int) -> None:
        """Retry the queue deletions that failed on channel ``number``, with a separate channel for each queue."""
        queues = self.deleting.pop(number, {})
        if len(queues) > 1:
            self._delete([{queue: declares} for queue, declares in queues.items()])

    def _delete(self, groups: Sequence[dict[bytes, bytes]]) -> None:
        free = (each for each in range(1, self._about.channel_max + 1) if each not in self._channels)
        for queues, number in zip(groups, free, strict=False):
            self.deleting[number] = queues
            channel = Channel(number)
            self._owner.channel_opens(channel)
            channel.left = True
            frames = [wire.channel_open(number)]
            for queue, declares in queues.items():
                if not queue.startswith(_RESERVED):
                    frames.append(_declare_again(declares, number))
                frames.append(wire.queue_delete(number, queue))
            frames.append(wire.channel_close(number))
            self.insert(channel.to_broker, b"".join(frames))

    def _check_unanswered(self, count: int) -> None:
        if count >= MAX_UNANSWERED:
            raise self._stop(wire.RESOURCE_ERROR, f"more than {count} requests without waiting for responses")

    def feed(self, chunk: memoryview) -> Sequence[Request]:
        if not self.last_channel and self._about.opened:
            self.last_channel = self._about.own_channel - 1 if self._about.own_channel else wire.MAX_CHANNEL
            if self._about.tuned_bytes:
                self.max_payload_bytes = self._about.tuned_bytes - wire.FRAME_BYTES
        return super().feed(chunk)

    def close_lane(self, number: int) -> None:
        self.deleting.pop(number, None)
        if -number in self._lanes:
            self.give_up(self._lanes.pop(-number))
            return
        super().close_lane(number)

    def _defer(self, method: Method) -> None:
        super()._defer(method)
        lane = method.lane
        if lane.channel.closes and not lane.shut and wire.method_of(method.frame) == wire.CHANNEL_CLOSE:
            self._owner.channel_left(lane.channel)

    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        lane, target = content.lane, content.target
        content.resources = self._names.with_copies(target, keys) if keys else target.resources
        content.key = hash((target.exchange, target.routing_key, lane.channel.number)) & _KEY_BITS
        if lane.channel.confirms is not None:
            content.number = lane.channel.confirms.number()
        line = lane.lines.get(content.key)
        return not lane.after and (line is None or (content.number > 0 and not line.spools))

    def _make_request(self, content: Content) -> Request:
        since_ns = content.since_ns if self._spool is not None else 0
        if since_ns and not content.spools:
            line = content.lane.lines.get(content.key or 0)
            since_ns = since_ns if line is not None and line.spools else 0
        return Request(
            content.resources,
            1,
            content.size_bytes,
            "",
            "answered" if content.number else "impossible",
            content.key,
            content,
            since_ns=since_ns,
        )

    def _is_small(self, content: Content) -> bool:
        return self._marking.is_small(content.target, content.left_bytes)

    def _begin_writing(self, content: Content, frames: Buffer) -> Buffer:
        channel, marking = content.lane.channel, self._marking
        if not content.number or channel.confirms is None:
            return frames
        if not marking.active or content.again:
            channel.confirms.sent(content.number)
            return frames
        whole = bytes(frames) if content.whole else b""
        return marking.mark(content, whole, self.max_payload_bytes, self._stages.now_ns) or frames

    def publish_again(self, message: Waiting) -> None:
        content = Content(message.channel.to_broker, left_bytes=0, done=True, again=True)
        content.number, content.size_bytes = message.sequence, len(message.frames)
        self._wait(content, message.frames)
        self._make_ready(content.lane, content)

    def flush(self) -> None:
        super().flush()
        if self._last_words and not self._current and not self._completes:
            self._completes = True
            self.forget_incomplete(refusable=False)
            if self.has_undelivered():
                self._owner.on_client_close()
        if self._last_words and not self.waiting and not self._ready and self.at_boundary():
            self.out.append(self._last_words)
            self._last_words = b""

    def awaits_answers(self) -> bool:
        return any(
            lane.after
            or lane.channel.waiting
            or (confirms is not None and (lane.lines or lane.ready or confirms.outstanding()))
            for lane in self._lanes.values()
            for confirms in (lane.channel.confirms,)
            if not lane.channel.left
        )

    def outstanding(self) -> int:
        return sum(
            channel.confirms.outstanding() + len(channel.waiting)
            for channel in self._channels.values()
            if channel.confirms
        )


def _has(item: Content | Method, method: int) -> bool:
    return isinstance(item, Method) and wire.method_of(item.frame) == method


def _queue_of(frame: bytes) -> tuple[bytes, int, int]:
    arguments = wire.arguments(frame)
    arguments.short()
    queue, bits_at = arguments.short_string(), arguments.position
    return queue, arguments.octet(), bits_at


def _is_exclusive(method: int, frame: bytes) -> bool:
    return method == wire.QUEUE_DECLARE and _queue_of(frame)[1] & wire.DECLARE_EXCLUSIVE != 0


def _declare_again(frame: bytes, number: int) -> bytes:
    _, bits, at = _queue_of(frame)
    bits |= wire.DECLARE_NO_WAIT
    return b"".join((frame[:1], number.to_bytes(2, "big"), frame[3:at], bytes((bits,)), frame[at + 1 :]))
