"""From the lines of one resource and hour to rows of tables: each record once, added up.

``combine`` runs on batches of Arrow that are sorted by resource and hour, as ``lines.GATHERED`` has them, and holds one
resource's hour at a time: its minutes, its refusals by second and by whoever was refused, and which numbers of each run
were there already. Records with the same ``run`` and ``n`` are the same record, and so of the same resource and hour.

Refusals are added up by *slot*, a stretch of the hour that is one second longer than the gap of storms. Two seconds of
a slot are at most the gap apart, so that all refusals of a resource in a slot are of one storm.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby
from math import floor, log10
from operator import add
from typing import Any, Final, get_type_hints

import pyarrow as pa

from admin.analytics import retries
from admin.analytics.figures import HourDemand, Seconds
from admin.analytics.lines import decode_lines, without_gc
from admin.analytics.tables import (
    AMOUNTS,
    BY_DAY,
    COVERAGE,
    CULPRITS,
    LIMIT_KEY,
    STORMS,
    TABLES,
    arrow_schema,
    day_of,
)
from admin.analytics.words import MINUTE_S
from admin.rejection_log.records import (
    HeartbeatRecord,
    LimitChangeRecord,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
)
from limiter.counting.rejections import OUTCOMES

MADE: Final = tuple(table for table in BY_DAY if table not in {STORMS, CULPRITS})
"""Tables whose rows come from here. Those of limits and coverage are parts, of which several may be of one row."""
BAD: Final = "bad"
_BAD: Final = ("file STRING", "reason STRING", "lines BIGINT", "example STRING")
COMBINED: Final = arrow_schema(("made STRING", "copies BIGINT", "rows BINARY"))
"""Rows of ``combine``: the name of a table, and some of its rows as a batch of Arrow, see ``unpack``; of ``coverage``,
how many copies of records they tell of. Besides tables there is ``bad``: what could not be understood, by file and
reason."""
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    **{table.name: arrow_schema(table.columns) for table in MADE}, BAD: arrow_schema(_BAD)
}  # fmt: skip
"""Of what is packed."""
NEAR_TIMES: Final = 0.8
"""A second with this share of the limit is near it."""
_BATCH_ROWS: Final = 4096
_PACKED_ROWS: Final = 256
_NEAREST: Final = 10_000
_Row = tuple[Any, ...]


def combine(
    storm_gap_s: int, attempts: Mapping[str, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what adds up lines: from ``lines.GATHERED``, sorted by resource and hour, to ``COMBINED``.

    Args:
        storm_gap_s: at most so far apart are the refusals of a storm.
        attempts: how often clients try in all, by language.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        out = _Out()
        with without_gc():
            for key, rows in groupby(_rows(batches), key=lambda row: row[:4]):
                if key[0] is None:
                    for *_, lines, count, file, reason in rows:
                        out.add(BAD, (file, reason, count, lines.decode()))
                    continue
                hour = _Hour(key, storm_gap_s, attempts)
                for row in rows:
                    hour.take(row[4])
                hour.put(out)
                if out.rows >= _BATCH_ROWS:
                    yield from out.flush()
            yield from out.flush()

    return run


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    names = ("instance", "kind", "name", "hour_s", "lines", "records", "file", "reason")
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        yield from zip(*columns, strict=True)


class _Out:
    """Rows by table, until there are enough for a batch."""

    def __init__(self) -> None:
        self._rows: dict[str, list[_Row]] = {name: [] for name in SCHEMAS}
        self.rows = 0

    def add(self, name: str, row: _Row) -> None:
        self._rows[name].append(row)
        self.rows += 1

    def flush(self) -> Iterator[pa.RecordBatch]:
        made: list[tuple[str, int, bytes]] = []
        for name, rows in self._rows.items():
            schema = SCHEMAS[name]
            for some in (rows[at : at + _PACKED_ROWS] for at in range(0, len(rows), _PACKED_ROWS)):
                columns = [_array(values, of.type) for values, of in zip(zip(*some, strict=True), schema, strict=True)]
                copies = sum(row[_COPIES] for row in some) if name == COVERAGE.name else 0
                made.append((name, copies, pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes()))
            rows.clear()
        self.rows = 0
        if made:
            yield pa.RecordBatch.from_arrays(list(zip(*made, strict=True)), schema=COMBINED)


_COPIES: Final = COVERAGE.names.index("copies")


def unpack(name: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what gives the rows of a table, or of ``bad``, from ``COMBINED``'s column ``rows``."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0):
                yield pa.ipc.read_record_batch(packed.as_buffer(), SCHEMAS[name])

    return run


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if type_ == _LIST:
        # Twice as fast as list by list.
        ends = pa.array(accumulate(map(len, values), initial=0), pa.int32())
        return pa.ListArray.from_arrays(ends, pa.array(list(chain.from_iterable(values)), type_.value_type))
    return pa.array(values, type_)


_LIST: Final = pa.list_(pa.int64())


class _Hour:
    """One hour of one resource, or what is of the whole sidecar.

    Args:
        key: instance, kind, name and hour.
        storm_gap_s: of storms.
        attempts: by language.
    """

    def __init__(self, key: tuple[Any, ...], storm_gap_s: int, attempts: Mapping[str, int]) -> None:
        self._instance, self._kind, self._name, self._hour_s = key
        self._slot_s, self._attempts = storm_gap_s + 1, attempts
        self._day = day_of(self._hour_s)
        #: By run: numbers seen, copies, newest second.
        self._runs: dict[str, tuple[set[int], list[int]]] = {}
        self._traffic: dict[int, list[TrafficRecord]] = {}
        #: By slot and who: requests, messages, bytes, longest wait.
        self._whom: dict[tuple[Any, ...], list[int]] = {}
        #: By second, of what was refused and of what would have been: the same.
        self._seconds: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        self._waits: dict[int, int] = {}
        self._beats: dict[str, list[HeartbeatRecord]] = {}
        self._limits: dict[tuple[str, str, str], LimitRecord] = {}
        self._changes: list[LimitChangeRecord] = []

    def take(self, lines: bytes) -> None:
        """Take lines; those that were there already only count."""
        for record in decode_lines(lines):
            run = self._runs.get(record.run)
            if run is None:
                run = self._runs[record.run] = set(), [0, 0]
            numbers, (_, newest_s) = run
            if record.n in numbers:
                run[1][0] += 1
                continue
            numbers.add(record.n)
            of = type(record)
            last_s = record.at_s
            if of is TrafficRecord or of is HeartbeatRecord:
                last_s += MINUTE_S - 1 - record.at_s % MINUTE_S
            if last_s > newest_s:
                run[1][1] = last_s
            if isinstance(record, RejectionRecord):
                self._rejection(record)
            elif isinstance(record, TrafficRecord):
                self._traffic.setdefault(record.at_s, []).append(record)
            elif isinstance(record, HeartbeatRecord):
                self._beats.setdefault(record.run, []).append(record)
            elif isinstance(record, LimitRecord):
                key = record.kind, record.name, record.rule
                held = self._limits.get(key)
                if held is None or (held.at_s, held.run, held.n) < (record.at_s, record.run, record.n):
                    self._limits[key] = record
            else:
                self._changes.append(record)

    def _rejection(self, record: RejectionRecord) -> None:
        at_s, wait_us = record.at_s, record.wait_max_us
        key = (
            (at_s - self._hour_s) // self._slot_s, record.client, record.user, record.product, record.producer_group,
            record.rule, record.verdict,
        )  # fmt: skip
        sums = [self._whom.setdefault(key, [0, 0, 0, 0])]
        if record.verdict != "hold":
            sums.append(self._seconds[record.verdict == "shadow"].setdefault(at_s, [0, 0, 0, 0]))
        for each in sums:
            each[0] += record.requests
            each[1] += record.messages
            each[2] += record.bytes
            each[3] = max(each[3], wait_us)
        minute_s = at_s - at_s % MINUTE_S
        if wait_us > self._waits.get(minute_s, -1):
            self._waits[minute_s] = wait_us

    def put(self, out: _Out) -> None:
        """Put the rows of the hour where they belong."""
        head = (self._instance, self._kind, self._name)
        minutes = [Minute(_minute(self._traffic[minute_s])) for minute_s in sorted(self._traffic)]
        shadowed = self._seconds[True]
        for minute in minutes:
            out.add("minutes", (*head, *self._minute_row(minute, shadowed), self._day))
        parts = [part for shadow in (False, True) for part in self._parts(shadow=shadow)]
        if minutes or parts:
            out.add("hours", (*head, self._hour_s, *self._hour_row(minutes), parts, self._day))
        whom: dict[tuple[Any, ...], list[int]] = {}
        for key, sums in self._whom.items():
            _add(whom.setdefault(key[1:], [0, 0, 0, 0]), sums)
        for who, sums in whom.items():
            out.add("refusals", (*head, self._hour_s, *who, *sums, self._day))
        for limit in self._limits.values():
            fields = (getattr(limit, name) for name in LIMIT_KEY)
            out.add("limits", (self._instance, limit.kind, limit.name, *fields, limit.at_s, self._day))
        names = TABLES["limit_changes"].names[:-1]
        for change in self._changes:
            out.add("limit_changes", (*(getattr(change, name) for name in names), self._day))
        for run, (numbers, (copies, newest_s)) in self._runs.items():
            beats = _beats(self._beats.get(run, ()))
            known = (len(numbers), copies, min(numbers), max(numbers), newest_s)
            out.add("coverage", (self._instance, run, self._hour_s, *beats[:-1], *known, beats[-1], self._day))

    def _minute_row(self, minute: "Minute", shadowed: Mapping[int, Sequence[int]]) -> _Row:
        record = minute.record
        at_s, second = record.at_s, record.second
        would = [shadowed[at_s + at][1] if at_s + at in shadowed else 0 for at in second] if shadowed else []
        return (
            at_s,
            *minute.amounts,
            record.identified,
            record.busy_answers,
            _languages(record.languages),
            record.clients,
            record.more_clients,
            *minute.limit,
            second,
            record.second_admitted,
            record.second_refused,
            record.second_requests,
            record.second_bytes,
            record.second_repeated,
            would if any(would) else (),
            minute.demand_messages,
            minute.peak_per_s,
            minute.refused_peak_per_s,
            self._waits.get(at_s, 0),
        )

    def _hour_row(self, minutes: "Sequence[Minute]") -> _Row:
        records = [minute.record for minute in minutes]
        languages: dict[str, list[int]] = {}
        for record in records:
            for language, counts in record.languages.items():
                _add(languages.setdefault(language, [0, 0]), counts)
        amounts = amounts_of(minutes)
        demand = hour_demand(minutes, amounts, self._attempts)
        return (
            len(minutes),
            records[0].at_s if records else None,
            records[-1].at_s if records else None,
            *amounts.values(),
            sum(record.identified for record in records),
            sum(record.busy_answers for record in records),
            _languages(languages),
            max((record.clients for record in records), default=0),
            any(record.more_clients for record in records),
            *(minutes[-1].limit if minutes else _NO_LIMIT),
            demand.messages,
            max((minute.peak_per_s for minute in minutes), default=0),
            max((minute.demand_messages for minute in minutes), default=0),
            max((minute.refused_peak_per_s for minute in minutes), default=0),
            max((self._waits.get(record.at_s, 0) for record in records), default=0),
            _struct(demand),
        )

    def _parts(self, *, shadow: bool) -> Iterator[dict[str, Any]]:
        """Yield the storms of this hour by themselves."""
        seconds = self._seconds[shadow]
        verdict = "shadow" if shadow else "refuse"
        by_slot: dict[int, list[tuple[tuple[Any, ...], list[int]]]] = {}
        for (slot, *who, of), sums in self._whom.items():
            if of == verdict:
                by_slot.setdefault(slot, []).append((tuple(who), sums))
        for session in _sessions(sorted(seconds), self._slot_s - 1):
            sums = [0, 0, 0, 0]
            for at_s in session:
                _add(sums, seconds[at_s])
            peak = max(session, key=lambda at_s: (seconds[at_s][1], -at_s))
            names: tuple[Counter[str], ...] = (Counter(), Counter(), Counter(), Counter())
            for slot in {(at_s - self._hour_s) // self._slot_s for at_s in session}:
                for (client, user, _, group, rule), (_, messages, _, _) in by_slot.get(slot, ()):
                    for counter, name in zip(names, (rule, client, user, group), strict=True):
                        counter[name] += messages
            yield {
                "shadow": shadow,
                "start_s": session[0],
                "last_s": session[-1],
                "requests": sums[0],
                "messages": sums[1],
                "bytes": sums[2],
                "wait_max_us": sums[3],
                "refused_seconds": len(session),
                "peak_per_s": seconds[peak][1],
                "peak_at_s": peak,
                **{
                    who: [{"name": name, "messages": messages} for name, messages in counter.items()]
                    for who, counter in zip(("rules", "clients", "users", "producer_groups"), names, strict=True)
                },
            }


def _sessions(seconds: Sequence[int], gap_s: int) -> Iterator[list[int]]:
    """Cut ascending seconds where they are more than the gap apart."""
    session: list[int] = []
    for at_s in seconds:
        if session and at_s - session[-1] > gap_s:
            yield session
            session = []
        session.append(at_s)
    if session:
        yield session


def _add(sums: list[int], more: Sequence[int]) -> None:
    """Add what there is more; of four, the last is the longest wait."""
    sums[0] += more[0]
    sums[1] += more[1]
    if len(sums) == 4:
        sums[2] += more[2]
        sums[3] = max(sums[3], more[3])


def _minute(records: Sequence[TrafficRecord]) -> TrafficRecord:
    """Put the records of a minute together; mostly there is one."""
    if len(records) == 1:
        return records[0]
    last = max(records, key=lambda record: (record.n, record.run))
    amounts: dict[str, Any] = {
        outcome: type(last.admitted)(
            *(sum(getattr(getattr(record, outcome), what) for record in records) for what in _WHATS)
        )
        for outcome in (*OUTCOMES, "repeated")
    }
    languages: dict[str, list[int]] = {}
    by_second: dict[int, list[int]] = {}
    for record in records:
        for language, counts in record.languages.items():
            _add(languages.setdefault(language, [0, 0]), counts)
        lists = (
            record.second_admitted, record.second_refused, record.second_requests, record.second_bytes,
            record.second_repeated or (0,) * len(record.second),
        )  # fmt: skip
        for at, *values in zip(record.second, *lists, strict=True):
            sums = by_second.setdefault(at, [0] * len(values))
            for place, each in enumerate(values):
                sums[place] += each
    second = tuple(sorted(by_second))
    admitted, refused, requests, size_bytes, repeated = (
        tuple(by_second[at][place] for at in second) for place in range(5)
    )
    same = ("v", "instance", "run", "n", "at_s", "kind", "name", *LIMIT_KEY)
    return TrafficRecord(
        **{name: getattr(last, name) for name in same},
        **amounts,
        identified=sum(record.identified for record in records),
        busy_answers=sum(record.busy_answers for record in records),
        languages={language: (requests, refused) for language, (requests, refused) in languages.items()},
        clients=max(record.clients for record in records),
        # Within a run, clients are those of the minute so far.
        more_clients=any(record.more_clients for record in records) or len({record.run for record in records}) > 1,
        second=second,
        second_admitted=admitted,
        second_refused=refused,
        second_requests=requests,
        second_bytes=size_bytes,
        second_repeated=repeated if any(repeated) else (),
    )


_WHATS: Final = ("requests", "messages", "size_bytes")
_NO_LIMIT: Final = ("", None, 1.0, 0.0, "messages", None, 1.0, "reject", None)


class Minute:
    """A minute of one resource, and what several rows need of it.

    Attributes:
        record: what the log says.
        refuses: something was refused in one of its seconds.
        messages: asked for, by second.
        amounts: in the order of ``AMOUNTS``.
        limit: in the order of ``LIMIT_KEY``.
        demand_messages: what reached the broker, and what did not.
        peak_per_s: messages of the busiest second.
        refused_peak_per_s: messages refused in the worst second.
    """

    __slots__ = (
        "amounts", "demand_messages", "limit", "messages", "peak_per_s", "record", "refused_peak_per_s", "refuses"
    )  # fmt: skip

    def __init__(self, record: TrafficRecord) -> None:
        self.record = record
        refused = record.second_refused
        self.refused_peak_per_s = max(refused, default=0)
        self.refuses = self.refused_peak_per_s > 0
        admitted = record.second_admitted
        self.messages: Sequence[int] = list(map(add, admitted, refused)) if self.refuses else admitted
        self.peak_per_s = max(self.messages, default=0)
        ad, re, he, sh = record.admitted, record.refused, record.held, record.shadowed
        by, ex, dr, rp = record.bypassed, record.exempt, record.dropped, record.repeated
        self.demand_messages = ad.messages + sh.messages + by.messages + ex.messages + re.messages + dr.messages
        self.amounts = (
            ad.requests, ad.messages, ad.size_bytes, re.requests, re.messages, re.size_bytes,
            he.requests, he.messages, he.size_bytes, sh.requests, sh.messages, sh.size_bytes,
            by.requests, by.messages, by.size_bytes, ex.requests, ex.messages, ex.size_bytes,
            dr.requests, dr.messages, dr.size_bytes, rp.requests, rp.messages, rp.size_bytes,
        )  # fmt: skip
        self.limit = (
            record.rule, record.rate_per_s, record.burst_s, record.break_s, record.count, record.bytes_per_s,
            record.bytes_burst_s, record.action, record.fair_by,
        )  # fmt: skip


def _languages(counts: Mapping[str, Sequence[int]]) -> list[tuple[str, dict[str, int]]]:
    return [(name, {"requests": counts[name][0], "refused": counts[name][1]}) for name in sorted(counts)]


def _beats(beats: Sequence[HeartbeatRecord]) -> _Row:
    """Return what a run's heartbeats of an hour say, in the order of ``coverage``, the version last."""
    by_minute: dict[int, list[HeartbeatRecord]] = {}
    for beat in beats:
        by_minute.setdefault(beat.at_s - beat.at_s % MINUTE_S, []).append(beat)
    if not by_minute:
        return (0, 0, None, None, 0, 0, 0, 0, 0, "")
    return (
        len(by_minute),
        sum(min(MINUTE_S, sum(beat.seconds for beat in each)) for each in by_minute.values()),
        min(by_minute),
        max(by_minute),
        sum(not all(beat.limiting for beat in each) for each in by_minute.values()),
        max(beat.connections for beat in beats),
        sum(sum(beat.bypassed_requests.values()) for beat in beats),
        sum(beat.other for beat in beats),
        max(beat.lost_records for beat in beats),
        max(by_minute[max(by_minute)], key=lambda beat: beat.version).version,
    )


