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
from admin.analytics.demand import Caller, Demand, Limit, Minutes, standing_out
from admin.analytics.fair import MAX_SHARE, Others, others_of
from admin.analytics.options import Options
from admin.analytics.replay import Backtest
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
LEAST_DAYS: Final = 4
"""Fewer days do not say what comes back."""
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


def advise(demand: Demand, minutes: Minutes, options: Options) -> Advice:
    """Decide about one resource's limit by its demand; ``minutes`` are replayed."""
    found = _Case(demand, minutes, options)
    limit = demand.limit.rate
    each = demand.messages / demand.requests if demand.limit.count == "requests" and demand.requests else 1.0
    is_unused = limit == 0 or demand.gone_since_s is not None
    need = 0.0 if is_unused else (found.claim or (LEAST_PER_S if limit else 0.0)) * each
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

    def __init__(self, demand: Demand, minutes: Minutes, options: Options) -> None:
        self._demand, self._minutes, self._options = demand, minutes, options
        self._backtest = Backtest(minutes, demand.limit)
        self._is_flood, self._is_untold = is_flood(demand), is_untold(demand)
        found, minute = (
            (demand.calm_p99, demand.calm_minute_per_s)
            if self._is_flood
            else (demand.corrected_p99, demand.minute_per_s)
        )
        self._p99 = found
        growth = 1 + min(max(_growth(demand), 0.0), TREND_MOST)
        self._room = (1 + options.headroom) * growth
        self._need = _needed(found * (1 + options.headroom), minute, growth)
        self._now = demand.limit.rate
        # What may be a flood takes no more of the broker than its limit.
        is_limited = self._now and not self._is_flood and self._is_untold
        self.claim = min(self._need, self._now or 0.0) if is_limited else self._need

    def recommendation(self) -> Recommendation:
        demand, limit = self._demand, self._demand.limit
        action, chosen, why = self._decide()
        evidence, *details = dict.fromkeys((*why, *self._about(is_shared=action == "share")))
        shared = self._others if action == "share" else None
        return Recommendation(
            instance=demand.instance,
            kind=demand.kind,
            name=demand.name,
            action=action,
            rule=limit.rule,
            count="requests" if limit.count == "requests" else "messages",
            rate_per_s=self._now,
            recommended_rate_per_s=chosen,
            bytes_per_s=limit.bytes_rate,
            recommended_bytes_per_s=limit.bytes_rate,
            confidence=self._confidence(),
            evidence=_sentences([evidence]),
            details=_sentences(details),
            backtest=self._tested(chosen, shared) if self._backtest.messages else rec.Backtest(),
            only_with=self._only_with(action),
            fair_by=shared and shared.caller.fair_by,
            max_fair_keys=shared.keys if shared and shared.keys > DEFAULT_MAX_FAIR_KEYS else None,
            retries=demand.retries,
            what_if=tuple(self._what_if(chosen)),
        )

    def _decide(self) -> tuple[Recommended, float | None, list[str]]:
        """Return what to do, the rate, and why."""
        demand, now, need, others = self._demand, self._now, self._need, self._others
        if now is None:
            return "keep", now, [self._unlimited()]
        if now == 0:
            return "keep", now, ["A limit of 0 is left as it is"]
        if demand.gone_since_s is not None:
            before = "" if demand.last_s <= demand.gone_since_s else "next to "
            return "keep", now, [f"{before}no demand since {words.moment(demand.gone_since_s)[:16]} UTC"]
        if demand.storms.own_share < MAX_SHARE:
            # Messages that other limits refuse do not need this one.
            return "keep", now, []
        if others and others.refused_then * 2 <= others.refused_now and others.worst_then <= others.refused_now:
            return "share", now, [self._about_shares(others), f"to admit all of it takes {rate(self._all())}"]
        if self._is_flood:
            return self._flooded()
        if not need:
            return "keep", now, ["There is too little demand to say what it needs"] if demand.storms.days else []
        is_same = _is_same(now, need)
        if need < now and not is_same:
            return self._lowered()
        if self._is_untold:
            return "keep", now, [_about_untold(demand)]
        refuses = _own_share(demand) > NEXT_TO_NOTHING
        is_enough = not refuses or self._holds(now) if is_same else not refuses and self._holds(now / self._room)
        if is_enough:
            return "keep", now, []
        return self._raised(max(need, now))

    @cached_property
    def _others(self) -> Others | None:
        demand = self._demand
        if _own_share(demand) <= NEXT_TO_NOTHING or demand.limit.fair_by is not None:
            return None
        # For a single flood there is nothing to change a limit for.
        return None if self._is_flood and len(demand.storms.each) == 1 else others_of(demand, self._minutes)

    def _all(self) -> float:
        return _needed(self._demand.corrected_top, self._demand.minute_per_s, 1.0) if self._is_flood else self._need

    def _flooded(self) -> tuple[Recommended, float | None, list[str]]:
        """Decide by the demand outside floods."""
        demand, now, need = self._demand, self._now or 0.0, self._need
        why = [self._about_flood()]
        if need > now and not _is_same(now, need):
            return "raise", need, why
        if comes_back(demand):
            return ("raise", self._all(), why) if self._all() > now else ("keep", now, why)
        return "keep", now, why

    def _raised(self, least: float) -> tuple[Recommended, float | None, list[str]]:
        """Return the lowest rate from ``least`` on that would have refused next to nothing."""
        top = two_digits(self._demand.raw_top)
        rates = [max(least, min(_within_range(two_digits(least * times)), top)) for times in (1.0, *STEPS)]
        chosen = next((each for each in rates if self._holds(each)), None)
        if chosen is None:
            # The busiest seconds stay refused; perhaps not without the retries.
            chosen = next((each for each in rates if self._share(each, wanted=True) <= NEXT_TO_NOTHING), least)
        if chosen == self._now:
            return "keep", self._now, []
        why = [self._about_demand()]
        if not self._holds(chosen):
            why.append(f"{self._refusing(chosen)}: its busiest second is {rate(self._demand.raw_top)}")
        elif chosen != least:
            why.append(f"{self._refusing(least)}, so it takes {rate(chosen)}")
        if not self._demand.refused_messages:
            why.append(self._refusing(_down((self._now or 0.0) / self._room)))
        return "raise", chosen, why

    def _lowered(self) -> tuple[Recommended, float | None, list[str]]:
        """Return the lowest rate that would not have refused more than the limit in force."""
        now = self._now or 0.0
        why = self._may_be_lowered()
        if why is not None:
            return "keep", now, [self._about_demand(), why]
        most = self._backtest.refused(now) + NEXT_TO_NOTHING * self._backtest.messages
        for times in (1.0, *STEPS):
            lower = max(self._need, min(two_digits(self._need * times), _down(now * (1 - SAME))))
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
        return None

    def _holds(self, per_s: float) -> bool:
        """Say whether a limit would have refused next to nothing, also with retries if these are assumed."""
        with_retries = (False, True) if self._demand.retries == "assumed" else (True,)
        return all(self._share(per_s, wanted=wanted) <= NEXT_TO_NOTHING for wanted in with_retries)

    def _share(self, per_s: float | None, *, wanted: bool) -> float:
        return self._replay(per_s, wanted=wanted).refused_share

    def _replay(self, per_s: float | None, *, wanted: bool) -> rec.Replay:
        wanted = wanted and self._demand.retries != "none"
        of = self._backtest.wanted_messages if wanted else self._backtest.messages
        return _of(self._backtest.refused(per_s, wanted=wanted), of)

    def _tested(self, chosen: float | None, others: Others | None) -> rec.Backtest:
        now, test = self._now, self._backtest
        is_limited = now is not None or self._demand.limit.bytes_rate is not None
        current = self._replay(now, wanted=False) if is_limited else None
        changes = chosen != now
        return rec.Backtest(
            current=current,
            # The same limit refuses the retries as well.
            recommended=self._replay(chosen, wanted=True) if changes else current,
            recommended_uncorrected=self._replay(chosen, wanted=False) if changes else current,
            others_current=others and _of(round(others.refused_now * others.messages), others.messages),
            others=others and _of(math.ceil(others.worst_then * others.messages), others.messages),
            logged=None if current is None else _of(test.logged_messages, test.now_messages),
            model_error=test.error() / test.now_messages if current is not None and test.now_messages else None,
        )

    def _only_with(self, action: Recommended) -> OnlyWith:
        """Return the flag without which the advice is not applied: for what can wait, or needs a decision."""
        if action != "raise":
            return "lower" if action == "lower" else ""
        demand = self._demand
        # Demand near the limit in a short log is no reason yet.
        can_wait = not demand.refused_messages and confidence_of(demand) == "low"
        return "raise" if can_wait or (self._is_flood and comes_back(demand)) else ""

    def _confidence(self) -> Confidence:
        found, demand = confidence_of(self._demand), self._demand
        if self._is_untold and not self._is_flood:
            return "low"
        # What happened once may not happen again.
        is_once = demand.days >= LEAST_DAYS and 1 <= demand.refused_days * LEAST_DAYS <= demand.days
        return "medium" if found == "high" and (self._is_flood or is_once) else found

    def _what_if(self, chosen: float | None) -> Iterator[rec.WhatIf]:
        """Replay the rates that were asked about, and for a limit that refused, rates above the recommended one."""
        demand, now = self._demand, self._now
        asked = (each for each in self._options.tries if (each.kind, each.name) == (demand.kind, demand.name))
        rates = {each.rate_per_s for each in asked}
        if demand.refused_messages and now:
            rates |= {_within_range(two_digits((chosen or now) * times)) for times in STEPS}
        if rates:
            rates |= {each for each in (now, chosen) if each is not None}
        for per_s in sorted(rates):
            yield rec.WhatIf(
                rate_per_s=per_s,
                refused_share=self._share(per_s, wanted=True),
                refused_share_uncorrected=self._share(per_s, wanted=False),
            )

    # Evidence: the first sentence has two lines at most, all others are details.

    def _about(self, *, is_shared: bool) -> Iterator[str]:
        demand, storms = self._demand, self._demand.storms
        yield self._about_demand()
        for per_s, (messages, refused) in demand.before.items():
            yield f"the limit of {rate(per_s, self._unit)} in force before {self._did(refused, messages)}"
        if demand.limit.bytes_rate is not None:
            p99, limit = (rate(each, "bytes") for each in (demand.bytes_p99, demand.limit.bytes_rate))
            yield f"p99 of bytes is {p99}, their limit {limit}"
        trend = _growth(demand)
        if trend:
            capped = " of 50%" if trend > TREND_MOST else ""
            added = f", and a week's growth{capped} is added" if trend > 0 else ""
            yield f"the daily demand {'grows' if trend > 0 else 'shrinks'} by {percent(abs(trend))} a week{added}"
        if demand.held_messages and demand.limit.action != "delay":
            yield f"{counted(demand.held_messages, 'message')} had to wait for it, so the demand may be higher"
        if MAX_SHARE <= storms.own_share < 1 - SAME:
            yield self._look_there()
        top = standing_out(demand)
        if top is not None and top.share >= MAX_SHARE and not self._is_flood and not is_shared:
            yield f"{_called(top)} has {percent(top.share)} of what was refused"
        yield from _unknowns(demand.lost_records, demand.other)

    @property
    def _unit(self) -> str:
        return "requests" if self._demand.limit.count == "requests" else ""

    def _look_there(self) -> str:
        storms = self._demand.storms
        part = percent(1 - storms.own_share)
        return f"{part} of what was refused is by {_name(storms.other_rule)}: look at that limit"

    def _about_demand(self) -> str:
        """Say what the demand was, and what the limit did to it."""
        demand, storms, limit = self._demand, self._demand.storms, self._demand.limit
        what = "demand outside storms" if self._is_flood else "demand"
        said = f"p99 of {what} over {span_words(demand.observed_s)} is {rate(self._p99, self._unit)}"
        if not self._is_flood and demand.raw_p99 > self._p99 * 1.005:
            how = "counted" if demand.retries == "measured" else "assumed"
            said += f" ({rate(demand.raw_p99, self._unit)} with retries, {how})"
        if limit.rate is None:
            return said
        since = "" if demand.limit_since_s is None else f" since {words.moment(demand.limit_since_s)[:16]}"
        said += f", limit {rate(limit.rate, self._unit)}{since}"
        if storms.own_share < MAX_SHARE:
            return f"{said}; {self._look_there()}"
        in_storms = storms.each and demand.now_refused_messages and not demand.before
        did = self._did(demand.now_refused_messages, demand.now_messages)
        return f"{said} {did}" + (f" in {counted(len(storms.each), 'storm')}" if in_storms else "")

    def _did(self, refused: int, messages: int) -> str:
        verb = "would have refused" if self._demand.limit.action == "shadow" else "refused"
        return f"{verb} {percent(refused / messages)}" if refused and messages else f"{verb} nothing"

    def _unlimited(self) -> str:
        demand, storms = self._demand, self._demand.storms
        if demand.limit.action == "off":
            return "Its limit is off"
        if demand.limit.bytes_rate is not None and demand.now_refused_messages and storms.own_share >= MAX_SHARE:
            p99, limit = (rate(each, "bytes") for each in (demand.bytes_p99, demand.limit.bytes_rate))
            did = self._did(demand.now_refused_messages, demand.now_messages)
            return f"its limit of {limit} {did}; p99 of the demand is {p99}"
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
        top = standing_out(demand)
        if top is not None and top.share >= FEW_CLIENTS_SHARE:
            who, part = _called(top), top.share
        elif storms.top_two_share >= FEW_CLIENTS_SHARE:
            who = f"clients {' and '.join(named)}" if len(named) == storms.clients else "one or two clients"
            part = storms.top_two_share
        else:
            who, part = f"up to {counted(storms.clients, 'client')}", 1.0
        times = demand.refusing_per_s / max(demand.calm_p99, demand.calm_minute_per_s, 1e-9)
        far = f"{times:.0f} times the usual demand" if times < 1000 else "far more than the usual demand"
        then = "which is what the limit is for"
        if comes_back(demand):
            then = f"on {storms.days} of {counted(demand.days, 'day')}; call who sends it, or raise the limit"
        return f"{who} sent {percent(part)} of what was refused: {far}, {self._in_time()}, {then}"

    def _about_shares(self, others: Others) -> str:
        caller = others.caller
        most = f"more than {percent(max(0.001, others.worst_then))}" if others.worst_then > 0 else "any"
        return (
            f"{_called(caller)} has {percent(caller.share)} of what was refused {self._in_time()}:"
            f' with fair_by = "{caller.fair_by}" at the same rate, no other would have had {most} of its messages'
            f" refused meanwhile, not {percent(others.refused_now)}"
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


def is_recurring(demand: Demand) -> bool:
    """Say whether refusals come back on most days."""
    return demand.days >= LEAST_DAYS and demand.storms.days * 2 >= demand.days


def comes_back(demand: Demand) -> bool:
    """Say whether refusals come back at all, such as every week."""
    return demand.days >= LEAST_DAYS and demand.storms.days >= LEAST_DAYS - 1


def is_flood(demand: Demand) -> bool:
    """Say whether refusals were exceptions far above the usual demand, either very short or by one or two callers."""
    storms, is_short = demand.storms, demand.refused_s <= SHORT_SHARE * demand.observed_s
    top = standing_out(demand)
    is_few = storms.top_two_share >= FEW_CLIENTS_SHARE or (top is not None and top.share >= FEW_CLIENTS_SHARE)
    if not storms.days or not (is_short or (is_few and not is_recurring(demand))):
        return False
    if demand.refused_s > FLOOD_ACTIVE_SHARE * demand.active_s:
        return False
    return demand.refusing_per_s >= FLOOD_TIMES * max(demand.calm_p99, demand.calm_minute_per_s)


def is_untold(demand: Demand) -> bool:
    """Say whether the log may have nothing above the limit but a flood, so that the limit stays."""
    if not demand.refused_messages or (demand.refused_span_s >= DAY_S and demand.refused_days * 2 >= demand.days):
        return False
    usual = max(demand.calm_p99, demand.calm_minute_per_s)
    is_far_above = max(demand.corrected_p99, demand.minute_per_s, demand.refusing_per_s) >= FLOOD_TIMES * usual
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
    level -= demand.retries == "assumed" and demand.raw_p99 > demand.corrected_p99 * (1 + SAME)
    return _LEVELS[max(0, level)]


def _unknowns(lost_records: int, other: int) -> Iterator[str]:
    if lost_records:
        yield f"{counted(lost_records, 'record')} of the log {'is' if lost_records == 1 else 'are'} lost"
    if other:
        yield "there were too many names to count each: some of its demand may be under _other"


def _sentences(said: Iterable[str]) -> str:
    return " ".join(f"{text[:1].upper() if text[:3] != 'p99' else text[:1]}{text[1:]}." for text in said if text)


def _called(caller: Caller) -> str:
    return f"{caller.fair_by.replace('_', ' ')} {_name(caller.name)}"


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
