"""What a report shows of the tables: the first few of everything, and how many there are.

What is shown of all resources, or of all who were refused, is picked where the rows are: each task keeps the first
few, and the driver the first of these. So all of it is bounded before it comes to the driver, but for a few rows for
each sidecar.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nsmallest
from math import isclose
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics.advice import fleet
from admin.analytics.findings import (
    Culprit,
    Curve,
    Findings,
    Fleet,
    Inputs,
    LimitChange,
    New,
    Point,
    Storm,
    Totals,
    Tried,
    Unknown,
    Week,
    WeekOf,
)
from admin.analytics.kernels import Instance, Kernel, read_advice, rows_of
from admin.analytics.options import Options, Try
from admin.analytics.spark import beside
from admin.analytics.tables import (
    HOURS,
    LIMIT_CHANGES,
    MINUTES,
    REFUSALS,
    RESOURCE,
    RESOURCE_KEY,
    STORMS,
    WHO_KEY,
    Days,
    Store,
    Table,
    arrow_schema,
    in_spark,
)
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S, WEEK_S
from admin.common.recommendations import ACTIONS, TO_DO, Period, Recommendation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

MAX_POINTS: Final = 1000
"""Points of a curve."""
_MAX_STORMS: Final = 20
_MAX_CULPRITS: Final = 20
_MAX_CURVES: Final = 6
_MAX_INSTANCES: Final = 50
_MAX_CHANGES: Final = 30
_MAX_FLEETS: Final = 20
_MAX_NEW: Final = 20
_MAX_OF_WEEK: Final = 20
MAX_RECOMMENDED: Final = 100
_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
"""Steps that a curve may have."""
_REACHED: Final = ("admitted", "shadowed", "bypassed", "exempt")
_NOT: Final = ("refused", "dropped")


class Picked:
    """Recommendations as they are written: how many of each action, and those most worth doing.

    Args:
        storms: that are shown; what is recommended for their resources is, too.
        tries: rates that were asked about.

    Attributes:
        counts: of each action; those that there are none of are missing.
        offered: of these, how many are offered apart, by what applies them.
        tried: what is known of the rates that were asked about.
    """

    def __init__(self, storms: Iterable[Storm], tries: Sequence[Try]) -> None:
        self.counts: dict[str, int] = {}
        self.offered: dict[str, int] = {}
        self._of_storms = {(each.instance, each.kind, each.name) for each in storms}
        self._tries = tries
        self._tried: list[Tried] = []
        self._first: list[tuple[Any, Recommendation]] = []
        self._besides: list[Recommendation] = []

    def add(self, recommendation: Recommendation) -> None:
        """Look at one."""
        self.counts[recommendation.action] = self.counts.get(recommendation.action, 0) + 1
        if recommendation.only_with:
            self.offered[recommendation.only_with] = self.offered.get(recommendation.only_with, 0) + 1
        of = (recommendation.instance, recommendation.kind, recommendation.name)
        if of in self._of_storms:
            self._besides.append(recommendation)
        self._tried += (_tried(recommendation, each) for each in self._tries if (each.kind, each.name) == of[1:])
        logged = recommendation.backtest.logged
        refused = logged.refused_messages if logged else 0
        key = (
            bool(recommendation.only_with), recommendation.action not in TO_DO, not refused,
            ACTIONS.index(recommendation.action), -refused, *of,
        )  # fmt: skip
        self._first.append((key, recommendation))
        if len(self._first) >= 20 * MAX_RECOMMENDED:
            self._first = nsmallest(MAX_RECOMMENDED, self._first, key=itemgetter(0))

    def first(self) -> list[Recommendation]:
        """Return those most worth doing: where something was refused first, by action; and those of storms."""
        found = [each for _, each in nsmallest(MAX_RECOMMENDED, self._first, key=itemgetter(0))]
        return [*found, *(each for each in self._besides if each not in found)]

    @property
    def tried(self) -> list[Tried]:
        """What is known of each rate that was asked about, also of names that nothing was asked for of."""
        known = {(each.kind, each.name, each.rate_per_s) for each in self._tried}
        unknown = (each for each in self._tries if tuple(each) not in known)
        return [*self._tried, *(Tried(instance="", **each._asdict()) for each in unknown)]


def _tried(recommendation: Recommendation, of: Try) -> Tried:
    found = next((each for each in recommendation.what_if if isclose(each.rate_per_s, of.rate_per_s)), None)
    return Tried(
        instance=recommendation.instance,
        **of._asdict(),
        refused_share=None if found is None else found.refused_share,
        refused_share_uncorrected=None if found is None else found.refused_share_uncorrected,
    )


class Digest:
    """Reads the tables of a report; what is not of storms and limits at once, beside whatever else is done.

    Args:
        store: the tables.
        options: what is asked for.
        instances: what is known of each sidecar.
    """

    def __init__(self, store: Store, options: Options, instances: Mapping[str, Instance]) -> None:
        self._store, self._options = store, options
        self._days = Days.of_seconds(options.since_s, options.until_s)
        self._coverage = [each.coverage for _, each in sorted(instances.items()) if each.coverage is not None]
        # What is newest, and since when a week has gone by.
        self._from_s = min((each.from_s for each in self._coverage), default=None)
        self._until_s = max((each.until_s for each in self._coverage), default=None)
        self._changes = beside(self._read_changes)
        self._culprits = beside(self._read_culprits)
        self._resources = beside(self._read_resources)
        self._curves = beside(self._read_curves)

    def findings(self, made_at: str, files: str, inputs: Inputs, picked: Picked, decided: "DataFrame") -> Findings:
        """Return all that a report shows.

        Args:
            made_at: when, ISO 8601 UTC.
            files: directory of what is for people.
            inputs: what the tables were made of.
            picked: the recommendations.
            decided: see ``report.Recommended``.
        """
        coverage, resources = self._coverage, self._resources.result()
        from_s = min((each for each in (self._from_s, resources.first_s) if each is not None), default=None)
        until_s = max((each for each in (self._until_s, resources.last_s) if each is not None), default=None)
        storms, counts = self.storms
        culprits, new_clients = self._culprits.result()
        unknown = {name: sum(getattr(each, name) for each in coverage) for name in Unknown.__struct_fields__}
        out = self._store.path("").rstrip("/")
        return Findings(
            made_at=made_at,
            out=files,
            tables=out if "://" in out else files,
            period=Period(from_s=from_s, until_s=until_s),
            inputs=inputs,
            totals=Totals(**resources.sums, **unknown, **counts, recommendations=picked.counts, offered=picked.offered),
            coverage=tuple(coverage[:_MAX_INSTANCES]),
            instance_count=len(coverage),
            storms=tuple(storms),
            culprits=tuple(culprits),
            curves=tuple(self._curves.result()),
            recommendations=tuple(picked.first()),
            tried=tuple(picked.tried),
            limit_changes=tuple(self._changes.result()),
            storm_gap_s=self._options.storm_gap_s,
            fleets=tuple(self._fleets(decided)) if len(coverage) > 1 else (),
            week=resources.week(self._from_s, self._until_s),
            new_resources=tuple(resources.new),
            new_clients=tuple(new_clients),
        )

    def _read(self, table: Table) -> "DataFrame":
        return self._store.read(table, self._days)

    def _read_resources(self) -> "_Resources":
        from_s, until_s = self._from_s, self._until_s
        week_s = None if until_s is None else _week_until_s(until_s) - WEEK_S
        before_s = None if week_s is None else week_s - WEEK_S
        messages = "demand_messages"
        refused = "refused_messages + dropped_messages"
        hours = self._read(HOURS).where("minutes > 0")
        by_resource = hours.groupBy(*RESOURCE_KEY).agg(
            F.expr(f"sum({_total(_REACHED)}) AS admitted"),
            F.expr(f"sum({_total(_NOT)}) AS refused"),
            F.expr("sum(held_messages) AS held"),
            F.expr("sum(shadowed_messages) AS shadowed"),
            F.expr("min(first_minute_s) AS first_s"),
            F.expr(f"max(last_minute_s) + {MINUTE_S} AS last_s"),
            *(
                F.expr(f"sum(IF(hour_s >= {since} AND hour_s < {until}, {what}, 0)) AS {name}")
                for name, what, since, until in (
                    ("week_messages", messages, week_s or 0, (week_s or 0) + WEEK_S),
                    ("week_refused", refused, week_s or 0, (week_s or 0) + WEEK_S),
                    ("before_messages", messages, before_s or 0, week_s or 0),
                    ("before_refused", refused, before_s or 0, week_s or 0),
                )
            ),
        )
        since_s = _new_since_s(from_s, until_s)
        found = by_resource.mapInArrow(_pick_resources(since_s), in_spark(_JSON)).collect()
        return _Resources.merged([msgspec.json.decode(row["json"], type=_Resources) for row in found])

    @cached_property
    def storms(self) -> tuple[list[Storm], dict[str, int]]:
        """Return the largest storms, and how many there are, of limits that refuse and of those that only shadow."""
        whole = Window.partitionBy("shadow")
        rows = (
            self._read(STORMS)
            .withColumn("rank", F.row_number().over(whole.orderBy(F.desc("messages"), "start_s", *RESOURCE_KEY)))
            .withColumn("all", F.count(F.lit(1)).over(whole))
            .withColumn("open", F.sum(F.col("is_open").cast("int")).over(whole))
            .where(F.col("rank") <= _MAX_STORMS)
            .orderBy("shadow", "rank")
            .collect()
        )
        counts = {"storms": 0, "open_storms": 0, "shadow_storms": 0}
        for row in rows:
            if row["shadow"]:
                counts["shadow_storms"] = row["all"]
            else:
                counts |= {"storms": row["all"], "open_storms": row["open"]}
        return [storm(row) for row in rows], counts

    def _read_culprits(self) -> tuple[list[Culprit], list[New]]:
        """Return who was refused most over the whole period, and who was refused for the first time lately."""
        key = (*RESOURCE_KEY, *WHO_KEY)
        refused = (
            self._read(REFUSALS)
            .where("verdict = 'refuse'")
            .groupBy(*key)
            .agg(
                *(F.sum(name).alias(name) for name in ("requests", "messages", "bytes")),
                F.min("hour_s").alias("first_s"),
            )
            .withColumn("total", F.sum("messages").over(Window.partitionBy(*RESOURCE_KEY)))
        )  # fmt: skip
        rows = refused.mapInArrow(_pick_culprits(_new_since_s(self._from_s, self._until_s)), in_spark(_JSON)).collect()
        parts = [msgspec.json.decode(row["json"], type=_Refused) for row in rows]
        return (
            nsmallest(_MAX_CULPRITS, (each for part in parts for each in part.culprits), key=_most_refused),
            nsmallest(_MAX_NEW, (each for part in parts for each in part.new), key=_most_messages),
        )

    def _fleets(self, decided: "DataFrame") -> list[Fleet]:
        """Return the resources on several sidecars that most is needed for."""
        largest = (
            decided.groupBy("kind", "name")
            .agg(F.sum("need_per_s").alias("need"), F.count(F.lit(1)).alias("sidecars"))
            .where("sidecars > 1")
            .orderBy(F.desc("need"), "kind", "name")
            .limit(_MAX_FLEETS)
        )
        # With all of their sidecars: they are added up.
        rows = (
            decided.join(F.broadcast(largest), ["kind", "name"])
            .orderBy(F.desc("need"), "kind", "name", "instance")
            .select("kind", "name", "advice")
            .collect()
        )
        members: dict[tuple[str, str], list[Any]] = {}
        for row in rows:
            members.setdefault((row["kind"], row["name"]), []).append(read_advice(bytes(row["advice"])))
        return [fleet(kind, name, of) for (kind, name), of in members.items()]

    def _read_curves(self) -> list[Curve]:
        """Return what was asked for over time; each with its own step."""
        worst = self._resources.result().worst
        if not worst:
            return []
        steps_s = {each.key: _step_s(each.last_s - each.first_s) for each in worst}
        minutes = self._read(MINUTES)
        # These may be a few minutes more; which of them are of a curve is seen where they are.
        for name, its in zip(RESOURCE_KEY, zip(*steps_s, strict=True), strict=True):
            minutes = minutes.where(F.col(name).isin(sorted(set(its))))
        rows = minutes.select(*_CURVE_COLUMNS).mapInArrow(_step(steps_s), in_spark(_STEPPED)).collect()
        points: dict[tuple[str, ...], dict[int, list[Any]]] = {key: {} for key in steps_s}
        for row in rows:
            _add_step(points[_key(row)], row["at"], [row[name] for name in _STEPPED.names[4:]])
        return [_curve(each, steps_s[each.key], points[each.key]) for each in worst]

    def _read_changes(self) -> list[LimitChange]:
        """Return the latest changes as they were written down."""
        names = [name for name in LimitChange.__struct_fields__ if name in LIMIT_CHANGES.names]
        read = self._read(LIMIT_CHANGES)
        rows = read.orderBy(F.desc("at_s"), "instance", F.desc("n")).limit(_MAX_CHANGES).collect()
        return [LimitChange(**{name: row[name] for name in names}) for row in rows]


_JSON: Final = arrow_schema(("json BINARY",))


def _json(found: msgspec.Struct) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"json": [msgspec.json.encode(found)]}, schema=_JSON)


def _week_until_s(until_s: int) -> int:
    """Return the end of the hour that a period ends in: weeks are added up from whole hours."""
    return until_s + -until_s % HOUR_S


def _new_since_s(from_s: int | None, until_s: int | None) -> int:
    """Return from when on something counts as new: the last week, or the last day of less than two."""
    if from_s is None or until_s is None:
        return sys.maxsize
    for back_s in (WEEK_S, DAY_S):
        if until_s - from_s >= 2 * back_s:
            return until_s - back_s
    return sys.maxsize


class _Resource(msgspec.Struct, frozen=True):
    """The sums of one resource, in the order of the columns that they are read from."""

    instance: str
    kind: str
    name: str
    admitted: int
    refused: int
    held: int
    shadowed: int
    first_s: int
    last_s: int
    week_messages: int
    week_refused: int
    before_messages: int
    before_refused: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.instance, self.kind, self.name


class _Resources(msgspec.Struct):
    """What is picked of all resources of a task, or of all tasks."""

    sums: dict[str, int] = {}
    first_s: int | None = None
    last_s: int | None = None
    worst: list[_Resource] = []
    of_week: list[_Resource] = []
    new: list[New] = []

    @classmethod
    def of(cls, resources: Sequence[_Resource], since_s: int) -> "_Resources":
        sums = {"resources": len(resources), "refused_resources": sum(each.refused > 0 for each in resources)}
        for name in ("admitted", "refused", "held", "shadowed"):
            sums[name] = sum(getattr(each, name) for each in resources)
        new = [
            New(
                **dict(zip(RESOURCE_KEY, each.key, strict=True)),
                since_s=each.first_s,
                messages=each.admitted + each.refused,
            )
            for each in resources
            if each.first_s >= since_s
        ]
        firsts, lasts = [each.first_s for each in resources], [each.last_s for each in resources]
        return cls(sums, min(firsts, default=None), max(lasts, default=None), *_first(resources, resources, new))

    @classmethod
    def merged(cls, parts: Sequence["_Resources"]) -> "_Resources":
        sums: Counter[str] = Counter()
        for part in parts:
            sums.update(part.sums)
        first_s = min((part.first_s for part in parts if part.first_s is not None), default=None)
        last_s = max((part.last_s for part in parts if part.last_s is not None), default=None)
        every = ([each for part in parts for each in getattr(part, name)] for name in ("worst", "of_week", "new"))
        return cls(sums, first_s, last_s, *_first(*every))

    def week(self, from_s: int | None, until_s: int | None) -> Week | None:
        if from_s is None or until_s is None or until_s - from_s < 2 * WEEK_S:
            return None
        until_s = _week_until_s(until_s)
        week_s = until_s - WEEK_S
        return Week(
            from_s=week_s,
            until_s=until_s,
            before_from_s=week_s - WEEK_S,
            before_until_s=week_s,
            resources=tuple(
                WeekOf(
                    **dict(zip(RESOURCE_KEY, each.key, strict=True)),
                    messages=each.week_messages,
                    refused=each.week_refused,
                    messages_before=each.before_messages,
                    refused_before=each.before_refused,
                )
                for each in self.of_week
            ),
        )


def _first(
    worst: Sequence[_Resource], of_week: Sequence[_Resource], new: Sequence[New]
) -> tuple[list[_Resource], list[_Resource], list[New]]:
    return (
        nsmallest(_MAX_CURVES, worst, key=_worst),
        nsmallest(_MAX_OF_WEEK, of_week, key=_of_week),
        nsmallest(_MAX_NEW, new, key=_most_messages),
    )


def _worst(each: _Resource) -> tuple[Any, ...]:
    return -each.refused - each.shadowed, -each.admitted, each.key


def _of_week(each: _Resource) -> tuple[Any, ...]:
    return -max(each.week_refused, each.before_refused), -max(each.week_messages, each.before_messages), each.key


def _most_messages(each: New) -> tuple[Any, ...]:
    return -each.messages, each.instance, each.kind, each.name, each.client, each.user


def _most_refused(each: Culprit) -> tuple[Any, ...]:
    return -each.messages, *(getattr(each, name) for name in (*RESOURCE_KEY, *WHO_KEY))


def _pick_resources(since_s: int) -> Kernel:
    """Return what picks of a task's resources: from their sums to a ``_Resources``."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _json(_Resources.of([_Resource(*row) for row in rows_of(batches, _Resource.__struct_fields__)], since_s))

    return run


