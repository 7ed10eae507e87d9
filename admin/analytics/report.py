"""Builds a report: tables, and a dictionary of results for the terminal, the page and ``--json``.

Lists in the results contain only the first few rows. Totals are given separately.
"""

import json
import re
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from itertools import groupby
from math import inf
from operator import and_, itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from admin.analytics import log, rollup, tables, words
from admin.analytics.demand import Known
from admin.analytics.inputs import Found, SkippedInput
from admin.analytics.options import Options
from admin.analytics.resources import advise_each, advise_here, rows_of
from admin.analytics.spark import SMALL_BYTES, TASK_BYTES, TINY_BYTES
from admin.analytics.tables import ALL_DAYS, RESOURCE_KEY, WHO_KEY, Days, Store, day_of
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S, WEEK_S
from admin.common.errors import StartError
from admin.common.recommendations import ACTIONS, TO_DO, of_fleet
from admin.common.tables import printable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION: Final = 2
Row = dict[str, Any]
_MAX_ROWS: Final = 20
_MAX_SOURCES: Final = 50
_MAX_CURVES: Final = 6
_MAX_CALLERS: Final = 3
_MAX_POINTS: Final = 1000
_MAX_CHANGES: Final = 30
_MAX_RECOMMENDED: Final = 100
_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_TWICE_S: Final = 600
_TOGETHER: Final = (
    "Two processes recorded as {} at the same time, or its clock was set back between two runs."
    " None of its limits is changed by default. Give each process its own [rejection_log] instance"
)
_CLOCK_SET_BACK: Final = (
    "The clock of {} was set back, so some minutes count twice. None of its limits is changed by default."
    " Exclude that time with --since or --until"
)
_OF_SIDECARS: Final = ("other", "bypassed_requests", "limiting_off_minutes")
_REACHED: Final = " + ".join(f"{outcome}_messages" for outcome in rollup.REACHED)
_REFUSED: Final = "refused_messages + dropped_messages"


@dataclass(frozen=True)
class Tools:
    session: "SparkSession"
    store: Store
    step: Callable[[str], object]
    log_bytes: float = inf

    @property
    def in_process(self) -> bool:
        """Whether the log is so small that processing it in this process is faster than starting workers."""
        return self.log_bytes < TINY_BYTES

    def keep(self, frame: "DataFrame") -> "DataFrame":
        """Cache a frame. Frames of large logs are cached as columns, which Spark can spill to disk."""
        return frame.localCheckpoint(eager=False) if self.log_bytes < SMALL_BYTES else frame.persist()


@dataclass(frozen=True)
class Frames:
    minutes: "DataFrame"
    refusals: "DataFrame"
    coverage: "DataFrame"
    limits: "DataFrame"
    limit_changes: "DataFrame"


_TABLES: Final = {
    "minutes": (tables.MINUTES, "minute_s"), "refusals": (tables.REFUSALS, "at_s"),
    "coverage": (tables.COVERAGE, "hour_s"), "limits": (tables.LIMITS, "seen_s"),
    "limit_changes": (tables.LIMIT_CHANGES, "at_s"),
}  # fmt: skip


