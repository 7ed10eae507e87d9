"""The two clocks: times of the data path are monotonic, those that people read are not."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

LATEST_S: Final = 253_402_214_400
"""The last day of the year 9999, as far as dates go, in seconds since 1970."""


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


def write_time(moment: datetime) -> str:
    """Write a moment in UTC with milliseconds, ``2026-01-02T03:04:05.678Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock:
    """Tells both times; ``now_ns`` is of the monotonic clock that the data path reads."""

    __slots__ = ("now_ns", "utc")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns, utc: Callable[[], datetime] = utc_now) -> None:
        self.now_ns, self.utc = now_ns, utc

    def iso_now(self) -> str:
        """Write the time of day."""
        return write_time(self.utc())

    def iso_of(self, at_ns: int) -> str:
        """Write the time of day of a monotonic time."""
        return write_time(self.utc() - timedelta(microseconds=(self.now_ns() - at_ns) / 1000))
