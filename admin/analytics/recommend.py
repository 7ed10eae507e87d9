"""Recommended limits: the tables go in, one recommendation for each resource comes out, with its backtest.

Spark computes the figures (``demand``) and replays the limits (``backtest``). What follows from them is decided on the
executors (``advice``), resource by resource. Only the few different claims on a capacity come to the driver, so there
may be a million resources.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import advice, tables
from admin.analytics.advice import Advice, Claim, fair_level
from admin.analytics.backtest import backtest
from admin.analytics.demand import UNUSED, demand, of_row
from admin.analytics.figures import Limit
from admin.analytics.options import Options
from admin.analytics.out import write_file
from admin.analytics.retries import with_corrected
from admin.analytics.tables import LIMIT_KEY, RECOMMENDATIONS, RESOURCE_KEY, Days
from admin.analytics.words import HOUR_S, MINUTE_S
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
        write_file(path, self._pieces(made_at, period))

    def _pieces(self, made_at: str, period: Period) -> Iterator[bytes]:
        instances = tuple(row[0] for row in self.frame.select("instance").distinct().orderBy("instance").collect())
        head = RecommendationsFile(made_at=made_at, period=period, instances=instances)
        # All but the closing of the empty list and of the object.
        yield msgspec.json.encode(head).removesuffix(b"]}")
        for at, each in enumerate(self.all()):
            yield (b",\n" if at else b"\n") + msgspec.json.encode(each)
        yield b"\n]}\n"


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
    decide = partial(_decided, headroom=options.headroom, limit_all=capacity is not None)
    decided = session.createDataFrame(asked.rdd.map(decide), DECIDED).persist(StorageLevel.MEMORY_AND_DISK)
    kept.append(decided)
    if capacity is not None:
        shared = partial(_shared, levels=_levels(decided, capacity), capacity_per_s=capacity)
        decided = session.createDataFrame(decided.rdd.map(shared), DECIDED).persist(StorageLevel.MEMORY_AND_DISK)
        kept.append(decided)
    replayed = backtest(with_corrected(read["minutes"]), decided)
    used = decided.join(replayed, _KEY, "left").rdd.map(_settled)
    unused = _unused(read, decided).rdd.map(_of_unused)
    return session.createDataFrame(used.union(unused), COLUMNS)


def _within(frame: "DataFrame", options: Options) -> "DataFrame":
    """Cut a table to the period, where it has more of its days than were asked for."""
    at = next((name for name in ("minute_s", "start_s", "hour_s") if name in frame.columns), None)
    if at is None:
        return frame
    # Of hours only the whole is known.
    if options.since_s is not None:
        least = options.since_s - options.since_s % HOUR_S if at == "hour_s" else options.since_s
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
        .where(exact & limiting & (F.col("seen_s") > F.col("last_s") - MINUTE_S))
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


def _decided(row: "Row", headroom: float, *, limit_all: bool) -> tuple[Any, ...]:
    """Decide about a row of ``demand``; returns a row of ``DECIDED``."""
    demand = of_row(row)
    found = advice.decide(demand, headroom, limit_all=limit_all)
    sums = (row["messages"], row["wanted_messages"], row["refused_messages"], advice.messages_each(demand))
    return (*found, row["limit"], *sums)


def _shared(row: "Row", levels: Mapping[str, float], capacity_per_s: float) -> tuple[Any, ...]:
    """Put a decision under the capacity of its instance; takes and returns a row of ``DECIDED``."""
    by_itself = Advice(*row[: len(Advice._fields)])
    level = levels.get(by_itself.instance)
    found = advice.share_out(by_itself, level, capacity_per_s, row["messages_each"])
    return (*found, *row[len(Advice._fields) :])


def _settled(row: "Row") -> tuple[Any, ...]:
    """Make a row of the table from a decision and its backtest."""
    wanted = row["wanted_messages"] or 0.0
    messages = row["messages"]

    def share(refused: int | None, of: float) -> float | None:
        return None if refused is None else min(1.0, refused / of) if of else 0.0

    # Nothing to replay: nothing can have been refused.
    current = 0 if row["current_refused"] is None and Limit(**row["limit"].asDict()).limits else row["current_refused"]
    recommended = row["recommended_refused"]
    if recommended is None and (row["recommended_rate_per_s"] or row["recommended_bytes_per_s"]):
        recommended = 0
    by_itself = Advice(*(row[name] for name in Advice._fields))
    current_share = share(current, messages)
    recommended_share = share(recommended, wanted)
    found = advice.settle(by_itself, current_share, recommended_share)
    if found.action == "keep":
        # The same limit, and of the same messages: those that were retries are among what it refuses.
        recommended, recommended_share = current, current_share
    error = None if current is None or not messages else (row["error"] or 0) / messages
    return (
        *found[:4],
        row["limit"]["rule"],
        row["limit"]["count"],
        *found[4:10],
        messages,
        wanted,
        row["refused_messages"],
        current,
        current_share,
        recommended,
        recommended_share,
        error,
    )


def _of_unused(row: "Row") -> tuple[Any, ...]:
    """Make a row of the table from a limit that nobody used."""
    limit = Limit(**{name: row["limit"][name] for name in LIMIT_KEY})
    found = advice.unused(
        row["instance"], row["kind"], row["name"], limit, row["observed_s"], lost_records=row["lost_records"]
    )
    return (*found[:4], limit.rule, limit.count, *found[4:10], 0, 0.0, 0, None, None, None, None, None)


def of_result(row: "Row") -> Recommendation:
    """Read a row of the table."""

    def replay(refused: int | None, share: float | None) -> Replay | None:
        return None if refused is None or share is None else Replay(refused_messages=refused, refused_share=share)

    messages = row["messages"]
    current = replay(row["current_refused"], row["current_share"])
    logged = replay(row["refused_messages"], row["refused_messages"] / messages) if current and messages else None
    return Recommendation(
        **{name: row[name] for name in Recommendation.__struct_fields__ if name != "backtest"},
        backtest=Backtest(
            current=current,
            recommended=replay(row["recommended_refused"], row["recommended_share"]),
            logged=logged,
            model_error=row["model_error"],
        ),
    )
