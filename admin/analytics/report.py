"""A report from the files of the log to tables and recommendations: what Spark does, step by step.

``make_tables`` reads files and writes the tables of their days. ``recommend`` reads whatever tables there are, finds
storms, and decides about limits. What rows mean is in ``lines``, ``combine`` and ``kernels``, in plain Python; here
they are moved to where they are needed, sorted, and written.
"""

import re
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import kernels, words
from admin.analytics.advice import Claim, fair_level
from admin.analytics.combine import BAD, COMBINED, MADE, SCHEMAS, combine, unpack
from admin.analytics.findings import Inputs, SetAside
from admin.analytics.inputs import Found
from admin.analytics.kernels import HOURS_COLUMNS, MINUTES_COLUMNS, Instance
from admin.analytics.lines import GATHERED, HOURS_IN, Wanted, gather, hours_in
from admin.analytics.options import Options
from admin.analytics.spark import FEW_BYTES, beside
from admin.analytics.tables import (
    COVERAGE,
    CULPRITS,
    HOURS,
    LIMIT_CHANGES,
    LIMIT_KEY,
    LIMITS,
    MINUTES,
    RECOMMENDATIONS,
    REFUSALS,
    RESOURCE_KEY,
    STORMS,
    WHO_KEY,
    Days,
    Store,
    Table,
    day_of,
    in_spark,
)
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S, WEEK_S
from admin.common.errors import StartError
from admin.common.recommendations import Recommendation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Step = Callable[[str], object]
"""Is told what is being done, for people who wait."""
_TASK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of log for each task that adds up."""
_MAX_TASKS: Final = 10_000
_MAX_OF_DAY: Final = 100
"""Tasks that add up one day."""
_PACKED_BYTES: Final = 8 * 1024 * 1024
"""Spark holds so much of what is packed at a time, for each task that reads it."""
_MAX_NAMED: Final = 5
_KEY: Final = list(RESOURCE_KEY)
_QUIET_SHARE: Final = 0.99
"""A second with less than this share of rate and capacity cannot empty a full bucket."""


@dataclass(frozen=True)
class Tools:
    """What a report is made with.

    Attributes:
        session: of Spark.
        store: where its tables are.
        scratch: directory or address for what is needed while it runs.
        tasks: how many add up at a time.
        step: is told what is being done.
    """

    session: "SparkSession"
    store: Store
    scratch: str
    tasks: int
    step: Step


def tasks_of(size_bytes: int, cores: int) -> int:
    """Return how many tasks to add up so much of the log in."""
    if size_bytes < FEW_BYTES // 10:
        return 1
    return max(cores, min(_MAX_TASKS, -(-size_bytes // _TASK_BYTES)))


def make_tables(tools: Tools, found: Found, options: Options, wanted: Wanted) -> Inputs:
    """Read files and write the tables of their days, in place of those that are there.

    Args:
        tools: with which.
        found: the files.
        options: what is asked for.
        wanted: the time that is asked for; if it names hours, all others stay as they are.

    Returns:
        what was read.

    Raises:
        StartError: there is nothing to report, and there is no report to which nothing is added; the tables are as they
            were.
    """
    tools.step(f"reading {words.counted(len(found.files), 'file')}")
    seen = Observation()
    lines = lines_in(tools.session, found).mapInArrow(gather(wanted), in_spark(GATHERED))
    gathered = lines.observe(
        seen,
        F.expr("coalesce(sum(IF(reason IS NULL, records, 0)), 0L) AS records"),
        F.expr("coalesce(sum(wanted), 0L) AS wanted"),
        F.expr("coalesce(sum(IF(reason IS NULL, 0, records)), 0L) AS bad"),
        F.expr("count(reason) AS reasons"),
        F.min("first_s").alias("first_s"),
        F.max("last_s").alias("last_s"),
    )
    order = (*RESOURCE_KEY, "hour_s")
    combined = (
        gathered.where("reason IS NOT NULL OR wanted > 0")
        .repartitionById(tools.tasks, _task(tools.tasks))
        .sortWithinPartitions(*order)
        .mapInArrow(combine(options.storm_gap_s, options.attempts), in_spark(COMBINED))
    )
    where = f"{tools.scratch}/combined"
    added = Observation()
    combined = combined.observe(added, F.expr("coalesce(sum(copies), 0L) AS copies"))
    writer = combined.write.mode("overwrite").option("parquet.block.size", _PACKED_BYTES)
    # Rows are long: by default Parquet looks after a hundred of them for the first time.
    writer = writer.option("parquet.page.size.row.check.min", 8)
    writer.partitionBy("made").parquet(where)
    counts = seen.get
    staged = tools.session.read.schema(in_spark(COMBINED)).parquet(where)
    skipped = [*found.skipped, *found.vanished()]
    bad, damaged = _bad(staged) if counts["reasons"] else ([], [])
    set_aside = [*bad, *damaged, *skipped]
    if counts["wanted"]:
        tools.step(f"adding up {counts['wanted']:,} records")
        # Java takes its time for each, and so less of it for all.
        begun = {table: beside(partial(_unpacked, staged, table.name)) for table in MADE}
        frames = {table: each.result() for table, each in begun.items()}
        tools.store.write(_tables(frames, tools.store, wanted, options.top), _days(wanted))
    elif wanted.hours is None or tools.store.read(COVERAGE).isEmpty():
        raise StartError(_why_nothing(counts["first_s"], counts["last_s"], found, set_aside))
    copies = added.get["copies"]
    return Inputs(
        logs=found.logs,
        files=len(found.files),
        size_bytes=found.size_bytes,
        records=counts["wanted"] - copies,
        duplicates=copies,
        bad_lines=counts["bad"],
        skipped_files=len(skipped) + len({each.file for each in damaged}),
        set_aside=tuple(set_aside),
    )


def _task(tasks: int) -> "Column":
    """Say which task adds up a resource's hour: one day is of some of many, so that each writes files of few days."""
    of_day = min(tasks, _MAX_OF_DAY)
    place = f"hour_s DIV {DAY_S} * {of_day} + pmod(hash({', '.join(RESOURCE_KEY)}, hour_s), {of_day})"
    return F.expr(f"CAST(pmod(coalesce({place}, 0), {tasks}) AS INT)")


