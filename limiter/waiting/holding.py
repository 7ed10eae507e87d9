"""Holds requests until the limits admit them or they have waited too long.

Each request waits in one queue (``line`` in the code), which belongs to the limiter or share that stopped it. When that
limiter admits requests again, the first request in the queue is checked against *all* its limits. It passes, is
refused, stays, or moves to another queue. Queues are sorted by arrival. Only a limiter can stop the oldest request, so
queues never wait for each other in a cycle. A request that must not overtake a held one enters a queue only after the
requests before it have left.

A request is refused at its deadline. A request that cannot be refused has no deadline. It passes at the end of a drain,
unless it requests credit. It does not count toward bounds, because its session stops reading from the sender. A
``spooled`` request, which represents all messages that its session has spooled, does not count either.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Literal, NamedTuple

from limiter.plans.plans import QueueKey
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.waiting.lines import SLACK, Denial, Held, Wait, WaitQueue

RELEASED_AT_ONCE: Final = 32
"""Maximum number of requests per ``release``, so that it takes only a few milliseconds."""
_ENDS_BEFORE_NS: Final = 200_000_000
"""Held requests are refused this long before a drain ends, so that the refusals can be sent."""

NEVER_NS: Final = 1 << 62

BoundName = Literal["max_held", "max_held_bytes", "max_held_per_connection", "max_held_bytes_per_connection"]


class Bounds(NamedTuple):
    requests: int = 10_000
    size_bytes: int = 64 * 1024 * 1024
    requests_per_connection: int = 1_000
    size_bytes_per_connection: int = 16 * 1024 * 1024


class HeldNow(NamedTuple):
    requests: int
    size_bytes: int


class _Load:
    def __init__(self) -> None:
        self.requests = self.size_bytes = 0


class Holding:
    """Keeps all held requests, and resolves each one when it is admitted or refused.

    Args:
        ask: checks a held request against all its limits. If they admit it, spends permits and returns None. Otherwise
            returns its denial, or a ``Wait`` if it must keep waiting.
        expire: returns the denial for a request that has waited too long, or None if it must pass because it cannot be
            refused.
    """

    def __init__(
        self, ask: Callable[[Held, int], "Denial | Wait | None"], expire: Callable[[Held, int], "Denial | None"]
    ) -> None:
        self.bounds = Bounds()
        # Called when work becomes due before the time last returned by ``next_due_ns``.
        self.earlier: Callable[[], None] = _ignore
        self.refused_by_bound: Counter[BoundName] = Counter()
        self._ask = ask
        self._expire = expire
        self._total = _Load()
        self._unbounded = _Load()
        self._connections: dict[int, _Load] = {}
        self.lines: dict[QueueKey, WaitQueue] = {}
        self._orders: dict[tuple[int, str | int], deque[Held]] = {}
        self._turns: deque[Held] = deque()
        self._dues: list[tuple[int, int, WaitQueue]] = []
        self._deadlines: list[tuple[int, int, Held]] = []
        self._number = 0
        self._due_number = 0
        self._ends_ns: int | None = None
        self._said_ns: int | None = None

    @property
    def now(self) -> HeldNow:
        total, more = self._total, self._unbounded
        return HeldNow(total.requests + more.requests, total.size_bytes + more.size_bytes)

    def over_bound(self, held: Held) -> BoundName | None:
        bounds, total = self.bounds, self._total
        own = self._connections.get(held.connection)
        bound: BoundName | None = None
        if total.requests >= bounds.requests:
            bound = "max_held"
        elif total.size_bytes + held.size_bytes > bounds.size_bytes:
            bound = "max_held_bytes"
        elif (own.requests if own else 0) >= bounds.requests_per_connection:
            bound = "max_held_per_connection"
        elif (own.size_bytes if own else 0) + held.size_bytes > bounds.size_bytes_per_connection:
            bound = "max_held_bytes_per_connection"
        return bound

    def hold(self, now_ns: int, held: Held, wait: Wait, max_delay_ns: int) -> None:
        """Hold a request. Check ``over_bound`` first."""
        self._insert(held, wait.resource, wait.rule, now_ns + max_delay_ns)
        self._enter(held, wait)

    def previous_of_key(self, connection: int, order_key: str | int | None) -> Held | None:
        if order_key is None or not self._orders:
            return None
        order = self._orders.get((connection, order_key))
        return next(held for held in reversed(order) if not held.gone) if order else None

    def follow(self, now_ns: int, held: Held, leader: Held) -> None:
        self._insert(held, leader.resource, leader.rule, now_ns + leader.rule.max_delay_ns)

    def is_behind(self, key: QueueKey, number: int | None) -> bool:
        """Return whether a queue contains a request older than ``number``, or any request if ``number`` is None."""
        line = self.lines.get(key)
        if line is None:
            return False
        first = line.first()
        return first is not None and (number is None or first.number < number)

    def each(self) -> Iterator[Held]:
        return (held for _, _, held in self._deadlines if not held.gone)

    def waiting_for(self, resource: Resource, dimension: str) -> int:
        return sum(
            line.waiting for key, line in self.lines.items() if key.resource == resource and key.dimension == dimension
        )

    def drop(self, held: Held) -> None:
        if not held.gone:
            self._remove(held)

    def recheck_soon(self, key: QueueKey, now_ns: int) -> None:
        line = self.lines.get(key)
        if line is not None and line.due_ns > now_ns:
            self._arm(line, now_ns)

    def recheck_all_soon(self, now_ns: int) -> None:
        for key in self.lines:
            self.recheck_soon(key, now_ns)

    def is_over(self, now_ns: int) -> bool:
        return self._ends_ns is not None and self._ends_ns <= now_ns

    def drain(self, ends_ns: int) -> None:
        """Schedule the end of a drain. Shortly before ``ends_ns``, held requests are refused.

        Requests that cannot be refused pass.
        """
        self._ends_ns = ends_ns - _ENDS_BEFORE_NS
        self._tell(self._ends_ns)

    def next_due_ns(self) -> int | None:
        self._said_ns = None
        if self.now.requests:
            dues, deadlines = self._dues, self._deadlines
            while dues and dues[0][0] != dues[0][2].due_ns:
                heappop(dues)
            while deadlines and deadlines[0][2].gone:
                heappop(deadlines)
            due_ns = deadlines[0][0] if deadlines else NEVER_NS
            if dues:
                due_ns = min(due_ns, dues[0][0])
            if self._ends_ns is not None and deadlines:
                due_ns = min(due_ns, self._ends_ns)
            if self._turns:
                due_ns = 0
            self._said_ns = due_ns
        return self._said_ns

    def release(self, now_ns: int) -> None:
        """Check the first request in each queue that is due. Refuse requests that are past their deadline."""
        left = RELEASED_AT_ONCE
        ends = self.is_over(now_ns)
        while left and self._turns:
            held = self._turns.popleft()
            if not held.gone:
                left -= 1
                self._ask_for(held, now_ns)
        dues = self._dues
        while left and dues and dues[0][0] <= now_ns:
            due_ns, _, line = heappop(dues)
            if line.due_ns == due_ns:
                left = self._check_line(line, now_ns, left)
        left = RELEASED_AT_ONCE
        deadlines = self._deadlines
        while left and deadlines and (ends or deadlines[0][0] <= now_ns):
            held = heappop(deadlines)[2]
            if not held.gone:
                left -= 1
                self._finish(held, self._expire(held, now_ns))

    def _check_line(self, line: WaitQueue, now_ns: int, left: int) -> int:
        stayed = False
        try:
            while left and not stayed and (held := line.first()) is not None:
                left -= 1
                self._ask_for(held, now_ns)
                stayed = held.line is line
        finally:
            if line.waiting and not stayed:
                self._arm(line, now_ns)
        return left

    def _ask_for(self, held: Held, now_ns: int) -> None:
        answer = self._ask(held, now_ns)
        if not isinstance(answer, Wait):
            self._finish(held, answer)
            return
        held.resource, held.rule = answer.resource, answer.rule
        line = held.line
        if line is not None and line.key == answer.line:
            self._arm(line, answer.due_ns)
            return
        if line is not None:
            self._leave(held, line)
        self._enter(held, answer)

    def _insert(self, held: Held, resource: Resource, rule: Rule, deadline_ns: int) -> None:
        self._number += 1
        held.number, held.resource, held.rule, held.deadline_ns = self._number, resource, rule, deadline_ns
        for load in self._loads(held):
            load.requests += 1
            load.size_bytes += held.size_bytes
        if held.order_key is not None:
            self._orders.setdefault((held.connection, held.order_key), deque()).append(held)
        if held.credit is None:
            heappush(self._deadlines, (deadline_ns, held.number, held))
            self._tell(deadline_ns)

    def _loads(self, held: Held) -> Sequence[_Load]:
        if held.spooled or not held.caller.refusable:
            return (self._unbounded,)
        own = self._connections.get(held.connection)
        if own is None:
            own = self._connections[held.connection] = _Load()
        return self._total, own

    def _enter(self, held: Held, wait: Wait) -> None:
        line = self.lines.get(wait.line)
        if line is None:
            line = self.lines[wait.line] = WaitQueue(wait.line, wait.due_ns)
            line.enter(held, wait.cost)
            self._arm(line, wait.due_ns)
        else:
            line.enter(held, wait.cost)

    def _leave(self, held: Held, line: WaitQueue) -> None:
        line.leave(held)
        if not line.waiting:
            line.due_ns = -1
            del self.lines[line.key]

    def _arm(self, line: WaitQueue, due_ns: int) -> None:
        line.due_ns = due_ns
        self._due_number += 1
        heappush(self._dues, (due_ns, self._due_number, line))
        if len(self._dues) > 2 * len(self.lines) + SLACK:
            self._dues[:] = {entry[2]: entry for entry in self._dues if entry[0] == entry[2].due_ns}.values()
            heapify(self._dues)
        self._tell(due_ns)

    def _finish(self, held: Held, stop: Denial | None) -> None:
        self._remove(held)
        held.resolved(stop)

    def _remove(self, held: Held) -> None:
        held.gone = True
        if held.line is not None:
            self._leave(held, held.line)
        for load in self._loads(held):
            load.requests -= 1
            load.size_bytes -= held.size_bytes
        if not held.spooled and held.caller.refusable and not self._connections[held.connection].requests:
            del self._connections[held.connection]
        if held.order_key is not None:
            self._advance(held, (held.connection, held.order_key))
        if len(self._deadlines) > 2 * self.now.requests + SLACK:
            self._deadlines[:] = [entry for entry in self._deadlines if not entry[2].gone]
            heapify(self._deadlines)

    def _advance(self, held: Held, key: tuple[int, str | int]) -> None:
        order = self._orders[key]
        was_first = order[0] is held
        while order and order[0].gone:
            order.popleft()
        if not order:
            del self._orders[key]
        elif was_first:
            self._turns.append(order[0])
            self._tell(0)

    def _tell(self, due_ns: int) -> None:
        if self._said_ns is None or due_ns < self._said_ns:
            self._said_ns = due_ns
            self.earlier()


def _ignore() -> None: ...
