"""The demand of one resource: figures for the advice, and the minutes that limits are replayed over.

Demand is in what the limit counts, messages or requests per second. *Corrected* demand is without the retries of
refused requests (see ``retries``). *Calm* demand is outside refusals: in each minute, before the first refusal and
after the last one. What a shadow limit would have refused counts as refused.

Percentiles are over *all* observed seconds, also those without demand, and are interpolated like SQL's
``percentile_cont``. Memory is bounded: they come from histograms, and only the busiest minutes are kept.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from statistics import correlation, fmean, linear_regression
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from admin.analytics.retries import left_of
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S
from admin.common.recommendations import Retries
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, FairBy

MAX_REPLAYED: Final = 7 * DAY_S // MINUTE_S
"""The minutes of a resource kept for replays: those with the busiest seconds."""
LEAST_TREND_DAYS: Final = 4
LEAST_DAY_S: Final = DAY_S // 2
"""A day counts for the trend if this much of it was observed."""
SILENT_SHARE: Final = 0.01
"""A day with less than this share of the busiest day's demand is silent."""
GONE_DAYS: Final = 2
"""A resource with this many silent days at the end may be gone."""
MOST_ASSUMED: Final = 0.2
"""If more than this share of the refused requests had no message id, retries count as assumed."""
_WHOLE: Final = 10_000
"""Whole numbers below are kept exactly, all other values with four digits."""
WHO: Final[tuple[FairBy, ...]] = ("client", "user", "producer_group")
"""Callers that can have fair shares. Clients first: an address cannot be made up."""
_DEMAND: Final = ("admitted", "shadowed", "bypassed", "exempt", "refused", "dropped")
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


LIMIT_COLUMNS: Final = tuple(each.name for each in fields(Limit))


class Known(NamedTuple):
    """What the log has of a sidecar: seconds recorded, in all and by day since 1970, and what is missing."""

    observed_s: int = 0
    lost_records: int = 0
    other: int = 0
    day_s: Mapping[int, int] = {}


