"""The client's stream: frames from chunks, requests from frames, and the rest of a chunk."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook.frames import (
    ONEWAY,
    batch_body,
    binary_frame,
    cut,
    frame,
    heartbeat,
    send,
    send_back,
    send_batch,
    unparsable,
)
from playbook.playbook import (
    READINGS,
    Anything,
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
    turns,
)

from limiter.rules.resource import Resource
from proxy.common.buffers import KEPT_NS, Gathering, GatherRoom
from proxy.deciding.batch import Side
from proxy.protocols.base import Close, Session, WireCounters
from proxy.protocols.rocketmq.requests import MAX_HEADER_BYTES
from proxy.protocols.rocketmq.wire.codes import MAX_FRAME_BYTES
from proxy.protocols.rocketmq.wire.header import MAX_FIELDS

A, B, C = send("a", 1), send("b", 2), send("c", 3)


def topics(play: Playbook) -> list[str]:
    return [request.resources[0].name for request in play.requests]


# --- Passed requests ----------------------------------------------------------------------------------


def test_a_chunk_without_refusals_is_forwarded_uncopied_in_one_slice() -> None:
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


def test_requests_have_the_fields_for_handlers() -> None:
    oneway = send("b", 2, flag=ONEWAY, group="other", body=b"x" * 100)
    play = Playbook() >> Client(A + oneway) << ToBroker(A + oneway)
    first, second = play.requests
    assert first.resources == (Resource("topic", "a"),)
    assert (first.messages, first.size_bytes, first.producer_group, first.refusal) == (
        1,
        len(A),
        "producers",
        "answered",
    )
    assert second.resources == (Resource("topic", "b"),)
    assert (second.messages, second.size_bytes, second.producer_group, second.refusal) == (
        1,
        len(oneway),
        "other",
        "silent",
    )


def test_send_back_and_send_to_the_retry_topic_share_a_resource() -> None:
    both = send_back("g") + send("%RETRY%g")
    play = Playbook() >> Client(both) << ToBroker(both)
    back, fallback = play.requests
    assert back.resources == (Resource("retry_group", "g"),)
    assert back.resources is fallback.resources


# --- Refusals ------------------------------------------------------------------------------


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
def test_remaining_bytes_of_a_chunk_are_forwarded(refused: str, left: list[bytes]) -> None:
    answers = [busy(name, opaque) for opaque, name in enumerate("abc", 1) if name in refused]
    assert Playbook(refuse(*refused)) >> Client(A + B + C) << ToBroker(*left) << ToClient(*answers)


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


@settings(deadline=None)
@given(
    body=st.integers(0, 60),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    refused=st.booleans(),
)
def test_a_verdict_covers_the_body_in_any_chunks(body: int, cuts: list[int], refused: bool) -> None:  # noqa: FBT001
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


# --- Batches --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(cuts=st.lists(st.integers(1, 700), max_size=5))
def test_batch_in_pieces_is_decided_once_and_whole(cuts: list[int]) -> None:
    whole = send_batch("a", 16)
    play = Playbook()
    for piece in cut(A + whole + B, *cuts):
        play = play >> Client(piece) << Anything()
    assert [request.messages for request in play.requests] == [1, 16, 1]
    assert play.given[Side.BROKER] == A + whole + B


def test_an_invalid_batch_counts_as_one_message_with_any_mark() -> None:
    whole = send("a", batch=True, body=b"\xff" * 70_000)
    play = Playbook() >> Client(whole) << ToBroker(whole)
    play = play >> Client(whole[:50_000]) >> Client(whole[50_000:]) << ToBroker(whole)
    assert [request.messages for request in play.requests] == [1, 1]


@pytest.mark.parametrize(
    ("body", "cuts", "least"),
    [
        (batch_body(100_000, b""), (), 6),
        (batch_body(100_000, b""), (60_000, 150_000), 6),
        # One message of 8 MiB takes no more steps than any other, but a longer search.
        (batch_body(1, bytes(8 << 20)), (), 4),
        (batch_body(1, bytes(8 << 20)), (150_000,), 4),
    ],
    ids=["many", "many in pieces", "large", "large in pieces"],
)
def test_long_batch_is_read_in_turns(body: bytes, cuts: tuple[int, ...], least: int) -> None:
    """The driver lets other connections run whenever part of a chunk is left."""
    whole = send("a", batch=True, body=body)
    session, turns, given = open_session(), 0, b""
    for piece in cut(A + whole + B, *cuts):
        left = len(piece)
        while left:
            batch = session.receive(Side.CLIENT, memoryview(piece)[-left:], 0)
            if batch is not None:
                session.decided(batch, 0)
            given += b"".join(session.take(Side.BROKER))
            left = session.left_bytes(Side.CLIENT)
            turns += 1
    assert turns >= least
    assert given == A + whole + B


def test_many_long_batches_are_read_in_turns() -> None:
    session, one = open_session(), send("a", batch=True, body=batch_body(1000, b""))
    chunk = memoryview(one * 100)
    turns, left, requests = 0, len(chunk), 0
    while left:
        batch = session.receive(Side.CLIENT, chunk[-left:], 0)
        assert batch is not None
        assert sum(request.messages for request in batch.requests) < 20_000
        requests += len(batch.requests)
        session.decided(batch, 0)
        session.take(Side.BROKER)
        left = session.left_bytes(Side.CLIENT)
        turns += 1
    assert (turns > 5, requests) == (True, 100)


def test_a_batch_without_room_is_refused() -> None:
    whole = send("a", batch=True, body=batch_body(5000, bytes(20)))
    play = Playbook(room=GatherRoom(100_000)) >> Client(whole[:1000]) << Anything()
    assert [request.messages for request in play.requests] == [1]
    assert play.refused_by == ["unreadable_batch"]
    assert b"need wait:1000000microsecs, rule unreadable_batch" in play.given[Side.CLIENT]
    assert play >> Client(whole[1000:] + B) << ToBroker(B)


def test_announced_length_takes_no_room() -> None:
    room = GatherRoom(1_000_000)
    whole = send("a", batch=True, body=batch_body(5000, bytes(20)))
    plays = [Playbook(room=room) >> Client(whole[:1000]) for _ in range(20)]
    assert room.taken_bytes == 0
    assert Playbook(room=room) >> Client(whole[:100_000]) >> Client(whole[100_000:]) << ToBroker(whole)
    for play in plays:
        play.session.close()
    assert room.taken_bytes == 0


@pytest.mark.parametrize("changes", [{}, {"exempt": True}, {"limiting": False}])
@pytest.mark.parametrize("rest", [1, 100_000, 10**6])
def test_a_batch_that_loses_its_room_is_refused_midway(changes: dict[str, Any], rest: int) -> None:
    room = GatherRoom(400_000)
    whole = send("a", batch=True, body=batch_body(5000, bytes(20)))
    play = Playbook(room=room, **changes) >> Client(A + whole[:100_000]) << ToBroker(A)
    assert room.taken_bytes == 100_000
    assert room.grow(Gathering("198.51.100.1"), 300_000, 0)
    come = whole[100_000:150_000]
    play = play >> Client(come)
    after = whole[150_000:] + B
    pieces = [after[at : at + rest] for at in range(0, len(after), rest)] if rest > 1 else [after[:1], after[1:]]
    before = play.given[Side.BROKER]
    for piece in pieces:
        play = play << Anything() >> Client(piece)
    play = play << Anything()
    assert room.taken_bytes == 300_000
    passes = bool(changes)
    assert play.given[Side.BROKER] == A + (whole if passes else b"") + B
    assert before == A + (whole[:150_000] if passes else b"")
    assert (b"rule unreadable_batch" in play.given[Side.CLIENT]) is not passes


@pytest.mark.parametrize("changes", [{}, {"limiting": False}])
@pytest.mark.parametrize("rest", [1, 100_000, 10**6])
def test_batch_that_stalls_makes_room_for_another(changes: dict[str, Any], rest: int) -> None:
    room = GatherRoom(262_144)
    whole = send("a", batch=True, body=batch_body(5000, bytes(20)))
    stalled, other = Playbook(room=room, **changes), Playbook(room=room)
    stalled = stalled >> Client(A + whole[:200_000]) << ToBroker(A)
    other.now_ns = KEPT_NS - 1
    other = other >> Client(whole[:100_000]) << Anything()
    assert other.refused_by == ["unreadable_batch"]
    other = other >> Client(whole[100_000:]) << Anything()
    other.now_ns = KEPT_NS
    assert other >> Client(whole[:100_000]) >> Client(whole[100_000:] + B) << ToBroker(whole, B)
    assert room.taken_bytes == 0
    assert len(stalled.session._requests._batch) < 1000  # type: ignore[attr-defined]
    after = whole[200_000:] + B
    assert stalled.session.missing_bytes(Side.CLIENT) == len(after) - len(B)
    for at in range(0, len(after), rest) if rest > 1 else [0]:
        stalled = stalled >> Client(after[at : at + rest]) << Anything()
    if rest == 1:
        stalled = stalled >> Client(after[1:]) << Anything()
    assert stalled.given[Side.BROKER] == A + B
    assert b"rule unreadable_batch" in stalled.given[Side.CLIENT]


def test_long_header_that_does_not_come_makes_room_for_another_and_ends_its_connection() -> None:
    room = GatherRoom(262_144)
    whole = send("a", filler=200_000)
    stalled, other = Playbook(room=room), Playbook(room=room)
    stalled = stalled >> Client(A + whole[:150_000]) << ToBroker(A)
    refused = Playbook(room=room) >> Client(B + whole[:60_000]) << ToBroker(B)
    assert refused >> Client(whole[60_000:150_000]) << Closed("unparsable")
    other.now_ns = KEPT_NS
    other = other >> Client(whole[:150_000]) << Anything() >> Client(whole[150_000:]) << Anything()
    assert other.given[Side.BROKER] == whole
    assert room.taken_bytes == 0
    assert not stalled.session._requests._beginning.pieces  # type: ignore[attr-defined]
    assert stalled >> Client(whole[150_000:] + B) << Closed("unparsable")


@pytest.mark.parametrize("sent", [100_000, 150_000])
def test_room_of_a_long_header_goes_with_its_connection(sent: int) -> None:
    room = GatherRoom(262_144)
    session = open_session(room=room)
    session.receive(Side.CLIENT, memoryview(send("a", filler=200_000)[:sent]), 0)
    assert room.taken_bytes == sent
    session.close()
    assert room.taken_bytes == 0


def test_an_exempt_clients_batch_makes_no_room_for_others() -> None:
    room = GatherRoom(262_144)
    whole = send("a", batch=True, body=batch_body(5000, bytes(20)))
    exempt, other = Playbook(room=room, exempt=True), Playbook(room=room)
    exempt = exempt >> Client(whole[:200_000])
    other.now_ns = 10 * KEPT_NS
    other = other >> Client(whole[:100_000]) << Anything()
    assert other.refused_by == ["unreadable_batch"]
    assert exempt >> Client(whole[200_000:]) << ToBroker(whole)


def test_a_slow_batch_passes_while_no_other_needs_its_room() -> None:
    whole = send("a", batch=True, body=batch_body(5000, bytes(20)))
    play = Playbook(room=GatherRoom(262_144))
    for at in range(0, len(whole), 10_000):
        play = play << Anything() >> Client(whole[at : at + 10_000])
        play.now_ns += KEPT_NS
    assert play << ToBroker(whole)


def test_batch_that_comes_at_once_needs_no_room() -> None:
    whole = send("a", batch=True, body=batch_body(5000, bytes(20)))
    assert Playbook(room=GatherRoom(0)) >> Client(whole) << ToBroker(whole)


@pytest.mark.parametrize("last", [Client(bytes(1)), End(Side.CLIENT), None])
def test_room_is_returned_at_any_end_of_a_batch(last: Client | End | None) -> None:
    room = GatherRoom()
    whole = send("a", batch=True, body=bytes(100_000))
    play = Playbook(room=room) >> Client(whole[:-1])
    assert room.taken_bytes == len(whole) - 1
    if last is not None:
        play = play >> last << Anything()
    play.session.close()
    assert room.taken_bytes == 0


# --- Unreadable headers -----------------------------------------------------------------


# Forms that the broker reads, or might: a code with a suffix, more fields than are read here, a header beyond the
# bound.
UNREADABLE = {
    "no header": unparsable(),
    "empty": frame(b""),
    "suffix": frame(b'{"code":310L,"opaque":5,"extFields":{"a":"g","b":"a"}}'),
    "commit": frame(b'{"code":37L,"opaque":5,"extFields":{"producerGroup":"g","commitOrRollback":"8"}}'),
    "reference": frame(b'{"code":310,"opaque":5,"extFields":{"a":"g","b":{"$ref":"$.remark"}},"remark":"a"}'),
    "batch": frame(b'{"code":310L,"opaque":5,"extFields":{"a":"g","b":"a","m":"true"}}', batch_body(40)),
    "fields": binary_frame(310, {"a": "g", "b": "a", "m": "true"} | {f"k{at}": "" for at in range(MAX_FIELDS)}),
    "long": send("a", filler=MAX_HEADER_BYTES),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("whole", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_header_ends_the_connection_behind_earlier_frames(whole: bytes, reading: Reading) -> None:
    play = Playbook(refuse("b"), reading=reading)
    assert play >> Client(A + B + whole + A) << Closed("unparsable") << ToBroker(A) << ToClient(busy("b", 2))
    assert play.counters.undecodable == {"none": 1}


def play_all(session: Session, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        batch = session.receive(Side.CLIENT, memoryview(piece), 0)
        if batch is not None:
            session.decided(batch, 0)


@pytest.mark.parametrize("whole", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_header_ends_the_connection_in_any_chunks(whole: bytes) -> None:
    for offset in (1, 4, 7, 8, 9, 20, MAX_HEADER_BYTES):
        session = open_session()
        with pytest.raises(Close) as closed:
            play_all(session, cut(A + whole + B, len(A) + offset))
        assert closed.value.reason == "unparsable"
        assert b"".join(session.take(Side.BROKER)) == A


@pytest.mark.parametrize("changes", [{"exempt": True}, {"limiting": False}])
@pytest.mark.parametrize("whole", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_header_passes_without_limits(whole: bytes, changes: dict[str, Any]) -> None:
    for offset in (0, 7, 9, 20, MAX_HEADER_BYTES):
        play = Playbook(**changes)
        for piece in cut(A + whole + B, len(A) + offset):
            play = play >> Client(piece) << Anything()
        assert play.given[Side.BROKER] == A + whole + B
        assert topics(play) == ["a", "b"]
        assert play.counters.undecodable == {"none": 1}
        assert play.session.in_flight() == 2


LENIENT = frame(b'{"code":"34","opaque":1}')

# --- How much is looked at in one turn ------------------------------------------------------------


@pytest.mark.parametrize("reading", READINGS)
def test_many_topics_are_read_in_turns(reading: Reading) -> None:
    topics = [f"t{number}" for number in range(1250)]
    session = open_session(reading=reading)
    play = session.receive(Side.CLIENT, memoryview(b"".join(map(send, topics[:100]))), 0)
    assert play is not None
    session.decided(play, 0)
    session.take(Side.BROKER)
    asked = turns(session, b"".join(map(send, topics)))
    assert [len(turn) for turn in asked] == [256, 256, 256, 256, 226]
    assert list(chain.from_iterable(asked)) == topics


SLOW = frame(b'{"code":"310","opaque":1,"extFields":{"a":"g","b":"a"}}')
# A batch is not plain, so each field is read.
MANY_FIELDS = binary_frame(310, {"a": "g", "b": "a", "m": "true"} | {f"k{at:03}": "" for at in range(MAX_FIELDS - 3)})


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(("whole", "most"), [(SLOW, 1), (MANY_FIELDS, 64)], ids=["lenient", "many fields"])
def test_slow_headers_are_read_a_few_at_a_time(reading: Reading, whole: bytes, most: int) -> None:
    asked = turns(open_session(reading=reading), whole * 400)
    assert max(map(len, asked)) <= most


# --- Invalid frames -----------------------------------------------------------------------------

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
@pytest.mark.parametrize("at", range(1, 8))
def test_broken_framing_in_pieces_closes_too(broken: bytes, at: int) -> None:
    play = Playbook() >> Client(A + broken[:at]) << ToBroker(A)
    assert play >> Client(broken[at:]) << Closed("bad_frame")


def test_longest_frame_follows_the_option() -> None:
    longest = send("a", body=bytes(100))
    assert Playbook(max_frame_bytes=len(longest)) >> Client(longest) << ToBroker(longest)
    assert Playbook(max_frame_bytes=len(longest) - 1) >> Client(longest) << Closed("bad_frame")


# --- Counting -------------------------------------------------------------------------------------


def test_frames_are_counted_once_in_any_chunks() -> None:
    stream = A + heartbeat() + B + LENIENT
    for step in (1, 7, 50, len(stream)):
        counters = WireCounters()
        session = open_session(counters)
        for offset in range(0, len(stream), step):
            batch = session.receive(Side.CLIENT, memoryview(stream[offset : offset + step]), 0)
            if batch is not None:
                session.decided(batch, 0)
        assert counters.frames == {Side.CLIENT: 4, Side.BROKER: 0}
