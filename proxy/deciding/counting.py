"""Counts decisions: runs of requests with one verdict go to the accounts of a data path."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from limiter.counting.accounts import Accounts
from limiter.counting.rejections import Outcome
from limiter.counting.repeats import RefusedIds, Repeats
from limiter.counting.seconds import Judged, Sender
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Group, Hold, Later, Refuse, Request, Shadow, Verdict


class Tally:
    """Counts the batches of all connections."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.sender = accounts.sender  # as the accounts have it
        self.held_requests = 0
        self.held_bytes = 0
        # Repeats of messages that were refused a moment ago, by kind of the resource.
        self.repeated_requests: dict[str, int] = {}
        self.ids = RefusedIds()
        # By identity of each held request for credit: what holds it, and how many messages were counted.
        self._credit: dict[int, tuple[Judged, int]] = {}

    def count(self, batch: Batch, now_ns: int, sender: Sender) -> None:
        """Count a batch with complete verdicts. "admitted" becomes "bypassed" if a handler was bypassed.

        Each request with a Hold needs one ``resolved`` or ``dropped``. One with a Later comes again.
        """
        tell, exempt = self._accounts.count, batch.connection.exempt
        passed: Outcome = "exempt" if exempt else "bypassed" if batch.bypassed else "admitted"
        if batch.asks_credit_alone:
            # Messages on credit are counted, not the credit.
            if batch.verdicts:
                self._count_credit(range(len(batch.requests)), batch, now_ns, sender)
        elif batch.requests:
            self._count_requests(batch, now_ns, sender, passed)
        for charge in batch.charges:
            if charge.counts and (charge.messages or charge.size_bytes):
                what: Outcome = "exempt" if exempt else "admitted"
                tell(now_ns, charge.resources, sender, what, (0, charge.messages, charge.size_bytes))
        for paid in batch.paid:
            tell(now_ns, paid.resources, sender, passed, (paid.requests, paid.messages, paid.size_bytes))

    def _count_requests(self, batch: Batch, now_ns: int, sender: Sender, passed: Outcome) -> None:
        tell = self._accounts.count
        if batch.verdicts:
            for group in batch.groups():
                if group.most:
                    self._count_credit(group.indexes, batch, now_ns, sender)
                    continue
                for verdict, indexes, messages in _runs(group, batch):
                    if isinstance(verdict, Later):
                        continue
                    size_bytes, answers = batch.sums_of(indexes)
                    what = _word(verdict, group.producer_group, answers, passed)
                    tell(now_ns, group.resources, sender, what, (len(indexes), messages, size_bytes))
                    if isinstance(verdict, Hold):
                        self._hold(batch, indexes)
                    else:
                        self._look(batch, group, indexes, now_ns, refused=isinstance(verdict, Refuse))
        else:
            for group in batch.groups():
                if group.most:
                    continue
                size_bytes = sum(batch.size_bytes(group.indexes))
                tell(now_ns, group.resources, sender, passed, (len(group.indexes), sum(group.messages), size_bytes))
                self._look(batch, group, group.indexes, now_ns, refused=False)
        if batch.came_back:
            self._count_waited(batch, now_ns, sender)

    def count_alike(  # noqa: PLR0917 - as the compiled part gives them
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
        """Count requests that one verdict was given for.

        Args:
            now_ns: the time.
            resources: what they are for.
            sender: who sends them.
            refuse: why they are refused; None if they pass.
            producer_group: theirs.
            answers: how many of them expect an answer.
            amount: requests, messages and bytes.
            repeats: those among them; None if nobody has looked.
            passed: the outcome of those that pass.
        """
        what = _word(refuse, producer_group, answers, passed)
        self._accounts.count(now_ns, resources, sender, what, amount)
        if repeats is not None:
            self._count_repeats(resources, repeats, now_ns, refused=refuse is not None)

    def _hold(self, batch: Batch, indexes: Sequence[int]) -> None:
        requests = [batch.requests[index] for index in indexes]
        self.held_requests += len(requests)
        self.held_bytes += sum([request.size_bytes for request in requests])
        if batch.ids is not None:
            for request in requests:
                request.message_id = batch.ids.message_id(request)

    def _look(self, batch: Batch, group: Group, indexes: Sequence[int], now_ns: int, *, refused: bool) -> None:
        if batch.ids is not None and (refused or self._may_repeat(group.resources, now_ns)):
            repeats = batch.repeats(group, indexes, self.ids, now_ns, refused=refused)
            self._count_repeats(group.resources, repeats, now_ns, refused=refused)

    def _look_at_held(self, request: Request, now_ns: int, *, refused: bool) -> None:
        resources, message_id = request.resources, request.message_id
        if not message_id or not (refused or self._may_repeat(resources, now_ns)):
            return
        known, seen = self.ids.see(hash(resources[0]), message_id, now_ns, refused)
        came = (1, request.messages, request.size_bytes) if known else (0, 0, 0)
        self._count_repeats(resources, Repeats(*came, int(seen)), now_ns, refused=refused)

    def _may_repeat(self, resources: Sequence[Resource], now_ns: int) -> bool:
        return len(self.ids) > 0 and self._accounts.looks_for_repeats(resources[0], now_ns)

    def _count_repeats(self, resources: Sequence[Resource], repeats: Repeats, now_ns: int, *, refused: bool) -> None:
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
        """Count a held request that now passes, perhaps despite a shadow rule, or is refused."""
        if request.most:
            # Messages beyond the fewest had to wait as well.
            judged, counted = self._credit[id(request)]
            if request.messages > counted:
                self._accounts.count(now_ns, request.resources, sender, judged, (0, request.messages - counted, 0))
            self._release(request, now_ns)
            return
        answers = 1 if request.refusal == "answered" else 0
        self._let_go(request, _word(verdict, request.producer_group, answers, "admitted"), now_ns, sender)
        self._look_at_held(request, now_ns, refused=isinstance(verdict, Refuse))

    def dropped(self, request: Request, now_ns: int, sender: Sender) -> None:
        """Count a held request whose client left; one that returns is only no longer held."""
        if request.returns or request.most:
            self._release(request, now_ns)
        else:
            self._let_go(request, "dropped", now_ns, sender)
            self._look_at_held(request, now_ns, refused=True)

    def passed_on(self, request: Request, now_ns: int, sender: Sender) -> None:
        """Count a held request that is forwarded all the same; its cost is counted as a Charge."""
        self._release(request, now_ns)
        self._accounts.count(now_ns, request.resources, sender, "admitted", (1, 0, 0))
        self._look_at_held(request, now_ns, refused=False)

    def lost(self, requests: Iterable[Request], now_ns: int, sender: Sender) -> None:
        """Count requests that were given up undecided; one may stand for many."""
        for _, run in groupby(requests, key=id):
            alike = list(run)
            self._count(alike[0], "dropped", now_ns, sender, times=len(alike))

    def _let_go(self, request: Request, what: Outcome | Judged, now_ns: int, sender: Sender) -> None:
        self._count(request, what, now_ns, sender)
        self._release(request, now_ns)

    def _release(self, request: Request, now_ns: int) -> None:
        self.held_requests -= 1
        if request.most:
            del self._credit[id(request)]
        else:
            self.held_bytes -= request.size_bytes
        self._accounts.let_go(now_ns, request.resources)

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


def _runs(group: Group, batch: Batch) -> Iterator[tuple[Verdict | None, Sequence[int], int]]:
    indexes, first, messages = group.indexes, 0, 0
    if len(batch.distinct) == 1 and len(batch.verdicts) == len(batch.requests):
        yield batch.verdicts[indexes[0]], indexes, sum(group.messages)
        return
    of_each = [*map(batch.verdicts.get, indexes)]
    run = of_each[0]
    for at, (verdict, cost) in enumerate(zip(of_each, group.messages, strict=True)):
        if verdict is not run:
            yield run, indexes[first:at], messages
            run, first, messages = verdict, at, 0
        messages += cost
    yield run, indexes[first:], messages
