"""Reads, checks and combines the configured rules.

``limiter.rules.rule_set`` decides which rule applies to a name.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from admin.common.errors import SettingsError
from admin.config.rule_fields import RuleReader, key_of, worded
from admin.config.settings import Settings, Written
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
    """The configured rules. Live edits override them.

    A protocol's built-in rates apply only if no limits are configured. They continue to apply after live edits, because
    otherwise the first edit of a topic would remove the limits of all other topics.
    """

    def __init__(self, reader: RuleReader, layers: Sequence[Sequence[Rule]], *, enabled: bool) -> None:
        """Combine ``layers``, lowest precedence first. Raises RuleError if a layer contains duplicates."""
        self.reader = reader
        self.enabled = enabled
        self.configured = layer_rules(*layers)

    def rules(self, edits: Iterable[Rule] = ()) -> tuple[Rule, ...]:
        """Return the edits and the configured rules that they do not override, highest precedence first."""
        edits = tuple(edits)
        edited = {rule.key for rule in edits}
        kept = (rule for rule in self.configured if not edited & {rule.key, rule.key._replace(hours=None)})
        return (*edits, *kept)

    def rule_set(self) -> RuleSet:
        return RuleSet(rules=self.rules(), enabled=self.enabled)


def build(configuration: Configuration, protocols: Sequence[Protocol], scopes: Iterable[str]) -> Rulebook:
    """Combine the configured rules with the protocols' built-in ones. Raises SettingsError if a rule is invalid."""
    reader = RuleReader(protocols, scopes, has_fleet=configuration.settings.fleet is not None)
    problems: list[str] = []
    layers = [
        _single(rules, problems)
        for rules in (
            _of_file(configuration, reader, problems),
            _of_texts(configuration.env_limits, reader, problems),
            _of_texts(configuration.flag_limits, reader, problems),
        )
    ]
    if problems:
        raise SettingsError(problems)
    built_in = [protocol.default_rules for protocol in protocols]
    if not any(layers):
        with_rate = [kind for kind in kinds_of(protocols) if kind.rate_per_s is not None]
        built_in.append(tuple(plain_rule(kind, DEFAULT_PATTERN, kind.rate_per_s) for kind in with_rate))
    try:
        return Rulebook(reader, [*built_in, *layers], enabled=configuration.settings.limiting)
    except RuleError as error:
        raise SettingsError(str(error)) from None


def plain_rule(kind: Kind, pattern: str, rate_per_s: float | None, source: str = BUILT_IN) -> Rule:
    return Rule(
        kind.name,
        pattern,
        rate_per_s,
        action=kind.action,
        credit_waits=bool(kind.credit_waits),
        max_delay_s=kind.max_delay_s,
        source=source,
    )


def written_limits(settings: Settings) -> Iterator[tuple[Place, str, str, Written]]:
    for index, limit in enumerate(settings.limits):
        yield ("limits", index), limit["kind"], limit["name"], limit
    for kind, limit in settings.defaults.items():
        yield ("defaults", kind), kind, DEFAULT_PATTERN, limit


def _of_file(configuration: Configuration, reader: RuleReader, problems: list[str]) -> Iterable[Rule]:
    origins = configuration.origins
    for place, kind, pattern, limit in written_limits(configuration.settings):
        if kind not in reader.kinds:
            is_default = place[0] == "defaults"
            kind_place = place if is_default else (*place, "kind")
            problems.append(origins.problem(kind_place, reader.unknown(kind), None if is_default else kind))
            continue
        try:
            yield reader.rule(kind, pattern, limit, origins.of(place), shared=limit.get("shared", False))
        except RuleError as error:
            key = key_of(error)
            problems.append(origins.problem((*place, key) if key in limit else place, worded(error)))


def _of_texts(limits: Iterable[LimitText], reader: RuleReader, problems: list[str]) -> Iterable[Rule]:
    example = f"{next(iter(reader.kinds), 'topic')}:orders=500/s"
    for limit in limits:

        def make(kind: str, pattern: str, rate_per_s: float | None, source: str = limit.source) -> Rule:
            return plain_rule(reader.kinds.get(kind, Kind(kind, "")), pattern, rate_per_s, source)

        try:
            rule = parse_limit(limit.text, make, example)
            if rule.kind not in reader.kinds:
                what = f"kind '{rule.kind}' is {reader.unknown(rule.kind)}"
                problems.append(f"{limit.source} '{limit.text}': {what}")
                continue
            yield reader.check(rule)
        except RuleError as error:
            what = str(error).removeprefix("limit ")
            text = what if what.startswith(repr(limit.text)) else f"{limit.text!r}: {what}"
            problems.append(f"{limit.source} {text}")


def _single(rules: Iterable[Rule], problems: list[str]) -> list[Rule]:
    by_key: dict[RuleKey, Rule] = {}
    for rule in rules:
        other = by_key.setdefault(rule.key, rule)
        if other is not rule:
            what = f"duplicate rule for {rule.name}: {rule}; the other is {other} ({other.source})"
            problems.append(f"{rule.source}: {what}; remove one of them")
    return list(by_key.values())
