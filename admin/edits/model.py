"""The words of live changes: what can be edited, what an edit leaves behind, and how it is told.

An *edit* is asked for; what it puts in force *stands* until it is undone, replaced or over; each is recorded as a
*change*, under an id that counts up. Times are ISO 8601 in UTC with milliseconds, so that they survive a restart.
Plain data, as it is written to disk and over HTTP.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from admin.config.rule_fields import Target

ALL_KINDS: Final = "all"
"""The kind of the switch for all limiting."""

MAX_REASON: Final = 1_000
"""Characters of a reason."""
MAX_TTL_S: Final = 10 * 366 * 86_400
"""Ten years: what shall hold for longer holds for good."""

Action = Literal["set", "unset", "expire", "revert", "reload", "reset"]
"""What a change did; ``expire`` and the changes of a restart are Sluice's own. ``reset`` changes no limit."""

LimitFields = dict[str, Any]
"""A limit as it is written: keys and values of ``[[limits]]`` in the file, without ``kind``, ``name`` and ``shared``.

What is not written has its default. A shared rule is addressed as what it limits: kind ``total``, name
``KIND:PATTERN``.
"""


class Author(msgspec.Struct, frozen=True):
    """Who changes something.

    Attributes:
        name: of the token; ``local`` where none is asked for; ``sluice`` for what Sluice does by itself.
        address: where the request came from, ``address:port`` or the address alone; empty for Sluice itself.
    """

    name: str
    address: str = ""


SLUICE: Final = Author("sluice")


class SetLimit(msgspec.Struct, frozen=True, kw_only=True, tag="set_limit", forbid_unknown_fields=True):
    """Put a limit in force over that of the configuration.

    Attributes:
        kind: of what is limited, or ``total``.
        name: exact name or pattern, as in the file.
        limit: the whole limit; nothing is taken over from what was in force.
        reason: why, for the audit trail.
        ttl_s: seconds after which what was in force before holds again; None is for good.
        if_match: the limit's ETag that is expected; another one refuses the edit. ``*`` wants an edit to stand.
        if_none_match: refuse the edit if the limit has been edited already.
    """

    kind: str
    name: str
    limit: LimitFields
    reason: str = ""
    ttl_s: float | None = None
    if_match: str | None = None
    if_none_match: bool = False


class PatchLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Change what is named of a limit, and keep the rest, as a JSON merge patch does (RFC 7396).

    The rest is that of the edit that stands; without one that of the configuration's rule for that very name; without
    one of the rule that is in force for the name. A rate takes the place of ``exempt``, and the other way round.

    Attributes:
        kind: as in SetLimit.
        name: as in SetLimit.
        limit: what is changed; None takes a field away.
        reason: as in SetLimit.
        ttl_s: as in SetLimit; not given, the edit ends when the one that stands would have.
        if_match: as in SetLimit.
    """

    kind: str
    name: str
    limit: LimitFields
    reason: str = ""
    ttl_s: float | msgspec.UnsetType | None = msgspec.UNSET
    if_match: str | None = None


class UnsetLimit(msgspec.Struct, frozen=True, kw_only=True, tag="unset_limit", forbid_unknown_fields=True):
    """Revert a limit to the configuration."""

    kind: str
    name: str
    reason: str = ""
    if_match: str | None = None


class SetSwitch(msgspec.Struct, frozen=True, kw_only=True, tag="set_switch", forbid_unknown_fields=True):
    """Switch limiting off or on, of everything or of one kind.

    Attributes:
        kind: one kind, or ``all``.
        limiting: False lets everything pass and counts it.
        reason: as in SetLimit.
        ttl_s: as in SetLimit.
        if_match: as in SetLimit.
    """

    kind: str
    limiting: bool
    reason: str = ""
    ttl_s: float | None = None
    if_match: str | None = None


class UnsetSwitch(msgspec.Struct, frozen=True, kw_only=True, tag="unset_switch", forbid_unknown_fields=True):
    """Let a switch stand as the configuration has it."""

    kind: str
    reason: str = ""
    if_match: str | None = None


Edit = SetLimit | PatchLimit | UnsetLimit | SetSwitch | UnsetSwitch


class ActiveEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit left in force.

    Attributes:
        change_id: the change that put it there.
        at: when.
        by: name of the author.
        address: of the author.
        reason: why.
        expires_at: when it ends by itself; None is never.
        limit: the limit as it was written; None of a switch.
        limiting: of a switch; None of a limit.
        under: what stands again when this one expires, if that is not the configuration. It never expires itself.
    """

    change_id: int
    at: str
    by: str
    address: str
    reason: str
    expires_at: str | None = None
    limit: LimitFields | None = None
    limiting: bool | None = None
    under: "ActiveEdit | None" = None


