"""The spool's I/O thread, shared by all queues.

The thread works on groups of jobs: reads first, because callers wait for them, then writes, then deletions.

A file is deleted when none of its data is needed. Until then, unneeded parts are returned to the file system
(``FALLOC_FL_PUNCH_HOLE``).
"""

import ctypes
import errno
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, Protocol
from zlib import crc32

from proxy.spool.segments import (
    RECORD_BYTES,
    RUN_BYTES,
    Extent,
    Folder,
    Found,
    Ledger,
    Piece,
    RunHeader,
    header_at,
    is_head,
    salvage,
    scan_folder,
    segment_name,
    with_crc,
)


@dataclass(slots=True, eq=False)
class Write:
    header: RunHeader  # without the body's checksum
    # Must not change until the job is done. For a large entry: the record head without a checksum, and the content.
    body: Sequence[Piece]
    is_single: bool = False
    cancelled: bool = False  # skip the job if it has not started
    extent: Extent | None = None
    error: OSError | None = None


@dataclass(slots=True, eq=False)
class Read:
    extent: Extent
    name_bytes: int
    entries: int  # expected number
    index_only: bool = False  # read only the first record's head
    recoverable_only: bool = False
    data: Piece = b""  # the intact records start at ``start``
    start: int = 0
    left: int = 0  # intact entries found
    content_bytes: int = -1  # -1 unless records were damaged or left out
    lost_handles: Sequence[int] = ()  # known handles of lost refusable entries
    error: OSError | None = None


@dataclass(slots=True, eq=False)
class Release:
    """Delete runs that are no longer needed."""

    # Each run's extent and number of recoverable entries. The thread iterates lazily, because there may be a million.
    extents: Iterable[tuple[Extent, int]]


@dataclass(slots=True, eq=False)
class Sync:
    """Ensure that all earlier writes survive a power failure."""

    error: OSError | None = None


Job = Write | Read | Release | Sync


class Disk(Protocol):
    done: Callable[[Sequence[Job]], object]  # called on the event loop

    def submit(self, job: Job) -> None:
        """Queue a job. Only writes and syncs are done in the order of submission."""

    def close(self) -> None:
        """Finish all jobs and stop. Their results may not be reported. Blocks."""


@dataclass(slots=True)
class _Segment:
    nonce: bytes
    size_bytes: int = 0
    live_bytes: int = 0
    punched_bytes: int = 0
    # Number of unneeded bytes in each block that is still partly needed.
    edges: dict[int, int] = field(default_factory=dict)


_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_GROUP_BYTES: Final = 1024 * 1024
# Reads wait about 20 µs for each release.
_RELEASED_TOGETHER: Final = 500
# Linux accepts 1024 pieces per call.
_MAX_PIECES: Final = 1000
_MAX_OPEN: Final = 64
_BLOCK_BYTES: Final = 4096
_PUNCH_HOLE_KEEP_SIZE: Final = 0x03


