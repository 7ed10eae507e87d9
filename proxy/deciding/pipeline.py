"""The handler pipeline: the contract for plug-ins, and the order in which they decide.

A pipeline is an ordered list of named handlers, built from configuration. Every batch of every connection goes through
it before any of its bytes reach the broker.

The contract of a handler
=========================
*One instance* serves all connections of a data path.

*Which task.* A handler runs on the lane it is configured for:

========  ==========================================================================================
lane      what it means
========  ==========================================================================================
task      an async ``on_requests`` is awaited in a trio task behind a bounded queue. A sync one is called
          directly, without a deadline, as it never waits. It must not compute for long: that stops every
          connection.
thread    a worker thread behind the same queue. ``on_requests`` must be sync; it may block or compute.
          Several lanes means several threads: then the handler must be thread-safe. It shares the interpreter's lock
          with the loop, and while that is saturated it may be late for want of it.
inline    called directly, must be sync.
========  ==========================================================================================

*How often, in what order.* Once per batch, in the order of the configuration. A batch holds the requests of
one read from one connection. Batches of one connection arrive in the order of the wire, except for requests that come
again after a Later: those come in batches of their own. A handler sees the verdicts of the handlers before it in
``batch.verdicts``. A request keeps the first Refuse it gets, so charge only requests without one, and without a Later.
A Hold gives way to a Refuse, and a Shadow, which only counts, to both. A request whose ``refusal`` is impossible passes
when it gets a Refuse, and only such a request may get a Later.

*What may be kept.* Batches, requests and responses hold no buffers and may be kept; they must not be changed.

*What it answers.* A mapping of request index to Verdict; requests not in it pass. A held request (Hold) waits
with its ticket, which the handler resolves later, on the event loop: it passes or is refused then, and the handlers
behind are not asked again. So a handler that holds comes last.

*Its own task.* ``run`` is started with the pipeline, for what is due at some time. If it raises, that is counted
under reason ``error`` and logged, and it is started again a second later. ``drain`` says that the data path is about to
end.

*What an exception means.* The batch bypasses that handler only. It is counted under reason ``error``, and logged
at most once a second; so is a queue that is full (``full``), and a verdict that is not there after the deadline
(``late``). ``fails`` says what a bypass means: the requests of an ``open`` handler pass, those of a ``closed`` one are
refused if they can be. Late verdicts are dropped with their tickets.

*Responses.* With ``sees_responses`` a handler gets the broker's answers by ``on_responses``, inline, after
their bytes were queued: it observes and can change nothing.
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
    """One link of the pipeline; the contract is this module's docstring."""

    fails: ClassVar[Fails] = "open"  # what a bypass means: ``open`` lets the requests pass, ``closed`` refuses them
    sees_responses: ClassVar[bool] = False  # ask for ``on_responses``; costs the decoding of every answer of the broker
    thread_safe: ClassVar[bool] = True  # False keeps it off thread lanes, because it shares state with the event loop
    lane: ClassVar[LaneKind] = "task"  # where it runs unless the configuration says otherwise

    @abstractmethod
    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts | Awaitable[Verdicts]:
        """Decide the requests of one batch; ``now_ns`` is the monotonic time at which its turn came."""

    async def run(self) -> None:  # noqa: B027 - optional
        """Do what is due by itself, on the event loop, until cancelled; returning at once is fine."""

    def drain(self, ends_ns: int) -> None:  # noqa: B027 - optional
        """Prepare for the end: what is held must be resolved by ``ends_ns``, when its client will be gone."""

    def on_responses(self, connection: ConnectionInfo, responses: Sequence[Response]) -> None:  # noqa: B027 - optional
        """Look at the broker's answers to one connection."""


@dataclass(frozen=True, slots=True)
class HandlerServices:
    """What the data path lends a handler."""

    limits: Limits  # not thread-safe, for use on the event loop
    now_ns: Callable[[], int]  # callable from any thread


@dataclass(frozen=True, slots=True)
class HandlerPlugin:
    """A handler as the entry-point group ``sluice.handlers`` names it."""

    name: str  # the word in the configuration's ``[[handlers]]`` tables
    options: type[Any]  # a dataclass or a msgspec struct; the table's ``options`` are read into it
    build: Callable[[Any, HandlerServices], Handler]