class RuleInForce(msgspec.Struct, frozen=True):
    """The rule in force for a name which has none of its own.

    Attributes:
        rule: its name, e.g. ``topic:orders-*``.
        limit_text: what it admits, in short.
    """

    rule: str
    limit_text: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change, as the audit trail has it and every write answers it.

    Attributes:
        id: counts up over restarts; 0 of a dry run.
        at: when.
        by: name of the author.
        address: of the author.
        action: what was done.
        target: what was changed, as the API's path has it, not percent-encoded: ``limits/topic/orders``,
            ``switches/all``; ``configuration`` of a reload.
        old: the limit, all fields, or ``{"limiting": …}``, that was in force before; None if there was no rule of
            that very name.
        new: what is in force since, likewise.
        old_rule: the pattern's rule or the default that was in force where ``old`` is None; None if none was.
        new_rule: the one that is in force since where ``new`` is None.
        reason: why.
        expires_at: when it ends by itself; None is never.
        reverts: the change that it undid.
        before: what stood before, for undoing it.
        durable: whether it survives a restart.
        details: of a reload, what changed and what needs a restart, a line each; of a reset, what was cleared.
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
        limit: the limit as it now is; null of a dry run, and where somebody else has changed it since.
    """

    limit: "LimitEntry | None" = None


class Configured(msgspec.Struct, frozen=True):
    """What the configuration says of a limit.

    Attributes:
        limit: all fields.
        source: where it is written.
    """

    limit: LimitFields
    source: str


class LimitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of one name or pattern.

    Attributes:
        kind: of what is limited, or ``total``.
        name: exact name or pattern.
        limit: what is in force for it now, all fields.
        limit_text: that in short, as people read it, e.g. ``500/s``.
        rule: the name of the rule in force.
        source: where that rule comes from.
        exact: the name stands for one resource, not for a pattern.
        configured: the configuration's rule for the very same name, if it has one.
        edit: the edit that stands, if one does.
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
    """Whether one kind, or all, is limited.

    Attributes:
        kind: the kind, or ``all``.
        limiting: as it is now.
        configured: as the configuration has it.
        edit: the edit that stands, if one does.
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
        directory: the state directory; None keeps them until the restart only.
        error: what is wrong with it now, for people; None if nothing.
        set_aside: damaged or foreign files found at the start, under their new names.
    """

    directory: str | None
    error: str | None = None
    set_aside: tuple[str, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with an edit.

    Attributes:
        field: the key of the request that it is about, e.g. ``rate``, ``break_s``, ``name``; empty is all of it.
        detail: what was found and what is allowed.
        edit: index of the edit among those asked for together.
    """

    field: str
    detail: str
    edit: int = 0


class EditError(Exception):
    """An edit cannot be done as it is written; nothing was changed."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(f"{each.field}: {each.detail}" if each.field else each.detail for each in problems))
        self.problems = problems


class StaleError(Exception):
    """What an edit expected is not in force any more (or not yet); nothing was changed.

    Attributes:
        edit: index of the edit among those asked for together.
        etag: what is in force.
        detail: whose change came first.
    """

    def __init__(self, edit: int, etag: str, detail: str) -> None:
        super().__init__(detail)
        self.edit, self.etag, self.detail = edit, etag, detail


class NotFoundError(Exception):
    """There is no such edit, limit or change; the message says which.

    Attributes:
        problems: the fields that name what is not there, if they name something that cannot be.
    """

    def __init__(self, detail: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(detail)
        self.problems = problems


class ConflictError(Exception):
    """A change cannot be undone because a later one changed the same; the message names it."""


class StoreError(Exception):
    """The state directory does not take the edit; nothing was changed. The message says why and what to do."""


class ReloadError(Exception):
    """The configuration is wrong; nothing was changed.

    Attributes:
        lines: as ``sluice check`` says them.
    """

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class FailedReload(msgspec.Struct, frozen=True):
    """The last time the configuration was read again it was wrong: what was in force still is.

    Attributes:
        at: when.
        by: who asked: a token's name, ``SIGHUP``, ``file change``.
        problems: as ``sluice check`` says them.
    """

    at: str
    by: str
    problems: tuple[str, ...]


class ReloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload did, or would do.

    Attributes:
        change: as the audit trail has it; None if nothing changed.
        changed: rules and settings now in force that were not before, a line each.
        needs_restart: settings that differ from those in force and hold only after a restart, a line each.
        warnings: as ``sluice check`` says them.
        hidden: configured limits that changed and do not hold because an edit stands over them, a line each.
    """

    change: Change | None
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


LIMITS: Final = "limits/"
SWITCHES: Final = "switches/"


# How the places and times of live edits are written: in the API, in the audit trail, and in the journal.
def limit_path(target: Target) -> str:
    """Return a limit's place in the API and in the audit trail."""
    return f"{LIMITS}{target.kind}/{target.name}"


def switch_path(kind: str) -> str:
    """Return a switch's place in the API and in the audit trail."""
    return f"{SWITCHES}{kind}"


def parse_time(text: str) -> datetime:
    """Read a time as ``model`` writes it."""
    return datetime.fromisoformat(text)


def write_time(moment: datetime) -> str:
    """Write a moment as ``model`` has it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def target_at(path: str) -> Target:
    """Return what the limit at a path is for."""
    return Target(*path.removeprefix(LIMITS).split("/", 1))


def is_over(edit: ActiveEdit, now: datetime) -> bool:
    """Say whether a temporary edit has ended."""
    return edit.expires_at is not None and parse_time(edit.expires_at) <= now


def expiry(at: datetime, ttl_s: float | None) -> str | None:
    """Return when an edit ends that begins at a moment."""
    return None if ttl_s is None else write_time(at + timedelta(seconds=ttl_s))
