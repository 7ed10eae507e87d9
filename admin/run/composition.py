"""Loads plug-ins and turns settings into a checked plan, without starting anything."""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from admin.common.disk import read_file, unreadable
from admin.common.errors import SettingsError
from admin.config import lint, plugins, rulebook
from admin.config.addresses import Endpoint, collides, is_loopback, leaves_ipv4, parse_redis_url, reaches
from admin.config.faults import Origins
from admin.config.folders import Folder
from admin.config.rule_fields import scope_kinds_of
from admin.config.rulebook import BUILT_IN, Rulebook
from admin.config.settings import OFF, ListenerSettings, Settings
from admin.config.sources import Configuration
from admin.config.tls import Certificate, Expiry, ListenerTls, expiry_warnings, fleet_context, read_certificate
from admin.config.toml_lines import Path as Place
from admin.http.auth import ANYONE, Access, read_access
from limiter.compiled import UNUSABLE
from limiter.rules.patterns import Matcher
from limiter.rules.resource import LISTENER
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath.alarm_watch import AlarmConfig
from proxy.datapath.datapath import DataPathConfig
from proxy.datapath.fleet import FleetConfig
from proxy.datapath.spooling import SpoolConfig
from proxy.deciding.pipeline import HandlerConfig
from proxy.net.server import ListenerConfig
from proxy.protocols.base import Kind, ListenerAddresses, Protocol, kinds_of
from proxy.spool.spool import SpoolSettings

__all__ = ["BUILT_IN", "RATE_LIMIT", "Plan", "PlannedListener", "compose", "unspooled"]

RATE_LIMIT = "rate_limit"
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class PlannedListener:
    settings: ListenerSettings
    protocol: Protocol
    options: object
    tls: ListenerTls
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked configuration.

    Attributes:
        protocols: The listeners' protocols. If there are no listeners, a protocol that supports the limits' kinds.
        replaced: A line for each setting in the file that the environment overrides.
    """

    settings: Settings
    listeners: tuple[PlannedListener, ...]
    handlers: tuple[HandlerConfig, ...]
    handler_sources: tuple[str, ...]
    protocols: tuple[Protocol, ...]
    kinds: tuple[Kind, ...]
    rulebook: Rulebook
    rule_set: RuleSet
    lint: tuple[str, ...]
    access: Access
    certificate: Certificate | None
    fleet: FleetConfig | None = None
    replaced: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def leaves_ipv4(self, listen: Endpoint) -> bool:
        admin = self.settings.admin.listen
        others = [] if admin == OFF else [admin]
        return leaves_ipv4(listen, [*others, *(each.settings.listen for each in self.listeners)])

    def data_path_config(self, spool_folder: Path | None = None, *, spool_required: bool = False) -> DataPathConfig:
        """Return the data path's configuration. With ``spool_required``, an unusable folder prevents startup."""
        settings = self.settings
        spool, alarms = settings.spool, settings.alarms
        return DataPathConfig(
            listeners=tuple(
                ListenerConfig(
                    **_same(listener.settings, ListenerConfig)
                    | {
                        "name": listener.settings.label,
                        "protocol": listener.protocol,
                        "options": listener.options,
                        "v6only": self.leaves_ipv4(listener.settings.listen),
                        "client_tls": listener.tls.clients,
                        "broker_tls": listener.tls.broker,
                    }
                )
                for listener in self.listeners
            ),
            handlers=self.handlers,
            rule_set=self.rule_set,
            **_same(settings.bounds, DataPathConfig),
            **_same(settings.rejection_log, DataPathConfig),
            spool=None
            if spool_folder is None
            else SpoolConfig(
                spool_folder,
                SpoolSettings(
                    **_same(spool, SpoolSettings),
                    # Leave enough space to spool requests that were accepted before the alarm.
                    min_free_bytes=alarms.disk_free_bytes // 2,
                ),
                recover=spool.recover,
                required=spool_required,
            ),
            alarms=AlarmConfig(alarms.memory_high_watermark, alarms.disk_free_bytes),
            fleet=self.fleet,
        )

    def warnings(self) -> list[str]:
        found = [UNUSABLE] if UNUSABLE else []
        if not self.listeners:
            found.append("no listener is configured; `sluice run` requires --listen and --broker")
        if not self.settings.limiting:
            found.append("limiting = false, so all requests pass")
        if all(handler.plugin.name != RATE_LIMIT for handler in self.handlers):
            found.append(f'handlers: "{RATE_LIMIT}" is not listed, so nothing is limited')
        for listener in self.listeners:
            found += _tls_warnings(listener)
        found += expiry_warnings(self.expiries(), datetime.now(UTC))
        fleet = self.fleet
        clear = fleet is not None and fleet.tls is None and not all(is_loopback(host) for host, _ in fleet.nodes)
        if clear and fleet is not None and (fleet.password or fleet.password_file):
            found.append("fleet: the password is sent unencrypted; use TLS (rediss:// in fleet.url)")
        return [*found, *self.access.warnings, *self.lint]

    def expiries(self) -> list[Expiry]:
        found = [each for listener in self.listeners for each in listener.tls.expiries]
        return found if self.certificate is None else [*found, *self.certificate.expiries]


