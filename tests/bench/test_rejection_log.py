"""The bench of the rejection log, for a moment: every figure is there, and every process ends."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).with_name("rejection_log.py")


def test_every_row_has_its_ratios_and_the_growth_its_bytes(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    # The log is written once a second: so long a measurement has one of these in it.
    command = [sys.executable, str(BENCH), "--rounds", "1", "--seconds", "1.2", "--warmup", "0.1", "--topics", "10"]
    command += ["--row", "10 topics, big batches", "--base-port", "21970", "--json", str(kept)]
    command += ["--growth-seconds", "3", "--refusals", "1000"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(kept.read_text())
    passes, refused = found["rows"]
    for row in (passes, refused):
        for figures in (row["cpu_us"], row["per_s"]):
            assert all(figure > 0 for log in ("off", "on") for figure in figures[log])
    (log_bytes_per_s,) = refused["log_bytes_per_s"]
    assert log_bytes_per_s > 0
    slow, fast = found["growth"]
    assert (slow["refusals_per_s"], fast["refusals_per_s"]) == (100, 1000)
    assert 0 < slow["bytes_per_s"] < fast["bytes_per_s"] < 1.1 * slow["bytes_per_s"]


def test_an_argument_that_makes_no_sense_is_named() -> None:
    command = [sys.executable, str(BENCH), "--rounds", "many"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 2
    assert "--rounds: invalid int value: 'many'" in ran.stderr
