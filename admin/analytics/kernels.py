"""From hours to recommendations, on the executors: what is read from batches of Arrow, and what is put into them.

Three steps, each a function of sorted batches, for ``mapInArrow``: ``judge`` goes through the hours of each resource
and finds its storms and what to do about its limit; ``replay_weeks`` replays limits over loud minutes, week by week;
``settle`` puts both together. What is decided, and why, is in ``advice``, ``demand`` and ``backtest``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from admin.analytics import advice, backtest, retries
from admin.analytics.advice import Advice
from admin.analytics.combine import demand_from
from admin.analytics.demand import demand_of, hour_of_week, storms_of
from admin.analytics.figures import HourDemand, Known, Limit, Storms
from admin.analytics.findings import Coverage
from admin.analytics.lines import without_gc
from admin.analytics.options import Options
from admin.analytics.storms import storms
from admin.analytics.tables import COVERAGE, LIMIT_KEY, RESOURCE, RESOURCE_KEY, STORMS, arrow_schema, arrow_struct
from admin.analytics.words import DAY_S, MINUTE_S, WEEK_S
from admin.common.recommendations import Recommendation

Kernel = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
HOURS_COLUMNS: Final = (*RESOURCE_KEY, "hour_s", "minutes", *LIMIT_KEY, "demand", "storm_parts")
"""Of ``hours``, what ``judge`` wants, in this order; sorted by resource and hour."""
MINUTES_COLUMNS: Final = (
    *RESOURCE_KEY, "advice", "minute_s", *LIMIT_KEY, "refused", "refused_requests", "identified", "busy_answers",
    "languages", "second", "second_admitted", "second_refused", "second_requests", "second_bytes", "second_repeated",
)  # fmt: skip
"""Of ``minutes``, what ``replay_weeks`` wants; sorted by resource and minute, all of a week in one place."""
_DECIDED: Final = (
    *RESOURCE, "need_per_s DOUBLE", "weight DOUBLE", "limits_per_s DOUBLE",
    "least_rate_per_s DOUBLE", "least_bytes_per_s DOUBLE", "burst_s DOUBLE", "bytes_burst_s DOUBLE", "advice BINARY",
)  # fmt: skip
JUDGED: Final = pa.schema(
    [("made", pa.string()), ("storm", arrow_struct(STORMS.columns)), ("decided", arrow_struct(_DECIDED))]
)
"""Rows of ``judge``: a storm, or what is decided about a resource: what it needs of a capacity, what replays need to
know of the lowest rate among its candidates, and the advice itself."""
REPLAYED: Final = arrow_schema((*RESOURCE, "advice BINARY", "refused ARRAY<BIGINT>", "error BIGINT"))
"""Rows of ``replay_weeks``, and of decisions without a replay: one of these with the advice for each resource."""
SETTLED: Final = arrow_schema((
    *RESOURCE, "action STRING", "only_with STRING", "rule STRING", "rate_per_s DOUBLE", "recommended_rate_per_s DOUBLE",
    "bytes_per_s DOUBLE", "recommended_bytes_per_s DOUBLE", "confidence STRING", "evidence STRING", "messages BIGINT",
    "refused_messages BIGINT", "recommendation STRING",
))  # fmt: skip
"""The table ``recommendations``: the columns that people ask for, and all of it as JSON, as in
``recommendations.json``."""
_BATCH_ROWS: Final = 1024
_READ_ROWS: Final = 256
_ADVICE: Final = msgspec.json.Decoder(Advice)


def encode(found: msgspec.Struct) -> bytes:
    """Write something found, for another step."""
    return msgspec.json.encode(found)


def read_advice(written: bytes) -> Advice:
    """Read advice."""
    return _ADVICE.decode(written)


def read_recommendation(written: str) -> Recommendation:
    """Read a recommendation."""
    return msgspec.json.decode(written, type=Recommendation)


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """What the log knows of a sidecar.

    Attributes:
        known: for the demand of its resources.
        coverage: for people.
        newest_s: the last second that is known of.
        records: in the tables, each once.
        copies: that were there once more.
    """

    known: Known = Known()
    coverage: Coverage | None = None
    newest_s: int = 0
    records: int = 0
    copies: int = 0


def read_instance(written: bytes) -> Instance:
    """Read what is known of a sidecar."""
    return msgspec.json.decode(written, type=Instance)


COVERAGE_COLUMNS: Final = COVERAGE.names[:-1]
"""Of ``coverage``, what ``know`` wants; sorted by instance, run and hour."""
KNOWN: Final = arrow_schema(("instance STRING", "known BINARY"))
"""Rows of ``know``: an ``Instance`` as JSON."""


def _kernel(rows: Callable[[Iterable[pa.RecordBatch]], Iterable[Mapping[str, Any]]], schema: pa.Schema) -> Kernel:
    """Return what puts the rows that are made of batches into batches again."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with without_gc():
            made = iter(rows(batches))
            while some := list(islice(made, _BATCH_ROWS)):
                yield pa.RecordBatch.from_pylist(some, schema=schema)

    return run


