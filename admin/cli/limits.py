"""The ``sluice limits`` commands."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, make_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

from cyclopts import App, Parameter

from admin.cli.options import (
    ASK,
    ASKING,
    KINDS,
    LONG_S,
    PLAIN,
    WRITE,
    All,
    ColumnWord,
    Desc,
    FileName,
    Filter,
    KindWord,
    Most,
    OfKind,
    Reason,
    Search,
    TargetFlags,
    Write,
    say,
)
from admin.cli.protocol_words import SPELLINGS
from admin.client.text import as_json, moment, read_rate, read_seconds, standing
from admin.common.columns import LIMITS, sort_words
from admin.common.errors import OperatorError, SettingsError
from admin.common.tables import Rows
from admin.config.limit_fields import FIELDS, LimitField

if TYPE_CHECKING:
    from admin.client.api import Api
    from admin.edits.model import Change

app = App(
    name="limits",
    help="Show and change the limits of a running Sluice.",
    help_epilogue=ASKING,
    default_parameter=PLAIN,
)

_NAMES: Final = 1000
"""How many of the busiest names to consider as suggestions."""
_NEAR: Final = 0.8
"""Minimum ratio in ``difflib``. It allows one missing letter or two swapped letters in six."""

Kind = Annotated[KindWord, Parameter(help=f"{KINDS}; total")]
Name = Annotated[str, Parameter(help=f"name or pattern{SPELLINGS}; * is the default for the kind")]
IfMatch = Annotated[str, Parameter(help="only if the limit still has this ETag; see `limits get`", metavar="ETAG")]
Shared = Annotated[bool, Parameter(help="one limit that all matching names share (shared = true)")]


class _Given:
    """Flags for the fields of a limit except its rate."""

    def given(self) -> dict[str, Any]:
        return {
            each.key: [word.strip() for word in value.split(",")] if each.is_list else value
            for each in _FLAGS
            if (value := getattr(self, each.key)) is not None
        }


_FLAGS: Final = tuple(each for each in FIELDS if each.key != "rate")
_FIELDS: Final = frozenset(each.key for each in FIELDS)


def _flag(of: LimitField) -> Any:
    meaning = of.meaning.partition(". ")[0]
    if of.plain_type is bool:
        no = f"--no-{of.key.replace('_', '-')}" if of.is_choice else ""
        return Annotated[bool | None, Parameter(name=of.flag or None, help=meaning, negative=no)]
    # Accept any word, because only the sidecar knows which are valid.
    type_: Any = str if of.is_list else of.plain_type | str if of.values else of.plain_type
    return Annotated[type_ | None, Parameter(help=meaning, metavar=of.metavar)]


if TYPE_CHECKING:
    LimitFlags = _Given
else:
    LimitFlags = Parameter(name="*")(
        make_dataclass(
            "LimitFlags",
            [(each.key, _flag(each), None) for each in _FLAGS],
            bases=(_Given,),
            namespace={"__module__": __name__, "__doc__": _Given.__doc__},
            frozen=True,
            kw_only=True,
        )
    )

_NO_FIELDS = LimitFlags()


def _path(api: "Api", command: str, kind: str, name: str, *, shared: bool) -> tuple[str, str, str]:
    if not name:
        _incomplete(api, command, kind)
    return ("limits", "total", f"{kind}:{name}") if shared else ("limits", kind, name)


def _incomplete(api: "Api", command: str, kind: str, name: str = "", rate: str = "") -> NoReturn:
    word = name or kind.rpartition(":")[2]
    page = api.get("limits", name=word, history="0").read(dict[str, Any])
    kinds = page["kinds"]
    if kind in {*kinds, "total"}:
        missing, words = ("RATE", (kind, name)) if name else ("NAME", (kind, "NAME"))
    else:
        found = next((row["kind"] for row in page["rows"] if row["kind"] in kinds), next(iter(kinds), "KIND"))
        given = kind.partition(":")[0]
        missing, words = "KIND", (given if given in kinds else found, word)
    field = ", or a field to change" if missing == "RATE" else ""
    example = " ".join(filter(None, (command, *words, rate)))
    raise SettingsError(f"{missing} is missing{field}; did you mean `sluice limits {example}`?")


@app.command(name="list")
def list_(
    *,
    kind: OfKind = "",
    search: Search = "",
    filter: Filter = "",  # noqa: A002 - named like the API's parameter
    sort: Annotated[ColumnWord, Parameter(help=f"{', '.join(sort_words(LIMITS))} (name)", metavar="COLUMN")] = "",
    desc: Desc = False,
    limit: Most = 100,
    all: All = False,  # noqa: A002 - named like the flag
    ask: TargetFlags = ASK,
) -> int:
    """List limits and their current usage."""
    query: dict[str, Any] = {
        "kind": kind,
        "search": search,
        "filter": filter,
        "sort": sort,
        "order": "desc" if desc else "",
    }
    most = None if all else limit
    return ask.run(lambda api: api.table("limits", LIMITS, most, "Nothing matches.", **query, history="0"))


@app.command(usage="Usage: sluice limits get KIND NAME [OPTIONS]")
def get(kind: Kind, name: Name = "", /, *, shared: Shared = False, ask: TargetFlags = ASK) -> int:
    """Show the active and configured values of one limit, and who edited it."""
    return ask.run(lambda api: api.text(api.get(*_path(api, "get", kind, name, shared=shared)), _entry))


def _entry(entry: dict[str, Any]) -> Iterator[str]:
    from admin.edits.wording import further, short  # noqa: PLC0415 - slow to import

    yield f"{entry['kind']} {entry['name']}: {entry['limit_text']}"
    yield f"   rule        {entry['rule'] or 'none'}" + (f" ({entry['source']})" if entry["source"] else "")
    if rest := further(entry["limit"]):
        yield f"   further     {', '.join(f'{key} {value}' for key, value in rest.items())}"
    if entry["edit"] is not None:
        yield f"   edited      {standing(entry['edit'])}"
    if (configured := entry["configured"]) is not None:
        yield f"   configured  {short(configured['limit'])} ({configured['source']})"
    yield f"   etag        {entry['etag']}"


@app.command(
    usage="Usage: sluice limits explain KIND NAME [OPTIONS]",
    help_epilogue=(
        "Lists the limits that the request is checked against, in order. For each limit, shows the rule and why it "
        "applies, the action above the limit, the state of the bucket, and recent usage.\n\n" + ASKING
    ),
)
def explain(
    kind: Annotated[KindWord, Parameter(help=KINDS)],
    name: Annotated[str, Parameter(help=f"name{SPELLINGS}")] = "",
    /,
    *,
    client: Annotated[str, Parameter(help="IP address of the client", metavar="ADDRESS")] = "",
    producer_group: Annotated[str, Parameter(help="producer group of the request", metavar="GROUP")] = "",
    certificate: Annotated[str, Parameter(help="name in the client's TLS certificate", metavar="NAME")] = "",
    user: Annotated[str, Parameter(help="user name that the client logs in with", metavar="NAME")] = "",
    vhost: Annotated[str, Parameter(help="virtual host of the client's connection", metavar="NAME")] = "",
    listener: Annotated[str, Parameter(help="name or scope of the request's listener", metavar="NAME")] = "",
    at: Annotated[
        str, Parameter(help="evaluate the rules as of this time, e.g. 2026-11-21T23:00+01:00", metavar="TIME")
    ] = "",
    config: Annotated[
        FileName | None, Parameter(help="read this TOML file instead of querying a sidecar", metavar="FILE")
    ] = None,
    ask: TargetFlags = ASK,
) -> int:
    """Show which limits apply to a request, why they apply, and what state they are in."""
    question = {
        "kind": kind,
        "name": name,
        "client": client,
        "producer_group": producer_group,
        "certificate": certificate,
        "user": user,
        "vhost": vhost,
        "listener": listener,
        "at": at,
    }
    if config is None:
        return ask.run(
            lambda api: (
                api.text(api.get("explain", **question), _explained) if name else _incomplete(api, "explain", kind)
            )
        )
    if given := [flag for flag, value in (("--admin", ask.admin), ("--profile", ask.profile)) if value is not None]:
        raise SettingsError(f"give either {given[0]} or --config, not both")
    from admin.client.explain import explain_file  # noqa: PLC0415 - slow to import

    explanation = explain_file(str(config), question)
    say(as_json(explanation) if ask.json else "\n".join(_explained(explanation)))
    return 0


def _explained(explanation: Mapping[str, Any]) -> Iterator[str]:
    yield from (explanation["text"], *explanation["sentences"])
    for place, limit in enumerate(explanation["limits"], 1):
        yield from ("", f"{place}. {limit['kind'].replace('_', ' ')} {limit['name']}: {limit['text']}")
        yield from (f"   {each['name']:<6} {each['text']}" for each in limit["details"])
    if (confirm := explanation["confirm"]) is not None:
        yield from ("", confirm["text"], *(f"   {each['name']:<7} {each['text']}" for each in confirm["details"]))
    if explanation["unapplied"]:
        yield from ("", "These rules match but do not apply:")
        yield from (f"   {each['text']}" for each in explanation["unapplied"])


@app.command
def diff(*, ask: TargetFlags = ASK) -> int:
    """Show where limits and switches differ from the configuration, and who edited them."""
    return ask.run(_diff)


def _diff(api: "Api") -> str:
    from admin.edits.wording import short  # noqa: PLC0415 - slow to import

    edited = api.rows("limits", filter="edited", history="0", most=None)
    switches = [each for each in api.get("switches").read(dict[str, Any])["switches"] if each["edit"]]
    if api.json:
        return as_json({"limits": edited["rows"], "switches": switches, "etag": edited["etag"]})
    on = {True: "on", False: "off"}
    found = []
    for row in edited["rows"]:
        configured = row["configured"] and row["configured"]["limit"]
        was, now = short(configured), short(row["limit"])
        if configured and was == now and configured["action"] != row["limit"]["action"]:
            was, now = (f"{now}, {each['action'] or 'default action'}" for each in (configured, row["limit"]))
        found.append((row["kind"], row["name"], was, now, row["edit"]))
    found += [("switch", each["kind"], on[each["configured"]], on[each["limiting"]], each["edit"]) for each in switches]
    rows = [
        (*words, edit["by"], moment(edit["at"]), moment(edit["expires_at"]), edit["reason"]) for *words, edit in found
    ]
    columns = ("kind", "name", "configured", "active", "by", "since", "until", "reason")
    return "\n".join(Rows(columns, rows).used().lines()) if rows else "Nothing differs from the configuration."


@app.command(help_epilogue="`sluice check` and `sluice limits apply` accept the output.\n\n" + ASKING)
def export(
    *,
    format: Annotated[  # noqa: A002 - named like the flag
        Literal["toml", "json"], Parameter(help="toml or json (toml)", metavar="FORMAT")
    ] = "toml",
    edits_only: Annotated[bool, Parameter(help="only live edits")] = False,
    ask: TargetFlags = ASK,
) -> int:
    """Print the active limits as a configuration file."""

    def exported(api: "Api") -> str:
        text = str(api.get("export", edits_only=edits_only).read(dict[str, Any])["text"])
        as_toml = format == "toml" and not ask.json
        return text.rstrip("\n") if as_toml else as_json({"limits": []} | tomllib.loads(text))

    return ask.run(exported)


@app.command(
    name="set",
    usage="Usage: sluice limits set KIND NAME [RATE] [OPTIONS]",
    help_epilogue=(
        "The change takes effect with the next request, survives restarts, and overrides the configuration until it "
        "is unset. Omitted fields keep their values, and an earlier edit keeps its expiry. A new limit for one name "
        "starts with the values of the rule that applies to the name. With --replace, omitted fields get their "
        "defaults. With --fleet, all members of the fleet get the resulting limit of this member within two seconds. "
        "If Redis is unreachable, nothing changes.\n\n" + ASKING
    ),
)
def set_(
    kind: Kind,
    name: Name = "",
    rate: Annotated[str | None, Parameter(help="messages per second: 500, 500/s, 0 or unlimited")] = None,
    /,
    *,
    limit: LimitFlags = _NO_FIELDS,
    shared: Shared = False,
    ttl: Annotated[
        str | None, Parameter(help="time to expiry: 90s, 15m, 2h, 1d (90 is seconds), or never", metavar="TIME")
    ] = None,
    without: Annotated[str, Parameter(help="fields to remove, e.g. bytes_per_s,fleet", metavar="FIELDS")] = "",
    replace: Annotated[bool, Parameter(help="set omitted fields to their defaults")] = False,
    if_match: IfMatch = "",
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Change a limit. The change overrides the configuration."""
    if without and replace:
        raise SettingsError("--without cannot be combined with --replace, which already resets all omitted fields")
    body: dict[str, Any] = limit.given()
    if rate is not None and (found := read_rate(rate)) is None:
        raise SettingsError(f'RATE {rate}: must be a non-negative number, like 500 or 500/s, or "unlimited"')
    if rate is not None:
        body["rate"] = found
    for field in [field.strip() for field in without.split(",")] if without else ():
        if field not in _FIELDS:
            raise SettingsError(f"--without {field}: unknown field; must be one of {', '.join(sorted(_FIELDS))}")
        if body.get(field) is not None:
            raise SettingsError(f"--without {field}: {field} is also set; give only one of them")
        body[field] = None
    if not name or (rate is None and not body and (ttl is None or read_rate(name) is not None)):
        # The most common mistake is to omit KIND. The rate is then read as NAME.
        words = (kind, "", name) if read_rate(name) is not None else (kind, name, "500")
        return ask.run(lambda api: _incomplete(api, "set", *words))
    if ttl is not None:
        body["ttl_s"] = None if ttl == "never" else read_seconds(ttl, "--ttl")
    params = asdict(write)
    body |= {"reason": reason} if (reason := params.pop("reason")) else {}
    return ask.run(
        lambda api: api.write(
            "PUT" if replace else "PATCH",
            *_path(api, "set", kind, name, shared=shared),
            body=body,
            if_match=if_match,
            params=params,
            note=lambda change: _misspelt(api, change, kind, name),
        )
    )


