"""Take-over between two data paths: sockets, limits and the spool."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from proxy.datapath.spooling import SpoolConfig
from proxy.net.sockets import Inherited
from proxy.spool.spool import QueueName

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Rig, StartRig

NAME = QueueName("main", "line_topic", "a").encoded()


async def take_over(old: Rig, start_rig: StartRig, grace_s: float = 5.0) -> Rig:
    sockets = [socket.socket(fileno=os.dup(descriptor)) for descriptor in old.path.descriptors()]
    how = {"inherited": Inherited(sockets), "take_over": partial(old.path.hand_over, grace_s)}
    return await start_rig(listen_at=old.address, run_with=how)


async def test_client_that_connects_during_a_take_over_is_served_by_the_successor(
    rig: Rig, start_rig: StartRig
) -> None:
    await rig.path.hand_over(5)
    waiting = rig.client_in_backlog()
    await wait_all_tasks_blocked()
    assert not rig.connections
    new = await take_over(rig, start_rig)
    await new.broker.accept()
    assert await new.passes(waiting, new.peers[-1], b"free")
    assert new.address == rig.address


async def test_in_flight_requests_are_answered_by_the_process_that_forwarded_them(
    rig: Rig, start_rig: StartRig, nursery: trio.Nursery
) -> None:
    client, broker = await rig.connect()
    await client.send(b"free 1\n")
    assert await broker.receive_line() == b"free 1\n"
    new = await take_over(rig, start_rig)
    nursery.start_soon(rig.path.drain, 5)
    await wait_all_tasks_blocked()
    # It does not read later data.
    await client.send(b"free 2\n")
    await wait_all_tasks_blocked()
    await broker.send(b"answer 1\n")
    assert await client.receive_to_end() == b"answer 1\n"
    again, of_new = await new.connect()
    assert await new.passes(again, of_new, b"free 2")


async def test_a_limit_keeps_its_state(rig: Rig, start_rig: StartRig) -> None:
    client, broker = await rig.connect()
    assert [await rig.passes(client, broker, b"a") for _ in range(3)] == [True, True, False]
    new = await take_over(rig, start_rig)
    client, broker = await new.connect()
    assert not await new.passes(client, broker, b"a")
    saved = await rig.path.save_limits()
    assert [each.name for each in saved.limiters["messages"]] == ["a"]
    assert rig.path.spent_since(saved) == []


async def test_failed_hand_over_resumes_serving(rig: Rig) -> None:
    await rig.path.hand_over(5)
    waiting = rig.client_in_backlog()
    assert (await rig.snapshot()).draining
    await rig.path.resume()
    broker = await rig.broker.accept()
    assert await rig.passes(waiting, broker, b"free")
    assert not (await rig.snapshot()).draining


async def test_the_spool_belongs_to_the_successor_or_again_to_this_one_without_it(
    start_rig: StartRig, tmp_path: Path
) -> None:
    config = SpoolConfig(tmp_path / "spool")
    rig = await start_rig(spool=config)
    client, _ = await rig.connect()
    spool = rig.path._spooling.spool
    assert spool is not None
    queue = spool.queue(NAME, lambda _: None)
    queue.append([bytes(100)], 1, 0)
    # Waiting connections are the other's, so these end as in a drain.
    await rig.path.hand_over(5)
    assert await client.receive_to_end() == b""
    assert rig.closed == {"handed_over": 1}
    assert await rig.path.spool() is None
    other = await start_rig(spool=config)
    assert await other.path.spool() is not None
    other.scope.cancel()
    await rig.until(lambda: other.path._spooling.spool is None)
    await rig.path.resume()
    assert await rig.path.spool() is not None
    await rig.connect()
    assert rig.connections[-1].info.spools


async def test_resuming_without_the_spool_works(start_rig: StartRig, tmp_path: Path, log: list[dict[str, str]]) -> None:
    config = SpoolConfig(tmp_path / "spool")
    rig = await start_rig(spool=config)
    await rig.path.hand_over(5)
    await start_rig(spool=config)
    await rig.path.resume()
    await rig.connect()
    assert not rig.connections[0].info.spools
    assert "could not reopen the spool; continuing without it" in [entry["event"] for entry in log]


async def test_a_failure_to_take_over_is_the_callers(start_rig: StartRig) -> None:
    async def refuse() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await start_rig(run_with={"take_over": refuse})
