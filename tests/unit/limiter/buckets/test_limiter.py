import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from limiter.buckets.limiter import Admission, Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

ORDERS = Resource("topic", "orders")
US_PER_S = 1_000_000


def rule(rate_per_s: float | None, *, burst_s: float = 1.0, break_s: float = 1.0, max_debt_s: float = 3600) -> Rule:
    more = {"burst_s": burst_s, "break_s": break_s, "max_debt_s": max_debt_s}
    return Rule("topic", "orders", rate_per_s, allow_under_limit=True, **more)


def limiter(
    rate_per_s: float,
    *,
    burst_s: float = 1.0,
    break_s: float = 1.0,
    max_debt_s: float = 3600,
    empty: bool = False,
) -> Limiter:
    it = Limiter(ORDERS, rule(rate_per_s, burst_s=burst_s, break_s=break_s, max_debt_s=max_debt_s), 0)
    if empty:
        it.stored_upermits = 0
    return it


def everything(it: Limiter) -> tuple[object, ...]:
    """Return the whole state of a limiter."""
    return (
        it.stored_upermits,
        it.at_ns,
        it.rate_upermits_per_s,
        it.capacity_upermits,
        it.open_next_free_ns,
        it.last_refused_ns,
        it.last_wait_us,
        it.rule,
    )


# --- deciding


