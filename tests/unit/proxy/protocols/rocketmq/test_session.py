"""One connection: both streams, the busy answers between them, and drains."""

import pytest
from playbook.frames import (
    answer,
    frame,
    heartbeat,
    json_frame,
    pull,
    read_header,
    send,
    send_batch,
)
from playbook.playbook import (
    WAIT_US,
    Anything,
    Broker,
    Client,
    Closed,
    Decided,
    End,
    Playbook,
    ToBroker,
    ToClient,
    Undecided,
    busy,
    open_session,
    refuse,
)
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading

from limiter.rules.resource import Resource
from proxy.deciding.batch import Response, Side
from proxy.protocols.base import Close, Session, WireCounters
from proxy.protocols.rocketmq.answers import MAX_PENDING
from proxy.protocols.rocketmq.session import RocketMQSession

A, B = send("a", 1), send("b", 2)


# --- Busy answers ---------------------------------------------------------------------------------


def test_a_busy_answer_has_the_text_that_clients_look_for() -> None:
    session = open_session()
    batch = session.receive(Side.CLIENT, memoryview(send("a", 4711, binary=True)), 0)
    assert batch is not None
    refuse("a")(batch)
    session.decided(batch, 0)
    (whole,) = session.take(Side.CLIENT)
    header = read_header(bytes(whole))
    assert header["code"] == 2
    assert header["opaque"] == 4711
    assert header["flag"] == 1
    assert header["remark"] == f"[RateLimit] for a need wait:{WAIT_US}microsecs, rule some rule"


def test_busy_answers_go_into_the_first_gap_in_order() -> None:
    one, two = answer(8), answer(9)
    play = Playbook(refuse("a")) >> Broker(one[:10]) << ToClient(one[:10])
    play = play >> Client(send("a", 1)) >> Client(send("a", 2) + send("a", 3))
    assert play >> Broker(one[10:] + two) << ToClient(one[10:], busy("a", 1), busy("a", 2), busy("a", 3), two)


def test_answers_that_still_wait_at_the_end_of_the_brokers_stream_are_dropped() -> None:
    theirs = answer(9)
    play = Playbook(refuse("a")) >> Broker(theirs[:20]) << ToClient(theirs[:20])
    play = play >> Client(A)
    assert play >> End(Side.BROKER)
    assert play.session.backlog_bytes(Side.CLIENT) == 0


# --- Requests that consume ------------------------------------------------------------------------

SUBSCRIPTION = (Resource("subscription", "g@orders"),)


def test_a_pull_is_a_request_of_its_subscription_while_one_is_limited() -> None:
    play = Playbook(limited=("subscription",)) >> Client(pull(5)) << ToBroker(pull(5))
    assert play
    (request,) = play.requests
    assert (request.resources, request.messages, request.consumes) == (SUBSCRIPTION, 0, True)
    assert request.size_bytes == len(pull(5))


# --- The broker's own requests --------------------------------------------------------------------


def test_clients_responses_to_broker_requests_are_never_limited_or_owed() -> None:
    for code in (40, 309, 10, 310, 36):
        response = json_frame(code, {"topic": "a", "b": "a", "group": "a"}, opaque=7, flag=1)
        play = Playbook(refuse("a")) >> Client(response) << ToBroker(response)
        assert play
        assert not play.requests
        assert play.session.in_flight() == 0


# --- The first byte -------------------------------------------------------------------------------

HELLO = b"\x16\x03\x01\x02\x00" + bytes(range(200))


def test_the_reason_for_refusing_tls_has_a_remedy() -> None:
    with pytest.raises(Close, match='tls = "pass"'):
        open_session().receive(Side.CLIENT, memoryview(HELLO), 0)


def test_single_byte_is_enough_to_tell_tls() -> None:
    assert Playbook() >> Client(HELLO[:1]) << Closed("tls")


def test_tls_is_relayed_unread_if_configured() -> None:
    play = Playbook(refuse("a"), tls="pass") >> Client(HELLO) << ToBroker(HELLO)
    play = play >> Broker(b"\x16server hello") << ToClient(b"\x16server hello")
    assert play >> Client(A + b"\0\0\0\0garbage") << ToBroker(A + b"\0\0\0\0garbage")
    assert not play.requests
    assert not play.session.between_frames(Side.CLIENT)
    assert not play.session.between_frames(Side.BROKER)
    assert not play.session.within_frame(Side.CLIENT)
    assert play >> End(Side.CLIENT)


