"""Retries: how much of what was asked for is the same again, sent anew because it was refused.

A client that is refused often tries again at once, so that what the log counts is more than what was wanted. With up to
T attempts, each admitted with the same chance p (the share of the second that was admitted), an original request makes
on average ``E = 1 + (1-p) + … + (1-p)^(T-1) = (1 - (1-p)^T) / p`` attempts, T for p = 0. What was wanted is what was
asked for divided by E; it is never less than what was admitted.

Clients differ, and the log says only which language they are written in. Of several, each takes the part of the
refused requests that it made: within a second all have the same p, so that this is its part of all attempts, too. Who
was refused without being told (one-way requests) does not try again.

Most minutes have no refusal, and then all of their demand is wanted. Java works through arrays element by element,
slowly: whatever is the same for a whole minute is taken from its columns or left out.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.config.plugins import own_protocols

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ATTEMPTS: Final[Mapping[str, int]] = {
    language: attempts for protocol in own_protocols() for language, attempts in protocol.busy_attempts.items()
}
"""How often a client tries when it is refused as busy, by the language it names; all others try once."""

DISTINCT: Final = tuple(sorted(set(ATTEMPTS.values()) - {1}))
"""The numbers of attempts above one that occur."""


def weights_columns(languages: "Column", busy_answers: "Column") -> "list[Column]":
    """Return the part of the refused requests that makes each number of attempts in ``DISTINCT``; the rest makes one.

    Args:
        languages: a map from language to a struct with ``refused``.
        busy_answers: refusals that a client was told of.
    """

    def refused_of(names: Sequence[str] | None) -> "Column":
        values = F.map_values(
            languages if names is None else F.map_filter(languages, lambda name, _: name.isin(list(names)))
        )
        return F.coalesce(
            F.aggregate(values, F.lit(0).cast("bigint"), lambda sum_, one: sum_ + one["refused"]), F.lit(0)
        )

    refused = refused_of(None)
    told = F.least(F.lit(1.0), F.coalesce(busy_answers, F.lit(0)) / refused)
    return [
        F.when(
            refused > 0, told * refused_of([name for name, most in ATTEMPTS.items() if most == each]) / refused
        ).otherwise(F.lit(0.0))
        for each in DISTINCT
    ]


def corrected_column(admitted: "Column", refused: "Column", parts: "Sequence[Column]") -> "Column":
    """Return what was wanted in a second, without the retries.

    Args:
        admitted: messages of the second.
        refused: likewise.
        parts: see ``weights_columns``.
    """
    asked = (admitted + refused).cast("double")
    share = admitted / asked
    once, rest = F.lit(1.0), F.lit(0.0)
    for part, most in zip(parts, DISTINCT, strict=True):
        expected = sum((F.pow(1 - share, F.lit(before)) for before in range(1, most)), F.lit(1.0))
        once, rest = once - part, rest + part / expected
    return F.when(refused > 0, asked * (once + rest)).otherwise(asked)


_MESSAGES: Final = "zip_with(second_admitted, second_refused, (admitted, refused) -> admitted + refused)"


def with_corrected(minutes: "DataFrame") -> "DataFrame":
    """Add to each minute, second by second, what its limit counts and what is left of that without retries.

    Adds the arrays ``demand`` and ``shares``, what is left of it and of all that came with it: null where nothing was
    refused, as in most minutes, where all of it is. Their sums are ``demand_sum``, ``corrected_sum``, ``bytes_sum``,
    ``corrected_bytes_sum`` and ``wanted_sum`` (messages); ``refused_from`` and ``refused_to`` are the first and the
    last second with a refusal, null without one.
    """
    refusing = F.coalesce(F.array_max("second_refused") > 0, F.lit(False))
    parts = [f"part_{most}" for most in DISTINCT]
    weights = weights_columns(F.col("languages"), F.col("busy_answers"))
    weighted = minutes.select(
        "*",
        F.expr(f"IF(`count` = 'requests', second_requests, {_MESSAGES})").alias("demand"),
        # Only where they are needed: they are most of the work.
        *(F.when(refusing, column).alias(name) for name, column in zip(parts, weights, strict=True)),
    )

    def share(admitted: "Column", refused: "Column") -> "Column":
        messages = (admitted + refused).cast("double")
        left = corrected_column(admitted, refused, [F.col(name) for name in parts])
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
