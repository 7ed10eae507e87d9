"""The output directory, and the hours that ``--once`` computes again. ``tests/spark`` runs it with Spark."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from admin.analytics import report
from admin.analytics.inputs import Found, find
from admin.analytics.options import Options
from admin.analytics.out import Seen, locked, write_file
from admin.common.errors import StartError


def test_one_report_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "out"),
        pytest.raises(StartError, match="is in use by another `sluice report`"),
        locked(tmp_path / "out"),
    ):
        pass
    with locked(tmp_path / "out"):
        pass
    with pytest.raises(StartError, match="/proc/x cannot be used: it cannot be created; choose another directory"):
        locked(Path("/proc/x"))


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "report.html"
    write_file(file, [b"one"])
    assert file.stat().st_mode & 0o777 == 0o644

    def pieces() -> Iterator[bytes]:
        yield b"half"
        assert file.read_bytes() == b"one"
        yield b", and more"

    write_file(file, pieces())
    assert file.read_bytes() == b"half, and more"
    assert list(file.parent.iterdir()) == [file]
    with pytest.raises(StartError, match=r"^cannot write /dev/full/report.html: a file of that name exists$"):
        write_file(Path("/dev/full/report.html"), [b""])


HOUR_S = 3600
NOON_S = 1_795_262_400
OPTIONS = Options(attempts={"JAVA": 3})


@dataclass
class Job:
    """Replaces the tables of a report.

    ``asked``: for each computation, the files and the hours after noon. ``hours``: the beginnings of the hours of each
    file, in seconds since 1970. ``fails``: the error to raise.
    """

    out: Path
    logs: Path
    asked: list[tuple[str, set[int]]] = field(default_factory=list)
    hours: dict[str, set[int]] = field(default_factory=dict)
    fails: Exception | None = None

    def put(self, name: str, *hours: int, size: int = 3) -> None:
        (self.logs / name).write_bytes(b"." * size)
        os.utime(self.logs / name, (NOON_S, NOON_S))
        self.hours[str(self.logs / name)] = {NOON_S + HOUR_S * hour for hour in hours}

    def make_tables(self, _tools: Any, found: Found, _options: Options, hours: frozenset[int]) -> tuple[Any, Any]:
        names = " ".join(Path(file.path).name for file in found.files)
        self.asked.append((names, {(hour_s - NOON_S) // HOUR_S for hour_s in hours}))
        if self.fails is not None:
            raise self.fails
        return self.read_tables(self), {"set_aside": [_bad(self.logs / "junk")] if "junk" in names else []}

    def read_tables(self, _tools: Any) -> Any:
        rows = SimpleNamespace(collect=lambda: [(7, 1)])
        return SimpleNamespace(coverage=SimpleNamespace(selectExpr=lambda *_: rows))

    def hours_of(self, _tools: Any, found: Found) -> defaultdict[str, set[int]]:
        return defaultdict(set, {file.path: self.hours[file.path] for file in found.files})

    def run(self, options: Options = OPTIONS, *names: str) -> dict[str, Any]:
        """Run once over these files, or all. Return the results."""
        tools: Any = SimpleNamespace(step=lambda _: None)
        files = tuple(str(file) for file in self.logs.iterdir() if file.name in names or not names)
        return Seen.read(self.out, options).take(tools, find(files), options)[1]


def _bad(file: Path) -> dict[str, Any]:
    return {"file": str(file), "reason": "unsupported schema version 2", "lines": 2, "example": ""}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    (tmp_path / "logs").mkdir()
    found = Job(tmp_path / "out", tmp_path / "logs")
    for name in ("make_tables", "read_tables", "hours_of"):
        monkeypatch.setattr(report, name, getattr(found, name))
    return found


def test_hours_of_new_and_changed_files_are_made_from_all_their_files(job: Job) -> None:
    job.put("a", 0)
    job.put("b", 0, 1)
    job.put("c", 0, 5)
    read = job.run()
    assert (read["files"], read["size_bytes"], read["records"], read["set_aside"]) == (3, 9, 7, [])
    assert job.run() == read
    assert job.asked == [("a b c", {0, 1, 5})]
    job.put("d", 1)
    job.run()
    job.put("e", 5)
    job.run()
    # Its earlier hours are computed again, too.
    job.put("a", 7, size=4)
    job.run()
    os.utime(job.logs / "b", (NOON_S + 1, NOON_S + 1))
    job.run()
    assert job.asked[1:] == [("b d", {1}), ("c e", {5}), ("a b c", {0, 7}), ("b c d", {0, 1})]


def test_a_file_without_records_is_read_once_and_always_listed(job: Job) -> None:
    job.put("a", 0)
    job.run()
    job.put("junk")
    read = job.run()
    assert job.asked[1] == ("junk", set())
    assert (read["set_aside"], read["bad_lines"]) == ([_bad(job.logs / "junk")], 2)
    assert job.run() == read
    assert len(job.asked) == 2


def test_a_killed_first_run_is_repeated_and_one_that_found_nothing_leaves_nothing(job: Job) -> None:
    job.put("junk")
    job.fails = StartError("nothing to report")
    with pytest.raises(StartError):
        job.run()
    assert not Seen.is_kept(job.out)
    job.put("a", 0)
    job.fails = KeyError("killed")
    with pytest.raises(KeyError):
        job.run()
    # By then some tables may exist.
    (job.out / "minutes").mkdir(parents=True)
    job.fails = None
    assert job.run()["files"] == 2


def test_a_report_that_was_made_in_another_way_is_not_continued(job: Job) -> None:
    (job.out / "minutes").mkdir(parents=True)
    with pytest.raises(StartError, match=f"{job.out} contains a report made without --once; remove {job.out} to"):
        job.run()
    (job.out / "minutes").rmdir()
    job.put("a", 0)
    job.run()
    # Options of the advice may change.
    job.run(Options(attempts={"JAVA": 3}, headroom=0.5))
    for options in (Options(attempts={"JAVA": 1}), Options(storm_gap_s=60, attempts={"JAVA": 3})):
        with pytest.raises(
            StartError, match="by another version, or with a different --storm-gap or --attempts; remove"
        ):
            job.run(options)
    note = job.out / "_files.json"
    note.write_bytes(note.read_bytes()[:-9])
    with pytest.raises(StartError, match=f"cannot read {note}: .*; remove {job.out} to process all logs again"):
        job.run()


def test_tables_stay_large_when_the_log_is_gone(job: Job) -> None:
    job.put("a", 0)
    job.run()
    (job.out / "minutes" / "dt=2026-11-21").mkdir(parents=True)
    (job.out / "minutes" / "dt=2026-11-21" / "part.parquet").write_bytes(b"." * 1000)
    assert Seen.read(job.out, OPTIONS).log_bytes == 30_000


def test_a_late_file_for_an_hour_of_lost_files_is_reported(job: Job) -> None:
    job.put("old", 0)
    job.put("a", 1)
    job.run()
    for name in ("old", "a"):
        (job.logs / name).unlink()
    job.put("c", 2)
    # None of their hours is computed again, and the earlier results are there.
    assert job.run()["set_aside"] == []
    job.put("late", 1)
    told = job.run()
    assert [(Path(each["file"]).name, each["lines"]) for each in told["set_aside"]] == [("a", 0)]
    assert "was deleted" in told["set_aside"][0]["reason"]
    assert told["skipped_files"] == 1
    assert job.run()["set_aside"] == told["set_aside"]


def test_files_that_are_not_named_again_are_read_with_their_hours(job: Job) -> None:
    for name, hour in (("other", 0), ("a", 1), ("b", 1)):
        job.put(name, hour)
    job.run()
    (job.logs / "b").unlink()
    job.put("late", 1)
    told = job.run(OPTIONS, "late")
    assert job.asked[-1] == ("late a", {1})
    assert [Path(each["file"]).name for each in told["set_aside"]] == ["b"]
