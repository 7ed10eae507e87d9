"""One AMQP 0.9.1 connection, sans-IO: the protocol header, the two streams, heartbeats and farewells of our own."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final

from msgspec.structs import replace

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Request, Side
from proxy.flow.credit import Stage
from proxy.protocols.amqp.names import DELIVERY, ROUTING_KEY, Names
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.answers import Answers
from proxy.protocols.amqp091.channel import PASSING, Channel, Content
from proxy.protocols.amqp091.confirms import Confirms
from proxy.protocols.amqp091.marking import Marking
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.options import AMQP091Options
from proxy.protocols.amqp091.publishes import Publishes
from proxy.protocols.amqp091.reading import Shared
from proxy.protocols.amqp091.replay import Replay
from proxy.protocols.amqp091.scanning import Native, last_handle
from proxy.protocols.amqp091.stages import Stages
from proxy.protocols.amqp091.stream import Stream
from proxy.protocols.amqp091.takers import Takers
from proxy.protocols.amqp091.wire import Reader
from proxy.protocols.base import NO_BOUND, Buffer, Close, Description, Session, SessionContext
from proxy.protocols.options import relays_unread, scans

#: With which a broker's answer begins that names the version it speaks: it then closes, and no frame follows.
_OTHER_VERSION: Final = wire.PROTOCOL_HEADERS[0][0]
_HEADER_BYTES: Final = wire.PROTOCOL_HEADER_BYTES
#: How clients of that version begin, with SASL and without.
_AMQP_1_0: Final = (b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00")
_NS: Final = 1_000_000_000


class _Listeners:
    """Who wants to hear when all is written; the driver is asked to tell as long as somebody does."""

    def __init__(self, hear_of_writes: Callable[[bool], None]) -> None:
        self._hear_of_writes = hear_of_writes
        self._who: set[str] = set()

    def switch(self, who: str, on: bool) -> None:  # noqa: FBT001 - as SessionContext has it
        """Take note that somebody wants to hear, or does no more."""
        before = bool(self._who)
        if on:
            self._who.add(who)
        else:
            self._who.discard(who)
        if before is not bool(self._who):
            self._hear_of_writes(not before)


class AMQP091Session(Session):
    """The session of one client's connection.

    Args:
        context: from the driver; its options are AMQP091Options, its hub a ``memory.Hub``.
    """

    ticks = True

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
        after_consume.most_bytes = options.max_pending_bytes
        self._marking = Marking(context, self._who, after_consume)
        self._takers = Takers(names, after_consume)
        resources = context.resources
        native = None if resources is None or not scans(options.scan) else Native(resources)
        self._listeners = _Listeners(context.hear_of_writes)
        self._stages = Stages(context.stage, context.writer, partial(self._listeners.switch, "stages"), context.wake)
        shared = Shared(
            context.give_up,
            context.lose,
            context.wake,
            self._takers,
            names,
            native=native,
            max_message_bytes=options.max_message_bytes,
            stages=self._stages,
            spool=context.spool,
            listener=context.connection.listener,
            pass_on=context.pass_on,
        )
        self._about, self._names, self._channels = shared.about, shared.names, shared.channels
        self._answers = Answers(self._memory[Side.BROKER], shared)
        self._publishes = Publishes(self._memory[Side.CLIENT], shared, self._answer, self._marking)
        self._streams: dict[Side, Stream] = {Side.CLIENT: self._publishes, Side.BROKER: self._answers}
        self._publishes.opened = self._answers.opened = self._channel_opens
        self._publishes.shown = self._answers.shown
        self._publishes.unread_bytes = partial(self.backlog_bytes, Side.CLIENT)
        self._publishes.closed = self._answers.closed = self._channel_closes
        self._answers.dies = self._channel_dies
        self._answers.ends = self._broker_ends
        self._answers.withholds = self._withholds
        self._answers.own = self._hear_own
        self._publishes.left = self._channel_left
        self._publishes.leaves = self._client_leaves
        self._answers.left = self._hear_left
        self._answers.declared = self._queue_declared
        self._answers.given_back = self._give_back
        self._answers.nacked = self._marking.nacked
        self._answers.returned = self._marking.returned
        self._replay: Replay | None = None
        self._replays_next = False
        #: The batch of what was asked later, by side, while it is decided.
        self._asked: dict[Side, Batch] = {}
        self._asks_next = Side.CLIENT
        #: The protocol header, as far as it has come; what follows it is decoded, relayed unread, or awaits the
        #: broker's answer to a version that is not decoded.
        self._header = b""
        self._unread = False
        self._foreign = False
        self._broker_begun = False
        #: It was let in, and what was left for it is looked for.
        self._begun = False
        #: Whose stream has ended.
        self._ended: set[Side] = set()
        #: The client has gone, or has closed the connection, though not all that it sent has gone on; and it is to hear
        #: that Sluice agrees to its close.
        self._gone = self._agrees = False
        #: Since the last look: who was heard, and who was written to.
        self._heard: set[Side] = set()
        self._written: set[Side] = set()
        self._heartbeat_ns: int | None = None
        #: The publish that is timed: where it is confirmed, the broker's number, and when it went on.
        self._timed: tuple[Confirms, int, int] | None = None
        #: Why clients are to publish nothing more, while an alarm stands; this one is not read because of it.
        self._alarm = b""
        self._blocked = self._waits_for_spool = False
        #: What had begun to come then is read to its end; None until a frame that had begun has come.
        self._to_finish: list[Content] | None = None
        #: The broker was sent a connection.close of ours; the end of what it has sent since.
        self._closes = False
        self._last_heard = b""

    # --- Channels ---------------------------------------------------------------------------------

    def _channel_opens(self, channel: Channel) -> None:
        self._channels[channel.number] = channel
        self._publishes.open_lane(channel.number, channel.to_broker)
        self._answers.open_lane(channel.number, channel.to_client)

    def _channel_dies(self, channel: Channel) -> None:
        """Take note that the broker has closed a channel, which the client is to agree to."""
        channel.dead = True
        self._marking.forget(channel)
        self._takers.close(channel, self._stages.now_ns)
        # The broker still answers a close of the client's.
        self._publishes.give_up(channel.to_broker, methods=False)
        self._answers.give_up(channel.to_client)

    def _channel_closes(self, number: int) -> None:
        """Forget a channel that both sides know to be closed."""
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

    def _end_consumers(self, channel: Channel) -> None:
        """Wait for no consumer of a channel any more, nor for a confirm on it that is timed."""
        self._marking.forget(channel)
        self._takers.close(channel, self._stages.now_ns)
        if self._timed is not None and self._timed[0] is channel.confirms:
            self._timed = None

    def _channel_left(self, channel: Channel) -> None:
        """Agree to the close of a channel of which something waits; it goes on without the client."""
        self._leave(channel)
        self._answers.insert(channel.to_client, wire.channel_close_ok(channel.number))

    def _leave(self, channel: Channel) -> None:
        """Have the broker take back what a channel has."""
        self._end_consumers(channel)
        self._answers.give_up(channel.to_client)
        self._publishes.leave(channel)
        if channel.left:
            self._answers.left_channels.add(channel)

    def _client_leaves(self) -> None:
        """Have the broker take back what the client has, though what it published is still to go on.

        Whatever has ended it, this is what its end means while something is kept.
        """
        self._gone = True
        answers, publishes = self._answers, self._publishes
        answers.finished = answers.silent = True
        answers.give_up_all()
        if publishes.cannot_leave():
            publishes.give_up_all()
            return
        publishes.forget_exclusive()
        for channel in list(self._channels.values()):
            self._leave(channel)
        publishes.delete_exclusive()
        self._agrees = publishes.finished
        self._context.wake()

    def _hear_left(self, channel: Channel, method: int) -> None:
        """Do what the broker's word on a channel asks for that the client has left."""
        if method == wire.CHANNEL_CLOSE:
            channel.dead = True
            # A close of it is on its way, or goes on now.
            self._publishes.give_up(channel.to_broker, methods=channel.to_broker.shut)
            self._publishes.insert(channel.to_broker, wire.channel_close_ok(channel.number))
            self._publishes.delete_apart(channel.number)
        elif method == wire.TX_COMMIT_OK:
            self._publishes.committed(channel)
        else:
            self._publishes.reopen(channel)

    def _queue_declared(self, queue: bytes, frame: bytes) -> None:
        self._publishes.declared(queue, frame)
        if self._gone:
            self._publishes.delete_exclusive()

    def _give_back(self, channel: Channel, tag: int) -> None:
        """Give a delivery back to its queue that the client has not seen."""
        if channel.tags is not None:
            channel.tags.settle(tag)
        self._takers.settled(wire.BASIC_NACK, channel, tag, wire.NACK_REQUEUE, self._stages.now_ns)
        frame = wire.settling(wire.BASIC_NACK, channel.number, tag, wire.NACK_REQUEUE)
        self._publishes.insert(channel.to_broker, frame)

    def _broker_ends(self, arguments: Reader) -> None:
        """Take note that the broker closes the connection."""
        if self._replay is not None:
            code, text = arguments.short(), arguments.short_string().decode(errors="replace")
            # What the client did wrong is no fault of what is replayed, which is publishes alone.
            over = arguments.short() << 16 | arguments.short()
            self._replay.stop(*((code, text) if over in {0, wire.BASIC_PUBLISH} else ()))
        self._publishes.finished = True
        self._marking.forget_all()
        self._publishes.give_up_all()
        self._answers.give_up_all()

    def _answer(self, channel: Channel, frame: bytes) -> None:
        if Side.BROKER not in self._ended and not channel.left:  # nothing can follow the end of the stream
            self._answers.insert(channel.to_client, frame)

    # --- Chunks -----------------------------------------------------------------------------------

    @property
    def language(self) -> str:
        """What the client says it is written in."""
        return self._about.language

    @property
    def product(self) -> str:
        """The client's library or program, with its version."""
        return self._about.product

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        """Take one chunk, as the base class says."""
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
            self._look_at_timed(now_ns)
            self._marking.heard(now_ns)
            if self._about.own_channel and self._about.opened and not self._begun:
                self._begun = True
                self._begin_replay()
        if self._alarm or self._blocked:
            self._look_at_alarm(now_ns)
        if self._about.tuned_bytes and self._heartbeat_ns is None and side is Side.CLIENT:
            self._begin_heartbeats(now_ns)
        if requests:
            return Batch(self._who(), side, requests)
        self._pass_on(stream, None)
        return None

    def _begin(self, chunk: memoryview) -> memoryview:
        """Take the protocol header; return what of the chunk follows it."""
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
                # The broker answers with what it speaks; what follows belongs to another protocol.
                self._foreign = True
                return chunk[:0]
        return chunk[missing:]

    def _why_not(self) -> str:
        """Say what is wrong with the client's protocol header."""
        if self._header in _AMQP_1_0:
            return 'which is AMQP 1.0: take protocol = "amqp" for its listener, or "amqp10"'
        if self._header in wire.PROTOCOL_HEADERS:
            return "which is AMQP 0.9.1, but the broker speaks something else"
        return "which is not AMQP 0.9.1"

    def _who(self) -> ConnectionInfo:
        """Return whose requests they are; who has signed in has scopes of its own."""
        if self._about.vhost and not self._signed_in:
            self._signed_in = True
            self._connection = replace(self._connection, scopes=(*self._connection.scopes, *self._about.scopes()))
        return self._connection

    def decided(self, batch: Batch, now_ns: int) -> None:
        """Queue what passes and what is refused, and copy what waits."""
        self._stages.now_ns = now_ns
        stream = self._streams[batch.side]
        if self._replay is not None and self._replay.batch is batch:
            self._replay.asked(batch, now_ns)
            self._listen_for_replay()
        elif self._asked.get(batch.side) is batch:
            del self._asked[batch.side]
            stream.asked(batch, now_ns)
            self._flush()
        else:
            self._pass_on(stream, batch)
            if self._timed is None and batch.side is Side.CLIENT:
                self._time(last_handle(batch.requests), now_ns)

    def _time(self, content: object, now_ns: int) -> None:
        """Time a publish with confirms, if it has gone on."""
        if isinstance(content, Content) and content.number and content.fate == PASSING:
            confirms = content.lane.channel.confirms
            if confirms is not None:
                self._timed = confirms, confirms.latest(), now_ns

    def _look_at_timed(self, now_ns: int) -> None:
        if self._timed is not None:
            confirms, tag, sent_ns = self._timed
            if not confirms.is_open(tag):
                self._context.counters.round_trip.observe(now_ns - sent_ns)
                self._timed = None

    def _pass_on(self, stream: Stream, batch: Batch | None) -> None:
        stream.pass_on(batch)
        self._flush()
        if stream.close is not None:
            raise stream.close

    def _flush(self) -> None:
        # What one stream reads may let the other go on.
        for stream in self._streams.values():
            stream.flush()
        # A client that connects again may declare the same queues.
        if self._agrees and not self._publishes.deleting and self._answers.insert(None, wire.CLOSE_OK_FRAME):
            self._agrees = False
            self._about.closed_by = Side.CLIENT
            self._context.end_client()
        self._look_at_spool(self._stages.now_ns)
        self._go_on_with_replay()

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        """Let a held request go on, or refuse it."""
        self._stages.now_ns = now_ns
        content = request.handle
        if isinstance(content, Content):
            stream = self._answers if content.lane is content.lane.channel.to_client else self._publishes
            stream.resolved(request, refuse)
            self._flush()
        elif self._replay is not None:
            self._replay.resolved(request)
            self._listen_for_replay()

    # --- Time -------------------------------------------------------------------------------------

    def _begin_heartbeats(self, now_ns: int) -> None:
        if self._about.heartbeat_s:
            self._heartbeat_ns = now_ns + self._half_ns()
            self._context.wake()

    def _half_ns(self) -> int:
        return self._about.heartbeat_s * _NS // 2

    def next_tick_ns(self) -> int | None:
        """Return when to look at heartbeats, or to ask again."""
        replay_ns = None if self._replay is None else self._replay.again_ns
        publishes, answers = self._publishes, self._answers
        waiting_ns = self._marking.due_ns()
        times = (self._heartbeat_ns, publishes.again_ns, publishes.old_ns, answers.again_ns, replay_ns, waiting_ns)
        return min((time for time in times if time is not None), default=None)

    def tick(self, now_ns: int) -> Batch | None:
        """Send heartbeats where they are due, and ask about what waits."""
        self._stages.now_ns = now_ns
        self._look_at_spool(now_ns)
        self._answer_waiting(now_ns)
        if self._heartbeat_ns is not None and now_ns >= self._heartbeat_ns:
            self._heartbeat_ns = now_ns + self._half_ns()
            self._beat()
        # In turns, so that none keeps the other waiting.
        replay, self._replays_next = self._replay, not self._replays_next
        if replay is not None and (self._replays_next or not any(stream.asks() for stream in self._streams.values())):
            requests = self._ask_replay(replay, now_ns)
            if requests:
                replay.batch = Batch(self._who(), Side.CLIENT, requests)
                return replay.batch
        self._go_on_with_replay()
        side = self._asks_next if self._streams[self._asks_next].asks() else self._asks_next.other
        stream = self._streams[side]
        requests = stream.ask()
        self._look_at_spool(now_ns)
        charges, stream.charges = stream.charges, []
        self._asks_next = side.other
        if any(each.asks() for each in self._streams.values()) or (replay is not None and replay.asks()):
            self._context.wake()
        if not requests and not charges:
            return None
        batch = self._asked[side] = Batch(self._who(), side, requests, charges)
        return batch

    def _answer_waiting(self, now_ns: int) -> None:
        """Tell the client what has become of publishes that waited for consumers, and publish some again."""
        answers, again = self._marking.answer(now_ns)
        for message in again:
            self._publishes.publish_again(message)
        for channel, frames in answers.items():
            self._answer(channel, b"".join(frames))
        if again:
            self._flush()

    def written(self, side: Side, now_ns: int) -> None:
        """Let more go on of what waits for the broker to read, or the client."""
        self._stages.now_ns = now_ns
        if side is Side.BROKER:
            self._stages.written()
            if self._replay is not None:
                self._replay.written()
        self._publishes.written()

    # --- What is put aside ------------------------------------------------------------------------

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        """Refuse or drop what is put aside of a resource: the answers are sent one after the other from now on."""
        self._stages.now_ns = now_ns
        refused, dropped = self._publishes.purge(resource)
        if self._replay is not None:
            dropped += self._replay.purge(resource)
        self._context.wake()
        return refused, dropped

    def waiting(self) -> Iterator[tuple[Resource, int]]:
        """Return the resource of each content that nothing is before, and since when it waits."""
        return chain.from_iterable(stream.waiting_since() for stream in self._streams.values())

    def stages(self) -> Sequence[Stage]:
        """Return those of channels and of what waits in them."""
        return self._stages.all()

    def _beat(self) -> None:
        """Send a heartbeat to who heard nothing for a while, though the other side is there."""
        if Side.CLIENT not in self._heard and not self._gone:
            # The broker does not notice, as it hears what was held.
            self._context.client_silent()
        for side, stream in self._streams.items():
            there = side in self._heard or (self._gone and side is Side.CLIENT) or self.paused(side)
            if there and side.other not in self._written and side.other not in self._ended:
                stream.insert(None, wire.HEARTBEAT_FRAME)
        self._heard.clear()
        self._written.clear()

    # --- What an earlier process left -------------------------------------------------------------

    def _withholds(self) -> bool:
        """Say whether a channel may be needed: something was left for this listener, whoever may have sent it.

        On a connection that is exempt it would go on as fast as it can.
        """
        spool, connection = self._context.spool, self._connection
        if spool is None or connection.exempt:
            return False
        return spool.has_recovered(lambda name: name.listener == connection.listener)

    def _begin_replay(self) -> None:
        """Replay what was left of the same user and vhost, if there is something and a channel for it."""
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
            failures=self._context.hub.failures,
        )

    def _listen_for_replay(self) -> None:
        if self._replay is not None:
            self._listeners.switch("replay", self._replay.is_unwritten())

    def _hear_own(self, method: int, arguments: Reader) -> None:
        """Take what the broker says on the channel that is Sluice's own, of which the client sees nothing."""
        if self._replay is not None:
            self._replay.hear(method, arguments)

    def _stop_replay(self) -> None:
        """Leave what is left to others, as nothing more may be sent."""
        if self._replay is not None:
            self._replay.stop()
            self._listen_for_replay()

    def _go_on_with_replay(self) -> None:
        if self._replay is not None:
            if self._publishes.finished:
                self._replay.stop()
            self._replay.go_on()
            self._listen_for_replay()

    def _ask_replay(self, replay: Replay, now_ns: int) -> list[Request]:
        self._names.with_keys = self._context.limits_kind(ROUTING_KEY)
        requests = replay.ask(now_ns)
        self._listen_for_replay()
        if any(stream.asks() for stream in self._streams.values()):
            self._context.wake()
        return requests

    # --- Alarms -----------------------------------------------------------------------------------

    def alarm(self, reason: str, now_ns: int) -> None:
        """Have a client that publishes wait, as the base class says: as RabbitMQ does, with all that it sends."""
        if not self._connection.exempt:
            self._alarm = reason.encode()
            self._look_at_alarm(now_ns)
            self._flush()

    def _look_at_alarm(self, now_ns: int) -> None:
        """Block the client if it publishes while an alarm stands. One that has said its last word need not be."""
        publishes = self._publishes
        self._answers.silent = self._answers.silent or publishes.finished
        before, self._blocked = self._blocked, bool(self._alarm) and publishes.published and not publishes.finished
        if self._blocked is not before:
            self._to_finish = None
        self._answers.reason = self._alarm if self._blocked and self._about.hears_blocked else b""
        self._context.stage.block(now_ns, on=self._blocked)

    # --- Ends -------------------------------------------------------------------------------------

    def dismisses_client(self, detail: str, now_ns: int) -> bool:
        """Do so where all that is in flight is what the client takes for delivered."""
        del now_ns
        self._marking.end()
        if not self._about.opened or self._publishes.finished or self._about.closed_by is not None:
            return False
        if self._answers.waiting or self._publishes.awaits_answers() or not self.between_frames(Side.CLIENT):
            return False
        self._answers.silent = self._answers.insert(None, wire.connection_close(wire.CONNECTION_FORCED, detail))
        return self._answers.silent

    def farewell(self, detail: str, now_ns: int) -> None:
        """Queue a connection.close for either side that has not said or heard one."""
        del now_ns
        self._stop_replay()
        self._marking.forget_all()
        if self._publishes.finished or self._about.closed_by is not None:
            return
        self._answers.silent = True
        failed = self._publishes.close is not None
        code = self._publishes.code if failed else wire.CONNECTION_FORCED
        if not self._about.opened:
            # The client understands a close before it is let in; the broker expects none.
            if failed and self._about.vhost and Side.BROKER not in self._ended:
                self._answers.insert(None, wire.connection_close(code, detail))
            return
        if Side.BROKER not in self._ended:
            self._answers.insert(None, wire.connection_close(code, detail))
        if Side.CLIENT not in self._ended:
            self._closes = self._publishes.insert(None, wire.connection_close(wire.CONNECTION_FORCED, detail))

    def heard_out(self, side: Side, chunk: memoryview) -> bool:
        """Wait for the broker's agreement to our close: it warns of a stream that ends before it."""
        if side is Side.CLIENT or not self._closes:
            return True
        # It cannot be told from the same bytes in a body; then the stream only ends sooner.
        self._last_heard = self._last_heard[1 - len(wire.CLOSE_OK_FRAME) :] + bytes(chunk)
        return wire.CLOSE_OK_FRAME in self._last_heard

    @property
    def closing(self) -> Side | None:
        """Return which peer has closed the connection, once the other one has agreed."""
        return self._about.closed_by

    def keeps(self, side: Side) -> bool:
        """Say so of a client that has gone while publishes without confirms wait, which it takes for delivered."""
        if side is Side.BROKER or Side.BROKER in self._ended:
            return False
        if not self._gone:
            self._gone = True
            self._stop_replay()
            self._marking.forget_all()
            self._publishes.forget_incomplete(refusable=True)
            if self._publishes.keeps():
                self._client_leaves()
        return self._publishes.keeps()

    def end(self, side: Side, now_ns: int) -> None:
        """Queue what was held back of an unfinished frame; what waits of that side is forgotten."""
        del now_ns
        self._ended.add(side)
        self._stop_replay()
        self._marking.forget_all()
        if side is Side.BROKER:
            self._answers.silent = True
        if side is Side.CLIENT and 0 < len(self._header) < _HEADER_BYTES:
            self._publishes.out.append(self._header)
        self._streams[side].end()

    def close(self) -> None:
        """Give back the room of what waits, and forget the rest: what goes round in circles would stay for long."""
        self._stop_replay()
        self._replay = None
        self._marking.forget_all()
        for stream in self._streams.values():
            stream.forget_all()
        channels = list(self._channels.values())
        for channel in channels:
            self._channel_closes(channel.number)
            channel.part()
        for stream in self._streams.values():
            stream.part()
        self._marking.part()
        for memory in self._memory.values():
            memory.forget()
        self._look_at_spool(self._stages.now_ns)
        self._asked.clear()
        self._names.forget()

    # --- For the driver ---------------------------------------------------------------------------

    def held_back(self, side: Side) -> int:
        """Return the length of a frame's beginning, if it is worth while to read it once more."""
        return self._streams[side].held_back()

    def take_back(self, side: Side) -> bytes:
        """Hand out that beginning."""
        return self._streams[side].take_back()

    def takes_turns(self, side: Side) -> bool:
        """Say so of a peer whose chunks take many steps."""
        return self._streams[side].takes_turns()

    def reads_fast(self, side: Side) -> bool:
        """Say so of what is relayed unread, and of streams whose last chunk was read in few steps."""
        return self._unread or self._streams[side].reads_fast()

    def left_bytes(self, side: Side) -> int:
        """Return what is left of a chunk with much in it."""
        return self._streams[side].left_bytes

    def describe(self) -> Description:
        """Return what is known of the connection."""
        shown, more = self._names.shown(self._publishes.scanned_names())
        return Description(self._about.describe(), self._publishes.frames, self._publishes.refused, shown, more)

    def take(self, side: Side) -> Sequence[Buffer]:
        """Hand out what may be written now."""
        out = self._streams[side.other].take()
        if out and (len(out) > 1 or out[0] is not wire.HEARTBEAT_FRAME):
            # After a heartbeat alone the next is due half a time later, as if nothing had been written.
            self._written.add(side)
        if side is Side.BROKER:
            self._stages.taken()
        return out

    def backlog_bytes(self, side: Side) -> int:
        """Return the bytes of our own that wait for that peer."""
        stream = self._streams[side.other]
        return stream.own_bytes + stream.ready_bytes()

    def paused(self, side: Side) -> bool:
        """Say whether as much waits of that peer as may, and nothing has to be read first so that it can go on.

        A client that is blocked is read to the end of what it had begun then: what waits in those channels could not go
        on. What it begins after that is not waited for, or it would go on for ever with a few channels in turn.
        """
        if side is Side.CLIENT and self._blocked and self._publishes.between_frames():
            unfinished = self._publishes.unfinished()
            if self._to_finish is None:
                self._to_finish = unfinished
            if not any(content in unfinished for content in self._to_finish):
                return True
        return self._is_full(side) and self._streams[side].can_stop()

    def most_bytes(self, side: Side) -> int:
        """Return what is missing of the frame in hand while as much waits as may: a pause comes between two frames."""
        pauses = self._is_full(side) or (self._blocked and side is Side.CLIENT)
        return self._streams[side].missing_bytes() if pauses else NO_BOUND

    def _look_at_spool(self, now_ns: int) -> None:
        """Have the connection show that it waits for the spool, or does so no more."""
        spool, publishes = self._context.spool, self._publishes
        if spool is not None and (spool.is_stopped or self._waits_for_spool):
            waits = spool.is_stopped and publishes.puts_aside() and publishes.can_stop()
            if waits and not self._waits_for_spool:
                self._context.stage.stall(spool.store, now_ns, on=True)
            elif self._waits_for_spool and not waits:
                self._context.stage.part(spool.store, now_ns)
            self._waits_for_spool = waits

    def _is_full(self, side: Side) -> bool:
        """Say whether as much waits of that peer as may, in memory or in the spool."""
        spool = self._context.spool
        if side is Side.CLIENT and spool is not None and spool.is_stopped and self._publishes.puts_aside():
            return True
        return self._memory[side].is_full(alone=not (self.client_left and side is Side.CLIENT))

    def in_flight(self) -> int:
        """Return what waits, and publishes that the broker has not confirmed."""
        return self._publishes.waiting + self._answers.waiting + self._publishes.outstanding()

    def between_frames(self, side: Side) -> bool:
        """Return whether that peer's stream may end here; one that is relayed unread never may."""
        if self._unread:
            return False
        if side is Side.CLIENT:
            return len(self._header) in {0, _HEADER_BYTES} and self._publishes.between_contents()
        return self._answers.between_frames()

    def within_frame(self, side: Side) -> bool:
        """Return whether a frame of that peer has begun, whatever content it is of."""
        if self._unread:
            return False
        if side is Side.CLIENT:
            return len(self._header) not in {0, _HEADER_BYTES} or not self._publishes.between_frames()
        return not self._answers.between_frames()

    def missing_bytes(self, side: Side) -> int:
        """Return what is missing of the client's frame in hand; the broker's and unread streams have no such bound."""
        if self._unread or side is Side.BROKER:
            return NO_BOUND
        if len(self._header) < _HEADER_BYTES:
            return _HEADER_BYTES - len(self._header)
        return self._publishes.missing_bytes()
