from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from idleness import is_idle

from limiter.buckets.factory import apply_rule, new_limiter, restart_limiter
from limiter.buckets.fair import FairLimiter
from limiter.buckets.limiter import Limiter
from limiter.buckets.warm_up import WarmUpLimiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

ORDERS = Resource("topic", "orders")
PLAIN = Rule("topic", "orders", 90, break_s=0, max_debt_s=3600)
FAIR = replace(PLAIN, fair_by="client")
WARM = replace(PLAIN, warm_up_s=10)
KINDS: dict[str, tuple[Rule, type[Limiter]]] = {
    "plain": (PLAIN, Limiter),
    "fair": (FAIR, FairLimiter),
    "warm-up": (WARM, WarmUpLimiter),
}


def another(rule: Rule, **changes: Any) -> Rule:
    return replace(rule, **changes)


def most_at_once(limiter: Limiter, now_ns: int) -> int:
    return limiter.share("a", now_ns).check(now_ns, [1] * 1000).admitted


@given(
    rule=st.sampled_from(
        # Fair shares have no such short cut.
        [PLAIN, WARM, replace(PLAIN, rate_per_s=0), replace(PLAIN, break_s=1)]
    ),
    steps=st.lists(
        st.tuples(
            # Whole micro-permits. Otherwise the last one depends on the number of refills.
            st.sampled_from([0, 1000, NS_PER_S // 8, NS_PER_S, 9 * NS_PER_S]),
            st.sampled_from("ab"),
            st.lists(st.integers(0, 60), min_size=1, max_size=4),
        ),
        max_size=12,
    ),
)
def test_admits_and_spend_equal_check_and_commit(rule: Rule, steps: list[tuple[int, str, list[int]]]) -> None:
    quick, exact = new_limiter(ORDERS, rule, 0), new_limiter(ORDERS, rule, 0)
    now_ns = 0
    for pause_ns, key, costs in steps:
        now_ns += pause_ns
        gate, other = quick.share(key, now_ns), exact.share(key, now_ns)
        admitted = other.check(now_ns, costs).admitted
        other.commit(now_ns, costs[:admitted])
        if gate.admits(now_ns, sum(costs[:-1]), sum(costs)):
            assert admitted == len(costs)
            gate.spend(sum(costs))
        else:
            gate.commit(now_ns, costs[: gate.check(now_ns, costs).admitted])
        if admitted < len(costs):
            assert gate.refuse(now_ns) == other.refuse(now_ns)
        assert quick.state(now_ns) == exact.state(now_ns)


@pytest.mark.parametrize(("new", "kind"), KINDS.values(), ids=[f"to {name}" for name in KINDS])
@pytest.mark.parametrize("old", [rule for rule, _ in KINDS.values()], ids=KINDS)
def test_successor_stores_no_more_and_owes_no_less(old: Rule, new: Rule, kind: type[Limiter]) -> None:
    for spent in (0, 20, 500):
        before = new_limiter(ORDERS, old, 0)
        before.share("a", 0).charge(0, spent)
        balance, could = before.stored_upermits, most_at_once(before, 0)
        after = apply_rule(before, 0, another(new, rate_per_s=90))

        assert type(after) is kind
        assert after.stored_upermits <= max(balance, 0)
        assert after.stored_upermits <= balance or balance > 0
        assert (after.stored_upermits < 0) == (balance < 0)
        # A new key of a fair limiter gets its first request on credit.
        assert most_at_once(after, 0) <= could + (kind is FairLimiter)


@pytest.mark.parametrize("new", [rule for rule, _ in KINDS.values()], ids=[f"to {name}" for name in KINDS])
@pytest.mark.parametrize("old", [rule for rule, _ in KINDS.values()], ids=KINDS)
def test_reset_limiter_is_full_closed_and_without_debt(old: Rule, new: Rule) -> None:
    before = new_limiter(ORDERS, another(old, break_s=None), 0)
    before.share("a", 0).charge(0, 500)
    before.share("a", 0).refuse(0)
    after = restart_limiter(before, NS_PER_S, new)

    assert is_idle(after, NS_PER_S)
    assert after.stored_upermits == after.capacity_upermits
    assert (after.last_refused_ns, after.at_ns) == (0, NS_PER_S)


@pytest.mark.parametrize(("other", "most"), [(WARM, 90), (FAIR, 90 + 150)], ids=["warm-up", "fair"])
def test_lowering_and_raising_repeatedly_mints_nothing(other: Rule, most: int) -> None:
    """A new key of a fair limiter gets one on credit each time, as a debt."""
    limiter = new_limiter(ORDERS, PLAIN, 0)
    admitted = 0
    for at in range(300):
        share = limiter.share("a", 0)
        costs = [1] * share.check(0, [1, 1]).admitted
        share.commit(0, costs)
        admitted += len(costs)
        limiter = apply_rule(limiter, 0, (other, PLAIN)[at % 2])

    assert admitted <= most
    assert limiter.stored_upermits <= (90 - admitted) * UPERMITS_PER_PERMIT


def test_cold_limiter_converts_its_permits_at_their_price() -> None:
    cold = new_limiter(ORDERS, another(WARM, warm_up_s=3600), 0)
    could = most_at_once(cold, 0)
    after = apply_rule(cold, 0, PLAIN)

    assert could == pytest.approx(30, abs=1)
    assert most_at_once(after, 0) <= could
    assert after.stored_upermits >= (could - 1) * UPERMITS_PER_PERMIT


def test_last_refusal_and_the_registrys_bookkeeping_go_along() -> None:
    plain = new_limiter(ORDERS, another(PLAIN, break_s=1), 0)
    plain.acquire(5, [1] * 100)
    plain.epoch, plain.asked_ns = 3, 4
    after = apply_rule(plain, 6, FAIR)

    assert (after.last_refused_ns, after.last_wait_us) == (5, 1_000_000)
    assert (after.epoch, after.asked_ns) == (3, 4)
    assert not after.state(6).open
