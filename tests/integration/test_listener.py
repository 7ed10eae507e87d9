"""Readiness of a listener, streams of other protocols, and a missing broker."""

import socket

import pytest
from harness.rocketmq import RocketMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

# The start of a TLS record: handshake, TLS 1.0 record version, 512 bytes.
_CLIENT_HELLO_START = b"\x16\x03\x01\x02\x00\x01"


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def _read_to_end(connection: socket.socket) -> bytes:
    """Read until the other side closes, orderly or not."""
    received = b""
    try:
        while part := connection.recv(4096):
            received += part
    except ConnectionResetError:
        pass
    return received


def test_ready_once_the_broker_accepts(rocketmq: RocketMQ, sluice: Sluice) -> None:
    assert sluice.get("/readyz")[0] == 200


def test_tls_connection_is_closed_and_counted(rocketmq: RocketMQ, sluice: Sluice) -> None:
    before = sluice.metrics().total("sluice_connections_closed_total", reason="tls")

    with _connect(sluice.routes[0].listen) as client:
        client.sendall(_CLIENT_HELLO_START)
        received = _read_to_end(client)

    assert received == b""
    # The client sees the end of the stream before the connection is counted as closed.
    sluice.wait_for_metrics(
        lambda metrics: metrics.total("sluice_connections_closed_total", reason="tls") == before + 1
    )


def test_client_of_an_unreachable_broker_is_refused(start_sluice: StartSluice, listen: str, unreachable: str) -> None:
    route = Route(listen, unreachable)
    with start_sluice(routes=(route,), ready=False) as sluice:
        with pytest.raises(ConnectionRefusedError):
            _connect(route.listen)
        status, reason = sluice.get("/readyz")
        assert (status, '"listening":false' in reason) == (503, True)
        assert sluice.metrics().total("sluice_listening") == 0
        sluice.process.wait_for_line("broker unreachable; listener closed", timeout_s=60)
