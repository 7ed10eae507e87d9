"""The seconds of the table ``minutes``: what was asked for in each, and what is left of it without retries.

Minutes are many and most are without a refusal, so that all is left of what was asked for in them. Java works through
arrays element by element, slowly: whatever is the same for a minute is taken from its columns or left out.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import retries

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MESSAGES: Final = "zip_with(second_admitted, second_refused, (admitted, refused) -> admitted + refused)"


def with_corrected(minutes: "DataFrame") -> "DataFrame":
    """Add to each minute, second by second, what its limit counts and what is left of that without retries.

    Adds the arrays ``demand`` and ``shares``, what is left of it and of all that came with it: null where nothing was
    refused, as in most minutes, where all of it is. Their sums are ``demand_sum``, ``corrected_sum``, ``bytes_sum``,
    ``corrected_bytes_sum`` and ``wanted_sum`` (messages); ``refused_from`` and ``refused_to`` are the first and the
    last second with a refusal, null without one.
    """
    refusing = F.coalesce(F.array_max("second_refused") > 0, F.lit(False))
    parts = [f"part_{most}" for most in retries.DISTINCT]
    weights = retries.weights_columns(F.col("languages"), F.col("busy_answers"))
    weighted = minutes.select(
        "*",
        F.expr(f"IF(`count` = 'requests', second_requests, {_MESSAGES})").alias("demand"),
        # Only where they are needed: they are most of the work.
        *(F.when(refusing, column).alias(name) for name, column in zip(parts, weights, strict=True)),
    )

    def share(admitted: "Column", refused: "Column") -> "Column":
        messages = (admitted + refused).cast("double")
        left = retries.corrected_column(admitted, refused, [F.col(name) for name in parts])
        return F.when(messages > 0, left / messages).otherwise(F.lit(1.0))

    within = "filter(arrays_zip(second, second_refused), at -> at.second_refused > 0).second"
    return (
        weighted.withColumn("shares", F.when(refusing, F.zip_with("second_admitted", "second_refused", share)))
        .drop(*parts)
        .selectExpr(
            "*",
            f"IF(shares IS NULL, NULL, array_min({within})) AS refused_from",
            f"IF(shares IS NULL, NULL, array_max({within})) AS refused_to",
            f"{sum_of('demand')} AS demand_sum",
            f"{sum_of('second_bytes')} AS bytes_sum",
        )
        .selectExpr(
            "*",
            f"IF(shares IS NULL, demand_sum, {sum_of(left_of('demand'))}) AS corrected_sum",
            f"IF(shares IS NULL, bytes_sum, {sum_of(left_of('second_bytes'))}) AS corrected_bytes_sum",
            f"CASE WHEN shares IS NOT NULL THEN {sum_of(left_of(_MESSAGES))}"
            f" WHEN `count` = 'requests' THEN {sum_of(_MESSAGES)} ELSE demand_sum END AS wanted_sum",
        )
    )


def sum_of(array: str) -> str:
    """Return the SQL that adds up an array."""
    return f"aggregate({array}, 0D, (sum_, one) -> sum_ + one)"


def left_of(array: str) -> str:
    """Return the SQL for what is left of an array's values, second by second."""
    return f"zip_with({array}, shares, (one, share) -> one * share)"
