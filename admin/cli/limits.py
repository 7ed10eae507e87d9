"""``sluice limits``: look into limits, and change them."""

from dataclasses import asdict, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from admin.cli.options import (
    ASK,
    ASKING,
    KINDS,
    LIMIT_COLUMNS,
    WRITE,
    ColumnWord,
    FileName,
    Filter,
    Flag,
    KindWord,
    Most,
    OfKind,
    Reason,
    Search,
    Switch,
    TargetFlags,
    Write,
    positive,
    say,
)
from admin.cli.protocol_words import SPELLINGS
from admin.common.errors import SettingsError
from admin.config.limit_fields import FIELDS, LimitField

app = App(name="limits", help="Show and change the limits of a running Sluice.", help_epilogue=ASKING)

Kind = Annotated[KindWord, Parameter(help=f"{KINDS}; total")]
Name = Annotated[str, Parameter(help=f"name or pattern{SPELLINGS}; * is the default of the kind")]
IfMatch = Annotated[str, Flag(help="only if the limit still has this ETag; see `limits get`", metavar="ETAG")]
Shared = Annotated[bool, Switch(help="one limit for all matching names together, as shared = true in a file")]


class _Given:
    """A limit's fields besides its rate, as ``[[limits]]`` in a configuration has them."""

    def given(self) -> dict[str, Any]:
        """Return the fields that were given."""
        return {
            each.key: [word.strip() for word in value.split(",")] if each.is_list else value
            for each in _FLAGS
            if (value := getattr(self, each.key)) is not None
        }


_FLAGS: Final = tuple(each for each in FIELDS if each.key != "rate")


def _flag(of: LimitField) -> Any:
    meaning = of.meaning.partition(";")[0]
    if of.is_choice:
        return Annotated[bool | None, Flag(help=meaning)]
    if of.plain_type is bool:
        return Annotated[bool | None, Switch(help=meaning)]
    # All words are let through: the sidecar knows which there are.
    type_: Any = str if of.is_list else of.plain_type | str if of.values else of.plain_type
    return Annotated[type_ | None, Flag(help=meaning, metavar=of.metavar)]


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


@app.command(name="list")
def list_(
    *,
    kind: OfKind = "",
    search: Search = "",
    filter: Filter = "",  # noqa: A002 - the flag is called so, as the API's parameter is
    sort: Annotated[
        ColumnWord,
        Flag(help=f"{LIMIT_COLUMNS} (name)", metavar="COLUMN"),
    ] = "",
    desc: Annotated[bool, Switch(help="reverse the order")] = False,
    limit: Most = 100,
    all: Annotated[bool, Switch(help="all rows")] = False,  # noqa: A002 - the flag is called so
    ask: TargetFlags = ASK,
) -> int:
    """List limits, and how much of each is used now."""
    from admin.client.limits import list_limits  # noqa: PLC0415 - the HTTP client takes its time

    query = {"kind": kind, "search": search, "filter": filter, "sort": sort, "order": "desc" if desc else ""}
    return ask.print(lambda api: list_limits(api, query, None if all else positive(limit), json=ask.json))


@app.command
def get(kind: Kind, name: Name, /, *, shared: Shared = False, ask: TargetFlags = ASK) -> int:
    """Show one limit: what is in force, what is configured, who edited it."""
    from admin.client.limits import get as show  # noqa: PLC0415 - as in list

    return ask.print(lambda api: show(api, _addressed(kind, name, shared=shared), json=ask.json))


