"""What PerfTest prints is read, and laid out: from made-up measurements."""

import subprocess
import sys
from pathlib import Path

import pytest
from perf_test import Measured, rates, table

SCRIPT = Path(__file__).with_name("perf_test.py")
START = "id: test-1, starting producer #0"
END = "id: test-1, receiving rate avg: 9671 msg/s"


def second(number: int, sent: int, received: int) -> str:
    confirmed = f"confirmed: {sent} msg/s, nacked: 0 msg/s"
    return f"id: test-1, time {number}.001 s, sent: {sent} msg/s, {confirmed}, received: {received} msg/s, min/median"


def test_seconds_count_once_java_is_warm() -> None:
    seconds = [second(1, 10, 10), second(2, 500, 400), *(second(3 + i, 1000 + i, 900 + i) for i in range(3))]
    assert rates([START, *seconds, END]) == (901, 1001, 9671)


@pytest.mark.parametrize("lines", [[], [START, second(1, 10, 10), END], [second(i, 0, 0) for i in range(5)] + [END]])
def test_a_perf_test_without_messages_is_an_error(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="nothing was received"):
        rates(lines)


def test_sluice_is_compared_with_haproxy_within_a_round() -> None:
    rounds = {
        "direct": [Measured(2000, 2000, 0, 60), Measured(1000, 1000, 0, 60)],
        "haproxy": [Measured(1000, 1000, 4, 70), Measured(500, 500, 4, 70)],
        "sluice": [Measured(900, 900, 20, 80), Measured(450, 450, 22, 84)],
    }
    text, reached = table("without confirms", rounds)
    assert reached == 0.9
    title, _, direct, _, sluice = text.splitlines()
    assert title == "without confirms (median of 2)"
    assert direct.split()[-2:] == ["0.0", "60.0"]
    assert sluice.split() == ["sluice", "675", "67%", "675", "0.45", "0.90", "0.90", "to", "0.90", "21.0", "82.0"]


def test_an_argument_that_makes_no_sense_is_named() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 2
    assert "--seconds must be above" in ran.stderr
