"""What to do about one limit, and why.

**Rate.** The need is the 99th percentile of the demand per second without retries, over all observed seconds, times the
headroom. It is at least the mean of the busiest minute, includes a week's growth if the demand grows steadily, and is
rounded up to two digits. A limit within a tenth of it stays, unless it refuses.

**Backtest.** A raised limit is the lowest from the need up to three times as much that would have refused at most a
thousandth of the demand, or of the demand with retries if these are assumed. A lowered one is the lowest that would not
have refused more than the limit in force.

**Fair shares** are recommended, at the same rate, if they would save the other callers at least half of their refusals
(see ``fair``), and there was more than a single flood.

**Floods.** Refusals caused by one or two clients, far above the usual demand, and rare or short, are what a limit is
for: only the demand outside them counts. If they come back on most days, a raise is offered.

**Evidence.** A short log may have nothing but a flood. A limit is raised if ten minutes of demand lie outside refusals,
and the log has a day or the refused demand is not far above the rest. Refusals on half of the days or more are demand
in any case. A limit is lowered after a day of log under that limit, and only if the operator asks for it; never to 0.
A limit that was edited answers for its own refusals only.

Rates are per second, shares between 0 and 1.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from admin.analytics import words
from admin.analytics.demand import Demand, Limit, Minute
from admin.analytics.fair import MAX_SHARE, Others, others_of
from admin.analytics.options import Options
from admin.analytics.replay import Backtest, Rates
from admin.analytics.words import DAY_S, counted, percent, rate, span_words
from admin.common import recommendations as rec
from admin.common.recommendations import Confidence, OnlyWith, Recommendation, Recommended
from admin.common.tables import printable
from limiter.rules.patterns import glob_of
from limiter.rules.rule import DEFAULT_MAX_FAIR_KEYS, MAX_RATE_PER_S

LEAST_PER_S: Final = 1.0
"""The lowest rate recommended."""
SAME: Final = 0.1
"""A rate that differs from the limit by less than this share is no reason to change it."""
FEW_CLIENTS_SHARE: Final = 0.8
"""One or two clients with this part of the refusals caused them."""
FLOOD_TIMES: Final = 3.0
"""This many times the usual demand is far above it."""
FLOOD_ACTIVE_SHARE: Final = 0.34
"""Refusals in more than this share of the seconds with demand are no exception."""
SHORT_SHARE: Final = 0.005
"""Recurring floods in less than this share of the time (7 minutes a day) are no reason for a higher limit."""
LEAST_QUIET_S: Final = 600
"""With less calm demand than this, the usual demand is unknown."""
NEXT_TO_NOTHING: Final = 0.001
"""A limit that refuses at most this share of the demand is large enough."""
NEAR_SHARE: Final = 0.01
"""A limit is tight if the demand is near it in this share of the time."""
GONE_S: Final = 2 * DAY_S
"""A resource without demand for this long may be gone."""
STEPS: Final = (1.1, 1.25, 1.5, 2.0, FLOOD_TIMES)
"""The rates tried in turn, as multiples of the need."""
TREND_LEAST: Final = 0.05
TREND_MOST: Final = 0.5
"""Weekly growth of less than the one does not count; more than the other is not expected to continue."""
TREND_FIT: Final = 0.5
"""A trend counts if it explains this share of the variance between days."""
MAX_NAME: Final = 60
"""Characters of a name in evidence."""


@dataclass(frozen=True)
class Advice:
    """A recommendation and the figures of its resource.

    Attributes:
        recommendation: what to do.
        need_per_s: messages per second that the limit should admit; 0 if the resource may be gone.
        limit_per_s: messages per second that it admits now; None is unlimited.
        messages: the demand.
        refused_messages: how many of them were refused.
    """

    recommendation: Recommendation
    need_per_s: float
    limit_per_s: float | None
    messages: int
    refused_messages: int


def advise(demand: Demand, minutes: Sequence[Minute], options: Options) -> Advice:
    """Decide about one resource's limit by its demand; ``minutes`` are replayed."""
    found = _Case(demand, minutes, options)
    limit = demand.limit.rate
    each = demand.messages / demand.requests if demand.limit.count == "requests" and demand.requests else 1.0
    need = 0.0 if limit == 0 or is_gone(demand) else (found.claim or (LEAST_PER_S if limit else 0.0)) * each
    return Advice(
        found.recommendation(), need, None if limit is None else limit * each, demand.messages, demand.refused_messages
    )


