"""Reads the configuration again when its files have changed, for those who change files and send no signal.

Kubernetes does so with what is mounted of ConfigMaps and Secrets. What a reload puts in force is ``admin.run.reload``.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from admin.edits.model import Author
from admin.edits.service import EditService
from admin.run.reload import reload_on_signal

LOOK_EVERY_S: Final = 1.0

_AUTHOR: Final = Author("file change")


async def reload_on_change(
    files: Iterable[str],
    desk: EditService,
    *,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Look at files until cancelled; when one has changed, and none has since the last look, reload.

    Waiting for that one look keeps it from reading half of what an editor is writing.

    Args:
        files: those that the configuration in force was read from.
        desk: who reloads.
        sleep: waits for so many seconds between two looks.
        task_status: reports that it has looked once.
    """
    look = partial(trio.to_thread.run_sync, partial(_look, tuple(files)))
    read = before = await look()
    task_status.started()
    while True:
        await sleep(LOOK_EVERY_S)
        now = await look()
        if now == before != read:
            read = now
            await reload_on_signal(desk, _AUTHOR)
        before = now


def _look(files: tuple[str, ...]) -> list[tuple[int, int, int, int] | None]:
    """Return what tells files from what they were: links are followed, as Kubernetes changes where they lead."""
    return [_identity(Path(file)) for file in files]


def _identity(file: Path) -> tuple[int, int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
