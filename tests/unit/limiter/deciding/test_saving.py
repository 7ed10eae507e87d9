"""All limits of a process, continued by another one: together both give each limit once."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.buckets.saved import MAX_DEBT_S
from limiter.deciding.limits import Caller, Denial, Held, Limits, SavedLimits, Spent
from limiter.rules.resource import OVERFLOW_NAME, Resource
from limiter.rules.rule import UPERMITS_PER_PERMIT, Rule
from limiter.rules.rule_set import RuleSet

S = 1_000_000_000
ASKER = Caller("10.1.2.3", "g", "main")
ORDERS = Resource("topic", "orders")


def limits_by(*rules: Rule, max_live: int = 100) -> Limits:
    return Limits(RuleSet(rules), max_live)


def ask(limits: Limits, count: int, now_ns: int, resource: Resource = ORDERS) -> int:
    return limits.decide(now_ns, (resource,), ASKER, [1] * count, lambda: [100] * count).admitted


def balance(limits: Limits, now_ns: int, resource: Resource = ORDERS) -> float | None:
    state = limits.state(resource, now_ns)
    return None if state is None else state.stored_permits


def save(limits: Limits, now_ns: int, ends_ns: int) -> SavedLimits:
    """Take all steps at once."""
    return finish(limits.save(now_ns, ends_ns))


def finish(steps: Generator[None, None, SavedLimits]) -> SavedLimits:
    while True:
        try:
            next(steps)
        except StopIteration as over:
            saved: SavedLimits = over.value
            return saved


class Waiting(Held):
    """A waiting request that records its outcome."""

    __slots__ = ("outcome",)

    def __init__(self, *, refusable: bool = True, messages: int = 1) -> None:
        caller = ASKER._replace(refusable=refusable)
        super().__init__((ORDERS,), caller, messages, 100, connection=1, order_key=None)
        self.outcome: Denial | str | None = None

    def resolved(self, stop: Denial | None) -> None:
        self.outcome = stop or "passed"


def hold(limits: Limits, now_ns: int, **how: bool | int) -> Waiting:
    held = Waiting(**how)  # type: ignore[arg-type]  # one is a bool, the other an int
    decision = limits.decide(now_ns, (ORDERS,), held.caller, [held.messages], lambda: [100])
    assert decision.delays
    assert limits.delays.hold(now_ns, decision, held) is None
    return held


def test_only_limits_that_differ_from_new_ones_are_saved_and_continued() -> None:
    rules = (Rule("topic", "*", 10), Rule("topic", "orders", 5, bytes_per_s=2000))
    before = limits_by(*rules)
    quiet = Resource("topic", "quiet")
    assert ask(before, 8, S) == 5
    assert ask(before, 3, S, Resource("topic", "t")) == 3
    assert ask(before, 1, S, quiet) == 1
    saved = save(before, S + S // 2, S + S // 2)
    names = {dimension: sorted(each.name for each in found) for dimension, found in saved.limiters.items()}
    assert names == {"messages": ["orders"], "bytes": []}
    after = limits_by(*rules)
    assert after.restore(saved, S + S // 2) == (1, 0)
    assert balance(after, S + S // 2) == balance(before, S + S // 2)
    assert balance(after, S + S // 2, quiet) is None


@pytest.mark.parametrize("taken", range(3))
def test_spending_between_two_saves_is_deducted_once(taken: int) -> None:
    resources = [ORDERS, Resource("topic", "other")]
    before, after = limits_by(Rule("topic", "*", 10)), limits_by(Rule("topic", "*", 10))
    for resource in resources:
        ask(before, 4, S, resource)
    steps = before.save(S, S)
    for _ in range(taken):
        next(steps)
    for resource in (*resources, Resource("topic", "new")):
        ask(before, 3, S, resource)
    saved = finish(steps)
    after.restore(saved, S)
    after.debit(before.spent_since(saved, S), S)
    for resource in (*resources, Resource("topic", "new")):
        assert balance(after, S, resource) == balance(before, S, resource)


def test_saved_state_without_a_limit_or_invalid_is_ignored() -> None:
    before = limits_by(Rule("topic", "orders", 5), Rule("topic", "other", 5))
    ask(before, 9, S)
    ask(before, 9, S, Resource("topic", "other"))
    saved = save(before, S, S)
    assert limits_by(Rule("topic", "other", 5)).restore(saved, S) == (1, 1)
    wrong = [each._replace(at_ns=S + 1) for each in saved.limiters["messages"]]
    assert limits_by(Rule("topic", "*", 5)).restore(saved._replace(limiters={"messages": wrong}), S) == (0, 2)


def test_overflow_limiters_are_saved_and_restored() -> None:
    before = limits_by(Rule("topic", "*", 5), max_live=1)
    ask(before, 9, S)
    ask(before, 9, S, Resource("topic", "no-room"))
    saved = save(before, S, S)
    assert [(each.name, each.shared) for each in saved.limiters["messages"]] == [
        ("orders", False),
        (OVERFLOW_NAME, True),
    ]
    after = limits_by(Rule("topic", "*", 5), max_live=1)
    assert after.restore(saved, S) == (2, 0)
    assert ask(after, 1, S, Resource("topic", "no-room-either")) == 0


def test_held_requests_are_reserved_in_the_successor_until_settled() -> None:
    rule = Rule("topic", "orders", 10, action="delay", max_delay_s=2)
    before, after = limits_by(rule), limits_by(rule)
    assert ask(before, 11, S) == 10
    held = [hold(before, S) for _ in range(5)]
    saved = save(before, S, S + 10 * S)
    assert [each.upermits for each in saved.reserved] == [5_000_000]
    after.restore(saved, S)
    assert balance(after, S) == -5
    # One of them leaves, the others pass as their permits come.
    before.holding.drop(held[4])
    now_ns = S
    while (due_ns := before.holding.next_due_ns()) is not None:
        now_ns = max(now_ns, due_ns)
        before.holding.release(now_ns)
    assert [each.outcome for each in held] == ["passed"] * 4 + [None]
    spent = before.spent_since(saved, now_ns)
    assert [each.upermits for each in spent] == [-1_000_000]
    owed = balance(after, now_ns)
    after.debit(spent, now_ns)
    assert owed is not None
    assert balance(after, now_ns) == pytest.approx(owed + 1)


@pytest.mark.parametrize("upermits", [-(2**62), 2**62])
def test_reservations_expire_and_mint_nothing(upermits: int) -> None:
    limits = limits_by(Rule("topic", "orders", 10))
    ask(limits, 9, S)
    aside = Spent("messages", *ORDERS, "topic:orders", False, upermits)
    limits.restore(SavedLimits(S, {}, [aside] * 3), S)
    assert ask(limits, 5, S) <= 1
    assert ask(limits, 1, S + (MAX_DEBT_S + 60) * S) == 1


def test_reservations_are_bounded_by_the_remaining_permits() -> None:
    rule = Rule("topic", "orders", 10, action="delay", max_delay_s=60)
    before = limits_by(rule)
    ask(before, 11, S)
    for _ in range(50):
        hold(before, S)
    assert [each.upermits for each in save(before, S, 3 * S).reserved] == [20_000_000]


@pytest.mark.parametrize("known", [True, False])
def test_later_spending_of_the_predecessor_is_deducted(known: bool) -> None:  # noqa: FBT001 - a parameter
    rule = Rule("topic", "orders", 10)
    before, after = limits_by(rule), limits_by(rule)
    if known:
        ask(before, 4, S)
    saved = save(before, S, S)
    after.restore(saved, S)
    ask(before, 3, S)
    after.debit(before.spent_since(saved, S), S)
    assert balance(after, S) == balance(before, S)


def test_unrefusable_requests_pass_at_the_end_of_a_drain_as_debt() -> None:
    rule = Rule("topic", "orders", 1, action="delay", max_delay_s=2)
    limits = limits_by(rule)
    ask(limits, 1, S)
    held = hold(limits, S, refusable=False, messages=7)
    limits.holding.drain(2 * S)
    limits.holding.release(2 * S)
    assert held.outcome == "passed"
    assert (balance(limits, 2 * S) or 0) <= -6


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "hand over", "straggle", "settle"]),
        st.integers(0, 2 * S),
        st.integers(1, 30),
    ),
    max_size=60,
)


@given(STEPS)
def test_repeated_take_overs_admit_no_more_than_one_process(steps: list[tuple[str, int, int]]) -> None:
    rule = Rule("topic", "orders", 10, break_s=0)
    now_ns, total, unsettled = S, 0, 0
    current = limits_by(rule)
    before: tuple[Limits, SavedLimits] | None = None
    rounded = 0.0
    for what, passes_ns, count in steps:
        now_ns += passes_ns
        if what == "ask":
            total += ask(current, count, now_ns)
        elif what == "straggle" and before is not None:
            # A request whose reading began before. It is settled when the old process ends.
            admitted = ask(before[0], count, now_ns)
            total, unsettled = total + admitted, unsettled + admitted
        elif before is not None:
            current.debit(before[0].spent_since(before[1], now_ns), now_ns)
            before, unsettled = None, 0
        if what == "hand over":
            saved = save(current, now_ns, now_ns)
            before, current = (current, saved), limits_by(rule)
            current.restore(saved, now_ns)
            # A micro-permit for each part spent.
            rounded += 3 / UPERMITS_PER_PERMIT
        # The rate since the beginning, one burst, and the rounding up of ``bucket``. Permits that the old process
        # admitted beyond that are a debt of the new one, once it knows.
        owed = max(0.0, -(balance(current, now_ns) or 0.0))
        assert total - unsettled - owed <= 10 * (now_ns - S) / S + 10 + 1 + rounded
