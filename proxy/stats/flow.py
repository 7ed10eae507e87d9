"""Reports on back pressure, as plain data for operators."""

from typing import Final

import msgspec

from proxy.flow.credit import Kind, StageState, State
from proxy.flow.diagnosis import FlowFinding
from proxy.stats.question import Detail
from proxy.stats.snapshot import AlarmState, ConfirmState

MAX_STAGES_SHOWN: Final = 20  # per connection


class ConnectionFlow(msgspec.Struct, frozen=True):
    """The stages of one connection.

    Attributes:
        others: stages of the writer, channels and resources that are not ``running``.
    """

    id: int
    listener: str
    connection: StageState
    others: tuple[StageState, ...] = ()


class StageCount(msgspec.Struct, frozen=True):
    """The number of stages of one kind that are in one state."""

    kind: Kind
    state: State
    stages: int


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Shows which stages are waiting for which other stages.

    Attributes:
        findings: the bottlenecks, starting with the one that most connections are waiting for.
        counts: number of stages, by kind and state.
        connections: connections that are not ``running``. Those in state ``flow`` come first.
        store: the stage of the spool's disk. None if there is no spool.
        busy_ratio: fraction of the last second in which the event loop ran or waited for a CPU, from 0 to 1.
        confirms: active destinations with an ``after_consume`` rule. Those for which the broker nevertheless confirms
            messages come first, then those with the most unconfirmed messages.
        sentences: the findings in words.
        details: stages by state, the spool's disk and the busy ratio, in words.
    """

    findings: tuple[FlowFinding, ...] = ()
    counts: tuple[StageCount, ...] = ()
    connections: tuple[ConnectionFlow, ...] = ()
    more_connections: int = 0
    store: StageState | None = None
    alarms: tuple[AlarmState, ...] = ()
    busy_ratio: float = 0
    confirms: tuple[ConfirmState, ...] = ()
    more_confirms: int = 0
    sentences: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()


class Purged(msgspec.Struct, frozen=True):
    """The number of messages purged from the spool.

    Attributes:
        refused: messages whose sender received a refusal.
        dropped: messages whose sender expected no answer.
    """

    refused: int = 0
    dropped: int = 0
