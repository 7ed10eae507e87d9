"""``sluice switch``, ``reload``, ``state``, ``audit``, ``connections``, ``flow``, ``spool`` and ``top``."""

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import App, Parameter

from admin.cli.options import (
    ASK,
    ASKING,
    CONNECTION_COLUMNS,
    WRITE,
    ColumnWord,
    ConnectionColumnWord,
    DryRun,
    Filter,
    Flag,
    Most,
    OfKind,
    Reason,
    Search,
    Switch,
    SwitchWord,
    TargetFlags,
    Write,
    positive,
)
from admin.cli.protocol_words import MAIN_KIND

spool = App(name="spool", help="Show spooled messages, and purge them.", help_epilogue=ASKING)
switch = App(name="switch", help="Switch limiting off or on, in an emergency.", help_epilogue=ASKING)
audit = App(name="audit", help="Show who changed what, when and why; latest first.", help_epilogue=ASKING)
connections = App(name="connections", help="List connected clients, and close connections.", help_epilogue=ASKING)

SwitchKind = Annotated[SwitchWord, Flag(help=f"only this kind: {MAIN_KIND}, client, … (all)", metavar="KIND")]
Ttl = Annotated[str | None, Flag(help="expires after 90s, 15m, 2h, 1d", metavar="TIME")]


@switch.default
def show_switches(*, ask: TargetFlags = ASK) -> int:
    """Say what is switched off."""
    from admin.client import operate  # noqa: PLC0415 - the HTTP client takes its time

    return ask.print(lambda api: operate.show_switches(api, json=ask.json))


@switch.command
def off(*, kind: SwitchKind = "all", ttl: Ttl = None, write: Write = WRITE, ask: TargetFlags = ASK) -> int:
    """Let everything pass, or everything of one kind; requests are still counted."""
    return _switch(kind, ttl, write, ask, limiting=False)


@switch.command
def on(*, kind: SwitchKind = "all", ttl: Ttl = None, write: Write = WRITE, ask: TargetFlags = ASK) -> int:
    """Switch limiting on again."""
    return _switch(kind, ttl, write, ask, limiting=True)


def _switch(kind: str, ttl: str | None, write: Write, ask: TargetFlags, *, limiting: bool) -> int:
    from admin.client.words import read_seconds  # noqa: PLC0415 - as above

    body: dict[str, Any] = {"limiting": limiting, "reason": write.reason}
    if ttl is not None:
        body["ttl_s"] = read_seconds(ttl, "--ttl")
    return ask.write("PUT", "switches", kind, body=body, dry_run=write.dry_run, volatile=write.volatile)


