"""Generates the page of configuration keys, from ``admin.config.settings`` and the options of Sluice's own plug-ins."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from admin.common.environment import CLIENT_VARIABLES
from admin.config.addresses import Endpoint
from admin.config.faults import Key, is_table, keys
from admin.config.limit_fields import DefaultLimit
from admin.config.plugins import own_protocols
from admin.config.settings import HandlerSettings, LimitSettings, ListenerSettings, Settings
from admin.config.sources import environment_names
from limiter.rules.resource import SCOPES
from proxy.deciding.rate_limit import PLUGIN
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.rocketmq.options import Networks
from proxy.protocols.rocketmq.routes import Addresses
from reference import markdown
from reference.markdown import attributes, code, head, shape, table, value

_HEAD: Final = ("key", "value", "default", "meaning")
_INTRODUCTION: Final = """\
The configuration is one TOML file, given by `sluice run --config FILE` or `SLUICE_CONFIG`. `sluice check FILE` prints
what the file would activate. [deploy/sluice.toml](../../deploy/sluice.toml) is a sample with all keys. Unknown keys are
errors.

Flags override environment variables, and variables override the file. Each key has a variable named after its table and
key: `level` in `[log]` is `SLUICE_LOG_LEVEL`. Lists and tables have no variables, with these exceptions:
`SLUICE_LISTEN`, `SLUICE_BROKER`, `SLUICE_PROTOCOL` and `SLUICE_LIMIT` work like the flags of these names. They accept
several values, separated by white space. Limits may also be separated by commas. If `SLUICE_LISTEN` and `SLUICE_BROKER`
are set, their pairs of addresses replace all listeners in the file. A limit in `SLUICE_LIMIT`
replaces the whole rule of the same name in the file.

In addresses in the file (`listen` and `broker` of listeners, `listen` of `[admin]`), `${NAME}` stands for the value of
an environment variable, which must be set.

