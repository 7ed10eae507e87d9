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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_examples import STATE as EXAMPLE
from rich.console import Console

from admin.client.top import View, draw, keys

SLUICE = Path(sys.executable).with_name("sluice")
SCREEN = b"\x1b[?1049h"
BACK = b"\x1b[?1049l"
URL = "http://127.0.0.1:1"
STATE = msgspec.to_builtins(EXAMPLE) | {
    "version": "0.1.0",
    "uptime_s": 90,
    "limiting": True,
    "off": [],
    "draining": False,
    "listeners": [],
    "alarms": [],
    "bypassed": {"per_s_last_60s": 0.0},
    "persistence": {"directory": None, "error": None},
    "rates": {"messages_per_s": {"passed": 10.0, "refused": 2.5, "shadowed": 0}},
    "edits": {"standing": 2},
    "totals": {"connections_open": 4},
}


def row(name: str, refused: float = 0.0, **fields: Any) -> dict[str, Any]:
    live = {"passed_per_s": 1.0, "refused_per_s": refused, "used_ratio": 0.5, "limited": refused > 0}
    return {"kind": "topic", "name": name, "limit_text": "500/s", "live": live} | fields


def page(*rows: dict[str, Any], total: int = 0, offset: int = 0) -> dict[str, Any]:
    return {"rows": list(rows), "total": total or len(rows), "offset": offset, "etag": "e"}


ORDERS = page(row("orders", 3.0), row("mail"))


