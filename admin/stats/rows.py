"""Keeps and sorts the rows of the limits table: one for each resource, scope, total or pattern."""

import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from admin.common.columns import FILTERS, LIMITS, Filter, LimitColumn, Order, sort_words
from admin.config.rulebook import BUILT_IN
from admin.edits.model import LimitEntry
from admin.wire import DEFAULT_PAGE, History, LiveFigures, MostRows, Offset, Row
from limiter.counting.accounts import Usage
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension
from limiter.rules.rule_set import RuleSet
from proxy.common.clock import Clock
from proxy.stats.snapshot import ENDINGS, ResourceCounts, ResourceState, RuleCounts, Verdicts

NS_PER_S: Final = 1_000_000_000
POINTS: Final = 60
POINT_S: Final = 5
WINDOW_S: Final = 10
"""The period that rates and states cover, in seconds.

In shorter periods, rates would jump: a breaker refuses everything for a second, then admits a second's traffic.
"""
_NEAR: Final = 0.8
#: Usage covers the last minute, so older samples have expired.
_STALE_NS: Final = 62 * NS_PER_S
_MAX_POINT: Final = 2**32 - 1

_COLUMNS: Final = Verdicts.__struct_fields__
_VERDICTS: Final = tuple({ending.column: ending.verdict for ending in ENDINGS}[column] for column in _COLUMNS)
#: Shadowed requests are already included in ``passed``.
_REACHED: Final = tuple(_COLUMNS.index(each.column) for each in ENDINGS if each.reached and each.verdict != "shadow")
_REFUSED, _DROPPED = _COLUMNS.index("refused"), _COLUMNS.index("dropped")
Counts = Sequence[int]
"""Numbers of messages, then of requests, both in the order of ``Verdicts``."""
_NOTHING: Final = (0,) * (2 * len(_COLUMNS))
Ends = tuple[int, int, int]
"""The numbers of messages that reached the broker, were refused, and were dropped."""

T = TypeVar("T")


def part_in_order(
    items: Sequence[T], key: Callable[[T], Any] | None, offset: int, limit: int, *, descending: bool
) -> Sequence[T]:
    """Return a slice of the items in sorted order. Equal items keep their order.

    If ``key`` is None, the items must already be sorted. Items after the slice are not sorted, because sorting many
    thousands would block all threads for milliseconds.
    """
    end = min(offset + limit, len(items))
    if key is None:
        return (items[::-1] if descending else items)[offset:end]
    return (nlargest if descending else nsmallest)(end, items, key)[offset:]


