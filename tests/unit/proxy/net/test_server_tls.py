"""TLS to clients and to the broker: accepted and rejected connections with reasons, and reloads."""

from __future__ import annotations

import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest
import trio
from certificates import HOST, Certificates
from trio.testing import MockClock

from proxy.net import proxy_protocol
from proxy.net.broker_watch import BrokerWatch
from proxy.net.server import ListenerConfig
from proxy.net.tls import BrokerTls, ClientTls

if TYPE_CHECKING:
    from proxy.protocols.base import Protocol
    from tests.unit.proxy.conftest import Peer, Rig, ScriptedBroker, StartRig

# Of a PROXY header of version 2, for IPv4.
_HEADER_BYTES = 28

StartTls = Callable[..., Awaitable["Rig"]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("server", HOST)
    made.issue("other", "other.example")
    made.issue("client", common_name="orders-service")
    made.issue("expired", common_name="late-service", days=-1)
    return made


@pytest.fixture
def start_tls(start_rig: StartRig, lines: Protocol, broker: ScriptedBroker) -> StartTls:
    """Start a data path with TLS to the broker, and with ``clients`` to the clients."""

    async def start(
        *limits: str,
        clients: ssl.SSLContext | None = None,
        required: bool = True,
        to_broker: ssl.SSLContext | None = None,
        server_name: str = HOST,
        **settings: Any,
    ) -> Rig:
        config = ListenerConfig(
            *("main", lines, lines.options(), (HOST, 0), broker.address),
            client_tls=None if clients is None else ClientTls(clients, required=required),
            broker_tls=None if to_broker is None else BrokerTls(to_broker, server_name),
            **settings,
        )
        return await start_rig(*limits, listeners=(config,))

    return start


class TlsPeer:
    """One end of a TLS connection over another peer."""

    def __init__(self, peer: Peer, context: ssl.SSLContext, *, server: bool = False, name: str = HOST) -> None:
        self.peer = peer
        self._stream = trio.SSLStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(peer.sock)),
            context,
            server_hostname=None if server else name,
            server_side=server,
        )
        self._read = b""

    async def shake_hands(self) -> None:
        await self._stream.do_handshake()

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive(self, size: int) -> bytes:
        while len(self._read) < size:
            chunk = await self._stream.receive_some(1 << 20)
            assert chunk, f"the stream ended after {self._read!r}"
            self._read += bytes(chunk)
        data, self._read = self._read[:size], self._read[size:]
        return data

    async def receive_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += await self.receive(1)
        return line

    async def receive_to_end(self) -> bytes:
        while chunk := await self._stream.receive_some(1 << 20):
            self._read += bytes(chunk)
        return self._read

    async def end(self) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await self._stream.aclose()


async def served(rig: Rig, client: TlsPeer) -> Peer:
    """Return the broker's end of a client's connection, once the handshake is complete."""
    await client.shake_hands()
    broker = await rig.broker.accept()
    await rig.until(lambda: rig.connections)
    return broker


async def test_clients_tls_is_terminated_and_limited(start_tls: StartTls, certificates: Certificates) -> None:
    rig = await start_tls(clients=certificates.server())
    client = TlsPeer(await rig.client(), certificates.client())
    broker = await served(rig, client)
    await client.send(b"free 1\nzero 2\nfree 3\n")
    assert await broker.receive(14) == b"free 1\nfree 3\n"
    assert await client.receive_line() == b"BUSY zero 1000000\n"
    await broker.send(b"answer\n")
    assert await client.receive_line() == b"answer\n"
    (connection,) = rig.connections
    assert (connection.info.tls, connection.info.certificate, connection.info.scopes) == ("TLSv1.3", "", ())


async def test_plain_clients_share_the_port_where_tls_is_accepted(
    start_tls: StartTls, certificates: Certificates
) -> None:
    rig = await start_tls(clients=certificates.server(), required=False)
    plain = await rig.client()
    await plain.send(b"free 1\n")
    broker = await rig.broker.accept()
    assert await broker.receive_line() == b"free 1\n"
    client = TlsPeer(await rig.client(), certificates.client())
    await client.shake_hands()
    broker = await rig.broker.accept()
    await client.send(b"free 2\n")
    assert await broker.receive_line() == b"free 2\n"
    assert [each.info.tls for each in rig.connections] == ["", "TLSv1.3"]


async def test_plain_client_is_not_served_where_tls_is_required(
    start_tls: StartTls, certificates: Certificates, log: list[Any]
) -> None:
    rig = await start_tls(clients=certificates.server())
    plain = await rig.client()
    await plain.send(b"free 1\n")
    await rig.until_closed("tls")
    assert any("the client did not start a TLS handshake" in str(entry.get("detail")) for entry in log)


@pytest.mark.parametrize("required", [False, True])
async def test_silent_client_is_closed_in_time(
    start_tls: StartTls, certificates: Certificates, mock_clock: MockClock, log: list[Any], *, required: bool
) -> None:
    rig = await start_tls(clients=certificates.server(), required=required, handshake_timeout_s=3.0)
    client = await rig.client()
    await rig.settle()
    mock_clock.jump(3.1)
    assert await client.receive_to_end() == b""
    await rig.until_closed("handshake_timeout")
    what = "complete TLS handshake" if required else "data from the client"
    assert any(entry.get("detail") == f"no {what} within 3 s" for entry in log)