@dataclass(frozen=True, slots=True)
class HandlerConfig:
    """One configured link of the pipeline."""

    plugin: HandlerPlugin
    options: Any  # an instance of ``plugin.options``
    lane: LaneKind | None = None  # where it runs; None leaves it to the handler
    lanes: int = 1  # how many lanes its connections are spread over
    capacity: int = 10_000  # batches that may wait on each lane before it bypasses
    deadline_ms: float = 20.0  # milliseconds a batch waits for its verdict before it bypasses


class PipelineError(ValueError):
    """The configured pipeline cannot be built; the message names the handler and what to change."""


@dataclass(slots=True)
class _Link:
    name: str
    handler: Handler
    executor: Executor | None
    at_once: bool  # the handler answers when it is called
    bypassed: Counter[str] = field(default_factory=Counter)


class Pipeline:
    """The handlers of one data path, first to decide first.

    Raises:
        PipelineError: two links share a name, an async handler is put where only a sync one can run, or a lane's
            figures are not above 0.
    """

    def __init__(self, configs: Sequence[HandlerConfig], services: HandlerServices) -> None:
        self._now_ns = services.now_ns
        self._log_rate = LogRate()
        self._links: list[_Link] = []
        for config in configs:
            name = config.plugin.name
            if any(link.name == name for link in self._links):
                raise PipelineError(f"handler {name!r} stands in the pipeline twice; remove one of them")
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
        """The handler, if it is the only one, and does not see responses."""
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
            except BaseException as error:  # noqa: BLE001 - not even sys.exit costs anybody a message
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
            except Exception as error:  # noqa: BLE001 - a fault of a handler does not stop a drain
                link.bypassed["error"] += 1
                _log.warning("handler failed to drain", handler=link.name, error=_describe(error))

    def decide_now(self, batch: Batch, first: int = 0) -> Coroutine[Any, Any, None] | None:
        """Send one batch through the handlers from ``first`` on, as far as that goes without waiting for a lane.

        Returns:
            What is to be awaited for ``batch.verdicts`` to be complete; None if they are.
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
            # The connection has ended meanwhile: nobody is left who would wait for what is held.
            drop_tickets(batch.verdicts)
            raise

    def _take(self, link: _Link, batch: Batch, outcome: Verdicts | Bypass) -> None:
        if not isinstance(outcome, Bypass):
            try:
                batch.add_verdicts(outcome)
            except Exception as error:  # noqa: BLE001 - a mapping of the handler's own may raise anything
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
                # An async function behind a decorator: all its batches hop from now on.
                decided.close()
                link.at_once = False
                return executor.submit(batch)
            return checked(decided)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - not even sys.exit costs anybody a message
            return Bypass("error", error)

    def bypass(self, handler: Handler, error: Exception, requests: int) -> None:
        """Count requests that a handler has not decided because of an error, outside of a batch."""
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
            except BaseException as error:  # noqa: BLE001 - an observer costs nobody an answer
                link.bypassed["error"] += len(responses)
                not_logged = self._log_rate.take((link.name, "responses"), trio.current_time())
                if not_logged is not None:
                    _log.warning(
                        "handler failed on responses",
                        handler=link.name,
                        error=_describe(error),
                        not_logged=not_logged,
                    )

    def bypassed(self) -> dict[tuple[str, str], int]:
        """Return by (handler, reason) what bypassed so far: requests and charges, and what a handler failed on."""
        return {(link.name, reason): count for link in self._links for reason, count in link.bypassed.items()}

    def lanes(self) -> dict[str, tuple[LaneStats, ...]]:
        """Return the figures of each handler's lanes; a handler on lane ``inline`` has none."""
        return {
            link.name: tuple(lane.stats() for lane in link.executor.lanes) if link.executor else ()
            for link in self._links
        }


def _describe(error: BaseException | None) -> str | None:
    """Name an error and the line that raised it, for people who write handlers."""
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
            raise PipelineError(f"handler {name!r} has {what} {value}; it must be above 0")
    return Executor(
        handler.on_requests,
        lanes=config.lanes,
        capacity=config.capacity,
        deadline_s=config.deadline_ms / 1000,
        threaded=lane == "thread",
        now_ns=now_ns,
    )