class Window(NamedTuple):
    """The time between two samples, in monotonic nanoseconds."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """The length in seconds, which is never 0."""
        return max((self.end_ns - self.start_ns) / NS_PER_S, 0.001)

    def has(self, at_ns: int | None) -> bool:
        return bool(at_ns) and (at_ns or 0) >= self.start_ns


class Steps:
    """The time steps that all histories share. ``until`` is the end of the last step in ISO 8601."""

    def __init__(self, until: str = "") -> None:
        self.written, self.until = 0, until
        self._seconds: deque[float] = deque(maxlen=POINTS)
        self._rules: deque[RuleSet] = deque(maxlen=POINTS)

    def add(self, seconds: float, rules: RuleSet, until: str) -> None:
        self._seconds.append(round(seconds, 3))
        self._rules.append(rules)
        self.written += 1
        self.until = until

    def history(self, ring: "Sequence[array[int]] | None", totals: Ends, resource: Resource | None = None) -> History:
        """Make a history from ``ring``, with the limits of ``resource`` if given. ``totals`` are the latest counts."""
        if ring is None:
            ring = _new_ring()
        start = 0 if self.written < POINTS else self.written % POINTS
        passed, refused, dropped = (
            tuple(
                round(count / seconds, 3)
                for count, seconds in zip(each[start:] + each[:start], self._seconds, strict=False)
            )
            for each in ring
        )
        limits: dict[int, float | None] = {}
        if resource is not None:
            limits = {id(rules): _rate_of(rules, resource) for rules in dict.fromkeys(self._rules)}
        return History(
            step_s=POINT_S,
            passed=passed,
            refused=refused,
            until=self.until,
            seconds=tuple(self._seconds),
            dropped=dropped,
            limit=tuple(limits[id(rules)] for rules in self._rules) if limits else (),
            totals=totals,
        )


def _rate_of(rules: RuleSet, resource: Resource) -> float | None:
    rule = rules.match(resource)
    limits = rules.limiting(resource) and rule.count == "messages" and not rule.exempt and rule.action != "off"
    return rule.rate_per_s if limits else None


def _new_ring() -> "list[array[int]]":
    return [array("I", bytes(4 * POINTS)) for _ in range(3)]


def _counts(counts: ResourceCounts | RuleCounts | None) -> Counts:
    if counts is None:
        return _NOTHING
    found: list[int] = []
    for each in (counts.messages, counts.requests):
        given: Mapping[Any, int] = each
        passed, *others = [given.get(verdict, 0) for verdict in _VERDICTS]
        found += (passed + given.get("shadow", 0), *others)
    return found


class RowStats:
    """The state of one limit and its traffic, or of all traffic.

    Attributes:
        key: ``KIND/NAME``.
        entry: The limit. None if the name has no rule of its own.
        state: The last sample.
    """

    __slots__ = ("_point", "_records", "_ring", "_seen_ns", "entry", "key", "kind", "lower", "name", "state")

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self.key, self.lower = f"{kind}/{name}", name.casefold()
        self.entry: LimitEntry | None = None
        self.state: ResourceState | None = None
        self._seen_ns = 0
        #: The time and counts at the start of the window, and after each change since then.
        self._records: list[array[int]] = []
        #: The messages in each step of the history, with one array for each item of ``Ends``.
        self._ring: list[array[int]] | None = None
        self._point: Ends = (0, 0, 0)

    def sample(self, state: ResourceState, window: Window, *, is_new: bool) -> None:
        """Add a sample. ``is_new`` means that its counts were all made within the window."""
        before, self.state, self._seen_ns = self.state, state, window.end_ns
        counts = _counts(state.rule_counts if state.counts is None else state.counts)
        records = self._records
        # Counts cannot be compared if the rule has changed, or after a restart.
        if before is not None and (before.rule != state.rule or any(map(int.__gt__, records[-1][1:], counts))):
            records.clear()
            self._point = _ends(counts)
        if before is None and is_new:
            records.append(array("q", (window.start_ns, *_NOTHING)))
        elif before is None:
            self._point = _ends(counts)
        if not records or list(records[-1][1:]) != list(counts):
            records.append(array("q", (window.end_ns, *counts)))
        self.forget(window)

    def forget(self, window: Window) -> None:
        records = self._records
        while len(records) > 1 and records[1][0] <= window.start_ns:
            del records[0]

    def _moved(self, window: Window) -> tuple[Counts, Counts]:
        if not self._records:
            return _NOTHING, _NOTHING
        start = self._records[0]
        for record in self._records:
            if record[0] <= window.start_ns:
                start = record
        return start[1:], self._records[-1][1:]

    def moved(self, column: str, window: Window) -> int:
        """Return how much ``column``, a field of ``Verdicts``, has grown within the window."""
        (before, now), index = self._moved(window), _COLUMNS.index(column)
        return now[index] - before[index]

    def passed(self, window: Window) -> int:
        before, now = self._moved(window)
        return _ends(now)[0] - _ends(before)[0]

    def counted(self) -> tuple[Verdicts, Verdicts]:
        counts = self._records[-1][1:] if self._records else _NOTHING
        return Verdicts(*counts[: len(_COLUMNS)]), Verdicts(*counts[len(_COLUMNS) :])

    def rates(self, window: Window) -> tuple[Verdicts, Verdicts]:
        per_s = [round((new - old) / window.seconds, 2) for old, new in zip(*self._moved(window), strict=True)]
        return Verdicts(*per_s[: len(_COLUMNS)]), Verdicts(*per_s[len(_COLUMNS) :])

    def write_point(self, point: int) -> None:
        if self.state is None or self.state.counts is None:
            return
        before, now = self._point, _ends(self._records[-1][1:])
        if before == now and self._ring is None:
            return
        self._ring = self._ring or _new_ring()
        for counts, old, new in zip(self._ring, before, now, strict=True):
            counts[point % POINTS] = min(new - old, _MAX_POINT)
        self._point = now
        if point % POINTS == 0 and not any(map(any, self._ring)):
            self._ring = None

    def history(self, steps: Steps) -> History | None:
        return None if self._ring is None else steps.history(self._ring, self._point, Resource(self.kind, self.name))

    def all_history(self, steps: Steps) -> History:
        return steps.history(self._ring, self._point)

    def used(self, window: Window) -> Mapping[Dimension, Usage]:
        return {} if self.state is None or window.end_ns - self._seen_ns > _STALE_NS else self.state.usage

    def used_ratio(self, window: Window) -> float | None:
        """Return the share of the limit that was used in the last ten seconds, or None if there is no limit."""
        idle = None if self.state is None or self.state.stored_permits is None else 0.0
        return max((usage.last_10s for usage in self.used(window).values()), default=idle)

    def wait_ns(self, window: Window) -> int:
        return 0 if self.state is None else max(self._seen_ns + self.state.wait_us * 1000 - window.end_ns, 0)

    def is_limited(self, window: Window) -> bool:
        return self.state is not None and (window.has(self.state.last_refused_ns) or self.is_holding(window))

    def is_holding(self, window: Window) -> bool:
        return self.state is not None and window.has(self.state.last_held_ns)

    def is_shadowed(self, window: Window) -> bool:
        return self.state is not None and (
            window.has(self.state.last_shadowed_ns) or self.moved("shadowed", window) > 0
        )

    def is_near(self, window: Window) -> bool:
        return (self.used_ratio(window) or 0) >= _NEAR

    def is_edited(self, _: Window) -> bool:
        return self.entry is not None and self.entry.edit is not None

    @property
    def is_internal(self) -> bool:
        """Whether this is the row of a built-in rule that was never used."""
        return self.entry is not None and self.entry.source == BUILT_IN and self.counted()[0] == Verdicts()

    def figures(self, clock: Clock, window: Window, rule: str) -> LiveFigures | None:
        """Return the figures for the API, or None if the limit was never used. ``rule`` is the name of its rule."""
        state = self.state
        if state is None:
            return None
        messages, requests = self.rates(window)
        is_counted, wait_ns, since_ns = state.counts is not None, self.wait_ns(window), state.waits_since_ns
        stopped = messages if is_counted or state.rule else None
        limited_ns = max(state.last_refused_ns or 0, state.last_held_ns or 0)
        return LiveFigures(
            messages_total=self.counted()[0] if is_counted else None,
            messages_per_s=messages if is_counted else None,
            requests_per_s=requests if is_counted else None,
            used=self.used(window),
            used_ratio=self.used_ratio(window),
            passed_per_s=round(self.passed(window) / window.seconds, 2) if is_counted else None,
            refused_per_s=None if stopped is None else stopped.refused,
            shadowed_per_s=None if stopped is None else stopped.shadowed,
            limited=self.is_limited(window),
            holding=self.is_holding(window),
            would_refuse=self.is_shadowed(window),
            near=self.is_near(window),
            open=state.open and wait_ns > 0,
            wait_s=wait_ns / NS_PER_S,
            stored_permits=None if state.stored_permits is None else round(state.stored_permits, 3),
            last_refused_at=clock.iso_of(state.last_refused_ns) if state.last_refused_ns else None,
            last_limited_at=clock.iso_of(limited_ns) if limited_ns else None,
            last_wait_s=state.last_wait_us / 1e6,
            refused_by=state.last_refused_rule if state.last_refused_rule not in {"", rule} else None,
            state=state.state,
            spooled=state.spooled,
            oldest_wait_s=None if since_ns is None else round(max(window.end_ns - since_ns, 0) / NS_PER_S, 1),
        )

    def row(self, entry: LimitEntry, live: LiveFigures | None, history: History | None) -> Row:
        own = self.entry is not None
        return Row(key=self.key, own=own, live=live, history=history, **msgspec.structs.asdict(entry))


def _ends(counts: Counts) -> Ends:
    return sum(counts[at] for at in _REACHED), counts[_REFUSED], counts[_DROPPED]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the rows to list.

    Attributes:
        kind: kind to list, such as ``topic``. Empty for all kinds.
        name: exact name to list. Empty for all names.
        search: part of the name, case-insensitive.
        sort: column to sort by.
        order: smallest or largest first.
        offset: number of rows to skip.
        limit: maximum number of rows.
        history: whether to include the message rates of the last five minutes.
    """

    kind: str = ""
    name: str = ""
    search: Annotated[str, msgspec.Meta(max_length=255)] = ""
    filter: Annotated[
        Filter | None, msgspec.Meta(description="; ".join(f"`{name}`: {what}" for name, what in FILTERS.items()))
    ] = None
    sort: LimitColumn = "name"
    order: Order = "asc"
    offset: Offset = 0
    limit: MostRows = DEFAULT_PAGE
    history: bool = True

    def wants(self, row: RowStats, window: Window) -> bool:
        return (
            (not self.kind or row.kind == self.kind)
            and (not self.name or row.name == self.name)
            and self.search.casefold() in row.lower
            and (self.filter is None or FILTERED[self.filter](row, window))
        )

    def key(self, rules: RuleSet, window: Window) -> Callable[[RowStats], Any] | None:
        """Return the sort key, or None to sort by name.

        In both directions, rows with equal values are sorted by use: used rows come first, and unused built-in rules
        come last.
        """
        key = SORTED_BY[self.sort]
        if key is None:
            return None
        sign = -1 if self.order == "desc" else 1
        return lambda row: (key(row, rules, window), sign * (2 if row.is_internal else row.state is None))


