"""Monotonic time for the data path, and wall-clock time for operators."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

#: Tolerance, because the two clocks are not read at the same moment.
_JITTER: Final = timedelta(milliseconds=100)


def utc_now() -> datetime:
    return datetime.now(UTC)


def write_time(moment: datetime) -> str:
    """Format a time as ``2026-01-02T03:04:05.678Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock:
    __slots__ = ("_began", "now_ns", "utc")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns, utc: Callable[[], datetime] = utc_now) -> None:
        self.now_ns, self.utc = now_ns, utc
        #: Wall-clock time when the monotonic clock was 0.
        self._began = datetime.max.replace(tzinfo=UTC)

    def iso_now(self) -> str:
        return write_time(self.utc())

    def iso_of(self, at_ns: int) -> str:
        """Format a monotonic time as wall-clock time. The result is stable until the wall clock is set."""
        began = self.utc() - timedelta(microseconds=self.now_ns() / 1000)
        if abs(began - self._began) > _JITTER:
            self._began = began
        return write_time(self._began + timedelta(microseconds=at_ns / 1000))
