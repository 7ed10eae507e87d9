"""What is to be read: from the folders, files, patterns and addresses of the command line to the files of the log.

A file that cannot be read is set aside with the reason, and the rest is read. Files that begin with a dot are being
written, and those that begin with an underscore are other programs' notes: neither is there, as for Spark.

Of a period that is asked for, files are left out unread that cannot have a record of it: by a date in their path below
what was named, more than a day away; and by when they were last written, more than an hour before it begins.

Nothing here reads records. Addresses are looked at by Spark, files of this machine without it.
"""

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from admin.analytics.findings import SetAside
from admin.analytics.words import counted
from admin.common.errors import StartError
from admin.rejection_log.files import file_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDINGS: Final = (".jsonl", ".jsonl.gz")
"""Names of log files in folders end like this; files that are named themselves may be called anything."""
_HIDDEN: Final = (".", "_")
_FILES: Final = "*.{jsonl,jsonl.gz}"
_TIMES_PACKED: Final = 10
_CLOCKS_S: Final = 3600
"""So far apart may be the clocks of who wrote records and of who wrote files."""
_DATE: Final = re.compile(
    r"(?<!\d)(20\d\d)(?:[-_/]?|/month=)(0[1-9]|1[0-2])(?:[-_/]?|/day=)(0[1-9]|[12]\d|3[01])(?!\d)"
)
"""``2026-11-21``, ``20261121``, ``2026/11/21``, ``year=2026/month=11/day=21``."""


@dataclass(frozen=True)
class File:
    """A file of the log.

    Attributes:
        path: on this machine, or an address.
        size_bytes: of it.
        written_s: when it was last written, in seconds since 1970.
    """

    path: str
    size_bytes: int
    written_s: float


@dataclass(frozen=True)
class Found:
    """What there is to be read.

    Attributes:
        logs: as they were given.
        files: to be read, by path.
        skipped: what cannot be read.
        outside: files that were left out, since they have nothing of the period.
    """

    logs: tuple[str, ...]
    files: tuple[File, ...]
    skipped: tuple[SetAside, ...] = ()
    outside: int = 0

    @property
    def size_bytes(self) -> int:
        """Of all files that are to be read."""
        return sum(file.size_bytes for file in self.files)

    @property
    def unpacked_bytes(self) -> int:
        """About as much, with what is compressed as long as it was."""
        return sum(file.size_bytes * (_TIMES_PACKED if file.path.endswith(".gz") else 1) for file in self.files)

    def spark_paths(self, *, packed: bool) -> list[str]:
        """Return the files that are still there, as Spark takes them: no character of a name means anything else.

        Args:
            packed: those that are compressed, or the others.

        Raises:
            StartError: there were some, and none is left.
        """
        left = [file.path for file in self.files if "://" in file.path or Path(file.path).exists()]
        if not left:
            raise StartError([f"{file.path}: has vanished" for file in self.files[:5]])
        return [_spark_path(path) for path in left if path.endswith(".gz") is packed]

    def vanished(self) -> list[SetAside]:
        """Return the files that are not there any more; of those some or all may not have been read."""
        return [
            SetAside(file=file.path, reason="vanished while it was read")
            for file in self.files
            if "://" not in file.path and not Path(file.path).exists()
        ]


def _spark_path(path: str) -> str:
    return ("" if "://" in path else "file://") + re.sub(r"([\\{}\[\]*?])", r"\\\1", path)


def find(logs: Sequence[str], since_s: int | None = None, until_s: int | None = None) -> Found:
    """Look for the files of the log on this machine.

    Args:
        logs: folders, files, patterns or addresses; of the latter nothing is looked at here.
        since_s: files that have nothing from then on are left out.
        until_s: likewise, before then.

    Raises:
        StartError: there is nothing that could be read.
    """
    paths: dict[str, File] = {}
    skipped: dict[str, str] = {}
    outside = 0
    for log in logs:
        if "://" in log:
            continue
        for path in _named(log, skipped):
            root = str(path if path.is_dir() else path.parent)
            for file in _below(path, skipped) if path.is_dir() else (path,):
                found = _look(file, skipped)
                if found is None:
                    continue
                if _is_outside(found, root, since_s, until_s):
                    outside += 1
                else:
                    paths[found.path] = found
    if not paths and not any("://" in log for log in logs):
        raise StartError(_nothing(logs, skipped, outside))
    return Found(
        tuple(logs),
        tuple(paths[path] for path in sorted(paths)),
        tuple(SetAside(file=path, reason=reason) for path, reason in sorted(skipped.items())),
        outside,
    )


