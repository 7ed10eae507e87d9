"""All queues of the spool together: they share the memory, one store, and what happens when the disk fails.

This is what the data path uses. All of it is called in the event loop, does no I/O itself and never blocks, but for
``Spool.open`` and ``Spool.close``. How to use it:

- ``Spool.open`` in a thread, once; then ``tick`` ten times a second or so.
- ``spool.queue(name, ...)`` for each channel or connection and resource. ``append`` what is to wait; ``head`` is what
  to ask the limiter about; ``pop`` it when it may go. Where ``head`` returns None and the queue is not empty,
  or an entry has no content after ``fetch``, ``ready`` says when to go on. An entry that is refused, or has expired,
  needs no content.
- Credit: the spool has a stage, ``store``. What a queue gives to be written, its own stage has sent there; when that
  is on disk, it is acked. While memory or disk is short the stages of all queues are stalled by it. So whoever sends to
  these stages, and looks for its credit, reads no more. What still comes is taken nevertheless: ``append`` refuses
  nothing. ``flow`` tells the same.
- ``alarm(reason)`` says that the disk takes no more, ``alarm(None)`` that it does again. Meanwhile all stays in
  memory, in its order, and flow is stopped when that is full.
- ``lost`` tells of entries that were damaged on disk. Its handles are of refusable ones only: refuse these. If there
  are more entries than handles, nobody can say which of the others were refusable, unless none in the queue is: close
  the channel, then its client sends again what was not confirmed.
- ``fetch`` has a content read however large it is: ask for it when the entry may go, not before.
- Queues that ``Spool.open`` has recovered are there to be taken from, as all others; give them your own ``ready`` and
  ``on_lost``. What nobody takes for ``most_age_s`` is dropped by ``tick``.
- Before an orderly end call ``keep``, while all queues are still there: what is recoverable is written, and stays on
  disk though its queue is closed. Then ``Spool.close``. ``sync`` does the former only.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from errno import EIO, ENOENT, ESTALE
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from proxy.flow.credit import STORE_CREDIT, Credit, Stage
from proxy.spool.queue import Ending, Lost, Pool, Queue, Run, States
from proxy.spool.segments import Extent, Found
from proxy.spool.store import Disk, Job, Read, Release, Store, Sync, Write

_NS: Final = 1_000_000_000
#: How often to try again whether the disk takes something.
_RETRY_NS: Final = _NS
#: So many queues are measured in a tick, so that it takes no longer with more of them.
_MEASURED_IN_TICK: Final = 256
#: What cannot be read with one of these is gone; all else may be well in a moment.
_LOST_ERRORS: Final = {ENOENT, EIO, ESTALE}


class QueueName(msgspec.Struct, frozen=True, array_like=True):
    """What is written beside the entries of a queue, so that they can be replayed after a crash.

    Attributes:
        listener: through which they came.
        kind: of the resource that they are for; the first one, if they are for several.
        name: its name.
        sender: whose they are, in the words of the protocol: only a connection of the same can replay them.
    """

    listener: str
    kind: str
    name: str
    sender: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """Return it as ``Spool.queue`` takes it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, name: bytes) -> "QueueName":
        """Return what was encoded; empty fields if it was something else."""
        try:
            return msgspec.msgpack.decode(name, type=cls)
        except msgspec.DecodeError:
            return cls("", "", "")


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Bounds of the spool.

    Attributes:
        memory_bytes: for what all queues have in memory. From half of it on, queues write what is over their target.
        max_disk_bytes: for all files together.
        least_free_bytes: of the file system, left to others.
        most_age_s: from which age on an entry is too old, as ``Queue.ending`` says; 0 for none. What an earlier process
            left is dropped when nobody has taken it for so long.
        target_s: a queue's target is so many seconds' worth of what goes in and out.
    """

    memory_bytes: int = 32 * 1024 * 1024
    max_disk_bytes: int = 16 * 1024 * 1024 * 1024
    least_free_bytes: int = 1024 * 1024 * 1024
    most_age_s: float = 0
    target_s: float = 2


class Hooks(NamedTuple):
    """What the spool calls, in the event loop.

    Attributes:
        flow: with True when it should be given no more for now, with False when it may again.
        alarm: with the reason when the disk fails, with None when it works again.
        lost: with entries that cannot be read.
        busy: when ``is_idle`` is over, so that ``tick`` is to be called again.
        unclaimed: with the number of queues of an earlier process, and of their entries, that were dropped since nobody
            has taken them for ``most_age_s``.
    """

    flow: Callable[[bool], object]
    alarm: Callable[[str | None], object]
    lost: Callable[[Lost], object]
    busy: Callable[[], object] = lambda: None
    unclaimed: Callable[[int, int], object] = lambda _queues, _entries: None


class _Left(NamedTuple):
    """Of a queue that an earlier process left: its name, and since when it waits for somebody to replay it."""

    name: QueueName
    since_ns: int


class Recovered(NamedTuple):
    """What an earlier process left.

    Attributes:
        queues: one for each of its queues with something to replay. Their entries come with ``head`` and ``pop`` as
            others do, and may have been sent on already. They lie where they lay, and are not written anew.
        entries: how many there are to replay.
        dropped: how many were found that nobody wants to be replayed, or that were not to be recovered.
        lost: how many recoverable ones were on disk and are damaged or missing. What was in memory only, or just being
            written when the process was killed, nobody knows.
        damaged: names of the files that are damaged or missing.
        is_full: the disk was too full to write down what is left. Until that is done, a next start may tell of entries
            as lost that were told of now.
    """

    queues: list[Queue]
    entries: int
    dropped: int
    lost: int
    damaged: list[str]
    is_full: bool = False


@dataclass(slots=True)
class SpoolFigures:
    """Figures of all queues together.

    Attributes:
        queues: how many there are.
        states: where their entries are.
        memory_bytes: what they have in memory.
        memory_limit_bytes: what they may have.
        writing_bytes: what has been given to the store, and is not on disk yet.
        is_stopped: flow is stopped.
        stops_total: how often it was.
        alarm: why the disk takes no more, if so.
        in_total: entries ever put in; likewise the others, also of queues that are closed. With those recovered they
            are as many as were taken out, lost or dropped, and those that are there.
        out_total: taken out.
        spilled_total: written to disk.
        read_total: read from there.
        lost_total: could not be read.
        dropped_total: were in a queue that was purged or closed, or left by an earlier process and not to be sent.
        recovered_total: were left by an earlier process.
        ended_total: taken out with an ending, by which one.
        disk_bytes: what the store uses of the disk, about.
    """

    queues: int
    states: States
    memory_bytes: int
    memory_limit_bytes: int
    writing_bytes: int
    is_stopped: bool
    stops_total: int
    alarm: str | None
    in_total: int
    out_total: int
    spilled_total: int
    read_total: int
    lost_total: int
    dropped_total: int
    recovered_total: int
    ended_total: dict[Ending, int]
    disk_bytes: int


class Spool:
    """All queues. ``Spool.open`` makes one on a disk.

    Args:
        settings: bounds.
        hooks: whom it tells what.
        make_disk: makes the store, which calls what it is given with jobs that are done.
        now_ns: the time, by the clock that all times here are of.
        clock_ns: what to add to such a time to get nanoseconds since 1970.
        credit: what the store gives to the stages of queues.
        time_ns: reads that clock; None makes the time of the last ``tick`` do for stages.

    Attributes:
        settings: as given.
        store: the stage of the disk.
    """

    def __init__(
        self,
        settings: SpoolSettings,
        hooks: Hooks,
        make_disk: Callable[[Callable[[Sequence[Job]], None]], Disk],
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
        self._pool = Pool(settings.memory_bytes)
        self._queues: dict[int, Queue] = {}
        self._next = 0
        #: Those that are to be measured next.
        self._measured: deque[Queue] = deque()
        self._jobs: dict[Write | Read, Run] = {}
        self._writes: dict[Run, Write] = {}
        self._syncs: dict[Sync, Callable[[bool], object]] = {}
        self._writing_bytes = 0
        #: What is to be written when the disk works again, and when to try.
        self._waiting: deque[Run] = deque()
        self._unread: list[tuple[Run, bool]] = []
        #: Why nothing can be written, why something cannot be read yet, and what was told of it.
        self._alarm: str | None = None
        self._read_alarm: str | None = None
        self._told: str | None = None
        self._retry_ns = 0
        #: What the disk is tried with after it has failed.
        self._probe: Run | None = None
        #: Those of an earlier process that nobody replays yet, first what has waited longest.
        self._recovered: dict[Queue, _Left] = {}
        self._stopped = self._keeps = False
        self._stops_total = self._lost_total = 0
        self._disk = make_disk(self.completed)

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
        """Make a spool in a folder, and take over what an earlier process left there. Blocks: it reads all of it.

        Args:
            folder: made if it is not there.
            settings: bounds.
            hooks: whom it tells what.
            post: calls in the event loop what it is given; called in another thread. ``TrioToken.run_sync_soon``.
            now_ns: the time.
            clock_ns: what to add to it to get nanoseconds since 1970.
            recover: entries that are recoverable are to be replayed; if not, they are counted and dropped.
            credit: what the store gives to the stages of queues.
            time_ns: reads the clock, as said above.

        Raises:
            BlockingIOError: another process uses the folder.
            OSError: it cannot be used.
        """
        store: Store | None = None

        def make(done: Callable[[Sequence[Job]], None]) -> Store:
            nonlocal store
            store = Store(
                folder,
                most_bytes=settings.max_disk_bytes,
                least_free_bytes=settings.least_free_bytes,
                post=post,
                done=done,
            )
            return store

        spool = cls(settings, hooks, make, now_ns=now_ns, clock_ns=clock_ns, credit=credit, time_ns=time_ns)
        assert store is not None  # noqa: S101 - just made
        try:
            found = store.recover(adopt=recover)
            recovered = spool._adopt(found)  # its own
        except BaseException:
            store.close()
            raise
        store.start()
        return spool, recovered

    def _adopt(self, found: Found) -> Recovered:
        queues = []
        for number, its in found.queues.items():
            queue = self._make(number, its.name, _nobody)
            queue.adopt(its, self._clock_ns)
            queues.append(queue)
        self._next = max([*found.queues, -1]) + 1
        self._recovered = {queue: _Left(QueueName.read(queue.name), self._now_ns) for queue in queues}
        entries = sum(queue.count for queue in queues)
        dropped = found.dropped + found.recoverable - entries
        self._pool.recovered_total += dropped
        self._pool.dropped_total += dropped
        return Recovered(queues, entries, dropped, found.lost, found.damaged, found.is_full)

    # --- What the caller does ---------------------------------------------------------------------

    def queue(
        self,
        name: bytes,
        ready: Callable[[Queue], object],
        *,
        stage: Stage | None = None,
        lost: Callable[[Lost], object] | None = None,
    ) -> Queue:
        """Make a queue; close it when it is not needed any more.

        Args:
            name: what is found again after a crash; it need not be its own.
            ready: called when it is worth to ask again for the head.
            stage: the resource that it is the queue of, and of no other queue: it sends to the store. Close it after
                the queue.
            lost: called with entries of it that cannot be read, before ``Hooks.lost`` is.

        Raises:
            ValueError: the name is too long.
        """
        queue = self._make(self._next, name, ready, stage)
        queue.on_lost = lost
        self._next += 1
        return queue

    def _make(self, number: int, name: bytes, ready: Callable[[Queue], object], stage: Stage | None = None) -> Queue:
        was_idle, now_ns = self.is_idle, self._time_ns()
        queue = Queue(
            number,
            name,
            self._pool,
            self,
            ready=ready,
            lost=self._tell_lost,
            stage=stage,
            most_age_ns=round(self.settings.most_age_s * _NS),
            target_s=self.settings.target_s,
            now_ns=now_ns,
        )
        self._queues[number] = queue
        if stage is not None and self._stopped:
            stage.stall(self.store, now_ns, on=True)
        if was_idle:
            self._hooks.busy()
        return queue

    @property
    def is_idle(self) -> bool:
        """Say whether there is nothing to do in ``tick``: no queue, and nothing to be tried again."""
        return not (self._queues or self._jobs or self._stopped or self._alarm or self._read_alarm)

    @property
    def is_stopped(self) -> bool:
        """Say whether flow is stopped: nothing should be read that would have to be put into a queue."""
        return self._stopped

    def queues(self) -> list[Queue]:
        """Return all queues of now, those of an earlier process among them."""
        return list(self._queues.values())

    def has_recovered(self, wants: Callable[[QueueName], bool]) -> bool:
        """Say whether ``take_recovered`` would hand out something now."""
        return any(wants(left.name) for left in self._recovered.values())

    def take_recovered(self, wants: Callable[[QueueName], bool]) -> list[Queue]:
        """Hand out queues of an earlier process, each to one taker, which gives back what it cannot replay."""
        taken = [queue for queue, left in self._recovered.items() if wants(left.name)]
        for queue in taken:
            del self._recovered[queue]
        return taken

    def give_back(self, queue: Queue) -> None:
        """Let another one replay what is left of a queue of an earlier process."""
        queue.ready, queue.on_lost = _nobody, None
        self._recovered[queue] = _Left(QueueName.read(queue.name), self._time_ns())

    def tick(self, now_ns: int) -> None:
        """Measure rates, put on disk what memory is short of, and try again what has failed."""
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
                # Nobody wants any more what could not be read.
                self._read_alarm = None
                self._tell_alarm()
            self._unread = []
            for run, index_only in unread:
                self.read(run, index_only=index_only)
        if self._stopped:
            self._relieve()
        self._adjust_flow()
        if self._recovered:
            self._drop_unclaimed()

    def _drop_unclaimed(self) -> None:
        """Drop what an earlier process left and nobody has taken for so long that all of it is too old."""
        most_age_ns = round(self.settings.most_age_s * _NS)
        if not most_age_ns:
            return
        queues = entries = 0
        for queue, left in list(self._recovered.items()):
            if self._now_ns - left.since_ns < most_age_ns:
                break
            del self._recovered[queue]
            queues += 1
            entries += queue.close()
        if queues:
            self._hooks.unclaimed(queues, entries)

    def sync(self, done: Callable[[bool], object]) -> None:
        """Have all recoverable entries written that are in memory, and everything that was written survive a crash.

        Args:
            done: called when that is so, with True, or with False if the disk fails.
        """
        for queue in self._queues.values():
            queue.write_all()
        job = Sync()
        self._syncs[job] = done
        self._disk.submit(job)

    def keep(self) -> None:
        """Have what is recoverable written, and leave it on disk from now on: its queues are about to be closed."""
        self.sync(lambda _: None)
        self._keeps = True

    @property
    def keeps(self) -> bool:
        """Whether what is recoverable stays on disk when its queue is closed."""
        return self._keeps

    def close(self) -> None:
        """End the store; what is on disk stays there for the next process. Blocks until what was given is written."""
        self._disk.close()

    @property
    def memory_bytes(self) -> int:
        """Return what all queues have in memory."""
        return self._pool.memory_bytes

    def figures(self, states: States | None = None) -> SpoolFigures:
        """Return figures of all queues together.

        Args:
            states: where their entries are; None asks each of them.
        """
        if states is None:
            states = States()
            for queue in self._queues.values():
                states.add(queue.figures().states)
        pool = self._pool
        return SpoolFigures(
            len(self._queues),
            states,
            pool.memory_bytes,
            pool.bound_bytes,
            self._writing_bytes,
            self._stopped,
            self._stops_total,
            self._alarm or self._read_alarm,
            pool.in_total,
            pool.out_total,
            pool.spilled_total,
            pool.read_total,
            self._lost_total,
            pool.dropped_total,
            pool.recovered_total,
            dict(pool.ended_total),
            self._disk.used_bytes if isinstance(self._disk, Store) else 0,
        )

    # --- What queues order ------------------------------------------------------------------------

    def write(self, run: Run) -> None:
        """Have a run written, now or when the disk works again."""
        stage = run.queue.stage
        if stage is not None:
            run.sent = run.entries
            stage.send(self.store, run.sent, self._time_ns())
        if self._alarm is None:
            self._submit(run)
        else:
            self._waiting.append(run)

    def cancel(self, run: Run) -> None:
        """Spare the disk a run, if it is not too late."""
        write = self._writes.get(run)
        if write is not None and not (self._keeps and run.recoverable):
            write.cancelled = True

    def read(self, run: Run, *, index_only: bool) -> None:
        """Have a run read."""
        job = run.read(index_only=index_only)
        self._jobs[job] = run
        self._disk.submit(job)

    def release(self, extents: Iterable[tuple[Extent, int]]) -> None:
        """Have runs deleted on disk."""
        if self._keeps:
            extents = [each for each in extents if not each[1]]
        self._disk.submit(Release(extents))

    def press(self) -> None:
        """Stop the flow, and make room."""
        if not self._stopped:
            self._relieve()
            self._adjust_flow()

    def ease(self) -> None:
        """Let the flow go on, if there is room."""
        if self._stopped:
            self._adjust_flow()

    def gone(self, queue: Queue) -> None:
        """Forget a queue."""
        self._queues.pop(queue.number, None)
        if queue.stage is not None:
            # What it still had under way is of no interest to anybody.
            self.store.part(queue.stage, self._time_ns())

    # --- What the store has done ------------------------------------------------------------------

    def completed(self, jobs: Iterable[Job]) -> None:
        """Take jobs that are done. Called in the event loop.

        Raises:
            Exception: one of those who are told has a fault, which is raised when all jobs are taken; of several faults
                the first.
        """
        faults: list[Exception] = []
        for job in jobs:
            try:
                self._take(job)
            except Exception as fault:  # noqa: BLE001 - whose it is, the other jobs are not
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
                self._tell_alarm()
            return
        if self._read_alarm and not self._unread:
            self._read_alarm = None
            self._tell_alarm()
        if job.error is not None:
            job.left, job.content_bytes, job.lost_handles = 0, 0, ()
        run.queue.was_read(run, job, str(job.error or "damaged on disk"))

    def _try_again(self) -> None:
        """Try with one run whether the disk takes something again."""
        while self._waiting and self._probe is None:
            run = self._waiting.popleft()
            if run.is_wanted:
                self._probe = run
                self._retry_ns = self._now_ns + _RETRY_NS
                self._submit(run)
            else:
                self._acknowledge(run)
        if self._probe is None:
            # Nothing that waited is still there: the next that comes will tell.
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
        self._tell_alarm()

    def _tell_alarm(self) -> None:
        reason = self._alarm or self._read_alarm
        # Whoever is told does not want to hear of every change of the reason.
        if (reason is None) is not (self._told is None):
            self._told = reason
            self._hooks.alarm(reason)

    def _relieve(self) -> None:
        """Have queues put on disk what is over their targets."""
        for queue in list(self._queues.values()):
            excess_bytes = self._excess_bytes()
            if excess_bytes <= 0:
                return
            queue.shrink(excess_bytes)
        if self._excess_bytes() > self._pool.spill_bytes // 2:
            # There are so many queues that what each has at least is too much.
            for queue in list(self._queues.values()):
                queue.seal_tail()

    def _excess_bytes(self) -> int:
        """Return what is in memory over what should be, and is not on its way to the disk."""
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

    def _tell_lost(self, lost: Lost) -> None:
        self._lost_total += lost.entries
        self._hooks.lost(lost)

    def _acknowledge(self, run: Run) -> None:
        """Take note that a run is written, or need not be."""
        if run.sent and run.queue.stage is not None:
            self.store.ack(run.queue.stage, run.sent, self._time_ns())
            run.sent = 0

    def _last_tick_ns(self) -> int:
        return self._now_ns


def _nobody(_: Queue) -> None:
    """Nobody waits for a queue until somebody says so."""
