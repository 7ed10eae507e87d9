"""AMQP publishes over the limit are spooled, and stored by the broker in the end: once, and in order."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.amqp import AmqpClient
from harness.api import ask
from harness.disks import SmallDisk, fill, slow_writes
from harness.publisher import Publisher, read_numbered
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice, run_sluice

pytestmark = [pytest.mark.integration]

_FLOOD_S = float(os.environ.get("TESTED_FLOOD_S", "6"))
_RATE, _TIMES = 500, 10
_TIMEOUT_S = 60.0
_SPARK_S = 580.0


def _rule(name: str, rate: int, more: str = "") -> str:
    return f"""
[[limits]]
kind = "queue"
name = "{name}"
rate = {rate}
action = "delay"
spool = true
{more}
"""


# Little memory, so that most messages go to disk and back.
_LITTLE_MEMORY = "[spool]\nmemory_bytes = 1_048_576\n"


def _declare(rabbitmq: RabbitMQ, *queues: str) -> None:
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for queue in queues:
            client.call(channel, "queue.declare", queue=queue, durable=True)


@pytest.fixture
def start(start_sluice: StartSluice, rabbitmq: RabbitMQ, listen: str) -> Iterator[Any]:
    running: list[Sluice] = []

    def started(config: str, **how: Any) -> Sluice:
        running.append(
            start_sluice(
                routes=(Route(listen, rabbitmq.address),), protocol="amqp091", config=config, covered=False, **how
            )
        )
        return running[-1]

    yield started
    for sluice in running:
        sluice.stop()


def _spool(sluice: Sluice) -> dict[str, Any]:
    status, spool = ask(sluice, "GET", "spool")
    assert status == 200, spool
    return dict(spool["holds"])


def _wait_until(sluice: Sluice, figure: str, at_least: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while (spool := _spool(sluice))[figure] < at_least:
        assert time.monotonic() < deadline_s, spool
    return spool


def _check(rabbitmq: RabbitMQ, queue: str, publisher: Publisher) -> None:
    stored = [each.number for each in read_numbered(rabbitmq.drain(queue))]
    assert stored == list(range(1, publisher.sent + 1))


def _flood(rabbitmq: RabbitMQ, sluice: Sluice, queue: str) -> int:
    """Flood, check the result, and return the number of messages."""
    messages = int(_FLOOD_S * _RATE * _TIMES)
    with AmqpClient(sluice.routes[0].listen) as client:
        begun_s = time.monotonic()
        publisher = Publisher(client, queue, count=messages, per_s=_RATE * _TIMES)
        publisher.join(timeout_s=3 * _FLOOD_S + _TIMEOUT_S)
        written_s = time.monotonic() - begun_s
        confirmed = client.wait_for_confirms(publisher.channel, timeout_s=2 * messages / _RATE + _TIMEOUT_S)
        took_s = time.monotonic() - begun_s
        # No errors: channel and connection are open, and nothing was refused or answered twice.
        assert (client.end, publisher.error) == (None, "")
        assert (confirmed.nacked, confirmed.again) == ([], [])
        assert sorted(confirmed.acked) == list(range(1, messages + 1))
        ended = {event.name for event in client.events} & {"channel.close", "connection.close", "basic.return"}
        assert ended == set()
    spool = _spool(sluice)
    print(f"{messages} in {written_s:.1f} s, all confirmed after {took_s:.1f} s: {spool}")
    assert spool["in_total"] > messages / 2
    assert sum(spool["messages"].values()) == spool["lost_total"] == 0
    # No faster than the limit. The bucket is small compared to this.
    assert messages / took_s < 1.1 * _RATE
    _check(rabbitmq, queue, publisher)
    return messages


def _report(logs: Path, cwd: Path) -> dict[str, Any]:
    how = ("--out", str(cwd / "report"), "--json", "--master", "local[2]")
    answer = run_sluice("report", str(logs), *how, cwd=cwd, timeout_s=_SPARK_S)
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


@pytest.mark.alone
@pytest.mark.long
def test_flood_of_ten_times_the_limit_is_confirmed_without_any_error(
    rabbitmq: RabbitMQ, start: Any, tmp_path: Path
) -> None:
    _declare(rabbitmq, "flooded")
    state = tmp_path / "state"
    sluice = start(_LITTLE_MEMORY + _rule("flooded", _RATE), arguments=("--state-dir", str(state)))
    messages = _flood(rabbitmq, sluice, "flooded")
    sluice.stop()
    # The report agrees: everything passed, and nothing was refused.
    totals = _report(state / "rejections", tmp_path)["totals"]
    assert (totals["admitted"], totals["refused"]) == (messages, 0), totals


def test_a_raised_limit_lets_its_queue_go_at_once(rabbitmq: RabbitMQ, start: Any) -> None:
    _declare(rabbitmq, "raised")
    sluice = start(_LITTLE_MEMORY + _rule("raised", 10))
    with AmqpClient(sluice.routes[0].listen) as client:
        publisher = Publisher(client, "raised", count=10_000)
        _wait_until(sluice, "written_total", 1)
        publisher.join()
        status, answer = ask(sluice, "PUT", "limits/queue/raised", {"rate": 1_000_000, "action": "delay"})
        assert status in {200, 201}, answer
        assert client.wait_for_confirms(publisher.channel).nacked == []
    _check(rabbitmq, "raised", publisher)


@pytest.mark.long
def test_a_removed_limit_releases_its_queue_at_once(rabbitmq: RabbitMQ, start: Any) -> None:
    _declare(rabbitmq, "freed")
    sluice = start(_LITTLE_MEMORY + _rule("freed", 10))
    with AmqpClient(sluice.routes[0].listen) as client:
        publisher = Publisher(client, "freed", confirms=False, count=10_000)
        _wait_until(sluice, "written_total", 1)
        publisher.join()
        status, answer = ask(sluice, "PUT", "limits/queue/freed", {"rate": "unlimited"})
        assert status in {200, 201}, answer
        deadline_s = time.monotonic() + _TIMEOUT_S
        while rabbitmq.messages("freed") < publisher.sent:
            assert time.monotonic() < deadline_s
    _check(rabbitmq, "freed", publisher)


@pytest.mark.long
def test_messages_that_have_expired_are_confirmed_and_not_delivered(rabbitmq: RabbitMQ, start: Any) -> None:
    _declare(rabbitmq, "expiring")
    sluice = start(_rule("expiring", 20, "burst_s = 1"))
    with AmqpClient(sluice.routes[0].listen) as client:
        mortal = Publisher(client, "expiring", count=400, expiration="1500")
        confirmed = client.wait_for_confirms(mortal.channel)
        assert confirmed.nacked == []
        assert sorted(confirmed.acked) == list(range(1, 401))
        expired = _spool(sluice)["expired_total"]
    # Messages also expire at the broker.
    assert rabbitmq.messages("expiring") <= 400 - expired
    assert expired > 300


def test_a_purge_refuses_refusable_requests(rabbitmq: RabbitMQ, start: Any) -> None:
    _declare(rabbitmq, "purged")
    sluice = start(_LITTLE_MEMORY + _rule("purged", 10, "burst_s = 1"))
    with AmqpClient(sluice.routes[0].listen) as confirming, AmqpClient(sluice.routes[0].listen) as plain:
        publishers = [
            Publisher(confirming, "purged", count=3000),
            Publisher(plain, "purged", count=3000, confirms=False),
        ]
        for publisher in publishers:
            publisher.join()
        _wait_until(sluice, "in_total", 5900)
        status, purged = ask(sluice, "DELETE", "spool/queue/purged")
        assert status == 200, purged
        assert purged["refused"] > 2500
        assert purged["dropped"] > 2500
        confirmed = confirming.confirmed[publishers[0].channel]
        confirming.wait_until(lambda: len(confirmed.nacked) >= purged["refused"], what="all nacked")
        confirming.wait_for_confirms(publishers[0].channel)
        assert sorted(confirmed.acked + confirmed.nacked) == list(range(1, 3001))
        assert len(confirmed.nacked) == purged["refused"]
        # The channel continues normally.
        number = confirming.publish(publishers[0].channel, "purged", b"0 9999 after")
        confirming.wait_for_confirms(publishers[0].channel)
        assert number in confirmed.acked
        # Messages that were held, and not spooled, have stayed.
        deadline_s = time.monotonic() + _TIMEOUT_S
        while rabbitmq.messages("purged") < 6001 - purged["refused"] - purged["dropped"]:
            assert time.monotonic() < deadline_s
    assert rabbitmq.messages("purged") == 6001 - purged["refused"] - purged["dropped"]


def test_a_full_disk_slows_publishers_and_loses_nothing(rabbitmq: RabbitMQ, start: Any, tmp_path: Path) -> None:
    _declare(rabbitmq, "full-disk")
    disk = SmallDisk(tmp_path / "disk", 8 * 1024 * 1024)
    config = f"""
