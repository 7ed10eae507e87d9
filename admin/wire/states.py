"""How Sluice is, as the HTTP API tells it."""

from collections.abc import Mapping

import msgspec

from admin.live.model import Persistence
from admin.wire.figures import History, Verdicts
from proxy.snapshot import Direction


class ListenerReach(msgspec.Struct, frozen=True, kw_only=True):
    """One listener, and whether its broker answers.

    Attributes:
        name: as configured.
        listen: ``address:port`` it is bound to.
        broker: ``address:port`` it connects to.
        connections: open now.
        reachable: the broker accepted a connection; None if it has not been tried yet.
        error: what happened if it did not.
    """

    name: str
    listen: str
    broker: str
    connections: int
    reachable: bool | None
    error: str | None


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counted since the start.

    Attributes:
        messages: by what became of them.
        requests: by what became of them.
        connections: accepted.
        connections_open: open now.
        bytes: read, by the peer they came from.
        frames: by the peer they came from.
        closed: connections ended, by reason.
        undecodable: headers that the strict parser refused, by what read them.
    """

    messages: Verdicts
    requests: Verdicts
    connections: int
    connections_open: int
    bytes: Mapping[Direction, int]
    frames: Mapping[Direction, int]
    closed: Mapping[str, int]
    undecodable: Mapping[str, int]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Of the last sample.

    Attributes:
        messages_per_s: by what became of them.
        requests_per_s: by what became of them.
        bytes_per_s: by the peer they came from.
    """

    messages_per_s: Verdicts
    requests_per_s: Verdicts
    bytes_per_s: Mapping[Direction, float]


class BypassCount(msgspec.Struct, frozen=True):
    """Requests that passed since a handler was skipped.

    Attributes:
        handler: the handler.
        reason: why.
        total: since the start.
    """

    handler: str
    reason: str
    total: int


class Bypassed(msgspec.Struct, frozen=True):
    """Requests that passed since a handler was skipped.

    Attributes:
        total: since the start.
        per_s_last_60s: mean of the last minute.
        by: by handler and reason.
    """

    total: int
    per_s_last_60s: float
    by: tuple[BypassCount, ...]


class LaneState(msgspec.Struct, frozen=True):
    """What waits on a handler's lanes.

    Attributes:
        handler: the handler.
        queued: batches waiting.
        capacity: batches that could wait.
        late_lanes: lanes that are bypassed until a probe returns in time.
    """

    handler: str
    queued: int
    capacity: int
    late_lanes: int


class Held(msgspec.Struct, frozen=True):
    """What is held to be sent later.

    Attributes:
        requests: now.
        bytes: their size.
        refused: requests that were to be held and were refused, by the bound that was reached.
    """

    requests: int
    bytes: int
    refused: Mapping[str, int]


class Limiters(msgspec.Struct, frozen=True):
    """Limiters in memory.

    Attributes:
        live: now.
        evicted_total: given up for new names.
        overflowed_total: decisions of the limiter that new names share past the bound.
    """

    live: int
    evicted_total: int
    overflowed_total: int


class Expiring(msgspec.Struct, frozen=True):
    """An edit that ends by itself.

    Attributes:
        target: what it changed, as changes name it.
        expires_at: when it ends.
    """

    target: str
    expires_at: str


class Edits(msgspec.Struct, frozen=True):
    """Edits that stand.

    Attributes:
        standing: how many, of limits and switches.
        expiring_next: the one that ends next; None if all are for good.
    """

    standing: int
    expiring_next: Expiring | None


class RejectionLog(msgspec.Struct, frozen=True):
    """Where refusals and traffic are recorded.

    Attributes:
        directory: the folder of its files; None if none are written.
        error: why none are written, or not now; None if all is well, or it is switched off.
    """

    directory: str | None = None
    error: str | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How Sluice is.

    Attributes:
        version: of Sluice.
        instance: name of this sidecar among others, as the rejection log has it.
        started_at: when.
        uptime_s: since then.
        limiting: limiting is on at all.
        off: kinds that are switched off; ``all`` among them if all are.
        draining: no new connections are accepted.
        listeners: and whether their brokers answer.
        totals: since the start.
        rates: of late.
        history: messages over the last minutes.
        bypassed: what passed unlimited since a handler was skipped.
        lanes: what waits for a handler.
        held: what is held.
        limiters: in memory.
        persistence: where edits are kept.
        edits: that stand.
        rejection_log: where it is written.
        warnings: what is right in the configuration, and probably not meant.
        rule_set_version: of the rules in force.
        etag: of all limits and switches together.
    """

    version: str
    instance: str
    started_at: str
    uptime_s: float
    limiting: bool
    off: tuple[str, ...]
    draining: bool
    listeners: tuple[ListenerReach, ...]
    totals: Totals
    rates: Rates
    history: History
    bypassed: Bypassed
    lanes: tuple[LaneState, ...]
    held: Held
    limiters: Limiters
    persistence: Persistence
    edits: Edits
    rejection_log: RejectionLog
    warnings: tuple[str, ...]
    rule_set_version: int
    etag: str
