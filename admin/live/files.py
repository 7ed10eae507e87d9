"""Files that survive the loss of power: appended to, replaced as a whole, or locked. Everything here blocks."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

_MODE: Final = 0o600
"""Reasons and names of clients are nobody else's business."""

_ID_DIGITS: Final = 20

AT_ONCE: Final = 64
"""So many of the data of live edits are encoded in one go."""
_PAUSE_S: Final = 0.0005


class LockedError(Exception):
    """Another process has the state directory."""


class Appender:
    """A file that only grows, by whole lines.

    Args:
        path: the file; made if it is not there.
        size: bytes of it that are right; what lies behind them is cut off.

    Attributes:
        size: bytes of it that are right.
        syncs: how often it was made durable.

    Raises:
        OSError: it cannot be opened or cut.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self.syncs = 0
        self._path = path
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
        self._doubtful = False
        try:
            status = os.fstat(self._descriptor)
            self._identity = _identity(status)
            if status.st_size != size:
                self._cut()
        except OSError:
            self.close()
            raise

    def append(self, data: bytes, *, durable: bool) -> None:
        """Write at the end.

        Args:
            data: whole lines.
            durable: return only once it is on the disk.

        Raises:
            OSError: nothing of it is in the file, or will be cut off before anything else is written.
        """
        descriptor = self._usable()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                self.syncs += 1
                os.fdatasync(descriptor)
        except OSError:
            self._doubtful = True
            self._try_to_cut()
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Make everything durable.

        Raises:
            OSError: it may not be.
        """
        os.fdatasync(self._usable())
        self.syncs += 1

    def close(self) -> None:
        """Close it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _usable(self) -> int:
        """Return the descriptor of the file that has the name, without anything half written.

        Raises:
            OSError: there is no such file any more, or it cannot be cut.
        """
        if self._descriptor is None:
            raise OSError(errno.EBADF, "closed")
        # Somebody may have removed the directory: what is written then would never be found again.
        if _identity(self._path.stat()) != self._identity:
            raise OSError(errno.ESTALE, "another file has taken its place", str(self._path))
        if self._doubtful:
            self._cut()
        return self._descriptor

    def _try_to_cut(self) -> None:
        try:
            self._cut()
        except OSError:
            return

    def _cut(self) -> None:
        assert self._descriptor is not None  # noqa: S101 - it is open here
        os.ftruncate(self._descriptor, self.size)
        os.fsync(self._descriptor)
        self._doubtful = False


def encoded(data: Iterable[object]) -> Iterator[msgspec.Raw]:
    """Yield each as JSON; a long row of them with pauses, as who encodes in a thread holds up the event loop."""
    for number, each in enumerate(data, 1):
        yield msgspec.Raw(msgspec.json.encode(each))
        if number % AT_ONCE == 0:
            time.sleep(_PAUSE_S)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def open_to_read(path: Path) -> int:
    """Open a file and return its descriptor. What is no file is not opened: a pipe would wait for a writer for ever.

    Raises:
        OSError: it is not there, no regular file, or cannot be read.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read_whole(path: Path) -> bytes:
    """Return what is in a file.

    Raises:
        OSError: as ``open_to_read``.
    """
    with open(open_to_read(path), "rb") as file:
        return file.read()


def replace_durably(path: Path, pieces: Iterable[bytes]) -> int:
    """Put other content in a file's place, all at once, and return its size.

    Raises:
        OSError: the file is as it was.
    """
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    try:
        size = 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            size += len(piece)
        os.fsync(descriptor)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    beside.rename(path)
    sync_directory(path.parent)
    return size


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fresh_name(directory: Path, name: str) -> Path:
    """Return a path of that name, or of one that goes on with a number, where nothing lies yet."""
    path, number = directory / name, 1
    while path.exists():
        number += 1
        path = directory / f"{name}-{number}"
    return path


class DirectoryLock:
    """Keeps other processes out of a state directory for as long as this one lives.

    The file has a fixed size and says the highest id of a change that is written down nowhere else: overwriting it
    needs no room on the disk.

    Args:
        directory: the state directory.

    Attributes:
        last_id: what it said at the start.

    Raises:
        LockedError: another process has it.
        OSError: it cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = os.pread(self._descriptor, _ID_DIGITS, 0)
            self.last_id = int(text) if text.isdigit() else 0
            self.remember(self.last_id)
        except BlockingIOError:
            self.close()
            raise LockedError(f"{directory} is in use by another process") from None
        except OSError:
            self.close()
            raise

    @property
    def holds(self) -> bool:
        """Whether the file is still the one with the name: who finds another one there, or none, has the directory."""
        try:
            return _identity(self._path.stat()) == _identity(os.fstat(self._descriptor))
        except OSError:
            return False

    def remember(self, last_id: int) -> None:
        """Write down the highest id.

        Raises:
            OSError: it could not be.
        """
        os.pwrite(self._descriptor, b"%0*d\n" % (_ID_DIGITS, last_id), 0)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let others in."""
        os.close(self._descriptor)
