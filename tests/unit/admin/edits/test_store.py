import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
import structlog

from admin.common.errors import StartError
from admin.config.folders import Folder
from admin.edits.model import ActiveEdit, Change
from admin.edits.store import NAME, Store, active_in, open_store

AT = "2026-11-21T12:00:00.000Z"
PATH = "limits/topic/orders"


def change(number: int, target: str = PATH) -> Change:
    return Change(id=number, at=AT, by="alice", address="", action="set", target=target)


def active(number: int) -> ActiveEdit:
    return ActiveEdit(change_id=number, at=AT, by="alice", address="", reason="", limit={"rate": number})


def commit(store: Store, number: int) -> None:
    store.commit([change(number)], {PATH: active(number)}, required=True)


def ids(store: Store) -> list[int]:
    return [each.id for each in store.audit(before=None, target="", by="", limit=100)]


def test_everything_is_there_when_it_is_opened_again(state_dir: Path) -> None:
    store = Store(state_dir)
    commit(store, 1)
    store.commit([change(2, "switches/all")], {"switches/all": None}, required=True)
    store.close()
    store = Store(state_dir)
    assert (ids(store), store.active, store.last_id) == ([2, 1], {PATH: active(1)}, 2)
    assert (state_dir / NAME).stat().st_mode & 0o777 == 0o600
    assert active_in(Folder(state_dir, given=True)) == ({PATH: active(1)}, None)
    store.close()


def test_a_commit_returns_when_the_disk_has_it(state_dir: Path) -> None:
    store = Store(state_dir)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    store.close()


def test_a_change_is_found_with_the_latest_one_of_its_target() -> None:
    store = Store(None)
    for number, target in enumerate(["a", "b", "a", "a"], 1):
        store.commit([change(number, target)], {}, required=True)
    assert [store.find(number) for number in (1, 2, 7, 2**63)] == [
        *((change(1, "a"), 4), (change(2, "b"), 0)),
        *((None, 0), (None, 0)),
    ]
    assert [each.id for each in store.audit(before=4, target="a", by="alice", limit=1)] == [3]
    assert store.audit(before=None, target="", by="bob", limit=9) == ()


def test_the_audit_trail_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admin.edits.store.MAX_CHANGES", 3)
    store = Store(None)
    for number in range(1, 6):
        commit(store, number)
    assert ids(store) == [5, 4, 3]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zeroed(data: bytes) -> bytes:
    return data[:4096] + bytes(4096) + data[8192:]


def text(_: bytes) -> bytes:
    return b"not a database at all\n" * 100


@pytest.mark.parametrize("damage", [cut, zeroed, text])
def test_a_damaged_file_is_quarantined_and_named(state_dir: Path, damage: Callable[[bytes], bytes]) -> None:
    store = Store(state_dir)
    commit(store, 1)
    store.close()
    damaged = damage((state_dir / NAME).read_bytes())
    (state_dir / NAME).write_bytes(damaged)
    with structlog.testing.capture_logs() as logged:
        store = Store(state_dir)
    (aside,) = store.set_aside
    assert Path(aside).read_bytes() == damaged
    assert Path(aside).name.startswith(f"{NAME}.damaged-")
    assert [(line["log_level"], line["file"]) for line in logged] == [("error", aside)]
    assert (store.active, ids(store)) == ({}, [])
    commit(store, 1)
    store.close()


def change_file(state_dir: Path, sql: str) -> None:
    store = Store(state_dir)
    commit(store, 1)
    store.close()
    db = sqlite3.connect(state_dir / NAME)
    with db:
        db.execute(sql)
    db.close()


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("PRAGMA user_version = 7", "written by another version of Sluice"),
        ("UPDATE edit SET body = '{'", "truncated"),
        ("UPDATE edit SET body = json_set(CAST(body AS TEXT), '$.expires_at', '2026-01-01')", "expires_at"),
        ("PRAGMA user_version = 0", "belongs to another program, because it contains a table change"),
        ("ALTER TABLE edit RENAME COLUMN body TO text", "no such column: body"),
    ],
)
def test_a_file_that_this_version_cannot_read_is_quarantined(state_dir: Path, sql: str, reason: str) -> None:
    change_file(state_dir, sql)
    with structlog.testing.capture_logs() as logged:
        store = Store(state_dir)
    assert (len(store.set_aside), store.active) == (1, {})
    assert reason in logged[0]["reason"]
    store.close()


@pytest.mark.parametrize("sql", ["ANALYZE", "CREATE TABLE of_a_backup_tool(id)"])
def test_tables_of_other_tools_beside_its_own_do_no_harm(state_dir: Path, sql: str) -> None:
    change_file(state_dir, sql)
    store = Store(state_dir)
    assert (store.set_aside, len(store.active)) == ((), 1)
    store.close()


def test_a_damaged_entry_of_the_audit_trail_is_an_error_of_the_file(state_dir: Path) -> None:
    change_file(state_dir, "UPDATE change SET body = '{'")
    store = Store(state_dir)
    for read in (lambda: store.find(1), lambda: ids(store)):
        with pytest.raises(OSError, match="an entry of the audit trail is damaged"):
            read()
    store.close()