@app.command(
    name="set",
    usage="Usage: sluice limits set KIND NAME [RATE] [OPTIONS]",
    help_epilogue=(
        "The change applies to the next request, survives restarts, and overrides the configuration until it is unset."
        " Fields that are not given keep their values, and so does the time at which an edit expires. A name without"
        " a limit of its own starts from the rule in force for it. With --replace, fields that are not given get their"
        " defaults.\n\n" + ASKING
    ),
)
def set_(
    kind: Kind,
    name: Name,
    rate: Annotated[str | None, Parameter(help="messages per second: 500, 500/s, 0 or unlimited")] = None,
    /,
    *,
    limit: LimitFlags = _NO_FIELDS,
    shared: Shared = False,
    ttl: Annotated[str | None, Flag(help="expires after 90s, 15m, 2h, 1d; or never", metavar="TIME")] = None,
    without: Annotated[str, Flag(help="fields to remove: bytes_per_s,…", metavar="FIELDS")] = "",
    replace: Annotated[bool, Switch(help="replace the whole limit; keep nothing")] = False,
    if_match: IfMatch = "",
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Change a limit; the change overrides the configuration."""
    from admin.client.limits import misspelt, unaddressed  # noqa: PLC0415 - as in list
    from admin.client.words import is_rate, read_rate, read_seconds  # noqa: PLC0415 - as in list

    if without and replace:
        raise SettingsError("--without and --replace: give one of them; --replace keeps nothing anyway")
    body: dict[str, Any] = limit.given()
    if rate is not None:
        body["rate"] = read_rate(rate)
    for field in [field.strip() for field in without.split(",")] if without else ():
        if body.get(field) is not None:
            raise SettingsError(f"--without {field}: it is given as well; give it or take it away")
        body[field] = None
    if rate is None and not body and (ttl is None or is_rate(name)):
        # The commonest slip: the kind is left out, so that the rate is taken for the name.
        return ask.print(lambda api: unaddressed(api, kind, name))
    if write.reason:
        body["reason"] = write.reason
    if ttl is not None:
        body["ttl_s"] = None if ttl == "never" else read_seconds(ttl, "--ttl")
    return ask.write(
        "PUT" if replace else "PATCH",
        *_addressed(kind, name, shared=shared),
        body=body,
        if_match=if_match,
        note=lambda api, reply: misspelt(api, reply, kind, name),
        dry_run=write.dry_run,
        volatile=write.volatile,
    )


@app.command(
    help_epilogue=(
        "It clears debts, open breakers and fair shares. The limit itself does not change. A pattern resets the buckets"
        " of all names for which its rule is in force.\n\n" + ASKING
    )
)
def reset(
    kind: Kind,
    name: Name,
    /,
    *,
    shared: Shared = False,
    reason: Reason = "",
    ask: TargetFlags = ASK,
) -> int:
    """Fill the buckets of a limit and clear their debt."""
    return ask.write("POST", *_addressed(kind, name, shared=shared), verb=":reset", reason=reason)


@app.command(usage="Usage: sluice limits unset KIND NAME [OPTIONS]\n       sluice limits unset --all [OPTIONS]")
def unset(
    kind: Annotated[KindWord | None, Parameter(help="as in `limits set`")] = None,
    name: Annotated[str | None, Parameter(help="as in `limits set`")] = None,
    /,
    *,
    all: Annotated[bool, Switch(help="undo all edits at once")] = False,  # noqa: A002 - the flag is called so
    shared: Shared = False,
    if_match: IfMatch = "",
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Undo the edit of a limit, or all edits: the configuration applies again."""
    from admin.client.limits import unset_all  # noqa: PLC0415 - as in list

    if all:
        if kind is not None:
            raise SettingsError("KIND and --all: give one of them")
        return ask.print(lambda api: unset_all(api, if_match=if_match, json=ask.json, **asdict(write)))
    if kind is None or name is None:
        raise SettingsError(f"{'NAME' if kind else 'KIND'}: nothing given; name the limit, or give --all")
    return ask.write("DELETE", *_addressed(kind, name, shared=shared), if_match=if_match, **asdict(write))


@app.command(
    help_epilogue=(
        "It lists the limits of such a request in the order in which Sluice asks them: the rule and why it applies, "
        "what happens above the limit, the state of the bucket, and how much was used recently.\n\n" + ASKING
    )
)
def explain(
    kind: Annotated[KindWord, Flag(help=KINDS)],
    name: Annotated[str, Flag(help=f"name{SPELLINGS}")],
    /,
    *,
    client: Annotated[str, Flag(help="IP address of the client", metavar="ADDRESS")] = "",
    producer_group: Annotated[str, Flag(help="producer group of the request", metavar="GROUP")] = "",
    certificate: Annotated[str, Flag(help="name in the client's TLS certificate", metavar="NAME")] = "",
    user: Annotated[str, Flag(help="user that the client has logged in as", metavar="NAME")] = "",
    vhost: Annotated[str, Flag(help="virtual host that the client works in", metavar="NAME")] = "",
    listener: Annotated[str, Flag(help="listener of the request, or its scope", metavar="NAME")] = "",
    at: Annotated[str, Flag(help="use the rules of this time, e.g. 2026-11-21T23:00+01:00", metavar="TIME")] = "",
    config: Annotated[
        FileName | None, Flag(help="read this TOML file instead of asking a sidecar", metavar="FILE")
    ] = None,
    ask: TargetFlags = ASK,
) -> int:
    """Show which limits apply to a request, why, and their state."""
    from admin.client import explain as asking  # noqa: PLC0415 - as in list
    from admin.client.api import Api, as_json  # noqa: PLC0415 - as in list
    from proxy.stats.question import Question  # noqa: PLC0415 - as in list

    question = Question(kind, name, client, producer_group, listener, at, user, vhost, certificate)
    if config is None:
        with Api(ask.target()) as api:
            explanation = asking.ask_sidecar(api, question)
    elif ask.admin is None and ask.profile is None:
        explanation = asking.ask_file(str(config), question)
    else:
        flag = "--admin" if ask.admin is not None else "--profile"
        raise SettingsError(f"{flag} and --config: give one of them; only one can be asked")
    say(as_json(explanation) if ask.json else asking.text(explanation))
    return 0


@app.command(
    help_epilogue=(
        "A TOML file has [[limits]] and [defaults] like a configuration file; everything else in it is ignored. Limits"
        " that are already in force as written are not touched.\n\n"
        "From the recommendations.json of `sluice report`, raised and new limits and fair shares are put in force, with"
        " the evidence as the reason. What is offered apart is left out unless it is asked for: limits that could be"
        " lower (--lower), and limits that were not near and could be higher (--raise). The other fields of a limit"
        " do not change. The recommendations are only for the sidecar that they name.\n\n"
        "All changes are made at once, or none.\n\n" + ASKING
    )
)
def apply(
    file: Annotated[FileName, Parameter(help="TOML file of limits, or the recommendations.json of a report")],
    /,
    *,
    prune: Annotated[bool, Switch(help="TOML file: undo all edits that are not in it")] = False,
    only: Annotated[str, Flag(help="recommendations: only names that match this pattern", metavar="GLOB")] = "",
    instance: Annotated[str, Flag(help="recommendations: only those for this sidecar", metavar="NAME")] = "",
    lower: Annotated[bool, Switch(help="recommendations: also lower the limits that are offered lower")] = False,
    raise_: Annotated[
        bool, Switch(name="--raise", help="recommendations: also raise limits that were not near")
    ] = False,
    force: Annotated[bool, Switch(help="recommendations: also for limits that were changed since")] = False,
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Put the limits of a file, or of a report's recommendations, in force."""
    from admin.client import files, recommendations  # noqa: PLC0415 - as in list

    name = str(file)
    offered = frozenset(word for word, given in (("lower", lower), ("raise", raise_)) if given)
    how = files.Applying(write.reason, write.dry_run, write.volatile, prune, only, instance, force, offered)
    if name.endswith(recommendations.SUFFIX):
        if prune:
            raise SettingsError("--prune: goes with a TOML file of limits, which says all that shall be edited")
        say(recommendations.apply(ask.target(), name, how, json=ask.json))
        return 0
    flags = {"--only": only, "--instance": instance, "--lower": lower, "--raise": raise_, "--force": force}
    for flag, given in flags.items():
        if given:
            raise SettingsError(f"{flag}: goes with the recommendations.json of a report; {name} is a TOML file")
    say(files.apply(ask.target(), name, how, json=ask.json))
    return 0


@app.command
def diff(*, ask: TargetFlags = ASK) -> int:
    """Show where limits and switches differ from the configuration, and who edited them."""
    from admin.client.files import diff as show  # noqa: PLC0415 - as in list

    return ask.print(lambda api: show(api, json=ask.json))


@app.command(help_epilogue="`sluice check` and `limits apply` accept its output.\n\n" + ASKING)
def export(
    *,
    format: Annotated[  # noqa: A002 - the flag is called so
        Literal["toml", "json"], Flag(help="toml or json (toml)", metavar="FORMAT")
    ] = "toml",
    edits_only: Annotated[bool, Switch(help="only live edits")] = False,
    ask: TargetFlags = ASK,
) -> int:
    """Print the limits in force as a configuration file."""
    from admin.client.files import export as write_out  # noqa: PLC0415 - as in list

    form = "json" if ask.json else format
    return ask.print(lambda api: write_out(api, form=form, edits_only=edits_only))


def _addressed(kind: str, name: str, *, shared: bool) -> tuple[str, str, str]:
    """Return a limit's place in the API, in which a shared rule is addressed as what it limits."""
    return ("limits", "total", f"{kind}:{name}") if shared else ("limits", kind, name)
