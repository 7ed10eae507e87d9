"""What was asked for, resource by resource: the figures that recommendations are made from, out of rows of hours.

Percentiles are of *all* seconds that were observed: one in which nothing was asked for counts as 0. They come from
histograms, so that no more is held of a resource than the different values of its demand, and are interpolated as
SQL's ``percentile_cont`` does.

Demand per second is in what the limit counts, messages or requests, once as it came and once *corrected*, without the
retries of what was refused (see ``retries``). *Calm* is what lies outside of refusals: of each minute the seconds
before its first refusal and after its last one.

Pure: no Spark.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from statistics import StatisticsError, correlation, fmean, linear_regression
from typing import Any, Final

from admin.analytics.figures import Demand, HourDemand, Known, Limit, Most, Percentiles, Storms
from admin.analytics.retries import is_measured
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S
from limiter.rules.rule import FairBy

LEAST_TREND_DAYS: Final = 4
LEAST_WEEKLY_DAYS: Final = 14
LEAST_DAY_S: Final = DAY_S // 2
"""A day counts for the trend if at least this much of it was observed."""
WEEK_HOURS: Final = 7 * 24
_PERCENTILES: Final = (0.5, 0.95, 0.99, 0.999, 1.0)
_MONDAY_S: Final = 4 * DAY_S
"""The first Monday, 00:00 UTC, since 1970."""
_WHO: Final[tuple[FairBy, ...]] = ("client", "user", "producer_group")
"""Those whose shares of a limit can be kept apart; who cannot choose what it is called comes first."""
_SUMS: Final = (
    *("active_s", "refused_s", "refused_active_s", "quiet_s", "near_s", "requests", "messages", "refused_messages"),
    *("wanted_messages", "refusing"),
)
_BUSIEST: Final = (
    *("minute_wanted", "calm_minute", "quiet_minute"),
    *("minute_bytes", "calm_minute_bytes", "quiet_minute_bytes"),
)
_SECONDS: Final = (
    *("calm", "loud_asked", "loud_wanted", "loud_outside"),
    *("calm_bytes", "loud_wanted_bytes", "loud_outside_bytes"),
)


def demand_of(  # noqa: PLR0917 - what it is of, and then what is known of that
    instance: str,
    kind: str,
    name: str,
    hours: Iterable[tuple[int, Limit, HourDemand]],
    storms: Storms,
    known: Known,
) -> Demand:
    """Add up the hours of one resource, in one pass.

    Args:
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
        hours: in order, each with its beginning and the limit at its end.
        storms: see ``storms_of``.
        known: of the sidecar.
    """
    limit = Limit()
    rates: set[float | None] = set()
    sums: dict[str, Any] = dict.fromkeys(_SUMS, 0)
    busiest = dict.fromkeys(_BUSIEST, 0.0)
    seconds: dict[str, Counter[float]] = {each: Counter() for each in _SECONDS}
    counted, assumed = False, 0.0
    by_day: defaultdict[int, float] = defaultdict(float)
    by_week: defaultdict[int, float] = defaultdict(float)
    loud_days: set[int] = set()
    loud_from_s = loud_until_s = None
    for hour_s, limit, hour in hours:  # noqa: B007 - the last one is the limit in force
        rates.update(hour.rates)
        for each in _SUMS:
            sums[each] += getattr(hour, each)
        for each in _BUSIEST:
            busiest[each] = max(busiest[each], getattr(hour, each))
        for each in _SECONDS:
            found = seconds[each]
            for value, count in getattr(hour, each):
                found[value] += count
        if hour.refused_requests:
            measured = is_measured(hour.refused_requests, hour.identified_requests)
            counted = counted or measured
            assumed += 0.0 if measured else hour.asked - hour.wanted
        by_day[hour_s // DAY_S] += hour.wanted
        by_week[hour_of_week(hour_s)] += hour.wanted
        if hour.loud_from_s is not None:
            loud_days.add(hour_s // DAY_S)
            loud_from_s = hour.loud_from_s if loud_from_s is None else loud_from_s
            loud_until_s = hour.loud_until_s
    observed_s = max(known.observed_s, sums["active_s"])
    quiet_s = observed_s - sums["active_s"]
    # Between the first refusal of a minute and the last there may be seconds without demand, which are not calm.
    calm_quiet_s = quiet_s - (sums["refused_s"] - sums["refused_active_s"])
    trend, fit = _trend(by_day, known.day_s)
    hour_per_s, busiest_hour, hour_times = _weekly(by_week, known)

    def of(calm: str, loud: str, zeros: int) -> Percentiles:
        return percentiles(seconds[calm] + seconds[loud], zeros)

    return Demand(
        instance,
        kind,
        name,
        limit=replace(limit, changed=len(rates) > 1),
        observed_s=observed_s,
        days=len([day for day, known_s in known.day_s.items() if known_s]),
        **{each: sums[each] for each in _SUMS if each in Demand.__dataclass_fields__},
        refused_days=len(loud_days),
        refused_span_s=0 if loud_from_s is None or loud_until_s is None else loud_until_s - loud_from_s,
        # What was assumed of any hour makes the whole an assumption.
        retries="assumed" if assumed > 0 else "measured" if counted else "none",
        raw=of("calm", "loud_asked", quiet_s),
        corrected=of("calm", "loud_wanted", quiet_s),
        calm=of("calm", "loud_outside", calm_quiet_s),
        refusing_per_s=sums["refusing"] / max(1, sums["refused_s"]),
        minute_per_s=busiest["minute_wanted"] / MINUTE_S,
        calm_minute_per_s=busiest["calm_minute"] / MINUTE_S,
        quiet_minute_per_s=busiest["quiet_minute"] / MINUTE_S,
        size_bytes=of("calm_bytes", "loud_wanted_bytes", quiet_s),
        calm_bytes=of("calm_bytes", "loud_outside_bytes", calm_quiet_s),
        minute_bytes_per_s=busiest["minute_bytes"] / MINUTE_S,
        calm_minute_bytes_per_s=busiest["calm_minute_bytes"] / MINUTE_S,
        quiet_minute_bytes_per_s=busiest["quiet_minute_bytes"] / MINUTE_S,
        hour_per_s=hour_per_s,
        hour_of_week=busiest_hour,
        hour_times=hour_times,
        trend_per_week=trend,
        trend_fit=fit,
        storms=storms,
        lost_records=known.lost_records,
        other=known.other,
    )


def percentiles(seconds: Mapping[float, int], zeros: int) -> Percentiles:
    """Return the percentiles of values that have a weight, and of so many zeros; of nothing at all they are 0."""
    values = sorted(seconds)
    # How many values there are up to each one, without it.
    ends = list(accumulate((seconds[value] for value in values), initial=max(0, zeros)))

    def value(place: int) -> float:
        at = bisect_right(ends, place)
        return values[at - 1] if at else 0.0

    def percentile(share: float) -> float:
        place = share * (ends[-1] - 1)
        low = int(place)
        first = value(low)
        second = value(low + 1) if place > low else first
        return first + (place - low) * (second - first)

    return Percentiles(*map(percentile, _PERCENTILES)) if ends[-1] else Percentiles()


def hour_of_week(at_s: int) -> int:
    """Return the hour of the week that a second is in; 0 is Monday from 00:00 to 01:00 UTC."""
    return (at_s - _MONDAY_S) // HOUR_S % WEEK_HOURS


def _trend(by_day: Mapping[int, float], day_s: Mapping[int, int]) -> tuple[float | None, float]:
    """Return by which share the daily demand grows in a week, by least squares, and how well that fits."""
    days = [day for day, known_s in day_s.items() if known_s >= LEAST_DAY_S]
    per_s = [by_day.get(day, 0.0) / min(day_s[day], DAY_S) for day in days]
    if len(days) < LEAST_TREND_DAYS or not any(per_s):
        return None, 0.0
    mean = fmean(per_s)
    trend = linear_regression(days, per_s).slope * 7 / mean
    if max(per_s) - min(per_s) <= 1e-9 * mean:
        return trend, 0.0
    try:
        return trend, correlation(days, per_s) ** 2
    except StatisticsError:
        return trend, 0.0


def _weekly(by_week: Mapping[int, float], known: Known) -> tuple[float | None, int | None, float | None]:
    """Return the busiest hour of the week, and how many times the median one it is, where two weeks can tell."""
    if len([day for day, known_s in known.day_s.items() if known_s]) < LEAST_WEEKLY_DAYS:
        return None, None, None
    per_s = {hour: by_week.get(hour, 0.0) / known_s for hour, known_s in known.week_s.items() if known_s}
    if not any(per_s.values()):
        return None, None, None
    busiest = max(per_s, key=lambda hour: (per_s[hour], -hour))
    median = sorted(per_s.values(), reverse=True)[len(per_s) // 2]
    return per_s[busiest], busiest, per_s[busiest] / median if median else None


def storms_of(rows: Iterable[Mapping[str, Any]], rule: str) -> Storms:
    """Return what is known of a resource's refusals.

    Args:
        rows: of the table ``storms``, all of one resource, those of shadow limits too.
        rule: that is in force.
    """
    count = messages = first_two = clients = 0
    days: set[int] = set()
    by_rule: Counter[str] = Counter()
    by_name: dict[FairBy, Counter[str]] = {who: Counter() for who in _WHO}
    most_at_once = dict.fromkeys(_WHO, 0)
    for row in rows:
        count += 1
        days.add(row["start_s"] // DAY_S)
        messages += row["messages"]
        first_two += sum(each["messages"] for each in row["clients"][:2])
        clients = max(clients, row["client_count"] or 0)
        for each in row["rules"] or ():
            by_rule[each["name"]] += each["messages"]
        for who in _WHO:
            most_at_once[who] = max(most_at_once[who], row[f"{who}_count"] or 0)
            for each in row[f"{who}s"] or ():
                by_name[who][each["name"]] += each["messages"]
    if not count:
        return Storms()
    total = sum(by_rule.values())
    others = {name: its for name, its in by_rule.items() if name != rule}
    return Storms(
        count=count,
        days=len(days),
        messages=messages,
        top_two_share=first_two / max(1, messages),
        clients=clients,
        own_share=by_rule[rule] / total if total else 1.0,
        other_rule=max(others, key=lambda name: others[name]) if others else "",
        most=tuple(
            Most(who, name, its / max(1, messages), most_at_once[who])
            for who, found in by_name.items()
            for name, its in found.most_common(1)
            if name
        ),
    )
