"""Messages confirmed after consumption reach each client exactly as they were sent, and as they do directly."""

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest
from harness.amqp import AmqpClient, Event, method
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_BELOW: Final = 4096
_CONFIG: Final = """
[[limits]]
kind = "queue"
name = "*"
rate = "unlimited"
confirm = "after_consume"
"""


class Shape(NamedTuple):
    """A message, and whether its consumers' ack confirms it."""

    name: str
    properties: dict[str, Any]
    body: bytes = b"body"
    marked: bool = True


def _field(name: str, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name.encode())]) + name.encode() + kind + value


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


_EVERY_FIELD: Final = {
    "boolean": (b"t", b"\x01"),
    "signed octet": (b"b", b"\xfe"),
    "octet": (b"B", b"\xfe"),
    "signed short": (b"s", struct.pack(">h", -2)),
    "short": (b"u", struct.pack(">H", 65_534)),
    "signed long": (b"I", struct.pack(">i", -70_000)),
    "long": (b"i", struct.pack(">I", 4_000_000_000)),
    "signed long long": (b"l", struct.pack(">q", -5_000_000_000)),
    "float": (b"f", struct.pack(">f", 0.1)),
    "double": (b"d", struct.pack(">d", 0.1)),
    "decimal": (b"D", b"\x02" + struct.pack(">i", 12_345)),
    "long string": (b"S", _long("Zürich €\n\0".encode())),
    "bytes": (b"x", _long(bytes(range(256)))),
    "array": (b"A", _long(b"I\0\0\0\x01" + b"S" + _long(b"two") + b"V" + b"A" + _long(b""))),
    "timestamp": (b"T", struct.pack(">Q", 1_700_000_000)),
    "table": (b"F", _long(_field("inner", b"F", _long(_field("a", b"t", b"\0"))) + _field("b", b"S", _long(b"c")))),
    "void": (b"V", b""),
    "empty table": (b"F", _long(b"")),
}
_FIELDS: Final = b"".join(_field(name, kind, value) for name, (kind, value) in _EVERY_FIELD.items())
_ALL: Final[dict[str, Any]] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "b": {"c": ["d", 2, True, {}]}},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation",
    "reply_to": "replies",
    "message_id": "message",
    "timestamp": 1_700_000_001,
    "type": "kind",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}
_DEATH: Final = {"count": 1, "reason": "rejected", "queue": "elsewhere", "exchange": "", "routing-keys": ["elsewhere"]}
# Names and values of maximum length: the added header still fits into the frame, or not.
_SHAPES: Final = (
    Shape("no headers", {"delivery_mode": 2}),
    Shape("empty table", {"delivery_mode": 2, "headers": {}}),
    Shape("every property", _ALL),
    Shape("all before the headers", {"delivery_mode": 2, "content_type": "t" * 255, "content_encoding": "e" * 255}),
    Shape("every field", {"delivery_mode": 2, "headers": _FIELDS}),
    Shape("existing x- headers", {"delivery_mode": 2, "headers": {"x-delay": 5, "x-match": "all", "x": "y"}}),
    Shape("the same name twice", {"delivery_mode": 2, "headers": _field("a", b"t", b"\0") + _field("a", b"t", b"\1")}),
    Shape("unicode", {"delivery_mode": 2, "headers": {"Ключ ✓": "значение 😀"}, "type": "Übergröße"}),
    Shape("no body", {"delivery_mode": 2, "headers": {"a": "b"}}, b""),
    Shape("binary", {"delivery_mode": 2}, bytes(range(256)) * 3 + b"\xce\x10x-sluice-confirm"),
    Shape("priority 0", {"delivery_mode": 2, "priority": 0}),
    Shape("deep", {"delivery_mode": 2, "headers": {"a": [[[[{"b": [{"c": [1]}]}]]]]}}),
    Shape("long headers", {"delivery_mode": 2, "headers": {f"header-{number}": "v" * 900 for number in range(100)}}),
    Shape("below the limit", {"delivery_mode": 2}, b"." * (_BELOW - 1)),
    Shape("at the limit", {"delivery_mode": 2}, b"." * _BELOW, marked=False),
    Shape("above the limit", {"delivery_mode": 2, "headers": {"a": 1}}, b"." * (_BELOW + 1), marked=False),
    Shape("transient", {"delivery_mode": 1, "headers": {"a": 1}}, marked=False),
    Shape("no delivery mode", {"headers": {"a": 1}}, marked=False),
    Shape("no properties", {}, marked=False),
    Shape("expires", {"delivery_mode": 2, "expiration": "60000"}, marked=False),
    Shape("no room in the frame", {"delivery_mode": 2, "headers": {"a": "v" * 131_035}}, marked=False),
    Shape("died before", {"delivery_mode": 2, "headers": {"x-death": [_DEATH], "a": 1}}, marked=False),
)
# Each twice, because the first of two may be unmarked, to measure the broker.
_SENT: Final = tuple(shape for shape in _SHAPES for _ in range(2))
# Slower than any consumer, even on a busy machine.
_SYNC_MS: Final = 150


