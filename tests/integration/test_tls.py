"""TLS between real clients, Sluice and real brokers: on either side, with and without client certificates."""

import json
import os
import shutil
import signal
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from certificates import HOST, PASSWORD, Certificates
from harness.clients import ClientFailedError, amqp_java, amqp_python, java, run_client
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.rocketmq import RocketMQ, StartRocketMQ
from harness.sidecar import Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_SIDECAR_HOST: Final = "127.0.0.2"
_SENDING_S: Final = 3
_RATE: Final = 20
_TIMEOUT_S, _POLL_S = 60.0, 0.1
_AMQP: Final = {"pika": lambda: amqp_python("pika_flat_out.py"), "java": lambda: amqp_java("FlatOut.java")}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("broker", HOST)
    made.issue("sluice", HOST, _SIDECAR_HOST)
    made.issue("client", common_name="orders-service")
    made.issue("expired", common_name="orders-service", days=-1)
    made.issue("renewed", HOST, days=30)
    others = Certificates(tmp_path_factory.mktemp("others"))
    others.issue("client", common_name="orders-service")
    shutil.copy(others.path("client-both.pem"), made.path("foreign-both.pem"))
    return made


class TlsRabbitMQ:
    """A broker with a second port for TLS."""

    def __init__(self, broker: RabbitMQ, tls_address: str) -> None:
        self.broker = broker
        self.addresses = {"plain": broker.address, "TLS": tls_address}


@pytest.fixture(scope="module")
def rabbitmq(start_rabbitmq: StartRabbitMQ, certificates: Certificates) -> TlsRabbitMQ:
    address = f"{HOST}:{free_port()}"
    settings = {
        "listeners.ssl.1": address,
        "ssl_options.cacertfile": certificates.path("ca.pem"),
        "ssl_options.certfile": certificates.path("broker.pem"),
        "ssl_options.keyfile": certificates.path("broker.key"),
    }
    return TlsRabbitMQ(start_rabbitmq(settings=settings, root=None), address)


def _listener(certificates: Certificates, name: str, broker: str, *more: str, listen: str = "") -> str:
    lines = (
        "[[listeners]]",
        f'name = "{name}"',
        f'listen = "{listen or f"{HOST}:{free_port()}"}"',
        f'broker = "{broker}"',
        f'tls_certificate_file = "{certificates.path("sluice.pem")}"',
        f'tls_key_file = "{certificates.path("sluice.key")}"',
        *more,
    )
    return "\n".join(lines) + "\n"


def _to_broker(certificates: Certificates) -> tuple[str, ...]:
    return "broker_tls = true", f'broker_tls_ca_file = "{certificates.path("ca.pem")}"'


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: TlsRabbitMQ, certificates: Certificates) -> Sluice:
    amqp = 'protocol = "amqp091"'
    config = (
        _listener(certificates, "plain", rabbitmq.addresses["plain"], amqp, 'tls = "accept"')
        + _listener(certificates, "TLS", rabbitmq.addresses["TLS"], amqp, 'tls = "accept"', *_to_broker(certificates))
        + _listener(
            *(certificates, "certificates", rabbitmq.addresses["plain"], amqp, 'tls = "require"'),
            f'tls_client_ca_file = "{certificates.path("ca.pem")}"',
        )
        + f'[[limits]]\nkind = "queue"\nname = "limited-*"\nrate = {_RATE}\naction = "reject"\n'
        + f'[[limits]]\nkind = "certificate"\nname = "orders-*"\nrate = {_RATE}\naction = "reject"\n'
    )
    return start_sluice(config=config)


def _listen(sluice: Sluice, name: str) -> str:
    rows = json.loads(sluice.get("/api/v1/state")[1])["listeners"]
    (address,) = [row["listen"] for row in rows if row["name"] == name]
    assert isinstance(address, str)
    return address


def _environment(certificates: Certificates, shown: str = "") -> dict[str, str]:
    """Return variables that make a client of any language use TLS."""
    environment = {
        "TLS": "1",
        "TLS_CA": certificates.path("ca.pem"),
        "JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={certificates.trust_store()}"
        f" -Djavax.net.ssl.trustStorePassword={PASSWORD}",
    }
    return environment | ({"TLS_CERTIFICATE": certificates.path(f"{shown}-both.pem")} if shown else {})


