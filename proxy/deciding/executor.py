"""Lanes for handlers that wait. A lane is a trio task with a bounded queue.

Passing a batch to a task takes about 16 µs, and to a thread 219 µs. The pipeline therefore directly calls handlers that
do not wait.

Batches bypass a lane that is full or late. A lane is late if it misses the deadline, which is counted from the start of
its turn. It stays late until a probe returns in time. A busy event loop must not make lanes late, because a flood of
requests would then disable the handlers. A lane therefore serves its entire queue in one turn, and gets one more chance
to run after the deadline.
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
"""The second argument is the monotonic time in nanoseconds."""

BypassReason = Literal["full", "late", "error"]


@dataclass(frozen=True, slots=True)
class Bypass:
    reason: BypassReason
    error: BaseException | None = None  # set if the reason is ``error``


@dataclass(frozen=True, slots=True)
class LaneStats:
    depth: int
    capacity: int
    late: bool


class Submission:
    """A queued batch. A submission without a batch only tests whether the lane is running."""

    __slots__ = ("batch", "done", "lane", "outcome", "wanted")

    def __init__(self, lane: "Lane", batch: Batch | None) -> None:
        self.lane = lane
        self.batch = batch
        self.done = trio.Event()
        self.outcome: Verdicts | Bypass | None = None
        self.wanted = True


class Lane:
    """A queue and the task that serves it. The deadline limits how long a batch waits, not how long ``decide`` runs."""

    def __init__(
        self, decide: Decide, *, capacity: int, deadline_s: float, threaded: bool, now_ns: Callable[[], int]
    ) -> None:
        self.late = False
        self._decide = decide
        self._capacity = capacity
        self._deadline_s = deadline_s
        self._threaded = threaded
        self._now_ns = now_ns
        self._thread_limiter = trio.CapacityLimiter(1)
        self._queue: deque[Submission] = deque()
        self._filled = trio.Event()
        # Start of the current turn. None between turns.
        self._turn_s: float | None = None
        self._probe: Submission | None = None

    def stats(self) -> LaneStats:
        return LaneStats(len(self._queue), self._capacity, self.late)

    def submit(self, batch: Batch) -> Submission | Bypass:
        """Queue a batch. Return a submission for ``outcome_of``, or a Bypass if the lane is full or late."""
        if not self.late:
            submission = Submission(self, batch)
            return submission if self._put(submission) else Bypass("full")
        if self._probe is None:
            # Assign this before a thread can take it from the queue.
            self._probe = Submission(self, batch)
            self._probe.wanted = False
            if not self._put(self._probe):
                self._probe = None
        return Bypass("late")

    async def outcome_of(self, submission: Submission) -> Verdicts | Bypass:
        try:
            due_s = trio.current_time() + self._deadline_s
            while not await self._done_by(due_s, submission):
                now_s = trio.current_time()
                # If the handler merely yielded, give it one more turn of the loop.
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
        """Wait until the lane has served its current queue. If a handler hangs, this does not return."""
        submission = Submission(self, None)
        while not self._put(submission):  # noqa: ASYNC110 - there is no event for room in the queue
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
            except BaseException as error:  # noqa: BLE001 - not even sys.exit may lose a message
                outcome = Bypass("error", error)
            self._finish(submission, outcome, self._now_ns() - began_ns)

    def _serve_on_thread(self, loop: trio.lowlevel.TrioToken) -> None:
        while (submission := self._next()) is not None:
            began_ns = self._now_ns()
            try:
                outcome: Verdicts | Bypass = checked(self._ask(submission.batch))
            except BaseException as error:  # noqa: BLE001 - a thread is neither cancelled nor interrupted
                outcome = Bypass("error", error)
            loop.run_sync_soon(self._finish, submission, outcome, self._now_ns() - began_ns)
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
    if not isinstance(outcome, Bypass):
        with suppress(Exception):  # a handler's own mapping type may raise anything
            drop_tickets(outcome)


def checked(decided: object) -> Verdicts:
    if not isinstance(decided, Mapping):
        if inspect.iscoroutine(decided):
            decided.close()
        raise TypeError(f"a handler must return a mapping from request index to verdict, not {decided!r}")
    return decided


class Executor:
    """Distributes connections across lanes. Each connection uses only one lane, so its batches stay in order."""

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
        return self.lanes[batch.connection.id % len(self.lanes)].submit(batch)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(lane.run)
