"""Translates a session's numbers between its two peers after Sluice has swallowed deliveries.

Each direction of a session has *delivery-ids* and *transfer-ids* (AMQP 1.0, 2.5.6 and 2.6.12). Both are 32-bit serial
numbers (RFC 1982) that may start anywhere. Transfer-ids are visible only as next-outgoing-id and next-incoming-id.

The *sender* counts a swallowed delivery, but the *receiver* does not. A *break* is a run of consecutive swallowed
deliveries. It increases the difference between the peers' numbers by its length. A range that the receiver settles is
split at breaks. A break is forgotten when all deliveries before its end are settled. If there are many breaks, those
with no unsettled deliveries between them are merged. If there are still too many, Sluice forwards and charges
deliveries that it should refuse.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from proxy.protocols.amqp10.credit import unwrapped, wrapped

MAX_BREAKS: Final = 8192
MAX_INTERVALS: Final = 8192
MAX_ABORTED: Final = 2048
_MAX_SETTLED: Final = 512
_SERIAL: Final = 1 << 32


class Transfers:
    def __init__(self) -> None:
        # In the receiver's numbers, unwrapped.
        self.next_id = self._initial = 0
        self.offset = 0
        self.incoming_window = 0
        self.outgoing_window = 0
        self._incoming_id: int | None = None
        self._told = 0  # the end of the announced window, in the sender's numbers

    def begun(self, next_outgoing_id: int, outgoing_window: int) -> None:
        self.next_id = self._initial = self._told = next_outgoing_id
        self.outgoing_window = outgoing_window

    def note_received(self, transfers: int = 1) -> None:
        self.next_id += transfers

    def swallowed(self, transfers: int = 1) -> None:
        self.offset += transfers

    def added(self, transfers: int) -> None:
        self.next_id += transfers
        self.offset -= transfers

    def flow_of_sender(self, next_outgoing_id: int, outgoing_window: int) -> int:
        """Handle a flow from the sender. Return the next-outgoing-id for the receiver (2.5.6)."""
        self.outgoing_window = outgoing_window
        self.next_id = unwrapped(next_outgoing_id - self.offset, self.next_id)
        return wrapped(self.next_id)

    def flow_of_receiver(self, next_incoming_id: int | None, incoming_window: int) -> int | None:
        self.incoming_window = incoming_window
        self._incoming_id = None if next_incoming_id is None else unwrapped(next_incoming_id, self.next_id)
        return self.incoming_id()

    def incoming_id(self) -> int | None:
        self._told = self._limit
        # If the id is missing, the sender assumes its initial number.
        if self._incoming_id is None and not self.offset:
            return None
        return wrapped(self._told - self.incoming_window)

    @property
    def _limit(self) -> int:
        counted = self._initial if self._incoming_id is None else self._incoming_id
        return counted + self.offset + self.incoming_window

    def outgoing_id(self) -> int:
        return wrapped(self.next_id)

    @property
    def needs_flow(self) -> bool:
        return self._limit > self._told

    def left(self) -> int:
        return max(0, self._told - self.offset - self.next_id)


class Unsettled:
    """Stores unsettled delivery-ids as intervals. If there are too many, the oldest are merged, adding settled ids."""

    def __init__(self) -> None:
        self._starts = array("q")
        self._stops = array("q")
        self.count = 0

    def add(self, first: int, count: int = 1) -> None:
        """Add ``count`` ids, unless ``first`` precedes a known id."""
        starts, stops = self._starts, self._stops
        if stops and stops[-1] >= first:
            if stops[-1] > first:
                return
            stops[-1] += count
        else:
            starts.append(first)
            stops.append(first + count)
            self._bound()
        self.count += count

    def settle(self, first: int, last: int) -> int:
        """Remove the ids from ``first`` to ``last``, inclusive. Return how many of them were unsettled."""
        starts, stops = self._starts, self._stops
        stop = last + 1
        at = bisect_right(stops, first)
        end = bisect_right(starts, last)
        if at >= end:
            return 0
        kept = [(low, high) for low, high in ((starts[at], first), (stop, stops[end - 1])) if low < high]
        removed = sum(stops[at:end]) - sum(starts[at:end]) - sum(high - low for low, high in kept)
        starts[at:end] = array("q", [low for low, _ in kept])
        stops[at:end] = array("q", [high for _, high in kept])
        self.count -= removed
        self._bound()
        return removed

    def any_within(self, first: int, stop: int) -> bool:
        at = bisect_right(self._stops, first)
        return at < len(self._starts) and self._starts[at] < stop

    def lowest(self) -> int | None:
        return self._starts[0] if self._starts else None

    def clear(self) -> None:
        del self._starts[:], self._stops[:]
        self.count = 0

    def _bound(self) -> None:
        if len(self._starts) > MAX_INTERVALS:
            self.count += self._starts[1] - self._stops[0]
            del self._starts[1], self._stops[0]


class Renumbering:
    """Translates delivery-ids between the sender's numbering and the receiver's.

    Arguments and return values are delivery-ids exactly as they appear on the wire.
    """

    def __init__(self) -> None:
        self.plain = True  # whether nothing was ever swallowed
        self.watched: int | None = None  # the timed delivery, in the sender's numbers, unwrapped
        self.answered = False
        self._next: int | None = None  # the sender's next number, unwrapped
        self._offset = 0  # the difference before the first break
        # The first number after each break, as the receiver counts and as the sender counts.
        self._positions = array("q")
        self._afters = array("q")
        self._compact_at = 64
        self._freed = 0
        self._reserved = 0
        # In the sender's numbers. ``_aborted`` is sorted.
        self._unsettled = Unsettled()
        self._aborted: list[int] = []

    @property
    def full(self) -> bool:
        return len(self._afters) + self._reserved >= MAX_BREAKS

    def reserve(self) -> bool:
        """Return whether another delivery may be swallowed. If so, the caller must call ``swallow``."""
        if self.full:
            return False
        self._reserved += 1
        return True

    def _settle_aborted(self) -> None:
        oldest = self._aborted[:_MAX_SETTLED]
        for number in oldest:
            self._unsettled.settle(number, number)
        del self._aborted[: len(oldest)]
        self._forget()
        if self._afters:
            self._compact()

    def note_received(self, delivery_id: int, deliveries: int = 1, *, settled: bool = False) -> int:
        """Count consecutive deliveries that are forwarded. Return the receiver's number for the first one.

        If they are ``settled``, their ids are not stored, because neither peer refers to them again.
        """
        first = self._unwrap(delivery_id)
        self._next = max(self._next or first, first + deliveries)
        if not settled:
            self._unsettled.add(first, deliveries)
        return wrapped(first - self._difference(first))

    def reached(self, delivery_id: int) -> None:
        near = self._next
        self._next = delivery_id + 1 if near is None else max(near, unwrapped(delivery_id, near) + 1)

    def swallow(self, delivery_id: int) -> None:
        self._reserved = max(0, self._reserved - 1)
        number = self._unwrap(delivery_id)
        self._next = number + 1
        self.plain = False
        position = number - self._difference(number)
        positions, afters = self._positions, self._afters
        if positions and positions[-1] == position:
            afters[-1] = number + 1
            return
        if len(afters) >= self._compact_at:
            self._compact()
        positions.append(position)
        afters.append(number + 1)

    def forward_ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        if self.plain:
            return [(first, last)]
        low, high = self._range(first, last, self._near())
        if low > high:
            return []
        begin, stop = self._forwarded(low), self._forwarded(high + 1)
        return [(wrapped(begin), wrapped(stop - 1))] if begin < stop else []

    def back_ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        if self.plain:
            return [(first, last)]
        near = self._near()
        low, high = self._range(first, last, near - self._difference(near))
        if low > high:
            return []
        positions = self._positions
        at = bisect_right(positions, low)
        end = bisect_right(positions, high)
        ranges = []
        for each in range(at, end):
            position = positions[each]
            ranges.append((wrapped(low + self._behind(each - 1)), wrapped(position - 1 + self._behind(each - 1))))
            low = position
        ranges.append((wrapped(low + self._behind(end - 1)), wrapped(high + self._behind(end - 1))))
        return ranges

    def latest(self) -> tuple[int | None, int | None, int]:
        """Return the sender's and the receiver's first number after the last break, and the difference between them.

        The numbers are None if there is no break.
        """
        afters, positions = self._afters, self._positions
        if not afters:
            return None, None, wrapped(self._offset)
        return wrapped(afters[-1]), wrapped(positions[-1]), wrapped(afters[-1] - positions[-1])

    @property
    def unsettled(self) -> int:
        return self._unsettled.count - len(self._aborted)

    @property
    def next_id(self) -> int | None:
        return None if self._next is None else wrapped(self._next)

    def watch(self, delivery_id: int) -> None:
        self.watched = self._unwrap(delivery_id)
        self.answered = False

    def aborted(self, delivery_id: int) -> None:
        """Remember an aborted delivery, because some receivers never settle it."""
        number = self._unwrap(delivery_id)
        aborted = self._aborted
        at = bisect_left(aborted, number)
        known = at < len(aborted) and aborted[at] == number
        if number == self.watched:
            self.watched = None
        if not known and self._unsettled.any_within(number, number + 1):
            aborted.insert(at, number)
            if len(aborted) >= MAX_ABORTED:
                self._settle_aborted()

    def settled(self, first: int, last: int) -> int:
        low, high = self._range(first, last, self._near())
        removed = self._unsettled.settle(low, high) if low <= high else 0
        if self.watched is not None and low <= self.watched <= high:
            self.watched = None
            self.answered = True
        if removed and self._aborted:
            del self._aborted[bisect_left(self._aborted, low) : bisect_right(self._aborted, high)]
        if removed and self._afters:
            self._forget()
            if len(self._afters) >= MAX_BREAKS:
                self._freed += removed
                if self._freed >= MAX_BREAKS // 8:
                    self._compact()
        return removed

    def forget_unsettled(self) -> None:
        """Forget all unsettled deliveries. Breaks are kept if possible, because dispositions may still arrive."""
        self._unsettled.clear()
        self._aborted.clear()
        self.watched = None
        if self.full:
            self._forget()

    def _near(self) -> int:
        return self._next or 0

    def _unwrap(self, delivery_id: int) -> int:
        return delivery_id if self._next is None else unwrapped(delivery_id, self._next)

    def _range(self, first: int, last: int, near: int) -> tuple[int, int]:
        low = unwrapped(first, near)
        return low, min(low + (last - first) % _SERIAL, near - 1)

    def _behind(self, at: int) -> int:
        return self._afters[at] - self._positions[at] if at >= 0 else self._offset

    def _difference(self, number: int) -> int:
        afters = self._afters
        if not afters:
            return self._offset
        if number >= afters[-1]:
            return afters[-1] - self._positions[-1]
        return self._behind(bisect_right(afters, number) - 1)

    def _forwarded(self, number: int) -> int:
        at = bisect_right(self._afters, number)
        forwarded = number - self._behind(at - 1)
        return min(forwarded, self._positions[at]) if at < len(self._afters) else forwarded

    def _forget(self) -> None:
        lowest = self._unsettled.lowest()
        afters = self._afters
        count = len(afters) if lowest is None else bisect_right(afters, lowest)
        if count:
            self._offset = self._behind(count - 1)
            del afters[:count], self._positions[:count]

    def _compact(self) -> None:
        afters, positions = self._afters, self._positions
        kept = [
            at
            for at in range(len(afters) - 1)
            if self._unsettled.any_within(afters[at], positions[at + 1] + self._behind(at))
        ]
        kept.append(len(afters) - 1)
        afters[:], positions[:] = array("q", [afters[at] for at in kept]), array("q", [positions[at] for at in kept])
        self._compact_at = min(max(64, 2 * len(kept)), MAX_BREAKS)
        self._freed = 0
