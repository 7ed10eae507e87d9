"""What settings amount to: listeners with their protocols, the pipeline, and the rule set in match order.

Between the configuration and the data path: plug-ins are loaded and given their options, rules are laid over
each other, and what can only be checked with all of that at hand is checked. Nothing is started here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from admin import plugins
from admin.addresses import WILDCARDS, collides, reaches
from admin.errors import SettingsError
from admin.faults import Origins, unknown_key
from admin.settings import DEFAULT_PROTOCOL, OFF, UNLIMITED, Endpoint, Limit, ListenerSettings, Settings
from admin.sources import Configuration, LimitText
from admin.toml_lines import Path as Place
from limiter.errors import RuleError
from limiter.limit_text import parse_limit
from limiter.patterns import DEFAULT_PATTERN
from limiter.rule import Rule
from limiter.rules import RuleSet, layer_rules
from proxy.datapath import DataPathConfig
from proxy.pipeline import HandlerConfig
from proxy.protocols.base import Protocol
from proxy.server import ListenerConfig

BUILT_IN = "built-in"
RATE_LIMIT = "rate_limit"


@dataclass(frozen=True, slots=True)
class PlannedListener:
    """One listener with its protocol loaded.

    Attributes:
        settings: as configured.
        protocol: the plug-in its name stands for.
        options: the protocol's own, in the type that it declares.
        source: where the listener was configured.
    """

    settings: ListenerSettings
    protocol: Protocol
    options: object
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that would be in force.

    Attributes:
        settings: as configured.
        listeners: in the order of the configuration.
        handlers: in the order in which they decide.
        handler_sources: where each handler was configured.
        kinds: the kinds of resources that the protocols make.
        rule_set: the operator's rules over the protocols' own.
    """

    settings: Settings
    listeners: tuple[PlannedListener, ...]
    handlers: tuple[HandlerConfig, ...]
    handler_sources: tuple[str, ...]
    kinds: tuple[str, ...]
    rule_set: RuleSet

    def defaults(self) -> list[Rule]:
        """Return each kind's default."""
        return [self.rule_set.default(kind) for kind in self.kinds]

    def data_path_config(self) -> DataPathConfig:
        """Return what a data path is built from."""
        bounds = self.settings.bounds
        return DataPathConfig(
            listeners=tuple(
                ListenerConfig(
                    name=listener.settings.label,
                    protocol=listener.protocol,
                    options=listener.options,
                    listen=listener.settings.listen,
                    broker=listener.settings.broker,
                    scope=listener.settings.scope,
                )
                for listener in self.listeners
            ),
            handlers=self.handlers,
            rule_set=self.rule_set,
            max_connections=bounds.max_connections,
            max_live_limiters=bounds.max_live_limiters,
            max_resource_labels=bounds.max_resource_labels,
            buffer_budget_bytes=bounds.buffer_budget_bytes,
        )

    def warnings(self) -> list[str]:
        """Say what is allowed but probably not meant."""
        found = []
        if not self.listeners:
            found.append("no listener: `sluice run` will need --listen and --broker besides")
        if not self.settings.limiting:
            found.append("limiting = false: everything passes")
        if all(handler.plugin.name != RATE_LIMIT for handler in self.handlers):
            found.append(f'handlers: no "{RATE_LIMIT}" among them: nothing is limited')
        admin = self.settings.admin.listen
        if admin != OFF and admin.host in WILDCARDS:
            found.append(f"admin {admin}: open to every network of this machine, without a password")
        return found


def compose(configuration: Configuration) -> Plan:
    """Load the plug-ins and lay the rules over each other.

    Raises:
        SettingsError: with a line for each fault.
    """
    problems: list[str] = []
    origins = configuration.origins
    settings = configuration.settings
    listeners = _listeners(settings, origins, problems)
    _check_addresses(settings, origins, problems)
    handlers, handler_sources = _handlers(settings, origins, problems)
    protocols = {listener.protocol.name: listener.protocol for listener in listeners}
    if not settings.listeners:
        # Rules can be checked before there is a listener.
        protocols = {DEFAULT_PROTOCOL: plugins.protocol(DEFAULT_PROTOCOL, ("listeners",), origins)}
    if problems:
        raise SettingsError(problems)
    # In the order of the protocols' own lists, each once.
    kinds = tuple(dict.fromkeys(kind.name for protocol in protocols.values() for kind in protocol.kinds))
    rule_set = _rule_set(configuration, tuple(protocols.values()), kinds)
    return Plan(settings, listeners, handlers, handler_sources, kinds, rule_set)


def _listeners(settings: Settings, origins: Origins, problems: list[str]) -> tuple[PlannedListener, ...]:
    planned = []
    labels: set[str] = set()
    for index, listener in enumerate(settings.listeners):
        place = ("listeners", index)
        if listener.label in labels:
            problems.append(
                origins.problem((*place, "name"), "used by another listener too; choose another", listener.label)
            )
        labels.add(listener.label)
        try:
            protocol = plugins.protocol(listener.protocol, (*place, "protocol"), origins)
            given = listener.options if listener.tls is None else {"tls": listener.tls, **listener.options}
            options = plugins.options(protocol.options, given, (*place, "options"), origins)
        except SettingsError as error:
            problems.extend(error.lines)
        else:
            planned.append(PlannedListener(listener, protocol, options, origins.of(place)))
    return tuple(planned)


