"""What became of the requests of each resource: plain integers on the data path, read at scrape time.

The number of resources that are told apart is capped, because their names come from clients; the rest is
counted together as ``_other``. Names that an operator's rule spells out are always told apart. A name stays
once it is in; only when the cap is reached does a new one take the place of one that has been silent for long,
whose counts are folded into ``_other``, so that no sum ever falls.

A request is counted once, when it is known what becomes of it: one that is held, when it is resolved or dropped.
Besides, each verdict of a rule is counted for the rule.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Final, get_args

from limiter.resource import Resource
from proxy.batch import Batch, Group, Hold, Refuse, Request, Shadow, Verdict, Verdicts
from proxy.control import RequestVerdict, ResourceCounts, RuleCounts, RuleVerdict

#: The name under which everything beyond the cap is counted, for each kind.
OTHER: Final = "_other"
#: Silence after which a name may lose its place to a new one.
_SILENT_NS: Final = 600 * 1_000_000_000
#: Places looked at for each new name once the cap is reached.
_LOOKS: Final = 4

_VERDICTS: Final[tuple[RequestVerdict, ...]] = get_args(RequestVerdict)
_RULE_VERDICTS: Final[tuple[RuleVerdict, ...]] = get_args(RuleVerdict)


class _Counts:
    __slots__ = ("messages", "requests", "seen_ns")

    def __init__(self) -> None:
        self.requests: dict[RequestVerdict, int] = dict.fromkeys(_VERDICTS, 0)
        self.messages: dict[RequestVerdict, int] = dict.fromkeys(_VERDICTS, 0)
        self.seen_ns = 0

    def add(self, verdict: RequestVerdict, requests: int, messages: int) -> None:
        self.requests[verdict] += requests
        self.messages[verdict] += messages

    def fold(self, other: "_Counts") -> None:
        for verdict in _VERDICTS:
            self.add(verdict, other.requests[verdict], other.messages[verdict])


class Tally:
    """Counts by resource and verdict, and by rule.

    Args:
        max_resources: how many names are told apart, those of ``pin`` not counted; and how many rules.

    Attributes:
        held_requests: held now.
        held_bytes: their size on the wire.
    """

    def __init__(self, max_resources: int) -> None:
        self.held_requests = 0
        self.held_bytes = 0
        self._max_resources = max_resources
        self._pinned: dict[Resource, _Counts] = {}
        # A plain dict would walk over all that was ever taken from its front to find its first item.
        self._counts: OrderedDict[Resource, _Counts] = OrderedDict()
        self._other: dict[str, _Counts] = {}
        self._rules: dict[str, RuleCounts] = {}

    def pin(self, resources: Collection[Resource]) -> None:
        """Tell these apart from now on, whatever the cap; a name once pinned stays so."""
        for resource in resources:
            if resource not in self._pinned and resource.name != OTHER:
                known = resource in self._counts
                self._pinned[resource] = self._counts.pop(resource) if known else _Counts()

    def count(self, batch: Batch, now_ns: int) -> None:
        """Count a batch whose verdicts are complete. Handlers that were bypassed make ``bypass`` of ``pass``.

        For each request with a Hold, ``resolved`` or ``dropped`` must follow once.
        """
        exempt = batch.connection.exempt
        passed: RequestVerdict = "exempt" if exempt else "bypass" if batch.bypassed else "pass"
        verdicts = batch.verdicts
        for group in batch.groups():
            if verdicts:
                self._count_judged(group, verdicts, batch.requests, passed, now_ns)
                continue
            requests, messages = len(group.indexes), sum(group.messages)
            for resource in group.resources:
                counts = self._find(resource, now_ns)
                counts.requests[passed] += requests
                counts.messages[passed] += messages
        for charge in batch.charges:
            for resource in charge.resources:
                self._find(resource, now_ns).messages["exempt" if exempt else "pass"] += charge.messages

    def resolved(self, request: Request, verdict: Refuse | Shadow | None, now_ns: int) -> None:
        """Count a request that was held, and now passes, though a shadow rule may say no, or is refused."""
        word: RequestVerdict = "pass"
        if verdict is not None:
            word = "refuse" if isinstance(verdict, Refuse) else "shadow"
            self._count_rule(word, verdict.rule, 1, request.messages)
        self._let_go(request, word, now_ns)

    def dropped(self, request: Request, now_ns: int) -> None:
        """Count a request that was held when its client left."""
        self._let_go(request, "drop", now_ns)

    def _let_go(self, request: Request, verdict: RequestVerdict, now_ns: int) -> None:
        self.held_requests -= 1
        self.held_bytes -= request.size_bytes
        for resource in request.resources:
            self._find(resource, now_ns).add(verdict, 1, request.messages)

    def _count_judged(
        self, group: Group, verdicts: Verdicts, wire: Sequence[Request], passed: RequestVerdict, now_ns: int
    ) -> None:
        """Count a group some of whose batch was not simply let pass; what is held is noted, and counts later.

        One verdict often stands for a whole run of requests, so it is looked at once for each run.
        """
        run, requests, messages = verdicts.get(group.indexes[0]), 0, 0
        held = isinstance(run, Hold)
        for index, cost in zip(group.indexes, group.messages, strict=True):
            verdict = verdicts.get(index)
            if verdict is not run:
                self._count_run(group.resources, run, requests, messages, passed=passed, now_ns=now_ns)
                run, requests, messages = verdict, 0, 0
                held = isinstance(run, Hold)
            requests += 1
            messages += cost
            if held:
                self.held_requests += 1
                self.held_bytes += wire[index].size_bytes
        self._count_run(group.resources, run, requests, messages, passed=passed, now_ns=now_ns)

    def _count_run(
        self,
        resources: Sequence[Resource],
        verdict: Verdict | None,
        requests: int,
        messages: int,
        *,
        passed: RequestVerdict,
        now_ns: int,
    ) -> None:
        word = passed
        if isinstance(verdict, Refuse):
            word = "refuse"
            self._count_rule("refuse", verdict.rule, requests, messages)
        elif isinstance(verdict, Hold):
            self._count_rule("hold", verdict.rule, requests, messages)
            return
        elif isinstance(verdict, Shadow):
            word = "shadow"
            self._count_rule("shadow", verdict.rule, requests, messages)
        for resource in resources:
            self._find(resource, now_ns).add(word, requests, messages)

    def _count_rule(self, verdict: RuleVerdict, rule: str, requests: int, messages: int) -> None:
        counts = self._rules.get(rule)
        if counts is None:
            # Rules are an operator's, but there may be any number, and a handler may make up names of its own.
            name = rule if len(self._rules) < self._max_resources else OTHER
            counts = self._rules.get(name)
            if counts is None:
                counts = self._rules[name] = RuleCounts(
                    dict.fromkeys(_RULE_VERDICTS, 0), dict.fromkeys(_RULE_VERDICTS, 0)
                )
        counts.requests[verdict] += requests
        counts.messages[verdict] += messages

    def _find(self, resource: Resource, now_ns: int) -> _Counts:
        counts = self._counts.get(resource) or self._pinned.get(resource) or self._place(resource, now_ns)
        counts.seen_ns = now_ns
        return counts

    def _place(self, resource: Resource, now_ns: int) -> _Counts:
        """Find room for a new name, or the counts it shares with all others of its kind."""
        if resource.name == OTHER:
            # Names come from clients: one that is called so must not hide the counts of the others.
            return self._other_of(resource.kind)
        if len(self._counts) >= self._max_resources:
            self._retire_silent(now_ns)
        if len(self._counts) >= self._max_resources:
            return self._other_of(resource.kind)
        counts = self._counts[resource] = _Counts()
        return counts

    def _retire_silent(self, now_ns: int) -> None:
        """Look at the names that were looked at longest ago, and fold away the first silent one."""
        for _ in range(min(_LOOKS, len(self._counts))):
            oldest, counts = self._counts.popitem(last=False)
            if now_ns - counts.seen_ns >= _SILENT_NS:
                self._other_of(oldest.kind).fold(counts)
                return
            self._counts[oldest] = counts

    def _other_of(self, kind: str) -> _Counts:
        counts = self._other.get(kind)
        if counts is None:
            counts = self._other[kind] = _Counts()
        return counts

    def _all(self) -> Iterator[tuple[tuple[str, str], _Counts]]:
        for named in (self._pinned, self._counts):
            for resource, counts in named.items():
                yield (resource.kind, resource.name), counts
        for kind, counts in self._other.items():
            yield (kind, OTHER), counts

    def snapshot(self) -> dict[tuple[str, str], ResourceCounts]:
        """Return all counts by (kind, name)."""
        return {key: ResourceCounts(dict(counts.requests), dict(counts.messages)) for key, counts in self._all()}

    def rules(self) -> dict[str, RuleCounts]:
        """Return what each rule did, by its name."""
        return {name: RuleCounts(dict(counts.requests), dict(counts.messages)) for name, counts in self._rules.items()}
