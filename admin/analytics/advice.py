"""What to do about one limit, and why: from figures of the demand to a recommendation in words.

**The rate.** What is needed is the 99th percentile of the demand per second, over all seconds that were observed and
without retries, times the headroom; never less than the mean of the busiest minute, or than the headroom over the
busiest hour of the week; more by a week's growth where the demand grows steadily. It is rounded up to two significant
digits. Less than a tenth away from the limit in force it is left as it is, if that refused next to nothing.

**The backtest decides** which rate it becomes. A raised limit is the lowest from there up to three times as much that
would have refused no more than a thousandth of the demand; where nobody knows how much of the demand are retries, of
all that came as well. What is left then are peaks far above the rest, and the evidence says how much they are. A
lowered one is the lowest that would not have refused what the limit in force did not.

**Runaways.** A limit that stops a client that has gone wild does its job. Where refusals were short, rare, the work of
one or two clients and far above what is asked for otherwise, the demand outside of them counts alone.

**Fair shares.** Where one of several clients, users or producer groups has most of what was refused, the others are
refused for its sake: with fair shares (``fair_by``) the limit can stay as it is. That is recommended in place of all
else if it would have saved the others at least half of what was refused of them.

**Raising** wants to know the demand from a flood, and a short log may know nothing but the flood. A limit that refused
is raised where at least ten minutes of the demand lie outside of refusals, and where either the log has a whole day or
what was refused is not far above them. Refusals that come back over a day or more, on half of the days, are a demand in
any case. Otherwise it stays. One that refused nothing, and was not near it either, is offered apart.

**Lowering** is always offered apart, unless a capacity that does not suffice asks for it. It wants at least a day's
log, since what is seldom may be missing in less. Where runaways are left out, a replay of everything cannot say what it
would refuse, so there no limit comes below the busiest second outside of refusals. Nothing is ever lowered to 0: of
what nobody asks for, nobody knows what it needs.

Rates are per second, shares between 0 and 1. Pure: no Spark.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from admin.analytics import words
from admin.analytics.evidence import (
    TREND_FIT,
    TREND_LEAST,
    TREND_MOST,
    about_bytes,
    about_demand,
    about_growth,
    about_near,
    about_runaway,
    about_shares,
    about_untold,
    no_limit,
    sentences,
    span,
    unknowns,
)
from admin.analytics.figures import Demand, Limit, Most
from admin.analytics.findings import Fleet, Member, OfResource
from admin.analytics.options import Options
from admin.analytics.words import DAY_S
from admin.common.recommendations import (
    Backtest,
    Confidence,
    OnlyWith,
    Recommendation,
    Recommended,
    Replay,
    Retries,
    WhatIf,
)
from limiter.counting.rejections import OTHER
from limiter.rules.patterns import glob_of
from limiter.rules.rule import DEFAULT_MAX_FAIR_KEYS, MAX_FAIR_KEYS, MAX_RATE_PER_S

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
NEXT_TO_NOTHING: Final = 0.001
"""A limit that refuses no more than this share of the demand suffices; a lower one may refuse so much more."""
NEAR_TIMES: Final = 0.8
NEAR_SHARE: Final = 0.01
"""A limit is near where so much of it is asked for in so much of the time; see ``HourDemand.near_s``."""
MAX_SHARE: Final = 0.5
"""Who has this share of what was refused asked for most."""
LEAST_CALLERS: Final = 3
"""With fewer there are no others to protect."""
MAX_MEMBERS: Final = 50
"""So many sidecars of a fleet are named."""
STEPS: Final = (1.1, 1.25, 1.5, 2.0, RUNAWAY_TIMES)
"""Times what is needed: rates that are tried in turn."""


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A limit that is to be replayed.

    Attributes:
        rate_per_s: None is unlimited.
        bytes_per_s: likewise.
        wanted: over the demand without retries; else over all of it.
        part: over this share of it only.
    """

    rate_per_s: float | None
    bytes_per_s: float | None
    wanted: bool
    part: float = 1.0


