"""Frames cut off, changed, dropped, repeated and made up, in random chunks, with random verdicts."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook import frames
from playbook.captures import CAPTURES, Capture, distinct_frames
from playbook.playbook import busy, open_session, refuse_indexes
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading
from playbook.trial import Refuses, Trial, read_stream

from limiter.rules.resource import Resource
from proxy.deciding.batch import Side

TO_BROKER = distinct_frames("to_broker")
TO_CLIENT = distinct_frames("to_client")
#: Of those that take their cases at random.
BLOCKS = [pytest.param(block, marks=[pytest.mark.long] * (block > 1)) for block in range(8)]
#: One of nine is tried each time, and all of them by who tries rare cases.
NINTHS = [pytest.param(first, marks=[pytest.mark.long] * (first > 0)) for first in range(9)]


def refuses_share(share: float, seed: int) -> Refuses:
    """Refuse this share of the requests, the same ones for the same seed."""
    return lambda number: Random(seed * 1_000_003 + number).random() < share


def how_long(random: Random) -> int:
    """Choose the longest chunk of a connection; single bytes are slow, so they are rarer."""
    return random.choice((1, 8, 30, 100, 100, 300, 1000, 1000, 5000, 100_000))


# --- Cut off --------------------------------------------------------------------------------------


def relay(side: Side, data: bytes, *, refused: bool = False) -> tuple[bytes, bytes]:
    """Return what the broker and the client are given of a stream that comes in one chunk and then ends."""
    session = open_session(exempt=True)
    batch = session.receive(side, memoryview(data), 0)
    if batch is not None:
        if refused:
            refuse_indexes(range(len(batch.requests)))(batch)
        session.decided(batch, 0)
    session.end(side, 0)
    return b"".join(session.take(Side.BROKER)), b"".join(session.take(Side.CLIENT))


@pytest.mark.parametrize("first", NINTHS)
def test_request_cut_off_anywhere(first: int) -> None:
    for whole in TO_BROKER[first::9]:
        ((_, _, header),), _ = read_stream(whole)
        assert header is not None
        known_from = len(whole) if header.is_batch else 8 + int.from_bytes(whole[5:8])
        answered = busy(header.name, header.opaque, kind=header.kind)
        for stop in range(1, len(whole) + 1):
            assert relay(Side.CLIENT, whole[:stop]) == (whole[:stop], b"")
            if header.kind and stop >= known_from:
                expected = (b"", b"" if header.flag & frames.ONEWAY else answered)
            else:
                expected = (whole[:stop], b"")
            assert relay(Side.CLIENT, whole[:stop], refused=True) == expected


@pytest.mark.parametrize("first", NINTHS)
def test_answer_cut_off_anywhere(first: int) -> None:
    for whole in TO_CLIENT[first::9]:
        for stop in range(1, len(whole) + 1):
            assert relay(Side.BROKER, whole[:stop]) == (b"", whole[:stop])


@pytest.mark.parametrize("first", NINTHS)
def test_request_cut_off_anywhere_with_more_behind_it(first: int) -> None:
    for whole in TO_BROKER[first::9]:
        random = Random(len(whole))
        for stop in range(random.randrange(8), len(whole), 8):
            trial = Trial(refuses_share(0.5, stop))
            trial.play(whole[:stop] + random.choice(TO_BROKER) + random.choice(TO_BROKER), b"", random, 400)
            trial.end()
            trial.check(ended=True)


# --- Changed, dropped and repeated ----------------------------------------------------------------


def spoil(data: bytes, random: Random) -> bytes:
    """Change, drop, repeat or move some bytes."""
    spoiled = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        at = random.randrange(len(spoiled) + 1)
        length = min(random.choice((1, 1, 2, 4, 8, 100)), len(spoiled) - at)
        piece = spoiled[at : at + length]
        match random.randrange(6):
            case 0:
                spoiled[at : at + length] = random.randbytes(length)
            case 1:
                del spoiled[at : at + length]
            case 2:
                spoiled[at:at] = piece * random.randint(1, 3)
            case 3:
                spoiled[at:at] = random.choice((b"\0", b'"', b"}", b"\xff", b"\\", b"{", b"\0\0\0\0"))
            case 4 if length:
                spoiled[at] ^= 1 << random.randrange(8)
            case _:
                other = random.randrange(len(spoiled) + 1)
                spoiled[other : other + length] = piece
    return bytes(spoiled)


def some_frames(stream: bytes, random: Random, most: int) -> bytes:
    """Return a run of the stream's frames."""
    whole = list(frames.split(stream))
    first = random.randrange(len(whole))
    return b"".join(whole[first : first + random.randint(1, most)])


@pytest.mark.parametrize("block", BLOCKS)
def test_spoiled_connections(block: int, factor: int) -> None:
    for case in range(150 * factor):
        seed = block * 1_000_000 + case
        random = Random(seed)
        capture = random.choice(CAPTURES)
        to_broker = some_frames(capture.to_broker, random, 12)
        to_client = some_frames(capture.to_client, random, 8)
        if random.random() < 0.8:
            to_broker = spoil(to_broker, random)
        if random.random() < 0.3:
            to_client = spoil(to_client, random)
        trial = Trial(refuses_share(random.choice((0.0, 0.1, 0.5, 1.0)), seed), wants_responses=random.random() < 0.5)
        try:
            trial.play(to_broker, to_client, random, how_long(random))
            trial.end()
            trial.check(ended=True)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_whole_connections_spoiled(capture: Capture, factor: int) -> None:
    for seed in range(3 * factor):
        random = Random(seed)
        trial = Trial(refuses_share(0.3, seed))
        trial.play(spoil(capture.to_broker, random), capture.to_client, random, random.choice((100, 5_000)))
        trial.end()
        trial.check(ended=True)


