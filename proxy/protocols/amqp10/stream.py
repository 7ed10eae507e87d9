"""One direction of a connection: splits a peer's bytes into frames and writes the results in order.

``feed`` splits a chunk into steps. When the chunk has been decided, ``write`` applies them. Deliveries and transfers
are counted only then.

Frames longer than MAX_WHOLE_BYTES are streamed. While a delivery needs more bytes before it can be decided, later
frames of its session are *kept back*.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from proxy.deciding.batch import Side
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.links import SessionPart
from proxy.protocols.amqp10.wire import Frame, Malformed, Performative
from proxy.protocols.base import NO_BOUND, Buffer, Close

MAX_WHOLE_BYTES: Final = 64 * 1024
MAX_FRAMES: Final = 128  # per call, which takes a few milliseconds
_FIRST_LOOK_BYTES: Final = 4096  # usually enough for a performative
_HEADER_BYTES: Final = wire.HEADER_BYTES
_AMQP: Final = b"AMQP"


class Step(NamedTuple):
    """An action to take on a frame or on a part of its payload.

    ``apply`` returns the bytes to write. While ``is_blocked`` returns True, because the delivery is undecided, this
    step and all later steps of the session wait.
    """

    apply: Callable[[Buffer], Buffer]
    session: SessionPart | None = None
    is_blocked: Callable[[], bool] = bool


def forward(data: Buffer) -> Buffer:
    return data


class Piece(NamedTuple):
    data: Buffer
    step: Step
    is_last: bool


class Phase(Enum):
    HEADER = "a protocol header"
    SASL = "a SASL frame or an AMQP header"
    FRAMES = "an AMQP frame"


_HEADERS: Final = {
    (Phase.HEADER, wire.SASL_HEADER): Phase.SASL,
    (Phase.HEADER, wire.AMQP_HEADER): Phase.FRAMES,
    (Phase.SASL, wire.AMQP_HEADER): Phase.FRAMES,
}


class Reader(Protocol):
    """Handles frames. Every method may raise Malformed or Close.

    The payload starts at offset ``begins``. If ``data`` is an incomplete frame, ``take_payload`` gets the rest.
    """

    def take_other_header(self, stream: "Stream", header: bytes) -> Step: ...
    def take_sasl(self, stream: "Stream", performative: Performative) -> Step: ...
    def take_frame(
        self, stream: "Stream", frame: Frame, performative: Performative, begins: int, data: Buffer
    ) -> Step: ...
    def take_payload(self, stream: "Stream", payload: Buffer, *, is_last: bool) -> Step: ...


class Stream:
    def __init__(self, side: Side, reader: Reader) -> None:
        self.side = side
        self.phase = Phase.HEADER
        # The other peer's maximum. Of the frames from the broker, only transfers are checked.
        self.max_frame_bytes = NO_BOUND
        self.frames = 0
        self.close: Close | None = None
        self.left_bytes = 0
        self.out: list[Buffer] = []
        self.is_opened = False
        self.is_over = False  # whether a close was read. Later data is forwarded unread (2.4.3)
        self.is_closed = False  # whether a close was forwarded. No frames may follow
        self.waits = False
        self._reader = reader
        self._beginning = bytearray()
        self._payload_left_bytes = 0
        self._pieces: list[Piece] = []
        self._kept: dict[SessionPart, deque[Piece]] = {}
        self._steps = 0
        self._is_within = False
        self._inserts: list[bytes] = []

    def feed(self, chunk: memoryview) -> None:
        """Read a chunk. The caller must call ``write`` next."""
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
                self._add(chunk[at:], Step(forward))
        except Malformed as error:
            self.close = Close("bad_frame", f"the {self.side.value} sent {error}")
        except Close as close:
            self.close = close
        if self.close is not None:
            self._beginning.clear()

    def _complete(self, chunk: memoryview) -> int:
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
        beginning = self._beginning
        length = len(beginning)
        if length < _HEADER_BYTES or self._is_header(beginning, 0):
            return _HEADER_BYTES
        size = wire.frame_header(beginning, 0).size
        # Parse a long frame after 4 KiB, 8 KiB and so on.
        return size if size <= MAX_WHOLE_BYTES else min(size, max(1 << length.bit_length(), _FIRST_LOOK_BYTES))

    def _is_header(self, buffer: Buffer | bytearray, at: int) -> bool:
        return self.phase is not Phase.FRAMES and buffer[at : at + 4] == _AMQP

    def _take(self, buffer: Buffer, at: int, stop: int) -> int:
        if self._payload_left_bytes:
            return self._take_payload(buffer, at, stop)
        if stop - at < _HEADER_BYTES:
            return at
        if self.phase is Phase.HEADER or self._is_header(buffer, at):
            return self._take_header(buffer, at)
        frame = wire.frame_header(buffer, at)
        size = frame.size
        if size > self.max_frame_bytes and self.side is Side.CLIENT:
            raise self._too_long(size)
        ends = at + size
        whole = ends <= stop
        if self.phase is Phase.SASL and size > MAX_WHOLE_BYTES:
            raise Malformed(f"a SASL frame of {size} bytes; the maximum is {MAX_WHOLE_BYTES}")
        if not whole and (size <= MAX_WHOLE_BYTES or stop - at < _FIRST_LOOK_BYTES):
            return at
        if frame.type != (wire.SASL if self.phase is Phase.SASL else wire.AMQP):
            raise Malformed(f"a frame of type {frame.type} instead of {self.phase.value}")
        self._steps += 1
        if size == frame.doff:
            self.frames += 1
            self._add(buffer[at:ends], Step(forward))
            return ends
        there = min(ends, stop)
        performative = wire.performative(buffer, at + frame.doff, there, whole=whole)
        if performative is None:
            return at
        if size > self.max_frame_bytes and performative.code == wire.TRANSFER:
            # Brokers observe the maximum only for transfers, which they split.
            raise self._too_long(size)
        self.frames += 1
        data = buffer[at:there]
        if self.phase is Phase.SASL:
            step = self._reader.take_sasl(self, performative)
        else:
            step = self._reader.take_frame(self, frame, performative, performative.stop - at, data)
        self._payload_left_bytes = ends - there
        self._add(data, step, is_last=whole)
        return there

    def _too_long(self, size: int) -> Malformed:
        return Malformed(f"a frame of {size} bytes; the maximum is {self.max_frame_bytes}")

    def _take_payload(self, buffer: Buffer, at: int, stop: int) -> int:
        stop = min(stop, at + self._payload_left_bytes)
        self._payload_left_bytes -= stop - at
        is_last, payload = not self._payload_left_bytes, buffer[at:stop]
        self._add(payload, self._reader.take_payload(self, payload, is_last=is_last), is_last=is_last)
        return stop

    def _take_header(self, buffer: Buffer, at: int) -> int:
        ends = at + _HEADER_BYTES
        header = bytes(buffer[at:ends])
        phase = _HEADERS.get((self.phase, header))
        if phase is None:
            step = self._reader.take_other_header(self, header)
        else:
            self.phase, step = phase, Step(forward)
        self._add(header, step)
        return ends

    def _add(self, data: Buffer, step: Step, *, is_last: bool = True) -> None:
        self._pieces.append(Piece(data, step, is_last))

    def write(self) -> None:
        pieces, self._pieces = self._pieces, []
        self.release()
        for piece in pieces:
            session = piece.step.session
            if session is not None and (session in self._kept or piece.step.is_blocked()):
                self._kept.setdefault(session, deque()).append(piece._replace(data=bytes(piece.data)))
            else:
                self._put(piece)
        self.release()
        for session in self._kept:
            session.check_window(self.side)

    def release(self) -> None:
        for session, kept in list(self._kept.items()):
            if self._is_within:
                return
            while kept and not kept[0].step.is_blocked():
                self._put(kept.popleft())
            if not kept:
                del self._kept[session]

    def _put(self, piece: Piece) -> None:
        data = piece.step.apply(piece.data)
        if not data:
            return
        self.out.append(data)
        self._is_within = not piece.is_last
        if piece.is_last:
            self._flush()

    def insert(self, frame: bytes) -> None:
        if self.is_closed:
            return
        self._inserts.append(frame)
        if not self._is_within:
            self._flush()

    def _flush(self) -> None:
        self.out += self._inserts
        self._inserts = []

    def take(self) -> list[Buffer]:
        out, self.out = self.out, []
        return out

    @property
    def backlog_bytes(self) -> int:
        return sum(map(len, self.out)) + sum(map(len, self._inserts))

    @property
    def kept_frames(self) -> int:
        return sum(map(len, self._kept.values()))

    def forget_kept(self) -> None:
        self._kept.clear()

    def open(self, data: Buffer) -> Buffer:
        self.is_opened = True
        return data

    def is_between_frames(self) -> bool:
        return not self._beginning and not self._payload_left_bytes

    def is_quiet(self) -> bool:
        is_open = self.is_opened and not self.is_over and not self.is_closed and self.close is None
        reads = self._payload_left_bytes or self.left_bytes or self._pieces or self._kept or self.waits
        return is_open and not (reads or self.out or self._inserts or self._is_within)

    def can_insert(self) -> bool:
        return not self._is_within

    def missing_bytes(self) -> int:
        if self._payload_left_bytes:
            return self._payload_left_bytes
        return max(1, self._wanted_bytes() - len(self._beginning)) if self._beginning else _HEADER_BYTES

    @property
    def beginning(self) -> bytes:
        return bytes(self._beginning)

    def take_back(self) -> bytes:
        beginning = bytes(self._beginning)
        self._beginning.clear()
        return beginning

    def put_back(self, beginning: bytes) -> None:
        self._beginning += beginning

    def end(self) -> None:
        if self._beginning and not self._is_within and self.close is None:
            self.out.append(bytes(self._beginning))
            self._beginning.clear()
