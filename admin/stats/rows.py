"""The table of limits: which rows are asked for, in which order.

A row is a resource, a scope, a total or a pattern, what it did and what it does.
"""

import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from admin import wire
from admin.common.clock import Clock
from admin.config.rulebook import BUILT_IN
from admin.edits.model import ActiveEdit, LimitEntry
from limiter.counting.rejections import DID
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension
from limiter.rules.rule_set import RuleSet
from proxy.flow.credit import State
from proxy.stats.snapshot import ENDINGS, RequestVerdict, ResourceState, Usage

NS_PER_S = 1_000_000_000


T = TypeVar("T")


def part_in_order(
    items: Sequence[T], key: Callable[[T], Any] | None, offset: int, limit: int, *, descending: bool
) -> Sequence[T]:
    """Return a part of the items in order; equal ones keep the order that they come in.

    Only the first ones are put in order: to sort all of many thousands, no other thread could run for milliseconds.

    Args:
        items: the items.
        key: what to sort by; None keeps the order.
        offset: of the first one that is returned.
        limit: how many are returned at most.
        descending: the largest first.
    """
    end = min(offset + limit, len(items))
    if key is None:
        return (items[::-1] if descending else items)[offset:end]
    return (nlargest if descending else nsmallest)(end, items, key)[offset:]


POINTS: Final = 60
"""Points of a history."""
_MOST: Final = 2**32 - 1
"""What a point can count."""
POINT_S: Final = 5
"""Seconds between two of them."""
NEAR: Final = 0.8
"""The share of a limit from which on it is near."""
WINDOW_S: Final = 10
"""Seconds that the figures of a row are of: rates, what is used, and whether something was refused. Shorter ones jump,
as a limit that is asked for too much refuses all for a second and then lets a second's worth pass at once."""

_VERDICT_OF: Final = {ending.column: ending.verdict for ending in ENDINGS}
VERDICTS: Final = tuple(_VERDICT_OF[column] for column in wire.Verdicts.__struct_fields__)
Counts = tuple[int, ...]
"""In the order of ``wire.Verdicts``: what is shadowed has passed, too."""
NOTHING: Final[Counts] = (0,) * len(VERDICTS)
REFUSED, SHADOWED = VERDICTS.index("refuse"), VERDICTS.index("shadow")
#: What is shadowed is counted as passed already.
_REACHED: Final = tuple(
    VERDICTS.index(ending.verdict) for ending in ENDINGS if ending.reached and ending.verdict != "shadow"
)
_DROPPED: Final = VERDICTS.index("drop")
Ends = tuple[int, int, int]
"""Messages that reached the broker, were refused, and were dropped."""
NO_ENDS: Final[Ends] = (0, 0, 0)
_RULE_VERDICTS: Final = sorted(DID, key=lambda verdict: wire.RuleRates.__struct_fields__.index(DID[verdict]))
_RULE_NOTHING: Final[Counts] = (0,) * len(_RULE_VERDICTS)
_MESSAGES: Final = slice(1, 1 + len(VERDICTS))
_REQUESTS: Final = slice(1 + len(VERDICTS), 1 + 2 * len(VERDICTS))
_RULE: Final = slice(1, 1 + len(_RULE_VERDICTS))
#: Where a rule's count of a verdict is.
_RULE_INDEX: Final = {REFUSED: _RULE_VERDICTS.index("refuse"), SHADOWED: _RULE_VERDICTS.index("shadow")}
_NO_RATES: Final = wire.Verdicts()


