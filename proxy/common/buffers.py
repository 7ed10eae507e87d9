"""Read buffers, and the memory budget for incomplete frames."""

import mmap
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from proxy.common.admission import client_of

#: The size of the pool's buffers, and of those that it lends while its budget is exhausted.
CHUNK_BYTES: Final = 256 * 1024
SMALL_CHUNK_BYTES: Final = 16 * 1024
_KEPT: Final = 16
_OWN_PAGES: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class BufferPool:
    """A pool of read buffers. Idle connections hold no buffer.

    When the budget is exhausted, the pool lends small buffers, so that clients of a stalled broker cannot stop others.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free: list[memoryview] = []
        self.unlent = max(1, budget_bytes // CHUNK_BYTES)

    def borrow(self) -> memoryview:
        if not self.unlent:
            return memoryview(bytearray(SMALL_CHUNK_BYTES))
        self.unlent -= 1
        # Unlike heap memory, mapped pages return to the system when freed.
        return self._free.pop() if self._free else memoryview(mmap.mmap(-1, CHUNK_BYTES, flags=_OWN_PAGES))

    def give_back(self, buffer: memoryview) -> None:
        if len(buffer) == CHUNK_BYTES:
            self.unlent += 1
            if len(self._free) < _KEPT:
                self._free.append(buffer)


GATHERED_BYTES: Final = 64 * 1024 * 1024
#: Frames up to this size are not counted.
SMALL_FRAME_BYTES: Final = 64 * 1024
#: Frames may be evicted at this age, which is longer than clients wait for a response (3 s by default).
KEPT_NS: Final = 5_000_000_000


class Gathering:
    """The memory used by an incomplete frame. ``lose`` is called on eviction. Without it, there is no eviction."""

    __slots__ = ("client", "has_bytes", "lose", "lost", "since_ns")

    def __init__(self, address: str, lose: Callable[[], None] | None = None) -> None:
        self.client = client_of(address)
        self.lose = lose
        self.has_bytes = self.since_ns = 0
        self.lost = False


class GatherRoom:
    """The memory budget for incomplete frames, shared fairly among clients.

    A frame is charged for the bytes that have arrived, not for its declared length. When the budget is exhausted, a
    frame may be evicted if it is older than KEPT_NS, or if its client uses more than the requesting client. The client
    that uses the most loses its oldest frame first.
    """

    def __init__(self, budget_bytes: int = GATHERED_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self.taken_bytes = 0
        self._by_client = Counter[str]()
        self._gatherings: dict[Gathering, None] = {}  # oldest first

    def fits(self, gathering: Gathering, size_bytes: int, now_ns: int) -> bool:
        return size_bytes <= SMALL_FRAME_BYTES or self._losers(gathering, size_bytes, now_ns) is not None

    def grow(self, gathering: Gathering, size_bytes: int, now_ns: int) -> bool:
        """Grow a frame, evicting others if necessary. Return False and change nothing if there is no room."""
        if gathering.lost or size_bytes <= max(gathering.has_bytes, SMALL_FRAME_BYTES):
            return not gathering.lost
        losers = self._losers(gathering, size_bytes, now_ns)
        if losers is None:
            return False
        for loser in losers:
            self.give_back(loser)
            loser.lost = True
            if loser.lose is not None:
                loser.lose()
        if not gathering.has_bytes:
            gathering.since_ns = now_ns
            self._gatherings[gathering] = None
        self._take(gathering, size_bytes - gathering.has_bytes)
        return True

    def give_back(self, gathering: Gathering) -> None:
        if gathering.has_bytes:
            self._take(gathering, -gathering.has_bytes)
            del self._gatherings[gathering]

    def _take(self, gathering: Gathering, more_bytes: int) -> None:
        gathering.has_bytes += more_bytes
        self.taken_bytes += more_bytes
        self._by_client[gathering.client] += more_bytes
        if not self._by_client[gathering.client]:
            del self._by_client[gathering.client]

    def _losers(self, gathering: Gathering, size_bytes: int, now_ns: int) -> list[Gathering] | None:
        more_bytes = size_bytes - gathering.has_bytes
        missing_bytes = self.taken_bytes + more_bytes - self._budget_bytes
        client_bytes = self._by_client[gathering.client] + more_bytes
        # Recent frames of clients that use less than this are not evicted, so that ordinary batches can complete.
        min_bytes = self._budget_bytes // 16
        left = Counter(self._by_client)
        may_lose: list[tuple[int, Gathering]] = []
        for other in self._gatherings if missing_bytes > 0 else ():
            has_bytes = left[other.client]
            can = has_bytes > max(client_bytes, min_bytes) or now_ns - other.since_ns >= KEPT_NS
            if can and other is not gathering and other.lose is not None:
                may_lose.append((has_bytes, other))
                left[other.client] -= other.has_bytes
        losers: list[Gathering] = []
        for _, other in sorted(may_lose, key=itemgetter(0), reverse=True):
            if missing_bytes > 0:
                losers.append(other)
                missing_bytes -= other.has_bytes
        return None if missing_bytes > 0 else losers
