"""Finds protocols and handlers through entry points, and reads their options.

Packages register a ``proxy.protocols.base.Protocol`` in the entry point group ``sluice.protocols``, or a
``proxy.deciding.pipeline.HandlerPlugin`` in ``sluice.handlers``.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, TypeVar

from admin.common.errors import SettingsError
from admin.common.version import DISTRIBUTION
from admin.config.faults import FaultsError, Origins, read, show, unknown_key
from admin.config.toml_lines import Path as Place
from proxy.deciding.pipeline import HandlerPlugin
from proxy.protocols import DEFAULT
from proxy.protocols.base import Protocol

PROTOCOL_GROUP = "sluice.protocols"
HANDLER_GROUP = "sluice.handlers"
#: Likely names for RocketMQ 5. Without this pattern, ``rocketmq`` would be suggested for them.
_ROCKETMQ_5: Final = re.compile("rocketmq.*(5|grpc)", re.IGNORECASE)

Plugin = TypeVar("Plugin", Protocol, HandlerPlugin)


@cache
def own_protocols() -> tuple[Protocol, ...]:
    """Return the built-in protocols, with the default protocol first."""
    entries = [each for each in entry_points(group=PROTOCOL_GROUP) if each.dist and each.dist.name == DISTRIBUTION]
    return tuple(each.load() for each in sorted(entries, key=lambda each: (each.name != DEFAULT, each.name)))


def protocol(name: str, place: Place, origins: Origins) -> Protocol:
    return _load(Protocol, PROTOCOL_GROUP, name, place, origins)


def handler(name: str, place: Place, origins: Origins) -> HandlerPlugin:
    return _load(HandlerPlugin, HANDLER_GROUP, name, place, origins)


def options(declared: type[Any], given: Mapping[str, object], place: Place, origins: Origins) -> Any:
    try:
        return read(declared, dict(given))
    except FaultsError as error:
        raise SettingsError(origins.problems(error, place)) from None


def _load(expected: type[Plugin], group: str, name: str, place: Place, origins: Origins) -> Plugin:
    what = group.removeprefix("sluice.").removesuffix("s")
    installed = {entry.name: entry for entry in entry_points(group=group)}
    entry = installed.get(name)
    if entry is None:
        alike = "rocketmq-grpc" if _ROCKETMQ_5.match(name) else name
        raise SettingsError(origins.problem(place, f"the {what} is {unknown_key(alike, installed)}", name))
    of = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    source = f"{what} {show(name)} (entry point {entry.value!r}{of})"
    try:
        plugin = entry.load()
    except Exception as error:
        # Importing another package may raise any exception.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SettingsError(f"{source} cannot be loaded: {reason}; reinstall or uninstall its package") from error
    if not isinstance(plugin, expected):
        raise SettingsError(f"{source} has type {type(plugin).__name__}, but must be a {expected.__name__}")
    return plugin
