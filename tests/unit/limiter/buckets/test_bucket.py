from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from limiter.buckets.bucket import Bucket, free_at_ns
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT

M = UPERMITS_PER_PERMIT
RATES = st.one_of(st.integers(1, 10 * M), st.integers(1, 10**15))


def bucket(rate: int, *, empty: bool = False, now_ns: int = 0) -> Bucket:
    """Return a bucket of ``rate`` whole permits per second and a burst of one second."""
    it = Bucket(rate * M, rate * M, now_ns)
    return emptied(it) if empty else it


def emptied(it: Bucket) -> Bucket:
    it.stored_upermits = 0
    return it


def test_starts_full() -> None:
    assert bucket(100).stored_upermits == 100 * M


def test_refills_at_its_rate_up_to_its_capacity() -> None:
    half = bucket(100, empty=True)

    assert half.refill(NS_PER_S // 2) == 50 * M
    assert half.refill(10 * NS_PER_S) == 100 * M


def test_clock_that_runs_backwards_refills_nothing_and_never_twice() -> None:
    it = bucket(100, empty=True)
    it.refill(NS_PER_S // 2)

    assert it.refill(0) == 50 * M
    assert it.refill(NS_PER_S // 2) == 50 * M
    assert it.at_ns == NS_PER_S // 2


def test_debt_is_paid_before_anything_is_stored() -> None:
    it = bucket(100)
    it.spend(150)

    assert it.next_free_ns() == NS_PER_S // 2
    assert it.refill(NS_PER_S // 2) == 0
    assert it.full_at_ns() == 3 * NS_PER_S // 2


def test_rate_0_never_refills() -> None:
    it = Bucket(0, 0, 0)

    assert it.refill(10**18) == 0
    assert it.full_at_ns() == 0
    it.spend(1)
    assert it.full_at_ns() is None


@given(rate=RATES, steps_ns=st.lists(st.integers(0, 10 * NS_PER_S), min_size=1, max_size=50))
def test_refill_in_steps_loses_at_most_a_nanosecond_a_step_and_gains_nothing(rate: int, steps_ns: list[int]) -> None:
    it = emptied(Bucket(rate, 10**30, 0))
    now_ns = 0
    for step_ns in steps_ns:
        now_ns += step_ns
        it.refill(now_ns)

    exact = Fraction(rate * now_ns, NS_PER_S)
    assert it.stored_upermits <= exact
    assert it.stored_upermits > exact - len(steps_ns) * (Fraction(rate, NS_PER_S) + 1) - 1


@given(rate=RATES, debt=st.integers(0, 10**15), at_ns=st.integers(-(10**18), 10**18))
def test_next_free_is_the_first_nanosecond_without_debt(rate: int, debt: int, at_ns: int) -> None:
    free_ns = free_at_ns(-debt, at_ns, rate)
    it = emptied(Bucket(rate, 10**30, at_ns))
    it.stored_upermits = -debt

    assert it.settled(free_ns)[0] >= 0
    assert free_ns == at_ns or it.settled(free_ns - 1)[0] < 0


@given(rate=RATES, missing=st.integers(0, 10**15), at_ns=st.integers(-(10**18), 10**18))
def test_full_at_is_the_first_nanosecond_at_which_it_is_full(rate: int, missing: int, at_ns: int) -> None:
    it = Bucket(rate, 5 * M, at_ns)
    it.stored_upermits -= missing
    full_ns = it.full_at_ns()

    assert full_ns is not None
    assert it.settled(full_ns)[0] == 5 * M
    assert full_ns == at_ns or it.settled(full_ns - 1)[0] < 5 * M


def test_lowered_rate_scales_stored_permits_down() -> None:
    it = bucket(1000)
    it.spend(500)
    it.set_rate(0, 100 * M, 100 * M)

    assert it.stored_upermits == 50 * M


def test_a_raised_limit_leaves_the_permits_of_a_bucket_of_that_size() -> None:
    it = bucket(100)
    it.spend(30)
    it.set_rate(0, 1000 * M, 1000 * M)

    assert it.stored_upermits == 970 * M


def test_forgiven_permits_return_only_with_time() -> None:
    it = bucket(1000)
    it.spend(1000)
    it.set_rate(0, 100 * M, 100 * M)
    assert (it.stored_upermits, it.forgiven_upermits) == (0, 900 * M)

    it.set_rate(0, 1000 * M, 1000 * M)
    assert (it.stored_upermits, it.forgiven_upermits) == (0, 0)

    it.set_rate(0, 100 * M, 100 * M)
    assert it.full_at_ns() == 10 * NS_PER_S
    it.refill(5 * NS_PER_S)
    it.set_rate(5 * NS_PER_S, 1000 * M, 1000 * M)
    assert it.stored_upermits == 500 * M


def test_time_short_of_a_micro_permit_is_not_paid_at_the_new_rate() -> None:
    it = emptied(Bucket(1, 10, 0))
    it.set_rate(NS_PER_S - 1, 10**15, 10)
    it.capacity_upermits = 10**15

    assert it.refill(NS_PER_S) == 10**15 // NS_PER_S


def test_debt_stays_whatever_the_rate_except_for_a_larger_bursts_permits() -> None:
    it = bucket(100)
    it.spend(1100)
    it.set_rate(0, M, M)
    it.set_rate(0, 0, 0)
    assert it.stored_upermits == -1000 * M
    it.set_rate(0, 100 * M, 100 * M)
    assert it.stored_upermits == -1000 * M
    it.set_rate(0, 1000 * M, 1000 * M)
    assert it.stored_upermits == -100 * M


def test_after_rate_0_it_has_refilled_at_the_new_rate() -> None:
    it = bucket(100, empty=True)
    it.set_rate(0, 0, 0)
    assert it.refill(NS_PER_S) == 0
    it.set_rate(NS_PER_S // 4, 0, 0)
    it.set_rate(NS_PER_S // 2, 60 * M, 60 * M)

    assert it.stored_upermits == 30 * M


@given(
    rates=st.lists(st.sampled_from([0, 1, 7, 100, 1000]), min_size=1, max_size=20),
    steps_ns=st.lists(st.integers(-NS_PER_S, NS_PER_S), min_size=20, max_size=20),
)
def test_no_cycle_of_rates_mints_permits(rates: list[int], steps_ns: list[int]) -> None:
    """Such as 1000 -> 1 -> 1000: missing permits are missing until the integral of the rate has replaced them."""
    it = bucket(1000)
    it.spend(3000)
    now_ns = latest_ns = zero_ns = 0
    missing = Fraction(3000 * M)
    for rate, step_ns in zip(rates, steps_ns, strict=False):
        now_ns += step_ns
        if now_ns > latest_ns:
            if it.rate_upermits_per_s:
                missing -= Fraction(it.rate_upermits_per_s * (now_ns - latest_ns), NS_PER_S)
            else:
                zero_ns += now_ns - latest_ns
            latest_ns = now_ns
        if rate:
            missing -= Fraction(rate * M * zero_ns, NS_PER_S)
            zero_ns = 0
        missing = max(missing, Fraction(0))
        it.set_rate(now_ns, rate * M, rate * M)

        assert it.stored_upermits <= max(rate * M - missing, 0)
