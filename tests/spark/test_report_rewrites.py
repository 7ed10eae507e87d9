"""A report that replaces one that is there: whatever is killed, whoever reads meanwhile, and whatever comes late."""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from harness.process import ManagedProcess
from harness.sidecar import run_sluice, sluice_command
from log_truth import count, make
from log_truth.making import DAY_S, DAYS, START_S
from log_truth.reported import days_of, reported

pytestmark = pytest.mark.long

_PATIENCE_S: Final = 580.0
_TABLES: Final = ("minutes", "hours", "refusals", "storms", "culprits", "limits", "limit_changes", "coverage")
_HOW: Final = ("--master", "local[2]")
Brief = dict[str, dict[str, tuple[int, int]]]
"""By table and day."""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_sluice("report", *arguments, *_HOW, cwd=folder, timeout_s=_PATIENCE_S)


def _report(folder: Path, *arguments: str) -> Any:
    answer = _run(folder, *arguments, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def _start(folder: Path, *arguments: str) -> ManagedProcess:
    command = sluice_command("report", *arguments, *_HOW, covered=False)
    return ManagedProcess("report", command, log=folder / "report.log", cwd=folder)


def _brief(out: Path) -> Brief:
    return {table: days_of(out, table) for table in _TABLES}


def _advice(out: Path) -> Counter[str]:
    found = json.loads((out / "recommendations.json").read_bytes())["recommendations"]
    return Counter(json.dumps(each, sort_keys=True) for each in found)


def _written(out: Path) -> dict[Path, int]:
    """Return the files of tables, whatever their names begin with, and when each was written."""
    found = {}
    for table in _TABLES:
        for file in (out / table).rglob("*"):
            # What is being moved may be gone.
            try:
                found[file.relative_to(out)] = file.stat().st_mtime_ns
            except OSError:
                continue
    return found


@dataclass(frozen=True)
class Two:
    """Two logs, the second with more of everything on each day, and the reports of both."""

    folder: Path
    one: Brief
    other: Brief


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    folder = tmp_path_factory.mktemp("rewrites")
    make(folder / "one")
    shutil.copytree(folder / "one", folder / "other")
    # A clock that is ahead makes the beginning of one day more.
    _more(folder / "other" / "2026-10-27" / "more.jsonl", range(DAYS + 1))
    for name in ("one", "other"):
        _report(folder, name, "--out", f"out-{name}")
    one, other = (_brief(folder / f"out-{name}") for name in ("one", "other"))
    # All days of all tables but one differ, so that each can be told.
    assert all(
        one[table][day] != other[table][day] for table in _TABLES if table != "limit_changes" for day in one[table]
    )
    return Two(folder, one, other)


def _more(file: Path, days: range) -> None:
    """Write a log with a minute of each of some days: a storm, its traffic, a limit and a heartbeat."""
    lines = []
    for day in days:
        at_s = START_S + day * DAY_S + 12 * 3600
        records: list[dict[str, Any]] = [
            {"type": "limit", "kind": "topic", "name": "more", "rule": "topic:more", "rate_per_s": 10.0},
            {
                "type": "traffic", "kind": "topic", "name": "more", "rule": "topic:more", "rate_per_s": 10.0,
                "admitted": [10, 10, 1000], "refused": [30, 30, 3000], "clients": 1, "second": [7],
                "second_admitted": [10], "second_refused": [30], "second_requests": [40], "second_bytes": [4000],
            },
            {
                "type": "rejection", "kind": "topic", "name": "more", "client": "10.9.9.9", "rule": "topic:more",
                "verdict": "refuse", "requests": 30, "messages": 30, "bytes": 3000,
            },
            {"type": "heartbeat", "version": "0.9.1", "seconds": 60},
        ]  # fmt: skip
        for n, record in enumerate(records, 1):
            head = {"v": 1, "instance": "more:5672", "run": f"more-{day}", "n": n, "at_s": at_s}
            head["at_s"] += 7 * (record["type"] == "rejection")
            lines.append(json.dumps({**head, **record}))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def _wait_until(process: ManagedProcess, what: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(_PATIENCE_S / 0.005)):
        if what():
            return
        if not process.running:
            raise process.failure("ended too early")
        pause.wait(0.005)
    raise process.failure("took too long")


@pytest.mark.parametrize("entries", [1, 12, 30])
def test_a_report_that_is_killed_while_it_writes_harms_nobody_and_the_next_one_completes_it(
    two: Two, tmp_path: Path, entries: int
) -> None:
    out = shutil.copytree(two.folder / "out-one", tmp_path / "out")
    before = _written(out)
    process = _start(tmp_path, str(two.folder / "other"), "--out", "out")
    try:
        _wait_until(process, lambda: len(set(_written(out).items()) - set(before.items())) >= entries)
        # Python alone; its Java process may go on for a moment, which the next report has to wait for.
        process.signal(signal.SIGKILL)
        _wait_until_ended(process)
        assert [half for table in _TABLES for half in _half_seen(two, table, days_of(out, table))] == []
        _report(tmp_path, str(two.folder / "other"), "--out", "out")
    finally:
        process.stop()
    assert _brief(out) == two.other
    assert _advice(out) == _advice(two.folder / "out-other")
    odd = [file for file in _written(out) if any(part.startswith((".", "_")) for part in file.parts)]
    assert [file for file in odd if not file.name.endswith(".crc")] == []


def _wait_until_ended(process: ManagedProcess) -> None:
    pause = threading.Event()
    while process.running:
        pause.wait(0.005)


def test_readers_never_see_half_a_day(two: Two, tmp_path: Path) -> None:
    out = shutil.copytree(two.folder / "out-one", tmp_path / "out")
    for name in ("other", "one", "other"):
        process = _start(tmp_path, str(two.folder / name), "--out", "out")
        seen, wrong = Counter[str](), Counter[str]()
        try:
            while process.running:
                for table in _TABLES:
                    wrong.update(_half_seen(two, table, _read(out, table, seen)))
            assert process.wait(timeout_s=_PATIENCE_S) == 0
        finally:
            process.stop()
        print(f"to {name}: {dict(seen)}, {wrong.total()} saw half a day")
        assert seen["read"] > 100
        assert wrong == Counter()
    assert _brief(out) == two.other


def _read(out: Path, table: str, seen: Counter[str]) -> dict[str, tuple[int, int]]:
    """Read a table; of what was replaced between its name and its content, once more, as any reader must."""
    for _ in range(DAYS + 2):
        try:
            found = days_of(out, table)
        except duckdb.Error:
            seen["read again"] += 1
            continue
        seen["read"] += 1
        return found
    return days_of(out, table)


def _half_seen(two: Two, table: str, seen: dict[str, tuple[int, int]]) -> list[str]:
    one, other = two.one[table], two.other[table]
    return [
        f"{table}, {day}: {'other rows' if day in seen else 'no rows'}"
        for day in one.keys() | other.keys() | seen.keys()
        if seen.get(day) not in {one.get(day), other.get(day)}
    ]


def test_two_reports_do_not_write_in_one_place(two: Two, tmp_path: Path) -> None:
    first = _start(tmp_path, str(two.folder / "other"), "--out", "out")
    try:
        _wait_until(first, (tmp_path / "out" / "_logs" / "spark.log").exists)
        second = _run(tmp_path, str(two.folder / "one"), "--out", "out")
        assert second.returncode == 1
        assert "out: another report is writing there" in second.stderr
        assert first.running
        assert first.wait(timeout_s=_PATIENCE_S) == 0
    finally:
        first.stop()
    assert _brief(tmp_path / "out") == two.other


def test_of_a_range_of_days_the_others_stay_and_files_of_other_days_say_nothing(two: Two, tmp_path: Path) -> None:
    logs, out = two.folder / "one", shutil.copytree(two.folder / "out-other", tmp_path / "out")
    findings = _report(tmp_path, str(logs), "--out", "out", "--since", "2026-10-24", "--until", "2026-10-26")
    since_s, until_s = START_S + DAY_S, START_S + 3 * DAY_S
    counted = count(logs, since_s=since_s, until_s=until_s)
    # What is read of other days is not told.
    _report(tmp_path, str(logs), "--out", "alone", "--since", "2026-10-24", "--until", "2026-10-26")
    said = reported(tmp_path / "alone", findings)
    assert said.storms == counted.storms
    assert said.totals == counted.totals
    made = _brief(out)
    for table in _TABLES:
        for day in made[table].keys() | two.other[table].keys():
            if not "2026-10-24" <= day < "2026-10-26":
                assert made[table].get(day) == two.other[table].get(day), f"{table}, {day}"
        inside = {day for day in made[table] if "2026-10-24" <= day < "2026-10-26"}
        # Of a table with no row at all there is no file that could be read.
        assert inside == {day.name.removeprefix("dt=") for day in (tmp_path / "alone" / table).glob("dt=*")}


def test_once_reads_what_is_new_and_makes_its_days_anew(two: Two, tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    shutil.copytree(two.folder / "one", logs)

    def once() -> None:
        answer = _run(tmp_path, "logs", "--out", "out", "--once")
        assert answer.returncode == 0, answer.stderr

    once()
    assert _brief(out) == two.one
    before = _of_minutes(out)

    # Nothing is new, or what is new is no log: no minute is written.
    once()
    assert _of_minutes(out) == before
    (logs / "2026-10-27" / "no-log.jsonl").write_text("this is no record\n")
    once()
    assert _of_minutes(out) == before
    assert _brief(out) == two.one

    # Late: of the third day alone, beside copies of what was read, whole and torn.
    _more(logs / "2026-10-27" / "late.jsonl", range(2, 3))
    some = sorted(file for file in logs.rglob("rejections-*.jsonl") if file.stat().st_size)[3]
    shutil.copy(some, logs / "2026-10-27" / "again.jsonl")
    (logs / "2026-10-27" / "torn.jsonl").write_bytes(some.read_bytes()[:-30])
    once()
    _report(tmp_path, "logs", "--out", "all")
    assert _brief(out) == _brief(tmp_path / "all")
    assert _advice(out) == _advice(tmp_path / "all")
    # Days that no new file touches are as they were.
    touched = {START_S + 2 * DAY_S + 12 * 3600, *_seconds(some)}
    days = {f"dt={datetime.fromtimestamp(at_s, UTC).date()}" for at_s in touched}
    kept = {file: at for file, at in before.items() if days.isdisjoint(file.parts)}
    assert kept
    assert kept.items() <= _of_minutes(out).items()


def _of_minutes(out: Path) -> dict[Path, int]:
    """Return the files of the tables that lines are added up to, and when each was written."""
    found = _written(out).items()
    return {
        file: at
        for file, at in found
        if file.parts[0] in {"minutes", "hours", "refusals"} and file.suffix == ".parquet"
    }


def _seconds(file: Path) -> set[int]:
    return {json.loads(line)["at_s"] for line in file.read_bytes().splitlines() if line.endswith(b"}")}


def test_what_is_late_or_torn_or_there_twice_is_as_if_it_had_come_whole_and_in_time(two: Two, tmp_path: Path) -> None:
    whole, late = tmp_path / "whole", tmp_path / "late"
    shutil.copytree(two.folder / "one", whole)
    shutil.copytree(two.folder / "one", late)
    for file in sorted(late.rglob("rejections-*.jsonl"))[::3]:
        # In another folder, in another order, by parts that overlap and end in the middle of a line.
        content = file.read_bytes()
        other = late / "2026-10-27" / "late" / file.name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(content[: 2 * len(content) // 3])
        other.with_stem(f"{file.stem}-rest").write_bytes(content[content.rindex(b"\n", 0, len(content) // 2) + 1 :])
        file.unlink()
        os.utime(other, (START_S, START_S))
    _report(tmp_path, "whole", "--out", "out-whole")
    _report(tmp_path, "late", "--out", "out-late")
    of_late, of_whole = _brief(tmp_path / "out-late"), _brief(tmp_path / "out-whole")
    # But for how many copies there were, which coverage says.
    assert of_late.pop("coverage").keys() == of_whole.pop("coverage").keys()
    assert _covered(tmp_path / "out-late") == _covered(tmp_path / "out-whole")
    assert of_late == of_whole
    assert _advice(tmp_path / "out-late") == _advice(tmp_path / "out-whole")


def _covered(out: Path) -> Counter[Any]:
    with duckdb.connect() as duck:
        return Counter(duck.execute(f"SELECT * EXCLUDE (copies) FROM '{out}/coverage/dt=*/*.parquet'").fetchall())
