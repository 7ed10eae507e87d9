"""Recommends changes to limits, and gives the reasons. ``docs/reports.md`` explains the criteria."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from admin.analytics.demand import Caller, Demand, Known, Limit, Minutes
from admin.analytics.options import Options
from admin.analytics.replay import MAX_SHARE, Backtest, Others, as_replay, others_of
from admin.analytics.words import DAY_S, NOT_KNOWN, counted, moment, percent, rate
from admin.common import recommendations as rec
from admin.common.numbers import span as duration
from admin.common.recommendations import Confidence, OnlyWith, Recommendation, Recommended
from admin.common.tables import printable
from limiter.rules.patterns import glob_of
from limiter.rules.rule import ADAPTIVE_NAME, DEFAULT_MAX_FAIR_KEYS, MAX_RATE_PER_S

MIN_PER_S: Final = 1.0
SAME: Final = 0.1  # relative difference
FEW_CLIENTS_SHARE: Final = 0.8  # share of the refusals
FLOOD_TIMES: Final = 3.0  # multiple of the usual demand
FLOOD_ACTIVE_SHARE: Final = 0.34  # maximum share of the active seconds with refusals
SHORT_SHARE: Final = 0.005  # maximum share of the time with refusals
MIN_QUIET_S: Final = 600
NEGLIGIBLE_SHARE: Final = 0.001  # a limit is high enough if it refuses at most this share of the demand
MIN_DAYS: Final = 4
STEPS: Final = (1.1, 1.25, 1.5, 2.0, FLOOD_TIMES)
MAX_GROWTH: Final = 0.5
MAX_NAME: Final = 60  # characters
_LEVELS: Final[tuple[Confidence, ...]] = ("low", "medium", "high")


class Advice(NamedTuple):
    recommendation: Recommendation
    need_per_s: float  # messages per second to admit. 0 if the limit is 0 or the resource may be gone
    limit_per_s: float | None  # messages per second that the limit admits


def advise(demand: Demand, minutes: Minutes, options: Options) -> Advice:
    case, limit = _Case(demand, minutes, options), demand.limit
    each = demand.messages / demand.requests if limit.count == "requests" and demand.requests else 1.0
    need = 0.0 if limit.rate_per_s == 0 or demand.gone_since_s is not None else case.claim * each
    return Advice(case.recommendation(), need, None if limit.rate_per_s is None else limit.rate_per_s * each)


def unused(key: Sequence[str], limit: Limit, known: Known) -> Recommendation:
    level = 0 if known.observed_s < DAY_S or known.lost_records else 1 if known.observed_s < 7 * DAY_S else 2
    return Recommendation(
        **_of_limit(key, limit),
        action="unused",
        confidence=_LEVELS[level],
        evidence=f"No demand in {duration(known.observed_s)} of logs.",
        details=_sentences(_unknowns(known._replace(other=0))),
    )


def _of_limit(key: Sequence[str], limit: Limit) -> dict[str, Any]:
    return dict(zip(("instance", "kind", "name"), key, strict=True)) | {
        "rule": limit.rule,
        "count": "requests" if limit.count == "requests" else "messages",
        "rate_per_s": limit.rate_per_s,
        "bytes_per_s": limit.bytes_per_s,
    }


class _Case:
    def __init__(self, demand: Demand, minutes: Minutes, options: Options) -> None:
        self._demand, self._options = demand, options
        self._backtest = Backtest(minutes, demand.limit, demand.under)
        self._now = demand.limit.rate_per_s
        self._unit = "requests" if demand.limit.count == "requests" else ""
        self._is_flood, self._unknown_above_limit = is_flood(demand), unknown_above_limit(demand)
        self._comes_back = demand.days >= MIN_DAYS and demand.storms.days >= MIN_DAYS - 1
        top = demand.storms.top
        self._top = top if top and top.share >= MAX_SHARE else None
        is_own = demand.storms.own_share >= MAX_SHARE
        self._refuses = is_own and demand.now_refused_messages > NEGLIGIBLE_SHARE * demand.now_messages
        self._p99, minute = demand.corrected_p99, demand.minute_per_s
        if self._is_flood:
            self._p99, minute = demand.calm_p99, demand.calm_minute_per_s
        growth = 1 + min(max(demand.growth, 0.0), MAX_GROWTH)
        self._room = (1 + options.headroom) * growth
        need = max(self._p99 * (1 + options.headroom), minute) * growth
        self._need = self._all = max(MIN_PER_S, two_digits(need))
        if self._is_flood:
            self._all = max(MIN_PER_S, two_digits(max(demand.corrected_top, demand.minute_per_s)))
        # Fair shares do not help against a single flood, or if the demand is less than twice the limit.
        is_many = self._all >= 2 * (self._now or 0.0) and not (self._is_flood and len(demand.storms.rows) == 1)
        may_share = self._refuses and is_many and demand.limit.fair_by is None and not demand.known.twice
        self._others = others_of(demand, minutes) if may_share else None
        is_much = demand.limit.fair_by is not None or self._all >= FLOOD_TIMES * (self._now or 0.0)
        self._is_held_back = self._refuses and self._top is not None and is_much
        self.claim = (
            min(self._need, self._now or self._need) if self._unknown_above_limit and not self._is_flood else self._need
        )

    def recommendation(self) -> Recommendation:
        demand, limit = self._demand, self._demand.limit
        action, chosen, why = self._decide()
        others = self._others if action == "share" else None
        evidence, *details = dict.fromkeys(filter(None, (demand.known.twice, *why, *self._about(action))))
        return Recommendation(
            **_of_limit(demand.key, limit),
            action=action,
            recommended_rate_per_s=chosen,
            recommended_bytes_per_s=limit.bytes_per_s,
            confidence=self._confidence(),
            evidence=_sentences([evidence]),
            details=_sentences(details),
            backtest=self._tested(chosen, others),
            only_with=self._only_with(action),
            fair_by=others and others.caller.fair_by,
            max_fair_keys=others.keys if others and others.keys > DEFAULT_MAX_FAIR_KEYS else None,
            retries=demand.retries,
            what_if=tuple(self._what_if(chosen)),
        )

    def _decide(self) -> tuple[Recommended, float | None, list[str]]:
        demand, now, need = self._demand, self._now, self._need
        if now is None:
            off = "Its limit is off" if demand.limit.action == "off" else ""
            own = f"It has no limit of its own, but {self._other_limit_advice()}" if demand.storms.other_rule else ""
            return "keep", now, [off or own]
        if now == 0:
            return "keep", now, ["A limit of 0 is not changed"]
        if demand.gone_since_s is not None:
            before = "" if demand.last_s <= demand.gone_since_s else "almost "
            return "keep", now, [f"{before}no demand since {moment(demand.gone_since_s)[:16]} UTC"]
        if demand.storms.own_share < MAX_SHARE:
            # Messages refused by other limits do not justify changing this one.
            return "keep", now, []
        if self._others:
            retrying = ", if clients retry as assumed" * (demand.retries == "assumed")
            takes = f"admitting all demand would take {rate(self._all)}{retrying}"
            return "share", now, [self._about_shares(self._others), takes]
        is_same = abs(need - now) < SAME * now
        if self._is_flood:
            wanted = need if need > now and not is_same else self._all if self._comes_back else now
            return "raise" if wanted > now else "keep", max(wanted, now), [self._about_flood()]
        if need < now and not is_same:
            why = self._not_lowered(now)
            return ("keep", now, [self._about_demand(), why]) if why else ("lower", need, [])
        if self._unknown_above_limit:
            return "keep", now, [self._about_top() if demand.limit.fair_by else "", self._unknown_above_limit]
        is_enough = not self._refuses or (is_same and self._holds(now))
        if is_enough and (is_same or self._holds(now / self._room)):
            return "keep", now, []
        return self._raised(now)

    def _raised(self, now: float) -> tuple[Recommended, float | None, list[str]]:
        least, top = max(self._need, now), two_digits(self._demand.raw_top)
        rates = [max(least, min(two_digits(least * times), top)) for times in (1.0, *STEPS)]
        chosen = next((each for each in rates if self._holds(each)), least)
        if chosen == now:
            return "keep", now, []
        near = "" if self._demand.refused_messages else self._refusing(two_digits(now / self._room, math.floor))
        return "raise", chosen, [self._about_top() if self._is_held_back else "", self._about_demand(), near]

    def _not_lowered(self, now: float) -> str:
        demand, test, (_, kind, name) = self._demand, self._backtest, self._demand.key
        if demand.limit.rule not in {f"{kind}:{name}", f"{kind}:{glob_of(name)}"}:
            return "the limit belongs to a pattern, and other names may need it"
        if demand.limit_s < DAY_S:
            return f"{duration(demand.limit_s)} under this limit is not long enough to lower it"
        if test.replay(self._need).refused_share > test.replay(now).refused_share + NEGLIGIBLE_SHARE:
            return f"{self._refusing(self._need)}, so the limit is not lowered"
        return ""

    def _holds(self, per_s: float) -> bool:
        return self._backtest.replay(per_s, wanted=True).refused_share <= NEGLIGIBLE_SHARE

    def _tested(self, chosen: float | None, others: Others | None) -> rec.Backtest:
        now, test = self._now, self._backtest
        if not test.messages or (now is None and self._demand.limit.bytes_per_s is None):
            return rec.Backtest()
        is_alone = self._demand.storms.own_share >= 1 - SAME
        return rec.Backtest(
            current=test.replay(now),
            recommended=self._replayed(chosen),
            recommended_uncorrected=test.replay(chosen),
            others_current=others and as_replay(others.refused_now * others.messages, others.messages),
            others=others and as_replay(math.ceil(others.worst_then * others.messages), others.messages),
            logged=as_replay(test.logged_messages, test.now_messages) if test.now_messages else None,
            model_error=test.error() / test.now_messages if is_alone and test.now_messages else None,
        )

    def _replayed(self, per_s: float | None) -> rec.Replay:
        is_above = per_s is not None and (self._now is None or per_s > self._now)
        return self._backtest.replay(per_s, wanted=is_above)

    def _only_with(self, action: Recommended) -> OnlyWith:
        if action == "lower":
            return "lower"
        demand = self._demand
        can_wait = not demand.refused_messages and self._evidence_level() == 0
        asks = can_wait or demand.known.twice or (self._is_flood and self._comes_back) or self._is_held_back
        return "raise" if action == "raise" and asks else ""

    def _evidence_level(self) -> int:
        demand = self._demand
        if demand.known.twice:
            return 0
        level = 2 if demand.limit_s >= 7 * DAY_S else 1 if demand.limit_s >= DAY_S else 0
        level = min(level, int(demand.active_s >= 60) + int(demand.active_s >= 600))
        level -= bool(demand.known.lost_records or demand.known.other or demand.growth > MAX_GROWTH)
        level -= demand.retries == "assumed" and demand.raw_p99 > demand.corrected_p99 * (1 + SAME)
        return max(0, level)

    def _confidence(self) -> Confidence:
        level, demand = self._evidence_level(), self._demand
        # Refusals on only a few days may not recur.
        is_once = demand.days >= MIN_DAYS and 1 <= demand.refused_days * MIN_DAYS <= demand.days
        most = 1 if self._is_flood or is_once else 0 if self._unknown_above_limit else 2
        return _LEVELS[min(level, most)]

    def _what_if(self, chosen: float | None) -> Iterator[rec.WhatIf]:
        demand, now = self._demand, self._now
        asked = (each for each in self._options.tries if (each.kind, each.name) == tuple(demand.key[1:]))
        rates = {each.rate_per_s for each in asked}
        if demand.refused_messages and now:
            rates |= {two_digits((chosen or now) * times) for times in STEPS}
        if rates:
            rates |= {each for each in (now, chosen) if each is not None}
        for per_s in sorted(rates):
            yield rec.WhatIf(
                rate_per_s=per_s,
                refused_share=self._replayed(per_s).refused_share,
                refused_share_uncorrected=self._backtest.replay(per_s).refused_share,
            )

    # The first sentence becomes the evidence, and must fit on two lines. The others become the details.

    def _about(self, action: Recommended) -> Iterator[str]:
        demand, storms = self._demand, self._demand.storms
        if self._now is None:
            yield self._about_bytes()
        yield self._about_demand()
        if storms.own_share >= MAX_SHARE:
            for per_s, (messages, refused) in demand.before.items():
                yield f"the previous limit of {rate(per_s, self._unit)} {self._did(refused, messages)}"
        yield self._about_bytes()
        if demand.growth:
            added = f", and a week's growth is added (at most {percent(MAX_GROWTH)})" if demand.growth > 0 else ""
            verb = "grows" if demand.growth > 0 else "shrinks"
            yield f"daily demand {verb} by {percent(abs(demand.growth))} a week{added}"
        if demand.held_messages and demand.limit.action != "delay":
            yield f"{counted(demand.held_messages, 'message')} had to wait for this limit, so the demand may be higher"
        if MAX_SHARE <= storms.own_share < 1 - SAME:
            yield self._other_limit_advice()
        if not self._is_flood and action != "share":
            yield self._about_top()
        yield from _unknowns(demand.known)

    def _about_demand(self) -> str:
        demand, storms, limit = self._demand, self._demand.storms, self._demand.limit
        what = "demand outside storms" if self._is_flood else "demand"
        said = f"p99 of {what} over {duration(demand.observed_s)} is {rate(self._p99, self._unit)}"
        if not self._is_flood and demand.raw_p99 > self._p99 * 1.005:
            how = "counted" if demand.retries == "measured" else "assumed"
            said += f" ({rate(demand.raw_p99, self._unit)} with retries, {how})"
        if limit.rate_per_s is None:
            return said
        since = "" if demand.limit_since_s is None else f" since {moment(demand.limit_since_s)[:16]}"
        per_s = f"{rate(limit.rate_per_s, self._unit)}{since}"
        if storms.own_share < MAX_SHARE:
            return f"{said}, and the limit is {per_s}; {self._other_limit_advice()}"
        said += f", and the limit of {per_s} {self._did(demand.now_refused_messages, demand.now_messages)}"
        in_storms = storms.rows and demand.now_refused_messages and not demand.before
        return f"{said} in {counted(len(storms.rows), 'storm')}" if in_storms else said

    def _about_bytes(self) -> str:
        demand, limit = self._demand, self._demand.limit
        if limit.bytes_per_s is None:
            return ""
        said = f"p99 of bytes is {rate(demand.bytes_p99, 'bytes')}, and the limit is {rate(limit.bytes_per_s, 'bytes')}"
        did = self._did(demand.now_refused_messages, demand.now_messages)
        return f"{said}, which {did}" if self._now is None else said

    def _did(self, refused: int, messages: int) -> str:
        verb = "would have refused" if self._demand.limit.action == "shadow" else "refused"
        return f"{verb} {percent(refused / messages)}" if refused and messages else f"{verb} nothing"

    def _other_limit_advice(self) -> str:
        rule, refused = self._demand.storms.other_rule, counted(self._demand.storms.other_messages, "message")
        if rule.startswith(ADAPTIVE_NAME):
            return f"the broker was at capacity: rule {_name(rule)} refused {refused}; a higher limit would not help"
        return f"rule {_name(rule)} refused {refused}: check that limit"

    def _about_flood(self) -> str:
        demand, storms = self._demand, self._demand.storms
        sent = f"up to {counted(storms.clients, 'client')} sent the refused messages"
        if self._top and self._top.share >= (MAX_SHARE if demand.limit.fair_by else FEW_CLIENTS_SHARE):
            sent = f"{_caller_text(self._top)} sent {percent(self._top.share)} of the refused messages"
        elif storms.top_two_share >= FEW_CLIENTS_SHARE:
            sent = f"one or two clients sent {percent(storms.top_two_share)} of the refused messages"
        times = demand.refusing_per_s / max(demand.usual_per_s, 1e-9)
        far = f"{times:.0f} times the usual demand" if times < 1000 else "far more than the usual demand"
        then = "which is what the limit is for"
        if self._comes_back:
            then = f"on {storms.days} of {counted(demand.days, 'day')}; contact the owner, or raise the limit"
        return f"{sent}: {far}, {self._in_time()}, {then}"

    def _about_shares(self, others: Others) -> str:
        caller = others.caller
        most = f"at most {percent(max(0.001, others.worst_then))}" if others.worst_then > 0 else "none"
        return (
            f"{_caller_text(caller)} sent {percent(caller.share)} of the refused messages:"
            f' with fair_by = "{caller.fair_by}" at the same rate, {most} of any other caller\'s messages would have'
            f" been refused in storms, instead of {percent(others.refused_now)}"
        )

    def _about_top(self) -> str:
        if self._top is None:
            return ""
        said = f"{_caller_text(self._top)} sent {percent(self._top.share)} of the refused messages"
        shared = " with fair shares" if self._demand.limit.fair_by else ""
        return f"{said}{shared}: contact the owner, or raise the limit" if self._is_held_back else said

    def _in_time(self) -> str:
        return f"in {percent(self._demand.refused_s / max(1, self._demand.observed_s))} of the recorded time"

    def _refusing(self, per_s: float) -> str:
        return (
            f"a limit of {rate(per_s)} would have refused"
            f" {percent(self._backtest.replay(per_s, wanted=True).refused_share)} of the demand"
        )


def is_flood(demand: Demand) -> bool:
    storms, is_short = demand.storms, demand.refused_s <= SHORT_SHARE * demand.observed_s
    is_few = max(storms.top_two_share, storms.top.share if storms.top else 0.0) >= FEW_CLIENTS_SHARE
    is_recurring = demand.days >= MIN_DAYS and storms.days * 2 >= demand.days
    if not storms.days or not (is_short or (is_few and not is_recurring)):
        return False
    is_exception = demand.refused_s <= FLOOD_ACTIVE_SHARE * demand.active_s
    return is_exception and demand.refusing_per_s >= FLOOD_TIMES * demand.usual_per_s


def unknown_above_limit(demand: Demand) -> str:
    """Return why the log does not reveal the usual demand above the limit, or an empty string if it does."""
    if not demand.refused_messages or (demand.refused_span_s >= DAY_S and demand.refused_days * 2 >= demand.days):
        return ""
    most = max(demand.corrected_p99, demand.minute_per_s, demand.refusing_per_s)
    is_known = demand.observed_s >= DAY_S or most < FLOOD_TIMES * demand.usual_per_s
    if is_known and demand.quiet_s >= MIN_QUIET_S:
        return ""
    log = f"{duration(demand.quiet_s)} with demand and without refusals in {duration(demand.observed_s)} of log"
    return f"{NOT_KNOWN}: {log}"


def _unknowns(known: Known) -> Iterator[str]:
    if known.twice:
        yield known.twice
    if known.lost_records:
        yield f"{counted(known.lost_records, 'record')} of the log {'was' if known.lost_records == 1 else 'were'} lost"
    if known.other:
        yield "there were too many names to count each one, so some demand may be counted as _other"


def _sentences(said: Iterable[str]) -> str:
    return " ".join(f"{text[:1].upper() if text[:3] != 'p99' else text[:1]}{text[1:]}." for text in said)


def _caller_text(caller: Caller) -> str:
    return f"{caller.fair_by.replace('_', ' ')} {_name(caller.name)}"


def _name(name: str) -> str:
    name = printable(name)
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def two_digits(value: float, how: Callable[[float], int] = math.ceil) -> float:
    if value < 1e-12:
        return 0.0
    size = math.floor(math.log10(value)) - 1
    # A floating-point error must not cause rounding up.
    digits = how(round(value / 10.0**size, 9))
    return min(float(MAX_RATE_PER_S), round(digits * 10.0**size, max(0, -size)))
