"""``sluice switch``, ``reload``, ``state``, ``audit`` and ``connections``."""

from collections.abc import Iterator, Mapping
from typing import Any

from admin.client import NotFoundError
from admin.client.api import Api, Reply, as_json, path
from admin.client.limits import batch, layout, listed
from admin.client.words import change_lines, moment, standing, until
from admin.common.columns import CONNECTIONS, LINKS
from admin.common.numbers import per_second, span
from admin.edits.model import Change, ReloadReport
from admin.edits.wording import difference, target
from admin.wire import MAX_PAGE, AuditPage, Changes, State, Switches


def show_switches(api: Api, *, json: bool) -> str:
    """Show the switches."""
    reply = api.get(path("switches"))
    if json:
        return reply.json()
    rows = (
        (each.kind, _on(each.limiting), _on(each.configured), standing(each.edit) if each.edit is not None else "")
        for each in reply.read(Switches).switches
    )
    return layout(("switch", "limiting", "configured", "edited"), rows)


def _on(limiting: bool) -> str:  # noqa: FBT001 - it is all that it takes
    return "on" if limiting else "OFF"


def reset_all(api: Api, *, reason: str, dry_run: bool, volatile: bool, json: bool) -> str:
    """Set all switches as configured.

    Raises:
        NotFoundError: they are already.
    """
    switches = api.get(path("switches")).read(Switches).switches
    edits = [{"type": "unset_switch", "kind": each.kind} for each in switches if each.edit is not None]
    if not edits:
        raise NotFoundError("no switch is edited: all are as configured")
    reply = batch(api, edits, reason=reason, dry_run=dry_run, volatile=volatile)
    if json:
        return reply.json()
    changes = reply.read(Changes).changes
    return "\n".join(line for each in changes for line in change_lines(each, dry_run=dry_run))


def reload(api: Api, *, dry_run: bool, json: bool) -> str:
    """Reload the configuration."""
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
        reply = api.get(path("audit"), {**query, "before": before, "limit": min(left, MAX_PAGE)})
        replies.append(reply)
        page = reply.read(AuditPage)
        left -= len(page.changes)
        before = page.next
        if before is None or not page.changes:
            break
    changes = [each for reply in replies for each in reply.read(AuditPage).changes]
    if json:
        return replies[0].json() if len(replies) == 1 else as_json({"changes": changes, "next": before})
    if not changes:
        return "Nothing has been changed."
    columns = ("id", "when", "by", "from", "action", "what", "change", "until", "reason")
    return layout(columns, map(_audited, changes), right=(0,))


def _audited(change: Change) -> tuple[str, ...]:
    return (
        str(change.id),
        moment(change.at),
        change.by,
        change.address,
        change.action if change.reverts is None else f"{change.action} of {change.reverts}",
        target(change.target),
        "; ".join(change.details) if change.action in {"reload", "reset", "purge"} else difference(change),
        moment(change.expires_at) if change.expires_at else "",
        change.reason,
    )


def connections(api: Api, query: Mapping[str, Any], most: int | None, *, json: bool) -> str:
    """List the open connections."""
    nothing = "Nothing matches." if query.get("search") else "Nobody is connected."
    return listed(api, "connections", query, most, columns=CONNECTIONS, nothing=nothing, json=json)


def links(api: Api, query: Mapping[str, Any], most: int | None, *, json: bool) -> str:
    """List the links of open connections; ``most`` connections."""
    columns = [column for column in CONNECTIONS if column.name in {"id", "peer"}] + list(LINKS)
    nothing = "No link is attached."
    return listed(api, "connections", query, most, columns=columns, nothing=nothing, json=json, rows_of=_links_of)


def _links_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    links = list(row.get("links", ()))
    if more := row.get("more_links"):
        links.append({"name": f"and {more} more"})
    return [{"id": row["id"], "peer": row["peer"], **link} for link in links]


def close(api: Api, connection_id: int, *, reason: str, json: bool) -> str:
    """Close one connection."""
    reply = api.ask("DELETE", path("connections", connection_id), params={"reason": reason})
    return reply.json() if json else f"connection {connection_id} is closed"


def state(api: Api, *, json: bool) -> str:
    """Show the state of the sidecar."""
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
        if each.backup and each.reachable:
            reached = "; ".join((f"backup {each.backup} of {each.backups}", *each.passed_over))
        waits = "" if each.listening or now.draining else ", not listening until it answers"
        yield f"listener     {each.name}: {each.listen} -> {each.broker} ({reached}{waits}), {each.connections} open"
    by = ", ".join(f"{each.handler} {each.reason} {each.total}" for each in now.bypassed.by if each.total)
    yield f"bypassed     {now.bypassed.total} requests since the start{f' ({by})' if by else ''}"
    ending = now.edits.expiring_next
    soon = "" if ending is None else f"; {target(ending.target)} ends {until(ending.expires_at)}"
    yield f"edits        {now.edits.standing} stand{soon}"
    kept, log = now.persistence, now.rejection_log
    yield f"kept in      {kept.directory or 'memory: edits are lost at the restart'}{_but(kept.error)}"
    yield from (f"set aside    {file}" for file in kept.set_aside)
    yield f"recorded in  {log.directory or 'nothing: the rejection log is off'}{_but(log.error)}"
    if (failed := now.failed_reload) is not None:
        yield f"reload       FAILED by {failed.by}, {moment(failed.at)}: what was in force still is"
        yield from (f"             {line}" for line in failed.problems)
    if now.spool.directory or now.spool.error:
        yield f"spooled in   {now.spool.directory or 'nothing'}{_but(now.spool.error)}"
    yield from (f"ALARM        {alarm.scarce}: {alarm.text}" for alarm in now.alarms if alarm.stands)
    yield from (f"warning      {line}" for line in now.warnings)


def _but(error: str | None) -> str:
    return f"; {error}" if error else ""


def limiting(now: State) -> str:
    """Say what is limited."""
    if not now.limiting or "all" in now.off:
        return "OFF: everything passes"
    return f"on, OFF for {', '.join(now.off)}" if now.off else "on"
