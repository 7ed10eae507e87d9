"""Types that the HTTP API's server and clients share. All times are ISO 8601 timestamps in UTC.

``proxy.stats`` defines the types for the data path. ``admin.edits.model`` defines those for limits and changes.
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
        offset: number of matching rows before the first one returned.
        limit: maximum number of rows.
    """

    total: int
    offset: int = 0
    limit: int = 0


class History(msgspec.Struct, frozen=True):
    """Messages per second over the last few minutes, oldest first. Each rate is the average over one step.

    To get an exact count, multiply a rate by its entry in ``seconds`` and round.

    Attributes:
        step_s: nominal length of a step, in seconds.
        passed: messages that reached the broker.
        refused: messages that a limit refused.
        until: end of the last step.
        seconds: actual length of each step. It exceeds ``step_s`` if Sluice was busy.
        dropped: messages that were dropped because their client disconnected before a decision.
        limit: the limit's rate at the end of each step. None if the limit was unlimited or counted requests, or if
            limiting was off.
        totals: numbers of messages that passed, were refused, and were dropped between Sluice's start and ``until``.
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
    """The live state of a limit. Rates, ``used_ratio`` and flags cover the last ten seconds.

    Rates can exceed the limit, and ``used_ratio`` can exceed 1, because stored permits allow bursts. For a scope or
    total, only messages that its own rule refuses or shadows are counted.

    Attributes:
        messages_total: number of messages by outcome, since Sluice started. None for scopes and totals.
        messages_per_s: messages per second, by outcome. None for scopes and totals.
        requests_per_s: requests per second, by outcome. None for scopes and totals.
        used: fraction of the limit that was used, by dimension.
        used_ratio: the largest value in ``used``. None if there is no limit.
        passed_per_s: messages per second that reached the broker, including bypassed and exempt ones. None for
            scopes and totals.
        refused_per_s: refused messages per second. None if they are not counted.
        shadowed_per_s: messages per second that a shadow rule would have refused. None if they are not counted.
        limited: whether a rule refused or held a request.
        holding: whether a rule held a request.
        would_refuse: whether a shadow rule would have refused a request.
        near: whether at least 80 % of the limit was used.
        open: whether the breaker is open and refuses everything. Never true for a shadow rule.
        wait_s: how long a new request would have to wait, in seconds.
        stored_permits: number of available permits. A negative number is a debt. None if there is no limit.
        last_refused_at: when a request was last refused. None if this never happened.
        last_limited_at: when a request was last refused or held. None if this never happened.
        last_wait_s: how long the client was told to wait when it was last refused, in seconds.
        refused_by: the rule that caused the last refusal, if it limits a total, client, producer group or listener.
        state: ``throttled`` if a limit delays messages, ``flow`` if a later stage is full, ``blocked`` if an alarm
            stops messages, and ``running`` otherwise.
        spooled: number of the resource's messages in the spool.
        oldest_wait_s: how long the oldest message has been held or spooled, in seconds. None if no message is waiting.
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
    """A limit, with its live state and its history.

    Attributes:
        key: ``KIND/NAME``.
        own: whether a rule for exactly this name is configured or was added by an edit. If not, a pattern, the default
            or no rule applies.
        live: the current state. None if the limit was never used.
        history: traffic in the last few minutes. None if there were no messages, or if the query contains
            ``history=0``.
    """

    key: str
    own: bool = False
    live: LiveFigures | None = None
    history: History | None = None


class LimitPage(Page, frozen=True, kw_only=True):
    """One page of the list of limits.

    Attributes:
        rows: the rows, in the requested order.
        totals: number of rows that match each filter. The key ``rows`` stands for all rows. The query does not affect
            these numbers.
        kinds: all kinds that can be limited.
        sampled_at: when the live figures were taken.
        rule_set_version: version of the active rules. It increases whenever the rules change.
        etag: ETag of all limits and switches together.
    """

    rows: tuple[Row, ...]
    totals: Mapping[str, int] = {}
    kinds: tuple[str, ...] = ()
    sampled_at: str = ""
    rule_set_version: int = 0
    etag: str = ""


