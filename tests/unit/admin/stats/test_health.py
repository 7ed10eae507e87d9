from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from admin.stats.health import PROBE_EVERY_S, Health
from proxy.stats.snapshot import AlarmState


async def test_it_is_ready_while_all_is_well(data_path: Any) -> None:
    assert await Health(data_path).readiness() == {
        "ready": True,
        "listening": True,
        "draining": False,
        "brokers": {"main": {"broker": "127.0.0.1:10911", "reachable": True, "error": None}},
        "alarms": {},
    }


async def test_alarm_is_reported_and_stays_ready_for_consumers(data_path: Any) -> None:
    alarms = (AlarmState("memory", text="never shown"), AlarmState("disk", stands=True, text="512 MiB are free"))
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, alarms=alarms)
    readiness = await Health(data_path).readiness()
    assert (readiness["ready"], readiness["alarms"]) == (True, {"disk": "512 MiB are free"})


@pytest.mark.parametrize(
    ("change", "listening"),
    [({"reachable": False, "error": "Connection refused"}, True), ({"listening": False}, False)],
)
async def test_one_listener_that_is_not_as_it_should_be_makes_it_unready(
    data_path: Any, change: dict[str, Any], listening: Any
) -> None:
    (main,) = data_path.snapshot_now.listeners
    vip = msgspec.structs.replace(main, name="vip", **change)
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, listeners=(main, vip))
    readiness = await Health(data_path).readiness()
    assert (readiness["ready"], readiness["listening"]) == (False, listening)
    assert readiness["brokers"]["vip"] == {"broker": main.broker, "reachable": vip.reachable, "error": vip.error}


@pytest.mark.parametrize(("change", "listening"), [({"draining": True}, True), ({"listeners": ()}, False)])
async def test_a_drain_and_no_listener_make_it_unready(data_path: Any, change: dict[str, Any], listening: Any) -> None:
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, **change)
    readiness = await Health(data_path).readiness()
    assert (readiness["ready"], readiness["listening"]) == (False, listening)


async def test_brokers_are_not_probed_more_often_than_stated(data_path: Any, autojump_clock: MockClock) -> None:
    health = Health(data_path)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(health.readiness)
    assert data_path.probes == 1
    await trio.sleep(PROBE_EVERY_S)
    await health.readiness()
    assert data_path.probes == 2
