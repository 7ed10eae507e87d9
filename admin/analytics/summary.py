"""Formats a report's results as text for the page and the terminal.

A table cell is a string, a list of strings, or a tuple of a string and notes about it.
"""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.padding import Padding
from rich.text import Text

from admin.analytics import words
from admin.analytics.words import Row, counted, listed, moment, percent, place, rate, resource
from admin.common.numbers import span as duration
from admin.common.recommendations import ACTIONS
from admin.common.tables import Rows, printable

Cells = dict[str, str | tuple[str, ...] | list[str]]
DO: Final = dict(zip(ACTIONS, ("Raise", "Share fairly", "Lower", "New limit", "Never used", "Keep"), strict=True))
RIGHT: Final = frozenset({"Messages refused", "Peak", "Bytes", "Share of the resource"})
_MAX_ROWS: Final = 10


def lede(of: Row) -> str:
    from_s, until_s = of["period"]["from"], of["period"]["until"]
    if from_s is None or until_s is None:
        return "These logs contain no records."
    totals = of["totals"]
    asked = totals["admitted"] + totals["refused"]
    said = f"From {words.span(from_s, until_s)}, {counted(of['instance_count'], 'sidecar')} refused "
    if totals["refused"]:
        where = f"{counted(totals['storms'], 'storm')} on {counted(totals['refused_resources'], 'resource')}"
        said += f"{totals['refused']:,} of {counted(asked, 'message')} ({percent(totals['refused'] / asked)}): {where}."
    else:
        said += f"none of {counted(asked, 'message')}."
    for name, one, text in (
        ("open_storms", "storm", "{} may not have ended."),
        ("held", "message", "{} had to wait for a limit."),
        ("shadowed", "message", "Limits in shadow mode would have refused {}."),
    ):
        if totals[name]:
            said += " " + text.format(counted(totals[name], one))
    return said


def unknowns(of: Row) -> Iterator[str]:
    inputs, totals = of["inputs"], of["totals"]
    unread = list(dict.fromkeys(each["file"] for each in inputs["set_aside"] if not each["lines"]))
    missing = totals["missing_minutes"]
    damaged = unread or inputs["bad_lines"]
    why = "it is unknown whether the sidecar was running" if damaged else "the sidecar was not running"
    if unread:
        yield f"Not read, or only in part: {listed([Path(each).name for each in unread])}."
    for count, one, text in (
        (inputs["bad_lines"], "line", "damaged or of unknown type, and ignored."),
        (totals["gap_minutes"] - missing, "minute", f"without records: {why}."),
        (missing, "minute", "without records although the sidecar was running."),
        (totals["lost_records"], "record", "lost: all amounts are lower bounds."),
        (totals["other"], "run", "of requests counted as _other: there were too many names to count each one."),
        (totals["bypassed_requests"], "request", "passed without a check by the limiter."),
        (totals["limiting_off_minutes"], "minute", "with limiting switched off."),
        (inputs["outside_files"], "file", "not opened: no records of this period, judging by their dates."),
    ):
        if count:
            yield f"{counted(count, one)} {text}"
    if killed := [f"{name} at about {moment(at_s)} UTC" for name, at_s in of["killed"]]:
        yield f"Killed: {listed(killed)}. Each time, up to ten seconds of traffic are missing."
    assumed = [located(each, of["instance_count"]) for each in of["recommendations"] if each["retries"] == "assumed"]
    if assumed:
        attempts = ", ".join(f"{name} {most}" for name, most in of["attempts"].items() if most > 1)
        yield (
            f"The number of attempts that clients make is assumed for {listed(assumed)}: {attempts}, others 1."
            " To set it: --attempts JAVA=1."
        )
    yield from (f"{sentence}." for sentence in of["recorded_twice"])
    for each in of["clocks"]:
        how = "later" if each["ahead_s"] > 0 else "earlier"
        by = duration(abs(each["ahead_s"]))
        yield f"The records of {each['instance']} are {by} {how} than the times of their files: its clock may be wrong."


def effect(of: Row) -> str:
    """Describe the effect of the recommended changes. Return an empty string if nothing was replayed."""
    tests = [each["backtest"] for each in of["recommendations"] if words.is_default(each)]
    now, then, others_now, others = (
        sum(each[side]["refused_messages"] for each in tests if each[side])
        for side in ("current", "recommended", "others_current", "others")
    )
    replayed = sum(each["current"] is not None for each in tests)
    said = f"In a replay of this log, {counted(replayed, 'changed limit')} would refuse {counted(then, 'message')}"
    said = f"{said}, compared with {now:,} under the current limits." if replayed else ""
    saved = f"at least {others_now - others:,} of the {counted(others_now, 'message')} refused in storms"
    shared = f" Fair shares would admit {saved} and sent by callers other than the largest." * bool(others_now)
    return (said + shared).strip()


def located(of: Row, sidecars: int) -> str:
    return f"{resource(of['kind'], of['name'])} {place(of, sidecars)}".strip()


def floods(of: Row) -> list[dict[str, Any]]:
    """Merge storms on different sidecars that belong to the same flood.

    ``peak_per_s`` is the highest peak on any one sidecar.
    """
    parts = defaultdict[tuple[Any, ...], list[Row]](list)
    for storm in of["storms"]:
        parts[tuple(storm[name] for name in ("shadow", "kind", "name", "flood_s"))].append(storm)
    return sorted(map(_flood, parts.values()), key=lambda each: (each["shadow"], -each["messages"], each["start_s"]))


