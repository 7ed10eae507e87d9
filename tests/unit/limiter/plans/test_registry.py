from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_states import states_of

from limiter.buckets.fair import FairLimiter
from limiter.buckets.limiter import Limiter
from limiter.buckets.warm_up import WarmUpLimiter
from limiter.plans.registry import Registry
from limiter.rules.limit_text import parse_limit
from limiter.rules.resource import OVERFLOW_NAME, Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours

MS = NS_PER_S // 1000


def topic(name: str) -> Resource:
    return Resource("topic", name)


def rule_set(*texts: str, enabled: bool = True) -> RuleSet:
    return RuleSet(tuple(parse_limit(text) for text in texts), enabled=enabled)


def live(registry: Registry, name: str, now_ns: int) -> Limiter:
    limiter = registry.get(topic(name), now_ns)
    assert limiter is not None
    return limiter


def admitted(registry: Registry, name: str, now_ns: int, count: int) -> int:
    """Ask for ``count`` permits one by one. Without a limit all are admitted."""
    limiter = registry.get(topic(name), now_ns)
    return count if limiter is None else limiter.acquire(now_ns, [1] * count).admitted


def pinned_in(registry: Registry) -> int:
    """Return the registry's number of limiters outside the bound."""
    return registry.live - registry.limiters.unpinned


# --- looking up


def test_max_live_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="max_live must be 1 or more, not 0"):
        Registry(RuleSet(), max_live=0)


# --- the bound on live limiters


def test_idle_limiter_is_evicted_to_make_room() -> None:
    registry = Registry(rule_set("topic:*=100/s"), max_live=2)
    for name in ("a", "b", "c"):
        admitted(registry, name, 0, 1)
    assert (registry.live, registry.evicted_total, registry.overflowed_total) == (2, 0, 1)

    admitted(registry, "c", NS_PER_S, 1)
    assert (registry.live, registry.evicted_total, registry.overflowed_total) == (2, 1, 1)


def test_limiter_that_is_not_full_or_not_closed_is_never_evicted() -> None:
    registry = Registry(rule_set("topic:*=100/s"), max_live=2)
    admitted(registry, "open", 0, 101)
    live(registry, "debtor", 0).charge(0, 300)
    for now_ms in range(0, 1000, 10):
        admitted(registry, f"made-up-{now_ms}", now_ms * MS, 1)
    assert registry.evicted_total == 0

    admitted(registry, "another", 1050 * MS, 1)
    assert registry.evicted_total == 1
    assert live(registry, "debtor", 1050 * MS).stored_upermits < 0


def test_resources_with_their_own_rule_are_outside_the_bound() -> None:
    registry = Registry(rule_set("topic:*=100/s", "topic:a=10/s", "topic:b=10/s"), max_live=1)
    for now_ns in (0, NS_PER_S):
        for name in ("a", "b", f"made-up-{now_ns}"):
            admitted(registry, name, now_ns, 1)
    pinned = live(registry, "a", NS_PER_S)
    admitted(registry, "made-up", 10 * NS_PER_S, 1)

    assert (registry.live, pinned_in(registry), registry.evicted_total, registry.overflowed_total) == (3, 2, 2, 0)
    assert live(registry, "a", 10 * NS_PER_S) is pinned


def test_eviction_checks_more_than_the_first_limiter() -> None:
    registry = Registry(rule_set("topic:*=100/s"), max_live=300)
    for at in range(300):
        admitted(registry, f"t-{at}", 0, 1 if at == 0 else 100)
    admitted(registry, "new", 20 * MS, 1)

    assert (registry.evicted_total, registry.overflowed_total) == (1, 0)
    assert registry.state(topic("t-0"), 20 * MS) is None


