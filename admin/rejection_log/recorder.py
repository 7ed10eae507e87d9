"""The task that writes the rejection log: each second it takes what the data path counted, and has it written.

Records are made on the event loop in short stretches; everything that may wait for a disk is on a thread. Whatever
goes wrong is counted and shown, and traffic goes on.
"""

import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import structlog
import trio

from admin.live.interface import LiveLimits
from admin.live.model import Change, StoreError
from admin.rejection_log import scratch
from admin.rejection_log.batch import Batch, Lines
from admin.rejection_log.composing import Composer, LimitsInForce, line_of
from admin.rejection_log.files import Bounds, LogFiles
from admin.rejection_log.folder import Folder
from admin.rejection_log.minute import Minute, minute_of
from admin.rejection_log.scratch import Notes
from admin.version import sluice_version
from limiter.rejections import TrafficSecond
from proxy.control import DataPath
from proxy.pace import Pace, turn

_log = structlog.get_logger(__name__)

#: The data path's clock and this one are the same, but read one after the other.
_AFTER_THE_SECOND_S: Final = 0.02
_FINISH_S: Final = 5.0
"""The end of the process waits at least so long for the disk."""
_SLOW_S: Final = 10.0
"""A disk that takes longer is worth a warning."""
_DAY_S: Final = 86_400
_RUN_BYTES: Final = 6


