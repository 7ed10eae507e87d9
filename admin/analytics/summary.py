"""The report in the terminal, from the same results as the page, which has more."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from admin.analytics import words
from admin.common.recommendations import TO_DO
from admin.common.tables import Rows, printable

Row = Mapping[str, Any]
_MAX_STORMS: Final = 10
_MAX_CULPRITS: Final = 10
_MAX_RECOMMENDED: Final = 15
_MAX_OFFERED: Final = 5


def summary(of: Row, html: Path) -> RenderableType:
    """Lay out the results of a report, see ``report.results``, and where the page is."""
    return Group(*_parts(of, html))


def _parts(of: Row, html: Path) -> Iterator[RenderableType]:
    yield Text(words.lede(of))
    yield from (Text(f"Unknown: {line}", style="yellow") for line in words.unknowns(of))
    totals, sidecars = of["totals"], of["instance_count"]
    if floods := words.floods(of)[:_MAX_STORMS]:
        count = totals["storms"] + totals["shadow_storms"]
        shadow = f", {totals['shadow_storms']:,} of them in shadow" if totals["shadow_storms"] else ""
        first = f", the largest of {count:,}" if count > sum(len(each["instances"]) for each in floods) else ""
        yield from _section(f"Storms{first}{shadow}", _storms(floods, sidecars))
    if of["culprits"]:
        yield from _section("Who was refused", _culprits(of["culprits"][:_MAX_CULPRITS], sidecars))
    if of["recommendations"]:
        yield from _section("Recommended limits", _recommendations(of))
    for flag, heading in (("lower", "could be lower"), ("raise", "could be higher")):
        if offered := [each for each in of["recommendations"] if each["only_with"] == flag]:
            count = max(len(offered), totals["offered"].get(flag, 0))
            first = f", the first {_MAX_OFFERED} of {count:,}" if count > _MAX_OFFERED else ""
            yield from _section(f"Offered: {heading}{first}", _recommended(offered[:_MAX_OFFERED], sidecars))
    if of["tried"]:
        yield from _section("Other rates", _tried(of["tried"]))
    yield from _section("Next", Text("\n".join(_next(of, html))))


def _section(heading: str, content: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    yield Text(heading, style="bold")
    yield Padding(content, (0, 0, 0, 2))


def _storms(floods: Iterable[Row], sidecars: int) -> Rows:
    columns = ("resource", "where", "from", "for", "refused", "peak", "clients", "users", "producer groups", "by")
    rows = (
        (
            words.resource(each["kind"], each["name"]),
            ("one flood " if each["sidecars"] > 1 else "") + words.place(each, sidecars),
            words.moment(each["start_s"]),
            words.duration(each["end_s"] - each["start_s"]) + ("+" if each["is_open"] else ""),
            words.amount(each["messages"]) + (" in shadow" if each["shadow"] else ""),
            words.rate(each["peak_per_s"]),
            *(_shares(each[f"{who}s"], each[f"{who}_count"]) for who in ("client", "user", "producer_group")),
            ", ".join(each["rules"]),
        )
        for each in floods
    )
    return Rows(columns, rows, right=(4, 5)).used()


def _shares(shares: Sequence[Row], count: int) -> str:
    if not any(each["name"] for each in shares):
        return ""
    shown = [f"{each['name'] or 'unnamed'} {words.percent(each['share'])}" for each in shares[:2]]
    return ", ".join([*shown, *([f"{count - len(shown)} more"] if count > len(shown) else [])])


def _culprits(culprits: Iterable[Row], sidecars: int) -> Rows:
    columns = ("client", "user", "producer group", "product", "resource", "refused", "share of resource")
    rows = (
        (
            *(each[name] for name in ("client", "user", "producer_group", "product")),
            words.located(each, sidecars),
            words.amount(each["messages"]),
            words.percent(each["share"]),
        )
        for each in culprits
    )
    return Rows(columns, rows, right=(5, 6)).used()


def _recommendations(of: Row) -> RenderableType:
    by_action = of["totals"]["recommendations"]
    shown = [each for each in of["recommendations"] if words.needs_reading(each)][:_MAX_RECOMMENDED]
    more = words.to_change(of["totals"]) - sum(each["action"] in TO_DO for each in shown)
    kept = by_action.get("keep", 0) - sum(each["action"] == "keep" for each in shown)
    unused = by_action.get("unused", 0)
    rest = [
        *([words.counted(more, "more change")] if more > 0 else []),
        *([f"{words.counted(kept, 'limit')} to keep"] if kept else []),
        *([f"{words.counted(unused, 'limit')} never used"] if unused else []),
    ]
    return Group(
        *([_recommended(shown, of["instance_count"])] if shown else []),
        *([Text(f"{'Also: ' if shown else ''}{', '.join(rest)}")] if rest else []),
    )


def _recommended(shown: Iterable[Row], sidecars: int) -> Rows:
    columns = ("limit of", "do", "change", "refused, now → then", "confidence", "because")
    rows = (
        (
            words.located(each, sidecars),
            each["action"],
            words.change(each),
            words.replayed(each),
            ", ".join(filter(None, (each["confidence"], words.retries(each)))),
            each["evidence"],
        )
        for each in shown
    )
    return Rows(columns, rows).used()


def _tried(tried: Iterable[Row]) -> Rows:
    rows = (
        (words.resource(each["kind"], each["name"]), each["instance"], words.rate(each["rate_per_s"]), _would(each))
        for each in tried
    )
    return Rows(("resource", "sidecar", "limit", "would refuse"), rows).used()


def _would(tried: Row) -> str:
    if not tried["instance"]:
        return "no demand under this name"
    share, uncorrected = tried["refused_share"], tried["refused_share_uncorrected"]
    if share is None or share == uncorrected:
        return words.percent(share or 0.0)
    return f"{words.percent(share)} without retries, {words.percent(uncorrected)} with them"


def _next(of: Row, html: Path) -> Iterator[str]:
    yield f"open the page:     {printable(str(html))}"
    command = f"sluice limits apply {printable(shlex.quote(of['out'] + '/recommendations.json'))}"
    if any(map(words.is_default, of["recommendations"])):
        yield f"see the changes:   {command} --dry-run"
        yield f"make the changes:  {command}"
    for flag in sorted({each["only_with"] for each in of["recommendations"]} - {""}):
        yield f"see the offers:    {command} --{flag} --dry-run"