def make_tables(
    tools: Tools, found: Found, options: Options, hours: frozenset[int] | None = None
) -> tuple[Frames, Row]:
    """Read log files and write the tables. Return the tables, and statistics about the files.

    If ``hours`` is given, only the hours that start at these times are replaced. Raises StartError if there are no
    records and no report to update.
    """
    tools.step(f"reading {words.counted(len(found.files), 'file')}")
    in_period = _in_period(options, hours)
    lines = log.read(tools.session, found, in_process=tools.in_process)
    lines = tools.keep(lines.withColumn("wanted", F.expr(f"why IS NULL AND {in_period}")))
    counts = lines.selectExpr(
        "count_if(wanted) AS wanted",
        "count_if(why IS NOT NULL AND NOT is_file) AS bad",
        "count(why) AS aside",
        "min(IF(why IS NULL, at_s, NULL)) AS first_s",
        "max(IF(why IS NULL, at_s, NULL)) AS last_s",
    ).collect()[0]
    aside = _set_aside(lines) if counts["aside"] else []
    damaged = {each["file"] for each in aside if not each["lines"]}
    skipped = [each._asdict() for each in (*found.skipped, *found.vanished())]
    set_aside = [*aside, *skipped]
    if not counts["wanted"] and (hours is None or tools.store.read(tables.COVERAGE).isEmpty()):
        raise StartError(_why_nothing(counts["first_s"], counts["last_s"], found, set_aside))
    records = lines.where("wanted").select(*log.RECORD)
    tools.step(f"adding up {counts['wanted']:,} records")
    coverage = tools.keep(rollup.coverage(records, records))
    copies = coverage.selectExpr("coalesce(sum(copies), 0L)").collect()[0][0]
    if copies:
        once = tools.keep(records.dropDuplicates(["run", "n"]))
        coverage, records = tools.keep(rollup.coverage(records, once)), once
    made = {
        "minutes": rollup.minutes(records),
        "refusals": rollup.refusals(records),
        "coverage": coverage,
        "limits": rollup.limits(records),
        "limit_changes": rollup.limit_changes(records),
    }
    is_kept = hours is None and tools.log_bytes < SMALL_BYTES
    if is_kept:
        made |= {name: tools.keep(made[name]) for name in ("minutes", "refusals")}
    period = Days.of_seconds(options.since_s, options.until_s)
    days: Container[date] = period
    if hours is not None:
        days = frozenset(map(day_of, hours))
        touched = F.col("dt").isin(sorted(days))
        for name, (table, at) in _TABLES.items():
            kept = tools.store.read(table).where(touched & ~F.expr(f"{at} - {at} % {HOUR_S}").isin(sorted(hours)))
            made[name] = made[name].select(*table.names).unionByName(kept.select(*table.names))
        rules = made["limits"].groupBy(*RESOURCE_KEY, "rule", "dt")
        made["limits"] = rules.agg(F.max_by(F.struct(*tables.LIMITS.names), "seen_s").alias("its")).select("its.*")
    for name, (table, _) in _TABLES.items():
        tools.store.write(made[name], table, days)
    frames = Frames(**made) if is_kept else read_tables(tools, period)
    inputs = {
        "logs": found.shown,
        "files": len(found.files),
        "size_bytes": found.size_bytes,
        "records": counts["wanted"] - copies,
        "duplicates": copies,
        "bad_lines": counts["bad"],
        "skipped_files": len(skipped) + len(damaged),
        "outside_files": found.outside,
        "set_aside": set_aside,
    }
    return frames, inputs


def read_tables(tools: Tools, days: Days = ALL_DAYS) -> Frames:
    return Frames(**{name: tools.store.read(table, days) for name, (table, _) in _TABLES.items()})


def _in_period(options: Options, hours: Iterable[int] | None) -> str:
    conditions = [] if options.since_s is None else [f"at_s >= {options.since_s}"]
    conditions += [] if options.until_s is None else [f"at_s < {options.until_s}"]
    if hours is not None:
        conditions.append(f"at_s - at_s % {HOUR_S} IN ({', '.join(map(str, sorted(hours))) or 'NULL'})")
    return " AND ".join(conditions) or "true"


def hours_of(tools: Tools, found: Found) -> defaultdict[str, set[int]]:
    rows = log.hours_of(tools.session, found, in_process=tools.in_process).collect()
    hours: defaultdict[str, set[int]] = defaultdict(set)
    for row in rows:
        hours[path_of(row["file"])].update(row["hours"])
    return hours


