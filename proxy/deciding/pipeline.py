"""The handler pipeline, and the contract for plug-ins.

Each batch passes through an ordered list of handlers before any of its bytes reach the broker. One instance of a
handler serves all connections.

*Lanes.* A handler runs on its configured lane:

========  ==========================================================================================
task      An async ``on_requests`` is awaited in a trio task with a bounded queue. A sync one is
          called as on lane ``inline``.
thread    A sync ``on_requests`` runs in a worker thread with a bounded queue. If there is more than
          one lane, it must be thread-safe. It may be late while the event loop holds the GIL.
inline    A sync ``on_requests`` is called directly, without a deadline. It must neither block nor
          compute for long, because that would stop all connections.
========  ==========================================================================================

*Order.* A handler is called once per batch. A batch contains the requests from one read on one connection. Batches
arrive in wire order, except that requests with a Later return in separate batches. ``batch.verdicts`` contains the
verdicts of earlier handlers. Do not charge requests that already have a Refuse or a Later.

*Lifetime.* A handler may keep batches, requests and responses, but must not change them.

*Result.* ``on_requests`` returns a mapping from request index to Verdict. Other requests pass. A request with a Hold
waits until the handler resolves its ticket. Later handlers do not see it again, so a handler that holds requests should
be last.

*Background task.* ``run`` starts with the pipeline. If it raises an exception, the error is logged and counted under
reason ``error``, and ``run`` is restarted after a second.

*Errors.* A batch bypasses the handler after an exception (reason ``error``), if the queue is full (``full``), or after
the deadline (``late``). Bypasses are counted, and logged at most once a second. Requests pass if the handler ``fails``
open. If it fails closed, those that can be refused are refused. Late verdicts and their tickets are dropped.

*Responses.* If ``sees_responses`` is True, ``on_responses`` is called with the broker's responses after their bytes are
queued.
"""

import inspect
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import structlog
import trio

from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from proxy.common.log_rate import LogRate
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Response, Verdicts, drop_tickets
from proxy.deciding.executor import Bypass, Executor, LaneStats, Submission, checked

LaneKind = Literal["task", "thread", "inline"]
Fails = Literal["open", "closed"]

_RESTART_PAUSE_S: Final = 1.0

_log = structlog.get_logger(__name__)


class Handler(ABC):
    """Base class for handlers. The module's docstring describes the contract."""

    fails: ClassVar[Fails] = "open"  # on a bypass, requests pass (``open``) or are refused (``closed``)
    sees_responses: ClassVar[bool] = False  # if True, every response is decoded
    thread_safe: ClassVar[bool] = True  # if False, thread lanes are not allowed
    lane: ClassVar[LaneKind] = "task"  # the default lane

    @abstractmethod
    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts | Awaitable[Verdicts]:
        """Decide on the requests of one batch."""

    async def run(self) -> None:  # noqa: B027 - optional
        """Do background work until cancelled. May return early."""

    def drain(self, ends_ns: int) -> None:  # noqa: B027 - optional
        """Resolve all held requests by ``ends_ns``, because the process is shutting down."""

    def on_responses(self, connection: ConnectionInfo, responses: Sequence[Response]) -> None:  # noqa: B027 - optional
        """Observe the broker's responses on one connection."""


@dataclass(frozen=True, slots=True)
class HandlerServices:
    limits: Limits  # not thread-safe. Only for the event loop
    now_ns: Callable[[], int]  # callable from any thread


@dataclass(frozen=True, slots=True)
class HandlerPlugin:
    """An entry point in the group ``sluice.handlers``."""

    name: str  # as in the ``[[handlers]]`` tables of the configuration
    options: type[Any]  # a dataclass or msgspec struct
    build: Callable[[Any, HandlerServices], Handler]


