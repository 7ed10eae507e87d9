"""The shares of whole fleets, on clocks that only move between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import pytest
from fleet_simulation import NS_PER_S, Simulation

from limiter.fleet.member import MAX_ROUNDS_PER_S
from limiter.rules.rule import Rule

Traffic = Callable[[float], Sequence[float]]


def simulated(rate: float, members: int, burst_s: float = 1) -> Simulation:
    return Simulation(Rule("topic", "orders", rate, burst_s=burst_s, fleet=True), members)


def moving(total: float, every_s: float, shares: Sequence[float]) -> Traffic:
    """Rotate the shares of the members by one after each such period in seconds."""

    def traffic(at_s: float) -> Sequence[float]:
        turn = int(at_s // every_s) % len(shares)
        return [total * share for share in (*shares[turn:], *shares[:turn])]

    return traffic


def test_three_members_flat_out_get_the_limit_in_equal_shares() -> None:
    fleet = simulated(500, 3)
    fleet.run(10, lambda _: [1500] * 3)
    assert 4750 <= fleet.admitted <= 5500
    assert fleet.max_beyond() <= 0
    each = [len(one.admitted_ns) for one in fleet.members]
    assert max(each) <= 1.1 * min(each)
    assert fleet.max_rounds_per_second() <= MAX_ROUNDS_PER_S


@pytest.mark.parametrize("total", [500, 1500])
def test_a_skew_that_moves_gets_the_limit(total: float) -> None:
    fleet = simulated(500, 3)
    fleet.run(9, moving(total, 3, (0.9, 0.05, 0.05)))
    assert fleet.admitted >= 0.95 * 500 * 9
    assert fleet.max_beyond() <= 0


@pytest.mark.parametrize(("members", "every_s"), [(3, 0.5), (3, 3), (20, 3)])
@pytest.mark.parametrize("skewed", [1.0, 0.9, 0.4])
def test_nothing_is_refused_at_80_percent_of_the_limit(members: int, every_s: float, skewed: float) -> None:
    fleet = simulated(500, members)
    others = [(1 - skewed) / (members - 1)] * (members - 1)
    fleet.run(6 if members == 3 else 3, moving(400, every_s, (skewed, *others)))
    assert fleet.refused == 0
    assert fleet.max_rounds_per_second() <= MAX_ROUNDS_PER_S


def test_a_new_member_is_refused_nothing_in_its_first_second() -> None:
    fleet = simulated(500, 3)
    fleet.run(3, lambda _: [400, 0, 0])
    fleet.add()
    fleet.run(1, lambda _: [0, 0, 0, 400])
    assert fleet.refused == 0


def test_none_of_twenty_members_starves_under_a_small_limit() -> None:
    fleet = simulated(5, 20)
    fleet.run(25, lambda _: [20] * 20)
    assert fleet.max_beyond() <= 0
    assert fleet.admitted >= 0.9 * 5 * 25
    for one in fleet.members:
        times = [fleet.began_ns, *one.admitted_ns, fleet.now_ns]
        assert max(b - a for a, b in pairwise(times)) <= 10 * NS_PER_S


@pytest.mark.parametrize(("burst_s", "least"), [(1, 4.1), (4, 4.9)])
def test_a_small_limit_of_many_members_that_are_asked_rarely(burst_s: float, least: float) -> None:
    fleet = simulated(5, 20, burst_s)
    for index, one in enumerate(fleet.members):
        one.owed = index / 20
    fleet.run(30, lambda _: [1] * 20)
    assert fleet.admitted >= least * 30
    assert fleet.max_beyond() <= 0
    for one in fleet.members:
        times = [fleet.began_ns, *one.admitted_ns, fleet.now_ns]
        assert max(b - a for a, b in pairwise(times)) <= 10 * NS_PER_S


def test_a_member_that_is_asked_at_random_times_soon_has_a_permit_if_the_burst_has_one_for_each() -> None:
    fleet, walk, since_ns, waits = simulated(5, 20, burst_s=4), Random(7), dict[int, int](), list[int]()
    for _ in range(600):
        arrivals = [walk.random() < 0.05 for _ in fleet.members]
        for index, one in enumerate(fleet.members):
            if arrivals[index] and not one.limiter.acquire(fleet.now_ns, (1,)).admitted:
                since_ns.setdefault(index, fleet.now_ns)
        fleet.run(0.05, lambda _: [0] * 20)
        for index, one in enumerate(fleet.members):
            if index in since_ns and one.limiter.stored_upermits > 0:
                waits.append(fleet.now_ns - since_ns.pop(index))
    assert len(waits) > 100
    assert max([*waits, *(fleet.now_ns - each for each in since_ns.values())]) <= 10 * NS_PER_S


@pytest.mark.parametrize("traffic", [(45, 5), (90, 5, 5), (20, 1), (5, 5, 5)])
def test_a_small_limit_is_used_and_shared_by_demand(traffic: Sequence[float]) -> None:
    fleet = simulated(5, len(traffic))
    fleet.run(30, lambda _: traffic)
    assert fleet.admitted >= 0.95 * 5 * 30
    assert fleet.max_beyond() <= 0
    first = len(fleet.members[0].admitted_ns) / fleet.admitted
    assert first == pytest.approx(traffic[0] / sum(traffic), abs=0.06)


def test_three_members_of_a_small_limit_have_an_advance_each() -> None:
    fleet = simulated(5, 3)
    fleet.run(0.3, lambda _: [4] * 3)
    assert (fleet.admitted, fleet.refused) == (3, 0)


def test_a_dead_member_gives_its_share_back_within_seconds() -> None:
    fleet = simulated(500, 2)
    fleet.run(2, lambda _: [1000, 1000])
    fleet.members.pop()
    (survivor,) = fleet.members
    before = len(survivor.admitted_ns)
    fleet.run(3.5, lambda _: [1000])
    fleet.run(1, lambda _: [1000])
    lately = sum(1 for each in survivor.admitted_ns if each > fleet.now_ns - NS_PER_S)
    assert lately >= 475
    assert len(survivor.admitted_ns) - before <= 4.5 * 500 + 500
