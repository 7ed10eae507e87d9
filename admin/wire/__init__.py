"""Data types of the HTTP API that its server and its clients share: paths, answers and problems.

Limits and changes are in ``admin.edits.model``, explained decisions in ``proxy.stats.question``. Times are ISO 8601 in
UTC.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Final, Literal

import msgspec

from admin.common.columns import ConnectionColumn as ConnectionColumn
from admin.common.columns import LimitColumn as LimitColumn
from admin.common.columns import Order as Order
from admin.common.recommendations import Recommendation
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
from admin.edits.model import FieldProblem as FieldProblem
from limiter.rules.rule import Count, Dimension, ShownAction
from proxy.flow.alarms import Scarce
from proxy.flow.credit import Kind
from proxy.flow.credit import State as StageWord
from proxy.stats.flow import ConnectionFlow, FlowFinding, SpoolState, StageState
from proxy.stats.question import Detail
from proxy.stats.snapshot import ClientDescription, ConfirmState, Direction, LinkState, Usage

BASE: Final = "/api/v1"
"""Prefix of the API's paths."""

PROBLEM: Final = "application/problem+json"
EVENT_STREAM: Final = "text/event-stream"

MAX_PAGE: Final = 500
"""Most rows of one page."""
DEFAULT_PAGE: Final = 100
Offset = Annotated[int, msgspec.Meta(ge=0)]
MostRows = Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGE)]
MAX_EDITS: Final = 10_000
"""Most edits of one batch."""

Filter = Literal["limited", "edited", "near", "shadowed", "overridden"]
"""``overridden`` is another word for ``edited``."""


class Answer(msgspec.Struct, frozen=True):
    """An answer, or a part of one: Sluice always sends all of its fields.

    Their defaults are for clients, in place of fields that an older Sluice does not send.
    """


class Verdicts(msgspec.Struct, frozen=True):
    """Outcomes of requests: counts, or rates per second.

    Attributes:
        passed: passed the limits, including what is shadowed.
        refused: refused over a limit.
        shadowed: passed, although a shadow rule would have refused it.
        bypassed: passed because a handler was skipped.
        exempt: passed because the client is exempt.
        dropped: held, and then its client left.
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
        refused: refused over its limit.
        held: held back.
        shadowed: passed, although the rule would have refused it.
    """

    refused: float = 0
    held: float = 0
    shadowed: float = 0


class History(Answer, frozen=True):
    """Messages per second over the last minutes, oldest first.

    Each step lies between two readings of the counters. A rate times its ``seconds``, rounded, is the exact count.

    Attributes:
        step_s: seconds that a step should last.
        passed: reached the broker, mean of each step.
        refused: refused over a limit, likewise.
        until: when the last step ended.
        seconds: how long each step lasted; longer than ``step_s`` if Sluice was busy.
        dropped: dropped as their client left before they were decided, mean of each step.
        limit: the rate in force at the end of each step; None for unlimited, a limit of requests, and limiting that is
            off.
        totals: messages that passed, were refused and were dropped from the start until ``until``.
    """

    step_s: float = 0
    passed: tuple[float, ...] = ()
    refused: tuple[float, ...] = ()
    until: str = ""
    seconds: tuple[float, ...] = ()
    dropped: tuple[float, ...] = ()
    limit: tuple[float | None, ...] = ()
    totals: tuple[int, int, int] = (0, 0, 0)


