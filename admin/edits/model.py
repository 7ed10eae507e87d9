"""Types of edits, as they are stored and sent over HTTP.

An *edit* is a request. It becomes an *active edit* until it is undone, replaced or expires, and is recorded as a
*change*, whose id counts up. Times are ISO 8601 in UTC with milliseconds.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec

from admin.common.clock import write_time
from admin.config.rule_fields import Target

ALL_KINDS: Final = "all"
"""The kind of the switch for all limiting."""

MAX_REASON: Final = 1_000
"""Characters of a reason."""
MAX_TTL_S: Final = 10 * 366 * 86_400
"""Ten years."""

Action = Literal["set", "unset", "expire", "revert", "reload", "reset", "purge"]
"""What a change did. Sluice itself makes ``expire``; ``reset`` and ``purge`` change no limit."""

LimitFields = dict[str, Any]
"""The fields of a limit: keys and values of ``[[limits]]`` in the file, without ``kind``, ``name`` and ``shared``.

Missing fields have their defaults. A shared rule is addressed with kind ``total`` and name ``KIND:PATTERN``.
"""


class Author(msgspec.Struct, frozen=True):
    """Who made a change.

    Attributes:
        name: name of the token; ``local`` where no token is needed; ``sluice`` for what Sluice does by itself.
        address: where the request came from, ``address:port`` or the address alone; empty for Sluice itself.
    """

    name: str
    address: str = ""


SLUICE: Final = Author("sluice")


Name = Annotated[str, msgspec.Meta(min_length=1)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON, description="why, for the audit trail")]
Ttl = Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_S)]
TtlS = Annotated[Ttl | None, msgspec.Meta(description="seconds until the edit expires; default: never")]


class SetLimit(msgspec.Struct, frozen=True, kw_only=True, tag="set_limit", forbid_unknown_fields=True):
    """Put a limit in force in place of the configured one.

    Attributes:
        kind: kind of resource or scope, or ``total``.
        name: exact name or pattern, as in the file.
        limit: the whole limit; nothing is kept of the previous one.
        if_match: the limit's ETag must be this one, or the edit is refused; ``*`` needs an active edit.
        if_none_match: refuse the edit if the limit has been edited already.
    """

    kind: str
    name: Name
    limit: LimitFields
    reason: Reason = ""
    ttl_s: TtlS = None
    if_match: str | None = None
    if_none_match: bool = False


class PatchLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Change some fields of a limit and keep the others, as a JSON merge patch does (RFC 7396).

    The others are those of the active edit; without one, of the configured rule for that exact name; without one, of
    the rule in force for the name. A rate replaces ``exempt``, and the other way round.

    Attributes:
        kind: as in SetLimit.
        name: as in SetLimit.
        limit: the fields to change; None removes a field.
        ttl_s: as in SetLimit; if not given, the edit expires when the active one would have.
        if_match: as in SetLimit.
    """

    kind: str
    name: Name
    limit: LimitFields
    reason: Reason = ""
    ttl_s: float | msgspec.UnsetType | None = msgspec.UNSET
    if_match: str | None = None


class UnsetLimit(msgspec.Struct, frozen=True, kw_only=True, tag="unset_limit", forbid_unknown_fields=True):
    """Revert a limit to the configuration."""

    kind: str
    name: Name
    reason: Reason = ""
    if_match: str | None = None


class SetSwitch(msgspec.Struct, frozen=True, kw_only=True, tag="set_switch", forbid_unknown_fields=True):
    """Switch limiting off or on, for everything or for one kind.

    Attributes:
        kind: one kind, or ``all``.
        limiting: False lets everything pass and only counts it.
        if_match: as in SetLimit.
    """

    kind: str
    limiting: bool
    reason: Reason = ""
    ttl_s: TtlS = None
    if_match: str | None = None


class UnsetSwitch(msgspec.Struct, frozen=True, kw_only=True, tag="unset_switch", forbid_unknown_fields=True):
    """Revert a switch to the configuration."""

    kind: str
    reason: Reason = ""
    if_match: str | None = None