@switch.command
def reset(
    *,
    kind: Annotated[SwitchWord | None, Flag(help="only this kind's switch, or all", metavar="KIND")] = None,
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Set the switches as configured."""
    from admin.client import operate  # noqa: PLC0415 - as above

    if kind is not None:
        return ask.write("DELETE", "switches", kind, **asdict(write))
    return ask.print(lambda api: operate.reset_all(api, json=ask.json, **asdict(write)))


def reload(*, dry_run: DryRun = False, ask: TargetFlags = ASK) -> int:
    """Reload the configuration, as SIGHUP does.

    An invalid configuration changes nothing. The output names settings that need a restart.
    """
    from admin.client import operate  # noqa: PLC0415 - as above
    from admin.client.api import LONG_TIMEOUT_S  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.reload(api, dry_run=dry_run, json=ask.json), LONG_TIMEOUT_S)


def state(*, ask: TargetFlags = ASK) -> int:
    """Show the state of the sidecar: listeners, brokers, bypassed requests, where edits are stored."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.state(api, json=ask.json))


@audit.default
def show_audit(
    *,
    target: Annotated[
        str,
        Flag(
            help=f"only targets that begin with this: limits/{MAIN_KIND}/orders, limits/{MAIN_KIND}/, switches/",
            metavar="TARGET",
        ),
    ] = "",
    by: Annotated[
        str, Flag(help="only changes by this author: a token's name, local, remote, sluice", metavar="NAME")
    ] = "",
    limit: Most = 100,
    ask: TargetFlags = ASK,
) -> int:
    """Show who changed what, when and why."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.audit(api, {"target": target, "by": by}, positive(limit), json=ask.json))


@audit.command
def revert(
    change: Annotated[int, Parameter(help="number of the change", name="ID")],
    /,
    *,
    reason: Reason = "",
    force: Annotated[bool, Switch(help="even if it was changed again since")] = False,
    dry_run: DryRun = False,
    ask: TargetFlags = ASK,
) -> int:
    """Undo one change."""
    return ask.write("POST", "audit", change, "revert", body={"reason": reason, "force": force}, dry_run=dry_run)


SearchConnections = Annotated[
    str, Flag(help="address, client id, user, listener, resource or link contains this", metavar="TEXT")
]
All = Annotated[bool, Switch(help="all rows")]


@connections.default
@connections.command(name="list")
def list_connections(
    *,
    search: SearchConnections = "",
    sort: Annotated[
        ConnectionColumnWord,
        Flag(help=CONNECTION_COLUMNS, metavar="COLUMN"),
    ] = "",
    desc: Annotated[bool, Switch(help="reverse the order")] = False,
    limit: Most = 100,
    all: All = False,  # noqa: A002 - the flag is called so
    ask: TargetFlags = ASK,
) -> int:
    """List connected clients."""
    from admin.client import operate  # noqa: PLC0415 - as above

    query = {"search": search, "sort": sort, "order": "desc" if desc else ""}
    most = None if all else positive(limit)
    return ask.print(lambda api: operate.connections(api, query, most, json=ask.json))


@connections.command
def links(
    *,
    search: SearchConnections = "",
    limit: Most = 100,
    all: All = False,  # noqa: A002 - as above
    ask: TargetFlags = ASK,
) -> int:
    """List the links of connected clients, and their credit; of each client, those that wait first."""
    from admin.client import operate  # noqa: PLC0415 - as above

    most = None if all else positive(limit)
    return ask.print(lambda api: operate.links(api, {"search": search}, most, json=ask.json))


@connections.command
def close(
    connection: Annotated[int, Parameter(help="number of the connection", name="ID")],
    /,
    *,
    reason: Annotated[str, Flag(help="why, for the log", metavar="TEXT")] = "",
    ask: TargetFlags = ASK,
) -> int:
    """Close one connection; most clients reconnect by themselves."""
    from admin.client import operate  # noqa: PLC0415 - as above

    return ask.print(lambda api: operate.close(api, connection, reason=reason, json=ask.json))


def flow(*, limit: Most = 100, ask: TargetFlags = ASK) -> int:
    """Show what waits for what: the bottleneck in words, alarms, and the connections that wait.

    A connection is throttled if a limit makes its messages wait; in flow if it was stopped within the last seconds,
    because a later stage takes no more; blocked if an alarm stops it.
    """
    from admin.client import flow as client  # noqa: PLC0415 - as above

    return ask.print(lambda api: client.flow(api, positive(limit), json=ask.json))


@spool.default
@spool.command(name="list")
def list_spool(*, limit: Most = 100, ask: TargetFlags = ASK) -> int:
    """Show spooled messages, in memory and on disk, by resource."""
    from admin.client import flow as client  # noqa: PLC0415 - as above

    return ask.print(lambda api: client.spool(api, positive(limit), json=ask.json))


@spool.command
def purge(
    resource: Annotated[str, Parameter(help="KIND:NAME, as `sluice spool` lists it", name="KIND:NAME")],
    /,
    *,
    reason: Reason = "",
    yes: Annotated[bool, Switch(help="do not ask")] = False,
    ask: TargetFlags = ASK,
) -> int:
    """Refuse the spooled messages of one resource; drop those without an answer. This cannot be undone."""
    from admin.client import flow as client  # noqa: PLC0415 - as above
    from admin.client.api import LONG_TIMEOUT_S  # noqa: PLC0415 - as above

    return ask.print(lambda api: client.purge(api, resource, reason=reason, yes=yes, json=ask.json), LONG_TIMEOUT_S)


def top(
    *,
    kind: OfKind = "",
    search: Search = "",
    filter: Filter = "",  # noqa: A002 - the flag is called so, as the API's parameter is
    sort: Annotated[
        ColumnWord,
        Flag(help="refused, passed, used, wait, name, kind or another of `limits list` (refused)", metavar="COLUMN"),
    ] = "refused",
    once: Annotated[bool, Switch(help="print one table and exit; the default without a terminal")] = False,
    ask: TargetFlags = ASK,
) -> int:
    """Watch limits, rates and refusals live, until q or Ctrl-C.

    Keys: q ends it, s sorts by the next column, r reverses the order, / searches, f filters, arrows and PgUp, PgDn
    scroll.
    """
    from admin.client.top import Wish, watch  # noqa: PLC0415 - as above

    return watch(ask.target(), Wish(kind, search, filter, sort), once=once, json=ask.json)
