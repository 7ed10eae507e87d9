"""What ``sluice top`` shows, and its layout."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from admin.client import NoAnswerError
from admin.client.operate import limiting
from admin.client.tables import RIGHT, cell
from admin.common.columns import LIMITS
from admin.common.numbers import per_second, span
from admin.common.tables import printable
from admin.wire import MAX_PAGE, State

_SORTS: Final = ("refused", "passed", "used", "wait", "name", "kind")
_UPWARDS: Final = frozenset({"name", "kind"})
_FILTERS: Final = ("", "limited", "near", "shadowed", "edited")
_CHROME_LINES: Final = 8
"""Lines of the screen that are not rows of the table."""
_WIDE: Final = 110
"""Narrower terminals show fewer columns, so that names have room."""
_NARROW: Final = frozenset({"kind", "name", "limit", "passed", "refused", "used"})


@dataclass(frozen=True, slots=True)
class Wish:
    """What to show, and in which order."""

    kind: str = ""
    search: str = ""
    filter: str = ""
    sort: str = "refused"
    backwards: bool = False
    offset: int = 0

    def query(self) -> dict[str, Any]:
        """Return the query for the API."""
        upwards = (self.sort in _UPWARDS) != self.backwards
        return {
            "kind": self.kind,
            "search": self.search,
            "filter": self.filter,
            "sort": self.sort,
            "order": "asc" if upwards else "desc",
            "offset": self.offset,
            "limit": MAX_PAGE,
            "history": "0",
        }

    def next_sort(self) -> "Wish":
        """Return it sorted by the next column."""
        at = _SORTS.index(self.sort) if self.sort in _SORTS else -1
        return replace(self, sort=_SORTS[(at + 1) % len(_SORTS)], backwards=False, offset=0)

    def next_filter(self) -> "Wish":
        """Return it with the next filter."""
        return replace(self, filter=_FILTERS[(_FILTERS.index(self.filter) + 1) % len(_FILTERS)], offset=0)


@dataclass(slots=True)
class View:
    """Everything on the screen.

    Attributes:
        url: of the sidecar.
        wish: what to show.
        rows: by key, as the API has them.
        order: the keys, from top to bottom.
        total: number of rows at the sidecar.
        state: of the sidecar; None before it has come.
        lost: why there is no news; empty while there is.
        begin: number of rows before those in ``rows``.
        top: number of rows before the first one on the screen.
        typed: the text in the search; None while it is closed.
    """

    url: str
    wish: Wish
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    total: int = 0
    state: State | None = None
    lost: str = ""
    begin: int = 0
    top: int = 0
    typed: str | None = None

    def take(self, event: str, body: bytes) -> None:
        """Take one event.

        Raises:
            NoAnswerError: it is malformed.
        """
        try:
            if event == "state":
                self.state = msgspec.json.decode(body, type=State)
            elif event == "limits":
                self._merge(msgspec.json.decode(body, type=dict[str, Any]))
        except msgspec.DecodeError:
            raise NoAnswerError(f"{self.url} tells what this version does not understand") from None
        self.lost = ""

    def _merge(self, news: dict[str, Any]) -> None:
        if "offset" in news:
            # The first event is the whole page.
            self.rows.clear()
            self.order = [row["key"] for row in news["rows"]]
            self.begin = news["offset"]
        for row in news.get("rows", ()):
            self.rows.setdefault(row["key"], {}).update(row)
        if "order" in news:
            self.order = news["order"]
            self.rows = {key: row for key, row in self.rows.items() if key in set(self.order)}
        self.total = news.get("total", self.total)

    def shown(self, room: int | None = None) -> list[dict[str, Any]]:
        """Return up to ``room`` rows, from the first on the screen."""
        above = min(max(0, self.top - self.begin), max(0, len(self.order) - (room or 1)))
        keys = self.order[above:] if room is None else self.order[above : above + room]
        return [self.rows[key] for key in keys if key in self.rows]

    def scroll(self, lines: int, room: int) -> None:
        """Scroll down, or up; rows that are missing are asked for."""
        self.top = max(0, min(self.top + lines, self.total - room))
        here = range(self.wish.offset, self.wish.offset + MAX_PAGE)
        last = max(0, min(self.top + room, self.total) - 1)
        if self.top not in here or last not in here:
            self.wish = replace(self.wish, offset=max(0, self.top - MAX_PAGE // 2))


def room(height: int) -> int:
    """Return how many rows fit on a terminal of so many lines."""
    return max(1, height - _CHROME_LINES)


def draw(view: View, height: int, width: int = 120) -> RenderableType:
    """Lay out the screen of a terminal of so many lines and columns."""
    rows = view.shown(room(height))
    first = max(view.top, view.begin) + 1
    shown = f"{len(rows)}" if len(rows) >= view.total or not rows else f"{first} to {first + len(rows) - 1}"
    return Group(*head(view, shown), _table(rows, width), _foot(view))


def head(view: View, shown: str) -> Iterator[Text]:
    """Yield the lines above the table; ``shown`` says which rows are on the screen."""
    now = view.state
    title = f"Sluice {now.version} at {view.url}, up for {span(now.uptime_s)}" if now else f"Sluice at {view.url}"
    yield Text.assemble((title, "bold"), f"   {shown} of {view.total}, {_sorted(view.wish)}", no_wrap=True)
    if view.lost:
        yield Text(f" No news: {view.lost}; asking again ", style="bold white on red")
    if now is None:
        if not view.lost:
            yield Text(" Waiting for the first figures … ", style="reverse")
        return
    rates = now.rates.messages_per_s
    refused = f"{per_second(rates.refused)} refused"
    shadowed = f", {per_second(rates.shadowed)} would be refused" if rates.shadowed else ""
    yield Text.assemble(
        f"messages/s  {per_second(rates.passed)} passed, ",
        (refused, "red" if rates.refused else ""),
        shadowed,
        f"   connections {now.totals.connections_open}   edits {now.edits.standing}",
    )
    if now.off or not now.limiting:
        yield Text(f" LIMITING IS {limiting(now)} ", style="bold white on red")
    if now.bypassed.per_s_last_60s:
        per_s = per_second(now.bypassed.per_s_last_60s)
        yield Text(f" BYPASSING: {per_s} requests/s went by the limiter in the last minute ", style="black on yellow")
    for alarm in now.alarms:
        if alarm.stands:
            yield Text(f" {alarm.scarce.upper()} ALARM: {alarm.text} ", style="bold white on red")
    if now.draining:
        yield Text(" DRAINING: it accepts nobody and ends soon ", style="black on yellow")
    for each in now.listeners:
        if each.reachable is False:
            yield Text(f" BROKER of {printable(each.name)} not reachable: {each.error} ", style="bold white on red")
    if now.persistence.error:
        yield Text(f" EDITS: {now.persistence.error} ", style="black on yellow")


def _sorted(wish: Wish) -> str:
    parts = [f"by {wish.sort}{' (reversed)' if wish.backwards else ''}"]
    parts += [wish.filter] if wish.filter else []
    parts += [wish.kind] if wish.kind else []
    parts += [f'with "{printable(wish.search)}"'] if wish.search else []
    return ", ".join(parts)


def _table(rows: list[dict[str, Any]], width: int) -> Table:
    columns = [column for column in LIMITS if column.cli and (width >= _WIDE or column.name in _NARROW)]
    lines = [[cell(column, row, columns) for column in columns] for row in rows]
    used = [at for at, column in enumerate(columns) if not column.optional or any(cells[at] for cells in lines)]
    laid_out = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    for at in used:
        column = columns[at]
        figure = column.format in RIGHT or column.name == "limit"
        ratio = 1 if column.name == "name" else None
        laid_out.add_column(column.title.lower(), no_wrap=True, ratio=ratio, justify="right" if figure else "left")
    for row, cells in zip(rows, lines, strict=True):
        live = row.get("live") or {}
        style = "red" if live.get("limited") else "yellow" if live.get("would_refuse") or live.get("near") else ""
        laid_out.add_row(*(Text(printable(cells[at])) for at in used), style=style)
    return laid_out


def _foot(view: View) -> Text:
    if view.typed is not None:
        return Text.assemble(("search: ", "bold"), printable(view.typed), "▏   Enter searches, Esc leaves it")
    return Text("q quit   s sort   r reverse   / search   f filter   Esc all   ↑ ↓ PgUp PgDn scroll", style="dim")
