"""Restarts the admin side's tasks when they fail. Traffic and the other tasks continue."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0


class Supervisor:
    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()

    async def keep(
        self,
        name: str,
        run: Callable[..., Awaitable[None]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a task until cancelled. Restart it if it fails, but raise errors that occur before it has started."""
        status = _FirstStart(task_status)
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = trio.current_time()
            try:
                await run(task_status=status)
            except Exception as error:
                if not status.started_once:
                    raise
                self._failures[name] += 1
                if trio.current_time() - began_s > _MAX_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
                _log.exception(
                    "admin task failed and was restarted; traffic is not affected", task=name, error=repr(error)
                )
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            else:
                return

    def warnings(self) -> list[str]:
        return [
            f"{name}: failed and was restarted{f', {count} times' if count > 1 else ''}; see the log"
            for name, count in self._failures.items()
        ]


class _FirstStart(trio.TaskStatus[Any]):
    def __init__(self, status: trio.TaskStatus[Any]) -> None:
        self.started_once = False
        self._status = status

    def started(self, value: Any = None) -> None:
        if not self.started_once:
            self.started_once = True
            self._status.started(value)
