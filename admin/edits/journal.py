"""The journal of live edits: active edits survive the process, a loss of power, and a full disk.

The file
========
A header line, then one line for each group of changes that was committed together::

    sluice-edits 1
    0000012f 5f3759df {"written":{"limits/topic/orders":{…}},"changes":[…]}

The length of the JSON in bytes and its CRC-32, both in hexadecimal, then the JSON: the paths whose edit changed, with
the active edit or null, and the changes themselves for the audit trail. So a group is there as a whole or not at all.

A last line that is shorter than its length says was being written when the process or the machine stopped; it was never
acknowledged, and is cut off. Anything else that is wrong is damage: then the whole file is set aside, since a journal
with a gap would put limits in force that nobody wanted together.

Once most of the file is history, it is written anew under another name with the active edits only, and takes the old
one's place. Everything here blocks, and belongs on a thread once traffic flows.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from admin.common.disk import Appender, fresh_name, read_whole, replace_durably
from admin.edits.model import ActiveEdit, Change

NAME: Final = "edits.journal"
HEADER: Final = b"sluice-edits 1\n"

_LINE: Final = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ")
_BEGINNING: Final = re.compile(rb"[0-9a-f]{0,8}|[0-9a-f]{8} [0-9a-f]{0,8} ?")
_PREFIX_BYTES: Final = 18
#: A file smaller than this is not worth writing anew.
_LEAST_BYTES: Final = 1024 * 1024
#: It is written anew when it has grown to so many times its size after the last time.
_GROWTH: Final = 4
#: A disk that lost data may have kept its length, as zeros.
_LOST: Final = b"\0" * 16


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line.

    Attributes:
        written: the active edits that changed, by path; None for what is not edited any more.
        changes: what was done.
    """

    written: dict[str, ActiveEdit | None] = {}
    changes: tuple[Change, ...] = ()


class DamagedError(Exception):
    """A journal that cannot be trusted, or that this version did not write; the message says what is wrong.

    Attributes:
        foreign: it is whole, but written by another version or another program.
        last_id: the highest id of a change that could still be read.
    """

    def __init__(self, what: str, *, foreign: bool = False, last_id: int = 0) -> None:
        super().__init__(what)
        self.foreign, self.last_id = foreign, last_id


class Content(msgspec.Struct):
    """What a journal says.

    Attributes:
        active: the active edits, by path.
        changes: of the groups in it, in order.
        last_id: the highest id of a change.
        size: bytes of it that are valid.
        torn: bytes after them that were being written.
    """

    active: dict[str, ActiveEdit]
    changes: list[Change]
    last_id: int
    size: int
    torn: bytes


_decoder: Final = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """Return a record's line."""
    body = msgspec.json.encode(record)
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def read(data: bytes) -> Content:
    """Read a journal.

    Raises:
        DamagedError: it is damaged, or another version's.
    """
    content = Content({}, [], 0, len(HEADER), b"")
    if not data.startswith(HEADER):
        if HEADER.startswith(data):
            # Nothing was acknowledged before the header was whole.
            return msgspec.structs.replace(content, size=0, torn=data)
        raise DamagedError(_wrong_header(data), foreign=True, last_id=_last_id(data))
    at = len(HEADER)
    while at < len(data):
        found = _LINE.match(data, at)
        end = at + _PREFIX_BYTES + (int(found[1], 16) if found is not None else 0) + 1
        if (found is None or end >= len(data)) and _is_torn(data[at:], found is not None and end > len(data)):
            break
        body = data[at + _PREFIX_BYTES : end - 1]
        whole = found is not None and data[end - 1 : end] == b"\n" and zlib.crc32(body) == int(found[2], 16)
        if not whole:
            line = data.count(b"\n", 0, at) + 1
            raise DamagedError(f"line {line} is damaged", last_id=_last_id(data))
        try:
            record = _decoder.decode(body)
        except msgspec.DecodeError as error:
            line = data.count(b"\n", 0, at) + 1
            what = f"line {line} is another version's: {error}"
            raise DamagedError(what, foreign=True, last_id=_last_id(data)) from None
        _lay_over(content.active, record)
        content.changes += record.changes
        content.last_id = max(content.last_id, _highest(record))
        at = end
    content.size, content.torn = at, data[at:]
    return content


