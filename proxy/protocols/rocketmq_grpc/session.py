"""One connection of RocketMQ 5's gRPC, sans-IO: HTTP/2 frames are forwarded unchanged, without those of refused calls.

A call is an HTTP/2 stream. Its HEADERS are always forwarded to the broker at once, because they update the HPACK table
that the client's later headers refer to. Its DATA may have to wait. ``proxy.protocols.rocketmq_grpc.calls`` lists the
states of a call.

A stream without a Call is over. Frames of either peer for it are discarded. A discarded header block of the broker may
have changed the broker's HPACK table, so the client's copy no longer matches. From then on, all the broker's header
blocks are re-encoded as literals, which need no table.

``proxy.protocols.rocketmq_grpc.http2`` explains the windows, and ``messages`` the meaning of the messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from msgspec.structs import replace

from limiter.rules.resource import USER, Resource
from limiter.waiting.holding import Bounds
from proxy.common.buffers import Gathering
from proxy.deciding.batch import Batch, Charge, ConnectionInfo, Hold, Refuse, Request, Response, Side
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

#: Limit for messages that are inspected but not gathered. And the methods whose request is inspected.
_INSPECTED_BYTES: Final = 16 * 1024
_INSPECTED: Final = messages.ROUTES | {TELEMETRY}
#: Open calls of a connection. The broker's own limit is usually lower.
MAX_CALLS: Final = 10_000
#: Limit for answers that wait for the client's window.
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
#: Above this, the broker is not read.
_FULL_BYTES: Final = 1024 * 1024
#: Frames without content, as attacks send them: this many at once, and one more per _STRAIN_NS and per answer. A reset
#: of a young call counts more, because the broker has started to work on it. Resets of older calls can come in bursts,
#: when their deadlines end.
MAX_STRAIN: Final = 10_000
_STRAIN_NS: Final = 1_000_000
_RESET_STRAIN: Final = 5
_RAPID_NS: Final = 1_000_000_000
#: How long after a refusal the client's pings are answered here.
_PINGS_NS: Final = 1_000_000_000
#: Bounds on held requests that cannot be refused, which the limiter does not bound.
_UNREFUSABLE: Final = Bounds()
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
    "answer_too_long": http2.INTERNAL_ERROR,
}


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _says_why(
    method: Callable[Concatenate["RocketMQGrpcSession", _P], _R],
) -> Callable[Concatenate["RocketMQGrpcSession", _P], _R]:
    """Have ``start_close`` give the error code for the Close that the method raises."""

    @wraps(method)
    def called(self: "RocketMQGrpcSession", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(self, *args, **kwargs)
        except Close as close:
            self._error = _ERRORS.get(close.reason, http2.PROTOCOL_ERROR)
            raise

    return called


class RocketMQGrpcSession(Session):
    """The session of one client's connection; the context's options are a RocketMQGrpcOptions."""

    def __init__(self, context: SessionContext) -> None:
        options: RocketMQGrpcOptions = context.options
        self._context = context
        self._options = options
        # Rules that spool hold calls instead: spooled requests would outlive the deadlines of their calls.
        self._connection = replace(context.connection, spools=False)
        # The user of the last batch, and the connection with that user's scope.
        self._user_key, self._of_user = "", self._connection
        self._frames = {side: http2.Frames(side.value) for side in Side}
        self._requests = http2.HeaderBlocks("client")
        self._answers = http2.HeaderBlocks("broker")
        # Until when the client's pings are answered here; 0 once the broker has written HEADERS or DATA. Clients ping
        # after the DATA of a refusal to measure the window that they need, and a gRPC server ends the connection at the
        # third ping since it wrote something (``too_many_pings``). Later pings are keepalives, which have to find out
        # whether the broker still lives.
        self._pings_until_ns = 0
        # The client's HPACK table no longer matches the broker's. And whether it has been emptied.
        self._rewrites_headers = self._table_is_emptied = False
        self._to_client = http2.Outlet(is_open=False)
        self._to_broker = http2.Outlet(is_open=True)
        self._preface = bytearray()
        self._begun = self._unread = False
        self._calls: dict[int, Call] = {}
        self._held: dict[Call, None] = {}
        self._unrefusable = self._unrefusable_bytes = 0
        # Calls with a stored part of their message, the bytes stored, and the memory reserved for these.
        self._gathering: dict[Call, None] = {}
        self._gathered_bytes = 0
        self._room = Gathering(context.connection.address, self._lose)
        self._lost = False
        # Requests and charges for the next batches, by access key, since a batch has one user.
        self._undecided: dict[str, tuple[list[Request], list[Charge]]] = {}
        self._responses: list[Response] = []
        # The client's last stream, and the last one before our GOAWAY.
        self._last_stream = self._last_taken = self._calls_seen = self._refused = 0
        # Unanswered calls, without long polls.
        self._in_flight = 0
        self._strain = self._now_ns = self._strain_since_ns = 0
        # When the next tick is due; 0: none is.
        self._tick_ns = 0
        self._throttled = self._said_goodbye = False
        self._closing: Side | None = None
        self._error = http2.NO_ERROR
        self._alarm: refusals.Forbidden | None = None
        self._timed_call: Call | None = None
        self._about = Start()
        self._resources_seen: dict[Resource, None] = {}

    @property
    def language(self) -> str:
        return self._about.language

    @property
    def product(self) -> str:
        about = self._about
        return f"rocketmq-clients {about.version}" if about.version else ""

    @property
    def closing(self) -> Side | None:
        return self._closing

    # --- The client's frames ----------------------------------------------------------------------

    @_says_why
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
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
        self._take_room()
        return self._batch(side)

    def _batch(self, side: Side) -> Batch | None:
        """Return the requests and charges of one user. Those of others follow at the next ticks."""
        for key, (asked, charges) in list(self._undecided.items()):
            # A batch of the broker's side has no requests.
            if asked and side is Side.BROKER:
                continue
            del self._undecided[key]
            if asked or charges:
                break
        else:
            return None
        for others, _ in self._undecided.values():
            # The chunk with their frames is about to be reused.
            for request in list(others):
                self._store(_call(request))
        if self._undecided:
            self._context.wake()
        batch = Batch(self._connection_of(key), side, asked, charges, ids=self)
        if self._alarm is not None:
            sends = [at for at, request in enumerate(asked) if _call(request).method in messages.STORING]
            if sends:
                batch.add_verdicts(dict.fromkeys(sends, self._alarm))
                self._context.stage.block(self._now_ns, on=True)
        return batch

    def _connection_of(self, access_key: str) -> ConnectionInfo:
        if access_key != self._user_key:
            scopes = (Resource(USER, access_key),) if access_key else ()
            self._user_key = access_key
            self._of_user = replace(self._connection, scopes=(*self._connection.scopes, *scopes))
        return self._of_user

    def _undecided_of(self, call: Call) -> tuple[list[Request], list[Charge]]:
        return self._undecided.setdefault(call.access_key, ([], []))

    def _charge(self, call: Call, charge: Charge) -> None:
        self._undecided_of(call)[1].append(charge)

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
                if is_ping and self._now_ns < self._pings_until_ns and to_client.is_open:
                    to_client.write(http2.frame_of(http2.PING, http2.ACK, 0, frame[http2.FRAME_HEADER_BYTES :]))
                    continue
                if kind == http2.SETTINGS:
                    self._take_settings(Side.CLIENT, flags, frame)
                elif kind == http2.GOAWAY:
                    self._closing = self._closing or Side.CLIENT
                to_broker.write(frame)

    def _strain_by(self, weight: int) -> None:
        passed = (self._now_ns - self._strain_since_ns) // _STRAIN_NS
        self._strain_since_ns += passed * _STRAIN_NS
        self._strain = max(0, self._strain - passed) + weight
        if self._strain > MAX_STRAIN:
            raise Close("flood", "the client sent too many resets, or frames without content")

    def _take_settings(self, side: Side, flags: int, frame: Buffer) -> None:
        """Follow one peer's settings, which bind what the other sends."""
        if flags & http2.ACK:
            (self._requests if side is Side.CLIENT else self._answers).acknowledged()
            return
        settings = http2.settings_of(frame)
        outlet = self._to_client if side is Side.CLIENT else self._to_broker
        (self._answers if side is Side.CLIENT else self._requests).allow(settings.get(http2.HEADER_TABLE_SIZE))
        frames = self._frames[side.other]
        frames.max_bytes = max(frames.max_bytes, settings.get(http2.MAX_FRAME_SIZE, 0))
        outlet.initial = settings.get(http2.INITIAL_WINDOW_SIZE, outlet.initial)
        if outlet.initial > http2.MAX_WINDOW or frames.max_bytes > http2.MAX_FRAME_BYTES:
            raise Close("bad_frame", f"the {side.value} sent a setting out of range")
        outlet.flush()

    def _open(self, flags: int, stream: int, frame: Buffer) -> None:
        start = read_start(self._requests.read(http2.block_of(frame, flags))[0])
        calls = self._calls
        if stream <= self._last_stream or not stream & 1:
            # Or trailers, which gRPC's clients never send.
            raise Close("bad_frame", f"the client sent HEADERS on stream {stream}, which is open or over")
        self._last_stream = stream
        if len(calls) >= MAX_CALLS:
            raise Close("too_many_calls", f"the client has more than {MAX_CALLS} open calls")
        self._to_broker.write(frame)
        if self._said_goodbye:
            # The client knows from the GOAWAY that it was not accepted.
            self._to_broker.write(http2.rst_stream(stream, http2.CANCEL))
            return
        self._last_taken = stream
        self._calls_seen += 1
        call = calls[stream] = Call(stream, start, self._now_ns)
        if not self._about.client_id and start.client_id:
            self._about = start._replace(language=self._about.language or start.language)
        self._in_flight += not call.is_long_lived
        method = call.method
        call.client_ended = flags & http2.END_STREAM != 0
        if method in messages.CONSUMING and not self._context.limits_kind(KIND_SUBSCRIPTION):
            return
        if method in messages.LIMITED and not call.client_ended:
            call.state = GATHERS
        if method in messages.READ:
            call.answer = http2.Messages(_INSPECTED_BYTES)
        elif method in messages.ROUTES:
            call.answer = http2.Messages(MAX_MESSAGE_BYTES)
            if self._to_client.initial < http2.DEFAULT_WINDOW:
                # The client's updates for this stream are not forwarded, so the broker would never send.
                missing = http2.DEFAULT_WINDOW - self._to_client.initial
                self._to_broker.write(http2.window_update(stream, missing))

    def _take_request_data(self, call: Call | None, flags: int, stream: int, frame: Buffer) -> None:
        to_broker, size = self._to_broker, len(frame) - http2.FRAME_HEADER_BYTES
        to_broker.arrive(size, "client")
        ends = flags & http2.END_STREAM != 0
        if not size and not ends:
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
        """Copy the kept frames of a call, and give their window back to the client."""
        before = 0 if call.stored is None else len(call.stored)
        self._to_broker.retire(call.store())
        stored_bytes = 0 if call.stored is None else len(call.stored)
        if call.state == GATHERS:
            self._gathering[call] = None
            self._gathered_bytes += stored_bytes - before
        elif call.request is not None and stored_bytes > call.request.size_bytes:
            # More than one message. No other bound applies to the rest.
            self._refuse(call, _UNREADABLE)

    def _forward(self, call: Call, flags: int, frame: Buffer, size: int) -> None:
        """Forward DATA of a call."""
        try:
            more = call.count_rest(frame, flags)
        except ValueError:
            self._to_broker.retire(size)
            self._refuse(call, _UNREADABLE)
            return
        if more and call.request is not None:
            self._charge(call, Charge(call.request.resources, more))
        if call.method in _INSPECTED and not call.is_inspected:
            call.is_inspected = True
            self._inspect(call, http2.content_of(frame, flags))
        self._to_broker.put(frame, size, call.id)
        if flags & http2.END_STREAM and call.broker_ended:
            self._forget(call)

    def _inspect(self, call: Call, content: Buffer) -> None:
        """Inspect the first message of a call that passes, if it is in one frame, as clients send it."""
        for flag, _, message in http2.Messages(_INSPECTED_BYTES).feed(content)[:1]:
            if flag:
                return
            with suppress(ValueError):
                if call.method != TELEMETRY:
                    call.target = messages.read_target(call.method, message)
                    return
                agent, about = messages.read_settings(message), self._about
                language, version = agent.language or about.language, agent.version or about.version
                self._about = about._replace(language=language, version=version)

    def _gather(self, call: Call) -> None:
        """Have a call decided once enough of its message has arrived."""
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
        # A key of its own makes a request independent. Otherwise those that cannot be refused get a Later.
        order_key = str(call.id) if asked.refusal == "impossible" else asked.order_key
        call.request = Request(
            *(asked.resources, asked.messages, size_bytes, "", asked.refusal, order_key, call),
            consumes=asked.consumes,
            by_answer=asked.by_answer,
            may_wait=asked.may_wait,
        )
        if len(self._resources_seen) < _REMEMBERED:
            self._resources_seen.update(dict.fromkeys(asked.resources))
        self._undecided_of(call)[0].append(call.request)

    def _take_unreadable(self, call: Call) -> None:
        counts = self._context.counters.undecodable
        counts["none"] = counts.get("none", 0) + 1
        if self._connection.exempt or not self._context.limiting():
            self._release(call)
        else:
            self._refuse(call, _UNREADABLE)

    def _take_room(self) -> None:
        """Reserve memory for incomplete messages and frames, or release it."""
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
        """Give up the reserved memory soon, because another connection needs it."""
        self._lost = True
        self._context.wake()

    def _refuse_gathering(self) -> None:
        for call in list(self._gathering):
            self._refuse(call, "[RateLimit] Sluice has no memory left to buffer the request")
        self._context.room.give_back(self._room)

    def _take_client_update(self, stream: int, frame: Buffer) -> None:
        size = http2.word_of(frame)
        call = self._calls.get(stream)
        # The call may be over while part of its answer still waits.
        window = call if call is not None and call.method in messages.ROUTES else self._to_client.window_of(stream)
        if not stream and size:
            _pass_update(self._to_client, self._to_broker, frame, size)
        elif window is not None:
            window.granted += size
            self._to_client.flush()
        elif call is None:
            self._must_be_over(stream)
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
            self._to_broker.drop(stream)
            self._to_broker.write(frame)
        # DATA of its answer may wait for the stream's window, which no longer opens.
        self._to_client.drop(stream)

    def _must_be_over(self, stream: int) -> None:
        if stream > self._last_stream or not stream & 1:
            raise Close("bad_frame", f"the client sent a frame for stream {stream}, which it has not opened")

    def _forget(self, call: Call) -> None:
        """Forget a call and drop its kept frames."""
        if self._calls.pop(call.id, None) is None:
            return
        call.is_over = True
        self._in_flight -= not (call.is_long_lived or call.broker_ended)
        self._end_gathering(call)
        self._to_broker.retire(call.forget_kept())
        if call is self._timed_call:
            self._timed_call = None
        request = call.request
        if request is None:
            return
        if call.state == ASKED and call.access_key in self._undecided:
            asked = self._undecided[call.access_key][0]
            asked[:] = [each for each in asked if each is not request]
        elif call.state == HELD:
            self._unhold(call, request)
            self._context.give_up((request,))
        elif call.state == PASSES and request.by_answer:
            self._charge(call, Charge(request.resources, call.messages, call.size_bytes, consumes=True))
        # Break the reference cycle.
        call.request = None

    # --- Verdicts ---------------------------------------------------------------------------------

    @_says_why
    def decided(self, batch: Batch, now_ns: int) -> None:
        self._now_ns = now_ns
        if batch.side is Side.BROKER:
            return
        verdicts = batch.verdicts
        for index, request in enumerate(batch.requests):
            call, verdict = _call(request), verdicts.get(index)
            if call.is_over:
                # The client or the broker has reset it.
                if isinstance(verdict, Hold):
                    self._context.give_up((request,))
            elif isinstance(verdict, Refuse):
                self._refuse(call, refusals.remark_of(verdict))
            elif isinstance(verdict, Hold):
                self._hold(call, request)
            else:
                self._release(call)
        if self._held or self._throttled:
            self._throttle()

    def _hold(self, call: Call, request: Request) -> None:
        if request.refusal == "impossible":
            count, size_bytes = self._unrefusable + 1, self._unrefusable_bytes + request.size_bytes
            bounds = _UNREFUSABLE
            if count > bounds.requests_per_connection or size_bytes > bounds.size_bytes_per_connection:
                self._pass_on(call, request)
                self._context.wake()
                return
            self._unrefusable, self._unrefusable_bytes = count, size_bytes
        call.state = HELD
        self._held[call] = None
        self._store(call)
        if call.deadline_ns and not 0 < self._tick_ns <= call.deadline_ns:
            self._tick_ns = call.deadline_ns
            self._context.wake()

    @_says_why
    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        self._now_ns = now_ns
        call = _call(request)
        if call.is_over:
            return
        self._unhold(call, request)
        if refuse is None:
            self._release(call)
        else:
            self._refuse(call, refusals.remark_of(refuse), was_held=True)
        self._throttle()

    def _unhold(self, call: Call, request: Request) -> None:
        del self._held[call]
        call.state = ASKED
        if request.refusal == "impossible":
            self._unrefusable -= 1
            self._unrefusable_bytes -= request.size_bytes

    def _throttle(self) -> None:
        if bool(self._held) is not self._throttled:
            self._throttled = not self._throttled
            self._context.stage.throttle(self._now_ns, on=self._throttled)

    def _release(self, call: Call) -> None:
        """Forward a call's DATA, as far as the windows allow."""
        call.state = PASSES
        self._end_gathering(call)
        request = call.request
        if request is not None and call.method == "SendMessage":
            call.messages = request.messages
            if self._timed_call is None:
                self._timed_call, call.since_ns = call, self._now_ns
        if call.stored is not None:
            self._store(call)
        frames: Sequence[tuple[Buffer, int]] = call.kept
        stored = call.stored
        call.forget_kept()
        if stored is not None:
            frames = http2.data_of(call.id, bytes(stored), ends=call.client_ended)
            self._to_broker.add(len(stored))
        for at, (frame, size) in enumerate(frames):
            self._forward(call, frame[4], frame, size)
            if call.is_over:
                self._to_broker.retire(sum(size for _, size in frames[at + 1 :]))
                break

    def _refuse(self, call: Call, text: str, *, was_held: bool = False) -> None:
        """Refuse a call: the broker gets a reset, the client an answer."""
        self._refused += 1
        stream, to_client = call.id, self._to_client
        self._forget(call)
        self._to_broker.drop(stream)
        self._to_broker.write(http2.rst_stream(stream, http2.CANCEL))
        if call.answered:
            # The broker did not wait for the whole request.
            to_client.put(http2.rst_stream(stream, http2.CANCEL))
            return
        self._pings_until_ns = self._now_ns + _PINGS_NS
        # A refusal is an answer, too.
        self._strain = max(0, self._strain - 1)
        pieces, size = refusal(call.method, text, self._begin_block(), to_client.initial, was_held=was_held)
        to_client.add(size)
        to_client.put(stream.to_bytes(4, "big").join(pieces), size)
        if not call.client_ended:
            # The client need not send the rest (RFC 9113, 8.1).
            to_client.put(http2.rst_stream(stream, http2.NO_ERROR))
        if to_client.queued_bytes > MAX_QUEUED_BYTES:
            raise Close("window_overdrawn", "the client sends requests but opens no window for their answers")

    @_says_why
    def tick(self, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        if self._lost:
            self._lost = False
            self._refuse_gathering()
            self._room = Gathering(self._connection.address, self._lose)
        for call in [call for call in self._held if 0 < call.deadline_ns <= now_ns]:
            # Dropping one ticket may have resolved another.
            if call in self._held and call.request is not None:
                self._end_waiting(call, call.request)
        self._throttle()
        self._take_room()
        return self._batch(Side.CLIENT)

    def _end_waiting(self, call: Call, request: Request) -> None:
        if request.refusal == "impossible":
            self._unhold(call, request)
            self._pass_on(call, request)
            return
        self._refuse(call, "[RateLimit] the limit admits the request only after the client's deadline", was_held=True)

    def _pass_on(self, call: Call, request: Request) -> None:
        """Forward a held call that cannot be refused, and charge it."""
        self._context.pass_on((request,))
        self._charge(call, Charge(request.resources, request.messages, request.size_bytes))
        self._release(call)

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
                self._pings_until_ns = 0
                self._take_answer_data(call, flags, frame)
            elif kind == http2.HEADERS:
                self._pings_until_ns = 0
                self._take_answer_headers(call, flags, stream, frame)
            elif kind == http2.WINDOW_UPDATE:
                self._take_broker_update(call, stream, frame)
            elif kind == http2.RST_STREAM:
                if call is not None:
                    to_client.drop(stream)
                    to_client.put(frame)
                    self._forget(call)
                    self._to_broker.drop(stream)
            elif kind == http2.PUSH_PROMISE:
                raise Close("bad_frame", "the broker sent PUSH_PROMISE")
            elif kind == http2.PING:
                # Ahead of DATA that waits.
                to_client.write(frame)
            else:
                if kind == http2.SETTINGS:
                    self._take_settings(Side.BROKER, flags, frame)
                elif kind == http2.GOAWAY:
                    self._closing = self._closing or Side.BROKER
                    self._forget_beyond(http2.last_stream_of(frame))
                to_client.put(frame)
        to_client.flush()

    def _forget_beyond(self, last_stream: int) -> None:
        """Forget calls that the broker's GOAWAY says were not accepted. The client repeats them elsewhere."""
        for call in [call for call in self._calls.values() if call.id > last_stream]:
            self._forget(call)
            self._to_broker.drop(call.id)

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
                # It is truncated or malformed.
                answered = messages.Answered(0, length > len(message), length)
            code = answered.code
            if call.method in messages.CONSUMING:
                call.messages += answered.messages
                call.size_bytes += length if answered.messages else 0
            elif request is not None:
                context.signals.answers += call.messages
                context.signals.busy += call.messages if answered.is_busy else 0
                call.messages = 0
                if call is self._timed_call:
                    self._timed_call = None
                    context.counters.round_trip.observe(self._now_ns - call.since_ns)
                    context.signals.round_trips_ns.append(self._now_ns - call.since_ns)
        if context.wants_responses:
            resources = () if request is None else request.resources
            self._responses.append(Response(None, resources, code, http2.MESSAGE_PREFIX_BYTES + length))

    def _rewrite(self, call: Call, flags: int, frame: Buffer, size: int) -> None:
        """Gather a route answer, and write it with the addresses replaced."""
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
                to_client.add(piece_bytes)
                to_client.put(piece, piece_bytes, call.id, call)

    def _rewritten(self, call: Call, flag: int, length: int, message: bytes) -> bytes:
        if len(message) < length:
            raise Close("answer_too_long", f"a route answer of {length} bytes")
        rewritten = None
        if not flag:
            with suppress(ValueError):
                rewritten = messages.rewrite_routes(call.method, message, self._target(call))
        word = "unread" if rewritten is None else "rewritten"
        routes = self._context.counters.routes
        routes[word] = routes.get(word, 0) + 1
        if rewritten is None:
            self._context.warn("route answers cannot be parsed, so clients may bypass Sluice", call.method)
        return http2.message_of(flag, message if rewritten is None else rewritten)

    def _target(self, call: Call) -> bytes:
        """Return the endpoints for the client: ``advertise``, those it has used, or the listener's own."""
        advertise = read_address(self._options.advertise)
        if advertise is None and call.target is not None:
            return call.target
        ports = [each.listen[1] for each in self._context.listeners() if each.protocol == "rocketmq-grpc"]
        return messages.endpoints_of(*(advertise or (self._connection.local, ports[0] if ports else 0)))

    def _take_answer_headers(self, call: Call | None, flags: int, stream: int, frame: Buffer) -> None:
        block = http2.block_of(frame, flags)
        headers: http2.Headers = ()
        changed = False
        if self._rewrites_headers or not http2.is_indexed(block):
            headers, changed = self._answers.read(block)
        if call is None:
            self._rewrites_headers = self._rewrites_headers or changed
            return
        call.answered = True
        if self._rewrites_headers:
            block = self._begin_block() + http2.literals(headers)
            frame = http2.headers_of(flags & http2.END_STREAM, stream, block)
        self._to_client.put(frame)
        if flags & http2.END_STREAM:
            self._broker_ended(call)

    def _begin_block(self) -> bytes:
        """Return the prefix of a header block that is written here.

        This is the table size update that the broker still owes the client. Once the client's table no longer matches
        the broker's, it is an update to 0, written once.
        """
        if not self._rewrites_headers:
            return self._answers.to_signal
        begin, self._table_is_emptied = b"" if self._table_is_emptied else http2.NO_TABLE, True
        return begin

    def _broker_ended(self, call: Call) -> None:
        self._in_flight -= not (call.is_long_lived or call.broker_ended)
        call.broker_ended = True
        if call.state != PASSES:
            # It answered without having the message.
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
        # Frames that wait for the client's window do not count: the client must be read to open it.
        return self._to_client.out_bytes if side is Side.CLIENT else self._to_broker.queued_bytes

    def paused(self, side: Side) -> bool:
        return side is Side.BROKER and self._to_client.queued_bytes > _FULL_BYTES

    def in_flight(self) -> int:
        # Answers that wait for the client's window count as one.
        return self._in_flight + (self._to_client.queued_bytes > 0)

    def unanswered(self) -> int:
        return sum(call.messages for call in self._calls.values() if not call.is_long_lived)

    def between_frames(self, side: Side) -> bool:
        """Return whether a stream may end here. A client with calls in flight must be read to open its windows."""
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
            tuple(map(str, self._resources_seen))[:MAX_RESOURCES_SHOWN],
            max(0, len(self._resources_seen) - MAX_RESOURCES_SHOWN),
        )

    def close_client(self, detail: str, now_ns: int) -> bool:
        """Send GOAWAY, so that the client opens no further calls here. Open calls may end."""
        del now_ns
        if not self._said_goodbye and self._to_client.is_open:
            self._say_goodbye(detail)
            self._context.wake()
        return False

    def start_close(self, detail: str, now_ns: int) -> None:
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
        if len(self._undecided) > 1:
            # There will be no further batch, so this one has no user.
            charges = [charge for _, some in self._undecided.values() for charge in some]
            self._undecided = {"": ([], charges)}
        return self._batch(Side.CLIENT)

    def end(self, side: Side, now_ns: int) -> None:
        del side, now_ns

    def close(self) -> None:
        self._context.room.give_back(self._room)
        self._calls.clear()
        self._held.clear()
        self._throttle()


def _pass_update(outlet: http2.Outlet, back: http2.Outlet, frame: Buffer, size: int) -> None:
    """Pass the sender's share of the receiver's WINDOW_UPDATE on."""
    grant = outlet.update(size)
    if grant:
        back.write(frame if grant == size else http2.window_update(0, grant))


def _call(request: Request) -> Call:
    call = request.handle
    assert isinstance(call, Call)  # noqa: S101 - the session makes no other requests
    return call