def _check_addresses(settings: Settings, origins: Origins, problems: list[str]) -> None:
    """Refuse a broker that is Sluice itself, and addresses that cannot both be listened on."""
    for index, listener in enumerate(settings.listeners):
        for other, target in enumerate(settings.listeners):
            if reaches(listener.broker, target.listen):
                there = origins.name(("listeners", other, "listen"), str(target.listen))
                what = f"is where Sluice itself listens ({there}), so it would connect to itself without end"
                problems.append(
                    origins.problem(
                        ("listeners", index, "broker"), f"{what}; name the broker's own address", str(listener.broker)
                    )
                )
                break
    bound: list[tuple[Place, Endpoint]] = [
        (("listeners", index, "listen"), each.listen) for index, each in enumerate(settings.listeners)
    ]
    if settings.admin.listen != OFF:
        bound.append((("admin", "listen"), settings.admin.listen))
    for index, (place, address) in enumerate(bound):
        for earlier, taken in bound[:index]:
            if collides(address, taken):
                what = f"is taken by {origins.name(earlier, str(taken))}; choose another address"
                problems.append(origins.problem(place, what, str(address)))
                break


def _handlers(
    settings: Settings, origins: Origins, problems: list[str]
) -> tuple[tuple[HandlerConfig, ...], tuple[str, ...]]:
    configs: list[HandlerConfig] = []
    sources: list[str] = []
    for index, handler in enumerate(settings.handlers):
        place = ("handlers", index)
        if any(config.plugin.name == handler.name for config in configs):
            problems.append(origins.problem((*place, "name"), "stands in the pipeline twice; remove one", handler.name))
            continue
        try:
            plugin = plugins.handler(handler.name, (*place, "name"), origins)
            options = plugins.options(plugin.options, handler.options, (*place, "options"), origins)
        except SettingsError as error:
            problems.extend(error.lines)
            continue
        configs.append(
            HandlerConfig(
                plugin=plugin,
                options=options,
                lane=handler.lane,
                lanes=handler.lanes,
                capacity=handler.capacity,
                deadline_ms=handler.deadline_ms,
            )
        )
        sources.append(origins.of(place))
    return tuple(configs), tuple(sources)


def _rule_set(configuration: Configuration, protocols: Sequence[Protocol], kinds: Sequence[str]) -> RuleSet:
    problems: list[str] = []
    origins = configuration.origins
    from_file = list(_file_rules(configuration.settings, kinds, origins, problems))
    from_env = list(_written_rules(configuration.env_limits, kinds, problems))
    from_flags = list(_written_rules(configuration.flag_limits, kinds, problems))
    if problems:
        raise SettingsError(problems)
    given = (from_file, from_env, from_flags)
    built_in = [protocol.default_rules for protocol in protocols]
    if not any(given):
        # The protocols' own rates are for who says nothing at all: an operator who names one topic limits that one.
        built_in += [
            tuple(
                Rule(kind.name, DEFAULT_PATTERN, kind.rate_per_s, action=kind.action, source=BUILT_IN)
                for kind in protocol.kinds
                if kind.rate_per_s is not None
            )
            for protocol in protocols
        ]
    try:
        rules = layer_rules(*built_in, *given)
        rules += tuple(_stand_in_rules(protocols, rules))
        return RuleSet(rules=rules, enabled=configuration.settings.limiting)
    except RuleError as error:
        raise SettingsError(str(error)) from None


def _stand_in_rules(protocols: Sequence[Protocol], rules: Sequence[Rule]) -> Iterable[Rule]:
    """Limit what cannot be read as strictly as the strictest limit: whose it would have been, nobody knows.

    Limits of 0 are left aside: one refused topic is no reason to cut off every client with an odd header.
    """
    named = {(rule.kind, rule.exact_name) for rule in rules}
    rates = [rule.rate_per_s for rule in rules if rule.limits and rule.rate_per_s is not None]
    for stand_in in (resource for protocol in protocols for resource in protocol.stand_ins):
        if rates and (stand_in.kind, stand_in.name) not in named:
            rate_per_s = min((rate for rate in rates if rate > 0), default=1)
            yield Rule(stand_in.kind, stand_in.name, rate_per_s, source=BUILT_IN)


def _file_rules(settings: Settings, kinds: Sequence[str], origins: Origins, problems: list[str]) -> Iterable[Rule]:
    for index, limit in enumerate(settings.limits):
        place = ("limits", index)
        if limit.kind not in kinds:
            problems.append(origins.problem((*place, "kind"), unknown_key(limit.kind, kinds), limit.kind))
            continue
        try:
            yield _rule(limit.kind, limit.name, limit, origins.of(place), enabled=limit.enabled)
        except RuleError as error:
            problems.append(origins.problem(place, str(error)))
    for kind, default in settings.defaults.items():
        if kind not in kinds:
            problems.append(origins.problem(("defaults", kind), unknown_key(kind, kinds)))
            continue
        try:
            yield _rule(kind, DEFAULT_PATTERN, default, origins.of(("defaults", kind)), enabled=True)
        except RuleError as error:
            problems.append(origins.problem(("defaults", kind), str(error)))


def _rule(kind: str, pattern: str, limit: Limit, source: str, *, enabled: bool) -> Rule:
    return Rule(
        kind=kind,
        pattern=pattern,
        rate_per_s=None if limit.rate == UNLIMITED else limit.rate,
        burst_s=limit.burst_s,
        break_s=limit.break_s,
        action="reject" if enabled else "off",
        allow_under_limit=limit.allow_under_limit,
        source=source,
    )


def _written_rules(limits: Iterable[LimitText], kinds: Sequence[str], problems: list[str]) -> Iterable[Rule]:
    for limit in limits:
        try:
            rule = replace(parse_limit(limit.text), source=limit.source)
        except RuleError as error:
            problems.append(f"{limit.source} {str(error).removeprefix('limit ')}")
            continue
        if rule.kind not in kinds:
            problems.append(f"{limit.source} '{limit.text}': kind '{rule.kind}' is {unknown_key(rule.kind, kinds)}")
            continue
        yield rule
