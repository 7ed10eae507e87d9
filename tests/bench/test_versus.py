"""Two checkouts are compared within a round: from made-up measurements."""

import subprocess
import sys
from pathlib import Path

import pytest
from peers import BenchError
from versus import read, table

SCRIPT = Path(__file__).with_name("versus.py")
LINE = ("answered-64", "sluice-limited-python", "cpu_us_per_frame")


def test_a_ratio_is_of_both_runs_within_a_round() -> None:
    rounds = [tuple({LINE: float(value)} for value in values) for values in ((10, 11, 13, 14), (20, 21, 21, 22))]
    line = table(rounds).splitlines()[1].split()
    assert line[:3] == list(LINE)
    assert line[3:6] == ["17", "17", "1.000"]
    assert line[6:] == ["1.000", "to", "1.000", "1.100", "to", "1.400"]


def test_only_what_is_compared_is_read() -> None:
    peers = {"sluice-limited-python": {"median": {"cpu_us_per_frame": 3.5, "mb_per_s": 100, "cpu_share": None}}}
    rows = [{"name": "answered-64", "kind": "answered", "peers": peers}]
    assert read({"rows": rows, "faults": []}) == {LINE: 3.5}
    with pytest.raises(BenchError, match="lost"):
        read({"rows": rows, "faults": ["2 frames lost"]})


def test_an_argument_that_makes_no_sense_is_named() -> None:
    command = [sys.executable, str(SCRIPT), ".", "--rounds", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 2
    assert "--rounds and --seconds must be above 0" in ran.stderr
