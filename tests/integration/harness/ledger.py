"""Checks the output of a client that sends and consumes for ever: outcome and delivery of each message."""

import time
from collections.abc import Callable
from typing import Final

from harness.process import ManagedProcess

_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 0.05
_STORED, _REFUSED, _UNKNOWN, _GOT = _WORDS = "stored", "refused", "unknown", "got"


class Ledger:
    def __init__(self, name: str, client: ManagedProcess) -> None:
        self.name, self.client = name, client
        self.stored: set[int] = set()
        self.refused: set[int] = set()
        self.unknown: set[int] = set()
        self.got: set[int] = set()
        self.stored_ms: list[int] = []
        self._read = 0

    def look(self) -> None:
        lines = self.client.lines
        for line in lines[self._read :]:
            word, _, rest = line.partition(" ")
            if word in _WORDS:
                number, at_ms = map(int, rest.split())
                getattr(self, word).add(number)
                if word == _STORED:
                    self.stored_ms.append(at_ms)
        self._read = len(lines)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            self.look()
            if condition():
                return
            if time.monotonic() > deadline_s or not self.client.running:
                raise self.client.failure(f"{self.name}: not {what}")
            time.sleep(_LOOK_S)

    def wait_for_more(self, stored: int) -> None:
        """Wait for this many more messages stored, and delivered."""
        self.look()
        have = len(self.stored), len(self.got)
        self.wait_for(
            lambda: len(self.stored) >= have[0] + stored and len(self.got) >= have[1] + stored,
            f"{stored} more messages stored and consumed, beyond {have}",
        )

    def check(self) -> str:
        """Check outcomes against deliveries, once everything stored so far has arrived. Return the number."""
        self.look()
        stored = set(self.stored)
        self.wait_for(lambda: stored <= self.got, f"all consumed that was stored; {len(stored - self.got)} were not")
        assert not self.refused & self.got, f"{self.name}: refused, and yet stored: {self.refused & self.got}"
        assert not self.refused & self.stored
        return f"{self.name}: {len(self.stored)} stored, {len(self.refused)} refused, {len(self.unknown)} unknown"

    def first_stored_ms(self, since_ms: int) -> int:
        """Wait until a message was stored since then. Return the time of its confirm, in ms since 1970."""

        def found() -> list[int]:
            return [at_ms for at_ms in self.stored_ms if at_ms >= since_ms]

        self.wait_for(lambda: bool(found()), "stored anything more")
        return found()[0]
