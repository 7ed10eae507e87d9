from typing import Any

import msgspec
import trio
from trio.testing import MockClock

from admin.stats.health import PROBE_EVERY_S, Health
from proxy.stats.flow import AlarmState
from proxy.stats.snapshot import BrokerReach


async def test_it_is_ready_while_all_is_well(data_path: Any) -> None:
    assert await Health(data_path).readiness() == {
        "ready": True,
        "listening": True,
        "draining": False,
        "brokers": {"main": {"broker": "127.0.0.1:10911", "reachable": True, "error": None}},
        "alarms": {},
    }


async def test_an_alarm_is_told_and_leaves_it_ready_for_those_who_consume(data_path: Any) -> None:
    alarms = (AlarmState("memory", text="never shown"), AlarmState("disk", stands=True, text="512 MiB are free"))
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, alarms=alarms)
    readiness = await Health(data_path).readiness()
    assert (readiness["ready"], readiness["alarms"]) == (True, {"disk": "512 MiB are free"})


async def test_one_unreachable_broker_is_named_and_makes_it_unready(data_path: Any) -> None:
    data_path.reaches = (*data_path.reaches, BrokerReach("vip", "127.0.0.1:10909", "Connection refused"))
    readiness = await Health(data_path).readiness()
    assert not readiness["ready"]
    assert readiness["brokers"]["main"]["reachable"]
    assert readiness["brokers"]["vip"] == {
        "broker": "127.0.0.1:10909",
        "reachable": False,
        "error": "Connection refused",
    }


async def test_one_listener_that_does_not_listen_makes_it_unready(data_path: Any) -> None:
    (main,) = data_path.snapshot_now.listeners
    deaf = msgspec.structs.replace(main, name="vip", listening=False)
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, listeners=(main, deaf))
    readiness = await Health(data_path).readiness()
    assert (readiness["ready"], readiness["listening"]) == (False, False)


async def test_a_drain_makes_it_unready(data_path: Any) -> None:
    deaf = tuple(msgspec.structs.replace(each, listening=False) for each in data_path.snapshot_now.listeners)
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, draining=True, listeners=deaf)
    readiness = await Health(data_path).readiness()
    assert (readiness["ready"], readiness["listening"], readiness["draining"]) == (False, False, True)


async def test_without_a_listener_it_is_not_ready(data_path: Any) -> None:
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, listeners=())
    readiness = await Health(data_path).readiness()
    assert (readiness["ready"], readiness["listening"]) == (False, False)


async def test_brokers_are_not_probed_more_often_than_stated(data_path: Any, autojump_clock: MockClock) -> None:
    health = Health(data_path)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(health.readiness)
    assert data_path.probes == 1
    await trio.sleep(PROBE_EVERY_S)
    await health.readiness()
    assert data_path.probes == 2
