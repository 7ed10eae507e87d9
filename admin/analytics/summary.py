"""The report in the terminal: what is known, storms, who was refused, what the limits should be, what to do next.

What else there is, of weeks, of what is new and of sidecars together, stands in the page.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from admin.analytics import words
from admin.analytics.findings import Findings, Share, Storm
from admin.common.recommendations import TO_DO, Recommendation, refusals
from admin.common.tables import Rows, printable

_MAX_STORMS: Final = 10
_MAX_CULPRITS: Final = 10
_MAX_RECOMMENDED: Final = 15
_MAX_OTHERS: Final = 5
"""Rows of what is told in brief."""


def summary(findings: Findings, html: Path) -> RenderableType:
    """Lay out what was found.

    Args:
        findings: all of it.
        html: where the page is.
    """
    return Group(*_parts(findings, html))


def _parts(findings: Findings, html: Path) -> Iterator[RenderableType]:
    yield Text("\n".join(_head(findings)))
    for line in words.unknowns(findings):
        yield Text(f"Attention: {line}", style="yellow")
    if findings.storms:
        of_all = findings.totals.storms + findings.totals.shadow_storms
        first = _first(min(len(findings.storms), _MAX_STORMS), of_all, "largest")
        shadow = f", {findings.totals.shadow_storms:,} of them in shadow" if findings.totals.shadow_storms else ""
        yield from _section(f"Storms{first}{shadow}", _storms(findings))
    if findings.culprits:
        yield from _section("Who was refused", _culprits(findings))
    if findings.recommendations:
        yield from _section("Recommended limits", _recommendations(findings))
        for only_with, heading in (("lower", "could be lower"), ("raise", "could be higher")):
            if offered := [each for each in findings.recommendations if each.only_with == only_with]:
                of_all = max(len(offered), findings.totals.offered.get(only_with, 0))
                first = _first(min(len(offered), _MAX_OTHERS), of_all, "first")
                yield from _section(f"Offered: {heading}{first}", _recommended(offered[:_MAX_OTHERS], findings))
    if findings.tried:
        yield from _section("What other rates would have refused", _tried(findings))
    yield from _section("Next", Text("\n".join(_next(findings, html))))


def _section(heading: str, content: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    yield Text(heading, style="bold")
    yield Padding(content, (0, 0, 0, 2))


def _first(shown: int, of_all: int, which: str) -> str:
    return f", the {which} {shown} of {of_all:,}" if shown < of_all else ""


def _head(findings: Findings) -> Iterator[str]:
    period, totals = findings.period, findings.totals
    if period.from_s is None or period.until_s is None:
        yield "There is not one record in these logs."
        return
    yield (
        f"{words.span(period.from_s, period.until_s)} UTC, {words.counted(findings.instance_count, 'sidecar')}"
        f"{_observed(findings)}"
    )
    asked = totals.admitted + totals.refused
    if totals.refused:
        still = f", {totals.open_storms} of them may go on" if totals.open_storms else ""
        yield (
            f"{words.counted(totals.refused, 'message')} of {words.amount(asked)} refused"
            f" ({words.percent(totals.refused / asked)}), of {words.amount(totals.refused_resources)} of"
            f" {words.counted(totals.resources, 'resource')}, in {words.counted(totals.storms, 'storm')}{still}"
            f"{words.waited(totals.held)}"
        )
    else:
        yield f"Nothing was refused of {words.counted(asked, 'message')}{words.waited(totals.held)}."
    if totals.shadowed:
        yield words.shadowed(totals)


def _observed(findings: Findings) -> str:
    shown = findings.coverage[:3]
    if not shown:
        return ""
    each = ", ".join(f"{printable(one.instance)} {words.counted(one.minutes, 'minute')}" for one in shown)
    more = ", …" if findings.instance_count > len(shown) else ""
    return f" ({each}{more})"


def _storms(findings: Findings) -> Rows:
    advice = {(each.instance, each.kind, each.name): each for each in findings.recommendations}
    several = findings.instance_count > 1
    return Rows(
        ("resource", "sidecar", "from", "for", "refused", "peak", "clients", "users", "producer groups", "by", "limit"),
        (
            (*_storm(each, several=several), _todo(advice.get((each.instance, each.kind, each.name))))
            for each in findings.storms[:_MAX_STORMS]
        ),
        right=(4, 5),
    ).used()


def _todo(advice: Recommendation | None) -> str:
    """Say in a word or two what to do about the limit of a storm's resource."""
    return "" if advice is None else f"{advice.action} {words.change(advice)}"


