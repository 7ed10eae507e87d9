"""The executor: bounded lanes on which handlers that wait decide, and which bypass themselves rather than delay anyone.

A lane is a trio task behind a bounded queue. A hop to that task costs about 16 µs, and one to a thread 219 µs. A
handler that answers at once needs no lane: the pipeline calls it.

When a lane bypasses
    ====== =======================================================================================
    full   its queue has no room
    late   it had its turn a deadline ago and has not answered, or it was late and no probe has come
           back in time yet
    error  the handler raised
    ====== =======================================================================================

A busy loop is not a late lane, or floods would switch handlers off. A lane serves its whole queue in one turn, so its
time runs from that turn on, and it may run once more after the deadline before it is judged.
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
    """One batch on its way through a lane. Without a batch, only its turn is waited for."""

    __slots__ = ("batch", "done", "lane", "outcome", "wanted")

    def __init__(self, lane: "Lane", batch: Batch | None) -> None:
        self.lane = lane
        self.batch = batch
        self.done = trio.Event()
        self.outcome: Verdicts | Bypass | None = None
        self.wanted = True  # somebody waits for the outcome


class Lane:
    """One queue, and the task that serves it.

    Args:
        decide: called for each batch; only the wait for it is bounded.
        capacity: batches that may be queued.
        deadline_s: how long a batch waits for its verdict before it bypasses.
        threaded: run ``decide`` on a worker thread.
        now_ns: callable from any thread.
    """

    def __init__(
        self, decide: Decide, *, capacity: int, deadline_s: float, threaded: bool, now_ns: Callable[[], int]
    ) -> None:
        self.late = False  # bypassed until a probe returns in time
        self._decide = decide
        self._capacity = capacity
        self._deadline_s = deadline_s
        self._threaded = threaded
        self._now_ns = now_ns
        self._thread_limiter = trio.CapacityLimiter(1)
        self._queue: deque[Submission] = deque()
        self._filled = trio.Event()
        # When the task began with the queue; None while it has not had its turn.
        self._turn_s: float | None = None
        self._probe: Submission | None = None

    def stats(self) -> LaneStats:
        return LaneStats(len(self._queue), self._capacity, self.late)

    def submit(self, batch: Batch) -> Submission | Bypass:
        """Queue a batch, whose verdicts ``outcome_of`` then returns; or say at once that it bypasses."""
        if not self.late:
            submission = Submission(self, batch)
            return submission if self._put(submission) else Bypass("full")
        if self._probe is None:
            # Learns whether the lane answers in time again. Marked before it is queued: a thread may take it at once.
            self._probe = Submission(self, batch)
            self._probe.wanted = False
            if not self._put(self._probe):
                self._probe = None
        return Bypass("late")

    async def outcome_of(self, submission: Submission) -> Verdicts | Bypass:
        """Return the handler's verdicts, or the Bypass in their place after the deadline."""
        try:
            due_s = trio.current_time() + self._deadline_s
            while not await self._done_by(due_s, submission):
                now_s = trio.current_time()
                # A handler that only yielded continues in the next turn of the loop, and this task in the one after.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                due_s = (now_s if self._turn_s is None else self._turn_s) + self._deadline_s
                if now_s >= due_s and not submission.done.is_set():
                    self.late = True
                    return Bypass("late")
        except BaseException:
            if submission.outcome is not None:
                _drop(submission.outcome)
            raise
        finally:
            submission.wanted = False
        assert submission.outcome is not None  # noqa: S101 - it is done
        return submission.outcome

    @staticmethod
    async def _done_by(due_s: float, submission: Submission) -> bool:
        with trio.CancelScope(deadline=due_s):
            await submission.done.wait()
        return submission.done.is_set()

    async def turn(self) -> None:
        """Return once the lane has served its present queue; not if a handler hangs."""
        submission = Submission(self, None)
        while not self._put(submission):  # noqa: ASYNC110 - nobody says that there is room
            await trio.sleep(self._deadline_s)
        await submission.done.wait()

    def _put(self, submission: Submission) -> bool:
        if len(self._queue) >= self._capacity:
            return False
        self._queue.append(submission)
        self._filled.set()
        return True

    async def run(self) -> None:
        loop = trio.lowlevel.current_trio_token()
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            while self._queue:
                self._turn_s = trio.current_time()
                if self._threaded:
                    await trio.to_thread.run_sync(
                        self._serve_on_thread, loop, abandon_on_cancel=True, limiter=self._thread_limiter
                    )
                else:
                    await self._serve()
                self._turn_s = None

    async def _serve(self) -> None:
        while (submission := self._next()) is not None:
            began_ns = self._now_ns()
            try:
                decided = self._ask(submission.batch)
                outcome: Verdicts | Bypass = checked(await decided if isinstance(decided, Awaitable) else decided)
            except (trio.Cancelled, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - not even sys.exit costs anybody a message
                outcome = Bypass("error", error)
            self._finish(submission, outcome, self._now_ns() - began_ns)

    def _serve_on_thread(self, loop: trio.lowlevel.TrioToken) -> None:
        """Serve the queue on this thread in one go: a hop for each batch would wait for the loop each time."""
        while (submission := self._next()) is not None:
            began_ns = self._now_ns()
            try:
                outcome: Verdicts | Bypass = checked(self._ask(submission.batch))
            except BaseException as error:  # noqa: BLE001 - as above; a thread is neither cancelled nor interrupted
                outcome = Bypass("error", error)
            loop.run_sync_soon(self._finish, submission, outcome, self._now_ns() - began_ns)
        # From here on, what is queued waits for the next hop.
        self._turn_s = None

    def _ask(self, batch: Batch | None) -> Verdicts | Awaitable[Verdicts]:
        return {} if batch is None else self._decide(batch, self._now_ns())

    def _next(self) -> Submission | None:
        while self._queue:
            submission = self._queue.popleft()
            if submission.wanted or submission is self._probe:
                return submission
        return None

    def _finish(self, submission: Submission, outcome: Verdicts | Bypass, took_ns: int) -> None:
        if submission is self._probe:
            self._probe = None
            self.late = took_ns >= self._deadline_s * 1e9
        if submission.wanted:
            submission.outcome = outcome
            submission.done.set()
        else:
            _drop(outcome)


def _drop(outcome: Verdicts | Bypass) -> None:
    """Drop the tickets of verdicts that nobody waits for."""
    if not isinstance(outcome, Bypass):
        with suppress(Exception):  # a mapping of the handler's own may raise anything
            drop_tickets(outcome)


def checked(decided: object) -> Verdicts:
    """Return a handler's answer if it is a mapping.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(decided, Mapping):
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

    def submit(self, batch: Batch) -> Submission | Bypass:
        """Queue a batch on the lane of its connection, as ``Lane.submit`` does."""
        return self.lanes[batch.connection.id % len(self.lanes)].submit(batch)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(lane.run)
