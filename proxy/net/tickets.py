"""Tracks a connection's held requests until they are resolved or dropped."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog

from limiter.counting.seconds import NO_SENDER, Sender
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Hold, Request, Side, Ticket
from proxy.deciding.counting import Tally

_log = structlog.get_logger(__name__)


class Tickets:
    """A connection's held requests. After ``ends`` is set, dropped requests that expect no answer count as lost."""

    def __init__(self, tally: Tally, now_ns: Callable[[], int], sender: Sender = NO_SENDER) -> None:
        self._tally = tally
        self._now_ns = now_ns
        self.sender = sender
        self.ends = False
        self.lost_messages = self.lost_bytes = 0
        #: In wire order, keyed by ``id(request)``, with the time at which each request was held.
        self._held: dict[Side, dict[int, tuple[Ticket, Request, int]]] = {}

    def take(self, batch: Batch) -> dict[Ticket, Request]:
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
        """Yield the resource and start time of each held message. Requests for credit and pulls are left out."""
        for held in self._held.values():
            for _, request, since_ns in held.values():
                if not request.most and not request.by_answer:
                    yield request.resources[0], since_ns

    def claim(self, request: Request) -> bool:
        """Remove a resolved request. Return whether it was still held."""
        return bool(self._claim_all((request,)))

    def give_up(self, requests: Iterable[Request]) -> None:
        self._drop(self._claim_all(requests))

    def pass_on(self, requests: Iterable[Request]) -> None:
        """Count held requests as forwarded, and drop their tickets. The session charges for the requests."""
        for ticket, request, _ in reversed(self._claim_all(requests)):
            self._tally.passed_on(request, self._now_ns(), self.sender)
            _drop(ticket)

    def lose(self, requests: Iterable[Request]) -> None:
        """Count ``requests`` as lost. They waited behind a held request and will never be decided."""
        self._tally.lost(requests, self._now_ns(), self.sender)
        self._count_lost(requests)

    def drop(self, *sides: Side, refusable: bool = False) -> None:
        """Drop the held requests from the given peers, or from both if none is given.

        If ``refusable``, drop only requests that expect an answer. Requests for credit need both peers, so they are
        dropped for either one. The newest is dropped first, so that no permits go to requests that are dropped next.
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
    except Exception:  # noqa: BLE001 - the other tickets must still be dropped
        _log.exception("handler failed to drop a held request")
