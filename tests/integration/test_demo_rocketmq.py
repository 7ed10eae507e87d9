"""``make demo-rocketmq`` for real: what it tells, and that nothing is left of it however it ends."""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.paths import PARTS, required
from harness.process import ManagedProcess

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

QUIET = ("orders", "payments", "invoices", "shipments", "audit")
#: Two virtual machines, a sidecar and a benchmark take a while to start on a machine that is busy.
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
    jars = required(PARTS / "rocketmq" / ".stamp", "make parts").parent / "lib"
    started = []

    def start(*arguments: str) -> ManagedProcess:
        command = [sys.executable, "-m", "admin.demo.rocketmq", "--jars", str(jars), "--log", str(tmp_path / "log")]
        env = {"TMPDIR": str(scratch)}
        started.append(ManagedProcess("demo", [*command, *arguments], log=tmp_path / "demo.log", env=env, cwd=tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def processes(scratch: Path) -> dict[int, str]:
    """Return the command lines of the processes that lie in a folder, by their number."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(scratch) in command:
                    found[int(entry.name)] = command
    return found


def one_of(running: dict[int, str], what: str) -> int:
    (number,) = (number for number, command in running.items() if what in command)
    return number


def assert_nothing_is_left(scratch: Path) -> None:
    assert processes(scratch) == {}
    assert list(scratch.iterdir()) == []


def figures(lines: list[str], topic: str) -> dict[str, int]:
    """Return the row of a topic in the account."""
    headings = next(line.split() for line in lines if line.split()[:2] == ["topic", "limit/s"])
    row = next(line.split() for line in lines if line.split()[:2] == [topic, "200"])
    return {name: int(value.replace(",", "")) for name, value in zip(headings[1:-1], row[1:-1], strict=True)}


def test_a_flood_is_held_to_its_limit_and_nothing_is_left(start_demo: StartDemo, scratch: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    demo = start_demo("--seconds", "15", "--calm", "1", "--record", str(record))

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()

    flooded = figures(demo.lines, "runaway")
    assert flooded["refused"] > 0
    assert 0 < flooded["stored"] <= flooded["passed"]
    for topic in QUIET:
        counted = figures(demo.lines, topic)
        assert counted["refused"] == 0
        assert counted["sent"] == counted["passed"] + counted["other"] > 0
        # An answer that says no may come from a broker that stored it all the same, if late.
        assert counted["passed"] <= counted["stored"] <= counted["sent"]
    text = "\n".join(demo.lines)
    assert "open http://127.0.0.1:" in text
    assert "99% within" in text
    assert f"sluice report {tmp_path / 'log'}" in text
    records = [
        json.loads(line)
        for file in (tmp_path / "log").glob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    assert {each["name"] for each in records if each["type"] == "rejection"} == {"runaway"}
    seconds = json.loads(record.read_text(encoding="utf-8"))["seconds"]
    assert {each["flooding"] for each in seconds} == {False, True}
    assert_nothing_is_left(scratch)


def test_without_sluice_it_is_the_broker_that_is_flooded(start_demo: StartDemo, scratch: Path, tmp_path: Path) -> None:
    demo = start_demo("--seconds", "10", "--calm", "1", "--without")

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()

    assert any("without Sluice, of" in line for line in demo.lines)
    assert not (tmp_path / "log").exists()
    assert_nothing_is_left(scratch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_an_account(start_demo: StartDemo, scratch: Path, number: int) -> None:
    demo = start_demo("--calm", "0")
    demo.wait_for_line("2 s  sent/passed/refused", timeout_s=TIMEOUT_S)

    demo.signal(number)

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()
    assert figures(demo.lines, "orders")["sent"] > 0
    assert_nothing_is_left(scratch)


def test_a_signal_while_it_starts_ends_it_at_once(start_demo: StartDemo, scratch: Path) -> None:
    demo = start_demo()
    demo.wait_for_line("starting RocketMQ", timeout_s=TIMEOUT_S)

    demo.signal(signal.SIGTERM)

    assert demo.wait(timeout_s=TIMEOUT_S) == 128 + signal.SIGTERM
    assert_nothing_is_left(scratch)


@pytest.mark.parametrize("part", ["NamesrvStartup", "BrokerStartup", "sluice run", "benchmark.Producer"])
def test_a_part_that_dies_is_named_and_the_others_are_ended(start_demo: StartDemo, scratch: Path, part: str) -> None:
    demo = start_demo("--calm", "0")
    demo.wait_for_line("2 s  sent/passed/refused", timeout_s=TIMEOUT_S)

    os.kill(one_of(processes(scratch), part), signal.SIGKILL)

    assert demo.wait(timeout_s=TIMEOUT_S) == 1, demo.tail()
    said = [line for line in demo.lines if line.startswith("demo-rocketmq: ")]
    assert re.search(r"has ended with -9; its last words:$", said[0]), said
    assert not any("Traceback" in line for line in demo.lines)
    assert_nothing_is_left(scratch)


def test_what_a_killed_demo_leaves_is_cleared_by_the_next_one(start_demo: StartDemo, scratch: Path) -> None:
    killed = start_demo()
    killed.wait_for_line("warming up", timeout_s=TIMEOUT_S)
    killed.signal(signal.SIGKILL)
    killed.wait(timeout_s=TIMEOUT_S)
    (left,) = scratch.iterdir()
    assert processes(scratch) == {}

    again = start_demo()
    again.wait_for_line("starting RocketMQ", timeout_s=TIMEOUT_S)

    assert not left.exists()
    again.signal(signal.SIGTERM)
    again.wait(timeout_s=TIMEOUT_S)
    assert_nothing_is_left(scratch)


def test_ports_that_are_taken_are_replaced_and_told(start_demo: StartDemo) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            # If it fails, somebody else has it, which is as good.
            taken.bind(("127.0.0.1", 10911))
            taken.listen()
        demo = start_demo("--seconds", "2", "--calm", "1")
        line = demo.wait_for_line("is taken, so the broker has", timeout_s=TIMEOUT_S)
        assert re.search(r"port 10911 or one beside it is taken, so the broker has \d+$", line)
        demo.wait(timeout_s=TIMEOUT_S)
