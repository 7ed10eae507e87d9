"""Types of the HTTP API that its server and its clients share. Times are ISO 8601 in UTC.

Types of the data path are in ``proxy.stats``, limits and changes in ``admin.edits.model``.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Final, Literal

import msgspec

from admin.common.recommendations import Recommendation
from admin.edits.model import (
    Change,
    FailedReload,
    LimitEntry,
    LimitFields,
    Persistence,
    SwitchEntry,
)
from admin.edits.model import FieldProblem as FieldProblem
from limiter.counting.accounts import Usage
from limiter.rules.rule import Count, Dimension, ShownAction
from proxy.flow.credit import State as StageWord
from proxy.spool.figures import SpoolState
from proxy.stats.flow import Purged
from proxy.stats.question import Detail
from proxy.stats.snapshot import (
    AdaptiveState,
    AlarmState,
    ConnectionState,
    Direction,
    FleetLimit,
    FleetState,
    Held,
    LaneState,
    Limiters,
    ListenerState,
    Verdicts,
)

BASE: Final = "/api/v1"

PROBLEM: Final = "application/problem+json"
EVENT_STREAM: Final = "text/event-stream"

MAX_PAGE: Final = 500
DEFAULT_PAGE: Final = 100
Offset = Annotated[int, msgspec.Meta(ge=0)]
MostRows = Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGE)]
MAX_EDITS: Final = 10_000


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list.

    Attributes:
        total: number of matching rows.
        offset: rows skipped before the first one.
        limit: maximum number of rows.
    """

    total: int
    offset: int = 0
    limit: int = 0


class History(msgspec.Struct, frozen=True):
    """Messages per second over the last minutes, oldest first.

    Each step lies between two readings of the counters. A rate times its ``seconds``, rounded, is the exact count.

    Attributes:
        step_s: nominal length of a step, in seconds.
        passed: messages that reached the broker, mean of each step.
        refused: messages refused over a limit, mean of each step.
        until: when the last step ended.
        seconds: actual length of each step. Longer than ``step_s`` if Sluice was busy.
        dropped: messages dropped because their client left before they were decided, mean of each step.
        limit: the rate at the end of each step. None: unlimited, a limit of requests, or limiting is off.
        totals: messages that passed, were refused and were dropped, from the start until ``until``.
    """

    step_s: float = 0
    passed: tuple[float, ...] = ()
    refused: tuple[float, ...] = ()
    until: str = ""
    seconds: tuple[float, ...] = ()
    dropped: tuple[float, ...] = ()
    limit: tuple[float | None, ...] = ()
    totals: tuple[int, int, int] = (0, 0, 0)


class LiveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a limit. Rates, ``used_ratio`` and states cover the last ten seconds, as do the sort orders by them.

    A rate can exceed the limit, and ``used_ratio`` 1, because permits stored during a pause are admitted at once.

    Attributes:
        messages_total: messages by outcome since the start. None for scopes and totals, whose messages count for the
            resource.
        messages_per_s: messages by outcome per second. None for scopes and totals.
        requests_per_s: requests by outcome per second. None for scopes and totals.
        used: used share of the limit, by dimension. 1.0 is all of it.
        used_ratio: the largest used share. None while nothing limits it.
        passed_per_s: messages per second that reached the broker, including bypassed and exempt ones. None for scopes
            and totals.
        refused_per_s: refused messages per second, for a scope or total by its own rule. None if they are not counted.
        shadowed_per_s: messages per second that a shadow rule would have refused. None if they are not counted.
        limited: whether something was refused or held, by any rule.
        holding: whether something was held.
        would_refuse: whether a shadow rule would have refused something.
        near: whether at least 80 % of the limit is used.
        open: whether the breaker refuses everything now. Never true for a shadow rule.
        wait_s: seconds that a request would have to wait now.
        stored_permits: available permits. Negative is a debt. None while nothing limits it.
        last_refused_at: when a request was last refused. None: never.
        last_limited_at: when something was last refused or held. None: never.
        last_wait_s: the wait stated in the last refusal, in seconds.
        refused_by: the rule of that refusal, if it belongs to a total, client, producer group or listener.
        state: ``running``, or why its queues wait: ``throttled`` by a limit, ``flow`` for a later stage, ``blocked`` by
            an alarm.
        spooled: number of its messages in the spool.
        oldest_wait_s: how long its oldest message has been held or spooled. None if no message waits.
    """

    messages_total: Verdicts | None = None
    messages_per_s: Verdicts | None = None
    requests_per_s: Verdicts | None = None
    used: Mapping[Dimension, Usage] = {}
    used_ratio: float | None = None
    passed_per_s: float | None = None
    refused_per_s: float | None = None
    shadowed_per_s: float | None = None
    limited: bool = False
    holding: bool = False
    would_refuse: bool = False
    near: bool = False
    open: bool = False
    wait_s: float = 0
    stored_permits: float | None = None
    last_refused_at: str | None = None
    last_limited_at: str | None = None
    last_wait_s: float = 0
    refused_by: str | None = None
    state: StageWord = "running"
    spooled: int = 0
    oldest_wait_s: float | None = None


class Row(LimitEntry, frozen=True, kw_only=True):
    """One row of the table of limits: a limit and its state.

    Attributes:
        key: kind, slash, name.
        own: whether it has its own rule, configured or edited. Otherwise that of a pattern, a default, or none.
        live: its current state. None if it was never used.
        history: its last minutes. None if it was not used then, or without ``history=1``.
    """

    key: str
    own: bool = False
    live: LiveFigures | None = None
    history: History | None = None


class LimitPage(Page, frozen=True, kw_only=True):
    """One page of the table of limits.

    Attributes:
        rows: the rows, in the requested order.
        totals: numbers of rows regardless of the search: ``rows`` for all, and one for each filter.
        kinds: all kinds.
        sampled_at: when the live figures were taken.
        rule_set_version: version of the current rules.
        etag: ETag of all limits and switches together.
    """

    rows: tuple[Row, ...]
    totals: Mapping[str, int] = {}
    kinds: tuple[str, ...] = ()
    sampled_at: str = ""
    rule_set_version: int = 0
    etag: str = ""


class RefusedClient(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of rules on one client's requests for a resource.

    Attributes:
        client: its address. ``_other`` for clients beyond a bound.
        user: its login. May be empty.
        product: name and version of its library. May be empty.
        producer_group: producer group of the requests. May be empty.
        rules: names of the rules that refused, held or shadowed them.
        requests: requests that were refused, held or shadowed.
        messages_refused: messages that were refused.
        messages_shadowed: messages that passed, although a shadow rule would have refused them.
        messages_held: messages that were held.
        last_at: when it last happened.
        share: share of all refused messages.
    """

    client: str
    user: str
    product: str
    producer_group: str
    rules: tuple[str, ...]
    requests: int
    messages_refused: int
    messages_shadowed: int
    messages_held: int
    last_at: str
    share: float = 0


class ResourceHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The recent history of one resource, from the rejection log.

    Rates are messages per second, one for each step, oldest first. None: unknown, because Sluice did not run, or no log
    was written or read. A rate times its ``seconds``, rounded, is the exact count.

    Attributes:
        begin_at: when the first step begins.
        step_s: length of a step, in seconds.
        seconds: known seconds of each step.
        passed: messages that reached the broker.
        refused: refused messages.
        dropped: messages dropped because their client left before they were decided.
        held: held messages, the mean of each minute. They pass or are refused later.
        limit: the rate. None for unlimited, and while limiting is off.
        limit_count: the unit of the rate.
        known_from: when the known part begins. None if nothing is known.
        clients: clients with refused, held or shadowed requests, most refused messages first.
        more_clients: number of further clients.
        messages_refused: refused messages of all of them.
        others_together: whether some resources were counted together as ``_other``, perhaps including this one.
        bytes_read: bytes of the log that were read.
        cut: whether the log has more than is read for one answer. The oldest part is left out.
        problem: the parts that could not be read, and why. None if all were read.
    """

    kind: str
    name: str
    begin_at: str
    step_s: int
    seconds: tuple[int, ...] = ()
    passed: tuple[float | None, ...]
    refused: tuple[float | None, ...]
    dropped: tuple[float | None, ...] = ()
    held: tuple[float | None, ...]
    limit: tuple[float | None, ...]
    limit_count: Count = "messages"
    known_from: str | None = None
    clients: tuple[RefusedClient, ...] = ()
    more_clients: int = 0
    messages_refused: int = 0
    others_together: bool = False
    bytes_read: int = 0
    cut: bool = False
    problem: str | None = None


class ResourceAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The newest report's recommendation for one resource of this Sluice.

    Attributes:
        path: the report's ``recommendations.json``. None if it is not configured.
        problem: why there is no recommendation, and what to do. None if nothing is wrong.
        made_at: when the report was made.
        age_s: seconds since then.
        from_at: when the report's records begin.
        until_at: when they end.
        recommendation: None if the report has none for this resource.
        edit: body of the PATCH that applies it. None if there is nothing to apply.
        why_not: why there is nothing to apply. Empty if there is.
    """

    path: str | None = None
    problem: str | None = None
    made_at: str | None = None
    age_s: float | None = None
    from_at: str | None = None
    until_at: str | None = None
    recommendation: Recommendation | None = None
    edit: Mapping[str, str | float | None] | None = None
    why_not: str = ""


