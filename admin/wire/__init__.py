"""What the HTTP API and those who ask it agree on: its paths, the form of its errors and of its answers.

Plain data. What is told of limits and changes is in ``admin.edits.model``, of requests in ``proxy.stats.question``;
here is what the API itself makes. Times are ISO 8601 in UTC.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from admin.edits.model import (
    ActiveEdit,
    Change,
    Configured,
    FailedReload,
    LimitEntry,
    LimitFields,
    Persistence,
    SwitchEntry,
)
from limiter.rules.rule import Action, Dimension
from proxy.stats.snapshot import ClientDescription, Direction, Usage

BASE: Final = "/api/v1"
"""What the API's paths begin with."""

PROBLEM: Final = "application/problem+json"
EVENT_STREAM: Final = "text/event-stream"

MAX_PAGE: Final = 500
"""Rows in one answer."""
DEFAULT_PAGE: Final = 100
MAX_EDITS: Final = 10_000
"""Edits in one batch."""

Filter = Literal["limited", "edited", "near", "shadowed", "overridden"]
"""``overridden`` is another word for ``edited``."""
Order = Literal["asc", "desc"]
LimitColumn = Literal[
    "name",
    "kind",
    "limit",
    "rule",
    "passed",
    "refused",
    "shadowed",
    "bypassed",
    "used",
    "wait",
    "last_refused",
    "edited",
    "expires",
]
ConnectionColumn = Literal["id", "peer", "client", "listener", "age", "bytes", "requests", "refused", "in_flight"]


class Answer(msgspec.Struct, frozen=True):
    """An answer, or a part of one: Sluice always sends all of it.

    The defaults of its fields are what a client takes an older Sluice to say that does not know them.
    """


class Verdicts(msgspec.Struct, frozen=True):
    """How much of what was asked for came to what end: counts, or rates per second.

    Attributes:
        passed: past the limits, with what is shadowed.
        refused: over a limit.
        shadowed: of what passed, what a shadow rule would have refused.
        bypassed: passed, since a handler was skipped.
        exempt: passed, since the client is never limited.
        dropped: was held, and then its client left.
    """

    passed: float = 0
    refused: float = 0
    shadowed: float = 0
    bypassed: float = 0
    exempt: float = 0
    dropped: float = 0


class RuleRates(msgspec.Struct, frozen=True):
    """What one rule does, in messages per second; what it lets pass is not counted.

    Attributes:
        refused: over its limit.
        held: made to wait.
        shadowed: passed, though the rule would have refused it.
    """

    refused: float = 0
    held: float = 0
    shadowed: float = 0


class History(Answer, frozen=True):
    """Messages per second over the last minutes, oldest first.

    Attributes:
        step_s: seconds between two points.
        passed: mean of each step, with what a shadow rule would have refused.
        refused: mean of each step.
    """

    step_s: float = 0
    passed: tuple[float, ...] = ()
    refused: tuple[float, ...] = ()


class LiveFigures(Answer, frozen=True, kw_only=True):
    """What a limit does: rates, ``used_ratio`` and states are of the last ten seconds, as what they sort by is.

    A rate can be above the limit, as ``used_ratio`` above 1: what was stored in a pause is admitted at once.

    Attributes:
        messages_per_s: by what became of them; None of scopes and totals, whose messages count for the
            resource.
        requests_per_s: in the same way.
        rule_messages_per_s: what their rule did, of scopes and totals that have it for themselves; None of all others.
        used: how much of the limit was used, by dimension; 1.0 is all of it.
        used_ratio: the largest share of the last ten seconds; None while nothing limits it.
        limited: something was refused or held, by whichever rule.
        holding: something was held.
        would_refuse: a shadow rule would have refused something.
        near: at least 80 % are used.
        open: the breaker refuses everything at this moment; never of a shadow rule.
        wait_s: what a request would have to wait at this moment.
        stored_permits: negative is a debt; None while nothing limits it.
        last_refused_at: when a request was last refused; None if none was.
        last_wait_s: the wait that was stated then.
        refused_by: the rule that refused it, if it was not the limit's own: a total's, a client's, a producer group's
            or a listener's.
    """

    messages_per_s: Verdicts | None = None
    requests_per_s: Verdicts | None = None
    rule_messages_per_s: RuleRates | None = None
    used: Mapping[Dimension, Usage] = {}
    used_ratio: float | None = None
    limited: bool = False
    holding: bool = False
    would_refuse: bool = False
    near: bool = False
    open: bool = False
    wait_s: float = 0
    stored_permits: float | None = None
    last_refused_at: str | None = None
    last_wait_s: float = 0
    refused_by: str | None = None


