"""One direction of a connection: bytes to frames and contents, what waits of them and why, and what is forwarded.

``feed`` reads a chunk, ``pass_on`` forwards it once it is decided. Nothing is written in between, since the chunk goes
before all that becomes ready meanwhile. Frames are forwarded as slices of the chunk, bodies as they come: the verdict
on a content covers its remaining frames, which pass, are dropped, or are added to its copy while it waits. Only
incomplete method and header frames are held back, and a method until the header of its content has arrived.

1. Contents of one lane with the same key keep their order. While one is held, those behind it wait in its ``Line``, in
   memory or in the spool. Once it is resolved, the undecided ones are asked about in a batch of their own (``ask``).
2. A BARRIER method waits until all lines of its lane are empty. BEHIND methods and contents wait behind it, in
   ``Lane.after``.
3. What may be forwarded is in ``Lane.ready`` until the output is at a boundary: not inside a frame, and not inside a
   content of the same channel. Frames of Sluice's own wait there, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Hold, Refuse, Request, Shadow, Side, Verdict
from proxy.protocols.amqp.names import Names
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.about import AboutClient
from proxy.protocols.amqp091.channel import (
    ASKED,
    BARRIER,
    DROPPED,
    GRANTED,
    HELD,
    LATER,
    MAX_ENDED,
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
from proxy.protocols.amqp091.marking import ConsumerAcks, Marking
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.stages import Stages
from proxy.protocols.amqp091.wire import Malformed, Reader
from proxy.protocols.base import Buffer, Close, SessionContext
from proxy.spool.segments import Piece

#: After this many contents or steps the rest of a chunk is left for later: some milliseconds.
MAX_CONTENTS: Final = 64
MAX_STEPS: Final = 512
_MANY_STEPS: Final = 127  # a chunk with more is expensive
_STEPS_OF_KEY: Final = 4  # a routing key in CC or BCC has names and limits of its own
#: The longest incomplete method or header frame that is kept, whatever the peers agreed on.
MAX_GATHERED_BYTES: Final = 1024 * 1024
#: The same for the broker, which ignores frame_max for them: a dead letter's header is longer than its publisher's.
MAX_GATHERED_OF_BROKER_BYTES: Final = 16 * MAX_GATHERED_BYTES
MAX_TAKEN_BACK_BYTES: Final = 4096  # a longer beginning of a frame is not read again with the next chunk
MAX_BODY_BYTES: Final = 1 << 40  # a body that is announced longer counts as empty: it never arrives
#: The same for clients, by default: RabbitMQ closes the channel of one that announces more.
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024
MAX_CHANNEL: Final = 65535  # channel numbers have two bytes
MAX_ASKED: Final = 256  # contents asked about in one batch, of all lines
_AGAIN_NS: Final = 10_000_000  # when to ask again after a handler answered Later though nothing is in front

_METHOD: Final = wire.METHOD
_HEADER: Final = wire.HEADER
_BODY: Final = wire.BODY
_PREFIX_BYTES: Final = wire.PREFIX_BYTES
_FRAME_BYTES: Final = wire.FRAME_BYTES
_FRAME_END: Final = wire.FRAME_END
_prefix_at = wire.prefix_at
_method_at = wire.method_at


@dataclass(slots=True)
class Shared:
    """What the two streams of a connection share."""

    context: SessionContext
    consumers: ConsumerAcks
    marking: Marking
    stages: Stages
    names: Names
    about: AboutClient = field(default_factory=AboutClient)
    channels: dict[int, Channel] = field(default_factory=dict)


class Owner(Protocol):
    """The session, as its streams see it. Each of them calls what the other one has to know."""

    def channel_opens(self, channel: Channel) -> None: ...
    def channel_left(self, channel: Channel) -> None: ...
    def channel_dies(self, channel: Channel) -> None: ...
    def channel_closes(self, number: int) -> None: ...
    def client_leaves(self) -> None: ...
    def broker_ends(self, arguments: Reader) -> None: ...
    def answer(self, channel: Channel, frame: bytes) -> None: ...
    def requeue(self, channel: Channel, tag: int) -> None: ...
    def shown(self, channel: Channel) -> tuple[int, bool]: ...
    def queue_declared(self, queue: bytes, frame: bytes) -> None: ...
    def hear_left(self, channel: Channel, method: int) -> None: ...
    def hear_own(self, method: int, arguments: Reader) -> None: ...
    def withholds(self) -> bool: ...
    def backlog_bytes(self, side: Side) -> int: ...


class Stream(ABC):
    """One peer's stream, on its way to the other peer."""

    peer: str  # for error messages
    reads_copies = True  # CC and BCC in its contents count

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        self.frames = 0  # complete frames so far, including bodies that have begun
        # Set when the last chunk ended in an invalid frame. What came before it is still forwarded.
        self.close: Close | None = None
        self.code = wire.FRAME_ERROR  # the reply code for that
        self.left_bytes = 0  # at the end of the last chunk, to be fed again
        self.most_payload_bytes = wire.DEFAULT_FRAME_MAX - _FRAME_BYTES  # of one frame
        self.most_body_bytes = MAX_BODY_BYTES  # a longer body is not charged
        self.finished = False  # a peer has closed the connection; contents that arrive now are dropped
        self.last_channel = MAX_CHANNEL  # the highest channel number that may be used
        self.out: list[Buffer] = []
        self.own_bytes = 0  # of Sluice's own frames, in ``out`` or about to get there
        self.refused = 0
        self.waiting = 0  # how many contents and methods wait, spooled ones included
        self.again_ns: int | None = None  # when to call ``ask`` without being woken
        # For contents that were forwarded without a decision. They go with the next batch.
        self.charges: list[Charge] = []
        self._memory = memory
        self._shared = shared
        self._owner = owner
        self._context = shared.context
        self._give_up: Callable[[Sequence[Request]], None] = shared.context.give_up
        self._stages = shared.stages
        #: Of open channels, and the lane of all others.
        self._lanes: dict[int, Lane] = {}
        self._nowhere = Channel(0).to_broker
        #: An incomplete frame. The remaining bytes of a body frame, and its content.
        self._beginning = bytearray()
        self._frame_left_bytes = 0
        self._frame_owner: Content | None = None
        self._begun_only: dict[Content, None] = {}  # contents of which only the method has arrived
        self._steps = 0  # the cost of the last chunk: frames, header fields and the like
        self._in_hand = False  # a chunk is being read or decided
        #: Its bytes in order: buffer, from, to, owner. Those without an owner are always forwarded.
        self._pieces: list[tuple[Buffer, int, int, Content | Method | None]] = []
        #: Contents whose headers arrived in it, and their requests.
        self._begun: list[Content] = []
        self._requests: list[Request] = []
        self._special = False  # it is not forwarded as one slice, whatever the verdicts
        #: Lanes with something ready. Lines to be asked about. Lines that also wait for writes.
        self._ready: dict[Lane, None] = {}
        self._askable: dict[Line, None] = {}
        self._behind: dict[Line, None] = {}
        self._unsettled: dict[Line, None] = {}  # lines that may have something to spool

    # --- What the directions do differently -------------------------------------------------------

    @abstractmethod
    def _take_method(self, method: int, buffer: Buffer, position: int, stop: int, number: int) -> None:
        """Take a method frame by ``_pass``, ``_replace`` or ``_open_content``; ``method`` is class and method."""

    @abstractmethod
    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        """Set a content's resources and number once its header has arrived. Return whether it can be decided now.

        ``keys``: the routing keys in CC and BCC.
        """

    def _still_gathers(self, content: Content) -> bool:
        """Say, once the header has arrived, whether a content is still to be gathered."""
        del content
        return False

    def _restore(self, content: Content, lead: Buffer, buffer: Buffer, position: int, stop: int) -> bytes:
        """Return a header frame to forward instead, or empty. ``lead`` is the method if that is not in the chunk."""
        del content, lead, buffer, position, stop
        return b""

    @abstractmethod
    def _make_request(self, content: Content) -> Request: ...

    def _most_gathered_bytes(self) -> int:
        """Return the longest payload of a frame other than a body."""
        return min(self.most_payload_bytes, MAX_GATHERED_BYTES)

    def _goes_on(self, content: Content, frames: Piece) -> None:  # noqa: B027 - for publishes only
        """Take note that a content begins to be written. A gathered one, with its frames, may get ``marked``."""

    def _refuse(self, content: Content) -> None:  # noqa: B027 - for publishes only
        """Answer a content that is refused."""

    def _make_line(self, lane: Lane, content: Content) -> Line:
        assert content.key is not None  # noqa: S101 - it waits for others with the same
        return Line(lane, content.key, self._stages.begin(lane.channel, str(content.resources[0])))

    def _is_behind(self, line: Line) -> bool:
        """Say whether more has to be written before more of a line is asked about."""
        del line
        return False

    def _go_after(self, line: Line, content: Content) -> None:
        self._let_go(line.lane, content)

    def _expire(self, line: Line, content: Content) -> None:  # noqa: B027 - for publishes only
        """Drop a content whose TTL is over."""

    def _forget_aside(self, line: Line) -> None:  # noqa: B027 - for publishes only
        """Forget the undecided contents of a line in the spool."""

    # --- Reading ----------------------------------------------------------------------------------

    def feed(self, chunk: memoryview) -> Sequence[Request]:
        """Read one chunk. Return the requests to decide. ``pass_on`` must follow before the next chunk."""
        self._in_hand = True
        self._special = False
        self.left_bytes = 0
        self._steps = 0
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
        size, position = len(chunk), 0
        begun, end = self._begun, _FRAME_END
        if self._frame_left_bytes:
            position = self._continue_body(chunk)
        elif self._beginning:
            position = self._continue_frame(chunk)
        while size - position >= _PREFIX_BYTES:
            kind, number, length = _prefix_at(chunk, position)
            stop = position + length + _FRAME_BYTES
            if number > self.last_channel:
                raise self._no_channel(number)
            if kind == _BODY:
                self._take_body(chunk, position, stop, number)
            elif stop > size:
                self._check(kind, length)
                break
            elif chunk[stop - 1] != end:
                raise self._bad_end(chunk[stop - 1])
            else:
                self._take_frame(chunk, position, stop, kind, number)
            self.frames += 1
            self._steps += 1
            position = stop
            if len(begun) >= MAX_CONTENTS or self._steps >= MAX_STEPS:
                self.left_bytes = max(0, size - position)
                return
        if position < size:
            self._beginning += chunk[position:]

    def _continue_frame(self, chunk: memoryview) -> int:
        """Continue the frame that earlier chunks began. Return where it ends, or the chunk's end."""
        beginning = self._beginning
        position = 0
        if len(beginning) < _PREFIX_BYTES:
            position = min(_PREFIX_BYTES - len(beginning), len(chunk))
            beginning += chunk[:position]
            if len(beginning) < _PREFIX_BYTES:
                return position
        kind, number, length = _prefix_at(beginning)
        if number > self.last_channel:
            raise self._no_channel(number)
        if kind == _BODY:
            lead = memoryview(bytes(beginning))
            beginning.clear()
            self._take_body(lead, 0, length + _FRAME_BYTES, number)
            self.frames += 1
            return position + self._continue_body(chunk[position:], chunk, position)
        self._check(kind, length)
        stop: int = position + length + _FRAME_BYTES - len(beginning)
        if stop > len(chunk):
            beginning += chunk[position:]
            return len(chunk)
        beginning += chunk[position:stop]
        lead = memoryview(bytes(beginning))
        beginning.clear()
        if lead[-1] != _FRAME_END:
            raise self._bad_end(lead[-1])
        self._take_frame(lead, 0, len(lead), kind, number)
        self.frames += 1
        self._special = True
        return stop

    def _check(self, kind: int, length: int) -> None:
        if kind not in wire.FRAME_TYPES:
            raise self._stop(wire.FRAME_ERROR, f"a frame of the unknown type {kind}")
        most = self._most_gathered_bytes()
        if length > most:
            raise self._too_long(length, most)

    def _stop(self, code: int, what: str) -> Close:
        self.code = code
        self.close = Close("bad_frame", f"the {self.peer} sent {what}")
        return self.close

    def _too_long(self, length: int, most: int) -> Close:
        return self._stop(wire.FRAME_ERROR, f"a frame of {length + _FRAME_BYTES} bytes, {most + _FRAME_BYTES} may be")

    def _bad_end(self, octet: int) -> Close:
        return self._stop(wire.FRAME_ERROR, f"a frame that ends in {octet:#04x} and not in {_FRAME_END:#04x}")

    def _no_channel(self, number: int) -> Close:
        if not self.last_channel:
            return self._stop(wire.COMMAND_INVALID, f"a frame of channel {number} before the connection was open")
        return self._stop(wire.CHANNEL_ERROR, f"a frame of channel {number}, {self.last_channel} is the last one")

    def _unexpected(self, what: str, number: int) -> Close:
        return self._stop(wire.UNEXPECTED_FRAME, f"{what} on channel {number}")

    def _take_frame(self, buffer: memoryview, position: int, stop: int, kind: int, number: int) -> None:
        length = stop - position - _FRAME_BYTES
        if length > self.most_payload_bytes:
            self._check(kind, length)
        if kind == _METHOD:
            if length < 4:
                raise self._stop(wire.FRAME_ERROR, f"a method frame with a payload of {length} bytes")
            lane = self._lanes.get(number)
            if lane is not None and lane.content is not None and not lane.content.done:
                if not lane.channel.dead:
                    raise self._unexpected("a method inside a content", number)
                self._take_lead(lane.content)
                lane.content = None
            self._take_method(_method_at(buffer, position + _PREFIX_BYTES)[0], buffer, position, stop, number)
        elif kind == _HEADER:
            self._take_header(buffer, position, stop, number)
        else:
            self._check(kind, length)
            self._pass(buffer, position, stop, None)

    def _take_header(self, buffer: memoryview, position: int, stop: int, number: int) -> None:
        lane = self._lanes.get(number)
        content = None if lane is None else lane.content
        if content is None or content.done or content.left_bytes >= 0:
            if lane is None and not self.finished:
                self._pass(buffer, position, stop, None)
                return
            if lane is None or lane.channel.dead:
                self._special = True
                return
            raise self._unexpected("a content header without its method", number)
        class_id, body_bytes, keys, fields = wire.read_content_header(
            buffer, position + _PREFIX_BYTES, stop - 1, copies=self.reads_copies
        )
        if class_id != wire.BASIC:
            raise self._unexpected(f"a content header of class {class_id}", number)
        content.left_bytes = body_bytes
        content.done = not body_bytes
        if content.gathers:
            content.gathers = content.fate == NEW and not keys and self._still_gathers(content)
            if content.gathers:
                self._gather(content, buffer, position, stop)
                return
        lead = self._take_lead(content)
        restored = self._restore(content, lead, buffer, position, stop)
        if lead:
            self._pass(lead, 0, len(lead), content)
            self._special = True
        if restored:
            self._pass(restored, 0, len(restored), content)
            self._special = True
        else:
            self._pass(buffer, position, stop, content)
        self._begin_content(content, keys, len(restored) or stop - position, fields)

    def _begin_content(self, content: Content, keys: list[bytes], header_bytes: int, fields: int) -> None:
        """Take a content once its header has arrived, or all of it if it is gathered."""
        if content.fate != NEW:
            self._special = True
            return
        body_bytes = content.left_bytes
        if body_bytes > self.most_body_bytes:
            body_bytes = 0
        bodies = -(-body_bytes // self.most_payload_bytes)
        content.size_bytes += header_bytes + body_bytes + bodies * _FRAME_BYTES
        self._begun.append(content)
        self._steps += fields + _STEPS_OF_KEY * len(keys)
        asks = self._limit(content, keys)
        if content.resources:
            if asks:
                self._requests.append(self._make_request(content))
            else:
                content.verdict = LATER
                self._special = True

    def _take_body(self, buffer: memoryview, position: int, stop: int, number: int) -> None:
        lane = self._lanes.get(number)
        content = None if lane is None else lane.content
        length = stop - position - _FRAME_BYTES
        if length > self.most_payload_bytes:
            raise self._too_long(length, self.most_payload_bytes)
        if content is None or content.done or length > content.left_bytes:
            if lane is not None and not lane.channel.dead:
                raise self._unexpected("a body that no content header announced", number)
            # The broker answers it if the channel is not open, and ignores it if it has closed the channel.
            content = Content(self._nowhere)
            content.fate = PASSING if lane is None and not self.finished else DROPPED
            content.left_bytes = length
        content.left_bytes -= length
        size = len(buffer)
        if stop <= size:
            if buffer[stop - 1] != _FRAME_END:
                raise self._bad_end(buffer[stop - 1])
            content.done = not content.left_bytes
        else:
            self._frame_left_bytes = stop - size
            self._frame_owner = content
        if content.gathers:
            self._gather(content, buffer, position, min(stop, size))
            return
        self._pass(buffer, position, min(stop, size), content)
        if content.fate > PASSING:
            self._special = True

    def _continue_body(self, chunk: memoryview, buffer: memoryview | None = None, offset: int = 0) -> int:
        """Continue a body frame at the beginning of a chunk, which is ``buffer`` from ``offset`` on. Return its end."""
        content = self._frame_owner
        assert content is not None  # noqa: S101 - whose bytes are left
        count = min(self._frame_left_bytes, len(chunk))
        self._frame_left_bytes -= count
        if not self._frame_left_bytes:
            if chunk[count - 1] != _FRAME_END:
                raise self._bad_end(chunk[count - 1])
            content.done = not content.left_bytes
            self._frame_owner = None
        if content.gathers:
            self._gather(content, chunk, 0, count)
            return count
        self._pass(chunk if buffer is None else buffer, offset, offset + count, content)
        if content.fate > PASSING or buffer is not None:
            self._special = True
        return count

    def _pass(self, buffer: Buffer, start: int, stop: int, owner: Content | Method | None) -> None:
        """Add bytes to be forwarded unless their owner waits or is dropped."""
        pieces = self._pieces
        if pieces:
            last = pieces[-1]
            if last[3] is owner and last[2] == start and last[0] is buffer:
                pieces[-1] = (buffer, last[1], stop, owner)
                return
        pieces.append((buffer, start, stop, owner))

    def _replace(self, buffer: Buffer, position: int, stop: int, payload: bytes) -> None:
        frame = b"".join((buffer[position : position + _PREFIX_BYTES], payload, buffer[stop - 1 : stop]))
        self._special = True
        self._pass(frame, 0, len(frame), None)

    def _open_content(self, content: Content, buffer: Buffer, position: int, stop: int) -> None:
        lane = content.lane
        lane.content = content
        content.size_bytes = stop - position
        self._begun_only[content] = None
        if lane.channel.dead or self.finished:
            content.fate = DROPPED
            self._special = True
            content.gathers = False
        if content.gathers:
            self._gather(content, buffer, position, stop)
            return
        self._pass(buffer, position, stop, content)

    def _gather(self, content: Content, buffer: Buffer, position: int, stop: int) -> None:
        """Collect a content that is forwarded as a whole. It begins once it is complete."""
        self._memory.take(stop - position + (0 if content.data else OBJECT_BYTES))
        self._special = True
        if isinstance(content.data, bytearray):
            content.data += buffer[position:stop]
        else:
            content.data = bytearray(buffer[position:stop])
        if not content.done:
            return
        lead = self._take_lead(content)
        content.size_bytes = len(lead)
        self._pass(lead, 0, len(lead), content)
        self._begin_content(content, [], 0, 0)

    def _take_lead(self, content: Content) -> Buffer:
        """Return what was kept of a content that had only begun, and forget it."""
        if content not in self._begun_only:
            return b""
        del self._begun_only[content]
        lead, content.data = bytes(content.data), b""
        if lead:
            self._memory.give_back(len(lead) + OBJECT_BYTES)
        return lead

    def part(self) -> None:
        self._lanes.clear()
        self._begun_only.clear()
        self._pieces, self._begun, self._requests = [], [], []
        self._frame_owner = None
        self._beginning.clear()
        self._nowhere.channel.part()
        del self._owner

    # --- For the driver ---------------------------------------------------------------------------

    def takes_turns(self) -> bool:
        return self._steps > _MANY_STEPS

    def held_back(self) -> int:
        """Return the length of an incomplete frame; 0 if it is too long to be read again."""
        count = len(self._beginning)
        return count if count <= MAX_TAKEN_BACK_BYTES else 0

    def take_back(self) -> bytes:
        if not self.held_back():
            return b""
        beginning = bytes(self._beginning)
        self._beginning.clear()
        return beginning

    def between_frames(self) -> bool:
        """Say whether there is neither a part of a frame nor an undecided chunk."""
        return not self._beginning and not self._frame_left_bytes and not self._in_hand and not self.left_bytes

    def unfinished(self) -> list[Content]:
        contents = (lane.content for lane in self._lanes.values())
        return [content for content in contents if content is not None and not content.done]

    def between_contents(self) -> bool:
        return self.between_frames() and not self.unfinished()

    def missing_bytes(self) -> int:
        """Return how many bytes certainly belong to the current frame, or to the next prefix."""
        if self._frame_left_bytes:
            return self._frame_left_bytes
        beginning = self._beginning
        if len(beginning) < _PREFIX_BYTES:
            return _PREFIX_BYTES - len(beginning)
        length: int = _prefix_at(beginning)[2]
        return max(1, length + _FRAME_BYTES - len(beginning))

    # --- Lending to the compiled part -------------------------------------------------------------

    def is_plain(self) -> bool:
        """Say whether nothing waits but the ends of contents that pass."""
        if (
            self.waiting
            or self.out
            or self._ready
            or self._begun_only
            or len(self._beginning) > MAX_TAKEN_BACK_BYTES
            or self.left_bytes
            or self._in_hand
            or self.charges
            or self.finished
            or self.close is not None
        ):
            return False
        unfinished, owner = self.unfinished(), self._frame_owner
        return all(content.fate == PASSING for content in unfinished) and (owner is None or owner in unfinished)

    def lend(self) -> tuple[dict[int, int], tuple[int, int] | None]:
        """Give away the incomplete contents: what is to come of each, by channel, and of the frame in hand."""
        unfinished = self.unfinished()
        for content in unfinished:
            content.lane.content = content.lane.writing = None
        owner, self._frame_owner = self._frame_owner, None
        cut = None if owner is None else (owner.lane.channel.number, self._frame_left_bytes)
        self._frame_left_bytes = 0
        return {each.lane.channel.number: each.left_bytes for each in unfinished if each.left_bytes}, cut

    def returned(self, rests: Mapping[int, int], cut: tuple[int, int] | None, dropped: Container[int] = ()) -> None:
        """Take the incomplete contents back."""
        for number in rests if cut is None else {*rests, cut[0]}:
            lane = self._lanes[number]
            content = lane.content = Content(lane, left_bytes=rests.get(number, 0), fate=PASSING)
            if number in dropped:
                content.fate = DROPPED
            else:
                lane.writing = content
            if cut is not None and number == cut[0]:
                self._frame_owner, self._frame_left_bytes = content, cut[1]

    # --- Forwarding a chunk -----------------------------------------------------------------------

    def pass_on(self, batch: Batch | None) -> None:
        if batch is not None:
            for index, verdict in batch.verdicts.items():
                self._take_verdict(batch.requests[index], verdict)
        pieces, begun = self._pieces, self._begun
        if self._special or self._ready or self.waiting or self._begun_only:
            self._walk()
        elif pieces:
            for content in begun:
                content.fate = PASSING
                content.lane.writing = content
                self._goes_on(content, b"")
            buffer, start = pieces[0][:2]
            self.out.append(buffer[start : pieces[-1][2]])
        self._pieces, self._begun = [], []
        self._in_hand = False
        self.flush()

    def _walk(self) -> None:
        out = self.out
        run: Buffer = b""
        run_start = run_stop = 0
        for piece in self._pieces:
            buffer, start, stop, owner = piece
            if owner is not None:
                lane = owner.lane
                # This may make something ready that goes before the method.
                goes = not isinstance(owner, Method) or self._method_goes(owner, buffer, start, stop)
                if lane.ready and lane.writing is not owner:
                    if run_stop > run_start:
                        out.append(run[run_start:run_stop])
                        run_start = run_stop = 0
                    self._flush(lane, owner)
                if not goes or (isinstance(owner, Content) and not self._content_goes(owner, buffer, start, stop)):
                    continue
                if isinstance(owner, Content) and owner.marked:
                    buffer, start, stop, owner.marked = owner.marked, 0, len(owner.marked), b""
            if run is buffer and run_stop == start:
                run_stop = stop
            else:
                if run_stop > run_start:
                    out.append(run[run_start:run_stop])
                run, run_start, run_stop = buffer, start, stop
        if run_stop > run_start:
            out.append(run[run_start:run_stop])

    def _method_goes(self, owner: Method, buffer: Buffer, start: int, stop: int) -> bool:
        """Say whether methods are forwarded now. Otherwise let them wait."""
        lane = owner.lane
        if not lane.after and (owner.waits != BARRIER or not lane.lines):
            return True
        self._set_aside(owner, bytes(buffer[start:stop]))
        return False

    def _content_goes(self, content: Content, buffer: Buffer, start: int, stop: int) -> bool:
        """Say whether bytes of a content are forwarded now. Otherwise drop them, or copy them if it waits."""
        fate = content.fate
        if fate == NEW:
            if content.left_bytes < 0:
                if content in self._begun_only:
                    content.data = bytes(buffer[start:stop])
                    self._memory.take(content.waiting_bytes())
                return False
            fate = content.fate = self._fate(content)
            if fate == PASSING:
                content.lane.writing = content
                self._goes_on(content, buffer[start:stop] if content.gathers else b"")
            elif fate == WAITING:
                self._wait(content, bytearray(buffer[start:stop]))
            return fate == PASSING
        if fate == WAITING:
            data = content.data
            assert isinstance(data, bytearray)  # noqa: S101 - as _wait made it
            data += buffer[start:stop]
            self._memory.take(stop - start)
            if content.done:
                line = content.lane.line_of(content)
                if line is not None and line.spools:
                    self._unsettled[line] = None
        return fate == PASSING

    def _fate(self, content: Content) -> int:
        lane = content.lane
        goes = content.verdict == GRANTED and not lane.after and content.key not in lane.lines
        if goes or content.key is None:
            return PASSING
        if lane.channel.dead or content.verdict == REFUSED:
            self._drop(content)
            return DROPPED
        return WAITING

    def end(self) -> None:
        # It may belong to what waits, and would be misread without that.
        waits = self.waiting > 0 or bool(self._begun_only)
        self.forget_all()
        if self._beginning and not waits and self.at_boundary():
            self.out.append(bytes(self._beginning))
            self._beginning.clear()

    # --- What begins to wait ----------------------------------------------------------------------

    def _take_verdict(self, request: Request, verdict: Verdict) -> None:
        content = request.handle
        if not isinstance(content, Content) or isinstance(verdict, Shadow):
            return
        self._special = True
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
        elif content.verdict == REFUSED and not content.lane.channel.dead:
            self.refused += 1
            self._refuse(content)
        content.verdict = REFUSED

    def _set_aside(self, owner: Method, methods: bytes) -> None:
        owner.lane.after.append((methods, owner.waits))
        self.waiting += 1
        self._memory.take(len(methods) + OBJECT_BYTES)

    def _set_aside_no_more(self, methods: bytes) -> None:
        self.waiting -= 1
        self._memory.give_back(len(methods) + OBJECT_BYTES)

    def _wait(self, content: Content, data: bytearray) -> None:
        content.data = data
        content.since_ns = self._stages.now_ns
        self.waiting += 1
        self._memory.take(content.waiting_bytes())
        lane = content.lane
        if lane.after:
            lane.after.append(content)
        else:
            self._join(content)

    def _join(self, content: Content) -> None:
        lane, key = content.lane, content.key
        assert key is not None  # noqa: S101 - it waits for others with the same
        line = lane.lines.get(key)
        if line is None:
            line = lane.lines[key] = self._make_line(lane, content)
        line.append(content)
        if line.spools:
            self._unsettled[line] = None
        if line.contents and line.contents[0] is content and content.verdict == LATER:
            self.let_ask(line)

    def asks(self) -> bool:
        return bool(self._askable)

    def let_ask(self, line: Line) -> None:
        if not self._askable:
            self._context.wake()
        self._askable[line] = None

    def written(self) -> None:
        behind, self._behind = self._behind, {}
        for line in behind:
            self.let_ask(line)

    def _waits_no_more(self, content: Content) -> Piece:
        """Release a waiting content. Return its bytes."""
        self.waiting -= 1
        self._memory.give_back(content.waiting_bytes())
        data, content.data = content.data, b""
        content.request = None
        return data

    def waiting_since(self) -> Iterator[tuple[Resource, int]]:
        """Yield resource and start time of the first content of each line, and of contents behind a method."""
        for lane in self._lanes.values():
            fronts = [line.contents[0] for line in lane.lines.values() if line.contents]
            for content in (*fronts, *lane.after):
                if isinstance(content, Content) and content.resources:
                    yield content.resources[0], content.since_ns

    # --- Deciding later ---------------------------------------------------------------------------

    def ask(self) -> list[Request]:
        """Return requests for undecided contents that are first in their lines now."""
        self.again_ns = None
        requests: list[Request] = []
        ended = 0
        for line in list(self._askable):
            if len(requests) >= MAX_ASKED or ended >= MAX_ENDED:
                break
            if line not in self._askable:
                continue
            del self._askable[line]
            if self._is_behind(line):
                self._behind[line] = None
                continue
            of_line = line.refill(self._stages.now_ns)
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
        lines: dict[Line, bool] = {}  # whether one of them waits on
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
                if content.spools and content.verdict != REFUSED:
                    line.spool()
            if content.verdict == REFUSED:
                self._leave_out(line, content)
        for line, waits in lines.items():
            line.asked(waits=waits)
            head = line.contents[0] if line.contents else None
            if head is not None and head.verdict == LATER:
                # The handler answered Later though nothing is in front: ask again soon.
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
        self._waits_no_more(content)
        self._drop(content)

    def resolved(self, request: Request, refuse: Refuse | None) -> None:
        content = request.handle
        if not isinstance(content, Content) or content.request is not request:
            return
        content.request = None
        line = content.lane.line_of(content)
        if refuse is None:
            content.verdict = GRANTED
        else:
            content.verdict = REFUSED
            self._leave_out(line, content)
        if line is not None:
            self._advance(line)
        self.flush()

    def _advance(self, line: Line) -> None:
        """Forward the first contents of a line as far as they are decided."""
        lane = line.lane
        if lane.shut:
            return
        while line.advance():
            head = line.contents[0]
            if head.verdict == GRANTED:
                if line.has_expired(head, self._stages.now_ns):
                    self._expire(line, head)
                elif line.bring(head):
                    self._go_after(line, head)
                else:
                    return
            elif head.verdict != REFUSED:
                break
            line.contents.popleft()
        if line.contents or line.aside:
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

    def _advance_after(self, lane: Lane) -> None:
        """Forward what waited for the lines to be empty, up to the next barrier."""
        after = lane.after
        while after and not lane.shut:
            item = after[0]
            if isinstance(item, Content):
                after.popleft()
                if item.verdict == REFUSED:
                    continue
                if item.verdict == GRANTED and item.key not in lane.lines:
                    self._let_go(lane, item)
                else:
                    self._join(item)
            elif item[1] == BARRIER and lane.lines:
                break
            else:
                after.popleft()
                self._let_go(lane, item[0])
                self._set_aside_no_more(item[0])

    def _send_again(self, content: Content, frames: bytes) -> None:
        content.left_bytes, content.done, content.fate = 0, True, WAITING
        content.data = frames
        self.waiting += 1
        self._memory.take(content.waiting_bytes())
        self._let_go(content.lane, content)

    def _let_go(self, lane: Lane, item: Content | bytes) -> None:
        lane.ready.append(item)
        self._ready[lane] = None

    # --- Writing out of order ---------------------------------------------------------------------

    def insert(self, lane: Lane | None, frame: bytes) -> bool:
        """Queue a frame of Sluice's own; False if it is for channel 0 (``lane`` None) and cannot be written now."""
        if lane is None:
            if not self.at_boundary():
                return False
            self.out.append(frame)
        else:
            self._let_go(lane, frame)
            self.flush()
        self.own_bytes += len(frame)
        return True

    def at_boundary(self) -> bool:
        """Say whether the output is between two frames."""
        owner = self._frame_owner
        return not self._in_hand and (owner is None or owner.fate != PASSING)

    def can_stop(self) -> bool:
        """Say whether reading can pause: nothing that waits needs more input."""
        if not self.at_boundary():
            return False
        return self._memory.is_overfull() or (self.waiting > 0 and not self._ready)

    def flush(self) -> None:
        if self._unsettled and not self._in_hand:
            for line in self._unsettled:
                line.settle()
            self._unsettled.clear()
        if not self._ready:
            return
        for lane in list(self._ready):
            if not self.at_boundary():
                return
            self._flush(lane, None)

    def _flush(self, lane: Lane, owner: Content | Method | None) -> None:
        """Write what is ready of a lane, up to an incomplete content, or to the owner of the current piece."""
        if lane.writing is not None and not lane.writing.done:
            return
        ready = lane.ready
        while ready:
            item = ready.popleft()
            if not isinstance(item, Content):
                self.out.append(item)
                continue
            if item.fate != WAITING:
                continue
            data = self._waits_no_more(item)
            item.fate = PASSING
            lane.writing = item
            self._goes_on(item, data if item.gathers else b"")
            self.out.append(memoryview(item.marked or data))
            item.marked = b""
            if item is owner or not item.done:
                break
        if not ready:
            self._ready.pop(lane, None)

    # --- Ends -------------------------------------------------------------------------------------

    def give_up(self, lane: Lane, *, methods: bool = True) -> None:
        """Forget the contents that wait in a lane, and the methods unless those are to be forwarded."""
        lines, lane.lines = lane.lines, {}
        for line in lines.values():
            for content in line.in_memory():
                self._forget(content)
            self._forget_aside(line)
            self._end_line(line)
        waiting = [*lane.ready, *lane.after]
        lane.after.clear()
        lane.ready.clear()
        self._ready.pop(lane, None)
        for item in waiting:
            if isinstance(item, Content):
                self._forget(item)
            elif isinstance(item, tuple):
                self._set_aside_no_more(item[0])
                if not methods:
                    self._let_go(lane, item[0])
            elif not methods:
                self._let_go(lane, item)
        self._special = True  # contents of the current chunk that would have to wait are dropped once it is decided

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
                self._take_lead(lane.content)

    def _forget(self, content: Content) -> None:
        if content.fate != WAITING:
            return
        if content.request is not None:
            self._give_up((content.request,))
        elif content.verdict == LATER:
            self._context.lose((self._make_request(content),))
        self._waits_no_more(content)
        content.fate, content.verdict = DROPPED, REFUSED

    def forget_incomplete(self, *, refusable: bool) -> None:
        """Forget the incomplete contents at the end of the stream, and with ``refusable`` those that can be refused."""
        for lane in self._lanes.values():
            writing = lane.writing
            if writing is not None and not writing.done:
                # Nothing of this channel can follow it.
                self.give_up(lane)
                continue
            waiting = [content for line in lane.lines.values() for content in line.in_memory()]
            waiting += [item for item in (*lane.after, *lane.ready) if isinstance(item, Content)]
            for content in waiting:
                if not content.done or (refusable and content.number):
                    self._forget(content)
            for line in list(lane.lines.values()):
                if refusable and line.is_refusable:
                    self._forget_aside(line)
                self._advance(line)
        if not self.at_boundary():
            self.give_up_all()
        self.flush()

    def keeps(self) -> bool:
        return bool(self.waiting or self._ready)

    def forget_all(self) -> None:
        self._give_up = lambda _: None
        self.give_up_all()
        for content in list(self._begun_only):
            self._take_lead(content)

    def ready_bytes(self) -> int:
        """Return the bytes of copies that could be written at a boundary."""
        return sum(len(item.data) for lane in self._ready for item in lane.ready if isinstance(item, Content))

    def take(self) -> list[Buffer]:
        out = self.out
        if out:
            self.out = []
        if self.own_bytes:
            self.own_bytes = sum(
                len(item) for lane in self._ready for item in lane.ready if not isinstance(item, Content)
            )
        return out
