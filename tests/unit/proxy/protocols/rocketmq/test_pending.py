"""What is in flight."""

import pytest
from playbook.frames import send
from playbook.playbook import READINGS, Anything, Client, Decide, Playbook, Reading, hold, refuse

from proxy.protocols.rocketmq.pending import MAX_PENDING, Pending


def test_what_is_remembered_is_bounded() -> None:
    owed = Pending()
    for opaque in range(MAX_PENDING + 10):
        owed.add(opaque, 34, ())
        owed.add(-opaque - 1, 11, ())
    assert len(owed) == MAX_PENDING
    assert owed.settle(MAX_PENDING) is None
    assert owed.settle(-MAX_PENDING - 1) is None
    owed.add(3, 35, ())
    assert owed.settle(3) == (35, ())


def test_answer_to_what_is_timed_says_how_long_it_took_once() -> None:
    owed = Pending()
    owed.add(7, 34, ())
    assert owed.may_time(5)
    owed.time(7, 5)
    assert not owed.may_time(10**10)
    assert owed.timed(100) is None
    owed.settle(7)
    assert owed.timed(105) == 100
    assert owed.timed(106) is None


def test_what_no_answer_is_owed_for_is_not_timed() -> None:
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


def test_what_took_too_long_is_not_timed() -> None:
    owed = Pending()
    for took_ns, expected in ((60_000_000_000, 60_000_000_000), (60_000_000_001, None)):
        owed.add(7, 34, ())
        owed.time(7, 0)
        owed.settle(7)
        assert owed.timed(took_ns) == expected
    owed.add(7, 34, ())
    assert owed.may_time(10**12)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("decide", [refuse("b"), hold("b")])
def test_refused_or_held_request_is_no_answer_to_what_is_timed(reading: Reading, decide: Decide) -> None:
    play = Playbook(decide, reading=reading) >> Client(send("a", 7) * 20) << Anything()
    owed = play.session._owed  # type: ignore[attr-defined]
    assert owed._timed == 7
    play = play >> Client(send("b", 7) * 20) << Anything()
    assert owed._timed is None
    assert owed.timed(1) is None
