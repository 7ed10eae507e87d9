"""Whether Sluice is ready: listeners listen, every broker accepts connections, and no drain has begun."""

from typing import TypedDict

import trio

from proxy.control import DataPath
from proxy.stats.snapshot import BrokerReach

#: Brokers are not probed again within this time, whoever polls and however often.
PROBE_EVERY_S = 1.0


class BrokerReadiness(TypedDict):
    """Whether one listener's broker accepts connections.

    Attributes:
        broker: its ``address:port``.
        reachable: it accepted the last probe.
        error: what happened if it did not.
    """

    broker: str
    reachable: bool
    error: str | None


class Readiness(TypedDict):
    """The body of ``/readyz``.

    Attributes:
        ready: all of the following are as they should be.
        listening: clients can connect, to every listener; a listener whose broker takes no connections does not listen.
        draining: a stop has begun.
        brokers: by listener.
        alarms: active alarms with their reasons. Sluice stays ready, as a RabbitMQ node does: only publishers are
            stopped, and consumers make room.
    """

    ready: bool
    listening: bool
    draining: bool
    brokers: dict[str, BrokerReadiness]
    alarms: dict[str, str]


class Health:
    """Readiness of one data path that has been started.

    Args:
        data_path: what is asked.
    """

    def __init__(self, data_path: DataPath) -> None:
        self._data_path = data_path
        self._lock = trio.Lock()
        self._reaches: tuple[BrokerReach, ...] = ()
        self._probed_s = float("-inf")

    async def brokers(self) -> tuple[BrokerReach, ...]:
        """Return which brokers accept connections, at most PROBE_EVERY_S seconds old."""
        async with self._lock:
            if trio.current_time() - self._probed_s >= PROBE_EVERY_S:
                self._reaches = await self._data_path.probe_brokers()
                self._probed_s = trio.current_time()
            return self._reaches

    async def readiness(self) -> Readiness:
        """Return what ``/readyz`` says."""
        brokers = {
            reach.listener: BrokerReadiness(broker=reach.broker, reachable=reach.error is None, error=reach.error)
            for reach in await self.brokers()
        }
        snapshot = await self._data_path.snapshot(whole=False)
        listening = bool(snapshot.listeners) and all(listener.listening for listener in snapshot.listeners)
        return Readiness(
            ready=listening and not snapshot.draining and all(broker["reachable"] for broker in brokers.values()),
            listening=listening,
            draining=snapshot.draining,
            brokers=brokers,
            alarms={alarm.scarce: alarm.text for alarm in snapshot.alarms if alarm.stands},
        )
