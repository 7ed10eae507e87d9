"""One connection of RocketMQ 5 over gRPC. HTTP/2 frames are forwarded unchanged, except those of refused calls.

HEADERS are always forwarded to the broker immediately, because they update the HPACK table that the client's later
headers refer to. DATA that has to wait is copied, and may be split into different frames. ``calls`` lists the states of
a call, and ``http2`` explains the windows.

A stream without a Call is closed, and all frames for it are discarded. If a discarded header block from the broker has
changed the HPACK table, the client's table no longer matches. From then on, all header blocks from the broker are
re-encoded as literals, which need no table.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from limiter.rules.resource import USER, Resource
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
    PASSES,
    TELEMETRY,
    Call,
    RouteAnswer,
    Start,
    read_start,
    refusal,
)
from proxy.protocols.rocketmq_grpc.options import RocketMQGrpcOptions
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN, ClientDescription

#: Maximum number of bytes inspected in a message that is forwarded without buffering.
_INSPECTED_BYTES: Final = 16 * 1024
#: Maximum number of open calls. The broker's limit is usually lower.
MAX_CALLS: Final = 10_000
#: Maximum size of answers that wait for the client's windows. Above _FULL_BYTES, Sluice stops reading from the broker.
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
_FULL_BYTES: Final = 1024 * 1024
#: Maximum burst of frames without content. One more is allowed per _STRAIN_NS and per answer. A reset counts as
#: _RESET_STRAIN frames if its call began recently, because the broker has started to work on it. Resets of older calls
#: count as one frame each, because many calls may reach their deadlines at the same time.
MAX_STRAIN: Final = 10_000
_STRAIN_NS: Final = 1_000_000
_RESET_STRAIN: Final = 5
_RAPID_NS: Final = 1_000_000_000
_PINGS_NS: Final = 1_000_000_000
_MAX_RESOURCES_SEEN: Final = 1024
_UNREADABLE: Final = "[RateLimit] the request cannot be read, so no limit can be applied to it"

_ERRORS: Final = {
    "bad_frame": http2.PROTOCOL_ERROR,
    "frame_too_long": http2.FRAME_SIZE_ERROR,
    "window_overdrawn": http2.FLOW_CONTROL_ERROR,
    "bad_headers": http2.COMPRESSION_ERROR,
    "headers_too_long": http2.ENHANCE_YOUR_CALM,
    "too_many_calls": http2.ENHANCE_YOUR_CALM,
    "flood": http2.ENHANCE_YOUR_CALM,
    "no_room": http2.ENHANCE_YOUR_CALM,
    "answer_too_long": http2.INTERNAL_ERROR,
}


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _says_why(method: _Method) -> _Method:
    @wraps(method)
    def called(self: "RocketMQGrpcSession", *args: object) -> object:
        try:
            return method(self, *args)
        except Close as close:
            self._error = _ERRORS.get(close.reason, http2.PROTOCOL_ERROR)
            raise

    return cast("_Method", called)


class RocketMQGrpcSession(Session):
    def __init__(self, context: SessionContext) -> None:
        options: RocketMQGrpcOptions = context.options
        self._context = context
        self._options = options
        # Spooled requests would outlive the deadlines of their calls.
        self._connection = replace(context.connection, spools=False)
        # The access key of the last batch, and the connection with its user as a scope.
        self._user_key, self._of_user = "", self._connection
        self._frames = {side: http2.Frames(side.value) for side in Side}
        self._requests = http2.HeaderBlocks("client")
        self._answers = http2.HeaderBlocks("broker")
        # Until this time, or until the broker writes, Sluice answers the client's pings. Clients ping after each DATA
        # to measure the window that they need, and a gRPC server closes the connection at the third ping since it
        # last wrote (``too_many_pings``).
        self._pings_until_ns = 0
        # Whether the client's HPACK table no longer matches the broker's, and whether it has been emptied.
        self._rewrites_headers = self._table_is_emptied = False
        self._to_client = http2.Outlet(is_open=False)
        self._to_broker = http2.Outlet(is_open=True)
        self._preface = bytearray()
        self._begun = self._unread = False
        self._calls: dict[int, Call] = {}
        # Includes finished calls whose answer is still waiting.
        self._routes: dict[int, RouteAnswer] = {}
        # Initial windows in the client's SETTINGS that the broker has not acknowledged.
        self._initials: deque[int] = deque()
        self._held: dict[Call, None] = {}
        self._unrefusable = self._unrefusable_bytes = 0
        self._gathered_bytes = 0
        self._room = Gathering(context.connection.address, context.wake)
        # The next batches, keyed by access key, because a batch has only one user.
        self._undecided: dict[str, tuple[list[Request], list[Charge]]] = {}
        self._responses: list[Response] = []
        # The client's last stream, the last one before Sluice's GOAWAY, and the last one before the broker's GOAWAY.
        self._last_stream = self._last_taken = self._calls_seen = self._refused = 0
        self._last_accepted = http2.STREAM_IDS
        # Unanswered calls, excluding long polls.
        self._in_flight = 0
        self._strain = self._now_ns = self._strain_since_ns = 0
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

    @_says_why
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        if side is Side.CLIENT and not self._begun:
            chunk = self._take_preface(chunk)
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
        for key, (asked, charges) in list(self._undecided.items()):
            # A batch from the broker does not contain requests.
            if asked and side is Side.BROKER:
                continue
            del self._undecided[key]
            if asked or charges:
                break
        else:
            return None
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

    def _take_preface(self, chunk: memoryview) -> memoryview:
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
                raise Close("bad_frame", "the client sent a PUSH_PROMISE frame")
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
            raise Close("flood", "the client sent too many resets or empty frames")

    def _take_settings(self, side: Side, flags: int, frame: Buffer) -> None:
        if flags & http2.ACK:
            (self._requests if side is Side.CLIENT else self._answers).acknowledged()
            if side is Side.BROKER and self._initials:
                self._to_client.initial = self._initials.popleft()
                for stream in [*self._routes]:
                    self._routes[stream].flush()
                    self._end_route(stream)
            return
        settings = http2.settings_of(frame)
        outlet = self._to_client if side is Side.CLIENT else self._to_broker
        (self._answers if side is Side.CLIENT else self._requests).allow(settings.get(http2.HEADER_TABLE_SIZE))
        frames = self._frames[side.other]
        frames.max_bytes = max(frames.max_bytes, settings.get(http2.MAX_FRAME_SIZE, 0))
        latest = self._initials[-1] if side is Side.CLIENT and self._initials else outlet.initial
        initial = settings.get(http2.INITIAL_WINDOW_SIZE, latest)
        if initial > http2.MAX_WINDOW or frames.max_bytes > http2.MAX_FRAME_BYTES:
            raise Close("bad_frame", f"the {side.value} sent a SETTINGS frame with a value out of range")
        if side is Side.CLIENT:
            # A larger window takes effect once the client receives the broker's acknowledgement.
            self._initials.append(initial)
            initial = min(initial, outlet.initial)
        outlet.initial = initial

    def _open(self, flags: int, stream: int, frame: Buffer) -> None:
        self._frames[Side.CLIENT].steps -= len(frame) // http2.HEADER_BYTES_PER_STEP
        start = read_start(self._requests.read(http2.block_of(frame, flags))[0])
        calls = self._calls
        if stream <= self._last_stream or not stream & 1:
            # These could also be trailers, which gRPC clients never send.
            raise Close("bad_frame", f"the client sent HEADERS on stream {stream}, which is already open or closed")
        self._last_stream = stream
        if len(calls) >= MAX_CALLS:
            raise Close("too_many_calls", f"the client has more than {MAX_CALLS} open calls")
        self._to_broker.write(frame)
        if self._said_goodbye:
            # The client knows from the GOAWAY that the call was not accepted.
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
            call.route = self._routes[stream] = RouteAnswer(stream, self._to_client)
            if self._to_client.initial < http2.DEFAULT_WINDOW:
                # The client's window updates for this stream are not forwarded.
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
            raise Close("bad_frame", f"the client sent DATA on stream {stream} after ending it")
        call.client_ended = ends
        if call.state == GATHERS or call.counts:
            self._frames[Side.CLIENT].steps -= size // http2.DATA_BYTES_PER_STEP
        if call.state == PASSES:
            self._forward(call, flags, frame, size)
            return
        to_broker.retire(size)
        call.window_used += size
        content = http2.content_of(frame, flags)
        call.content += content
        if call.state == GATHERS:
            self._gathered_bytes += len(content)
            self._gather(call)
        elif call.request is not None and len(call.content) > call.request.size_bytes:
            # There is more than one message. No other check bounds the rest.
            self._refuse(call, _UNREADABLE)

    def _forward(self, call: Call, flags: int, frame: Buffer, size: int) -> None:
        try:
            more = call.count_rest(frame, flags)
        except ValueError:
            self._to_broker.retire(size)
            self._refuse(call, _UNREADABLE)
            return
        if more and call.request is not None:
            self._charge(call, Charge(call.request.resources, more))
        if (call.route is not None or call.method == TELEMETRY) and not call.is_inspected:
            call.is_inspected = True
            self._inspect(call, http2.content_of(frame, flags))
        self._to_broker.put(frame, size, call.id)
        if flags & http2.END_STREAM and call.broker_ended:
            self._forget(call)

    def _inspect(self, call: Call, content: Buffer) -> None:
        for flag, _, message in http2.Messages(_INSPECTED_BYTES).feed(content)[:1]:
            if flag:
                return
            with suppress(ValueError):
                if call.route is not None:
                    call.route.target = messages.read_target(call.method, message)
                    return
                (language, version), about = messages.read_settings(message), self._about
                self._about = about._replace(language=language or about.language, version=version or about.version)

    def _gather(self, call: Call) -> None:
        asked, size_bytes = None, 0
        with suppress(ValueError):
            asking = call.ask(self._to_broker.initial)
            if asking is None:
                return
            asked, size_bytes = asking
        self._gathered_bytes -= len(call.content)
        call.state = ASKED
        if not size_bytes:
            self._take_unreadable(call)
            return
        if asked is None:
            self._release(call)
            return
        # A request with a unique order key never gets Later.
        order_key = str(call.id) if asked.refusal == "impossible" else asked.order_key
        call.request = Request(
            *(asked.resources, asked.messages, size_bytes, "", asked.refusal, order_key, call),
            consumes=asked.consumes,
            by_answer=asked.consumes,
        )
        if len(self._resources_seen) < _MAX_RESOURCES_SEEN:
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
        kept = self._frames[Side.CLIENT].incomplete_bytes
        if not (self._gathered_bytes or kept):
            if self._room.has_bytes or self._room.lost:
                self._refuse_gathering()
            return
        grow = self._context.room.grow
        if grow(self._room, self._gathered_bytes + kept, self._now_ns):
            return
        self._refuse_gathering()
        if not grow(self._room, kept, self._now_ns):
            raise Close("no_room", "Sluice has no memory left to buffer an incomplete frame")

    def _refuse_gathering(self) -> None:
        for call in [call for call in self._calls.values() if call.state == GATHERS and call.content]:
            self._refuse(call, "[RateLimit] Sluice has no memory left to buffer the request")
        self._context.room.give_back(self._room)
        self._room = Gathering(self._connection.address, self._context.wake)

    def _take_client_update(self, stream: int, frame: Buffer) -> None:
        size, route = http2.word_of(frame), self._routes.get(stream)
        if not stream and size:
            _pass_update(self._to_client, self._to_broker, frame, size)
        elif route is not None:
            route.update(size)
            self._end_route(stream)
        elif stream in self._calls:
            self._to_broker.write(frame)
        else:
            self._must_be_over(stream)

    def _end_route(self, stream: int) -> None:
        route = self._routes.get(stream)
        if route is not None and stream not in self._calls and not route.waits:
            del self._routes[stream]

    def _drop_route(self, stream: int) -> None:
        route = self._routes.pop(stream, None)
        if route is not None:
            route.drop()

    def _take_client_reset(self, stream: int, frame: Buffer) -> None:
        call = self._calls.get(stream)
        http2.word_of(frame)
        is_rapid = call is not None and not call.answered and self._now_ns - call.since_ns < _RAPID_NS
        self._strain_by(_RESET_STRAIN if is_rapid else 1)
        self._drop_route(stream)
        if call is None:
            self._must_be_over(stream)
            return
        self._forget(call)
        self._to_broker.drop(stream)
        self._to_broker.write(frame)

    def _must_be_over(self, stream: int) -> None:
        if stream > self._last_stream or not stream & 1:
            raise Close("bad_frame", f"the client sent a frame for stream {stream}, which it has not opened")

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.id, None) is None:
            return
        call.is_over = True
        self._end_route(call.id)
        self._in_flight -= not (call.is_long_lived or call.broker_ended)
        if call.state == GATHERS:
            self._gathered_bytes -= len(call.content)
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

    @_says_why
    def decided(self, batch: Batch, now_ns: int) -> None:
        self._now_ns = now_ns
        if batch.side is Side.BROKER:
            return
        verdicts = batch.verdicts
        for index, request in enumerate(batch.requests):
            call, verdict = _call(request), verdicts.get(index)
            if call.is_over:
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
            # The limiter does not bound requests that cannot be refused.
            bounds = self._context.held_bounds()
            if count > bounds.requests_per_connection or size_bytes > bounds.size_bytes_per_connection:
                self._pass_on(call, request)
                self._context.wake()
                return
            self._unrefusable, self._unrefusable_bytes = count, size_bytes
        call.state = HELD
        self._held[call] = None
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
        call.state = PASSES
        request = call.request
        if request is not None and call.method == "SendMessage":
            call.messages = request.messages
            if self._timed_call is None:
                self._timed_call, call.since_ns = call, self._now_ns
        content, call.content = bytes(call.content), bytearray()
        for frame, size in http2.data_of(call.id, content, ends=call.client_ended):
            if not call.is_over:
                self._to_broker.add(size)
                self._forward(call, frame[4], frame, size)

    def _refuse(self, call: Call, text: str, *, was_held: bool = False) -> None:
        self._refused += 1
        stream, to_client = call.id, self._to_client
        self._forget(call)
        self._to_broker.drop(stream)
        self._to_broker.write(http2.rst_stream(stream, http2.CANCEL))
        if call.answered:
            # The broker answered before it received the complete request.
            to_client.put(http2.rst_stream(stream, http2.CANCEL))
            return
        self._pings_until_ns = self._now_ns + _PINGS_NS
        self._strain = max(0, self._strain - 1)
        frames, size = refusal(call, text, self._begin_block(), to_client.initial, was_held=was_held)
        to_client.add(size)
        to_client.put(frames, size)
        if not call.client_ended:
            # Tell the client not to send the rest (RFC 9113, 8.1).
            to_client.put(http2.rst_stream(stream, http2.NO_ERROR))
        if to_client.queued_bytes > MAX_QUEUED_BYTES:
            raise Close(
                "window_overdrawn",
                "the client keeps sending requests but opens no flow-control window for the responses",
            )

    @_says_why
    def tick(self, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        for call in [call for call in self._held if 0 < call.deadline_ns <= now_ns]:
            # Dropping a ticket may resolve another.
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
        self._refuse(
            call, "[RateLimit] the limit would admit the request only after the client's deadline", was_held=True
        )

    def _pass_on(self, call: Call, request: Request) -> None:
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

    def _read_broker(self, frames: Iterator[http2.Frame]) -> None:
        to_client = self._to_client
        for kind, flags, stream, frame in frames:
            if not to_client.is_open:
                if kind != http2.SETTINGS:
                    raise Close("bad_frame", f"the broker began with a frame of type {kind} instead of SETTINGS")
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
                    self._drop_route(stream)
                    to_client.put(frame)
                    self._forget(call)
                    self._to_broker.drop(stream)
            elif kind == http2.PUSH_PROMISE:
                raise Close("bad_frame", "the broker sent a PUSH_PROMISE frame")
            elif kind == http2.PING:
                to_client.write(frame)
            else:
                to_client.put(frame)
                if kind == http2.SETTINGS:
                    self._take_settings(Side.BROKER, flags, frame)
                elif kind == http2.GOAWAY:
                    self._closing = self._closing or Side.BROKER
                    self._forget_beyond(http2.word_of(frame))
        to_client.flush()

    def _forget_beyond(self, last_stream: int) -> None:
        """Forget the calls that the broker's GOAWAY excludes. The client retries them on another connection."""
        self._last_accepted = last_stream
        for call in [call for call in self._calls.values() if call.id > last_stream]:
            self._forget(call)
            self._to_broker.drop(call.id)

    def _take_broker_update(self, call: Call | None, stream: int, frame: Buffer) -> None:
        size = http2.word_of(frame)
        if stream:
            if call is not None:
                call.window_used -= size
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
        if call.route is not None:
            self._rewrite(call, call.route, flags, frame, size)
        else:
            to_client.put(frame, size)
            if call.answer is not None:
                for flag, length, message in call.answer.feed(http2.content_of(frame, flags)):
                    self._take_answer(call, flag, length, message)
        if flags & http2.END_STREAM:
            self._broker_ended(call)

    def _take_answer(self, call: Call, flag: int, length: int, message: bytes) -> None:
        request, context = call.request, self._context
        code = received = 0
        if not flag:
            try:
                code, received = messages.read_answer(call.method, message)
            except ValueError:
                # This is only the beginning of a long message.
                received = 1 if length > len(message) else 0
            if call.method in messages.CONSUMING:
                call.messages += received
                call.size_bytes += length if received else 0
            elif request is not None:
                context.signals.answers += call.messages
                context.signals.busy += call.messages if code == messages.TOO_MANY_REQUESTS else 0
                call.messages = 0
                if call is self._timed_call:
                    self._timed_call = None
                    context.counters.round_trip.observe(self._now_ns - call.since_ns)
                    context.signals.round_trips_ns.append(self._now_ns - call.since_ns)
        if context.wants_responses:
            resources = () if request is None else request.resources
            self._responses.append(Response(None, resources, code, http2.MESSAGE_PREFIX_BYTES + length))

    def _rewrite(self, call: Call, route: RouteAnswer, flags: int, frame: Buffer, size: int) -> None:
        self._to_client.retire(size)
        ends = flags & http2.END_STREAM
        if size and not ends:
            self._to_broker.write(http2.window_update(call.id, size))
        answers = route.messages.feed(http2.content_of(frame, flags))
        data = b"".join([self._rewritten(call.method, route.target, *each) for each in answers])
        route.put(data, http2.frame_of(http2.DATA, ends, call.id) if ends else b"")

    def _rewritten(self, method: str, target: bytes | None, flag: int, length: int, message: bytes) -> bytes:
        if len(message) < length:
            raise Close("answer_too_long", f"the broker sent a route response of {length} bytes, which is too long")
        rewritten = None
        if not flag:
            with suppress(ValueError):
                rewritten = messages.rewrite_routes(method, message, self._endpoints(target))
        word = "unread" if rewritten is None else "rewritten"
        routes = self._context.counters.routes
        routes[word] = routes.get(word, 0) + 1
        if rewritten is None:
            self._context.warn("unparsable route response forwarded unchanged; clients may bypass Sluice", method)
        return http2.message_of(flag, message if rewritten is None else rewritten)

    def _endpoints(self, target: bytes | None) -> bytes:
        advertise = read_address(self._options.advertise)
        if advertise is None and target is not None:
            return target
        ports = [each.listen[1] for each in self._context.listeners() if each.protocol == "rocketmq-grpc"]
        return messages.endpoints_of(*(advertise or (self._connection.local, ports[0] if ports else 0)))

    def _take_answer_headers(self, call: Call | None, flags: int, stream: int, frame: Buffer) -> None:
        block = http2.block_of(frame, flags)
        headers: http2.Headers = ()
        changed = False
        route = None if call is None else call.route
        # Trailers wait behind their route answer. Other header blocks overtake them.
        waits = route is not None and route.waits
        if self._rewrites_headers or waits or not http2.is_indexed(block):
            headers, changed = self._answers.read(block)
        if call is None or waits:
            self._rewrites_headers = self._rewrites_headers or changed
        if call is None:
            return
        call.answered = True
        ends = flags & http2.END_STREAM
        if waits:
            frame = http2.headers_of(ends, stream, http2.literals(headers))
        elif self._rewrites_headers:
            frame = http2.headers_of(ends, stream, self._begin_block() + http2.literals(headers))
        if route is not None:
            route.put(b"", bytes(frame))
        else:
            self._to_client.put(frame)
        if ends:
            self._broker_ended(call)

    def _begin_block(self) -> bytes:
        """Return the table size update with which the next header block to the client must begin. Usually empty."""
        if not self._rewrites_headers:
            return self._answers.to_signal
        begin, self._table_is_emptied = b"" if self._table_is_emptied else http2.NO_TABLE, True
        return begin

    def _broker_ended(self, call: Call) -> None:
        self._in_flight -= not (call.is_long_lived or call.broker_ended)
        call.broker_ended = True
        if call.state != PASSES:
            self._to_broker.write(http2.rst_stream(call.id, http2.CANCEL))
            if not call.client_ended:
                self._to_client.put(http2.rst_stream(call.id, http2.NO_ERROR))
            self._forget(call)
        elif call.client_ended:
            self._forget(call)

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
        # Frames that wait for the client's window do not count, because Sluice must read from the client to open it.
        return self._to_client.out_bytes if side is Side.CLIENT else self._to_broker.queued_bytes

    def paused(self, side: Side) -> bool:
        return side is Side.BROKER and self._to_client.queued_bytes > _FULL_BYTES

    def in_flight(self) -> int:
        # All waiting answers together count as one.
        return self._in_flight + (self._to_client.queued_bytes > 0)

    def unanswered(self) -> int:
        return sum(call.messages for call in self._calls.values() if not call.is_long_lived)

    def between_frames(self, side: Side) -> bool:
        # Keep reading from a client with calls in flight, because it opens the windows.
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

    def has_undelivered(self, side: Side) -> bool:
        if side is Side.CLIENT or not (self._to_client.is_open and self._to_client.queued_bytes):
            return False
        if not self._said_goodbye:
            self._say_goodbye("the broker closed the connection")
        return True

    def close_client(self, detail: str, now_ns: int) -> bool:
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
        self._to_client.write(http2.goaway(min(self._last_taken, self._last_accepted), self._error, detail))

    def settle(self, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        for call in list(self._calls.values()):
            self._forget(call)
        if len(self._undecided) > 1:
            # The last batch contains charges of multiple users, so it does not have a user.
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
    grant = outlet.update(size)
    if grant:
        back.write(frame if grant == size else http2.window_update(0, grant))


def _call(request: Request) -> Call:
    call = request.handle
    assert isinstance(call, Call)  # noqa: S101 - the session makes no other requests
    return call
