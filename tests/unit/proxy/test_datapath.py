from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.limit_text import parse_limit
from limiter.resource import Resource
from limiter.rule import Rule
from limiter.rules import RuleSet
from proxy import sockets
from proxy.control import BrokerReach, DataPath, Event, LaneDepth, ListenerState
from proxy.datapath import _EVENTS_KEPT, DataPathConfig, LocalDataPath
from proxy.handlers.rate_limit import PLUGIN as RATE_LIMIT
from proxy.handlers.rate_limit import RateLimitOptions
from proxy.pipeline import HandlerConfig, PipelineError
from proxy.protocols.base import Protocol
from proxy.server import ListenerConfig
from proxy.sockets import format_address

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Peer, Rig, ScriptedBroker, StartRig

KIND = "line_topic"
HOST = "127.0.0.1"


def resource(name: str) -> Resource:
    return Resource(KIND, name)


def next_rules(rig: Rig, *limits: str, enabled: bool = True) -> RuleSet:
    return rig.path._registry.rule_set.replace(rules=map(parse_limit, limits), enabled=enabled)


class TestBuilding:
    async def test_handlers_that_make_no_pipeline_are_an_error(self, lines: Protocol) -> None:
        twice = (HandlerConfig(RATE_LIMIT, RateLimitOptions()),) * 2
        with pytest.raises(PipelineError, match="'rate_limit' stands in the pipeline twice"):
            LocalDataPath(DataPathConfig((), twice, RuleSet()))

    async def test_cancelling_gives_the_address_back_and_closes_the_connections(self, rig: Rig) -> None:
        address = rig.address
        client, broker = await rig.connect()
        rig.scope.cancel()
        assert await client.receive_to_end() == b""
        assert await broker.receive_to_end() == b""
        await wait_all_tasks_blocked()
        (bound,) = await sockets.listen(*address, 1)
        bound.close()

    async def test_is_a_data_path_as_the_admin_side_knows_it(self, rig: Rig) -> None:
        path: DataPath = rig.path
        assert (await path.snapshot()).rule_set_version == 1


