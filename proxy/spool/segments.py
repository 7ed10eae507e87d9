"""The spool's file format, and the recovery of damaged files.

Queues share segment files. A segment is a sequence of runs. A run contains adjacent entries of one queue::

    run     nonce 8 | queue 8 | number 8 | clock 8 | entries 4 | recoverable 4 | recoverable bytes 8
            | body length 8 | body crc 4 | name length 2 | header crc 4 | name | body
    record  handle 8 | entered_ns 8 | expires_ns 8 | messages 4 | cost_bytes 4 | size 4 | content crc 4 | flags 1
            | head crc 4 | content

Numbers are little-endian. The nonce is random and part of the file's name. It is used to find the next header after a
damaged one, and message content cannot forge it. Adding ``clock`` to a time in the run gives nanoseconds since 1970.

The ledger records each change in a segment's number of recoverable entries, so that missing entries are detected at
startup.
"""

import errno
import fcntl
import os
import re
from binascii import hexlify
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

Piece = bytes | bytearray | memoryview

_REFUSABLE: Final = 1
_RECOVERABLE: Final = 2

_HEAD: Final = Struct("<QqqIIIIB")
_CRC: Final = Struct("<I")
_HEAD_BYTES: Final = _HEAD.size
RECORD_BYTES: Final = _HEAD.size + _CRC.size
MAX_BYTES: Final = 1 << 30

_RUN: Final = Struct("<8sQQqIIQQIH")
RUN_BYTES: Final = _RUN.size + _CRC.size
MAX_NAME_BYTES: Final = 0xFFFF
_USUAL_NAME_BYTES: Final = 256
_LINE: Final = Struct("<IqI")
# segment, offset, length, entries, recoverable entries | _SINGLE, content bytes
_ON_DISK: Final = Struct("<IIIIII")
_SINGLE: Final = 1 << 31
_ORDER: Final = Struct(">Q")  # big-endian, to sort by number
_SEARCHED_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"(\d{10})-([0-9a-f]{16})\.segment")
LEDGER: Final = "ledger"
_FULL_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT}


class Entry(NamedTuple):
    handle: int  # the caller's number, up to 64 bits
    entered_ns: int
    expires_ns: int  # 0 if it never expires
    messages: int
    cost_bytes: int
    size_bytes: int  # size of the content
    is_refusable: bool  # whether the sender can be told of a refusal. If not, the entry must be sent
    is_recoverable: bool  # whether it is replayed after a crash if it was on disk
    content: tuple[Piece, ...] | None  # None while the content is only on disk


def head_of(  # noqa: PLR0917 - called for each entry, and keyword arguments are slower
    content: Sequence[Piece],
    size_bytes: int,
    handle: int,
    entered_ns: int,
    expires_ns: int,
    messages: int,
    cost_bytes: int,
    *,
    is_refusable: bool,
    is_recoverable: bool,
) -> bytes:
    """Return the head of a record.

    Pass no content for a large entry. The store's thread adds the checksum later (``with_crc``).
    """
    crc = 0
    for piece in content:
        crc = crc32(piece, crc)
    flags = (_REFUSABLE if is_refusable else 0) | (_RECOVERABLE if is_recoverable else 0)
    head = _HEAD.pack(handle, entered_ns, expires_ns, messages, cost_bytes, size_bytes, crc, flags)
    return head + _CRC.pack(crc32(head))


def with_crc(head: Piece, content: Sequence[Piece]) -> bytes:
    crc = 0
    for piece in content:
        crc = crc32(piece, crc)
    *numbers, _, flags = _HEAD.unpack_from(head)
    packed = _HEAD.pack(*numbers, crc, flags)
    return packed + _CRC.pack(crc32(packed))


def entry_at(data: Piece, position: int, content: tuple[Piece, ...] | None = None, *, whole: bool = True) -> Entry:
    handle, entered_ns, expires_ns, messages, cost_bytes, size, _, flags = _HEAD.unpack_from(data, position)
    if whole:
        start = position + RECORD_BYTES
        content = (data[start : start + size],)
    return Entry(
        handle,
        entered_ns,
        expires_ns,
        messages,
        cost_bytes,
        size,
        flags & _REFUSABLE != 0,
        flags & _RECOVERABLE != 0,
        content,
    )


