"""Single keys from a terminal, without Enter. The terminal is restored in any case."""

import os
import re
import select
import termios
import tty
from types import TracebackType
from typing import Any, Final, Self, TextIO

_NAMES: Final = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}
_SEQUENCES: Final = {
    "[A": "up",
    "OA": "up",
    "[B": "down",
    "OB": "down",
    "[5~": "pageup",
    "[6~": "pagedown",
    "[H": "home",
    "OH": "home",
    "[1~": "home",
    "[F": "end",
    "OF": "end",
    "[4~": "end",
}
_SEQUENCE: Final = re.compile(r"\x1b(\[[0-9;]*[@-~]|O.)")
_CHUNK_BYTES: Final = 256


class Keyboard:
    """The keys of a terminal, or none from other streams; use it as a context manager."""

    def __init__(self, stream: TextIO | None) -> None:
        self._terminal = stream.fileno() if stream is not None and stream.isatty() else None
        self._before: list[Any] | None = None
        self._woken, self._waker = -1, -1

    def __enter__(self) -> Self:
        """Take the keys one by one."""
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._terminal is not None:
            self._before = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put the terminal back."""
        if self._terminal is not None and self._before is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        woken, waker, self._woken, self._waker = self._woken, self._waker, -1, -1
        os.close(woken)
        os.close(waker)

    def wake(self) -> None:
        """End a wait, from any thread."""
        try:
            os.write(self._waker, b"\0")
        except OSError:
            # The pipe is full, so a wait ends anyway; or nobody waits any more.
            return

    def wait(self, seconds: float) -> list[str]:
        """Wait up to so many seconds for keys or ``wake``; return the keys."""
        watched = [self._woken] + ([self._terminal] if self._terminal is not None else [])
        try:
            ready, _, _ = select.select(watched, [], [], seconds)
        except InterruptedError:
            return []
        if self._woken in ready:
            os.read(self._woken, _CHUNK_BYTES)
        if self._terminal is None or self._terminal not in ready:
            return []
        typed = os.read(self._terminal, _CHUNK_BYTES)
        if not typed:
            # The terminal is gone.
            self._terminal = None
            return []
        return keys(typed.decode(errors="ignore"))


def keys(text: str) -> list[str]:
    """Name the typed keys: characters are themselves, keys without a name here are left out."""
    found = []
    while text:
        if sequence := _SEQUENCE.match(text):
            found.append(_SEQUENCES.get(sequence[1], ""))
            text = text[sequence.end() :]
        elif text.startswith("\x1b") and len(text) > 1:
            # Alt and a key, or cut off.
            return [key for key in found if key]
        else:
            found.append(_NAMES.get(text[0], text[0]))
            text = text[1:]
    return [key for key in found if len(key) > 1 or (key.isprintable() and key)]
