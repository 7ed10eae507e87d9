"""The operator's view of back pressure. It is collected on the event loop, a little at a time."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from heapq import nlargest
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec

from limiter.counting.rejections import OTHER
from limiter.rules.resource import Resource
from proxy.common.threads import in_pieces
from proxy.datapath.alarm_watch import AlarmWatch
from proxy.datapath.spooling import Spooling
from proxy.flow.alarms import Alarm, DiskAlarm, MemoryAlarm
from proxy.flow.credit import STATES, Kind, Stage, StageState, State
from proxy.flow.diagnosis import FlowFinding, Survey
from proxy.flow.periods import Periods
from proxy.net.connection import Connection
from proxy.net.server import Server
from proxy.spool.figures import SpooledResource, SpoolState
from proxy.spool.spool import QueueName, Spool
from proxy.stats.flow import MAX_STAGES_SHOWN, ConnectionFlow, Flow, Purged, StageCount
from proxy.stats.snapshot import AlarmState, ConfirmState

_NS: Final = 1_000_000_000
#: Connections that were out of credit for a smaller share of the last minute were only waiting for their turn.
MIN_SHARE: Final = 0.2
_SHOWN_FIRST: Final[tuple[State, ...]] = ("flow", "blocked", "throttled")


def worse(one: State, other: State) -> State:
    return max(one, other, key=STATES.index)


def stages_beside(connection: Connection, now_ns: int) -> tuple[StageState, ...]:
    """Return the writer and session stages that are not running, up to MAX_STAGES_SHOWN of possibly thousands."""
    stages = chain((connection.writer,), connection.session.stages())
    shown = islice((stage for stage in stages if stage.state(now_ns) != "running"), MAX_STAGES_SHOWN)
    return tuple(stage.figures(now_ns) for stage in shown)


class SurveyResult(NamedTuple):
    findings: tuple[FlowFinding, ...]  # findings with the most waiting connections come first
    counts: dict[tuple[Kind, State], int]
    waiting: dict[State, list[Connection]]


class Waiting(NamedTuple):
    by_stage: dict[Stage, int]  # number of spooled messages for each queue's stage
    by_resource: Counter[tuple[str, str]]
    states: dict[str, State]
    oldest_ns: dict[tuple[str, str], int]


class Pressure:
    """Reports back pressure. ``busy_ratio`` returns the event loop's load over the last second, from 0 to 1."""

    def __init__(
        self,
        server: Server,
        spooling: Spooling,
        alarm_watch: AlarmWatch,
        busy_ratio: Callable[[], float],
        *,
        saturated: Periods,
        now_ns: Callable[[], int],
        iso: Callable[[int], str],
    ) -> None:
        self._server = server
        self._spooling = spooling
        self._alarm_watch = alarm_watch
        self._busy_ratio = busy_ratio
        self._saturated = saturated
        self._now_ns, self._iso = now_ns, iso
        #: The last reported totals, which must not decrease if a connection ends while times are being added up.
        self._waited_ns = Counter[State]()

    async def survey(self) -> SurveyResult:
        return await in_pieces(self._survey())

    def _survey(self) -> Generator[None, None, SurveyResult]:
        now_ns = self._now_ns()
        is_saturated = self._saturated.share(now_ns) >= MIN_SHARE
        survey = Survey(now_ns, is_saturated=is_saturated, min_share=MIN_SHARE)
        counts = Counter[tuple[Kind, State]]()
        waiting: dict[State, list[Connection]] = {state: [] for state in _SHOWN_FIRST}
        for connection in self._server.each_connection():
            connection.count_lent()
            stage = connection.stage
            state = stage.state(now_ns)
            counts["connection", state] += 1
            if state != "running":
                waiting[state].append(connection)
            for each in (*connection.session.stages(), connection.writer):
                counts[each.kind, each.state(now_ns)] += 1
            survey.add(stage, connection.writer, is_read=now_ns - connection.read_ns < _NS)
            yield
        if self._spooling.spool is not None:
            counts["store", self._spooling.spool.store.state(now_ns)] += 1
        return SurveyResult(survey.findings(), counts, waiting)

    async def flow(self, max_connections: int) -> Flow:
        surveyed = await self.survey()
        waiting = [connection for state in _SHOWN_FIRST for connection in surveyed.waiting[state]]
        shown = await in_pieces(self._connection_flows(waiting[:max_connections]))
        confirms = by_destination(self._server.confirm_states())
        confirms.sort(key=lambda each: (each.mode != "broker", -each.pending, each.kind, each.name))
        spool = self._spooling.spool
        return Flow(
            findings=surveyed.findings,
            counts=tuple(StageCount(kind, state, stages) for (kind, state), stages in surveyed.counts.items()),
            connections=shown,
            more_connections=max(0, len(waiting) - max_connections),
            store=None if spool is None else spool.store.figures(self._now_ns()),
            alarms=self.alarms(),
            busy_ratio=self._busy_ratio(),
            confirms=tuple(confirms[:max_connections]),
            more_confirms=max(0, len(confirms) - max_connections),
        )

    def _connection_flows(self, waiting: Iterable[Connection]) -> Generator[None, None, tuple[ConnectionFlow, ...]]:
        shown = []
        for connection in waiting:
            if connection.info.id in self._server.connections:
                now_ns = self._now_ns()
                info, own = connection.info, connection.stage.figures(now_ns)
                shown.append(ConnectionFlow(info.id, info.listener, own, stages_beside(connection, now_ns)))
            yield
        return tuple(shown)

    async def seconds(self) -> dict[State, float]:
        """Return the total time that connections have spent in each state, in seconds. It never decreases."""
        return await in_pieces(self._add_seconds())

    def _add_seconds(self) -> Generator[None, None, dict[State, float]]:
        sums = self._server.services.waited_ns.copy()
        for connection in self._server.each_connection(new=False):
            sums.update(connection.stage.waited_ns(self._now_ns()))
            yield
        self._waited_ns |= sums
        return {state: self._waited_ns[state] / _NS for state in _SHOWN_FIRST}

    def alarms(self) -> tuple[AlarmState, ...]:
        return tuple(self._alarm(alarm) for alarm in self._alarm_watch.alarms)

    def _alarm(self, alarm: Alarm) -> AlarmState:
        now_ns = self._now_ns()
        all_periods, texts = [alarm.periods], [alarm.banner]
        bytes_now = bytes_limit = None
        if isinstance(alarm, MemoryAlarm):
            bytes_now, bytes_limit = alarm.used_bytes, alarm.watermark_bytes
        elif isinstance(alarm, DiskAlarm):
            bytes_now, bytes_limit = alarm.free_bytes, alarm.min_bytes
            all_periods.append(self._spooling.failing)
            failure = self._spooling.failure
            texts.append(f"the spool's disk failed ({failure}); clients with spooled messages wait" if failure else "")
        since_ns = [periods.since_ns for periods in all_periods if periods.since_ns is not None]
        return AlarmState(
            alarm.scarce,
            stands=bool(since_ns),
            since=self._iso(min(since_ns)) if since_ns else None,
            total=sum(periods.total for periods in all_periods),
            stood_s=sum(periods.total_ns(now_ns) for periods in all_periods) / _NS,
            text="; ".join(filter(None, texts)),
            bytes_now=bytes_now,
            bytes_limit=bytes_limit,
        )

    async def spool(self, max_resources: int) -> SpoolState | None:
        spool = self._spooling.spool
        return None if spool is None else await in_pieces(_add_queues(spool, max_resources))

    async def waiting(self) -> Waiting:
        return await in_pieces(self._add_waiting())

    def _add_waiting(self) -> Generator[None, None, Waiting]:
        by_stage, by_name, states = dict[Stage, int](), Counter[bytes](), dict[str, State]()
        oldest_by_name, oldest_ns = dict[bytes, int](), dict[tuple[str, str], int]()
        for queue in () if self._spooling.spool is None else self._spooling.spool.queues():
            if queue.stage is not None:
                by_stage[queue.stage] = queue.count
            by_name[queue.name] += queue.count
            if queue.count:
                oldest_by_name[queue.name] = min(queue.oldest_ns, oldest_by_name.get(queue.name, queue.oldest_ns))
            yield
        by_resource = Counter[tuple[str, str]]()
        for encoded, count in by_name.items():
            name = QueueName.read(encoded)
            by_resource[name.kind, name.name] += count
            if encoded in oldest_by_name:
                _keep_oldest(oldest_ns, (name.kind, name.name), oldest_by_name[encoded])
            yield
        for connection in self._server.each_connection(new=False):
            for resource, since_ns in connection.waiting():
                _keep_oldest(oldest_ns, resource, since_ns)
            for stage in connection.session.stages():
                if stage.kind == "resource":
                    states[stage.name] = worse(states.get(stage.name, "running"), stage.state(self._now_ns()))
            yield
        return Waiting(by_stage, by_resource, states, oldest_ns)

    async def purge(self, resource: Resource) -> Purged:
        spool = self._spooling.spool
        if spool is None:
            raise ValueError(f"cannot purge the messages of {resource}: there is no spool")
        return await in_pieces(self._purge(spool, resource))

    def _purge(self, spool: Spool, resource: Resource) -> Generator[None, None, Purged]:
        refused = dropped = 0
        for connection in self._server.each_connection():
            while any(purged := connection.purge(resource)):
                refused, dropped = refused + purged[0], dropped + purged[1]
                yield
            yield
        for queue in spool.take_recovered(lambda name: (name.kind, name.name) == resource):
            dropped += queue.close()
        return Purged(refused, dropped)


