"""The folder of a rejection log: its lock, the names of its files, and files that grow by whole lines.

Everything here blocks, and belongs on a thread once traffic flows.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from admin.live.files import LockedError

FILE_MODE: Final = 0o640
"""Whoever ships the files may read them as one of the group."""
_FOLDER_MODE: Final = 0o750
_RUN_BYTES: Final = 6

_LOCK: Final = ".lock"
_BEGIN: Final = "rejections-"
_END: Final = ".jsonl"
_OPEN: Final = ".open"
_SCRATCH: Final = ".scratch"
_NAME: Final = re.compile(r"rejections-(?P<slug>.+)-(?P<run>[0-9a-f]{12})-(?P<number>\d{6,})\.jsonl(?:\.gz)?", re.ASCII)
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._]+")
_SLUG_CHARACTERS: Final = 100


class FileName(NamedTuple):
    """What the name of a log file says.

    Attributes:
        slug: of the instance.
        run: of the process that wrote it.
        number: counts up within the run.
    """

    slug: str
    run: str
    number: int

    @property
    def finished(self) -> str:
        """The name under which readers find it."""
        return f"{_BEGIN}{self.slug}-{self.run}-{self.number:06}{_END}"

    @property
    def open(self) -> str:
        """The name that it has while it is written: hidden from globs, Spark and DuckDB."""
        return f".{self.finished}{_OPEN}"

    @property
    def scratch(self) -> str:
        """The name of the run's scratch file."""
        return f".{_BEGIN}{self.slug}-{self.run}{_SCRATCH}"


def new_run() -> str:
    """Return what no other run is called, as names of files have it."""
    return secrets.token_hex(_RUN_BYTES)


def slug_of(instance: str) -> str:
    """Return an instance's name as names of files have it."""
    return _UNFIT.sub("-", instance)[:_SLUG_CHARACTERS].strip("-.") or "sluice"


def finished_name(name: str) -> FileName | None:
    """Read the name of a finished file, compressed by somebody or not; None if it is none."""
    found = _NAME.fullmatch(name)
    return None if found is None else FileName(found["slug"], found["run"], int(found["number"]))


def open_name(name: str) -> FileName | None:
    """Read the name of a file that is being written; None if it is none."""
    inner = name.removeprefix(".").removesuffix(_OPEN)
    found = finished_name(inner)
    return found if found is not None and name == found.open else None


def scratch_name(name: str) -> FileName | None:
    """Read the name of a scratch file, as a log file's with the number 0; None if it is none."""
    if not name.startswith(".") or not name.endswith(_SCRATCH):
        return None
    found = finished_name(f"{name[1:].removesuffix(_SCRATCH)}-000000{_END}")
    return found if found is not None and name == found.scratch else None


class LineFile:
    """A file of this run that grows by whole lines.

    Args:
        path: where; nothing is there.

    Attributes:
        path: as given.
        size: bytes of it that are right.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, FILE_MODE)
        self._identity = _identity(os.fstat(self._descriptor))
        self._doubtful = False

    def append(self, lines: bytes | bytearray) -> None:
        """Write whole lines at the end.

        Raises:
            OSError: none of it is in the file, or will be cut off before anything else is written.
        """
        self._check()
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._doubtful = True
            with suppress(OSError):
                self._cut()
            raise
        finally:
            rest.release()
        self.size += len(lines)

    def begin_anew(self) -> None:
        """Forget what is in it.

        Raises:
            OSError: it is still there.
        """
        self._check()
        if self.size:
            os.ftruncate(self._descriptor, 0)
            self.size = 0

    def sync(self) -> None:
        """Make it durable.

        Raises:
            OSError: it may not be.
        """
        self._check()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close it."""
        # Whatever was to be said of it has been said by then.
        with suppress(OSError):
            os.close(self._descriptor)

    def _check(self) -> None:
        """Make sure that it still has its name and ends with a whole line.

        Raises:
            OSError: it is not there any more, or cannot be cut.
        """
        if _identity(self.path.stat()) != self._identity:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.path))
        if self._doubtful:
            self._cut()

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.size)
        self._doubtful = False


class Folder:
    """The folder, kept from other processes.

    Args:
        path: where it is or will be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        #: As they were when it was taken, of the folder and of those that it is in.
        self._modes: dict[Path, int] = {}

    def take(self) -> None:
        """Make the folder if it is not there, and lock it.

        Raises:
            LockedError: another process has it.
            OSError: it cannot be had.
        """
        self.release()
        self._make()
        self._modes = {each: stat.S_IMODE(each.stat().st_mode) for each in self._way()}
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockedError(f"{self.path} is in use by another process") from None
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor

    def _make(self) -> None:
        """Make what is missing of the path; what was there once becomes no less private than it was."""
        for each in [each for each in self._way() if not each.exists()]:
            with suppress(FileExistsError):
                each.mkdir(self._modes.get(each, _FOLDER_MODE))
        if not self.path.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path))

    def _way(self) -> list[Path]:
        """Return the folder and those that it is in, itself last."""
        return [*reversed(self.path.parents), self.path]

    @property
    def held(self) -> bool:
        """Whether it is still the one that was locked."""
        if self._lock is None:
            return False
        try:
            return _identity((self.path / _LOCK).stat()) == _identity(os.fstat(self._lock))
        except OSError:
            return False

    def release(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def names(self) -> list[str]:
        """Return what is in it.

        Raises:
            OSError: it cannot be read.
        """
        return sorted(entry.name for entry in self.path.iterdir())


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