class Rates(msgspec.Struct, frozen=True, array_like=True):
    """What a limit may admit; None is unlimited."""

    rate_per_s: float | None
    bytes_per_s: float | None

    @property
    def limits(self) -> bool:
        """Whether anything is limited."""
        return self.rate_per_s is not None or self.bytes_per_s is not None


class Advice(OfResource, frozen=True, kw_only=True):
    """What to do about one limit, as far as figures alone say.

    Attributes:
        action: what to do.
        limit: in force.
        recommended: in its place.
        steps: from the lowest on: the first that holds is taken, or ``recommended`` if none does.
        tries: rates that were asked about.
        most: who would be kept from taking more than a fair share.
        confidence: in the evidence.
        evidence: in words.
        need_per_s: what it needs of the broker's capacity, in messages.
        weight: its part of a capacity that does not suffice.
        messages_each: messages that one permit stands for.
        messages: asked for.
        wanted_messages: of these, without retries.
        refused_messages: of these.
        refusing_messages: wanted in the seconds of refusals.
        top_per_s: asked for in the busiest second.
        retries: whether there are some among the demand, and how that is known.
        runaway: refusals were the work of runaways, and were left out.
        near: the limit refused something, or was near it.
        capped: it is less than by itself, since the broker's capacity does not suffice.
    """

    action: Recommended
    limit: Limit
    recommended: Rates
    steps: tuple[Rates, ...] = ()
    tries: tuple[float, ...] = ()
    most: Most | None = None
    confidence: Confidence = "low"
    evidence: str = ""
    need_per_s: float = 0.0
    weight: float = 1.0
    messages_each: float = 1.0
    messages: int = 0
    wanted_messages: float = 0.0
    refused_messages: int = 0
    refusing_messages: float = 0.0
    top_per_s: float = 0.0
    retries: Retries = "none"
    runaway: bool = False
    near: bool = False
    capped: bool = False

    @property
    def now(self) -> Rates:
        """What is in force."""
        return Rates(self.limit.rate, self.limit.bytes_rate)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What is to be replayed: the limit in force over all demand first."""
        views = (False,) if self.retries == "none" else (False, True)
        rates = dict.fromkeys((self.now, self.recommended, *self.steps))
        if self.refused_messages or self.tries:
            # What else there might be, for whoever asks what would have been.
            rates |= dict.fromkeys(Rates(rate, self.recommended.bytes_per_s) for rate in self._beside())
        found = [Candidate(*_both(each), wanted) for each in rates if each.limits for wanted in views]
        found += [self.fair] if self.most is not None else []
        return tuple(dict.fromkeys((Candidate(*_both(self.now), wanted=False), *found)))

    @property
    def fair(self) -> Candidate:
        """The share that all others have for sure, over their part of the demand.

        They are taken to have asked for the part of each second that they have of what was refused in storms.
        """
        if self.most is None:
            raise ValueError("nobody asked for most")
        share = (self.most.callers - 1) / self.most.callers
        rate, size = (None if each is None else each * share for each in _both(self.now))
        return Candidate(rate, size, wanted=False, part=1.0 - self.most.share)

    def _beside(self) -> Iterable[float]:
        """Return further rates to look at: those that were asked about, and above a limit that stays."""
        yield from self.tries
        if self.limit.rate and not any((each.rate_per_s or 0.0) > self.limit.rate for each in self.steps):
            yield from (_within_range(two_digits(self.limit.rate * times)) for times in STEPS)


def decide(demand: Demand, options: Options) -> Advice:
    """Decide about one resource by itself.

    Args:
        demand: its figures.
        options: how much above the need a limit is to be, which rates are asked about, and what the broker can take: if
            that is known, what has no limit gets one, and none is raised beyond what is needed.
    """
    limit, above = demand.limit, 1 + options.headroom
    runaway = is_runaway(demand)
    growth = _growth(demand)
    need = _needed(
        (demand.calm if runaway else demand.corrected).p99 * above,
        demand.calm_minute_per_s if runaway else demand.minute_per_s,
        0.0 if runaway else (demand.hour_per_s or 0.0) * above,
        growth,
    )
    bytes_need = _needed(
        (demand.calm_bytes if runaway else demand.size_bytes).p99 * above,
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
    now, recommended = Rates(limit.rate, limit.bytes_rate), Rates(rate, size)
    action: Recommended = "keep"
    steps: tuple[Rates, ...] = ()
    if "raise" in {rate_action, bytes_action}:
        action = "raise"
        # What is to be lowered is another matter, which waits.
        changing = (rate_action == "raise", bytes_action == "raise")
        recommended = Rates(rate if changing[0] else limit.rate, size if changing[1] else limit.bytes_rate)
        steps = () if runaway else _steps(recommended, changing, (1.0, *STEPS), most=_tops(demand))
    elif "lower" in {rate_action, bytes_action}:
        action = "lower"
        if not runaway:
            changing = (rate_action == "lower", bytes_action == "lower")
            most = tuple(None if each is None else _two_digits_down(each * (1 - SAME)) for each in _both(now))
            steps = _steps(recommended, changing, (1.0, *STEPS), most=(most[0], most[1]))
    elif not (runaway or untold) and _own_share(demand) > NEXT_TO_NOTHING:
        changing = (_is_same(limit.rate, need), _is_same(limit.bytes_rate, bytes_need))
        steps = _steps(now, changing, STEPS, most=_tops(demand)) if any(changing) else ()
    if limit.rate is None and limit.bytes_rate is None and options.capacity_per_s is not None and need:
        if limit.action == "off":
            pass
        elif demand.name == OTHER:
            why = "these are the many names that were not told apart, which no limit can be set for"
        else:
            action, recommended, why = "new", Rates(need, None), ""
    said = [about_demand(demand, runaway=runaway)]
    said += [text for text in (about_runaway(demand) if runaway else "", about_growth(demand), why) if text]
    if limit.bytes_rate is not None:
        said.append(about_bytes(demand, runaway=runaway))
        said += [f"bytes: {bytes_why}"] if bytes_why and bytes_why != why else []
    if limit.rate is None and action == "keep":
        said += [] if limit.bytes_rate is not None else [no_limit(limit)]
    near = _own_share(demand) > 0 or is_near(demand)
    if action == "raise" and not demand.refused_messages:
        said.append(about_near(demand, near=near))
    said += unknowns(demand)
    return Advice(
        instance=demand.instance,
        kind=demand.kind,
        name=demand.name,
        action=action,
        limit=limit,
        recommended=recommended,
        steps=steps if options.capacity_per_s is None or action == "lower" else (),
        tries=tuple(each.rate_per_s for each in options.tries if (each.kind, each.name) == (demand.kind, demand.name)),
        most=_most(demand),
        confidence="low" if untold and untold in said else confidence(demand),
        evidence=sentences(said),
        # A limit takes its part of a capacity, even if nothing counts that was asked for.
        need_per_s=0.0 if limit.rate == 0 else (need or (LEAST_PER_S if limit.rate else 0.0)) * messages_each(demand),
        weight=two_digits(limit.rate) if limit.rate else max(need, LEAST_PER_S),
        messages_each=messages_each(demand),
        messages=demand.messages,
        wanted_messages=demand.wanted_messages,
        refused_messages=demand.refused_messages,
        refusing_messages=demand.refusing_per_s * demand.refused_s * messages_each(demand),
        top_per_s=demand.raw.top,
        retries=demand.retries,
        runaway=runaway,
        near=near,
    )


def unused(instance: str, kind: str, name: str, limit: Limit, observed_s: int, *, lost_records: int = 0) -> Advice:
    """Say of an exact limit that nothing was asked for under it."""
    demand = Demand(instance, kind, name, limit=limit, observed_s=observed_s, lost_records=lost_records)
    return Advice(
        instance=instance,
        kind=kind,
        name=name,
        action="unused",
        limit=limit,
        recommended=Rates(None, None),
        confidence="low" if observed_s < DAY_S or lost_records else "medium" if observed_s < 7 * DAY_S else "high",
        evidence=sentences([f"nothing was asked for in {span(observed_s)} of log", *unknowns(demand)]),
    )


def recommendation(advice: Advice, refused: Sequence[int] | None, error: int) -> Recommendation:
    """Settle what to do, by what the candidates would have refused.

    Args:
        advice: by itself, or under a capacity.
        refused: messages, by candidate; None if no candidate can have refused anything.
        error: see ``backtest.Replayed``.
    """
    replayed = _Replays(advice, refused)
    action, chosen, others, said = _settled(advice, replayed)
    only_with: OnlyWith = ""
    if action == "lower" and not advice.capped:
        only_with = "lower"
    elif action == "raise" and (not advice.near or (not advice.refused_messages and advice.confidence == "low")):
        # Near it in a short log is no reason yet.
        only_with = "raise"
    test = Backtest()
    if advice.messages:
        current = replayed.of(advice.now, wanted=False) if advice.limit.limits else None
        logged = _replay(advice.refused_messages, advice.messages) if current else None
        test = Backtest(
            current=current,
            # The same limit, and of the same messages: those that were retries are among what it refuses.
            recommended=current if chosen == advice.now else replayed.of(chosen, wanted=True),
            recommended_uncorrected=current if chosen == advice.now else replayed.of(chosen, wanted=False),
            others_current=others[0] if others else None,
            others=others[1] if others else None,
            logged=logged,
            model_error=error / advice.messages if current else None,
        )
    fair = advice.most if action == "share" else None
    return Recommendation(
        instance=advice.instance,
        kind=advice.kind,
        name=advice.name,
        action=action,
        rule=advice.limit.rule,
        count="requests" if advice.limit.count == "requests" else "messages",
        rate_per_s=advice.limit.rate,
        recommended_rate_per_s=chosen.rate_per_s,
        bytes_per_s=advice.limit.bytes_rate,
        recommended_bytes_per_s=chosen.bytes_per_s,
        confidence=advice.confidence,
        evidence=" ".join(each for each in (advice.evidence, sentences(said)) if each),
        backtest=test,
        only_with=only_with,
        fair_by=fair.fair_by if fair else None,
        max_fair_keys=fair.callers if fair and fair.callers > DEFAULT_MAX_FAIR_KEYS else None,
        retries=advice.retries,
        what_if=replayed.what_if(),
    )


class _Replays:
    """What the candidates of some advice would have refused."""

    def __init__(self, advice: Advice, refused: Sequence[int] | None) -> None:
        self._advice = advice
        candidates = advice.candidates
        self._refused = dict(zip(candidates, refused or (0,) * len(candidates), strict=True))

    def messages(self, rates: Rates, *, wanted: bool) -> int:
        """Return how many messages a limit would have refused."""
        return self._refused[Candidate(*_both(rates), wanted and self._advice.retries != "none")]

    def share(self, rates: Rates, *, wanted: bool) -> float:
        """Return which share of the demand that is."""
        return _share(self.messages(rates, wanted=wanted), self._total(wanted=wanted))

    def of(self, rates: Rates, *, wanted: bool) -> Replay | None:
        """Return both; None if there is no limit."""
        return _replay(self.messages(rates, wanted=wanted), self._total(wanted=wanted)) if rates.limits else None

    def holds(self, rates: Rates, *, assumed: bool) -> bool:
        """Say whether a limit would have refused next to nothing; if retries are assumed, of all that came as well."""
        return self.share(rates, wanted=True) <= NEXT_TO_NOTHING and (
            not assumed or self.share(rates, wanted=False) <= NEXT_TO_NOTHING
        )

    def others(self) -> tuple[Replay, Replay] | None:
        """Return what was refused of all but the one that asked for most, and what fair shares would have."""
        advice, most = self._advice, self._advice.most
        if most is None or advice.limit.rate is None:
            return None
        total = max(1.0, advice.messages - most.share * advice.refusing_messages)
        return (
            _replay(round((1 - most.share) * advice.refused_messages), total),
            _replay(self._refused[advice.fair], total),
        )

    def what_if(self) -> tuple[WhatIf, ...]:
        """Return what each rate would have refused."""
        found: dict[float, Rates] = {}
        for each in self._refused:
            if each.rate_per_s is not None and each.part == 1.0:
                found.setdefault(each.rate_per_s, Rates(each.rate_per_s, each.bytes_per_s))
        if len(found) < 2 and not self._advice.tries:
            return ()
        return tuple(
            WhatIf(
                rate_per_s=rate,
                refused_share=self.share(found[rate], wanted=True),
                refused_share_uncorrected=self.share(found[rate], wanted=False),
            )
            for rate in sorted(found)
        )

    def _total(self, *, wanted: bool) -> float:
        return self._advice.wanted_messages if wanted and self._advice.retries != "none" else self._advice.messages


_Settled = tuple[Recommended, Rates, tuple[Replay, Replay] | None, list[str]]
"""What to do, the rates, what becomes of the others if they get fair shares, and further evidence."""


def _settled(advice: Advice, replayed: _Replays) -> _Settled:
    others = replayed.others()
    if others and advice.most and others[1].refused_messages * 2 <= others[0].refused_messages:
        said = [about_shares(advice.most, *(each.refused_share for each in others))]
        if advice.action == "raise":
            said.append(f"to let all of it pass takes {_text(advice.recommended, advice.now)}")
        return "share", advice.now, others, said
    if not advice.steps:
        said = []
        if advice.action in {"raise", "new"} and not (
            advice.runaway or replayed.holds(advice.recommended, assumed=True)
        ):
            said = [_still(advice, advice.recommended, replayed)]
        return advice.action, advice.recommended, None, said
    if advice.action == "lower":
        return _lowered(advice, replayed)
    assumed = advice.retries == "assumed"
    base, now = advice.recommended, advice.now
    chosen = next((each for each in advice.steps if replayed.holds(each, assumed=assumed)), None)
    if chosen is None:
        # Nothing holds either way; perhaps without the retries.
        chosen = next((each for each in advice.steps if replayed.holds(each, assumed=False)), base)
    said = []
    if chosen != base:
        said.append(f"{_refusing(base, now, replayed, assumed=assumed)}, so it takes {_text(chosen, now)}")
    if not replayed.holds(chosen, assumed=assumed):
        said.append(_still(advice, chosen, replayed))
    return "keep" if chosen == now else "raise", chosen, None, said


def _lowered(advice: Advice, replayed: _Replays) -> _Settled:
    most = replayed.messages(advice.now, wanted=False) + NEXT_TO_NOTHING * advice.messages
    base = advice.recommended
    for each in advice.steps:
        if replayed.messages(each, wanted=False) <= most:
            no_more = f"{_text(each, advice.now)} next to nothing more than the limit in force"
            said = [f"{_refusing(base, advice.now, replayed, assumed=False)}, and {no_more}"] if each != base else []
            return "lower", each, None, said
    return "keep", advice.now, None, [f"{_refusing(base, advice.now, replayed, assumed=False)}, so it stays"]


def _refusing(rates: Rates, now: Rates, replayed: _Replays, *, assumed: bool) -> str:
    """Say what a limit would have refused."""
    said = f"{_text(rates, now)} would have refused {words.percent(replayed.share(rates, wanted=not assumed))} of it"
    if not assumed:
        return said
    return f"{said} if nobody tried again, and {words.percent(replayed.share(rates, wanted=True))} without the retries"


def _still(advice: Advice, rates: Rates, replayed: _Replays) -> str:
    assumed = advice.retries == "assumed"
    peaks = f"its busiest second is {words.rate(advice.top_per_s)}"
    return f"{_refusing(rates, advice.now, replayed, assumed=assumed)}: {peaks}"


def _text(rates: Rates, now: Rates) -> str:
    """Write the rate of two that changes."""
    if rates.rate_per_s == now.rate_per_s and rates.bytes_per_s != now.bytes_per_s:
        return words.rate(rates.bytes_per_s, "bytes")
    return words.rate(rates.rate_per_s)


def _both(rates: Rates) -> tuple[float | None, float | None]:
    return rates.rate_per_s, rates.bytes_per_s


def _share(refused: float, of: float) -> float:
    return min(1.0, refused / of) if of else 0.0


def _replay(refused: int, of: float) -> Replay:
    return Replay(refused_messages=refused, refused_share=_share(refused, of))


def _steps(
    base: Rates, changing: tuple[bool, bool], times: Iterable[float], most: tuple[float | None, float | None]
) -> tuple[Rates, ...]:
    """Return multiples of what changes of two rates, up to the most of each; never less than the rates themselves."""

    def stepped(rate: float | None, by: float, top: float | None, *, changes: bool) -> float | None:
        if rate is None or not changes:
            return rate
        wanted = _within_range(two_digits(rate * by))
        return wanted if top is None else max(rate, min(wanted, top))

    found = (
        Rates(
            stepped(base.rate_per_s, by, most[0], changes=changing[0]),
            stepped(base.bytes_per_s, by, most[1], changes=changing[1]),
        )
        for by in times
    )
    return tuple(dict.fromkeys(found))


def _tops(demand: Demand) -> tuple[float | None, float | None]:
    """Return the rates above which nothing can be refused; of bytes with retries nobody knows."""
    size = None if demand.retries == "assumed" else two_digits(demand.size_bytes.top)
    return two_digits(demand.raw.top), size


def _own_share(demand: Demand) -> float:
    """Return which share of the demand the limit itself refused."""
    if demand.storms.own_share < MAX_SHARE or not demand.messages:
        return 0.0
    return demand.refused_messages / demand.messages


def is_near(demand: Demand) -> bool:
    """Say whether the limit is used nearly up for more than moments."""
    size = demand.limit.bytes_rate
    return demand.near_s >= max(1.0, NEAR_SHARE * demand.observed_s) or bool(
        size and demand.size_bytes.p99 >= NEAR_TIMES * size
    )


def _most(demand: Demand) -> Most | None:
    """Return whose share of the limit would best be kept apart; None where nobody asked for most."""
    limit, storms = demand.limit, demand.storms
    if not limit.rate or _own_share(demand) <= NEXT_TO_NOTHING or limit.fair_by is not None:
        return None
    found = [
        each
        for each in storms.most
        if each.share >= MAX_SHARE
        and LEAST_CALLERS <= each.callers <= MAX_FAIR_KEYS
        and each.fair_by != demand.kind
        and each.share < 1.0
    ]
    # Of those alike the first: an address cannot be made up.
    return max(found, key=lambda each: round(each.share, 1), default=None)


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


def confidence(demand: Demand) -> Confidence:
    """Say how far the evidence goes."""
    level = 2 if demand.observed_s >= 7 * DAY_S else 1 if demand.observed_s >= DAY_S else 0
    if demand.active_s < 600:
        level = min(level, 0 if demand.active_s < 60 else 1)
    if demand.lost_records or demand.other or abs(demand.trend_per_week or 0.0) > TREND_MOST:
        level -= 1
    if demand.retries == "assumed" and demand.raw.p99 > demand.corrected.p99 * (1 + SAME):
        level -= 1
    levels: tuple[Confidence, ...] = ("low", "medium", "high")
    return levels[max(0, level)]


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


def share_out(advice: Advice, level: float | None, capacity_per_s: float) -> Advice:
    """Put a recommendation under the capacity that all share.

    Args:
        advice: by itself.
        level: None if all recommended limits together fit; else see ``fair_level``, infinite if the needs do: then
            limits come down to what is needed.
        capacity_per_s: of the broker, in messages.
    """
    recommended = advice.recommended.rate_per_s
    if level is None or recommended is None or advice.action == "unused" or not advice.need_per_s:
        return advice
    share = advice.weight * level
    given = min(advice.need_per_s, share)
    if recommended * advice.messages_each <= given:
        return advice
    rate = _two_digits_down(given / advice.messages_each)
    now = advice.limit.rate
    action: Recommended = "new" if now is None else "raise" if rate > now else "lower" if rate < now else "keep"
    if action == "keep" and advice.recommended.bytes_per_s != advice.limit.bytes_rate:
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
    return msgspec.structs.replace(
        advice,
        action=action,
        recommended=Rates(rate, advice.recommended.bytes_per_s),
        steps=(),
        most=None,
        evidence=f"{advice.evidence} {why}",
        capped=True,
    )


def fleet(kind: str, name: str, members: Iterable[Advice]) -> Fleet:
    """Add up what several sidecars pass of one resource, in messages.

    Their busiest seconds need not be the same ones, so that all together may need less than this.

    Args:
        kind: of the resource.
        name: of the resource.
        members: the advice for each sidecar, at least one.
    """
    of = list(members)
    need = sum(each.need_per_s for each in of)
    limits = [None if each.limit.rate is None else each.limit.rate * each.messages_each for each in of]
    found = [
        Member(
            instance=each.instance,
            need_per_s=each.need_per_s,
            limit_per_s=limit,
            share=each.need_per_s / need if need else 1 / len(of),
        )
        for each, limit in zip(of, limits, strict=True)
    ]
    return Fleet(
        kind=kind,
        name=name,
        need_per_s=need,
        limit_per_s=None if None in limits else sum(limit for limit in limits if limit is not None),
        member_count=len(of),
        members=tuple(sorted(found, key=lambda each: (-each.share, each.instance))[:MAX_MEMBERS]),
    )


def _one(
    now: float | None, need: float, demand: Demand, *, least: float, untold: str, unit: str = ""
) -> tuple[float | None, Recommended, str]:
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
    if _is_same(now, need):
        return now, "keep", ""
    if need > now:
        return (now, "keep", untold) if untold else (need, "raise", "")
    if not is_own(demand):
        return now, "keep", "the limit is of a pattern, which others may need as it is"
    if demand.observed_s < LEAST_LOWERING_S:
        return now, "keep", f"{span(demand.observed_s)} of log are too few to lower it"
    lowest = max(need, two_digits(least))
    why = f"its busiest second outside of storms is {words.rate(least, unit)}" if lowest > need else ""
    return (now, "keep", why) if lowest > now * (1 - SAME) else (lowest, "lower", why)


def _is_same(now: float | None, need: float) -> bool:
    """Say whether what is needed is about what is in force."""
    return bool(now and need) and abs(need - (now or 0.0)) < SAME * (now or 0.0)


def is_own(demand: Demand) -> bool:
    """Say whether the limit is the resource's own, not a pattern's or a default's."""
    return demand.limit.rule in {f"{demand.kind}:{demand.name}", f"{demand.kind}:{glob_of(demand.name)}"}


def _needed(percentile: float, minute: float, hour: float, growth: float) -> float:
    need = max(percentile, minute, hour) * growth
    return 0.0 if need <= 0 else _within_range(max(LEAST_PER_S, two_digits(need)))


def _within_range(rate: float) -> float:
    """Return a rate, or the highest that a limit can have."""
    return min(rate, float(MAX_RATE_PER_S))


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


def two_digits(value: float) -> float:
    """Round up to two significant digits."""
    return _rounded(value, math.ceil)


def _two_digits_down(value: float) -> float:
    return _rounded(value, math.floor)


def _rounded(value: float, how: Callable[[float], int]) -> float:
    # What is less is nothing: the least of a rate is a millionth.
    if value < 1e-12:
        return 0.0
    size = math.floor(math.log10(value)) - 1
    # What is there already up to the last bit must not be rounded up once more.
    digits = how(round(value / 10.0**size, 9))
    return round(digits * 10.0**size, max(0, -size))
