"""The tests' external plug-in package, used like an installed one."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import pytest

from admin.config.faults import FaultsError, read
from proxy.control import LimitCommandReply, ListedLimit
from proxy.deciding.pipeline import HandlerConfig, HandlerPlugin
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.protocols.base import Protocol
from proxy.stats.question import Question
from proxy.stats.snapshot import ClientDescription

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import StartRig


def entry_point(group: str, name: str) -> EntryPoint:
    for entry in entry_points(group=group, name=name):
        return entry
    pytest.fail("the plug-in package of the tests is missing: .venv/bin/pip install -e tests/plugin")


@pytest.fixture
def deny_names() -> HandlerPlugin:
    plugin: HandlerPlugin = entry_point("sluice.handlers", "deny_names").load()
    return plugin


@pytest.mark.parametrize(
    ("group", "name", "kind", "distribution"),
    [
        ("sluice.protocols", "rocketmq", Protocol, "sluice-proxy"),
        ("sluice.protocols", "lines", Protocol, "sluice-lines"),
        ("sluice.handlers", "rate_limit", HandlerPlugin, "sluice-proxy"),
        ("sluice.handlers", "deny_names", HandlerPlugin, "sluice-lines"),
    ],
)
def test_entry_point_leads_to_a_plug_in_of_that_name(group: str, name: str, kind: type[Any], distribution: str) -> None:
    entry = entry_point(group, name)
    assert entry.dist is not None
    assert entry.dist.name == distribution
    plugin = entry.load()
    assert isinstance(plugin, kind)
    assert plugin.name == name


class TestOptions:
    def test_are_read_into_the_types_that_the_plug_ins_declare(
        self, lines: Protocol, deny_names: HandlerPlugin
    ) -> None:
        options = read(lines.options, {"later_ms": 5})
        assert options == lines.options(later_ms=5, longest_bytes=1000)
        assert read(deny_names.options, {"names": ["x"]}).names == ["x"]
        assert read(RATE_LIMIT.options, {}) == RateLimitOptions()

    @pytest.mark.parametrize(
        ("given", "place"),
        [({"later_ms": "soon"}, "later_ms"), ({"latter_ms": 5}, "latter_ms"), ({"longest_bytes": None}, "longest")],
    )
    def test_of_a_protocol_are_validated(self, lines: Protocol, given: dict[str, object], place: str) -> None:
        with pytest.raises(FaultsError, match=place):
            read(lines.options, given)

    @pytest.mark.parametrize("given", [{}, {"names": "x"}, {"names": [1]}, {"names": [], "more": 1}])
    def test_of_a_handler_are_validated(self, deny_names: HandlerPlugin, given: dict[str, object]) -> None:
        with pytest.raises(FaultsError, match=r"names|more"):
            read(deny_names.options, given)


async def test_external_handler_and_rate_limiter_decide_together(
    start_rig: StartRig, deny_names: HandlerPlugin
) -> None:
    """The external one comes first, so its refusals are not charged."""
    handlers = [
        HandlerConfig(deny_names, deny_names.options(names=["secret"])),
        HandlerConfig(RATE_LIMIT, RateLimitOptions()),
    ]
    rig = await start_rig("line_topic:secret=1/s", "line_topic:a=1/s", handlers=handlers)
    client, broker = await rig.connect()
    await client.send(b"secret 1\na 1\nsecret 2\na 2\nb 1\n")
    assert await broker.receive(8) == b"a 1\nb 1\n"
    assert [await client.receive_line() for _ in range(2)] == [b"BUSY secret 0\n"] * 2
    assert (await client.receive_line()).startswith(b"BUSY a ")
    (limit,) = (await rig.path.explain(Question("line_topic", "secret"))).limits
    # The second handler never saw requests refused by the first.
    assert limit.state is None


async def test_options_reach_the_session(start_rig: StartRig, lines: Protocol) -> None:
    rig = await start_rig(options=lines.options(longest_bytes=5))
    client, broker = await rig.connect()
    await client.send(b"free 1\nmuch too long")
    assert await broker.receive_to_end() == b"free 1\n"
    assert await client.receive_to_end() == b""
    client.end()
    broker.end()
    await rig.until_closed("long_line")


async def test_session_commands_are_answered_while_they_are_served(start_rig: StartRig) -> None:
    rig = await start_rig()
    client, broker = await rig.connect()
    await client.send(b"limits\n")
    assert await broker.receive(7) == b"limits\n"
    async with rig.path.limit_commands() as commands:
        await client.send(b"limits\nother 1\n")
        assert await broker.receive(8) == b"other 1\n"
        command = await anext(commands)
        assert (command.verb, command.listener) == ("view_limits", "main")
        await rig.path.reply(command.id, LimitCommandReply(limits=(ListedLimit("line_topic", "a", 5.0, 0, 0),)))
        assert await client.receive_line() == b"LIMITS a 5.0\n"


async def test_client_description_of_a_session_is_shown(start_rig: StartRig) -> None:
    rig = await start_rig()
    client, broker = await rig.connect()
    await client.send(b"i-am me\na 1\n")
    assert await broker.receive(12) == b"i-am me\na 1\n"
    (connection,) = await rig.path.connections()
    assert connection.client == ClientDescription("me")
    assert connection.requests_total == 2


async def test_built_in_rules_of_a_protocol_are_data_that_a_rule_set_takes(
    start_rig: StartRig, lines: Protocol
) -> None:
    rig = await start_rig("line_topic:*=1/s", rules=lines.default_rules)
    client, broker = await rig.connect()
    await client.send(b"free 1\nfree 2\nother 1\nother 2\n")
    assert await broker.receive(22) == b"free 1\nfree 2\nother 1\n"
