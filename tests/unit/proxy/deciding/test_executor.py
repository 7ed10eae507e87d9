from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.resource import Resource
from proxy.deciding import executor as executor_module
from proxy.deciding.batch import NO_VERDICTS, Batch, Hold, Refuse, Ticket, Verdicts
from proxy.deciding.executor import Bypass, Executor

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

DEADLINE_S = 0.02
JUST_BEFORE_S = 0.019_999_999
REFUSED: Verdicts = {0: Refuse(Resource("line_topic", "a"), "rule", 7)}
LATE = Bypass("late")
FULL = Bypass("full")

StartExecutor = Callable[..., Awaitable[Executor]]


@pytest.fixture
async def start(nursery: trio.Nursery, now_ns: Callable[[], int]) -> StartExecutor:
    """Start executors, by default with one lane with room for ten, and a deadline of 20 ms."""

    async def run(decide: Any, *, lanes: int = 1, capacity: int = 10, lane: str = "task") -> Executor:
        executor = Executor(
            decide, lanes=lanes, capacity=capacity, deadline_s=DEADLINE_S, threaded=lane == "thread", now_ns=now_ns
        )
        nursery.start_soon(executor.run)
        await wait_all_tasks_blocked()
        return executor

    return run


async def outcome_of(executor: Executor, batch: Batch) -> Verdicts | Bypass:
    outcome = executor.submit(batch)
    return await outcome.lane.outcome_of(outcome) if isinstance(outcome, executor_module.Submission) else outcome


class Submission:
    def __init__(self, nursery: trio.Nursery, executor: Executor, batch: Batch) -> None:
        self.outcome: Verdicts | Bypass | None = None
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        nursery.start_soon(self._run, executor, batch)

    async def _run(self, executor: Executor, batch: Batch) -> None:
        with self.scope:
            self.outcome = await outcome_of(executor, batch)
        self.done.set()


class Gate:
    """A handler that waits at a gate, by awaiting or on its thread, and records the connections it began with and
    decided.
    """

    def __init__(self) -> None:
        self.open = trio.Event()
        self.open_for_threads = threading.Event()
        self.began: list[int] = []
        self.decided: list[int] = []

    async def awaiting(self, batch: Batch, now_ns: int) -> Verdicts:
        self.began.append(batch.connection.id)
        # Without a yield once it is open: on a busy loop it would cost each queued one a turn.
        if not self.open.is_set():
            await self.open.wait()
        self.decided.append(batch.connection.id)
        return REFUSED

    def computing(self, batch: Batch, now_ns: int) -> Verdicts:
        self.began.append(batch.connection.id)
        self.open_for_threads.wait()
        self.decided.append(batch.connection.id)
        return REFUSED

    def release(self) -> None:
        self.open.set()
        self.open_for_threads.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open_for_threads.set()


def jump_to(clock: MockClock, time_s: float) -> None:
    clock.jump(time_s - clock.current_time())


async def until(predicate: Callable[[], object]) -> None:
    """Run other tasks and threads until a condition is true, without a step of the mock clock."""
    client_timeout_s = time.monotonic() + 60
    while time.monotonic() < client_timeout_s:
        if predicate():
            return
        # A hop to a thread lets the loop idle, and releases the interpreter's lock.
        await trio.to_thread.run_sync(int)
    pytest.fail("did not come about within a minute")


async def until_begun(gate: Gate) -> None:
    await until(lambda: gate.began)


async def until_decided(gate: Gate, *connection_ids: int) -> None:
    await until(lambda: gate.decided == list(connection_ids))


def late_lanes(executor: Executor) -> int:
    return sum(lane.late for lane in executor.lanes)


