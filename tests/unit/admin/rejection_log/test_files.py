import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from admin.common.disk import LockedError
from admin.rejection_log.composing import Batch, Lines
from admin.rejection_log.files import Bounds, LogFiles
from admin.rejection_log.folder import Folder
from admin.rejection_log.recovery import recover

RUN = "0123456789ab"
NAME = f"rejections-broker-a-{RUN}-{{:06}}.jsonl"
LINE = b'{"type":"rejection","n":%d}\n'


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(folder: Folder, clock: Clock) -> Callable[..., LogFiles]:
    def make_files(
        size: int = 10_000, age_s: float = 60, total: int = 100_000, *, predecessor_s: float = 0.0
    ) -> LogFiles:
        return LogFiles(folder, "broker-a", RUN, Bounds(size, age_s, total), clock, predecessor_s=predecessor_s)

    return make_files


def write(
    files: LogFiles,
    *lines: bytes,
    type_: str = "rejection",
    write_ahead: bytes = b"",
    begin: bytes | None = None,
    last: bool = False,
) -> None:
    batch = Batch(run=RUN, begin=begin, last=last)
    for line in lines:
        batch.records.add(line, type_)
    if write_ahead:
        batch.write_ahead.add(write_ahead)
    files.hand_in(batch)
    files.write()


def test_a_file_is_hidden_until_it_is_old_enough(make: Callable[..., LogFiles], clock: Clock, found: Any) -> None:
    files = make()
    write(files, LINE % 1)
    assert found.names() == ["." + NAME.format(1) + ".open"]
    clock.now_s += 59
    write(files, LINE % 2)
    assert not list(found.path.glob("*.jsonl"))
    clock.now_s += 1
    write(files)
    assert found.names() == [NAME.format(1)]
    assert [record["n"] for record in found.records()] == [1, 2]
    write(files, LINE % 3)
    assert found.names() == ["." + NAME.format(2) + ".open", NAME.format(1)]
    assert (files.figures.finished_files, files.figures.records, files.number) == (1, {"rejection": 3}, 2)


def test_a_file_is_finished_when_it_is_long_enough(make: Callable[..., LogFiles], found: Any) -> None:
    files = make(size=50)
    for number in range(4):
        write(files, LINE % number)
    assert found.names() == [NAME.format(1), NAME.format(2)]
    assert [record["n"] for record in found.records()] == [0, 1, 2, 3]


def test_a_file_with_nothing_but_heartbeats_waits_for_an_hour(
    make: Callable[..., LogFiles], clock: Clock, found: Any
) -> None:
    files = make()
    write(files, b'{"type":"heartbeat"}\n', type_="heartbeat")
    clock.now_s += 3599
    write(files)
    assert not list(found.path.glob("*.jsonl"))
    clock.now_s += 1
    write(files)
    assert found.names() == [NAME.format(1)]


def test_the_end_finishes_the_file_and_leaves_nothing_else(make: Callable[..., LogFiles], found: Any) -> None:
    files = make()
    write(files, LINE % 1, write_ahead=b"x\n", begin=b"begin\n", last=True)
    files.close()
    assert found.names() == [NAME.format(1)]
    # What comes too late is counted.
    write(files, LINE % 2)
    assert files.lost_records == 1
    assert files.figures.lost == {"too_late": 1}
    files.close()
    assert found.names() == [NAME.format(1)]


def test_an_end_without_records_leaves_no_file(make: Callable[..., LogFiles], found: Any) -> None:
    files = make()
    write(files, write_ahead=b"x\n", begin=b"begin\n", last=True)
    files.close()
    assert found.names() == []


def test_what_is_noted_stays_on_the_disk_until_it_is_among_the_records(
    make: Callable[..., LogFiles], found: Any
) -> None:
    files = make()
    write(files, LINE % 1, write_ahead=b"x\n", begin=b"begin\n")
    files.close()
    assert found.names() == [f".rejections-broker-a-{RUN}.scratch", NAME.format(1)]