class Row(Answer, frozen=True, kw_only=True):
    """One line of the table of limits: a limit, as ``live.model.LimitEntry`` has it, and what it does.

    Attributes:
        key: names the row: kind, slash, name.
        own: it has a rule of its own, configured or edited; otherwise a pattern's, a default's or none's.
        kind: of what is limited, or ``total``.
        name: exact name or pattern.
        limit: what is in force for it now, all fields.
        limit_text: that in short.
        rule: the name of the rule in force.
        source: where that rule comes from.
        exact: the name stands for one resource, not for a pattern.
        configured: the configuration's rule for the very same name, if it has one.
        edit: the edit that stands, if one does.
        etag: of the limit.
        live: what it does now; None if it was never asked for.
        history: what it did in the last minutes; None if it was not asked for then, or without ``history=1``.
    """

    key: str
    own: bool = False
    kind: str
    name: str
    limit: LimitFields = {}
    limit_text: str
    rule: str = ""
    source: str = ""
    exact: bool = True
    configured: Configured | None = None
    edit: ActiveEdit | None = None
    etag: str = ""
    live: LiveFigures | None = None
    history: History | None = None


class RowTotals(Answer, frozen=True):
    """How many rows there are of each sort, whatever is searched for.

    Attributes:
        rows: all.
        limited: limited now.
        overridden: with an edit.
        near: near their limit.
        shadowed: where a shadow rule would refuse something now.
    """

    rows: int = 0
    limited: int = 0
    overridden: int = 0
    near: int = 0
    shadowed: int = 0


class LimitPage(Answer, frozen=True, kw_only=True):
    """Some lines of the table of limits.

    Attributes:
        rows: in the order that was asked for.
        total: rows that match.
        offset: of the first row.
        limit: rows at most.
        totals: of all rows.
        kinds: all kinds that there are.
        sampled_at: when the live figures were taken.
        rule_set_version: of the rules in force.
        etag: of all limits and switches together.
    """

    rows: tuple[Row, ...]
    total: int
    offset: int = 0
    limit: int = 0
    totals: RowTotals = RowTotals()
    kinds: tuple[str, ...] = ()
    sampled_at: str = ""
    rule_set_version: int = 0
    etag: str = ""


class Changes(msgspec.Struct, frozen=True):
    """What a batch did.

    Attributes:
        changes: one for each edit, in their order.
    """

    changes: tuple[Change, ...]


class AuditPage(Answer, frozen=True):
    """Some of the audit trail, the latest first.

    Attributes:
        changes: of this page.
        next: what ``before`` gets to see the next page; None if this is the last one.
    """

    changes: tuple[Change, ...]
    next: int | None = None


class Defaults(msgspec.Struct, frozen=True):
    """The default limit of each kind.

    Attributes:
        defaults: one for each kind.
    """

    defaults: tuple[LimitEntry, ...]


