from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from demands import DAY_S, START_S, Recorded, flowing, limited

from admin.analytics import demand as module
from admin.analytics.demand import Caller, Collector, Known

DAY = START_S // DAY_S


@pytest.fixture
def busy() -> Recorded:
    """Three hours about a limit: half of the seconds have no demand."""
    rng = np.random.default_rng(1)
    web = rng.integers(0, 200, 3 * 3600) * (rng.random(3 * 3600) < 0.5)
    return flowing(limited(300.0), {"web": web, "job": np.where(np.arange(3 * 3600) % 1800 < 100, 300, 0)}, 3 * 3600)


def test_percentiles_are_exact_over_all_observed_seconds(busy: Recorded) -> None:
    found, _ = busy.demand()
    asked = sum((busy.admitted[name] + busy.refused[name] for name in busy.admitted), np.zeros(3 * 3600, np.int64))
    refused = sum(busy.refused.values(), np.zeros(3 * 3600, np.int64))
    calm = np.ones(3 * 3600, bool)
    for minute in range(180):
        at = 60 * minute + np.flatnonzero(refused[60 * minute :][:60])
        if len(at):
            calm[at[0] : at[-1] + 1] = False
    assert (found.raw_p99, found.raw_top) == pytest.approx((np.quantile(asked, 0.99), asked.max()))
    assert found.calm_p99 == pytest.approx(np.quantile(asked[calm], 0.99))
    assert (found.active_s, found.refused_s) == (np.count_nonzero(asked), np.count_nonzero(~calm))
    assert (found.messages, found.refused_messages) == (asked.sum(), refused.sum())
    assert found.minute_per_s == pytest.approx(asked.reshape(-1, 60).sum(axis=1).max() / 60)
    assert found.refusing_per_s == pytest.approx(asked[~calm].mean())


def test_how_minutes_are_split_into_batches_makes_no_difference(busy: Recorded) -> None:
    rows = busy.minutes()
    found = []
    for size in (1, 7, 1000):
        collector = Collector(("a", "topic", "orders"), {})
        for begin in range(0, rows.num_rows, size):
            collector.take(rows.slice(begin, size))
        demand = collector.demand(Known(3 * 3600), busy.storms())
        found.append((demand, [each.tolist() for each in collector.minutes]))
    assert len(found[0][1][0]) == 180
    assert found[1:] == found[:1] * 2


def test_the_busiest_minutes_are_kept_and_of_equal_ones_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPLAYED", 3)
    tops = [5, 9, 5, 7, 5]
    recorded = flowing(limited(100.0), {"web": np.repeat(tops, 60)}, 300)
    _, minutes = recorded.demand()
    assert ((minutes.minute_s - START_S) // 60).tolist() == [1, 3, 4]
    assert minutes.messages.tolist() == [9] * 60 + [7] * 60 + [5] * 60


def days(*per_s: int, first_s: int = 0, last_s: int | None = None) -> Recorded:
    """Return days of steady demand within a period."""
    web = np.repeat(np.array(per_s), DAY_S)
    web[:first_s] = 0
    web[len(web) if last_s is None else last_s :] = 0
    return flowing(limited(None), {"web": web}, len(web))


@pytest.mark.parametrize(
    ("recorded", "growth"),
    [
        (days(100, 110, 120, 130, 140), 7 * 10 / 120),
        (days(100, 100, 100, 100), 0.0),
        (days(100, 110, 120), 0.0),
        # Every day must have demand, and only whole days count.
        (days(0, 0, 0, 80, 80, 80, 80), 0.0),
        (days(80, 80, 80, 80, 0, 0), 0.0),
        (days(80, 80, 80, 80, 80, first_s=18 * 3600), 0.0),
        (days(80, 80, 80, 80, 80, last_s=4 * DAY_S + 6 * 3600), 0.0),
    ],
)
def test_growth_needs_demand_on_all_days(recorded: Recorded, growth: float) -> None:
    assert recorded.demand()[0].growth == pytest.approx(growth)


def test_each_limit_answers_for_its_own_time() -> None:
    limits = [(0, limited(100.0)), (600, limited(200.0)), (1200, limited(150.0)), (1800, limited(200.0))]
    found, _ = flowing(limits, {"web": np.full(2400, 210)}, 2400).demand()
    assert (found.limit.rate_per_s, found.limit_since_s, found.limit_s) == (200.0, START_S + 1800, 600)
    # Both times of 200/s count, and the others separately.
    assert (found.now_messages, found.now_refused_messages) == (1200 * 210, 1200 * 10)
    assert found.before == {100.0: (600 * 210, 600 * 110), 150.0: (600 * 210, 600 * 60)}


def test_shadow_refusals_count_as_refused(busy: Recorded) -> None:
    shadow, found = replace(busy, limits=[(0, limited(300.0, action="shadow"))]).demand()[0], busy.demand()[0]
    assert replace(shadow, limit=found.limit) == found


@pytest.mark.parametrize(
    ("per_s", "gone_s"),
    [
        ((80, 80, 80, 0, 0), 3 * DAY_S),
        ((80, 80, 80, 80, 0), None),
        # Less than a hundredth is next to nothing.
        ((800, 800, 2, 2, 2), 2 * DAY_S),
        # A second weekend.
        ((80, 0, 0, 80, 80, 80, 80, 80, 0, 0), None),
        ((80, 0, 0, 80, 80, 80, 80, 80, 0, 0, 0), 8 * DAY_S),
    ],
)
def test_a_resource_is_gone_after_more_days_without_demand_than_are_usual(
    per_s: tuple[int, ...], gone_s: int | None
) -> None:
    found, _ = days(*per_s).demand()
    assert found.gone_since_s == (None if gone_s is None else START_S + gone_s)


def test_a_resource_that_is_back_on_a_day_that_is_known_in_part_is_not_gone() -> None:
    web = np.repeat(np.array((80, 80, 80, 0, 0, 0, 80)), DAY_S)[: 6 * DAY_S + 8 * 3600]
    assert flowing(limited(None), {"web": web}, len(web)).demand()[0].gone_since_s is None


def test_storms_are_added_up() -> None:
    at = np.arange(600) % 300
    callers: dict[str, Any] = {"flood": np.where(at < 20, 900, 0), "early": np.where(at < 10, 90, 0)}
    found = flowing(limited(100.0), callers, 600).demand()[0].storms
    assert [each["start_s"] - START_S for each in found.rows] == [0, 300]
    assert (found.days, found.clients, found.own_share, found.other_rule) == (1, 2, 1.0, "")
    # Users without a name do not stand out.
    assert found.top == Caller("client", "flood", pytest.approx(0.95, abs=0.01))


@pytest.mark.parametrize(
    ("ids", "known"),
    [([1.0, 1.0], "measured"), ([0.9, 0.9], "measured"), ([1.0, 0.5], "assumed"), ([0.0, 0.0], "assumed")],
)
def test_retries_count_as_measured_where_nearly_all_requests_have_ids(ids: Sequence[float], known: str) -> None:
    recorded = flowing(limited(100.0), {"web": np.full(600, 200)}, 600)
    collector = Collector(("a", "topic", "orders"), {"JAVA": 3})
    for at, identified in enumerate(ids):
        rows = replace(recorded, identified=identified, languages={"JAVA": 1.0}).minutes()
        collector.take(rows.slice(5 * at, 5))
    assert collector.demand(Known(600), ()).retries == known
