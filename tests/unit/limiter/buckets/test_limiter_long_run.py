"""Admitted requests over minutes, compared with the limit and with a simple reference."""

import random
from collections.abc import Iterator
from heapq import heapify, heapreplace

import pytest

from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

pytestmark = pytest.mark.no_cover

RATES_PER_S = [1, 7, 100, 2_000, 100_000]
OVERLOADS = [1.1, 2, 10, 1000]


class Reference:
    """Guava's SmoothBursty behind the breaker, in float seconds."""

    def __init__(self, rate_per_s: float, *, burst_s: float = 1.0, break_s: float = 1.0, zero_admits: bool) -> None:
        self.stable_interval_s = 1 / rate_per_s
        self.max_permits = rate_per_s * burst_s
        self.stored_permits = self.max_permits
        self.next_free_s = 0.0
        self.break_s = break_s
        self.open = False
        self.zero_admits = zero_admits

    def refuses_until_s(self) -> float:
        return self.next_free_s + self.break_s if self.open else 0.0

    def admit(self, now_s: float, cost: int = 1) -> bool:
        if self.open:
            if now_s - self.next_free_s < self.break_s:
                return False
            self.open = False
        self.resync(now_s)
        if self.next_free_s > now_s or (self.stored_permits <= 0 and not self.zero_admits):
            self.open = self.break_s > 0
            return False
        stored_to_spend = min(cost, self.stored_permits)
        self.next_free_s += (cost - stored_to_spend) * self.stable_interval_s
        self.stored_permits -= stored_to_spend
        return True

    def resync(self, now_s: float) -> None:
        if now_s > self.next_free_s:
            new_permits = (now_s - self.next_free_s) / self.stable_interval_s
            self.stored_permits = min(self.max_permits, self.stored_permits + new_permits)
            self.next_free_s = now_s


def limiter(rate_per_s: float, *, burst_s: float = 1.0, break_s: float = 1.0) -> Limiter:
    rule = Rule("topic", "orders", rate_per_s, burst_s=burst_s, break_s=break_s)
    return Limiter(Resource("topic", "orders"), rule, 0)


def arrivals(seed: int, bursts_per_s: float, skip_to_ns: list[int]) -> Iterator[int]:
    """Yield the times, in nanoseconds, of a Poisson process that continues from wherever it was skipped to."""
    draw = random.Random(seed)
    at_ns = 0
    while True:
        at_ns = max(at_ns, skip_to_ns[0]) + round(draw.expovariate(bursts_per_s) * NS_PER_S)
        yield at_ns


