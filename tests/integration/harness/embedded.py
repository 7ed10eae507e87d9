"""The embedded broker on its own thread, behind a sidecar, for tests without trio."""

import queue
import threading
from typing import Final, Self

import trio
from storing_broker import StoringBroker

from admin.demo.broker import Loopback, serve_broker
from harness.ports import free_port
from harness.sidecar import Route

_START_TIMEOUT_S: Final = 60.0


class EmbeddedBroker:
    """A broker that creates topics at their first message."""

    def __init__(self, broker: StoringBroker | None = None) -> None:
        self._broker = broker or StoringBroker()
        self.address = self.namesrv = ""
        self._loopback: Loopback
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken
        self._started: queue.SimpleQueue[Loopback] = queue.SimpleQueue()
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)

    def route(self) -> Route:
        """Return a route to it from a free port, for a sidecar."""
        return Route(f"127.0.0.1:{free_port()}", self.address)

    def stored(self, topic: str) -> int:
        return self._loopback.broker.stored(topic)

    def create_topic(self, name: str) -> None:
        """Make a topic, for clients that do not send to a missing one."""
        self._loopback.broker.create_topic(name)

    def advertise(self, address: str) -> None:
        """Use another ``host:port`` in routes from now on, such as a sidecar's."""
        self._loopback.broker.advertised = address

    def __enter__(self) -> Self:
        self._thread.start()
        self._loopback = self._started.get(timeout=_START_TIMEOUT_S)
        self.address, self.namesrv = self._loopback.broker_address, self._loopback.name_server_address
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._started.put(await nursery.start(serve_broker, 0, 0, self._broker))
