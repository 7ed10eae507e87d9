"""Runs the admin side's long-running work on threads. They read the event loop's objects a little at a time."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Final, TypeVar

import trio

PIECE_NS: Final = 500_000
_THREADS: Final = trio.CapacityLimiter(2)

_T = TypeVar("_T")


async def on_thread(work: Callable[..., _T], *args: object) -> _T:
    """Run ``work`` on a thread.

    If this call is cancelled, ``work`` keeps running until it finishes or reaches its next piece.
    """
    return await trio.to_thread.run_sync(partial(work, *args), limiter=_THREADS)


def from_loop(steps: Iterable[_T]) -> Iterator[_T]:
    """Iterate over ``steps`` on the event loop. Call this on a thread started by ``on_thread``."""
    iterator = iter(steps)
    while piece := trio.from_thread.run_sync(_piece, iterator):
        yield from piece


async def in_pieces(steps: Generator[object, None, _T]) -> _T:
    """Run ``steps`` on the event loop, with a checkpoint after each piece. Return the generator's result."""
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