FILTERED: Final[Mapping[str, Callable[[RowStats, Window], bool]]] = {
    "limited": RowStats.is_limited,
    "edited": RowStats.is_edited,
    "near": RowStats.is_near,
    "shadowed": RowStats.is_shadowed,
}


def in_alphabet(row: RowStats) -> tuple[str, str, str]:
    return row.lower, row.kind, row.name


def _limit(row: RowStats, rules: RuleSet, _: Window) -> float:
    if row.entry is not None:
        rate = row.entry.limit.get("rate")
        return float(rate) if isinstance(rate, int | float) else math.inf
    rate_per_s = rules.match(Resource(row.kind, row.name)).rate_per_s
    return math.inf if rate_per_s is None else rate_per_s


def _rule(row: RowStats, rules: RuleSet, _: Window) -> str:
    return row.entry.rule if row.entry is not None else rules.match(Resource(row.kind, row.name)).name


def _last_limited(row: RowStats, *_: object) -> int:
    return 0 if row.state is None else max(row.state.last_refused_ns or 0, row.state.last_held_ns or 0)


def _edited(row: RowStats, *_: object) -> str:
    return row.entry.edit.at if row.entry is not None and row.entry.edit is not None else ""


def _expires(row: RowStats, *_: object) -> str:
    edit = row.entry.edit if row.entry is not None else None
    # Sorts after every timestamp.
    return (edit and edit.expires_at) or "~"


def _used(row: RowStats, _: RuleSet, window: Window) -> float:
    ratio = row.used_ratio(window)
    return -1.0 if ratio is None else ratio


def _outcome(column: str) -> Callable[[RowStats, RuleSet, Window], int]:
    return lambda row, _, window: row.moved(column, window)


SORTED_BY: Final[Mapping[str, Callable[[RowStats, RuleSet, Window], Any] | None]] = {
    **{column: _outcome(column) for column in sort_words(LIMITS) if column in _COLUMNS},
    "name": None,
    "kind": lambda row, *_: row.kind,
    "limit": _limit,
    "rule": _rule,
    "passed": lambda row, _, window: row.passed(window),
    "used": _used,
    "wait": lambda row, _, window: row.wait_ns(window),
    "last_refused": _last_limited,
    "edited": _edited,
    "expires": _expires,
}
"""The sort key of each sortable column in ``columns.LIMITS``. None sorts by name."""