[spool]
dir = "{disk.path}/spool"
memory_bytes = 1_048_576

[alarms]
disk_free_bytes = 0
"""
    sluice = start(config + _rule("full-disk", 10), inside=disk.inside)
    with AmqpClient(sluice.routes[0].listen) as client:
        # 60 MB: three times the capacity of disk, memory and socket buffers.
        publisher = Publisher(client, "full-disk", count=20_000, size=3000)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not (spool := _spool(sluice))["alarm"]:
            assert time.monotonic() < deadline_s, spool
        assert publisher.sent < 20_000
        status, answer = ask(sluice, "PUT", "limits/queue/full-disk", {"rate": 1_000_000, "action": "delay"})
        assert status in {200, 201}, answer
        publisher.join()
        confirmed = client.wait_for_confirms(publisher.channel)
        assert (confirmed.nacked, client.end) == ([], None)
    _check(rabbitmq, "full-disk", publisher)


@pytest.mark.long
def test_a_disk_that_others_fill_is_used_again_when_it_is_free(rabbitmq: RabbitMQ, start: Any, tmp_path: Path) -> None:
    _declare(rabbitmq, "filled-disk")
    disk = SmallDisk(tmp_path / "disk", 64 * 1024 * 1024)
    config = f"""
[spool]
dir = "{disk.path}/spool"
memory_bytes = 1_048_576

