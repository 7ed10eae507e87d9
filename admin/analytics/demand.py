"""The demand of one resource: figures for the advice, and the minutes that limits are replayed over.

Percentiles are over *all* observed seconds: one without demand counts as 0. They come from histograms, so memory is
bounded by the number of different values, and are interpolated like SQL's ``percentile_cont``.

Demand is in what the limit counts, messages or requests per second. *Corrected* demand is without the retries of
refused requests (see ``retries``). *Calm* demand is outside refusals: in each minute, before the first refusal and
after the last one. A minute is *loud* if something was refused in it, or would have been by a shadow limit.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from heapq import heappush, heappushpop
from itertools import accumulate
from statistics import correlation, fmean, linear_regression
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from admin.analytics import retries
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S
from admin.common.recommendations import Retries
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, FairBy

MAX_REPLAYED: Final = 7 * DAY_S // MINUTE_S
"""The minutes of a resource kept for replays: those with the busiest seconds. It bounds memory and time."""
LEAST_TREND_DAYS: Final = 4
LEAST_DAY_S: Final = DAY_S // 2
"""A day counts for the trend if this much of it was observed."""
MOST_ASSUMED: Final = 0.2
"""If more than this share of the refused requests had no message id, retries count as assumed."""
NEAR_TIMES: Final = 0.8
"""A second with this share of the limit is near it."""
_WHOLE: Final = 10_000
"""Whole numbers below are kept exactly, all other values with four digits."""
_PERCENTILES: Final = (0.5, 0.95, 0.99, 0.999, 1.0)
WHO: Final[tuple[FairBy, ...]] = ("client", "user", "producer_group")
"""Callers that can have fair shares. Clients first: an address cannot be made up."""
Values = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: ``LimitFields`` of the log."""

    rule: str = ""
    rate_per_s: float | None = None
    burst_s: float = 1.0
    break_s: float = 0.0
    count: str = "messages"
    bytes_per_s: float | None = None
    bytes_burst_s: float = 1.0
    action: str = "reject"
    fair_by: FairBy | None = None
    max_delay_s: float = DEFAULT_MAX_DELAY_S

    @property
    def rate(self) -> float | None:
        """The rate, unless the limit is off."""
        return None if self.action == "off" else self.rate_per_s

    @property
    def bytes_rate(self) -> float | None:
        """The bytes per second, unless the limit is off."""
        return None if self.action == "off" else self.bytes_per_s

    @property
    def limits(self) -> bool:
        """Whether anything is limited."""
        return self.rate is not None or self.bytes_rate is not None


LIMIT_COLUMNS: Final = tuple(each.name for each in fields(Limit))


