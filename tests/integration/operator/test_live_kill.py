"""Live edits under ``kill -9``: what was acknowledged is there, what was not is there as a whole or not at all."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import live_child
from harness.live_child import NAMES_EACH, WRITERS

pytestmark = pytest.mark.long

KILLS = 200
MAX_LINES = 60
MAX_MS = 5


class Server:
    """The fork server."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, live_child.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, directory: Path, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{directory} {seed}\n".encode())
        self._process.stdin.flush()

    def line(self) -> tuple[str, str]:
        assert self._process.stdout is not None
        word, _, rest = self._process.stdout.readline().decode().partition(" ")
        assert word != "failed", rest
        return word, rest.strip()

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


class Witness:
    """What the parent was told, and what may therefore be found."""

    def __init__(self) -> None:
        self.acknowledged = dict.fromkeys(range(WRITERS), 0)
        self.tried: dict[int, list[int]] = {task: [] for task in range(WRITERS)}
        self.ids: list[int] = []

    def hear(self, word: str, rest: str) -> bool:
        """Take a line, and say whether it acknowledges something."""
        task, number, *ids = map(int, rest.split())
        if word == "try":
            self.tried[task].append(number)
        else:
            self.acknowledged[task] = number
            self.tried[task].clear()
            # Ids never come twice, over all restarts.
            assert not self.ids or min(ids) > self.ids[0] - 10_000
            assert not set(ids) & set(self.ids)
            self.ids += ids
        return word == "ack"

    def check(self, found: dict[str, int], audited: list[int]) -> None:
        for task in range(WRITERS):
            rates = {found.get(f"limits/topic/t{task}-{each}", 0) for each in range(NAMES_EACH)}
            assert len(rates) == 1, f"half of a batch: {rates}"
            (rate,) = rates
            assert rate in {self.acknowledged[task], *self.tried[task]}
            self.acknowledged[task] = rate
            self.tried[task].clear()
        assert len(audited) == len(set(audited))
        kept = [id_ for id_ in self.ids if id_ >= min(audited, default=0)]
        assert set(kept) <= set(audited)


def test_acknowledged_edits_survive_200_kills_and_no_other_is_there_by_half(tmp_path: Path, server: Server) -> None:
    chance = random.Random(20261121)
    witness = Witness()
    acknowledged = 0
    for seed in range(1, KILLS + 1):
        server.start(tmp_path, seed)
        word, pid = server.line()
        assert word == "pid"
        told = {word: json.loads(rest) for word, rest in (server.line() for _ in range(3))}
        assert told["set-aside"] == []
        witness.check(told["found"], told["audited"])
        # However busy the machine is: a number of lines, and then a part of the time that an edit takes.
        for _ in range(chance.randrange(MAX_LINES)):
            acknowledged += witness.hear(*server.line())
        time.sleep(chance.uniform(0, MAX_MS) / 1000)
        os.kill(int(pid), signal.SIGKILL)
        while (heard := server.line())[0] != "over":
            acknowledged += witness.hear(*heard)
    # Otherwise nothing was tested.
    assert acknowledged > 5 * KILLS
