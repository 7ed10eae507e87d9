"""``sluice top``: limits, rates and refusals live on a terminal. Without one it prints one table and ends.

One thread follows the sidecar's events and reconnects; the main thread draws (``admin.client.screen``) and reads keys.
"""

import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.live import Live as Screen

from admin.client import NoAnswerError
from admin.client.api import Api, path
from admin.client.keyboard import Keyboard
from admin.client.screen import View, Wish, draw, head, room
from admin.client.tables import listing
from admin.client.target import Target
from admin.common.columns import LIMITS
from admin.common.errors import OperatorError
from admin.wire import State

__all__ = ["News", "View", "Wish", "draw", "follow", "watch"]

_AGAIN_S: Final = 1.0
_REDRAW_S: Final = 1.0
# Direction by key; the ends are further away than there are rows.
_SCROLLING: Final = {"up": -1, "down": 1, "pageup": -1, "pagedown": 1, "home": -(10**9), "end": 10**9}


class News(NamedTuple):
    """From the following thread: an event, or ``lost`` and ``failed`` with the reason.

    Attributes:
        generation: of the thread; a replaced one may still send something.
        event: its name.
        body: its JSON, or the reason.
        error: of ``failed``.
    """

    generation: int
    event: str
    body: bytes = b""
    error: OperatorError | None = None


def watch(target: Target, wish: Wish, *, once: bool, json: bool) -> int:
    """Show the sidecar live, or once without a terminal.

    Returns:
        The exit code: 0, or 128 + the number of the signal that ended it.

    Raises:
        OperatorError: it cannot be asked.
    """
    console = Console(highlight=False)
    if once or json or not console.is_terminal or console.is_dumb_terminal:
        print(_once(target, wish, json=json))  # noqa: T201 - the command line speaks to people here
        return 0
    with ExitStack() as running:
        ended = running.enter_context(_signals())
        keyboard = running.enter_context(Keyboard(sys.stdin))
        screen = running.enter_context(Screen(console=console, screen=True, auto_refresh=False))
        _Watching(target, wish, console, screen, keyboard).run(ended)
    return 128 + ended[0] if ended else 0


def _once(target: Target, wish: Wish, *, json: bool) -> str:
    with Api(target) as api:
        reply = api.get(path("limits"), wish.query())
        if json:
            return reply.json()
        page = reply.read(dict[str, Any])
        now = api.get(path("state")).read(State)
    rows = page["rows"]
    view = View(target.url, wish, total=page["total"], state=now)
    lines = [str(line) for line in head(view, str(len(rows)))]
    return "\n".join([*lines, "", listing(LIMITS, rows) if rows else "Nothing has been asked for."])


class _Watching:
    """Draws what comes in, and does what is typed."""

    def __init__(self, target: Target, wish: Wish, console: Console, screen: Screen, keyboard: Keyboard) -> None:
        self._target, self._console, self._screen, self._keyboard = target, console, screen, keyboard
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._generations = count(1)
        self._generation = 0
        self._stop = threading.Event()
        self.view = View(target.url, wish)

    def run(self, ended: list[int]) -> None:
        """Watch until a key or a signal ends it."""
        self._follow()
        try:
            while not ended:
                self._screen.update(draw(self.view, self._console.height, self._console.width), refresh=True)
                for key in self._keyboard.wait(_REDRAW_S):
                    if not self._press(key):
                        return
                self._take_news()
        finally:
            self._stop.set()

    def _follow(self) -> None:
        """Follow the present wish; the thread before ends with its next event."""
        self._stop.set()
        self._stop = threading.Event()
        self._generation = next(self._generations)
        threading.Thread(
            target=follow,
            args=(self._target, self.view.wish.query(), self._generation, self._tell, self._stop),
            daemon=True,
        ).start()

    def _tell(self, news: News) -> None:
        self._news.put(news)
        self._keyboard.wake()

    def _take_news(self) -> None:
        while not self._news.empty():
            news = self._news.get()
            if news.generation != self._generation:
                continue
            if news.error is not None:
                raise news.error
            if news.event == "lost":
                self.view.lost = news.body.decode()
            else:
                self.view.take(news.event, news.body)

    def _press(self, key: str) -> bool:
        """Handle a key; return whether to continue."""
        view, before = self.view, self.view.wish
        if view.typed is not None:
            if key == "enter":
                view.wish = replace(before, search=view.typed, offset=0)
                view.typed = None
            elif key == "escape":
                view.typed = None
            elif key == "backspace":
                view.typed = view.typed[:-1]
            elif len(key) == 1:
                view.typed += key
        elif key in {"q", "Q"}:
            return False
        elif key == "s":
            view.wish = before.next_sort()
        elif key == "r":
            view.wish = replace(before, backwards=not before.backwards, offset=0)
        elif key == "f":
            view.wish = before.next_filter()
        elif key == "/":
            view.typed = ""
        elif key == "escape":
            view.wish = replace(before, search="", filter="", offset=0)
        elif key in _SCROLLING:
            rows = room(self._console.size.height)
            view.scroll(_SCROLLING[key] * (1 if key in {"up", "down"} else rows), rows)
        if view.wish != before and replace(view.wish, offset=before.offset) != before:
            # Another list starts at its top.
            view.top = 0
        if view.wish != before:
            self._follow()
        return True


def follow(
    target: Target,
    query: dict[str, Any],
    generation: int,
    tell: Callable[[News], None],
    stop: threading.Event,
) -> None:
    """Send events until it is stopped; reconnect when the sidecar goes away.

    Args:
        target: of the sidecar.
        query: as the API takes it.
        generation: sent with everything.
        tell: called from this thread.
        stop: ends it.
    """
    reached = False
    while not stop.is_set():
        why = "the sidecar ended it"
        try:
            with Api(target) as api:
                for event, body in api.events(query):
                    if stop.is_set():
                        return
                    reached = True
                    tell(News(generation, event, body))
        except NoAnswerError as error:
            why = error.lines[0]
            if not reached:
                tell(News(generation, "failed", error=error))
                return
        except OperatorError as error:
            tell(News(generation, "failed", error=error))
            return
        if not stop.is_set():
            tell(News(generation, "lost", why.encode()))
        stop.wait(_AGAIN_S)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals, so that the terminal is restored before the process ends.

    SIGTSTP is ignored: it would leave a shell on the alternate screen.
    """
    ended: list[int] = []

    def end(number_: int, _frame: FrameType | None) -> None:
        ended.append(number_)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, end) for each in numbers}
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield ended
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
