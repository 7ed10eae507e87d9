"""Connections that the compiled extension serves from their first byte on. Without it, Python does the same."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import trio
from playbook import frames

from limiter.compiled import COMPILED
from proxy.net.server import ListenerConfig, _Client
from proxy.net.shutdown import CLOSE_TIMEOUT_S
from proxy.protocols.rocketmq import PROTOCOL as ROCKETMQ

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.proxy.conftest import Peer, Rig, ScriptedBroker, StartRig

ROUTE = frames.frame(b'{"code":105,"flag":0,"language":"GO","opaque":7,"version":401,"extFields":{"topic":"a"}}')


@pytest.fixture
async def rig(start_rig: StartRig, broker: ScriptedBroker) -> Rig:
    config = ListenerConfig("main", ROCKETMQ, ROCKETMQ.options(), ("127.0.0.1", 0), broker.address)
    return await start_rig(listeners=(config,))


def new(rig: Rig) -> int:
    """Return the number of connections that only the compiled extension knows. Without it, all."""
    server = rig.path.server
    return len(server.new) if COMPILED else len(server.connections)


async def passed(rig: Rig, topic: str) -> int:
    return (await rig.snapshot()).resources["topic", topic].requests["pass"]


async def exchange(asks: Peer, answers: Peer, request: bytes, answer: bytes) -> None:
    await asks.send(request)
    assert await answers.receive(len(request)) == request
    await answers.send(answer)
    assert await asks.receive(len(answer)) == answer


async def test_serves_a_client_from_accept_to_close(rig: Rig) -> None:
    client, broker = await rig.connect()
    await exchange(client, broker, ROUTE + frames.send("a", opaque=8), frames.answer(7) + frames.answer(8))
    assert new(rig) == 1
    client.end()
    assert await broker.receive_to_end() == b""
    assert rig.closed == {}
    await broker.send(frames.answer(9))
    assert await client.receive(len(frames.answer(9))) == frames.answer(9)
    broker.end()
    await rig.until_closed("client_closed")
    assert await client.receive_to_end() == b""
    assert rig.path.server.open_connections("main") == 0


async def test_shows_its_estimates_and_counts(rig: Rig) -> None:
    client, broker = await rig.connect()
    await exchange(client, broker, ROUTE + frames.send("a", opaque=8), frames.answer(7) + frames.answer(8))
    assert new(rig) == 1
    (shown,) = await rig.path.connections()
    assert (shown.client.language, shown.client.version) == ("GO", "V4_9_4")
    assert (shown.requests_total, shown.resources) == (2, ("topic:a",))
    assert rig.path.server.connections
    await exchange(client, broker, frames.send("b", opaque=9), frames.answer(9))
    assert await passed(rig, "b") == 1


@pytest.mark.parametrize("first", [frames.heartbeat(), frames.send_batch("a", 2), frames.send("a", body=bytes(99_999))])
async def test_python_continues_where_the_compiled_extension_leaves(rig: Rig, first: bytes) -> None:
    client, broker = await rig.connect()
    await client.send(first[:40])
    await rig.settle()
    assert new(rig) == 1
    await client.send(first[40:] + frames.send("b"))
    assert await broker.receive(len(first + frames.send("b"))) == first + frames.send("b")
    assert await passed(rig, "b") == 1


@pytest.mark.parametrize(
    ("beginning", "reason"), [(b"\x16\x03\x01\x02\x00", "tls"), (b"PROXY TCP4 1.2.3.4 ", "proxy_protocol")]
)
async def test_closes_unknown_protocols(rig: Rig, beginning: bytes, reason: str) -> None:
    client, broker = await rig.connect()
    await client.send(beginning)
    assert (await client.receive_to_end(), await broker.receive_to_end()) == (b"", b"")
    client.end()
    broker.end()
    await rig.until_closed(reason)


async def test_passes_the_rest_of_a_frame_on_that_its_client_has_cut(rig: Rig) -> None:
    client, broker = await rig.connect()
    request = frames.send("a", body=bytes(1000))
    await client.send(request[:-1])
    client.end()
    assert await broker.receive_to_end() == request[:-1]
    broker.end()
    await rig.until_closed("client_closed")


async def test_waits_a_moment_for_a_broker_that_does_not_close(rig: Rig, mock_clock: MockClock) -> None:
    client, broker = await rig.connect()
    await exchange(client, broker, ROUTE, frames.answer(7))
    client.end()
    assert await broker.receive_to_end() == b""
    mock_clock.jump(CLOSE_TIMEOUT_S / 2)
    await rig.settle()
    assert rig.closed == {}
    mock_clock.jump(CLOSE_TIMEOUT_S)
    await rig.until_closed("client_closed")


async def test_a_broker_that_closes_first_or_resets_is_reported(rig: Rig) -> None:
    client, broker = await rig.connect()
    broker.end()
    assert await client.receive_to_end() == b""
    client.end()
    await rig.until_closed("broker_closed")
    client, broker = await rig.connect()
    client.reset()
    assert await broker.receive_to_end() == b""
    broker.end()
    await rig.until(lambda: sum(rig.closed.values()) == 2)
    assert rig.closed == {"broker_closed": 1, "client_error": 1}


async def test_silent_client_is_closed(rig: Rig, mock_clock: MockClock) -> None:
    silent, _ = await rig.connect()
    heard, broker = await rig.connect()
    await exchange(heard, broker, ROUTE, frames.answer(7))
    mock_clock.jump(10)
    assert await silent.receive_to_end() == b""
    silent.end()
    mock_clock.jump(CLOSE_TIMEOUT_S)
    await rig.until_closed("handshake_timeout")
    await exchange(heard, broker, ROUTE, frames.answer(7))


async def test_idle_one_is_closed_in_time(start_rig: StartRig, broker: ScriptedBroker, mock_clock: MockClock) -> None:
    config = ListenerConfig("main", ROCKETMQ, ROCKETMQ.options(), ("127.0.0.1", 0), broker.address, idle_timeout_s=4.0)
    rig = await start_rig(listeners=(config,))
    client, broker_end = await rig.connect()
    await exchange(client, broker_end, ROUTE, frames.answer(7))
    for _ in range(5):
        assert rig.closed == {}
        mock_clock.jump(1)
        await rig.settle()
    assert await client.receive_to_end() == b""
    mock_clock.jump(CLOSE_TIMEOUT_S)
    await rig.until_closed("idle_timeout")


async def test_drain_waits_for_the_answer(rig: Rig, nursery: trio.Nursery) -> None:
    client, broker = await rig.connect()
    await client.send(frames.send("a", opaque=8))
    await broker.receive(len(frames.send("a", opaque=8)))
    nursery.start_soon(rig.path.server.drain, 100)
    await rig.settle()
    assert rig.closed == {}
    await broker.send(frames.answer(8))
    assert await client.receive(len(frames.answer(8))) == frames.answer(8)
    assert (await client.receive_to_end(), await broker.receive_to_end()) == (b"", b"")
    client.end()
    broker.end()
    await rig.until_closed("drained")


async def test_operator_can_close_it(rig: Rig) -> None:
    client, broker = await rig.connect()
    await exchange(client, broker, ROUTE, frames.answer(7))
    assert new(rig) == 1
    assert await rig.path.close_connection(1, "go")
    await rig.until_closed("closed_by_operator")
    assert await client.receive_to_end() == b""


async def test_broker_that_does_not_read_is_seen(rig: Rig) -> None:
    client, _ = await rig.connect()
    await client.send_until_stalled(frames.send("a", flag=2, body=bytes(60_000)))
    (shown,) = (await rig.path.flow()).connections
    assert shown.connection.state == "flow"


async def test_ended_ones_do_not_wait_for_the_garbage_collector(rig: Rig) -> None:
    def left() -> int:
        return sum(isinstance(each, _Client) for each in gc.get_objects())

    before = left()
    gc.disable()
    try:
        for number in range(1, 6):
            client, broker = await rig.connect()
            await exchange(client, broker, frames.send("a", opaque=8), frames.answer(8))
            client.end()
            await broker.receive_to_end()
            broker.end()
            await rig.until_closed("client_closed", number)
        assert left() - before <= 1
    finally:
        gc.enable()