def _days(wanted: Wanted) -> Container[date]:
    """Return the days that are made anew, though there may be nothing of them any more."""
    if wanted.hours is None:
        return Days.of_seconds(wanted.since_s, wanted.until_s)
    return frozenset(map(day_of, wanted.hours))


def lines_in(session: "SparkSession", found: Found) -> "DataFrame":
    """Return the lines of files as ``value`` (bytes) and the file of each as ``file``; of packed files all at once."""
    frames = []
    if any(not file.path.endswith(".gz") for file in found.files):
        lines = session.read.option("ignoreMissingFiles", "true").text(found.spark_paths(packed=False))
        frames.append(lines.selectExpr("CAST(value AS BINARY) AS value", "_metadata.file_path AS file"))
    if any(file.path.endswith(".gz") for file in found.files):
        reader = session.read.format("binaryFile").option("ignoreMissingFiles", "true")
        packed = reader.load(found.spark_paths(packed=True))
        # The column path would be as it is, and this one is as an address: names may have a % in them.
        frames.append(packed.selectExpr("content AS value", "_metadata.file_path AS file"))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def hours_of(tools: Tools, found: Found) -> defaultdict[str, set[int]]:
    """Return the beginnings of the hours that each file has records of."""
    rows = lines_in(tools.session, found).mapInArrow(hours_in, in_spark(HOURS_IN)).collect()
    hours: defaultdict[str, set[int]] = defaultdict(set)
    # Several tasks may have read parts of one.
    for row in rows:
        hours[path_of(row["file"])].update(row["hours"])
    return hours


def _unpacked(staged: "DataFrame", name: str) -> "DataFrame":
    rows = staged.where(F.col("made") == name).select("rows")
    return rows.mapInArrow(unpack(name), in_spark(SCHEMAS[name]))