def test_the_oldest_files_go_when_all_are_too_many_bytes(
    make: Callable[..., LogFiles], clock: Clock, found: Any
) -> None:
    other = found.path / f"rejections-other-{'f' * 12}-000009.jsonl"
    other.write_bytes(b"x" * 60)
    os.utime(other, (1, 1))
    foreign = found.path / "notes.jsonl"
    foreign.write_bytes(b"x" * 1000)
    files = make(size=25, total=100)
    for number in range(9):
        write(files, LINE % number)
    size = len(LINE % 0)
    assert found.names() == ["notes.jsonl", *(NAME.format(number) for number in (7, 8, 9))]
    assert (files.figures.deleted_files, files.figures.deleted_bytes) == (7, 60 + 6 * size)
    assert files.figures.kept_bytes == 3 * size
    assert foreign.exists()


def test_one_file_alone_is_within_the_bound_too(make: Callable[..., LogFiles], found: Any) -> None:
    files = make(size=10**9, age_s=10**9, total=1000)
    for number in range(200):
        write(files, LINE % number)
        assert sum(path.stat().st_size for path in found.path.iterdir()) <= 1000


def test_much_at_once_makes_the_oldest_go(make: Callable[..., LogFiles], found: Any) -> None:
    files = make(size=10**9, age_s=10**9, total=1000)
    batch = Batch(run=RUN, records=Lines(piece_bytes=100))
    for number in range(500):
        batch.records.add(LINE % number, "rejection")
    files.hand_in(batch)
    files.write()
    assert files.lost_records == 0
    assert sum(path.stat().st_size for path in found.path.iterdir()) <= 1000
    files.close()
    assert found.records()[-1]["n"] == 499


