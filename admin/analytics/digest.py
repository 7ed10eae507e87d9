"""What a report shows of the tables: the first few of everything, and how many there are.

All of it is bounded before it comes to the driver, but for a row for each sidecar.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import edits, tables
from admin.analytics.findings import (
    Coverage,
    Culprit,
    Curve,
    Findings,
    Held,
    Inputs,
    LimitChange,
    Point,
    Share,
    Storm,
    Totals,
    Unknown,
)
from admin.analytics.options import Options
from admin.analytics.tables import RESOURCE_KEY, WHO_KEY
from admin.analytics.words import MINUTE_S
from admin.wire.recommendations import Period, Recommendation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

MOST_POINTS: Final = 1000
"""Points of a curve."""
_MOST_STORMS: Final = 20
_MOST_CULPRITS: Final = 20
_MOST_CURVES: Final = 6
_MOST_INSTANCES: Final = 50
_MOST_CHANGES: Final = 30
_MOST_KNOWN_CHANGES: Final = 1000
"""Changes that are looked at for the limits between them, and for curves."""
_MOST_RULES: Final = 10_000
"""With more rules than this, nobody looks which of them applied before a change."""
MOST_RECOMMENDED: Final = 100
_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
"""Steps that a curve may have."""
_REACHED: Final = ("admitted", "shadowed", "bypassed", "exempt")
_NOT: Final = ("refused", "dropped")


class Digest:
    """Reads the tables of a report.

    Args:
        session: of Spark.
        out: directory or address of the tables.
        options: what is asked for.
    """

    def __init__(self, session: "SparkSession", out: str, options: Options) -> None:
        self._session, self._out, self._options = session, out, options
        self._days = tables.Days.of_seconds(options.since_s, options.until_s)

    def findings(
        self, made_at: str, files: str, inputs: Inputs, counts: Mapping[str, int], first: Sequence[Recommendation]
    ) -> Findings:
        """Return all that a report shows.

        Args:
            made_at: when, ISO 8601 UTC.
            files: directory of what is for people.
            inputs: what the tables were made of.
            counts: how many recommendations there are of each action.
            first: those that are shown.
        """
        coverage, instances, unknown = self._coverage()
        totals, first_s, last_s, worst = self._demand()
        storms, storm_count, open_count = self._storms()
        changes = self._changes()
        known = [each.from_s for each in coverage] + ([] if first_s is None else [first_s])
        until = [each.until_s for each in coverage] + ([] if last_s is None else [last_s])
        return Findings(
            made_at=made_at,
            out=files,
            tables=self._out if "://" in self._out else files,
            period=Period(from_s=min(known, default=None), until_s=max(until, default=None)),
            inputs=inputs,
            totals=Totals(
                **totals, **unknown, storms=storm_count, open_storms=open_count, recommendations=dict(counts)
            ),
            coverage=tuple(coverage),
            instance_count=instances,
            storms=tuple(storms),
            culprits=tuple(self._culprits()),
            curves=tuple(self._curves(worst, changes)),
            recommendations=tuple(first),
            limit_changes=tuple(self._with_what_held(changes, changes[:_MOST_CHANGES])),
            storm_gap_s=self._options.storm_gap_s,
        )

    def _read(self, table: tables.Table) -> "DataFrame":
        return tables.read(self._session, self._out, table, self._days)

    def _demand(self) -> "tuple[dict[str, int], int | None, int | None, list[Row]]":
        """Return totals, beginning and end, and the resources that get a curve."""
        by_resource = (
            self._read(tables.MINUTES)
            .groupBy(*RESOURCE_KEY)
            .agg(
                _sum(_REACHED).alias("admitted"),
                _sum(_NOT).alias("refused"),
                _sum(("held",)).alias("held"),
                F.min("minute_s").alias("first_s"),
                (F.max("minute_s") + MINUTE_S).alias("last_s"),
            )
        ).persist()
        try:
            row = by_resource.agg(
                F.count(F.lit(1)).alias("resources"),
                F.count_if(F.col("refused") > 0).alias("refused_resources"),
                F.coalesce(F.sum("admitted"), F.lit(0)).alias("admitted"),
                F.coalesce(F.sum("refused"), F.lit(0)).alias("refused"),
                F.coalesce(F.sum("held"), F.lit(0)).alias("held"),
                F.min("first_s").alias("first_s"),
                F.max("last_s").alias("last_s"),
            ).collect()[0]
            order = (F.desc("refused"), F.desc("admitted"), *RESOURCE_KEY)
            worst = by_resource.orderBy(*order).limit(_MOST_CURVES).collect()
        finally:
            by_resource.unpersist()
        totals = row.asDict()
        return totals, totals.pop("first_s"), totals.pop("last_s"), worst

    def _coverage(self) -> tuple[list[Coverage], int, dict[str, int]]:
        """Return the first sidecars, how many there are, and what is not known of all of them."""
        read = self._read(tables.COVERAGE)
        runs = read.groupBy("instance", "run").agg(
            F.greatest(F.max("last_n") - F.min("first_n") + 1 - F.sum("records"), F.max("lost_records")).alias("lost")
        )
        lost = runs.groupBy("instance").agg(F.greatest(F.sum("lost"), F.lit(0)).alias("lost_records"))
        found = (
            read.groupBy("instance")
            .agg(
                F.coalesce(F.min("first_minute_s"), F.min("hour_s")).alias("from_s"),
                F.coalesce(F.max("last_minute_s") + MINUTE_S, F.min("hour_s")).alias("until_s"),
                F.sum("minutes").alias("minutes"),
                *(F.sum(name).alias(name) for name in ("limiting_off_minutes", "bypassed_requests", "other")),
                F.array_sort(F.collect_set("version")).alias("versions"),
            )
            .withColumn("gap_minutes", F.expr(f"greatest((until_s - from_s) DIV {MINUTE_S} - minutes, 0)"))
            .join(lost, "instance")
            .orderBy("instance")
            .collect()
        )
        unknown = {name: sum(row[name] for row in found) for name in Unknown.__struct_fields__}
        return [_covered(row) for row in found[:_MOST_INSTANCES]], len(found), unknown

    def _storms(self) -> tuple[list[Storm], int, int]:
        read = self._read(tables.STORMS)
        counts = read.agg(F.count(F.lit(1)).alias("all"), F.count_if("is_open").alias("open")).collect()[0]
        rows = read.orderBy(F.desc("messages"), "start_s", *RESOURCE_KEY).limit(_MOST_STORMS).collect()
        return [storm(row) for row in rows], counts["all"], counts["open"]

    def _culprits(self) -> list[Culprit]:
        """Over the whole period; the table of culprits is by day."""
        key = (*RESOURCE_KEY, *WHO_KEY)
        refused = (
            self._read(tables.REFUSALS)
            .where("verdict = 'refuse'")
            .fillna("", WHO_KEY)
            .groupBy(*key)
            .agg(*(F.sum(name).alias(name) for name in ("requests", "messages", "bytes")))
        )
        whole = Window.partitionBy(*RESOURCE_KEY)
        rows = (
            refused.withColumn("share", F.col("messages") / F.nullif(F.sum("messages").over(whole), F.lit(0)))
            .orderBy(F.desc("messages"), *key)
            .limit(_MOST_CULPRITS)
            .collect()
        )
        return [
            Culprit(
                **{name: row[name] for name in key},
                requests=row["requests"],
                messages=row["messages"],
                size_bytes=row["bytes"],
                share=row["share"] or 0.0,
            )
            for row in rows
        ]

    def _curves(self, worst: "Sequence[Row]", changes: Sequence[LimitChange]) -> list[Curve]:
        """Return what was asked for over time; each with its own step, in one query for seconds and one for minutes."""
        if not worst:
            return []
        minutes = self._read(tables.MINUTES)
        steps_s = {_key(row): _step_s(row["last_s"] - row["first_s"]) for row in worst}
        fine = [(*key, step_s) for key, step_s in steps_s.items() if step_s < MINUTE_S]
        coarse = [(*key, step_s) for key, step_s in steps_s.items() if step_s >= MINUTE_S]
        points: dict[tuple[str, ...], list[Row]] = {key: [] for key in steps_s}
        for steps, points_of in ((fine, _fine), (coarse, _coarse)):
            if steps:
                stepped = minutes.join(self._few(steps, "step_s BIGINT"), list(RESOURCE_KEY))
                for point in points_of(stepped).orderBy("at").collect():
                    points[_key(point)].append(point)
        return [_curve(row, steps_s[_key(row)], points[_key(row)], changes) for row in worst]

    def _few(self, rows: list[tuple[Any, ...]], *more: str) -> "DataFrame":
        """Make a frame of a few resources, and what else is said of each."""
        return F.broadcast(self._session.createDataFrame(rows, ", ".join((*tables.RESOURCE, *more))))

    def _changes(self) -> list[LimitChange]:
        """Return the latest changes as they were written down."""
        names = [column.split()[0] for column in tables.LIMIT_CHANGES.columns]
        names = [name for name in LimitChange.__struct_fields__ if name in names]
        read = self._read(tables.LIMIT_CHANGES)
        rows = read.orderBy(F.desc("at_s"), "instance", F.desc("n")).limit(_MOST_KNOWN_CHANGES).collect()
        return [LimitChange(**{name: row[name] for name in names}) for row in rows]

    def _with_what_held(self, changes: Sequence[LimitChange], shown: Sequence[LimitChange]) -> list[LimitChange]:
        """Add what held before and after the edits of limits that were none of their own then."""
        around = edits.unclear(changes, shown)
        if not around:
            return list(shown)
        traffic = self._traffic_around(around)
        rules = self._rules([each.change for each in around])
        found = {}
        for at, each in enumerate(around):
            change, (before, after) = each.change, traffic.get(at, (None, None))
            stood = edits.stood(rules, change.instance, change.at_s)
            by_rules = edits.by_rules(stood, change.kind, edits.exact_name(change)) if stood else None
            if not stood or stood[0]["seen_s"] <= each.rules_from_s:
                by_rules = None
            found[id(change)] = msgspec.structs.replace(
                change,
                held_before=(before or by_rules) if change.rate_before_per_s is None else None,
                held_after=(after or by_rules) if change.rate_after_per_s is None else None,
            )
        return [found.get(id(change), change) for change in shown]

    def _traffic_around(self, around: Sequence[edits.Between]) -> dict[int, tuple[Held | None, Held | None]]:
        """Return the limit at the end of the last minute before each edit and of the first one after it."""
        asked = [
            (*_of(each.change), at, each.change.at_s, each.from_s, each.until_s or sys.maxsize)
            for at, each in enumerate(around)
        ]
        few = self._few(asked, "at INT", "at_s BIGINT", "from_s BIGINT", "until_s BIGINT")
        end = F.col("minute_s") + MINUTE_S
        limit = F.struct("rule", "rate_per_s", "action")
        before = (end <= F.col("at_s")) & (end > F.col("from_s")) & (end >= F.col("at_s") - edits.NEAR_S)
        after = (end > F.col("at_s")) & (end <= F.col("until_s")) & (end <= F.col("at_s") + edits.NEAR_S)
        rows = (
            self._read(tables.MINUTES)
            .join(few, list(RESOURCE_KEY))
            .groupBy("at")
            .agg(
                F.max_by(limit, F.when(before, F.col("minute_s"))).alias("before"),
                F.min_by(limit, F.when(after, F.col("minute_s"))).alias("after"),
            )
            .collect()
        )
        return {row["at"]: (_held(row["before"]), _held(row["after"])) for row in rows}

    def _rules(self, changes: "Sequence[LimitChange]") -> "list[dict[str, Any]]":
        """Return the rules that were written down of some instances, as far as they may stand for these names."""
        # In the period only: what was seen before it says nothing of what was changed since.
        several = F.col("name").rlike(r"[*?\[/]") | F.col("name").isin([each.name for each in changes])
        instances = F.col("instance").isin(sorted({each.instance for each in changes}))
        rows = self._read(tables.LIMITS).where(several & instances).limit(_MOST_RULES + 1).collect()
        return [] if len(rows) > _MOST_RULES else [row.asDict() for row in rows]


def _held(limit: "Row | None") -> Held | None:
    return None if limit is None else edits.held(limit.asDict())


def _of(change: LimitChange) -> tuple[str, str, str]:
    return change.instance, change.kind, edits.exact_name(change)


def _curve(row: "Row", step_s: int, found: "Sequence[Row]", changes: Sequence[LimitChange]) -> Curve:
    its = [change for change in changes if change.instance == row["instance"]]
    points, edited = edits.placed([_point(each, step_s) for each in found], step_s, its, row["kind"], row["name"])
    return Curve(
        **{name: row[name] for name in RESOURCE_KEY},
        step_s=step_s,
        admitted=row["admitted"],
        refused=row["refused"],
        points=points,
        edits=edited,
    )


def storm(row: "Row") -> Storm:
    """Return a row of the table of storms; tables that an older Sluice wrote have no users."""
    return Storm(
        instance=row["instance"],
        kind=row["kind"],
        name=row["name"],
        start_s=row["start_s"],
        end_s=row["end_s"],
        is_open=row["is_open"],
        requests=row["requests"],
        messages=row["messages"],
        size_bytes=row["bytes"],
        peak_per_s=row["peak_per_s"],
        peak_at_s=row["peak_at_s"],
        rules=tuple(rule["name"] for rule in row["rules"]),
        clients=_shares(row["clients"]),
        client_count=row["client_count"],
        users=_shares(row["users"] or ()),
        user_count=row["user_count"] or 0,
        producer_groups=_shares(row["producer_groups"]),
        producer_group_count=row["producer_group_count"],
    )


def _shares(rows: Any) -> tuple[Share, ...]:
    return tuple(Share(name=row["name"], messages=row["messages"], share=row["share"]) for row in rows)


def _covered(row: "Row") -> Coverage:
    return Coverage(
        instance=row["instance"],
        from_s=row["from_s"],
        until_s=row["until_s"],
        # A restart within a minute makes two of it.
        minutes=min(row["minutes"], (row["until_s"] - row["from_s"]) // MINUTE_S),
        **{name: row[name] for name in Unknown.__struct_fields__},
        versions=tuple(version for version in row["versions"] if version),
    )


def _sum(outcomes: Sequence[str]) -> "Column":
    """Add up the messages of outcomes."""
    return F.sum(F.expr(" + ".join(f"coalesce({outcome}_messages, 0)" for outcome in outcomes)))


def _key(row: "Row") -> tuple[str, ...]:
    return tuple(row[name] for name in RESOURCE_KEY)


def _coarse(minutes: "DataFrame") -> "DataFrame":
    """Return the steps of curves, of whole minutes."""
    return minutes.groupBy(*RESOURCE_KEY, F.expr("minute_s - minute_s % step_s").alias("at")).agg(
        _sum(_REACHED).alias("admitted"),
        _sum(_NOT).alias("refused"),
        F.max("demand_peak_per_s").alias("peak"),
        F.max_by("rate_per_s", "minute_s").alias("limit"),
    )


def _fine(minutes: "DataFrame") -> "DataFrame":
    """Return the steps of curves, of seconds."""
    seconds = minutes.select(
        *RESOURCE_KEY,
        "minute_s",
        "step_s",
        "rate_per_s",
        F.explode(F.arrays_zip("second", "second_admitted", "second_refused")).alias("of"),
    ).selectExpr(
        *RESOURCE_KEY,
        "minute_s + of.second AS second_s",
        "step_s",
        "rate_per_s",
        "of.second_admitted AS admitted",
        "of.second_refused AS refused",
    )
    return seconds.groupBy(*RESOURCE_KEY, F.expr("second_s - second_s % step_s").alias("at")).agg(
        F.sum("admitted").alias("admitted"),
        F.sum("refused").alias("refused"),
        F.max(F.col("admitted") + F.col("refused")).alias("peak"),
        F.max_by("rate_per_s", "second_s").alias("limit"),
    )


def _point(row: "Row", step_s: int) -> Point:
    return Point(
        at_s=row["at"],
        # Six digits that count: one message a day is not nothing.
        admitted_per_s=float(f"{row['admitted'] / step_s:.6g}"),
        refused_per_s=float(f"{row['refused'] / step_s:.6g}"),
        peak_per_s=float(row["peak"]),
        limit_per_s=row["limit"],
    )


def _step_s(length_s: int) -> int:
    """Return the smallest step with which a curve has no more points than there may be."""
    return next((step for step in _STEPS_S if length_s <= step * (MOST_POINTS - 1)), _STEPS_S[-1])
