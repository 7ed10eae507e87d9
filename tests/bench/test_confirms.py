"""What PerfTest says of confirms is read, laid out and held against the goals: from made-up measurements."""

import subprocess
import sys
from pathlib import Path

import pytest
from confirms import AS_IS, SLOW, WITH, WITHOUT, Cell, Measured, Rounds, cells, confirms, goals, options, table
from rows import DIRECT

SCRIPT = Path(__file__).with_name("confirms.py")
START = "id: test-1, starting producer #0, channel #1"
END = "id: test-1, confirm latency min/median/75th/95th/99th 62299/820623/1125454/1534970/1787861 µs"


def second(number: int, confirmed: int, p50_us: int, p99_us: int) -> str:
    rates = f"sent: 7 msg/s, confirmed: {confirmed} msg/s, nacked: 0 msg/s, received: 8 msg/s"
    consumers = "min/median/75th/95th/99th consumer latency: 1/2/3/4/5 µs"
    latency = f"confirm latency: 10/{p50_us}/{p50_us}/{p99_us}/{p99_us} µs"
    return f"id: test-1, time {number}.001 s, {rates}, {consumers}, {latency}"


def test_confirms_of_warm_seconds_are_read() -> None:
    lines = [
        START,
        second(1, 1, 9, 9),
        second(2, 1, 9, 9),
        second(3, 90, 5000, 9000),
        second(4, 110, 7000, 12_000),
        END,
    ]
    assert confirms(lines) == (100, 6, 10.5)


@pytest.mark.parametrize("lines", [[], [START, second(1, 10, 9, 9), END], [second(i, 0, 9, 9) for i in range(5)]])
def test_a_perf_test_without_confirms_is_an_error(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="nothing was confirmed"):
        confirms(lines)


def _rounds(without: float, with_: float) -> Rounds:
    return {
        DIRECT: [Measured(100, 10, 20, None, 1.0), Measured(200, 10, 20, None, 1.0)],
        WITHOUT: [Measured(without, 10, 20, None, 1.0), Measured(2 * without, 10, 20, None, 1.0)],
        WITH: [Measured(with_, 2, 4, 0.9, 0.1, 60), Measured(2 * with_, 2, 4, 0.9, 0.1, 60)],
    }


def test_ways_are_compared_within_rounds() -> None:
    title, _, direct, _, with_ = table(Cell(1, 100, SLOW), _rounds(80, 320)).splitlines()
    assert title == "queues: 1, window: 100, disk: slow (median of 2)"
    assert direct.split()[1:5] == ["150", "1.00", "(1.00", "to"]
    assert with_.endswith("  480  3.20 (3.20 to 3.20)  4.00 (4.00 to 4.00)     2.0     4.0    90%        0.10      60")


def test_one_queue_and_a_slow_disk_have_a_goal_of_their_own() -> None:
    fast, slow, two = Cell(1, 1, AS_IS), Cell(1, 1, SLOW), Cell(2, 1, SLOW)
    said = goals({fast: _rounds(100, 94), slow: _rounds(100, 290), two: _rounds(100, 100), Cell(4, 1, SLOW): {}})
    assert [line.rpartition("), ")[2] for line in said] == [
        "wanted >= 0.95: NOT met",
        "wanted >= 0.95: met, wanted >= 3: NOT met",
        "wanted >= 0.95: met",
    ]


def test_rows_can_be_chosen() -> None:
    assert len(cells(options([]))) == 16
    quick = options(["--quick"])
    assert (quick.rounds, [(cell.queues, cell.window, cell.disk) for cell in cells(quick)]) == (
        1,
        [(1, 1, AS_IS), (1, 100, AS_IS), (1, 1, SLOW), (1, 100, SLOW)],
    )
    one = options(["--queues", "15", "--window", "100", "--disk", "slow", "--way", WITH, "--way", DIRECT])
    assert cells(one) == [Cell(15, 100, SLOW)]
    assert one.way == [DIRECT, WITH]


def test_an_argument_that_makes_no_sense_is_named() -> None:
    for arguments, said in ((["--queues", "0"], "must be above 0"), (["--seconds", "2"], "--seconds must be above")):
        ran = subprocess.run(
            [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode == 2
        assert said in ran.stderr
