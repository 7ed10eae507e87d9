import errno
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from admin.common.disk import Appender, exposed_to
from admin.edits import audit
from admin.edits.journal import Record
from admin.edits.model import ActiveEdit, Change
from admin.edits.store import DirectoryStore, MemoryStore

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
AT = "2026-11-21T12:00:00.000Z"
PATH = "limits/topic/orders"


def change(number: int, *, durable: bool = True) -> Change:
    return Change(id=number, at=AT, by="alice", address="", action="set", target=PATH, durable=durable)


def record(number: int) -> Record:
    standing = ActiveEdit(change_id=number, at=AT, by="alice", address="", reason="", limit={"rate": number})
    return Record({PATH: standing}, (change(number),))


def ids(store: DirectoryStore) -> list[int]:
    return [each.id for each in store.audit(before=None, target="", by="", limit=100)]


@pytest.mark.parametrize("line", [b'{"id":2,"at":"\xff"}', b"[" * 100_000, b"{", b"\0" * 50, b'{"id":"x"}'])
def test_a_line_of_the_audit_trail_that_cannot_be_read_is_left_out(state_dir: Path, line: bytes) -> None:
    store = DirectoryStore(state_dir, NOW)
    store.commit(record(1))
    store.close()
    with (state_dir / "audit.jsonl").open("ab") as file:
        file.write(line + b"\n")
    store = DirectoryStore(state_dir, NOW)
    store.commit(record(2))
    assert ids(store) == [2, 1]
    store.close()


def test_an_audit_file_that_is_moved_away_is_begun_anew(state_dir: Path) -> None:
    store = DirectoryStore(state_dir, NOW)
    store.commit(record(1))
    (state_dir / "audit.jsonl").rename(state_dir / "kept.jsonl")
    store.commit(record(2))
    assert store.error is None
    assert ids(store) == [2]
    store.close()


def test_a_journal_that_is_removed_is_written_anew_with_all_that_stands(state_dir: Path) -> None:
    store = DirectoryStore(state_dir, NOW)
    store.commit(record(1))
    (state_dir / "edits.journal").unlink()
    other = Record({"switches/all": None}, (change(2),))
    store.commit(other)
    assert store.error is None
    store.close()
    again = DirectoryStore(state_dir, NOW)
    assert again.active[PATH].change_id == 1
    assert again.last_id == 2


def test_a_rotation_that_fails_half_way_is_made_up_for(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(state_dir, NOW, audit_bytes=300)
    store.commit(record(1))

    def no_room(*_: object) -> Appender:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    errors = []
    with monkeypatch.context() as patch:
        patch.setattr(audit, "Appender", no_room)
        store.commit(record(2))
        errors.append(store.error)
    store.commit(record(3))
    assert [*errors, store.error] == ["there is no space left on the disk", None]
    assert ids(store) == [3, 2, 1]


def test_changes_keep_their_order_over_a_journal_that_fails(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(state_dir, NOW)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        store.owe(record(1))
        store.commit(Record(), [change(2, durable=False)])
        assert ids(store) == [2, 1]
    store.commit(record(3))
    assert ids(store) == [3, 2, 1]
    assert [each.id for each in store.backwards(2)] == [3, 2]
    store.close()
    assert ids(DirectoryStore(state_dir, NOW)) == [3, 2, 1]


def test_what_is_wrong_with_a_journal_that_is_set_aside_is_said(state_dir: Path) -> None:
    (state_dir / "edits.journal").write_bytes(b"sluice-edits 7\n")
    with structlog.testing.capture_logs() as logged:
        store = DirectoryStore(state_dir, NOW)
    (entry,) = logged
    assert entry["file"] == store.set_aside[0]
    assert entry["reason"] == "it was written by another version of Sluice (format 7)"
    store.close()


@pytest.mark.parametrize("last", [0, 2])
def test_after_an_audit_file_was_moved_away_older_changes_do_not_come_behind_newer_ones(
    state_dir: Path, last: int
) -> None:
    store = DirectoryStore(state_dir, NOW)
    store.commit(record(1))
    (state_dir / "audit.jsonl").rename(state_dir / "kept.jsonl")
    if last:
        store.commit(record(last))
    store.close()
    store = DirectoryStore(state_dir, NOW)
    assert ids(store) == [last or 1]
    store.commit(record(3))
    assert ids(store) == [3, last or 1]
    store.close()


@pytest.mark.parametrize("name", ["edits.journal", "audit.jsonl", "audit.jsonl.1"])
def test_a_pipe_in_a_files_place_is_refused_and_nothing_stays_open(state_dir: Path, name: str) -> None:
    os.mkfifo(state_dir / name)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="no regular file") as error:
        DirectoryStore(state_dir, NOW)
    assert error.value.filename == str(state_dir / name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_memory_remembers_the_highest_id_whatever_comes_after_it() -> None:
    store = MemoryStore()
    store.commit(record(2), [change(1)])
    store.commit(Record())
    assert store.last_id == 2
    assert [each.id for each in store.backwards(1)] == [2, 1]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o700, None),
        (0o755, None),
        (0o775, r"the group with gid \d+ can write there \(mode 0775\): chmod g-w /"),
        (0o777, r"every user of this machine can write there \(mode 0777\): chmod o-w /"),
        (0o1777, r"every user of this machine can write there \(mode 1777\)"),
    ],
)
def test_a_directory_that_others_can_write_is_told(state_dir: Path, mode: int, said: str | None) -> None:
    state_dir.chmod(mode)
    store = DirectoryStore(state_dir, NOW)
    store.close()
    assert store.exposed is None if said is None else re.match(said, store.exposed or "")


def test_a_directory_of_another_user_is_told(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    owned = os.stat_result((0o40700, 0, 0, 2, mine + 1, 0, 0, 0, 0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda _: owned)
        told = exposed_to(state_dir)
    assert told == f"it belongs to another user (uid {mine + 1}): chown it to this one (uid {mine})"
