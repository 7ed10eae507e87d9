"""The log of one process on the disk: written a second at a time, finished by size or age, bounded in total.

Nothing here raises for a disk: what it does not take is dropped and counted, and the next second is tried again. All
of it blocks and belongs on a thread; the figures may be read from anywhere.
"""

import errno
import os
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from admin.common.disk import Appender, LockedError, is_gone, sync_directory, words_for
from admin.rejection_log.composing import Batch, Piece
from admin.rejection_log.figures import Figures, reason_of
from admin.rejection_log.folder import FILE_MODE, FileName, Folder, finished_name, new_run, slug_of
from admin.rejection_log.recovery import recover

_log = structlog.get_logger(__name__)

_QUIET_AGE_S: Final = 3600.0
"""A file with nothing but heartbeats in it is finished after so long."""
_TRY_AGAIN_S: Final = 5.0
"""Another process in the folder is waited for, and asked so often."""
_MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""So much is kept for a folder that the process before has still."""
_QUIET: Final = frozenset({"heartbeat"})


class Bounds(NamedTuple):
    """How much is written.

    Attributes:
        max_file_bytes: a file this long is finished.
        max_file_age_s: so old, too.
        max_total_bytes: all files together.
    """

    max_file_bytes: int
    max_file_age_s: float
    max_total_bytes: int


class _Finished:
    """The finished files in the folder, of whatever run: how many bytes they are, and which go when it is too many.

    What has such a name and is no file of its own does not count, as it cannot be deleted as one.

    Args:
        folder: where.
        max_total_bytes: all files together, those that are being written among them.
        figures: what is deleted is counted there.
    """

    def __init__(self, folder: Folder, max_total_bytes: int, figures: Figures) -> None:
        self._folder = folder
        self._max_total_bytes = max_total_bytes
        self._figures = figures
        #: The oldest first: time of the last change, name and bytes.
        self._files: list[tuple[int, str, int]] = []

    def look(self) -> None:
        """Look which there are.

        Raises:
            OSError: the folder cannot be read.
        """
        found = []
        for name in self._folder.names():
            if finished_name(name) is None:
                continue
            try:
                status = (self._folder.path / name).lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, name, status.st_size))
        self._files = sorted(found)

    def delete_oldest(self, written_bytes: int) -> None:
        """Delete the oldest until all together are few enough bytes.

        Args:
            written_bytes: of the files that are being written.

        Raises:
            OSError: one could not be deleted; the others were.
        """
        total = written_bytes + sum(size for _, _, size in self._files)
        stay: list[tuple[int, str, int]] = []
        failed: OSError | None = None
        while self._files and total > self._max_total_bytes:
            _, name, size = oldest = self._files.pop(0)
            try:
                (self._folder.path / name).unlink()
            except FileNotFoundError:
                pass
            except OSError as error:
                # One that cannot be deleted must not keep all others.
                failed = error
                stay.append(oldest)
                continue
            else:
                self._figures.deleted_files += 1
                self._figures.deleted_bytes += size
            total -= size
        self._files[:0] = stay
        self._figures.kept_bytes = total
        if failed is not None:
            raise failed


class LogFiles:
    """The files of one process in one folder.

    Args:
        folder: where; taken already or not.
        instance: its name becomes a part of the files' names.
        run: whose records come first.
        bounds: how much is written.
        clock_s: the monotonic clock, in seconds.
        predecessor_s: so long the process whose place this one takes may have the folder still; 0 if there is none.
            What comes meanwhile is kept in memory, within a bound.

    Attributes:
        figures: what was done.
        error: why nothing is written now, for people; None if all is well.
        number: of the log file that is written now, or comes next.
        limits_lost: some of the records that could not be written say how the rules stand.
        waiting: what comes is kept, as the process before has the folder still.
    """

    def __init__(
        self,
        folder: Folder,
        instance: str,
        run: str,
        bounds: Bounds,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        predecessor_s: float = 0.0,
    ) -> None:
        self.figures = Figures()
        self.error: str | None = None
        self.number = 1
        self.limits_lost = False
        self.waiting = predecessor_s > 0
        self._folder = folder
        self._run = FileName(slug_of(instance), run, 1)
        self._bounds = bounds
        self._finished = _Finished(folder, bounds.max_total_bytes, self.figures)
        self._clock_s = clock_s
        self._one_at_a_time = threading.Lock()
        self._file: Appender | None = None
        self._began_s = 0.0
        self._types: set[str] = set()
        self._ahead: Appender | None = None
        #: The first line of the write-ahead file; and the same while it is not there.
        self._header: bytes | None = None
        self._begin: bytes | None = None
        #: The folder is this one's, and what a killed process had left there is finished.
        self._ready = False
        #: The folder was lost; so far the files up to this number, which is not among them, had been finished.
        self._lost_at: int | None = None
        self._retry_s = -_TRY_AGAIN_S
        self._wait_until_s = clock_s() + predecessor_s
        #: What is kept has to fit into one file: what recovery is told of it names that.
        self._most_kept_bytes = min(_MAX_KEPT_BYTES, bounds.max_file_bytes // 2, bounds.max_total_bytes // 8)
        self._closed = False
        self._ended = False
        self._handed_in: deque[Batch] = deque()
        self._busy_since_s: float | None = None

    @property
    def run(self) -> str:
        """Whose records are taken: another's once somebody else has finished the files of the one before."""
        return self._run.run

    @property
    def lost_records(self) -> int:
        """How many could not be made or written."""
        return self.figures.lost.total()

    def prepare(self) -> bool:
        """Take the folder and finish what a killed process left there; say whether it can be written to."""
        with self._busy():
            if self._must_wait():
                return False
            try:
                self._have_folder()
            except (OSError, LockedError) as error:
                self._failed(error)
                return False
            self._went_well()
            return True

    def hand_in(self, batch: Batch) -> None:
        """Take what is to be written; this alone does not block."""
        self._handed_in.append(batch)

    @property
    def waits_s(self) -> float:
        """For how long the disk has been busy with one thing, in seconds."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else self._clock_s() - since_s

    def write(self) -> None:
        """Write what was handed in, finish the file if it is time, and keep to the bounds."""
        with self._busy():
            if not self._must_wait():
                self._write_all()

    def _write_all(self) -> None:
        while self._handed_in:
            self._busy_since_s = self._clock_s()
            self._write(self._handed_in.popleft())

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._one_at_a_time:
            self._busy_since_s = self._clock_s()
            try:
                yield
            finally:
                self._busy_since_s = None

    def _write(self, batch: Batch) -> None:
        if self._closed:
            self._lose(batch.records.pieces, "too_late")
            return
        if batch.run != self.run:
            # Their numbers may be those of records that another process made in its place.
            self._lose(batch.records.pieces, "locked")
            return
        error = self._write_records(batch)
        self._ended = batch.last and error is None
        if batch.run == self.run:
            error = self._write_lines_ahead(batch) or error
        error = self._keep_bounds() or error
        if error is None:
            self._went_well()
        else:
            self._failed(error)

    def close(self) -> None:
        """Finish the file; nothing is written after that."""
        with self._busy():
            if self._closed:
                return
            if self.waiting:
                # It has waited in vain, if the folder is not free now.
                self.waiting = False
                self._write_all()
            self._closed = True
            if self._ahead is not None:
                # As long as the log file lacks something of what it is about, the next start reads it.
                if self._ended:
                    with suppress(OSError):
                        self._ahead.path.unlink()
                self._ahead.close()
            try:
                self._finish()
            except OSError as error:
                self._failed(error)
            self._forget_files()
            self._folder.release()

    # --- the folder

    def _must_wait(self) -> bool:
        """Say whether what comes is to be kept for now."""
        if not self.waiting:
            return False
        try:
            self._have_folder()
        except LockedError:
            kept = (piece for each in self._handed_in for piece in (*each.records.pieces, *each.write_ahead.pieces))
            if self._clock_s() < self._wait_until_s and sum(len(data) for data, _ in kept) <= self._most_kept_bytes:
                return True
        except OSError:
            # It is met with again at once, and told.
            pass
        self.waiting = False
        return False

    def _have_folder(self) -> None:
        if not self._folder.held:
            self._take_folder()
        elif self._ready:
            return
        if self._lost_at is not None:
            self._look_who_was_here(self._lost_at)
        found = recover(self._folder, self.run)
        self._ready = True
        self.figures.finished_files += found.files
        self.figures.torn_lines += found.torn_lines
        self.figures.unsealed_runs = found.failed
        if found.files:
            _log.info(
                "rejection log that was left unfinished is finished",
                files=found.files,
                records_of_its_last_minute=found.records,
                torn_lines=found.torn_lines,
            )
        self._finished.look()

    def _take_folder(self) -> None:
        if self._ready:
            self._ready, self._lost_at = False, self.number
            self._forget_files()
        # Another process is not asked every second, and what waits for it need not be either; but the process before
        # is about to end.
        if self.error is not None and self._clock_s() - self._retry_s < _TRY_AGAIN_S:
            raise LockedError(self.error or "")
        try:
            self._folder.take()
        except LockedError:
            self._retry_s = self._clock_s()
            if self._lost_at is None:
                raise
            self._begin_run()
            what = "the lock was removed, and another process has taken the folder; end one of the two, or give each"
            raise LockedError(f"{self._folder.path}: {what} a rejection_log.dir of its own") from None

    def _look_who_was_here(self, lost_at: int) -> None:
        """See whether another process had the folder meanwhile: it has finished the files as a killed one's.

        Raises:
            LockedError: so it is; what was in them goes on as another run.
        """
        found = (finished_name(name) for name in self._folder.names())
        if any(file is not None and file[:2] == self._run[:2] and file.number >= lost_at for file in found):
            self._begin_run()
            what = "the lock was removed, and another process finished the files; a new run begins"
            raise LockedError(f"{self._folder.path}: {what}")
        _log.warning("rejection log: the folder or its lock was removed; it is taken again", dir=str(self._folder.path))
        self._lost_at = None

    def _begin_run(self) -> None:
        """Go on under another name: what counts up in a run would be in use twice."""
        self._run = self._run._replace(run=new_run())
        self.number = 1
        self._header = self._begin = self._lost_at = None

    def _forget_files(self) -> None:
        """Let go of files that are in a folder that is gone, or finished."""
        if self._file is not None:
            self._file.close()
            self._next_file()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _next_file(self) -> None:
        self._file = None
        self._types.clear()
        self.number += 1

    # --- writing

    def _write_records(self, batch: Batch) -> OSError | LockedError | None:
        pieces = batch.records.pieces
        while pieces:
            try:
                self._append(*pieces[0])
            except (OSError, LockedError) as error:
                if self._file is not None and isinstance(error, OSError) and is_gone(error):
                    # The file is not there any more: the next one takes this, at once.
                    self._file.close()
                    self._next_file()
                    try:
                        self._append(*pieces[0])
                    except (OSError, LockedError) as again:
                        error = again
                    else:
                        pieces.pop(0)
                        continue
                self._lose(pieces, reason_of(error))
                pieces.clear()
                return error
            pieces.pop(0)
        return None

    def _append(self, data: bytearray, records: Counter[str]) -> None:
        self._have_folder()
        if self._file is not None and self._file.size + len(data) > self._bounds.max_total_bytes // 2:
            # Much comes at once, and the total is small: what is oldest makes room for it.
            self._finish()
            self._delete_oldest()
        if self._file is None:
            self._file = _new_file(self._folder.path / self._run._replace(number=self.number).open)
            self._began_s = self._clock_s()
        self._check_room(self._file, data)
        self._file.append(data, durable=False)
        self._types.update(records)
        self.figures.records.update(records)
        self.figures.bytes += len(data)

    def _check_room(self, file: Appender, data: bytearray) -> None:
        """Refuse what cannot be within the bounds, as a file that cannot be finished grows on."""
        if file.size + len(data) > self._bounds.max_total_bytes:
            raise OSError(errno.EFBIG, "the file would be larger than max_total_bytes", str(file.path))

    def _write_lines_ahead(self, batch: Batch) -> OSError | LockedError | None:
        if batch.begin is not None:
            self._begin = self._header = batch.begin
        if not batch.write_ahead.pieces:
            return None
        try:
            self._have_folder()
            if self._ahead is None:
                path = self._folder.path / self._run.write_ahead
                path.unlink(missing_ok=True)
                self._ahead = _new_file(path)
                self._begin = self._header
            if self._begin is not None:
                self._ahead.begin_anew()
            for data, _ in batch.write_ahead.pieces:
                if self._begin is not None:
                    data[:0] = self._begin
                self._check_room(self._ahead, data)
                self._ahead.append(data, durable=False)
                self._begin = None
        except (OSError, LockedError) as error:
            self.figures.lost_seconds += 1
            if isinstance(error, OSError) and is_gone(error) and self._ahead is not None:
                self._ahead.close()
                self._ahead = None
            return error
        return None

    # --- finishing and deleting

    def _keep_bounds(self) -> OSError | None:
        try:
            if self._file is not None and self._is_due(self._file):
                self._finish()
            self._delete_oldest()
        except OSError as error:
            return error
        return None

    def _is_due(self, file: Appender) -> bool:
        # One file alone must not be all there may be.
        if file.size >= min(self._bounds.max_file_bytes, self._bounds.max_total_bytes // 4):
            return True
        quiet = self._types <= _QUIET
        return self._clock_s() - self._began_s >= (
            max(_QUIET_AGE_S, self._bounds.max_file_age_s) if quiet else self._bounds.max_file_age_s
        )

    def _finish(self) -> None:
        file = self._file
        if file is None:
            return
        if not file.size:
            file.path.unlink(missing_ok=True)
            file.close()
            self._next_file()
            return
        try:
            file.sync()
            name = self._run._replace(number=self.number).finished
            file.path.rename(self._folder.path / name)
        except OSError as error:
            if is_gone(error):
                file.close()
                self._next_file()
            raise
        file.close()
        self._next_file()
        self.figures.finished_files += 1
        sync_directory(self._folder.path)
        self._finished.look()

    def _delete_oldest(self) -> None:
        self._finished.delete_oldest(sum(file.size for file in (self._file, self._ahead) if file is not None))

    # --- how it goes

    def _lose(self, pieces: list[Piece], reason: str) -> None:
        for _, records in pieces:
            self.figures.lost[reason] += records.total()
            self.limits_lost |= "limit" in records

    def _failed(self, error: OSError | LockedError) -> None:
        words = f"{self._folder.path}: {words_for(error)}" if isinstance(error, OSError) else str(error)
        if self.error is None:
            what = "rejection log is not written; traffic goes on, and what is lost is counted"
            _log.error(what, reason=words)
        self.error = words

    def _went_well(self) -> None:
        if self.error is not None:
            _log.info("rejection log is written again", records_lost=self.lost_records)
            self.error = None


def _new_file(path: Path) -> Appender:
    return Appender(path, mode=FILE_MODE, flags=os.O_EXCL)
