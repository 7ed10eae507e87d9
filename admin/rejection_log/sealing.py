"""Finishes what a killed process left: its log file gets the traffic of its last minute and the name it lacks.

Nothing is counted twice, wherever the process died, even in here: records that the scratch file is about have
greater numbers than it begins with, so those that are in a file already are seen and left out; and the scratch file
goes before the log file gets its name. Everything here blocks, and pauses now and then, as a thread that computes
holds up the event loop.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from admin.live.files import open_to_read, sync_directory
from admin.live.store import words_for
from admin.rejection_log import scratch
from admin.rejection_log.composing import Composer
from admin.rejection_log.folder import FILE_MODE, FileName, Folder, finished_name, open_name, scratch_name

_log = structlog.get_logger(__name__)

_AT_ONCE: Final = 64
_PAUSE_S: Final = 0.0005

_COULD_NOT: Final = "rejection log that was left unfinished could not be finished; the next start tries again"

_Each = TypeVar("_Each")


class _Record(msgspec.Struct, frozen=True, gc=False):
    """As much of a record as tells whether it has been written."""

    type: str
    n: int
    at_s: int
    kind: str = ""
    name: str = ""


_decoder: Final = msgspec.json.Decoder(_Record)


class Sealed(msgspec.Struct):
    """What was found and done.

    Attributes:
        files: that were finished.
        records: made of what scratch files held.
        torn_lines: last lines that were cut off.
        failed: runs whose files are left for the next time.
    """

    files: int = 0
    records: int = 0
    torn_lines: int = 0
    failed: int = 0


def seal(folder: Folder, own_run: str = "") -> Sealed:
    """Finish the files of all runs; the folder is locked, and none of them is being written.

    Args:
        folder: where they are.
        own_run: its minute goes on, and its scratch file is left alone.

    Raises:
        OSError: the folder cannot be read.
    """
    sealed = Sealed()
    opened: dict[str, list[FileName]] = {}
    scratches: dict[str, FileName] = {}
    for name in folder.names():
        if (file := open_name(name)) is not None:
            opened.setdefault(file.scratch, []).append(file)
        elif (file := scratch_name(name)) is not None and file.run != own_run:
            scratches[name] = file
    for name in sorted({*opened, *scratches}):
        files = left = sorted(opened.get(name, ()), key=lambda file: file.number)
        try:
            if name in scratches:
                files = _add_minute(folder, scratches[name], files, sealed)
            for file in files:
                _finish(folder, file, sealed)
        except Exception as error:  # noqa: BLE001 - whatever is in those files, what comes now is written
            sealed.failed += 1
            names = [file.open for file in left] + [name] * (name in scratches)
            reason = words_for(error) if isinstance(error, OSError) else repr(error)
            _log.warning(_COULD_NOT, dir=str(folder.path), files=names, reason=reason)
    return sealed


def _add_minute(folder: Folder, run: FileName, files: list[FileName], sealed: Sealed) -> list[FileName]:
    """Write what the scratch file of a run holds and the log lacks, remove it, and return the files to be finished."""
    path = folder.path / run.scratch
    left = None
    with os.fdopen(open_to_read(path), "rb") as lines:
        for found in _paused(scratch.read(lines)):
            left = found or left
    if left is not None:
        into, missing = _missing(folder, run, files, left, sealed)
        if missing:
            if into not in files:
                files = [*files, into]
            _append(folder.path / into.open, missing)
            sealed.records += len(missing)
    path.unlink()
    return files


def _missing(
    folder: Folder, run: FileName, files: list[FileName], left: scratch.Left, sealed: Sealed
) -> tuple[FileName, list[bytes]]:
    """Return the lines that the log lacks, and the file that they belong to."""
    last_n = left.last.n
    written: set[tuple[str, str]] = set()
    ended = False
    finished = [found for name in folder.names() if (found := finished_name(name)) and _same_run(found, run)]
    # Only a scratch file that could not be begun anew is about something in a finished file.
    recent = [file for file in finished if file.number >= left.last.file]
    for file, name in [*((file, file.finished) for file in recent), *((file, file.open) for file in files)]:
        if name == file.open:
            _cut(folder.path / name, sealed)
        try:
            descriptor = open_to_read(folder.path / name)
        except FileNotFoundError:
            continue
        with os.fdopen(descriptor, "rb") as lines:
            for record in _paused(_records(lines)):
                last_n = max(last_n, record.n)
                if record.n <= left.header.n or record.at_s != left.minute.at_s:
                    continue
                if record.type == "traffic":
                    written.add((record.kind, record.name))
                # It comes last.
                ended |= record.type == "heartbeat"
    composer = Composer(left.header.instance, left.header.run, last_n)
    missing: list[bytes] = []
    if not ended:
        for resource, traffic in _paused(iter(left.minute)):
            if (resource.kind, resource.name) not in written:
                missing.append(composer.traffic(left.minute.at_s, resource, traffic, left.limit(resource)))
        missing.append(
            composer.heartbeat(
                left.minute,
                version=left.header.sluice,
                limiting=left.last.limiting,
                lost_records=left.last.lost_records,
            )
        )
    if files:
        return files[-1], missing
    # A number that the run cannot have used: a file of an equal name may have been taken elsewhere.
    number = max([left.last.file, *(file.number for file in finished)]) + 1
    return run._replace(number=number), missing


def _same_run(one: FileName, other: FileName) -> bool:
    return (one.slug, one.run) == (other.slug, other.run)


def _records(lines: Iterator[bytes]) -> Iterator[_Record]:
    for line in lines:
        try:
            yield _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue


def _paused(each_of: Iterator[_Each]) -> Iterator[_Each]:
    """Go through something with pauses."""
    for number, each in enumerate(each_of, 1):
        yield each
        if number % _AT_ONCE == 0:
            time.sleep(_PAUSE_S)


def _cut(path: Path, sealed: Sealed) -> None:
    """Cut off a last line that is not whole."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        whole = _whole_bytes(descriptor, size)
        if whole < size:
            os.ftruncate(descriptor, whole)
            sealed.torn_lines += 1
    finally:
        os.close(descriptor)


def _whole_bytes(descriptor: int, size: int) -> int:
    piece = 64 * 1024
    end = size
    while end > 0:
        begin = max(0, end - piece)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _append(path: Path, lines: list[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        rest = memoryview(b"".join(lines))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finish(folder: Folder, file: FileName, sealed: Sealed) -> None:
    """Give a file its name; one with nothing in it goes."""
    path = folder.path / file.open
    _cut(path, sealed)
    if not path.stat().st_size:
        path.unlink()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.rename(folder.path / file.finished)
    sync_directory(folder.path)
    sealed.files += 1
