"""A timer wheel: files things under the time at which they are next worth a look.

The registry files every limiter that it may evict under the time at which that one turns idle. The wheel
only files and hands out again; whether a thing really is idle is for the caller to judge.

Slots are coarse and kept in a dict, so that empty ones cost nothing; a heap knows the earliest. Filing and
handing out are constant work, but for the heap's when a slot is opened or emptied.
"""

from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

_SLOT_BITS: Final = 24
"""A slot is 2**24 ns, about 17 ms."""

T = TypeVar("T")


class Wheel(Generic[T]):
    """Things in slots of time."""

    __slots__ = ("_due", "_never", "_slots", "_times")

    def __init__(self) -> None:
        self._slots: dict[int, list[T]] = {}
        self._times: list[int] = []
        self._due: list[list[T]] = []
        self._never: list[T] = []

    def file(self, thing: T, at_ns: int | None) -> None:
        """File a thing under a time; with None it is not handed out before ``recall``."""
        if at_ns is None:
            self._never.append(thing)
            return
        # Rounded up: what nobody touches in between has really reached its time when its slot is due.
        slot = -(-at_ns >> _SLOT_BITS)
        things = self._slots.get(slot)
        if things is None:
            self._slots[slot] = [thing]
            heappush(self._times, slot)
        else:
            things.append(thing)

    def pop_due(self, now_ns: int) -> T | None:
        """Take out and return a thing whose time has come, or None."""
        while self._due:
            things = self._due[-1]
            if things:
                return things.pop()
            self._due.pop()
        if self._times and self._times[0] << _SLOT_BITS <= now_ns:
            self._due.append(self._slots.pop(heappop(self._times)))
            return self._due[-1].pop()
        return None

    def recall(self) -> None:
        """Make everything due, for when the times it was filed under no longer hold."""
        self._due.extend(self._slots.values())
        if self._never:
            self._due.append(self._never)
        self._slots = {}
        self._times = []
        self._never = []
