"""All that can be asked of the API: a class for each resource, with a method for each endpoint.

A method's name is the ``operationId`` of the OpenAPI document, and its docstring the summary and the description there.
The first argument is the request, the second the query, and the others are the values of the path.
"""

from dataclasses import replace

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.config.rule_fields import fields_of
from admin.edits.model import (
    ALL_KINDS,
    Author,
    EditError,
    EditProblem,
    LimitEntry,
    NotFoundError,
    PatchLimit,
    SetLimit,
    SetSwitch,
    SwitchEntry,
    UnsetLimit,
    UnsetSwitch,
    Written,
)
from admin.http.api import examples, requests
from admin.http.api.answers import NO_STORE, answer, bad, encode_page, encoded, unchanged
from admin.http.api.document import document
from admin.http.api.events import Events, event
from admin.http.api.requests import (
    AuditQuery,
    Close,
    ConnectionsQuery,
    DryRun,
    ExplainQuery,
    FlowQuery,
    HistoryQuery,
    IdPath,
    KindPath,
    LimitPath,
    LimitsQuery,
    Nothing,
    PageQuery,
    ProblemPath,
    Purge,
    Reset,
    ResourcePath,
    RulesQuery,
    SwitchPath,
    Unset,
    Write,
    board_query,
    check_kind,
    expected,
    has_it,
    is_conditional,
    left_by,
    one_of,
    read_tags,
)
from admin.http.api.routing import Body, endpoint, serve
from admin.http.api.state import Services, Status, flow_of
from admin.stats import ConnectionQuery
from admin.wire import (
    PROBLEM_TYPES,
    AuditPage,
    Changes,
    ClosedConnection,
    Defaults,
    Drift,
    ProblemTypes,
    PurgedSpool,
    RulePage,
    RuleRow,
    Spool,
    Switches,
    WhoAmI,
    sentences,
    usual_type,
)
from limiter.rules.patterns import DEFAULT_PATTERN, glob_of
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from proxy.common.cooperative import Pace
from proxy.stats.question import Question

_log = structlog.get_logger(__name__)

_WRITTEN = "The change, and the limit now in force. For a dry run: what would change, with the id 0."
_CHANGED = "The change. For a dry run: what would change, with the id 0."
_AS_OF_THE_PATTERN = "The same as editing the limit of the name `*`."
_A_LIMIT = "/limits/{kind}/{name:path}"
_A_DEFAULT = "/defaults/{kind}"
_A_SWITCH = "/switches/{kind}"


def application(services: Services) -> Starlette:
    """Make the application, to be mounted at ``/api/v1``.

    Its requests come from the guard, with ``author``, ``role`` and ``authentication`` in their state.
    """
    status = Status(services)
    app = serve(
        _Limits(services, status),
        _Switches(services),
        _Rules(services),
        _Audit(services),
        _Connections(services),
        _Resources(services),
        _Flow(services),
        _State(status),
    )

    async def openapi(_: Request) -> Response:
        return answer(document(app))

    route = Route("/openapi.json", openapi)
    # As of every other path: without HEAD.
    route.methods = {"GET"}
    app.routes.append(route)
    return app


