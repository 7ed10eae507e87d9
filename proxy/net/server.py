"""Listeners: accept clients, connect each to its broker, and part from all of them in order.

A listener belongs to a data path; connections belong to a listener. What a connection does is in
``connection``, when a listener listens in ``broker_watch``, every socket call in ``sockets``.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import structlog
import trio

from proxy.common.admission import ClientCounts, ConnectionRate, Network, client_address, in_networks
from proxy.common.buffers import GatherRoom
from proxy.common.log_rate import LogRate
from proxy.deciding.batch import ConnectionInfo
from proxy.net import sockets
from proxy.net.broker_watch import BrokerWatch
from proxy.net.connection import Connection, Services
from proxy.net.sockets import Address, ListeningSocket, Wire, format_address
from proxy.protocols.base import CommandRequest, CommandStatus, Protocol, Session, SessionContext, WireCounters

_log = structlog.get_logger(__name__)

_BACKLOG: Final = 4096
#: How long to wait before accepting again when the process or the machine has no room for another socket.
_NO_ROOM_PAUSE_S: Final = 0.1
#: Accepted without giving other tasks a turn, at the most.
_ACCEPTS_A_TURN: Final = 16


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One address that clients connect to, and the broker behind it.

    Attributes:
        name: unique among the listeners; in logs and metrics.
        protocol: what is spoken there.
        options: an instance of ``protocol.options``.
        listen: host and port to bind; port 0 takes a free one.
        broker: host and port of the broker.
        scope: listeners of one scope share what is limited per listener; empty means the listener's own name.
        connect_timeout_s: how long the broker may take to accept.
        exempt: networks whose clients are not limited, neither in what they send nor in how they connect.
        max_connections_per_client: connections that one client may have to the listeners of the scope; a client
            that has so many is closed at once. None is any number.
        new_connections_per_s: connections taken each second; what comes faster is closed at once. None is any number.
    """

    name: str
    protocol: Protocol
    options: Any
    listen: Address
    broker: Address
    scope: str = ""
    connect_timeout_s: float = 5.0
    exempt: tuple[Network, ...] = ()
    max_connections_per_client: int | None = None
    new_connections_per_s: float | None = None

    @property
    def scope_name(self) -> str:
        """What its limits are shared under."""
        return self.scope or self.name


@dataclass(slots=True)
class ServerCounters:
    """What happened to connections; plain integers.

    Attributes:
        accepted: connections accepted since the start, by listener.
        closed: connections ended, by listener and reason.
    """

    accepted: Counter[str]
    closed: Counter[tuple[str, str]]


