"""Taking the traffic of a data path second by second, on manual clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import trio

from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath

BEGAN: Final = datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC)
BEGAN_S: Final = round(BEGAN.timestamp())


class Told:
    def __init__(self, max_resources: int = 100) -> None:
        self.now_ns = 0
        self.wall = BEGAN
        config = DataPathConfig((), (), RuleSet(), max_resources=max_resources)
        self.path = LocalDataPath(config, lambda: self.now_ns, lambda: self.wall)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.wall += timedelta(seconds=seconds)

    def count(self, names: int = 1) -> None:
        accounts = self.path._accounts
        for number in range(names):
            resources = (Resource("topic", f"t{number}"),)
            accounts.count(self.now_ns, resources, accounts.sender("192.0.2.1"), "admitted", (1, 1, 1))


async def test_seconds_are_those_of_the_wall_clock_in_any_time_zone() -> None:
    told = Told()
    told.wall = BEGAN.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert await told.path.take_traffic() == ()
    told.pass_s(2.5)
    told.count()
    assert await told.path.take_traffic() == ()
    told.pass_s(0.5)
    assert [each.at_s for each in await told.path.take_traffic()] == [BEGAN_S + 2]
    told.count()
    assert [each.at_s for each in await told.path.take_traffic(unfinished=True)] == [BEGAN_S + 3]


async def test_cancelled_nothing_is_lost() -> None:
    told = Told()
    await told.path.take_traffic()
    for _ in range(3):
        told.count(2000)
        told.pass_s(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await told.path.take_traffic()
    assert scope.cancelled_caught
    seconds = await told.path.take_traffic()
    assert [each.at_s - BEGAN_S for each in seconds] == [0, 1, 2]
    assert sum(each.outcomes["admitted"].requests for second in seconds for each in second.resources) == 6000
    assert sum(second.other for second in seconds) == 3 * 1900
