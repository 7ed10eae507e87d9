"""The page of every key of the configuration, from ``admin.config.settings`` and the options of Sluice's own
plug-ins."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge
from pydantic import BaseModel

from admin.common.environment import CLIENT_VARIABLES
from admin.config.addresses import Endpoint
from admin.config.plugins import own_protocols
from admin.config.settings import BaseLimit, HandlerSettings, LimitSettings, ListenerSettings, Settings
from admin.config.sources import environment_names
from limiter.rules.resource import SCOPES
from proxy.deciding.rate_limit import PLUGIN
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.rocketmq.routes import Addresses
from reference import markdown
from reference.markdown import attributes, code, head, shape, table, value

_HEAD: Final = ("key", "value", "default", "meaning")
_INTRODUCTION: Final = """\
The configuration is one TOML file, given by `sluice run --config FILE` or `SLUICE_CONFIG`. `sluice check FILE` prints
what the file would put in force. [deploy/sluice.toml](../../deploy/sluice.toml) is a sample with all keys. An unknown
key is an error.

Flags override environment variables, and variables override the file. A key's variable is named after its place. Lists
and tables have no variable, with these exceptions: `SLUICE_LISTEN`, `SLUICE_BROKER`, `SLUICE_PROTOCOL` and
`SLUICE_LIMIT` do the same as the flags of these names. They take several values, separated by white space; limits may
also be separated by commas. Pairs of addresses replace all listeners of the file. A limit replaces the whole rule of
its name.

In the file's addresses (`listen` and `broker` of listeners, `listen` of `[admin]`), `${NAME}` is the value of an
environment variable. A variable that is not set is an error.

A key without a default may be left out, unless it is required. Its meaning then says what applies."""
_RELOADED: Final = """\
`sluice reload` and `SIGHUP` reload the file; with `reload_on_change`, so does a change of the file. Limits, defaults,
`limiting`, the log level, tokens and the certificate take effect at once. `sluice reload --dry-run` names the changes
that need a restart."""


def _kinds(protocol: Protocol) -> str:
    """Write what each kind of a protocol is, what holds for it by itself, and which scopes there are besides."""
    kinds = table(
        ("kind", "what it is", "default limit", "above it"),
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
    scopes = f"Kinds of scopes of protocol `{protocol.name}`: {', '.join(map(code, filter(protocol.has, SCOPES)))}."
    return "\n\n".join((kinds, *(f"{text[0].upper()}{text[1:]}." for text in _waits(protocol)), scopes))


def _above(kind: Kind) -> str:
    if not kind.refuses:
        return "waits"
    if kind.by_credit and kind.action == "delay":
        return f"{code(kind.action)}: no credit"
    return code(kind.action) + (f" for {kind.max_delay_s:g} s" if kind.action == "delay" else "")


def _waits(protocol: Protocol) -> Iterable[str]:
    """Return what cannot be refused, each sentence once."""
    return dict.fromkeys(kind.waits for kind in protocol.kinds if kind.waits)


def _keys(model: type[BaseModel], place: tuple[str, ...] | None = None) -> str:
    """Write the keys of one table; ``place`` is its own in the file if it has variables."""
    names: dict[tuple[object, ...], list[str]] = {}
    for name, at in environment_names().items():
        names.setdefault(tuple(at), []).append(name)
    schema = model.model_json_schema()
    rows = []
    # What must be there comes first.
    for key, info in sorted(model.model_fields.items(), key=lambda field: not field[1].is_required()):
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            continue
        described = schema["properties"][key]
        variables = names.get((*place, key), []) if place is not None else []
        default = "required" if info.is_required() else _default(info.default, described)
        row = [code(key), _allowed(described), default, described.get("description", "see below")]
        rows.append([*row, ", ".join(map(code, variables))] if place is not None else row)
    return table(_HEAD if place is None else (*_HEAD, "variable"), rows)


def _allowed(schema: Mapping[str, Any]) -> str:
    """Say what may be written; TOML has no null."""
    alternatives = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if schema.get("type") == "array" and "$ref" in schema.get("items", {}):
        return "tables"
    inner = schema.get("additionalProperties")
    if isinstance(inner, dict) and "$ref" in inner:
        return "tables by kind"
    return shape({"anyOf": alternatives} if alternatives else schema)


def _default(default: object, schema: Mapping[str, Any]) -> str:
    if isinstance(default, Endpoint):
        return value(str(default))
    return "" if schema.get("default") is None else value(schema["default"])


def _options(declared: type[Any]) -> str:
    """Write the options of a plug-in, which are a dataclass here."""
    return table(_HEAD, _option_rows(declared))


def _option_rows(declared: type[Any]) -> Iterator[tuple[str, str, str, str]]:
    hints = get_type_hints(declared, include_extras=True)
    meanings = {name: text for each in reversed(declared.__mro__) for name, text in attributes(each.__doc__).items()}
    for each in dataclasses.fields(declared):
        bounds = [bound for bound in get_args(hints[each.name])[1:] if isinstance(bound, Ge)]
        inner = get_args(hints[each.name])[0] if get_origin(hints[each.name]) is Annotated else hints[each.name]
        if get_origin(inner) is Literal:
            allowed = ", ".join(value(word) for word in get_args(inner))
        elif inner is int:
            allowed = ", ".join(("integer", *(f"at least {bound.ge}" for bound in bounds)))
        elif inner is str:
            allowed = "text"
        elif inner is Addresses:
            allowed = "table from addresses to addresses"
        else:
            allowed = "list of addresses and networks"
        default = value(each.default) if isinstance(each.default, int | str) else code(each.default)
        yield code(each.name), allowed, default, meanings[each.name].rstrip(".")


def _parts() -> Iterator[str]:
    """Yield the parts of the page."""
    yield _INTRODUCTION
    yield _RELOADED
    yield "## At the top"
    yield _keys(Settings, ())
    yield f"## `[[listeners]]`\n\n{head(ListenerSettings.__doc__)}"
    yield _keys(ListenerSettings)
    for protocol in own_protocols():
        yield f"### `[listeners.options]` of protocol `{protocol.name}`"
        yield _options(protocol.options)
    yield f"## `[[limits]]`\n\n{head(LimitSettings.__doc__)}"
    yield _keys(LimitSettings)
    for protocol in filter(attrgetter("kinds"), own_protocols()):
        yield f"Kinds of resources of protocol `{protocol.name}`, and what holds where no limit at all is given:"
        yield _kinds(protocol)
    keys = ", ".join(map(code, BaseLimit.model_fields))
    yield f"## `[defaults.KIND]`\n\nThe limit of each name that no other limit matches. Keys as above: {keys}."
    yield f"## `[[handlers]]`\n\n{head(HandlerSettings.__doc__)}"
    yield _keys(HandlerSettings)
    yield f"### `[handlers.options]` of handler `{PLUGIN.name}`"
    yield _options(PLUGIN.options)
    for key, info in Settings.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield f"## `[{key}]`\n\n{head(info.annotation.__doc__)}"
            yield _keys(info.annotation, (key,))
    variables = ", ".join(map(code, sorted(CLIENT_VARIABLES)))
    yield (
        "## Variables of other commands\n\n"
        f"No settings, and left alone by `sluice run` and `sluice check`: {variables}; see [the commands](cli.md)."
    )


def page() -> str:
    """Return the page."""
    return markdown.page("Configuration", "admin/config/settings.py", *_parts())