class TestHealthyLane:
    async def test_async_handler_is_awaited(self, start: StartExecutor, batch_of: MakeBatch, gate: Gate) -> None:
        gate.release()
        executor = await start(gate.awaiting)
        assert await outcome_of(executor, batch_of("a")) == REFUSED

    async def test_thread_lane_decides_on_another_thread(self, start: StartExecutor, batch_of: MakeBatch) -> None:
        threads = []

        def decide(batch: Batch, now_ns: int) -> Verdicts:
            threads.append(threading.current_thread())
            return NO_VERDICTS

        executor = await start(decide, lane="thread")
        assert await outcome_of(executor, batch_of("a")) == NO_VERDICTS
        assert threads != [threading.current_thread()]

    @pytest.mark.parametrize("lane", ["task", "thread"])
    async def test_a_handler_gets_the_time_of_its_turn(
        self, start: StartExecutor, batch_of: MakeBatch, mock_clock: MockClock, lane: str
    ) -> None:
        times: list[int] = []

        def decide(batch: Batch, now_ns: int) -> Verdicts:
            times.append(now_ns)
            return NO_VERDICTS

        executor = await start(decide, lane=lane)
        mock_clock.jump(1.5)
        await outcome_of(executor, batch_of("a"))
        assert times == [1_500_000_000]

    @pytest.mark.parametrize("lane", ["task", "thread"])
    async def test_batches_of_a_connection_keep_their_order(
        self, start: StartExecutor, batch_of: MakeBatch, lane: str
    ) -> None:
        seen: list[int] = []

        def decide(batch: Batch, now_ns: int) -> Verdicts:
            seen.append(batch.requests[0].messages)
            return NO_VERDICTS

        executor = await start(decide, lanes=3, capacity=100, lane=lane)
        for number in range(30):
            await outcome_of(executor, batch_of("a", costs=[number], connection_id=5))
        assert seen == list(range(30))

    async def test_connection_is_pinned_to_one_lane(
        self, start: StartExecutor, batch_of: MakeBatch, nursery: trio.Nursery, gate: Gate
    ) -> None:
        executor = await start(gate.awaiting, lanes=2)
        for connection_id in (2, 4, 6, 3):
            Submission(nursery, executor, batch_of("a", connection_id=connection_id))
        await wait_all_tasks_blocked()
        # The lane of even connections has one in the handler and two in the queue.
        assert [lane.stats().depth for lane in executor.lanes] == [2, 0]
        gate.release()


@pytest.mark.parametrize("kind", ["awaiting", "computing"])
class TestBlockedLane:
    """The handler waits, on the loop or on its thread, with the same result."""

    @pytest.fixture
    async def executor(self, start: StartExecutor, gate: Gate, kind: str) -> Executor:
        return await start(getattr(gate, kind), lane={"awaiting": "task", "computing": "thread"}[kind])

    async def test_first_batch_bypasses_at_the_deadline_and_not_before(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock, gate: Gate
    ) -> None:
        first = Submission(nursery, executor, batch_of("a"))
        await until_begun(gate)
        jump_to(mock_clock, JUST_BEFORE_S)
        await wait_all_tasks_blocked()
        assert not first.done.is_set()
        jump_to(mock_clock, DEADLINE_S)
        await wait_all_tasks_blocked()
        assert first.outcome == LATE

    async def test_next_batch_bypasses_at_once(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock, gate: Gate
    ) -> None:
        await self.make_late(executor, batch_of, nursery, mock_clock, gate)
        for _ in range(100):
            assert await outcome_of(executor, batch_of("a")) == LATE
        assert mock_clock.current_time() == DEADLINE_S
        assert executor.lanes[0].stats().late

    async def test_each_waiting_batch_bypasses_at_its_own_deadline(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock, gate: Gate
    ) -> None:
        first = Submission(nursery, executor, batch_of("a"))
        await until_begun(gate)
        jump_to(mock_clock, 0.015)
        second = Submission(nursery, executor, batch_of("a", connection_id=2))
        await wait_all_tasks_blocked()
        jump_to(mock_clock, DEADLINE_S)
        await first.done.wait()
        await wait_all_tasks_blocked()
        assert not second.done.is_set()
        jump_to(mock_clock, 0.035)
        await second.done.wait()
        assert second.outcome == LATE

    async def test_turn_ends_once_the_queue_is_served(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, gate: Gate
    ) -> None:
        await executor.lanes[0].turn()
        Submission(nursery, executor, batch_of("a"))
        await until_begun(gate)
        turned = trio.Event()

        async def turn() -> None:
            await executor.lanes[0].turn()
            turned.set()

        nursery.start_soon(turn)
        await wait_all_tasks_blocked()
        assert not turned.is_set()
        gate.release()
        await turned.wait()

    async def test_limiting_resumes_once_the_probe_comes_back(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock, gate: Gate
    ) -> None:
        await self.make_late(executor, batch_of, nursery, mock_clock, gate)
        # The probe has been bypassed, and is decided when the lane reaches it.
        assert await outcome_of(executor, batch_of("a", connection_id=3)) == LATE
        mock_clock.jump(3600)
        gate.release()
        await until_decided(gate, 1, 3)
        await until(lambda: not late_lanes(executor))
        assert await outcome_of(executor, batch_of("a", connection_id=4)) == REFUSED

    async def test_late_verdicts_are_dropped(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock, gate: Gate
    ) -> None:
        late = await self.make_late(executor, batch_of, nursery, mock_clock, gate)
        gate.release()
        await until_decided(gate, 1)
        assert late.outcome == LATE

    async def test_batch_of_a_cancelled_connection_is_skipped(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, gate: Gate
    ) -> None:
        first = Submission(nursery, executor, batch_of("a", connection_id=1))
        await until_begun(gate)
        gone = Submission(nursery, executor, batch_of("a", connection_id=2))
        last = Submission(nursery, executor, batch_of("a", connection_id=3))
        await wait_all_tasks_blocked()
        gone.scope.cancel()
        await gone.done.wait()
        gate.release()
        await first.done.wait()
        await last.done.wait()
        assert gate.decided == [1, 3]
        assert gone.outcome is None

    async def test_cancelled_connection_does_not_make_the_lane_late(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock, gate: Gate
    ) -> None:
        gone = Submission(nursery, executor, batch_of("a"))
        await until_begun(gate)
        gone.scope.cancel()
        await gone.done.wait()
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert not late_lanes(executor)

    async def test_full_queue_bypasses_at_once(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, gate: Gate
    ) -> None:
        first = Submission(nursery, executor, batch_of("a"))
        await until_begun(gate)
        queued = [Submission(nursery, executor, batch_of("a")) for _ in range(10)]
        await wait_all_tasks_blocked()
        assert await outcome_of(executor, batch_of("a")) == FULL
        gate.release()
        for submission in (first, *queued):
            await submission.done.wait()
            assert submission.outcome == REFUSED
        assert await outcome_of(executor, batch_of("a")) == REFUSED

    async def make_late(
        self, executor: Executor, batch_of: MakeBatch, nursery: trio.Nursery, clock: MockClock, gate: Gate
    ) -> Submission:
        submission = Submission(nursery, executor, batch_of("a"))
        await until_begun(gate)
        jump_to(clock, DEADLINE_S)
        await submission.done.wait()
        assert submission.outcome == LATE
        return submission


