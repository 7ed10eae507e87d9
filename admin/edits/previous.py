"""Reads active edits that were saved before ``state.db`` existed, so that they can be imported."""

from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from admin.edits.model import ActiveEdit

JOURNAL: Final = "edits.journal"
_HEADER: Final = b"sluice-edits 1\n"
_PREFIX_BYTES: Final = len(b"0000012f 5f3759df ")


class _ChangeId(msgspec.Struct):
    id: int


class _Line(msgspec.Struct):
    written: dict[str, ActiveEdit | None] = {}
    changes: list[_ChangeId] = []


def read_edits(directory: Path) -> tuple[dict[str, ActiveEdit], int]:
    """Return the active edits by path, and the highest change id.

    Raises FileNotFoundError, or ValueError if the file is damaged.
    """
    data = (directory / JOURNAL).read_bytes()
    if not data.startswith(_HEADER):
        raise ValueError("invalid header")
    active: dict[str, ActiveEdit | None] = {}
    last_id = 0
    # The last line is empty, or belongs to an edit that was never acknowledged.
    for line in data[len(_HEADER) :].split(b"\n")[:-1]:
        body = line[_PREFIX_BYTES:]
        if line[:_PREFIX_BYTES] != b"%08x %08x " % (len(body), crc32(body)):
            raise ValueError("a line is damaged")
        read = msgspec.json.decode(body, type=_Line)
        active |= read.written
        ids = [each.id for each in read.changes] + [each.change_id for each in read.written.values() if each]
        last_id = max([last_id, *ids])
    return {path: edit for path, edit in active.items() if edit is not None}, last_id
