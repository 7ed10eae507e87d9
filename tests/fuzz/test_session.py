"""Frames cut off anywhere, and random verdicts on recorded connections. test_corpus.py has the rest."""

from random import Random

import pytest
from playbook import frames
from playbook.captures import CAPTURES, Capture, distinct_frames
from playbook.playbook import busy, open_session, refuse_indexes
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading
from playbook.trial import Refuses, Trial, read_stream

from proxy.deciding.batch import Side

TO_BROKER = distinct_frames("to_broker")
TO_CLIENT = distinct_frames("to_client")
# One of nine in each run, and all of them with rare cases.
NINTHS = [pytest.param(first, marks=[pytest.mark.long] * (first > 0)) for first in range(9)]


def refuses_share(share: float, seed: int) -> Refuses:
    """Refuse this share of the requests, the same ones for the same seed."""
    return lambda number: Random(seed * 1_000_003 + number).random() < share


def relay(side: Side, data: bytes, *, refused: bool = False) -> tuple[bytes, bytes]:
    """Return the output for broker and client of a stream that comes in one chunk and then ends."""
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


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_refused_and_passed_add_up(capture: Capture, share: float, factor: int) -> None:
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
