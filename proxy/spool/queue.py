"""A queue in the spool. It decides which entries are in memory and which are on disk. It does no I/O and has no clock.

Adjacent entries form a *run* of up to 64 KiB in the file format, which is written and read in one piece. A large entry
is a run by itself, and the limiter can decide on it while only its index is in memory. From head to tail, a queue
consists of::

    head    runs in memory, or being read           entries are taken from here
    disk    runs on disk                            nothing in memory
    tail    runs in memory, being written           entries are appended here

If a queue exceeds its memory target while the spool uses more than half of its memory, new entries go to the tail. If
the target shrinks, the end of the head is written to disk, too. When the head runs low, it takes the next run from
disk, or from the tail if there are no runs on disk. A run that was read stays on disk until its last entry is taken.

The metric ``sluice_spool_messages`` explains the ``States``. Only large entries at the head can be beta (not
recoverable) or gamma (recoverable).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol

from proxy.flow.credit import Stage
from proxy.spool.segments import (
    MAX_BYTES,
    MAX_NAME_BYTES,
    RECORD_BYTES,
    Entry,
    Extent,
    FoundQueue,
    Piece,
    RunHeader,
    RunOnDisk,
    RunsOnDisk,
    entry_at,
    head_of,
)
from proxy.spool.store import Read, Write

_NS: Final = 1_000_000_000
MAX_RUN_BYTES: Final = 64 * 1024
MIN_RUN_BYTES: Final = 1024
_OBJECT_BYTES: Final = 400  # measured size of an empty run in memory
_AHEAD_S: Final = 2  # seconds of output to read ahead when less than half of that is left
_RATE_STEP: Final = 0.5  # smoothing factor for rates, per second

Ending = Literal["expired", "too old"]


class Lost(NamedTuple):
    queue: "Queue"
    entries: int
    handles: tuple[int, ...]  # known handles of refusable entries
    reason: str


@dataclass(slots=True)
class States:
    alpha: int = 0
    beta: int = 0
    gamma: int = 0
    delta: int = 0
    alpha_bytes: int = 0
    beta_bytes: int = 0
    gamma_bytes: int = 0
    delta_bytes: int = 0

    def add(self, more: "States") -> None:
        for name in States.__slots__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


class Pool:
    """State shared by all queues.

    Args:
        min_bytes: memory limit, which is raised if there are many queues.
        max_age_ns: age at which an entry is too old. 0 for no maximum.
        target_s: seconds of traffic that each queue may keep in memory.
    """

    def __init__(self, min_bytes: int, max_age_ns: int, target_s: float) -> None:
        self._min_bytes = min_bytes
        self.max_age_ns, self.target_s = max_age_ns, target_s
        self.memory_bytes = self.wanted_bytes = 0
        self.busy = 0  # queues with entries
        self.in_total = self.out_total = 0
        self.spilled_total = self.read_total = 0  # entries
        self.dropped_total = 0
        self.recovered_total = 0  # not included in ``in_total``
        self.ended_total: dict[Ending, int] = {"expired": 0, "too old": 0}
        self.count_busy(0)

    def count_busy(self, change: int) -> None:
        self.busy += change
        self.bound_bytes = max(self._min_bytes, self.busy * 4 * (MIN_RUN_BYTES + _OBJECT_BYTES))
        self.spill_bytes = self.bound_bytes // 2  # above this, entries are written to disk
        share = self.spill_bytes // (2 * max(1, self.busy)) - _OBJECT_BYTES
        self.run_bytes = min(max(share, MIN_RUN_BYTES), MAX_RUN_BYTES, max(1, self.bound_bytes // 8))


class _Place(Enum):
    HEAD = 1
    TAIL = 2
    GONE = 3


class Run:
    """Adjacent entries that are in memory, or are being read from or written to disk."""

    __slots__ = (
        *("body_bytes", "content", "content_bytes", "data", "demoted", "entries", "extent", "memory_bytes", "number"),
        *("pending", "place", "position", "queue", "recoverable", "recoverable_bytes", "sent", "single", "written"),
    )

    def __init__(self, queue: "Queue", number: int, *, single: bool = False) -> None:
        self.queue, self.number, self.single = queue, number, single
        self.data: Piece | None = None  # the records, or only the record head of a large entry. None until read
        self.content: tuple[Piece, ...] | None = None  # used for large entries only
        self.position = 0  # where the first remaining entry starts
        # Totals for the remaining entries.
        self.entries = self.recoverable = self.content_bytes = self.recoverable_bytes = 0
        self.body_bytes = self.memory_bytes = 0
        self.written = 0  # number of recoverable entries on disk
        self.sent = 0  # number of entries that the store's stage has not acked yet
        self.extent: Extent | None = None
        self.pending: Literal["write", "read"] | None = None
        self.place = _Place.HEAD
        self.demoted = False  # whether to drop it from memory when it is on disk

    @property
    def is_wanted(self) -> bool:
        return self.place is not _Place.GONE

    def write(self, clock_ns: int) -> Write:
        data = self.data
        assert data is not None  # noqa: S101 - only runs in memory are written
        body = [memoryview(data)[self.position :], *(self.content or ())]
        self.written = self.recoverable
        queue = self.queue
        header = RunHeader(
            queue.number,
            self.number,
            clock_ns,
            self.entries,
            self.recoverable,
            self.recoverable_bytes,
            self.body_bytes,
            0,
            queue.name,
        )
        return Write(header, body, self.single)

    def read(self, *, index_only: bool) -> Read:
        assert self.extent is not None  # noqa: S101 - only runs on disk are read
        queue = self.queue
        return Read(self.extent, len(queue.name), self.entries, index_only, recoverable_only=queue.is_recovered)


class Orders(Protocol):
    def write(self, run: Run) -> None: ...
    def cancel(self, run: Run) -> None: ...
    def read(self, run: Run, *, index_only: bool) -> None: ...
    def release(self, extents: Iterable[tuple[Extent, int]]) -> None: ...
    def press(self) -> None: ...
    def relieve(self) -> None: ...
    def report_lost(self, lost: Lost) -> None: ...
    def gone(self, queue: "Queue") -> None: ...


class Queue:
    """A FIFO queue, created by ``Spool.queue``."""

    def __init__(
        self,
        number: int,
        name: bytes,
        pool: Pool,
        orders: Orders,
        *,
        ready: Callable[["Queue"], object],
        stage: Stage | None = None,
        now_ns: int,
    ) -> None:
        if len(name) > MAX_NAME_BYTES:
            raise ValueError(f"the queue name is {len(name)} bytes long; the maximum is {MAX_NAME_BYTES}")
        self.number, self.name = number, name
        self._pool, self._orders, self.ready, self.stage = pool, orders, ready, stage
        self.on_lost: Callable[[Lost], object] | None = None
        self.count = self.content_bytes = self.memory_bytes = 0
        # Queues recovered from an earlier process accept no entries.
        self.is_recovered = self.is_closed = False
        self._shift_ns = 0
        # Even an empty deque would take 760 bytes.
        self._head: list[Run] = []
        self._disk = RunsOnDisk()
        self._tail: list[Run] = []
        # The last run, while entries can still be added to it.
        self._open: Run | None = None
        self._runs = 0
        self._entry: Entry | None = None
        self._awaited = False  # whether to call ``ready``
        self._fetched = False  # whether the first entry's content must stay in memory
        self._ahead_bytes = 0  # size of the head, including runs that are being read
        self._in_total = self._out_total = self._in_bytes = self._out_bytes = 0
        self._measured = (now_ns, 0, 0, 0, 0)
        self._oldest_ns = now_ns
        self._rates = (0.0, 0.0, 0.0, 0.0)
        self._wanted_bytes = 0
        self.target_bytes = self._low_bytes = self._want_ahead_bytes = 0
        self._retarget()

    def append(
        self,
        content: Sequence[Piece],
        handle: int,
        now_ns: int,
        *,
        messages: int = 1,
        cost_bytes: int = 0,
        expires_ns: int = 0,
        is_refusable: bool = True,
        is_recoverable: bool = False,
    ) -> None:
        """Append an entry (see ``Entry``). Do not change its content afterwards.

        Raises:
            ValueError: the entry is too large, or the queue is closed or recovered.
            struct.error: a number does not fit its field.
        """
        size = len(content[0]) if len(content) == 1 else sum(map(len, content))
        if size > MAX_BYTES or self.is_closed or self.is_recovered:
            raise ValueError(
                "the entry is too large"
                if size > MAX_BYTES
                else "the queue accepts no entries because it is closed or recovered"
            )
        is_large = size >= self._pool.run_bytes
        head = head_of(
            () if is_large else content,
            size,
            handle,
            now_ns,
            expires_ns,
            messages,
            cost_bytes,
            is_refusable=is_refusable,
            is_recoverable=is_recoverable,
        )
        pool, run, more_bytes = self._pool, self._open, RECORD_BYTES + size
        if is_large:
            self._seal()
            run = self._begin(single=True)
            run.data, run.content = head, tuple(content)
        else:
            if run is None:
                run = self._open = self._begin()
                run.data = bytearray()
            data = run.data
            assert isinstance(data, bytearray)  # noqa: S101 - see above
            data += head
            for piece in content:
                data += piece
        run.entries += 1
        if is_recoverable:
            run.recoverable += 1
            run.recoverable_bytes += size
        run.content_bytes += size
        run.body_bytes += more_bytes
        run.memory_bytes += more_bytes
        self.memory_bytes += more_bytes
        pool.memory_bytes += more_bytes
        if run.place is _Place.HEAD:
            self._ahead_bytes += more_bytes
        self.count += 1
        self.content_bytes += size
        self._in_total += 1
        pool.in_total += 1
        self._in_bytes += more_bytes
        if run.single:
            if run.place is _Place.TAIL:
                self._write(run)
        elif run.body_bytes >= pool.run_bytes:
            self._seal()
        if pool.memory_bytes > pool.bound_bytes:
            self._orders.press()

    def head(self) -> Entry | None:
        """Return the first entry, perhaps without its content.

        If it must be read from disk first, return None and call ``ready`` later.
        """
        if self._entry is not None:
            return self._entry
        if not self._settle_first():
            self._awaited = self.count > 0
            return None
        run = self._head[0]
        data = run.data
        assert data is not None  # noqa: S101 - ``_settle_first`` returned True
        entry = entry_at(data, run.position, run.content, whole=not run.single)
        if self._shift_ns:
            expires_ns = entry.expires_ns and entry.expires_ns + self._shift_ns
            entry = entry._replace(entered_ns=entry.entered_ns + self._shift_ns, expires_ns=expires_ns)
        self._entry = entry
        self._oldest_ns = entry.entered_ns
        return entry

    @property
    def oldest_ns(self) -> int:
        """The time when the first entry was appended, or a lower bound while that entry is only on disk."""
        run = self._head[0] if self._head else None
        if self._entry is not None or run is None or run.data is None or not run.entries:
            return self._oldest_ns
        return entry_at(run.data, run.position, whole=False).entered_ns + self._shift_ns

    def ending(self, now_ns: int) -> Ending | None:
        entry = self.head()
        if entry is None:
            return None
        if entry.expires_ns and now_ns >= entry.expires_ns:
            return "expired"
        return "too old" if self._pool.max_age_ns and now_ns - entry.entered_ns >= self._pool.max_age_ns else None

    def fetch(self) -> None:
        """Load the first entry's content. If it is not in memory yet, ``ready`` is called when it is."""
        if not self._settle_first():
            self._awaited = self.count > 0
            return
        run = self._head[0]
        self._fetched = True
        if run.single and run.content is None:
            self._awaited = True
            if run.pending is None:
                self._read(run)

    def pop(self, ending: Ending | None = None) -> Entry:
        """Remove and return the first entry, perhaps without its content. ``ending`` selects a counter to increase.

        Raises:
            IndexError: the first entry is not in memory.
        """
        entry = self._entry or self.head()
        if entry is None:
            raise IndexError("the first entry is not in memory")
        self._entry = None
        run = self._head[0]
        size = entry.size_bytes
        less_bytes = RECORD_BYTES + size
        run.position += less_bytes
        run.entries -= 1
        if entry.is_recoverable:
            run.recoverable -= 1
            run.recoverable_bytes -= size
        run.content_bytes -= size
        run.body_bytes -= less_bytes
        self._ahead_bytes -= less_bytes
        self.count -= 1
        self.content_bytes -= size
        self._out_total += 1
        pool = self._pool
        pool.out_total += 1
        if ending is not None:
            pool.ended_total[ending] += 1
        self._out_bytes += less_bytes
        if not run.entries:
            self._finish_first()
            if not self.count:
                pool.count_busy(-1)
                self._settle_first()
            self._orders.relieve()
        if self._ahead_bytes < self._low_bytes:
            self._refill()
        return entry

    def purge(self) -> int:
        """Drop all entries without refusing them. Return their number."""
        count = self.count
        if self._disk:
            on_disk, self._disk = self._disk, RunsOnDisk()
            self._orders.release((run.extent, run.recoverable) for run in on_disk)
        extents: list[tuple[Extent, int]] = []
        for run in (*self._head, *self._tail):
            self._drop(run, extents)
        if extents:
            self._orders.release(extents)
        self._head.clear()
        self._tail.clear()
        self._open = self._entry = None
        self._awaited = self._fetched = False
        if count:
            self._pool.count_busy(-1)
            self._pool.dropped_total += count
        self.count = self.content_bytes = self._ahead_bytes = 0
        self._orders.relieve()
        return count

    def close(self) -> int:
        count = self.purge()
        self._pool.wanted_bytes -= self._wanted_bytes
        self._wanted_bytes = 0
        self.is_closed = True
        self._orders.gone(self)
        return count

    @property
    def in_per_s(self) -> float:
        return self._rates[0]

    @property
    def out_per_s(self) -> float:
        return self._rates[1]

    def states(self) -> States:
        states = States(delta=self._disk.entries, delta_bytes=self._disk.content_bytes)
        for run in self._head:
            if run.data is None:
                states.delta += run.entries
                states.delta_bytes += run.content_bytes
            elif run.single and run.content is None and run.entries:
                if run.recoverable:
                    states.gamma += 1
                    states.gamma_bytes += run.content_bytes
                else:
                    states.beta += 1
                    states.beta_bytes += run.content_bytes
        states.alpha = self.count - states.beta - states.gamma - states.delta
        states.alpha_bytes = self.content_bytes - states.beta_bytes - states.gamma_bytes - states.delta_bytes
        return states

    def adopt(self, found: FoundQueue, clock_ns: int) -> None:
        self.is_recovered = True
        self._shift_ns = found.clock_ns - clock_ns
        self._pool.count_busy(1)
        self._disk = found.runs
        self.count, self.content_bytes = found.runs.entries, found.runs.content_bytes
        self._pool.recovered_total += self.count

    def measure(self, now_ns: int) -> None:
        then_ns, *before = self._measured
        passed_s = (now_ns - then_ns) / _NS
        if passed_s >= 1:
            totals = (self._in_total, self._out_total, self._in_bytes, self._out_bytes)
            step = 1 - (1 - _RATE_STEP) ** passed_s
            in_now, out_now, in_bytes, out_bytes = (
                rate + ((total - was) / passed_s - rate) * step
                for rate, total, was in zip(self._rates, totals, before, strict=True)
            )
            self._rates = (in_now, out_now, in_bytes, out_bytes)
            self._measured = (now_ns, *totals)
        self._retarget()
        if self._ahead_bytes < self._low_bytes:
            self._refill()

    def _retarget(self) -> None:
        pool = self._pool
        _, _, in_bytes, out_bytes = self._rates
        wanted_bytes = int(pool.target_s * (in_bytes + out_bytes))
        pool.wanted_bytes += wanted_bytes - self._wanted_bytes
        self._wanted_bytes = wanted_bytes
        if pool.wanted_bytes > pool.spill_bytes:
            wanted_bytes = wanted_bytes * pool.spill_bytes // pool.wanted_bytes
        self.target_bytes = max(wanted_bytes, 2 * pool.run_bytes)
        # Read ahead less than the target, so that ``shrink`` keeps these runs.
        max_bytes = max(self.target_bytes // 2, self.target_bytes - 2 * pool.run_bytes)
        self._want_ahead_bytes = min(max(int(out_bytes * _AHEAD_S), pool.run_bytes), max_bytes)
        self._low_bytes = min(max(int(out_bytes * _AHEAD_S / 2), pool.run_bytes // 4), self._want_ahead_bytes)

    def shrink(self, max_bytes: int) -> int:
        """Move up to about ``max_bytes`` from the end of the head to disk while the queue exceeds its memory target.

        Return the number of bytes moved.
        """
        self._retarget()
        excess_bytes = self.memory_bytes - self.target_bytes
        for run in self._tail:
            excess_bytes -= run.memory_bytes
        less_bytes = 0
        for index in range(len(self._head) - 1, -1, -1):
            run = self._head[index]
            if less_bytes >= min(excess_bytes, max_bytes) or run.pending == "read":
                break
            if index:
                # Below its target, the queue would read this run again immediately.
                if not run.single and less_bytes + run.memory_bytes > excess_bytes:
                    break
            elif not run.single or run.content is None or self._fetched:
                break
            less_bytes += run.memory_bytes
            run.demoted = True
            if run is self._open:
                self._open = None
            if run.extent is None and run.pending is None:
                self._write(run)
        self._settle_head()
        return less_bytes

    def seal_tail(self) -> None:
        run = self._open
        if run is not None and run.place is _Place.TAIL and run.body_bytes >= self._pool.run_bytes // 4:
            self._seal()

    def write_all(self) -> None:
        for run in (*self._head, *self._tail):
            if run.recoverable and run.extent is None and run.pending is None:
                if run is self._open:
                    self._open = None
                self._write(run)

    def written(self, run: Run, extent: Extent) -> None:
        run.pending = None
        if run.place is _Place.GONE:
            self._orders.release([(extent, run.written)])
            return
        run.extent = extent
        self._pool.spilled_total += run.entries
        while self._tail and self._tail[0].extent is not None:
            if not self._disk and self._ahead_bytes < self._want_ahead_bytes:
                self._to_head(self._tail.pop(0))
            else:
                self._disk.append(self._release_run(self._tail.pop(0)))
        self._settle_head()

    def was_read(self, run: Run, job: Read, reason: str) -> None:
        run.pending = None
        if run.place is _Place.GONE:
            return
        self._charge(run, -run.memory_bytes)
        data = job.data
        lost = run.entries - job.left
        was_index = run.data is not None
        if lost:
            self._lose(run, job)
        elif job.index_only:
            run.data = bytes(data[job.start : job.start + RECORD_BYTES])
            run.position = 0
        elif run.single:
            start = job.start + RECORD_BYTES
            run.data, run.content = bytes(data[job.start : start]), (memoryview(data)[start:],)
            run.position = 0
            if not was_index:
                self._pool.read_total += 1
        else:
            run.data, run.position = data, job.start
            self._pool.read_total += job.left
        if run.single:
            content_bytes = run.content_bytes if run.content is not None else 0
            self._charge(run, _OBJECT_BYTES + RECORD_BYTES + content_bytes)
        else:
            self._charge(run, _OBJECT_BYTES + len(run.data or b""))
        if run is self._head[0]:
            self._entry = None
        if not self.count:
            self._settle_first()
        try:
            if lost:
                self._report_lost(Lost(self, lost, tuple(job.lost_handles), reason))
        finally:
            if self._awaited and (not self.count or self._is_ready()):
                self._awaited = False
                self.ready(self)

    def _report_lost(self, lost: Lost) -> None:
        try:
            if self.on_lost is not None:
                self.on_lost(lost)
        finally:
            self._orders.report_lost(lost)

    def _is_ready(self) -> bool:
        if not self._settle_first():
            return False
        run = self._head[0]
        return not (self._fetched and run.pending == "read")

    def _lose(self, run: Run, job: Read) -> None:
        content_bytes = max(0, job.content_bytes)
        if run.single and not job.left and run.data is not None and not job.lost_handles and not self.is_recovered:
            entry = entry_at(run.data, run.position, whole=False)
            job.lost_handles = (entry.handle,) if entry.is_refusable else ()
        self.count -= run.entries - job.left
        self.content_bytes -= run.content_bytes - content_bytes
        if job.left:
            run.data, run.position = job.data, job.start
            body_bytes = len(job.data) - job.start
        else:
            run.data, run.position, run.content, body_bytes = b"", 0, None, 0
        self._pool.read_total += job.left
        self._ahead_bytes += body_bytes - run.body_bytes
        # An estimate is enough, because the run is already on disk.
        run.entries, run.body_bytes, run.content_bytes = job.left, body_bytes, content_bytes
        run.recoverable = min(run.recoverable, job.left)
        if not self.count:
            self._pool.count_busy(-1)

    def _charge(self, run: Run, change_bytes: int) -> None:
        run.memory_bytes += change_bytes
        self.memory_bytes += change_bytes
        self._pool.memory_bytes += change_bytes

    def _begin(self, *, single: bool = False) -> Run:
        pool = self._pool
        if not self.count:
            pool.count_busy(1)
        run = Run(self, self._runs, single=single)
        self._runs += 1
        self._charge(run, _OBJECT_BYTES)
        head, is_over = self._head, False
        if head:
            self._retarget()
            is_over = self.memory_bytes > self.target_bytes and pool.memory_bytes > pool.spill_bytes
            is_over |= head[-1].demoted
        if self._tail or self._disk or is_over:
            run.place = _Place.TAIL
            self._tail.append(run)
        else:
            head.append(run)
        return run

    def _seal(self) -> None:
        run, self._open = self._open, None
        if run is not None and run.place is _Place.TAIL:
            self._write(run)

    def _write(self, run: Run) -> None:
        run.pending = "write"
        self._orders.write(run)

    def _read(self, run: Run, *, index_only: bool = False) -> None:
        run.pending = "read"
        assert run.extent is not None  # noqa: S101 - only runs on disk are read
        self._charge(run, RECORD_BYTES if index_only else run.extent.length)
        self._orders.read(run, index_only=index_only)

    def _settle_first(self) -> bool:
        """Return whether at least the first entry's index is in memory. If not, start reading it."""
        head = self._head
        while head:
            run = head[0]
            if run.data is None:
                return False
            if run.entries:
                return True
            self._finish_first()
        self._refill()
        return bool(self._head) and self._head[0].data is not None

    def _finish_first(self) -> None:
        run = self._head.pop(0)
        self._fetched = False
        if run is self._open:
            self._open = None
        extents: list[tuple[Extent, int]] = []
        self._drop(run, extents)
        if extents:
            self._orders.release(extents)

    def _drop(self, run: Run, extents: list[tuple[Extent, int]]) -> None:
        run.place = _Place.GONE
        self._charge(run, -run.memory_bytes)
        if run.extent is not None:
            extents.append((run.extent, run.written))
        elif run.pending == "write":
            self._orders.cancel(run)

    def _release_run(self, run: Run) -> RunOnDisk:
        assert run.extent is not None  # noqa: S101 - the run has been written
        run.place = _Place.GONE
        self._charge(run, -run.memory_bytes)
        return RunOnDisk(run.extent, run.entries, run.written, run.content_bytes, run.single)

    def _to_head(self, run: Run) -> None:
        run.place = _Place.HEAD
        self._head.append(run)
        self._ahead_bytes += run.body_bytes

    def _refill(self) -> None:
        self._retarget()
        while not self._head or self._ahead_bytes < self._want_ahead_bytes:
            if self._disk:
                on_disk = self._disk.first()
                length = on_disk.extent.length
                is_much = on_disk.is_single and self._ahead_bytes + length > self._want_ahead_bytes
                if is_much and self._head:
                    return
                self._disk.popleft()
                run = Run(self, -1, single=on_disk.is_single)
                run.extent, run.entries, run.content_bytes = on_disk.extent, on_disk.entries, on_disk.content_bytes
                run.recoverable = run.written = on_disk.recoverable
                run.body_bytes = run.entries * RECORD_BYTES + run.content_bytes
                self._charge(run, _OBJECT_BYTES)
                self._to_head(run)
                self._read(run, index_only=is_much)
            elif self._tail:
                self._to_head(self._tail.pop(0))
            else:
                return

    def _settle_head(self) -> None:
        head = self._head
        while len(head) > 1 and head[-1].demoted and head[-1].extent is not None and head[-1].pending is None:
            run = head.pop()
            self._ahead_bytes -= run.body_bytes
            self._disk.appendleft(self._release_run(run))
        if head:
            run = head[0]
            if run.demoted and run.single and run.extent is not None and run.pending is None and not self._fetched:
                if run.content is not None:
                    self._charge(run, -run.content_bytes)
                run.content = self._entry = None
