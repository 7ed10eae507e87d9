"""The limits and switches in force: the configuration's, and the edits that stand over them.

Plain memory: what is staged is kept apart from what has been committed, so that a group of edits that cannot be
written down leaves no trace. Who writes it down, and when, is ``admin.edits.service``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, TypedDict

import msgspec

from admin.config.rule_fields import FieldError, Target, fields_of, target_of
from admin.config.rulebook import Rulebook
from admin.edits.model import (
    ALL_KINDS,
    LIMITS,
    SWITCHES,
    ActiveEdit,
    Configured,
    LimitEntry,
    NotFoundError,
    Problem,
    RuleInForce,
    SwitchEntry,
    limit_path,
    parse_time,
    switch_path,
)
from limiter.rules.resource import TOTAL, Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.cooperative import Pace


# Live edits laid over the configured rules, a few at a time.
#
# An edit takes as long with thousands of rules as with ten. What it comes to is what ``Rulebook.rules`` makes of all of
# them at once.
class Layers:
    """The rules in force, and the edits that are among them. It never changes; ``edited`` makes others.

    Args:
        rulebook: the configuration's rules.
        edits: the rules of edits, the latest last: of equally literal patterns that one wins.
        version: of the rule set is one more.
        enabled: whether limiting is on.
        off_kinds: kinds whose limiting is switched off.

    Attributes:
        rule_set: the rules in force.
        edits: the rules of edits, by what they are for, the latest last.
    """

    def __init__(
        self, rulebook: Rulebook, edits: Iterable[Rule], version: int, *, enabled: bool, off_kinds: frozenset[str]
    ) -> None:
        self._rulebook = rulebook
        self._configured: dict[Target, list[Rule]] = {}
        for rule in rulebook.configured:
            self._configured.setdefault(target_of(rule), []).append(rule)
        self.edits: dict[Target, Rule] = {}
        self.rule_set = RuleSet(rulebook.configured, version=version)
        changed = {target_of(rule): rule for rule in edits}
        other = self.edited(changed, enabled=enabled, off_kinds=off_kinds)
        self.edits, self.rule_set = other.edits, other.rule_set

    def edited(self, changed: Mapping[Target, Rule | None], *, enabled: bool, off_kinds: frozenset[str]) -> "Layers":
        """Return the layers with some edits more, others or fewer.

        Args:
            changed: the rules of edits, by what they are for, the latest last; None for what is not edited any more.
            enabled: whether limiting is on.
            off_kinds: kinds whose limiting is switched off.
        """
        other = copy(self)
        other._edit(self, changed, enabled=enabled, off_kinds=off_kinds)  # noqa: SLF001 - one of its own
        return other

    def _edit(
        self, old: "Layers", changed: Mapping[Target, Rule | None], *, enabled: bool, off_kinds: frozenset[str]
    ) -> None:
        # Far quicker than dict(…), if some have gone from it.
        self.edits = old.edits.copy()
        put: list[Rule] = []
        drop: list[Rule] = []
        for target, rule in changed.items():
            before = self.rules_of(target)
            # The latest edit is the last of all.
            self.edits.pop(target, None)
            if rule is not None:
                self.edits[target] = rule
            after = self.rules_of(target)
            drop += [each for each in before if not _is_in(each, after)]
            # The strongest is put last; what was there already is put again to be later than others.
            put += [each for each in reversed(after) if each is rule or not _is_in(each, before)]
        keys = {rule.key for rule in put}
        dropped = [rule.key for rule in drop if rule.key not in keys]
        self.rule_set = old.rule_set.edited(put, dropped, enabled=enabled, off_kinds=off_kinds)

    @property
    def targets(self) -> Iterable[Target]:
        """Everything that has a rule of its own."""
        return dict.fromkeys((*self._configured, *self.edits))

    def configured(self, target: Target) -> Sequence[Rule]:
        """Return the configuration's rules of a name, the strongest first."""
        return self._configured.get(target, [])

    def rules_of(self, target: Target) -> list[Rule]:
        """Return the rules of a name that are in the rule set, the strongest first."""
        return list(laid_over(self.edits.get(target), self._configured.get(target, ())))