def _bad(staged: "DataFrame") -> tuple[list[SetAside], list[SetAside]]:
    """Return where bad lines are and why they are bad, the most first, and the files that are damaged."""
    rows = (
        _unpacked(staged, BAD)
        .groupBy("file", "reason")
        .agg(F.sum("lines").alias("lines"), F.min("example").alias("example"))
        .orderBy(F.desc("lines"), "file", "reason")
        .collect()
    )
    found = [
        SetAside(file=path_of(row["file"]), reason=row["reason"], lines=row["lines"], example=row["example"])
        for row in rows
    ]
    return [each for each in found if each.lines], [each for each in found if not each.lines]


def path_of(address: str) -> str:
    """Return an address of Spark's as people know it."""
    return re.sub("^file:/+", "/", urllib.parse.unquote(address))


def _why_nothing(first_s: int | None, last_s: int | None, found: Found, set_aside: Sequence[SetAside]) -> list[str]:
    """Say why there is nothing to put in place of the report that is there: nothing was understood, or asked for."""
    if first_s is not None and last_s is not None:
        there = words.span(first_s, last_s)
        return [f"nothing to report: no record is of the time that was asked for; there are some from {there} UTC"]
    why = [
        f"{each.file}: {words.counted(each.lines, 'line') + ': ' if each.lines else ''}{each.reason}"
        for each in set_aside[:_MAX_NAMED]
    ]
    return [*why, f"nothing to report: not one record of a rejection log in {words.counted(len(found.files), 'file')}"]


def _tables(made: Mapping[Table, "DataFrame"], store: Store, wanted: Wanted, top: int) -> dict[Table, "DataFrame"]:
    """Return the tables of the days: what was made, and of hours that were not asked for, what is there."""
    frames = dict(made)
    if wanted.hours is not None:
        hours = sorted(wanted.hours)
        touched = F.col("dt").isin(sorted(map(day_of, hours)))
        for table, at in _HOUR_OF.items():
            kept = store.read(table).where(touched & ~F.expr(f"{at} - {at} % {HOUR_S}").isin(hours))
            frames[table] = made[table].unionByName(kept.select(*table.names))
    of_rule = [name for name in LIMIT_KEY if name != "rule"]
    frames[LIMITS] = (
        frames[LIMITS]
        .groupBy("instance", "kind", "name", "rule", "dt")
        .agg(F.max_by(F.struct(*of_rule), "seen_s").alias("its"), F.max("seen_s").alias("seen_s"))
        .select("*", "its.*")
    )
    least = {"first_minute_s", "first_n"}
    sums = {"records", "copies"}
    frames[COVERAGE] = (
        frames[COVERAGE]
        .groupBy("instance", "run", "hour_s", "dt")
        .agg(
            *(
                (F.sum if name in sums else F.min if name in least else F.max)(name).alias(name)
                for name in COVERAGE.names
                if name not in {"instance", "run", "hour_s", "dt"}
            )
        )
    )
    frames[CULPRITS] = _culprits(frames[REFUSALS], top)
    return frames


_HOUR_OF: Final = {
    MINUTES: "minute_s", HOURS: "hour_s", REFUSALS: "hour_s", LIMITS: "seen_s", LIMIT_CHANGES: "at_s",
    COVERAGE: "hour_s",
}  # fmt: skip


def _culprits(refusals: "DataFrame", top: int) -> "DataFrame":
    """Rank who was refused by the messages refused to them, of each resource and day; ties go by name."""
    whom = (
        refusals.where("verdict = 'refuse'")
        .groupBy(*_KEY, "dt", *WHO_KEY)
        .agg(*(F.sum(name).alias(name) for name in ("requests", "messages", "bytes")))
    )
    day = Window.partitionBy(*_KEY, "dt")
    return (
        whom.withColumn("rank", F.row_number().over(day.orderBy(F.desc("messages"), *WHO_KEY)))
        .withColumn("share", F.coalesce(F.try_divide("messages", F.sum("messages").over(day)), F.lit(0.0)))
        .where(F.col("rank") <= top)
    )


@dataclass(frozen=True)
class Recommended:
    """What was found of all resources.

    Attributes:
        frame: the table ``recommendations``.
        decided: what was decided about each resource before it was replayed.
    """

    frame: "DataFrame"
    decided: "DataFrame"

    def all(self) -> Iterator[Recommendation]:
        """Yield all recommendations, by name; a part of them at a time is in memory."""
        rows = self.frame.orderBy(*_KEY).select("recommendation").toLocalIterator()
        return (kernels.read_recommendation(row["recommendation"]) for row in rows)