class RuleRow(Answer, frozen=True, kw_only=True):
    """A rule in force.

    Attributes:
        position: from 0, in the order in which rules are tried.
        kind: of what it limits.
        pattern: exact name or pattern.
        shared: it limits all that match together.
        rule: its name.
        limit: all fields.
        limit_text: what it admits, in short.
        action: what happens above that.
        hours: when it holds; None is always.
        source: where it comes from.
        holds: it takes part now.
    """

    position: int = 0
    kind: str
    pattern: str
    shared: bool
    rule: str = ""
    limit: LimitFields
    limit_text: str = ""
    action: Action = "reject"
    hours: str | None = None
    source: str
    holds: bool = True


class RulePage(Answer, frozen=True, kw_only=True):
    """Some of the rules in force.

    Attributes:
        rows: in the order in which they are tried.
        total: how many there are.
        offset: of the first row.
        limit: rows at most.
        rule_set_version: of the rules in force.
    """

    rows: tuple[RuleRow, ...]
    total: int
    offset: int = 0
    limit: int = 0
    rule_set_version: int = 0


class ConnectionRow(Answer, frozen=True, kw_only=True):
    """One open connection, as ``proxy.stats.snapshot.ConnectionState`` has it, and how fast it is.

    Attributes:
        id: closes it.
        listener: that accepted it.
        peer: the client's ``address:port``.
        client: what the client said of itself.
        exempt: nothing limits it.
        opened_at: when.
        age_s: since then.
        bytes_total: bytes read, by the peer they came from.
        bytes_per_s: in the same way; None until there are two samples.
        requests_total: of the client.
        requests_per_s: in the same way.
        refused_total: requests that were refused.
        refused_per_s: in the same way.
        in_flight: forwarded requests without an answer.
        resources: what it sent to or asked for, as ``kind:name``.
        more_resources: how many others there were.
    """

    id: int
    listener: str
    peer: str
    client: ClientDescription
    exempt: bool = False
    opened_at: str = ""
    age_s: float = 0
    bytes_total: Mapping[Direction, int] = {}
    bytes_per_s: Mapping[Direction, float] | None = None
    requests_total: int
    requests_per_s: float | None = None
    refused_total: int
    refused_per_s: float | None = None
    in_flight: int
    resources: tuple[str, ...] = ()
    more_resources: int = 0


class ConnectionPage(Answer, frozen=True, kw_only=True):
    """Some of the open connections.

    Attributes:
        rows: in the order that was asked for.
        total: connections that match.
        offset: of the first row.
        limit: rows at most.
        sampled_at: when the figures were taken.
    """

    rows: tuple[ConnectionRow, ...]
    total: int
    offset: int = 0
    limit: int = 0
    sampled_at: str = ""


class ClosedConnection(msgspec.Struct, frozen=True):
    """A connection that was closed.

    Attributes:
        id: its id.
        closed: always true.
    """

    id: int
    closed: bool = True


class Switches(msgspec.Struct, frozen=True):
    """All switches.

    Attributes:
        switches: the one for all, then that of each kind.
    """

    switches: tuple[SwitchEntry, ...]


class Drift(Answer, frozen=True, kw_only=True):
    """Where what is in force differs from the configuration.

    Attributes:
        limits: those with an edit.
        switches: those with an edit.
        total: limits with an edit.
        offset: of the first limit.
        limit: limits at most.
        etag: of all limits and switches together.
    """

    limits: tuple[LimitEntry, ...]
    switches: tuple[SwitchEntry, ...] = ()
    total: int = 0
    offset: int = 0
    limit: int = 0
    etag: str = ""


class WhoAmI(msgspec.Struct, frozen=True):
    """Who asks.

    Attributes:
        name: of the token; ``local`` where none is asked for.
        role: ``write`` may change limits.
        address: where the request came from.
        authentication: tokens are asked for here.
    """

    name: str
    role: Literal["read", "write"]
    address: str
    authentication: bool


