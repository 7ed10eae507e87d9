"""Commands that operate a running Sluice, from ``sluice switch`` to ``sluice top``."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from admin.cli.options import (
    ASK,
    ASKING,
    LONG_S,
    PLAIN,
    WRITE,
    All,
    ColumnWord,
    ConnectionColumnWord,
    Desc,
    DryRun,
    Filter,
    Most,
    OfKind,
    Reason,
    Search,
    SwitchWord,
    TargetFlags,
    Write,
)
from admin.cli.protocol_words import MAIN_KIND
from admin.client.text import limiting, listing, moment, passing, read_seconds, standing, until
from admin.common.columns import (
    CONFIRMS,
    CONNECTIONS,
    FLEET_LIMITS,
    FLEET_MEMBERS,
    LINKS,
    SPOOLED,
    STAGES,
    Column,
    sort_words,
)
from admin.common.errors import SettingsError
from admin.common.numbers import span
from admin.common.tables import Rows, printable

if TYPE_CHECKING:
    from admin.client.api import Api

TOP_EPILOGUE: Final = (
    "Keys: q quits, s sorts by the next column, r reverses the order, / searches, f filters, Esc clears search and"
    " filter, and the arrow keys, PgUp and PgDn scroll.\n\n" + ASKING
)
FLOW_EPILOGUE: Final = (
    "A connection is throttled while a limit delays its messages. It is in flow if, within the last few seconds, it"
    " was stopped because a later stage was full. It is blocked while an alarm stops it.\n\n" + ASKING
)

_GROUP: Final[Any] = {"help_epilogue": ASKING, "default_parameter": PLAIN}
switch = App(name="switch", help="Switch limiting off in an emergency, and back on later.", **_GROUP)
audit = App(name="audit", help="Show who changed what, when and why, latest first.", **_GROUP)
connections = App(name="connections", help="List and close client connections.", **_GROUP)
spool = App(name="spool", help="Show and purge spooled messages.", **_GROUP)


SwitchKind = Annotated[SwitchWord, Parameter(help=f"only this kind: {MAIN_KIND}, client, … (all)", metavar="KIND")]
Ttl = Annotated[str | None, Parameter(help="time to expiry: 90s, 15m, 2h, 1d (90 is seconds)", metavar="TIME")]


@switch.default
def show_switches(*, ask: TargetFlags = ASK) -> int:
    """Show whether limiting is on, for everything and for each kind."""
    return ask.run(lambda api: api.text(api.get("switches"), _switches))


def _switches(now: Mapping[str, Any]) -> Iterator[str]:
    word = {True: "on", False: "OFF"}
    rows = (
        (each["kind"], word[each["limiting"]], word[each["configured"]], standing(each["edit"]) if each["edit"] else "")
        for each in now["switches"]
    )
    yield from Rows(("switch", "limiting", "configured", "edited"), rows).used().lines()


@switch.command
def off(*, kind: SwitchKind = "all", ttl: Ttl = None, write: Write = WRITE, ask: TargetFlags = ASK) -> int:
    """Switch limiting off, for everything or for one kind. Requests are still counted."""
    return _switch(kind, ttl, write, ask, limiting=False)


@switch.command
def on(*, kind: SwitchKind = "all", ttl: Ttl = None, write: Write = WRITE, ask: TargetFlags = ASK) -> int:
    """Switch limiting back on."""
    return _switch(kind, ttl, write, ask, limiting=True)


def _switch(kind: str, ttl: str | None, write: Write, ask: TargetFlags, *, limiting: bool) -> int:
    params = asdict(write)
    body = {"limiting": limiting, "reason": params.pop("reason")}
    body |= {} if ttl is None else {"ttl_s": read_seconds(ttl, "--ttl")}
    return ask.run(lambda api: api.write("PUT", "switches", kind, body=body, params=params))


@switch.command
def reset(
    *,
    kind: Annotated[SwitchWord | None, Parameter(help="only this kind's switch, or all", metavar="KIND")] = None,
    write: Write = WRITE,
    ask: TargetFlags = ASK,
) -> int:
    """Undo edits of the switches, so that the configuration applies again."""

    def all_switches(api: "Api") -> str:
        switches = api.get("switches").read(dict[str, Any])["switches"]
        edits = [{"type": "unset_switch", "kind": each["kind"]} for each in switches if each["edit"] is not None]
        return api.undo(edits, "switch", **asdict(write))

    return ask.run(
        all_switches if kind is None else lambda api: api.write("DELETE", "switches", kind, params=asdict(write))
    )


def reload(*, dry_run: DryRun = False, ask: TargetFlags = ASK) -> int:
    """Reload the configuration, as SIGHUP does. An invalid configuration changes nothing."""

    def lines(report: Mapping[str, Any]) -> Iterator[str]:
        yield from (f"{'would change' if dry_run else 'changed'}: {line}" for line in report["changed"])
        yield from (f"needs a restart: {line}" for line in report["needs_restart"])
        yield from (f"overridden by an edit: {line}" for line in report["hidden"])
        yield from (f"warning: {line}" for line in report["warnings"])
        change = report["change"]
        if not report["changed"]:
            what = "nothing else" if report["needs_restart"] else "nothing"
            yield f"{what} would change" if dry_run else f"{what} changed"
        elif change is not None and not dry_run:
            yield f"change {change['id']} by {change['by']}"

    return ask.run(lambda api: api.text(api.ask("POST", "reload", params={"dry_run": dry_run}), lines), LONG_S)


def state(*, ask: TargetFlags = ASK) -> int:
    """Show the sidecar's state, including listeners, brokers, bypassed requests, and where edits are stored."""
    return ask.run(lambda api: api.text(api.get("state"), lambda now: _state(now, api.url)))


