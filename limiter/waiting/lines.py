"""Lines: requests that wait, in order, for one limiter or one share of it. The rules are in ``holding``."""

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from limiter.plans.plans import Caller, QueueKey
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension, Rule

SLACK: Final = 64
"""A heap is swept only if it has more dead entries than this."""


class Denial(NamedTuple):
    """The limit that stopped a request.

    Attributes:
        resource: the resource, scope or total that is limited.
        rule: its active rule.
        wait_us: microseconds until a request would be admitted.
        most: the most that the rule admits at once, if the request costs more and can never be admitted; else None.
        most_of: the unit of ``most``.
    """

    resource: Resource
    rule: Rule
    wait_us: int
    most: int | None = None
    most_of: Dimension = "messages"


class ShadowDenial(NamedTuple):
    """A refusal by a shadow rule.

    Attributes:
        resource: the resource, scope or total that it limits.
        rule: its name.
        first: the first of the admitted requests that it would have refused.
        end: the first behind those.
    """

    resource: Resource
    rule: str
    first: int
    end: int


class Wait(NamedTuple):
    """Where a request waits, and until when at least.

    Attributes:
        line: of which limiter.
        cost: what it will cost there, in permits.
        due_ns: when to ask for the first in line.
        resource: whose limit it is.
        rule: its active rule.
    """

    line: QueueKey
    cost: int
    due_ns: int
    resource: Resource
    rule: Rule


class Credit(NamedTuple):
    """A request for credit.

    Attributes:
        least: the fewest permits of use.
        most: the most permits.
        size_bytes: the cost of each in bytes.
    """

    least: int
    most: int
    size_bytes: int


class Held(ABC):
    """One waiting request.

    Args:
        resources: everything it is charged to.
        caller: who asks.
        messages: its cost in messages.
        size_bytes: its size, which is its cost in bytes unless it is charged by its answer.
        connection: for the bounds and for the order.
        order_key: what it must not overtake there; None is nothing.
        since_ns: since when it waits, if it has waited elsewhere before; 0 is from now on.
        credit: the credit it asks for. It has no size then, and its ``messages`` are what is granted.

    Attributes:
        number: its place in the order of arrival.
        deadline_ns: when it is refused.
        resource: whose limit it waits for.
        rule: the rule that holds it.
        line: where it waits; None while it follows another.
        cost: what it will cost there.
        gone: it waits no more.
        spooled: it stands for all that its session has spooled, so it counts for no bound.
        shades: what shadow rules said when it passed.
    """

    __slots__ = (
        "caller",
        "connection",
        "cost",
        "credit",
        "deadline_ns",
        "gone",
        "line",
        "messages",
        "number",
        "order_key",
        "resource",
        "resources",
        "rule",
        "shades",
        "since_ns",
        "size_bytes",
        "spooled",
    )

    number: int
    deadline_ns: int
    resource: Resource
    rule: Rule
    cost: int

    def __init__(
        self,
        resources: tuple[Resource, ...],
        caller: Caller,
        messages: int,
        size_bytes: int,
        *,
        connection: int,
        order_key: str | int | None,
        since_ns: int = 0,
        credit: Credit | None = None,
    ) -> None:
        self.resources = resources
        self.caller = caller
        self.messages = messages
        self.size_bytes = size_bytes
        self.connection = connection
        self.order_key = order_key
        self.since_ns = since_ns
        self.credit = credit
        self.spooled = False
        self.line: WaitQueue | None = None
        self.gone = False
        self.shades: tuple[ShadowDenial, ...] = ()

    @abstractmethod
    def resolved(self, stop: Denial | None) -> None:
        """Take note of the outcome: None if it passes, else the refusal.

        Called once, when it is no longer held; never if it was dropped.
        """


class WaitQueue:
    """The line of one limiter or share.

    Attributes:
        key: which.
        waiting: how many wait.
        permits: their cost there.
        due_ns: when to ask for the first of them.
        overtaken: permits spent since the last release by requests that may not wait.
    """

    __slots__ = ("_heap", "due_ns", "key", "overtaken", "permits", "waiting")

    def __init__(self, key: QueueKey, due_ns: int) -> None:
        self.key = key
        self.due_ns = due_ns
        self.waiting = 0
        self.permits = 0
        self.overtaken = 0
        self._heap: list[tuple[int, Held]] = []

    def first(self) -> Held | None:
        """Return the first in line."""
        heap = self._heap
        while heap:
            held = heap[0][1]
            if not held.gone and held.line is self:
                return held
            heappop(heap)
        return None

    def enter(self, held: Held, cost: int) -> None:
        """Add a request at the place of its number."""
        held.line, held.cost = self, cost
        self.waiting += 1
        self.permits += cost
        heappush(self._heap, (held.number, held))

    def leave(self, held: Held) -> None:
        """Remove a request."""
        held.line = None
        self.overtaken = 0
        self.waiting -= 1
        self.permits -= held.cost
        if len(self._heap) > 2 * self.waiting + SLACK:
            self._heap = [entry for entry in self._heap if entry[1].line is self]
            heapify(self._heap)