def _storm(storm: Storm, *, several: bool) -> tuple[str, ...]:
    return (
        words.resource(storm.kind, storm.name),
        storm.instance if several else "",
        words.moment(storm.start_s),
        words.duration(storm.end_s - storm.start_s) + ("+" if storm.is_open else ""),
        words.amount(storm.messages) + (" in shadow" if storm.shadow else ""),
        words.rate(storm.peak_per_s),
        _shares(storm.clients, storm.client_count),
        _shares(storm.users, storm.user_count),
        _shares(storm.producer_groups, storm.producer_group_count),
        ", ".join(storm.rules),
    )


def _shares(shares: tuple[Share, ...], count: int) -> str:
    if not any(each.name for each in shares):
        return ""
    shown = [f"{each.name or 'none'} {words.percent(each.share)}" for each in shares[:2]]
    if count > len(shown):
        shown.append(f"{count - len(shown)} more")
    return ", ".join(shown)


def _culprits(findings: Findings) -> Rows:
    several = findings.instance_count > 1
    return Rows(
        ("client", "user", "producer group", "product", "resource", "sidecar", "refused", "share of resource"),
        (
            (
                each.client,
                each.user,
                each.producer_group,
                each.product,
                words.resource(each.kind, each.name),
                each.instance if several else "",
                words.amount(each.messages),
                words.percent(each.share),
            )
            for each in findings.culprits[:_MAX_CULPRITS]
        ),
        right=(6, 7),
    ).used()


def _recommendations(findings: Findings) -> RenderableType:
    by_action = findings.totals.recommendations
    matter = [each for each in findings.recommendations if _matters(each)][:_MAX_RECOMMENDED]
    rest = []
    if (more := words.to_change(findings.totals) - sum(each.action in TO_DO for each in matter)) > 0:
        rest.append(f"{more:,} more to change")
    if kept := by_action.get("keep", 0) - sum(each.action == "keep" for each in matter):
        rest.append(f"{words.counted(kept, 'limit')} to leave as {'it is' if kept == 1 else 'they are'}")
    if unused := by_action.get("unused", 0):
        rest.append(f"{unused:,} never used")
    parts: list[RenderableType] = [_recommended(matter, findings)] if matter else []
    if rest:
        parts.append(Text(("Besides: " if matter else "") + ", ".join(rest)))
    return Group(*parts)


def _recommended(shown: Iterable[Recommendation], findings: Findings) -> Rows:
    several = findings.instance_count > 1
    return Rows(
        ("limit of", "sidecar", "do", "change", "refused then", "confidence", "because"),
        (
            (
                words.resource(each.kind, each.name),
                each.instance if several else "",
                each.action,
                words.change(each),
                refusals(each),
                ", ".join(filter(None, (each.confidence, words.retries(each)))),
                each.evidence,
            )
            for each in shown
        ),
    ).used()


def _tried(findings: Findings) -> Rows:
    return Rows(
        ("resource", "sidecar", "limit", "would have refused"),
        (
            (
                words.resource(each.kind, each.name),
                each.instance,
                words.rate(each.rate_per_s),
                "nothing was asked for under this name"
                if not each.instance
                else "nothing: it is never that much"
                if each.refused_share is None or each.refused_share_uncorrected is None
                else words.percent(each.refused_share)
                if each.refused_share == each.refused_share_uncorrected
                else f"{words.percent(each.refused_share)} without retries,"
                f" {words.percent(each.refused_share_uncorrected)} of all",
            )
            for each in findings.tried
        ),
    ).used()


def _matters(each: Recommendation) -> bool:
    """Tell whether there is something to do, or to explain: a limit that refused much and should stay."""
    refused = each.backtest.current and each.backtest.current.refused_messages
    return not each.only_with and (each.action in TO_DO or bool(refused))


def _next(findings: Findings, html: Path) -> Iterator[str]:
    yield f"look at it:        {printable(str(html))}"
    file = printable(shlex.quote(f"{findings.out}/recommendations.json"))
    if any(each.action in TO_DO and not each.only_with for each in findings.recommendations):
        yield f"what would change: sluice limits apply {file} --dry-run"
        yield f"put it in force:   sluice limits apply {file}"
    for only_with in sorted({each.only_with for each in findings.recommendations if each.only_with}):
        yield f"what is offered:   sluice limits apply {file} --{only_with}"
