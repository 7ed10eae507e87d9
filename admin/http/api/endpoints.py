"""All that can be asked of the API: one table of endpoints, and what each of them does."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.common.clock import Clock
from admin.config.rule_fields import fields_of
from admin.edits.model import (
    ALL_KINDS,
    Author,
    EditError,
    LimitEntry,
    NotFoundError,
    PatchLimit,
    Problem,
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
    IdPath,
    KindPath,
    LimitPath,
    LimitsQuery,
    Nothing,
    PageQuery,
    ProblemPath,
    Reset,
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
from admin.http.api.routing import Body, Endpoint, serve
from admin.http.api.state import Services, Status
from admin.stats import ConnectionQuery
from admin.wire import (
    PROBLEM_TYPES,
    AuditPage,
    Changes,
    ClosedConnection,
    Defaults,
    Drift,
    ProblemTypes,
    RulePage,
    RuleRow,
    Switches,
    WhoAmI,
    usual_type,
)
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.rule import Rule, RuleKey
from limiter.rules.rule_set import RuleSet
from proxy.common.cooperative import Pace
from proxy.stats.question import Question

_log = structlog.get_logger(__name__)

_PUT_LIMIT: Final = Body("PutLimit", "The whole limit.", examples.PUT_LIMIT)
_PATCH_LIMIT: Final = Body("PatchLimit", "The fields to change.", examples.PATCH_LIMIT)
_WRITTEN: Final = "The change, and the limit now in force. For a dry run: what would change, with the id 0."
_CHANGED: Final = "The change. For a dry run: what would change, with the id 0."
_AS_OF_THE_PATTERN: Final = "The same as editing the limit of the name `*`."
_IF_NO_EDIT: Final = "404 if no edit stands."
_A_LIMIT: Final = "/limits/{kind}/{name:path}"
_A_DEFAULT: Final = "/defaults/{kind}"
_A_SWITCH: Final = "/switches/{kind}"


def application(services: Services) -> Starlette:
    """Make the application, to be mounted at ``/api/v1``.

    Its requests come from the guard, with ``author``, ``role`` and ``authentication`` in their state.
    """
    app = serve(_endpoints(services))

    async def openapi(_: Request) -> Response:
        return answer(document(app))

    route = Route("/openapi.json", openapi)
    # As of every other path: without HEAD.
    route.methods = {"GET"}
    app.routes.append(route)
    return app


class _Limits:
    """``limits``, ``limits:batch``, ``defaults`` and ``diff``: what is limited, and live edits of it.

    A default is the limit of the name ``*``.
    """

    def __init__(self, services: Services) -> None:
        self._live, self._board = services.live, services.board

    async def list(self, _: Request, query: LimitsQuery) -> Response:
        page = await self._board.query(board_query(query, self._live))
        response = encoded(await encode_page(page, "rows"), etag=page.etag)
        response.headers.update(NO_STORE)
        return response

    async def get(self, request: Request, _: Nothing, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        found = self._entry(kind, name)
        return unchanged(found.etag) if has_it(request, found.etag) else answer(found, etag=found.etag)

    async def put(self, request: Request, query: Write, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        limit, reason, ttl_s = await requests.read_limit(request)
        if_match = self._condition(request, kind, name)
        edit = SetLimit(kind=kind, name=name, limit=limit, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await self._write(request, edit, query)

    async def patch(self, request: Request, query: Write, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        limit, reason, ttl_s = await requests.read_patch(request)
        if_match = self._condition(request, kind, name)
        edit = PatchLimit(kind=kind, name=name, limit=limit, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await self._write(request, edit, query)

    async def unset(self, request: Request, query: Unset, kind: str, name: str = DEFAULT_PATTERN) -> Response:
        if_match = self._condition(request, kind, name)
        edit = UnsetLimit(kind=kind, name=name, reason=query.reason, if_match=if_match)
        return await self._write(request, edit, query)

    async def reset(self, request: Request, query: Reset, kind: str, name: str) -> Response:
        return answer(await self._live.reset(kind, name, _author(request), reason=query.reason))

    async def batch(self, request: Request, query: Write) -> Response:
        edits = await requests.read_edits(request)
        tags = read_tags(request, "if-match")
        if_match = "" if tags is None or tags.any else one_of(tags, self._live.etag)
        changes = await self._live.change(
            edits, _author(request), dry_run=query.dry_run, volatile=query.volatile, if_match=if_match
        )
        return encoded(await encode_page(Changes(changes), "changes"))

    async def defaults(self, request: Request, _: Nothing) -> Response:
        etag = self._live.etag
        if has_it(request, etag):
            return unchanged(etag)
        kinds = (switch.kind for switch in self._live.switches() if switch.kind != ALL_KINDS)
        return answer(Defaults(tuple(self._live.limit(kind, DEFAULT_PATTERN) for kind in kinds)), etag=etag)

    async def diff(self, request: Request, query: PageQuery) -> Response:
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
    """``switches``: limiting off and on, of all or of one kind."""

    def __init__(self, services: Services) -> None:
        self._live = services.live

    async def list(self, request: Request, _: Nothing) -> Response:
        etag = self._live.etag
        return unchanged(etag) if has_it(request, etag) else answer(Switches(tuple(self._live.switches())), etag=etag)

    async def get(self, request: Request, _: Nothing, kind: str) -> Response:
        found = self._entry(kind)
        return unchanged(found.etag) if has_it(request, found.etag) else answer(found, etag=found.etag)

    async def put(self, request: Request, query: Write, kind: str) -> Response:
        limiting, reason, ttl_s = await requests.read_switch(request)
        if_match = expected(request, self._entry(kind))
        edit = SetSwitch(kind=kind, limiting=limiting, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await self._write(request, edit, query)

    async def unset(self, request: Request, query: Unset, kind: str) -> Response:
        edit = UnsetSwitch(kind=kind, reason=query.reason, if_match=expected(request, self._entry(kind)))
        return await self._write(request, edit, query)

    def _entry(self, kind: str) -> SwitchEntry:
        switches = self._live.switches()
        for each in switches:
            if each.kind == kind:
                return each
        raise EditError((Problem("kind", self._live.reader.no_kind(kind, [each.kind for each in switches])),))

    async def _write(self, request: Request, edit: SetSwitch | UnsetSwitch, query: Write) -> Response:
        (change,) = await self._live.change([edit], _author(request), dry_run=query.dry_run, volatile=query.volatile)
        return answer(change, etag=left_by(change, self._entry(edit.kind)))


class _Rules:
    """``rules`` and ``explain``: the rules in force, and why a request is limited as it is."""

    def __init__(self, services: Services) -> None:
        self._live, self._data_path = services.live, services.data_path
        self._in_order = _InOrder(services.board.clock)

    async def list(self, request: Request, query: RulesQuery) -> Response:
        check_kind(query.kind, self._live)
        etag = self._live.etag
        rule_set = self._live.rule_set
        ordered = self._in_order.of(rule_set)
        # What holds changes by the hour alone, too.
        if not ordered.timed and has_it(request, etag):
            return unchanged(etag)
        pace = Pace()
        chosen: list[tuple[int, Rule]] = []
        for position, rule in enumerate(ordered.rules):
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
                    action=rule.action,
                    hours=None if rule.hours is None else str(rule.hours),
                    source=rule.source,
                    holds=rule.key in ordered.holding,
                )
                for position, rule in chosen[query.offset : query.offset + query.limit]
            ),
            total=len(chosen),
            offset=query.offset,
            limit=query.limit,
            rule_set_version=rule_set.version,
        )
        return encoded(await encode_page(page, "rows"), etag=etag)

    async def explain(self, _: Request, query: ExplainQuery) -> Response:
        return answer(await self._data_path.explain(Question(**query.model_dump())))


@dataclass(frozen=True, slots=True)
class _Ordered:
    """The rules of one set at one moment.

    Attributes:
        rules: as they are tried.
        holding: the keys of those that take part.
        timed: some have hours.
    """

    rules: tuple[Rule, ...]
    holding: frozenset[RuleKey]
    timed: bool


class _InOrder:
    """Remembers the order of the last rule set; one with hours is looked at again every minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: tuple[RuleSet, datetime, _Ordered] | None = None

    def of(self, rule_set: RuleSet) -> _Ordered:
        """Return the rules in their order."""
        now = self._clock.utc()
        minute = now.replace(second=0, microsecond=0)
        known = self._known
        if known is not None and known[0] is rule_set and (known[1] == minute or not known[2].timed):
            return known[2]
        in_force = rule_set.at(now)
        rules = in_force.in_match_order
        tried = frozenset(rule.key for rule in in_force.tried)
        ordered = _Ordered(rules, tried, any(rule.hours is not None for rule in rules))
        self._known = (rule_set, minute, ordered)
        return ordered


