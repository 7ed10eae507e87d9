"""The application: all routes below ``/api/v1``, their errors, and their document."""

from http import HTTPStatus
from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from admin.api import audit, connections, events, limits, rules, state, switches
from admin.api.answers import answer, problem
from admin.api.document import document
from admin.api.services import Services
from admin.api.state import Status

_DETAILS: Final = {
    404: "there is nothing here; /api/v1/openapi.json says what there is",
    405: "this cannot be done here",
}


def application(services: Services) -> FastAPI:
    """Make the application, to be mounted at ``/api/v1``.

    Its requests come from the guard, with ``author``, ``role`` and ``authentication`` in their state.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, title="Sluice")
    status = Status(services)
    for router in (
        limits.routes(services),
        events.routes(services, status),
        switches.routes(services),
        rules.routes(services),
        audit.routes(services),
        connections.routes(services),
        state.routes(status),
    ):
        # As they are: a router that is included looks through its routes anew for every request.
        app.router.routes.extend(router.routes)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return answer(document(app))

    async def refused(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise TypeError(f"no refusal: {error!r}")
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # Of the routes with this path, the router names the methods of the first.
            headers["allow"] = ", ".join(sorted(_methods(app, request)))
        detail = _DETAILS.get(error.status_code, error.detail)
        return problem(error.status_code, detail, headers=headers)

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, _failed)
    return app


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Return what can be done with a path."""
    found: set[str] = set()
    for route in app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found


async def _failed(_: Request, __: Exception) -> Response:
    # Whoever serves this application writes the reason into the log.
    return problem(500, "internal error; the log has the reason")
