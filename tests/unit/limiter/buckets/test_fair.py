from collections.abc import Sequence
from fractions import Fraction

import pytest
from acquiring import acquire
from hypothesis import given
from hypothesis import strategies as st

from limiter.buckets.bucket import Bucket
from limiter.buckets.fair import ACTIVE_NS, OTHER_KEY, FairLimiter
from limiter.buckets.limiter import Admission, Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

ORDERS = Resource("topic", "orders")
MS = NS_PER_S // 1000
US_PER_S = 1_000_000


def rule(
    rate_per_s: float,
    *,
    burst_s: float = 1.0,
    break_s: float = 1.0,
    max_fair_keys: int = 16,
    max_debt_s: float = 3600,
) -> Rule:
    return Rule(
        "topic",
        "orders",
        rate_per_s,
        burst_s=burst_s,
        break_s=break_s,
        fair_by="producer_group",
        max_fair_keys=max_fair_keys,
        max_debt_s=max_debt_s,
        allow_under_limit=True,
    )


def fair(
    rate_per_s: float,
    *,
    burst_s: float = 1.0,
    break_s: float = 1.0,
    max_fair_keys: int = 16,
    max_debt_s: float = 3600,
    empty: bool = False,
) -> FairLimiter:
    made = rule(rate_per_s, burst_s=burst_s, break_s=break_s, max_fair_keys=max_fair_keys, max_debt_s=max_debt_s)
    it = FairLimiter(ORDERS, made, 0)
    if empty:
        it.stored_upermits = 0
    return it


def ask(limiter: FairLimiter, key: str, now_ns: int, costs: Sequence[int]) -> int:
    return sum(costs[: acquire(limiter.share(key, now_ns), now_ns, costs).admitted])


def everything(limiter: FairLimiter) -> object:
    """Return the whole state of a fair limiter."""
    total = limiter.stored_upermits, limiter.at_ns, limiter.last_refused_ns, limiter.last_wait_us
    shares = [
        (share.key, share.stored_upermits, share.at_ns, share.seen_ns, share.open_next_free_ns)
        for share in limiter.shares
    ]
    return total, shares


Offer = tuple[Sequence[int], int]
"""A key's repeated request: the costs, and the nanoseconds between two."""


def offer(rate_per_s: int, costs: Sequence[int]) -> Offer:
    return costs, sum(costs) * NS_PER_S // rate_per_s


def run(limiter: FairLimiter, offers: dict[str, Offer], duration_s: int) -> dict[str, tuple[int, int]]:
    """Let keys ask evenly. Return the permits asked for and admitted by key."""
    asked = dict.fromkeys(offers, 0)
    admitted = dict.fromkeys(offers, 0)
    next_ns = {key: at * 7 * MS for at, key in enumerate(offers)}
    while (now_ns := min(next_ns.values())) < duration_s * NS_PER_S:
        key = min(next_ns, key=next_ns.__getitem__)
        costs, gap_ns = offers[key]
        asked[key] += sum(costs)
        admitted[key] += ask(limiter, key, now_ns, costs)
        next_ns[key] += gap_ns
    return {key: (asked[key], admitted[key]) for key in offers}


def total_admitted(done: dict[str, tuple[int, int]]) -> int:
    return sum(admitted for _, admitted in done.values())


# --- purpose


@pytest.mark.no_cover
@pytest.mark.parametrize("break_s", [0, 1])
def test_small_keys_lose_nothing_beside_two_floods_which_share_the_rest(break_s: float) -> None:
    limiter = fair(400, break_s=break_s)
    flood, small = offer(10_000, [1] * 50), offer(50, [1])
    done = run(limiter, {"f1": flood, "s1": small, "f2": flood, "s2": small}, 60)

    for key in ("s1", "s2"):
        assert done[key][0] == done[key][1]
    # Everything that the small ones leave is used. Each flood gets at least its own share.
    assert total_admitted(done) == pytest.approx(400 * 60, abs=400 + 5)
    for key in ("f1", "f2"):
        assert done[key][1] >= 100 * 59


@pytest.mark.parametrize("break_s", [0, 1])
def test_key_that_comes_in_the_middle_of_a_flood_loses_nothing(break_s: float) -> None:
    limiter = fair(100, break_s=break_s)
    run(limiter, {"flood": offer(10_000, [1] * 50)}, 5)
    asked = admitted = 0
    for tick in range(1000, 4000):
        now_ns = tick * 5 * MS
        ask(limiter, "flood", now_ns, [1] * 50)
        if not tick % 8:
            asked += 1
            admitted += ask(limiter, "small", now_ns, [1])

    assert admitted == asked == 375


