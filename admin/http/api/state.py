"""Collects the state of the sidecar for ``GET state``."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from admin.common.version import sluice_version
from admin.edits.model import FailedReload, LimitEntry, SwitchEntry
from admin.edits.service import EditService
from admin.rejection_log.advice import AdviceReader
from admin.rejection_log.history import HistoryReader
from admin.stats import LiveStats
from admin.stats.rows import NS_PER_S
from admin.wire import Edits, Expiring, Fleet, FolderState, State, Totals, sentences
from limiter.compiled import VERSION
from proxy.common.threads import on_thread
from proxy.control import DataPath
from proxy.stats.snapshot import FleetState


def _none() -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Services:
    """The services that endpoints use. The tasks of ``edits`` and ``stats`` must be running."""

    data_path: DataPath
    edits: EditService
    stats: LiveStats
    warnings: Callable[[], Sequence[str]] = _none
    instance: str = ""
    rejection_log: Callable[[], FolderState] = FolderState
    failed_reload: Callable[[], FailedReload | None] = lambda: None
    spool: Callable[[], FolderState] = FolderState
    history: HistoryReader = field(default_factory=HistoryReader)
    advice: AdviceReader = field(default_factory=AdviceReader)


class Status:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = services.stats.clock
        self._started_ns = self._clock.now_ns()
        self._started_at = self._clock.iso_now()
        self._version = sluice_version()
        self._edits: tuple[Sequence[LimitEntry], str, Edits] | None = None

    async def state(self) -> State:
        services, stats = self._services, self._services.stats
        snapshot = await stats.fresh()
        switches = services.edits.switches()
        messages, requests = stats.total.counted()
        return State(
            version=self._version,
            compiled_extension=VERSION,
            instance=services.instance,
            started_at=self._started_at,
            uptime_s=round((self._clock.now_ns() - self._started_ns) / NS_PER_S, 1),
            limiting=services.edits.rule_set.enabled,
            off=tuple(switch.kind for switch in switches if not switch.limiting),
            draining=snapshot.draining,
            listeners=snapshot.listeners,
            totals=Totals(
                messages=messages,
                requests=requests,
                connections=sum(snapshot.connections_total.values()),
                connections_open=sum(listener.connections for listener in snapshot.listeners),
                bytes=snapshot.bytes_total,
                frames=snapshot.frames_total,
                closed=_by_reason(snapshot.closed_total),
                undecodable=snapshot.undecodable_total,
                lost_messages=sum(snapshot.lost_messages.values()),
                lost_bytes=sum(snapshot.lost_bytes.values()),
            ),
            rates=stats.rates(),
            history=stats.total.all_history(stats.steps),
            bypassed=stats.bypassed(snapshot),
            lanes=snapshot.lanes,
            held=snapshot.held,
            limiters=snapshot.limiters,
            persistence=services.edits.persistence,
            edits=await self._standing(switches),
            rejection_log=services.rejection_log(),
            adaptive=sentences.adaptive(snapshot.adaptive),
            fleet=None if snapshot.fleet is None else _in_short(snapshot.fleet),
            alarms=snapshot.alarms,
            spool=services.spool(),
            failed_reload=services.failed_reload(),
            warnings=(*services.warnings(), *(() if snapshot.fleet is None else snapshot.fleet.disagreements)),
            rule_set_version=services.edits.rule_set.version,
            etag=services.edits.etag,
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


def _in_short(fleet: FleetState) -> Fleet:
    return sentences.of_fleet(msgspec.structs.replace(fleet, members=(), limits=()))


def _by_reason(closed: Mapping[tuple[str, str], int]) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for (_, reason), count in closed.items():
        reasons[reason] += count
    return dict(reasons)
