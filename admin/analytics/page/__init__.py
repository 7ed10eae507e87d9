"""The report as one self-contained HTML file: template, charts and the data that they draw.

A content security policy allows the inlined scripts and styles, and nothing else. Names come from clients: Jinja
escapes them, and ``printable`` makes unprintable characters visible.
"""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from admin.analytics import words
from admin.common.recommendations import ACTIONS
from admin.common.tables import printable

Row = Mapping[str, Any]
_HERE: Final = files("admin.analytics.page")
_VENDOR: Final = files("admin.web") / "files" / "vendor"
_LONGEST_LABEL: Final = 44
_WHOLE: Final = 20
"""Words of up to this many characters are not broken."""
_PARTS: Final = re.compile(r"[^-._:/@]{1,20}[-._:/@]?|[-._:/@]+")
"""The parts of a longer word."""
_LEAST_S: Final = 60
"""Shortest time that is drawn, and shortest margin around a storm."""
_MARGIN_STEPS: Final = 10
_MAX_ROWS: Final = 24
"""Rows of the table beside a curve."""
_WHAT_IF: Final = ("rate_per_s", "refused_share", "refused_share_uncorrected")
_DO: Final = dict(zip(ACTIONS, ("Raise", "Share fairly", "Lower", "New limit", "Never used", "Keep"), strict=True))


def render(results: Row) -> str:
    """Return the page.

    Args:
        results: see ``report.results``.
    """
    style = (_VENDOR / "uplot.css").read_text("utf-8") + (_HERE / "style.css").read_text("utf-8")
    library = f"/*\n{(_VENDOR / 'LICENSE').read_text('utf-8')}*/\n{(_VENDOR / 'uplot.js').read_text('utf-8')}"
    scripts = [
        each.replace("</script", "<\\/script").replace("<!--", "<\\!--")
        for each in (library, (_HERE / "report.js").read_text("utf-8"))
    ]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.do"],
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )  # fmt: skip
    environment.tests.update(default_change=words.is_default, needs_reading=words.needs_reading)
    environment.filters.update(broken=broken, label=label, quoted=shlex.quote, rate_of=words.rate)
    floods, whole = words.floods(results), period(results)
    environment.globals.update(
        words=words, floods=floods, whole=whole, do=_DO, parts=_parts, what_if=_what_if,
        name_of=lambda row: words.located(row, results["instance_count"]),
        around=lambda flood: _around(flood, results, whole),
    )  # fmt: skip
    template = environment.from_string((_HERE / "page.html").read_text("utf-8"))
    return template.render(
        of=results, style=style, scripts=scripts, policy=_policy(style, scripts), figures=data(figures(results, floods))
    )


def _policy(style: str, scripts: Sequence[str]) -> str:
    of_style, *of_scripts = (
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in (style, *scripts)
    )
    sources = f"script-src {' '.join(of_scripts)}; style-src {of_style}; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def broken(name: str) -> Markup:
    """Return a name that may be broken between its parts if it is too long for a column."""
    return Markup(" ").join(map(_word, printable(name).split(" ")))


def _word(word: str) -> Markup:
    if len(word) > _WHOLE:
        return Markup("<wbr>").join(_PARTS.findall(word))
    # Browsers would break it at a hyphen.
    return Markup('<span class="whole">{}</span>').format(word) if "-" in word else escape(word)


def label(name: str, longest: int = _LONGEST_LABEL) -> str:
    """Return a name for a chart, shortened in the middle."""
    name = printable(name)
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


# Charts.


def figures(results: Row, floods: Sequence[Row]) -> dict[str, Any]:
    """Return the data of the charts: all curves and storms have one time axis."""
    return {
        "whole": period(results),
        "storms": _storms(floods, results["instance_count"]) if floods else None,
        "curves": [_curve(curve) for curve in results["curves"]],
        "what_ifs": {
            f"what-if-{at}": [tuple(map(of.get, _WHAT_IF)) for of in each["what_if"]]
            for at, each in enumerate(results["recommendations"])
            if _what_if(each)
        },
    }


