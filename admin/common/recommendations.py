"""Format of ``recommendations.json``, which ``sluice report`` writes.

All rates are per second. All shares are fractions from 0 to 1.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

from admin.common.numbers import MAX_TIMESTAMP_S, percent
from limiter.rules.rule import MAX_RATE_PER_S, Count, FairBy

VERSION: Final = 1
"""Increase this if the meaning of a field changes, but not if a field is added."""
Recommended = Literal["raise", "share", "lower", "new", "unused", "keep"]
"""The most useful recommendations come first."""
ACTIONS: Final[tuple[Recommended, ...]] = get_args(Recommended)
TO_DO: Final = frozenset({"raise", "share", "lower", "new"})
OnlyWith = Literal["", "lower", "raise"]
Retries = Literal["none", "measured", "assumed"]
Confidence = Literal["low", "medium", "high"]

_Rate = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE_PER_S)]
_Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_S + 86_399)]
"""Unix time in seconds."""


def of_fleet(name: str) -> str:
    return f"fleet {name}"


class Period(msgspec.Struct, frozen=True, kw_only=True, rename={"from_s": "from", "until_s": "until"}):
    """The period that the records cover. Both times are None if there are no records."""

    from_s: _Moment | None = None
    until_s: _Moment | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The number of recorded messages that a limit would have refused, and their share of all recorded messages."""

    refused_messages: int
    refused_share: float


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The share of messages that a different limit would refuse.

    If that limit is above the current one, ``refused_share`` does not include retries. ``refused_share_uncorrected``
    always includes them.
    """

    rate_per_s: float
    refused_share: float
    refused_share_uncorrected: float


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """Simulations of what different limits would have done with the recorded demand.

    A result is null if there is no such limit. ``others_current`` and ``others`` are null unless ``fair_by`` is
    recommended.

    Attributes:
        current: refusals by the current limit. The demand includes retries.
        recommended: refusals by the recommended limit. If it is higher than the current limit, the demand does not
            include retries.
        recommended_uncorrected: refusals by the recommended limit. The demand includes retries.
        others_current: refusals by the current limit for all callers except the one with the largest demand.
        others: upper bound on refusals for the same callers with fair shares. It assumes that all of them would be
            refused as often as the worst-affected one.
        logged: refusals in the log. For a shadow limit, messages that it would have refused.
        model_error: simulated minus logged refusals while the current limit was active, divided by the demand during
            that time. None if there was no demand.
    """

    current: Replay | None = None
    recommended: Replay | None = None
    recommended_uncorrected: Replay | None = None
    others_current: Replay | None = None
    others: Replay | None = None
    logged: Replay | None = None
    model_error: float | None = None


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation for the limit of one resource.

    Attributes:
        instance: name of the sidecar that has the limit, or ``fleet NAME`` for a fleet limit.
        name: name of the resource, or the pattern of a rule that was never used.
        action: what to do with the limit. ``share`` adds fair shares. ``new`` adds a limit for a name that has none.
            ``unused`` reports a limit that was never used.
        rule: name of the rule that limits the resource. Empty if there is none.
        count: the unit of ``rate_per_s`` and ``recommended_rate_per_s``.
        rate_per_s: the rate that was active at the end of the period. None if the rate was not limited.
        recommended_rate_per_s: the recommended rate. None if no rate is recommended.
        bytes_per_s: the byte rate that was active at the end of the period. None if bytes were not limited.
        recommended_bytes_per_s: the recommended byte rate. None if no byte rate is recommended.
        evidence: the main reason for the recommendation, in one sentence.
        details: further facts, each in a sentence.
        only_with: name of the flag that is needed to apply the recommendation. Empty if none is needed.
        fair_by: the recommended value of ``fair_by``. None if fair shares are not recommended.
        max_fair_keys: the recommended number of fair shares. None for the default.
        retries: how retries in the demand were identified. ``measured`` means that message ids were compared.
            ``assumed`` means that the defaults of client libraries were used.
        what_if: results for other rates, in ascending order of the rate.
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
    """The content of ``recommendations.json``. ``made_at`` is an ISO 8601 timestamp in UTC."""

    version: int = VERSION
    made_at: str
    period: Period = Period()
    instances: tuple[str, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()


def refusals(recommendation: Recommendation) -> str:
    """Format the simulated refusals, as in ``2.1% → 0% (0.4% with retries), others 1% → at most 0% each``."""
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
