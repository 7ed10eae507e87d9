"""The rules that a configuration amounts to: read from file, environment and flags, checked, and laid over each other.

What the keys mean is ``admin.settings``; which rule wins is ``limiter.rules``. What can be said of a rule that is
right but probably not meant is ``admin.doubts``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from admin.errors import SettingsError
from admin.faults import Origins, unknown_key
from admin.settings import KIND_HINTS, UNLIMITED, Limit, LimitSettings, Settings
from admin.sources import Configuration, LimitText
from admin.toml_lines import Path as Place
from limiter.errors import RuleError
from limiter.limit_text import parse_limit
from limiter.patterns import DEFAULT_PATTERN, Matcher
from limiter.resource import CLIENT, LISTENER, PRODUCER_GROUP
from limiter.rule import Rule, RuleKey
from limiter.rules import RuleSet, layer_rules
from limiter.schedule import Hours, read_hours
from proxy.protocols.base import Kind, Protocol

BUILT_IN: Final = "built-in"

SCOPE_KINDS: Final = (
    Kind(CLIENT, "all that is sent from an address; an address or a network"),
    Kind(PRODUCER_GROUP, "all that is sent for a producer group"),
    Kind(LISTENER, "all that is sent through the listeners of a scope; the scope's name"),
)
"""The kinds that every protocol has, in the order in which they are asked."""

#: How attributes of a rule are called in the file, where that is another name.
_KEYS: Final = {"rate_per_s": "rate", "pattern": "name"}


def kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Return the kinds that protocols make, each once, in the order of their own lists."""
    kinds: dict[str, Kind] = {}
    for protocol in protocols:
        for kind in protocol.kinds:
            kinds.setdefault(kind.name, kind)
    return tuple(kinds.values())


def build(configuration: Configuration, protocols: Sequence[Protocol], scopes: Iterable[str]) -> RuleSet:
    """Lay the operator's rules over the protocols' own.

    Args:
        configuration: with the limits of all sources.
        protocols: whose kinds there are.
        scopes: those of the listeners; none leaves the names in rules of kind ``listener`` unchecked.

    Raises:
        SettingsError: with a line for each fault.
    """
    reader = _Reader(configuration.origins, protocols, frozenset(scopes))
    settings = configuration.settings
    places = configuration.limit_places
    from_file = reader.single([*reader.limits(settings, places), *reader.defaults(settings)])
    from_env = reader.single(reader.texts(configuration.env_limits))
    from_flags = reader.single(reader.texts(configuration.flag_limits))
    if problems := sorted((*configuration.problems, *reader.problems), key=configuration.origins.line):
        raise SettingsError(problems)
    given = (from_file, from_env, from_flags)
    built_in = [protocol.default_rules for protocol in protocols]
    if not any(given):
        # The protocols' own rates are for who says nothing at all: an operator who names one topic limits that one.
        built_in.append(tuple(_own_rate(kind) for kind in kinds_of(protocols) if kind.rate_per_s is not None))
    try:
        rules = layer_rules(*built_in, *given)
        rules += tuple(_stand_in_rules(protocols, rules))
        return RuleSet(rules=rules, enabled=settings.limiting)
    except RuleError as error:
        raise SettingsError(str(error)) from None


def _own_rate(kind: Kind) -> Rule:
    return Rule(
        kind.name,
        DEFAULT_PATTERN,
        kind.rate_per_s,
        action=kind.action,
        max_delay_s=kind.max_delay_s,
        source=BUILT_IN,
    )


def _stand_in_rules(protocols: Sequence[Protocol], rules: Sequence[Rule]) -> Iterable[Rule]:
    """Limit what cannot be read as strictly as the strictest limit: whose it would have been, nobody knows.

    That is so at whatever time the strictest limit holds. Left aside are limits of 0, since one refused topic is no
    reason to cut off every client with an odd header; what only counts; and what limits something else than sending
    to a resource.
    """
    named = {(rule.kind, rule.exact_name) for rule in rules}
    sent_to = {kind.name for kind in kinds_of(protocols) if not kind.consumes}
    strict = [rule for rule in rules if rule.kind in sent_to and rule.limits and rule.action != "shadow"]
    rate_per_s = min((rule.rate_per_s for rule in strict if rule.rate_per_s), default=None)
    of_bytes = min(
        (rule for rule in strict if rule.bytes_per_s), key=lambda rule: rule.bytes_per_s or 0.0, default=None
    )
    if rate_per_s is None and of_bytes is None:
        rate_per_s = 1
    for stand_in in (resource for protocol in protocols for resource in protocol.stand_ins):
        if strict and (stand_in.kind, stand_in.name) not in named:
            yield Rule(
                stand_in.kind,
                stand_in.name,
                rate_per_s,
                bytes_per_s=of_bytes.bytes_per_s if of_bytes is not None else None,
                bytes_burst_s=of_bytes.bytes_burst_s if of_bytes is not None else 1.0,
                source=BUILT_IN,
            )


