"""A recommendation's reasons in words, with their figures.

Pure: nothing but the standard library.
"""

from collections.abc import Iterable
from typing import Final

from admin.analytics.figures import Demand, Limit, Most
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S, counted, percent, rate
from admin.common.tables import printable

TREND_LEAST: Final = 0.05
"""Less growth a week than this counts as none."""
TREND_MOST: Final = 0.5
"""More growth a week than this is not expected to go on."""
TREND_FIT: Final = 0.5
"""A trend counts where it explains half of how days differ (the coefficient of determination)."""


def about_demand(demand: Demand, *, runaway: bool) -> str:
    """Say what was asked for, and what the limit did to it."""
    limit = demand.limit
    found = demand.calm if runaway else demand.corrected
    unit = "requests" if limit.count == "requests" else ""
    what = "demand outside of storms" if runaway else "demand"
    text = f"p99 of {what} over {span(demand.observed_s)} is {rate(found.p99, unit)}"
    if not runaway and demand.retries == "measured":
        text += (
            f" ({rate(demand.raw.p99, unit)} with the retries, which were counted)"
            if demand.raw.p99 > demand.corrected.p99 * 1.005
            else " (retries were counted, and are not among it)"
            if demand.wanted_messages < demand.messages
            else " (none of it were retries: they were counted)"
        )
    elif not runaway and demand.raw.p99 > demand.corrected.p99 * 1.005:
        text = (
            f"p99 of {what} over {span(demand.observed_s)} is {rate(demand.raw.p99, unit)} as it came, and"
            f" {rate(found.p99, unit)} without the retries that are assumed, since nobody counted them"
        )
    minute = demand.calm_minute_per_s if runaway else demand.minute_per_s
    if minute > found.p99:
        text += f", its busiest minute {rate(minute, unit)}"
    if limit.rate is not None:
        text += f", limit {rate(limit.rate, unit)}"
    if demand.refused_messages and demand.messages:
        share, shadows = percent(demand.refused_messages / demand.messages), limit.action == "shadow"
        if limit.rate is None:
            text += f", of which {share} {'would have been' if shadows else 'was'} refused"
        else:
            text += f" {'would have refused' if shadows else 'refused'} {share}"
        if demand.storms.count:
            text += f" in {demand.storms.count} storm{'s' * (demand.storms.count != 1)}"
    elif limit.rate is not None:
        text += " refused nothing"
    if demand.refused_messages and demand.storms.own_share < 0.5 and demand.storms.other_rule:
        text += f" ({percent(1 - demand.storms.own_share)} of that by {demand.storms.other_rule}, not by this limit)"
    if limit.changed:
        text += "; the limit was changed meanwhile"
    return text


def about_runaway(demand: Demand) -> str:
    """Say whose refusals do not count."""
    storms = demand.storms
    who = "one client" if storms.clients == 1 else "two clients" if storms.clients == 2 else "one or two clients"
    times = demand.refusing_per_s / max(demand.calm.p99, demand.calm_minute_per_s, 1e-9)
    far = f"{times:.0f} times as much" if times < 1000 else "far more than that"
    return (
        f"in storms {who} with {percent(storms.top_two_share)} of what was refused asked for {far}"
        f" ({rate(demand.refusing_per_s)}), in {percent(demand.refused_s / max(1, demand.observed_s))} of the"
        " time: stopping these is what the limit is for, and they do not count"
    )


def about_near(demand: Demand, *, near: bool) -> str:
    """Say of a limit that refused nothing how near it came to that."""
    if demand.near_s and near:
        return f"at least 80% of it was asked for in {percent(demand.near_s / max(1, demand.observed_s))} of the time"
    return "it was near that" if near else "it was seldom near that, so this can wait"


def about_shares(most: Most, now: float, then: float) -> str:
    """Say who should have no more than a fair share.

    Args:
        most: who asked for most.
        now: share of the others' messages that was refused.
        then: that fair shares would have refused, at most.
    """
    who = f"{most.fair_by.replace('_', ' ')} {printable(most.name)}"
    return (
        f"{who} has {percent(most.share)} of what was refused, and up to {most.callers - 1} others the rest: with"
        f' fair_by = "{most.fair_by}" at the same rate, no more than {percent(then)} of what these sent would have been'
        f" refused in place of {percent(now)}, if each asked for the part that it has of what was refused"
    )


def about_untold(demand: Demand, least_s: int) -> str:
    """Say why the log does not tell a demand from a flood.

    Args:
        demand: all of it.
        least_s: seconds of demand outside of refusals that would do.
    """
    if demand.quiet_s < least_s:
        known = "nothing" if not demand.quiet_s else f"only {span(demand.quiet_s)}"
        why = f"not enough quiet time to tell demand from a flood: {known} of it lies outside of refusals"
    else:
        why = (
            f"{span(demand.observed_s)} of log are too few to tell demand from a flood: what was refused is far above"
            " what is asked for otherwise"
        )
    return f"{why}, so the limit stays as it is; a longer log may tell, and raise it yourself if all of this is wanted"


def about_growth(demand: Demand) -> str:
    """Say how the demand grows, and when most is asked for."""
    said = []
    trend = demand.trend_per_week
    if trend is not None and abs(trend) >= TREND_LEAST and demand.trend_fit >= TREND_FIT:
        said.append(f"the daily demand {'grows' if trend > 0 else 'shrinks'} by {percent(abs(trend))} a week")
        if trend > 0:
            said[-1] += f", and a week's growth{' of 50%' if trend > TREND_MOST else ''} is added"
    if demand.hour_of_week is not None and demand.hour_per_s:
        day, hour = divmod(demand.hour_of_week, 24)
        text = f"its busiest hour is {_WEEKDAYS[day]} {hour:02}:00 UTC with {rate(demand.hour_per_s)}"
        if demand.hour_times is not None and demand.hour_times >= 1.5:
            text += f", {demand.hour_times:.1f} times the median hour"
        said.append(text)
    return "; ".join(said)


def about_bytes(demand: Demand, *, runaway: bool) -> str:
    """Say the same of bytes."""
    found = demand.calm_bytes if runaway else demand.size_bytes
    return f"p99 of bytes is {rate(found.p99, 'bytes')}, their limit {rate(demand.limit.bytes_rate, 'bytes')}"


def no_limit(limit: Limit) -> str:
    """Say why nothing is limited."""
    return "its limit is off" if limit.action == "off" else "it has no limit"


def unknowns(demand: Demand) -> list[str]:
    """Say what makes the figures uncertain."""
    said = []
    if demand.lost_records:
        said.append(
            f"{counted(demand.lost_records, 'record')} of the log {'is' if demand.lost_records == 1 else 'are'} lost"
        )
    if demand.other:
        said.append("there were too many names to count each, so that some of its demand may be under _other")
    return said


_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def sentences(said: Iterable[str]) -> str:
    """Put what is said together."""
    return " ".join(f"{text[:1].upper() if text[:3] != 'p99' else text[:1]}{text[1:]}." for text in said if text)


def span(seconds: float) -> str:
    """Write a length of time in its largest unit: ``7 days``, ``3 hours``, ``2 minutes``."""
    for size, unit in ((DAY_S, "day"), (HOUR_S, "hour"), (MINUTE_S, "minute")):
        # 6 days and 23.5 hours are 7 days to whoever reads that.
        if seconds >= size * 0.98:
            count = round(seconds / size, 1 if seconds < 10 * size else 0)
            text = f"{count:.1f}".removesuffix(".0")
            return f"{text} {unit}{'s' * (text != '1')}"
    return f"{seconds:.0f} second{'s' * (round(seconds) != 1)}"
