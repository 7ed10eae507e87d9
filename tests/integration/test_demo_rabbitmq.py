"""``make demo-rabbitmq``: its output, and that it leaves nothing."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.demo import QUIET, TIMEOUT_S, Demos, demos_of, figures

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[Demos]:
    with demos_of("rabbitmq", tmp_path) as demos:
        yield demos


def test_a_flood_is_held_to_its_limit_and_nothing_is_left(demos: Demos) -> None:
    demo = demos.start("--seconds", "15", "--calm", "1")

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()

    flooded = figures(demo.lines, "runaway")
    assert flooded["refused"] > 0
    assert 0 < flooded["stored"] <= flooded["passed"]
    for queue in QUIET:
        counted = figures(demo.lines, queue)
        assert counted["refused"] == counted["other"] == 0
        assert counted["sent"] == counted["passed"] == counted["stored"] > 0
    assert any("99% within" in line for line in demo.lines)
    assert demos.left() == []


def test_without_sluice_the_broker_stores_the_flood(demos: Demos) -> None:
    demo = demos.start("--seconds", "6", "--calm", "1", "--without")

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()

    assert any("without Sluice, of" in line for line in demo.lines)
    assert figures(demo.lines, "runaway", "inf")["stored"] > 200 * 6
    assert not demos.log.exists()
    assert demos.left() == []


def test_a_signal_ends_it_with_an_account(demos: Demos) -> None:
    demo = demos.start("--calm", "0")
    demo.wait_for_line("2 s  sent/passed/refused", timeout_s=TIMEOUT_S)

    demo.signal(signal.SIGTERM)

    assert demo.wait(timeout_s=TIMEOUT_S) == 0, demo.tail()
    assert figures(demo.lines, "orders")["sent"] > 0
    assert demos.left() == []
