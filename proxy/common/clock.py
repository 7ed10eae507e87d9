"""The two clocks: the data path measures monotonic time, people read the time of day."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

#: The two clocks are read one after the other, so their difference is never the same twice.
_JITTER: Final = timedelta(milliseconds=100)


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


def write_time(moment: datetime) -> str:
    """Write a moment in UTC with milliseconds, ``2026-01-02T03:04:05.678Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock:
    """Tells both times; ``now_ns`` is of the monotonic clock that the data path reads."""

    __slots__ = ("_began", "now_ns", "utc")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns, utc: Callable[[], datetime] = utc_now) -> None:
        self.now_ns, self.utc = now_ns, utc
        #: The time of day when the monotonic clock was 0.
        self._began = datetime.max.replace(tzinfo=UTC)

    def iso_now(self) -> str:
        """Write the time of day."""
        return write_time(self.utc())

    def iso_of(self, at_ns: int) -> str:
        """Write the time of day of a monotonic time: the same text each time, until the time of day is set."""
        began = self.utc() - timedelta(microseconds=self.now_ns() / 1000)
        if abs(began - self._began) > _JITTER:
            self._began = began
        return write_time(self._began + timedelta(microseconds=at_ns / 1000))
