import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.analytics.advice import (
    MAX_MEMBERS,
    Advice,
    Candidate,
    Claim,
    confidence,
    decide,
    fair_level,
    fleet,
    is_runaway,
    recommendation,
    share_out,
    unused,
)
from admin.analytics.evidence import span
from admin.analytics.figures import Demand, Limit, Most, Percentiles, Storms
from admin.analytics.options import Options, Try
from admin.analytics.words import DAY_S
from admin.common.recommendations import Recommendation, Replay
from limiter.rules.rule import MAX_RATE_PER_S

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
        "wanted_messages": 1_000_000.0,
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


def decided(of: Demand, headroom: float = 0.3, **options: Any) -> Advice:
    return decide(of, Options(headroom=headroom, **options))


def settled(of: Advice, refused: Callable[[Candidate], float] = lambda _: 0.0, error: int = 0) -> Recommendation:
    """Settle advice by what each candidate would refuse, as a share of the million messages of ``demand``."""
    return recommendation(of, [round(1_000_000 * refused(each)) for each in of.candidates], error)


def holding(rate_per_s: float, uncorrected_per_s: float = 0.0) -> Callable[[Candidate], float]:
    """From which rate on nothing is refused, without retries and of all that came; below it, 2%."""

    def refused(of: Candidate) -> float:
        least = rate_per_s if of.wanted else max(rate_per_s, uncorrected_per_s)
        return 0.02 if (of.rate_per_s or 0.0) < least else 0.0

    return refused


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
    found = decided(demand())
    assert (found.action, found.limit.rate_per_s, found.recommended.rate_per_s) == ("raise", 300, 560)
    assert found.evidence == "p99 of demand over 7 days is 430/s, limit 300/s refused 2.1% in 14 storms."
    assert found.confidence == "high"


def test_retries_that_were_counted_are_taken_off() -> None:
    found = decided(demand(raw=percentiles(900), retries="measured"))
    assert found.recommended.rate_per_s == 560
    assert "is 430/s (900/s with the retries, which were counted), limit" in found.evidence
    assert settled(found, holding(560, 2000)).recommended_rate_per_s == 560
    some = decided(demand(wanted_messages=990_000.0, retries="measured"))
    assert "is 430/s (retries were counted, and are not among it), limit" in some.evidence
    assert "(none of it were retries: they were counted)" in decided(demand(retries="measured")).evidence


def test_retries_that_are_assumed_are_said_both_ways_and_the_limit_holds_either_way() -> None:
    found = decided(demand(raw=percentiles(900), retries="assumed"))
    assert "is 900/s as it came, and 430/s without the retries that are assumed, since nobody counted" in found.evidence
    assert found.confidence == "medium"
    both = settled(found, holding(500, 700))
    assert (both.action, both.recommended_rate_per_s, both.retries) == ("raise", 700, "assumed")
    assert both.evidence.endswith(
        "560/s would have refused 2% of it if nobody tried again, and 0% without the retries, so it takes 700/s."
    )
    assert both.backtest.recommended_uncorrected == Replay(refused_messages=0, refused_share=0.0)
    one = settled(found, holding(500, 5000))
    assert one.recommended_rate_per_s == 560
    assert one.evidence.endswith(
        "560/s would have refused 2% of it if nobody tried again, and 0% without the retries: its busiest second is"
        " 1,080/s."
    )
    assert one.backtest.recommended_uncorrected == Replay(refused_messages=20_000, refused_share=0.02)


def test_a_raised_limit_is_the_lowest_that_would_have_held() -> None:
    found = decided(demand(raw=percentiles(2000)))
    rates = [each.rate_per_s for each in found.steps]
    assert rates == [560, 620, 700, 840, 1200, 1700]
    assert settled(found).recommended_rate_per_s == 560
    more = settled(found, holding(800))
    assert (more.action, more.recommended_rate_per_s) == ("raise", 840)
    assert more.evidence.endswith("560/s would have refused 2% of it, so it takes 840/s.")
    assert more.backtest.recommended == Replay(refused_messages=0, refused_share=0.0)
    peaks = settled(found, holding(1800))
    assert peaks.recommended_rate_per_s == 560
    assert peaks.evidence.endswith("560/s would have refused 2% of it: its busiest second is 2,400/s.")


