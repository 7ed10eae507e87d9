"""The executor: bounded lanes on which handlers decide, and which bypass themselves rather than delay anyone.

A lane is a trio task behind a bounded queue; one hop carries one batch. On an idle lane, a handler that does not await
decides at once, without the hop. A hop to a trio task costs about 16 µs and one to a thread 219 µs, so threaded lanes
are for handlers that block. The queue is a deque and the hop a bare reschedule: a memory channel with an event and a
timeout for each batch took twice the processor time.

When a lane bypasses
    ====== =======================================================================================
    full   its queue has no room
    late   it had its turn a deadline ago and has not answered, or it was late and no probe has come
           back in time yet
    error  the handler raised
    ====== =======================================================================================

A busy loop is not a late lane, or floods would switch the limiter off. A lane serves its whole queue without yielding,
or with one hop to its thread. Its time runs from its turn on, and the watch of deadlines lets it run once more before
judging.
"""

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import trio

from proxy.deciding.batch import Batch, Verdicts, drop_tickets

Decide = Callable[[Batch, int], Verdicts | Awaitable[Verdicts]]
"""Decides on a batch, with the monotonic time in nanoseconds."""

BypassReason = Literal["full", "late", "error"]


@dataclass(frozen=True, slots=True)
class Bypass:
    """A handler was skipped for one batch."""

    reason: BypassReason
    error: BaseException | None = None  # what the handler raised, for reason ``error``


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One lane, as an operator sees it."""

    depth: int
    capacity: int
    late: bool  # bypassed until a probe returns in time


class Submission:
    """One batch on its way through a lane, with the outcome."""

    __slots__ = ("batch", "begun", "deadline_s", "outcome", "overdue", "taken", "task")

    def __init__(self, batch: Batch | None, begun: Awaitable[Verdicts] | None = None) -> None:
        # None is no batch: only its turn is waited for.
        self.batch = batch
        self.deadline_s = 0.0
        # The handler's answer, if it is still to be awaited.
        self.begun = begun
        self.outcome: Verdicts | Bypass | None = None
        # The outcome when the waiting task was woken; a later one has no effect.
        self.taken: Verdicts | Bypass | None = None
        # Its deadline passed without an outcome.
        self.overdue = False
        # The task that waits for the outcome, if any.
        self.task: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        if self.task is not None:
            task, self.task = self.task, None
            self.taken = self.outcome
            trio.lowlevel.reschedule(task)


class Lane:
    """One queue, the task that serves it, and the task that watches its deadlines.

    Args:
        decide: called for each batch; only the wait for it is bounded.
        capacity: batches that may be queued.
        deadline_s: how long a batch waits for its verdict before it bypasses.
        threaded: run ``decide`` on a worker thread.
    """

    def __init__(
        self, decide: Decide, *, capacity: int, deadline_s: float, threaded: bool, now_ns: Callable[[], int]
    ) -> None:
        self.late = False  # bypassed until a probe returns in time
        self._decide = decide
        self._deadline_s = deadline_s
        self._threaded = threaded
        # Whether to decide without a hop: not on a thread, nor where the handler awaits.
        self._at_once = not threaded
        # Batches since the serving task last had its turn, bounded as a queue is that is served once in a turn of the
        # loop.
        self._decided_at_once = 0
        self._now_ns = now_ns
        self._thread_limiter = trio.CapacityLimiter(1)
        self._capacity = capacity
        self._queue: deque[Submission] = deque()
        # The serving task while it waits for the queue to fill.
        self._server: trio.lowlevel.Task | None = None
        # When the serving task began with the queue; None while it has not had its turn.
        self._turn_s: float | None = None
        self._probe: Submission | None = None
        # Decided on the thread, and not yet seen by the loop.
        self._laid_down: deque[Submission] = deque()
        self._loop_told = False
        # In the order of their deadlines. One task watches all: a timer for each batch would cost more than the hop.
        self._waiting: deque[Submission] = deque()
        self._watch_idle = trio.lowlevel.ParkingLot()

    def stats(self) -> LaneStats:
        return LaneStats(len(self._queue), self._capacity, self.late)

    def submit(self, batch: Batch) -> Verdicts | Bypass | Submission:
        """Return the handler's verdicts, the Bypass in their place, or what ``outcome_of`` waits for."""
        if self.late:
            self._send_probe(batch)
            return Bypass("late")
        begun: Awaitable[Verdicts] | None = None
        if self._server is not None and self._at_once and self._decided_at_once < self._capacity:
            self._decided_at_once += 1
            decided = self._decide_at_once(batch)
            if type(decided) is dict or not isinstance(decided, Awaitable):
                return decided
            begun = decided
        return Submission(batch, begun)

    async def outcome_of(self, ticket: Submission) -> Verdicts | Bypass:
        """Queue a batch; return the handler's verdicts, or the Bypass in their place after the deadline."""
        ticket.task = trio.lowlevel.current_task()
        ticket.deadline_s = trio.current_time() + self._deadline_s
        if not self._put(ticket):
            if inspect.iscoroutine(ticket.begun):
                ticket.begun.close()
            return Bypass("full")
        self._forget_served()
        self._watch_for(ticket)

        def cancelled(_: object) -> trio.lowlevel.Abort:
            ticket.task = None  # nobody is left to spend permits for
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(cancelled)
        return ticket.taken if ticket.taken is not None else Bypass("late")

    async def turn(self) -> None:
        """Return once the lane has served its present queue; not if a handler hangs."""
        ticket = Submission(None)
        ticket.task = trio.lowlevel.current_task()
        while not self._put(ticket):  # noqa: ASYNC110 - nobody says that there is room
            await trio.sleep(self._deadline_s)

        def cancelled(_: object) -> trio.lowlevel.Abort:
            ticket.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(cancelled)

    def _decide_at_once(self, batch: Batch) -> Verdicts | Bypass | Awaitable[Verdicts]:
        """Decide on an idle lane without a hop; after a handler that awaits, all batches hop."""
        try:
            decided = self._decide(batch, self._now_ns())
            if type(decided) is dict:
                return decided
            if isinstance(decided, Awaitable):
                self._at_once = False
                return decided
            return checked(decided)
        except (trio.Cancelled, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - not even sys.exit costs anybody a message
            return Bypass("error", error)

    def _send_probe(self, batch: Batch) -> None:
        """Queue a batch that was bypassed, to learn whether the lane answers in time again."""
        if self._probe is None:
            # Marked before it is queued: a thread may take it at once.
            self._probe = Submission(batch)
            if not self._put(self._probe):
                self._probe = None

    def _put(self, ticket: Submission) -> bool:
        if len(self._queue) >= self._capacity:
            return False
        self._queue.append(ticket)
        if self._server is not None:
            server, self._server = self._server, None
            trio.lowlevel.reschedule(server)
        return True

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while True:
                self._decided_at_once = 0
                while self._queue:
                    self._turn_s = trio.current_time()
                    if self._threaded:
                        await trio.to_thread.run_sync(
                            self._serve_on_thread,
                            trio.lowlevel.current_trio_token(),
                            abandon_on_cancel=True,
                            limiter=self._thread_limiter,
                        )
                    else:
                        await self._serve()
                    self._turn_s = None
                self._server = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_serving)

    def _stop_serving(self, _: object) -> trio.lowlevel.Abort:
        self._server = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _serve(self) -> None:
        while (ticket := self._next()) is not None:
            if ticket is self._probe:
                self._watch_probe(ticket)
            try:
                decided = ticket.begun or self._ask(ticket.batch)
                ticket.outcome = checked(await decided if isinstance(decided, Awaitable) else decided)
            except (trio.Cancelled, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - not even sys.exit costs anybody a message
                ticket.outcome = Bypass("error", error)
            self._finish(ticket)

    def _serve_on_thread(self, loop: trio.lowlevel.TrioToken) -> None:
        """Serve the queue on this thread in one go: a hop for each batch would wait for the loop each time.

        An outcome counts once it is there, even if the loop sees it later.
        """
        while (ticket := self._next()) is not None:
            if ticket is self._probe:
                loop.run_sync_soon(self._watch_probe, ticket)
            try:
                ticket.outcome = checked(self._ask(ticket.batch))
            except BaseException as error:  # noqa: BLE001 - as above; a thread is neither cancelled nor interrupted
                ticket.outcome = Bypass("error", error)
            self._laid_down.append(ticket)
            if not self._loop_told:
                # Not for each ticket: telling the loop gives up the interpreter's lock.
                self._loop_told = True
                loop.run_sync_soon(self._finish_laid_down)
        # From here on, what is queued waits for the next hop.
        self._turn_s = None

    def _ask(self, batch: Batch | None) -> Verdicts | Awaitable[Verdicts]:
        return {} if batch is None else self._decide(batch, self._now_ns())

    def _next(self) -> Submission | None:
        while self._queue:
            ticket = self._queue.popleft()
            if ticket.task is not None or ticket is self._probe:
                return ticket
            if inspect.iscoroutine(ticket.begun):
                ticket.begun.close()
        return None

    def _finish(self, ticket: Submission) -> None:
        if ticket is self._probe:
            self._probe = None
            self.late = ticket.overdue
        ticket.wake()
        if ticket.taken is None and not isinstance(ticket.outcome, Bypass | None):
            with suppress(Exception):  # a mapping of the handler's own may raise anything
                drop_tickets(ticket.outcome)  # nobody waits for these verdicts any more

    def _finish_laid_down(self) -> None:
        self._loop_told = False
        while self._laid_down:
            self._finish(self._laid_down.popleft())

    def _watch_for(self, ticket: Submission) -> None:
        self._waiting.append(ticket)
        self._watch_idle.unpark_all()

    def _watch_probe(self, probe: Submission) -> None:
        """Measure a probe from its turn: it may have been queued behind the cause of the delay."""
        probe.deadline_s = trio.current_time() + self._deadline_s
        self._watch_for(probe)

    async def _watch(self) -> None:
        while True:
            self._forget_served()
            if not self._waiting:
                await self._watch_idle.park()
                continue
            now_s = trio.current_time()
            if now_s < self._waiting[0].deadline_s:
                await trio.sleep_until(self._waiting[0].deadline_s)
                continue
            # A handler that only yielded goes on in the next turn, and this task in the one after.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            turn_s = self._turn_s
            if turn_s is None:
                continue
            if now_s < turn_s + self._deadline_s:
                await trio.sleep_until(turn_s + self._deadline_s)
                continue
            while self._waiting and self._waiting[0].deadline_s <= now_s:
                ticket = self._waiting.popleft()
                if ticket.outcome is None and (ticket.task is not None or ticket is self._probe):
                    ticket.overdue = self.late = True
                ticket.wake()

    def _forget_served(self) -> None:
        while self._waiting and self._waiting[0].task is None and self._waiting[0] is not self._probe:
            self._waiting.popleft()


def checked(decided: object) -> Verdicts:
    """Return a handler's answer if it is a mapping.

    Raises:
        TypeError: it is not.
    """
    if type(decided) is not dict and not isinstance(decided, Mapping):
        if inspect.iscoroutine(decided):
            decided.close()
        raise TypeError(f"a handler must return a mapping of index to verdict, not {decided!r}")
    return decided


class Executor:
    """The lanes of one handler. A connection is pinned to a lane, which keeps its batches in order."""

    def __init__(
        self,
        decide: Decide,
        *,
        lanes: int,
        capacity: int,
        deadline_s: float,
        threaded: bool,
        now_ns: Callable[[], int],
    ) -> None:
        self.lanes = tuple(
            Lane(decide, capacity=capacity, deadline_s=deadline_s, threaded=threaded, now_ns=now_ns)
            for _ in range(lanes)
        )

    def submit(self, batch: Batch) -> Verdicts | Bypass | Submission:
        """Decide on the lane of the batch's connection, at once if possible."""
        lanes = self.lanes
        return (lanes[0] if len(lanes) == 1 else self._lane(batch)).submit(batch)

    async def outcome_of(self, submission: Submission) -> Verdicts | Bypass:
        assert submission.batch is not None  # noqa: S101 - it asks something
        return await self._lane(submission.batch).outcome_of(submission)

    def _lane(self, batch: Batch) -> Lane:
        return self.lanes[batch.connection.id % len(self.lanes)]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(lane.run)
