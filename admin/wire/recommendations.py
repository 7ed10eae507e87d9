"""``recommendations.json``: what a report recommends for limits, and what ``sluice limits apply`` puts in force.

Plain data that both share: the report writes it where the logs are, the command reads it where a sidecar is. Rates are
per second, shares between 0 and 1.
"""

from typing import Final, Literal

import msgspec

from limiter.rules.rule import Count

VERSION: Final = 1
"""Of the file. A new field may be added within a version; a change of meaning takes a new one."""
Recommended = Literal["raise", "lower", "keep", "unused", "new"]
"""What is recommended for a limit. ``keep`` leaves it as it is, ``unused`` was never asked for, ``new`` has none."""
Confidence = Literal["low", "medium", "high"]


class Period(msgspec.Struct, frozen=True, kw_only=True, rename={"from_s": "from", "until_s": "until"}):
    """What the records are of, from the first to the end of the last; both None where there are none."""

    from_s: int | None = None
    until_s: int | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit would have refused of the demand that was recorded."""

    refused_messages: int
    refused_share: float


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """The limit as it is and as recommended, over the demand of the period; None where it is no limit.

    Attributes:
        current: over what was asked for, retries among it, since that is what the limit was up against.
        recommended: over what is left without retries, since a limit that is large enough causes none.
        logged: what really was refused, or would have been by a limit that only shadows.
        model_error: what was simulated for the limit as it is, less what was logged while it was so, as a share of
            what was asked for then; None if nothing was.
    """

    current: Replay | None = None
    recommended: Replay | None = None
    logged: Replay | None = None
    model_error: float | None = None


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What is recommended for one resource, and why.

    Attributes:
        instance: whose limit it is.
        kind: of the resource.
        name: of the resource, or the rule's pattern where nobody used it.
        action: what to do.
        rule: name of the rule in force; empty if none limits.
        count: what ``rate_per_s`` counts.
        rate_per_s: in force at the end of the period; None is unlimited, or no limit.
        recommended_rate_per_s: None is none.
        bytes_per_s: as ``rate_per_s``, of bytes.
        recommended_bytes_per_s: likewise.
        confidence: in the evidence.
        evidence: in words.
        backtest: over the demand that was recorded.
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
        version: of this format.
        made_at: when, ISO 8601 UTC.
        period: of the records.
        instances: whose they are.
        recommendations: all of them.
    """

    version: int = VERSION
    made_at: str
    period: Period = Period()
    instances: tuple[str, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