class Window(NamedTuple):
    """The time that figures are of: from one look at the data path to another, the last one.

    Attributes:
        start_ns: monotonic time.
        end_ns: monotonic time.
    """

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long it is; never 0."""
        return max((self.end_ns - self.start_ns) / NS_PER_S, 0.001)


def counts_of(counts: Mapping[RequestVerdict, int]) -> Counts:
    """Return counts as they are shown."""
    passed, *others = [counts.get(verdict, 0) for verdict in VERDICTS]
    return (passed + counts.get("shadow", 0), *others)


class Steps:
    """The steps that all histories have in common, from one reading of the counters to the next.

    Attributes:
        written: how many there were since the start.
        until: when the last one ended; ISO 8601.
    """

    def __init__(self) -> None:
        self.written = 0
        self.until = ""
        self._seconds: deque[float] = deque(maxlen=POINTS)
        #: The rules at the end of each.
        self._rules: deque[RuleSet] = deque(maxlen=POINTS)

    def add(self, seconds: float, rules: RuleSet, until: str) -> None:
        """Add the next one: how long it lasted, and the rules in force at its end, which is ``until``."""
        self._seconds.append(round(seconds, 3))
        self._rules.append(rules)
        self.written += 1
        self.until = until

    def history(self, ring: "Ring", totals: Ends, resource: Resource | None = None) -> wire.History:
        """Return a history, with the limits of a resource if it is one's; the totals are those at its end."""
        passed, refused, dropped = (
            tuple(round(count / seconds, 3) for count, seconds in zip(counts, self._seconds, strict=True))
            for counts in ring.read(self.written)
        )
        limits: dict[int, float | None] = {}
        if resource is not None:
            limits = {id(rules): _rate_of(rules, resource) for rules in dict.fromkeys(self._rules)}
        return wire.History(
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
    """Return how many messages per second a resource may have; None if nothing limits them."""
    rule = rules.match(resource)
    limits = rules.limiting(resource) and rule.count == "messages" and not rule.exempt and rule.action != "off"
    return rule.rate_per_s if limits else None


def ends_of(counts: Counts) -> Ends:
    """Return counts by how messages ended."""
    return sum(counts[verdict] for verdict in _REACHED), counts[REFUSED], counts[_DROPPED]


class Ring:
    """How many messages ended in each step of a history, by their end."""

    __slots__ = ("_counts", "written")

    def __init__(self) -> None:
        self._counts = tuple(array("I", bytes(4 * POINTS)) for _ in NO_ENDS)
        self.written = 0

    def write(self, point: int, before: Ends, now: Ends) -> None:
        """Write the next point, which is that of all histories at this time."""
        for counts, was, total in zip(self._counts, before, now, strict=True):
            counts[point % POINTS] = min(max(0, total - was), _MOST)
        self.written += 1

    def read(self, points: int) -> "list[array[int]]":
        """Return the counts, oldest first, if there were so many points since the start."""
        start = points % POINTS
        return [ring[:points] if points < POINTS else ring[start:] + ring[:start] for ring in self._counts]

    @property
    def idle(self) -> bool:
        """Whether nothing happened in all its time."""
        return not any(map(any, self._counts))


def rates(before: Counts, now: Counts, seconds: float) -> wire.Verdicts:
    """Return how much of what came to which end per second."""
    if before == now:
        return _NO_RATES
    return wire.Verdicts(*(round((new - old) / seconds, 2) for old, new in zip(before, now, strict=True)))


def _is_in(at_ns: int, window: Window) -> bool:
    return at_ns > 0 and at_ns >= window.start_ns


def _rule_rates(before: Counts, now: Counts, seconds: float) -> wire.RuleRates:
    return wire.RuleRates(*(round((new - old) / seconds, 2) for old, new in zip(before, now, strict=True)))


@dataclass(slots=True, eq=False)
class RowStats:
    """What is known of one limit and what it limits."""

    kind: str
    name: str
    key: str = field(init=False)
    lower: str = field(init=False)
    #: The limit, if it has a rule of its own.
    entry: LimitEntry | None = None
    seen_ns: int | None = None
    #: Nothing came before the first sample.
    _new: bool = False
    counted: bool = False
    messages: Counts = NOTHING
    point_start: Ends = NO_ENDS
    #: The counts at the beginning of the window and each time that they were others since, one behind the other: when,
    #: messages, requests; of what only has a rule's counts when, and these.
    _records: "array[int]" = field(default_factory=lambda: array("q"))
    #: The rule whose own counts are shown.
    rule: str = ""
    usage: Mapping[Dimension, Usage] = field(default_factory=dict)
    used_ratio: float | None = None
    stored_permits: float | None = None
    open: bool = False
    #: When something was last held, and when something last would have been refused.
    held_ns: int = 0
    shadowed_ns: int = 0
    wait_until_ns: int = 0
    last_refused_ns: int | None = None
    last_refused_rule: str = ""
    #: Times of day that were worked out, by the time.
    _moments: dict[int, str] = field(default_factory=dict)
    last_wait_us: int = 0
    #: How its queues show as stages, and what they hold.
    state: State = "running"
    spooled: int = 0
    waits_since_ns: int | None = None
    ring: Ring | None = None

    def __post_init__(self) -> None:
        self.key, self.lower = f"{self.kind}/{self.name}", self.name.casefold()

    def sample(self, state: ResourceState, window: Window) -> None:
        """Take over what the data path says.

        Args:
            state: of the window's end.
            window: what figures are of from now on.
        """
        first, now_ns = self.seen_ns is None, window.end_ns
        self.seen_ns = now_ns
        if state.counts is not None:
            shadowed = self.messages[SHADOWED]
            self.messages = counts_of(state.counts.messages)
            if first and not self._new:
                # What was there before this row began happened at no known time.
                self.point_start = ends_of(self.messages)
            elif self.messages[SHADOWED] != shadowed:
                self.shadowed_ns = now_ns
            counts = (*self.messages, *counts_of(state.counts.requests))
            self._record(window, counts, from_zero=first and self._new)
            self.counted = True
        elif state.rule:
            did = None if state.rule_counts is None else state.rule_counts.messages
            counts = _RULE_NOTHING if did is None else tuple(did.get(verdict, 0) for verdict in _RULE_VERDICTS)
            from_zero = not self.rule and (not first or self._new)
            if state.rule != self.rule:
                # What another rule did is not what this one did.
                self.rule = state.rule
                del self._records[:]
            self._record(window, counts, from_zero=from_zero)
        self.usage = state.usage
        self.used_ratio = max((usage.last_10s for usage in state.usage.values()), default=None)
        if self.used_ratio is None and state.stored_permits is not None:
            self.used_ratio = 0.0
        self.stored_permits = state.stored_permits
        self.open = state.open
        self.wait_until_ns = now_ns + state.wait_us * 1000 if state.wait_us else 0
        self.last_refused_ns, self.last_wait_us = state.last_refused_ns, state.last_wait_us
        self.last_refused_rule = state.last_refused_rule
        self.held_ns = state.last_held_ns or 0
        self.state, self.spooled, self.waits_since_ns = state.state, state.spooled, state.waits_since_ns
        self.shadowed_ns = max(self.shadowed_ns, state.last_shadowed_ns or 0)

    def _record(self, window: Window, counts: Counts, *, from_zero: bool) -> None:
        records, width = self._records, 1 + len(counts)
        if from_zero:
            records.extend((window.start_ns, *(0,) * len(counts)))
        if not records or tuple(records[1 - width :]) != counts:
            records.extend((window.end_ns, *counts))
        while len(records) > width and records[width] <= window.start_ns:
            del records[:width]

    def begin_at_zero(self) -> None:
        """Take all that the first sample counts for new: the resource was not there before."""
        self._new = True

    def _moved(self, window: Window) -> tuple[Counts, Counts]:
        """Return the record at the window's start, and the last one."""
        records = self._records
        width = _REQUESTS.stop if self.counted else _RULE.stop
        if not records:
            return (0,) * width, (0,) * width
        start = 0
        while start + width < len(records) and records[start + width] <= window.start_ns:
            start += width
        return tuple(records[start : start + width]), tuple(records[-width:])

    def moved(self, verdict: int, window: Window) -> int:
        """Return how many messages came to an end, an index of ``VERDICTS``, in the window."""
        before, now = self._moved(window)
        if self.counted:
            return now[1 + verdict] - before[1 + verdict]
        index = _RULE_INDEX.get(verdict)
        return 0 if index is None else now[1 + index] - before[1 + index]

    def fade(self) -> None:
        """Nothing came for more than a minute."""
        self.usage = {}
        self.state, self.spooled, self.waits_since_ns = "running", 0, None
        del self._records[: -(_REQUESTS.stop if self.counted else _RULE.stop)]
        if self.used_ratio:
            self.used_ratio = 0.0

    def write_point(self, point: int) -> None:
        """Write the next point of the history, if there is anything to tell; ``point`` of all histories were before."""
        before, now = self.point_start, ends_of(self.messages)
        moved = before != now
        if self.ring is None:
            if not moved:
                return
            self.ring = Ring()
        self.ring.write(point, before, now)
        self.point_start = now
        if not moved and self.ring.written % POINTS == 0 and self.ring.idle:
            self.ring = None

    def is_limited(self, window: Window) -> bool:
        """Whether something was refused or held in the window."""
        return _is_in(self.last_refused_ns or 0, window) or self.is_holding(window)

    def is_holding(self, window: Window) -> bool:
        """Whether something was held in the window."""
        return _is_in(self.held_ns, window)

    def is_shadowed(self, window: Window) -> bool:
        """Whether a shadow rule would have refused something in the window."""
        return _is_in(self.shadowed_ns, window)

    @property
    def is_internal(self) -> bool:
        """Whether it is Sluice's own rule, and nothing ever came for it."""
        return self.entry is not None and self.entry.source == BUILT_IN and self.messages == NOTHING

    @property
    def is_near(self) -> bool:
        """Whether the limit is near."""
        return self.used_ratio is not None and self.used_ratio >= NEAR

    @property
    def is_edited(self) -> bool:
        """Whether an edit stands."""
        return self.entry is not None and self.entry.edit is not None

    def figures(self, clock: Clock, window: Window, rule: str) -> wire.LiveFigures | None:
        """Return what it does, or None if it was never asked for.

        Args:
            clock: for the time of day.
            window: what rates and states are of; it ends with the last sample.
            rule: the name of the limit's own rule.
        """
        if self.seen_ns is None:
            return None
        before, now = self._moved(window)
        seconds = window.seconds
        wait_ns = max(self.wait_until_ns - window.end_ns, 0)
        since_ns = self.waits_since_ns
        per_s = rates(before[_MESSAGES], now[_MESSAGES], seconds) if self.counted else None
        by_rule = _rule_rates(before[_RULE], now[_RULE], seconds) if self.rule else None
        stopped = per_s or by_rule
        refused_at, held_at = self._moment(clock, self.last_refused_ns), self._moment(clock, self.held_ns)
        return wire.LiveFigures(
            messages_total=wire.Verdicts(*self.messages) if self.counted else None,
            messages_per_s=per_s,
            requests_per_s=rates(before[_REQUESTS], now[_REQUESTS], seconds) if self.counted else None,
            rule_messages_per_s=by_rule,
            passed_per_s=None if per_s is None else round(per_s.passed + per_s.bypassed + per_s.exempt, 2),
            refused_per_s=None if stopped is None else stopped.refused,
            shadowed_per_s=None if stopped is None else stopped.shadowed,
            used=self.usage,
            used_ratio=self.used_ratio,
            limited=self.is_limited(window),
            holding=self.is_holding(window),
            would_refuse=self.is_shadowed(window),
            near=self.is_near,
            open=self.open and wait_ns > 0,
            wait_s=wait_ns / NS_PER_S,
            stored_permits=None if self.stored_permits is None else round(self.stored_permits, 3),
            last_refused_at=refused_at,
            last_held_at=held_at,
            last_limited_at=max(filter(None, (refused_at, held_at)), default=None),
            last_wait_s=self.last_wait_us / 1e6,
            refused_by=self.last_refused_rule if self.last_refused_rule not in ("", rule) else None,
            state=self.state,
            spooled=self.spooled,
            oldest_wait_s=None if since_ns is None else round(max(window.end_ns - since_ns, 0) / NS_PER_S, 1),
        )

    def _moment(self, clock: Clock, at_ns: int | None) -> str | None:
        if not at_ns:
            return None
        # Worked out once: the two clocks never agree to the millisecond twice.
        if at_ns not in self._moments:
            kept = (self.last_refused_ns, self.held_ns)
            self._moments = {each: text for each, text in self._moments.items() if each in kept}
            self._moments[at_ns] = clock.iso_of(at_ns)
        return self._moments[at_ns]

    def history(self, steps: Steps) -> wire.History | None:
        """Return what it did in the last minutes."""
        return None if self.ring is None else steps.history(self.ring, self.point_start, Resource(self.kind, self.name))

    def row(self, entry: LimitEntry, live: wire.LiveFigures | None, history: wire.History | None) -> wire.Row:
        """Return the row as it is shown."""
        limit = msgspec.structs.asdict(entry)
        return wire.Row(key=self.key, own=self.entry is not None, live=live, history=history, **limit)


_NEVER: Final = ""
#: After every moment that is ever written.
_FOR_GOOD: Final = "~"

_BYPASSED: Final = VERDICTS.index("bypass")


def sort_key(column: str, rules: RuleSet, window: Window, *, descending: bool) -> Callable[[RowStats], Any] | None:
    """Return the key of a column; None is the order that rows have anyway.

    Of equal ones those that were asked for come first and Sluice's own rules last, whatever the direction: nobody
    looks for a default that nothing falls under, and still less for the name of the unreadable.
    """
    key = SORTED_BY[column]
    if key is None:
        return None
    sign = -1 if descending else 1
    return lambda row: (key(row, rules, window), sign * (2 if row.is_internal else row.seen_ns is None))


def _limit(row: RowStats, rules: RuleSet, _: Window) -> float:
    if row.entry is not None:
        rate = row.entry.limit.get("rate")
        return float(rate) if isinstance(rate, int | float) else math.inf
    rate_per_s = rules.match(Resource(row.kind, row.name)).rate_per_s
    return math.inf if rate_per_s is None else rate_per_s


def _rule(row: RowStats, rules: RuleSet, _: Window) -> str:
    return row.entry.rule if row.entry is not None else rules.match(Resource(row.kind, row.name)).name


def _moved(*verdicts: int) -> Callable[[RowStats, RuleSet, Window], int]:
    return lambda row, _, window: sum(row.moved(verdict, window) for verdict in verdicts)


def _edit_of(row: RowStats) -> ActiveEdit | None:
    return row.entry.edit if row.entry is not None else None


SORTED_BY: Final[Mapping[str, Callable[[RowStats, RuleSet, Window], Any] | None]] = {
    "name": None,
    "kind": lambda row, *_: row.kind,
    "limit": _limit,
    "rule": _rule,
    "passed": _moved(*_REACHED),
    "refused": _moved(REFUSED),
    "shadowed": _moved(SHADOWED),
    "bypassed": _moved(_BYPASSED),
    "used": lambda row, *_: -1.0 if row.used_ratio is None else row.used_ratio,
    "wait": lambda row, *_: row.wait_until_ns,
    "last_refused": lambda row, *_: max(row.last_refused_ns or 0, row.held_ns),
    "edited": lambda row, *_: edit.at if (edit := _edit_of(row)) else _NEVER,
    "expires": lambda row, *_: (edit.expires_at or _FOR_GOOD) if (edit := _edit_of(row)) else _FOR_GOOD,
}
"""Key of each column of ``columns.LIMITS`` that has an order; None is the order that rows have anyway."""


# What is asked of the table: which rows, in which order, and which of them.
class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows are asked for.

    Attributes:
        kind: only this kind, for example ``topic``; empty: all kinds.
        name: only the row of exactly this name; empty: all names.
        search: part of the name, case-insensitive.
        filter: ``limited``: refused or held something in the last ten seconds; ``edited`` or ``overridden``: has an
            edit; ``near``: uses at least 80 % of the limit; ``shadowed``: a shadow rule would have refused something.
        sort: the column to sort by.
        order: smallest first, or largest first.
        offset: rows to skip.
        limit: most rows.
        history: include the messages of the last minutes.
    """

    kind: str = ""
    name: str = ""
    search: Annotated[str, msgspec.Meta(max_length=255)] = ""
    filter: wire.Filter | None = None
    sort: wire.LimitColumn = "name"
    order: wire.Order = "asc"
    offset: wire.Offset = 0
    limit: wire.MostRows = wire.DEFAULT_PAGE
    history: bool = True


def in_alphabet(row: RowStats) -> tuple[str, str, str]:
    """Return what the order of names goes by."""
    return row.lower, row.kind, row.name


def wanted(query: Query, window: Window) -> Callable[[RowStats], bool]:
    """Return what tells whether a row is among those asked for."""
    passes: dict[wire.Filter | None, Callable[[RowStats], bool]] = {
        None: lambda _: True,
        "limited": lambda row: row.is_limited(window),
        "edited": lambda row: row.is_edited,
        "overridden": lambda row: row.is_edited,
        "near": lambda row: row.is_near,
        "shadowed": lambda row: row.is_shadowed(window),
    }
    kind, name, search, passes_filter = query.kind, query.name, query.search.casefold(), passes[query.filter]
    return lambda row: (
        (not kind or row.kind == kind) and (not name or row.name == name) and search in row.lower and passes_filter(row)
    )
