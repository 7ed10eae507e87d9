"""``sluice limits``: look into limits, and change them."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from admin.cli.options import (
    ASK,
    ASKING,
    WRITE,
    ActionWord,
    Ask,
    ColumnWord,
    CountWord,
    FairWord,
    FileName,
    FilterWord,
    Flag,
    KindWord,
    Switch,
    Write,
    say,
)
from admin.errors import SettingsError

app = App(name="limits", help="Look into the limits of a running Sluice, and change them.", help_epilogue=ASKING)

Kind = Annotated[KindWord, Parameter(help="topic, retry_group, subscription; client, producer_group, listener; total")]
Name = Annotated[str, Parameter(help="its name or a pattern, of a subscription GROUP@TOPIC; * is the kind's default")]
IfMatch = Annotated[str, Flag(help="only if its ETag is still this one; see `limits get`", metavar="ETAG")]
Shared = Annotated[bool, Switch(help="the limit of all that match together, as shared = true in a file")]

_Number = Annotated[float | None, Flag(metavar="NUMBER")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitFlags:
    """A limit's fields besides its rate, as ``[[limits]]`` in a configuration has them."""

    burst_s: Annotated[float | None, Flag(help="seconds of the rate that may pass at once", metavar="S")] = None
    break_s: Annotated[float | None, Flag(help="seconds for which all is refused above it", metavar="S")] = None
    bytes_per_s: Annotated[float | None, Flag(help="a second limit, on bytes", metavar="N")] = None
    bytes_burst_s: Annotated[float | None, Flag(help="burst_s of the bytes", metavar="S")] = None
    count: Annotated[CountWord | None, Flag(help="messages, or requests of however many", metavar="WHAT")] = None
    action: Annotated[ActionWord | None, Flag(help="above it: reject, shadow, delay, off", metavar="ACTION")] = None
    max_delay_s: Annotated[float | None, Flag(help="with delay: held so long at most", metavar="S")] = None
    busy_code: Annotated[int | None, Flag(help="the number of the refusal", metavar="N")] = None
    fair_by: Annotated[FairWord | None, Flag(help="shares by client or producer_group", metavar="WHAT")] = None
    max_fair_keys: Annotated[int | None, Flag(help="so many shares are told apart", metavar="N")] = None
    warm_up_s: Annotated[float | None, Flag(help="seconds in which the rate rises after idleness", metavar="S")] = None
    allow_under_limit: Annotated[bool | None, Switch(help="a break longer than the burst is meant")] = None
    exempt: Annotated[bool | None, Switch(help="in place of a rate: never limited")] = None
    between: Annotated[str | None, Flag(help="holds at these hours only", metavar="HH:MM-HH:MM")] = None
    days: Annotated[str | None, Flag(help="holds on these days only: mon,tue,…", metavar="DAYS")] = None
    time_zone: Annotated[str | None, Flag(help="whose clocks these go by (UTC)", metavar="ZONE")] = None

    def given(self) -> dict[str, Any]:
        """Return the fields that were given."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.days is not None:
            found["days"] = [day.strip() for day in self.days.split(",")]
        return {key: value for key, value in found.items() if value is not None}


_NO_FIELDS = LimitFlags()


@app.command(name="list")
def list_(
    *,
    kind: Annotated[KindWord, Flag(help="only of this kind", metavar="KIND")] = "",
    search: Annotated[str, Flag(help="only names that have this in them", metavar="TEXT")] = "",
    filter: Annotated[  # noqa: A002 - the flag is called so, as the API's parameter is
        FilterWord, Flag(help="limited (now), edited or near (80 % of the limit)", metavar="WHAT")
    ] = "",
    sort: Annotated[
        ColumnWord,
        Flag(
            help="name, kind, limit, rule, passed, refused, shadowed, bypassed, used, wait, last_refused, edited, "
            "expires (name)",
            metavar="COLUMN",
        ),
    ] = "",
    desc: Annotated[bool, Switch(help="the other way round")] = False,
    limit: Annotated[int, Flag(help="rows at most (100)", metavar="N")] = 100,
    all: Annotated[bool, Switch(help="all rows")] = False,  # noqa: A002 - the flag is called so
    ask: Ask = ASK,
) -> int:
    """List what is limited, how much, and how much of it is used now."""
    from admin.client.limits import list_limits  # noqa: PLC0415 - the HTTP client takes its time

    if limit < 1:
        raise SettingsError(f"--limit {limit}: must be at least 1")
    query = {"kind": kind, "search": search, "filter": filter, "sort": sort, "order": "desc" if desc else ""}
    return ask.print(lambda api: list_limits(api, query, None if all else limit, json=ask.json))


@app.command
def get(kind: Kind, name: Name, /, *, shared: Shared = False, ask: Ask = ASK) -> int:
    """Show one limit: what is in force, what is configured, who edited it."""
    from admin.client.limits import get as show  # noqa: PLC0415 - as in list

    return ask.print(lambda api: show(api, *_addressed(kind, name, shared=shared), json=ask.json))


@app.command(
    name="set",
    usage="Usage: sluice limits set KIND NAME [RATE] [OPTIONS]",
    help_epilogue=(
        "It holds for the very next request, survives restarts, and stands over the configuration until it is unset."
        " It is the whole limit: what is not given has its default, whatever was in force before.\n\n" + ASKING
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
    ttl: Annotated[str | None, Flag(help="ends by itself after 90s, 15m, 2h, 1d", metavar="TIME")] = None,
    if_match: IfMatch = "",
    write: Write = WRITE,
    ask: Ask = ASK,
) -> int:
    """Put a limit in force over that of the configuration."""
    from admin.client.limits import set_limit  # noqa: PLC0415 - as in list
    from admin.client.words import read_rate, read_seconds  # noqa: PLC0415 - as in list

    body = limit.given()
    if rate is not None:
        body["rate"] = read_rate(rate)
    if write.reason:
        body["reason"] = write.reason
    if ttl is not None:
        body["ttl_s"] = read_seconds(ttl, "--ttl")
    return ask.print(
        lambda api: set_limit(
            api,
            *_addressed(kind, name, shared=shared),
            body,
            dry_run=write.dry_run,
            volatile=write.volatile,
            if_match=if_match,
            json=ask.json,
        )
    )


@app.command(usage="Usage: sluice limits unset KIND NAME [OPTIONS]\n       sluice limits unset --all [OPTIONS]")
def unset(
    kind: Annotated[KindWord | None, Parameter(help="as in `limits set`")] = None,
    name: Annotated[str | None, Parameter(help="as in `limits set`")] = None,
    /,
    *,
    all: Annotated[bool, Switch(help="all that are edited, at once")] = False,  # noqa: A002 - the flag is called so
    shared: Shared = False,
    if_match: IfMatch = "",
    write: Write = WRITE,
    ask: Ask = ASK,
) -> int:
    """Let a limit be as configured again, or all of them."""
    from admin.client.limits import unset_all, unset_limit  # noqa: PLC0415 - as in list

    how: dict[str, Any] = {
        "reason": write.reason,
        "dry_run": write.dry_run,
        "volatile": write.volatile,
        "if_match": if_match,
        "json": ask.json,
    }
    if all:
        if kind is not None:
            raise SettingsError("KIND and --all: give one of them")
        return ask.print(lambda api: unset_all(api, **how))
    if kind is None or name is None:
        raise SettingsError(f"{'NAME' if kind else 'KIND'}: nothing given; name the limit, or give --all")
    return ask.print(lambda api: unset_limit(api, *_addressed(kind, name, shared=shared), **how))


@app.command(
    help_epilogue=(
        "It prints what limits such a request, in the order in which it is asked: the rule and why it holds, what "
        "happens above the limit, the state of its bucket and how much of it was used of late.\n\n" + ASKING
    )
)
def explain(
    kind: Annotated[KindWord, Flag(help="topic, retry_group, subscription; client, producer_group, listener")],
    name: Annotated[str, Flag(help="its name, of a subscription GROUP@TOPIC")],
    /,
    *,
    client: Annotated[str, Flag(help="IP address of who asks", metavar="ADDRESS")] = "",
    producer_group: Annotated[str, Flag(help="the group that sends", metavar="GROUP")] = "",
    listener: Annotated[str, Flag(help="the listener it comes through, or its scope", metavar="NAME")] = "",
    at: Annotated[str, Flag(help="by the rules of another time, e.g. 2026-11-21T23:00+01:00", metavar="TIME")] = "",
    config: Annotated[FileName | None, Flag(help="ask this TOML file instead of a sidecar", metavar="FILE")] = None,
    ask: Ask = ASK,
) -> int:
    """Say which limits a request must pass, why, and in which state they are."""
    from admin.client import explain as asking  # noqa: PLC0415 - as in list
    from admin.client.api import Api, as_json  # noqa: PLC0415 - as in list
    from proxy.question import Question  # noqa: PLC0415 - as in list

    question = Question(kind, name, client, producer_group, listener, at)
    if config is None:
        with Api(ask.target()) as api:
            explanation = asking.ask_sidecar(api, question)
    elif ask.admin is None and ask.profile is None:
        explanation = asking.ask_file(str(config), question)
    else:
        flag = "--admin" if ask.admin is not None else "--profile"
        raise SettingsError(f"{flag} and --config: give one of them; only one can be asked")
    say(as_json(explanation) if ask.json else asking.text(explanation, live=config is None and not at))
    return 0


@app.command(
    help_epilogue=(
        "A TOML file has [[limits]] and [defaults] as a configuration has them; whatever else is in it is left alone."
        " Limits that hold already as written are not touched.\n\n"
        "Of the recommendations.json of `sluice report`, what is to be raised, lowered or new is put in force, with the"
        " evidence as the reason; a limit keeps whatever else it says. It is for the sidecar of that name only.\n\n"
        "All is put in force at once, or nothing.\n\n" + ASKING
    )
)
def apply(
    file: Annotated[FileName, Parameter(help="TOML file of limits, or the recommendations.json of a report")],
    /,
    *,
    prune: Annotated[bool, Switch(help="of a TOML file: unset all edits that are not in it")] = False,
    only: Annotated[str, Flag(help="of recommendations: names that match this pattern", metavar="GLOB")] = "",
    instance: Annotated[str, Flag(help="of recommendations: those made for this sidecar", metavar="NAME")] = "",
    force: Annotated[bool, Switch(help="of recommendations: also where the limit was changed since")] = False,
    write: Write = WRITE,
    ask: Ask = ASK,
) -> int:
    """Put the limits of a file in force, or those that a report recommends."""
    from admin.client import files, recommendations  # noqa: PLC0415 - as in list

    name = str(file)
    if name.endswith(recommendations.SUFFIX):
        if prune:
            raise SettingsError("--prune: goes with a TOML file of limits, which says all that shall be edited")
        chosen = recommendations.Applying(write.reason, write.dry_run, write.volatile, only, instance, force)
        say(recommendations.apply(ask.target(), name, chosen, json=ask.json))
        return 0
    for flag, given in (("--only", only), ("--instance", instance), ("--force", force)):
        if given:
            raise SettingsError(f"{flag}: goes with the recommendations.json of a report; {name} is a TOML file")
    how = files.Applying(write.reason, write.dry_run, write.volatile, prune)
    say(files.apply(ask.target(), name, how, json=ask.json))
    return 0


@app.command
def diff(*, ask: Ask = ASK) -> int:
    """Show what is in force and not as configured, and who edited it."""
    from admin.client.files import diff as show  # noqa: PLC0415 - as in list

    return ask.print(lambda api: show(api, json=ask.json))


@app.command(help_epilogue="`sluice check` and `limits apply` take what it prints.\n\n" + ASKING)
def export(
    *,
    format: Annotated[  # noqa: A002 - the flag is called so
        Literal["toml", "json"], Flag(help="toml or json (toml)", metavar="FORMAT")
    ] = "toml",
    edits_only: Annotated[bool, Switch(help="only what is edited")] = False,
    ask: Ask = ASK,
) -> int:
    """Print the limits in force as a configuration file."""
    from admin.client.files import export as write_out  # noqa: PLC0415 - as in list

    form = "json" if ask.json else format
    return ask.print(lambda api: write_out(api, form=form, edits_only=edits_only))


def _addressed(kind: str, name: str, *, shared: bool) -> tuple[str, str]:
    """Return kind and name as the API has them: a shared rule is addressed as what it limits."""
    return ("total", f"{kind}:{name}") if shared else (kind, name)