def _publish(name: str, address: str, home: Path, *queues: str, seconds: int = _SENDING_S, **how: Any) -> Any:
    host, _, port = address.rpartition(":")
    return run_client([*_AMQP[name](), host, port, str(seconds), *queues], home=home, seconds=seconds, **how)


@pytest.mark.parametrize("client", ["pika", pytest.param("java", marks=[pytest.mark.long])])
@pytest.mark.parametrize("to_broker", [pytest.param("plain", marks=[pytest.mark.long]), "TLS"])
@pytest.mark.parametrize("to_sluice", [pytest.param("plain", marks=[pytest.mark.long]), "TLS"])
def test_limits_hold_with_tls_on_either_side(  # noqa: PLR0917 - fixtures
    client: str,
    to_broker: str,
    to_sluice: str,
    rabbitmq: TlsRabbitMQ,
    sluice: Sluice,
    certificates: Certificates,
    client_home: Path,
) -> None:
    limited, free = (f"{name}-{client}-{to_sluice}-{to_broker}" for name in ("limited", "free"))
    env = _environment(certificates) if to_sluice == "TLS" else {}
    report = _publish(client, _listen(sluice, to_broker), client_home, limited, free, env=env)
    assert report[limited]["failed"] == report[free]["failed"] == report[free]["nacked"] == []
    assert report[limited]["nacked"]
    for queue in (limited, free):
        assert sorted(map(int, rabbitmq.broker.drain(queue))) == sorted(report[queue]["acked"])
        assert report[queue]["acked"]


@pytest.mark.long
def test_name_in_the_clients_certificate_is_limited_and_shown(
    rabbitmq: TlsRabbitMQ, sluice: Sluice, certificates: Certificates, client_home: Path
) -> None:
    address, environment = _listen(sluice, "certificates"), _environment(certificates, "client")
    with ThreadPoolExecutor() as pool:
        # The list of connections is a few seconds old.
        publishing = pool.submit(
            *(_publish, "pika", address, client_home, "free-of-certificate"), seconds=12, env=environment
        )
        deadline = time.monotonic() + _TIMEOUT_S
        while not (rows := json.loads(sluice.get("/api/v1/connections?search=orders-service")[1])["rows"]):
            assert not publishing.done(), publishing.result()
            assert time.monotonic() < deadline
            time.sleep(_POLL_S)
        report = publishing.result()["free-of-certificate"]
    assert (rows[0]["tls"], rows[0]["certificate"]) == ("TLSv1.3", "orders-service")
    assert report["nacked"]
    assert report["failed"] == []
    assert len(rabbitmq.broker.drain("free-of-certificate")) == len(report["acked"])
    explained = sluice.explain(kind="queue", name="free-of-certificate", certificate="orders-service")
    assert [limit["name"] for limit in explained["limits"]] == ["orders-service"]


@pytest.mark.parametrize("shown", ["", "expired", "foreign"])
def test_clients_without_a_certificate_that_holds_are_not_served(
    shown: str, sluice: Sluice, certificates: Certificates, client_home: Path
) -> None:
    def turned_away() -> float:
        return sluice.metrics().total("sluice_connections_closed_total", listener="certificates", reason="tls")

    before = turned_away()
    with pytest.raises(ClientFailedError, match=r"(?i)ssl|AMQPConnectionError|ConnectionReset"):
        _publish("pika", _listen(sluice, "certificates"), client_home, "nobody", env=_environment(certificates, shown))
    sluice.wait_for_metrics(
        lambda metrics: metrics.total("sluice_connections_closed_total", listener="certificates", reason="tls") > before
    )


def test_plain_client_is_not_served_where_tls_is_required(sluice: Sluice, client_home: Path) -> None:
    with pytest.raises(ClientFailedError):
        _publish("pika", _listen(sluice, "certificates"), client_home, "nobody")