class Changes(msgspec.Struct, frozen=True):
    """The result of a batch: one change per edit, in their order."""

    changes: tuple[Change, ...]


class AuditPage(msgspec.Struct, frozen=True):
    """One page of the audit trail, the latest change first.

    Attributes:
        next: value of ``before`` for the next page. None on the last one.
    """

    changes: tuple[Change, ...]
    next: int | None = None


class Defaults(msgspec.Struct, frozen=True):
    """The default limit of each kind."""

    defaults: tuple[LimitEntry, ...]


class RuleRow(msgspec.Struct, frozen=True, kw_only=True):
    """An active rule.

    Attributes:
        position: position in evaluation order, from 0.
        kind: kind of resource.
        pattern: exact name or pattern.
        shared: whether all matching resources share the limit.
        rule: name of the rule.
        limit: all fields of its limit.
        limit_text: the limit in short.
        action: the action above the limit. ``default``: requests are refused, or with AMQP 1.0 get no credit.
        hours: when it applies. None: always.
        source: where it comes from.
        holds: whether it applies now.
    """

    position: int = 0
    kind: str
    pattern: str
    shared: bool
    rule: str = ""
    limit: LimitFields
    limit_text: str = ""
    action: ShownAction = "reject"
    hours: str | None = None
    source: str
    holds: bool = True


class RulePage(Page, frozen=True, kw_only=True):
    """One page of the active rules, in evaluation order."""

    rows: tuple[RuleRow, ...]
    rule_set_version: int = 0


class Export(msgspec.Struct, frozen=True):
    """The current limits as a configuration file, in TOML."""

    text: str


class ConnectionPage(Page, frozen=True, kw_only=True):
    """One page of the open connections.

    Attributes:
        rows: the connections, in the requested order.
        sampled_at: when the figures were taken.
    """

    rows: tuple[ConnectionState, ...]
    sampled_at: str = ""


class ClosedConnection(msgspec.Struct, frozen=True):
    """A closed connection."""

    id: int
    closed: bool = True


class FolderState(msgspec.Struct, frozen=True):
    """A folder that Sluice writes to.

    Attributes:
        directory: its path. None if there is no folder.
        error: why it cannot be written now. None if it can, or if it is off.
    """

    directory: str | None = None
    error: str | None = None


class Spool(msgspec.Struct, frozen=True):
    """The spool.

    Attributes:
        holds: its content. None if there is no spool.
        sentences: its content and problems, in words.
        details: memory, disk and counts, in words.
    """

    folder: FolderState = FolderState()
    holds: SpoolState | None = None
    sentences: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()


class PurgedSpool(Purged, frozen=True, kw_only=True):
    """The result of purging the spool.

    Attributes:
        change: id of the change in the audit trail.
    """

    kind: str
    name: str
    change: int = 0


class Switches(msgspec.Struct, frozen=True):
    """All switches: the switch for everything, then that of each kind."""

    switches: tuple[SwitchEntry, ...]


