"""The broker's stream: gaps between frames, and answers matched with their requests."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook.frames import answer, binary_frame, broker_request, cut, frame, records, split

from limiter.rules.resource import Resource
from proxy.deciding.batch import Charge, Response
from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq.answers import MAX_ANSWER_HEADER_BYTES, AnswerStream
from proxy.protocols.rocketmq.pending import Pending
from proxy.protocols.rocketmq.transactions import Transactions

FIRST, SECOND = answer(1, body=b"first body"), answer(2)
OWN = b"<our own>"


def two_requests() -> Pending:
    owed = Pending()
    owed.add(1, 310, (Resource("topic", "a"),))
    owed.add(2, 34, ())
    return owed


def answers_to(owed: Pending) -> AnswerStream:
    return AnswerStream(owed, Transactions(), wants_responses=True)


def taking_answers_to(owed: Pending) -> AnswerStream:
    for opaque, code in ((5, 11), (6, 361), (7, 200_050)):
        owed.add(opaque, code, SUBSCRIPTION)
    return AnswerStream(owed, Transactions(), wants_responses=False)


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


def test_chunk_goes_on_uncopied(stream: AnswerStream) -> None:
    chunk = memoryview(bytearray(FIRST + SECOND[:20]))
    out: list[Buffer] = []
    assert stream.feed(chunk, (), out)
    assert len(out) == 1
    assert isinstance(out[0], memoryview)
    assert out[0].obj is chunk.obj


def test_what_waits_goes_before_a_chunk_that_begins_with_a_frame(stream: AnswerStream) -> None:
    assert feed(stream, FIRST + SECOND, OWN, OWN) == ([OWN, OWN, FIRST + SECOND], True)


def test_what_waits_goes_behind_the_frame_that_was_begun() -> None:
    for at in range(1, len(FIRST)):
        stream = answers_to(two_requests())
        feed(stream, FIRST[:at])
        assert not stream.between_frames()
        assert feed(stream, FIRST[at:] + SECOND, OWN) == ([FIRST[at:], OWN, SECOND], True)


def test_what_waits_goes_behind_a_chunk_that_ends_with_its_frame() -> None:
    for at in range(1, len(FIRST)):
        stream = answers_to(two_requests())
        feed(stream, FIRST[:at])
        assert feed(stream, FIRST[at:], OWN) == ([FIRST[at:], OWN], True)
        assert stream.between_frames()


def test_chunk_in_the_middle_of_a_frame_has_no_gap(stream: AnswerStream) -> None:
    big = answer(1, body=bytes(1000))
    feed(stream, big[:300])
    assert feed(stream, big[300:600], OWN) == ([big[300:600]], False)
    assert feed(stream, big[600:], OWN) == ([big[600:], OWN], True)


def test_nothing_is_held_back(stream: AnswerStream) -> None:
    for part in cut(FIRST + SECOND, *range(300)):
        assert feed(stream, part)[0] == [part]
    assert stream.between_frames()


@settings(deadline=None)
@given(cuts=st.lists(st.integers(1, 600), max_size=12), at=st.integers(0, 12))
def test_own_answers_never_land_inside_a_frame(cuts: list[int], at: int) -> None:
    broker = [FIRST, broker_request(), SECOND, answer(3, body=b"x" * 40), frame(b"")]
    data = b"".join(broker)
    own = answer(99, 2)
    stream = AnswerStream(Pending(), Transactions(), wants_responses=False)
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


def test_answers_are_matched_with_their_requests(stream: AnswerStream, owed: Pending) -> None:
    feed(stream, FIRST + SECOND)
    assert stream.responses == [
        Response(310, (Resource("topic", "a"),), 0, len(FIRST)),
        Response(34, (), 0, len(SECOND)),
    ]
    assert len(owed) == 0


def test_answer_in_two_pieces_is_matched_once() -> None:
    for at in range(1, len(FIRST)):
        owed = two_requests()
        stream = answers_to(owed)
        feed(stream, FIRST[:at])
        feed(stream, FIRST[at:])
        assert len(owed) == 1
        assert len(stream.responses) == 1
        assert stream.frames == 1


def test_answers_in_single_bytes_are_matched(stream: AnswerStream, owed: Pending) -> None:
    for part in cut(FIRST + SECOND, *range(300)):
        feed(stream, part)
    assert len(owed) == 0
    assert stream.frames == 2


def test_status_of_an_answer_is_its_code(stream: AnswerStream) -> None:
    feed(stream, answer(1, 14))
    assert stream.responses[0].status == 14


def test_answer_to_an_unknown_request_is_still_a_response(stream: AnswerStream, owed: Pending) -> None:
    feed(stream, answer(77))
    assert stream.responses == [Response(None, (), 0, len(answer(77)))]
    assert len(owed) == 2


def test_broker_requests_answer_nothing(stream: AnswerStream, owed: Pending) -> None:
    feed(stream, broker_request(1))
    assert len(owed) == 2
    assert not stream.responses
    assert stream.frames == 1


def test_binary_answer_is_matched(stream: AnswerStream, owed: Pending) -> None:
    feed(stream, binary_frame(0, opaque=1, flag=1))
    assert len(owed) == 1


def test_header_that_cannot_be_read_passes_unmatched(stream: AnswerStream, owed: Pending) -> None:
    odd = frame(b"{no json") + frame(b"")
    assert feed(stream, odd) == ([odd], True)
    assert len(owed) == 2
    assert stream.frames == 2


def test_responses_are_only_gathered_when_wanted(owed: Pending) -> None:
    stream = AnswerStream(owed, Transactions(), wants_responses=False)
    feed(stream, FIRST)
    assert not stream.responses
    assert len(owed) == 1


@pytest.mark.parametrize("first", [4, 8, 1000])
def test_overlong_header_in_pieces_is_not_gathered(stream: AnswerStream, owed: Pending, first: int) -> None:
    whole = answer(1, filler=MAX_ANSWER_HEADER_BYTES)
    for part in cut(whole, first, 2000, 60_000):
        feed(stream, part)
        assert len(stream._beginning.pieces) < 8
    assert stream.between_frames()
    assert stream.frames == 1
    assert len(owed) == 2


# --- What is no frame -----------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [b"\0\0\0\3\0\0\0\0", b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\x0c\0\0\0\x09"])
@pytest.mark.parametrize("at", range(8))
def test_broken_framing_closes_after_delivering_what_came_before(stream: AnswerStream, broken: bytes, at: int) -> None:
    feed(stream, SECOND[:40])
    out, _ = feed(stream, SECOND[40:] + broken[:at], OWN)
    assert out == [SECOND[40:], OWN, broken[:at]] if at else [SECOND[40:], OWN]
    assert feed(stream, broken[at:] + FIRST) == ([], not at)
    assert stream.close is not None
    assert stream.close.reason == "bad_answer"


# --- Answers that bring messages ------------------------------------------------------------------

SUBSCRIPTION = (Resource("subscription", "g@orders"),)
THREE = answer(5, body=records(91, 200, 120))


@pytest.fixture
def consuming(owed: Pending) -> AnswerStream:
    return taking_answers_to(owed)


@pytest.mark.parametrize("opaque", [5, 6, 7])
def test_an_answer_is_charged_what_it_brings(consuming: AnswerStream, opaque: int) -> None:
    whole = answer(opaque, body=records(91, 200, 120))
    assert feed(consuming, whole) == ([whole], True)
    assert consuming.charges == [Charge(SUBSCRIPTION, 3, len(whole), consumes=True)]


@pytest.mark.parametrize("code", [19, 20, 21, 1, 210, 209])
def test_an_answer_that_brings_nothing_is_a_charge_of_nothing(consuming: AnswerStream, code: int) -> None:
    feed(consuming, answer(5, code) + answer(6, code, body=records(91)))
    assert consuming.charges == [Charge(SUBSCRIPTION, 0, 0, consumes=True)] * 2


def test_an_answer_without_a_body_is_a_charge_of_nothing(consuming: AnswerStream) -> None:
    feed(consuming, answer(5))
    assert consuming.charges == [Charge(SUBSCRIPTION, 0, 0, consumes=True)]


def test_other_answers_are_no_charge(consuming: AnswerStream, owed: Pending) -> None:
    owed.add(8, 11, ())
    feed(consuming, answer(1) + answer(2) + answer(8, body=records(91)) + answer(99) + broker_request(5))
    assert consuming.charges == []


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
