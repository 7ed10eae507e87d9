"""Load signals of brokers, for adaptive limits."""

from collections import deque
from typing import Final

from limiter.adaptive.controller import BrokerSeen

MAX_ROUND_TRIPS: Final = 1024


class BrokerSignals:
    """Load signals of one scope's broker. For speed, sessions update the attributes directly.

    Attributes:
        answers: answers and confirms to forwarded messages, including busy ones. Pulls do not count.
        busy: messages refused because the broker is busy.
        round_trips_ns: samples of the time from forwarding a message to its answer.
        blocked: number of connections that the broker blocks.
    """

    __slots__ = ("answers", "blocked", "busy", "round_trips_ns")

    def __init__(self) -> None:
        self.answers = self.busy = self.blocked = 0
        self.round_trips_ns = deque[int](maxlen=MAX_ROUND_TRIPS)

    def take(self, unanswered: int, *, is_stalled: bool = False) -> BrokerSeen:
        """Return the signals since the last call. Set ``is_stalled`` if a broker's socket accepts no data."""
        # RabbitMQ may throttle single connections. It is not overloaded while it answers others.
        blocked = (is_stalled or self.blocked > 0) and not self.answers
        seen = BrokerSeen(self.answers, self.busy, tuple(self.round_trips_ns), unanswered, blocked)
        self.answers = self.busy = 0
        self.round_trips_ns.clear()
        return seen
