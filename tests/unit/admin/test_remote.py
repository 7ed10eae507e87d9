from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from admin import remote
from admin.composition import compose
from admin.live.desk import Desk
from admin.live.store import MemoryStore
from admin.sources import Flags, load
from limiter.resource import Resource
from limiter.rules import RuleSet
from proxy.control import RemoteCommand
from proxy.snapshot import ResourceState


def desk(*limits: str, file: str | None = None) -> Desk:
    flags = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"], limits=limits)
    return Desk(compose(load(file, {}, flags)).rulebook, MemoryStore())


async def _apply(_: RuleSet) -> None:
    await trio.lowlevel.checkpoint()


def update(name: str, rate_per_s: float, kind: str = "retry_group") -> RemoteCommand:
    return RemoteCommand(1, "main", "10.0.0.9:5", "update_limit", kind, name, rate_per_s)


async def test_an_update_changes_the_rate_keeps_the_rest_and_is_recorded(nursery: trio.Nursery) -> None:
    live = desk("retry_group:*=5/s")
    await nursery.start(live.run, _apply)
    assert (await remote.update(live, update("billing", 9))).error == ""
    rule = live.rule_set.match(Resource("retry_group", "billing"))
    assert (rule.rate_per_s, rule.action) == (9, "delay")
    (change,) = await live.audit()
    assert (change.by, change.address, change.target) == ("remote", "10.0.0.9:5", "limits/retry_group/billing")
    assert "listener main" in change.reason


async def test_a_wrong_update_is_answered_with_what_is_wrong(nursery: trio.Nursery) -> None:
    live = desk()
    await nursery.start(live.run, _apply)
    for command, what in (
        (update("x", -1), "rate"),
        (update("%RETRY%x", 1), "name"),
        (update("x", 1, "queue"), "kind"),
    ):
        reply = await remote.update(live, command)
        assert what in reply.error
        assert reply.version == live.rule_set.version
    assert await live.audit() == ()


async def test_a_fault_is_answered_and_commands_go_on(nursery: trio.Nursery, data_path: Any) -> None:
    live = desk("topic:*=5/s")
    broken = True

    async def apply(_: RuleSet) -> None:
        await trio.lowlevel.checkpoint()
        if broken:
            raise RuntimeError("no data path")

    await nursery.start(live.run, apply)
    await nursery.start(remote.answer, data_path, live)
    with structlog.testing.capture_logs() as logged:
        for number in (1, 2):
            await data_path.ask.send(update("orders", 9, "topic"))
            while len(data_path.replies) < number:
                await trio.testing.wait_all_tasks_blocked(0.01)
            broken = False
    assert [reply.error for _, reply in data_path.replies] == ["internal error; Sluice's log has the reason", ""]
    assert "a remote command failed" in [entry["event"] for entry in logged]


async def test_the_view_is_of_the_rules_that_hold_now_and_of_topics_only(data_path: Any, tmp_path: Path) -> None:
    text = '[[limits]]\nkind = "topic"\nname = "n*"\nrate = 7\nbetween = "00:00-12:00"\n[defaults.topic]\nrate = 5\n'
    (tmp_path / "sluice.toml").write_text(text, encoding="utf-8")
    live = desk(file=str(tmp_path / "sluice.toml"))
    states = [("topic", "night"), ("topic", "_other"), ("subscription", "s")]
    data_path.resources_now = [ResourceState(*state, None, {}, None, False, 0, None, 0) for state in states]
    for hour, rate in ((11, 7), (13, 5)):
        wall_ns = int(datetime(2026, 11, 21, hour, tzinfo=UTC).timestamp()) * 1_000_000_000
        reply = await remote.view(data_path, live, 5, wall_ns - 5)
        assert {limit.name: limit.rate_per_s for limit in reply.limits} == {"night": rate, "_unparsable": 5}


async def test_a_view_that_is_cancelled_closes_what_it_goes_through(
    data_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = False

    async def resources() -> AsyncGenerator[ResourceState, None]:
        nonlocal closed
        try:
            while True:
                # It is cancelled while it looks at what it was handed.
                scope.cancel()
                yield ResourceState("topic", "orders", None, {}, None, False, 0, None, 0)
        finally:
            closed = True

    monkeypatch.setattr("proxy.pace.STRETCH_NS", 0)
    data_path.resources = resources
    with trio.CancelScope() as scope:
        await remote.view(data_path, desk("topic:*=5/s"), 0, 0)
    assert closed
