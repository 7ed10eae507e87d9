"""Reads settings from a TOML file, the environment and flags. Each source overrides the previous one.

Unknown environment variables that begin with ``SLUICE_`` are errors, except those that Kubernetes sets for a service
called ``sluice``.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_origin

from admin.common.disk import read_file, unreadable
from admin.common.environment import CLIENT_VARIABLES
from admin.common.errors import SettingsError
from admin.config.faults import (
    SECRET_KEYS,
    FaultsError,
    FromText,
    Origins,
    given,
    is_table,
    keys,
    read,
    show,
    spell,
    unknown_key,
)
from admin.config.settings import Settings
from admin.config.toml_lines import Path as Place
from admin.config.toml_lines import find_lines
from proxy.protocols import DEFAULT

ENV_PREFIX = "SLUICE_"
ENV_LISTEN, ENV_BROKER, ENV_LIMIT = "SLUICE_LISTEN", "SLUICE_BROKER", "SLUICE_LIMIT"
ENV_PROTOCOL, ENV_CONFIG = "SLUICE_PROTOCOL", "SLUICE_CONFIG"
_ENV_LISTS: Final = (ENV_LISTEN, ENV_BROKER, ENV_LIMIT, ENV_PROTOCOL, ENV_CONFIG)

_LIMIT_SEPARATOR = re.compile(r"[\s,]+")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KUBERNETES = re.compile(
    r"SLUICE_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_OTHER_LANGUAGES: Final = {
    "JSON": re.compile(r"\s*(\{|\[\s*\{)"),
    "YAML": re.compile(r"(\s*#.*\n|\s*\n)*(---|%YAML|\s*(- +)?[\w.\"'-]+:(\s|$))"),
}
_TOML_LINE = re.compile(r" \(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class Flags:
    """Values from the command line. Flags that were not given are None or empty.

    ``listen`` and ``broker`` form pairs. ``values`` contains the other flags by configuration key, such as ``{("log",
    "level"): ("--log-level", "debug")}``.
    """

    listen: Sequence[str] = ()
    broker: Sequence[str] = ()
    protocol: str | None = None
    limits: Sequence[str] = ()
    values: Mapping[Place, tuple[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitText:
    """A limit in the form ``KIND:NAME=RATE/s``."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The merged settings. ``replaced`` contains a line for each value in the file that the environment overrides."""

    settings: Settings
    env_limits: tuple[LimitText, ...]
    flag_limits: tuple[LimitText, ...]
    origins: Origins
    replaced: tuple[str, ...] = ()


def load(file: str | None, environ: Mapping[str, str], flags: Flags) -> Configuration:
    """Read, merge and validate the settings. Raises SettingsError with all errors in the first step that fails."""
    name = "" if file else f"{ENV_CONFIG}="
    file = file or environ.get(ENV_CONFIG) or None
    data, lines = ({}, {}) if file is None else read_toml(file, name)
    named: dict[Place, str] = {}
    origins = Origins(file, lines, named)
    problems = _expand_addresses(data, environ, origins)
    found, replaced = _merge_environment(data, named, environ, origins)
    problems += found
    for place, (flag, value) in flags.values.items():
        _put(data, place, value)
        named[place] = flag
    problems += _merge_listeners(data, named, environ, flags)
    if problems:
        raise SettingsError(problems)
    settings = _validated(data, origins)
    env_limits = tuple(
        LimitText(text, ENV_LIMIT) for text in _LIMIT_SEPARATOR.split(environ.get(ENV_LIMIT, "")) if text
    )
    flag_limits = tuple(LimitText(text, "--limit") for text in flags.limits)
    return Configuration(settings, env_limits, flag_limits, origins, tuple(replaced))


def load_limits(file: str) -> tuple[dict[str, Any], Origins]:
    """Read the ``limits`` and ``defaults`` tables of a file. Raises SettingsError if their fields are invalid."""
    data, lines = read_toml(file)
    origins = Origins(file, lines, {})
    data = {key: each for key, each in data.items() if key in {"limits", "defaults"} or key not in keys(Settings)}
    _validated(data, origins)
    return data, origins


def _validated(data: Mapping[str, Any], origins: Origins) -> Settings:
    try:
        settings: Settings = read(Settings, data)
    except FaultsError as error:
        raise SettingsError(origins.problems(error)) from None
    return settings


def environment_names() -> dict[str, Place]:
    return dict(_environment_names(Settings, ()))


def _environment_names(model: Any, parent: Place) -> Iterable[tuple[str, Place]]:
    for name, key in keys(model).items():
        place = (*parent, name)
        if is_table(key.plain):
            yield from _environment_names(key.plain, place)
        elif get_origin(key.plain) not in {list, dict}:
            yield from ((meta.extra["env"], place) for meta in key.metas if meta.extra and "env" in meta.extra)
            yield ENV_PREFIX + "_".join(map(str, place)).upper(), place


