"""One direction of a connection: cuts what a peer sends into frames, and writes what becomes of them in their order.

A chunk is read by ``feed``, which makes pieces of it, and written by ``write`` once it is decided. In between nothing
of it is written, and numbers that are counted as frames go on (credit, transfer-ids, delivery-ids) do not change: a
frame is rewritten with the numbers of the moment at which it goes on.

Frames of up to MAX_WHOLE_BYTES are taken whole. Of longer ones the performative is, and the payload streams.

Frames of our own go between two frames of the peer they seem to come from, never into one.

**Plain frames** go on as they came, whatever is decided about the chunk, and are most of all frames: empty ones,
transfers of links on which nothing is decided for each delivery, in sessions where none was swallowed, and dispositions
of such sessions. A run of them, one behind the other, is one step: its bytes, and its sums by link. Compiled code takes
all of it in one call and with it the flows behind it, see ``scanning`` and ``Scanned``; in Python it is a ``Run`` that
grows frame by frame.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from proxy.deciding.batch import Side
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.parts import LinkPart, Piece, SessionPart, Step
from proxy.protocols.amqp10.scanning import Flowed, NativeScanner, Scanned
from proxy.protocols.amqp10.wire import Frame, Malformed, Performative
from proxy.protocols.base import NO_BOUND, Buffer, Close

#: A frame that is no longer is taken whole.
MAX_WHOLE_BYTES: Final = 64 * 1024
#: After so many frames that were read one by one the rest of a chunk is left for later: some milliseconds.
MAX_FRAMES: Final = 512
#: A chunk of so few frames takes so little that larger ones keep nobody waiting; one of more than the other takes long.
_FEW_FRAMES: Final = 64
_MANY_FRAMES: Final = 127
#: So much of what compiled code says of a run takes about as long as a frame that is read.
_SAID_STEPS: Final = 8
#: How much is said of a flow.
_SAID_OF_FLOW: Final = 4
#: A frame's beginning that is longer is not read once more with the next chunk.
_MAX_TAKEN_BACK_BYTES: Final = 4096
_HEADER_BYTES: Final = wire.HEADER_BYTES
_AMQP: Final = b"AMQP"


class Run(Step):
    """Plain frames that were read one by one, one behind the other."""

    __slots__ = ("_aborted", "_came", "_last", "_settled", "_transfers", "_unsettled")

    def __init__(self, side: Side) -> None:
        self.session = None
        self.side = side
        #: Deliveries of which the first frame is among them, by link; and frames of transfers, by session.
        self._came: dict[LinkPart, int] = {}
        self._transfers: dict[SessionPart[Any], int] = {}
        #: Deliveries that follow each other, by session: the first, and how many.
        self._unsettled: list[tuple[SessionPart[Any], int, int]] = []
        self._settled: list[tuple[SessionPart[Any], bool, int, int]] = []
        #: The last delivery that need not be unsettled, by session.
        self._last: dict[SessionPart[Any], int] = {}
        self._aborted: list[tuple[SessionPart[Any], int]] = []

    def add_transfer(self, session: SessionPart[Any], link: LinkPart | None, number: int, *, settled: bool) -> None:
        """Add a transfer.

        Args:
            session: whose.
            link: whose delivery begins with it; None if it goes on with one.
            number: the delivery's.
            settled: it is.
        """
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
        """Add that a delivery was aborted, by one of its transfers."""
        if self.side is Side.CLIENT:
            self._aborted.append((session, number))

    def add_settled(self, session: SessionPart[Any], first: int, last: int, *, receiver: bool) -> None:
        """Add a disposition that settles."""
        self._settled.append((session, receiver, first, last))

    def apply(self, piece: Piece) -> bytes | None:
        """Count what is in it."""
        del piece
        side = self.side
        for session, transfers in self._transfers.items():
            session.halves[side].transfers.came(transfers)
        for session, number, deliveries in self._unsettled:
            session.halves[side].ids.came(number, deliveries)
        if self._unsettled:
            session, number, deliveries = self._unsettled[-1]
            session.time(number + deliveries - 1)
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
    """What a peer sends next; ``_HEADERS`` says what follows which protocol header (2.2, 5.3.2)."""

    HEADER = "a protocol header"
    SASL = "frames of SASL, or the header of AMQP"
    FRAMES = "frames of AMQP"


_HEADERS: Final = {
    (Phase.HEADER, wire.SASL_HEADER): Phase.SASL,
    (Phase.HEADER, wire.AMQP_HEADER): Phase.FRAMES,
    (Phase.SASL, wire.AMQP_HEADER): Phase.FRAMES,
}


class Reader(ABC):
    """Takes the frames of both streams as they are read, and says what becomes of them.

    All may raise Malformed, and Close. Without a step a frame is plain; who takes it adds it to ``Stream.run``.
    """

    @abstractmethod
    def take_other_header(self, stream: "Stream", header: bytes) -> Step | None:
        """Take a protocol header that is not of this version, or not expected here."""

    @abstractmethod
    def take_sasl(self, stream: "Stream", performative: Performative) -> Step | None:
        """Take a frame of SASL."""

    @abstractmethod
    def take_frame(
        self, stream: "Stream", frame: Frame, performative: Performative, begins: int, data: Buffer
    ) -> Step | None:
        """Take a frame of AMQP that is not empty.

        Args:
            stream: of which peer.
            frame: its header.
            performative: what it says.
            begins: where its payload begins, from its first byte.
            data: the frame, or as much as is there: then ``take_payload`` follows.
        """

    @abstractmethod
    def take_scanned(self, stream: "Stream", scanned: Scanned) -> Step:
        """Take a run of plain frames; the flows behind it are taken by ``take_flows``."""

    @abstractmethod
    def take_flows(self, stream: "Stream", flows: Sequence[Flowed]) -> Step:
        """Take flows, one behind the other but for empty frames."""

    @abstractmethod
    def take_payload(self, stream: "Stream", payload: Buffer, *, is_last: bool) -> Step | None:
        """Take more of the payload of the frame in hand."""


class Stream:
    """One peer's stream, on its way to the other peer.

    Args:
        side: the peer.
        reader: takes its frames.

    Attributes:
        side: as given.
        phase: what it sends next.
        most_frame_bytes: the longest frame that the other peer takes; of the broker's only transfers are bounded.
        frames: whole frames seen so far, or the beginnings of long ones.
        close: set when the last chunk ended in something that is no frame; what came before it still goes on.
        left_bytes: at the end of the last chunk that are to come again.
        out: what may be written to the other peer.
        own_bytes: what frames of our own take that was not taken.
        scanner: takes runs of plain frames, if there is one.
        unblocked: sessions of which something was kept back that may be decided now.
        is_opened: the peer's open has gone on.
        is_over: its close was read: what comes behind it says nothing (2.4.3), and goes on unread.
        is_closed: so has its close, or one of ours: nothing may follow.
    """

    def __init__(self, side: Side, reader: Reader) -> None:
        self.side = side
        self.phase = Phase.HEADER
        self.most_frame_bytes = NO_BOUND
        self.frames = 0
        self.close: Close | None = None
        self.left_bytes = 0
        self.out: list[Buffer] = []
        self.scanner: NativeScanner | None = None
        self.unblocked: dict[SessionPart[Any], None] = {}
        self.is_opened = self.is_over = self.is_closed = self.waits = False
        self._reader = reader
        #: Of a frame that is not there as far as it has to be.
        self._beginning = bytearray()
        #: Of the payload of the frame in hand, what is still to come.
        self._payload_left_bytes = 0
        self._pieces: list[Piece] = []
        self._run: Run | None = None
        #: Frames of the last chunk that were read one by one.
        self._steps = 0
        #: Where in it a scan has ended.
        self._scanned = -1
        #: The last bytes for ``out``, as long as they may grow: where they are, from and to.
        self._buffer: Buffer = b""
        self._start = self._stop = 0
        #: What is in ``out`` ends within a frame.
        self._is_within = False
        #: Frames of our own that wait for its end.
        self._inserts: list[bytes] = []
        self.own_bytes = 0

    # --- Reading ----------------------------------------------------------------------------------

    def bound_frames(self, most_frame_bytes: int) -> None:
        """Take no longer frames from now on."""
        self.most_frame_bytes = most_frame_bytes
        if self.scanner is not None:
            self.scanner.bound_frames(most_frame_bytes)

    def feed(self, chunk: memoryview) -> None:
        """Read a chunk; ``write`` is to come before the next."""
        self.left_bytes = self._steps = 0
        self._scanned = -1
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
        """Go on with a frame whose beginning is held back; return how much of the chunk belongs to it."""
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
            self._scanned = -1
        return at

    def _wanted_bytes(self) -> int:
        """Return how long the beginning has to be for the next look at it."""
        beginning = self._beginning
        length = len(beginning)
        if length < _HEADER_BYTES:
            return _HEADER_BYTES
        if self._is_header(beginning, 0):
            return _HEADER_BYTES
        size = wire.frame_header(beginning, 0).size
        # Of a long one, what its performative may take: a little, or else twice as much each time.
        return size if size <= MAX_WHOLE_BYTES else min(size, length + max(length, _MAX_TAKEN_BACK_BYTES))

    def _is_header(self, buffer: Buffer | bytearray, at: int) -> bool:
        return self.phase is not Phase.FRAMES and buffer[at : at + 4] == _AMQP

    def _take(self, buffer: Buffer, at: int, stop: int) -> int:
        """Take what comes next; return where it ends, or where it begins if there is too little of it."""
        if self._payload_left_bytes:
            return self._take_payload(buffer, at, stop)
        if stop - at < _HEADER_BYTES:
            return at
        scanner = self.scanner
        # Where a scan has ended nothing is plain, but for a frame behind very many runs.
        if scanner is not None and self.phase is Phase.FRAMES and at != self._scanned:
            scanned = scanner.scan(buffer, at)
            if scanned is not None:
                return self._take_scanned(buffer, at, scanned)
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
            # Brokers cut transfers only: their other frames are as long as they are.
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

    def _take_scanned(self, buffer: Buffer, at: int, scanned: Scanned) -> int:
        stop, flows = scanned.stop, scanned.flows
        said = len(scanned.links) + len(scanned.sessions) + len(scanned.disposed)
        self.frames += scanned.frames
        self._run = None
        runs_to = flows[0].start if flows else stop
        if at < runs_to:
            self._pieces.append(Piece(buffer, at, runs_to, self._reader.take_scanned(self, scanned)))
        if flows:
            said += _SAID_OF_FLOW * len(flows)
            self._pieces.append(Piece(buffer, runs_to, stop, self._reader.take_flows(self, flows)))
        else:
            # Behind flows there may be plain frames again.
            self._scanned = stop
        self._steps += said // _SAID_STEPS
        return stop

    def _take_payload(self, buffer: Buffer, at: int, stop: int) -> int:
        stop = min(stop, at + self._payload_left_bytes)
        self._payload_left_bytes -= stop - at
        is_last = not self._payload_left_bytes
        step = self._reader.take_payload(self, buffer[at:stop], is_last=is_last)
        self._add(buffer, at, stop, step, is_last=is_last)
        # Frames of our own that wait for its end go there: their numbers are those of that moment.
        self._run = None
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
        """The run that the frame in hand belongs to if it is plain."""
        run = self._run
        if run is None:
            run = self._run = Run(self.side)
        return run

    def _add(self, buffer: Buffer, start: int, stop: int, step: Step | None, *, is_last: bool = True) -> None:
        """Add a piece, or plain frames to the run in hand."""
        pieces = self._pieces
        if step is None:
            step = self.run
            last = pieces[-1] if pieces else None
            if last is not None and last.step is step:
                if last.buffer is buffer and last.stop == start:
                    last.stop = stop
                    last.is_last = is_last
                    return
                # What the frame counts is counted by the run before, of which it would be the continuation.
                step = self._run = Run(self.side)
        else:
            self._run = None
        pieces.append(Piece(buffer, start, stop, step, is_last))

    # --- Writing ----------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what becomes of the chunk in hand."""
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
        """Write what was kept back, as far as it is decided."""
        sessions = list(self.unblocked)
        self.unblocked.clear()
        for session in sessions:
            kept = session.halves[self.side].kept
            if self._is_within:
                # More of that frame has to come first.
                self.unblocked[session] = None
                continue
            while kept and not kept[0].step.is_blocked:
                self._put(kept.popleft())
            if not kept:
                session.changed()
        self._close_slice()

    def _put(self, piece: Piece) -> None:
        """Write what becomes of a piece, now."""
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
        """Write a frame of our own, as soon as it does not come within another one."""
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
        """Hand out what may be written."""
        if self._stop > self._start:
            self._close_slice()
        out = self.out
        if not out:
            return out
        self.out = []
        if self.own_bytes:
            self.own_bytes = sum(map(len, self._inserts))
        return out

    # --- For the driver ---------------------------------------------------------------------------

    def mark_opened(self) -> None:
        """Take note that the peer's open has gone on."""
        self.is_opened = True

    def is_between_frames(self) -> bool:
        """Say whether the peer has sent whole frames only."""
        return not self._beginning and not self._payload_left_bytes

    def can_insert(self) -> bool:
        """Say whether a frame of our own can be written at once."""
        return not self._is_within

    def missing_bytes(self) -> int:
        """Return how many bytes are missing of the frame in hand, as far as is known; or of the next one's header."""
        if self._payload_left_bytes:
            return self._payload_left_bytes
        return max(1, self._wanted_bytes() - len(self._beginning)) if self._beginning else _HEADER_BYTES

    def held_back(self) -> int:
        """Return how long the beginning of a frame is that is held back, if it is worth while to read it once more."""
        length = len(self._beginning)
        return length if length <= _MAX_TAKEN_BACK_BYTES else 0

    def take_back(self) -> bytes:
        """Hand out that beginning."""
        beginning = bytes(self._beginning)
        self._beginning.clear()
        return beginning

    def takes_turns(self) -> bool:
        """Say whether the last chunk took long."""
        return self._steps > _MANY_FRAMES

    def reads_fast(self) -> bool:
        """Say whether it took next to nothing."""
        return self._steps <= _FEW_FRAMES

    def end(self) -> None:
        """Write what is held back of an unfinished frame, at the end of the stream."""
        if self._beginning and not self._is_within and self.close is None:
            self.out.append(bytes(self._beginning))
            self._beginning.clear()
