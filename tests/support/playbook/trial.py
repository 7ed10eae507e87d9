"""A session under random conditions, compared with a model that sees the whole stream at once."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from limiter.counting.row import Second
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from playbook import frames
from playbook.lending import Loan
from playbook.playbook import Reading, open_session
from proxy.deciding.batch import Batch, Refuse, Request, Side
from proxy.protocols.base import Close, WireCounters
from proxy.protocols.rocketmq import answers
from proxy.protocols.rocketmq.answers import MAX_PENDING
from proxy.protocols.rocketmq.session import RocketMQSession
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE, MAX_FRAME_BYTES
from proxy.protocols.rocketmq.wire.frame import MAX_HEADER_BYTES
from proxy.protocols.rocketmq.wire.header import UNPARSABLE, Header, classify

Refuses = Callable[[int], bool]
"""Whether the request with this number on the connection is refused."""
RefusesName = Callable[[Resource, str], bool]
"""Whether requests for a resource, of a producer group, are refused."""

# The longest busy answer: 255 characters of a name and of a rule's, each six in JSON, and the rest.
_MAX_BUSY_BYTES = 2 * 255 * 6 + 300
_POISON = 0xEE


class Seen(NamedTuple):
    """One frame of the client's stream, as far as it has arrived."""

    start: int
    stop: int
    header: Header | None

    @property
    def limitable(self) -> bool:
        """Whether handlers decide it."""
        return self.header is not None and bool(self.header.kind)


def read_stream(data: bytes) -> tuple[list[Seen], str]:
    """Return the frames of a client's stream, and the reason why it ends the connection, or an empty text."""
    seen: list[Seen] = []
    at = 0
    while len(data) - at >= 8:
        length, header_type, high, low = struct.unpack_from(">iBBH", data, at)
        header_bytes = high << 16 | low
        if not 4 <= length <= MAX_FRAME_BYTES - 4 or header_bytes > length - 4 or header_type > 1:
            return seen, "bad_frame"
        header: Header | None = None
        if header_bytes > MAX_HEADER_BYTES:
            return seen, "unparsable"
        if at + 8 + header_bytes <= len(data):
            header = classify(data[at + 8 : at + 8 + header_bytes], header_type)
            if header is UNPARSABLE:
                return seen, "unparsable"
            if header.is_batch and at + 4 + length > len(data):
                header = None
        seen.append(Seen(at, at + 4 + length, header))
        at += 4 + length
    if at < len(data) and len(data) - at < 8:
        seen.append(Seen(at, len(data), None))
    return seen, ""


def refuse_of(resource: Resource) -> Refuse:
    """Return the refusal."""
    return Refuse(resource, "some rule", 123_456)


def gaps(data: bytes) -> set[int]:
    """Return the offsets between the frames of the broker's stream."""
    found, at = {0}, 0
    while len(data) - at >= 8:
        length, word = struct.unpack_from(">iI", data, at)
        if (word & 0xFFFFFF) > length - 4:
            break
        at += 4 + length
        found.add(at)
    return found


def random_pieces(data: bytes, random: Random, longest: int) -> Iterator[bytes]:
    """Yield a stream in pieces of random lengths."""
    at = 0
    while at < len(data):
        step = random.randint(1, longest)
        yield data[at : at + step]
        at += step