def compose(configuration: Configuration) -> Plan:
    """Load the plug-ins and combine the rules. Raises SettingsError, with a line for each error."""
    problems: list[str] = []
    origins = configuration.origins
    settings = configuration.settings
    protocols = _protocols(configuration, problems)
    listeners = _listeners(configuration, protocols, problems)
    _check_addresses(configuration, problems)
    access, certificate = _admin(configuration, problems)
    fleet = _fleet(configuration, problems)
    handlers, handler_sources = _handlers(configuration, problems)
    if problems:
        raise SettingsError(problems)
    protocols = protocols or {each.name: each for each in _protocols_of_limits(settings)}
    kinds = kinds_of(protocols.values())
    scopes = [listener.scope for listener in settings.listeners]
    book = rulebook.build(configuration, tuple(protocols.values()), scopes)
    rule_set = book.rule_set()
    all_kinds = (*kinds, *scope_kinds_of(protocols.values()))
    doubtful = lint.warnings(settings, book.configured, all_kinds, origins)
    doubtful += _lint_listeners(listeners, origins)
    doubtful += _mixed_brokers(listeners, book.configured, origins)
    doubtful += _unshared_limits(listeners, book.configured, origins)
    return Plan(
        settings,
        listeners,
        handlers,
        handler_sources,
        protocols=tuple(protocols.values()),
        kinds=kinds,
        rulebook=book,
        rule_set=rule_set,
        lint=tuple(doubtful),
        access=access,
        certificate=certificate,
        fleet=fleet,
        replaced=configuration.replaced,
        files=_files(configuration, listeners),
    )


def _same(settings: msgspec.Struct, config: type) -> dict[str, Any]:
    shared = {each.name for each in fields(config)} & {*settings.__struct_fields__}
    found = {name: getattr(settings, name) for name in shared}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def unspooled(rule_set: RuleSet, spool: Folder) -> list[str]:
    names = [rule.name for rule in rule_set.rules if rule.spool and rule.action == "delay" and rule.limits]
    if spool.path is not None or not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    why = spool.why or f'spool.dir = "{OFF}"'
    return [
        f"{', '.join(names[:_SHOWN])}{more}: spool = true, but there is no spool ({why}), so requests wait in memory"
    ]


def _files(configuration: Configuration, listeners: Iterable[PlannedListener]) -> tuple[str, ...]:
    admin = configuration.settings.admin
    files = (configuration.origins.file, admin.token_file, admin.tls_certificate_file, admin.tls_key_file)
    of_listeners = (file for listener in listeners for file in listener.tls.files)
    return tuple(dict.fromkeys((*(file for file in files if file is not None), *of_listeners)))


def _protocols(configuration: Configuration, problems: list[str]) -> dict[str, Protocol]:
    protocols: dict[str, Protocol] = {}
    for index, listener in enumerate(configuration.settings.listeners):
        place = ("listeners", index, "protocol")
        if listener.protocol in protocols:
            continue
        try:
            protocols[listener.protocol] = plugins.protocol(listener.protocol, place, configuration.origins)
        except SettingsError as error:
            problems.extend(error.lines)
    return protocols


