"""Lines: what waits, and in which order, for one limiter or one share of it.

The words of the waiting room, without its rules; those are ``holding``'s.
"""

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from limiter.plans.plans import Caller, QueueKey
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension, Rule

SLACK: Final = 64
"""What has gone is swept from a heap only if there is more than this of it."""


class Denial(NamedTuple):
    """The limit that stopped a request.

    Attributes:
        resource: the resource, scope or total that is limited.
        rule: the rule in force for it.
        wait_us: microseconds until a request would be admitted again.
        most: the request can never be admitted, since it costs more than what the rule admits at once: so many
            messages, or bytes. None: it can.
        most_of: what ``most`` counts.
    """

    resource: Resource
    rule: Rule
    wait_us: int
    most: int | None = None
    most_of: Dimension = "messages"


class ShadowDenial(NamedTuple):
    """What a shadow rule would have refused.

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
        due_ns: when to ask for the first in line again.
        resource: whose limit it is.
        rule: the rule in force for it.
    """

    line: QueueKey
    cost: int
    due_ns: int
    resource: Resource
    rule: Rule


class Credit(NamedTuple):
    """What is asked for before messages come.

    Attributes:
        least: permits that are asked for at least.
        most: permits that are asked for at most.
        size_bytes: what each of them costs in bytes.
    """

    least: int
    most: int
    size_bytes: int


class Held(ABC):
    """One request that waits.

    Args:
        resources: everything it is charged to.
        caller: who asks.
        messages: its cost in messages.
        size_bytes: its size, which is its cost in bytes unless it is charged by its answer.
        connection: whose it is, for the bounds and for the order.
        order_key: what it must not overtake there; None is nothing.
        since_ns: since when it waits, if it has waited elsewhere before; 0 is from now on.
        credit: what it asks for, if that is credit. It has no size then, and its ``messages`` are what is granted.

    Attributes:
        number: when it came, among all.
        deadline_ns: when it is refused.
        resource: whose limit it waits for.
        rule: the rule that holds it.
        line: where it waits; None while it follows another.
        cost: what it will cost there.
        gone: it waits no more.
        spooled: it is the first of those that its sender's session has put aside, so it counts for no bound.
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
        """Take note of the outcome: None if it passes, else what it is refused by.

        Called once, when it is held no more; never if it was dropped.
        """


class WaitQueue:
    """Those that wait for one limiter, or for one share of it.

    Attributes:
        key: which.
        waiting: how many wait.
        permits: what they will cost there together.
        due_ns: when the first of them is to be asked for again.
        overtaken: permits that what may not wait has spent since one of them was let go.
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
        """Return who came first of those that wait."""
        heap = self._heap
        while heap:
            held = heap[0][1]
            if not held.gone and held.line is self:
                return held
            heappop(heap)
        return None

    def enter(self, held: Held, cost: int) -> None:
        """Take a request in, at the place that its number gives it."""
        held.line, held.cost = self, cost
        self.waiting += 1
        self.permits += cost
        heappush(self._heap, (held.number, held))

    def leave(self, held: Held) -> None:
        """Let a request go."""
        held.line = None
        self.overtaken = 0
        self.waiting -= 1
        self.permits -= held.cost
        if len(self._heap) > 2 * self.waiting + SLACK:
            self._heap = [entry for entry in self._heap if entry[1].line is self]
            heapify(self._heap)
