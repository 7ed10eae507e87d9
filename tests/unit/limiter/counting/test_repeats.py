"""Repeats are recognized for half a minute to a minute, up to a bound, in Python and in the compiled extension."""

from __future__ import annotations

import pytest

from limiter.counting.repeats import SOON_NS, PythonRefusedIds, RefusedIds

ORDERS, BILLS = hash(("topic", "orders")), hash(("topic", "bills"))


@pytest.fixture(params=[PythonRefusedIds, RefusedIds], ids=["python", "installed"])
def kind(request: pytest.FixtureRequest) -> type[RefusedIds]:
    return request.param


def refuse(ids: RefusedIds, *numbers: int, now_ns: int = 0, key: int = ORDERS) -> list[tuple[bool, bool]]:
    """Refuse messages. Return for each whether it is a repeat, and whether its repeat will be recognized."""
    return [ids.see(key, b"id%d" % number, now_ns, True) for number in numbers]


def passes(ids: RefusedIds, *numbers: int, now_ns: int = 0, key: int = ORDERS) -> list[bool]:
    """Let messages pass. Return for each whether it is a repeat."""
    found = [ids.see(key, b"id%d" % number, now_ns, False) for number in numbers]
    assert not any(seen for _, seen in found)
    return [known for known, _ in found]


def test_refused_requests_repeat_until_they_pass(kind: type[RefusedIds]) -> None:
    ids = kind()
    assert refuse(ids, 1, 2, 1, 1) == [(False, True), (False, True), (True, True), (True, True)]
    assert passes(ids, 1, 1, 3) == [True, False, False]
    assert refuse(ids, 1, 2) == [(False, True), (True, True)]
    assert len(ids) == 2


def test_no_more_are_kept_than_there_may_be_and_the_latest_are_known(kind: type[RefusedIds]) -> None:
    ids = kind(8)
    for number in range(100):
        refuse(ids, number)
        assert len(ids) <= 8
    assert passes(ids, *range(95, 100)) == [True] * 5
    assert passes(ids, *range(92)) == [False] * 92


def test_early_evictions_are_reported(kind: type[RefusedIds]) -> None:
    ids = kind(8)
    assert all(seen for _, seen in refuse(ids, *range(8)))
    # These replace the first four, then the next four find those missing, and so on.
    assert [seen for _, seen in refuse(ids, *range(8, 20), now_ns=SOON_NS - 1)] == [False] * 4 + [False] * 8
    # Repeats are still recognized, without replacing others.
    assert refuse(ids, 19, now_ns=SOON_NS - 1) == [(True, True)]