def unused(key: Sequence[str], limit: Limit, observed_s: int, lost_records: int = 0) -> Recommendation:
    """Say that an exact limit had no demand."""
    instance, kind, name = key
    level = 0 if observed_s < DAY_S or lost_records else 1 if observed_s < 7 * DAY_S else 2
    return Recommendation(
        instance=instance, kind=kind, name=name, action="unused", rule=limit.rule,
        count="requests" if limit.count == "requests" else "messages", rate_per_s=limit.rate,
        bytes_per_s=limit.bytes_rate, confidence=_LEVELS[level],
        evidence=f"Nothing was asked for in {span_words(observed_s)} of log.",
        details=_sentences(_unknowns(lost_records, 0)),
    )  # fmt: skip


class _Case:
    """The decision about one limit."""

    def __init__(self, demand: Demand, minutes: Sequence[Minute], options: Options) -> None:
        self._demand, self._minutes, self._options = demand, minutes, options
        self._backtest = Backtest(minutes, demand.limit)
        self._is_flood = is_flood(demand)
        self._is_untold = is_untold(demand)
        found = demand.calm if self._is_flood else demand.corrected
        minute = demand.calm_minute_per_s if self._is_flood else demand.minute_per_s
        self._need = _needed(found.p99 * (1 + options.headroom), minute, 1 + min(max(_growth(demand), 0.0), TREND_MOST))
        self._now = Rates(demand.limit.rate, demand.limit.bytes_rate)
        # What may be a flood takes no more of the broker than its limit.
        is_limited = demand.limit.rate and not self._is_flood and self._is_untold
        self.claim = min(self._need, demand.limit.rate or 0.0) if is_limited else self._need

    def recommendation(self) -> Recommendation:
        demand, limit = self._demand, self._demand.limit
        action, chosen, why = self._decide()
        evidence, *details = dict.fromkeys((*why, *self._about()))
        keys = self._others.keys if action == "share" and self._others else 0
        return Recommendation(
            instance=demand.instance,
            kind=demand.kind,
            name=demand.name,
            action=action,
            rule=limit.rule,
            count="requests" if limit.count == "requests" else "messages",
            rate_per_s=self._now.per_s,
            recommended_rate_per_s=chosen.per_s,
            bytes_per_s=self._now.bytes_per_s,
            recommended_bytes_per_s=chosen.bytes_per_s,
            confidence=self._confidence(),
            evidence=_sentences([evidence]),
            details=_sentences(details),
            backtest=self._tested(chosen, action) if self._backtest.messages else rec.Backtest(),
            only_with=self._only_with(action),
            fair_by=self._others.caller.fair_by if action == "share" and self._others else None,
            max_fair_keys=keys if keys > DEFAULT_MAX_FAIR_KEYS else None,
            retries=demand.retries,
            what_if=tuple(self._what_if(chosen)),
        )

    def _decide(self) -> tuple[Recommended, Rates, list[str]]:
        """Return what to do, the rates, and why."""
        demand, now, need = self._demand, self._now, self._need
        others = self._others
        if others is not None and others.refused_then * 2 <= others.refused_now:
            return "share", now, [self._about_shares(others)]
        if self._is_flood:
            return self._flooded()
        if now.per_s is None:
            return "keep", now, [self._unlimited()]
        if now.per_s == 0:
            return "keep", now, ["A limit of 0 is left as it is"]
        if not need:
            return "keep", now, ["There is too little demand to say what it needs"] if demand.storms.count else []
        is_same = _is_same(now.per_s, need)
        if need < now.per_s and not is_same:
            return self._lowered()
        if self._is_untold:
            return "keep", now, [_about_untold(demand)]
        if not is_same or (_own_share(demand) > NEXT_TO_NOTHING and not self._holds(now.per_s)):
            return self._raised(max(need, now.per_s))
        return "keep", now, []

    @cached_property
    def _others(self) -> Others | None:
        demand = self._demand
        if _own_share(demand) <= NEXT_TO_NOTHING or demand.limit.fair_by is not None:
            return None
        if self._is_flood and demand.storms.count == 1:
            # Nothing to change a limit for.
            return None
        return others_of(demand, self._minutes)

    def _flooded(self) -> tuple[Recommended, Rates, list[str]]:
        """Decide by the demand outside floods."""
        demand, now, need = self._demand, self._now, self._need
        why = [self._about_flood()]
        if not now.per_s:
            return "keep", now, why
        if need > now.per_s and not _is_same(now.per_s, need):
            return "raise", now._replace(per_s=need), why
        if is_recurring(demand):
            wanted = _needed(demand.corrected.top, demand.minute_per_s, 1.0)
            return ("raise", now._replace(per_s=wanted), why) if wanted > now.per_s else ("keep", now, why)
        lowest = max(need, two_digits(demand.calm.top))
        if need and lowest <= now.per_s * (1 - SAME) and self._may_be_lowered() is None:
            return "lower", now._replace(per_s=lowest), why
        return "keep", now, why

    def _raised(self, least: float) -> tuple[Recommended, Rates, list[str]]:
        """Return the lowest rate from ``least`` on that would have refused next to nothing."""
        top = two_digits(self._demand.raw.top)
        rates = [max(least, min(_within_range(two_digits(least * times)), top)) for times in (1.0, *STEPS)]
        chosen = next((each for each in rates if self._holds(each)), None)
        if chosen is None:
            # The busiest seconds stay refused; perhaps not without the retries.
            chosen = next((each for each in rates if self._share(each, wanted=True) <= NEXT_TO_NOTHING), least)
        if chosen == self._now.per_s:
            return "keep", self._now, []
        why = [self._about_demand()]
        if not self._holds(chosen):
            why.append(f"{self._refusing(chosen)}: its busiest second is {rate(self._demand.raw.top)}")
        elif chosen != least:
            why.append(f"{self._refusing(least)}, so it takes {rate(chosen)}")
        return "raise", self._now._replace(per_s=chosen), why

    def _lowered(self) -> tuple[Recommended, Rates, list[str]]:
        """Return the lowest rate that would not have refused more than the limit in force."""
        now, per_s = self._now, self._now.per_s or 0.0
        why = self._may_be_lowered()
        if why is not None:
            return "keep", now, [self._about_demand(), why]
        most = self._backtest.refused(now) + NEXT_TO_NOTHING * self._backtest.messages
        for times in (1.0, *STEPS):
            lower = now._replace(per_s=max(self._need, min(two_digits(self._need * times), _down(per_s * (1 - SAME)))))
            if self._backtest.refused(lower) <= most:
                return "lower", lower, []
        return "keep", now, [self._about_demand(), f"{self._refusing(self._need)}, so it stays"]

    def _may_be_lowered(self) -> str | None:
        """Return why not; None if it may."""
        demand = self._demand
        if demand.limit.rule not in {f"{demand.kind}:{demand.name}", f"{demand.kind}:{glob_of(demand.name)}"}:
            return "the limit is of a pattern, which other names may need"
        if demand.limit_s < DAY_S:
            under = "under this limit" if demand.before else "of log"
            return f"{span_words(demand.limit_s)} {under} is too short to lower it"
        return "" if is_gone(demand) else None

    def _holds(self, per_s: float) -> bool:
        """Say whether a limit would have refused next to nothing, also with retries if these are assumed."""
        with_retries = (False, True) if self._demand.retries == "assumed" else (True,)
        return all(self._share(per_s, wanted=wanted) <= NEXT_TO_NOTHING for wanted in with_retries)

    def _share(self, per_s: float, *, wanted: bool) -> float:
        return self._replay(self._now._replace(per_s=per_s), wanted=wanted).refused_share

    def _replay(self, rates: Rates, *, wanted: bool) -> rec.Replay:
        wanted = wanted and self._demand.retries != "none"
        of = self._backtest.wanted_messages if wanted else self._backtest.messages
        return _of(self._backtest.refused(rates, wanted=wanted), of)

    def _tested(self, chosen: Rates, action: Recommended) -> rec.Backtest:
        now, test = self._now, self._backtest
        others = self._others if action == "share" else None
        current = self._replay(now, wanted=False) if now.limits else None
        changes = chosen != now and chosen.limits
        return rec.Backtest(
            current=current,
            # The same limit refuses the retries as well.
            recommended=self._replay(chosen, wanted=True) if changes else current,
            recommended_uncorrected=self._replay(chosen, wanted=False) if changes else current,
            others_current=others and _of(round(others.refused_now * others.messages), others.messages),
            others=others and _of(math.ceil(others.refused_then * others.messages), others.messages),
            logged=None if current is None else _of(test.logged_messages, test.now_messages),
            model_error=test.error() / test.now_messages if current is not None and test.now_messages else None,
        )

    def _only_with(self, action: Recommended) -> OnlyWith:
        """Return the flag without which the advice is not applied: for what can wait, or needs a decision."""
        if action == "lower":
            return "lower"
        demand = self._demand
        is_tight = _own_share(demand) > 0 or demand.near_s >= max(1.0, NEAR_SHARE * demand.observed_s)
        # Demand near the limit in a short log is no reason yet.
        can_wait = not is_tight or (not demand.refused_messages and confidence_of(demand) == "low")
        return "raise" if action == "raise" and (can_wait or (self._is_flood and is_recurring(demand))) else ""

    def _confidence(self) -> Confidence:
        found = confidence_of(self._demand)
        if self._is_flood:
            return "low" if found == "low" else "medium"
        return "low" if self._is_untold else found

    def _what_if(self, chosen: Rates) -> Iterator[rec.WhatIf]:
        """Replay the rates that were asked about, and for a limit that refused, rates above the recommended one."""
        demand, now = self._demand, self._now.per_s
        asked = (each for each in self._options.tries if (each.kind, each.name) == (demand.kind, demand.name))
        rates = {each.rate_per_s for each in asked}
        if demand.refused_messages and now:
            rates |= {_within_range(two_digits((chosen.per_s or now) * times)) for times in STEPS}
        if rates:
            rates |= {each for each in (now, chosen.per_s) if each is not None}
        for per_s in sorted(rates):
            yield rec.WhatIf(
                rate_per_s=per_s,
                refused_share=self._share(per_s, wanted=True),
                refused_share_uncorrected=self._share(per_s, wanted=False),
            )

    # Evidence: the first sentence has two lines at most, all others are details.

    def _about(self) -> Iterator[str]:
        demand = self._demand
        yield self._about_demand()
        for per_s, (messages, refused) in demand.before.items():
            yield f"the limit of {rate(per_s, self._unit)} before it {self._did(refused, messages)}"
        if demand.limit.bytes_rate is not None:
            p99, limit = (rate(each, "bytes") for each in (demand.size_bytes.p99, demand.limit.bytes_rate))
            yield f"p99 of bytes is {p99}, their limit {limit}"
        trend = _growth(demand)
        if is_gone(demand) and demand.last_s is not None:
            yield f"no demand since {words.moment(demand.last_s)[:16]} UTC"
        elif trend:
            capped = " of 50%" if trend > TREND_MOST else ""
            added = f", and a week's growth{capped} is added" if trend > 0 else ""
            yield f"the daily demand {'grows' if trend > 0 else 'shrinks'} by {percent(abs(trend))} a week{added}"
        if not demand.refused_messages and demand.near_s:
            yield f"80% of it was reached in {percent(demand.near_s / max(1, demand.observed_s))} of the time"
        yield from _unknowns(demand.lost_records, demand.other)

    @property
    def _unit(self) -> str:
        return "requests" if self._demand.limit.count == "requests" else ""

    def _about_demand(self) -> str:
        """Say what the demand was, and what the limit did to it."""
        demand, storms, limit = self._demand, self._demand.storms, self._demand.limit
        found, what = (demand.calm, "demand outside storms") if self._is_flood else (demand.corrected, "demand")
        said = f"p99 of {what} over {span_words(demand.observed_s)} is {rate(found.p99, self._unit)}"
        if not self._is_flood and demand.raw.p99 > found.p99 * 1.005:
            how = "counted" if demand.retries == "measured" else "assumed"
            said += f" ({rate(demand.raw.p99, self._unit)} with retries, {how})"
        if limit.rate is None:
            return said
        since = "" if demand.limit_since_s is None else f" since {words.moment(demand.limit_since_s)[:16]}"
        said += f", limit {rate(limit.rate, self._unit)}{since}"
        did = self._did(demand.now_refused_messages, demand.now_messages)
        if storms.own_share < MAX_SHARE and storms.other_rule:
            other = f"{percent(1 - storms.own_share)} of that by {_name(storms.other_rule)}"
            return f"{said}; rules {did}, {other}: look at that limit"
        in_storms = storms.count and demand.now_refused_messages and not demand.before
        return f"{said} {did}" + (f" in {counted(storms.count, 'storm')}" if in_storms else "")

    def _did(self, refused: int, messages: int) -> str:
        verb = "would have refused" if self._demand.limit.action == "shadow" else "refused"
        return f"{verb} {percent(refused / messages)}" if refused and messages else "refused nothing"

    def _unlimited(self) -> str:
        storms = self._demand.storms
        if self._demand.limit.action == "off":
            return "Its limit is off"
        if not storms.other_rule:
            return ""
        return (
            f"It has no limit of its own, but {_name(storms.other_rule)} refused {counted(storms.messages, 'message')}"
            " of it: look at that limit"
        )

    def _about_flood(self) -> str:
        """Say whose refusals do not count."""
        demand, storms = self._demand, self._demand.storms
        named = [_name(each.name) for each in storms.callers.get("client", ())[:2]]
        who = "one or two clients"
        if named and (storms.clients == 1 or storms.callers["client"][0].share >= FEW_CLIENTS_SHARE):
            who, named = f"client {named[0]}", named[:1]
        elif len(named) == storms.clients:
            who = f"clients {' and '.join(named)}"
        part = storms.callers["client"][0].share if len(named) == 1 else storms.top_two_share
        times = demand.refusing_per_s / max(demand.calm.p99, demand.calm_minute_per_s, 1e-9)
        far = f"{times:.0f} times the usual demand" if times < 1000 else "far more than the usual demand"
        then = (
            "on most days; call who sends it, or raise the limit"
            if is_recurring(demand)
            else "which is what the limit is for"
        )
        return f"{who} sent {percent(part)} of what was refused: {far}, {self._in_time()}, {then}"

    def _about_shares(self, others: Others) -> str:
        caller = others.caller
        then = f"at most {percent(others.refused_then)}" if others.refused_then > 0 else "none"
        return (
            f"{caller.fair_by.replace('_', ' ')} {_name(caller.name)} has {percent(caller.share)} of what was refused"
            f' {self._in_time()}: with fair_by = "{caller.fair_by}" at the same rate, {then} of what others sent'
            f" meanwhile would have been refused, not {percent(others.refused_now)}"
        )

    def _in_time(self) -> str:
        demand = self._demand
        return f"in {percent(demand.refused_s / max(1, demand.observed_s))} of the time"

    def _refusing(self, per_s: float) -> str:
        is_assumed = self._demand.retries == "assumed"
        said = f"{rate(per_s)} would have refused {percent(self._share(per_s, wanted=not is_assumed))} of it"
        without = f", and {percent(self._share(per_s, wanted=True))} without retries"
        return f"{said} if clients did not retry{without}" if is_assumed else said


