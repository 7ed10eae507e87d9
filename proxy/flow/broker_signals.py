"""Signs of broker load, used by adaptive limits."""

from collections import deque
from typing import Final

from limiter.adaptive.controller import BrokerSeen

MAX_ROUND_TRIPS: Final = 1024


class BrokerSignals:
    """Signs of load on a scope's broker. For speed, sessions update the attributes directly.

    Attributes:
        answers: number of forwarded messages that the broker has answered, confirmed or refused. Pulls do not count.
        busy: number of messages that the broker refused because it was busy.
        round_trips_ns: samples of the time between forwarding a message and receiving its answer.
        blocked: number of connections that the broker blocks.
    """

    __slots__ = ("answers", "blocked", "busy", "round_trips_ns")

    def __init__(self) -> None:
        self.answers = self.busy = self.blocked = 0
        self.round_trips_ns = deque[int](maxlen=MAX_ROUND_TRIPS)

    def take(self, unanswered: int, *, is_stalled: bool = False) -> BrokerSeen:
        """Return the signs seen since the last call. Set ``is_stalled`` if a socket to the broker accepts no data."""
        # RabbitMQ may throttle individual connections. While it answers others, it is not overloaded.
        blocked = (is_stalled or self.blocked > 0) and not self.answers
        seen = BrokerSeen(self.answers, self.busy, tuple(self.round_trips_ns), unanswered, blocked)
        self.answers = self.busy = 0
        self.round_trips_ns.clear()
        return seen
