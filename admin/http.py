"""The admin address: metrics, health and the API over HTTP, in the process and the event loop of the sidecar.

It sees the data path only through ``proxy.control``. There is no authentication, so the default address is
this machine's own; what changes anything is served elsewhere or not at all.
"""

import socket
from collections.abc import Sequence
from functools import partial
from typing import cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.typing import ASGIFramework
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from admin import api, wire
from admin.errors import listen_error
from admin.health import Health
from admin.metrics import scrape
from admin.settings import Endpoint
from proxy.control import DataPath

_log = structlog.get_logger(__name__)

_BACKLOG = 128
#: Probes and scrapes are short; whoever holds an idle connection longer is cut off.
_KEEP_ALIVE_S = 75


def application(data_path: DataPath, health: Health, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Make the ASGI application.

    Args:
        data_path: what the metrics are taken from and the API asks.
        health: what the probes ask.
        routes: served besides.
    """

    async def metrics(request: Request) -> Response:
        body, content_type = await scrape(data_path, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def healthz(_: Request) -> Response:
        # Getting here took the event loop, and that is all there is to be alive about.
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        readiness = await health.readiness()
        return JSONResponse(readiness, status_code=200 if readiness["ready"] else 503)

    async def index(_: Request) -> Response:
        return PlainTextResponse(
            "sluice admin\n\n/metrics  Prometheus metrics\n/healthz  alive\n/readyz   ready for traffic\n"
            f"{wire.EXPLAIN}?kind=topic&name=orders  what limits it, and its state\n"
        )

    async def failed(request: Request, error: Exception) -> Response:
        _log.error("admin request failed", path=request.url.path, error=repr(error))
        return PlainTextResponse("internal error; the log has the reason\n", status_code=500)

    return Starlette(
        exception_handlers={Exception: failed},
        routes=[
            Route("/", index),
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *api.routes(data_path),
            *routes,
        ],
    )


def bind(endpoint: Endpoint) -> socket.socket:
    """Bind the admin address and listen on it.

    Raises:
        StartError: the address is taken, not of this machine, or not permitted.
    """
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(endpoint)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise listen_error("admin", str(endpoint), error) from error
    return sock


def bound_endpoint(sock: socket.socket) -> Endpoint:
    """Return the address a socket is bound to, with the port the system chose for port 0."""
    host, port = sock.getsockname()[:2]
    return Endpoint(host, port)


async def run(
    app: Starlette, sock: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled; takes the socket over.

    Args:
        app: what to serve.
        sock: from ``bind``.
        task_status: reports that requests are answered.
    """
    config = Config()
    # Given as a descriptor, hypercorn binds nothing itself; errors of binding are ours to word. It owns the
    # descriptor from here on.
    config.bind = [f"fd://{sock.detach()}"]
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.graceful_timeout = 1.0

    # The two describe the same ASGI in types that do not meet.
    framework = cast("ASGIFramework", app)
    async with trio.open_nursery() as nursery:
        # Given a trigger, even one that never comes, hypercorn leaves the signals alone.
        await nursery.start(partial(serve, framework, config, shutdown_trigger=trio.sleep_forever))
        task_status.started()
