"""What a killed process leaves, cut off at every byte: nothing twice, and at most the last second missing."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from admin.common import disk
from admin.common.disk import Appender
from admin.rejection_log import recovery, write_ahead
from admin.rejection_log.aggregate import Aggregate
from admin.rejection_log.composing import Batch, Composer, LimitsInForce, line_of
from admin.rejection_log.files import Bounds, LogFiles
from admin.rejection_log.folder import Folder
from admin.rejection_log.write_ahead import VERSION, Commit, Header, Seen
from limiter.counting.rejections import Amount, Rejection, ResourceSecond
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

RUN = "0123456789ab"
MINUTE = 1_700_000_040
BOUNDS = Bounds(10_000_000, 1e9, 100_000_000)
LIMITS = LimitsInForce(RuleSet((Rule("topic", "t0", 5),)))
NAMES = ("t0", "t1", "t2")


class Life:
    """A process that writes second by second, as the recorder does; a second is 2 admitted and 1 refused of each."""

    def __init__(
        self, folder: Folder, make_second: Callable[..., ResourceSecond], make_rejection: Callable[..., Rejection]
    ) -> None:
        self.files = LogFiles(folder, "broker-a", RUN, BOUNDS)
        self.composer = Composer("broker-a", RUN)
        self._make_second, self._make_rejection = make_second, make_rejection
        self.begin(MINUTE)

    def begin(self, at_s: int) -> Batch:
        self.minute = Aggregate(at_s, 100)
        header = Header(VERSION, "broker-a", RUN, "0.1", at_s, self.composer.n, 100)
        self.batch = Batch(run=RUN, begin=line_of(header))
        return self.batch

    def second(self, at_s: int) -> None:
        for name in NAMES:
            self.batch.records.add(self.composer.rejection(at_s, self._make_rejection(name)), "rejection")
            second = self._make_second(name, admitted=2, refused=1, repeated=1, identified=1)
            resource, clients = self.minute.add(at_s, second)
            known = (second.outcomes, second.busy_answers, second.languages, clients, second.more_clients)
            seen = Seen(
                resource.kind, resource.name, LIMITS.of(resource), at_s, *known, second.repeated, second.identified
            )
            self.batch.write_ahead.add(line_of(seen))
        self.minute.cover(at_s, at_s + 1)
        self.write()

    def block(self) -> bytes:
        lines = [
            (self.composer.traffic(self.minute.at_s, resource, traffic, LIMITS.of(resource)), "traffic")
            for resource, traffic in self.minute
        ]
        lines.append((self.composer.heartbeat(self.minute, version="0.1", limiting=True), "heartbeat"))
        self.begin(self.minute.at_s + 60)
        for line in lines:
            self.batch.records.add(*line)
        return b"".join(line for line, _ in lines)

    def write(self) -> None:
        commit = Commit(self.minute.covered, self.composer.n, self.files.number, 0, limiting=True, lost_records=0)
        self.batch.write_ahead.add(line_of(commit))
        self.files.hand_in(self.batch)
        self.files.write()
        self.batch = Batch(run=RUN)


class Dead(NamedTuple):
    """The folder as a killed process left it."""

    path: Path

    @property
    def log(self) -> Path:
        return next(self.path.glob(".*.open"))

    @property
    def write_ahead(self) -> Path:
        return next(self.path.glob(".*.scratch"))

    def copy(self, to: Path) -> "Dead":
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.path, to)
        return Dead(to)


@pytest.fixture
def life(folder: Folder, make_second: Callable[..., ResourceSecond], make_rejection: Callable[..., Rejection]) -> Life:
    return Life(folder, make_second, make_rejection)


def recover(path: Path) -> recovery.Recovered:
    folder = Folder(path)
    folder.take()
    try:
        return recovery.recover(folder)
    finally:
        folder.release()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_PAUSE_S", 0)
    # Whether it survives the loss of power is not what these are about, and a disk takes its time.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


def totals(found: Any, path: Path) -> dict[str, int]:
    sums: dict[str, int] = type(found)(path).totals()
    return sums


def test_running_minute_is_recovered_with_its_limits_and_a_heartbeat(life: Life, folder: Folder, found: Any) -> None:
    for offset in range(3):
        life.second(MINUTE + offset)
    recovered = recover_now(folder)
    assert (recovered.files, recovered.records, recovered.torn_lines, recovered.failed) == (1, 4, 0, 0)
    assert found.names() == [f"rejections-broker-a-{RUN}-000001.jsonl"]
    records = found.records()
    assert [record["n"] for record in records] == list(range(1, 14))
    assert {record["run"] for record in records} == {RUN}
    *traffic, heartbeat = records[9:]
    assert [(each["name"], each["admitted"], each["second"]) for each in traffic] == [
        (name, [6, 12, 600], [0, 1, 2]) for name in NAMES
    ]
    assert [each.get("rate_per_s") for each in traffic] == [5, None, None]
    assert [each["clients"] for each in traffic] == [1, 1, 1]
    again = [(each["repeated"], each["second_repeated"], each["identified"]) for each in traffic]
    assert again == [([3, 6, 300], [2, 2, 2], 3)] * 3
    assert (heartbeat["type"], heartbeat["seconds"], heartbeat["at_s"]) == ("heartbeat", 3, MINUTE)
    # There is nothing left to be done.
    assert recover_now(folder).files == 0
    assert found.records() == records


def test_what_a_version_that_knew_of_no_repeats_left_is_recovered(life: Life, folder: Folder, found: Any) -> None:
    life.second(MINUTE)
    dead = Dead(folder.path)
    entries = [json.loads(line) for line in dead.write_ahead.read_bytes().splitlines()]
    older = [entry[:-2] if entry[0] == "traffic" else entry for entry in entries]
    assert older != entries
    dead.write_ahead.write_text("".join(f"{json.dumps(entry)}\n" for entry in older))
    recover_now(folder)
    assert totals(found, folder.path) == {"admitted": 6, "refused": 3, "rejected": 3}


def test_what_a_version_with_other_limits_left_is_recovered(life: Life, folder: Folder, found: Any) -> None:
    life.second(MINUTE)
    dead = Dead(folder.path)
    entries = [json.loads(line) for line in dead.write_ahead.read_bytes().splitlines()]
    for entry in entries:
        if entry[0] == "traffic":
            entry[3]["new_field"] = 1
    dead.write_ahead.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert recover_now(folder).failed == 0
    traffic = [record for record in found.records() if record["type"] == "traffic"]
    assert [each.get("rate_per_s") for each in traffic] == [5, None, None]
    assert not any("new_field" in each for each in traffic)


def recover_now(folder: Folder) -> recovery.Recovered:
    return recovery.recover(folder)


def test_a_kill_at_any_byte_of_the_write_ahead_file_loses_the_last_second_at_most(
    life: Life, folder: Folder, found: Any, tmp_path: Path
) -> None:
    life.second(MINUTE)
    dead = Dead(folder.path)
    before = dead.write_ahead.stat().st_size
    life.second(MINUTE + 1)
    whole = dead.write_ahead.read_bytes()
    for size in range(before, len(whole) + 1):
        copy = dead.copy(tmp_path / "copy")
        copy.write_ahead.write_bytes(whole[:size])
        assert recover(copy.path).failed == 0
        sums = totals(found, copy.path)
        assert sums["rejected"] == 6
        # The newline alone may be missing.
        assert sums["admitted"] == (12 if size >= len(whole) - 1 else 6), size


def test_a_kill_at_any_byte_of_a_second_of_the_log_counts_nothing_twice(
    life: Life, folder: Folder, found: Any, tmp_path: Path
) -> None:
    life.second(MINUTE)
    dead = Dead(folder.path)
    before, scratch = dead.log.stat().st_size, dead.write_ahead.read_bytes()
    life.second(MINUTE + 1)
    whole = dead.log.read_bytes()
    for size in range(before, len(whole) + 1):
        copy = dead.copy(tmp_path / "copy")
        copy.log.write_bytes(whole[:size])
        copy.write_ahead.write_bytes(scratch)
        recovered = recover(copy.path)
        assert recovered.torn_lines == (whole[:size][-1:] != b"\n")
        sums = totals(found, copy.path)
        assert (sums["admitted"], sums["refused"]) == (6, 3)
        assert sums["rejected"] == 3 + whole[before:size].count(b"\n")


def test_a_kill_at_any_byte_of_a_minutes_records_counts_nothing_twice_and_loses_nothing(
    life: Life, folder: Folder, found: Any, tmp_path: Path
) -> None:
    life.second(MINUTE)
    life.second(MINUTE + 1)
    dead = Dead(folder.path)
    before = dead.log.read_bytes()
    block = life.block()
    for size in range(len(block) + 1):
        copy = dead.copy(tmp_path / "copy")
        copy.log.write_bytes(before + block[:size])
        recover(copy.path)
        assert totals(found, copy.path) == {"admitted": 12, "refused": 6, "rejected": 6}, size
        assert [record["type"] for record in type(found)(copy.path).records()].count("heartbeat") == 1


def test_a_kill_at_any_byte_while_recovering_changes_nothing(
    life: Life, folder: Folder, found: Any, tmp_path: Path
) -> None:
    life.second(MINUTE)
    dead = Dead(folder.path)
    recovered = dead.copy(tmp_path / "recovered")
    before = len(dead.log.read_bytes())
    recover(recovered.path)
    (file,) = recovered.path.glob("*.jsonl")
    whole = file.read_bytes()
    expected = totals(found, recovered.path)
    for size in range(before, len(whole) + 1):
        copy = dead.copy(tmp_path / "copy")
        copy.log.write_bytes(whole[:size])
        recover(copy.path)
        assert totals(found, copy.path) == expected
        if size == len(whole):
            # The write-ahead file goes before the log gets its name.
            copy = dead.copy(tmp_path / "copy")
            copy.log.write_bytes(whole)
            copy.write_ahead.unlink()
            recover(copy.path)
            assert totals(found, copy.path) == expected


def test_a_write_ahead_file_that_could_not_be_begun_anew_is_seen_to_be_written(
    life: Life, folder: Folder, found: Any
) -> None:
    life.second(MINUTE)
    dead = Dead(folder.path)
    scratch = dead.write_ahead.read_bytes()
    life.block()
    life.write()
    life.files.close()
    life.files = LogFiles(folder, "broker-a", RUN, BOUNDS)
    (folder.path / f".rejections-broker-a-{RUN}.scratch").write_bytes(scratch)
    folder.take()
    recovered = recover_now(folder)
    assert (recovered.records, recovered.files) == (0, 0)
    assert totals(found, folder.path) == {"admitted": 6, "refused": 3, "rejected": 3}
    assert found.names() == [f"rejections-broker-a-{RUN}-000001.jsonl"]


def test_a_minute_without_a_log_file_gets_one_of_a_number_that_was_not_used(
    life: Life, folder: Folder, found: Any
) -> None:
    life.second(MINUTE)
    Dead(folder.path).log.unlink()
    recover_now(folder)
    assert found.names() == [f"rejections-broker-a-{RUN}-000002.jsonl"]
    assert totals(found, folder.path)["admitted"] == 6


def test_every_run_is_recovered_and_ones_own_minute_goes_on(life: Life, folder: Folder, found: Any) -> None:
    life.second(MINUTE)
    other = f".rejections-other-{'f' * 12}-000003.jsonl.open"
    (folder.path / other).write_bytes(b'{"type":"heartbeat","n":1,"at_s":1}\n')
    (folder.path / f".rejections-other-{'e' * 12}-000001.jsonl.open").write_bytes(b"")
    (folder.path / ".something-else.open").write_bytes(b"x")
    assert recovery.recover(folder, RUN).files == 2
    names = found.names()
    assert f"rejections-other-{'f' * 12}-000003.jsonl" in names
    # Nothing is written while this is done: it is one that was let go of.
    assert f"rejections-broker-a-{RUN}-000001.jsonl" in names
    assert f".rejections-broker-a-{RUN}.scratch" in names
    assert ".something-else.open" in names
    assert not [name for name in names if "e" * 12 in name]


def test_a_link_is_not_followed(folder: Folder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"no line")
    name = f".rejections-broker-a-{RUN}-000001.jsonl.open"
    (folder.path / name).symlink_to(elsewhere)
    with structlog.testing.capture_logs() as logged:
        assert recovery.recover(folder).failed == 1
    assert elsewhere.read_bytes() == b"no line"
    # It says what is left, and why.
    (entry,) = logged
    assert (entry["log_level"], entry["dir"], entry["files"]) == ("warning", str(folder.path), [name])
    assert entry["reason"] == "too many levels of symbolic links"


def test_what_nobody_can_read_is_left_and_costs_no_other_run(
    life: Life, folder: Folder, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.second(MINUTE)
    added = write_ahead._add

    def add(left: Any, seen: Seen) -> None:
        if seen.name == "unreadable":
            raise OverflowError
        added(left, seen)

    monkeypatch.setattr(write_ahead, "_add", add)
    scratch = f".rejections-other-{'f' * 12}.scratch"
    lines = (
        Header(VERSION, "other", "f" * 12, "0.1", MINUTE, 0, 10),
        Seen("topic", "unreadable", {}, MINUTE, {"admitted": Amount(1, 1, 1)}, 0, {}, (), more_clients=False),
        Commit(1, 0, 1, 0, limiting=True, lost_records=0),
    )
    (folder.path / scratch).write_bytes(b"".join(map(line_of, lines)))
    with structlog.testing.capture_logs() as logged:
        recovered = recovery.recover(folder)
    assert (recovered.files, recovered.failed) == (1, 1)
    assert [entry["files"] for entry in logged] == [[scratch]]
    assert "OverflowError" in logged[0]["reason"]
    assert found.totals() == {"admitted": 6, "refused": 3, "rejected": 3}
    assert scratch in found.names()


def test_what_there_was_no_room_for_at_the_end_is_written_by_the_next_start(
    life: Life, folder: Folder, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.second(MINUTE)
    life.second(MINUTE + 1)
    life.block()
    # The end begins no other minute.
    life.batch.begin = None
    with monkeypatch.context() as patch, structlog.testing.capture_logs():
        patch.setattr(Appender, "append", _no_room)
        life.write()
        life.files.close()
    assert life.files.lost_records == len(NAMES) + 1
    assert found.totals() == {"admitted": 0, "refused": 0, "rejected": 2 * len(NAMES)}
    with structlog.testing.capture_logs():
        folder.take()
        recovery.recover(folder)
    assert found.totals() == {"admitted": 4 * len(NAMES), "refused": 2 * len(NAMES), "rejected": 2 * len(NAMES)}
    assert not list(found.path.glob(".rejections*"))


def _no_room(*_: object, **_more: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


@pytest.mark.parametrize(
    "junk", [b"\0" * 100, b"[" * 100_000 + b"\n", b'["begin",2]\n', b'["commit",1,2,3,4,true,0]\n', b""]
)
def test_a_write_ahead_file_that_is_none_is_removed(folder: Folder, found: Any, junk: bytes) -> None:
    (folder.path / f".rejections-broker-a-{RUN}.scratch").write_bytes(junk)
    assert recover_now(folder) == recovery.Recovered()
    assert found.names() == []


def test_any_call_that_fails_leaves_it_for_the_next_time(
    life: Life, folder: Folder, found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.second(MINUTE)
    dead = Dead(folder.path)
    with dead.log.open("ab") as log:
        log.write(b"{")
    calls = ("open", "ftruncate", "write", "fsync", "fdatasync", "rename", "unlink", "pread")
    failing = 0
    while True:
        copy = dead.copy(tmp_path / "copy")
        left = [failing]
        with monkeypatch.context() as patch:
            for name in calls:
                patch.setattr(os, name, _failing(getattr(os, name), left))
            try:
                recover(copy.path)
            except OSError:
                # The lock.
                assert left[0] < 0
        recover(copy.path)
        assert totals(found, copy.path) == {"admitted": 6, "refused": 3, "rejected": 3}, failing
        if left[0] >= 0:
            break
        failing += 1
    assert failing > 10


def _failing(call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def fail(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*arguments, **more)

    return fail