async def test_an_unfinished_handshake_is_closed_in_time(
    start_tls: StartTls, certificates: Certificates, mock_clock: MockClock
) -> None:
    rig = await start_tls(clients=certificates.server(), required=False, handshake_timeout_s=3.0)
    client = await rig.client()
    await client.send(b"\x16\x03\x01\x02\x00\x01")
    await rig.settle()
    mock_clock.jump(3.1)
    await rig.until_closed("handshake_timeout")


async def test_name_in_the_certificate_is_a_scope_of_limits(start_tls: StartTls, certificates: Certificates) -> None:
    rig = await start_tls("certificate:orders-*=0/s", clients=certificates.server(clients=ssl.CERT_OPTIONAL))
    client = TlsPeer(await rig.client(), certificates.client("client"))
    await served(rig, client)
    await client.send(b"free 1\n")
    assert (await client.receive_line()).startswith(b"BUSY orders-service")
    (connection,) = rig.connections
    assert connection.info.certificate == "orders-service"
    nobody = TlsPeer(await rig.client(), certificates.client())
    await nobody.shake_hands()
    broker = await rig.broker.accept()
    await nobody.send(b"free 2\n")
    assert await broker.receive_line() == b"free 2\n"


@pytest.mark.parametrize("shown", [None, "expired"])
async def test_clients_whose_certificate_does_not_hold_are_not_served(
    start_tls: StartTls, certificates: Certificates, shown: str | None
) -> None:
    rig = await start_tls(clients=certificates.server(clients=ssl.CERT_REQUIRED))
    client = TlsPeer(await rig.client(), certificates.client(shown))
    with pytest.raises(trio.BrokenResourceError):
        await client.receive(1)
    await rig.until_closed("tls")


async def test_rate_of_connections_is_kept_before_handshakes_cost_anything(
    start_tls: StartTls, certificates: Certificates
) -> None:
    rig = await start_tls(clients=certificates.server(), new_connections_per_s=1.0)
    first = TlsPeer(await rig.client(), certificates.client())
    await served(rig, first)
    second = await rig.client()
    assert await second.receive_to_end() == b""
    assert rig.closed == {"connection_rate": 1}


async def test_header_of_a_load_balancer_comes_before_tls(start_tls: StartTls, certificates: Certificates) -> None:
    rig = await start_tls(clients=certificates.server(), proxy_protocol_from=(ip_network(HOST),))
    peer = await rig.client()
    await peer.send(proxy_protocol.make("v2", ("192.0.2.7", 40000), ("192.0.2.100", 5671)))
    await served(rig, TlsPeer(peer, certificates.client()))
    (connection,) = rig.connections
    assert (connection.info.address, connection.info.tls) == ("192.0.2.7", "TLSv1.3")


class TlsBroker:
    def __init__(self, broker: ScriptedBroker, context: ssl.SSLContext) -> None:
        self.context = context
        self.tries = 0
        self._broker = broker

    async def answer_try(self, *, with_header: bool = False) -> None:
        accepted = await self._broker.accept(ended=True)
        if with_header:
            await trio.lowlevel.wait_readable(accepted.sock)
            assert len(accepted.sock.recv(_HEADER_BYTES)) == _HEADER_BYTES
        peer = TlsPeer(accepted, self.context, server=True)
        with suppress(trio.BrokenResourceError):
            await peer.shake_hands()
        self.tries += 1

    async def accept(self) -> TlsPeer:
        peer = TlsPeer(await self._broker.accept(), self.context, server=True)
        await peer.shake_hands()
        return peer


StartToBroker = Callable[..., Awaitable[tuple["Rig", TlsBroker]]]


@pytest.fixture
def start_to_broker(
    start_tls: StartTls, certificates: Certificates, broker: ScriptedBroker, nursery: trio.Nursery
) -> StartToBroker:
    """Start a data path with TLS to its broker, which is probed once at the start."""

    async def start(*limits: str, at_broker: ssl.SSLContext | None = None, **settings: Any) -> tuple[Rig, TlsBroker]:
        tls_broker = TlsBroker(broker, at_broker or certificates.server())
        nursery.start_soon(partial(tls_broker.answer_try, with_header="send_proxy_protocol" in settings))
        settings.setdefault("to_broker", certificates.client())
        return await start_tls(*limits, **settings), tls_broker

    return start


async def test_the_broker_is_connected_by_tls(start_to_broker: StartToBroker) -> None:
    rig, broker = await start_to_broker()
    assert rig.path.server.watches["main"].listening
    client = await rig.client()
    peer = await broker.accept()
    await client.send(b"free 1\nzero 1\n")
    assert await peer.receive_line() == b"free 1\n"
    assert await client.receive_line() == b"BUSY zero 1000000\n"
    await peer.send(b"answer\n")
    assert await client.receive_line() == b"answer\n"


