"""The state of a bucket and its breaker, and what is done with it for each request that passes.

This is the one layout that Python and the compiled part share: where ``sluice_native`` is installed its ``Cell`` is
used, so that both decide by the same figures. That one keeps 64 bits of each, which is enough for what any rule allows;
what is beyond becomes the nearest that they hold. The figures of the one below have no bound.
"""

from typing import TYPE_CHECKING

from limiter.compiled import COMPILED
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT


class Cell:
    """What a limiter stores.

    Attributes:
        rate_upermits_per_s: refill in micro-permits per second; 0 never refills.
        capacity_upermits: the most that is ever stored.
        stored_upermits: the balance at ``at_ns``; negative is a debt.
        forgiven_upermits: how much more would be missing had the capacity never been lowered.
        max_debt_upermits: the most that one request may leave owing.
        at_ns: the time up to which refill is in ``stored_upermits``. It never moves back.
        open_next_free_ns: the breaker's state: when the bucket would have admitted again as it opened; None is closed.
        asked_ns: when it was last asked.
        retired: it decides for nobody any more.
    """

    __slots__ = (
        "asked_ns",
        "at_ns",
        "capacity_upermits",
        "forgiven_upermits",
        "max_debt_upermits",
        "open_next_free_ns",
        "rate_upermits_per_s",
        "retired",
        "stored_upermits",
    )

    def __init__(self) -> None:
        self.rate_upermits_per_s = self.capacity_upermits = self.stored_upermits = 0
        self.forgiven_upermits = self.max_debt_upermits = self.at_ns = self.asked_ns = 0
        self.open_next_free_ns: int | None = None
        self.retired = False

    def refill(self, now_ns: int) -> int:
        """Bring the balance up to ``now_ns`` and return it, in micro-permits.

        Time that did not make a whole micro-permit stays unaccounted, so frequent calls lose nothing but the part of it
        below one nanosecond. A clock that runs backwards refills nothing.
        """
        elapsed_ns = now_ns - self.at_ns
        if elapsed_ns <= 0:
            return self.stored_upermits
        rate = self.rate_upermits_per_s
        accrued, leftover = divmod(elapsed_ns * rate, NS_PER_S)
        stored = self.stored_upermits
        if accrued:
            stored += accrued
            if stored >= self.capacity_upermits:
                if self.forgiven_upermits:
                    self.forgiven_upermits = max(0, self.forgiven_upermits - (stored - self.capacity_upermits))
                stored = self.capacity_upermits
                self.at_ns = now_ns
            else:
                self.at_ns = now_ns - leftover // rate
            self.stored_upermits = stored
        return stored

    def admits(self, now_ns: int, before: int, permits: int) -> bool:
        """Bring the balance up to ``now_ns``; say whether requests that cost ``permits`` would surely be admitted.

        Args:
            now_ns: the time.
            before: what all of them but the last cost.
            permits: what all of them cost.
        """
        if self.open_next_free_ns is not None:
            return False
        stored = self.refill(now_ns)
        left = stored - permits * UPERMITS_PER_PERMIT
        return left > 0 or (stored > before * UPERMITS_PER_PERMIT and left >= -self.max_debt_upermits)

    def spend(self, permits: int) -> None:
        """Take ``permits`` off the balance, which may become a debt. The caller has refilled."""
        self.stored_upermits -= permits * UPERMITS_PER_PERMIT


PythonCell = Cell
"""What is written here; where the compiled part is installed ``Cell`` is its."""
if not TYPE_CHECKING and COMPILED is not None:
    Cell = COMPILED.Cell
