"""``connections``: the open ones, and closing one."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from admin.api import examples
from admin.api.answers import answer, encode_page, encoded
from admin.api.document import done, not_done
from admin.api.parameters import Close, ConnectionsQuery, Id
from admin.api.routing import router
from admin.api.services import Services, author_of
from admin.board import ConnectionQuery
from admin.live.model import NotFoundError
from admin.wire import ClosedConnection, ConnectionPage

_log = structlog.get_logger(__name__)


def routes(services: Services) -> APIRouter:
    """Make the routes."""
    connections = router("connections")
    board = services.board

    @connections.get(
        "/connections",
        summary="List the open connections",
        description="With their rates, which are taken every five seconds while somebody looks.",
        responses={**done(ConnectionPage, "Some connections.", examples.CONNECTIONS), **not_done()},
    )
    async def list_connections(query: Annotated[ConnectionsQuery, Query()]) -> Response:
        asked = ConnectionQuery(**{name: getattr(query, name) for name in ConnectionsQuery.model_fields})
        return encoded(await encode_page(await board.connections.page(asked), "rows"))

    @connections.delete(
        "/connections/{id}",
        summary="Close a connection",
        description="Its client will probably connect again.",
        responses={**done(ClosedConnection, "It is closed.", ClosedConnection(41)), **not_done(404)},
    )
    async def close(
        request: Request,
        id: Id,  # noqa: A002 - its name in the path
        query: Annotated[Close, Query()],
    ) -> Response:
        author = author_of(request)
        reason = f"{author.name}: {query.reason}" if query.reason else author.name
        if not await services.data_path.close_connection(id, reason):
            raise NotFoundError(f"there is no open connection {id}")
        board.connections.forget(id)
        _log.info("connection closed", connection=id, by=author.name, address=author.address, reason=query.reason)
        return answer(ClosedConnection(id))

    return connections