def _protocols_of_limits(settings: Settings) -> Sequence[Protocol]:
    kinds = {*(limit["kind"] for limit in settings.limits), *settings.defaults}
    able = [each for each in plugins.own_protocols() if all(each.has(kind) for kind in kinds)]
    return able[:1] or plugins.own_protocols()


def _listeners(
    configuration: Configuration, protocols: Mapping[str, Protocol], problems: list[str]
) -> tuple[PlannedListener, ...]:
    origins = configuration.origins
    planned = []
    labels: set[str] = set()
    for index, listener in enumerate(configuration.settings.listeners):
        place = ("listeners", index)
        if listener.label in labels:
            what = "already the name of another listener; choose another name"
            problems.append(origins.problem((*place, "name"), what, listener.label))
        labels.add(listener.label)
        protocol = protocols.get(listener.protocol)
        if protocol is None:
            continue
        try:
            # If the listener terminates TLS, the protocol never sees a handshake.
            said = {"tls": listener.tls} if listener.tls in {"refuse", "pass"} else {}
            options = plugins.options(protocol.options, said | listener.options, (*place, "options"), origins)
            tls = ListenerTls(listener, place, origins, protocol.alpn)
        except SettingsError as error:
            problems.extend(error.lines)
        else:
            planned.append(PlannedListener(listener, protocol, options, tls, origins.of(place)))
    return tuple(planned)


def _tls_warnings(listener: PlannedListener) -> Iterator[str]:
    settings = listener.settings
    if settings.broker_tls and settings.broker_tls_verify is False:
        yield (
            f"listener {settings.label}: broker_tls_verify = false: anyone between Sluice and the broker can read"
            " and change the traffic; set broker_tls_ca_file instead"
        )
    if settings.tls_client_ca_file is not None and listener.protocol.certificate_logins:
        yield (
            f"listener {settings.label}: TLS is terminated, so the broker does not see client certificates and clients"
            " cannot log in with SASL EXTERNAL"
        )


def _lint_listeners(listeners: tuple[PlannedListener, ...], origins: Origins) -> Iterator[str]:
    addresses = [
        ListenerAddresses(
            each.protocol.name, each.settings.listen, (each.settings.broker, *each.settings.backup_brokers)
        )
        for each in listeners
    ]
    for index, listener in enumerate(listeners):
        for option, doubt in listener.protocol.lint(listener.options, addresses):
            place = ("options", option) if option else ("protocol",)
            value = getattr(listener.options, option) if option else listener.settings.protocol
            yield origins.problem(("listeners", index, *place), doubt, value)


def _mixed_brokers(listeners: Iterable[PlannedListener], rules: Iterable[Rule], origins: Origins) -> Iterator[str]:
    matcher = Matcher((rule.matches, rule) for rule in rules if rule.kind == LISTENER)
    first: dict[str, Endpoint] = {}
    for index, each in enumerate(listeners):
        scope, broker = each.settings.scope, each.settings.broker
        rule = matcher.match(scope) if each.protocol.kinds else None
        if rule is not None and rule.adaptive and rule.limits and first.setdefault(scope, broker).host != broker.host:
            mixed = f"one limit, {rule.name}, would mix the latencies of the brokers {first[scope]} and {broker}"
            what = f"{mixed}; give each broker's listeners a separate scope"
            yield origins.problem(("listeners", index, "scope"), what, scope)


def _unshared_limits(listeners: Iterable[PlannedListener], rules: Iterable[Rule], origins: Origins) -> Iterator[str]:
    names = [rule.name for rule in rules if rule.limits and not rule.fleet]
    for index, each in enumerate(listeners):
        if each.settings.reuse_port and names:
            what = f"each process on this port applies limits separately ({', '.join(names[:_SHOWN])})"
            place = ("listeners", index, "reuse_port")
            yield origins.problem(
                place,
                f"{what}; set fleet = true for them, or divide their rates by the number of processes",
                value=True,
            )
            return


