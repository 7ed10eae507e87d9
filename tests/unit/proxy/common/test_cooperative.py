from collections.abc import Callable

import pytest
import trio

from proxy.common import cooperative
from proxy.common.cooperative import Pace, turn

MS = 1_000_000


class Time:
    """The clock."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(cooperative, "perf_counter_ns", time.now_ns)
    return time


async def work(time: Time, done: list[str], name: str, pieces: int, piece_ns: int = MS // 4) -> None:
    keeper = Pace()
    for _ in range(pieces):
        time.ns += piece_ns
        done.append(name)
        await keeper.keep()


async def count_turns(turns: list[None], each: Callable[[], None]) -> None:
    while True:
        turns.append(None)
        each()
        await trio.lowlevel.checkpoint()


def nothing() -> None:
    pass


async def test_work_within_a_stretch_is_not_interrupted(time: Time) -> None:
    done: list[str] = []
    turns: list[None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns, turns, nothing)
        await work(time, done, "a", 3)
        assert not turns
        nursery.cancel_scope.cancel()


async def test_between_two_stretches_others_have_a_turn_without_one(time: Time) -> None:
    done: list[str] = []
    turns: list[None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns, turns, nothing)
        await work(time, done, "a", 400)
        nursery.cancel_scope.cancel()
    assert len(turns) >= 2 * 99


async def test_what_rests_gives_others_more_turns(time: Time) -> None:
    turns: list[None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns, turns, nothing)
        keeper = Pace(rests=True)
        for _ in range(10):
            time.ns += cooperative.STRETCH_NS
            await keeper.keep()
        nursery.cancel_scope.cancel()
    assert len(turns) >= 10 * (cooperative.REST_TURNS + 1)


async def test_there_is_one_stretch_in_a_turn_however_many_work(time: Time) -> None:
    done: list[str] = []
    stretches: list[int] = []
    turns: list[None] = []
    before = 0

    def look() -> None:
        nonlocal before
        stretches.append(len(done) - before)
        before = len(done)

    async def wait_and_work(name: str) -> None:
        await turn()
        await work(time, done, name, 40)

    async with trio.open_nursery() as everything:
        everything.start_soon(count_turns, turns, look)
        async with trio.open_nursery() as nursery:
            for name in "abcdefgh":
                nursery.start_soon(wait_and_work, name)
        everything.cancel_scope.cancel()
    assert len(done) == 8 * 40
    assert max(stretches) <= 4


async def test_those_who_work_take_turns(time: Time) -> None:
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, time, done, "a", 100)
        nursery.start_soon(work, time, done, "b", 100)
    # Neither is ever more than two stretches ahead.
    ahead = [done[:end].count("a") - done[:end].count("b") for end in range(1, 101)]
    assert max(map(abs, ahead)) <= 8


async def test_who_gives_up_waiting_holds_up_nobody() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(turn)
        with trio.CancelScope() as scope:
            scope.cancel()
            await turn()
    await turn()
