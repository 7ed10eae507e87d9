"""How often a state occurred, and for how long."""

from math import exp
from typing import Final

_FADES_NS: Final = 30_000_000_000
"""Time constant of ``share``: what is older than a minute counts for an eighth."""


class Spells:
    """The spells of one state, in nanoseconds of one monotonic clock."""

    __slots__ = ("_before_ns", "_share", "_share_ns", "ended_ns", "since_ns", "total")

    def __init__(self) -> None:
        self.total = 0  # with the current one
        self.since_ns: int | None = None  # when the current one began; None if there is none
        self.ended_ns = 0  # when the last one before it ended; 0 if there was none
        # Total length of those that have ended.
        self._before_ns = 0
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

    def together_ns(self, now_ns: int) -> int:
        """Return the total length, with the current spell."""
        return self._before_ns + (0 if self.since_ns is None else now_ns - self.since_ns)

    def share(self, now_ns: int) -> float:
        """Return the share of about the last minute; recent time weighs more."""
        left = exp((self._share_ns - now_ns) / _FADES_NS)
        return self._share * left + (0.0 if self.since_ns is None else 1.0 - left)

    def lately(self, now_ns: int, within_ns: int) -> bool:
        """Say whether a spell is under way, or ended less than ``within_ns`` ago."""
        return self.since_ns is not None or (self.total > 0 and now_ns - self.ended_ns < within_ns)
