"""How a report writes times, amounts and rates, in the terminal, on the page and in its evidence alike.

Pure: nothing but the standard library below it, since evidence is written wherever Spark's Python runs.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from admin.common import numbers
from admin.common.numbers import percent as percent  # noqa: PLC0414 - for those who write with this module

if TYPE_CHECKING:
    from admin.analytics.findings import Findings, LimitChange, Totals, Week
    from admin.common.recommendations import Recommendation

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S


def moment(at_s: int) -> str:
    """Write a second, UTC: ``2026-11-21 13:05:07``."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(start_s: int, end_s: int) -> str:
    """Write a time from, to, and how long: ``2026-11-21 13:05:07 to 13:09:10 (4 min 3 s)``."""
    start, end = moment(start_s), moment(end_s)
    if start[:10] == end[:10]:
        end = end[11:]
    return f"{start} to {end} ({duration(end_s - start_s)})"


def duration(seconds: int) -> str:
    """Write how long in the two largest units that matter: ``2 d 4 h``, ``4 min 3 s``, ``12 s``."""
    units = (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S), ("s", 1))
    for at, (unit, size) in enumerate(units):
        if seconds >= size or unit == "s":
            whole, rest = divmod(seconds, size)
            text = f"{whole} {unit}"
            if at + 1 < len(units) and (more := rest // units[at + 1][1]):
                text += f" {more} {units[at + 1][0]}"
            return text
    return "0 s"


def amount(number: int) -> str:
    """Write a count with its thousands set apart."""
    return f"{number:,}"


def counted(number: int, one: str, many: str = "") -> str:
    """Write how many of something: ``1 storm``, ``2 storms``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def rate(per_s: float | None, unit: str = "") -> str:
    """Write a rate: ``500/s``, ``0.5/s``, ``unlimited``; with a unit, ``4,096 bytes/s``."""
    if per_s is None:
        return "unlimited"
    unit = f" {unit}" if unit else ""
    decimals = 0 if per_s >= 100 else 1 if per_s >= 1 else 3
    return f"{numbers.number(per_s, decimals, grouped=True)}{unit}/s"


def size(size_bytes: int) -> str:
    """Write bytes: ``512 B``, ``1.5 MB``."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def resource(kind: str, name: str) -> str:
    """Name a resource, with its kind unless it is of the one that most limits are for."""
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - Spark's Python has no protocols, and needs none

    firsts = (each.name for protocol in own_protocols() for each in protocol.kinds[:1])
    return name if kind in firsts else f"{kind} {name}"


def change(recommendation: "Recommendation") -> str:
    """Write what would change: ``300/s → 450/s``; what stays is written once."""
    unit = "requests" if recommendation.count == "requests" else ""
    parts = []
    for now, then, what in (
        (recommendation.rate_per_s, recommendation.recommended_rate_per_s, unit),
        (recommendation.bytes_per_s, recommendation.recommended_bytes_per_s, "bytes"),
    ):
        if what == "bytes" and now is None and then is None:
            continue
        same = now == then or then is None or recommendation.action in {"keep", "unused"}
        parts.append(rate(now, what) if same else f"{rate(now, what)} → {rate(then, what)}")
    if recommendation.fair_by:
        parts.append(f"in fair shares by {recommendation.fair_by.replace('_', ' ')}")
    return ", ".join(parts)


def edit(change: "LimitChange") -> str:
    """Write what an edit made of a resource's own limit: ``300/s → 450/s``; of none, ``own limit: none → 450/s``."""
    before, after = change.rate_before_per_s, change.rate_after_per_s
    if before is not None and after is not None:
        return f"{rate(before)} → {rate(after)}"
    sides = ("none" if each is None else rate(each) for each in (before, after))
    return "" if before is after is None else f"own limit: {' → '.join(sides)}"


def retries(recommendation: "Recommendation") -> str:
    """Say how the retries in its demand are known; empty if there are none."""
    return "" if recommendation.retries == "none" else f"retries {recommendation.retries}"


def refused(*, shadow: bool) -> str:
    """Say what a limit did to messages, or would have done."""
    return "would have been refused" if shadow else "refused"


def shadowed(totals: "Totals") -> str:
    """Say what limits in shadow would have refused, as a sentence; empty if nothing."""
    if not totals.shadowed:
        return ""
    storms = f" in {counted(totals.shadow_storms, 'storm')}" if totals.shadow_storms else ""
    return f"Limits in shadow would have refused {counted(totals.shadowed, 'message')}{storms}; these passed."


def growth(now: int, before: int) -> str:
    """Write how much more or less something is than it was: ``+12%``, ``12 times``, ``new``, ``as before``."""
    if not before or not now:
        return "new" if now else "none now" if before else ""
    times = now / before
    if times >= 10:
        return f"{times:,.0f} times"
    change = round((times - 1) * 100)
    return f"{change:+}%".replace("-", "\N{MINUS SIGN}") if change else "as before"


def weeks(week: "Week") -> str:
    """Say which weeks are compared."""
    return (
        f"{moment(week.from_s)[:16]} to {moment(week.until_s)[:16]},"
        f" beside {moment(week.before_from_s)[:16]} to {moment(week.before_until_s)[:16]}"
    )


def to_change(totals: "Totals") -> int:
    """Return how many limits are to be changed, without those that are only offered."""
    from admin.common.recommendations import TO_DO  # noqa: PLC0415 - as above: it needs more than Spark's Python has

    return sum(totals.recommendations.get(each, 0) for each in TO_DO) - sum(totals.offered.values())


def waited(held: int) -> str:
    """Say how many messages had to wait for a limit, to follow what was refused; empty if none had to."""
    return f"; {counted(held, 'message')} had to wait for a limit first" if held else ""


def unknowns(findings: "Findings") -> list[str]:
    """Say what a report does not know, a line each; nothing if it knows all."""
    inputs, totals = findings.inputs, findings.totals
    gaps, lost, other = totals.gap_minutes, totals.lost_records, totals.other
    bypassed, off = totals.bypassed_requests, totals.limiting_off_minutes
    of_bad, of_lost, of_other = (_were(each) for each in (inputs.bad_lines, lost, other))
    candidates = (
        (inputs.skipped_files, f"{counted(inputs.skipped_files, 'file')} could not be read, or not to the end."),
        (
            inputs.outside_files,
            f"{counted(inputs.outside_files, 'file')} of other days {_were(inputs.outside_files)} not opened.",
        ),
        (
            inputs.bad_lines,
            f"{counted(inputs.bad_lines, 'line')} could not be understood and {of_bad} set aside.",
        ),
        (gaps, f"Of {counted(gaps, 'minute')} within the period nothing is known: a sidecar was not running."),
        (lost, f"{counted(lost, 'record')} {of_lost} lost, so the figures are too small."),
        (
            other,
            f"{counted(other, 'run')} of requests had no room of their own and {of_other} counted as _other.",
        ),
        (bypassed, f"{counted(bypassed, 'request')} went past the limiter."),
        (off, f"Limiting was switched off for {counted(off, 'minute')}."),
    )
    return [line for number, line in candidates if number]


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