def amounts_of(minutes: Sequence[Minute]) -> dict[str, int]:
    """Return the sums of minutes, in the order of ``AMOUNTS``."""
    if not minutes:
        return dict.fromkeys(AMOUNTS, 0)
    return dict(zip(AMOUNTS, map(sum, zip(*(minute.amounts for minute in minutes), strict=True)), strict=True))


def hour_demand(minutes: Sequence[Minute], amounts: Mapping[str, int], attempts: Mapping[str, int]) -> HourDemand:
    """Return the demand of one resource in an hour.

    Args:
        minutes: with traffic, in order.
        amounts: their sums.
        attempts: how often clients try in all, by language.
    """
    rates: dict[float | None, None] = {}
    loud: list[int] = []
    sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
    most: dict[str, float] = {}
    seconds: defaultdict[str, Counter[float]] = defaultdict(Counter)
    with_bytes = any(minute.record.bytes_per_s is not None for minute in minutes)

    def top(name: str, value: float) -> None:
        if value > most.get(name, 0.0):
            most[name] = value

    def count(name: str, values: Sequence[float], *, digits: int = 4, whole: bool = False) -> None:
        if whole and max(values, default=0) < _NEAREST:
            seconds[name].update(values)
        else:
            seconds[name].update([_rounded(each, digits) for each in values])

    for minute in minutes:
        record, messages, size = minute.record, minute.messages, minute.record.second_bytes
        rate = record.rate_per_s if record.action != "off" else None
        rates.pop(rate, None)
        rates[rate] = None
        shadowed = record.shadowed.messages
        refused_requests = record.refused.requests + record.dropped.requests
        asked = record.second_requests if record.count == "requests" else messages
        asked_sum = sum(asked)
        left = None
        if minute.refuses or refused_requests or record.second_repeated:
            left = retries.shares(record, refused_requests, attempts)
        wanted: Sequence[float] = asked
        wanted_size: Sequence[float] = size
        wanted_sum: float = asked_sum
        if left is None:
            sums["wanted_messages"] += sum(messages)
        else:
            wanted, wanted_size = _times(asked, left), _times(size, left)
            wanted_sum = sum(wanted)
            sums["wanted_messages"] += sum(_times(messages, left))
        size_sum = sum(wanted_size)
        sums["asked"] += asked_sum
        sums["wanted"] += wanted_sum
        sums["active_s"] += len(asked)
        top("minute_wanted", wanted_sum)
        top("minute_bytes", size_sum)
        if rate and asked and max(asked) >= NEAR_TIMES * rate:
            near, second_refused = NEAR_TIMES * rate, record.second_refused
            sums["near_s"] += sum(each >= near and not no for each, no in zip(asked, second_refused, strict=True))
        if shadowed or minute.refuses:
            loud.append(record.at_s)
        if not minute.refuses:
            top("calm_minute", wanted_sum)
            top("calm_minute_bytes", size_sum)
            if not shadowed:
                top("quiet_minute", wanted_sum)
                top("quiet_minute_bytes", size_sum)
                sums["quiet_s"] += len(asked)
            count("calm", wanted, whole=left is None)
            if with_bytes:
                count("calm_bytes", wanted_size, digits=3)
            continue
        places = [at for at, each in enumerate(record.second_refused) if each]
        first, last = places[0], places[-1]
        sums["refused_s"] += record.second[last] - record.second[first] + 1
        sums["refused_active_s"] += last - first + 1
        sums["refusing"] += sum(wanted[first : last + 1])
        if not shadowed:
            sums["quiet_s"] += len(asked) - (last - first + 1)
        count("loud_asked", asked, whole=True)
        count("loud_wanted", wanted)
        count("loud_outside", [*wanted[:first], *wanted[last + 1 :]])
        if with_bytes:
            count("loud_wanted_bytes", wanted_size, digits=3)
            count("loud_outside_bytes", [*wanted_size[:first], *wanted_size[last + 1 :]], digits=3)

    refused_requests = amounts["refused_requests"] + amounts["dropped_requests"]
    refused = amounts["refused_messages"] + amounts["dropped_messages"]
    found: dict[str, Any] = {**sums, **most, **{name: _histogram(counter) for name, counter in seconds.items()}}
    return HourDemand(
        rates=tuple(rates),
        loud_from_s=loud[0] if loud else None,
        loud_until_s=loud[-1] + MINUTE_S if loud else None,
        requests=refused_requests + sum(amounts[f"{outcome}_requests"] for outcome in _REACHED),
        messages=refused + sum(amounts[f"{outcome}_messages"] for outcome in _REACHED),
        refused_messages=refused + amounts["shadowed_messages"],
        refused_requests=refused_requests,
        identified_requests=sum(minute.record.identified for minute in minutes),
        repeated_messages=amounts["repeated_messages"],
        **found,
    )