class Server:
    """All listeners of one data path and their connections.

    Args:
        listeners: what to bind.
        services: shared by all connections.
        wire_counters: shared by all sessions.
        on_event: told of every connection opened and closed.
        max_connections: clients beyond it are closed as soon as they are accepted.
        room: clients that there are file descriptors for; likewise. None is any number.
    """

    def __init__(
        self,
        listeners: tuple[ListenerConfig, ...],
        services: Services,
        wire_counters: WireCounters,
        on_event: Callable[[Literal["opened", "closed"], dict[str, str | int]], None],
        *,
        max_connections: int,
        room: int | None = None,
    ) -> None:
        self.listeners = listeners
        self.counters = ServerCounters(Counter({config.name: 0 for config in listeners}), Counter())
        self.connections: dict[int, Connection] = {}
        self.draining = False
        self._services = services
        self._wire_counters = wire_counters
        self._max_connections = max_connections
        self._room = room
        self._on_event = on_event
        self._watches: dict[str, BrokerWatch] = {}
        self._open: Counter[str] = Counter()
        self._clients = ClientCounts()
        self._connection_rates = {
            config.name: ConnectionRate(config.new_connections_per_s, services.now_ns())
            for config in listeners
            if config.new_connections_per_s is not None
        }
        self._accepting = trio.CancelScope()
        self._nothing_open = trio.lowlevel.ParkingLot()
        self._next_id = 0
        self._log_rate = LogRate()
        self._gather_room = GatherRoom()
        #: What sessions share, by broker.
        self._shared: dict[Address, dict[str, Any]] = {}

    def bound(self, name: str) -> Address:
        """Return the address that a listener is bound to; port 0 was replaced by the one it got."""
        return self._watches[name].sockets[0].address

    def listening(self, name: str) -> bool:
        """Return whether clients can connect to a listener at this moment."""
        return self._watches[name].listening

    async def reach(self, name: str) -> str | None:
        """Try a listener's broker, unless it is known to be away; returns what is wrong with it, if anything is."""
        return await self._watches[name].reach()

    def open_connections(self, name: str) -> int:
        """Return how many connections of a listener are open."""
        return self._open[name]

    async def bind(self) -> None:
        """Bind all listeners, or none.

        Raises:
            ListenError: one of the addresses can't be had.
        """
        for config in self.listeners:
            try:
                bound = await sockets.bind(*config.listen, _BACKLOG)
            except OSError as error:
                self.close()
                raise ListenError(config, error) from None
            self._watches[config.name] = BrokerWatch(config.name, config.broker, config.connect_timeout_s, bound)

    def close(self) -> None:
        """Stop listening."""
        for watch in self._watches.values():
            watch.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; ``bind`` comes first. Started once each broker has been tried."""
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as trying:
                for watch in self._watches.values():
                    trying.start_soon(nursery.start, watch.run)
            task_status.started()
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for config in self.listeners:
                        for listening in self._watches[config.name].sockets:
                            accepting.start_soon(self._accept, config, listening, nursery)
            await trio.sleep_forever()

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let what is in flight finish, and end what is left after ``grace_s`` seconds."""
        self.draining = True
        self._accepting.cancel()
        self.close()
        for connection in list(self.connections.values()):
            connection.drain()
        with trio.move_on_after(grace_s):
            while self.connections:
                await self._nothing_open.park()
        for connection in list(self.connections.values()):
            connection.finish("grace_over", f"still open {grace_s:g} s after the drain began")

    async def _accept(self, config: ListenerConfig, listening: ListeningSocket, nursery: trio.Nursery) -> None:
        while True:
            for _ in range(_ACCEPTS_A_TURN):
                try:
                    client, peer = await listening.accept()
                except OSError as error:
                    if self.draining:
                        # Woken for a client in the very turn in which the socket was closed.
                        return
                    not_logged = self._log_rate.take((config.name, error.errno), trio.current_time())
                    if not_logged is not None:
                        _log.error("cannot accept", listener=config.name, error=error.strerror, not_logged=not_logged)
                    await trio.sleep(_NO_ROOM_PAUSE_S)
                    continue
                self._enter(config, client, peer, nursery)
            await trio.lowlevel.checkpoint()

    def _enter(self, config: ListenerConfig, client: Wire, peer: Address, nursery: trio.Nursery) -> None:
        """Serve a client that has just been accepted, or close it at once."""
        self.counters.accepted[config.name] += 1
        address = client_address(peer[0])
        self._next_id += 1
        info = ConnectionInfo(
            self._next_id,
            config.name,
            config.scope_name,
            format_address((address, peer[1])),
            address,
            in_networks(address, config.exempt),
        )
        turned_away = self._turned_away(config, info)
        if turned_away is not None:
            client.close()
            self.counters.closed[config.name, turned_away[0]] += 1
            self._log_closed(info, *turned_away)
            return
        self._open[config.name] += 1
        if not info.exempt:
            self._clients.add(info.scope, info.address)
        nursery.start_soon(self._serve, config, info, client)

    def _turned_away(self, config: ListenerConfig, info: ConnectionInfo) -> tuple[str, str] | None:
        """Return why a client is not served, if it is not: the reason and its detail."""
        open_now = sum(self._open.values())
        if open_now >= self._max_connections:
            return "too_many_connections", f"{self._max_connections} are open"
        if self._room is not None and open_now >= self._room:
            # Taken one by one until none is left, the admin address would have none to answer with.
            return "no_descriptors", f"{self._room} are open; the limit of open files has no room for more (ulimit -n)"
        if info.exempt:
            return None
        most = config.max_connections_per_client
        if most is not None and self._clients.of(info.scope, info.address) >= most:
            return "too_many_connections_of_client", f"{info.address} has {most} open"
        rate = self._connection_rates.get(config.name)
        # Last, so that whoever is turned away for something else takes nothing of the rate.
        if rate is not None and not rate.take(self._services.now_ns()):
            return "connection_rate", f"more than {config.new_connections_per_s:g} new connections per second"
        return None

    async def _serve(self, config: ListenerConfig, info: ConnectionInfo, client: Wire) -> None:
        """Serve one client from accept to close; nothing it does ends another connection."""
        try:
            reason, detail = await self._relay(config, info, client)
        except Exception as error:  # noqa: BLE001 - a fault of ours or of a plug-in's ends this connection, and no other
            self._services.log_failed(info, error)
            reason, detail = "internal_error", repr(error)
        finally:
            client.close()
            self._open[config.name] -= 1
            if not info.exempt:
                self._clients.remove(info.scope, info.address)
            if not self.connections:
                self._nothing_open.unpark_all()
        self.counters.closed[config.name, reason] += 1
        self._on_event("closed", {"id": info.id, "peer": info.peer, "reason": reason})
        self._log_closed(info, reason, detail)

    def _log_closed(self, info: ConnectionInfo, reason: str, detail: str) -> None:
        # An unreachable broker has had a line of its own.
        if reason.endswith("_closed") or reason in {"drained", "broker_unreachable"}:
            _log.debug("connection closed", listener=info.listener, peer=info.peer, reason=reason, detail=detail)
            return
        not_logged = self._log_rate.take((info.listener, reason), trio.current_time())
        if not_logged is not None:
            _log.info(
                "connection closed",
                listener=info.listener,
                peer=info.peer,
                reason=reason,
                detail=detail,
                not_logged=not_logged,
            )

    async def _relay(self, config: ListenerConfig, info: ConnectionInfo, client: Wire) -> tuple[str, str]:
        if client.has_left(half_closes=config.protocol.half_closes):
            # A flood of connections that are closed at once must not become one of the broker's.
            return "client_closed", "the client left before it was served"
        watch = self._watches[config.name]
        try:
            with trio.fail_after(config.connect_timeout_s):
                broker = await sockets.connect(*config.broker)
        except sockets.NoRoomError as error:
            # Ours, not the broker's: it must not be looked for there.
            return "no_descriptors", f"no socket left for the broker connection: {error.strerror}"
        except OSError as error:
            return self._unreachable(config, watch, error.strerror or str(error))
        except trio.TooSlowError:
            return self._unreachable(config, watch, f"no answer within {config.connect_timeout_s:g} s")

        def open_session(wake: Callable[[], None], ask: Callable[[CommandRequest], CommandStatus]) -> Session:
            services = self._services
            context = SessionContext(
                connection=info,
                counters=self._wire_counters,
                wake=wake,
                wants_responses=services.pipeline.wants_responses,
                limits_kind=services.limits_kind,
                options=config.options,
                ask=ask,
                limiting=services.limiting,
                room=self._gather_room,
                shared=self._shared.setdefault(main_address(config, self.listeners), {}),
            )
            return config.protocol.open_session(context)

        try:
            connection = self.connections[info.id] = Connection(
                *(info, client, broker, self._services, open_session),
                broker_left=watch.broker_left,
                half_closes=config.protocol.half_closes,
            )
            self._on_event("opened", {"id": info.id, "peer": info.peer, "listener": info.listener})
            if self.draining:
                return "drained", "accepted just before the drain began"
            ended = await connection.run()
        finally:
            self.connections.pop(info.id, None)
            broker.close()
        if ended[0] == "broker_error":
            await watch.broker_left()
        return ended

    def _unreachable(self, config: ListenerConfig, watch: BrokerWatch, error: str) -> tuple[str, str]:
        """Have nobody else accepted, and return why the client is closed."""
        watch.lost(error)
        return "broker_unreachable", f"broker {format_address(config.broker)}: {error}"


def main_address(config: ListenerConfig, listeners: Iterable[ListenerConfig]) -> Address:
    """Return the main address of a listener's broker: the one behind it, or the one whose second port that is."""
    host, port = config.broker
    main = (host, port - config.protocol.second_port_offset)
    return main if any(each.broker == main for each in listeners) else config.broker


class ListenError(Exception):
    """A listener's address can't be had; the message says which and why."""

    def __init__(self, config: ListenerConfig, error: OSError) -> None:
        where = format_address(config.listen)
        super().__init__(f"listener {config.name!r} cannot listen on {where}: {error.strerror or error}")
        self.config = config
        self.error = error
