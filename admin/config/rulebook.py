"""The rules that a configuration amounts to: read from file, environment and flags, checked, and laid over each other.

What the keys mean is ``admin.config.settings``; which rule wins is ``limiter.rules.rule_set``. What can be said of a
rule that is right but probably not meant is ``admin.config.lint``.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from admin.common.errors import SettingsError
from admin.config.rule_fields import IDENTITY, RuleReader, key_of, worded
from admin.config.settings import Limit
from admin.config.sources import Configuration, LimitText
from admin.config.toml_lines import Path as Place
from limiter.rules.errors import RuleError
from limiter.rules.limit_text import parse_limit
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.rule import Rule, RuleKey
from limiter.rules.rule_set import RuleSet, layer_rules
from proxy.protocols.base import Kind, Protocol, kinds_of

BUILT_IN: Final = "built-in"


class Rulebook:
    """The configured rules, and what live edits make of them.

    A protocol's own rates are for who says nothing at all about limits, and only the configuration is asked whether
    that is so: an edit is a correction of one name. Were it a statement about all, then limiting one runaway topic
    would set free every other one, and the end of the last edit would limit them again.

    Args:
        reader: what rules are read with.
        layers: the rules of each source, weakest first; the protocols' own are among them.
        enabled: whether limiting is on.

    Attributes:
        reader: as given.
        enabled: as given.
        configured: the rules of the configuration.
        hidden: rules that a stronger source replaces, each with the one that does.

    Raises:
        RuleError: two rules of one source share kind, pattern and hours.
    """

    def __init__(self, reader: RuleReader, layers: Sequence[Sequence[Rule]], *, enabled: bool) -> None:
        self.reader = reader
        self.enabled = enabled
        self.configured = layer_rules(*layers)
        self.hidden = tuple(_hidden(self.configured, layers))

    def rules(self, edits: Iterable[Rule] = ()) -> tuple[Rule, ...]:
        """Lay edits over the configuration, as its strongest source, the most important first.

        With thousands of edits this is much quicker than ``layer_rules``; they share no key with each other.
        """
        edits = tuple(edits)
        edited = {rule.key for rule in edits}
        kept = (rule for rule in self.configured if not edited & {rule.key, rule.key._replace(hours=None)})
        return (*edits, *kept)

    def rule_set(self) -> RuleSet:
        """Return what holds without any edit."""
        return RuleSet(rules=self.rules(), enabled=self.enabled)


def build(
    configuration: Configuration, protocols: Sequence[Protocol], scopes: Iterable[str], *, kinds_known: bool = True
) -> Rulebook:
    """Lay the operator's rules over the protocols' own.

    Args:
        configuration: with the limits of all sources.
        protocols: whose kinds there are.
        scopes: those of the listeners; none leaves the names in rules of kind ``listener`` unchecked.
        kinds_known: there are no other protocols, so that a kind of none of these is wrong.

    Raises:
        SettingsError: with a line for each fault of the rules, besides those that the configuration tells of.
    """
    reader = _Sources(configuration, RuleReader(protocols, scopes), kinds_known=kinds_known)
    settings = configuration.settings
    from_file = reader.single([*reader.limits(), *reader.defaults()])
    from_env = reader.single(reader.texts(configuration.env_limits))
    from_flags = reader.single(reader.texts(configuration.flag_limits))
    if reader.problems:
        raise SettingsError(reader.problems)
    given = (from_file, from_env, from_flags)
    built_in = [protocol.default_rules for protocol in protocols]
    if not any(given):
        # The protocols' own rates are for who says nothing at all: an operator who names one topic limits that one.
        built_in.append(tuple(_own_rate(kind) for kind in kinds_of(protocols) if kind.rate_per_s is not None))
    try:
        return Rulebook(reader.reader, [*built_in, *given], enabled=settings.limiting)
    except RuleError as error:
        raise SettingsError(str(error)) from None


def _hidden(configured: Sequence[Rule], layers: Sequence[Sequence[Rule]]) -> Iterable[tuple[Rule, Rule]]:
    in_force = {rule.key: rule for rule in configured}
    for rule in (rule for layer in layers for rule in layer):
        by = in_force.get(rule.key) or in_force.get(rule.key._replace(hours=None))
        if by is not None and by is not rule:
            yield rule, by


def _own_rate(kind: Kind) -> Rule:
    return Rule(
        kind.name,
        DEFAULT_PATTERN,
        kind.rate_per_s,
        action=kind.action,
        credit_waits=bool(kind.credit_waits),
        max_delay_s=kind.max_delay_s,
        source=BUILT_IN,
    )


class _Sources:
    """Makes rules of what operators write, and collects what is wrong with it."""

    def __init__(self, configuration: Configuration, reader: RuleReader, *, kinds_known: bool) -> None:
        self.problems: list[str] = []
        self.reader = reader
        self._settings = configuration.settings
        self._faulty = configuration.faulty
        self._origins = configuration.origins
        self._kinds = reader.kinds
        self._kinds_known = kinds_known

    def limits(self) -> Iterable[Rule]:
        """Yield the rules of the file, and what is left of those that are wrong, to be told from others."""
        for index, limit in enumerate(self._settings.limits):
            place = ("limits", index)
            yield from self._rules(place, (*place, "kind"), limit.kind, limit.name, limit, shared=limit.shared)

    def defaults(self) -> Iterable[Rule]:
        """Yield the defaults of the file, likewise."""
        for kind, default in self._settings.defaults.items():
            place = ("defaults", kind)
            yield from self._rules(place, place, kind, DEFAULT_PATTERN, default)

    def _rules(
        self, place: Place, kind_place: Place, kind: str, pattern: str, limit: Limit, *, shared: bool = False
    ) -> Iterable[Rule]:
        if place in self._faulty:
            return
        faulty = self._faulty.keys(place)
        is_kind = kind in self._kinds
        if not is_kind and self._kinds_known and kind_place not in self._faulty:
            value = kind if kind_place != place else None
            self.problems.append(self._origins.problem(kind_place, self.reader.unknown(kind), value))
        rule, errors = self.reader.salvage(kind, pattern, limit, self._origins.of(place), shared=shared)
        for error in errors:
            # What stands in for a faulty value is nobody's fault.
            if key_of(error) not in faulty:
                self._refuse(place, limit, error)
        # A mistyped key may have been to tell it from others.
        if rule is not None and is_kind and not faulty & IDENTITY and faulty <= type(limit).model_fields.keys():
            yield rule

    def texts(self, limits: Iterable[LimitText]) -> Iterable[Rule]:
        """Yield the rules of a variable or of flags."""
        for limit in limits:

            def make(kind: str, pattern: str, rate_per_s: float | None, source: str = limit.source) -> Rule:
                of = self._kinds.get(kind, Kind(kind, ""))
                return Rule(
                    kind,
                    pattern,
                    rate_per_s,
                    action=of.action,
                    credit_waits=bool(of.credit_waits),
                    max_delay_s=of.max_delay_s,
                    source=source,
                )

            try:
                rule = parse_limit(limit.text, make, f"{next(iter(self._kinds))}:orders=500/s")
                if rule.kind in self._kinds:
                    self.reader.check(rule)
            except RuleError as error:
                written = str(error).removeprefix("limit ")
                # Errors about the text begin with it, those about what it says do not.
                text = written if written.startswith(repr(limit.text)) else f"{limit.text!r}: {written}"
                self.problems.append(f"{limit.source} {text}")
                continue
            if rule.kind not in self._kinds:
                if self._kinds_known:
                    what = f"kind '{rule.kind}' is {self.reader.unknown(rule.kind)}"
                    self.problems.append(f"{limit.source} '{limit.text}': {what}")
                continue
            yield rule

    def single(self, rules: Iterable[Rule]) -> list[Rule]:
        """Return the rules of one source less those that are there already."""
        by_key: dict[RuleKey, Rule] = {}
        for rule in rules:
            other = by_key.setdefault(rule.key, rule)
            if other is not rule:
                what = f"a second rule for {rule.name}: {rule}, besides {other} ({other.source})"
                self.problems.append(f"{rule.source}: {what}; delete one of them")
        return list(by_key.values())

    def _refuse(self, place: Place, limit: Limit, error: RuleError) -> None:
        """Name the line of the key that a rule's error is about, if it was written."""
        key = key_of(error)
        if key in limit.model_fields_set:
            place = (*place, key)
        self.problems.append(self._origins.problem(place, worded(error)))
