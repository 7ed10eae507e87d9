"""Where settings come from: a TOML file, the environment, and flags, each winning over the one before.

Reads and merges them, remembers the place of every value, and turns each fault into one line that names the
place, the key, the value and what is allowed. What the keys mean is ``admin.config.settings``.

The environment
===============
``SLUICE_LISTEN``, ``SLUICE_BROKER`` and ``SLUICE_LIMIT`` take what the flags of these names take, several
separated by white space, limits by commas too; ``SLUICE_PROTOCOL`` and ``SLUICE_CONFIG`` take one. Every other
key is named after its place in the file: ``bounds.max_connections`` is ``SLUICE_BOUNDS_MAX_CONNECTIONS``;
``admin.listen`` is also ``SLUICE_ADMIN``, like its flag. Other variables that begin with ``SLUICE_`` are errors,
apart from those that Kubernetes makes of a service called ``sluice``, and those of other commands (``SLUICE_URL``,
``SLUICE_TOKEN`` and so on), which are no settings.

In the file's addresses (``listen`` and ``broker`` of listeners, ``admin.listen``) ``${NAME}`` is the value of a
variable: a container learns its address only when it starts.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from admin.common.environment import CLIENT_VARIABLES
from admin.common.errors import SettingsError
from admin.config.faults import SECRET_KEYS, Origins, describe, given, not_toml, show, spell, unknown_key
from admin.config.settings import KEY_HINTS, UNLIMITED, VALUE_HINTS, LimitSettings, Settings
from admin.config.toml_lines import Path as Place
from admin.config.toml_lines import find_lines
from proxy.protocols import DEFAULT

#: What stands where something must stand, by the first key of the place and the last.
_STAND_INS: Final[dict[tuple[str | int, str | int], str]] = {
    ("listeners", "listen"): "127.0.0.1:1",
    ("listeners", "broker"): "127.0.0.1:1",
    ("limits", "kind"): "unknown",
    ("limits", "name"): "*",
    ("limits", "rate"): UNLIMITED,
    ("defaults", "rate"): UNLIMITED,
    ("handlers", "name"): "unknown",
}
#: What has tables in it: arrays of them, or by kind.
_TABLES: Final = frozenset({"listeners", "limits", "defaults", "handlers"})
#: What a limit can be about in place of a rate.
_LIMITING: Final = frozenset({"rate", "bytes_per_s", "action", "exempt"})


# What can still be checked of a configuration with faults: all of it but the faulty values.
#
# pydantic reads all or nothing. Here a faulty value is taken out, or something that is allowed is put in its place
# where there must be something, so that plug-ins, addresses and rules are looked at in the same run. Who does that asks
# ``Faulty`` which values are not as they were written, and blames nobody for those. Such settings are never put in
# force. What is said of faults is ``admin.config.faults``.
class Faulty:
    """The places of values that are not as they were written.

    Args:
        places: of values and of whole tables.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._places = frozenset(places)

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self._places)

    def __contains__(self, place: Place) -> bool:
        """Say whether a value, or a table that it is in, is one of them."""
        return any(place[:length] in self._places for length in range(1, len(place) + 1))

    def keys(self, table: Place) -> frozenset[str]:
        """Return the keys of a table whose values are."""
        return frozenset(str(each[-1]) for each in self._places if each[:-1] == table)


def salvage(data: dict[str, Any], faulty: set[Place]) -> tuple[Settings, list[ErrorDetails]]:
    """Read what is right of a configuration.

    Args:
        data: the configuration; what is wrong in it is taken out.
        faulty: places that are known to be wrong and told of already; those that are found are added.

    Returns:
        The settings, and what is wrong, less what only follows from something else that is.
    """
    for place in list(faulty):
        _take_out(data, place, faulty)
    found: list[ErrorDetails] = []
    while True:
        try:
            return Settings.model_validate(data), found
        except ValidationError as error:
            details = error.errors(include_url=False)
        known = Faulty(faulty)
        found += [detail for detail in details if not _follows(detail, known)]
        for detail in details:
            _take_out(data, detail["loc"], faulty)


def _follows(detail: ErrorDetails, faulty: Faulty) -> bool:
    """Say whether it is only wrong because something was taken out."""
    place = detail["loc"]
    if place[:2] in faulty:
        return True
    # What a limit was to limit may have been in a value that was none, or under a mistyped key.
    keys = faulty.keys(place)
    return detail["type"] == "value_error" and bool(keys & _LIMITING or keys - LimitSettings.model_fields.keys())


