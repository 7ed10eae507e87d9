"""Reads the broker's stream: matches answers with pending requests, and inserts Sluice's answers between frames.

All bytes are forwarded immediately and unchanged. Messages delivered to consumers are counted.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from limiter.rules.resource import Resource
from proxy.deciding.batch import Charge, Response
from proxy.flow.broker_signals import BrokerSignals
from proxy.protocols.base import Buffer, Close
from proxy.protocols.rocketmq.transactions import Question, Transactions, read_about_half
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import RequestCode
from proxy.protocols.rocketmq.wire.frame import HEADER_LENGTH, HalfSend, PartialFrame, prefix_at
from proxy.protocols.rocketmq.wire.header import Answer, read_answer

if TYPE_CHECKING:
    from sluice_native import Requests


PendingRequest = tuple[int, tuple[Resource, ...]]
"""A request's code, and its resources if it can be limited."""

LONG_POLLS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE.value,
        RequestCode.LITE_PULL_MESSAGE.value,
        RequestCode.POP_MESSAGE.value,
        RequestCode.POP_LITE_MESSAGE.value,
        RequestCode.NOTIFICATION.value,
    }
)
# Maximum per connection. Each takes about 200 bytes, or 8 to 16 in the compiled extension.
MAX_PENDING: Final = 16_384
MAX_LENT_POLLS: Final = 1024
MAX_UNANSWERED_HALVES: Final = 1024  # the broker asks about any further half messages

_TIMED_EVERY_NS: Final = 10_000_000
_TIMED_FOR_NS: Final = 60_000_000_000
# The timed request's opaque, and the time when the last timed request was forwarded.
NOTHING_TIMED: Final[tuple[int | None, int]] = (None, -_TIMED_EVERY_NS)

NOT_REMEMBERED: Final[PendingRequest] = (0, ())
_SEND: Final[PendingRequest] = (RequestCode.SEND_MESSAGE.value, ())


class Pending:
    """A connection's requests that await an answer, keyed by opaque.

    A request is added when it is read. A held request is removed, and added again when it is forwarded.

    If an opaque repeats, the later request replaces the earlier one. After a repeated or unreadable opaque, answers to
    half messages are no longer read, because the broker asks about those messages anyway.

    Args:
        opaques: Stores the opaques of all requests except long polls, even while the compiled extension reads the
            connection. If None, ``Pending`` stores all requests itself.
    """

    def __init__(self, opaques: "Requests | None" = None) -> None:
        self.opaques = opaques
        self._ambiguous = False
        self._requests: dict[int, PendingRequest] = {}
        self._polls: dict[int, PendingRequest] = {}
        self._timed, self._timed_ns = NOTHING_TIMED
        self._halves: dict[int, HalfSend] = {}
        # Messages after the first in each pending batch, keyed by opaque. If the compiled extension reads the answer,
        # they are counted when the connection is returned, and never as busy.
        self.further: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._requests) if self.opaques is None else len(self.opaques) + len(self._halves)

    def unanswered(self) -> int:
        if self.opaques is not None:
            sends = self.opaques.sends + len(self._halves)
        else:
            sends = sum(code in codes.SENDS for code, _ in self._requests.values())
        return sends + self.unanswered_in_batches()

    def unanswered_in_batches(self) -> int:
        return sum(messages for opaque, messages in self.further.items() if self._is_owed(opaque))

    def add(
        self,
        opaque: int,
        code: int,
        resources: tuple[Resource, ...],
        half: HalfSend | None = None,
        messages: int = 1,
    ) -> None:
        if self.further:
            self.further.pop(opaque, None)
        if messages > 1 and len(self.further) < MAX_PENDING:
            self.further[opaque] = messages - 1
        polls = code in LONG_POLLS
        apart = half is not None or polls or self.opaques is None
        if opaque in self._polls or opaque in self._halves or (apart and self._is_owed(opaque)):
            self._ambiguous = True
        if half is not None and len(self._halves) < MAX_UNANSWERED_HALVES and not self._is_ambiguous():
            self._halves[opaque] = half
            if self.opaques is not None:
                return
        if self.opaques is not None and not polls:
            self.opaques.add(opaque, code in codes.SENDS)
            return
        where = self._polls if polls else self._requests
        if len(where) < MAX_PENDING or opaque in where:
            where[opaque] = (code, resources)
        else:
            self._ambiguous = True

    def add_unknown(self) -> None:
        self._ambiguous = True

    def _is_ambiguous(self) -> bool:
        return self._ambiguous or (self.opaques is not None and self.opaques.ambiguous)

    def may_time(self, now_ns: int) -> bool:
        return now_ns - self._timed_ns >= (_TIMED_EVERY_NS if self._timed is None else _TIMED_FOR_NS)

    def time(self, opaque: int, now_ns: int) -> None:
        if self._is_owed(opaque):
            self._timed, self._timed_ns = opaque, now_ns

    def timed(self, now_ns: int) -> int | None:
        """Return the timed request's round trip in nanoseconds, or None if it is still unanswered."""
        opaque = self._timed
        if opaque is None or self._is_owed(opaque):
            return None
        self._timed = None
        took_ns = now_ns - self._timed_ns
        return took_ns if took_ns <= _TIMED_FOR_NS else None

    def withdrawn(self) -> None:
        if self._timed is not None and not self._is_owed(self._timed):
            self._timed = None

    def _is_owed(self, opaque: int) -> bool:
        return opaque in (self._requests if self.opaques is None else self.opaques)

    def lend(self) -> tuple[list[int], tuple[int | None, int]] | None:
        """Return the opaques of long polls and the timed request, or None if Python must still read an answer."""
        if self.opaques is None or self._halves or len(self._polls) > MAX_LENT_POLLS:
            return None
        if any(resources for _, resources in self._polls.values()):
            return None
        polls, self._polls = list(self._polls), {}
        return polls, (self._timed, self._timed_ns)

    def returned(
        self,
        polls: Sequence[int],
        timed: tuple[int | None, int],
        *,
        is_ambiguous: bool,
    ) -> int:
        """Take back the state from the compiled extension. Return how many answered messages it did not count."""
        self._polls = dict.fromkeys(polls, NOT_REMEMBERED)
        self._timed, self._timed_ns = timed
        self._ambiguous = self._ambiguous or is_ambiguous
        return sum(self.further.pop(opaque) for opaque in list(self.further) if not self._is_owed(opaque))

    def half_of(self, opaque: int) -> HalfSend | None:

        return self._halves.get(opaque) if self._halves and not self._is_ambiguous() else None

    def settle(self, opaque: int) -> PendingRequest | None:
        if self.further:
            self.further.pop(opaque, None)
        if self._halves and self._halves.pop(opaque, None) is not None and self.opaques is not None:
            return _SEND
        if self.opaques is None:
            return self._requests.pop(opaque, None) or self.settle_poll(opaque)
        is_send = self.opaques.settle(opaque)
        if is_send is None:
            return self.settle_poll(opaque)
        return _SEND if is_send else NOT_REMEMBERED

    def settle_poll(self, opaque: int) -> PendingRequest | None:
        return self._polls.pop(opaque, None)