def by_destination(states: Iterable[ConfirmState]) -> list[ConfirmState]:
    """Merge the states that different brokers have for the same destination."""
    found: dict[tuple[str, str], ConfirmState] = {}
    for state in states:
        other = found.get((state.kind, state.name))
        found[state.kind, state.name] = state if other is None else _together(other, state)
    return list(found.values())


def labelled_confirms(states: Iterable[ConfirmState], most: int) -> tuple[ConfirmState, ...]:
    """Keep the first ``most`` states. Merge the others into a single state for each kind, named ``_other``."""
    return tuple(
        by_destination(
            state if number < most else msgspec.structs.replace(state, name=OTHER)
            for number, state in enumerate(states)
        )
    )


def _together(one: ConfirmState, other: ConfirmState) -> ConfirmState:
    by_broker = one if one.mode == "broker" else other
    return ConfirmState(
        kind=one.kind,
        name=one.name,
        mode=by_broker.mode,
        reason=by_broker.reason,
        pending=one.pending + other.pending,
        oldest_ms=max(one.oldest_ms, other.oldest_ms),
        window=one.window + other.window,
        after_consume_total=one.after_consume_total + other.after_consume_total,
        broker_total=one.broker_total + other.broker_total,
        persisted_total=one.persisted_total + other.persisted_total,
        nacked_total=one.nacked_total + other.nacked_total,
    )


def _add_queues(spool: Spool, max_resources: int) -> Generator[None, None, SpoolState]:
    resources, by_queue = dict[tuple[str, str], SpooledResource](), dict[bytes, SpooledResource]()
    total = SpooledResource("", "")
    for queue in spool.queues():
        if queue.is_closed:
            continue
        resource = by_queue.get(queue.name)
        if resource is None:
            name = QueueName.read(queue.name)
            resource = resources.setdefault((name.kind, name.name), SpooledResource(name.kind, name.name))
            by_queue[queue.name] = resource
        states = queue.states()
        resource.add(queue, states)
        total.add(queue, states)
        yield
    shown = nlargest(max_resources, resources.values(), key=lambda each: sum(each.messages.values()))
    return msgspec.structs.replace(
        spool.figures(),
        messages=total.messages,
        content_bytes=total.content_bytes,
        resources=tuple(shown),
        more_resources=len(resources) - len(shown),
    )


def _keep_oldest(oldest_ns: dict[tuple[str, str], int], name: tuple[str, str], since_ns: int) -> None:
    oldest_ns[name] = min(since_ns, oldest_ns.get(name, since_ns))
