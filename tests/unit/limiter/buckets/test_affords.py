"""What limiters say and do for credit, against what they say and do for single requests."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

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
def test_credit_is_decided_and_spent_as_so_many_single_requests_are(
    rate: float, debt_s: float, more: dict[str, Any], steps: list[tuple[int, str, int, int, str]]
) -> None:
    credit, single = limiter_of(rate, debt_s, more), limiter_of(rate, debt_s, more)
    now_ns = 0
    for pause_ns, key, price, most, what in steps:
        now_ns += pause_ns
        gates = [limiter.share(key, now_ns) for limiter in (credit, single)]
        price = min(price, credit.rule.most_permits)  # noqa: PLW2901 - as whoever asks does
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
def test_what_is_given_back_makes_up_for_what_was_spent_and_no_more(
    rate: float, more: dict[str, Any], spent: int, back: int
) -> None:
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
    price = min(price, limiter.rule.most_permits)
    gate = limiter.share("x", 0)
    turn = gate.turn(price, waiting, lines)
    assert turn >= 1
    assert gate.affords(100 * S, price, turn) == turn
