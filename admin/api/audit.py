"""``audit``: who changed what, when and why; undoing a change; and reading the configuration again."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from admin.api import bodies, examples
from admin.api.answers import answer, encode_page, encoded
from admin.api.document import body, done, not_done
from admin.api.parameters import AuditQuery, DryRun, Empty, Id
from admin.api.routing import router
from admin.api.services import Services, author_of
from admin.live.model import Change, NotFoundError, ReloadReport
from admin.wire import AuditPage


def routes(services: Services) -> APIRouter:
    """Make the routes."""
    audit = router("audit")
    live = services.live

    @audit.get(
        "/audit",
        summary="Read the audit trail",
        description="The latest change first. `next` of one page is `before` of the next.",
        responses={**done(AuditPage, "Some changes.", AuditPage((examples.CHANGE,), 17)), **not_done()},
    )
    async def list_changes(query: Annotated[AuditQuery, Query()]) -> Response:
        # One more than is shown says whether there is another page.
        found = await live.audit(before=query.before, target=query.target, by=query.by, limit=query.limit + 1)
        shown = found[: query.limit]
        page = AuditPage(shown, shown[-1].id if len(found) > len(shown) else None)
        return encoded(await encode_page(page, "changes"))

    @audit.get(
        "/audit/{id}",
        summary="Read one change",
        description="As the audit trail has it.",
        responses={**done(Change, "The change.", examples.CHANGE), **not_done(404)},
    )
    async def get_change(id: Id, _query: Empty) -> Response:  # noqa: A002 - its name in the path
        return answer(await _change(services, id))

    @audit.post(
        "/audit/{id}/revert",
        summary="Undo a change",
        description="What stood before it stands again. 409 if a later change was made to the same, unless `force`.",
        responses={
            **done(Change, "What was changed; of a dry run, what would be, with the id 0.", examples.CHANGE),
            **not_done(404, 409, 507),
        },
        openapi_extra=body("Revert", examples.REVERT, required=False, what="Why."),
    )
    async def revert(
        request: Request,
        id: Id,  # noqa: A002 - its name in the path
        query: Annotated[DryRun, Query()],
    ) -> Response:
        reason, force = await bodies.read_revert(request)
        change = await live.revert(id, author_of(request), reason=reason, force=force, dry_run=query.dry_run)
        return answer(change)

    @audit.post(
        "/reload",
        summary="Read the configuration again",
        description="Validates it first; a wrong one changes nothing. Says what now holds, and what needs a restart.",
        responses={**done(ReloadReport, "What it did, or would do.", examples.RELOAD), **not_done(409)},
    )
    async def reload(request: Request, query: Annotated[DryRun, Query()]) -> Response:
        return answer(await live.reload(author_of(request), dry_run=query.dry_run))

    return audit


async def _change(services: Services, change_id: int) -> Change:
    found = await services.live.audit(before=change_id + 1, limit=1)
    if not found or found[0].id != change_id:
        raise NotFoundError(f"there is no change {change_id}")
    return found[0]
