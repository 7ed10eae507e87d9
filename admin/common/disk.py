"""Files that survive the loss of power: appended to, replaced as a whole, or locked. Everything here blocks.

Live edits, their audit trail, the rejection log and reports all write by this module.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

_MODE: Final = 0o600
"""Reasons and names of clients are nobody else's business."""

#: So many of a long row are gone through before a pause.
_AT_ONCE: Final = 64
_PAUSE_S: Final = 0.0005
_PIECE_BYTES: Final = 64 * 1024

_WORDS: Final = {
    errno.ENOSPC: "there is no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reports an error",
    errno.ENOENT: "it is not there any more",
    errno.ESTALE: "its files have been replaced",
    errno.EACCES: "it may not be written",
    errno.EFBIG: "the file would be larger than is allowed",
    errno.EEXIST: "there is a file of that name",
}
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.EBADF})

_Each = TypeVar("_Each")


class LockedError(Exception):
    """Another process has the directory."""


def words_for(error: OSError) -> str:
    """Say in plain words why a file or directory does not take something."""
    return _WORDS.get(error.errno or 0) or (error.strerror or str(error)).lower()


def is_gone(error: OSError) -> bool:
    """Say whether a file that was appended to is not there any more."""
    return error.errno in _GONE


class Appender:
    """A file that only grows, by whole lines.

    Args:
        path: the file; made if it is not there.
        size: bytes of it that are right, what lies behind them is cut off; None for all its whole lines.
        mode: of a file that is made.
        flags: for opening it, besides the usual ones.

    Attributes:
        path: as given.
        size: bytes of it that are right.
        torn: something was cut off when it was opened.

    Raises:
        OSError: it cannot be opened or cut.
    """

    def __init__(self, path: Path, size: int | None = None, *, mode: int = _MODE, flags: int = 0) -> None:
        self.path = path
        flags |= os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor: int | None = os.open(path, flags, mode)
        self._doubtful = False
        try:
            status = os.fstat(self._descriptor)
            self._identity = _identity(status)
            self.size = _whole_bytes(self._descriptor, status.st_size) if size is None else size
            self.torn = status.st_size != self.size
            if self.torn:
                self._cut()
        except OSError:
            self.close()
            raise

    def append(self, data: bytes | bytearray, *, durable: bool) -> None:
        """Write at the end.

        Args:
            data: whole lines.
            durable: return only once it is on the disk.

        Raises:
            OSError: nothing of it is in the file, or will be cut off before anything else is written.
        """
        descriptor = self._usable()
        try:
            _write(descriptor, data)
            if durable:
                os.fdatasync(descriptor)
        except OSError:
            self._doubtful = True
            with suppress(OSError):
                self._cut()
            raise
        self.size += len(data)

    def begin_anew(self) -> None:
        """Forget what is in it.

        Raises:
            OSError: it is still there.
        """
        descriptor = self._usable()
        if self.size:
            os.ftruncate(descriptor, 0)
            self.size = 0

    def sync(self) -> None:
        """Make everything durable.

        Raises:
            OSError: it may not be.
        """
        os.fdatasync(self._usable())

    def close(self) -> None:
        """Close it."""
        if self._descriptor is not None:
            # Whatever was to be said of it has been said by then.
            with suppress(OSError):
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
        if _identity(self.path.stat()) != self._identity:
            raise OSError(errno.ESTALE, "another file has taken its place", str(self.path))
        if self._doubtful:
            self._cut()
        return self._descriptor

    def _cut(self) -> None:
        assert self._descriptor is not None  # noqa: S101 - it is open here
        os.ftruncate(self._descriptor, self.size)
        os.fsync(self._descriptor)
        self._doubtful = False


def _write(descriptor: int, data: bytes | bytearray) -> None:
    with memoryview(data) as rest:
        at = 0
        while at < len(rest):
            at += os.write(descriptor, rest[at:])


def _whole_bytes(descriptor: int, size: int) -> int:
    """Return the size less a last line that was not finished."""
    while size > 0:
        begin = max(0, size - _PIECE_BYTES)
        newline = os.pread(descriptor, size - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        size = begin
    return 0


def lines_backwards(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the lines within so many bytes of a file that are not empty, the last first.

    Raises:
        OSError: it cannot be read.
    """
    rest = b""
    while size > 0:
        begin = max(0, size - _PIECE_BYTES)
        # The first may go on in the piece before.
        rest, *lines = (os.pread(descriptor, size - begin, begin) + rest).split(b"\n")
        size = begin
        yield from (line for line in reversed(lines) if line)
    if rest:
        yield rest


def paused(each_of: Iterable[_Each]) -> Iterator[_Each]:
    """Go through a long row with pauses, as a thread that computes holds up the event loop."""
    for number, each in enumerate(each_of, 1):
        yield each
        if number % _AT_ONCE == 0:
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


def exposed_to(directory: Path) -> str | None:
    """Say who besides this user and root can write in a directory, and what to do; None if nobody can.

    Whoever can write there can put other files in the place of those that are there, whatever their modes say. A sticky
    bit (as of /tmp) does not count: what is not there yet can still be made by anybody.

    Raises:
        OSError: it is not there.
    """
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IWOTH:
        return f"every user of this machine can write there (mode {mode:04o}): chmod o-w {directory}"
    if found.st_uid not in {0, os.geteuid()}:
        return f"it belongs to another user (uid {found.st_uid}): chown it to this one (uid {os.geteuid()})"
    if mode & stat.S_IWGRP:
        return f"the group with gid {found.st_gid} can write there (mode {mode:04o}): chmod g-w {directory}"
    return None


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
            _write(descriptor, piece)
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


class FileLock:
    """Keeps other processes out of a directory for as long as this one lives; the file may say something besides.

    Args:
        path: the file, in the directory; made if it is not there.
        mode: of a file that is made.
        inherited: the descriptor of the process that has it, which shares it with this one; taken over.

    Raises:
        LockedError: another process has it.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, mode: int = _MODE, *, inherited: int | None = None) -> None:
        self._path = path
        self._descriptor = (
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode) if inherited is None else inherited
        )
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise LockedError(f"{path.parent} is in use by another process") from None
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

    def fileno(self) -> int:
        """Return the descriptor. A process that it is passed to has the directory, too, until all have closed it."""
        return self._descriptor

    def content(self) -> bytes:
        """Return what the file says, which is short.

        Raises:
            OSError: it cannot be read.
        """
        return os.pread(self._descriptor, _PIECE_BYTES, 0)

    def overwrite(self, content: bytes) -> None:
        """Have the file say something else, durably; what is as long as before needs no room on the disk.

        Raises:
            OSError: it could not be written.
        """
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let others in."""
        os.close(self._descriptor)