def know() -> Kernel:
    """Return what puts together what is known of each sidecar: from coverage to ``KNOWN``."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for name, rows in groupby(rows_of(batches, COVERAGE_COLUMNS), key=lambda row: row[0]):
            its = (dict(zip(COVERAGE_COLUMNS, row, strict=True)) for row in rows)
            yield {"instance": name, "known": encode(_known(name, its))}

    return _kernel(made, KNOWN)


def _known(name: str, rows: Iterable[Mapping[str, Any]]) -> Instance:
    day_s: Counter[int] = Counter()
    week_s: Counter[int] = Counter()
    sums: Counter[str] = Counter()
    #: First and last minutes of runs in an hour: two runs have one in common where one ends and the next begins in it.
    ends: Counter[int] = Counter()
    versions: set[str] = set()
    first_s: list[int] = []
    last_s: list[int] = []
    lost = newest_s = 0
    for _, of_run in groupby(rows, key=itemgetter("run")):
        records = own = 0
        first_n = last_n = 0
        for row in of_run:
            hour_s, seconds = row["hour_s"], row["seconds"]
            day_s[hour_s // DAY_S] += seconds
            week_s[hour_of_week(hour_s)] += seconds
            for each in ("seconds", "limiting_off_minutes", "bypassed_requests", "other", "records", "copies"):
                sums[each] += row[each]
            sums["minutes"] += row["minutes"]
            if row["first_minute_s"] is not None:
                ends.update({row["first_minute_s"], row["last_minute_s"]})
            first_s.append(hour_s if row["first_minute_s"] is None else row["first_minute_s"])
            last_s.append(hour_s if row["last_minute_s"] is None else row["last_minute_s"] + MINUTE_S)
            versions.add(row["version"])
            newest_s = max(newest_s, row["newest_s"])
            records += row["records"]
            own = max(own, row["lost_records"])
            first_n = min(first_n or row["first_n"], row["first_n"])
            last_n = max(last_n, row["last_n"])
        lost += max(0, own, last_n - first_n + 1 - records)
    from_s, until_s = min(first_s), max(last_s)
    minutes = sums["minutes"] - sum(count - 1 for count in ends.values())
    return Instance(
        known=Known(sums["seconds"], lost, sums["other"], +day_s, +week_s),
        coverage=Coverage(
            instance=name,
            from_s=from_s,
            until_s=until_s,
            minutes=minutes,
            versions=tuple(sorted(version for version in versions if version)),
            gap_minutes=max(0, (until_s - from_s) // MINUTE_S - minutes),
            lost_records=lost,
            other=sums["other"],
            bypassed_requests=sums["bypassed_requests"],
            limiting_off_minutes=sums["limiting_off_minutes"],
        ),
        newest_s=newest_s,
        records=sums["records"],
        copies=sums["copies"],
    )


def judge(instances: Mapping[str, Instance], options: Options) -> Kernel:
    """Return what finds the storms of resources and decides about their limits: from hours to ``JUDGED``."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for key, rows in groupby(rows_of(batches, HOURS_COLUMNS), key=_key):
            instance = instances.get(key[0], _NOBODY)
            its = _Resource(rows)
            demand = demand_of(*key, its.hours(), Storms(), instance.known)
            of_it = list(storms(key, its.parts, gap_s=options.storm_gap_s, newest_s=instance.newest_s, top=options.top))
            yield from ({"made": "storm", "storm": each, "decided": None} for each in of_it)
            if its.is_asked:
                demand = replace(demand, storms=storms_of(of_it, demand.limit.rule))
                yield {"made": "decided", "storm": None, "decided": _decided(advice.decide(demand, options))}

    return _kernel(made, JUDGED)


_NOBODY: Final = Instance()


class _Resource:
    """The hours of a resource, gone through once, and none of them kept.

    Attributes:
        parts: of storms, so far.
        is_asked: something was asked for, so far.
    """

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self._rows = rows
        self.parts: list[dict[str, Any]] = []
        self.is_asked = False

    def hours(self) -> Iterator[tuple[int, Limit, HourDemand]]:
        for row in self._rows:
            self.parts += row[-1]
            if row[4]:
                self.is_asked = True
                yield row[3], _limit(row[5:-2]), demand_from(row[-2])


def _decided(found: Advice) -> dict[str, Any]:
    # A candidate for a part of the demand refuses nothing of what leaves all of it alone.
    whole = [each for each in found.candidates if each.part >= 1]
    rates = [each.rate_per_s for each in whole if each.rate_per_s is not None]
    sizes = [each.bytes_per_s for each in whole if each.bytes_per_s is not None]
    recommended = found.recommended.rate_per_s
    return {
        **{name: getattr(found, name) for name in RESOURCE_KEY},
        "need_per_s": found.need_per_s,
        "weight": found.weight,
        "limits_per_s": (recommended or 0.0) * found.messages_each,
        "least_rate_per_s": min(rates, default=None),
        "least_bytes_per_s": min(sizes, default=None),
        "burst_s": found.limit.burst_s,
        "bytes_burst_s": found.limit.bytes_burst_s,
        "advice": encode(found),
    }


