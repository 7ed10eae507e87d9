"""Queues of requests that are waiting for a limiter or one of its shares. See ``holding``."""

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from limiter.plans.plans import Caller, QueueKey
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension, Rule

SLACK: Final = 64
"""Heaps with fewer dead entries are not swept."""


class Denial(NamedTuple):
    resource: Resource
    rule: Rule
    wait_us: int
    # The maximum that the rule ever admits, if the request exceeds it.
    most: int | None = None
    most_of: Dimension = "messages"


class ShadowDenial(NamedTuple):
    resource: Resource
    rule: str
    first: int
    end: int  # exclusive


class Wait(NamedTuple):
    line: QueueKey
    cost: int
    due_ns: int
    resource: Resource
    rule: Rule


class Credit(NamedTuple):
    least: int
    most: int
    size_bytes: int  # per permit


class Held(ABC):
    """A waiting request.

    Args:
        size_bytes: cost in bytes. Ignored if the cost is determined by the response.
        order_key: requests with the same key must not overtake each other on a connection. If None, the request may
            overtake any other.
        since_ns: when the request started to wait, if it has already waited elsewhere, otherwise 0.
        credit: the requested credit, if any. ``size_bytes`` is then 0, and ``messages`` is set to the credit granted.
    """

    number: int  # order of arrival
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
        self.shadow_denials: tuple[ShadowDenial, ...] = ()

    @abstractmethod
    def resolved(self, stop: Denial | None) -> None:
        """Handle the outcome: a denial, or None if the request passes. Called once, unless the request was dropped."""


class WaitQueue:
    def __init__(self, key: QueueKey, due_ns: int) -> None:
        self.key = key
        self.due_ns = due_ns
        self.waiting = 0
        self.permits = 0
        self.overtaken = 0  # permits spent by requests that may not wait, since the last release
        self._heap: list[tuple[int, Held]] = []

    def first(self) -> Held | None:
        heap = self._heap
        while heap:
            held = heap[0][1]
            if not held.gone and held.line is self:
                return held
            heappop(heap)
        return None

    def enter(self, held: Held, cost: int) -> None:
        held.line, held.cost = self, cost
        self.waiting += 1
        self.permits += cost
        heappush(self._heap, (held.number, held))

    def leave(self, held: Held) -> None:
        held.line = None
        self.overtaken = 0
        self.waiting -= 1
        self.permits -= held.cost
        if len(self._heap) > 2 * self.waiting + SLACK:
            self._heap = [entry for entry in self._heap if entry[1].line is self]
            heapify(self._heap)
