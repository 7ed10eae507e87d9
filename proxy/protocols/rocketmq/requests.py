"""Reads the client's stream: splits it into frames and removes refused requests.

The compiled extension does the same. A request is decided when its header is complete. The rest of its body is then
forwarded as it arrives, discarded, or added to the copy of a held request.

The cost of a message batch depends on its body, so the body is buffered before the decision. If there is not enough
memory, the batch is refused. For all other requests, only an incomplete header is buffered, which takes at most
MAX_HEADER_BYTES plus 8 bytes.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import msgspec

from limiter.rules.resource import Resource
from proxy.common.buffers import Gathering
from proxy.deciding.batch import Batch, Hold, Later, Refusal, Refuse, Request
from proxy.protocols.base import Buffer, Close, SessionContext
from proxy.protocols.rocketmq import refusals
from proxy.protocols.rocketmq.answers import Pending
from proxy.protocols.rocketmq.batch_body import BatchReader
from proxy.protocols.rocketmq.client_info import ClientInfo, Names
from proxy.protocols.rocketmq.held import HeldFrame, Holding
from proxy.protocols.rocketmq.lines import Lines, SpooledRequest
from proxy.protocols.rocketmq.transactions import Ended, EndOfTransaction, Transactions, read_half
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.frame import (
    HEADER_LENGTH,
    MAX_HEADER_BYTES,
    PartialFrame,
    header_bytes_of,
    prefix_at,
)
from proxy.protocols.rocketmq.wire.header import LENIENT, MAX_FIELDS, STRICT, UNPARSABLE, Header, classify
from proxy.protocols.rocketmq.wire.message_id import message_id
from proxy.spool.segments import Piece

if TYPE_CHECKING:
    from sluice_native import Requests

# After a header that the strict parser rejects, it must accept this many before the connection is lent again.
TRIAL_FRAMES: Final = 32

# Maximum per chunk. A frame takes at least one step, which is a few microseconds. A header that the strict parser
# rejects can take half a millisecond, so it uses all steps.
_MAX_STEPS: Final = 256
_BYTES_PER_STEP: Final = 256
_MESSAGES_PER_STEP: Final = 16
_PREFIX_BYTES: Final = codes.PREFIX_BYTES
_ONEWAY: Final = codes.FLAG_ONEWAY
_SUBSCRIPTION: Final = codes.KIND_SUBSCRIPTION
_TOPIC: Final = codes.KIND_TOPIC
_HEART_BEAT: Final = codes.RequestCode.HEART_BEAT.value
_UNREGISTER: Final = codes.RequestCode.UNREGISTER_CLIENT.value


_NOTHING: Final = memoryview(b"")


Refused = Sequence[tuple[Header, Refuse]]


class Frame(msgspec.Struct, gc=False):
    """A frame whose header is complete or too long. It is the ``handle`` of its request until the request is held."""

    header: Header
    raw: bytes
    header_type: int
    size_bytes: int
    start: int  # offset in the chunk
    stop: int  # offset of its end, perhaps beyond the chunk
    lead: bytes = b""  # its bytes from earlier chunks
    index: int = -1
    is_own: bool = False  # whether Sluice answers it instead of the broker
    ended: Ended | None = None  # to be undone if the frame is not forwarded


@cache
def _reads_prefix(max_length: int) -> Callable[[int, int], int]:
    return partial(header_bytes_of, max_length=max_length)


class RequestStream:
    """Reads the stream from a connection's client.

    Args:
        take: Handles a limit command, given its parsed header, raw header and header type. Returns whether Sluice
            answers the command.
        compiled: The compiled extension's state, or None if the extension never reads this stream.
    """

    # An instance dict of this size would take another KiB.
    __slots__ = (
        *("_address", "_asked", "_batch", "_beginning", "_body_left", "_chunk", "_compiled", "_counters"),
        *("_ended_by_held", "_exempt", "_forgotten_bytes", "_frames", "_gathered", "_gathering", "_header_bytes_of"),
        *("_header_room", "_limiting", "_limits_kind", "_now_ns", "_open", "_owed", "_reader", "_refuses_internal"),
        *("_room", "_steps", "_swallow", "_take", "_transactions", "_trial", "about", "close", "frames", "held"),
        *("left_bytes", "lines", "lost", "names", "refusals"),
    )

    def __init__(
        self,
        context: SessionContext,
        owed: Pending,
        transactions: Transactions,
        take: Callable[[Header, bytes, int], bool],
        *,
        compiled: "Requests | None" = None,
    ) -> None:
        self.about = ClientInfo()
        self.frames = 0
        # Set after an invalid frame. Frames before it are still forwarded.
        self.close: Close | None = None
        self.held = Holding()
        self.lines: Lines | None = None
        self.names = Names()
        self.refusals: dict[int, Refuse] = {}  # those that do not depend on limits, by index in the batch
        # Whether part of a message batch was evicted from memory. The batch must be refused even while limiting is off.
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
        self._compiled = compiled
        self.left_bytes = 0
        self._header_bytes_of = _reads_prefix(context.options.max_frame_bytes - 4)
        self._beginning = PartialFrame(MAX_HEADER_BYTES, self._header_bytes_of)

        self._body_left = 0
        self._swallow = False
        # Whether a frame has been forwarded in part. Nothing else may be written before the rest of it.
        self._open = False
        self._trial = 1  # the first header identifies the client
        # An incomplete message batch. Its body may be evicted from memory.
        self._gathering: Frame | None = None
        self._batch = bytearray()
        self._forgotten_bytes = 0
        self._gathered = Gathering(self._address)
        self._reader = BatchReader()
        # If an incomplete header is evicted from memory, its next bytes close the connection.
        self._header_room = Gathering(self._address, self._beginning.pieces.clear)
        self._now_ns = 0
        self._chunk = _NOTHING
        self._frames: list[Frame] = []
        self._asked: list[Request] = []
        self._steps = 0
        self._ended_by_held: dict[int, Ended] = {}  # by ``id`` of the held request's header

    def message_id(self, request: Request) -> bytes:
        frame = request.handle
        return message_id(frame.raw, frame.header_type) if isinstance(frame, Frame) else b""

    def between_frames(self) -> bool:
        is_complete = not self._beginning.pieces and self._gathering is None and not self._body_left
        return is_complete and not self._frames and not self.left_bytes

    @property
    def is_cut(self) -> bool:
        return self._open

    def missing_bytes(self) -> int:
        if self._gathering is not None:
            return self._missing_of(self._gathering)
        return self._body_left or self._beginning.missing_bytes()

    def shown_names(self) -> tuple[tuple[str, ...], int]:
        return self.names.shown(() if self._compiled is None else self._compiled.names())

    def take_back(self) -> bytes:
        return self._beginning.take()

    def lend(self) -> "tuple[Requests, tuple[int, bool]] | None":
        held = self.held
        waits = held.count or held.waiting or held.coming is not None
        if waits or self._trial or self._frames or self.left_bytes or self.about.listening:
            return None
        if self._compiled is None or self._gathering is not None:
            return None
        if self._beginning.pieces and not self._beginning.readable_again():
            return None
        return self._compiled, (self._body_left, self._swallow)

    def returned(self, left_bytes: int, *, swallows: bool) -> None:
        self._body_left, self._swallow = left_bytes, swallows
        self._open = left_bytes > 0 and not swallows

    def feed(self, chunk: memoryview, now_ns: int, out: list[Buffer]) -> list[Request]:
        """Read the frames of a chunk, except its last ``left_bytes`` bytes. Return the requests that need a decision.

        Call ``pass_on`` before passing the next chunk.
        """
        self.left_bytes = self._steps = 0
        self._chunk, self._asked, self.refusals = chunk, [], {}
        self.lost = False
        self._now_ns = now_ns
        size = len(chunk)
        subscriptions = self._limits_kind(_SUBSCRIPTION)
        position = self._continue_body(chunk, out) if self._body_left else 0
        try:
            if self._header_room.lost:
                self._grow_header()
            while position < size and not self.left_bytes:
                if self._steps >= _MAX_STEPS:
                    self.left_bytes = size - position
                elif self._gathering is not None:
                    position = self._gather(position, self._gathering)
                else:
                    position = self._begin_frame(position, subscriptions=subscriptions)
        except Close as close:
            self.close = close
            self._beginning.take()
        return self._asked

    def _continue_body(self, chunk: memoryview, out: list[Buffer]) -> int:
        end = min(self._body_left, len(chunk))
        self._body_left -= end
        held = self.held.coming
        if self._open:
            out.append(chunk[:end])
        elif held is not None:
            if self._has_room(held, end):
                self.held.gather(held, chunk[:end])
            else:
                self._give_up_coming(held)
                held = None
        if self.about.listening:
            self.about.receive(chunk[:end], more=self._body_left > 0)
        if not self._body_left:
            self._open = False
            self.held.release_waiting(out)
            self.held.coming = None
            if held is not None and held.request is not None:
                self._has_come(held)
        return end

    def _has_come(self, held: HeldFrame) -> None:
        lines, request, held.request = self.lines, held.request, None
        if lines is None or request is None:
            return
        self._free_room(held)
        ended = self._ended_by_held.pop(id(held.header), None)
        put = lines.spool_held if held.is_held else lines.put
        put(request, held.header, self.held.take(held), held.since_ns, ended=ended)

    def _begin_frame(self, position: int, *, subscriptions: bool) -> int:
        chunk, size = self._chunk, len(self._chunk)
        if not self._beginning.pieces and size - position >= _PREFIX_BYTES:
            length, word = prefix_at(chunk, position)
            header_bytes = self._header_bytes_of(length, word)
            body_at = position + _PREFIX_BYTES + header_bytes
            if body_at <= size and header_bytes <= MAX_HEADER_BYTES:
                raw = chunk[position + _PREFIX_BYTES : body_at].tobytes()
                header = classify(raw, word >> 24, subscriptions)
                stop = position + 4 + length
                return self._take_header(Frame(header, raw, word >> 24, 4 + length, position, stop), header_bytes)
        before_bytes = len(self._beginning.pieces)
        begun = self._beginning.resume(chunk[position:])
        if begun is None:
            self._grow_header()
            return size
        self._room.give_back(self._header_room)
        raw = begun.header or b""
        header = UNPARSABLE if begun.header is None else classify(raw, begun.header_type, subscriptions)
        stop, lead = position + begun.frame_bytes - before_bytes, begun.come[:before_bytes]
        frame = Frame(header, raw, begun.header_type, begun.frame_bytes, position, stop, lead)
        return self._take_header(frame, begun.header_bytes)

    def _grow_header(self) -> None:
        if not self._exempt and not self._room.grow(self._header_room, len(self._beginning.pieces), self._now_ns):
            raise Close("unparsable", "there is not enough memory to buffer the client's long, incomplete header")

    def _take_header(self, frame: Frame, header_bytes: int) -> int:
        header = frame.header
        if header is UNPARSABLE:
            self._take_unreadable(header_bytes, frame.header_type)
        strict = header.reading == STRICT
        self._steps += max(1, header_bytes // _BYTES_PER_STEP) if strict else _MAX_STEPS
        if header.is_batch:
            return self._begin_batch(frame)
        self._take_frame(frame)
        return min(frame.stop, len(self._chunk))

    def _begin_batch(self, frame: Frame) -> int:
        room = self._gathered = Gathering(self._address, None if self._exempt else self._forget_body)
        if frame.stop > len(self._chunk) and not self._room.fits(room, frame.size_bytes, self._now_ns):
            return self._take_batch(frame, is_read=False)
        self._gathering = frame
        self._batch += frame.lead
        return self._gather(frame.start, frame)

    def _gather(self, position: int, frame: Frame) -> int:
        chunk, room, batch = self._chunk, self._gathered, self._batch
        before_bytes, left = len(batch), self._missing_of(frame)
        end = min(position + left, len(chunk))
        left -= end - position
        frame.start, frame.stop = position, end + left
        if room.lost or (left and not self._room.grow(room, frame.size_bytes - left, self._now_ns)):
            self.lost = room.lost
            self._end_gathering(frame)
            return self._take_batch(frame, is_read=False)
        batch += chunk[position:end]
        if left:
            return end
        with memoryview(batch) as whole, whole[_PREFIX_BYTES + len(frame.raw) :] as body:
            is_read = self._reader.resume(body, max(1, _MAX_STEPS - self._steps) * _MESSAGES_PER_STEP)
        if not is_read:
            # Leave the last byte unread, because the next call needs a nonempty chunk.
            del batch[-1:]
            self.left_bytes = len(chunk) - end + 1
            return end - 1
        self._steps += self._reader.effort // _MESSAGES_PER_STEP
        del batch[before_bytes:]
        self._end_gathering(frame)
        return self._take_batch(frame)

    def _missing_of(self, batch: Frame) -> int:
        return batch.size_bytes - self._forgotten_bytes - len(self._batch)

    def _forget_body(self) -> None:
        if self._gathering is not None:
            body_at = _PREFIX_BYTES + len(self._gathering.raw)
            self._forgotten_bytes = len(self._batch) - body_at
            del self._batch[body_at:]

    def _end_gathering(self, frame: Frame) -> None:
        self._gathering = None
        self._room.give_back(self._gathered)
        frame.lead = bytes(self._batch)
        self._batch.clear()
        self._forgotten_bytes = 0

    def _take_batch(self, frame: Frame, *, is_read: bool = True) -> int:
        reader, self._reader = self._reader, BatchReader()
        self._take_frame(frame, max(1, reader.count))
        resource = self._asked[-1].resources[0]
        if not is_read and not self._exempt:
            self.refusals[frame.index] = refusals.unreadable_batch(resource)
        elif reader.malformed and not self._exempt:
            self.refusals[frame.index] = refusals.malformed_batch(resource)
        elif reader.sets_inner and self._refuses_internal:
            self.refusals[frame.index] = refusals.inner_batch(resource)
        return min(frame.stop, len(self._chunk))

    def _take_frame(self, frame: Frame, messages: int = 1) -> None:
        self.frames += 1
        self._frames.append(frame)
        header = frame.header
        left = frame.stop - len(self._chunk)
        if left > 0:
            self._body_left, self._swallow = left, False
        if header.reading != STRICT:
            if header.reading == LENIENT:
                self._count_undecodable("lenient")
            self._owed.add_unknown()  # the broker may read a different opaque, or assign one
            self._trial += TRIAL_FRAMES
            self.about.identify(header)
        elif self._trial:
            self._trial -= 1
            self.about.identify(header)
        oneway = header.flag & _ONEWAY != 0
        kind = header.kind
        if not kind:
            if header is not UNPARSABLE and not header.flag & codes.FLAG_RESPONSE:
                frame.is_own = header.code in codes.HEARD and self._listen(frame)
                if not (frame.is_own or oneway):
                    self._owed.add(header.opaque, header.code, ())
            return
        frame.index = len(self._asked)
        resources = self.names.known[kind].get(header.name) or self.names.remember(kind, header.name)
        if kind == codes.KIND_TRANSACTION:
            resources = self._end_transaction(frame, resources)
        elif header.sys_flag & codes.SYS_FLAGS_SPECIAL or (kind == _TOPIC and refusals.is_internal(header.name)):
            self._inspect(frame, resources[0])
        if not oneway:
            self._owed.add(header.opaque, header.code, resources, header.half, messages)
        refusal: Refusal = "silent" if oneway else "answered"
        request = Request(resources, messages, frame.size_bytes, header.producer_group, refusal, None, frame)
        if kind == _SUBSCRIPTION:
            request.messages, request.consumes, request.by_answer = 0, True, True
        self._asked.append(request)

    def _end_transaction(self, frame: Frame, resources: tuple[Resource, ...]) -> tuple[Resource, ...]:
        strict = frame.header.reading == STRICT
        end = EndOfTransaction.read(frame.raw, frame.header_type) if strict else None
        ended = frame.ended = None if end is None else self._transactions.end(end)
        if ended is None:
            # An unreadable request may be a commit.
            if (end is None or end.commits) and not self._exempt:
                self.refusals[frame.index] = refusals.unknown_transaction(resources[0])
            return resources
        if not ended.topic:
            return resources
        name = ended.topic.removeprefix(codes.RETRY_PREFIX)
        kind = _TOPIC if name == ended.topic else codes.KIND_RETRY_GROUP
        return resources + (self.names.known[kind].get(name) or self.names.remember(kind, name))

    def _inspect(self, frame: Frame, resource: Resource) -> None:
        header = frame.header
        if self._refuses_internal and refusals.is_internal(header.name):
            self.refusals[frame.index] = refusals.internal_topic(resource)
        elif self._refuses_internal and header.sys_flag & codes.SYS_FLAG_INNER_BATCH:
            self.refusals[frame.index] = refusals.inner_batch(resource)
        elif (
            header.sys_flag & codes.SYS_FLAG_TRANSACTION == codes.SYS_FLAG_HALF
            and header.reading == STRICT
            and header.kind == _TOPIC
            and not header.is_batch
        ):
            header.half = read_half(frame.raw, frame.header_type, header.name)

    def _take_unreadable(self, header_bytes: int, header_type: int) -> None:
        # The broker may understand it as any request. Without its opaque, Sluice cannot answer it.
        self._count_undecodable("none")
        if self._exempt or not self._limiting():
            return
        if header_bytes > MAX_HEADER_BYTES:
            why = f"the maximum is {MAX_HEADER_BYTES} bytes"
        elif header_type == codes.HEADER_JSON:
            why = "it is not JSON in the form that clients send, or contains a name that no broker accepts"
        else:
            why = f"it has inconsistent lengths, more than {MAX_FIELDS} fields, or a name that no broker accepts"
        raise Close("unparsable", f"the client sent a header of {header_bytes} bytes that cannot be read: {why}")

    def _count_undecodable(self, read_by: str) -> None:
        counts = self._counters.undecodable
        counts[read_by] = counts.get(read_by, 0) + 1

    def _listen(self, frame: Frame) -> bool:
        header = frame.header
        if header.code == _HEART_BEAT:
            body_bytes = frame.size_bytes - _PREFIX_BYTES - len(frame.raw)
            self.about.heartbeat(body_bytes, self._chunk[frame.stop - body_bytes : frame.stop])
            return False
        if header.code == _UNREGISTER:
            self.about.sign_off(frame.raw, frame.header_type)
            return False
        return self._take(header, frame.raw, frame.header_type)

    def pass_on(self, batch: Batch | None, out: list[Buffer]) -> Refused:
        """Queue the chunk for the broker without refused and held requests. Return the refused requests in order."""
        chunk, frames, self._frames = self._chunk, self._frames, []
        size, verdicts = len(chunk), {} if batch is None else batch.verdicts
        start = stop = frames[0].start if frames else 0
        refused: list[tuple[Header, Refuse]] = []
        for frame in frames:
            verdict, stop = verdicts.get(frame.index), frame.stop
            passes = verdict is None or not isinstance(verdict, Refuse | Hold | Later)
            if passes and not frame.is_own:
                if frame.lead:
                    out.append(frame.lead)
                continue
            if frame.start > start:
                out.append(chunk[start : frame.start])
            start, held = stop, None
            if batch is not None and verdict is not None:
                self._settle(frame.header)
            if isinstance(verdict, Refuse):
                self._undo(frame.ended)
                refused.append((frame.header, verdict))
            elif batch is not None and isinstance(verdict, Hold | Later):
                held = self._keep(frame, batch.requests[frame.index], verdict)
            if stop > size:
                self.held.coming, self._swallow = held, held is None
        if start < stop:
            self._open = stop > size
            if start < size:
                out.append(chunk[start:stop])
        self._chunk = _NOTHING
        if verdicts:
            self._owed.withdrawn()
        return refused

    def _keep(self, frame: Frame, request: Request, verdict: Hold | Later) -> HeldFrame | None:
        header, lines, ended = frame.header, self.lines, frame.ended
        begins = isinstance(verdict, Hold) and verdict.spools and lines is not None and not lines.has(request)
        is_spooled = lines is not None and (begins or isinstance(verdict, Later))
        data = frame.lead + self._chunk[frame.start : frame.stop]
        if lines is not None and is_spooled and frame.stop <= len(self._chunk):
            put = lines.spool_held if begins else lines.put
            put(request, header, data, self._now_ns, ended=ended)
            return None
        held = request.handle = self.held.hold(header, data)
        if ended is not None:
            self._ended_by_held[id(header)] = ended
        if is_spooled:
            held.request, held.is_held, held.since_ns = request, begins, self._now_ns
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
        lines, request = self.lines, held.request
        self.give_up(held)
        if lines is not None and request is not None:
            lines.refuse_no_room(request, held.header.opaque, is_held=held.is_held)

    def resume(self, spooled: SpooledRequest, data: Sequence[Piece], out: list[Buffer]) -> None:
        line = spooled.line
        if not spooled.oneway:
            half = None
            if spooled.is_half:
                whole = b"".join(data)
                word: int = prefix_at(whole)[1]
                half = read_half(
                    whole[_PREFIX_BYTES : _PREFIX_BYTES + (word & HEADER_LENGTH)], word >> 24, line.resources[0].name
                )
            self._owed.add(spooled.opaque, spooled.code, line.resources, half)
        if self._open:
            self.held.wait(data)
        else:
            out += map(memoryview, data)

    def release(self, request: Request, held: HeldFrame, out: list[Buffer]) -> None:
        header = held.header
        self._ended_by_held.pop(id(header), None)
        if not header.flag & _ONEWAY:
            self._owed.add(header.opaque, header.code, request.resources, header.half, request.messages)
        self._free_room(held)
        if held is self.held.coming:
            self._open = True
            self.held.release(held, out)
        else:
            self.held.release(held, None if self._open else out)

    def give_up(self, held: HeldFrame) -> None:
        if held is self.held.coming:
            self._swallow = True
        self._free_room(held)
        self._undo(self._ended_by_held.pop(id(held.header), None))
        self.held.drop(held)

    def _settle(self, header: Header) -> None:
        if not header.flag & _ONEWAY:
            self._owed.settle(header.opaque)

    def _undo(self, ended: Ended | None) -> None:
        if ended is not None:
            self._transactions.undo(ended)

    def end(self, out: list[Buffer]) -> None:
        gathering = self._gathering
        self._release_body()
        self.held.end()
        if gathering is not None:
            out.append(gathering.lead)
        elif self._beginning.pieces:
            out.append(self._beginning.take())

    def give_back(self) -> None:
        self._release_body()
        for frame in self._frames:
            self._undo(frame.ended)
        self._frames.clear()
        self._beginning.take()
        # Break reference cycles.
        self.lines = None
        del self._take

    def _release_body(self) -> None:
        if self.held.coming is not None:
            self._free_room(self.held.coming)
        while self._ended_by_held:
            self._undo(self._ended_by_held.popitem()[1])
        self._room.give_back(self._header_room)
        if self._gathering is not None:
            self._end_gathering(self._gathering)
