"""Cuts one peer's stream into frames and contents; what becomes of them is for ``waiting`` and ``stream``.

Only a method or header frame that is not complete is held back, as a copy. Bodies are not: what has come of one is a
piece of its content like any other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.deciding.batch import Request
from proxy.protocols.amqp.names import Names
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.about import AboutClient
from proxy.protocols.amqp091.channel import DROPPED, LATER, NEW, PASSING, Channel, Content, Lane, Method
from proxy.protocols.amqp091.scanning import Gathered, Native, Scanned
from proxy.protocols.amqp091.stages import Stages
from proxy.protocols.amqp091.takers import Takers
from proxy.protocols.amqp091.wire import Malformed
from proxy.protocols.base import Buffer, Close, nobody_waits
from proxy.spool.spool import Spool

#: After so many contents or steps the rest of a chunk is left for later: some milliseconds.
MAX_CONTENTS: Final = 64
MAX_STEPS: Final = 512
#: A chunk of so many steps takes so little that larger ones keep nobody waiting; one of more than the other number
#: takes long.
_FEW_STEPS: Final = 64
_MANY_STEPS: Final = 127
#: A routing key in CC or BCC is named, and has limits of its own.
_STEPS_OF_KEY: Final = 4
#: The longest method or header frame that is gathered, whatever the peers have agreed on. Bodies are not gathered.
MAX_GATHERED_BYTES: Final = 1024 * 1024
#: The same for the broker, which sends such frames as long as they are, whatever frame_max says: the header of a dead
#: letter, for example, is longer than its publisher's was.
MAX_GATHERED_OF_BROKER_BYTES: Final = 16 * MAX_GATHERED_BYTES
#: A frame's beginning that is longer is not read once more with the next chunk.
MAX_TAKEN_BACK_BYTES: Final = 4096
#: A body that says to be longer counts as none: it never comes.
MAX_BODY_BYTES: Final = 1 << 40
#: Likewise from clients, unless the options say otherwise: RabbitMQ closes the channel of one that announces more.
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024
#: Numbers of channels have two bytes.
MAX_CHANNEL: Final = 65535

_METHOD: Final = wire.METHOD
_HEADER: Final = wire.HEADER
_BODY: Final = wire.BODY
_PREFIX_BYTES: Final = wire.PREFIX_BYTES
_FRAME_BYTES: Final = wire.FRAME_BYTES
_FRAME_END: Final = wire.FRAME_END
_prefix_at = wire.prefix_at
_method_at = wire.method_at


@dataclass(frozen=True, slots=True)
class Shared:
    """What the two streams of a connection have in common.

    Attributes:
        give_up: drops the tickets of held requests.
        lose: counts requests that were never decided.
        wake: asks for a call of ``Waiting.ask``.
        names: of what requests are charged to.
        about: what the client says of itself, and what both peers agree on.
        channels: those that are open, by their numbers.
        native: what the compiled part knows of them, if it reads them.
        max_message_bytes: of the options.
        stages: where messages wait.
        spool: where what waits can be put aside, if there is one.
        listener: that accepted the connection.
        pass_on: drops the tickets of held requests that go on all the same.
        takers: the consumers.
    """

    give_up: Callable[[Sequence[Request]], None]
    lose: Callable[[Sequence[Request]], None]
    wake: Callable[[], None]
    takers: Takers
    names: Names = field(default_factory=Names)
    about: AboutClient = field(default_factory=AboutClient)
    channels: dict[int, Channel] = field(default_factory=dict)
    native: Native | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES
    stages: Stages = field(default_factory=Stages)
    spool: Spool | None = None
    listener: str = ""
    pass_on: Callable[[Sequence[Request]], None] = nobody_waits


class Reading(ABC):
    """One peer's stream, as it is read.

    Attributes:
        frames: whole frames seen so far, or the beginnings of bodies that are still coming.
        close: set when the last chunk ended in something that is no frame; what came before it still goes on.
        code: what to say of that in a connection.close.
        left_bytes: at the end of the last chunk that are to come again.
        most_payload_bytes: of one frame.
        most_body_bytes: a longer body is not charged.
        finished: its peer has said its last word, or the other one has; contents that come now are dropped.
        last_channel: the greatest number of a channel that may be used.
    """

    #: Who sends it, for people to read.
    peer: str
    #: What its contents say of other routing keys matters.
    reads_copies = True

    def __init__(self) -> None:
        self.frames = 0
        self.close: Close | None = None
        self.code = wire.FRAME_ERROR
        self.left_bytes = 0
        self.most_payload_bytes = wire.DEFAULT_FRAME_MAX - _FRAME_BYTES
        self.most_body_bytes = MAX_BODY_BYTES
        self.finished = False
        self.last_channel = MAX_CHANNEL
        #: Of the channels that are open; and of all others.
        self._lanes: dict[int, Lane] = {}
        self._nowhere = Channel(0).to_broker
        #: A frame that is not complete, and which bytes of a body frame are still to come and whose they are.
        self._beginning = bytearray()
        self._frame_left_bytes = 0
        self._frame_owner: Content | None = None
        #: Contents of which only the method has come.
        self._begun_only: dict[Content, None] = {}
        #: Frames of the last chunk that were read one by one, fields of headers, and what else takes as long.
        self._steps = 0
        # About the chunk in hand.
        self._in_hand = False
        #: Its bytes in order: where they are, from, to and whose they are; those of nobody go on whatever happens.
        self._pieces: list[tuple[Buffer, int, int, Content | Method | Scanned | None]] = []
        #: The contents whose headers came in it, some of them scanned, and the requests that some of them are.
        self._begun: list[Content | Scanned] = []
        self._requests = Gathered()
        #: It does not go on as one slice, whatever the verdicts.
        self._special = False

    # --- What the two directions do differently ---------------------------------------------------

    @abstractmethod
    def _take_method(self, method: int, buffer: Buffer, position: int, stop: int, number: int) -> None:
        """Take a method frame, with one of the ``_pass`` methods or ``_open_content``.

        Args:
            method: class and method.
            buffer: what it is in.
            position: where it begins.
            stop: where it ends.
            number: its channel's.
        """

    @abstractmethod
    def _limit(self, content: Content, keys: list[bytes]) -> bool:
        """Take a content whose header has come; say whether to ask about it now if it is limited.

        Args:
            content: its resources and its number are to be set, as far as it has some.
            keys: the other routing keys that its header names.
        """

    def _still_gathers(self, content: Content) -> bool:
        """Say whether a content that is to go on as a whole still is, now that its header has come."""
        del content
        return False

    def _restore(self, content: Content, lead: Buffer, buffer: Buffer, position: int, stop: int) -> bytes:
        """Return the header frame that goes on instead of a content's; empty if that goes as it is.

        Args:
            content: the content.
            lead: its method, if that came in an earlier chunk.
            buffer: what the header is in.
            position: where it begins.
            stop: where it ends.
        """
        del content, lead, buffer, position, stop
        return b""

    @abstractmethod
    def _make_request(self, content: Content) -> Request:
        """Make a request of a content that is limited."""

    def _most_gathered_bytes(self) -> int:
        """Return how long the payload of a frame may be that is not a body."""
        return min(self.most_payload_bytes, MAX_GATHERED_BYTES)

    def _scan(self, chunk: memoryview, position: int) -> int:
        """Take what the compiled part reads from a position on; return where it ends, which may be beyond the chunk."""
        del chunk
        return position

    # --- Reading ----------------------------------------------------------------------------------

    def feed(self, chunk: memoryview) -> Sequence[Request]:
        """Read the frames of one chunk; ``pass_on`` must follow before the next chunk.

        Returns:
            The requests that can be decided now.
        """
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
        requests, self._requests = self._requests, Gathered()
        return requests.simplest()

    def _cut(self, chunk: memoryview) -> None:
        size, position = len(chunk), 0
        begun, end = self._begun, _FRAME_END
        if self._frame_left_bytes:
            position = self._continue_body(chunk)
        elif self._beginning:
            position = self._continue_frame(chunk)
        while size - position >= _PREFIX_BYTES:
            taken = self._scan(chunk, position)
            if taken > position:
                position = taken
                if self.left_bytes:
                    return
                continue
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
        """Complete the frame that earlier chunks began, if this one does; return where it ends, or the chunk's end."""
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
            # It streams from here on, its prefix first.
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
        """Check a frame that is not complete."""
        if kind not in wire.FRAME_TYPES:
            raise self._stop(wire.FRAME_ERROR, f"a frame of the unknown type {kind}")
        most = self._most_gathered_bytes()
        if length > most:
            raise self._too_long(length, most)

    def _stop(self, code: int, what: str) -> Close:
        """Be done with the stream; the code is what a connection.close says of it."""
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
        """Take a whole frame that is no body."""
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
        """Take a content of which the header has come, or all of it if it is gathered."""
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
        """Take a body frame, or as much as there is of it."""
        lane = self._lanes.get(number)
        content = None if lane is None else lane.content
        length = stop - position - _FRAME_BYTES
        if length > self.most_payload_bytes:
            raise self._too_long(length, self.most_payload_bytes)
        if content is None or content.done or length > content.left_bytes:
            if lane is not None and not lane.channel.dead:
                raise self._unexpected("a body that no content header announced", number)
            # In a channel that is not open the broker answers it; in one that it has closed it looks at nothing.
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
        """Take what a chunk holds of a body frame that streams; return where it ends in it.

        Args:
            chunk: begins with it.
            buffer: what the chunk is the end of, if it is not all of it.
            offset: where it begins in that.
        """
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

    def _pass(self, buffer: Buffer, start: int, stop: int, owner: Content | Method | Scanned | None) -> None:
        """Note bytes that go on, unless their owner has to wait or is dropped."""
        pieces = self._pieces
        if pieces:
            last = pieces[-1]
            if last[3] is owner and last[2] == start and last[0] is buffer:
                pieces[-1] = (buffer, last[1], stop, owner)
                return
        pieces.append((buffer, start, stop, owner))

    def _replace(self, buffer: Buffer, position: int, stop: int, payload: bytes) -> None:
        """Note that a frame goes on with another payload of the same length."""
        frame = b"".join((buffer[position : position + _PREFIX_BYTES], payload, buffer[stop - 1 : stop]))
        self._special = True
        self._pass(frame, 0, len(frame), None)

    def _open_content(self, content: Content, buffer: Buffer, position: int, stop: int) -> None:
        """Take a method that begins a content."""
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
        """Keep what has come of a content that goes on as a whole; once that is there it begins."""
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
        """Return the method of a content of which only that has come, if it was kept; it is no more."""
        if content not in self._begun_only:
            return b""
        del self._begun_only[content]
        lead, content.data = bytes(content.data), b""
        return lead

    def part(self) -> None:
        """Forget all contents and channels: what goes round in circles would stay for long."""
        self._lanes.clear()
        self._begun_only.clear()
        self._pieces, self._begun, self._requests = [], [], Gathered()
        self._frame_owner = None
        self._beginning.clear()
        self._nowhere.channel.part()

    # --- For the driver ---------------------------------------------------------------------------

    def takes_turns(self) -> bool:
        """Say whether the last chunk took long."""
        return self._steps > _MANY_STEPS

    def reads_fast(self) -> bool:
        """Say whether the last chunk was read in few steps."""
        return self._steps <= _FEW_STEPS

    def held_back(self) -> int:
        """Return the length of a frame's beginning; 0 if it is too long to be read once more."""
        count = len(self._beginning)
        return count if count <= MAX_TAKEN_BACK_BYTES else 0

    def take_back(self) -> bytes:
        """Hand out that beginning."""
        if not self.held_back():
            return b""
        beginning = bytes(self._beginning)
        self._beginning.clear()
        return beginning

    def between_frames(self) -> bool:
        """Say whether nothing is in hand: no part of a frame, and no chunk that waits for its verdicts."""
        return not self._beginning and not self._frame_left_bytes and not self._in_hand and not self.left_bytes

    def unfinished(self) -> list[Content]:
        """Return the contents in hand, of which more is to come."""
        contents = (lane.content for lane in self._lanes.values())
        return [content for content in contents if content is not None and not content.done]

    def between_contents(self) -> bool:
        """Say whether no content is in hand, either."""
        return self.between_frames() and not self.unfinished()

    def missing_bytes(self) -> int:
        """Return how many bytes are certain to belong to the frame in hand, or to the next one's prefix."""
        if self._frame_left_bytes:
            return self._frame_left_bytes
        beginning = self._beginning
        if len(beginning) < _PREFIX_BYTES:
            return _PREFIX_BYTES - len(beginning)
        length: int = _prefix_at(beginning)[2]
        return max(1, length + _FRAME_BYTES - len(beginning))