class RefusedClient(msgspec.Struct, frozen=True, kw_only=True):
    """A client's refused, held and shadowed requests for one resource.

    Attributes:
        client: address of the client, or ``_other`` for clients that are counted together.
        user: user name of the client. May be empty.
        product: name and version of the client's library. May be empty.
        producer_group: producer group that the requests name. May be empty.
        rules: names of the rules that refused, held or shadowed the requests.
        requests: number of requests that were refused, held or shadowed.
        messages_refused: number of messages that were refused.
        messages_shadowed: number of messages that passed, although a shadow rule would have refused them.
        messages_held: number of messages that were held, whether they later passed or were refused.
        last_at: when a request was last refused, held or shadowed.
        share: this client's share of all refused messages, from 0 to 1.
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

    Rates are messages per second, with one value for each step, oldest first. A rate is null if Sluice was not running,
    or if its log could not be written or read. To get an exact count, multiply a rate by its entry in ``seconds`` and
    round.

    Attributes:
        begin_at: start of the first step.
        step_s: length of a step, in seconds.
        seconds: number of seconds in each step for which there are records.
        passed: messages that reached the broker.
        refused: messages that were refused.
        dropped: messages that were dropped because their client disconnected before a decision.
        held: held messages, averaged over each minute. They are counted again when they pass or are refused.
        limit: the limit's rate. None if there was no limit or if limiting was off.
        limit_count: the unit of ``limit``.
        known_from: time of the oldest record. None if there are no records.
        clients: clients with refused, held or shadowed requests, in descending order of refused messages.
        more_clients: number of such clients that ``clients`` leaves out.
        messages_refused: number of refused messages from all clients, including those left out.
        others_together: whether some resources, perhaps including this one, were counted together as ``_other``.
        bytes_read: number of bytes read from the log.
        cut: whether the oldest records are missing because the log is too large for one response.
        problem: which parts of the log could not be read, and why. None if all of it was read.
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
    """The latest report's recommendation for one resource of this sidecar.

    Attributes:
        path: path of the report's ``recommendations.json``. None if it is not configured.
        problem: why there is no recommendation, and what to do about it. None if there is no problem.
        made_at: when the report was made. None if no report was read.
        age_s: age of the report, in seconds.
        from_at: start of the period that the report covers.
        until_at: end of the period that the report covers.
        recommendation: the recommendation. None if the report does not contain one for this resource.
        edit: body of a PATCH request that applies the recommendation. None if there is nothing to apply, or if the
            limit has changed since the report was made.
        why_not: why ``edit`` is None although there is a recommendation. Otherwise empty.
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
    """The result of a batch: one change per edit, in the same order."""

    changes: tuple[Change, ...]


class AuditPage(msgspec.Struct, frozen=True):
    """One page of the audit trail, the latest change first.

    Attributes:
        next: value for the ``before`` parameter of the request for the next page. None on the last page.
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
        pattern: exact name or pattern.
        shared: whether all matching resources share the limit.
        rule: name of the rule in logs and metrics.
        limit: all fields of the limit.
        limit_text: short form of the limit, such as ``500/s``.
        action: what happens above the limit. ``default`` refuses requests, but with AMQP 1.0, it withholds credit.
        hours: when the rule applies. None if it always applies.
        source: where the rule is defined.
        holds: whether the rule applies now.
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
    """One page of the active rules, in evaluation order.

    Attributes:
        rule_set_version: version of the active rules. It increases whenever the rules change.
    """

    rows: tuple[RuleRow, ...]
    rule_set_version: int = 0


class Export(msgspec.Struct, frozen=True):
    """The current limits, as a TOML configuration file."""

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
    """Confirms that a connection was closed on request."""

    id: int
    closed: bool = True


class FolderState(msgspec.Struct, frozen=True):
    """A folder that Sluice writes to.

    Attributes:
        directory: path of the folder. None if there is no folder.
        error: why Sluice currently cannot write to the folder. None if there is no error.
    """

    directory: str | None = None
    error: str | None = None


class Spool(msgspec.Struct, frozen=True):
    """The spool and its folder.

    Attributes:
        holds: content of the spool. None if there is no spool.
        sentences: the spool's content and problems, in words.
        details: memory and disk usage, and message counts, in words.
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
    """All switches: the switch for everything, then one for each kind."""

    switches: tuple[SwitchEntry, ...]


