"""One direction of a connection: splits bytes into frames and contents, forwards them, and holds those that must wait.

``feed`` reads a chunk and returns the requests to decide. When they are decided, ``pass_on`` forwards the chunk. A
content is decided when its header arrives, and the verdict also applies to its remaining frames. They are forwarded,
dropped, or stored with the waiting content, in memory or in the spool:

1. Contents of a lane that have the same key keep their order. While the first one is held, the others wait in its
   ``Line``. When it is resolved, ``ask`` returns requests for the others.
2. A barrier method waits until its lane has no lines. Later methods and contents wait behind it in ``Lane.after``.
3. Data that may be forwarded stays in ``Lane.ready`` until the output is at a boundary: not inside a frame, and not
   inside a content on the same channel. Frames that Sluice makes wait there, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Hold, Refuse, Request, Shadow, Side, Verdict
from proxy.protocols.amqp.names import Names
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import (
    ASKED,
    DROPPED,
    GRANTED,
    HELD,
    LATER,
    MAX_OF_LINE,
    NEW,
    OBJECT_BYTES,
    PASSING,
    REFUSED,
    WAITING,
    Channel,
    Content,
    Lane,
    Line,
    Method,
)
from proxy.protocols.amqp091.client_info import ClientInfo
from proxy.protocols.amqp091.marking import ConsumerAcks, Marking
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.stages import Stages
from proxy.protocols.amqp091.wire import FRAME_BYTES, FRAME_END, PREFIX_BYTES, Malformed, Reader
from proxy.protocols.base import Buffer, Close, SessionContext
from proxy.spool.queue import Lost, Queue
from proxy.spool.segments import MAX_BYTES, Entry, Piece
from proxy.spool.spool import QueueName, Spool

#: Steps per chunk, which take a few milliseconds.
MAX_STEPS: Final = 256
_STEPS_OF_CONTENT: Final = 5
_STEPS_OF_KEY: Final = 4
MAX_GATHERED_BYTES: Final = 1024 * 1024
#: Brokers do not apply frame_max to headers, because dead-lettering lengthens them.
MAX_GATHERED_OF_BROKER_BYTES: Final = 16 * MAX_GATHERED_BYTES
MAX_TAKEN_BACK_BYTES: Final = 4096
MAX_BODY_BYTES: Final = 1 << 40  # if a header announces a longer body, the body counts as empty
#: RabbitMQ closes the channel of a client that sends a larger message.
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024
MAX_ASKED: Final = 256
MAX_ENDED: Final = 1024
_AGAIN_NS: Final = 10_000_000  # before a content is decided again
#: Larger contents stay in the spool while they are decided.
_WINDOW_BYTES: Final = 64 * 1024
_MAX_UNWRITTEN_BYTES: Final = 1024 * 1024
_LINE_BYTES: Final = 5 * 1024
#: A flag in a spool entry's handle. It is set if the message has more resources than its target.
_IS_COPIED: Final = 1 << 63
_NEVER_NS: Final = 1 << 63
_NS_PER_MS: Final = 1_000_000
_NS: Final = 1_000_000_000


@dataclass(slots=True)
class Shared:
    context: SessionContext
    consumers: ConsumerAcks
    marking: Marking
    stages: Stages
    names: Names
    about: ClientInfo = field(default_factory=ClientInfo)
    channels: dict[int, Channel] = field(default_factory=dict)


class Owner(Protocol):
    def channel_opens(self, channel: Channel) -> None: ...
    def channel_left(self, channel: Channel) -> None: ...
    def channel_dies(self, channel: Channel) -> None: ...
    def channel_closes(self, number: int) -> None: ...
    def on_client_close(self) -> None: ...
    def broker_ends(self, arguments: Reader) -> None: ...
    def answer(self, channel: Channel, frame: bytes) -> None: ...
    def requeue(self, channel: Channel, tag: int) -> None: ...
    def shown(self, channel: Channel) -> tuple[int, bool]: ...
    def queue_declared(self, queue: bytes, frame: bytes) -> None: ...
    def on_abandoned_channel(self, channel: Channel, method: int) -> None: ...
    def on_own_channel(self, method: int, arguments: Reader) -> None: ...
    def withholds(self) -> bool: ...
    def backlog_bytes(self, side: Side) -> int: ...


class Stream(ABC):
    side: Side

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        self.close: Close | None = None
        self.code = wire.FRAME_ERROR
        self.out: list[Buffer] = []
        self.own_bytes = 0
        self.refused = 0
        self.waiting = 0
        self.again_ns: int | None = None
        self.old_ns: int | None = None
        self.charges: list[Charge] = []
        self._memory = memory
        self._owner = owner
        self._context, self._stages = shared.context, shared.stages
        self._names, self._about, self._channels = shared.names, shared.about, shared.channels
        self._consumers, self._marking = shared.consumers, shared.marking
        self._give_up: Callable[[Sequence[Request]], None] = shared.context.give_up
        self._spool: Spool | None = None
        self._max_age_ns = 0
        self._has_much_unwritten = False
        self._damage: Close | None = None
        self._lanes: dict[int, Lane] = {}
        self._frame_owner: Content | None = None
        self._frame_left_bytes = 0
        self._current = False
        self._ready: dict[Lane, None] = {}
        self._askable: dict[Line, None] = {}
        self._behind: dict[Line, None] = {}  # lines that must wait for writes before they are askable
        self._unsettled: dict[Line, None] = {}
        self.frames = 0
        self.left_bytes = 0
        self.max_payload_bytes = wire.DEFAULT_FRAME_MAX - FRAME_BYTES
        self.max_body_bytes = MAX_BODY_BYTES
        self.finished = False
        self.last_channel = wire.MAX_CHANNEL
        self._unroutable = Channel(0).to_broker  # the lane for all channels that are not open
        self._beginning = bytearray()
        self._steps = 0
        self._requests: list[Request] = []
        #: The parts of the chunk, in order. Bytes without an owner are always forwarded.
        self._pieces: list[tuple[Content | Method | None, Buffer]] = []

    @abstractmethod
    def _make_request(self, content: Content) -> Request: ...

    def _begin_writing(self, content: Content, frames: Buffer) -> Buffer:
        del content
        return frames

    @abstractmethod
    def _take_method(self, method: int, frame: bytes, number: int) -> None:
        """Handle a method by calling ``_pass``, ``_pass_method`` or ``_open_content``."""

    @abstractmethod
    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        """Return whether ``content`` can be decided on now. If it is a publish, set its resources, key and number.

        ``keys`` contains the routing keys in CC and BCC.
        """

    def _is_small(self, content: Content) -> bool:
        del content
        return False

    def _unmarked(self, content: Content, frame: bytes) -> bytes:
        del content
        return frame

    def feed(self, chunk: memoryview) -> Sequence[Request]:
        """Read a chunk and return the requests to decide. The caller must call ``pass_on`` next."""
        self._current = True
        self.left_bytes = self._steps = 0
        try:
            self._cut(chunk)
        except Malformed as error:
            self._stop(wire.SYNTAX_ERROR, str(error))
        except Close as close:
            self.close = close
        if self.close is not None:
            self.left_bytes = 0
            self._beginning.clear()
        requests, self._requests = self._requests, []
        return requests

    def _cut(self, chunk: memoryview) -> None:
        position = 0
        while position < len(chunk):
            if self._steps >= MAX_STEPS:
                self.left_bytes = len(chunk) - position
                return
            missing = self.missing_bytes()
            part = chunk[position : position + missing]
            position += len(part)
            if self._frame_left_bytes:
                self._take_body(part)
                continue
            self._beginning += part
            if len(self._beginning) == PREFIX_BYTES:
                self._take_prefix()
            elif len(self._beginning) > PREFIX_BYTES and len(part) == missing:
                frame = bytes(self._beginning)
                self._beginning.clear()
                self._take_frame(frame)

    def _take_prefix(self) -> None:
        kind, number, length = wire.prefix_at(self._beginning)
        if number > self.last_channel:
            if not self.last_channel:
                what = f"a frame on channel {number} before connection.open"
                raise self._stop(wire.COMMAND_INVALID, what)
            what = f"a frame on channel {number}, but the highest allowed channel is {self.last_channel}"
            raise self._stop(wire.CHANNEL_ERROR, what)
        if kind not in wire.FRAME_TYPES:
            raise self._stop(wire.FRAME_ERROR, f"a frame of unknown type {kind}")
        most = self.max_payload_bytes
        if kind != wire.BODY:
            most = min(most, MAX_GATHERED_BYTES) if self.side is Side.CLIENT else MAX_GATHERED_OF_BROKER_BYTES
        if length > most:
            what = f"a frame of {length + FRAME_BYTES} bytes; the maximum is {most + FRAME_BYTES}"
            raise self._stop(wire.FRAME_ERROR, what)
        if kind == wire.BODY:
            self._begin_body(number, length)

    def _stop(self, code: int, what: str) -> Close:
        self.code = code
        self.close = Close("bad_frame", f"the {self.side.value} sent {what}")
        return self.close

    def _check_end(self, octet: int) -> None:
        if octet != FRAME_END:
            raise self._stop(wire.FRAME_ERROR, f"a frame that ends in {octet:#04x} instead of {FRAME_END:#04x}")

    def _unexpected(self, what: str, number: int) -> Close:
        return self._stop(wire.UNEXPECTED_FRAME, f"{what} on channel {number}")

    def _take_frame(self, frame: bytes) -> None:
        self._check_end(frame[-1])
        kind, number, length = wire.prefix_at(frame)
        if kind == wire.METHOD:
            if length < 4:
                raise self._stop(wire.FRAME_ERROR, f"a method frame with only {length} payload bytes; the minimum is 4")
            lane = self._lanes.get(number)
            if lane is not None and lane.content is not None and not lane.content.done:
                if not lane.channel.dead:
                    raise self._unexpected("a method frame that interrupts the previous content", number)
                self._gathered(lane.content)
                lane.content = None
            self._take_method(wire.method_of(frame), frame, number)
        elif kind == wire.HEADER:
            self._take_header(frame, number)
        else:
            self._pass(frame)
        self.frames += 1
        self._steps += 1

    def _take_header(self, frame: bytes, number: int) -> None:
        lane = self._lanes.get(number)
        content = None if lane is None else lane.content
        if content is None or content.left_bytes >= 0:
            if lane is None and not self.finished:
                self._pass(frame)
            elif lane is not None and not lane.channel.dead:
                raise self._unexpected("a content header without a preceding method", number)
            return
        class_id, body_bytes, keys, fields = wire.read_content_header(
            wire.payload(frame), copies=self.side is Side.CLIENT
        )
        if class_id != wire.BASIC:
            raise self._unexpected(f"a content header with unexpected class {class_id}", number)
        self._steps += fields + _STEPS_OF_KEY * len(keys) + _STEPS_OF_CONTENT
        content.left_bytes, content.done = body_bytes, not body_bytes
        self._gather(content, self._unmarked(content, frame))
        content.whole = content.whole and content.fate == NEW and not keys and self._is_small(content)
        if content.done or not content.whole:
            self._begin_content(content, keys)

    def _begin_content(self, content: Content, keys: list[bytes]) -> None:
        if content.lane.channel.dead or self.finished:
            content.fate = DROPPED
        frames = self._gathered(content)
        self._pass(frames, content)
        if content.fate != NEW:
            return
        body_bytes = content.left_bytes
        if body_bytes > self.max_body_bytes:
            body_bytes = 0
        content.size_bytes = len(frames) + body_bytes + -(-body_bytes // self.max_payload_bytes) * FRAME_BYTES
        asks = self._limit(content, keys)
        if content.resources and asks:
            self._requests.append(self._make_request(content))
        elif content.resources:
            content.verdict = LATER

    def _begin_body(self, number: int, length: int) -> None:
        lane = self._lanes.get(number)
        content = None if lane is None else lane.content
        if content is None or content.done or length > content.left_bytes:
            if lane is not None and not lane.channel.dead:
                raise self._unexpected("a body frame that lacks a content header or exceeds the announced size", number)
            # If the channel was never open, the broker reports the error. Otherwise, it ignores the content.
            content = Content(self._unroutable, left_bytes=length)
            content.fate = PASSING if lane is None and not self.finished else DROPPED
        content.left_bytes -= length
        self._frame_owner, self._frame_left_bytes = content, length + 1
        prefix = bytes(self._beginning)
        self._beginning.clear()
        self._take_part(content, prefix)
        self.frames += 1
        self._steps += 1

    def _take_body(self, part: memoryview) -> None:
        content = self._frame_owner
        assert content is not None  # noqa: S101 - it owns the remaining bytes
        self._frame_left_bytes -= len(part)
        if not self._frame_left_bytes:
            self._check_end(part[-1])
            content.done = not content.left_bytes
            self._frame_owner = None
        self._take_part(content, part)

    def _take_part(self, content: Content, part: Buffer) -> None:
        if not content.gathers:
            self._pass(part, content)
            return
        self._gather(content, part)
        if content.done:
            self._begin_content(content, [])

    def _pass(self, data: Buffer, owner: Content | None = None) -> None:
        self._pieces.append((owner, data))

    def _pass_method(self, lane: Lane, frame: bytes, *, barrier: bool) -> None:
        self._pieces.append((Method(lane, frame, barrier), frame))

    def _open_content(self, content: Content, frame: bytes) -> None:
        content.lane.content = content
        content.gathers, content.data = True, bytearray()
        self._memory.take(OBJECT_BYTES)
        self._gather(content, frame)

    def _gather(self, content: Content, data: Buffer) -> None:
        assert isinstance(content.data, bytearray)  # noqa: S101 - created by _open_content
        content.data += data
        self._memory.take(len(data))

    def part(self) -> None:
        self._lanes.clear()
        self._pieces, self._requests = [], []
        self._frame_owner = None
        self._beginning.clear()
        self._unroutable.channel.part()
        del self._owner

    def take_back(self) -> bytes:
        beginning = bytes(self._beginning)
        self._beginning.clear()
        return beginning

    def between_frames(self) -> bool:
        return not self._beginning and not self._frame_left_bytes and not self._current and not self.left_bytes

    def unfinished(self) -> list[Content]:
        contents = (lane.content for lane in self._lanes.values())
        return [content for content in contents if content is not None and not content.done]

    def between_contents(self) -> bool:
        return self.between_frames() and not self.unfinished()

    def missing_bytes(self) -> int:
        if self._frame_left_bytes:
            return self._frame_left_bytes
        if len(self._beginning) < PREFIX_BYTES:
            return PREFIX_BYTES - len(self._beginning)
        length: int = wire.prefix_at(self._beginning)[2]
        return length + FRAME_BYTES - len(self._beginning)

    def is_plain(self) -> bool:
        waits = self.waiting or self.out or self._ready or self.charges or self.left_bytes or self._current
        if waits or len(self._beginning) > MAX_TAKEN_BACK_BYTES or self.finished or self.close is not None:
            return False
        unfinished, owner = self.unfinished(), self._frame_owner
        return all(content.fate == PASSING for content in unfinished) and (owner is None or owner in unfinished)

    def lend(self) -> tuple[dict[int, int], tuple[int, int] | None]:
        """Return each channel's missing body bytes, and for an incomplete frame its channel and missing bytes."""
        unfinished = self.unfinished()
        for content in unfinished:
            content.lane.content = content.lane.writing = None
        owner, self._frame_owner = self._frame_owner, None
        cut = None if owner is None else (owner.lane.channel.number, self._frame_left_bytes)
        self._frame_left_bytes = 0
        return {each.lane.channel.number: each.left_bytes for each in unfinished if each.left_bytes}, cut

    def returned(self, rests: Mapping[int, int], cut: tuple[int, int] | None, dropped: Container[int] = ()) -> None:
        for number in rests if cut is None else {*rests, cut[0]}:
            lane = self._lanes[number]
            content = lane.content = Content(lane, left_bytes=rests.get(number, 0), fate=PASSING)
            if number in dropped:
                content.fate = DROPPED
            else:
                lane.writing = content
            if cut is not None and number == cut[0]:
                self._frame_owner, self._frame_left_bytes = content, cut[1]

    def pass_on(self, batch: Batch | None) -> None:
        if batch is not None:
            for index, verdict in batch.verdicts.items():
                self._take_verdict(batch.requests[index], verdict)
        pieces, self._pieces = self._pieces, []
        for owner, data in pieces:
            if isinstance(owner, Content):
                self._forward(owner, data)
            elif owner is None or self._forwards_now(owner):
                self.out.append(data)
        self._current = False
        self.flush()

    def _forwards_now(self, method: Method) -> bool:
        lane = method.lane
        goes = not lane.after and not (method.barrier and lane.lines)
        if goes:
            self._flush(lane)
        else:
            self._defer(method)
        return goes

    def _forward(self, content: Content, data: Buffer) -> None:
        lane = content.lane
        if lane.writing is not content:
            self._flush(lane, content)
        if content.fate == NEW:
            content.fate = self._fate(content)
            if content.fate == PASSING:
                lane.writing = content
                data = self._begin_writing(content, data)
            elif content.fate == WAITING:
                self._start_waiting(content, data)
        elif content.fate == WAITING:
            assert isinstance(content.data, bytearray)  # noqa: S101 - created by _start_waiting
            content.data += data
            self._memory.take(len(data))
            line = lane.line_of(content)
            if content.done and line is not None and line.spools:
                self._unsettled[line] = None
        if content.fate == PASSING:
            self.out.append(data)

    def _fate(self, content: Content) -> int:
        lane = content.lane
        goes = content.verdict == GRANTED and not lane.after and content.key not in lane.lines
        if goes or content.key is None:
            return PASSING
        if lane.channel.dead or content.verdict == REFUSED:
            self._drop(content)
            return DROPPED
        return WAITING

    def _lines(self) -> list[Line]:
        return [line for lane in self._lanes.values() for line in lane.lines.values()]

    def _take_verdict(self, request: Request, verdict: Verdict) -> None:
        content = request.handle
        if not isinstance(content, Content) or isinstance(verdict, Shadow):
            return
        if isinstance(verdict, Refuse):
            content.verdict = REFUSED
        elif isinstance(verdict, Hold):
            content.verdict = HELD
            content.request = request
            content.spools = verdict.spools
        else:
            content.verdict = LATER
            content.spools = request.refusal == "answered"

    def _drop(self, content: Content) -> None:
        content.fate = DROPPED
        if content.verdict == HELD and content.request is not None:
            request, content.request = content.request, None
            self._give_up((request,))
        elif content.verdict == REFUSED:
            self._say(content, expired=False)
        content.verdict = REFUSED

    def _say(self, content: Content, *, expired: bool) -> None:
        """Answer a publish that is not forwarded. An expired publish gets an ack, as it would from the broker."""
        channel = content.lane.channel
        if content.number and not channel.dead:
            self.refused += not expired
            self._owner.answer(channel, (wire.ack if expired else wire.nack)(channel.number, content.number))

    def _defer(self, method: Method) -> None:
        method.lane.after.append(method)
        self.waiting += 1
        self._memory.take(method.size_bytes())

    def _undefer(self, method: Method) -> None:
        self.waiting -= 1
        self._memory.give_back(method.size_bytes())

    def _wait(self, content: Content, data: Piece) -> None:
        content.fate, content.data = WAITING, data
        self.waiting += 1
        self._memory.take(content.waiting_bytes())

    def _start_waiting(self, content: Content, data: Buffer) -> None:
        content.since_ns = self._stages.now_ns
        self._wait(content, bytearray(data))
        if content.lane.after:
            content.lane.after.append(content)
        else:
            self._join(content)

    def _join(self, content: Content) -> None:
        lane, key = content.lane, content.key
        assert key is not None  # noqa: S101 - contents without a key never wait
        line = lane.lines.get(key)
        if line is None:
            line = lane.lines[key] = Line(lane, key, self._stages.begin(lane.channel, str(content.resources[0])))
            self._memory.take(self._line_bytes())
        self._let_spool(line, content)
        line.append(content)
        if line.spools:
            self._unsettled[line] = None
        if line.contents and line.contents[0] is content and content.verdict == LATER:
            self.let_ask(line)
        if self.side is Side.CLIENT:
            self._stages.waits(line.stage, content.size_bytes)
            self._check_age(content)

    def _line_bytes(self) -> int:
        return 0 if self._spool is None else _LINE_BYTES

    def _let_spool(self, line: Line, content: Content) -> None:
        if content.spools and self._spool is not None and not line.spools:
            line.spools, line.most = True, 1

    def asks(self) -> bool:
        return bool(self._askable) or (self.old_ns is not None and self._stages.now_ns >= self.old_ns)

    def let_ask(self, line: Line) -> None:
        if not self._askable:
            self._context.wake()
        self._askable[line] = None

    def written(self) -> None:
        behind, self._behind = self._behind, {}
        for line in behind:
            self.let_ask(line)

    def _release_waiting(self, content: Content) -> Piece:
        self.waiting -= 1
        self._memory.give_back(content.waiting_bytes())
        data, content.data = content.data, b""
        content.request = None
        return data

    def waiting_since(self) -> Iterator[tuple[Resource, int]]:
        for lane in self._lanes.values():
            fronts = [line.contents[0] for line in lane.lines.values() if line.contents]
            for content in (*fronts, *lane.after):
                if isinstance(content, Content) and content.resources:
                    yield content.resources[0], content.since_ns

    def ask(self, now_ns: int) -> list[Request]:
        """Return requests for undecided contents that are now first in their lines.

        Raises:
            Close: Spooled publishes are damaged. The client must resend them.
        """
        if self._damage is not None:
            self.close, self.code = self._damage, wire.INTERNAL_ERROR
            raise self._damage
        if self.old_ns is not None and now_ns >= self.old_ns:
            self._release_overdue(now_ns)
        if self._spool is not None:
            # This is expensive, so do it once for all lines.
            unwritten_bytes = max(self._stages.unwritten_bytes, self._owner.backlog_bytes(Side.CLIENT))
            self._has_much_unwritten = unwritten_bytes > _MAX_UNWRITTEN_BYTES
        self.again_ns = None
        requests: list[Request] = []
        ended = 0
        for line in list(self._askable):
            if len(requests) >= MAX_ASKED or ended >= MAX_ENDED:
                break
            if line not in self._askable:
                continue
            del self._askable[line]
            if line.spools and (self._has_much_unwritten or self._stages.is_behind(line.stage)):
                self._behind[line] = None
                continue
            of_line = self._refill(line, now_ns)
            ended += of_line
            is_reading = not of_line and not line.contents
            self._advance(line)
            if of_line >= MAX_ENDED:
                self.let_ask(line)
            elif is_reading:
                self._askable.pop(line, None)
            elif line.contents and line.contents[0].verdict == LATER:
                self._askable.pop(line, None)
                self._ask_of(line, requests)
        self.flush()
        return requests

    def _ask_of(self, line: Line, requests: list[Request]) -> None:
        most = len(requests) + min(line.most, MAX_ASKED - len(requests))
        for content in line.contents:
            if content.verdict == LATER:
                if len(requests) >= most:
                    break
                content.verdict = ASKED
                requests.append(self._make_request(content))
            elif content.verdict in {HELD, ASKED}:
                break

    def asked(self, batch: Batch, now_ns: int) -> None:
        lines: dict[Line, bool] = {}
        for index, request in enumerate(batch.requests):
            content, verdict = request.handle, batch.verdicts.get(index)
            if not isinstance(content, Content):
                continue
            if content.verdict != ASKED:
                if isinstance(verdict, Hold):
                    self._give_up((request,))
                continue
            content.verdict = GRANTED
            if verdict is not None:
                self._take_verdict(request, verdict)
            line = content.lane.line_of(content)
            if line is not None:
                lines[line] = lines.get(line, False) or content.verdict in {HELD, LATER}
                if content.verdict != REFUSED:
                    self._let_spool(line, content)
            if content.verdict == REFUSED:
                self._leave_out(line, content)
            self._check_age(content)
        for line, waits in lines.items():
            if line.spools:
                line.most = max(1, line.most // 2) if waits else min(2 * line.most, MAX_OF_LINE)
            head = line.contents[0] if line.contents else None
            if head is not None and head.verdict == LATER:
                self._askable[line] = None
                self.again_ns = now_ns + _AGAIN_NS
            else:
                self._advance(line)
        if self._askable and self.again_ns is None:
            self._context.wake()
        self.flush()

    def _leave_out(self, line: Line | None, content: Content) -> None:
        if line is not None:
            line.forget(content)
        self._release_waiting(content)
        self._drop(content)

    def resolved(self, request: Request, refuse: Refuse | None) -> None:
        content = request.handle
        if not isinstance(content, Content) or content.request is not request:
            return
        content.request = None
        line = content.lane.line_of(content)
        content.verdict = GRANTED if refuse is None else REFUSED
        if refuse is not None:
            self._leave_out(line, content)
        if line is not None:
            self._advance(line)
        self.flush()

    def _advance(self, line: Line) -> None:
        lane = line.lane
        if lane.shut:
            return
        while line.advance():
            head = line.contents[0]
            if head.verdict == GRANTED:
                if self._has_expired(line, head):
                    self._say(head, expired=True)
                    line.forget(head)
                    self._release_waiting(head)
                    head.fate, head.verdict = DROPPED, REFUSED
                elif self._bring(line, head):
                    if self.side is Side.CLIENT:
                        self._stages.goes(line.stage, len(head.data))
                    self._make_ready(lane, head)
                else:
                    return
            elif head.verdict != REFUSED:
                break
            line.contents.popleft()
        if line.contents or line.spooled:
            if not line.contents or line.contents[0].verdict == LATER:
                self.let_ask(line)
            return
        if lane.lines.get(line.key) is line:
            del lane.lines[line.key]
            self._end_line(line)
        self._advance_after(lane)

    def _end_line(self, line: Line) -> None:
        for lines in (self._askable, self._behind, self._unsettled):
            lines.pop(line, None)
        line.close()
        self._stages.end(line.stage)
        self._memory.give_back(self._line_bytes())

    def _advance_after(self, lane: Lane) -> None:
        after = lane.after
        while after and not lane.shut:
            item = after[0]
            if isinstance(item, Method):
                if item.barrier and lane.lines:
                    break
                after.popleft()
                self._make_ready(lane, item.frame)
                self._undefer(item)
                continue
            after.popleft()
            if item.verdict == GRANTED and item.key not in lane.lines:
                self._make_ready(lane, item)
            elif item.verdict != REFUSED:
                self._join(item)

    def _make_ready(self, lane: Lane, item: Content | bytes) -> None:
        lane.ready.append(item)
        self._ready[lane] = None

    def is_spooling(self) -> bool:
        return any(line.spools for line in self._lines())

    def _settle(self, line: Line) -> None:
        if len(line.contents) == 1 and not line.spooled:
            first = line.contents[0]
            is_large = _WINDOW_BYTES < len(first.data) <= MAX_BYTES
            if is_large and first.done and not first.spooled and first.verdict in {HELD, LATER, ASKED}:
                self._put(line, first)
                first.spooled = True
        while line.rest:
            content = line.rest[0]
            if content.verdict != REFUSED:
                if not content.done or content.verdict != LATER or len(content.data) > MAX_BYTES:
                    return
                self._memory.give_back(OBJECT_BYTES)
                self._put(line, content)
            line.rest.popleft()

    def _put(self, line: Line, content: Content) -> None:
        queue = line.queue or self._open_queue(line, content)
        data, content.data = content.data, b""
        self._memory.give_back(len(data))
        queue.append(
            (data,),
            content.number | (0 if content.resources is content.target.resources else _IS_COPIED),
            content.since_ns,
            cost_bytes=min(content.size_bytes, 0xFFFFFFFF),
            expires_ns=_expiry_ns(content, data),
            is_refusable=content.number > 0,
            is_recoverable=not content.number and not line.lane.channel.transacts,
        )

    def _open_queue(self, line: Line, content: Content) -> Queue:
        assert self._spool is not None  # noqa: S101 - the line spools
        resource, listener = content.target.resources[0], self._context.connection.listener
        line.like, line.is_refusable = content, content.number > 0
        line.queue = self._spool.queue(
            QueueName(listener, resource.kind, resource.name, self._about.sender()).encoded(),
            lambda _: self.let_ask(line),
            stage=line.stage,
            lost=lambda lost: self._lost(line, lost),
        )
        return line.queue

    def _refill(self, line: Line, now_ns: int) -> int:
        """Move the next spooled contents to ``line.contents``. Return how many were instead answered and removed."""
        queue, contents = line.queue, line.contents
        ended = ended_bytes = 0
        window_bytes = sum(len(content.data) for content in contents)
        while queue is not None and queue.count and line.front() is None and ended < MAX_ENDED:
            waits = bool(contents) and contents[0].verdict != LATER
            is_full = waits or len(contents) >= line.most or window_bytes > _WINDOW_BYTES
            if is_full and not line.purged:
                break
            ending, entry = queue.ending(now_ns), queue.head()
            if entry is None:
                break
            if line.purged or ending == "expired" or (ending is not None and entry.is_refusable):
                if line.purged:
                    line.purged, ending = line.purged - 1, None
                queue.pop(ending)
                self._say(self._of_entry(line, entry), expired=ending == "expired")
                ended, ended_bytes = ended + 1, ended_bytes + entry.cost_bytes
                continue
            if contents and (entry.content is None or entry.size_bytes > _WINDOW_BYTES):
                break
            if entry.content is None and (entry.handle & _IS_COPIED or ending is not None):
                entry = _fetch(queue)
                if entry is None:
                    break
            content = self._of_entry(line, entry)
            if entry.handle & _IS_COPIED:
                data = _joined(entry)
                start, stop = wire.content_header_at(data)
                keys = wire.read_content_header(bytes(data[start:stop]))[2]
                content.resources = self._names.with_copies(content.target, keys)
            if ending is not None:
                line.most = min(2 * line.most, MAX_OF_LINE)
                self._passes(content, [])
            if ending is None and (entry.content is None or entry.size_bytes > _WINDOW_BYTES):
                content.spooled = True
            else:
                queue.pop(ending)
                content.data = _joined(entry)
                window_bytes += len(content.data)
            self._memory.take(content.waiting_bytes())
            contents.append(content)
        self._count_lost_spooled(line, ended, ended_bytes)
        return ended

    def _of_entry(self, line: Line, entry: Entry) -> Content:
        content = self._alike(line, entry.handle & ~_IS_COPIED, entry.cost_bytes)
        content.left_bytes, content.done = 0, True
        content.verdict, content.fate = LATER, WAITING
        content.since_ns, content.expires_ns = entry.entered_ns, entry.expires_ns or _NEVER_NS
        content.spools = True
        return content

    def _alike(self, line: Line, number: int, size_bytes: int) -> Content:
        assert line.like is not None  # noqa: S101 - set by _open_queue
        content = Content(line.lane, target=line.like.target, key=line.key, number=number, size_bytes=size_bytes)
        content.resources = content.target.resources
        return content

    def _bring(self, line: Line, content: Content) -> bool:
        if content.spooled and line.queue is not None:
            entry = _fetch(line.queue)
            if entry is None:
                return False
            line.queue.pop()
            content.spooled, content.data = False, _joined(entry)
            self._memory.take(len(content.data))
        return True

    def _has_expired(self, line: Line, content: Content) -> bool:
        if not line.spools:
            return False
        if not content.expires_ns:
            content.expires_ns = _expiry_ns(content, content.data) or _NEVER_NS
        return content.expires_ns <= self._stages.now_ns

    def _check_age(self, content: Content) -> None:
        if content.verdict == HELD and content.spools and not content.number and self._max_age_ns:
            old_ns = content.since_ns + self._max_age_ns
            if self.old_ns is None or old_ns < self.old_ns:
                self.old_ns = old_ns
                self._context.wake()

    def _release_overdue(self, now_ns: int) -> None:
        self.old_ns = None
        passed: list[Request] = []
        lines = [line for line in self._lines() if line.contents]
        for line in lines:
            content = line.contents[0]
            is_old = content.request is not None and content.since_ns + self._max_age_ns <= now_ns
            if is_old and content.spools and not content.number:
                self._passes(content, passed)
            self._check_age(content)
        self._context.pass_on(passed)
        for line in lines:
            self._advance(line)

    def _passes(self, content: Content, passed: list[Request]) -> None:
        if content.request is not None:
            passed.append(content.request)
            content.request = None
        content.verdict = GRANTED
        self.charges.append(Charge(content.resources, 1, content.size_bytes, consumes=self.side is Side.BROKER))

    def _count_lost_spooled(self, line: Line, count: int, size_bytes: int) -> None:
        if count and line.like is not None:
            self.waiting -= count
            content = self._alike(line, line.like.number, size_bytes // count)
            self._context.lose([self._make_request(content)] * count)

    def _drop_spooled(self, line: Line) -> int:
        queue, front, count = line.queue, line.front(), line.spooled
        if queue is None:
            return 0
        size_bytes = queue.content_bytes
        if front is not None:
            front.spooled = False
        line.purged = 0
        queue.purge()
        self._count_lost_spooled(line, count, size_bytes)
        return count

    def _lost(self, line: Line, lost: Lost) -> None:
        """Refuse publishes that were damaged in the spool.

        If their sequence numbers are unknown, close the connection so that the client resends them.
        """
        front, entry = line.front(), lost.queue.head()
        if front is not None:
            if entry is not None and (entry.handle & ~_IS_COPIED, entry.entered_ns) == (front.number, front.since_ns):
                front = None
            else:
                front.spooled = False
                self._forget(front)
        line.purged = max(0, line.purged - lost.entries)
        if line.is_refusable:
            for handle in lost.handles:
                self._say(self._alike(line, handle & ~_IS_COPIED, 0), expired=False)
            if len(lost.handles) < lost.entries:
                self._damage = Close(
                    "spool_damaged",
                    f"spooled publishes were lost and must be resent (count: {lost.entries}, cause: {lost.reason})",
                )
        self._count_lost_spooled(line, lost.entries - (front is not None), 0)
        self.let_ask(line)

    def purge(self, resource: Resource) -> tuple[int, int]:
        refused = dropped = 0
        for line in self._lines():
            if not line.spools or resource not in line.first().target.resources:
                continue
            for content in line.in_memory():
                if content.spooled or (content.done and content.verdict == LATER):
                    line.forget(content)
                    self._forget(content)
                    self._say(content, expired=False)
                    refused += content.number > 0
                    dropped += not content.number
            self._unsettled[line] = None
            if not line.is_refusable:
                dropped += self._drop_spooled(line)
            elif not line.purged:
                # Do not extend a purge. Otherwise, it would not end while the client keeps sending.
                line.purged = line.spooled
                refused += line.purged
            self.let_ask(line)
        return refused, dropped

    def insert(self, lane: Lane | None, frame: bytes) -> bool:
        """Queue a frame that Sluice made. Return False if it cannot be sent now.

        If ``lane`` is None, the frame is for channel 0.
        """
        if lane is None:
            if not self.at_boundary():
                return False
            self.out.append(frame)
        else:
            self._make_ready(lane, frame)
            self.flush()
        self.own_bytes += len(frame)
        return True

    def at_boundary(self) -> bool:
        owner = self._frame_owner
        return not self._current and (owner is None or owner.fate != PASSING)

    def can_stop(self) -> bool:
        if not self.at_boundary():
            return False
        return self._memory.is_overfull() or (self.waiting > 0 and not self._ready)

    def flush(self) -> None:
        if self._current:
            return
        for line in self._unsettled:
            self._settle(line)
        self._unsettled.clear()
        for lane in list(self._ready):
            if not self.at_boundary():
                return
            self._flush(lane)

    def _flush(self, lane: Lane, owner: Content | None = None) -> None:
        """Write a lane's ready data. Stop after an incomplete content or after ``owner``."""
        if lane.is_within_content():
            return
        ready = lane.ready
        while ready:
            item = ready.popleft()
            if not isinstance(item, Content):
                self.out.append(item)
                continue
            if item.fate != WAITING:
                continue
            data = self._release_waiting(item)
            item.fate = PASSING
            lane.writing = item
            self.out.append(self._begin_writing(item, memoryview(data)))
            if item is owner or not item.done:
                break
        if not ready:
            self._ready.pop(lane, None)

    def give_up(self, lane: Lane, *, methods: bool = True) -> None:
        """Drop a lane's waiting contents. Drop its waiting methods, too, or forward them if ``methods`` is False."""
        lines, lane.lines = lane.lines, {}
        for line in lines.values():
            for content in line.in_memory():
                self._forget(content)
            self._drop_spooled(line)
            self._end_line(line)
        waiting = [*lane.ready, *lane.after]
        lane.after.clear()
        lane.ready.clear()
        self._ready.pop(lane, None)
        for item in waiting:
            if isinstance(item, Content):
                self._forget(item)
                continue
            if isinstance(item, Method):
                self._undefer(item)
            if not methods:
                self._make_ready(lane, item.frame if isinstance(item, Method) else item)

    def give_up_all(self) -> None:
        for lane in self._lanes.values():
            self.give_up(lane)

    def open_lane(self, number: int, lane: Lane) -> None:
        self._lanes[number] = lane

    def close_lane(self, number: int) -> None:
        lane = self._lanes.pop(number, None)
        if lane is not None:
            self.give_up(lane)
            if lane.content is not None:
                self._gathered(lane.content)

    def _gathered(self, content: Content) -> bytes:
        if not content.gathers:
            return b""
        content.gathers = False
        self._memory.give_back(content.waiting_bytes())
        frames, content.data = bytes(content.data), b""
        return frames

    def _forget(self, content: Content) -> None:
        if content.fate != WAITING:
            return
        if content.request is not None:
            self._give_up((content.request,))
        elif content.verdict == LATER:
            self._context.lose((self._make_request(content),))
        self._release_waiting(content)
        content.fate, content.verdict = DROPPED, REFUSED

    def forget_incomplete(self, *, refusable: bool) -> None:
        for lane in self._lanes.values():
            if lane.is_within_content():
                self.give_up(lane)
                continue
            waiting = [content for line in lane.lines.values() for content in line.in_memory()]
            waiting += [item for item in (*lane.after, *lane.ready) if isinstance(item, Content)]
            for content in waiting:
                if not content.done or (refusable and content.number):
                    self._forget(content)
            for line in list(lane.lines.values()):
                if refusable and line.is_refusable:
                    self._drop_spooled(line)
                self._advance(line)
        if not self.at_boundary():
            self.give_up_all()
        self.flush()

    def has_undelivered(self) -> bool:
        return bool(self.waiting or self._ready)

    def forget_all(self) -> None:
        self._give_up = lambda _: None
        self.give_up_all()
        for lane in self._lanes.values():
            if lane.content is not None:
                self._gathered(lane.content)

    def ready_bytes(self) -> int:
        return sum(len(item.data) for lane in self._ready for item in lane.ready if isinstance(item, Content))

    def take(self) -> list[Buffer]:
        out, self.out = self.out, []
        if self.own_bytes:
            self.own_bytes = sum(
                len(item) for lane in self._ready for item in lane.ready if not isinstance(item, Content)
            )
        return out


def _fetch(queue: Queue) -> Entry | None:
    queue.fetch()
    entry = queue.head()
    return None if entry is None or entry.content is None else entry


def _expiry_ns(content: Content, data: Piece) -> int:
    expiration_ms = wire.read_expiration(data)
    return 0 if expiration_ms is None else max(1, content.since_ns + expiration_ms * _NS_PER_MS)


def _joined(entry: Entry) -> Piece:
    assert entry.content is not None  # noqa: S101 - the caller has checked
    return entry.content[0] if len(entry.content) == 1 else b"".join(entry.content)
