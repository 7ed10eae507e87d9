import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.analytics.advice import Advice, Claim, confidence, decide, fair_level, is_runaway, settle, share_out, unused
from admin.analytics.evidence import span
from admin.analytics.figures import Demand, Limit, Percentiles, Storms
from admin.analytics.words import DAY_S

WEEK_S = 7 * DAY_S


def percentiles(p99: float) -> Percentiles:
    return Percentiles(p99 / 4, p99 / 2, p99, p99 * 1.1, p99 * 1.2)


def demand(p99: float = 430, limit: float | None = 300, **fields: Any) -> Demand:
    """A week of a topic whose own limit is hit now and then."""
    found = percentiles(p99)
    usual: dict[str, Any] = {
        "limit": Limit("topic:orders", limit, 1.0, 1.0),
        "observed_s": WEEK_S,
        "days": 7,
        "active_s": WEEK_S // 2,
        "refused_s": 2000,
        "quiet_s": WEEK_S // 2 - 2000,
        "refused_days": 7,
        "refused_span_s": 6 * DAY_S,
        "requests": 1_000_000,
        "messages": 1_000_000,
        "refused_messages": 21_000,
        "raw": found,
        "corrected": found,
        "calm": found,
        "refusing_per_s": p99 * 1.1,
        "minute_per_s": p99 / 2,
        "calm_minute_per_s": p99 / 2,
        "quiet_minute_per_s": p99 / 2,
        "storms": Storms(count=14, days=7, messages=21_000, top_two_share=0.3, clients=40),
    }
    return Demand("a", "topic", "orders", **(usual | fields))


QUIET: dict[str, Any] = {
    "refused_messages": 0,
    "refused_s": 0,
    "refused_days": 0,
    "refused_span_s": 0,
    "storms": Storms(),
}
FLOOD: dict[str, Any] = {
    "observed_s": 120,
    "days": 1,
    "active_s": 40,
    "refused_s": 37,
    "quiet_s": 3,
    "refused_days": 1,
    "refused_span_s": 60,
    "messages": 280_000,
    "refused_messages": 270_000,
    "corrected": percentiles(9000),
    "calm": Percentiles(),
    "refusing_per_s": 8000.0,
    "minute_per_s": 4600.0,
    "calm_minute_per_s": 0.0,
    "quiet_minute_per_s": 0.0,
    "storms": Storms(count=1, days=1, messages=270_000, top_two_share=1.0, clients=1),
}
"""Two minutes of log that know a topic in a flood, and hardly otherwise."""
RUNAWAY: dict[str, Any] = {
    "corrected": percentiles(2000),
    "calm": percentiles(100),
    "refusing_per_s": 5000.0,
    "minute_per_s": 4000.0,
    "calm_minute_per_s": 60.0,
    "storms": Storms(count=2, days=1, messages=21_000, top_two_share=0.97, clients=2),
}


def test_a_limit_below_the_demand_is_raised_and_the_evidence_says_why() -> None:
    found = decide(demand(), 0.3)
    assert (found.action, found.rate_per_s, found.recommended_rate_per_s) == ("raise", 300, 560)
    assert found.evidence == "p99 of demand over 7 days is 430/s, limit 300/s refused 2.1% in 14 storms."
    assert found.confidence == "high"


def test_retries_are_taken_off_and_that_is_said() -> None:
    found = decide(demand(raw=percentiles(900)), 0.3)
    assert found.recommended_rate_per_s == 560
    assert "is 430/s (900/s with the retries of what was refused), limit" in found.evidence


def test_a_limit_far_above_the_demand_is_lowered() -> None:
    found = decide(demand(100, 1000, **QUIET), 0.3)
    assert (found.action, found.recommended_rate_per_s) == ("lower", 130)


@pytest.mark.parametrize("limit", [121, 130, 143])
def test_less_than_a_tenth_is_left_as_it_is(limit: float) -> None:
    found = decide(demand(100, limit, **QUIET), 0.3)
    assert (found.action, found.recommended_rate_per_s) == ("keep", limit)


