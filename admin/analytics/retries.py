"""Retries: how much of what was asked for is the same again, sent anew because it was refused.

A client that is refused often tries again at once, so that what the log counts is more than what was wanted. With up to
T attempts, each admitted with the same chance p (the share of the second that was admitted), an original request makes
on average ``E = 1 + (1-p) + … + (1-p)^(T-1) = (1 - (1-p)^T) / p`` attempts, T for p = 0. What was wanted is what was
asked for divided by E; it is never less than what was admitted.

Clients differ, and the log says only which language they are written in. Of several, each takes the part of the
refused requests that it made: within a second all have the same p, so that this is its part of all attempts, too. Who
was refused without being told (one-way requests) does not try again.

Pure, but for ``corrected_column``: the same formula as Spark computes it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

ATTEMPTS: Final[Mapping[str, int]] = {
    # Synchronous sends: retryTimesWhenSendFailed 2, and from 5.3.0 on code 2 is among the answers that are retried,
    # without a pause. Asynchronous and one-way sends are not retried.
    "JAVA": 3,
    # The client that distributions and PyPI's rocketmq carry makes 3 attempts within a millisecond; the present one up
    # to 5. The smaller figure takes less off, so the demand is rather too large than too small.
    "CPP": 3,
    "PYTHON": 3,  # PyPI's rocketmq is the C++ client inside
    # Both report the first such answer to their caller.
    "GO": 1,
    "NODE_JS": 1,
}
"""Attempts that a client makes when it is refused as busy, by the language it names. All others: one."""

DISTINCT: Final = tuple(sorted(set(ATTEMPTS.values()) - {1}))
"""The numbers of attempts that there are, besides one."""


def expected_attempts(admitted_share: float, attempts: int) -> float:
    """Return how many attempts an original request makes on average.

    Args:
        admitted_share: of the attempts in that second, 0 to 1.
        attempts: at most so many.
    """
    # The sum, since the closed form is nothing but rounding where next to nothing is admitted.
    return float(sum((1 - admitted_share) ** before for before in range(attempts)))


def weights(languages: Mapping[str, tuple[int, int]], busy_answers: int) -> dict[int, float]:
    """Return which part of what was refused makes how many attempts; the rest makes one.

    Args:
        languages: requests and, of these, refused ones, by language.
        busy_answers: refusals that a client was told of.
    """
    refused = sum(refused for _, refused in languages.values())
    if not refused:
        return {}
    told = min(1.0, busy_answers / refused)
    found: dict[int, float] = {}
    for language, (_, count) in languages.items():
        attempts = ATTEMPTS.get(language, 1)
        if attempts > 1 and count:
            found[attempts] = found.get(attempts, 0.0) + told * count / refused
    return found


def corrected(admitted: float, refused: float, parts: Mapping[int, float]) -> float:
    """Return what was wanted in a second in which so much was admitted and refused.

    Args:
        admitted: in any unit.
        refused: in the same unit.
        parts: see ``weights``.
    """
    asked = admitted + refused
    if not refused or not asked:
        return asked
    admitted_share = admitted / asked
    once = 1.0 - sum(parts.values())
    return asked * (
        once + sum(part / expected_attempts(admitted_share, attempts) for attempts, part in sorted(parts.items()))
    )


def weights_columns(languages: "Column", busy_answers: "Column", attempts: Sequence[int] = DISTINCT) -> "list[Column]":
    """Return ``weights`` as columns, one for each number of attempts.

    Args:
        languages: a map from language to a struct with ``refused``.
        busy_answers: a number.
        attempts: which.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra, and slow to load

    def refused_of(names: Sequence[str] | None) -> "Column":
        values = f.map_values(
            languages if names is None else f.map_filter(languages, lambda name, _: name.isin(list(names)))
        )
        return f.coalesce(
            f.aggregate(values, f.lit(0).cast("bigint"), lambda sum_, one: sum_ + one["refused"]), f.lit(0)
        )

    refused = refused_of(None)
    told = f.least(f.lit(1.0), f.coalesce(busy_answers, f.lit(0)) / refused)
    return [
        f.when(
            refused > 0, told * refused_of([name for name, most in ATTEMPTS.items() if most == each]) / refused
        ).otherwise(f.lit(0.0))
        for each in attempts
    ]


def corrected_column(
    admitted: "Column", refused: "Column", parts: "Sequence[Column]", attempts: Sequence[int] = DISTINCT
) -> "Column":
    """Return ``corrected`` as a column.

    Args:
        admitted: messages of one second.
        refused: likewise.
        parts: see ``weights_columns``.
        attempts: what they are of.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    asked = (admitted + refused).cast("double")
    share = admitted / asked
    once, rest = f.lit(1.0), f.lit(0.0)
    for part, most in zip(parts, attempts, strict=True):
        expected = sum((f.pow(1 - share, f.lit(before)) for before in range(1, most)), f.lit(1.0))
        once, rest = once - part, rest + part / expected
    return f.when(refused > 0, asked * (once + rest)).otherwise(asked)
