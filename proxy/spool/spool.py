"""The spool. Its queues share a memory limit, a store and the handling of disk failures.

The spool runs on the event loop. Only ``Spool.open`` and ``Spool.close`` block.

- Call ``Spool.open`` on a thread, then ``tick`` about ten times a second.
- ``append`` entries to a queue. Ask the limiter about the queue's ``head``. When the entry may pass, ``fetch`` its
  content and ``pop`` it. If the head or its content is not in memory, wait for ``ready``.
- While memory is short or the disk is slow, the stages of all queues are stalled, so that Sluice stops reading from
  senders. ``append`` still works.
- While writes fail, new entries stay in memory, in order.
- Refuse lost entries by their handles. If the handles of some refusable entries are unknown, close the channel, so that
  its client republishes unconfirmed messages.
- Set ``ready`` and ``on_lost`` on recovered queues.
- At shutdown, call ``keep`` before closing any queue. Then call ``Spool.close``.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from errno import EIO, ENOENT, ESTALE
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from proxy.flow.credit import STORE_CREDIT, Credit, Stage
from proxy.spool.figures import SpoolState
from proxy.spool.queue import Lost, Pool, Queue, Run, States
from proxy.spool.segments import Extent, Found
from proxy.spool.store import Disk, Job, Read, Release, Store, Sync, Write

_NS: Final = 1_000_000_000
_RETRY_NS: Final = _NS
_MEASURED_IN_TICK: Final = 256
# Errors that mean that data is lost. Others may be temporary.
_LOST_ERRORS: Final = {ENOENT, EIO, ESTALE}


class QueueName(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a queue on disk, so that its entries can be replayed after a crash."""

    listener: str
    kind: str
    name: str
    sender: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, name: bytes) -> "QueueName":
        """Decode a name. An invalid name results in empty fields."""
        try:
            return msgspec.msgpack.decode(name, type=cls)
        except msgspec.DecodeError:
            return cls("", "", "")


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    memory_bytes: int = 32 * 1024 * 1024
    max_disk_bytes: int = 16 * 1024 * 1024 * 1024
    min_free_bytes: int = 1024 * 1024 * 1024
    # Age at which an entry is too old, and at which an unclaimed recovered queue is dropped. 0 for no maximum.
    max_age_s: float = 0
    target_s: float = 2  # seconds of traffic that each queue may keep in memory


class Hooks(NamedTuple):
    """Callbacks that run on the event loop."""

    flow: Callable[[bool], object]  # called with True to stop appending, and with False to resume
    alarm: Callable[[str | None], object]  # called with the reason when the disk fails, and None when it works again
    lost: Callable[[Lost], object]
    busy: Callable[[], object] = lambda: None  # called when ``tick`` is needed again
    # Called with the numbers of queues and entries dropped because no client claimed them for ``max_age_s``.
    unclaimed: Callable[[int, int], object] = lambda _queues, _entries: None


class _Left(NamedTuple):
    name: QueueName
    since_ns: int


class Recovered(NamedTuple):
    queues: list[Queue]  # queues to replay. The earlier process may have sent some of their entries
    entries: int
    dropped: int  # entries that are not recoverable, or all entries if they were not adopted
    lost: int
    damaged: list[str]
    is_full: bool = False  # whether the disk is too full for the ledger, so the next start may report losses again


