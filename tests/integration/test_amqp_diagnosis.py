"""Causes that keep publishers from publishing are provoked one at a time, and must be named."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from harness.amqp import AmqpClient
from harness.api import ask
from harness.disks import SmallDisk, fill, slow_writes
from harness.ports import free_port
from harness.publisher import Publisher, read_numbered
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone]

# From the start of the cause. A connection must be blocked for a fifth of about a minute.
_NAMED_WITHIN_S = 30.0
_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def rabbitmq(start_rabbitmq: StartRabbitMQ) -> Iterator[RabbitMQ]:
    """A separate broker, whose alarms do not affect other tests."""
    with start_rabbitmq() as running:
        yield running


def _declare(rabbitmq: RabbitMQ, *queues: str) -> None:
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for queue in queues:
            client.call(channel, "queue.declare", queue=queue)


def _config(listen: str, broker: str, more: str, *, options: str = "") -> str:
    return f"""
[[listeners]]
listen = "{listen}"
broker = "{broker}"
protocol = "amqp091"
{options}
{more}
"""


Start = Callable[..., AbstractContextManager[Sluice]]


@pytest.fixture
def start(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Start:
    @contextmanager
    def started(more: str = "", *, options: str = "", broker: str = "", **how: Any) -> Iterator[Sluice]:
        listen = f"127.0.0.1:{free_port()}"
        config = _config(listen, broker or rabbitmq.address, more, options=options)
        with start_sluice(routes=(Route(listen, broker),), config=config, covered=False, **how) as running:
            yield running

    return started


def _findings(sluice: Sluice) -> list[dict[str, Any]]:
    status, flow = ask(sluice, "GET", "flow")
    assert status == 200, flow
    return list(flow["findings"])


def _wait_for_cause(sluice: Sluice, cause: str) -> dict[str, Any]:
    """Wait until a cause is named first, and return its report."""
    begun_s = time.monotonic()
    while not (findings := _findings(sluice)) or findings[0]["cause"] != cause:
        assert time.monotonic() < begun_s + _NAMED_WITHIN_S, f"not {cause}, but {findings}"
    print(f"{cause} after {time.monotonic() - begun_s:.2f} s: {findings}")
    return findings[0]


def _wait_until_well(sluice: Sluice) -> None:
    """States report for a moment that there was something."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while findings := _findings(sluice):
        assert time.monotonic() < deadline_s, findings


def _check_stored(rabbitmq: RabbitMQ, queue: str, publisher: Publisher) -> None:
    """Everything written is stored, once and in order."""
    stored = [each.number for each in read_numbered(rabbitmq.drain(queue))]
    assert stored == list(range(1, publisher.sent + 1))


_SPOOLS = """
[spool]
memory_bytes = 1_048_576

[[limits]]
kind = "queue"
name = "*"
rate = 10
action = "delay"
spool = true
"""


@pytest.mark.long
def test_a_slow_disk_is_named(start: Start, rabbitmq: RabbitMQ) -> None:
    _declare(rabbitmq, "slow-disk")
    with (
        start(_SPOOLS, env=slow_writes(500)) as sluice,
        AmqpClient(sluice.routes[0].listen) as client,
        Publisher(client, "slow-disk", size=1000),
    ):
        _wait_for_cause(sluice, "disk")
        # Its close would wait for all its publishes.
        client.abort()


def test_an_alarm_of_the_broker_is_named(start: Start, rabbitmq: RabbitMQ) -> None:
    _declare(rabbitmq, "broker-alarm")
    with start() as sluice, AmqpClient(sluice.routes[0].listen) as client:
        publisher = Publisher(client, "broker-alarm", per_s=500)
        rabbitmq.set_memory_alarm(on=True)
        try:
            _wait_for_cause(sluice, "broker_alarm")
        finally:
            rabbitmq.set_memory_alarm(on=False)
        client.expect("connection.unblocked")
        publisher.stop()
        assert client.wait_for_confirms(publisher.channel).nacked == []
        _wait_until_well(sluice)
    _check_stored(rabbitmq, "broker-alarm", publisher)


def test_an_alarm_of_our_own_is_named(start: Start, rabbitmq: RabbitMQ, tmp_path: Any) -> None:
    _declare(rabbitmq, "alarm", "aside")
    disk = SmallDisk(tmp_path / "disk", 64 * 1024 * 1024)
    settings = f'[spool]\ndir = "{disk.path}/spool"\n[alarms]\ndisk_free_bytes = 16_777_216\n'
    settings += '[[limits]]\nkind = "queue"\nname = "aside"\nrate = 1\naction = "delay"\nspool = true\n'
    with (
        start(settings, inside=disk.inside) as sluice,
        AmqpClient(sluice.routes[0].listen) as other,
        AmqpClient(sluice.routes[0].listen) as client,
    ):
        # A full disk does not matter while the spool is empty.
        Publisher(other, "aside", confirms=False, count=500).join()
        publisher = Publisher(client, "alarm", per_s=500)
        in_the_way = fill(disk.of(sluice.process), left_bytes=1_000_000)
        client.expect("connection.blocked")
        _wait_for_cause(sluice, "alarm")
        in_the_way.unlink()
        client.expect("connection.unblocked")
        publisher.stop()
        assert client.wait_for_confirms(publisher.channel).nacked == []
        assert ask(sluice, "PUT", "limits/queue/aside", {"rate": "unlimited"})[0] == 200
        _wait_until_well(sluice)
    _check_stored(rabbitmq, "alarm", publisher)