class _Reader:
    """Makes rules of what operators write, and collects what is wrong with it."""

    def __init__(self, origins: Origins, protocols: Sequence[Protocol], scopes: frozenset[str]) -> None:
        self.problems: list[str] = []
        self._origins = origins
        self._protocols = protocols
        self._scopes = scopes
        self._kinds: Mapping[str, Kind] = {kind.name: kind for kind in (*kinds_of(protocols), *SCOPE_KINDS)}

    def limits(self, settings: Settings, places: Iterable[Place]) -> Iterable[Rule]:
        """Yield the rules of the file."""
        for place, limit in zip(places, settings.limits, strict=True):
            if limit.kind not in self._kinds:
                what = self._unknown(limit.kind)
                self.problems.append(self._origins.problem((*place, "kind"), what, limit.kind))
                continue
            try:
                yield self._checked(self._from_file(limit.kind, limit.name, limit, self._origins.of(place)))
            except RuleError as error:
                self._refuse(place, limit, error)

    def defaults(self, settings: Settings) -> Iterable[Rule]:
        """Yield the defaults of the file."""
        for kind, default in settings.defaults.items():
            place = ("defaults", kind)
            if kind not in self._kinds:
                self.problems.append(self._origins.problem(place, self._unknown(kind)))
                continue
            try:
                yield self._checked(self._from_file(kind, DEFAULT_PATTERN, default, self._origins.of(place)))
            except RuleError as error:
                self._refuse(place, default, error)

    def texts(self, limits: Iterable[LimitText]) -> Iterable[Rule]:
        """Yield the rules of a variable or of flags."""
        for limit in limits:

            def make(kind: str, pattern: str, rate_per_s: float | None, source: str = limit.source) -> Rule:
                of = self._kinds.get(kind, Kind(kind, ""))
                return Rule(kind, pattern, rate_per_s, action=of.action, max_delay_s=of.max_delay_s, source=source)

            try:
                rule = parse_limit(limit.text, make)
                if rule.kind in self._kinds:
                    self._checked(rule)
            except RuleError as error:
                written = str(error).removeprefix("limit ")
                # Errors about the text begin with it, those about what it says do not.
                text = written if written.startswith(repr(limit.text)) else f"{limit.text!r}: {written}"
                self.problems.append(f"{limit.source} {text}")
                continue
            if rule.kind not in self._kinds:
                what = f"kind '{rule.kind}' is {self._unknown(rule.kind)}"
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

    def _unknown(self, kind: str) -> str:
        meant = [f'"{word}"' for word in KIND_HINTS.get(kind, ()) if word in self._kinds]
        return f"unknown; did you mean {' or '.join(meant)}?" if meant else unknown_key(kind, self._kinds)

    def _from_file(self, kind: str, pattern: str, limit: Limit, source: str) -> Rule:
        of = self._kinds[kind]
        return Rule(
            kind=kind,
            pattern=pattern,
            rate_per_s=None if limit.rate == UNLIMITED else limit.rate,
            burst_s=limit.burst_s,
            break_s=limit.break_s,
            count=limit.count,
            bytes_per_s=limit.bytes_per_s,
            bytes_burst_s=limit.bytes_burst_s,
            shared=isinstance(limit, LimitSettings) and limit.shared,
            action=limit.action or of.action,
            max_delay_s=of.max_delay_s if limit.max_delay_s is None else limit.max_delay_s,
            busy_code=limit.busy_code,
            fair_by=limit.fair_by,
            max_fair_keys=limit.max_fair_keys,
            warm_up_s=limit.warm_up_s,
            hours=_hours(limit),
            allow_under_limit=limit.allow_under_limit,
            exempt=isinstance(limit, LimitSettings) and limit.exempt,
            source=source,
        )

    def _checked(self, rule: Rule) -> Rule:
        """Return the rule if every protocol it is for can follow it.

        Raises:
            RuleError: one of them cannot, or no listener has the scope.
        """
        is_scope = all(rule.kind != kind.name for kind in kinds_of(self._protocols))
        for protocol in self._protocols:
            if is_scope or any(kind.name == rule.kind for kind in protocol.kinds):
                protocol.check_rule(rule)
        if rule.kind == LISTENER and self._scopes:
            matcher = Matcher([(rule.matches, rule)])
            if not any(matcher.match(scope) for scope in self._scopes):
                what = f"rule {rule.name}: no listener has a scope of this name"
                raise RuleError(what, ", ".join(sorted(self._scopes)), "pattern")
        return rule

    def _refuse(self, place: Place, limit: Limit, error: RuleError) -> None:
        """Name the line of the key that a rule's error is about, if it was written."""
        key = _KEYS.get(error.attribute or "", error.attribute)
        if key is not None and key in limit.model_fields_set:
            place = (*place, key)
        self.problems.append(self._origins.problem(place, str(error).replace("rate_per_s", "rate")))


def _hours(limit: Limit) -> Hours | None:
    if not isinstance(limit, LimitSettings) or (limit.between is None and limit.days is None):
        return None
    return read_hours(limit.between, limit.days or (), limit.time_zone)
