"""Alarms that block publishers while memory or disk space is low.

An alarm is raised when usage crosses a watermark. It is cleared with some hysteresis, or when the usage is unknown.

CPython returns little memory to the system: after 200 000 held messages, 101 of 103 MiB stayed resident. Memory in use
is therefore the resident set minus *spare* memory. When the number of held bytes falls, the difference counts as spare
until messages use it again or the resident set shrinks.

While an alarm is raised, Sluice does not read from publishing connections. It sends them ``reason`` if their protocol
supports that.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from proxy.flow.periods import Periods

Scarce = Literal["memory", "disk"]

WATERMARK: Final = 0.6
"""Fraction of the memory limit. Equals RabbitMQ 4's default for ``vm_memory_high_watermark.relative``."""
MIN_FREE_BYTES: Final = 1024**3
_MEMORY_ENDS_AT: Final = 0.95
"""The memory alarm is cleared at this fraction of the watermark."""
_DISK_ENDS_AT: Final = 1.1
"""The disk alarm is cleared at this multiple of the minimum free space."""
_NS_PER_S: Final = 1_000_000_000


class AlarmChange(NamedTuple):
    scarce: Scarce
    stands: bool
    text: str


class Alarm(ABC):
    scarce: Scarce

    def __init__(self) -> None:
        self.periods = Periods()

    @property
    def stands(self) -> bool:
        return self.periods.since_ns is not None

    @property
    @abstractmethod
    def banner(self) -> str:
        """Describes the alarm to operators. Empty unless the alarm is raised."""

    def _raise(self, now_ns: int) -> AlarmChange | None:
        if self.stands:
            return None
        self.periods.begin(now_ns)
        return AlarmChange(self.scarce, True, f"{self.scarce} alarm: {self.banner}")

    def _end(self, now_ns: int, why: str) -> AlarmChange | None:
        since_ns = self.periods.since_ns
        if since_ns is None:
            return None
        self.periods.end(now_ns)
        took_s = (now_ns - since_ns) / _NS_PER_S
        return AlarmChange(self.scarce, False, f"{self.scarce} alarm cleared after {took_s:.1f} s: {why}")


class MemoryAlarm(Alarm):
    """An alarm for high memory usage. Raises ValueError unless ``watermark`` is above 0 and at most 1."""

    scarce = "memory"

    def __init__(self, watermark: float = WATERMARK) -> None:
        super().__init__()
        self._watermark = watermark
        self._ends_at = watermark * _MEMORY_ENDS_AT
        if not 0 < watermark <= 1:
            raise ValueError(f"invalid memory watermark {watermark}: must be above 0 and at most 1")
        self.used_bytes: int | None = None
        self.limit_bytes: int | None = None
        self.spare_bytes = 0  # resident but unused
        self._resident_bytes = self._held_bytes = 0

    def update(
        self, now_ns: int, resident_bytes: int | None, held_bytes: int, limit_bytes: int | None
    ) -> AlarmChange | None:
        """Check memory usage. ``held_bytes`` should include overhead. Too low a value clears the alarm late."""
        used_bytes = None if resident_bytes is None else self._without_spare(resident_bytes, held_bytes)
        self.used_bytes, self.limit_bytes = used_bytes, limit_bytes
        if used_bytes is None or limit_bytes is None:
            return self._end(now_ns, "the memory usage or the memory limit cannot be read")
        if used_bytes > limit_bytes * self._watermark:
            return self._raise(now_ns)
        if used_bytes <= limit_bytes * self._ends_at:
            return self._end(now_ns, f"Sluice uses {size_text(used_bytes)} of {size_text(limit_bytes)}")
        return None

    @property
    def watermark_bytes(self) -> int | None:
        return None if self.limit_bytes is None else int(self.limit_bytes * self._watermark)

    def _without_spare(self, resident_bytes: int, held_bytes: int) -> int:
        spare_bytes = max(0, self.spare_bytes + self._held_bytes - held_bytes)
        given_back_bytes = max(0, self._resident_bytes - resident_bytes)
        self.spare_bytes = min(max(0, spare_bytes - given_back_bytes), resident_bytes)
        self._resident_bytes, self._held_bytes = resident_bytes, held_bytes
        return resident_bytes - self.spare_bytes

    @property
    def banner(self) -> str:
        if not self.stands or self.used_bytes is None or self.limit_bytes is None:
            return ""
        return (
            f"Sluice uses {size_text(self.used_bytes)} of {size_text(self.limit_bytes)} (watermark: "
            f"{self._watermark:.0%}); publishers are blocked until usage falls to "
            f"{size_text(self.limit_bytes * self._ends_at)}"
        )


class DiskAlarm(Alarm):
    """An alarm for low free space on the spool's disk. Raises ValueError if ``min_bytes`` is negative."""

    scarce = "disk"

    def __init__(self, min_bytes: int = MIN_FREE_BYTES) -> None:
        super().__init__()
        self.min_bytes = min_bytes
        self._enough_bytes = round(min_bytes * _DISK_ENDS_AT)
        if min_bytes < 0:
            raise ValueError(f"invalid free-space threshold of {min_bytes} bytes: must be 0 or more")
        self.free_bytes: int | None = None

    def update(self, now_ns: int, free_bytes: int | None, *, is_used: bool = True) -> AlarmChange | None:
        """Check the free space. Set ``is_used`` to False while the spool is empty."""
        self.free_bytes = free_bytes
        if not is_used:
            return self._end(now_ns, "the spool is empty")
        if free_bytes is None:
            return self._end(now_ns, "free space on the spool's disk cannot be read")
        if free_bytes < self.min_bytes:
            return self._raise(now_ns)
        if free_bytes >= self._enough_bytes:
            return self._end(now_ns, f"{size_text(free_bytes)} is free on the spool's disk")
        return None

    @property
    def banner(self) -> str:
        if not self.stands or self.free_bytes is None:
            return ""
        return (
            f"{size_text(self.free_bytes)} is free on the spool's disk (minimum: {size_text(self.min_bytes)}); "
            f"publishers are blocked until {size_text(self._enough_bytes)} is free"
        )


def reason(alarms: Iterable[Alarm]) -> str:
    """Return the reason to send to clients, in fewer than 255 bytes. Applications may match RabbitMQ's wording."""
    scarce = " & ".join(alarm.scarce for alarm in alarms if alarm.stands)
    return f"Sluice is low on {scarce}" if scarce else ""


def size_text(size_bytes: float) -> str:
    """Format a size, for example as ``512 bytes`` or ``1.50 GiB``."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} bytes"
    power = min(4, (int(size_bytes).bit_length() - 1) // 10)
    size = size_bytes / 1024**power
    return f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {'KMGT'[power - 1]}iB"
