"""Writes the data path's counts to the rejection log once per second.

Errors are counted and reported as warnings, and do not affect traffic.
"""

import time
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
from proxy.control import DataPath
from proxy.stats.snapshot import Snapshot

_log = structlog.get_logger(__name__)

#: The data path and this task do not read the clock at exactly the same time.
_AFTER_THE_SECOND_S: Final = 0.02
_SLOW_S: Final = 10.0
"""Writes that take longer are reported as an error."""
_TIMEOUT_S: Final = 5.0
"""How long shutdown waits for the disk."""
_SHUTDOWN_WAIT_S: Final = 1.0
"""How long it waits after a second signal."""


class Recorder:
    """Writes the rejection log of one process.

    ``takes_over`` means that the previous process is still writing. ``problem`` describes an error encountered at
    startup when accessing ``directory``.
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
        fleet: str = "",
        takes_over: bool = False,
        problem: str | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.up = False
        self.files = LogFiles(directory, instance, new_run(), bounds)
        self.files.error = problem
        self._data_path, self._live, self._wall_s = data_path, live, wall_s
        self._takes_over = takes_over
        self._patience_s = _TIMEOUT_S
        self._last_wait = trio.CancelScope(shield=True)
        self._last_change = live.last_id
        self._recording = False
        self._faults_logged: set[type[Exception]] = set()
        self._composer = Composer(
            instance,
            self.files.run,
            max_resources=max_resources,
            figures=self.files.figures,
            now_s=wall_s(),
            fleet=fleet,
        )

    @property
    def error(self) -> str | None:
        waits_s = self.files.waits_s
        if waits_s > _SLOW_S:
            return f"{self.files.directory}: the disk has not responded for {waits_s:.0f} s"
        return self.files.error

    def warnings(self) -> list[str]:
        found = [] if self.error is None else [f"the rejection log cannot be written: {self.error}"]
        if faults := self.files.figures.lost["fault"]:
            found.append(
                f"{faults} records of the rejection log could not be composed; see Sluice's log for the reason"
            )
        return found

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write records until cancelled. If this method fails, it can be called again."""
        task_status.started()
        try:
            await self._begin()
            self.up = True
            while True:
                await trio.sleep(1 - self._wall_s() % 1 + _AFTER_THE_SECOND_S)
                await self._step()
        finally:
            self.up = False

    async def finish(self) -> None:
        """Write the remaining records during shutdown. Give up if the disk does not respond in time."""
        if not self._recording:
            return
        with trio.CancelScope(shield=True):
            await self._compose(last=True)
        began_s = trio.current_time()
        self._last_wait.deadline = began_s + self._patience_s
        with self._last_wait:
            await trio.to_thread.run_sync(self.files.write, abandon_on_cancel=True)
            await trio.to_thread.run_sync(self.files.close, abandon_on_cancel=True)
        if self._last_wait.cancelled_caught:
            waited_s = round(trio.current_time() - began_s, 1)
            _log.error("last records of the rejection log lost because the disk did not respond", waited_s=waited_s)

    def shorten_wait(self) -> None:
        self._patience_s = _SHUTDOWN_WAIT_S
        self._last_wait.deadline = min(self._last_wait.deadline, trio.current_time() + _SHUTDOWN_WAIT_S)

    async def _begin(self) -> None:
        if self._recording:
            return
        self._composer.begin(self._wall_s(), await self._data_path.snapshot(whole=False))
        await self._data_path.take_traffic()
        self._recording = True
        if not self._takes_over:
            self._composer.killed = await trio.to_thread.run_sync(self.files.killed_run, abandon_on_cancel=True)
        # Record the rules before they can change.
        await self._compose()

    async def _step(self) -> None:
        # The data path forgets counts when they are fetched, so queue them even if this task is cancelled.
        with trio.CancelScope(shield=True):
            await self._compose()
        await trio.to_thread.run_sync(self.files.write, abandon_on_cancel=True)

    async def _compose(self, *, last: bool = False) -> None:
        lines: list[tuple[str, bytes]] = []
        entries = 0
        try:
            seconds = await self._data_path.take_traffic(unfinished=last)
            entries = sum(len(second.rejections) + len(second.resources) for second in seconds)
            now_s = self._wall_s()
            snapshot: Snapshot | None = None
            if last or self._composer.is_due(seconds, now_s):
                snapshot = await self._data_path.snapshot(whole=False)
            work = partial(self._composer.compose, lines, seconds, self._live.rule_set, now_s)
            await trio.to_thread.run_sync(
                partial(work, snapshot=snapshot, changes=await self._new_changes(), last=last)
            )
        except Exception as error:  # noqa: BLE001 - traffic and later records must continue
            self.files.figures.lost["fault"] += max(1, entries - len(lines))
            if type(error) not in self._faults_logged:
                self._faults_logged.add(type(error))
                _log.exception(
                    "could not compose rejection log records; further failures are counted but not logged",
                    error=repr(error),
                )
        self.files.hand_in(lines)

    async def _new_changes(self) -> list[Change]:
        newest = self._live.last_id
        if newest == self._last_change:
            return []
        with suppress(StoreError):
            found = await self._live.audit(before=newest + 1, limit=newest - self._last_change)
            self._last_change = newest
            return list(reversed(found))
        return []


def families(recorder: Recorder | None) -> Iterator[Family]:
    up = recorder is not None and recorder.up and recorder.error is None
    yield gauge(
        "sluice_rejection_log_up",
        "1 while the rejection log is being written, 0 if it is off or failing.",
        (),
        [((), int(up))],
    )
    if recorder is not None:
        files = recorder.files
        yield from families_of(msgspec.structs.replace(files.figures, disk_wait_s=files.waits_s))


def instance_of(configured: str | None, host: str, listen: str) -> str:
    """Return the configured name or, by default, the host name and the port of the first listener."""
    return configured if configured is not None else f"{host}:{listen.rpartition(':')[2]}"