class ListenerReach(Answer, frozen=True, kw_only=True):
    """One listener, and whether its broker answers.

    Attributes:
        name: as configured.
        listen: ``address:port`` it is bound to.
        broker: ``address:port`` it connects to.
        connections: open now.
        listening: clients can connect; not while the broker takes no connections, nor in a drain.
        reachable: the broker accepted a connection; None if it has not been tried yet.
        error: what happened if it did not.
    """

    name: str
    listen: str
    broker: str
    connections: int
    listening: bool = True
    reachable: bool | None = None
    error: str | None = None


class Totals(Answer, frozen=True, kw_only=True):
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

    messages: Verdicts = Verdicts()
    requests: Verdicts = Verdicts()
    connections: int = 0
    connections_open: int = 0
    bytes: Mapping[Direction, int] = {}
    frames: Mapping[Direction, int] = {}
    closed: Mapping[str, int] = {}
    undecodable: Mapping[str, int] = {}


class Rates(Answer, frozen=True, kw_only=True):
    """Means of the last ten seconds.

    Attributes:
        messages_per_s: by what became of them.
        requests_per_s: by what became of them.
        bytes_per_s: by the peer they came from.
    """

    messages_per_s: Verdicts = Verdicts()
    requests_per_s: Verdicts = Verdicts()
    bytes_per_s: Mapping[Direction, float] = {}


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


class Bypassed(Answer, frozen=True):
    """Requests that passed since a handler was skipped.

    Attributes:
        total: since the start.
        per_s_last_60s: mean of the last minute.
        by: by handler and reason.
    """

    total: int = 0
    per_s_last_60s: float = 0
    by: tuple[BypassCount, ...] = ()


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


class Held(Answer, frozen=True):
    """What is held to be sent later.

    Attributes:
        requests: now.
        bytes: their size.
        refused: requests that were to be held and were refused, by the bound that was reached.
    """

    requests: int = 0
    bytes: int = 0
    refused: Mapping[str, int] = {}


class Limiters(Answer, frozen=True):
    """Limiters in memory.

    Attributes:
        live: now.
        evicted_total: given up for new names.
        overflowed_total: decisions of the limiter that new names share past the bound.
    """

    live: int = 0
    evicted_total: int = 0
    overflowed_total: int = 0


class Expiring(msgspec.Struct, frozen=True):
    """An edit that ends by itself.

    Attributes:
        target: what it changed, as changes name it.
        expires_at: when it ends.
    """

    target: str
    expires_at: str


class Edits(Answer, frozen=True):
    """Edits that stand.

    Attributes:
        standing: how many, of limits and switches.
        expiring_next: the one that ends next; None if all are for good.
    """

    standing: int = 0
    expiring_next: Expiring | None = None


class RejectionLog(msgspec.Struct, frozen=True):
    """Where refusals and traffic are recorded.

    Attributes:
        directory: the folder of its files; None if none are written.
        error: why none are written, or not now; None if all is well, or it is switched off.
    """

    directory: str | None = None
    error: str | None = None


