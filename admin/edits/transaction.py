"""Edits checked one after another, each against the result of those before it, before anything is saved."""

import math
from collections import ChainMap
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from admin.common.clock import write_time
from admin.config.rule_fields import FieldError, Target, fields_of, patched, target_of, written
from admin.config.rulebook import Rulebook
from admin.edits.effective import EffectiveLimits
from admin.edits.model import (
    ALL_KINDS,
    LIMITS,
    MAX_REASON,
    MAX_TTL_S,
    SLUICE,
    SWITCHES,
    Action,
    ActiveEdit,
    Author,
    Change,
    Edit,
    EditError,
    EditProblem,
    LimitEntry,
    NotFoundError,
    PatchLimit,
    SetLimit,
    SetSwitch,
    StaleError,
    SwitchEntry,
    UnsetLimit,
    UnsetSwitch,
    expiry,
    is_over,
    limit_path,
    switch_path,
    target_at,
)
from limiter.rules.rule import Rule

MAX_NAME: Final = 255


class Transaction:
    """Changes that are committed together. It lies over the limits in force and changes nothing in them.

    Args:
        before: the limits in force.
        stored: the stored edits, by path.
        next_id: id of the first change.
        now: the wall clock.

    Attributes:
        changes: what was done, in order.
    """

    def __init__(self, before: EffectiveLimits, stored: Mapping[str, ActiveEdit], next_id: int, now: datetime) -> None:
        self.changes: list[Change] = []
        self._before = before
        # By path; None: not edited any more, or for a rule also that the edit does not fit the configuration.
        self._active: ChainMap[str, ActiveEdit | None] = ChainMap({}, dict(before.active))
        self._rules: ChainMap[str, Rule | None] = ChainMap({}, dict(before.rules))
        self._stored: ChainMap[str, ActiveEdit | None] = ChainMap({}, dict(stored))
        self._next_id, self._now = next_id, now

    @property
    def stored(self) -> Mapping[str, ActiveEdit | None]:
        """The stored edits that change, by path; None removes one."""
        return self._stored.maps[0]

    def after(self, rulebook: Rulebook | None = None) -> EffectiveLimits:
        """Return the limits once all of this is in force, over another configuration if one is given.

        It completes the changes that leave a name without a rule of its own by the rule in force from then on.
        """
        before = self._before
        if not self._active.maps[0] and rulebook is None:
            return before
        active = {path: edit for path, edit in self._active.items() if edit is not None}
        rules = {path: rule for path, rule in self._rules.items() if rule is not None} if rulebook is None else {}
        after = EffectiveLimits(rulebook or before.rulebook, active, self._now, before, rules)
        for index, change in enumerate(self.changes):
            if change.new is None and change.target.startswith(LIMITS):
                new_rule = after.rule_in_force(target_at(change.target))
                self.changes[index] = msgspec.structs.replace(change, new_rule=new_rule)
        return after

    def edit(self, index: int, edit: Edit, author: Author, *, durable: bool) -> None:
        """Do one edit.

        Args:
            index: its index in the batch.
            edit: the edit.
            author: who asks.
            durable: whether it survives a restart.

        Raises:
            EditError, StaleError, NotFoundError: it cannot be done.
        """
        _check_bounds(index, edit)
        match edit:
            case SetLimit():
                self._set_limit(index, edit, author, durable=durable)
            case PatchLimit():
                self._patch_limit(index, edit, author, durable=durable)
            case UnsetLimit():
                self._unset_limit(index, edit, author, durable=durable)
            case SetSwitch():
                _check_match(index, edit.if_match, self._switch(index, edit.kind))
                active = self._new_edit(edit, author, limiting=edit.limiting)
                self._put("set", switch_path(edit.kind), active, author, durable=durable)
            case UnsetSwitch():
                entry = self._switch(index, edit.kind)
                _check_match(index, edit.if_match, entry)
                if entry.edit is None:
                    raise NotFoundError(f"the switch of {edit.kind} is not edited")
                self._put("unset", switch_path(edit.kind), None, author, durable=durable, reason=edit.reason)

    def expire(self, path: str) -> None:
        """End an edit whose time is over: the configuration applies again, or a stored edit under a volatile one."""
        edit, stored = self._active[path], self._stored.get(path)
        assert edit is not None  # noqa: S101 - the caller has looked
        durable = stored is not None and stored.change_id == edit.change_id
        reason = f"the time of change {edit.change_id} is over"
        self._put("expire", path, None if durable else stored, SLUICE, durable=durable, reason=reason)

    def revert(self, change: Change, author: Author, reason: str) -> None:
        """Put back what was in force before a change; raises EditError if it does not fit the configuration."""
        active = change.before
        if active is not None:
            if is_over(active, self._now):
                active = None
            else:
                active = msgspec.structs.replace(
                    active,
                    change_id=self._next_change_id(),
                    at=write_time(self._now),
                    by=author.name,
                    address=author.address,
                    reason=reason or active.reason,
                )
        self._put("revert", change.target, active, author, durable=change.durable, reason=reason, reverts=change.id)

    def note(self, action: Action, target: str, author: Author, **more: Any) -> None:
        """Record something that changed no limit: a reload, or a purge of the spool."""
        self.changes.append(
            Change(
                id=self._next_change_id(),
                at=write_time(self._now),
                by=author.name,
                address=author.address,
                action=action,
                target=target,
                **more,
            )
        )

    def note_reset(self, target: Target, author: Author, **more: Any) -> None:
        """Record that limiters began anew; the limit stays as it is."""
        shown = self._shown(limit_path(target))
        rule = self._before.rule_in_force(target) if shown is None else None
        self.note("reset", limit_path(target), author, old=shown, new=shown, old_rule=rule, new_rule=rule, **more)

    # --- how

    def _patch_limit(self, index: int, edit: PatchLimit, author: Author, *, durable: bool) -> None:
        try:
            target = self._before.rulebook.reader.target(edit.kind, edit.name)
        except FieldError as error:
            raise _edit_error(error, index) from None
        active = self._active.get(limit_path(target))
        entry = self._limit(target)
        if active is not None and active.limit is not None:
            base = active.limit
        elif entry.configured is not None:
            base = written(entry.configured.limit)
        elif self._before.rule_in_force(target) is not None:
            base = written(entry.limit)
        else:
            # There is no rule for it: fields that are not given have the kind's defaults.
            base = {}
        whole = SetLimit(
            kind=edit.kind,
            name=edit.name,
            limit=patched(base, edit.limit),
            reason=edit.reason,
            ttl_s=None if edit.ttl_s is msgspec.UNSET else edit.ttl_s,
            if_match=edit.if_match,
        )
        expires_at = active.expires_at if edit.ttl_s is msgspec.UNSET and active is not None else None
        self._set_limit(index, whole, author, durable=durable, expires_at=expires_at)

    def _set_limit(
        self, index: int, edit: SetLimit, author: Author, *, durable: bool, expires_at: str | None = None
    ) -> None:
        active = self._new_edit(edit, author, limit=edit.limit)
        if expires_at is not None:
            active = msgspec.structs.replace(active, expires_at=expires_at)
        try:
            path = f"{LIMITS}{edit.kind}/{edit.name}"
            rule = self._before.read(path, active)
            target = target_of(rule)
            if limit_path(target) != path:
                # Another spelling of the same: it is the one that a restart reads.
                path = limit_path(target)
                rule = self._before.read(path, active)
        except FieldError as error:
            raise _edit_error(error, index) from None
        if edit.if_match is not None or edit.if_none_match:
            entry = self._limit(target)
            _check_match(index, edit.if_match, entry)
            if edit.if_none_match and entry.edit is not None:
                raise StaleError(index, entry.etag, f"it has been edited already: {_whose(entry)}")
        self._put("set", path, active, author, durable=durable, rule=rule)

    def _unset_limit(self, index: int, edit: UnsetLimit, author: Author, *, durable: bool) -> None:
        path = f"{LIMITS}{edit.kind}/{edit.name}"
        if path not in self._before.idle:
            asked = self._before.limit(edit.kind, edit.name)
            target = Target(asked.kind, asked.name)
            path = limit_path(target)
            entry = self._limit(target)
            _check_match(index, edit.if_match, entry)
            if entry.edit is None:
                raise NotFoundError(f"{target.kind} {target.name} is not edited")
        self._put("unset", path, None, author, durable=durable, reason=edit.reason)

    def _new_edit(self, edit: SetLimit | SetSwitch, author: Author, **what: Any) -> ActiveEdit:
        return ActiveEdit(
            change_id=self._next_change_id(),
            at=write_time(self._now),
            by=author.name,
            address=author.address,
            reason=edit.reason,
            expires_at=expiry(self._now, edit.ttl_s),
            **what,
        )

    def _put(
        self,
        action: Action,
        path: str,
        active: ActiveEdit | None,
        author: Author,
        *,
        durable: bool,
        rule: Rule | None = None,
        reason: str | None = None,
        reverts: int | None = None,
    ) -> None:
        """Put another edit in force; None reverts to the configuration."""
        before = self._active.get(path)
        is_limit = path.startswith(LIMITS)
        if active is not None and is_limit and rule is None:
            try:
                rule = self._before.read(path, active)
            except FieldError as error:
                # An edit that expires cannot be refused; what it uncovers is active and does nothing.
                if action != "expire":
                    raise _edit_error(error, 0) from None
        old = self._shown(path)
        # The rule in force for a name that is set and unset in one batch is not known before all of it is done.
        has_none = is_limit and old is None and path not in self._rules.maps[0]
        old_rule = self._before.rule_in_force(target_at(path)) if has_none else None
        self._active[path] = active
        if is_limit:
            self._rules[path] = rule
        if durable:
            self._stored[path] = active
        self.note(
            action,
            path,
            author,
            old=old,
            new=self._shown(path),
            old_rule=old_rule,
            reason=(active.reason if active is not None else "") if reason is None else reason,
            expires_at=None if active is None else active.expires_at,
            reverts=reverts,
            before=before,
            durable=durable,
        )

    def _next_change_id(self) -> int:
        return self._next_id + len(self.changes)

    def _limit(self, target: Target) -> LimitEntry:
        path = limit_path(target)
        return self._before.entry(target, self._rules.get(path), self._active.get(path))

    def _switch(self, index: int, kind: str) -> SwitchEntry:
        kinds = (ALL_KINDS, *self._before.rulebook.reader.kinds)
        if kind not in kinds:
            raise EditError((EditProblem("kind", self._before.rulebook.reader.no_kind(kind, kinds), index),))
        return self._before.switch(kind, self._active.get(switch_path(kind)))

    def _shown(self, path: str) -> dict[str, Any] | None:
        """Return what a change says about the limit or switch in force."""
        if path.startswith(SWITCHES):
            return {"limiting": self._before.switch(path.removeprefix(SWITCHES), self._active.get(path)).limiting}
        rule = self._rules.get(path) or self._before.configured_rule(path)
        return None if rule is None else fields_of(rule)