def laid_over(edit: Rule | None, rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield the rules of one name with an edit over them, the strongest first."""
    if edit is not None:
        yield edit
    for rule in rules:
        if edit is None or (edit.hours is not None and rule.hours != edit.hours):
            yield rule


def _is_in(rule: Rule, rules: Iterable[Rule]) -> bool:
    return any(each is rule for each in rules)


EDIT_SOURCE: Final = "live edit"
"""Where the rule of an edit comes from; its number follows."""

_ETAG_BYTES: Final = 8
#: Edits that are laid over the rules in one go: a few tenths of a millisecond.
_AT_ONCE: Final = 16


class _Switched(TypedDict):
    enabled: bool
    off_kinds: frozenset[str]


class State:
    """What is in force, and what edits stand for it.

    Args:
        rulebook: the configuration's rules.
        standings: the edits that stand, by their path.
        now: the moment whose rules are looked at.
        before: what was in force until now; its rule set is replaced by the next version.

    Attributes:
        rulebook: as given.
        standings: as given.
        layers: the rules in force.
        ends: when standings end by themselves, by their path.
        idle: edits that the configuration has no place for, by their path, each with the reason.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        standings: Mapping[str, ActiveEdit],
        now: datetime,
        before: RuleSet | None = None,
    ) -> None:
        self.rulebook = rulebook
        self.standings = dict(standings)
        self.ends: dict[str, datetime] = {}
        self._listed: tuple[LimitEntry, ...] | None = None
        self._highest = max((standing.change_id for standing in standings.values()), default=0)
        self.idle: dict[str, str] = {}
        rules: list[tuple[int, Rule]] = []
        for path, standing in self.standings.items():
            self._note_end(path, standing)
            if standing.limit is None:
                if path.removeprefix(SWITCHES) not in {ALL_KINDS, *rulebook.reader.kinds}:
                    self.idle[path] = "there is no such kind"
                continue
            kind, _, name = path.removeprefix(LIMITS).partition("/")
            try:
                rules.append((standing.change_id, self.read(kind, name, standing)))
            except FieldError as error:
                self.idle[path] = str(error)
        in_order = [rule for _, rule in sorted(rules, key=lambda each: each[0])]
        version = 0 if before is None else before.version
        self.layers = Layers(rulebook, in_order, version, **self._switched(self.standings))
        self._look(now)
        self._fill()

    def _note_end(self, path: str, standing: ActiveEdit | None) -> None:
        if standing is not None and standing.expires_at is not None:
            self.ends[path] = parse_time(standing.expires_at)
        else:
            self.ends.pop(path, None)

    def _note_if_idle(self, path: str, standing: ActiveEdit) -> None:
        kind, _, name = path.removeprefix(LIMITS).partition("/")
        if Target(kind, name) not in self.layers.edits:
            try:
                self.read(kind, name, standing)
            except FieldError as error:
                self.idle[path] = str(error)

    def read(self, kind: str, name: str, standing: ActiveEdit) -> Rule:
        """Make the rule of a standing edit of a limit.

        Raises:
            FieldError: there cannot be such a rule.
        """
        return self.rulebook.reader.read(kind, name, standing.limit or {}, f"{EDIT_SOURCE} {standing.change_id}")

    def _switched(self, standings: Mapping[str, ActiveEdit] | Mapping[str, ActiveEdit | None]) -> _Switched:
        return {
            "enabled": self.switch(ALL_KINDS, standings.get(switch_path(ALL_KINDS))).limiting,
            "off_kinds": frozenset(
                kind
                for kind in self.rulebook.reader.kinds
                if (standing := standings.get(switch_path(kind))) is not None and standing.limiting is False
            ),
        }

    async def edited(
        self, standings: Mapping[str, ActiveEdit | None], edits: Mapping[Target, Rule | None], pace: Pace
    ) -> Layers:
        """Return the rules with some standings more, others or fewer; nothing here changes.

        Args:
            standings: those that change, by their path; None for what stands no longer.
            edits: the rules that change likewise.
            pace: of the work.
        """
        # An earlier edit that stands again does not win over the later ones.
        numbers = {target: self._number(target, standings) for target, rule in edits.items() if rule is not None}
        earliest = min(numbers.values(), default=self._highest)
        patterns = [
            (number, target)
            for target, rule in (self.layers.edits.items() if earliest < self._highest else ())
            if target not in edits and rule.exact_name is None and (number := self._number(target, {})) > earliest
        ]
        in_order: dict[Target, Rule | None] = {target: None for target, rule in edits.items() if rule is None}
        later = {target: self.layers.edits[target] for _, target in patterns}
        ordered = sorted([(number, target) for target, number in numbers.items()] + patterns)
        in_order |= {target: edits.get(target) or later[target] for _, target in ordered}
        switches = {switch_path(switch.kind): switch.edit for switch in self._switches}
        switches |= {path: standing for path, standing in standings.items() if path in switches}
        switched, changes, layers = self._switched(switches), list(in_order.items()), self.layers
        for begin in range(0, max(1, len(changes)), _AT_ONCE):
            layers = layers.edited(dict(changes[begin : begin + _AT_ONCE]), **switched)
            await pace.keep()
        return layers

    def _number(self, target: Target, standings: Mapping[str, ActiveEdit | None]) -> int:
        path = limit_path(target)
        standing = standings.get(path) or self.standings[path]
        return standing.change_id

    async def after(
        self,
        standings: Mapping[str, ActiveEdit | None],
        edits: Mapping[Target, Rule | None],
        layers: Layers,
        now: datetime,
        pace: Pace,
    ) -> "State":
        """Return what is in force after what was staged; here nothing of it shows. For many changes.

        Args:
            standings: those that changed, by their path; None for what stands no longer.
            edits: the rules that changed likewise.
            layers: what all of it amounts to, from ``edited``.
            now: the moment whose rules are looked at.
            pace: of the work.
        """
        self.refresh(now)
        other = copy(self)
        other.standings, other.ends, other.idle = self.standings.copy(), self.ends.copy(), self.idle.copy()
        other._entries = self._entries.copy()  # noqa: SLF001 - one of its own
        other._borrowing = self._borrowing.copy()  # noqa: SLF001 - likewise
        for _ in other._commit(standings, edits, layers, now):  # noqa: SLF001 - likewise
            await pace.keep()
        return other

    def commit(
        self,
        standings: Mapping[str, ActiveEdit | None],
        edits: Mapping[Target, Rule | None],
        layers: Layers,
        now: datetime,
    ) -> None:
        """Put in force what was staged; the arguments are those of ``after``. For few changes, in one go."""
        self.refresh(now)
        for _ in self._commit(standings, edits, layers, now):
            pass

    def _commit(
        self,
        standings: Mapping[str, ActiveEdit | None],
        edits: Mapping[Target, Rule | None],
        layers: Layers,
        now: datetime,
    ) -> Iterator[None]:
        """Put in force what was staged, in small steps."""
        self.layers = layers
        self._look(now)
        for path, standing in standings.items():
            self._stand(path, standing)
            yield
        for target in dict.fromkeys((*edits, *self._borrowing)):
            self._put(target)
            yield
        if any(path.startswith(SWITCHES) for path in standings):
            self._put_switches()

    def _stand(self, path: str, standing: ActiveEdit | None) -> None:
        self._note_end(path, standing)
        self.idle.pop(path, None)
        if standing is None:
            self.standings.pop(path, None)
            return
        self.standings[path] = standing
        self._highest = max(self._highest, standing.change_id)
        if standing.limit is not None:
            self._note_if_idle(path, standing)

    @property
    def rule_set(self) -> RuleSet:
        """What is in force."""
        return self.layers.rule_set

    @property
    def edits(self) -> Mapping[Target, Rule]:
        """The rules of edits, by what they are for."""
        return self.layers.edits

    # --- reading

    def limit(self, kind: str, name: str, now: datetime) -> LimitEntry:
        """Return the limit of one name or pattern, with a rule of its own or not.

        Raises:
            NotFoundError: there is no such kind, or the name is none.
        """
        self.refresh(now)
        try:
            target = self.rulebook.reader.target(kind, name)
        except FieldError as error:
            raise NotFoundError(str(error), tuple(Problem(field, what) for field, what in error.problems)) from None
        return self._entries.get(target) or self.entry(target, None, None)

    def limits(self, now: datetime) -> tuple[LimitEntry, ...]:
        """Return all that have a rule of their own; the same object until something changes."""
        self.refresh(now)
        if self._listed is None:
            self._listed = tuple(self._entries.values())
        return self._listed

    def drift(self) -> list[str]:
        """Say of each edit that stands what it makes of the configuration, a line each."""
        lines = []
        for path, standing in self.standings.items():
            by = f"by {standing.by}" + ("" if standing.expires_at is None else f" until {standing.expires_at}")
            if path in self.idle:
                lines.append(f"{path}: does nothing: {self.idle[path]} ({by})")
            elif standing.limiting is not None:
                lines.append(f"limiting of {path.removeprefix(SWITCHES)}: {_on(standing.limiting)} ({by})")
            else:
                target = Target(*path.removeprefix(LIMITS).split("/", 1))
                configured = self.configured(target)
                was = "no limit of its own" if configured is None else configured.limit_text
                text = self.layers.edits[target].limit_text
                lines.append(f"{target.kind}:{target.name}={text} instead of {was} ({by})")
        return lines

    def switch(self, kind: str, standing: ActiveEdit | None) -> SwitchEntry:
        """Return what a switch is if that edit stands over the configuration, or none does."""
        configured = self.rulebook.enabled if kind == ALL_KINDS else True
        limiting = configured if standing is None else standing.limiting is not False
        entry = SwitchEntry(kind=kind, limiting=limiting, configured=configured, edit=standing, etag="")
        return msgspec.structs.replace(entry, etag=_etag(entry))

    def switches(self) -> tuple[SwitchEntry, ...]:
        """Return the switch for all, then that of each kind."""
        return self._switches

    def etag(self, now: datetime) -> str:
        """Return the ETag of all limits and switches together."""
        self.refresh(now)
        return f"{self._digest:0{2 * _ETAG_BYTES}x}"

    def refresh(self, now: datetime) -> None:
        """Look again at the rules with hours if some of them begin or cease to hold."""
        if self._next_change is not None and now >= self._next_change:
            self._look(now)
            for target in [target for target in self._entries if self._has_hours(target)]:
                self._put(target)

    def _look(self, now: datetime) -> None:
        self._now = now
        self._next_change = self.rule_set.next_change(now)
        self._rules_now: RuleSet | None = None

    def _match(self, target: Target) -> Rule:
        return self._in_force().match(Resource(*target))

    def _in_force(self) -> RuleSet:
        if self._rules_now is None:
            self._rules_now = self.rule_set.at(self._now)
        return self._rules_now

    def _has_hours(self, target: Target) -> bool:
        edit = self.edits.get(target)
        rules = self.layers.configured(target)
        return (edit is not None and edit.hours is not None) or any(rule.hours is not None for rule in rules)

    def _fill(self) -> None:
        self._entries: dict[Target, LimitEntry] = {}
        #: Those whose own rules do not hold at this hour: what is in force for them is another's rule.
        self._borrowing: dict[Target, None] = {}
        self._digest = 0
        self._listed = None
        self._switches: tuple[SwitchEntry, ...] = ()
        for target in self.layers.targets:
            self._put(target)
        self._put_switches()

    def _put(self, target: Target) -> None:
        """Bring the entry of one limit up to date."""
        if (old := self._entries.get(target)) is not None:
            self._digest ^= int(old.etag, 16)
        self._listed = None
        edit = self.edits.get(target)
        if edit is None and not self.layers.configured(target):
            self._entries.pop(target, None)
            self._borrowing.pop(target, None)
            return
        if self._holding(laid_over(edit, self.layers.configured(target))) is None:
            self._borrowing[target] = None
        else:
            self._borrowing.pop(target, None)
        entry = self.entry(target, edit, self.standings.get(limit_path(target)))
        self._entries[target] = entry
        self._digest ^= int(entry.etag, 16)

    def configured(self, target: Target) -> Rule | None:
        """Return the configuration's rule for the very same name: of several the one that would hold now."""
        rules = self.layers.configured(target)
        return self._holding(rules) or next(iter(rules), None)

    def rule_in_force(self, target: Target, rules: RuleSet | None = None) -> RuleInForce | None:
        """Return the rule in force for a name without one of its own; None if none is.

        Args:
            target: the name, or a pattern: then the wider pattern's rule.
            rules: those that hold at the moment; the ones in force if not given.
        """
        if target.kind not in self.rulebook.reader.kinds:
            # A total has no other that would hold in its place.
            return None
        rules = self._in_force() if rules is None else rules
        rule = rules.match(Resource(*target))
        if rules.rule(rule.key) is not rule:
            return None
        return RuleInForce(rule.name, f"off ({rule.limit_text})" if rule.action == "off" else rule.limit_text)

    def entry(self, target: Target, edit: Rule | None, standing: ActiveEdit | None) -> LimitEntry:
        """Return what the limit of a name is if that edit stands over the configuration, or none does."""
        configured = self.configured(target)
        rule = self._holding(laid_over(edit, self.layers.configured(target))) or self._match(target)
        exact = target.kind != TOTAL and (rule.exact_name is not None or self._is_exact(target))
        entry = LimitEntry(
            kind=target.kind,
            name=target.name,
            limit=fields_of(rule),
            limit_text=rule.limit_text,
            rule=rule.name,
            source=rule.source,
            exact=exact,
            configured=None if configured is None else Configured(fields_of(configured), configured.source),
            edit=standing if edit is not None else None,
            etag="",
        )
        return msgspec.structs.replace(entry, etag=_etag(entry))

    def _is_exact(self, target: Target) -> bool:
        return Rule(target.kind, target.name, None).exact_name is not None

    def _holding(self, rules: Iterable[Rule]) -> Rule | None:
        """Return which of the rules of one name holds now: one with hours first."""
        rules = tuple(rules)
        for rule in rules:
            if rule.hours is not None and rule.hours.holds(self._now):
                return rule
        return next((rule for rule in rules if rule.hours is None), None)

    def _put_switches(self) -> None:
        for old in self._switches:
            self._digest ^= int(old.etag, 16)
        kinds = (ALL_KINDS, *self.rulebook.reader.kinds)
        self._switches = entries = tuple(self.switch(kind, self.standings.get(switch_path(kind))) for kind in kinds)
        for entry in entries:
            self._digest ^= int(entry.etag, 16)


def _on(limiting: bool) -> str:  # noqa: FBT001 - a word for it
    return "on" if limiting else "off"


def _etag(entry: Any) -> str:
    """Return what changes with all that an entry says."""
    return blake2b(msgspec.json.encode(entry), digest_size=_ETAG_BYTES).hexdigest()
