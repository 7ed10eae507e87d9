from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
import trio

from admin.config.sources import Flags, load
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.run import limit_commands
from admin.run.composition import compose
from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet
from proxy.control import LimitCommand, LimitCommandReply
from proxy.deciding.batch import ConnectionInfo
from proxy.net.limit_commands import LimitCommands
from proxy.protocols.base import CommandRequest
from proxy.stats.snapshot import ResourceState


def edits(*limits: str, file: str | None = None) -> EditService:
    flags = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"], limits=limits)
    return EditService(compose(load(file, {}, flags)).rulebook, Store(None))


def update(name: str, rate_per_s: float, kind: str = "retry_group") -> LimitCommand:
    return LimitCommand(1, "main", "10.0.0.9:5", "update_limit", kind, name, rate_per_s)


async def test_an_update_changes_the_rate_keeps_the_rest_and_is_recorded(nursery: trio.Nursery, data_path: Any) -> None:
    live = edits("retry_group:*=5/s")
    await nursery.start(live.run, data_path)
    assert (await limit_commands.update(live, update("billing", 9))).error == ""
    rule = live.rule_set.match(Resource("retry_group", "billing"))
    assert (rule.rate_per_s, rule.action) == (9, "delay")
    (change,) = await live.audit()
    assert (change.by, change.address, change.target) == ("remote", "10.0.0.9:5", "limits/retry_group/billing")
    assert "listener main" in change.reason


async def test_a_wrong_update_is_answered_with_the_fault(nursery: trio.Nursery, data_path: Any) -> None:
    live = edits()
    await nursery.start(live.run, data_path)
    for command, what in (
        (update("x", -1), "rate"),
        (update("%RETRY%x", 1), "name"),
        (update("x", 1, "queue"), "kind"),
    ):
        reply = await limit_commands.update(live, command)
        assert what in reply.error
        assert reply.version == live.rule_set.version
    assert await live.audit() == ()


async def test_a_fault_is_answered_and_commands_continue(nursery: trio.Nursery, data_path: Any) -> None:
    live = edits("topic:*=5/s")
    broken = True

    async def apply(_: RuleSet) -> None:
        await trio.lowlevel.checkpoint()
        if broken:
            raise RuntimeError("no data path")

    data_path.apply = apply
    await nursery.start(live.run, data_path)
    await nursery.start(limit_commands.answer, data_path, live)
    with structlog.testing.capture_logs() as logged:
        for number in (1, 2):
            await data_path.ask.send(update("orders", 9, "topic"))
            while len(data_path.replies) < number:
                await trio.testing.wait_all_tasks_blocked(0.01)
            broken = False
    assert [reply.error for _, reply in data_path.replies] == ["internal error; see Sluice's log", ""]
    assert "remote limit command failed" in [entry["event"] for entry in logged]


async def test_changes_are_made_in_the_order_in_which_they_came_and_a_view_sees_those_before_it(
    nursery: trio.Nursery, data_path: Any
) -> None:
    live, commands = edits("topic:*=5/s"), LimitCommands()
    replies: list[LimitCommandReply] = []
    answered = trio.Event()

    async def reply(command_id: int, reply: LimitCommandReply) -> None:
        await trio.lowlevel.checkpoint()
        commands.reply(command_id, reply)

    def on_view(_: CommandRequest, reply: LimitCommandReply) -> None:
        replies.append(reply)
        answered.set()

    data_path.limit_commands, data_path.reply = commands.take, reply
    await nursery.start(live.run, data_path)
    await nursery.start(limit_commands.answer, data_path, live)
    client = ConnectionInfo(1, "main", "main", "10.0.0.9:5", "10.0.0.9")
    # All in one turn of the event loop, as from one read of a connection.
    for rate in range(1, 11):
        commands.ask(client, CommandRequest("update_limit", "topic", "orders", rate), lambda *_: None)
    commands.ask(client, CommandRequest("view_limits"), on_view)
    await answered.wait()
    assert [(change.new or {})["rate"] for change in await live.audit()] == list(range(10, 0, -1))
    assert {limit.name: limit.rate_per_s for limit in replies[0].limits}["orders"] == 10


async def test_the_view_is_of_the_rules_that_hold_now_and_of_topics_only(data_path: Any, tmp_path: Path) -> None:
    text = '[[limits]]\nkind = "topic"\nname = "n*"\nrate = 7\nbetween = "00:00-12:00"\n[defaults.topic]\nrate = 5\n'
    (tmp_path / "sluice.toml").write_text(text, encoding="utf-8")
    live = edits(file=str(tmp_path / "sluice.toml"))
    states = [("topic", "night"), ("topic", "_other"), ("subscription", "s")]
    data_path.resources_now = [ResourceState(kind=kind, name=name, counts=None) for kind, name in states]
    for hour, rate in ((11, 7), (13, 5)):
        wall_ns = int(datetime(2026, 11, 21, hour, tzinfo=UTC).timestamp()) * 1_000_000_000
        reply = await limit_commands.view(data_path, live, 5, wall_ns - 5)
        assert {limit.name: limit.rate_per_s for limit in reply.limits} == {"night": rate}
