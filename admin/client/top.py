"""``sluice top``: a live table of limits, rates and refusals."""

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from admin.client.api import Api, ApiError
from admin.client.target import Target
from admin.client.text import RIGHT, as_json, cell, limiting, listing, passing
from admin.common.columns import FILTERS, LIMITS
from admin.common.numbers import per_second, span
from admin.common.tables import printable
from admin.wire import MAX_PAGE

_SORTS: Final = ("refused", "passed", "used", "wait", "name", "kind")
_UPWARDS: Final = frozenset({"name", "kind"})
_FILTERS: Final = ("", *FILTERS)
_REFRESH_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_CHROME_LINES: Final = 8
_WIDE: Final = 110
_NARROW: Final = frozenset({"kind", "name", "limit", "passed", "refused", "used"})

_KEYS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1b": "escape",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
}
_KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*[@-~]|O.)?|[^\x1b]", re.DOTALL)


@dataclass(slots=True)
class View:
    """The state of the screen.

    Attributes:
        backwards: Whether the usual order of the sort column is reversed.
        top: Number of rows that are scrolled off the top of the screen.
        typed: Text in the search field. None while the field is closed.
    """

    kind: str = ""
    search: str = ""
    filter: str = ""
    sort: str = "refused"
    backwards: bool = False
    top: int = 0
    total: int = 0
    typed: str | None = None

    def query(self, rows: int) -> dict[str, Any]:
        order = "asc" if (self.sort in _UPWARDS) != self.backwards else "desc"
        wanted = {"kind": self.kind, "search": self.search, "filter": self.filter, "sort": self.sort, "order": order}
        return {**wanted, "offset": self.top, "limit": rows, "history": "0"}

    def scroll(self, lines: int, rows: int) -> None:
        self.top = max(0, min(self.top + lines, self.total - rows))

    def press(self, key: str, rows: int) -> bool:
        """Handle a key press. Return False if the user quits."""
        if self.typed is not None:
            self._type(key)
            return True
        scrolled = {"up": -1, "down": 1, "pageup": -rows, "pagedown": rows, "home": -self.total, "end": self.total}
        if key in scrolled:
            self.scroll(scrolled[key], rows)
            return True
        match key:
            case "q" | "Q":
                return False
            case "s":
                self.sort, self.backwards = _next(_SORTS, self.sort), False
            case "r":
                self.backwards = not self.backwards
            case "f":
                self.filter = _next(_FILTERS, self.filter)
            case "escape":
                self.search = self.filter = ""
            case "/":
                self.typed = ""
                return True
            case _:
                return True
        self.top = 0
        return True

    def _type(self, key: str) -> None:
        match key:
            case "enter":
                self.search, self.typed, self.top = self.typed or "", None, 0
            case "escape":
                self.typed = None
            case "backspace":
                self.typed = (self.typed or "")[:-1]
            case _ if len(key) == 1:
                self.typed = (self.typed or "") + key


def _next(words: Sequence[str], word: str) -> str:
    return words[(words.index(word) + 1) % len(words)] if word in words else words[0]


def show(target: Target, view: View, *, once: bool, json: bool) -> int:
    """Show the live table until the user quits, and return the exit code. Raises OperatorError.

    The table is printed only once if ``once`` or ``json`` is set, or if there is no terminal.
    """
    console = Console(highlight=False)
    with Api(target, _TIMEOUT_S) as api, ExitStack() as stack:
        if once or json or not console.is_terminal or console.is_dumb_terminal:
            print(_once(api, view, json=json))  # noqa: T201 - for people
            return 0
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        # Ctrl-Z would leave the shell on the alternate screen.
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        typed = stack.enter_context(_keyboard())
        _watch(api, view, stack.enter_context(Live(console=console, screen=True, auto_refresh=False)), typed)
    return 0


def _once(api: Api, view: View, *, json: bool) -> str:
    reply = api.get("limits", **view.query(MAX_PAGE))
    if json:
        return as_json(reply.content)
    page, state = reply.read(dict[str, Any]), api.get("state").read(dict[str, Any])
    lines = map(str, _head(view, state, api.url, page, ""))
    return "\n".join([*lines, "", listing(LIMITS, page["rows"]) if page["rows"] else "Nothing to show yet."])


def _watch(api: Api, view: View, screen: Live, typed: Callable[[float], Sequence[str]]) -> None:
    page: dict[str, Any] = {}
    state: dict[str, Any] = {}
    lost = ""
    while True:
        rows = max(1, screen.console.height - _CHROME_LINES)
        try:
            page = api.get("limits", **view.query(rows)).read(dict[str, Any])
            state = api.get("state").read(dict[str, Any])
            lost = ""
        except ApiError as error:
            if not state or error.exit_code != 1:
                raise
            lost = error.lines[0]
        view.total = page["total"]
        view.scroll(0, rows)
        drawn = draw(view, state, api.url, page, lost=lost, width=screen.console.width)
        screen.update(drawn, refresh=True)
        for key in typed(_REFRESH_S):
            if not view.press(key, rows):
                return


# --- the screen -----------------------------------------------------------------------------------