def test_less_than_a_day_of_log_lowers_nothing_but_raises() -> None:
    short = {"observed_s": 1200, "days": 1, "quiet_s": 900, "refused_days": 1, "refused_span_s": 600}
    found = decide(demand(100, 1000, **(short | QUIET)), 0.3)
    assert (found.action, found.confidence) == ("keep", "low")
    assert "20 minutes of log are too few to lower it" in found.evidence
    assert decide(demand(430, 300, **short), 0.3).action == "raise"


def test_a_flood_that_is_all_the_log_knows_does_not_raise_the_limit_that_stops_it() -> None:
    found = decide(demand(9000, 200, **FLOOD), 0.2)
    assert (found.action, found.recommended_rate_per_s, found.confidence) == ("keep", 200, "low")
    assert "Not enough quiet time to tell demand from a flood: only 3 seconds of it lies outside" in found.evidence
    assert "nothing of it lies outside" in decide(demand(9000, 200, **FLOOD | {"quiet_s": 0}), 0.2).evidence
    assert found.need_per_s == 200


@pytest.mark.parametrize(
    "change",
    [
        {"storms": Storms(count=1, days=1, messages=270_000, top_two_share=0.2, clients=30)},
        {"observed_s": 3600},
        {"observed_s": 3 * DAY_S, "days": 3, "active_s": 2000, "refused_s": 1900},
        {"refused_s": 0, "action": "shadow", "storms": Storms()},
        {"refused_s": 0, "action": "shadow", "storms": Storms(), "calm": percentiles(9000), "quiet_s": 5000},
        {"storms": Storms()},
        {"quiet_s": 5000, "observed_s": 7200, "calm": percentiles(90), "active_s": 5100, "refused_s": 2000},
    ],
    ids=[
        "many clients",
        "nothing else in an hour",
        "once in three days",
        "shadow",
        "long shadow",
        "records lost",
        "far above",
    ],
)
def test_what_may_be_a_flood_raises_nothing(change: dict[str, Any]) -> None:
    limit = Limit("topic:orders", 200, action=change.get("action", "reject"))
    fields = {name: value for name, value in (FLOOD | change).items() if name != "action"}
    found = decide(replace(demand(9000, **fields), limit=limit), 0.2)
    assert (found.action, found.recommended_rate_per_s, found.confidence) == ("keep", 200, "low")
    assert "to tell demand from a flood" in found.evidence


@pytest.mark.parametrize(
    "change",
    [
        {"refused_days": 2, "refused_span_s": DAY_S, "observed_s": 2 * DAY_S, "days": 2},
        {"refused_days": 4, "refused_span_s": 6 * DAY_S, "observed_s": WEEK_S, "days": 7},
        {"quiet_s": 3000, "observed_s": 7200, "calm": percentiles(4000)},
        {"quiet_s": 3000, "observed_s": DAY_S, "active_s": 3040, "calm": percentiles(90), "storms": Storms(count=1)},
    ],
    ids=["comes back the next day", "on half of the days", "not far above", "in a day's log, of many"],
)
def test_what_the_log_knows_for_a_demand_raises_the_limit(change: dict[str, Any]) -> None:
    found = decide(demand(9000, 200, **FLOOD | change), 0.2)
    assert found.action == "raise"
    assert "flood" not in found.evidence


def test_bytes_of_a_flood_raise_nothing_either() -> None:
    limit = Limit("topic:orders", bytes_per_s=50_000)
    bytes_ = {"size_bytes": percentiles(2_000_000), "minute_bytes_per_s": 900_000.0}
    found = decide(replace(demand(9000, **FLOOD | bytes_), limit=limit), 0.2)
    assert (found.action, found.recommended_bytes_per_s, found.confidence) == ("keep", 50_000, "low")
    assert found.evidence.count("tell demand from a flood") == 1
    # The messages are as ever, the bytes are not.
    calm = {"quiet_s": 3000, "observed_s": 7200, "calm": percentiles(8000), "calm_bytes": percentiles(9000)}
    assert decide(replace(demand(9000, **FLOOD | bytes_ | calm), limit=limit), 0.2).action == "keep"


