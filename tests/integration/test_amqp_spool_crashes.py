"""kill -9 while the spool is written and read, and damage to its files: the losses are the documented ones."""

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.amqp import AmqpClient
from harness.api import ask
from harness.publisher import Numbered, Publisher, read_numbered
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

from proxy.spool.spool import Hooks, Spool, SpoolSettings

pytestmark = [pytest.mark.integration]

_TIMEOUT_S = 60.0
_MESSAGES = 4000


def _config(rate: float | str, *, recover: bool) -> str:
    action = "" if rate == "unlimited" else '\naction = "delay"\nspool = true\nburst_s = 1'
    rate_text = json.dumps(rate)
    return f"""
[spool]
memory_bytes = 1_048_576
recover = {json.dumps(recover)}

[[limits]]
kind = "queue"
name = "crash*"
rate = {rate_text}{action}
"""


class Lives:
    """Sidecars one after the other, with the same address and state."""

    def __init__(self, start_sluice: StartSluice, folder: Path, listen: str, broker: str) -> None:
        self._start, self._state, self._route = start_sluice, folder / "state", Route(listen, broker)
        self.address = listen

    def start(self, rate: float | str, *, recover: bool = False) -> Sluice:
        return self._start(
            routes=(self._route,),
            protocol="amqp091",
            config=_config(rate, recover=recover),
            arguments=("--state-dir", str(self._state), "--grace-s", "1"),
            covered=False,
        )

    def segments(self) -> list[Path]:
        """Return the files of the spool, oldest first."""
        return sorted((self._state / "spool").glob("*.segment"))

    def on_disk(self) -> int:
        """Return the number of recoverable messages, by reading a copy of the spool."""
        copy = self._state / "copy"
        shutil.copytree(self._state / "spool", copy)
        nothing = Hooks(pytest.fail, pytest.fail, pytest.fail)
        spool, recovered = Spool.open(copy, SpoolSettings(), nothing, pytest.fail, now_ns=0, clock_ns=0, recover=True)
        spool.close()
        shutil.rmtree(copy)
        return recovered.entries


@pytest.fixture
def lives(start_sluice: StartSluice, rabbitmq: RabbitMQ, tmp_path: Path, listen: str) -> Lives:
    return Lives(start_sluice, tmp_path, listen, rabbitmq.address)