def _take_out(data: dict[str, Any], loc: Place, faulty: set[Place]) -> None:
    """Take out the value at a place, or the one that it is an element of; tables of an array keep their places."""
    top: Any = data.get(str(loc[0]))
    if len(loc) == 1 or top is None:
        data.pop(str(loc[0]), None)
        faulty.add(loc[:1])
        return
    if loc[0] not in _TABLES:
        top.pop(loc[1], None)
        faulty.add(loc[:2])
        return
    if not isinstance(top[loc[1]], dict):
        top[loc[1]] = {}
        faulty.add(loc[:2])
    # All that can be wrong with a limit as a whole is that it limits nothing.
    place = loc[:3] if len(loc) > 2 else (*loc, "rate")
    faulty.add(place)
    key = place[2]
    if (stand_in := _STAND_INS.get((loc[0], key))) is not None:
        top[loc[1]][key] = stand_in
    else:
        top[loc[1]].pop(key, None)


ENV_PREFIX = "SLUICE_"
ENV_LISTEN, ENV_BROKER, ENV_LIMIT = "SLUICE_LISTEN", "SLUICE_BROKER", "SLUICE_LIMIT"
ENV_PROTOCOL, ENV_CONFIG = "SLUICE_PROTOCOL", "SLUICE_CONFIG"

