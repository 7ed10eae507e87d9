"""What is in flight."""

from proxy.protocols.rocketmq.owed import LONG_POLLS, MAX_OWED, Owed


def test_long_polls_are_owed_but_not_in_flight() -> None:
    owed = Owed()
    for opaque, code in enumerate(sorted(LONG_POLLS)):
        owed.add(opaque, code, ())
    assert len(owed) == 0
    assert owed.settle(1) == (sorted(LONG_POLLS)[1], ())


def test_request_is_settled_once() -> None:
    owed = Owed()
    owed.add(7, 34, ())
    assert len(owed) == 1
    assert owed.settle(7) == (34, ())
    assert owed.settle(7) is None
    assert len(owed) == 0


def test_of_two_requests_with_one_number_the_later_counts() -> None:
    owed = Owed()
    owed.add(7, 34, ())
    owed.add(7, 35, ())
    assert len(owed) == 1
    assert owed.settle(7) == (35, ())


def test_what_is_remembered_is_bounded() -> None:
    owed = Owed()
    for opaque in range(MAX_OWED + 10):
        owed.add(opaque, 34, ())
        owed.add(-opaque - 1, 11, ())
    assert len(owed) == MAX_OWED
    assert owed.settle(MAX_OWED) is None
    assert owed.settle(-MAX_OWED - 1) is None
    owed.add(3, 35, ())
    assert owed.settle(3) == (35, ())
