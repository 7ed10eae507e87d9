"""The API's endpoints. Each class is a chapter of the API, and each decorated method is an endpoint.

In the OpenAPI document, the method's name becomes the ``operationId``, and its docstring becomes the summary and the
description.
"""

from datetime import datetime
from typing import Final

import msgspec
import structlog
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from admin import wire
from admin.config.rule_fields import fields_of
from admin.edits import model
from admin.edits.export import export
from admin.http.api import requests
from admin.http.api.answers import Tagged, bad
from admin.http.api.document import document
from admin.http.api.events import Events
from admin.http.api.requests import (
    AuditQuery,
    Batch,
    DryRun,
    ExplainQuery,
    ExportQuery,
    FlowQuery,
    HistoryQuery,
    Id,
    Kind,
    LimitName,
    PageQuery,
    Parameters,
    PutSwitch,
    ResourceKind,
    ResourceName,
    Revert,
    RulesQuery,
    SwitchKind,
    Unset,
    Why,
    Write,
    check_kind,
    expected,
    read_body,
    read_edits,
    read_tags,
    tag_after,
)
from admin.http.api.routing import Api, endpoint
from admin.http.api.state import Services, Status
from admin.http.problems import NO_STORE
from admin.stats import ConnectionQuery, Query
from admin.wire import sentences
from limiter.rules.patterns import DEFAULT_PATTERN, glob_of
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.clock import write_time
from proxy.common.threads import on_thread
from proxy.stats.flow import Flow
from proxy.stats.question import Explanation, Question

_log = structlog.get_logger(__name__)

_A_LIMIT: Final = "/limits/{kind}/{name:path}"
_A_SWITCH: Final = "/switches/{kind}"
_WHY: Final = "the campaign starts"


def application(services: Services) -> Api:
    """Make the API. The guard must set ``author``, ``role`` and ``authentication`` in each request's state."""
    status = Status(services)
    chapters = (_Limits, _Switches, _Rules, _Audit, _Connections, _Resources, _Flow, _State)
    api = Api([each(services, status) for each in chapters])

    async def openapi(_: Request) -> Response:
        return JSONResponse(document(api), headers=NO_STORE)

    api.routes.append(Route("/openapi.json", openapi))
    return api


class _Chapter:
    """Base class for chapters. A subclass's docstring describes its chapter in the OpenAPI document."""

    def __init__(self, services: Services, status: Status) -> None:
        self._edits, self._stats, self._data_path = services.edits, services.stats, services.data_path
        self._services, self._status, self._clock = services, status, services.stats.clock
        self._events = Events(services, status)


