"""Long polls: pulls that found nothing and wait for the next message of their queue."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from proxy.loopback.groups import QueueKey
from proxy.loopback.timers import Timer

Owner = TypeVar("Owner", bound=Hashable)


class HeldPull(Generic[Owner]):
    """One pull that waits.

    Attributes:
        owner: the connection that asked.
        key: the queue it asked about.
        retry: reads again at ``now_ns``, and answers and discards the pull if there is something.
        timer: ends the wait.
    """

    __slots__ = ("key", "owner", "retry", "timer")

    def __init__(self, owner: Owner, key: QueueKey, retry: Callable[[int], None], timer: Timer) -> None:
        self.owner = owner
        self.key = key
        self.retry = retry
        self.timer = timer


class LongPolls(Generic[Owner]):
    """All held pulls, by queue and by owner; dictionaries serve as ordered sets."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, dict[HeldPull[Owner], None]] = {}
        self._by_owner: dict[Owner, dict[HeldPull[Owner], None]] = {}

    def __len__(self) -> int:
        """Return how many pulls wait."""
        return sum(map(len, self._by_owner.values()))

    def held_by(self, owner: Owner) -> int:
        """Return how many pulls of one connection wait."""
        return len(self._by_owner.get(owner, ()))

    def add(self, pull: HeldPull[Owner]) -> None:
        """Hold a pull."""
        self._by_queue.setdefault(pull.key, {})[pull] = None
        self._by_owner.setdefault(pull.owner, {})[pull] = None

    def discard(self, pull: HeldPull[Owner]) -> None:
        """Hold a pull no longer."""
        _discard(self._by_queue, pull.key, pull)
        _discard(self._by_owner, pull.owner, pull)

    def waiting_for(self, key: QueueKey) -> list[HeldPull[Owner]]:
        """Return the pulls that wait for one queue, longest first."""
        return list(self._by_queue.get(key, ()))

    def drop_owner(self, owner: Owner) -> Iterable[HeldPull[Owner]]:
        """Forget the pulls of a connection that is gone; returns them."""
        pulls = list(self._by_owner.get(owner, ()))
        for pull in pulls:
            self.discard(pull)
        return pulls


_Key = TypeVar("_Key", bound=Hashable)


def _discard(table: dict[_Key, dict[HeldPull[Owner], None]], key: _Key, pull: HeldPull[Owner]) -> None:
    pulls = table.get(key)
    if pulls is not None:
        pulls.pop(pull, None)
        if not pulls:
            del table[key]
