"""Edits that flip one field of a limit, and restarts between them, while many callers flood one topic."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limiter.deciding.limits import Caller, Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

NS_PER_S = 1_000_000_000
MS = 1_000_000
TAKES_NS = 150 * MS
ORDERS = Resource("topic", "orders")
RATE = 10
LARGEST = 3
CALLERS = [Caller(f"10.0.0.{n}", f"group-{n % 3}", "orders") for n in range(5)]
KEYS = 5 + 3 + 1  # addresses, groups, and those beyond the bound
PLAIN = Rule("topic", "*", RATE, break_s=0)

# Possible values by field, the initial one first.
FLIPS: dict[str, tuple[Any, ...]] = {
    "fair_by": (None, "client", "producer_group"),
    "warm_up_s": (0.0, 2.0),
    "burst_s": (1.0, 0.5, 2.0),
    "action": ("reject", "delay"),
    "count": ("messages", "requests"),
    "shared": (False, True),
    "max_debt_s": (10.0, 0.1),
    "max_fair_keys": (32, 1),
    "rate_per_s": (RATE, RATE / 2),
    "break_s": (0, 0.2),
    "bytes_per_s": (None, 1_000_000),
    "pattern": ("*", "o*", "or*"),
}
LARGEST_BURST = RATE * max(FLIPS["burst_s"])


@dataclass
class Flip:
    field: str
    to: Any


class Restart:
    """Another process takes over. Meanwhile this one still decides."""


FLIP = st.one_of([st.builds(Flip, st.just(field), st.sampled_from(values)) for field, values in FLIPS.items()])
TIMES = st.sampled_from([0, 0, 0, MS, 30 * MS, 400 * MS])


def flipped(rule: Rule, flip: Flip) -> Rule:
    changes = {flip.field: flip.to}
    # Incompatible fields.
    if flip.field == "fair_by" and flip.to:
        changes["warm_up_s"] = 0.0
    if flip.field == "warm_up_s" and flip.to:
        changes |= {"fair_by": None, "break_s": 0}
    if flip.field == "break_s" and flip.to:
        changes |= {"warm_up_s": 0.0, "action": "reject"}
    if flip.field == "action" and flip.to == "delay":
        changes["break_s"] = 0
    return replace(rule, **changes)


def flood(limits: Limits, now_ns: int, cost: int) -> int:
    """Let every caller ask, as long as anything passes. Return the sum."""
    spent = 0
    for caller in CALLERS:
        while limits.decide(now_ns, (ORDERS,), caller, [cost], lambda: [1]).admitted:
            spent += cost
            assert spent < 1000, "it admits without end"
    return spent


@pytest.mark.parametrize("kind", ["topic", "listener"])
@given(
    steps=st.lists(
        st.tuples(TIMES, st.one_of(FLIP, FLIP, FLIP, st.builds(Restart)), st.integers(1, LARGEST)), max_size=8
    )
)
@example(steps=[(0, Flip("fair_by", "client"), 1), (0, Flip("fair_by", None), 1)])
@example(steps=[(0, Flip("shared", to=True), 1), (0, Flip("shared", to=False), 1)])
@example(steps=[(0, Flip("shared", to=True), 1), (0, Flip("pattern", "o*"), 1), (0, Flip("pattern", "*"), 1)])
def test_flips_of_any_field_pass_one_burst_and_no_more(kind: str, steps: list[tuple[int, Flip | Restart, int]]) -> None:
    rule = replace(PLAIN, kind=kind)
    limits = Limits(RuleSet((rule,)))
    now_ns = spent = 0
    fields = {step.field for _, step, _ in steps if isinstance(step, Flip)}
    # Many rounds of edits never admit more than the first.
    for pause_ns, step, most in steps * 8:
        now_ns += pause_ns
        # Where requests are counted, a larger one costs no more.
        cost = 1 if "count" in fields else most
        spent += flood(limits, now_ns, cost)
        if isinstance(step, Flip):
            rule = flipped(rule, step)
            limits.swap(RuleSet((rule,)), now_ns)
        elif "shared" not in fields:
            # A process does not save a limit that is inactive when it stops.
            limits, passed = restarted(limits, now_ns, cost)
            now_ns += TAKES_NS
            spent += passed
        spent += flood(limits, now_ns, cost)
    # The limit of the name is one, and each total another, with its own time and burst.
    patterns = {"*", *(step.to for _, step, _ in steps if isinstance(step, Flip) and step.field == "pattern")}
    limits_in_all = 1 + len(patterns) if "shared" in fields else 1
    bound = (RATE * now_ns / NS_PER_S + LARGEST_BURST) * limits_in_all
    assert spent <= math.ceil(bound) + (KEYS + 1) * LARGEST - 1


def test_spending_during_a_take_over_is_not_refunded() -> None:
    limits = Limits(RuleSet((replace(PLAIN, fair_by="client"),)))
    flood(limits, 0, 1)
    # Their shares have filled up again, and the keys are still active.
    now_ns = 3 * NS_PER_S
    other, spent = restarted(limits, now_ns, 1)
    assert spent >= RATE
    spent += flood(other, now_ns + TAKES_NS, 1)
    assert spent <= RATE + math.ceil(RATE * TAKES_NS / NS_PER_S) + len(CALLERS) + 1


def restarted(limits: Limits, now_ns: int, cost: int) -> tuple[Limits, int]:
    saving = limits.save(now_ns, now_ns)
    while True:
        try:
            next(saving)
        except StopIteration as end:
            saved = end.value
            break
    other = Limits(limits.rule_set)
    other.restore(saved, now_ns)
    spent = flood(limits, now_ns + TAKES_NS, cost)
    other.debit(limits.spent_since(saved, now_ns + TAKES_NS), now_ns + TAKES_NS)
    return other, spent