def _of(refused: int, of: float) -> rec.Replay:
    return rec.Replay(refused_messages=refused, refused_share=min(1.0, refused / of) if of else 0.0)


def _own_share(demand: Demand) -> float:
    """Return the share of the demand under the limit in force that it refused itself."""
    if demand.storms.own_share < MAX_SHARE or not demand.now_messages:
        return 0.0
    return demand.now_refused_messages / demand.now_messages


def is_gone(demand: Demand) -> bool:
    """Say whether there has been no demand for days."""
    return demand.last_s is not None and demand.until_s - demand.last_s >= GONE_S


def is_recurring(demand: Demand) -> bool:
    """Say whether refusals come back on most days."""
    return demand.days >= 4 and demand.storms.days * 2 >= demand.days


def is_flood(demand: Demand) -> bool:
    """Say whether refusals were short exceptions, by one or two clients, far above the usual demand."""
    storms = demand.storms
    if not storms.count or storms.top_two_share < FEW_CLIENTS_SHARE:
        return False
    if is_recurring(demand) and demand.refused_s > SHORT_SHARE * demand.observed_s:
        # A regular job.
        return False
    if demand.refused_s > FLOOD_ACTIVE_SHARE * demand.active_s:
        return False
    return demand.refusing_per_s >= FLOOD_TIMES * max(demand.calm.p99, demand.calm_minute_per_s)


