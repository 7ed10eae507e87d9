"""Types that describe edits, both on disk and over HTTP. Times are ISO 8601 in UTC with milliseconds.

An *edit* is a request to change something. It is an *active edit* until it expires or is undone or replaced. The audit
trail records it as a *change*.
"""

from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import msgspec

from admin.config.rule_fields import Target

ALL_KINDS: Final = "all"

MAX_REASON: Final = 1_000
"""In characters."""
MAX_NAME: Final = 255
"""In characters."""
MAX_TTL_S: Final = 10 * 366 * 86_400
LIMITS: Final = "limits/"
SWITCHES: Final = "switches/"
SPOOL: Final = "spool/"
"""Prefixes of paths in the API and in the audit trail."""
FLEET: Final = "fleet/"
"""Prefix for the paths of fleet edits in the store."""

Action = Literal["set", "unset", "expire", "revert", "reload", "reset", "purge"]
"""Sluice itself makes ``expire`` changes. ``reset`` and ``purge`` do not change a limit."""

LimitFields = dict[str, Any]
"""The fields of ``[[limits]]`` except ``kind``, ``name`` and ``shared``. Missing fields have their default values.

A shared rule has the kind ``total`` and the name ``KIND:PATTERN``.
"""


class Author(msgspec.Struct, frozen=True):
    """The author of a change.

    Attributes:
        name: name of the token, ``local`` if no token is needed, or ``sluice`` for changes made by Sluice itself.
        address: ``address:port`` or only the address. Empty for Sluice itself.
    """

    name: str
    address: str = ""


SLUICE: Final = Author("sluice")


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON, description="reason for the audit trail")]
Ttl = Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_S)]
TtlS = Annotated[Ttl | None, msgspec.Meta(description="seconds until the edit expires. Default: never")]


class SetLimit(msgspec.Struct, frozen=True, kw_only=True, tag="set_limit", forbid_unknown_fields=True):
    """Set a limit. The edit overrides the configured limit.

    Attributes:
        kind: kind of resource or scope, or ``total``.
        name: exact name or pattern, as in the file.
        limit: the complete limit, which replaces the previous one.
        if_match: ETag that the limit must have. ``*`` requires an active edit.
        if_none_match: true: the limit must not have an active edit.
    """

    kind: str
    name: Name
    limit: LimitFields
    reason: Reason = ""
    ttl_s: TtlS = None
    if_match: str | None = None
    if_none_match: bool = False


class PatchLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Change some fields of a limit and keep the others (a JSON merge patch, RFC 7396).

    If ``ttl_s`` is missing, the active edit keeps its expiry.
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
        kind: the kind, or ``all``.
        limiting: ``false`` to let all requests pass and only count them.
        if_match: ETag that the switch must have.
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


class ForFleet(msgspec.Struct, frozen=True):
    """The position of an edit in a fleet's edit log.

    Attributes:
        name: name of the fleet.
        number: position among the fleet's edits, starting at 1.
        member: member on which the edit was made.
        after: number of the latest edit of this limit that the author had seen, or 0 if there was none.
    """

    name: str
    number: int
    member: str
    after: int = 0


