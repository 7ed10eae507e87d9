"""Runs long work of the admin side on threads, so that messages do not wait for it.

``admin.run`` shortens the interpreter's switch interval for this. Objects that belong to the event loop (limiters,
connections) are handed to the thread in short pieces.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Final, TypeVar

import trio

PIECE_NS: Final = 500_000
_THREADS: Final = trio.CapacityLimiter(2)

_T = TypeVar("_T")


async def on_thread(work: Callable[..., _T], *args: object) -> _T:
    """Run ``work`` on a small thread pool. If cancelled, it runs until its end or its next piece."""
    return await trio.to_thread.run_sync(partial(work, *args), limiter=_THREADS)


def from_loop(steps: Iterable[_T]) -> Iterator[_T]:
    """From such a thread, iterate over steps that run on the event loop. Each step must be short."""
    iterator = iter(steps)
    while piece := trio.from_thread.run_sync(_piece, iterator):
        yield from piece


async def in_pieces(steps: Generator[object, None, _T]) -> _T:
    """Run ``steps`` on the event loop with a checkpoint after each piece. Return their result."""
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