class LiveFigures(Answer, frozen=True, kw_only=True):
    """What a limit does. Rates, ``used_ratio`` and states cover the last ten seconds, as do the sort orders by them.

    A rate can exceed the limit, and ``used_ratio`` 1, since permits stored during a pause are admitted at once.

    Attributes:
        messages_total: messages by outcome since the start; None for scopes and totals, whose messages count for the
            resource.
        messages_per_s: the same per second.
        requests_per_s: requests by outcome; None likewise.
        rule_messages_per_s: what the rule of a scope or total did, if it is for that alone; None for all others.
        passed_per_s: messages per second that reached the broker, bypassed and exempt ones too; None likewise.
        refused_per_s: messages per second that were refused, by the rule of a scope or total; None if nobody counts.
        shadowed_per_s: messages per second that a shadow rule would have refused, likewise.
        used: the share of the limit that was used, by dimension; 1.0 is all of it.
        used_ratio: the largest share used in the last ten seconds; None while nothing limits it.
        limited: something was refused or held, by any rule.
        holding: something was held.
        would_refuse: a shadow rule would have refused something.
        near: at least 80 % of the limit is used.
        open: the breaker refuses everything at the moment; never true for a shadow rule.
        wait_s: seconds that a request would have to wait now.
        stored_permits: permits available; negative is a debt; None while nothing limits it.
        last_refused_at: when a request was last refused; None if none was.
        last_held_at: when a request was last held; None if none was.
        last_limited_at: the later of these two.
        last_wait_s: the wait stated in that refusal, in seconds.
        refused_by: the rule that refused it, if it was not the limit's own but that of a total, client, producer group
            or listener.
        state: ``running``, or what its queues wait for: ``throttled`` for a limit, ``flow`` for a later stage,
            ``blocked`` by an alarm.
        spooled: messages of it that are in the spool.
        oldest_wait_s: for how long the oldest message of it waits, held or in the spool; None if none does.
    """

    messages_total: Verdicts | None = None
    messages_per_s: Verdicts | None = None
    requests_per_s: Verdicts | None = None
    rule_messages_per_s: RuleRates | None = None
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
    last_held_at: str | None = None
    last_limited_at: str | None = None
    last_wait_s: float = 0
    refused_by: str | None = None
    state: StageWord = "running"
    spooled: int = 0
    oldest_wait_s: float | None = None


class Row(Answer, frozen=True, kw_only=True):
    """One row of the table of limits: a limit, as in ``LimitEntry``, and what it does.

    Attributes:
        key: key of the row: kind, slash, name.
        own: it has a rule of its own, configured or edited; otherwise that of a pattern, a default, or none.
        kind: kind of resource or scope, or ``total``.
        name: exact name or pattern.
        limit: the limit in force now, all fields.
        limit_text: the limit in short.
        rule: name of the rule in force.
        source: where that rule comes from.
        exact: the name is one resource, not a pattern.
        configured: the configured limit of the same name, if there is one.
        edit: the active edit, if there is one.
        etag: ETag of the limit.
        live: what it does now; None if it was never used.
        history: what it did in the last minutes; None if it was not used then, or without ``history=1``.
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


class RefusedClient(msgspec.Struct, frozen=True, kw_only=True):
    """What rules did to one client's requests for a resource.

    Attributes:
        client: its address; ``_other`` for those beyond a bound.
        user: that it has logged in as; may be empty.
        product: what it says it is, with its version; may be empty.
        producer_group: of the requests; may be empty.
        rules: names of the rules that had a word with it.
        requests: requests that were refused, held or shadowed.
        messages_refused: messages that were refused.
        messages_shadowed: messages that passed, although a shadow rule would have refused them.
        messages_held: messages that were held back.
        last_at: when it happened last.
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


class ResourceHistory(Answer, frozen=True, kw_only=True):
    """What became of one resource of late, as the rejection log has it.

    Rates are messages per second, one for each step, the oldest first; None where nothing is known, because Sluice did
    not run, or no log was written or read. A rate times its ``seconds``, rounded, is the exact count.

    Attributes:
        kind: of the resource.
        name: of the resource.
        begin_at: when the first step begins.
        step_s: seconds of each step.
        seconds: how many of them are known, for each step.
        passed: reached the broker.
        refused: were refused.
        dropped: were dropped, as their client left before they were decided.
        held: were held back, the mean of each minute; these pass or are refused later.
        limit: the rate in force; None for unlimited, and while limiting is off.
        limit_count: what the rate counts.
        known_from: when what is known begins; None if nothing is known.
        clients: whose requests were refused, held or shadowed, those with most refused messages first.
        more_clients: number of further ones.
        messages_refused: refused messages of all of them.
        others_together: resources beyond a bound were counted together, as ``_other``; this one may be among them.
        bytes_read: of the log.
        cut: there was more to read than is read for one answer; the oldest is left out.
        problem: what could not be read, and why; None if all could.
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


class ResourceAdvice(Answer, frozen=True, kw_only=True):
    """What the newest report recommends for one resource of this Sluice.

    Attributes:
        path: the report's ``recommendations.json``; None if none is looked for.
        problem: why nothing can be said, and what to do; None if there is nothing wrong.
        made_at: when the report was made.
        age_s: seconds since then.
        from_at: when the report's records begin.
        until_at: when they end.
        recommendation: for this resource; None if the report has none.
        edit: body of the PATCH that puts it in force; None if there is nothing to put in force.
        why_not: why there is nothing to put in force; empty if there is.
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


