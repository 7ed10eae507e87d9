"""Long work on threads, and live objects handed over in pieces."""

import threading
from collections.abc import Generator, Iterator

import pytest
import trio
from trio.testing import MockClock

from proxy.common import threads
from proxy.common.threads import from_loop, in_pieces, on_thread


async def test_a_thread_runs_a_generator_of_the_event_loop() -> None:
    loop = threading.current_thread()
    yielders: set[threading.Thread] = set()

    def steps() -> Iterator[int]:
        for number in range(1000):
            yielders.add(threading.current_thread())
            yield number

    def work() -> tuple[list[int], threading.Thread]:
        return list(from_loop(steps())), threading.current_thread()

    found, worker = await on_thread(work)
    assert found == list(range(1000))
    assert worker is not loop
    assert yielders == {loop}


async def test_an_error_of_a_step_is_the_errors_of_the_work() -> None:
    def steps() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await on_thread(list, from_loop(steps()))


@pytest.mark.parametrize("piece_ns", [0, 10**12])
async def test_others_have_a_turn_after_each_piece(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, piece_ns: int, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(threads, "PIECE_NS", piece_ns)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    def steps() -> Generator[None, None, str]:
        for _ in range(100):
            yield
        return "done"

    nursery.start_soon(others)
    assert await in_pieces(steps()) == "done"
    assert (turns >= 99) is (piece_ns == 0)