def test_no_step_goes_beyond_the_busiest_second() -> None:
    assert [each.rate_per_s for each in decided(demand()).steps] == [560]
    assert [each.rate_per_s for each in decided(demand(raw=percentiles(600))).steps] == [560, 620, 700, 720]


def test_no_rate_is_looked_at_that_no_limit_can_have() -> None:
    for of in (demand(9e8, 7e8), demand(100, 9e8), demand(9e8, 9e8)):
        for found in (decided(of), decided(replace(of, limit=replace(of.limit, bytes_per_s=7e8), size_bytes=of.raw))):
            rates = [rate for each in found.candidates for rate in (each.rate_per_s, each.bytes_per_s)]
            assert max(rate for rate in rates if rate is not None) <= MAX_RATE_PER_S


def test_a_limit_about_the_need_that_refuses_is_raised_to_what_holds() -> None:
    found = decided(demand(430, 560, raw=percentiles(2000)))
    assert (found.action, found.recommended.rate_per_s) == ("keep", 560)
    more = settled(found, holding(650))
    assert (more.action, more.recommended_rate_per_s, more.only_with) == ("raise", 700, "")
    assert more.evidence.endswith("560/s would have refused 2% of it, so it takes 700/s.")
    kept = settled(found, holding(9999))
    assert (kept.action, kept.recommended_rate_per_s) == ("keep", 560)
    assert kept.backtest.recommended == kept.backtest.current


