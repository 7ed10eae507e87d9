"""What happens later."""

from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.loopback.timers import Timers


def _note(ran: list[Any], name: object, _now_ns: int) -> None:
    ran.append(name)


def test_timers_run_in_order_of_due_time_and_then_of_setting() -> None:
    timers = Timers()
    ran: list[Any] = []
    for due, name in ((30, "c"), (10, "a"), (30, "d"), (20, "b")):
        timers.at(due, partial(_note, ran, name))
    assert timers.next_ns() == 10
    assert timers.run_due(29) == 2
    assert ran == ["a", "b"]
    timers.run_due(30)
    assert ran == ["a", "b", "c", "d"]
    assert timers.next_ns() is None


def test_cancelled_timer_never_runs_and_is_not_waited_for() -> None:
    timers = Timers()
    ran: list[Any] = []
    timer = timers.at(10, ran.append)
    timers.at(20, ran.append)
    timers.cancel(timer)
    timers.cancel(timer)
    assert timers.next_ns() == 20
    assert len(timers) == 1
    timers.run_due(100)
    assert ran == [100]


def test_timer_may_set_another_that_is_due_at_once() -> None:
    timers = Timers()
    ran: list[Any] = []

    def set_another(now_ns: int) -> None:
        timers.at(now_ns, partial(_note, ran, "second"))

    timers.at(10, set_another)
    assert timers.run_due(10) == 2
    assert ran == ["second"]


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    for due in range(100_000):
        timers.cancel(timers.at(1_000_000 + due, lambda _now: None))
    assert len(timers) == 0
    assert len(timers._heap) < 2_100


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())), st.integers(0, 60))
def test_exactly_what_is_due_and_not_cancelled_runs(plan: list[tuple[int, bool]], now: int) -> None:
    timers = Timers()
    ran: list[Any] = []
    for index, (due, cancelled) in enumerate(plan):
        timer = timers.at(due, partial(_note, ran, index))
        if cancelled:
            timers.cancel(timer)
    timers.run_due(now)
    wanted = [index for index, (due, cancelled) in enumerate(plan) if due <= now and not cancelled]
    assert ran == sorted(wanted, key=lambda index: plan[index][0])
    assert len(timers) == sum(not cancelled for _, cancelled in plan) - len(ran)
