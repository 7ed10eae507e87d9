"""The backtest: each limit, in force and recommended, replayed over what was asked for; by Spark, resource by resource.

Every resource is replayed by itself, its minutes in order, by ``replay``. Minutes that a full bucket takes without a
refusal, and that leave it full, are left out before they reach Python, unless the minute before may have left less in
it: mostly that is nearly all of them. One resource's minutes go through one task, a row at a time.

The limit in force is up against what was asked for, retries among it; so it should come to what the log says was
refused, and how far it does not is stated (``model_error``). The recommended one gets what is left without the retries,
since one that is large enough causes none. A demand in fractions is rounded so that nothing of it is lost over time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics.figures import Limit
from admin.analytics.replay import Replay
from admin.analytics.tables import RESOURCE_KEY
from admin.analytics.words import MINUTE_S

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESULT: Final = (
    "instance STRING, kind STRING, name STRING, current_refused BIGINT, recommended_refused BIGINT, error BIGINT"
)
"""Of ``backtest``: messages that the limit in force and the recommended one would have refused; and how many more the
former than were logged, while it was in force. Null where there is no such limit."""
QUIET_SHARE: Final = 0.99
"""A second with less than this share of rate and capacity cannot empty a full bucket."""
_KEY: Final = list(RESOURCE_KEY)
_FIELDS: Final = ("rate_per_s", "burst_s", "break_s", "count", "bytes_per_s", "bytes_burst_s", "action")
"""The fields of a limit, besides the name of its rule."""
_Result = tuple[str, str, str, int | None, int | None, int | None]


def backtest(minutes: "DataFrame", advice: "DataFrame") -> "DataFrame":
    """Replay the limits.

    Args:
        minutes: from ``seconds.with_corrected``.
        advice: ``instance, kind, name``, ``limit`` (a struct, the one in force at the end),
            ``recommended_rate_per_s`` and ``recommended_bytes_per_s``; one row for each resource.

    Returns:
        Rows as ``RESULT``, of resources of which something may have been refused.
    """
    what = advice.select(
        *_KEY,
        F.struct(*(F.col(f"limit.{name}").alias(name) for name in _FIELDS)).alias("limit_now"),
        "recommended_rate_per_s",
        "recommended_bytes_per_s",
    )
    rate = F.least("limit_now.rate_per_s", "recommended_rate_per_s")
    size = F.least("limit_now.bytes_per_s", "recommended_bytes_per_s")
    quiet = _quiet("demand", "demand_sum", rate, F.col("limit_now.burst_s")) & _quiet(
        "second_bytes", "bytes_sum", size, F.col("limit_now.bytes_burst_s")
    )
    # What the limit would have refused if it only shadows, and what was held until it was given up, is refused here.
    refused = F.col("refused_messages") + F.col("dropped_messages") + F.col("shadowed_messages")
    in_order = Window.partitionBy(*_KEY).orderBy("minute_s")
    loud = (
        minutes.join(what, _KEY)
        .where(rate.isNotNull() | size.isNotNull())
        .withColumn("refused", refused)
        .withColumn("loud", ~quiet | (refused > 0))
        .withColumn("after", F.coalesce(F.lag("loud").over(in_order), F.lit(False)))
        .where(F.col("loud") | F.col("after"))
    )
    rows = loud.select(
        *_KEY,
        "limit_now",
        "recommended_rate_per_s",
        "recommended_bytes_per_s",
        "minute_s",
        F.struct(*_FIELDS).alias("limit_then"),
        "refused",
        "second",
        F.zip_with("second_admitted", "second_refused", lambda admitted, refused: admitted + refused).alias("messages"),
        "second_requests",
        "second_bytes",
        "shares",
    ).sortWithinPartitions(*_KEY, "minute_s")
    return minutes.sparkSession.createDataFrame(rows.rdd.mapPartitions(replay_rows), RESULT)


def _quiet(seconds: str, total: str, rate: "Column", burst_s: "Column") -> "Column":
    """Say whether a minute cannot be refused by a full bucket of a rate, and leaves it full."""
    capacity = rate * burst_s
    fits = (F.array_max(seconds) <= QUIET_SHARE * F.least(rate, capacity)) & (
        F.col(total) <= MINUTE_S * rate - capacity
    )
    return F.coalesce(rate.isNull() | fits, F.lit(True))


def replay_rows(rows: Iterable[Sequence[Any]]) -> Iterator[_Result]:
    """Replay some resources, on an executor.

    Args:
        rows: minutes in order, one resource after the other; columns as ``backtest`` selects them.
    """
    for key, minutes in groupby(rows, key=itemgetter(0, 1, 2)):
        yield (*key, *_replayed(minutes))


def _replayed(minutes: Iterable[Sequence[Any]]) -> tuple[int | None, int | None, int | None]:
    first, others = next(minutes := iter(minutes)), minutes
    now, rate, size, begin_s = first[3:7]
    limit = Limit(**dict(zip(_FIELDS, now, strict=True)))
    better = replace(limit, rate_per_s=rate, bytes_per_s=size)
    current, recommended = Replay(limit, begin_s), Replay(better, begin_s)
    current_refused = recommended_refused = error = 0
    # What is cut off one second's messages, so that they are whole, is added to the next one's.
    over = 0.0
    for *_, minute_s, then, logged, second, messages, requests, size_bytes, shares in chain([first], others):
        refused = 0
        for at, count, of, many in zip(second, messages, requests, size_bytes, strict=True):
            refused += current.second(minute_s + at, of, count, many)
        current_refused += refused
        if tuple(then) == tuple(now):
            error += refused - logged
        if better != limit:
            left = shares or (1.0,) * len(second)
            for at, count, of, many, share in zip(second, messages, requests, size_bytes, left, strict=True):
                wanted = (of, count, many)
                if share < 1.0:
                    whole, over = divmod(count * share + over, 1.0)
                    wanted = (max(1, round(of * share)) if whole else 0, int(whole), round(many * share))
                recommended_refused += recommended.second(minute_s + at, *wanted)
    if better == limit:
        recommended_refused = current_refused
    return (
        current_refused if limit.limits else None,
        recommended_refused if better.limits else None,
        error if limit.limits else None,
    )
