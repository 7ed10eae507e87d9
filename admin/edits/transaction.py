"""Edits checked one after another, each against what those before it leave, before anything is written down.

A ``Transaction`` lies over a ``State`` and changes nothing in it: what cannot be done as a whole is simply dropped.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from admin.common.clock import write_time
from admin.config.rule_fields import FieldError, Target, fields_of, patched, target_of, written
from admin.config.rulebook import Rulebook
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
    LimitEntry,
    NotFoundError,
    PatchLimit,
    Problem,
    SetLimit,
    SetSwitch,
    StaleError,
    SwitchEntry,
    UnsetLimit,
    UnsetSwitch,
    expiry,
    is_over,
    limit_path,
    spool_path,
    switch_path,
    target_at,
)
from admin.edits.state import State
from limiter.rules.rule import Rule

MAX_NAME: Final = 255


class Transaction:
    """What is to be committed together.

    Args:
        state: what is in force.
        stored: the edits that have been written down, by path.
        next_id: id of the first change.
        now: the wall clock.

    Attributes:
        active: the active edits that change, by path; None for what is not edited any more.
        rules: their rules, likewise; None also where an edit does not fit the configuration.
        stored: what changes on the disk, as ``active``.
        changes: what was done, in order.
    """

    def __init__(self, state: State, stored: Mapping[str, ActiveEdit], next_id: int, now: datetime) -> None:
        self.active: dict[str, ActiveEdit | None] = {}
        self.rules: dict[str, Rule | None] = {}
        self.stored: dict[str, ActiveEdit | None] = {}
        self.changes: list[Change] = []
        self._state = state
        self._stored_before = stored
        self._next_id = next_id
        self._now = now
        self._at = write_time(now)

    def after(self, rulebook: Rulebook | None = None) -> State:
        """Return the state once all of this is in force. With many limits it takes a while.

        It completes the changes that leave a name without a rule of its own: they say which rule is in force then.

        Args:
            rulebook: a configuration that takes the place of the present one.
        """
        state = self._state
        if not self.active and rulebook is None:
            return state
        active = {path: each for path, each in {**state.active, **self.active}.items() if each is not None}
        rules = {}
        if rulebook is None:
            rules = {path: rule for path, rule in {**state.rules, **self.rules}.items() if rule is not None}
        after = State(rulebook or state.rulebook, active, self._now, state, rules)
        for index, change in enumerate(self.changes):
            if change.new is None and change.target.startswith(LIMITS):
                new_rule = after.rule_in_force(target_at(change.target))
                self.changes[index] = msgspec.structs.replace(change, new_rule=new_rule)
        return after

    # --- what can be done

    def edit(self, index: int, edit: Edit, author: Author, *, durable: bool) -> None:
        """Do one edit.

        Args:
            index: its place among those asked for together.
            edit: what is asked for.
            author: by whom.
            durable: whether it is to survive a restart.

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
                entry = self._switch(index, edit.kind)
                _check_match(index, edit.if_match, entry)
                active = self._new_edit(edit, author, limiting=edit.limiting)
                self._put("set", switch_path(edit.kind), active, active, author, durable=durable)
            case UnsetSwitch():
                entry = self._switch(index, edit.kind)
                _check_match(index, edit.if_match, entry)
                if entry.edit is None:
                    raise NotFoundError(f"the switch of {edit.kind} stands as the configuration has it")
                path = switch_path(edit.kind)
                self._put("unset", path, None, None, author, durable=durable, reason=edit.reason)

    def expire(self, path: str) -> None:
        """End an edit whose time is over: the configuration applies again, or a stored edit under a volatile one."""
        edit, stored = self._edit_at(path), self._stored_at(path)
        assert edit is not None  # noqa: S101 - asked for by who calls
        durable = stored is not None and stored.change_id == edit.change_id
        self._put(
            "expire",
            path,
            None if durable else stored,
            None,
            SLUICE,
            durable=durable,
            reason=f"the time of change {edit.change_id} is over",
        )

    def revert(self, change: Change, author: Author, reason: str) -> None:
        """Put back what was in force before a change.

        Raises:
            EditError: that does not fit the configuration any more.
        """
        before = change.before
        active = None
        if before is not None and not is_over(before, self._now):
            active = msgspec.structs.replace(
                before,
                change_id=self._number(),
                at=self._at,
                by=author.name,
                address=author.address,
                reason=reason or before.reason,
            )
        self._put(
            "revert",
            change.target,
            active,
            active,
            author,
            durable=change.durable,
            reason=reason,
            reverts=change.id,
        )

    def note_reload(self, author: Author, details: Sequence[str], *, durable: bool) -> None:
        """Record that another configuration was put in force."""
        self._record("reload", "configuration", author, details=tuple(details), durable=durable)

    def note_reset(self, target: Target, author: Author, details: Sequence[str], *, reason: str, durable: bool) -> None:
        """Record that limiters began anew; the limit stays as it is."""
        path = limit_path(target)
        shown = self._shown(path)
        rule = self._state.rule_in_force(target) if shown is None else None
        self._record(
            "reset",
            path,
            author,
            old=shown,
            new=shown,
            old_rule=rule,
            new_rule=rule,
            reason=reason,
            details=tuple(details),
            durable=durable,
        )

    def note_purge(self, target: Target, author: Author, details: Sequence[str], *, reason: str, durable: bool) -> None:
        """Record that what was put aside of a resource was refused and dropped."""
        self._record("purge", spool_path(target), author, reason=reason, details=tuple(details), durable=durable)

    # --- how

    def _patch_limit(self, index: int, edit: PatchLimit, author: Author, *, durable: bool) -> None:
        try:
            target = self._state.rulebook.reader.target(edit.kind, edit.name)
        except FieldError as error:
            raise _edit_error(error, index) from None
        active = self._edit_at(limit_path(target))
        if active is not None and active.limit is not None:
            base = active.limit
        else:
            entry = self._limit(target)
            if entry.configured is not None:
                base = written(entry.configured.limit)
            elif self._state.rule_in_force(target) is not None:
                base = written(entry.limit)
            else:
                # No rule says anything of it: what is not given is the kind's to say.
                base = {}
        whole = SetLimit(
            kind=edit.kind,
            name=edit.name,
            limit=patched(base, edit.limit),
            reason=edit.reason,
            ttl_s=None if edit.ttl_s is msgspec.UNSET else edit.ttl_s,
            if_match=edit.if_match,
        )
        ends = active.expires_at if edit.ttl_s is msgspec.UNSET and active is not None else None
        self._set_limit(index, whole, author, durable=durable, ends=ends)

    def _set_limit(self, index: int, edit: SetLimit, author: Author, *, durable: bool, ends: str | None = None) -> None:
        active = self._new_edit(edit, author, limit=edit.limit)
        if ends is not None:
            active = msgspec.structs.replace(active, expires_at=ends)
        try:
            path = f"{LIMITS}{edit.kind}/{edit.name}"
            rule = self._state.read(path, active)
            target = target_of(rule)
            if limit_path(target) != path:
                # Another spelling of the same: it is the one that a restart reads.
                path = limit_path(target)
                rule = self._state.read(path, active)
        except FieldError as error:
            raise _edit_error(error, index) from None
        if edit.if_match is not None or edit.if_none_match:
            entry = self._limit(target)
            _check_match(index, edit.if_match, entry)
            if edit.if_none_match and entry.edit is not None:
                raise StaleError(index, entry.etag, f"it has been edited already: {_whose(entry)}")
        self._put("set", path, active, active, author, durable=durable, rule=rule)

    def _unset_limit(self, index: int, edit: UnsetLimit, author: Author, *, durable: bool) -> None:
        path = f"{LIMITS}{edit.kind}/{edit.name}"
        if path not in self._state.idle:
            try:
                target = self._state.rulebook.reader.target(edit.kind, edit.name)
            except FieldError as error:
                raise NotFoundError(str(error), tuple(Problem(field, what) for field, what in error.problems)) from None
            path = limit_path(target)
            entry = self._limit(target)
            _check_match(index, edit.if_match, entry)
            if entry.edit is None:
                raise NotFoundError(f"no edit stands over {target.kind} {target.name}")
        self._put("unset", path, None, None, author, durable=durable, reason=edit.reason)

    def _new_edit(self, edit: SetLimit | SetSwitch, author: Author, **what: Any) -> ActiveEdit:
        return ActiveEdit(
            change_id=self._number(),
            at=self._at,
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
        stored: ActiveEdit | None,
        author: Author,
        *,
        durable: bool,
        rule: Rule | None = None,
        reason: str | None = None,
        reverts: int | None = None,
    ) -> None:
        """Put another edit in force: ``active`` now, ``stored`` after a restart; None reverts to the configuration."""
        before = self._edit_at(path)
        is_limit = path.startswith(LIMITS)
        if active is not None and is_limit and rule is None:
            try:
                rule = self._state.read(path, active)
            except FieldError as error:
                # Time does not wait for an edit to be right; this one is active and does nothing.
                if action != "expire":
                    raise _edit_error(error, 0) from None
        old = self._shown(path)
        # What is in force for a name that was set and unset in one go is not known before all of it is done.
        has_none = is_limit and old is None and path not in self.rules
        old_rule = self._state.rule_in_force(target_at(path)) if has_none else None
        self.active[path] = active
        if is_limit:
            self.rules[path] = rule
        if durable:
            self.stored[path] = stored
        self._record(
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

    def _record(self, action: Action, target: str, author: Author, **more: Any) -> None:
        self.changes.append(
            Change(
                id=self._number(),
                at=self._at,
                by=author.name,
                address=author.address,
                action=action,
                target=target,
                **more,
            )
        )

    def _number(self) -> int:
        return self._next_id + len(self.changes)

    def _edit_at(self, path: str) -> ActiveEdit | None:
        return self.active[path] if path in self.active else self._state.active.get(path)

    def _stored_at(self, path: str) -> ActiveEdit | None:
        return self.stored[path] if path in self.stored else self._stored_before.get(path)

    def _rule(self, path: str) -> Rule | None:
        return self.rules[path] if path in self.rules else self._state.rules.get(path)

    def _limit(self, target: Target) -> LimitEntry:
        path = limit_path(target)
        return self._state.entry(target, self._rule(path), self._edit_at(path))

    def _switch(self, index: int, kind: str) -> SwitchEntry:
        kinds = (ALL_KINDS, *self._state.rulebook.reader.kinds)
        if kind not in kinds:
            raise EditError((Problem("kind", f"no such kind; there are {', '.join(kinds)}", index),))
        return self._state.switch(kind, self._edit_at(switch_path(kind)))

    def _shown(self, path: str) -> dict[str, Any] | None:
        """Return what a change says of what is in force."""
        if path.startswith(SWITCHES):
            return {"limiting": self._state.switch(path.removeprefix(SWITCHES), self._edit_at(path)).limiting}
        rule = self._rule(path) or self._state.configured_rule(path)
        return None if rule is None else fields_of(rule)


def _edit_error(error: FieldError, index: int) -> EditError:
    return EditError(tuple(Problem(field, what, index) for field, what in error.problems))


def _check_bounds(index: int, edit: Edit) -> None:
    problems = []
    if len(edit.reason) > MAX_REASON:
        problems.append(Problem("reason", f"must be at most {MAX_REASON} characters", index))
    if isinstance(edit, SetLimit | PatchLimit | UnsetLimit) and len(edit.name) > MAX_NAME:
        problems.append(Problem("name", f"must be at most {MAX_NAME} characters", index))
    ttl_s = edit.ttl_s if isinstance(edit, SetLimit | PatchLimit | SetSwitch) else None
    if isinstance(ttl_s, int | float) and not (math.isfinite(ttl_s) and 0 < ttl_s <= MAX_TTL_S):
        problems.append(Problem("ttl_s", f"must be more than 0 and at most {MAX_TTL_S} seconds; found {ttl_s}", index))
    if problems:
        raise EditError(tuple(problems))


def _check_match(index: int, if_match: str | None, entry: LimitEntry | SwitchEntry) -> None:
    if if_match is None or if_match == entry.etag or (if_match == "*" and entry.edit is not None):
        return
    if if_match == "*":
        raise StaleError(index, entry.etag, "no edit stands over the configuration")
    raise StaleError(index, entry.etag, f"something else is in force: {_whose(entry)}")


def _whose(entry: LimitEntry | SwitchEntry) -> str:
    edit = entry.edit
    if edit is None:
        return "it is as the configuration has it"
    reason = f" ({edit.reason})" if edit.reason else ""
    return f"{edit.by} changed it at {edit.at}, change {edit.change_id}{reason}"
