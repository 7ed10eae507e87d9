"""Writes the rejection log to disk. Each process has its own files, which are rotated by size or age.

Records that cannot be written are dropped and counted.
"""

import errno
import os
import re
import secrets
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import structlog

from admin.common.disk import open_to_read, os_error_text
from proxy.common.metric import Metric, Samples

_log = structlog.get_logger(__name__)

Lines = list[tuple[str, bytes]]
"""The type and the line of each record."""

_NAME: Final = re.compile(r"rejections-(?P<slug>.+)-(?P<run>[0-9a-f]{12})-(?P<number>\d{6,})\.jsonl(?:\.gz)?", re.ASCII)
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._]+")
_SLUG_CHARACTERS: Final = 100
_RUN_BYTES: Final = 6
_FILE_MODE: Final = 0o640
"""Log shippers can read files as members of the group."""
_FOLDER_MODE: Final = 0o750
_QUIET_AGE_S: Final = 3600.0
"""Maximum age of a file that contains only heartbeats."""
_PIECE_BYTES: Final = 256 * 1024
"""Maximum size of a write. An error does not affect earlier writes."""
_LAST_BYTES: Final = 64 * 1024
_REASONS: Final = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EROFS: "not_writable",
    errno.EACCES: "not_writable",
    errno.EPERM: "not_writable",
    errno.ENOENT: "folder_gone",
    errno.ESTALE: "folder_gone",
    errno.ENOTDIR: "folder_gone",
    errno.EEXIST: "folder_gone",
}
_LOST_REASONS: Final = ("error", "fault", "folder_gone", "no_space", "not_writable")
"""The reason is ``fault`` if a record could not be composed."""
_TYPES: Final = ("heartbeat", "limit", "limit_change", "rejection", "traffic")


def _each_of(words: Sequence[str]) -> Callable[[Mapping[str, int]], Samples]:
    return lambda counts: [((), [(word, counts[word]) for word in words])]


class Figures(msgspec.Struct):
    records: Annotated[
        Counter[str],
        Metric("sluice_rejection_log_records_total", "Records written, by type.", ("type",), _each_of(_TYPES)),
    ] = msgspec.field(default_factory=Counter)
    bytes: Annotated[int, Metric("sluice_rejection_log_bytes_total", "Bytes written to log files.")] = 0
    finished_files: Annotated[int, Metric("sluice_rejection_log_files_total", "Log files finished.")] = 0
    lost: Annotated[
        Counter[str],
        Metric(
            "sluice_rejection_log_lost_records_total",
            "Records that could not be composed or written, by reason.",
            ("reason",),
            _each_of(_LOST_REASONS),
        ),
    ] = msgspec.field(default_factory=Counter)
    disk_wait_s: Annotated[
        float,
        Metric(
            "sluice_rejection_log_disk_wait_seconds",
            "How long the current disk operation has taken, in seconds. 0 if there is none.",
        ),
    ] = 0.0
    deleted_files: Annotated[
        int,
        Metric("sluice_rejection_log_deleted_files_total", "Files deleted because of rejection_log.max_total_bytes."),
    ] = 0
    deleted_bytes: Annotated[int, Metric("sluice_rejection_log_deleted_bytes_total", "Bytes of the deleted files.")] = 0
    kept_bytes: Annotated[int, Metric("sluice_rejection_log_kept_bytes", "Bytes of all log files in the folder.")] = 0
    clock_steps: Annotated[int, Metric("sluice_rejection_log_clock_steps_total", "Jumps of the wall clock.")] = 0
    other_runs: Annotated[
        int,
        Metric(
            "sluice_rejection_log_other_runs_total",
            "Runs of requests counted under _other because a bound was reached.",
        ),
    ] = 0


class FileName(NamedTuple):
    """The parts of a log file's name. ``slug`` is derived from the instance's name. ``number`` counts a run's files."""

    slug: str
    run: str
    number: int

    def __str__(self) -> str:
        return f"rejections-{self.slug}-{self.run}-{self.number:06}.jsonl"


def file_name(name: str) -> FileName | None:
    """Parse the name of a log file, which may be compressed. Return None if it is not a log file."""
    found = _NAME.fullmatch(name)
    return None if found is None else FileName(found["slug"], found["run"], int(found["number"]))


def new_run() -> str:
    return secrets.token_hex(_RUN_BYTES)


def make_folder(directory: Path) -> None:
    for each in [*reversed(directory.parents), directory]:
        if each == directory or not each.exists():
            each.mkdir(_FOLDER_MODE, exist_ok=True)


class Bounds(NamedTuple):
    max_file_bytes: int
    max_file_age_s: float
    max_total_bytes: int


class _Last(msgspec.Struct):
    run: str
    n: int
    ends: bool = False


_last: Final = msgspec.json.Decoder(_Last)


