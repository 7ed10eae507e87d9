"""What an operator sees of back pressure: what waits for what, and what was purged. Plain data."""

from typing import Final

import msgspec

from proxy.flow.credit import Kind, StageState, State
from proxy.flow.diagnosis import FlowFinding
from proxy.stats.question import Detail
from proxy.stats.snapshot import AlarmState, ConfirmState

MAX_STAGES_SHOWN: Final = 20
"""Of one connection."""


class ConnectionFlow(msgspec.Struct, frozen=True):
    """The stages of one connection.

    Attributes:
        id: id of the connection.
        listener: name of the listener that accepted it.
        connection: the connection itself.
        others: its writer, its channels and its resources with a queue, as far as they are not ``running``.
    """

    id: int
    listener: str
    connection: StageState
    others: tuple[StageState, ...] = ()


class StageCount(msgspec.Struct, frozen=True):
    """How many stages of one kind show one state."""

    kind: Kind
    state: State
    stages: int


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for what.

    Attributes:
        findings: the bottlenecks, first the one that most connections wait for; empty if nothing waits.
        counts: how many stages of each kind show each state.
        connections: connections that are not ``running``, first those in flow.
        more_connections: number of further ones.
        store: the spool's disk; None if there is no spool.
        alarms: of memory and disk.
        busy_ratio: share of the last second in which the event loop ran, or waited for a processor; 1 is all of it.
        confirms: destinations whose messages consumers confirm by a rule, once something was published there: first
            those where the broker confirms all the same, then those with most waiting messages.
        more_confirms: number of further ones.
        sentences: the findings, or that there are none, in words.
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
    """What was purged from the spool.

    Attributes:
        refused: messages whose senders were told, in the protocol's own words.
        dropped: messages whose senders had no answer to expect.
    """

    refused: int = 0
    dropped: int = 0