_REACHED: Final = ("admitted", "shadowed", "bypassed", "exempt")
_SUMS: Final = (
    "active_s", "refused_s", "refused_active_s", "quiet_s", "near_s", "asked", "wanted", "wanted_messages", "refusing"
)  # fmt: skip


def _times(values: Sequence[int], shares: Sequence[float]) -> list[float]:
    return [value * share for value, share in zip(values, shares, strict=True)]


def _rounded(value: float, digits: int) -> float:
    """Round to so many significant digits, but whole messages up to 9,999 not at all."""
    if value <= 0:
        return 0.0
    return round(value, digits - 1 - floor(log10(value)))


def _histogram(counter: Mapping[float, int]) -> Seconds:
    return tuple((float(value), counter[value]) for value in sorted(counter))


def _struct(demand: HourDemand) -> dict[str, Any]:
    """Return the demand as Arrow takes it."""
    row = {name: getattr(demand, name) for name in _NAMES}
    for name in HISTOGRAMS:
        pairs: Seconds = row[name]
        row[name] = {"values": [value for value, _ in pairs], "seconds": [seconds for _, seconds in pairs]}
    return row


_NAMES: Final = tuple(HourDemand.__dataclass_fields__)
HISTOGRAMS: Final = tuple(name for name, hint in get_type_hints(HourDemand).items() if hint == Seconds)
"""Fields of an hour's demand that are histograms."""


def demand_from(row: Mapping[str, Any]) -> HourDemand:
    """Return an hour's demand from the column ``demand``."""
    values = {name: row[name] for name in _NAMES}
    for name in HISTOGRAMS:
        values[name] = tuple(zip(row[name]["values"], row[name]["seconds"], strict=True))
    return HourDemand(**{**values, "rates": tuple(row["rates"])})
