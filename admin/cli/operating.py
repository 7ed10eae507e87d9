"""``sluice switch``, ``reload``, ``state``, ``audit``, ``connections`` and ``top``."""

from typing import Annotated, Any

from cyclopts import App, Parameter

from admin.cli.options import (
    ASK,
    ASKING,
    WRITE,
    Ask,
    ColumnWord,
    ConnectionColumnWord,
    FilterWord,
    Flag,
    KindWord,
    Switch,
    SwitchWord,
    Write,
)
from admin.errors import SettingsError

switch = App(name="switch", help="Switch limiting off or on, in an emergency.", help_epilogue=ASKING)
audit = App(name="audit", help="Who changed what, when and why; the latest first.", help_epilogue=ASKING)
connections = App(name="connections", help="The clients that are connected.", help_epilogue=ASKING)

SwitchKind = Annotated[SwitchWord, Flag(help="only this kind: topic, client, … (all)", metavar="KIND")]
Ttl = Annotated[str | None, Flag(help="ends by itself after 90s, 15m, 2h, 1d", metavar="TIME")]
Most = Annotated[int, Flag(help="so many at most (100)", metavar="N")]


@switch.default
def show_switches(*, ask: Ask = ASK) -> int:
    """Say what is switched off."""
    from admin.client import operate  # noqa: PLC0415 - the HTTP client takes its time

    return ask.print(lambda api: operate.show_switches(api, json=ask.json))


@switch.command
def off(*, kind: SwitchKind = "all", ttl: Ttl = None, write: Write = WRITE, ask: Ask = ASK) -> int:
    """Let everything pass, or everything of one kind; it goes on being counted."""
    return _switch(kind, ttl, write, ask, limiting=False)


@switch.command
def on(*, kind: SwitchKind = "all", ttl: Ttl = None, write: Write = WRITE, ask: Ask = ASK) -> int:
    """Limit again."""
    return _switch(kind, ttl, write, ask, limiting=True)


def _switch(kind: str, ttl: str | None, write: Write, ask: Ask, *, limiting: bool) -> int:
    from admin.client import operate  # noqa: PLC0415 - as above
    from admin.client.words import read_seconds  # noqa: PLC0415 - as above

    ttl_s = None if ttl is None else read_seconds(ttl, "--ttl")
    return ask.print(
        lambda api: operate.switch(api, kind, limiting=limiting, ttl_s=ttl_s, json=ask.json, **_how(write))
    )


@switch.command
def reset(
    *,
    kind: Annotated[SwitchWord | None, Flag(help="only this kind's switch, or that of all", metavar="KIND")] = None,
    write: Write = WRITE,
    ask: Ask = ASK,
) -> int:
    """Let the switches stand as configured."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.reset(api, kind, json=ask.json, **_how(write)))


def reload(*, dry_run: Annotated[bool, Switch(help="only say what would change")] = False, ask: Ask = ASK) -> int:
    """Have the configuration read again; as SIGHUP does.

    A configuration that is wrong changes nothing. What needs a restart is named.
    """
    from admin.client import operate  # noqa: PLC0415 - as above
    from admin.client.api import LONG_TIMEOUT_S  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.reload(api, dry_run=dry_run, json=ask.json), LONG_TIMEOUT_S)


def state(*, ask: Ask = ASK) -> int:
    """Say how the sidecar is: listeners, brokers, what is bypassed, where edits are kept."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.state(api, json=ask.json))


@audit.default
def show_audit(
    *,
    target: Annotated[
        str, Flag(help="only what begins so: limits/topic/orders, limits/topic/, switches/", metavar="TARGET")
    ] = "",
    by: Annotated[str, Flag(help="only this author's: a token's name, local, remote, sluice", metavar="NAME")] = "",
    limit: Most = 100,
    ask: Ask = ASK,
) -> int:
    """Show who changed what, when and why."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.audit(api, {"target": target, "by": by}, _positive(limit), json=ask.json))


@audit.command
def revert(
    change: Annotated[int, Parameter(help="the change's number", name="ID")],
    /,
    *,
    reason: Annotated[str, Flag(help="why, for the audit trail", metavar="TEXT")] = "",
    force: Annotated[bool, Switch(help="even if the same was changed since")] = False,
    dry_run: Annotated[bool, Switch(help="only say what would change")] = False,
    ask: Ask = ASK,
) -> int:
    """Undo one change: what stood before holds again."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(
        lambda api: operate.revert(api, change, reason=reason, force=force, dry_run=dry_run, json=ask.json)
    )


def _list(search: str, sort: str, limit: int, ask: Ask, *, desc: bool, all_: bool) -> int:
    from admin.client import operate  # noqa: PLC0415 - as above

    query = {"search": search, "sort": sort, "order": "desc" if desc else ""}
    most = None if all_ else _positive(limit)
    return ask.print(lambda api: operate.connections(api, query, most, json=ask.json))


@connections.default
@connections.command(name="list")
def list_connections(
    *,
    search: Annotated[str, Flag(help="in address, client id, listener or what it uses", metavar="TEXT")] = "",
    sort: Annotated[
        ConnectionColumnWord,
        Flag(help="id, peer, client, listener, age, bytes, requests, refused, in_flight", metavar="COLUMN"),
    ] = "",
    desc: Annotated[bool, Switch(help="the other way round")] = False,
    limit: Most = 100,
    all: Annotated[bool, Switch(help="all of them")] = False,  # noqa: A002 - the flag is called so
    ask: Ask = ASK,
) -> int:
    """List who is connected."""
    return _list(search, sort, limit, ask, desc=desc, all_=all)


@connections.command
def close(
    connection: Annotated[int, Parameter(help="the connection's number", name="ID")],
    /,
    *,
    reason: Annotated[str, Flag(help="why, for the log", metavar="TEXT")] = "",
    ask: Ask = ASK,
) -> int:
    """Close one connection; most clients come back by themselves."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.close(api, connection, reason=reason, json=ask.json))


def _how(write: Write) -> dict[str, Any]:
    return {"reason": write.reason, "dry_run": write.dry_run, "volatile": write.volatile}


def _positive(limit: int) -> int:
    if limit < 1:
        raise SettingsError(f"--limit {limit}: must be at least 1")
    return limit


def top(
    *,
    kind: Annotated[KindWord, Flag(help="only of this kind", metavar="KIND")] = "",
    search: Annotated[str, Flag(help="only names that have this in them", metavar="TEXT")] = "",
    filter: Annotated[  # noqa: A002 - the flag is called so, as the API's parameter is
        FilterWord, Flag(help="limited (now), edited or near (80 % of the limit)", metavar="WHAT")
    ] = "",
    sort: Annotated[
        ColumnWord,
        Flag(help="refused, passed, used, wait, name, kind or another of `limits list` (refused)", metavar="COLUMN"),
    ] = "refused",
    once: Annotated[bool, Switch(help="print one table and end, as off a terminal")] = False,
    ask: Ask = ASK,
) -> int:
    """Watch limits, rates and refusals live, until q or Ctrl-C.

    Keys: q ends it, s sorts by the next column, r the other way round, / searches, f filters, arrows and PgUp, PgDn
    scroll.
    """
    from admin.client.top import Wish, watch  # noqa: PLC0415 - as above

    return watch(ask.target(), Wish(kind, search, filter, sort), once=once, json=ask.json)
