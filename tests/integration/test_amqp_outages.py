"""AMQP clients while the broker is blocked, killed or gone, and when Sluice ends."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.amqp import AmqpClient, AmqpError, publish
from harness.clients import amqp_java, amqp_node, amqp_python, start_client
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_LIMITS = """
[[limits]]
kind = "queue"
name = "refused*"
rate = 0

[[limits]]
kind = "queue"
name = "slow*"
rate = 1
action = "delay"
max_delay_s = 60
"""
_HELD = 20
_PLAIN = 4
_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def rabbitmq(start_rabbitmq: StartRabbitMQ) -> Iterator[RabbitMQ]:
    """A broker for this module alone, which stops and kills it."""
    with start_rabbitmq() as running:
        yield running


@pytest.fixture
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Iterator[Sluice]:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    with start_sluice(routes=(route,), protocol="amqp091", config=_LIMITS, arguments=("--grace-s", "2")) as running:
        yield running


@pytest.fixture
def both(rabbitmq: RabbitMQ, sluice: Sluice) -> tuple[str, str]:
    return rabbitmq.address, sluice.routes[0].listen


def _declare(rabbitmq: RabbitMQ, *queues: str) -> None:
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for queue in queues:
            client.call(channel, "queue.declare", queue=queue, durable=True)


def _wait_until_listening(sluice: Sluice) -> None:
    """Sluice does not listen while its broker is unreachable."""
    sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_listening") == 1)


def test_blocked_connections_are_notified_as_directly(rabbitmq: RabbitMQ, both: tuple[str, str]) -> None:
    _declare(rabbitmq, "free", "refused")
    with ExitStack() as clients:
        publishers, consumers, silent = (
            [clients.enter_context(AmqpClient(address, **how)) for address in both]  # type: ignore[arg-type]
            for how in ({}, {}, {"capabilities": ("publisher_confirms", "basic.nack")})
        )
        channels = {client: client.open_channel(confirms=True) for client in (*publishers, *silent)}
        for client in consumers:
            client.call(client.open_channel(), "basic.consume", queue="free", consumer_tag="c", no_ack=True)
        rabbitmq.set_memory_alarm(on=True)
        try:
            for client, channel in channels.items():
                client.publish(channel, "free", b"blocked")
            # Publishers are told at their first publish at the latest, if they read.
            reasons = [client.expect("connection.blocked")["reason"] for client in publishers]
        finally:
            rabbitmq.set_memory_alarm(on=False)
        for client in publishers:
            client.expect("connection.unblocked")
        for client, channel in channels.items():
            assert client.wait_for_confirms(channel).acked == [1]
    assert reasons[0] == reasons[1]
    names = [[event.name for event in client.events if event.channel == 0] for client in (*publishers, *silent)]
    assert names[0] == names[1]
    assert names[2] == names[3]


def test_draining_closes_both_connections_cleanly(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    _declare(rabbitmq, "free", "slow-drained")
    logged = len(rabbitmq.log_lines)
    address = sluice.routes[0].listen
    with AmqpClient(address) as idle, AmqpClient(address) as busy, AmqpClient(address) as holding:
        idle.open_channel()
        channel = busy.open_channel(confirms=True)
        busy.publish(channel, "free", b"x")
        busy.wait_for_confirms(channel)
        channel = holding.open_channel(confirms=True)
        for number in range(_HELD):
            holding.publish(channel, "slow-drained", b"%d" % (number + 1))
        holding.wait_until(lambda: len(holding.confirmed[channel].acked) > 0, what="acked once")

        assert sluice.stop() == 0

        for client in (idle, busy, holding):
            client.wait_for_end()
            closed = [event for event in client.events if event.name == "connection.close"]
            assert [event["reply_code"] for event in closed] == [320]
        confirmed = holding.confirmed[channel]
    stored = [int(body) for body in rabbitmq.drain("slow-drained")]
    # Acked messages are stored, nacked ones are not, and each has an answer.
    assert sorted(confirmed.acked) == stored
    assert confirmed.outstanding == 0
    assert confirmed.again == []
    # The connection was closed properly, as the broker would otherwise warn of each.
    log = "\n".join(rabbitmq.log_lines[logged:])
    assert "closing AMQP connection" in log
    assert "unexpectedly closed" not in log, log


def test_client_without_pending_answers_is_told_of_a_drain_at_once(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    _declare(rabbitmq, "slow-dismissed")
    with AmqpClient(sluice.routes[0].listen) as client:
        channel = client.open_channel()
        client.send(*(publish(channel, "slow-dismissed", b"x") for _ in range(_HELD)))
        sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_held_requests") > 0)

        sluice.process.signal(signal.SIGTERM)

        assert client.expect("connection.close")["reply_text"] == (
            "CONNECTION_FORCED - Sluice is shutting down and accepts no more messages"
        )
        assert rabbitmq.messages("slow-dismissed") < _HELD
        assert sluice.process.wait(timeout_s=_TIMEOUT_S) == 0
    assert rabbitmq.messages("slow-dismissed") == _HELD


@pytest.mark.parametrize(
    "end", [pytest.param(RabbitMQ.stop, marks=pytest.mark.long), RabbitMQ.kill], ids=["stopped", "killed"]
)
def test_broker_that_ends_looks_as_it_does_directly(
    rabbitmq: RabbitMQ, both: tuple[str, str], sluice: Sluice, end: Callable[[RabbitMQ], None]
) -> None:
    _declare(rabbitmq, "free", "slow-killed")
    try:
        with ExitStack() as clients:
            seen = []
            for address in both:
                client = clients.enter_context(AmqpClient(address))
                channel = client.open_channel(confirms=True)
                client.publish(channel, "free", b"before")
                client.wait_for_confirms(channel)
                seen.append(client)
            holding = clients.enter_context(AmqpClient(both[1]))
            channel = holding.open_channel(confirms=True)
            for _ in range(_HELD):
                holding.publish(channel, "slow-killed")
            holding.wait_until(lambda: len(holding.confirmed[channel].acked) > 0, what="acked once")
            end(rabbitmq)
            for client in (*seen, holding):
                client.wait_for_end()
            # A killed broker sends nothing.
            direct, through, held = (
                [dict(event.arguments) for event in client.events if event.name == "connection.close"]
                for client in (*seen, holding)
            )
            assert through == direct
            # RabbitMQ resets a connection with unread publishes, which can destroy its last frames.
            assert held in (direct, [])
            assert len(direct) == (end is RabbitMQ.stop)
            confirmed = holding.confirmed[channel]
            assert confirmed.again == []
            assert not set(confirmed.acked) & set(confirmed.nacked)
        # While the broker is gone, connections are refused at once.
        for address in both:
            with pytest.raises((AmqpError, OSError)):
                AmqpClient(address)
    finally:
        rabbitmq.start()
    _wait_until_listening(sluice)
    with AmqpClient(both[1]) as client:
        channel = client.open_channel(confirms=True)
        client.publish(channel, "free", b"after")
        assert client.wait_for_confirms(channel).acked == [1]
        client.publish(channel, "refused", b"after")
        assert client.wait_for_confirms(channel).nacked == [2]


def test_client_that_breaks_off_has_published_all(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    """As without Sluice, everything written without confirms before the end of the stream is stored. Then nothing is
    left.
    """
    _declare(rabbitmq, "slow-left")
    client = AmqpClient(sluice.routes[0].listen)
    channels = [client.open_channel() for _ in range(_PLAIN)]
    confirming = client.open_channel(confirms=True)
    client.send(*(publish(channel, "slow-left", b"plain") for channel in channels))
    client.publish(confirming, "slow-left", b"confirmed")
    client.abort()
    sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_connections") == 0)
    assert sluice.metrics().total("sluice_held_requests") == 0
    # The other one's outcome is unknown, as its confirm could not be read.
    assert [body for body in rabbitmq.drain("slow-left") if body == b"plain"] == [b"plain"] * _PLAIN
    deadline = time.monotonic() + _TIMEOUT_S
    while rabbitmq.connections():
        assert time.monotonic() < deadline


def test_client_that_closes_its_connection_has_published_all(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    """The close is answered at once. Everything written before it is stored as the limit admits it."""
    _declare(rabbitmq, "slow-closed")
    with AmqpClient(sluice.routes[0].listen) as client:
        client.send(*(publish(client.open_channel(), "slow-closed", b"x") for _ in range(_PLAIN)))
    sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_connections") == 0)
    assert rabbitmq.messages("slow-closed") == _PLAIN


_WATCHED: dict[str, Callable[[], list[str]]] = {
    "pika": lambda: amqp_python("pika_watched.py"),
    "aio-pika": lambda: amqp_python("aio_pika_watched.py"),
    "amqplib": lambda: amqp_node("watched.js"),
    "java": lambda: amqp_java("Watched.java"),
}


def _reports(client: ManagedProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.lines if line.startswith("{")]


# The exception of a lost connection depends on the client's state.
_LOST = {
    "AMQPConnectionError": "lost",
    "ChannelInvalidStateError": "lost",
    "ConnectionClosed": "lost",
    "AlreadyClosedException": "lost",
    "ShutdownSignalException": "lost",
    "SocketException": "lost",
}


def _told(client: ManagedProcess) -> list[tuple[str, str]]:
    """Return the errors a client reported until it ended, in short. A publish in progress may or may not add one."""
    return [
        (report["about"], _LOST.get(report["what"], report["what"]))
        for report in _reports(client)
        if report["about"] != "publish"
    ]


def _texts(client: ManagedProcess, about: str) -> list[str]:
    # aio-pika shows the broker's frame, which may stand for several.
    texts = [report["text"] for report in _reports(client) if report["about"] == about]
    return [text.replace("multiple=True", "multiple=False") for text in texts]


def _start_all(address: str, home: Path, commands: dict[str, Callable[[], list[str]]], *arguments: str) -> Any:
    host, _, port = address.rpartition(":")
    return {
        name: start_client(
            [*command(), host, port, *(argument.format(name=name) for argument in arguments)], home=home / name
        )
        for name, command in commands.items()
    }


def _kill_all(*clients: dict[str, ManagedProcess]) -> None:
    for each in clients:
        for client in each.values():
            client.kill()


@pytest.mark.long
@pytest.mark.alone
def test_clients_are_told_of_refusals_alarms_and_a_killed_broker(
    rabbitmq: RabbitMQ, both: tuple[str, str], client_home: Path
) -> None:
    _declare(rabbitmq, "free", "refused")
    # A full queue that refuses by itself.
    with rabbitmq.connect() as client:
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel = client.open_channel(confirms=True)
        client.call(channel, "queue.declare", queue="full", durable=True, arguments=full)
        while not client.wait_for_confirms(channel).nacked:
            client.publish(channel, "full")
    direct = _start_all(both[0], client_home / "direct", _WATCHED, "free", "full")
    through = _start_all(both[1], client_home / "through", _WATCHED, "free", "refused")
    try:
        rabbitmq.set_memory_alarm(on=True)
        time.sleep(1)
        rabbitmq.set_memory_alarm(on=False)
        time.sleep(1)
        rabbitmq.kill()
        for client in (*direct.values(), *through.values()):
            client.wait(timeout_s=_TIMEOUT_S)
    finally:
        _kill_all(direct, through)
        rabbitmq.start()
    for name in _WATCHED:
        print(name, *_reports(through[name]), sep="\n  ")
        assert _told(through[name]) == _told(direct[name]), name
        assert _texts(through[name], "refused") == _texts(direct[name], "refused"), name


@pytest.mark.long
@pytest.mark.alone
def test_clients_see_a_drain_like_a_broker_that_stops(
    rabbitmq: RabbitMQ, both: tuple[str, str], sluice: Sluice, client_home: Path
) -> None:
    _declare(rabbitmq, "free", "refused")
    through = _start_all(both[1], client_home / "through", _WATCHED, "free", "refused")
    direct = _start_all(both[0], client_home / "direct", _WATCHED, "free", "refused")
    try:
        sluice.stop()
        rabbitmq.stop()
        for client in (*direct.values(), *through.values()):
            client.wait(timeout_s=_TIMEOUT_S)
    finally:
        _kill_all(direct, through)
        rabbitmq.start()
    for name in _WATCHED:
        told = [[pair for pair in _told(client) if pair[0] != "refused"] for client in (through[name], direct[name])]
        assert told[0] == told[1], name
        log = "\n".join(through[name].lines)
        assert "320" in log, name
