"""All traffic together: rates, their history, and what passed unlimited in the last minute."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from admin import wire
from admin.board.line import NOTHING, Counts, Ring, counts_of, rates
from proxy.snapshot import Direction, ResourceCounts, Snapshot

_MINUTE_NS: Final = 60_000_000_000


class Traffic:
    """What the snapshots add up to."""

    def __init__(self) -> None:
        self.messages: Counts = NOTHING
        self.requests: Counts = NOTHING
        self._messages_before: Counts = NOTHING
        self._requests_before: Counts = NOTHING
        self._point_start: Counts = NOTHING
        self._bytes: Mapping[Direction, int] = {}
        self._bytes_before: Mapping[Direction, int] = {}
        self._seconds = 1.0
        self._bypassed: deque[tuple[int, int]] = deque()
        self._ring = Ring()
        self._first = True

    def sample(self, snapshot: Snapshot, totals: ResourceCounts, now_ns: int, seconds: float) -> None:
        """Take over what the data path says.

        Args:
            snapshot: of now; need not be whole.
            totals: of all resources.
            now_ns: monotonic time.
            seconds: since the last one.
        """
        messages, requests = counts_of(totals.messages), counts_of(totals.requests)
        self._messages_before, self.messages = self.messages, messages
        self._requests_before, self.requests = self.requests, requests
        self._bytes_before, self._bytes = self._bytes, dict(snapshot.bytes_total)
        self._seconds = seconds
        if self._first:
            self._messages_before, self._requests_before = self.messages, self.requests
            self._bytes_before, self._point_start, self._first = self._bytes, self.messages, False
        self._bypassed.append((now_ns, sum(snapshot.bypassed.values())))
        # The oldest one is what lies a minute back.
        while len(self._bypassed) > 1 and now_ns - self._bypassed[1][0] >= _MINUTE_NS:
            self._bypassed.popleft()

    def write_point(self, point: int, seconds: float) -> None:
        """Write the next point of the history."""
        before, now = self._point_start, self.messages
        self._ring.write(point, (now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds)
        self._point_start = now

    def history(self, points: int) -> wire.History:
        """Return the messages of the last minutes."""
        return self._ring.read(points)

    def rates(self) -> wire.Rates:
        """Return the rates of the last sample."""
        return wire.Rates(
            messages_per_s=rates(self._messages_before, self.messages, self._seconds),
            requests_per_s=rates(self._requests_before, self.requests, self._seconds),
            bytes_per_s={
                peer: round((total - self._bytes_before.get(peer, 0)) / self._seconds, 1)
                for peer, total in self._bytes.items()
            },
        )

    def bypassed(self, snapshot: Snapshot) -> wire.Bypassed:
        """Return what passed since a handler was skipped."""
        total = sum(snapshot.bypassed.values())
        at_ns, before = self._bypassed[0] if self._bypassed else (0, total)
        last_ns = self._bypassed[-1][0] if self._bypassed else 0
        seconds = min(max((last_ns - at_ns) / 1e9, 1.0), 60.0)
        by = tuple(wire.BypassCount(handler, reason, n) for (handler, reason), n in snapshot.bypassed.items())
        return wire.Bypassed(total, round((total - before) / seconds, 2), by)
