"""What happens later: a heap of callbacks by due time. It reads no clock; ``now_ns`` is an argument."""

import heapq
from collections.abc import Callable

#: Cancelled timers are swept out of the heap once there are this many and they are the majority.
_SWEEP_AT = 1024


class Timer:
    """One callback that is to run once; made by ``Timers.at``."""

    __slots__ = ("_run", "due_ns")

    def __init__(self, due_ns: int, run: Callable[[int], None]) -> None:
        self.due_ns = due_ns
        self._run: Callable[[int], None] | None = run

    @property
    def pending(self) -> bool:
        """Return whether it has neither run nor been cancelled."""
        return self._run is not None

    def fire(self, now_ns: int) -> None:
        """Run the callback unless it was cancelled or has run."""
        run, self._run = self._run, None
        if run is not None:
            run(now_ns)

    def clear(self) -> None:
        """Forget the callback, and with it whatever it holds."""
        self._run = None


class Timers:
    """All pending timers, soonest first; equal due times run in the order they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._cancelled = 0

    def __len__(self) -> int:
        """Return how many timers are pending."""
        return len(self._heap) - self._cancelled

    def at(self, due_ns: int, run: Callable[[int], None]) -> Timer:
        """Run ``run(now_ns)`` once ``now_ns`` has reached ``due_ns``."""
        timer = Timer(due_ns, run)
        self._sequence += 1
        heapq.heappush(self._heap, (due_ns, self._sequence, timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Make sure that a timer does not run any more."""
        if not timer.pending:
            return
        timer.clear()
        self._cancelled += 1
        if self._cancelled >= _SWEEP_AT and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].pending]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_ns(self) -> int | None:
        """Return when ``run_due`` has something to do, or None."""
        heap = self._heap
        while heap and not heap[0][2].pending:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def run_due(self, now_ns: int) -> int:
        """Run everything that is due; returns how many ran."""
        ran = 0
        while (due_ns := self.next_ns()) is not None and due_ns <= now_ns:
            heapq.heappop(self._heap)[2].fire(now_ns)
            ran += 1
        return ran
