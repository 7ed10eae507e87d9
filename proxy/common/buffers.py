"""Read buffers, lent for the time between a read and the write of what was read; and the room for what is gathered."""

import mmap
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
        self.small_total = 0

    def borrow(self) -> memoryview:
        """Take one buffer, to be given back."""
        if not self.unlent:
            self.small_total += 1
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
#: Of a frame so much needs no room: each connection may have one in hand.
SMALL_FRAME_BYTES: Final = 64 * 1024
#: Room is taken in steps of this.
_ROOM_STEP_BYTES: Final = 64 * 1024
#: One client may have this part of the room, or a single frame.
_PART_OF_ONE: Final = 4
#: Who has no more than this part of the room takes it at once from those who have more.
_SMALL_PART: Final = 16
#: Nobody else loses room before: longer than clients wait for the answer, which is 3 s unless they say otherwise.
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
    """How much may be gathered: a budget, of which no single client takes all.

    A frame takes room for the bytes that have arrived, not for the length it declares. After KEPT_NS it may lose its
    room to another that finds none, so slow senders keep nobody out. The client with the most room loses first, its
    oldest frame. A client that has little takes room at once from one that has more.

    Args:
        budget_bytes: for all connections together, small frames not counted.
    """

    def __init__(self, budget_bytes: int = GATHERED_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self.taken_bytes = 0
        self._by_client: dict[str, int] = {}
        #: Those that have room, the oldest first.
        self._gatherings: dict[Gathering, None] = {}

    def fits(self, gathering: Gathering, size_bytes: int, now_ns: int) -> bool:
        """Say whether there would be room for a frame to grow to that size, with what others may lose."""
        room_bytes = _room_for(size_bytes)
        return not room_bytes or self._losers(gathering, room_bytes, now_ns) is not None

    def grow(self, gathering: Gathering, size_bytes: int, now_ns: int) -> bool:
        """Take room for so much of a frame, if there is some; if not, it keeps what it has."""
        room_bytes = _room_for(size_bytes)
        if gathering.lost or room_bytes <= gathering.has_bytes:
            return not gathering.lost
        losers = self._losers(gathering, room_bytes, now_ns)
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
        self._take(gathering, room_bytes - gathering.has_bytes)
        return True

    def give_back(self, gathering: Gathering) -> None:
        if gathering.has_bytes:
            self._take(gathering, -gathering.has_bytes)
            del self._gatherings[gathering]

    def _take(self, gathering: Gathering, more_bytes: int) -> None:
        gathering.has_bytes += more_bytes
        self.taken_bytes += more_bytes
        client_bytes = self._by_client.pop(gathering.client, 0) + more_bytes
        if client_bytes:
            self._by_client[gathering.client] = client_bytes

    def _losers(self, gathering: Gathering, room_bytes: int, now_ns: int) -> list[Gathering] | None:
        """Return those that would have to lose their room for one to have so much; None if that would not do."""
        left_bytes = self._budget_bytes - room_bytes - (self.taken_bytes - gathering.has_bytes)
        #: Of the same client's others.
        own_bytes = self._by_client.get(gathering.client, 0) - gathering.has_bytes
        most_own_bytes = self._budget_bytes // _PART_OF_ONE - room_bytes
        losers: list[Gathering] = []
        if left_bytes >= 0 and not 0 < own_bytes > most_own_bytes:
            return losers
        for other in self._who_may_lose(gathering, own_bytes + room_bytes, now_ns):
            too_much_own = 0 < own_bytes > most_own_bytes
            if left_bytes >= 0 and not too_much_own:
                break
            is_own = other.client == gathering.client
            if not is_own and left_bytes >= 0:
                continue
            losers.append(other)
            left_bytes += other.has_bytes
            own_bytes -= other.has_bytes if is_own else 0
        return None if left_bytes < 0 or 0 < own_bytes > most_own_bytes else losers

    def _who_may_lose(self, gathering: Gathering, client_bytes: int, now_ns: int) -> list[Gathering]:
        """Return those that may lose their room if this one's client would have so much then: the first to go first."""
        small_bytes = self._budget_bytes // _SMALL_PART
        #: What each client has, without those of its frames that would have lost.
        left = dict(self._by_client)
        losers: list[tuple[int, Gathering]] = []
        for other in self._gatherings:
            has_bytes = left[other.client]
            at_once = client_bytes <= small_bytes < has_bytes
            if other is not gathering and other.lose is not None and (at_once or now_ns - other.since_ns >= KEPT_NS):
                losers.append((has_bytes, other))
                left[other.client] -= other.has_bytes
        losers.sort(key=itemgetter(0), reverse=True)
        return [other for _, other in losers]


def _room_for(size_bytes: int) -> int:
    return 0 if size_bytes <= SMALL_FRAME_BYTES else -(-size_bytes // _ROOM_STEP_BYTES) * _ROOM_STEP_BYTES
