"""Held requests: copied out of their chunk, released between two frames, or refused."""

import pytest
from playbook.frames import (
    ONEWAY,
    send,
    send_batch,
)
from playbook.playbook import (
    Client,
    GiveUp,
    Playbook,
    Release,
    ToBroker,
    ToClient,
    busy,
    hold,
)
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading

from proxy.deciding.batch import Side
from proxy.protocols.rocketmq.session import RocketMQSession

A, B, C = send("a", 1), send("b", 2), send("c", 3)
BIG = send("a", 1, body=b"x" * 1000)


def session_of(play: Playbook) -> RocketMQSession:
    assert isinstance(play.session, RocketMQSession)
    return play.session


def held_bytes(play: Playbook) -> int:
    return session_of(play)._requests.held.size_bytes


# --- Whole frames ---------------------------------------------------------------------------------


def test_a_held_request_is_left_out_and_later_ones_are_forwarded() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(B + A + C) << ToBroker(B, C)
    assert held_bytes(play) == len(A)
    assert play >> Release(0) << ToBroker(A)
    assert held_bytes(play) == 0


def test_a_frame_that_came_in_two_pieces_is_held_whole() -> None:
    for at in range(1, len(A)):
        play = Playbook(hold("a"))
        assert play >> Client(A[:at])
        assert play >> Client(A[at:] + B) << ToBroker(B)
        assert play >> Release(0) << ToBroker(A)


# --- Boundaries -----------------------------------------------------------------------------------


def test_a_release_waits_for_the_end_of_a_body_that_streams_through() -> None:
    play = Playbook(hold("a", "c"))
    big = send("b", 2, body=b"x" * 1000)
    assert play >> Client(A + C + big[:500]) << ToBroker(big[:500])
    assert play >> Release(1) >> Release(0)
    assert play.session.backlog_bytes(Side.BROKER) == len(A) + len(C)
    assert play >> Client(big[500:700]) << ToBroker(big[500:700])
    assert play >> Client(big[700:] + B) << ToBroker(big[700:], C, A, B)
    assert held_bytes(play) == play.session.backlog_bytes(Side.BROKER) == 0


# --- Batches --------------------------------------------------------------------------------------

BATCH = send_batch("a", 10, 1)


@pytest.mark.parametrize("at", [5, 100, len(BATCH) - 1])
def test_a_batch_that_came_in_pieces_is_released_as_it_came(at: int) -> None:
    play = Playbook(hold("a"))
    assert play >> Client(BATCH[:at]) >> Client(BATCH[at:])
    assert [request.messages for request in play.requests] == [10]
    assert play >> Release(0) << ToBroker(BATCH)


# --- Ends -----------------------------------------------------------------------------------------


def test_only_held_oneways_are_forwarded_after_their_client_has_gone() -> None:
    oneway = send("a", 3, flag=ONEWAY)
    play = Playbook(hold("a"))
    assert play >> Client(A + oneway)
    session = session_of(play)
    assert session.has_undelivered(Side.CLIENT)
    assert play >> Release(1) << ToBroker(oneway)
    assert not session.has_undelivered(Side.CLIENT)


def test_an_incomplete_held_oneway_of_a_gone_client_is_not_forwarded() -> None:
    oneway = send("a", 3, body=b"x" * 1000, flag=ONEWAY)
    play = Playbook(hold("a"))
    assert play >> Client(oneway[:-10])
    session = session_of(play)
    assert not session.has_undelivered(Side.CLIENT)
    assert play >> Release(0)
    assert held_bytes(play) == 0


def test_the_rest_of_a_refused_frame_is_swallowed() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(BIG[:500])
    assert play >> GiveUp(0) << ToClient(busy("a", 1))
    assert play >> Client(BIG[500:700])
    assert play >> Client(BIG[700:] + B) << ToBroker(B)
    assert play.session.between_frames(Side.CLIENT)
