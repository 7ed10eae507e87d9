"""Measures the demand for a resource, and keeps its busiest minutes for replays.

*Corrected* demand excludes retries. *Calm* demand is the demand in a minute before its first refusal and after its last
one. Messages that a shadow limit would have refused count as refused. Percentiles cover *all* observed seconds,
including those without demand.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from statistics import correlation, fmean, linear_regression
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S, Row
from admin.common.recommendations import Retries
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, FairBy

MAX_REPLAYED: Final = 7 * DAY_S // MINUTE_S
MIN_DAY_S: Final = DAY_S // 2  # shorter days are ignored when growth is computed
MIN_GROWTH: Final = 0.05  # per week
MIN_GROWTH_DAYS: Final = 4
MIN_FIT: Final = 0.5
SILENT_SHARE: Final = 0.01
GONE_DAYS: Final = 2
MAX_ASSUMED: Final = 0.2  # share of refused requests without a message id
MEASURED_SHARE: Final = 0.95  # share of a minute's refused requests with a message id
WHO: Final[tuple[FairBy, ...]] = ("client", "user", "producer_group")
"""Clients come first, because a caller cannot forge its address."""
_WHOLE: Final = 10_000  # whole numbers below this are exact. Other values are rounded to four digits
_DEMAND: Final = ("admitted", "shadowed", "bypassed", "exempt", "refused", "dropped")
Values = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Limit:
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


LIMIT_COLUMNS: Final = tuple(each.name for each in fields(Limit))


def limit_of(row: Row) -> Limit:
    limit = Limit(*(row[name] for name in LIMIT_COLUMNS))
    return replace(limit, rate_per_s=None, bytes_per_s=None) if limit.action == "off" else limit


class Known(NamedTuple):
    """The time covered by a sidecar's records. ``day_s`` maps days since 1970 to the seconds covered on each day."""

    observed_s: int = 0
    lost_records: int = 0
    other: int = 0
    day_s: Mapping[int, int] = {}
    until_s: int = 0
    twice: str = ""


class Caller(NamedTuple):
    fair_by: FairBy
    name: str
    share: float


@dataclass(frozen=True)
class Storms:
    """A resource's storms of refusals. Each share is a fraction of the refused messages."""

    rows: Sequence[Row] = ()
    days: int = 0
    clients: int = 0
    top: Caller | None = None  # the client, user or producer group with the largest share
    top_two_share: float = 0.0  # the two most refused clients of each storm
    own_share: float = 1.0
    other_rule: str = ""  # the rule of another limit that refused most
    other_messages: int = 0


class Minutes(NamedTuple):
    """Minutes in chronological order.

    The first six columns hold one value per minute. The others hold one value for each second that had requests.
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
    left: NDArray[np.float32]  # share of the second's demand without retries

    def at(self, flags: Flags) -> "Minutes":
        inside = np.repeat(flags, self.seconds)
        columns: Iterable[Any] = self
        return Minutes(*(each[flags if place < _BY_MINUTE else inside] for place, each in enumerate(columns)))


_BY_MINUTE: Final = 6


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The demand for a resource. Values are in the limit's unit unless the field's name gives another one."""

    key: Sequence[str]
    known: Known
    observed_s: int
    days: int
    limit: Limit
    under: int
    limit_since_s: int | None
    limit_s: int
    before: Mapping[float | None, tuple[int, int]]  # messages and refused messages by earlier rate, oldest first
    now_messages: int
    now_refused_messages: int
    active_s: int
    quiet_s: int
    refused_s: int  # from the first to the last refusal of each minute
    refused_days: int
    refused_span_s: int
    requests: int
    messages: int
    refused_messages: int
    held_messages: int
    refusing_per_s: float
    retries: Retries
    last_s: int
    gone_since_s: int | None
    raw_p99: float
    raw_top: float
    corrected_p99: float
    corrected_top: float
    calm_p99: float
    bytes_p99: float
    minute_per_s: float
    calm_minute_per_s: float
    growth: float  # weekly, as a share of the mean. 0 if unsteady or unknown
    storms: Storms

    @property
    def usual_per_s(self) -> float:
        return max(self.calm_p99, self.calm_minute_per_s)