def share_out(levels: Mapping[str, float], capacity_per_s: float) -> Kernel:
    """Return what puts decisions under the capacity of their instance: from ``decided`` to the same."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for (each,) in rows_of(batches, ("advice",)):
            found = read_advice(each)
            yield _decided(advice.share_out(found, levels.get(found.instance), capacity_per_s))

    return _kernel(made, arrow_schema(_DECIDED))


def replay_weeks(attempts: Mapping[str, int]) -> Kernel:
    """Return what replays limits: from minutes, as ``MINUTES_COLUMNS``, to ``REPLAYED``."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for (*key, _), rows in groupby(rows_of(batches, MINUTES_COLUMNS), key=_week):
            first = next(rows)
            decided = read_advice(first[3])
            minutes = (_minute(row, attempts) for row in chain((first,), rows))
            of_it = backtest.replay(minutes, decided.limit, decided.candidates)
            yield {**_named(key), "refused": list(of_it.refused), "error": of_it.error}

    return _kernel(made, REPLAYED)


_OF_IT: Final = frozenset(Recommendation.__struct_fields__)


class _Traffic(NamedTuple):
    """What ``retries`` wants of a minute."""

    busy_answers: int
    languages: Mapping[str, tuple[int, int]]
    identified: int
    second_admitted: Sequence[int]
    second_refused: Sequence[int]
    second_repeated: Sequence[int]


def _minute(row: Sequence[Any], attempts: Mapping[str, int]) -> backtest.Minute:
    after = 5 + len(LIMIT_KEY)
    refused, refused_requests, identified, busy, languages = row[after : after + 5]
    second, admitted, not_admitted, requests, size, repeated = row[after + 5 :]
    traffic = _Traffic(
        busy,
        {name: (each["requests"], each["refused"]) for name, each in languages},
        identified,
        admitted,
        not_admitted,
        repeated,
    )
    return backtest.Minute(
        row[4],
        _limit(row[5:after]),
        refused,
        second,
        [one + other for one, other in zip(admitted, not_admitted, strict=True)],
        requests,
        size,
        retries.shares(traffic, refused_requests, attempts),
    )


def settle() -> Kernel:
    """Return what makes recommendations: from ``REPLAYED``, sorted by resource, to ``SETTLED``."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for _, rows in groupby(rows_of(batches, tuple(REPLAYED.names)), key=_key):
            decided, refused, error = None, None, 0
            for *_, its_advice, its_refused, its_error in rows:
                if its_advice is not None:
                    decided = read_advice(its_advice)
                else:
                    refused = its_refused if refused is None else list(map(sum, zip(refused, its_refused, strict=True)))
                    error += its_error
            if decided is None:
                continue
            of_it = advice.recommendation(decided, refused, error)
            yield {
                **{name: getattr(of_it, name) for name in SETTLED.names if name in _OF_IT},
                "messages": decided.messages,
                "refused_messages": decided.refused_messages,
                "recommendation": encode(of_it).decode(),
            }

    return _kernel(made, SETTLED)


def unused(instances: Mapping[str, Instance]) -> Kernel:
    """Return what says what to do about limits that nobody used: from resources with ``LIMIT_KEY`` to ``REPLAYED``."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for instance, kind, name, *limit in rows_of(batches, (*RESOURCE_KEY, *LIMIT_KEY)):
            known = instances.get(instance, _NOBODY).known
            if known.observed_s > 0:
                of_it = advice.unused(
                    instance, kind, name, _limit(limit), known.observed_s, lost_records=known.lost_records
                )
                yield {**_named((instance, kind, name)), "advice": encode(of_it), "error": 0}

    return _kernel(made, REPLAYED)


def _named(key: Sequence[str]) -> dict[str, Any]:
    return dict(zip(RESOURCE_KEY, key, strict=True))


def _limit(values: Sequence[Any]) -> Limit:
    return Limit(**dict(zip(LIMIT_KEY, values, strict=True)))


def _key(row: Sequence[Any]) -> tuple[str, str, str]:
    return row[0], row[1], row[2]


def _week(row: Sequence[Any]) -> tuple[str, str, str, int]:
    # Several weeks of a resource may come to one task; each begins with full buckets, so that it makes no difference.
    return row[0], row[1], row[2], row[4] // WEEK_S


def rows_of(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of batches as these columns, in this order."""
    for batch in batches:
        # As Python's objects, lists take several times the memory of the batch.
        for at in range(0, batch.num_rows, _READ_ROWS):
            some = batch.slice(at, _READ_ROWS)
            yield from zip(*(some.column(name).to_pylist() for name in names), strict=True)
