"""The API with a real edit service and a fake data path, called without a socket."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
import trio
from starlette.applications import Starlette
from starlette.routing import Mount

from admin.config.sources import Flags, load
from admin.edits.model import Author
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.http.api import Services, application
from admin.run.composition import compose
from admin.stats import LiveStats
from admin.stats.health import Health
from proxy.common.clock import Clock

CONFIG = """
[[listeners]]
listen = "127.0.0.1:0"
broker = "127.0.0.1:10911"

[defaults.topic]
rate = 1000

[[limits]]
kind = "topic"
name = "orders"
rate = 500

[[limits]]
kind = "topic"
name = "audit-*"
rate = 20
action = "shadow"

[[limits]]
kind = "topic"
name = "bulk-*"
shared = true
rate = "unlimited"
bytes_per_s = 1000000

[[limits]]
kind = "topic"
name = "orders"
rate = 50
between = "02:00-03:00"
"""


_NOW = datetime.now(UTC)
_TO_MIDDAY = _NOW.replace(hour=12) - _NOW


@dataclass
class Served:
    edits: EditService
    stats: LiveStats
    data_path: Any
    client: httpx2.AsyncClient
    app: Any = None
    services: Any = None
    warnings: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, **how: Any) -> httpx2.Response:
        """Request a path without normalizing it."""
        return await self.client.request(method, f"/api/v1/{path}", **how)

    async def get(self, path: str, **how: Any) -> httpx2.Response:
        return await self.ask("GET", path, **how)

    async def put(self, path: str, body: object, **how: Any) -> httpx2.Response:
        return await self.ask("PUT", path, json=body, **how)


def midday() -> datetime:
    """Return a time outside the hours of the rule that has some, at any time of the test run."""
    return datetime.now(UTC) + _TO_MIDDAY


def as_author(app: Any, name: str = "alice") -> Callable[..., Any]:
    """Does the guard's work."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        state = {"author": Author(name, "127.0.0.1:50222"), "role": "write", "authentication": True}
        await app({**scope, "state": state}, receive, send)

    return guarded


@pytest.fixture
async def served(data_path: Any, write: Any, nursery: trio.Nursery) -> AsyncIterator[Served]:
    plan = compose(load(write(CONFIG), {}, Flags()))
    edits = EditService(plan.rulebook, Store(None), clock=midday)
    await nursery.start(edits.run, data_path)
    stats = LiveStats(data_path, edits, Health(data_path), Clock(utc=midday))
    await nursery.start(stats.run)
    warnings: list[str] = []
    services = Services(data_path, edits, stats, lambda: warnings)
    app = application(services)
    mounted = mount(app)
    transport = httpx2.ASGITransport(as_author(mounted))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as client:
        yield Served(edits, stats, data_path, client, app, services, warnings)


def mount(app: Any) -> Any:
    return Starlette(routes=[Mount("/api/v1", app=app)])