@pytest.mark.parametrize("hello", [b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", b"\r\n\r\n\0\r\nQUIT\n"])
def test_proxy_protocol_header_is_not_accepted(hello: bytes) -> None:
    assert Playbook() >> Client(hello) << Closed("proxy_protocol")
    assert Playbook() >> Client(hello[:1]) << Closed("proxy_protocol")


# --- In flight ----------------------------------------------------------------------------


def test_in_flight_requests_are_bounded() -> None:
    play = Playbook()
    step = 50
    for first in range(0, MAX_PENDING + 2 * step, step):
        chunk = b"".join(send("a", first + number, body=b"") for number in range(step))
        play = play >> Client(chunk) << ToBroker(chunk)
    assert play.session.in_flight() == MAX_PENDING


# --- Frame boundaries -----------------------------------------------------------------------------


def test_either_stream_is_between_frames_only_at_their_ends() -> None:
    for offset in range(1, len(A) + 1):
        play = Playbook() >> Client(A[:offset]) << Anything()
        assert play.session.between_frames(Side.CLIENT) == (offset == len(A))
        assert play.session.within_frame(Side.CLIENT) == (offset < len(A))
    theirs = answer(1, body=b"xyz")
    for offset in range(1, len(theirs) + 1):
        play = Playbook() >> Broker(theirs[:offset]) << ToClient(theirs[:offset])
        assert play.session.between_frames(Side.BROKER) == (offset == len(theirs))


def test_reading_only_missing_bytes_stops_at_the_end_of_every_frame() -> None:
    stream = A + send("b")
    for offset in range(1, len(A)):
        play = Playbook() >> Client(stream[:offset]) << Anything()
        at = offset
        while at < len(A):
            missing = play.session.missing_bytes(Side.CLIENT)
            assert 1 <= missing <= len(A) - at
            play = play >> Client(stream[at : at + missing]) << Anything()
            at += missing
        assert play.session.between_frames(Side.CLIENT)


# --- Counting and observing -----------------------------------------------------------------------


def test_handlers_see_the_answers_once_if_they_ask() -> None:
    both = A + heartbeat(5)
    play = Playbook(wants_responses=True) >> Client(both) << ToBroker(both)
    theirs = answer(5) + answer(1, 14, body=b"body")
    play = play >> Broker(theirs) << ToClient(theirs)
    assert play.session.take_responses() == [
        Response(34, (), 0, len(answer(5))),
        Response(310, (Resource("topic", "a"),), 14, len(answer(1, 14, body=b"body"))),
    ]
    assert not play.session.take_responses()


# --- Broken connections ---------------------------------------------------------------------------


def test_an_invalid_frame_of_the_broker_ends_the_connection_after_valid_ones() -> None:
    theirs = answer(1)
    assert Playbook() >> Broker(theirs + b"\0\0\0\0\0\0\0\0") << ToClient(theirs) << Closed("bad_answer")


def test_no_answers_are_inserted_into_a_broken_frame() -> None:
    play = Playbook(refuse("a")) >> Undecided(A) >> Broker(b"\0\0\0\0") << ToClient(b"\0\0\0\0")
    play = play >> Broker(b"\0\0\0\0") << Closed("bad_answer")
    assert play >> Decided()


def test_details_name_the_offending_bytes() -> None:
    with pytest.raises(Close, match="a frame of length 3; the length must be between 4 and 16777212"):
        open_session().receive(Side.CLIENT, memoryview(b"\0\0\0\3\0\0\0\0"), 0)
    with pytest.raises(Close, match="a header of 9 bytes that does not fit in its frame of length 12"):
        open_session().receive(Side.CLIENT, memoryview(b"\0\0\0\x0c\0\0\0\x09"), 0)
    with pytest.raises(Close, match="a header of unknown type 7; must be 0 or 1"):
        open_session().receive(Side.CLIENT, memoryview(b"\0\0\0\x0c\7\0\0\x08"), 0)
    with pytest.raises(Close, match="the broker sent a header of 9 bytes that does not fit in its frame of length 12"):
        open_session().receive(Side.BROKER, memoryview(b"\0\0\0\x0c\0\0\0\x09"), 0)


def _ask(session: Session, stream: bytes, now_ns: int, *refused: str) -> None:
    batch = session.receive(Side.CLIENT, memoryview(stream), now_ns)
    assert batch is not None
    if refused:
        refuse(*refused)(batch)
    session.decided(batch, now_ns)


def _round_trips(counters: WireCounters) -> tuple[int, float]:
    durations = counters.round_trip.durations()
    return sum(durations.counts), durations.sum_s


def test_round_trip_is_from_passing_a_request_to_its_own_answer() -> None:
    counters = WireCounters()
    session = open_session(counters)
    _ask(session, A + B, 1_000_000)
    session.receive(Side.BROKER, memoryview(answer(2)), 3_000_000)
    assert _round_trips(counters) == (0, 0)
    session.receive(Side.BROKER, memoryview(answer(1)), 6_000_000)
    assert _round_trips(counters) == (1, 0.005)


def _signals(session: Session) -> tuple[int, int, int]:
    assert isinstance(session, RocketMQSession)
    return session._signals.answers, session._signals.busy, session.unanswered()


def test_answers_to_sends_are_counted_and_which_say_that_the_broker_is_busy() -> None:
    session = open_session()
    _ask(session, A + B + json_frame(105, {"topic": "t"}, opaque=3), 0)
    assert _signals(session) == (0, 0, 2)
    session.receive(Side.BROKER, memoryview(answer(1) + answer(3)), 0)
    assert _signals(session) == (1, 0, 1)
    session.receive(Side.BROKER, memoryview(frame(b'{"code":2,"flag":1,"opaque":2}')), 0)
    assert _signals(session) == (2, 1, 0)


def test_a_batch_counts_as_its_messages() -> None:
    session = open_session()
    _ask(session, send_batch("a", 5, 1) + B, 0)
    _ask(session, send_batch("refused", 7, 3), 0, "refused")
    assert _signals(session) == (0, 0, 6)
    session.receive(Side.BROKER, memoryview(frame(b'{"code":215,"flag":1,"opaque":1}')), 0)
    assert _signals(session) == (5, 5, 1)