class Percentiles(NamedTuple):
    """Percentiles of a rate over all observed seconds."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    top: float = 0.0


_NOTHING: Final = Percentiles()


class Known(NamedTuple):
    """What the log has of a sidecar: seconds recorded, in all and by day since 1970, and what is missing."""

    observed_s: int = 0
    lost_records: int = 0
    other: int = 0
    day_s: Mapping[int, int] = {}


class Caller(NamedTuple):
    """A caller and its part of the messages that were refused.

    Attributes:
        fair_by: what kind of caller.
        name: address or name.
        share: its part over the whole time.
        share_then: its part in the seconds in which it was refused itself. Far above ``share``, it came in bursts.
    """

    fair_by: FairBy
    name: str
    share: float
    share_then: float = 0.0


class Storm(NamedTuple):
    """One storm: the callers refused most, and how many were refused, by kind of caller."""

    start_s: int
    end_s: int
    messages: int
    callers: Mapping[FairBy, Sequence[Caller]]
    counts: Mapping[FairBy, int]


@dataclass(frozen=True, slots=True)
class Storms:
    """The refusals of a resource, including those that a shadow limit only counted.

    Attributes:
        messages: refused in all storms.
        top_two_share: the part of the two clients of each storm that were refused most.
        clients: most in one storm.
        own_share: the part that the resource's own limit refused.
        other_rule: the rule that refused most of the rest; empty if none did.
        callers: over all storms, by kind, the largest share first.
        each: the storms, in order of time.
    """

    count: int = 0
    days: int = 0
    messages: int = 0
    top_two_share: float = 0.0
    clients: int = 0
    own_share: float = 1.0
    other_rule: str = ""
    callers: Mapping[FairBy, Sequence[Caller]] = field(default_factory=dict)
    each: Sequence[Storm] = ()

    def most_callers(self, who: FairBy) -> int:
        """Return how many callers were refused in one storm, at most."""
        return max((storm.counts[who] for storm in self.each), default=0)


class Minute(NamedTuple):
    """One minute of a resource; arrays are by second with requests.

    Attributes:
        limit: in force at its end.
        refused_messages: refused and dropped, or counted by a shadow limit.
        shares: the part of each second that is not retries; None is all.
        clients: addresses.
    """

    minute_s: int
    limit: Limit
    refused_messages: int
    second: Ints
    messages: Ints
    requests: Ints
    bytes: Ints
    shares: Values | None = None
    clients: int = 0


@dataclass(slots=True)
class Demand:
    """The demand of one resource, in the unit that its limit counts unless the name says otherwise.

    Attributes:
        limit: in force at the end.
        limit_since_s: since when; None if it never changed.
        limit_s: seconds observed since then.
        active_s: seconds with demand.
        last_s: end of the last minute with demand.
        until_s: end of what is known of the sidecar.
        refused_s: seconds from the first to the last refusal of each minute.
        quiet_s: seconds with calm demand, without those that a shadow limit would have refused in.
        near_s: seconds with at least 80% of the limit and no refusal.
        refused_days: days (UTC) with a loud minute.
        refused_span_s: from the first loud minute to the last.
        refused_messages: refused and dropped, or counted by a shadow limit.
        now_messages: demand under the limit in force.
        now_refused_messages: refused of that.
        before: rates in force before, oldest first: messages asked for and refused under each.
        refusing: corrected demand in the seconds of refusals.
        minute_per_s: mean of the busiest minute, corrected; also of minutes without a refusal (``calm_``), and of those
            that are not loud (``quiet_``).
        size_bytes: corrected bytes per second, where bytes are limited.
        trend_per_week: growth of the daily demand per week, as a share; None if unknown.
        trend_fit: how well a line explains it, 0 to 1.
    """

    instance: str
    kind: str
    name: str
    limit: Limit = Limit()
    limit_since_s: int | None = None
    limit_s: int = 0
    observed_s: int = 0
    days: int = 0
    active_s: int = 0
    last_s: int | None = None
    until_s: int = 0
    refused_s: int = 0
    quiet_s: int = 0
    near_s: int = 0
    refused_days: int = 0
    refused_span_s: int = 0
    requests: int = 0
    messages: int = 0
    refused_messages: int = 0
    now_messages: int = 0
    now_refused_messages: int = 0
    before: Mapping[float | None, tuple[int, int]] = field(default_factory=dict)
    refusing: float = 0.0
    retries: Retries = "none"
    raw: Percentiles = _NOTHING
    corrected: Percentiles = _NOTHING
    calm: Percentiles = _NOTHING
    minute_per_s: float = 0.0
    calm_minute_per_s: float = 0.0
    quiet_minute_per_s: float = 0.0
    size_bytes: Percentiles = _NOTHING
    trend_per_week: float | None = None
    trend_fit: float = 0.0
    storms: Storms = Storms()
    lost_records: int = 0
    other: int = 0

    @property
    def refusing_per_s(self) -> float:
        """Mean corrected demand in the seconds of refusals."""
        return self.refusing / max(1, self.refused_s)


@dataclass(slots=True)
class _Under:
    """The demand under one limit, from ``since_s`` until the next one."""

    limit: Limit
    since_s: int
    messages: int = 0
    refused: int = 0


class Collector:
    """Adds up the minutes of one resource, given in order.

    Args:
        key: instance, kind and name.
        attempts: how often clients try in all, by language.
    """

    def __init__(self, key: Sequence[str], attempts: Mapping[str, int]) -> None:
        self._attempts = attempts
        instance, kind, name = key
        self._demand = Demand(instance, kind, name)
        self._seconds: defaultdict[str, Counter[float]] = defaultdict(Counter)
        self._by_day: defaultdict[int, float] = defaultdict(float)
        self._loud_days: set[int] = set()
        self._loud_s: list[int] = []
        self._under: list[_Under] = []
        self._refused_active_s = self._assumed = self._measured = self._first_s = 0
        self._kept: list[tuple[int, int, Minute]] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Take rows of the table ``minutes``."""
        rows, found = _Rows(batch), self._demand
        messages = rows.admitted + rows.refused
        asked = np.where(rows.counts_requests[rows.row], rows.requests, messages)
        refusing = rows.sums(rows.refused) > 0
        shadowed = rows["shadowed_messages"]
        refused_requests = rows["refused_requests"] + rows["dropped_requests"]
        left = np.ones(len(asked))
        calm = np.ones(len(asked), bool)
        for row in np.flatnonzero(refusing | (refused_requests > 0) | (rows["repeated_messages"] > 0)).tolist():
            part = rows.part(row)
            left[part] = self._shares(rows, row, part, int(refused_requests[row]))
            if refusing[row]:
                self._refused(rows, part, asked, left, calm)
        wanted = asked * left
        self._count("raw", asked[~calm])
        self._count("left", wanted[~calm])
        self._count("calm", wanted[calm])
        self._count("bytes", (rows.bytes * left)[~np.isnan(rows["bytes_per_s"])[rows.row]])
        near = NEAR_TIMES * np.where(rows.are("action", "off"), np.nan, rows["rate_per_s"])[rows.row]
        is_loud = refusing | (shadowed > 0)
        demanded = sum(rows[f"{each}_messages"] for each in _DEMAND)
        refused = rows["refused_messages"] + rows["dropped_messages"] + shadowed
        found.near_s += int(((asked >= near) & (near > 0) & (rows.refused == 0)).sum())
        found.active_s += len(asked)
        found.requests += int(sum(rows[f"{each}_requests"].sum() for each in _DEMAND))
        found.messages += int(demanded.sum())
        found.refused_messages += int(refused.sum())
        found.quiet_s += int(calm[(shadowed == 0)[rows.row]].sum())
        per_s = rows.sums(wanted) / MINUTE_S
        found.minute_per_s = max(found.minute_per_s, per_s.max())
        found.calm_minute_per_s = per_s.max(where=~refusing, initial=found.calm_minute_per_s)
        found.quiet_minute_per_s = per_s.max(where=~is_loud, initial=found.quiet_minute_per_s)
        minute_s = rows["minute_s"]
        for day, its in zip((minute_s // DAY_S).tolist(), per_s.tolist(), strict=True):
            self._by_day[day] += its * MINUTE_S
        loud_s = minute_s[is_loud].tolist()
        self._loud_days.update(each // DAY_S for each in loud_s)
        self._loud_s = [*(self._loud_s or loud_s)[:1], *(loud_s or self._loud_s)[-1:]]
        if found.last_s is None:
            self._first_s = int(minute_s[0])
        found.last_s = int(minute_s[-1]) + MINUTE_S
        tops = rows.tops(asked).tolist()
        totals = zip(demanded.tolist(), refused.tolist(), strict=True)
        for row, (limit, (its, its_refused)) in enumerate(zip(rows.limits(), totals, strict=True)):
            if not self._under or self._under[-1].limit != limit:
                self._under.append(_Under(limit, int(minute_s[row])))
            self._under[-1].messages += its
            self._under[-1].refused += its_refused
            if len(self._kept) < MAX_REPLAYED or tops[row] >= self._kept[0][0]:
                self._keep(tops[row], rows.minute(row, limit, its_refused, left))

    def _shares(self, rows: "_Rows", row: int, part: slice, refused_requests: int) -> Values:
        found = retries.shares(
            rows.admitted[part], rows.refused[part], rows.repeated(row), refused_requests, int(rows["identified"][row]),
            int(rows["busy_answers"][row]), rows.languages(row), self._attempts,
        )  # fmt: skip
        self._measured += found.measured
        self._assumed += found.assumed
        return found.left

    def _refused(self, rows: "_Rows", part: slice, asked: Ints, left: Values, calm: Flags) -> None:
        """Note the seconds from the first to the last refusal of a minute."""
        first, last = np.flatnonzero(rows.refused[part])[[0, -1]].tolist()
        seconds = slice(part.start + first, part.start + last + 1)
        calm[seconds] = False
        self._demand.refused_s += int(rows.second[seconds][-1] - rows.second[seconds][0]) + 1
        self._demand.refusing += float((asked[seconds] * left[seconds]).sum())
        self._refused_active_s += last - first + 1

    def _count(self, name: str, values: Values | Ints) -> None:
        values = np.array(values, float)
        large = (values >= _WHOLE) | (values % 1 != 0)
        digits = 10.0 ** (np.floor(np.log10(np.maximum(values[large], 1e-9))) - 3)
        values[large] = np.round(values[large] / digits) * digits
        found, counts = np.unique(values, return_counts=True)
        self._seconds[name].update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def _keep(self, top: int, minute: Minute) -> None:
        """Keep a minute if it is among those with the busiest seconds."""
        push = heappush if len(self._kept) < MAX_REPLAYED else heappushpop
        push(self._kept, (top, minute.minute_s, minute))

    @property
    def is_empty(self) -> bool:
        """Whether there was no minute."""
        return not self._under

    @property
    def minutes(self) -> list[Minute]:
        """The minutes to be replayed, in order."""
        return sorted((minute for _, _, minute in self._kept), key=lambda minute: minute.minute_s)

    def demand(self, known: Known, until_s: int, storms: Iterable[Mapping[str, Any]]) -> Demand:
        """Return the demand, once all minutes are taken.

        Args:
            known: of the sidecar.
            until_s: the last second known of it.
            storms: rows of the table, of this resource.
        """
        found, seconds, now = self._demand, self._seconds, self._under[-1]
        found.observed_s = max(known.observed_s, found.active_s)
        quiet_s = found.observed_s - found.active_s
        found.raw = percentiles(seconds["calm"] + seconds["raw"], quiet_s)
        found.corrected = percentiles(seconds["calm"] + seconds["left"], quiet_s)
        found.size_bytes = percentiles(seconds["bytes"], quiet_s)
        # Seconds without demand between the refusals of a minute are not calm.
        found.calm = percentiles(seconds["calm"], quiet_s - (found.refused_s - self._refused_active_s))
        before: dict[float | None, tuple[int, int]] = {}
        for each in self._under:
            messages, refused = before.pop(each.limit.rate, (0, 0))
            before[each.limit.rate] = (messages + each.messages, refused + each.refused)
        found.now_messages, found.now_refused_messages = before.pop(now.limit.rate)
        found.before, found.limit, found.limit_s = before, now.limit, found.observed_s
        if before:
            found.limit_since_s, found.limit_s = now.since_s, min(found.observed_s, until_s - now.since_s)
        found.until_s = until_s
        found.days = len([day for day, known_s in known.day_s.items() if known_s])
        found.refused_days = len(self._loud_days)
        found.refused_span_s = self._loud_s[-1] + MINUTE_S - self._loud_s[0] if self._loud_s else 0
        if known_retries := self._measured + self._assumed:
            found.retries = "assumed" if self._assumed > MOST_ASSUMED * known_retries else "measured"
        found.trend_per_week, found.trend_fit = self._trend(known.day_s)
        found.storms = storms_of(storms, now.limit.rule)
        found.lost_records, found.other = known.lost_records, known.other
        return found

    def _trend(self, day_s: Mapping[int, int]) -> tuple[float | None, float]:
        """Return the weekly growth of the daily demand by least squares, as a share, and its fit.

        Every day must have demand. A first or last day on which it began or ended does not count.
        """
        days = sorted(day for day, known_s in day_s.items() if known_s >= LEAST_DAY_S)
        if days and self._first_s > (days[0] + 1) * DAY_S - day_s[days[0]] + HOUR_S:
            days = days[1:]
        if days and (self._demand.last_s or 0) < days[-1] * DAY_S + day_s[days[-1]] - HOUR_S:
            days = days[:-1]
        per_s = [self._by_day.get(day, 0.0) / min(day_s[day], DAY_S) for day in days]
        if len(days) < LEAST_TREND_DAYS or not all(per_s):
            return None, 0.0
        mean = fmean(per_s)
        if max(per_s) - min(per_s) <= 1e-9 * mean:
            return 0.0, 0.0
        return linear_regression(days, per_s).slope * 7 / mean, correlation(days, per_s) ** 2


_DEMAND: Final = ("admitted", "shadowed", "bypassed", "exempt", "refused", "dropped")


class _Rows:
    """Minutes of a batch as columns. Columns by second are one array for all minutes; ``row`` is the minute of each."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        lists = batch.column("second")
        self._starts: Ints = lists.offsets.to_numpy() - lists.offsets[0].as_py()
        self.row: Ints = np.repeat(np.arange(batch.num_rows), np.diff(self._starts))
        self.second, self.admitted, self.refused, self.requests, self.bytes = (
            batch.column(name).flatten().to_numpy()
            for name in ("second", "second_admitted", "second_refused", "second_requests", "second_bytes")
        )
        self.counts_requests: Flags = self.are("count", "requests")
        self._columns: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._columns:
            self._columns[name] = self._batch.column(name).to_numpy(zero_copy_only=False)
        return self._columns[name]

    def are(self, name: str, value: str) -> Flags:
        """Return which rows have this text."""
        found: Flags = np.array(self._batch.column(name).to_pylist()) == value
        return found

    def part(self, row: int) -> slice:
        """Return the seconds of a minute."""
        return slice(int(self._starts[row]), int(self._starts[row + 1]))

    def sums(self, values: Ints | Values) -> Any:
        return np.bincount(self.row, values, self._batch.num_rows)

    def tops(self, values: Ints) -> Ints:
        found = np.zeros(self._batch.num_rows, np.int64)
        np.maximum.at(found, self.row, values)
        return found

    def minute(self, row: int, limit: Limit, refused: int, left: Values) -> Minute:
        """Return a copy of a minute, since a view would keep the whole batch."""
        part = self.part(row)
        shares = None if (left[part] == 1.0).all() else left[part].copy()
        messages = self.admitted[part] + self.refused[part]
        second, requests, size = (each[part].copy() for each in (self.second, self.requests, self.bytes))
        clients = int(self["clients"][row])
        return Minute(int(self["minute_s"][row]), limit, refused, second, messages, requests, size, shares, clients)

    def repeated(self, row: int) -> Ints:
        return np.array(self._batch.column("second_repeated")[row].as_py(), np.int64)

    def languages(self, row: int) -> dict[str, tuple[int, int]]:
        return {
            name: (each["requests"], each["refused"]) for name, each in self._batch.column("languages")[row].as_py()
        }

    def limits(self) -> Iterator[Limit]:
        last, limit = None, Limit()
        for values in zip(*(self._batch.column(name).to_pylist() for name in LIMIT_COLUMNS), strict=True):
            if values != last:
                last, limit = values, Limit(*values)
            yield limit


def percentiles(seconds: Mapping[float, int], zeros: int) -> Percentiles:
    """Return the percentiles of weighted values and a number of zeros; 0 if there are none."""
    values = sorted(seconds)
    # How many values there are below each one.
    ends = list(accumulate((seconds[value] for value in values), initial=max(0, zeros)))

    def value(place: int) -> float:
        at = bisect_right(ends, place)
        return values[at - 1] if at else 0.0

    def percentile(share: float) -> float:
        place = share * (ends[-1] - 1)
        low = int(place)
        first = value(low)
        return first + (place - low) * ((value(low + 1) if place > low else first) - first)

    return Percentiles(*map(percentile, _PERCENTILES)) if ends[-1] else Percentiles()


def storms_of(rows: Iterable[Mapping[str, Any]], rule: str) -> Storms:
    """Add up rows of the table ``storms``, of one resource that ``rule`` limits."""
    found = sorted(rows, key=lambda row: row["start_s"])
    if not found:
        return Storms()
    messages = sum(row["messages"] for row in found)
    by_rule: Counter[str] = Counter()
    for row in found:
        by_rule.update({each["name"]: each["messages"] for each in row["rules"]})
    callers: dict[FairBy, Sequence[Caller]] = {}
    for who in WHO:
        names: Counter[str] = Counter()
        for row in found:
            names.update({each["name"]: each["messages"] for each in row[f"{who}s"]})
        in_order = sorted(names.items(), key=lambda each: (-each[1], each[0]))
        callers[who] = [Caller(who, name, its / max(1, messages)) for name, its in in_order if name]
    total = by_rule.total()
    others = sorted((-its, name) for name, its in by_rule.items() if name != rule)
    return Storms(
        count=len(found),
        days=len({row["start_s"] // DAY_S for row in found}),
        messages=messages,
        top_two_share=sum(each["messages"] for row in found for each in row["clients"][:2]) / max(1, messages),
        clients=max(row["client_count"] for row in found),
        own_share=by_rule[rule] / total if total else 1.0,
        other_rule=others[0][1] if others else "",
        callers=callers,
        each=[_storm(row) for row in found],
    )


def _storm(row: Mapping[str, Any]) -> Storm:
    callers = {
        who: [
            Caller(who, each["name"], each["share"], then)
            for each, then in zip(row[f"{who}s"], row[f"{who}_then"], strict=True)
        ]
        for who in WHO
    }
    return Storm(row["start_s"], row["end_s"], row["messages"], callers, {who: row[f"{who}_count"] for who in WHO})