Edit = SetLimit | PatchLimit | UnsetLimit | SetSwitch | UnsetSwitch


class ActiveEdit(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that is in force.

    Attributes:
        change_id: id of the change that made it.
        at: when it was made.
        by: name of the author.
        address: address of the author.
        reason: why it was made.
        expires_at: when it expires; None is never.
        limit: the limit as it was given; None for a switch.
        limiting: whether the switch is on; None for a limit.
    """

    change_id: int
    at: str
    by: str
    address: str
    reason: str
    expires_at: str | None = None
    limit: LimitFields | None = None
    limiting: bool | None = None


class RuleInForce(msgspec.Struct, frozen=True):
    """The rule in force for a name without a rule of its own.

    Attributes:
        rule: name of the rule, e.g. ``topic:orders-*``.
        limit_text: its limit in short.
    """

    rule: str
    limit_text: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change, as it is in the audit trail and in the answer to every write.

    Attributes:
        id: counts up, also over restarts; 0 for a dry run.
        at: when it was made.
        by: name of the author.
        address: address of the author.
        action: what was done.
        target: what was changed, as the API's path without percent-encoding: ``limits/topic/orders``,
            ``switches/all``; ``configuration`` for a reload, ``spool/topic/orders`` for a purge.
        old: what was in force before: all fields of the limit, or ``{"limiting": …}``; None if there was no rule for
            that exact name.
        new: what is in force since then, in the same form.
        old_rule: where ``old`` is None, the pattern's or default rule that was in force; None if none was.
        new_rule: where ``new`` is None, the one that is in force since then.
        reason: why it was made.
        expires_at: when it expires; None is never.
        reverts: id of the change that it undid.
        before: the active edit before it, which reverting puts back.
        durable: whether it survives a restart.
        details: for a reload, what changed and what needs a restart, a line each; for a reset, what was cleared; for
            a purge, what was refused and dropped.
    """

    id: int
    at: str
    by: str
    address: str
    action: Action
    target: str
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None
    old_rule: RuleInForce | None = None
    new_rule: RuleInForce | None = None
    reason: str = ""
    expires_at: str | None = None
    reverts: int | None = None
    before: ActiveEdit | None = None
    durable: bool = True
    details: tuple[str, ...] = ()


class Written(Change, frozen=True, kw_only=True):
    """What a write to one limit did.

    Attributes:
        limit: the limit after the write; null for a dry run, and if somebody else has changed it since.
    """

    limit: "LimitEntry | None" = None


class Configured(msgspec.Struct, frozen=True):
    """A limit in the configuration.

    Attributes:
        limit: all fields.
        source: where it is configured.
    """

    limit: LimitFields
    source: str


class LimitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of one name or pattern.

    Attributes:
        kind: kind of resource or scope, or ``total``.
        name: exact name or pattern.
        limit: the limit in force now, all fields.
        limit_text: the limit in short, e.g. ``500/s``.
        rule: name of the rule in force.
        source: where that rule comes from.
        exact: the name is one resource, not a pattern.
        configured: the configured limit of the same name, if there is one.
        edit: the active edit, if there is one.
        etag: changes with everything above.
    """

    kind: str
    name: str
    limit: LimitFields
    limit_text: str
    rule: str
    source: str
    exact: bool
    configured: Configured | None
    edit: ActiveEdit | None
    etag: str


class SwitchEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Whether limiting is on, for one kind or for all.

    Attributes:
        kind: the kind, or ``all``.
        limiting: whether it is on now.
        configured: whether it is on in the configuration.
        edit: the active edit, if there is one.
        etag: changes with everything above.
    """

    kind: str
    limiting: bool
    configured: bool
    edit: ActiveEdit | None
    etag: str


class Persistence(msgspec.Struct, frozen=True):
    """Where live edits are kept.

    Attributes:
        directory: the state directory; None if they are kept until the restart only.
        error: why they cannot be stored at the moment; None if they can.
        set_aside: files found damaged or foreign at the start, under their new names.
    """

    directory: str | None
    error: str | None = None
    set_aside: tuple[str, ...] = ()


class EditProblem(msgspec.Struct, frozen=True):
    """One fault in an edit.

    Attributes:
        field: the key at fault, e.g. ``rate``, ``break_s``, ``name``; empty if it is not one key.
        detail: what was found and what is allowed.
        edit: index of the edit in its batch.
    """

    field: str
    detail: str
    edit: int = 0


class EditError(Exception):
    """An edit is not valid; nothing was changed."""

    def __init__(self, problems: tuple[EditProblem, ...]) -> None:
        super().__init__("; ".join(f"{each.field}: {each.detail}" if each.field else each.detail for each in problems))
        self.problems = problems


class StaleError(Exception):
    """The condition of an edit does not hold; nothing was changed.

    Attributes:
        edit: index of the edit in its batch.
        etag: the current ETag.
        detail: whose change came first.
    """

    def __init__(self, edit: int, etag: str, detail: str) -> None:
        super().__init__(detail)
        self.edit, self.etag, self.detail = edit, etag, detail


class NotFoundError(Exception):
    """There is no such edit, limit or change; the message says which.

    Attributes:
        problems: the fields whose values are not valid at all.
    """

    def __init__(self, detail: str, problems: tuple[EditProblem, ...] = ()) -> None:
        super().__init__(detail)
        self.problems = problems


class ConflictError(Exception):
    """A change cannot be undone because a later one has the same target; the message names it."""


class StoreError(Exception):
    """The edit cannot be stored in the state directory; nothing was changed. The message says why and what to do."""


class ReloadError(Exception):
    """The configuration is invalid; nothing was changed.

    Attributes:
        lines: the faults, as ``sluice check`` reports them.
    """

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class FailedReload(msgspec.Struct, frozen=True):
    """A reload that failed because the configuration is invalid: what was in force still is.

    Attributes:
        at: when it was tried.
        by: who asked for it: a token's name, ``SIGHUP``, ``file change``.
        problems: the faults, as ``sluice check`` reports them.
    """

    at: str
    by: str
    problems: tuple[str, ...]


class ReloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload did, or would do.

    Attributes:
        change: the change in the audit trail; None if nothing changed.
        changed: rules, settings and certificates that changed at once, a line each.
        needs_restart: settings that changed and take effect only after a restart, a line each.
        warnings: the warnings of ``sluice check``.
        hidden: configured limits that changed without effect, since an active edit replaces them, a line each.
    """

    change: Change | None
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


LIMITS: Final = "limits/"
SWITCHES: Final = "switches/"
SPOOL: Final = "spool/"


def limit_path(target: Target) -> str:
    """Return a limit's path in the API, in the audit trail and in the journal."""
    return f"{LIMITS}{target.kind}/{target.name}"


def switch_path(kind: str) -> str:
    """Return a switch's path in the API, in the audit trail and in the journal."""
    return f"{SWITCHES}{kind}"


def spool_path(target: Target) -> str:
    """Return the path of a resource's spooled messages, in the API and in the audit trail."""
    return f"{SPOOL}{target.kind}/{target.name}"


def parse_time(text: str) -> datetime:
    """Read a time as ``write_time`` writes it."""
    return datetime.fromisoformat(text)


def target_at(path: str) -> Target:
    """Return what the limit at a path is for."""
    return Target(*path.removeprefix(LIMITS).split("/", 1))


def is_over(edit: ActiveEdit, now: datetime) -> bool:
    """Say whether a temporary edit has ended."""
    return edit.expires_at is not None and parse_time(edit.expires_at) <= now


def expiry(at: datetime, ttl_s: float | None) -> str | None:
    """Return when an edit made at a time expires; None is never."""
    return None if ttl_s is None else write_time(at + timedelta(seconds=ttl_s))