def _set_aside(lines: "DataFrame") -> list[Row]:
    rows = (
        lines.where("why IS NOT NULL")
        .groupBy("file", "why")
        .agg(F.expr("count_if(NOT is_file) AS lines"), F.min("example").alias("example"))
        .orderBy(F.desc("lines"), "file", "why")
        .collect()
    )
    return [
        SkippedInput(path_of(row["file"]), row["why"], row["lines"], row["example"] or "")._asdict() for row in rows
    ]


def path_of(address: str) -> str:
    return re.sub("^file:/+", "/", urllib.parse.unquote(address))


def _why_nothing(first_s: int | None, last_s: int | None, found: Found, set_aside: Sequence[Row]) -> list[str]:
    if first_s is not None and last_s is not None:
        there = words.span(first_s, last_s)
        return [f"nothing to report: no records in the requested period; the logs contain records from {there}"]
    why = [
        f"{each['file']}: {words.counted(each['lines'], 'line') + ': ' if each['lines'] else ''}{each['reason']}"
        for each in set_aside[:5]
    ]
    return [*why, f"nothing to report: no rejection log records in {words.counted(len(found.files), 'file')}"]


def sidecars_of(coverage: "DataFrame") -> tuple[dict[str, Known], list[Row]]:
    """Return the periods for which each sidecar and fleet has records, and the report's rows about sidecars."""
    runs = (
        coverage.groupBy("instance", "run", "dt")
        .agg(
            F.min("hour_s").alias("hour_s"),
            F.expr("coalesce(min(first_minute_s), min(hour_s)) AS first_s"),
            F.expr(f"coalesce(max(last_minute_s) + {MINUTE_S}, max(hour_s)) AS last_s"),
            *(F.sum(name).alias(name) for name in ("minutes", "seconds", "records", *_OF_SIDECARS)),
            *(F.max(name).alias(name) for name in ("lost_records", "last_n", "newest_s")),
            *(F.max(name).alias(name) for name in ("version", "killed_run", "fleet")),
            F.min("first_n").alias("first_n"),
        )
        .orderBy("instance", "run", "dt")
        .collect()
    )  # fmt: skip
    sidecars, told = {}, []
    fleets: defaultdict[str, list[Known]] = defaultdict(list)
    for name, rows in groupby(runs, key=itemgetter("instance")):
        its = [row.asDict() for row in rows]
        sidecar, row = _sidecar(name, its)
        sidecars[name] = sidecar
        told.append(row)
        for fleet in {row["fleet"] for row in its if row["fleet"]}:
            fleets[of_fleet(fleet)].append(sidecar)
    return sidecars | {name: _together(members) for name, members in fleets.items()}, told


def _together(members: Sequence[Known]) -> Known:
    day_s = {day: max(each.day_s.get(day, 0) for each in members) for each in members for day in each.day_s}
    return Known(
        sum(day_s.values()),
        sum(each.lost_records for each in members),
        sum(each.other for each in members),
        day_s,
        max(each.until_s for each in members),
        next((each.twice for each in members if each.twice), ""),
    )


