"""Forwarded requests that have no answer yet: a drain waits for them, and answers are matched with them."""

from typing import TYPE_CHECKING, Final

from limiter.rules.resource import Resource
from proxy.protocols.rocketmq.wire.codes import RequestCode
from proxy.protocols.rocketmq.wire.reading import HalfSend

if TYPE_CHECKING:
    from sluice_native import Opaques

PendingRequest = tuple[int, tuple[Resource, ...]]
"""A request's code, and its resources if it was limitable."""

# Long polls; a drain does not wait for them.
LONG_POLLS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE.value,
        RequestCode.LITE_PULL_MESSAGE.value,
        RequestCode.POP_MESSAGE.value,
        RequestCode.POP_LITE_MESSAGE.value,
        RequestCode.NOTIFICATION.value,
    }
)
# Requests remembered per connection, long polls counted apart; some 200 bytes each, or 8 to 16 where a scan notes them.
# A drain does not wait for more.
MAX_PENDING: Final = 16_384
# Sends of half messages whose answers are read, per connection; for others the broker asks.
MAX_UNANSWERED_HALVES: Final = 1024

# One request at a time is timed on each connection, at most this often.
_TIMED_EVERY_NS: Final = 10_000_000
# A request is timed no longer than this.
_TIMED_FOR_NS: Final = 60_000_000_000

NOT_REMEMBERED: Final[PendingRequest] = (0, ())
"""A request of which only the number was kept."""


class Pending:
    """The requests of one connection that expect an answer, by opaque. Of two with the same one the later counts.

    The answer to a half message must be certain to be that. So once two requests had one number at a time, or a number
    is not known, answers to half messages are not read any more: the broker asks about those it does not know of.

    A request is added when it is read: it is in flight before its verdict. A held one is taken out, and added again
    when it is forwarded.

    Args:
        opaques: where a scan notes the numbers of all but long polls, enough for a drain; None remembers the requests,
            too.
    """

    __slots__ = ("_ambiguous", "_halves", "_polls", "_requests", "_timed", "_timed_ns", "opaques")

    def __init__(self, opaques: "Opaques | None" = None) -> None:
        self.opaques = opaques
        self._ambiguous = False
        self._requests: dict[int, PendingRequest] = {}
        self._polls: dict[int, PendingRequest] = {}
        # The timed request, and when it, or the last one, was forwarded.
        self._timed: int | None = None
        self._timed_ns = -_TIMED_EVERY_NS
        # Sends of half messages, whose answers are read.
        self._halves: dict[int, HalfSend] = {}

    def __len__(self) -> int:
        return len(self._requests) if self.opaques is None else len(self.opaques) + len(self._halves)

    def add(self, opaque: int, code: int, resources: tuple[Resource, ...], half: HalfSend | None = None) -> None:
        """Add a request that expects an answer; ``half`` is what the send of a half message begins."""
        polls = code in LONG_POLLS
        apart = half is not None or polls or self.opaques is None
        # ``opaques`` finds equal numbers by itself.
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
        """Note that a request may expect an answer with an unknown number."""
        self._ambiguous = True

    def _is_ambiguous(self) -> bool:
        return self._ambiguous or (self.opaques is not None and self.opaques.ambiguous)

    def may_time(self, now_ns: int) -> bool:
        return now_ns - self._timed_ns >= (_TIMED_EVERY_NS if self._timed is None else _TIMED_FOR_NS)

    def time(self, opaque: int, now_ns: int) -> None:
        """Time a request that is forwarded now; without effect if no answer is owed."""
        if self._is_owed(opaque):
            self._timed, self._timed_ns = opaque, now_ns

    def timed(self, now_ns: int) -> int | None:
        """Return once, in nanoseconds, how long the broker took for the timed request; None before."""
        opaque = self._timed
        if opaque is None or self._is_owed(opaque):
            return None
        self._timed = None
        took_ns = now_ns - self._timed_ns
        return took_ns if took_ns <= _TIMED_FOR_NS else None

    def withdrawn(self) -> None:
        """Note that requests were refused or held: the broker's answers do not settle them, so none is timed."""
        if self._timed is not None and not self._is_owed(self._timed):
            self._timed = None

    def _is_owed(self, opaque: int) -> bool:
        return opaque in (self._requests if self.opaques is None else self.opaques)

    def scanned(self) -> None:
        """Note that scans have added numbers to ``opaques``, perhaps those of half messages."""
        if self._halves and self.opaques is not None and not self._ambiguous:
            self._ambiguous = any(opaque in self.opaques for opaque in self._halves)

    def half_of(self, opaque: int) -> HalfSend | None:
        """Return what the send of a half message begins, if its answer is certain. Call ``settle`` next."""
        return self._halves.get(opaque) if self._halves and not self._is_ambiguous() else None

    def settle(self, opaque: int) -> PendingRequest | None:
        """Take out a request that was answered or refused; None if it is not known."""
        if self._halves and self._halves.pop(opaque, None) is not None and self.opaques is not None:
            return NOT_REMEMBERED
        if self.opaques is None:
            return self._requests.pop(opaque, None) or self.settle_poll(opaque)
        return NOT_REMEMBERED if self.opaques.discard(opaque) else self.settle_poll(opaque)

    def settle_poll(self, opaque: int) -> PendingRequest | None:
        return self._polls.pop(opaque, None)