def is_head(data: Piece, position: int) -> bool:
    end = position + _HEAD_BYTES
    if end + _CRC.size > len(data):
        return False
    crc: int = _CRC.unpack_from(data, end)[0]
    return crc == crc32(memoryview(data)[position:end])


@dataclass(slots=True)
class Salvage:
    body: bytes = b""
    entries: int = 0
    content_bytes: int = 0
    left_out: int = 0  # intact entries that are left out because they are not recoverable
    lost_handles: list[int] = field(default_factory=list)  # handles of lost refusable entries whose head is intact


def salvage(body: Piece, *, recoverable_only: bool = False) -> Salvage:
    """Return the intact records in a body. If a record's length is damaged, all records after it are lost.

    With ``recoverable_only``, ``lost_handles`` stays empty, because there is no sender left to notify.
    """
    found, parts = Salvage(), []
    view, position, length = memoryview(body), 0, len(body)
    while position + RECORD_BYTES <= length:
        whole = is_head(view, position)
        handle, _, _, _, _, size, crc, flags = _HEAD.unpack_from(view, position)
        end = position + RECORD_BYTES + size
        if not whole:
            if end != length and not is_head(view, end):
                break
        elif end > length or crc32(view[position + RECORD_BYTES : end]) != crc:
            if flags & _REFUSABLE and not recoverable_only:
                found.lost_handles.append(handle)
        elif recoverable_only and not flags & _RECOVERABLE:
            found.left_out += 1
        else:
            parts.append(view[position:end])
            found.entries += 1
            found.content_bytes += size
        position = end
    found.body = b"".join(parts)
    return found


class RunHeader(NamedTuple):
    queue: int
    number: int
    clock_ns: int
    entries: int
    recoverable: int
    recoverable_bytes: int
    body_bytes: int
    body_crc: int
    name: bytes

    @property
    def length(self) -> int:
        return RUN_BYTES + len(self.name)

    def pack(self, nonce: bytes) -> bytes:
        fixed = _RUN.pack(nonce, *self[:-1], len(self.name))
        return fixed + _CRC.pack(crc32(self.name, crc32(fixed))) + self.name


def header_at(data: Piece, nonce: bytes, position: int = 0) -> RunHeader | None:
    if len(data) < position + RUN_BYTES:
        return None
    found, *numbers, name_bytes = _RUN.unpack_from(data, position)
    start = position + RUN_BYTES
    name = bytes(data[start : start + name_bytes])
    (crc,) = _CRC.unpack_from(data, position + _RUN.size)
    fixed = memoryview(data)[position : position + _RUN.size]
    if found != nonce or len(name) < name_bytes or crc32(name, crc32(fixed)) != crc:
        return None
    return RunHeader._make((*numbers, name))


class Extent(NamedTuple):
    segment: int
    offset: int
    length: int


def segment_name(number: int, nonce: bytes) -> str:
    return f"{number:010}-{hexlify(nonce).decode()}.segment"