def _misspelt(api: "Api", change: "Change", kind: str, name: str) -> str:
    if (change.old is not None and not change.old_rule) or kind == "total" or any(special in name for special in "*?["):
        return ""
    try:
        page = api.rows("limits", most=_NAMES, kind=kind, sort="passed", order="desc", history="0")
    except OperatorError:
        return ""
    names = [row["name"] for row in page["rows"] if row["exact"] and row["live"] is not None]
    near = [] if name in names else get_close_matches(name, names, 1, _NEAR)
    return f"There is no traffic for {kind} {name} yet. Did you mean {near[0]}?" if near else ""


@app.command(
    usage="Usage: sluice limits reset KIND NAME [OPTIONS]",
    help_epilogue=(
        "Clears debts and fair shares, and closes open breakers. The limit itself does not change, but an adaptive "
        "limit discards its measurements of the broker. Resetting a pattern resets the buckets of all names to "
        "which the pattern's rule applies. A fleet limit cannot be reset. Instead, raise it temporarily with `sluice "
        "limits set --fleet --ttl`.\n\n" + ASKING
    ),
)
def reset(
    kind: Kind, name: Name = "", /, *, shared: Shared = False, reason: Reason = "", ask: TargetFlags = ASK
) -> int:
    """Refill the buckets of a limit and clear its debts."""
    return ask.run(
        lambda api: api.write(
            "POST", *_path(api, "reset", kind, name, shared=shared), verb=":reset", params={"reason": reason}
        )
    )


