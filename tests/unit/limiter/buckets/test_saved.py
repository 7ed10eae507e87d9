"""A limiter's saved state is continued by another process: no debt is forgotten or charged twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.buckets.factory import new_limiter
from limiter.buckets.fair import OTHER_KEY, FairLimiter
from limiter.buckets.limiter import Limiter
from limiter.buckets.saved import MAX_DEBT_S, SavedShare, restore, save
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, Rule

TOPIC = Resource("topic", "orders")
RULES = {
    "plain": Rule("topic", "orders", 10),
    "no breaker": Rule("topic", "orders", 10, break_s=0),
    "warm-up": Rule("topic", "orders", 10, warm_up_s=4),
    "fair": Rule("topic", "orders", 10, fair_by="client"),
}
START_NS = 1_000_000 * NS_PER_S


def asked(limiter: Limiter, now_ns: int, costs: list[int], key: str) -> tuple[int, int]:
    gate = limiter.share(key, now_ns)
    admission = gate.check(now_ns, costs)
    gate.commit(now_ns, costs[: admission.admitted])
    if admission.admitted < len(costs):
        gate.refuse(now_ns)
    return admission.admitted, admission.wait_us


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("spent", [[1] * 3, [1] * 30, [7, 5]])
def test_a_limiter_continues_that_of_another_process(name: str, spent: list[int]) -> None:
    rule = RULES[name]
    goes_on = new_limiter(TOPIC, rule, START_NS)
    asked(goes_on, START_NS, spent, "a")
    asked(goes_on, START_NS + NS_PER_S // 50, [1], "b")
    saved = save(goes_on, START_NS + NS_PER_S // 20, shared=False)
    assert saved is not None
    other = restore(saved, rule, START_NS + NS_PER_S // 20)
    assert type(other) is type(goes_on)
    for step in range(1, 40):
        now_ns = START_NS + NS_PER_S // 20 + step * NS_PER_S // 7
        for key in "ab":
            costs = [1] * (step % 4 + 1)
            assert asked(other, now_ns, costs, key) == asked(goes_on, now_ns, costs, key)


@pytest.mark.parametrize("name", RULES)
def test_full_limiters_are_not_saved(name: str) -> None:
    limiter = new_limiter(TOPIC, RULES[name], START_NS)
    assert save(limiter, START_NS, shared=False) is None
    asked(limiter, START_NS, [1], "a")
    assert save(limiter, START_NS, shared=False) is not None
    assert save(limiter, START_NS + 100 * NS_PER_S, shared=False) is None


def test_a_rule_that_is_another_one_by_now_comes_into_force_as_on_a_live_limiter() -> None:
    limiter = Limiter(TOPIC, RULES["plain"], START_NS)
    limiter.charge(START_NS, 40)
    saved = save(limiter, START_NS, shared=False)
    assert saved is not None
    lowered, fair = Rule("topic", "orders", 5), RULES["fair"]
    assert restore(saved, lowered, START_NS).state(START_NS).stored_permits == -30
    total = restore(saved, fair, START_NS)
    assert isinstance(total, FairLimiter)
    assert total.state(START_NS).stored_permits == -30
    assert [share.stored_permits for share in total.state(START_NS).shares] == [-30]


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_ns": START_NS + 1},
        {"at_ns": -1},
        {"stored_upermits": 10**9},
        {"rate_upermits_per_s": -1},
        {"forgiven_upermits": -1},
        {"shares": (SavedShare("a", 0, START_NS + 1, None, START_NS),)},
        {"shares": (SavedShare("a", 0, START_NS, None, START_NS + 1),)},
    ],
)
def test_figures_that_no_limiter_has_are_refused(wrong: dict[str, Any]) -> None:
    limiter = Limiter(TOPIC, RULES["plain"], START_NS)
    limiter.charge(START_NS, 4)
    saved = save(limiter, START_NS, shared=False)
    assert saved is not None
    with pytest.raises(ValueError, match="topic:orders"):
        restore(saved._replace(**wrong), RULES["plain"], START_NS)


FIGURES = st.integers(-(2**63), 2**63 - 1)
POSITIVE = st.integers(0, 2**63 - 1)
TIMES = st.integers(0, START_NS)
SHARES = st.builds(SavedShare, st.sampled_from(["a", "b", OTHER_KEY]), FIGURES, TIMES, st.none() | FIGURES, TIMES)


@pytest.mark.parametrize("name", RULES)
@given(
    figures=st.fixed_dictionaries(
        {
            "rate_upermits_per_s": st.just(10_000_000) | POSITIVE,
            "capacity_upermits": st.just(10_000_000) | POSITIVE,
            "stored_upermits": FIGURES,
            "forgiven_upermits": POSITIVE,
            "at_ns": TIMES,
            "open_next_free_ns": st.none() | FIGURES,
            "last_refused_ns": st.none() | FIGURES,
            "cold_upermits": FIGURES,
            "coldest_upermits": st.just(0) | FIGURES,
            "shares": st.lists(SHARES, max_size=3, unique_by=lambda share: share.key).map(tuple),
        }
    )
)
def test_saved_state_never_blocks_a_limit_for_long(name: str, figures: dict[str, Any]) -> None:
    limiter = new_limiter(TOPIC, RULES[name], START_NS)
    asked(limiter, START_NS, [1], "a")
    saved = save(limiter, START_NS, shared=False)
    assert saved is not None
    try:
        restored = restore(saved._replace(**figures), RULES[name], START_NS)
    except ValueError:
        assert figures["stored_upermits"] > figures["capacity_upermits"]
        return
    end_ns = START_NS + (MAX_DEBT_S + 60) * NS_PER_S
    assert [asked(restored, end_ns, [1], key)[0] for key in "ab"] == [1, 1]
    assert restored.state(end_ns).stored_permits <= 10
    idle_at_ns = restored.idle_at_ns()
    assert idle_at_ns is not None
    assert idle_at_ns < end_ns + 10 * MAX_DEBT_S * NS_PER_S


def test_spending_of_another_process_becomes_debt_and_keeps_the_breaker_open() -> None:
    limiter = Limiter(TOPIC, RULES["plain"], START_NS)
    limiter.acquire(START_NS, [1] * 11)
    assert limiter.open_us(START_NS) > 0
    closes_us = limiter.open_us(START_NS)
    limiter.debit(START_NS, 20_000_000)
    assert limiter.state(START_NS).stored_permits == -20
    assert limiter.open_us(START_NS) == closes_us + 2_000_000
    limiter.debit(START_NS, -100_000_000)
    assert limiter.state(START_NS).stored_permits == 10
