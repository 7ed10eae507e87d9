"""The log on disk: rotation, bounds, and unwritable disks."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from admin.rejection_log.files import Bounds, LogFiles, file_name, make_folder, new_run

RUN = "0123456789ab"
NAME = f"rejections-broker-a-{RUN}-{{:06}}.jsonl"
Make = Callable[..., LogFiles]


def line(n: int, run: str = RUN, **more: Any) -> bytes:
    ends = b',"ends":true' if more.get("ends") else b""
    return b'{"type":"rejection","run":"%s","n":%d%s}\n' % (run.encode(), n, ends)


SIZE = len(line(1))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(found: Any, clock: Clock) -> Make:
    def make_files(size: int = 10_000, total: int = 100_000, run: str = RUN, instance: str = "broker-a") -> LogFiles:
        return LogFiles(found.path, instance, run, Bounds(size, 60, total), clock)

    return make_files


def write(files: LogFiles, *lines: bytes, type_: str = "rejection") -> None:
    files.hand_in([(type_, each) for each in lines])
    files.write()


def numbers(found: Any) -> list[int]:
    return [record["n"] for record in found.records()]


@pytest.mark.parametrize(("type_", "age_s"), [("rejection", 60), ("heartbeat", 3600)])
def test_a_file_is_finished_when_it_is_old_enough(
    make: Make, clock: Clock, found: Any, type_: str, age_s: float
) -> None:
    files = make()
    write(files, line(1), type_=type_)
    clock.now_s += age_s - 1
    write(files, line(2), type_=type_)
    assert found.names() == [NAME.format(1)]
    clock.now_s += 1
    write(files, line(3), type_=type_)
    assert found.names() == [NAME.format(1), NAME.format(2)]
    assert numbers(found) == [1, 2, 3]
    assert (files.figures.finished_files, files.figures.records) == (1, {type_: 3})


def test_a_file_is_finished_when_it_is_long_enough(make: Make, found: Any) -> None:
    files = make(size=2 * SIZE)
    for number in range(1, 6):
        write(files, line(number))
    assert found.names() == [NAME.format(number) for number in (1, 2, 3)]
    files.close()
    assert files.figures.finished_files == 3


def test_the_oldest_files_of_any_run_go_when_all_are_too_many_bytes(make: Make, found: Any) -> None:
    make_folder(found.path)
    other = found.path / f"rejections-other-{'f' * 12}-000009.jsonl.gz"
    other.write_bytes(b"x" * 60)
    os.utime(other, (1, 1))
    (found.path / "notes.jsonl").write_bytes(b"x" * 1000)
    (found.path / NAME.format(70)).mkdir()
    files = make(size=SIZE, total=4 * SIZE)
    for number in range(1, 10):
        write(files, line(number))
    assert found.names() == [*(["notes.jsonl"]), *(NAME.format(number) for number in (6, 7, 8, 9, 70))]
    assert (files.figures.deleted_files, files.figures.deleted_bytes) == (6, 60 + 5 * SIZE)
    assert (files.figures.kept_bytes, files.error) == (4 * SIZE, None)


def test_much_at_once_makes_the_oldest_go_and_stays_within_the_bound(make: Make, found: Any) -> None:
    total = 2 * 1024 * 1024
    files = make(size=10**9, total=total)
    write(files, *(line(number) for number in range(100_000)))
    assert files.figures.records.total() == 100_000
    assert sum(path.stat().st_size for path in found.path.iterdir()) <= total
    assert numbers(found)[-1] == 99_999


def test_files_that_cannot_be_deleted_do_not_keep_others_and_the_bound_holds(
    make: Make, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make(size=SIZE, total=4 * SIZE)
    write(files, line(1))
    unlink, stuck = Path.unlink, [NAME.format(1)]

    def refusing(path: Path, *, missing_ok: bool = False) -> None:
        if path.name in stuck or "all" in stuck:
            raise OSError(errno.EPERM, "not this one")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refusing)
    for number in range(2, 10):
        write(files, line(number))
    assert (numbers(found), files.error) == ([1, 7, 8, 9], None)
    stuck.append("all")
    with structlog.testing.capture_logs():
        write(files, line(10))
        write(files, line(11))
    assert (numbers(found), files.figures.lost) == ([1, 7, 8, 9], {"not_writable": 2})
    assert files.error == f"{found.path}: cannot delete old files"


def test_a_full_disk_loses_records_but_readers_see_whole_lines(
    make: Make, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, real, room = make(), os.write, [10]
    write(files, line(1))

    def full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "full")
        taken, room[0] = min(room[0], len(data)), 0
        return real(descriptor, data[:taken])

    with structlog.testing.capture_logs() as logged, monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        write(files, line(2))
        write(files, line(3))
        assert numbers(found) == [1]
    with structlog.testing.capture_logs() as resumed:
        write(files, line(4))
    assert numbers(found) == [1, 4]
    assert found.names() == [NAME.format(1)]
    assert (files.figures.lost, files.error) == ({"no_space": 2}, None)
    what = "could not write the rejection log; traffic is not affected"
    assert [(entry["event"], entry["reason"]) for entry in logged] == [
        (what, f"{found.path}: there is no space left on the disk")
    ]
    assert [(entry["event"], entry["records_lost"]) for entry in resumed] == [("rejection log writable again", 2)]


def test_half_a_line_that_cannot_be_cut_off_ends_its_file(
    make: Make, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, real = make(), os.write
    write(files, line(1))
    answers: Iterator[int] = iter([10])

    def broken(descriptor: int, data: bytes) -> int:
        for size in answers:
            return real(descriptor, data[:size])
        raise OSError(errno.EIO, "broken")

    with structlog.testing.capture_logs(), monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        patch.setattr(os, "ftruncate", broken)
        write(files, line(2))
    with structlog.testing.capture_logs():
        write(files, line(3))
    assert (found.path / NAME.format(1)).read_bytes() == line(1) + line(2)[:10]
    assert (found.path / NAME.format(2)).read_bytes() == line(3)
    assert files.figures.lost == {"error": 1}


@pytest.mark.parametrize(
    "harm",
    [shutil.rmtree, lambda path: path.rename(path.with_name("away")), lambda path: next(path.iterdir()).unlink()],
)
def test_removed_folder_is_recreated_without_further_loss(make: Make, found: Any, harm: Callable[[Path], None]) -> None:
    files = make()
    write(files, line(1))
    harm(found.path)
    write(files, line(2))
    write(files, line(3))
    assert (numbers(found), files.error, files.figures.lost) == ([2, 3], None, {})


def test_a_file_in_the_folders_place_is_an_error_until_it_goes(make: Make, found: Any) -> None:
    files = make()
    write(files, line(1))
    shutil.rmtree(found.path)
    found.path.write_bytes(b"")
    with structlog.testing.capture_logs():
        write(files, line(2))
        assert files.error == f"{found.path}: a file of that name exists"
        found.path.unlink()
        write(files, line(3))
    assert (numbers(found), files.figures.lost) == ([3], {"folder_gone": 1})


def test_an_end_without_records_leaves_no_file(make: Make, found: Any) -> None:
    files = make()
    files.close()
    write(files)
    files.close()
    assert found.names() == []


@pytest.mark.parametrize(
    ("content", "killed"),
    [
        (line(7, "e" * 12), ("e" * 12, 7)),
        (line(7, "e" * 12) + line(8, "e" * 12)[:9], ("e" * 12, 7)),
        (line(7, "e" * 12) + line(8, "e" * 12, ends=True), None),
        (b"x" * 100_000, None),
        (b"", None),
    ],
)
def test_a_run_that_did_not_end_in_order_is_known(
    make: Make, found: Any, content: bytes, killed: tuple[str, int] | None
) -> None:
    assert make().killed_run() is None
    write(make(run="d" * 12), line(1, "d" * 12, ends=True))
    write(make(run="c" * 12, instance="broker-b"), line(1, "c" * 12))
    (found.path / f"rejections-broker-a-{'e' * 12}-000002.jsonl").write_bytes(content)
    for number, name in enumerate(found.names()):
        os.utime(found.path / name, (number, number))
    assert make().killed_run() == killed


@pytest.mark.usefixtures("_usual_umask")
def test_files_and_folders_are_private(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "a" / "b", "x", RUN, Bounds(1000, 60, 10_000))
    write(files, line(1))
    paths = tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / f"rejections-x-{RUN}-000001.jsonl"
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o750, 0o750, 0o640]


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("instance", "slug"),
    [("broker-a:10911", "broker-a-10911"), ("../../x y", "x-y"), ("\u00e4\n", "sluice"), ("a" * 300, "a" * 100)],
)
def test_an_instance_becomes_a_name_of_files(make: Make, found: Any, instance: str, slug: str) -> None:
    run = new_run()
    write(make(run=run, instance=instance), line(1))
    assert [file_name(name) for name in found.names()] == [(slug, run, 1)]


def test_how_long_the_disk_has_not_answered_is_known(make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    files, waits, answer = make(), threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        waits.set()
        answer.wait()

    monkeypatch.setattr(files, "_write", hang)
    files.hand_in([])
    thread = threading.Thread(target=files.write)
    thread.start()
    waits.wait()
    clock.now_s += 7
    assert files.waits_s == 7
    answer.set()
    thread.join()
    assert files.waits_s == 0
