"""What the page says of limits: what they should be, what other rates would do, and what all sidecars have together."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from admin.analytics import words
from admin.analytics.findings import Findings
from admin.analytics.page.markup import bar, barred, broken, label, more, muted, named, table, text
from admin.common.recommendations import TO_DO, Recommendation, refusals

_ACTIONS: Final[Mapping[str, str]] = {
    "raise": "Raise",
    "lower": "Lower",
    "new": "New limit",
    "keep": "Leave as it is",
    "unused": "Never used",
    "share": "Share fairly",
}
_OFFERED: Final = (
    ("lower", "Offered: could be lower", "Less would do for what was asked for, but for floods that they stopped."),
    ("raise", "Offered: could be higher", "These limits were seldom nearly used up."),
)


def what_ifs(findings: Findings) -> dict[str, list[tuple[float, float, float]]]:
    """Return what other rates would have refused, by the id of where that is read off."""
    return {
        f"what-if-{at}": [(of.rate_per_s, of.refused_share, of.refused_share_uncorrected) for of in each.what_if]
        for at, each in enumerate(findings.recommendations)
        if each.what_if and each.what_if[0].rate_per_s < each.what_if[-1].rate_per_s
    }


def recommendations(findings: Findings) -> str:
    """Return what the limits should be; what is only offered stands apart."""
    if not findings.recommendations:
        return '<p class="none">There is too little to go by.</p>\n'
    several = findings.instance_count > 1
    ids = what_ifs(findings)
    parts: dict[str, list[tuple[str, ...]]] = {"": [], "raise": [], "lower": []}
    for at, each in enumerate(findings.recommendations):
        parts[each.only_with].append(
            (
                named(words.resource(each.kind, each.name))
                + (f'<br><span class="muted">on {broken(each.instance)}</span>' if several else ""),
                tag(each),
                text(words.change(each)),
                _replayed(each),
                f"{text(each.evidence)} {muted(_sure(each))}"
                + (_what_if(each, f"what-if-{at}") if f"what-if-{at}" in ids else ""),
            )
        )
    columns = ("Limit of", "What to do", "Change", "Would be refused", "Why")
    file = f"{findings.out}/recommendations.json"
    command = f"sluice limits apply {text(shlex.quote(file))}"
    said = (
        '<p class="muted">What was asked for was replayed through each limit as it is and as recommended: “would be '
        "refused” is the share of messages then and now, and beside it what was logged. A replay knows seconds, not "
        "moments, so that the two may differ a little. A limit that is large enough causes no retries, so the "
        "recommended one meets the demand without them.</p>\n"
        + table("Recommended limits, what is to be done first", columns, parts[""], hidden=True)
    )
    if any(each.action in TO_DO and not each.only_with for each in findings.recommendations):
        said += (
            '<p class="how">To see what would change, and then to put it in force, with audit and revert:</p>'
            f"<pre><code>{command} --dry-run\n{command}</code></pre>\n"
        )
    for only_with, heading, why in _OFFERED:
        if rows := parts[only_with]:
            said += (
                f'<h3>{heading}</h3><p class="muted">{why} They are changed only if '
                f"<code>--{only_with}</code> is given:</p><pre><code>{command} --{only_with}</code></pre>\n"
                + table(heading, columns, rows, hidden=True)
            )
    of_all = sum(findings.totals.recommendations.values())
    if ids:
        said += (
            '<p class="muted">Another rate is read off between those that were replayed; to replay one exactly, add '
            "<code>--try topic:orders=450/s</code> to <code>sluice report</code>.</p>\n"
        )
    return said + more(len(findings.recommendations), of_all, "recommendation", file)


def tag(each: Recommendation) -> str:
    """Return what is to be done with a limit."""
    return f'<span class="tag {"do" if each.action in TO_DO else ""}">{text(_ACTIONS[each.action])}</span>'


def _replayed(each: Recommendation) -> str:
    """Return what would be refused now and then, with bars, and what was logged."""
    test = each.backtest
    said = text(refusals(each) or "not replayed")
    shares = [of.refused_share for of in (test.current, test.recommended) if of is not None]
    if any(shares):
        said += "".join(bar(share / max(shares), kind) for share, kind in zip(shares, ("refuse", "pass"), strict=False))
    if test.logged is not None:
        said += f'<div class="muted">logged: {text(words.percent(test.logged.refused_share))}</div>'
    return said


def _sure(each: Recommendation) -> str:
    retries = words.retries(each)
    return f"Confidence: {each.confidence}{f'; {retries}' if retries else ''}."


def _what_if(each: Recommendation, its_id: str) -> str:
    """Return a small chart of rates and the share that each would refuse, what reads it off, and its figures."""
    rates = [of.rate_per_s for of in each.what_if]
    most = max(max(of.refused_share, of.refused_share_uncorrected) for of in each.what_if) or 1.0
    low, width = rates[0], rates[-1] - rates[0]

    def line(kind: str, shares: Iterable[float]) -> str:
        points = " ".join(
            f"{100 * (rate - low) / width:.2f},{2 + 46 * (1 - share / most):.2f}"
            for rate, share in zip(rates, shares, strict=True)
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    drawn = line("refuse", (of.refused_share for of in each.what_if))
    if differs := any(of.refused_share != of.refused_share_uncorrected for of in each.what_if):
        drawn = line("ghost", (of.refused_share_uncorrected for of in each.what_if)) + drawn
    start = min(max(each.recommended_rate_per_s or each.rate_per_s or low, low), rates[-1])
    unit = "requests" if each.count == "requests" else ""
    rows = [
        (
            text(words.rate(of.rate_per_s, unit)),
            text(words.percent(of.refused_share)),
            text(words.percent(of.refused_share_uncorrected)) if differs else "",
        )
        for of in each.what_if
    ]
    name = text(label(each.name, 80))
    figures = table(f"Rates for {name}", ("Rate", "Refused", "If nobody retries"), rows, (1, 2), hidden=True)
    ends = " to ".join(text(words.percent(of.refused_share)) for of in (each.what_if[0], each.what_if[-1]))
    return (
        f'<details class="what-if" id="{its_id}"><summary>Try another rate</summary>'
        f'<svg viewBox="0 0 100 50" preserveAspectRatio="none" role="img" aria-label="Share refused, by rate: {ends}">'
        f'{drawn}<line class="here" x1="0" x2="0" y1="0" y2="50"/></svg>'
        f'<input type="range" min="{low:.6g}" max="{rates[-1]:.6g}" step="any" value="{start:.6g}" '
        f'aria-label="Rate of {name}"><output></output>{figures}</details>'
    )


def fleets(findings: Findings) -> str:
    """Return the demand and the limits of what several sidecars pass; empty if there is nothing such."""
    if not findings.fleets:
        return ""
    rows = []
    for fleet in findings.fleets:
        name = named(words.resource(fleet.kind, fleet.name))
        of_all = f"<b>all {words.amount(fleet.member_count)}</b>"
        rows.append((name, of_all, words.rate(fleet.need_per_s), words.rate(fleet.limit_per_s), "", ""))
        rows += [
            (
                name,
                broken(each.instance),
                text(words.rate(each.need_per_s)),
                text(words.rate(each.limit_per_s)),
                barred(each.share, text(words.percent(each.share)), "pass"),
                "" if fleet.limit_per_s is None else text(words.rate(fleet.limit_per_s * each.share)),
            )
            for each in fleet.members
        ]
    columns = ("Resource", "Sidecar", "Needs", "Limit", "Share it should have", "Of the same limits")
    return (
        '<p class="muted">Each sidecar limits by itself; the broker gets what all of them pass, in messages. The last '
        "column is what each limit would be if their sum stayed as it is and were divided as the demand is.</p>\n"
        + table("Demand and limits of resources on several sidecars", columns, rows, (2, 3, 4, 5), hidden=True)
    )
