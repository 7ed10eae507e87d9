"""``make demo-rocketmq`` and ``-rocketmq5``: their output, and that they leave nothing however they end."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.demo import QUIET, TIMEOUT_S, Demos, demos_of, figures

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]


@pytest.fixture(params=["rocketmq"])
def demos(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Demos]:
    with demos_of(request.param, tmp_path) as demos:
        yield demos


@pytest.mark.parametrize("demos", ["rocketmq", "rocketmq5"], indirect=True)
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
        # The broker may have stored a message that it answered late.
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


def test_a_signal_while_it_starts_ends_it_at_once(demos: Demos) -> None:
    demo = demos.start()
    demo.wait_for_line("starting rocketmq", timeout_s=TIMEOUT_S)

    demo.signal(signal.SIGTERM)

    assert demo.wait(timeout_s=TIMEOUT_S) == 128 + signal.SIGTERM
    assert demos.left() == []
