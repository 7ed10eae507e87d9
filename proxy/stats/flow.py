"""What an operator sees of back pressure: states of stages, bottlenecks, alarms, the spool. Plain data."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from proxy.flow.alarms import Scarce
from proxy.flow.credit import Kind, State

MAX_STAGES_SHOWN: Final = 20
"""Of one connection."""

SpoolPlace = Literal["alpha", "beta", "gamma", "delta"]
"""Where an entry of the spool is, in RabbitMQ's words. alpha: all in memory; beta: content on disk; gamma: index, too,
on disk; delta: all on disk only."""


class StageState(msgspec.Struct, frozen=True, gc=False):
    """One stage that messages go through, as it is now; counts and times never fall.

    Attributes:
        kind: ``connection``, ``channel``, ``resource``, ``writer`` or ``store``.
        name: whose.
        state: ``running``; ``flow``, it was stopped of late since a later stage takes no more; ``throttled``, a limit
            makes its messages wait; or ``blocked``, an alarm stops it.
        flow_total: how often it was stopped by a later stage.
        flow_s: for how long together, in seconds.
        throttled_total: how often a limit began to make something wait in it.
        throttled_s: for how long together, in seconds.
        blocked_total: how often an alarm stopped it.
        blocked_s: for how long together, in seconds.
        waits_for: names of the stages that it waits for, as ``KIND NAME``.
        text: how often and for how long it was stopped, in words.
    """

    kind: Kind
    name: str
    state: State = "running"
    flow_total: int = 0
    flow_s: float = 0.0
    throttled_total: int = 0
    throttled_s: float = 0.0
    blocked_total: int = 0
    blocked_s: float = 0.0
    waits_for: tuple[str, ...] = ()
    text: str = ""


class AlarmState(msgspec.Struct, frozen=True):
    """One alarm.

    Attributes:
        scarce: what runs short: ``memory`` or ``disk``.
        stands: publishers are blocked. That of the disk also stands while the spool's disk fails: this stops only those
            whose messages are spooled.
        since_ns: monotonic time since when; None while it does not stand.
        total: how often it has stood.
        stood_s: for how long together, in seconds.
        text: while it stands, what is the matter and when it will end; otherwise empty.
        bytes_now: what Sluice uses of memory, or what is free on the disk; None if that is unknown.
        bytes_limit: above which, or below which for the disk, it stands; None if that is unknown.
    """

    scarce: Scarce
    stands: bool = False
    since_ns: int | None = None
    total: int = 0
    stood_s: float = 0.0
    text: str = ""
    bytes_now: int | None = None
    bytes_limit: int | None = None


class FlowFinding(msgspec.Struct, frozen=True):
    """One bottleneck.

    Attributes:
        cause: one word for it, as metrics have it; ``proxy.flow.diagnosis.CAUSES`` has all of them.
        connections: how many wait for it.
        at: the first few places where it is, as ``KIND NAME``.
        text: all of it as sentences, with what can be done.
    """

    cause: str
    connections: int
    at: tuple[str, ...]
    text: str


class ConnectionFlow(msgspec.Struct, frozen=True):
    """The stages of one connection.

    Attributes:
        id: the connection's number.
        listener: the listener that accepted it.
        connection: itself.
        others: its writer, its channels and its resources with a queue, as far as they are not ``running``; at most
            MAX_STAGES_SHOWN.
    """

    id: int
    listener: str
    connection: StageState
    others: tuple[StageState, ...] = ()


class FlowState(msgspec.Struct, frozen=True):
    """What waits for what, at one moment.

    Attributes:
        findings: the bottlenecks, first that which most connections wait for; empty if none waits.
        counts: how many stages of each kind show each state, by (kind, state).
        connections: those that are not ``running``, first those in flow; at most as many as were asked for.
        more_connections: how many others there are.
        store: that of the spool; None if there is no spool.
        alarms: of memory and disk.
        busy_ratio: the share of the last second in which the event loop ran, or had no processor to run; near 1 it has
            no time to spare.
    """

    findings: tuple[FlowFinding, ...] = ()
    counts: Mapping[tuple[Kind, State], int] = {}
    connections: tuple[ConnectionFlow, ...] = ()
    more_connections: int = 0
    store: StageState | None = None
    alarms: tuple[AlarmState, ...] = ()
    busy_ratio: float = 0.0


class SpooledResource(msgspec.Struct, frozen=True):
    """What the spool holds of one resource, all connections together.

    Attributes:
        kind: its kind.
        name: its name.
        queues: how many queues it has: one for each channel, or connection, that sends to it.
        messages: by place.
        content_bytes: likewise.
        memory_bytes: what its queues take in memory.
        target_bytes: what they should take at most while memory is short.
        in_per_s: messages put in of late, each second.
        out_per_s: messages taken out of late, each second.
        recovered: messages that an earlier process left, and that wait to be sent; they are among the others.
    """

    kind: str
    name: str
    queues: int
    messages: Mapping[SpoolPlace, int]
    content_bytes: Mapping[SpoolPlace, int]
    memory_bytes: int
    target_bytes: int
    in_per_s: float
    out_per_s: float
    recovered: int = 0


class SpoolState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the spool holds. Counts that end in ``_total`` never fall.

    Attributes:
        queues: how many there are.
        messages: by place.
        content_bytes: likewise, without what the spool adds.
        memory_bytes: what all queues have in memory.
        memory_limit_bytes: what they may have.
        disk_bytes: of its files.
        disk_limit_bytes: what they may take.
        writing_bytes: given to the store, and not on disk yet.
        stopped: nothing more is read for it, until memory is free.
        stops_total: how often that was so.
        alarm: why the disk takes no more; empty if it does.
        in_total: messages put in. With those recovered they are as many as were taken out, lost or dropped, and those
            that are there.
        out_total: messages taken out to be sent, or refused.
        written_total: messages written to disk.
        read_total: messages read from there.
        lost_total: messages that were damaged or missing on disk.
        dropped_total: messages dropped as they were purged, their connection ended, or nobody came to send them.
        recovered_total: messages that an earlier process left, sent or dropped since.
        expired_total: messages whose own time to live was over, so that they were not sent.
        too_old_total: messages that were older than the spool keeps them.
        resources: those with the most messages, at most as many as were asked for; empty in a Snapshot.
        more_resources: how many others there are.
    """

    queues: int = 0
    messages: Mapping[SpoolPlace, int] = {}
    content_bytes: Mapping[SpoolPlace, int] = {}
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int = 0
    writing_bytes: int = 0
    stopped: bool = False
    stops_total: int = 0
    alarm: str = ""
    in_total: int = 0
    out_total: int = 0
    written_total: int = 0
    read_total: int = 0
    lost_total: int = 0
    dropped_total: int = 0
    recovered_total: int = 0
    expired_total: int = 0
    too_old_total: int = 0
    resources: tuple[SpooledResource, ...] = ()
    more_resources: int = 0


class Purged(msgspec.Struct, frozen=True):
    """What was purged from the spool.

    Attributes:
        refused: messages whose senders were told, in the protocol's own words.
        dropped: messages whose senders had no answer to expect.
    """

    refused: int = 0
    dropped: int = 0