class RowTotals(Answer, frozen=True):
    """Numbers of rows of each sort, independent of the search.

    Attributes:
        rows: all rows.
        limited: rows that are limited now.
        overridden: rows with an active edit.
        near: rows near their limit.
        shadowed: rows where a shadow rule would refuse something now.
    """

    rows: int = 0
    limited: int = 0
    overridden: int = 0
    near: int = 0
    shadowed: int = 0


class LimitPage(Answer, frozen=True, kw_only=True):
    """One page of the table of limits.

    Attributes:
        rows: the rows, in the requested order.
        total: number of rows that match.
        offset: rows skipped before the first one.
        limit: maximum number of rows.
        totals: numbers of rows of each sort.
        kinds: all kinds.
        sampled_at: when the live figures were taken.
        rule_set_version: version of the rules in force.
        etag: ETag of all limits and switches together.
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
        changes: one change for each edit, in their order.
    """

    changes: tuple[Change, ...]


class AuditPage(Answer, frozen=True):
    """One page of the audit trail, the latest change first.

    Attributes:
        changes: the changes of this page.
        next: value of ``before`` for the next page; None on the last one.
    """

    changes: tuple[Change, ...]
    next: int | None = None


class Defaults(msgspec.Struct, frozen=True):
    """The default limit of each kind.

    Attributes:
        defaults: one limit for each kind.
    """

    defaults: tuple[LimitEntry, ...]


class RuleRow(Answer, frozen=True, kw_only=True):
    """A rule in force.

    Attributes:
        position: place in the order in which rules are tried, from 0.
        kind: kind of what it limits.
        pattern: exact name or pattern.
        shared: it limits everything that matches together.
        rule: name of the rule.
        limit: all fields of its limit.
        limit_text: the limit in short.
        action: what happens above the limit; ``default`` is what the protocol of each connection does by itself, where
            these differ: it refuses, or, with AMQP 1.0, gives no credit.
        hours: when it applies; None is always.
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


class RulePage(Answer, frozen=True, kw_only=True):
    """One page of the rules in force.

    Attributes:
        rows: the rules, in the order in which they are tried.
        total: number of rules that match.
        offset: rows skipped before the first one.
        limit: maximum number of rows.
        rule_set_version: version of the rules in force.
    """

    rows: tuple[RuleRow, ...]
    total: int
    offset: int = 0
    limit: int = 0
    rule_set_version: int = 0


class Export(Answer, frozen=True):
    """The limits in force as a configuration file.

    Attributes:
        text: the file, in TOML.
    """

    text: str


class ConnectionRow(Answer, frozen=True, kw_only=True):
    """One open connection, and its rates.

    Attributes:
        id: id of the connection, to close it with.
        listener: name of the listener that accepted it.
        peer: the client's ``address:port``.
        client: what the client said about itself.
        exempt: whether it is never limited.
        opened_at: when it was opened.
        age_s: seconds since then.
        bytes_total: bytes read, by the peer that sent them.
        bytes_per_s: bytes per second, likewise; None until there are two samples.
        requests_total: frames of the client, e.g. three for a publish of AMQP 0.9.1 and one for a request of RocketMQ.
        requests_per_s: requests per second; None until there are two samples.
        refused_total: requests that were refused.
        refused_per_s: refused requests per second; None until there are two samples.
        in_flight: forwarded requests that are not answered yet.
        resources: what it sent to or received from, as ``kind:name``.
        more_resources: number of further resources.
        stage: whether it is read: ``running``, ``throttled`` by a limit, in ``flow``, or ``blocked`` by an alarm.
        channels: its channels, its resources with a queue and its writer to the broker, as far as they are not running.
        spooled: messages of it that are in the spool.
        links: its links, where the protocol has any, those that wait first.
        more_links: number of further links.
        tls: version of TLS that the client speaks to Sluice, e.g. ``TLSv1.3``; empty: none.
        certificate: name in the client's TLS certificate; empty: it has shown none.
        broker: ``address:port`` of the broker it is connected to, where the listener has backups; empty: it has none.
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
    stage: StageState = StageState("connection", "")
    channels: tuple[StageState, ...] = ()
    spooled: int = 0
    links: tuple[LinkState, ...] = ()
    more_links: int = 0
    tls: str = ""
    certificate: str = ""
    broker: str = ""


