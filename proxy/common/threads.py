"""Long work of the operator's side runs on threads, so that messages do not wait for it.

A thread gives the interpreter back after the switch interval, which ``admin.run`` shortens. What only the event loop
may touch, limiters and connections above all, is handed to the thread in small pieces.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Final, TypeVar

import trio

PIECE_NS: Final = 500_000
"""How long the event loop works on one piece."""
_THREADS: Final = trio.CapacityLimiter(2)

_T = TypeVar("_T")


async def on_thread(work: Callable[..., _T], *args: object) -> _T:
    """Do long work on one of a few threads. If it is cancelled, the work goes on to its end or its next piece."""
    return await trio.to_thread.run_sync(partial(work, *args), limiter=_THREADS)


def from_loop(steps: Iterable[_T]) -> Iterator[_T]:
    """On such a thread, go through what only the event loop may touch; each step is short."""
    iterator = iter(steps)
    while piece := trio.from_thread.run_sync(_piece, iterator):
        yield from piece


async def in_pieces(steps: Generator[object, None, _T]) -> _T:
    """Take all steps of work on the event loop, with a turn for all others after each piece; return the result."""
    ends_ns = perf_counter_ns() + PIECE_NS
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: _T = over.value
            return result
        if perf_counter_ns() >= ends_ns:
            await trio.lowlevel.checkpoint()
            ends_ns = perf_counter_ns() + PIECE_NS


def _piece(steps: Iterator[_T]) -> list[_T]:
    ends_ns = perf_counter_ns() + PIECE_NS
    piece = []
    for step in steps:
        piece.append(step)
        if perf_counter_ns() >= ends_ns:
            break
    return piece