class Caller(NamedTuple):
    """A caller and its part of the messages that were refused.

    ``share`` is its part over the whole time, ``share_then`` that in the seconds in which it was refused itself. If
    that is far larger, it came in bursts.
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
    """The refusals of a resource.

    Attributes:
        days: days on which a storm began.
        messages: refused in all storms.
        top_two_share: the part of the two clients of each storm that were refused most.
        clients: most in one storm.
        own_share: the part that limits of the resource itself refused.
        other_rule: the rule that refused most of the rest; empty if there is no rest.
        callers: over all storms, by kind, the largest share first.
        each: the storms, in order of time.
    """

    days: int = 0
    messages: int = 0
    top_two_share: float = 0.0
    clients: int = 0
    own_share: float = 1.0
    other_rule: str = ""
    callers: Mapping[FairBy, Sequence[Caller]] = field(default_factory=dict)
    each: Sequence[Storm] = ()


class Minutes(NamedTuple):
    """Minutes of one resource in order, as columns: the first six by minute, the others by second with requests.

    ``under`` numbers the limit in force, ``seconds`` is how many seconds follow, ``top`` the largest of them.
    ``clients`` are addresses. ``left`` is the part of a second that is not retries.
    """

    minute_s: Ints
    under: Ints
    refused_messages: Ints
    clients: Ints
    seconds: Ints
    top: Ints
    at_s: Ints
    messages: Ints
    requests: Ints
    bytes: Ints
    left: NDArray[np.float32]

    def at(self, flags: Flags) -> "Minutes":
        """Return some of the minutes."""
        inside = np.repeat(flags, self.seconds)
        columns: Iterable[Any] = self
        return Minutes(*(each[flags if place < _BY_MINUTE else inside] for place, each in enumerate(columns)))


_BY_MINUTE: Final = 6


@dataclass(slots=True)
class Demand:
    """The demand of one resource, in the unit that its limit counts unless the name says otherwise.

    Attributes:
        limit: in force at the end.
        limit_since_s: since when; None if it never changed.
        limit_s: seconds observed since then.
        active_s: seconds with demand.
        last_s: end of the last minute with demand.
        gone_since_s: there has been no demand for days, and longer than is usual; None if there has.
        refused_s: seconds from the first to the last refusal of each minute.
        quiet_s: seconds with calm demand.
        refused_days: days (UTC) with refusals.
        refused_span_s: from the first minute with refusals to the last.
        refused_messages: refused and dropped, or counted by a shadow limit.
        held_messages: waited for their permits.
        now_messages: demand under the limit in force.
        now_refused_messages: refused of that.
        before: rates in force before, oldest first: messages asked for and refused under each.
        refusing_per_s: mean corrected demand in the seconds of refusals.
        raw_p99: 99th percentile of the demand; also corrected, calm, and of the bytes where these are limited.
        raw_top: the busiest second.
        minute_per_s: mean of the busiest minute, corrected; also of minutes without a refusal (``calm_``).
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
    last_s: int = 0
    gone_since_s: int | None = None
    refused_s: int = 0
    quiet_s: int = 0
    refused_days: int = 0
    refused_span_s: int = 0
    requests: int = 0
    messages: int = 0
    refused_messages: int = 0
    held_messages: int = 0
    now_messages: int = 0
    now_refused_messages: int = 0
    before: Mapping[float | None, tuple[int, int]] = field(default_factory=dict)
    refusing_per_s: float = 0.0
    retries: Retries = "none"
    raw_p99: float = 0.0
    raw_top: float = 0.0
    corrected_p99: float = 0.0
    corrected_top: float = 0.0
    calm_p99: float = 0.0
    bytes_p99: float = 0.0
    minute_per_s: float = 0.0
    calm_minute_per_s: float = 0.0
    trend_per_week: float | None = None
    trend_fit: float = 0.0
    storms: Storms = Storms()
    lost_records: int = 0
    other: int = 0


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
        self._by_day: Counter[int] = Counter()
        self._refused_minutes: set[int] = set()
        self._under: list[_Under] = []
        self._refusing = 0.0
        self._refused_active_s = self._assumed = self._measured = self._first_s = 0
        self._kept: list[Minutes] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Take rows of the table ``minutes``."""
        rows, found = _Rows(batch), self._demand
        minute_s, row = rows["minute_s"], rows.row
        messages = rows.seconds("admitted") + rows.seconds("refused")
        refused = rows.seconds("refused") + rows.seconds("shadowed")
        asked = np.where(rows.are("count", "requests")[row], rows.seconds("requests"), messages)
        left, measured, assumed = left_of(rows, self._attempts)
        self._measured += measured
        self._assumed += assumed
        calm = self._calm(rows, refused)
        wanted = asked * left
        self._count("raw", asked[~calm])
        self._count("left", wanted[~calm])
        self._count("calm", wanted[calm])
        self._count("bytes", (rows.seconds("bytes") * left)[~np.isnan(rows["bytes_per_s"])[row]])
        self._refusing += float(wanted[~calm].sum())
        refused_messages = rows["refused_messages"] + rows["dropped_messages"] + rows["shadowed_messages"]
        demanded = sum(rows[f"{each}_messages"] for each in _DEMAND)
        found.active_s += len(asked)
        found.quiet_s += int(calm.sum())
        found.requests += int(sum(rows[f"{each}_requests"].sum() for each in _DEMAND))
        found.messages += int(demanded.sum())
        found.refused_messages += int(refused_messages.sum())
        found.held_messages += int(rows["held_messages"].sum())
        per_s = np.bincount(row, wanted, len(minute_s)) / MINUTE_S
        is_refused = np.bincount(row, refused, len(minute_s)) > 0
        found.minute_per_s = max(found.minute_per_s, per_s.max())
        found.calm_minute_per_s = per_s.max(where=~is_refused, initial=found.calm_minute_per_s)
        for day, its in zip((minute_s // DAY_S).tolist(), per_s.tolist(), strict=True):
            self._by_day[day] += its * MINUTE_S
        self._refused_minutes.update(minute_s[is_refused].tolist())
        self._first_s = self._first_s or int(minute_s[0])
        found.last_s = int(minute_s[-1]) + MINUTE_S
        under = np.zeros(len(minute_s), np.int64)
        for begin, end, limit in rows.limits():
            if not self._under or self._under[-1].limit != limit:
                self._under.append(_Under(limit, int(minute_s[begin])))
            self._under[-1].messages += int(demanded[begin:end].sum())
            self._under[-1].refused += int(refused_messages[begin:end].sum())
            under[begin:end] = len(self._under) - 1
        top = np.zeros(len(minute_s), np.int64)
        np.maximum.at(top, row, asked)
        at_s = minute_s[row] + rows.seconds("second")
        self._kept.append(
            Minutes(minute_s, under, refused_messages, rows["clients"], np.bincount(row, minlength=len(minute_s)), top,
                at_s, messages, rows.seconds("requests"), rows.seconds("bytes"), left.astype(np.float32))
        )  # fmt: skip
        if sum(len(each.minute_s) for each in self._kept) > 2 * MAX_REPLAYED:
            self._kept = [self.minutes]

    def _calm(self, rows: "_Rows", refused: Ints) -> Flags:
        """Return which seconds are not between the first and the last refusal of a minute."""
        hits = np.flatnonzero(refused)
        _, begins = np.unique(rows.row[hits], return_index=True)
        first, last = hits[begins], hits[np.append(begins[1:], len(hits)) - 1] if len(hits) else hits
        second = rows.seconds("second")
        self._demand.refused_s += int((second[last] - second[first] + 1).sum())
        self._refused_active_s += int((last - first + 1).sum())
        change = np.zeros(len(refused) + 1, np.int64)
        change[first] += 1
        change[last + 1] -= 1
        return np.asarray(np.cumsum(change)[:-1] == 0)

    def _count(self, name: str, values: Values | Ints) -> None:
        values = np.array(values, float)
        large = (values >= _WHOLE) | (values % 1 != 0)
        digits = 10.0 ** (np.floor(np.log10(np.maximum(values[large], 1e-9))) - 3)
        values[large] = np.round(values[large] / digits) * digits
        found, counts = np.unique(values, return_counts=True)
        self._seconds[name].update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    @property
    def is_empty(self) -> bool:
        """Whether there was no minute."""
        return not self._under

    @property
    def minutes(self) -> Minutes:
        """The minutes to be replayed."""
        found = Minutes(*map(np.concatenate, zip(*self._kept, strict=True)))
        if len(found.minute_s) <= MAX_REPLAYED:
            return found
        flags = np.zeros(len(found.minute_s), bool)
        flags[np.lexsort((found.minute_s, found.top))[-MAX_REPLAYED:]] = True
        return found.at(flags)

    def demand(self, known: Known, until_s: int, storms: Iterable[Mapping[str, Any]]) -> Demand:
        """Return the demand, once all minutes are taken.

        Args:
            known: of the sidecar.
            until_s: the last second known of it.
            storms: rows of the table, of this resource.
        """
        found, seconds, now = self._demand, self._seconds, self._under[-1]
        found.observed_s = max(known.observed_s, found.active_s)
        idle_s = found.observed_s - found.active_s
        raw, corrected, calm = seconds["calm"] + seconds["raw"], seconds["calm"] + seconds["left"], seconds["calm"]
        found.raw_p99, found.corrected_p99 = p99(raw, idle_s), p99(corrected, idle_s)
        # Seconds without demand between the refusals of a minute are not calm.
        found.calm_p99 = p99(calm, idle_s - (found.refused_s - self._refused_active_s))
        found.bytes_p99 = p99(seconds["bytes"], idle_s)
        found.raw_top, found.corrected_top = max(raw, default=0.0), max(corrected, default=0.0)
        found.refusing_per_s = self._refusing / max(1, found.refused_s)
        before: dict[float | None, tuple[int, int]] = {}
        for each in self._under:
            messages, refused = before.pop(each.limit.rate, (0, 0))
            before[each.limit.rate] = (messages + each.messages, refused + each.refused)
        found.now_messages, found.now_refused_messages = before.pop(now.limit.rate)
        found.before, found.limit, found.limit_s = before, now.limit, found.observed_s
        if before:
            found.limit_since_s, found.limit_s = now.since_s, min(found.observed_s, until_s - now.since_s)
        found.days = len([day for day, known_s in known.day_s.items() if known_s])
        refused_minutes = self._refused_minutes
        found.refused_days = len({each // DAY_S for each in refused_minutes})
        if refused_minutes:
            found.refused_span_s = max(refused_minutes) + MINUTE_S - min(refused_minutes)
        if known_retries := self._measured + self._assumed:
            found.retries = "assumed" if self._assumed > MOST_ASSUMED * known_retries else "measured"
        days = sorted(day for day, known_s in known.day_s.items() if known_s >= LEAST_DAY_S)
        found.gone_since_s = self._gone_since_s(days)
        found.trend_per_week, found.trend_fit = self._trend(days, known.day_s)
        found.storms = storms_of(storms, {each.limit.rule for each in self._under})
        found.lost_records, found.other = known.lost_records, known.other
        return found

    def _gone_since_s(self, days: Sequence[int]) -> int | None:
        """Compare the days without demand at the end with those before, such as weekends."""
        least = max(1e-9, SILENT_SHARE * max(self._by_day.values()))
        places = [place for place, day in enumerate(days) if self._by_day[day] >= least]
        if not places:
            return None
        silent = len(days) - 1 - places[-1]
        usual = max((after - before - 1 for before, after in pairwise(places)), default=0)
        if silent < max(GONE_DAYS, 1.5 * usual):
            return None
        return min(self._demand.last_s, (days[places[-1]] + 1) * DAY_S)

    def _trend(self, days: Sequence[int], day_s: Mapping[int, int]) -> tuple[float | None, float]:
        """Return the weekly growth of the daily demand by least squares, as a share, and its fit.

        Every day must have demand. A first or last day on which it began or ended does not count.
        """
        if days and self._first_s > (days[0] + 1) * DAY_S - day_s[days[0]] + HOUR_S:
            days = days[1:]
        if days and self._demand.last_s < days[-1] * DAY_S + day_s[days[-1]] - HOUR_S:
            days = days[:-1]
        per_s = [self._by_day[day] / min(day_s[day], DAY_S) for day in days]
        if len(days) < LEAST_TREND_DAYS or min(per_s) <= SILENT_SHARE * max(per_s):
            return None, 0.0
        mean = fmean(per_s)
        if max(per_s) - min(per_s) <= 1e-9 * mean:
            return 0.0, 0.0
        return linear_regression(days, per_s).slope * 7 / mean, correlation(days, per_s) ** 2


class _Rows:
    """Minutes of a batch as columns. Columns by second are one array for all minutes; ``row`` is the minute of each."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._columns: dict[str, Any] = {}
        lengths = batch.column("second").value_lengths().to_numpy()
        self.row: Ints = np.repeat(np.arange(batch.num_rows), lengths)

    def __getitem__(self, name: str) -> Any:
        if name not in self._columns:
            self._columns[name] = self._batch.column(name).to_numpy(zero_copy_only=False)
        return self._columns[name]

    def seconds(self, name: str) -> Ints:
        """Return a column by second; in minutes where the list is empty all are 0."""
        if name not in self._columns:
            lists = self._batch.column(name if name == "second" else f"second_{name}")
            values = lists.flatten().to_numpy()
            if len(values) < len(self.row):
                found = np.zeros(len(self.row), np.int64)
                found[(lists.value_lengths().to_numpy() > 0)[self.row]] = values
                values = found
            self._columns[name] = values
        return self._columns[name]  # type: ignore[no-any-return]

    def are(self, name: str, value: str) -> Flags:
        """Return which rows have this text."""
        return pc.equal(self._batch.column(name), value).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def languages(self) -> tuple[Ints, list[str], Ints]:
        """Return the row, the language and the refused requests of each entry."""
        column = self._batch.column("languages")
        rows = np.repeat(np.arange(self._batch.num_rows), np.diff(column.offsets.to_numpy()))
        begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        entries = slice(begin, end)
        refused = column.items.field("refused").to_numpy()[entries]
        return rows, column.keys.to_pylist()[entries], refused

    def limits(self) -> Iterator[tuple[int, int, Limit]]:
        """Return rows in a row under one limit, as begin and end."""
        columns = [self._batch.column(name) for name in LIMIT_COLUMNS]
        ends = np.unique(np.concatenate([pc.run_end_encode(each).run_ends.to_numpy() for each in columns]))
        begin = 0
        for end in ends.tolist():
            yield begin, end, Limit(*(each[begin].as_py() for each in columns))
            begin = end


