"""What to do about one limit, and why: from figures of the demand to a recommendation in words.

**The rate.** What is needed is the 99th percentile of the demand per second, over all seconds that were observed and
without retries, times the headroom; never less than the mean of the busiest minute, or than the headroom over the
busiest hour of the week; more by a week's growth where the demand grows steadily. It is rounded up to two significant
digits. Less than a tenth away from the limit in force it is left as it is.

**Runaways.** A limit that stops a client that has gone wild does its job. Where refusals were short, rare, the work of
one or two clients and far above what is asked for otherwise, the demand outside of them counts alone.

**Raising** wants to know the demand from a flood, and a short log may know nothing but the flood. A limit that refused
is raised where at least ten minutes of the demand lie outside of refusals, and where either the log has a whole day or
what was refused is not far above them. Refusals that come back over a day or more, on half of the days, are a demand in
any case. Otherwise it stays.

**Lowering** wants at least a day's log, since what is seldom may be missing in less, and is taken back where the replay
says that it would refuse what the limit in force does not. Where runaways are left out, a replay of everything cannot
say that, so there no limit comes below the busiest second outside of refusals. Nothing is ever lowered to 0: of what
nobody asks for, nobody knows what it needs.

Rates are per second, shares between 0 and 1. Pure: no Spark.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from admin.analytics import words
from admin.analytics.evidence import (
    TREND_FIT,
    TREND_LEAST,
    TREND_MOST,
    about_bytes,
    about_demand,
    about_growth,
    about_runaway,
    about_untold,
    no_limit,
    sentences,
    span,
    unknowns,
)
from admin.analytics.figures import Demand, Limit
from admin.analytics.words import DAY_S
from limiter.counting.rejections import OTHER
from limiter.rules.patterns import glob_of

LEAST_PER_S: Final = 1.0
"""No lower limit is recommended, unless a capacity does not suffice for that."""
SAME: Final = 0.1
"""A rate less than a tenth away from the limit is no reason to change it."""
LEAST_LOWERING_S: Final = DAY_S
"""A limit is lowered only if at least this much was observed."""
FEW_CLIENTS_SHARE: Final = 0.8
"""One or two clients with at least this share of what was refused caused it."""
RUNAWAY_TIMES: Final = 3.0
"""This many times the usual demand is far above it."""
RUNAWAY_ACTIVE_SHARE: Final = 0.34
"""Refusals in more than this share of the seconds with demand are no exception."""
LEAST_QUIET_S: Final = 600
"""With less demand than this outside of refusals, the usual demand is not known."""
WORSE_SHARE: Final = 0.001
"""A lower limit may refuse up to this share more of the demand."""


class Advice(NamedTuple):
    """What to do about one limit.

    Attributes:
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
        action: as ``admin.wire.recommendations.Recommended``.
        rate_per_s: in force.
        recommended_rate_per_s: None is none.
        bytes_per_s: in force.
        recommended_bytes_per_s: None is none.
        confidence: low, medium, high.
        evidence: in words.
        need_per_s: what it needs of the broker's capacity, in messages.
        weight: its part of a capacity that does not suffice.
        runaway: refusals were the work of runaways, and were left out.
        capped: it is less than by itself, since the broker's capacity does not suffice.
    """

    instance: str
    kind: str
    name: str
    action: str
    rate_per_s: float | None
    recommended_rate_per_s: float | None
    bytes_per_s: float | None
    recommended_bytes_per_s: float | None
    confidence: str
    evidence: str
    need_per_s: float
    weight: float
    runaway: bool
    capped: bool = False


def decide(demand: Demand, headroom: float, *, limit_all: bool = False) -> Advice:
    """Decide about one resource by itself.

    Args:
        demand: its figures.
        headroom: as a share: 0.2 is 20% above what is needed.
        limit_all: the broker's capacity is known, so that what has no limit gets one.
    """
    limit = demand.limit
    runaway = is_runaway(demand)
    growth = _growth(demand)
    hour = (demand.hour_per_s or 0.0) * (1 + headroom)
    need = _needed(
        (demand.calm if runaway else demand.corrected).p99 * (1 + headroom),
        demand.calm_minute_per_s if runaway else demand.minute_per_s,
        0.0 if runaway else hour,
        growth,
    )
    bytes_need = _needed(
        (demand.calm_bytes if runaway else demand.size_bytes).p99 * (1 + headroom),
        demand.calm_minute_bytes_per_s if runaway else demand.minute_bytes_per_s,
        0.0,
        growth,
    )
    untold = "" if runaway else _untold(demand)
    least, bytes_least = (demand.calm.top, demand.calm_bytes.top) if runaway else (0.0, 0.0)
    rate, rate_action, why = _one(limit.rate, need, demand, least=least, untold=untold)
    size, bytes_action, bytes_why = _one(
        limit.bytes_rate, bytes_need, demand, least=bytes_least, untold=untold, unit="bytes"
    )
    if untold and untold == why and limit.rate:
        # Nor does it take more of a capacity than its limit.
        need = min(need, limit.rate)
    actions = {rate_action, bytes_action}
    action = "raise" if "raise" in actions else "lower" if "lower" in actions else "keep"
    if limit.rate is None and limit.bytes_rate is None and limit_all and need and limit.action != "off":
        if demand.name == OTHER:
            why = "these are the many names that were not told apart, which no limit can be set for"
        else:
            action, rate, why = "new", need, ""
    said = [about_demand(demand, runaway=runaway)]
    said += [text for text in (about_runaway(demand) if runaway else "", about_growth(demand), why) if text]
    if limit.bytes_rate is not None:
        said.append(about_bytes(demand, runaway=runaway))
        said += [f"bytes: {bytes_why}"] if bytes_why and bytes_why != why else []
    if limit.rate is None and action == "keep":
        said += [] if limit.bytes_rate is not None else [no_limit(limit)]
    said += unknowns(demand)
    return Advice(
        demand.instance,
        demand.kind,
        demand.name,
        action,
        limit.rate,
        rate,
        limit.bytes_rate,
        size,
        "low" if untold and untold in said else confidence(demand),
        sentences(said),
        # A limit takes its part of a capacity, even if nothing counts that was asked for.
        need_per_s=0.0 if limit.rate == 0 else (need or (LEAST_PER_S if limit.rate else 0.0)) * messages_each(demand),
        weight=_two_digits(limit.rate) if limit.rate else max(need, LEAST_PER_S),
        runaway=runaway,
    )


def unused(instance: str, kind: str, name: str, limit: Limit, observed_s: int, *, lost_records: int = 0) -> Advice:
    """Say of an exact limit that nothing was asked for under it."""
    demand = Demand(instance, kind, name, limit=limit, observed_s=observed_s, lost_records=lost_records)
    evidence = sentences([f"nothing was asked for in {span(observed_s)} of log", *unknowns(demand)])
    sure = "low" if observed_s < DAY_S or lost_records else "medium" if observed_s < 7 * DAY_S else "high"
    return Advice(
        instance,
        kind,
        name,
        "unused",
        limit.rate,
        None,
        limit.bytes_rate,
        None,
        sure,
        evidence,
        0.0,
        1.0,
        runaway=False,
    )


def is_runaway(demand: Demand) -> bool:
    """Say whether refusals were short exceptions, by one or two clients, far above what is asked for otherwise."""
    storms = demand.storms
    if not storms.count or storms.top_two_share < FEW_CLIENTS_SHARE:
        return False
    if demand.days >= 4 and storms.days * 2 >= demand.days:
        # It comes back day after day: somebody's regular work.
        return False
    if demand.refused_s > RUNAWAY_ACTIVE_SHARE * demand.active_s:
        return False
    return demand.refusing_per_s >= RUNAWAY_TIMES * max(demand.calm.p99, demand.calm_minute_per_s)


def is_untold(demand: Demand) -> bool:
    """Say whether a flood may be all that the log knows above the limit: a reason to let the limit stay."""
    if not (demand.refused_s or demand.refused_messages):
        return False
    if demand.refused_span_s >= DAY_S and demand.refused_days * 2 >= demand.days:
        # It comes back, or does not end.
        return False
    return demand.quiet_s < LEAST_QUIET_S or (demand.observed_s < DAY_S and _is_far_above(demand))


def _is_far_above(demand: Demand) -> bool:
    # Of a limit that only shadows, only minutes without a refusal are known to be calm.
    shadows = demand.limit.action == "shadow"
    calm = demand.quiet_minute_per_s if shadows else max(demand.calm.p99, demand.quiet_minute_per_s)
    calm_bytes = (
        demand.quiet_minute_bytes_per_s if shadows else max(demand.calm_bytes.p99, demand.quiet_minute_bytes_per_s)
    )
    return (
        max(demand.corrected.p99, demand.minute_per_s, demand.refusing_per_s) >= RUNAWAY_TIMES * calm
        or max(demand.size_bytes.p99, demand.minute_bytes_per_s) > RUNAWAY_TIMES * calm_bytes
    )


def _untold(demand: Demand) -> str:
    return about_untold(demand, LEAST_QUIET_S) if is_untold(demand) else ""


def confidence(demand: Demand) -> str:
    """Say how far the evidence goes."""
    level = 2 if demand.observed_s >= 7 * DAY_S else 1 if demand.observed_s >= DAY_S else 0
    if demand.active_s < 600:
        level = min(level, 0 if demand.active_s < 60 else 1)
    if demand.lost_records or demand.other or abs(demand.trend_per_week or 0.0) > TREND_MOST:
        level -= 1
    return ("low", "medium", "high")[max(0, level)]


@dataclass(frozen=True, slots=True)
class Claim:
    """What some resources of one instance want of a capacity, alike.

    Attributes:
        need_per_s: each.
        weight: of each.
        count: how many.
    """

    need_per_s: float
    weight: float
    count: int


def fair_level(claims: Iterable[Claim], capacity_per_s: float) -> float | None:
    """Return what each gets for one unit of weight, by weighted max-min fairness; None if all get what they need.

    Who needs less than that keeps what it needs; what is left is shared out by weight among those who need more.
    """
    ordered = sorted(claims, key=lambda claim: claim.need_per_s / claim.weight)
    left = capacity_per_s
    weights = sum(claim.weight * claim.count for claim in ordered)
    for claim in ordered:
        level = left / weights
        if claim.need_per_s > level * claim.weight:
            return level
        left -= claim.need_per_s * claim.count
        weights -= claim.weight * claim.count
    return None


def share_out(advice: Advice, level: float | None, capacity_per_s: float, messages_each: float = 1.0) -> Advice:
    """Put a recommendation under the capacity that all share.

    Args:
        advice: by itself.
        level: None if all recommended limits together fit; else see ``fair_level``, infinite if the needs do: then
            limits come down to what is needed.
        capacity_per_s: of the broker, in messages.
        messages_each: messages in what the limit counts.
    """
    recommended = advice.recommended_rate_per_s
    if level is None or recommended is None or advice.action == "unused" or not advice.need_per_s:
        return advice
    share = advice.weight * level
    given = min(advice.need_per_s, share)
    if recommended * messages_each <= given:
        return advice
    rate = _two_digits_down(given / messages_each)
    now = advice.rate_per_s
    action = "new" if now is None else "raise" if rate > now else "lower" if rate < now else "keep"
    if action == "keep" and advice.recommended_bytes_per_s != advice.bytes_per_s:
        # Of the two only that of bytes changes.
        action = advice.action
    broker = f"the broker's {words.rate(capacity_per_s)}"
    if advice.need_per_s <= share:
        why = f"Limits add up to more than {broker}, so it gets the {words.rate(given)} that it needs."
        if advice.action == "keep":
            why = f"But {why[:1].lower()}{why[1:]}"
    else:
        why = (
            f"{broker[:1].upper()}{broker[1:]} do not suffice for all: of the {words.rate(advice.need_per_s)} that it"
            f" needs, its fair share is {words.rate(share)}."
        )
    return advice._replace(action=action, recommended_rate_per_s=rate, evidence=f"{advice.evidence} {why}", capped=True)


def settle(advice: Advice, current_share: float | None, recommended_share: float | None) -> Advice:
    """Take a lowering back that would refuse what the limit in force does not.

    Args:
        advice: as decided.
        current_share: of the demand, that the limit in force would have refused; None if there is none.
        recommended_share: likewise, of the recommended one.
    """
    if advice.action != "lower" or advice.runaway or current_share is None or recommended_share is None:
        return advice
    if advice.capped or recommended_share <= current_share + WORSE_SHARE:
        return advice
    wanted = words.rate(advice.recommended_rate_per_s)
    if advice.recommended_rate_per_s == advice.rate_per_s:
        wanted = f"{words.rate(advice.recommended_bytes_per_s, 'bytes')}"
    evidence = f"{advice.evidence} {wanted} would have refused {words.percent(recommended_share)} of it, so it stays."
    return advice._replace(
        action="keep",
        recommended_rate_per_s=advice.rate_per_s,
        recommended_bytes_per_s=advice.bytes_per_s,
        evidence=evidence,
    )


def _one(
    now: float | None, need: float, demand: Demand, *, least: float, untold: str, unit: str = ""
) -> tuple[float | None, str, str]:
    """Decide about one of the two rates: what is recommended, what that is, and a remark.

    Args:
        now: in force.
        need: see ``_needed``.
        demand: all of it.
        least: no lowering goes below.
        untold: why it is not raised; empty if it may be.
        unit: of the rates, for the remark.
    """
    if now is None:
        return None, "keep", ""
    if now == 0:
        return now, "keep", "a limit of 0 is left as it is"
    if not need:
        return now, "keep", "too little is asked for otherwise to say what it needs" if demand.storms.count else ""
    if abs(need - now) < SAME * now:
        return now, "keep", ""
    if need > now:
        return (now, "keep", untold) if untold else (need, "raise", "")
    if not is_own(demand):
        return now, "keep", "the limit is of a pattern, which others may need as it is"
    if demand.observed_s < LEAST_LOWERING_S:
        return now, "keep", f"{span(demand.observed_s)} of log are too few to lower it"
    lowest = max(need, _two_digits(least))
    why = f"its busiest second outside of storms is {words.rate(least, unit)}" if lowest > need else ""
    return (now, "keep", why) if lowest > now * (1 - SAME) else (lowest, "lower", why)


def is_own(demand: Demand) -> bool:
    """Say whether the limit is the resource's own, not a pattern's or a default's."""
    return demand.limit.rule in {f"{demand.kind}:{demand.name}", f"{demand.kind}:{glob_of(demand.name)}"}


def _needed(percentile: float, minute: float, hour: float, growth: float) -> float:
    need = max(percentile, minute, hour) * growth
    return 0.0 if need <= 0 else max(LEAST_PER_S, _two_digits(need))


def messages_each(demand: Demand) -> float:
    """Return how many messages one permit stands for."""
    if demand.limit.count != "requests" or not demand.requests:
        return 1.0
    return demand.messages / demand.requests


def _growth(demand: Demand) -> float:
    trend = demand.trend_per_week
    if trend is None or trend < TREND_LEAST or demand.trend_fit < TREND_FIT:
        return 1.0
    return 1.0 + min(trend, TREND_MOST)


def _two_digits(value: float) -> float:
    """Round up to two significant digits."""
    return _rounded(value, math.ceil)


def _two_digits_down(value: float) -> float:
    return _rounded(value, math.floor)


def _rounded(value: float, how: Callable[[float], int]) -> float:
    if value <= 0:
        return 0.0
    size = math.floor(math.log10(value)) - 1
    # What is there already up to the last bit must not be rounded up once more.
    digits = how(round(value / 10.0**size, 9))
    return round(digits * 10.0**size, max(0, -size))
