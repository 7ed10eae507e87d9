from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.plans import usage
from limiter.plans.usage import Meter, Meters, Usage
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

S = 1_000_000_000
RULE = Rule("topic", "*", 10)
REFUSE_ALL = Rule("topic", "*", 0)


def topic(name: str) -> Resource:
    return Resource("topic", name)


@pytest.fixture
def meter() -> Meter:
    return Meters().meter("messages", topic("a"))


def shown(board: Meters) -> list[str]:
    return sorted(resource.name for _, resource, _ in board)


def test_nothing_asked_is_no_figure(meter: Meter) -> None:
    assert meter.usage(5 * S, RULE) is None


def test_second_that_has_begun_is_in_no_figure(meter: Meter) -> None:
    meter.add(5 * S, 7)
    assert meter.usage(6 * S - 1, RULE) is None
    assert meter.usage(6 * S, RULE) == Usage(0.7, 0.07, 7 / 600)


def test_permits_of_one_second_add_up(meter: Meter) -> None:
    for at_ns in (5 * S, 5 * S + 1, 6 * S - 1, 6 * S):
        meter.add(at_ns, 3)
    assert meter.usage(6 * S, RULE) == Usage(0.9, 0.09, 9 / 600)


def test_windows_are_the_last_complete_seconds(meter: Meter) -> None:
    for second in range(100):
        meter.add(second * S, 5)
    assert meter.usage(100 * S, RULE) == Usage(0.5, 0.5, 0.5)
    assert meter.usage(101 * S, RULE) == Usage(0, 0.45, 295 / 600)
    assert meter.usage(159 * S, RULE) == Usage(0, 0, 5 / 600)
    assert meter.usage(160 * S, RULE) is None


def test_silence_in_between_is_silence(meter: Meter) -> None:
    meter.add(S, 10)
    meter.add(31 * S, 10)
    assert meter.usage(32 * S, RULE) == Usage(1, 0.1, 20 / 600)
    meter.add(500 * S, 10)
    assert meter.usage(501 * S, RULE) == Usage(1, 0.1, 10 / 600)


def test_burst_or_debt_is_more_than_all(meter: Meter) -> None:
    meter.add(S, 25)
    assert meter.usage(2 * S, RULE) == Usage(2.5, 0.25, 25 / 600)


def test_rate_0_is_used_up_by_whatever_is_asked(meter: Meter) -> None:
    meter.add(S, 0)
    assert meter.usage(2 * S, REFUSE_ALL) == Usage(1, 1, 1)
    assert meter.usage(4 * S, REFUSE_ALL) == Usage(0, 1, 1)
    assert meter.usage(30 * S, REFUSE_ALL) == Usage(0, 0, 1)
    assert meter.usage(4 * S, RULE) == Usage(0, 0, 0)


def test_clock_that_runs_backwards_counts_in_the_latest_second(meter: Meter) -> None:
    meter.add(9 * S, 1)
    meter.add(3 * S, 1)
    assert meter.usage(3 * S, RULE) is None
    assert meter.usage(10 * S, RULE) == Usage(0.2, 0.02, 2 / 600)


def test_the_meter_of_a_limit_is_the_same_while_it_is_shown() -> None:
    board = Meters()
    meter = board.meter("messages", topic("a"))
    meter.add(0, 1)
    assert board.meter("messages", topic("a")) is meter
    assert board.meter("bytes", topic("a")) is not meter


class TestBound:
    def board(self, *, shown: int, pinned: Iterable[str] = ()) -> Meters:
        return Meters({topic(name) for name in pinned}.__contains__, shown)

    def add(self, board: Meters, name: str, second: int) -> Meter:
        meter = board.meter("messages", topic(name))
        meter.add(second * S, 1)
        return meter

    def test_what_is_beyond_is_not_shown_and_costs_no_memory(self) -> None:
        board = self.board(shown=2)
        for name in "abc":
            self.add(board, name, 5)
        assert shown(board) == ["a", "b"]
        assert self.add(board, "c", 6)._seconds is None

    def test_silent_ones_give_up_their_places(self) -> None:
        board = self.board(shown=2)
        for name in "ab":
            self.add(board, name, 5)
        self.add(board, "b", 30)
        self.add(board, "c", 67)
        assert shown(board) == ["b", "c"]

    def test_one_that_gave_up_its_place_finds_another_one_when_it_is_asked_again(self) -> None:
        board = self.board(shown=1)
        meter = self.add(board, "a", 5)
        self.add(board, "b", 100)
        meter.add(101 * S, 1)
        assert shown(board) == ["b"]
        meter.add(300 * S, 4)
        assert shown(board) == ["a"]
        assert meter.usage(301 * S, RULE) == Usage(0.4, 0.04, 4 / 600)

    def test_pinned_names_are_always_shown(self) -> None:
        board = self.board(shown=1, pinned=["x", "y"])
        for name in "axby":
            self.add(board, name, 5)
        assert shown(board) == ["a", "x", "y"]

    def test_pinning_others_moves_what_is_shown(self) -> None:
        board = self.board(shown=1, pinned=["x"])
        for name in "ax":
            self.add(board, name, 5)
        board.pin({topic("a")}.__contains__, [topic("x"), topic("a")])
        assert shown(board) == ["a", "x"]
        self.add(board, "b", 6)
        assert shown(board) == ["a", "x"]
        self.add(board, "b", 100)
        assert shown(board) == ["a", "b"]

    def test_those_pinned_no_more_leave_the_bound_as_it_is(self) -> None:
        board = self.board(shown=2, pinned=["x", "y"])
        meters = [self.add(board, name, 5) for name in "axy"]
        board.pin(set().__contains__, [topic("x"), topic("y")])
        assert shown(board) == ["a", "x"]
        assert meters[2]._seconds is None

    def test_looking_for_room_is_bounded_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(usage, "_LOOKS", 1)
        board = self.board(shown=3)
        for name in "abc":
            self.add(board, name, 5)
        self.add(board, "a", 70)
        self.add(board, "d", 70)
        assert shown(board) == ["a", "b", "c"]
        self.add(board, "d", 71)
        assert shown(board) == ["a", "c", "d"]

    def test_another_meter_of_the_same_limit_takes_the_place(self) -> None:
        board = self.board(shown=5)
        first, second = (board.meter("messages", topic("a")) for _ in range(2))
        first.add(0, 1)
        second.add(0, 2)
        assert [meter for _, _, meter in board] == [second]
        assert first._seconds is None


@given(
    steps=st.lists(
        st.tuples(st.one_of(st.integers(0, 25 * S), st.integers(0, 130 * S)), st.integers(0, 50)), max_size=80
    ),
    look_after_ns=st.integers(0, 70 * S),
)
def test_figures_are_exact(steps: list[tuple[int, int]], look_after_ns: int) -> None:
    meter = Meters().meter("messages", topic("a"))
    now_ns = 0
    added: list[tuple[int, int]] = []
    for pause_ns, permits in steps:
        now_ns += pause_ns
        meter.add(now_ns, permits)
        added.append((now_ns // S, permits))
    now_ns += look_after_ns
    present = now_ns // S
    sums = [
        sum(permits for second, permits in added if present - window_s <= second < present) for window_s in (1, 10, 60)
    ]
    found = meter.usage(now_ns, RULE)
    if any(present - 60 <= second < present for second, _ in added):
        assert found == tuple(total / (10 * window_s) for total, window_s in zip(sums, (1, 10, 60), strict=True))
    else:
        assert found is None
