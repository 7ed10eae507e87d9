"""Stores active edits, the audit trail and the limiter state in ``state.db``.

A lock on the state directory ensures that only one process writes. All functions block, so a process that serves
traffic must call them on a thread.
"""

import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from admin.common.disk import FileLock, LockedError, exposed_to, fresh_name, os_error_text
from admin.common.errors import StartError
from admin.config.folders import Folder
from admin.edits import limiter_state, previous
from admin.edits.model import FLEET, ActiveEdit, Change
from limiter.deciding.limits import SavedLimits
from proxy.common.clock import utc_now

_log = structlog.get_logger(__name__)

NAME: Final = "state.db"
MAX_CHANGES: Final = 100_000
MAX_UNSAVED: Final = 10_000
"""Maximum number of changes kept in memory while they cannot be saved."""

_LOCK: Final = "lock"
_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_FORMAT: Final = 1
#: How long startup and edits wait for another program to unlock the file.
_START_BUSY_S: Final = 5.0
_BUSY_MS: Final = 1_000

# Use a rollback journal instead of WAL, so that SQLite notices if its file is moved or removed. A commit survives a
# power failure, because FULL also syncs the truncation of the journal.
_SETUP: Final = """
PRAGMA journal_mode = TRUNCATE;
PRAGMA synchronous = FULL;
"""
_MAKE_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS edit(path TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS change(id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT, by TEXT, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS change_of_target ON change(target);
CREATE TABLE IF NOT EXISTS limiters(id INTEGER PRIMARY KEY, body BLOB NOT NULL);
PRAGMA user_version = {_FORMAT};
"""
_AUDIT: Final = (
    "SELECT body FROM change WHERE id < ? AND substr(target, 1, ?) = ? AND ? IN ('', by) ORDER BY id DESC LIMIT ?"
)
_LARGEST_ID: Final = (1 << 63) - 1
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_WORDS: Final = {
    sqlite3.SQLITE_FULL: "there is no space left on the disk",
    sqlite3.SQLITE_READONLY: "it is not writable",
    sqlite3.SQLITE_READONLY_DBMOVED: "it was moved or deleted; restore it, or restart Sluice",
    sqlite3.SQLITE_IOERR: "the disk reported an error",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_BUSY: "another program has locked it",
}

_change: Final = msgspec.json.Decoder(Change)
_edit: Final = msgspec.json.Decoder(ActiveEdit)


class _DamagedError(Exception):
    """Raised if the file is damaged or was written by another version."""


class Store:
    """The persistent state of one process.

    Raises LockedError if another process uses the directory, or OSError if the directory is unusable.

    Args:
        directory: An existing directory, or None to keep everything in memory.
        lock: In a take-over, the file descriptor of the previous process's lock.
        error: If ``directory`` is None, why the intended directory is unusable.

    Attributes:
        fleet: The latest known fleet edits. Keys are paths prefixed with ``FLEET``.
        error: Why nothing can be saved at the moment. None if saving works.
        set_aside: New paths of damaged files that were quarantined on startup.
        exposed: A warning, with the remedy, if other users can write to the directory.
    """

    def __init__(self, directory: Path | None, *, lock: int | None = None, error: str | None = None) -> None:
        self.directory = directory
        self.error = error
        self.set_aside: tuple[str, ...] = ()
        self.exposed: str | None = None
        # All threads share one connection, so that no reader sees half of a commit.
        self._mutex = threading.Lock()
        self._unsaved: list[Change] = []
        self._unsaved_edits: dict[str, ActiveEdit | None] = {}
        self._lock: FileLock | None = None
        self._db: sqlite3.Connection
        if directory is None:
            self._db = _connect(":memory:")
        else:
            self.exposed = exposed_to(directory)
            self._lock = FileLock(directory / _LOCK, inherited=lock)
            try:
                self._db = self._open(directory / NAME)
            except BaseException:
                self._lock.close()
                raise
        self.active: Mapping[str, ActiveEdit]
        self.fleet: Mapping[str, ActiveEdit]
        self.active, self.fleet = _apart(_edits(self._db))
        self.last_id: int = self._db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()[0]

    @property
    def lock(self) -> int:
        assert self._lock is not None  # noqa: S101 - a take-over needs a directory
        return self._lock.fileno()

    def commit(self, changes: Sequence[Change], edits: Mapping[str, ActiveEdit | None], *, required: bool) -> None:
        """Save changes, including earlier ones that could not be saved. In ``edits``, None removes an edit.

        If saving fails and ``required`` is true, raises OSError. If it is false, the next successful commit saves the
        changes.
        """
        with self._mutex:
            all_changes, all_edits = [*self._unsaved, *changes], {**self._unsaved_edits, **edits}
            last_id = max([self.last_id, *(each.id for each in changes)])
            try:
                self._write(all_changes, all_edits, last_id, busy_ms=_BUSY_MS if required and not self.error else 0)
            except sqlite3.Error as error:
                why = _reason(error)
                if self.directory is not None and self.directory.exists() and not os.access(self.directory, os.W_OK):
                    # SQLite reports a disk error if the file system has become read-only.
                    why = _WORDS[sqlite3.SQLITE_READONLY]
                if why != self.error:
                    _log.error("could not save live edits", state_dir=str(self.directory), error=why)
                self.error = why
                if required:
                    raise OSError(why) from None
                self._unsaved, self._unsaved_edits = all_changes[-MAX_UNSAVED:], all_edits
            else:
                self._unsaved, self._unsaved_edits = [], {}
                if self.error is not None and self.directory is not None:
                    _log.info("live edits saved after earlier failures", state_dir=str(self.directory))
                    self.error = None
            if edits:
                self.active, self.fleet = _apart({**self.active, **self.fleet, **edits})
            self.last_id = last_id

    def _write(
        self, changes: Sequence[Change], edits: Mapping[str, ActiveEdit | None], last_id: int, *, busy_ms: int
    ) -> None:
        self._db.execute(f"PRAGMA busy_timeout = {busy_ms}")
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            if not changes:
                # Write something to check whether the disk is writable.
                self._db.execute(f"PRAGMA user_version = {_FORMAT}")
            for path, edit in edits.items():
                if edit is None:
                    self._db.execute("DELETE FROM edit WHERE path = ?", (path,))
                else:
                    self._db.execute("REPLACE INTO edit VALUES (?, ?)", (path, msgspec.json.encode(edit)))
            self._db.executemany(
                "INSERT INTO change VALUES (?, ?, ?, ?)",
                ((each.id, each.target, each.by, msgspec.json.encode(each)) for each in changes),
            )
            self._db.execute("DELETE FROM change WHERE id <= ?", (last_id - MAX_CHANGES,))

    def audit(self, *, before: int | None, target: str, by: str, limit: int) -> tuple[Change, ...]:
        below = _LARGEST_ID if before is None else min(before, _LARGEST_ID)
        with self._mutex:
            unsaved = [
                each
                for each in reversed(self._unsaved)
                if each.id < below and each.target.startswith(target) and by in {"", each.by}
            ]
            rows = self._query(_AUDIT, below, len(target), target, by, limit)
        return (*unsaved, *(_read_change(body) for (body,) in rows))[:limit]

    def find(self, change_id: int) -> tuple[Change | None, int]:
        """Return a change, or None if there is none with this id, and the id of the latest later change to its target.

        The latter is 0 if there is no later change. Raises OSError.
        """
        if change_id > _LARGEST_ID:
            return None, 0
        with self._mutex:
            found = next((each for each in self._unsaved if each.id == change_id), None)
            if found is None:
                rows = self._query("SELECT body FROM change WHERE id = ?", change_id)
                if not rows:
                    return None, 0
                found = _read_change(rows[0][0])
            later = [each.id for each in self._unsaved if each.target == found.target and each.id > change_id]
            latest = "SELECT coalesce(max(id), 0) FROM change WHERE target = ? AND id > ?"
            return found, max(later, default=0) or self._query(latest, found.target, change_id)[0][0]

    def save_limits(self, limits: SavedLimits) -> None:
        """Save the limiter state. Failures are only logged."""
        try:
            state = limiter_state.encode(limits)
            with self._mutex:
                self._query("REPLACE INTO limiters VALUES (1, ?)", state)
        except (OSError, OverflowError) as error:
            _log.warning("could not save limiter state; buckets will start full", reason=str(error))

    def saved_limits(self) -> SavedLimits | None:
        """Return the limiter state saved at the last clean shutdown, if it is usable."""
        try:
            with self._mutex:
                rows = self._query("SELECT body FROM limiters")
            return limiter_state.decode(rows[0][0]) if rows else None
        except (OSError, ValueError) as error:
            _log.warning("could not restore limiter state; buckets start full", reason=str(error))
            return None

    def close(self) -> None:
        self._db.interrupt()
        with self._mutex:
            self._db.close()
        if self._lock is not None:
            self._lock.close()

    def _query(self, sql: str, *values: object) -> list[Any]:
        try:
            self._db.execute("PRAGMA busy_timeout = 0")
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise OSError(_reason(error)) from None

    def _open(self, path: Path) -> sqlite3.Connection:
        if not path.exists():
            # The file contains reasons and client names, which are private. SQLite creates its journal with the same
            # mode.
            path.touch(_FILE_MODE)
        try:
            db = _connect(path)
        except _DamagedError as damaged:
            aside = self._quarantine(path)
            _log.error(
                "quarantined unusable state.db; the configured limits apply",
                file=aside,
                reason=str(damaged),
            )
            return self._open(path)
        try:
            self._import(db, path.parent)
        except BaseException:
            db.close()
            raise
        return db

    def _import(self, db: sqlite3.Connection, directory: Path) -> None:
        journal = directory / previous.JOURNAL
        try:
            active, last_id = previous.read_edits(directory)
        except FileNotFoundError:
            return
        except (ValueError, msgspec.MsgspecError) as damaged:
            aside = self._quarantine(journal)
            _log.error(
                "quarantined damaged live edits saved by the previous version; the configured limits apply",
                file=aside,
                reason=str(damaged),
            )
            return
        if db.execute("SELECT count(*) FROM sqlite_sequence").fetchone() != (0,):
            # An earlier version ran in the meantime, or a crash prevented the rename.
            aside = str(fresh_name(directory, f"{journal.name}.ignored"))
            journal.rename(aside)
            _log.warning("ignored live edits saved by the previous version because state.db is newer", file=aside)
            return
        with db:
            db.execute("BEGIN IMMEDIATE")
            rows = ((path, msgspec.json.encode(edit)) for path, edit in active.items())
            db.executemany("INSERT INTO edit VALUES (?, ?)", rows)
            db.execute("INSERT INTO sqlite_sequence VALUES ('change', ?)", (last_id,))
        journal.rename(journal.with_name(f"{journal.name}.imported"))
        _log.info("imported live edits saved by the previous version", state_dir=str(directory), edits=len(active))

    def _quarantine(self, path: Path) -> str:
        stamp = utc_now().strftime("%Y%m%dT%H%M%SZ")
        aside = fresh_name(path.parent, f"{path.name}.damaged-{stamp}")
        path.rename(aside)
        # Otherwise SQLite would apply the old journal to the new file.
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}-journal").rename(f"{aside}-journal")
        self.set_aside = (*self.set_aside, str(aside))
        return str(aside)


def _connect(path: Path | str) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, check_same_thread=False, timeout=_START_BUSY_S, isolation_level=None)
    except sqlite3.Error as error:
        raise OSError(f"{NAME}: {_reason(error)}") from None
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        if tables and not version:
            raise _DamagedError(f"it belongs to another program, because it contains a table {tables[0]}")  # noqa: TRY301
        if version not in {0, _FORMAT}:
            raise _DamagedError(f"it was written by another version of Sluice (format {version})")  # noqa: TRY301
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise _DamagedError(found)  # noqa: TRY301 - as above, the connection is closed below
        db.executescript(_SETUP)
        _make_tables(db)
    except BaseException as error:
        db.close()
        if isinstance(error, (TypeError, msgspec.MsgspecError)) or _is_damage(error):
            raise _DamagedError(str(error)) from None
        if isinstance(error, sqlite3.Error):
            raise OSError(f"{NAME}: {_reason(error)}") from None
        raise
    return db


def _make_tables(db: sqlite3.Connection) -> None:
    try:
        db.executescript(_MAKE_TABLES)
        _edits(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_ERROR:
            # A table has the wrong columns.
            raise _DamagedError(str(error)) from None
        raise


def _read_change(body: Any) -> Change:
    try:
        return _change.decode(body)
    except (TypeError, msgspec.MsgspecError) as error:
        raise OSError(f"an entry of the audit trail is damaged: {error}") from None


def _edits(db: sqlite3.Connection) -> dict[str, ActiveEdit]:
    return {path: _edit.decode(body) for path, body in db.execute("SELECT path, body FROM edit")}


def _apart(edits: Mapping[str, ActiveEdit | None]) -> tuple[dict[str, ActiveEdit], dict[str, ActiveEdit]]:
    active: dict[str, ActiveEdit] = {}
    fleet: dict[str, ActiveEdit] = {}
    for path, edit in edits.items():
        if edit is not None:
            (fleet if path.startswith(FLEET) else active)[path] = edit
    return active, fleet


def _reason(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0)
    return _WORDS.get(code) or _WORDS.get(code & 0xFF) or str(error)


def _is_damage(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def active_in(place: Folder) -> tuple[Mapping[str, ActiveEdit], str | None]:
    """Return the active edits, and an error if they cannot be read. The store may be in use by another process."""
    if place.path is None:
        return {}, None
    path = place.path / NAME
    try:
        if not path.exists():
            return previous.read_edits(place.path)[0], None
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_START_BUSY_S)) as db:
            return _apart(_edits(db))[0], None
    except FileNotFoundError:
        return {}, None
    except OSError as error:
        return {}, os_error_text(error)
    except sqlite3.Error as error:
        return {}, f"{NAME}: {_reason(error)}" + ("; it will be quarantined" if _is_damage(error) else "")
    except (TypeError, msgspec.MsgspecError) as error:
        return {}, f"{NAME}: {error}; it will be quarantined"
    except ValueError as error:
        return {}, f"{previous.JOURNAL}: {error}; it will be quarantined"


def open_store(place: Folder, *, lock: int | None = None) -> Store:
    """Open the store. If the default directory is unusable, edits are kept in memory.

    Raises:
        StartError: Another process uses the directory, or the configured directory is unusable.
    """
    directory = place.path
    if directory is None:
        return Store(None, error=place.why or None)
    try:
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        return Store(directory, lock=lock)
    except LockedError:
        what = "is in use by another process; use --take-over to replace that process, or choose another --state-dir"
        raise StartError(f"state directory {directory} {what}") from None
    except ValueError:
        raise StartError(f"state directory {str(directory)!r} is not a valid path") from None
    except OSError as error:
        why = os_error_text(error)
        if error.filename is not None and Path(error.filename).parent == directory:
            why = f"{Path(error.filename).name}: {why}"
        if place.given:
            what = 'make it writable for this user, choose another one, or set "off" to keep edits in memory'
            raise StartError(f"state directory {directory}: {why}; {what}") from None
        return Store(None, error=f"{directory}: {why}; set --state-dir")
