"""Reports on back pressure for operators, as plain data."""

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
        connection: the connection's own stage.
        others: its other stages that are not ``running``: writer, channels and resources.
    """

    id: int
    listener: str
    connection: StageState
    others: tuple[StageState, ...] = ()


class StageCount(msgspec.Struct, frozen=True):
    """Number of stages of one kind in one state."""

    kind: Kind
    state: State
    stages: int


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Which stages wait for which other stages.

    Attributes:
        findings: the bottlenecks, those with the most waiting connections first.
        counts: number of stages by kind and state.
        connections: connections that are not ``running``, those in flow first.
        store: stage of the spool's disk. None without a spool.
        busy_ratio: fraction of the last second in which the event loop ran or waited for a CPU, from 0 to 1.
        confirms: active destinations with an ``after_consume`` rule. Those that the broker confirms nevertheless come
            first, then those with the most unconfirmed messages.
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
    """Messages purged from the spool.

    Attributes:
        refused: messages refused with an answer to the sender.
        dropped: messages dropped because their sender expected no answer.
    """

    refused: int = 0
    dropped: int = 0
