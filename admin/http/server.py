"""Serves the page, the API, metrics and probes on the admin address."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp

from admin import web
from admin.common.errors import StartError, listen_error
from admin.config.addresses import Endpoint, is_loopback
from admin.config.settings import AdminSettings
from admin.config.tls import Certificate
from admin.http.auth import ANYONE, Keyring
from admin.http.guard import Guard
from admin.http.http1 import MAX_CONNECTIONS, Http1Server
from admin.http.problems import Refusals
from admin.stats.health import Health
from admin.stats.metrics import Family, counter, scrape
from admin.wire import BASE
from proxy.control import DataPath
from proxy.net.sockets import Inherited

PROBES: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = "/metrics"

#: Maximum number of connections that wait to be accepted. Further clients must retry.
_BACKLOG: Final = 1024


def application(
    data_path: DataPath,
    health: Health,
    *,
    keyring: Keyring | None = None,
    settings: AdminSettings | None = None,
    api: ASGIApp | None = None,
    refusals: Refusals | None = None,
    extra: Callable[[], Iterable[Family]] = tuple,
) -> ASGIApp:
    """Make the ASGI application for the admin address. ``extra`` returns additional metrics."""
    settings = settings or AdminSettings()
    counted = Refusals() if refusals is None else refusals
    page = web.routes()
    scrapes = _Scrapes(lambda accept: scrape(data_path, accept, [refused_family(counted), *extra()]))

    async def metrics(request: Request) -> Response:
        pieces, content_type = await scrapes.next(request.headers.get("accept", ""))
        length = str(sum(map(len, pieces)))
        return StreamingResponse(_each(pieces), headers={"content-type": content_type, "content-length": length})

    async def healthz(_: Request) -> Response:
        # Liveness only means that the event loop is running.
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        readiness = await health.readiness()
        return JSONResponse(readiness, status_code=200 if readiness["ready"] else 503)

    routes: list[BaseRoute] = [Route(METRICS, metrics), Route("/healthz", healthz), Route("/readyz", readyz), *page]
    if api is not None:
        routes.append(Mount(BASE, app=api))
    listen = settings.listen
    return Guard(
        # A path that differs only in a trailing slash does not exist.
        Router(routes, redirect_slashes=False),
        keyring or Keyring(ANYONE),
        pages=[route.path for route in page],
        probes=PROBES | {METRICS} if settings.public_metrics else PROBES,
        allowed_hosts=[*settings.allowed_hosts, *([listen.host] if isinstance(listen, Endpoint) else [])],
        refusals=counted,
    )


class _Scrapes:
    """Runs one scrape of ``/metrics`` at a time. Requests that arrive during a scrape share the next one."""

    def __init__(self, make: Callable[[str], Awaitable[tuple[list[bytes], str]]]) -> None:
        self._make = make
        self._lock = trio.StrictFIFOLock()
        self._begun = 0
        self._made: tuple[str, tuple[list[bytes], str]] | None = None

    async def next(self, accept: str) -> tuple[list[bytes], str]:
        asked = self._begun
        async with self._lock:
            if self._begun > asked and self._made is not None and self._made[0] == accept:
                return self._made[1]
            self._begun += 1
            self._made = None
            made = await self._make(accept)
            # The result is large, so keep it only for requests that are already waiting.
            self._made = (accept, made) if self._lock.statistics().tasks_waiting else None
            return made


def refused_family(refusals: Refusals) -> Family:
    return counter(
        "sluice_admin_refused",
        "Requests and connections that the admin address refused, by reason.",
        ("reason",),
        (((reason,), count) for reason, count in list(refusals.items())),
    )


async def _each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def bind(
    endpoint: Endpoint,
    *,
    anyone: bool = True,
    inherited: Inherited | None = None,
    hint: str = "",
    v6only: bool = False,
) -> socket.socket:
    """Bind the admin address and listen on it. Raises StartError.

    Unless ``anyone`` is set, it is an error if other machines can reach the address. ``hint`` is added to the error
    message if the address is in use. If ``v6only`` is set, ``::`` does not include IPv4.
    """
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with ExitStack() as failing:
        try:
            (*_, address), *_ = socket.getaddrinfo(*endpoint, family, socket.SOCK_STREAM)
            sock = None if inherited is None else inherited.take(family, (str(address[0]), endpoint.port))
            if sock is None:
                sock = failing.enter_context(socket.socket(family, socket.SOCK_STREAM))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
                sock.bind(address)
            reached = bound_endpoint(sock)
            if anyone or is_loopback(reached.host):
                sock.listen(_BACKLOG)
                failing.pop_all()
                return sock
        except OSError as error:
            raise listen_error("admin", str(endpoint), error, hint=hint, flag="--admin") from error
    raise StartError(
        f"admin: {endpoint} resolves to {reached}, which other machines can reach, and no token is set; listen on "
        "127.0.0.1 or set admin.token_file (or SLUICE_ADMIN_TOKEN)"
    )


def bound_endpoint(sock: socket.socket) -> Endpoint:
    host, port = sock.getsockname()[:2]
    return Endpoint(host, port)


async def run(
    app: ASGIApp,
    sock: socket.socket,
    *,
    certificate: Certificate | None = None,
    refusals: Refusals | None = None,
    max_connections: int = MAX_CONNECTIONS,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve requests on ``sock``, which ``bind`` returned, until cancelled. Then close it."""
    http = Http1Server(
        app,
        probes=PROBES,
        tls=None if certificate is None else certificate.context,
        refusals=Refusals() if refusals is None else refusals,
        max_connections=max_connections,
    )
    await http.serve(sock, task_status=task_status)