class Store:
    """A folder of segments, and the thread that reads and writes them.

    Args:
        max_bytes: maximum disk usage. Writes that would exceed it fail with ENOSPC.
        min_free_bytes: minimum free space on the file system. Writes that would leave less fail with ENOSPC.
        post: runs a function on the event loop, like ``TrioToken.run_sync_soon``. Called from the thread. Raises
            RuntimeError if the event loop has ended.
        segment_bytes: size at which a new file is started.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        min_free_bytes: int,
        post: Callable[[Callable[[], object]], object],
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        self._folder = Folder(folder)
        try:
            self._ledger = Ledger(self._folder)
        except OSError:
            self._folder.close()
            raise
        self._max_bytes, self._min_free_bytes, self._segment_bytes = max_bytes, min_free_bytes, segment_bytes
        self._post = post
        self.done: Callable[[Sequence[Job]], object] = list
        self.used_bytes = 0  # approximate, and safe to read on any thread
        self._segments: dict[int, _Segment] = {}
        self._current: int | None = None
        self._next = 0
        self._fds: OrderedDict[int, int] = OrderedDict()  # least recently used first
        self._dirty: set[int] = set()
        self._folder_dirty = False
        self._punches = True
        self._closed = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="spool", daemon=True)

    def recover(self, *, adopt: bool) -> Found:
        """Find an earlier process's entries, and delete them unless ``adopt``. Call this before ``start``. Blocks."""
        found = scan_folder(self._folder, self._ledger)
        if not adopt:
            found.queues = {}
        held: dict[int, int] = {}
        for number, nonce in self._folder.segments():
            self._segments[number] = _Segment(nonce)
        for run in (run for queue in found.queues.values() for run in queue.runs):
            segment = self._segments[run.extent.segment]
            segment.live_bytes += run.extent.length
            segment.size_bytes = max(segment.size_bytes, run.extent.offset + run.extent.length)
            held[run.extent.segment] = held.get(run.extent.segment, 0) + run.entries
        self._next = max([*self._segments, *self._ledger.held, -1]) + 1
        for number, segment in list(self._segments.items()):
            if not segment.live_bytes:
                self._folder.delete(segment_name(number, segment.nonce))
                del self._segments[number]
        found.is_full = not self._ledger.replace(held)
        self._count_use()
        return found

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread.ident is not None:
            self._jobs.put(None)
            self._thread.join()
        while self._fds:
            os.close(self._fds.popitem()[1])
        self._ledger.close()
        self._folder.close()

    # --- On the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        # A sync covers the writes before it.
        writes: deque[Write | Sync] = deque()
        released: Iterator[tuple[Extent, int]] = iter(())
        ends = is_releasing = False
        while not ends or writes or is_releasing:
            reads: list[Read] = []
            try:
                while not ends:
                    job = self._jobs.get(block=not (writes or reads or is_releasing))
                    if job is None:
                        ends = True
                    elif isinstance(job, Read):
                        reads.append(job)
                    elif isinstance(job, Release):
                        released = chain(released, job.extents) if is_releasing else iter(job.extents)
                        is_releasing = True
                    else:
                        writes.append(job)
            except Empty:
                pass
            size_bytes, group = 0, list[Write]()
            while writes and size_bytes < _GROUP_BYTES and isinstance(write := writes[0], Write):
                writes.popleft()
                group.append(write)
                size_bytes += write.header.body_bytes
            syncs = []
            while writes and isinstance(sync := writes[0], Sync):
                writes.popleft()
                syncs.append(sync)
            part = list(islice(released, _RELEASED_TOGETHER))
            is_releasing = len(part) == _RELEASED_TOGETHER
            self._do(reads, group, syncs, part)

    def _do(
        self, reads: list[Read], writes: list[Write], syncs: list[Sync], released: list[tuple[Extent, int]]
    ) -> None:
        try:
            for read in reads:
                self._read(read)
            for write in writes:
                if not write.cancelled:
                    self._write(write)
        except Exception as fault:  # noqa: BLE001 - an unexpected error must not lose messages
            error = OSError(errno.EFAULT, repr(fault))
            for read in reads:
                read.error = read.error or (None if read.data else error)
            for write in writes:
                write.error = write.error or (None if write.extent else error)
        for extent, recoverable in released:
            self._ledger.add(extent.segment, -recoverable)
        try:
            # Update the ledger before deleting entries, so that they are not counted as lost.
            self._ledger.append(sync=bool(syncs))
            if syncs:
                self._sync()
        except OSError as error:
            for sync in syncs:
                sync.error = error
        with suppress(OSError):
            self._release(extent for extent, _ in released)
        self._count_use()
        done: list[Job] = [*reads, *writes, *syncs]
        if done:
            try:
                self._post(lambda: self.done(done))
            except RuntimeError:
                return  # the event loop has ended

    def _count_use(self) -> None:
        self.used_bytes = sum(each.size_bytes - each.punched_bytes for each in self._segments.values())

    def _fd(self, number: int) -> int:
        fd = self._fds.get(number)
        if fd is None:
            while len(self._fds) >= _MAX_OPEN:
                os.close(self._fds.popitem(last=False)[1])
            fd = self._folder.open(segment_name(number, self._segments[number].nonce), os.O_RDWR)
            self._fds[number] = fd
        self._fds.move_to_end(number)
        return fd

    def _read(self, job: Read) -> None:
        number, offset, length = job.extent
        if job.index_only:
            length = RUN_BYTES + job.name_bytes + RECORD_BYTES
        segment = self._segments.get(number)
        try:
            if segment is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            data = _read_all(self._fd(number), length, offset)
        except MemoryError:
            job.error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        except OSError as error:
            job.error = error
        else:
            _check(job, data, segment.nonce)

    def _write(self, job: Write) -> None:
        length = job.header.length + job.header.body_bytes
        try:
            self._check_room(length)
            number, segment, fd = self._open_current()
        except OSError as error:
            job.error = error
            return
        body = job.body
        if job.is_single:
            body = [with_crc(body[0], body[1:]), *body[1:]]
        crc = 0
        for piece in body:
            crc = crc32(piece, crc)
        pieces = [job.header._replace(body_crc=crc).pack(segment.nonce), *body]
        start = offset = segment.size_bytes
        try:
            while pieces:
                count = os.pwritev(fd, pieces[:_MAX_PIECES], offset)
                offset += count
                pieces = _behind(pieces, count)
        except OSError as error:
            job.error = error
            self._end_current(fd, start)
            return
        self._dirty.add(number)
        job.extent = Extent(number, start, length)
        self._ledger.add(number, job.header.recoverable)
        segment.size_bytes += length
        segment.live_bytes += length
        self.used_bytes += length
        if segment.size_bytes >= self._segment_bytes:
            self._current = None

    def _check_room(self, more_bytes: int) -> None:
        stats = os.statvfs(self._folder.path)
        if self.used_bytes + more_bytes > self._max_bytes:
            raise OSError(errno.ENOSPC, "the spool has reached its maximum size")
        if stats.f_bavail * stats.f_frsize < self._min_free_bytes + more_bytes:
            raise OSError(errno.ENOSPC, "the disk has too little free space")

    def _open_current(self) -> tuple[int, _Segment, int]:
        if self._current is None:
            number, segment = self._next, _Segment(os.urandom(8))
            self._next += 1
            os.close(self._folder.open(segment_name(number, segment.nonce), os.O_RDWR | os.O_CREAT | os.O_EXCL))
            self._segments[number] = segment
            self._current = number
            self._folder_dirty = True
        return self._current, self._segments[self._current], self._fd(self._current)

    def _end_current(self, fd: int, size_bytes: int) -> None:
        number = self._current
        self._current = None
        # If this fails, the next start recognizes the incomplete run.
        with suppress(OSError):
            os.ftruncate(fd, size_bytes)
        if number is not None and not self._segments[number].live_bytes:
            self._delete(number)

    def _sync(self) -> None:
        while self._dirty:
            number = next(iter(self._dirty))
            if number in self._segments:
                os.fdatasync(self._fd(number))
            self._dirty.discard(number)
        if self._folder_dirty:
            fd = os.open(self._folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._folder_dirty = False

    def _release(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            segment = self._segments.get(extent.segment)
            if segment is None:
                continue
            segment.live_bytes -= extent.length
            if not segment.live_bytes:
                self._delete(extent.segment)
            elif self._punches:
                try:
                    start, end = _unneeded(extent, segment.edges)
                    _punch(self._fd(extent.segment), start, end - start)
                    segment.punched_bytes += max(0, end // _BLOCK_BYTES - -(-start // _BLOCK_BYTES)) * _BLOCK_BYTES
                except OSError as error:
                    self._punches = error.errno not in {errno.EOPNOTSUPP, errno.ENOSYS}

    def _delete(self, number: int) -> None:
        segment = self._segments.pop(number)
        if self._current == number:
            self._current = None
        fd = self._fds.pop(number, None)
        if fd is not None:
            os.close(fd)
        self._ledger.forget(number)
        # If this fails, the next start deletes the file.
        with suppress(OSError):
            self._folder.delete(segment_name(number, segment.nonce))


def _read_all(fd: int, length: int, offset: int) -> bytes:
    data = os.pread(fd, length, offset)
    while 0 < len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _behind(pieces: Sequence[Piece], count: int) -> list[Piece]:
    for index, piece in enumerate(pieces):
        length = len(piece)
        if count < length:
            return [memoryview(piece)[count:], *pieces[index + 1 :]]
        count -= length
    return []


def _check(job: Read, data: bytes, nonce: bytes) -> None:
    start = RUN_BYTES + job.name_bytes
    job.data, job.start = data, start
    if job.index_only:
        job.left = int(is_head(data, start))
        return
    header = header_at(data, nonce)
    view = memoryview(data)[start:]
    whole = header is not None and header.body_bytes == len(view) and header.body_crc == crc32(view)
    if whole and (header is None or header.entries == job.entries):
        job.left = job.entries
        return
    salvaged = salvage(view, recoverable_only=job.recoverable_only)
    job.data, job.start = salvaged.body, 0
    job.left, job.content_bytes, job.lost_handles = salvaged.entries, salvaged.content_bytes, salvaged.lost_handles


def _unneeded(extent: Extent, edges: dict[int, int]) -> tuple[int, int]:
    """Return the byte range to punch out, including blocks at its edges that no extent needs. Update ``edges``."""
    start, end = extent.offset, extent.offset + extent.length
    first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
    for block in {first, last}:
        block_start, block_end = block * _BLOCK_BYTES, (block + 1) * _BLOCK_BYTES
        count = min(end, block_end) - max(start, block_start) + edges.pop(block, 0)
        if count < _BLOCK_BYTES:
            edges[block] = count
        else:
            start, end = min(start, block_start), max(end, block_end)
    return start, end


_libc: Final = ctypes.CDLL(None, use_errno=True)
_fallocate: Final = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)


def _punch(fd: int, offset: int, length: int) -> None:
    if _fallocate is None or _fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length)):
        number = ctypes.get_errno() if _fallocate else errno.ENOSYS
        raise OSError(number, os.strerror(number))
