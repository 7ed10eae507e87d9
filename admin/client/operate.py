"""``sluice switch``, ``reload``, ``state``, ``audit`` and ``connections``."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from admin.client.api import Api, Fault, Reply, as_json, flag, path
from admin.client.errors import NotFoundError
from admin.client.limits import answer, batch, joined
from admin.client.words import change_lines, difference, moment, span, standing, target, until
from admin.live.model import Change, Persistence, ReloadReport, SwitchEntry
from admin.numbers import per_second
from admin.tables import Rows
from admin.wire import RejectionLog

_PAGE: Final = 500


class Switches(msgspec.Struct, frozen=True):
    """The switch for all, then that of each kind."""

    switches: tuple[SwitchEntry, ...]


class Trail(msgspec.Struct, frozen=True):
    """A page of the audit trail."""

    changes: tuple[Change, ...]
    next: int | None = None


class Client(msgspec.Struct, frozen=True):
    """What a client said of itself."""

    id: str = ""
    language: str = ""
    version: str = ""


class Connection(msgspec.Struct, frozen=True):
    """One open connection, as far as it is shown here."""

    id: int
    listener: str
    peer: str
    client: Client
    requests_total: int
    refused_total: int
    in_flight: int
    age_s: float = 0.0
    exempt: bool = False
    resources: tuple[str, ...] = ()
    more_resources: int = 0
    requests_per_s: float | None = None


class Connections(msgspec.Struct, frozen=True):
    """A page of the open connections."""

    rows: tuple[Connection, ...]
    total: int


def show_switches(api: Api, *, json: bool) -> str:
    """Say what is switched off."""
    reply = api.get(path("switches"))
    if json:
        return reply.json()
    return "\n".join(
        Rows(
            ("switch", "limiting", "configured", "edited"),
            (
                (
                    each.kind,
                    _on(each.limiting),
                    _on(each.configured),
                    standing(each.edit) if each.edit is not None else "",
                )
                for each in reply.read(Switches).switches
            ),
        )
        .used()
        .lines()
    )


def _on(limiting: bool) -> str:  # noqa: FBT001 - it is all that it takes
    return "on" if limiting else "OFF"


def switch(
    api: Api,
    kind: str,
    *,
    limiting: bool,
    reason: str,
    ttl_s: float | None,
    dry_run: bool,
    volatile: bool,
    json: bool,
) -> str:
    """Switch limiting off or on."""
    body = {"limiting": limiting, "reason": reason} | ({} if ttl_s is None else {"ttl_s": ttl_s})
    params = {"dry_run": dry_run, "volatile": volatile}
    reply = api.ask("PUT", path("switches", kind), params=params, body=body, name=_switch_word)
    return answer(reply, dry_run=dry_run, json=json)


def reset(api: Api, kind: str | None, *, reason: str, dry_run: bool, volatile: bool, json: bool) -> str:
    """Let one switch, or all of them, stand as configured.

    Raises:
        NotFoundError: they do already.
    """
    if kind is not None:
        params = {"dry_run": dry_run, "volatile": volatile, "reason": reason}
        reply = api.ask("DELETE", path("switches", kind), params=params, name=_switch_word)
        return answer(reply, dry_run=dry_run, json=json)
    switches = api.get(path("switches")).read(Switches).switches
    edits = [{"type": "unset_switch", "kind": each.kind} for each in switches if each.edit is not None]
    if not edits:
        raise NotFoundError("no switch is edited: all are as configured")
    reply = batch(api, edits, reason=reason, dry_run=dry_run, volatile=volatile)
    if json:
        return reply.json()
    changes = reply.read(Trail).changes
    return "\n".join(line for each in changes for line in change_lines(each, dry_run=dry_run))


def _switch_word(fault: Fault) -> str:
    word = flag(fault)
    return "--kind" if word == "KIND" else word


def reload(api: Api, *, dry_run: bool, json: bool) -> str:
    """Have the configuration read again."""
    reply = api.ask("POST", path("reload"), params={"dry_run": dry_run})
    return reply.json() if json else "\n".join(_reloaded(reply.read(ReloadReport), dry_run=dry_run))


def _reloaded(report: ReloadReport, *, dry_run: bool) -> Iterator[str]:
    yield from (f"{'would change' if dry_run else 'changed'}: {line}" for line in report.changed)
    yield from (f"needs a restart: {line}" for line in report.needs_restart)
    yield from (f"hidden by an edit: {line}" for line in report.hidden)
    yield from (f"warning: {line}" for line in report.warnings)
    if not report.changed:
        yield "nothing would change" if dry_run else "nothing changed"
    elif report.change is not None and not dry_run:
        yield f"change {report.change.id} by {report.change.by}"


def audit(api: Api, query: Mapping[str, Any], most: int, *, json: bool) -> str:
    """Show who changed what, the latest first."""
    replies: list[Reply] = []
    before: int | None = None
    left = most
    while left > 0:
        reply = api.get(path("audit"), {**query, "before": before, "limit": min(left, _PAGE)})
        replies.append(reply)
        page = reply.read(Trail)
        left -= len(page.changes)
        before = page.next
        if before is None or not page.changes:
            break
    changes = [each for reply in replies for each in reply.read(Trail).changes]
    if json:
        return replies[0].json() if len(replies) == 1 else as_json({"changes": changes, "next": before})
    if not changes:
        return "Nothing has been changed."
    return "\n".join(
        Rows(
            ("id", "when", "by", "from", "action", "what", "change", "until", "reason"),
            (
                (
                    str(each.id),
                    moment(each.at),
                    each.by,
                    each.address,
                    each.action if each.reverts is None else f"{each.action} of {each.reverts}",
                    target(each.target),
                    difference(each) if each.action != "reload" else "; ".join(each.details),
                    moment(each.expires_at) if each.expires_at else "",
                    each.reason,
                )
                for each in changes
            ),
            right=(0,),
        )
        .used()
        .lines()
    )


def revert(api: Api, change_id: int, *, reason: str, force: bool, dry_run: bool, json: bool) -> str:
    """Undo one change."""
    body = {"reason": reason, "force": force}
    reply = api.ask("POST", path("audit", change_id, "revert"), params={"dry_run": dry_run}, body=body)
    return answer(reply, dry_run=dry_run, json=json)


def connections(api: Api, query: Mapping[str, Any], most: int | None, *, json: bool) -> str:
    """List the open connections."""
    replies = list(api.pages(path("connections"), query, most))
    if json:
        return joined(replies, "rows")
    pages = [reply.read(Connections) for reply in replies]
    rows = [row for page in pages for row in page.rows]
    if not rows:
        return "Nobody is connected." if not query.get("search") else "Nothing matches."
    total = pages[-1].total
    table = Rows(
        ("id", "peer", "client", "listener", "open for", "requests", "refused", "in flight", "uses"),
        (
            (
                str(row.id),
                row.peer,
                " ".join(filter(None, (row.client.id, row.client.language, row.client.version))),
                row.listener + (" (exempt)" if row.exempt else ""),
                span(row.age_s),
                str(row.requests_total),
                str(row.refused_total),
                str(row.in_flight),
                ", ".join(row.resources) + (f" and {row.more_resources} more" if row.more_resources else ""),
            )
            for row in rows
        ),
        right=(0, 5, 6, 7),
    )
    lines = list(table.used().lines())
    if len(rows) < total:
        lines += ["", f"{len(rows)} of {total}; --limit N or --all shows more"]
    return "\n".join(lines)


def close(api: Api, connection_id: int, *, reason: str, json: bool) -> str:
    """Close one connection."""
    reply = api.ask("DELETE", path("connections", connection_id), params={"reason": reason})
    return reply.json() if json else f"connection {connection_id} is closed"


class _Listener(msgspec.Struct, frozen=True):
    name: str
    listen: str
    broker: str
    connections: int
    reachable: bool | None = None
    error: str | None = None


class _Bypass(msgspec.Struct, frozen=True):
    handler: str
    reason: str
    total: int


class _Bypassed(msgspec.Struct, frozen=True):
    total: int = 0
    per_s_last_60s: float = 0.0
    by: tuple[_Bypass, ...] = ()


class _Expiring(msgspec.Struct, frozen=True):
    target: str
    expires_at: str


class _Edits(msgspec.Struct, frozen=True):
    standing: int = 0
    expiring_next: _Expiring | None = None


class Rates(msgspec.Struct, frozen=True):
    """Messages a second of everything together."""

    passed: float = 0.0
    refused: float = 0.0
    shadowed: float = 0.0
    bypassed: float = 0.0


class _AllRates(msgspec.Struct, frozen=True):
    messages_per_s: Rates = Rates()


class _Totals(msgspec.Struct, frozen=True):
    connections: int = 0
    connections_open: int = 0


class State(msgspec.Struct, frozen=True):
    """How the sidecar is, as far as it is shown here."""

    version: str
    uptime_s: float
    limiting: bool
    off: tuple[str, ...] = ()
    draining: bool = False
    listeners: tuple[_Listener, ...] = ()
    totals: _Totals = _Totals()
    rates: _AllRates = _AllRates()
    bypassed: _Bypassed = _Bypassed()
    persistence: Persistence | None = None
    edits: _Edits = _Edits()
    instance: str = ""
    rejection_log: RejectionLog | None = None
    warnings: tuple[str, ...] = ()


def state(api: Api, *, json: bool) -> str:
    """Say how the sidecar is."""
    reply = api.get(path("state"))
    return reply.json() if json else "\n".join(_state(reply.read(State), api.url))


def _state(now: State, url: str) -> Iterator[str]:
    rates = now.rates.messages_per_s
    yield f"Sluice {now.version} at {url}, up for {span(now.uptime_s)}{', draining' if now.draining else ''}"
    if now.instance:
        yield f"instance     {now.instance}"
    yield f"limiting     {limiting(now)}"
    shadowed = f", {per_second(rates.shadowed)} would be refused" if rates.shadowed else ""
    yield f"messages/s   {per_second(rates.passed)} passed, {per_second(rates.refused)} refused{shadowed}"
    yield f"connections  {now.totals.connections_open} open, {now.totals.connections} since the start"
    for each in now.listeners:
        reached = {None: "not tried yet", True: "reachable", False: f"NOT REACHABLE: {each.error}"}[each.reachable]
        yield f"listener     {each.name}: {each.listen} -> {each.broker} ({reached}), {each.connections} open"
    by = ", ".join(f"{each.handler} {each.reason} {each.total}" for each in now.bypassed.by if each.total)
    yield f"bypassed     {now.bypassed.total} requests since the start{f' ({by})' if by else ''}"
    ending = now.edits.expiring_next
    soon = "" if ending is None else f"; {target(ending.target)} ends {until(ending.expires_at)}"
    yield f"edits        {now.edits.standing} stand{soon}"
    if (kept := now.persistence) is not None:
        yield f"kept in      {kept.directory or 'memory: edits are lost at the restart'}" + (
            f"; {kept.error}" if kept.error else ""
        )
        yield from (f"set aside    {file}" for file in kept.set_aside)
    if (log := now.rejection_log) is not None:
        yield f"recorded in  {log.directory or 'nothing: the rejection log is off'}" + (
            f"; {log.error}" if log.error else ""
        )
    yield from (f"warning      {line}" for line in now.warnings)


def limiting(now: State) -> str:
    """Say what is limited at all."""
    if not now.limiting or "all" in now.off:
        return "OFF: everything passes"
    return f"on, OFF for {', '.join(now.off)}" if now.off else "on"
