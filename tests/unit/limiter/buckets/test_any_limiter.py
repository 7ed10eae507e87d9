"""Properties of every kind of limiter, and of each share of a fair one."""

from __future__ import annotations

from typing import Any

import pytest
from acquiring import acquire
from hypothesis import example, given
from hypothesis import strategies as st
from idleness import is_idle

from limiter.buckets.factory import new_limiter
from limiter.buckets.limiter import Gate, Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import UPERMITS_PER_PERMIT, Rule

A = Resource("topic", "a")
S = 1_000_000_000

KINDS = st.sampled_from([{}, {"break_s": 0.5}, {"warm_up_s": 3.0}, {"fair_by": "client"}])
RATES = st.sampled_from([0, 0.5, 1, 7, 100, 5_000])
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, S // 1000, S // 7, S, 20 * S]),
        st.sampled_from(["x", "x", "y", "z"]),
        st.integers(1, 30),
        st.integers(1, 40),
        st.sampled_from(["take", "take", "charge", "refuse", "back"]),
    ),
    max_size=15,
)


def limiter_of(rate: float, debt_s: float, more: dict[str, Any]) -> Limiter:
    action: Any = {} if "break_s" in more else {"break_s": 0}
    return new_limiter(A, Rule("topic", "a", rate, max_debt_s=debt_s, **(more | action)), 0)


def state(limiter: Limiter, gate: Gate, now_ns: int) -> tuple[object, ...]:
    cold = getattr(limiter, "cold_upermits", None)
    shares = [share.settled(now_ns) for share in getattr(limiter, "shares", ())]
    return limiter.settled(now_ns), gate.settled(now_ns), gate.open_next_free_ns, cold, shares


@given(rate=RATES, debt_s=st.sampled_from([0.0, 0.1, 10.0]), more=KINDS, steps=STEPS)
def test_credit_is_decided_like_single_requests(
    rate: float, debt_s: float, more: dict[str, Any], steps: list[tuple[int, str, int, int, str]]
) -> None:
    credit, single = limiter_of(rate, debt_s, more), limiter_of(rate, debt_s, more)
    now_ns = 0
    for pause_ns, key, price, most, what in steps:
        now_ns += pause_ns
        gates = [limiter.share(key, now_ns) for limiter in (credit, single)]
        price = min(price, credit.rule.max_permits)  # noqa: PLW2901 - as whoever asks does
        if what == "take":
            count = gates[0].affords(now_ns, price, most)
            assert count == gates[1].check(now_ns, (price,) * most).admitted
            if count:
                gates[0].take(now_ns, price, count)
                gates[1].commit(now_ns, (price,) * count)
        else:
            for gate in gates:
                if what == "charge":
                    gate.charge(now_ns, price)
                elif what == "back":
                    gate.give_back(now_ns, price)
                else:
                    gate.refuse(now_ns)
        assert state(credit, gates[0], now_ns) == state(single, gates[1], now_ns)
        for gate in (credit, *getattr(credit, "shares", ())):
            assert gate.settled(now_ns)[0] <= gate.capacity_upermits


@given(rate=RATES, more=KINDS, spent=st.integers(0, 400), back=st.integers(1, 400))
def test_refund_restores_at_most_the_permits_spent(rate: float, more: dict[str, Any], spent: int, back: int) -> None:
    limiter = limiter_of(rate, 10.0, more)
    gate = limiter.share("x", 0)
    gate.charge(0, spent)
    before = limiter.settled(0)[0]
    gate.give_back(0, back)
    expected = min(limiter.capacity_upermits, before + back * UPERMITS_PER_PERMIT)
    assert limiter.settled(0)[0] == expected
    assert gate.settled(0)[0] <= gate.capacity_upermits


@given(
    rate=st.sampled_from([1, 7, 100, 5_000, 1_000_000]),
    more=KINDS,
    price=st.integers(1, 10),
    waiting=st.integers(0, 5_000),
    lines=st.integers(0, 5_000),
)
def test_turn_is_some_time_there(rate: float, more: dict[str, Any], price: int, waiting: int, lines: int) -> None:
    limiter = limiter_of(rate, 10.0, more)
    price = min(price, limiter.rule.max_permits)
    gate = limiter.share("x", 0)
    turn = gate.turn(price, waiting, lines)
    assert turn >= 1
    assert gate.affords(100 * S, price, turn) == turn


