from fractions import Fraction

import pytest
from acquiring import acquire
from hypothesis import given
from hypothesis import strategies as st

from limiter.buckets.adaptive import MAX_KEYS, AdaptiveLimiter, levels_of
from limiter.buckets.factory import apply_rule, new_limiter
from limiter.buckets.fair import ACTIVE_NS, OTHER_KEY, FairLimiter
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

INTAKE = Resource("listener", "intake")
RULE = Rule("listener", "intake", None, adaptive=True, floor_per_s=1)
MS = NS_PER_S // 1000
STEP_NS = 100 * MS


def begun() -> AdaptiveLimiter:
    limiter = new_limiter(INTAKE, RULE, 0)
    assert isinstance(limiter, AdaptiveLimiter)
    return limiter


class Offering:
    """Offers traffic at fixed rates, one message at a time, and takes a step every 100 ms."""

    def __init__(self, limiter: AdaptiveLimiter, **per_s: int) -> None:
        self.limiter, self.per_s = limiter, per_s
        self.now_ns = 0

    def run(self, seconds: float, limit_per_s: float | None) -> dict[str, tuple[int, int]]:
        """Return the numbers of passed and refused messages of each name."""
        results = dict.fromkeys(self.per_s, (0, 0))
        ends_ns = self.now_ns + round(seconds * NS_PER_S)
        while self.now_ns < ends_ns:
            for ms in range(0, 100, 5):
                at_ns = self.now_ns + ms * MS
                for key, per_s in self.per_s.items():
                    count = per_s * (at_ns // MS + 5) // 1000 - per_s * (at_ns // MS) // 1000
                    admitted = sum(acquire(self.limiter.share(key, at_ns), at_ns, (1,)).admitted for _ in range(count))
                    passed, refused = results[key]
                    results[key] = passed + admitted, refused + count - admitted
            self.now_ns += STEP_NS
            self.limiter.follow(self.now_ns, limit_per_s)
        return results


def test_without_a_limit_everything_passes_and_is_counted() -> None:
    offering = Offering(begun(), orders=2_000, mail=10)
    assert offering.run(5, None) == {"orders": (10_000, 0), "mail": (50, 0)}
    limiter = offering.limiter
    assert limiter.took() == (10_050, False)
    assert limiter.took() == (0, False)
    orders, mail = limiter.demands()
    assert (orders.key, orders.share_per_s, mail.key) == ("orders", None, "mail")
    assert orders.passed_per_s == orders.asked_per_s == pytest.approx(2_000, rel=0.02)
    assert limiter.limit_per_s is None


def test_the_compiled_fast_path_counts_by_the_balance_alone() -> None:
    limiter = begun()
    share = limiter.share("orders", 0)
    assert share.admits(5, 31, 32)
    share.spend(32)
    limiter.follow(STEP_NS, 100.0)
    assert limiter.took() == (32, False)
    assert share.admits(STEP_NS, 0, 500)
    share.spend(500)
    assert not share.admits(STEP_NS, 0, 1)
    limiter.follow(2 * STEP_NS, 100.0)
    assert limiter.took() == (500, False)
    limiter.follow(3 * STEP_NS, None)
    assert share.admits(3 * STEP_NS, 10**9, 10**9 + 1)


def test_a_flood_gets_the_permits_left_by_others() -> None:
    offering = Offering(begun(), flood=3_000, orders=100, mail=50)
    offering.run(1, None)
    offering.run(2, 1_000)
    results = offering.run(10, 1_000)
    assert results["orders"] == (1_000, 0)
    assert results["mail"] == (500, 0)
    assert results["flood"][0] == pytest.approx(8_500, rel=0.01)
    passed, is_refusing = offering.limiter.took()
    assert is_refusing
    assert passed >= 10_000
    flood = offering.limiter.demands()[0]
    assert flood.asked_per_s == pytest.approx(3_000, rel=0.02)
    assert flood.passed_per_s == pytest.approx(850, rel=0.02)
    assert flood.share_per_s == pytest.approx(850, rel=0.02)
    assert offering.limiter.last_refused_ns is not None


def test_weights_multiply_equal_shares() -> None:
    limiter = begun()
    offering = Offering(limiter, orders=3_000, mail=3_000, small=3_000)
    limiter.share("mail", 0)
    limiter.set_weight_of(lambda key: 3 if key == "orders" else 1)
    offering.run(2, 1_000)
    results = offering.run(10, 1_000)
    assert results["orders"][0] == pytest.approx(6_000, rel=0.01)
    assert results["mail"][0] == results["small"][0] == pytest.approx(2_000, rel=0.01)


def test_no_name_is_refused_at_its_equal_share_while_a_flood_can_spare_the_noise() -> None:
    offering = Offering(begun(), flood=2_000, **{f"quiet{number}": 50 for number in range(5)})
    offering.run(1, None)
    offering.run(0.1, 290)
    # Slightly less than an equal share of 50 for each.
    results = offering.run(20, 290)
    assert all(refused == 0 for key, (_, refused) in results.items() if key != "flood")
    assert results["flood"][0] == pytest.approx(20 * 40, abs=40)


def test_a_batch_passes_whole_and_is_paid_for_afterwards() -> None:
    limiter = begun()
    limiter.share("orders", 0)
    limiter.follow(STEP_NS, 10)
    now_ns = STEP_NS
    passed = 0
    while now_ns < 101 * NS_PER_S:
        passed += 32 * acquire(limiter.share("orders", now_ns), now_ns, (32,)).admitted
        now_ns += STEP_NS
        limiter.follow(now_ns, 10)
    assert 1_009 <= passed <= 1_009 + 20 + 32
    assert limiter.demands()[0].asked_per_s == pytest.approx(320, rel=0.05)


def test_a_refusal_states_when_the_share_is_paid() -> None:
    limiter = begun()
    share = limiter.share("orders", 0)
    limiter.follow(STEP_NS, 10)
    assert acquire(share, STEP_NS, (1,) * 25).admitted == 20
    assert 1 <= share.refuse(STEP_NS) <= 2
    acquire(share, STEP_NS + MS, (10,))
    assert share.refuse(STEP_NS + MS) == pytest.approx(1_000_000, rel=0.02)
    assert limiter.state(STEP_NS).last_refused_ns == STEP_NS + MS
    assert limiter.state(STEP_NS).rate_per_s == 10


def test_an_idle_name_is_forgotten_and_its_share_has_to_be_asked_for_again() -> None:
    limiter = begun()
    share = limiter.share("orders", 0)
    limiter.follow(ACTIVE_NS - 1, None)
    assert limiter.share("orders", ACTIVE_NS - 1) is share
    limiter.follow(ACTIVE_NS, None)
    assert share.retired
    assert limiter.demands() == []
    assert limiter.share("orders", ACTIVE_NS) is not share


def test_a_debt_is_not_forgotten_and_is_of_ten_seconds_at_most() -> None:
    limiter = begun()
    limiter.follow(STEP_NS, 50)
    share = limiter.share("orders", STEP_NS)
    assert acquire(share, STEP_NS, (40_000,)).admitted == 0
    assert acquire(share, STEP_NS, (500,)).admitted == 1
    limiter.follow(2 * STEP_NS, 1)
    assert share.stored_upermits == -100 * UPERMITS_PER_PERMIT
    limiter.follow(2 * STEP_NS + ACTIVE_NS, 1)
    assert not share.retired


def test_a_step_that_comes_late_counts_nothing_that_did_not_pass() -> None:
    limiter = begun()
    limiter.share("orders", 0)
    limiter.follow(STEP_NS, 50)
    limiter.follow(STEP_NS + 5 * NS_PER_S, 50)
    assert limiter.demands()[0].asked_per_s == 0


@pytest.mark.parametrize(("answerable", "may_per_s"), [(100, 100), (160, 40), (40, 250)])
def test_exempt_and_oneway_messages_are_outside_the_shares(answerable: int, may_per_s: int) -> None:
    limiter = begun()
    share = limiter.share("orders", 0)
    for second in range(1, 4):
        acquire(share, second * NS_PER_S - 1, (1,) * 100)
        limiter.follow(second * NS_PER_S, None if second < 3 else 100, answerable)
    assert limiter.demands()[0].share_per_s == pytest.approx(may_per_s, rel=0.01)


def test_names_beyond_the_bound_share_one_share() -> None:
    limiter = begun()
    for number in range(MAX_KEYS):
        limiter.share(f"topic:{number}", 0)
    other = limiter.share("topic:more", 0)
    assert other.key == OTHER_KEY
    assert limiter.share("topic:others", 0) is other


def test_invented_names_gain_little_under_a_limit() -> None:
    limiter = begun()
    flood = limiter.share("flood", 0)
    now_ns = passed = 0
    for number in range(1_000):
        now_ns += 10 * MS
        acquire(flood, now_ns, (1,) * 100)
        passed += acquire(limiter.share(f"topic:{number}", now_ns), now_ns, (1,) * 100).admitted
        if number % 10 == 9:
            limiter.follow(now_ns, 500)
    assert passed <= 10 * 1.5 * 500


def test_a_step_that_comes_late_counts_at_least_nothing() -> None:
    limiter = begun()
    share = limiter.share("orders", 0)
    limiter.follow(STEP_NS, 10)
    share.admits(STEP_NS, 0, 1)
    share.spend(1)
    limiter.follow(60 * NS_PER_S, 10)
    limiter.follow(60 * NS_PER_S, 10)
    limiter.follow(59 * NS_PER_S, 10)
    passed, _ = limiter.took()
    assert passed >= 0


def test_a_rule_of_another_kind_begins_with_all_permits_and_the_other_way_round() -> None:
    limiter = begun()
    share = limiter.share("orders", 0)
    assert apply_rule(limiter, 5, Rule("listener", "intake", None, adaptive=True, floor_per_s=7)) is limiter
    assert share.rule.floor_per_s == 7
    fair = apply_rule(limiter, 5, Rule("listener", "intake", 100, fair_by="client"))
    assert isinstance(fair, FairLimiter)
    assert fair.check(5, (1,) * 200).admitted == 100
    plain = apply_rule(fair, 5, Rule("listener", "intake", 100))
    assert type(plain) is Limiter
    plain.charge(5, 150)
    again = apply_rule(plain, 5, RULE)
    assert isinstance(again, AdaptiveLimiter)
    assert again.check(5, (1,) * 200).admitted == 200


@given(
    asks=st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 5)), min_size=1, max_size=8),
    limit=st.integers(1, 3000),
)
def test_the_level_is_max_min_fair(asks: list[tuple[int, int]], limit: int) -> None:
    limiter = begun()
    shares = []
    for number, (asked, weight) in enumerate(asks):
        share = limiter.share(str(number), 0)
        share.asked_per_s, share.weight = float(asked), weight
        shares.append(share)
    level, above = levels_of(float(limit), shares)
    assert level >= limit / sum(weight for _, weight in asks) - 1e-6
    assert 0.8 * level <= above + 1e-6 <= level + 2e-6
    given = sum(min(Fraction(asked), weight * Fraction(level)) for asked, weight in asks)
    if sum(asked for asked, _ in asks) >= limit:
        assert float(given) == pytest.approx(limit)
    else:
        assert all(asked <= weight * level + 1e-6 for asked, weight in asks)
