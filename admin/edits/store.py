"""Stores live edits: the journal of active edits and the audit trail, in one directory.

The journal makes a change durable, and it holds the change itself, so that the audit trail can be completed from it:
one flush to the disk is enough for both. ``MemoryStore`` has neither. Everything here but the plain attributes blocks,
and belongs on a thread once traffic flows.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from admin.common.disk import FileLock, LockedError, exposed_to, is_gone, words_for
from admin.edits.audit import MAX_BYTES, AuditTrail, select
from admin.edits.journal import Journal, Record
from admin.edits.model import ActiveEdit, Change

_log = structlog.get_logger(__name__)

#: Changes remembered without a directory.
_REMEMBERED: Final = 10_000

_LOCK: Final = "lock"
_ID_DIGITS: Final = 20


class DirectoryStore:
    """The state directory of one process.

    Args:
        directory: where; it is there.
        now: the wall clock.
        audit_bytes: of one file of the audit trail.
        lock: that of the process which has it and makes no changes any more, if this one takes its place.

    Attributes:
        directory: as given.
        active: the edits that are written down, by path.
        last_id: the highest id of any change so far.
        error: why nothing can be stored at the moment, for people; None if it can.
        set_aside: damaged or foreign files found at the start, under their new names.
        exposed: who else could write there at the start, and what to do, for people; None if nobody could.

    Raises:
        LockedError: another process has it.
        OSError: it cannot be read or written.
    """

    def __init__(
        self, directory: Path, now: datetime, *, audit_bytes: int = MAX_BYTES, lock: int | None = None
    ) -> None:
        self.directory: Path | None = directory
        self.error: str | None = None
        self.place = directory
        self.exposed = exposed_to(directory)
        self._audit_bytes = audit_bytes
        self._pending: list[Change] = []
        self._owed = Record()
        with ExitStack() as opened:
            # The file says the highest id of a change that is written down nowhere else.
            self._lock = FileLock(directory / _LOCK, inherited=lock)
            opened.callback(self._lock.close)
            text = self._lock.content().strip()
            self.last_id = int(text) if text.isdigit() else 0
            self._remember()
            self._journal = Journal(directory, now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ"))
            opened.callback(self._journal.close)
            self._trail = AuditTrail(directory, max_bytes=audit_bytes)
            opened.callback(self._trail.close)
            self._pending = self._trail.lacking(self._journal.unaudited)
            self._journal.unaudited = []
            if self._pending:
                self._write_pending()
            # All is well: it stays open.
            opened.pop_all()
        self.set_aside: tuple[str, ...] = () if self._journal.set_aside is None else (str(self._journal.set_aside),)
        if self.set_aside:
            _log.error(
                "live edits were damaged or another version's: set aside; the configured limits hold",
                file=self.set_aside[0],
                reason=self._journal.damage,
            )
        self.last_id = max(self._journal.last_id, self._trail.last_id, self.last_id)

    @property
    def lock(self) -> int:
        """The descriptor of the lock, for a process that is to take this one's place."""
        return self._lock.fileno()

    @property
    def active(self) -> Mapping[str, ActiveEdit]:
        """The edits that are written down, by path."""
        return self._journal.active

    def commit(self, record: Record, passing: Sequence[Change] = ()) -> None:
        """Write changes down.

        Args:
            record: what is durable when this returns.
            passing: changes that are for the audit trail only, which a failing disk may lose.

        Raises:
            OSError: nothing of the record was written, or will ever be found.
        """
        owed = self._owed
        everything = Record({**owed.written, **record.written}, (*owed.changes, *record.changes))
        written = True
        # After a failure even nothing is written, to see whether the disk works again.
        if everything.changes or self.error is not None:
            try:
                self._journal.append(everything)
            except OSError as error:
                if not self._written_after_all(everything, error):
                    self._fail(error)
                    if record.changes:
                        raise
                    written, everything = False, Record()
            if written:
                self._owed = Record()
        self._pending = sorted((*self._pending, *everything.changes, *passing), key=_id)
        self.last_id = max([self.last_id, *(change.id for change in self._pending)])
        if not self._owed.changes:
            # Else it waits for what is owed, so that the audit trail is in order.
            self._write_pending()
        if passing and self._pending:
            try:
                self._remember()
            except OSError as error:
                self._fail(error)
        if not self._pending and self._journal.is_history:
            try:
                self._trail.sync()
                self._journal.compact()
            except OSError as error:
                self._fail(error)
                return
        if written and not self._pending:
            self._recovered()

    def owe(self, record: Record) -> None:
        """Write something down with the next commit that succeeds, since it is in force already."""
        owed = self._owed
        self._owed = Record({**owed.written, **record.written}, (*owed.changes, *record.changes))
        self.last_id = max([self.last_id, *(change.id for change in record.changes)])

    def audit(self, *, before: int | None, target: str, by: str, limit: int) -> tuple[Change, ...]:
        """Return changes, the latest first.

        Raises:
            OSError: the audit trail cannot be read.
        """
        return tuple(select(self._backwards(), before=before, target=target, by=by, limit=limit))

    def backwards(self, down_to: int) -> Iterator[Change]:
        """Yield changes, the latest first, down to an id.

        Raises:
            OSError: the audit trail cannot be read.
        """
        for change in self._backwards():
            if change.id < down_to:
                return
            yield change

    def _backwards(self) -> Iterator[Change]:
        ahead = {change.id: change for change in (*self._pending, *self._owed.changes)}
        yield from sorted(ahead.values(), key=_id, reverse=True)
        # What was written meanwhile is there twice.
        yield from (change for change in self._trail.backwards() if change.id not in ahead)

    def close(self) -> None:
        """Let others have the directory."""
        self._journal.close()
        self._trail.close()
        self._lock.close()

    def _write_pending(self) -> None:
        """Complete the audit trail; what cannot be written now is in the journal and is written later."""
        try:
            try:
                self._trail.append(self._pending)
            except OSError as error:
                if not is_gone(error):
                    raise
                # Somebody took the file away, or rotating it failed half-way: another one is begun.
                self._trail.close()
                self._trail = AuditTrail(self.place, max_bytes=self._audit_bytes)
                self._trail.append(self._pending)
        except OSError as error:
            self._fail(error)
        else:
            self._pending = []

    def _written_after_all(self, record: Record, error: OSError) -> bool:
        """If somebody removed the files, make them again; return whether the record is in them."""
        if not is_gone(error):
            return False
        try:
            if not self._lock.holds:
                lock = FileLock(self.place / _LOCK)
                self._lock.close()
                self._lock = lock
                self._remember()
            self._journal.compact()
            self._journal.append(record)
        except (OSError, LockedError):
            return False
        return True

    def _remember(self) -> None:
        # Of a fixed size: overwriting it needs no room on the disk.
        self._lock.overwrite(b"%0*d\n" % (_ID_DIGITS, self.last_id))

    def _fail(self, error: OSError) -> None:
        words = words_for(error)
        if words != self.error:
            _log.error("live edits cannot be written down", state_dir=str(self.place), error=words)
        self.error = words

    def _recovered(self) -> None:
        if self.error is not None:
            _log.info("live edits are written down again", state_dir=str(self.place))
        self.error = None


