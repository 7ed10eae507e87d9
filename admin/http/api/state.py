"""The services that the endpoints use, and the answer of ``GET state``."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from admin.common.clock import Clock
from admin.common.version import sluice_version
from admin.edits.model import FailedReload, LimitEntry, SwitchEntry
from admin.edits.service import EditService
from admin.rejection_log.advice import AdviceReader
from admin.rejection_log.history import HistoryReader
from admin.stats import LiveStats
from admin.stats.rows import NS_PER_S
from admin.wire import (
    Alarm,
    Edits,
    Expiring,
    Flow,
    Held,
    LaneState,
    Limiters,
    ListenerReach,
    RejectionLog,
    SpoolFolder,
    StageCount,
    State,
    Totals,
    Verdicts,
)
from proxy.common.threads import on_thread
from proxy.control import DataPath
from proxy.stats.flow import AlarmState, FlowState
from proxy.stats.snapshot import ConfirmState, Snapshot


def _none() -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Services:
    """What the endpoints use; ``edits`` and ``stats`` must be running."""

    data_path: DataPath
    edits: EditService
    stats: LiveStats
    warnings: Callable[[], Sequence[str]] = _none
    instance: str = ""
    rejection_log: Callable[[], RejectionLog] = RejectionLog
    failed_reload: Callable[[], FailedReload | None] = lambda: None
    spool: Callable[[], SpoolFolder] = SpoolFolder
    history: HistoryReader = field(default_factory=HistoryReader)
    advice: AdviceReader = field(default_factory=AdviceReader)


class Status:
    """Puts the state of Sluice together."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = services.stats.clock
        self._started_ns = self._clock.now_ns()
        self._started_at = self._clock.iso_now()
        self._version = sluice_version()
        self._edits: tuple[Sequence[LimitEntry], str, Edits] | None = None

    async def state(self) -> State:
        """Return the state; its figures are at most a second old."""
        services, stats = self._services, self._services.stats
        snapshot = await stats.fresh()
        switches = services.edits.switches()
        traffic = stats.traffic
        return State(
            version=self._version,
            instance=services.instance,
            started_at=self._started_at,
            uptime_s=round((self._clock.now_ns() - self._started_ns) / NS_PER_S, 1),
            limiting=services.edits.rule_set.enabled,
            off=tuple(switch.kind for switch in switches if not switch.limiting),
            draining=snapshot.draining,
            listeners=self._listeners(snapshot),
            totals=Totals(
                messages=Verdicts(*traffic.messages),
                requests=Verdicts(*traffic.requests),
                connections=sum(snapshot.connections_total.values()),
                connections_open=sum(listener.connections for listener in snapshot.listeners),
                bytes=snapshot.bytes_total,
                frames=snapshot.frames_total,
                closed=_by_reason(snapshot.closed_total),
                undecodable=snapshot.undecodable_total,
                lost_messages=sum(snapshot.lost_messages.values()),
                lost_bytes=sum(snapshot.lost_bytes.values()),
            ),
            rates=traffic.rates(),
            history=traffic.history(stats.steps),
            bypassed=traffic.bypassed(snapshot),
            lanes=tuple(
                LaneState(handler, depth.queued, depth.capacity, depth.late_lanes)
                for handler, depth in snapshot.lanes.items()
            ),
            held=Held(
                snapshot.held_requests,
                snapshot.held_bytes,
                {str(bound): n for bound, n in snapshot.hold_refused.items()},
            ),
            limiters=Limiters(snapshot.live_limiters, snapshot.evicted_total, snapshot.overflowed_total),
            persistence=services.edits.persistence,
            edits=await self._standing(switches),
            rejection_log=services.rejection_log(),
            alarms=tuple(alarm_of(alarm, self._clock) for alarm in snapshot.alarms),
            spool=services.spool(),
            failed_reload=services.failed_reload(),
            warnings=tuple(services.warnings()),
            rule_set_version=services.edits.rule_set.version,
            etag=services.edits.etag,
        )

    def _listeners(self, snapshot: Snapshot) -> tuple[ListenerReach, ...]:
        reaches = self._services.stats.reaches
        return tuple(
            ListenerReach(
                name=listener.name,
                listen=listener.listen,
                broker=listener.broker,
                connections=listener.connections,
                listening=listener.listening,
                # Of the same moment as whether it listens.
                reachable=listener.error is None if listener.name in reaches else None,
                error=listener.error if listener.name in reaches else None,
                backup=listener.backup,
                backups=listener.backups,
                passed_over=listener.passed_over,
            )
            for listener in snapshot.listeners
        )

    async def _standing(self, switches: Sequence[SwitchEntry]) -> Edits:
        limits, etag = self._services.edits.limits(), self._services.edits.etag
        if self._edits is None or self._edits[0] is not limits or self._edits[1] != etag:
            self._edits = (limits, etag, await on_thread(_count, limits, switches))
        return self._edits[2]


def _count(limits: Sequence[LimitEntry], switches: Sequence[SwitchEntry]) -> Edits:
    edits = {f"limits/{each.kind}/{each.name}": each.edit for each in limits if each.edit is not None}
    edits |= {f"switches/{each.kind}": each.edit for each in switches if each.edit is not None}
    first = min(((edit.expires_at, target) for target, edit in edits.items() if edit.expires_at), default=None)
    return Edits(len(edits), None if first is None else Expiring(first[1], first[0]))


def alarm_of(alarm: AlarmState, clock: Clock) -> Alarm:
    """Write an alarm with the time of day."""
    fields = msgspec.structs.asdict(alarm)
    since_ns = fields.pop("since_ns")
    return Alarm(since=None if since_ns is None else clock.iso_of(since_ns), **fields)


def flow_of(flow: FlowState, confirms: Sequence[ConfirmState], most_confirms: int, clock: Clock) -> Flow:
    """Write what waits for what, and what confirms messages, as it is sent."""
    ordered = sorted(confirms, key=lambda each: (each.mode != "broker", -each.pending, each.kind, each.name))
    return Flow(
        findings=flow.findings,
        counts=tuple(StageCount(kind, state, stages) for (kind, state), stages in flow.counts.items()),
        connections=flow.connections,
        more_connections=flow.more_connections,
        store=flow.store,
        alarms=tuple(alarm_of(alarm, clock) for alarm in flow.alarms),
        busy_ratio=flow.busy_ratio,
        confirms=tuple(ordered[:most_confirms]),
        more_confirms=max(0, len(ordered) - most_confirms),
    )


def _by_reason(closed: Mapping[tuple[str, str], int]) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for (_, reason), count in closed.items():
        reasons[reason] += count
    return dict(reasons)
