"""The report as one page: a file that needs nothing else, neither a server nor the network.

It carries its charts' library with it, and a policy that lets it load nothing and run nothing but that. ``sections`` is
what it says, ``charts`` the pictures, ``markup`` the escaping: names come from clients, and may be anything.
"""

import base64
import hashlib
from importlib.resources import files
from typing import Final

from bokeh.resources import Resources

from admin.analytics.findings import Findings
from admin.analytics.page.charts import Chart, Palette, charts_of
from admin.analytics.page.markup import data, text
from admin.analytics.page.sections import body

_HERE: Final = files("admin.analytics.page")


def render(findings: Findings) -> str:
    """Return the page, as HTML.

    Args:
        findings: what it says.
    """
    charts = charts_of(findings)
    style = _HERE.joinpath("style.css").read_text(encoding="utf-8")
    scripts = [*Resources(mode="inline", components=["bokeh"]).js_raw, _HERE.joinpath("draw.js").read_text("utf-8")]
    scripts = [_in_script(script) for script in scripts]
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            '<meta name="referrer" content="no-referrer">\n',
            f"<title>{text(_title(findings))}</title>\n",
            '<link rel="icon" href="data:,">\n',
            f"<style>\n{style}</style>\n</head>\n<body>\n",
            body(findings, charts),
            *(_data_of(chart) for chart in charts.values()),
            f'<script type="application/json" id="palette">{data(Palette.NAMES)}</script>\n',
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def _title(findings: Findings) -> str:
    return f"Refusals until {findings.made_at[:16].replace('T', ' ')} UTC"


def _data_of(chart: Chart) -> str:
    attributes = f'type="application/json" class="chart-data" data-chart="{text(chart.id)}"'
    return f"<script {attributes}>{data(chart.item)}</script>\n"


def _in_script(script: str) -> str:
    """Return a script as it can stand in a page: nothing in it ends the element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: list[str]) -> str:
    """Let the page run these scripts, style itself, and do nothing else.

    Charts set styles on their elements while they are drawn, and for that there are no hashes.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
