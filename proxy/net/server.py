"""Accepts clients, connects each one to its broker, and closes connections in an orderly way."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from select import EPOLLOUT
from typing import Any, Final

import structlog
import trio
from msgspec.structs import replace

from limiter.adaptive.controller import BrokerSeen
from limiter.rules.resource import CERTIFICATE, Resource
from proxy.common.admission import ConnectionRate, Network, client_address, in_networks
from proxy.common.buffers import GatherRoom
from proxy.common.log_rate import LogRate
from proxy.deciding.batch import ConnectionInfo, Side
from proxy.deciding.judge import judge_of
from proxy.net import proxy_protocol, sockets
from proxy.net.arrival import Arrival
from proxy.net.broker_watch import BrokerWatch
from proxy.net.connection import Connection
from proxy.net.proxy_protocol import Header
from proxy.net.reactor import Timer, Watched
from proxy.net.services import Services
from proxy.net.shutdown import CLOSE_TIMEOUT_S
from proxy.net.sockets import Address, Connecting, Inherited, ListeningSocket, Wire, format_address
from proxy.net.timeouts import Timeouts
from proxy.net.tls import BrokerTls, ClientTls, TlsError, TlsWire
from proxy.protocols.base import Close, ListenerAddresses, Protocol, Replayed, Session, SessionContext, WireCounters
from proxy.stats.snapshot import ConfirmState

_log = structlog.get_logger(__name__)

_BACKLOG: Final = 4096
#: Most requests are decided within this time, unless the broker accepts no data.
_SETTLE_S: Final = 0.1
_CHECK_AGAIN_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """An address that clients connect to, and its broker. The settings reference describes most fields.

    Attributes:
        options: An instance of ``protocol.options``.
        v6only: Whether ``::`` excludes IPv4, because another socket uses the same port on IPv4.
        backup_brokers: Used while ``broker`` is unreachable. Sluice treats all of them as one broker.
        scope: If empty, the listener's name is used.
        client_tls: None if Sluice does not terminate TLS.
    """

    name: str
    protocol: Protocol
    options: Any
    listen: Address
    broker: Address
    backup_brokers: tuple[Address, ...] = ()
    scope: str = ""
    connect_timeout_s: float = 5.0
    exempt: tuple[Network, ...] = ()
    max_connections_per_client: int | None = None
    new_connections_per_s: float | None = None
    v6only: bool = False
    reuse_port: bool = False
    proxy_protocol_from: tuple[Network, ...] = ()
    send_proxy_protocol: proxy_protocol.Version | None = None
    handshake_timeout_s: float = 10.0
    frame_timeout_s: float = 60.0
    idle_timeout_s: float | None = None
    write_timeout_s: float | None = None
    client_tls: ClientTls | None = None
    broker_tls: BrokerTls | None = None

    @property
    def scope_name(self) -> str:
        return self.scope or self.name

    @property
    def brokers(self) -> tuple[Address, ...]:
        return self.broker, *self.backup_brokers


@dataclass(slots=True)
class ServerCounters:
    """Counts accepted connections by listener, and closed ones by listener and reason."""

    accepted: Counter[str]
    closed: Counter[tuple[str, str]]


class Server:
    """All listeners of a data path, and their connections.

    Args:
        room: How many connections the limit on open files allows. None if it is unlimited.
        before_end: Called before the server closes the remaining connections.

    Attributes:
        alarm: The reason given to clients while publishers are blocked. Otherwise empty.
        connections: Connections that have a session, by id.
        new: Connections that the compiled extension serves without a session, by id.
    """

    def __init__(
        self,
        listeners: tuple[ListenerConfig, ...],
        services: Services,
        wire_counters: WireCounters,
        *,
        max_connections: int,
        room: int | None = None,
        before_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.listeners = listeners
        self.alarm = ""
        self._before_end = before_end
        self.counters = ServerCounters(Counter({config.name: 0 for config in listeners}), Counter())
        self.connections: dict[int, Connection] = {}
        self.new: dict[int, _Client] = {}
        self.draining = False
        self.services = services
        for lost in (services.lost_messages, services.lost_bytes):
            # Export zeros, so that the first loss shows as an increase.
            lost.update({config.name: 0 for config in listeners})
        self._wire_counters = wire_counters
        self._max_connections = max_connections
        self._room = room
        self.watches: dict[str, BrokerWatch] = {}
        self._served: set[_Client] = set()
        self._open: Counter[str] = Counter()
        #: Open connections by scope and client address.
        self._clients = Counter[tuple[str, str]]()
        self._connection_rates = {
            config.name: ConnectionRate(config.new_connections_per_s, services.now_ns())
            for config in listeners
            if config.new_connections_per_s is not None
        }
        self._nothing_open = trio.lowlevel.ParkingLot()
        self._next_id = 0
        self._log_rate = LogRate()
        self._gather_room = GatherRoom()
        self._candidates: dict[tuple[str, Address], dict[sockets.Found, Address] | None] = {}
        self._log = _log.bind()
        by_broker: dict[tuple[str, Address], Any] = {}
        #: By listener. All sessions with the same broker share a hub.
        self._hubs: dict[str, Any] = {}
        for config in listeners:
            broker = (config.protocol.name, main_address(config, listeners))
            if broker not in by_broker:
                by_broker[broker] = config.protocol.open_hub()
            self._hubs[config.name] = by_broker[broker]
        self._protocols = {config.name: config.protocol for config in listeners}

    def bound(self, name: str) -> Address:
        return self.watches[name].sockets[0].address

    async def reach(self, name: str) -> str | None:
        return await self.watches[name].reach()

    def open_connections(self, name: str) -> int:
        return self._open[name]

    async def bind(self, inherited: Inherited | None = None) -> None:
        """Bind all listeners. If an address is not available, bind none of them and raise ListenError."""
        for config in self.listeners:
            try:
                enter, no_room = partial(self._enter, config), partial(self._log_accept_error, config)
                make = partial(ListeningSocket, self.services.reactor, enter, no_room, _BACKLOG)
                bound = await sockets.bind(
                    *config.listen, make, inherited, v6only=config.v6only, reuse_port=config.reuse_port
                )
            except OSError as error:
                self.close()
                raise ListenError(config, error) from None
            self.watches[config.name] = BrokerWatch(
                *(config.name, config.brokers, config.connect_timeout_s, bound),
                proxy_protocol=config.send_proxy_protocol,
                tls=config.broker_tls,
            )

    def close(self) -> None:
        for watch in self.watches.values():
            watch.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Call ``bind`` first."""
        try:
            async with trio.open_nursery() as nursery:
                async with trio.open_nursery() as trying:
                    for watch in self.watches.values():
                        trying.start_soon(nursery.start, watch.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self.close()
            self._before_end()
            for client in list(self._served):
                client.release()

    def each_connection(self, *, new: bool = True) -> Iterator[Connection]:
        """Yield the open connections, which may close while you iterate.

        If ``new``, connections without a session are included and get one.
        """
        for number in [*self.connections, *(self.new if new else ())]:
            connection = self.connection(number)
            if connection is not None:
                yield connection

    def connection(self, number: int) -> Connection | None:
        """Return the connection with this id, or None. If it has no session yet, open one."""
        client = self.new.get(number)
        if client is not None:
            client.left()
        return self.connections.get(number)

    def take_seen(self) -> dict[str, BrokerSeen]:
        services, now_ns = self.services, self.services.now_ns()
        unanswered = Counter[str]()
        if services.lending is not None:
            unanswered.update(services.lending.take_signals(services.signals))
        stalled = set[str]()
        for connection in self.connections.values():
            scope = connection.info.scope
            unanswered[scope] += connection.unanswered()
            if connection.is_stalled(now_ns):
                stalled.add(scope)
        return {
            scope: signals.take(unanswered[scope], is_stalled=scope in stalled)
            for scope, signals in services.signals.items()
        }

    def held_bytes(self) -> int:
        return sum(protocol.held_bytes(hub) for protocol, hub in self._hubs_with_protocols())

    def confirm_states(self) -> Iterator[ConfirmState]:
        now_ns = self.services.now_ns()
        for protocol, hub in self._hubs_with_protocols():
            yield from protocol.confirm_states(hub, now_ns)

    def _hubs_with_protocols(self) -> Iterable[tuple[Protocol, Any]]:
        return {id(hub): (self._protocols[name], hub) for name, hub in self._hubs.items()}.values()

    def descriptors(self) -> list[int]:
        return [each.fileno() for watch in self.watches.values() for each in watch.sockets]

    async def hold(self, *, at_once: str = "") -> None:
        """Stop accepting clients and requests. New clients wait for the process that takes over the sockets.

        Returns when all requests have been decided, or after a short time. If ``at_once`` is not empty, all connections
        are closed without waiting for answers, and clients get ``at_once`` as the reason.
        """
        self.draining = True
        for watch in self.watches.values():
            watch.hold()
        if at_once:
            self._before_end()
        for connection in self.each_connection():
            if at_once:
                connection.shutdown.close_at_once("handed_over", at_once)
            else:
                connection.drain()
        with trio.move_on_after(_SETTLE_S):
            while at_once and self.connections:
                await self._nothing_open.park()
            while any(each.deciding for each in self.connections.values()):  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(_CHECK_AGAIN_S)

    def resume(self) -> None:
        """Accept clients again. Draining connections still close."""
        self.draining = False
        for watch in self.watches.values():
            watch.resume()

    async def drain(self, grace_s: float) -> None:
        self.draining = True
        self.close()
        for connection in self.each_connection():
            connection.drain()
        with trio.move_on_after(grace_s):
            while self.connections:
                await self._nothing_open.park()
        self._before_end()
        for connection in list(self.connections.values()):
            connection.shutdown.close_at_once(
                "grace_over", f"Sluice is shutting down, and the grace period of {grace_s:g} s has ended"
            )

    def _log_accept_error(self, config: ListenerConfig, error: Exception) -> None:
        number = error.errno if isinstance(error, OSError) else type(error)
        not_logged = self._log_rate.take((config.name, number), trio.current_time())
        if not_logged is not None:
            told = getattr(error, "strerror", None) or repr(error)
            _log.error("accept failed", listener=config.name, error=told, not_logged=not_logged)

    def _enter(self, config: ListenerConfig, wire: Wire, peer: Address, local: Address) -> None:
        self.counters.accepted[config.name] += 1
        self._next_id += 1
        info = self.info(config, self._next_id, peer, local[0])
        overload = self._overload_reason()
        if overload is not None:
            wire.close()
            self.closed(info, *overload)
            return
        self._open[config.name] += 1
        client = _Client(self, config, info, wire, (peer, local))
        self._served.add(client)
        client.arrive()

    def info(self, config: ListenerConfig, number: int, source: Address, local: str) -> ConnectionInfo:
        address = client_address(source[0])
        return ConnectionInfo(
            number,
            config.name,
            config.scope_name,
            format_address((address, source[1])),
            address,
            in_networks(address, config.exempt),
            spools=self.services.spool is not None,
            local=client_address(local),
        )

    def _overload_reason(self) -> tuple[str, str] | None:
        open_now = sum(self._open.values())
        if open_now >= self._max_connections:
            return "too_many_connections", f"max_connections ({self._max_connections}) has been reached"
        if self._room is not None and open_now >= self._room:
            # The admin address needs descriptors too.
            return (
                "no_descriptors",
                f"the limit on open files (ulimit -n) allows no more than {self._room} connections",
            )
        return None

    def admit(self, config: ListenerConfig, info: ConnectionInfo) -> None:
        """Count a new client, or raise Close to reject it."""
        if info.exempt:
            return
        most = config.max_connections_per_client
        if most is not None and self._clients[info.scope, info.address] >= most:
            detail = f"max_connections_per_client ({most}) has been reached for {info.address}"
            raise Close("too_many_connections_of_client", detail)
        rate = self._connection_rates.get(config.name)
        # Check the rate last, because clients rejected for other reasons must not use it up.
        if rate is not None and not rate.take(self.services.now_ns()):
            raise Close(
                "connection_rate",
                f"more than {config.new_connections_per_s:g} new connections per second (new_connections_per_s)",
            )
        self._clients[info.scope, info.address] += 1

    def left(self, client: "_Client", info: ConnectionInfo, *, admitted: bool) -> None:
        self._served.discard(client)
        self._open[info.listener] -= 1
        if admitted and not info.exempt:
            client_is = info.scope, info.address
            self._clients[client_is] -= 1
            if not self._clients[client_is]:
                del self._clients[client_is]
        self.new.pop(info.id, None)
        self.connections.pop(info.id, None)
        if not self.connections:
            self._nothing_open.unpark_all()

    def closed(self, info: ConnectionInfo, reason: str, detail: str) -> None:
        self.counters.closed[info.listener, reason] += 1
        if reason.endswith("_closed") or reason in {"drained", "broker_unreachable"}:
            self._log.debug("connection closed", listener=info.listener, peer=info.peer, reason=reason, detail=detail)
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

    def _listener_addresses(self) -> tuple[ListenerAddresses, ...]:
        return tuple(
            ListenerAddresses(config.protocol.name, self.bound(config.name), config.brokers)
            for config in self.listeners
        )

    def _warn(self, info: ConnectionInfo, about: str, detail: str) -> None:
        not_logged = self._log_rate.take((info.listener, about), trio.current_time())
        if not_logged is not None:
            _log.warning(about, listener=info.listener, peer=info.peer, detail=detail, not_logged=not_logged)

    def candidates(self, config: ListenerConfig) -> dict[sockets.Found, Address] | None:
        """Return the broker addresses to try, or None if names must be resolved for each client."""
        key = config.name, self.watches[config.name].broker
        if key not in self._candidates:
            known = {broker: sockets.resolved(*broker) for broker in self.watches[config.name].in_order()}
            self._candidates[key] = _candidates(known) if all(known.values()) else None
        return self._candidates[key]

    def connect(self, client: "_Client", wires: tuple[Wire, Wire], broker: Address, lent: int | None) -> None:
        services, config, info = self.services, client.config, client.info
        self.new.pop(info.id, None)

        def open_session(connection: Connection) -> Session:
            context = SessionContext(
                connection=info,
                counters=self._wire_counters,
                signals=services.signals[info.scope],
                wake=connection.wake,
                wants_responses=services.pipeline.wants_responses,
                limits_kind=services.limits_kind,
                options=config.options,
                ask=connection.ask,
                give_up=connection.tickets.give_up,
                pass_on=connection.tickets.pass_on,
                lose=connection.tickets.lose,
                limiting=services.limiting,
                room=self._gather_room,
                hub=self._hubs[config.name],
                resources=services.resources,
                spool=services.spool,
                stage=connection.stage,
                writer=connection.writer,
                watch_writes=connection.watch_writes,
                end_client=connection.end_client,
                client_silent=connection.client_silent,
                replayed=partial(_log_replayed, info),
                terms=services.terms,
                tightest=services.tightest,
                after_consume=services.after_consume,
                rules_version=services.rules_version,
                held_bounds=services.held_bounds,
                listeners=self._listener_addresses,
                warn=partial(self._warn, info),
                begun=client.begun,
            )
            return config.protocol.open_session(context)

        connection = self.connections[info.id] = Connection(
            *(info, *wires, services, open_session),
            broker_left=self.watches[config.name].broker_left,
            on_over=client.over,
            half_closes=config.protocol.half_closes,
            timeouts=Timeouts(config.handshake_timeout_s, config.frame_timeout_s, config.idle_timeout_s),
            broker_name=format_address(broker),
            opened_ns=client.opened_ns,
            lent=lent,
        )
        if self.draining and lent is None:
            connection.shutdown.abort("drained", "the connection was accepted just before the shutdown")
        else:
            handshake, client.handshake = client.handshake, None
            connection.start(handshake)
            if self.alarm:
                connection.alarm(self.alarm)


def _log_replayed(info: ConnectionInfo, replayed: Replayed) -> None:
    log = _log.warning if replayed.dropped else _log.info
    log(
        "replayed spooled messages from an earlier process",
        resource=f"{replayed.name.kind}:{replayed.name.name}",
        sender="/".join(replayed.name.sender),
        listener=info.listener,
        peer=info.peer,
        sent=replayed.sent,
        expired=replayed.expired,
        dropped=replayed.dropped,
        left=replayed.left,
        reason=replayed.reason,
    )


def _candidates(found: Mapping[Address, Iterable[sockets.Found] | None]) -> dict[sockets.Found, Address]:
    candidates: dict[sockets.Found, Address] = {}
    for broker, its_places in found.items():
        for place in its_places or ():
            # If brokers share an address, it belongs to the first of them.
            candidates.setdefault(place, broker)
    return candidates


class _Client(Watched):
    """Serves a client from accept to close. Watches the broker's socket until it is connected.

    Attributes:
        begun: The state that a session needs to take over from the compiled extension.
        handshake: Expires if a client without a session sends nothing.
    """

    __slots__ = (
        *("_admitted", "_arrival", "_broker", "_candidates", "_closed", "_connecting", "_ends", "_lent", "_resolving"),
        *("_server", "_timer", "_wire", "begun", "config", "handshake", "info", "opened_ns"),
    )

    def __init__(
        self, server: Server, config: ListenerConfig, info: ConnectionInfo, wire: Wire, ends: tuple[Address, Address]
    ) -> None:
        super().__init__(server.services.reactor, -1)
        self._server = server
        self.config = config
        self.info = info
        self._wire = wire
        #: The client's address, and the address that it connected to.
        self._ends = ends
        self._arrival: Arrival | None = None
        self._admitted = False
        self._broker: Wire | None = None
        self._candidates: dict[sockets.Found, Address] = {}
        self._lent: int | None = None
        self.begun: Any = None
        self.opened_ns: int | None = None
        self.handshake: Timer | None = None
        self._connecting: Connecting | None = None
        self._resolving: trio.CancelScope | None = None
        self._timer: Timer | None = None
        self._closed = False

    def arrive(self) -> None:
        config = self.config
        if config.write_timeout_s is not None:
            self._wire.bound_writes(config.write_timeout_s)
        expects_header = in_networks(self.info.address, config.proxy_protocol_from)
        if not expects_header and config.client_tls is None:
            try:
                self._identified(None)
            except Close as close:
                self._on_arrival_failed(close)
            else:
                self._on_arrival(self._wire)
            return
        self._arrival = Arrival(
            *(self.reactor, self._wire, self.info.address, config.handshake_timeout_s),
            expects_header=expects_header,
            tls=config.client_tls,
            on_identified=self._identified,
            on_arrived=self._on_arrival,
            on_failed=self._on_arrival_failed,
        )
        self._arrival.start()

    def _identified(self, header: Header | None) -> None:
        if header is not None and header.source is not None:
            source, destination = self._ends = header.source, header.destination or self._ends[1]
            self.info = self._server.info(self.config, self.info.id, source, destination[0])
        self._server.admit(self.config, self.info)
        self._admitted = True

    def _on_arrival(self, wire: Wire) -> None:
        self._arrival, self._wire = None, wire
        if isinstance(wire, TlsWire):
            name = wire.certificate
            scopes = (Resource(CERTIFICATE, name),) if name else ()
            self.info = replace(self.info, tls=wire.version, certificate=name, scopes=scopes)
        self.serve()

    def _on_arrival_failed(self, error: Exception) -> None:
        if isinstance(error, Close):
            self._close(error.reason, error.detail)
        elif isinstance(error, OSError):
            self._close("client_error", f"client: {error.strerror or error}")
        else:
            self._server.services.log_failed(self.info, error)
            self._close("internal_error", repr(error))

    def serve(self) -> None:
        if self._wire.has_left(half_closes=self.config.protocol.half_closes):
            # Protect the broker from floods of connections that are closed immediately.
            self._close("client_closed", "the client disconnected before it was served")
            return
        candidates = self._server.candidates(self.config)
        if candidates is not None:
            self._connect(candidates)
        else:
            self._wait()
            self._resolving = trio.CancelScope()
            self.reactor.start_soon(self._resolve, self._resolving)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.reactor.after(self.config.connect_timeout_s, self._timed_out)

    async def _resolve(self, scope: trio.CancelScope) -> None:
        brokers = self._server.watches[self.config.name].in_order()
        try:
            with scope:
                self._connect(_candidates({broker: await _resolved(broker, brokers) for broker in brokers}))
        except Exception as error:  # noqa: BLE001 - as the reactor does
            self.failed(error)

    def _connect(self, candidates: dict[sockets.Found, Address]) -> None:
        if self._closed:
            return
        self._candidates = candidates
        self._connecting = Connecting(self.config.broker[0], candidates)
        try:
            self.writable()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            self.failed(error)

    def writable(self) -> None:
        if self._broker is not None:
            self.readable()
            return
        assert self._connecting is not None  # noqa: S101 - nothing is written before
        self.unwatch()
        try:
            self._broker = self._connecting.resume()
        except OSError as error:
            self._unreachable(error)
            return
        if self._broker is None:
            self._wait()
            self._fd = self._connecting.fileno()
            self.add_interest(EPOLLOUT)
            return
        self._fd = self._broker.fileno()
        try:
            self._broker = self._server.watches[self.config.name].greet(self._broker, self._address, self._ends)
        except TlsError as error:
            self._unreachable(error)
            return
        except OSError as error:
            self.over("broker_error", f"broker: {error.strerror or error}")
            return
        self.readable()

    def readable(self) -> None:
        assert self._broker is not None  # noqa: S101 - connected
        try:
            event = self._broker.handshake()
        except OSError as error:
            self._refused(error)
            return
        if event:
            self._wait()
            self.remove_interest(self.events & ~event)
            self.add_interest(event)
        else:
            self.unwatch()
            self._connected()

    def _connected(self) -> None:
        assert self._broker is not None  # noqa: S101 - connected
        self._cancel_timers()
        self._server.watches[self.config.name].connected(self._address)
        if not self._begin():
            self.left()

    def _begin(self) -> bool:
        """Lend the connection to the compiled extension without a session. Return False if that is impossible."""
        assert self._broker is not None  # noqa: S101 - connected
        server, services, info = self._server, self._server.services, self.info
        lending, resources, spool = services.lending, services.resources, services.spool
        if lending is None or resources is None or server.draining or server.alarm:
            return False
        # Only a session can replay messages from an earlier process.
        replays = spool is not None and spool.has_recovered(lambda _: True)
        if replays or not (self._wire.is_plain and self._broker.is_plain):
            return False
        judge = judge_of(services.pipeline, services.tally, resources, info, services.tally.sender(info.address))
        protocol, options = self.config.protocol, self.config.options
        begun = None if judge is None else protocol.begin(options, judge, services.limits_kind)
        if begun is None:
            return False
        lent, for_session = begun
        wires = self._wire.fileno(), self._broker.fileno()
        try:
            self._lent = lending.lend(self, *wires, lent, info.scope, ends_here=not protocol.half_closes)
        except OSError as error:
            services.log_failed(info, error)
            return False
        self.begun, self.opened_ns = for_session, services.now_ns()
        self.handshake = self.reactor.after(self.config.handshake_timeout_s, self._handshake_over)
        if self.config.idle_timeout_s is not None:
            self._timer = self.reactor.after(self.config.idle_timeout_s, self.left)
        server.new[info.id] = self
        return True

    def left(self, *, broken: bool = False) -> None:
        del broken
        assert self._broker is not None  # noqa: S101 - connected
        lent, self._lent = self._lent, None
        # When the client's stream ended, ``ends`` cancelled this timer.
        has_ended = lent is not None and self.handshake is None
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._server.connect(self, (self._wire, self._broker), self._address, lent)
            connection = self._server.connections.get(self.info.id)
            if has_ended and connection is not None:
                connection.guard(connection.peers[Side.CLIENT].readable)
        except Exception as error:  # noqa: BLE001 - as the reactor does
            lending = self._server.services.lending
            if lent is not None and lending is not None and lending.lent.get(lent) is self:
                # Otherwise, the compiled extension would read from the descriptors after they are reused.
                lending.take(lent)
            self.failed(error)

    def stalled(self, *, on: bool) -> None:
        if on:
            self.left()

    def ends(self, *, over: bool) -> None:
        self._cancel_timers()
        if over:
            self._ended()
        else:
            self._timer = self.reactor.after(CLOSE_TIMEOUT_S, self._ended)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self.handshake):
            if timer is not None:
                timer.cancel()
        self._timer = self.handshake = None

    def _ended(self) -> None:
        self._close("client_closed", "the client closed the connection first")

    def _handshake_over(self) -> None:
        handshake = self.handshake
        self.left()
        if handshake is not None and not self._closed:
            handshake.call()

    @property
    def _address(self) -> Address:
        assert self._connecting is not None  # noqa: S101 - connected
        return self._candidates[self._connecting.place]

    def failed(self, error: Exception) -> None:
        if isinstance(error, OSError) and self._connecting is None:
            self._unreachable(error)
            return
        self._server.services.log_failed(self.info, error)
        self._close("internal_error", repr(error))

    def over(self, reason: str, detail: str) -> None:
        assert self._broker is not None  # noqa: S101 - the connection has one
        self._server.connections.pop(self.info.id, None)
        self._broker.close()
        if reason == "broker_error":
            self.reactor.start_soon(self._close_after_probe, reason, detail)
        else:
            self._close(reason, detail)

    async def _close_after_probe(self, reason: str, detail: str) -> None:
        await self._server.watches[self.config.name].broker_left()
        self._close(reason, detail)

    def _unreachable(self, error: OSError) -> None:
        if isinstance(error, sockets.NoRoomError):
            self._close("no_descriptors", f"cannot open a connection to the broker: {error.strerror}")
        else:
            self._lost(error.strerror or str(error))

    def _refused(self, error: OSError) -> None:
        """Probe the broker, then close. The broker may have refused only this client, because of its PROXY header."""
        assert self._broker is not None  # noqa: S101 - connected
        self.unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self._broker.close()
        self.reactor.start_soon(
            self._close_after_probe, "broker_unreachable", self._broker_error(error.strerror or str(error))
        )

    def _broker_error(self, error: str) -> str:
        return f"broker {', '.join(map(format_address, self.config.brokers))}: {error}"

    def _timed_out(self) -> None:
        self._lost(f"no response within {self.config.connect_timeout_s:g} s")

    def _lost(self, error: str) -> None:
        if self._closed:
            return
        self._server.watches[self.config.name].lost(error)
        self._close("broker_unreachable", self._broker_error(error))

    def _close(self, reason: str, detail: str) -> None:
        if not self._closed:
            self.release()
            self._server.closed(self.info, reason, detail)

    def release(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.unwatch()
        if self._arrival is not None:
            self._arrival.release()
        self._cancel_timers()
        if self._resolving is not None:
            self._resolving.cancel()
        if self._connecting is not None:
            self._connecting.close()
        connection = self._server.connections.pop(self.info.id, None)
        if connection is not None:
            connection.release()
        if self._broker is not None:
            self._broker.close()
        self._wire.close()
        lending = self._server.services.lending
        if self._lent is not None and lending is not None:
            lending.forget(self._lent)
        self._server.left(self, self.info, admitted=self._admitted)


async def _resolved(broker: Address, others: Sequence[Address]) -> list[sockets.Found]:
    try:
        return await sockets.resolve(*broker)
    except OSError:
        if len(others) == 1:
            raise
        return []


def main_address(config: ListenerConfig, listeners: Iterable[ListenerConfig]) -> Address:
    """Return the broker's main address, even if the listener uses the broker's second port."""
    host, port = config.broker
    main = (host, port - config.protocol.extra_port_offset)
    return main if any(each.broker == main for each in listeners) else config.broker


class ListenError(Exception):
    def __init__(self, config: ListenerConfig, error: OSError) -> None:
        where = format_address(config.listen)
        super().__init__(f"listener {config.name!r} cannot listen on {where}: {error.strerror or error}")
        self.config = config
        self.error = error
