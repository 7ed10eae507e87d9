"""Edits checked one after another against what those before them leave, before anything is written down.

A ``Transaction`` lies over a ``State`` and changes nothing in it. An edit that cannot be done is taken back with all
that were asked for together with it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from admin.common.clock import write_time
from admin.config.rule_fields import FieldError, Target, fields_of, patched, target_of, written
from admin.edits.model import (
    ALL_KINDS,
    LIMITS,
    MAX_REASON,
    MAX_TTL_S,
    SLUICE,
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
    switch_path,
)
from admin.edits.state import State
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.cooperative import Pace

MAX_NAME: Final = 255
#: So many changes are put in force in one go; of more, a copy of the state is made ready in steps.
_FEW: Final = 8


class Mark(NamedTuple):
    """How far staging had come."""

    undo: int
    changes: int


class Transaction:
    """What is to be committed together.

    Args:
        state: what has been committed.
        durable: the standings that have been written down, by their path.
        next_id: of the first change.
        now: the wall clock.

    Attributes:
        standings: what changes in force, by path; None for what stands no longer.
        edits: the rules of edits that change, likewise.
        written: what changes on the disk, as ``standings``.
        changes: what was done, in order.
        pace: of all the work on it.
    """

    def __init__(self, state: State, durable: Mapping[str, ActiveEdit], next_id: int, now: datetime) -> None:
        self.standings: dict[str, ActiveEdit | None] = {}
        self.edits: dict[Target, Rule | None] = {}
        self.written: dict[str, ActiveEdit | None] = {}
        self.changes: list[Change] = []
        self.pace = Pace()
        self._state = state
        self._durable = durable
        self._next_id = next_id
        self._now = now
        self._at = write_time(now)
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def mark(self) -> Mark:
        """Return how far it has come, to go back to."""
        return Mark(len(self._undo), len(self.changes))

    def back_to(self, mark: Mark) -> None:
        """Take back all that came after a mark."""
        while len(self._undo) > mark.undo:
            into, key, value = self._undo.pop()
            if value is _NOTHING:
                del into[key]
            else:
                into[key] = value
        del self.changes[mark.changes :]

    async def ready(self) -> tuple[RuleSet, Callable[[], State]]:
        """Make everything ready that comes of it.

        Returns:
            The rules in force once all of it is, and what then makes the state and returns it, quickly.
        """
        state, staged = self._state, (self.standings, self.edits)
        layers = await state.edited(*staged, self.pace)
        if len(self.standings) > _FEW:
            after = await state.after(*staged, layers, self._now, self.pace)
            return layers.rule_set, lambda: after

        def commit() -> State:
            state.commit(*staged, layers, self._now)
            return state

        return layers.rule_set, commit

    async def tell_rules(self, since: Mark) -> None:
        """Complete the changes that leave a name without a rule of its own: say which rule is in force for it then.

        It takes what all that is staged comes to, so it is done once for many.

        Args:
            since: those before are left as they are.
        """
        left = [
            (index, target)
            for index, change in enumerate(self.changes[since.changes :], since.changes)
            if change.new is None and (target := _target(change.target)) is not None
        ]
        if not left:
            return
        layers = await self._state.edited(self.standings, self.edits, self.pace)
        rules = layers.rule_set.at(self._now)
        for index, target in left:
            rule = self._state.rule_in_force(target, rules)
            self.changes[index] = msgspec.structs.replace(self.changes[index], new_rule=rule)

    # --- what can be done

    def edit(self, index: int, edit: Edit, author: Author, *, durable: bool) -> Change:
        """Do one edit.

        Args:
            index: its place among those asked for together.
            edit: what is asked for.
            author: by whom.
            durable: whether it is to survive a restart.

        Raises:
            EditError, StaleError, NotFoundError: it cannot be done.
        """
        _check_words(index, edit)
        match edit:
            case SetLimit():
                return self._set_limit(index, edit, author, durable=durable)
            case PatchLimit():
                return self._patch_limit(index, edit, author, durable=durable)
            case UnsetLimit():
                return self._unset_limit(index, edit, author, durable=durable)
            case SetSwitch():
                entry = self._switch(index, edit.kind)
                _check_match(index, edit.if_match, entry)
                standing = self._standing(edit, author, limiting=edit.limiting)
                return self._put("set", switch_path(edit.kind), standing, standing, author, durable=durable)
            case UnsetSwitch():
                entry = self._switch(index, edit.kind)
                _check_match(index, edit.if_match, entry)
                if entry.edit is None:
                    raise NotFoundError(f"the switch of {edit.kind} stands as the configuration has it")
                path = switch_path(edit.kind)
                return self._put("unset", path, None, None, author, durable=durable, reason=edit.reason)

    def expire(self, path: str) -> Change:
        """End a standing whose time is over; what stood under it stands again."""
        standing = self._stands(path)
        under = standing.under if standing is not None else None
        durable = standing is not None and _same(standing, self._stands_durably(path))
        reason = f"the time of change {standing.change_id} is over" if standing is not None else ""
        kept = self._stands_durably(path)
        return self._put(
            "expire", path, under, kept.under if kept is not None else None, SLUICE, durable=durable, reason=reason
        )

    def revert(self, change: Change, author: Author, reason: str) -> Change:
        """Put back what stood before a change.

        Raises:
            EditError: what stood before cannot stand any more.
        """
        before = change.before
        if before is not None and is_over(before, self._now):
            before = before.under
        standing = None
        if before is not None:
            standing = msgspec.structs.replace(
                before,
                change_id=self._number(),
                at=self._at,
                by=author.name,
                address=author.address,
                reason=reason or before.reason,
            )
        return self._put(
            "revert",
            change.target,
            standing,
            standing,
            author,
            durable=change.durable,
            reason=reason,
            reverts=change.id,
        )

    def tell_end(self, path: str, standing: ActiveEdit) -> Change:
        """Record that a standing ended while nobody was looking; what stood under it stands again already."""
        target = _target(path)
        self._set(self.written, path, standing.under)
        old: dict[str, Any] | None = None if standing.limiting is None else {"limiting": standing.limiting}
        if target is not None:
            with suppress(FieldError):
                old = fields_of(self._state.read(*target, standing))
        return self._record(
            "expire",
            path,
            SLUICE,
            old=old,
            new=self._shown(path, target),
            reason=f"the time of change {standing.change_id} is over",
            before=standing,
        )

    def note(self, action: Action, target: str, author: Author, details: Sequence[str], *, durable: bool) -> Change:
        """Record something that is no edit."""
        return self._record(action, target, author, details=tuple(details), durable=durable)

    def _record(self, action: Action, target: str, author: Author, **besides: Any) -> Change:
        change = Change(
            id=self._number(),
            at=self._at,
            by=author.name,
            address=author.address,
            action=action,
            target=target,
            **besides,
        )
        self.changes.append(change)
        return change

    # --- how

    def reset(self, target: Target, author: Author, details: Sequence[str], *, reason: str, durable: bool) -> Change:
        """Record that limiters began anew; the limit stays as it is."""
        path = limit_path(target)
        shown = self._shown(path, target)
        rule = self._state.rule_in_force(target) if shown is None else None
        return self._record(
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

    def _patch_limit(self, index: int, edit: PatchLimit, author: Author, *, durable: bool) -> Change:
        try:
            target = self._state.rulebook.reader.target(edit.kind, edit.name)
        except FieldError as error:
            raise EditError(tuple(Problem(field, what, index) for field, what in error.problems)) from None
        stands = self._stands(limit_path(target))
        if stands is not None and stands.limit is not None:
            base = stands.limit
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
        ends = stands.expires_at if edit.ttl_s is msgspec.UNSET and stands is not None else None
        return self._set_limit(index, whole, author, durable=durable, ends=ends)

    def _set_limit(
        self, index: int, edit: SetLimit, author: Author, *, durable: bool, ends: str | None = None
    ) -> Change:
        standing = self._standing(edit, author, limit=edit.limit)
        if ends is not None:
            standing = msgspec.structs.replace(standing, expires_at=ends)
        try:
            rule = self._state.read(edit.kind, edit.name, standing)
            target = target_of(rule)
            if target != (edit.kind, edit.name):
                # Another spelling of the same: it is the one that a restart reads.
                rule = self._state.read(*target, standing)
        except FieldError as error:
            raise EditError(tuple(Problem(field, what, index) for field, what in error.problems)) from None
        # An entry takes as long as all the rest of an edit.
        if edit.if_match is not None or edit.if_none_match:
            entry = self._limit(target)
            _check_match(index, edit.if_match, entry)
            if edit.if_none_match and entry.edit is not None:
                raise StaleError(index, entry.etag, f"it has been edited already: {_whose(entry)}")
        return self._put("set", limit_path(target), standing, standing, author, durable=durable, rule=rule)

    def _unset_limit(self, index: int, edit: UnsetLimit, author: Author, *, durable: bool) -> Change:
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
        return self._put("unset", path, None, None, author, durable=durable, reason=edit.reason)

    def _standing(self, edit: SetLimit | SetSwitch, author: Author, **what: Any) -> ActiveEdit:
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
        standing: ActiveEdit | None,
        kept: ActiveEdit | None,
        author: Author,
        *,
        durable: bool,
        rule: Rule | None = None,
        reason: str | None = None,
        reverts: int | None = None,
    ) -> Change:
        """Let something else stand: ``standing`` in force, ``kept`` after a restart."""
        before = self._stands(path)
        if standing is not None and action == "set":
            standing = _over(standing, before)
            kept = _over(standing, self._stands_durably(path))
        target = _target(path)
        if standing is not None and target is not None and rule is None:
            try:
                rule = self._state.read(*target, standing)
            except FieldError as error:
                # Time does not wait for an edit to be right; this one stands and does nothing.
                if action != "expire":
                    raise EditError(tuple(Problem(field, what) for field, what in error.problems)) from None
        old = self._shown(path, target)
        # What is in force for a name that was set and unset in one go is not known before all of it is done.
        has_none = target is not None and old is None and target not in self.edits
        old_rule = self._state.rule_in_force(target) if target is not None and has_none else None
        self._set(self.standings, path, standing)
        if target is not None:
            self._set(self.edits, target, rule)
        if durable:
            self._set(self.written, path, kept)
        return self._record(
            action,
            path,
            author,
            old=old,
            new=self._shown(path, target),
            old_rule=old_rule,
            reason=(standing.reason if standing is not None else "") if reason is None else reason,
            expires_at=None if standing is None else standing.expires_at,
            reverts=reverts,
            before=before,
            durable=durable,
        )

    def _number(self) -> int:
        return self._next_id + len(self.changes)

    def _set(self, into: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((into, key, into.get(key, _NOTHING)))
        into[key] = value

    def _stands(self, path: str) -> ActiveEdit | None:
        return self.standings[path] if path in self.standings else self._state.standings.get(path)

    def _stands_durably(self, path: str) -> ActiveEdit | None:
        return self.written[path] if path in self.written else self._durable.get(path)

    def _rule(self, target: Target) -> Rule | None:
        return self.edits[target] if target in self.edits else self._state.edits.get(target)

    def _limit(self, target: Target) -> LimitEntry:
        return self._state.entry(target, self._rule(target), self._stands(limit_path(target)))

    def _switch(self, index: int, kind: str) -> SwitchEntry:
        kinds = (ALL_KINDS, *self._state.rulebook.reader.kinds)
        if kind not in kinds:
            raise EditError((Problem("kind", f"no such kind; there are {', '.join(kinds)}", index),))
        return self._state.switch(kind, self._stands(switch_path(kind)))

    def _shown(self, path: str, target: Target | None) -> dict[str, Any] | None:
        """Return what a change says of what is in force."""
        if target is None:
            return {"limiting": self._state.switch(path.partition("/")[2], self._stands(path)).limiting}
        rule = self._rule(target) or self._state.configured(target)
        return None if rule is None else fields_of(rule)


_NOTHING: Final = object()


def _target(path: str) -> Target | None:
    """Return what a path of a limit is for; None of a switch."""
    return Target(*path.removeprefix(LIMITS).split("/", 1)) if path.startswith(LIMITS) else None


def _same(standing: ActiveEdit, other: ActiveEdit | None) -> bool:
    return other is not None and other.change_id == standing.change_id


def _over(standing: ActiveEdit, before: ActiveEdit | None) -> ActiveEdit:
    """Let a standing that ends leave what stood for good before."""
    if standing.expires_at is None or before is None:
        return msgspec.structs.replace(standing, under=None)
    return msgspec.structs.replace(standing, under=before if before.expires_at is None else before.under)


def _check_words(index: int, edit: Edit) -> None:
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
