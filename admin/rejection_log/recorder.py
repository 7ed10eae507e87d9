"""The task that writes the rejection log: each second it takes what the data path counted, and has it written.

Records are made and written on a thread. Whatever goes wrong is counted and shown, and traffic goes on.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from admin.edits.model import Change, StoreError
from admin.edits.service import EditService
from admin.rejection_log.composer import Composer
from admin.rejection_log.files import Bounds, LogFiles, new_run
from admin.stats.metrics import Family, families_of, gauge
from limiter.counting.rejections import TrafficSecond
from proxy.control import DataPath
from proxy.stats.snapshot import Snapshot

_log = structlog.get_logger(__name__)

#: The clocks of the data path and of this task are read one after the other.
_AFTER_THE_SECOND_S: Final = 0.02
_SLOW_S: Final = 10.0
"""A disk that takes longer is worth a warning."""
_MIN_PATIENCE_S: Final = 1.0
_MAX_PATIENCE_S: Final = 5.0


class Recorder:
    """Writes the rejection log of one process.

    Args:
        data_path: what it takes the traffic from.
        live: the limits in force.
        directory: of the log.
        instance: name of this sidecar.
        bounds: on the files.
        max_resources: told apart in a minute.
        grace_s: how long the end of the process waits for the disk, but 1 s at least and 5 s at most.
        takes_over: the run before this one is still being written.
        problem: what was wrong with the folder at the start; None if nothing.
        wall_s: the wall clock, in seconds since 1970.

    Attributes:
        files: the log on the disk.
        up: it runs.
    """

    def __init__(
        self,
        data_path: DataPath,
        live: EditService,
        directory: Path,
        *,
        instance: str,
        bounds: Bounds,
        max_resources: int,
        grace_s: float = _MAX_PATIENCE_S,
        takes_over: bool = False,
        problem: str | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.up = False
        self.files = LogFiles(directory, instance, new_run(), bounds)
        self.files.error = problem
        self._data_path, self._live, self._wall_s = data_path, live, wall_s
        self._takes_over = takes_over
        self._patience_s = min(max(grace_s, _MIN_PATIENCE_S), _MAX_PATIENCE_S)
        self._last_wait = trio.CancelScope(shield=True)
        self._changes: deque[Change] = deque()
        self._last_change = live.last_id
        self._recording = False
        self._composer = Composer(
            instance, self.files.run, max_resources=max_resources, figures=self.files.figures, now_s=wall_s()
        )

    @property
    def error(self) -> str | None:
        """Why nothing is written now; None if all is well."""
        waits_s = self.files.waits_s
        if waits_s > _SLOW_S:
            return f"{self.files.directory}: the disk has not answered for {waits_s:.0f} s"
        return self.files.error

    def warnings(self) -> list[str]:
        """Return warnings for the operator."""
        found = [] if self.error is None else [f"rejection log is not written: {self.error}"]
        if faults := self.files.figures.lost["fault"]:
            found.append(f"rejection log: {faults} records could not be made; the log of the process has the reason")
        return found

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled; can be begun again."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_changes)
            try:
                await self._begin()
                self.up = True
                while True:
                    await trio.sleep(1 - self._wall_s() % 1 + _AFTER_THE_SECOND_S)
                    await self._step()
            finally:
                self.up = False

    async def finish(self) -> None:
        """Write what is left, for the end of the process; the disk has a bounded time for it."""
        if not self._recording:
            return
        # What is bounded is the wait for the disk, not the making of the last records.
        with trio.CancelScope(shield=True):
            try:
                await self._compose(last=True)
            except Exception as error:  # noqa: BLE001 - the process ends in order, whatever it was
                _log.exception("the last of the rejection log could not be made", error=repr(error))
        began_s = trio.current_time()
        self._last_wait.deadline = began_s + self._patience_s
        with self._last_wait:
            await trio.to_thread.run_sync(self.files.write, abandon_on_cancel=True)
            await trio.to_thread.run_sync(self.files.close, abandon_on_cancel=True)
        if self._last_wait.cancelled_caught:
            waited_s = round(trio.current_time() - began_s, 1)
            _log.error("the last of the rejection log was not written: the disk does not answer", waited_s=waited_s)

    def hurry(self) -> None:
        """Have the end of the process wait for the disk a moment at most, and no more for one that hangs already."""
        self._patience_s = max(0.0, _MIN_PATIENCE_S - self.files.waits_s)
        self._last_wait.deadline = min(self._last_wait.deadline, trio.current_time() + self._patience_s)

    async def _begin(self) -> None:
        if self._recording:
            return
        self._composer.begin(self._wall_s(), await self._data_path.snapshot(whole=False))
        await self._data_path.take_traffic()
        self._recording = True
        if not self._takes_over:
            self._composer.killed = await trio.to_thread.run_sync(self.files.killed_run, abandon_on_cancel=True)
        # How the rules stand, before anything changes.
        await self._compose()

    async def _step(self) -> None:
        # What was taken is nowhere else: the end of the process waits for that.
        with trio.CancelScope(shield=True):
            await self._compose()
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._warn_of_slow_disk)
            await trio.to_thread.run_sync(self.files.write, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        took_s = trio.current_time() - began_s
        if took_s >= _SLOW_S:
            directory = str(self.files.directory)
            _log.info("rejection log: the disk answers again", dir=directory, after_s=round(took_s))

    async def _warn_of_slow_disk(self) -> None:
        await trio.sleep(_SLOW_S)
        what = f"rejection log: the disk has not answered for {_SLOW_S:.0f} s; traffic goes on"
        _log.error(what, dir=str(self.files.directory))

    async def _compose(self, *, last: bool = False) -> None:
        """Take what the data path counted, make records of it, and hand them in."""
        composer, files = self._composer, self.files
        seconds: tuple[TrafficSecond, ...] = ()
        snapshot: Snapshot | None = None
        try:
            seconds = await self._data_path.take_traffic(unfinished=last)
        except Exception as error:  # noqa: BLE001 - other records are made all the same
            composer.fault("second", error)
        now_s = self._wall_s()
        if last or composer.is_due(seconds, now_s):
            try:
                snapshot = await self._data_path.snapshot(whole=False)
            except Exception as error:  # noqa: BLE001 - as above
                composer.fault("heartbeat", error)
        changes = [self._changes.popleft() for _ in range(len(self._changes))]
        # How the rules stand was lost, and would not be now.
        again = files.limits_lost and files.error is None
        files.limits_lost &= not again
        lines = await trio.to_thread.run_sync(
            partial(
                composer.compose,
                seconds,
                self._live.rule_set,
                now_s,
                snapshot=snapshot,
                changes=changes,
                limits_again=again,
                last=last,
            )
        )
        files.hand_in(lines)

    async def _follow_changes(self) -> None:
        """Take every change over; those that a slow follower missed come from the audit trail."""
        async for change in self._live.changes():
            missed = change.id - self._last_change - 1
            if missed > 0:
                with suppress(StoreError):
                    found = await self._live.audit(before=change.id, limit=missed)
                    self._changes.extend(each for each in reversed(found) if each.id > self._last_change)
            self._last_change = change.id
            self._changes.append(change)


def families(recorder: Recorder | None) -> Iterator[Family]:
    """Yield the metrics of a recorder; of None that there is no log."""
    up = recorder is not None and recorder.up and recorder.error is None
    yield gauge(
        "sluice_rejection_log_up", "1 while the rejection log is written, 0 if it is off or fails.", (), [((), int(up))]
    )
    if recorder is not None:
        files = recorder.files
        yield from families_of(msgspec.structs.replace(files.figures, disk_wait_s=files.waits_s))


def instance_of(configured: str | None, host: str, listen: str) -> str:
    """Return the name of a sidecar in its log: as configured, or the host with the port of the first listener."""
    return configured if configured is not None else f"{host}:{listen.rpartition(':')[2]}"
