"""What is handed in at the desk and waits for its turn, and which of it is done together."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio

from admin.live.model import Change
from admin.live.staged import Staging
from admin.rulebook import Rulebook

#: Jobs that may wait; more have to wait to be able to wait.
_QUEUED: Final = 1_024
#: So many edits are written down together at most, so that the first is not kept waiting by the last.
_GROUP_EDITS: Final = 1_024


@dataclass(slots=True, eq=False)
class Job:
    """Something to do in its turn.

    Attributes:
        stage: does it on a staging.
        edits: how many edits it is, about.
        dry_run: all of it is taken back.
        durable: whether it needs the disk.
        rulebook: the configuration that takes the place of the one in force; such a job is done alone.
        committed: called once it holds, whether or not anybody still waits for it.
    """

    stage: Callable[[Staging], Awaitable[None]]
    edits: int
    dry_run: bool
    durable: bool
    rulebook: Rulebook | None = None
    committed: Callable[[], None] | None = None
    changes: tuple[Change, ...] = ()
    error: Exception | None = None
    done: trio.Event = field(default_factory=trio.Event)

    async def stage_on(self, staging: Staging) -> None:
        """Do it on a staging; a failure is kept for whoever handed it in, and leaves nothing."""
        mark = staging.mark()
        self.error, self.changes = None, ()
        try:
            await self.stage(staging)
            if self.dry_run:
                # Of what is done it is told when all that is done together is known.
                await staging.tell_rules(mark)
        except Exception as error:  # noqa: BLE001 - it is raised where the job was handed in
            self.error = error
            staging.back_to(mark)
            return
        self.changes = tuple(staging.changes[mark.changes :])
        if self.dry_run:
            staging.back_to(mark)
            self.changes = tuple(_unnumbered(change) for change in self.changes)


class Jobs:
    """The jobs that wait, in the order in which they were handed in."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Job](_QUEUED)
        self._waiting: Job | None = None

    async def do(self, job: Job) -> tuple[Change, ...]:
        """Hand in a job and wait until it is done; raises what it failed with."""
        await self._send.send(job)
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return job.changes

    async def next(self, sleep_s: float) -> list[Job]:
        """Wait for jobs, at most for so long; returns those that are done together."""
        jobs: list[Job] = []
        edits = 0
        first, self._waiting = self._waiting, None
        if first is None:
            with trio.move_on_after(sleep_s):
                first = await self._receive.receive()
        while first is not None:
            alone = first.rulebook is not None
            if jobs and (alone or edits + first.edits > _GROUP_EDITS):
                self._waiting = first
                break
            jobs.append(first)
            edits += first.edits
            if alone:
                break
            try:
                first = self._receive.receive_nowait()
            except trio.WouldBlock:
                break
        return jobs


def _unnumbered(change: Change) -> Change:
    return msgspec.structs.replace(change, id=0)