class Collector:
    """Adds up a resource's minutes, which must arrive in chronological order."""

    def __init__(self, key: Sequence[str], attempts: Mapping[str, int]) -> None:
        self._key, self._attempts = key, attempts
        self.limits: list[Limit] = []
        self._by_minute: defaultdict[str, list[Ints]] = defaultdict(list)
        self._seconds: defaultdict[str, Counter[float]] = defaultdict(Counter)
        self._measured = self._assumed = 0
        self._kept: list[Minutes] = []

    def take(self, batch: pa.RecordBatch) -> None:
        rows = Rows(batch)
        row, minute_s, second = rows.row, rows["minute_s"], rows.seconds("second")
        of_minute = partial(np.bincount, row, minlength=len(minute_s))
        messages = rows.seconds("admitted") + rows.seconds("refused")
        asked = np.where((rows["count"] == "requests")[row], rows.seconds("requests"), messages)
        left, measured, assumed = without_retries(rows, self._attempts)
        self._measured += measured
        self._assumed += assumed
        wanted = asked * left
        hits = np.flatnonzero(rows.seconds("refused") + rows.seconds("shadowed"))
        first, last = np.full(len(minute_s), MINUTE_S), np.full(len(minute_s), -1)
        np.minimum.at(first, row[hits], second[hits])
        np.maximum.at(last, row[hits], second[hits])
        calm = (second < first[row]) | (second > last[row])
        self._count("refusing", asked[~calm])
        self._count("refusing, corrected", wanted[~calm])
        self._count("calm", wanted[calm])
        self._count("bytes", (rows.seconds("bytes") * left)[~np.isnan(rows["bytes_per_s"])[row]])
        refused_messages = rows["refused_messages"] + rows["dropped_messages"] + rows["shadowed_messages"]
        under = np.zeros(len(minute_s), np.int64)
        for begin, end, limit in rows.limits():
            if not self.limits or self.limits[-1] != limit:
                self.limits.append(limit)
            under[begin:end] = len(self.limits) - 1
        by_minute = {
            "minute_s": minute_s,
            "under": under,
            "requests": sum(rows[f"{each}_requests"] for each in _DEMAND),
            "messages": sum(rows[f"{each}_messages"] for each in _DEMAND),
            "refused_messages": refused_messages,
            "held_messages": rows["held_messages"],
            "active_s": of_minute(),
            "quiet_s": of_minute(calm),
            "refused_s": np.maximum(0, last - first + 1),
            "wanted": of_minute(wanted),
            "wanted_refusing": of_minute(wanted * ~calm),
        }
        for name, values in by_minute.items():
            self._by_minute[name].append(values)
        top = np.zeros(len(minute_s), np.int64)
        np.maximum.at(top, row, asked)
        self._kept.append(
            Minutes(minute_s, under, refused_messages, rows["clients"], of_minute(), top, minute_s[row] + second,
                messages, rows.seconds("requests"), rows.seconds("bytes"), left.astype(np.float32))
        )  # fmt: skip
        if sum(len(each.minute_s) for each in self._kept) > 2 * MAX_REPLAYED:
            self._kept = [self.minutes]

    def _count(self, name: str, values: Values | Ints) -> None:
        values = np.array(values, float)
        large = (values >= _WHOLE) | (values % 1 != 0)
        digits = 10.0 ** (np.floor(np.log10(np.maximum(values[large], 1e-9))) - 3)
        values[large] = np.round(values[large] / digits) * digits
        found, counts = np.unique(values, return_counts=True)
        self._seconds[name].update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    @property
    def minutes(self) -> Minutes:
        found = Minutes(*map(np.concatenate, zip(*self._kept, strict=True)))
        if len(found.minute_s) <= MAX_REPLAYED:
            return found
        flags = np.zeros(len(found.minute_s), bool)
        flags[np.lexsort((found.minute_s, found.top))[-MAX_REPLAYED:]] = True
        return found.at(flags)

    def demand(self, known: Known, storms: Iterable[Row]) -> Demand:
        its = {name: np.concatenate(parts) for name, parts in self._by_minute.items()}
        total = {name: int(values.sum()) for name, values in its.items()}
        minute_s, wanted = its["minute_s"], its["wanted"]
        is_refused = its["refused_s"] > 0
        refused_at = minute_s[is_refused]
        observed_s = max(known.observed_s, total["active_s"])
        idle_s = observed_s - total["active_s"]
        seconds, calm = self._seconds, self._seconds["calm"]
        raw, corrected = calm + seconds["refusing"], calm + seconds["refusing, corrected"]
        retries = self._measured + self._assumed
        is_assumed = self._assumed > MAX_ASSUMED * retries
        limit, before = self.limits[-1], self._by_rate(its)
        now_messages, now_refused_messages = before.pop(limit.rate_per_s)
        since_s = int(minute_s[np.argmax(its["under"])]) if before else None
        days = _Days(known.day_s, minute_s, wanted)
        totals = ("requests", "messages", "refused_messages", "held_messages", "active_s", "quiet_s", "refused_s")
        return Demand(
            **{name: total[name] for name in totals},
            key=self._key,
            known=known,
            limit=limit,
            under=len(self.limits) - 1,
            limit_since_s=since_s,
            limit_s=observed_s if since_s is None else min(observed_s, known.until_s - since_s),
            before=before,
            now_messages=now_messages,
            now_refused_messages=now_refused_messages,
            observed_s=observed_s,
            days=sum(known_s > 0 for known_s in known.day_s.values()),
            refused_days=len(np.unique(refused_at // DAY_S)),
            refused_span_s=int(refused_at[-1] - refused_at[0]) + MINUTE_S if len(refused_at) else 0,
            refusing_per_s=float(its["wanted_refusing"].sum()) / max(1, total["refused_s"]),
            retries="none" if not retries else "assumed" if is_assumed else "measured",
            last_s=days.last_s,
            gone_since_s=days.gone_since_s(),
            raw_p99=p99(raw, idle_s),
            raw_top=max(raw, default=0.0),
            corrected_p99=p99(corrected, idle_s),
            corrected_top=max(corrected, default=0.0),
            # Seconds without demand between a minute's refusals are not calm.
            calm_p99=p99(calm, observed_s - total["refused_s"] - total["quiet_s"]),
            bytes_p99=p99(seconds["bytes"], idle_s),
            minute_per_s=float(wanted.max()) / MINUTE_S,
            calm_minute_per_s=float(wanted[~is_refused].max(initial=0.0)) / MINUTE_S,
            growth=days.growth(),
            storms=storms_of(storms, self._key[1], {each.rule for each in self.limits}),
        )

    def _by_rate(self, its: Mapping[str, Ints]) -> dict[float | None, tuple[int, int]]:
        found: dict[float | None, tuple[int, int]] = {}
        messages, refused = (np.bincount(its["under"], its[each]) for each in ("messages", "refused_messages"))
        for limit, asked, missed in zip(self.limits, messages.tolist(), refused.tolist(), strict=True):
            its_messages, its_refused = found.pop(limit.rate_per_s, (0, 0))
            found[limit.rate_per_s] = (its_messages + int(asked), its_refused + int(missed))
        return found


class _Days:
    def __init__(self, day_s: Mapping[int, int], minute_s: Ints, wanted: Ints) -> None:
        self._day_s = day_s
        self._days = sorted(day for day, known_s in day_s.items() if known_s >= MIN_DAY_S)
        days, places = np.unique(minute_s // DAY_S, return_inverse=True)
        self._demand = Counter(dict(zip(days.tolist(), np.bincount(places, wanted).tolist(), strict=True)))
        self._first_s = int(minute_s[0])
        self.last_s = int(minute_s[-1]) + MINUTE_S

    def gone_since_s(self) -> int | None:
        """Return when demand stopped, or None if the current pause is no longer than usual."""
        least = max(1e-9, SILENT_SHARE * max(self._demand.values()))
        places = [place for place, day in enumerate(self._days) if self._demand[day] >= least]
        if not places:
            return None
        silent = len(self._days) - 1 - places[-1]
        usual = max((after - before - 1 for before, after in pairwise(places)), default=0)
        last = self._days[places[-1]]
        # Demand may have resumed on a day that was only partially observed.
        is_back = any(day > last and demand >= least for day, demand in self._demand.items())
        if silent < max(GONE_DAYS, 1.5 * usual) or is_back:
            return None
        return min(self.last_s, (last + 1) * DAY_S)

    def growth(self) -> float:
        """Return the weekly growth of the demand as a share of the mean, or 0 if it is small or unsteady."""
        # Ignore the days on which demand began and ended.
        days, day_s = self._days, self._day_s
        if days and self._first_s > (days[0] + 1) * DAY_S - day_s[days[0]] + HOUR_S:
            days = days[1:]
        if days and self.last_s < days[-1] * DAY_S + day_s[days[-1]] - HOUR_S:
            days = days[:-1]
        per_s = [self._demand[day] / min(day_s[day], DAY_S) for day in days]
        if len(days) < MIN_GROWTH_DAYS or min(per_s) <= SILENT_SHARE * max(per_s):
            return 0.0
        growth = linear_regression(days, per_s).slope * 7 / fmean(per_s)
        return growth if abs(growth) >= MIN_GROWTH and correlation(days, per_s) ** 2 >= MIN_FIT else 0.0


class Rows:
    """The columns of a batch as arrays. ``row`` maps each second with requests to the index of its minute."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._columns: dict[str, Any] = {}
        self.row: Ints = np.repeat(np.arange(batch.num_rows), batch.column("second").value_lengths().to_numpy())

    def __getitem__(self, name: str) -> Any:
        if name not in self._columns:
            self._columns[name] = self._batch.column(name).to_numpy(zero_copy_only=False)
        return self._columns[name]

    def seconds(self, name: str) -> Ints:
        """Flatten a column of lists to one value per second. Minutes with an empty list get zeros."""
        if name not in self._columns:
            lists = self._batch.column(name if name == "second" else f"second_{name}")
            values = lists.flatten().to_numpy()
            if len(values) < len(self.row):
                found = np.zeros(len(self.row), np.int64)
                found[(lists.value_lengths().to_numpy() > 0)[self.row]] = values
                values = found
            self._columns[name] = values
        return self._columns[name]  # type: ignore[no-any-return]

    def languages(self) -> tuple[Ints, list[str], Ints]:
        column = self._batch.column("languages")
        rows = np.repeat(np.arange(self._batch.num_rows), np.diff(column.offsets.to_numpy()))
        entries = slice(column.offsets[0].as_py(), column.offsets[-1].as_py())
        return rows, column.keys.to_pylist()[entries], column.items.field("refused").to_numpy()[entries]

    def limits(self) -> Iterator[tuple[int, int, Limit]]:
        columns = self._batch.select(LIMIT_COLUMNS)
        ends = np.unique(np.concatenate([pc.run_end_encode(each).run_ends.to_numpy() for each in columns]))
        for begin, end in pairwise([0, *ends.tolist()]):
            yield begin, end, limit_of(columns.slice(begin, 1).to_pylist()[0])


def without_retries(rows: Rows, attempts: Mapping[str, int]) -> tuple[Values, int, int]:
    """Return the share of each second's requests that are not retries of refused requests.

    The sidecar counts the repeats of messages that have ids. For other refused requests, retries are estimated from T,
    the number of attempts that clients in the same language make by default. If attempts are admitted with probability
    p, a request takes ``E = 1 + (1-p) + … + (1-p)^(T-1)`` attempts on average. The demand is the number of attempts
    divided by E, but at least the number of admitted attempts. Clients do not retry one-way requests.

    Returns:
        The shares, and the numbers of refused requests whose retries were counted and estimated.
    """
    row, admitted, refused = rows.row, rows.seconds("admitted"), rows.seconds("refused")
    asked = np.maximum(1, admitted + refused)
    left = np.maximum(0.0, 1.0 - rows.seconds("repeated") / asked)
    requests = rows["refused_requests"] + rows["dropped_requests"]
    identified = np.minimum(rows["identified"], requests)
    unknown = np.where(identified >= MEASURED_SHARE * requests, 0, requests - identified)
    measured = int(np.where(unknown > 0, identified, requests).sum())
    if not unknown.any():
        return left, measured, 0
    of, languages, its_refused = rows.languages()
    most = np.array([attempts.get(language, 1) for language in languages], np.int64)
    total = np.maximum(1, np.bincount(of, its_refused, len(requests)))
    answered = np.minimum(1.0, rows["busy_answers"] / total)
    missed, again, retrying = refused / asked, np.zeros(len(row)), np.zeros(len(requests))
    for tries in np.unique(most[most > 1]).tolist():
        part = answered * np.bincount(of, its_refused * (most == tries), len(requests)) / total
        again += part[row] * (1 - 1 / sum(missed**before for before in range(tries)))
        retrying += part
    again *= (unknown / np.maximum(1, requests))[row]
    left = np.maximum(left - again, np.minimum(left, admitted / asked))
    return left, measured, int(unknown[retrying > 0].sum())


def p99(seconds: Mapping[float, int], zeros: int) -> float:
    """Return the 99th percentile. ``seconds`` maps values to their counts. In addition, ``zeros`` values are 0."""
    values = sorted(seconds)
    ends = np.cumsum([max(0, zeros), *(seconds[value] for value in values)])
    place = 0.99 * max(0, ends[-1] - 1)
    places = np.searchsorted(ends, [math.floor(place), math.ceil(place)], "right")
    low, high = ([0.0, *values][at] for at in np.minimum(places, len(values)).tolist())
    return float(low + place % 1 * (high - low))


def storms_of(rows: Iterable[Row], kind: str, rules: Collection[str]) -> Storms:
    found = sorted(rows, key=lambda row: row["start_s"])
    if not found:
        return Storms()
    messages = max(1, sum(row["messages"] for row in found))

    def most(names: str) -> list[tuple[str, int]]:
        sums: Counter[str] = Counter()
        for row in found:
            sums.update({each["name"]: each["messages"] for each in row[names]})
        return sorted(sums.items(), key=lambda each: (-each[1], each[0]))

    others = [each for each in most("rules") if each[0] not in rules]
    callers = {who: [Caller(who, name, its / messages) for name, its in most(f"{who}s") if name] for who in WHO}
    first = [callers[who][0] for who in WHO if who != kind and callers[who]]
    return Storms(
        rows=found,
        days=len({row["start_s"] // DAY_S for row in found}),
        clients=max(row["client_count"] for row in found),
        # If shares are about equal, the smallest caller is the most specific.
        top=max(first, key=lambda each: (round(each.share, 1), -each.share), default=None),
        top_two_share=sum(each["messages"] for row in found for each in row["clients"][:2]) / messages,
        own_share=1 - sum(its for _, its in others) / messages,
        other_rule=others[0][0] if others else "",
        other_messages=others[0][1] if others else 0,
    )