class Drift(Page, frozen=True, kw_only=True):
    """Differences between the current limits and the configuration.

    Attributes:
        limits: limits with an active edit.
        switches: switches with an active edit.
        etag: ETag of all limits and switches together.
    """

    limits: tuple[LimitEntry, ...]
    switches: tuple[SwitchEntry, ...] = ()
    etag: str = ""


class WhoAmI(msgspec.Struct, frozen=True):
    """The caller of this request.

    Attributes:
        name: name of the token. ``local`` if no token is needed.
        role: ``write`` may change limits.
        address: where the request came from.
        authentication: whether a token is needed.
    """

    name: str
    role: Literal["read", "write"]
    address: str
    authentication: bool


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start.

    Attributes:
        messages: messages by outcome.
        requests: requests by outcome.
        connections: accepted connections.
        connections_open: open connections.
        bytes: bytes read, by the peer that sent them.
        frames: frames read, by the peer that sent them.
        closed: closed connections, by reason.
        undecodable: headers that the strict parser refused, by parser.
        lost_messages: messages lost with their connection, although their client assumes them delivered.
        lost_bytes: bytes of these messages, and of data that was unread when its client left.
    """

    messages: Verdicts = Verdicts()
    requests: Verdicts = Verdicts()
    connections: int = 0
    connections_open: int = 0
    bytes: Mapping[Direction, int] = {}
    frames: Mapping[Direction, int] = {}
    closed: Mapping[str, int] = {}
    undecodable: Mapping[str, int] = {}
    lost_messages: int = 0
    lost_bytes: int = 0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Means of the last ten seconds."""

    messages_per_s: Verdicts = Verdicts()
    requests_per_s: Verdicts = Verdicts()
    bytes_per_s: Mapping[Direction, float] = {}


class BypassCount(msgspec.Struct, frozen=True):
    """Requests that bypassed one handler for one reason, since the start."""

    handler: str
    reason: str
    total: int


class Bypassed(msgspec.Struct, frozen=True):
    """Requests that passed because a handler was skipped.

    Attributes:
        total: requests since the start.
        per_s_last_60s: requests per second, mean of the last minute.
        by: counts by handler and reason.
    """

    total: int = 0
    per_s_last_60s: float = 0
    by: tuple[BypassCount, ...] = ()


class Expiring(msgspec.Struct, frozen=True):
    """A temporary edit, with its target as in ``Change``."""

    target: str
    expires_at: str


class Edits(msgspec.Struct, frozen=True):
    """Active edits.

    Attributes:
        standing: number of active edits of limits and switches.
        expiring_next: the next edit to expire, if any.
    """

    standing: int = 0
    expiring_next: Expiring | None = None


class Adaptive(AdaptiveState, frozen=True, kw_only=True):
    """The adaptive limit of one listener.

    Attributes:
        text: the limit and the broker's latency, in words.
    """

    text: str = ""


class AdaptiveLimits(msgspec.Struct, frozen=True):
    """The adaptive limits, by listener."""

    limits: tuple[Adaptive, ...]


class FleetShare(FleetLimit, frozen=True, kw_only=True):
    """A fleet limit and this member's share of it.

    Attributes:
        may_per_s: this member's part of the rate. None: it admits everything, because Redis is unreachable.
        text: the rate, the number of members and this member's part, in words.
    """

    may_per_s: float | None
    text: str


class Fleet(FleetState, frozen=True, kw_only=True):
    """The fleet of this sidecar, as the sidecar knows it.

    Attributes:
        limits: the limits with the largest demand, at most 100.
        text: the number of members, and whether Redis answers, in words.
    """

    limits: tuple[FleetShare, ...] = ()
    text: str


