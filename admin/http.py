"""The admin address: page, API, metrics and probes over HTTP, in the process and the event loop of the sidecar.

It sees the data path only through ``proxy.control``. Here its parts are put together; who may use it is
``admin.auth`` and ``admin.guard``, how many at once ``admin.connections``.
"""

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from admin import web
from admin.answering import Refusals
from admin.auth import ANYONE, Keyring, is_loopback
from admin.connections import Connections
from admin.endpoint import Endpoint
from admin.errors import StartError, listen_error
from admin.guard import Guard, Public
from admin.health import Health
from admin.metrics import Family, counter, scrape
from admin.problems import problem
from admin.settings import AdminSettings
from admin.tls import Certificate
from admin.wire import BASE
from proxy.control import DataPath

_METRICS: Final = "/metrics"
_PROBES: Final = frozenset({"/healthz", "/readyz"})

#: Those who come while the process is busy wait here, and not for a second attempt of their system's.
_BACKLOG: Final = 1024


def application(
    data_path: DataPath,
    health: Health,
    *,
    keyring: Keyring | None = None,
    settings: AdminSettings | None = None,
    api: ASGIApp | None = None,
    page: Sequence[BaseRoute] | None = None,
    refusals: Refusals | None = None,
    extra: Callable[[], Iterable[Family]] = tuple,
) -> ASGIApp:
    """Make the ASGI application.

    Args:
        data_path: what the metrics are taken from.
        health: what the probes ask.
        keyring: who may do what; everybody everything if not given.
        settings: names of the host, and whether metrics want a token; as without a configuration if not given.
        api: served below ``/api/v1``.
        page: routes without parameters, which want no token; the page's if not given.
        refusals: where refusals are counted.
        extra: makes further metrics for each scrape.
    """
    keyring = keyring or Keyring(ANYONE)
    settings = settings or AdminSettings()
    refusals = refusals or Refusals()
    page = web.routes() if page is None else page
    # One after the other: each takes a slice of the event loop in every turn of it.
    scraping = trio.Lock()

    async def metrics(request: Request) -> Response:
        async with scraping:
            more = [_refusals(refusals), *extra()]
            pieces, content_type = await scrape(data_path, request.headers.get("accept", ""), more)
        length = str(sum(map(len, pieces)))
        return StreamingResponse(_each(pieces), headers={"content-type": content_type, "content-length": length})

    async def healthz(_: Request) -> Response:
        # Getting here took the event loop, and that is all there is to be alive about.
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        readiness = await health.readiness()
        return JSONResponse(readiness, status_code=200 if readiness["ready"] else 503)

    routes: list[BaseRoute] = [
        Route(_METRICS, metrics),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        *page,
    ]
    if api is not None:
        routes.append(Mount(BASE, app=api))
    inner = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})
    # Another spelling of a path is another path, and not there.
    inner.router.redirect_slashes = False
    return Guard(
        inner,
        keyring,
        public=Public(
            pages=_exact_paths(page),
            probes=_PROBES | {_METRICS} if settings.public_metrics else _PROBES,
        ),
        allowed_hosts=_names(settings),
        refusals=refusals,
    )


def _refusals(refusals: Refusals) -> Family:
    return counter(
        "sluice_admin_refused",
        "Requests and connections that the admin address refused, by reason.",
        ("reason",),
        (((reason,), count) for reason, count in refusals.by_reason.items()),
    )


async def _each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def bind(endpoint: Endpoint, *, anyone: bool = True) -> socket.socket:
    """Bind the admin address and listen on it.

    Args:
        endpoint: the address.
        anyone: others than this machine may reach it.

    Raises:
        StartError: the address is taken, not of this machine, or not permitted; or others reach it who must not.
    """
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(endpoint)
        reached = bound_endpoint(sock)
        if anyone or is_loopback(reached.host):
            sock.listen(_BACKLOG)
            return sock
    except OSError as error:
        sock.close()
        raise listen_error("admin", str(endpoint), error) from error
    sock.close()
    raise StartError(
        f"admin: {endpoint} is {reached}, which others reach, and it wants no token; listen on 127.0.0.1, or set "
        "admin.token_file (or SLUICE_ADMIN_TOKEN)"
    )


def bound_endpoint(sock: socket.socket) -> Endpoint:
    """Return the address a socket is bound to, with the port the system chose for port 0."""
    host, port = sock.getsockname()[:2]
    return Endpoint(host, port)


async def run(
    app: ASGIApp,
    sock: socket.socket,
    *,
    certificate: Certificate | None = None,
    refusals: Refusals | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; takes the socket over.

    Args:
        app: what to serve.
        sock: from ``bind``.
        certificate: makes it HTTPS.
        refusals: where connections are counted that were not served.
        task_status: reports that requests are answered.
    """
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    connections = Connections(
        app,
        tls=None if certificate is None else certificate.context,
        count=(refusals or Refusals()).count,
    )
    await connections.serve(listener, task_status=task_status)


def _exact_paths(routes: Sequence[BaseRoute]) -> frozenset[str]:
    """Return the paths of routes.

    Raises:
        TypeError: one of them stands for more than one path.
    """
    paths = set()
    for route in routes:
        if not isinstance(route, Route) or route.param_convertors:
            raise TypeError(f"a page needs a path of its own: {route!r}")
        paths.add(route.path)
    return frozenset(paths)


def _names(settings: AdminSettings) -> list[str]:
    listen = settings.listen
    return [*settings.allowed_hosts, *([listen.host] if isinstance(listen, Endpoint) else [])]


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError(f"no refusal: {error!r}")
    what = {404: "there is nothing here", 405: "this cannot be done here"}.get(error.status_code, error.detail)
    return _problem(error.status_code, what, dict(error.headers or {}))


async def _failed(_: Request, __: Exception) -> Response:
    # The guard writes the reason into the log.
    return _problem(500, "internal error; the log has the reason", {})


def _problem(status: int, detail: str, more: dict[str, str]) -> Response:
    headers, body = problem(status, detail)
    return Response(body, status, {**more, **{name.decode(): value.decode() for name, value in headers}})
