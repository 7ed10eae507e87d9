"""``switches``: limiting off and on, of all or of one kind."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from admin.api import bodies, examples
from admin.api.answers import answer, unchanged
from admin.api.conditions import expected, has_it, left_by
from admin.api.document import body, done, not_done
from admin.api.parameters import CONDITIONAL, CONDITIONAL_GET, Empty, SwitchKind, Unset, Write
from admin.api.routing import router
from admin.api.services import Services, author_of
from admin.live.model import Change, EditError, Problem, SetSwitch, SwitchEntry, UnsetSwitch
from admin.rule_fields import no_kind
from admin.wire import Switches

_WRITTEN: Final = done(
    Change, "What was changed; of a dry run, what would be, with the id 0.", examples.CHANGE, etag=True
)
_NOT_WRITTEN: Final = not_done(404, 412, 507)
_PUT: Final[dict[str, Any]] = {**CONDITIONAL, **body("PutSwitch", examples.PUT_SWITCH, what="Off or on.")}


def routes(services: Services) -> APIRouter:
    """Make the routes."""
    switches = router("switches")
    live = services.live

    def entry(kind: str) -> SwitchEntry:
        for each in live.switches():
            if each.kind == kind:
                return each
        raise EditError((Problem("kind", no_kind(kind, [each.kind for each in live.switches()])),))

    async def write(request: Request, edit: SetSwitch | UnsetSwitch, query: Write) -> Response:
        changes = await live.change([edit], author_of(request), dry_run=query.dry_run, volatile=query.volatile)
        return answer(changes[0], etag=left_by(changes[0], entry(edit.kind)))

    @switches.get(
        "/switches",
        summary="List the switches",
        description="The one for all, then that of each kind.",
        responses={
            **done(Switches, "All switches.", Switches((examples.SWITCH,)), etag=True, may_have_it=True),
            **not_done(),
        },
        openapi_extra=CONDITIONAL_GET,
    )
    async def list_switches(request: Request, _query: Empty) -> Response:
        etag = live.etag
        return unchanged(etag) if has_it(request, etag) else answer(Switches(tuple(live.switches())), etag=etag)

    @switches.get(
        "/switches/{kind}",
        summary="Read a switch",
        description="Whether one kind, or `all`, is limited.",
        responses={**done(SwitchEntry, "The switch.", examples.SWITCH, etag=True, may_have_it=True), **not_done(404)},
        openapi_extra=CONDITIONAL_GET,
    )
    async def get_switch(request: Request, kind: SwitchKind, _query: Empty) -> Response:
        found = entry(kind)
        return unchanged(found.etag) if has_it(request, found.etag) else answer(found, etag=found.etag)

    @switches.put(
        "/switches/{kind}",
        summary="Switch limiting off or on",
        description="Of all, or of one kind, for good or for `ttl_s` seconds. While it is off everything passes, and"
        " is counted.",
        responses={**_WRITTEN, **_NOT_WRITTEN},
        openapi_extra=_PUT,
    )
    async def put_switch(request: Request, kind: SwitchKind, query: Annotated[Write, Query()]) -> Response:
        limiting, reason, ttl_s = await bodies.read_switch(request)
        if_match = expected(request, entry(kind))
        edit = SetSwitch(kind=kind, limiting=limiting, reason=reason, ttl_s=ttl_s, if_match=if_match)
        return await write(request, edit, query)

    @switches.delete(
        "/switches/{kind}",
        summary="Let a switch stand as the configuration has it",
        description="404 if no edit stands.",
        responses={**_WRITTEN, **_NOT_WRITTEN},
        openapi_extra=CONDITIONAL,
    )
    async def unset_switch(request: Request, kind: SwitchKind, query: Annotated[Unset, Query()]) -> Response:
        edit = UnsetSwitch(kind=kind, reason=query.reason, if_match=expected(request, entry(kind)))
        return await write(request, edit, query)

    return switches