def seen(view: View, state: dict[str, Any] = STATE, rows: dict[str, Any] = ORDERS, lost: str = "") -> str:
    console = Console(file=io.StringIO(), width=140, height=24, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(draw(view, state, URL, rows, lost=lost))
    return capture.get()


class TestScreen:
    def test_shows_totals_and_rows_in_their_order(self) -> None:
        text = seen(View())
        assert f"Sluice 0.1.0 at {URL}, up for 1 min 30 s   2 of 2, by refused" in text
        assert "messages/s  10 passed, 2.5 refused   connections 4   edits 2" in text
        assert text.index("orders") < text.index("mail")
        assert "would" not in text

    def test_shows_shadow_refusals_if_any(self) -> None:
        live = {"passed_per_s": 9.0, "refused_per_s": 0.0, "shadowed_per_s": 4.0, "would_refuse": True}
        rows = page(row("dark", live=live, limit={"rate": 5, "action": "shadow"}))
        text = " ".join(seen(View(), rows=rows).split())
        assert "kind resource limit action passed/s refused/s would refuse/s used" in text
        assert "topic dark 500/s shadow 9 0 4" in text

    @pytest.mark.parametrize(
        ("state", "banner"),
        [
            ({"limiting": False}, "LIMITING IS OFF: everything passes"),
            ({"off": ["topic"]}, "LIMITING IS on, OFF for topic"),
            ({"bypassed": {"per_s_last_60s": 1.5}}, "BYPASSING: 1.5 requests/s"),
            ({"draining": True}, "DRAINING"),
            ({"persistence": {"directory": None, "error": "disk full"}}, "EDITS: disk full"),
            ({"alarms": [{"stands": True, "scarce": "memory", "text": "no room"}]}, "MEMORY ALARM: no room"),
            (
                {"adaptive": [{"listener": "main", "limit_per_s": 5.0, "text": "adaptive: 5/s now"}]},
                "BROKER of main is overloaded: adaptive: 5/s now",
            ),
            (
                {"fleet": {"away_s": 12.0, "text": "Redis has not answered for 12.0 s"}},
                "FLEET without Redis: Redis has not answered for 12.0 s",
            ),
            (
                {"listeners": [{"name": "main", "reachable": False, "error": "refused"}]},
                "BROKER of main is not reachable: refused",
            ),
        ],
    )
    def test_highlights_urgent_states(self, state: dict[str, Any], banner: str) -> None:
        assert banner not in seen(View())
        assert banner in seen(View(), STATE | state)

    def test_shows_the_selected_rows_and_the_missing_updates(self) -> None:
        view = View(search="or", filter="near", kind="topic", backwards=True)
        text = seen(view, rows=page(row("a"), total=100, offset=30), lost="nobody answers")
        assert '31 to 31 of 100, by refused (reversed), near, topic, with "or"' in " ".join(text.split())
        assert "Connection lost: nobody answers; retrying" in text

    def test_gives_the_terminal_no_orders(self) -> None:
        view = View(typed="\x1b")
        assert "\x1b" not in seen(view, rows=page(row("a\x1b[2J")))


class TestKeys:
    @pytest.mark.parametrize(
        ("typed", "named"),
        [
            ("q", ["q"]),
            ("/or\r", ["/", "o", "r", "enter"]),
            ("\x7f\x08", ["backspace", "backspace"]),
            ("\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "down", "pageup", "pagedown", "home", "end"]),
            ("\x1b", ["escape"]),
            ("\x1b[1;5Cq\x01", ["q"]),
        ],
    )
    def test_are_named(self, typed: str, named: list[str]) -> None:
        assert keys(typed) == named

    def test_sort_reverse_filter_and_search_from_the_top(self) -> None:
        view = View(top=7, total=100)
        assert all(view.press(key, 10) for key in ("s", "r", "f", "/", "o", "x", "backspace", "enter"))
        wanted = {"kind": "", "search": "o", "filter": "limited", "sort": "passed", "order": "asc"}
        assert view.query(10) == wanted | {"offset": 0, "limit": 10, "history": "0"}
        view.press("escape", 10)
        assert (view.search, view.filter) == ("", "")
        view.press("/", 10)
        assert view.press("q", 10)
        view.press("escape", 10)
        assert not view.press("q", 10)

    def test_go_round_columns_and_filters(self) -> None:
        view = View()
        for key in "ssssss" + "fffff":
            view.press(key, 10)
        assert view == View()
        assert View(sort="name").query(1)["order"] == "asc"

    def test_scroll_within_the_list(self) -> None:
        view = View(total=100)
        for key, top in (("down", 1), ("pagedown", 13), ("up", 12), ("end", 88), ("pageup", 76), ("home", 0)):
            view.press(key, 12)
            assert view.top == top


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
        start = len(self.output)
        while text not in self.output[start:]:
            ready, _, _ = select.select([self._ours], [], [], 30)
            assert ready, f"{text!r} is not in {self.output[start:]!r}"
            self.output += os.read(self._ours, 65536)

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def end(self) -> int:
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
    def limits(request: Any) -> Any:
        name, first = request.query.get("search") or request.query["sort"], int(request.query.get("offset", 0))
        rows = (row(f"topic-{at}-by-{name}", 3.0) for at in range(first, first + int(request.query["limit"])))
        return 200, page(*rows, total=100, offset=first)

    api.answers["GET /limits"], api.answers["GET /state"] = limits, (200, STATE)
    terminal = Terminal(api.address)
    try:
        terminal.wait_for(b"topic-0-by-refused")
        yield terminal
    finally:
        terminal.close()


class TestTerminal:
    def test_keys_scroll_sort_search_and_end_it(self, terminal: Terminal) -> None:
        terminal.type(b"\x1b[B")
        terminal.wait_for(b"2 to 23 of 100")
        terminal.type(b"\x1b[6~")
        terminal.wait_for(b"24 to 45 of 100")
        terminal.type(b"s")
        terminal.wait_for(b"topic-0-by-passed")
        terminal.type(b"/")
        terminal.wait_for(b"search:")
        terminal.type(b"orderz\x7fs\r")
        terminal.wait_for(b"topic-0-by-orders")
        terminal.type(b"q")
        assert terminal.end() == 0
        assert terminal.is_as_it_was

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_leaves_the_terminal_as_it_was(self, terminal: Terminal, number: signal.Signals) -> None:
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
        assert terminal.is_as_it_was

    def test_a_lost_sidecar_is_reported_and_polled_again(self, api: Any, terminal: Terminal, problem: Any) -> None:
        before = api.answers["GET /state"]
        api.answers["GET /state"] = problem(503, "busy")
        terminal.wait_for(b"Connection lost: ")
        api.answers["GET /state"] = before
        terminal.type(b"s")
        terminal.wait_for(b"by-passed")
        terminal.type(b"q")
        assert terminal.end() == 0
        assert terminal.is_as_it_was

    def test_a_refusal_restores_the_terminal_and_prints_the_reason(
        self, api: Any, terminal: Terminal, problem: Any
    ) -> None:
        api.answers["GET /limits"] = problem(401, "the token is wrong")
        assert terminal.end() == 4
        assert terminal.is_as_it_was
        assert b"the token is wrong" in terminal.output.rpartition(BACK)[2]
