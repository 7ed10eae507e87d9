"""One data path's counters: for each resource, each rule and each second.

A *row* holds a resource's counters. The rejection log is written from the amounts added in each second.

Clients choose the names, so the number of rows is bounded. Only some of the names that have a row are *labelled*, that
is, visible. All others appear as ``_other``. A name with a rule of its own always has a row and a label. A new name may
replace one that has been silent for a long time. The old name's counts are added to ``_other``, so that sums never
decrease. Scopes and totals have rows too, but only for the permits spent.

Seconds follow the wall clock. They are recorded only after the first call of ``take``.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from limiter.counting.rejections import (
    DEFAULT_TOLD_APART,
    DID,
    NUMBERS,
    OTHER,
    Outcome,
    RejectionVerdict,
    TrafficSecond,
)
from limiter.counting.repeats import KEPT_NS, Repeats
from limiter.counting.row import HELD, KEPT_S, Amounts, Row, Second
from limiter.counting.seconds import Judged, Sender, Span, Sums
from limiter.rules.resource import SCOPES, TOTAL, Resource
from limiter.rules.rule import DIMENSIONS, UPERMITS_PER_PERMIT, Dimension, Rule

UNCOUNTED: Final = frozenset((*SCOPES, TOTAL))

WINDOWS_S: Final = (1, 10, KEPT_S)

_NS_PER_S: Final = 1_000_000_000
_SILENT_S: Final = 600
_MAX_CHECKS: Final = 4
_MIN_ROWS: Final = 10_000
_MAX_SKIPPED: Final = 64
_JITTER_NS: Final = 5_000_000
"""How far the wall clock may lag behind the monotonic clock at the end of a second."""
_KEPT_SPANS: Final = 60
_KEPT_FULL: Final = 4


class LastStop(NamedTuple):
    refused_ns: int | None  # monotonic
    wait_us: int
    rule: str
    held_ns: int | None


NEVER: Final = LastStop(None, 0, "", None)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """How much of a limit was used in each of three windows. 1.0 is the full limit. Bursts and debts can exceed it.

    At rate 0, usage is 1.0 if there were requests, otherwise 0.

    Attributes:
        last_1s: usage in the last complete second.
        last_10s: usage in the last ten seconds.
        last_60s: usage in the last minute.
    """

    last_1s: float
    last_10s: float
    last_60s: float


RuleSums = Mapping[RejectionVerdict, tuple[int, int]]
"""A rule's (requests, messages), by verdict."""


class _Rows:
    def __init__(self, most: int, silent_s: int) -> None:
        self.most = most
        self.silent_ns = silent_s * _NS_PER_S
        self.rows: dict[Resource, Row] = {}
        self.order: OrderedDict[Resource, Row] = OrderedDict()

    @property
    def full(self) -> bool:
        return len(self.order) >= self.most


