"""The held requests of one connection, by their tickets: whose they are, until they are resolved or dropped.

What becomes of their bytes is the session's business; when they are resolved is their handler's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog

from limiter.counting.seconds import NOBODY, Sender
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Hold, Request, Side, Ticket
from proxy.deciding.counting import Tally

_log = structlog.get_logger(__name__)


class Tickets:
    """The tickets that one connection waits for.

    Args:
        tally: where requests that are dropped are counted.
        now_ns: the data path's clock.
        sender: whose requests they are.

    Attributes:
        sender: as given; it may be another one as soon as the client has said more of itself.
        ends: the connection ends, or the client's stream has: what is dropped from now on that expects no answer, as
            the client assumes it delivered, is lost.
        lost_messages, lost_bytes: what was lost.
    """

    def __init__(self, tally: Tally, now_ns: Callable[[], int], sender: Sender = NOBODY) -> None:
        self._tally = tally
        self._now_ns = now_ns
        self.sender = sender
        self.ends = False
        self.lost_messages = self.lost_bytes = 0
        #: By the peer that the requests came from, in the order of the wire; by the request itself, as objects differ.
        #: With the time since which it is held.
        self._held: dict[Side, dict[int, tuple[Ticket, Request, int]]] = {}

    def take(self, batch: Batch) -> dict[Ticket, Request]:
        """Wait for the held requests of a batch that was decided and counted; returns them."""
        taken = {
            verdict.ticket: batch.requests[index]
            for index, verdict in sorted(batch.verdicts.items())
            if isinstance(verdict, Hold)
        }
        now_ns = self._now_ns()
        held = self._held.setdefault(batch.side, {})
        held.update((id(request), (ticket, request, now_ns)) for ticket, request in taken.items())
        return taken

    def waiting(self) -> Iterator[tuple[Resource, int]]:
        """Yield the resource of each held message, and since when it is held; credit and pulls hold no message."""
        for held in self._held.values():
            for _, request, since_ns in held.values():
                if not request.most and not request.by_answer:
                    yield request.resources[0], since_ns

    def claim(self, request: Request) -> bool:
        """Wait for a request no longer, since its ticket was resolved; False if nobody waited any more."""
        return bool(self._claim_all((request,)))

    def give_up(self, requests: Iterable[Request]) -> None:
        """Drop the tickets of some held requests, the last first, as ``drop`` does; others have none."""
        self._drop(self._claim_all(requests))

    def pass_on(self, requests: Iterable[Request]) -> None:
        """Drop the tickets of some held requests, likewise, that go on all the same, and are counted so.

        What they cost is not counted here: the session charges it.
        """
        for ticket, request, _ in reversed(self._claim_all(requests)):
            self._tally.passed_on(request, self._now_ns(), self.sender)
            _drop(ticket)

    def lose(self, requests: Iterable[Request]) -> None:
        """Count requests that waited for a held one, and that are not decided any more."""
        self._tally.lost(requests, self._now_ns(), self.sender)
        self._count_lost(requests)

    def drop(self, *sides: Side, refusable: bool = False) -> None:
        """Give up the held requests of these peers, or of both; with ``refusable`` only those that expect an answer.

        Credit is of use to both, so it is given up with either. The last goes first, so that no handler passes on to a
        request what the one before it leaves.
        """
        for side, held in self._held.items():
            ends = not sides or side in sides
            goes = [request for _, request, _ in held.values() if ends or request.most]
            self.give_up([request for request in goes if not refusable or request.refusal == "answered"])

    def _claim_all(self, requests: Iterable[Request]) -> list[tuple[Ticket, Request, int]]:
        claimed = (held.pop(id(request), None) for request in requests for held in self._held.values())
        return [one for one in claimed if one is not None]

    def _drop(self, held: Sequence[tuple[Ticket, Request, int]]) -> None:
        for ticket, request, _ in reversed(held):
            self._tally.dropped(request, self._now_ns(), self.sender)
            self._count_lost(() if request.returns else (request,))
            _drop(ticket)

    def _count_lost(self, requests: Iterable[Request]) -> None:
        for request in requests if self.ends else ():
            if request.refusal != "answered" and not request.consumes and not request.most:
                self.lost_messages += request.messages
                self.lost_bytes += request.size_bytes


def _drop(ticket: Ticket) -> None:
    try:
        ticket.drop()
    except Exception:  # noqa: BLE001 - whatever it is, the other tickets are dropped all the same
        _log.exception("handler failed to drop a held request")