_LIMIT_SEPARATOR = re.compile(r"[\s,]+")
#: Of TOML's integers; Python's have no end.
_INTEGER_BITS: Final = 63
_LONG_INTEGER: Final = "an integer in it has more than 64 bits, and TOML has none such; write a smaller one"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KUBERNETES = re.compile(
    r"SLUICE_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line gave; None and empty mean that it did not.

    Attributes:
        listen: addresses, each with the broker at the same index.
        broker: see ``listen``.
        protocol: of all these pairs.
        limits: as written, ``KIND:NAME=RATE/s``.
        values: other keys by their place, with the flag's name: ``{("log", "level"): ("--log-level", "debug")}``.
    """

    listen: Sequence[str] = ()
    broker: Sequence[str] = ()
    protocol: str | None = None
    limits: Sequence[str] = ()
    values: Mapping[Place, tuple[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitText:
    """A limit written ``KIND:NAME=RATE/s``, and where it was written."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings, with the limits that were not in the file and the place of everything.

    Attributes:
        settings: file, environment and flags merged.
        env_limits: limits of the environment, stronger than the file's.
        flag_limits: limits of the command line, stronger than the environment's.
        origins: where each value came from.
        problems: what is wrong so far, a line each; whoever checks the rest tells all at once.
        faulty: what the settings do not say as it was written, because it is wrong.
        replaced: what the file says and the environment says otherwise, a line each.
    """

    settings: Settings
    env_limits: tuple[LimitText, ...]
    flag_limits: tuple[LimitText, ...]
    origins: Origins
    problems: tuple[str, ...] = ()
    faulty: Faulty = field(default_factory=Faulty)
    replaced: tuple[str, ...] = ()


def load(file: str | None, environ: Mapping[str, str], flags: Flags) -> Configuration:
    """Read, merge and validate the configuration.

    What is wrong with values is told by the configuration that is returned: the rest of it can still be checked.

    Args:
        file: path of the TOML file; None looks at SLUICE_CONFIG.
        environ: the environment.
        flags: the command line.

    Raises:
        SettingsError: the file cannot be read, or is not TOML.
    """
    name = "" if file else f"{ENV_CONFIG}="
    file = file or environ.get(ENV_CONFIG) or None
    data: dict[str, Any] = {}
    lines: Mapping[Place, int] = {}
    if file is not None:
        data, lines = _read(file, name)
    faulty: set[Place] = set()
    problems = _expand_addresses(data, environ, Origins(file, lines, {}), faulty)
    named: dict[Place, str] = {}
    found, replaced = _merge_environment(data, named, environ, Origins(file, lines, {}))
    problems += found
    for place, (flag, value) in flags.values.items():
        _put(data, place, value)
        named[place] = flag
    problems += _merge_listeners(data, named, environ, flags, faulty)
    origins = Origins(file, lines, named)
    settings, details = salvage(data, faulty)
    problems += describe(details, origins, model=Settings, hints=KEY_HINTS, words=VALUE_HINTS)
    env_limits = tuple(
        LimitText(text, ENV_LIMIT) for text in _LIMIT_SEPARATOR.split(environ.get(ENV_LIMIT, "")) if text
    )
    flag_limits = tuple(LimitText(text, "--limit") for text in flags.limits)
    return Configuration(settings, env_limits, flag_limits, origins, tuple(problems), Faulty(faulty), replaced)


def environment_names() -> dict[str, Place]:
    """Return the variables of single keys, by name, with the key's place."""
    return dict(_environment_names(Settings, ()))


def _environment_names(model: type[BaseModel], parent: Place) -> Iterable[tuple[str, Place]]:
    for key, info in model.model_fields.items():
        place = (*parent, key)
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _environment_names(annotation, place)
        elif not str(annotation).startswith(("list", "dict")):
            extra = info.json_schema_extra
            if isinstance(extra, dict) and (name := extra.get("env")) is not None:
                yield str(name), place
            yield ENV_PREFIX + "_".join(map(str, place)).upper(), place


def _read(file: str, name: str) -> tuple[dict[str, Any], Mapping[Place, int]]:
    """Read the file; ``name`` is what named it, if that is not on the command line."""
    try:
        # Editors on Windows put a byte-order mark in front.
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        # Which file that is depends on where the command runs.
        is_relative = isinstance(error, FileNotFoundError) and not Path(file).is_absolute()
        looked_for = f" (looked for {Path(file).absolute()})" if is_relative else ""
        raise SettingsError(f"{name}{file}: cannot be read: {reason}{looked_for}; name a TOML file") from None
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text: byte {error.start} cannot be read; save it as UTF-8"
        raise SettingsError(f"{name}{file}: {what}") from None
    try:
        data = tomllib.loads(text)
        long_integer = _long_integer(data, ())
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(_not_toml(file, text, str(error))) from None
    except RecursionError:
        raise SettingsError(f"{name}{file}: arrays or tables in it are nested too deeply; write fewer levels") from None
    except ValueError:
        # Python reads no integer of thousands of digits.
        raise SettingsError(f"{name}{file}: {_LONG_INTEGER}") from None
    lines = find_lines(text)
    if long_integer is not None:
        # What is inside of a value has no line of its own.
        line = next((lines[place] for place in _upwards(long_integer) if place in lines), None)
        raise SettingsError(f"{name}{file}{'' if line is None else f':{line}'}: {_LONG_INTEGER}")
    return data, lines


def _long_integer(value: object, place: Place) -> Place | None:
    """Return where there is an integer that TOML does not have, if there is one; tomllib reads them all the same."""
    parts: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    elif isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        return place
    found = (_long_integer(each, (*place, key)) for key, each in parts)
    return next((each for each in found if each is not None), None)


def _upwards(place: Place) -> Iterator[Place]:
    """Yield a place, and those that it is in, from the inside out."""
    return (place[:length] for length in range(len(place), 0, -1))


def _expand_addresses(
    data: dict[str, Any], environ: Mapping[str, str], origins: Origins, faulty: set[Place]
) -> list[str]:
    """Put the values of variables into the file's addresses; note what is no address then, and return why."""
    places: list[tuple[Any, Place]] = [(data.get("admin"), ("admin",))]
    listeners = data.get("listeners")
    if isinstance(listeners, list):
        places += [(listener, ("listeners", index)) for index, listener in enumerate(listeners)]
    problems: list[str] = []
    for table, place in places:
        for key in ("listen", "broker"):
            text = table.get(key) if isinstance(table, dict) else None
            if not isinstance(text, str):
                continue
            unset = [name for name in _VARIABLE.findall(text) if not environ.get(name)]
            if unset:
                what = (
                    f"the environment has no {' and no '.join(unset)}; write the address itself, or set what it names"
                )
                problems.append(origins.problem((*place, key), what, text))
                faulty.add((*place, key))
            else:
                table[key] = _VARIABLE.sub(lambda match: environ[match[1]], text)
    return problems


def _not_toml(file: str, text: str, message: str) -> str:
    """Say where a text stops being TOML; tomllib puts the place at the end of its message."""
    reason, _, where = message.partition(" (at ")
    if match := re.match(r"line (\d+), column (\d+)", where):
        line, column = int(match[1]), int(match[2])
    else:
        # "at end of document"
        line, column = max(1, len(text.splitlines())), 0
    at = f" (column {column})" if column else " (end of the file)"
    source = text.splitlines()[line - 1].strip() if text else ""
    shown = "" if any(key in source for key in SECRET_KEYS) else f": {show(source)}"
    return f"{file}:{line}: not TOML: {reason[:1].lower()}{reason[1:]}{at}{shown}{not_toml(text)}"


def _merge_environment(
    data: dict[str, Any], named: dict[Place, str], environ: Mapping[str, str], origins: Origins
) -> tuple[list[str], tuple[str, ...]]:
    """Put in what the variables say; return what is wrong with them, and what of the file they replace."""
    problems = []
    replaced = []
    keys = environment_names()
    others = {ENV_LISTEN, ENV_BROKER, ENV_LIMIT, ENV_PROTOCOL, ENV_CONFIG}
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in others or name in CLIENT_VARIABLES or _KUBERNETES.fullmatch(name):
            continue
        if name not in keys:
            what = unknown_key(name, {*keys, *others}, prefix=ENV_PREFIX)
            problems.append(f"environment variable {name}: {what}")
        elif (other := named.get(keys[name])) is not None:
            problems.append(f"environment variable {name}: sets the same as {other}; give one of them")
        else:
            place = keys[name]
            is_secret = bool(SECRET_KEYS.intersection(place))
            # A token of digits is a token, and no number.
            value = text if is_secret else _scalar(text)
            if (before := _get(data, place)) is not None and before != value:
                old = origins.of(place) if is_secret else f"{show(before)} ({origins.of(place)})"
                replaced.append(f"{spell(place)} from {name if is_secret else given(name, value)}, in place of {old}")
            _put(data, place, value)
            named[place] = name
    return problems, tuple(replaced)


def _scalar(text: str) -> object:
    """Read a variable as TOML reads a number or a boolean; everything else is text."""
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) and _long_integer(value, ()) is None else text