def test_a_flood_gets_no_more_of_a_capacity_than_its_limit() -> None:
    found = decide(demand(9000, 200, **FLOOD), 0.2, limit_all=True)
    assert (found.need_per_s, found.weight) == (200, 200)
    shared = share_out(found, 0.5, 1000)
    assert (shared.action, shared.recommended_rate_per_s) == ("lower", 100)


def test_a_limit_is_never_below_the_busiest_minute() -> None:
    assert decide(demand(100, 1000, **QUIET, minute_per_s=400.0), 0.3).recommended_rate_per_s == 400


def test_a_pattern_is_not_lowered_and_what_it_limits_gets_a_limit_of_its_own_when_raised() -> None:
    by_pattern = Limit("topic:*", 1000, 1.0, 1.0)
    assert decide(replace(demand(100, **QUIET), limit=by_pattern), 0.3).action == "keep"
    raised = decide(replace(demand(2000), limit=by_pattern), 0.3)
    assert (raised.action, raised.name, raised.recommended_rate_per_s) == ("raise", "orders", 2600)


def test_a_runaway_does_not_raise_the_limit_that_stops_it() -> None:
    found = decide(demand(limit=300, **RUNAWAY), 0.3)
    assert found.runaway
    assert found.action == "lower"
    assert found.recommended_rate_per_s == 130
    assert "In storms two clients with 97% of what was refused asked for 50 times as much (5,000/s)" in found.evidence
    assert decide(demand(limit=130, **RUNAWAY), 0.3).action == "keep"


def test_a_limit_that_only_a_runaway_used_is_kept_and_not_lowered_to_nothing() -> None:
    only = RUNAWAY | {"calm": Percentiles(), "calm_minute_per_s": 0.0}
    found = decide(demand(limit=300, **only), 0.3)
    assert (found.action, found.recommended_rate_per_s) == ("keep", 300)
    assert found.evidence.endswith("Too little is asked for otherwise to say what it needs.")
    limit = Limit("topic:orders", 300, bytes_per_s=50_000)
    assert decide(replace(demand(**only), limit=limit), 0.3).recommended_bytes_per_s == 50_000
    assert decide(replace(demand(), limit=limit), 0.3).recommended_bytes_per_s == 50_000
    shared = share_out(found, 0.1, 100)
    assert (shared.action, shared.recommended_rate_per_s) == ("lower", 1)


@pytest.mark.parametrize(
    ("busiest", "action", "recommended"), [(50, "lower", 50), (269, "lower", 270), (271, "keep", 300)]
)
def test_what_is_asked_for_seldom_and_at_once_is_not_refused_for_the_sake_of_a_runaway(
    busiest: float, action: str, recommended: float
) -> None:
    seldom = RUNAWAY | {"calm": Percentiles(top=busiest), "calm_minute_per_s": 50 / 60}
    found = decide(demand(limit=300, **seldom), 0.3)
    assert (found.action, found.recommended_rate_per_s) == (action, recommended)
    assert found.evidence.endswith(f"Its busiest second outside of storms is {busiest}/s.")


