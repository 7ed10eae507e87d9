"""What the page says, section by section; beside every chart stands a table with its figures."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from admin.analytics import words
from admin.analytics.edits import limit_line
from admin.analytics.findings import Curve, Findings, Point, Storm
from admin.analytics.page.charts import Chart, resource_words
from admin.analytics.page.markup import broken, table, text

_MOST_STEPS: Final = 24
"""Rows of the table beside a curve."""
_ACTIONS: Final[Mapping[str, str]] = {
    "raise": "Raise",
    "lower": "Lower",
    "new": "New limit",
    "keep": "Leave as it is",
    "unused": "Never used",
}


def body(findings: Findings, charts: Mapping[str, Chart]) -> str:
    """Return the inside of the page's body.

    Args:
        findings: what it says.
        charts: by their ids.
    """
    sections = [
        ("storms", "Storms", _storms(findings, charts)),
        ("demand", "Demand and limits", _demand(findings, charts)),
        ("culprits", "Who was refused", _culprits(findings, charts)),
        ("recommendations", "Recommended limits", _recommendations(findings, charts)),
        ("data", "What this is made of", _data(findings)),
    ]
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in sections)
    parts = [
        f'<section id="{name}" aria-labelledby="{name}-heading">'
        f'<h2 id="{name}-heading">{heading}</h2>\n{inside}</section>\n'
        for name, heading, inside in sections
    ]
    return (
        f'<a class="skip" href="#storms">Skip to the storms</a>\n<header>\n<p class="brand">Sluice</p>\n'
        f"<h1>What was refused, by whom, and what the limits should be</h1>\n{_lede(findings)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n{_cards(findings)}{_unknowns(findings)}'
        '<p class="note" id="no-charts">The charts need JavaScript; the tables have all their figures.</p>\n'
        f"{''.join(parts)}</main>\n<footer><p>Made {text(findings.made_at[:19].replace('T', ' '))} UTC by "
        "<code>sluice report</code>. All times are UTC. This file needs nothing else.</p></footer>\n"
    )


def _lede(findings: Findings) -> str:
    """Say it all in two sentences."""
    period = findings.period
    if period.from_s is None or period.until_s is None:
        return '<p class="lede">There is not one record in these logs.</p>\n'
    totals = findings.totals
    asked = totals.admitted + totals.refused
    when = f"From {words.span(period.from_s, period.until_s).replace(' (', ' UTC (')}"
    sidecars = words.counted(findings.instance_count, "sidecar")
    if not totals.refused:
        said = f"{when} {sidecars} refused nothing of {words.counted(asked, 'message')}{words.waited(totals.held)}."
        return f'<p class="lede">{text(said)}</p>\n'
    said = (
        f"{when} {sidecars} refused {words.amount(totals.refused)} of {words.counted(asked, 'message')}"
        f" ({words.percent(totals.refused / asked)}), in {words.counted(totals.storms, 'storm')} of"
        f" {words.counted(totals.refused_resources, 'resource')}{words.waited(totals.held)}."
    )
    if findings.storms:
        worst = findings.storms[0]
        said += f" The largest was of {resource_words(findings)(worst)}"
        if worst.clients:
            first = worst.clients[0]
            said += f"; {first.name} had {words.percent(first.share)} of it"
        said += "."
    return f'<p class="lede">{text(said)}</p>\n'


def _cards(findings: Findings) -> str:
    totals = findings.totals
    asked = totals.admitted + totals.refused
    todo = sum(totals.recommendations.get(action, 0) for action in ("raise", "lower", "new"))
    still = f", {totals.open_storms} may go on" if totals.open_storms else ""
    cards = (
        (
            "Messages refused",
            words.amount(totals.refused),
            f"{words.percent(totals.refused / asked)} of those asked for" if asked else "nothing was asked for",
        ),
        ("Storms", words.amount(totals.storms), f"refusals at most {findings.storm_gap_s} s apart{still}"),
        (
            "Resources refused",
            words.amount(totals.refused_resources),
            f"of {words.amount(totals.resources)} that were asked for",
        ),
        (
            "Limits to change",
            words.amount(todo),
            "raise, lower or new; see below" if todo else "leave them as they are",
        ),
    )
    items = "".join(
        f'<div class="card"><dt>{text(name)}</dt><dd><span class="big">{text(figure)}</span> {text(note)}</dd></div>\n'
        for name, figure, note in cards
    )
    return f'<dl class="cards">\n{items}</dl>\n'


def _unknowns(findings: Findings) -> str:
    lines = words.unknowns(findings)
    if not lines:
        return ""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<div class="note"><p>Not all is known:</p><ul>{items}</ul><p><a href="#data">The details</a></p></div>\n'


def _picture(
    charts: Mapping[str, Chart], chart_id: str, legend: Iterable[tuple[str, str]] = (), caption: str = ""
) -> str:
    chart = charts.get(chart_id)
    if chart is None:
        return ""
    keys = "".join(f'<span class="key {kind}">{text(what)}</span>' for kind, what in legend)
    under = f"<figcaption>{keys} {caption}</figcaption>" if keys or caption else ""
    return (
        f'<figure><div class="chart" id="{text(chart.id)}" role="img" aria-label="{text(chart.says)}" '
        f'style="height:{chart.height_px}px"></div>{under}</figure>\n'
    )


def _named(words_: str) -> str:
    return f'<span class="name">{broken(words_)}</span>'


def _muted(words_: str) -> str:
    return f'<span class="muted">{text(words_)}</span>'


def _more(shown: int, of_all: int, what: str, where: str) -> str:
    if of_all <= shown:
        return ""
    said = f"The first {shown} of {text(words.counted(of_all, what))}; all are in <code>{text(where)}</code>."
    return f'<p class="more">{said}</p>\n'


def _storms(findings: Findings, charts: Mapping[str, Chart]) -> str:
    if not findings.storms:
        return '<p class="none">Nothing was refused.</p>\n'
    name_of = resource_words(findings)
    rows = [
        (
            _named(name_of(storm)),
            f'<span class="moment">{text(words.moment(storm.start_s))}</span><br>{_muted(_until(storm))}',
            text(words.amount(storm.messages)),
            f"{text(words.rate(storm.peak_per_s))}<br>{_muted(words.moment(storm.peak_at_s)[11:])}",
            _shares(storm.clients, storm.client_count, "client"),
            _shares(storm.users, storm.user_count, "user"),
            _shares(storm.producer_groups, storm.producer_group_count, "group"),
            "<br>".join(f"<code>{broken(rule)}</code>" for rule in storm.rules),
        )
        for storm in findings.storms
    ]
    columns = ("Resource", "When", "Messages refused", "Peak", "Clients", "Users", "Producer groups", "Refused by")
    return (
        _picture(charts, "storms-chart", caption="A bar is how long; the dot, at its peak, how many messages.")
        + table("Storms, those with most messages refused first", columns, rows, right=(2, 3), hidden=True)
        + _more(len(rows), findings.totals.storms, "storm", f"{findings.tables}/storms")
    )


def _until(storm: Storm) -> str:
    return words.duration(storm.end_s - storm.start_s) + (", may go on" if storm.is_open else "")


def _shares(shares: Iterable[Any], count: int, what: str, most: int = 3) -> str:
    shown = list(islice(shares, most))
    if not any(each.name for each in shown):
        return ""
    # The share stays beside the last part of the name.
    lines = [f"{broken(each.name or 'none')}&nbsp;<b>{text(words.percent(each.share))}</b>" for each in shown]
    if count > len(shown):
        lines.append(f'<span class="muted">and {text(words.counted(count - len(shown), what))}</span>')
    return "<br>".join(lines)


def _demand(findings: Findings, charts: Mapping[str, Chart]) -> str:
    if not findings.curves:
        return '<p class="none">Nothing was asked for.</p>\n'
    name_of = resource_words(findings)
    return (
        '<div class="curves">'
        + "".join(_curve(curve, f"curve-{at}", name_of, charts) for at, curve in enumerate(findings.curves))
        + "</div>\n"
    )


def _curve(curve: Curve, chart_id: str, name_of: Callable[[Any], str], charts: Mapping[str, Chart]) -> str:
    limits = list(dict.fromkeys(piece.limit_per_s for piece in limit_line(curve)))
    limit = ", ".join(words.rate(each) for each in limits[:3]) + (", …" if len(limits) > 3 else "")
    legend = (("pass", "admitted"), ("refuse", "refused"), ("ghost", "busiest second"), ("limit", f"limit {limit}"))
    step = words.duration(curve.step_s)
    caption = f"Messages per second, means of {text(step)}"
    caption += ": so many minutes are drawn as one, so that there is room." if curve.step_s > 60 else "."
    rows = [
        (
            text(words.moment(part[0].at_s)),
            text(words.amount(round(sum(point.admitted_per_s for point in part) * curve.step_s))),
            text(words.amount(round(sum(point.refused_per_s for point in part) * curve.step_s))),
            text(words.rate(max(point.peak_per_s for point in part))),
            text(words.rate(part[-1].limit_per_s)),
        )
        for part in _parts(curve.points)
    ]
    columns = ("From", "Messages admitted", "Messages refused", "Busiest second", "Limit")
    figures = table(f"Demand of {text(name_of(curve))}", columns, rows, right=(1, 2, 3, 4), hidden=True)
    return (
        f"<article><h3>{_named(name_of(curve))}</h3>{_picture(charts, chart_id, legend, caption)}"
        f"<details><summary>The figures</summary>{figures}</details></article>\n"
    )


def _parts(points: tuple[Point, ...]) -> Iterable[tuple[Point, ...]]:
    """Cut a curve into as many parts as a table has room for."""
    each = -(-len(points) // _MOST_STEPS) or 1
    return (points[at : at + each] for at in range(0, len(points), each))


def _culprits(findings: Findings, charts: Mapping[str, Chart]) -> str:
    if not findings.culprits:
        return '<p class="none">Nobody.</p>\n'
    name_of = resource_words(findings)
    rows = [
        (
            f"<code>{broken(each.client)}</code>",
            broken(each.user),
            broken(each.producer_group),
            broken(each.product),
            _named(name_of(each)),
            text(words.amount(each.messages)),
            text(words.amount(each.requests)),
            text(words.size(each.size_bytes)),
            text(words.percent(each.share)),
        )
        for each in findings.culprits
    ]
    columns = (
        "Client",
        "User",
        "Producer group",
        "Product",
        "Resource",
        "Messages refused",
        "Requests",
        "Bytes",
        "Share of the resource's",
    )
    return _picture(
        charts, "culprits-chart", caption="Messages refused, and their share of all that were refused of the resource."
    ) + table("Who was refused, those with most messages refused first", columns, rows, (5, 6, 7, 8), hidden=True)


def _recommendations(findings: Findings, charts: Mapping[str, Chart]) -> str:
    if not findings.recommendations:
        return '<p class="none">There is too little to go by.</p>\n'
    several = findings.instance_count > 1
    rows = [
        (
            _named(words.resource(each.kind, each.name))
            + (f'<br><span class="muted">on {broken(each.instance)}</span>' if several else ""),
            f'<span class="tag {each.action}">{text(_ACTIONS[each.action])}</span>',
            text(words.change(each)),
            text(words.refusals(each) or "not replayed"),
            f'{text(each.evidence)} <span class="muted">Confidence: {text(each.confidence)}.</span>',
        )
        for each in findings.recommendations
    ]
    of_all = sum(findings.totals.recommendations.values())
    columns = ("Limit of", "What to do", "Change", "Would be refused", "Why")
    file = f"{findings.out}/recommendations.json"
    command = f"sluice limits apply {text(shlex.quote(file))}"
    todo = any(each.action in {"raise", "lower", "new"} for each in findings.recommendations)
    how = (
        f'<p class="how">To see what would change, and then to put it in force, with audit and revert:</p>'
        f"<pre><code>{command} --dry-run\n{command}</code></pre>\n"
        if todo
        else ""
    )
    return (
        '<p class="muted">What was asked for was replayed through each limit as it is and as recommended: “would be '
        "refused” is the share of messages then and now.</p>\n"
        + _picture(
            charts,
            "recommendations-chart",
            (("now", "now"), ("pass", "recommended")),
            "Messages per second, on a logarithmic scale.",
        )
        + table("Recommended limits, what is to be done first", columns, rows, hidden=True)
        + _more(len(rows), of_all, "recommendation", file)
        + how
    )


def _data(findings: Findings) -> str:
    inputs = findings.inputs
    # How many files are at an address, nobody counts.
    files = f"{words.counted(inputs.files, 'file')}, {words.size(inputs.size_bytes)}, " if inputs.files else ""
    read = f"{files}{words.counted(inputs.records, 'record')}"
    if inputs.duplicates:
        read += f", {words.amount(inputs.duplicates)} more that were copies"
    logs = "".join(f"<li><code>{text(log)}</code></li>" for log in inputs.logs)
    # Of what is followed nobody keeps count.
    what = f"Read: {text(read)}, from" if inputs.files or inputs.records else "Read as they come in:"
    return f"<p>{what}</p><ul>{logs}</ul>\n" + _coverage(findings) + _set_aside(findings) + _changes(findings)


def _coverage(findings: Findings) -> str:
    rows = [
        (
            _named(each.instance),
            text(words.span(each.from_s, each.until_s)),
            text(words.amount(each.minutes)),
            text(words.amount(each.gap_minutes)),
            text(words.amount(each.lost_records)),
            text(words.amount(each.other)),
            text(words.amount(each.bypassed_requests)),
            text(words.amount(each.limiting_off_minutes)),
            text(", ".join(each.versions)),
        )
        for each in findings.coverage
    ]
    columns = ("Sidecar", "From, to", "Minutes recorded", "Minutes missing", "Records lost", "Counted as _other", "Requests past the limiter", "Minutes switched off", "Version")  # fmt: skip  # noqa: E501
    if not rows:
        return ""
    return (
        "<h3>Sidecars</h3>"
        + table("What is known of each sidecar", columns, rows, range(2, 8), hidden=True)
        + _more(len(rows), findings.instance_count, "sidecar", f"{findings.tables}/coverage")
    )


def _set_aside(findings: Findings) -> str:
    inputs = findings.inputs
    if not inputs.set_aside:
        return ""
    rows = [
        (
            f"<code>{broken(each.file)}</code>",
            text(words.counted(each.lines, "line") if each.lines else "the file"),
            text(each.reason),
            f"<code>{text(each.example)}</code>" if each.example else "",
        )
        for each in inputs.set_aside
    ]
    return "<h3>Set aside</h3>" + table(
        "What was not read", ("File", "How much", "Why", "It begins"), rows, hidden=True
    )


def _changes(findings: Findings) -> str:
    if not findings.limit_changes:
        return ""
    rows = [
        (
            text(words.moment(each.at_s)),
            broken(each.instance),
            _named(f"{each.kind} {each.name}".strip() or "configuration"),
            text(each.action),
            text(words.edit(each)),
            text(each.by),
            text(each.reason),
        )
        for each in findings.limit_changes
    ]
    columns = ("When", "Sidecar", "Limit of", "What", "Rate", "By", "Why")
    return "<h3>Limits changed meanwhile</h3>" + table(
        "Live changes of limits, the latest first", columns, rows, hidden=True
    )
