"""The periods during which a state is active."""

from math import exp
from typing import Final

_SHARE_TIME_CONSTANT_NS: Final = 30_000_000_000
"""With this time constant, all time before the last minute has an eighth of the total weight."""


class Periods:
    """Tracks the periods during which a state is active: how many, how long, and what share of the time.

    Times are monotonic.
    """

    __slots__ = ("_before_ns", "_share", "_share_ns", "ended_ns", "since_ns", "total")

    def __init__(self) -> None:
        self.total = 0  # includes the current period
        self.since_ns: int | None = None  # start of the current period
        self.ended_ns = 0  # end of the last completed period
        self._before_ns = 0  # total length of completed periods
        self._share = 0.0
        self._share_ns = 0

    def begin(self, now_ns: int) -> None:
        if self.since_ns is None:
            self._share, self._share_ns = self.share(now_ns), now_ns
            self.since_ns = now_ns
            self.total += 1

    def end(self, now_ns: int) -> None:
        if self.since_ns is not None:
            self._share, self._share_ns = self.share(now_ns), now_ns
            self._before_ns += now_ns - self.since_ns
            self.ended_ns = now_ns
            self.since_ns = None

    def total_ns(self, now_ns: int) -> int:
        return self._before_ns + (0 if self.since_ns is None else now_ns - self.since_ns)

    def share(self, now_ns: int) -> float:
        """Return the fraction of about the last minute when the state was active. Recent time weighs more."""
        left = exp((self._share_ns - now_ns) / _SHARE_TIME_CONSTANT_NS)
        return self._share * left + (0.0 if self.since_ns is None else 1.0 - left)

    def is_recent(self, now_ns: int, within_ns: int) -> bool:
        return self.since_ns is not None or (self.total > 0 and now_ns - self.ended_ns < within_ns)
