"""Read buffers, lent for the time between a read and the write of what was read; and the room for what is gathered."""

import mmap
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from proxy.common.admission import client_of

#: The size of a read, and while the budget is spent.
CHUNK_BYTES: Final = 256 * 1024
SMALL_CHUNK_BYTES: Final = 16 * 1024
#: Buffers that are kept for later; the others go back to the system.
_KEPT: Final = 16
_OWN_PAGES: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class BufferPool:
    """A budget of read buffers. An idle connection holds none.

    When the budget is spent, connections read on with small buffers of their own. So clients whose broker has stalled
    do not bring the others to a halt.

    Args:
        budget_bytes: what all but small buffers may take together; there is always one.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free: list[memoryview] = []
        self.unlent = max(1, budget_bytes // CHUNK_BYTES)

    def borrow(self) -> memoryview:
        """Take one buffer, to be given back."""
        if not self.unlent:
            return memoryview(bytearray(SMALL_CHUNK_BYTES))
        self.unlent -= 1
        # Pages of its own, which a heap would keep.
        return self._free.pop() if self._free else memoryview(mmap.mmap(-1, CHUNK_BYTES, flags=_OWN_PAGES))

    def give_back(self, buffer: memoryview) -> None:
        if len(buffer) == CHUNK_BYTES:
            self.unlent += 1
            if len(self._free) < _KEPT:
                self._free.append(buffer)


#: What all connections together may gather of frames that have to be whole before they are decided.
GATHERED_BYTES: Final = 64 * 1024 * 1024
#: A frame up to this size needs no room: each connection may have one in hand.
SMALL_FRAME_BYTES: Final = 64 * 1024
#: Longer than clients wait for an answer, which is 3 s by default.
KEPT_NS: Final = 5_000_000_000


class Gathering:
    """The room of one frame.

    Args:
        lose: called when another frame takes its room, so it must drop what it has gathered. None: it never loses it.
    """

    __slots__ = ("client", "has_bytes", "lose", "lost", "since_ns")

    def __init__(self, address: str, lose: Callable[[], None] | None = None) -> None:
        self.client = client_of(address)
        self.lose = lose
        self.has_bytes = self.since_ns = 0
        self.lost = False  # it gets no room any more


class GatherRoom:
    """How much may be gathered: a budget that clients share.

    A frame takes room for the bytes that have arrived, not for the length it declares. If there is none left, others
    lose theirs: first the oldest frame of the client with the most. Only clients that have more than the one that
    needs room can lose it, and frames older than KEPT_NS, so slow senders keep nobody out.

    Args:
        budget_bytes: for all connections together, small frames not counted.
    """

    def __init__(self, budget_bytes: int = GATHERED_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self.taken_bytes = 0
        self._by_client = Counter[str]()
        #: Those that have room, the oldest first.
        self._gatherings: dict[Gathering, None] = {}

    def fits(self, gathering: Gathering, size_bytes: int, now_ns: int) -> bool:
        """Say whether there would be room for a frame to grow to that size, with what others may lose."""
        return size_bytes <= SMALL_FRAME_BYTES or self._losers(gathering, size_bytes, now_ns) is not None

    def grow(self, gathering: Gathering, size_bytes: int, now_ns: int) -> bool:
        """Take room for so much of a frame, if there is some; if not, it keeps what it has."""
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
        """Return those that would have to lose their room for one to have so much; None if that would not do."""
        more_bytes = size_bytes - gathering.has_bytes
        missing_bytes = self.taken_bytes + more_bytes - self._budget_bytes
        client_bytes = self._by_client[gathering.client] + more_bytes
        #: Who has no more keeps it for a while, so that usual batches are complete before they lose their room.
        least_bytes = self._budget_bytes // 16
        #: What each client has, without those of its frames that would have lost.
        left = Counter(self._by_client)
        may_lose: list[tuple[int, Gathering]] = []
        for other in self._gatherings if missing_bytes > 0 else ():
            has_bytes = left[other.client]
            can = has_bytes > max(client_bytes, least_bytes) or now_ns - other.since_ns >= KEPT_NS
            if can and other is not gathering and other.lose is not None:
                may_lose.append((has_bytes, other))
                left[other.client] -= other.has_bytes
        losers: list[Gathering] = []
        for _, other in sorted(may_lose, key=itemgetter(0), reverse=True):
            if missing_bytes > 0:
                losers.append(other)
                missing_bytes -= other.has_bytes
        return None if missing_bytes > 0 else losers
