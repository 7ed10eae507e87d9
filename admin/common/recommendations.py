"""Format of ``recommendations.json``, which ``sluice report`` writes and ``sluice limits apply`` puts in force.

Rates are per second, shares between 0 and 1.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

from admin.common.clock import LATEST_S
from admin.common.numbers import percent
from limiter.rules.rule import MAX_RATE_PER_S, Count, FairBy

VERSION: Final = 1
"""Version of the format. A field may be added within a version; a change of meaning needs a new one."""
Recommended = Literal["raise", "share", "lower", "new", "unused", "keep"]
"""What to do with a limit, in the order in which that is worth doing.

``share`` keeps the rate and gives everybody a fair share of it, ``new`` is for a name without a limit, ``unused`` was
never used, ``keep`` changes nothing."""
ACTIONS: Final[tuple[Recommended, ...]] = get_args(Recommended)
TO_DO: Final = frozenset({"raise", "share", "lower", "new"})
"""Those that change a limit."""
OnlyWith = Literal["", "lower", "raise"]
"""What is offered apart, and applied only by the flag of this name."""
Retries = Literal["none", "measured", "assumed"]
"""Whether retries are among the demand, and how that is known: by message ids, or by what clients do by default."""
Confidence = Literal["low", "medium", "high"]

_Rate = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE_PER_S)]
"""As rules have it: others than Sluice may have written the file."""
_Moment = Annotated[int, msgspec.Meta(ge=0, le=LATEST_S + 86_399)]
"""Seconds since 1970, to the end of the year 9999."""


class Period(msgspec.Struct, frozen=True, kw_only=True, rename={"from_s": "from", "until_s": "until"}):
    """Period of the records, from the first to the end of the last; both None if there are no records."""

    from_s: _Moment | None = None
    until_s: _Moment | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit would have refused of the recorded demand."""

    refused_messages: int
    refused_share: float


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit of one rate would have refused.

    Attributes:
        rate_per_s: of the limit, in its unit.
        refused_share: of the demand without retries.
        refused_share_uncorrected: of all that was asked for.
    """

    rate_per_s: float
    refused_share: float
    refused_share_uncorrected: float


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """The present and the recommended limit over the demand of the period; None where there is no limit.

    Attributes:
        current: the present limit over all demand, including retries.
        recommended: the recommended limit over the demand without retries, since a limit that is large enough causes
            none.
        recommended_uncorrected: the recommended limit over all demand, as if none of it were retries.
        others_current: with ``fair_by``, what was refused of all but the one that asked for most.
        others: likewise, what fair shares would have refused of them.
        logged: what was really refused, or would have been by a limit that only shadows.
        model_error: refusals simulated for the present limit minus those logged while it was in force, as a share of
            the demand of that time; None if there was no demand.
    """

    current: Replay | None = None
    recommended: Replay | None = None
    recommended_uncorrected: Replay | None = None
    others_current: Replay | None = None
    others: Replay | None = None
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
        only_with: the flag that it is applied by; empty if none is needed.
        fair_by: by whom the limit should be shared fairly; None recommends nothing.
        max_fair_keys: with ``fair_by``, how many must be told apart, if that is more than the default.
        retries: whether retries are among the demand, and how that is known.
        what_if: what other rates would have refused, in order of their rates.
    """

    instance: str
    kind: str
    name: str
    action: Recommended
    rule: str = ""
    count: Count = "messages"
    rate_per_s: _Rate | None = None
    recommended_rate_per_s: _Rate | None = None
    bytes_per_s: _Rate | None = None
    recommended_bytes_per_s: _Rate | None = None
    confidence: Confidence = "low"
    evidence: str = ""
    backtest: Backtest = Backtest()
    only_with: OnlyWith = ""
    fair_by: FairBy | None = None
    max_fair_keys: int | None = None
    retries: Retries = "none"
    what_if: tuple[WhatIf, ...] = ()


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


def refusals(recommendation: Recommendation) -> str:
    """Write what the limits would have refused: ``2.1% → 0%``; empty if nothing was replayed.

    Where retries are assumed, the other figure is beside it: ``(0.4% if nobody retries)``; and beside fair shares, what
    they would do for everybody but the one that asks for most.
    """
    test = recommendation.backtest
    said = _shares(test.current, test.recommended)
    if said and recommendation.retries == "assumed" and test.recommended_uncorrected is not None:
        said += f" ({percent(test.recommended_uncorrected.refused_share)} if nobody retries)"
    others = _shares(test.others_current, test.others)
    return ", ".join(filter(None, (said, f"others {others}" if others else "")))


def _shares(*replays: Replay | None) -> str:
    return " → ".join(percent(each.refused_share) for each in replays if each is not None)
