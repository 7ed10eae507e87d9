"""A row: the outcomes of all requests for one resource, since the start and second by second.

It is updated once for each group of requests that are decided alike, by one thread. The compiled part has the same
``Second`` and ``Row``.
"""

import operator
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from limiter.compiled import COMPILED
from limiter.rules.resource import Resource

N_OUTCOMES: Final = 7
"""How many outcomes there are; they are numbered as ``limiter.counting.rejections.OUTCOMES`` has them."""
REFUSED: Final = 1
HELD: Final = 2
"""A held request is counted again with its final outcome."""
MAX_SENDERS: Final = 256
"""Senders told apart in each entry."""
KEPT_S: Final = 60
"""Complete seconds for which the permits spent are known."""

Amounts = Sequence[tuple[int, int, int]]
"""Requests, messages and bytes, by the number of the outcome; there are always all of them."""

_FIGURES: Final = 3 * N_OUTCOMES
_SLOTS: Final = KEPT_S + 1
"""One for each of these seconds, and one for the current second."""
_OTHERS: Final = 0
"""No object's identity."""


class Second:
    """The second under way, or a longer stretch of time; each begins with a greater number than the one before."""

    def __init__(self, number: int) -> None:
        self.began = self.number = number  # ``number`` may be raised: then the stretch goes on for another second
        # In order of first appearance; at most one for each row.
        self.entries: list[Entry] = []


class Entry:
    """The counts of one resource in one stretch of time; only its row makes it and adds to it."""

    __slots__ = ("_figures", "_senders", "more", "resource", "told")

    def __init__(self, resource: Resource, figures: list[int], senders: dict[int, list[Any]]) -> None:
        self.resource = resource
        self.told = 0  # refusals that were answered
        self.more = False  # there were more senders than are told apart
        self._figures = figures
        self._senders = senders

    def amounts(self) -> list[tuple[int, int, int]]:
        return amounts_of(self._figures)

    def asked(self) -> list[tuple[object, int, int]]:
        """Return (sender, requests, refused requests) in order of first appearance.

        Neither figure includes held requests. With ``more`` the last sender is None: all others together.
        """
        return [(sender, requests, refused) for sender, requests, refused in self._senders.values()]


PythonEntry = Entry


class Row:
    """The counters of one resource."""

    __slots__ = (
        *("_before", "_began", "_entry", "_figures", "_given_back", "_rings", "_senders", "looks_until_ns"),
        *("resource", "retired", "seen_ns", "shared", "spent_in"),
    )

    def __init__(self, resource: Resource, *, shared: bool = False) -> None:
        self.resource = resource
        self.shared = shared  # it stands for many names; holders must ask again each time
        self.seen_ns = 0  # when something was last added; 0 if nothing was. May be set.
        self.spent_in = -1  # number of the second in which permits were last spent; -1 if none were
        self.retired = False  # another row has replaced it; holders must ask again. Set by the owner of the rows.
        self.looks_until_ns = 0  # until then repeats may come. May be set.
        # The second of its entry; a reference to the second itself would keep everything in it.
        self._began: int | None = None
        self._figures = [0] * _FIGURES
        # By identity of the sender: the sender, its requests that were not held, and its refused ones.
        self._senders: dict[int, list[Any]] = {}
        self._entry = PythonEntry(resource, self._figures, self._senders)
        # The counts before that.
        self._before = [0] * _FIGURES
        # By dimension, a ring of what was spent in ``spent_in`` and the seconds before; -1: not asked.
        self._rings: list[array[int] | None] = [None, None]
        # By dimension, permits given back that were spent in earlier seconds.
        self._given_back = [0, 0]

    def add(  # noqa: PLR0917 - by position, as it is called for each group of requests
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
        """Count an outcome of some requests.

        ``second`` is never earlier than before. Senders are told apart by identity. ``requests`` is 0 for a cost that
        became known after its request. ``told`` is how many refusals were answered.
        """
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
        """Return requests, messages and bytes by number of the outcome, since the start and including this second."""
        return amounts_of([*map(operator.add, self._before, self._figures)])

    def fold(self, amounts: Amounts) -> None:
        """Add the counts of another row to the totals, but to no second."""
        self._before = [*map(operator.add, self._before, chain.from_iterable(amounts))]

    def spend(self, second: Second, dimension: int, permits: int) -> None:
        """Note a question to a limit in this second, and the permits spent, which may be 0.

        Permits below 0 were given back: they are deducted from those of this second, and then from the next.
        ``dimension`` is its number in DIMENSIONS.
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
        """Return the permits spent in each of the KEPT_S seconds before one, the oldest first.

        Args:
            number: of the second under way, which is not included. If permits were spent in a later one, that one.
            dimension: as in ``spend``.

        Returns:
            -1 for a second without a question; None if there was none in any.
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
"""The classes above; where the compiled part is installed, ``Second`` and ``Row`` are its."""
if not TYPE_CHECKING and COMPILED is not None:
    Second, Entry, Row = COMPILED.Second, COMPILED.Entry, COMPILED.Row
