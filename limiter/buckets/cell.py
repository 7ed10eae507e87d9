"""A limiter's state, and the operations needed for each admitted request.

If ``sluice_native`` is installed, its ``Cell`` replaces the one defined here, so that Python and Rust share one object.
The native ``Cell`` uses 64-bit integers, which are wide enough for any rule and saturate instead of overflowing.
"""

from typing import TYPE_CHECKING

from limiter.compiled import COMPILED
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule


class Cell:
    __slots__ = (
        *("asked_ns", "at_ns", "capacity_upermits", "epoch", "forgiven_upermits", "last_refused_ns"),
        *("last_wait_us", "max_debt_upermits", "open_next_free_ns", "pinned", "rate_upermits_per_s"),
        *("resource", "retired", "rule", "stored_upermits"),
    )

    resource: Resource
    rule: Rule

    def __init__(self) -> None:
        self.rate_upermits_per_s = self.capacity_upermits = self.stored_upermits = 0
        self.forgiven_upermits = 0  # see "Edits" in ``bucket``
        self.max_debt_upermits = self.at_ns = self.asked_ns = 0
        # When the bucket will admit requests again, as computed when the breaker opened. None if the breaker is closed.
        self.open_next_free_ns: int | None = None
        self.last_refused_ns: int | None = None
        self.last_wait_us = 0
        self.epoch = 0  # number of the last rule change that was applied
        self.pinned = False  # the resource has a rule of its own
        self.retired = False  # replaced by another limiter

    def refill(self, now_ns: int) -> int:
        """Bring the balance up to date and return it, in micro-permits.

        Time too short to accrue a micro-permit is carried over, so each call loses less than a nanosecond.
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
        """Refill the bucket, and return True if a whole batch is certain to be admitted. Otherwise, call ``check``.

        ``permits`` is the cost of the batch, and ``before`` is its cost without the last request.
        """
        if self.open_next_free_ns is not None:
            return False
        stored = self.refill(now_ns)
        left = stored - permits * UPERMITS_PER_PERMIT
        return left > 0 or (stored > before * UPERMITS_PER_PERMIT and left >= -self.max_debt_upermits)

    def spend(self, permits: int) -> None:
        """Deduct permits. Call ``refill`` first."""
        self.stored_upermits -= permits * UPERMITS_PER_PERMIT


PythonCell = Cell
if not TYPE_CHECKING and COMPILED is not None:
    Cell = COMPILED.Cell