class _Audit:
    """``audit`` and ``reload``: who changed what, when and why; and undoing it."""

    def __init__(self, services: Services) -> None:
        self._live = services.live

    async def list(self, _: Request, query: AuditQuery) -> Response:
        # One more than is shown says whether there is another page.
        found = await self._live.audit(before=query.before, target=query.target, by=query.by, limit=query.limit + 1)
        shown = found[: query.limit]
        page = AuditPage(shown, shown[-1].id if len(found) > len(shown) else None)
        return encoded(await encode_page(page, "changes"))

    async def get(self, _: Request, __: Nothing, change_id: int) -> Response:
        found = await self._live.audit(before=change_id + 1, limit=1)
        if not found or found[0].id != change_id:
            raise NotFoundError(f"there is no change {change_id}")
        return answer(found[0])

    async def revert(self, request: Request, query: DryRun, change_id: int) -> Response:
        reason, force = await requests.read_revert(request)
        return answer(
            await self._live.revert(change_id, _author(request), reason=reason, force=force, dry_run=query.dry_run)
        )

    async def reload(self, request: Request, query: DryRun) -> Response:
        return answer(await self._live.reload(_author(request), dry_run=query.dry_run))


class _Connections:
    """``connections``: the open ones, and closing one."""

    def __init__(self, services: Services) -> None:
        self._data_path, self._connections = services.data_path, services.board.connections

    async def list(self, _: Request, query: ConnectionsQuery) -> Response:
        return encoded(await encode_page(await self._connections.page(ConnectionQuery(**dict(query))), "rows"))

    async def close(self, request: Request, query: Close, connection: int) -> Response:
        author = _author(request)
        reason = f"{author.name}: {query.reason}" if query.reason else author.name
        if not await self._data_path.close_connection(connection, reason):
            raise NotFoundError(f"there is no open connection {connection}")
        self._connections.forget(connection)
        _log.info(
            "connection closed", connection=connection, by=author.name, address=author.address, reason=query.reason
        )
        return answer(ClosedConnection(connection))


