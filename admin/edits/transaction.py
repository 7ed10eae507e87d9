"""Checks a batch of edits before they are saved. Each edit is applied to the result of the previous ones."""

from collections import ChainMap
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from admin.config.rule_fields import FieldError, Target, fields_of, patched, target_of
from admin.config.rulebook import Rulebook
from admin.edits.effective import EffectiveLimits
from admin.edits.fleet_log import Entry, is_same, is_undone
from admin.edits.model import (
    FLEET,
    LIMITS,
    MAX_NAME,
    SLUICE,
    SWITCHES,
    Action,
    ActiveEdit,
    Author,
    Change,
    Edit,
    EditError,
    FieldProblem,
    ForFleet,
    InvalidError,
    LimitEntry,
    LimitFields,
    MissingError,
    PatchLimit,
    PreconditionError,
    SetLimit,
    SetSwitch,
    SwitchEntry,
    UnsetLimit,
    UnsetSwitch,
    is_over,
    limit_path,
    target_at,
)
from limiter.rules.rule import Rule
from proxy.common.clock import write_time


class Transaction:
    """Changes that will be committed together. They are made on a copy of the active limits.

    The argument ``stored`` contains all stored edits, including fleet edits, by path. ``made`` collects the new edits.
    """

    def __init__(self, before: EffectiveLimits, stored: Mapping[str, ActiveEdit], next_id: int, now: datetime) -> None:
        self.changes: list[Change] = []
        self.made: list[Entry] = []
        self._before = before
        # By path. None means that the edit was removed or, in the rules, has no effect.
        self._active: ChainMap[str, ActiveEdit | None] = ChainMap({}, dict(before.active))
        self._rules: ChainMap[str, Rule | None] = ChainMap({}, dict(before.rules))
        self._stored: ChainMap[str, ActiveEdit | None] = ChainMap({}, dict(stored))
        self._next_id, self._now = next_id, now

    @property
    def stored(self) -> Mapping[str, ActiveEdit | None]:
        """The edits to write to the store, by path. None removes an edit."""
        return self._stored.maps[0]

    def forget(self, path: str) -> None:
        self._stored[path] = None

    def after(self, rulebook: Rulebook | None = None) -> EffectiveLimits:
        """Return the resulting limits. If ``rulebook`` is given, it replaces the configured rules.

        Also completes ``changes``, because the rule that a name inherits is known only after the last edit.
        """
        before = self._before
        if not self._active.maps[0] and rulebook is None:
            return before
        active = {path: edit for path, edit in self._active.items() if edit is not None}
        rules = {path: rule for path, rule in self._rules.items() if rule is not None} if rulebook is None else {}
        after = EffectiveLimits(rulebook or before.rulebook, active, self._now, before, rules)
        for index, change in enumerate(self.changes):
            if change.target.startswith(LIMITS) and (change.new is None or change.new_rule):
                new, new_rule = _inherited(after, change.target)
                self.changes[index] = msgspec.structs.replace(change, new=new, new_rule=new_rule)
        return after

    def edit(self, edit: Edit, author: Author, *, durable: bool) -> None:
        match edit:
            case SetLimit():
                self._set_limit(edit, author, durable=durable)
            case PatchLimit():
                self._patch_limit(edit, author, durable=durable)
            case UnsetLimit():
                self._unset_limit(edit, author, durable=durable)
            case SetSwitch():
                self._switch(edit)
                active = self._new_edit(edit, author, limiting=edit.limiting)
                self._put("set", SWITCHES + edit.kind, active, author, durable=durable)
            case UnsetSwitch():
                if self._switch(edit).edit is None:
                    raise MissingError(f"the switch for {edit.kind} has no edit")
                self._put("unset", SWITCHES + edit.kind, None, author, durable=durable, reason=edit.reason)

    def expire(self, path: str) -> None:
        """Expire an edit.

        This restores the configured limit or, if the edit was volatile, the stored edit that it overrode.
        """
        edit, stored = self._active[path], self._stored.get(path)
        assert edit is not None  # noqa: S101 - checked by the caller
        durable = stored is not None and stored.change_id == edit.change_id
        reason = f"change {edit.change_id} has expired"
        self._put("expire", path, None if durable else stored, SLUICE, durable=durable, reason=reason)

    def revert(self, change: Change, author: Author, reason: str) -> None:
        """Restore the limit that a change replaced. Raises InvalidError if the configuration no longer allows it."""
        active = change.before
        if active is not None:
            active = None if is_over(active, self._now) else self._signed(active, author, reason or active.reason)
        self._put("revert", change.target, active, author, durable=change.durable, reason=reason, reverts=change.id)

    def follow(self, path: str, edit: ActiveEdit) -> bool:
        """Apply an edit from the fleet's log. Return whether it changes this member's limits."""
        known = self._stored.get(FLEET + path)
        self._stored[FLEET + path] = edit
        is_none = is_undone(edit) or is_over(edit, self._now)
        if is_same(known, edit) if known is not None else is_none and self._active.get(path) is None:
            return False
        if path.startswith(SWITCHES) and path.removeprefix(SWITCHES) not in self._before.switched_kinds:
            # The kind belongs to a protocol that only other members use.
            return False
        mark, before = edit.fleet, known.fleet if known is not None else None
        details: tuple[str, ...] = ()
        if mark and known and before and before.name == mark.name and before.number > mark.after:
            details = (f"overrides the edit by {known.by} on {before.member}, which was made at the same time",)
        self._put(
            "unset" if is_none else "set",
            path,
            None if is_none else msgspec.structs.replace(edit, change_id=self._next_change_id()),
            Author(edit.by, edit.address),
            durable=True,
            reason=edit.reason,
            mark=mark,
            details=details,
        )
        return True

    def note(self, action: Action, target: str, author: Author, **more: Any) -> None:
        if action == "reset":
            shown, rule = self._shown(target)
            more |= {"old": shown, "new": shown, "old_rule": rule, "new_rule": rule}
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

    def _patch_limit(self, edit: PatchLimit, author: Author, *, durable: bool) -> None:
        reader = self._before.rulebook.reader
        try:
            target = reader.target(edit.kind, edit.name)
        except FieldError as error:
            raise _refusal(error) from None
        active = self._active.get(limit_path(target))
        entry = self._limit(target)
        if active is not None and active.limit is not None:
            base = active.limit
        elif entry.configured is not None:
            base = reader.base(target, entry.configured.limit)
        elif self._before.inherited_rule(target) is not None:
            base = reader.base(target, entry.limit)
        else:
            # Without a rule, missing fields get the kind's defaults.
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
        self._set_limit(whole, author, durable=durable, expires_at=expires_at)

    def _set_limit(self, edit: SetLimit, author: Author, *, durable: bool, expires_at: str | None = None) -> None:
        if len(edit.name) > MAX_NAME:
            # The length of names in the broker's protocol has not been checked yet.
            raise InvalidError(FieldProblem("name", f"must be at most {MAX_NAME} characters"))
        active = self._new_edit(edit, author, limit=edit.limit)
        if expires_at is not None:
            active = msgspec.structs.replace(active, expires_at=expires_at)
        try:
            path = limit_path(Target(edit.kind, edit.name))
            rule = self._before.read(path, active)
            target = target_of(rule)
            if limit_path(target) != path:
                # Save the edit under the normalized path, where a restart looks for it.
                path = limit_path(target)
                rule = self._before.read(path, active)
        except FieldError as error:
            raise _refusal(error) from None
        if edit.if_match is not None or edit.if_none_match:
            entry = self._limit(target)
            _check_match(edit.if_match, entry)
            if edit.if_none_match and entry.edit is not None:
                raise PreconditionError(f"the limit already has an edit: {whose(entry)}", entry.etag)
        self._put("set", path, active, author, durable=durable, rule=rule)

    def _unset_limit(self, edit: UnsetLimit, author: Author, *, durable: bool) -> None:
        path = limit_path(Target(edit.kind, edit.name))
        if path not in self._before.idle:
            asked = self._before.limit(edit.kind, edit.name)
            target = Target(asked.kind, asked.name)
            path = limit_path(target)
            entry = self._limit(target)
            _check_match(edit.if_match, entry)
            if entry.edit is None:
                raise MissingError(f"{target.kind} {target.name} has no edit")
        self._put("unset", path, None, author, durable=durable, reason=edit.reason)

    def _new_edit(self, edit: SetLimit | SetSwitch, author: Author, **what: Any) -> ActiveEdit:
        expires_at = None if edit.ttl_s is None else write_time(self._now + timedelta(seconds=edit.ttl_s))
        empty = ActiveEdit(change_id=0, at="", by="", address="", reason="", expires_at=expires_at, **what)
        return self._signed(empty, author, edit.reason)

    def _signed(self, edit: ActiveEdit, author: Author, reason: str) -> ActiveEdit:
        return msgspec.structs.replace(
            edit,
            change_id=self._next_change_id(),
            at=write_time(self._now),
            by=author.name,
            address=author.address,
            reason=reason,
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
        mark: ForFleet | None = None,
        details: tuple[str, ...] = (),
    ) -> None:
        before = self._active.get(path)
        if active is not None and path.startswith(LIMITS) and rule is None:
            try:
                rule = self._before.read(path, active)
            except FieldError as error:
                # An expiry or a fleet edit cannot be refused. If its rule is invalid on this member, it has no effect.
                if action != "expire" and mark is None:
                    raise _refusal(error) from None
        if reason is None:
            reason = "" if active is None else active.reason
        old, old_rule = self._shown(path)
        self._active[path] = active
        if path.startswith(LIMITS):
            self._rules[path] = rule
        if durable:
            self._stored[path] = active
        new, new_rule = self._shown(path)
        self.note(
            action,
            path,
            author,
            old=old,
            new=new,
            old_rule=old_rule,
            new_rule=new_rule,
            reason=reason,
            expires_at=None if active is None else active.expires_at,
            reverts=reverts,
            before=before,
            durable=durable,
            member="" if mark is None else mark.member,
            details=details,
        )
        nothing = ActiveEdit(
            change_id=0, at=write_time(self._now), by=author.name, address=author.address, reason=reason
        )
        self.made.append(Entry(path, active or nothing))

    def _next_change_id(self) -> int:
        return self._next_id + len(self.changes)

    def _limit(self, target: Target) -> LimitEntry:
        path = limit_path(target)
        return self._before.entry(target, self._rules.get(path), self._active.get(path))

    def _switch(self, edit: SetSwitch | UnsetSwitch) -> SwitchEntry:
        entry = self._before.switch(edit.kind, self._active.get(SWITCHES + edit.kind))
        _check_match(edit.if_match, entry)
        return entry

    def _shown(self, path: str) -> tuple[LimitFields | None, str]:
        if path.startswith(SWITCHES):
            return {"limiting": self._before.switch(path.removeprefix(SWITCHES), self._active.get(path)).limiting}, ""
        own = self._rules.get(path) or self._before.configured_rule(path)
        if own is not None:
            return fields_of(own), ""
        return (None, "") if path in self._rules.maps[0] else _inherited(self._before, path)


def _inherited(limits: EffectiveLimits, path: str) -> tuple[LimitFields | None, str]:
    rule = limits.inherited_rule(target_at(path))
    return (None, "") if rule is None else (fields_of(rule), rule.name)


def _refusal(error: FieldError) -> EditError:
    problems = tuple(FieldProblem(*each) for each in error.problems)
    unknown = any(each.field == "kind" for each in problems)
    return MissingError(str(error), problems) if unknown else InvalidError(*problems)


def _check_match(if_match: str | None, entry: LimitEntry | SwitchEntry) -> None:
    if if_match is None or if_match == entry.etag or (if_match == "*" and entry.edit is not None):
        return
    if if_match == "*":
        raise PreconditionError("the limit or switch has no edit", entry.etag)
    raise PreconditionError(f"the ETag is out of date: {whose(entry)}", entry.etag)


def whose(entry: LimitEntry | SwitchEntry) -> str:
    edit = entry.edit
    if edit is None:
        return "the configured value applies again"
    reason = f" ({edit.reason})" if edit.reason else ""
    return f"{edit.by} changed it at {edit.at}, change {edit.change_id}{reason}"