class LogFiles:
    """Appends a run's records to files in ``directory``, which is created if it does not exist.

    Attributes:
        error: The reason why records currently cannot be written, or None if they can.
    """

    def __init__(
        self, directory: Path, instance: str, run: str, bounds: Bounds, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory, self.run = directory, run
        self.figures = Figures()
        self.error: str | None = None
        slug = _UNFIT.sub("-", instance)[:_SLUG_CHARACTERS].strip("-.") or "sluice"
        self._name = FileName(slug, run, 0)
        # Only complete files are deleted, so they must not be too large.
        self._max_file_bytes = min(bounds.max_file_bytes, bounds.max_total_bytes // 4)
        self._bounds, self._clock_s = bounds, clock_s
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size = self._others_bytes = 0
        self._began_s = 0.0
        self._is_quiet = True
        self._handed_in: deque[Lines] = deque()
        self._busy_since_s: float | None = None

    @property
    def waits_s(self) -> float:
        since_s = self._busy_since_s
        return 0.0 if since_s is None else self._clock_s() - since_s

    def hand_in(self, lines: Lines) -> None:
        """Queue records for ``write`` without blocking."""
        self._handed_in.append(lines)

    def write(self) -> None:
        with self._lock:
            while self._handed_in:
                self._busy_since_s = self._clock_s()
                try:
                    self._write(self._handed_in.popleft())
                finally:
                    self._busy_since_s = None

    def close(self) -> None:
        with self._lock:
            self._finish()

    def killed_run(self) -> tuple[str, int] | None:
        """If the instance's previous run was killed, return it and the number of its last record, otherwise None."""
        try:
            files = [each for each in self._files() if each[2].slug == self._name.slug and each[2].run != self.run]
            if not files:
                return None
            _, size, _, path = max(files)
            with os.fdopen(open_to_read(Path(path)), "rb") as file:
                file.seek(max(0, size - _LAST_BYTES))
                record = _last.decode(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return None if record.ends else (record.run, record.n)

    def _write(self, lines: Lines) -> None:
        try:
            while lines:
                piece, records = bytearray(), Counter[str]()
                for type_, line in lines:
                    if piece and len(piece) + len(line) > _PIECE_BYTES:
                        break
                    piece += line
                    records[type_] += 1
                self._append(piece)
                del lines[: records.total()]
                self._is_quiet &= records.keys() <= {"heartbeat"}
                self.figures.records += records
        except OSError as error:
            self.figures.lost[_REASONS.get(error.errno or 0, "error")] += len(lines)
            words = f"{self.directory}: {os_error_text(error)}"
            if self.error is None:
                what = "could not write the rejection log; traffic is not affected"
                _log.error(what, reason=words)
            self.error = words
        else:
            if self.error is not None:
                _log.info("rejection log writable again", records_lost=self.figures.lost.total())
                self.error = None

    def _append(self, data: bytearray) -> None:
        if self._descriptor is None or self._is_due(len(data)) or self._is_gone():
            self._begin_file(len(data))
        descriptor = self._descriptor
        assert descriptor is not None  # noqa: S101 - _begin_file opened it
        try:
            with memoryview(data) as rest:
                at = 0
                while at < len(rest):
                    at += os.write(descriptor, rest[at:])
        except OSError:
            try:
                os.ftruncate(descriptor, self._size)
            except OSError:
                # Leave the partial line, which readers ignore, and begin a new file.
                self._close()
            raise
        self._size += len(data)
        self.figures.bytes += len(data)
        self.figures.kept_bytes = self._others_bytes + self._size

    def _is_due(self, more_bytes: int) -> bool:
        if not self._size:
            return False
        max_age_s = max(_QUIET_AGE_S, self._bounds.max_file_age_s) if self._is_quiet else self._bounds.max_file_age_s
        return self._size + more_bytes > self._max_file_bytes or self._clock_s() - self._began_s >= max_age_s

    def _is_gone(self) -> bool:
        assert self._descriptor is not None  # noqa: S101 - called with an open file
        try:
            return not os.path.samestat((self.directory / str(self._name)).stat(), os.fstat(self._descriptor))
        except OSError:
            return True

    def _begin_file(self, more_bytes: int) -> None:
        self._finish()
        make_folder(self.directory)
        self._delete_oldest(max(self._max_file_bytes, more_bytes))
        name = self._name._replace(number=self._name.number + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.directory / str(name), flags, _FILE_MODE)
        self._name, self._size, self._began_s, self._is_quiet = name, 0, self._clock_s(), True

    def _finish(self) -> None:
        if self._descriptor is None:
            return
        if self._size:
            self.figures.finished_files += 1
        elif not self._is_gone():
            (self.directory / str(self._name)).unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        assert self._descriptor is not None  # noqa: S101 - only an open file is closed
        os.close(self._descriptor)
        self._descriptor = None

    def _files(self) -> Iterator[tuple[int, int, FileName, str]]:
        for entry in os.scandir(self.directory):
            if (name := file_name(entry.name)) is None:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield status.st_mtime_ns, status.st_size, name, entry.path

    def _delete_oldest(self, room_bytes: int) -> None:
        files = sorted(self._files())
        total = room_bytes + sum(size for _, size, _, _ in files)
        for _, size, _, path in files:
            if total <= self._bounds.max_total_bytes:
                break
            with suppress(OSError):
                Path(path).unlink(missing_ok=True)
                self.figures.deleted_files += 1
                self.figures.deleted_bytes += size
                total -= size
        self._others_bytes = total - room_bytes
        if total > self._bounds.max_total_bytes:
            raise PermissionError(errno.EPERM, "cannot delete old files")