def test_a_file_that_cannot_be_deleted_does_not_keep_the_others(
    make: Callable[..., LogFiles], found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make(size=25, total=100)
    unlink = Path.unlink

    def not_the_first(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == NAME.format(1):
            raise OSError(errno.EPERM, "not this one")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", not_the_first)
    with structlog.testing.capture_logs():
        for number in range(9):
            write(files, LINE % number)
    assert found.names() == [NAME.format(number) for number in (1, 8, 9)]
    assert "operation not permitted" in str(files.error) or "not this one" in str(files.error)


def test_a_folder_of_a_logs_name_is_nobodys(make: Callable[..., LogFiles], found: Any) -> None:
    (found.path / NAME.format(7)).mkdir()
    files = make(size=25, total=100)
    for number in range(6):
        write(files, LINE % number)
    assert files.error is None
    assert (found.path / NAME.format(7)).is_dir()


def test_a_file_in_the_folders_place_is_a_folder_that_is_gone(make: Callable[..., LogFiles], found: Any) -> None:
    files = make()
    found.path.rename(found.path.with_name("away"))
    found.path.write_bytes(b"")
    with structlog.testing.capture_logs():
        write(files, LINE % 1)
    assert files.figures.lost == {"folder_gone": 1}
    assert files.error == f"{found.path}: there is a file of that name"


def test_a_lock_that_was_removed_is_taken_again_and_leaves_nothing_hidden(
    make: Callable[..., LogFiles], found: Any, folder: Folder
) -> None:
    files = make()
    write(files, LINE % 1, write_ahead=b"x\n", begin=b"begin\n")
    (found.path / ".lock").unlink()
    with structlog.testing.capture_logs() as logged:
        write(files, LINE % 2, write_ahead=b"y\n")
        write(files, LINE % 3, write_ahead=b"y\n", last=True)
    assert [entry["event"] for entry in logged if entry["log_level"] == "warning"] == [
        "rejection log: the folder or its lock was removed; it is taken again"
    ]
    with pytest.raises(LockedError):
        Folder(folder.path).take()
    assert NAME.format(1) in found.names()
    files.close()
    assert found.names() == [NAME.format(1), NAME.format(2)]
    assert [record["n"] for record in found.records()] == [1, 2, 3]
    assert (files.run, files.lost_records) == (RUN, 0)


def test_what_cannot_be_within_the_bound_is_dropped(make: Callable[..., LogFiles], found: Any) -> None:
    files = make(total=100)
    with structlog.testing.capture_logs():
        write(files, b"x" * 200 + b"\n", write_ahead=b"y" * 200 + b"\n", begin=b"")
    assert files.figures.lost == {"error": 1}
    assert sum(path.stat().st_size for path in found.path.iterdir()) == 0


def test_pieces_are_written_or_dropped_one_by_one(make: Callable[..., LogFiles], found: Any) -> None:
    files = make()
    batch = Batch(run=RUN, records=Lines(piece_bytes=20))
    for number in range(3):
        batch.records.add(LINE % number, "rejection")
    assert len(batch.records.pieces) == 3
    files.hand_in(batch)
    files.write()
    assert [each["n"] for each in found.records(".*.open")] == [0, 1, 2]


def test_a_full_disk_costs_what_it_does_not_take_and_no_reader_sees_half_a_line(
    make: Callable[..., LogFiles], found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make()
    write(files, LINE % 1)
    real = os.write
    with structlog.testing.capture_logs() as logged, monkeypatch.context() as patch:
        room = [10]

        def half(descriptor: int, data: Any) -> int:
            if not room[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = real(descriptor, bytes(data)[: room[0]])
            room[0] -= written
            return written

        patch.setattr(os, "write", half)
        write(files, LINE % 2, LINE % 3)
        assert [each["n"] for each in found.records(".*.open")] == [1]
        assert files.error == f"{found.path}: there is no space left on the disk"
        write(files, LINE % 4)
    assert [entry["event"] for entry in logged] == [
        "rejection log is not written; traffic goes on, and what is lost is counted"
    ]
    assert files.figures.lost == {"no_space": 3}
    with structlog.testing.capture_logs() as logged:
        write(files, LINE % 5)
        write(files, LINE % 6)
    assert logged == [{"event": "rejection log is written again", "log_level": "info", "records_lost": 3}]
    assert not files.error
    assert [each["n"] for each in found.records(".*.open")] == [1, 5, 6]


def test_half_a_line_that_could_not_be_cut_is_cut_before_anything_else_is_written(
    make: Callable[..., LogFiles], found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make()
    write(files, LINE % 1)
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:5]) and _fail())
        patch.setattr(os, "ftruncate", _fail)
        with structlog.testing.capture_logs():
            write(files, LINE % 2)
    write(files, LINE % 3)
    assert [each["n"] for each in found.records(".*.open")] == [1, 3]


def _fail(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_folder_that_was_removed_is_made_again(make: Callable[..., LogFiles], found: Any, clock: Clock) -> None:
    files = make()
    write(files, LINE % 1, write_ahead=b"x\n", begin=b"begin\n")
    for path in found.path.iterdir():
        path.unlink()
    found.path.rmdir()
    write(files, LINE % 2, write_ahead=b"y\n")
    assert [each["n"] for each in found.records(".*.open")] == [2]
    assert (found.path / f".rejections-broker-a-{RUN}.scratch").read_bytes() == b"begin\ny\n"
    assert (files.error, files.lost_records) == (None, 0)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_is_followed_by_the_next(
    make: Callable[..., LogFiles], found: Any, *, replaced: bool
) -> None:
    files = make()
    write(files, LINE % 1, write_ahead=b"x\n", begin=b"begin\n")
    for path in found.path.glob(".rejections*"):
        path.unlink()
        if replaced:
            path.write_bytes(b"somebody's\n")
    with structlog.testing.capture_logs():
        write(files, LINE % 2, write_ahead=b"y\n")
        write(files, LINE % 3, write_ahead=b"z\n")
    (path,) = found.path.glob(".*-000002.jsonl.open")
    assert path.read_bytes() == LINE % 2 + LINE % 3
    assert (found.path / f".rejections-broker-a-{RUN}.scratch").read_bytes().endswith(b"z\n")
    assert (files.error, files.lost_records) == (None, 0)


def test_who_waits_for_a_folder_gets_it(folder: Folder, clock: Clock, found: Any) -> None:
    files = LogFiles(Folder(folder.path), "broker-a", RUN, Bounds(10_000, 60, 100_000), clock)
    with structlog.testing.capture_logs():
        assert not files.prepare()
        folder.release()
        # It does not ask all the time.
        write(files, LINE % 1)
        assert files.error is not None
        clock.now_s += 5
        write(files, LINE % 2)
    assert not files.error
    assert [each["n"] for each in found.records(".*.open")] == [2]


CALLS = (
    *("open", "write", "ftruncate", "fsync", "fdatasync", "rename", "unlink"),
    *("stat", "fstat", "mkdir", "listdir", "scandir"),
)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize("times", [1, 3])
def test_any_call_may_fail_and_what_is_in_the_files_is_whole_and_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, times: int, found: Any
) -> None:
    failing = 0
    while True:
        folder = Folder(tmp_path / f"{failing}")
        folder.take()
        files = LogFiles(folder, "broker-a", RUN, Bounds(60, 60, 250))
        left = [failing]
        with monkeypatch.context() as patch, structlog.testing.capture_logs():
            for name in CALLS:
                patch.setattr(os, name, _failing(getattr(os, name), left, times, code))
            for number in range(6):
                begin = b"begin %d\n" % number if number % 2 == 0 else None
                write(files, LINE % number, write_ahead=b"s%d\n" % number, begin=begin)
            files.close()
        # As the next process does.
        folder.take()
        assert recover(folder).failed == 0
        here = type(found)(folder.path)
        records = sorted(record["n"] for record in here.records())
        # What was deleted for the bound was written; what a failure cost is counted.
        lost = files.lost_records
        deleted = files.figures.deleted_bytes // len(LINE % 0)
        assert len(records) == len(set(records))
        assert len(records) + lost + deleted == 6, failing
        assert files.figures.records.total() == 6 - lost
        if left[0] >= 0:
            break
        failing += 1
    assert failing > 30


def _failing(call: Callable[..., Any], left: list[int], times: int, code: int) -> Callable[..., Any]:
    def fail(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if -times <= left[0] < 0:
            raise OSError(code, os.strerror(code), str(arguments[0]))
        return call(*arguments, **more)

    return fail


class TestWaitingForThePredecessor:
    @pytest.fixture
    def predecessor(self, folder: Folder) -> Folder:
        folder.release()
        predecessor = Folder(folder.path)
        predecessor.take()
        return predecessor

    def test_what_comes_meanwhile_is_kept_and_written_at_once_when_it_has_left(
        self, make: Callable[..., LogFiles], found: Any, predecessor: Folder
    ) -> None:
        files = make(predecessor_s=60)
        with structlog.testing.capture_logs() as logged:
            assert not files.prepare()
            write(files, LINE % 1)
            write(files, LINE % 2)
            assert files.waiting
            predecessor.release()
            write(files, LINE % 3)
        files.close()
        assert (logged, files.error, files.lost_records, files.waiting) == ([], None, 0, False)
        assert [record["n"] for record in found.records()] == [1, 2, 3]

    def test_one_that_does_not_leave_costs_records_and_that_is_told(
        self, make: Callable[..., LogFiles], clock: Clock, predecessor: Folder
    ) -> None:
        files = make(predecessor_s=60)
        write(files, LINE % 1)
        clock.now_s += 60
        with structlog.testing.capture_logs() as logged:
            write(files, LINE % 2)
            write(files, LINE % 3)
        assert [entry["event"] for entry in logged] == [
            "rejection log is not written; traffic goes on, and what is lost is counted"
        ]
        assert "is in use by another process" in str(files.error)
        assert files.figures.lost == {"locked": 3}

    def test_no_more_is_kept_than_half_a_file(self, make: Callable[..., LogFiles], predecessor: Folder) -> None:
        files = make(size=100, predecessor_s=60)
        write(files, b"x" * 40 + b"\n")
        assert files.waiting
        with structlog.testing.capture_logs():
            write(files, b"x" * 40 + b"\n")
        assert files.figures.lost == {"locked": 2}

    @pytest.mark.parametrize("leaves", [False, True])
    def test_at_the_end_it_is_asked_once_more(
        self, make: Callable[..., LogFiles], found: Any, predecessor: Folder, *, leaves: bool
    ) -> None:
        files = make(predecessor_s=60)
        with structlog.testing.capture_logs():
            write(files, LINE % 1, last=True)
            if leaves:
                predecessor.release()
            files.close()
        assert len(found.records()) == leaves
        assert files.lost_records == 1 - leaves