def is_untold(demand: Demand) -> bool:
    """Say whether the log may have nothing above the limit but a flood, so that the limit stays."""
    if not (demand.refused_s or demand.refused_messages):
        return False
    if demand.refused_span_s >= DAY_S and demand.refused_days * 2 >= demand.days:
        return False
    # A shadow limit says only of whole minutes that they are calm.
    is_shadow = demand.limit.action == "shadow"
    calm = demand.quiet_minute_per_s if is_shadow else max(demand.calm.p99, demand.quiet_minute_per_s)
    is_far_above = max(demand.corrected.p99, demand.minute_per_s, demand.refusing_per_s) >= FLOOD_TIMES * calm
    return demand.quiet_s < LEAST_QUIET_S or (demand.observed_s < DAY_S and is_far_above)


def _about_untold(demand: Demand) -> str:
    if demand.quiet_s < LEAST_QUIET_S:
        known = f"only {span_words(demand.quiet_s)}" if demand.quiet_s else "nothing"
        return f"Not enough quiet time to tell demand from a flood: {known} of it lies outside refusals"
    observed = span_words(demand.observed_s)
    return f"{observed} of log is too short to tell demand from a flood: what was refused is far above the usual demand"


_LEVELS: Final[tuple[Confidence, ...]] = ("low", "medium", "high")


