"""What the brokers behind listeners of one scope show of their load; sessions and the driver count it here."""

from collections import deque
from typing import Final

from limiter.adaptive.controller import BrokerSeen

MAX_ROUND_TRIPS: Final = 1024
"""Samples kept between two calls of ``take``, the latest ones."""


class BrokerSignals:
    """The counts of one scope, shared by its connections. Sessions add to the attributes directly: no call for each.

    Attributes:
        answers: answers, or confirms, of messages that were passed on, busy ones included; never of pulls.
        busy: of them, refusals because the broker is busy.
        round_trips_ns: samples of the time from passing a message on to its answer.
        blocked: connections whose broker has said that it takes nothing now.
    """

    __slots__ = ("answers", "blocked", "busy", "round_trips_ns")

    def __init__(self) -> None:
        self.answers = self.busy = self.blocked = 0
        self.round_trips_ns = deque[int](maxlen=MAX_ROUND_TRIPS)

    def take(self, unanswered: int, *, is_stalled: bool = False) -> BrokerSeen:
        """Return what came since the last call.

        Args:
            unanswered: messages that wait for their answer now.
            is_stalled: a broker's socket takes no bytes.
        """
        # RabbitMQ slows down single connections, too: while it answers others, it is not the broker that is short.
        blocked = (is_stalled or self.blocked > 0) and not self.answers
        seen = BrokerSeen(self.answers, self.busy, tuple(self.round_trips_ns), unanswered, blocked)
        self.answers = self.busy = 0
        self.round_trips_ns.clear()
        return seen
