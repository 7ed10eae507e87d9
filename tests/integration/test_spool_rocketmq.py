"""Sends of RocketMQ producers over the limit are spooled, and stored in the end: once, in order, at the rate."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.api import ask
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, pull, send, sends, stored
from harness.sidecar import Sluice, StartSluice

from proxy.protocols.rocketmq.wire.codes import ResponseCode

pytestmark = [pytest.mark.integration]

_FLOOD_S = float(os.environ.get("TESTED_FLOOD_S", "6"))
_RATE, _TIMES, _AT_ONCE = 500, 10, 50
_TIMEOUT_S = 60.0
_LITTLE_MEMORY = "[spool]\nmemory_bytes = 1_048_576\n"
_NUMBER = re.compile(rb"#(\d+)#")


def _rule(name: str, rate: int, more: str = "") -> str:
    return f"""
[[limits]]
kind = "topic"
name = "{name}"
rate = {rate}
action = "delay"
spool = true
{more}
"""


@pytest.fixture
def start(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Any]:
    running: list[Sluice] = []

    def started(config: str, **how: Any) -> Sluice:
        running.append(start_sluice(routes=(broker.route(),), config=config, covered=False, **how))
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


def _stored_numbers(broker: EmbeddedBroker, topic: str) -> list[int]:
    """Return the numbers in the bodies of a topic's only queue, in order."""
    numbers: list[int] = []
    with FrameClient(broker.address) as client:
        while len(numbers) < broker.stored(topic):
            (pulled,) = client.ask(pull("readers", topic, len(numbers)))
            assert pulled.code == ResponseCode.SUCCESS, pulled
            found = [int(number) for number in _NUMBER.findall(pulled.body)]
            assert found
            numbers += found
    return numbers


def _wait_until_stored(broker: EmbeddedBroker, topic: str, count: int, *, within_s: float = _TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + within_s
    while broker.stored(topic) < count:
        assert time.monotonic() < deadline_s, broker.stored(topic)
        time.sleep(0.05)


def _numbered(topic: str, first: int, count: int, *, oneway: bool) -> list[Any]:
    return [send(topic, body=b"#%d#" % number + bytes(600), oneway=oneway) for number in range(first, first + count)]


def _flood(client: FrameClient, topic: str, count: int, *, oneway: bool) -> None:
    begun_s = time.monotonic()
    for first in range(1, count + 1, _AT_ONCE):
        client.write(*_numbered(topic, first, _AT_ONCE, oneway=oneway))
        time.sleep(max(0.0, begun_s + (first + _AT_ONCE) / (_RATE * _TIMES) - time.monotonic()))


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("oneway", [False, True], ids=["answered", "oneway"])
def test_flood_of_ten_times_the_limit_is_stored_without_any_error(
    broker: EmbeddedBroker, start: Any, *, oneway: bool
) -> None:
    topic, count = f"flooded-{oneway}", int(_FLOOD_S * _RATE * _TIMES)
    sluice = start(_LITTLE_MEMORY + _rule("flooded*", _RATE, "max_delay_s = 3600"))
    begun_s = time.monotonic()
    with FrameClient(sluice.routes[0].listen) as client, FrameClient(sluice.routes[0].listen) as other:
        flooding = threading.Thread(target=_flood, args=(client, topic, count), kwargs={"oneway": oneway})
        flooding.start()
        # Others pass.
        assert stored(other.ask(*sends(10, "free"))) == 10
        if not oneway:
            answers = client.read(count)
            assert stored(answers) == count
            assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(count))
        flooding.join()
        _wait_until_stored(broker, topic, count, within_s=2 * count / _RATE + _TIMEOUT_S)
    took_s = time.monotonic() - begun_s
    spool = _spool(sluice)
    print(f"{count} stored after {took_s:.1f} s: {spool}")
    assert spool["in_total"] > count / 2
    assert sum(spool["messages"].values()) == spool["lost_total"] == 0
    assert count / took_s < 1.1 * _RATE
    assert _stored_numbers(broker, topic) == list(range(1, count + 1))