@pytest.fixture(scope="module")
def rabbitmq(start_rabbitmq: StartRabbitMQ) -> RabbitMQ:
    """A broker with a slow disk."""
    return start_rabbitmq(sync_ms=_SYNC_MS)


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", config=_CONFIG)


@pytest.fixture
def declare(rabbitmq: RabbitMQ) -> Iterator[Callable[..., str]]:
    """Makes a durable queue, directly at the broker, for the test."""
    names = []

    def make(name: str, **arguments: object) -> str:
        name = re.sub(r"\W+", "-", name)
        with rabbitmq.connect() as client:
            channel = client.open_channel()
            client.call(channel, "queue.delete", queue=name)
            client.call(channel, "queue.declare", queue=name, durable=True, arguments=arguments)
        names.append(name)
        return name

    yield make
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for name in names:
            client.call(channel, "queue.delete", queue=name)


def _after_consume(sluice: Sluice) -> float:
    """Return the number of messages confirmed by consumers. None has fallen back."""
    metrics = sluice.metrics()
    assert metrics.total("sluice_confirms_total", way="persisted") == 0
    return metrics.total("sluice_confirms_total", way="after_consume")


def _received(address: str, queue: str) -> list[Event]:
    """Publish messages to a consumer that acknowledges them. Return the deliveries."""
    with AmqpClient(address) as client:
        channel = client.open_channel()
        client.call(channel, "basic.consume", queue=queue)
        with AmqpClient(address) as publisher:
            confirms = publisher.open_channel(confirms=True)
            events = []
            for shape in _SENT:
                publisher.publish(confirms, queue, shape.body, **shape.properties)
                events.append(client.expect("basic.deliver"))
                client.send(method(channel, "basic.ack", delivery_tag=events[-1]["delivery_tag"]))
                assert publisher.wait_for_confirms(confirms).nacked == []
    return events


def test_each_header_is_delivered_byte_for_byte(
    rabbitmq: RabbitMQ, sluice: Sluice, declare: Callable[..., str]
) -> None:
    queue = declare("exactly", **{"x-max-priority": 9})
    direct = _received(rabbitmq.address, queue)
    before = _after_consume(sluice)
    through = _received(sluice.routes[0].listen, queue)
    for shape, one, other in zip(_SENT, direct, through, strict=True):
        assert (other.header, other.body) == (one.header, one.body), shape.name
        assert other.body == shape.body, shape.name
        assert other.properties.get("delivery_mode") == shape.properties.get("delivery_mode"), shape.name
    assert _after_consume(sluice) - before >= sum(shape.marked for shape in _SHAPES)


def test_it_is_confirmed_after_it_was_consumed_by_shape(
    rabbitmq: RabbitMQ, sluice: Sluice, declare: Callable[..., str]
) -> None:
    """Each shape has a queue of its own: Sluice stops marking on one where the broker confirms as fast."""
    with AmqpClient(sluice.routes[0].listen) as client:
        consuming = client.open_channel()
        for shape in _SHAPES:
            queue = declare(f"one-by-one-{shape.name}")
            client.call(consuming, "basic.consume", queue=queue)
            before, outstanding = _after_consume(sluice), []
            for _ in range(2):
                channel = client.open_channel(confirms=True)
                client.publish(channel, queue, shape.body, **shape.properties)
                tag = client.expect("basic.deliver")["delivery_tag"]
                if not shape.marked:
                    assert client.wait_for_confirms(channel).nacked == [], shape.name
                # Its confirm would have come as soon as this answer.
                client.call(channel, "basic.qos", prefetch_count=1)
                outstanding.append(client.confirmed[channel].outstanding)
                client.send(method(consuming, "basic.ack", delivery_tag=tag))
                assert client.wait_for_confirms(channel).nacked == [], shape.name
            # A fast queue confirms the unmarked message at once.
            by_consumers = _after_consume(sluice) - before
            assert sum(outstanding) in ({1, 2} if shape.marked else {0}), shape.name
            assert by_consumers in ({1, 2} if shape.marked else {0}), shape.name
