"""One connection of RocketMQ 5's gRPC, sans-IO: HTTP/2 frames go on untouched, and refused calls are taken out.

A call is an HTTP/2 stream. Its HEADERS always go on to the broker at once, as they belong to the client's HPACK table;
its DATA may have to wait. ``proxy.protocols.rocketmq_grpc.calls`` has its states.

A stream without a Call is over: the client's DATA on it is swallowed, and so is everything of the broker. A header
block of the broker that is dropped may have changed its table, which the client's then no longer follows. From then on
all its blocks are written anew, as literals that need no table.

``proxy.protocols.rocketmq_grpc.http2`` explains the windows, and ``messages`` what the messages mean.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from limiter.rules.resource import USER, Resource
from proxy.common.buffers import Gathering
from proxy.deciding.batch import Batch, Charge, Hold, Later, Refuse, Request, Response, Side
from proxy.protocols.base import NO_BOUND, Buffer, Close, Description, Session, SessionContext
from proxy.protocols.options import relays_unread
from proxy.protocols.rocketmq import refusals
from proxy.protocols.rocketmq.routes import read_address
from proxy.protocols.rocketmq.wire.codes import KIND_SUBSCRIPTION
from proxy.protocols.rocketmq_grpc import http2, messages
from proxy.protocols.rocketmq_grpc.calls import (
    ASKED,
    GATHERS,
    HELD,
    LATER,
    MAX_MESSAGE_BYTES,
    PASSES,
    TELEMETRY,
    Call,
    Start,
    read_start,
    refusal,
)
from proxy.protocols.rocketmq_grpc.options import RocketMQGrpcOptions
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN, ClientDescription

#: Of a message that is only looked at; and the methods of which the request is.
_LOOKED_AT_BYTES: Final = 16 * 1024
_LOOKED_AT: Final = messages.ROUTES | {TELEMETRY}
#: Open calls of a connection. The broker's own bound is mostly lower.
MAX_CALLS: Final = 10_000
#: Answers that wait for the client's window.
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
#: Beyond this the broker is not read.
_FULL_BYTES: Final = 1024 * 1024
#: Frames that bring nothing, as an attack sends them: this many at once, and one more for each STRAIN_NS. A reset of a
#: young call counts more, since the broker has begun with it. Older ones may be many at once: their deadline is over.
MAX_STRAIN: Final = 10_000
_STRAIN_NS: Final = 1_000_000
_RESET_STRAIN: Final = 5
_RAPID_NS: Final = 1_000_000_000
_REMEMBERED: Final = 1024
_UNREADABLE: Final = "[RateLimit] the request cannot be read, so no limit can be applied to it"

_ERRORS: Final = {
    "bad_frame": http2.PROTOCOL_ERROR,
    "frame_too_long": http2.FRAME_SIZE_ERROR,
    "window_overdrawn": http2.FLOW_CONTROL_ERROR,
    "bad_headers": http2.COMPRESSION_ERROR,
    "headers_too_long": http2.ENHANCE_YOUR_CALM,
    "too_many_calls": http2.ENHANCE_YOUR_CALM,
    "flood": http2.ENHANCE_YOUR_CALM,
}


class RocketMQGrpcSession(Session):
    """The session of one client's connection; the context's options are a RocketMQGrpcOptions."""

    def __init__(self, context: SessionContext) -> None:
        options: RocketMQGrpcOptions = context.options
        self._context = context
        self._options = options
        # A rule that spools has its calls wait: what is on disk outlives their deadlines.
        self._connection = replace(context.connection, spools=False)
        self._frames = {side: http2.Frames(side.value) for side in Side}
        self._requests = http2.HeaderBlocks("client", read_start)
        self._answers = http2.HeaderBlocks[http2.Headers]("broker", lambda headers: headers)
        # A refusal has gone to the client since the broker wrote HEADERS or DATA. Clients ping behind DATA to find out
        # which window they need, and a gRPC server ends the connection at the third ping since it wrote something
        # (``too_many_pings``). So such pings are answered here.
        self._spoke_last = False
        # The client's table does not follow the broker's any more; and whether it was emptied.
        self._rewrites = self._emptied = False
        self._to_client = http2.Outlet(is_open=False)
        self._to_broker = http2.Outlet(is_open=True)
        self._preface = bytearray()
        self._begun = self._unread = False
        self._calls: dict[int, Call] = {}
        self._held: dict[Call, None] = {}
        self._later: dict[Call, None] = {}
        # Calls that have stored the beginning of a message, how much of it, and the room for that.
        self._gathering: dict[Call, None] = {}
        self._gathered_bytes = 0
        self._room = Gathering(context.connection.address, self._lose)
        self._lost = False
        self._asked: list[Request] = []
        self._charges: list[Charge] = []
        self._responses: list[Response] = []
        # The client's last stream, and the last one before our GOAWAY.
        self._last_stream = self._last_taken = self._calls_seen = self._refused = 0
        self._strain = self._now_ns = self._strained_ns = 0
        # When the next tick is due; 0: none is.
        self._tick_ns = 0
        self._asks_again = self._throttled = self._said_goodbye = False
        self._closing: Side | None = None
        self._error = http2.NO_ERROR
        self._alarm: refusals.Forbidden | None = None
        self._timed: Call | None = None
        self._about = Start()
        self._seen: dict[Resource, None] = {}

    @property
    def language(self) -> str:
        return self._about.language

    @property
    def product(self) -> str:
        about = self._about
        return f"rocketmq-clients {about.version}" if about.version.isprintable() and about.version else ""

    @property
    def closing(self) -> Side | None:
        return self._closing

    # --- The client's frames ----------------------------------------------------------------------

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        try:
            if side is Side.CLIENT and not self._begun:
                chunk = self._begin(chunk)
            if self._unread:
                (self._to_broker if side is Side.CLIENT else self._to_client).write(chunk)
                return None
            frames = self._frames[side]
            before = frames.count
            try:
                (self._read_client if side is Side.CLIENT else self._read_broker)(frames.read(chunk))
            finally:
                self._context.counters.frames[side] += frames.count - before
            if side is Side.CLIENT:
                self._take_room()
        except Close as close:
            self._error = _ERRORS.get(close.reason, http2.PROTOCOL_ERROR)
            raise
        return self._batch(side)

    def _batch(self, side: Side) -> Batch | None:
        asked, charges = self._asked, self._charges
        if not asked and not charges:
            return None
        self._asked, self._charges = [], []
        batch = Batch(self._connection, side, asked, charges, ids=self)
        if self._alarm is not None:
            sends = [at for at, request in enumerate(asked) if _call(request).method in messages.STORING]
            if sends:
                batch.add_verdicts(dict.fromkeys(sends, self._alarm))
                self._context.stage.block(self._now_ns, on=True)
        return batch

    def message_id(self, request: Request) -> bytes:
        return _call(request).message_id()

    def _begin(self, chunk: memoryview) -> memoryview:
        """Take the client's preface; returns what is behind it."""
        preface, here = http2.PREFACE, len(self._preface)
        if not here and not preface.startswith(chunk[:1]):
            self._unread = relays_unread(chunk[0], self._options.tls)
        if not self._unread:
            wanted = len(preface) - here
            self._preface += chunk[:wanted]
            if not preface.startswith(self._preface):
                if self._preface.startswith(b"PROX"):
                    relays_unread(chunk[0], self._options.tls)
                raise Close("other_protocol", f"the client began with {bytes(self._preface)!r}, which is not HTTP/2")
            if len(self._preface) < len(preface):
                return memoryview(b"")
            self._to_broker.write(preface)
            chunk = chunk[wanted:]
        self._begun = True
        return chunk

    def _read_client(self, frames: Iterator[http2.Frame]) -> None:
        to_broker, to_client = self._to_broker, self._to_client
        for kind, flags, stream, frame in frames:
            if kind == http2.DATA:
                self._take_request_data(self._calls.get(stream), flags, stream, frame)
            elif kind == http2.HEADERS:
                self._open(flags, stream, frame)
            elif kind == http2.WINDOW_UPDATE:
                self._take_client_update(stream, frame)
            elif kind == http2.RST_STREAM:
                self._take_client_reset(stream, frame)
            elif kind == http2.PUSH_PROMISE:
                raise Close("bad_frame", "the client sent PUSH_PROMISE")
            else:
                self._strain_by(1)
                is_ping = kind == http2.PING and not flags & http2.ACK and len(frame) == http2.PING_BYTES
                if is_ping and self._spoke_last and to_client.is_open:
                    to_client.write(http2.frame_of(http2.PING, http2.ACK, 0, frame[http2.FRAME_HEADER_BYTES :]))
                    continue
                if kind == http2.SETTINGS:
                    self._take_settings(Side.CLIENT, flags, frame)
                elif kind == http2.GOAWAY:
                    self._closing = self._closing or Side.CLIENT
                to_broker.write(frame)

    def _strain_by(self, weight: int) -> None:
        passed = (self._now_ns - self._strained_ns) // _STRAIN_NS
        self._strained_ns += passed * _STRAIN_NS
        self._strain = max(0, self._strain - passed) + weight
        if self._strain > MAX_STRAIN:
            raise Close("flood", "the client sent too many frames that bring nothing, or resets")

    def _take_settings(self, side: Side, flags: int, frame: Buffer) -> None:
        """Follow one peer's settings, which bind what the other sends."""
        if flags & http2.ACK:
            (self._requests if side is Side.CLIENT else self._answers).acknowledged()
            return
        settings = http2.settings_of(frame)
        outlet = self._to_client if side is Side.CLIENT else self._to_broker
        (self._answers if side is Side.CLIENT else self._requests).allow(settings.get(http2.HEADER_TABLE_SIZE))
        frames = self._frames[side.other]
        frames.most_bytes = max(frames.most_bytes, settings.get(http2.MAX_FRAME_SIZE, 0))
        outlet.initial = settings.get(http2.INITIAL_WINDOW_SIZE, outlet.initial)
        if outlet.initial > http2.MAX_WINDOW or frames.most_bytes > http2.MAX_FRAME_BYTES:
            raise Close("bad_frame", f"the {side.value} sent a setting out of range")
        outlet.flush()

    def _open(self, flags: int, stream: int, frame: Buffer) -> None:
        start, _ = self._requests.read(http2.block_of(frame, flags))
        calls, call = self._calls, self._calls.get(stream)
        if call is not None and call.state == PASSES and flags & http2.END_STREAM and not call.client_ended:
            # Trailers, which no client of the service sends. Other header blocks follow, so they cannot wait.
            if self._to_broker.queued_bytes:
                raise Close("bad_frame", "the client sent trailers while DATA waits for the broker's window")
            self._to_broker.write(frame)
            self._client_ended(call)
            return
        if stream <= self._last_stream or not stream & 1:
            raise Close("bad_frame", f"the client sent HEADERS on stream {stream}, which is open or over")
        self._last_stream = stream
        if len(calls) >= MAX_CALLS:
            raise Close("too_many_calls", f"the client has more than {MAX_CALLS} open calls")
        self._to_broker.write(frame)
        if self._said_goodbye:
            # The client knows that it was not taken.
            self._to_broker.write(http2.rst_stream(stream, http2.CANCEL))
            return
        self._last_taken = stream
        self._calls_seen += 1
        call = calls[stream] = Call(stream, start, self._now_ns)
        self._meet(start)
        method = call.method
        call.client_ended = flags & http2.END_STREAM != 0
        if method in messages.CONSUMING and not self._context.limits_kind(KIND_SUBSCRIPTION):
            return
        if method in messages.LIMITED and not call.client_ended:
            call.state = GATHERS
        if method in messages.READ:
            call.answer = http2.Messages(_LOOKED_AT_BYTES)
        elif method in messages.ROUTES:
            call.answer = http2.Messages(MAX_MESSAGE_BYTES)

    def _meet(self, start: Start) -> None:
        about = self._about
        if start.access_key != about.access_key and start.access_key:
            scopes = tuple(each for each in self._connection.scopes if each.kind != USER)
            self._connection = replace(self._connection, scopes=(*scopes, Resource(USER, start.access_key)))
            self._about = about = about._replace(access_key=start.access_key)
        if not about.client_id and start.client_id:
            self._about = start._replace(access_key=about.access_key, language=about.language or start.language)

    def _take_request_data(self, call: Call | None, flags: int, stream: int, frame: Buffer) -> None:
        to_broker, size = self._to_broker, len(frame) - http2.FRAME_HEADER_BYTES
        to_broker.arrive(size, "client")
        ends = flags & http2.END_STREAM != 0
        if size:
            self._strain = max(0, self._strain - 1)
        elif not ends:
            self._strain_by(1)
        if call is None:
            self._must_be_over(stream)
            to_broker.retire(size)
            return
        if call.client_ended:
            raise Close("bad_frame", f"the client sent DATA on stream {stream} behind its end")
        call.client_ended = ends
        if call.state == PASSES:
            self._forward(call, flags, frame, size)
            return
        if not (size or ends):
            return
        call.keep(frame, size)
        call.sent += size
        if call.state == GATHERS:
            self._gather(call)
        elif call.state != ASKED or call.stored is not None:
            self._store(call)

    def _store(self, call: Call) -> None:
        """Copy what is kept of a call, and have the client get its window back."""
        before = 0 if call.stored is None else len(call.stored)
        self._to_broker.retire(call.store())
        stored_bytes = 0 if call.stored is None else len(call.stored)
        if call.state == GATHERS:
            self._gathering[call] = None
            self._gathered_bytes += stored_bytes - before
        elif call.request is not None and stored_bytes > call.request.size_bytes:
            # More than its one message, which nothing else bounds.
            self._refuse(call, _UNREADABLE)

    def _forward(self, call: Call, flags: int, frame: Buffer, size: int) -> None:
        """Have DATA of a call go on."""
        try:
            more = call.count_rest(frame, flags)
        except ValueError:
            self._to_broker.retire(size)
            self._refuse(call, _UNREADABLE)
            return
        if more and call.request is not None:
            self._charges.append(Charge(call.request.resources, more))
        if call.method in _LOOKED_AT and not call.is_looked_at:
            call.is_looked_at = True
            self._look(call, http2.content_of(frame, flags))
        self._to_broker.put(frame, size)
        if flags & http2.END_STREAM:
            self._client_ended(call)

    def _client_ended(self, call: Call) -> None:
        call.client_ended = True
        if call.broker_ended:
            self._forget(call)

    def _look(self, call: Call, content: Buffer) -> None:
        """Look at the first message of a call that passes, if all of it is in one frame, as clients have it."""
        for flag, _, message in http2.Messages(_LOOKED_AT_BYTES).feed(content)[:1]:
            with suppress(ValueError):
                data = call.plain(flag, message)
                if call.method != TELEMETRY:
                    call.target = messages.read_target(call.method, data)
                    return
                agent, about = messages.read_settings(data), self._about
                language, version = agent.language or about.language, agent.version or about.version
                self._about = about._replace(language=language, version=version)

    def _gather(self, call: Call) -> None:
        """Ask about a call once enough of its message is here."""
        if call.stored is not None:
            self._store(call)
        try:
            asking = call.ask(self._to_broker.initial)
        except ValueError:
            self._take_unreadable(call)
            return
        if asking is None:
            self._store(call)
            return
        asked, size_bytes = asking
        if asked is None:
            self._release(call)
            return
        self._end_gathering(call)
        call.state = ASKED
        call.request = Request(
            *(asked.resources, asked.messages, size_bytes, "", asked.refusal, asked.order_key, call),
            consumes=asked.consumes,
            by_answer=asked.by_answer,
            may_wait=asked.may_wait,
        )
        if len(self._seen) < _REMEMBERED:
            self._seen.update(dict.fromkeys(asked.resources))
        self._asked.append(call.request)

    def _take_unreadable(self, call: Call) -> None:
        counts = self._context.counters.undecodable
        counts["none"] = counts.get("none", 0) + 1
        if self._connection.exempt or not self._context.limiting():
            self._release(call)
        else:
            self._refuse(call, _UNREADABLE)

    def _take_room(self) -> None:
        """Take room for messages and frames that are not complete."""
        kept = self._gathered_bytes + self._frames[Side.CLIENT].tail_bytes
        if kept and not self._context.room.grow(self._room, kept, self._now_ns):
            self._refuse_gathering()
        elif not kept and self._room.has_bytes:
            self._context.room.give_back(self._room)

    def _end_gathering(self, call: Call) -> None:
        if call in self._gathering:
            del self._gathering[call]
            self._gathered_bytes -= len(call.stored or b"")

    def _lose(self) -> None:
        """Make room for another connection, soon."""
        self._lost = True
        self._context.wake()

    def _refuse_gathering(self) -> None:
        for call in list(self._gathering):
            self._refuse(call, "[RateLimit] there is no memory to gather the request")
        self._context.room.give_back(self._room)

    def _take_client_update(self, stream: int, frame: Buffer) -> None:
        size = http2.word_of(frame)
        call = self._calls.get(stream)
        if not stream and size:
            _pass_update(self._to_client, self._to_broker, frame, size)
        elif call is None:
            self._must_be_over(stream)
        elif call.method in messages.ROUTES:
            call.granted += size
            self._to_client.flush()
        else:
            self._to_broker.write(frame)

    def _take_client_reset(self, stream: int, frame: Buffer) -> None:
        call = self._calls.get(stream)
        http2.word_of(frame)
        is_rapid = call is not None and not call.answered and self._now_ns - call.since_ns < _RAPID_NS
        self._strain_by(_RESET_STRAIN if is_rapid else 1)
        if call is None:
            self._must_be_over(stream)
        else:
            self._forget(call)
            self._drop_queued(stream)
            self._to_broker.write(frame)

    def _must_be_over(self, stream: int) -> None:
        if stream > self._last_stream or not stream & 1:
            raise Close("bad_frame", f"the client sent a frame for stream {stream}, which it has not opened")

    def _drop_queued(self, stream: int) -> None:
        to_broker = self._to_broker
        if to_broker.queued_bytes:
            id_bytes = stream.to_bytes(4, "big")
            to_broker.drop(lambda frame: frame[5:9] == id_bytes)

    def _forget(self, call: Call) -> None:
        """Be done with a call; what is kept of it is dropped."""
        if self._calls.pop(call.id, None) is None:
            return
        call.is_over = True
        self._end_gathering(call)
        self._to_broker.retire(call.forget_kept())
        self._later.pop(call, None)
        if call is self._timed:
            self._timed = None
        request = call.request
        if request is None:
            return
        if call.state == ASKED and self._asked:
            self._asked = [each for each in self._asked if each is not request]
        elif call.state == HELD:
            self._unhold(call)
            self._context.give_up((request,))
        elif call.state == PASSES and request.by_answer:
            self._charges.append(Charge(request.resources, call.messages, call.size_bytes, consumes=True))
        # Break the cycle.
        call.request = None

    # --- Verdicts ---------------------------------------------------------------------------------

    def decided(self, batch: Batch, now_ns: int) -> None:
        self._now_ns = now_ns
        if batch.side is Side.BROKER:
            return
        verdicts = batch.verdicts
        for index, request in enumerate(batch.requests):
            call, verdict = _call(request), verdicts.get(index)
            if call.is_over:
                # Its client has reset it, or the broker.
                if isinstance(verdict, Hold):
                    self._context.give_up((request,))
            elif isinstance(verdict, Refuse):
                self._refuse(call, refusals.remark_of(verdict))
            elif isinstance(verdict, Hold | Later):
                call.state = HELD if isinstance(verdict, Hold) else LATER
                (self._held if call.state == HELD else self._later)[call] = None
                self._store(call)
                if call.state == HELD and call.deadline_ns and not 0 < self._tick_ns <= call.deadline_ns:
                    self._tick_ns = call.deadline_ns
                    self._context.wake()
            else:
                self._release(call)
        if self._held or self._throttled:
            self._throttle()

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        self._now_ns = now_ns
        call = _call(request)
        if call.is_over:
            return
        self._unhold(call)
        if refuse is None:
            self._release(call)
        else:
            self._refuse(call, refusals.remark_of(refuse), was_held=True)
        self._throttle()

    def _unhold(self, call: Call) -> None:
        del self._held[call]
        call.state = ASKED
        if self._later:
            self._asks_again = True
            self._context.wake()

    def _throttle(self) -> None:
        if bool(self._held) is not self._throttled:
            self._throttled = not self._throttled
            self._context.stage.throttle(self._now_ns, on=self._throttled)

    def _release(self, call: Call) -> None:
        """Have a call go on, behind what its windows make wait."""
        call.state = PASSES
        self._end_gathering(call)
        request = call.request
        if request is not None and call.method == "SendMessage":
            call.messages = request.messages
            if self._timed is None:
                self._timed, call.since_ns = call, self._now_ns
        if call.stored is not None:
            self._store(call)
        frames: Sequence[tuple[Buffer, int]] = call.kept
        stored = call.stored
        call.forget_kept()
        if stored is not None:
            frames = http2.data_of(call.id, bytes(stored), ends=call.client_ended)
            self._to_broker.own(len(stored))
        for at, (frame, size) in enumerate(frames):
            self._forward(call, frame[4], frame, size)
            if call.is_over:
                self._to_broker.retire(sum(size for _, size in frames[at + 1 :]))
                break

    def _refuse(self, call: Call, text: str, *, was_held: bool = False) -> None:
        """Take a call out: the broker hears of a reset, the client gets an answer."""
        self._refused += 1
        stream, to_client = call.id, self._to_client
        self._forget(call)
        self._drop_queued(stream)
        self._to_broker.write(http2.rst_stream(stream, http2.CANCEL))
        if call.answered:
            # The broker has not waited for the whole request.
            to_client.put(http2.rst_stream(stream, http2.CANCEL))
            return
        self._spoke_last = True
        pieces, size = refusal(call.method, text, self._begin_block(), to_client.initial, was_held=was_held)
        to_client.own(size)
        to_client.put(stream.to_bytes(4, "big").join(pieces), size)
        if not call.client_ended:
            # The client need not send the rest (RFC 9113, 8.1).
            to_client.put(http2.rst_stream(stream, http2.NO_ERROR))
        if to_client.queued_bytes > MAX_QUEUED_BYTES:
            raise Close("window_overdrawn", "the client asks on and on, and opens no window for the answers")

    def tick(self, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        if self._lost:
            self._lost = False
            self._refuse_gathering()
            self._room = Gathering(self._connection.address, self._lose)
        for call in [call for call in self._held if 0 < call.deadline_ns <= now_ns]:
            # Giving one up may have had another one resolved.
            if call in self._held and call.request is not None:
                self._end_waiting(call, call.request)
        self._throttle()
        if self._asks_again:
            self._asks_again = False
            later, self._later = self._later, {}
            self._asked += [call.request for call in later if call.request is not None]
        return self._batch(Side.CLIENT)

    def _end_waiting(self, call: Call, request: Request) -> None:
        if request.refusal == "impossible":
            self._unhold(call)
            self._context.pass_on((request,))
            self._charges.append(Charge(request.resources, request.messages, request.size_bytes))
            self._release(call)
            return
        self._refuse(call, "[RateLimit] the limit admits no more before the client's deadline", was_held=True)

    def next_tick_ns(self) -> int | None:
        self._tick_ns = min((call.deadline_ns for call in self._held if call.deadline_ns), default=0)
        return self._tick_ns or None

    def alarm(self, reason: str, now_ns: int) -> None:
        del now_ns
        alarmed = bool(reason) and not self._connection.exempt
        self._alarm = refusals.alarm(self._connection.scope, reason) if alarmed else None

    # --- The broker's frames ----------------------------------------------------------------------

    def _read_broker(self, frames: Iterator[http2.Frame]) -> None:
        to_client = self._to_client
        for kind, flags, stream, frame in frames:
            if not to_client.is_open:
                if kind != http2.SETTINGS:
                    raise Close("bad_frame", f"the broker began with a frame of type {kind}, which is not SETTINGS")
                to_client.is_open = True
                self._take_settings(Side.BROKER, flags, frame)
                to_client.write(frame)
                continue
            call = self._calls.get(stream)
            if kind == http2.DATA:
                self._spoke_last = False
                self._take_answer_data(call, flags, frame)
            elif kind == http2.HEADERS:
                self._spoke_last = False
                self._take_answer_headers(call, flags, stream, frame)
            elif kind == http2.WINDOW_UPDATE:
                self._take_broker_update(call, stream, frame)
            elif kind == http2.RST_STREAM:
                if call is not None:
                    to_client.put(frame)
                    self._forget(call)
                    self._drop_queued(stream)
            elif kind == http2.PUSH_PROMISE:
                raise Close("bad_frame", "the broker sent PUSH_PROMISE")
            elif kind == http2.PING:
                # Not behind DATA that waits.
                to_client.write(frame)
            else:
                if kind == http2.SETTINGS:
                    self._take_settings(Side.BROKER, flags, frame)
                elif kind == http2.GOAWAY:
                    self._closing = self._closing or Side.BROKER
                to_client.put(frame)
        to_client.flush()

    def _take_broker_update(self, call: Call | None, stream: int, frame: Buffer) -> None:
        size = http2.word_of(frame)
        if stream:
            if call is not None:
                call.granted += 0 if call.method in messages.ROUTES else size
                self._to_client.write(frame)
            return
        _pass_update(self._to_broker, self._to_client, frame, size)

    def _take_answer_data(self, call: Call | None, flags: int, frame: Buffer) -> None:
        to_client, size = self._to_client, len(frame) - http2.FRAME_HEADER_BYTES
        to_client.arrive(size, "broker")
        if call is None:
            to_client.retire(size)
            return
        self._strain = max(0, self._strain - 1)
        if call.method in messages.ROUTES:
            self._rewrite(call, flags, frame, size)
        else:
            to_client.put(frame, size)
            if call.answer is not None:
                for flag, length, message in call.answer.feed(http2.content_of(frame, flags)):
                    self._take_answer(call, flag, length, message)
        if flags & http2.END_STREAM:
            self._broker_ended(call)

    def _take_answer(self, call: Call, flag: int, length: int, message: bytes) -> None:
        request, context = call.request, self._context
        code = 0
        if not flag:
            try:
                answered = messages.read_answer(call.method, message)
            except ValueError:
                # Only its beginning is here, or nobody can read it.
                answered = messages.Answered(0, length > len(message), length)
            code = answered.code
            if call.method in messages.CONSUMING:
                call.messages += answered.messages
                call.size_bytes += length if answered.messages else 0
            elif request is not None:
                context.signals.answers += call.messages
                context.signals.busy += call.messages if answered.is_busy else 0
                call.messages = 0
                if call is self._timed:
                    self._timed = None
                    context.counters.round_trip.observe(self._now_ns - call.since_ns)
                    context.signals.round_trips_ns.append(self._now_ns - call.since_ns)
        if context.wants_responses:
            resources = () if request is None else request.resources
            self._responses.append(Response(None, resources, code, http2.MESSAGE_PREFIX_BYTES + length))

    def _rewrite(self, call: Call, flags: int, frame: Buffer, size: int) -> None:
        """Gather an answer about routes, and write it with other addresses."""
        assert call.answer is not None  # noqa: S101 - it was made with the call
        to_client = self._to_client
        to_client.retire(size)
        ends = flags & http2.END_STREAM != 0
        if size and not ends:
            self._to_broker.write(http2.window_update(call.id, size))
        answers = call.answer.feed(http2.content_of(frame, flags))
        data = b"".join([self._rewritten(call, *each) for each in answers])
        if data or ends:
            for piece, piece_bytes in http2.data_of(call.id, data, ends=ends):
                to_client.own(piece_bytes)
                to_client.put(piece, piece_bytes, call)

    def _rewritten(self, call: Call, flag: int, length: int, message: bytes) -> bytes:
        if len(message) < length:
            raise Close("answer_too_long", f"an answer about routes of {length} bytes")
        rewritten = None
        if not flag:
            with suppress(ValueError):
                rewritten = messages.rewrite_routes(call.method, message, self._target(call))
        word = "unread" if rewritten is None else "rewritten"
        routes = self._context.counters.routes
        routes[word] = routes.get(word, 0) + 1
        if rewritten is None:
            self._context.warn("answers about routes cannot be read, so clients may go past Sluice", call.method)
        return http2.message_of(flag, message if rewritten is None else rewritten)

    def _target(self, call: Call) -> bytes:
        """Return the endpoints that the client gets: ``advertise``, those that it has used, or our own."""
        advertise = read_address(self._options.advertise)
        if advertise is None and call.target is not None:
            return call.target
        ports = [each.listen[1] for each in self._context.listeners() if each.protocol == "rocketmq-grpc"]
        return messages.endpoints_of(*(advertise or (self._connection.local, ports[0] if ports else 0)))

    def _take_answer_headers(self, call: Call | None, flags: int, stream: int, frame: Buffer) -> None:
        block = http2.block_of(frame, flags)
        headers, changed = ((), False) if not self._rewrites and http2.is_indexed(block) else self._answers.read(block)
        if call is None:
            self._rewrites = self._rewrites or changed
            return
        call.answered = True
        if self._rewrites:
            block = self._begin_block() + http2.literals(headers)
            frame = http2.headers_of(flags & http2.END_STREAM, stream, block)
        self._to_client.put(frame)
        if flags & http2.END_STREAM:
            self._broker_ended(call)

    def _begin_block(self) -> bytes:
        """Return what a header block begins with that is written here.

        That is the change of the table's size that the broker owes the client. Once the client's table does not follow
        the broker's any more, it is one that empties it, for good.
        """
        if not self._rewrites:
            return self._answers.to_signal
        begin, self._emptied = b"" if self._emptied else http2.NO_TABLE, True
        return begin

    def _broker_ended(self, call: Call) -> None:
        call.broker_ended = True
        if call.state != PASSES:
            # It has answered without the message.
            self._to_broker.write(http2.rst_stream(call.id, http2.CANCEL))
            if not call.client_ended:
                self._to_client.put(http2.rst_stream(call.id, http2.NO_ERROR))
            self._forget(call)
        elif call.client_ended:
            self._forget(call)

    # --- What others ask --------------------------------------------------------------------------

    def take(self, side: Side) -> Sequence[Buffer]:
        outlet, back = self._to_client, self._to_broker
        if side is Side.BROKER:
            outlet, back = back, outlet
        grant = back.grant() if outlet.is_open else 0
        if grant:
            outlet.write(http2.window_update(0, grant))
        return outlet.take() if outlet.out else ()

    def take_responses(self) -> Sequence[Response]:
        responses, self._responses = self._responses, []
        return responses

    def left_bytes(self, side: Side) -> int:
        return self._frames[side].left_bytes

    def backlog_bytes(self, side: Side) -> int:
        # What waits for the client's window does not count: to open it, the client must be read.
        return self._to_client.out_bytes if side is Side.CLIENT else self._to_broker.queued_bytes

    def paused(self, side: Side) -> bool:
        return side is Side.BROKER and self._to_client.queued_bytes > _FULL_BYTES

    def in_flight(self) -> int:
        calls = self._calls.values()
        return sum(not call.broker_ended and (call.state != PASSES or not call.is_long) for call in calls)

    def unanswered(self) -> int:
        return sum(call.messages for call in self._calls.values() if not call.is_long)

    def between_frames(self, side: Side) -> bool:
        """Return whether a stream may end here; a client that still waits for answers has to open windows for them."""
        if self._unread or not self._frames[side].is_between:
            return False
        return side is Side.BROKER or not (self.in_flight() or self._is_beginning)

    def within_frame(self, side: Side) -> bool:
        is_within = not self._frames[side].is_between or (side is Side.CLIENT and self._is_beginning)
        return is_within and not self._unread

    @property
    def _is_beginning(self) -> bool:
        return not self._begun and len(self._preface) > 0

    def missing_bytes(self, side: Side) -> int:
        if self._unread or side is Side.BROKER:
            return NO_BOUND
        return self._frames[side].missing_bytes()

    def describe(self, now_ns: int) -> Description:
        del now_ns
        about = self._about
        return Description(
            ClientDescription(about.client_id, about.language, about.version),
            self._calls_seen,
            self._refused,
            tuple(map(str, self._seen))[:MAX_RESOURCES_SHOWN],
            max(0, len(self._seen) - MAX_RESOURCES_SHOWN),
        )

    def dismisses_client(self, detail: str, now_ns: int) -> bool:
        """Have the client open no further calls here, and wait for those that are open."""
        del now_ns
        if not self._said_goodbye and self._to_client.is_open:
            self._say_goodbye(detail)
            self._context.wake()
        return False

    def farewell(self, detail: str, now_ns: int) -> None:
        del now_ns
        if self._to_client.is_open and not self._unread:
            self._say_goodbye(detail)

    def _say_goodbye(self, detail: str) -> None:
        self._said_goodbye = True
        self._to_client.write(http2.goaway(self._last_taken, self._error, detail))

    def settle(self, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        for call in list(self._calls.values()):
            self._forget(call)
        return self._batch(Side.CLIENT) if self._charges else None

    def end(self, side: Side, now_ns: int) -> None:
        del side, now_ns

    def close(self) -> None:
        self._context.room.give_back(self._room)
        self._calls.clear()
        self._held.clear()
        self._throttle()


def _pass_update(outlet: http2.Outlet, back: http2.Outlet, frame: Buffer, size: int) -> None:
    """Have the sender get what it is granted of the receiver's WINDOW_UPDATE."""
    grant = outlet.update(size)
    if grant:
        back.write(frame if grant == size else http2.window_update(0, grant))


def _call(request: Request) -> Call:
    call = request.handle
    assert isinstance(call, Call)  # noqa: S101 - the session makes no other requests
    return call