@pytest.mark.parametrize("oneway", [False, True], ids=["answered", "oneway"])
def test_a_raised_limit_lets_its_queue_go_at_once(broker: EmbeddedBroker, start: Any, *, oneway: bool) -> None:
    topic, count = f"raised-{oneway}", 5000
    sluice = start(_LITTLE_MEMORY + _rule(topic, 10, "burst_s = 1"))
    with FrameClient(sluice.routes[0].listen) as client:
        flooding = threading.Thread(target=_flood, args=(client, topic, count), kwargs={"oneway": oneway})
        flooding.start()
        _wait_until(sluice, "written_total", 1)
        flooding.join()
        status, answer = ask(sluice, "PUT", f"limits/topic/{topic}", {"rate": 1_000_000, "action": "delay"})
        assert status in {200, 201}, answer
        if not oneway:
            assert stored(client.read(count)) == count
        _wait_until_stored(broker, topic, count)
    assert _stored_numbers(broker, topic) == list(range(1, count + 1))


def test_purge_answers_waiting_senders(broker: EmbeddedBroker, start: Any) -> None:
    topic = "purged"
    sluice = start(_LITTLE_MEMORY + _rule(topic, 10, "burst_s = 1"))
    with FrameClient(sluice.routes[0].listen) as answered, FrameClient(sluice.routes[0].listen) as silent:
        answered.write(*_numbered(topic, 1, 2000, oneway=False))
        silent.write(*_numbered(topic, 2001, 2000, oneway=True))
        _wait_until(sluice, "in_total", 3900)
        status, purged = ask(sluice, "DELETE", f"spool/topic/{topic}")
        assert status == 200, purged
        answers = answered.read(2000)
        busy = [answer for answer in answers if answer.code == ResponseCode.SYSTEM_BUSY]
        assert len(busy) > 1500
        assert 0 < purged["refused"] <= len(busy)
        assert stored(answers) == 2000 - len(busy)
        assert purged["dropped"] > 1500
        _wait_until_stored(broker, topic, 4000 - len(busy) - purged["dropped"])
    assert broker.stored(topic) == 4000 - len(busy) - purged["dropped"]


@pytest.mark.long
@pytest.mark.parametrize("recover", [True, False], ids=["replayed", "dropped"])
def test_oneways_that_were_on_disk_are_replayed_if_that_is_wanted(
    start_sluice: StartSluice, broker: EmbeddedBroker, tmp_path: Path, *, recover: bool
) -> None:
    topic, count, route = f"killed-{recover}", 4000, broker.route()
    spool = f"[spool]\nmemory_bytes = 1_048_576\nrecover = {str(recover).lower()}\n"

    def started(more: str) -> Sluice:
        arguments = ("--state-dir", str(tmp_path / "state"))
        return start_sluice(routes=(route,), config=spool + more, arguments=arguments, covered=False)

    sluice = started(_rule(topic, 20, "burst_s = 1"))
    with FrameClient(route.listen) as client:
        client.write(*_numbered(topic, 1, count, oneway=True))
        deadline_s = time.monotonic() + _TIMEOUT_S
        while (there := _spool(sluice))["in_total"] < count - 200 or there["writing_bytes"]:
            assert time.monotonic() < deadline_s, there
        sluice.process.signal(signal.SIGKILL)
        sluice.process.wait(timeout_s=_TIMEOUT_S)
    before = broker.stored(topic)
    with started("") as sluice, FrameClient(route.listen) as client:
        assert stored(client.ask(send(topic, body=b"#9999#"))) == 1
        while sum((spool_now := _spool(sluice))["messages"].values()):
            assert time.monotonic() < deadline_s + _TIMEOUT_S, spool_now
        print("\n".join(sluice.process.lines))
    numbers = _stored_numbers(broker, topic)
    assert numbers[:before] == list(range(1, before + 1))
    replayed = [number for number in numbers[before:] if number != 9999]
    assert replayed == sorted(set(replayed))
    print(f"{before} stored before, {len(replayed)} replayed; {there}")
    if recover:
        assert len(replayed) >= there["messages"]["delta"] - 50
        assert count - before - len(replayed) <= there["messages"]["alpha"] + 50
    else:
        assert replayed == []