def _get(data: dict[str, Any], place: Place) -> object:
    """Return one value of nested tables; None if there is none."""
    found: Any = data
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _put(data: dict[str, Any], place: Place, value: object) -> None:
    """Set one value in nested tables; a table that is none is left for the validation to refuse."""
    table: Any = data
    for key in place[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            return
    table[place[-1]] = value


def _merge_listeners(
    data: dict[str, Any], named: dict[Place, str], environ: Mapping[str, str], flags: Flags, faulty: set[Place]
) -> list[str]:
    """Pairs of listen and broker addresses stand in for all the file's listeners."""
    listen, listen_name = _pair_half(flags.listen, "--listen", environ, ENV_LISTEN)
    broker, broker_name = _pair_half(flags.broker, "--broker", environ, ENV_BROKER)
    protocol, protocol_name = flags.protocol, "--protocol"
    if protocol is None and environ.get(ENV_PROTOCOL):
        protocol, protocol_name = environ[ENV_PROTOCOL], ENV_PROTOCOL
    if not listen and not broker:
        if protocol is not None:
            return [f"{given(protocol_name, protocol)}: goes with --listen and --broker; give these too"]
        return []
    if len(listen) != len(broker):
        faulty.add(("listeners",))
        counts = f"{listen_name} is given {_times(listen)}, {broker_name} {_times(broker)}"
        return [f"{counts}: give them in pairs, each address to listen on with that of its broker"]
    faulty.difference_update([place for place in faulty if place[0] == "listeners"])
    data["listeners"] = [
        {"listen": here, "broker": there, "protocol": protocol or DEFAULT}
        for here, there in zip(listen, broker, strict=True)
    ]
    for index in range(len(listen)):
        named["listeners", index] = listen_name
        named["listeners", index, "listen"] = listen_name
        named["listeners", index, "broker"] = broker_name
        if protocol is not None:
            named["listeners", index, "protocol"] = protocol_name
    return []


def _pair_half(values: Sequence[str], flag: str, environ: Mapping[str, str], name: str) -> tuple[Sequence[str], str]:
    if values or not environ.get(name):
        return values, flag
    return environ[name].split(), name


def _times(values: Sequence[str]) -> str:
    return ("not at all", "once", "twice")[len(values)] if len(values) < 3 else f"{len(values)} times"
