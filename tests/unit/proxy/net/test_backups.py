"""A listener with backups: clients are connected to the first broker that answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from proxy.net.broker_watch import BrokerWatch
from proxy.net.server import ListenerConfig

if TYPE_CHECKING:
    from proxy.protocols.base import Protocol
    from tests.unit.proxy.conftest import Peer, Rig, ScriptedBroker, StartRig

HOST = "127.0.0.1"


@pytest.fixture
def backup(broker: ScriptedBroker, peers: list[Peer], reserve: Callable[..., int]) -> Iterator[ScriptedBroker]:
    scripted = type(broker)(peers, (HOST, reserve()))
    yield scripted
    scripted.stop()


@pytest.fixture
def start_backed(
    start_rig: StartRig, lines: Protocol, broker: ScriptedBroker, backup: ScriptedBroker
) -> Callable[[], Awaitable[Rig]]:
    async def start() -> Rig:
        options = lines.options()
        config = ListenerConfig("main", lines, options, (HOST, 0), broker.address, backup_brokers=(backup.address,))
        return await start_rig(listeners=(config,))

    return start


@pytest.fixture
async def backed(start_backed: Callable[[], Awaitable[Rig]]) -> Rig:
    return await start_backed()


def active(rig: Rig) -> tuple[str, int]:
    return rig.path.server.watches["main"].broker


async def connect(rig: Rig, to: ScriptedBroker) -> tuple[Peer, Peer]:
    """Connect a client, and check which broker it reaches."""
    client = await rig.client()
    await client.send(b"free 1\n")
    broker = await to.accept()
    assert await broker.receive_line() == b"free 1\n"
    return client, broker


async def test_broker_is_first(backed: Rig, broker: ScriptedBroker) -> None:
    await connect(backed, broker)
    assert active(backed) == broker.address


async def test_backup_takes_the_clients_that_a_broker_refuses(
    backed: Rig, broker: ScriptedBroker, backup: ScriptedBroker, log: list[Any]
) -> None:
    broker.stop()
    # Without any failed client.
    await connect(backed, backup)
    await backed.until(lambda: active(backed) == backup.address)
    await connect(backed, backup)
    assert backed.closed == {}
    (line,) = [entry for entry in log if entry["event"] == "switched to the backup broker"]
    assert line["broker"] == "{}:{}".format(*backup.address)
    assert (await backed.path.probe_brokers())[0].error is None
    (listener,) = (await backed.path.snapshot()).listeners
    refused = "{}:{}: Connection refused".format(*broker.address)
    assert (listener.backup, listener.backups, listener.passed_over) == (1, 1, (refused,))
    assert line["error"] == refused
    assert {each.broker for each in await backed.path.connections()} == {"{}:{}".format(*backup.address)}


async def test_clients_of_a_broker_that_ends_reach_a_backup(
    backed: Rig, broker: ScriptedBroker, backup: ScriptedBroker
) -> None:
    client, server = await connect(backed, broker)
    broker.stop()
    server.end()
    assert await client.receive_to_end() == b""
    # Before the client is disconnected and reconnects.
    assert active(backed) == backup.address
    assert backed.path.server.watches["main"].listening


async def test_clients_go_to_the_broker_again_when_it_is_back(
    backed: Rig, broker: ScriptedBroker, backup: ScriptedBroker, mock_clock: MockClock, log: list[Any]
) -> None:
    broker.stop()
    stays, server = await connect(backed, backup)
    await backed.until(lambda: active(backed) == backup.address)
    mock_clock.jump(1)
    await wait_all_tasks_blocked()
    assert active(backed) == backup.address
    broker.restart()
    mock_clock.jump(1)
    await backed.until(lambda: active(backed) == broker.address)
    assert "switched to the primary broker" in [entry["event"] for entry in log]
    (listener,) = (await backed.path.snapshot()).listeners
    assert (listener.backup, listener.passed_over) == (0, ())
    await connect(backed, broker)
    # Clients connected to the backup stay there.
    await stays.send(b"free 2\n")
    assert await server.receive_line() == b"free 2\n"


async def test_without_any_clients_are_refused(
    backed: Rig, broker: ScriptedBroker, backup: ScriptedBroker, mock_clock: MockClock
) -> None:
    broker.stop()
    backup.stop()
    error = (await backed.path.probe_brokers())[0].error
    refused = "{}:{}: Connection refused"
    assert error == "; ".join(refused.format(*each.address) for each in (broker, backup))
    assert not backed.path.server.watches["main"].listening
    backup.restart()
    mock_clock.jump(0.1)
    await backed.until(lambda: backed.path.server.watches["main"].listening)
    await connect(backed, backup)


async def test_clients_are_refused_after_one_vain_attempt(backed: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise trio.TooSlowError

    monkeypatch.setattr(BrokerWatch, "_reach", hang)
    assert "no response within 1 s" in str((await backed.path.probe_brokers())[0].error)
    # They may only be slow.
    assert backed.path.server.watches["main"].listening
    backed.path.server.watches["main"].lost("no response within 5 s")
    await backed.until(lambda: not backed.path.server.watches["main"].listening)


async def test_unknown_names_block_no_others(start_rig: StartRig, lines: Protocol, backup: ScriptedBroker) -> None:
    config = ListenerConfig("main", lines, lines.options(), (HOST, 0), ("a..b", 1), backup_brokers=(backup.address,))
    await connect(await start_rig(listeners=(config,)), backup)
