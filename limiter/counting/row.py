"""A row counts the outcomes of all requests for one resource, in total and per second. Rows are not thread-safe."""

import operator
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from limiter.compiled import COMPILED
from limiter.rules.resource import Resource

N_OUTCOMES: Final = 7
"""The length of ``limiter.counting.rejections.OUTCOMES``."""
REFUSED: Final = 1
HELD: Final = 2
MAX_SENDERS: Final = 256
KEPT_S: Final = 60

Amounts = Sequence[tuple[int, int, int]]
"""(requests, messages, bytes) for each outcome, in the order of ``OUTCOMES``."""

_FIGURES: Final = 3 * N_OUTCOMES
_SLOTS: Final = KEPT_S + 1
_OTHERS: Final = 0


class Second:
    def __init__(self, number: int) -> None:
        self.began = self.number = number
        self.entries: list[Entry] = []


class Entry:
    """A resource's counts in one period. Only the resource's row modifies them."""

    __slots__ = ("_figures", "_senders", "more", "resource", "told")

    def __init__(self, resource: Resource, figures: list[int], senders: dict[int, list[Any]]) -> None:
        self.resource = resource
        self.told = 0
        self.more = False
        self._figures = figures
        self._senders = senders

    def amounts(self) -> list[tuple[int, int, int]]:
        return amounts_of(self._figures)

    def asked(self) -> list[tuple[object, int, int]]:
        """Return (sender, requests, refused requests) for each sender. Held requests are not counted.

        The sender None stands for all senders beyond ``MAX_SENDERS``.
        """
        return [(sender, requests, refused) for sender, requests, refused in self._senders.values()]


PythonEntry = Entry


class Row:
    __slots__ = (
        *("_before", "_began", "_entry", "_figures", "_given_back", "_rings", "_senders", "repeats_until_ns"),
        *("resource", "retired", "seen_ns", "shared", "spent_in"),
    )

    def __init__(self, resource: Resource, *, shared: bool = False) -> None:
        self.resource = resource
        self.shared = shared
        self.seen_ns = 0
        self.spent_in = -1
        self.retired = False
        self.repeats_until_ns = 0
        # The second's number, because a reference to the second would keep all its entries alive.
        self._began: int | None = None
        self._figures = [0] * _FIGURES
        # [sender, requests except held ones, refused requests] by ``id(sender)``.
        self._senders: dict[int, list[Any]] = {}
        self._entry = PythonEntry(resource, self._figures, self._senders)
        self._before = [0] * _FIGURES
        # For each dimension, a ring of permits spent per second, up to ``spent_in``. -1 if the limit was not checked.
        self._rings: list[array[int] | None] = [None, None]
        # For each dimension, permits given back that have yet to be deducted.
        self._given_back = [0, 0]

    def add(  # noqa: PLR0917 - positional for speed
        self,
        second: Second,
        now_ns: int,
        sender: object,
        outcome: int,
        requests: int,
        messages: int,
        size_bytes: int,
        told: int = 0,
    ) -> None:
        """Count an outcome. Senders are distinguished by identity."""
        self.seen_ns = now_ns
        if self._began != second.began:
            self._begin(second)
        figures, at = self._figures, 3 * outcome
        figures[at] += requests
        figures[at + 1] += messages
        figures[at + 2] += size_bytes
        self._entry.told += told
        sent = self._senders.get(id(sender)) or self._place(sender)
        if outcome != HELD:
            sent[1] += requests
            if outcome == REFUSED:
                sent[2] += requests

    def _begin(self, second: Second) -> None:
        self._before = [*map(operator.add, self._before, self._figures)]
        self._began = second.began
        self._figures, self._senders = [0] * _FIGURES, {}
        self._entry = PythonEntry(self.resource, self._figures, self._senders)
        second.entries.append(self._entry)

    def _place(self, sender: object) -> list[Any]:
        if len(self._senders) < MAX_SENDERS:
            return self._senders.setdefault(id(sender), [sender, 0, 0])
        self._entry.more = True
        return self._senders.setdefault(_OTHERS, [None, 0, 0])

    def totals(self) -> list[tuple[int, int, int]]:
        return amounts_of([*map(operator.add, self._before, self._figures)])

    def fold(self, amounts: Amounts) -> None:
        """Add amounts to the totals, but not to the current second."""
        self._before = [*map(operator.add, self._before, chain.from_iterable(amounts))]

    def spend(self, second: Second, dimension: int, permits: int) -> None:
        """Record that a limit was checked and permits were spent.

        A negative number gives permits back. If they exceed those spent in this second, the rest is deducted later.
        """
        number, ring = second.number, self._rings[dimension]
        if number != self.spent_in:
            self._turn(number)
        if ring is None:
            ring = self._rings[dimension] = array("q", [-1]) * _SLOTS
        at = number % _SLOTS
        permits += max(0, ring[at]) - self._given_back[dimension]
        ring[at] = max(0, permits)
        self._given_back[dimension] = max(0, -permits)

    def _turn(self, number: int) -> None:
        for silent in range(max(self.spent_in + 1, number - KEPT_S), number + 1):
            for ring in self._rings:
                if ring is not None:
                    ring[silent % _SLOTS] = -1
        self.spent_in = number

    def used(self, number: int, dimension: int) -> list[int] | None:
        """Return the permits spent in each of the KEPT_S seconds before ``number`` (or ``spent_in``, if later).

        The oldest second comes first, and -1 means that the limit was not checked. Return None if it never was.
        """
        ring, silent = self._rings[dimension], max(0, number - self.spent_in)
        if ring is None or silent > KEPT_S:
            return None
        oldest = (self.spent_in + 1) % _SLOTS
        kept = [*ring[oldest:], *ring[:oldest], *[-1] * silent][silent : silent + KEPT_S]
        return None if max(kept) < 0 else kept


def amounts_of(figures: Sequence[int]) -> list[tuple[int, int, int]]:
    return list(zip(figures[0::3], figures[1::3], figures[2::3], strict=True))


PythonSecond, PythonRow = Second, Row
if not TYPE_CHECKING and COMPILED is not None:
    Second, Entry, Row = COMPILED.Second, COMPILED.Entry, COMPILED.Row
