"""One direction of a connection: cuts a peer's bytes into frames, and writes what becomes of them, in order.

``feed`` reads a chunk into pieces, and ``write`` writes it once it is decided. Numbers (credit, transfer-ids,
delivery-ids) change only when frames are written, so a frame is rewritten with the numbers of that moment.

Frames of up to MAX_WHOLE_BYTES are taken whole; of longer ones the payload streams. Frames of our own go between two
frames of the peer they seem to come from.

**Plain frames** are forwarded unchanged, whatever is decided about the chunk, and are the majority: empty ones,
transfers of links without decisions for each delivery in sessions without swallowed ones, and dispositions of such
sessions. A run of them is one step: its bytes, and sums by link. It is a ``Run`` that grows frame by frame.
"""

from enum import Enum
from typing import Any, Final, Protocol

from proxy.deciding.batch import Side
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.parts import LinkPart, Piece, SessionPart, Step
from proxy.protocols.amqp10.wire import Frame, Malformed, Performative
from proxy.protocols.base import NO_BOUND, Buffer, Close

MAX_WHOLE_BYTES: Final = 64 * 1024  # frames up to this size are taken whole
MAX_FRAMES: Final = 512  # after this many single frames the rest of a chunk is left for later: some milliseconds
_MANY_FRAMES: Final = 127  # a chunk with more takes long
# A longer incomplete frame is not read again with the next chunk.
_MAX_TAKEN_BACK_BYTES: Final = 4096
_HEADER_BYTES: Final = wire.HEADER_BYTES
_AMQP: Final = b"AMQP"


class Run(Step):
    """Adjacent plain frames that were read one by one."""

    __slots__ = ("_aborted", "_came", "_last", "_settled", "_transfers", "_unsettled")

    def __init__(self, side: Side) -> None:
        self.session = None
        self.side = side
        # New deliveries by link; transfers by session.
        self._came: dict[LinkPart, int] = {}
        self._transfers: dict[SessionPart[Any], int] = {}
        # Adjacent deliveries by session: the first, and how many.
        self._unsettled: list[tuple[SessionPart[Any], int, int]] = []
        self._settled: list[tuple[SessionPart[Any], bool, int, int]] = []
        # The last, perhaps settled, delivery by session.
        self._last: dict[SessionPart[Any], int] = {}
        self._aborted: list[tuple[SessionPart[Any], int]] = []

    def add_transfer(self, session: SessionPart[Any], link: LinkPart | None, number: int, *, settled: bool) -> None:
        """Add a transfer. ``link``: whose delivery begins with it; None if it continues one."""
        transfers = self._transfers
        transfers[session] = transfers.get(session, 0) + 1
        if link is None:
            return
        self._came[link] = self._came.get(link, 0) + 1
        if self.side is not Side.CLIENT:
            return
        if settled:
            self._last[session] = number
        else:
            unsettled = self._unsettled
            if unsettled:
                of, first, count = unsettled[-1]
                if of is session and first + count == number:
                    unsettled[-1] = session, first, count + 1
                    return
            unsettled.append((session, number, 1))

    def add_aborted(self, session: SessionPart[Any], number: int) -> None:
        if self.side is Side.CLIENT:
            self._aborted.append((session, number))

    def add_settled(self, session: SessionPart[Any], first: int, last: int, *, receiver: bool) -> None:
        self._settled.append((session, receiver, first, last))

    def apply(self, piece: Piece) -> bytes | None:
        del piece
        side = self.side
        for session, transfers in self._transfers.items():
            session.halves[side].transfers.came(transfers)
        first_of: dict[SessionPart[Any], int] = {}
        for session, number, deliveries in self._unsettled:
            session.halves[side].ids.came(number, deliveries)
            first_of.setdefault(session, number)
        timed = next((session for session in self._transfers if session in first_of), None)
        if timed is not None:
            timed.time(first_of[timed])
        for session, number in self._last.items():
            session.halves[side].ids.reached(number)
        for session, number in self._aborted:
            session.halves[side].ids.aborted(number)
        for link, deliveries in self._came.items():
            link.came(deliveries)
        for session, receiver, first, last in self._settled:
            session.halves[side.other if receiver else side].settle(first, last, receiver=receiver)
        return None


