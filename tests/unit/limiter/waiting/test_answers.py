from __future__ import annotations

import pytest

from limiter.plans.plans import QueueKey
from limiter.rules.resource import Resource
from limiter.waiting import delays
from limiter.waiting.delays import ExpectedCosts

S = 1_000_000_000


def line(name: str) -> QueueKey:
    return QueueKey("messages", Resource("subscription", name), "")


A = line("a")


def test_expected_costs_expire_after_a_second() -> None:
    expected = ExpectedCosts()
    expected.released(A, 5)
    assert expected.remembered_until_ns(A) == S + 5
    assert expected.ahead(A, S + 4) == 1
    assert expected.ahead(A, S + 5) == 0
    assert expected.remembered_until_ns(A) is None


def test_lines_are_distinguished_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "_MAX_LINES", 2)
    expected = ExpectedCosts()
    for name in "abac":
        expected.released(line(name), 0)
    assert [expected.ahead(line(name), 0) for name in "abc"] == [2, 0, 1]
