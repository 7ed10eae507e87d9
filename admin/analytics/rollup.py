"""Aggregates records into the report's tables with Spark SQL. ``tables`` defines their columns.

Lists and maps are sorted, because the order in which Spark combines partial results varies.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from admin.analytics.tables import AMOUNTS, LIMIT_CHANGES, LIMIT_FIELDS, NAMED, RESOURCE_KEY, SECONDS, WHO_KEY
from admin.common.recommendations import of_fleet
from limiter.counting.rejections import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WHATS: Final = ("requests", "messages", "bytes")
_SUMS: Final = tuple(f"sum({name}) AS {name}" for name in _WHATS)
REACHED: Final = ("admitted", "shadowed", "bypassed", "exempt")
OF_FLEET: Final = f"concat('{of_fleet('')}', fleet)"
_DAY: Final = "date_add(DATE'1970-01-01', CAST({} DIV 86400 AS INT))"
_TOP: Final = 10


def _of(type_: str, records: "DataFrame") -> "DataFrame":
    return records.where(f"{type_} IS NOT NULL").select("instance", "run", "n", "at_s", f"{type_}.*")


def _by_limit(type_: str, records: "DataFrame") -> "DataFrame":
    return _of(type_, records).withColumn("instance", F.expr(f"IF(fleet != '', {OF_FLEET}, instance)"))


def minutes(records: "DataFrame") -> "DataFrame":
    amounts = (
        f"{outcome}[{place}] AS {outcome}_{what}"
        for outcome in (*OUTCOMES, "repeated")
        for place, what in enumerate(_WHATS)
    )
    repeated = "IF(size(second_repeated) > 0, second_repeated, array_repeat(0L, size(second)))"
    traffic = _by_limit("traffic", records).selectExpr(
        *RESOURCE_KEY,
        "at_s - at_s % 60 AS minute_s",
        # During a take-over, the records of the previous run have larger numbers.
        "struct(coalesce(array_max(second), -1L), n, run) AS number",
        *amounts,
        "identified",
        "busy_answers",
        "map_entries(languages) AS languages",
        "clients",
        "more_clients",
        f"struct({', '.join(LIMIT_FIELDS)}) AS its_limit",
        f"struct(second, {', '.join(SECONDS[:-1])}, {repeated} AS second_repeated) AS seconds",
    )
    rejections = (
        _by_limit("rejection", records)
        .selectExpr(*RESOURCE_KEY, "at_s - at_s % 60 AS minute_s", "IF(verdict = 'shadow', at_s % 60, NULL) AS second",
            "messages", "wait_max_us")
        .groupBy(*RESOURCE_KEY, "minute_s", "second")
        .agg(F.max("wait_max_us").alias("wait_max_us"), F.sum("messages").alias("messages"))
        .selectExpr(*RESOURCE_KEY, "minute_s", "wait_max_us",
            "IF(second IS NULL, NULL, struct(second, messages)) AS would")
    )  # fmt: skip
    parts = traffic.unionByName(rejections, allowMissingColumns=True)
    added = (
        parts.groupBy(*RESOURCE_KEY, "minute_s")
        .agg(
            *(F.sum(name).alias(name) for name in (*AMOUNTS, "identified", "busy_answers")),
            F.flatten(F.collect_list("languages")).alias("languages"),
            F.max("clients").alias("clients"),
            # Each record counts the clients since the start of the minute.
            F.expr("bool_or(more_clients) OR min(number.run) < max(number.run) AS more_clients"),
            F.expr("max_by(its_limit, number) AS its_limit"),
            F.array_sort(F.collect_list("seconds")).alias("of_parts"),
            F.expr("coalesce(max(wait_max_us), 0L) AS wait_max_us"),
            F.collect_list("would").alias("would"),
            F.count("number").alias("parts"),
        )
        .where("parts > 0")
        .withColumns({"seconds": F.expr(_JOINED), "overlap": F.expr(_OVERLAP)})
        .withColumn("zipped", F.expr(f"IF(overlap, {_ZIPPED}, NULL)"))
        .withColumn("seconds", F.expr(_SECONDS))
        .withColumn("would", F.expr(_WOULD))
    )
    demand = " + ".join(f"{outcome}_messages" for outcome in (*REACHED, "refused", "dropped"))
    return added.selectExpr(
        *RESOURCE_KEY,
        "minute_s",
        *AMOUNTS,
        "identified",
        "busy_answers",
        f"{_LANGUAGES} AS languages",
        "clients",
        "more_clients",
        "its_limit.*",
        "seconds.second AS second",
        *(f"seconds.{name} AS {name}" for name in SECONDS[:-1]),
        f"IF(array_max(seconds.second_repeated) > 0, seconds.second_repeated, {_NONE}) AS second_repeated",
        f"IF(array_max(would) > 0, would, {_NONE}) AS second_shadowed",
        f"{demand} AS demand_messages",
        "coalesce(array_max(zip_with(seconds.second_admitted, seconds.second_refused, (a, r) -> a + r)), 0L)"
        " AS demand_peak_per_s",
        "coalesce(array_max(seconds.second_refused), 0L) AS refused_peak_per_s",
        "wait_max_us",
        f"{_DAY.format('minute_s')} AS dt",
    )


_NONE: Final = "CAST(array() AS ARRAY<BIGINT>)"
_ALL_SECONDS: Final = ("second", *SECONDS)
_JOINED: Final = f"struct({', '.join(f'flatten(of_parts.{name}) AS {name}' for name in _ALL_SECONDS)})"
_ZIPPED: Final = f"arrays_zip({', '.join(f'seconds.{name}' for name in _ALL_SECONDS)})"
_ADDED: Final = ", ".join(
    f"transform(array_sort(array_distinct(seconds.second)), s -> aggregate(filter(zipped, x -> x.second = s), 0L,"
    f" (sum, x) -> sum + x.{name})) AS {name}"
    for name in SECONDS
)
_OVERLAP: Final = """IF(size(of_parts) < 2, false, coalesce(exists(sequence(1, size(of_parts) - 1),
    i -> get(get(of_parts, i).second, 0) <= array_max(get(of_parts, i - 1).second)), false))"""
_SECONDS: Final = f"IF(overlap, struct(array_sort(array_distinct(seconds.second)) AS second, {_ADDED}), seconds)"
"""Sorts seconds and merges duplicates. A second is in two records if one run ended and another began during it."""
_WOULD: Final = f"""IF(size(would) = 0, {_NONE}, transform(seconds.second,
    s -> aggregate(filter(would, x -> x.second = s), 0L, (sum, x) -> sum + x.messages)))"""
_LANGUAGES: Final = """map_from_entries(transform(array_sort(array_distinct(languages.key)), k -> struct(k,
    aggregate(filter(languages, x -> x.key = k), struct(0L AS requests, 0L AS refused),
        (sum, x) -> struct(sum.requests + x.value[0] AS requests, sum.refused + x.value[1] AS refused)))))"""


def refusals(records: "DataFrame") -> "DataFrame":
    return (
        _by_limit("rejection", records)
        .selectExpr(*RESOURCE_KEY, "at_s", *WHO_KEY, "rule", "verdict", *_WHATS, "wait_max_us")
        .groupBy(*RESOURCE_KEY, "at_s", *WHO_KEY, "rule", "verdict")
        .agg(*map(F.expr, _SUMS), F.max("wait_max_us").alias("wait_max_us"))
        .withColumn("dt", F.expr(_DAY.format("at_s")))
    )


def storms(refusals: "DataFrame", newest: "DataFrame", gap_s: int) -> "DataFrame":
    """Group refusals into storms.

    Columns such as ``client_then`` contain each caller's share of the refusals during the seconds in which that caller
    was refused. ``newest`` contains the last recorded second of each ``instance``, in the column ``newest_s``.
    """
    key = (*RESOURCE_KEY, "shadow")
    in_order = Window.partitionBy(*key).orderBy("at_s")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    names = ", ".join(f"struct('{of}' AS of, {name} AS value, NULL AS second)" for of, name in NAMED.items())
    # For each refused message of a caller, the caller's expected share of the second's other refused messages.
    pairs = "CAST(messages AS DOUBLE) * (messages - 1) / greatest(1, of_second - 1)"
    parts = (
        refusals.where("verdict != 'hold'")
        .withColumn("shadow", F.expr("verdict = 'shadow'"))
        .withColumn("begins", F.coalesce(F.col("at_s") - F.lag("at_s").over(in_order) > gap_s, F.lit(True)))
        .withColumn("start_s", F.max(F.expr("IF(begins, at_s, NULL)")).over(so_far))
        .withColumn("of_second", F.sum("messages").over(in_order.rangeBetween(0, 0)))
        .selectExpr(*key, "start_s", "at_s", "of_second", *_WHATS, "wait_max_us",
            f"inline(array(struct('seconds' AS of, '' AS value, at_s AS second), {names}))")
        .groupBy(*key, "start_s", "of", "value", "second", "at_s", "of_second")
        .agg(*map(F.expr, _SUMS), F.max("wait_max_us").alias("wait_max_us"))
        .withColumn("pairs", F.expr(pairs))
        .groupBy(*key, "start_s", "of", "value", "second")
        .agg(*map(F.expr, _SUMS), F.max("wait_max_us").alias("wait_max_us"), F.sum("pairs").alias("pairs"))
    )  # fmt: skip

    def of_seconds(how: str, what: str, name: str) -> "Column":
        return F.expr(f"{how}(IF(of = 'seconds', {what}, NULL)) AS {name}")

    lists = (
        F.expr(f"array_sort(collect_list(IF(of = '{of}', struct(-messages AS less, value, pairs), NULL))) AS {of}")
        for of in NAMED
    )
    shares = (
        "transform({}, each -> struct(each.value AS name, -each.less AS messages,"
        " IF(messages = 0, 0D, -each.less / messages) AS share))"
    )
    callers = {of: f"slice({of}, 1, {_TOP})" for of in NAMED if of != "rules"}
    then = "transform({}, each -> IF(each.less = 0, 0D, -each.pairs / each.less))"
    return (
        parts.groupBy(*key, "start_s")
        .agg(
            F.expr("max(second) + 1 AS end_s"),
            *(of_seconds("sum", what, what) for what in _WHATS),
            F.max("wait_max_us").alias("wait_max_us"),
            of_seconds("count", "second", "refused_seconds"),
            of_seconds("max", "messages", "peak_per_s"),
            F.expr("-max(IF(of = 'seconds', struct(messages, -second AS before), NULL)).before AS peak_at_s"),
            *lists,
        )
        .join(F.broadcast(newest), "instance")
        .selectExpr(
            *key, "start_s", "end_s", *_WHATS, "wait_max_us", "refused_seconds", "peak_per_s", "peak_at_s",
            f"{shares.format('rules')} AS rules",
            *(f"{shares.format(first)} AS {of}" for of, first in callers.items()),
            *(f"CAST(size({of}) AS BIGINT) AS {of.removesuffix('s')}_count" for of in callers),
            *(f"{then.format(first)} AS {of.removesuffix('s')}_then" for of, first in callers.items()),
            f"end_s - 1 + {gap_s} >= newest_s AS is_open",
            f"{_DAY.format('start_s')} AS dt",
        )
    )  # fmt: skip


def floods(storms: "DataFrame", gap_s: int) -> "DataFrame":
    of = ("kind", "name", "shadow")
    in_order = Window.partitionBy(*of).orderBy("start_s", "end_s", "instance")
    before = F.max("end_s").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.expr("IF(begins, start_s, NULL)")
    return (
        storms.withColumn("begins", F.coalesce(F.col("start_s") - before >= gap_s, F.lit(True)))
        .withColumn("flood_s", F.max(begins).over(in_order.rowsBetween(Window.unboundedPreceding, 0)))
        .withColumn(
            "sidecars", F.size(F.collect_set("instance").over(Window.partitionBy(*of, "flood_s"))).cast("bigint")
        )
        .drop("begins")
    )


def culprits(refusals: "DataFrame") -> "DataFrame":
    day = Window.partitionBy(*RESOURCE_KEY, "dt")
    return (
        refusals.where("verdict = 'refuse'")
        .groupBy(*RESOURCE_KEY, "dt", *WHO_KEY)
        .agg(*map(F.expr, _SUMS))
        .withColumn("rank", F.row_number().over(day.orderBy(F.desc("messages"), *WHO_KEY)))
        .withColumn("share", F.coalesce(F.try_divide("messages", F.sum("messages").over(day)), F.lit(0.0)))
        .where(F.col("rank") <= _TOP)
    )


def limits(records: "DataFrame") -> "DataFrame":
    return (
        _by_limit("limit", records)
        .selectExpr(
            *RESOURCE_KEY, "at_s", "struct(at_s, n, run) AS number", *LIMIT_FIELDS, f"{_DAY.format('at_s')} AS dt"
        )
        .groupBy(*RESOURCE_KEY, "rule", "dt")
        .agg(
            F.expr(f"max_by(struct({', '.join(name for name in LIMIT_FIELDS if name != 'rule')}), number) AS its"),
            F.max("at_s").alias("seen_s"),
        )
        .select("*", "its.*")
    )


def limit_changes(records: "DataFrame") -> "DataFrame":
    return _of("limit_change", records).selectExpr(
        *(f"`{name}`" for name in LIMIT_CHANGES.names[:-1]),
        f"{_DAY.format('at_s')} AS dt",
    )


def coverage(lines: "DataFrame", records: "DataFrame") -> "DataFrame":
    """Return how much of each hour each run recorded. ``lines`` includes duplicates, but ``records`` does not."""
    key = ("instance", "run", "hour_s")
    hour = "at_s - at_s % 3600 AS hour_s"
    # One bit for each of 64 consecutive numbers.
    numbers = (
        lines.selectExpr("instance", "run", hour, "n", "last_s")
        .groupBy(*key, F.expr("n DIV 64"))
        .agg(
            F.expr("CAST(bit_count(bit_or(shiftleft(1L, CAST(n % 64 AS INT)))) AS BIGINT) AS records"),
            F.expr("count(*) AS lines"),
            F.min("n").alias("first_n"),
            F.max("n").alias("last_n"),
            F.max("last_s").alias("newest_s"),
        )
        .selectExpr(*key, "named_struct('minute_s', CAST(NULL AS BIGINT), 'seconds', 0L, 'off', false,"
            " 'connections', 0L, 'bypassed', 0L, 'other', 0L, 'lost', 0L, 'version', '', 'killed', '', 'fleet', '')"
            " AS beat",
            "records", "lines - records AS copies", "first_n", "last_n", "newest_s")
    )  # fmt: skip
    beats = (
        _of("heartbeat", records)
        .groupBy("instance", "run", F.expr(hour), F.expr("at_s - at_s % 60").alias("minute_s"))
        .agg(
            F.sum("seconds").alias("seconds"),
            F.expr("NOT bool_and(limiting) AS off"),
            F.expr("max(connections) AS connections"),
            F.expr("sum(aggregate(map_values(bypassed_requests), 0L, (sum, x) -> sum + x)) AS bypassed"),
            F.expr("sum(other) AS other"),
            F.expr("max(lost_records) AS lost"),
            F.max("version").alias("version"),
            F.max("killed_run").alias("killed"),
            F.max("fleet").alias("fleet"),
        )
        .selectExpr(*key,
            "struct(minute_s, seconds, off, connections, bypassed, other, lost, version, killed, fleet) AS beat",
            "0L AS records", "0L AS copies", "CAST(NULL AS BIGINT) AS first_n", "CAST(NULL AS BIGINT) AS last_n",
            "CAST(NULL AS BIGINT) AS newest_s")
    )  # fmt: skip
    return (
        numbers.unionByName(beats)
        .groupBy(*key)
        .agg(
            F.count("beat.minute_s").alias("minutes"),
            F.sum("beat.seconds").alias("seconds"),
            F.min("beat.minute_s").alias("first_minute_s"),
            F.max("beat.minute_s").alias("last_minute_s"),
            F.expr("count_if(beat.off) AS limiting_off_minutes"),
            F.max("beat.connections").alias("connections_max"),
            F.sum("beat.bypassed").alias("bypassed_requests"),
            F.sum("beat.other").alias("other"),
            F.max("beat.lost").alias("lost_records"),
            F.sum("records").alias("records"),
            F.sum("copies").alias("copies"),
            F.min("first_n").alias("first_n"),
            F.max("last_n").alias("last_n"),
            F.max("newest_s").alias("newest_s"),
            F.expr("coalesce(max_by(beat.version, beat.minute_s), '') AS version"),
            F.max("beat.killed").alias("killed_run"),
            F.max("beat.fleet").alias("fleet"),
        )
        .withColumn("dt", F.expr(_DAY.format("hour_s")))
    )