class TestSnapshot:
    async def test_of_a_data_path_without_traffic_is_all_zeros(self, rig: Rig) -> None:
        snapshot = await rig.snapshot()
        assert snapshot.rule_set_version == 1
        assert snapshot.limiting
        assert not snapshot.draining
        assert {counts.requests["pass"] for counts in snapshot.resources.values()} == {0}
        assert snapshot.bypassed == {}
        assert snapshot.listeners == (
            ListenerState("main", format_address(rig.address), format_address(rig.broker.address), 0),
        )
        assert snapshot.connections_total == 0
        assert snapshot.closed_total == {}
        assert snapshot.frames_total == {"client": 0, "broker": 0}
        assert snapshot.bytes_total == {"client": 0, "broker": 0}
        assert snapshot.undecodable_total == {}
        assert snapshot.lanes == {"rate_limit": LaneDepth(0, 10_000, 0)}
        assert (snapshot.live_limiters, snapshot.evicted_total, snapshot.overflowed_total) == (0, 0, 0)

    async def test_shows_what_became_of_traffic(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        await client.send(b"a 1\na 2\na 3\nfree 1\nzero 1\n")
        await broker.receive(15)
        snapshot = await rig.snapshot()
        assert snapshot.resources[KIND, "a"].requests == {"pass": 2, "refuse": 1, "bypass": 0}
        assert snapshot.resources[KIND, "zero"].messages == {"pass": 0, "refuse": 1, "bypass": 0}
        assert snapshot.resources[KIND, "free"].requests["pass"] == 1
        assert snapshot.listeners[0].connections == snapshot.connections_total == 1
        assert snapshot.frames_total["client"] == 5
        assert snapshot.live_limiters == 2

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

    async def test_limiters_beyond_their_bound_share_one(self, start_rig: StartRig) -> None:
        rig = await start_rig("line_topic:*=1/s", max_live_limiters=2)
        client, broker = await rig.connect()
        await client.send(b"t1 x\nt2 x\nt3 x\nt4 x\n")
        assert await broker.receive(15) == b"t1 x\nt2 x\nt3 x\n"
        snapshot = await rig.snapshot()
        assert snapshot.live_limiters == 2
        assert snapshot.overflowed_total == 2


class TestConnections:
    async def test_are_listed_with_what_they_did(self, rig: Rig, mock_clock: MockClock) -> None:
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
        assert state.opened_ns == 3_000_000_000
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
        explanation = await rig.path.explain(resource("a"))
        assert explanation.rule.name == "line_topic:a"
        assert explanation.limiting
        assert explanation.limiter is None
        await client.send(b"a 1\na 2\na 3\n")
        await client.receive_line()
        limiter = (await rig.path.explain(resource("a"))).limiter
        assert limiter is not None
        assert limiter.stored_permits == 0
        assert limiter.open
        assert limiter.wait_us == limiter.last_wait_us > 0

    async def test_makes_no_limiter_live(self, rig: Rig) -> None:
        await rig.path.explain(resource("a"))
        assert (await rig.snapshot()).live_limiters == 0

    async def test_of_what_no_rule_names_is_unlimited(self, rig: Rig) -> None:
        explanation = await rig.path.explain(resource("unheard-of"))
        assert explanation.rule == Rule(KIND, "*", None)

    async def test_says_when_limiting_is_off(self, rig: Rig) -> None:
        await rig.path.apply(next_rules(rig, "line_topic:a=2/s", enabled=False))
        explanation = await rig.path.explain(resource("a"))
        assert not explanation.limiting
        assert explanation.rule.name == "line_topic:a"


class TestApply:
    async def test_takes_effect_on_the_very_next_batch(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        assert not await rig.passes(client, broker, b"zero x")
        assert await rig.passes(client, broker, b"free x")
        await rig.path.apply(next_rules(rig, "line_topic:zero=0/s", "line_topic:free=0/s"))
        assert not await rig.passes(client, broker, b"free x")
        assert (await rig.snapshot()).rule_set_version == 2

    async def test_live_limiters_carry_their_permits_over(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        assert await rig.passes(client, broker, b"a 1")
        # One of two permits is left; a raised rate adds none.
        await rig.path.apply(next_rules(rig, "line_topic:zero=0/s", "line_topic:a=1000/s"))
        assert await rig.passes(client, broker, b"a 2")
        assert not await rig.passes(client, broker, b"a 3")

    async def test_refill_goes_on_at_the_new_rate(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker = await rig.connect()
        assert await rig.passes(client, broker, b"a 1")
        assert await rig.passes(client, broker, b"a 2")
        await rig.path.apply(next_rules(rig, "line_topic:zero=0/s", "line_topic:a=1000/s"))
        mock_clock.jump(0.002)
        assert await rig.passes(client, broker, b"a 3")
        assert await rig.passes(client, broker, b"a 4")
        assert not await rig.passes(client, broker, b"a 5")

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
        with pytest.raises(ValueError, match=f"rule set version {version} is not above 1, which is in force"):
            await rig.path.apply(RuleSet(version=version))
        assert (await rig.snapshot()).rule_set_version == 1

    async def test_names_of_new_exact_rules_are_told_apart_from_then_on(
        self, start_rig: StartRig, mock_clock: MockClock
    ) -> None:
        rig = await start_rig("line_topic:zero=0/s", max_resource_labels=0)
        await rig.path.apply(next_rules(rig, "line_topic:zero=0/s", "line_topic:new=5/s"))
        # What was unlimited starts empty.
        mock_clock.jump(1)
        client, broker = await rig.connect()
        assert await rig.passes(client, broker, b"new 1")
        assert await rig.passes(client, broker, b"old 1")
        resources = (await rig.snapshot()).resources
        assert {name for _, name in resources} == {"zero", "new", "_other"}
        assert resources[KIND, "new"].requests["pass"] == 1


class TestLimiters:
    async def test_are_listed_with_their_state(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        await client.send(b"a 1\nfree 1\nzero 1\n")
        await broker.receive(11)
        states = {state.resource.name: state async for state in rig.path.limiters()}
        assert states.keys() == {"a", "zero"}
        assert states["a"].stored_permits == 1
        assert not states["a"].open

    async def test_listing_many_gives_others_their_turns(self, start_rig: StartRig, nursery: trio.Nursery) -> None:
        rig = await start_rig("line_topic:*=1000/s")
        client, broker = await rig.connect()
        sent = b"".join(b"t%d x\n" % number for number in range(1000))
        await client.send(sent)
        await broker.receive(len(sent))
        await wait_all_tasks_blocked()
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(count_turns)
        assert len([state async for state in rig.path.limiters()]) == 1000
        assert turns >= 9

    async def test_listing_survives_changes_meanwhile(self, start_rig: StartRig) -> None:
        rig = await start_rig("line_topic:*=1000/s")
        client, broker = await rig.connect()
        sent = b"".join(b"t%d x\n" % number for number in range(300))
        await client.send(sent)
        await broker.receive(len(sent))
        seen = 0
        async for _ in rig.path.limiters():
            seen += 1
            if seen == 50:
                await rig.path.apply(next_rules(rig, "line_topic:*=unlimited"))
        assert seen == 50


class TestProbe:
    async def test_says_which_brokers_accept(
        self, start_rig: StartRig, lines: Protocol, broker: ScriptedBroker, peers: list[Peer]
    ) -> None:
        dead = type(broker)(peers)
        dead.stop()
        rig = await start_rig(
            listeners=tuple(
                ListenerConfig(name, lines, lines.options(), (HOST, 0), address)
                for name, address in {
                    "alive": broker.address,
                    "dead": dead.address,
                    "nameless": ("a..b", 1),
                }.items()
            )
        )
        assert await rig.path.probe_brokers() == (
            BrokerReach("alive", format_address(broker.address), None),
            BrokerReach("dead", format_address(dead.address), "Connection refused"),
            BrokerReach("nameless", "a..b:1", "'a..b' is not a host name"),
        )

    async def test_does_not_wait_long_for_an_answer(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, nursery: trio.Nursery
    ) -> None:
        async def hang(host: str, port: int) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(sockets, "connect", hang)
        found: list[BrokerReach] = []

        async def probe() -> None:
            found.extend(await rig.path.probe_brokers())

        nursery.start_soon(probe)
        await wait_all_tasks_blocked()
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert [reach.error for reach in found] == ["no answer within 1 s"]


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    return [await anext(events) for _ in range(count)]


class TestEvents:
    async def test_tell_of_connections_rules_and_drain(self, rig: Rig, mock_clock: MockClock) -> None:
        mock_clock.jump(2)
        async with rig.path.events() as events:
            client, broker = await rig.connect()
            peer = format_address(client.sock.getsockname())
            await rig.path.apply(next_rules(rig, "line_topic:a=1/s"))
            client.end()
            await broker.receive_to_end()
            broker.end()
            await client.receive_to_end()
            assert await take(events, 3) == [
                Event("opened", 2_000_000_000, {"id": 1, "peer": peer, "listener": "main"}),
                Event("rules", 2_000_000_000, {"version": 2, "limiting": 1}),
                Event("closed", 2_000_000_000, {"id": 1, "peer": peer, "reason": "client_closed"}),
            ]
            await rig.path.drain(1)
            assert await anext(events) == Event("drain", 2_000_000_000, {"connections": 0})

    async def test_reach_every_subscriber(self, rig: Rig) -> None:
        async with rig.path.events() as first, rig.path.events() as second:
            await rig.path.apply(next_rules(rig))
            assert (await anext(first)).kind == (await anext(second)).kind == "rules"

    async def test_slow_subscriber_loses_the_oldest(self, rig: Rig) -> None:
        async with rig.path.events() as events:
            for _ in range(_EVENTS_KEPT + 10):
                await rig.path.apply(next_rules(rig))
            first, *_, last = await take(events, _EVENTS_KEPT)
            assert first.detail["version"] == 12
            assert last.detail["version"] == _EVENTS_KEPT + 11

    async def test_subscriber_that_left_costs_nothing(self, rig: Rig) -> None:
        async with rig.path.events():
            pass
        await rig.path.apply(next_rules(rig))
        assert rig.path._subscribers == {}

    async def test_subscriber_that_stopped_listening_harms_nobody(self, rig: Rig) -> None:
        async with rig.path.events() as events:
            assert isinstance(events, trio.MemoryReceiveChannel)
            await events.aclose()
            client, broker = await rig.connect()
            await client.send(b"free 1\n")
            assert await broker.receive_line() == b"free 1\n"