[alarms]
disk_free_bytes = 0
"""
    sluice = start(config + _rule("filled-disk", 10), inside=disk.inside)
    in_the_way = fill(disk.of(sluice.process), left_bytes=1_000_000)
    with AmqpClient(sluice.routes[0].listen) as client:
        publisher = Publisher(client, "filled-disk", count=10_000, size=1000)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not (spool := _spool(sluice))["alarm"]:
            assert time.monotonic() < deadline_s, spool
        in_the_way.unlink()
        publisher.join()
        while (spool := _spool(sluice))["alarm"]:
            assert time.monotonic() < deadline_s, spool
        ask(sluice, "PUT", "limits/queue/filled-disk", {"rate": 1_000_000, "action": "delay"})
        assert client.wait_for_confirms(publisher.channel).nacked == []
    _check(rabbitmq, "filled-disk", publisher)


@pytest.mark.long
def test_a_slow_disk_slows_publishers_and_loses_nothing(rabbitmq: RabbitMQ, start: Any) -> None:
    _declare(rabbitmq, "slowed-disk")
    sluice = start(_LITTLE_MEMORY + _rule("slowed-disk", 10), env=slow_writes(50))
    with AmqpClient(sluice.routes[0].listen) as client:
        publisher = Publisher(client, "slowed-disk", count=3000, size=1000)
        _wait_until(sluice, "written_total", 500)
        ask(sluice, "PUT", "limits/queue/slowed-disk", {"rate": 1_000_000, "action": "delay"})
        publisher.join()
        assert client.wait_for_confirms(publisher.channel).nacked == []
    _check(rabbitmq, "slowed-disk", publisher)
