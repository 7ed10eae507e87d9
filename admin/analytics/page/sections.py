"""What the page says, section by section; beside every chart stands a table with its figures."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from admin.analytics import words
from admin.analytics.findings import Culprit, Curve, Findings, New, Point, Share, Storm
from admin.analytics.page import limits
from admin.analytics.page.charts import around, resource_words, when, whole
from admin.analytics.page.markup import barred, broken, label, more, muted, named, table, text

_MAX_STEPS: Final = 24
"""Rows of the table beside a curve."""
_RANGES: Final = (("7 d", "Last seven days", 7 * words.DAY_S), ("1 d", "Last day", words.DAY_S), ("1 h", "Last hour", words.HOUR_S))  # fmt: skip  # noqa: E501
_MOVES: Final = (
    ("&lsaquo;", "Earlier", "-0.5,1"),
    ("&rsaquo;", "Later", "0.5,1"),
    ("+", "Closer", "0,0.5"),
    ("&minus;", "Wider", "0,2"),
)
"""Buttons that move the time, by parts of it, and make it longer."""


def body(findings: Findings) -> str:
    """Return the inside of the page's body.

    Args:
        findings: what it says.
    """
    over_time = [("storms", "Storms", _storms(findings)), ("demand", "Demand and limits", _demand(findings))]
    others = [
        ("culprits", "Who was refused", _culprits(findings)),
        ("recommendations", "Recommended limits", limits.recommendations(findings)),
        ("fleet", "Limits of all sidecars together", limits.fleets(findings)),
        ("week", "This week and the week before", _week(findings)),
        ("new", "What is new", _new(findings)),
        ("data", "What this is made of", _data(findings)),
    ]
    others = [each for each in others if each[2]]
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in over_time + others)
    return (
        f'<a class="skip" href="#storms">Skip to the storms</a>\n<header>\n<p class="brand">Sluice</p>\n'
        f"<h1>What was refused, by whom, and what the limits should be</h1>\n{_lede(findings)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n'
        f"{_largest(findings)}{_cards(findings)}{_unknowns(findings)}"
        '<p class="note" id="no-charts">The charts need JavaScript; the tables have all their figures.</p>\n'
        f"<div>{_times(findings)}{''.join(map(_section, over_time))}</div>\n{''.join(map(_section, others))}</main>\n"
        f"<footer><p>Made {text(findings.made_at[:19].replace('T', ' '))} UTC by "
        "<code>sluice report</code>. All times are UTC. This file needs nothing else.</p></footer>\n"
    )


def _section(named: tuple[str, str, str]) -> str:
    name, heading, inside = named
    return (
        f'<section id="{name}" aria-labelledby="{name}-heading">'
        f'<h2 id="{name}-heading">{heading}</h2>\n{inside}</section>\n'
    )


def _lede(findings: Findings) -> str:
    """Say it all in a sentence."""
    period = findings.period
    if period.from_s is None or period.until_s is None:
        return '<p class="lede">There is not one record in these logs.</p>\n'
    totals = findings.totals
    asked = totals.admitted + totals.refused
    said = (
        f"From {words.span(period.from_s, period.until_s).replace(' (', ' UTC (')}"
        f" {words.counted(findings.instance_count, 'sidecar')} refused"
    )
    if totals.refused:
        said += (
            f" {words.amount(totals.refused)} of {words.counted(asked, 'message')}"
            f" ({words.percent(totals.refused / asked)}), in {words.counted(totals.storms, 'storm')} of"
            f" {words.counted(totals.refused_resources, 'resource')}{words.waited(totals.held)}."
        )
    else:
        said += f" nothing of {words.counted(asked, 'message')}{words.waited(totals.held)}."
    return f'<p class="lede">{text(f"{said} {words.shadowed(totals)}".strip())}</p>\n'


def _largest(findings: Findings) -> str:
    """Say of the largest storm when it was, whose, how much, and what to do."""
    if not findings.storms:
        return ""
    storm = findings.storms[0]
    who = (
        ("", _shares(storm.clients, storm.client_count, "client", ", ")),
        ("users: ", _shares(storm.users, storm.user_count, "user", ", ")),
        ("producer groups: ", _shares(storm.producer_groups, storm.producer_group_count, "group", ", ")),
    )
    much = f"{words.counted(storm.messages, 'message')} {words.refused(shadow=storm.shadow)}"
    advice = next((each for each in findings.recommendations if _of(each) == _of(storm)), None)
    todo = "" if advice is None else f"{limits.tag(advice)} {text(words.change(advice))}<br>{text(advice.evidence)}<br>"
    answers = (
        ("What", named(resource_words(findings)(storm))),
        ("When", text(when(storm))),
        ("Who", "<br>".join(f"{what}{shares}" for what, shares in who if shares)),
        ("How much", f"{text(much)}, at most {text(words.rate(storm.peak_per_s))}"),
        ("What to do", f'{todo}<a href="#recommendations">All recommended limits</a>'),
    )
    items = "".join(f"<div><dt>{name}</dt><dd>{said}</dd></div>\n" for name, said in answers if said)
    return (
        '<section id="largest" aria-labelledby="largest-heading"><h2 id="largest-heading">The largest storm</h2>\n'
        f'<dl class="answers">\n{items}</dl></section>\n'
    )


def _of(thing: Any) -> tuple[str, str, str]:
    return thing.instance, thing.kind, thing.name


def _cards(findings: Findings) -> str:
    totals = findings.totals
    asked = totals.admitted + totals.refused
    todo = words.to_change(totals)
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
            "by what is recommended below" if todo else "leave them as they are",
        ),
        ("Would have been refused", words.amount(totals.shadowed), "messages, by limits in shadow; these passed"),
    )
    items = "".join(
        f'<div class="card"><dt>{text(name)}</dt><dd><span class="big">{text(figure)}</span> {text(note)}</dd></div>\n'
        for name, figure, note in cards[: 5 if totals.shadowed else 4]
    )
    said = "Refused are messages, as they were logged: a request may carry many, and each attempt counts, retries too."
    if totals.shadowed:
        said += " What limits in shadow would have refused is not among them."
    return f'<dl class="cards">\n{items}</dl>\n<p class="muted">{said}</p>\n'


def _times(findings: Findings) -> str:
    """Return what chooses the time that all charts show."""
    start_s, end_s = whole(findings)
    ranges = [("All", "Whole period", (start_s, end_s))]
    ranges += [(name, says, (end_s - long_s, end_s)) for name, says, long_s in _RANGES if end_s - start_s > long_s]
    if findings.storms:
        ranges.append(("Storm", "Largest storm", around(findings.storms[0], findings)))
    buttons = [
        f'<button type="button" data-range="{from_s},{until_s}" aria-label="{says}" title="{says}">{name}</button>'
        for name, says, (from_s, until_s) in ranges
    ]
    buttons += [
        f'<button type="button" data-move="{move}" aria-label="{says}" title="{says}">{name}</button>'
        for name, says, move in _MOVES
    ]
    return (
        '<div class="times" role="group" aria-label="Time that all charts show" hidden>'
        f'<div>{"".join(buttons)}</div><p><b id="range" aria-live="polite"></b> <span id="at"></span></p></div>\n'
    )


def _unknowns(findings: Findings) -> str:
    lines = words.unknowns(findings)
    if not lines:
        return ""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<div class="note"><p>Not all is known:</p><ul>{items}</ul><p><a href="#data">The details</a></p></div>\n'


def _picture(chart_id: str, says: str, caption: str) -> str:
    """Return the place of a chart; what it says is for those who do not see it."""
    return (
        f'<figure><div class="chart" id="{chart_id}" role="img" aria-label="{text(says)}"></div>'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _key(kind: str, what: str, value: str) -> str:
    """Return a part of a legend, with a place for its value at the cursor."""
    figure = f' <b data-value="{value}"></b>' if value else ""
    return f'<span class="key {kind}">{text(what)}{figure}</span>'


def _storms(findings: Findings) -> str:
    if not findings.storms:
        return '<p class="none">Nothing was refused.</p>\n'
    name_of = resource_words(findings)
    seen = {_of(curve): f"curve-{at}" for at, curve in enumerate(findings.curves)}
    rows = [
        (
            named(name_of(storm)) + ('<br><span class="tag would">in shadow</span>' if storm.shadow else ""),
            _at(storm, findings, seen.get(_of(storm), "storms-chart")),
            _messages(storm) + (f"<br>{muted('would have been')}" if storm.shadow else ""),
            f"{text(words.rate(storm.peak_per_s))}<br>{muted(words.moment(storm.peak_at_s)[11:])}",
            _shares(storm.clients, storm.client_count, "client"),
            _shares(storm.users, storm.user_count, "user"),
            _shares(storm.producer_groups, storm.producer_group_count, "group"),
            "<br>".join(f"<code>{broken(rule)}</code>" for rule in storm.rules),
        )
        for storm in findings.storms
    ]
    columns = ("Resource", "When", "Messages refused", "Peak", "Clients", "Users", "Producer groups", "Refused by")
    worst = findings.storms[0]
    says = (
        f"Timeline of {words.counted(len(rows), 'storm')}; the largest is of {label(name_of(worst), 80)},"
        f" {when(worst)}. The table below has them all."
    )
    shadow = '<span class="key shadow">in shadow</span>' if any(storm.shadow for storm in findings.storms) else ""
    caption = (
        f'<div><span class="key refuse">refused</span>{shadow}</div><span id="storm-says">'
        "A bar is how long; the dot, at its peak, how many messages. Drag over any chart to look closer.</span>"
    )
    of_all = findings.totals.storms + findings.totals.shadow_storms
    return (
        _picture("storms-chart", says, caption)
        + table("Storms, those with most messages refused first", columns, rows, right=(2, 3), hidden=True)
        + more(len(rows), of_all, "storm", f"{findings.tables}/storms")
    )


def _at(storm: Storm, findings: Findings, see: str) -> str:
    """Return when a storm began, as what shows it in all charts, and how long it was."""
    from_s, until_s = around(storm, findings)
    return (
        f'<button type="button" class="moment" data-range="{from_s},{until_s}" data-see="{see}" disabled>'
        f"{text(words.moment(storm.start_s))}</button><br>{muted(_until(storm))}"
    )


def _messages(of: Storm | Culprit) -> str:
    requests = "" if of.requests == of.messages else f"<br>{muted(words.counted(of.requests, 'request'))}"
    return text(words.amount(of.messages)) + requests


def _until(storm: Storm) -> str:
    return words.duration(storm.end_s - storm.start_s) + (", may go on" if storm.is_open else "")


def _shares(shares: Iterable[Share], count: int, what: str, between: str = "<br>", most: int = 3) -> str:
    shown = list(islice(shares, most))
    if not any(each.name for each in shown):
        return ""
    # The share stays beside the last part of the name.
    each_ = [f"{broken(each.name or 'none')}&nbsp;<b>{text(words.percent(each.share))}</b>" for each in shown]
    if count > len(shown):
        each_.append(muted(f"and {words.counted(count - len(shown), f'more {what}')}"))
    return between.join(each_)


def _demand(findings: Findings) -> str:
    if not findings.curves:
        return '<p class="none">Nothing was asked for.</p>\n'
    name_of = resource_words(findings)
    curves = "".join(_curve(curve, f"curve-{at}", name_of(curve)) for at, curve in enumerate(findings.curves))
    return f'<div class="curves">{curves}</div>\n'


def _curve(curve: Curve, chart_id: str, name: str) -> str:
    limits = list(dict.fromkeys(point.limit_per_s for point in curve.points))
    limit = ", ".join(words.rate(each) for each in limits[:3]) + (", …" if len(limits) > 3 else "")
    keys = [_key("pass", "admitted", "admitted"), _key("refuse", "refused", "refused")]
    if curve.shadowed:
        keys.append(_key("shadow", "would have been refused", "shadowed"))
    keys.append(_key("ghost", "busiest second", "peak"))
    keys.append(_key("limit", f"limit {limit}", "limit" if len(limits) > 1 else ""))
    step = words.duration(curve.step_s)
    many = ": so many minutes are drawn as one, so that there is room." if curve.step_s > 60 else "."
    caption = f"<div>{''.join(keys)}</div>Messages per second, means of {text(step)}{many}"
    says = (
        f"Messages per second of {label(curve.name, 80)}, in steps of {step}: {words.amount(curve.admitted)} admitted"
        f" and {words.amount(curve.refused)} refused in all. The table below has the figures."
    )
    rows = [
        (
            text(words.moment(part[0].at_s)),
            _sum(part, curve.step_s, "admitted_per_s"),
            _sum(part, curve.step_s, "refused_per_s"),
            _sum(part, curve.step_s, "shadowed_per_s") if curve.shadowed else "",
            text(words.rate(max(point.peak_per_s for point in part))),
            text(words.rate(part[-1].limit_per_s)),
        )
        for part in _parts(curve.points)
    ]
    columns = ("From", "Messages admitted", "Refused", "Would have been", "Busiest second", "Limit")
    figures = table(f"Demand of {text(name)}", columns, rows, right=(1, 2, 3, 4, 5), hidden=True)
    return (
        f"<article><h3>{named(name)}</h3>"
        f"{_picture(chart_id, says, caption)}"
        f"<details><summary>The figures</summary>{figures}</details></article>\n"
    )


def _sum(points: Sequence[Point], step_s: int, of: str) -> str:
    return text(words.amount(round(sum(getattr(point, of) for point in points) * step_s)))


def _parts(points: tuple[Point, ...]) -> Iterable[tuple[Point, ...]]:
    """Cut a curve into as many parts as a table has room for."""
    each = -(-len(points) // _MAX_STEPS) or 1
    return (points[at : at + each] for at in range(0, len(points), each))


def _culprits(findings: Findings) -> str:
    if not findings.culprits:
        return '<p class="none">Nobody.</p>\n'
    name_of = resource_words(findings)
    most = max(each.messages for each in findings.culprits) or 1
    rows = [
        (
            f"<code>{broken(each.client)}</code>",
            broken(each.user),
            broken(each.producer_group),
            broken(each.product),
            named(name_of(each)),
            barred(each.messages / most, _messages(each)),
            text(words.size(each.size_bytes)),
            text(words.percent(each.share)),
        )
        for each in findings.culprits
    ]
    columns = ("Client", "User", "Producer group", "Product", "Resource", "Messages refused", "Bytes", "Share of the resource's")  # fmt: skip  # noqa: E501
    return table("Who was refused, those with most messages refused first", columns, rows, (5, 6, 7), hidden=True)


def _week(findings: Findings) -> str:
    week = findings.week
    if week is None:
        return ""
    name_of = resource_words(findings)
    rows = [
        (
            named(name_of(each)),
            text(words.amount(each.messages)),
            text(words.amount(each.messages_before)),
            text(words.growth(each.messages, each.messages_before)),
            text(words.amount(each.refused)),
            text(words.amount(each.refused_before)),
            text(words.growth(each.refused, each.refused_before)),
        )
        for each in week.resources
    ]
    columns = ("Resource", "Messages asked for", "Week before", "Change", "Messages refused", "Week before", "Change")
    return f'<p class="muted">{text(words.weeks(week))}</p>\n' + table(
        "Each resource in the last week and the week before", columns, rows, range(1, 7), hidden=True
    )


def _new(findings: Findings) -> str:
    name_of = resource_words(findings)

    def row(each: New, *who: str) -> tuple[str, ...]:
        at, messages = text(words.moment(each.since_s)), text(words.amount(each.messages))
        return (*who, named(name_of(each)), f'<span class="moment">{at}</span>', messages)

    said = ""
    if findings.new_resources:
        rows = [row(each) for each in findings.new_resources]
        said += "<h3>Resources</h3>" + table(
            "New resources", ("Resource", "First asked for", "Messages since"), rows, (2,), hidden=True
        )
    if findings.new_clients:
        rows = [
            row(new, f"<code>{broken(new.client)}</code>", *map(broken, (new.user, new.producer_group, new.product)))
            for new in findings.new_clients
        ]
        columns = ("Client", "User", "Producer group", "Product", "Resource", "First refused", "Messages refused since")
        said += "<h3>Clients</h3>" + table("Clients that were not refused before", columns, rows, (6,), hidden=True)
    return said


def _data(findings: Findings) -> str:
    inputs = findings.inputs
    files = f"{words.counted(inputs.files, 'file')}, {words.size(inputs.size_bytes)}"
    read = f"{files}, {words.counted(inputs.records, 'record')}"
    if inputs.duplicates:
        read += f", {words.amount(inputs.duplicates)} more that were copies"
    logs = "".join(f"<li><code>{text(log)}</code></li>" for log in inputs.logs)
    what = f"<p>Read: {text(read)}, from</p><ul>{logs}</ul>\n"
    return what + _coverage(findings) + _set_aside(findings) + _changes(findings)


def _coverage(findings: Findings) -> str:
    rows = [
        (
            named(each.instance),
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
        + more(len(rows), findings.instance_count, "sidecar", f"{findings.tables}/coverage")
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
            named(f"{each.kind} {each.name}".strip() or "configuration"),
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
