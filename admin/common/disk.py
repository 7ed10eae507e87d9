"""File system helpers. All functions block."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: The files contain reasons for edits and names of clients, which other users must not see.
_MODE: Final = 0o600
_MAX_READ_BYTES: Final = 64 << 20

_WORDS: Final = {
    errno.ENOSPC: "there is no space left on the disk",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reported an error",
    errno.ENOENT: "it no longer exists",
    errno.ESTALE: "its files have been replaced",
    errno.EACCES: "it is not writable",
    errno.EFBIG: "the file would exceed the maximum file size",
    errno.EEXIST: "a file of that name exists",
}


class LockedError(Exception):
    """Another process holds the lock."""


def os_error_text(error: OSError) -> str:
    return _WORDS.get(error.errno or 0) or (error.strerror or str(error)).lower()


def unreadable(file: str, error: OSError | ValueError) -> str:
    """Explain why a file cannot be read. If it does not exist and its path is relative, include the absolute path."""
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    is_relative = isinstance(error, FileNotFoundError) and not Path(file).is_absolute()
    return f"cannot be read: {reason}" + (f" (looked for {Path(file).absolute()})" if is_relative else "")


def open_to_read(path: Path) -> int:
    """Open a file for reading and return its descriptor.

    Raises OSError unless it is a regular file. Opening a pipe could block.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read_file(path: str) -> bytes:
    """Read a file. Raises OSError if it is larger than 64 MiB, or endless like ``/dev/zero``."""
    with Path(path).open("rb") as file:
        content = file.read(_MAX_READ_BYTES + 1)
    if len(content) > _MAX_READ_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return content


def exposed_to(directory: Path) -> str | None:
    """Explain which other users can write to a directory, and how to prevent it.

    Returns None if only this user and root can. The sticky bit is ignored, because it does not prevent other users from
    adding files.
    """
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IWOTH:
        return f"every user of this machine can write to it (mode {mode:04o}); run `chmod o-w {directory}`"
    if found.st_uid not in {0, os.geteuid()}:
        return f"it belongs to another user (uid {found.st_uid}); chown it to this user (uid {os.geteuid()})"
    if mode & stat.S_IWGRP:
        return f"the group with gid {found.st_gid} can write to it (mode {mode:04o}); run `chmod g-w {directory}`"
    return None


def replace_durably(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file atomically and sync it to disk. If writing fails, raises OSError and keeps the old file."""
    beside = path.with_name(path.name + ".new")
    try:
        # Do not overwrite a file left behind by a killed process, because it may be a link.
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE), "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    beside.rename(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fresh_name(directory: Path, name: str) -> Path:
    """Return a path that does not exist yet. A number is appended to the name if necessary."""
    path, number = directory / name, 1
    while path.exists():
        number += 1
        path = directory / f"{name}-{number}"
    return path


class FileLock:
    """Locks a directory against other processes until the lock is closed.

    ``path`` is the lock file in the directory. To share a lock with another process, pass the descriptor inherited from
    that process as ``inherited``. Raises OSError, or LockedError if another process holds the lock.
    """

    def __init__(self, path: Path, *, inherited: int | None = None) -> None:
        if inherited is None:
            inherited = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        self._descriptor = inherited
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise LockedError(f"{path.parent} is in use by another process") from None
            raise

    def fileno(self) -> int:
        """Return the descriptor. Processes that inherit it share the lock, which is held until the last closes it."""
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)
