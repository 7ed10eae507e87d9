"""Recorded connections and random schedules are served with the compiled turn and without it: all must be the same.

``SCHEDULES`` says how many schedules of each protocol ``make test-all`` plays, and ``SCHEDULE_SECONDS`` for how long.
"""

import os
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest
from both_ways import Schedule, run
from playbook import schedules as rocketmq
from playbook.captures import CAPTURES, Capture

from limiter.compiled import COMPILED
from proxy.protocols.rocketmq import PROTOCOL as ROCKETMQ

_SCHEDULES: Final = int(os.environ.get("SCHEDULES", "100000"))
_SECONDS: Final = float(os.environ.get("SCHEDULE_SECONDS", "240"))
#: By protocol: what is played, and how.
PROTOCOLS: Final[dict[str, tuple[Any, Schedule, Callable[[Random], dict[str, Any]]]]] = {
    "rocketmq": (ROCKETMQ, rocketmq.talk, rocketmq.settings),
}


def play(name: str, seed: int) -> tuple[int, int]:
    """Play a schedule; return how many steps it has, and how many connections the turn served in all of them."""
    protocol, schedule, settings = PROTOCOLS[name]
    random = Random(seed)
    both = run(schedule, random, protocol, **settings(random))
    return len(both.story), both.lent


@pytest.mark.parametrize("name", PROTOCOLS)
def test_random_schedule_is_served_as_without_the_turn(name: str, factor: int) -> None:
    played = [play(name, seed) for seed in range(120 * factor)]
    # Else nothing was compared.
    assert COMPILED is None or sum(lent for _, lent in played) > sum(steps for steps, _ in played) / 4


@pytest.mark.long
@pytest.mark.parametrize("name", PROTOCOLS)
def test_any_schedule_is_served_as_without_the_turn(name: str) -> None:
    seed, ends_s = 0, time.monotonic() + _SECONDS
    for seed in range(1, _SCHEDULES + 1):
        play(name, 1_000_000 + seed)
        if time.monotonic() > ends_s:
            break
    print(f"{seed} schedules of {name} in at most {_SECONDS:.0f} s")


@pytest.mark.parametrize("longest", [50, 2_000, 60_000])
@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_recorded_connection_is_served_as_without_the_turn(capture: Capture, longest: int) -> None:
    random = Random(longest)
    run(rocketmq.played(capture, longest), random, ROCKETMQ, **rocketmq.settings(random))
