"""Sluice's own alarms, with real clients: publishers are blocked, consumers continue, and nothing is lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.amqp import AmqpClient
from harness.api import ask
from harness.clients import amqp_java, amqp_python, start_client
from harness.disks import SmallDisk, fill
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, pull, send, sends, stored
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.publisher import Publisher, read_numbered
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

from proxy.protocols.rocketmq.wire.codes import ResponseCode

pytestmark = [pytest.mark.integration]

_DISK_BYTES = 64 * 1024 * 1024
_MIN_FREE_BYTES = 16 * 1024 * 1024
_TIMEOUT_S = 60.0
_CONSUMED = 2000
_PUT_ASIDE = 500


def _alarm(sluice: Sluice, scarce: str) -> dict[str, Any]:
    status, flow = ask(sluice, "GET", "flow")
    assert status == 200, flow
    return dict(next(alarm for alarm in flow["alarms"] if alarm["scarce"] == scarce))


class Alarming:
    """A sidecar whose spool is on a separate small disk."""

    def __init__(self, sluice: Sluice, disk: SmallDisk) -> None:
        self.sluice, self.address = sluice, sluice.routes[0].listen
        self._folder = disk.of(sluice.process)
        self._in_the_way: Path | None = None

    def begin(self) -> None:
        """Fill the disk, and wait for the alarm."""
        self._in_the_way = fill(self._folder, left_bytes=_MIN_FREE_BYTES // 2)
        self._wait(stands=True)

    def end(self) -> None:
        """Empty the disk, and wait until the alarm has ended."""
        assert self._in_the_way is not None
        self._in_the_way.unlink()
        self._wait(stands=False)

    def _wait(self, *, stands: bool) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while _alarm(self.sluice, "disk")["stands"] is not stands:
            assert time.monotonic() < deadline_s
        # One line each way, perhaps a moment later.
        expected = 1 if stands else 2
        while len(lines := [line for line in self.sluice.process.lines if "disk alarm" in line]) < expected:
            assert time.monotonic() < deadline_s, lines
        assert len(lines) == expected, lines


def _alarming(start_sluice: StartSluice, disk: SmallDisk, broker: str, protocol: str) -> Alarming:
    settings = f'[spool]\ndir = "{disk.path}/spool"\n\n[alarms]\ndisk_free_bytes = {_MIN_FREE_BYTES}\n'
    kind = "queue" if protocol == "amqp091" else "topic"
    settings += f'[[limits]]\nkind = "{kind}"\nname = "aside"\nrate = 1\naction = "delay"\nspool = true\n'
    route = Route(f"127.0.0.1:{free_port()}", broker)
    return Alarming(
        start_sluice(
            routes=(route,),
            protocol=protocol,
            config=settings,
            inside=disk.inside,
            arguments=("--grace-s", "1"),
            covered=False,
        ),
        disk,
    )


@pytest.fixture
def disk(tmp_path: Path) -> SmallDisk:
    return SmallDisk(tmp_path / "disk", _DISK_BYTES)


@pytest.fixture
def amqp(start_sluice: StartSluice, rabbitmq: RabbitMQ, disk: SmallDisk) -> Iterator[Alarming]:
    alarming = _alarming(start_sluice, disk, rabbitmq.address, "amqp091")
    _declare(rabbitmq, "aside")
    # A full disk does not matter while the spool is empty.
    client = AmqpClient(alarming.address)
    Publisher(client, "aside", confirms=False, count=_PUT_ASIDE).join()
    yield alarming
    client.abort()
    alarming.sluice.stop()


@pytest.fixture
def rocketmq_alarming(start_sluice: StartSluice, broker: EmbeddedBroker, disk: SmallDisk) -> Iterator[Alarming]:
    alarming = _alarming(start_sluice, disk, broker.address, "rocketmq")
    with FrameClient(alarming.address) as client:
        client.write(*(send("aside", oneway=True) for _ in range(_PUT_ASIDE)))
        yield alarming
    alarming.sluice.stop()


def _declare(rabbitmq: RabbitMQ, *queues: str) -> None:
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for queue in queues:
            client.call(channel, "queue.declare", queue=queue, durable=True)


def _filled(rabbitmq: RabbitMQ, queue: str) -> None:
    with rabbitmq.connect() as client:
        publisher = Publisher(client, queue, count=_CONSUMED)
        publisher.join()
        client.wait_for_confirms(publisher.channel)


def _empty(address: str, queue: str) -> None:
    """Consume everything in a queue, and check its order."""
    with AmqpClient(address) as client:
        client.call(client.open_channel(prefetch=100), "basic.consume", queue=queue, consumer_tag="c", no_ack=True)
        bodies = [client.expect("basic.deliver").body for _ in range(_CONSUMED)]
    assert [each.number for each in read_numbered(bodies)] == list(range(1, _CONSUMED + 1))


def test_publishers_are_blocked_while_a_consumer_empties_a_queue(rabbitmq: RabbitMQ, amqp: Alarming) -> None:
    _declare(rabbitmq, "alarmed", "alarmed-plain", "emptied")
    _filled(rabbitmq, "emptied")
    with AmqpClient(amqp.address) as confirming, AmqpClient(amqp.address) as plain, AmqpClient(amqp.address) as idle:
        publishers = [
            Publisher(confirming, "alarmed", per_s=500),
            Publisher(plain, "alarmed-plain", confirms=False, per_s=500),
        ]
        amqp.begin()
        assert {client.expect("connection.blocked")["reason"] for client in (confirming, plain)} == {
            "Sluice is low on disk"
        }
        status, detail = amqp.sluice.get("/readyz")
        assert "disk" in detail, (status, detail)
        before = {queue: rabbitmq.messages(queue) for queue in ("alarmed", "alarmed-plain")}
        _empty(amqp.address, "emptied")
        assert {queue: rabbitmq.messages(queue) for queue in before} == before
        amqp.end()
        for client in (confirming, plain):
            client.expect("connection.unblocked")
        for publisher in publishers:
            publisher.stop()
        assert confirming.wait_for_confirms(publishers[0].channel).nacked == []
        # Clients that do not publish are not blocked.
        assert idle.take("connection.blocked") == []
    for queue, publisher in zip(before, publishers, strict=True):
        stored_here = [each.number for each in read_numbered(rabbitmq.drain(queue))]
        assert stored_here == list(range(1, publisher.sent + 1))
        assert len(stored_here) > before[queue]


_CLIENTS: dict[str, Callable[[], list[str]]] = {
    "pika": lambda: amqp_python("pika_watched.py"),
    "java": lambda: amqp_java("Watched.java"),
}


def _wait_for_word(client: ManagedProcess, about: str) -> None:
    client.wait_for_line(f'"about": "{about}"' if "watched.py" in client.name else f'"about":"{about}"', timeout_s=60)


@pytest.mark.long
def test_callbacks_of_real_clients_are_called(rabbitmq: RabbitMQ, amqp: Alarming, client_home: Path) -> None:
    _declare(rabbitmq, "emptied-for-clients", *_CLIENTS, "unused")
    _filled(rabbitmq, "emptied-for-clients")
    host, _, port = amqp.address.rpartition(":")
    with ExitStack() as running:
        clients = {}
        for name, command in _CLIENTS.items():
            clients[name] = start_client([*command(), host, port, name, "unused"], home=client_home / name)
            running.callback(clients[name].kill)
        amqp.begin()
        for client in clients.values():
            _wait_for_word(client, "blocked")
        # Each waits for the confirms of everything it published before it was blocked.
        before = {name: rabbitmq.messages(name) for name in clients}
        _empty(amqp.address, "emptied-for-clients")
        assert {name: rabbitmq.messages(name) for name in clients} == before
        amqp.end()
        for name, client in clients.items():
            _wait_for_word(client, "unblocked")
            deadline_s = time.monotonic() + _TIMEOUT_S
            while rabbitmq.messages(name) <= before[name]:
                assert time.monotonic() < deadline_s
            assert '"blocked"' in "".join(client.lines)
            assert "Sluice is low on disk" in "".join(client.lines)


_MEMORY_RULES = """
[[limits]]
kind = "queue"
name = "held*"
rate = 200
burst_s = 1
action = "delay"
spool = false
"""


@pytest.mark.long
def test_memory_alarm_ends_when_held_messages_are_gone(
    start_sluice: StartSluice, rabbitmq: RabbitMQ, listen: str
) -> None:
    _declare(rabbitmq, "held-for-memory")
    route = (Route(listen, rabbitmq.address),)
    with start_sluice(routes=route, protocol="amqp091", config="[alarms]\nmemory_high_watermark = 0.5\n") as looked:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while (alarm := _alarm(looked, "memory"))["bytes_now"] is None:
            assert time.monotonic() < deadline_s
    limit_bytes = alarm["bytes_limit"] / 0.5
    watermark = (alarm["bytes_now"] + 30 * 1024 * 1024) / limit_bytes
    config = f"[alarms]\nmemory_high_watermark = {watermark:.6f}\n{_MEMORY_RULES}"
    with (
        start_sluice(routes=route, protocol="amqp091", config=config, covered=False) as sluice,
        ExitStack() as running,
    ):
        clients = [running.enter_context(AmqpClient(listen)) for _ in range(6)]
        publishers = [
            Publisher(client, "held-for-memory", confirms=False, size=50_000, count=400, epoch=number)
            for number, client in enumerate(clients)
        ]
        for client in clients:
            assert client.expect("connection.blocked")["reason"] == "Sluice is low on memory"
        for client in clients:
            client.expect("connection.unblocked")
        for publisher in publishers:
            publisher.join()
            publisher.client.close()
        assert "memory alarm ended" in "".join(sluice.process.lines)
    bodies = read_numbered(rabbitmq.drain("held-for-memory"))
    for publisher in range(6):
        assert [each.number for each in bodies if each.epoch == publisher] == list(range(1, 401))


def test_rocketmq_sends_are_refused_during_an_alarm_and_pulls_continue(rocketmq_alarming: Alarming) -> None:
    address = rocketmq_alarming.address
    with FrameClient(address) as client:
        assert stored(client.ask(*sends(20, "alarmed"))) == 20
        rocketmq_alarming.begin()
        busy = client.ask(*sends(5, "alarmed"))
        assert {answer.code for answer in busy} == {ResponseCode.SYSTEM_BUSY}
        assert all("disk" in (answer.remark or "") for answer in busy), busy
        (pulled,) = client.ask(pull("consumers", "alarmed", 0))
        assert pulled.code == ResponseCode.SUCCESS
        rocketmq_alarming.end()
        assert stored(client.ask(*sends(5, "alarmed"))) == 5
