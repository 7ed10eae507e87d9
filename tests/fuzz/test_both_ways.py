"""Recorded connections and random schedules, served with the compiled turn and without it, with the same results.

``SCHEDULES``: the number of schedules of each protocol in ``make test-all``.
"""

import ctypes
import os
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest
from amqp10_playbook import schedules as amqp10
from amqp_playbook import frames as amqp_frames
from amqp_playbook import schedules as amqp091
from both_ways import BROKER, CLIENT, Both, Schedule, run
from playbook import frames
from playbook import schedules as rocketmq
from playbook.captures import CAPTURES, Capture

from limiter.compiled import COMPILED
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.protocols.amqp091 import PROTOCOL as AMQP091
from proxy.protocols.amqp10 import PROTOCOL as AMQP10
from proxy.protocols.rocketmq import PROTOCOL as ROCKETMQ

_SCHEDULES: Final = int(os.environ.get("SCHEDULES", "100000"))
# By protocol: the connections, and how to play them.
PROTOCOLS: Final[dict[str, tuple[Any, Schedule, Callable[[Random], dict[str, Any]]]]] = {
    "rocketmq": (ROCKETMQ, rocketmq.talk, rocketmq.settings),
    "amqp091": (AMQP091, amqp091.talk, amqp091.settings),
    "amqp10": (AMQP10, amqp10.talk, amqp10.settings),
}
# Of each protocol, for parallel workers.
_PARTS: Final = 40
# Two links ask for a name's credit under an adaptive limit at the same time, and either may be first.
_UNDETERMINED: Final = {("amqp10", 1_020_152)}
_trim = ctypes.CDLL(None).malloc_trim


def play(name: str, seed: int) -> tuple[int, int]:
    """Play a schedule. Return the number of steps, and the connections served by the turn in all of them."""
    protocol, schedule, settings = PROTOCOLS[name]
    random = Random(seed)
    try:
        both = run(schedule, random, protocol, **settings(random))
    except BaseException as error:
        error.add_note(f"schedule {seed} of {name}")
        raise
    return len(both.story), both.lent


@pytest.mark.parametrize("name", PROTOCOLS)
def test_random_schedule_is_served_as_without_the_turn(name: str, factor: int) -> None:
    played = [play(name, seed) for seed in range(60 * factor)]
    # Otherwise nothing was compared.
    assert COMPILED is None or sum(lent for _, lent in played) > sum(steps for steps, _ in played) / 10


@pytest.mark.long
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("name", PROTOCOLS)
def test_any_schedule_is_served_as_without_the_turn(name: str, part: int) -> None:
    count = _SCHEDULES // (len(PROTOCOLS) * _PARTS)
    first = 1_000_000 + part * count
    differing: dict[int, str] = {}
    for seed in range(first, first + count):
        if (name, seed) in _UNDETERMINED:
            continue
        # The allocator keeps a megabyte for each schedule.
        if seed % 100 == 0:
            _trim(0)
        try:
            play(name, seed)
        except BaseExceptionGroup as errors:
            differing[seed] = str(errors.exceptions[0]).splitlines()[-1][:200]
    assert not differing


def test_send_that_is_released_within_a_frame_follows_at_its_end() -> None:
    async def play(both: Both, _: Random) -> None:
        link = await both.open()
        large = frames.send("free", 3, body=bytes(3000))
        await both.say(link, CLIENT, b"".join(map(frames.heartbeat, range(16))))
        await both.say(link, CLIENT, frames.send("slow", 1) + frames.send("slow", 2) + large[:1000])
        await both.jump(1.0)
        for part in (large[1000:2000], large[2000:]):
            await both.say(link, CLIENT, part)
        assert both.take(link, BROKER).endswith(large + frames.send("slow", 2))

    assert run(play, 0, ROCKETMQ, rules=[Rule("topic", "slow", 1, action="delay")]).lent


def test_client_that_has_left_within_a_frame_is_noticed_although_its_broker_talks() -> None:
    async def play(both: Both, _: Random) -> None:
        link = await both.open()
        await both.say(link, CLIENT, amqp_frames.greeting(heartbeat_s=10))
        await both.say(link, BROKER, amqp_frames.welcome(heartbeat_s=10))
        await both.say(link, CLIENT, amqp_frames.channel_open(1) + amqp_frames.HEARTBEAT[:5])
        for _ in range(9):
            await both.say(link, BROKER, amqp_frames.HEARTBEAT)
            await both.jump(5.0)
        assert not both.is_open(link, CLIENT)

    assert run(play, 0, AMQP091).lent


def test_a_shadow_adaptive_limit_changes_no_byte_and_reports_its_limit() -> None:
    async def play(both: Both, _: Random) -> None:
        # Only one way has it.
        both.by_chance = True
        path = both.ways[0].path
        await path.apply(
            RuleSet([Rule("listener", "*", None, adaptive=True, floor_per_s=1, action="shadow")], version=2)
        )
        link = await both.open()
        for number in range(0, 60, 6):
            sends = [frames.send("flood", number + each) for each in range(5)] + [frames.send("quiet", number + 5)]
            await both.say(link, CLIENT, b"".join(sends))
            await both.say(link, BROKER, b"".join(frames.answer(number + each) for each in range(6)))
            await both.jump(0.2)
        (counts,) = (await path.snapshot()).rules.values()
        assert counts.requests["shadow"] > 20

    assert run(play, 0, ROCKETMQ).lent


@pytest.mark.parametrize("longest", [50, 2_000, 60_000])
@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_recorded_connection_is_served_as_without_the_turn(capture: Capture, longest: int) -> None:
    random = Random(longest)
    run(rocketmq.played(capture, longest), random, ROCKETMQ, **rocketmq.settings(random))