def _certificate_at(address: str, certificates: Certificates) -> bytes:
    """Return the server's certificate, in DER."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    with (
        socket.create_connection((host, int(port)), 60) as sock,
        context.wrap_socket(sock, server_hostname=host) as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_certificate_is_replaced_under_load_and_no_connection_breaks(
    start_sluice: StartSluice, rabbitmq: TlsRabbitMQ, certificates: Certificates, tmp_path: Path
) -> None:
    files = {kind: tmp_path / f"shown.{kind}" for kind in ("pem", "key")}

    def show(name: str) -> None:
        for kind, file in files.items():
            shutil.copy(certificates.path(f"{name}.{kind}"), file)

    show("sluice")
    address = f"{HOST}:{free_port()}"
    config = f"""
        [[listeners]]
        name = "main"
        protocol = "amqp091"
        listen = "{address}"
        broker = "{rabbitmq.addresses["plain"]}"
        tls = "require"
        tls_certificate_file = "{files["pem"]}"
        tls_key_file = "{files["key"]}"
    """
    expiry = "sluice_tls_certificate_expiry_timestamp_seconds"
    with start_sluice(config=config) as sluice, ThreadPoolExecutor() as pool:
        before = _certificate_at(address, certificates)
        ends = sluice.metrics().total(expiry, listener="main", side="client")
        publishing = pool.submit(
            *(_publish, "pika", address, tmp_path / "client", "under-load"),
            seconds=8,
            env=_environment(certificates),
        )
        sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_requests_total", verdict="pass") > 0)
        # Only half of it first, as with a manual copy.
        shutil.copy(certificates.path("renewed.pem"), files["pem"])
        os.kill(sluice.process.pid, signal.SIGHUP)
        sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_reload_ok") == 0)
        assert _certificate_at(address, certificates) == before
        show("renewed")
        os.kill(sluice.process.pid, signal.SIGHUP)
        sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_reload_ok") == 1)
        assert _certificate_at(address, certificates) != before
        assert sluice.metrics().total(expiry, listener="main", side="client") < ends - 86_400
        report = publishing.result()["under-load"]
    assert report["failed"] == report["nacked"] == []
    assert len(rabbitmq.broker.drain("under-load")) == len(report["acked"])


@pytest.fixture(scope="module")
def rocketmq(start_rocketmq: StartRocketMQ, certificates: Certificates, tmp_path_factory: Any) -> RocketMQ:
    """A name server and a broker that accept TLS."""
    file = tmp_path_factory.mktemp("rocketmq") / "tls.properties"
    lines = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": certificates.path("broker.pem"),
        "tls.server.keyPath": certificates.path("broker.key"),
        "tls.server.need.client.auth": "none",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
    options = ("-Dtls.server.mode=permissive", f"-Dtls.config.file={file}")
    return start_rocketmq(java_options=options)


@pytest.mark.long
@pytest.mark.parametrize("to_broker", ["plain", "TLS"])
def test_limits_of_topics_hold_with_tls_on_either_side(  # noqa: PLR0917 - fixtures
    to_broker: str,
    start_sluice: StartSluice,
    rocketmq: RocketMQ,
    certificates: Certificates,
    client_home: Path,
    tmp_path: Path,
) -> None:
    file = tmp_path / "tls.properties"
    lines = {
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": certificates.path("ca.pem"),
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
    options = {"plain": (), "TLS": ("-Dtls.enable=true", f"-Dtls.config.file={file}")}
    more = ('tls = "accept"', *(_to_broker(certificates) if to_broker == "TLS" else ()))
    config = (
        _listener(
            *(certificates, "main", f"{rocketmq.host}:{rocketmq.port}", *more),
            listen=f"{_SIDECAR_HOST}:{rocketmq.port}",
        )
        + f'[[limits]]\nkind = "topic"\nname = "limited-*"\nrate = {_RATE}\n'
    )
    with start_sluice(config=config) as sluice:
        for to_sluice in ("plain", "TLS"):
            topics = [rocketmq.create_topic(f"{name}-{to_sluice}-{to_broker}") for name in ("limited", "free")]
            command = java(
                *("FlatOutProducer.java", rocketmq.namesrv, f"group-{to_sluice}", str(_SENDING_S), "50", *topics),
                home=client_home,
                options=("-Dretries=0", *options[to_sluice]),
            )
            report = run_client(command, home=client_home, seconds=_SENDING_S)
            assert report[topics[0]]["refused"] > 0
            assert report[topics[1]]["refused"] == report[topics[0]]["failed"] == report[topics[1]]["failed"] == 0
            for topic in topics:
                assert rocketmq.stored_messages(topic) == report[topic]["stored"] > 0
        assert sluice.metrics().total("sluice_connections_closed_total", reason="tls") == 0
