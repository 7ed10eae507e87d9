"""How much the copies of what waits may take: of one direction of a connection, and of all connections of a broker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: With so much more than twice of what may be taken a direction is not read, though what waits may then never go on.
_SLACK_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class Hub:
    """What all sessions of one broker share.

    Attributes:
        waiting_bytes: what copies take, of all connections.
        wakers: call those who wait until others take less.
    """

    waiting_bytes: int = 0
    wakers: dict[Callable[[], None], None] = field(default_factory=dict)


class Memory:
    """What the copies of one direction take.

    Args:
        hub: of all connections.
        most_bytes: of this direction.
        most_bytes_in_all: of all connections.
        wake: has its session looked at anew.

    Attributes:
        taken_bytes: by this direction.
    """

    __slots__ = ("_hub", "_most_bytes", "_most_bytes_in_all", "_wake", "taken_bytes")

    def __init__(self, hub: Hub, most_bytes: int, most_bytes_in_all: int, wake: Callable[[], None]) -> None:
        self.taken_bytes = 0
        self._hub = hub
        self._most_bytes = most_bytes
        self._most_bytes_in_all = most_bytes_in_all
        self._wake = wake

    def take(self, count: int) -> None:
        """Note that copies take so many bytes more."""
        self.taken_bytes += count
        self._hub.waiting_bytes += count

    def give_back(self, count: int) -> None:
        """Note that they take so many bytes less."""
        self.take(-count)
        hub = self._hub
        if hub.wakers and hub.waiting_bytes <= self._most_bytes_in_all:
            wakers, hub.wakers = hub.wakers, {}
            for wake in wakers:
                wake()

    def is_full(self) -> bool:
        """Say whether more should not be read. One that takes nothing is never full, and so waits for nobody else."""
        taken, hub = self.taken_bytes, self._hub
        if taken > self._most_bytes:
            return True
        if taken and hub.waiting_bytes > self._most_bytes_in_all:
            hub.wakers[self._wake] = None
            return True
        return False

    def is_overfull(self) -> bool:
        """Say whether more must not be read, whatever comes of it."""
        taken = self.taken_bytes - _SLACK_BYTES
        return taken > 2 * self._most_bytes or (taken > 0 and self._hub.waiting_bytes > 2 * self._most_bytes_in_all)

    def forget(self) -> None:
        """Be done: nobody is to be woken any more."""
        self._hub.wakers.pop(self._wake, None)