class _Limits(_Chapter):
    """Limits, their usage, and live edits. The limit with the name `*` is the default of its kind."""

    @endpoint("GET", "/limits", tags="list")
    async def list_limits(self, _: Request, query: Query) -> Tagged[wire.LimitPage]:
        """List limits with their live figures.

        Returns all names that have their own rule, and all resources that have received requests. The response is never
        304, because live figures change constantly.
        """
        check_kind(query.kind, self._edits)
        page = await self._stats.query(query)
        return Tagged(page, page.etag)

    @endpoint("GET", _A_LIMIT, tags="read")
    async def get_limit(self, _: Request, __: Parameters, kind: Kind, name: LimitName) -> Tagged[model.LimitEntry]:
        """Read one limit.

        The name or pattern does not need to have its own rule.
        """
        found = self._entry(kind, name)
        return Tagged(found, found.etag)

    @endpoint(
        *("PUT", _A_LIMIT),
        body=requests.PutLimit,
        example={"rate": 1000, "burst_s": 2, "reason": _WHY, "ttl_s": 3600},
        tags="write",
    )
    async def set_limit(self, request: Request, query: Write, kind: Kind, name: LimitName) -> Tagged[model.Written]:
        """Edit a limit.

        Overrides the configured limit, permanently or for `ttl_s` seconds. The edit survives a restart unless it is
        volatile. If `fleet` is set, the edit is made atomically on all members of the fleet, and the response is 503
        if the fleet's Redis is unreachable.
        """
        limit, reason, ttl_s = requests.read_limit(await request.body())
        if_match = self._condition(request, kind, name)
        until = None if ttl_s is UNSET else ttl_s
        edit = model.SetLimit(kind=kind, name=name, limit=limit, reason=reason, ttl_s=until, if_match=if_match)
        return await self._write(request, edit, query)

    @endpoint(*("PATCH", _A_LIMIT), body=requests.PatchLimit, example={"rate": 1000, "reason": _WHY}, tags="write")
    async def patch_limit(self, request: Request, query: Write, kind: Kind, name: LimitName) -> Tagged[model.Written]:
        """Edit some fields of a limit.

        Changes the fields in the body and keeps all others, like a JSON merge patch. The fields to keep come from the
        active edit, or else from the configured rule for exactly this name, or else from the rule that applies to the
        name. `null` removes a field. Setting a rate removes `exempt`, and setting `exempt` removes the rate. If `ttl_s`
        is missing, the expiry of the active edit is kept. If `ttl_s` is `null`, the edit becomes permanent.
        """
        limit, reason, ttl_s = requests.read_limit(await request.body())
        if not limit and ttl_s is UNSET:
            raise bad("", "nothing to change; give ttl_s or a field of the limit")
        if_match = self._condition(request, kind, name)
        edit = model.PatchLimit(kind=kind, name=name, limit=limit, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await self._write(request, edit, query)

    @endpoint("POST", f"{_A_LIMIT}:reset")
    async def reset_limit(self, request: Request, query: Why, kind: Kind, name: LimitName) -> model.Change:
        """Reset a limit's buckets.

        Fills the buckets, clears debts, closes breakers, removes fair shares, and immediately checks held requests
        again. The limit itself does not change. An adaptive limit restarts without its history. If the name is a
        pattern, the buckets of all names to which its rule applies are reset.
        """
        return await self._edits.reset(kind, name, _author(request), reason=query.reason)

    @endpoint("DELETE", _A_LIMIT, tags="write")
    async def unset_limit(self, request: Request, query: Unset, kind: Kind, name: LimitName) -> Tagged[model.Written]:
        """Revert a limit to the configuration.

        Responds with 404 if the limit has no edit.
        """
        if_match = self._condition(request, kind, name)
        return await self._write(
            request, model.UnsetLimit(kind=kind, name=name, reason=query.reason, if_match=if_match), query
        )

    @endpoint(
        *("POST", "/limits:batch"),
        body=Batch,
        example={
            "edits": [
                {"type": "set_limit", "kind": "topic", "name": "orders", "limit": {"rate": 1000}},
                {"type": "unset_limit", "kind": "topic", "name": "audit-*"},
            ],
            "reason": _WHY,
        },
        tags="batch",
    )
    async def change_limits(self, request: Request, query: Write) -> wire.Changes:
        """Make multiple edits atomically.

        The edits are made in order, and each edit sees the results of the earlier ones. Errors name the edit and its
        field, for example `edits.2.limit.rate`.
        """
        edits = await read_edits(await request.body())
        tags = read_tags(request, "if-match")
        if_match = "" if tags is None or tags.any else tags.one_of(self._edits.etag)
        changes = await self._edits.change(
            edits,
            _author(request),
            dry_run=query.dry_run,
            volatile=query.volatile,
            fleet=query.fleet,
            if_match=if_match,
        )
        return wire.Changes(changes)

    @endpoint("GET", "/defaults", tags="read")
    async def list_defaults(self, _: Request, __: Parameters) -> Tagged[wire.Defaults]:
        """List the defaults.

        Returns each kind's limit for names that no other rule matches.
        """
        kinds = (switch.kind for switch in self._edits.switches() if switch.kind != model.ALL_KINDS)
        return Tagged(
            wire.Defaults(tuple(self._edits.limit(kind, DEFAULT_PATTERN) for kind in kinds)), self._edits.etag
        )

    @endpoint("GET", "/diff", tags="read")
    async def list_edits(self, _: Request, query: PageQuery) -> Tagged[wire.Drift]:
        """List the differences from the configuration.

        Returns every limit and switch that has an active edit.
        """
        limits, etag = self._edits.limits(), self._edits.etag
        edited = await on_thread(lambda: [each for each in limits if each.edit is not None])
        drift = wire.Drift(
            limits=tuple(edited[query.offset : query.offset + query.limit]),
            switches=tuple(switch for switch in self._edits.switches() if switch.edit is not None),
            total=len(edited),
            offset=query.offset,
            limit=query.limit,
            etag=etag,
        )
        return Tagged(drift, etag)

    @endpoint("GET", "/events", problems=(503,))
    async def follow_events(self, _: Request, query: Query) -> Response:
        """Follow the table of limits and the state.

        Streams server-sent events, each with one line of JSON. The first `limits` event is the response to `GET limits`
        with the same query. Later ones are sent once per second if something has changed. They contain the changed
        `rows`, the `order` of keys if it changed, and changed totals. A `state` event is the response to `GET state`.
        It is sent initially and whenever the state changes. A `change` event is sent for each change. A `bye` event
        means that Sluice is stopping and the stream ends.
        """
        check_kind(query.kind, self._edits)
        return self._events.follow(query)

    def _entry(self, kind: str, name: str) -> model.LimitEntry:
        if not name:
            raise bad("name", "missing; append it to the kind, as in /limits/topic/orders")
        return self._edits.limit(kind, name)

    def _condition(self, request: Request, kind: str, name: str) -> str | None:
        if not name:
            self._entry(kind, name)
        return expected(request, lambda: self._entry(kind, name))

    async def _write(
        self, request: Request, edit: model.SetLimit | model.PatchLimit | model.UnsetLimit, query: Write
    ) -> Tagged[model.Written]:
        (change,) = await self._edits.change(
            [edit], _author(request), dry_run=query.dry_run, volatile=query.volatile, fleet=query.fleet
        )
        after = self._edits.limit(edit.kind, edit.name)
        etag = tag_after(change, after)
        limit = None if query.dry_run or etag is None else after
        return Tagged(model.Written(**msgspec.structs.asdict(change), limit=limit), etag)


class _Switches(_Chapter):
    """Switches that turn limiting off and on, for everything or for one kind."""

    @endpoint("GET", "/switches", tags="read")
    async def list_switches(self, _: Request, __: Parameters) -> Tagged[wire.Switches]:
        """List the switches.

        The switch for everything comes first, then one for each kind.
        """
        return Tagged(wire.Switches(tuple(self._edits.switches())), self._edits.etag)

    @endpoint("GET", _A_SWITCH, tags="read")
    async def get_switch(self, _: Request, __: Parameters, kind: SwitchKind) -> Tagged[model.SwitchEntry]:
        """Read a switch.

        Returns whether limiting is on for one kind, or for everything.
        """
        found = self._entry(kind)
        return Tagged(found, found.etag)

    @endpoint(
        *("PUT", _A_SWITCH),
        body=PutSwitch,
        example={"limiting": False, "reason": "the broker is being moved", "ttl_s": 600},
        tags="write",
    )
    async def set_switch(self, request: Request, query: Write, kind: SwitchKind) -> Tagged[model.Change]:
        """Switch limiting off or on.

        The switch applies to everything or to one kind, permanently or for `ttl_s` seconds. While limiting is off,
        requests pass and are still counted.
        """
        body: PutSwitch = read_body(await request.body(), PutSwitch)
        if_match = expected(request, lambda: self._entry(kind))
        edit = model.SetSwitch(
            kind=kind, limiting=body.limiting, reason=body.reason, ttl_s=body.ttl_s, if_match=if_match
        )
        return await self._write(request, edit, query)

    @endpoint("DELETE", _A_SWITCH, tags="write")
    async def unset_switch(self, request: Request, query: Unset, kind: SwitchKind) -> Tagged[model.Change]:
        """Revert a switch to the configuration.

        Responds with 404 if the switch has no edit.
        """
        if_match = expected(request, lambda: self._entry(kind))
        return await self._write(request, model.UnsetSwitch(kind=kind, reason=query.reason, if_match=if_match), query)

    def _entry(self, kind: str) -> model.SwitchEntry:
        return self._edits.switch(kind)

    async def _write(
        self, request: Request, edit: model.SetSwitch | model.UnsetSwitch, query: Write
    ) -> Tagged[model.Change]:
        (change,) = await self._edits.change(
            [edit], _author(request), dry_run=query.dry_run, volatile=query.volatile, fleet=query.fleet
        )
        return Tagged(change, tag_after(change, self._entry(edit.kind)))


class _Rules(_Chapter):
    """The active rules, and the rules that apply to a request."""

    #: Cached: the rule set, the minute, the rules that apply in that minute, and the rules that do not.
    _ordered: tuple[RuleSet, datetime, tuple[Rule, ...], tuple[Rule, ...]] | None = None

    @endpoint("GET", "/rules", tags="read")
    async def list_rules(self, _: Request, query: RulesQuery) -> Tagged[wire.RulePage]:
        """List the active rules.

        Returns the rules in evaluation order: exact names, patterns, defaults, totals, and finally scheduled rules that
        do not apply now.
        """
        check_kind(query.kind, self._edits)
        etag = self._edits.etag
        page = await on_thread(self._page, query)
        # Scheduled rules start and stop applying without an edit, so the ETag includes them.
        hours = "".join(str(int(row.holds)) for row in page.rows if row.hours is not None)
        return Tagged(page, f"{etag}-{hours}" if hours else etag)

    def _page(self, query: RulesQuery) -> wire.RulePage:
        rule_set, minute = self._edits.rule_set, self._clock.utc().replace(second=0, microsecond=0)
        if self._ordered is None or self._ordered[:2] != (rule_set, minute):
            in_force = rule_set.at(minute)
            # Keep the order for requests for other pages, because sorting 50 000 rules takes 0.1 s.
            self._ordered = (rule_set, minute, in_force.tried, in_force.untried)
        *_, tried, untried = self._ordered
        rules = [*enumerate((*tried, *untried))]
        if query.kind:
            rules = [(position, rule) for position, rule in rules if rule.kind == query.kind]
        return wire.RulePage(
            rows=tuple(
                wire.RuleRow(
                    position=position,
                    kind=rule.kind,
                    pattern=rule.pattern,
                    shared=rule.shared,
                    rule=rule.name,
                    limit=fields_of(rule),
                    limit_text=rule.limit_text,
                    action=rule.shown_action,
                    hours=None if rule.hours is None else str(rule.hours),
                    source=rule.source,
                    holds=position < len(tried),
                )
                for position, rule in rules[query.offset : query.offset + query.limit]
            ),
            total=len(rules),
            offset=query.offset,
            limit=query.limit,
            rule_set_version=rule_set.version,
        )

    @endpoint("GET", "/export")
    async def export_limits(self, request: Request, query: ExportQuery) -> wire.Export:
        """Export the active limits as a configuration file.

        `sluice check` and `sluice limits apply` accept this file.
        """
        now, edits = self._clock.utc(), self._edits
        heading = f"{'Edited' if query.edits_only else 'Active'} limits of {request.url.netloc}, {write_time(now)}."

        def text() -> str:
            in_force = rule_set.at(now)
            rules = (*in_force.tried, *in_force.untried)
            return export(rules, limits, switches, heading=heading, edits_only=query.edits_only)

        limits, switches, rule_set = edits.limits(), edits.switches(), edits.rule_set
        return wire.Export(await on_thread(text))

    @endpoint("GET", "/explain")
    async def explain(self, _: Request, query: ExplainQuery) -> Explanation:
        """Explain which limits apply to a request.

        Returns the limits in evaluation order, each with its live state.
        """
        explanation = await self._data_path.explain(Question(**msgspec.structs.asdict(query)))
        if query.at:
            return sentences.explained(explanation, live=False)
        adaptive = await self._data_path.adaptive()
        fleet = await self._data_path.fleet() if any(each.limit.fleet for each in explanation.limits) else None
        return sentences.explained(explanation, live=True, adaptive=adaptive, fleet=fleet)


class _Audit(_Chapter):
    """The history of changes, each of which can be undone."""

    @endpoint("GET", "/audit")
    async def list_changes(self, _: Request, query: AuditQuery) -> wire.AuditPage:
        """Read the audit trail.

        The latest change comes first. To get the next page, pass `next` from the response as `before`.
        """
        # Read one additional row to find out whether there is another page.
        found = await self._edits.audit(before=query.before, target=query.target, by=query.by, limit=query.limit + 1)
        shown = found[: query.limit]
        return wire.AuditPage(shown, shown[-1].id if len(found) > len(shown) else None)

    @endpoint("GET", "/audit/{id}")
    async def get_change(self, _: Request, __: Parameters, change_id: Id) -> model.Change:
        """Read one change.

        Returns the change as it appears in the audit trail.
        """
        found = await self._edits.audit(before=change_id + 1, limit=1)
        if not found or found[0].id != change_id:
            raise model.MissingError(
                f"change {change_id} does not exist, or is so old that the audit trail no longer contains it"
            )
        return found[0]

    @endpoint(
        *("POST", "/audit/{id}/revert"), body=Revert, example={"reason": "too much after all"}, problems=(409, 503, 507)
    )
    async def revert_change(self, request: Request, query: DryRun, change_id: Id) -> model.Change:
        """Undo a change.

        Restores the state before the change. An edit that was made on all members of a fleet is undone on all of them.
        Responds with 409 if a later change has the same target, unless `force` is set.
        """
        body: Revert = read_body(await request.body() or b"{}", Revert)
        return await self._edits.revert(
            change_id, _author(request), reason=body.reason, force=body.force, dry_run=query.dry_run
        )

    @endpoint("POST", "/reload", problems=(409,))
    async def reload_configuration(self, request: Request, query: DryRun) -> model.ReloadReport:
        """Reload the configuration.

        If the configuration is invalid, nothing changes. The response lists the settings that changed, and those that
        need a restart.
        """
        return await self._edits.reload(_author(request), dry_run=query.dry_run)


class _Connections(_Chapter):
    """Open connections."""

    @endpoint("GET", "/connections")
    async def list_connections(self, _: Request, query: ConnectionQuery) -> wire.ConnectionPage:
        """List the open connections.

        Rates are sampled every five seconds while clients request them.
        """
        return await self._stats.connections.page(query)

    @endpoint("DELETE", "/connections/{id}")
    async def close_connection(self, request: Request, query: Why, connection: Id) -> wire.ClosedConnection:
        """Close a connection.

        The client will probably reconnect.
        """
        author = _author(request)
        reason = f"{author.name}: {query.reason}" if query.reason else author.name
        if not await self._data_path.close_connection(connection, reason):
            raise model.MissingError(f"connection {connection} is not open")
        self._stats.connections.forget(connection)
        _log.info(
            "connection closed", connection=connection, by=author.name, address=author.address, reason=query.reason
        )
        return wire.ClosedConnection(connection)


class _Resources(_Chapter):
    """A resource's last hour, and the latest report's recommendation for it."""

    @endpoint("GET", "/history/{kind}/{name:path}")
    async def get_history(
        self, _: Request, query: HistoryQuery, kind: ResourceKind, name: ResourceName
    ) -> wire.ResourceHistory:
        """Read the last hour of a resource.

        Returns passed, refused and held messages over time, together with the limit and the refused clients. The data
        comes from the rejection log, which lags by ten seconds. Only the latest 64 MiB of the log are read.
        """
        check_kind(kind, self._edits)
        return await self._services.history.of(Resource(kind, name), query.seconds)

    @endpoint("GET", "/advice/{kind}/{name:path}")
    async def get_advice(
        self, _: Request, __: Parameters, kind: ResourceKind, name: ResourceName
    ) -> wire.ResourceAdvice:
        """Read the latest report's recommendation for a resource.

        Reads the file that the setting `report.recommendations` names.
        """
        check_kind(kind, self._edits)
        entry = self._edits.limit(kind, glob_of(name))
        return await self._services.advice.about(Resource(kind, name), entry)


class _Flow(_Chapter):
    """Bottlenecks, alarms, adaptive limits, the fleet, and the spool."""

    @endpoint("GET", "/flow")
    async def get_flow(self, _: Request, query: FlowQuery) -> Flow:
        """Find bottlenecks.

        Returns the bottlenecks, the number of stages in each state, waiting connections, alarms, the state of the
        spool's disk, and how messages to destinations with `confirm = "after_consume"` are confirmed.
        """
        return sentences.flow(await self._data_path.flow(query.limit))

    @endpoint("GET", "/adaptive")
    async def list_adaptive(self, _: Request, __: Parameters) -> wire.AdaptiveLimits:
        """List the adaptive limits.

        For each listener with an adaptive rule, returns the current limit, the broker's latency, the names with the
        largest demand, and a history of the last ten minutes with one point per second.
        """
        return wire.AdaptiveLimits(sentences.adaptive(await self._data_path.adaptive()))

    @endpoint("GET", "/fleet")
    async def get_fleet(self, _: Request, __: Parameters) -> wire.FleetAnswer:
        """Show the fleet.

        Returns the members and when each one last contacted Redis, the limits with the largest demand, this member's
        share of each limit, and how long Redis has been unreachable. Waits for Redis for up to one second.
        """
        fleet = await self._data_path.fleet()
        return wire.FleetAnswer(None if fleet is None else sentences.of_fleet(fleet))

    @endpoint("GET", "/spool")
    async def get_spool(self, _: Request, query: FlowQuery) -> wire.Spool:
        """Show the spool.

        Returns message and byte counts for each storage location, in total and for the resources with the most
        messages.
        """
        return sentences.spool(wire.Spool(self._services.spool(), await self._data_path.spool(query.limit)))

    @endpoint("DELETE", "/spool/{kind}/{name:path}", problems=(409,))
    async def purge_spool(
        self, request: Request, query: Why, kind: ResourceKind, name: ResourceName
    ) -> wire.PurgedSpool:
        """Purge the spooled messages of one resource.

        Messages whose senders are waiting for a response are refused, and all others are dropped. The audit trail
        records the purge. Responds with 409 if there is no spool.
        """
        purged, change = await self._edits.purge(kind, name, _author(request), reason=query.reason)
        return wire.PurgedSpool(kind=kind, name=name, refused=purged.refused, dropped=purged.dropped, change=change.id)


class _State(_Chapter):
    """The state of the sidecar."""

    @endpoint("GET", "/state")
    async def get_state(self, _: Request, __: Parameters) -> wire.State:
        """Read the state of the sidecar.

        Returns listeners and their brokers, traffic, bypassed and held requests, and where edits are stored.
        """
        return await self._status.state()

    @endpoint("GET", "/whoami")
    async def get_caller(self, request: Request, _: Parameters) -> wire.WhoAmI:
        """Identify the caller.

        Returns the name and role of the caller's token.
        """
        author, known = _author(request), request.state
        return wire.WhoAmI(author.name, known.role, author.address, authentication=known.authentication)


def _author(request: Request) -> model.Author:
    author: model.Author = request.state.author
    return author