@pytest.mark.parametrize(
    "change",
    [
        {"storms": Storms(count=2, days=1, messages=21_000, top_two_share=0.3, clients=30)},
        {"storms": Storms(count=7, days=7, messages=21_000, top_two_share=1.0, clients=1)},
        {"refused_s": WEEK_S // 3},
        {"refusing_per_s": 250.0},
        {"storms": Storms()},
    ],
    ids=["many clients", "every day", "most of the time", "not far above", "no refusals"],
)
def test_what_is_no_runaway_counts(change: dict[str, Any]) -> None:
    assert is_runaway(demand(**RUNAWAY))
    assert not is_runaway(demand(**(RUNAWAY | change)))


def test_growth_is_added_for_a_week_where_it_fits() -> None:
    assert decide(demand(trend_per_week=0.2, trend_fit=0.9), 0.3).recommended_rate_per_s == 680
    assert "grows by 20% a week" in decide(demand(trend_per_week=0.2, trend_fit=0.9), 0.3).evidence
    assert decide(demand(trend_per_week=0.2, trend_fit=0.1), 0.3).recommended_rate_per_s == 560
    assert decide(demand(trend_per_week=9.0, trend_fit=0.9), 0.3).recommended_rate_per_s == 840


def test_the_busiest_hour_of_the_week_is_covered_and_named() -> None:
    found = decide(demand(hour_per_s=600.0, hour_of_week=9, hour_times=3.2), 0.3)
    assert found.recommended_rate_per_s == 780
    assert "Its busiest hour is Monday 09:00 UTC with 600/s, 3.2 times the median hour." in found.evidence


def test_bytes_are_decided_in_the_same_way() -> None:
    limit = Limit("topic:orders", 1000, 1.0, 1.0, bytes_per_s=50_000)
    found = decide(replace(demand(700, 1000, **QUIET), limit=limit, size_bytes=percentiles(100_000)), 0.3)
    assert (found.action, found.recommended_rate_per_s, found.recommended_bytes_per_s) == ("raise", 1000, 130_000)
    assert "p99 of bytes is 100,000 bytes/s, their limit 50,000 bytes/s." in found.evidence


@pytest.mark.parametrize(
    ("action", "said"),
    [("reject", ", of which 2.1% was refused"), ("shadow", ", of which 2.1% would have been refused")],
)
def test_refusals_without_a_rate_are_said(action: str, said: str) -> None:
    limit = Limit("topic:orders", bytes_per_s=50_000, action=action)
    assert f"{said} in 14 storms." in decide(replace(demand(), limit=limit), 0.3).evidence


def test_refusals_of_other_rules_are_not_laid_to_this_limit() -> None:
    storms = Storms(count=14, days=7, messages=21_000, top_two_share=0.3, own_share=0.1, other_rule="client:10.0.0.0/8")
    assert "(90% of that by client:10.0.0.0/8, not by this limit)" in decide(demand(storms=storms), 0.3).evidence


def test_a_limit_of_0_and_a_limit_that_is_off_are_left() -> None:
    assert decide(demand(limit=0), 0.3).action == "keep"
    off = replace(demand(), limit=Limit("topic:orders", 300, action="off"))
    assert (decide(off, 0.3).action, decide(off, 0.3, limit_all=True).action) == ("keep", "keep")


def test_without_a_limit_there_is_none_recommended_unless_a_capacity_is_shared() -> None:
    free = replace(demand(**QUIET), limit=Limit())
    assert decide(free, 0.3).action == "keep"
    assert decide(free, 0.3).recommended_rate_per_s is None
    shared = decide(free, 0.3, limit_all=True)
    assert (shared.action, shared.recommended_rate_per_s) == ("new", 560)


def test_what_was_not_told_apart_gets_no_limit_of_that_name() -> None:
    found = decide(replace(demand(**QUIET), name="_other", limit=Limit()), 0.3, limit_all=True)
    assert (found.action, found.recommended_rate_per_s) == ("keep", None)
    assert "which no limit can be set for" in found.evidence
    assert found.need_per_s == 560


def test_a_limit_that_nobody_used_is_named() -> None:
    found = unused("a", "topic", "old", Limit("topic:old", 10), WEEK_S)
    assert (found.action, found.confidence) == ("unused", "high")
    assert found.evidence == "Nothing was asked for in 7 days of log."


def test_confidence_goes_with_what_is_known() -> None:
    assert confidence(demand()) == "high"
    assert confidence(demand(observed_s=2 * DAY_S)) == "medium"
    assert confidence(demand(observed_s=3600)) == "low"
    assert confidence(demand(lost_records=1)) == "medium"
    assert confidence(demand(other=5)) == "medium"
    assert confidence(demand(active_s=100)) == "medium"
    assert "5 records of the log are lost" in decide(demand(lost_records=5), 0.3).evidence


def test_a_lowering_that_would_refuse_more_is_taken_back() -> None:
    lowered = decide(demand(100, 1000, **QUIET), 0.3)
    assert settle(lowered, 0.0, 0.0005) == lowered
    kept = settle(lowered, 0.0, 0.02)
    assert (kept.action, kept.recommended_rate_per_s) == ("keep", 1000)
    assert kept.evidence.endswith("130/s would have refused 2% of it, so it stays.")
    assert settle(decide(demand(limit=300, **RUNAWAY), 0.3), 0.01, 0.5).action == "lower"


CLAIMS = st.lists(
    st.builds(Claim, st.floats(1, 10_000), st.floats(1, 1000), st.integers(1, 50)), min_size=1, max_size=12
)


@given(CLAIMS, st.floats(1, 100_000))
def test_fair_shares_use_the_capacity_and_nobody_who_wants_more_has_less_for_its_weight(
    claims: list[Claim], capacity: float
) -> None:
    wanted = sum(claim.need_per_s * claim.count for claim in claims)
    level = fair_level(claims, capacity)
    if level is None:
        assert wanted <= capacity * (1 + 1e-9)
        return
    given_ = [min(claim.need_per_s, level * claim.weight) for claim in claims]
    total = sum(each * claim.count for each, claim in zip(given_, claims, strict=True))
    assert total == pytest.approx(capacity, rel=1e-6)
    assert wanted >= capacity * (1 - 1e-9)


def test_under_a_capacity_a_lowering_is_not_taken_back() -> None:
    lowered = share_out(decide(demand(), 0.3), 0.5, 1000)
    assert settle(lowered, 0.0, 0.5) == lowered
    # What a rule is called decides nothing.
    storms = Storms(count=14, days=7, messages=21_000, own_share=0.1, other_rule="client:the broker's")
    quiet = decide(replace(demand(100, 1000, **QUIET | {"refused_messages": 10}), storms=storms), 0.3)
    assert "the broker's" in quiet.evidence
    assert settle(quiet, 0.0, 0.5).action == "keep"


def test_a_limit_whose_bytes_alone_change_under_a_capacity_is_changed() -> None:
    limit = Limit("topic:orders", 560, bytes_per_s=50_000)
    both = decide(replace(demand(700, **QUIET), limit=limit, size_bytes=percentiles(100_000)), 0.3)
    assert (both.recommended_rate_per_s, both.recommended_bytes_per_s) == (910, 130_000)
    less = share_out(both, 1.0, 10_000)
    assert (less.recommended_rate_per_s, less.recommended_bytes_per_s, less.action) == (560, 130_000, "raise")


def test_a_share_of_the_capacity_is_explained_and_rounded_down() -> None:
    each = decide(demand(), 0.3)
    assert share_out(each, None, 10_000) == each
    assert share_out(each, 2.0, 10_000) == each
    less: Advice = share_out(each, 1.111, 1000)
    assert (less.action, less.recommended_rate_per_s) == ("raise", 330)
    assert less.evidence.endswith(
        "The broker's 1,000/s do not suffice for all: of the 560/s that it needs, its fair share is 333/s."
    )
    assert share_out(each, 0.5, 1000).action == "lower"


def test_a_limit_far_above_its_need_comes_down_to_it_before_others_get_less_than_theirs() -> None:
    idle = decide(demand(5, 300, **QUIET, observed_s=3600), 0.3, limit_all=True)
    assert (idle.action, idle.need_per_s) == ("keep", 6.5)
    less = share_out(idle, math.inf, 400)
    assert (less.action, less.recommended_rate_per_s) == ("lower", 6.5)
    assert less.evidence.endswith(
        "But limits add up to more than the broker's 400/s, so it gets the 6.5/s that it needs."
    )


@given(
    st.lists(st.tuples(st.floats(1, 5000), st.one_of(st.none(), st.floats(1, 5000))), min_size=1, max_size=20),
    st.floats(10, 5000),
)
def test_limits_add_up_to_no_more_than_the_capacity(needs: list[tuple[float, float | None]], capacity: float) -> None:
    decided = [decide(demand(p99, limit), 0.3, limit_all=True) for p99, limit in needs]
    level: float | None = None
    if sum(each.recommended_rate_per_s or 0 for each in decided) > capacity:
        level = fair_level([Claim(each.need_per_s, each.weight, 1) for each in decided], capacity)
        level = math.inf if level is None else level
    shared = [share_out(each, level, capacity) for each in decided]
    assert sum(each.recommended_rate_per_s or 0 for each in shared) <= capacity * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7 * DAY_S, "7 days"), (6.99 * DAY_S, "7 days"), (5400, "1.5 hours"), (60, "1 minute"), (12, "12 seconds")],
)
def test_spans_are_written_in_their_largest_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text
