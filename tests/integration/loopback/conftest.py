"""The embedded broker for clients in separate processes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio

from admin.demo.broker import Loopback, serve_broker


class Embedded:
    def __init__(self, loopback: Loopback) -> None:
        self.loopback = loopback
        self.namesrv = loopback.name_server_address

    async def run(self, run_client: Callable[..., Any], *arguments: object, **options: object) -> Any:
        """Run a client program on a thread, so that the broker continues, and return its report."""
        return await trio.to_thread.run_sync(partial(run_client, *arguments, **options))


@pytest.fixture
async def embedded(nursery: trio.Nursery) -> Iterator[Embedded]:
    yield Embedded(await nursery.start(serve_broker))
    nursery.cancel_scope.cancel()