def read_toml(file: str, name: str = "") -> tuple[dict[str, Any], Mapping[Place, int]]:
    """Read a TOML file and find the line of each key. Raises SettingsError.

    Errors show ``name`` in front of the path, such as ``SLUICE_CONFIG=``.
    """
    where = f"{name}{file}"
    try:
        # Some Windows editors write a byte-order mark.
        text = read_file(file).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise SettingsError(f"{where}: {unreadable(file, error)}; pass a TOML file") from None
    except UnicodeDecodeError as error:
        what = f"not UTF-8: invalid byte at offset {error.start}; save the file as UTF-8"
        raise SettingsError(f"{where}: {what}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(_not_toml(file, text, str(error))) from None
    except (RecursionError, ValueError):
        raise SettingsError(f"{where}: nested too deeply, or contains a number that is too long") from None
    return data, find_lines(text)


def _not_toml(file: str, text: str, message: str) -> str:
    lines = text.splitlines()
    found = _TOML_LINE.search(message)
    number = int(found[1]) if found else max(1, len(lines))
    source = lines[number - 1].strip() if lines else ""
    shown = "" if any(key in source for key in SECRET_KEYS) else f": {show(source)}"
    language = next((name for name, begin in _OTHER_LANGUAGES.items() if begin.match(text)), None)
    looks = f"; this looks like {language}" if language else ""
    what = f"not TOML: {message[:1].lower()}{message[1:]}{shown}{looks}; see the example in deploy/sluice.toml"
    return f"{file}:{number}: {what}"


def _expand_addresses(data: dict[str, Any], environ: Mapping[str, str], origins: Origins) -> list[str]:
    listeners = data.get("listeners")
    places: list[tuple[Any, Place]] = [(data.get("admin"), ("admin",))]
    places += [(each, ("listeners", at)) for at, each in enumerate(listeners if isinstance(listeners, list) else [])]
    problems: list[str] = []
    for table, place in places:
        for key in ("listen", "broker"):
            text = table.get(key) if isinstance(table, dict) else None
            if not isinstance(text, str):
                continue
            if unset := [name for name in _VARIABLE.findall(text) if not environ.get(name)]:
                what = f"the environment does not set {', '.join(unset)}; set it, or write the address itself"
                problems.append(origins.problem((*place, key), what, text))
            else:
                table[key] = _VARIABLE.sub(lambda match: environ[match[1]], text)
    return problems


def _merge_environment(
    data: dict[str, Any], named: dict[Place, str], environ: Mapping[str, str], origins: Origins
) -> tuple[list[str], list[str]]:
    problems = []
    replaced = []
    variables = environment_names()
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in (*_ENV_LISTS, *CLIENT_VARIABLES) or _KUBERNETES.fullmatch(name):
            continue
        if name not in variables:
            what = unknown_key(name, {*variables, *_ENV_LISTS}, prefix=ENV_PREFIX)
            problems.append(f"environment variable {name}: {what}")
        elif (other := named.get(variables[name])) is not None:
            problems.append(f"environment variable {name}: sets the same key as {other}; set only one of them")
        else:
            place = variables[name]
            is_secret = bool(SECRET_KEYS.intersection(place))
            if (before := _get(data, place)) is not None and show(before).strip('"') != text.strip():
                old = origins.of(place) if is_secret else f"{show(before)} ({origins.of(place)})"
                replaced.append(f"{spell(place)} from {name if is_secret else given(name, text)}, instead of {old}")
            _put(data, place, FromText(text))
            named[place] = name
    return problems, replaced


def _get(data: dict[str, Any], place: Place) -> object:
    found: Any = data
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _put(data: dict[str, Any], place: Place, value: object) -> None:
    table: Any = data
    for key in place[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            return
    table[place[-1]] = value


def _merge_listeners(
    data: dict[str, Any], named: dict[Place, str], environ: Mapping[str, str], flags: Flags
) -> list[str]:
    listen, listen_name = _pair_half(flags.listen, "--listen", environ, ENV_LISTEN)
    broker, broker_name = _pair_half(flags.broker, "--broker", environ, ENV_BROKER)
    protocol, protocol_name = flags.protocol, "--protocol"
    if protocol is None and environ.get(ENV_PROTOCOL):
        protocol, protocol_name = environ[ENV_PROTOCOL], ENV_PROTOCOL
    if not listen and not broker:
        needs = f"{given(protocol_name, protocol)}: requires --listen and --broker"
        return [] if protocol is None else [needs]
    if len(listen) != len(broker):
        counts = f"{listen_name} has {len(listen)} values, but {broker_name} has {len(broker)}"
        return [f"{counts}; give one broker for each listen address"]
    data["listeners"] = [
        {"listen": here, "broker": there, "protocol": protocol or DEFAULT}
        for here, there in zip(listen, broker, strict=True)
    ]
    for index in range(len(listen)):
        named["listeners", index] = named["listeners", index, "listen"] = listen_name
        named["listeners", index, "broker"] = broker_name
        if protocol is not None:
            named["listeners", index, "protocol"] = protocol_name
    return []


def _pair_half(values: Sequence[str], flag: str, environ: Mapping[str, str], name: str) -> tuple[Sequence[str], str]:
    if values or not environ.get(name):
        return values, flag
    return environ[name].split(), name
