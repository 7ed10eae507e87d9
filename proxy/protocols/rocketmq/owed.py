"""What the broker owes a client: the requests that were forwarded and have no answer yet.

A drain must know what is in flight, and an answer is told apart by the request that it belongs to. Nothing
here reads bytes.
"""

from typing import Final

from limiter.resource import Resource
from proxy.protocols.rocketmq.codes import RequestCode
from proxy.protocols.rocketmq.scanning import Opaques

Owing = tuple[int, tuple[Resource, ...]]
"""A request's code, and its resources if it was limitable."""

#: Requests that the broker may hold open for long on purpose; a drain does not wait for them.
LONG_POLLS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE.value,
        RequestCode.LITE_PULL_MESSAGE.value,
        RequestCode.POP_MESSAGE.value,
        RequestCode.POP_LITE_MESSAGE.value,
        RequestCode.NOTIFICATION.value,
    }
)
#: Requests remembered per connection, long polls counted apart; some 200 bytes each. Of a client with more in
#: flight a drain does not wait for the others.
MAX_OWED: Final = 16_384


NOT_REMEMBERED: Final[Owing] = (0, ())
"""Of a request of which only the number was kept."""


class Owed:
    """The requests of one connection that expect an answer, by opaque. Of two with the same one the later counts.

    A request is noted when it is read, before its verdict: until then it is in flight as well. One that is held is
    taken out, and noted again when it goes on.

    Args:
        opaques: where the numbers of all but long polls are kept, which is all that a drain needs of them; None
            remembers what each was for, for those who see the answers.

    Attributes:
        opaques: as given.
    """

    __slots__ = ("_polls", "_requests", "opaques")

    def __init__(self, opaques: Opaques | None = None) -> None:
        self.opaques = opaques
        self._requests: dict[int, Owing] = {}
        self._polls: dict[int, Owing] = {}

    def __len__(self) -> int:
        """Return how many there are, long polls left aside."""
        return len(self._requests) if self.opaques is None else len(self.opaques)

    def add(self, opaque: int, code: int, resources: tuple[Resource, ...]) -> None:
        """Note a request that expects an answer."""
        polls = code in LONG_POLLS
        if self.opaques is not None and not polls:
            self.opaques.add(opaque)
            return
        where = self._polls if polls else self._requests
        if len(where) < MAX_OWED or opaque in where:
            where[opaque] = (code, resources)

    def settle(self, opaque: int) -> Owing | None:
        """Take out a request that was answered or refused; None if it is not known."""
        if self.opaques is None:
            return self._requests.pop(opaque, None) or self.settle_poll(opaque)
        return NOT_REMEMBERED if self.opaques.discard(opaque) else self.settle_poll(opaque)

    def settle_poll(self, opaque: int) -> Owing | None:
        """Take out a long poll; None if it is not known."""
        return self._polls.pop(opaque, None)
