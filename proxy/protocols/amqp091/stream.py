"""One direction of a connection: bytes to frames and contents.

``feed`` reads a chunk frame by frame, ``pass_on`` forwards them once their contents are decided. Nothing is written in
between. Bodies pass as they come: the verdict on a content covers its remaining frames, which pass, are dropped, or are
added to its copy while it waits. All other frames are gathered, and a method until the header of its content has
arrived.
"""

from abc import abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import Final

from proxy.deciding.batch import Batch, Request, Side
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import (
    DROPPED,
    GRANTED,
    LATER,
    NEW,
    OBJECT_BYTES,
    PASSING,
    REFUSED,
    WAITING,
    Channel,
    Content,
    Lane,
    Method,
)
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.output import Output, Owner, Shared
from proxy.protocols.amqp091.wire import FRAME_BYTES, FRAME_END, PREFIX_BYTES, Malformed
from proxy.protocols.base import Buffer, Close

#: After this many steps the rest of a chunk is left for later: some milliseconds. A frame or a header field is a step.
MAX_STEPS: Final = 256
_STEPS_OF_CONTENT: Final = 5
_STEPS_OF_KEY: Final = 4  # a routing key in CC or BCC has names and limits of its own
#: The longest incomplete method or header frame that is kept, whatever the peers agreed on.
MAX_GATHERED_BYTES: Final = 1024 * 1024
#: The same for the broker, which ignores frame_max for them: a dead letter's header is longer than its publisher's.
MAX_GATHERED_OF_BROKER_BYTES: Final = 16 * MAX_GATHERED_BYTES
MAX_TAKEN_BACK_BYTES: Final = 4096  # a longer beginning of a frame is not read again with the next chunk
MAX_BODY_BYTES: Final = 1 << 40  # a body that is announced longer counts as empty: it never arrives
#: The same for clients, by default: RabbitMQ closes the channel of one that announces more.
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024


