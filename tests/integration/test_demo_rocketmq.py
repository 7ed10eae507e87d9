"""``make demo-rocketmq`` for real: what it tells, and that nothing is left of it however it ends."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.demo import QUIET, TIMEOUT_S, Demos, demos_of, figures

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[Demos]:
    with demos_of("rocketmq", tmp_path) as demos:
        yield demos


def one_of(running: dict[int, str], what: str) -> int:
    (number,) = (number for number, command in running.items() if what in command)
    return number


def test_a_flood_is_held_to_its_limit_and_nothing_is_left(demos: Demos, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    demo = demos.start("--seconds", "15", "--calm", "1", "--record", str(record))

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
    assert f"sluice report {demos.log}" in text
    records = [
        json.loads(line) for file in demos.log.glob("*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()
    ]
    assert {each["name"] for each in records if each["type"] == "rejection"} == {"runaway"}
    seconds = json.loads(record.read_text(encoding="utf-8"))["seconds"]
    assert {each["flooding"] for each in seconds} == {False, True}
    assert demos.left() == []


def test_without_sluice_it_is_the_broker_that_is_flooded(demos: Demos) -> None:
    demo = demos.start("--seconds", "10", "--calm", "1", "--without")

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()

    assert any("without Sluice, of" in line for line in demo.lines)
    assert not demos.log.exists()
    assert demos.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_an_account(demos: Demos, number: int) -> None:
    demo = demos.start("--calm", "0")
    demo.wait_for_line("2 s  sent/passed/refused", timeout_s=TIMEOUT_S)

    demo.signal(number)

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()
    assert figures(demo.lines, "orders")["sent"] > 0
    assert demos.left() == []


def test_a_signal_while_it_starts_ends_it_at_once(demos: Demos) -> None:
    demo = demos.start()
    demo.wait_for_line("starting RocketMQ", timeout_s=TIMEOUT_S)

    demo.signal(signal.SIGTERM)

    assert demo.wait(timeout_s=TIMEOUT_S) == 128 + signal.SIGTERM
    assert demos.left() == []


@pytest.mark.parametrize("part", ["NamesrvStartup", "BrokerStartup", "sluice run", "benchmark.Producer"])
def test_a_part_that_dies_is_named_and_the_others_are_ended(demos: Demos, part: str) -> None:
    demo = demos.start("--calm", "0")
    demo.wait_for_line("2 s  sent/passed/refused", timeout_s=TIMEOUT_S)

    os.kill(one_of(demos.processes(), part), signal.SIGKILL)

    assert demo.wait(timeout_s=TIMEOUT_S) == 1, demo.tail()
    said = [line for line in demo.lines if line.startswith("demo-rocketmq: ")]
    assert re.search(r"has ended with -9; its last words:$", said[0]), said
    assert not any("Traceback" in line for line in demo.lines)
    assert demos.left() == []


def test_what_a_killed_demo_leaves_is_cleared_by_the_next_one(demos: Demos) -> None:
    killed = demos.start()
    killed.wait_for_line("warming up", timeout_s=TIMEOUT_S)
    killed.signal(signal.SIGKILL)
    killed.wait(timeout_s=TIMEOUT_S)
    (left,) = demos.scratch.iterdir()
    assert demos.processes() == {}

    again = demos.start()
    again.wait_for_line("starting RocketMQ", timeout_s=TIMEOUT_S)

    assert not left.exists()
    again.signal(signal.SIGTERM)
    again.wait(timeout_s=TIMEOUT_S)
    assert demos.left() == []


def test_ports_that_are_taken_are_replaced_and_told(demos: Demos) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            # If it fails, somebody else has it, which is as good.
            taken.bind(("127.0.0.1", 10911))
            taken.listen()
        demo = demos.start("--seconds", "2", "--calm", "1")
        line = demo.wait_for_line("is taken, so the broker has", timeout_s=TIMEOUT_S)
        assert re.search(r"port 10911 or one beside it is taken, so the broker has \d+$", line)
        demo.wait(timeout_s=TIMEOUT_S)