def recommend(tools: Tools, options: Options, instances: Mapping[str, Instance]) -> Recommended:
    """Find the storms of the tables' period, decide about all limits, and write both as tables.

    Args:
        tools: with which.
        options: the period, the gap of storms, the headroom and the capacity.
        instances: what is known of each sidecar.
    """
    session, store = tools.session, tools.store
    days = Days.of_seconds(options.since_s, options.until_s)
    tools.step("looking for storms, and what was asked for")
    hours = _within(store.read(HOURS, days), "hour_s", options)
    judged = (
        hours.select(*HOURS_COLUMNS)
        .repartition(tools.tasks, *_KEY)
        .sortWithinPartitions(*_KEY, "hour_s")
        .mapInArrow(kernels.judge(instances, options), in_spark(kernels.JUDGED))
    )
    where = f"{tools.scratch}/judged"
    judged.write.mode("overwrite").partitionBy("made").parquet(where)
    staged = session.read.schema(in_spark(kernels.JUDGED)).parquet(where)
    stormy = beside(partial(store.write, {STORMS: staged.where("made = 'storm'").select("storm.*")}, days))
    decided = staged.where("made = 'decided'").select("decided.*")
    if options.capacity_per_s is not None:
        shared = kernels.share_out(_levels(decided, options.capacity_per_s), options.capacity_per_s)
        decided = decided.mapInArrow(shared, decided.schema)
    tools.step("replaying demand against limits")
    unused = beside(partial(_unused, store, days, decided, instances))
    minutes = _within(store.read(MINUTES, days), "minute_s", options)
    replayed = (
        _loud(minutes, decided, tools.tasks)
        .select(*MINUTES_COLUMNS)
        .mapInArrow(kernels.replay_weeks(options.attempts), in_spark(kernels.REPLAYED))
    )
    advised = decided.select(
        *_KEY, "advice", F.lit(None).cast("array<bigint>").alias("refused"), F.lit(0).cast("bigint").alias("error")
    )
    settled = (
        advised.unionByName(replayed)
        .unionByName(unused.result())
        .repartition(tools.tasks, *_KEY)
        .sortWithinPartitions(*_KEY)
        .mapInArrow(kernels.settle(), in_spark(kernels.SETTLED))
    )
    store.replace(settled, RECOMMENDATIONS)
    frame = session.read.schema(in_spark(kernels.SETTLED)).parquet(store.path(RECOMMENDATIONS))
    stormy.result()
    return Recommended(frame, decided)


def find_instances(tools: Tools, options: Options) -> dict[str, Instance]:
    """Return what is known of each sidecar of the tables' period."""
    days = Days.of_seconds(options.since_s, options.until_s)
    order = ("instance", "run", "hour_s")
    rows = (
        _within(tools.store.read(COVERAGE, days), "hour_s", options)
        .select(*kernels.COVERAGE_COLUMNS)
        .repartition(tools.tasks, "instance")
        .sortWithinPartitions(*order)
        .mapInArrow(kernels.know(), in_spark(kernels.KNOWN))
        .collect()
    )
    return {row["instance"]: kernels.read_instance(row["known"]) for row in rows}


def _within(frame: "DataFrame", at: str, options: Options) -> "DataFrame":
    """Cut a table to the period, where it has more of its days than were asked for."""
    # Of hours only the whole is known.
    if options.since_s is not None:
        least = options.since_s - options.since_s % HOUR_S if at == "hour_s" else options.since_s
        frame = frame.where(F.col(at) >= least)
    return frame if options.until_s is None else frame.where(F.col(at) < options.until_s)


