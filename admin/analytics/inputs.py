"""What is to be read: from the folders, files, patterns and addresses of the command line to the files of the log.

A file that cannot be read is set aside with the reason, and the rest is read. Files that begin with a dot are being
written, and those that begin with an underscore are other programs' notes: neither is there, as for Spark. Nothing here
reads records, or needs Spark.
"""

import glob
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from admin.analytics.findings import SetAside
from admin.common.errors import StartError

ENDINGS: Final = (".jsonl", ".jsonl.gz")
"""Names of log files in folders end like this; files that are named themselves may be called anything."""
_HIDDEN: Final = (".", "_")
_CHUNK: Final = 1 << 20
_GZIP: Final = 31
"""zlib: expect a gzip header."""


@dataclass(frozen=True)
class Found:
    """What there is to be read.

    Attributes:
        logs: as they were given.
        paths: files of this machine.
        addresses: of elsewhere; Spark looks what is there.
        size_bytes: of the files.
        skipped: what cannot be read.
    """

    logs: tuple[str, ...]
    paths: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    size_bytes: int = 0
    skipped: tuple[SetAside, ...] = ()

    def spark_paths(self) -> list[str]:
        """Return the files that are still there, as Spark takes them: no character of a name means anything else.

        Raises:
            StartError: there were some, and none is left.
        """
        left = [path for path in self.paths if Path(path).exists()]
        if not left and self.paths:
            raise StartError([f"{path}: has vanished" for path in self.paths[:5]])
        return ["file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", path) for path in left]

    def vanished(self) -> list[SetAside]:
        """Return the files that are not there any more; of those some or all may not have been read."""
        return [
            SetAside(file=path, reason="vanished while it was read") for path in self.paths if not Path(path).exists()
        ]


def find(logs: Sequence[str]) -> Found:
    """Look for the files of the log.

    Args:
        logs: folders, files, patterns or addresses.

    Raises:
        StartError: there is nothing that could be read.
    """
    addresses = tuple(dict.fromkeys(log.rstrip("/") for log in logs if "://" in log))
    paths: dict[str, int] = {}
    skipped: dict[str, str] = {}
    for log in logs:
        if "://" in log:
            continue
        for path in _named(log, skipped):
            for file in _below(path, skipped) if path.is_dir() else (path,):
                _look(file, paths, skipped)
    if not paths and not addresses:
        raise StartError(_nothing(logs, skipped))
    return Found(
        tuple(logs),
        tuple(sorted(paths)),
        addresses,
        sum(paths.values()),
        tuple(SetAside(file=path, reason=reason) for path, reason in sorted(skipped.items())),
    )


def _nothing(logs: Sequence[str], skipped: dict[str, str]) -> list[str]:
    """Say that there is nothing, and why."""
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


def _look(file: Path, paths: dict[str, int], skipped: dict[str, str]) -> None:
    """Put a file where it belongs."""
    path = str(file)
    if file.name.startswith(_HIDDEN):
        skipped[path] = "is hidden, or still being written"
        return
    try:
        # Before it is opened: of a pipe that would wait for a writer.
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            skipped[path] = "is no regular file"
            return
        with file.open("rb") as stream:
            stream.read(1)
        if file.name.endswith(".gz") and (damage := _damage(file)):
            skipped[path] = damage
    except FileNotFoundError:
        skipped[path] = "is a link to nothing" if file.is_symlink() else "has vanished"
        return
    except OSError as error:
        skipped[path] = _why(error)
        return
    paths[path] = status.st_size


def _damage(file: Path) -> str:
    """Say what is wrong with a gzip file, all of which is read; Spark would leave out the rest and not say so."""
    with file.open("rb") as stream:
        reader = zlib.decompressobj(_GZIP)
        try:
            while data := stream.read(_CHUNK):
                while data:
                    reader.decompress(data)
                    data = reader.unused_data
                    if reader.eof and data:
                        reader = zlib.decompressobj(_GZIP)
        except zlib.error:
            return "is no gzip, or damaged; what is before the damage was read"
    if file.stat().st_size and not reader.eof:
        return "ends in the middle; what is there was read"
    return ""


def _why(error: OSError) -> str:
    return f"cannot be read: {(error.strerror or str(error)).lower()}"
