"""The task that writes the rejection log: each second it takes what the data path counted, and has it written.

Records are made on the event loop in short stretches; everything that may wait for a disk is on a thread. Whatever
goes wrong is counted and shown, and traffic goes on.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
import structlog
import trio

from admin.edits.model import Change, StoreError
from admin.edits.service import EditService
from admin.rejection_log.files import Bounds, LogFiles
from admin.rejection_log.folder import Folder, new_run
from admin.rejection_log.ledger import Ledger
from admin.stats.metrics import Family, families_of, gauge
from limiter.counting.rejections import TrafficSecond
from proxy.common.cooperative import Pace, turn
from proxy.control import DataPath

_log = structlog.get_logger(__name__)

#: The data path's clock and this one are the same, but read one after the other.
_AFTER_THE_SECOND_S: Final = 0.02
_SLOW_S: Final = 10.0
"""A disk that takes longer is worth a warning."""
_LEAST_PATIENCE_S: Final = 1.0
"""At the end of the process a disk has so long at least, even if it is to end at once."""
_PATIENCE_S: Final = 5.0
"""And so long at most."""
_REASON: Final = "the log of the process has the reason"


class Recorder:
    """Writes the rejection log of one process.

    Args:
        data_path: what it takes the traffic from.
        live: the limits in force.
        folder: where the log is kept.
        instance: name of this sidecar.
        bounds: how much is written.
        max_resources: told apart in a minute.
        grace_s: the end of the process waits so long for the disk, 1 s at least and 5 s at most.
        predecessor_s: so long the process whose place this one takes may have the folder still; 0 if there is none.
        problem: what was wrong with the folder when it was taken; None if nothing.
        wall_s: the wall clock, in seconds since 1970.

    Attributes:
        instance: as given.
        directory: where the log is kept.
        files: that it is written into.
        ledger: what is written.
        up: it runs.
    """

    def __init__(
        self,
        data_path: DataPath,
        live: EditService,
        folder: Folder,
        *,
        instance: str,
        bounds: Bounds,
        max_resources: int,
        grace_s: float = _PATIENCE_S,
        predecessor_s: float = 0.0,
        problem: str | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.instance = instance
        self.up = False
        self.directory = folder.path
        run = new_run()
        self.files = LogFiles(folder, instance, run, bounds, predecessor_s=predecessor_s)
        self.files.error = problem
        self._data_path = data_path
        self._live = live
        self._patience_s = min(max(grace_s, _LEAST_PATIENCE_S), _PATIENCE_S)
        self._last_wait = trio.CancelScope(shield=True)
        self._wall_s = wall_s
        self._changes: deque[Change] = deque()
        self._last_change = 0
        self._recording = False
        self.ledger = Ledger(
            instance,
            run,
            max_resources=max_resources,
            live=live,
            data_path=data_path,
            figures=self.files.figures,
            now_s=wall_s(),
        )

    @property
    def error(self) -> str | None:
        """Why nothing is written now; None if all is well."""
        waits_s = self.files.waits_s
        if waits_s > _SLOW_S:
            return f"{self.directory}: the disk has not answered for {waits_s:.0f} s"
        return self.files.error

    def warnings(self) -> list[str]:
        """Say what an operator ought to look at."""
        figures, found = self.files.figures, []
        if self.error is not None:
            found.append(f"rejection log is not written: {self.error}")
        if faults := figures.lost["fault"]:
            found.append(f"rejection log: {faults} records could not be made; {_REASON}")
        if left := figures.unsealed_runs:
            found.append(f"rejection log: files of {left} runs could not be finished; {_REASON}")
        return found

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled; can be begun again."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_changes)
            try:
                await self._begin()
                # To finish what a killed process left may take seconds; meanwhile the data path counts.
                await self._on_thread(self.files.prepare)
                self.up = True
                while True:
                    await trio.sleep(1 - self._wall_s() % 1 + _AFTER_THE_SECOND_S)
                    await self._step()
            finally:
                self.up = False

    async def finish(self) -> None:
        """Write what is left, for the end of the process, and finish the file; the disk has a bounded time for it."""
        if not self._recording:
            return
        # To make the last records may take its time; what is bounded is the wait for the disk.
        with trio.CancelScope(shield=True):
            try:
                await self._compose(unfinished=True)
            except Exception as error:  # noqa: BLE001 - the process ends in order, whatever it was
                _log.exception("the last of the rejection log could not be made", error=repr(error))
        began_s = trio.current_time()
        self._last_wait.deadline = began_s + self._patience_s
        with self._last_wait:
            try:
                await trio.to_thread.run_sync(self.files.write, abandon_on_cancel=True)
            except Exception as error:  # noqa: BLE001 - likewise
                _log.exception("the last of the rejection log could not be written", error=repr(error))
            await trio.to_thread.run_sync(self.files.close, abandon_on_cancel=True)
        if self._last_wait.cancelled_caught:
            waited_s = round(trio.current_time() - began_s, 1)
            _log.error("the last of the rejection log was not written: the disk does not answer", waited_s=waited_s)

    def hurry(self) -> None:
        """Have the end of the process wait for the disk a moment at most, and no more for one that hangs already."""
        self._patience_s = max(0.0, _LEAST_PATIENCE_S - self.files.waits_s)
        # If it waits already; else the wait begins with that.
        self._last_wait.deadline = min(self._last_wait.deadline, trio.current_time() + self._patience_s)

    async def _on_thread(self, work: Callable[[], object]) -> None:
        """Do what waits for the disk; if that takes long, say so, and say when it is over."""
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._miss_the_disk)
            await trio.to_thread.run_sync(work, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        took_s = trio.current_time() - began_s
        if took_s >= _SLOW_S:
            _log.info("rejection log: the disk answers again", dir=str(self.directory), after_s=round(took_s))

    async def _miss_the_disk(self) -> None:
        await trio.sleep(_SLOW_S)
        what = f"rejection log: the disk has not answered for {_SLOW_S:.0f} s; traffic goes on"
        _log.error(what, dir=str(self.directory))

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
        if not self._recording:
            self.ledger.begin(await self._data_path.snapshot(whole=False), self._wall_s())
            await self._data_path.take_traffic()
            self._recording = True
            await self.ledger.add_limits(self._wall_s(), Pace(rests=True))

    async def _step(self) -> None:
        """Take what there is, make records of it, and have them written."""
        # What was taken is nowhere else: whoever ends the process waits for that.
        with trio.CancelScope(shield=True):
            await self._compose()
        await self._on_thread(self.files.write)

    async def _compose(self, *, unfinished: bool = False) -> None:
        """Take what there is, make a batch of it, and hand it in: what was made before a fault, too."""
        files, ledger = self.files, self.ledger
        if ledger.run != files.run:
            # Another process has finished the one before, with the minute as far as it had come.
            ledger.begin_run(files.run, self._wall_s())
        seconds: tuple[TrafficSecond, ...] = ()
        try:
            seconds = await self._data_path.take_traffic(unfinished=unfinished)
        except Exception as error:  # noqa: BLE001 - what there is already is written all the same
            ledger.fault("second", error)
        now_s = self._wall_s()
        await turn()
        pace = Pace(rests=not unfinished)
        try:
            await ledger.add(seconds, now_s, pace, last=unfinished)
            await ledger.add_limits(now_s, pace, again=self._limits_are_lost())
            while self._changes:
                if (change := self._changes.popleft()).action != "purge":
                    ledger.add_change(change)
        finally:
            files.hand_in(ledger.hand_out(files.number))

    def _limits_are_lost(self) -> bool:
        """Say whether how the rules stand is to be written again, as it was lost and would not be now."""
        if not self.files.limits_lost or self.files.error is not None:
            return False
        self.files.limits_lost = False
        return True


def families(recorder: Recorder | None) -> Iterator[Family]:
    """Yield the metrics of a recorder; of none, that there is none."""
    up = recorder is not None and recorder.up and recorder.error is None and not recorder.files.waiting
    yield gauge(
        "sluice_rejection_log_up", "1 while the rejection log is written, 0 if it is off or fails.", (), [((), int(up))]
    )
    if recorder is not None:
        files = recorder.files
        yield from families_of(msgspec.structs.replace(files.figures, disk_wait_s=files.waits_s))


def instance_of(configured: str | None, host: str, listen: str) -> str:
    """Return the name of a sidecar in its log.

    Args:
        configured: as configured.
        host: name of this machine.
        listen: ``address:port`` of the first listener.
    """
    return configured if configured is not None else f"{host}:{listen.rpartition(':')[2]}"
