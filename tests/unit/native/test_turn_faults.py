"""A fault of the compiled turn ends the connection that it served, and no other."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
from both_ways import BROKER, CLIENT, Way
from playbook import frames
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.compiled import COMPILED
from limiter.rules.rule_set import RuleSet
from proxy.protocols.rocketmq import PROTOCOL, compiled

#: More than a turn keeps: it panics.
TOO_MUCH = bytes(100_000)


async def says(way: Way, link: int, data: bytes) -> None:
    way.links[link].peers[CLIENT].send(data)
    await wait_all_tasks_blocked()
    way.read()


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
            way.open(("127.0.0.1", 0))
            await wait_all_tasks_blocked()
            way.accept()
            await says(way, link, b"".join(map(frames.heartbeat, range(20))))
        assert len(way.connections) == 2
        monkeypatch.setattr(compiled, "COMPILED", SimpleNamespace(**vars(COMPILED) | {"lend_rocketmq": lend}))
        for _ in range(2):
            await says(way, 0, frames.heartbeat())
        assert way.path.server.counters.closed == {("main", "internal_error"): 1}
        assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["connection failed"]
        assert "panicked" in repr(logged)
        asked = frames.send("orders", 100)
        before = len(way.links[1].received[BROKER])
        await says(way, 1, asked)
        assert bytes(way.links[1].received[BROKER][before:]) == asked
        nursery.cancel_scope.cancel()