class State(Answer, frozen=True, kw_only=True):
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
        rates: means of the last ten seconds.
        history: messages over the last minutes.
        bypassed: what passed unlimited since a handler was skipped.
        lanes: what waits for a handler.
        held: what is held.
        limiters: in memory.
        persistence: where edits are kept.
        edits: that stand.
        rejection_log: where it is written.
        failed_reload: why the configuration in force is not what is written; None if it was right when last read.
        warnings: what is right in the configuration, and probably not meant.
        rule_set_version: of the rules in force.
        etag: of all limits and switches together.
    """

    version: str
    instance: str = ""
    started_at: str = ""
    uptime_s: float = 0
    limiting: bool = True
    off: tuple[str, ...] = ()
    draining: bool = False
    listeners: tuple[ListenerReach, ...] = ()
    totals: Totals = Totals()
    rates: Rates = Rates()
    history: History = History()
    bypassed: Bypassed = Bypassed()
    lanes: tuple[LaneState, ...] = ()
    held: Held = Held()
    limiters: Limiters = Limiters()
    persistence: Persistence = Persistence(None)
    edits: Edits = Edits()
    rejection_log: RejectionLog = RejectionLog()
    failed_reload: FailedReload | None = None
    warnings: tuple[str, ...] = ()
    rule_set_version: int = 0
    etag: str = ""


PROBLEMS: Final = "/api/v1/problems/"
"""Where the API says what each type of problem is."""


class ProblemType(msgspec.Struct, frozen=True):
    """What can be wrong with a request, as `type` names it.

    Attributes:
        type: the URI of this entry, which stays the same.
        status: the HTTP status.
        title: the status in words.
        detail: when it is answered, and what to do.
    """

    type: str
    status: int
    title: str
    detail: str


class ProblemTypes(msgspec.Struct, frozen=True):
    """All types of problems.

    Attributes:
        types: by status.
    """

    types: tuple[ProblemType, ...]


def _type(name: str, status: int, detail: str) -> ProblemType:
    return ProblemType(PROBLEMS + name, status, HTTPStatus(status).phrase, detail)


_TYPES: Final = (
    _type("bad-request", 400, "The request is malformed or has invalid values; `errors` names each field."),
    _type("no-token", 401, "The token is missing or unknown."),
    _type("forbidden", 403, "The token may only read, or the request comes from another site's page."),
    _type("not-found", 404, "There is no such thing."),
    _type("not-allowed", 405, "The method is not allowed here; `Allow` lists the methods that are."),
    _type("slow-body", 408, "The body did not arrive in time."),
    _type("conflict", 409, "The request conflicts with the current state; nothing was changed."),
    _type("wrong-configuration", 409, "The configuration is invalid, and nothing was changed; `errors` has the lines."),
    _type(
        "stale",
        412,
        "`If-Match` or `If-None-Match` does not hold: `etag` is the current ETag, `detail` says who changed it.",
    ),
    _type("large-body", 413, "The body is too large."),
    _type("not-json", 415, "The body must be `application/json`."),
    _type("unknown-host", 421, "The Host is not one of this address."),
    _type("large-head", 431, "The request's head is too large."),
    _type("internal", 500, "A fault in Sluice; its log has the reason."),
    _type("unknown-encoding", 501, "The transfer encoding is not supported."),
    _type("busy", 503, "Too many requests are in progress, or too many streams are open; see `Retry-After`."),
    _type(
        "not-stored",
        507,
        "The edit cannot be stored; nothing was changed. `volatile=1` makes it until the restart.",
    ),
)
PROBLEM_TYPES: Final[Mapping[str, ProblemType]] = {each.type.removeprefix(PROBLEMS): each for each in _TYPES}
"""By the last part of their URI."""
#: The first of a status is the usual one.
_USUAL: Final = {each.status: each for each in reversed(_TYPES)}


def usual_type(status: int) -> ProblemType:
    """Return what a status of this API most often means."""
    return _USUAL[status]


class FieldProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong with a request.

    Attributes:
        field: the field, parameter or header that it is about; empty is all of it.
        detail: what was found and what is allowed.
        edit: of a batch, the index of the edit.
    """

    field: str
    detail: str
    edit: int | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not answered: problem details as RFC 9457 has them.

    Attributes:
        type: the URI of what is wrong, which does not change: one of ``/api/v1/problems``, which says what it is.
        title: the status in words.
        status: the HTTP status.
        detail: what is wrong and what to do, for people.
        errors: what is wrong with which field, if it is about fields.
        etag: of a stale write, what is in force.
    """

    type: str = ""
    title: str = ""
    status: int
    detail: str
    errors: tuple[FieldProblem, ...] = ()
    etag: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not self.title:
            msgspec.structs.force_setattr(self, "title", HTTPStatus(self.status).phrase)
        if not self.type:
            usual = _USUAL.get(self.status)
            msgspec.structs.force_setattr(self, "type", "about:blank" if usual is None else usual.type)