class Phase(Enum):
    """What a peer sends next; for the protocol headers see ``_HEADERS`` (2.2, 5.3.2)."""

    HEADER = "a protocol header"
    SASL = "frames of SASL, or the header of AMQP"
    FRAMES = "frames of AMQP"


_HEADERS: Final = {
    (Phase.HEADER, wire.SASL_HEADER): Phase.SASL,
    (Phase.HEADER, wire.AMQP_HEADER): Phase.FRAMES,
    (Phase.SASL, wire.AMQP_HEADER): Phase.FRAMES,
}


class Reader(Protocol):
    """Takes the frames of both streams, and returns what becomes of them.

    All may raise Malformed, and Close. Without a step a frame is plain: the reader adds it to ``Stream.run``. The
    payload of a frame begins at ``begins``. If not all of the frame is in ``data``, ``take_payload`` follows.
    """

    def take_other_header(self, stream: "Stream", header: bytes) -> Step | None: ...
    def take_sasl(self, stream: "Stream", performative: Performative) -> Step | None: ...
    def take_frame(
        self, stream: "Stream", frame: Frame, performative: Performative, begins: int, data: Buffer
    ) -> Step | None: ...
    def take_payload(self, stream: "Stream", payload: Buffer, *, is_last: bool) -> Step | None: ...


