"""The audit trail on the disk: one JSON line for each change, appended, rotated by size, and read backwards.

Active edits are in the journal; this is for people and their tools. Everything here blocks, and belongs on a thread
once traffic flows.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from admin.common.disk import Appender, lines_backwards, open_to_read, sync_directory
from admin.edits.model import Change

NAME: Final = "audit.jsonl"
MAX_BYTES: Final = 16 * 1024 * 1024
"""Size of one file."""
MAX_FILES: Final = 8

#: Changes are appended nearly in the order of their ids: the highest is among so many lines.
_LAST_LINES: Final = 1_000

_decoder: Final = msgspec.json.Decoder(Change)


class AuditTrail:
    """The audit trail of one state directory.

    Args:
        directory: the state directory.
        max_bytes: size of one file at which the next is begun.
        max_files: most files; the oldest is removed.

    Attributes:
        path: the file that is appended to.
        last_id: the highest id of a change when it was opened.

    Raises:
        OSError: it cannot be read or written.
    """

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
        self.path = directory / NAME
        self._max_bytes, self._max_files = max_bytes, max_files
        self._file = Appender(self.path)
        self.last_id = 0
        try:
            for number, change in enumerate(self.backwards()):
                self.last_id = max(self.last_id, change.id)
                if number >= _LAST_LINES:
                    break
        except OSError:
            self._file.close()
            raise

    def append(self, changes: Iterable[Change]) -> None:
        """Write changes at the end; they are not durable yet.

        Raises:
            OSError: none of them is in the file.
        """
        lines = b"".join(msgspec.json.encode(change) + b"\n" for change in changes)
        if self._file.size and self._file.size + len(lines) > self._max_bytes:
            self._rotate()
        self._file.append(lines, durable=False)

    def sync(self) -> None:
        """Make everything durable.

        Raises:
            OSError: it may not be.
        """
        self._file.sync()

    def lacking(self, changes: Iterable[Change]) -> list[Change]:
        """Return which of the changes are not in it and can go in at its end, in order.

        What is older than the last change of a file that goes on stays out: somebody moved the older files away.
        """
        by_id = {change.id: change for change in sorted(changes, key=lambda change: change.id)}
        if not by_id:
            return []
        first = min(by_id)
        for number, change in enumerate(self.backwards()):
            by_id.pop(change.id, None)
            if change.id < first and number >= _LAST_LINES:
                break
        return [change for change in by_id.values() if change.id > self.last_id]

    def backwards(self) -> Iterator[Change]:
        """Yield the changes, the latest first; lines that cannot be read are left out.

        Raises:
            OSError: it cannot be read.
        """
        # All are opened first: what is appended or rotated meanwhile does not matter.
        opened: list[tuple[int, int]] = []
        try:
            for path in self.files():
                try:
                    descriptor = open_to_read(path)
                except FileNotFoundError:
                    continue
                opened.append((descriptor, os.fstat(descriptor).st_size))
            for descriptor, size in opened:
                for line in lines_backwards(descriptor, size):
                    try:
                        yield _decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                        continue
        finally:
            for descriptor, _ in opened:
                os.close(descriptor)

    def files(self) -> list[Path]:
        """Return where its files would be, the latest first."""
        return [self.path, *(self._rotated(number) for number in range(1, self._max_files))]

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{NAME}.{number}")

    def _rotate(self) -> None:
        self._file.sync()
        for number in range(self._max_files - 1, 1, -1):
            if (older := self._rotated(number - 1)).exists():
                older.replace(self._rotated(number))
        if self._max_files > 1:
            self.path.replace(self._rotated(1))
        else:
            self.path.unlink()
        self._file.close()
        self._file = Appender(self.path)
        sync_directory(self.path.parent)


def select(
    changes: Iterable[Change], *, before: int | None = None, target: str = "", by: str = "", limit: int = 100
) -> list[Change]:
    """Return the first of some changes; the arguments are those of ``EditService.audit``."""
    found: list[Change] = []
    for change in changes:
        if len(found) >= limit:
            break
        if before is not None and change.id >= before:
            continue
        if change.target.startswith(target) and (not by or change.by == by):
            found.append(change)
    return found
