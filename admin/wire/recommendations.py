"""Format of ``recommendations.json``, which ``sluice report`` writes and ``sluice limits apply`` puts in force.

Rates are per second, shares between 0 and 1.
"""

from typing import Final, Literal

import msgspec

from limiter.rules.rule import Count

VERSION: Final = 1
"""Version of the format. A field may be added within a version; a change of meaning needs a new one."""
Recommended = Literal["raise", "lower", "keep", "unused", "new"]
"""What to do with a limit: ``keep`` changes nothing, ``unused`` was never used, ``new`` is for a name without one."""
Confidence = Literal["low", "medium", "high"]


class Period(msgspec.Struct, frozen=True, kw_only=True, rename={"from_s": "from", "until_s": "until"}):
    """Period of the records, from the first to the end of the last; both None if there are no records."""

    from_s: int | None = None
    until_s: int | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit would have refused of the recorded demand."""

    refused_messages: int
    refused_share: float


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """The present and the recommended limit over the demand of the period; None where there is no limit.

    Attributes:
        current: the present limit over all demand, including retries.
        recommended: the recommended limit over the demand without retries, since a limit that is large enough causes
            none.
        logged: what was really refused, or would have been by a limit that only shadows.
        model_error: refusals simulated for the present limit minus those logged while it was in force, as a share of
            the demand of that time; None if there was no demand.
    """

    current: Replay | None = None
    recommended: Replay | None = None
    logged: Replay | None = None
    model_error: float | None = None


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What is recommended for one resource, and why.

    Attributes:
        instance: the sidecar whose limit it is.
        kind: kind of the resource.
        name: name of the resource, or the rule's pattern if no name used it.
        action: what to do.
        rule: name of the rule in force; empty if nothing limits it.
        count: what ``rate_per_s`` counts.
        rate_per_s: the rate in force at the end of the period; None is unlimited, or no limit.
        recommended_rate_per_s: the recommended rate; None if none is recommended.
        bytes_per_s: the bytes per second in force, as ``rate_per_s``.
        recommended_bytes_per_s: the recommended bytes per second; None if none are recommended.
        confidence: confidence in the evidence.
        evidence: the evidence in words.
        backtest: the limits over the recorded demand.
    """

    instance: str
    kind: str
    name: str
    action: Recommended
    rule: str = ""
    count: Count = "messages"
    rate_per_s: float | None = None
    recommended_rate_per_s: float | None = None
    bytes_per_s: float | None = None
    recommended_bytes_per_s: float | None = None
    confidence: Confidence = "low"
    evidence: str = ""
    backtest: Backtest = Backtest()


class RecommendationsFile(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file.

    Attributes:
        version: version of the format.
        made_at: when it was made, ISO 8601 in UTC.
        period: period of the records.
        instances: the sidecars that the records are from.
        recommendations: all recommendations.
    """

    version: int = VERSION
    made_at: str
    period: Period = Period()
    instances: tuple[str, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