class ConnectionPage(Answer, frozen=True, kw_only=True):
    """One page of the open connections.

    Attributes:
        rows: the connections, in the requested order.
        total: number of connections that match.
        offset: rows skipped before the first one.
        limit: maximum number of rows.
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
        id: id of the connection.
        closed: always true.
    """

    id: int
    closed: bool = True


class Alarm(Answer, frozen=True, kw_only=True):
    """One alarm: while it stands, those who publish are stopped.

    Attributes:
        scarce: what runs short if it stands.
        stands: whether it does.
        since: since when; None while it does not.
        total: how often it has stood since the start.
        stood_s: for how long together, in seconds.
        text: while it stands, what is the matter and when it ends.
        bytes_now: what Sluice uses of memory, or what is free on the disk; None if that is unknown.
        bytes_limit: above which, or below which for the disk, it stands; None if that is unknown.
        status: all of it in words, whether it stands or not.
    """

    scarce: Scarce
    stands: bool = False
    since: str | None = None
    total: int = 0
    stood_s: float = 0
    text: str = ""
    bytes_now: int | None = None
    bytes_limit: int | None = None
    status: str = ""


class StageCount(msgspec.Struct, frozen=True):
    """How many stages of one kind show one state.

    Attributes:
        kind: kind of the stages.
        state: what they show.
        stages: how many.
    """

    kind: Kind
    state: StageWord
    stages: int


class Flow(Answer, frozen=True, kw_only=True):
    """What waits for what.

    Attributes:
        findings: the bottlenecks in words, first the one that most connections wait for; empty if nobody waits.
        counts: how many stages of each kind show each state.
        connections: the connections that are not ``running``, first those in flow.
        more_connections: number of further ones.
        store: the spool's disk; None if there is no spool.
        alarms: of memory and disk.
        busy_ratio: share of the last second in which Sluice was working; 1 is all of it.
        confirms: destinations whose messages consumers confirm by a rule, as far as something was published there:
            first those where the broker does so now all the same, then those with the most messages that wait.
        more_confirms: number of further ones.
        sentences: the findings, or that there are none, in words.
        details: stages by state, the spool's disk and the busy ratio, in words.
    """

    findings: tuple[FlowFinding, ...] = ()
    counts: tuple[StageCount, ...] = ()
    connections: tuple[ConnectionFlow, ...] = ()
    more_connections: int = 0
    store: StageState | None = None
    alarms: tuple[Alarm, ...] = ()
    busy_ratio: float = 0
    confirms: tuple[ConfirmState, ...] = ()
    more_confirms: int = 0
    sentences: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()


class SpoolFolder(Answer, frozen=True):
    """Folder of the spool.

    Attributes:
        directory: directory of the files; None if there is no spool.
        error: why there is none; None if there is, or if it is off.
    """

    directory: str | None = None
    error: str | None = None