def at_once(it: Limiter, burst: int) -> list[int]:
    """Return the costs of a burst, without most of those that exceed the capacity."""
    return [1] * min(burst, it.capacity_upermits // UPERMITS_PER_PERMIT + 2)


def mean_under_poisson_bursts(it: Limiter, offered_per_s: float, burst: int, duration_s: int) -> float:
    """Return admitted requests per second, for bursts of ``burst`` requests that arrive as a Poisson process."""
    costs = at_once(it, burst)
    skip_to_ns = [0]
    admitted = 0
    for now_ns in arrivals(1, offered_per_s / burst, skip_to_ns):
        if now_ns >= duration_s * NS_PER_S:
            return admitted / duration_s
        admission = it.acquire(now_ns, costs)
        admitted += admission.admitted
        skip_to_ns[0] = now_ns + admission.wait_us * 1000
    raise AssertionError("arrivals never end")


def duration_s(rate_per_s: int) -> int:
    return {1: 1000, 7: 1000, 100: 400, 2_000: 120, 100_000: 120}[rate_per_s]


def mean_under_even_bursts(it: Limiter, offered_per_s: float, burst: int, duration_s: int) -> float:
    """Return admitted requests per second, for bursts of ``burst`` requests at even distances."""
    gap_ns = round(burst * NS_PER_S / offered_per_s)
    costs = at_once(it, burst)
    admitted = now_ns = 0
    while now_ns < duration_s * NS_PER_S:
        admission = it.acquire(now_ns, costs)
        admitted += admission.admitted
        now_ns += gap_ns * max(1, -(-admission.wait_us * 1000 // gap_ns))
    return admitted / duration_s


@pytest.mark.parametrize("overload", OVERLOADS)
@pytest.mark.parametrize("rate_per_s", RATES_PER_S)
def test_mean_is_the_limit_under_saturation(rate_per_s: int, overload: float) -> None:
    """More is offered than the limit, and refused requests wait as stated and come again."""
    it = limiter(rate_per_s)
    offered_per_s = rate_per_s * overload
    # Arrivals within two milliseconds come together. A backlog of more than a burst has no effect.
    tick_ns = max(round(NS_PER_S / offered_per_s), NS_PER_S // 500)
    most = [1] * (rate_per_s + 2)
    backlog = 0.0
    admitted = now_ns = next_tick_ns = 0
    while now_ns < duration_s(rate_per_s) * NS_PER_S:
        if now_ns == next_tick_ns:
            backlog += offered_per_s * tick_ns / NS_PER_S
            next_tick_ns += tick_ns
        waiting = min(len(most), int(backlog))
        admission = it.acquire(now_ns, most if waiting == len(most) else most[:waiting])
        admitted += admission.admitted
        backlog -= admission.admitted
        ready_ns = now_ns + admission.wait_us * 1000
        now_ns = next_tick_ns if waiting == admission.admitted else ready_ns
        if now_ns > next_tick_ns:
            # Arrivals during the break wait with the rest.
            ticks = -(-(now_ns - next_tick_ns) // tick_ns)
            backlog += ticks * offered_per_s * tick_ns / NS_PER_S
            next_tick_ns += ticks * tick_ns

    assert admitted / duration_s(rate_per_s) == pytest.approx(rate_per_s, rel=0.01)


FROM_100_PER_S = [rate for rate in RATES_PER_S if rate >= 100]


@pytest.mark.parametrize("overload", OVERLOADS)
@pytest.mark.parametrize("rate_per_s", FROM_100_PER_S)
def test_poisson_arrivals_get_99_percent_of_the_limit(rate_per_s: int, overload: float) -> None:
    # Single requests. At the highest rates groups, half a millisecond apart.
    group = max(1, round(rate_per_s * overload / 2_000))
    mean_per_s = mean_under_poisson_bursts(limiter(rate_per_s), rate_per_s * overload, group, duration_s(rate_per_s))

    assert 0.99 * rate_per_s <= mean_per_s <= 1.01 * rate_per_s


@pytest.mark.parametrize("overload", OVERLOADS)
@pytest.mark.parametrize("rate_per_s", FROM_100_PER_S)
def test_bursty_arrivals_get_99_percent_of_the_limit(rate_per_s: int, overload: float) -> None:
    """Bursts of five requests, or of 5 ms of the offered rate if that is more."""
    burst = max(5, round(rate_per_s * overload * 0.005))
    mean_per_s = mean_under_even_bursts(limiter(rate_per_s), rate_per_s * overload, burst, duration_s(rate_per_s))

    assert 0.99 * rate_per_s <= mean_per_s <= 1.01 * rate_per_s


@pytest.mark.parametrize("overload", [overload for overload in OVERLOADS if overload >= 2])
@pytest.mark.parametrize("rate_per_s", FROM_100_PER_S)
def test_break_shorter_than_the_burst_makes_up_for_gaps_between_bursts(rate_per_s: int, overload: float) -> None:
    """With bursts 50 ms apart, a break as long as the burst leaves a full bucket idle, unlike a shorter one."""
    burst = round(rate_per_s * overload * 0.05)
    long, short = (
        mean_under_poisson_bursts(
            limiter(rate_per_s, break_s=break_s), rate_per_s * overload, burst, duration_s(rate_per_s)
        )
        for break_s in (1.0, 0.6)
    )

    assert long < 0.99 * rate_per_s <= short <= 1.01 * rate_per_s


def share_of_synchronous_clients(
    burst_s: float, break_s: float, *, waits_s: float = 0.0, stops_s: float = 0.0
) -> float:
    """Return the fraction of their limit that 16 clients get in the long run."""
    rate_per_s, seconds, round_trip_ns = 100, 200, NS_PER_S // 1000
    it = limiter(rate_per_s, burst_s=burst_s, break_s=break_s)
    waits_ns, stops_ns, every_ns = (round(time_s * NS_PER_S) for time_s in (waits_s, stops_s, 3.6))
    due = [round_trip_ns * client // 16 for client in range(16)]
    heapify(due)
    admitted = 0
    while (now_ns := due[0]) < seconds * NS_PER_S:
        admission = it.acquire(now_ns, (1,))
        admitted += admission.admitted
        next_ns = now_ns + round_trip_ns
        if not admission.admitted:
            # A client without waits tries again all the time: only the first try that may pass matters.
            next_ns += waits_ns or admission.wait_us * 1000 // round_trip_ns * round_trip_ns
        if stops_ns and next_ns % every_ns < stops_ns:
            next_ns += stops_ns - next_ns % every_ns
        heapreplace(due, next_ns)
    # The bucket starts full.
    return (admitted - rate_per_s * burst_s) / (rate_per_s * seconds)


_OF_CLIENTS = {
    "never pause": ({}, (1.00, 1.00, 1.00, 1.00, 1.00)),
    "stop for 0.5 s every 3.6 s": ({"stops_s": 0.5}, (0.98, 1.00, 1.00, 1.00, 1.00)),
    "stop for 1.1 s every 3.6 s": ({"stops_s": 1.1}, (0.84, 0.84, 0.97, 1.00, 1.00)),
    "wait 1 s after a refusal": ({"waits_s": 1.0}, (0.50, 1.00, 1.00, 1.00, 1.00)),
    "wait 3 s after a refusal": ({"waits_s": 3.0}, (0.33, 0.33, 0.33, 0.67, 1.00)),
}
_OF_RULES = ((1.0, 1.0), (1.0, 0.5), (1.0, 0.0), (2.0, 1.0), (4.0, 1.0))


@pytest.mark.parametrize("clients", _OF_CLIENTS)
def test_clients_that_pause_get_the_documented_rates(clients: str) -> None:
    """A full bucket stores nothing more, so a pause longer than the burst loses permits."""
    behaviour, expected = _OF_CLIENTS[clients]
    shares = [share_of_synchronous_clients(burst_s, break_s, **behaviour) for burst_s, break_s in _OF_RULES]

    assert shares == pytest.approx(expected, abs=0.011)


@pytest.mark.parametrize("burst", [1, 3, 10])
@pytest.mark.parametrize("overload", OVERLOADS)
@pytest.mark.parametrize("rate_per_s", [1, 7, 100])
def test_admits_the_same_as_the_reference(rate_per_s: int, overload: float, burst: int) -> None:
    """Single requests, and bursts whose gaps leave a full bucket idle, where low rates lose."""
    it = limiter(rate_per_s)
    # A balance is exactly zero only when requests come at the same time.
    reference = Reference(rate_per_s, zero_admits=burst == 1)
    costs = [1] * burst
    skip_to_ns = [0]
    admitted = admitted_by_reference = 0
    for now_ns in arrivals(2, rate_per_s * overload / burst, skip_to_ns):
        if now_ns >= duration_s(rate_per_s) * NS_PER_S:
            break
        admission = it.acquire(now_ns, costs)
        admitted += admission.admitted
        admitted_by_reference += sum(reference.admit(now_ns / NS_PER_S) for _ in costs)
        reference_until_ns = int(reference.refuses_until_s() * NS_PER_S) - 1
        skip_to_ns[0] = min(now_ns + admission.wait_us * 1000 - 1000, reference_until_ns)

    assert admitted == pytest.approx(admitted_by_reference, rel=0.002, abs=2)