class Stream:
    """One peer's stream, on its way to the other peer."""

    def __init__(self, side: Side, reader: Reader) -> None:
        self.side = side
        self.phase = Phase.HEADER
        # The longest frame that the other peer takes. Of the broker's frames, only transfers are bounded.
        self.most_frame_bytes = NO_BOUND
        self.frames = 0
        # Set when the last chunk ended in an invalid frame. What came before is still forwarded.
        self.close: Close | None = None
        self.left_bytes = 0  # of the last chunk, to be fed again
        self.out: list[Buffer] = []
        self.unblocked: dict[SessionPart[Any], None] = {}  # sessions whose kept frames may be decided now
        self.is_opened = False  # the peer's open was forwarded
        self.is_over = False  # its close was read: what follows has no meaning (2.4.3), and is forwarded unread
        self.is_closed = False  # its close, or one of Sluice's, was forwarded: nothing may follow
        self.waits = False
        self._reader = reader
        self._beginning = bytearray()  # an incomplete frame
        # What is still to come of the current frame's payload.
        self._payload_left_bytes = 0
        self._pieces: list[Piece] = []
        self._run: Run | None = None
        self._steps = 0  # frames of the last chunk that were read one by one
        # The last bytes for ``out``, while they may grow.
        self._buffer: Buffer = b""
        self._start = self._stop = 0
        self._is_within = False  # ``out`` ends within a frame
        self._inserts: list[bytes] = []  # our own frames that wait for its end
        self.own_bytes = 0  # of Sluice's own frames in ``out``, or about to get there

    def feed(self, chunk: memoryview) -> None:
        """Read a chunk. ``write`` must follow."""
        self.left_bytes = self._steps = 0
        try:
            at, stop = self._complete(chunk) if self._beginning else 0, len(chunk)
            while at < stop and self.close is None and not self.is_over:
                if self._steps >= MAX_FRAMES or self.waits:
                    self.left_bytes = stop - at
                    return
                then = self._take(chunk, at, stop)
                if then == at:
                    self._beginning += chunk[at:]
                    return
                at = then
            if self.is_over and at < stop:
                self._add(chunk, at, stop, None)
        except Malformed as error:
            self.close = Close("bad_frame", f"the {self.side.value} sent {error}")
        except Close as close:
            self.close = close

    def _complete(self, chunk: memoryview) -> int:
        """Complete the incomplete frame. Return how much of the chunk belongs to it."""
        beginning = self._beginning
        at = 0
        while beginning and self.close is None:
            wanted = self._wanted_bytes()
            at_most = at + wanted - len(beginning)
            beginning += chunk[at:at_most]
            at = min(at_most, len(chunk))
            if len(beginning) < wanted:
                break
            whole = bytes(beginning)
            if self._take(whole, 0, wanted):
                beginning.clear()
        return at

    def _wanted_bytes(self) -> int:
        """Return how much of the incomplete frame is needed for the next look."""
        beginning = self._beginning
        length = len(beginning)
        if length < _HEADER_BYTES:
            return _HEADER_BYTES
        if self._is_header(beginning, 0):
            return _HEADER_BYTES
        size = wire.frame_header(beginning, 0).size
        # For a long one, enough for its performative: a little more, then twice as much each time.
        return size if size <= MAX_WHOLE_BYTES else min(size, length + max(length, _MAX_TAKEN_BACK_BYTES))

    def _is_header(self, buffer: Buffer | bytearray, at: int) -> bool:
        return self.phase is not Phase.FRAMES and buffer[at : at + 4] == _AMQP

    def _take(self, buffer: Buffer, at: int, stop: int) -> int:
        """Take what comes next. Return where it ends, or ``at`` if it is incomplete."""
        if self._payload_left_bytes:
            return self._take_payload(buffer, at, stop)
        if stop - at < _HEADER_BYTES:
            return at
        if self.phase is not Phase.FRAMES and (self.phase is Phase.HEADER or self._is_header(buffer, at)):
            return self._take_header(buffer, at)
        frame = wire.frame_header(buffer, at)
        size = frame.size
        if size > self.most_frame_bytes and self.side is Side.CLIENT:
            raise self._too_long(size)
        ends = at + size
        whole = ends <= stop
        if self.phase is Phase.SASL and size > MAX_WHOLE_BYTES:
            raise Malformed(f"a frame of SASL of {size} bytes, {MAX_WHOLE_BYTES} may be")
        if not whole and size <= MAX_WHOLE_BYTES:
            return at
        if frame.type != (wire.SASL if self.phase is Phase.SASL else wire.AMQP):
            raise Malformed(f"a frame of the type {frame.type} instead of {self.phase.value}")
        self._steps += 1
        if size == frame.doff:
            self.frames += 1
            self._add(buffer, at, ends, None)
            return ends
        there = min(ends, stop)
        performative = wire.performative(buffer, at + frame.doff, there, whole=whole)
        if performative is None:
            return at
        if size > self.most_frame_bytes and performative.code == wire.TRANSFER:
            # Brokers split transfers only.
            raise self._too_long(size)
        self.frames += 1
        if self.phase is Phase.SASL:
            step = self._reader.take_sasl(self, performative)
        else:
            step = self._reader.take_frame(self, frame, performative, performative.stop - at, buffer[at:there])
        self._payload_left_bytes = ends - there
        self._add(buffer, at, there, step, is_last=whole)
        return there

    def _too_long(self, size: int) -> Malformed:
        return Malformed(f"a frame of {size} bytes, {self.most_frame_bytes} may be")

    def _take_payload(self, buffer: Buffer, at: int, stop: int) -> int:
        stop = min(stop, at + self._payload_left_bytes)
        self._payload_left_bytes -= stop - at
        is_last = not self._payload_left_bytes
        step = self._reader.take_payload(self, buffer[at:stop], is_last=is_last)
        self._add(buffer, at, stop, step, is_last=is_last)
        self._run = None  # our own frames that wait for its end go there, with the numbers of that moment
        return stop

    def _take_header(self, buffer: Buffer, at: int) -> int:
        ends = at + _HEADER_BYTES
        header = bytes(buffer[at:ends])
        phase = _HEADERS.get((self.phase, header))
        step = None
        if phase is None:
            step = self._reader.take_other_header(self, header)
        else:
            self.phase = phase
        self._add(buffer, at, ends, step)
        return ends

    @property
    def run(self) -> Run:
        run = self._run
        if run is None:
            run = self._run = Run(self.side)
        return run

    def _add(self, buffer: Buffer, start: int, stop: int, step: Step | None, *, is_last: bool = True) -> None:
        pieces = self._pieces
        if step is None:
            step = self.run
            last = pieces[-1] if pieces else None
            if last is not None and last.step is step:
                if last.buffer is buffer and last.stop == start:
                    last.stop = stop
                    last.is_last = is_last
                    return
                step = self._run = Run(self.side)  # the frame was counted by the run before, which this continues
        else:
            self._run = None
        pieces.append(Piece(buffer, start, stop, step, is_last))

    def write(self) -> None:
        pieces, self._pieces, self._run = self._pieces, [], None
        side = self.side
        keeping: dict[SessionPart[Any], None] = {}
        if self.unblocked:
            self.release()
        for piece in pieces:
            step = piece.step
            session = step.session
            if session is not None and (session.halves[side].kept or step.is_blocked):
                session.keep(piece)
                keeping[session] = None
            else:
                self._put(piece)
        if self.unblocked:
            self.release()
        for session in keeping:
            session.look_at_window(side)
        self._close_slice()

    def release(self) -> None:
        sessions = list(self.unblocked)
        self.unblocked.clear()
        for session in sessions:
            kept = session.halves[self.side].kept
            if self._is_within:
                self.unblocked[session] = None  # the rest of that frame comes first
                continue
            while kept and not kept[0].step.is_blocked:
                self._put(kept.popleft())
        self._close_slice()

    def _put(self, piece: Piece) -> None:
        instead = piece.step.apply(piece)
        if instead is None:
            if piece.buffer is self._buffer and piece.start == self._stop:
                self._stop = piece.stop
            else:
                if self._stop > self._start:
                    self._close_slice()
                self._buffer, self._start, self._stop = piece.buffer, piece.start, piece.stop
        elif instead:
            self._close_slice()
            self.out.append(instead)
        else:
            return
        self._is_within = not piece.is_last
        if self._inserts and piece.is_last:
            self._close_slice()
            self._flush()

    def _close_slice(self) -> None:
        if self._stop > self._start:
            self.out.append(self._buffer[self._start : self._stop])
        self._buffer = b""
        self._start = self._stop = 0

    def insert(self, frame: bytes) -> None:
        """Write a frame of Sluice's own, as soon as it is not within another."""
        if self.is_closed:
            return
        self._inserts.append(frame)
        self.own_bytes += len(frame)
        if not self._is_within:
            self._close_slice()
            self._flush()

    def _flush(self) -> None:
        self.out += self._inserts
        self._inserts = []

    def take(self) -> list[Buffer]:
        if self._stop > self._start:
            self._close_slice()
        out = self.out
        if not out:
            return out
        self.out = []
        if self.own_bytes:
            self.own_bytes = sum(map(len, self._inserts))
        return out

    def mark_opened(self) -> None:
        self.is_opened = True

    def is_between_frames(self) -> bool:
        return not self._beginning and not self._payload_left_bytes

    def is_quiet(self) -> bool:
        """Say whether all that was read is written, but for the beginning of a frame."""
        is_open = self.is_opened and not self.is_over and not self.is_closed and self.close is None
        reads = self._payload_left_bytes or self.left_bytes or self._pieces or self.waits
        return is_open and not (reads or self.out or self._inserts or self._is_within)

    def can_insert(self) -> bool:
        return not self._is_within

    def missing_bytes(self) -> int:
        """Return how many bytes the current frame, or the next one's header, lacks, as far as is known."""
        if self._payload_left_bytes:
            return self._payload_left_bytes
        return max(1, self._wanted_bytes() - len(self._beginning)) if self._beginning else _HEADER_BYTES

    def held_back(self) -> int:
        """Return the length of an incomplete frame, if it is worth reading again."""
        length = len(self._beginning)
        return length if length <= _MAX_TAKEN_BACK_BYTES else 0

    @property
    def beginning(self) -> bytes:
        """An incomplete frame."""
        return bytes(self._beginning)

    def take_back(self) -> bytes:
        beginning = bytes(self._beginning)
        self._beginning.clear()
        return beginning

    def put_back(self, beginning: bytes) -> None:
        self._beginning += beginning

    def takes_turns(self) -> bool:
        return self._steps > _MANY_FRAMES

    def end(self) -> None:
        if self._beginning and not self._is_within and self.close is None:
            self.out.append(bytes(self._beginning))
            self._beginning.clear()