class Spool(Answer, frozen=True):
    """The spool.

    Attributes:
        folder: where.
        holds: what it holds; None if there is no spool.
        sentences: how much there is and what is wrong, in words.
        details: memory, disk and counts, in words.
    """

    folder: SpoolFolder = SpoolFolder()
    holds: SpoolState | None = None
    sentences: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()


class PurgedSpool(Answer, frozen=True, kw_only=True):
    """What was purged from the spool.

    Attributes:
        kind: kind of the resource.
        name: its name.
        refused: messages whose senders were told, in the protocol's own words.
        dropped: messages whose senders had no answer to expect.
        change: id of the change in the audit trail.
    """

    kind: str
    name: str
    refused: int = 0
    dropped: int = 0
    change: int = 0


class Switches(msgspec.Struct, frozen=True):
    """All switches.

    Attributes:
        switches: the switch for all, then that of each kind.
    """

    switches: tuple[SwitchEntry, ...]


class Drift(Answer, frozen=True, kw_only=True):
    """How what is in force differs from the configuration.

    Attributes:
        limits: limits with an active edit.
        switches: switches with an active edit.
        total: number of limits with an active edit.
        offset: limits skipped before the first one.
        limit: maximum number of limits.
        etag: ETag of all limits and switches together.
    """

    limits: tuple[LimitEntry, ...]
    switches: tuple[SwitchEntry, ...] = ()
    total: int = 0
    offset: int = 0
    limit: int = 0
    etag: str = ""


class WhoAmI(msgspec.Struct, frozen=True):
    """Who makes this request.

    Attributes:
        name: name of the token; ``local`` where no token is needed.
        role: ``write`` may change limits.
        address: where the request came from.
        authentication: whether a token is needed.
    """

    name: str
    role: Literal["read", "write"]
    address: str
    authentication: bool


class ListenerReach(Answer, frozen=True, kw_only=True):
    """One listener, and whether its broker answers.

    Attributes:
        name: configured name.
        listen: ``address:port`` it is bound to.
        broker: ``address:port`` it connects to.
        connections: connections open now.
        listening: whether clients can connect; false while the broker is unreachable, and during a drain.
        reachable: whether the broker accepted a connection; None before the first attempt.
        error: why it did not.
        backup: which of the backups that broker is, from 1 on; 0: none of them.
        backups: number of backups that are configured.
        passed_over: brokers before that one, each with why it is not used.
    """

    name: str
    listen: str
    broker: str
    connections: int
    listening: bool = True
    reachable: bool | None = None
    error: str | None = None
    backup: int = 0
    backups: int = 0
    passed_over: tuple[str, ...] = ()