def _state(now: Mapping[str, Any], url: str) -> Iterator[str]:
    rates, edits, bypassed = now["rates"]["messages_per_s"], now["edits"], now["bypassed"]
    up = f"up for {span(now['uptime_s'])}{', draining' if now['draining'] else ''}"
    yield f"Sluice {now['version']} (compiled extension: {now['compiled_extension']}) at {url}, {up}"
    if now["instance"]:
        yield f"instance     {now['instance']}"
    yield f"limiting     {limiting(now)}"
    yield f"messages/s   {passing(rates)}"
    yield f"connections  {now['totals']['connections_open']} open, {now['totals']['connections']} since start"
    for each in now["listeners"]:
        reached = {None: "not tried yet", True: "reachable", False: f"NOT REACHABLE: {each['error']}"}[
            each["reachable"]
        ]
        if each["backup"] and each["reachable"]:
            reached = "; ".join((f"backup {each['backup']} of {each['backups']}", *each["passed_over"]))
        waits = "" if each["listening"] or now["draining"] else ", listener closed until the broker is reachable"
        yield (
            f"listener     {each['name']}: {each['listen']} -> {each['broker']} ({reached}{waits}),"
            f" {each['connections']} open"
        )
    yield from (
        f"adaptive     {each['listener']}: {each['text'].removeprefix('adaptive: ')}" for each in now["adaptive"]
    )
    if (fleet := now["fleet"]) is not None:
        yield f"fleet        {fleet['name']}: {fleet['text']}"
    by = ", ".join(f"{each['handler']} {each['reason']} {each['total']}" for each in bypassed["by"] if each["total"])
    yield f"bypassed     {bypassed['total']} requests since start{f' ({by})' if by else ''}"
    ending = edits["expiring_next"]
    soon = "" if ending is None else f"; {ending['target']} expires {until(ending['expires_at'])}"
    yield f"edits        {edits['standing']} active{soon}"
    yield f"saved in     {_place(now['persistence'], 'memory: edits are lost on restart')}"
    yield from (f"quarantined  {file}" for file in now["persistence"]["set_aside"])
    yield f"recorded in  {_place(now['rejection_log'], 'nothing: the rejection log is off')}"
    if (failed := now["failed_reload"]) is not None:
        yield f"reload       FAILED by {failed['by']}, {moment(failed['at'])}: the previous configuration still applies"
        yield from (f"             {line}" for line in failed["problems"])
    if now["spool"]["directory"] or now["spool"]["error"]:
        yield f"spooled in   {_place(now['spool'], 'nothing')}"
    yield from (f"ALARM        {alarm['scarce']}: {alarm['text']}" for alarm in now["alarms"] if alarm["stands"])
    yield from (f"warning      {line}" for line in now["warnings"])


