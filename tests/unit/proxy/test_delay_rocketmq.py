"""RocketMQ requests delayed by a rule, from socket to socket, with the rate limiter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio
from playbook import frames
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.protocols.rocketmq import PROTOCOL

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Peer, Rig, StartRig

ORDERS = Rule("topic", "orders", 1, action="delay", max_delay_s=4.0)
PULLED = Rule("subscription", "g@orders", 10, action="delay", max_delay_s=10.0)


@pytest.fixture
async def rig(start_rig: StartRig) -> Rig:
    return await start_rig("topic:free=unlimited", protocol=PROTOCOL, rules=[ORDERS, PULLED])


async def frame(peer: Peer) -> bytes:
    head = await peer.receive(4)
    return head + await peer.receive(int.from_bytes(head))


async def send_delayed(client: Peer, broker: Peer, *opaques: int) -> None:
    """Send to ``orders``, which admits the first and holds the others."""
    marker = frames.send("free", 99)
    await client.send(b"".join(frames.send("orders", opaque) for opaque in opaques) + marker)
    assert await frame(broker) == frames.send("orders", opaques[0])
    assert await frame(broker) == marker


def refused(whole: bytes) -> tuple[int, int, str]:
    """Return code, opaque and remark of a busy answer."""
    header = json.loads(whole[8:])
    return header["code"], header["opaque"], header["remark"]


def held(rig: Rig) -> tuple[int, int]:
    """Return the held requests and bytes by the limits and by the sessions, which must agree."""
    now = rig.path._limits.held
    sessions = [connection.session for connection in rig.connections]
    assert sum(session._requests.held.count for session in sessions) == now.requests  # type: ignore[attr-defined] # its own
    assert sum(session._requests.held.size_bytes for session in sessions) == now.size_bytes  # type: ignore[attr-defined] # its own
    return now.requests, now.size_bytes


async def test_delayed_sends_arrive_at_the_rate_of_their_limit(rig: Rig, mock_clock: MockClock) -> None:
    client, broker = await rig.connect()
    await send_delayed(client, broker, 1, 2, 3)
    assert held(rig) == (2, 2 * len(frames.send("orders", 2)))
    for opaque in (2, 3):
        await wait_all_tasks_blocked()
        assert broker.pending() == b""
        mock_clock.jump(1.0)
        assert await frame(broker) == frames.send("orders", opaque)
    assert held(rig) == (0, 0)
    counts = (await rig.snapshot()).resources["topic", "orders"]
    assert counts.requests["pass"] == 3
    await broker.send(frames.answer(2))
    assert await frame(client) == frames.answer(2)


async def test_a_delayed_send_is_refused_at_its_deadline(rig: Rig, mock_clock: MockClock) -> None:
    client, broker = await rig.connect()
    batch, marker = frames.send_batch("orders", 4), frames.send("free", 99)
    await client.send(batch + frames.send("orders", 2) + marker)
    assert await broker.receive(len(batch + marker)) == batch + marker
    # The debt, paid in 3 s when the request came, now takes 30.
    slower = Rule("topic", "orders", 0.1, burst_s=10, action="delay", max_delay_s=4.0)
    await rig.path.apply(RuleSet((slower, Rule("topic", "free", None)), version=100))
    await wait_all_tasks_blocked()
    mock_clock.jump(3.9)
    await wait_all_tasks_blocked()
    assert client.pending() == b""
    mock_clock.jump(0.2)
    assert refused(await frame(client))[:2] == (2, 2)
    assert broker.pending() == b""
    assert held(rig) == (0, 0)
    (connection,) = rig.connections
    assert connection.session.in_flight() == 2  # the admitted one, and the marker


async def test_held_requests_end_with_their_client(rig: Rig, mock_clock: MockClock) -> None:
    client, broker = await rig.connect()
    await send_delayed(client, broker, 1, 2, 3)
    client.end()
    assert await broker.receive_to_end() == b""
    assert held(rig) == (0, 0)
    assert (await rig.snapshot()).resources["topic", "orders"].requests["drop"] == 2
    # They spent nothing: the next one need not wait for theirs.
    mock_clock.jump(1.0)
    other, its_broker = await rig.connect()
    await other.send(frames.send("orders", 7))
    assert await frame(its_broker) == frames.send("orders", 7)


async def test_a_drain_resolves_held_requests(rig: Rig, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    client, broker = await rig.connect()
    await send_delayed(client, broker, 1, 2)
    await broker.send(frames.answer(1) + frames.answer(99))
    await client.receive(len(frames.answer(1) + frames.answer(99)))
    nursery.start_soon(rig.path.drain, 10)
    await wait_all_tasks_blocked()
    assert len(rig.connections) == 1
    mock_clock.jump(1.0)
    assert await frame(broker) == frames.send("orders", 2)
    await broker.send(frames.answer(2))
    assert await client.receive_to_end() == frames.answer(2)
    client.end()
    broker.end()
    await rig.until_closed("drained")
