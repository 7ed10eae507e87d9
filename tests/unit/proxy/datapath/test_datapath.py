from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
from playbook import frames
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.counting.accounts import Usage
from limiter.counting.rejections import Amount, Rejection, ResourceSecond
from limiter.rules.limit_text import parse_limit
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours
from limiter.waiting.holding import Bounds
from proxy.common.threads import on_thread
from proxy.control import Cleared
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.batch import NO_VERDICTS, Batch, Side, Verdicts
from proxy.deciding.pipeline import Handler, HandlerConfig, HandlerPlugin, PipelineError
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.net import sockets
from proxy.net.server import ListenerConfig
from proxy.net.sockets import format_address
from proxy.protocols.base import Protocol, Session, SessionContext
from proxy.protocols.rocketmq import PROTOCOL
from proxy.stats.question import Question
from proxy.stats.snapshot import Held, LaneState, Limiters, ListenerState, ResourceState

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Rig, ScriptedBroker, StartRig

KIND = "line_topic"
HOST = "127.0.0.1"


def resource(name: str) -> Resource:
    return Resource(KIND, name)


def next_rules(rig: Rig, *limits: str, enabled: bool = True) -> RuleSet:
    return rig.path._rule_set.replace(rules=map(parse_limit, limits), enabled=enabled)


async def until_held(rig: Rig, requests: int) -> None:
    for _ in range(1000):
        if (await rig.snapshot()).held.requests == requests:
            return
        await wait_all_tasks_blocked()
    pytest.fail(f"never were {requests} requests held")


class TestBuilding:
    async def test_handlers_that_make_no_pipeline_are_an_error(self, lines: Protocol) -> None:
        twice = (HandlerConfig(RATE_LIMIT, RateLimitOptions()),) * 2
        with pytest.raises(PipelineError, match="'rate_limit' appears twice in the pipeline"):
            LocalDataPath(DataPathConfig((), twice, RuleSet()))

    async def test_sessions_know_the_configured_bounds_on_held_requests(self) -> None:
        handler = HandlerConfig(RATE_LIMIT, RateLimitOptions(max_held=7, max_held_per_connection=3))
        path = LocalDataPath(DataPathConfig((), (handler,), RuleSet()))
        assert path._services.held_bounds() == Bounds(requests=7, requests_per_connection=3)

    async def test_cancelling_gives_the_address_back_and_closes_the_connections(
        self, start_rig: StartRig, lines: Protocol, broker: ScriptedBroker, reserved_address: tuple[str, int]
    ) -> None:
        config = ListenerConfig("main", lines, lines.options(), reserved_address, broker.address)
        rig = await start_rig(listeners=(config,))
        client, broker_end = await rig.connect()
        rig.scope.cancel()
        assert await client.receive_to_end() == b""
        assert await broker_end.receive_to_end() == b""
        await wait_all_tasks_blocked()
        socket.create_server(reserved_address).close()