@pytest.mark.no_cover
@pytest.mark.parametrize("break_s", [0, 1])
def test_sole_key_gets_the_whole_limit(break_s: float) -> None:
    done = run(fair(100, break_s=break_s), {"only": offer(1000, [1])}, 30)

    assert 100 * 30 - 1 <= done["only"][1] <= 100 * 31 + 2


@pytest.mark.no_cover
@pytest.mark.parametrize("break_s", [0, 1])
def test_keys_that_come_and_go_leave_the_long_run_total_at_the_limit(break_s: float) -> None:
    limiter = fair(100, break_s=break_s, max_fair_keys=4)
    admitted = 0
    for tick in range(120 * 200):
        now_ns = tick * 5 * MS
        admitted += ask(limiter, "flood", now_ns, [1, 1])
        # Another visitor every 3 s, who stays for a few requests.
        if tick % 600 < 5:
            admitted += ask(limiter, f"visitor-{tick // 600}", now_ns, [1, 2])

    assert admitted == pytest.approx(100 * 120, abs=100 + 6 * 2)


# --- shares


def test_share_is_the_same_while_its_key_is_active() -> None:
    limiter = fair(100)
    first = limiter.share("a", 0)
    assert limiter.share("a", ACTIVE_NS - 1) is first
    assert first.rule is limiter.rule

    assert limiter.share("a", 2 * ACTIVE_NS) is not first


def test_share_closes_when_the_total_is_full() -> None:
    """The other key keeps half of the limit in reserve, so the refill of a whole break could not be stored."""
    limiter = fair(100)
    limiter.share("quiet", 0)
    limiter.share("flood", 0)
    now_ns = NS_PER_S
    assert ask(limiter, "flood", now_ns, [1] * 100) == pytest.approx(50, abs=1)
    wait_us = limiter.share("flood", now_ns).check(now_ns, [1]).wait_us

    assert wait_us == pytest.approx(US_PER_S // 2, abs=20_000)
    now_ns += wait_us * 1000
    assert limiter.share("flood", now_ns).check(now_ns - 10_000, [1]).admitted == 0
    assert ask(limiter, "flood", now_ns, [1] * 100) == pytest.approx(50, abs=1)


def test_key_in_debt_stays_active_until_it_is_paid() -> None:
    limiter = fair(10, break_s=0)
    limiter.share("other", 0)
    limiter.share("debtor", 0).charge(0, 100)
    share = limiter.share("debtor", 0)
    owed = -share.stored_upermits
    paid_ns = NS_PER_S * owed // share.rate_upermits_per_s
    assert paid_ns > ACTIVE_NS

    assert limiter.share("debtor", ACTIVE_NS + 1) is share
    limiter.share("other", 2 * ACTIVE_NS - 2)
    assert share in limiter.shares
    limiter.share("other", 60 * NS_PER_S)
    assert share not in limiter.shares


def test_rate_0_refuses_every_key_and_states_the_break() -> None:
    limiter = fair(0, break_s=0.25)

    assert acquire(limiter.share("a", 0), 0, [1, 1]) == Admission(0, 250_000)
    assert limiter.share("a", 0).wait_us_behind(0, 5) == 250_000
    assert limiter.share("b", 10**15).check(10**15, [0]) == Admission(0, 250_000)


# --- waits


@given(
    rate_per_s=st.sampled_from([1, 7, 100]),
    before=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=6),
    gap_ns=st.integers(0, NS_PER_S),
    ahead=st.integers(0, 30),
)
def test_wait_behind_others_is_when_they_have_been_admitted(
    rate_per_s: float, before: list[tuple[str, int]], gap_ns: int, ahead: int
) -> None:
    limiter = fair(rate_per_s, break_s=0)
    for key, cost in before:
        ask(limiter, key, 0, [cost])
    now_ns = gap_ns
    share = limiter.share("a", now_ns)
    wait_us = share.wait_us_behind(now_ns, ahead)
    assert (share.wait_us_behind(now_ns, 0) == 0) == (share.check(now_ns, [1]).admitted == 1)

    # Requests ahead are admitted one by one, as soon as possible.
    at_ns = now_ns
    for _ in range(ahead):
        at_ns += share.check(at_ns, [1]).wait_us * 1000
        assert acquire(share, at_ns, [1]).admitted == 1
    at_ns += share.check(at_ns, [1]).wait_us * 1000
    # The wait is never longer than stated, nor much shorter: two balances may each be overdrawn by one. A wait that was
    # stated earlier may include a micro-permit for each share.
    rounded_ns = (len(limiter.shares) + 2) * NS_PER_S // limiter.rate_upermits_per_s
    assert at_ns <= now_ns + wait_us * 1000 + 1000 * (ahead + 2) + rounded_ns
    assert at_ns >= now_ns + wait_us * 1000 - 3 * 3 * NS_PER_S // rate_per_s


