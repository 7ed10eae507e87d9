"""AMQP floods that cannot be refused, heartbeats while idle, and deliveries at a limit."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.amqp import HEARTBEAT, AmqpClient, AmqpError, method, publish
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_LIMITS = """
[[limits]]
kind = "queue"
name = "reject-5000*"
rate = 5000

[[limits]]
kind = "queue"
name = "delay-5000*"
rate = 5000
action = "delay"

[[limits]]
kind = "queue"
name = "refused*"
rate = 0

[[limits]]
kind = "queue"
name = "slow*"
rate = 1
action = "delay"

[[limits]]
kind = "delivery"
name = "delivered-100*"
rate = 100
"""
_BODY = bytes(1000)
_WRITTEN_AT_ONCE = 20
_CONSUMED_MEANWHILE, _PREFETCH = 10_000, 10


@pytest.fixture
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    """One for each test, because its memory is measured."""
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", config=_LIMITS, covered=False)


def _declare(rabbitmq: RabbitMQ, *queues: str) -> None:
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for queue in queues:
            client.call(channel, "queue.declare", queue=queue)


def _peak_memory_bytes(sluice: Sluice) -> int:
    status = Path(f"/proc/{sluice.process.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _flood(client: AmqpClient, queue: str, messages: int) -> threading.Thread:
    channels = client.open_channel(), client.open_channel()

    def run() -> None:
        for start in range(0, messages, _WRITTEN_AT_ONCE):
            client.send(
                *(
                    publish(channels[number % 2], queue, b"%d " % number + _BODY)
                    for number in range(start, min(start + _WRITTEN_AT_ONCE, messages))
                )
            )

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _check_flood(rabbitmq: RabbitMQ, sluice: Sluice, action: str, messages: int) -> None:
    """No message is lost or out of order, with a consumer on the same connection and another client beside it."""
    flooded, consumed, free = (
        f"{name}-{messages}" for name in (f"{action}-5000", f"{action}-consumed", f"{action}-free")
    )
    _declare(rabbitmq, flooded, consumed, free)
    with rabbitmq.connect() as filling:
        channel = filling.open_channel(confirms=True)
        for _ in range(_CONSUMED_MEANWHILE):
            filling.publish(channel, consumed)
        filling.wait_for_confirms(channel)
    before = _peak_memory_bytes(sluice)
    with (
        AmqpClient(sluice.routes[0].listen) as flooding,
        AmqpClient(sluice.routes[0].listen) as stranger,
        rabbitmq.connect() as watcher,
    ):
        consumer, theirs = flooding.open_channel(prefetch=_PREFETCH), stranger.open_channel(confirms=True)
        thread = _flood(flooding, flooded, messages)
        flooding.call(consumer, "basic.consume", queue=consumed, consumer_tag="c")
        watching = watcher.open_channel()
        deliveries = strangers = 0
        while watcher.call(watching, "queue.declare", queue=flooded, passive=True)["message_count"] < messages:
            for delivered in flooding.take("basic.deliver"):
                flooding.send(method(consumer, "basic.ack", delivery_tag=delivered["delivery_tag"]))
                deliveries += 1
            stranger.publish(theirs, free)
            stranger.wait_for_confirms(theirs)
            strangers += 1
        thread.join()
        assert flooding.end is None
    grown = _peak_memory_bytes(sluice) - before
    print(
        f"{action}: {messages} messages, {deliveries} deliveries and {strangers} others meanwhile, {grown} bytes more"
    )
    # It was delivered its prefetch many times over.
    assert deliveries > 10 * _PREFETCH
    # If the flood delayed it, only a few would have passed.
    assert rabbitmq.messages(free) == strangers > 10
    stored = [int(body.split()[0]) for body in rabbitmq.drain(flooded)]
    assert len(stored) == messages
    for place in range(2):
        assert [number for number in stored if number % 2 == place] == list(range(place, messages, 2))
    # Memory per connection is bounded, however much it sends.
    assert grown < 64 * 1024 * 1024


@pytest.mark.alone
@pytest.mark.parametrize("action", ["reject", pytest.param("delay", marks=pytest.mark.long)])
def test_flood_without_confirms_is_slowed_and_loses_nothing(rabbitmq: RabbitMQ, sluice: Sluice, action: str) -> None:
    _check_flood(rabbitmq, sluice, action, 15_000)


def _refused(client: AmqpClient, over: threading.Event) -> None:
    channel = client.open_channel(confirms=True)
    while not over.is_set():
        for _ in range(50):
            client.publish(channel, "refused")
        client.wait_for_confirms(channel)
    assert not client.confirmed[channel].acked


def _held(client: AmqpClient, over: threading.Event) -> None:
    channel = client.open_channel()
    client.send(*(publish(channel, "slow") for _ in range(200)))
    over.wait()


def _not_read(client: AmqpClient, over: threading.Event) -> None:
    """More than a connection may hold: Sluice stops reading it, including heartbeats."""
    channel = client.open_channel()
    data = b"".join(publish(channel, "slow", bytes(100_000)) for _ in range(10))

    def write() -> None:
        try:
            while not over.is_set():
                client.send(data)
        except AmqpError:
            assert over.is_set()

    threading.Thread(target=write, daemon=True).start()
    over.wait()


def _silent(client: AmqpClient, over: threading.Event) -> None:
    over.wait()


_BUSY: list[Callable[[AmqpClient, threading.Event], None]] = [_refused, _held, _not_read, _silent]


def _check_heartbeats(rabbitmq: RabbitMQ, sluice: Sluice, seconds: int) -> None:
    _declare(rabbitmq, "slow", "refused", "free")
    over = threading.Event()
    # Those of an earlier test may not be over yet.
    before = {each["pid"] for each in rabbitmq.connections()}
    # Clients that write all the time send no heartbeats, as the Java client does.
    clients = {what: AmqpClient(sluice.routes[0].listen, heartbeat_s=2, beating=what is not _refused) for what in _BUSY}
    failures: list[str] = []

    def busy(what: Callable[[AmqpClient, threading.Event], None], client: AmqpClient) -> None:
        try:
            what(client, over)
        except (AmqpError, AssertionError) as error:
            if not over.is_set():
                failures.append(f"{what.__name__}: {error}")

    threads = [threading.Thread(target=busy, args=pair, daemon=True) for pair in clients.items()]
    for thread in threads:
        thread.start()
    over.wait(seconds)
    ends = {what.__name__: client.end for what, client in clients.items()}
    heard = {what.__name__: client.heartbeats for what, client in clients.items()}
    connections = {each["pid"] for each in rabbitmq.connections()} - before
    over.set()
    for client in clients.values():
        client.abort()
    for thread in threads:
        thread.join()
    assert set(ends.values()) == {None}, ends
    assert failures == []
    # RabbitMQ drops a connection that was silent for twice the interval.
    assert len(connections) == len(clients)
    # Frames replace heartbeats.
    assert all(heard[what.__name__] >= seconds // 4 for what in (_held, _not_read, _silent)), heard


@pytest.mark.alone
@pytest.mark.long
def test_connections_without_traffic_stay_alive_for_a_minute(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    _check_heartbeats(rabbitmq, sluice, 60)


_CONSUMED = 300


def test_limited_deliveries_come_once_and_in_order(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    _declare(rabbitmq, "delivered-100-few")
    with rabbitmq.connect() as filling, AmqpClient(sluice.routes[0].listen) as client:
        channel = filling.open_channel(confirms=True)
        for number in range(_CONSUMED):
            filling.publish(channel, "delivered-100-few", b"%d" % number)
        filling.wait_for_confirms(channel)
        channel = client.open_channel(prefetch=30)
        for tag in ("one", "two"):
            client.call(channel, "basic.consume", queue="delivered-100-few", consumer_tag=tag)
        bodies, tags = [], []
        for _ in range(_CONSUMED):
            delivered = client.expect("basic.deliver")
            bodies.append(int(delivered.body))
            tags.append(delivered["delivery_tag"])
            assert not delivered["redelivered"]
            if len(tags) % 10 == 0:
                client.send(method(channel, "basic.ack", delivery_tag=tags[-1], multiple=True))
        client.call(channel, "basic.cancel", consumer_tag="one")
        # Each consumer has its share in order, and tags are the channel's.
        assert tags == list(range(1, _CONSUMED + 1))
        assert sorted(bodies) == list(range(_CONSUMED))
    assert rabbitmq.messages("delivered-100-few") == 0
    assert sluice.metrics().total("sluice_rule_held_total", rule="delivery:delivered-100*") > 0


@pytest.mark.alone
@pytest.mark.long
def test_limited_deliveries_keep_their_rate(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    queue, prefetch, seconds = "delivered-100-many", 50, 20
    _declare(rabbitmq, queue)
    with rabbitmq.connect() as filling, AmqpClient(sluice.routes[0].listen) as client:
        channel = filling.open_channel(confirms=True)
        for number in range(4000):
            filling.publish(channel, queue, b"%d" % number)
        filling.wait_for_confirms(channel)
        channel = client.open_channel(prefetch=prefetch)
        client.call(channel, "basic.consume", queue=queue, consumer_tag="c")
        bodies, times, first = [], [], time.monotonic()
        # Until the burst is gone, and for the measured seconds.
        while not times or times[-1] < first + 2 + seconds:
            delivered = client.expect("basic.deliver")
            assert not delivered["redelivered"]
            bodies.append(int(delivered.body))
            times.append(delivered.at_s)
            client.send(method(channel, "basic.ack", delivery_tag=delivered["delivery_tag"]))
        # Without acks the prefetch is delivered, and no more.
        for _ in range(prefetch):
            client.expect("basic.deliver")
        client.call(channel, "basic.cancel", consumer_tag="c")
        assert client.take("basic.deliver") == []
    rate = sum(first + 2 <= at < first + 2 + seconds for at in times) / seconds
    assert bodies == list(range(len(bodies)))
    assert 97 <= rate <= 103


def test_client_that_wants_no_heartbeats_gets_none(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    with AmqpClient(sluice.routes[0].listen) as client:
        client.send(HEARTBEAT)
        client.open_channel()
        assert client.heartbeats == 0
