"""Implements ``control.DataPath`` for one process."""

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import structlog
import trio

from limiter.buckets.limiter import LimiterState
from limiter.counting.accounts import Accounts
from limiter.counting.rejections import DEFAULT_TOLD_APART, TrafficSecond
from limiter.counting.seconds import Span
from limiter.deciding.limits import Limits, SavedLimits, Spent
from limiter.plans.registry import DEFAULT_MAX_LIVE
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension
from limiter.rules.rule_set import RuleSet
from proxy.common.buffers import BufferPool
from proxy.common.clock import Clock
from proxy.common.metric import described
from proxy.common.threads import in_pieces, on_thread
from proxy.control import Cleared, DataPath, LimitCommand, LimitCommandReply
from proxy.datapath.adapting import Adapting
from proxy.datapath.alarm_watch import AlarmConfig, AlarmWatch
from proxy.datapath.explanation import explain
from proxy.datapath.fleet import Fleet, FleetConfig
from proxy.datapath.overview import Overview, direction
from proxy.datapath.pressure import Pressure, by_destination, labelled_confirms
from proxy.datapath.spooling import SpoolConfig, SpoolError, Spooling
from proxy.deciding.batch import ConnectionInfo, Side
from proxy.deciding.counting import Tally
from proxy.deciding.pipeline import HandlerConfig, HandlerServices, Pipeline
from proxy.deciding.rate_limit import caller_of
from proxy.flow import machine
from proxy.flow.alarms import AlarmChange, reason
from proxy.flow.credit import DEFAULT_CREDIT, STORE_CREDIT, Credit
from proxy.flow.diagnosis import CAUSES
from proxy.flow.periods import Periods
from proxy.net.limit_commands import LimitCommands
from proxy.net.reactor import Reactor
from proxy.net.server import ListenerConfig, Server
from proxy.net.services import Services
from proxy.net.sockets import Inherited, format_address
from proxy.net.turn import Lending
from proxy.protocols.base import NO_TERMS, Terms, WireCounters
from proxy.spool.figures import SpoolState
from proxy.stats.flow import Flow, Purged
from proxy.stats.question import Explanation, Question
from proxy.stats.snapshot import (
    AdaptiveState,
    ConfirmState,
    ConnectionState,
    FleetState,
    Held,
    LaneState,
    Limiters,
    ListenerState,
    ResourceCounts,
    ResourceState,
    Snapshot,
)
from proxy.stats.timing import Histogram, Timings

_log = structlog.get_logger(__name__)

_LOAD_S: Final = 0.5
_SATURATED_RATIO: Final = 0.95
_CHECK_HOURS_S: Final = 30.0
#: Avoids a busy loop if the wall clock is slightly behind.
_MIN_WAIT_S: Final = 0.05
#: Held requests are resolved this long before a drain ends, so that they are answered in time.
_DRAIN_MARGIN_S: Final = 0.5
_NS_PER_S: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_utc_now: Final = partial(datetime.now, UTC)


class _Parts(NamedTuple):
    limits: Limits
    tally: Tally
    pipeline: Pipeline
    server: Server
    wire_counters: WireCounters
    timings: Timings
    adapting: Adapting


@dataclass(frozen=True, slots=True)
class CreditConfig:
    stages: Credit = DEFAULT_CREDIT
    store: Credit = STORE_CREDIT


@dataclass(frozen=True, slots=True)
class DataPathConfig:
    listeners: tuple[ListenerConfig, ...]
    handlers: tuple[HandlerConfig, ...]
    rule_set: RuleSet
    max_connections: int = 10_000  # further connections are closed when accepted
    room_for_connections: int | None = None  # see ``Server``
    max_live_limiters: int = DEFAULT_MAX_LIVE  # names that have their own rule are not counted
    max_resource_labels: int = 1000  # distinct names in metrics, not counting those that have their own rule
    buffer_budget_bytes: int = 64 * 1024 * 1024
    max_keys_per_s: int = DEFAULT_TOLD_APART  # distinct refusals per second, by client, group, rule and resource
    max_resources: int = DEFAULT_TOLD_APART  # distinct resources recorded per second
    spool: SpoolConfig | None = None
    credit: CreditConfig = CreditConfig()
    alarms: AlarmConfig = AlarmConfig()  # noqa: RUF009 - frozen
    fleet: FleetConfig | None = None


