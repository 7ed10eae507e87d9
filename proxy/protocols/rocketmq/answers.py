"""Broker to client: finds the gaps between frames, and notes which requests were answered.

All bytes pass at once and unchanged. Headers are only searched for the request's number: a drain must know what is in
flight. Messages in answers to requests that consume are counted as they pass.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from limiter.rules.resource import Resource
from proxy.deciding.batch import Charge, Response
from proxy.protocols.base import Buffer, Close
from proxy.protocols.rocketmq.pending import Pending
from proxy.protocols.rocketmq.scanning import FEW_STEPS
from proxy.protocols.rocketmq.transactions import Question, Transactions, read_about_half
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.frame import HEADER_LENGTH, PartialFrame, prefix_at
from proxy.protocols.rocketmq.wire.header import Answer, read_answer

_size_at = struct.Struct(">i").unpack_from
_SIZE_BYTES: Final = 4
# A record with neither topic nor body nor properties, and hosts in IPv4: the shortest there is.
MIN_RECORD_BYTES: Final = 91
_ALL_THE_REST: Final = 1 << 62


# Bodies of answers to pulls and pops: stored records, each beginning with its i32 totalSize. They are counted while
# they stream through; only a size that is cut in two is copied.
class RecordCounter:
    """Counts the records of one body, in pieces of any size.

    A size that is nonsense, or longer than the rest of the body, counts as one record that takes the rest.
    """

    __slots__ = ("_part", "_skip", "count")

    def __init__(self) -> None:
        self.count = 0  # records whose size has come
        # Bytes still to come of the current record.
        self._skip = 0
        # The beginning of a size that was cut.
        self._part = b""

    def feed(self, data: memoryview) -> None:
        size = len(data)
        at = self._skip
        if self._part:
            wanted = _SIZE_BYTES - len(self._part)
            part = self._part + bytes(data[:wanted])
            if size < wanted:
                self._part = part
                return
            self._part = b""
            self.count += 1
            at = wanted - _SIZE_BYTES + _length(part, 0)
        last = size - _SIZE_BYTES
        while at <= last:
            self.count += 1
            at += _length(data, at)
        if at < size:
            self._part = bytes(data[at:])
        self._skip = max(0, at - size)


def _length(data: bytes | memoryview, at: int) -> int:
    record_bytes: int = _size_at(data, at)[0]
    return record_bytes if record_bytes >= MIN_RECORD_BYTES else _ALL_THE_REST


# A longer header is not gathered when it comes in pieces; its request stays owed.
MAX_ANSWER_HEADER_BYTES: Final = 64 * 1024

_CONSUMING: Final = frozenset(codes.CONSUMING)
_CHECK: Final = codes.RequestCode.CHECK_TRANSACTION_STATE.value
_SUCCESS: Final = codes.ResponseCode.SUCCESS.value


class _Bringing(msgspec.Struct, gc=False):
    counter: RecordCounter
    resources: tuple[Resource, ...]
    frame_bytes: int


class AnswerStream:
    """The broker's stream of one connection."""

    def __init__(self, owed: Pending, transactions: Transactions, *, wants_responses: bool) -> None:
        self.frames = 0
        self.responses: list[Response] = []  # of every answer if they are wanted, since they were last taken
        self.charges: list[Charge] = []  # for whole answers to requests that consume, since they were last taken
        # Set when the last chunk ended in something that is not a frame; what came before it was queued.
        self.close: Close | None = None
        self._owed = owed
        self._transactions = transactions
        self._wants_responses = wants_responses
        # The bytes of an unfinished header have been forwarded.
        self._beginning = PartialFrame(MAX_ANSWER_HEADER_BYTES, header_bytes_of_answer)
        # Bytes still to come of a frame whose header is known.
        self._left = 0
        # Reads the body that is still coming.
        self._bringing: _Bringing | Question | None = None
        # Frames of the last chunk that were read one by one.
        self._steps = 0

    def reads_fast(self) -> bool:
        return self._steps <= FEW_STEPS

    def between_frames(self) -> bool:
        return not self._beginning.pieces and not self._left

    def feed(self, chunk: memoryview, waiting: Sequence[bytes], out: list[Buffer]) -> bool:
        """Queue one chunk, and ``waiting`` in its first gap; return whether there was one."""
        end = len(chunk)
        gap: int | None = None
        position = 0
        try:
            position = self._continue_head(chunk) if self._beginning.pieces else self._step(chunk, 0, self._left)
            if self.between_frames():
                gap = position
                opaques = self._owed.opaques
                steps = 0
                while end - position >= codes.PREFIX_BYTES:
                    if opaques is not None:
                        position, settled = opaques.settle(chunk, position)
                        self.frames += settled
                        if end - position < codes.PREFIX_BYTES:
                            break
                    steps += 1
                    length, word = prefix_at(chunk, position)
                    header_bytes = header_bytes_of_answer(length, word)
                    header_at = position + codes.PREFIX_BYTES
                    body_at = header_at + header_bytes
                    position += 4 + length
                    if body_at <= end:
                        self._note(chunk[header_at:body_at], 4 + length)
                        if self._bringing is not None:
                            self._bring(chunk[body_at:position], left=position > end)
                    elif header_bytes <= MAX_ANSWER_HEADER_BYTES:
                        position -= 4 + length
                        break
                    self.frames += 1
                self._steps = steps
                if position < end:
                    self._beginning.pieces += chunk[position:]
                else:
                    self._left = position - end
        except Close as close:
            self.close = close
            self._beginning.pieces.clear()
            end = position
        passed = 0
        if waiting and gap is not None:
            if gap > 0:
                out.append(chunk[:gap])
                passed = gap
            out.extend(waiting)
        if passed < end:
            out.append(chunk[passed:end])
        return gap is not None

    def _step(self, chunk: memoryview, position: int, left: int) -> int:
        step = min(left, len(chunk) - position)
        self._left = left - step
        if self._bringing is not None:
            self._bring(chunk[position : position + step], left=self._left > 0)
        return position + step

    def _bring(self, piece: memoryview, *, left: bool) -> None:
        bringing = self._bringing
        if bringing is None:
            return
        if isinstance(bringing, Question):
            bringing.feed(piece)
            if not left:
                self._bringing = None
                self._transactions.asked(bringing)
            return
        counter = bringing.counter
        counter.feed(piece)
        if not left:
            self._bringing = None
            size_bytes = bringing.frame_bytes if counter.count else 0
            self.charges.append(Charge(bringing.resources, counter.count, size_bytes, consumes=True))

    def _continue_head(self, chunk: memoryview) -> int:
        begun = self._beginning.go_on(chunk)
        if begun is None:
            return len(chunk)
        self.frames += 1
        header = begun.header
        if header is not None:
            self._note(memoryview(header), begun.frame_bytes)
        return self._step(chunk, begun.position, begun.stop - begun.position)

    def _note(self, header: memoryview, frame_bytes: int) -> None:
        answer = read_answer(header)
        if answer is None:
            return
        if not answer.flag & codes.FLAG_RESPONSE:
            asked = read_about_half(header) if answer.code == _CHECK else None
            if asked is not None:
                self._bringing = Question(asked)
        else:
            half = self._owed.half_of(answer.opaque)
            about_half = None if half is None else read_about_half(header)
            if half is not None and about_half is not None:
                self._transactions.answered(half, about_half)
            request = self._owed.settle(answer.opaque)
            if request is not None and request[1] and request[0] in _CONSUMING:
                self._expect(answer, request[1], frame_bytes)
            if self._wants_responses:
                code, resources = request or (None, ())
                self.responses.append(Response(code, resources, answer.code, frame_bytes))

    def _expect(self, answer: Answer, resources: tuple[Resource, ...], frame_bytes: int) -> None:
        if answer.code == _SUCCESS:
            self._bringing = _Bringing(RecordCounter(), resources, frame_bytes)
        else:
            self.charges.append(Charge(resources, 0, consumes=True))


def header_bytes_of_answer(length: int, word: int) -> int:
    header_bytes = word & HEADER_LENGTH
    if header_bytes > length - 4:
        raise Close("bad_answer", f"the broker sent a header of {header_bytes} bytes in a frame of length {length}")
    return header_bytes