def _check_addresses(configuration: Configuration, problems: list[str]) -> None:
    settings, origins = configuration.settings, configuration.origins
    for index, listener in enumerate(settings.listeners):
        here = ("listeners", index)
        backups = [((*here, "backup_brokers", number), each) for number, each in enumerate(listener.backup_brokers)]
        brokers: list[tuple[Place, Endpoint]] = [((*here, "broker"), listener.broker), *backups]
        for number, (at, broker) in enumerate(brokers):
            if broker in (each for _, each in brokers[:number]):
                problems.append(origins.problem(at, "listed twice; remove one", str(broker)))
            for other, target in enumerate(settings.listeners):
                if reaches(broker, target.listen):
                    there = origins.name(("listeners", other, "listen"), str(target.listen))
                    what = f"Sluice itself listens on this address ({there}), so it would connect to itself"
                    problems.append(origins.problem(at, f"{what}; give the broker's address", str(broker)))
                    break
    bound: list[tuple[Place, Endpoint]] = [
        (("listeners", index, "listen"), each.listen) for index, each in enumerate(settings.listeners)
    ]
    if settings.admin.listen != OFF:
        bound.append((("admin", "listen"), settings.admin.listen))
    for index, (place, address) in enumerate(bound):
        for earlier, taken in bound[:index]:
            if collides(address, taken):
                what = f"already used by {origins.name(earlier, str(taken))}; choose another address"
                problems.append(origins.problem(place, what, str(address)))
                break


def _admin(configuration: Configuration, problems: list[str]) -> tuple[Access, Certificate | None]:
    admin, origins = configuration.settings.admin, configuration.origins
    access, certificate = ANYONE, None
    try:
        access = read_access(admin, origins)
    except SettingsError as error:
        problems.extend(error.lines)
    try:
        certificate = read_certificate(admin, origins)
    except SettingsError as error:
        problems.extend(error.lines)
    return access, certificate


def _fleet(configuration: Configuration, problems: list[str]) -> FleetConfig | None:
    settings, origins = configuration.settings.fleet, configuration.origins
    if settings is None:
        return None
    address, context = parse_redis_url(settings.url), None
    if settings.password_file is not None:
        if settings.password is not None:
            what = "cannot be combined with fleet.password (SLUICE_FLEET_PASSWORD); remove one of them"
            problems.append(origins.problem(("fleet", "password_file"), what, settings.password_file))
        try:
            read_file(settings.password_file).decode()
        except (OSError, ValueError) as error:
            why = unreadable(settings.password_file, error)
            what = f"{why}; use a password file that this process may read"
            problems.append(origins.problem(("fleet", "password_file"), what, settings.password_file))
    if address.is_tls:
        try:
            context = fleet_context(settings, origins)
        except SettingsError as error:
            problems.extend(error.lines)
    else:
        for key in ("ca_file", "certificate_file", "key_file"):
            if getattr(settings, key) is not None:
                what = "has no effect without TLS; use rediss://, sentinel+tls:// or cluster+tls:// in fleet.url"
                problems.append(origins.problem(("fleet", key), what, getattr(settings, key)))
    return FleetConfig(
        **_same(settings, FleetConfig)
        | {
            "member": settings.member or f"{socket.gethostname()}-{os.getpid()}",
            "kind": address.kind,
            "nodes": address.nodes,
            "service": address.service,
            "database": address.database,
            "user": settings.user or "",
            "password": settings.password or "",
            "tls": context,
        }
    )


def _handlers(configuration: Configuration, problems: list[str]) -> tuple[tuple[HandlerConfig, ...], tuple[str, ...]]:
    origins = configuration.origins
    configs: list[HandlerConfig] = []
    sources: list[str] = []
    for index, handler in enumerate(configuration.settings.handlers):
        place = ("handlers", index)
        if any(config.plugin.name == handler.name for config in configs):
            problems.append(origins.problem((*place, "name"), "listed twice; remove one", handler.name))
            continue
        try:
            plugin = plugins.handler(handler.name, (*place, "name"), origins)
            options = plugins.options(plugin.options, handler.options, (*place, "options"), origins)
        except SettingsError as error:
            problems.extend(error.lines)
            continue
        configs.append(HandlerConfig(**_same(handler, HandlerConfig) | {"plugin": plugin, "options": options}))
        sources.append(origins.of(place))
    return tuple(configs), tuple(sources)
