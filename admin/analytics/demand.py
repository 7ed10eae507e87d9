"""What was asked for, resource by resource: the figures that recommendations are made from, computed by Spark.

Everything comes from the tables ``minutes``, ``storms`` and ``coverage``. Percentiles are exact and of *all*
seconds that were observed: one in which nothing was asked for counts as 0, and how many were observed is what
``coverage`` says. They are interpolated as SQL's ``percentile_cont`` does.

Demand per second is in what the limit counts, messages or requests, once as it came and once *corrected*, without the
retries of what was refused (see ``retries``). *Calm* is what lies outside of refusals: of each minute the seconds
before its first refusal and after its last one.

One row for each resource, and nothing comes to the driver: there may be a million.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics.figures import Demand, Limit, Percentiles, Storms
from admin.analytics.retries import left_of, sum_of, with_corrected
from admin.analytics.tables import LIMIT_KEY, RESOURCE_KEY
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

PERCENTILES: Final = (0.5, 0.95, 0.99, 0.999, 1.0)
"""What each array of percentiles holds, in this order."""
LEAST_TREND_DAYS: Final = 4
LEAST_WEEKLY_DAYS: Final = 14
LEAST_DAY_S: Final = DAY_S // 2
"""A day counts for the trend if at least this much of it was observed."""
WEEK_HOURS: Final = 7 * 24
UNUSED: Final = ("bytes_per_s", "per_minute", "per_hour")
"""Percentiles that recommendations are not made from; left out before they are computed."""
_KEY: Final = list(RESOURCE_KEY)
_MONDAY_S: Final = 4 * DAY_S
"""The first Monday, 00:00 UTC, since 1970."""


def demand(tables: Mapping[str, "DataFrame"]) -> "DataFrame":
    """Make one row for each resource that was asked for.

    Args:
        tables: ``minutes``, ``storms`` and ``coverage``, of the period; ``hours`` too for percentiles of hours.

    Returns:
        What ``of_row`` reads: ``instance, kind, name``, the fields of the limit in ``limit``, sums, and arrays of
        percentiles ``…_per_s``, ``per_minute`` and ``per_hour`` (of messages as they came), see ``PERCENTILES``.
    """
    minutes, coverage = with_corrected(tables["minutes"]), tables["coverage"]
    known = _known(coverage)
    most_days = max((row["days"] for row in known), default=0)
    # What each instance has in common is small, and known before anything is planned.
    instances = minutes.sparkSession.createDataFrame(known, _KNOWN)
    totals = _totals(minutes).join(F.broadcast(instances), "instance", "left")
    totals = totals.withColumn("observed_s", F.greatest(F.coalesce("known_s", F.lit(0)), "active_s"))
    if "hours" in tables:
        by_hour = tables["hours"].groupBy(*_KEY).agg(F.collect_list("demand_messages").alias("by_hour"))
        totals = totals.join(by_hour, _KEY, "left")
    found = _with_percentiles(totals).join(_storms(tables["storms"]), _KEY, "left")
    # Each takes several passes over everything: only where there is something to find.
    if most_days >= LEAST_TREND_DAYS:
        found = found.join(_trend(minutes, coverage), _KEY, "left")
    else:
        found = found.selectExpr("*", "CAST(NULL AS DOUBLE) AS trend_per_week", "CAST(NULL AS DOUBLE) AS trend_fit")
    if most_days >= LEAST_WEEKLY_DAYS:
        return found.join(_weekly(minutes, coverage), _KEY, "left")
    return found.selectExpr(
        "*",
        "CAST(NULL AS DOUBLE) AS hour_per_s",
        "CAST(NULL AS INT) AS hour_of_week",
        "CAST(NULL AS DOUBLE) AS hour_times",
    )


_KNOWN: Final = "instance STRING, known_s BIGINT, lost_records BIGINT, other BIGINT, days INT"


def _known(coverage: "DataFrame") -> "list[Row]":
    """Return what is known of each instance: seconds, what is lost, days."""
    by_run = coverage.groupBy("instance", "run").agg(
        F.sum("seconds").alias("seconds"),
        F.max("lost_records").alias("lost"),
        (F.max("last_n") - F.min("first_n") + 1 - F.sum("records")).alias("missing"),
        F.sum("other").alias("other"),
        F.collect_set(F.when(F.col("seconds") > 0, F.col("dt"))).alias("days"),
    )
    return (
        by_run.groupBy("instance")
        .agg(
            F.sum("seconds").alias("known_s"),
            F.sum(F.greatest("lost", "missing")).alias("lost_records"),
            F.sum("other").alias("other"),
            F.size(F.array_distinct(F.flatten(F.collect_list("days")))).alias("days"),
        )
        .collect()
    )


def _totals(minutes: "DataFrame") -> "DataFrame":
    """Add up the minutes of each resource, and collect their seconds: a list in place of a row for each of them."""
    refused_s = F.coalesce(F.col("refused_to") - F.col("refused_from") + 1, F.lit(0))
    calm = F.col("shares").isNull()
    # Which seconds a limit that only shadows would have refused, minutes do not say.
    shadowed = F.col("shadowed_messages") > 0
    quiet, loud = calm & ~shadowed, ~calm | shadowed
    requests = sum(
        (F.col(f"{name}_requests") for name in ("admitted", "shadowed", "bypassed", "exempt", "refused", "dropped")),
        F.lit(0),
    )
    return (
        minutes.selectExpr(
            "*",
            f"IF(shares IS NULL, NULL, {left_of('demand')}) AS corrected",
            f"IF(shares IS NULL, NULL, {left_of('second_bytes')}) AS corrected_bytes",
        )
        .selectExpr(
            "*",
            # Of a minute with refusals: the seconds from the first to the last one, and the others.
            f"IF(shares IS NULL, NULL, filter({_SECONDS}, {_WITHIN})) AS within",
            f"IF(shares IS NULL, NULL, filter({_SECONDS}, {_WITHIN.replace('at ->', 'at -> NOT')})) AS outside",
        )
        .groupBy(*_KEY)
        .agg(
            F.max_by(F.struct(*LIMIT_KEY), "minute_s").alias("limit"),
            (
                (F.coalesce(F.min("rate_per_s"), F.lit(-1.0)) != F.coalesce(F.max("rate_per_s"), F.lit(-1.0)))
                | (F.count("rate_per_s") % F.count("*") != 0)
            ).alias("limit_changed"),
            F.count("*").alias("minutes"),
            F.size(F.collect_set(F.expr(f"minute_s DIV {HOUR_S}"))).alias("hours"),
            F.sum(F.size("second")).alias("active_s"),
            F.sum(refused_s).alias("refused_s"),
            F.sum(F.when(calm, 0).otherwise(F.size("within"))).alias("refused_active_s"),
            F.sum(F.when(shadowed, 0).when(calm, F.size("second")).otherwise(F.size("outside"))).alias("quiet_s"),
            F.count_distinct(F.when(loud, F.col("dt"))).alias("refused_days"),
            F.coalesce(
                F.max(F.when(loud, F.col("minute_s"))) - F.min(F.when(loud, F.col("minute_s"))) + MINUTE_S, F.lit(0)
            ).alias("refused_span_s"),
            F.sum(requests).alias("requests"),
            F.sum("demand_messages").alias("messages"),
            F.sum("wanted_sum").alias("wanted_messages"),
            F.sum(F.col("refused_messages") + F.col("dropped_messages") + F.col("shadowed_messages")).alias(
                "refused_messages"
            ),
            (
                F.sum(F.when(calm, 0.0).otherwise(F.expr(sum_of("within.corrected"))))
                / F.greatest(F.sum(refused_s), F.lit(1))
            ).alias("refusing_per_s"),
            (F.max("corrected_sum") / MINUTE_S).alias("minute_per_s"),
            (F.max("corrected_bytes_sum") / MINUTE_S).alias("minute_bytes_per_s"),
            *(
                (F.coalesce(F.max(F.when(when, F.col(of))), F.lit(0.0)) / MINUTE_S).alias(name)
                for name, when, of in (
                    ("calm_minute_per_s", calm, "corrected_sum"),
                    ("quiet_minute_per_s", quiet, "corrected_sum"),
                    ("calm_minute_bytes_per_s", calm, "corrected_bytes_sum"),
                    ("quiet_minute_bytes_per_s", quiet, "corrected_bytes_sum"),
                )
            ),
            F.collect_list("demand_messages").alias("by_minute"),
            # Nulls are left out. In calm minutes all is left of what was asked for.
            *(
                F.flatten(F.collect_list(column)).alias(name)
                for name, column in {
                    "calm_demand": F.when(calm, F.col("demand")),
                    "loud_demand": F.when(~calm, F.col("demand")),
                    "loud_corrected": F.col("corrected"),
                    "loud_outside": F.col("outside.corrected"),
                    "calm_bytes": F.when(calm, F.col("second_bytes")),
                    "loud_bytes": F.when(~calm, F.col("second_bytes")),
                    "loud_corrected_bytes": F.col("corrected_bytes"),
                    "loud_outside_bytes": F.col("outside.corrected_bytes"),
                }.items()
            ),
        )
    )


_SECONDS: Final = "arrays_zip(second, corrected, corrected_bytes)"
_WITHIN: Final = "at -> (at.second BETWEEN refused_from AND refused_to)"


_COLLECTED: Final = (
    *(f"{which}_{what}" for what in ("demand", "bytes") for which in ("calm", "loud")),
    *("loud_corrected", "loud_outside", "loud_corrected_bytes", "loud_outside_bytes", "by_minute", "by_hour"),
)
"""Lists of a resource, that percentiles take the place of."""


def _with_percentiles(totals: "DataFrame") -> "DataFrame":
    """Put percentiles in place of what was collected: seconds, minutes and hours without a demand are zeros."""
    # Between the first refusal of a minute and the last there may be seconds without demand, which are not calm.
    calm_s = "observed_s - refused_s - (active_s - refused_active_s)"
    values = {
        "demand_per_s": ("concat(calm_demand, loud_demand)", "observed_s - active_s"),
        "corrected_per_s": ("concat(calm_demand, loud_corrected)", "observed_s - active_s"),
        "calm_per_s": ("concat(calm_demand, loud_outside)", calm_s),
        "bytes_per_s": ("concat(calm_bytes, loud_bytes)", "observed_s - active_s"),
        "corrected_bytes_per_s": ("concat(calm_bytes, loud_corrected_bytes)", "observed_s - active_s"),
        "calm_bytes_per_s": ("concat(calm_bytes, loud_outside_bytes)", calm_s),
        "per_minute": ("by_minute", f"CAST(ceil(observed_s / {MINUTE_S}) AS BIGINT) - minutes"),
    }
    kept = [name for name in totals.columns if name not in _COLLECTED]
    if "by_hour" in totals.columns:
        values["per_hour"] = ("coalesce(by_hour, array())", f"CAST(ceil(observed_s / {HOUR_S}) AS BIGINT) - hours")
    ordered = totals.selectExpr(
        *kept,
        *(f"sort_array(CAST({array} AS ARRAY<DOUBLE>)) AS {name}" for name, (array, _) in values.items()),
        *(f"greatest({zeros}, 0) AS {name}_zeros" for name, (_, zeros) in values.items()),
    )
    return ordered.selectExpr(
        *kept,
        *(f"{_percentiles(name, f'{name}_zeros')} AS {name}" for name in values),
    )


def _percentiles(array: str, zeros: str) -> str:
    """Return the percentiles of sorted values and so many zeros before them; of nothing at all they are 0."""
    # Where in all values; what is before the array is 0.
    place = f"(share * ({zeros} + size({array}) - 1))"
    low, high = (f"coalesce(get({array}, CAST({end}{place} - {zeros} AS INT)), 0D)" for end in ("floor", "ceil"))
    between = f"(ceil{place} - {place}) * {low} + ({place} - floor{place}) * {high}"
    shares = ", ".join(f"{share}D" for share in PERCENTILES)
    return f"transform(array({shares}), share -> IF({low} = {high}, {low}, {between}))"


def _trend(minutes: "DataFrame", coverage: "DataFrame") -> "DataFrame":
    """Return by which share the daily demand grows in a week, by least squares, and how well that fits."""
    day = F.unix_date("dt").cast("double")
    days = (
        coverage.groupBy("instance", "dt")
        .agg(F.least(F.sum("seconds"), F.lit(DAY_S)).alias("seconds"))
        .where(F.col("seconds") >= LEAST_DAY_S)
    )
    of_instance = days.groupBy("instance").agg(
        F.count("*").alias("n"), F.sum(day).alias("sx"), F.sum(day * day).alias("sxx")
    )
    # Days without a demand are in the sums above, and add nothing to those here.
    rate = F.col("messages") / F.col("seconds")
    sums = (
        minutes.groupBy(*_KEY, "dt")
        .agg(F.sum("corrected_sum").alias("messages"))
        .join(F.broadcast(days), ["instance", "dt"])
        .groupBy(*_KEY)
        .agg(F.sum(rate).alias("sy"), F.sum(rate * day).alias("sxy"), F.sum(rate * rate).alias("syy"))
        .join(F.broadcast(of_instance), "instance")
        .where((F.col("n") >= LEAST_TREND_DAYS) & (F.col("sy") > 0))
    )
    xx = F.col("n") * F.col("sxx") - F.col("sx") * F.col("sx")
    xy = F.col("n") * F.col("sxy") - F.col("sx") * F.col("sy")
    yy = F.col("n") * F.col("syy") - F.col("sy") * F.col("sy")
    return sums.select(
        *_KEY,
        (xy / xx * 7 / (F.col("sy") / F.col("n"))).alias("trend_per_week"),
        F.when(yy > 1e-9 * F.col("n") * F.col("syy"), xy * xy / (xx * yy)).otherwise(F.lit(0.0)).alias("trend_fit"),
    )


def _weekly(minutes: "DataFrame", coverage: "DataFrame") -> "DataFrame":
    """Return the busiest hour of the week, where there are two weeks to tell."""
    hours = (
        coverage.groupBy("instance", _hour_of_week("hour_s").alias("hour_of_week"))
        .agg(F.sum("seconds").alias("seconds"))
        .where("seconds > 0")
    )
    enough = (
        coverage.groupBy("instance")
        .agg(F.countDistinct("dt").alias("days"))
        .where(F.col("days") >= LEAST_WEEKLY_DAYS)
        .select("instance")
    )
    known = hours.groupBy("instance").agg(F.count("*").alias("hours")).join(enough, "instance")
    rates = (
        minutes.join(F.broadcast(enough), "instance", "left_semi")
        .groupBy(*_KEY, _hour_of_week("minute_s").alias("hour_of_week"))
        .agg(F.sum("corrected_sum").alias("messages"))
        .join(F.broadcast(hours), ["instance", "hour_of_week"])
        .withColumn("per_s", F.col("messages") / F.col("seconds"))
    )
    ordered = F.sort_array(F.collect_list("per_s"), asc=False)
    return (
        rates.groupBy(*_KEY)
        .agg(
            F.max("per_s").alias("hour_per_s"),
            F.max_by("hour_of_week", F.struct("per_s", -F.col("hour_of_week"))).alias("hour_of_week"),
            ordered.alias("all"),
        )
        .join(F.broadcast(known), "instance")
        # Hours without a demand would stand at the end.
        .withColumn("median", F.coalesce(F.get("all", F.expr("CAST(hours DIV 2 AS INT)")), F.lit(0.0)))
        .select(
            *_KEY,
            "hour_per_s",
            "hour_of_week",
            F.when(F.col("median") > 0, F.col("hour_per_s") / F.col("median")).alias("hour_times"),
        )
    )


def _hour_of_week(at: str) -> "Column":
    return F.expr(f"CAST(({at} - {_MONDAY_S}) DIV {HOUR_S} % {WEEK_HOURS} AS INT)")


def _storms(storms: "DataFrame") -> "DataFrame":
    """Return what is known of each resource's refusals."""
    first_two = F.aggregate(F.slice("clients", 1, 2), F.lit(0).cast("bigint"), lambda sum_, one: sum_ + one["messages"])
    return storms.groupBy(*_KEY).agg(
        F.count("*").alias("storm_count"),
        F.size(F.collect_set("dt")).alias("storm_days"),
        F.sum("messages").alias("storm_messages"),
        (F.sum(first_two) / F.greatest(F.sum("messages"), F.lit(1))).alias("top_two_share"),
        F.max("client_count").alias("storm_clients"),
        F.flatten(
            F.collect_list(F.transform("rules", lambda one: F.struct(one["name"].alias("rule"), one["messages"])))
        ).alias("storm_rules"),
    )