class Recorder:
    """Writes the rejection log of one process.

    Args:
        data_path: what it takes the traffic from.
        live: the limits in force.
        folder: where the log is kept.
        instance: name of this sidecar.
        bounds: how much is written.
        max_resources: told apart in a minute.
        problem: what was wrong with the folder when it was taken; None if nothing.
        wall_s: the wall clock, in seconds since 1970.

    Attributes:
        instance: as given.
        files: of this run.
        clock_steps: how often the wall clock was set.
        other_runs: runs of requests that were counted under ``_other``.
        up: it runs.
        grace_ends_s: the end of the process may wait for the disk until then, on trio's clock.
    """

    def __init__(
        self,
        data_path: DataPath,
        live: LiveLimits,
        folder: Folder,
        *,
        instance: str,
        bounds: Bounds,
        max_resources: int,
        problem: str | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.instance = instance
        self.clock_steps = 0
        self.other_runs = 0
        self.up = False
        self.grace_ends_s = -math.inf
        self.directory = folder.path
        run = secrets.token_hex(_RUN_BYTES)
        self.files = LogFiles(folder, instance, run, bounds)
        self.files.error = problem
        self._data_path = data_path
        self._live = live
        self._composer = Composer(instance, run)
        self._max_resources = max_resources
        self._wall_s = wall_s
        self._version = sluice_version()
        self._changes: deque[Change] = deque()
        self._last_change = 0
        self._recording = False
        self._taken_s = 0
        self._limits_day: int | None = None
        self._limits = LimitsInForce(live.rule_set)
        self._limits_version = -1
        self._bypassed: dict[str, int] = {}
        self._notes_lost = 0
        self._batch = Batch()
        self._minute = Minute(0, max_resources)
        self._notes: Notes | None = None

    @property
    def error(self) -> str | None:
        """Why nothing is written now; None if all is well."""
        waits_s = self.files.waits_s
        if waits_s > _SLOW_S:
            return f"{self.directory}: the disk has not answered for {waits_s:.0f} s"
        return self.files.error

    def warnings(self) -> list[str]:
        """Say what an operator ought to look at."""
        return [] if self.error is None else [f"rejection log is not written: {self.error}"]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled; can be begun again."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_changes)
            try:
                await self._begin()
                # To finish what a killed process left may take seconds; meanwhile the data path counts.
                await trio.to_thread.run_sync(self.files.prepare, abandon_on_cancel=True)
                self.up = True
                while True:
                    await trio.sleep(1 - self._wall_s() % 1 + _AFTER_THE_SECOND_S)
                    await self._step()
            finally:
                self.up = False

    async def finish(self) -> None:
        """Write what is left, for the end of the process, and finish the file; the disk has until the grace ends."""
        if not self._recording:
            return
        # To make the last records may take its time; what is bounded is the wait for the disk.
        with trio.CancelScope(shield=True):
            try:
                await self._compose(unfinished=True)
            except Exception as error:  # noqa: BLE001 - the process ends in order, whatever it was
                _log.exception("the last of the rejection log could not be made", error=repr(error))
        began_s = trio.current_time()
        with trio.CancelScope(shield=True, deadline=max(began_s + _FINISH_S, self.grace_ends_s)) as scope:
            try:
                await trio.to_thread.run_sync(self.files.write, abandon_on_cancel=True)
            except Exception as error:  # noqa: BLE001 - likewise
                _log.exception("the last of the rejection log could not be written", error=repr(error))
            await trio.to_thread.run_sync(self.files.close, abandon_on_cancel=True)
        if scope.cancelled_caught:
            waited_s = round(trio.current_time() - began_s, 1)
            _log.error("the last of the rejection log was not written: the disk does not answer", waited_s=waited_s)

    async def _follow_changes(self) -> None:
        """Take every change over; who follows many at once misses some, and they are in the audit trail."""
        async for change in self._live.changes():
            missed = change.id - self._last_change - 1 if self._last_change else 0
            if missed > 0:
                with suppress(StoreError):
                    found = await self._live.audit(before=change.id, limit=missed)
                    self._changes.extend(each for each in reversed(found) if each.id > self._last_change)
            self._last_change = change.id
            self._changes.append(change)

    async def _begin(self) -> None:
        """Begin to record."""
        now_s = int(self._wall_s())
        if not self._recording:
            self._bypassed = await self._bypassed_so_far()
            await self._data_path.take_traffic()
            self._recording = True
            self._taken_s = now_s
            self._new_minute(minute_of(now_s))
            self._look_at_limits()
            await self._add_limits(now_s, Pace(rests=True))

    async def _step(self, *, unfinished: bool = False) -> None:
        """Take what there is, make records of it, and have them written."""
        # What was taken is nowhere else: whoever ends the process waits for that.
        with trio.CancelScope(shield=True):
            await self._compose(unfinished=unfinished)
        await trio.to_thread.run_sync(self.files.write, abandon_on_cancel=True)

    async def _compose(self, *, unfinished: bool) -> None:
        """Take what there is, and make a batch of it."""
        seconds = await self._data_path.take_traffic(unfinished=unfinished)
        now_s = int(self._wall_s())
        await turn()
        pace = Pace(rests=not unfinished)
        self._look_at_limits()
        if self.files.notes_lost != self._notes_lost:
            self._notes_lost = self.files.notes_lost
            if self._notes is not None:
                self._notes.forget()
        for second in seconds:
            await self._add(second, pace)
        if unfinished:
            self._minute.cover(self._taken_s, now_s + 1)
            await self._end_minute(pace)
        else:
            self._minute.cover(self._taken_s, now_s)
            if minute_of(now_s) != self._minute.at_s:
                await self._end_minute(pace)
                self._new_minute(minute_of(now_s))
                self._minute.cover(self._taken_s, now_s)
        self._taken_s = now_s
        await self._add_limits(now_s, pace)
        self._add_changes()
        self._batch.scratch.add(self._commit())
        self.files.hand_in(self._batch)
        self._batch = Batch()

    def _look_at_limits(self) -> None:
        """See whether other limits are in force."""
        rules = self._live.rule_set
        if rules.version != self._limits_version or rules.has_hours:
            if rules.version != self._limits_version and self._notes is not None:
                self._notes.forget()
            self._limits = LimitsInForce(rules.at(datetime.fromtimestamp(self._wall_s(), UTC)))
            self._limits_version = rules.version

    async def _add(self, second: TrafficSecond, pace: Pace) -> None:
        at_s = second.at_s
        if second.stepped_s:
            self._clock_stepped(second.stepped_s)
        if minute_of(at_s) != self._minute.at_s:
            self._minute.cover(self._taken_s, at_s)
            await self._end_minute(pace)
            self._new_minute(minute_of(at_s))
        self._minute.cover(at_s, at_s + second.seconds)
        self._minute.other += second.other
        self.other_runs += second.other
        records, notes = self._batch.records, self._batch.scratch
        # Each is let go of as soon as it is written: to free thousands at once would take milliseconds.
        rejections, second.rejections = deque(second.rejections), ()
        while rejections:
            rejection = rejections.popleft()
            records.add(self._composer.rejection(at_s, rejection), "rejection")
            await pace.keep()
        assert self._notes is not None  # noqa: S101 - there is a minute
        resources, second.resources = deque(second.resources), ()
        while resources:
            traffic = resources.popleft()
            resource, clients = self._minute.add(at_s, traffic)
            notes.add(self._notes.second(at_s, resource, traffic, clients, self._limits))
            await pace.keep()

    def _new_minute(self, at_s: int) -> None:
        self._minute = Minute(at_s, self._max_resources)
        header = scratch.Header(
            scratch.VERSION,
            self.instance,
            self._composer.run,
            self._version,
            at_s,
            self._composer.n,
            self._max_resources,
        )
        self._notes = Notes(header)
        self._batch.begin = self._notes.header
        # What was noted of the minute before is in its records.
        self._batch.scratch = Lines()

    async def _end_minute(self, pace: Pace) -> None:
        """Make the records of the minute; the heartbeat last, as whoever reads it knows then that all are there."""
        minute, records = self._minute, self._batch.records
        for resource, traffic in minute.taken():
            records.add(self._composer.traffic(minute.at_s, resource, traffic, self._limits.of(resource)), "traffic")
            await pace.keep()
        if not minute.seconds:
            return
        snapshot = await self._data_path.snapshot(whole=False)
        bypassed = {f"{handler}/{reason}": count for (handler, reason), count in snapshot.bypassed.items()}
        since = {key: more for key, count in bypassed.items() if (more := count - self._bypassed.get(key, 0))}
        self._bypassed = bypassed
        line = self._composer.heartbeat(
            minute,
            version=self._version,
            limiting=self._live.rule_set.enabled,
            connections=sum(listener.connections for listener in snapshot.listeners),
            bypassed_requests=since,
            lost_records=self.files.lost_records,
        )
        records.add(line, "heartbeat")

    async def _bypassed_so_far(self) -> dict[str, int]:
        snapshot = await self._data_path.snapshot(whole=False)
        return {f"{handler}/{reason}": count for (handler, reason), count in snapshot.bypassed.items()}

    def _commit(self) -> bytes:
        return line_of(
            scratch.Commit(
                covered=self._minute.covered,
                n=self._composer.n,
                file=self.files.number,
                other=self._minute.other,
                limiting=self._live.rule_set.enabled,
                lost_records=self.files.lost_records,
            )
        )

    async def _add_limits(self, now_s: int, pace: Pace) -> None:
        """Write how the rules stand, at the start and with each new day; and again if that was lost."""
        if self.files.limits_lost and self.files.error is None:
            self.files.limits_lost, self._limits_day = False, None
        day = now_s // _DAY_S
        if self._limits_day is not None and day <= self._limits_day:
            return
        self._limits_day = day
        for rule, limit in self._limits.of_rules():
            self._batch.records.add(self._composer.limit(now_s, rule, limit), "limit")
            await pace.keep()

    def _add_changes(self) -> None:
        while self._changes:
            self._batch.records.add(self._composer.limit_change(self._changes.popleft()), "limit_change")

    def _clock_stepped(self, by_s: int) -> None:
        self.clock_steps += 1
        _log.warning("the clock was set; the rejection log goes by it", by_s=by_s)


def instance_of(configured: str | None, host: str, listen: str) -> str:
    """Return the name of a sidecar in its log.

    Args:
        configured: as configured.
        host: name of this machine.
        listen: ``address:port`` of the first listener.
    """
    return configured if configured is not None else f"{host}:{listen.rpartition(':')[2]}"
