"""The one interface between the data path and everything an operator touches.

A RuleSet goes in, a Snapshot comes out, and there are events and a few commands with replies. The admin side
uses nothing else of the data path, so that later several worker processes can stand behind the same words:
every type here is plain data that can cross a process boundary.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from limiter.limiter import LimiterState
from limiter.resource import Resource
from limiter.rule import Rule
from limiter.rules import RuleSet

RequestVerdict = Literal["pass", "refuse", "bypass"]
Direction = Literal["client", "broker"]


class ResourceCounts(msgspec.Struct):
    """What became of one resource's requests since the start; counts never fall.

    Attributes:
        requests: by verdict.
        messages: by verdict; a batch counts as the messages it holds.
    """

    requests: dict[RequestVerdict, int]
    messages: dict[RequestVerdict, int]


class LaneDepth(msgspec.Struct, frozen=True):
    """How much waits on one handler's lanes.

    Attributes:
        queued: batches waiting, all lanes together.
        capacity: batches that could wait, all lanes together.
        late_lanes: lanes that are bypassed until a probe returns in time.
    """

    queued: int
    capacity: int
    late_lanes: int


class ListenerState(msgspec.Struct, frozen=True):
    """One listener and the broker address behind it.

    Attributes:
        name: as configured.
        listen: ``address:port`` it is bound to.
        broker: ``address:port`` it connects to.
        connections: open now.
    """

    name: str
    listen: str
    broker: str
    connections: int


class Snapshot(msgspec.Struct, frozen=True):
    """The counters of one moment, all data paths together.

    Attributes:
        rule_set_version: the version every data path runs.
        limiting: whether limiting is on at all (the global switch).
        draining: no new connections are accepted.
        resources: counts by (kind, resource name); what is beyond the label cap is under the name ``_other``.
        bypassed: requests, by (handler, reason).
        listeners: in the order of the configuration.
        connections_total: accepted since the start.
        closed_total: connections ended, by reason.
        frames_total: whole frames, by the peer they came from.
        bytes_total: bytes read, by the peer they came from.
        undecodable_total: headers that the strict parser refused, by what read them (``lenient``, ``none``).
        lanes: by handler.
        live_limiters: limiters held in memory now.
        evicted_total: idle limiters given up for new names.
        overflowed_total: decisions made by the overflow limiter that all new names of a rule share past the bound.
    """

    rule_set_version: int
    limiting: bool
    draining: bool
    resources: Mapping[tuple[str, str], ResourceCounts]
    bypassed: Mapping[tuple[str, str], int]
    listeners: tuple[ListenerState, ...]
    connections_total: int
    closed_total: Mapping[str, int]
    frames_total: Mapping[Direction, int]
    bytes_total: Mapping[Direction, int]
    undecodable_total: Mapping[str, int]
    lanes: Mapping[str, LaneDepth]
    live_limiters: int
    evicted_total: int
    overflowed_total: int


class ConnectionState(msgspec.Struct, frozen=True):
    """One open connection, as an operator sees it.

    Attributes:
        id: names it in CloseConnection.
        listener: the listener that accepted it.
        peer: the client's ``address:port``.
        opened_ns: monotonic time of its start.
        bytes_total: bytes read, by the peer they came from.
        in_flight: forwarded requests without an answer.
    """

    id: int
    listener: str
    peer: str
    opened_ns: int
    bytes_total: Mapping[Direction, int]
    in_flight: int


class Explanation(msgspec.Struct, frozen=True):
    """Why a resource is limited as it is.

    Attributes:
        resource: what was asked about.
        rule: the rule that holds for it.
        limiting: whether limiting is on at all.
        limiter: the live limiter's state, or None while no request has needed one.
    """

    resource: Resource
    rule: Rule
    limiting: bool
    limiter: LimiterState | None


class BrokerReach(msgspec.Struct, frozen=True):
    """Whether a listener's broker accepts connections.

    Attributes:
        listener: the listener's name.
        broker: ``address:port`` that was tried.
        error: None when it accepted, otherwise what happened.
    """

    listener: str
    broker: str
    error: str | None


class Event(msgspec.Struct, frozen=True):
    """Something an operator may want to hear of at once.

    Attributes:
        kind: ``rules``, ``opened``, ``closed``, ``drain``.
        at_ns: monotonic time.
        detail: what changed, in plain words and figures.
    """

    kind: Literal["rules", "opened", "closed", "drain"]
    at_ns: int
    detail: Mapping[str, str | int]


class DataPath(Protocol):
    """What the admin side knows of the data path."""

    async def apply(self, rule_set: RuleSet) -> None:
        """Put a rule set in force; returns when every data path decides by that version.

        Raises:
            ValueError: its version is not above the one in force.
        """

    async def snapshot(self) -> Snapshot:
        """Return the counters of this moment."""

    def limiters(self) -> AsyncIterator[LimiterState]:
        """Go through the live limiters in small steps, without holding up the data path."""

    async def connections(self) -> tuple[ConnectionState, ...]:
        """Return the open connections."""

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        """Close one connection; returns whether it was there."""

    async def explain(self, resource: Resource) -> Explanation:
        """Return the rule that holds for a resource, and its live state."""

    async def probe_brokers(self) -> tuple[BrokerReach, ...]:
        """Try to connect to each listener's broker."""

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Subscribe; a subscriber that does not keep up loses the oldest events, never the data path's time."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let what is in flight finish, close; returns after ``grace_s`` seconds at the latest."""