class TestSlowLane:
    async def test_handler_that_is_always_too_slow_is_waited_for_once(
        self, start: StartExecutor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        async def slow(batch: Batch, now_ns: int) -> Verdicts:
            await trio.sleep(0.03)
            return REFUSED

        executor = await start(slow)
        first = Submission(nursery, executor, batch_of("a"))
        await wait_all_tasks_blocked()
        mock_clock.jump(DEADLINE_S)
        await first.done.wait()
        for _ in range(20):
            before_s = mock_clock.current_time()
            assert await outcome_of(executor, batch_of("a")) == LATE
            assert mock_clock.current_time() == before_s
            # The probe is always in progress, and always too late.
            mock_clock.jump(0.01)
            await wait_all_tasks_blocked()
        assert late_lanes(executor) == 1

    async def test_handler_that_stays_below_the_deadline_is_never_bypassed(
        self, start: StartExecutor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        async def slow(batch: Batch, now_ns: int) -> Verdicts:
            await trio.sleep(0.019)
            return REFUSED

        executor = await start(slow)
        for _ in range(5):
            submission = Submission(nursery, executor, batch_of("a"))
            await wait_all_tasks_blocked()
            mock_clock.jump(0.019)
            await submission.done.wait()
            assert submission.outcome == REFUSED


@pytest.mark.parametrize("lane", ["task", "thread"])
class TestRaisingHandler:
    async def test_is_bypassed_and_the_next_batch_decided(
        self, start: StartExecutor, batch_of: MakeBatch, lane: str
    ) -> None:
        fault = RuntimeError("broken")

        def decide(batch: Batch, now_ns: int) -> Verdicts:
            if batch.connection.id == 1:
                raise fault
            return REFUSED

        executor = await start(decide, lane=lane)
        assert await outcome_of(executor, batch_of("a", connection_id=1)) == Bypass("error", fault)
        assert await outcome_of(executor, batch_of("a", connection_id=2)) == REFUSED
        assert not late_lanes(executor)

    @pytest.mark.parametrize("nonsense", [None, [0], True, "refuse"])
    async def test_an_answer_other_than_a_mapping_counts_as_an_error_at_once(
        self, start: StartExecutor, batch_of: MakeBatch, lane: str, nonsense: object
    ) -> None:
        executor = await start(lambda batch, now_ns: nonsense, lane=lane)
        outcome = await outcome_of(executor, batch_of("a"))
        assert isinstance(outcome, Bypass)
        assert outcome.reason == "error"
        assert isinstance(outcome.error, TypeError)
        assert not late_lanes(executor)


async def test_async_handler_that_raises_is_bypassed(start: StartExecutor, batch_of: MakeBatch) -> None:
    async def decide(batch: Batch, now_ns: int) -> Verdicts:
        await trio.lowlevel.checkpoint()
        raise ExceptionGroup("several", [ValueError(), KeyError()])

    executor = await start(decide)
    outcome = await outcome_of(executor, batch_of("a"))
    assert isinstance(outcome, Bypass)
    assert isinstance(outcome.error, ExceptionGroup)


async def test_awaitable_on_a_thread_lane_is_an_error(
    start: StartExecutor, batch_of: MakeBatch, gate: Gate, recwarn: pytest.WarningsRecorder
) -> None:
    executor = await start(gate.awaiting, lane="thread")
    outcome = await outcome_of(executor, batch_of("a"))
    assert isinstance(outcome, Bypass)
    assert isinstance(outcome.error, TypeError)
    assert not recwarn.list


async def test_a_verdicts_tickets_are_dropped_exactly_when_it_is_unused(
    start: StartExecutor, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    # The answers arrive as the deadline is noticed. Trio randomizes the order within a turn.
    resource = Resource("line_topic", "a")
    outcomes: set[str] = set()
    for turns in list(range(8)) * 10:
        ticket = Ticket(lambda: None)

        async def decide(batch: Batch, now_ns: int, turns: int = turns, ticket: Ticket = ticket) -> Verdicts:
            await trio.sleep(DEADLINE_S)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            return {0: Hold(resource, "rule", ticket)}

        executor = await start(decide)
        submission = Submission(nursery, executor, batch_of("a"))
        await wait_all_tasks_blocked()
        mock_clock.jump(DEADLINE_S)
        await submission.done.wait()
        await wait_all_tasks_blocked()
        assert ticket.dropped == isinstance(submission.outcome, Bypass), turns
        outcomes.add("late" if ticket.dropped else "taken")
    assert outcomes == {"late", "taken"}


class TestBusyLoop:
    """A late loop, because 64 connections compute longer than the deadline each turn."""

    CONNECTIONS = 64
    ROUNDS = 30

    async def hog(
        self, executor: Executor, batch_of: MakeBatch, clock: MockClock, rounds: int = ROUNDS
    ) -> list[Verdicts | Bypass]:
        outcomes: list[Verdicts | Bypass] = []

        async def connection(connection_id: int) -> None:
            for _ in range(rounds):
                # Like decoding in a session: time passes without other tasks.
                clock.jump(0.025)
                outcomes.append(await outcome_of(executor, batch_of("a", connection_id=connection_id)))
                clock.jump(0.025)
                # Like a socket that is always readable.
                await trio.lowlevel.checkpoint()

        async def flood() -> None:
            while True:
                clock.jump(0.025)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as flooding:
            flooding.start_soon(flood)
            async with trio.open_nursery() as connections:
                for connection_id in range(self.CONNECTIONS):
                    connections.start_soon(connection, connection_id)
            flooding.cancel_scope.cancel()
        return outcomes

    @pytest.mark.parametrize("lanes", [1, 4])
    async def test_does_not_make_a_healthy_lane_late(
        self, start: StartExecutor, batch_of: MakeBatch, mock_clock: MockClock, lanes: int
    ) -> None:
        executor = await start(lambda batch, now_ns: REFUSED, lanes=lanes, capacity=self.CONNECTIONS)
        outcomes = await self.hog(executor, batch_of, mock_clock)
        assert len(outcomes) == self.CONNECTIONS * self.ROUNDS
        assert all(outcome == REFUSED for outcome in outcomes)

    async def test_does_not_make_a_handler_late_that_yields_once(
        self, start: StartExecutor, batch_of: MakeBatch, mock_clock: MockClock
    ) -> None:
        """A connection alone on its lane. Behind others it would wait a turn for each."""

        async def decide(batch: Batch, now_ns: int) -> Verdicts:
            await trio.lowlevel.checkpoint()
            return REFUSED

        executor = await start(decide, lanes=self.CONNECTIONS)
        outcomes = await self.hog(executor, batch_of, mock_clock, rounds=5)
        assert all(outcome == REFUSED for outcome in outcomes)

    async def test_does_not_hide_a_lane_that_really_waits(
        self, start: StartExecutor, batch_of: MakeBatch, mock_clock: MockClock, gate: Gate
    ) -> None:
        executor = await start(gate.awaiting, capacity=self.CONNECTIONS)
        outcomes = await self.hog(executor, batch_of, mock_clock, rounds=3)
        assert outcomes == [LATE] * self.CONNECTIONS * 3
