"""What became of the requests of each resource: plain integers on the data path, read at scrape time.

The number of resources that are told apart is capped, because their names come from clients; the rest is
counted together as ``_other``. Names that an operator's rule spells out are always told apart. A name stays
once it is in; only when the cap is reached does a new one take the place of one that has been silent for long,
whose counts are folded into ``_other``, so that no sum ever falls.

A request is counted once, when it is known what becomes of it: one that is held, when it is resolved or dropped.
Besides, each verdict of a rule is counted for the rule. While somebody takes the traffic of each second, the recording
is told of the same runs of requests.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, NamedTuple

from limiter.counting.recorder import NO_ACCOUNT, NOBODY, Account, Recorder, Sender
from limiter.counting.rejections import DID, OTHER
from limiter.counting.rotation import Rotation
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Group, Hold, Refuse, Request, Shadow, Verdict, Verdicts
from proxy.stats.recording import Recording, Runs, record_dropped, record_resolved
from proxy.stats.snapshot import ENDINGS, RequestVerdict, ResourceCounts, RuleCounts, RuleVerdict

#: Silence after which a name may lose its place to a new one.
_SILENT_NS: Final = 600 * 1_000_000_000
#: Places looked at for each new name once the cap is reached.
_LOOKS: Final = 4
#: Resources summed, or passed over, in one step.
_SUMMED: Final = 64

_VERDICTS: Final = tuple(ending.verdict for ending in ENDINGS)
_OUTCOMES: Final = {ending.verdict: ending.outcome for ending in ENDINGS}


class LastStop(NamedTuple):
    """When something of a resource was last stopped.

    Attributes:
        refused_ns: monotonic time of the last refusal; None if there was none.
        wait_us: the wait that was stated then, in microseconds.
        rule: the name of the rule that refused it.
        held_ns: monotonic time at which something was last held, or let go again; None if nothing was.
    """

    refused_ns: int | None
    wait_us: int
    rule: str
    held_ns: int | None


NEVER: Final = LastStop(None, 0, "", None)
"""Of what nothing was ever stopped."""


@dataclass(slots=True, eq=False)
class _Counts:
    #: Where the recorder added up last what passed, and what a rule had a word with.
    account: Account = NO_ACCOUNT
    judged: Account = NO_ACCOUNT
    requests: dict[RequestVerdict, int] = field(default_factory=lambda: dict.fromkeys(_VERDICTS, 0))
    messages: dict[RequestVerdict, int] = field(default_factory=lambda: dict.fromkeys(_VERDICTS, 0))
    seen_ns: int = 0
    refused_ns: int | None = None
    refused_by: str = ""
    wait_us: int = 0
    held_ns: int | None = None

    def add(self, verdict: RequestVerdict, requests: int, messages: int) -> None:
        self.requests[verdict] += requests
        self.messages[verdict] += messages

    def refused(self, refuse: Refuse, now_ns: int) -> None:
        self.refused_ns, self.refused_by, self.wait_us = now_ns, refuse.rule, refuse.wait_us

    def fold(self, other: "_Counts") -> None:
        for verdict in _VERDICTS:
            self.add(verdict, other.requests[verdict], other.messages[verdict])
        if (other.refused_ns or 0) > (self.refused_ns or 0):
            self.refused_ns, self.refused_by, self.wait_us = other.refused_ns, other.refused_by, other.wait_us
        self.held_ns = max(self.held_ns or 0, other.held_ns or 0) or None

    def copy(self) -> ResourceCounts:
        return ResourceCounts(self.requests.copy(), self.messages.copy())


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
        self._counts: Rotation[Resource, _Counts] = Rotation()
        self._other: dict[str, _Counts] = {}
        self._rules: dict[str, RuleCounts] = {}
        self._recording: Recording | None = None

    @property
    def pinned(self) -> Container[Resource]:
        """What is told apart whatever the cap, at any time."""
        return self._pinned

    def record(self, recording: Recording) -> None:
        """Tell that one, too, from now on."""
        self._recording = recording

    def pin(self, resources: Iterable[Resource]) -> None:
        """Tell these apart from now on, whatever the cap."""
        for resource in resources:
            if resource not in self._pinned and resource.name != OTHER:
                known = resource in self._counts
                self._pinned[resource] = self._counts.pop(resource) if known else _Counts()

    def unpin(self, resources: Iterable[Resource], now_ns: int) -> None:
        """Tell these apart no longer than others; nothing is left of those that were never asked for."""
        for resource in resources:
            counts = self._pinned.pop(resource, None)
            if counts is None or not counts.seen_ns:
                continue
            if len(self._counts) >= self._max_resources:
                self._retire_silent(now_ns)
            if len(self._counts) >= self._max_resources:
                self._other_of(resource.kind).fold(counts)
            else:
                self._counts.place(resource, counts)

    def count(self, batch: Batch, now_ns: int, sender: Sender = NOBODY) -> None:
        """Count a batch whose verdicts are complete. Handlers that were bypassed make ``bypass`` of ``pass``.

        For each request with a Hold, ``resolved`` or ``dropped`` must follow once. ``sender`` is for the recording.
        """
        exempt = batch.connection.exempt
        passed: RequestVerdict = "exempt" if exempt else "bypass" if batch.bypassed else "pass"
        recorder = None if self._recording is None else self._recording.at(now_ns)
        if batch.verdicts:
            runs = None if recorder is None else Runs(recorder, batch, sender, _OUTCOMES[passed])
            for group in batch.groups():
                self._count_judged(group, batch, passed, runs, now_ns)
        else:
            self._count_passed(batch, passed, recorder, sender, now_ns=now_ns)
        if batch.charges:
            self._count_charges(batch, recorder, sender, now_ns)

    def _count_passed(
        self, batch: Batch, passed: RequestVerdict, recorder: Recorder | None, sender: Sender, *, now_ns: int
    ) -> None:
        outcome = _OUTCOMES[passed]
        second = None if recorder is None else recorder.second
        sizes = repeat(0) if recorder is None else batch.sums_bytes()
        for group, size_bytes in zip(batch.groups(), sizes, strict=False):
            requests, messages = len(group.indexes), sum(group.messages)
            for resource in group.resources:
                counts = self._find(resource, now_ns)
                counts.requests[passed] += requests
                counts.messages[passed] += messages
                if recorder is None:
                    continue
                account = counts.account
                if (
                    account.second is not second
                    or account.sender is not sender
                    or account.outcome is not outcome
                    or account.resource is not resource
                ):
                    account = counts.account = recorder.account(resource, sender, outcome)
                sums = account.sums
                sums[0] += requests
                sums[1] += messages
                sums[2] += size_bytes

    def _count_charges(self, batch: Batch, recorder: Recorder | None, sender: Sender, now_ns: int) -> None:
        charged: RequestVerdict = "exempt" if batch.connection.exempt else "pass"
        for charge in batch.charges:
            for resource in charge.resources:
                self._find(resource, now_ns).messages[charged] += charge.messages
            if recorder is not None and (charge.messages or charge.size_bytes):
                recorder.count(charge.resources, (0, charge.messages, charge.size_bytes), _OUTCOMES[charged], sender)

    def resolved(self, request: Request, verdict: Refuse | Shadow | None, now_ns: int, sender: Sender = NOBODY) -> None:
        """Count a request that was held, and now passes, though a shadow rule may say no, or is refused."""
        word: RequestVerdict = "pass"
        if verdict is not None:
            word = "refuse" if isinstance(verdict, Refuse) else "shadow"
            self._count_rule(word, verdict.rule, 1, request.messages)
        self._let_go(request, word, now_ns, verdict if isinstance(verdict, Refuse) else None)
        if self._recording is not None:
            record_resolved(self._recording.at(now_ns), request, verdict, sender)

    def dropped(self, request: Request, now_ns: int, sender: Sender = NOBODY) -> None:
        """Count a request that was held when its client left."""
        self._let_go(request, "drop", now_ns)
        if self._recording is not None:
            record_dropped(self._recording.at(now_ns), request, sender)

    def _let_go(self, request: Request, verdict: RequestVerdict, now_ns: int, refuse: Refuse | None = None) -> None:
        self.held_requests -= 1
        self.held_bytes -= request.size_bytes
        for resource in request.resources:
            counts = self._find(resource, now_ns)
            counts.add(verdict, 1, request.messages)
            counts.held_ns = now_ns
            if refuse is not None:
                counts.refused(refuse, now_ns)

    def _count_judged(self, group: Group, batch: Batch, passed: RequestVerdict, runs: Runs | None, now_ns: int) -> None:
        """Count a group some of whose batch was not simply let pass; what is held is noted, and counts later."""
        for verdict, indexes, messages in _runs(group, batch.verdicts):
            requests = len(indexes)
            if isinstance(verdict, Hold):
                self.held_requests += requests
                self.held_bytes += sum([batch.requests[index].size_bytes for index in indexes])
            if runs is not None:
                runs.begin(group, indexes, messages, verdict)
            self._count_run(group.resources, verdict, requests, messages, passed=passed, runs=runs, now_ns=now_ns)

    def _count_run(
        self,
        resources: Sequence[Resource],
        verdict: Verdict | None,
        requests: int,
        messages: int,
        *,
        passed: RequestVerdict,
        runs: Runs | None,
        now_ns: int,
    ) -> None:
        word = passed
        if isinstance(verdict, Refuse):
            self._count_rule("refuse", verdict.rule, requests, messages)
            for resource in resources:
                counts = self._find(resource, now_ns)
                counts.add("refuse", requests, messages)
                counts.refused(verdict, now_ns)
                if runs is not None:
                    counts.judged = runs.add(resource, counts.judged)
            return
        if isinstance(verdict, Hold):
            self._count_rule("hold", verdict.rule, requests, messages)
            for resource in resources:
                # It takes no place among the names before it is known what becomes of it.
                known = self._counts.get(resource) or self._pinned.get(resource)
                if known is not None:
                    known.held_ns = known.seen_ns = now_ns
                if runs is not None:
                    runs.add(resource)
            return
        if isinstance(verdict, Shadow):
            word = "shadow"
            self._count_rule("shadow", verdict.rule, requests, messages)
        for resource in resources:
            counts = self._find(resource, now_ns)
            counts.add(word, requests, messages)
            if runs is None:
                continue
            if verdict is None:
                counts.account = runs.add(resource, counts.account)
            else:
                counts.judged = runs.add(resource, counts.judged)

    def _count_rule(self, verdict: RuleVerdict, rule: str, requests: int, messages: int) -> None:
        counts = self._rules.get(rule)
        if counts is None:
            # Rules are an operator's, but there may be any number, and a handler may make up names of its own.
            name = rule if len(self._rules) < self._max_resources else OTHER
            counts = self._rules.get(name)
            if counts is None:
                counts = self._rules[name] = RuleCounts(dict.fromkeys(DID, 0), dict.fromkeys(DID, 0))
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
        counts = _Counts()
        self._counts.place(resource, counts)
        return counts

    def _retire_silent(self, now_ns: int) -> None:
        """Look at the names that were looked at longest ago, and fold away the first silent one."""
        for _ in range(min(_LOOKS, len(self._counts))):
            oldest, counts = self._counts.look()
            if now_ns - counts.seen_ns >= _SILENT_NS:
                del self._counts[oldest]
                self._other_of(oldest.kind).fold(counts)
                return

    def _other_of(self, kind: str) -> _Counts:
        counts = self._other.get(kind)
        if counts is None:
            counts = self._other[kind] = _Counts()
        return counts

    def each(self, since_ns: int = 0) -> Iterator[tuple[Resource, ResourceCounts]]:
        """Yield the counts of what was asked for since then, of all if it is 0; see ``steps``."""
        return (found for found in self.steps(since_ns) if found is not None)

    def steps(self, since_ns: int = 0) -> Iterator[tuple[Resource, ResourceCounts] | None]:
        """Do as ``each`` does in steps that are all short: None stands for some that were not asked for.

        Safe while they change between two steps. Each is of the moment at which it is yielded, but those of ``_other``
        are of the start: what is folded into them meanwhile is yielded under its own name, and would count twice.
        """
        others = [
            (Resource(kind, OTHER), counts.copy()) for kind, counts in self._other.items() if counts.seen_ns >= since_ns
        ]
        # References only: a tuple for each of many thousands would take its time.
        named = [(list(names), list(names.values())) for names in (self._pinned, self._counts)]
        for resources, all_counts in named:
            for number, (resource, counts) in enumerate(zip(resources, all_counts, strict=True)):
                if counts.seen_ns >= since_ns:
                    yield resource, counts.copy()
                elif not number % _SUMMED:
                    yield None
        yield from others

    def last_stop(self, resource: Resource) -> LastStop:
        """Return when something of a resource was last stopped, under the name that ``each`` yields."""
        counts = self._counts.get(resource) or self._pinned.get(resource)
        if counts is None and resource.name == OTHER:
            counts = self._other.get(resource.kind)
        if counts is None:
            return NEVER
        return LastStop(counts.refused_ns, counts.wait_us, counts.refused_by, counts.held_ns)

    def rule(self, name: str) -> RuleCounts | None:
        """Return what one rule did; None if it did nothing, or is counted together with others."""
        counts = self._rules.get(name)
        return None if counts is None else RuleCounts(counts.requests.copy(), counts.messages.copy())

    def sums(self) -> Iterator[ResourceCounts]:
        """Yield what adds up to the counts of all resources: so many at a time, at the cost of a few microseconds."""
        everything = [
            counts for all_counts in (self._pinned, self._counts, self._other) for counts in list(all_counts.values())
        ]
        for start in range(0, len(everything), _SUMMED):
            some = everything[start : start + _SUMMED]
            yield ResourceCounts(
                {verdict: sum([counts.requests[verdict] for counts in some]) for verdict in _VERDICTS},
                {verdict: sum([counts.messages[verdict] for counts in some]) for verdict in _VERDICTS},
            )

    def rules(self) -> Iterator[tuple[str, RuleCounts]]:
        """Yield what each rule did, by its name; safe as ``each`` is."""
        for name, counts in list(self._rules.items()):
            yield name, RuleCounts(counts.requests.copy(), counts.messages.copy())


def _runs(group: Group, verdicts: Verdicts) -> Iterator[tuple[Verdict | None, Sequence[int], int]]:
    """Yield verdict, indexes and messages of requests in a row that have the same: one often stands for many."""
    indexes, first, messages = group.indexes, 0, 0
    of_each = [*map(verdicts.get, indexes)]
    run = of_each[0]
    if len(set(map(id, of_each))) == 1:
        yield run, indexes, sum(group.messages)
        return
    for at, (verdict, cost) in enumerate(zip(of_each, group.messages, strict=True)):
        if verdict is not run:
            yield run, indexes[first:at], messages
            run, first, messages = verdict, at, 0
        messages += cost
    yield run, indexes[first:], messages
