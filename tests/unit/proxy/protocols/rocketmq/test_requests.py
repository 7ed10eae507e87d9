"""The client's stream: frames out of chunks, requests out of frames, and what remains of a chunk."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook.frames import (
    ONEWAY,
    answer,
    batch_body,
    cut,
    frame,
    heartbeat,
    json_frame,
    send,
    send_back,
    send_batch,
    unparsable,
)
from playbook.playbook import (
    READINGS,
    Anything,
    Broker,
    Client,
    Closed,
    End,
    Playbook,
    Reading,
    ToBroker,
    ToClient,
    busy,
    open_session,
    refuse,
    refuse_indexes,
)

from limiter.resource import Resource
from proxy.batch import Side
from proxy.protocols.base import NO_BOUND, Session, WireCounters
from proxy.protocols.rocketmq.batch_body import MIN_MESSAGE_BYTES, BatchCounter
from proxy.protocols.rocketmq.codes import MAX_FRAME_BYTES
from proxy.protocols.rocketmq.names import MAX_NAMES
from proxy.protocols.rocketmq.requests import (
    MAX_HEADER_BYTES,
    TRIAL_FRAMES,
    TRIAL_READ_BYTES,
    UNPARSABLE_RESOURCES,
)
from proxy.protocols.rocketmq.scans import COMPILED

A, B, C = send("a", 1), send("b", 2), send("c", 3)


def topics(play: Playbook) -> list[str]:
    return [request.resources[0].name for request in play.requests]


# --- What passes ----------------------------------------------------------------------------------


def test_chunk_without_refusals_goes_on_uncopied_in_one_slice() -> None:
    chunk = memoryview(bytearray(A + heartbeat() + B + send_batch("c", 3) + send_back("g")))
    session = open_session()
    batch = session.receive(Side.CLIENT, chunk, 0)
    assert batch is not None
    session.decided(batch, 0)
    out = session.take(Side.BROKER)
    assert len(out) == 1
    assert isinstance(out[0], memoryview)
    assert out[0].obj is chunk.obj
    assert out[0] == chunk


def test_chunk_without_limitable_requests_needs_no_decision() -> None:
    session = open_session()
    chunk = memoryview(heartbeat() + heartbeat(2))
    assert session.receive(Side.CLIENT, chunk, 0) is None
    assert [bytes(part) for part in session.take(Side.BROKER)] == [bytes(chunk)]


def test_taking_hands_out_everything_once() -> None:
    play = Playbook()
    assert play >> Client(A) << ToBroker(A)
    assert not play.session.take(Side.BROKER)


def test_requests_say_what_handlers_decide_by() -> None:
    oneway = send("b", 2, flag=ONEWAY, group="other", body=b"x" * 100)
    play = Playbook() >> Client(A + oneway) << ToBroker(A + oneway)
    first, second = play.requests
    assert first.resources == (Resource("topic", "a"),)
    assert (first.messages, first.size_bytes, first.producer_group, first.oneway) == (1, len(A), "producers", False)
    assert second.resources == (Resource("topic", "b"),)
    assert (second.messages, second.size_bytes, second.producer_group, second.oneway) == (1, len(oneway), "other", True)


def test_send_back_and_send_to_the_retry_topic_share_a_resource() -> None:
    both = send_back("g") + send("%RETRY%g")
    play = Playbook() >> Client(both) << ToBroker(both)
    back, fallback = play.requests
    assert back.resources == (Resource("retry_group", "g"),)
    assert back.resources is fallback.resources


def test_equal_names_share_their_resources_across_chunks() -> None:
    play = Playbook() >> Client(A) << ToBroker(A)
    play = play >> Client(A) << ToBroker(A)
    assert play.requests[0].resources is play.requests[1].resources


def test_many_names_are_not_all_remembered() -> None:
    play = Playbook()
    for number in range(2 * MAX_NAMES + 10):
        whole = send(f"t{number}", number)
        play = play >> Client(whole) << ToBroker(whole)
    assert len(set(topics(play))) == 2 * MAX_NAMES + 10
    assert len(play.session._requests._resources["topic"]) <= MAX_NAMES  # type: ignore[attr-defined]


def test_client_responses_to_broker_requests_are_never_limited() -> None:
    response = json_frame(310, {"b": "a"}, flag=1)
    play = Playbook(refuse("a")) >> Client(response) << ToBroker(response)
    assert not play.requests
    assert play.session.in_flight() == 0


# --- What is refused ------------------------------------------------------------------------------


def test_refused_frames_are_cut_out_with_the_largest_slices() -> None:
    stream = A + B + C + C + A + B
    play = Playbook(refuse("c")) >> Client(stream)
    assert play << ToBroker(A + B, A + B) << ToClient(busy("c", 3), busy("c", 3))


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ("a", [B + C]),
        ("b", [A, C]),
        ("c", [A + B]),
        ("ab", [C]),
        ("ac", [B]),
        ("bc", [A]),
        ("abc", []),
    ],
)
def test_whatever_remains_of_a_chunk_goes_on(refused: str, left: list[bytes]) -> None:
    answers = [busy(name, opaque) for opaque, name in enumerate("abc", 1) if name in refused]
    assert Playbook(refuse(*refused)) >> Client(A + B + C) << ToBroker(*left) << ToClient(*answers)


def test_what_passes_between_refusals_is_not_copied() -> None:
    play = Playbook(refuse("b")) >> Client(A + B + A)
    views = play.last_slices[Side.BROKER]
    assert play << ToBroker(A, A) << ToClient(busy("b", 2))
    assert all(isinstance(view, memoryview) for view in views)


def test_oneway_refusals_are_silent() -> None:
    silent = send("a", flag=ONEWAY)
    assert Playbook(refuse("a")) >> Client(silent + B + silent) << ToBroker(B)


def test_refused_send_back_is_answered_by_its_retry_topic() -> None:
    play = Playbook(refuse("g")) >> Client(send_back("g", 7))
    assert play << ToClient(busy("g", 7, kind="retry_group"))


# --- Headers in pieces ----------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
def test_frame_split_anywhere_in_its_header_is_held_back_and_decided_once(binary: bool) -> None:  # noqa: FBT001
    whole = send("a", binary=binary, body=b"")
    for offset in range(1, len(whole)):
        play = Playbook() >> Client(whole[:offset])
        assert not play.session.between_frames(Side.CLIENT)
        play = play >> Client(whole[offset:]) << ToBroker(whole)
        assert topics(play) == ["a"]
        assert play.session.between_frames(Side.CLIENT)


def test_refused_frame_split_anywhere_disappears() -> None:
    for offset in range(1, len(A)):
        play = Playbook(refuse("a")) >> Client(A[:offset])
        if offset >= len(A) - len(b"hello"):  # only the body is missing
            play << ToClient(busy("a", 1))
            play = play >> Client(A[offset:] + B) << ToBroker(B)
        else:
            play = play >> Client(A[offset:] + B) << ToBroker(B) << ToClient(busy("a", 1))
        assert play
        assert play.requests[0].size_bytes == len(A)


def test_header_that_comes_byte_by_byte_is_decided_with_its_last_byte() -> None:
    play = Playbook()
    for offset in range(len(A) - len(b"hello") - 1):
        play = play >> Client(A[offset : offset + 1])
        assert not play.requests
    offset = len(A) - len(b"hello")
    play = play >> Client(A[offset - 1 : offset]) << ToBroker(A[:offset])
    assert topics(play) == ["a"]
    assert play >> Client(A[offset:]) << ToBroker(A[offset:])


def test_frames_before_a_held_header_go_on_at_once() -> None:
    play = Playbook() >> Client(A + B[:20]) << ToBroker(A)
    assert play >> Client(B[20:] + C) << ToBroker(B[:-5], B[-5:] + C)


def test_end_of_stream_lets_go_of_a_held_header() -> None:
    play = Playbook() >> Client(A + B[:20]) << ToBroker(A)
    assert play >> End(Side.CLIENT) << ToBroker(B[:20])
    assert play.session.between_frames(Side.CLIENT)


def test_end_of_stream_between_frames_adds_nothing() -> None:
    play = Playbook() >> Client(A) << ToBroker(A)
    assert play >> End(Side.CLIENT)


# --- Bodies in pieces -----------------------------------------------------------------------------


def test_largest_frame_streams_through_without_being_gathered() -> None:
    largest = send("a", body=b"")
    body_bytes = MAX_FRAME_BYTES - len(largest)
    whole = memoryview(send("a", body=bytes(body_bytes)))
    assert len(whole) == MAX_FRAME_BYTES
    session = open_session()
    step = 256 * 1024
    for offset in range(0, len(whole), step):
        chunk = whole[offset : offset + step]
        batch = session.receive(Side.CLIENT, chunk, 0)
        if batch is not None:
            assert offset == 0
            session.decided(batch, 0)
        (out,) = session.take(Side.BROKER)
        assert isinstance(out, memoryview)
        assert out == chunk
        assert not session._requests._beginning.pieces  # type: ignore[attr-defined]
    assert session.between_frames(Side.CLIENT)


def test_big_refused_body_is_swallowed_to_its_last_byte() -> None:
    whole = send("a", body=bytes(3_000_000))
    play = Playbook(refuse("a"))
    step = 256 * 1024
    first = True
    for offset in range(0, len(whole) - step, step):
        play = play >> Client(whole[offset : offset + step])
        if first:
            play = play << ToClient(busy("a"))
            first = False
        assert not play.session.between_frames(Side.CLIENT)
    rest = whole[len(whole) - len(whole) % step :]
    assert play >> Client(rest + B) << ToBroker(B)


@settings(deadline=None)
@given(
    body=st.integers(0, 60),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    refused=st.booleans(),
)
def test_verdict_covers_the_body_however_it_is_cut(body: int, cuts: list[int], refused: bool) -> None:  # noqa: FBT001
    stream = A + send("x", 9, body=b"y" * body) + B
    session = open_session()
    decide = refuse("x") if refused else refuse()
    out = b""
    for piece in cut(stream, *cuts):
        batch = session.receive(Side.CLIENT, memoryview(piece), 0)
        if batch is not None:
            decide(batch)
            session.decided(batch, 0)
        out += b"".join(session.take(Side.BROKER))
    assert out == (A + B if refused else stream)
    assert b"".join(session.take(Side.CLIENT)) == (busy("x", 9) if refused else b"")


def test_body_of_a_passed_frame_after_a_swallowed_one_passes() -> None:
    refused, passed = send("a", body=b"r" * 50), send("b", body=b"p" * 50)
    play = Playbook(refuse("a")) >> Client(refused[:-40]) << ToClient(busy("a"))
    play = play >> Client(refused[-40:] + passed[:-40]) << ToBroker(passed[:-40])
    assert play >> Client(passed[-40:]) << ToBroker(passed[-40:])


# --- Batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [310, 320])
def test_batch_counts_as_its_messages(code: int) -> None:
    whole = send("a", code=code, batch=True, body=batch_body(16))
    play = Playbook() >> Client(whole) << ToBroker(whole)
    assert [request.messages for request in play.requests] == [16]
    assert not play.charges


def test_batch_is_told_by_its_field_and_not_by_its_code() -> None:
    whole = send("a", code=320, batch=False, body=batch_body(16))
    play = Playbook() >> Client(whole) << ToBroker(whole)
    assert [request.messages for request in play.requests] == [1]


def test_batch_without_a_body_costs_one_message() -> None:
    whole = send("a", batch=True, body=b"")
    play = Playbook() >> Client(whole) << ToBroker(whole)
    assert [request.messages for request in play.requests] == [1]


@settings(deadline=None)
@given(cuts=st.lists(st.integers(1, 700), max_size=5))
def test_batch_in_pieces_costs_the_same_in_all(cuts: list[int]) -> None:
    whole = send_batch("a", 16)
    play = Playbook()
    for piece in cut(whole, *cuts):
        play = play >> Client(piece) << Anything()
    assert len(play.requests) == 1
    assert play.requests[0].messages + sum(charge.messages for charge in play.charges) == 16
    assert all(charge.resources == play.requests[0].resources for charge in play.charges)


def test_rest_of_a_batch_is_charged_when_it_is_complete() -> None:
    whole = send_batch("a", 16)
    play = Playbook() >> Client(whole[:-100]) << ToBroker(whole[:-100])
    decided_by = play.requests[0].messages
    assert 1 < decided_by < 16
    play = play >> Client(whole[-100:-50]) << ToBroker(whole[-100:-50])
    assert not play.charges
    play = play >> Client(whole[-50:] + B) << ToBroker(whole[-50:] + B)
    assert [(charge.resources, charge.messages) for charge in play.charges] == [
        ((Resource("topic", "a"),), 16 - decided_by)
    ]
    assert topics(play) == ["a", "b"]


def test_rest_of_a_batch_that_holds_no_further_message_is_not_charged() -> None:
    whole = send_batch("a", 16)
    play = Playbook() >> Client(whole[:-3]) << ToBroker(whole[:-3])
    assert [request.messages for request in play.requests] == [16]
    assert play >> Client(whole[-3:]) << ToBroker(whole[-3:])
    assert not play.charges


def test_rest_of_a_refused_batch_is_not_charged() -> None:
    whole = send_batch("a", 16)
    play = Playbook(refuse("a")) >> Client(whole[:-100]) << ToClient(busy("a"))
    play = play >> Client(whole[-100:] + B) << ToBroker(B)
    assert not play.charges


def test_batch_that_was_never_finished_is_not_charged_further() -> None:
    whole = send_batch("a", 16)
    play = Playbook() >> Client(whole[:-100]) << ToBroker(whole[:-100])
    assert play >> End(Side.CLIENT)
    assert not play.charges


def test_long_batch_is_counted_piece_by_piece_as_in_one() -> None:
    body = batch_body(5000, b"x" * 37)
    whole = send("a", batch=True, body=body)
    play = Playbook()
    for piece in cut(whole, *range(0, len(whole), 1000)):
        play = play >> Client(piece) << Anything()
    counter = BatchCounter()
    counter.feed(body)
    assert counter.count == 5000
    assert play.requests[0].messages + sum(charge.messages for charge in play.charges) == 5000


# --- Headers that nobody can read -----------------------------------------------------------------


def test_unparsable_header_passes_within_its_limit_and_is_counted() -> None:
    whole = unparsable(body=b"some body")
    play = Playbook() >> Client(A + whole + B) << ToBroker(A + whole + B)
    assert play.requests[1].resources == UNPARSABLE_RESOURCES
    assert play.counters.undecodable == {"none": 1}


def test_unparsable_header_over_its_limit_ends_the_connection() -> None:
    play = Playbook(refuse("_unparsable")) >> Client(A + unparsable() + B)
    assert play << Closed("unparsable") << ToBroker(A, B)


def test_unparsable_header_is_not_taken_for_a_request_in_flight() -> None:
    request = send("a", 0)
    play = Playbook(refuse("_unparsable")) >> Client(request) << ToBroker(request)
    play = play >> Client(unparsable()) << Closed("unparsable")
    assert play.session.in_flight() == 1


def test_header_that_only_the_lenient_parser_reads_is_limited_and_counted() -> None:
    lenient = frame(b'{"code":310,"opaque":5,"extFields":{"b":"other","b":"a"},"flag":0,"code":"310"}')
    play = Playbook(refuse("a")) >> Client(lenient + B) << ToBroker(B) << ToClient(busy("a", 5))
    assert play.counters.undecodable == {"lenient": 1}


def test_overlong_header_passes_as_unparsable_without_being_gathered() -> None:
    whole = send("a", filler=MAX_HEADER_BYTES)
    play = Playbook() >> Client(whole[:8]) << ToBroker(whole[:8])
    play = play >> Client(whole[8:100_000]) << ToBroker(whole[8:100_000])
    play = play >> Client(whole[100_000:] + B) << ToBroker(whole[100_000:] + B)
    assert topics(play) == ["_unparsable", "b"]
    assert play.counters.undecodable == {"none": 1}


def test_overlong_header_is_unparsable_however_it_comes() -> None:
    whole = send("a", body=b"", filler=MAX_HEADER_BYTES + 1 - (len(send("a", body=b"")) - 8))
    for offset in (0, 4, 8, 9, 1000, MAX_HEADER_BYTES):
        play = Playbook()
        for piece in cut(whole, offset):
            play = play >> Client(piece) << Anything()
        assert topics(play) == ["_unparsable"]


def test_longest_header_that_is_gathered_is_read() -> None:
    filler = MAX_HEADER_BYTES - (len(send("a", body=b"")) - 8)
    whole = send("a", body=b"", filler=filler)
    play = Playbook() >> Client(whole[:200_000])
    assert play >> Client(whole[200_000:]) << ToBroker(whole)
    assert topics(play) == ["a"]


def test_batch_behind_an_unparsable_header_is_charged_by_its_messages() -> None:
    body = batch_body(40)
    wrong_total, wrong_body_length = b"\xff" + body[1:], body[:16] + b"\xff" + body[17:]
    for whole in map(frame, [b"no header"] * 3, (body, wrong_total, wrong_body_length)):
        play = Playbook() >> Client(whole) << ToBroker(whole)
        assert play.requests[0].messages >= 40


def test_batch_behind_an_unparsable_header_is_charged_by_its_messages_however_it_comes() -> None:
    whole = unparsable(body=batch_body(40))
    for offset in range(1, len(whole)):
        session = open_session()
        charged = 0
        for piece in cut(whole, offset):
            batch = session.receive(Side.CLIENT, memoryview(piece), 0)
            if batch is not None:
                charged += sum(request.messages for request in batch.requests)
                charged += sum(charge.messages for charge in batch.charges)
                session.decided(batch, 0)
        assert charged == 40


def test_message_behind_an_unparsable_header_is_one_message() -> None:
    for body in (b"", b"x", b"some text, and more of it" * 100, b"\xff" * 1000):
        whole = unparsable(body=body)
        play = Playbook() >> Client(whole) << ToBroker(whole)
        assert [request.messages for request in play.requests] == [1]


def test_body_behind_an_overlong_header_is_charged_as_the_most_it_can_hold() -> None:
    whole = send("a", filler=MAX_HEADER_BYTES, body=bytes(40 * MIN_MESSAGE_BYTES))
    for offset in (0, 4, 8, 9, 1000, MAX_HEADER_BYTES):
        play = Playbook()
        for piece in cut(whole, offset):
            play = play >> Client(piece) << Anything()
        assert sum(request.messages for request in play.requests) == 40


# --- How much is read at once ---------------------------------------------------------------------

LENIENT = frame(b'{"code":"34","opaque":1}')


def frames_of_the_next_read(play: Playbook, stream: bytes) -> tuple[int, bytes]:
    """Play as much of a stream as the driver may read at once; returns the number of frames in it, and the rest."""
    size = min(256 * 1024, play.session.most_bytes(Side.CLIENT))
    before = play.counters.frames[Side.CLIENT]
    play >> Client(stream[:size]) << Anything()
    return play.counters.frames[Side.CLIENT] - before, stream[size:]


@pytest.mark.parametrize("whole", [LENIENT, unparsable(), frame(b"")], ids=["lenient", "unparsable", "empty"])
def test_few_headers_that_are_not_strict_are_read_at_once(whole: bytes) -> None:
    play, stream = Playbook(), whole * (3 * TRIAL_READ_BYTES // len(whole))
    while len(stream) > TRIAL_READ_BYTES:
        count, stream = frames_of_the_next_read(play, stream)
        assert 1 <= count <= TRIAL_READ_BYTES // len(whole) + 2


def test_reads_become_large_once_enough_headers_were_strict() -> None:
    play = Playbook() >> Client(A * (TRIAL_FRAMES - 1)) << Anything()
    assert play.session.most_bytes(Side.CLIENT) < NO_BOUND
    play = play >> Client(A) << Anything()
    assert play.session.most_bytes(Side.CLIENT) == NO_BOUND


def test_every_header_that_is_not_strict_asks_for_as_many_strict_ones() -> None:
    play = Playbook() >> Client(A * TRIAL_FRAMES + LENIENT * 3) << Anything()
    play = play >> Client(A * (3 * TRIAL_FRAMES - 1)) << Anything()
    assert play.session.most_bytes(Side.CLIENT) < NO_BOUND
    play = play >> Client(A) << Anything()
    assert play.session.most_bytes(Side.CLIENT) == NO_BOUND


def test_body_is_read_at_once_even_on_trial() -> None:
    whole = send("a", body=bytes(100_000))
    play = Playbook() >> Client(whole[:1000]) << Anything()
    assert play.session.most_bytes(Side.CLIENT) == len(whole) - 1000 + TRIAL_READ_BYTES


def test_broker_and_unread_streams_are_read_without_a_bound() -> None:
    play = Playbook() >> Client(unparsable()) << Anything()
    assert play.session.most_bytes(Side.BROKER) == NO_BOUND
    play = Playbook(tls="pass") >> Client(b"\x16\3\1") << Anything()
    assert play.session.most_bytes(Side.CLIENT) == NO_BOUND


# --- How much is looked at in one turn ------------------------------------------------------------


def turns(session: Session, chunk: bytes) -> list[list[str]]:
    """Play one chunk as the driver does; returns the topics that were asked about in each turn."""
    asked, out = [], b""
    left = len(chunk)
    while left:
        batch = session.receive(Side.CLIENT, memoryview(chunk)[-left:], 0)
        assert batch is not None
        asked.append([request.resources[0].name for request in batch.requests])
        session.decided(batch, 0)
        out += b"".join(session.take(Side.BROKER))
        left = session.left_bytes(Side.CLIENT)
        assert session.between_frames(Side.CLIENT) is (not left)
    assert out == chunk
    return asked


@pytest.mark.parametrize("reading", READINGS)
def test_many_topics_are_looked_at_in_turns(reading: Reading) -> None:
    topics = [f"t{number}" for number in range(2500)]
    asked = turns(open_session(reading=reading), b"".join(map(send, topics)))
    # A scan takes 512 at most, and comes behind the frames of a trial.
    trial = TRIAL_FRAMES if reading == "as it comes" else 0
    assert [len(turn) for turn in asked] == [512 + trial, 512, 512, 512, 452 - trial]
    assert list(chain.from_iterable(asked)) == topics


@pytest.mark.parametrize("reading", READINGS[1:])
def test_scans_and_single_frames_count_together(reading: Reading) -> None:
    unit = A * 20 + send_batch("a", 2)
    asked = turns(open_session(reading=reading), unit * 600)
    assert max(map(len, asked)) <= 22 * 256
    assert len(asked) == 3


@pytest.mark.parametrize("reading", READINGS)
def test_slow_headers_are_looked_at_a_few_at_a_time(reading: Reading) -> None:
    slow = frame(b'{"code":"310","opaque":1,"extFields":{"a":"g","b":"a"}}')
    asked = turns(open_session(reading=reading), slow * 1000)
    assert max(map(len, asked)) * len(slow) <= 2.5 * 1024


def test_one_topic_is_looked_at_in_one_turn() -> None:
    if COMPILED is not None:
        assert len(turns(open_session(reading="compiled"), A * 10_000)) == 1
    assert len(turns(open_session(reading="python"), A * 10_000)) == 1


def test_overlong_header_over_the_limit_ends_the_connection() -> None:
    whole = send("a", filler=MAX_HEADER_BYTES)
    assert Playbook(refuse("_unparsable")) >> Client(A + whole[:5000]) << ToBroker(A) << Closed("unparsable")


# --- What is no frame -----------------------------------------------------------------------------

BROKEN = {
    "length below its own second word": b"\0\0\0\3" + b"\0\0\0\0",
    "length zero": b"\0\0\0\0" + b"\0\0\0\0",
    "negative length": b"\xff\xff\xff\xff" + b"\0\0\0\0",
    "most negative length": b"\x80\0\0\0" + b"\0\0\0\0",
    "one byte too long": (MAX_FRAME_BYTES - 3).to_bytes(4) + b"\0\0\0\0",
    "header beyond the frame": b"\0\0\0\x0c" + b"\0\0\0\x09",
    "header type 2": b"\0\0\0\x0c" + b"\2\0\0\x08",
    "header type 255": b"\0\0\0\x0c" + b"\xff\0\0\x08",
    "HTTP": b"GET / HT",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_broken_framing_closes_after_delivering_what_came_before(broken: bytes) -> None:
    play = Playbook(refuse("b")) >> Client(A + B + broken + b"more of it")
    assert play << Closed("bad_frame") << ToBroker(A) << ToClient(busy("b", 2))


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("at", range(1, 8))
def test_broken_framing_in_pieces_closes_too(broken: bytes, at: int) -> None:
    play = Playbook() >> Client(A + broken[:at]) << ToBroker(A)
    assert play >> Client(broken[at:]) << Closed("bad_frame")


def test_nothing_is_left_of_broken_framing() -> None:
    play = Playbook() >> Client(b"\0\0\0") >> Client(b"\0\0\0\0\0") << Closed("bad_frame")
    assert play >> End(Side.CLIENT)


def test_broken_framing_behind_nothing_limitable_closes() -> None:
    assert Playbook() >> Client(heartbeat() + b"\0\0\0\0\0\0\0\0") << Closed("bad_frame") << ToBroker(heartbeat())


def test_shortest_frame_is_one() -> None:
    empty = frame(b"")
    play = Playbook() >> Client(empty + A) << ToBroker(empty + A)
    assert topics(play) == ["_unparsable", "a"]


def test_longest_frame_follows_the_option() -> None:
    longest = send("a", body=bytes(100))
    assert Playbook(max_frame_bytes=len(longest)) >> Client(longest) << ToBroker(longest)
    assert Playbook(max_frame_bytes=len(longest) - 1) >> Client(longest) << Closed("bad_frame")


# --- Counting -------------------------------------------------------------------------------------


def test_frames_are_counted_once_however_they_come() -> None:
    stream = A + heartbeat() + B + unparsable()
    for step in (1, 7, 50, len(stream)):
        counters = WireCounters()
        session = open_session(counters)
        for offset in range(0, len(stream), step):
            batch = session.receive(Side.CLIENT, memoryview(stream[offset : offset + step]), 0)
            if batch is not None:
                session.decided(batch, 0)
        assert counters.frames == {Side.CLIENT: 4, Side.BROKER: 0}


def test_refused_frames_are_counted_as_frames() -> None:
    play = Playbook(refuse("a")) >> Client(A + A) << ToClient(busy("a"), busy("a"))
    assert play.counters.frames[Side.CLIENT] == 2


def test_verdicts_go_by_index() -> None:
    stream = A + heartbeat() + A + A
    play = Playbook(refuse_indexes([1])) >> Client(stream)
    assert play << ToBroker(A + heartbeat(), A) << ToClient(busy("a"))


def test_answers_to_one_connection_do_not_disturb_its_requests() -> None:
    play = Playbook() >> Client(A + B[:10]) << ToBroker(A)
    play = play >> Broker(answer(1)) << ToClient(answer(1))
    assert play >> Client(B[10:]) << ToBroker(B[:-5], B[-5:])