class _Limits:
    """What is limited, and live edits of it. A default is the limit of the name ``*``."""

    tag = "limits"

    def __init__(self, services: Services, status: Status) -> None:
        self._live, self._board = services.live, services.board
        self._events = Events(services, status)

    @endpoint("GET", "/limits", "Some rows of the table.", examples.PAGE, tags="list")
    async def list_limits(self, _: Request, query: LimitsQuery) -> Response:
        """List limits with their live figures.

        All limits with a rule of their own, and all resources that had requests. The ETag is that of all limits and
        switches together. The live figures change all the time, so the list is always sent.
        """
        page = await self._board.query(board_query(query, self._live))
        response = encoded(await encode_page(page, "rows"), etag=page.etag)
        response.headers.update(NO_STORE)
        return response

    @endpoint("GET", _A_LIMIT, "The limit.", examples.LIMIT, in_path=LimitPath, tags="read")
    async def get_limit(self, request: Request, _: Nothing, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        """Read one limit.

        For any name or pattern, with or without a rule of its own.
        """
        found = self._entry(kind, name)
        return unchanged(found.etag) if has_it(request, found.etag) else answer(found, etag=found.etag)

    @endpoint(
        *("PUT", _A_LIMIT, _WRITTEN, examples.WRITTEN),
        in_path=LimitPath,
        body=Body("PutLimit", "The whole limit.", examples.PUT_LIMIT),
        tags="write",
    )
    async def set_limit(self, request: Request, query: Write, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        """Edit a limit.

        Overrides the configuration's limit, permanently or for `ttl_s` seconds. The edit survives a restart, unless
        it is volatile.
        """
        limit, reason, ttl_s = await requests.read_limit(request)
        if_match = self._condition(request, kind, name)
        edit = SetLimit(kind=kind, name=name, limit=limit, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await self._write(request, edit, query)

    @endpoint(
        *("PATCH", _A_LIMIT, _WRITTEN, examples.WRITTEN),
        in_path=LimitPath,
        body=Body("PatchLimit", "The fields to change.", examples.PATCH_LIMIT),
        tags="write",
    )
    async def patch_limit(self, request: Request, query: Write, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        """Edit some fields of a limit.

        Changes the fields in the body and keeps the others (a JSON merge patch). The others come from the active
        edit; if there is none, from the configuration's rule of exactly this name; if there is none, from the rule in
        force for the name. `null` removes a field. An edit that expires still does, unless `ttl_s` is given; `null`
        makes it permanent. A rate replaces `exempt`, and `exempt` replaces a rate.
        """
        limit, reason, ttl_s = await requests.read_patch(request)
        if_match = self._condition(request, kind, name)
        edit = PatchLimit(kind=kind, name=name, limit=limit, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await self._write(request, edit, query)

    @endpoint("POST", f"{_A_LIMIT}:reset", "What was cleared: `details`.", examples.RESET, in_path=LimitPath)
    async def reset_limit(self, request: Request, query: Reset, kind: str, name: str) -> Response:
        """Reset the buckets of a limit.

        Fills the buckets, clears debts, open breakers and fair shares, and decides about held requests at once. The
        limit itself does not change. A pattern resets the buckets of all names for which its rule is in force; 404 if
        there is no such rule.
        """
        return answer(await self._live.reset(kind, name, _author(request), reason=query.reason))

    @endpoint("DELETE", _A_LIMIT, _WRITTEN, examples.WRITTEN, in_path=LimitPath, tags="write")
    async def unset_limit(self, request: Request, query: Unset, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        """Revert a limit to the configuration.

        404 if no edit stands.
        """
        if_match = self._condition(request, kind, name)
        edit = UnsetLimit(kind=kind, name=name, reason=query.reason, if_match=if_match)
        return await self._write(request, edit, query)

    @endpoint(
        *("POST", "/limits:batch", "The changes, one for each edit.", Changes((examples.CHANGE,))),
        body=Body("Batch", "The edits.", examples.BATCH),
        tags="batch",
    )
    async def change_limits(self, request: Request, query: Write) -> Response:
        """Make several edits, all or none.

        In order; each sees the ones before it. Errors name the field of the edit: `edits.2.limit.rate`.
        """
        edits = await requests.read_edits(request)
        tags = read_tags(request, "if-match")
        if_match = "" if tags is None or tags.any else one_of(tags, self._live.etag)
        changes = await self._live.change(
            edits, _author(request), dry_run=query.dry_run, volatile=query.volatile, if_match=if_match
        )
        return encoded(await encode_page(Changes(changes), "changes"))

    @endpoint("GET", "/defaults", "One for each kind.", Defaults((examples.LIMIT,)), tags="read")
    async def list_defaults(self, request: Request, _: Nothing) -> Response:
        """List the defaults.

        For each kind, the limit of every name that no other rule matches.
        """
        etag = self._live.etag
        if has_it(request, etag):
            return unchanged(etag)
        kinds = (switch.kind for switch in self._live.switches() if switch.kind != ALL_KINDS)
        return answer(Defaults(tuple(self._live.limit(kind, DEFAULT_PATTERN) for kind in kinds)), etag=etag)

    get_default = replace(
        get_limit,
        path=_A_DEFAULT,
        in_path=KindPath,
        summary="Read a default",
        description="The same as the limit of the name `*`.",
    )
    set_default = replace(
        set_limit, path=_A_DEFAULT, in_path=KindPath, summary="Edit a default", description=_AS_OF_THE_PATTERN
    )
    patch_default = replace(
        patch_limit,
        path=_A_DEFAULT,
        in_path=KindPath,
        summary="Edit some fields of a default",
        description=_AS_OF_THE_PATTERN,
    )
    unset_default = replace(
        unset_limit, path=_A_DEFAULT, in_path=KindPath, summary="Revert a default to the configuration"
    )

    @endpoint("GET", "/diff", "What has an edit.", examples.DRIFT, tags="read")
    async def list_edits(self, request: Request, query: PageQuery) -> Response:
        """List the differences from the configuration.

        Every limit and switch with an edit.
        """
        etag = self._live.etag
        if has_it(request, etag):
            return unchanged(etag)
        pace = Pace()
        edited = []
        for each in self._live.limits():
            if each.edit is not None:
                edited.append(each)
            await pace.keep()
        drift = Drift(
            limits=tuple(edited[query.offset : query.offset + query.limit]),
            switches=tuple(switch for switch in self._live.switches() if switch.edit is not None),
            total=len(edited),
            offset=query.offset,
            limit=query.limit,
            etag=etag,
        )
        return encoded(await encode_page(drift, "limits"), etag=etag)

    @endpoint(
        *("GET", "/events", "Events until the client leaves."),
        event("change", msgspec.json.encode(examples.CHANGE)).decode(),
        problems=(503,),
    )
    async def follow_events(self, _: Request, query: LimitsQuery) -> Response:
        """Follow the table and the state.

        Server-sent events, each with one line of JSON. `limits`: first the answer of `GET limits` to the same query,
        then, once per second, `rows` with the members that changed, the `order` of keys if it changed, and the totals.
        `state`: the answer of `GET state`, at first and when it changes. `change`: each change when it is made. `bye`:
        Sluice is stopping, and the stream ends.
        """
        return self._events.follow(query)

    def _entry(self, kind: str, name: str) -> LimitEntry:
        if not name:
            raise bad("name", "missing; write it behind the kind: /limits/topic/orders")
        return self._live.limit(kind, name)

    def _condition(self, request: Request, kind: str, name: str) -> str | None:
        # Without one, what is there now is not looked at: who makes the change checks kind and name.
        if name and not is_conditional(request):
            return None
        return expected(request, self._entry(kind, name))

    async def _write(self, request: Request, edit: SetLimit | PatchLimit | UnsetLimit, query: Write) -> Response:
        (change,) = await self._live.change([edit], _author(request), dry_run=query.dry_run, volatile=query.volatile)
        after = self._live.limit(edit.kind, edit.name)
        etag = left_by(change, after)
        written = Written(**msgspec.structs.asdict(change), limit=None if query.dry_run or etag is None else after)
        return answer(written, etag=etag)


class _Switches:
    """Limiting off and on, of everything or of one kind."""

    tag = "switches"

    def __init__(self, services: Services) -> None:
        self._live = services.live

    @endpoint("GET", "/switches", "All switches.", Switches((examples.SWITCH,)), tags="read")
    async def list_switches(self, request: Request, _: Nothing) -> Response:
        """List the switches.

        First the switch for everything, then one for each kind.
        """
        etag = self._live.etag
        return unchanged(etag) if has_it(request, etag) else answer(Switches(tuple(self._live.switches())), etag=etag)

    @endpoint("GET", _A_SWITCH, "The switch.", examples.SWITCH, in_path=SwitchPath, tags="read")
    async def get_switch(self, request: Request, _: Nothing, kind: str) -> Response:
        """Read a switch.

        Whether one kind, or `all`, is limited.
        """
        found = self._entry(kind)
        return unchanged(found.etag) if has_it(request, found.etag) else answer(found, etag=found.etag)

    @endpoint(
        *("PUT", _A_SWITCH, _CHANGED, examples.CHANGE),
        in_path=SwitchPath,
        body=Body("PutSwitch", "Off or on.", examples.PUT_SWITCH),
        tags="write",
    )
    async def set_switch(self, request: Request, query: Write, kind: str) -> Response:
        """Switch limiting off or on.

        For everything or for one kind, permanently or for `ttl_s` seconds. While limiting is off, requests pass and
        are still counted.
        """
        limiting, reason, ttl_s = await requests.read_switch(request)
        if_match = expected(request, self._entry(kind))
        edit = SetSwitch(kind=kind, limiting=limiting, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await self._write(request, edit, query)

    @endpoint("DELETE", _A_SWITCH, _CHANGED, examples.CHANGE, in_path=SwitchPath, tags="write")
    async def unset_switch(self, request: Request, query: Unset, kind: str) -> Response:
        """Revert a switch to the configuration.

        404 if no edit stands.
        """
        edit = UnsetSwitch(kind=kind, reason=query.reason, if_match=expected(request, self._entry(kind)))
        return await self._write(request, edit, query)

    def _entry(self, kind: str) -> SwitchEntry:
        switches = self._live.switches()
        for each in switches:
            if each.kind == kind:
                return each
        raise EditError((EditProblem("kind", self._live.reader.no_kind(kind, [each.kind for each in switches])),))

    async def _write(self, request: Request, edit: SetSwitch | UnsetSwitch, query: Write) -> Response:
        (change,) = await self._live.change([edit], _author(request), dry_run=query.dry_run, volatile=query.volatile)
        return answer(change, etag=left_by(change, self._entry(edit.kind)))


class _Rules:
    """The rules in force, and why a request is limited as it is."""

    tag = "rules"

    def __init__(self, services: Services) -> None:
        self._live, self._data_path = services.live, services.data_path
        self._clock = services.board.clock

    @endpoint("GET", "/rules", "Some rules.", examples.RULES, tags="read")
    async def list_rules(self, request: Request, query: RulesQuery) -> Response:
        """List the rules in force.

        In the order in which they are tried: exact names, patterns, defaults, totals; last the rules whose hours have
        not come.
        """
        check_kind(query.kind, self._live)
        etag = self._live.etag
        rule_set = self._live.rule_set
        # With hours, which rules hold changes although nobody changes anything.
        if has_it(request, etag) and not any(rule.hours for rule in rule_set.rules):
            return unchanged(etag)
        in_force = rule_set.at(self._clock.utc())
        tried = in_force.tried
        pace = Pace()
        chosen: list[tuple[int, Rule]] = []
        for position, rule in enumerate((*tried, *in_force.untried)):
            if not query.kind or rule.kind == query.kind:
                chosen.append((position, rule))
            await pace.keep()
        page = RulePage(
            rows=tuple(
                RuleRow(
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
                for position, rule in chosen[query.offset : query.offset + query.limit]
            ),
            total=len(chosen),
            offset=query.offset,
            limit=query.limit,
            rule_set_version=rule_set.version,
        )
        return encoded(await encode_page(page, "rows"), etag=etag)

    @endpoint("GET", "/explain", "What limits it.", examples.EXPLANATION)
    async def explain(self, _: Request, query: ExplainQuery) -> Response:
        """Explain the limits of a request.

        The limits of the request in the order in which they are asked, each with its live state.
        """
        explanation = await self._data_path.explain(Question(**query.model_dump()))
        return answer(sentences.explained(explanation, live=not query.at))


class _Audit:
    """Who changed what, when and why; and undoing it."""

    tag = "audit"

    def __init__(self, services: Services) -> None:
        self._live = services.live

    @endpoint("GET", "/audit", "Some changes.", AuditPage((examples.CHANGE,), 17))
    async def list_changes(self, _: Request, query: AuditQuery) -> Response:
        """Read the audit trail.

        Latest change first. To get the next page, send `next` as `before`.
        """
        # One more than is shown says whether there is another page.
        found = await self._live.audit(before=query.before, target=query.target, by=query.by, limit=query.limit + 1)
        shown = found[: query.limit]
        page = AuditPage(shown, shown[-1].id if len(found) > len(shown) else None)
        return encoded(await encode_page(page, "changes"))

    @endpoint("GET", "/audit/{id}", "The change.", examples.CHANGE, in_path=IdPath)
    async def get_change(self, _: Request, __: Nothing, change_id: int) -> Response:
        """Read one change.

        As the audit trail has it.
        """
        found = await self._live.audit(before=change_id + 1, limit=1)
        if not found or found[0].id != change_id:
            raise NotFoundError(f"there is no change {change_id}")
        return answer(found[0])

    @endpoint(
        *("POST", "/audit/{id}/revert", _CHANGED, examples.CHANGE),
        in_path=IdPath,
        body=Body("Revert", "Why.", examples.REVERT, required=False),
        problems=(409, 507),
    )
    async def revert_change(self, request: Request, query: DryRun, change_id: int) -> Response:
        """Undo a change.

        Restores what was in force before. 409 if it was changed again since, unless `force`.
        """
        reason, force = await requests.read_revert(request)
        return answer(
            await self._live.revert(change_id, _author(request), reason=reason, force=force, dry_run=query.dry_run)
        )

    @endpoint("POST", "/reload", "What it did, or would do.", examples.RELOAD, problems=(409,))
    async def reload_configuration(self, request: Request, query: DryRun) -> Response:
        """Reload the configuration.

        An invalid configuration changes nothing. The answer says what changed and what needs a restart.
        """
        return answer(await self._live.reload(_author(request), dry_run=query.dry_run))


class _Connections:
    """The open connections, and closing one."""

    tag = "connections"

    def __init__(self, services: Services) -> None:
        self._data_path, self._connections = services.data_path, services.board.connections

    @endpoint("GET", "/connections", "Some connections.", examples.CONNECTIONS)
    async def list_connections(self, _: Request, query: ConnectionsQuery) -> Response:
        """List the open connections.

        With their rates, which are taken every five seconds while somebody looks.
        """
        return encoded(await encode_page(await self._connections.page(ConnectionQuery(**dict(query))), "rows"))

    @endpoint("DELETE", "/connections/{id}", "It is closed.", ClosedConnection(41), in_path=IdPath)
    async def close_connection(self, request: Request, query: Close, connection: int) -> Response:
        """Close a connection.

        Its client will probably connect again.
        """
        author = _author(request)
        reason = f"{author.name}: {query.reason}" if query.reason else author.name
        if not await self._data_path.close_connection(connection, reason):
            raise NotFoundError(f"there is no open connection {connection}")
        self._connections.forget(connection)
        _log.info(
            "connection closed", connection=connection, by=author.name, address=author.address, reason=query.reason
        )
        return answer(ClosedConnection(connection))


class _Resources:
    """One resource: what became of it lately, and what a report recommends."""

    tag = "resources"

    def __init__(self, services: Services) -> None:
        self._live, self._history, self._advice = services.live, services.history, services.advice

    @endpoint("GET", "/history/{kind}/{name:path}", "Its past.", examples.RESOURCE_HISTORY, in_path=ResourcePath)
    async def get_history(self, _: Request, query: HistoryQuery, kind: str, name: str) -> Response:
        """Read the last hour of a resource.

        From the rejection log, which is ten seconds behind: messages passed, refused and held, and the limit, over
        time; and whose requests were refused. At most 64 MiB of the log are read, the latest first; `cut` says that
        this was not all. An answer is given again for five seconds.
        """
        check_kind(kind, self._live)
        return encoded(msgspec.json.encode(await self._history.of(Resource(kind, name), query.seconds)))

    @endpoint("GET", "/advice/{kind}/{name:path}", "What is recommended.", examples.ADVICE, in_path=ResourcePath)
    async def get_advice(self, _: Request, __: Nothing, kind: str, name: str) -> Response:
        """Read what the newest report recommends for a resource.

        From the file that `report.recommendations` names. `edit` is the body of the PATCH of the limit that puts it in
        force; it is null, and `why_not` says why, if there is nothing to do, or if the limit in force is not the one
        that the recommendation was made for.
        """
        check_kind(kind, self._live)
        entry = self._live.limit(kind, glob_of(name))
        return answer(await self._advice.about(Resource(kind, name), entry))


class _Flow:
    """What waits for what, and what is put aside."""

    tag = "flow"

    def __init__(self, services: Services) -> None:
        self._data_path, self._live = services.data_path, services.live
        self._clock, self._folder = services.board.clock, services.spool

    @endpoint("GET", "/flow", "What waits for what.", examples.FLOW)
    async def get_flow(self, _: Request, query: FlowQuery) -> Response:
        """Say what waits for what.

        The bottlenecks in words, how many stages show which state, the connections that wait, alarms, the spool's
        disk, and what confirms messages where a rule says `confirm = "after_consume"`. A stage is `throttled` if a
        limit makes its messages wait, in `flow` if it was stopped within the last seconds because a later stage takes
        no more, and `blocked` if an alarm stops it.
        """
        flow, confirms = await self._data_path.flow(query.limit), await self._data_path.confirms()
        return answer(sentences.flow(flow_of(flow, confirms, query.limit, self._clock)))

    @endpoint("GET", "/spool", "What is put aside.", examples.SPOOL)
    async def get_spool(self, _: Request, query: FlowQuery) -> Response:
        """Say what is put aside.

        Messages and bytes by place, in memory and on disk, for all of it and for the resources with most messages.
        `alpha`: all of a message is in memory; `beta`: its content is on disk; `gamma`: its index is there, too;
        `delta`: nothing of it is in memory.
        """
        return answer(sentences.spool(Spool(self._folder(), await self._data_path.spool(query.limit))))

    @endpoint(
        "DELETE",
        "/spool/{kind}/{name:path}",
        "What was purged.",
        examples.PURGED,
        in_path=ResourcePath,
        problems=(409,),
    )
    async def purge_spool(self, request: Request, query: Purge, kind: str, name: str) -> Response:
        """Purge what is put aside of one resource.

        Messages whose senders wait for an answer are refused in the protocol's own words; the others are dropped. The
        audit trail has it. 409 if there is no spool.
        """
        purged, change = await self._live.purge(kind, name, _author(request), reason=query.reason)
        return answer(
            PurgedSpool(kind=kind, name=name, refused=purged.refused, dropped=purged.dropped, change=change.id)
        )


class _State:
    """How Sluice is, who asks, and what can be wrong with a request."""

    tag = "state"

    def __init__(self, status: Status) -> None:
        self._status = status

    @endpoint("GET", "/state", "The state.", examples.STATE)
    async def get_state(self, _: Request, __: Nothing) -> Response:
        """Say how Sluice is.

        Listeners and their brokers, traffic, bypassed and held requests, where edits are stored.
        """
        return answer(await self._status.state())

    @endpoint("GET", "/whoami", "Who asks.", examples.WHOAMI)
    async def get_caller(self, request: Request, _: Nothing) -> Response:
        """Say who asks.

        The token's name and role.
        """
        author, known = _author(request), request.state
        return answer(WhoAmI(author.name, known.role, author.address, authentication=known.authentication))

    @endpoint("GET", "/problems", "All types.", ProblemTypes((usual_type(412),)))
    async def list_problem_types(self, _: Request, __: Nothing) -> Response:
        """List the types of problems.

        Each with its URI, the `type` of a problem.
        """
        return answer(ProblemTypes(tuple(PROBLEM_TYPES.values())))

    @endpoint("GET", "/problems/{name}", "The type.", usual_type(412), in_path=ProblemPath)
    async def get_problem_type(self, _: Request, __: Nothing, name: str) -> Response:
        """Describe a type of problem.

        The path is the `type` of a problem.
        """
        found = PROBLEM_TYPES.get(name)
        if found is None:
            raise NotFoundError(f"there is no such type of problem; there are {', '.join(PROBLEM_TYPES)}")
        return answer(found)


def _author(request: Request) -> Author:
    """Return whose request it is, as the guard found."""
    author: Author = request.state.author
    return author
