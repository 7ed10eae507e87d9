"""Held requests: copied out of their chunk, released between two frames, or answered busy."""

import pytest
from playbook.frames import (
    ONEWAY,
    answer,
    cut,
    pull,
    send,
    send_batch,
)
from playbook.playbook import (
    Broker,
    Client,
    Decided,
    End,
    GiveUp,
    Playbook,
    Release,
    ToBroker,
    ToClient,
    Undecided,
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


def test_a_held_request_is_left_out_and_what_is_behind_it_goes_on() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(B + A + C) << ToBroker(B, C)
    assert held_bytes(play) == len(A)
    assert play >> Release(0) << ToBroker(A)
    assert held_bytes(play) == 0


def test_released_requests_go_on_in_the_order_of_their_release() -> None:
    play = Playbook(hold("a", "c"))
    assert play >> Client(A + B + C) << ToBroker(B)
    assert play >> Release(1) << ToBroker(C)
    assert play >> Release(0) << ToBroker(A)


def test_a_held_request_that_is_refused_is_answered() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(A + B) << ToBroker(B)
    assert play >> GiveUp(0) << ToClient(busy("a", 1))
    assert held_bytes(play) == 0


def test_a_oneway_request_is_refused_in_silence() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(send("a", flag=ONEWAY)) >> GiveUp(0)
    assert play.session.in_flight() == 0


def test_held_and_refused_requests_of_one_chunk_are_kept_apart() -> None:
    play = Playbook(hold("a", refusing=("b",)))
    assert play >> Client(A + B + C + A + B) << ToBroker(C) << ToClient(busy("b", 2), busy("b", 2))
    assert play >> Release(1) << ToBroker(A)
    assert play >> GiveUp(0) << ToClient(busy("a", 1))


def test_a_frame_that_came_in_two_pieces_is_held_whole() -> None:
    for at in range(1, len(A)):
        play = Playbook(hold("a"))
        assert play >> Client(A[:at])
        assert play >> Client(A[at:] + B) << ToBroker(B)
        assert play >> Release(0) << ToBroker(A)


# --- Bodies that are still to come ----------------------------------------------------------------


def test_the_rest_of_a_held_frame_is_gathered() -> None:
    play = Playbook(hold("a"))
    for piece in cut(BIG, 500, 700):
        assert play >> Client(piece)
    assert held_bytes(play) == len(BIG)
    assert play >> Client(B) << ToBroker(B)
    assert play >> Release(0) << ToBroker(BIG)


def test_the_rest_of_a_released_frame_streams_on() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(BIG[:500])
    assert play >> Release(0) << ToBroker(BIG[:500])
    assert play >> Client(BIG[500:700]) << ToBroker(BIG[500:700])
    assert play >> Client(BIG[700:] + B) << ToBroker(BIG[700:] + B)


def test_the_rest_of_a_refused_frame_is_swallowed() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(BIG[:500])
    assert play >> GiveUp(0) << ToClient(busy("a", 1))
    assert play >> Client(BIG[500:700])
    assert play >> Client(BIG[700:] + B) << ToBroker(B)
    assert play.session.between_frames(Side.CLIENT)


def test_a_drain_knows_what_is_missing_of_a_held_frame() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(BIG[:500])
    assert not play.session.between_frames(Side.CLIENT)
    assert play.session.missing_bytes(Side.CLIENT) == len(BIG) - 500
    assert play >> Client(BIG[500:])
    assert play.session.between_frames(Side.CLIENT)


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


def test_a_release_need_not_wait_for_a_body_that_is_swallowed() -> None:
    play = Playbook(hold("a", refusing=("b",)))
    big = send("b", 2, body=b"x" * 1000)
    assert play >> Client(A + big[:500]) << ToClient(busy("b", 2))
    assert play >> Release(0) << ToBroker(A)


def test_a_release_need_not_wait_for_a_body_that_is_gathered() -> None:
    play = Playbook(hold("a", "c"))
    assert play >> Client(C + BIG[:500])
    assert play >> Release(0) << ToBroker(C)
    assert play >> Client(BIG[500:]) >> Release(1) << ToBroker(BIG)


def test_a_release_goes_before_a_chunk_that_waits_for_its_verdicts() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(A)
    assert play >> Undecided(B)
    assert play >> Release(0) << ToBroker(A)
    assert play >> Decided() << ToBroker(B)


def test_a_release_goes_behind_the_body_at_the_front_of_a_chunk_that_waits() -> None:
    play = Playbook(hold("a"))
    big = send("b", 2, body=b"x" * 1000)
    assert play >> Client(A + big[:500]) << ToBroker(big[:500])
    assert play >> Undecided(big[500:] + C)
    assert play >> Release(0)
    assert play >> Decided() << ToBroker(big[500:], A, C)


def test_a_frame_that_was_completed_by_a_chunk_that_waits_is_released_whole() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(BIG[:500])
    assert play >> Undecided(BIG[500:] + B)
    assert play >> Release(0) << ToBroker(BIG)
    assert play >> Decided() << ToBroker(B)


# --- What is in flight ----------------------------------------------------------------------------


def test_a_held_request_is_in_flight_until_it_is_refused() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(A)
    assert play.session.in_flight() == 1
    assert play >> GiveUp(0) << ToClient(busy("a", 1))
    assert play.session.in_flight() == 0


def test_a_released_request_is_in_flight_until_it_is_answered() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(A) >> Release(0) << ToBroker(A)
    assert play.session.in_flight() == 1
    assert play >> Broker(answer(1)) << ToClient(answer(1))
    assert play.session.in_flight() == 0


def test_a_held_pull_is_in_flight_and_a_released_one_may_stay_with_the_broker() -> None:
    play = Playbook(hold("g@orders"), limited=("subscription",))
    assert play >> Client(pull(5))
    assert play.session.in_flight() == 1
    assert play >> Release(0) << ToBroker(pull(5))
    assert play.session.in_flight() == 0


# --- Batches --------------------------------------------------------------------------------------

BATCH = send_batch("a", 10, 1)


@pytest.mark.parametrize("at", [5, 100, len(BATCH) - 1])
def test_a_batch_that_came_in_pieces_is_released_as_it_came(at: int) -> None:
    play = Playbook(hold("a"))
    assert play >> Client(BATCH[:at]) >> Client(BATCH[at:])
    assert [request.messages for request in play.requests] == [10]
    assert play >> Release(0) << ToBroker(BATCH)


# --- Ends -----------------------------------------------------------------------------------------


def test_the_end_of_the_clients_stream_frees_what_is_held() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(A + BIG[:500])
    assert play >> End(Side.CLIENT)
    assert held_bytes(play) == play.session.in_flight() == 0


def test_what_was_released_inside_a_frame_that_is_never_completed_goes_nowhere() -> None:
    play = Playbook(hold("a"))
    big = send("b", 2, body=b"x" * 1000)
    assert play >> Client(A + big[:500]) << ToBroker(big[:500])
    assert play >> Release(0) >> End(Side.CLIENT)
    assert held_bytes(play) == 0


def test_after_the_brokers_end_a_refusal_is_not_answered_any_more() -> None:
    play = Playbook(hold("a"))
    assert play >> Client(A) >> End(Side.BROKER) >> GiveUp(0)
    assert held_bytes(play) == 0


def test_held_oneways_go_on_when_their_client_has_gone_and_nothing_else_does() -> None:
    oneway = send("a", 3, flag=ONEWAY)
    play = Playbook(hold("a"))
    assert play >> Client(A + oneway)
    session = session_of(play)
    assert session.keeps(Side.CLIENT)
    assert play >> Release(1) << ToBroker(oneway)
    assert not session.keeps(Side.CLIENT)


def test_a_held_oneway_whose_client_left_in_the_middle_of_it_does_not_go_on() -> None:
    oneway = send("a", 3, body=b"x" * 1000, flag=ONEWAY)
    play = Playbook(hold("a"))
    assert play >> Client(oneway[:-10])
    session = session_of(play)
    assert not session.keeps(Side.CLIENT)
    assert play >> Release(0)
    assert held_bytes(play) == 0