class Drift(Page, frozen=True, kw_only=True):
    """Differences between the current limits and the configuration.

    Attributes:
        limits: limits with an active edit. Only these are counted in ``total``.
        switches: switches with an active edit.
        etag: ETag of all limits and switches together.
    """

    limits: tuple[LimitEntry, ...]
    switches: tuple[SwitchEntry, ...] = ()
    etag: str = ""


class WhoAmI(msgspec.Struct, frozen=True):
    """The caller of this request.

    Attributes:
        name: name of the token, or ``local`` if no token is needed.
        role: only ``write`` may change limits.
        address: the address that the request came from.
        authentication: whether a token is needed.
    """

    name: str
    role: Literal["read", "write"]
    address: str
    authentication: bool


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since Sluice started.

    Attributes:
        connections: number of accepted client connections.
        connections_open: number of client connections that are open now.
        bytes: number of bytes read from clients and from brokers.
        frames: number of frames read from clients and from brokers.
        closed: number of closed client connections, by reason.
        undecodable: number of headers that a strict parser rejected, by parser.
        lost_messages: number of messages that were lost when their connection closed, although the client assumes that
            they were delivered.
        lost_bytes: size of the lost messages, and of data that was still unread when its client disconnected.
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
    """Rates, averaged over the last ten seconds.

    Attributes:
        bytes_per_s: bytes read per second from clients and from brokers.
    """

    messages_per_s: Verdicts = Verdicts()
    requests_per_s: Verdicts = Verdicts()
    bytes_per_s: Mapping[Direction, float] = {}


class BypassCount(msgspec.Struct, frozen=True):
    """The number of requests that bypassed a handler for a given reason since Sluice started."""

    handler: str
    reason: str
    total: int


class Bypassed(msgspec.Struct, frozen=True):
    """Counts requests that passed because they bypassed a handler.

    Attributes:
        total: number of bypassed requests since Sluice started.
        per_s_last_60s: bypassed requests per second, averaged over the last minute.
        by: number of bypassed requests since Sluice started, by handler and reason.
    """

    total: int = 0
    per_s_last_60s: float = 0
    by: tuple[BypassCount, ...] = ()


class Expiring(msgspec.Struct, frozen=True):
    """A temporary edit. ``target`` has the format of ``Change.target``."""

    target: str
    expires_at: str


