"""One AMQP 0.9.1 connection: its protocol header, its two streams, heartbeats, alarms and closing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import replace

from limiter.compiled import COMPILED
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Request, Side
from proxy.flow.credit import Stage
from proxy.protocols.amqp.names import DELIVERY, ROUTING_KEY, Names
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.answers import Answers
from proxy.protocols.amqp091.channel import PASSING, Channel, Content
from proxy.protocols.amqp091.confirms import Confirms
from proxy.protocols.amqp091.marking import ConsumerAcks, Marking
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.publishes import Publishes
from proxy.protocols.amqp091.replay import Replay
from proxy.protocols.amqp091.stages import Stages
from proxy.protocols.amqp091.stream import MAX_BODY_BYTES, MAX_MESSAGE_BYTES, Shared, Stream
from proxy.protocols.amqp091.wire import Reader
from proxy.protocols.base import NO_BOUND, Buffer, Close, Description, Session, SessionContext
from proxy.protocols.options import Scan, Tls, relays_unread, scans

if TYPE_CHECKING:
    from sluice_native import Channels, Lent

    from proxy.deciding.judge import Judge

#: The first byte of a broker's response to an unsupported version (2.2.4).
_OTHER_VERSION: Final = wire.PROTOCOL_HEADERS[0][0]
_HEADER_BYTES: Final = wire.PROTOCOL_HEADER_BYTES
_AMQP_1_0: Final = (b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00")
#: Lending a connection to the compiled extension costs as much as reading this many frames.
_FEW_READS: Final = 4
_NS: Final = 1_000_000_000
_MAX_LENT_CHANNELS: Final = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AMQP091Options:
    """Options of an AMQP 0.9.1 listener.

    Attributes:
        tls: what to do if a client begins a TLS handshake and the listener does not terminate TLS. ``refuse`` closes
            the connection. ``pass`` relays the encrypted connection without applying limits.
        max_waiting_bytes: maximum memory for waiting messages in one direction of a connection, in bytes. Above it,
            Sluice stops reading from the sender until some messages have been forwarded.
        max_waiting_bytes_in_all: maximum memory for waiting messages on all connections to a broker, in bytes. Above
            it, Sluice stops reading from peers that use more than an equal share.
        max_message_bytes: maximum size of a message body, in bytes. A publish that announces a larger body is charged
            as one message without a body, because the broker refuses it. Must be at least the broker's own
            ``max_message_size``, which defaults to 128 MiB in RabbitMQ 3 and 16 MiB in RabbitMQ 4.
        max_pending_bytes: maximum memory for messages that wait for consumer acks under rules with
            ``confirm = "after_consume"``, in bytes. All connections to a broker share it. Above it, the broker confirms
            new messages.
        scan: code that parses ordinary frames. ``compiled`` is the package sluice_native. ``python`` is slower but
            always available. ``auto`` uses the package if it is installed.
    """

    tls: Tls = "refuse"
    max_waiting_bytes: Annotated[int, Meta(ge=0)] = 16 * _MIB
    max_waiting_bytes_in_all: Annotated[int, Meta(ge=0)] = 128 * _MIB
    max_message_bytes: Annotated[int, Meta(ge=1, le=MAX_BODY_BYTES)] = MAX_MESSAGE_BYTES
    max_pending_bytes: Annotated[int, Meta(ge=0)] = 64 * _MIB
    scan: Scan = "auto"


class AMQP091Session(Session):
    ticks = True
    lends = COMPILED is not None

    def __init__(self, context: SessionContext) -> None:
        options: AMQP091Options = context.options
        self._context = context
        self._connection = context.connection
        self._signed_in = False
        self._tls = options.tls
        self._memory = {
            side: Memory(context.hub, options.max_waiting_bytes, options.max_waiting_bytes_in_all, context.wake)
            for side in Side
        }
        after_consume, names = context.hub.after_consume, Names()
        after_consume.max_bytes = options.max_pending_bytes
        self._marking = Marking(context, self._who, after_consume)
        self._consumers = ConsumerAcks(names, after_consume)
        self._resources = context.resources if scans(options.scan) else None
        self._compiled: Channels | None = None
        self._is_lent = False
        self._listeners: set[str] = set()
        self._stages = Stages(context.stage, context.writer, partial(self._listen, "stages"), context.wake)
        shared = Shared(context, self._consumers, self._marking, self._stages, names)
        self._about, self._names, self._channels = shared.about, shared.names, shared.channels
        self._answers = Answers(self._memory[Side.BROKER], shared, self)
        self._publishes = Publishes(self._memory[Side.CLIENT], shared, self)
        self._streams: dict[Side, Stream] = {Side.CLIENT: self._publishes, Side.BROKER: self._answers}
        self._replay: Replay | None = None
        self._asked: tuple[Batch, Stream | Replay] | None = None
        self._turn = 0
        self._header = b""
        self._unread = False
        self._foreign = False  # whether the broker will reject the client's version
        self._broker_begun = False
        self._begun = False
        self._ended: set[Side] = set()
        #: Whether the client has left while its publishes wait, and whether it expects close-ok.
        self._gone = self._agrees = False
        self._heard: set[Side] = set()
        self._written: set[Side] = set()
        self._heartbeat_ns: int | None = None
        #: The timed publish: its channel, the broker's number for it, and when it was forwarded.
        self._timed: tuple[Channel, int, int] | None = None
        self._alarm = b""
        self._blocked = self._waits_for_spool = False
        #: Contents that were incomplete when the client was blocked, or None while a frame is incomplete.
        self._to_finish: list[Content] | None = None
        self._closes = False
        self._last_heard = b""

    def channel_opens(self, channel: Channel) -> None:
        self._channels[channel.number] = channel
        self._publishes.open_lane(channel.number, channel.to_broker)
        self._answers.open_lane(channel.number, channel.to_client)

    def _end_consumers(self, channel: Channel) -> None:
        self._marking.forget(channel)
        self._consumers.close(channel, self._stages.now_ns)
        self._answers.give_up(channel.to_client)
        if self._timed is not None and self._timed[0] is channel:
            self._timed = None

    def channel_dies(self, channel: Channel) -> None:
        channel.dead = True
        self._end_consumers(channel)
        self._publishes.give_up(channel.to_broker, methods=False)

    def channel_closes(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.dead = True
            self._end_consumers(channel)
            self._publishes.close_lane(number)
            self._answers.close_lane(number)
            self._stages.forget(channel)
            self._answers.left_channels.discard(channel)
            successor = channel.successor
            if successor is not None:
                self._channels[number] = successor
                self._answers.open_lane(number, successor.to_client)
                self._publishes.succeed(successor)

    def channel_left(self, channel: Channel) -> None:
        """Answer the client's channel.close now. The channel's waiting publishes are forwarded later."""
        self._leave(channel)
        self._answers.insert(channel.to_client, wire.channel_close_ok(channel.number))

    def _leave(self, channel: Channel) -> None:
        consumers = list(channel.consumers)
        self._end_consumers(channel)
        self._publishes.leave(channel, consumers)
        if channel.left:
            self._answers.left_channels.add(channel)

    def on_client_close(self) -> None:
        self._gone = True
        answers, publishes = self._answers, self._publishes
        answers.finished = answers.silent = True
        answers.give_up_all()
        if publishes.cannot_close():
            publishes.give_up_all()
            return
        publishes.forget_exclusive()
        for channel in list(self._channels.values()):
            self._leave(channel)
        publishes.delete_exclusive()
        self._agrees = publishes.finished
        self._context.wake()

    def on_abandoned_channel(self, channel: Channel, method: int) -> None:
        if method == wire.CHANNEL_CLOSE:
            channel.dead = True
            lane = channel.to_broker
            own = [item for item in lane.ready if isinstance(item, bytes)] if lane.shut else []
            self._publishes.give_up(lane, methods=lane.shut)
            self._publishes.insert(lane, b"".join((*own, wire.channel_close_ok(channel.number))))
            self._publishes.delete_one_by_one(channel.number)
        elif method == wire.TX_COMMIT_OK:
            self._publishes.committed(channel)
        else:
            self._publishes.reopen(channel)

    def queue_declared(self, queue: bytes, frame: bytes) -> None:
        self._publishes.declared(queue, frame)
        if self._gone:
            self._publishes.delete_exclusive()

    def requeue(self, channel: Channel, tag: int) -> None:
        if channel.tags is not None:
            channel.tags.settle(tag)
        self._consumers.settled(wire.BASIC_NACK, channel, tag, wire.NACK_REQUEUE, self._stages.now_ns)
        frame = wire.settling(wire.BASIC_NACK, channel.number, tag, wire.NACK_REQUEUE)
        self._publishes.insert(channel.to_broker, frame)

    def broker_ends(self, arguments: Reader) -> None:
        if self._replay is not None:
            code, text = arguments.short(), arguments.short_string().decode(errors="replace")
            # A replay only publishes. If the close names another method, the client caused it.
            over = arguments.short() << 16 | arguments.short()
            self._replay.stop(*((code, text) if over in {0, wire.BASIC_PUBLISH} else ()))
        self._publishes.finished = True
        self._marking.forget_all()
        self._publishes.give_up_all()
        self._answers.give_up_all()

    def answer(self, channel: Channel, frame: bytes) -> None:
        if Side.BROKER not in self._ended and not channel.left:
            self._answers.insert(channel.to_client, frame)

    def shown(self, channel: Channel) -> tuple[int, bool]:
        return self._answers.shown(channel)

    @property
    def language(self) -> str:
        return self._about.language

    @property
    def product(self) -> str:
        return self._about.product

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        self._heard.add(side)
        self._stages.now_ns = now_ns
        if self._unread:
            self._streams[side].out.append(chunk)
            return None
        if side is Side.CLIENT:
            if len(self._header) < _HEADER_BYTES or self._foreign:
                chunk = self._begin(chunk)
                if not chunk:
                    return None
            self._names.with_keys = self._context.limits_kind(ROUTING_KEY)
        else:
            if self._foreign or (not self._broker_begun and chunk[0] == _OTHER_VERSION):
                self._answers.out.append(chunk)
                raise Close("other_protocol", f"the client began with {self._header!r}, {self._why_not()}")
            self._broker_begun = True
            self._answers.limited = self._context.limits_kind(DELIVERY)
        stream = self._streams[side]
        before = stream.frames
        requests = stream.feed(chunk)
        self._context.counters.frames[side] += stream.frames - before
        if side is Side.BROKER:
            self._check_timed(now_ns)
            self._marking.heard(now_ns)
            if self._about.own_channel and self._about.opened and not self._begun:
                self._begun = True
                self._begin_replay()
        if self._alarm or self._blocked:
            self._check_alarm(now_ns)
        if self._about.heartbeat_s and self._heartbeat_ns is None:
            self._heartbeat_ns = now_ns + self._half_ns()
            self._context.wake()
        if requests:
            return Batch(self._who(), side, requests)
        self._pass_on(stream, None)
        return None

    def _begin(self, chunk: memoryview) -> memoryview:
        if self._foreign:
            return chunk[:0]
        if not self._header:
            self._unread = relays_unread(chunk[0], self._tls)
            if self._unread:
                self._publishes.out.append(chunk)
                return chunk[:0]
        missing = _HEADER_BYTES - len(self._header)
        self._header += bytes(chunk[:missing])
        if len(self._header) == _HEADER_BYTES:
            self._publishes.out.append(self._header)
            if self._header not in wire.PROTOCOL_HEADERS:
                self._foreign = True
                return chunk[:0]
        return chunk[missing:]

    def _why_not(self) -> str:
        if self._header in _AMQP_1_0:
            return 'which is AMQP 1.0; use protocol = "amqp" or "amqp10" for the listener'
        if self._header in wire.PROTOCOL_HEADERS:
            return "which is AMQP 0.9.1, but the broker speaks another protocol"
        return "which is not AMQP 0.9.1"

    def _who(self) -> ConnectionInfo:
        if self._about.vhost and not self._signed_in:
            self._signed_in = True
            self._connection = replace(self._connection, scopes=(*self._connection.scopes, *self._about.scopes()))
        return self._connection

    def decided(self, batch: Batch, now_ns: int) -> None:
        self._stages.now_ns = now_ns
        if self._asked is not None and self._asked[0] is batch:
            (_, source), self._asked = self._asked, None
            source.asked(batch, now_ns)
            self._flush()
        else:
            self._pass_on(self._streams[batch.side], batch)
            if self._timed is None and batch.side is Side.CLIENT:
                self._time(batch.requests[-1].handle, now_ns)

    def _time(self, content: object, now_ns: int) -> None:
        if isinstance(content, Content) and content.number and content.fate == PASSING:
            channel = content.lane.channel
            if channel.confirms is not None:
                self._timed = channel, channel.confirms.latest(), now_ns

    def _check_timed(self, now_ns: int) -> None:
        if self._timed is not None:
            channel, tag, sent_ns = self._timed
            if channel.confirms is not None and not channel.confirms.is_open(tag):
                self._context.counters.round_trip.observe(now_ns - sent_ns)
                self._context.signals.round_trips_ns.append(now_ns - sent_ns)
                self._timed = None

    def _pass_on(self, stream: Stream, batch: Batch | None) -> None:
        stream.pass_on(batch)
        self._flush()
        if stream.close is not None:
            raise stream.close

    def _flush(self) -> None:
        for stream in self._streams.values():
            stream.flush()
        # Delete queues before close-ok, because the client may then reconnect and declare them.
        if self._agrees and not self._publishes.deleting and self._answers.insert(None, wire.CLOSE_OK_FRAME):
            self._agrees = False
            self._about.closed_by = Side.CLIENT
            self._context.end_client()
        self._check_spool(self._stages.now_ns)
        self._resume_replay()

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        self._stages.now_ns = now_ns
        content = request.handle
        if isinstance(content, Content):
            stream = self._answers if content.lane is content.lane.channel.to_client else self._publishes
            stream.resolved(request, refuse)
            self._flush()
        elif self._replay is not None:
            self._replay.resolved(request)

    def _half_ns(self) -> int:
        return self._about.heartbeat_s * _NS // 2

    def next_tick_ns(self) -> int | None:
        replay_ns = None if self._replay is None else self._replay.again_ns
        publishes, answers = self._publishes, self._answers
        waiting_ns = self._marking.due_ns()
        times = (self._heartbeat_ns, publishes.again_ns, publishes.old_ns, answers.again_ns, replay_ns, waiting_ns)
        return min((time for time in times if time is not None), default=None)

    def tick(self, now_ns: int) -> Batch | None:
        self._stages.now_ns = now_ns
        self._check_spool(now_ns)
        self._answer_waiting(now_ns)
        if self._heartbeat_ns is not None and now_ns >= self._heartbeat_ns:
            self._heartbeat_ns = now_ns + self._half_ns()
            self._beat()
        self._resume_replay()
        self._names.with_keys = self._context.limits_kind(ROUTING_KEY)
        sources: list[Stream | Replay] = list(self._streams.values())
        if self._replay is not None:
            sources.append(self._replay)
        self._turn = (self._turn + 1) % len(sources)
        sources = [*sources[self._turn :], *sources[: self._turn]]
        publishes = self._publishes
        if publishes.old_ns is not None and publishes.old_ns <= now_ns:
            publishes.again_ns = None
        sources = [source for source in sources if source.again_ns is None or source.again_ns <= now_ns]
        batch = None
        for source in sources:
            requests = source.ask(now_ns)
            charges, source.charges = source.charges, []
            if requests or charges:
                batch = Batch(self._who(), source.side, requests, charges)
                self._asked = batch, source
                break
        self._check_spool(now_ns)
        if any(source.asks() for source in sources):
            self._context.wake()
        return batch

    def _answer_waiting(self, now_ns: int) -> None:
        answers, again = self._marking.answer(now_ns)
        for message in again:
            self._publishes.publish_again(message)
        for channel, frames in answers.items():
            self.answer(channel, b"".join(frames))
        if again:
            self._flush()

    def written(self, side: Side, now_ns: int) -> None:
        self._stages.now_ns = now_ns
        if side is Side.BROKER:
            self._stages.written()
            if self._replay is not None:
                self._replay.written()
        self._publishes.written()

    def _listen(self, who: str, on: bool) -> None:  # noqa: FBT001 - as SessionContext has it
        before = bool(self._listeners)
        (self._listeners.add if on else self._listeners.discard)(who)
        if before is not bool(self._listeners):
            self._context.watch_writes(not before)

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        self._stages.now_ns = now_ns
        refused, dropped = self._publishes.purge(resource)
        if self._replay is not None:
            dropped += self._replay.purge(resource)
        self._context.wake()
        return refused, dropped

    def waiting(self) -> Iterator[tuple[Resource, int]]:
        return chain.from_iterable(stream.waiting_since() for stream in self._streams.values())

    def stages(self) -> Sequence[Stage]:
        return self._stages.all()

    def _beat(self) -> None:
        if Side.CLIENT not in self._heard and not self._gone:
            # While the broker receives held messages, it does not notice that the client is silent.
            self._context.client_silent()
        for side, stream in self._streams.items():
            there = side in self._heard or (self._gone and side is Side.CLIENT) or self.paused(side)
            if there and side.other not in self._written and side.other not in self._ended:
                stream.insert(None, wire.HEARTBEAT_FRAME)
        self._heard.clear()
        self._written.clear()

    def withholds(self) -> bool:
        """Return whether to reserve a channel for a replay. A connection that is exempt from limits never replays."""
        spool, connection = self._context.spool, self._connection
        if spool is None or connection.exempt:
            return False
        return spool.has_recovered(lambda name: name.listener == connection.listener)

    def _begin_replay(self) -> None:
        spool, about, listener = self._context.spool, self._about, self._connection.listener
        if spool is None or self._publishes.finished or self._connection.exempt:
            return
        sender = about.sender()
        queues = spool.take_recovered(lambda name: name.listener == listener and name.sender == sender)
        if not queues:
            return
        self._replay = Replay(
            self._context,
            queues,
            self._names,
            about.own_channel,
            min(about.tuned_bytes, wire.DEFAULT_FRAME_MAX) - wire.FRAME_BYTES,
            send=partial(self._publishes.insert, None),
            listen=partial(self._listen, "replay"),
            failures=self._context.hub.failures,
        )

    def on_own_channel(self, method: int, arguments: Reader) -> None:
        if self._replay is not None:
            self._replay.receive(method, arguments)

    def _resume_replay(self) -> None:
        if self._replay is not None:
            if self._publishes.finished:
                self._replay.stop()
            self._replay.resume()

    def alarm(self, reason: str, now_ns: int) -> None:
        """During an alarm, stop reading from clients that have published, as RabbitMQ does."""
        if not self._connection.exempt:
            self._alarm = reason.encode()
            self._check_alarm(now_ns)
            self._flush()

    def _check_alarm(self, now_ns: int) -> None:
        publishes = self._publishes
        self._answers.silent = self._answers.silent or publishes.finished
        before, self._blocked = self._blocked, bool(self._alarm) and publishes.published and not publishes.finished
        if self._blocked is not before:
            self._to_finish = None
        self._answers.reason = self._alarm if self._blocked and self._about.hears_blocked else b""
        self._context.stage.block(now_ns, on=self._blocked)

    def _stop_waits(self) -> None:
        self._marking.forget_all()
        if self._replay is not None:
            self._replay.stop()

    def close_client(self, detail: str, now_ns: int) -> bool:
        del now_ns
        self._marking.end()
        if not self._about.opened or self._publishes.finished or self._about.closed_by is not None:
            return False
        if self._answers.waiting or self._publishes.awaits_answers() or not self.between_frames(Side.CLIENT):
            return False
        self._answers.silent = self._answers.insert(None, wire.connection_close(wire.CONNECTION_FORCED, detail))
        return self._answers.silent

    def start_close(self, detail: str, now_ns: int) -> None:
        del now_ns
        self._stop_waits()
        if self._publishes.finished or self._about.closed_by is not None:
            return
        self._answers.silent = True
        failed = self._publishes.close is not None
        code = self._publishes.code if failed else wire.CONNECTION_FORCED
        if not self._about.opened:
            # Before open-ok, clients understand a close, but brokers do not expect one.
            if failed and self._about.vhost and Side.BROKER not in self._ended:
                self._answers.insert(None, wire.connection_close(code, detail))
            return
        if Side.BROKER not in self._ended:
            self._answers.insert(None, wire.connection_close(code, detail))
        if Side.CLIENT not in self._ended:
            self._closes = self._publishes.insert(None, wire.connection_close(wire.CONNECTION_FORCED, detail))

    def receive_closing(self, side: Side, chunk: memoryview) -> bool:
        if side is Side.CLIENT or not self._closes:
            return True
        # Wait for close-ok. If the connection ends earlier, RabbitMQ logs a warning.
        self._last_heard = self._last_heard[1 - len(wire.CLOSE_OK_FRAME) :] + bytes(chunk)
        return wire.CLOSE_OK_FRAME in self._last_heard

    @property
    def closing(self) -> Side | None:
        return self._about.closed_by

    def has_undelivered(self, side: Side) -> bool:
        if side is Side.BROKER or Side.BROKER in self._ended:
            return False
        if not self._gone:
            # Keep only publishes without confirms. The client assumes that they were delivered.
            self._gone = True
            self._stop_waits()
            self._publishes.forget_incomplete(refusable=True)
            if self._publishes.has_undelivered():
                self.on_client_close()
        return self._publishes.has_undelivered()

    def end(self, side: Side, now_ns: int) -> None:
        del now_ns
        self._ended.add(side)
        self._stop_waits()
        if side is Side.BROKER:
            self._answers.silent = True
        self._streams[side].forget_all()

    def close(self) -> None:
        self._stop_waits()
        self._replay = None
        self._answers.unblocked()
        for stream in self._streams.values():
            stream.forget_all()
        channels = list(self._channels.values())
        for channel in channels:
            self.channel_closes(channel.number)
            channel.part()
        for stream in self._streams.values():
            stream.part()
        self._marking.part()
        self._stages.part()
        for memory in self._memory.values():
            memory.forget()
        self._check_spool(self._stages.now_ns)
        self._asked = None
        self._names.forget()

    def lend(self, judge: "Judge") -> "Lent | None":
        publishes, answers = self._publishes, self._answers
        if COMPILED is None or self._resources is None:
            return None
        if not self._is_plain():
            return None
        if self._compiled is None:
            self._compiled = COMPILED.Channels(self._resources, self._names.before)
        terms = self._names.with_keys, answers.limited, _ = self._terms()
        judge.ids, judge.stays = None, lambda: self._terms() == terms
        (rests, cut), (deliveries, cut_of_broker) = publishes.lend(), answers.lend()
        lent: Lent = COMPILED.lend_amqp091(
            judge,
            self._compiled,
            {
                number: (rests.get(number, 0), None if channel.confirms is None else channel.confirms.numbers())
                for number, channel in self._channels.items()
            },
            publishes.max_payload_bytes + wire.FRAME_BYTES,
            publishes.max_body_bytes,
            # The judge knows the publisher only after it has decided a batch.
            judge.connection is self._who(),
            self._names.with_keys,
            not answers.limited,
            (cut, cut_of_broker),
            deliveries,
            None if self._timed is None else (self._timed[0].number, *self._timed[1:]),
            (publishes.take_back(), answers.take_back()),
        )
        self._is_lent = True
        return lent

    def _terms(self) -> tuple[bool, bool, bool]:
        context = self._context
        return context.limits_kind(ROUTING_KEY), context.limits_kind(DELIVERY), context.after_consume()

    def _is_plain(self) -> bool:
        publishes, about, channels = self._publishes, self._about, self._channels.values()
        _, limits_deliveries, confirms_after_consume = self._terms()
        return (
            publishes.last_channel > 0
            and len(channels) <= _MAX_LENT_CHANNELS
            and publishes.is_plain()
            and self._answers.is_plain()
            and not (self._alarm or self._listeners or self._asked or self._ended or self._gone)
            and self._replay is None
            and about.closed_by is None
            and (self._begun or not about.own_channel)
            and self._marking.is_idle()
            and not confirms_after_consume
            and all(channel.is_plain() for channel in channels)
            and not (limits_deliveries and any(channel.consumers for channel in channels))
        )

    def put_back(self, side: Side, beginning: bytes, now_ns: int) -> None:
        # These bytes arrived earlier, so they do not show that the peer is still alive.
        heard = set(self._heard)
        super().put_back(side, beginning, now_ns)
        self._heard = heard

    def returned(self, state: Any) -> bool:
        of_peers, dropped, published, timed, answers, numbers = state
        self._is_lent = False
        for number, of_channel in numbers:
            self._channels[number].confirms = Confirms(of_channel)
        for side, (count, written, rests, cut) in zip(Side, of_peers, strict=True):
            if count:
                self._heard.add(side)
            if written:
                self._written.add(side)
            self._streams[side].returned(rests, cut, dropped if side is Side.CLIENT else ())
        self._publishes.published |= published
        self._timed = None if timed is None else (self._channels[timed[0]], *timed[1:])
        for number, frame in answers:
            self.answer(self._channels[number], frame)
        reads: int = sum(count for count, *_ in of_peers)
        return reads < _FEW_READS

    def count_lent(self, requests: int, refused: int) -> None:
        self._publishes.frames += requests
        self._publishes.refused += refused

    def left_bytes(self, side: Side) -> int:
        return self._streams[side].left_bytes

    def describe(self, now_ns: int) -> Description:
        del now_ns
        shown, more = self._names.shown(() if self._compiled is None else self._compiled.names())
        return Description(self._about.describe(), self._publishes.frames, self._publishes.refused, shown, more)

    def take(self, side: Side) -> Sequence[Buffer]:
        out = self._streams[side.other].take()
        if out and (len(out) > 1 or out[0] is not wire.HEARTBEAT_FRAME):
            # A heartbeat must not delay the next one.
            self._written.add(side)
        return out

    def backlog_bytes(self, side: Side) -> int:
        stream = self._streams[side.other]
        return stream.own_bytes + stream.ready_bytes()

    def paused(self, side: Side) -> bool:
        """Return whether to stop reading from a peer because its memory is used up.

        Reading continues while it can free memory. A blocked client may first complete the contents that it has
        started, because they block their channels.
        """
        if side is Side.CLIENT and self._blocked and self._publishes.between_frames():
            unfinished = self._publishes.unfinished()
            if self._to_finish is None:
                self._to_finish = unfinished
            if not any(content in unfinished for content in self._to_finish):
                return True
        return self._is_full(side) and self._streams[side].can_stop()

    def max_bytes(self, side: Side) -> int:
        pauses = self._is_full(side) or (self._blocked and side is Side.CLIENT)
        return self._streams[side].missing_bytes() if pauses else NO_BOUND

    def _check_spool(self, now_ns: int) -> None:
        spool, publishes = self._context.spool, self._publishes
        if spool is not None and (spool.is_stopped or self._waits_for_spool):
            waits = spool.is_stopped and publishes.is_spooling() and publishes.can_stop()
            if waits and not self._waits_for_spool:
                self._context.stage.stall(spool.store, now_ns, on=True)
            elif self._waits_for_spool and not waits:
                self._context.stage.part(spool.store, now_ns)
            self._waits_for_spool = waits

    def _is_full(self, side: Side) -> bool:
        spool = self._context.spool
        if side is Side.CLIENT and spool is not None and spool.is_stopped and self._publishes.is_spooling():
            return True
        return self._memory[side].is_full(alone=not (self.client_left and side is Side.CLIENT))

    def in_flight(self) -> int:
        if self._is_lent and self._compiled is not None:
            return self._compiled.unconfirmed()
        return self._publishes.waiting + self._answers.waiting + self._publishes.outstanding()

    def unanswered(self) -> int:
        if self._is_lent and self._compiled is not None:
            return self._compiled.unconfirmed()
        all_confirms = (channel.confirms for channel in self._channels.values())
        return sum(confirms.unanswered() for confirms in all_confirms if confirms is not None)

    def between_frames(self, side: Side) -> bool:
        if self._unread:
            return False
        if side is Side.CLIENT:
            return len(self._header) in {0, _HEADER_BYTES} and self._publishes.between_contents()
        return self._answers.between_frames()

    def within_frame(self, side: Side) -> bool:
        if self._unread:
            return False
        if side is Side.CLIENT:
            return len(self._header) not in {0, _HEADER_BYTES} or not self._publishes.between_frames()
        return not self._answers.between_frames()

    def missing_bytes(self, side: Side) -> int:
        if self._unread or side is Side.BROKER:
            return NO_BOUND
        if len(self._header) < _HEADER_BYTES:
            return _HEADER_BYTES - len(self._header)
        return self._publishes.missing_bytes()
