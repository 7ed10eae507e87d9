"""Counts verdicts. Requests with the same verdict are counted together."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from limiter.counting.accounts import Accounts
from limiter.counting.rejections import Outcome
from limiter.counting.repeats import RefusedIds, Repeats
from limiter.counting.seconds import Judged, Sender
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Hold, Later, Refuse, Request, Shadow, Verdict


class Tally:
    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.sender = accounts.sender
        self.held_requests = 0
        self.held_bytes = 0
        self.repeated_requests: dict[str, int] = {}
        self.ids = RefusedIds()
        # By id() of each held request for credit: its verdict and the number of messages counted so far.
        self._credit: dict[int, tuple[Judged, int]] = {}

    def count(self, batch: Batch, now_ns: int, sender: Sender) -> None:
        """Count a batch whose verdicts are complete. If it bypassed a handler, requests that pass count as bypassed.

        For each Hold, call exactly one of ``resolved``, ``dropped`` and ``passed_on`` later.
        """
        tell, exempt = self._accounts.count, batch.connection.exempt
        passed: Outcome = "exempt" if exempt else "bypassed" if batch.bypassed else "admitted"
        self._count_requests(batch, now_ns, sender, passed)
        for charge in batch.charges:
            if charge.counts and (charge.messages or charge.size_bytes):
                what: Outcome = "exempt" if exempt else "admitted"
                tell(now_ns, charge.resources, sender, what, (0, charge.messages, charge.size_bytes))
        for paid in batch.paid:
            tell(now_ns, paid.resources, sender, passed, (paid.requests, paid.messages, paid.size_bytes))

    def _count_requests(self, batch: Batch, now_ns: int, sender: Sender, passed: Outcome) -> None:
        ids = batch.ids
        for group in batch.groups:
            if group.request.most:
                # Messages are counted when they are sent, not when credit is granted.
                self._count_credit(group.indexes, batch, now_ns, sender)
                continue
            resources, producer_group = group.request.resources, group.request.producer_group
            for verdict, run in groupby(group.indexes, batch.verdicts.get):
                if isinstance(verdict, Later):
                    continue
                indexes = list(run)
                requests = [batch.requests[index] for index in indexes]
                answers = [request.refusal for request in requests].count("answered")
                messages = sum([request.messages for request in requests])
                amount = len(requests), messages, sum(batch.size_bytes(indexes))
                what = _word(verdict, producer_group, answers, passed)
                self._accounts.count(now_ns, resources, sender, what, amount)
                if isinstance(verdict, Hold):
                    self._hold(batch, requests)
                elif ids is not None:
                    with_ids = ((request, ids.message_id(request)) for request in requests)
                    self._look(resources, with_ids, now_ns, refused=isinstance(verdict, Refuse))
        if batch.came_back:
            self._count_waited(batch, now_ns, sender)

    def count_alike(  # noqa: PLR0917 - as the compiled extension gives them
        self,
        now_ns: int,
        resources: tuple[Resource, ...],
        sender: Sender,
        refuse: Refuse | None,
        producer_group: str,
        answers: int,
        amount: tuple[int, int, int],
        *,
        repeats: Repeats | None,
        passed: Outcome,
    ) -> None:
        """Count requests that have the same verdict.

        ``answers`` is the number of requests that expect an answer. ``amount`` is (requests, messages, bytes).
        """
        what = _word(refuse, producer_group, answers, passed)
        self._accounts.count(now_ns, resources, sender, what, amount)
        if repeats is not None:
            self._count_repeats(resources, repeats, now_ns, refused=refuse is not None)

    def _hold(self, batch: Batch, requests: Sequence[Request]) -> None:
        self.held_requests += len(requests)
        self.held_bytes += sum([request.size_bytes for request in requests])
        if batch.ids is not None:
            for request in requests:
                request.message_id = batch.ids.message_id(request)

    def _check_held(self, request: Request, now_ns: int, *, refused: bool) -> None:
        if request.message_id:
            self._look(request.resources, [(request, request.message_id)], now_ns, refused=refused)

    def _look(
        self, resources: tuple[Resource, ...], with_ids: Iterable[tuple[Request, bytes]], now_ns: int, *, refused: bool
    ) -> None:
        if not refused and not (len(self.ids) > 0 and self._accounts.may_have_repeats(resources[0], now_ns)):
            return
        repeated = messages = size_bytes = identified = 0
        for request, message_id in with_ids:
            if not message_id:
                continue
            known, seen = self.ids.see(hash(resources[0]), message_id, now_ns, refused)
            identified += seen
            if known:
                repeated += 1
                messages += request.messages
                size_bytes += 0 if request.by_answer else request.size_bytes
        self._count_repeats(resources, Repeats(repeated, messages, size_bytes, identified), now_ns, refused=refused)

    def _count_repeats(self, resources: tuple[Resource, ...], repeats: Repeats, now_ns: int, *, refused: bool) -> None:
        if repeats.requests:
            kind = resources[0].kind
            self.repeated_requests[kind] = self.repeated_requests.get(kind, 0) + repeats.requests
        self._accounts.repeat(now_ns, resources, repeats, refused=refused and len(self.ids) > 0)

    def _count_credit(self, indexes: Sequence[int], batch: Batch, now_ns: int, sender: Sender) -> None:
        for index in indexes:
            verdict, request = batch.verdicts.get(index), batch.requests[index]
            if isinstance(verdict, Hold):
                judged = Judged("hold", verdict.rule, request.producer_group)
                self._accounts.count(now_ns, request.resources, sender, judged, (1, request.messages, 0))
                self._credit[id(request)] = (judged, request.messages)
                self.held_requests += 1

    def _count_waited(self, batch: Batch, now_ns: int, sender: Sender) -> None:
        verdicts = batch.verdicts
        for index, request in enumerate(batch.requests):
            if request.since_ns and not isinstance(verdicts.get(index), Hold | Later):
                self._count(request, "held", now_ns, sender)

    def resolved(self, request: Request, verdict: Refuse | Shadow | None, now_ns: int, sender: Sender) -> None:
        """Count a held request that has been resolved. ``verdict`` is None if it passes without a Shadow."""
        if request.most:
            # The minimum is already counted as held. Count the rest of the grant.
            judged, counted = self._credit[id(request)]
            if request.messages > counted:
                self._accounts.count(now_ns, request.resources, sender, judged, (0, request.messages - counted, 0))
            self._release(request, now_ns)
            return
        answers = 1 if request.refusal == "answered" else 0
        self._count_and_release(request, _word(verdict, request.producer_group, answers, "admitted"), now_ns, sender)
        self._check_held(request, now_ns, refused=isinstance(verdict, Refuse))

    def dropped(self, request: Request, now_ns: int, sender: Sender) -> None:
        """Count a held request as dropped, unless it will be submitted again."""
        if request.returns or request.most:
            self._release(request, now_ns)
        else:
            self._count_and_release(request, "dropped", now_ns, sender)
            self._check_held(request, now_ns, refused=True)

    def passed_on(self, request: Request, now_ns: int, sender: Sender) -> None:
        """Count a held request that is forwarded without a decision. Its cost is counted by a Charge."""
        self._release(request, now_ns)
        self._accounts.count(now_ns, request.resources, sender, "admitted", (1, 0, 0))
        self._check_held(request, now_ns, refused=False)

    def lost(self, requests: Iterable[Request], now_ns: int, sender: Sender) -> None:
        """Count requests that were abandoned without a decision. The same object may occur more than once."""
        for _, run in groupby(requests, key=id):
            alike = list(run)
            self._count(alike[0], "dropped", now_ns, sender, times=len(alike))

    def _count_and_release(self, request: Request, what: Outcome | Judged, now_ns: int, sender: Sender) -> None:
        self._count(request, what, now_ns, sender)
        self._release(request, now_ns)

    def _release(self, request: Request, now_ns: int) -> None:
        self.held_requests -= 1
        if request.most:
            del self._credit[id(request)]
        else:
            self.held_bytes -= request.size_bytes
        self._accounts.release(now_ns, request.resources)

    def _count(self, request: Request, what: Outcome | Judged, now_ns: int, sender: Sender, *, times: int = 1) -> None:
        size_bytes = 0 if request.by_answer else request.size_bytes
        amount = (times, times * request.messages, times * size_bytes)
        self._accounts.count(now_ns, request.resources, sender, what, amount)


def _word(verdict: Verdict | None, producer_group: str, answers: int, passed: Outcome) -> Outcome | Judged:
    match verdict:
        case Refuse():
            return Judged("refuse", verdict.rule, producer_group, verdict.wait_us, answers)
        case Hold():
            return Judged("hold", verdict.rule, producer_group)
        case Shadow():
            return Judged("shadow", verdict.rule, producer_group)
    return passed