def of_row(row: "Row") -> Demand:
    """Read a row of ``demand``, on an executor."""
    values: dict[str, Any] = {
        name: value for name, value in row.asDict().items() if name in _SAME_NAME and value is not None
    }
    values |= {name: Percentiles(*row[column]) for name, column in _PERCENTILE_COLUMNS.items()}
    limit = row["limit"]
    return Demand(
        **values,
        limit=Limit(**{name: limit[name] for name in LIMIT_KEY}, changed=row["limit_changed"]),
        storms=_storms_of(row, limit["rule"]),
    )


_PERCENTILE_COLUMNS: Final = {
    "raw": "demand_per_s",
    "corrected": "corrected_per_s",
    "calm": "calm_per_s",
    "size_bytes": "corrected_bytes_per_s",
    "calm_bytes": "calm_bytes_per_s",
}
"""Attributes of ``Demand`` and the columns that they are read from; most others have the name of their column."""
_SAME_NAME: Final = frozenset(field.name for field in fields(Demand)) - {"limit", "storms", *_PERCENTILE_COLUMNS}


def _storms_of(row: "Row", rule: str) -> Storms:
    if not row["storm_count"]:
        return Storms()
    by_rule: Counter[str] = Counter()
    for each in row["storm_rules"] or ():
        by_rule[each["rule"]] += each["messages"]
    total = sum(by_rule.values())
    others = {name: messages for name, messages in by_rule.items() if name != rule}
    return Storms(
        count=row["storm_count"],
        days=row["storm_days"],
        messages=row["storm_messages"],
        top_two_share=row["top_two_share"],
        clients=row["storm_clients"] or 0,
        own_share=by_rule[rule] / total if total else 1.0,
        other_rule=max(others, key=lambda name: others[name]) if others else "",
    )
