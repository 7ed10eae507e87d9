import os
import pty
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from admin.client.keyboard import Keyboard, keys


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("q", ["q"]),
        ("/or\r", ["/", "o", "r", "enter"]),
        ("\x7f\x08", ["backspace", "backspace"]),
        ("\x1b", ["escape"]),
        ("\x1b[A\x1bOB", ["up", "down"]),
        ("\x1b[5~j\x1b[6~", ["pageup", "j", "pagedown"]),
        ("\x1b[H\x1b[F", ["home", "end"]),
        ("\x1b[1;5C", []),
        ("\x1bx", []),
        ("\x00\x04", []),
        ("ü", ["ü"]),
    ],
)
def test_keys_have_names(typed: str, named: list[str]) -> None:
    assert keys(typed) == named


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as stream:
        yield ours, stream
    os.close(ours)


def test_keys_come_one_by_one_and_the_terminal_is_put_back(terminal: tuple[int, TextIO]) -> None:
    ours, stream = terminal
    before = termios.tcgetattr(stream)
    with Keyboard(stream) as keyboard:
        os.write(ours, b"s")
        assert keyboard.wait(30) == ["s"]
        assert termios.tcgetattr(stream) != before
    assert termios.tcgetattr(stream) == before


def test_the_terminal_is_put_back_after_an_error(terminal: tuple[int, TextIO]) -> None:
    _, stream = terminal
    before = termios.tcgetattr(stream)
    with pytest.raises(ZeroDivisionError), Keyboard(stream):
        raise ZeroDivisionError
    assert termios.tcgetattr(stream) == before


def test_another_thread_wakes_it() -> None:
    with Keyboard(None) as keyboard:
        for _ in range(100_000):
            keyboard.wake()
        assert keyboard.wait(30) == []
    keyboard.wake()