@dataclass(frozen=True, slots=True)
class HandlerConfig:
    plugin: HandlerPlugin
    options: Any  # instance of ``plugin.options``
    lane: LaneKind | None = None  # None for the handler's default
    lanes: int = 1  # each connection uses one
    capacity: int = 10_000  # maximum queued batches per lane
    deadline_ms: float = 20.0  # maximum wait for verdicts


class PipelineError(ValueError):
    """The pipeline is invalid. The message names the handler and says what to do."""


@dataclass(slots=True)
class _Link:
    name: str
    handler: Handler
    executor: Executor | None
    at_once: bool
    bypassed: Counter[str] = field(default_factory=Counter)


class Pipeline:
    """A data path's handlers, in order. Raises PipelineError if a handler is invalid."""

    def __init__(self, configs: Sequence[HandlerConfig], services: HandlerServices) -> None:
        self._now_ns = services.now_ns
        self._log_rate = LogRate()
        self._links: list[_Link] = []
        for config in configs:
            name = config.plugin.name
            if any(link.name == name for link in self._links):
                raise PipelineError(f"handler {name!r} appears twice in the pipeline; remove one of them")
            handler = config.plugin.build(config.options, services)
            executor = _executor(name, handler, config, services.now_ns)
            at_once = (config.lane or handler.lane) != "thread" and not inspect.iscoroutinefunction(handler.on_requests)
            self._links.append(_Link(name, handler, executor, at_once))
        self._observers = [link for link in self._links if link.handler.sees_responses]

    @property
    def wants_responses(self) -> bool:
        return bool(self._observers)

    @property
    def only(self) -> Handler | None:
        """The only handler, or None if there are more or it sees responses."""
        return self._links[0].handler if len(self._links) == 1 and not self._observers else None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for link in self._links:
                if link.executor is not None:
                    nursery.start_soon(link.executor.run, name=f"lanes of {link.name}")
                nursery.start_soon(self._run_handler, link, name=f"task of {link.name}")

    async def _run_handler(self, link: _Link) -> None:
        while True:
            try:
                await link.handler.run()
            except (trio.Cancelled, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - not even sys.exit may lose a message
                link.bypassed["error"] += 1
                _log.exception("handler task failed", handler=link.name, error=_describe(error))
                await trio.sleep(_RESTART_PAUSE_S)
            else:
                return

    async def turn(self) -> None:
        async with trio.open_nursery() as nursery:
            for link in self._links:
                for lane in () if link.executor is None else link.executor.lanes:
                    nursery.start_soon(lane.turn)

    def drain(self, ends_ns: int) -> None:
        for link in self._links:
            try:
                link.handler.drain(ends_ns)
            except Exception as error:  # noqa: BLE001 - a failing handler must not stop a drain
                link.bypassed["error"] += 1
                _log.warning("handler failed to drain", handler=link.name, error=_describe(error))

    def decide_now(self, batch: Batch, first: int = 0) -> Coroutine[Any, Any, None] | None:
        """Pass a batch to the handlers, starting at index ``first``, until a handler must be awaited.

        Returns:
            None if ``batch.verdicts`` is complete, or else a coroutine that completes it.
        """
        try:
            for position in range(first, len(self._links)):
                link = self._links[position]
                outcome = self._ask(link, batch)
                if isinstance(outcome, Submission):
                    return self._decide_later(batch, position, outcome)
                self._take(link, batch, outcome)
        except BaseException:
            drop_tickets(batch.verdicts)
            raise
        return None

    async def _decide_later(self, batch: Batch, position: int, submission: Submission) -> None:
        link = self._links[position]
        try:
            self._take(link, batch, await submission.lane.outcome_of(submission))
            rest = self.decide_now(batch, position + 1)
            if rest is not None:
                await rest
        except BaseException:
            drop_tickets(batch.verdicts)
            raise

    def _take(self, link: _Link, batch: Batch, outcome: Verdicts | Bypass) -> None:
        if not isinstance(outcome, Bypass):
            try:
                batch.add_verdicts(outcome)
            except Exception as error:  # noqa: BLE001 - the handler's own mapping type may raise anything
                with suppress(Exception):
                    drop_tickets(outcome)
                outcome = Bypass("error", error)
            else:
                return
        self._bypass(link, batch, outcome)

    def _ask(self, link: _Link, batch: Batch) -> Verdicts | Bypass | Submission:
        executor = link.executor
        if executor is not None and not link.at_once:
            return executor.submit(batch)
        try:
            decided = link.handler.on_requests(batch, self._now_ns())
            if executor is not None and inspect.iscoroutine(decided):
                # A decorator has hidden an async function. Use the lane for this and all later batches.
                decided.close()
                link.at_once = False
                return executor.submit(batch)
            return checked(decided)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - not even sys.exit may lose a message
            return Bypass("error", error)

    def bypass(self, handler: Handler, error: Exception, requests: int) -> None:
        link = next(link for link in self._links if link.handler is handler)
        self._count_bypass(link, Bypass("error", error), requests)

    def _bypass(self, link: _Link, batch: Batch, bypass: Bypass) -> None:
        batch.bypassed[link.name] = bypass.reason
        if link.handler.fails == "closed":
            refuse = Refuse(Resource("handler", link.name), link.name, 0)
            batch.add_verdicts(dict.fromkeys(range(len(batch.requests)), refuse))
        self._count_bypass(link, bypass, len(batch.requests) + len(batch.charges) + len(batch.paid))

    def _count_bypass(self, link: _Link, bypass: Bypass, count: int) -> None:
        link.bypassed[bypass.reason] += count
        not_logged = self._log_rate.take((link.name, bypass.reason), trio.current_time())
        if not_logged is not None:
            _log.warning(
                "handler bypassed",
                handler=link.name,
                reason=bypass.reason,
                requests_total=link.bypassed[bypass.reason],
                fails=link.handler.fails,
                error=_describe(bypass.error),
                not_logged=not_logged,
            )

    def observe(self, connection: ConnectionInfo, responses: Sequence[Response]) -> None:
        for link in self._observers:
            try:
                link.handler.on_responses(connection, responses)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a failing observer must not lose an answer
                link.bypassed["error"] += len(responses)
                not_logged = self._log_rate.take((link.name, "responses"), trio.current_time())
                if not_logged is not None:
                    _log.warning(
                        "handler failed to process responses",
                        handler=link.name,
                        error=_describe(error),
                        not_logged=not_logged,
                    )

    def bypassed(self) -> dict[tuple[str, str], int]:
        """Return how many requests and charges bypassed each handler, plus its failures, by (handler, reason)."""
        return {(link.name, reason): count for link in self._links for reason, count in link.bypassed.items()}

    def lanes(self) -> dict[str, tuple[LaneStats, ...]]:
        return {
            link.name: tuple(lane.stats() for lane in link.executor.lanes) if link.executor else ()
            for link in self._links
        }


def _describe(error: BaseException | None) -> str | None:
    if error is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{error!r}{where}"


def _executor(name: str, handler: Handler, config: HandlerConfig, now_ns: Callable[[], int]) -> Executor | None:
    lane = config.lane or handler.lane
    if lane != "task" and inspect.iscoroutinefunction(handler.on_requests):
        raise PipelineError(f"handler {name!r} is async and cannot run on lane {lane!r}; use lane 'task'")
    if lane == "thread" and not handler.thread_safe:
        raise PipelineError(f"handler {name!r} is not thread-safe and cannot run on lane 'thread'; use lane 'task'")
    if lane == "inline":
        return None
    for what, value in (("lanes", config.lanes), ("capacity", config.capacity), ("deadline_ms", config.deadline_ms)):
        if not value > 0:
            raise PipelineError(f"handler {name!r}: {what} must be above 0, not {value}")
    return Executor(
        handler.on_requests,
        lanes=config.lanes,
        capacity=config.capacity,
        deadline_s=config.deadline_ms / 1000,
        threaded=lane == "thread",
        now_ns=now_ns,
    )