class Edits(msgspec.Struct, frozen=True):
    """A summary of the active edits.

    Attributes:
        standing: number of active edits.
        expiring_next: the next edit that expires, if any.
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
    """The adaptive limits, one for each listener with an adaptive rule."""

    limits: tuple[Adaptive, ...]


class FleetShare(FleetLimit, frozen=True, kw_only=True):
    """A fleet limit and this member's share of it.

    Attributes:
        may_per_s: this member's share of the rate. None if the member admits everything because Redis is unreachable.
        text: the rate, the number of members, and this member's share, in words.
    """

    may_per_s: float | None
    text: str


class Fleet(FleetState, frozen=True, kw_only=True):
    """The fleet, as this sidecar sees it.

    Attributes:
        limits: up to 100 limits, starting with the one that has the largest demand.
        text: the number of members, and whether Redis is reachable, in words.
    """

    limits: tuple[FleetShare, ...] = ()
    text: str


class FleetAnswer(msgspec.Struct, frozen=True):
    """The response to ``GET fleet``.

    Attributes:
        fleet: the fleet. None if this sidecar is not in one.
    """

    fleet: Fleet | None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the sidecar.

    Attributes:
        version: version of Sluice.
        compiled_extension: version of the compiled extension in use, or ``none``.
        instance: name of this sidecar, as in the rejection log.
        started_at: when Sluice started.
        uptime_s: seconds since Sluice started.
        limiting: whether limiting is on. False if it is switched off for everything.
        off: kinds for which limiting is switched off. Contains ``all`` if it is switched off for everything.
        draining: whether Sluice is shutting down and accepts no new connections.
        lanes: the lanes on which handlers run.
        adaptive: the adaptive limits, without the names and history that ``GET adaptive`` returns.
        fleet: the fleet, without the members and limits that ``GET fleet`` returns. None if there is no fleet.
        alarms: memory and disk alarms. While one is raised, publishers are stopped.
        failed_reload: the last reload, if it failed. None if it succeeded.
        warnings: valid settings that are probably mistakes, and other problems.
        rule_set_version: version of the active rules. It increases whenever the rules change.
        etag: ETag of all limits and switches together.
    """

    version: str
    compiled_extension: str = "none"
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
    """A type of problem. ``type`` is its URI, which never changes. ``detail`` says when the problem occurs."""

    type: str
    status: int
    title: str
    detail: str


def _type(name: str, status: int, detail: str) -> ProblemType:
    return ProblemType(PROBLEMS + name, status, HTTPStatus(status).phrase, detail)


_TYPES: Final = (
    _type("bad-request", 400, "The request is malformed or has invalid values. `errors` names each field."),
    _type("no-token", 401, "The token is missing or unknown."),
    _type("forbidden", 403, "The token is read-only, or a page of another site sent the request."),
    _type("not-found", 404, "The resource does not exist."),
    _type("not-allowed", 405, "The method is not allowed here. `Allow` lists the allowed methods."),
    _type("slow-body", 408, "The body did not arrive in time."),
    _type("conflict", 409, "The request conflicts with the current state. Nothing was changed."),
    _type("wrong-configuration", 409, "The configuration is invalid. Nothing was changed. `errors` lists the errors."),
    _type(
        "stale",
        412,
        "`If-Match` or `If-None-Match` failed. `etag` is the current ETag, and `detail` names the author of the last"
        " change.",
    ),
    _type("large-body", 413, "The body is too large."),
    _type("not-json", 415, "The body must be `application/json`."),
    _type("unknown-host", 421, "The Host header contains an unknown host name."),
    _type("large-head", 431, "The request head is too large."),
    _type("internal", 500, "An internal error. See Sluice's log."),
    _type("unknown-encoding", 501, "The transfer encoding is not supported."),
    _type("busy", 503, "Too many requests are in progress, or too many streams are open. See `Retry-After`."),
    _type(
        "not-stored",
        507,
        "The edit cannot be saved, so nothing was changed. An edit with `volatile=1` is not saved and lasts until the"
        " next restart.",
    ),
)
PROBLEM_TYPES: Final[Mapping[str, ProblemType]] = {each.type.removeprefix(PROBLEMS): each for each in _TYPES}
"""Problem types by the last segment of their URI."""
#: The first problem type for each status.
_USUAL: Final = {each.status: each for each in reversed(_TYPES)}


def usual_type(status: int) -> ProblemType:
    return _USUAL[status]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed, as problem details (RFC 9457).

    Attributes:
        type: URI of the problem type, which never changes.
        title: reason phrase of the HTTP status.
        status: HTTP status of the response.
        detail: description of the problem and its remedy.
        errors: errors in individual fields, if any.
        etag: the current ETag, if a precondition failed.
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
