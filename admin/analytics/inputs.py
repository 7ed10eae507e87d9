"""The files of the log: from folders, files, patterns and addresses of the command line.

A file that cannot be read is skipped with the reason. As for Spark, names that begin with a dot or an underscore are
ignored. Of a period, files are left out that were last written more than an hour before it, or that have a date in the
path below the given folder (``2026-11-21``) more than a day away. Spark lists addresses.
"""

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from admin.analytics.words import counted
from admin.common.errors import StartError
from admin.rejection_log.files import file_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDINGS: Final = (".jsonl", ".jsonl.gz")
"""Endings of log files in folders. Files that are named themselves may have any."""
_HIDDEN: Final = (".", "_")
_TIMES_PACKED: Final = 10
_CLOCKS_S: Final = 3600
"""Allowed difference between the clocks of records and files."""
_DATE: Final = re.compile(r"(?<!\d)20\d\d-\d\d-\d\d(?!\d)")


class SetAside(NamedTuple):
    """A file that was not read, and why."""

    file: str
    reason: str


class File(NamedTuple):
    """A file of the log: its path or address, size, and when it was last written (seconds since 1970)."""

    path: str
    size_bytes: int
    written_s: float


@dataclass(frozen=True)
class Found:
    """The files to read, by path.

    Attributes:
        logs: as given on the command line.
        outside: how many files are outside of the period.
    """

    logs: tuple[str, ...]
    files: tuple[File, ...]
    skipped: tuple[SetAside, ...] = ()
    outside: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def unpacked_bytes(self) -> int:
        """Estimated size of all files, unpacked."""
        return sum(file.size_bytes * (_TIMES_PACKED if file.path.endswith(".gz") else 1) for file in self.files)

    def spark_paths(self, *, packed: bool) -> list[str]:
        """Return the packed or the other files that still exist, escaped for Spark.

        Raises:
            StartError: none of the files exists any more.
        """
        left = [file.path for file in self.files if _exists(file)]
        if not left:
            raise StartError([f"{file.path}: has vanished" for file in self.files[:5]])
        return [
            ("" if "://" in path else "file://") + re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
            for path in left
            if path.endswith(".gz") is packed
        ]

    def vanished(self) -> list[SetAside]:
        """Return the files that do not exist any more: they may have been read in part."""
        return [SetAside(file.path, "vanished while it was read") for file in self.files if not _exists(file)]


def _exists(file: File) -> bool:
    return "://" in file.path or Path(file.path).exists()


def find(logs: Sequence[str], since_s: int | None = None, until_s: int | None = None) -> Found:
    """Find the files of the log on this machine, for a period in seconds since 1970. Addresses are not looked at.

    Raises:
        StartError: there is nothing to read.
    """
    files: dict[str, File] = {}
    skipped: dict[str, str] = {}
    outside = 0
    for log in logs:
        for path in _named(log, skipped) if "://" not in log else ():
            root = str(path if path.is_dir() else path.parent)
            for each in _below(path, skipped) if path.is_dir() else (path,):
                file = _look(each, skipped)
                if file is not None and _is_outside(file, root, since_s, until_s):
                    outside += 1
                elif file is not None:
                    files[file.path] = file
    return _found(logs, files, skipped, outside, more=any("://" in log for log in logs))


def find_at(session: "SparkSession", found: Found, since_s: int | None = None, until_s: int | None = None) -> Found:
    """Add the files at addresses to those on this machine, see ``find``.

    Raises:
        StartError: there is nothing to read.
    """
    # A bucket without a slash would be a folder of its user.
    rests = [log.partition("://") for log in found.logs if "://" in log]
    addresses = dict.fromkeys(
        f"{scheme}://{rest.rstrip('/')}{'' if '/' in rest.rstrip('/') else '/'}" for scheme, _, rest in rests
    )
    files, outside = {file.path: file for file in found.files}, set[str]()
    reader = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    reader = reader.option("pathGlobFilter", "*.{jsonl,jsonl.gz}")
    for address in addresses:
        rows = reader.load(address).selectExpr("path", "length", "unix_millis(modificationTime) AS written_ms")
        for row in rows.collect():
            file = File(re.sub("^file:/+", "/", row["path"]), row["length"], row["written_ms"] / 1000)
            if _is_outside(file, address, since_s, until_s):
                outside.add(file.path)
            else:
                files[file.path] = file
    skipped = {each.file: each.reason for each in found.skipped}
    return _found(found.logs, files, skipped, found.outside + len(outside - files.keys()), more=False)


def _found(logs: Sequence[str], files: dict[str, File], skipped: dict[str, str], outside: int, *, more: bool) -> Found:
    aside = sorted(skipped.items())
    if files or more:
        return Found(
            tuple(logs), tuple(files[path] for path in sorted(files)), tuple(SetAside(*each) for each in aside), outside
        )
    if outside:
        raise StartError(f"nothing to report: {counted(outside, 'file')} of the log, by date none in the period")
    lines = [f"{path}: {reason}" for path, reason in aside[:5]]
    lines += [f"and {len(aside) - 5} more"] if len(aside) > 5 else []
    lines = lines or [f"{log}: no file of a rejection log in it ({', '.join(ENDINGS)})" for log in logs]
    raise StartError([*lines, "nothing to report: name the folder of Sluice's rejection log"])


def _is_outside(file: File, root: str, since_s: int | None, until_s: int | None) -> bool:
    """Tell whether a file cannot have records of the period."""
    if since_s is not None and file.written_s < since_s - _CLOCKS_S:
        return True
    below = file.path.removeprefix(root)
    folder, _, name = below.rpartition("/")
    # Sluice's own names have a random part.
    dates = _DATE.findall(folder if file_name(name.removesuffix(".gz")) else below)
    try:
        day = date.fromisoformat(dates[-1])
    except (IndexError, ValueError):
        return False
    near = timedelta(days=1)
    if since_s is not None and day + near < datetime.fromtimestamp(since_s, UTC).date():
        return True
    return until_s is not None and day - near > datetime.fromtimestamp(until_s - 1, UTC).date()


def _named(log: str, skipped: dict[str, str]) -> list[Path]:
    path = Path(log).absolute()
    if os.path.lexists(path):
        return [path]
    found = [Path(each) for each in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute patterns
    if not found:
        skipped[log] = "no match" if glob.has_magic(log) else "no such file or folder"
    return found


def _below(folder: Path, skipped: dict[str, str]) -> Iterator[Path]:
    """Yield the log files below a folder. Links are followed, each folder is read once."""

    def failed(error: OSError) -> None:
        skipped[str(error.filename)] = _why(error)

    seen: set[tuple[int, int]] = set()
    for directory, folders, files in os.walk(folder, onerror=failed, followlinks=True):
        status = Path(directory).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        yield from (
            Path(directory, name) for name in sorted(files) if name.endswith(ENDINGS) and not name.startswith(_HIDDEN)
        )


def _look(file: Path, skipped: dict[str, str]) -> File | None:
    path = str(file)
    if file.name.startswith(_HIDDEN):
        skipped[path] = "is hidden, or still being written"
        return None
    try:
        status = file.stat()
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(status.st_mode):
            skipped[path] = "is not a regular file"
            return None
        with file.open("rb") as stream:
            stream.read(1)
    except FileNotFoundError:
        skipped[path] = "is a broken link" if file.is_symlink() else "has vanished"
        return None
    except OSError as error:
        skipped[path] = _why(error)
        return None
    return File(path, status.st_size, status.st_mtime)


def _why(error: OSError) -> str:
    return f"cannot be read: {(error.strerror or str(error)).lower()}"