# --- properties

KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
COSTS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), max_size=8)
STEPS = st.one_of(st.integers(0, 200 * MS), st.integers(0, 3 * NS_PER_S), st.sampled_from([0, 11 * NS_PER_S]))
CALLS = st.lists(st.tuples(STEPS, KEYS, COSTS), max_size=25)
RATES = st.sampled_from([0, 0.01, 1, 7, 33.333333, 100, 5000])
BREAKS = st.sampled_from([0, 0.3, 1, 2])
MAX_KEYS = st.integers(1, 4)


@given(
    rate_per_s=RATES,
    burst_s=st.sampled_from([0.01, 0.5, 1, 3]),
    break_s=BREAKS,
    most=MAX_KEYS,
    back_ns=st.integers(0, NS_PER_S),
    calls=CALLS,
)
def test_total_never_exceeds_the_bound_and_permits_are_neither_made_nor_lost(
    *,
    rate_per_s: float,
    burst_s: float,
    break_s: float,
    most: int,
    back_ns: int,
    calls: list[tuple[int, str, list[int]]],
) -> None:
    """Integral of the rate + capacity + (n + 1) * largest cost, while keys come, go, and clocks run backwards."""
    limiter = fair(rate_per_s, burst_s=burst_s, break_s=break_s, max_fair_keys=most)
    now_ns = latest_ns = spent = largest = 0
    for at, (step_ns, key, costs) in enumerate(calls):
        now_ns += step_ns if at % 7 else -min(now_ns, back_ns)
        latest_ns = max(latest_ns, now_ns)
        share = limiter.share(key, now_ns)
        total, pool = limiter.settled(now_ns)[0], limiter.pool_upermits(now_ns)
        own = share.settled(now_ns)[0]
        admission = acquire(share, now_ns, costs)
        admitted = costs[: admission.admitted]
        spent += sum(admitted)
        largest = max([largest, *admitted])
        cost = sum(admitted) * UPERMITS_PER_PERMIT

        assert limiter.settled(now_ns)[0] == total - cost
        assert (share.settled(now_ns)[0] - own) + (limiter.pool_upermits(now_ns) - pool) == -cost
        assert limiter.stored_upermits <= limiter.capacity_upermits
        assert len(limiter.shares) <= most + 1
        bound = Fraction(limiter.rate_upermits_per_s * latest_ns, NS_PER_S) + limiter.capacity_upermits
        debts = (len(limiter.shares) + 1) * largest
        assert spent * UPERMITS_PER_PERMIT <= bound + debts * UPERMITS_PER_PERMIT


@given(
    rate_per_s=st.sampled_from([0.5, 1, 7, 100, 5000]),
    keys=st.integers(1, 5),
    calls=st.lists(st.tuples(st.integers(0, NS_PER_S), st.integers(0, 4), COSTS), max_size=40),
)
def test_share_admits_whatever_a_bucket_of_its_own_would(
    rate_per_s: float, keys: int, calls: list[tuple[int, int, list[int]]]
) -> None:
    """The guarantee, request by request, whatever the other keys do."""
    limiter = fair(rate_per_s, break_s=0)
    names = [str(number) for number in range(keys)]
    own: dict[str, Bucket] = {}
    for name in names:
        limiter.share(name, 0)
    for name in names:
        share = limiter.share(name, 0)
        own[name] = Bucket(share.rate_upermits_per_s, share.capacity_upermits, 0)
        own[name].stored_upermits = 0
        own[name].stored_upermits = 1
    now_ns = 0
    for step_ns, number, costs in calls:
        now_ns += step_ns
        for name in names:
            limiter.share(name, now_ns)
        name = names[number % keys]
        alone = own[name]
        admission = acquire(limiter.share(name, now_ns), now_ns, costs)
        for at, cost in enumerate(costs):
            if alone.refill(now_ns) > 0:
                alone.spend(cost)
                assert at < admission.admitted