def _sidecar(name: str, rows: Sequence[Row]) -> tuple[Known, Row]:
    lost = missing = shared = 0
    twice = ""
    killed = {row["killed_run"] for row in rows}
    spans, killed_s = [], []
    day_s: Counter[int] = Counter()
    for row in rows:
        day_s[row["hour_s"] // DAY_S] += row["seconds"]
    for _, of_run in groupby(rows, key=itemgetter("run")):
        run = list(of_run)
        numbers = max(row["last_n"] for row in run) - min(row["first_n"] for row in run) + 1
        lost += max(0, *(row["lost_records"] for row in run), numbers - sum(row["records"] for row in run))
        first_s, last_s = min(row["first_s"] for row in run), max(row["last_s"] for row in run)
        minutes = sum(row["minutes"] for row in run)
        if run[0]["run"] in killed:
            killed_s.append(max(row["newest_s"] for row in run))
        if sum(row["seconds"] for row in run) > minutes * MINUTE_S + _TWICE_S:
            twice = _CLOCK_SET_BACK
        spans.append((first_s, last_s, minutes))
        missing += (last_s - first_s) // MINUTE_S - minutes
    from_s, until_s = min(spans)[0], max(last_s for _, last_s, _ in spans)
    end_s, end_gap_s = from_s, 0
    for first_s, last_s, its_minutes in sorted(spans):
        if not its_minutes:
            continue
        gap_s = last_s - first_s - its_minutes * MINUTE_S
        # A run and its successor share a minute, and each may cover a gap in the other.
        both_s = max(0, min(end_s, last_s) - first_s - max(gap_s, end_gap_s))
        shared += both_s // MINUTE_S
        if last_s > end_s:
            end_s, end_gap_s = last_s, gap_s
        if both_s > _TWICE_S:
            twice = twice or _TOGETHER
    twice = twice.format(printable(name))
    minutes = sum(row["minutes"] for row in rows) - shared
    sums = {each: sum(row[each] for row in rows) for each in _OF_SIDECARS}
    gap_minutes = max(0, (until_s - from_s) // MINUTE_S - minutes)
    row = {
        "instance": name,
        "from_s": from_s,
        "until_s": until_s,
        "newest_s": max(row["newest_s"] for row in rows),
        "minutes": minutes,
        "versions": sorted({row["version"] for row in rows if row["version"]}),
        "gap_minutes": gap_minutes,
        "missing_minutes": min(missing, gap_minutes),
        "lost_records": lost,
        "recorded_twice": twice,
        "killed_s": sorted(killed_s),
        **sums,
    }
    observed_s = min(sum(day_s.values()), minutes * MINUTE_S)
    return Known(observed_s, lost, sums["other"], day_s, until_s, twice), row


def advise(
    tools: Tools, frames: Frames, options: Options, sidecars: Mapping[str, Known]
) -> tuple["DataFrame", "DataFrame"]:
    """Find storms and recommend changes to limits. Return both, and write them and the culprits as tables."""
    tools.step("finding storms")
    days = Days.of_seconds(options.since_s, options.until_s)
    whose = f"explode(IF(fleet != '', array(instance, {rollup.OF_FLEET}), array(instance))) AS instance"
    newest = frames.coverage.selectExpr(whose, "newest_s").groupBy("instance").agg(F.max("newest_s").alias("newest_s"))
    gap_s = options.storm_gap_s
    storms = tools.keep(rollup.floods(rollup.storms(frames.refusals, newest, gap_s), gap_s))
    tools.store.write(storms, tables.STORMS, days)
    tools.store.write(rollup.culprits(frames.refusals), tables.CULPRITS, days)
    tools.step("replaying demand against limits")
    given = (rows_of(frames.minutes, storms, frames.limits), sidecars, options)
    if tools.in_process:
        recommendations = advise_here(*given)
    else:
        recommendations = advise_each(*given, max(2, int(min(10_000, tools.log_bytes // TASK_BYTES))))
    recommendations = tools.keep(recommendations)
    recommendations.write.mode("overwrite").parquet(tools.store.path("recommendations"))
    return storms, recommendations


def results(
    frames: Frames, advised: tuple["DataFrame", "DataFrame"], coverage: list[Row], inputs: Row, options: Options
) -> Row:
    """Return a report's content. Times are in seconds since 1970 UTC, and rates are per second."""
    storm_rows, recommendations = advised
    from_s = min((each["from_s"] for each in coverage), default=None)
    until_s = max((each["until_s"] for each in coverage), default=None)
    length_s = 0 if from_s is None or until_s is None else until_s - from_s
    # New names were first seen in the last week or, if the log is shorter than two weeks, on the last day.
    back_s = next((each for each in (WEEK_S, DAY_S) if length_s >= 2 * each), None)
    new_since_s = until_s - back_s if until_s is not None and back_s is not None else None
    resources, sums = _resources(frames.minutes, until_s, new_since_s)
    storms, counts = _storms(storm_rows)
    recommended, actions, offered, tried = _recommendations(recommendations, storms, options)
    callers, culprits, new_clients = _culprits(frames.refusals, new_since_s)
    unknown = {
        name: sum(each[name] for each in coverage)
        for name in ("gap_minutes", "missing_minutes", "lost_records", *_OF_SIDECARS)
    }
    totals = {**sums, **unknown, **counts, "recommendations": actions, "offered": offered}
    aside = sorted(inputs["set_aside"], key=lambda each: each["lines"] > 0)[:_MAX_SOURCES]
    return {
        "version": VERSION,
        "period": {"from": from_s, "until": until_s},
        "inputs": inputs | {"set_aside": aside},
        "totals": totals,
        "coverage": coverage[:_MAX_SOURCES],
        "instance_count": len(coverage),
        "recorded_twice": [each["recorded_twice"] for each in coverage if each["recorded_twice"]][:_MAX_SOURCES],
        "killed": [(each["instance"], at_s) for each in coverage for at_s in each["killed_s"]][:_MAX_SOURCES],
        "attempts": dict(options.attempts),
        "storms": storms,
        "storm_gap_s": options.storm_gap_s,
        "callers": callers,
        "culprits": culprits,
        "curves": _curves(frames.minutes, resources["worst"]),
        "recommendations": recommended,
        "tried": tried,
        "fleets": _fleets(recommendations) if len(coverage) > 1 else [],
        "week": _week(resources["of_week"], from_s, until_s),
        "new_resources": [
            {**_named(each), "since_s": each["first_s"], "messages": each["admitted"] + each["refused"]}
            for each in resources["new"]
        ],
        "new_clients": new_clients,
        "limit_changes": _changes(frames.limit_changes),
    }


def _named(row: Mapping[str, Any]) -> Row:
    return {name: row[name] for name in RESOURCE_KEY}


def _resources(minutes: "DataFrame", until_s: int | None, new_since_s: int | None) -> tuple[dict[str, list[Row]], Row]:
    end_s = 0 if until_s is None else until_s + -until_s % HOUR_S
    week, before = (f"minute_s BETWEEN {end_s - at * WEEK_S} AND {end_s - (at - 1) * WEEK_S - 1}" for at in (1, 2))
    by_resource = minutes.groupBy(*RESOURCE_KEY).agg(
        F.expr(f"sum({_REACHED}) AS admitted"),
        F.expr(f"sum({_REFUSED}) AS refused"),
        F.expr("sum(held_messages) AS held"),
        F.expr("sum(shadowed_messages) AS shadowed"),
        F.expr("min(minute_s) AS first_s"),
        F.expr(f"max(minute_s) + {MINUTE_S} AS last_s"),
        *(
            F.expr(f"coalesce(sum(IF({when}, {what}, 0)), 0L) AS {name}")
            for name, what, when in (
                ("messages", "demand_messages", week),
                ("refused_week", _REFUSED, week),
                ("messages_before", "demand_messages", before),
                ("refused_before", _REFUSED, before),
            )
        ),
    )
    is_new = f"coalesce(first_s >= {new_since_s or 'NULL'}, false)"
    orders = {
        "worst": (_MAX_CURVES, "true", "-(refused + shadowed)", "-admitted"),
        "of_week": (_MAX_ROWS, "true", "-greatest(refused_week, refused_before)",
            "-greatest(messages, messages_before)"),
        "new": (_MAX_ROWS, is_new, f"NOT {is_new}", "-(admitted + refused)"),
    }  # fmt: skip
    outcomes = ("admitted", "refused", "held", "shadowed")
    every = Window.partitionBy()
    rows = (
        by_resource.withColumns({
            **{name: F.row_number().over(every.orderBy(*map(F.expr, by), *RESOURCE_KEY))
                for name, (_, _, *by) in orders.items()},
            "sums": F.struct(
                F.count(F.lit(1)).over(every).alias("resources"),
                F.count_if(F.col("refused") > 0).over(every).alias("refused_resources"),
                *(F.sum(each).over(every).alias(each) for each in outcomes),
            ),
        })
        .where(" OR ".join(f"({name} <= {most} AND {where})" for name, (most, where, *_) in orders.items()))
        .withColumn("is_new", F.expr(is_new))
        .collect()
    )  # fmt: skip
    found = {
        name: [row.asDict() for row in sorted(rows, key=itemgetter(name)) if row[name] <= most]
        for name, (most, *_) in orders.items()
    }
    found["new"] = [row for row in found["new"] if row["is_new"]]
    none = dict.fromkeys(("resources", "refused_resources", *outcomes), 0)
    return found, rows[0]["sums"].asDict() if rows else none


def _week(of_week: Sequence[Row], from_s: int | None, until_s: int | None) -> Row | None:
    if from_s is None or until_s is None or until_s - from_s < 2 * WEEK_S:
        return None
    end_s = until_s + -until_s % HOUR_S
    return {
        "from_s": end_s - WEEK_S,
        "until_s": end_s,
        "before_from_s": end_s - 2 * WEEK_S,
        "before_until_s": end_s - WEEK_S,
        "resources": [
            {**_named(each), "messages": each["messages"], "refused": each["refused_week"],
                "messages_before": each["messages_before"], "refused_before": each["refused_before"]}
            for each in of_week
        ],
    }  # fmt: skip


def _storms(storms: "DataFrame") -> tuple[list[Row], Row]:
    flood = ("shadow", "kind", "name", "flood_s")
    whole = Window.partitionBy("shadow")
    largest = (
        storms.groupBy(*flood)
        .agg(F.sum("messages").alias("flood_messages"), F.expr("bool_or(is_open) AS open"))
        .withColumn("rank", F.row_number().over(whole.orderBy(F.desc("flood_messages"), *flood)))
        .withColumn("all", F.count(F.lit(1)).over(whole))
        .withColumn("all_open", F.count_if("open").over(whole))
        .where(F.col("rank") <= _MAX_ROWS)
    )
    of_flood = Window.partitionBy(*flood).orderBy(F.desc("messages"), "start_s", "instance")
    rows = (
        storms.select(*tables.STORMS.names)
        .join(F.broadcast(largest), list(flood))
        .withColumn("at", F.row_number().over(of_flood))
        .where(F.col("at") <= _MAX_SOURCES)
        .orderBy("shadow", "rank", "at")
        .collect()
    )
    counts = {"storms": 0, "open_storms": 0, "shadow_storms": 0}
    found = []
    for row in rows:
        its = row.asDict(recursive=True)
        counts |= (
            {"shadow_storms": its["all"]} if its["shadow"] else {"storms": its["all"], "open_storms": its["all_open"]}
        )
        its["size_bytes"] = its.pop("bytes")
        its["rules"] = [each["name"] for each in its["rules"]]
        found.append({name: value for name, value in its.items() if name not in _OF_RANKING})
    return found, counts


_OF_RANKING: Final = frozenset({"dt", "open", "rank", "all", "all_open", "at"})


def _culprits(refusals: "DataFrame", new_since_s: int | None) -> tuple[list[Row], list[Row], list[Row]]:
    key = (*RESOURCE_KEY, *WHO_KEY)
    refused = (
        refusals.where("verdict = 'refuse'")
        .groupBy(*key)
        .agg(*(F.sum(name).alias(name) for name in ("requests", "messages", "bytes")), F.min("at_s").alias("since_s"))
        .withColumn("of_all", F.sum("messages").over(Window.partitionBy(*RESOURCE_KEY)))
        .selectExpr(*key, "requests", "messages", "bytes AS size_bytes", "since_s",
            "coalesce(try_divide(messages, of_all), 0D) AS share")
        .orderBy(F.desc("messages"), *key)
    )  # fmt: skip
    who = tuple(name for name in WHO_KEY if name != "product")
    callers = (
        refused.groupBy(*who)
        .agg(
            F.sum("messages").alias("messages"),
            F.count(F.lit(1)).alias("resources"),
            F.max_by(F.struct(*RESOURCE_KEY), F.struct("messages", *RESOURCE_KEY)).alias("most"),
        )
        .withColumn("of_all", F.sum("messages").over(Window.partitionBy()))
        .selectExpr(*who, "messages", "coalesce(try_divide(messages, of_all), 0D) AS share", "resources", "most.*")
        .orderBy(F.desc("messages"), *who)
    )
    found = _rows(callers.limit(_MAX_CALLERS)), _rows(refused.drop("since_s").limit(_MAX_ROWS))
    if new_since_s is None:
        return *found, []
    new = refused.where(f"since_s >= {new_since_s}").select(*key, "since_s", "messages").limit(_MAX_ROWS)
    return *found, _rows(new)


def _rows(frame: "DataFrame") -> list[Row]:
    return [row.asDict() for row in frame.collect()]


def _recommendations(
    frame: "DataFrame", storms: Sequence[Row], options: Options
) -> tuple[list[Row], dict[str, int], dict[str, int], list[Row]]:
    action = ", ".join(f"'{each}', {at}" for at, each in enumerate(ACTIONS))
    to_do = ", ".join(f"'{each}'" for each in TO_DO)
    order = (
        f"action NOT IN ({to_do})", "only_with != ''", "coalesce(refused_messages, 0) = 0", f"map({action})[action]",
        "-refused_messages", *RESOURCE_KEY,
    )  # fmt: skip
    shown = {(each["kind"], each["name"]) for each in storms} | {(each.kind, each.name) for each in options.tries}
    first = frame.orderBy(*map(F.expr, order)).limit(_MAX_RECOMMENDED).select("recommendation").collect()
    wanted = frame.where(F.concat_ws("\t", "kind", "name").isin(["\t".join(each) for each in sorted(shown)]))
    others = [json.loads(row[0]) for row in wanted.select("recommendation").orderBy(*RESOURCE_KEY).collect()]
    counts = frame.groupBy("action", "only_with").count().collect()
    actions: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    for row in counts:
        actions[row["action"]] += row["count"]
        offered[row["only_with"]] += row["count"]
    of_storms = {tuple(_named(each).values()) for each in storms}
    found = [json.loads(row[0]) for row in first]
    found += [each for each in others if tuple(_named(each).values()) in of_storms and each not in found]
    tried = []
    for each in options.tries:
        its = [of for of in others if (of["kind"], of["name"]) == (each.kind, each.name)]
        tried += [_tried(of, each.rate_per_s) for of in its] or [
            {"instance": "", "kind": each.kind, "name": each.name, "rate_per_s": each.rate_per_s}
        ]
    return found, dict(actions), {name: count for name, count in offered.items() if name}, tried


def _tried(of: Row, rate_per_s: float) -> Row:
    its: Row = next(
        (each for each in of.get("what_if", ()) if abs(each["rate_per_s"] - rate_per_s) < 1e-9 * rate_per_s), {}
    )
    shares = {name: its.get(name) for name in ("refused_share", "refused_share_uncorrected")}
    return {**_named(of), "rate_per_s": rate_per_s, **shares}


def _fleets(frame: "DataFrame") -> list[Row]:
    """Return the resources with the largest demand among those that multiple sidecars limit."""
    member = "struct(-need_per_s AS less, instance, limit_per_s)"
    rows = (
        frame.where("action != 'unused'")
        .groupBy("kind", "name")
        .agg(
            F.sum("need_per_s").alias("need_per_s"),
            F.expr("IF(count(limit_per_s) = count(*), sum(limit_per_s), NULL) AS limit_per_s"),
            F.count(F.lit(1)).alias("member_count"),
            F.expr(f"slice(array_sort(collect_list({member})), 1, {_MAX_SOURCES}) AS members"),
        )
        .where("member_count > 1")
        .orderBy(F.desc("need_per_s"), "kind", "name")
        .limit(_MAX_ROWS)
        .collect()
    )
    return [
        {
            **{name: row[name] for name in ("kind", "name", "need_per_s", "limit_per_s", "member_count")},
            "members": [
                {"instance": each["instance"], "need_per_s": -each["less"], "limit_per_s": each["limit_per_s"],
                    "share": -each["less"] / row["need_per_s"] if row["need_per_s"] else 1 / row["member_count"]}
                for each in row["members"]
            ],
        }
        for row in rows
    ]  # fmt: skip


def _curves(minutes: "DataFrame", worst: Sequence[Row]) -> list[Row]:
    """Return the demand over time for each of the ``worst`` resources. Steps without requests are omitted.

    Demand is in the unit that the limit had at the time. Requests are assumed to be refused in the same proportion as
    messages.
    """
    if not worst:
        return []
    steps = [_step_s(each["last_s"] - each["first_s"]) for each in worst]
    step_of = F.coalesce(
        *(
            F.when(reduce(and_, (F.col(name) == value for name, value in _named(each).items())), F.lit(step_s))
            for each, step_s in zip(worst, steps, strict=True)
        )
    )
    seconds = (
        minutes.where(F.col("name").isin(sorted({each["name"] for each in worst})))
        .withColumns({
            "step_s": step_of,
            "would": F.expr("IF(size(second_shadowed) = 0, transform(second, s -> 0L), second_shadowed)"),
        })
        .where("step_s IS NOT NULL")
        .selectExpr(*RESOURCE_KEY, "step_s", "minute_s", "rate_per_s", "count",
            "inline(arrays_zip(second, second_admitted, second_refused, second_requests, would))")
        .withColumn("asked", F.expr("second_admitted + second_refused"))
        .withColumn("part", F.expr("IF(count = 'requests', second_requests / greatest(1L, asked), 1D)"))
    )  # fmt: skip
    sums = {"admitted": "second_admitted", "refused": "second_refused", "shadowed": "would"}
    rows = (
        seconds.withColumn("at_s", F.expr("minute_s + second - (minute_s + second) % step_s"))
        .groupBy(*RESOURCE_KEY, "step_s", "at_s")
        .agg(
            *(F.expr(f"sum({each} * part) / step_s AS {name}_per_s") for name, each in sums.items()),
            F.expr("max(asked * part) AS peak_per_s"),
            F.expr("max_by(struct(rate_per_s), minute_s).rate_per_s AS limit_per_s"),
            F.expr("max_by(count, minute_s) AS counted"),
        )
        .orderBy("at_s")
        .collect()
    )
    points: defaultdict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        *key, _, at_s = row[:5]
        # Round to significant digits, so that one message a day does not become 0.
        shown = {f"{name}_per_s": float(f"{row[f'{name}_per_s']:.6g}") for name in sums}
        limit = {"limit_per_s": row["limit_per_s"], "count": row["counted"]}
        point = {"at_s": at_s, **shown, "peak_per_s": row["peak_per_s"], **limit}
        points[tuple(key)].append(point)
    return [
        {**_named(each), "step_s": step_s, "points": points[tuple(_named(each).values())],
            **{name: each[name] for name in sums}}
        for each, step_s in zip(worst, steps, strict=True)
        if tuple(_named(each).values()) in points
    ]  # fmt: skip


def _step_s(length_s: int) -> int:
    return next((step for step in _STEPS_S if length_s <= step * (_MAX_POINTS - 1)), _STEPS_S[-1])


def _changes(changes: "DataFrame") -> list[Row]:
    names = [name for name in tables.LIMIT_CHANGES.names if name not in {"run", "n", "dt"}]
    return _rows(changes.orderBy(F.desc("at_s"), "instance", F.desc("n")).limit(_MAX_CHANGES).select(*names))
