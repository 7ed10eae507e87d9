"""Limits the memory for waiting data, per direction of a connection and in total per broker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: Above twice the bound plus this slack, reading stops, even if incomplete data then waits forever.
_SLACK_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class SharedMemory:
    waiting_bytes: int = 0
    holders: int = 0
    wakers: dict[Callable[[], None], None] = field(default_factory=dict)


class Memory:
    """Counts the memory that one direction of a connection uses. Calls ``wake`` when there is room again."""

    __slots__ = ("_hub", "_max_bytes", "_max_total_bytes", "_wake", "taken_bytes")

    def __init__(self, hub: SharedMemory, max_bytes: int, max_total_bytes: int, wake: Callable[[], None]) -> None:
        self.taken_bytes = 0
        self._hub = hub
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._wake = wake

    def take(self, count: int) -> None:
        before, self.taken_bytes = self.taken_bytes, self.taken_bytes + count
        self._hub.waiting_bytes += count
        self._hub.holders += (self.taken_bytes > 0) - (before > 0)

    def give_back(self, count: int) -> None:
        self.take(-count)
        hub = self._hub
        if hub.wakers and hub.waiting_bytes <= self._max_total_bytes:
            wakers, hub.wakers = hub.wakers, {}
            for wake in wakers:
                wake()

    def is_full(self, *, alone: bool = True) -> bool:
        """Return whether to stop reading. If ``alone`` is False, check only the total for all connections.

        When the total exceeds its bound, reading stops for directions that use more than an equal share.
        """
        taken, hub = self.taken_bytes, self._hub
        if alone and taken > self._max_bytes:
            return True
        if hub.waiting_bytes > self._max_total_bytes < taken * hub.holders:
            hub.wakers[self._wake] = None
            return True
        return False

    def is_overfull(self) -> bool:
        taken = self.taken_bytes - _SLACK_BYTES
        hub, max_in_all = self._hub, 2 * self._max_total_bytes
        return taken > 2 * self._max_bytes or hub.waiting_bytes > max_in_all < taken * hub.holders

    def forget(self) -> None:
        self._hub.wakers.pop(self._wake, None)
