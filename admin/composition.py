"""What settings amount to: listeners with their protocols, the pipeline, and the rule set.

Between the configuration and the data path: plug-ins are loaded and given their options, and what can only be
checked with all of that at hand is checked. How rules come about is ``admin.rulebook``. Nothing is started here.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from admin import doubts, plugins, rulebook
from admin.addresses import collides, reaches
from admin.auth import ANYONE, Access, read_access
from admin.endpoint import Endpoint
from admin.errors import SettingsError
from admin.faults import Origins
from admin.rule_fields import SCOPE_KINDS, kinds_of
from admin.rulebook import BUILT_IN, Rulebook
from admin.settings import DEFAULT_PROTOCOL, OFF, ListenerSettings, Settings
from admin.sources import Configuration
from admin.tls import Certificate, read_certificate
from admin.toml_lines import Path as Place
from limiter.rule import Rule
from limiter.rules import RuleSet
from proxy.datapath import DataPathConfig
from proxy.pipeline import HandlerConfig
from proxy.protocols.base import Kind, Protocol
from proxy.server import ListenerConfig

__all__ = ["BUILT_IN", "RATE_LIMIT", "Plan", "PlannedListener", "compose"]

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
        protocols: those of the listeners; the usual one where there is no listener.
        kinds: the kinds of resources that the protocols make.
        rulebook: the operator's rules over the protocols' own, for edits to be laid over them.
        rule_set: what they amount to.
        doubts: what is allowed in the limits but probably not meant, a line each.
        access: who may use the admin address.
        certificate: what makes the admin address HTTPS, if it is.
        replaced: what the file says and the environment says otherwise, a line each.
        files: those that all of it was read from.
    """

    settings: Settings
    listeners: tuple[PlannedListener, ...]
    handlers: tuple[HandlerConfig, ...]
    handler_sources: tuple[str, ...]
    protocols: tuple[Protocol, ...]
    kinds: tuple[Kind, ...]
    rulebook: Rulebook
    rule_set: RuleSet
    doubts: tuple[str, ...]
    access: Access
    certificate: Certificate | None
    replaced: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def defaults(self) -> list[Rule]:
        """Return each kind's default."""
        return [self.rule_set.default(kind.name) for kind in self.kinds]

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
                    exempt=tuple(listener.settings.exempt),
                    max_connections_per_client=listener.settings.max_connections_per_client,
                    new_connections_per_s=listener.settings.new_connections_per_s,
                )
                for listener in self.listeners
            ),
            handlers=self.handlers,
            rule_set=self.rule_set,
            max_connections=bounds.max_connections,
            max_live_limiters=bounds.max_live_limiters,
            max_resource_labels=bounds.max_resource_labels,
            buffer_budget_bytes=bounds.buffer_budget_bytes,
            max_keys_per_s=self.settings.rejection_log.max_keys_per_s,
            max_resources=self.settings.rejection_log.max_resources,
        )

    def warnings(self) -> list[str]:
        """Say what is allowed but probably not meant."""
        found = []
        if not self.listeners:
            found.append("no listener: `sluice run` refuses it without --listen and --broker")
        if not self.settings.limiting:
            found.append("limiting = false: everything passes")
        if all(handler.plugin.name != RATE_LIMIT for handler in self.handlers):
            found.append(f'handlers: no "{RATE_LIMIT}" among them: nothing is limited')
        return [*found, *self.access.warnings, *self.doubts]


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
    access, certificate = _admin(settings, origins, problems)
    handlers, handler_sources = _handlers(settings, origins, problems)
    protocols = {listener.protocol.name: listener.protocol for listener in listeners}
    if not settings.listeners:
        # Rules can be checked before there is a listener.
        protocols = {DEFAULT_PROTOCOL: plugins.protocol(DEFAULT_PROTOCOL, ("listeners",), origins)}
    if problems:
        raise SettingsError([*configuration.problems, *problems])
    kinds = kinds_of(protocols.values())
    scopes = [listener.settings.scope for listener in listeners]
    book = rulebook.build(configuration, tuple(protocols.values()), scopes)
    rule_set = book.rule_set()
    doubtful = doubts.about(settings, rule_set, (*kinds, *SCOPE_KINDS), origins, datetime.now(UTC))
    return Plan(
        settings,
        listeners,
        handlers,
        handler_sources,
        protocols=tuple(protocols.values()),
        kinds=kinds,
        rulebook=book,
        rule_set=rule_set,
        doubts=tuple(doubtful),
        access=access,
        certificate=certificate,
        replaced=configuration.replaced,
        files=_files(configuration),
    )


def _files(configuration: Configuration) -> tuple[str, ...]:
    admin = configuration.settings.admin
    files = (configuration.origins.file, admin.token_file, admin.tls_certificate_file, admin.tls_key_file)
    return tuple(file for file in files if file is not None)


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


def _admin(settings: Settings, origins: Origins, problems: list[str]) -> tuple[Access, Certificate | None]:
    access, certificate = ANYONE, None
    try:
        access = read_access(settings.admin, origins)
    except SettingsError as error:
        problems.extend(error.lines)
    try:
        certificate = read_certificate(settings.admin, origins)
    except SettingsError as error:
        problems.extend(error.lines)
    return access, certificate


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
