"""``limits``, ``limits:batch``, ``defaults`` and ``diff``: what is limited, and live edits of it."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from admin.api import bodies, examples
from admin.api.answers import NO_STORE, answer, bad, encode_page, encoded, unchanged
from admin.api.conditions import expected, has_it, is_conditional, left_by, one_of, read_tags
from admin.api.document import body, done, not_done
from admin.api.parameters import (
    CONDITIONAL,
    CONDITIONAL_BATCH,
    CONDITIONAL_GET,
    Empty,
    Kind,
    LimitsQuery,
    Name,
    PageQuery,
    Unset,
    Write,
)
from admin.api.routing import router
from admin.api.services import Services, author_of
from admin.board import Query as BoardQuery
from admin.live.interface import LiveLimits
from admin.live.model import ALL_KINDS, Change, LimitEntry, SetLimit, UnsetLimit
from admin.rule_fields import no_kind
from admin.wire import Changes, Defaults, Drift, LimitPage
from limiter.patterns import DEFAULT_PATTERN
from limiter.resource import TOTAL
from proxy.pace import Pace

_WRITTEN: Final = done(
    Change, "What was changed; of a dry run, what would be, with the id 0.", examples.CHANGE, etag=True
)
_NOT_WRITTEN: Final = not_done(404, 412, 507)
_PUT: Final[dict[str, Any]] = {**CONDITIONAL, **body("PutLimit", examples.PUT_LIMIT, what="The whole limit.")}


def routes(services: Services) -> APIRouter:
    """Make the routes."""
    limits = router("limits")
    live, board = services.live, services.board

    def entry(kind: str, name: str) -> LimitEntry:
        if not name:
            raise bad("name", "missing; write it behind the kind: /limits/topic/orders")
        return live.limit(kind, name)

    def condition(request: Request, kind: str, name: str) -> str | None:
        # Without one, what is there now is not looked at: who makes the change checks kind and name.
        if name and not is_conditional(request):
            return None
        return expected(request, entry(kind, name))

    async def write(request: Request, edit: SetLimit | UnsetLimit, query: Write) -> Response:
        changes = await live.change([edit], author_of(request), dry_run=query.dry_run, volatile=query.volatile)
        return answer(changes[0], etag=left_by(changes[0], live.limit(edit.kind, edit.name)))

    async def get(request: Request, kind: str, name: str) -> Response:
        found = entry(kind, name)
        return unchanged(found.etag) if has_it(request, found.etag) else answer(found, etag=found.etag)

    async def put(request: Request, kind: str, name: str, query: Write) -> Response:
        limit, reason, ttl_s = await bodies.read_limit(request)
        if_match = condition(request, kind, name)
        edit = SetLimit(kind=kind, name=name, limit=limit, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await write(request, edit, query)

    async def unset(request: Request, kind: str, name: str, query: Unset) -> Response:
        if_match = condition(request, kind, name)
        return await write(request, UnsetLimit(kind=kind, name=name, reason=query.reason, if_match=if_match), query)

    @limits.get(
        "/limits",
        summary="List limits with what they do",
        description="All limits with a rule of their own, and everything that was asked for. The ETag is that of all"
        " limits and switches together; the live figures are newer than any tag, so the list is always sent.",
        responses={**done(LimitPage, "Some rows of the table.", examples.PAGE, etag=True), **not_done()},
    )
    async def list_limits(query: Annotated[LimitsQuery, Query()]) -> Response:
        page = await board.query(board_query(query, live))
        response = encoded(await encode_page(page, "rows"), etag=page.etag)
        response.headers.update(NO_STORE)
        return response

    @limits.get(
        "/limits/{kind}/{name:path}",
        summary="Read one limit",
        description="Of any name or pattern, with a rule of its own or not.",
        responses={
            **done(LimitEntry, "The limit.", examples.LIMIT, etag=True, may_have_it=True),
            **not_done(404),
        },
        openapi_extra=CONDITIONAL_GET,
    )
    async def get_limit(request: Request, kind: Kind, name: Name, _query: Empty) -> Response:
        return await get(request, kind, name)

    @limits.put(
        "/limits/{kind}/{name:path}",
        summary="Edit a limit",
        description="Puts the limit in force over that of the configuration, for good or for `ttl_s` seconds. It"
        " survives a restart, unless it is volatile.",
        responses={**_WRITTEN, **_NOT_WRITTEN},
        openapi_extra=_PUT,
    )
    async def put_limit(request: Request, kind: Kind, name: Name, query: Annotated[Write, Query()]) -> Response:
        return await put(request, kind, name, query)

    @limits.delete(
        "/limits/{kind}/{name:path}",
        summary="Revert a limit to the configuration",
        description="404 if no edit stands.",
        responses={**_WRITTEN, **_NOT_WRITTEN},
        openapi_extra=CONDITIONAL,
    )
    async def unset_limit(request: Request, kind: Kind, name: Name, query: Annotated[Unset, Query()]) -> Response:
        return await unset(request, kind, name, query)

    @limits.post(
        "/limits:batch",
        summary="Do several edits, all or none",
        description="In order; each sees those before it. Errors name the field of the edit: `edits.2.limit.rate`.",
        responses={
            **done(Changes, "What was changed, one for each edit.", Changes((examples.CHANGE,))),
            **_NOT_WRITTEN,
        },
        openapi_extra={**CONDITIONAL_BATCH, **body("Batch", examples.BATCH, what="The edits.")},
    )
    async def batch(request: Request, query: Annotated[Write, Query()]) -> Response:
        edits = await bodies.read_edits(request)
        tags = read_tags(request, "if-match")
        if_match = "" if tags is None or tags.any else one_of(tags, live.etag)
        changes = await live.change(
            edits, author_of(request), dry_run=query.dry_run, volatile=query.volatile, if_match=if_match
        )
        return encoded(await encode_page(Changes(changes), "changes"))

    @limits.get(
        "/defaults",
        summary="List the defaults",
        description="Of each kind, the limit that holds for each name that no other rule matches.",
        responses={
            **done(Defaults, "One for each kind.", Defaults((examples.LIMIT,)), etag=True, may_have_it=True),
            **not_done(),
        },
        openapi_extra=CONDITIONAL_GET,
    )
    async def defaults(request: Request, _query: Empty) -> Response:
        etag = live.etag
        if has_it(request, etag):
            return unchanged(etag)
        kinds = (switch.kind for switch in live.switches() if switch.kind != ALL_KINDS)
        return answer(Defaults(tuple(live.limit(kind, DEFAULT_PATTERN) for kind in kinds)), etag=etag)

    @limits.get(
        "/defaults/{kind}",
        summary="Read a default",
        description="The same as the limit of the name `*`.",
        responses={**done(LimitEntry, "The limit.", examples.LIMIT, etag=True, may_have_it=True), **not_done(404)},
        openapi_extra=CONDITIONAL_GET,
    )
    async def get_default(request: Request, kind: Kind, _query: Empty) -> Response:
        return await get(request, kind, DEFAULT_PATTERN)

    @limits.put(
        "/defaults/{kind}",
        summary="Edit a default",
        description="The same as editing the limit of the name `*`.",
        responses={**_WRITTEN, **_NOT_WRITTEN},
        openapi_extra=_PUT,
    )
    async def put_default(request: Request, kind: Kind, query: Annotated[Write, Query()]) -> Response:
        return await put(request, kind, DEFAULT_PATTERN, query)

    @limits.delete(
        "/defaults/{kind}",
        summary="Revert a default to the configuration",
        description="404 if no edit stands.",
        responses={**_WRITTEN, **_NOT_WRITTEN},
        openapi_extra=CONDITIONAL,
    )
    async def unset_default(request: Request, kind: Kind, query: Annotated[Unset, Query()]) -> Response:
        return await unset(request, kind, DEFAULT_PATTERN, query)

    @limits.get(
        "/diff",
        summary="List where what is in force differs from the configuration",
        description="Every limit and switch with an edit.",
        responses={
            **done(
                Drift,
                "What has an edit.",
                Drift(limits=(examples.LIMIT,), switches=(), total=1, offset=0, limit=100, etag=examples.LIMIT.etag),
                etag=True,
                may_have_it=True,
            ),
            **not_done(),
        },
        openapi_extra=CONDITIONAL_GET,
    )
    async def diff(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
        etag = live.etag
        if has_it(request, etag):
            return unchanged(etag)
        pace = Pace()
        edited = []
        for each in live.limits():
            if each.edit is not None:
                edited.append(each)
            await pace.keep()
        drift = Drift(
            limits=tuple(edited[query.offset : query.offset + query.limit]),
            switches=tuple(switch for switch in live.switches() if switch.edit is not None),
            total=len(edited),
            offset=query.offset,
            limit=query.limit,
            etag=etag,
        )
        return encoded(await encode_page(drift, "limits"), etag=etag)

    return limits


def check_kind(kind: str, live: LiveLimits) -> None:
    """Refuse a kind that there is not; none is any.

    Raises:
        BadRequestError: there is no such kind.
    """
    kinds = [*(each.kind for each in live.switches() if each.kind != ALL_KINDS), TOTAL]
    if kind and kind not in kinds:
        raise bad("kind", no_kind(kind, kinds))


def board_query(query: LimitsQuery, live: LiveLimits) -> BoardQuery:
    """Return a query as the board takes it.

    Raises:
        BadRequestError: it is for a kind that there is not.
    """
    check_kind(query.kind, live)
    return BoardQuery(**{name: getattr(query, name) for name in LimitsQuery.model_fields})
