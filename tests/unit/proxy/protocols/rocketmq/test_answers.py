"""The broker's stream: gaps between frames, and answers matched with their requests."""

import pytest
from harness.wire_bytes import count_records
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook.frames import answer, broker_request, cut, frame, records, split
from stored_records import Message, encode_record

from admin.demo.broker import pack_host
from limiter.rules.resource import Resource
from proxy.flow.broker_signals import BrokerSignals
from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq.answers import (
    MAX_PENDING,
    MIN_RECORD_BYTES,
    AnswerStream,
    Pending,
    RecordCounter,
)
from proxy.protocols.rocketmq.transactions import Transactions

FIRST, SECOND = answer(1, body=b"first body"), answer(2)


def two_requests() -> Pending:
    owed = Pending()
    owed.add(1, 310, (Resource("topic", "a"),))
    owed.add(2, 34, ())
    return owed


def answers_to(owed: Pending) -> AnswerStream:
    return AnswerStream(owed, Transactions(), BrokerSignals(), wants_responses=True)


def taking_answers_to(owed: Pending) -> AnswerStream:
    for opaque, code in ((5, 11), (6, 361), (7, 200_050)):
        owed.add(opaque, code, SUBSCRIPTION)
    return AnswerStream(owed, Transactions(), BrokerSignals(), wants_responses=False)


@pytest.fixture
def owed() -> Pending:
    return two_requests()


@pytest.fixture
def stream(owed: Pending) -> AnswerStream:
    return answers_to(owed)


def feed(stream: AnswerStream, data: bytes, *waiting: bytes) -> tuple[list[bytes], bool]:
    out: list[Buffer] = []
    gap = stream.feed(memoryview(data), waiting, out)
    return [bytes(part) for part in out], gap


# --- Passing on and gaps --------------------------------------------------------------------------


@settings(deadline=None)
@given(cuts=st.lists(st.integers(1, 600), max_size=12), at=st.integers(0, 12))
def test_own_answers_never_land_inside_a_frame(cuts: list[int], at: int) -> None:
    broker = [FIRST, broker_request(), SECOND, answer(3, body=b"x" * 40), frame(b"")]
    data = b"".join(broker)
    own = answer(99, 2)
    stream = AnswerStream(Pending(), Transactions(), BrokerSignals(), wants_responses=False)
    waiting: tuple[bytes, ...] = ()
    sent = b""
    for number, part in enumerate(cut(data, *cuts)):
        if number == at:
            waiting = (own,)
        out, gap = feed(stream, part, *waiting)
        sent += b"".join(out)
        if gap:
            waiting = ()
    frames = list(split(sent))
    assert [whole for whole in frames if whole != own] == broker


# --- Matching -------------------------------------------------------------------------------------


def test_broker_requests_answer_nothing(stream: AnswerStream, owed: Pending) -> None:
    feed(stream, broker_request(1))
    assert len(owed) == 2
    assert not stream.responses
    assert stream.frames == 1


def test_header_that_cannot_be_read_passes_unmatched(stream: AnswerStream, owed: Pending) -> None:
    odd = frame(b"{no json") + frame(b"")
    assert feed(stream, odd) == ([odd], True)
    assert len(owed) == 2
    assert stream.frames == 2


# --- Answers that bring messages ------------------------------------------------------------------

SUBSCRIPTION = (Resource("subscription", "g@orders"),)
THREE = answer(5, body=records(91, 200, 120))


@pytest.fixture
def consuming(owed: Pending) -> AnswerStream:
    return taking_answers_to(owed)


def test_a_body_is_charged_when_it_is_complete() -> None:
    for at in range(1, len(THREE), 7):
        consuming = taking_answers_to(two_requests())
        feed(consuming, FIRST + THREE[:at])
        assert consuming.charges == []
        feed(consuming, THREE[at:] + answer(6, 19) + answer(7, body=records(91)))
        assert [charge.messages for charge in consuming.charges] == [3, 0, 1]


def test_a_body_is_neither_copied_nor_held(consuming: AnswerStream) -> None:
    chunk = memoryview(bytearray(answer(5, body=records(*[1000] * 100))))
    for piece in (chunk[:5000], chunk[5000:50_000], chunk[50_000:]):
        out: list[Buffer] = []
        consuming.feed(piece, (), out)
        (part,) = out
        assert isinstance(part, memoryview)
        assert part.obj is chunk.obj
    assert consuming.charges[0].messages == 100


def test_no_record_is_shorter_than_one_without_anything_in_it() -> None:
    message = Message("", 0, b"", b"", 0, 0, 0, pack_host("127.0.0.1", 1))
    record = encode_record(message, queue_offset=0, physical_offset=0, store_ms=0, store_host=pack_host("127.0.0.1", 1))
    assert len(record) == MIN_RECORD_BYTES


@given(
    body=st.one_of(
        st.binary(max_size=300),
        st.lists(st.integers(91, 400), max_size=6).map(lambda sizes: records(*sizes)),
        st.tuples(
            st.lists(st.integers(91, 400), max_size=3).map(lambda sizes: records(*sizes)), st.binary(max_size=99)
        ).map(b"".join),
    ),
    offsets=st.lists(st.integers(0, 2000), max_size=12),
)
def test_pieces_count_as_the_whole_does(body: bytes, offsets: list[int]) -> None:
    counter = RecordCounter()
    for piece in cut(body, *offsets) if body else ():
        counter.feed(memoryview(piece))
    assert counter.count == count_records(body)


def test_remembered_requests_are_bounded() -> None:
    owed = Pending()
    for opaque in range(MAX_PENDING + 10):
        owed.add(opaque, 34, ())
        owed.add(-opaque - 1, 11, ())
    assert len(owed) == MAX_PENDING
    assert owed.settle(MAX_PENDING) is None
    assert owed.settle(-MAX_PENDING - 1) is None
    owed.add(3, 35, ())
    assert owed.settle(3) == (35, ())


def test_the_answer_to_a_timed_request_is_measured_once() -> None:
    owed = Pending()
    owed.add(7, 34, ())
    assert owed.may_time(5)
    owed.time(7, 5)
    assert not owed.may_time(10**10)
    assert owed.timed(100) is None
    owed.settle(7)
    assert owed.timed(105) == 100
    assert owed.timed(106) is None


def test_oneway_requests_are_not_timed() -> None:
    owed = Pending()
    owed.time(7, 5)
    assert owed.timed(6) is None
    assert owed.may_time(6)


def test_requests_are_timed_a_hundred_times_a_second_at_most() -> None:
    owed = Pending()
    owed.add(7, 34, ())
    owed.time(7, 0)
    owed.settle(7)
    assert owed.timed(1) == 1
    assert not owed.may_time(9_999_999)
    assert owed.may_time(10_000_000)


def test_request_without_an_answer_does_not_end_the_timing() -> None:
    owed = Pending()
    owed.add(7, 34, ())
    owed.time(7, 0)
    assert not owed.may_time(59 * 10**9)
    assert owed.may_time(60 * 10**9)


def test_slow_answers_are_not_timed() -> None:
    owed = Pending()
    for took_ns, expected in ((60_000_000_000, 60_000_000_000), (60_000_000_001, None)):
        owed.add(7, 34, ())
        owed.time(7, 0)
        owed.settle(7)
        assert owed.timed(took_ns) == expected
    owed.add(7, 34, ())
    assert owed.may_time(10**12)
