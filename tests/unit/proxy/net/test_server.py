from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partialmethod
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.batch import NO_VERDICTS, Batch, ConnectionInfo, Side, Verdicts
from proxy.deciding.pipeline import Handler, HandlerConfig, HandlerPlugin
from proxy.net import broker_watch, server, sockets
from proxy.net.server import ListenerConfig, ListenError, main_address
from proxy.net.sockets import Address, Connecting, ListeningSocket, Wire
from proxy.protocols.base import ListenerAddresses, Protocol, Replayed, Session, SessionContext
from proxy.protocols.rocketmq import PROTOCOL as ROCKETMQ
from proxy.spool.spool import QueueName

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Peer, Rig, ScriptedBroker, StartRig

HOST = "127.0.0.1"


class Done:
    def __init__(self, nursery: trio.Nursery, call: Callable[..., Any], *args: Any) -> None:
        self._event = trio.Event()
        nursery.start_soon(self._run, call, args)

    async def _run(self, call: Callable[..., Any], args: Any) -> None:
        await call(*args)
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()


class GatedConnect:
    """Connects to the broker normally, but waits while the gate is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sockets: ExitStack) -> None:
        self.shut = False
        self.waiting = 0
        self.connected = 0
        # Stands for the connecting socket: it is not writable until the key is read.
        gate, key = self._gate, self._key = socket.socketpair()
        sockets.enter_context(gate)
        sockets.enter_context(key)
        self._sockets = sockets
        self._waits: dict[Connecting, socket.socket] = {}
        self._real = Connecting.resume, Connecting.fileno, Connecting.close
        for name in ("resume", "fileno", "close"):
            monkeypatch.setattr(Connecting, name, partialmethod(getattr(type(self), f"_{name}"), gated=self))
        gate.setblocking(False)
        key.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                gate.send(bytes(4096))

    def open(self) -> None:
        self.shut = False
        with suppress(BlockingIOError):
            while True:
                self._key.recv(4096)

    @staticmethod
    def _resume(connecting: Connecting, gated: GatedConnect) -> Wire | None:
        if gated.shut:
            if connecting not in gated._waits:
                gated.waiting += 1
                gated._waits[connecting] = gated._sockets.enter_context(gated._gate.dup())
            return None
        gated.connected += 1
        return gated._real[0](connecting)

    @staticmethod
    def _fileno(connecting: Connecting, gated: GatedConnect) -> int:
        waits = gated._waits.get(connecting)
        return gated._real[1](connecting) if waits is None else waits.fileno()

    @staticmethod
    def _close(connecting: Connecting, gated: GatedConnect) -> None:
        gated._waits.pop(connecting, None)
        gated._real[2](connecting)


@pytest.fixture
def gated_connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedConnect]:
    with ExitStack() as sockets:
        yield GatedConnect(monkeypatch, sockets)


class TestListening:
    async def test_taken_address_names_the_listener_and_gives_all_back(
        self, rig: Rig, lines: Protocol, broker: ScriptedBroker, reserved_address: tuple[str, int]
    ) -> None:
        free_one = ListenerConfig("free", lines, lines.options(), reserved_address, broker.address)
        taken = ListenerConfig("taken", lines, lines.options(), rig.address, broker.address)
        path = LocalDataPath(DataPathConfig((free_one, taken), (), RuleSet()))
        port = rig.address[1]
        with pytest.raises(
            ListenError, match=rf"^listener 'taken' cannot listen on {HOST}:{port}: .* in use$"
        ) as caught:
            await path.run()
        assert caught.value.config is taken
        assert isinstance(caught.value.error, OSError)
        socket.create_server(reserved_address).close()

    async def test_ipv6_is_served(self, start_rig: StartRig) -> None:
        """Requires the loopback of IPv6: sysctl net.ipv6.conf.lo.disable_ipv6=0."""
        rig = await start_rig(listen="::1")
        client = await rig.client()
        await rig.broker.accept()
        await client.send(b"zero 1\n")
        assert await client.receive_line() == b"BUSY zero 1000000\n"
        (connection,) = rig.connections
        assert connection.info.peer == f"[::1]:{client.sock.getsockname()[1]}"
        assert connection.info.address == "::1"

    async def test_listeners_lead_to_their_own_brokers_and_name_their_scope(
        self,
        start_rig: StartRig,
        lines: Protocol,
        broker: ScriptedBroker,
        peers: list[Peer],
        reserved_address: tuple[str, int],
    ) -> None:
        other = type(broker)(peers, reserved_address)
        rig = await start_rig(
            listeners=(
                ListenerConfig("main", lines, lines.options(), (HOST, 0), broker.address),
                ListenerConfig("vip", lines, lines.options(), (HOST, 0), other.address, scope="main"),
            )
        )
        await rig.connect()
        rig.listener, rig.broker = "vip", other
        await rig.connect()
        infos = [connection.info for connection in rig.connections]
        assert [(info.id, info.listener, info.scope) for info in infos] == [(1, "main", "main"), (2, "vip", "main")]
        assert [rig.path.server.open_connections(name) for name in ("main", "vip")] == [1, 1]
        other.stop()

    async def test_sessions_know_all_listeners_and_where_the_client_is_connected_and_may_warn(
        self, start_rig: StartRig, lines: Protocol, broker: ScriptedBroker, log: list[Any]
    ) -> None:
        seen: list[SessionContext] = []

        def open_session(context: SessionContext) -> Session:
            seen.append(context)
            return lines.open_session(context)

        watched = replace(lines, open_session=open_session)
        rig = await start_rig(
            listeners=(
                ListenerConfig("main", watched, lines.options(), (HOST, 0), broker.address),
                ListenerConfig("other", ROCKETMQ, ROCKETMQ.options(), ("127.0.0.2", 0), ("127.0.0.3", 10911)),
            )
        )
        await rig.connect()
        (context,) = seen
        assert context.connection.local == HOST
        assert context.listeners() == (
            ListenerAddresses(lines.name, rig.address, (broker.address,)),
            ListenerAddresses("rocketmq", rig.path.server.bound("other"), (("127.0.0.3", 10911),)),
        )
        for detail in ("first", "second", "third"):
            context.warn("something is odd", detail)
        told = [entry for entry in log if entry["event"] == "something is odd"]
        assert told == [
            {
                "event": "something is odd",
                "log_level": "warning",
                "listener": "main",
                "peer": context.connection.peer,
                "detail": "first",
                "not_logged": 0,
            }
        ]

    def test_listeners_of_one_broker_share_its_signals(self, lines: Protocol) -> None:
        addresses = [("a", 10911), ("a", 10909), ("a", 10921), ("b", 10909), ("a", 10911)]
        listeners = [
            ListenerConfig(str(number), ROCKETMQ, ROCKETMQ.options(), (HOST, 0), address, scope="one")
            for number, address in enumerate(addresses)
        ]
        assert [main_address(config, listeners) for config in listeners] == [
            ("a", 10911),
            ("a", 10911),
            ("a", 10921),
            ("b", 10909),
            ("a", 10911),
        ]
        one_port = [replace(config, protocol=lines) for config in listeners]
        assert [main_address(config, one_port) for config in one_port] == addresses


class TestAccepting:
    async def test_lack_of_room_pauses_and_recovers(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, log: list[Any]
    ) -> None:
        faults = [OSError(errno.EMFILE, "Too many open files")] * 3
        real = ListeningSocket.accept

        def accept(self: ListeningSocket) -> tuple[Wire, Address] | None:
            accepted = real(self)
            if accepted is not None and faults:
                accepted[0].close()
                raise faults.pop()
            return accepted

        await rig.connect()
        await rig.connect()
        monkeypatch.setattr(ListeningSocket, "accept", accept)
        for left in (2, 1, 0):
            await rig.client()
            await wait_all_tasks_blocked()
            assert len(faults) == left
            assert len(rig.connections) == 2
            mock_clock.jump(0.1)
        await rig.connect()
        assert [(entry["event"], entry["error"]) for entry in log] == [("accept failed", "Too many open files")]

    async def test_clients_beyond_the_maximum_are_closed_and_counted(self, start_rig: StartRig) -> None:
        rig = await start_rig(max_connections=2)
        first, first_broker = await rig.connect()
        await rig.connect()
        assert await (await rig.client()).receive_to_end() == b""
        assert await (await rig.client()).receive_to_end() == b""
        assert rig.closed == {"too_many_connections": 2}
        assert rig.path.server.counters.accepted == {"main": 4}
        assert rig.path.server.counters.closed == {("main", "too_many_connections"): 2}
        # A free place is given to the next one.
        first.end()
        await first_broker.receive_to_end()
        first_broker.end()
        await first.receive_to_end()
        await wait_all_tasks_blocked()
        await rig.connect()
        assert len(rig.connections) == 2

    async def test_clients_without_a_free_descriptor_are_closed_and_counted(
        self, start_rig: StartRig, log: list[Any]
    ) -> None:
        rig = await start_rig(room_for_connections=1)
        await rig.connect()
        assert await (await rig.client()).receive_to_end() == b""
        assert rig.closed == {"no_descriptors": 1}
        assert [entry["detail"] for entry in log] == [
            "the limit on open files (ulimit -n) allows no more than 1 connections"
        ]

    async def test_clients_whose_broker_is_still_being_connected_count_too(
        self, start_rig: StartRig, gated_connect: GatedConnect
    ) -> None:
        rig = await start_rig(max_connections=1)
        gated_connect.shut = True
        await rig.client()
        await wait_all_tasks_blocked()
        assert gated_connect.waiting == 1
        assert await (await rig.client()).receive_to_end() == b""
        assert rig.closed == {"too_many_connections": 1}

    @pytest.mark.parametrize(("half_closes", "resets"), [(False, False), (False, True), (True, True)])
    async def test_client_that_has_left_costs_no_connect_to_the_broker(
        self, start_rig: StartRig, lines: Protocol, gated_connect: GatedConnect, *, half_closes: bool, resets: bool
    ) -> None:
        rig = await start_rig(protocol=replace(lines, half_closes=half_closes))
        before = gated_connect.connected
        for _ in range(3):
            client = rig.client_in_backlog()
            if resets:
                client.reset()
            else:
                client.sock.close()
        await rig.until_closed("client_closed", 3)
        assert gated_connect.connected == before

    async def test_client_that_has_only_ended_its_stream_is_served(self, start_rig: StartRig, lines: Protocol) -> None:
        rig = await start_rig(protocol=replace(lines, half_closes=True))
        await rig.connect()
        client = rig.client_in_backlog()
        client.end()
        broker = await rig.broker.accept(ended=True)
        await broker.send(b"hello\n")
        assert await client.receive_line() == b"hello\n"

    async def test_bytes_of_a_departed_client_reach_the_broker(self, start_rig: StartRig, lines: Protocol) -> None:
        rig = await start_rig(protocol=replace(lines, half_closes=False))
        client = rig.client_in_backlog()
        client.sock.send(b"free 1\n")
        client.sock.close()
        assert await (await rig.broker.accept()).receive_to_end() == b"free 1\n"

    async def test_accepted_is_open_plus_closed(self, rig: Rig) -> None:
        pairs = [await rig.connect() for _ in range(6)]
        for client, broker in pairs[:4]:
            client.reset()
            broker.end()
        await rig.until_closed("client_error", 4)
        server = rig.path.server
        assert server.counters.accepted == {"main": 6}
        assert server.open_connections("main") == len(rig.connections) == 2


StartLimited = Callable[..., Awaitable["Rig"]]
ANOTHER = "127.0.0.9"
"""Another client: on Linux all of 127.0.0.0/8 is this machine."""


@pytest.fixture
def start_limited(start_rig: StartRig, lines: Protocol, broker: ScriptedBroker) -> StartLimited:
    """Start a data path with listeners of one scope with limits on new connections."""

    async def start(*names: str, **limits: Any) -> Rig:
        return await start_rig(
            listeners=tuple(
                ListenerConfig(name, lines, lines.options(), (HOST, 0), broker.address, scope="one", **limits)
                for name in names or ("main",)
            )
        )

    return start


async def leave(client: Peer, broker: Peer) -> None:
    client.end()
    await broker.receive_to_end()
    broker.end()
    await client.receive_to_end()
    await wait_all_tasks_blocked()


class TestConnectionsOfAClient:
    async def test_beyond_its_maximum_are_closed_and_counted(self, start_limited: StartLimited) -> None:
        rig = await start_limited(max_connections_per_client=2)
        first = await rig.connect()
        await rig.connect()
        assert await (await rig.client()).receive_to_end() == b""
        assert rig.closed == {"too_many_connections_of_client": 1}
        assert len(rig.connections) == 2
        # A free place is given to the next one.
        await leave(*first)
        await rig.connect()

    async def test_count_together_on_the_listeners_of_a_scope(self, start_limited: StartLimited) -> None:
        rig = await start_limited("main", "vip", max_connections_per_client=1)
        await rig.connect()
        rig.listener = "vip"
        assert await (await rig.client()).receive_to_end() == b""

    async def test_count_while_their_broker_is_still_being_connected(
        self, start_limited: StartLimited, gated_connect: GatedConnect
    ) -> None:
        rig = await start_limited(max_connections_per_client=1)
        gated_connect.shut = True
        await rig.client()
        await wait_all_tasks_blocked()
        assert gated_connect.waiting == 1
        assert await (await rig.client()).receive_to_end() == b""

    async def test_are_logged_once_a_second(
        self, start_limited: StartLimited, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig = await start_limited(max_connections_per_client=0)
        for _ in range(3):
            await (await rig.client()).receive_to_end()
        mock_clock.jump(1)
        await (await rig.client()).receive_to_end()
        assert [(entry["reason"], entry["detail"], entry["not_logged"]) for entry in log] == [
            ("too_many_connections_of_client", f"max_connections_per_client (0) has been reached for {HOST}", 0),
            ("too_many_connections_of_client", f"max_connections_per_client (0) has been reached for {HOST}", 2),
        ]

    async def test_that_fail_leave_no_count_behind(
        self, start_limited: StartLimited, lines: Protocol, start_rig: StartRig
    ) -> None:
        rig = await start_limited(max_connections_per_client=1)
        rig.broker.stop()
        await (await rig.client()).receive_to_end()
        await rig.until_closed("broker_unreachable")
        assert len(rig.path.server._clients) == 0

        def open_session(context: SessionContext) -> Session:
            raise RuntimeError("no session")

        rig.broker.restart()
        rig = await start_rig(protocol=replace(lines, open_session=open_session))
        await (await rig.client()).receive_to_end()
        await rig.until_closed("internal_error")
        assert len(rig.path.server._clients) == 0


class TestConnectionRate:
    async def test_connections_over_the_rate_are_closed_and_counted(
        self, start_limited: StartLimited, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig = await start_limited(new_connections_per_s=2)
        await rig.connect()
        await rig.connect(source=ANOTHER)
        assert await (await rig.client()).receive_to_end() == b""
        assert rig.closed == {"connection_rate": 1}
        assert (log[0]["reason"], log[0]["detail"]) == (
            "connection_rate",
            "more than 2 new connections per second (new_connections_per_s)",
        )
        mock_clock.jump(0.5)
        await rig.connect()
        assert await (await rig.client()).receive_to_end() == b""

    async def test_each_listener_has_its_own(self, start_limited: StartLimited) -> None:
        rig = await start_limited("main", "vip", new_connections_per_s=1)
        await rig.connect()
        rig.listener = "vip"
        await rig.connect()

    async def test_a_client_refused_for_another_reason_spends_nothing(self, start_limited: StartLimited) -> None:
        rig = await start_limited(new_connections_per_s=2, max_connections_per_client=1)
        await rig.connect()
        assert await (await rig.client()).receive_to_end() == b""
        await rig.connect(source=ANOTHER)
        assert rig.closed == {"too_many_connections_of_client": 1}


class TestExempt:
    async def test_clients_pass_both_and_are_known_as_such(self, start_limited: StartLimited) -> None:
        exempt = (ip_network(f"{ANOTHER}/32"),)
        rig = await start_limited(exempt=exempt, max_connections_per_client=0, new_connections_per_s=0)
        for _ in range(3):
            await rig.connect(source=ANOTHER)
        assert all(connection.info.exempt for connection in rig.connections)
        assert await (await rig.client()).receive_to_end() == b""
        assert len(rig.path.server._clients) == 0

    async def test_clients_sends_are_not_limited(self, start_limited: StartLimited) -> None:
        rig = await start_limited(exempt=(ip_network(f"{ANOTHER}/32"),))
        client, broker = await rig.connect(source=ANOTHER)
        assert await rig.passes(client, broker, b"zero 1")
        client, broker = await rig.connect()
        assert not await rig.passes(client, broker, b"zero 1")
        assert not rig.connections[1].info.exempt
        assert await rig.requests("zero") == {"exempt": 1, "refuse": 1}

    async def test_ipv4_client_that_came_over_ipv6_is_known_by_its_ipv4_address(
        self, start_limited: StartLimited, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = ListeningSocket.accept

        def accept(self: ListeningSocket) -> tuple[Wire, Address] | None:
            accepted = real(self)
            return accepted and (accepted[0], (f"::ffff:{accepted[1][0]}", accepted[1][1]))

        monkeypatch.setattr(ListeningSocket, "accept", accept)
        rig = await start_limited(exempt=(ip_network("127.0.0.0/8"),))
        client, _ = await rig.connect()
        (connection,) = rig.connections
        assert connection.info.address == HOST
        assert connection.info.peer == f"{HOST}:{client.sock.getsockname()[1]}"
        assert connection.info.exempt


def refused(rig: Rig) -> bool:
    """Say whether a client is refused, as without a listener."""
    try:
        socket.create_connection(rig.address).close()
    except ConnectionRefusedError:
        return True
    return False


class TestUnreachableBroker:
    async def test_clients_are_refused_from_the_first_that_finds_it_so_until_it_is_back(
        self, rig: Rig, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig.broker.stop()
        # The first one to notice cannot be refused any more.
        assert await (await rig.client()).receive_to_end() == b""
        await rig.until_closed("broker_unreachable")
        assert refused(rig)
        assert not rig.path.server.watches["main"].listening
        mock_clock.jump(0.1)
        await rig.settle()
        assert refused(rig)
        rig.broker.restart()
        mock_clock.jump(0.1)
        await rig.until(lambda: rig.path.server.watches["main"].listening)
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        assert await broker.receive_line() == b"free 1\n"
        about = {
            "listener": "main",
            "listen": sockets.format_address(rig.address),
            "broker": sockets.format_address(rig.broker.address),
        }
        gone = "broker unreachable; listener closed"
        assert [entry for entry in log if entry["log_level"] != "debug"] == [
            {"event": gone, "log_level": "warning", "error": "Connection refused", **about},
            {"event": "broker reachable again; listener open", "log_level": "info", **about},
        ]

    @pytest.mark.parametrize("leave", ["end", "reset"])
    async def test_clients_that_lose_it_are_refused_when_they_come_again(self, rig: Rig, leave: str) -> None:
        pairs = [await rig.connect() for _ in range(3)]
        rig.broker.stop()
        for _, broker in pairs:
            getattr(broker, leave)()
        for client, _ in pairs:
            assert await client.receive_to_end() == b""
            assert refused(rig)
            client.end()
        await rig.until(lambda: not rig.connections)
        assert "broker_unreachable" not in rig.closed

    async def test_that_stops_listening_a_moment_later_is_noticed_before_its_clients_end(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
    ) -> None:
        monkeypatch.setattr(broker_watch, "SETTLE_S", 0.05)
        client, broker = await rig.connect()
        broker.end()
        await rig.settle()
        assert client.pending() == b""
        rig.broker.stop()
        mock_clock.jump(0.05)
        assert await client.receive_to_end() == b""
        assert refused(rig)

    async def test_client_that_loses_one_that_is_still_there_may_come_again(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        broker.end()
        assert await client.receive_to_end() == b""
        await rig.connect()

    async def test_pending_connections_are_reset(self, rig: Rig) -> None:
        waiting = [socket.create_connection(rig.address) for _ in range(3)]
        rig.path.server.watches["main"].lost("Connection refused")
        for client in waiting:
            with client, pytest.raises(ConnectionResetError):
                client.recv(1)

    async def test_is_tried_often_at_first_and_then_every_second(
        self, start_rig: StartRig, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
    ) -> None:
        broker.stop()
        tried: list[float] = []
        real = Connecting.resume

        def resume(self: Connecting) -> Wire | None:
            tried.append(trio.current_time())
            return real(self)

        monkeypatch.setattr(Connecting, "resume", resume)
        rig = await start_rig()
        while mock_clock.current_time() < 60:
            mock_clock.jump(0.1)
            await rig.settle()
        assert len([at for at in tried if at <= 3]) > 25
        assert len([at for at in tried if at > 40]) <= 20

    async def test_each_listener_goes_by_its_own(
        self, start_rig: StartRig, lines: Protocol, broker: ScriptedBroker, reserved_address: tuple[str, int]
    ) -> None:
        rig = await start_rig(
            listeners=tuple(
                ListenerConfig(name, lines, lines.options(), (HOST, 0), address)
                for name, address in {"main": broker.address, "vip": reserved_address}.items()
            )
        )
        await rig.connect()
        rig.listener = "vip"
        assert refused(rig)

    async def test_may_leave_during_a_drain(self, rig: Rig, nursery: trio.Nursery, mock_clock: MockClock) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        draining = Done(nursery, rig.path.drain, 5)
        await wait_all_tasks_blocked()
        rig.broker.stop()
        assert (await rig.path.probe_brokers())[0].error == "Connection refused"
        broker.end()
        assert await client.receive_to_end() == b""
        mock_clock.jump(5)
        await draining.wait()
        assert refused(rig)

    async def test_the_address_may_have_been_taken_by_another(
        self, rig: Rig, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig.broker.stop()
        assert (await rig.path.probe_brokers())[0].error == "Connection refused"
        other = socket.create_server(rig.address)
        rig.broker.restart()
        mock_clock.jump(0.1)
        await rig.until(lambda: "listen failed" in [entry["event"] for entry in log])
        assert not rig.path.server.watches["main"].listening
        assert "in use" in str((await rig.path.probe_brokers())[0].error)
        other.close()
        mock_clock.jump(0.1)
        await rig.until(lambda: rig.path.server.watches["main"].listening)
        await rig.connect()

    async def test_that_does_not_answer_is_given_up_after_the_timeout(
        self, start_rig: StartRig, lines: Protocol, gated_connect: GatedConnect, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig = await start_rig()
        (config,) = rig.path.server.listeners
        gated_connect.shut = True
        client = await rig.client()
        await wait_all_tasks_blocked()
        mock_clock.jump(config.connect_timeout_s - 0.01)
        await wait_all_tasks_blocked()
        assert rig.path.server.open_connections("main") == 1
        mock_clock.jump(0.01)
        assert await client.receive_to_end() == b""
        await rig.until_closed("broker_unreachable")
        assert log[0]["error"] == "no response within 5 s"
        assert refused(rig)

    async def test_that_does_not_answer_at_the_start_is_waited_for(
        self, start_rig: StartRig, gated_connect: GatedConnect, mock_clock: MockClock, nursery: trio.Nursery
    ) -> None:
        gated_connect.shut = True
        rigs: list[Rig] = []

        async def start() -> None:
            rigs.append(await start_rig())

        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        assert gated_connect.waiting == 1
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert refused(rigs[0])
        assert (await rigs[0].path.probe_brokers())[0].error == "no response within 1 s"

    async def test_name_that_cannot_be_resolved_is_unreachable(
        self, start_rig: StartRig, lines: Protocol, log: list[Any]
    ) -> None:
        config = ListenerConfig("main", lines, lines.options(), (HOST, 0), ("a..b", 10911))
        rig = await start_rig(listeners=(config,))
        assert refused(rig)
        assert (log[0]["broker"], log[0]["error"]) == ("a..b:10911", "'a..b' is not a valid host name")

    async def test_lack_of_sockets_of_our_own_is_not_the_brokers_fault(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, log: list[Any]
    ) -> None:
        def resume(self: Connecting) -> Wire | None:
            raise sockets.NoRoomError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(Connecting, "resume", resume)
        assert await (await rig.client()).receive_to_end() == b""
        await rig.until_closed("no_descriptors")
        assert [(entry["event"], entry["reason"]) for entry in log] == [("connection closed", "no_descriptors")]
        assert "cannot open a connection: " in str((await rig.path.probe_brokers())[0].error)
        assert rig.path.server.watches["main"].listening


class TestFaults:
    async def test_session_that_cannot_be_opened_ends_only_its_connection(
        self, start_rig: StartRig, lines: Protocol, log: list[Any]
    ) -> None:
        fail = False

        def open_session(context: SessionContext) -> Session:
            if fail:
                raise RuntimeError("no session")
            return lines.open_session(context)

        rig = await start_rig(protocol=replace(lines, open_session=open_session))
        healthy, healthy_broker = await rig.connect()
        fail = True
        assert await (await rig.client()).receive_to_end() == b""
        await rig.until_closed("internal_error")
        assert [entry["event"] for entry in log] == ["connection failed", "connection closed"]
        await healthy.send(b"free 1\n")
        assert await healthy_broker.receive_line() == b"free 1\n"
        assert rig.path.server.open_connections("main") == 1

    async def test_session_that_fails_when_asked_for_a_drain_ends_only_its_connection(
        self, start_rig: StartRig, lines: Protocol, nursery: trio.Nursery, log: list[Any]
    ) -> None:
        sessions: list[Session] = []

        def open_session(context: SessionContext) -> Session:
            sessions.append(lines.open_session(context))
            return sessions[-1]

        rig = await start_rig(protocol=replace(lines, open_session=open_session))
        faulty, _ = await rig.connect()
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()

        def fail() -> int:
            raise RuntimeError("no idea")

        sessions[0].in_flight = fail  # type: ignore[method-assign]  # that is the fault
        draining = Done(nursery, rig.path.drain, 5)
        assert await faulty.receive_to_end() == b""
        await wait_all_tasks_blocked()
        assert not draining
        await broker.send(b"answer\n")
        assert await client.receive_to_end() == b"answer\n"
        client.end()
        broker.end()
        await draining.wait()
        assert rig.closed == {"internal_error": 1, "drained": 1}


def handler(decide: Callable[[Batch, int], Any], deadline_ms: float) -> HandlerConfig:
    class Scripted(Handler):
        async def on_requests(self, batch: Batch, now_ns: int) -> Any:
            return await decide(batch, now_ns)

    plugin = HandlerPlugin("scripted", dict, lambda options, services: Scripted())
    return HandlerConfig(plugin, {}, deadline_ms=deadline_ms)


class TestDrain:
    async def test_stops_accepting(self, rig: Rig) -> None:
        await rig.path.drain(5)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(rig.address)
        assert (await rig.snapshot()).draining

    async def test_without_connections_is_over_at_once(self, rig: Rig, mock_clock: MockClock) -> None:
        await rig.path.drain(5)
        assert mock_clock.current_time() == 0

    async def test_quiet_connection_is_closed_at_once(self, rig: Rig, nursery: trio.Nursery) -> None:
        client, broker = await rig.connect()
        draining = Done(nursery, rig.path.drain, 5)
        assert await client.receive_to_end() == b""
        assert await broker.receive_to_end() == b""
        client.end()
        broker.end()
        await draining.wait()
        assert rig.closed == {"drained": 1}

    async def test_request_in_flight_gets_its_answer_first(self, rig: Rig, nursery: trio.Nursery) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\nfree 2\n")
        await broker.receive(14)
        draining = Done(nursery, rig.path.drain, 5)
        await wait_all_tasks_blocked()
        await broker.send(b"answer 1\n")
        assert await client.receive_line() == b"answer 1\n"
        await wait_all_tasks_blocked()
        assert not draining
        await broker.send(b"answer 2\n")
        assert await client.receive_to_end() == b"answer 2\n"
        client.end()
        broker.end()
        await draining.wait()
        assert rig.closed == {"drained": 1}

    async def test_no_further_request_is_read(self, rig: Rig, nursery: trio.Nursery) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        draining = Done(nursery, rig.path.drain, 5)
        await wait_all_tasks_blocked()
        await client.send(b"free 2\n")
        await wait_all_tasks_blocked()
        assert broker.pending() == b""
        await broker.send(b"answer 1\n")
        # And the client is not reset although its request was not read.
        assert await client.receive_to_end() == b"answer 1\n"
        assert await broker.receive_to_end() == b""
        client.end()
        broker.end()
        await draining.wait()

    async def test_request_half_sent_is_let_through(self, rig: Rig, nursery: trio.Nursery) -> None:
        client, broker = await rig.connect()
        await client.send(b"free ")
        await wait_all_tasks_blocked()
        draining = Done(nursery, rig.path.drain, 5)
        await wait_all_tasks_blocked()
        assert rig.connections
        await client.send(b"1\n")
        assert await broker.receive_line() == b"free 1\n"
        await broker.send(b"answer\n")
        assert await client.receive_to_end() == b"answer\n"
        client.end()
        broker.end()
        await draining.wait()

    async def test_request_that_is_being_decided_is_not_lost(self, start_rig: StartRig, nursery: trio.Nursery) -> None:
        entered, release = trio.Event(), trio.Event()

        async def decide(batch: Batch, now_ns: int) -> Verdicts:
            entered.set()
            await release.wait()
            return NO_VERDICTS

        rig = await start_rig(handlers=[handler(decide, deadline_ms=60_000)])
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await entered.wait()
        draining = Done(nursery, rig.path.drain, 5)
        await wait_all_tasks_blocked()
        release.set()
        assert await broker.receive_line() == b"free 1\n"
        await broker.send(b"answer\n")
        assert await client.receive_to_end() == b"answer\n"
        client.end()
        broker.end()
        await draining.wait()
        assert rig.closed == {"drained": 1}

    async def test_answer_that_is_being_written_is_not_cut(self, rig: Rig, nursery: trio.Nursery) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        answer = b"x" * 900 + b"\n"
        sent = await broker.send_until_stalled(answer)
        draining = Done(nursery, rig.path.drain, 5)
        nursery.start_soon(broker.send, answer[sent % len(answer) :])
        total = (sent // len(answer) + 1) * len(answer)
        assert len(await client.receive(total)) == total
        assert await client.receive_to_end() == b""
        client.end()
        broker.end()
        await draining.wait()
        assert rig.closed == {"drained": 1}

    async def test_connections_left_after_the_grace_period_are_closed(
        self, rig: Rig, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        draining = Done(nursery, rig.path.drain, 5)
        await wait_all_tasks_blocked()
        mock_clock.jump(4.9)
        await wait_all_tasks_blocked()
        assert not draining
        mock_clock.jump(0.1)
        await draining.wait()
        assert await client.receive_to_end() == b""
        await rig.until_closed("grace_over")

    async def test_client_whose_broker_is_still_being_connected_is_closed(
        self, rig: Rig, gated_connect: GatedConnect
    ) -> None:
        gated_connect.shut = True
        client = await rig.client()
        await wait_all_tasks_blocked()
        assert gated_connect.waiting == 1
        await rig.path.drain(5)
        gated_connect.open()
        assert await client.receive_to_end() == b""
        await rig.until_closed("drained")
        assert rig.path.server.open_connections("main") == 0

    async def test_twice_ends_with_the_shorter_grace(
        self, rig: Rig, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        first = Done(nursery, rig.path.drain, 50)
        await wait_all_tasks_blocked()
        second = Done(nursery, rig.path.drain, 5)
        await wait_all_tasks_blocked()
        mock_clock.jump(5)
        await second.wait()
        await first.wait()
        assert rig.closed == {"grace_over": 1}


class TestFairness:
    """Fairness counted in turns, not in time: the order of reads."""

    @pytest.fixture
    def order(self) -> list[int]:
        """The connections whose client was read, in order."""
        return []

    @pytest.fixture
    def recording(self, lines: Protocol, order: list[int]) -> Protocol:
        def open_session(context: SessionContext) -> Session:
            session = lines.open_session(context)
            receive = session.receive

            def record(side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                if side is Side.CLIENT:
                    order.append(context.connection.id)
                return receive(side, chunk, now_ns)

            session.receive = record  # type: ignore[method-assign]  # to look on
            return session

        return replace(lines, open_session=open_session)

    async def test_flooding_connections_starve_no_other(
        self, start_rig: StartRig, recording: Protocol, order: list[int], nursery: trio.Nursery
    ) -> None:
        rig = await start_rig(protocol=recording)
        flooding = [await rig.connect() for _ in range(4)]
        quiet, quiet_broker = await rig.connect()
        await wait_all_tasks_blocked()
        for client, broker in flooding:
            # More than the proxy will ever read of it here, and the broker accepts all.
            nursery.start_soon(flood, client)
            nursery.start_soon(swallow, broker)
        quiet_id = rig.connections[-1].info.id
        waits: list[int] = []
        for number in range(30):
            begun = len(order)
            await quiet.send(b"free %d\n" % number)
            assert await quiet_broker.receive_line() == b"free %d\n" % number
            waits.append(order.index(quiet_id, begun) - begun)
        assert len(order) > 50
        # Each of the four gets at most a few turns before the quiet one's.
        assert max(waits) <= 4 * 4


class TestSaturation:
    """64 connections that are always busy, and a loop in which every read takes longer than a batch may wait."""

    CONNECTIONS = 64

    @pytest.fixture
    def slow(self, lines: Protocol, mock_clock: MockClock) -> Protocol:
        def open_session(context: SessionContext) -> Session:
            session = lines.open_session(context)
            receive = session.receive

            def take_long(side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                mock_clock.jump(0.025)
                return receive(side, chunk, now_ns)

            session.receive = take_long  # type: ignore[method-assign]  # to be slow
            return session

        return replace(lines, open_session=open_session)

    async def saturate(self, rig: Rig, nursery: trio.Nursery) -> None:
        for client, broker in [await rig.connect() for _ in range(self.CONNECTIONS)]:
            nursery.start_soon(flood, client, b"a x\nfree x\n" * 20)
            nursery.start_soon(swallow, broker)
            nursery.start_soon(swallow, client)

    async def until_read(self, rig: Rig, requests: int) -> None:
        frames = rig.path._wire_counters.frames
        goal = frames[Side.CLIENT] + requests
        while frames[Side.CLIENT] < goal:
            await trio.lowlevel.checkpoint()

    async def test_bypasses_no_healthy_limiter(
        self, start_rig: StartRig, slow: Protocol, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        rig = await start_rig("line_topic:a=100/s", protocol=slow)
        await self.saturate(rig, nursery)
        await self.until_read(rig, 50_000)
        counted = await rig.requests("a")
        assert not any((await rig.snapshot()).bypassed.values())
        assert counted["refuse"] > 1000
        assert 100 <= counted["pass"] <= 100 * (mock_clock.current_time() + 1)


FREE = (b"free " + b"x" * 500 + b"\n") * 1000


async def flood(client: Peer, requests: bytes = FREE) -> None:
    while True:
        await client.send(requests)
        await trio.lowlevel.checkpoint()


async def swallow(peer: Peer) -> None:
    while True:
        await peer._receive_some()
        await trio.lowlevel.checkpoint()


def test_the_result_of_an_earlier_processs_queue_is_one_line_with_counts(log: list[Any]) -> None:
    info = ConnectionInfo(1, "main", "main", "192.0.2.1:4000", "192.0.2.1")
    name = QueueName("main", "queue", "orders", ("tenant", "guest"))
    server._log_replayed(info, Replayed(name, 7, 2, 0, 0))
    server._log_replayed(info, Replayed(name, 7, 0, 3, 0, "the broker closed the channel: 404"))
    done, dropped = log
    assert (done["log_level"], dropped["log_level"]) == ("info", "warning")
    assert (done["resource"], done["sender"], done["sent"], done["expired"]) == ("queue:orders", "tenant/guest", 7, 2)
    assert (dropped["dropped"], dropped["reason"]) == (3, "the broker closed the channel: 404")