def test_changes_that_need_no_disk_are_saved_later_and_can_be_found_before(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.edits.store.MAX_UNSAVED", 3)
    store = Store(state_dir)
    commit(store, 1)
    away = state_dir.rename(state_dir.with_name("away"))
    for number in range(2, 7):
        store.commit([change(number)], {}, required=False)
    assert (ids(store), store.last_id) == ([6, 5, 4, 1], 6)
    assert [store.find(number) for number in (1, 2, 4, 6)] == [
        (change(1), 6),
        (None, 0),
        (change(4), 6),
        (change(6), 0),
    ]
    away.rename(state_dir)
    commit(store, 7)
    store.close()
    store = Store(state_dir)
    assert ids(store) == [7, 6, 5, 4, 1]
    store.close()


def test_only_the_first_edit_waits_for_a_program_that_has_the_file_locked_and_a_volatile_one_never(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.edits.store._BUSY_MS", 7)
    store = Store(state_dir)
    waited = []
    db = store._db
    db.set_trace_callback(lambda sql: waited.append(int(sql.split()[-1])) if "busy_timeout" in sql else None)
    with closing(sqlite3.connect(state_dir / NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        store.commit([change(1)], {}, required=False)
        assert store.error == "another program has locked it"
        with pytest.raises(OSError, match="locked"):
            commit(store, 2)
        with pytest.raises(OSError, match="locked"):
            ids(store)
        assert set(waited) == {0}
        other.execute("ROLLBACK")
        commit(store, 2)
        other.execute("BEGIN EXCLUSIVE")
        waited.clear()
        for _ in range(2):
            with pytest.raises(OSError, match="locked"):
                commit(store, 3)
    assert waited == [7, 0]
    assert ids(store) == [2, 1]
    store.close()


def test_a_file_that_may_not_be_written_any_more_is_an_error_until_it_may(state_dir: Path) -> None:
    store = Store(state_dir)
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(OSError, match="it is not writable"):
        commit(store, 1)
    store._db.execute("PRAGMA query_only = OFF")
    commit(store, 1)
    assert (store.error, ids(store)) == (None, [1])
    store.close()


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o755, None),
        (0o775, r"the group with gid \d+ can write to it \(mode 0775\); run `chmod g-w /"),
        (0o1777, r"every user of this machine can write to it \(mode 1777\); run `chmod o-w /"),
    ],
)
def test_a_directory_that_others_can_write_is_told(state_dir: Path, mode: int, said: str | None) -> None:
    state_dir.chmod(mode)
    store = Store(state_dir)
    store.close()
    assert store.exposed is None if said is None else re.match(said, store.exposed or "")


# --- opening


@pytest.mark.parametrize("name", [NAME, "lock"])
def test_a_file_that_cannot_be_had_is_named(state_dir: Path, name: str) -> None:
    (state_dir / name).mkdir()
    with pytest.raises(StartError, match=f"{name}: "):
        open_store(Folder(state_dir, given=True))
    kept = open_store(Folder(state_dir, given=False))
    assert kept.directory is None
    assert kept.error is not None
    assert name in kept.error


def test_a_second_process_is_kept_out_even_of_a_default_directory(state_dir: Path) -> None:
    first = open_store(Folder(state_dir))
    with pytest.raises(StartError, match=r"in use by another process; use --take-over to replace that process, or .*"):
        open_store(Folder(state_dir))
    first.close()
    open_store(Folder(state_dir)).close()


def journal(*records: object) -> bytes:
    bodies = [msgspec.json.encode(record) for record in records]
    return b"sluice-edits 1\n" + b"".join(b"%08x %08x %s\n" % (len(body), crc32(body), body) for body in bodies)


OLD = journal(
    {"written": {PATH: active(1), "switches/all": active(2)}, "changes": [change(1), change(2)]},
    {"written": {"switches/all": None}, "changes": [change(3)]},
)


@pytest.mark.parametrize("torn", [b"", b"0000012f 5f37"])
def test_the_edits_of_the_previous_version_are_imported_once(state_dir: Path, torn: bytes) -> None:
    (state_dir / "edits.journal").write_bytes(OLD + torn)
    assert active_in(Folder(state_dir, given=True)) == ({PATH: active(1)}, None)
    store = Store(state_dir)
    assert (store.active, store.last_id) == ({PATH: active(1)}, 3)
    store.commit([change(4)], {PATH: None}, required=True)
    store.close()
    store = Store(state_dir)
    assert (store.active, store.last_id) == ({}, 4)
    assert (state_dir / "edits.journal.imported").exists()
    store.close()


def test_a_journal_beside_a_state_file_with_changes_is_ignored_and_kept(state_dir: Path) -> None:
    Store(state_dir).close()
    store = Store(state_dir)
    store.commit([change(4)], {"switches/all": active(4)}, required=True)
    store.close()
    for name in ("edits.journal.ignored", "edits.journal.ignored-2"):
        (state_dir / "edits.journal").write_bytes(OLD)
        with structlog.testing.capture_logs() as logged:
            store = Store(state_dir)
        assert store.active == {"switches/all": active(4)}
        assert [(line["log_level"], line["file"]) for line in logged] == [("warning", str(state_dir / name))]
        assert (state_dir / name).read_bytes() == OLD
        store.close()


@pytest.mark.parametrize("data", [OLD.replace(b'"rate":1', b'"rate":9'), b"", b"sluice-edits 7\n"])
def test_a_damaged_journal_of_the_previous_version_is_quarantined(state_dir: Path, data: bytes) -> None:
    (state_dir / "edits.journal").write_bytes(data)
    store = Store(state_dir)
    (aside,) = store.set_aside
    assert (store.active, Path(aside).read_bytes()) == ({}, data)
    store.close()