class ActiveEdit(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that has not expired and has not been undone or replaced.

    Attributes:
        change_id: id of the change that recorded the edit.
        at: when the edit was made.
        by: name of the author.
        address: address of the author.
        reason: reason given by the author.
        expires_at: when the edit expires. None if it is permanent.
        limit: fields that the edit sets. None for a switch.
        limiting: whether the switch is on. None for a limit.
        fleet: position among the fleet's edits. None if the edit applies only to this process.
    """

    change_id: int
    at: str
    by: str
    address: str
    reason: str
    expires_at: str | None = None
    limit: LimitFields | None = None
    limiting: bool | None = None
    fleet: ForFleet | None = None

    def __post_init__(self) -> None:
        if self.expires_at is not None and datetime.fromisoformat(self.expires_at).tzinfo is None:
            raise ValueError("expires_at has no time zone")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change, as it appears in the audit trail and in the response to every write.

    Attributes:
        id: number that increases with each change, even across restarts. 0 for a dry run.
        at: when the change was made.
        by: name of the author.
        address: address of the author.
        action: kind of change.
        target: the changed object, as its API path without percent-encoding: ``limits/topic/orders``, ``switches/all``,
            ``configuration`` for a reload, ``spool/topic/orders`` for a purge.
        old: all fields of the limit before the change, or ``{"limiting": …}`` for a switch. None if there was no limit.
        new: all fields of the limit after the change, like ``old``.
        old_rule: name of the rule that ``old`` comes from, such as ``topic:orders-*``. Empty for the name's own rule.
        new_rule: name of the rule that ``new`` comes from, like ``old_rule``.
        reason: reason given by the author.
        expires_at: when the new edit expires. None if it is permanent.
        reverts: id of the change that this change undoes.
        before: the active edit before the change. Undoing the change restores it.
        durable: whether the change survives a restart.
        details: lines of text about the effects of a reload, reset or purge, or about a simultaneous edit that a fleet
            edit overrides.
        member: member on which a fleet edit was made. Empty if the change applies only to this process.
    """

    id: int
    at: str
    by: str
    address: str
    action: Action
    target: str
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None
    old_rule: str = ""
    new_rule: str = ""
    reason: str = ""
    expires_at: str | None = None
    reverts: int | None = None
    before: ActiveEdit | None = None
    durable: bool = True
    details: tuple[str, ...] = ()
    member: str = ""


class Written(Change, frozen=True, kw_only=True):
    """The change made by a write to a limit.

    Attributes:
        limit: the limit after the write. None for a dry run, or if the limit has already changed again.
    """

    limit: "LimitEntry | None" = None


class Configured(msgspec.Struct, frozen=True):
    """A configured limit.

    Attributes:
        limit: all fields of the limit.
        source: where the limit is configured.
    """

    limit: LimitFields
    source: str


class LimitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The limit for one name or pattern.

    Attributes:
        kind: kind of resource or scope, or ``total``.
        name: exact name or pattern.
        limit: all fields of the active limit.
        limit_text: short form of the limit, e.g. ``500/s``.
        rule: name of the active rule.
        source: where the active rule comes from.
        exact: whether ``name`` is an exact name rather than a pattern.
        configured: the configured limit of the same name, if any.
        edit: the active edit of the limit, if any.
        etag: value that changes whenever another field changes.
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
    """The switch that turns limiting on or off, for one kind or for all.

    Attributes:
        kind: the kind, or ``all``.
        limiting: whether limiting is on now.
        configured: whether limiting is on in the configuration.
        edit: the active edit of the switch, if any.
        etag: value that changes whenever another field changes.
    """

    kind: str
    limiting: bool
    configured: bool
    edit: ActiveEdit | None
    etag: str


class Persistence(msgspec.Struct, frozen=True):
    """Where live edits are stored.

    Attributes:
        directory: the state directory. None if edits are lost on restart.
        error: why edits cannot be saved at the moment. None if they can.
        set_aside: new paths of damaged files that were quarantined on startup.
    """

    directory: str | None
    error: str | None = None
    set_aside: tuple[str, ...] = ()


class FailedReload(msgspec.Struct, frozen=True):
    """A reload that failed because the configuration is invalid. Nothing was changed.

    Attributes:
        at: when the reload failed.
        by: name of the token that requested it, ``SIGHUP``, or ``file change``.
        problems: the errors in the format of ``sluice check``.
    """

    at: str
    by: str
    problems: tuple[str, ...]


class ReloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reload or a dry run.

    Attributes:
        change: the change in the audit trail. None if nothing changed.
        changed: rules, settings and certificates that have changed, one per line.
        needs_restart: changed settings that need a restart, one per line.
        warnings: warnings in the format of ``sluice check``.
        hidden: changed limits that have no effect because an active edit overrides them, one per line.
    """

    change: Change | None
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class FieldProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One error in a request.

    Attributes:
        field: the field, parameter or header at fault. Empty for the request as a whole.
        detail: the invalid value and the allowed values.
        edit: index of the edit in a batch.
    """

    field: str
    detail: str
    edit: int | None = None


class EditError(Exception):
    """Raised if an edit is refused. The message contains the reason. Nothing was changed."""

    status = HTTPStatus.BAD_REQUEST

    def __init__(self, detail: str, problems: tuple[FieldProblem, ...] = ()) -> None:
        super().__init__(detail)
        self.problems = problems


class InvalidError(EditError):
    def __init__(self, *problems: FieldProblem) -> None:
        texts = (f"{each.field}: {each.detail}" if each.field else each.detail for each in problems)
        super().__init__("; ".join(texts), problems)


class PreconditionError(EditError):
    """Raised if ``if_match`` or ``if_none_match`` fails. The message names the author of the last change."""

    status = HTTPStatus.PRECONDITION_FAILED

    def __init__(self, detail: str, etag: str, edit: int = 0) -> None:
        super().__init__(detail, (FieldProblem("", detail, edit),))
        self.etag = etag


class MissingError(EditError):
    status = HTTPStatus.NOT_FOUND


class ConflictError(EditError):
    status = HTTPStatus.CONFLICT


class StoreError(EditError):
    status = HTTPStatus.INSUFFICIENT_STORAGE


class FleetEditError(EditError):
    """Raised if a fleet edit fails. The message says whether the edit may have been made."""

    status = HTTPStatus.SERVICE_UNAVAILABLE


class ReloadError(EditError):
    """Raised if the configuration is invalid. ``lines`` contains the errors in the format of ``sluice check``."""

    status = HTTPStatus.CONFLICT

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines), tuple(FieldProblem("", line) for line in lines))
        self.lines = lines


def limit_path(target: Target) -> str:
    return f"{LIMITS}{target.kind}/{target.name}"


def target_at(path: str) -> Target:
    kind, _, name = path.removeprefix(LIMITS).partition("/")
    return Target(kind, name)


def is_over(edit: ActiveEdit, now: datetime) -> bool:
    return edit.expires_at is not None and datetime.fromisoformat(edit.expires_at) <= now
