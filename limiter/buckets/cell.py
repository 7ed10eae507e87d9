"""The state of a limiter, and the steps taken for each request that passes.

Python and the compiled part share this layout: where ``sluice_native`` is installed, its ``Cell`` is used, and so both
decide by the same object. That one keeps 64 bits of each figure, which is enough for any rule, and saturates beyond.
"""

from typing import TYPE_CHECKING

from limiter.compiled import COMPILED
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule


class Cell:
    """The state of a limiter, or of one caller's share of it."""

    __slots__ = (
        *("asked_ns", "at_ns", "capacity_upermits", "epoch", "forgiven_upermits", "last_refused_ns"),
        *("last_wait_us", "max_debt_upermits", "open_next_free_ns", "pinned", "rate_upermits_per_s"),
        *("resource", "retired", "rule", "stored_upermits"),
    )

    resource: Resource
    rule: Rule

    def __init__(self) -> None:
        self.rate_upermits_per_s = self.capacity_upermits = self.stored_upermits = 0
        self.forgiven_upermits = 0  # how much more would be missing had the capacity never been lowered
        self.max_debt_upermits = self.at_ns = self.asked_ns = 0
        # The breaker: when the bucket would have admitted again as it opened; None is closed.
        self.open_next_free_ns: int | None = None
        self.last_refused_ns: int | None = None
        self.last_wait_us = 0
        self.epoch = 0  # the registry's swap of rules up to which the limiter is up to date
        self.pinned = False  # its resource has a rule of its own
        self.retired = False  # another limiter has replaced it

    def refill(self, now_ns: int) -> int:
        """Bring the balance up to ``now_ns`` and return it, in micro-permits.

        Time that did not make a whole micro-permit is kept, so frequent calls lose less than a nanosecond each. A clock
        that runs backwards refills nothing.
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
        """Refill; say whether requests that cost ``permits`` would surely be admitted.

        ``before`` is the cost of all but the last of them.
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
"""The class above; ``Cell`` is the compiled one where it is installed."""
if not TYPE_CHECKING and COMPILED is not None:
    Cell = COMPILED.Cell