async def test_much_goes_both_ways_with_tls_on_both_sides(
    start_to_broker: StartToBroker, certificates: Certificates
) -> None:
    rig, broker = await start_to_broker(clients=certificates.server())
    client = TlsPeer(await rig.client(), certificates.client())
    await client.shake_hands()
    peer = await broker.accept()
    drawn = random.Random(5)
    sent = b"".join(b"free %s\n" % (b"%d" % drawn.randrange(10**9) * drawn.randrange(1, 40)) for _ in range(40_000))
    answers = b"".join(b"answer %s\n" % (b"%d" % drawn.randrange(10**9)) for _ in range(40_000))
    async with trio.open_nursery() as both:
        both.start_soon(client.send, sent)
        both.start_soon(peer.send, answers)
        got: dict[str, bytes] = {}

        async def receive(name: str, end: TlsPeer, size: int) -> None:
            got[name] = await end.receive(size)

        both.start_soon(receive, "broker", peer, len(sent))
        both.start_soon(receive, "client", client, len(answers))
    assert got == {"broker": sent, "client": answers}


async def test_ends_go_through_tls_on_both_sides(start_to_broker: StartToBroker, certificates: Certificates) -> None:
    rig, broker = await start_to_broker(clients=certificates.server())
    client = TlsPeer(await rig.client(), certificates.client())
    await client.shake_hands()
    peer = await broker.accept()
    await client.send(b"free 1\n")
    await client.end()
    assert await peer.receive_to_end() == b"free 1\n"
    await peer.end()
    await rig.until_closed("client_closed")


@pytest.mark.parametrize(
    ("at_broker", "settings", "told"),
    [
        ("other", {}, "TLS: the peer's certificate was rejected: IP address mismatch"),
        ("server", {"server_name": "elsewhere.example"}, "not valid for 'elsewhere.example'"),
        ("server", {"to_broker": ssl.create_default_context()}, "TLS: the peer's certificate was rejected: "),
    ],
)
async def test_no_client_is_served_while_the_broker_is_untrusted(
    start_to_broker: StartToBroker, certificates: Certificates, at_broker: str, settings: dict[str, Any], told: str
) -> None:
    rig, broker = await start_to_broker(at_broker=certificates.server(at_broker), **settings)
    assert not rig.path.server.watches["main"].listening
    assert told in str(rig.path.server.watches["main"].error)
    await rig.until(lambda: broker.tries)


async def test_client_is_closed_if_the_broker_is_not_to_be_trusted_any_more(
    start_to_broker: StartToBroker, certificates: Certificates
) -> None:
    rig, broker = await start_to_broker()
    broker.context = certificates.server("other")
    client = await rig.client()
    with pytest.raises(trio.BrokenResourceError):
        await broker.accept()
    await broker.answer_try()
    with suppress(ConnectionResetError):
        assert await client.receive_to_end() == b""
    assert rig.closed == {"broker_unreachable": 1}
    assert not rig.path.server.watches["main"].listening


async def test_a_client_refused_by_the_broker_is_closed_and_others_continue(
    start_to_broker: StartToBroker, log: list[Any]
) -> None:
    rig, broker = await start_to_broker(send_proxy_protocol="v2")
    client = await rig.client()
    # The PROXY header tells the broker which client it does not serve.
    (await rig.broker.accept()).sock.close()
    await broker.answer_try(with_header=True)
    with suppress(ConnectionResetError):
        assert await client.receive_to_end() == b""
    assert rig.closed == {"broker_unreachable": 1}
    assert rig.path.server.watches["main"].listening
    assert not [line for line in log if line["event"].startswith("broker unreachable")]


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), trio.TooSlowError()])
async def test_broker_that_may_not_speak_tls_is_reported_with_the_remedy(
    start_to_broker: StartToBroker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    rig, _ = await start_to_broker()
    monkeypatch.setattr(BrokerWatch, "_reach", fail)
    (reach,) = await rig.path.probe_brokers()
    assert "if the broker does not speak TLS on this port, remove broker_tls" in str(reach.error)


async def test_broker_that_hangs_in_the_handshake_is_waited_for_no_longer_than_for_a_connection(
    start_to_broker: StartToBroker, mock_clock: MockClock
) -> None:
    rig, _ = await start_to_broker(connect_timeout_s=4.0)
    client = await rig.client()
    await rig.broker.accept()
    await rig.settle()
    mock_clock.jump(4.1)
    assert await client.receive_to_end() == b""
    assert rig.closed == {"broker_unreachable": 1}


async def test_other_certificate_is_for_the_connections_to_come(
    start_tls: StartTls, certificates: Certificates
) -> None:
    rig = await start_tls(clients=certificates.server())
    before = TlsPeer(await rig.client(), certificates.client())
    broker = await served(rig, before)
    tls = rig.path.server.listeners[0].client_tls
    assert tls is not None
    tls.context = certificates.server("other")
    after = TlsPeer(await rig.client(), certificates.client(), name="other.example")
    await after.shake_hands()
    await before.send(b"free 1\n")
    assert await broker.receive_line() == b"free 1\n"
    assert not rig.closed