@app.command(usage="Usage: sluice limits unset KIND NAME [OPTIONS]\n       sluice limits unset --all [OPTIONS]")
def unset(
    kind: Annotated[KindWord, Parameter(help="as in `limits set`")] = "",
    name: Annotated[str, Parameter(help="as in `limits set`")] = "",
    /,
    *,
    all: Annotated[bool, Parameter(help="undo all edits")] = False,  # noqa: A002 - named like the flag
    shared: Shared = False,
    if_match: IfMatch = "",
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Undo the edit of a limit, or all edits, so that the configuration applies again."""
    if all and kind:
        raise SettingsError("give either KIND and NAME or --all, not both")
    if not (all or kind):
        raise SettingsError("KIND is missing; give KIND and NAME, or --all")

    def unset_(api: "Api") -> str:
        if not all:
            path = _path(api, "unset", kind, name, shared=shared)
            return api.write("DELETE", *path, if_match=if_match, params=asdict(write))
        edited = api.rows("limits", filter="edited", history="0", most=None)
        edits = [{"type": "unset_limit", "kind": row["kind"], "name": row["name"]} for row in edited["rows"]]
        # Do not undo edits made since the list was read.
        return api.undo(edits, "limit", if_match=if_match or edited["etag"], **asdict(write))

    return ask.run(unset_)


@app.command(
    help_epilogue=(
        "A TOML file contains [[limits]] and [defaults], like a configuration file. All other settings are ignored."
        " Limits that already match the file do not change.\n\n"
        "From the recommendations.json of `sluice report`, the command applies raised limits, new limits and fair"
        " shares, and records the evidence as the reason. With --lower it also lowers limits, and with --raise it also"
        " raises limits that were never close to being reached. Other fields of a limit do not change. Only"
        " recommendations that were made for this sidecar are applied or, with --fleet, those for its fleet.\n\n"
        "Changes are applied atomically.\n\n" + ASKING
    )
)
def apply(
    file: Annotated[FileName, Parameter(help="TOML file of limits, or the recommendations.json of a report")],
    /,
    *,
    prune: Annotated[bool, Parameter(help="TOML file: undo edits of limits that it does not contain")] = False,
    only: Annotated[str, Parameter(help="recommendations: only names that match this pattern", metavar="GLOB")] = "",
    instance: Annotated[str, Parameter(help="recommendations: only those for this sidecar", metavar="NAME")] = "",
    lower: Annotated[bool, Parameter(help="recommendations: also lower limits")] = False,
    raise_: Annotated[
        bool, Parameter(name="--raise", help="recommendations: also raise limits that were never nearly reached")
    ] = False,
    force: Annotated[bool, Parameter(help="recommendations: also change limits edited since the report")] = False,
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Apply the limits in a file, or the recommendations of a report."""
    from admin.client.apply import apply_limits, apply_recommendations  # noqa: PLC0415 - slow to import

    name, how = str(file), asdict(write)
    flags = {"--only": only, "--instance": instance, "--lower": lower, "--raise": raise_, "--force": force}
    if name.endswith(".json"):
        if prune:
            raise SettingsError("--prune requires a TOML file that contains every limit whose edit you want to keep")
        how |= {"only": only, "instance": instance, "force": force}
        offered = [word for word in ("lower", "raise") if flags[f"--{word}"]]
        return ask.run(lambda api: apply_recommendations(api, name, offered=offered, **how), LONG_S)
    if name.endswith(".html"):
        raise SettingsError(f"{name} is an HTML page; pass the report's recommendations.json instead")
    for flag in (flag for flag, given in flags.items() if given):
        raise SettingsError(f"{flag} requires a report's recommendations.json, but {name} is a TOML file")
    return ask.run(lambda api: apply_limits(api, name, prune=prune, **how), LONG_S)
