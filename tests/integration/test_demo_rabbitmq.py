"""``make demo-rabbitmq`` for real: what it tells, and that nothing is left of it.

How a demo ends whose part dies, and what it shares with this one, is in ``test_demo_rocketmq.py``.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.paths import PARTS, required
from harness.process import ManagedProcess

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

QUIET = ("orders", "payments", "invoices", "shipments", "audit")
TIMEOUT_S = 300.0
StartDemo = Callable[..., ManagedProcess]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """What the demo takes for /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.fixture
def start_demo(tmp_path: Path, scratch: Path) -> Iterator[StartDemo]:
    """Starts it as the Makefile does, with a /tmp of its own."""
    jars = required(PARTS / "rabbitmq" / ".stamp", "make parts").parent / "lib"
    started = []

    def start(*arguments: str) -> ManagedProcess:
        command = [sys.executable, "-m", "admin.demo.rabbitmq", "--jars", str(jars), "--log", str(tmp_path / "log")]
        env = {"TMPDIR": str(scratch)}
        started.append(ManagedProcess("demo", [*command, *arguments], log=tmp_path / "demo.log", env=env, cwd=tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def left_of(scratch: Path) -> list[str]:
    """Return the command lines of processes, and the files, of the demo."""
    found = [str(path) for path in scratch.iterdir()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(scratch) in command or str(scratch) in str((entry / "cwd").readlink()):
                    found.append(command)
    return found


def figures(lines: list[str], queue: str, limit: str = "200") -> dict[str, int]:
    """Return the row of a queue in the account."""
    headings = next(line.split() for line in lines if line.split()[:2] == ["queue", "limit/s"])
    row = next(line.split() for line in lines if line.split()[:2] == [queue, limit])
    return {name: int(value.replace(",", "")) for name, value in zip(headings[1:-1], row[1:-1], strict=True)}


def test_a_flood_is_held_to_its_limit_and_nothing_is_left(start_demo: StartDemo, scratch: Path) -> None:
    demo = start_demo("--seconds", "15", "--calm", "1")

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()

    flooded = figures(demo.lines, "runaway")
    assert flooded["refused"] > 0
    assert 0 < flooded["stored"] <= flooded["passed"]
    for queue in QUIET:
        counted = figures(demo.lines, queue)
        assert counted["refused"] == counted["other"] == 0
        assert counted["sent"] == counted["passed"] == counted["stored"] > 0
    assert any("99% within" in line for line in demo.lines)
    assert left_of(scratch) == []


def test_without_sluice_the_broker_stores_the_flood(start_demo: StartDemo, scratch: Path, tmp_path: Path) -> None:
    demo = start_demo("--seconds", "6", "--calm", "1", "--without")

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()

    assert any("without Sluice, of" in line for line in demo.lines)
    headings = next(line.split() for line in demo.lines if line.split()[:2] == ["queue", "limit/s"])
    row = next(line.split() for line in demo.lines if line.split()[:2] == ["runaway", "inf"])
    assert int(row[headings.index("stored")].replace(",", "")) > 200 * 6
    assert not (tmp_path / "log").exists()
    assert left_of(scratch) == []


def test_a_signal_ends_it_with_an_account(start_demo: StartDemo, scratch: Path) -> None:
    demo = start_demo("--calm", "0")
    demo.wait_for_line("2 s  sent/passed/refused", timeout_s=TIMEOUT_S)

    demo.signal(signal.SIGTERM)

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()
    assert figures(demo.lines, "orders")["sent"] > 0
    assert left_of(scratch) == []
