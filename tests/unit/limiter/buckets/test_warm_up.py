from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.buckets.limiter import Admission, Limiter
from limiter.buckets.warm_up import WarmUpLimiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

ORDERS = Resource("topic", "orders")
MS = NS_PER_S // 1000
US_PER_S = 1_000_000
ALMOST_NO_BURST_S = 1e-7


def rule(rate_per_s: float, *, warm_up_s: float = 10, burst_s: float = 1.0) -> Rule:
    return Rule("topic", "orders", rate_per_s, burst_s=burst_s, warm_up_s=warm_up_s, max_debt_s=3600)


def warming(rate_per_s: float, *, warm_up_s: float = 10, burst_s: float = 1.0, empty: bool = False) -> WarmUpLimiter:
    it = WarmUpLimiter(ORDERS, rule(rate_per_s, warm_up_s=warm_up_s, burst_s=burst_s), 0)
    if empty:
        it.stored_upermits = 0
    return it


class Guava:
    """Guava's SmoothWarmingUp in seconds, without rounding, from its formulas."""

    def __init__(self, rate_per_s: Fraction, warm_up_s: Fraction) -> None:
        self.stable_s = 1 / rate_per_s
        cold_s = 3 * self.stable_s
        self.threshold = warm_up_s / (2 * self.stable_s)
        self.max_permits = self.threshold + 2 * warm_up_s / (self.stable_s + cold_s)
        self.slope = (cold_s - self.stable_s) / (self.max_permits - self.threshold)
        self.cool_down_s = warm_up_s / self.max_permits
        self.stored = self.max_permits
        self.next_free_s = Fraction(0)

    def reserve(self, now_s: Fraction, permits: int) -> None:
        """Admit a request at a time without debt."""
        assert now_s >= self.next_free_s
        self.stored = min(self.max_permits, self.stored + (now_s - self.next_free_s) / self.cool_down_s)
        from_stored = min(Fraction(permits), self.stored)
        wait_s = self.wait_time_s(from_stored) + (permits - from_stored) * self.stable_s
        self.next_free_s = now_s + wait_s
        self.stored -= from_stored

    def wait_time_s(self, take: Fraction) -> Fraction:
        above = self.stored - self.threshold
        wait_s = Fraction(0)
        if above > 0:
            take_above = min(above, take)
            wait_s = take_above * (self.to_time_s(above) + self.to_time_s(above - take_above)) / 2
            take -= take_above
        return wait_s + self.stable_s * take

    def to_time_s(self, permits: Fraction) -> Fraction:
        return self.stable_s + permits * self.slope


def admitted_in(it: Limiter, from_s: float, to_s: float, step_ns: int = MS) -> int:
    """Return the permits admitted while single requests come all the time."""
    times_ns = range(round(from_s * NS_PER_S), round(to_s * NS_PER_S), step_ns)
    return sum(it.acquire(now_ns, [1] * 3).admitted for now_ns in times_ns)


# --- the rate


@given(
    rate=st.sampled_from(["0.5", "1", "7", "100", "33.333333", "20000"]),
    warm_up_s=st.sampled_from([1, 7, 60]),
    requests=st.lists(
        st.tuples(st.one_of(st.just(0), st.integers(0, 5000), st.integers(0, 100_000)), st.integers(1, 40)), max_size=40
    ),
)
def test_with_almost_no_burst_it_is_guavas(rate: str, warm_up_s: int, requests: list[tuple[int, int]]) -> None:
    """Each request comes some milliseconds after the previous one is paid for, and is admitted."""
    it = warming(float(rate), warm_up_s=warm_up_s, burst_s=1e-5 if float(rate) < 10 else ALMOST_NO_BURST_S)
    guava = Guava(Fraction(rate), Fraction(warm_up_s))
    # Each step may round by a few micro-permits, which cost up to three times their time.
    slack_us = 2.0
    now_ns = 0
    for gap_ms, cost in requests:
        now_ns += it.wait_us_behind(now_ns, 0) * 1000 + gap_ms * MS
        assert it.acquire(now_ns, [cost]) == Admission(1, 0)
        # Rounding up while waiting is not idleness in Guava.
        guava.reserve(max(guava.next_free_s, Fraction(now_ns, NS_PER_S)), cost)
        slack_us += 2 + (2 * it.capacity_upermits + 10) / float(rate)
        wait_us = it.wait_us_behind(now_ns, 0)

        assert wait_us == pytest.approx(float(guava.next_free_s * US_PER_S) - now_ns / 1000, abs=slack_us)
        assert it.cold_upermits / UPERMITS_PER_PERMIT == pytest.approx(
            float(guava.stored), abs=slack_us * float(rate) / US_PER_S
        )