class _Refused(msgspec.Struct):
    """What is picked of all that were refused."""

    culprits: list[Culprit]
    new: list[New]


def _pick_culprits(since_s: int) -> Kernel:
    """Return what picks of those that were refused: to a ``_Refused``."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        culprits: list[Culprit] = []
        new: list[New] = []
        key = (*RESOURCE_KEY, *WHO_KEY)
        for row in rows_of(batches, (*key, "requests", "messages", "bytes", "first_s", "total")):
            who = {name: value or "" for name, value in zip(key, row, strict=False)}
            requests, messages, size_bytes, first_s, total = row[len(key) :]
            culprits.append(
                Culprit(
                    **who, requests=requests, messages=messages, size_bytes=size_bytes,
                    share=messages / total if total else 0.0,
                )
            )  # fmt: skip
            if first_s >= since_s:
                new.append(New(**who, since_s=first_s, messages=messages))
            if len(culprits) >= 1000:
                culprits = nsmallest(_MAX_CULPRITS, culprits, key=_most_refused)
            if len(new) >= 1000:
                new = nsmallest(_MAX_NEW, new, key=_most_messages)
        yield _json(
            _Refused(
                nsmallest(_MAX_CULPRITS, culprits, key=_most_refused), nsmallest(_MAX_NEW, new, key=_most_messages)
            )
        )

    return run


_CURVE_COLUMNS: Final = (
    *RESOURCE_KEY, "minute_s", "rate_per_s", "demand_peak_per_s", "second", "second_admitted",
    "second_refused", "second_shadowed", *(f"{name}_messages" for name in (*_REACHED, *_NOT)),
)  # fmt: skip
_STEPPED: Final = arrow_schema((
    *RESOURCE, "at BIGINT", "admitted BIGINT", "refused BIGINT", "shadowed BIGINT", "peak BIGINT", "limit_at_s BIGINT",
    "limit DOUBLE",
))  # fmt: skip


def _step(steps_s: Mapping[tuple[str, str, str], int]) -> Kernel:
    """Return what adds up minutes, or their seconds, by the steps of curves: to ``_STEPPED``."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: dict[tuple[str, ...], dict[int, list[Any]]] = {}
        for instance, kind, name, *row in rows_of(batches, _CURVE_COLUMNS):
            key = instance, kind, name
            step_s = steps_s.get(key)
            if step_s is None:
                continue
            minute_s, rate, peak, second, admitted, refused, shadowed = row[:7]
            points = found.setdefault(key, {})
            if step_s >= MINUTE_S:
                # Of what reached the broker, what was shadowed stands second.
                sums = [sum(row[7:11]), sum(row[11:]), row[8], peak, minute_s, rate]
                _add_step(points, minute_s - minute_s % step_s, sums)
                continue
            for at, yes, no, would in zip(second, admitted, refused, shadowed or (0,) * len(second), strict=True):
                at_s = minute_s + at
                _add_step(points, at_s - at_s % step_s, [yes, no, would, yes + no, at_s, rate])
        rows = [
            dict(zip(_STEPPED.names, (*key, at, *sums), strict=True))
            for key, points in found.items()
            for at, sums in points.items()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_STEPPED)

    return run


