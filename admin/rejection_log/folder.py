"""The folder of a rejection log: its lock, and the names of its files.

Everything here blocks, and belongs on a thread once traffic flows.
"""

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from admin.common.disk import FileLock

FILE_MODE: Final = 0o640
"""Whoever ships the files may read them as one of the group."""
_FOLDER_MODE: Final = 0o750
_RUN_BYTES: Final = 6

_LOCK: Final = ".lock"
_BEGIN: Final = "rejections-"
_END: Final = ".jsonl"
_OPEN: Final = ".open"
_WRITE_AHEAD: Final = ".scratch"
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
    def write_ahead(self) -> str:
        """The name of the run's write-ahead file."""
        return f".{_BEGIN}{self.slug}-{self.run}{_WRITE_AHEAD}"


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


def write_ahead_name(name: str) -> FileName | None:
    """Read the name of a write-ahead file, as a log file's with the number 0; None if it is none."""
    if not name.startswith(".") or not name.endswith(_WRITE_AHEAD):
        return None
    found = finished_name(f"{name[1:].removesuffix(_WRITE_AHEAD)}-000000{_END}")
    return found if found is not None and name == found.write_ahead else None


class Folder:
    """The folder, kept from other processes.

    Args:
        path: where it is or will be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None
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
        self._lock = FileLock(self.path / _LOCK, FILE_MODE)

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
        return self._lock is not None and self._lock.holds

    def release(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def names(self) -> list[str]:
        """Return what is in it.

        Raises:
            OSError: it cannot be read.
        """
        return sorted(entry.name for entry in self.path.iterdir())