# --- Random verdicts on sound connections ---------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_refused_and_passed_are_all_there_was(capture: Capture, share: float, factor: int) -> None:
    for seed in range(2 * factor):
        random = Random(seed)
        refuses = refuses_share(share, seed)
        trial = Trial(refuses)
        trial.play(capture.to_broker, capture.to_client, random, random.choice((20, 300, 10_000)))
        trial.end()
        trial.check(ended=True)
        assert trial.closed is None
        passed = list(frames.split(bytes(trial.received[Side.BROKER])))
        refused = sum(map(refuses, range(len(trial.all_requests))))
        assert len(passed) + refused == len(list(frames.split(capture.to_broker)))
        given = list(frames.split(bytes(trial.received[Side.CLIENT])))
        assert [whole for whole in given if whole not in trial.own] == list(frames.split(capture.to_client))


# --- Made up --------------------------------------------------------------------------------------

NAMES = st.sampled_from(("orders", "%RETRY%g", "g", "naïve", "x" * 300, "", "a b"))
OPAQUES = st.integers(-(2**31), 2**31 - 1)
CODES = st.sampled_from((10, 11, 34, 36, 37, 40, 310, 320, 324, 325, 361, 200_050, -1, 0))
FLAGS = st.sampled_from((0, 0, 0, 1, 2, 3, 255))
KEYS = st.sampled_from(("a", "b", "m", "topic", "producerGroup", "batch", "group", "i", "ns"))
VALUES = st.one_of(NAMES, st.booleans(), st.integers(), st.none(), st.sampled_from(("true", "false", "1")))
BODIES = st.one_of(
    st.binary(max_size=80),
    st.integers(0, 20).map(frames.batch_body),
    st.tuples(st.integers(0, 20).map(frames.batch_body), st.binary(max_size=30)).map(b"".join),
)

JSON_FRAMES = st.builds(
    frames.json_frame, CODES, st.dictionaries(KEYS, VALUES, max_size=5), opaque=OPAQUES, flag=FLAGS, body=BODIES
)
BINARY_FRAMES = st.builds(
    frames.binary_frame,
    CODES.filter(lambda code: code < 2**15),
    st.dictionaries(KEYS, NAMES, max_size=5),
    opaque=OPAQUES,
    flag=FLAGS,
    body=BODIES,
)
ODD_FRAMES = st.builds(
    frames.frame, st.one_of(st.binary(max_size=60), st.just(b"{}")), BODIES, header_type=st.integers(0, 1)
)
STREAMS = st.lists(st.one_of(JSON_FRAMES, BINARY_FRAMES, ODD_FRAMES), max_size=8).map(b"".join)
ANSWERS = st.lists(st.one_of(JSON_FRAMES, ODD_FRAMES), max_size=4).map(b"".join)


@given(to_broker=STREAMS, to_client=ANSWERS, seed=st.integers(0, 999), share=st.floats(0, 1))
def test_made_up_connections(to_broker: bytes, to_client: bytes, seed: int, share: float) -> None:
    random = Random(seed)
    trial = Trial(refuses_share(share, seed))
    trial.play(to_broker, to_client, random, random.choice((1, 30, 1000)))
    trial.end()
    trial.check(ended=True)
    assert trial.closed in {None, "unparsable"}


@given(to_broker=st.one_of(st.binary(max_size=200), st.tuples(STREAMS, st.binary(max_size=60)).map(b"".join)))
def test_arbitrary_bytes(to_broker: bytes) -> None:
    trial = Trial(refuses_share(0.3, 7))
    trial.play(to_broker, to_broker, Random(len(to_broker)), 40)
    trial.end()
    trial.check(ended=True)


# --- Chunks make no difference --------------------------------------------------------------------


def all_in_one(to_broker: bytes, refuses: Refuses) -> Trial:
    trial = Trial(refuses)
    trial.play(to_broker, b"", Random(0), 2**30)
    trial.end()
    return trial


def asked(trial: Trial) -> list[object]:
    return [
        (request.resources, request.size_bytes, request.producer_group, request.refusal)
        for request in trial.all_requests
    ]


def messages(trial: Trial) -> dict[tuple[Resource, ...], int]:
    """Return the messages by resource, whenever they were charged."""
    total = dict(trial.charged)
    for request in trial.all_requests:
        total[request.resources] = total.get(request.resources, 0) + request.messages
    return total


@pytest.mark.parametrize("block", BLOCKS[:4])
def test_any_chunking_is_as_good_as_none(block: int, factor: int) -> None:
    for case in range(100 * factor):
        random = Random(block * 1_000_000 + case)
        to_broker = some_frames(random.choice(CAPTURES).to_broker, random, 30)
        spoiled, share = random.random() < 0.5, random.choice((0.0, 0.3, 1.0))
        if spoiled:
            to_broker = spoil(to_broker, random)
        refuses = refuses_share(share, case)
        whole = all_in_one(to_broker, refuses)
        pieces = Trial(refuses)
        pieces.play(to_broker, b"", random, how_long(random))
        pieces.end()
        assert pieces.received == whole.received
        assert pieces.own == whole.own
        assert pieces.closed == whole.closed
        assert asked(pieces) == asked(whole)
        if not spoiled and not share:  # a batch that was refused or cut off is charged what had come of it
            assert messages(pieces) == messages(whole)