class TestSnapshot:
    async def test_of_a_data_path_without_traffic_is_all_zeros(self, rig: Rig) -> None:
        snapshot = await rig.snapshot()
        assert snapshot.rule_set_version == 1
        assert snapshot.limiting
        assert not snapshot.draining
        assert {counts.requests["pass"] for counts in snapshot.resources.values()} == {0}
        assert snapshot.rules == {}
        assert snapshot.held == Held()
        assert snapshot.usage == {}
        assert snapshot.bypassed == {("rate_limit", "error"): 0}
        assert snapshot.listeners == (
            ListenerState("main", format_address(rig.address), format_address(rig.broker.address), 0, listening=True),
        )
        assert snapshot.connections_total == {"main": 0}
        assert snapshot.closed_total == {}
        assert snapshot.frames_total == {"client": 0, "broker": 0}
        assert snapshot.bytes_total == {"client": 0, "broker": 0}
        assert snapshot.undecodable_total == {}
        assert snapshot.lanes == (LaneState("rate_limit", 0, 10_000, 0),)
        assert snapshot.limiters == Limiters()

    async def test_shows_the_outcomes_of_traffic(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        await client.send(b"a 1\na 2\na 3\nfree 1\nzero 1\n")
        await broker.receive(15)
        snapshot = await rig.snapshot()
        assert await rig.requests("a") == {"pass": 2, "refuse": 1}
        assert snapshot.resources[KIND, "zero"].messages["refuse"] == 1
        assert {name: counts.requests["refuse"] for name, counts in snapshot.rules.items()} == {
            f"{KIND}:a": 1,
            f"{KIND}:zero": 1,
        }
        assert snapshot.resources[KIND, "free"].requests["pass"] == 1
        assert (snapshot.listeners[0].connections, snapshot.connections_total) == (1, {"main": 1})
        assert snapshot.frames_total["client"] == 5
        assert snapshot.limiters.live == 2

    async def test_names_beyond_the_label_cap_are_counted_together(self, start_rig: StartRig) -> None:
        rig = await start_rig("line_topic:vip=1/s", max_resource_labels=3)
        client, broker = await rig.connect()
        sent = b"".join(b"topic%d x\n" % number for number in range(50)) + b"vip x\n"
        await client.send(sent)
        assert await broker.receive(len(sent)) == sent
        resources = (await rig.snapshot()).resources
        assert {name for _, name in resources} == {"vip", "topic0", "topic1", "topic2", "_other"}
        assert resources[KIND, "_other"].requests["pass"] == 47
        assert resources[KIND, "vip"].requests["pass"] == 1

    async def test_shows_held_requests(self, start_rig: StartRig, mock_clock: MockClock) -> None:
        rig = await start_rig(rules=[Rule(KIND, "slow", 1, action="delay")])
        client, broker = await rig.connect()
        await client.send(b"slow 1\nslow 2\n")
        await broker.receive_line()
        await until_held(rig, 1)
        assert (await rig.snapshot()).held.bytes == len(b"slow 2\n")
        assert await rig.requests("slow") == {"pass": 1}
        mock_clock.jump(1.5)
        assert await broker.receive_line() == b"slow 2\n"
        snapshot = await rig.snapshot()
        assert snapshot.held == Held()
        assert snapshot.rules[f"{KIND}:slow"].requests == {"refuse": 0, "shadow": 0, "hold": 1}
        assert await rig.requests("slow") == {"pass": 2}

    async def test_shows_how_much_of_the_limits_was_used(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker = await rig.connect()
        await client.send(b"a 1\nfree 1\n")
        await broker.receive(11)
        mock_clock.jump(1)
        usage = (await rig.snapshot()).usage
        assert usage == {(KIND, "a", "messages"): Usage(0.5, 0.05, 0.5 / 60)}
        mock_clock.jump(61)
        assert (await rig.snapshot()).usage == {}

    async def test_shows_the_most_used_limits_beyond_the_label_cap(
        self, start_rig: StartRig, mock_clock: MockClock
    ) -> None:
        rig = await start_rig(f"{KIND}:*=100/s", f"{KIND}:vip=100/s", max_resource_labels=2)
        client, broker = await rig.connect()
        sent = b"".join(b"t%d x\n" % number * (number + 1) for number in range(5)) + b"vip x\n"
        await client.send(sent)
        await broker.receive(len(sent))
        mock_clock.jump(1)
        usage = (await rig.snapshot()).usage
        assert {name: used.last_1s for (_, name, _), used in usage.items()} == {"vip": 0.01, "t4": 0.05, "t3": 0.04}


class TestConnections:
    async def test_are_listed_with_their_actions(self, rig: Rig, mock_clock: MockClock) -> None:
        mock_clock.jump(3)
        client, broker = await rig.connect()
        await client.send(b"free 1\nfree 2\n")
        await broker.receive(14)
        await broker.send(b"ok\n")
        await client.receive_line()
        (state,) = await rig.path.connections()
        assert state.id == 1
        assert state.listener == "main"
        assert state.peer == format_address(client.sock.getsockname())
        assert state.age_s == 0
        assert state.bytes_total == {"client": 14, "broker": 3}
        assert state.in_flight == 1

    async def test_can_be_closed_one_by_one(self, rig: Rig, log: list[Any]) -> None:
        first, first_broker = await rig.connect()
        second, second_broker = await rig.connect()
        (doomed,) = [
            state.id for state in await rig.path.connections() if state.peer == format_address(first.sock.getsockname())
        ]
        assert await rig.path.close_connection(doomed, "misbehaves")
        assert await first.receive_to_end() == b""
        assert await first_broker.receive_to_end() == b""
        await rig.until_closed("closed_by_operator")
        assert log[0]["detail"] == "misbehaves"
        assert not await rig.path.close_connection(doomed, "again")
        await second.send(b"free 1\n")
        assert await second_broker.receive_line() == b"free 1\n"


class TestExplain:
    async def test_names_the_rule_and_the_live_state(self, rig: Rig) -> None:
        client, _ = await rig.connect()
        (limit,) = (await rig.path.explain(Question(KIND, "a"))).limits
        assert limit.rule.name == f"{KIND}:a"
        assert limit.state is None
        await client.send(b"a 1\na 2\na 3\n")
        await client.receive_line()
        (limit,) = (await rig.path.explain(Question(KIND, "a"))).limits
        assert limit.state is not None
        assert limit.state.stored_permits == 0
        assert limit.state.open
        assert limit.state.wait_s > 0
        assert limit.state.last_refused_s == 0


class TestApply:
    async def test_takes_effect_on_the_very_next_batch(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        assert not await rig.passes(client, broker, b"zero x")
        assert await rig.passes(client, broker, b"free x")
        await rig.path.apply(next_rules(rig, "line_topic:zero=0/s", "line_topic:free=0/s"))
        assert not await rig.passes(client, broker, b"free x")
        assert (await rig.snapshot()).rule_set_version == 2

    async def test_rules_that_cannot_be_put_in_force_leave_those_before_and_the_next_ones_hold(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("as the test wants it")

        with monkeypatch.context() as failing:
            failing.setattr(rig.path._limits, "swap", fail)
            with pytest.raises(RuntimeError):
                await rig.path.apply(next_rules(rig, "line_topic:free=0/s"))
        client, broker = await rig.connect()
        assert await rig.passes(client, broker, b"free x")
        await rig.path.apply(next_rules(rig, "line_topic:free=0/s"))
        assert not await rig.passes(client, broker, b"free x")

    async def test_a_reset_fills_the_buckets_and_lists_the_cleared_state(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        for passes in (True, True, False):
            assert await rig.passes(client, broker, b"a 1") is passes
        cleared = await rig.path.reset("line_topic", "a")
        assert (cleared.limiters, cleared.open_breakers) == (1, 1)
        assert await rig.passes(client, broker, b"a 2")
        assert await rig.path.reset("line_topic", "*") == Cleared()

    async def test_global_switch_turns_all_limiting_off_and_on(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        limits = ("line_topic:a=2/s", "line_topic:zero=0/s")
        await rig.path.apply(next_rules(rig, *limits, enabled=False))
        await client.send(b"zero 1\n" + b"a x\n" * 10)
        assert await broker.receive(47) == b"zero 1\n" + b"a x\n" * 10
        assert not (await rig.snapshot()).limiting
        await rig.path.apply(next_rules(rig, *limits))
        assert not await rig.passes(client, broker, b"zero 2")

    @pytest.mark.parametrize("version", [0, 1])
    async def test_version_that_is_not_newer_is_refused(self, rig: Rig, version: int) -> None:
        with pytest.raises(ValueError, match=f"rule set version {version} is not newer than the active version 1"):
            await rig.path.apply(RuleSet(version=version))
        assert (await rig.snapshot()).rule_set_version == 1

    async def test_names_of_new_exact_rules_are_distinguished_from_then_on(
        self, start_rig: StartRig, mock_clock: MockClock
    ) -> None:
        rig = await start_rig("line_topic:zero=0/s", max_resource_labels=0)
        await rig.path.apply(next_rules(rig, "line_topic:zero=0/s", "line_topic:new=5/s"))
        # Advance the clock, so that the edit is visible.
        mock_clock.jump(1)
        client, broker = await rig.connect()
        assert await rig.passes(client, broker, b"new 1")
        assert await rig.passes(client, broker, b"old 1")
        resources = (await rig.snapshot()).resources
        assert {name for _, name in resources} == {"zero", "new", "_other"}
        assert resources[KIND, "new"].requests["pass"] == 1


NINE_TO_SIX = read_hours("09:00-18:00", (), "UTC")
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


class WallClock:
    """A wall clock that follows the mock clock and can also jump."""

    def __init__(self, mock_clock: MockClock, hour: float) -> None:
        self._mock_clock = mock_clock
        self.ahead = timedelta(hours=hour)

    def __call__(self) -> datetime:
        return MONDAY + self.ahead + timedelta(seconds=self._mock_clock.current_time())


@pytest.fixture
def eight(mock_clock: MockClock) -> WallClock:
    """A wall clock at eight in the morning."""
    return WallClock(mock_clock, 8)


def by_day(name: str = "a", rate_per_s: float = 0) -> Rule:
    return Rule(KIND, name, rate_per_s, hours=NINE_TO_SIX)


async def pass_time(mock_clock: MockClock, seconds: float) -> None:
    """Let time pass, with all timers."""
    mock_clock.jump(seconds)
    await wait_all_tasks_blocked()


def in_force(rig: Rig) -> set[str]:
    return {str(rule) for rule in rig.path._limits.rule_set.in_force}


class TestHours:
    async def test_rule_holds_from_the_start_if_it_is_time(self, start_rig: StartRig, mock_clock: MockClock) -> None:
        rig = await start_rig(rules=[by_day("new")], wall_clock=WallClock(mock_clock, 12))
        client, broker = await rig.connect()
        assert not await rig.passes(client, broker, b"new 1")

    async def test_rule_is_switched_on_and_off_by_the_clock(
        self, start_rig: StartRig, mock_clock: MockClock, eight: WallClock, log: list[Any]
    ) -> None:
        rig = await start_rig(f"{KIND}:a=1000/s", rules=[by_day()], wall_clock=eight)
        client, broker = await rig.connect()
        assert await rig.passes(client, broker, b"a 1")
        await pass_time(mock_clock, 3600 - 1)
        assert await rig.passes(client, broker, b"a 2")
        await pass_time(mock_clock, 1)
        assert not await rig.passes(client, broker, b"a 3")
        await pass_time(mock_clock, 9 * 3600)
        await pass_time(mock_clock, 1)
        assert await rig.passes(client, broker, b"a 4")
        rule = f"{KIND}:a=0/s (09:00-18:00 UTC)"
        assert [entry for entry in log if entry["event"] == "scheduled rules switched"] == [
            {"event": "scheduled rules switched", "log_level": "info", "activated": [rule], "deactivated": []},
            {"event": "scheduled rules switched", "log_level": "info", "activated": [], "deactivated": [rule]},
        ]
        assert (await rig.snapshot()).rule_set_version == 1

    @pytest.mark.parametrize("hours", [10, -10])
    async def test_wall_clock_that_jumps_is_noticed_within_half_a_minute(
        self, start_rig: StartRig, mock_clock: MockClock, hours: int
    ) -> None:
        wall_clock = WallClock(mock_clock, 12)
        rig = await start_rig(rules=[by_day("new")], wall_clock=wall_clock)
        await wait_all_tasks_blocked()
        wall_clock.ahead += timedelta(hours=hours)
        await pass_time(mock_clock, 29)
        assert f"{KIND}:new=0/s" in in_force(rig)
        await pass_time(mock_clock, 1)
        assert f"{KIND}:new=0/s" not in in_force(rig)

    async def test_slightly_late_wall_clock_is_awaited(
        self, start_rig: StartRig, mock_clock: MockClock, eight: WallClock
    ) -> None:
        rig = await start_rig(rules=[by_day("new")], wall_clock=eight)
        await wait_all_tasks_blocked()
        eight.ahead -= timedelta(milliseconds=10)
        await pass_time(mock_clock, 3600)
        assert f"{KIND}:new=0/s" not in in_force(rig)
        await pass_time(mock_clock, 0.05)
        assert f"{KIND}:new=0/s" in in_force(rig)

    async def test_the_clock_is_read_no_more_often_than_needed(
        self, start_rig: StartRig, mock_clock: MockClock, eight: WallClock
    ) -> None:
        looks = 0

        def wall_clock() -> datetime:
            nonlocal looks
            looks += 1
            return eight()

        rig = await start_rig(rules=[by_day("new")], wall_clock=wall_clock)
        await wait_all_tasks_blocked()
        looks = 0
        for _ in range(29):
            await pass_time(mock_clock, 1)
        assert looks == 0
        await rig.path.apply(next_rules(rig, f"{KIND}:a=2/s"))
        await wait_all_tasks_blocked()
        looks = 0
        await pass_time(mock_clock, 24 * 3600)
        assert looks == 0

    async def test_rule_set_that_is_applied_is_that_of_the_moment(
        self, rig: Rig, start_rig: StartRig, mock_clock: MockClock, eight: WallClock
    ) -> None:
        rig = await start_rig(wall_clock=eight)
        await rig.path.apply(rig.path._rule_set.replace(rules=[by_day("free"), by_day("other")]))
        assert in_force(rig) == set()
        await pass_time(mock_clock, 3600)
        assert in_force(rig) == {f"{KIND}:free=0/s", f"{KIND}:other=0/s"}
        # The next version is not made from an outdated one.
        await rig.path.apply(rig.path._rule_set.replace(enabled=False))
        await pass_time(mock_clock, 12 * 3600)
        snapshot = await rig.snapshot()
        assert (snapshot.rule_set_version, snapshot.limiting, in_force(rig)) == (3, False, set())


class TestDrain:
    async def test_handlers_get_the_end_with_time_left_to_answer(
        self, start_rig: StartRig, mock_clock: MockClock
    ) -> None:
        told: list[int] = []

        class Spy(Handler):
            def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
                return NO_VERDICTS

            def drain(self, ends_ns: int) -> None:
                told.append(ends_ns)

        spy = HandlerConfig(HandlerPlugin("spy", dict, lambda *_: Spy()), {})
        rig = await start_rig(handlers=(spy,))
        mock_clock.jump(1)
        await rig.path.drain(10)
        await rig.path.drain(0.5)
        assert told == [10_500_000_000, 1_250_000_000]

    async def test_held_request_is_answered_before_the_end(
        self, start_rig: StartRig, mock_clock: MockClock, nursery: trio.Nursery
    ) -> None:
        rig = await start_rig(rules=[Rule(KIND, "slow", 0.1, burst_s=10, action="delay", max_delay_s=60)])
        client, broker = await rig.connect()
        assert await rig.passes(client, broker, b"slow 1")
        # On the first fraction of a permit one more passes, and leaves a debt of ten seconds.
        mock_clock.jump(0.1)
        assert await rig.passes(client, broker, b"slow 2")
        await broker.send(b"ok\nok\n")
        assert await client.receive(6) == b"ok\nok\n"
        await client.send(b"slow 3\n")
        await until_held(rig, 1)
        nursery.start_soon(rig.path.drain, 5)
        await wait_all_tasks_blocked()
        assert client.pending() == b""
        mock_clock.jump(4.6)
        assert (await client.receive_line()).startswith(b"BUSY slow")
        assert await client.receive_to_end() == b""
        client.end()
        broker.end()
        await rig.until_closed("drained")


async def resources(rig: Rig, since_ns: int = 0) -> list[ResourceState]:
    return await on_thread(list, rig.path.resources(since_ns))


class TestResources:
    @pytest.mark.parametrize("how", ["snapshot", "resources"])
    async def test_looking_at_many_gives_others_their_turns(
        self,
        start_rig: StartRig,
        nursery: trio.Nursery,
        mock_clock: MockClock,
        monkeypatch: pytest.MonkeyPatch,
        how: str,
    ) -> None:
        monkeypatch.setattr("proxy.common.threads.PIECE_NS", 0)
        rig = await start_rig("line_topic:*=1000/s")
        client, broker = await rig.connect()
        sent = b"".join(b"t%d x\n" % number for number in range(1000))
        await client.send(sent)
        await broker.receive(len(sent))
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(count_turns)
        if how == "resources":
            assert len(await resources(rig)) == 1000
        else:
            assert len((await rig.snapshot()).usage) == 1000
        assert turns >= 999

    async def test_resources_are_reported_with_counts_use_and_state(
        self, start_rig: StartRig, mock_clock: MockClock
    ) -> None:
        rig = await start_rig("line_topic:*=2/s", "client:*=100/s", "line_topic:free=unlimited")
        client, broker = await rig.connect()
        await client.send(b"a 1\na 2\na 3\nfree 1\n")
        await broker.receive(15)
        mock_clock.jump(0.25)
        states = {(each.kind, each.name): each for each in await resources(rig)}
        assert states.keys() == {("line_topic", "a"), ("line_topic", "free"), ("client", "127.0.0.1")}
        a, free, scope = states["line_topic", "a"], states["line_topic", "free"], states["client", "127.0.0.1"]
        assert a.counts is not None
        assert (a.counts.requests["pass"], a.counts.requests["refuse"]) == (2, 1)
        assert (a.open, a.wait_us > 0, a.last_wait_us > 0, a.last_refused_ns is not None) == (True, True, True, True)
        assert (free.stored_permits, free.open, free.usage) == (None, False, {})
        assert (scope.counts, scope.stored_permits) == (None, 100)
        later_ns = round(mock_clock.current_time() * 1e9)
        mock_clock.jump(1)
        await client.send(b"free 2\n")
        await broker.receive(7)
        assert {each.name for each in await resources(rig, later_ns)} == {"free", "127.0.0.1"}
        used = [each.usage["messages"].last_10s for each in await resources(rig) if each.name == "a"]
        assert used == [0.1]

    async def test_a_refusal_by_another_rule_is_shown_at_the_resource(self, start_rig: StartRig) -> None:
        rig = await start_rig("line_topic:*=1000/s", "client:127.0.0.1=2/s")
        client, broker = await rig.connect()
        await client.send(b"a 1\na 2\na 3\n")
        await broker.receive(8)
        states = {(each.kind, each.name): each for each in await resources(rig)}
        a, scope = states["line_topic", "a"], states["client", "127.0.0.1"]
        assert (a.last_refused_rule, a.open, a.wait_us) == ("client:127.0.0.1", False, 0)
        assert (a.last_refused_ns, a.last_wait_us) == (scope.last_refused_ns, scope.last_wait_us)
        assert a.last_wait_us > 0
        assert (a.rule, a.rule_counts) == ("", None)
        assert scope.rule == "client:127.0.0.1"
        assert scope.rule_counts is not None
        assert scope.rule_counts.messages["refuse"] == 1

    async def test_shadow_refusals_are_counted_separately(self, start_rig: StartRig) -> None:
        rules = [Rule(KIND, "dark", 1, action="shadow"), Rule(KIND, "slow", 1, action="delay")]
        rig = await start_rig(rules=rules)
        client, broker = await rig.connect()
        await client.send(b"dark 1\ndark 2\ndark 3\nslow 1\nslow 2\n")
        await until_held(rig, 1)
        await broker.receive(28)
        states = {each.name: each for each in await resources(rig)}
        a, b = states["dark"], states["slow"]
        assert (a.open, a.wait_us, a.last_refused_ns, a.last_held_ns) == (False, 0, None, None)
        assert a.last_shadowed_ns is not None
        assert b.last_held_ns is not None
        assert (b.last_refused_ns, b.last_shadowed_ns) == (None, None)


class TestProbe:
    async def test_names_accepting_brokers(
        self, start_rig: StartRig, lines: Protocol, broker: ScriptedBroker, reserved_address: tuple[str, int]
    ) -> None:
        rig = await start_rig(
            listeners=tuple(
                ListenerConfig(name, lines, lines.options(), (HOST, 0), address)
                for name, address in {
                    "alive": broker.address,
                    "dead": reserved_address,
                    "nameless": ("a..b", 1),
                }.items()
            )
        )
        assert [(each.broker, each.reachable, each.error) for each in await rig.path.probe_brokers()] == [
            (format_address(broker.address), True, None),
            (format_address(reserved_address), False, "Connection refused"),
            ("a..b:1", False, "'a..b' is not a valid host name"),
        ]

    async def test_does_not_wait_long_for_an_answer(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, nursery: trio.Nursery
    ) -> None:
        async def hang(host: str, port: int) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(sockets, "connect", hang)
        found: list[ListenerState] = []

        async def probe() -> None:
            found.extend(await rig.path.probe_brokers())

        nursery.start_soon(probe)
        await wait_all_tasks_blocked()
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert [reach.error for reach in found] == ["no response within 1 s"]


def logged_in(protocol: Protocol, user: str, product: str = "") -> Protocol:
    """Return a protocol whose clients are logged in and identified from the start."""

    def open_session(context: SessionContext) -> Session:
        session = protocol.open_session(context)
        session.__class__ = type("Named", (type(session),), {"product": product})
        info = msgspec.structs.replace(context.connection, scopes=(Resource("user", user),))
        receive = session.receive

        def as_user(side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
            batch = receive(side, chunk, now_ns)
            if batch is not None:
                batch.connection = info
            return batch

        session.receive = as_user  # type: ignore[method-assign]  # of this one session
        return session

    return dataclasses.replace(protocol, open_session=open_session, scopes=("user",))


class TestTakeTraffic:
    @pytest.fixture
    async def rig(self, start_rig: StartRig, now_ns: Callable[[], int]) -> Rig:
        began = datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC)
        slow = Rule("topic", "slow", 1, action="delay", max_delay_s=2.5)
        return await start_rig(
            "topic:none=0/s",
            protocol=PROTOCOL,
            rules=[slow],
            wall_clock=lambda: began + timedelta(microseconds=now_ns() // 1000),
        )

    async def test_traffic_lists_refusals_by_client_and_second(self, rig: Rig, mock_clock: MockClock) -> None:
        assert await rig.path.take_traffic() == ()
        client, broker = await rig.connect(source="127.0.0.9")
        passes, refused, silent = (
            frames.send("free", 1),
            frames.send("none", 2),
            frames.send("none", 3, flag=frames.ONEWAY),
        )
        mock_clock.jump(0.5)
        await client.send(passes + refused + silent + passes)
        await broker.receive(2 * len(passes))
        await client.receive(8)
        assert await rig.path.take_traffic() == ()
        mock_clock.jump(0.5)
        (second,) = await rig.path.take_traffic()
        assert datetime.fromtimestamp(second.at_s, UTC) == datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC)
        free, none = second.resources
        assert free == ResourceSecond(
            Resource("topic", "free"),
            {"admitted": Amount(2, 2, 2 * len(passes))},
            0,
            {"JAVA": (2, 0)},
            ("127.0.0.9",),
            more_clients=False,
        )
        amount = Amount(2, 2, len(refused) + len(silent))
        assert (none.outcomes, none.busy_answers, none.languages) == ({"refused": amount}, 1, {"JAVA": (2, 2)})
        (rejection,) = second.rejections
        assert rejection.wait_max_us > 0
        assert rejection == Rejection(
            Resource("topic", "none"), "127.0.0.9", "producers", "topic:none", "refuse", amount, rejection.wait_max_us
        )
        assert await rig.path.take_traffic(unfinished=True) == ()

    async def test_reports_user_and_product_and_applies_their_limits(
        self, start_rig: StartRig, lines: Protocol
    ) -> None:
        rig = await start_rig("user:alice=1/s", protocol=logged_in(lines, "alice", "pika 1.4.4"))
        assert await rig.path.take_traffic() == ()
        client, _ = await rig.connect()
        await client.send(b"orders 1\norders 2\norders 3\n")
        assert (await client.receive_line()).startswith(b"BUSY")
        (second,) = await rig.path.take_traffic(unfinished=True)
        (rejection,) = second.rejections
        assert (rejection.user, rejection.product) == ("alice", "pika 1.4.4")
        assert (rejection.rule, rejection.amount.requests) == ("user:alice", 2)
