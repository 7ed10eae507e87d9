"""The tables and lists that the HTTP API answers."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from admin.live.model import Change, Configured, LimitEntry, LimitFields, Standing, SwitchEntry
from admin.wire.figures import History, RuleRates, Verdicts
from limiter.rule import Action, Dimension
from proxy.snapshot import ClientDescription, Direction, Usage


class LiveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit does now.

    Attributes:
        messages_per_s: by what became of them, of late; None of scopes and totals, whose messages count for the
            resource.
        requests_per_s: in the same way.
        rule_messages_per_s: what their rule did, of scopes and totals that have it for themselves; None of all others.
        used: how much of the limit was used of late, by dimension; 1.0 is all of it.
        used_ratio: the larger one of the last ten seconds; None while nothing limits it.
        limited: something was refused or held in the last seconds, by whichever rule, or everything is refused at this
            moment.
        would_refuse: a shadow rule would have refused something in the last seconds.
        near: at least 80 % are used.
        open: the breaker refuses everything at this moment, or did in the last seconds; never of a shadow rule.
        wait_s: what a request would have to wait at this moment.
        stored_permits: negative is a debt; None while nothing limits it.
        last_refused_at: when a request was last refused; None if none was.
        last_wait_s: the wait that was stated then.
        refused_by: the rule that refused it, if it was not the limit's own: a total's, a client's, a producer group's
            or a listener's.
    """

    messages_per_s: Verdicts | None
    requests_per_s: Verdicts | None
    rule_messages_per_s: RuleRates | None
    used: Mapping[Dimension, Usage]
    used_ratio: float | None
    limited: bool
    would_refuse: bool
    near: bool
    open: bool
    wait_s: float
    stored_permits: float | None
    last_refused_at: str | None
    last_wait_s: float
    refused_by: str | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
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
    own: bool
    kind: str
    name: str
    limit: LimitFields
    limit_text: str
    rule: str
    source: str
    exact: bool
    configured: Configured | None
    edit: Standing | None
    etag: str
    live: LiveFigures | None
    history: History | None


class RowTotals(msgspec.Struct, frozen=True):
    """How many rows there are of each sort, whatever is searched for.

    Attributes:
        rows: all.
        limited: limited now.
        overridden: with an edit.
        near: near their limit.
        shadowed: where a shadow rule would refuse something now.
    """

    rows: int
    limited: int
    overridden: int
    near: int
    shadowed: int


class LimitPage(msgspec.Struct, frozen=True, kw_only=True):
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
    offset: int
    limit: int
    totals: RowTotals
    kinds: tuple[str, ...]
    sampled_at: str
    rule_set_version: int
    etag: str


class Changes(msgspec.Struct, frozen=True):
    """What a batch did.

    Attributes:
        changes: one for each edit, in their order.
    """

    changes: tuple[Change, ...]


class AuditPage(msgspec.Struct, frozen=True):
    """Some of the audit trail, the latest first.

    Attributes:
        changes: of this page.
        next: what ``before`` gets to see the next page; None if this is the last one.
    """

    changes: tuple[Change, ...]
    next: int | None


class Defaults(msgspec.Struct, frozen=True):
    """The default limit of each kind.

    Attributes:
        defaults: one for each kind.
    """

    defaults: tuple[LimitEntry, ...]


class RuleRow(msgspec.Struct, frozen=True, kw_only=True):
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

    position: int
    kind: str
    pattern: str
    shared: bool
    rule: str
    limit: LimitFields
    limit_text: str
    action: Action
    hours: str | None
    source: str
    holds: bool


class RulePage(msgspec.Struct, frozen=True, kw_only=True):
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
    offset: int
    limit: int
    rule_set_version: int


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One open connection, as ``proxy.snapshot.ConnectionState`` has it, and how fast it is.

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
    exempt: bool
    opened_at: str
    age_s: float
    bytes_total: Mapping[Direction, int]
    bytes_per_s: Mapping[Direction, float] | None
    requests_total: int
    requests_per_s: float | None
    refused_total: int
    refused_per_s: float | None
    in_flight: int
    resources: tuple[str, ...]
    more_resources: int


class ConnectionPage(msgspec.Struct, frozen=True, kw_only=True):
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
    offset: int
    limit: int
    sampled_at: str


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


class Drift(msgspec.Struct, frozen=True, kw_only=True):
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
    switches: tuple[SwitchEntry, ...]
    total: int
    offset: int
    limit: int
    etag: str


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
