"""The one interface between the data path and everything an operator touches.

A RuleSet goes in, a Snapshot comes out, and there are events and a few commands with replies. The admin side
uses nothing else of the data path, so that later several worker processes can stand behind the same words:
every type here is plain data that can cross a process boundary.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from limiter.holding import BoundName
from limiter.limiter import LimiterState
from limiter.rule import Action, Count, Dimension, FairBy
from limiter.rules import RuleSet

RequestVerdict = Literal["pass", "refuse", "bypass", "shadow", "exempt", "drop"]
"""What became of a request: it passed within the limits; was refused; passed because a handler was skipped; passed
though a shadow rule would have refused it; passed because its client is exempt; was held, and then its client left."""
RuleVerdict = Literal["refuse", "shadow", "hold"]
"""What a rule can do to a request. One that is held may be refused later, and counts for both."""
Direction = Literal["client", "broker"]


class ResourceCounts(msgspec.Struct):
    """What became of one resource's requests since the start; counts never fall.

    Attributes:
        requests: by verdict.
        messages: by verdict; a batch counts as the messages it holds.
    """

    requests: dict[RequestVerdict, int]
    messages: dict[RequestVerdict, int]


class RuleCounts(msgspec.Struct):
    """What one rule did to requests since the start; counts never fall.

    Attributes:
        requests: by verdict.
        messages: by verdict; a batch counts as the messages it holds.
    """

    requests: dict[RuleVerdict, int]
    messages: dict[RuleVerdict, int]


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


class Usage(msgspec.Struct, frozen=True):
    """How much of a limit was used of late: 1.0 is all that it admits in the long run; a burst can be more.

    Attributes:
        last_1s: in the last complete second.
        last_10s: in the last ten.
        last_60s: in the last sixty.
    """

    last_1s: float
    last_10s: float
    last_60s: float


class Snapshot(msgspec.Struct, frozen=True):
    """The counters of one moment, all data paths together.

    Attributes:
        rule_set_version: the version every data path runs.
        limiting: whether limiting is on at all (the global switch).
        draining: no new connections are accepted.
        resources: counts by (kind, resource name); what is beyond the label cap is under the name ``_other``.
        rules: what each rule did, by its name; what is beyond the label cap is under ``_other``.
        held_requests: requests held now.
        held_bytes: their size on the wire.
        hold_refused: requests that were to be held and were refused, by the bound on what is held that was reached.
        usage: by (kind, name, dimension), of limits that were used in the last minute: all with a rule of their own,
            and of the others the most used, as many as the label cap says.
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
    rules: Mapping[str, RuleCounts]
    held_requests: int
    held_bytes: int
    hold_refused: Mapping[BoundName, int]
    usage: Mapping[tuple[str, str, Dimension], Usage]
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


class Question(msgspec.Struct, frozen=True):
    """A request that might come: what would limit it?

    Attributes:
        kind: the kind of resource that it is for, or of a scope.
        name: its name.
        client: the client's IP address; empty leaves out what limits clients.
        producer_group: the group that sends it; empty leaves out what limits groups.
        listener: name or scope of the listener that it comes through; empty is the only scope there is, or leaves
            out what limits listeners.
        at: a moment, as ISO 8601 writes it with its time zone: the rules of that moment, without live state; empty is
            now.
    """

    kind: str
    name: str
    client: str = ""
    producer_group: str = ""
    listener: str = ""
    at: str = ""


class QuestionError(ValueError):
    """A question that makes no sense.

    Attributes:
        parameter: the attribute of the question that is wrong.
        detail: what is wrong with it and what is allowed.
    """

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(parameter, detail)
        self.parameter = parameter
        self.detail = detail


class RuleView(msgspec.Struct, frozen=True):
    """A rule for people to read.

    Attributes:
        name: as in logs and metrics.
        source: where it was written.
        limit: what it admits, e.g. ``500/s`` or ``unlimited``.
        action: what happens above that.
        hours: when it holds; None is always.
    """

    name: str
    source: str
    limit: str
    action: Action
    hours: str | None