def p99(seconds: Mapping[float, int], zeros: int) -> float:
    """Return the 99th percentile of weighted values and a number of zeros; 0 if there are none."""
    values = sorted(seconds)
    ends = np.cumsum([max(0, zeros), *(seconds[value] for value in values)])
    place = 0.99 * max(0, ends[-1] - 1)
    places = np.searchsorted(ends, [math.floor(place), math.ceil(place)], "right")
    low, high = ([0.0, *values][at] for at in np.minimum(places, len(values)).tolist())
    return float(low + place % 1 * (high - low))


def storms_of(rows: Iterable[Mapping[str, Any]], rules: Iterable[str]) -> Storms:
    """Add up rows of the table ``storms``, of one resource that these rules limit."""
    found = sorted(rows, key=lambda row: row["start_s"])
    if not found:
        return Storms()
    messages = max(1, sum(row["messages"] for row in found))
    by_rule = _added(found, "rules")
    total, own = by_rule.total(), sum(by_rule.pop(rule, 0) for rule in set(rules))
    callers: dict[FairBy, Sequence[Caller]] = {}
    for who in WHO:
        in_order = sorted(_added(found, f"{who}s").items(), key=lambda each: (-each[1], each[0]))
        callers[who] = [Caller(who, name, its / messages) for name, its in in_order if name]
    return Storms(
        days=len({row["start_s"] // DAY_S for row in found}),
        messages=messages,
        top_two_share=sum(each["messages"] for row in found for each in row["clients"][:2]) / messages,
        clients=max(row["client_count"] for row in found),
        own_share=own / total if total else 1.0,
        other_rule=min(by_rule, key=lambda name: (-by_rule[name], name), default=""),
        callers=callers,
        each=[_storm(row) for row in found],
    )


def standing_out(demand: Demand) -> Caller | None:
    """Return the caller with the largest part of what was refused, of the kind where one stands out most.

    If callers of two kinds stand out alike, the first kind: an address cannot be made up.
    """
    callers = demand.storms.callers
    first = (callers[who][0] for who in WHO if who != demand.kind and callers.get(who))
    return max(first, key=lambda each: round(each.share, 1), default=None)


def _added(rows: Iterable[Mapping[str, Any]], names: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found.update({each["name"]: each["messages"] for each in row[names]})
    return found


def _storm(row: Mapping[str, Any]) -> Storm:
    callers = {
        who: [
            Caller(who, each["name"], each["share"], then)
            for each, then in zip(row[f"{who}s"], row[f"{who}_then"], strict=True)
        ]
        for who in WHO
    }
    return Storm(row["start_s"], row["end_s"], row["messages"], callers, {who: row[f"{who}_count"] for who in WHO})
