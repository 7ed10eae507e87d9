"""Spooled RocketMQ requests, from socket to socket, with the rate limiter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from playbook import frames
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.rule import Rule
from proxy.datapath.spooling import SpoolConfig
from proxy.protocols.rocketmq import PROTOCOL
from proxy.protocols.rocketmq.replayed import mark_replayed

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Peer, Rig, StartRig

ORDERS = Rule("topic", "orders", 10, action="delay", burst_s=0.1, max_delay_s=3600.0, spool=True)


@pytest.fixture
async def start(start_rig: StartRig, tmp_path: Path) -> Any:
    async def started(**config: Any) -> Rig:
        spool = SpoolConfig(tmp_path / "spool", recover=True)
        return await start_rig("topic:free=unlimited", protocol=PROTOCOL, rules=[ORDERS], spool=spool, **config)

    return started


async def frame(peer: Peer) -> bytes:
    head = await peer.receive(4)
    return head + await peer.receive(int.from_bytes(head))


def orders(*opaques: int, flag: int = 0) -> bytes:
    return b"".join(frames.send("orders", opaque, flag=flag) for opaque in opaques)


async def pass_s(mock_clock: MockClock, seconds: float) -> None:
    """Let time pass in steps that release at most one request each."""
    for _ in range(round(seconds * 20)):
        await wait_all_tasks_blocked()
        mock_clock.jump(0.05)
    await wait_all_tasks_blocked()


async def test_all_arrive_at_the_rate_in_order(start: Any, mock_clock: MockClock) -> None:
    rig = await start()
    client, broker = await rig.connect()
    await client.send(orders(*range(40)) + frames.send("free", 99))
    assert await broker.receive(len(orders(0) + frames.send("free", 99))) == orders(0) + frames.send("free", 99)
    await client.send(orders(*range(40, 50)))
    await pass_s(mock_clock, 1)
    state = await rig.path.spool()
    assert state is not None
    (resource,) = state.resources
    assert (resource.kind, resource.name) == ("topic", "orders")
    assert sum(resource.messages.values()) + len(broker.pending()) // len(orders(1)) >= 48
    await pass_s(mock_clock, 5)
    assert await broker.receive(len(orders(*range(1, 50)))) == orders(*range(1, 50))
    assert not rig.path._limits.held.requests
    assert (await rig.snapshot()).resources["topic", "orders"].requests["pass"] == 50


async def test_age_of_the_oldest_spooled_message_is_that_of_the_message_in_front(
    start: Any, mock_clock: MockClock
) -> None:
    rig = await start()
    client, _ = await rig.connect()
    await client.send(orders(*range(20)))
    await pass_s(mock_clock, 1)
    await client.send(orders(*range(20, 40)))
    ages = []
    for _ in range(4):
        ages.append((await rig.snapshot()).oldest_waiting.get(("topic", "orders")))
        await pass_s(mock_clock, 1)
    # After two seconds, the requests of the second one are in front.
    assert ages == [pytest.approx(age, abs=0.2) for age in (1.0, 1.0, 2.0, None)]


async def test_oneways_are_forwarded_after_their_client_has_gone(start: Any, mock_clock: MockClock) -> None:
    rig = await start()
    client, broker = await rig.connect()
    await client.send(orders(*range(20), flag=frames.ONEWAY) + orders(21, 22))
    client.end()
    await pass_s(mock_clock, 3)
    assert await broker.receive_to_end() == orders(*range(20), flag=frames.ONEWAY)


async def test_purge_answers_all(start: Any) -> None:
    rig = await start()
    client, broker = await rig.connect()
    await client.send(orders(*range(20)))
    assert await frame(broker) == orders(0)
    purged = await rig.path.purge("topic", "orders")
    assert (purged.refused, purged.dropped) == (19, 0)
    for opaque in range(1, 20):
        header = frames.read_header(await frame(client))
        assert (header["code"], header["opaque"]) == (2, opaque)
    assert not rig.path._limits.held.requests


async def test_a_client_is_not_read_while_its_broker_takes_nothing(start: Any, mock_clock: MockClock) -> None:
    rig = await start()
    client, broker = await rig.connect()
    await client.send(orders(*range(5)))
    assert await frame(broker) == orders(0)
    (connection,) = rig.connections
    assert [stage.name for stage in connection.session.stages()] == ["topic:orders"]
    await pass_s(mock_clock, 2)
    assert await broker.receive(len(orders(*range(1, 5)))) == orders(*range(1, 5))
    assert not list(connection.session.stages())


async def test_leftover_oneways_are_sent_by_the_next_process(start: Any, mock_clock: MockClock) -> None:
    rig = await start()
    client, broker = await rig.connect()
    await client.send(orders(*range(1, 31), flag=frames.ONEWAY) + orders(31, 32))
    await pass_s(mock_clock, 1)
    sent = len(broker.pending()) // len(orders(1, flag=frames.ONEWAY))
    assert 10 <= sent <= 13
    with trio.fail_after(60):
        rig.scope.cancel()
        await rig.until(lambda: rig.path._spooling.spool is None)
    again = await start()
    client, broker = await again.connect()
    await client.send(frames.heartbeat(100))
    assert await frame(broker) == frames.heartbeat(100)
    spool = again.path._spooling.spool
    assert spool is not None
    while spool.queues()[0].head() is None:
        # Another thread reads it, which takes real time.
        await trio.to_thread.run_sync(lambda: None)
    await pass_s(mock_clock, 5)
    expected = [mark_replayed(orders(opaque, flag=frames.ONEWAY)) for opaque in range(sent + 1, 31)]
    given = broker.pending()
    assert given == b"".join(expected)