def find_at(session: "SparkSession", found: Found, since_s: int | None = None, until_s: int | None = None) -> Found:
    """Add the files at addresses to what was found on this machine.

    Args:
        session: of Spark, which knows how to look there.
        found: by ``find``.
        since_s: see there.
        until_s: see there.

    Raises:
        StartError: there is nothing that could be read.
    """
    addresses = tuple(dict.fromkeys(map(_address, (log for log in found.logs if "://" in log))))
    if not addresses:
        return found
    files, left_out = {file.path: file for file in found.files}, set[str]()
    reader = session.read.format("binaryFile").option("recursiveFileLookup", "true").option("pathGlobFilter", _FILES)
    for address in addresses:
        rows = (
            reader.load(address).selectExpr("path", "length", "unix_millis(modificationTime) AS written_ms").collect()
        )
        for row in rows:
            # Of this machine, too, as people know it.
            path = re.sub("^file:/+", "/", row["path"])
            file = File(path, row["length"], row["written_ms"] / 1000)
            if _is_outside(file, address, since_s, until_s):
                left_out.add(path)
            else:
                files[path] = file
    outside = found.outside + len(left_out - files.keys())
    if not files:
        raise StartError(_nothing(found.logs, {each.file: each.reason for each in found.skipped}, outside))
    return Found(found.logs, tuple(files[path] for path in sorted(files)), found.skipped, outside)


def _address(log: str) -> str:
    """Return an address without slashes at its end, but for that of a whole bucket: without it, it is no folder."""
    scheme, _, rest = log.partition("://")
    rest = rest.rstrip("/")
    return f"{scheme}://{rest}" if "/" in rest else f"{scheme}://{rest}/"


def _is_outside(file: File, root: str, since_s: int | None, until_s: int | None) -> bool:
    """Say whether a file cannot have a record of the period."""
    if since_s is not None and file.written_s < since_s - _CLOCKS_S:
        return True
    below = file.path.removeprefix(root)
    folder, _, name = below.rpartition("/")
    # Sluice's own names have a random part, which may look like anything.
    dates = _DATE.findall(folder if file_name(name.removesuffix(".gz")) else below)
    if not dates:
        return False
    try:
        day = date(*map(int, dates[-1]))
    except ValueError:
        return False
    near = timedelta(days=1)
    if since_s is not None and day + near < datetime.fromtimestamp(since_s, UTC).date():
        return True
    return until_s is not None and day - near > datetime.fromtimestamp(until_s - 1, UTC).date()


def _nothing(logs: Sequence[str], skipped: dict[str, str], outside: int) -> list[str]:
    """Say that there is nothing, and why."""
    if outside:
        return [f"nothing to report: {counted(outside, 'file')} of the log, and by date none of the time asked for"]
    lines = [f"{path}: {reason}" for path, reason in sorted(skipped.items())]
    if len(lines) > 5:
        lines[5:] = [f"and {len(lines) - 5} more"]
    if not lines:
        lines = [f"{log}: no file of a rejection log in it ({', '.join(ENDINGS)})" for log in logs]
    return [*lines, "nothing to report: name the folder that Sluice writes its rejection log to"]


def _named(log: str, skipped: dict[str, str]) -> list[Path]:
    """Return what a word of the command line names."""
    path = Path(log).absolute()
    if os.path.lexists(path):
        return [path]
    found = [Path(each) for each in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute patterns
    if not found:
        skipped[log] = "nothing is named like that" if glob.has_magic(log) else "no such file or folder"
    return found


def _below(folder: Path, skipped: dict[str, str]) -> Iterator[Path]:
    """Yield the files of the log in a folder and all folders in it, each folder once, however it is linked."""

    def failed(error: OSError) -> None:
        skipped[str(error.filename)] = _why(error)

    seen: set[tuple[int, int]] = set()
    for directory, folders, files in os.walk(folder, onerror=failed, followlinks=True):
        try:
            status = Path(directory).stat()
        except OSError as error:
            skipped[directory] = _why(error)
            folders.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        yield from (
            Path(directory, name) for name in sorted(files) if name.endswith(ENDINGS) and not name.startswith(_HIDDEN)
        )


def _look(file: Path, skipped: dict[str, str]) -> File | None:
    """Return a file that can be read; of others, note why not."""
    path = str(file)
    if file.name.startswith(_HIDDEN):
        skipped[path] = "is hidden, or still being written"
        return None
    try:
        # Before it is opened: of a pipe that would wait for a writer.
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            skipped[path] = "is no regular file"
            return None
        with file.open("rb") as stream:
            stream.read(1)
    except FileNotFoundError:
        skipped[path] = "is a link to nothing" if file.is_symlink() else "has vanished"
        return None
    except OSError as error:
        skipped[path] = _why(error)
        return None
    return File(path, status.st_size, status.st_mtime)


def _why(error: OSError) -> str:
    return f"cannot be read: {(error.strerror or str(error)).lower()}"
