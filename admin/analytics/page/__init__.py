"""Renders a report as one self-contained HTML file.

The content security policy allows only the inline scripts and styles. Names come from clients, so Jinja escapes them
and ``printable`` makes unprintable characters visible.
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from rich.filesize import decimal

from admin.analytics import summary, words
from admin.analytics.words import Row
from admin.common.tables import printable

_HERE: Final = files("admin.analytics.page")
_WEB: Final = files("admin.web") / "files"
_WHOLE: Final = 20
_PARTS: Final = re.compile(r"[^-._:/@]{1,20}[-._:/@]?|[-._:/@]+")
_MIN_S: Final = 60


def render(results: Row) -> str:
    style = "".join(
        each.read_text("utf-8") for each in (_WEB / "base.css", _WEB / "vendor" / "uplot.css", _HERE / "style.css")
    )
    library = "/*\n{}*/\n{}".format(*((_WEB / "vendor" / name).read_text("utf-8") for name in ("LICENSE", "uplot.js")))
    scripts = [library, (_HERE / "report.js").read_text("utf-8")]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.do"],
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )  # fmt: skip
    whole = period(results)

    name_of = partial(summary.located, sidecars=results["instance_count"])
    environment.tests.update(default_change=words.is_default, needs_reading=words.needs_reading)
    environment.filters.update(
        broken=broken, lines=lines, quoted=shlex.quote, rate_of=words.rate, name_of=name_of, tried_row=summary.tried_row
    )
    return environment.from_string((_HERE / "page.html").read_text("utf-8")).render(
        of=results, style=style, scripts=scripts, policy=_policy(style, scripts), words=words, summary=summary,
        floods=summary.floods(results), whole=whole, size=decimal, amount="{:,}".format, name_of=name_of,
        around=lambda flood: _around(flood, results, whole),
        figures={"whole": whole, "curves": [_curve(curve) for curve in results["curves"]]},
    )  # fmt: skip


def _policy(style: str, scripts: Sequence[str]) -> str:
    of_style, *of_scripts = (
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in (style, *scripts)
    )
    sources = f"script-src {' '.join(of_scripts)}; style-src {of_style}; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def broken(name: str) -> Markup:
    """Escape a name, and allow line breaks within words that are too long for a column."""
    return Markup(" ").join(map(_word, printable(name).split(" ")))


def _word(word: str) -> Markup:
    if len(word) > _WHOLE:
        return Markup("<wbr>").join(_PARTS.findall(word))
    # Otherwise, browsers would break the word at its hyphen.
    return Markup('<span class="nowrap">{}</span>').format(word) if "-" in word else escape(word)


def lines(cell: str | Sequence[str]) -> Markup:
    """Convert a table cell from ``summary`` to HTML. The notes in a tuple are shown in a muted colour."""
    if isinstance(cell, str | Markup):
        return cell if isinstance(cell, Markup) else broken(cell)
    below = Markup("{}") if isinstance(cell, list) else Markup('<span class="muted">{}</span>')
    first, *rest = map(broken, filter(None, cell)) if any(cell) else [Markup()]
    return Markup("<br>").join([first, *map(below.format, rest)])


def period(results: Row) -> tuple[int, int]:
    ends = [each for each in results["period"].values() if each is not None]
    ends += [storm[end] for storm in results["storms"] for end in ("start_s", "end_s")]
    for curve in results["curves"]:
        ends += [end for point in curve["points"] for end in (point["at_s"], point["at_s"] + curve["step_s"])]
    start_s = min(ends, default=0)
    return start_s, max(max(ends, default=0), start_s + _MIN_S)


def _around(flood: Row, results: Row, whole: tuple[int, int]) -> tuple[int, int]:
    steps = [
        each["step_s"] for each in results["curves"] if (each["kind"], each["name"]) == (flood["kind"], flood["name"])
    ]
    margin_s = max(flood["end_s"] - flood["start_s"], 10 * max(steps, default=1), _MIN_S)
    return max(whole[0], flood["start_s"] - margin_s), min(whole[1], flood["end_s"] + margin_s)


def _curve(curve: Row) -> dict[str, list[Any]]:
    rows: list[tuple[Any, ...]] = []
    points = curve["points"]
    for at, point in enumerate(points):
        admitted, plain = point["admitted_per_s"], max(0.0, point["admitted_per_s"] - point["shadowed_per_s"])
        demand = (point["peak_per_s"], admitted + point["refused_per_s"], admitted, plain)
        rows.append((point["at_s"], *(float(f"{per_s:.6g}") for per_s in demand), point["limit_per_s"]))
        end_s = point["at_s"] + curve["step_s"]
        if at + 1 == len(points) or end_s < points[at + 1]["at_s"]:
            rows.append((end_s, 0, 0, 0, 0, point["limit_per_s"]))
    return dict(
        zip(("at", "peak", "asked", "admitted", "plain", "limit"), map(list, zip(*rows, strict=True)), strict=False)
    )