class FleetAnswer(msgspec.Struct, frozen=True):
    """The fleet.

    Attributes:
        fleet: None: this sidecar is not in a fleet.
    """

    fleet: Fleet | None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the sidecar.

    Attributes:
        version: version of Sluice.
        compiled_part: version of the compiled part in use, or ``none``.
        instance: name of this sidecar, as in the rejection log.
        started_at: when it was started.
        uptime_s: seconds since then.
        limiting: whether limiting is on.
        off: kinds that are switched off, including ``all`` if everything is.
        draining: whether it is draining and accepts no new connections.
        totals: counts since the start.
        rates: means of the last ten seconds.
        history: messages over the last minutes.
        lanes: the queues of handlers.
        persistence: where edits are saved.
        rejection_log: where refusals and traffic are recorded.
        adaptive: the adaptive limits, without names and history. See ``GET adaptive``.
        fleet: the fleet without members and limits. See ``GET fleet``. None if it is not in a fleet.
        alarms: alarms of memory and disk. While one is raised, publishers are stopped.
        failed_reload: why the last reload failed. None if it succeeded.
        warnings: valid settings that are probably mistakes, and other problems.
        rule_set_version: version of the current rules.
        etag: ETag of all limits and switches together.
    """

    version: str
    compiled_part: str = "none"
    instance: str = ""
    started_at: str = ""
    uptime_s: float = 0
    limiting: bool = True
    off: tuple[str, ...] = ()
    draining: bool = False
    listeners: tuple[ListenerState, ...] = ()
    totals: Totals = Totals()
    rates: Rates = Rates()
    history: History = History()
    bypassed: Bypassed = Bypassed()
    lanes: tuple[LaneState, ...] = ()
    held: Held = Held()
    limiters: Limiters = Limiters()
    persistence: Persistence = Persistence(None)
    edits: Edits = Edits()
    rejection_log: FolderState = FolderState()
    adaptive: tuple[Adaptive, ...] = ()
    fleet: Fleet | None = None
    alarms: tuple[AlarmState, ...] = ()
    spool: FolderState = FolderState()
    failed_reload: FailedReload | None = None
    warnings: tuple[str, ...] = ()
    rule_set_version: int = 0
    etag: str = ""


PROBLEMS: Final = "urn:sluice:problem:"


class ProblemType(msgspec.Struct, frozen=True):
    """``type`` is a URI that never changes. ``detail``: when it occurs, and what to do."""

    type: str
    status: int
    title: str
    detail: str


def _type(name: str, status: int, detail: str) -> ProblemType:
    return ProblemType(PROBLEMS + name, status, HTTPStatus(status).phrase, detail)


_TYPES: Final = (
    _type("bad-request", 400, "The request is malformed or has invalid values. `errors` names each field."),
    _type("no-token", 401, "The token is missing or unknown."),
    _type("forbidden", 403, "The token may only read, or the request comes from another site's page."),
    _type("not-found", 404, "The resource does not exist."),
    _type("not-allowed", 405, "The method is not allowed here. `Allow` lists the allowed methods."),
    _type("slow-body", 408, "The body did not arrive in time."),
    _type("conflict", 409, "The request conflicts with the current state. Nothing was changed."),
    _type("wrong-configuration", 409, "The configuration is invalid. Nothing was changed. `errors` lists the faults."),
    _type(
        "stale",
        412,
        "`If-Match` or `If-None-Match` failed. `etag` is the current ETag, and `detail` names the last author.",
    ),
    _type("large-body", 413, "The body is too large."),
    _type("not-json", 415, "The body must be `application/json`."),
    _type("unknown-host", 421, "The Host header does not name this address."),
    _type("large-head", 431, "The request head is too large."),
    _type("internal", 500, "An error in Sluice. Its log has the reason."),
    _type("unknown-encoding", 501, "The transfer encoding is not supported."),
    _type("busy", 503, "Too many requests are in progress, or too many streams are open. See `Retry-After`."),
    _type(
        "not-stored",
        507,
        "The edit cannot be saved, and nothing was changed. With `volatile=1` it applies until the restart.",
    ),
)
PROBLEM_TYPES: Final[Mapping[str, ProblemType]] = {each.type.removeprefix(PROBLEMS): each for each in _TYPES}
"""By the last part of their URI."""
#: The first type of a status is the usual one.
_USUAL: Final = {each.status: each for each in reversed(_TYPES)}


def usual_type(status: int) -> ProblemType:
    return _USUAL[status]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed: problem details (RFC 9457).

    Attributes:
        type: the URI of the type of problem, which never changes.
        title: the status in words.
        status: the HTTP status.
        detail: the problem and its remedy, for people.
        errors: the errors of single fields, if any.
        etag: for a stale write, the current ETag.
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