def _flood(storms: Sequence[Row]) -> dict[str, Any]:
    flood = dict(max(storms, key=itemgetter("peak_per_s"))) | {
        "messages": storms[0]["flood_messages"],
        "requests": sum(each["requests"] for each in storms),
        "instances": list(dict.fromkeys(each["instance"] for each in storms)),
        "start_s": min(each["start_s"] for each in storms),
        "end_s": max(each["end_s"] for each in storms),
        "is_open": any(each["is_open"] for each in storms),
        "rules": list(dict.fromkeys(rule for each in storms for rule in each["rules"])),
    }
    for who in ("client", "user", "producer_group") if len(storms) > 1 else ():
        total = Counter[str]()
        for each in storms:
            total.update({share["name"]: share["messages"] for share in each[f"{who}s"]})
        flood[f"{who}s"] = [
            {"name": name, "messages": count, "share": count / (flood["messages"] or 1)}
            for name, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
        ]
        flood[f"{who}_count"] = max(len(total), *(each[f"{who}_count"] for each in storms))
    return flood


def storm_row(flood: Row, sidecars: int) -> Cells:
    shadow, most = "in shadow mode" if flood["shadow"] else "", f"most on {listed(flood['instances'])}"
    start, until = words.span(flood["start_s"], flood["end_s"]).split(" to ")
    until = f"to {until}" + ", may not have ended" * flood["is_open"]
    where = (place(flood, sidecars), most if flood["sidecars"] > 1 else "")
    return {
        "Resource": (resource(flood["kind"], flood["name"]), shadow, *where),
        "When": (start, until),
        "Messages refused": _messages(flood),
        "Peak": (rate(flood["peak_per_s"]), moment(flood["peak_at_s"])[11:]),
        "Clients": _shares(flood["clients"], flood["client_count"]),
        "Users": _shares(flood["users"], flood["user_count"]),
        "Producer groups": _shares(flood["producer_groups"], flood["producer_group_count"]),
        "Refused by": [*map(words.cause, flood["rules"])],
    }


def _messages(of: Row) -> tuple[str, str]:
    return f"{of['messages']:,}", counted(of["requests"], "request") if of["requests"] != of["messages"] else ""


def _shares(shares: Sequence[Row], count: int) -> list[str]:
    if not any(each["name"] for each in shares):
        return []
    shown = [f"{each['name'] or 'unnamed'} {percent(each['share'])}" for each in shares[:3]]
    return [*shown, f"and {count - len(shown)} more"] if count > len(shown) else shown


def culprit_row(each: Row, sidecars: int) -> Cells:
    return {
        "Client": each["client"],
        "User": each["user"],
        "Producer group": each["producer_group"],
        "Product": each["product"],
        "Resource": located(each, sidecars),
        "Messages refused": _messages(each),
        "Bytes": decimal(each["size_bytes"]),
        "Share of the resource": percent(each["share"]),
    }


def recommendation_row(each: Row, sidecars: int) -> Cells:
    return {
        "Limit of": (resource(each["kind"], each["name"]), place(each, sidecars)),
        "Change": (DO[each["action"]], words.change(each)),
        "Refused, now → then": words.replayed(each),
        "Why": each["evidence"],
        "Confidence": (each["confidence"], f"with {each['retries']} retries" if each["retries"] != "none" else ""),
    }


def tried_row(each: Row) -> Cells:
    share, uncorrected = (each.get(name) or 0.0 for name in ("refused_share", "refused_share_uncorrected"))
    retried = f"({percent(uncorrected)} with retries)" if share != uncorrected else ""
    return {
        "Resource": resource(each["kind"], each["name"]),
        "Sidecar": each["instance"],
        "Limit": rate(each["rate_per_s"]),
        "Would refuse": (percent(share), retried) if each["instance"] else "no demand under this name",
    }


def summary(of: Row, html: Path) -> RenderableType:
    return Group(*_parts(of, html))


def _parts(of: Row, html: Path) -> Iterator[RenderableType]:
    yield Text(lede(of))
    yield from (Text(f"Unknown: {line}", style="yellow") for line in unknowns(of))
    sidecars, advice = of["instance_count"], of["recommendations"]
    offered = [each for each in advice if each["only_with"]][:5]
    command = f"sluice limits apply {printable(shlex.quote(of['out'] + '/recommendations.json'))}"
    steps = [f"open the page:     {printable(str(html))}"]
    if any(map(words.is_default, advice)):
        steps += [f"show the changes:  {command} --dry-run", f"apply the changes: {command}"]
    flags = sorted({each["only_with"] for each in advice} - {""})
    steps += [f"show the offers:   {command} --{flag} --dry-run" for flag in flags]
    chosen = filter(words.needs_reading, advice)
    for heading, rows in (
        ("Storms", [storm_row(each, sidecars) for each in floods(of)]),
        ("Who was refused", [culprit_row(each, sidecars) for each in of["culprits"]]),
        ("Recommended limits", [recommendation_row(each, sidecars) for each in chosen]),
        ("Offered, not applied by default", [recommendation_row(each, sidecars) for each in offered]),
        ("Other rates", [tried_row(each) for each in of["tried"]]),
    ):
        if rows:
            yield Text(f"\n{heading}" + f", the first {_MAX_ROWS}" * (len(rows) > _MAX_ROWS), style="bold")
            right = [at for at, column in enumerate(rows[0]) if column in RIGHT]
            texts = ([_text(cell, first=column in RIGHT) for column, cell in row.items()] for row in rows[:_MAX_ROWS])
            yield Padding(Rows([column.lower() for column in rows[0]], texts, right).used(), (0, 0, 0, 2))
    yield Text("\nNext", style="bold")
    yield Padding(Text("\n".join(steps)), (0, 0, 0, 2))


def _text(cell: str | Sequence[str], *, first: bool) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, list):
        return cell[0] + " …" * (len(cell) > 1) if cell else ""
    return cell[0] if first else " ".join(filter(None, cell[:3]))
