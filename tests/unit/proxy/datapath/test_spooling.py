"""The spool in a data path: opened before the first connection, ticked while it is used, and closed in order."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from proxy.datapath.spooling import SpoolConfig, SpoolError, Spooling
from proxy.flow.credit import Stage
from proxy.spool.queue import Queue
from proxy.spool.segments import Ledger
from proxy.spool.spool import QueueName, Spool, SpoolSettings

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Rig, StartRig

NAME = QueueName("main", "line_topic", "a").encoded()


def put(queue: Queue, count: int, *, size: int = 100, recoverable: bool = False) -> None:
    for number in range(count):
        queue.append([bytes(size)], number, 0, is_recoverable=recoverable)


async def settle() -> None:
    for _ in range(5):
        await wait_all_tasks_blocked()


async def open_in(folder: Path, **config: Any) -> Spooling:
    spooling = Spooling(SpoolConfig(folder, **config), lambda: 5_000, lambda: 1_000_005_000)
    await spooling.open()
    return spooling


def opened(spooling: Spooling) -> Spool:
    assert spooling.spool is not None
    return spooling.spool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


class TestOpening:
    async def test_spool_is_there_before_the_first_connection(self, start_rig: StartRig, folder: Path) -> None:
        rig = await start_rig(spool=SpoolConfig(folder))
        await rig.connect()
        assert rig.connections[0].info.spools

    async def test_without_one_there_are_none(self, rig: Rig) -> None:
        await rig.connect()
        assert not rig.connections[0].info.spools

    async def test_folder_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(SpoolError) as raised:
            await open_in(tmp_path / "file")
        assert str(raised.value) == f"cannot use the spool folder {tmp_path / 'file'}: File exists"

    async def test_folder_that_another_process_uses_is_named(self, folder: Path) -> None:
        first = await open_in(folder)
        with pytest.raises(SpoolError, match=f"the spool folder {folder} is in use by another process; each process"):
            await open_in(folder)
        await first.close()

    async def test_folder_that_is_not_required_is_done_without(self, tmp_path: Path, log: list[Any]) -> None:
        (tmp_path / "file").write_text("")
        spooling = await open_in(tmp_path / "file", required=False)
        assert spooling.spool is None
        assert [(entry["event"], entry["log_level"]) for entry in log] == [("spool unavailable", "warning")]

    async def test_data_path_that_has_ended_gives_the_folder_back(self, start_rig: StartRig, folder: Path) -> None:
        rig = await start_rig(spool=SpoolConfig(folder))
        rig.scope.cancel()
        await rig.until(lambda: rig.path._spooling.spool is None)
        await (await open_in(folder)).close()


class TestEnding:
    async def test_recoverable_entries_survive_the_close_of_their_queue(self, folder: Path, log: list[Any]) -> None:
        spooling = await open_in(folder)
        kept, other = (opened(spooling).queue(NAME, lambda _: None) for _ in range(2))
        put(kept, 3, recoverable=True)
        put(other, 5)
        spooling.keep()
        kept.close()
        other.close()
        await spooling.close()
        assert log == []
        again = await open_in(folder, recover=True)
        (queue,) = opened(again).take_recovered(lambda name: name.kind == "line_topic")
        assert queue.count == opened(again).figures().recovered_total == 3
        assert [(entry["event"], entry["to_send"], entry["dropped"], entry["lost"]) for entry in log] == [
            ("found spooled messages from an earlier process", 3, 0, 0)
        ]
        await again.close()

    async def test_unrecoverable_entries_are_counted_and_dropped(self, folder: Path, log: list[Any]) -> None:
        spooling = await open_in(folder)
        put(opened(spooling).queue(NAME, lambda _: None), 3, recoverable=True)
        spooling.keep()
        await spooling.close()
        again = await open_in(folder, recover=False)
        figures = opened(again).figures()
        assert figures.recovered_total == figures.dropped_total == 3
        await again.close()
        await (await open_in(folder)).close()
        assert [(entry["to_send"], entry["dropped"]) for entry in log] == [(0, 3)]

    async def test_full_disk_is_reported_and_does_not_prevent_opening(
        self, folder: Path, log: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spooling = await open_in(folder)
        put(opened(spooling).queue(NAME, lambda _: None), 3, recoverable=True)
        spooling.keep()
        await spooling.close()

        def rewrite(_: Ledger) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Ledger, "rewrite", rewrite)
        await (await open_in(folder, recover=True)).close()
        assert [(entry["event"], entry["to_send"], entry["disk_full"]) for entry in log] == [
            ("found spooled messages from an earlier process", 3, True)
        ]

    async def test_unclaimed_entries_are_one_log_line(self, folder: Path, log: list[Any]) -> None:
        spooling = await open_in(folder)
        for _ in range(2):
            put(opened(spooling).queue(NAME, lambda _: None), 3, recoverable=True)
        spooling.keep()
        await spooling.close()
        again = await open_in(folder, recover=True, settings=SpoolSettings(max_age_s=60))
        log.clear()
        opened(again).tick(5_000 + 60 * 10**9)
        assert [(entry["event"], entry["messages"], entry["queues"]) for entry in log] == [
            ("dropped spooled messages from an earlier process: no matching client connected", 6, 2)
        ]
        while again.is_used():
            await trio.lowlevel.checkpoint()
        await again.close()

    @pytest.mark.parametrize("drains", [False, True])
    async def test_data_path_that_ends_keeps_it(self, start_rig: StartRig, folder: Path, *, drains: bool) -> None:
        rig = await start_rig(spool=SpoolConfig(folder))
        await rig.connect()
        connection = rig.connections[0]
        queue = opened(rig.path._spooling).queue(NAME, lambda _: None)
        put(queue, 3, recoverable=True)
        close = connection.session.close
        connection.session.close = lambda: (close(), queue.close())  # type: ignore[method-assign]
        if drains:
            await rig.path.drain(0)
        rig.scope.cancel()
        await rig.until(lambda: rig.path._spooling.spool is None)
        assert queue.is_closed
        again = await open_in(folder, recover=True)
        assert [each.count for each in opened(again).queues()] == [3]
        await again.close()


class TestTicks:
    async def test_nothing_is_ticked_while_there_is_nothing_to_do(
        self, nursery: trio.Nursery, mock_clock: MockClock, folder: Path
    ) -> None:
        spooling = await open_in(folder)
        spool, ticks = opened(spooling), []
        tick = spool.tick
        spool.tick = lambda now_ns: (ticks.append(now_ns), tick(now_ns))  # type: ignore[method-assign]
        nursery.start_soon(spooling.run)
        for _ in range(20):
            mock_clock.jump(0.1)
            await settle()
        assert ticks == []
        queue = spool.queue(NAME, lambda _: None)
        for _ in range(10):
            await settle()
            mock_clock.jump(0.1)
        assert len(ticks) == 10
        queue.close()
        await settle()
        ticks.clear()
        for _ in range(20):
            mock_clock.jump(0.1)
            await settle()
        assert len(ticks) <= 1
        nursery.cancel_scope.cancel()
        await spooling.close()


class TestDisk:
    async def test_failure_is_one_line_each_way_and_blocks_the_store(self, folder: Path, log: list[Any]) -> None:
        spooling = await open_in(folder)
        spool = opened(spooling)
        spool._hooks.alarm("No space left on device")
        assert spooling.failure == "No space left on device"
        assert spool.store.state(5_000) == "blocked"
        spool._hooks.alarm(None)
        assert spooling.failure == ""
        assert spool.store.state(5_000) == "running"
        assert [entry["event"] for entry in log] == ["spool disk failed", "spool disk recovered"]
        await spooling.close()

    async def test_the_store_gets_and_acks_written_messages(self, folder: Path) -> None:
        spooling = await open_in(folder, settings=SpoolSettings(memory_bytes=1 << 20))
        spool, resource = opened(spooling), Stage("resource", "line_topic:a")
        queue = spool.queue(NAME, lambda _: None, stage=resource)
        put(queue, 10_000)
        in_flight = resource.in_flight(spool.store)
        assert in_flight > 0
        while resource.in_flight(spool.store):
            await trio.lowlevel.checkpoint()
        assert spool.figures().written_total >= in_flight
        queue.close()
        assert resource.followers() == ()
        await spooling.close()
