"""Read buffers, lent for the time between a read and the write of what was read; and the room for what is gathered.

An idle connection holds none. The pool is a budget: when it is spent, connections read on with small buffers of their
own, so that clients whose broker has stalled can slow nobody else down to a halt. What is not needed any more goes back
to the system: each buffer has its own pages, as a heap could keep them.
"""

import mmap
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from proxy.common.admission import client_of

#: The size of most reads. Measured on loopback, a raw relay with 64 KiB reads makes 0.7-0.9 of a one-thread HAProxy's
#: throughput and with 256 KiB reads 1.07.
CHUNK_BYTES: Final = 256 * 1024
#: The size of a read from a peer that fills the usual one, if its session reads fast. Each chunk has a cost, since
#: copying it drives the interpreter out of the processor's caches: measured in two runs, frames of 536 bytes cost
#: 0.44 µs each with reads of 512 KiB and 0.41 with 1 MiB; 0.41 with 1 MiB and 0.35 with 2 MiB.
LARGE_CHUNK_BYTES: Final = 2 * 1024 * 1024
_USUAL_IN_LARGE: Final = LARGE_CHUNK_BYTES // CHUNK_BYTES
#: The size of reads while the budget is spent.
SMALL_CHUNK_BYTES: Final = 16 * 1024


class BufferPool:
    """Stacks of buffers, of the usual size and large, the most recently used on top: the processor's cache may have it.

    Args:
        budget_bytes: what all but small ones together may take; one of the usual size is always there.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free: list[memoryview] = []
        self._free_large: list[memoryview] = []
        #: In usual buffers; a large one takes the place of several.
        self._unmade = max(1, budget_bytes // CHUNK_BYTES)
        self.small_total = 0

    def borrow(self, *, large: bool = False) -> memoryview:
        """Take one buffer, to be given back: a small one if the budget is lent out, a large one if asked for and there.

        Where the budget is made already, free buffers of the other size make room.
        """
        if large:
            if self._free_large:
                return self._free_large.pop()
            missing = _USUAL_IN_LARGE - self._unmade
            if 0 < missing <= len(self._free):
                del self._free[:missing]
                self._unmade += missing
            if self._unmade >= _USUAL_IN_LARGE:
                return self._make(LARGE_CHUNK_BYTES)
        if self._free:
            return self._free.pop()
        if not self._unmade and self._free_large:
            del self._free_large[0]
            self._unmade += _USUAL_IN_LARGE
        if self._unmade:
            return self._make(CHUNK_BYTES)
        self.small_total += 1
        return memoryview(bytearray(SMALL_CHUNK_BYTES))

    def _make(self, size_bytes: int) -> memoryview:
        self._unmade -= size_bytes // CHUNK_BYTES
        return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def give_back(self, buffer: memoryview) -> None:
        if len(buffer) == CHUNK_BYTES:
            self._free.append(buffer)
        elif len(buffer) == LARGE_CHUNK_BYTES:
            self._free_large.append(buffer)

    def shrink(self) -> None:
        """Let go of half of the free buffers, those that were used longest ago; what is needed again is made anew."""
        for free, size_bytes in ((self._free, CHUNK_BYTES), (self._free_large, LARGE_CHUNK_BYTES)):
            count = len(free) // 2
            del free[:count]
            self._unmade += count * (size_bytes // CHUNK_BYTES)


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
