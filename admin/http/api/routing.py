"""Endpoints as methods of a class: they answer requests, with every error as a problem, and describe themselves.

The OpenAPI document is made from the same description. Unknown parameters, and parameters given twice, are refused.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from inspect import cleandoc, signature
from typing import Any, Final, Literal, Protocol

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from admin.config.faults import describe_fields, show
from admin.http.api.answers import EDIT_ERRORS, BadRequestError, bad, failed, refused, refused_by_router
from admin.http.api.requests import Nothing, Parameters
from admin.wire import FieldProblem
from proxy.common.cooperative import turn

Tags = Literal["", "list", "read", "write", "batch"]

_CAUGHT: Final = (BadRequestError, *EDIT_ERRORS)


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request, for the document.

    Attributes:
        schema: the name of its schema.
        what: its description.
        example: an example.
        required: whether a request must have it.
    """

    schema: str
    what: str
    example: Mapping[str, Any]
    required: bool = True


Handler = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What one method does with one path.

    Attributes:
        method: of HTTP.
        path: below ``/api/v1``.
        handler: gets its resource, the request, the query, and the values of the path in the order of ``in_path``.
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

    method: str
    path: str
    handler: Handler
    summary: str
    description: str
    answer: str
    example: object
    in_path: type[Parameters]
    query: type[Parameters]
    body: Body | None
    tags: Tags
    problems: tuple[int, ...]


def endpoint(
    method: str,
    path: str,
    answer: str,
    example: object,
    *,
    in_path: type[Parameters] = Nothing,
    body: Body | None = None,
    tags: Tags = "",
    problems: tuple[int, ...] = (),
) -> Callable[[Handler], Endpoint]:
    """Make an endpoint of a method; the arguments are those of ``Endpoint``.

    The docstring is its summary and its description, and the type of the third argument says what the query has.
    """

    def made(handler: Handler) -> Endpoint:
        summary, _, description = cleandoc(handler.__doc__ or "").partition("\n\n")
        query = list(signature(handler).parameters.values())[2].annotation
        words = summary.removesuffix("."), " ".join(description.split()), answer
        return Endpoint(method, path, handler, *words, example, in_path, query, body, tags, problems)

    return made


class EndpointRoute(Route):
    """The route of an endpoint.

    Attributes:
        about: the endpoint.
        tag: the chapter of the document that it stands in.
    """

    def __init__(self, about: Endpoint, name: str, resource: "Resource") -> None:
        super().__init__(about.path, about.handler, methods=[about.method], name=name)
        # Without HEAD, which Starlette adds.
        self.methods = {about.method}
        self.about, self.tag = about, resource.tag
        self._handler = partial(about.handler, resource)
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, about = Request(scope, receive, send), self.about
        try:
            await _check(request, takes_nothing=about.method != "GET" and about.body is None)
            in_path = _validated(about.in_path, request.path_params)
            query = _validated(about.query, dict(request.query_params) if scope["query_string"] else {})
            response = await self._handler(request, query, *vars(in_path).values())
        except _CAUGHT as error:
            response = refused(error, batch=about.tags == "batch")
        # Edits that were committed together are done at the same moment, but are not all answered in one turn.
        await turn()
        await response(scope, receive, send)


class Resource(Protocol):
    """A class whose attributes are the endpoints of one chapter of the document, called as they are named."""

    @property
    def tag(self) -> str:
        """The chapter."""


def serve(*resources: Resource) -> Starlette:
    """Make the application, to be mounted at ``/api/v1``.

    Its requests come from the guard, with ``author``, ``role`` and ``authentication`` in their state.
    """
    routes = [
        EndpointRoute(about, name, resource)
        for resource in resources
        for name, about in vars(type(resource)).items()
        if isinstance(about, Endpoint)
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: failed})
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: Exception) -> Response:
    response = refused_by_router(error, not_found="there is nothing here; /api/v1/openapi.json says what there is")
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Of the routes with this path, the router names the methods of the first.
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Return what can be done with a path, by the longest of the patterns that it matches."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    pattern = max((route.path for route in matching), key=len)
    return {method for route in matching if route.path == pattern for method in route.methods}


async def _check(request: Request, *, takes_nothing: bool) -> None:
    """Refuse what the router would ignore.

    Raises:
        BadRequestError: a parameter is given twice, or there is a body where none is expected.
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
