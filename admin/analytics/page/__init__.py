"""The report as one page: a file that needs nothing else, neither a server nor the network.

It carries its charts' library with it, and a policy that lets it load nothing and run nothing but that. ``sections``
and ``limits`` are what it says, ``charts`` what its script draws, ``markup`` the escaping: names come from clients,
and may be anything.
"""

import base64
import hashlib
from importlib.resources import files
from typing import Final

from admin.analytics.findings import Findings
from admin.analytics.page import charts, limits
from admin.analytics.page.markup import data, text
from admin.analytics.page.sections import body

_HERE: Final = files("admin.analytics.page")
_LIBRARY: Final = files("admin.web") / "files" / "vendor"
"""The page of a sidecar has the same."""


def render(findings: Findings) -> str:
    """Return the page, as HTML.

    Args:
        findings: what it says.
    """
    style = (_LIBRARY / "uplot.css").read_text("utf-8") + (_HERE / "style.css").read_text("utf-8")
    library = f"/*\n{(_LIBRARY / 'LICENSE').read_text('utf-8')}*/\n{(_LIBRARY / 'uplot.js').read_text('utf-8')}"
    scripts = [_in_script(each) for each in (library, (_HERE / "report.js").read_text("utf-8"))]
    drawn = charts.figures(findings) | {"what_ifs": limits.what_ifs(findings)}
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, scripts)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            '<meta name="referrer" content="no-referrer">\n',
            f"<title>{text(_title(findings))}</title>\n",
            '<link rel="icon" href="data:,">\n',
            f"<style>{style}</style>\n</head>\n<body>\n",
            body(findings),
            f'<script type="application/json" id="figures">{data(drawn)}</script>\n',
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def _title(findings: Findings) -> str:
    return f"Refusals until {findings.made_at[:16].replace('T', ' ')} UTC"


def _in_script(script: str) -> str:
    """Return a script as it can stand in a page: nothing in it ends the element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(style: str, scripts: list[str]) -> str:
    """Let the page run these scripts, look like this, and do nothing else."""
    of_style, *of_scripts = (
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in (style, *scripts)
    )
    return (
        f"default-src 'none'; script-src {' '.join(of_scripts)}; style-src {of_style}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
