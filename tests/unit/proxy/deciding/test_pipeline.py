from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import NO_VERDICTS, Batch, ConnectionInfo, Hold, Refuse, Response, Ticket, Verdicts
from proxy.deciding.pipeline import Handler, HandlerConfig, HandlerPlugin, HandlerServices, Pipeline, PipelineError

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

A = Resource("line_topic", "a")
ANSWER = Response(None, (), 0, 10)
Decide = Callable[[Batch, int], Any]


def refuse(rule: str) -> Refuse:
    return Refuse(A, rule, 1)


class Scripted(Handler):
    def __init__(self, decide: Decide) -> None:
        self.decide = decide

    def on_requests(self, batch: Batch, now_ns: int) -> Any:
        return self.decide(batch, now_ns)


class Closed(Scripted):
    fails = "closed"


class Async(Scripted):
    async def on_requests(self, batch: Batch, now_ns: int) -> Any:
        await trio.lowlevel.checkpoint()
        return self.decide(batch, now_ns)


@dataclass
class Observer(Handler):
    sees_responses = True
    fault: Exception | None = None
    seen: list[Response] = field(default_factory=list)

    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        return NO_VERDICTS

    def on_responses(self, connection: ConnectionInfo, responses: Sequence[Response]) -> None:
        if self.fault is not None:
            raise self.fault
        self.seen.extend(responses)


def config(name: str, handler: Handler, **options: Any) -> HandlerConfig:
    return HandlerConfig(HandlerPlugin(name, dict, lambda given, services: handler), {}, **options)


@pytest.fixture
def services(now_ns: Callable[[], int]) -> HandlerServices:
    return HandlerServices(Limits(RuleSet()), now_ns)


class Deciding(Pipeline):
    async def decide(self, batch: Batch) -> None:
        """Send one batch through all handlers, which completes ``batch.verdicts``."""
        rest = self.decide_now(batch)
        if rest is not None:
            await rest


Start = Callable[..., Deciding]


@pytest.fixture
async def start(nursery: trio.Nursery, services: HandlerServices, log: list[Any]) -> Start:
    def run(*configs: HandlerConfig) -> Deciding:
        pipeline = Deciding(configs, services)
        nursery.start_soon(pipeline.run)
        return pipeline

    return run


@pytest.fixture(params=["task", "thread", "inline"])
def lane(request: pytest.FixtureRequest) -> str:
    lane: str = request.param
    return lane


class TestBuilding:
    def test_handlers_are_built_from_their_options_and_services(self, services: HandlerServices) -> None:
        built: list[tuple[Any, HandlerServices]] = []

        def build(options: Any, lent: HandlerServices) -> Handler:
            built.append((options, lent))
            return Scripted(lambda batch, now_ns: NO_VERDICTS)

        Pipeline([HandlerConfig(HandlerPlugin("x", dict, build), {"key": 1})], services)
        assert built == [({"key": 1}, services)]

    def test_two_of_one_name_are_refused(self, services: HandlerServices) -> None:
        handler = Scripted(lambda batch, now_ns: NO_VERDICTS)
        with pytest.raises(PipelineError, match="handler 'x' appears twice in the pipeline; remove one"):
            Pipeline([config("x", handler), config("y", handler), config("x", handler)], services)

    @pytest.mark.parametrize("lane", ["thread", "inline"])
    def test_async_handler_is_refused_where_it_cannot_run(self, services: HandlerServices, lane: Any) -> None:
        handler = Async(lambda batch, now_ns: NO_VERDICTS)
        with pytest.raises(
            PipelineError, match=f"handler 'x' is async and cannot run on lane '{lane}'; use lane 'task"
        ):
            Pipeline([config("x", handler, lane=lane)], services)

    def test_handler_that_is_not_thread_safe_is_refused_on_a_thread_lane(self, services: HandlerServices) -> None:
        class Shared(Scripted):
            thread_safe = False

        with pytest.raises(PipelineError, match="'shared' is not thread-safe and cannot run on lane 'thread'"):
            Pipeline([config("shared", Shared(_raise), lane="thread")], services)

    @pytest.mark.parametrize(
        ("what", "value"), [("lanes", 0), ("capacity", 0), ("deadline_ms", 0), ("deadline_ms", float("nan"))]
    )
    def test_lane_without_room_or_time_is_refused(self, services: HandlerServices, what: str, value: float) -> None:
        handler = Scripted(lambda batch, now_ns: NO_VERDICTS)
        with pytest.raises(PipelineError, match=f"handler 'x': {what} must be above 0, not {value}"):
            Pipeline([config("x", handler, **{what: value})], services)