class Stream(Output):
    """One peer's stream, on its way to the other peer."""

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        super().__init__(memory, shared, owner)
        self.frames = 0  # complete frames so far, including bodies that have begun
        self.left_bytes = 0  # at the end of the last chunk, to be fed again
        self.most_payload_bytes = wire.DEFAULT_FRAME_MAX - FRAME_BYTES  # of one frame
        self.most_body_bytes = MAX_BODY_BYTES  # a longer body is not charged
        self.finished = False  # a peer has closed the connection; contents that arrive now are dropped
        self.last_channel = wire.MAX_CHANNEL  # the highest channel number that may be used
        self._nowhere = Channel(0).to_broker  # the lane of contents in channels that are not open
        self._beginning = bytearray()  # an incomplete frame; of a body frame the prefix only
        self._steps = 0  # the cost of the last chunk
        self._requests: list[Request] = []
        #: The bytes of the chunk in order, with their owners. Those without an owner are always forwarded.
        self._pieces: list[tuple[Content | Method | None, Buffer]] = []

    # --- What the directions do differently -------------------------------------------------------

    @abstractmethod
    def _take_method(self, method: int, frame: bytes, number: int) -> None:
        """Take a method frame by ``_pass``, ``_pass_method`` or ``_open_content``; ``method`` is class and method."""

    @abstractmethod
    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        """Set a content's resources and number once its header has arrived. Return whether it can be decided now.

        ``keys``: the routing keys in CC and BCC.
        """

    def _is_small(self, content: Content) -> bool:
        """Say, once the header has arrived, whether a content is still to be gathered as a whole."""
        del content
        return False

    def _unmarked(self, content: Content, frame: bytes) -> bytes:
        """Return the header frame to forward."""
        del content
        return frame

    # --- Reading ----------------------------------------------------------------------------------

    def feed(self, chunk: memoryview) -> Sequence[Request]:
        """Read one chunk. Return the requests to decide. ``pass_on`` must follow before the next chunk."""
        self._in_hand = True
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
                what = f"a frame of channel {number} before the connection was open"
                raise self._stop(wire.COMMAND_INVALID, what)
            what = f"a frame of channel {number}, {self.last_channel} is the last one"
            raise self._stop(wire.CHANNEL_ERROR, what)
        if kind not in wire.FRAME_TYPES:
            raise self._stop(wire.FRAME_ERROR, f"a frame of the unknown type {kind}")
        most = self.most_payload_bytes
        if kind != wire.BODY:
            most = min(most, MAX_GATHERED_BYTES) if self.side is Side.CLIENT else MAX_GATHERED_OF_BROKER_BYTES
        if length > most:
            what = f"a frame of {length + FRAME_BYTES} bytes, {most + FRAME_BYTES} may be"
            raise self._stop(wire.FRAME_ERROR, what)
        if kind == wire.BODY:
            self._begin_body(number, length)

    def _stop(self, code: int, what: str) -> Close:
        self.code = code
        self.close = Close("bad_frame", f"the {self.side.value} sent {what}")
        return self.close

    def _check_end(self, octet: int) -> None:
        if octet != FRAME_END:
            raise self._stop(wire.FRAME_ERROR, f"a frame that ends in {octet:#04x} and not in {FRAME_END:#04x}")

    def _unexpected(self, what: str, number: int) -> Close:
        return self._stop(wire.UNEXPECTED_FRAME, f"{what} on channel {number}")

    def _take_frame(self, frame: bytes) -> None:
        self._check_end(frame[-1])
        kind, number, length = wire.prefix_at(frame)
        if kind == wire.METHOD:
            if length < 4:
                raise self._stop(wire.FRAME_ERROR, f"a method frame with a payload of {length} bytes")
            lane = self._lanes.get(number)
            if lane is not None and lane.content is not None and not lane.content.done:
                if not lane.channel.dead:
                    raise self._unexpected("a method inside a content", number)
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
                raise self._unexpected("a content header without its method", number)
            return
        class_id, body_bytes, keys, fields = wire.read_content_header(
            wire.payload(frame), copies=self.side is Side.CLIENT
        )
        if class_id != wire.BASIC:
            raise self._unexpected(f"a content header of class {class_id}", number)
        self._steps += fields + _STEPS_OF_KEY * len(keys) + _STEPS_OF_CONTENT
        content.left_bytes, content.done = body_bytes, not body_bytes
        self._gather(content, self._unmarked(content, frame))
        content.whole = content.whole and content.fate == NEW and not keys and self._is_small(content)
        if content.done or not content.whole:
            self._begin_content(content, keys)

    def _begin_content(self, content: Content, keys: list[bytes]) -> None:
        """Take a content once its header has arrived, or all of it if it is whole."""
        if content.lane.channel.dead or self.finished:
            content.fate = DROPPED
        frames = self._gathered(content)
        self._pass(frames, content)
        if content.fate != NEW:
            return
        body_bytes = content.left_bytes
        if body_bytes > self.most_body_bytes:
            body_bytes = 0
        content.size_bytes = len(frames) + body_bytes + -(-body_bytes // self.most_payload_bytes) * FRAME_BYTES
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
                raise self._unexpected("a body that no content header announced", number)
            # The broker answers it if the channel is not open, and ignores it if it has closed the channel.
            content = Content(self._nowhere, left_bytes=length)
            content.fate = PASSING if lane is None and not self.finished else DROPPED
        content.left_bytes -= length
        self._frame_owner, self._frame_left_bytes = content, length + 1
        prefix = bytes(self._beginning)
        self._beginning.clear()
        self._take_part(content, prefix)
        self.frames += 1
        self._steps += 1

    def _take_body(self, part: memoryview) -> None:
        """Take more of a body frame; the last octet is the frame's end."""
        content = self._frame_owner
        assert content is not None  # noqa: S101 - whose bytes are left
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
        """Add bytes to be forwarded unless their owner waits or is dropped."""
        self._pieces.append((owner, data))

    def _pass_method(self, lane: Lane, frame: bytes, *, barrier: bool) -> None:
        self._pieces.append((Method(lane, frame, barrier), frame))

    def _open_content(self, content: Content, frame: bytes) -> None:
        content.lane.content = content
        content.gathers, content.data = True, bytearray()
        self._memory.take(OBJECT_BYTES)
        self._gather(content, frame)

    def _gather(self, content: Content, data: Buffer) -> None:
        assert isinstance(content.data, bytearray)  # noqa: S101 - as _open_content made it
        content.data += data
        self._memory.take(len(data))

    def part(self) -> None:
        self._lanes.clear()
        self._pieces, self._requests = [], []
        self._frame_owner = None
        self._beginning.clear()
        self._nowhere.channel.part()
        del self._owner

    # --- For the driver ---------------------------------------------------------------------------

    def take_back(self) -> bytes:
        """Hand out the beginning of a frame."""
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
        if len(self._beginning) < PREFIX_BYTES:
            return PREFIX_BYTES - len(self._beginning)
        length: int = wire.prefix_at(self._beginning)[2]
        return length + FRAME_BYTES - len(self._beginning)

    # --- Lending to the compiled part -------------------------------------------------------------

    def is_plain(self) -> bool:
        """Say whether nothing waits but the ends of contents that pass."""
        waits = self.waiting or self.out or self._ready or self.charges or self.left_bytes or self._in_hand
        if waits or len(self._beginning) > MAX_TAKEN_BACK_BYTES or self.finished or self.close is not None:
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
        pieces, self._pieces = self._pieces, []
        for owner, data in pieces:
            if isinstance(owner, Content):
                self._forward(owner, data)
            elif owner is None or self._goes(owner):
                self.out.append(data)
        self._in_hand = False
        self.flush()

    def _goes(self, method: Method) -> bool:
        """Say whether a method is forwarded now. Otherwise let it wait."""
        lane = method.lane
        goes = not lane.after and not (method.barrier and lane.lines)
        if goes:
            self._flush(lane)
        else:
            self._set_aside(method)
        return goes

    def _forward(self, content: Content, data: Buffer) -> None:
        """Forward bytes of a content now, drop them, or copy them if it waits."""
        lane = content.lane
        if lane.writing is not content:
            self._flush(lane, content)
        if content.fate == NEW:
            content.fate = self._fate(content)
            if content.fate == PASSING:
                lane.writing = content
                data = self._begin_writing(content, data)
            elif content.fate == WAITING:
                self._begin_to_wait(content, data)
        elif content.fate == WAITING:
            assert isinstance(content.data, bytearray)  # noqa: S101 - as it was when the wait began
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
