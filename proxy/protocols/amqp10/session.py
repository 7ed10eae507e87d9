"""One AMQP 1.0 connection: its streams, sessions and links, its heartbeats, and the closes that Sluice sends."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from proxy.deciding.batch import Batch, Grant, Hold, Refuse, Request, Side
from proxy.deciding.judge import Judge
from proxy.flow.credit import Stage
from proxy.protocols.amqp.client_info import Identity
from proxy.protocols.amqp.names import DEFAULT_VHOST
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.address import vhost_of
from proxy.protocols.amqp10.conversation import Conversation, send_flow, send_rejected, send_window_flow
from proxy.protocols.amqp10.lent import LentConnection
from proxy.protocols.amqp10.links import Delivery, Link, Shared
from proxy.protocols.amqp10.stream import MAX_WHOLE_BYTES, Step, Stream, forward
from proxy.protocols.amqp10.wire import Frame, Malformed, Opened, Performative
from proxy.protocols.base import NO_BOUND, Buffer, Close, Description, Session, SessionContext
from proxy.protocols.options import Scan, Tls, relays_unread, scans
from proxy.stats.snapshot import MAX_LINKS_SHOWN, MAX_RESOURCES_SHOWN

if TYPE_CHECKING:
    from sluice_native import Lent

_NS_PER_MS: Final = 1_000_000
_SWEEP_NS: Final = 250_000_000
MAX_SESSIONS: Final = 4096  # per connection
_MIN_BEAT_NS: Final = 25_000_000
_CLOSE: Final = b"\x00\x53\x18"
_RABBITMQ: Final = b"RabbitMQ"


@dataclass(frozen=True, slots=True)
class AMQP10Options:
    """Options of an AMQP 1.0 listener.

    Attributes:
        tls: what to do if a client begins a TLS handshake and the listener does not terminate TLS. ``refuse`` closes
            the connection. ``pass`` relays the encrypted connection without applying limits.
        scan: code that parses ordinary frames. ``compiled`` is the package sluice_native. ``python`` is slower but
            always available. ``auto`` uses the package if it is installed.
    """

    tls: Tls = "refuse"
    scan: Scan = "auto"


class ClientInfo(Identity):
    def __init__(self) -> None:
        super().__init__(DEFAULT_VHOST)
        self.opened: dict[Side, Opened] = {}
        # CLIENT when the broker has answered the client's close. BROKER when the broker sends the first close.
        self.closed_by: Side | None = None
        self._closing: Side | None = None

    def open(self, side: Side, opened: Opened) -> None:
        self.opened[side] = opened
        if side is Side.CLIENT:
            self.introduce(opened.container, opened.properties)
        if self.is_open and not self.is_plain:
            self.vhost = vhost_of(self.opened[Side.CLIENT].hostname)

    @property
    def is_open(self) -> bool:
        return len(self.opened) == len(Side)

    @property
    def is_plain(self) -> bool:
        """Whether the broker is not RabbitMQ. It then has no vhosts, and addresses are queue names."""
        return self.opened[Side.BROKER].properties.get(b"product") != _RABBITMQ

    def close(self, side: Side) -> None:
        if self._closing is None:
            self._closing = side
        if self.closed_by is None and (side is Side.BROKER or self._closing is Side.BROKER):
            self.closed_by = self._closing


class AMQP10Session(Session):
    ticks = lends = True

    def __init__(self, context: SessionContext) -> None:
        options: AMQP10Options = context.options
        self._context = context
        self._tls = options.tls
        self._may_be_lent = scans(options.scan)
        self._shared = Shared(context, context.connection)
        if context.hub is not None:
            self._shared.clients = context.hub.clients
        self._shared.rules_version = context.rules_version()
        self._about = ClientInfo()
        self._streams = {side: Stream(side, self) for side in Side}
        self._sessions: dict[Conversation, None] = {}
        self._channels: dict[Side, dict[int, Conversation]] = {side: {} for side in Side}
        # For each peer, the sessions that only this peer has begun, by channel.
        self._unanswered: dict[Side, dict[int, deque[Conversation]]] = {side: {} for side in Side}
        self._payload: dict[Side, Callable[..., Step] | None] = dict.fromkeys(Side)
        self._current: dict[Side, Batch | None] = dict.fromkeys(Side)
        self._unread = self._begun = False
        self._ended: set[Side] = set()
        self._lent = LentConnection(self._shared, self._channels, self._tell, self.take)
        self._heard, self._written = self._lent.heard, self._lent.written
        self._beats_ns: dict[Side, int] = {}
        self._sweep_ns: int | None = None
        # Links that have waited for credit since the last sweep, and a stage for each limit.
        self._waiting: dict[Link, None] = {}
        self._stages: dict[str, Stage] = {}
        self._closes = False
        self._last_heard = b""

    @property
    def language(self) -> str:
        return self._about.language

    @property
    def product(self) -> str:
        return self._about.product

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        shared, stream = self._shared, self._streams[side]
        shared.now_ns = now_ns
        self._heard.add(side)
        if not self._begun and side is Side.CLIENT:
            self._begun = True
            self._unread = relays_unread(chunk[0], self._tls)
        if self._unread:
            stream.out.append(chunk)
            return None
        self._check_rules()
        before = stream.frames
        stream.feed(chunk)
        self._context.counters.frames[side] += stream.frames - before
        requests = self._ask() if shared.requests or shared.needs_credit else ()
        if requests:
            batch = self._current[side] = shared.batch(side, requests)
            return batch
        self._write(stream)
        batch = shared.batch(side, self._ask() if shared.requests or shared.needs_credit else ())
        if batch is None and stream.close is not None:
            raise stream.close
        return batch

    def lend(self, judge: Judge) -> "Lent | None":
        shared, streams = self._shared, self._streams
        if (
            not self._may_be_lent
            or not shared.broker_opened
            # The judge knows the connection's scopes only after a message was counted.
            or judge.connection is not shared.connection
            or self._closes
            or any(self._current.values())
            or not all(stream.is_quiet() for stream in streams.values())
            or not self._stays()
            or not shared.is_quiet
        ):
            return None
        client, broker = (streams[side].beginning for side in Side)
        if max(len(client), len(broker)) > MAX_WHOLE_BYTES:
            return None
        judge.stays, judge.ids = self._stays, None
        max_frame_bytes = streams[Side.CLIENT].max_frame_bytes, streams[Side.BROKER].max_frame_bytes
        lent = self._lent.lend(judge, max_frame_bytes, (client, broker))
        for stream in streams.values():
            stream.take_back()
        return lent

    def _stays(self) -> bool:
        return self._context.rules_version() == self._shared.rules_version

    def count_lent(self, requests: int, refused: int) -> None:
        del refused
        self._streams[Side.CLIENT].frames += requests

    def put_back(self, side: Side, beginning: bytes, now_ns: int) -> None:
        del now_ns
        self._streams[side].put_back(beginning)

    def returned(self, state: Any) -> bool:
        if not self._shared.is_quiet or any(stream.out for stream in self._streams.values()):
            self._context.wake()
        return bool(state)

    def _ask(self) -> list[Request]:
        shared = self._shared
        requests, shared.requests = shared.requests, []
        if not shared.broker_opened:
            # Before the connection is open, its links must not use up permits.
            return requests
        links, shared.needs_credit = shared.needs_credit, {}
        for link in links:
            request = link.ask()
            if request is not None:
                requests.append(request)
        return requests

    def decided(self, batch: Batch, now_ns: int) -> None:
        shared = self._shared
        shared.now_ns = now_ns
        verdicts = batch.verdicts
        for index, request in enumerate(batch.requests):
            verdict = verdicts.get(index)
            about = request.handle
            if isinstance(about, Link):
                if isinstance(verdict, Hold):
                    about.hold(request)
                    self._throttle(about)
                else:
                    about.grant(request, verdict.messages if isinstance(verdict, Grant) else request.most)
            elif isinstance(about, Delivery):
                about.link.decided(about, verdict if isinstance(verdict, Refuse) else None)
        side = batch.side
        stream = self._streams[side]
        if self._current[side] is batch:
            self._current[side] = None
            self._write(stream)
        elif batch.requests:
            self._release()
        self._wake_for_more()
        if stream.close is not None and self._current[side] is None:
            raise stream.close

    def _release(self) -> None:
        for stream in self._streams.values():
            stream.release()
        if self._shared.timed is not None:
            self._check_timed(Side.CLIENT)
        self._serve_links()

    def _serve_links(self) -> None:
        self._turn()
        if self._shared.starved or self._shared.turning:
            self._sweep_soon()
        self._tell()

    def _throttle(self, link: Link) -> None:
        connection, now_ns = self._context.stage, self._shared.now_ns
        self._waiting[link] = None
        name = link.limited_as
        if name not in self._stages:
            if not self._stages:
                connection.throttle(now_ns, on=True)
            stage = self._stages[name] = Stage("resource", name, connection.gives)
            stage.throttle(now_ns, on=True)
            connection.send(stage, 1, now_ns)
            stage.ack(connection, 1, now_ns)
        self._sweep_soon()

    def _sweep_soon(self) -> None:
        if self._sweep_ns is None:
            self._sweep_ns = self._shared.now_ns + _SWEEP_NS
            self._context.wake()

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        del refuse
        self._shared.now_ns = now_ns
        link = request.handle
        assert isinstance(link, Link)  # noqa: S101 - only their requests are held
        link.grant(request, request.messages)
        self._serve_links()
        self._wake_for_more()

    def _wake_for_more(self) -> None:
        shared = self._shared
        if shared.due:
            shared.charge_due()
        # Do not wake up for flows alone, which cost less than a tick.
        if (shared.needs_credit and shared.broker_opened) or shared.requests or shared.charges or shared.paid:
            self._context.wake()

    def _write(self, stream: Stream) -> None:
        shared = self._shared
        stream.write()
        if shared.timed is not None:
            self._check_timed(stream.side)
        if shared.forced:
            self._context.wake()
        self._serve_links()

    def _check_timed(self, side: Side) -> None:
        shared = self._shared
        assert shared.timed is not None  # noqa: S101 - the callers check it
        session, since_ns = shared.timed
        ids = session.halves[Side.CLIENT].ids
        if ids.watched is None:
            shared.timed = None
            if ids.answered and side is Side.BROKER:
                self._context.counters.round_trip.observe(shared.now_ns - since_ns)
                self._context.signals.round_trips_ns.append(shared.now_ns - since_ns)

    def _tell(self) -> None:
        shared = self._shared
        rejected, shared.rejected = shared.rejected, []
        for delivery in rejected:
            send_rejected(delivery, self._streams[delivery.link.sender.other])
        links, shared.needs_flow = shared.needs_flow, {}
        for link in links:
            if link.credit.needs_flow:
                send_flow(link, self._streams[link.sender.other])
        for session, side in list(shared.short):
            if send_window_flow(session, self._streams[side.other]):
                del shared.short[session, side]

    def _check_rules(self) -> None:
        shared = self._shared
        version = self._context.rules_version()
        if version != shared.rules_version:
            shared.rules_version = version
            shared.check_rules()
            for session in self._sessions:
                for link in session.links:
                    link.ask_terms()

    def take_other_header(self, stream: Stream, header: bytes) -> Step:
        if stream.side is Side.BROKER:
            stream.close = Close("other_protocol", f"the broker began with {header!r}, which is not AMQP 1.0")
            return Step(forward)
        # Answer with the supported version (2.2). Sluice could not decode an answer from the broker.
        self._streams[Side.BROKER].insert(wire.SASL_HEADER)
        what = 'is AMQP 0.9.1; use protocol = "amqp091" for the listener, or "amqp" for both versions'
        if not header.startswith(b"AMQP\x00\x00\x09") and not header.startswith(b"AMQP\x01\x01"):
            what = "is not AMQP 1.0"
        stream.close = Close("other_protocol", f"the client began with {header!r}, which {what}")
        return Step(lambda _: b"")

    def take_sasl(self, stream: Stream, performative: Performative) -> Step:
        if stream.side is Side.CLIENT and performative.code == wire.SASL_INIT:
            self._about.user = wire.read_sasl_init(performative)
        return Step(forward)

    def take_frame(self, stream: Stream, frame: Frame, performative: Performative, begins: int, data: Buffer) -> Step:
        side, code = stream.side, performative.code
        if frame.size > max(begins, MAX_WHOLE_BYTES) and code != wire.TRANSFER:
            # Sluice would split or rewrite this frame, and the other peer would misread it.
            raise Malformed(f"a frame of {frame.size} bytes that carries a payload but is not a transfer")
        self._payload[side] = None
        if code == wire.OPEN:
            return self._open(stream, performative)
        if code == wire.CLOSE:
            stream.is_over = True
            for each in self._sessions:
                each.pass_undecided(side)
            return Step(partial(self._close, stream))
        if side not in self._about.opened:
            raise Malformed("a frame before an open frame")
        if code == wire.BEGIN:
            return self._begin(side, frame.channel, performative)
        session = self._channels[side].get(frame.channel)
        if session is None:
            # The other peer reports the error.
            return Step(forward)
        if code == wire.TRANSFER:
            delivery, step = session.transfer(stream, frame, performative, begins, data)
            self._payload[side] = partial(session.payload, side, delivery)
            return step
        if code == wire.DISPOSITION:
            return session.disposition(stream, frame.channel, performative)
        if code == wire.FLOW:
            return session.flow(side, frame.channel, performative)
        if code == wire.ATTACH:
            link, step = session.attach(side, performative)
            if link.sender is Side.CLIENT and self._shared.withheld:
                self._context.stage.block(self._shared.now_ns, on=True)
            return step
        if code == wire.DETACH:
            return session.detach(side, performative)
        if code == wire.END:
            del self._channels[side][frame.channel]
            step = session.end(side)
            if all(each.ended for each in session.halves.values()):
                self._sessions.pop(session, None)
            return step
        return Step(forward, session)

    def take_payload(self, stream: Stream, payload: Buffer, *, is_last: bool) -> Step:
        take = self._payload[stream.side]
        return Step(forward) if take is None else take(payload, is_last=is_last)

    def _open(self, stream: Stream, performative: Performative) -> Step:
        side, shared = stream.side, self._shared
        if side in self._about.opened:
            raise Malformed("a second open frame")
        opened = wire.read_open(performative)
        self._about.open(side, opened)
        self._streams[side.other].max_frame_bytes = max(opened.max_frame_bytes, wire.MIN_MAX_FRAME_BYTES)
        # Do not read addresses from the client before the broker has named its product.
        self._streams[Side.CLIENT].waits = Side.BROKER not in self._about.opened
        if self._about.is_open:
            shared.broker_opened = True
            shared.plain = self._about.is_plain
            scopes = (*shared.connection.scopes, *self._about.scopes())
            shared.connection = replace(shared.connection, scopes=scopes)
            shared.names.enter(self._about.vhost)
            shared.check_rules()
        if opened.idle_time_out_ms:
            self._beats_ns[side] = shared.now_ns + self._beat_ns(side)
            self._context.wake()
        return Step(stream.open)

    def _close(self, stream: Stream, data: Buffer) -> Buffer:
        stream.is_closed = True
        self._about.close(stream.side)
        for session in self._sessions:
            session.end_links()
        return data

    def _begin(self, side: Side, channel: int, performative: Performative) -> Step:
        channels = self._channels[side]
        if channel in channels:
            raise Malformed(f"a begin on channel {channel}, which is already in use")
        remote = performative.ushort(0)
        if remote is None:
            if len(self._sessions) >= MAX_SESSIONS:
                raise Close("too_many_sessions", f"the {side.value} began more than {MAX_SESSIONS} sessions")
            session = Conversation(self._shared)
            self._sessions[session] = None
            self._unanswered[side].setdefault(channel, deque()).append(session)
        else:
            waiting = self._unanswered[side.other].get(remote)
            if not waiting:
                raise Malformed(
                    f"a begin with remote-channel {remote}, but no session on that channel awaits an answer"
                )
            session = waiting.popleft()
            if not waiting:
                del self._unanswered[side.other][remote]
        channels[channel] = session
        return session.begin(side, channel, performative)

    def _beat_ns(self, side: Side) -> int:
        return max(_MIN_BEAT_NS, (self._about.opened[side].idle_time_out_ms or 0) * _NS_PER_MS // 4)

    def next_tick_ns(self) -> int | None:
        times = [*self._beats_ns.values()]
        if self._sweep_ns is not None:
            times.append(self._sweep_ns)
        return min(times, default=None)

    def tick(self, now_ns: int) -> Batch | None:
        shared = self._shared
        shared.now_ns = now_ns
        self._check_rules()
        for side, due_ns in self._beats_ns.items():
            if now_ns >= due_ns:
                self._beats_ns[side] = now_ns + self._beat_ns(side)
                self._beat(side)
        if self._sweep_ns is not None and now_ns >= self._sweep_ns:
            self._sweep(now_ns)
        forced, shared.forced = shared.forced, {}
        for session in forced:
            session.decide_now()
        self._release()
        return shared.batch(Side.CLIENT, self._ask())

    def _sweep(self, now_ns: int) -> None:
        shared = self._shared
        starved, shared.starved = shared.starved, {}
        for link in starved:
            link.wants()
        self._check_stages(now_ns)
        self._sweep_ns = now_ns + _SWEEP_NS if shared.starved or shared.turning or self._stages else None

    def _turn(self) -> None:
        for link in [link for link in self._shared.turning if link.may_turn]:
            del self._shared.turning[link]
            link.turn()

    def _check_stages(self, now_ns: int) -> None:
        names = {link.limited_as for link in self._waiting}
        for name in [name for name in self._stages if name not in names]:
            self._stages.pop(name).close(now_ns)
            if not self._stages:
                self._context.stage.throttle(now_ns, on=False)
        self._waiting = {link: None for link in self._waiting if link.waits}

    def stages(self) -> Iterable[Stage]:
        return list(self._stages.values())

    def _beat(self, side: Side) -> None:
        stream = self._streams[side.other]
        if side not in self._written and side.other in self._heard and stream.is_opened:
            stream.insert(wire.EMPTY_FRAME)
        self._heard.discard(side.other)
        self._written.discard(side)

    def alarm(self, reason: str, now_ns: int) -> None:
        shared = self._shared
        if shared.connection.exempt:
            return
        shared.now_ns = now_ns
        before, shared.withheld = shared.withheld, bool(reason)
        if before and not shared.withheld:
            for link in self._sending():
                link.wants()
            self._tell()
            self._wake_for_more()
        if shared.withheld and self._sending():
            self._context.stage.block(now_ns, on=True)

    def _sending(self) -> list[Link]:
        return [link for session in self._sessions for link in session.links if link.sender is Side.CLIENT]

    def start_close(self, detail: str, now_ns: int) -> None:
        del now_ns
        for side in Side:
            stream = self._streams[side.other]
            if not stream.is_opened or not self._streams[side].is_opened or stream.is_closed or side in self._ended:
                continue
            failed = self._streams[side].close
            condition = wire.CONNECTION_FORCED
            if failed is not None and failed.reason == "bad_frame":
                condition = wire.FRAMING_ERROR
            stream.insert(wire.close_frame(wire.error(condition, detail)))
            stream.is_closed = True
            if side is Side.BROKER and stream.can_insert():
                self._closes = True

    def receive_closing(self, side: Side, chunk: memoryview) -> bool:
        if side is Side.CLIENT or not self._closes:
            return True
        # A payload that contains these bytes only closes the connection sooner.
        self._last_heard = self._last_heard[1 - len(_CLOSE) :] + bytes(chunk)
        return _CLOSE in self._last_heard

    @property
    def closing(self) -> Side | None:
        return self._about.closed_by

    def end(self, side: Side, now_ns: int) -> None:
        del now_ns
        self._ended.add(side)
        self._streams[side].end()
        self._streams[side].is_closed = True

    def settle(self, now_ns: int) -> Batch | None:
        """End all links, and charge or refund their permits as if they were detached."""
        self._shared.now_ns = now_ns
        for session in self._sessions:
            session.end_links()
        return self._shared.batch(Side.CLIENT, ())

    def close(self) -> None:
        shared = self._shared
        for session in self._sessions:
            session.forget()
        self._sessions.clear()
        for side in Side:
            self._channels[side].clear()
            self._unanswered[side].clear()
            self._payload[side] = None
            self._current[side] = None
            self._streams[side].forget_kept()
        for stage in self._stages.values():
            stage.close(shared.now_ns)
        self._stages.clear()
        self._waiting.clear()
        shared.forget()
        del self._streams, self._lent

    def left_bytes(self, side: Side) -> int:
        return self._streams[side].left_bytes

    def describe(self, now_ns: int) -> Description:
        links = [link for session in self._sessions for link in session.links]
        shown = nsmallest(MAX_LINKS_SHOWN, links, key=Link.since)
        resources = dict.fromkeys(str(each) for link in links for each in link.resources)
        return Description(
            self._about.describe(),
            self._streams[Side.CLIENT].frames,
            self._shared.refused,
            tuple(resources)[:MAX_RESOURCES_SHOWN],
            max(0, len(resources) - MAX_RESOURCES_SHOWN),
            tuple(link.state(now_ns) for link in shown),
            len(links) - len(shown),
        )

    def take(self, side: Side) -> Sequence[Buffer]:
        out = self._streams[side.other].take()
        if out:
            self._written.add(side)
        return out

    def backlog_bytes(self, side: Side) -> int:
        return self._streams[side.other].backlog_bytes

    def paused(self, side: Side) -> bool:
        return side is Side.CLIENT and self._streams[side].waits

    def in_flight(self) -> int:
        return self.unanswered() + self._streams[Side.CLIENT].kept_frames

    def unanswered(self) -> int:
        return sum(session.halves[Side.CLIENT].ids.unsettled for session in self._sessions)

    def between_frames(self, side: Side) -> bool:
        if self._unread:
            return False
        if side is Side.CLIENT and self._shared.in_flight:
            return False
        return self._streams[side].is_between_frames()

    def within_frame(self, side: Side) -> bool:
        return not self._unread and not self._streams[side].is_between_frames()

    def missing_bytes(self, side: Side) -> int:
        if self._unread or side is Side.BROKER:
            return NO_BOUND
        return self._streams[side].missing_bytes()
