"""The report in the terminal: what is known, storms, who was refused, what the limits should be, what to do next."""

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from admin.analytics import words
from admin.analytics.findings import Findings, Share, Storm
from admin.common.tables import Rows, printable
from admin.wire.recommendations import Recommendation

_MOST_STORMS: Final = 10
_MOST_CULPRITS: Final = 10
_MOST_RECOMMENDED: Final = 15
_TO_DO: Final = frozenset({"raise", "lower", "new"})


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
        yield from _section(
            f"Storms{_first(min(len(findings.storms), _MOST_STORMS), findings.totals.storms)}", _storms(findings)
        )
    if findings.culprits:
        yield from _section("Who was refused", _culprits(findings))
    if findings.recommendations:
        yield from _section("Recommended limits", _recommendations(findings))
    yield from _section("Next", Text("\n".join(_next(findings, html))))


def _section(heading: str, content: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    yield Text(heading, style="bold")
    yield Padding(content, (0, 0, 0, 2))


def _first(shown: int, of_all: int) -> str:
    return f", the largest {shown} of {of_all:,}" if shown < of_all else ""


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
    if not totals.refused:
        yield f"Nothing was refused of {words.counted(asked, 'message')}{words.waited(totals.held)}."
        return
    still = f", {totals.open_storms} of them may go on" if totals.open_storms else ""
    yield (
        f"{words.counted(totals.refused, 'message')} of {words.amount(asked)} refused"
        f" ({words.percent(totals.refused / asked)}), of {words.amount(totals.refused_resources)} of"
        f" {words.counted(totals.resources, 'resource')}, in {words.counted(totals.storms, 'storm')}{still}"
        f"{words.waited(totals.held)}"
    )


def _observed(findings: Findings) -> str:
    shown = findings.coverage[:3]
    if not shown:
        return ""
    each = ", ".join(f"{printable(one.instance)} {words.counted(one.minutes, 'minute')}" for one in shown)
    more = ", …" if findings.instance_count > len(shown) else ""
    return f" ({each}{more})"


def _storms(findings: Findings) -> Rows:
    return Rows(
        ("resource", "sidecar", "from", "for", "refused", "peak", "clients", "users", "producer groups", "by"),
        (_storm(each, several=findings.instance_count > 1) for each in findings.storms[:_MOST_STORMS]),
        right=(4, 5),
    ).used()


def _storm(storm: Storm, *, several: bool) -> tuple[str, ...]:
    return (
        words.resource(storm.kind, storm.name),
        storm.instance if several else "",
        words.moment(storm.start_s),
        words.duration(storm.end_s - storm.start_s) + ("+" if storm.is_open else ""),
        words.amount(storm.messages),
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
        (
            "client",
            "user",
            "producer group",
            "product",
            "resource",
            "sidecar",
            "refused",
            "requests",
            "share of resource",
        ),
        (
            (
                each.client,
                each.user,
                each.producer_group,
                each.product,
                words.resource(each.kind, each.name),
                each.instance if several else "",
                words.amount(each.messages),
                words.amount(each.requests),
                words.percent(each.share),
            )
            for each in findings.culprits[:_MOST_CULPRITS]
        ),
        right=(6, 7, 8),
    ).used()


def _recommendations(findings: Findings) -> RenderableType:
    by_action = findings.totals.recommendations
    shown = [each for each in findings.recommendations if _matters(each)][:_MOST_RECOMMENDED]
    rows = Rows(
        ("limit of", "sidecar", "do", "change", "refused then", "confidence", "because"),
        (_recommendation(each, several=findings.instance_count > 1) for each in shown),
    ).used()
    rest = []
    there: Counter[str] = Counter(each.action for each in shown)
    if (more := sum(by_action.get(action, 0) - there[action] for action in _TO_DO)) > 0:
        rest.append(f"{more:,} more to change")
    if kept := by_action.get("keep", 0) - there["keep"]:
        rest.append(f"{words.counted(kept, 'limit')} to leave as {'it is' if kept == 1 else 'they are'}")
    if unused := by_action.get("unused", 0):
        rest.append(f"{unused:,} never used")
    parts: list[RenderableType] = [rows] if shown else []
    if rest:
        parts.append(Text(("Besides: " if shown else "") + ", ".join(rest)))
    return Group(*parts)


def _matters(each: Recommendation) -> bool:
    """Tell whether there is something to do, or to explain: a limit that refused much and should stay."""
    return each.action in _TO_DO or bool(each.backtest.current and each.backtest.current.refused_messages)


def _recommendation(each: Recommendation, *, several: bool) -> tuple[str, ...]:
    return (
        words.resource(each.kind, each.name),
        each.instance if several else "",
        each.action,
        words.change(each),
        words.refusals(each),
        each.confidence,
        each.evidence,
    )


def _next(findings: Findings, html: Path) -> Iterator[str]:
    yield f"look at it:        {printable(str(html))}"
    if any(each.action in _TO_DO for each in findings.recommendations):
        file = printable(shlex.quote(f"{findings.out}/recommendations.json"))
        yield f"what would change: sluice limits apply {file} --dry-run"
        yield f"put it in force:   sluice limits apply {file}"
