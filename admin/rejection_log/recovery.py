"""Finishes what a killed process left: its log file gets the traffic of its last minute and the name it lacks.

Nothing is counted twice, wherever the process died, even in here: records that the write-ahead file is about have
greater numbers than it begins with, so those that are in a file already are seen and left out; and the write-ahead file
goes before the log file gets its name. Everything here blocks, and pauses now and then, as a thread that computes
holds up the event loop.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import structlog

from admin.common.disk import Appender, open_to_read, paused, sync_directory, words_for
from admin.rejection_log import write_ahead
from admin.rejection_log.composing import Composer
from admin.rejection_log.folder import FILE_MODE, FileName, Folder, finished_name, open_name, write_ahead_name

_log = structlog.get_logger(__name__)

_COULD_NOT: Final = "rejection log that was left unfinished could not be finished; the next start tries again"


class _Record(msgspec.Struct, frozen=True, gc=False):
    """As much of a record as tells whether it has been written."""

    type: str
    n: int
    at_s: int
    kind: str = ""
    name: str = ""


_decoder: Final = msgspec.json.Decoder(_Record)


class Recovered(msgspec.Struct):
    """What was found and done.

    Attributes:
        files: that were finished.
        records: made of what write-ahead files held.
        torn_lines: last lines that were cut off.
        failed: runs whose files are left for the next time.
    """

    files: int = 0
    records: int = 0
    torn_lines: int = 0
    failed: int = 0


def recover(folder: Folder, own_run: str = "") -> Recovered:
    """Finish the files of all runs; the folder is locked, and none of them is being written.

    Args:
        folder: where they are.
        own_run: its minute goes on, and its write-ahead file is left alone.

    Raises:
        OSError: the folder cannot be read.
    """
    recovered = Recovered()
    opened: dict[str, list[FileName]] = {}
    ahead: dict[str, FileName] = {}
    for name in folder.names():
        if (file := open_name(name)) is not None:
            opened.setdefault(file.write_ahead, []).append(file)
        elif (file := write_ahead_name(name)) is not None and file.run != own_run:
            ahead[name] = file
    for name in sorted({*opened, *ahead}):
        files = left = sorted(opened.get(name, ()), key=lambda file: file.number)
        try:
            if name in ahead:
                files = _add_minute(folder, ahead[name], files, recovered)
            for file in files:
                _finish(folder, file, recovered)
        except Exception as error:  # noqa: BLE001 - whatever is in those files, what comes now is written
            recovered.failed += 1
            names = [file.open for file in left] + [name] * (name in ahead)
            reason = words_for(error) if isinstance(error, OSError) else repr(error)
            _log.warning(_COULD_NOT, dir=str(folder.path), files=names, reason=reason)
    return recovered


def _add_minute(folder: Folder, run: FileName, files: list[FileName], recovered: Recovered) -> list[FileName]:
    """Write what a write-ahead file holds and the log lacks, remove it, and return the files to be finished."""
    path = folder.path / run.write_ahead
    left = None
    with os.fdopen(open_to_read(path), "rb") as lines:
        for found in paused(write_ahead.read(lines)):
            left = found or left
    if left is not None:
        into, missing = _missing(folder, run, files, left, recovered)
        if missing:
            if into not in files:
                files = [*files, into]
            with closing(_opened(folder.path / into.open, recovered)) as file:
                file.append(b"".join(missing), durable=True)
            recovered.records += len(missing)
    path.unlink()
    return files


def _missing(
    folder: Folder, run: FileName, files: list[FileName], left: write_ahead.Left, recovered: Recovered
) -> tuple[FileName, list[bytes]]:
    """Return the lines that the log lacks, and the file that they belong to."""
    last_n = left.last.n
    written: set[tuple[str, str]] = set()
    ended = False
    finished = [found for name in folder.names() if (found := finished_name(name)) and _same_run(found, run)]
    # Only a write-ahead file that could not be begun anew is about something in a finished file.
    recent = [file for file in finished if file.number >= left.last.file]
    for file, name in [*((file, file.finished) for file in recent), *((file, file.open) for file in files)]:
        if name == file.open:
            _opened(folder.path / name, recovered).close()
        try:
            descriptor = open_to_read(folder.path / name)
        except FileNotFoundError:
            continue
        with os.fdopen(descriptor, "rb") as lines:
            for record in paused(_records(lines)):
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
        for resource, traffic in paused(left.minute):
            if (resource.kind, resource.name) not in written:
                missing.append(composer.traffic(left.minute.at_s, resource, traffic, left.limits.get(resource, {})))
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


def _opened(path: Path, recovered: Recovered) -> Appender:
    """Open a file at the end of its last whole line."""
    file = Appender(path, mode=FILE_MODE, flags=os.O_NOFOLLOW)
    recovered.torn_lines += file.torn
    return file


def _finish(folder: Folder, file: FileName, recovered: Recovered) -> None:
    """Give a file its name; one with nothing in it goes."""
    path = folder.path / file.open
    with closing(_opened(path, recovered)) as whole:
        if not whole.size:
            path.unlink()
            return
        whole.sync()
    path.rename(folder.path / file.finished)
    sync_directory(folder.path)
    recovered.files += 1
