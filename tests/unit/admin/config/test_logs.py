import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from admin.config import logs
from admin.config.faults import read
from admin.config.settings import LogSettings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(stream: io.StringIO, level: Literal["debug", "info", "warning", "error"] = "info", **settings: str) -> str:
    logs.configure(read(LogSettings, {"level": level, **settings}), stream)
    structlog.get_logger("test").info("listening", address="127.0.0.1:1")
    return stream.getvalue()


def test_off_a_terminal_a_line_is_one_json_object() -> None:
    text = written(io.StringIO())
    entry = json.loads(text)
    assert text.count("\n") == 1
    assert list(entry) == ["timestamp", "level", "event", "address"]
    assert (entry["level"], entry["event"], entry["address"]) == ("info", "listening", "127.0.0.1:1")


def test_on_a_terminal_a_line_is_for_people() -> None:
    text = written(Terminal())
    assert "listening" in text
    assert not text.startswith("{")


def test_a_name_gives_the_terminal_no_orders() -> None:
    stream = Terminal()
    logs.configure(LogSettings(format="human"), stream)
    structlog.get_logger("test").info("limit changed", what="topic a\x1b]0;b\x07", why="\x9bc", all=["\x1bd"])
    orders = stream.getvalue().replace("\x1b[", "")
    assert "\x1b" not in orders
    assert "\x07" not in orders
    assert "\x9b" not in orders
    assert "x1b]0;b" in orders


def test_warnings_of_libraries_come_in_the_same_form() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    logging.getLogger("library.error").warning("slow %s", "client")
    logging.getLogger("library.error").info("routine")
    entry = json.loads(stream.getvalue())
    assert (entry["level"], entry["event"]) == ("warning", "slow client")