def _levels(decided: "DataFrame", capacity_per_s: float) -> dict[str, float]:
    """Return the fair level of each instance whose limits together are more than the capacity.

    Rates have two digits, so there are few different claims, however many resources.
    """
    rows = (
        decided.groupBy("instance", "need_per_s", "weight")
        .agg(F.count(F.lit(1)).alias("times"), F.sum("limits_per_s").alias("limits_per_s"))
        .collect()
    )
    claims: dict[str, list[Claim]] = defaultdict(list)
    limits_per_s: dict[str, float] = defaultdict(float)
    for row in rows:
        limits_per_s[row["instance"]] += row["limits_per_s"]
        if row["need_per_s"] > 0:
            claims[row["instance"]].append(Claim(row["need_per_s"], row["weight"], row["times"]))
    levels = {}
    for instance, wanted in claims.items():
        if limits_per_s[instance] > capacity_per_s:
            level = fair_level(wanted, capacity_per_s)
            levels[instance] = inf if level is None else level
    return levels


def _loud(minutes: "DataFrame", decided: "DataFrame", tasks: int) -> "DataFrame":
    """Return the minutes that some candidate may refuse something of, or that follow such a one; in order, by week.

    All others leave a full bucket full. A week begins with full buckets, so that no task needs all of a resource.
    """
    rate, size = F.col("least_rate_per_s"), F.col("least_bytes_per_s")
    messages = F.expr("IF(`count` = 'requests', second_requests,"
        " zip_with(second_admitted, second_refused, (a, r) -> a + r))")  # fmt: skip
    quiet = _quiet(messages, rate, F.col("least_burst_s")) & _quiet(
        F.col("second_bytes"), size, F.col("least_bytes_burst_s")
    )
    # What the limit would have refused if it only shadows, and what was held until it was given up, is refused here.
    refused = F.col("refused_messages") + F.col("dropped_messages") + F.col("shadowed_messages")
    least = decided.select(
        *_KEY,
        "advice",
        "least_rate_per_s",
        "least_bytes_per_s",
        F.col("burst_s").alias("least_burst_s"),
        F.col("bytes_burst_s").alias("least_bytes_burst_s"),
    )
    week = F.expr(f"minute_s DIV {WEEK_S}").alias("week")
    in_order = Window.partitionBy(*_KEY, "week").orderBy("minute_s")
    return (
        minutes.join(least, _KEY)
        .where(rate.isNotNull() | size.isNotNull())
        .select("*", week, refused.alias("refused"))
        .withColumn("refused_requests", F.col("refused_requests") + F.col("dropped_requests"))
        .withColumn("loud", ~quiet | (F.col("refused") > 0))
        .repartition(tasks, *_KEY, "week")
        .withColumn("after", F.coalesce(F.lag("loud").over(in_order), F.lit(False)))
        .where(F.col("loud") | F.col("after"))
        .sortWithinPartitions(*_KEY, "minute_s")
    )


def _quiet(seconds: "Column", rate: "Column", burst_s: "Column") -> "Column":
    """Say whether a minute cannot be refused by a full bucket of a rate, and leaves it full."""
    capacity = rate * burst_s
    total = F.aggregate(seconds, F.lit(0).cast("bigint"), lambda sum_, each: sum_ + each)
    fits = (F.array_max(seconds) <= _QUIET_SHARE * F.least(rate, capacity)) & (total <= MINUTE_S * rate - capacity)
    return F.coalesce(rate.isNull() | fits, F.lit(True))


def _unused(store: Store, days: Days, decided: "DataFrame", instances: Mapping[str, Instance]) -> "DataFrame":
    """Return what to do about the exact limits, as they were written down last, of which nothing was asked for."""
    last = Window.partitionBy("instance")
    exact = ~F.col("name").rlike(r"[*?\[]") & (F.col("action") != "off")
    limiting = F.col("rate_per_s").isNotNull() | F.col("bytes_per_s").isNotNull()
    return (
        store.read(LIMITS, days)
        .withColumn("last_s", F.max("seen_s").over(last))
        # All rules are written down at once; a minute is more than that takes.
        .where(exact & limiting & (F.col("seen_s") > F.col("last_s") - MINUTE_S))
        .join(decided.select(*_KEY), _KEY, "left_anti")
        .groupBy(*_KEY)
        .agg(F.max_by(F.struct(*LIMIT_KEY), F.struct("seen_s", "rule")).alias("limit"))
        .select(*_KEY, "limit.*")
        .mapInArrow(kernels.unused(instances), in_spark(kernels.REPLAYED))
    )
