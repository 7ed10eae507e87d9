"""Checks once a second whether memory or disk space is low."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from proxy.flow import machine
from proxy.flow.alarms import MIN_FREE_BYTES, WATERMARK, Alarm, AlarmChange, DiskAlarm, MemoryAlarm

_LOOK_S: Final = 1.0
#: The memory limit is read only at every tenth check, because this takes a millisecond.
_CHECKS_PER_LIMIT: Final = 10


@dataclass(frozen=True, slots=True)
class AlarmConfig:
    memory_watermark: float = WATERMARK
    disk_free_bytes: int = MIN_FREE_BYTES  # minimum free space on the spool's disk


class AlarmWatch:
    """Watches memory and disk space. Awaits ``changed`` whenever an alarm is raised or cleared."""

    def __init__(
        self,
        config: AlarmConfig,
        folder: Path | None,
        *,
        spool_is_used: Callable[[], bool],
        held_bytes: Callable[[], int],
        changed: Callable[[AlarmChange], Awaitable[None]],
        now_ns: Callable[[], int],
    ) -> None:
        self.memory = MemoryAlarm(config.memory_watermark)
        self.disk = None if folder is None else DiskAlarm(config.disk_free_bytes)
        self._spool_is_used = spool_is_used
        self._folder, self._held_bytes, self._changed, self._now_ns = folder, held_bytes, changed, now_ns
        self._turn = trio.Lock()

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        return (self.memory,) if self.disk is None else (self.memory, self.disk)

    def forget_disk(self) -> None:
        """Turn off the disk alarm because there is no spool. Call this before ``run``."""
        self.disk = None

    async def run(self) -> None:
        """Check memory and disk in separate tasks, because the disk may hang."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_memory)
            if self.disk is not None and self._folder is not None:
                nursery.start_soon(self._watch_disk, self.disk, self._folder)

    async def _watch_memory(self) -> None:
        checks = 0
        limit: machine.MemoryLimit | None = None
        while True:
            if checks % _CHECKS_PER_LIMIT == 0:
                limit = await trio.to_thread.run_sync(machine.memory_limit, abandon_on_cancel=True)
            checks += 1
            limit_bytes = None if limit is None else limit.limit_bytes
            await self._tell(
                self.memory.update(self._now_ns(), machine.resident_bytes(), self._held_bytes(), limit_bytes)
            )
            await trio.sleep(_LOOK_S)

    async def _watch_disk(self, alarm: DiskAlarm, folder: Path) -> None:
        while True:
            free_bytes = await trio.to_thread.run_sync(machine.free_bytes, folder, abandon_on_cancel=True)
            await self._tell(alarm.update(self._now_ns(), free_bytes, is_used=self._spool_is_used()))
            await trio.sleep(_LOOK_S)

    async def _tell(self, change: AlarmChange | None) -> None:
        if change is not None:
            # Report changes in order, so that the last call has the latest state.
            async with self._turn:
                await self._changed(change)
