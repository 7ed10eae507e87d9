"""Long lists, filtered and sorted in short stretches: nobody waits for ten thousand rows.

A list is sorted in runs, each well under a stretch, and the runs are merged only as far as somebody reads.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from proxy.pace import Pace

T = TypeVar("T")

RUN: Final = 128
"""Items that are filtered or sorted in one go."""


async def choose(items: Sequence[T], wanted: Callable[[T], bool]) -> list[T]:
    """Return those of the items that are wanted, in their order."""
    pace = Pace()
    chosen: list[T] = []
    for start in range(0, len(items), RUN):
        chosen += filter(wanted, items[start : start + RUN])
        await pace.keep()
    return chosen


class Ordered(Generic[T]):
    """Items in order, as far as they have been asked for; equal ones keep the order that they came in."""

    def __init__(self, items: Iterator[T], total: int) -> None:
        self._rest = items
        self._ready: list[T] = []
        self.total = total

    async def part(self, offset: int, limit: int) -> Sequence[T]:
        """Return some of the items."""
        end = min(offset + limit, self.total)
        pace = Pace()
        while len(self._ready) < end:
            # Several may read at once; each item is taken by one of them, and all of them find it in the list.
            self._ready.extend(item for _, item in zip(range(RUN // 2), self._rest, strict=False))
            await pace.keep()
        return self._ready[offset:end]


async def order(items: Sequence[T], key: Callable[[T], Any] | None, *, descending: bool) -> Ordered[T]:
    """Sort items.

    Args:
        items: sorted already by what decides between equal ones.
        key: what to sort by; None keeps the order.
        descending: the largest first.
    """
    if key is None:
        return Ordered(reversed(items) if descending else iter(items), len(items))
    pace = Pace()
    runs: list[list[tuple[Any, T]]] = []
    for start in range(0, len(items), RUN):
        run = [(key(item), item) for item in items[start : start + RUN]]
        run.sort(key=_first, reverse=descending)
        runs.append(run)
        await pace.keep()
    merged = heapq.merge(*runs, key=_first, reverse=descending)
    return Ordered((item for _, item in merged), len(items))


def _first(pair: tuple[Any, object]) -> Any:
    return pair[0]
