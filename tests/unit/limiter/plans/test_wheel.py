from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from limiter.plans.registry import TimerWheel
from limiter.rules.rule import NS_PER_S

T = TypeVar("T")


def pop_all(wheel: TimerWheel[T], now_ns: int) -> list[T]:
    popped = []
    while (thing := wheel.pop_due(now_ns)) is not None:
        popped.append(thing)
    return popped


def test_empty_wheel_hands_out_nothing() -> None:
    assert TimerWheel[str]().pop_due(10**18) is None


def test_hands_out_what_is_due_and_keeps_the_rest() -> None:
    wheel: TimerWheel[str] = TimerWheel()
    wheel.file("late", 2 * NS_PER_S)
    wheel.file("early", 0)

    assert pop_all(wheel, NS_PER_S) == ["early"]
    assert pop_all(wheel, 3 * NS_PER_S) == ["late"]


def test_never_is_not_handed_out_before_a_recall() -> None:
    wheel: TimerWheel[str] = TimerWheel()
    wheel.file("never", None)

    assert pop_all(wheel, 10**18) == []
    wheel.recall()
    assert pop_all(wheel, 0) == ["never"]


def test_recall_makes_everything_due_whatever_the_time() -> None:
    wheel: TimerWheel[str] = TimerWheel()
    for name, at_ns in [("a", 10**15), ("b", 10**15), ("c", 10**16), ("d", None)]:
        wheel.file(name, at_ns)
    wheel.recall()
    wheel.file("e", 10**15)

    assert sorted(pop_all(wheel, 0)) == ["a", "b", "c", "d"]
    assert pop_all(wheel, 2 * 10**15) == ["e"]


@given(
    times_ns=st.lists(st.integers(-(10**18), 10**18), max_size=30),
    now_ns=st.integers(-(10**18), 10**18),
)
def test_nothing_comes_before_its_time_and_everything_within_20_ms_after(times_ns: list[int], now_ns: int) -> None:
    wheel: TimerWheel[int] = TimerWheel()
    for at_ns in times_ns:
        wheel.file(at_ns, at_ns)
    popped = pop_all(wheel, now_ns)

    assert all(at_ns <= now_ns for at_ns in popped)
    assert all(at_ns > now_ns - 20_000_000 for at_ns in times_ns if at_ns not in popped)


def test_recalls_leave_nothing_behind() -> None:
    wheel = TimerWheel[str]()
    wheel.file("a", 5)
    for _ in range(100):
        wheel.recall()
    assert len(wheel._due) == 1
    assert pop_all(wheel, 0) == ["a"]