class MemoryStore:
    """Keeps live edits until the restart only.

    Args:
        error: why there is no directory, if there should be one.
    """

    def __init__(self, error: str | None = None) -> None:
        self.directory: Path | None = None
        self.exposed: str | None = None
        self.last_id = 0
        self.error = error
        self.set_aside: tuple[str, ...] = ()
        self._changes: deque[Change] = deque(maxlen=_REMEMBERED)

    @property
    def active(self) -> Mapping[str, ActiveEdit]:
        """Nothing is written down."""
        return {}

    def commit(self, record: Record, passing: Sequence[Change] = ()) -> None:
        """Remember changes for the audit."""
        new = sorted((*record.changes, *passing), key=_id)
        self._changes += new
        self.last_id = max([self.last_id, *(change.id for change in new)])

    def owe(self, record: Record) -> None:
        """Remember changes for the audit."""
        self.commit(record)

    def audit(self, *, before: int | None, target: str, by: str, limit: int) -> tuple[Change, ...]:
        """Return changes, the latest first."""
        return tuple(select(reversed(self._changes), before=before, target=target, by=by, limit=limit))

    def backwards(self, down_to: int) -> Iterator[Change]:
        """Yield changes, the latest first, down to an id."""
        return (change for change in reversed(self._changes) if change.id >= down_to)

    def close(self) -> None:
        """Do nothing: there is no directory."""


Store = DirectoryStore | MemoryStore


def _id(change: Change) -> int:
    return change.id