@pytest.fixture
def queue(rabbitmq: RabbitMQ, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "crash-" + re.sub(r"\W+", "-", request.node.name)
    with rabbitmq.connect() as client:
        client.call(client.open_channel(), "queue.declare", queue=name, durable=True)
    yield name
    with rabbitmq.connect() as client:
        client.call(client.open_channel(), "queue.delete", queue=name)


def _spool(sluice: Sluice) -> dict[str, Any]:
    status, spool = ask(sluice, "GET", "spool")
    assert status == 200, spool
    return dict(spool["holds"])


def _wait_until(sluice: Sluice, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition(spool := _spool(sluice)):
        assert time.monotonic() < deadline_s, spool
    return spool


def _kill(sluice: Sluice) -> None:
    sluice.process.signal(signal.SIGKILL)
    sluice.process.wait(timeout_s=_TIMEOUT_S)


def _in_order(stored: list[Numbered]) -> None:
    """Each process's messages are in order, each once."""
    by_life: dict[int, list[int]] = {}
    for each in stored:
        by_life.setdefault(each.epoch, []).append(each.number)
    for life, numbers in by_life.items():
        assert numbers == sorted(set(numbers)), life


def _check_kills(rabbitmq: RabbitMQ, lives: Lives, queue: str, kills: int) -> None:
    """In each life, a publisher with confirms sends unconfirmed messages of earlier lives again, and then new ones."""
    confirmed: set[Numbered] = set()
    first = 1
    for life in range(kills):
        # Kill it alternately while the spool is written and read.
        reads = life % 2
        sluice = lives.start(1500 if reads else 100)
        with AmqpClient(lives.address) as client:
            publisher = Publisher(client, queue, count=_MESSAGES, epoch=life, first=first)
            if reads:
                publisher.join()
            _wait_until(sluice, lambda spool, reads=reads: spool["read_total" if reads else "written_total"] > 0)
            _kill(sluice)
            client.wait_for_end()
        assert publisher.nacked == []
        acked = publisher.acked
        assert acked == sorted(set(acked))
        first = acked[-1] + 1 if acked else first
        confirmed |= {Numbered(life, number) for number in acked}
    sluice = lives.start("unlimited")
    with AmqpClient(lives.address) as client:
        publisher = Publisher(client, queue, count=_MESSAGES, epoch=kills, first=first)
        publisher.join()
        assert client.wait_for_confirms(publisher.channel).nacked == []
    sluice.stop()
    stored = read_numbered(rabbitmq.drain(queue))
    print(f"{kills} kills: {len(confirmed)} confirmed before, {len(stored)} stored in all")
    # Never a confirm without the broker's, and nothing out of order or twice, except for repeats.
    assert confirmed <= set(stored)
    _in_order(stored)
    assert {each.number for each in stored} == set(range(1, first + _MESSAGES))


def test_killed_while_it_spills_and_reads_back(rabbitmq: RabbitMQ, lives: Lives, queue: str) -> None:
    _check_kills(rabbitmq, lives, queue, 2)


@pytest.mark.long
def test_killed_twenty_times_while_it_spills_and_reads_back(rabbitmq: RabbitMQ, lives: Lives, queue: str) -> None:
    _check_kills(rabbitmq, lives, queue, 20)


def _spill_and_kill(lives: Lives, queue: str, *, size: int = 1000, recover: bool = True) -> tuple[int, int]:
    """Publish without confirms, and kill Sluice with most of it on disk."""
    sluice = lives.start(20, recover=recover)
    with AmqpClient(lives.address) as client:
        publisher = Publisher(client, queue, count=_MESSAGES, size=size, confirms=False)
        publisher.join()
        _wait_until(sluice, lambda spool: spool["in_total"] >= _MESSAGES - 200 and spool["writing_bytes"] == 0)
        _kill(sluice)
        client.wait_for_end()
    on_disk = lives.on_disk()
    assert on_disk > _MESSAGES / 2
    return publisher.sent, on_disk


def _found(sluice: Sluice) -> dict[str, Any]:
    """Return its log event about the spool of the earlier process."""
    line = sluice.process.wait_for_line("found spooled messages", timeout_s=_TIMEOUT_S)
    print(line)
    return dict(json.loads(line))


def _drained(rabbitmq: RabbitMQ, queue: str) -> tuple[list[Numbered], list[int]]:
    """Return the messages of a queue without the replay mark, and the numbers of those with it."""
    plain, replayed = [], []
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        count = client.call(channel, "queue.declare", queue=queue, passive=True)["message_count"]
        client.call(channel, "basic.consume", queue=queue, consumer_tag="c", no_ack=True)
        for event in (client.expect("basic.deliver") for _ in range(count)):
            (numbered,) = read_numbered([event.body])
            if event.properties.get("headers", {}).get("x-sluice-replayed"):
                assert numbered.epoch == 0
                replayed.append(numbered.number)
            else:
                plain.append(numbered)
    return plain, replayed


def _wait_until_replayed(sluice: Sluice) -> dict[str, Any]:
    return _wait_until(sluice, lambda spool: sum(spool["messages"].values()) == 0)


@pytest.mark.long
def test_unconfirmed_spooled_messages_are_replayed(rabbitmq: RabbitMQ, lives: Lives, queue: str) -> None:
    sent, on_disk = _spill_and_kill(lives, queue)
    before = rabbitmq.messages(queue)
    with lives.start("unlimited", recover=True) as sluice, AmqpClient(lives.address) as client:
        publisher = Publisher(client, queue, count=100, epoch=1, confirms=False)
        publisher.join()
        found = _found(sluice)
        _wait_until_replayed(sluice)
    assert (found["to_send"], found["dropped"], found["lost"]) == (on_disk, 0, 0)
    plain, replayed = _drained(rabbitmq, queue)
    print(f"{sent} sent: {before} stored before, {len(replayed)} replayed, {sent - before - len(replayed)} lost")
    assert [each.number for each in plain if each.epoch == 0] == list(range(1, before + 1))
    assert [each.number for each in plain if each.epoch == 1] == list(range(1, 101))
    # Everything on disk, in order, each once. Only messages in memory are lost.
    assert len(replayed) == on_disk
    assert replayed == sorted(set(replayed))


@pytest.mark.long
def test_unconfirmed_spooled_messages_are_counted_and_dropped(rabbitmq: RabbitMQ, lives: Lives, queue: str) -> None:
    _, on_disk = _spill_and_kill(lives, queue, recover=False)
    before = rabbitmq.messages(queue)
    with lives.start("unlimited") as sluice, AmqpClient(lives.address) as client:
        publisher = Publisher(client, queue, count=100, epoch=1)
        publisher.join()
        client.wait_for_confirms(publisher.channel)
        found = _found(sluice)
        assert sum(_spool(sluice)["messages"].values()) == 0
    assert (found["to_send"], found["dropped"], found["lost"]) == (0, on_disk, 0)
    plain, replayed = _drained(rabbitmq, queue)
    assert (len(plain), replayed) == (before + 100, [])
    assert lives.segments() == []


def _truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _flipped(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0x10]))


@pytest.mark.long
@pytest.mark.parametrize("damage", [_truncated, _flipped, Path.unlink], ids=["truncated", "bit flipped", "missing"])
def test_damaged_entries_are_counted_exactly(
    rabbitmq: RabbitMQ, lives: Lives, queue: str, damage: Callable[[Path], None]
) -> None:
    _, on_disk = _spill_and_kill(lives, queue, size=6000)
    before = rabbitmq.messages(queue)
    assert len(lives.segments()) > 1
    damage(lives.segments()[0])
    with lives.start("unlimited", recover=True) as sluice, AmqpClient(lives.address):
        found = _found(sluice)
        # Damage in the middle of a file is found when that is read.
        lost = found["lost"] + _wait_until_replayed(sluice)["lost_total"]
    plain, replayed = _drained(rabbitmq, queue)
    print(f"{on_disk} on disk: {len(replayed)} replayed, {lost} lost")
    assert 0 < lost < on_disk
    assert len(replayed) == on_disk - lost
    assert replayed == sorted(set(replayed))
    assert [each.number for each in plain] == list(range(1, before + 1))
