"""A report over an earlier one: recomputed days and hours, late files, and a killed report."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from duck_tables import TABLES, unequal
from harness.process import ManagedProcess
from harness.sidecar import sluice_command
from log_truth import DAY_S, START_S, Run

if TYPE_CHECKING:
    from conftest import Case

pytestmark = pytest.mark.long

Report = Callable[..., Any]


@pytest.fixture
def refused(report: Report, tmp_path: Path) -> Callable[..., list[tuple[int, ...]]]:
    """Makes a report of refusals in these seconds, and returns the days with tables and the storms."""

    def make(*at: int, **options: Any) -> list[tuple[int, ...]]:
        run = Run("a")
        for at_s in at:
            run.reject(START_S + at_s, "orders")
            run.beat(START_S + at_s // 60 * 60)
        (tmp_path / "a.jsonl").write_bytes(b"\n".join(run.lines))
        report(tmp_path / "out", tmp_path / "a.jsonl", **options)
        with duckdb.connect() as duck:
            rows = f"read_parquet('{tmp_path}/out/storms/dt=*/*.parquet')"
            return duck.execute(f"SELECT start_s - {START_S}, end_s - start_s FROM {rows} ORDER BY ALL").fetchall()

    return make


def test_a_run_replaces_its_days_and_leaves_others(refused: Callable[..., Any], tmp_path: Path) -> None:
    refused(100, DAY_S + 100, 2 * DAY_S + 100)
    day = {"since_s": START_S + DAY_S, "until_s": START_S + 2 * DAY_S}
    # A storm that began before is cut.
    found = refused(200, *range(DAY_S - 5, DAY_S + 5), DAY_S + 500, **day)
    assert found == [(100, 1), (DAY_S, 5), (DAY_S + 500, 1), (2 * DAY_S + 100, 1)]
    # Days that are no longer in the log are removed.
    assert refused(DAY_S + 7) == [(DAY_S + 7, 1)]
    assert {path.parent.name for path in (tmp_path / "out").glob("*/dt=*/*")} == {"dt=2026-10-24"}


def _minutes(out: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in (out / "minutes").rglob("*.parquet")}


def test_once_reads_new_files_and_makes_their_hours_again(report: Report, case: "Case", tmp_path: Path) -> None:
    logs, out, later = tmp_path / "logs", tmp_path / "out", tmp_path / "later"
    shutil.copytree(case.logs, logs)
    later.mkdir()
    for file in (logs / "2026-10-24").rglob("*1*.jsonl"):
        shutil.move(file, later)
    report(out, logs, once=True)
    before = _minutes(out)
    # New files without records.
    (logs / "no-log.jsonl").write_text("this is no record\n")
    report(out, logs, once=True)
    assert _minutes(out) == before
    # Late, beside a torn copy.
    for file in later.iterdir():
        (later / f"torn-{file.name}").write_bytes(file.read_bytes()[:-30])
    shutil.move(later, logs)
    found = report(out, logs, once=True)
    # A copy is counted, and nothing else.
    copies = found["inputs"]["duplicates"] - case.truth.duplicates
    assert copies > 0
    assert unequal(out, case.out).keys() == {"coverage"}
    assert found["inputs"]["bad_lines"] > case.truth.bad_lines + 1
    # Days without a record in a new file are unchanged.
    untouched = {file: at for file, at in before.items() if file.parent.name == "dt=2026-10-27"}
    assert untouched.items() <= _minutes(out).items() != {}


def _kill(folder: Path, victim: str, once_there: str) -> None:
    """Run a report of ``logs`` and kill it, or its Java process, once files of a pattern are there."""
    command = sluice_command("report", "logs", "--out", "out", "--master", "local[2]", covered=False)
    process = ManagedProcess("report", command, log=folder / "report.log", cwd=folder)
    pause = threading.Event()
    try:
        while not list((folder / "out").glob(once_there)):
            assert process.running
            pause.wait(0.005)
        (java,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid if victim == "sluice" else int(java), signal.SIGKILL)
        while process.running:
            pause.wait(0.005)
        # Without its parent Java continues for a moment.
        while Path("/proc", java).exists():
            pause.wait(0.005)
    finally:
        process.stop()


def test_a_report_that_is_killed_while_it_writes_leaves_no_half_days_and_the_next_one_completes_it(
    report: Report, case: "Case", tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (tmp_path / "logs").symlink_to(case.logs)
    # Java is killed before the first day is in its place.
    for victim, there in (("java", "minutes/.spark-staging*"), ("sluice", "*/dt=*")):
        _kill(tmp_path, victim, there)
        with duckdb.connect() as duck:
            for day in (file.relative_to(out) for file in out.glob("*/dt=*")):
                here, known = (
                    duck.execute(f"SELECT count(*) FROM read_parquet('{each / day}/*.parquet')").fetchone()
                    for each in (out, case.out)
                )
                assert here == known
    report(out, tmp_path / "logs")
    assert unequal(out, case.out) == {}
    odd = [path for name in TABLES for path in (out / name).iterdir() if not path.name.startswith("dt=")]
    assert odd == []
    assert json.loads((out / "recommendations.json").read_bytes())["recommendations"] == case.recommendations != []
