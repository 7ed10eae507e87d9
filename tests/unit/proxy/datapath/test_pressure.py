"""Back pressure of a running data path, as operators see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.resource import Resource
from proxy.common.metric import measured
from proxy.common.threads import on_thread
from proxy.datapath import datapath
from proxy.datapath.spooling import SpoolConfig
from proxy.deciding.batch import Side
from proxy.flow import machine
from proxy.flow.credit import Credit, Stage
from proxy.protocols.base import Protocol, SessionContext
from proxy.spool.queue import Queue
from proxy.spool.spool import QueueName
from proxy.stats.flow import Purged, StageCount
from proxy.stats.snapshot import Snapshot

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Rig, StartRig

GIB = 1024**3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Free space on the spool's disk. The last entry counts."""
    figures: list[int | None] = [100 * GIB]
    monkeypatch.setattr(machine, "free_bytes", lambda _: figures[-1])
    return figures


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sluice's memory, of 1 GiB. The last entry counts."""
    figures = [GIB // 10]
    monkeypatch.setattr(machine, "resident_bytes", lambda: figures[-1])
    monkeypatch.setattr(machine, "memory_limit", lambda: machine.MemoryLimit(GIB, "test"))
    return figures


@pytest.fixture
def sessions(lines: Protocol) -> Iterator[tuple[Protocol, list[Any]]]:
    """The protocol of lines, with sessions that react to alarms and spool."""
    made: list[Any] = []

    class Spooling:
        def __init__(self, context: SessionContext) -> None:
            self.context = context
            self.alarms: list[str] = []
            self.own: list[Stage] = []
            self.queue: Queue | None = None

        def put(self, count: int, name: str = "a") -> None:
            assert self.context.spool is not None
            stage = Stage("resource", f"line_topic:{name}", self.context.stage.gives)
            self.own.append(stage)
            encoded = QueueName("main", "line_topic", name).encoded()
            self.queue = self.context.spool.queue(encoded, lambda _: None, stage=stage)
            for number in range(count):
                self.queue.append([bytes(10)], number, 0)

        def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
            if self.queue is None or resource.name != "a":
                return 0, 0
            some = min(self.queue.count, 2)
            for _ in range(some):
                self.queue.pop()
            return some, 0

    def open_session(context: SessionContext) -> Any:
        session: Any = lines.open_session(context)
        session.extra = extra = Spooling(context)
        made.append(extra)
        session.alarm = lambda reason, now_ns: extra.alarms.append(reason)
        session.stages = lambda: extra.own
        session.purge = extra.purge
        return session

    yield replace(lines, open_session=open_session), made
    for each in made:
        for stage in each.own:
            stage.close(0)


async def seconds_until(clock: MockClock, predicate: Callable[[], object]) -> None:
    """Let seconds pass until a condition is true.

    A thread takes real time without a step of the clock, and silent clients are ended after some seconds.
    """
    threads = trio.to_thread.current_default_thread_limiter()
    for _ in range(1000):
        if predicate():
            return
        clock.jump(1)
        for _ in range(5):
            await wait_all_tasks_blocked()
            while threads.borrowed_tokens:
                await wait_all_tasks_blocked()
    pytest.fail("never came about")


def metrics(snapshot: Snapshot) -> dict[str, dict[tuple[str, ...], float]]:
    """Return all samples by metric and label values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for metric, samples in measured(snapshot):
        if metric.name.startswith(("sluice_alarm", "sluice_spool", "sluice_stages", "sluice_bott", "sluice_conn")):
            found[metric.name] = {(*head, last): number for head, values in samples for last, number in values}
    return found


class TestAlarms:
    async def test_sessions_are_notified_of_alarms_new_ones_at_once(
        self,
        start_rig: StartRig,
        sessions: tuple[Protocol, list[Any]],
        free: list[int | None],
        folder: Path,
        mock_clock: MockClock,
    ) -> None:
        protocol, made = sessions
        rig = await start_rig(protocol=protocol, spool=SpoolConfig(folder))
        await rig.connect()
        free.append(GIB // 2)
        # The alarm does not matter while the spool is empty.
        await seconds_until(mock_clock, lambda: (alarm := rig.path._alarm_watch.disk) and alarm.free_bytes)
        assert made[0].alarms == []
        made[0].put(1)
        await seconds_until(mock_clock, lambda: made[0].alarms == ["Sluice is low on disk"])
        rig.connections[0].stage.block(0, on=True)
        await rig.connect()
        assert made[1].alarms == ["Sluice is low on disk"]
        alarm = (await rig.path.flow()).alarms[1]
        assert (alarm.stands, alarm.total, alarm.bytes_now, alarm.bytes_limit) == (True, 1, GIB // 2, GIB)
        assert "512 MiB is free on the spool's disk" in alarm.text
        free.append(2 * GIB)
        await seconds_until(mock_clock, lambda: [each.alarms[-1] for each in made] == ["", ""])
        assert rig.connections[0].stage.state(10**12) == "running"

    async def test_each_change_is_one_line(
        self, start_rig: StartRig, resident: list[int], mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig = await start_rig()
        for used, alarm in ((GIB * 7 // 10, "Sluice is low on memory"), (GIB // 2, "")):
            resident.append(used)
            await seconds_until(mock_clock, lambda: rig.path.server.alarm == alarm)  # noqa: B023 - used at once
        lines = [(entry["log_level"], " ".join(entry["event"].split()[:3])) for entry in log]
        assert lines == [("warning", "memory alarm: Sluice"), ("info", "memory alarm cleared")]

    async def test_memory_is_checked_without_a_spool(
        self, start_rig: StartRig, sessions: tuple[Protocol, list[Any]], resident: list[int], mock_clock: MockClock
    ) -> None:
        protocol, made = sessions
        rig = await start_rig(protocol=protocol)
        await rig.connect()
        resident.append(GIB * 7 // 10)
        await seconds_until(mock_clock, lambda: made[0].alarms == ["Sluice is low on memory"])
        alarms = (await rig.path.snapshot(whole=False)).alarms
        assert [(each.scarce, each.stands) for each in alarms] == [("memory", True)]

    async def test_exempt_clients_continue(
        self, start_rig: StartRig, sessions: tuple[Protocol, list[Any]], resident: list[int], mock_clock: MockClock
    ) -> None:
        protocol, made = sessions
        rig = await start_rig(protocol=protocol)
        for _ in range(2):
            await rig.connect()
        rig.connections[0].info = changed(rig.connections[0].info, exempt=True)
        resident.append(GIB * 7 // 10)
        await seconds_until(mock_clock, lambda: made[1].alarms)
        assert made[0].alarms == []

    async def test_disk_that_fails_is_shown_with_the_disk_alarm(
        self, start_rig: StartRig, folder: Path, free: list[int | None], mock_clock: MockClock
    ) -> None:
        del free
        rig = await start_rig(spool=SpoolConfig(folder))
        spool = rig.path._services.spool
        assert spool is not None
        spool._hooks.alarm("No space left on device")
        mock_clock.jump(1)
        alarm = rig.path._pressure.alarms()[1]
        assert (alarm.stands, alarm.total, alarm.stood_s) == (True, 1, 1.0)
        assert alarm.text == "the spool's disk failed (No space left on device); clients with spooled messages wait"
        flow = await rig.path.flow()
        assert flow.store is not None
        assert flow.store.state == "blocked"
        spool._hooks.alarm(None)
        assert not rig.path._pressure.alarms()[1].stands


def changed(struct: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(struct, **changes)


class TestFlow:
    async def test_nothing_waits(self, rig: Rig) -> None:
        await rig.connect()
        flow = await rig.path.flow()
        assert (flow.findings, flow.connections, flow.more_connections, flow.store) == ((), (), 0, None)
        assert set(flow.counts) == {StageCount("connection", "running", 1), StageCount("writer", "running", 1)}

    async def test_broker_that_does_not_read_is_named_and_the_client_is_in_flow(
        self, rig: Rig, mock_clock: MockClock
    ) -> None:
        client, broker = await rig.connect()
        await rig.connect()
        await client.send_until_stalled((b"free " + b"x" * 900 + b"\n") * 64)
        assert (await rig.path.flow()).findings == ()
        mock_clock.jump(12)
        flow = await rig.path.flow()
        (finding,) = flow.findings
        host, port = rig.broker.address
        assert (finding.cause, finding.connections, finding.at) == ("broker", 1, (f"writer {host}:{port}",))
        (shown,) = flow.connections
        assert (shown.connection.state, shown.connection.flow_total) == ("flow", shown.connection.flow_total)
        assert shown.connection.waits_for == (f"writer {host}:{port}",)
        state = next(each for each in await rig.path.connections() if each.id == shown.id)
        assert state.stage.state == "flow"
        while rig.connections[0].peers[Side.CLIENT].state.value != "reading":
            broker.pending()
            broker._read.clear()
            await wait_all_tasks_blocked()
        assert not rig.connections[0].stage.out_of_credit

    async def test_as_many_connections_as_asked_for_are_shown_those_in_flow_first(self, rig: Rig) -> None:
        for _ in range(3):
            await rig.connect()
        first, second, third = rig.connections
        first.stage.throttle(0, on=True)
        second.stage.block(0, on=True)
        third.stall(third.writer)
        third.writer.block(0, on=True)
        flow = await rig.path.flow(2)
        assert [each.id for each in flow.connections] == [third.info.id, second.info.id]
        assert flow.more_connections == 1
        assert [each.kind for each in flow.connections[0].others] == ["writer"]
        assert {each.cause for each in flow.findings} == {"broker_alarm", "alarm", "limit"}
        snapshot = metrics(await rig.snapshot())
        assert snapshot["sluice_stages"]["connection", "throttled"] == 1
        assert snapshot["sluice_bottleneck_connections"] == {
            ("broker_alarm",): 1,
            ("alarm",): 1,
            ("limit",): 1,
            ("broker",): 0,
            ("decoding",): 0,
            ("deciding",): 0,
            ("disk",): 0,
        }

    async def test_a_loop_that_is_busy_a_fifth_of_the_time_is_named_without_flow_control(
        self, start_rig: StartRig, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        busy_ns, all_ns, is_busy = 0, 0, True

        def measure() -> tuple[int, int]:
            nonlocal busy_ns, all_ns
            all_ns += 500
            busy_ns += 500 if is_busy else 100
            return busy_ns, all_ns

        async def causes_after(steps: int) -> list[str]:
            for _ in range(steps):
                mock_clock.jump(0.5)
                await rig.settle()
            await client.send(b"free 1\n")
            await broker.receive_line()
            return [finding.cause for finding in (await rig.path.flow()).findings]

        monkeypatch.setattr(datapath, "_busy_and_all_ns", measure)
        rig = await start_rig()
        client, broker = await rig.connect()
        assert await causes_after(6) == []
        assert await causes_after(20) == ["decoding"]
        is_busy = False
        assert await causes_after(120) == []

    async def test_a_connection_with_frequent_short_waits_is_not_a_bottleneck(
        self, rig: Rig, mock_clock: MockClock
    ) -> None:
        await rig.connect()
        connection = rig.connections[0]

        async def causes_after_waiting(share: float) -> list[str]:
            for _ in range(60):
                connection.stall(connection.writer)
                mock_clock.jump(share)
                connection.stall(None)
                mock_clock.jump(1 - share)
            return [finding.cause for finding in (await rig.path.flow()).findings]

        assert await causes_after_waiting(0.1) == []
        assert StageCount("connection", "flow", 1) in (await rig.path.flow()).counts
        assert await causes_after_waiting(0.5) == ["broker"]
        assert await causes_after_waiting(0.1) == []

    async def test_load_is_that_of_the_last_second(
        self, start_rig: StartRig, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        figures = [(0, 0), (300, 1_000), (1_300, 2_000), (2_300, 3_000), (2_300, 4_000), (2_300, 5_000)]
        monkeypatch.setattr(datapath, "_busy_and_all_ns", lambda: figures.pop(0))
        rig = await start_rig()
        await rig.settle()
        for ratio in (0.3, 0.65, 1.0, 0.5, 0.0):
            mock_clock.jump(0.5)
            await rig.settle()
            assert (await rig.path.snapshot(whole=False)).busy_ratio == ratio

    async def test_time_in_flow_never_falls_when_connections_end(self, rig: Rig, mock_clock: MockClock) -> None:
        await rig.connect()
        connection = rig.connections[0]
        connection.stall(connection.writer)
        mock_clock.jump(2)
        shown = metrics(await rig.snapshot())["sluice_connection_state_seconds_total"]
        assert shown == {("flow",): 2.0, ("blocked",): 0.0, ("throttled",): 0.0}
        connection.shutdown.abort("done", "")
        await rig.until(lambda: not rig.connections)
        mock_clock.jump(2)
        assert metrics(await rig.snapshot())["sluice_connection_state_seconds_total"] == shown

    async def test_client_is_not_read_while_its_stage_is_out_of_credit(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        stage, resource = rig.connections[0].stage, Stage("resource", "line_topic:free", Credit(2, 2))
        stage.send(resource, 2, 0)
        await client.send(b"free 1\n")
        await rig.settle()
        # Waiting data was not read either.
        assert broker.pending() == b""
        resource.ack(stage, 2, 0)
        assert await broker.receive_line() == b"free 1\n"


class TestSpool:
    async def test_is_none_without_one(self, rig: Rig) -> None:
        assert await rig.path.spool() is None
        assert metrics(await rig.snapshot())["sluice_spool_queues"] == {}
        with pytest.raises(ValueError, match="cannot purge the messages of line_topic:a: there is no spool"):
            await rig.path.purge("line_topic", "a")

    async def test_spooled_messages_are_shown_by_resource_connection_and_place(
        self, start_rig: StartRig, sessions: tuple[Protocol, list[Any]], folder: Path
    ) -> None:
        protocol, made = sessions
        rig = await start_rig(protocol=protocol, spool=SpoolConfig(folder))
        for _ in range(2):
            client, broker = await rig.connect()
            await client.send(b"a 1\n")
            await broker.receive_line()
        made[0].put(3)
        made[0].own[0].throttle(0, on=True)
        made[1].put(5)
        made[1].put(1, "b")
        spool = await rig.path.spool(1)
        assert spool is not None
        assert (spool.queues, spool.in_total, spool.more_resources) == (3, 9, 1)
        assert spool.messages == {"alpha": 9, "beta": 0, "gamma": 0, "delta": 0}
        (shown,) = spool.resources
        assert (shown.kind, shown.name, shown.queues, shown.messages["alpha"]) == ("line_topic", "a", 2, 8)
        assert [each.spooled for each in await rig.path.connections()] == [3, 6]
        (resource,) = [each for each in await on_thread(list, rig.path.resources()) if each.name == "a"]
        assert (resource.state, resource.spooled) == ("throttled", 8)
        assert metrics(await rig.snapshot())["sluice_spool_messages"]["alpha",] == 9
        assert (await rig.path.snapshot(whole=False)).spool is None

    async def test_totals_outlive_their_queues(
        self, start_rig: StartRig, sessions: tuple[Protocol, list[Any]], folder: Path
    ) -> None:
        protocol, made = sessions
        rig = await start_rig(protocol=protocol, spool=SpoolConfig(folder))
        await rig.connect()
        made[0].put(3)
        made[0].queue.pop("expired")
        made[0].queue.pop("too old")
        made[0].queue.close()
        spool = await rig.path.spool()
        assert spool is not None
        assert (spool.queues, spool.in_total, spool.out_total, spool.dropped_total) == (0, 3, 2, 1)
        assert (spool.expired_total, spool.too_old_total) == (1, 1)

    async def test_a_purge_refuses_the_sessions_messages_and_drops_unreplayed_ones(
        self, start_rig: StartRig, sessions: tuple[Protocol, list[Any]], folder: Path
    ) -> None:
        protocol, made = sessions
        rig = await start_rig(protocol=protocol, spool=SpoolConfig(folder))
        for _ in range(2):
            await rig.connect()
        made[0].put(5)
        made[1].put(4)
        assert await rig.path.purge("line_topic", "b") == Purged(0, 0)
        assert await rig.path.purge("line_topic", "a") == Purged(9, 0)
        spool = rig.path._services.spool
        assert spool is not None
        name = QueueName("main", "line_topic", "a").encoded()
        left = spool.queue(name, lambda _: None)
        left.append([b"x"], 0, 0)
        spool.give_back(left)
        assert await rig.path.purge("line_topic", "a") == Purged(0, 1)
