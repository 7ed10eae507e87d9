"""HTML, escaped: every text that comes from elsewhere goes through ``text`` or ``data``."""

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from admin.analytics import words
from admin.common.tables import printable

_LONGEST_LABEL: Final = 44
_WHOLE: Final = 20
"""A word of up to this many characters fits a column."""
_PARTS: Final = re.compile(r"[^-._:/@]{1,20}[-._:/@]?|[-._:/@]+")
"""The parts of a longer word: between the characters that commonly part names, and no longer than fits."""


def text(value: object) -> str:
    """Return a text as HTML, with what cannot be printed, or turns the writing round, as escapes."""
    return html.escape(printable(str(value)), quote=True)


def broken(name: str) -> str:
    """Return a name as HTML that is broken between its parts where it is too long for its column."""
    return " ".join(_whole(word) if len(word) <= _WHOLE else _parted(word) for word in printable(name).split(" "))


def _whole(word: str) -> str:
    # Browsers would part it at a hyphen.
    return (
        f'<span class="whole">{html.escape(word, quote=True)}</span>' if "-" in word else html.escape(word, quote=True)
    )


def _parted(word: str) -> str:
    return "<wbr>".join(html.escape(part, quote=True) for part in _PARTS.findall(word))


def named(words_: str) -> str:
    """Return a name as HTML, set as one."""
    return f'<span class="name">{broken(words_)}</span>'


def muted(words_: str) -> str:
    """Return what is said besides, as HTML."""
    return f'<span class="muted">{text(words_)}</span>'


def more(shown: int, of_all: int, what: str, where: str) -> str:
    """Return where the rest is, as HTML; empty if all are shown."""
    if of_all <= shown:
        return ""
    said = f"The first {shown} of {text(words.counted(of_all, what))}; all are in <code>{text(where)}</code>."
    return f'<p class="more">{said}</p>\n'


def data(value: Any) -> str:
    """Return JSON that can stand in a script element."""
    written = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def label(name: str, longest: int = _LONGEST_LABEL) -> str:
    """Return a name that fits into a chart; of what is too long, beginning and end."""
    name = printable(name)
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def bar(share: float, kind: str = "refuse") -> str:
    """Return a bar that is so long a part of its place; the figure is to stand beside it.

    Args:
        share: between 0 and 1.
        kind: what it is of, as in the stylesheet.
    """
    width = f"{100 * min(max(share, 0.0), 1.0):.2f}%"
    return f'<svg class="bar {kind}" aria-hidden="true"><rect width="{width}" height="100%"/></svg>'


def barred(share: float, figure: str, kind: str = "refuse") -> str:
    """Return a figure, as HTML, with its bar to the left; see ``bar``."""
    return f'<div class="barred">{bar(share, kind)}<span>{figure}</span></div>'


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[int] = (),
    *,
    hidden: bool = False,
) -> str:
    """Return a table without the columns that are empty in every row; on narrow screens each row is a card.

    Args:
        caption: what it is of, as HTML.
        columns: headings, as text.
        rows: cells, as HTML; the first of each names the row.
        right: columns of figures.
        hidden: only those who are read to need the caption.
    """
    rows, at_right = list(rows), frozenset(right)
    used = [at for at in range(len(columns)) if at == 0 or not rows or any(row[at] for row in rows)]
    # The roles say again what the elements are: as cards they would not be a table otherwise.
    head = "".join(f'<th scope="col" role="columnheader"{_class(at, at_right)}>{text(columns[at])}</th>' for at in used)
    lines = []
    for row in rows:
        cells = [f'<th scope="row" role="rowheader">{row[0]}</th>']
        cells += [
            f'<td role="cell" data-label="{text(columns[at])}"{_class(at, at_right)}><div>{row[at]}</div></td>'
            if row[at]
            else f'<td role="cell"{_class(at, at_right)}></td>'
            for at in used[1:]
        ]
        lines.append(f'<tr role="row">{"".join(cells)}</tr>\n')
    return (
        f'<table role="table"><caption{" class=unseen" if hidden else ""}>{caption}</caption>\n'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{"".join(lines)}</tbody></table>\n'
    )


def _class(at: int, at_right: frozenset[int]) -> str:
    return ' class="number"' if at in at_right else ""
