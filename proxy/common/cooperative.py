"""Pace: long work on the event loop in short stretches, so that no message waits long for it.

A thread would not help: what computes in Python holds the interpreter, and the data path would wait for that.

Connections whose bytes take long to read wait for each other likewise, apart from all other such work, which is not to
wait for clients: see ``connection_turn``.

All other such work takes turns: however many ask for something long, there is one stretch at most in a turn of the
event loop, and a turn without one after it. A message's way takes about six turns of the loop, and so three stretches
at most; and what nobody waits for, like a scrape, rests for some turns besides, so that it meets one or two of those.
"""

from time import perf_counter_ns, thread_time_ns
from typing import Final

import trio

STRETCH_NS: Final = 400_000
"""How long work may go on before all others have their turns."""
LONGEST_NS: Final = 2_000_000
"""How long it may go on under load, when it gets a share of the time: else it would never end while clients flood."""
SHARE: Final = 4
"""Under load a stretch is as long as what all others had before it, divided by this."""
REST_TURNS: Final = 2
REST_NS: Final = 1_600_000
"""A rest lasts for so many turns, or until others have had so much time."""


class _Turns:
    """Who works may do so when it holds this; there is one for each event loop."""

    __slots__ = ("ended_ns", "lock")

    def __init__(self) -> None:
        self.lock = trio.StrictFIFOLock()
        #: When the last stretch ended, as far as is known; in the time that the loop's thread has had a core.
        self.ended_ns = 0


_turns: Final = trio.lowlevel.RunVar[_Turns]("proxy.common.cooperative")
_connections: Final = trio.lowlevel.RunVar[trio.StrictFIFOLock]("proxy.common.cooperative.connections")


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
                await _rest()
            self._ends_ns = await turn()


async def _rest() -> None:
    until_ns = thread_time_ns() + REST_NS
    for _ in range(REST_TURNS):
        await trio.lowlevel.checkpoint()
        if thread_time_ns() >= until_ns:
            return


async def turn() -> int:
    """Wait until it is one's turn to work; return when the stretch ends, on the clock of ``perf_counter_ns``."""
    try:
        turns = _turns.get()
    except LookupError:
        turns = _Turns()
        _turns.set(turns)
    # What others did in between, and not what the machine did for other processes.
    asked_ns = turns.ended_ns = thread_time_ns()
    async with turns.lock:
        # To take the lock took a turn of the loop already; this is the one without a stretch.
        await trio.lowlevel.checkpoint()
        others_ns = thread_time_ns() - max(asked_ns, turns.ended_ns)
    return perf_counter_ns() + min(max(STRETCH_NS, others_ns // SHARE), LONGEST_NS)


async def connection_turn() -> None:
    """Wait until a connection may read a chunk that takes long: there is one in two turns of the event loop at most."""
    try:
        lock = _connections.get()
    except LookupError:
        lock = trio.StrictFIFOLock()
        _connections.set(lock)
    async with lock:
        await trio.lowlevel.checkpoint()
