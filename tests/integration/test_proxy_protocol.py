"""The PROXY protocol between real programs: HAProxy in front of Sluice, RabbitMQ behind it."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.amqp import AmqpClient, AmqpError
from harness.haproxy import HAProxy
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.sidecar import Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_CLIENT, _ANOTHER = "127.0.7.1", "127.0.7.2"
_TIMEOUT_S, _POLL_S = 60.0, 0.1


@pytest.fixture(scope="module")
def rabbitmq(start_rabbitmq: StartRabbitMQ) -> RabbitMQ:
    """A broker that requires a PROXY header."""
    return start_rabbitmq(settings={"proxy_protocol": "true", "log.console.level": "debug"})


@pytest.fixture(scope="module", params=[pytest.param("v1", marks=[pytest.mark.long]), "v2"])
def sluice(request: pytest.FixtureRequest, start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Iterator[Sluice]:
    """Between both. The second listener accepts headers from no address, the third is reached by IPv6."""
    listeners = "\n".join(
        f"""
        [[listeners]]
        name = "{name}"
        protocol = "amqp091"
        listen = "{listen}:{free_port()}"
        broker = "{rabbitmq.address}"
        proxy_protocol_from = {trusted}
        send_proxy_protocol = "{request.param}"
        max_connections_per_client = 2
        """
        for name, listen, trusted in (
            ("behind", "127.0.0.1", '["127.0.0.1"]'),
            ("direct", "127.0.0.1", "[]"),
            ("behind6", "[::1]", '["::1"]'),
        )
    )
    with start_sluice(config=listeners) as sidecar:
        yield sidecar


def _listen(sluice: Sluice, name: str) -> str:
    rows = json.loads(sluice.get("/api/v1/state")[1])["listeners"]
    (address,) = [row["listen"] for row in rows if row["name"] == name]
    assert isinstance(address, str)
    return address


def _peers(sluice: Sluice) -> set[str]:
    return {row["peer"] for row in json.loads(sluice.get("/api/v1/connections")[1])["rows"]}


@pytest.mark.parametrize(
    "option",
    [
        *(pytest.param(each, marks=pytest.mark.long) for each in ("send-proxy", "send-proxy-v2")),
        "send-proxy-v2 proxy-v2-options crc32c,unique-id",
    ],
)
def test_all_views_have_the_clients_address(tmp_path: Path, sluice: Sluice, rabbitmq: RabbitMQ, option: str) -> None:
    turned_away = "sluice_connections_closed_total"
    before = sluice.metrics().total(turned_away, reason="too_many_connections_of_client")
    with (
        HAProxy(tmp_path / "haproxy", _listen(sluice, "behind"), option) as haproxy,
        AmqpClient(haproxy.address, source=_CLIENT) as first,
        AmqpClient(haproxy.address, source=_CLIENT),
        AmqpClient(haproxy.address, source=_ANOTHER),
    ):
        assert first.open_channel()
        seen = rabbitmq.connections()
        # The list is updated every second or so.
        wanted = {f"{each['peer_host']}:{each['peer_port']}" for each in seen}
        deadline_s = time.monotonic() + _TIMEOUT_S
        while (peers := _peers(sluice)) != wanted and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        with pytest.raises((AmqpError, OSError)):
            AmqpClient(haproxy.address, source=_CLIENT)
        sluice.wait_for_metrics(
            lambda metrics: metrics.total(turned_away, reason="too_many_connections_of_client") == before + 1
        )

    assert sorted(each["peer_host"] for each in seen) == [_CLIENT, _CLIENT, _ANOTHER]
    # The client connected to HAProxy.
    assert {f"{each['host']}:{each['port']}" for each in seen} == {haproxy.address}
    assert peers == wanted
    assert f"max_connections_per_client (2) has been reached for {_CLIENT}" in sluice.process.wait_for_line(
        "too_many_connections_of_client", timeout_s=60
    )


@pytest.mark.parametrize(
    ("option", "listener"),
    [
        ("send-proxy", "behind6"),
        *(
            pytest.param(option, listener, marks=pytest.mark.long)
            for option, listener in (
                ("send-proxy", "behind"),
                ("send-proxy-v2", "behind"),
                ("send-proxy-v2", "behind6"),
            )
        ),
    ],
)
def test_all_views_have_a_clients_ipv6_address(
    tmp_path: Path, sluice: Sluice, rabbitmq: RabbitMQ, listener: str, option: str
) -> None:
    with (
        HAProxy(tmp_path / "haproxy", _listen(sluice, listener), option, host="::1") as haproxy,
        AmqpClient(haproxy.address) as client,
    ):
        assert client.open_channel()
        (seen,) = rabbitmq.connections()
        wanted = {f"[{seen['peer_host']}]:{seen['peer_port']}"}
        deadline_s = time.monotonic() + _TIMEOUT_S
        while (peers := _peers(sluice)) != wanted and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    assert (seen["peer_host"], f"[{seen['host']}]:{seen['port']}") == ("::1", haproxy.address)
    assert peers == wanted


def test_client_without_a_load_balancer_is_introduced_too(sluice: Sluice, rabbitmq: RabbitMQ) -> None:
    with AmqpClient(_listen(sluice, "direct"), source=_CLIENT):
        (seen,) = rabbitmq.connections()
    assert seen["peer_host"] == _CLIENT
    assert f"{seen['host']}:{seen['port']}" == _listen(sluice, "direct")


def test_other_addresses_cannot_send_a_header(sluice: Sluice, rabbitmq: RabbitMQ) -> None:
    host, _, port = _listen(sluice, "direct").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nAMQP\0\0\11\1")
        received = b""
        while part := client.recv(4096):
            received += part
    assert received == b""
    assert "add its address to the listener's proxy_protocol_from" in sluice.process.wait_for_line(
        '"proxy_protocol"', timeout_s=60
    )
    assert not [line for line in rabbitmq.log_lines if "192.0.2.1" in line]


def test_a_load_balancer_without_headers_is_logged(tmp_path: Path, sluice: Sluice) -> None:
    with (
        HAProxy(tmp_path / "haproxy", _listen(sluice, "behind")) as haproxy,
        pytest.raises((AmqpError, OSError)),
    ):
        AmqpClient(haproxy.address)
    line = sluice.process.wait_for_line("proxy_header_missing", timeout_s=60)
    assert "127.0.0.1 is in proxy_protocol_from but sent no valid PROXY header" in line


def test_broker_has_no_reason_to_complain_of_being_tried(sluice: Sluice, rabbitmq: RabbitMQ) -> None:
    before = len(rabbitmq.log_lines)
    for _ in range(3):
        assert sluice.get("/readyz")[0] == 200
    with AmqpClient(_listen(sluice, "direct"), source=_CLIENT):
        # Earlier attempts are logged by now.
        rabbitmq.connections()
        said = rabbitmq.log_lines[before:]
    assert not [line for line in said if "[error]" in line or "[warning]" in line]
