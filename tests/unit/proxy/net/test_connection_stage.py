"""How a connection reports why its client is not read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from proxy.deciding.batch import NO_VERDICTS, Batch, Side, Verdicts
from proxy.deciding.pipeline import Handler, HandlerConfig, HandlerPlugin
from proxy.flow.credit import Credit, Stage
from proxy.net.peer import Peer, PeerState
from proxy.net.reactor import Reactor
from proxy.protocols.base import Protocol

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Rig, StartRig

LINE_BYTES = 1024
LINES = (b"free " + b"x" * (LINE_BYTES - 6) + b"\n") * 64


class Waiting(Handler):
    def __init__(self) -> None:
        self.may_decide = trio.Event()

    async def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        await self.may_decide.wait()
        return NO_VERDICTS


async def causes(rig: Rig, mock_clock: MockClock) -> list[tuple[str, tuple[str, ...]]]:
    # It is reported once it has lasted for a while.
    mock_clock.jump(12)
    return [(finding.cause, finding.at) for finding in (await rig.path.flow()).findings]


async def test_writer_stalls_it_while_the_broker_does_not_read(rig: Rig, mock_clock: MockClock) -> None:
    client, broker = await rig.connect()
    sent = await client.send_until_stalled(LINES)
    (connection,) = rig.connections
    assert connection.peers[Side.CLIENT].state is PeerState.WRITING
    assert connection.stage.waits_for() == (connection.writer,)
    host, port = rig.broker.address
    assert await causes(rig, mock_clock) == [("broker", (f"writer {host}:{port}",))]
    mock_clock.jump(0.2)
    assert rig.path.server.take_seen()["main"].blocked
    whole = sent - sent % LINE_BYTES
    assert len(await broker.receive(whole)) == whole
    await rig.settle()
    assert not rig.path.server.take_seen()["main"].blocked
    assert connection.peers[Side.CLIENT].state is PeerState.READING
    assert not connection.stage.out_of_credit


async def test_client_that_does_not_read_its_answers_is_not_in_flow(rig: Rig) -> None:
    _, broker = await rig.connect()
    await broker.send_until_stalled((b"x" * 900 + b"\n") * 64)
    (connection,) = rig.connections
    assert connection.peers[Side.BROKER].state is PeerState.WRITING
    assert not connection.stage.out_of_credit


async def test_limiter_stalls_it_while_a_lane_decides(start_rig: StartRig, mock_clock: MockClock) -> None:
    handler = Waiting()
    plugin = HandlerPlugin("waiting", dict, lambda options, services: handler)
    rig = await start_rig(handlers=[HandlerConfig(plugin, {}, deadline_ms=60_000)])
    client, broker = await rig.connect()
    await client.send(b"free 1\n")
    await rig.until(lambda: rig.connections[0].stage.out_of_credit)
    assert rig.connections[0].peers[Side.CLIENT].state is PeerState.DECIDING
    assert await causes(rig, mock_clock) == [("deciding", ("resource limiter",))]
    handler.may_decide.set()
    assert await broker.receive_line() == b"free 1\n"
    assert not rig.connections[0].stage.out_of_credit


async def test_decoding_stalls_it_while_it_waits_for_its_turn(
    start_rig: StartRig, lines: Protocol, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Parts:
        def __init__(self, session: Any) -> None:
            self._session, self._left_bytes = session, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
            part = chunk[:7]
            self._left_bytes = len(chunk) - len(part)
            return self._session.receive(side, part, now_ns)  # type: ignore[no-any-return]

        def left_bytes(self, side: Side) -> int:
            return self._left_bytes if side is Side.CLIENT else 0

    rig = await start_rig(protocol=replace(lines, open_session=lambda context: Parts(lines.open_session(context))))
    client, broker = await rig.connect()
    (connection,) = rig.connections
    turns: list[Peer] = []
    with monkeypatch.context() as patched:
        patched.setattr(Reactor, "count_readable", lambda _, peer: turns.append(peer))
        await client.send(b"free 1\nfree 2\n")
        assert await broker.receive_line() == b"free 1\n"
    (peer,) = turns
    assert peer.state is PeerState.READING
    assert connection.deciding
    assert await causes(rig, mock_clock) == [("decoding", ("channel decoding",))]
    peer.reactor.count_readable(peer)
    assert await broker.receive_line() == b"free 2\n"
    assert not connection.stage.out_of_credit


async def test_client_is_read_on_once_all_give_credit(rig: Rig) -> None:
    client, broker = await rig.connect()
    (connection,) = rig.connections
    resources = [Stage("resource", str(number), Credit(2, 1)) for number in range(2)]
    for resource in resources:
        connection.stage.send(resource, 2, 0)
    await client.send(b"free 1\n")
    for resource in resources:
        await rig.settle()
        assert broker.pending() == b""
        resource.ack(connection.stage, 1, 0)
    assert await broker.receive_line() == b"free 1\n"


async def test_answers_are_forwarded_while_the_client_is_not_read(rig: Rig) -> None:
    client, broker = await rig.connect()
    stage = rig.connections[0].stage
    stage.stall(Stage("resource"), 0, on=True)
    await broker.send(b"answer\n")
    assert await client.receive_line() == b"answer\n"