@pytest.mark.no_cover
@pytest.mark.parametrize("names", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_made_up_names_stay_bounded_and_real_limits_hold(names: int) -> None:
    registry = Registry(rule_set("topic:*=2000/s", "topic:orders=50/s"), max_live=10_000)
    passed = now_ns = 0
    for number in range(names):
        now_ns += 5_000
        limiter = registry.get(Resource("topic", f"made-up-{number}"), now_ns)
        assert limiter is not None
        limiter.acquire(now_ns, (1,))
        if not number % 1000:
            passed += admitted(registry, "orders", now_ns, 10)

    assert registry.live == 10_001
    assert registry.evicted_total == names - 10_000
    assert registry.overflowed_total == 0
    assert passed <= 50 * now_ns / 1e9 + 50


# --- overflow


def test_names_past_the_bound_share_the_limiter_of_their_kinds_default() -> None:
    registry = Registry(rule_set("topic:*=100/s", "retry_group:*=10/s"), max_live=1)
    admitted(registry, "busy", 0, 100)

    assert admitted(registry, "a", 0, 60) == 60
    assert admitted(registry, "b", 0, 60) == 40
    group = registry.get(Resource("retry_group", "g"), 0)
    assert group is not None
    assert group.acquire(0, [1] * 100).admitted == 10
    assert group.resource == Resource("retry_group", OVERFLOW_NAME)
    assert (registry.live, registry.overflowed_total) == (1, 3)


def test_no_overflow_is_a_way_around_a_patterns_own_limit() -> None:
    registry = Registry(rule_set("topic:*=100/s", "topic:closed-*=0/s", "topic:slow-*=1/s"), max_live=1)
    admitted(registry, "busy", 0, 100)

    assert admitted(registry, "closed-1", 0, 10) == 0
    assert admitted(registry, "slow-1", 0, 10) == 1


def test_a_name_that_leaves_the_overflow_inherits_its_deficit() -> None:
    registry = Registry(rule_set("topic:*=100/s"), max_live=1)
    admitted(registry, "busy", 0, 1)
    assert admitted(registry, "a", 0, 80) == 80

    assert admitted(registry, "a", 20 * MS, 100) == 22
    assert registry.overflowed_total == 1


# --- changed rule sets


def test_swap_takes_effect_at_once_and_carries_stored_permits_over() -> None:
    registry = Registry(rule_set("topic:*=100/s"))
    admitted(registry, "a", 0, 60)
    registry.swap(rule_set("topic:*=50/s"), 0)

    assert admitted(registry, "a", 0, 1000) == 20


def test_untouched_limiter_pays_its_debt_at_the_rates_that_were_in_force() -> None:
    registry = Registry(rule_set("topic:*=100/s"))
    live(registry, "a", 0).charge(0, 400)
    registry.swap(rule_set("topic:*=10/s"), NS_PER_S)
    registry.swap(rule_set("topic:*=0/s"), 2 * NS_PER_S)
    registry.swap(rule_set("topic:*=50/s"), 3 * NS_PER_S)
    state = registry.state(topic("a"), 4 * NS_PER_S)

    assert state is not None
    # A second at rate 0 counts at the rate that follows.
    assert state.stored_permits == -300 + 100 + 10 + 50 + 50


def test_limiter_with_forgiven_permits_is_not_evicted() -> None:
    """1000/s is spent, 1/s is full after a second, and 1000/s does not start full again."""
    registry = Registry(rule_set("topic:*=1000/s"), max_live=1)
    assert admitted(registry, "a", 0, 1000) == 1000
    registry.swap(rule_set("topic:*=1/s"), 0)
    live(registry, "b", 2 * NS_PER_S)
    assert registry.evicted_total == 0
    registry.swap(rule_set("topic:*=1000/s"), 2 * NS_PER_S)

    assert admitted(registry, "a", 2 * NS_PER_S + 50 * MS, 1000) <= 53


def test_global_switch_off_and_on_again_while_running() -> None:
    rules = rule_set("topic:*=100/s")
    registry = Registry(rules)
    admitted(registry, "a", 0, 101)
    off = rules.replace(enabled=False)
    registry.swap(off, 0)
    assert registry.get(topic("a"), 0) is None
    assert states_of(registry, 0) == []

    registry.swap(off.replace(enabled=True), 0)
    assert admitted(registry, "a", 0, 101) == 100
    assert registry.rule_set.version == 3


def test_reset_of_a_pattern_reaches_its_adaptive_limit() -> None:
    registry = Registry(RuleSet([Rule("listener", "*", None, adaptive=True)]))
    before = registry.get(Resource("listener", "main"), 0)
    assert [each is not None for each in registry.reset_all_of(Rule("listener", "*", None), 0)] == [True]
    assert registry.get(Resource("listener", "main"), 0) is not before


def test_reset_covers_one_name_or_all_names_of_a_pattern() -> None:
    registry = Registry(rule_set("topic:*=100/s", "topic:b*=100/s", "topic:own=100/s"), max_live=3)
    for name in ("a", "b", "own", "c", "d"):
        live(registry, name, 0).charge(0, 1000)
    overflow = live(registry, "d", 0)
    assert overflow.resource.name == OVERFLOW_NAME

    before = registry.reset(topic("b"), 0)
    assert before is not None
    assert (before.stored_permits, live(registry, "b", 0).stored_upermits) == (-900, 100 * UPERMITS_PER_PERMIT)
    assert registry.reset(topic("nobody"), 0) is None

    live(registry, "b", 0).charge(0, 1000)
    states = [state for state in registry.reset_all_of(Rule("topic", "*", None), 0) if state is not None]
    assert sorted(state.resource.name for state in states) == [OVERFLOW_NAME, "a", "c"]
    assert live(registry, "a", 0).stored_upermits == 100 * UPERMITS_PER_PERMIT
    assert live(registry, "d", 0).stored_upermits == 100 * UPERMITS_PER_PERMIT
    for name in ("b", "own"):
        assert live(registry, name, 0).stored_upermits == -900 * UPERMITS_PER_PERMIT


def test_exact_rule_that_goes_returns_its_limiter_to_the_bound() -> None:
    registry = Registry(rule_set("topic:*=100/s", "topic:a=10/s"), max_live=1)
    admitted(registry, "a", 0, 1)
    admitted(registry, "b", 0, 1)
    registry.swap(rule_set("topic:*=100/s"), 0)
    assert (registry.live, pinned_in(registry)) == (2, 0)

    admitted(registry, "c", 10 * NS_PER_S, 1)
    assert (registry.live, registry.evicted_total) == (1, 2)


def test_debt_under_a_limit_of_0_is_kept_until_the_limit_rises() -> None:
    registry = Registry(rule_set("topic:*=100/s"), max_live=1)
    live(registry, "a", 0).charge(0, 150)
    registry.swap(rule_set("topic:*=0/s"), 0)
    assert admitted(registry, "b", 10 * NS_PER_S, 1) == 0
    assert (registry.evicted_total, registry.overflowed_total) == (0, 1)

    registry.swap(rule_set("topic:*=100/s"), 10 * NS_PER_S)
    admitted(registry, "b", 20 * NS_PER_S, 1)
    assert registry.evicted_total == 1


def test_overflow_limiters_follow_a_swap() -> None:
    registry = Registry(rule_set("topic:*=100/s"), max_live=1)
    live(registry, "busy", 0).charge(0, 10**6)
    admitted(registry, "a", 0, 60)
    registry.swap(rule_set("topic:*=50/s"), 0)
    assert admitted(registry, "b", 0, 100) == 20

    registry.swap(RuleSet(), 0)
    assert registry.get(topic("b"), 0) is None
    registry.swap(rule_set("topic:*=50/s"), 0)
    live(registry, "busy", 0).charge(0, 1)
    assert admitted(registry, "b", 0, 100) == 50


# --- state


def test_states_show_live_limiters_then_overflow() -> None:
    registry = Registry(rule_set("topic:*=100/s", "topic:a=10/s"), max_live=1)
    for name in ("a", "b", "c"):
        admitted(registry, name, 0, 1)

    assert [(str(state.resource), state.rule, state.stored_permits) for state in states_of(registry, 0)] == [
        ("topic:a", "topic:a", 9.0),
        ("topic:b", "topic:*", 99.0),
        ("topic:_overflow", "topic:*", 99.0),
    ]


# --- bytes, totals, and the kinds of limiters


def kinds_of_rule(rate_per_s: float = 100, pattern: str = "*") -> dict[type[Limiter], Rule]:
    return {
        Limiter: Rule("topic", pattern, rate_per_s, break_s=0),
        FairLimiter: Rule("topic", pattern, rate_per_s, break_s=0, fair_by="client"),
        WarmUpLimiter: Rule("topic", pattern, rate_per_s, warm_up_s=10),
    }


@pytest.mark.parametrize("new", kinds_of_rule(), ids=lambda kind: f"to {kind.__name__}")
@pytest.mark.parametrize("old", kinds_of_rule(), ids=lambda kind: kind.__name__)
def test_swap_replaces_the_limiter_by_the_kind_that_the_new_rule_needs(old: type[Limiter], new: type[Limiter]) -> None:
    registry = Registry(RuleSet((kinds_of_rule()[old],)), max_live=1)
    live(registry, "a", 0).charge(0, 300)
    owed = live(registry, "a", 0).stored_upermits
    admitted(registry, "b", 0, 50)
    overflow = live(registry, "b", 0).stored_upermits
    registry.swap(RuleSet((kinds_of_rule()[new],)), 0)

    assert type(live(registry, "a", 0)) is new
    assert live(registry, "a", 0).stored_upermits == owed < 0
    assert live(registry, "a", 0) is live(registry, "a", 0)
    assert type(live(registry, "b", 0)) is new
    assert live(registry, "b", 0).stored_upermits <= overflow
    states = states_of(registry, 0)
    assert [state.resource.name for state in states] == ["a", OVERFLOW_NAME]


def test_rule_with_hours_holds_from_swap_to_swap() -> None:
    night = Rule("topic", "*", 10, hours=read_hours("22:00-06:00", (), "UTC"), fair_by="client", break_s=0)
    rules = RuleSet((Rule("topic", "*", 100, break_s=0), night))
    at_noon, at_midnight = (rules.at(datetime(2026, 3, 2, hour, tzinfo=UTC)) for hour in (12, 0))
    registry = Registry(at_noon)
    assert admitted(registry, "a", 0, 60) == 60
    registry.swap(at_midnight, 0)
    assert isinstance(live(registry, "a", 0), FairLimiter)
    assert live(registry, "a", 0).stored_upermits == 4 * UPERMITS_PER_PERMIT

    registry.swap(at_noon, NS_PER_S)
    assert live(registry, "a", NS_PER_S).rule.rate_per_s == 100
    # Of the 60 missing, ten are back.
    assert live(registry, "a", NS_PER_S).stored_upermits == 50 * UPERMITS_PER_PERMIT
    # This one was not used at night.
    assert admitted(registry, "b", NS_PER_S, 200) == 100


# --- properties

NAMES = ["a1", "a2", "b1", "b2", "own"]
TEXT_RATES = st.sampled_from(["0/s", "1/s", "7/s", "100/s", "2.5/s", "unlimited"])
RULE_SETS = st.builds(
    lambda default, glob, kind, own, enabled: RuleSet(
        (
            parse_limit(f"topic:*={default}"),
            replace(parse_limit(f"topic:a*={glob}"), **kind),
            parse_limit(f"topic:own={own}"),
        ),
        enabled=enabled,
    ),
    TEXT_RATES,
    TEXT_RATES,
    st.sampled_from([{}, {"fair_by": "client"}, {"warm_up_s": 3}]),
    TEXT_RATES,
    st.integers(0, 9).map(bool),
)
STEPS_NS = st.one_of(
    st.integers(0, 50 * MS), st.integers(0, 3 * NS_PER_S), st.integers(-2 * NS_PER_S, 0), st.sampled_from([0, NS_PER_S])
)


@dataclass
class Ask:
    name: str
    costs: list[int]


ASKS = st.builds(
    Ask, st.sampled_from(NAMES), st.lists(st.one_of(st.just(1), st.integers(1, 120)), min_size=1, max_size=8)
)
ACTIONS = st.one_of(ASKS, ASKS, ASKS, RULE_SETS)


class Account:
    """The maximum for one name: the integral of its rate, the largest burst, the largest cost less one."""

    def __init__(self, rule: Rule | None) -> None:
        self.rule = rule
        self.burst = 0 if rule is None else rule.capacity_upermits
        self.earned = self.spent = self.largest = self.at_0_ns = 0

    def pass_time(self, elapsed_ns: int) -> None:
        if self.rule is not None and self.rule.rate_upermits_per_s:
            self.earned += self.rule.rate_upermits_per_s * elapsed_ns
        else:
            self.at_0_ns += elapsed_ns

    def change(self, rule: Rule | None, *, overflowed: bool = False) -> None:
        if rule is None or self.rule is None:
            # Without a limit the integral is infinite, so start again.
            self.__init__(rule)  # type: ignore[misc]  # starting over is the point
            return
        self.rule = rule
        self.burst = max(self.burst, rule.capacity_upermits)
        if rule.rate_upermits_per_s:
            self.earned += rule.rate_upermits_per_s * self.at_0_ns
            self.at_0_ns = 0
        if overflowed:
            # A swap may give a limiter to a name that shared one for lack of room.
            self.earned += rule.capacity_upermits * NS_PER_S

    def spend(self, costs: Sequence[int]) -> None:
        self.spent += sum(costs)
        self.largest = max([self.largest, *costs])

    def most(self) -> int:
        earned = self.earned + self.burst * NS_PER_S
        return max(0, -(-earned // (NS_PER_S * UPERMITS_PER_PERMIT)) + self.largest - 1)


@given(
    first=RULE_SETS,
    max_live=st.integers(1, 4),
    steps=st.lists(st.tuples(STEPS_NS, ACTIONS), min_size=10, max_size=60),
)
def test_nothing_ever_admits_more_than_the_bound(
    first: RuleSet, max_live: int, steps: list[tuple[int, Ask | RuleSet]]
) -> None:
    """Through arrivals, changed rates, evictions, overflow and clock jumps, also backwards."""
    registry = Registry(first, max_live=max_live)
    accounts = {name: Account(first.limit(topic(name))) for name in NAMES}
    now_ns = 0
    latest_ns = steps[0][0]
    for step_ns, action in steps:
        now_ns += step_ns
        for account in accounts.values():
            account.pass_time(max(0, now_ns - latest_ns))
        latest_ns = max(latest_ns, now_ns)
        if isinstance(action, RuleSet):
            registry.swap(action, now_ns)
            for name, account in accounts.items():
                account.change(action.limit(topic(name)), overflowed=registry.overflowed_total > 0)
            continue
        limiter = registry.get(topic(action.name), now_ns)
        account = accounts[action.name]
        assert (limiter is None) == (account.rule is None)
        if limiter is None:
            continue
        account.spend(action.costs[: limiter.acquire(now_ns, action.costs).admitted])

        assert account.spent <= account.most()
        assert registry.live - pinned_in(registry) <= max_live


FREE_EDITS = st.one_of(
    st.tuples(
        st.sampled_from(["own", "a", "a*", "b", "*", "zz*"]),
        st.sampled_from(["0/s", "1/s", "7/s", "100/s", "unlimited", ""]),
        st.booleans(),
    ),
    st.sampled_from(["all", "kind"]),
)
"""Put a rule, shared or not, or drop it if there is no rate, or switch limiting off or on."""


@given(
    steps=st.lists(
        st.tuples(STEPS_NS, st.one_of(ASKS, ASKS, FREE_EDITS, FREE_EDITS)),
        min_size=20,
        max_size=100,
    )
)
@pytest.mark.no_cover
def test_edits_without_end_admit_no_more_than_the_bound(
    steps: list[tuple[int, Ask | tuple[str, str, bool] | str]],
) -> None:
    """The rules change all the time, one after the other."""
    rules = rule_set("topic:*=10/s", "topic:own=30/s")
    registry = Registry(rules)
    totals = [Resource("total", f"topic:{pattern}") for pattern in ("a*", "*")]
    accounts = {resource: Account(rules.limit(resource)) for resource in (*map(topic, NAMES), *totals)}
    now_ns = latest_ns = steps[0][0]
    for step_ns, action in steps:
        now_ns += step_ns
        for account in accounts.values():
            account.pass_time(max(0, now_ns - latest_ns))
        latest_ns = max(latest_ns, now_ns)
        if isinstance(action, Ask):
            for resource in (topic(action.name), *totals):
                limiter, account = registry.get(resource, now_ns), accounts[resource]
                assert (limiter is None) == (account.rule is None)
                if limiter is not None:
                    account.spend(action.costs[: limiter.acquire(now_ns, action.costs).admitted])
                assert account.spent <= account.most()
            continue
        if isinstance(action, str):
            kinds = rules.off_kinds ^ {"topic"}
            rules = rules.edited(enabled=not rules.enabled) if action == "all" else rules.edited(off_kinds=kinds)
        else:
            pattern, rate, shared = action
            rule = parse_limit(f"topic:{pattern}={rate or '1/s'}")
            rule = replace(rule, shared=True) if shared and rule.exact_name is None else rule
            rules = rules.edited([rule]) if rate else rules.edited(drop=[rule.key])
        registry.swap(rules, now_ns)
        for resource, account in accounts.items():
            account.change(rules.limit(resource))


@given(max_live=st.integers(1, 4), steps=st.lists(st.tuples(STEPS_NS, ASKS), min_size=10, max_size=60))
def test_eviction_changes_no_decision(max_live: int, steps: list[tuple[int, Ask]]) -> None:
    """Without overflow a small registry decides like a large one."""
    rules = rule_set("topic:*=100/s", "topic:a*=8/s")
    small, large = Registry(rules, max_live=max_live), Registry(rules)
    now_ns = 0
    for step_ns, ask in steps:
        now_ns += abs(step_ns)
        limiter = live(small, ask.name, now_ns)
        if small.overflowed_total:
            return
        ours = limiter.acquire(now_ns, ask.costs)
        theirs = live(large, ask.name, now_ns).acquire(now_ns, ask.costs)

        assert ours.admitted == theirs.admitted
        assert ours.wait_us == pytest.approx(theirs.wait_us, abs=1)


@given(
    first=RULE_SETS,
    steps=st.lists(st.tuples(st.integers(0, 3000), ACTIONS), min_size=10, max_size=40),
)
def test_missed_swaps_are_applied_exactly(first: RuleSet, steps: list[tuple[int, Ask | RuleSet]]) -> None:
    """A limiter without requests between swaps decides like one that was updated after each."""
    lazy, eager = Registry(first), Registry(first)
    swaps = now_ns = 0
    for step_ms, action in steps:
        # Whole milliseconds make whole micro-permits, so rounding does not depend on the number of refills.
        now_ns += step_ms * MS
        if isinstance(action, RuleSet):
            swaps += 1
            for registry in (lazy, eager):
                registry.swap(action, now_ns)
            states_of(eager, now_ns)
        elif swaps < 16:
            ours, theirs = (registry.get(topic(action.name), now_ns) for registry in (lazy, eager))
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert ours.acquire(now_ns, action.costs) == theirs.acquire(now_ns, action.costs)


QUIET = ("quiet-1", "quiet-2", "quiet-own")
"""Names whose rules are never edited below."""
EDITS = st.tuples(
    st.sampled_from(["a", "b", "quiet", "*", "q*", "zzzzzzzz*"]), st.sampled_from(["1/s", "7/s", "50/s", ""])
)


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 900),
            st.one_of(EDITS, EDITS, EDITS, st.builds(Ask, st.sampled_from(QUIET), st.just([1, 30]))),
        ),
        min_size=30,
        max_size=120,
    )
)
def test_edits_of_other_limits_change_nothing(steps: list[tuple[int, Ask | tuple[str, str]]]) -> None:
    """However many swaps a limiter misses, it decides as without them, because its rule never changed."""
    rules = rule_set("topic:*=10/s", "topic:quiet-*=20/s", "topic:quiet-own=30/s", "topic:a=5/s")
    edited, never = Registry(rules), Registry(rules)
    now_ns = 0
    for step_ms, action in steps:
        now_ns += step_ms * MS
        if isinstance(action, Ask):
            ours, theirs = (
                live(registry, action.name, now_ns).acquire(now_ns, action.costs) for registry in (edited, never)
            )
            assert ours == theirs
        else:
            pattern, rate = action
            rule = parse_limit(f"topic:{pattern}={rate or '1/s'}")
            rules = rules.edited([rule]) if rate else rules.edited(drop=[rule.key])
            edited.swap(rules, now_ns)
    for name in QUIET:
        assert live(edited, name, now_ns).state(now_ns) == live(never, name, now_ns).state(now_ns)
