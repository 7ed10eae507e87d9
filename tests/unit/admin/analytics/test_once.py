"""``--once``: which hours are made again from which files. ``tests/spark`` runs it with Spark."""

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from admin.analytics import report
from admin.analytics.inputs import Found, find
from admin.analytics.once import Seen
from admin.analytics.options import Options
from admin.common.errors import StartError

HOUR_S = 3600
NOON_S = 1_795_262_400
OPTIONS = Options(attempts={"JAVA": 3})


@dataclass
class Job:
    """Replaces the tables of a report.

    Attributes:
        asked: the files and the hours after noon of each time that tables were made.
        hours: beginnings of the hours of each file, in seconds since 1970.
        bad: files with two bad lines.
        fails: raised when tables are made.
    """

    out: Path
    logs: Path
    asked: list[tuple[set[str], set[int]]] = field(default_factory=list)
    hours: dict[str, set[int]] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    fails: Exception | None = None

    def put(self, name: str, *hours: float, size: int = 3) -> None:
        """Write a file with records from the first to the last of these hours after noon."""
        (self.logs / name).write_bytes(b"." * size)
        os.utime(self.logs / name, (NOON_S, NOON_S))
        self.hours.pop(name, None)
        if hours:
            first_s, last_s = int(NOON_S + HOUR_S * min(hours)), int(NOON_S + HOUR_S * max(hours))
            self.hours[name] = set(range(first_s - first_s % HOUR_S, last_s + 1, HOUR_S))

    def make_tables(self, _tools: Any, found: Found, _options: Options, hours: frozenset[int]) -> tuple[Any, Any]:
        names = {Path(file.path).name for file in found.files}
        self.asked.append((names, {(hour_s - NOON_S) // HOUR_S for hour_s in hours}))
        if self.fails is not None:
            raise self.fails
        return self.read_tables(self), {"set_aside": [_bad(self.logs / name) for name in sorted(names & self.bad)]}

    def read_tables(self, _tools: Any) -> Any:
        return SimpleNamespace(
            coverage=SimpleNamespace(selectExpr=lambda *_: SimpleNamespace(collect=lambda: [(7, 1)]))
        )

    def hours_of(self, _tools: Any, found: Found) -> defaultdict[str, set[int]]:
        return defaultdict(set, {file.path: self.hours.get(Path(file.path).name, set()) for file in found.files})

    def run(self, options: Options = OPTIONS) -> dict[str, Any]:
        """Run once over all files, and return what was read."""
        tools: Any = SimpleNamespace(step=lambda _: None)
        return Seen.read(self.out, options).take(tools, find([str(self.logs)]), options)[1]


def _bad(file: Path) -> dict[str, Any]:
    return {"file": str(file), "reason": "schema version 2", "lines": 2, "example": ""}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    (tmp_path / "logs").mkdir()
    found = Job(tmp_path / "out", tmp_path / "logs")
    for name in ("make_tables", "read_tables", "hours_of"):
        monkeypatch.setattr(report, name, getattr(found, name))
    return found


def _asked(names: Iterable[str], hours: Iterable[int]) -> tuple[set[str], set[int]]:
    return set(names), set(hours)


def test_the_first_run_reads_everything_and_the_second_nothing(job: Job) -> None:
    job.put("a.jsonl", 0.1, 0.9)
    job.put("b.jsonl", 1.5, 3.0)
    read = job.run()
    assert job.asked == [_asked(["a.jsonl", "b.jsonl"], [0, 1, 2, 3])]
    assert (read["files"], read["size_bytes"], read["set_aside"]) == (2, 6, [])
    assert Seen.is_kept(job.out)
    assert job.run() == read
    assert len(job.asked) == 1


def test_hours_of_a_new_file_are_made_from_all_their_files(job: Job) -> None:
    job.put("a.jsonl", 0.1, 0.99)
    job.put("b.jsonl", 0.9, 1.1)
    job.put("c.jsonl", 3)
    job.run()
    job.put("d.jsonl", 0.5, 0.6)
    job.run()
    job.put("e.jsonl", 1.9999, 2)
    job.run()
    job.put("f.jsonl", 7)
    job.run()
    assert job.asked[1:] == [
        _asked(["a.jsonl", "b.jsonl", "d.jsonl"], [0]),
        _asked(["b.jsonl", "e.jsonl"], [1, 2]),
        _asked(["f.jsonl"], [7]),
    ]


def test_earlier_hours_of_a_changed_file_are_made_again(job: Job) -> None:
    job.put("a.jsonl", 0)
    job.put("b.jsonl", 0)
    job.run()
    job.put("a.jsonl", 5, size=4)
    job.run()
    assert job.asked[1] == _asked(["a.jsonl", "b.jsonl"], [0, 5])
    os.utime(job.logs / "b.jsonl", (NOON_S + 1, NOON_S + 1))
    job.run()
    assert job.asked[2] == _asked(["b.jsonl"], [0])


def test_a_file_without_records_is_read_once_and_always_listed(job: Job) -> None:
    job.put("a.jsonl", 0)
    job.run()
    job.put("junk.jsonl")
    job.bad.add("junk.jsonl")
    read = job.run()
    assert job.asked[1] == _asked(["junk.jsonl"], [])
    assert (read["set_aside"], read["bad_lines"]) == ([_bad(job.logs / "junk.jsonl")], 2)
    assert job.run() == read
    assert len(job.asked) == 2


def test_a_killed_first_run_is_repeated(job: Job) -> None:
    job.put("a.jsonl", 0)
    job.fails = KeyError("killed")
    with pytest.raises(KeyError):
        job.run()
    # By then some tables may be there.
    (job.out / "minutes").mkdir(parents=True)
    job.fails = None
    assert job.run()["files"] == 1
    assert job.asked == [_asked(["a.jsonl"], [0])] * 2


def test_nothing_is_left_if_nothing_was_found(job: Job) -> None:
    job.put("junk.jsonl")
    job.fails = StartError("nothing to report")
    with pytest.raises(StartError):
        job.run()
    assert not Seen.is_kept(job.out)


def test_a_report_made_without_once_is_not_continued(job: Job) -> None:
    (job.out / "minutes").mkdir(parents=True)
    with pytest.raises(StartError, match=f"{job.out}: has a report that --once did not make; remove {job.out} to read"):
        job.run()


@pytest.mark.parametrize("options", [Options(attempts={"JAVA": 1}), Options(storm_gap_s=60, attempts={"JAVA": 3})])
def test_what_changes_the_tables_may_not_change(job: Job, options: Options) -> None:
    job.put("a.jsonl", 0)
    job.run()
    with pytest.raises(StartError, match="was made by another version, --storm-gap or --attempts; remove"):
        job.run(options)
    # Options of the advice may change.
    job.run(Options(attempts={"JAVA": 3}, headroom=0.5))


def test_a_damaged_note_is_said(job: Job) -> None:
    job.put("a.jsonl", 0)
    job.run()
    note = job.out / "_files.json"
    note.write_bytes(note.read_bytes()[:-9])
    with pytest.raises(StartError, match=f"{note}: cannot be read: .*; remove {job.out} to read all logs again"):
        job.run()


def test_hours_between_those_of_a_file_are_not_made(job: Job) -> None:
    job.put("a.jsonl", 0)
    job.hours["a.jsonl"] = {NOON_S, NOON_S + 5 * HOUR_S}
    job.run()
    job.put("b.jsonl", 5)
    job.run()
    assert job.asked == [_asked(["a.jsonl"], [0, 5]), _asked(["a.jsonl", "b.jsonl"], [5])]


def test_a_late_file_for_an_hour_of_lost_files_is_reported(job: Job) -> None:
    job.put("old.jsonl", 0)
    job.put("a.jsonl", 1)
    job.run()
    for name in ("old.jsonl", "a.jsonl"):
        (job.logs / name).unlink()
    job.put("c.jsonl", 2)
    # Nothing of their hours is made again, and what was made of them is there.
    assert job.run()["set_aside"] == []
    job.put("late.jsonl", 1)
    told = job.run()
    assert [(Path(each["file"]).name, each["lines"]) for each in told["set_aside"]] == [("a.jsonl", 0)]
    assert "is gone" in told["set_aside"][0]["reason"]
    assert told["skipped_files"] == 1
    assert job.run()["set_aside"] == told["set_aside"]