def draw(
    view: View, state: Mapping[str, Any], url: str, page: Mapping[str, Any], *, lost: str = "", width: int = 120
) -> RenderableType:
    """Return the content of the screen. If the connection was lost, ``lost`` is the reason."""
    keys = Text("q quit   s sort   r reverse   / search   f filter   Esc all   ↑ ↓ PgUp PgDn scroll", style="dim")
    if view.typed is not None:
        keys = Text.assemble(("search: ", "bold"), printable(view.typed), "▏   Enter searches, Esc cancels")
    return Group(*_head(view, state, url, page, lost), _table(page["rows"], width), keys)


def _head(view: View, now: Mapping[str, Any], url: str, page: Mapping[str, Any], lost: str) -> Iterator[Text]:
    count, begin = len(page["rows"]), page.get("offset", 0)
    shown = str(count) if count >= page["total"] or not count else f"{begin + 1} to {begin + count}"
    order = f"by {view.sort}{' (reversed)' if view.backwards else ''}"
    search = f'with "{printable(view.search)}"' if view.search else ""
    what = ", ".join(filter(None, (f"{shown} of {page['total']}", order, view.filter, view.kind, search)))
    title = f"Sluice {now['version']} at {url}, up for {span(now['uptime_s'])}"
    yield Text.assemble((title, "bold"), f"   {what}", no_wrap=True)
    if lost:
        yield Text(f" Connection lost: {lost}; retrying ", style="bold white on red")
    rates, bypassed = now["rates"]["messages_per_s"], now["bypassed"]["per_s_last_60s"]
    edits = now["edits"]["standing"]
    yield Text.assemble(
        ("messages/s  " + passing(rates), "red" if rates["refused"] else ""),
        f"   connections {now['totals']['connections_open']}   edits {edits}",
    )
    banners = [
        (now["off"] or not now["limiting"], f"LIMITING IS {limiting(now)}", "bold white on red"),
        (bypassed, f"BYPASSING: {per_second(bypassed)} requests/s bypassed the limiter in the last minute", ""),
        *(
            (each["stands"], f"{each['scarce'].upper()} ALARM: {each['text']}", "bold white on red")
            for each in now["alarms"]
        ),
        (now["draining"], "DRAINING: no new connections are accepted; Sluice will stop soon", ""),
        *(
            (
                each["reachable"] is False,
                f"BROKER of {each['name']} is not reachable: {each['error']}",
                "bold white on red",
            )
            for each in now["listeners"]
        ),
        *(
            (each["limit_per_s"] is not None, f"BROKER of {each['listener']} is overloaded: {each['text']}", "")
            for each in now["adaptive"]
        ),
        (
            now["fleet"] is not None and now["fleet"]["away_s"] is not None,
            f"FLEET without Redis: {(now['fleet'] or {}).get('text')}",
            "bold white on red",
        ),
        (now["persistence"]["error"], f"EDITS: {now['persistence']['error']}", ""),
    ]
    yield from (
        Text(f" {printable(text)} ", style=style or "black on yellow") for is_so, text, style in banners if is_so
    )


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    columns = [column for column in LIMITS if column.cli and (width >= _WIDE or column.name in _NARROW)]
    lines = [[cell(column, row, columns) for column in columns] for row in rows]
    used = [at for at, column in enumerate(columns) if not column.optional or any(cells[at] for cells in lines)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    for column in (columns[at] for at in used):
        justify: Literal["right", "left"] = "right" if column.format in RIGHT or column.name == "limit" else "left"
        ratio = 1 if column.name == "name" else None
        table.add_column(column.title.lower(), no_wrap=True, ratio=ratio, justify=justify)
    for row, cells in zip(rows, lines, strict=True):
        live = row.get("live") or {}
        style = "red" if live.get("limited") else "yellow" if live.get("would_refuse") or live.get("near") else ""
        table.add_row(*(Text(printable(cells[at])) for at in used), style=style)
    return table


# --- the keyboard ---------------------------------------------------------------------------------


@contextmanager
def _keyboard() -> Iterator[Callable[[float], Sequence[str]]]:
    """Yield a function that waits up to the given number of seconds for key presses, and returns their names.

    When the context exits, the terminal's settings are restored.
    """
    descriptors = [sys.stdin.fileno()] if sys.stdin.isatty() else []

    def read(seconds: float) -> Sequence[str]:
        if not select.select(descriptors, [], [], seconds)[0]:
            return ()
        # Quit at the end of the input, because the terminal is gone.
        return keys(os.read(descriptors[0], 256).decode(errors="ignore")) or ("q",)

    before = [termios.tcgetattr(each) for each in descriptors]
    for each in descriptors:
        tty.setcbreak(each)
    try:
        yield read
    finally:
        for each, attributes in zip(descriptors, before, strict=True):
            termios.tcsetattr(each, termios.TCSADRAIN, attributes)


def keys(text: str) -> list[str]:
    """Return the names of the keys in terminal input. A printable character is its own name."""
    named = (_KEYS.get(each, each) for each in _KEY.findall(text))
    return [key for key in named if key.isprintable()]