def test_what_is_offered_apart() -> None:
    assert settled(decided(demand(100, 1000, **QUIET))).only_with == "lower"
    idle = decided(demand(**QUIET))
    assert settled(idle).only_with == "raise"
    assert "It was seldom near that, so this can wait." in idle.evidence
    near = decided(demand(**QUIET, near_s=WEEK_S // 50))
    assert settled(near).only_with == ""
    assert "At least 80% of it was asked for in 2% of the time." in near.evidence
    assert settled(decided(demand())).only_with == ""
    limit = Limit("topic:orders", bytes_per_s=50_000)
    assert settled(decided(replace(demand(**QUIET), limit=limit, size_bytes=percentiles(60_000)))).only_with == ""


def test_what_if_says_what_other_rates_would_have_refused() -> None:
    tries = (Try("topic", "orders", 150.0), Try("topic", "other", 7.0), Try("group", "orders", 9.0))
    found = decided(demand(raw=percentiles(2000), retries="assumed"), tries=tries)
    assert found.tries == (150.0,)
    rates = {each.rate_per_s: each for each in settled(found, holding(600, 900)).what_if}
    assert list(rates) == [150, 300, 560, 620, 700, 840, 1200, 1700]
    assert (rates[620].refused_share, rates[620].refused_share_uncorrected) == (0.0, 0.02)
    # A limit that stays, and refuses: what would more of it do?
    stays = decided(demand(9000, 200, **FLOOD))
    assert [each.rate_per_s for each in settled(stays).what_if] == [200, 220, 250, 300, 400, 600]
    # Nothing is replayed for nobody.
    assert decided(demand(430, 560, **QUIET)).candidates == (Candidate(560, None, wanted=False),)
    assert settled(decided(demand(430, 560, **QUIET))).what_if == ()


def test_where_one_of_many_asks_for_most_the_limit_is_shared_fairly() -> None:
    who = (Most("client", "10.0.0.9", 0.9, 9), Most("producer_group", "batch", 0.92, 3))
    storms = Storms(count=14, days=7, messages=21_000, top_two_share=0.95, clients=9, most=who)
    found = decided(demand(storms=storms, refusing_per_s=50.0))
    (fair,) = [each for each in found.candidates if each.part < 1]
    assert fair.rate_per_s == pytest.approx(300 * 8 / 9)
    assert fair.part == pytest.approx(0.1)
    shared = settled(found, lambda of: 0.0001 if of.part < 1 else 0.021)
    assert (shared.action, shared.fair_by, shared.recommended_rate_per_s) == ("share", "client", 300)
    assert (shared.max_fair_keys, shared.only_with) == (None, "")
    assert shared.backtest.others == Replay(refused_messages=100, refused_share=pytest.approx(100 / 910_000))
    assert shared.backtest.others_current == Replay(refused_messages=2100, refused_share=pytest.approx(2100 / 910_000))
    assert (
        'Client 10.0.0.9 has 90% of what was refused, and up to 8 others the rest: with fair_by = "client" at the same'
        " rate, no more than <0.1% of what these sent would have been refused in place of 0.2%, if each asked for the"
        " part that it has of what was refused. To let all of it pass takes 560/s."
    ) in shared.evidence
    # That would hardly help the others.
    assert settled(found, lambda of: 0.002 if of.part < 1 else 0.0).action == "raise"


@pytest.mark.parametrize(
    "who",
    [
        Most("client", "10.0.0.9", 0.4, 9),
        Most("client", "10.0.0.9", 0.9, 2),
        Most("client", "10.0.0.9", 0.9, 1000),
        Most("client", "10.0.0.9", 1.0, 9),
    ],
    ids=["not most", "no others", "too many to tell apart", "nothing left for others"],
)
def test_where_nobody_is_to_be_protected_no_shares_are_recommended(who: Most) -> None:
    storms = Storms(count=14, days=7, messages=21_000, most=(who,))
    assert decided(demand(storms=storms)).most is None


def test_who_can_choose_its_name_comes_second_and_many_need_more_shares() -> None:
    both = (Most("client", "10.0.0.9", 0.5, 40), Most("producer_group", "batch", 0.98, 40))
    found = decided(demand(storms=Storms(count=14, days=7, messages=21_000, most=both)))
    assert found.most is not None
    assert found.most.fair_by == "producer_group"
    shared = settled(found, lambda of: 0.0 if of.part < 1 else 0.021)
    assert (shared.fair_by, shared.max_fair_keys) == ("producer_group", 40)
    fair = replace(demand().limit, fair_by="client")
    assert decided(replace(demand(storms=Storms(count=1, days=1, messages=9, most=both)), limit=fair)).most is None


def test_a_name_in_evidence_gives_a_terminal_no_orders() -> None:
    who = Most("producer_group", "a\x1b[2J", 0.9, 9)
    found = decided(demand(storms=Storms(count=14, days=7, messages=21_000, most=(who,))))
    assert settled(found, lambda of: 0.0 if of.part < 1 else 0.02).evidence.isprintable()


def test_a_fleet_is_added_up_and_each_gets_its_part() -> None:
    one = decided(demand())
    other = msgspec.structs.replace(decided(demand(100, 1000)), instance="b")
    found = fleet("topic", "orders", [other, one])
    assert (found.need_per_s, found.limit_per_s) == (690, 1300)
    assert [(each.instance, each.need_per_s, each.limit_per_s) for each in found.members] == [
        ("a", 560, 300),
        ("b", 130, 1000),
    ]
    assert sum(each.share for each in found.members) == pytest.approx(1)
    free = msgspec.structs.replace(other, limit=Limit(), need_per_s=0.0)
    idle = fleet("topic", "orders", [free, msgspec.structs.replace(free, instance="c")])
    assert (idle.limit_per_s, [each.share for each in idle.members]) == (None, [0.5, 0.5])


def test_a_limit_that_stopped_a_flood_is_offered_to_be_lower_and_what_it_refused_is_said() -> None:
    flood = Storms(count=2, days=1, messages=21_000, top_two_share=1.0, clients=1)
    said = settled(decided(demand(100, 600, storms=flood, refused_s=200, refused_days=1, refusing_per_s=5000)))
    assert (said.action, said.only_with) == ("lower", "lower")
    assert said.backtest.logged is not None
    assert said.backtest.logged.refused_messages == 21_000


def test_of_a_large_fleet_all_are_added_up_and_the_first_are_named() -> None:
    one = decided(demand())
    found = fleet("topic", "orders", [msgspec.structs.replace(one, instance=f"{at:04}") for at in range(1000)])
    assert (found.need_per_s, found.limit_per_s, found.member_count) == (560_000, 300_000, 1000)
    assert [each.instance for each in found.members] == [f"{at:04}" for at in range(MAX_MEMBERS)]


def test_a_limit_far_above_the_demand_is_lowered() -> None:
    found = decided(demand(100, 1000, **QUIET))
    assert (found.action, found.recommended.rate_per_s) == ("lower", 130)


@pytest.mark.parametrize("limit", [121, 130, 143])
def test_less_than_a_tenth_is_left_as_it_is(limit: float) -> None:
    found = decided(demand(100, limit, **QUIET))
    assert (found.action, found.recommended.rate_per_s) == ("keep", limit)


def test_less_than_a_day_of_log_lowers_nothing_but_raises() -> None:
    short = {"observed_s": 1200, "days": 1, "quiet_s": 900, "refused_days": 1, "refused_span_s": 600}
    found = decided(demand(100, 1000, **(short | QUIET)))
    assert (found.action, found.confidence) == ("keep", "low")
    assert "20 minutes of log are too few to lower it" in found.evidence
    assert decided(demand(430, 300, **short)).action == "raise"


def test_a_flood_that_is_all_the_log_knows_does_not_raise_the_limit_that_stops_it() -> None:
    found = decided(demand(9000, 200, **FLOOD), headroom=0.2)
    assert (found.action, found.recommended.rate_per_s, found.confidence) == ("keep", 200, "low")
    assert "Not enough quiet time to tell demand from a flood: only 3 seconds of it lies outside" in found.evidence
    assert "nothing of it lies outside" in decided(demand(9000, 200, **FLOOD | {"quiet_s": 0}), headroom=0.2).evidence
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
    found = decided(replace(demand(9000, **fields), limit=limit), headroom=0.2)
    assert (found.action, found.recommended.rate_per_s, found.confidence) == ("keep", 200, "low")
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
    found = decided(demand(9000, 200, **FLOOD | change), headroom=0.2)
    assert found.action == "raise"
    assert "flood" not in found.evidence


def test_bytes_of_a_flood_raise_nothing_either() -> None:
    limit = Limit("topic:orders", bytes_per_s=50_000)
    bytes_ = {"size_bytes": percentiles(2_000_000), "minute_bytes_per_s": 900_000.0}
    found = decided(replace(demand(9000, **FLOOD | bytes_), limit=limit), headroom=0.2)
    assert (found.action, found.recommended.bytes_per_s, found.confidence) == ("keep", 50_000, "low")
    assert found.evidence.count("tell demand from a flood") == 1
    # The messages are as ever, the bytes are not.
    calm = {"quiet_s": 3000, "observed_s": 7200, "calm": percentiles(8000), "calm_bytes": percentiles(9000)}
    assert decided(replace(demand(9000, **FLOOD | bytes_ | calm), limit=limit), headroom=0.2).action == "keep"


def test_a_flood_gets_no_more_of_a_capacity_than_its_limit() -> None:
    found = decided(demand(9000, 200, **FLOOD), headroom=0.2, capacity_per_s=1e9)
    assert (found.need_per_s, found.weight) == (200, 200)
    shared = share_out(found, 0.5, 1000)
    assert (shared.action, shared.recommended.rate_per_s) == ("lower", 100)


def test_a_limit_is_never_below_the_busiest_minute() -> None:
    assert decided(demand(100, 1000, **QUIET, minute_per_s=400.0)).recommended.rate_per_s == 400


def test_a_pattern_is_not_lowered_and_what_it_limits_gets_a_limit_of_its_own_when_raised() -> None:
    by_pattern = Limit("topic:*", 1000, 1.0, 1.0)
    assert decided(replace(demand(100, **QUIET), limit=by_pattern)).action == "keep"
    raised = decided(replace(demand(2000), limit=by_pattern))
    assert (raised.action, raised.name, raised.recommended.rate_per_s) == ("raise", "orders", 2600)


def test_a_runaway_does_not_raise_the_limit_that_stops_it() -> None:
    found = decided(demand(limit=300, **RUNAWAY))
    assert found.runaway
    assert found.action == "lower"
    assert found.recommended.rate_per_s == 130
    assert "In storms two clients with 97% of what was refused asked for 50 times as much (5,000/s)" in found.evidence
    assert decided(demand(limit=130, **RUNAWAY)).action == "keep"


def test_a_limit_that_only_a_runaway_used_is_kept_and_not_lowered_to_nothing() -> None:
    only = RUNAWAY | {"calm": Percentiles(), "calm_minute_per_s": 0.0}
    found = decided(demand(limit=300, **only))
    assert (found.action, found.recommended.rate_per_s) == ("keep", 300)
    assert found.evidence.endswith("Too little is asked for otherwise to say what it needs.")
    limit = Limit("topic:orders", 300, bytes_per_s=50_000)
    assert decided(replace(demand(**only), limit=limit)).recommended.bytes_per_s == 50_000
    assert decided(replace(demand(), limit=limit)).recommended.bytes_per_s == 50_000
    shared = share_out(found, 0.1, 100)
    assert (shared.action, shared.recommended.rate_per_s) == ("lower", 1)


@pytest.mark.parametrize(
    ("busiest", "action", "recommended"), [(50, "lower", 50), (269, "lower", 270), (271, "keep", 300)]
)
def test_what_is_asked_for_seldom_and_at_once_is_not_refused_for_the_sake_of_a_runaway(
    busiest: float, action: str, recommended: float
) -> None:
    seldom = RUNAWAY | {"calm": Percentiles(top=busiest), "calm_minute_per_s": 50 / 60}
    found = decided(demand(limit=300, **seldom))
    assert (found.action, found.recommended.rate_per_s) == (action, recommended)
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
    assert decided(demand(trend_per_week=0.2, trend_fit=0.9)).recommended.rate_per_s == 680
    assert "grows by 20% a week" in decided(demand(trend_per_week=0.2, trend_fit=0.9)).evidence
    assert decided(demand(trend_per_week=0.2, trend_fit=0.1)).recommended.rate_per_s == 560
    assert decided(demand(trend_per_week=9.0, trend_fit=0.9)).recommended.rate_per_s == 840


def test_the_busiest_hour_of_the_week_is_covered_and_named() -> None:
    found = decided(demand(hour_per_s=600.0, hour_of_week=9, hour_times=3.2))
    assert found.recommended.rate_per_s == 780
    assert "Its busiest hour is Monday 09:00 UTC with 600/s, 3.2 times the median hour." in found.evidence


def test_bytes_are_decided_in_the_same_way() -> None:
    limit = Limit("topic:orders", 1000, 1.0, 1.0, bytes_per_s=50_000)
    found = decided(replace(demand(700, 1000, **QUIET), limit=limit, size_bytes=percentiles(100_000)))
    assert (found.action, found.recommended.rate_per_s, found.recommended.bytes_per_s) == ("raise", 1000, 130_000)
    assert "p99 of bytes is 100,000 bytes/s, their limit 50,000 bytes/s." in found.evidence


@pytest.mark.parametrize(
    ("action", "said"),
    [("reject", ", of which 2.1% was refused"), ("shadow", ", of which 2.1% would have been refused")],
)
def test_refusals_without_a_rate_are_said(action: str, said: str) -> None:
    limit = Limit("topic:orders", bytes_per_s=50_000, action=action)
    assert f"{said} in 14 storms." in decided(replace(demand(), limit=limit)).evidence


def test_refusals_of_other_rules_are_not_laid_to_this_limit() -> None:
    storms = Storms(count=14, days=7, messages=21_000, top_two_share=0.3, own_share=0.1, other_rule="client:10.0.0.0/8")
    assert "(90% of that by client:10.0.0.0/8, not by this limit)" in decided(demand(storms=storms)).evidence


def test_a_limit_of_0_and_a_limit_that_is_off_are_left() -> None:
    assert decided(demand(limit=0)).action == "keep"
    off = replace(demand(), limit=Limit("topic:orders", 300, action="off"))
    assert (decided(off).action, decided(off, capacity_per_s=1e9).action) == ("keep", "keep")


def test_without_a_limit_there_is_none_recommended_unless_a_capacity_is_shared() -> None:
    free = replace(demand(**QUIET), limit=Limit())
    assert decided(free).action == "keep"
    assert decided(free).recommended.rate_per_s is None
    shared = decided(free, capacity_per_s=1e9)
    assert (shared.action, shared.recommended.rate_per_s) == ("new", 560)


def test_what_was_not_told_apart_gets_no_limit_of_that_name() -> None:
    found = decided(replace(demand(**QUIET), name="_other", limit=Limit()), capacity_per_s=1e9)
    assert (found.action, found.recommended.rate_per_s) == ("keep", None)
    assert "which no limit can be set for" in found.evidence
    assert found.need_per_s == 560


def test_a_limit_that_nobody_used_is_named() -> None:
    found = recommendation(unused("a", "topic", "old", Limit("topic:old", 10), WEEK_S), None, 0)
    assert (found.action, found.confidence, found.rate_per_s, found.recommended_rate_per_s) == (
        "unused",
        "high",
        10,
        None,
    )
    assert found.evidence == "Nothing was asked for in 7 days of log."
    assert found.backtest.current is None


def test_confidence_goes_with_what_is_known() -> None:
    assert confidence(demand()) == "high"
    assert confidence(demand(observed_s=2 * DAY_S)) == "medium"
    assert confidence(demand(observed_s=3600)) == "low"
    assert confidence(demand(lost_records=1)) == "medium"
    assert confidence(demand(other=5)) == "medium"
    assert confidence(demand(active_s=100)) == "medium"
    assert "5 records of the log are lost" in decided(demand(lost_records=5)).evidence


def test_a_lowered_limit_refuses_next_to_nothing_more_or_is_taken_back() -> None:
    lowered = decided(demand(100, 1000, **QUIET))
    done = settled(lowered, lambda of: 0.0005 if of.rate_per_s == 130 else 0.0)
    assert (done.action, done.recommended_rate_per_s) == ("lower", 130)
    assert [each.rate_per_s for each in lowered.steps] == [130, 150, 170, 200, 260, 390]
    less = settled(lowered, holding(180))
    assert (less.action, less.recommended_rate_per_s) == ("lower", 200)
    assert less.evidence.endswith(
        "130/s would have refused 2% of it, and 200/s next to nothing more than the limit in force."
    )
    kept = settled(lowered, lambda of: 0.0 if of.rate_per_s == 1000 else 0.02)
    assert (kept.action, kept.recommended_rate_per_s, kept.only_with) == ("keep", 1000, "")
    assert kept.evidence.endswith("130/s would have refused 2% of it, so it stays.")
    assert settled(decided(demand(limit=300, **RUNAWAY)), lambda of: 0.5).action == "lower"


def test_what_was_logged_and_how_far_the_model_is_off() -> None:
    found = settled(decided(demand()), lambda of: 0.02 if of.rate_per_s == 300 else 0.0, error=-1000)
    test = found.backtest
    assert test.current == Replay(refused_messages=20_000, refused_share=0.02)
    assert test.logged == Replay(refused_messages=21_000, refused_share=0.021)
    assert test.model_error == -0.001
    nothing = recommendation(decided(demand(430, 560, **QUIET)), None, 0).backtest
    assert nothing.current == nothing.recommended == nothing.recommended_uncorrected
    assert nothing.current == Replay(refused_messages=0, refused_share=0.0)
    free = recommendation(decided(replace(demand(**QUIET), limit=Limit())), None, 0)
    assert (free.action, free.backtest.current, free.backtest.model_error) == ("keep", None, None)


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


def test_under_a_capacity_a_lowering_is_neither_taken_back_nor_offered_apart() -> None:
    lowered = settled(share_out(decided(demand()), 0.5, 1000), lambda of: 0.5 if of.rate_per_s == 150 else 0.0)
    assert (lowered.action, lowered.recommended_rate_per_s, lowered.only_with) == ("lower", 150, "")


def test_a_limit_whose_bytes_alone_change_under_a_capacity_is_changed() -> None:
    limit = Limit("topic:orders", 560, bytes_per_s=50_000)
    both = decided(replace(demand(700, **QUIET), limit=limit, size_bytes=percentiles(100_000)))
    assert (both.recommended.rate_per_s, both.recommended.bytes_per_s) == (910, 130_000)
    less = share_out(both, 1.0, 10_000)
    assert (less.recommended.rate_per_s, less.recommended.bytes_per_s, less.action) == (560, 130_000, "raise")


def test_a_share_of_the_capacity_is_explained_and_rounded_down() -> None:
    each = decided(demand())
    assert share_out(each, None, 10_000) == each
    assert share_out(each, 2.0, 10_000) == each
    less: Advice = share_out(each, 1.111, 1000)
    assert (less.action, less.recommended.rate_per_s) == ("raise", 330)
    assert less.evidence.endswith(
        "The broker's 1,000/s do not suffice for all: of the 560/s that it needs, its fair share is 333/s."
    )
    assert share_out(each, 0.5, 1000).action == "lower"


def test_a_limit_far_above_its_need_comes_down_to_it_before_others_get_less_than_theirs() -> None:
    idle = decided(demand(5, 300, **QUIET, observed_s=3600), capacity_per_s=1e9)
    assert (idle.action, idle.need_per_s) == ("keep", 6.5)
    less = share_out(idle, math.inf, 400)
    assert (less.action, less.recommended.rate_per_s) == ("lower", 6.5)
    assert less.evidence.endswith(
        "But limits add up to more than the broker's 400/s, so it gets the 6.5/s that it needs."
    )


@given(
    st.lists(st.tuples(st.floats(1, 5000), st.one_of(st.none(), st.floats(1, 5000))), min_size=1, max_size=20),
    st.floats(10, 5000),
)
def test_limits_add_up_to_no_more_than_the_capacity(needs: list[tuple[float, float | None]], capacity: float) -> None:
    each_by_itself = [decided(demand(p99, limit), capacity_per_s=1e9) for p99, limit in needs]
    level: float | None = None
    if sum(each.recommended.rate_per_s or 0 for each in each_by_itself) > capacity:
        level = fair_level([Claim(each.need_per_s, each.weight, 1) for each in each_by_itself], capacity)
        level = math.inf if level is None else level
    shared = [share_out(each, level, capacity) for each in each_by_itself]
    assert sum(each.recommended.rate_per_s or 0 for each in shared) <= capacity * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7 * DAY_S, "7 days"), (6.99 * DAY_S, "7 days"), (5400, "1.5 hours"), (60, "1 minute"), (12, "12 seconds")],
)
def test_spans_are_written_in_their_largest_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_limit_below_the_least_that_there_is_is_raised_as_any_other() -> None:
    assert settled(decided(demand(limit=5e-324))).action == "raise"
