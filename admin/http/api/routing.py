"""From one table of endpoints: what answers a request, and every error as a problem. The document is made from it, too.

An endpoint gets the request, its query, and the values of the path. Nothing that is unknown or given twice goes
unnoticed.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from admin.config.faults import describe_fields, show
from admin.http.api.answers import EDIT_ERRORS, BadRequestError, bad, problem, refused
from admin.http.api.requests import Nothing, Parameters
from admin.wire import FieldProblem
from proxy.common.cooperative import turn

_CAUGHT: Final = (BadRequestError, *EDIT_ERRORS)
_DETAILS: Final = {
    404: "there is nothing here; /api/v1/openapi.json says what there is",
    405: "this cannot be done here",
}


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        schema: its name in the document.
        what: it is, in words.
        example: of it.
        required: it must be there.
    """

    schema: str
    what: str
    example: Mapping[str, Any]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What one method does with one path.

    Attributes:
        tag: the chapter of the document that it stands in.
        method: of HTTP.
        path: below ``/api/v1``.
        name: of its function in clients that are made from the document.
        handler: gets the request, the query, and the values of the path in the order of ``in_path``.
        summary: what it is for.
        description: the rest that there is to say.
        answer: what it answers.
        example: of the answer, which always has its type; of a stream, its text.
        in_path: the parameters of the path.
        query: the parameters of the query.
        body: of the request.
        tags: entity tags: the answer of a ``list`` has one; of a ``read`` it is 304 for who has it; a ``write`` may
            expect one; a ``batch`` may expect that of the list.
        problems: statuses besides those that all else here says: 404 if the path names something, 404, 412 and 507 of
            a ``write`` or a ``batch``.
    """

    tag: str
    method: str
    path: str
    name: str
    handler: Callable[..., Awaitable[Response]]
    summary: str
    description: str
    answer: str
    example: object
    in_path: type[Parameters] = Nothing
    query: type[Parameters] = Nothing
    body: Body | None = None
    tags: Literal["", "list", "read", "write", "batch"] = ""
    problems: tuple[int, ...] = ()


class EndpointRoute(Route):
    """The route of an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.path, endpoint.handler, methods=[endpoint.method], name=endpoint.name)
        # Without HEAD, which Starlette adds.
        self.methods = {endpoint.method}
        self.about = endpoint
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, about = Request(scope, receive, send), self.about
        try:
            await _check(request, takes_nothing=about.method != "GET" and about.body is None)
            in_path = _validated(about.in_path, request.path_params)
            query = _validated(about.query, dict(request.query_params) if scope["query_string"] else {})
            response = await about.handler(request, query, *vars(in_path).values())
        except _CAUGHT as error:
            response = refused(error, batch=about.tags == "batch")
        # Edits that were committed together are done at the same moment; they are not answered in one turn.
        await turn()
        await response(scope, receive, send)


def serve(endpoints: Sequence[Endpoint]) -> Starlette:
    """Make the application, to be mounted at ``/api/v1``.

    Its requests come from the guard, with ``author``, ``role`` and ``authentication`` in their state.
    """
    app = Starlette(
        routes=[EndpointRoute(each) for each in endpoints],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError(f"no refusal: {error!r}")
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Of the routes with this path, the router names the methods of the first.
        headers["allow"] = ", ".join(sorted(_methods(request)))
    return problem(error.status_code, _DETAILS.get(error.status_code, error.detail), headers=headers)


def _methods(request: Request) -> set[str]:
    """Return what can be done with a path, by the longest of the patterns that it matches."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    pattern = max((route.path for route in matching), key=len)
    return {method for route in matching if route.path == pattern for method in route.methods}


async def _failed(_: Request, __: Exception) -> Response:
    # Whoever serves this application writes the reason into the log.
    return problem(500, "internal error; the log has the reason")


async def _check(request: Request, *, takes_nothing: bool) -> None:
    """Refuse what the router would take in silence.

    Raises:
        BadRequestError: a parameter is given twice, or there is a body that nobody would read.
    """
    if request.scope["query_string"]:
        given: set[str] = set()
        for name, _ in request.query_params.multi_items():
            if name in given:
                raise bad(name, "given more than once")
            given.add(name)
    if takes_nothing and await request.body():
        raise bad("body", "no body is taken here; what there is to say goes into the query")


def _validated(model: type[Parameters], found: Mapping[str, Any]) -> Parameters:
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise BadRequestError(*_problems(error, model)) from None


def _problems(error: ValidationError, model: type[Parameters]) -> Iterator[FieldProblem]:
    """Say what is wrong as of a configuration, but that all is text here, and what is empty is not given."""
    details = error.errors(include_url=False)
    for detail, (field, what) in zip(details, describe_fields(error, model=model), strict=True):
        match detail["type"]:
            case "extra_forbidden":
                said = what.replace("unknown", "unknown parameter", 1)
            case "string_too_short":
                said = "missing; it must be given"
            case "string_too_long":
                said = what.partition("; found")[0]
            case "bool_parsing":
                said = f"must be 1 or 0; found {show(detail['input'])}"
            case "int_parsing" | "int_parsing_size":
                said = f"must be a whole number; found {show(detail['input'])}"
            case _:
                said = what
        yield FieldProblem(field, said)