# --- Requests ---------------------------------------------------------------------------------------

REQUEST_KINDS = st.sampled_from(
    [
        {},
        {"break_s": 0},
        {"break_s": 2.0},
        {"warm_up_s": 0.1},
        {"warm_up_s": 3600.0},
        {"fair_by": "client", "max_fair_keys": 2},
        {"fair_by": "client", "break_s": 0},
    ]
)
KEYS = st.sampled_from("abcd")
COSTS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 200)), max_size=12)
PAUSES = st.one_of(st.integers(-S, 2 * S), st.sampled_from([0, 11 * S, 60 * S]))
CALLS = st.lists(st.tuples(PAUSES, KEYS, COSTS), max_size=12)
DEBTS = st.sampled_from([0, 0.5, 10, 3600])


def limiter_by(rate: float, more: dict[str, Any], debt_s: float = 3600, burst_s: float = 1.0) -> Limiter:
    rule = Rule("topic", "a", rate, max_debt_s=debt_s, burst_s=burst_s, allow_under_limit=True, **more)
    return new_limiter(A, rule, 0)


def remembered(limiter: Limiter, gate: Gate, now_ns: int) -> tuple[object, ...]:
    return *state(limiter, gate, now_ns), limiter.open_next_free_ns, limiter.last_refused_ns, limiter.last_wait_us


@given(rate=RATES, more=REQUEST_KINDS, debt_s=DEBTS, calls=CALLS)
@example(rate=100_000, more={"break_s": 0}, debt_s=10, calls=[(1, "a", [0]), (-1, "a", [])])
def test_batch_is_its_single_calls_and_check_changes_nothing(
    rate: float, more: dict[str, Any], debt_s: float, calls: list[tuple[int, str, list[int]]]
) -> None:
    batched, single = limiter_by(rate, more, debt_s), limiter_by(rate, more, debt_s)
    now_ns = 0
    for pause_ns, key, costs in calls:
        now_ns += pause_ns
        gate, one = batched.share(key, now_ns), single.share(key, now_ns)
        rest = costs
        while True:
            before = remembered(batched, gate, now_ns)
            assert gate.check(now_ns, rest) == gate.check(now_ns, rest)
            assert remembered(batched, gate, now_ns) == before
            batch = acquire(gate, now_ns, rest)
            end = batch.admitted + batch.alone if batch.alone else len(rest)
            singles = [acquire(one, now_ns, [cost]) for cost in rest[:end]]
            assert [bool(each.admitted) for each in singles] == [at < batch.admitted for at in range(end)]
            stopped_alone = any(each.alone for each in singles)
            if not batch.alone and not stopped_alone:
                assert batch.wait_us == (singles[-1].wait_us if singles else 0)
            if batch.alone:
                assert [each.alone for each in singles[batch.admitted :]] == [1] * batch.alone
            single.last_wait_us = batched.last_wait_us
            # Behind a request that stops the rest, an expensive one gets that one's answer.
            if batch.alone or not stopped_alone:
                assert remembered(batched, gate, now_ns) == remembered(single, one, now_ns)
            if not batch.alone:
                break
            rest = rest[end:]


@given(rate=RATES, more=REQUEST_KINDS, debt_s=DEBTS, calls=CALLS)
def test_a_limiter_asked_by_itself_takes_the_same_steps(
    rate: float, more: dict[str, Any], debt_s: float, calls: list[tuple[int, str, list[int]]]
) -> None:
    whole, parts = limiter_by(rate, more, debt_s), limiter_by(rate, more, debt_s)
    now_ns = 0
    for pause_ns, _, costs in calls:
        now_ns += pause_ns
        assert whole.acquire(now_ns, costs) == acquire(parts, now_ns, costs)
        assert remembered(whole, whole, now_ns) == remembered(parts, parts, now_ns)


