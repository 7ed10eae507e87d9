"""Applies the active edits to the configured limits. This takes 0.1 s for 10 000 limits."""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, Self

import msgspec

from admin.config.rule_fields import FieldError, Target, fields_of, target_of
from admin.config.rulebook import Rulebook
from admin.edits.model import (
    ALL_KINDS,
    SWITCHES,
    ActiveEdit,
    Configured,
    FieldProblem,
    LimitEntry,
    MissingError,
    SwitchEntry,
    limit_path,
    target_at,
)
from limiter.rules.resource import TOTAL, Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

EDIT_SOURCE: Final = "live edit"
"""The source of a rule that an edit defines. The id of the change is appended."""

_ETAG_BYTES: Final = 8


class EffectiveLimits:
    """Immutable limits that result from a configuration and the active edits.

    Unchanged entries of ``before`` and the edits' rules in the argument ``rules`` are reused.

    Attributes:
        active: The active edits by path, oldest first.
        rules: The edits' rules by path, oldest first. Among equally literal patterns, the latest edit wins.
        ends: When temporary edits expire, by path.
        idle: Why edits have no effect with this configuration, by path.
        switches: The switch for everything, followed by one for each kind.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        active: Mapping[str, ActiveEdit],
        now: datetime,
        before: "EffectiveLimits | None" = None,
        rules: Mapping[str, Rule] | None = None,
    ) -> None:
        self.rulebook = rulebook
        self.active = dict(sorted(active.items(), key=lambda item: item[1].change_id))
        self.ends = {path: datetime.fromisoformat(each.expires_at) for path, each in active.items() if each.expires_at}
        self.idle: dict[str, str] = {}
        self.rules = dict(self._read_all(rules or {}))
        self.switches = tuple(self.switch(kind, self.active.get(SWITCHES + kind)) for kind in self.switched_kinds)
        self.rule_set: RuleSet = RuleSet(
            rulebook.rules(reversed(self.rules.values())),
            enabled=self.switches[0].limiting,
            version=1 if before is None else before.rule_set.version + 1,
            off_kinds=[each.kind for each in self.switches[1:] if not each.limiting],
        )
        self.entries: dict[str, LimitEntry] = {}
        self._configured: dict[str, list[Rule]] = {}
        if before is not None and before.rulebook is rulebook:
            self.entries, self._configured = before.entries, before._configured  # noqa: SLF001 - its own class
        else:
            for rule in rulebook.configured:
                self._configured.setdefault(limit_path(target_of(rule)), []).append(rule)
        self._look(now)

    @property
    def switched_kinds(self) -> tuple[str, ...]:
        return (ALL_KINDS, *self.rulebook.reader.kinds)

    def _read_all(self, known: Mapping[str, Rule]) -> Iterator[tuple[str, Rule]]:
        for path, edit in self.active.items():
            if edit.limit is None:
                if path.removeprefix(SWITCHES) not in self.switched_kinds:
                    self.idle[path] = "unknown kind"
                continue
            try:
                yield path, known.get(path) or self.read(path, edit)
            except FieldError as error:
                self.idle[path] = str(error)

    def read(self, path: str, edit: ActiveEdit) -> Rule:
        return self.rulebook.reader.read(*target_at(path), edit.limit or {}, f"{EDIT_SOURCE} {edit.change_id}")

    def at(self, now: datetime) -> Self:
        """Return the limits at a later time, when other scheduled rules may apply."""
        if self._next_change is None or now < self._next_change:
            return self
        later = copy(self)
        later._look(now)  # noqa: SLF001 - its own class
        return later

    def _look(self, now: datetime) -> None:
        self._now = now
        self._next_change = self.rule_set.next_change(now)
        self._in_force = self.rule_set.at(now)
        timed = {path for path, rules in self._configured.items() for rule in rules if rule.hours is not None}
        timed.update(path for path, rule in self.rules.items() if rule.hours is not None)
        entries: dict[str, LimitEntry] = {}
        for path in dict.fromkeys((*self._configured, *self.rules)):
            edit = self.active[path] if path in self.rules else None
            entry = self.entries.get(path)
            if entry is None or entry.edit is not edit or path in timed:
                entry = self.entry(target_at(path), self.rules.get(path), edit)
            entries[path] = entry
        self.entries = entries
        self.limits = tuple(entries.values())
        self.etag = _digest([*(each.etag for each in self.limits), *(each.etag for each in self.switches)])

    def limit(self, kind: str, name: str) -> LimitEntry:
        """Return the limit that applies to a name or pattern. Raises MissingError if the kind or name is invalid."""
        try:
            target = self.rulebook.reader.target(kind, name)
        except FieldError as error:
            raise MissingError(str(error), tuple(FieldProblem(*each) for each in error.problems)) from None
        return self.entries.get(limit_path(target)) or self.entry(target, None, None)

    def switch(self, kind: str, edit: ActiveEdit | None) -> SwitchEntry:
        kinds = self.switched_kinds
        if kind not in kinds:
            why = self.rulebook.reader.no_kind(kind, kinds)
            raise MissingError(f"kind: {why}", (FieldProblem("kind", why),))
        configured = self.rulebook.enabled if kind == ALL_KINDS else True
        limiting = configured if edit is None else edit.limiting is not False
        entry = SwitchEntry(kind=kind, limiting=limiting, configured=configured, edit=edit, etag="")
        return msgspec.structs.replace(entry, etag=_digest(entry))

    def entry(self, target: Target, rule: Rule | None, edit: ActiveEdit | None) -> LimitEntry:
        path = limit_path(target)
        configured = self.configured_rule(path)
        own = list(self._configured.get(path, ()))
        if rule is not None:
            own = [rule, *(each for each in own if rule.hours is not None and each.hours != rule.hours)]
        in_force = self._active_now(own) or self._in_force.match(Resource(*target))
        exact = target.kind != TOTAL and Rule(target.kind, target.name, None).exact_name is not None
        entry = LimitEntry(
            kind=target.kind,
            name=target.name,
            limit=fields_of(in_force),
            limit_text=in_force.limit_text,
            rule=in_force.name,
            source=in_force.source,
            exact=exact,
            configured=None if configured is None else Configured(fields_of(configured), configured.source),
            edit=None if rule is None else edit,
            etag="",
        )
        return msgspec.structs.replace(entry, etag=_digest(entry))

    def configured_rule(self, path: str) -> Rule | None:
        """Return the rule configured for exactly this name. If it has multiple rules, prefer one that applies now."""
        rules = self._configured.get(path, ())
        return self._active_now(rules) or next(iter(rules), None)

    def inherited_rule(self, target: Target) -> Rule | None:
        """Return the rule that a name inherits from a pattern or the default, if any."""
        if target.kind not in self.rulebook.reader.kinds:
            # Shared limits do not inherit rules.
            return None
        rule = self._in_force.match(Resource(*target))
        return rule if self._in_force.rule(rule.key) is rule else None

    def _active_now(self, rules: Iterable[Rule]) -> Rule | None:
        rules = tuple(rules)
        for rule in rules:
            if rule.hours is not None and rule.hours.holds(self._now):
                return rule
        return next((rule for rule in rules if rule.hours is None), None)

    def differences(self) -> Iterator[str]:
        for path, edit in self.active.items():
            by = f"by {edit.by}" + ("" if edit.expires_at is None else f" until {edit.expires_at}")
            if path in self.idle:
                yield f"{path} has no effect: {self.idle[path]} ({by})"
            elif edit.limit is None:
                yield f"limiting of {path.removeprefix(SWITCHES)}: {'on' if edit.limiting else 'off'} ({by})"
            else:
                target, configured = target_at(path), self.configured_rule(path)
                was = "no limit of its own" if configured is None else configured.limit_text
                yield f"{target.kind}:{target.name}={self.rules[path].limit_text} instead of {was} ({by})"


def _digest(of: Any) -> str:
    return blake2b(msgspec.json.encode(of), digest_size=_ETAG_BYTES).hexdigest()