def test_refused_request_spends_nothing() -> None:
    it = limiter(100)
    it.acquire(0, [1] * 101)
    stored = it.stored_upermits
    for now_ns in range(0, NS_PER_S // 2, NS_PER_S // 100):
        assert it.acquire(now_ns, [50, 50]).admitted == 0

    assert it.settled(NS_PER_S // 2)[0] == stored + 50 * UPERMITS_PER_PERMIT


# --- the breaker


def test_break_longer_than_the_burst_admits_less_than_the_rate() -> None:
    it = limiter(100, break_s=2)
    admitted = sum(it.acquire(tick * NS_PER_S // 1000, [1]).admitted for tick in range(100_000))

    assert 0.51 < admitted / (100 * 100) < 0.55


# --- batches


RATES = st.sampled_from([0, 0.001, 0.5, 1, 7, 33.333333, 100, 100_000])


def decide_together(limiters: Sequence[Limiter], now_ns: int, costs: Sequence[int]) -> int:
    """Admit the requests that all limiters admit, as in the module's docstring."""
    admissions = [it.check(now_ns, costs) for it in limiters]
    admitted = min(admission.admitted for admission in admissions)
    for it, admission in zip(limiters, admissions, strict=True):
        it.commit(now_ns, costs[:admitted])
        if admission.admitted == admitted < len(costs):
            it.refuse(now_ns)
    return admitted


@given(
    rates=st.tuples(RATES, RATES, RATES),
    calls=st.lists(
        st.tuples(st.integers(0, NS_PER_S), st.lists(st.integers(0, 50), min_size=1, max_size=8)), max_size=10
    ),
)
def test_several_limiters_agree_on_a_batch_as_on_its_single_requests(
    rates: tuple[float, float, float], calls: list[tuple[int, list[int]]]
) -> None:
    batched = [limiter(rate) for rate in rates]
    single = [limiter(rate) for rate in rates]
    now_ns = 0
    for step_ns, costs in calls:
        now_ns += step_ns
        admitted = decide_together(batched, now_ns, costs)

        assert [decide_together(single, now_ns, [cost]) for cost in costs] == [
            int(at < admitted) for at in range(len(costs))
        ]
        assert [everything(it)[:5] for it in batched] == [everything(it)[:5] for it in single]


# --- the bound


def test_the_bound_is_reached() -> None:
    it = limiter(2.5)

    assert it.acquire(0, [1, 1, 40]).admitted == 3
    assert math.ceil(2.5) + 40 - 1 == 1 + 1 + 40


# --- too large for the debt


def test_request_that_would_owe_more_than_allowed_is_refused_alone_until_enough_is_stored() -> None:
    it = limiter(50, max_debt_s=10)
    it.acquire(0, [1] * 30)

    assert it.acquire(0, [530, 1]) == Admission(0, 200_000, 1)
    assert not it.state(0).open
    assert it.acquire(0, [1] * 19).admitted == 19
    assert it.acquire(NS_PER_S, [550]).admitted == 1
    assert it.stored_upermits == -500 * UPERMITS_PER_PERMIT


# --- waiting behind others


@given(
    rate_per_s=st.sampled_from([0.7, 1, 7, 333.3, 100_000]),
    spent=st.integers(0, 300),
    gap_ns=st.integers(0, NS_PER_S),
    ahead=st.lists(st.integers(0, 20), max_size=5),
)
def test_request_behind_others_is_admitted_after_its_stated_wait(
    rate_per_s: float, spent: int, gap_ns: int, ahead: list[int]
) -> None:
    it = limiter(rate_per_s, break_s=0)
    it.charge(0, spent)
    now_ns = gap_ns
    told_ns = now_ns + it.wait_us_behind(now_ns, sum(ahead)) * 1000
    for cost in ahead:
        now_ns += it.wait_us_behind(now_ns, 0) * 1000
        assert it.acquire(now_ns, [cost]).admitted == 1
    now_ns += it.wait_us_behind(now_ns, 0) * 1000

    assert it.check(now_ns, [1]).admitted == 1
    assert now_ns <= told_ns + 1000 * (1 + len(ahead))
    # Requests without cost pass as early as the rest.
    slack_ns = (2 + len(ahead)) * (1000 + 2 * NS_PER_S // it.rate_upermits_per_s)
    assert now_ns >= told_ns - slack_ns


# --- charge


def test_charge_keeps_an_open_breaker_open_for_as_long_as_it_owes() -> None:
    it = limiter(100)
    it.acquire(0, [1] * 101)
    it.charge(0, 50)

    assert it.check(0, [1]) == Admission(0, 1_500_000)


# --- changed rates, 0 and unlimited


def test_after_rate_0_it_has_refilled_and_is_closed() -> None:
    it = limiter(100)
    it.acquire(0, [1] * 101)
    it.reconfigure(0, rule(0))
    assert it.acquire(0, [1]).admitted == 0

    it.reconfigure(NS_PER_S // 2, rule(100))
    assert it.acquire(NS_PER_S // 2, [1] * 51).admitted == 50


def test_to_0_and_back_in_an_instant_gives_no_second_burst_and_removes_none() -> None:
    full, spent = limiter(100), limiter(100)
    spent.acquire(0, [1] * 99)
    for it in (full, spent):
        for rate_per_s in (0, 100, 0, 100):
            it.reconfigure(0, rule(rate_per_s))

    assert full.acquire(0, [1] * 101).admitted == 100
    assert spent.acquire(0, [1] * 2).admitted == 1


def test_raised_limit_closes_the_breaker_if_something_is_stored_then() -> None:
    it = limiter(100)
    it.acquire(0, [1] * 101)
    it.reconfigure(0, rule(100))
    assert it.state(0).open

    it.reconfigure(0, rule(200))
    assert not it.state(0).open
    assert it.acquire(0, [1] * 101).admitted == 100


def test_inherits_the_lower_balance() -> None:
    spent, fresh = limiter(100), limiter(100)
    spent.acquire(0, [150])
    fresh.inherit(spent, NS_PER_S // 4)
    assert fresh.stored_upermits == -25 * UPERMITS_PER_PERMIT

    fresh.inherit(limiter(100), NS_PER_S // 4)
    assert fresh.stored_upermits == -25 * UPERMITS_PER_PERMIT


# --- idle, and state


def test_the_state_has_an_operators_figures_and_changes_nothing() -> None:
    it = limiter(100)
    it.acquire(5, [1] * 101)
    before = everything(it)
    state = it.state(5 + NS_PER_S // 4)

    assert state._asdict() == {
        "resource": ORDERS,
        "rule": "topic:orders",
        "rate_per_s": 100.0,
        "stored_permits": 25.0,
        "open": True,
        "wait_us": 750_000,
        "last_refused_ns": 5,
        "last_wait_us": US_PER_S,
        "shares": (),
    }
    assert everything(it) == before
