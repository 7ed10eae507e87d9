"""Lines: requests that wait, in order, for one limiter or one share of it. See ``holding``."""

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from limiter.plans.plans import Caller, QueueKey
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension, Rule

SLACK: Final = 64
"""A heap is swept only if it has more dead entries than this."""


class Denial(NamedTuple):
    resource: Resource
    rule: Rule
    wait_us: int
    # The most that the rule admits at once, if the request is larger and can never be admitted. Otherwise None.
    most: int | None = None
    most_of: Dimension = "messages"


class ShadowDenial(NamedTuple):
    resource: Resource
    rule: str
    first: int  # index of the first request that it would have refused
    end: int  # index after the last one


class Wait(NamedTuple):
    """Where a request waits, and the earliest time to check again."""

    line: QueueKey
    cost: int  # permits
    due_ns: int  # when to check the first in line
    resource: Resource
    rule: Rule


class Credit(NamedTuple):
    least: int  # minimum useful permits
    most: int  # maximum permits
    size_bytes: int  # of each permit


class Held(ABC):
    """One waiting request.

    Args:
        size_bytes: its cost in bytes unless it is charged by its answer.
        order_key: order among requests of its connection. It must not overtake those with the same key. None:
            independent.
        since_ns: when it began to wait elsewhere. 0: it begins now.
        credit: the credit it requests. Its size is then 0, and ``messages`` becomes the grant.
    """

    number: int  # order of arrival
    deadline_ns: int
    resource: Resource  # whose limit it waits for
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
        self.spooled = False  # represents everything that its session has spooled, so it counts for no bound
        self.line: WaitQueue | None = None  # None while it follows another request
        self.gone = False
        self.shadow_denials: tuple[ShadowDenial, ...] = ()

    @abstractmethod
    def resolved(self, stop: Denial | None) -> None:
        """Handle the outcome: None if it passes, otherwise the refusal.

        Called once, when it is no longer held. Not called if it was dropped.
        """


class WaitQueue:
    def __init__(self, key: QueueKey, due_ns: int) -> None:
        self.key = key
        self.due_ns = due_ns  # when to check the first request
        self.waiting = 0
        self.permits = 0  # cost of the waiting requests
        self.overtaken = 0  # permits spent since the last release by requests that may not wait
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
