import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from admin.client.screen import room
from admin.client.target import Target
from admin.client.top import News, View, Wish, draw, follow

SLUICE = Path(sys.executable).with_name("sluice")
SCREEN = b"\x1b[?1049h"
BACK = b"\x1b[?1049l"
STATE = {
    "version": "0.1.0",
    "uptime_s": 90,
    "limiting": True,
    "off": [],
    "draining": False,
    "listeners": [],
    "totals": {"connections": 9, "connections_open": 4},
    "rates": {"messages_per_s": {"passed": 10.0, "refused": 2.5}},
    "bypassed": {"total": 0, "per_s_last_60s": 0.0, "by": []},
    "edits": {"standing": 2, "expiring_next": None},
}


def row(name: str, refused: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {
        "key": f"topic/{name}",
        "kind": "topic",
        "name": name,
        "limit_text": "500/s",
        "live": {"passed_per_s": 1.0, "refused_per_s": refused, "used_ratio": 0.5, "limited": refused > 0},
    } | fields


def page(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"rows": list(rows), "total": len(rows), "offset": 0, "etag": "e"}


@pytest.fixture
def view() -> View:
    view = View("http://127.0.0.1:1", Wish())
    view.take("state", json.dumps(STATE).encode())
    view.take("limits", json.dumps(page(row("orders", 3.0), row("mail"))).encode())
    return view


def seen(view: View, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=140, height=height, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(draw(view, height))
    return capture.get()


class TestView:
    def test_shows_totals_and_rows_in_their_order(self, view: View) -> None:
        text = seen(view)
        assert "Sluice 0.1.0 at http://127.0.0.1:1, up for 1 min 30 s   2 of 2, by refused" in text
        assert "messages/s  10 passed, 2.5 refused   connections 4   edits 2" in text
        assert text.index("orders") < text.index("mail")

    def test_shows_what_would_be_refused_where_there_is_any(self, view: View) -> None:
        assert "would" not in seen(view)
        live = {"passed_per_s": 9.0, "refused_per_s": 0.0, "shadowed_per_s": 4.0, "would_refuse": True}
        by = {"passed_per_s": 1, "refused_per_s": 2, "limited": True, "refused_by": "client:*"}
        rows = page(row("dark", live=live, limit={"rate": 5, "action": "shadow"}), row("log", live=by))
        view.take("limits", json.dumps(rows).encode())
        state = STATE | {"rates": {"messages_per_s": {"passed": 10.0, "refused": 2.5, "shadowed": 4.0}}}
        view.take("state", json.dumps(state).encode())
        text = " ".join(seen(view).split())
        assert "10 passed, 2.5 refused, 4 would be refused" in text
        assert "kind resource limit action passed/s refused/s would refuse/s used" in text
        assert "topic dark 500/s shadow 9 0 4" in text
        assert "client:*" in text

    def test_takes_in_only_what_changed(self, view: View) -> None:
        changed = {
            "rows": [{"key": "topic/mail", "limit_text": "7/s"}],
            "order": ["topic/mail", "topic/orders"],
            "total": 5,
        }
        view.take("limits", json.dumps(changed).encode())
        assert [(each["name"], each["limit_text"]) for each in view.shown()] == [("mail", "7/s"), ("orders", "500/s")]
        assert view.total == 5

    def test_forgets_rows_that_are_not_in_the_order_any_more(self, view: View) -> None:
        view.take("limits", json.dumps({"rows": [], "order": ["topic/mail"]}).encode())
        assert [each["name"] for each in view.shown()] == ["mail"]
        assert list(view.rows) == ["topic/mail"]

    def test_leaves_aside_events_that_it_does_not_know(self, view: View) -> None:
        view.take("change", b"{}")
        view.take("anything", b"no JSON")

    @pytest.mark.parametrize(
        ("state", "banner"),
        [
            ({"limiting": False}, "LIMITING IS OFF: everything passes"),
            ({"off": ["topic"]}, "LIMITING IS on, OFF for topic"),
            ({"bypassed": {"total": 5, "per_s_last_60s": 1.5, "by": []}}, "BYPASSING: 1.5 requests/s"),
            ({"draining": True}, "DRAINING"),
            ({"persistence": {"directory": None, "error": "disk full"}}, "EDITS: disk full"),
            (
                {
                    "listeners": [
                        {
                            "name": "main",
                            "listen": "a:1",
                            "broker": "b:1",
                            "connections": 0,
                            "reachable": False,
                            "error": "refused",
                        }
                    ]
                },
                "BROKER of main not reachable: refused",
            ),
        ],
    )
    def test_shouts_what_an_operator_must_not_miss(self, view: View, state: dict[str, Any], banner: str) -> None:
        assert banner not in seen(view)
        view.take("state", json.dumps(STATE | state).encode())
        assert banner in seen(view)

    def test_says_that_there_is_no_news_until_there_is(self, view: View) -> None:
        view.lost = "nobody answers"
        assert "No news: nobody answers; asking again" in seen(view)
        view.take("state", json.dumps(STATE).encode())
        assert "No news" not in seen(view)

    def test_shows_no_more_rows_than_there_is_room_for(self, view: View) -> None:
        view.take("limits", json.dumps(page(*(row(f"topic-{at}") for at in range(100)))).encode())
        assert len(seen(view, 20).splitlines()) <= 20

    def test_scrolls_and_says_which_rows_are_shown(self, view: View) -> None:
        view.take("limits", json.dumps(page(*(row(f"topic-{at:03}") for at in range(100)))).encode())
        view.scroll(30, room(20))
        text = seen(view, 20)
        assert "topic-029" not in text
        assert "topic-030" in text
        assert "31 to 42 of 100" in text
        view.scroll(10**9, room(20))
        assert "89 to 100 of 100" in seen(view, 20)
        view.scroll(-(10**9), room(20))
        assert "topic-000" in seen(view, 20)

    def test_asks_for_other_rows_where_it_has_none(self, view: View) -> None:
        view.take("limits", json.dumps(page(*(row(f"topic-{at}") for at in range(500))) | {"total": 2000}).encode())
        view.scroll(400, 12)
        assert view.wish.query()["offset"] == 0
        view.scroll(100, 12)
        assert view.wish.query()["offset"] == 250
        assert "topic-" in seen(view, 20)
        rows = page(*(row(f"later-{at}") for at in range(250, 750))) | {"total": 2000, "offset": 250}
        view.take("limits", json.dumps(rows).encode())
        text = seen(view, 20)
        assert "later-500" in text
        assert "501 to 512 of 2000" in text

    def test_gives_the_terminal_no_orders(self, view: View) -> None:
        view.take("limits", json.dumps(page(row("a\x1b[2J"))).encode())
        view.typed = "\x1b"
        assert "\x1b" not in seen(view)


class TestWish:
    def test_sorts_figures_downwards_and_names_upwards(self) -> None:
        assert Wish(sort="used").query()["order"] == "desc"
        assert Wish(sort="used", backwards=True).query()["order"] == "asc"
        assert Wish(sort="name").query()["order"] == "asc"

    def test_goes_round_the_columns_and_filters(self) -> None:
        wish = Wish()
        for _ in range(6):
            wish = wish.next_sort()
        for _ in range(5):
            wish = wish.next_filter()
        assert wish == Wish()


class TestFollowing:
    def test_asks_again_when_the_sidecar_goes_away(self, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("admin.client.top._AGAIN_S", 0)
        api.answers["GET /events"] = lambda _: (200, iter([("state", STATE)]))
        stop, told = threading.Event(), []

        def tell(news: News) -> None:
            told.append(news.event)
            if told.count("state") == 2:
                stop.set()

        follow(Target(api.url), Wish().query(), 1, tell, stop)
        assert told == ["state", "lost", "state"]
        assert api.asked[0].query["sort"] == "refused"

    @pytest.mark.parametrize(("status", "exit_code"), [(401, 4), (400, 2), (503, 1)])
    def test_of_what_is_refused_ends(self, api: Any, problem: Any, status: int, exit_code: int) -> None:
        api.answers["GET /events"] = problem(status, "no")
        told: list[News] = []
        follow(Target(api.url), {}, 1, told.append, threading.Event())
        (news,) = told
        assert news.error is not None
        assert news.error.exit_code == exit_code


class TestOnce:
    def test_off_a_terminal_one_table_is_printed(self, api: Any, sluice: Callable[..., Any]) -> None:
        api.answers["GET /state"] = (200, STATE)
        api.answers["GET /limits"] = (200, page(row("orders", 3.0)))
        lines = sluice("top", "--search", "or").out.splitlines()
        assert lines[0].endswith('1 of 1, by refused, with "or"')
        assert lines[-1].split()[:4] == ["topic", "orders", "500/s", "1"]

    def test_as_json_is_the_apis_list(self, api: Any, sluice: Callable[..., Any]) -> None:
        api.answers["GET /limits"] = (200, page(row("orders")))
        assert json.loads(sluice("top", "--json").out) == page(row("orders"))


class Terminal:
    """A terminal with `sluice top` on it."""

    def __init__(self, address: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.output = b""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        self.process = subprocess.Popen(
            [SLUICE, "top", "--admin", address],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"},
            start_new_session=True,
        )

    def wait_for(self, text: bytes) -> None:
        """Read until something is shown."""
        start = len(self.output)
        while text not in self.output[start:]:
            ready, _, _ = select.select([self._ours], [], [], 30)
            assert ready, f"{text!r} is not in {self.output[start:]!r}"
            self.output += os.read(self._ours, 65536)

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def end(self) -> int:
        """Read to the end and return how it ended."""
        while self.process.poll() is None:
            if select.select([self._ours], [], [], 0.1)[0]:
                self.output += os.read(self._ours, 65536)
        while select.select([self._ours], [], [], 0)[0]:
            self.output += os.read(self._ours, 65536)
        return self.process.returncode

    @property
    def is_as_it_was(self) -> bool:
        on, off = self.output.rfind(SCREEN), self.output.rfind(BACK)
        return -1 < on < off and termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(api: Any) -> Iterator[Terminal]:
    ended = threading.Event()

    def events(request: Any) -> Any:
        def stream() -> Iterator[tuple[str, Any]]:
            name = request.query.get("search") or request.query["sort"]
            yield "state", STATE
            yield "limits", page(row(f"topic-by-{name}", 3.0))
            while not ended.wait(0.05):
                yield "state", STATE

        return 200, stream()

    api.answers["GET /events"] = events
    terminal = Terminal(api.address)
    try:
        terminal.wait_for(b"topic-by-refused")
        yield terminal
    finally:
        terminal.close()
        ended.set()


class TestTerminal:
    def test_arrows_scroll(self, api: Any, terminal: Terminal) -> None:
        rows = page(*(row(f"row-{at:03}") for at in range(100)))
        ended = threading.Event()

        def stream() -> Iterator[tuple[str, Any]]:
            yield "state", STATE
            yield "limits", rows
            while not ended.wait(0.05):
                yield "state", STATE

        api.answers["GET /events"] = lambda _: (200, stream())
        terminal.type(b"s")
        terminal.wait_for(b"row-000")
        terminal.type(b"\x1b[B")
        terminal.wait_for(b"2 to 23 of 100")
        terminal.type(b"\x1b[6~")
        terminal.wait_for(b"24 to 45 of 100")
        terminal.type(b"q")
        assert terminal.end() == 0
        ended.set()

    def test_keys_sort_search_and_end_it(self, terminal: Terminal) -> None:
        terminal.type(b"s")
        terminal.wait_for(b"topic-by-passed")
        terminal.type(b"/")
        terminal.wait_for(b"search:")
        terminal.type(b"orderz\x7fs\r")
        terminal.wait_for(b"topic-by-orders")
        terminal.type(b"q")
        assert terminal.end() == 0
        assert terminal.is_as_it_was

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_leaves_the_terminal_as_it_was(self, terminal: Terminal, number: signal.Signals) -> None:
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
        assert terminal.is_as_it_was

    def test_a_sidecar_that_goes_away_is_said_and_asked_again(self, api: Any, terminal: Terminal, problem: Any) -> None:
        api.answers["GET /events"] = lambda _: (200, iter(()))
        terminal.type(b"s")
        terminal.wait_for(b"No news: ")
        terminal.type(b"q")
        assert terminal.end() == 0
        assert terminal.is_as_it_was

    def test_being_refused_leaves_the_terminal_and_says_why(self, api: Any, terminal: Terminal, problem: Any) -> None:
        api.answers["GET /events"] = problem(401, "the token is wrong")
        terminal.type(b"s")
        assert terminal.end() == 4
        assert terminal.is_as_it_was
        assert b"the token is wrong" in terminal.output.rpartition(BACK)[2]


def test_before_the_first_figures_it_says_that_it_waits(view: View) -> None:
    for shown, waits in ((View("http://127.0.0.1:1", Wish()), True), (view, False)):
        stream = io.StringIO()
        Console(file=stream, width=100).print(draw(shown, 24))
        assert ("Waiting for the first figures" in stream.getvalue()) is waits