class Spool:
    """All queues and their store. Created by ``open``.

    Args:
        clock_ns: number to add to ``now_ns`` to get nanoseconds since 1970.
        credit: credit that the store grants to each queue's stage.
        time_ns: clock for the stages. Defaults to the time of the last ``tick``.
    """

    def __init__(
        self,
        settings: SpoolSettings,
        hooks: Hooks,
        disk: Disk,
        *,
        now_ns: int,
        clock_ns: int = 0,
        credit: Credit = STORE_CREDIT,
        time_ns: Callable[[], int] | None = None,
    ) -> None:
        self.settings, self._hooks = settings, hooks
        self._now_ns, self._clock_ns = now_ns, clock_ns
        self._time_ns = time_ns or self._last_tick_ns
        self.store = Stage("store", "spool", credit)
        self._pool = Pool(settings.memory_bytes, round(settings.max_age_s * _NS), settings.target_s)
        self._queues: dict[int, Queue] = {}
        self._next = 0
        self._measured: deque[Queue] = deque()
        self._jobs: dict[Write | Read, Run] = {}
        self._writes: dict[Run, Write] = {}
        self._syncs: dict[Sync, Callable[[bool], object]] = {}
        self._writing_bytes = 0
        # Runs to write when the disk works again.
        self._waiting: deque[Run] = deque()
        self._unread: list[tuple[Run, bool]] = []
        # Why writes fail, why reads fail, and the last reported reason.
        self._alarm: str | None = None
        self._read_alarm: str | None = None
        self._told: str | None = None
        self._retry_ns = 0
        self._probe: Run | None = None
        # Unclaimed queues, oldest first.
        self._recovered: dict[Queue, _Left] = {}
        self._stopped = self._is_persistent = False
        self._stops_total = self._lost_total = 0
        self._disk = disk
        disk.done = self.completed

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: SpoolSettings,
        hooks: Hooks,
        post: Callable[[Callable[[], object]], object],
        *,
        now_ns: int,
        clock_ns: int,
        recover: bool,
        credit: Credit = STORE_CREDIT,
        time_ns: Callable[[], int] | None = None,
    ) -> tuple["Spool", Recovered]:
        """Open a folder. If ``recover``, adopt an earlier process's entries, otherwise drop them. Blocks.

        ``post`` is described in ``Store``.

        Raises:
            BlockingIOError: another process uses the folder.
            OSError: the folder cannot be used.
        """
        store = Store(folder, max_bytes=settings.max_disk_bytes, min_free_bytes=settings.min_free_bytes, post=post)
        try:
            spool = cls(settings, hooks, store, now_ns=now_ns, clock_ns=clock_ns, credit=credit, time_ns=time_ns)
            recovered = spool._adopt(store.recover(adopt=recover))
        except BaseException:
            store.close()
            raise
        store.start()
        return spool, recovered

    def _adopt(self, found: Found) -> Recovered:
        queues = []
        for number, its in found.queues.items():
            queue = self._make(number, its.name, _ignore)
            queue.adopt(its, self._clock_ns)
            queues.append(queue)
        self._next = max([*found.queues, -1]) + 1
        self._recovered = {queue: _Left(QueueName.read(queue.name), self._now_ns) for queue in queues}
        entries = sum(queue.count for queue in queues)
        dropped = found.dropped + found.recoverable - entries
        self._pool.recovered_total += dropped
        self._pool.dropped_total += dropped
        return Recovered(queues, entries, dropped, found.lost, found.damaged, found.is_full)

    def queue(
        self,
        name: bytes,
        ready: Callable[[Queue], object],
        *,
        stage: Stage | None = None,
        lost: Callable[[Lost], object] | None = None,
    ) -> Queue:
        """Create a queue. The caller must close it.

        Args:
            name: identifies the queue when entries are replayed after a crash. It need not be unique.
            ready: called when the entry or content that ``head`` or ``fetch`` requested is in memory.
            stage: a stage used only by this queue. Close the queue before its stage.
            lost: called before ``Hooks.lost`` when entries cannot be read.

        Raises:
            ValueError: the name is too long.
        """
        queue = self._make(self._next, name, ready, stage)
        queue.on_lost = lost
        self._next += 1
        return queue

    def _make(self, number: int, name: bytes, ready: Callable[[Queue], object], stage: Stage | None = None) -> Queue:
        was_idle, now_ns = self.is_idle, self._time_ns()
        queue = Queue(number, name, self._pool, self, ready=ready, stage=stage, now_ns=now_ns)
        self._queues[number] = queue
        if stage is not None and self._stopped:
            stage.stall(self.store, now_ns, on=True)
        if was_idle:
            self._hooks.busy()
        return queue

    @property
    def is_idle(self) -> bool:
        return not (self._queues or self._jobs or self._stopped or self._alarm or self._read_alarm)

    @property
    def is_stopped(self) -> bool:
        """Whether Sluice must pause reading messages for the spool."""
        return self._stopped

    def queues(self) -> list[Queue]:
        return list(self._queues.values())

    def has_recovered(self, wants: Callable[[QueueName], bool]) -> bool:
        return any(wants(left.name) for left in self._recovered.values())

    def take_recovered(self, wants: Callable[[QueueName], bool]) -> list[Queue]:
        """Remove and return the recovered queues that ``wants`` accepts. The caller must give back unfinished ones."""
        taken = [queue for queue, left in self._recovered.items() if wants(left.name)]
        for queue in taken:
            del self._recovered[queue]
        return taken

    def give_back(self, queue: Queue) -> None:
        queue.ready, queue.on_lost = _ignore, None
        self._recovered[queue] = _Left(QueueName.read(queue.name), self._time_ns())

    def tick(self, now_ns: int) -> None:
        self._now_ns = now_ns
        for _ in range(min(_MEASURED_IN_TICK, len(self._queues))):
            if not self._measured:
                self._measured.extend(self._queues.values())
            queue = self._measured.popleft()
            if not queue.is_closed:
                queue.measure(now_ns)
                excess_bytes = self._excess_bytes()
                if excess_bytes > 0:
                    queue.shrink(excess_bytes)
        if now_ns >= self._retry_ns:
            if self._alarm is not None:
                self._try_again()
            unread = [each for each in self._unread if each[0].is_wanted]
            if self._unread and not unread:
                self._read_alarm = None
                self._report_alarm()
            self._unread = []
            for run, index_only in unread:
                self.read(run, index_only=index_only)
        if self._stopped:
            self._relieve()
        self._adjust_flow()
        if self._recovered:
            self._drop_unclaimed()

    def _drop_unclaimed(self) -> None:
        max_age_ns = self._pool.max_age_ns
        if not max_age_ns:
            return
        queues = entries = 0
        for queue, left in list(self._recovered.items()):
            if self._now_ns - left.since_ns < max_age_ns:
                break
            del self._recovered[queue]
            queues += 1
            entries += queue.close()
        if queues:
            self._hooks.unclaimed(queues, entries)

    def sync(self, done: Callable[[bool], object]) -> None:
        """Write and sync all recoverable entries, then call ``done`` with True if that succeeded."""
        for queue in self._queues.values():
            queue.write_all()
        job = Sync()
        self._syncs[job] = done
        self._disk.submit(job)

    def keep(self) -> None:
        """Write and sync all recoverable entries. From now on, they stay on disk when their queues are closed."""
        self.sync(lambda _: None)
        self._is_persistent = True

    @property
    def is_persistent(self) -> bool:
        return self._is_persistent

    def close(self) -> None:
        self._disk.close()

    @property
    def memory_bytes(self) -> int:
        return self._pool.memory_bytes

    def figures(self) -> SpoolState:
        """Return the spool's state, except for fields that require a pass over all queues."""
        pool = self._pool
        return SpoolState(
            queues=len(self._queues),
            memory_bytes=pool.memory_bytes,
            memory_limit_bytes=pool.bound_bytes,
            disk_bytes=self._disk.used_bytes if isinstance(self._disk, Store) else 0,
            disk_limit_bytes=self.settings.max_disk_bytes,
            writing_bytes=self._writing_bytes,
            stopped=self._stopped,
            stops_total=self._stops_total,
            alarm=self._alarm or self._read_alarm or "",
            in_total=pool.in_total,
            out_total=pool.out_total,
            written_total=pool.spilled_total,
            read_total=pool.read_total,
            lost_total=self._lost_total,
            dropped_total=pool.dropped_total,
            recovered_total=pool.recovered_total,
            expired_total=pool.ended_total["expired"],
            too_old_total=pool.ended_total["too old"],
        )

    def states(self) -> States:
        states = States()
        for queue in self._queues.values():
            states.add(queue.states())
        return states

    def write(self, run: Run) -> None:
        """Write a run. When it is on disk, call ``Queue.written``, unless the write was cancelled."""
        stage = run.queue.stage
        if stage is not None:
            run.sent = run.entries
            stage.send(self.store, run.sent, self._time_ns())
        if self._alarm is None:
            self._submit(run)
        else:
            self._waiting.append(run)

    def cancel(self, run: Run) -> None:
        write = self._writes.get(run)
        if write is not None and not (self._is_persistent and run.recoverable):
            write.cancelled = True

    def read(self, run: Run, *, index_only: bool) -> None:
        job = run.read(index_only=index_only)
        self._jobs[job] = run
        self._disk.submit(job)

    def release(self, extents: Iterable[tuple[Extent, int]]) -> None:
        if self._is_persistent:
            extents = [each for each in extents if not each[1]]
        self._disk.submit(Release(extents))

    def press(self) -> None:
        if not self._stopped:
            self._relieve()
            self._adjust_flow()

    def relieve(self) -> None:
        if self._stopped:
            self._adjust_flow()

    def report_lost(self, lost: Lost) -> None:
        self._lost_total += lost.entries
        self._hooks.lost(lost)

    def gone(self, queue: Queue) -> None:
        self._queues.pop(queue.number, None)
        if queue.stage is not None:
            self.store.part(queue.stage, self._time_ns())

    def completed(self, jobs: Iterable[Job]) -> None:
        """Handle finished jobs. If a callback raises, handle the other jobs before raising its exception."""
        faults: list[Exception] = []
        for job in jobs:
            try:
                self._take(job)
            except Exception as fault:  # noqa: BLE001 - a callback's error must not affect other jobs
                faults.append(fault)
        self._adjust_flow()
        if faults:
            raise faults[0]

    def _take(self, job: Job) -> None:
        if isinstance(job, Write):
            self._take_write(job)
        elif isinstance(job, Read):
            self._take_read(job)
        elif isinstance(job, Sync):
            done = self._syncs.pop(job)
            done(job.error is None and self._alarm is None)

    def _submit(self, run: Run) -> None:
        job = run.write(self._clock_ns)
        self._jobs[job] = run
        self._writes[run] = job
        self._writing_bytes += job.header.body_bytes
        self._disk.submit(job)
        if not self._stopped and self._writing_bytes > self._pool.bound_bytes // 4:
            self._adjust_flow()

    def _take_write(self, job: Write) -> None:
        run = self._jobs.pop(job)
        del self._writes[run]
        self._writing_bytes -= job.header.body_bytes
        was_probe = run is self._probe
        if was_probe:
            self._probe = None
        if job.error is None or not run.is_wanted:
            self._acknowledge(run)
        if job.extent is not None:
            run.queue.written(run, job.extent)
            if was_probe:
                self._set_alarm(None)
        elif job.error is not None:
            if run.is_wanted:
                self._waiting.append(run)
            self._set_alarm(str(job.error))

    def _take_read(self, job: Read) -> None:
        run = self._jobs.pop(job)
        if job.error is not None and job.error.errno not in _LOST_ERRORS and run.is_wanted:
            self._unread.append((run, job.index_only))
            self._retry_ns = self._now_ns + _RETRY_NS
            if not self._read_alarm:
                self._read_alarm = str(job.error)
                self._report_alarm()
            return
        if self._read_alarm and not self._unread:
            self._read_alarm = None
            self._report_alarm()
        if job.error is not None:
            job.left, job.content_bytes, job.lost_handles = 0, 0, ()
        run.queue.was_read(run, job, str(job.error or "damaged on disk"))

    def _try_again(self) -> None:
        while self._waiting and self._probe is None:
            run = self._waiting.popleft()
            if run.is_wanted:
                self._probe = run
                self._retry_ns = self._now_ns + _RETRY_NS
                self._submit(run)
            else:
                self._acknowledge(run)
        if self._probe is None:
            # Nothing is left to retry. The next write tests the disk.
            self._set_alarm(None)

    def _set_alarm(self, reason: str | None) -> None:
        was, self._alarm = self._alarm, reason
        if reason is not None:
            self._retry_ns = max(self._retry_ns, self._now_ns + _RETRY_NS)
        elif was is not None:
            waiting, self._waiting = self._waiting, deque()
            for run in waiting:
                if run.is_wanted:
                    self._submit(run)
                else:
                    self._acknowledge(run)
        self._report_alarm()

    def _report_alarm(self) -> None:
        reason = self._alarm or self._read_alarm
        if (reason is None) is not (self._told is None):
            self._told = reason
            self._hooks.alarm(reason)

    def _relieve(self) -> None:
        for queue in list(self._queues.values()):
            excess_bytes = self._excess_bytes()
            if excess_bytes <= 0:
                return
            queue.shrink(excess_bytes)
        if self._excess_bytes() > self._pool.spill_bytes // 2:
            # If there are very many queues, even their minimum targets exceed the limit.
            for queue in list(self._queues.values()):
                queue.seal_tail()

    def _excess_bytes(self) -> int:
        pool = self._pool
        return pool.memory_bytes - pool.spill_bytes - self._writing_bytes

    def _adjust_flow(self) -> None:
        pool, bound_bytes = self._pool, self._pool.bound_bytes
        if self._stopped:
            stops = pool.memory_bytes > bound_bytes * 3 // 4 or self._writing_bytes > bound_bytes // 8
        else:
            stops = pool.memory_bytes > bound_bytes or self._writing_bytes > bound_bytes // 4
        if stops != self._stopped:
            self._stopped = stops
            self._stops_total += stops
            now_ns = self._time_ns()
            for queue in list(self._queues.values()):
                if queue.stage is not None:
                    queue.stage.stall(self.store, now_ns, on=stops)
            self._hooks.flow(stops)

    def _acknowledge(self, run: Run) -> None:
        if run.sent and run.queue.stage is not None:
            self.store.ack(run.queue.stage, run.sent, self._time_ns())
            run.sent = 0

    def _last_tick_ns(self) -> int:
        return self._now_ns


def _ignore(_: Queue) -> None: ...
