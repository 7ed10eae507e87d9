"""Recommended limits: the tables go in, one recommendation for each resource comes out, with its backtest.

Spark computes the figures (``demand``) and replays the limits (``backtest``); what follows from them is decided
resource by resource where the figures are (``tasks``, ``advice``). To the driver come only the few different claims
upon a capacity, and what is asked for of the result, so that there may be a million resources.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import tables, tasks
from admin.analytics.advice import Claim, fair_level
from admin.analytics.backtest import backtest
from admin.analytics.demand import UNUSED, demand
from admin.analytics.options import Options
from admin.analytics.retries import with_corrected
from admin.analytics.tables import LIMIT_KEY, RECOMMENDATIONS, RESOURCE_KEY, Days
from admin.common.errors import StartError
from admin.wire.recommendations import Backtest, Period, Recommendation, RecommendationsFile, Replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

DECIDED: Final = (
    "instance STRING, kind STRING, name STRING, action STRING, rate_per_s DOUBLE, recommended_rate_per_s DOUBLE,"
    " bytes_per_s DOUBLE, recommended_bytes_per_s DOUBLE, confidence STRING, evidence STRING, need_per_s DOUBLE,"
    " weight DOUBLE, runaway BOOLEAN, capped BOOLEAN,"
    f" limit STRUCT<{', '.join(field.replace(' ', ': ') for field in tables.LIMIT_FIELDS)}>,"
    " messages BIGINT, wanted_messages DOUBLE, refused_messages BIGINT, messages_each DOUBLE"
)
"""``advice.Advice`` as columns, the limit in force, and sums: what is left of ``messages`` without retries is
``wanted_messages``."""
COLUMNS: Final = (
    "instance STRING, kind STRING, name STRING, action STRING, rule STRING, `count` STRING, rate_per_s DOUBLE,"
    " recommended_rate_per_s DOUBLE, bytes_per_s DOUBLE, recommended_bytes_per_s DOUBLE, confidence STRING,"
    " evidence STRING, messages BIGINT, wanted_messages DOUBLE, refused_messages BIGINT, current_refused BIGINT,"
    " current_share DOUBLE, recommended_refused BIGINT, recommended_share DOUBLE, model_error DOUBLE"
)
"""Of the table ``recommendations``. ``wanted_messages`` is what is left of ``messages`` without retries."""
_KEY: Final = list(RESOURCE_KEY)
_ACTIONS: Final = ("raise", "lower", "new", "unused", "keep")
"""In the order in which they are worth doing."""
_INPUTS: Final = (tables.MINUTES, tables.STORMS, tables.LIMITS, tables.COVERAGE)


@dataclass(frozen=True)
class Recommended:
    """The recommendations of a report.

    Attributes:
        frame: as ``COLUMNS``; read from the table that was written.
        counts: how many of each action; those that there are none of are missing.
    """

    frame: "DataFrame"
    counts: Mapping[str, int]

    def first(self, count: int) -> list[Recommendation]:
        """Return those most worth doing: by action, then by what was refused, then by name."""
        order = F.array_position(F.array(*map(F.lit, _ACTIONS)), F.col("action"))
        rows = self.frame.orderBy(order, F.desc("refused_messages"), F.desc("messages"), *_KEY).limit(count)
        return [of_result(row) for row in rows.collect()]

    def all(self) -> Iterator[Recommendation]:
        """Yield all, by name; a part of them at a time is in memory."""
        return map(of_result, self.frame.orderBy(*_KEY).toLocalIterator())

    def write_file(self, path: Path, made_at: str, period: Period) -> None:
        """Write ``recommendations.json``, in place of the one that is there when it is complete.

        Args:
            path: of the file.
            made_at: ISO 8601, UTC.
            period: of the records.

        Raises:
            StartError: it cannot be written.
        """
        instances = tuple(row[0] for row in self.frame.select("instance").distinct().orderBy("instance").collect())
        head = RecommendationsFile(made_at=made_at, period=period, instances=instances)
        # All but the closing of the empty list and of the object.
        opened = msgspec.json.encode(head).removesuffix(b"]}")
        aside = path.with_name(f".{path.name}.part")
        try:
            with aside.open("wb") as file:
                file.write(opened)
                for at, each in enumerate(self.all()):
                    file.write((b",\n" if at else b"\n") + msgspec.json.encode(each))
                file.write(b"\n]}\n")
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError as error:
            why = error.strerror or str(error)
            raise StartError(f"{path}: cannot be written: {why}; name another directory with --out") from None
        finally:
            # Spark may have failed in the middle.
            aside.unlink(missing_ok=True)


def recommend(session: "SparkSession", out: str, options: Options) -> Recommended:
    """Make the recommendations of the tables of a period, and write them as a table.

    Args:
        session: of Spark.
        out: directory or address of all tables.
        options: the period, the headroom and the capacity.
    """
    days = Days.of_seconds(options.since_s, options.until_s)
    read = {table.name: tables.read(session, out, table, days) for table in _INPUTS}
    kept: list[DataFrame] = []
    where = tables.replace(recommendations(read, options, kept).sortWithinPartitions(*_KEY), out, RECOMMENDATIONS)
    for each in kept:
        each.unpersist()
    frame = session.read.schema(COLUMNS).parquet(where)
    counts = {row["action"]: row["count"] for row in frame.groupBy("action").count().collect()}
    return Recommended(frame, counts)


def recommendations(read: Mapping[str, "DataFrame"], options: Options, kept: "list[DataFrame]") -> "DataFrame":
    """Make the recommendations of some tables.

    Args:
        read: ``minutes``, ``storms``, ``limits`` and ``coverage``.
        options: the period, the headroom and the capacity.
        kept: gets what is held in memory; to be let go of when the rows have been used.

    Returns:
        Rows as ``COLUMNS``.
    """
    read = {name: _within(frame, options) for name, frame in read.items()}
    session = read["minutes"].sparkSession
    asked = demand(read).drop(*UNUSED)
    capacity = options.capacity_per_s
    decide = partial(tasks.decided, headroom=options.headroom, limit_all=capacity is not None)
    decided = session.createDataFrame(asked.rdd.map(decide), DECIDED).persist(StorageLevel.MEMORY_AND_DISK)
    kept.append(decided)
    if capacity is not None:
        shared = partial(tasks.shared, levels=_levels(decided, capacity), capacity_per_s=capacity)
        decided = session.createDataFrame(decided.rdd.map(shared), DECIDED).persist(StorageLevel.MEMORY_AND_DISK)
        kept.append(decided)
    replayed = backtest(with_corrected(read["minutes"]), decided)
    used = decided.join(replayed, _KEY, "left").rdd.map(tasks.settled)
    unused = _unused(read, decided).rdd.map(tasks.of_unused)
    return session.createDataFrame(used.union(unused), COLUMNS)


def _within(frame: "DataFrame", options: Options) -> "DataFrame":
    """Cut a table to the period, where it has more of its days than were asked for."""
    at = next((name for name in ("minute_s", "start_s", "hour_s") if name in frame.columns), None)
    if at is None:
        return frame
    # Of hours only the whole is known.
    if options.since_s is not None:
        least = options.since_s - options.since_s % 3600 if at == "hour_s" else options.since_s
        frame = frame.where(F.col(at) >= least)
    return frame if options.until_s is None else frame.where(F.col(at) < options.until_s)


def _levels(decided: "DataFrame", capacity_per_s: float) -> dict[str, float]:
    """Return the fair level of each instance whose limits together are more than the capacity.

    Rates have two digits, so there are few different claims, however many resources.
    """
    rate = F.coalesce(F.col("recommended_rate_per_s") * F.col("messages_each"), F.lit(0.0))
    rows = (
        decided.groupBy("instance", "need_per_s", "weight")
        .agg(F.count("*").alias("times"), F.sum(rate).alias("limits_per_s"))
        .toLocalIterator()
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
            levels[instance] = math.inf if level is None else level
    return levels


def _unused(read: Mapping[str, "DataFrame"], asked: "DataFrame") -> "DataFrame":
    """Return the exact limits, as they were written down last, of which nothing was asked for."""
    limits = read["limits"]
    last = limits.groupBy("instance").agg(F.max("seen_s").alias("last_s"))
    exact = ~F.col("name").rlike(r"[*?\[]") & (F.col("action") != "off")
    limiting = F.col("rate_per_s").isNotNull() | F.col("bytes_per_s").isNotNull()
    known = (
        read["coverage"].groupBy("instance").agg(F.sum("seconds").alias("seconds"), F.max("lost_records").alias("lost"))
    )
    return (
        limits.join(last, "instance")
        # All rules are written down at once; a minute is more than that takes.
        .where(exact & limiting & (F.col("seen_s") > F.col("last_s") - tables.MINUTE_S))
        .join(asked.select(*_KEY), _KEY, "left_anti")
        .join(known, "instance", "left")
        .groupBy(*_KEY)
        .agg(
            F.max_by(F.struct(*LIMIT_KEY), F.struct("seen_s", "rule")).alias("limit"),
            F.max(F.coalesce("seconds", F.lit(0))).alias("observed_s"),
            F.max(F.coalesce("lost", F.lit(0))).alias("lost_records"),
        )
        .where(F.col("observed_s") > 0)
    )


def of_result(row: "Row") -> Recommendation:
    """Read a row of the table."""

    def replay(refused: int | None, share: float | None) -> Replay | None:
        return None if refused is None or share is None else Replay(refused_messages=refused, refused_share=share)

    messages = row["messages"]
    current = replay(row["current_refused"], row["current_share"])
    logged = replay(row["refused_messages"], row["refused_messages"] / messages) if current and messages else None
    return Recommendation(
        instance=row["instance"],
        kind=row["kind"],
        name=row["name"],
        action=row["action"],
        rule=row["rule"],
        count=row["count"],
        rate_per_s=row["rate_per_s"],
        recommended_rate_per_s=row["recommended_rate_per_s"],
        bytes_per_s=row["bytes_per_s"],
        recommended_bytes_per_s=row["recommended_bytes_per_s"],
        confidence=row["confidence"],
        evidence=row["evidence"],
        backtest=Backtest(
            current=current,
            recommended=replay(row["recommended_refused"], row["recommended_share"]),
            logged=logged,
            model_error=row["model_error"],
        ),
    )
