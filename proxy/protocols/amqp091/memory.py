"""How much the copies of what waits may take: of one direction of a connection, and of all connections of a broker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.protocols.amqp091.after_consume import AfterConsume
from proxy.stats.snapshot import ConfirmState

#: With so much more than twice of what may be taken a direction is not read, though what waits may then never go on.
_SLACK_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class Hub:
    """What all sessions of one broker share.

    Attributes:
        waiting_bytes: what copies take, of all connections.
        takers: how many directions of connections take some.
        wakers: call those who wait until others take less.
        failures: how often connections were closed over a queue that is replayed, by its number.
        after_consume: the messages that wait for their consumers.
    """

    waiting_bytes: int = 0
    takers: int = 0
    wakers: dict[Callable[[], None], None] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    after_consume: AfterConsume = field(default_factory=AfterConsume)

    @property
    def held_bytes(self) -> int:
        """What all takes that is held in memory."""
        return self.waiting_bytes + self.after_consume.waiting_bytes


def confirm_states(hub: Hub, now_ns: int) -> Sequence[ConfirmState]:
    """Return how publishes are confirmed for which a rule was asked."""
    return hub.after_consume.states(now_ns)


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
        before, self.taken_bytes = self.taken_bytes, self.taken_bytes + count
        self._hub.waiting_bytes += count
        self._hub.takers += (self.taken_bytes > 0) - (before > 0)

    def give_back(self, count: int) -> None:
        """Note that they take so many bytes less."""
        self.take(-count)
        hub = self._hub
        if hub.wakers and hub.waiting_bytes <= self._most_bytes_in_all:
            wakers, hub.wakers = hub.wakers, {}
            for wake in wakers:
                wake()

    def is_full(self, *, alone: bool = True) -> bool:
        """Say whether more should not be read; unless ``alone``, only what all take counts.

        Once all take as much as they may, those do not read on who take more than an equal part of it. So who takes
        little waits for nobody else, and all take twice as much at most.
        """
        taken, hub = self.taken_bytes, self._hub
        if alone and taken > self._most_bytes:
            return True
        if hub.waiting_bytes > self._most_bytes_in_all < taken * hub.takers:
            hub.wakers[self._wake] = None
            return True
        return False

    def is_overfull(self) -> bool:
        """Say whether more must not be read, whatever comes of it."""
        taken = self.taken_bytes - _SLACK_BYTES
        hub, most_in_all = self._hub, 2 * self._most_bytes_in_all
        return taken > 2 * self._most_bytes or hub.waiting_bytes > most_in_all < taken * hub.takers

    def forget(self) -> None:
        """Be done: nobody is to be woken any more."""
        self._hub.wakers.pop(self._wake, None)
