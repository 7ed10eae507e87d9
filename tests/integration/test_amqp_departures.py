"""A client leaves while its publishes wait at a limit: the broker treats it as it does directly."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from harness.amqp import AmqpClient, AmqpError, method, publish
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_LIMITS = """
[[limits]]
kind = "queue"
name = "slow*"
rate = 3

[[limits]]
kind = "delivery"
name = "sipped*"
rate = 2
"""
_HELD = 40
_numbers = count()

Leave = Callable[[AmqpClient], object]


def _reads_no_more(client: AmqpClient) -> None:
    client._socket.shutdown(socket.SHUT_WR)


def _resets(client: AmqpClient) -> None:
    # Let everything written be read, as a reset may destroy it in flight.
    time.sleep(0.5)
    client._socket.shutdown(socket.SHUT_RD)
    client._reader.join()
    client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client._socket.close()


# RabbitMQ itself may lose some messages in flight when a client ends its stream without a close.
_ENDS: dict[str, Leave] = {
    "fin": AmqpClient.abort,
    "half-close": _reads_no_more,
    "close": AmqpClient.close,
    "reset": _resets,
}


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", config=_LIMITS, covered=False)


@pytest.fixture
def addresses(sluice: Sluice, rabbitmq: RabbitMQ) -> tuple[str, str]:
    return rabbitmq.address, sluice.routes[0].listen


@pytest.fixture
def watcher(rabbitmq: RabbitMQ) -> Iterator[AmqpClient]:
    with rabbitmq.connect() as client:
        yield client


def _name(what: str) -> str:
    return f"{what}-{next(_numbers)}"


def _declare(watcher: AmqpClient, *names: str) -> int:
    channel = watcher.open_channel(confirms=True)
    for name in names:
        watcher.call(channel, "queue.declare", queue=name)
    return channel


def _fill(watcher: AmqpClient, queue: str, *bodies: bytes) -> None:
    channel = watcher.open_channel(confirms=True)
    for body in bodies:
        watcher.publish(channel, queue, body)
    watcher.wait_for_confirms(channel)


def _until(rabbitmq: RabbitMQ, queue: str, messages: int) -> int:
    """Wait until a queue has this many messages. Return its final number."""
    for _ in range(300):
        found = rabbitmq.messages(queue)
        if found == messages:
            break
        time.sleep(0.1)
    return found


def _publish_held(client: AmqpClient, channel: int, queue: str, messages: int = _HELD) -> None:
    client.send(*(publish(channel, queue, b"%d" % number) for number in range(messages)))


@pytest.mark.parametrize("kind", ["quorum", pytest.param("stream", marks=pytest.mark.long)])
def test_queue_of_any_kind_has_all_back_in_order(
    rabbitmq: RabbitMQ, watcher: AmqpClient, addresses: tuple[str, str], kind: str
) -> None:
    """A stream refuses requeues, and closes the connection."""
    queue, slow = _name(kind), _name("slow")
    watching = _declare(watcher, slow)
    watcher.call(watching, "queue.declare", queue=queue, durable=True, arguments={"x-queue-type": kind})
    _fill(watcher, queue, *(b"%d" % number for number in range(10)))
    client = AmqpClient(addresses[1])
    channel = client.open_channel(prefetch=4)
    first = {"arguments": {"x-stream-offset": "first"}} if kind == "stream" else {}
    client.call(channel, "basic.consume", queue=queue, **first)
    for _ in range(4):
        client.expect("basic.deliver")
    _publish_held(client, channel, slow, 20)
    client.abort()
    assert _consumers_gone(watcher, queue)
    if kind == "quorum":
        assert _until(rabbitmq, queue, 10) == 10
        assert rabbitmq.drain(queue) == [b"%d" % number for number in range(10)]
    assert _until(rabbitmq, slow, 20) == 20


def test_consumer_of_a_stream_ends_without_waiting(
    rabbitmq: RabbitMQ, watcher: AmqpClient, addresses: tuple[str, str]
) -> None:
    queue = _name("sipped-stream")
    watcher.call(
        watcher.open_channel(), "queue.declare", queue=queue, durable=True, arguments={"x-queue-type": "stream"}
    )
    _fill(watcher, queue, *(b"%d" % number for number in range(20)))
    client = AmqpClient(addresses[1])
    channel = client.open_channel(prefetch=15)
    client.call(channel, "basic.consume", queue=queue, consumer_tag="c", arguments={"x-stream-offset": "first"})
    client.expect("basic.deliver")
    client.call(channel, "basic.cancel", consumer_tag="c")
    client.call(channel, "basic.qos", prefetch_count=1)
    client.close()


def _consumers_gone(watcher: AmqpClient, queue: str) -> bool:
    channel = watcher.open_channel()
    for _ in range(100):
        if not watcher.call(channel, "queue.declare", queue=queue, passive=True)["consumer_count"]:
            return True
        time.sleep(0.1)
    return False


def _can_be_had(watcher: AmqpClient, queue: str) -> bool:
    for _ in range(100):
        channel = watcher.open_channel()
        try:
            watcher.call(channel, "queue.declare", queue=queue, durable=True)
        except AmqpError:
            time.sleep(0.1)
        else:
            return True
    return False


@pytest.mark.parametrize("end", [end if end == "reset" else pytest.param(end, marks=pytest.mark.long) for end in _ENDS])
def test_exclusive_queue_ends_with_its_client_and_all_that_was_for_it(
    rabbitmq: RabbitMQ, watcher: AmqpClient, addresses: tuple[str, str], end: str
) -> None:
    for address in addresses:
        mine, shared = _name("slow-mine"), _name("slow")
        _declare(watcher, shared)
        client = AmqpClient(address)
        channel = client.open_channel()
        client.call(channel, "queue.declare", queue=mine, exclusive=True)
        named = client.call(channel, "queue.declare", exclusive=True)["queue"]
        _publish_held(client, channel, mine)
        _publish_held(client, channel, shared, 10)
        _ENDS[end](client)
        assert _can_be_had(watcher, mine)
        with pytest.raises(AmqpError, match="404"):
            watcher.call(watcher.open_channel(), "queue.declare", queue=named, passive=True)
        assert address == rabbitmq.address or _until(rabbitmq, shared, 10) == 10
        assert rabbitmq.messages(mine) == 0
        client.abort()


def test_end_of_a_consumer_waits_for_no_delivery(
    rabbitmq: RabbitMQ, watcher: AmqpClient, addresses: tuple[str, str]
) -> None:
    sipped = _name("sipped")
    _declare(watcher, sipped)
    _fill(watcher, sipped, *(b"%d" % number for number in range(30)))
    client = AmqpClient(addresses[1])
    channel = client.open_channel(prefetch=20)
    client.call(channel, "basic.consume", queue=sipped, consumer_tag="c")
    client.expect("basic.deliver")
    client.call(channel, "basic.cancel", consumer_tag="c")
    came = 1 + len(client.take("basic.deliver"))
    assert came < 20
    # All others are in the queue, in order, and the delivered ones can be acknowledged.
    assert _until(rabbitmq, sipped, 30 - came) == 30 - came
    client.send(method(channel, "basic.ack", delivery_tag=came, multiple=True))
    client.call(channel, "basic.qos", prefetch_count=0)
    assert rabbitmq.drain(sipped) == [b"%d" % number for number in range(came, 30)]
    client.close()


def test_end_of_an_automatic_consumer_brings_all_that_the_broker_has_sent(
    rabbitmq: RabbitMQ, watcher: AmqpClient, addresses: tuple[str, str]
) -> None:
    sipped = _name("sipped")
    _declare(watcher, sipped)
    _fill(watcher, sipped, *(b"%d" % number for number in range(20)))
    client = AmqpClient(addresses[1])
    channel = client.open_channel()
    client.call(channel, "basic.consume", queue=sipped, consumer_tag="c", no_ack=True)
    client.call(channel, "basic.cancel", consumer_tag="c")
    came = client.take("basic.deliver")
    assert [delivered.body for delivered in came] == [
        b"%d" % number for number in range(20 - rabbitmq.messages(sipped))
    ]
    client.close()


@pytest.mark.long
def test_close_of_a_channel_waits_for_no_publish(
    rabbitmq: RabbitMQ, watcher: AmqpClient, addresses: tuple[str, str]
) -> None:
    slow, work = _name("slow"), _name("work")
    _declare(watcher, slow, work)
    _fill(watcher, work, b"0", b"1")
    client = AmqpClient(addresses[1])
    channel = client.open_channel()
    client.call(channel, "basic.consume", queue=work)
    client.expect("basic.deliver")
    _publish_held(client, channel, slow, 20)
    client.call(channel, "channel.close", reply_code=200)
    assert rabbitmq.messages(slow) < 20
    assert _until(rabbitmq, work, 2) == 2
    # Its number can be used again.
    client.send(method(channel, "channel.open"), publish(channel, work, b"2"))
    client.expect("channel.open-ok", channel=channel)
    assert _until(rabbitmq, slow, 20) == 20
    assert _until(rabbitmq, work, 3) == 3
    client.close()


def test_requests_whose_replies_come_directly_are_not_lost(
    rabbitmq: RabbitMQ, watcher: AmqpClient, addresses: tuple[str, str]
) -> None:
    """The broker closes the channel of a client that wants a direct reply and has no consumer for it."""
    slow = _name("slow")
    _declare(watcher, slow)
    client = AmqpClient(addresses[1])
    channel = client.open_channel()
    client.call(channel, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    client.send(*(publish(channel, slow, b"%d" % each, reply_to="amq.rabbitmq.reply-to") for each in range(10)))
    client.abort()
    assert _until(rabbitmq, slow, 10) == 10
