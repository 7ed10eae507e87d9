"""What answers still under way are expected to cost.

A request that asks for messages costs nothing itself; its answer does, and only when it is there. Were all that
are held let go as soon as a permit is stored, their answers together would cost many times what is. So
those that were let go are regarded as spending what the last answer did that brought anything, until an answer
comes or a second has passed without one: it may be a long poll on an empty queue.
"""

from collections import OrderedDict, deque
from typing import Final

from limiter.plans import LineKey

REGARD_NS: Final = 1_000_000_000
_MAX_LINES: Final = 4_096
"""Lines told apart; names come from clients. One that is forgotten starts anew with an answer of one permit."""


class _Flow:
    __slots__ = ("last_cost", "released_ns")

    def __init__(self) -> None:
        self.last_cost = 1
        self.released_ns: deque[int] = deque()


class Answers:
    """The expectations, by where the requests were held."""

    def __init__(self) -> None:
        self._flows: OrderedDict[LineKey, _Flow] = OrderedDict()

    def ahead(self, line: LineKey, now_ns: int) -> int:
        """Return how many permits the answers under way are expected to cost."""
        flow = self._flows.get(line)
        if flow is None:
            return 0
        released_ns = flow.released_ns
        while released_ns and released_ns[0] + REGARD_NS <= now_ns:
            released_ns.popleft()
        return len(released_ns) * flow.last_cost

    def regard_ends_ns(self, line: LineKey) -> int | None:
        """Return when the next request ceases to be regarded, or None if none is."""
        flow = self._flows.get(line)
        return flow.released_ns[0] + REGARD_NS if flow is not None and flow.released_ns else None

    def released(self, line: LineKey, now_ns: int) -> None:
        """Note that a held request was let go: its answer is under way."""
        self._flow(line).released_ns.append(now_ns)

    def answered(self, line: LineKey, cost: int) -> None:
        """Note an answer; one that brought nothing says nothing about the others' cost."""
        flow = self._flow(line)
        if cost:
            flow.last_cost = cost
        if flow.released_ns:
            flow.released_ns.popleft()

    def _flow(self, line: LineKey) -> _Flow:
        flow = self._flows.get(line)
        if flow is None:
            if len(self._flows) >= _MAX_LINES:
                self._flows.popitem(last=False)
            flow = self._flows[line] = _Flow()
        else:
            self._flows.move_to_end(line)
        return flow
