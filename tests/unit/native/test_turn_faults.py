"""A fault of the compiled turn ends only the connection that it served."""

from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import structlog
import trio
from both_ways import BROKER, CLIENT, Way
from playbook import frames
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.compiled import COMPILED
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.protocols.rocketmq import PROTOCOL, compiled

# More than a turn keeps: it panics.
TOO_MUCH = bytes(100_000)


async def says(way: Way, link: int, data: bytes) -> None:
    way.links[link].peers[CLIENT].send(data)
    await wait_all_tasks_blocked()
    way.read()


async def connects(way: Way, link: int) -> None:
    """Connect a client, and send enough to be lent."""
    way.open(("127.0.0.1", 0))
    await wait_all_tasks_blocked()
    way.accept()
    await says(way, link, b"".join(map(frames.heartbeat, range(20))))


async def test_panic_ends_one_connection_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    def lend(*arguments: Any) -> Any:
        monkeypatch.undo()
        return COMPILED.lend_rocketmq(*arguments[:-2], TOO_MUCH, False)  # type: ignore[union-attr] - it is here

    with ExitStack() as closing, structlog.testing.capture_logs() as logged:
        way = Way(PROTOCOL, PROTOCOL.options(), {"rule_set": RuleSet()}, mock_clock, closing)
        await nursery.start(way.path.run)
        for link in (0, 1):
            await connects(way, link)
        assert len(way.connections) == 2
        monkeypatch.setattr(compiled, "COMPILED", SimpleNamespace(**vars(COMPILED) | {"lend_rocketmq": lend}))
        for _ in range(3):
            await says(way, 0, frames.heartbeat())
        assert way.path.server.counters.closed == {("main", "internal_error"): 1}
        assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["connection failed"]
        assert "panicked" in repr(logged)
        asked = frames.send("orders", 100)
        before = len(way.links[1].received[BROKER])
        await says(way, 1, asked)
        assert bytes(way.links[1].received[BROKER][before:]) == asked
        nursery.cancel_scope.cancel()


async def test_refusals_that_wait_for_the_rest_of_an_answer_are_bounded(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    rules = RuleSet((Rule("topic", "none", 0),))
    with ExitStack() as closing, structlog.testing.capture_logs():
        way = Way(PROTOCOL, PROTOCOL.options(), {"rule_set": rules}, mock_clock, closing)
        await nursery.start(way.path.run)
        await connects(way, 0)
        (link,) = way.links
        answer = frames.answer(0, body=bytes(3000))
        link.peers[BROKER].send(answer[:2000])
        refused = b"".join(frames.send("none", opaque, body=b"") for opaque in range(1000, 2000))
        taken, left = 0, 0
        while not left:
            assert taken < 64 * 1024 * 1024
            try:
                left = len(refused) - link.peers[CLIENT].send(refused)
            except BlockingIOError:
                left = len(refused)
            taken += len(refused) - left
            await wait_all_tasks_blocked()
        assert len(link.received[CLIENT]) < 3000
        # The requests are answered once there is a gap.
        link.peers[BROKER].send(answer[2000:])
        for _ in range(1000):
            await wait_all_tasks_blocked()
            way.read()
        assert link.received[CLIENT].count(b'"opaque"') == 1 + taken // (len(refused) // 1000)
        nursery.cancel_scope.cancel()


async def test_fault_of_a_connection_that_was_reported_before_is_not_lost(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    with ExitStack() as closing, structlog.testing.capture_logs() as logged:
        way = Way(PROTOCOL, PROTOCOL.options(), {"rule_set": RuleSet()}, mock_clock, closing)
        await nursery.start(way.path.run)
        await connects(way, 0)
        assert len(way.connections) == 1
        for _ in range(2):
            await says(way, 0, frames.heartbeat())
        lending = way.path._lending
        assert lending is not None
        (number,) = lending.lent
        lending._faults[number] = RuntimeError("a fault of ours")
        # It returns for another reason.
        lending.lent[number].left(broken=False)
        assert "a fault of ours" in repr(logged)
        nursery.cancel_scope.cancel()


async def test_connection_that_returns_each_time_is_lent_less_often(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    rules = RuleSet((Rule("topic", "held", 1e9, action="delay"),))
    with ExitStack() as closing:
        way = Way(PROTOCOL, PROTOCOL.options(), {"rule_set": rules}, mock_clock, closing)
        await nursery.start(way.path.run)
        await connects(way, 0)
        session = way.connections[0].session
        with patch.object(session, "returned", wraps=session.returned) as returned:
            for opaque in range(100):
                await says(way, 0, frames.send("held", opaque))
        assert 4 < returned.call_count < 10
        nursery.cancel_scope.cancel()


async def test_client_that_returns_unread_is_written_to_at_once(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    with ExitStack() as closing, structlog.testing.capture_logs():
        way = Way(PROTOCOL, PROTOCOL.options(), {"rule_set": RuleSet()}, mock_clock, closing)
        await nursery.start(way.path.run)
        mock_clock.jump(1)
        await connects(way, 0)
        (link,) = way.links
        link.paused.add(BROKER)
        lending = way.path._lending
        assert lending is not None
        assert lending.lent
        with suppress(BlockingIOError):
            while True:
                await says(way, 0, frames.send("free", 1, body=bytes(60_000)))
        way.connections[0].guard(lambda: None)
        assert not lending.lent
        for opaque in range(3):
            link.peers[BROKER].send(frames.answer(opaque))
            await wait_all_tasks_blocked()
            way.read()
        assert link.received[CLIENT].count(b'"opaque"') == 3
        nursery.cancel_scope.cancel()