def _lay_over(active: dict[str, ActiveEdit], record: Record) -> None:
    for path, edit in record.written.items():
        if edit is None:
            active.pop(path, None)
        else:
            active[path] = edit


def _highest(record: Record) -> int:
    ids = [change.id for change in record.changes]
    ids += [edit.change_id for edit in record.written.values() if edit is not None]
    return max(ids, default=0)


def _is_torn(rest: bytes, short: bool) -> bool:  # noqa: FBT001 - of one caller
    """Say whether what is left was being written.

    Args:
        rest: all that is left.
        short: it begins as a line does, and is shorter than that says.
    """
    if b"\n" in rest[:-1]:
        return False
    if _LOST in rest:
        return True
    return not rest.endswith(b"\n") and (short or _BEGINNING.fullmatch(rest) is not None)


def _empty() -> bytes:
    """Refuse a file without a byte: it is made with its header, in one step, so that somebody has emptied it.

    Raises:
        DamagedError: always.
    """
    raise DamagedError("it is empty")


def _wrong_header(data: bytes) -> str:
    first = data.split(b"\n", 1)[0]
    if found := re.fullmatch(rb"sluice-edits ([0-9]{1,6})", first):
        return f"it was written by another version of Sluice (format {found[1].decode()})"
    return "it is no journal of Sluice's"


def _last_id(data: bytes) -> int:
    """Return the highest id that can still be read in a damaged journal, so that no id is used twice."""
    last_id = 0
    for line in data.split(b"\n"):
        found = _LINE.match(line)
        if found is not None and zlib.crc32(line[_PREFIX_BYTES:]) == int(found[2], 16):
            try:
                last_id = max(last_id, _highest(_decoder.decode(line[_PREFIX_BYTES:])))
            except msgspec.DecodeError:
                continue
    return last_id


class Journal:
    """The journal of one state directory, which is read when this is made.

    Args:
        directory: the state directory.
        stamp: the time, as set-aside files have it in their name.

    Attributes:
        path: the file.
        active: the active edits, by path.
        unaudited: changes in it, in order, that the audit trail may lack.
        last_id: the highest id of a change.
        set_aside: the name under which what was found damaged or foreign lies now; None if nothing was.
        damage: what was wrong with it.

    Raises:
        OSError: the directory cannot be read or written.
    """

    def __init__(self, directory: Path, stamp: str) -> None:
        self.path = directory / NAME
        self.set_aside: Path | None = None
        self.damage = ""
        try:
            content = read(read_whole(self.path) or _empty())
        except FileNotFoundError:
            content = read(b"")
        except DamagedError as error:
            self.set_aside = fresh_name(directory, f"{NAME}.{'foreign' if error.foreign else 'damaged'}-{stamp}")
            self.damage = str(error)
            self.path.rename(self.set_aside)
            content = read(b"")
            content.last_id = error.last_id
        self.active = content.active
        self.unaudited = content.changes
        self.last_id = content.last_id
        if content.torn:
            (directory / f"{NAME}.torn").write_bytes(content.torn)
        if content.size == 0:
            replace_durably(self.path, [HEADER])
            content.size = len(HEADER)
        self._file = Appender(self.path, content.size)
        # Not known before the file is first written anew.
        self._live_bytes = 0

    def append(self, record: Record) -> None:
        """Write a record down; it is on the disk when this returns.

        Raises:
            OSError: it is not, and nothing of it stays in the file.
        """
        self._file.append(encode(record), durable=True)
        _lay_over(self.active, record)
        self.last_id = max(self.last_id, _highest(record))

    @property
    def is_history(self) -> bool:
        """Whether most of the file is history."""
        return self._file.size > _LEAST_BYTES and self._file.size > _GROWTH * self._live_bytes

    def compact(self) -> None:
        """Write the file anew with what stands; the changes in it must be in the audit trail by now.

        Raises:
            OSError: the file is as it was.
        """
        size = replace_durably(self.path, _snapshot(self.active))
        self._file.close()
        self._file = Appender(self.path, size)
        self._live_bytes = size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _snapshot(active: Mapping[str, ActiveEdit]) -> Iterator[bytes]:
    """Yield a journal of active edits, line by line."""
    yield HEADER
    for path, edit in active.items():
        yield encode(Record({path: edit}))