class Totals(Answer, frozen=True, kw_only=True):
    """Counts since the start.

    Attributes:
        messages: messages by outcome.
        requests: requests by outcome.
        connections: connections accepted.
        connections_open: connections open now.
        bytes: bytes read, by the peer that sent them.
        frames: frames read, by the peer that sent them.
        closed: connections closed, by reason.
        undecodable: headers that the strict parser refused, by parser.
        lost_messages: messages lost as their connection ended, though their client assumes them delivered.
        lost_bytes: bytes of these, and of what clients had sent that left before it was read.
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


class Rates(Answer, frozen=True, kw_only=True):
    """Means of the last ten seconds.

    Attributes:
        messages_per_s: messages by outcome.
        requests_per_s: requests by outcome.
        bytes_per_s: bytes read, by the peer that sent them.
    """

    messages_per_s: Verdicts = Verdicts()
    requests_per_s: Verdicts = Verdicts()
    bytes_per_s: Mapping[Direction, float] = {}


class BypassCount(msgspec.Struct, frozen=True):
    """Requests that passed because one handler was skipped for one reason.

    Attributes:
        handler: name of the handler.
        reason: why it was skipped.
        total: requests since the start.
    """

    handler: str
    reason: str
    total: int


class Bypassed(Answer, frozen=True):
    """Requests that passed because a handler was skipped.

    Attributes:
        total: requests since the start.
        per_s_last_60s: requests per second, mean of the last minute.
        by: counts by handler and reason.
    """

    total: int = 0
    per_s_last_60s: float = 0
    by: tuple[BypassCount, ...] = ()


class LaneState(msgspec.Struct, frozen=True):
    """The queues of one handler's lanes.

    Attributes:
        handler: name of the handler.
        queued: batches in the queues.
        capacity: most batches in the queues.
        late_lanes: lanes that are bypassed until a probe returns in time.
    """

    handler: str
    queued: int
    capacity: int
    late_lanes: int


class Held(Answer, frozen=True):
    """Requests that are held back, those for credit among them.

    Attributes:
        requests: requests held now.
        bytes: their size in bytes; what waits for credit is not here.
        refused: requests refused instead of held, by the bound that was reached.
    """

    requests: int = 0
    bytes: int = 0
    refused: Mapping[str, int] = {}


class Limiters(Answer, frozen=True):
    """Limiters in memory.

    Attributes:
        live: limiters now.
        evicted_total: limiters evicted for new names.
        overflowed_total: decisions of the limiter that new names share beyond the bound.
    """

    live: int = 0
    evicted_total: int = 0
    overflowed_total: int = 0


class Expiring(msgspec.Struct, frozen=True):
    """A temporary edit.

    Attributes:
        target: what it changed, as in ``Change``.
        expires_at: when it expires.
    """

    target: str
    expires_at: str


class Edits(Answer, frozen=True):
    """Active edits.

    Attributes:
        standing: number of active edits of limits and switches.
        expiring_next: the one that expires next; None if none expires.
    """

    standing: int = 0
    expiring_next: Expiring | None = None


class RejectionLog(msgspec.Struct, frozen=True):
    """Where refusals and traffic are recorded.

    Attributes:
        directory: directory of the files; None if none are written.
        error: why nothing is written at the moment; None if it is, or if the log is off.
    """

    directory: str | None = None
    error: str | None = None


class State(Answer, frozen=True, kw_only=True):
    """The state of the sidecar.

    Attributes:
        version: version of Sluice.
        instance: name of this sidecar among others, as in the rejection log.
        started_at: when it was started.
        uptime_s: seconds since then.
        limiting: whether limiting is on at all.
        off: kinds that are switched off, including ``all`` if everything is.
        draining: whether it is draining and accepts no new connections.
        listeners: the listeners, and whether their brokers answer.
        totals: counts since the start.
        rates: means of the last ten seconds.
        history: messages over the last minutes.
        bypassed: requests that passed unlimited because a handler was skipped.
        lanes: the queues of handlers.
        held: requests that are held back.
        limiters: limiters in memory.
        persistence: where edits are kept.
        edits: active edits.
        rejection_log: where refusals are recorded.
        alarms: of memory and disk; while one stands, those who publish are stopped.
        spool: folder of the spool.
        failed_reload: why the last reload failed; None if it did not.
        warnings: what is valid in the configuration but probably not meant, and what else needs attention.
        rule_set_version: version of the rules in force.
        etag: ETag of all limits and switches together.
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
    alarms: tuple[Alarm, ...] = ()
    spool: SpoolFolder = SpoolFolder()
    failed_reload: FailedReload | None = None
    warnings: tuple[str, ...] = ()
    rule_set_version: int = 0
    etag: str = ""


PROBLEMS: Final = "urn:sluice:problem:"
"""Prefix of the URIs of problem types."""


class ProblemType(msgspec.Struct, frozen=True):
    """A type of problem that an answer can name.

    Attributes:
        type: the URI of this entry, which never changes.
        status: the HTTP status.
        title: the status in words.
        detail: when it occurs, and what to do.
    """

    type: str
    status: int
    title: str
    detail: str


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
#: The first type of a status is the usual one.
_USUAL: Final = {each.status: each for each in reversed(_TYPES)}


def usual_type(status: int) -> ProblemType:
    """Return the type that a status of this API usually has."""
    return _USUAL[status]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed: problem details (RFC 9457).

    Attributes:
        type: the URI of the type of problem, which never changes.
        title: the status in words.
        status: the HTTP status.
        detail: what is wrong and what to do, for people.
        errors: the faults of single fields, if there are any.
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
