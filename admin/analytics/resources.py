"""Computes advice about each resource's limit in Python, from rows grouped by resource and sorted by minute.

A resource's storms and its recorded limit are in rows without a minute, which come first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from admin.analytics.advice import advise, unused
from admin.analytics.demand import LIMIT_COLUMNS, WHO, Collector, Known, Limit, limit_of
from admin.analytics.options import Options
from admin.analytics.tables import AMOUNTS, RESOURCE_KEY, SECONDS
from admin.analytics.words import MINUTE_S
from admin.common.recommendations import Recommendation

RECOMMENDATIONS: Final = (
    "instance STRING, kind STRING, name STRING, action STRING, only_with STRING, rule STRING, rate_per_s DOUBLE,"
    " recommended_rate_per_s DOUBLE, bytes_per_s DOUBLE, recommended_bytes_per_s DOUBLE, confidence STRING,"
    " evidence STRING, details STRING, messages BIGINT, refused_messages BIGINT, need_per_s DOUBLE,"
    " limit_per_s DOUBLE, recommendation STRING"
)
"""``recommendation`` contains all fields as JSON, as in ``recommendations.json``. ``need_per_s`` is the number of
messages per second to admit, and ``limit_per_s`` is the number that the limit admits.
"""
_TYPES: Final = {"DOUBLE": pa.float64(), "BIGINT": pa.int64(), "STRING": pa.string()}
_SCHEMA: Final = pa.schema(
    [(name, _TYPES[type_]) for name, type_ in (column.split() for column in RECOMMENDATIONS.split(", "))]
)
_MINUTES: Final = (
    "minute_s", *(each for each in AMOUNTS if not each.endswith("bytes")), "identified", "busy_answers", "languages",
    "clients", *LIMIT_COLUMNS, "second", *SECONDS, "second_shadowed",
)  # fmt: skip
_OF_CALLERS: Final = tuple(f"{who}{of}" for who in WHO for of in ("s", "_count", "_then"))
_EXACT: Final = r"NOT name RLIKE r'[*?\[]' AND action != 'off' AND (rate_per_s IS NOT NULL OR bytes_per_s IS NOT NULL)"


def advise_each(rows: DataFrame, sidecars: Mapping[str, Known], options: Options, tasks: int) -> DataFrame:
    in_order = rows.repartition(tasks, *RESOURCE_KEY).sortWithinPartitions(*RESOURCE_KEY, "minute_s")
    return in_order.groupBy(*RESOURCE_KEY).applyInArrow(_advise(sidecars, options), RECOMMENDATIONS)


def advise_here(rows: DataFrame, sidecars: Mapping[str, Known], options: Options) -> DataFrame:
    """Like ``advise_each``, but runs in this process instead of starting workers."""
    table = rows.orderBy(*RESOURCE_KEY, "minute_s").toArrow()
    run = _advise(sidecars, options)
    made: list[pa.RecordBatch] = []
    keys = zip(*(table.column(name).to_pylist() for name in RESOURCE_KEY), strict=True)
    begin = 0
    for key, its in groupby(keys):
        count = sum(1 for _ in its)
        made += run(tuple(map(pa.scalar, key)), iter(table.slice(begin, count).combine_chunks().to_batches()))
        begin += count
    return rows.sparkSession.createDataFrame(pa.Table.from_batches(made, _SCHEMA), RECOMMENDATIONS)


def rows_of(minutes: DataFrame, storms: DataFrame, limits: DataFrame) -> DataFrame:
    its_storms = storms.groupBy(*RESOURCE_KEY).agg(
        F.collect_list(F.struct("start_s", "end_s", "messages", "rules", *_OF_CALLERS)).alias("storms")
    )
    # An instance records all its rules within a minute. Rules recorded earlier no longer exist.
    newest = limits.groupBy("instance").agg(F.max("seen_s").alias("last_s"))
    its_limit = (
        limits.join(newest, "instance")
        .where(f"{_EXACT} AND seen_s > last_s - {MINUTE_S}")
        .groupBy(*RESOURCE_KEY)
        .agg(F.max_by(F.struct(*LIMIT_COLUMNS), F.struct("seen_s", "rule")).alias("its"))
        .select(*RESOURCE_KEY, "its.*", F.lit(True).alias("is_limit"))
    )
    parts = (minutes.select(*RESOURCE_KEY, *_MINUTES), its_storms, its_limit)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _advise(
    sidecars: Mapping[str, Known], options: Options
) -> Callable[[tuple[pa.Scalar, ...], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [each.as_py() for each in key]
        collector = Collector(names, options.attempts)
        storms: Sequence[Mapping[str, Any]] = ()
        limit: Limit | None = None
        for batch in batches:
            begin = batch.column("minute_s").null_count
            for row in batch.slice(0, begin).select(["storms", "is_limit", *LIMIT_COLUMNS]).to_pylist():
                storms = row["storms"] or storms
                if row["is_limit"]:
                    limit = limit_of(row)
            if begin < batch.num_rows:
                collector.take(batch.slice(begin))
        known = sidecars.get(names[0], Known())
        if collector.limits:
            demand = collector.demand(known, storms)
            found, need_per_s, limit_per_s = advise(demand, collector.minutes, options)
            row = _row(found) | {
                "messages": demand.messages, "refused_messages": demand.refused_messages,
                "need_per_s": need_per_s, "limit_per_s": limit_per_s,
            }  # fmt: skip
        elif limit is not None and known.observed_s > 0 and not storms:
            row = _row(unused(names, limit, known))
        else:
            return
        yield pa.RecordBatch.from_pylist([row], _SCHEMA)

    return run


def _row(of: Recommendation) -> dict[str, Any]:
    its = msgspec.structs.asdict(of)
    return {name: its.get(name) for name in _SCHEMA.names} | {"recommendation": msgspec.json.encode(of).decode()}
