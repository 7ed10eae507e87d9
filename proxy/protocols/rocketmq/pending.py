"""What the broker owes a client: the requests that were forwarded and have no answer yet.

A drain must know what is in flight, and an answer is told apart by the request that it belongs to. Nothing
here reads bytes.
"""

from typing import TYPE_CHECKING, Final

from limiter.rules.resource import Resource
from proxy.protocols.rocketmq.wire.codes import RequestCode
from proxy.protocols.rocketmq.wire.reading import HalfSend

if TYPE_CHECKING:
    from sluice_native import Opaques

PendingRequest = tuple[int, tuple[Resource, ...]]
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
#: Requests remembered per connection, long polls counted apart; some 200 bytes each, or 8 to 16 where a scan notes
#: them. Of a client with more in flight a drain does not wait for the others.
MAX_PENDING: Final = 16_384
#: Sends of half messages whose answers are read, per connection; the transactions of others end once the broker asks.
MAX_UNANSWERED_HALVES: Final = 1024

#: A broker's round trip is timed for one request at a time of each connection, and as often as this at most.
_TIMED_EVERY_NS: Final = 10_000_000
#: A request without an answer for so long is timed no longer.
_TIMED_FOR_NS: Final = 60_000_000_000

NOT_REMEMBERED: Final[PendingRequest] = (0, ())
"""Of a request of which only the number was kept."""


class Pending:
    """The requests of one connection that expect an answer, by opaque. Of two with the same one the later counts.

    The sender of a half message may only be believed what its answer says if that is its answer. So once there have
    been two requests with one number at a time, or one whose number is not known, no more answers are taken for those
    to half messages: the broker asks for what is not known of them.

    A request is noted when it is read, before its verdict: until then it is in flight as well. One that is held is
    taken out, and noted again when it goes on.

    Args:
        opaques: where a scan notes the numbers of all but long polls, which is all that a drain needs of them; None
            remembers what each was for as well.

    Attributes:
        opaques: as given.
    """

    __slots__ = ("_ambiguous", "_halves", "_polls", "_requests", "_timed", "_timed_ns", "opaques")

    def __init__(self, opaques: "Opaques | None" = None) -> None:
        self.opaques = opaques
        self._ambiguous = False
        self._requests: dict[int, PendingRequest] = {}
        self._polls: dict[int, PendingRequest] = {}
        #: The request that is timed, and when it was passed, or the last one was.
        self._timed: int | None = None
        self._timed_ns = -_TIMED_EVERY_NS
        #: Sends of half messages, whose answers are read.
        self._halves: dict[int, HalfSend] = {}

    def __len__(self) -> int:
        """Return how many there are, long polls left aside."""
        return len(self._requests) if self.opaques is None else len(self.opaques) + len(self._halves)

    def add(self, opaque: int, code: int, resources: tuple[Resource, ...], half: HalfSend | None = None) -> None:
        """Note a request that expects an answer; ``half`` is what it begins if it sends a half message."""
        polls = code in LONG_POLLS
        apart = half is not None or polls or self.opaques is None
        # What goes into ``opaques`` itself is compared there.
        if opaque in self._polls or opaque in self._halves or (apart and self._is_owed(opaque)):
            self._ambiguous = True
        if half is not None and len(self._halves) < MAX_UNANSWERED_HALVES and not self._is_ambiguous():
            self._halves[opaque] = half
            if self.opaques is not None:
                return
        if self.opaques is not None and not polls:
            self.opaques.add(opaque)
            return
        where = self._polls if polls else self._requests
        if len(where) < MAX_PENDING or opaque in where:
            where[opaque] = (code, resources)
        else:
            self._ambiguous = True

    def add_unknown(self) -> None:
        """Take note of a request that may expect an answer, with whatever number."""
        self._ambiguous = True

    def _is_ambiguous(self) -> bool:
        return self._ambiguous or (self.opaques is not None and self.opaques.ambiguous)

    def may_time(self, now_ns: int) -> bool:
        """Say whether one more request may be timed."""
        return now_ns - self._timed_ns >= (_TIMED_EVERY_NS if self._timed is None else _TIMED_FOR_NS)

    def time(self, opaque: int, now_ns: int) -> None:
        """Time the answer to a request that is passed on now; without effect if none is owed for it."""
        if self._is_owed(opaque):
            self._timed, self._timed_ns = opaque, now_ns

    def timed(self, now_ns: int) -> int | None:
        """Return how long the broker took if it has answered what is timed, in nanoseconds, once; otherwise None."""
        opaque = self._timed
        if opaque is None or self._is_owed(opaque):
            return None
        self._timed = None
        took_ns = now_ns - self._timed_ns
        return took_ns if took_ns <= _TIMED_FOR_NS else None

    def withdrawn(self) -> None:
        """Take note that requests were refused or held: no answer of the broker settles them, so none is timed."""
        if self._timed is not None and not self._is_owed(self._timed):
            self._timed = None

    def _is_owed(self, opaque: int) -> bool:
        return opaque in (self._requests if self.opaques is None else self.opaques)

    def scanned(self) -> None:
        """Take note that scans have put numbers into ``opaques``: which may be those of half messages."""
        if self._halves and self.opaques is not None and not self._ambiguous:
            self._ambiguous = any(opaque in self.opaques for opaque in self._halves)

    def half_of(self, opaque: int) -> HalfSend | None:
        """Return what a request begins that sends a half message, if that is certain. ``settle`` comes next."""
        return self._halves.get(opaque) if self._halves and not self._is_ambiguous() else None

    def settle(self, opaque: int) -> PendingRequest | None:
        """Take out a request that was answered or refused; None if it is not known."""
        if self._halves and self._halves.pop(opaque, None) is not None and self.opaques is not None:
            return NOT_REMEMBERED
        if self.opaques is None:
            return self._requests.pop(opaque, None) or self.settle_poll(opaque)
        return NOT_REMEMBERED if self.opaques.discard(opaque) else self.settle_poll(opaque)

    def settle_poll(self, opaque: int) -> PendingRequest | None:
        """Take out a long poll; None if it is not known."""
        return self._polls.pop(opaque, None)