@given(
    rate=st.sampled_from([0.3, 1, 7, 33.333333, 100, 5000]),
    burst_s=st.sampled_from([0.01, 0.5, 1, 3]),
    more=REQUEST_KINDS.filter(lambda more: "fair_by" not in more),
    calls=CALLS,
)
def test_never_admits_more_than_integral_and_burst_and_the_largest_cost_less_one(
    rate: float, burst_s: float, more: dict[str, Any], calls: list[tuple[int, str, list[int]]]
) -> None:
    """Integral and burst are rounded up to a whole permit, because the last fraction may be borrowed against."""
    limiter = limiter_by(rate, more, burst_s=burst_s)
    now_ns = latest_ns = spent = largest = 0
    for pause_ns, _, costs in calls:
        now_ns += pause_ns
        latest_ns = max(latest_ns, now_ns)
        admitted = costs[: limiter.acquire(now_ns, costs).admitted]
        spent += sum(admitted)
        largest = max([largest, *admitted])
        earned = limiter.rate_upermits_per_s * latest_ns + limiter.capacity_upermits * S
        assert spent <= max(0, -(-earned // (S * UPERMITS_PER_PERMIT)) + largest - 1)


@given(
    rate=st.sampled_from([0.01, 0.7, 1, 7, 333.3, 100_000]),
    more=REQUEST_KINDS,
    calls=st.lists(st.tuples(st.integers(0, S), KEYS, COSTS), max_size=8),
    pause_ns=st.integers(0, 3 * S),
)
def test_the_stated_wait_is_long_enough_and_hardly_longer_without_others(
    rate: float, more: dict[str, Any], calls: list[tuple[int, str, list[int]]], pause_ns: int
) -> None:
    limiter = limiter_by(rate, more)
    now_ns = 0
    for step_ns, key, costs in calls:
        now_ns += step_ns
        acquire(limiter.share(key, now_ns), now_ns, costs)
    now_ns += pause_ns
    gate = limiter.share("a", now_ns)
    if "fair_by" in more and gate.open_us(now_ns):
        return  # true when it opened. Another key may have come since
    wait_us = acquire(gate, now_ns, [1]).wait_us
    if wait_us:
        assert gate.check(now_ns + wait_us * 1000, [1]).admitted == 1
        # Every balance is known to a micro-permit, and the pool grows at least at some share's rate.
        slack_ns = 1000 + 12 * S // gate.rate_upermits_per_s
        assert gate.check(now_ns + wait_us * 1000 - slack_ns, [1]).admitted == 0


@given(rate=RATES, more=REQUEST_KINDS, calls=CALLS, later=CALLS)
def test_idle_is_indistinguishable_from_new(
    rate: float,
    more: dict[str, Any],
    calls: list[tuple[int, str, list[int]]],
    later: list[tuple[int, str, list[int]]],
) -> None:
    used = limiter_by(rate, more)
    now_ns = 0
    for pause_ns, key, costs in calls:
        now_ns += pause_ns
        acquire(used.share(key, now_ns), now_ns, costs)
    idle_at_ns = used.idle_at_ns()
    if idle_at_ns is None:
        assert not rate
        return
    now_ns = max(now_ns, idle_at_ns)
    assert is_idle(used, now_ns)
    new = new_limiter(A, used.rule, now_ns)
    for pause_ns, key, costs in later:
        now_ns += abs(pause_ns)
        ours, theirs = (acquire(it.share(key, now_ns), now_ns, costs) for it in (used, new))
        assert ours.admitted == theirs.admitted
        assert ours.wait_us == pytest.approx(theirs.wait_us, abs=2 + 40 * 10**6 // max(1, used.rate_upermits_per_s))


@given(rate=RATES, more=REQUEST_KINDS, calls=CALLS, pause_ns=st.integers(0, S))
def test_reading_the_state_changes_nothing(
    rate: float, more: dict[str, Any], calls: list[tuple[int, str, list[int]]], pause_ns: int
) -> None:
    limiter = limiter_by(rate, more)
    now_ns = 0
    for step_ns, key, costs in calls:
        now_ns += step_ns
        acquire(limiter.share(key, now_ns), now_ns, costs)
    before = remembered(limiter, limiter, now_ns)
    limiter.state(now_ns + pause_ns)
    assert remembered(limiter, limiter, now_ns) == before