class TestDeciding:
    async def test_verdicts_reach_the_batch_from_every_lane(self, start: Start, batch_of: MakeBatch, lane: str) -> None:
        batch = batch_of("a", "a")
        await start(config("x", Scripted(lambda batch, now_ns: {1: refuse("x")}), lane=lane)).decide(batch)
        assert batch.verdicts == {1: refuse("x")}
        assert batch.bypassed == {}

    async def test_an_inline_handler_gets_the_time(
        self, start: Start, batch_of: MakeBatch, mock_clock: MockClock
    ) -> None:
        times: list[int] = []

        def decide(batch: Batch, now_ns: int) -> Verdicts:
            times.append(now_ns)
            return NO_VERDICTS

        mock_clock.jump(2)
        await start(config("x", Scripted(decide), lane="inline")).decide(batch_of("a"))
        assert times == [2_000_000_000]

    async def test_handlers_decide_in_order_and_see_earlier_verdicts(self, start: Start, batch_of: MakeBatch) -> None:
        seen: list[tuple[str, list[int]]] = []

        def deciding(name: str, index: int) -> Handler:
            def decide(batch: Batch, now_ns: int) -> Verdicts:
                seen.append((name, sorted(batch.verdicts)))
                return {index: refuse(name)}

            return Scripted(decide)

        lanes = {"first": "task", "second": "inline", "third": "thread"}
        batch = batch_of("a", "a", "a")
        pipeline = start(
            *(config(name, deciding(name, number), lane=lane) for number, (name, lane) in enumerate(lanes.items()))
        )
        await pipeline.decide(batch)
        assert seen == [("first", []), ("second", [0]), ("third", [0, 1])]


class Odd(Mapping[int, Any]):
    """A mapping that fails on access."""

    def __getitem__(self, key: int) -> Any:
        raise ValueError(key)

    def __iter__(self) -> Any:
        return iter([0])

    def __len__(self) -> int:
        return 1


def _raise(batch: Batch, now_ns: int) -> Verdicts:
    raise RuntimeError("broken")


FAULTS: dict[str, Decide] = {
    "raises": _raise,
    "exits": lambda batch, now_ns: sys.exit("broken"),
    "no resource": lambda batch, now_ns: {0: Refuse("a", "rule", 0)},  # type: ignore[arg-type]  # the fault
    "none": lambda batch, now_ns: None,
    "list": lambda batch, now_ns: [refuse("x")],
    "wrong index": lambda batch, now_ns: {0: refuse("x"), 5: refuse("x")},
    "no verdict": lambda batch, now_ns: {0: "refuse"},
    "odd mapping": lambda batch, now_ns: Odd(),
    "awaitable": lambda batch, now_ns: Async(FAULTS["none"]).on_requests(batch, now_ns),
}