def data(value: Any) -> str:
    """Return JSON for a script element."""
    written = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def period(results: Row) -> tuple[int, int]:
    """Return the start and end of the time axis."""
    ends = [each for each in results["period"].values() if each is not None]
    ends += [storm[end] for storm in results["storms"] for end in ("start_s", "end_s")]
    for curve in results["curves"]:
        ends += [end for point in curve["points"] for end in (point["at_s"], point["at_s"] + curve["step_s"])]
    start_s = min(ends, default=0)
    return start_s, max(max(ends, default=0), start_s + _LEAST_S)


def _around(flood: Row, results: Row, whole: tuple[int, int]) -> tuple[int, int]:
    """Return the time in which a flood is shown: with a margin before and after."""
    steps = [
        each["step_s"] for each in results["curves"] if (each["kind"], each["name"]) == (flood["kind"], flood["name"])
    ]
    margin_s = max(flood["end_s"] - flood["start_s"], _MARGIN_STEPS * max(steps, default=1), _LEAST_S)
    return max(whole[0], flood["start_s"] - margin_s), min(whole[1], flood["end_s"] + margin_s)


def _storms(floods: Sequence[Row], instance_count: int) -> dict[str, Any]:
    """Return the names of the rows, and the floods with the rows that they are in."""
    names = [words.located(each, instance_count) for each in floods]
    rows = list(dict.fromkeys(names))
    return {
        "rows": [label(name) for name in rows],
        "storms": [
            {
                "row": rows.index(name),
                "from": each["start_s"],
                "until": each["end_s"],
                "peak": each["peak_at_s"],
                "messages": each["messages"],
                "shadow": each["shadow"],
                "says": f"{label(name, 80)}, {words.when(each)}: {words.counted(each['messages'], 'message')}"
                f" {words.refused(shadow=each['shadow'])}, up to {words.rate(each['peak_per_s'])}",
            }
            for name, each in zip(names, floods, strict=True)
        ],
    }


def _curve(curve: Row) -> dict[str, list[Any]]:
    """Return the demand of a resource in columns. A row is valid until the next one; gaps are zeros."""
    rows: list[tuple[Any, ...]] = []
    points = curve["points"]
    for at, point in enumerate(points):
        admitted, plain = point["admitted_per_s"], max(0.0, point["admitted_per_s"] - point["shadowed_per_s"])
        demand = (point["peak_per_s"], admitted + point["refused_per_s"], admitted, plain)
        rows.append((point["at_s"], *(float(f"{per_s:.6g}") for per_s in demand), point["limit_per_s"]))
        end_s = point["at_s"] + curve["step_s"]
        if at + 1 == len(points) or end_s < points[at + 1]["at_s"]:
            rows.append((end_s, 0, 0, 0, 0, point["limit_per_s"]))
    names = ("at", "peak", "asked", "admitted", "plain", "limit")
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def _parts(points: Sequence[Row]) -> list[Sequence[Row]]:
    """Cut a curve into as many parts as its table has rows."""
    each = -(-len(points) // _MAX_ROWS) or 1
    return [points[at : at + each] for at in range(0, len(points), each)]


def _what_if(each: Row) -> dict[str, Any] | None:
    """Return the lines of the chart of other rates, and the range and start of its slider; None without rates."""
    points = each["what_if"]
    if len(points) < 2 or points[0]["rate_per_s"] >= points[-1]["rate_per_s"]:
        return None
    most = max(max(of["refused_share"], of["refused_share_uncorrected"]) for of in points) or 1.0
    low, high = points[0]["rate_per_s"], points[-1]["rate_per_s"]

    def line(name: str) -> str:
        return " ".join(
            f"{100 * (of['rate_per_s'] - low) / (high - low):.2f},{2 + 46 * (1 - of[name] / most):.2f}" for of in points
        )

    start = min(max(each["recommended_rate_per_s"] or each["rate_per_s"] or low, low), high)
    return {
        "differs": any(of["refused_share"] != of["refused_share_uncorrected"] for of in points),
        "refused": line("refused_share"),
        "uncorrected": line("refused_share_uncorrected"),
        **{name: f"{value:.6g}" for name, value in (("low", low), ("high", high), ("start", start))},
    }