class LocalDataPath(DataPath):
    """A data path that runs in this process.

    Raises:
        PipelineError: the handlers are invalid.
        ValueError: the credit or an alarm threshold is invalid.
    """

    def __init__(
        self,
        config: DataPathConfig,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._now_ns = now_ns
        self._wall_clock = wall_clock
        # All rules, including scheduled rules that are inactive now.
        self._rule_set = config.rule_set
        self._rules_changed = trio.Event()
        in_force = config.rule_set.at(wall_clock())
        self._accounts = Accounts(
            config.max_resource_labels,
            config.max_keys_per_s,
            config.max_resources,
            now_ns=now_ns(),
            wall_ns=self._wall_ns,
        )
        self._fleet = None if config.fleet is None else Fleet(config.fleet, now_ns=now_ns)
        member = None if self._fleet is None else self._fleet.member
        self._limits = Limits(in_force, config.max_live_limiters, self._accounts, member)
        self._pipeline = Pipeline(config.handlers, HandlerServices(self._limits, now_ns))
        self._tally = Tally(self._accounts)
        self._max_resource_labels = config.max_resource_labels
        self._timings = Timings()
        self._wire_counters = WireCounters(round_trip=self._timings.round_trip)
        self._bytes_read = dict.fromkeys(Side, 0)
        self._commands = LimitCommands()
        self._reactor = Reactor()
        counted = (self._accounts, self._timings, self._wire_counters.frames, self._bytes_read)
        self._lending = None if self._limits.resources is None else Lending(now_ns, *counted)
        self._spooling = Spooling(config.spool, now_ns, self._wall_ns, config.credit.store)
        self._services = services = Services(
            self._pipeline,
            self._tally,
            BufferPool(config.buffer_budget_bytes),
            now_ns,
            self._bytes_read,
            self._limits_kind,
            self._commands,
            self._timings,
            self._reactor,
            self._limiting,
            self._limits.resources,
            self._lending,
            credit=config.credit.stages,
            terms=self._terms,
            tightest=self._limits.tightest,
            after_consume=lambda: self._limits.rule_set.confirms_after_consume,
            rules_version=lambda: self._limits.swaps,
            held_bounds=lambda: self._limits.holding.bounds,
        )
        self.server = Server(
            config.listeners,
            services,
            self._wire_counters,
            max_connections=config.max_connections,
            room=config.room_for_connections,
            before_end=self._spooling.keep,
        )
        folder = None if config.spool is None else config.spool.folder
        self._alarm_watch = AlarmWatch(
            config.alarms,
            folder,
            spool_is_used=self._spooling.is_used,
            held_bytes=self._held_bytes,
            changed=self._alarm_changed,
            now_ns=now_ns,
        )
        self._adapting = Adapting(
            self._limits,
            [listener.scope_name for listener in config.listeners],
            self.server.take_seen,
            now_ns=now_ns,
            wall_ns=self._wall_ns,
        )
        self._busy_ratio = 0.0
        self._saturated = Periods()
        iso = Clock(now_ns, wall_clock).iso_of
        self._pressure = Pressure(
            self.server,
            self._spooling,
            self._alarm_watch,
            lambda: self._busy_ratio,
            saturated=self._saturated,
            now_ns=now_ns,
            iso=iso,
        )
        self._overview = Overview(self._limits, self._accounts, self.server, self._pressure, now_ns=now_ns, iso=iso)

    async def run(
        self,
        *,
        inherited: Inherited | None = None,
        take_over: Callable[[], Awaitable[SavedLimits | None]] | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Bind the listeners, then serve clients until cancelled.

        ``take_over`` returns the previous process's limits. It is awaited before clients are accepted and the spool is
        opened. ``task_status.started()`` is called after the first attempt to connect to each broker.

        Raises:
            ListenError: an address is not available.
            SpoolError: the spool's folder cannot be used.
        """
        try:
            await self.server.bind(inherited)
            if self._fleet is not None:
                await self._fleet.begin()
            saved = None if take_over is None else await take_over()
            if saved is not None:
                self._restore(saved)
            self._services.spool = await self._spooling.open()
            if self._services.spool is None:
                self._alarm_watch.forget_disk()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reactor.run)
                if self._lending is not None:
                    nursery.start_soon(self._lending.run)
                nursery.start_soon(self._pipeline.run)
                nursery.start_soon(self._watch_hours)
                nursery.start_soon(self._measure_load)
                nursery.start_soon(self._adapting.run)
                if self._fleet is not None:
                    nursery.start_soon(self._fleet.run)
                nursery.start_soon(self._alarm_watch.run)
                nursery.start_soon(self._spooling.run)
                await nursery.start(self.server.run)
                task_status.started()
        finally:
            self.server.close()
            self._reactor.close()
            if self._fleet is not None:
                await self._fleet.leave()
            await self._spooling.close()

    def _restore(self, saved: SavedLimits) -> None:
        taken, left = self._limits.restore(saved, self._now_ns())
        if taken or left:
            _log.info("restored limiter state from the previous process", limiters=taken, no_longer_limited=left)

    def descriptors(self) -> list[int]:
        return self.server.descriptors()

    async def hand_over(self, grace_s: float) -> SavedLimits:
        at_once = "another Sluice process is taking over" if self._spooling.is_used() else ""
        await self.server.hold(at_once=at_once)
        self._services.spool = None
        await self._spooling.close()
        now_ns = self._now_ns()
        return await in_pieces(self._limits.save(now_ns, now_ns + round(grace_s * _NS_PER_S)))

    async def resume(self) -> None:
        try:
            self._services.spool = await self._spooling.open()
        except SpoolError as error:
            _log.error("could not reopen the spool; continuing without it", reason=str(error))
        self.server.resume()

    async def save_limits(self) -> SavedLimits:
        now_ns = self._now_ns()
        return await in_pieces(self._limits.save(now_ns, now_ns))

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        return self._limits.spent_since(saved, self._now_ns())

    def debit(self, spent: Iterable[Spent]) -> None:
        self._limits.debit(spent, self._now_ns())

    async def turn(self) -> None:
        await self._pipeline.turn()

    async def apply(self, rule_set: RuleSet) -> None:
        version = self._rule_set.version
        if rule_set.version <= version:
            raise ValueError(f"rule set version {rule_set.version} is not newer than the active version {version}")
        before, self._rule_set = self._rule_set, rule_set
        try:
            self._limits.swap(rule_set.at(self._wall_clock()), self._now_ns())
        except BaseException:
            # Allow another attempt with the same version.
            self._rule_set = before
            raise
        self._rules_changed.set()
        self._adapting.rules_changed()

    async def reset(self, kind: str, name: str) -> Cleared:
        return await in_pieces(self._reset(kind, name))

    def _reset(self, kind: str, name: str) -> Generator[None, None, Cleared]:
        cleared = Cleared()
        for dimension, state in self._limits.reset(kind, name, self._now_ns()):
            if state is not None:
                cleared = _added(cleared, dimension, state)
            yield
        return cleared

    async def _measure_load(self) -> None:
        earlier = before = _busy_and_all_ns()
        while True:
            await trio.sleep(_LOAD_S)
            now = _busy_and_all_ns()
            if now[1] > earlier[1]:
                self._busy_ratio = min(1.0, (now[0] - earlier[0]) / (now[1] - earlier[1]))
                (self._saturated.begin if self._busy_ratio >= _SATURATED_RATIO else self._saturated.end)(self._now_ns())
            earlier, before = before, now

    def _held_bytes(self) -> int:
        """Return the size of held data in bytes. An overestimate would clear a memory alarm too early."""
        spool = self._spooling.spool
        # The sessions may include held requests that the tally counts, so do not add the two.
        held_bytes = max(self._tally.held_bytes, self.server.held_bytes())
        return held_bytes + self._services.ahead.taken_bytes + (0 if spool is None else spool.memory_bytes)

    async def _alarm_changed(self, change: AlarmChange) -> None:
        (_log.warning if change.stands else _log.info)(change.text)
        self.server.alarm = why = reason(self._alarm_watch.alarms)
        await in_pieces(self._stop_publishers(why))

    def _stop_publishers(self, why: str) -> Generator[None, None, None]:
        for connection in self.server.each_connection():
            connection.alarm(why)
            yield

    async def _watch_hours(self) -> None:
        while True:
            self._apply_hours()
            self._rules_changed = trio.Event()
            now = self._wall_clock()
            wait_s = _CHECK_HOURS_S if self._rule_set.has_hours else float("inf")
            change = self._rule_set.next_change(now)
            if change is not None:
                wait_s = min(wait_s, max((change - now).total_seconds(), _MIN_WAIT_S))
            with trio.move_on_after(wait_s):
                await self._rules_changed.wait()

    def _apply_hours(self) -> None:
        now, held = self._wall_clock(), self._limits.rule_set
        with_hours = self._rule_set.with_hours
        now_on = {hours for hours in {rule.hours for rule in with_hours} if hours is not None and hours.holds(now)}
        began = [f"{rule} ({rule.hours})" for rule in with_hours if rule.hours in now_on and not held.holds(rule)]
        ceased = [f"{rule} ({rule.hours})" for rule in with_hours if rule.hours not in now_on and held.holds(rule)]
        if not began and not ceased:
            return
        self._limits.swap(self._rule_set.at(now), self._now_ns())
        self._adapting.rules_changed()
        _log.info("scheduled rules switched", activated=began, deactivated=ceased)

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        many = await on_thread(self._overview.many, self._max_resource_labels) if whole else {}
        return Snapshot(
            **self._kept(),
            **many,
            held=Held(**self._kept(Held)),
            limiters=Limiters(**self._kept(Limiters)),
            # Export zeros, so that the first failure shows as an increase.
            bypassed={(name, "error"): 0 for name in self._pipeline.lanes()} | self._pipeline.bypassed(),
            listeners=tuple(self._listener(config) for config in self.server.listeners),
            frames_total={direction(side): count for side, count in self._wire_counters.frames.items()},
            bytes_total={direction(side): count for side, count in self._bytes_read.items()},
            lanes=tuple(
                LaneState(
                    name,
                    sum(lane.depth for lane in lanes),
                    sum(lane.capacity for lane in lanes),
                    sum(lane.late for lane in lanes),
                )
                for name, lanes in self._pipeline.lanes().items()
            ),
            off_kinds=tuple(sorted(self._limits.rule_set.off_kinds)),
            adaptive=self._adapting.states(whole=False),
            fleet=None if self._fleet is None else self._fleet.state(whole=False),
            alarms=self._pressure.alarms(),
            busy_ratio=self._busy_ratio,
            **await self._waits() if whole else {},
        )

    async def _waits(self) -> dict[str, Any]:
        surveyed = await self._pressure.survey()
        return {
            "stages": surveyed.counts,
            "bottlenecks": dict.fromkeys((cause.name for cause in CAUSES), 0)
            | {finding.cause: finding.connections for finding in surveyed.findings},
            "waited_seconds": await self._pressure.seconds(),
            "spool": await self._pressure.spool(0),
            "confirms": labelled_confirms(await self.confirms(), self._max_resource_labels),
        }

    def _kept(self, struct: type[msgspec.Struct] = Snapshot) -> dict[str, Any]:
        parts = _Parts(
            self._limits,
            self._tally,
            self._pipeline,
            self.server,
            self._wire_counters,
            self._timings,
            self._adapting,
        )
        kept = {}
        for field, metric in described(struct):
            if metric.source:
                value = attrgetter(metric.source)(parts)
                if isinstance(value, Histogram):
                    value = value.durations()
                kept[field] = dict(value) if isinstance(value, dict) else value
        return kept

    def _listener(self, config: ListenerConfig) -> ListenerState:
        watch = self.server.watches[config.name]
        return ListenerState(
            name=config.name,
            listen=format_address(self.server.bound(config.name)),
            broker=format_address(watch.broker),
            connections=self.server.open_connections(config.name),
            listening=watch.listening,
            reachable=watch.error is None,
            error=watch.error,
            backup=watch.backup,
            backups=watch.backups,
            passed_over=watch.passed_over,
        )

    async def totals(self) -> ResourceCounts:
        return await on_thread(self._overview.totals)

    def resources(self, since_ns: int = 0) -> Iterator[ResourceState]:
        return self._overview.resources(since_ns)

    async def connections(self) -> tuple[ConnectionState, ...]:
        return await on_thread(self._overview.connections)

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        connection = self.server.connection(connection_id)
        if connection is None:
            return False
        connection.shutdown.close_at_once("closed_by_operator", reason)
        return True

    async def flow(self, max_connections: int = 100) -> Flow:
        return await self._pressure.flow(max_connections)

    async def confirms(self) -> list[ConfirmState]:
        return by_destination(self.server.confirm_states())

    async def spool(self, max_resources: int = 100) -> SpoolState | None:
        return await self._pressure.spool(max_resources)

    async def purge(self, kind: str, name: str) -> Purged:
        return await self._pressure.purge(Resource(kind, name))

    async def explain(self, question: Question) -> Explanation:
        protocols = [config.protocol for config in self.server.listeners]
        confirms = {Resource(state.kind, state.name): state for state in await self.confirms()}
        return explain(question, self._limits, self.server.listeners, protocols, self._now_ns(), confirms=confirms)

    async def adaptive(self) -> tuple[AdaptiveState, ...]:
        return self._adapting.states()

    async def fleet(self) -> FleetState | None:
        return None if self._fleet is None else await self._fleet.read()

    async def fleet_edits_changed(self, known: bytes | None) -> None:
        await self._member.edits_changed(known)

    async def read_fleet_edits(self) -> Mapping[bytes, bytes]:
        return await self._member.read_edits()

    async def write_fleet_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        return await self._member.write_edits(known, fields, removed)

    @property
    def _member(self) -> Fleet:
        assert self._fleet is not None  # noqa: S101 - callers check whether there is a fleet
        return self._fleet

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        taken = self._accounts.take(self._now_ns(), unfinished=unfinished)
        try:
            return await on_thread(_traffic, self._accounts, taken)
        except BaseException:
            self._accounts.put_back(taken)
            raise

    async def probe_brokers(self) -> tuple[ListenerState, ...]:
        async with trio.open_nursery() as nursery:
            for config in self.server.listeners:
                nursery.start_soon(self.server.reach, config.name)
        return tuple(map(self._listener, self.server.listeners))

    def limit_commands(self) -> AbstractAsyncContextManager[AsyncIterator[LimitCommand]]:
        return self._commands.take()

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        self._commands.reply(command_id, reply)

    async def drain(self, grace_s: float) -> None:
        hold_s = max(grace_s - _DRAIN_MARGIN_S, grace_s / 2)
        self._pipeline.drain(self._now_ns() + round(hold_s * _NS_PER_S))
        await self.server.drain(grace_s)

    def _wall_ns(self) -> int:
        return (self._wall_clock() - _EPOCH) // _US * 1000

    def _limits_kind(self, kind: str) -> bool:
        return self._limits.rule_set.limits_kind(kind)

    def _terms(self, connection: ConnectionInfo, resources: tuple[Resource, ...], consumes: bool) -> Terms:  # noqa: FBT001 - as in SessionContext
        if connection.exempt:
            return NO_TERMS
        return self._limits.terms(resources, caller_of(connection, consumes=consumes))

    def _limiting(self) -> bool:
        return self._limits.rule_set.enabled


def _busy_and_all_ns() -> tuple[int, int]:
    busy_ns = machine.busy_ns()
    return time.thread_time_ns() if busy_ns is None else busy_ns, time.perf_counter_ns()


def _traffic(accounts: Accounts, taken: list[Span]) -> tuple[TrafficSecond, ...]:
    """Convert ``taken`` to traffic. Call this on a thread, because freeing ``taken`` takes milliseconds."""
    seconds = tuple(second for second in accounts.steps_of(taken) if second is not None)
    for span in taken:
        deque(span.drain(), maxlen=0)
    return seconds


def _added(cleared: Cleared, dimension: Dimension, state: LimiterState) -> Cleared:
    debt = max(0.0, -state.stored_permits, -sum(min(0.0, share.stored_permits) for share in state.shares))
    in_bytes = dimension == "bytes"
    return Cleared(
        cleared.limiters + 1,
        cleared.debt_messages + (0.0 if in_bytes else debt),
        cleared.debt_bytes + (debt if in_bytes else 0.0),
        cleared.open_breakers + state.open + sum(share.open for share in state.shares),
        cleared.shares + len(state.shares),
    )
