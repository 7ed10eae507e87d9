"""Pace: long work on the event loop in short stretches, so that no message waits long for it.

A thread would not help: what computes in Python holds the interpreter, and the data path would wait for that.

All such work takes turns: however many ask for something long, there is one stretch at most in a turn of the event
loop, and a turn without one after it. What nobody waits for, like a scrape, rests for some turns besides. Connections
whose bytes take long to read wait for each other in the same way, but apart from all other work, which is not to wait
for clients.
"""

from time import perf_counter_ns
from typing import Final

import trio

STRETCH_NS: Final = 1_000_000
"""How long work may go on before all others have their turns."""
REST_TURNS: Final = 2
"""How many turns of the event loop a rest takes."""

_Lock = trio.lowlevel.RunVar[trio.StrictFIFOLock]
_work: Final = _Lock("proxy.common.cooperative.work")


class Pace:
    """Gives all other tasks a turn as soon as a stretch is over; a new one begins after that.

    Args:
        rests: nobody waits for it.
    """

    __slots__ = ("_ends_ns", "_rests")

    def __init__(self, *, rests: bool = False) -> None:
        self._ends_ns = perf_counter_ns() + STRETCH_NS
        self._rests = rests

    async def keep(self) -> None:
        """Call this between any two pieces of the work; a piece takes well under a stretch."""
        if perf_counter_ns() >= self._ends_ns:
            if self._rests:
                for _ in range(REST_TURNS):
                    await trio.lowlevel.checkpoint()
            await turn()
            self._ends_ns = perf_counter_ns() + STRETCH_NS


async def turn() -> None:
    """Wait until it is one's turn to work for a stretch."""
    await _take_turn(_work)


async def _take_turn(lock_of_loop: _Lock) -> None:
    try:
        lock = lock_of_loop.get()
    except LookupError:
        lock = trio.StrictFIFOLock()
        lock_of_loop.set(lock)
    async with lock:
        # To take the lock took a turn of the loop already; this is the one without a stretch.
        await trio.lowlevel.checkpoint()
