"""Checks readiness. Sluice is ready if it is listening, every broker accepts connections, and no shutdown has begun."""

from typing import Final, TypedDict

import trio

from proxy.control import DataPath
from proxy.stats.snapshot import ListenerState

PROBE_EVERY_S: Final = 1.0


class BrokerReadiness(TypedDict):
    """The result of the last probe of a listener's broker. ``error`` says why the broker is not reachable."""

    broker: str
    reachable: bool
    error: str | None


class Readiness(TypedDict):
    """The body of ``/readyz``.

    Attributes:
        listening: Whether every listener accepts clients.
        alarms: Raised alarms with their reasons. Sluice stays ready during an alarm, as a RabbitMQ node does, because
            only publishers are stopped, while consumers free resources.
    """

    ready: bool
    listening: bool
    draining: bool
    brokers: dict[str, BrokerReadiness]
    alarms: dict[str, str]


class Health:
    def __init__(self, data_path: DataPath) -> None:
        self._data_path = data_path
        self._lock = trio.Lock()
        self._listeners: tuple[ListenerState, ...] = ()
        self._probed_s = float("-inf")

    async def listeners(self) -> tuple[ListenerState, ...]:
        """Return the listeners' state, probing their brokers first if the last probe is older than PROBE_EVERY_S."""
        async with self._lock:
            if trio.current_time() - self._probed_s >= PROBE_EVERY_S:
                self._listeners = await self._data_path.probe_brokers()
                self._probed_s = trio.current_time()
            return self._listeners

    async def readiness(self) -> Readiness:
        await self.listeners()
        snapshot = await self._data_path.snapshot(whole=False)
        listening = bool(snapshot.listeners) and all(each.listening for each in snapshot.listeners)
        return Readiness(
            ready=listening and not snapshot.draining and all(each.reachable for each in snapshot.listeners),
            listening=listening,
            draining=snapshot.draining,
            brokers={
                each.name: BrokerReadiness(broker=each.broker, reachable=each.reachable, error=each.error)
                for each in snapshot.listeners
            },
            alarms={alarm.scarce: alarm.text for alarm in snapshot.alarms if alarm.stands},
        )