def check_reason(reason: str, index: int = 0) -> list[EditProblem]:
    """Return what is wrong with a reason."""
    if len(reason) <= MAX_REASON:
        return []
    return [EditProblem("reason", f"must be at most {MAX_REASON} characters", index)]


def _edit_error(error: FieldError, index: int) -> EditError:
    return EditError(tuple(EditProblem(field, what, index) for field, what in error.problems))


def _check_bounds(index: int, edit: Edit) -> None:
    problems = check_reason(edit.reason, index)
    if isinstance(edit, SetLimit | PatchLimit | UnsetLimit) and len(edit.name) > MAX_NAME:
        problems.append(EditProblem("name", f"must be at most {MAX_NAME} characters", index))
    ttl_s = edit.ttl_s if isinstance(edit, SetLimit | PatchLimit | SetSwitch) else None
    if isinstance(ttl_s, int | float) and not (math.isfinite(ttl_s) and 0 < ttl_s <= MAX_TTL_S):
        what = f"must be more than 0 and at most {MAX_TTL_S} seconds; found {ttl_s}"
        problems.append(EditProblem("ttl_s", what, index))
    if problems:
        raise EditError(tuple(problems))


def _check_match(index: int, if_match: str | None, entry: LimitEntry | SwitchEntry) -> None:
    if if_match is None or if_match == entry.etag or (if_match == "*" and entry.edit is not None):
        return
    if if_match == "*":
        raise StaleError(index, entry.etag, "it is not edited")
    raise StaleError(index, entry.etag, f"something else is in force: {_whose(entry)}")


def _whose(entry: LimitEntry | SwitchEntry) -> str:
    edit = entry.edit
    if edit is None:
        return "it is as the configuration has it"
    reason = f" ({edit.reason})" if edit.reason else ""
    return f"{edit.by} changed it at {edit.at}, change {edit.change_id}{reason}"