class LimitView(msgspec.Struct, frozen=True):
    """What a limit is made of.

    Attributes:
        unit: what a permit is.
        rate_per_s: permits per second, in the long run.
        burst_s: seconds' worth of permits that can be stored.
        break_s: how long it goes on refusing after permits are there again, in seconds.
        max_delay_s: how long it holds a request at most, in seconds; None if it holds none.
        fair_by: whose shares are kept apart, or None.
        warm_up_s: seconds in which the rate rises after idleness.
        busy_code: the protocol's number for the refusal, or None for the protocol's own choice.
    """

    unit: Count | Literal["bytes"]
    rate_per_s: float
    burst_s: float
    break_s: float
    max_delay_s: float | None
    fair_by: FairBy | None
    warm_up_s: float
    busy_code: int | None


class ShareView(msgspec.Struct, frozen=True):
    """The live state of one asker's fair share of a limit.

    Attributes:
        key: who asks.
        stored_permits: permits kept for that asker alone; negative is a debt.
        open: whether the share's breaker refuses everything at this moment.
        wait_s: seconds until a request of that asker would be admitted; 0 is at once.
    """

    key: str
    stored_permits: float
    open: bool
    wait_s: float


class LimitState(msgspec.Struct, frozen=True):
    """The live state of a limit.

    Attributes:
        stored_permits: permits in store; negative is a debt.
        open: whether the breaker refuses everything at this moment.
        wait_s: seconds until a request would be admitted; 0 is at once.
        last_refused_s: seconds since a request was last refused; None if none was.
        shares: the fair shares of those who asked of late, if shares are kept apart.
    """

    stored_permits: float
    open: bool
    wait_s: float
    last_refused_s: float | None
    shares: tuple[ShareView, ...] = ()


class AppliedLimit(msgspec.Struct, frozen=True):
    """One of the limits that a request must pass.

    Attributes:
        kind: the kind of what is limited: a resource, a scope, or ``total``.
        name: its name; of a total that of its rule.
        why: why this rule holds for it.
        rule: the rule.
        limit: its figures.
        state: the bucket's state, or None while no request has needed it.
        held: requests that wait for it now.
        usage: how much of it was used of late; None while no request has needed it.
    """

    kind: str
    name: str
    why: str
    rule: RuleView
    limit: LimitView
    state: LimitState | None
    held: int
    usage: Usage | None


class UnappliedRule(msgspec.Struct, frozen=True):
    """A rule that matches and yet does not limit.

    Attributes:
        kind: the kind of what it matches.
        name: the name that it matches.
        why: why it does not limit.
        rule: the rule.
    """

    kind: str
    name: str
    why: str
    rule: RuleView


class Explanation(msgspec.Struct, frozen=True):
    """Why a request is limited as it is.

    Attributes:
        question: as it was understood: the address in its one spelling, the listener's scope.
        rule_set_version: of the rules in force.
        limiting: whether limiting is on at all; without it nothing below limits.
        exempt_on: listeners on which this client is exempt, so that nothing below limits it there.
        limits: what limits the request, in the order in which it is asked.
        unapplied: rules that match and do not limit.
        ignored: scopes that the question names and whose limits do not matter for it.
    """

    question: Question
    rule_set_version: int
    limiting: bool
    exempt_on: tuple[str, ...]
    limits: tuple[AppliedLimit, ...]
    unapplied: tuple[UnappliedRule, ...]
    ignored: tuple[str, ...] = ()


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

    async def explain(self, question: Question) -> Explanation:
        """Return what would limit a request, in order, and the live state of each limit; changes nothing.

        Raises:
            QuestionError: the question makes no sense.
        """

    async def probe_brokers(self) -> tuple[BrokerReach, ...]:
        """Try to connect to each listener's broker."""

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Subscribe; a subscriber that does not keep up loses the oldest events, never the data path's time."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let what is in flight finish, close; returns after ``grace_s`` seconds at the latest."""