A key without a default is optional unless it is marked as required. Its description then says what applies if it is
missing."""
_RELOADED: Final = """\
`sluice reload` and `SIGHUP` reload the file. With `reload_on_change`, changing the file also reloads it. Limits,
defaults, `limiting`, the log level, tokens and certificates take effect immediately. `sluice reload --dry-run` lists
the changes that need a restart."""


def _kinds(protocol: Protocol) -> str:
    """Write the kinds of a protocol, their default limits, and the scopes."""
    kinds = table(
        ("kind", "meaning", "default limit", "above the limit"),
        (
            (
                code(kind.name),
                kind.meaning,
                "none" if kind.rate_per_s is None else f"{kind.rate_per_s:g} messages per second",
                _above(kind),
            )
            for kind in protocol.kinds
        ),
    )
    scopes = f"Scope kinds of protocol `{protocol.name}`: {', '.join(map(code, filter(protocol.has, SCOPES)))}."
    return "\n\n".join((kinds, *(f"{text[0].upper()}{text[1:]}." for text in _waits(protocol)), scopes))


def _above(kind: Kind) -> str:
    if not kind.refuses:
        return "waits"
    if kind.by_credit and kind.action == "delay":
        return f"{code(kind.action)}: no credit"
    return code(kind.action) + (f" for up to {kind.max_delay_s:g} s" if kind.action == "delay" else "")


def _waits(protocol: Protocol) -> Iterable[str]:
    """Return sentences about requests that cannot be refused."""
    return dict.fromkeys(kind.waits for kind in protocol.kinds if kind.waits)


def _keys(model: Any, place: tuple[str, ...] | None = None) -> str:
    """Write the keys of a table. ``place`` is its path in the file if its keys have variables."""
    names: dict[tuple[object, ...], list[str]] = {}
    for name, at in environment_names().items():
        names.setdefault(tuple(at), []).append(name)
    meanings = {name: text for each in reversed(model.__mro__) for name, text in attributes(each.__doc__).items()}
    rows = []
    # Required keys come first.
    for name, key in sorted(keys(model).items(), key=lambda each: each[1].default is not NODEFAULT):
        if is_table(key.plain):
            continue
        allowed = _allowed(key)
        meaning = meanings.get(name) or next((meta.description for meta in key.metas if meta.description), "")
        if not meaning and allowed != "tables":
            raise ValueError(f"{model.__name__}: {name} has no description; add it to the docstring")
        row = [code(name), allowed, _default(key.default), meaning.rstrip(".") or "see below"]
        variables = names.get((*place, name), []) if place is not None else []
        rows.append([*row, ", ".join(map(code, variables))] if place is not None else row)
    return table(_HEAD if place is None else (*_HEAD, "variable"), rows)


_READ: Final[Mapping[Any, str]] = {
    Endpoint: "text",
    Endpoint | Literal["off"]: "text",
    IPv4Network | IPv6Network: "text",
    float | Literal["unlimited"]: 'number, at least 0 or `"unlimited"`',
    Addresses: "table that maps addresses to addresses",
    Networks: "list of addresses and networks",
}


def _allowed(key: Key) -> str:
    """Describe the allowed values. TOML has no null."""
    if "table" in key.extra or (key.item is not None and (is_table(key.item.plain) or "table" in key.item.extra)):
        return "tables by kind" if get_origin(key.plain) is dict else "tables"
    if key.plain in _READ:
        return _READ[key.plain]
    if get_origin(key.plain) is list and key.item is not None:
        return f"list of {_allowed(key.item)}"
    if get_origin(key.plain) is dict:
        return "table"
    if get_origin(key.plain) is Literal:
        return ", ".join(map(value, get_args(key.plain)))
    return shape(msgspec.json.schema(_annotated[(key.plain, *key.metas)] if key.metas else key.plain))


def _default(default: object) -> str:
    if default is NODEFAULT:
        return "required"
    if default is None or isinstance(default, list | dict):
        return ""
    if isinstance(default, Addresses | Networks):
        return code(default)
    return value(str(default) if isinstance(default, Endpoint) else default)


_annotated: Final[Any] = Annotated


def _parts() -> Iterator[str]:
    yield _INTRODUCTION
    yield _RELOADED
    yield "## Top level"
    yield _keys(Settings, ())
    yield f"## `[[listeners]]`\n\n{head(ListenerSettings.__doc__)}"
    yield _keys(ListenerSettings)
    for protocol in own_protocols():
        yield f"### `[listeners.options]` of protocol `{protocol.name}`"
        yield _keys(protocol.options)
    yield f"## `[[limits]]`\n\n{head(LimitSettings.__doc__)}"
    yield _keys(LimitSettings)
    for protocol in filter(attrgetter("kinds"), own_protocols()):
        yield f"Resource kinds of protocol `{protocol.name}`, with the defaults that apply if no limits are configured:"
        yield _kinds(protocol)
    names = ", ".join(map(code, keys(DefaultLimit)))
    yield f"## `[defaults.KIND]`\n\nThe limit for each name that no other limit matches. Keys as above: {names}."
    yield f"## `[[handlers]]`\n\n{head(HandlerSettings.__doc__)}"
    yield _keys(HandlerSettings)
    yield f"### `[handlers.options]` of handler `{PLUGIN.name}`"
    yield _keys(PLUGIN.options)
    for name, key in keys(Settings).items():
        if is_table(key.plain):
            yield f"## `[{name}]`\n\n{head(key.plain.__doc__)}"
            yield _keys(key.plain, (name,))
    variables = ", ".join(map(code, sorted(CLIENT_VARIABLES)))
    yield (
        "## Variables of other commands\n\n"
        f"`sluice run` and `sluice check` ignore these variables: {variables}. See [the commands](cli.md)."
    )


def page() -> str:
    return markdown.page("Configuration", "admin/config/settings.py", *_parts())
