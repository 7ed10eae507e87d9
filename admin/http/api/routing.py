"""Routes requests to endpoints, and converts all errors to problem details."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from inspect import cleandoc, signature
from typing import Any, Final, Literal, get_args

import msgspec
import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import Receive, Scope, Send

from admin.edits.model import EditError
from admin.http.api.answers import Tagged, answer, bad, refused, unchanged
from admin.http.api.requests import from_text, read_tags, validated
from admin.http.problems import problem
from proxy.stats.question import QuestionError

Tags = Literal["", "list", "read", "write", "batch"]
Handler = Callable[..., Awaitable[Any]]

_CAUGHT: Final = (EditError, QuestionError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An HTTP method on a path.

    Attributes:
        handler: A method of a chapter. It is called with the request, the query parameters, and the values from the
            path.
        answer: Type of the response body. None if the response is a stream of events.
        tags: How the endpoint uses ETags. A ``list`` returns an ETag. A ``read`` also responds with 304 if the client
            already has this version. A ``write`` checks the resource's ETag if the client sends a condition. A
            ``batch`` checks the ETag of the list of limits.
        problems: Error statuses that this endpoint can return, in addition to those common to all endpoints or writes.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    description: str
    answer: type[msgspec.Struct] | None
    in_path: type[msgspec.Struct]
    query: type[msgspec.Struct]
    body: type[msgspec.Struct] | None
    example: Mapping[str, Any] | None
    tags: Tags
    problems: tuple[int, ...]


def endpoint(
    method: str,
    path: str,
    *,
    body: type[msgspec.Struct] | None = None,
    example: Mapping[str, Any] | None = None,
    tags: Tags = "",
    problems: tuple[int, ...] = (),
) -> Callable[[Handler], Endpoint]:
    """Return a decorator that turns a method into an endpoint.

    The method's annotations define the parameters and the response body.
    """

    def made(handler: Handler) -> Endpoint:
        summary, _, description = cleandoc(handler.__doc__ or "").partition("\n\n")
        given = signature(handler)
        _, _, query, *values = given.parameters.values()
        names = re.findall(r"{(\w+)", path)
        in_path = [(name, each.annotation) for name, each in zip(names, values, strict=True)]
        returned = given.return_annotation
        return Endpoint(
            method,
            path,
            handler,
            summary.removesuffix("."),
            " ".join(description.split()),
            None if returned is Response else (*get_args(returned), returned)[0],
            msgspec.defstruct("Path", in_path),
            query.annotation,
            body,
            example,
            tags,
            problems,
        )

    return made


class EndpointRoute(Route):
    """The Starlette route to an endpoint. ``tag`` is the endpoint's tag in the OpenAPI document."""

    def __init__(self, about: Endpoint, name: str, chapter: object, turns: trio.StrictFIFOLock) -> None:
        super().__init__(about.path, about.handler, methods=[about.method], name=name)
        self.about, self.tag = about, _tag(chapter)
        self._handler = partial(about.handler, chapter)
        self._turns = turns
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, about = Request(scope, receive, send), self.about
        try:
            await _check(request, takes_nothing=about.method != "GET" and about.body is None)
            in_path = validated(from_text(request.path_params), about.in_path)
            query = validated(from_text(request.query_params), about.query)
            response = await self._respond(
                request, await self._handler(request, query, *msgspec.structs.astuple(in_path))
            )
        except _CAUGHT as error:
            response = refused(error, batch=about.tags == "batch")
        # Edits that are committed together complete at the same time. Respond to only one per turn of the event loop.
        async with self._turns:
            pass
        await response(scope, receive, send)

    async def _respond(self, request: Request, result: Any) -> Response:
        if isinstance(result, Response):
            return result
        if not isinstance(result, Tagged):
            return await answer(result)
        body, etag = result
        if self.about.tags == "read" and etag is not None:
            tags = read_tags(request, "if-none-match")
            if tags is not None and tags.names(etag):
                return unchanged(etag)
        return await answer(body, etag=etag, store=self.about.tags != "list" and etag is not None)


def _tag(chapter: object) -> str:
    return type(chapter).__name__.removeprefix("_").lower()


class Api:
    """The API as an ASGI application. ``tags`` describes the chapters in the OpenAPI document."""

    def __init__(self, chapters: Sequence[object]) -> None:
        turns = trio.StrictFIFOLock()
        self.tags = [{"name": _tag(each), "description": type(each).__doc__} for each in chapters]
        routes = [
            EndpointRoute(about, name, chapter, turns)
            for chapter in chapters
            for name, about in vars(type(chapter)).items()
            if isinstance(about, Endpoint)
        ]
        self._router = Router(routes, redirect_slashes=False)
        self.routes: list[BaseRoute] = self._router.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            headers: dict[str, str] = {}
            if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                # The router would list only the methods of the first route that has this path.
                headers["allow"] = ", ".join(sorted(self._methods(scope)))
                detail = "the method is not allowed here"
            else:
                detail = "there is no such endpoint; /api/v1/openapi.json lists all endpoints"
            await problem(error.status_code, detail, headers=headers)(scope, receive, send)

    def _methods(self, scope: Scope) -> set[str]:
        routes = [each for each in self.routes if isinstance(each, Route)]
        matching = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
        pattern = max((route.path for route in matching), key=len)
        return {method for route in matching if route.path == pattern for method in route.methods or ()}


async def _check(request: Request, *, takes_nothing: bool) -> None:
    given: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in given:
            raise bad(name, "given more than once")
        given.add(name)
    if takes_nothing and await request.body():
        raise bad("body", "no body is allowed here; use query parameters")