_size_at = struct.Struct(">i").unpack_from
_SIZE_BYTES: Final = 4
MIN_RECORD_BYTES: Final = 91  # with IPv4 hosts, and no topic, body or properties
_ALL_THE_REST: Final = 1 << 62


class RecordCounter:
    """Counts the messages in the answer to a pull or pop. Each message is a record that starts with ``i32 totalSize``.

    If a size is invalid, the rest of the body counts as one record.
    """

    def __init__(self) -> None:
        self.count = 0
        self._skip = 0
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


# Longer headers that arrive in pieces are not read. Their requests stay pending.
MAX_ANSWER_HEADER_BYTES: Final = 64 * 1024

_CONSUMING: Final = frozenset(codes.CONSUMING)
_CHECK: Final = codes.RequestCode.CHECK_TRANSACTION_STATE.value
_SUCCESS: Final = codes.ResponseCode.SUCCESS.value


class _Bringing(msgspec.Struct, gc=False):
    counter: RecordCounter
    resources: tuple[Resource, ...]
    frame_bytes: int


class AnswerStream:
    def __init__(
        self, owed: Pending, transactions: Transactions, signals: BrokerSignals, *, wants_responses: bool
    ) -> None:
        self.frames = 0
        self.responses: list[Response] = []
        self.charges: list[Charge] = []
        self.close: Close | None = None
        self._owed = owed
        self._transactions = transactions
        self._signals = signals
        self._wants_responses = wants_responses
        # An incomplete header, which has already been forwarded.
        self._beginning = PartialFrame(MAX_ANSWER_HEADER_BYTES, header_bytes_of_answer)
        self._left = 0
        self._bringing: _Bringing | Question | None = None

    def between_frames(self) -> bool:
        return not self._beginning.pieces and not self._left

    def lend(self) -> int | None:
        """Return how many bytes of the current frame are missing, or None if the session must read them."""
        return None if self._beginning.pieces or self._bringing is not None or self.responses else self._left

    def returned(self, left_bytes: int) -> None:
        self._left = left_bytes

    def feed(self, chunk: memoryview, waiting: Sequence[bytes], out: list[Buffer]) -> bool:
        """Add a chunk to ``out``, with ``waiting`` inserted at its first frame boundary. Return whether it has one."""
        end = len(chunk)
        gap: int | None = None
        position = 0
        try:
            position = self._continue_head(chunk) if self._beginning.pieces else self._step(chunk, 0, self._left)
            if self.between_frames():
                gap = position
                while end - position >= codes.PREFIX_BYTES:
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
        begun = self._beginning.resume(chunk)
        if begun is None:
            return len(chunk)
        self.frames += 1
        if begun.header is not None:
            self._note(memoryview(begun.header), begun.frame_bytes)
        return self._step(chunk, begun.position, begun.left_bytes)

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
            messages = 1 + self._owed.further.get(answer.opaque, 0)
            request = self._owed.settle(answer.opaque)
            if request is not None and request[0] in codes.SENDS:
                self._signals.answers += messages
                self._signals.busy += messages if answer.code in codes.BUSY_CODES else 0
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
        raise Close(
            "bad_answer",
            f"the broker sent a header of {header_bytes} bytes that does not fit in its frame of length {length}",
        )
    return header_bytes
