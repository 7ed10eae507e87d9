"""``sluice report`` as users run it: output, files, and errors of the input."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from harness.process import ManagedProcess
from harness.sidecar import run_sluice, sluice_command
from small_log import NOON_S, write_small_log

from admin.common.errors import StartError

pytestmark = pytest.mark.long

_SPARK_S: Final = 580.0
Report = Callable[..., Any]


def _run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_sluice("report", *arguments, "--master", "local[2]", cwd=tmp_path, timeout_s=_SPARK_S)


def test_a_report_is_complete_in_the_terminal_and_in_files(tmp_path: Path) -> None:
    write_small_log(tmp_path / "logs" / "a.jsonl")
    answer = _run(tmp_path, "logs", "--html", "elsewhere.html")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("From 2026-11-21 12:00:00 to 12:10:00 UTC (10 min), 1 sidecar refused 6,000 of 13,600 ")
    assert {"Storms", "Who was refused", "Recommended limits", "Next"} <= set(lines)
    out = tmp_path / "sluice-report"
    assert {path.name for path in out.iterdir() if not path.name.startswith(("_", "."))} == {
        *("minutes", "refusals", "storms", "culprits", "limits", "limit_changes", "coverage"),
        *("recommendations", "recommendations.json"),
    }
    assert json.loads((out / "recommendations.json").read_text())["instances"] == ["small-1"]
    assert (out / "_logs" / "spark.log").exists()
    assert "<!doctype html>" in (tmp_path / "elsewhere.html").read_text()


def test_nothing_takes_the_place_of_a_report(report: Report, tmp_path: Path) -> None:
    write_small_log(tmp_path / "logs" / "a.jsonl")
    out = tmp_path / "out"
    report(out, tmp_path / "logs")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    with pytest.raises(
        StartError, match="no records in the requested period; the logs contain records from 2026-11-21"
    ):
        report(out, tmp_path / "logs", since_s=NOON_S + 86_400)
    junk = tmp_path / "junk"
    junk.mkdir()
    (junk / "a.jsonl").write_text("{}\nnot JSON\n")
    (junk / "b.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(StartError) as raised:
        report(out, junk)
    assert raised.value.lines[-1] == "nothing to report: no rejection log records in 2 files"
    assert f"{junk / 'a.jsonl'}: 1 line: no schema version" in raised.value.lines
    assert any("b.jsonl.gz: is damaged" in line for line in raised.value.lines)
    blank = tmp_path / "blank"
    blank.mkdir()
    (blank / "a.jsonl").write_text("\n \n")
    with pytest.raises(StartError, match="no rejection log records in 1 file"):
        report(out, blank)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_a_heap_that_java_refuses_is_named(tmp_path: Path) -> None:
    write_small_log(tmp_path / "logs" / "a.jsonl", minutes=1)
    answer = _run(tmp_path, "logs", "--driver-memory", "4000t")
    assert answer.returncode == 1
    assert "--driver-memory" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_its_java_process(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    write_small_log(tmp_path / "logs" / "a.jsonl")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = ["env", f"TMPDIR={temporary}", *sluice_command("report", "logs", "--master", "local[2]", covered=False)]
    process = ManagedProcess("report", command, log=tmp_path / "report.log", cwd=tmp_path)
    try:
        spark_log = tmp_path / "sluice-report" / "_logs" / "spark.log"
        deadline = time.monotonic() + _SPARK_S
        # It writes to the log once it runs.
        while not (spark_log.exists() and "NativeCodeLoader" in spark_log.read_text()):
            assert process.running
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (java,) = _children(process.pid)
        os.kill(process.pid, number)
        assert process.wait(timeout_s=_SPARK_S) == exit_code
        # It ends once its parent is gone.
        while Path("/proc", str(java)).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.stop()
    assert list(temporary.iterdir()) == []
    assert "Traceback" not in (tmp_path / "report.log").read_text()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