def confidence_of(demand: Demand) -> Confidence:
    """Say how far the evidence goes."""
    level = 2 if demand.limit_s >= 7 * DAY_S else 1 if demand.limit_s >= DAY_S else 0
    if demand.active_s < 600:
        level = min(level, 0 if demand.active_s < 60 else 1)
    level -= bool(demand.lost_records or demand.other or (demand.trend_per_week or 0.0) > TREND_MOST)
    level -= demand.retries == "assumed" and demand.raw.p99 > demand.corrected.p99 * (1 + SAME)
    return _LEVELS[max(0, level)]


def _unknowns(lost_records: int, other: int) -> Iterator[str]:
    if lost_records:
        yield f"{counted(lost_records, 'record')} of the log {'is' if lost_records == 1 else 'are'} lost"
    if other:
        yield "there were too many names to count each: some of its demand may be under _other"


def _sentences(said: Iterable[str]) -> str:
    return " ".join(f"{text[:1].upper() if text[:3] != 'p99' else text[:1]}{text[1:]}." for text in said if text)


def _name(name: str) -> str:
    name = printable(name)
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _is_same(now: float, need: float) -> bool:
    return abs(need - now) < SAME * now


def _growth(demand: Demand) -> float:
    """Return the weekly growth that counts, as a share; 0 is none."""
    trend = demand.trend_per_week
    return 0.0 if trend is None or abs(trend) < TREND_LEAST or demand.trend_fit < TREND_FIT else trend


def _needed(percentile: float, minute: float, growth: float) -> float:
    need = max(percentile, minute) * growth
    return 0.0 if need <= 0 else _within_range(max(LEAST_PER_S, two_digits(need)))


def _within_range(per_s: float) -> float:
    return min(per_s, float(MAX_RATE_PER_S))


def two_digits(value: float) -> float:
    """Round up to two significant digits."""
    return _rounded(value, math.ceil)


def _down(value: float) -> float:
    return _rounded(value, math.floor)


def _rounded(value: float, how: Callable[[float], int]) -> float:
    # Less than the least rate is nothing.
    if value < 1e-12:
        return 0.0
    size = math.floor(math.log10(value)) - 1
    # Equal but for the last bit must not be rounded up.
    digits = how(round(value / 10.0**size, 9))
    return round(digits * 10.0**size, max(0, -size))
