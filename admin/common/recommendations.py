"""Format of ``recommendations.json``, which ``sluice report`` writes. Rates are per second, shares from 0 to 1."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from admin.common.numbers import MAX_TIMESTAMP_S, percent
from limiter.rules.rule import MAX_RATE_PER_S, Count, FairBy

VERSION: Final = 1
"""Fields may be added within a version. A change of meaning needs a new version."""
Recommended = Literal["raise", "share", "lower", "new", "unused", "keep"]
"""Most useful first. ``share`` adds fair shares. ``new``: the name has no limit. ``unused``: it was never used."""
ACTIONS: Final[tuple[Recommended, ...]] = get_args(Recommended)
TO_DO: Final = frozenset({"raise", "share", "lower", "new"})
"""Actions that change a limit."""
OnlyWith = Literal["", "lower", "raise"]
"""The flag that is needed to apply a recommendation."""
Retries = Literal["none", "measured", "assumed"]
"""How retries in the demand were detected: measured by message ids, or assumed from client defaults."""
Confidence = Literal["low", "medium", "high"]

_Rate = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE_PER_S)]
_Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_S + 86_399)]
"""Seconds since 1970."""


def of_fleet(name: str) -> str:
    return f"fleet {name}"


class Period(msgspec.Struct, frozen=True, kw_only=True, rename={"from_s": "from", "until_s": "until"}):
    """The period of the records. Both are None if there are no records."""

    from_s: _Moment | None = None
    until_s: _Moment | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of the recorded demand a limit would have refused."""

    refused_messages: int
    refused_share: float


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The share of messages that another limit would refuse. Above the present limit, it excludes retries."""

    rate_per_s: float
    refused_share: float
    refused_share_uncorrected: float


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """The present and the recommended limit, replayed over the demand of the period. Null without a limit.

    Attributes:
        current: the present limit applied to all demand, including retries.
        recommended: the recommended limit. If it is higher than the present one, applied to the demand without retries.
        recommended_uncorrected: the recommended limit applied to all demand.
        others_current: with ``fair_by``: refusals of all callers except the one with the largest demand.
        others: with ``fair_by``: upper bound of these refusals with fair shares, as if all had the share of the most
            refused caller.
        logged: refusals in the log, or messages that a shadow limit would have refused.
        model_error: simulated minus logged refusals while the present limit was active, as a share of the demand in
            that time. None without demand.
    """

    current: Replay | None = None
    recommended: Replay | None = None
    recommended_uncorrected: Replay | None = None
    others_current: Replay | None = None
    others: Replay | None = None
    logged: Replay | None = None
    model_error: float | None = None


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The recommendation for one resource, with the reason.

    Attributes:
        instance: the sidecar that the limit belongs to.
        name: name of the resource, or the rule's pattern if it was never used.
        rule: name of the active rule. Empty if there is none.
        rate_per_s: the active rate at the end of the period. None if unlimited or without a limit.
        recommended_rate_per_s: the recommended rate, if any.
        bytes_per_s: the active byte rate, like ``rate_per_s``.
        recommended_bytes_per_s: the recommended byte rate, if any.
        evidence: the reason, in one or two sentences.
        details: further facts.
        only_with: the flag that is needed to apply it. Empty if none is.
        fair_by: the recommended fair shares. None if none are recommended.
        max_fair_keys: with ``fair_by``: the number of shares, if it exceeds the default.
        what_if: results for other rates, in ascending order.
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
    details: str = ""
    backtest: Backtest = Backtest()
    only_with: OnlyWith = ""
    fair_by: FairBy | None = None
    max_fair_keys: int | None = None
    retries: Retries = "none"
    what_if: tuple[WhatIf, ...] = ()


class RecommendationsFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. ``made_at`` is ISO 8601 in UTC."""

    version: int = VERSION
    made_at: str
    period: Period = Period()
    instances: tuple[str, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()


def refusals(recommendation: Recommendation) -> str:
    """Format the replayed refusals: ``2.1% → 0% (0.4% with retries), others 1% → at most 0% each``."""
    test = recommendation.backtest
    now, then, retried, others_now, others = (
        "" if each is None else percent(each.refused_share)
        for each in (test.current, test.recommended, test.recommended_uncorrected, test.others_current, test.others)
    )
    same = now + " as before" * (recommendation.action in TO_DO)
    said = same if now and now == then else " → ".join(filter(None, (now, then)))
    if said and recommendation.retries == "assumed" and retried not in {"", then}:
        said += f" ({retried} with retries)"
    return ", ".join(filter(None, (said, f"others {others_now} → at most {others} each" if others else "")))
