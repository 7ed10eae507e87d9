"""What the data path looks like at one moment: its counters, its listeners, its connections, its resources.

Plain data that can cross a process boundary; how it is had is ``proxy.control``. What there are thousands of at a time
holds no cycles, so the garbage collector need not look at it (``gc=False``).
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from limiter.rules.rule import Dimension
from limiter.waiting.holding import BoundName

RequestVerdict = Literal["pass", "refuse", "bypass", "shadow", "exempt", "drop"]
"""What became of a request: it passed within the limits; was refused; passed because a handler was skipped; passed
though a shadow rule would have refused it; passed because its client is exempt; was held, and then its client left."""
RuleVerdict = Literal["refuse", "shadow", "hold"]
"""What a rule can do to a request. One that is held may be refused later, and counts for both."""
Direction = Literal["client", "broker"]

BUCKETS_S: Final = (
    *(50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the buckets that durations are counted in, in seconds."""
Origin = Literal["configuration", "edit", "built-in"]
"""Where a limit comes from: what an operator wrote before the start, what one changed since, or Sluice itself."""

MAX_RESOURCES_SHOWN: Final = 20
"""Of one connection."""


class ResourceCounts(msgspec.Struct, gc=False):
    """What became of one resource's requests since the start; counts never fall.

    Attributes:
        requests: by verdict.
        messages: by verdict; a batch counts as the messages it holds.
    """

    requests: dict[RequestVerdict, int]
    messages: dict[RequestVerdict, int]


class RuleCounts(msgspec.Struct, gc=False):
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
        listening: clients can connect; not while the broker does not take connections, nor in a drain.
    """

    name: str
    listen: str
    broker: str
    connections: int
    listening: bool


class Usage(msgspec.Struct, frozen=True, gc=False):
    """How much of a limit was used of late: 1.0 is all that it admits in the long run; a burst can be more.

    Attributes:
        last_1s: in the last complete second.
        last_10s: in the last ten.
        last_60s: in the last sixty.
    """

    last_1s: float
    last_10s: float
    last_60s: float


class Durations(msgspec.Struct, frozen=True):
    """How long something took since the start; counts never fall.

    Attributes:
        counts: by bucket, not added up; the last one is of what is longer than all of BUCKETS_S.
        sum_s: of all of them.
    """

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_s: float = 0.0


class Limit(msgspec.Struct, frozen=True, gc=False):
    """One limit in force.

    Attributes:
        per_s: messages, requests or bytes per second; infinity is unlimited.
        origin: where it comes from.
    """

    per_s: float
    origin: Origin


class Snapshot(msgspec.Struct, frozen=True):
    """The counters, all data paths together. They are gathered in short stretches; each is of one moment.

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
        connections_total: accepted since the start, by listener.
        closed_total: connections ended, by listener and reason.
        frames_total: whole frames, by the peer they came from.
        bytes_total: bytes read, by the peer they came from.
        undecodable_total: headers that the strict parser refused, by what read them (``lenient``, ``none``).
        lanes: by handler.
        live_limiters: limiters held in memory now.
        evicted_total: idle limiters given up for new names.
        overflowed_total: decisions made by the overflow limiter that all new names of a rule share past the bound.
        off_kinds: kinds whose limiting is switched off, in alphabetical order.
        limits: in force, by (kind, name or pattern, dimension), as many as the label cap says; those of patterns first.
        processing: from reading what completes a request to having queued it for the broker, or answered it.
        held: from holding a request to letting it go on, or refusing it.
        round_trip: from passing a request to the broker's answer, of some requests.
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
    connections_total: Mapping[str, int]
    closed_total: Mapping[tuple[str, str], int]
    frames_total: Mapping[Direction, int]
    bytes_total: Mapping[Direction, int]
    undecodable_total: Mapping[str, int]
    lanes: Mapping[str, LaneDepth]
    live_limiters: int
    evicted_total: int
    overflowed_total: int
    off_kinds: tuple[str, ...] = ()
    limits: Mapping[tuple[str, str, Dimension], Limit] = {}
    processing: Durations = Durations()
    held: Durations = Durations()
    round_trip: Durations = Durations()


class ClientDescription(msgspec.Struct, frozen=True):
    """What a client told about itself; empty where unknown.

    Attributes:
        id: the client's id, as it names itself to the broker.
        language: what it is written in, as the protocol spells it.
        version: of the client or its protocol, as the protocol writes it.
    """

    id: str = ""
    language: str = ""
    version: str = ""


class ConnectionState(msgspec.Struct, frozen=True):
    """One open connection, as an operator sees it.

    Attributes:
        id: names it in ``DataPath.close_connection``; no other connection of this run ever has it.
        listener: the listener that accepted it.
        peer: the client's ``address:port``.
        client: what the client said of itself.
        exempt: nothing limits it.
        opened_ns: monotonic time of its start.
        bytes_total: bytes read, by the peer they came from.
        requests_total: frames of the client.
        refused_total: requests that were refused, held ones among them once they are.
        in_flight: forwarded requests without an answer.
        resources: what it sent to or asked for, as ``kind:name``, at most MAX_RESOURCES_SHOWN.
        more_resources: how many others there were, as far as the session remembers.
    """

    id: int
    listener: str
    peer: str
    client: ClientDescription
    exempt: bool
    opened_ns: int
    bytes_total: Mapping[Direction, int]
    requests_total: int
    refused_total: int
    in_flight: int
    resources: tuple[str, ...] = ()
    more_resources: int = 0


class ResourceState(msgspec.Struct, frozen=True, gc=False):
    """One resource or scope that was asked for, as it is now.

    Attributes:
        kind: its kind; ``total`` for what a shared rule limits.
        name: its name; what is beyond the label cap is under ``_other``.
        counts: what became of its requests; None of scopes and totals, whose requests are counted for the resource.
        usage: how much of its limits was used of late, by dimension; a dimension that was not asked for in the last
            minute is left out.
        stored_permits: of its limit of messages; negative is a debt. None while nothing limits it, and while it is
            as if no request had come.
        open: whether its breaker refuses everything at this moment; never of a shadow rule.
        wait_us: what a request would have to wait at this moment, in microseconds; 0 is nothing, as of a shadow rule.
        last_refused_ns: monotonic time at which a request was last refused, by whichever rule; None if none was.
        last_wait_us: the wait that was stated then, in microseconds.
        last_refused_rule: the name of the rule that refused it.
        last_held_ns: monotonic time at which something was last held; None if nothing was.
        last_shadowed_ns: monotonic time at which its own rule, a shadow rule, would last have refused a request; None
            if it never would have.
        rule: of scopes and totals the name of their rule, if they have it for themselves; otherwise empty.
        rule_counts: what that rule did; None while it did nothing, and if its counts are not told apart.
    """

    kind: str
    name: str
    counts: ResourceCounts | None
    usage: Mapping[Dimension, Usage]
    stored_permits: float | None
    open: bool
    wait_us: int
    last_refused_ns: int | None
    last_wait_us: int
    last_refused_rule: str = ""
    last_held_ns: int | None = None
    last_shadowed_ns: int | None = None
    rule: str = ""
    rule_counts: RuleCounts | None = None


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