class Accounts:
    """Counts outcomes by resource, by rule and by second.

    Args:
        max_labels: maximum number of visible names, not counting pinned ones. Also the maximum number of rules.
        max_keys: maximum number of distinct verdicts per second, see ``Span.judge``.
        max_resources: maximum number of unpinned resources per second in the log.
        wall_ns: returns the nanoseconds since 1970 UTC. If None, monotonic time is used.
    """

    def __init__(
        self,
        max_labels: int = 1000,
        max_keys: int = DEFAULT_TOLD_APART,
        max_resources: int = DEFAULT_TOLD_APART,
        *,
        now_ns: int = 0,
        wall_ns: Callable[[], int] | None = None,
    ) -> None:
        self._max_labels = max_labels
        self._max_keys = max_keys
        self._max_resources = max_resources
        max_rows = max(max_labels, max_resources, _MIN_ROWS)
        self._pinned: set[Resource] = set()
        self._labelled = _Rows(max_labels, _SILENT_S)
        self._unlabelled = _Rows(max_rows, _SILENT_S)
        self._scopes = _Rows(max_rows, KEPT_S)
        self._shared: dict[str, Row] = {}
        self._folded: dict[str, Row] = {}
        self.rules: dict[str, dict[RejectionVerdict, tuple[int, int]]] = {}
        self._stops: dict[Resource, LastStop] = {}
        self._senders: WeakValueDictionary[tuple[str, str, str, str], Sender] = WeakValueDictionary()
        self._wall_ns = wall_ns
        self._ahead_ns = 0 if wall_ns is None else wall_ns() - now_ns
        self._taking = False
        self._finished: list[Span] = []
        self._stepped_s = 0
        at_s = (now_ns + self._ahead_ns) // _NS_PER_S
        self._span = Span(at_s, at_s * _NS_PER_S - self._ahead_ns, 0, Second(0))
        self._ends_ns = self._span.began_ns + _NS_PER_S

    def at(self, now_ns: int) -> Second:
        if now_ns >= self._ends_ns:
            self._turn(now_ns)
        return self._span.second

    def moment(self, now_ns: int) -> tuple[Second, int]:
        return self.at(now_ns), self._ends_ns

    def _turn(self, now_ns: int) -> None:
        span, ahead_ns = self._span, self._ahead_ns
        self._ahead_ns = 0 if self._wall_ns is None else self._wall_ns() - now_ns
        at_s, over_ns = divmod(now_ns + self._ahead_ns, _NS_PER_S)
        if now_ns >= self._ends_ns and at_s == span.at_s and over_ns >= _NS_PER_S - _JITTER_NS:
            at_s += 1
        began_ns = at_s * _NS_PER_S - self._ahead_ns
        number = span.second.number + max(1, 1 + round((began_ns - self._ends_ns) / _NS_PER_S))
        self._ends_ns = began_ns + _NS_PER_S
        if self._taking:
            self._stepped_s += round((self._ahead_ns - ahead_ns) / _NS_PER_S)
            if len(span):
                most = _KEPT_FULL * (self._max_keys + self._max_resources)
                if len(self._finished) >= _KEPT_SPANS or sum(map(len, self._finished)) >= most:
                    span.second.number = number
                    span.seconds = 1 + (now_ns - span.began_ns) // _NS_PER_S
                    return
                self._finished.append(span)
                self._stepped_s -= span.stepped_s
        self._span = Span(at_s, began_ns, self._stepped_s, Second(number))
        if self._unlabelled.rows:
            self._retire_silent(self._labelled, now_ns)

    def take(self, now_ns: int, *, unfinished: bool) -> list[Span]:
        """Return the seconds completed since the last call. If ``unfinished`` is set, include the current second."""
        taken, self._finished = self._finished, []
        if unfinished or not self._taking or now_ns >= self._ends_ns:
            self._turn(now_ns)
        self._taking = True
        taken += self._finished
        self._finished = []
        return taken

    def steps_of(self, taken: Iterable[Span]) -> Iterator[TrafficSecond | None]:
        for span in taken:
            yield from span.steps(self._max_resources, self._pinned)

    def put_back(self, taken: Sequence[Span]) -> None:
        self._finished[:0] = taken

    def row(self, resource: Resource, now_ns: int) -> Row:
        """Return the row of a resource, scope or total. If there is no room for it, return the row shared by its kind.

        The row can be kept until it is ``retired``. A ``shared`` row must be looked up for each use.
        """
        return self._labelled.rows.get(resource) or self._place(resource, now_ns)

    def _place(self, resource: Resource, now_ns: int) -> Row:
        row = self._scopes.rows.get(resource) or self._unlabelled.rows.get(resource)
        if row is not None:
            if resource.kind in UNCOUNTED or self._labelled.full:
                return row
            del self._unlabelled.order[resource]
            self._retire(row, self._unlabelled)
        pinned, rows = resource in self._pinned, self._scopes
        if resource.kind not in UNCOUNTED:
            if self._labelled.full:
                self._retire_silent(self._labelled, now_ns)
            rows = self._unlabelled if self._labelled.full else self._labelled
        if rows.full and not pinned:
            self._retire_silent(rows, now_ns)
        # A client that uses the name ``_other`` must not hide the counts of other names.
        if resource.name == OTHER or (rows.full and not pinned):
            if resource.kind not in self._shared:
                self._shared[resource.kind] = Row(Resource(resource.kind, OTHER), shared=True)
            return self._shared[resource.kind]
        row = rows.rows[resource] = Row(resource)
        row.seen_ns = now_ns
        if not pinned:
            rows.order[resource] = row
        return row

    def _retire_silent(self, rows: _Rows, now_ns: int) -> None:
        """Retire silent rows, but not during a span of multiple seconds, which would keep all their entries."""
        number = self._span.second.number
        for _ in range(min(_MAX_CHECKS, len(rows.order)) if self._span.seconds == 1 else 0):
            resource, row = rows.order.popitem(last=False)
            if now_ns - row.seen_ns >= rows.silent_ns and number - row.spent_in > KEPT_S:
                self._retire(row, rows)
            else:
                rows.order[resource] = row

    def _retire(self, row: Row, rows: _Rows) -> None:
        resource, row.retired = row.resource, True
        del rows.rows[resource]
        folded = self._folded.setdefault(resource.kind, Row(Resource(resource.kind, OTHER)))
        folded.fold(row.totals())
        folded.seen_ns = max(folded.seen_ns, row.seen_ns)
        if rows is self._labelled:
            self._stops.pop(resource, None)

    def pin(self, resources: Iterable[Resource]) -> None:
        """Give resources rows of their own, regardless of bounds. All but scopes and totals are also labelled."""
        for resource in resources:
            if resource.name == OTHER or resource in self._pinned:
                continue
            self._pinned.add(resource)
            for rows in (self._labelled, self._unlabelled, self._scopes):
                rows.order.pop(resource, None)
            if resource.kind not in UNCOUNTED and resource not in self._labelled.rows:
                row = self._unlabelled.rows.get(resource)
                if row is not None:
                    self._retire(row, self._unlabelled)
                self._labelled.rows[resource] = Row(resource)

    def unpin(self, resources: Iterable[Resource]) -> None:
        for resource in self._pinned.intersection(resources):
            self._pinned.discard(resource)
            rows = self._scopes if resource.kind in UNCOUNTED else self._labelled
            row = rows.rows.get(resource)
            if row is not None and row.seen_ns and not rows.full:
                rows.order[resource] = row
            elif row is not None:
                self._retire(row, rows)

    def sender(self, address: str, language: str = "", user: str = "", product: str = "") -> Sender:
        who = (address, language, user, product)
        return self._senders.setdefault(who, Sender(*who))

    def count(
        self, now_ns: int, resources: Iterable[Resource], sender: Sender, what: Outcome | Judged, amount: Sums
    ) -> None:
        """Count an outcome or a verdict for each resource.

        If ``amount`` has 0 requests, it is an additional cost of requests that were counted earlier.
        """
        judged = what if isinstance(what, Judged) else None
        number = NUMBERS[what if not isinstance(what, Judged) else DID[what.verdict]]
        told = 0 if judged is None else judged.told
        second, labelled = self.at(now_ns), self._labelled.rows
        requests, messages, size_bytes = amount
        for resource in resources:
            row = labelled.get(resource) or self._place(resource, now_ns)
            row.add(second, now_ns, sender, number, requests, messages, size_bytes, told)
            if judged is not None:
                if judged.verdict != "shadow":
                    self._stop(resource, now_ns, judged)
                if self._taking:
                    self._span.judge(row.resource, sender, judged, amount, self._max_keys)
        if judged is not None:
            self._count_rule(judged, amount)

    def may_have_repeats(self, resource: Resource, now_ns: int) -> bool:
        return self.row(resource, now_ns).repeats_until_ns > now_ns

    def repeat(self, now_ns: int, resources: Iterable[Resource], repeats: Repeats, *, refused: bool) -> None:
        """Count repeats. If they were ``refused`` too, watch for further repeats."""
        self.at(now_ns)
        for resource in resources:
            row = self.row(resource, now_ns)
            if self._taking and any(repeats):
                self._span.repeat(row.resource, repeats)
            if refused:
                row.repeats_until_ns = now_ns + KEPT_NS

    def _count_rule(self, judged: Judged, amount: Sums) -> None:
        rule = judged.rule
        if rule not in self.rules and len(self.rules) >= self._max_labels:
            rule = OTHER
        sums = self.rules.setdefault(rule, {})
        requests, messages = sums.get(judged.verdict, (0, 0))
        sums[judged.verdict] = (requests + amount[0], messages + amount[1])

    def release(self, now_ns: int, resources: Iterable[Resource]) -> None:
        for resource in resources:
            self._stop(resource, now_ns, None)

    def _stop(self, resource: Resource, now_ns: int, judged: Judged | None) -> None:
        name = resource if resource in self._labelled.rows else Resource(resource.kind, OTHER)
        known = self._stops.get(name, NEVER)
        if judged is not None and judged.verdict == "refuse":
            self._stops[name] = LastStop(now_ns, judged.wait_us, judged.rule, known.held_ns)
        else:
            self._stops[name] = known._replace(held_ns=now_ns)

    def each(self, since_ns: int = 0) -> Iterator[tuple[Resource, Amounts] | None]:
        """Yield each visible name whose counts have changed since ``since_ns``, with its amounts.

        Yields None in between so that the caller can pause. Counts may change while you iterate.
        """
        others: dict[str, Row] = {}
        labelled, unlabelled = list(self._labelled.rows.values()), list(self._unlabelled.rows.values())
        for row in (*self._folded.values(), *self._shared.values()):
            _add(others, row)
        for number, row in enumerate(unlabelled):
            _add(others, row)
            if not number % _MAX_SKIPPED:
                yield None
        for number, row in enumerate(labelled):
            if row.seen_ns >= since_ns:
                found = (row.resource, row.totals())
                yield found if row.resource in self._pinned or _ended(found[1]) else None
            elif not number % _MAX_SKIPPED:
                yield None
        for row in others.values():
            found = (row.resource, row.totals())
            if row.seen_ns >= since_ns and _ended(found[1]):
                yield found

    def last_stop(self, resource: Resource) -> LastStop:
        return self._stops.get(resource, NEVER)

    def spent(self) -> Iterator[Resource]:
        for rows in (self._labelled, self._unlabelled, self._scopes):
            yield from (row.resource for row in list(rows.rows.values()) if row.spent_in >= 0)

    def usage(self, now_ns: int, resource: Resource, rule: Rule, dimension: Dimension) -> Usage | None:
        rows = (self._labelled, self._unlabelled, self._scopes)
        row = next((rows.rows[resource] for rows in rows if resource in rows.rows), None)
        spent = None if row is None else row.used(self.at(now_ns).number, DIMENSIONS.index(dimension))
        return None if spent is None else _usage(spent, rule)

    def scopes(self, since_ns: int) -> Iterator[Resource | None]:
        """Yield scopes and totals that have spent permits since ``since_ns``, and None to let the caller pause."""
        for number, row in enumerate(list(self._scopes.rows.values())):
            silent_s = self._span.second.number - row.spent_in
            if row.spent_in >= 0 and self._ends_ns - silent_s * _NS_PER_S > since_ns:
                yield row.resource
            elif not number % _MAX_SKIPPED:
                yield None


def _add(others: dict[str, Row], row: Row) -> None:
    kind = row.resource.kind
    other = others.setdefault(kind, Row(Resource(kind, OTHER)))
    other.fold(row.totals())
    other.seen_ns = max(other.seen_ns, row.seen_ns)


def _ended(amounts: Amounts) -> bool:
    return any(any(amount) for number, amount in enumerate(amounts) if number != HELD)


def _usage(spent: Sequence[int], rule: Rule) -> Usage:
    shares, rate = [], rule.rate_upermits_per_s
    for window_s in WINDOWS_S:
        asked = [permits for permits in spent[-window_s:] if permits >= 0]
        shares.append(sum(asked) * UPERMITS_PER_PERMIT / (rate * window_s) if rate else float(bool(asked)))
    return Usage(*shares)