class Folder:
    """A folder of segments, created if missing. Only its owner can access it.

    Raises BlockingIOError if another process uses it.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        self.path = path
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.chmod(0o700)
        except OSError:
            os.close(self._lock)
            raise

    def close(self) -> None:
        os.close(self._lock)

    def segments(self) -> list[tuple[int, bytes]]:
        matches = [_NAME.fullmatch(each.name) for each in self.path.iterdir()]
        return sorted((int(match[1]), bytes.fromhex(match[2])) for match in matches if match)

    def open(self, name: str, flags: int) -> int:
        return os.open(self.path / name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


class Ledger:
    """Tracks the number of recoverable entries in each segment. Damaged lines are ignored."""

    _MAX_BYTES: Final = 1 << 20

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.held: dict[int, int] = {}  # by segment
        self._lines: list[bytes] = []
        self._fd = folder.open(LEDGER, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        self.intact = True
        for position in range(0, len(data) - _LINE.size + 1, _LINE.size):
            segment, change, crc = _LINE.unpack_from(data, position)
            if crc == crc32(data[position : position + _LINE.size - _CRC.size]):
                self.held[segment] = self.held.get(segment, 0) + change
            else:
                self.intact = False
        self._written_bytes = len(data)
        self._torn = bool(len(data) % _LINE.size)

    def add(self, segment: int, change: int) -> None:
        if change:
            self.held[segment] = self.held.get(segment, 0) + change
            self._lines.append(_line(segment, change))

    def forget(self, segment: int) -> None:
        held = self.held.pop(segment, 0)
        if held:
            self._lines.append(_line(segment, -held))

    def append(self, *, sync: bool = False) -> None:
        """Write pending changes. If this raises OSError, the next call tries again."""
        if self._torn or self._written_bytes > self._MAX_BYTES:
            self.rewrite()
        elif self._lines:
            data = b"".join(self._lines)
            count = os.write(self._fd, data)
            self._written_bytes += count
            self._torn = count != len(data)
            if self._torn:
                raise _no_space()
            self._lines = []
        if sync:
            os.fdatasync(self._fd)

    def replace(self, held: dict[int, int]) -> bool:
        """Replace all numbers. If the disk is full, return False and let the next ``append`` try again."""
        self.held, self._lines = held, []
        try:
            self.rewrite()
        except OSError as error:
            if error.errno not in _FULL_ERRORS:
                raise
            self._torn = True
            return False
        return True

    def rewrite(self) -> None:
        """Replace the file with a new one. If this raises OSError, the old file is unchanged."""
        temporary = f"{LEDGER}.new"
        data = b"".join(_line(segment, held) for segment, held in self.held.items() if held)
        fd = self._folder.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            if os.write(fd, data) != len(data):
                raise _no_space()
            (self._folder.path / temporary).replace(self._folder.path / LEDGER)
        except OSError:
            os.close(fd)
            with suppress(OSError):
                self._folder.delete(temporary)
            raise
        os.close(self._fd)
        self._fd, self._written_bytes, self._lines, self._torn = fd, len(data), [], False

    def close(self) -> None:
        os.close(self._fd)


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _line(segment: int, change: int) -> bytes:
    line = _LINE.pack(segment, change, 0)[: -_CRC.size]
    return line + _CRC.pack(crc32(line))


class RunOnDisk(NamedTuple):
    extent: Extent
    entries: int
    recoverable: int  # recoverable entries when the run was written
    content_bytes: int
    is_single: bool  # whether it is one large entry


class RunsOnDisk:
    """A FIFO queue of runs, packed to save memory, because there may be a million of them."""

    def __init__(self) -> None:
        self.entries = self.content_bytes = 0
        self._data = bytearray()
        self._start = 0

    def __len__(self) -> int:
        return (len(self._data) - self._start) // _ON_DISK.size

    def __iter__(self) -> Iterator[RunOnDisk]:
        for position in range(self._start, len(self._data), _ON_DISK.size):
            yield _run_at(self._data, position)

    def first(self) -> RunOnDisk:
        return _run_at(self._data, self._start)

    def append(self, run: RunOnDisk) -> None:
        self._count(run, 1)
        self._data += _packed(run)

    def appendleft(self, run: RunOnDisk) -> None:
        self._count(run, 1)
        start = max(0, self._start - _ON_DISK.size)
        self._data[start : self._start] = _packed(run)
        self._start = start

    def popleft(self) -> None:
        self._count(self.first(), -1)
        self._start += _ON_DISK.size
        if self._start * 2 >= len(self._data):
            del self._data[: self._start]
            self._start = 0

    def _count(self, run: RunOnDisk, sign: int) -> None:
        self.entries += sign * run.entries
        self.content_bytes += sign * run.content_bytes


def _packed(run: RunOnDisk) -> bytes:
    flags = _SINGLE if run.is_single else 0
    return _ON_DISK.pack(*run.extent, run.entries, run.recoverable | flags, run.content_bytes)


def _run_at(data: Piece, position: int) -> RunOnDisk:
    segment, offset, length, entries, recoverable, content_bytes = _ON_DISK.unpack_from(data, position)
    extent = Extent(segment, offset, length)
    return RunOnDisk(extent, entries, recoverable & ~_SINGLE, content_bytes, recoverable & _SINGLE != 0)


@dataclass(slots=True)
class FoundQueue:
    name: bytes
    clock_ns: int
    runs: RunsOnDisk = field(default_factory=RunsOnDisk)


@dataclass(slots=True)
class Found:
    queues: dict[int, FoundQueue] = field(default_factory=dict)
    recoverable: int = 0  # intact recoverable entries
    dropped: int = 0  # entries that are not recoverable
    lost: int = 0  # recoverable entries that are damaged or missing
    damaged: list[str] = field(default_factory=list)  # damaged or missing files
    is_full: bool = False


def scan_folder(folder: Folder, ledger: Ledger) -> Found:
    found = Found()
    numbered: dict[int, list[bytes]] = {}
    # A damaged ledger cannot show that files are missing.
    expected = dict(ledger.held) if ledger.intact else {}
    if not ledger.intact:
        found.damaged.append(LEDGER)
    for number, nonce in folder.segments():
        whole, recoverable, lost = True, 0, 0
        for extent, header, salvaged in _runs(folder, number, nonce):
            # If the last run is truncated, it was being written when the process crashed.
            is_torn = ledger.intact and extent.length < header.length + header.body_bytes
            whole &= salvaged is None or is_torn
            if salvaged is None:
                entries, content_bytes = header.recoverable, header.recoverable_bytes
                found.dropped += header.entries - entries
            else:
                entries, content_bytes = salvaged.entries, salvaged.content_bytes
                found.dropped += salvaged.left_out
            recoverable += entries
            lost += 0 if is_torn else header.recoverable - entries
            if entries:
                is_single = header.entries == 1 and salvaged is None
                run = RunOnDisk(extent, entries, entries, content_bytes, is_single)
                found.queues.setdefault(header.queue, FoundQueue(header.name, header.clock_ns))
                numbered.setdefault(header.queue, []).append(_ORDER.pack(header.number) + _packed(run))
        # The ledger includes runs whose header is lost, but may lack the latest changes.
        lost = max(lost, expected.pop(number, 0) - recoverable)
        found.recoverable += recoverable
        found.lost += lost
        if lost or not whole:
            found.damaged.append(segment_name(number, nonce))
    for number, missing in expected.items():
        if missing > 0:
            found.lost += missing
            found.damaged.append(f"{number:010}")
    for number, queue in found.queues.items():
        for packed in sorted(numbered.pop(number)):
            queue.runs.append(_run_at(packed, _ORDER.size))
    return found


def _runs(folder: Folder, number: int, nonce: bytes) -> Iterator[tuple[Extent, RunHeader, Salvage | None]]:
    fd = folder.open(segment_name(number, nonce), os.O_RDONLY)
    try:
        size, position = os.fstat(fd).st_size, 0
        while position < size:
            header = header_at(os.pread(fd, RUN_BYTES + _USUAL_NAME_BYTES, position), nonce) or header_at(
                os.pread(fd, RUN_BYTES + MAX_NAME_BYTES, position), nonce
            )
            if header is None:
                position = _search(fd, nonce, position + 1)
                continue
            body_at = position + header.length
            extent = Extent(number, position, min(size, body_at + header.body_bytes) - position)
            intact = _crc_of(fd, body_at, header.body_bytes) == header.body_crc
            salvaged = (
                None if intact else salvage(os.pread(fd, extent.length - header.length, body_at), recoverable_only=True)
            )
            yield extent, header, salvaged
            position += extent.length
    finally:
        os.close(fd)


def _crc_of(fd: int, position: int, length: int) -> int | None:
    crc = 0
    while length:
        data = os.pread(fd, min(length, _SEARCHED_BYTES), position)
        if not data:
            return None
        crc = crc32(data, crc)
        position += len(data)
        length -= len(data)
    return crc


def _search(fd: int, nonce: bytes, position: int) -> int:
    while True:
        data = os.pread(fd, _SEARCHED_BYTES, position)
        at = data.find(nonce)
        if at >= 0:
            return position + at
        if len(data) < len(nonce):
            return position + len(data)
        position += len(data) - len(nonce) + 1