class TestBypass:
    @pytest.mark.parametrize("fault", [name for name in FAULTS if name != "awaitable"])
    async def test_faulty_handler_is_skipped_and_the_others_still_decide(
        self, start: Start, batch_of: MakeBatch, lane: str, fault: str
    ) -> None:
        batch = batch_of("a", "a")
        pipeline = start(
            config("faulty", Scripted(FAULTS[fault]), lane=lane),
            config("healthy", Scripted(lambda batch, now_ns: {1: refuse("healthy")})),
        )
        await pipeline.decide(batch)
        assert batch.verdicts == {1: refuse("healthy")}
        assert batch.bypassed == {"faulty": "error"}
        assert pipeline.bypassed() == {("faulty", "error"): 2}

    @pytest.mark.parametrize("fault", ["raises", "none", "wrong index"])
    async def test_a_fail_closed_handler_refuses_requests_without_a_verdict(
        self, start: Start, batch_of: MakeBatch, lane: str, fault: str
    ) -> None:
        batch = batch_of("a", "a")
        await start(
            config("first", Scripted(lambda batch, now_ns: {0: refuse("first")})),
            config("faulty", Closed(FAULTS[fault]), lane=lane),
        ).decide(batch)
        assert batch.verdicts == {0: refuse("first"), 1: Refuse(Resource("handler", "faulty"), "faulty", 0)}

    async def test_late_handler_is_counted_by_requests(
        self, start: Start, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        class Stuck(Scripted):
            async def on_requests(self, batch: Batch, now_ns: int) -> Any:
                await trio.sleep_forever()

        pipeline = start(config("stuck", Stuck(FAULTS["none"]), deadline_ms=50))
        first = batch_of("a", "a", "a")
        nursery.start_soon(pipeline.decide, first)
        await wait_all_tasks_blocked()
        mock_clock.jump(0.049)
        await wait_all_tasks_blocked()
        assert first.bypassed == {}
        mock_clock.jump(0.001)
        await wait_all_tasks_blocked()
        assert first.bypassed == {"stuck": "late"}
        await pipeline.decide(batch_of("a"))
        assert pipeline.bypassed() == {("stuck", "late"): 4}
        assert pipeline.lanes()["stuck"][0].late

    async def test_handler_that_answers_at_once_is_never_full_nor_late(self, start: Start, batch_of: MakeBatch) -> None:
        pipeline = start(config("x", Scripted(lambda batch, now_ns: {0: refuse("x")}), capacity=1))
        batches = [batch_of("a") for _ in range(20)]
        assert [pipeline.decide_now(batch) for batch in batches] == [None] * 20
        assert all(batch.verdicts for batch in batches)
        assert pipeline.bypassed() == {}

    async def test_async_handler_behind_a_decorator_is_awaited(self, start: Start, batch_of: MakeBatch) -> None:
        decorated = Async(lambda batch, now_ns: {0: refuse("x")}).on_requests
        pipeline = start(config("x", Scripted(decorated)))
        for _ in range(3):
            batch = batch_of("a")
            await pipeline.decide(batch)
            assert batch.verdicts == {0: refuse("x")}

    async def test_full_handler_that_fails_closed_refuses(
        self, start: Start, batch_of: MakeBatch, nursery: trio.Nursery
    ) -> None:
        class Stuck(Closed):
            async def on_requests(self, batch: Batch, now_ns: int) -> Any:
                await trio.sleep_forever()

        pipeline = start(config("stuck", Stuck(FAULTS["none"]), capacity=1))
        for _ in range(2):
            nursery.start_soon(pipeline.decide, batch_of("a"))
            await wait_all_tasks_blocked()
        batch = batch_of("a")
        await pipeline.decide(batch)
        assert batch.bypassed == {"stuck": "full"}
        assert batch.verdicts == {0: Refuse(Resource("handler", "stuck"), "stuck", 0)}
        assert pipeline.bypassed() == {("stuck", "full"): 1}

    async def test_is_logged_once_a_second_with_its_reason(
        self, start: Start, batch_of: MakeBatch, mock_clock: MockClock, log: list[Any]
    ) -> None:
        pipeline = start(config("faulty", Scripted(_raise)))
        for _ in range(100):
            await pipeline.decide(batch_of("a", "a"))
        error = log[0].pop("error")
        assert error.startswith(f"RuntimeError('broken') at {__file__}:")
        assert log == [
            {
                "event": "handler bypassed",
                "log_level": "warning",
                "handler": "faulty",
                "reason": "error",
                "requests_total": 2,
                "fails": "open",
                "not_logged": 0,
            }
        ]
        mock_clock.jump(1)
        await pipeline.decide(batch_of("a"))
        assert [(entry["requests_total"], entry["not_logged"]) for entry in log] == [(2, 0), (201, 99)]


class TestResponses:
    async def test_are_wanted_only_if_a_handler_asks(self, start: Start) -> None:
        deaf = config("deaf", Scripted(lambda batch, now_ns: NO_VERDICTS))
        assert not start(deaf).wants_responses
        assert start(deaf, config("observer", Observer())).wants_responses

    async def test_reach_every_handler_that_asks(self, start: Start, connection: ConnectionInfo) -> None:
        first, second = Observer(), Observer()
        start(config("first", first), config("second", second)).observe(connection, [ANSWER])
        assert first.seen == second.seen == [ANSWER]

    async def test_a_handler_that_fails_on_them_loses_no_answer(
        self, start: Start, connection: ConnectionInfo, mock_clock: MockClock, log: list[Any]
    ) -> None:
        healthy = Observer()
        pipeline = start(config("faulty", Observer(RuntimeError("broken"))), config("healthy", healthy))
        for _ in range(50):
            pipeline.observe(connection, [ANSWER, ANSWER])
        assert len(healthy.seen) == 100
        assert pipeline.bypassed() == {("faulty", "error"): 100}
        mock_clock.jump(1)
        pipeline.observe(connection, [ANSWER])
        assert [entry["event"] for entry in log] == ["handler failed to process responses"] * 2


class Running(Scripted):
    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        super().__init__(lambda batch, now_ns: NO_VERDICTS)
        self._run = run

    async def run(self) -> None:
        await self._run()


class TestTask:
    async def test_runs_with_the_pipeline_whatever_the_lane(self, start: Start, lane: str) -> None:
        started = trio.Event()

        async def run() -> None:
            started.set()
            await trio.sleep_forever()

        start(config("x", Running(run), lane=lane))
        await started.wait()

    async def test_that_fails_is_counted_logged_and_started_again_a_second_later(
        self, start: Start, batch_of: MakeBatch, mock_clock: MockClock, log: list[Any]
    ) -> None:
        starts: list[float] = []

        async def run() -> None:
            starts.append(trio.current_time())
            await trio.lowlevel.checkpoint()
            if len(starts) < 3:
                sys.exit("broken")

        pipeline = start(config("x", Running(run)))
        for step_s in (0, 0.5, 0.5, 1):
            mock_clock.jump(step_s)
            await wait_all_tasks_blocked()
        assert starts == [0, 1, 2]
        assert pipeline.bypassed() == {("x", "error"): 2}
        assert [entry["event"] for entry in log] == ["handler task failed"] * 2
        assert log[0]["handler"] == "x"
        batch = batch_of("a")
        await pipeline.decide(batch)
        assert batch.bypassed == {}


class TestDrain:
    async def test_reaches_every_handler_even_if_one_fails(self, start: Start, log: list[Any]) -> None:
        class Draining(Scripted):
            ends_ns: int | None = None

            def drain(self, ends_ns: int) -> None:
                self.ends_ns = ends_ns

        class Broken(Scripted):
            def drain(self, ends_ns: int) -> None:
                raise RuntimeError("broken")

        first, last = Draining(FAULTS["none"]), Draining(FAULTS["none"])
        pipeline = start(config("first", first), config("broken", Broken(FAULTS["none"])), config("last", last))
        pipeline.drain(5)
        assert first.ends_ns == last.ends_ns == 5
        assert pipeline.bypassed() == {("broken", "error"): 1}
        assert log[0]["event"] == "handler failed to drain"


class TestTickets:
    """A ticket whose verdict is not used is dropped, so that no request is waited for."""

    @staticmethod
    def holding(dropped: list[bool]) -> Callable[[Batch, int], Verdicts]:
        return lambda batch, now_ns: {0: Hold(A, "slow", Ticket(lambda: dropped.append(True)))}

    async def test_of_a_late_answer_is_dropped(
        self, start: Start, batch_of: MakeBatch, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        dropped: list[bool] = []
        resume = trio.Event()
        hold = self.holding(dropped)

        class Slow(Scripted):
            async def on_requests(self, batch: Batch, now_ns: int) -> Any:
                await resume.wait()
                return hold(batch, now_ns)

        batch = batch_of("a")
        pipeline = start(config("slow", Slow(hold), deadline_ms=50))
        nursery.start_soon(pipeline.decide, batch)
        await wait_all_tasks_blocked()
        mock_clock.jump(0.1)
        await wait_all_tasks_blocked()
        assert batch.bypassed == {"slow": "late"}
        resume.set()
        await wait_all_tasks_blocked()
        assert dropped == [True]

    async def test_of_a_connection_that_ends_in_a_later_handler_is_dropped(
        self, start: Start, batch_of: MakeBatch, nursery: trio.Nursery
    ) -> None:
        dropped: list[bool] = []

        class Stuck(Scripted):
            async def on_requests(self, batch: Batch, now_ns: int) -> Any:
                await trio.sleep_forever()

        pipeline = start(
            config("x", Scripted(self.holding(dropped))), config("stuck", Stuck(FAULTS["none"]), deadline_ms=1e6)
        )
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await pipeline.decide(batch_of("a"))
        assert dropped == [True]


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()