# --- changed rules


def test_reconfigure_divides_the_new_limit() -> None:
    limiter = fair(100, break_s=0)
    for key in ("a", "b"):
        limiter.share(key, 0)
    now_ns = NS_PER_S
    limiter.reconfigure(now_ns, rule(50, break_s=0))

    assert limiter.stored_upermits == 50 * UPERMITS_PER_PERMIT
    for share in limiter.shares:
        assert share.rate_upermits_per_s == 25 * UPERMITS_PER_PERMIT
        assert share.stored_upermits == pytest.approx(25 * UPERMITS_PER_PERMIT, abs=2)


def test_lowering_and_raising_mints_nothing() -> None:
    limiter = fair(1000, break_s=0)
    admitted = 0
    for at in range(200):
        admitted += ask(limiter, "ab"[at % 2], 0, [10, 10])
        limiter.reconfigure(0, rule(1, break_s=0))
        limiter.reconfigure(0, rule(1000, break_s=0))

    assert admitted <= 1000 + 3 * 10


def test_inherited_debt_is_paid_before_it_is_forgotten() -> None:
    plain = Limiter(ORDERS, Rule("topic", "orders", 100, break_s=0), 0)
    plain.charge(0, 400)
    limiter = fair(100, break_s=0)
    limiter.inherit(plain, 0)

    assert limiter.stored_upermits == -300 * UPERMITS_PER_PERMIT
    assert [share.key for share in limiter.shares] == [OTHER_KEY]
    assert limiter.pool_upermits(0) == 0
    # The whole limit pays it first.
    assert ask(limiter, "a", 2999 * MS, [1]) == 0
    admitted = sum(ask(limiter, "a", tick * MS, [1]) for tick in range(3000, 6000))
    assert admitted == pytest.approx(300, abs=3)


# --- idle


def test_debt_of_a_share_that_is_made_up_for_by_others_is_not_forgiven_by_idleness() -> None:
    limiter = fair(10, break_s=0)
    limiter.share("b", 0)
    share = limiter.share("a", 0)
    share.charge(0, 100)
    paid_ns = -share.stored_upermits * NS_PER_S // share.rate_upermits_per_s

    idle_at_ns = limiter.idle_at_ns()
    assert idle_at_ns is not None
    assert idle_at_ns >= paid_ns > ACTIVE_NS


# --- state


def test_state_shows_the_shares_and_changes_nothing() -> None:
    limiter = fair(100)
    ask(limiter, "a", 0, [1] * 200)
    limiter.share("b", 0)
    before = everything(limiter)
    state = limiter.state(NS_PER_S // 2)

    assert (state.stored_permits, state.open, state.last_refused_ns) == (49.0, False, 0)
    assert [(share.key, round(share.stored_permits), share.open) for share in state.shares] == [
        ("a", 24, True),
        ("b", 25, False),
    ]
    assert state.shares[0].wait_us > state.shares[1].wait_us == 0
    assert everything(limiter) == before


# --- too large for the debt


def test_a_share_may_owe_its_part_and_the_pool_the_rest() -> None:
    limiter = fair(100, max_debt_s=10)
    a, b = limiter.share("a", 0), limiter.share("b", 0)
    now_ns = NS_PER_S

    # Both shares are full, so the pool is empty.
    assert acquire(a, now_ns, [551, 550, 1]) == Admission(0, US_PER_S, 1)
    assert not a.is_open(now_ns)
    assert acquire(a, now_ns, [550]).admitted == 1
    assert a.stored_upermits == -500 * UPERMITS_PER_PERMIT
    assert acquire(b, now_ns, [1] * 50).admitted == 50


def test_request_too_large_for_any_share_is_refused_alone() -> None:
    limiter = fair(100, max_debt_s=10)
    share = limiter.share("a", 0)

    assert acquire(share, 0, [1, 1101, 1]) == Admission(1, US_PER_S, 1)
    assert acquire(share, 2 * NS_PER_S, [1100, 1]).admitted == 1