async def _whoami(request: Request, _: Nothing) -> Response:
    author, known = _author(request), request.state
    return answer(WhoAmI(author.name, known.role, author.address, authentication=known.authentication))


async def _problem_types(_: Request, __: Nothing) -> Response:
    return answer(ProblemTypes(tuple(PROBLEM_TYPES.values())))


async def _problem_type(_: Request, __: Nothing, name: str) -> Response:
    found = PROBLEM_TYPES.get(name)
    if found is None:
        raise NotFoundError(f"there is no such type of problem; there are {', '.join(PROBLEM_TYPES)}")
    return answer(found)


def _author(request: Request) -> Author:
    """Return whose request it is, as the guard found."""
    author: Author = request.state.author
    return author


def _endpoints(services: Services) -> list[Endpoint]:
    """Return the table, in the order of the document."""
    status = Status(services)
    limits, switches, rules = _Limits(services), _Switches(services), _Rules(services)
    audit, connections = _Audit(services), _Connections(services)
    events = Events(services, status)

    async def state(_: Request, __: Nothing) -> Response:
        return answer(await status.state())

    return [
        Endpoint(
            *("limits", "GET", "/limits", "list_limits", limits.list),
            "List limits with their live figures",
            "All limits with a rule of their own, and all resources that had requests. The ETag is that of all limits"
            " and switches together. The live figures change all the time, so the list is always sent.",
            "Some rows of the table.",
            examples.PAGE,
            query=LimitsQuery,
            tags="list",
        ),
        Endpoint(
            *("limits", "GET", _A_LIMIT, "get_limit", limits.get),
            "Read one limit",
            "For any name or pattern, with or without a rule of its own.",
            "The limit.",
            examples.LIMIT,
            in_path=LimitPath,
            tags="read",
        ),
        Endpoint(
            *("limits", "PUT", _A_LIMIT, "set_limit", limits.put),
            "Edit a limit",
            "Overrides the configuration's limit, permanently or for `ttl_s` seconds. The edit survives a restart,"
            " unless it is volatile.",
            _WRITTEN,
            examples.WRITTEN,
            in_path=LimitPath,
            query=Write,
            body=_PUT_LIMIT,
            tags="write",
        ),
        Endpoint(
            *("limits", "PATCH", _A_LIMIT, "patch_limit", limits.patch),
            "Edit some fields of a limit",
            "Changes the fields in the body and keeps the others (a JSON merge patch). The others come from the"
            " active edit; if there is none, from the configuration's rule of exactly this name; if there is none,"
            " from the rule in force for the name. `null` removes a field. An edit that expires still does, unless"
            " `ttl_s` is given; `null` makes it permanent. A rate replaces `exempt`, and `exempt` replaces a rate.",
            _WRITTEN,
            examples.WRITTEN,
            in_path=LimitPath,
            query=Write,
            body=_PATCH_LIMIT,
            tags="write",
        ),
        Endpoint(
            *("limits", "POST", f"{_A_LIMIT}:reset", "reset_limit", limits.reset),
            "Reset the buckets of a limit",
            "Fills the buckets, clears debts, open breakers and fair shares, and decides about held requests at once."
            " The limit itself does not change. A pattern resets the buckets of all names for which its rule is in"
            " force; 404 if there is no such rule.",
            "What was cleared: `details`.",
            examples.RESET,
            in_path=LimitPath,
            query=Reset,
        ),
        Endpoint(
            *("limits", "DELETE", _A_LIMIT, "unset_limit", limits.unset),
            "Revert a limit to the configuration",
            _IF_NO_EDIT,
            _WRITTEN,
            examples.WRITTEN,
            in_path=LimitPath,
            query=Unset,
            tags="write",
        ),
        Endpoint(
            *("limits", "POST", "/limits:batch", "change_limits", limits.batch),
            "Make several edits, all or none",
            "In order; each sees the ones before it. Errors name the field of the edit: `edits.2.limit.rate`.",
            "The changes, one for each edit.",
            Changes((examples.CHANGE,)),
            query=Write,
            body=Body("Batch", "The edits.", examples.BATCH),
            tags="batch",
        ),
        Endpoint(
            *("limits", "GET", "/defaults", "list_defaults", limits.defaults),
            "List the defaults",
            "For each kind, the limit of every name that no other rule matches.",
            "One for each kind.",
            Defaults((examples.LIMIT,)),
            tags="read",
        ),
        Endpoint(
            *("limits", "GET", _A_DEFAULT, "get_default", limits.get),
            "Read a default",
            "The same as the limit of the name `*`.",
            "The limit.",
            examples.LIMIT,
            in_path=KindPath,
            tags="read",
        ),
        Endpoint(
            *("limits", "PUT", _A_DEFAULT, "set_default", limits.put),
            "Edit a default",
            _AS_OF_THE_PATTERN,
            _WRITTEN,
            examples.WRITTEN,
            in_path=KindPath,
            query=Write,
            body=_PUT_LIMIT,
            tags="write",
        ),
        Endpoint(
            *("limits", "PATCH", _A_DEFAULT, "patch_default", limits.patch),
            "Edit some fields of a default",
            _AS_OF_THE_PATTERN,
            _WRITTEN,
            examples.WRITTEN,
            in_path=KindPath,
            query=Write,
            body=_PATCH_LIMIT,
            tags="write",
        ),
        Endpoint(
            *("limits", "DELETE", _A_DEFAULT, "unset_default", limits.unset),
            "Revert a default to the configuration",
            _IF_NO_EDIT,
            _WRITTEN,
            examples.WRITTEN,
            in_path=KindPath,
            query=Unset,
            tags="write",
        ),
        Endpoint(
            *("limits", "GET", "/diff", "list_edits", limits.diff),
            "List the differences from the configuration",
            "Every limit and switch with an edit.",
            "What has an edit.",
            examples.DRIFT,
            query=PageQuery,
            tags="read",
        ),
        Endpoint(
            *("limits", "GET", "/events", "follow_events", events.follow),
            "Follow the table and the state",
            "Server-sent events, each with one line of JSON. `limits`: first the answer of `GET limits` to the same"
            " query, then, once per second, `rows` with the members that changed, the `order` of keys if it changed,"
            " and the totals. `state`: the answer of `GET state`, at first and when it changes. `change`: each change"
            " when it is made. `bye`: Sluice is stopping, and the stream ends.",
            "Events until the client leaves.",
            event("change", msgspec.json.encode(examples.CHANGE)).decode(),
            query=LimitsQuery,
            problems=(503,),
        ),
        Endpoint(
            *("switches", "GET", "/switches", "list_switches", switches.list),
            "List the switches",
            "First the switch for everything, then one for each kind.",
            "All switches.",
            Switches((examples.SWITCH,)),
            tags="read",
        ),
        Endpoint(
            *("switches", "GET", _A_SWITCH, "get_switch", switches.get),
            "Read a switch",
            "Whether one kind, or `all`, is limited.",
            "The switch.",
            examples.SWITCH,
            in_path=SwitchPath,
            tags="read",
        ),
        Endpoint(
            *("switches", "PUT", _A_SWITCH, "set_switch", switches.put),
            "Switch limiting off or on",
            "For everything or for one kind, permanently or for `ttl_s` seconds. While limiting is off, requests pass"
            " and are still counted.",
            _CHANGED,
            examples.CHANGE,
            in_path=SwitchPath,
            query=Write,
            body=Body("PutSwitch", "Off or on.", examples.PUT_SWITCH),
            tags="write",
        ),
        Endpoint(
            *("switches", "DELETE", _A_SWITCH, "unset_switch", switches.unset),
            "Revert a switch to the configuration",
            _IF_NO_EDIT,
            _CHANGED,
            examples.CHANGE,
            in_path=SwitchPath,
            query=Unset,
            tags="write",
        ),
        Endpoint(
            *("rules", "GET", "/rules", "list_rules", rules.list),
            "List the rules in force",
            "In the order in which they are tried: exact names, patterns, defaults, totals; last the rules whose"
            " hours have not come.",
            "Some rules.",
            examples.RULES,
            query=RulesQuery,
            tags="read",
        ),
        Endpoint(
            *("rules", "GET", "/explain", "explain", rules.explain),
            "Explain the limits of a request",
            "The limits of the request in the order in which they are asked, each with its live state.",
            "What limits it.",
            examples.EXPLANATION,
            query=ExplainQuery,
        ),
        Endpoint(
            *("audit", "GET", "/audit", "list_changes", audit.list),
            "Read the audit trail",
            "Latest change first. To get the next page, send `next` as `before`.",
            "Some changes.",
            AuditPage((examples.CHANGE,), 17),
            query=AuditQuery,
        ),
        Endpoint(
            *("audit", "GET", "/audit/{id}", "get_change", audit.get),
            "Read one change",
            "As the audit trail has it.",
            "The change.",
            examples.CHANGE,
            in_path=IdPath,
        ),
        Endpoint(
            *("audit", "POST", "/audit/{id}/revert", "revert_change", audit.revert),
            "Undo a change",
            "Restores what was in force before. 409 if it was changed again since, unless `force`.",
            _CHANGED,
            examples.CHANGE,
            in_path=IdPath,
            query=DryRun,
            body=Body("Revert", "Why.", examples.REVERT, required=False),
            problems=(409, 507),
        ),
        Endpoint(
            *("audit", "POST", "/reload", "reload_configuration", audit.reload),
            "Reload the configuration",
            "An invalid configuration changes nothing. The answer says what changed and what needs a restart.",
            "What it did, or would do.",
            examples.RELOAD,
            query=DryRun,
            problems=(409,),
        ),
        Endpoint(
            *("connections", "GET", "/connections", "list_connections", connections.list),
            "List the open connections",
            "With their rates, which are taken every five seconds while somebody looks.",
            "Some connections.",
            examples.CONNECTIONS,
            query=ConnectionsQuery,
        ),
        Endpoint(
            *("connections", "DELETE", "/connections/{id}", "close_connection", connections.close),
            "Close a connection",
            "Its client will probably connect again.",
            "It is closed.",
            ClosedConnection(41),
            in_path=IdPath,
            query=Close,
        ),
        Endpoint(
            *("state", "GET", "/state", "get_state", state),
            "Say how Sluice is",
            "Listeners and their brokers, traffic, bypassed and held requests, where edits are stored.",
            "The state.",
            examples.STATE,
        ),
        Endpoint(
            *("state", "GET", "/whoami", "get_caller", _whoami),
            "Say who asks",
            "The token's name and role.",
            "Who asks.",
            examples.WHOAMI,
        ),
        Endpoint(
            *("state", "GET", "/problems", "list_problem_types", _problem_types),
            "List the types of problems",
            "Each with its URI, the `type` of a problem.",
            "All types.",
            ProblemTypes((usual_type(412),)),
        ),
        Endpoint(
            *("state", "GET", "/problems/{name}", "get_problem_type", _problem_type),
            "Describe a type of problem",
            "The path is the `type` of a problem.",
            "The type.",
            usual_type(412),
            in_path=ProblemPath,
        ),
    ]