def _place(folder: Mapping[str, Any], otherwise: str) -> str:
    return (folder["directory"] or otherwise) + (f"; {folder['error']}" if folder["error"] else "")


@audit.default
def show_audit(
    *,
    target: Annotated[
        str,
        Parameter(
            help=f"only targets with this prefix, e.g. limits/{MAIN_KIND}/orders, limits/{MAIN_KIND}/, switches/",
            metavar="TARGET",
        ),
    ] = "",
    by: Annotated[
        str, Parameter(help="only changes by this author: a token's name, local, remote or sluice", metavar="NAME")
    ] = "",
    limit: Most = 100,
    ask: TargetFlags = ASK,
) -> int:
    """Show who changed what, when and why."""
    return ask.run(lambda api: api.audit(limit, target=target, by=by))


@audit.command
def revert(
    change: Annotated[int, Parameter(help="number of the change", name="ID")],
    /,
    *,
    reason: Reason = "",
    force: Annotated[bool, Parameter(help="undo the change even if its target has changed again since")] = False,
    dry_run: DryRun = False,
    ask: TargetFlags = ASK,
) -> int:
    """Undo one change."""
    body = {"reason": reason, "force": force}
    return ask.run(
        lambda api: api.write("POST", "audit", str(change), "revert", body=body, params={"dry_run": dry_run})
    )


SearchConnections = Annotated[
    str, Parameter(help="text in the address, client ID, user, listener, resource or link", metavar="TEXT")
]


@connections.default
@connections.command(name="list")
def list_connections(
    *,
    search: SearchConnections = "",
    sort: Annotated[ConnectionColumnWord, Parameter(help=", ".join(sort_words(CONNECTIONS)), metavar="COLUMN")] = "",
    desc: Desc = False,
    limit: Most = 100,
    all: All = False,  # noqa: A002 - named like the flag
    ask: TargetFlags = ASK,
) -> int:
    """List connected clients."""
    query: dict[str, Any] = {"search": search, "sort": sort, "order": "desc" if desc else ""}
    nothing = "Nothing matches." if search else "No clients are connected."
    return ask.run(lambda api: api.table("connections", CONNECTIONS, None if all else limit, nothing, **query))


@connections.command
def links(
    *,
    search: SearchConnections = "",
    limit: Most = 100,
    all: All = False,  # noqa: A002 - named like the flag
    ask: TargetFlags = ASK,
) -> int:
    """List the links of connected clients and their credit, waiting links first."""

    def links_of(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        more = [{"name": f"and {row['more_links']} more"}] if row.get("more_links") else []
        yield from ({"id": row["id"], "peer": row["peer"], **link} for link in (*row.get("links", ()), *more))

    columns = [column for column in CONNECTIONS if column.name in {"id", "peer"}] + list(LINKS)
    most, nothing = None if all else limit, "No links are attached."
    return ask.run(lambda api: api.table("connections", columns, most, nothing, rows_of=links_of, search=search))


@connections.command
def close(
    connection: Annotated[int, Parameter(help="number of the connection", name="ID")],
    /,
    *,
    reason: Annotated[str, Parameter(help="reason to record in the log", metavar="TEXT")] = "",
    ask: TargetFlags = ASK,
) -> int:
    """Close one connection. Most clients reconnect automatically."""

    def closed(api: "Api") -> str:
        reply = api.ask("DELETE", "connections", str(connection), params={"reason": reason})
        return api.text(reply, lambda _: [f"connection {connection} closed"])

    return ask.run(closed)


def flow(*, limit: Most = 100, ask: TargetFlags = ASK) -> int:
    """Show back pressure: the bottleneck, alarms, and waiting connections."""
    return ask.run(lambda api: api.text(api.get("flow", limit=limit), _flow))


def _flow(now: Mapping[str, Any]) -> Iterator[str]:
    yield from (*now["sentences"], "")
    for alarm in now["alarms"]:
        since = f" (since {moment(alarm['since'])})" if alarm["since"] else ""
        yield f"{alarm['scarce'] + ' alarm':<13} {alarm['status']}{since}"
    yield from (f"{each['name']:<13} {each['text']}" for each in now["details"])
    stages = [
        {**stage, "id": each["id"], "listener": each["listener"]} if number == 0 else stage
        for each in now["connections"]
        for number, stage in enumerate((each["connection"], *each["others"]))
    ]
    owner = [column for column in CONNECTIONS if column.name in {"id", "listener"}]
    yield from _part([*owner, *STAGES], stages, now["more_connections"], "more connection")
    yield from _part(CONFIRMS, now["confirms"], now["more_confirms"], "more destination")


def _part(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]], more: int, what: str) -> Iterator[str]:
    yield from ("", listing(columns, rows)) if rows else ()
    yield from ("", f"{more} {what}{'s' * (more != 1)}; --limit N shows more") if more else ()