def _add_step(points: dict[int, list[Any]], at: int, more: Sequence[Any]) -> None:
    """Add what is known of a step: sums, the busiest second, and the limit that was in force last."""
    sums = points.get(at)
    if sums is None:
        points[at] = list(more)
        return
    for place in range(3):
        sums[place] += more[place]
    sums[3] = max(sums[3], more[3])
    if more[4] >= sums[4]:
        sums[4:] = more[4:]


def _curve(of: _Resource, step_s: int, found: Mapping[int, Sequence[Any]]) -> Curve:
    return Curve(
        **dict(zip(RESOURCE_KEY, of.key, strict=True)),
        step_s=step_s,
        admitted=of.admitted,
        refused=of.refused,
        shadowed=of.shadowed,
        points=tuple(_point(at, found[at], step_s) for at in sorted(found)),
    )


def storm(row: "Row") -> Storm:
    """Return a row of the table of storms."""
    its = row.asDict(recursive=True)
    return msgspec.convert(its | {"size_bytes": its["bytes"], "rules": [each["name"] for each in its["rules"]]}, Storm)


def _total(outcomes: Sequence[str]) -> str:
    """Add up the messages of outcomes, in SQL."""
    return " + ".join(f"{outcome}_messages" for outcome in outcomes)


def _key(row: "Row") -> tuple[str, ...]:
    return tuple(row[name] for name in RESOURCE_KEY)


def _point(at_s: int, sums: Sequence[Any], step_s: int) -> Point:
    admitted, refused, shadowed, peak, _, limit = sums

    def rate(messages: int) -> float:
        # Six digits that count: one message a day is not nothing.
        return float(f"{messages / step_s:.6g}")

    return Point(
        at_s=at_s,
        admitted_per_s=rate(admitted),
        refused_per_s=rate(refused),
        shadowed_per_s=rate(shadowed),
        peak_per_s=float(peak),
        limit_per_s=limit,
    )


def _step_s(length_s: int) -> int:
    """Return the smallest step with which a curve has no more points than there may be."""
    return next((step for step in _STEPS_S if length_s <= step * (MAX_POINTS - 1)), _STEPS_S[-1])