@pytest.mark.no_cover
@pytest.mark.parametrize("rate_per_s", [20, 100, 900])
def test_rate_rises_from_a_third_to_the_full_one_within_the_warm_up(rate_per_s: int) -> None:
    it = warming(rate_per_s, warm_up_s=10, burst_s=0.1)
    first = admitted_in(it, 0, 1) - it.capacity_upermits // (3 * UPERMITS_PER_PERMIT)
    seconds = [admitted_in(it, second, second + 1) for second in range(1, 30)]

    # The interval falls with every permit, so within the first second the rate has risen by some 7 %.
    assert first == pytest.approx(rate_per_s / 3 * 1.07, rel=0.05, abs=1)
    assert all(later >= earlier - 1 for earlier, later in pairwise(seconds))
    # Half of W seconds at the full rate: Guava's threshold.
    assert first + sum(seconds[:9]) == pytest.approx(rate_per_s * 10 / 2, rel=0.02)
    assert all(admitted == pytest.approx(rate_per_s, abs=1) for admitted in seconds[10:])


def test_cold_start_admits_a_third_of_a_burst_at_once() -> None:
    assert warming(300, warm_up_s=1000).acquire(0, [1] * 300).admitted == pytest.approx(100, abs=1)


def test_idleness_fills_the_burst_first_and_then_cools() -> None:
    it = warming(100, warm_up_s=10, burst_s=2)
    admitted_in(it, 0, 40)
    assert it.cold_upermits <= it.coldest_upermits // 2
    warm = it.cold_upermits

    now_ns = 40 * NS_PER_S
    it.refill(now_ns + 19 * NS_PER_S // 10)
    assert it.cold_upermits == warm
    it.refill(now_ns + 5 * NS_PER_S)
    assert it.cold_upermits == pytest.approx(warm + 300 * UPERMITS_PER_PERMIT, rel=0.02)
    it.refill(now_ns + 60 * NS_PER_S)
    assert it.cold_upermits == it.coldest_upermits
    # As slow as at the start.
    assert admitted_in(it, 100, 101) == admitted_in(warming(100, warm_up_s=10, burst_s=2), 0, 1)


def test_wait_behind_others_counts_their_price() -> None:
    it = warming(100, warm_up_s=10, burst_s=1)

    assert it.wait_us_behind(0, 1) == 0
    assert it.wait_us_behind(0, 500) == 9 * US_PER_S + 1
    assert it.wait_us_behind(0, 600) == 10 * US_PER_S + 1


# --- changed rules


def test_reconfigured_it_is_as_cold_in_proportion_as_it_was() -> None:
    it = warming(100, warm_up_s=10)
    it.acquire(0, [250])
    assert it.cold_upermits == 3 * it.coldest_upermits // 4
    it.reconfigure(0, rule(1000, warm_up_s=30))

    assert it.coldest_upermits == 30_000 * UPERMITS_PER_PERMIT
    assert it.cold_upermits == 3 * it.coldest_upermits // 4


def test_lowering_and_raising_mints_nothing() -> None:
    it = warming(1000, warm_up_s=10)
    admitted = 0
    for _ in range(100):
        admitted += it.acquire(0, [1] * 50).admitted
        it.reconfigure(0, rule(1))
        it.reconfigure(0, rule(1000))

    assert admitted <= 1000 / 3 * 1.1