@dataclass
class Trial:
    refuses: Refuses
    wants_responses: bool = False
    reading: Reading | None = None
    # Optional: decides refusals by name.
    refuses_name: RefusesName | None = None
    # Lends the session.
    lends: Callable[["Trial"], Loan] | None = None
    limits: Limits | None = None
    sent: dict[Side, bytearray] = field(default_factory=lambda: {side: bytearray() for side in Side})
    received: dict[Side, bytearray] = field(default_factory=lambda: {side: bytearray() for side in Side})
    own: list[bytes] = field(default_factory=list)
    all_requests: list[Request] = field(default_factory=list)
    charged: dict[tuple[Resource, ...], int] = field(default_factory=dict)
    forbidden: set[int] = field(default_factory=set)
    closed: str | None = None

    def __post_init__(self) -> None:
        self.counters = WireCounters()
        session = open_session(
            self.counters, wants_responses=self.wants_responses, reading=self.reading, limits=self.limits
        )
        assert isinstance(session, RocketMQSession)
        self.session = session
        self.loan = None if self.lends is None else self.lends(self)
        self._undecided: tuple[Batch, memoryview] | None = None
        # The end of the client's last chunk, if it was not read.
        self._rest = b""
        self._theirs = 0
        self._own_at: set[int] = set()

    # --- Playing ----------------------------------------------------------------------------------

    def play(self, to_broker: bytes, to_client: bytes, random: Random, longest: int) -> None:
        """Play both directions at once in pieces of random lengths, up to their ends or a Close."""
        left = {
            Side.CLIENT: random_pieces(to_broker, random, longest),
            Side.BROKER: random_pieces(to_client, random, longest),
        }
        while left and self.closed is None:
            side = random.choice(list(left))
            if side is Side.CLIENT and self._undecided is not None:
                self.decide()
                continue
            self.resume(side, left)
            if self._undecided is not None and random.random() < 0.7:
                self.decide()
        if self._undecided is not None:
            self.decide()

    def resume(self, side: Side, left: dict[Side, Iterator[bytes]]) -> None:
        """Continue with the rest of a chunk, otherwise with the next piece. Remove a side that has none."""
        if side is Side.CLIENT and self._rest:
            rest, self._rest = self._rest, b""
            self._feed(side, rest)
            return
        piece = next(left[side], None)
        if piece is None:
            del left[side]
        else:
            self.feed(side, piece)

    def feed(self, side: Side, piece: bytes) -> None:
        """Give one peer's piece. A batch of it waits for ``decide``."""
        self.sent[side] += piece
        self._feed(side, piece)

    def _feed(self, side: Side, piece: bytes) -> None:
        if self.loan is not None and self._undecided is None:
            piece = self.loan.read(side, piece, 0, Second(0))
            if not piece:
                return
        chunk = memoryview(bytearray(piece))
        try:
            batch = self.session.receive(side, chunk, 0)
        except Close as close:
            self._close(close)
            batch = None
        if side is Side.CLIENT and self.session.left_bytes(side):
            self._rest = piece[-self.session.left_bytes(side) :]
        self._take()
        if batch is not None:
            self._undecided = (batch, chunk)
        else:
            chunk[:] = bytes([_POISON]) * len(chunk)

    def decide(self) -> None:
        """Give the verdicts on the waiting batch."""
        assert self._undecided is not None
        (batch, chunk), self._undecided = self._undecided, None
        self.forbidden |= {len(self.all_requests) + index for index in batch.verdicts}
        for index, request in enumerate(batch.requests):
            if self._is_refused(len(self.all_requests) + index, request) and index not in batch.verdicts:
                batch.add_verdicts({index: refuse_of(request.resources[0])})
        self.all_requests += batch.requests
        for charge in batch.charges:
            self.charged[charge.resources] = self.charged.get(charge.resources, 0) + charge.messages
        try:
            self.session.decided(batch, 0)
        except Close as close:
            self._close(close)
        self._take()
        chunk[:] = bytes([_POISON]) * len(chunk)

    def _is_refused(self, number: int, request: Request) -> bool:
        if self.refuses_name is None:
            return self.refuses(number)
        return self.refuses_name(request.resources[0], request.producer_group)

    def end(self) -> None:
        """End both streams, the client's first."""
        if self.closed is None:
            for side in Side:
                self.session.end(side, 0)
                self._take()

    def _close(self, close: Close) -> None:
        assert close.reason in {"bad_frame", "bad_answer", "unparsable", "tls", "proxy_protocol"}
        assert close.detail
        self.closed = self.closed or close.reason
        # A rest for a later turn is never read.
        del self.sent[Side.CLIENT][len(self.sent[Side.CLIENT]) - len(self._rest) :]
        self._rest = b""

    def _take(self) -> None:
        for part in self.session.take(Side.BROKER):
            self.received[Side.BROKER] += part
        for part in self.session.take(Side.CLIENT):
            if isinstance(part, memoryview):
                self._theirs += len(part)
            else:
                self.own += frames.split(bytes(part))
                self._own_at.add(self._theirs)
            self.received[Side.CLIENT] += part
        self._check_bounds()

    # --- Checking ---------------------------------------------------------------------------------

    def _check_bounds(self) -> None:
        session = self.session
        assert len(session._requests._beginning.pieces) <= 8 + MAX_HEADER_BYTES
        assert len(session._answers._beginning.pieces) <= 8 + answers.MAX_ANSWER_HEADER_BYTES
        assert session.in_flight() <= MAX_PENDING
        if session._waiting:
            waiting = sum(map(len, session._waiting))
            assert session.backlog_bytes(Side.CLIENT) == waiting
            assert waiting <= _MAX_BUSY_BYTES * self.counters.frames[Side.CLIENT]

    def check(self, *, ended: bool) -> None:
        """Compare the data of both peers with the model."""
        data = bytes(self.sent[Side.CLIENT])
        seen, broken = read_stream(data)
        if not data or data[0] in b"\x16P\r":
            assert not self.received[Side.BROKER]
            return
        if self.closed in {None, "bad_answer"}:
            assert not broken or self.closed
        else:
            assert broken == self.closed
        limitable = [frame for frame in seen if frame.limitable]
        assert len(limitable) == len(self.all_requests)
        refused = {
            frame.start for number, frame in enumerate(limitable) if self.refuses(number) or number in self.forbidden
        }
        passed = [
            data[frame.start : frame.stop]
            for frame in seen
            if frame.start not in refused and (frame.header is not None or (ended and self.closed is None))
        ]
        assert b"".join(passed) == self.received[Side.BROKER], "what passed is not what was sent without the refused"
        assert self.counters.frames[Side.CLIENT] == sum(frame.header is not None for frame in seen)
        self._check_requests(limitable)
        self._check_answers([frame for frame in limitable if frame.start in refused])

    def _check_requests(self, limitable: Sequence[Seen]) -> None:
        """Compare the requests of handlers with the headers."""
        for frame, request in zip(limitable, self.all_requests, strict=True):
            header = frame.header
            assert header is not None
            assert request.resources == (Resource(header.kind, header.name),)
            assert (request.refusal == "silent") == bool(header.flag & FLAG_ONEWAY)
            assert request.producer_group == header.producer_group
            assert not header.flag & FLAG_RESPONSE
            assert request.size_bytes == frame.stop - frame.start
            assert request.messages >= 1

    def _check_answers(self, refused: Sequence[Seen]) -> None:
        """Every refused request with an answer has one, in order, and the client has all of the broker's bytes."""
        expected = [
            frame.header.opaque for frame in refused if frame.header is not None and not frame.header.flag & FLAG_ONEWAY
        ]
        given = [_opaque(whole) for whole in self.own]
        assert given == expected[: len(given)]
        theirs = bytes(self.sent[Side.BROKER])
        theirs_gaps = gaps(theirs)
        assert self._own_at <= theirs_gaps, "an answer of our own inside one of the broker's frames"
        if self.closed is None:
            if len(theirs) in theirs_gaps:
                assert given == expected
            assert self._theirs == len(theirs)
        if not self.own:
            assert theirs.startswith(self.received[Side.CLIENT])


def _opaque(busy_answer: bytes) -> int:
    return int(busy_answer.rpartition(b'"opaque":')[2].rstrip(b"}"))
