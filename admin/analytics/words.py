"""How reports write times, amounts, rates and findings: in the terminal, on the page, and as evidence for advice."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec

from admin.common import numbers
from admin.common.numbers import percent as percent  # noqa: PLC0414 - for those who write with this module
from admin.common.recommendations import TO_DO, Recommendation, refusals

Row = Mapping[str, Any]

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S


def moment(at_s: int) -> str:
    """Write a second, UTC: ``2026-11-21 13:05:07``."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def between(start_s: int, end_s: int) -> str:
    """Write a start and an end, with the day once if it is the same: ``2026-11-21 13:05:07 to 13:09:10``."""
    start, end = moment(start_s), moment(end_s)
    return f"{start} to {end[11:] if start[:10] == end[:10] else end}"


def span(start_s: int, end_s: int) -> str:
    """Write a period with its length: ``2026-11-21 13:05:07 to 13:09:10 (4 min 3 s)``."""
    return f"{between(start_s, end_s)} ({duration(end_s - start_s)})"


def duration(seconds: int) -> str:
    """Write a length of time in at most two units: ``2 d 4 h``, ``4 min 3 s``, ``12 s``."""
    units = (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S), ("s", 1))
    at = next((at for at, (_, size) in enumerate(units) if seconds >= size), len(units) - 1)
    whole, rest = divmod(seconds, units[at][1])
    text = f"{whole} {units[at][0]}"
    if at + 1 < len(units) and (more := rest // units[at + 1][1]):
        text += f" {more} {units[at + 1][0]}"
    return text


def span_words(seconds: float) -> str:
    """Write a length of time in its largest unit: ``7 days``, ``3 hours``, ``2 minutes``."""
    for size, unit in ((DAY_S, "day"), (HOUR_S, "hour"), (MINUTE_S, "minute")):
        # 6 days and 23.5 hours are 7 days to a reader.
        if seconds >= size * 0.98:
            count = round(seconds / size, 1 if seconds < 10 * size else 0)
            text = f"{count:.1f}".removesuffix(".0")
            return f"{text} {unit}{'s' * (text != '1')}"
    return f"{seconds:.0f} second{'s' * (round(seconds) != 1)}"


def amount(number: int) -> str:
    """Write a count: ``1,234``."""
    return f"{number:,}"


def counted(number: int, one: str, many: str = "") -> str:
    """Write a count with its noun: ``1 storm``, ``2 storms``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """Write a list: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def rate(per_s: float | None, unit: str = "") -> str:
    """Write a rate: ``500/s``, ``0.5/s``, ``unlimited``, or with a unit ``4,096 bytes/s``."""
    if per_s is None:
        return "unlimited"
    unit = f" {unit}" if unit else ""
    decimals = 0 if per_s >= 100 else 1 if per_s >= 1 else 3
    return f"{numbers.number(per_s, decimals, grouped=True)}{unit}/s"


def size(size_bytes: int) -> str:
    """Write bytes: ``512 bytes``, ``1.5 MB``."""
    from rich.filesize import decimal  # noqa: PLC0415 - Spark's Python may not have it

    return decimal(size_bytes)


def growth(now: int, before: int) -> str:
    """Write a change of an amount: ``+12%``, ``12 times``, ``new``, ``as before``."""
    if not before or not now:
        return "new" if now else "none now" if before else ""
    times = now / before
    if times >= 10:
        return f"{times:,.0f} times"
    change = round((times - 1) * 100)
    return f"{change:+}%".replace("-", "\N{MINUS SIGN}") if change else "as before"


# Resources, callers and limits.


def resource(kind: str, name: str) -> str:
    """Name a resource, with its kind unless it is the main one of a protocol."""
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - Spark's Python has no protocols, and needs none

    firsts = (each.name for protocol in own_protocols() for each in protocol.kinds[:1])
    return name if kind in firsts else f"{kind} {name}"


def caller(of: Row) -> str:
    """Name a caller by all that is known of it: ``10.0.0.7 (user billing, group imports)``."""
    known = [f"{what} {of[name]}" for name, what in (("user", "user"), ("producer_group", "group")) if of[name]]
    return f"{of['client']} ({', '.join(known)})" if known else str(of["client"])


def change(of: Row) -> str:
    """Write the change that a recommendation makes: ``300/s → 450/s``, or ``300/s`` if it stays."""
    unit = "requests" if of["count"] == "requests" else ""
    parts = []
    for name, what in (("rate_per_s", unit), ("bytes_per_s", "bytes")):
        now, then = of[name], of[f"recommended_{name}"]
        if what == "bytes" and now is None and then is None:
            continue
        same = now == then or then is None or of["action"] in {"keep", "unused"}
        parts.append(rate(now, what) if same else f"{rate(now, what)} → {rate(then, what)}")
    if of["fair_by"]:
        parts.append(f"in fair shares by {of['fair_by'].replace('_', ' ')}")
    return ", ".join(parts)


def replayed(of: Row) -> str:
    """Write the share refused in a replay, now and then; empty without a replay."""
    return refusals(msgspec.convert(of, Recommendation))


def retries(of: Row) -> str:
    """Say how the retries in the demand are known; empty without retries."""
    return "" if of["retries"] == "none" else f"retries {of['retries']}"


def edit(of: Row) -> str:
    """Write a live change of a resource's own limit: ``300/s → 450/s``, ``own limit: none → 450/s``."""
    before, after = of["rate_before_per_s"], of["rate_after_per_s"]
    if before is not None and after is not None:
        return f"{rate(before)} → {rate(after)}"
    sides = ("none" if each is None else rate(each) for each in (before, after))
    return "" if before is after is None else f"own limit: {' → '.join(sides)}"


def is_default(of: Row) -> bool:
    """Tell whether ``sluice limits apply`` makes this change without a flag."""
    return of["action"] in TO_DO and not of["only_with"]


def needs_reading(of: Row) -> bool:
    """Tell whether a recommendation is a change to make, or keeps a limit that refused messages."""
    current = of["backtest"]["current"]
    return is_default(of) or (not of["only_with"] and bool(current and current["refused_messages"]))


def to_change(totals: Row) -> int:
    """Return the number of changes that are made by default."""
    every: int = sum(totals["recommendations"].get(each, 0) for each in TO_DO)
    return every - sum(map(int, totals["offered"].values()))


def effect(of: Row) -> str:
    """Say what the changes would do, by the replay; empty without one."""
    tests = [each["backtest"] for each in of["recommendations"] if is_default(each)]
    sides = [(each["current"], each["recommended"]) for each in tests if each["current"] and each["recommended"]]
    if not sides:
        return ""
    now, then = (sum(each["refused_messages"] for each in side) for side in zip(*sides, strict=True))
    return (
        f"Replayed over this log, {counted(len(sides), 'changed limit')} would refuse {counted(then, 'message')}."
        f" In the same replay, the present limits refuse {amount(now)}."
    )


# Storms.


def refused(*, shadow: bool) -> str:
    """Say what a limit did to messages, or would have done."""
    return "would have been refused" if shadow else "refused"


def when(storm: Row) -> str:
    """Write the period of a storm."""
    return span(storm["start_s"], storm["end_s"]) + (", may not be over" if storm["is_open"] else "")


def floods(of: Row) -> list[Row]:
    """Merge the storms that are one flood of a resource at several sidecars. The largest is first.

    Returns:
        rows like storms, with the names of the ``instances`` shown, largest first. ``peak_per_s`` is of one sidecar.
    """

    def by_resource(storm: Row) -> tuple[Any, ...]:
        return (storm["kind"], storm["name"], storm["shadow"], "" if storm["sidecars"] > 1 else storm["instance"])

    found = []
    for _, storms in groupby(sorted(of["storms"], key=lambda each: (by_resource(each), each["start_s"])), by_resource):
        parts: list[Row] = []
        for storm in storms:
            if parts and storm["start_s"] - max(each["end_s"] for each in parts) > of["storm_gap_s"]:
                found.append(_merged(parts))
                parts = []
            parts.append(storm)
        found.append(_merged(parts))
    return sorted(found, key=lambda each: (-each["messages"], each["start_s"]))


def _merged(storms: list[Row]) -> Row:
    storms = sorted(storms, key=itemgetter("messages"), reverse=True)
    peak = max(storms, key=itemgetter("peak_per_s"))
    sums = {name: sum(each[name] for each in storms) for name in ("requests", "messages", "size_bytes")}
    merged = dict(storms[0]) | sums | {
        "instances": list(dict.fromkeys(each["instance"] for each in storms)),
        "start_s": min(each["start_s"] for each in storms),
        "end_s": max(each["end_s"] for each in storms),
        "peak_per_s": peak["peak_per_s"],
        "peak_at_s": peak["peak_at_s"],
        "is_open": any(each["is_open"] for each in storms),
        "rules": list(dict.fromkeys(rule for each in storms for rule in each["rules"])),
    }  # fmt: skip
    for who in ("client", "user", "producer_group"):
        total = Counter[str]()
        for each in storms:
            total.update({share["name"]: share["messages"] for share in each[f"{who}s"]})
        merged[f"{who}s"] = [
            {"name": name, "messages": count, "share": count / (sums["messages"] or 1)}
            for name, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
        ]
        merged[f"{who}_count"] = max(len(total), *(each[f"{who}_count"] for each in storms))
    return merged


def place(of: Row, instance_count: int) -> str:
    """Say where a resource is limited or was flooded; empty if there is one sidecar only."""
    if of.get("sidecars", 1) > 1:
        return f"at {counted(of['sidecars'], 'sidecar')}"
    return f"on {of['instance']}" if instance_count > 1 else ""


def located(of: Row, instance_count: int) -> str:
    """Name the resource of a row, and where it is."""
    return f"{resource(of['kind'], of['name'])} {place(of, instance_count)}".strip()


# The whole report.


def lede(of: Row) -> str:
    """Summarise a report in a few sentences."""
    from_s, until_s = of["period"]["from"], of["period"]["until"]
    if from_s is None or until_s is None:
        return "These logs contain no records."
    totals = of["totals"]
    asked = totals["admitted"] + totals["refused"]
    period = f"{between(from_s, until_s)} UTC ({duration(until_s - from_s)})"
    said = f"From {period}, {counted(of['instance_count'], 'sidecar')} refused "
    if totals["refused"]:
        where = f"{counted(totals['storms'], 'storm')} on {counted(totals['refused_resources'], 'resource')}"
        share = percent(totals["refused"] / asked)
        said += f"{amount(totals['refused'])} of {counted(asked, 'message')} ({share}): {where}."
    else:
        said += f"none of {counted(asked, 'message')}."
    if totals["open_storms"]:
        said += f" {counted(totals['open_storms'], 'storm')} may not be over."
    if totals["held"]:
        said += f" {counted(totals['held'], 'message')} had to wait for a limit."
    if totals["shadowed"]:
        storms = f" in {counted(totals['shadow_storms'], 'storm')}" if totals["shadow_storms"] else ""
        said += (
            f" Limits in shadow mode would have refused {counted(totals['shadowed'], 'message')}{storms}; all passed."
        )
    return said


def unknowns(of: Row) -> list[str]:
    """List what a report does not know."""
    inputs, totals = of["inputs"], of["totals"]
    missing = totals["missing_minutes"]
    damaged = ", or its file is damaged or missing" if inputs["skipped_files"] else ""
    candidates = (
        (inputs["skipped_files"], "file", "damaged or unreadable."),
        (inputs["outside_files"], "file", "not opened: by name or date, from other days."),
        (inputs["bad_lines"], "line", "not understood and left out."),
        (totals["gap_minutes"] - missing, "minute", f"without records: the sidecar was not running{damaged}."),
        (missing, "minute", "without records although the sidecar was running: its records are missing."),
        (totals["lost_records"], "record", "lost: all amounts are lower bounds."),
        (totals["other"], "run", "of requests counted as _other: there were too many names to count each."),
        (totals["bypassed_requests"], "request", "passed without a check by the limiter."),
        (totals["limiting_off_minutes"], "minute", "with limiting switched off."),
    )
    return [f"{counted(number, one)} {text}" for number, one, text in candidates if number] + list(
        _clocks(of["clocks"])
    )


def _clocks(clocks: Iterable[Row]) -> Iterable[str]:
    for ahead_s, rows in groupby(sorted(clocks, key=itemgetter("ahead_s", "instance")), itemgetter("ahead_s")):
        names = [each["instance"] for each in rows]
        log, ends, clock = ("log", "ends", "its clock") if len(names) == 1 else ("logs", "end", "their clocks")
        yield f"The {log} of {listed(names)} {ends} {duration(ahead_s)} after the others: {clock} may be ahead."


def weeks(week: Row) -> str:
    """Say which weeks are compared."""
    this, before = (
        f"{moment(week[f'{name}from_s'])[:16]} to {moment(week[f'{name}until_s'])[:16]}" for name in ("", "before_")
    )
    return f"{this}, compared with {before}"
