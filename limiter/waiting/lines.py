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
    """The limit that stopped a request."""

    resource: Resource
    rule: Rule  # its active rule
    wait_us: int
    # The most that the rule admits at once, if the request costs more and can never be admitted; else None.
    most: int | None = None
    most_of: Dimension = "messages"


class ShadowDenial(NamedTuple):
    """A refusal by a shadow rule."""

    resource: Resource
    rule: str
    first: int  # the first of the admitted requests that it would have refused
    end: int  # the first behind those


class Wait(NamedTuple):
    """Where a request waits, and until when at least."""

    line: QueueKey
    cost: int  # what it will cost there, in permits
    due_ns: int  # when to ask for the first in line
    resource: Resource
    rule: Rule


class Credit(NamedTuple):
    """A request for credit."""

    least: int  # the fewest permits of use
    most: int  # the most permits
    size_bytes: int  # the cost of each in bytes


class Held(ABC):
    """One waiting request.

    Args:
        size_bytes: its cost in bytes unless it is charged by its answer.
        order_key: what it must not overtake on its connection; None is nothing.
        since_ns: since when it waits, if it has waited elsewhere before; 0 is from now on.
        credit: the credit it asks for. It has no size then, and its ``messages`` are what is granted.
    """

    number: int  # its place in the order of arrival
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
        self.spooled = False  # it stands for all that its session has spooled, so it counts for no bound
        self.line: WaitQueue | None = None  # where it waits; None while it follows another
        self.gone = False  # it waits no more
        self.shades: tuple[ShadowDenial, ...] = ()  # what shadow rules said when it passed

    @abstractmethod
    def resolved(self, stop: Denial | None) -> None:
        """Take note of the outcome: None if it passes, else the refusal.

        Called once, when it is no longer held; never if it was dropped.
        """


class WaitQueue:
    """The line of one limiter or share."""

    def __init__(self, key: QueueKey, due_ns: int) -> None:
        self.key = key
        self.due_ns = due_ns  # when to ask for the first of them
        self.waiting = 0
        self.permits = 0  # their cost there
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
        """Add a request at the place of its number."""
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