def fleet(*, ask: TargetFlags = ASK) -> int:
    """Show the fleet's members, when they were last seen, and this member's share of each limit and its demand."""
    return ask.run(lambda api: api.text(api.get("fleet"), _fleet))


def _fleet(now: Mapping[str, Any]) -> Iterator[str]:
    if (fleet := now["fleet"]) is None:
        yield "This sidecar is not in a fleet: its configuration has no [fleet]."
        return
    yield f"{fleet['name']}: {fleet['text']}"
    yield f"Redis {fleet['url']}, this member {fleet['member']}, when_away {fleet['when_away']}"
    yield from (f"warning: {line}" for line in fleet["disagreements"])
    yield from _part(FLEET_MEMBERS, fleet["members"], 0, "")
    yield from _part(FLEET_LIMITS, fleet["limits"], 0, "")


@spool.default
@spool.command(name="list")
def list_spool(*, limit: Most = 100, ask: TargetFlags = ASK) -> int:
    """Show spooled messages, in memory and on disk, by resource."""
    return ask.run(lambda api: api.text(api.get("spool", limit=limit), _spool))


def _spool(now: Mapping[str, Any]) -> Iterator[str]:
    yield from now["sentences"]
    if (holds := now["holds"]) is not None:
        yield from ("", *(f"{each['name']:<10} {each['text']}" for each in now["details"]))
        yield from _part(SPOOLED, holds["resources"], holds["more_resources"], "more resource")


@spool.command
def purge(
    resource: Annotated[str, Parameter(help="as `sluice spool` lists it", name="KIND:NAME")],
    /,
    *,
    reason: Reason = "",
    yes: Annotated[bool, Parameter(help="skip the confirmation")] = False,
    ask: TargetFlags = ASK,
) -> int:
    """Purge the spooled messages of one resource. This cannot be undone.

    Messages whose senders await a response are refused. The others are dropped.
    """
    kind, colon, name = resource.partition(":")
    if not (kind and colon and name):
        raise SettingsError(f"{resource}: must be KIND:NAME, as listed by `sluice spool`")
    if not yes:
        _confirm(resource)

    def lines(done: Mapping[str, Any]) -> Iterator[str]:
        what = f"{resource}: {done['refused']} refused, {done['dropped']} dropped"
        nothing = f"No messages of {resource} were spooled"
        yield f"{what if done['refused'] or done['dropped'] else nothing}; change {done['change']}"

    return ask.run(
        lambda api: api.text(api.ask("DELETE", "spool", kind, name, params={"reason": reason}), lines), LONG_S
    )


def _confirm(resource: str) -> None:
    if not sys.stdin.isatty():
        raise SettingsError(f"purging {resource} cannot be undone; confirm it with --yes")
    question = f"Purge all spooled messages of {printable(resource)}? This cannot be undone. [y/N] "
    print(question, end="", file=sys.stderr, flush=True)  # noqa: T201 - for people
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise SettingsError("nothing was purged")


def top(
    *,
    kind: OfKind = "",
    search: Search = "",
    filter: Filter = "",  # noqa: A002 - named like the API's parameter
    sort: Annotated[
        ColumnWord,
        Parameter(
            help="refused, passed, used, wait, name, kind or another column of `limits list` (refused)",
            metavar="COLUMN",
        ),
    ] = "refused",
    once: Annotated[bool, Parameter(help="print one table and exit (default if not on a terminal)")] = False,
    ask: TargetFlags = ASK,
) -> int:
    """Watch limits, rates and refusals live, until q or Ctrl-C."""
    from admin.client import top as screen  # noqa: PLC0415 - slow to import

    return screen.show(ask.target(), screen.View(kind, search, filter, sort), once=once, json=ask.json)
