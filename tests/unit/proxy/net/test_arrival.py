"""Clients behind a load balancer: their PROXY header identifies them, and only the load balancer's is believed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from proxy.net import proxy_protocol
from proxy.net.proxy_protocol import Version
from proxy.net.server import ListenerConfig
from proxy.net.sockets import Wire

if TYPE_CHECKING:
    from proxy.protocols.base import Protocol
    from tests.unit.proxy.conftest import Peer, Rig, ScriptedBroker, StartRig

HOST = "127.0.0.1"
CLIENT = "192.0.2.7"
ANOTHER = "127.0.0.9"
"""A client that does not come through the load balancer."""

StartBehind = Callable[..., Awaitable["Rig"]]


@pytest.fixture
def start_behind(start_rig: StartRig, lines: Protocol, broker: ScriptedBroker) -> StartBehind:
    async def start(max_connections: int = 100, **settings: Any) -> Rig:
        config = ListenerConfig(
            *("main", lines, lines.options(), (HOST, 0), broker.address),
            proxy_protocol_from=(ip_network(HOST),),
            **settings,
        )
        return await start_rig(listeners=(config,), max_connections=max_connections)

    return start


@pytest.fixture
async def behind(start_behind: StartBehind) -> Rig:
    return await start_behind()


def header(address: str = CLIENT, version: Version = "v2") -> bytes:
    return proxy_protocol.make(version, (address, 40000), ("192.0.2.100", 5672))


async def connect(rig: Rig, first: bytes) -> tuple[Peer, Peer]:
    client = await rig.client()
    await client.send(first)
    broker = await rig.broker.accept()
    await rig.until(lambda: rig.connections)
    return client, broker


async def gone(client: Peer) -> None:
    """Wait until it is closed, perhaps with unread data."""
    with suppress(ConnectionResetError):
        assert await client.receive_to_end() == b""


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("address", [CLIENT, "2001:db8::7"])
async def test_the_client_is_that_of_the_header(behind: Rig, version: Version, address: str) -> None:
    client, broker = await connect(behind, header(address, version) + b"zero 1\nfree 1\n")
    (connection,) = behind.connections
    assert connection.info.address == address
    assert connection.info.peer in {f"{address}:40000", f"[{address}]:40000"}
    # The header is Sluice's. The data after it in the same segment is the protocol's.
    assert await broker.receive_line() == b"free 1\n"
    assert await client.receive_line() == b"BUSY zero 1000000\n"


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_header_may_come_byte_by_byte(behind: Rig, version: Version) -> None:
    client = await behind.client()
    for byte in header(version=version) + b"free 1\n":
        await client.send(bytes([byte]))
        await wait_all_tasks_blocked()
    broker = await behind.broker.accept()
    assert await broker.receive_line() == b"free 1\n"
    assert behind.connections[0].info.address == CLIENT


@pytest.mark.parametrize("first", [b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"])
async def test_connection_of_the_load_balancer_itself_is_its_own(behind: Rig, first: bytes) -> None:
    await connect(behind, first)
    assert behind.connections[0].info.address == HOST
    assert behind.connections[0].info.local == HOST


async def test_a_header_from_elsewhere_belongs_to_the_protocol(behind: Rig) -> None:
    client = await behind.client(source=ANOTHER)
    await client.send(header(version="v1"))
    broker = await behind.broker.accept()
    assert await broker.receive_line() == header(version="v1")
    assert behind.connections[0].info.address == ANOTHER


@pytest.mark.parametrize(
    ("sent", "reason", "wrong"),
    [
        (b"free 1\n", "proxy_header_missing", "no PROXY signature"),
        (b"PROXY TCP4 what\r\n", "proxy_header_invalid", "expected two addresses and two ports, got 1 fields"),
        (header()[:-1], "proxy_header_invalid", "the connection was closed after 27 bytes"),
    ],
)
async def test_bad_header_ends_the_connection_with_advice(
    behind: Rig, log: list[Any], sent: bytes, reason: str, wrong: str
) -> None:
    for _ in range(2):
        client = await behind.client()
        await client.send(sent)
        client.end()
        await gone(client)
    await behind.until_closed(reason, 2)
    (line,) = [entry for entry in log if entry["event"] == "connection closed"]
    assert line["peer"].startswith(f"{HOST}:")
    assert line["detail"] == (
        f"{HOST} is in proxy_protocol_from but sent no valid PROXY header: {wrong}. Enable the"
        " PROXY protocol on the load balancer (HAProxy: send-proxy-v2), or remove the address from proxy_protocol_from"
    )
    assert behind.path.server.open_connections("main") == 0


async def test_a_load_balancers_check_is_not_a_fault_and_costs_no_connect(behind: Rig, log: list[Any]) -> None:
    (await behind.client()).end()
    await behind.until_closed("client_closed")
    assert {entry["log_level"] for entry in log} == {"debug"}


async def test_header_that_does_not_come_ends_the_connection(
    start_behind: StartBehind, mock_clock: MockClock, log: list[Any]
) -> None:
    rig = await start_behind(handshake_timeout_s=3)
    client = await rig.client()
    await client.send(header()[:5])
    await wait_all_tasks_blocked()
    mock_clock.jump(3)
    assert await client.receive_to_end() == b""
    assert rig.closed == {"handshake_timeout": 1}
    assert log[0]["detail"] == "no complete PROXY header within 3 s"
    # No timer remains for connections that arrived in time.
    await connect(rig, header())
    mock_clock.jump(100)
    await wait_all_tasks_blocked()
    assert len(rig.connections) == 1


async def test_arriving_client_counts_as_a_connection(start_behind: StartBehind) -> None:
    rig = await start_behind(max_connections=1)
    waiting = await rig.client()
    await wait_all_tasks_blocked()
    assert rig.path.server.open_connections("main") == 1
    assert await (await rig.client()).receive_to_end() == b""
    assert rig.closed == {"too_many_connections": 1}
    waiting.end()
    await waiting.receive_to_end()
    assert rig.path.server.open_connections("main") == 0


async def test_bounds_are_those_of_the_true_client(start_behind: StartBehind, log: list[Any]) -> None:
    rig = await start_behind(max_connections_per_client=1)
    await connect(rig, header())
    await connect(rig, header("192.0.2.8"))
    refused = await rig.client()
    await refused.send(header())
    await gone(refused)
    assert rig.closed == {"too_many_connections_of_client": 1}
    assert (log[-1]["peer"], log[-1]["detail"]) == (
        f"{CLIENT}:40000",
        f"max_connections_per_client (1) has been reached for {CLIENT}",
    )


async def test_exempt_is_the_true_client(start_behind: StartBehind) -> None:
    rig = await start_behind(exempt=(ip_network(CLIENT),), new_connections_per_s=1)
    for _ in range(3):
        await connect(rig, header())
    await connect(rig, header("192.0.2.8"))
    assert [connection.info.exempt for connection in rig.connections] == [True, True, True, False]


class TestSending:
    """The broker gets the client's address before anything else."""

    @pytest.fixture
    def start_sending(self, start_rig: StartRig, lines: Protocol, broker: ScriptedBroker) -> StartBehind:
        async def start(version: Version, **settings: Any) -> Rig:
            config = ListenerConfig(
                *("main", lines, lines.options(), (HOST, 0), broker.address),
                proxy_protocol_from=(ip_network(ANOTHER),),
                send_proxy_protocol=version,
                **settings,
            )
            return await start_rig(listeners=(config,))

        return start

    async def told(self, broker: Peer) -> proxy_protocol.Header:
        data = b""
        while True:
            data += await broker.receive(1)
            found = proxy_protocol.parse(data)
            if found is not None:
                return found

    @pytest.mark.parametrize("version", ["v1", "v2"])
    async def test_address_is_that_of_the_connection(self, start_sending: StartBehind, version: Version) -> None:
        rig = await start_sending(version)
        await self.told(await rig.broker.accept())
        client = await rig.client()
        await client.send(b"free 1\n")
        broker = await rig.broker.accept()
        found = await self.told(broker)
        assert (found.source, found.destination) == (client.sock.getsockname(), rig.address)
        assert await broker.receive_line() == b"free 1\n"

    @pytest.mark.parametrize("version", ["v1", "v2"])
    async def test_the_address_is_that_of_the_load_balancers_header(
        self, start_sending: StartBehind, version: Version
    ) -> None:
        rig = await start_sending(version)
        await self.told(await rig.broker.accept())
        client = await rig.client(source=ANOTHER)
        await client.send(header("2001:db8::7", "v1" if version == "v2" else "v2"))
        found = await self.told(await rig.broker.accept())
        assert found.source == ("2001:db8::7", 40000)
        assert found.destination is not None
        assert found.destination[1] == 5672

    async def test_broker_probe_is_made_by_sluice_itself(self, start_sending: StartBehind) -> None:
        rig = await start_sending("v2")
        await rig.path.server.reach("main")
        for _ in range(2):
            tried = await rig.broker.accept()
            found = await self.told(tried)
            assert (found.source, found.destination) == (tried.sock.getpeername(), rig.broker.address)
            assert await tried.receive_to_end() == b""

    async def test_broker_that_is_gone_again_ends_the_connection(
        self, start_sending: StartBehind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = await start_sending("v1")

        def send_now(wire: Wire, buffers: object) -> None:
            raise ConnectionResetError(104, "Connection reset by peer")

        monkeypatch.setattr(Wire, "send_now", send_now)
        await gone(await rig.client())
        await rig.until_closed("broker_error")
