"""Client to broker: cuts chunks into frames, and refused requests out of chunks.

Frames are read one by one, which is the reference for what the compiled part reads of lent connections. Every header
is read; an unreadable one ends the connection while limits apply to it. A request is decided when its header is
complete. The verdict covers the rest of its body: that streams through, is swallowed, or is added to the copy of a held
request (``held``). The cost of a batch is in its body, so it is gathered first, and refused if there is no room.
Otherwise only an incomplete header is copied: at most MAX_HEADER_BYTES (256 KiB) and the 8 bytes before it per
connection.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from limiter.rules.resource import Resource
from proxy.common.buffers import Gathering
from proxy.deciding.batch import Batch, Hold, Later, Refusal, Refuse, Request
from proxy.protocols.base import Buffer, Close, SessionContext
from proxy.protocols.rocketmq import refusals
from proxy.protocols.rocketmq.about import AboutClient, Names
from proxy.protocols.rocketmq.answers import Pending
from proxy.protocols.rocketmq.batch_body import BatchReader
from proxy.protocols.rocketmq.held import HeldFrame, Holding
from proxy.protocols.rocketmq.lines import Aside, Lines
from proxy.protocols.rocketmq.transactions import Ended, EndOfTransaction, Transactions, read_half
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.frame import (
    HEADER_LENGTH,
    MAX_HEADER_BYTES,
    Frame,
    PartialFrame,
    header_bytes_of,
    prefix_at,
)
from proxy.protocols.rocketmq.wire.header import LENIENT, MAX_FIELDS, STRICT, UNPARSABLE, Header, classify
from proxy.protocols.rocketmq.wire.message_id import message_id
from proxy.spool.segments import Piece

if TYPE_CHECKING:
    from sluice_native import Scanner

# A new connection is on trial for this many strict headers. Each header that is not strict adds twice as many; for the
# first half of these the connection takes turns with others of its kind. So mixing both gains no time.
TRIAL_FRAMES: Final = 16

# A step is a frame, which takes some microseconds. A connection whose last chunk took more steps takes turns.
_FEW_STEPS: Final = 64
# A header that is not read strictly counts as steps of the same duration, half a millisecond at most (see
# ``lenient.MAX_JSON_BYTES``). One alone makes a chunk long.
_SLOW_STEPS: Final = _FEW_STEPS
# Bytes of such a header that are one step: a binary field may be as short as six bytes.
_BYTES_A_STEP: Final = 256
# After this many steps the rest of the chunk is left for later, so that others wait some milliseconds at most.
_MAX_STEPS: Final = 256
# Messages of a batch that take as long as a step.
_MESSAGES_A_STEP: Final = 16
_PREFIX_BYTES: Final = codes.PREFIX_BYTES
_ONEWAY: Final = codes.FLAG_ONEWAY
_SUBSCRIPTION: Final = codes.KIND_SUBSCRIPTION
_TOPIC: Final = codes.KIND_TOPIC
_TRANSACTION: Final = codes.KIND_TRANSACTION
_HEARD: Final = codes.HEARD
_HEART_BEAT: Final = codes.RequestCode.HEART_BEAT.value
_UNREGISTER: Final = codes.RequestCode.UNREGISTER_CLIENT.value


Refused = Sequence[tuple[Header, Refuse]]
"""Refused requests in the order of the wire, and why."""


class RequestStream:
    """The client's stream of one connection.

    Args:
        take: gets the header, its bytes and type of a request for Sluice; returns whether Sluice answers it.
        scanner: what the compiled part reads this stream with while the connection is lent; None if it never is.
    """

    def __init__(
        self,
        context: SessionContext,
        owed: Pending,
        transactions: Transactions,
        take: Callable[[Header, bytes, int], bool],
        *,
        scanner: "Scanner | None" = None,
    ) -> None:
        self.about = AboutClient()
        self.frames = 0
        # Set when the last chunk ended in something that is not a frame; what came before it is still forwarded.
        self.close: Close | None = None
        self.held = Holding()
        self.lines: Lines | None = None  # None without a spool
        self.names = Names()
        self.refusals: dict[int, Refuse] = {}  # of the last chunk, by index: requests refused whatever the limits are
        # One of these cannot pass even while limiting is off, as its beginning was dropped for lack of room.
        self.lost = False
        self._take = take
        self._limits_kind = context.limits_kind
        self._counters = context.counters
        self._owed = owed
        self._transactions = transactions
        self._address = context.connection.address
        self._exempt = context.connection.exempt
        self._limiting = context.limiting
        self._refuses_internal = context.options.internal_topics == "refuse" and not self._exempt
        self._room = context.room
        self._max_length = context.options.max_frame_bytes - 4
        self._header_bytes_of = partial(header_bytes_of, max_length=self._max_length)
        self._resources = self.names.known
        self._scanner = scanner
        self._long = False
        self.left_bytes = 0  # at the end of the last chunk, to be given again
        self._beginning = PartialFrame(MAX_HEADER_BYTES, self._header_bytes_of)
        # What is still to come of a frame whose verdict is known, and whether to swallow it. If it is neither swallowed
        # nor held, its beginning was forwarded.
        self._body_left = 0
        self._swallow = False
        # What was forwarded ends inside a frame, so nothing else may be written before that frame's end.
        self._open = False
        # Strict headers still to come until the trial is over.
        self._trial = TRIAL_FRAMES
        # Header of the batch that is gathered, its room, and its reader once it is whole.
        self._gathering: Header | None = None
        self._gathered = Gathering(self._address)
        # Room of a long header. If it is given to another, the next bytes end the connection.
        self._header_room = Gathering(self._address, self._beginning.pieces.clear)
        self._reader = BatchReader()
        self._now_ns = 0
        # The current chunk: [from, to) of it may be forwarded, after the lead, the completed header that earlier chunks
        # began. The frame that was open ends at _open_until.
        self._chunk = memoryview(b"")
        self._from = self._to = self._open_until = 0
        self._lead = b""
        self._led: Frame | None = None
        # Frames that Sluice answers itself.
        self._own: list[Frame] = []
        # Transactions that its requests end, and those that held ones do, by the identity of their headers: undone if
        # the request is not forwarded.
        self._ended: dict[int, Ended] = {}
        self._ended_by_held: dict[int, Ended] = {}

    def message_id(self, request: Request) -> bytes:
        frame = request.handle
        if type(frame) is not Frame:
            return b""
        if frame is self._led:
            return message_id(*self._raw(frame, frame.start))
        start, chunk = frame.start, self._chunk
        return message_id(*self._raw(frame, start + _PREFIX_BYTES + (prefix_at(chunk, start)[1] & HEADER_LENGTH)))

    def between_frames(self) -> bool:
        return not self._beginning.pieces and not self._body_left and not self._chunk and not self.left_bytes

    @property
    def is_cut(self) -> bool:
        return self._open

    def missing_bytes(self) -> int:
        return self._body_left or self._beginning.missing_bytes()

    def takes_turns(self) -> bool:
        return self._long or self._trial > TRIAL_FRAMES

    def shown_names(self) -> tuple[tuple[str, ...], int]:
        return self.names.shown(() if self._scanner is None else self._scanner.names())

    def held_back(self) -> int:
        """Return the length of an unfinished header; 0 if it is too long to be read again."""
        return self._beginning.readable_again()

    def take_back(self) -> bytes:
        return self._beginning.take() if self.held_back() else b""

    def lend(self) -> "tuple[Scanner, tuple[int, bool]] | None":
        """Return what the compiled part reads this stream with, or None if not all of it is plain.

        Returns:
            The scanner; and how many bytes of a frame are still to come, and whether these are swallowed.
        """
        is_plain = not (self._trial or self._chunk or self.left_bytes or self.held.count or self.about.listening)
        if not is_plain or self._scanner is None or self.held.coming is not None:
            return None
        if self._beginning.pieces and not self.held_back():
            return None
        return self._scanner, (self._body_left, self._swallow)

    def returned(self, left_bytes: int, *, swallows: bool) -> None:
        self._body_left, self._swallow = left_bytes, swallows
        self._open = left_bytes > 0 and not swallows

    def feed(self, chunk: memoryview, now_ns: int) -> list[Request]:
        """Read the frames of one chunk; ``pass_on`` must follow before the next chunk.

        After many steps its end is left, ``left_bytes``, which must be the next chunk.

        Returns:
            The limitable requests that can be decided now.
        """
        self._chunk = chunk
        self._lead, self._led = b"", None
        self.left_bytes = 0
        self.refusals = {}
        self.lost = False
        self._now_ns = now_ns
        requests: list[Request] = []
        size = len(chunk)
        subscriptions = self._limits_kind(_SUBSCRIPTION)
        position = self._continue_body(chunk) if self._body_left else 0
        self._from = 0 if self._open else position
        self._open_until = position
        steps = 0
        try:
            if self._header_room.lost:
                self._grow_header()
            if self._beginning.pieces:
                position, steps = self._continue_frame(chunk, requests, subscriptions)
            while size - position >= _PREFIX_BYTES and not self.left_bytes:
                if steps >= _MAX_STEPS:
                    self.left_bytes = size - position
                    break
                length, word = prefix_at(chunk, position)
                header_bytes = self._header_bytes_of(length, word)
                header_at = position + _PREFIX_BYTES
                body_at = header_at + header_bytes
                if header_bytes > MAX_HEADER_BYTES:
                    header = UNPARSABLE
                elif body_at <= size:
                    header = classify(chunk[header_at:body_at].tobytes(), word >> 24, subscriptions)
                else:
                    break
                if header is UNPARSABLE:
                    self._take_unreadable(header_bytes, word >> 24)
                frame = Frame(position, position + 4 + length, header)
                steps += _steps_of(header, header_bytes)
                if not header.is_batch:
                    self._take_frame(frame, 4 + length, body_at, requests)
                elif frame.stop <= size:
                    read = self._read_batch(chunk[body_at : frame.stop], steps)
                    if read is None:
                        self.left_bytes = size - position
                        break
                    steps = read
                    self._take_batch(frame, 4 + length, body_at, requests)
                elif self._gather(header, 4 + length, size - position):
                    break
                else:
                    self._take_batch(frame, 4 + length, body_at, requests, whole=False)
                position = frame.stop
            if not self.left_bytes:
                if position < size:
                    self._beginning.pieces += chunk[position:]
                if self._beginning.pieces and self._gathering is None:
                    self._grow_header()
        except Close as close:
            self.close = close
            self._beginning.take()
            self._to = min(position, size)
        else:
            self._to = min(position, size)
            self._long = steps > _FEW_STEPS
        return requests

    def _continue_body(self, chunk: memoryview) -> int:
        end = min(self._body_left, len(chunk))
        self._body_left -= end
        held = self.held.coming
        if held is not None:
            if self._has_room(held, end):
                self.held.gather(held, chunk[:end])
            else:
                self._give_up_coming(held)
                held = None
        if self.about.listening:
            self.about.hear(chunk[:end], more=self._body_left > 0)
        if not self._body_left:
            self.held.coming = None
            if held is not None and held.request is not None:
                self._has_come(held)
        return end

    def _has_come(self, held: HeldFrame) -> None:
        lines, request, aside = self.lines, held.request, held.aside
        if lines is None or request is None:
            return
        held.request = None
        self._free_room(held)
        data = self.held.take(held)
        if aside is not None:
            lines.has_come(aside, data)
        else:
            ended = self._ended_by_held.pop(id(held.header), None)
            lines.put(request, held.header, data, held.since_ns, ended=ended)

    def _continue_frame(self, chunk: memoryview, requests: list[Request], subscriptions: bool) -> tuple[int, int]:  # noqa: FBT001 - once a frame
        """Complete a header or a whole batch that earlier chunks began; return where its frame ends, and the steps."""
        if self._gathering is not None:
            return self._continue_batch(chunk, 0, self._gathering, requests)
        self._from = len(chunk)
        begun = self._beginning.go_on(chunk)
        if begun is None:
            return len(chunk), 0
        self._room.give_back(self._header_room)
        raw = begun.header
        header = UNPARSABLE if raw is None else classify(raw, begun.header_type, subscriptions)
        if header is UNPARSABLE:
            self._take_unreadable(begun.body_at - begun.position if raw is None else len(raw), begun.header_type)
        if header.is_batch and self._gather(header, begun.frame_bytes, len(begun.prefix_and_header)):
            self._beginning.pieces += begun.prefix_and_header
            return self._continue_batch(chunk, begun.position, header, requests)
        self._lead = begun.prefix_and_header
        self._from = begun.position
        frame = self._led = Frame(begun.position, begun.stop, header)
        if header.is_batch:
            self._take_batch(frame, begun.frame_bytes, begun.body_at, requests, whole=False)
        else:
            self._take_frame(frame, begun.frame_bytes, begun.body_at, requests)
        return frame.stop, _steps_of(header, len(self._lead))

    def _grow_header(self) -> None:
        if not self._exempt and not self._room.grow(self._header_room, len(self._beginning.pieces), self._now_ns):
            raise Close("unparsable", "there is no room to gather a long header of which only a part has come")

    def _gather(self, header: Header, frame_bytes: int, come_bytes: int) -> bool:
        gathered = self._gathered = Gathering(self._address, None if self._exempt else self._beginning.forget_body)
        if not self._room.fits(gathered, frame_bytes, self._now_ns) or not self._grow(come_bytes):
            return False
        self._gathering = header
        self._beginning.whole_bytes = frame_bytes
        return True

    def _let_go(self) -> None:
        self._room.give_back(self._header_room)
        if self._gathering is not None:
            self._gathering = None
            self._room.give_back(self._gathered)
            self._beginning.whole_bytes = 0

    def _grow(self, come_bytes: int) -> bool:
        return self._room.grow(self._gathered, come_bytes, self._now_ns)

    def _continue_batch(
        self, chunk: memoryview, position: int, header: Header, requests: list[Request]
    ) -> tuple[int, int]:
        beginning = self._beginning
        self._from = len(chunk)
        have = len(beginning.pieces)
        if not self._grow(min(beginning.whole_bytes, have + len(chunk) - position)):
            return self._stop_gathering(position, header, requests), 0
        position = beginning.gather(chunk, position)
        if beginning.missing_bytes():
            return len(chunk), 0
        pieces = beginning.pieces
        word: int = prefix_at(pieces)[1]
        with memoryview(pieces) as whole, whole[_PREFIX_BYTES + (word & HEADER_LENGTH) :] as body:
            read = self._read_batch(body, 0)
        if read is None:
            # The next bytes complete it again, and the reading continues.
            del pieces[-1:]
            self.left_bytes = len(chunk) - position + 1
            return position - 1, 0
        self._let_go()
        self._lead = beginning.take()
        self._from = position
        frame = self._led = Frame(position, position, header)
        self._take_batch(frame, len(self._lead), position, requests)
        return position, read

    def _stop_gathering(self, position: int, header: Header, requests: list[Request]) -> int:
        self.lost = self._gathered.lost
        beginning = self._beginning
        frame_bytes = beginning.whole_bytes
        word: int = prefix_at(beginning.pieces)[1]
        self._let_go()
        self._lead = beginning.take()
        self._from = position
        # Where all of it would begin, if the chunk held it.
        start = position - len(self._lead)
        frame = self._led = Frame(position, start + frame_bytes, header)
        self._take_batch(frame, frame_bytes, start + _PREFIX_BYTES + (word & HEADER_LENGTH), requests, whole=False)
        return frame.stop

    def _read_batch(self, body: memoryview, steps: int) -> int | None:
        """Read on in a batch; return the steps of the chunk so far, or None if there is more to read."""
        most = max(1, _MAX_STEPS - steps) * _MESSAGES_A_STEP
        if not self._reader.go_on(body, most):
            return None
        return steps + self._reader.effort // _MESSAGES_A_STEP

    def _take_batch(
        self, frame: Frame, frame_bytes: int, body_at: int, requests: list[Request], *, whole: bool = True
    ) -> None:
        reader, self._reader = self._reader, BatchReader()
        index = len(requests)
        self._take_frame(frame, frame_bytes, body_at, requests, max(1, reader.count))
        resource = requests[-1].resources[0]
        if not whole and not self._exempt:
            self.refusals[index] = refusals.unreadable_batch(resource)
        elif reader.malformed and not self._exempt:
            self.refusals[index] = refusals.malformed_batch(resource)
        elif reader.sets_inner and self._refuses_internal:
            self.refusals[index] = refusals.inner_batch(resource)

    def _take_frame(
        self, frame: Frame, frame_bytes: int, body_at: int, requests: list[Request], messages: int = 1
    ) -> None:
        self.frames += 1
        header = frame.header
        left = frame.stop - len(self._chunk)
        if left > 0:
            self._body_left = left
            self._swallow = False
        if header.reading != STRICT:
            if header.reading == LENIENT:
                self._count_undecodable("lenient")
            self._owed.add_unknown()  # the broker may read another number, or none and assign one
            self._trial += 2 * TRIAL_FRAMES
            self.about.meet(header)
        elif self._trial:
            self._trial -= 1
            self.about.meet(header)
        oneway = header.flag & _ONEWAY != 0
        refusal: Refusal = "silent" if oneway else "answered"
        kind = header.kind
        if kind:
            resources = self._resources[kind].get(header.name) or self.names.remember(kind, header.name)
            if kind == _SUBSCRIPTION:
                if not oneway:
                    self._owed.add(header.opaque, header.code, resources)
                requests.append(Request(resources, 0, frame_bytes, "", refusal, None, frame, True, True))
                return
            if kind == _TRANSACTION:
                resources = self._end_transaction(frame, body_at, resources, len(requests))
            elif _is_special(header):
                self._look_closer(frame, body_at, resources[0], len(requests))
            if not oneway:
                self._owed.add(header.opaque, header.code, resources, header.half)
        elif header is UNPARSABLE:
            return
        else:
            if header.code in _HEARD and not header.flag & codes.FLAG_RESPONSE and self._listen(frame, body_at):
                self._own.append(frame)
                return
            if not header.flag & (codes.FLAG_RESPONSE | _ONEWAY):
                self._owed.add(header.opaque, header.code, ())
            return
        requests.append(Request(resources, messages, frame_bytes, header.producer_group, refusal, None, frame))

    def _end_transaction(
        self, frame: Frame, body_at: int, resources: tuple[Resource, ...], index: int
    ) -> tuple[Resource, ...]:
        strict = frame.header.reading == STRICT
        end = EndOfTransaction.read(*self._raw(frame, body_at)) if strict else None
        ended = None if end is None else self._transactions.end(end)
        if ended is None:
            # An unreadable end may be a commit.
            if (end is None or end.commits) and not self._exempt:
                self.refusals[index] = refusals.unknown_transaction(resources[0])
            return resources
        self._ended[id(frame.header)] = ended
        if not ended.topic:
            return resources
        name = ended.topic.removeprefix(codes.RETRY_PREFIX)
        kind = _TOPIC if name == ended.topic else codes.KIND_RETRY_GROUP
        return resources + (self._resources[kind].get(name) or self.names.remember(kind, name))

    def _look_closer(self, frame: Frame, body_at: int, resource: Resource, index: int) -> None:
        header = frame.header
        if self._refuses_internal and refusals.is_internal(header.name):
            self.refusals[index] = refusals.internal_topic(resource)
        elif self._refuses_internal and header.sys_flag & codes.SYS_FLAG_INNER_BATCH:
            self.refusals[index] = refusals.inner_batch(resource)
        elif (
            header.sys_flag & codes.SYS_FLAG_TRANSACTION == codes.SYS_FLAG_HALF
            and header.reading == STRICT
            and header.kind == _TOPIC
            and not header.is_batch
        ):
            header.half = read_half(*self._raw(frame, body_at), header.name)

    def _raw(self, frame: Frame, body_at: int) -> tuple[bytes, int]:
        if frame is self._led:
            word: int = prefix_at(self._lead)[1]
            return self._lead[_PREFIX_BYTES : _PREFIX_BYTES + (word & HEADER_LENGTH)], word >> 24
        chunk = self._chunk
        return chunk[frame.start + _PREFIX_BYTES : body_at].tobytes(), chunk[frame.start + 4]

    def _take_unreadable(self, header_bytes: int, header_type: int) -> None:
        """Count an unreadable header; while limits apply to the client, it ends the connection.

        The broker might read anything in it, and there is no number to answer with.
        """
        self._count_undecodable("none")
        if self._exempt or not self._limiting():
            return
        if header_bytes > MAX_HEADER_BYTES:
            why = f"{MAX_HEADER_BYTES} bytes at most are read"
        elif header_type == codes.HEADER_JSON:
            why = "it is no JSON as clients write it, not even nearly, or names what no broker can have"
        else:
            why = f"its fields do not add up, are more than {MAX_FIELDS}, or name what no broker can have"
        raise Close("unparsable", f"the client sent a header of {header_bytes} bytes that cannot be read: {why}")

    def _count_undecodable(self, read_by: str) -> None:
        counts = self._counters.undecodable
        counts[read_by] = counts.get(read_by, 0) + 1

    def _listen(self, frame: Frame, body_at: int) -> bool:
        header, chunk = frame.header, self._chunk
        if header.code == _HEART_BEAT:
            self.about.heartbeat(frame.stop - body_at, chunk[body_at : frame.stop])
            return False
        raw, header_type = self._raw(frame, body_at)
        if header.code == _UNREGISTER:
            self.about.sign_off(raw, header_type)
            return False
        return self._take(header, raw, header_type)

    def pass_on(self, batch: Batch | None, out: list[Buffer]) -> Refused:
        """Queue what the verdicts leave of the chunk, in large slices; return what was refused."""
        chunk, start = self._chunk, self._from
        if self.held.waiting and not (self._body_left and self._open_until == len(chunk)):
            out.append(chunk[start : self._open_until])
            start = self._open_until
            self.held.release_waiting(out)
        refused: Refused = ()
        coming = None
        if self._own or (batch is not None and batch.verdicts):
            start, refused, coming = self._stop_each(batch, start, out)
            self._owed.withdrawn()
        elif self._lead:
            out.append(self._lead)
        if start <= len(chunk):
            if self._to > start:
                out.append(chunk[start : self._to])
        elif coming is not None:
            self.held.coming = coming
        else:
            self._swallow_rest()
        self._open = self._body_left > 0 and not self._swallow and self.held.coming is None
        self._chunk = memoryview(b"")
        self._lead, self._led = b"", None
        self._ended.clear()
        return refused

    def _stop_each(self, batch: Batch | None, start: int, out: list[Buffer]) -> tuple[int, Refused, HeldFrame | None]:
        """Queue what comes before, and between, the frames that do not pass.

        Returns:
            Where the rest of the chunk begins, beyond its end if its last frame is incomplete and does not pass; what
            was refused; and that last frame, if it is held.
        """
        stopped: list[tuple[Frame, Request | None, Refuse | Hold | Later | None]]
        stopped = [(frame, None, None) for frame in self._own]
        self._own = []
        if batch is not None:
            for index, decided in sorted(batch.verdicts.items()):
                request = batch.requests[index]
                if isinstance(request.handle, Frame) and isinstance(decided, Refuse | Hold | Later):
                    stopped.append((request.handle, request, decided))
        # A frame that earlier chunks began may have no bytes in this one: the next may start where it does.
        stopped.sort(key=lambda each: (each[0].start, each[0].stop))
        if self._lead and not (stopped and stopped[0][0] is self._led):
            out.append(self._lead)
        refused: list[tuple[Header, Refuse]] = []
        held: HeldFrame | None = None
        for frame, asked, verdict in stopped:
            if frame.start > start:
                out.append(self._chunk[start : frame.start])
            start = frame.stop
            held = None
            if asked is None:
                continue
            if isinstance(verdict, Refuse):
                self._settle(frame.header)
                self._undo(self._ended, frame.header)
                refused.append((frame.header, verdict))
            else:
                self._settle(frame.header)
                held = self._keep(frame, asked, verdict)
        return start, refused, held

    def _keep(self, frame: Frame, request: Request, verdict: Hold | Later | None) -> HeldFrame | None:
        header, lines = frame.header, self.lines
        ended = self._ended.pop(id(header), None)
        lead = self._lead if frame is self._led else b""
        piece = self._chunk[frame.start : frame.stop]
        begins = isinstance(verdict, Hold) and verdict.spools and lines is not None and not lines.has(request)
        if lines is None or not (begins or isinstance(verdict, Later)):
            if ended is not None:
                self._ended_by_held[id(header)] = ended
            held = request.handle = self.held.hold(header, lead, piece)
            return held
        if frame.stop <= len(self._chunk):
            put = lines.put_held if begins else lines.put
            put(request, header, lead + piece, self._now_ns, ended=ended)
            return None
        held = self.held.hold(header, lead, piece)
        held.request, held.since_ns = request, self._now_ns
        if begins:
            held.aside = lines.begin_coming(request, held, self._now_ns, ended=ended)
        elif ended is not None:
            self._ended_by_held[id(header)] = ended
        held.room = Gathering(self._address, partial(self.held.clear, held))
        if not self._has_room(held, 0):
            self._give_up_coming(held)
            return None
        return held

    def _has_room(self, held: HeldFrame, more_bytes: int) -> bool:
        return held.room is None or self._room.grow(held.room, len(held.data) + more_bytes, self._now_ns)

    def _free_room(self, held: HeldFrame) -> None:
        room, held.room = held.room, None
        if room is not None:
            self._room.give_back(room)

    def _give_up_coming(self, held: HeldFrame) -> None:
        lines, request, aside = self.lines, held.request, held.aside
        if lines is None or request is None:
            return
        if aside is not None:
            lines.has_no_room(aside)
        else:
            self.forget_coming(held)
            lines.had_no_room(request, held.header.opaque)

    def go_on(self, aside: Aside, data: Sequence[Piece], out: list[Buffer]) -> None:
        line = aside.line
        if not aside.oneway:
            half = None
            if aside.is_half:
                whole = b"".join(data)
                word: int = prefix_at(whole)[1]
                half = read_half(
                    whole[_PREFIX_BYTES : _PREFIX_BYTES + (word & HEADER_LENGTH)], word >> 24, line.resources[0].name
                )
            self._owed.add(aside.opaque, aside.code, line.resources, half)
        if self._open:
            self.held.wait(data)
        else:
            out += map(memoryview, data)

    def forget_coming(self, held: HeldFrame) -> None:
        if held is self.held.coming:
            self._swallow_rest()
        self._undo(self._ended_by_held, held.header)
        held.request = None
        self._free_room(held)
        self.held.drop(held)

    def release(self, request: Request, held: HeldFrame, out: list[Buffer]) -> None:
        """Forward a held request, behind everything forwarded so far but never inside a frame."""
        header = held.header
        self._ended_by_held.pop(id(header), None)
        if not header.flag & _ONEWAY:
            self._owed.add(header.opaque, header.code, request.resources, header.half)
        self._free_room(held)
        if held is self.held.coming:
            self._open = True  # the rest of the body streams through
            self.held.release(held, out)
        else:
            self.held.release(held, None if self._open else out)

    def give_up(self, held: HeldFrame) -> None:
        if held is self.held.coming:
            self._swallow_rest()
        self._undo(self._ended_by_held, held.header)
        self.held.drop(held)

    def _swallow_rest(self) -> None:
        self._swallow = True

    def _settle(self, header: Header) -> None:
        if not header.flag & _ONEWAY:
            self._owed.settle(header.opaque)

    def _undo(self, ended_by: dict[int, Ended], header: Header) -> None:
        ended = ended_by.pop(id(header), None)
        if ended is not None:
            self._transactions.undo(ended)

    def _undo_all(self, ended_by: dict[int, Ended]) -> None:
        while ended_by:
            self._transactions.undo(ended_by.popitem()[1])

    def end(self, out: list[Buffer]) -> None:
        """Queue an unfinished header at the end of the stream; drop held requests."""
        if self.held.coming is not None:
            self._free_room(self.held.coming)
        self.held.end()
        self._undo_all(self._ended_by_held)
        self._let_go()
        if self._beginning.pieces:
            out.append(self._beginning.take())

    def give_back(self) -> None:
        if self.held.coming is not None:
            self._free_room(self.held.coming)
        self._undo_all(self._ended)
        self._undo_all(self._ended_by_held)
        self._let_go()
        self._beginning.take()
        # Break reference cycles.
        self.lines = None
        del self._take


def _steps_of(header: Header, header_bytes: int) -> int:
    return max(1, header_bytes // _BYTES_A_STEP) if header.reading == STRICT else 1 + _SLOW_STEPS


def _is_special(header: Header) -> bool:
    return header.sys_flag & codes.SYS_FLAGS_SPECIAL != 0 or (
        header.kind == _TOPIC and refusals.is_internal(header.name)
    )
