import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from statistics import quantiles
from typing import Any

import pytest

from admin.analytics.demand import demand_of, hour_of_week, percentiles, storms_of
from admin.analytics.figures import Demand, HourDemand, Known, Limit, Most, Percentiles, Seconds, Storms
from admin.analytics.words import DAY_S, HOUR_S

MONDAY_S = int(datetime(2025, 11, 24, tzinfo=UTC).timestamp())
LIMIT = Limit("topic:orders", 300.0)
HOUR = Known(HOUR_S)
SHARES = (0.5, 0.95, 0.99, 0.999)


def of(*hours: HourDemand, known: Known = HOUR, limits: Iterable[Limit] = (), start_s: int = MONDAY_S) -> Demand:
    """Add up hours in a row."""
    of_each = list(limits) or [LIMIT] * len(hours)
    rows = ((start_s + at * HOUR_S, limit, hour) for at, (limit, hour) in enumerate(zip(of_each, hours, strict=True)))
    return demand_of("a", "topic", "orders", rows, Storms(), known)


def histogram(values: Iterable[float]) -> Seconds:
    return tuple(sorted(Counter(values).items()))


def exact(values: Iterable[float], observed_s: int) -> Percentiles:
    """Percentiles of every second by itself."""
    found = list(values)
    every = sorted([*found, *([0.0] * (observed_s - len(found)))])
    cuts = quantiles(every, n=1000, method="inclusive")
    return Percentiles(*(cuts[round(share * 1000) - 1] for share in SHARES), every[-1])


def test_percentiles_are_exact_over_all_seconds_observed() -> None:
    rng = random.Random(1)
    calm = [[rng.randrange(1, 500) for _ in range(400)] for _ in range(3)]
    asked = [[rng.randrange(300, 900) for _ in range(20)] for _ in range(3)]
    wanted = [[one * 0.7 for one in each] for each in asked]
    hours = [
        HourDemand(
            rates=(300.0,),
            active_s=420,
            refused_s=30,
            refused_active_s=15,
            calm=histogram(calm[at]),
            loud_asked=histogram(asked[at]),
            loud_wanted=histogram(wanted[at]),
            loud_outside=histogram(wanted[at][:5]),
            calm_bytes=histogram(one * 10 for one in calm[at]),
            loud_wanted_bytes=histogram(one * 10 for one in wanted[at]),
            loud_outside_bytes=histogram(one * 10 for one in wanted[at][:5]),
        )
        for at in range(3)
    ]
    found = of(*hours, known=Known(3 * HOUR_S))
    every_calm, every_wanted, every_asked = ([*chain(*each)] for each in (calm, wanted, asked))
    outside = [*chain(*(each[:5] for each in wanted))]
    assert found.observed_s == 3 * HOUR_S
    assert found.raw == pytest.approx(exact([*every_calm, *every_asked], 3 * HOUR_S))
    assert found.corrected == pytest.approx(exact([*every_calm, *every_wanted], 3 * HOUR_S))
    # Seconds of refusals without demand are not calm.
    quiet_s = 3 * HOUR_S - 3 * 30 - 3 * (420 - 15)
    assert found.calm == pytest.approx(exact([*every_calm, *outside], quiet_s + len(every_calm) + len(outside)))
    assert found.size_bytes == pytest.approx(exact([one * 10 for one in (*every_calm, *every_wanted)], 3 * HOUR_S))
    assert found.calm_bytes.top == max(*every_calm, *outside) * 10


def test_percentiles_of_little() -> None:
    assert percentiles({}, 0) == Percentiles()
    assert percentiles({}, 5) == Percentiles()
    assert percentiles({7.0: 1}, 0) == Percentiles(7, 7, 7, 7, 7)
    assert percentiles({10.0: 1}, 1) == pytest.approx(Percentiles(5, 9.5, 9.9, 9.99, 10))
    assert percentiles({10.0: 1}, -3).top == 10


def test_sums_and_the_busiest_minutes() -> None:
    one = HourDemand(
        rates=(None, 300.0),
        active_s=100,
        refused_s=10,
        quiet_s=80,
        near_s=3,
        loud_from_s=MONDAY_S + 60,
        loud_until_s=MONDAY_S + 180,
        requests=10,
        messages=100,
        refused_messages=20,
        wanted_messages=90.0,
        asked=100,
        wanted=90.0,
        refusing=40.0,
        minute_wanted=60.0,
        calm_minute=30.0,
        minute_bytes=6000.0,
    )
    other = HourDemand(rates=(300.0,), active_s=5, minute_wanted=120.0, quiet_minute=12.0, refusing=2.0, wanted=30.0)
    last = HourDemand(rates=(300.0,), loud_from_s=MONDAY_S + DAY_S, loud_until_s=MONDAY_S + DAY_S + 60, refused_s=4)
    hours = [one, other, *[HourDemand(rates=(300.0,))] * 22, last]
    days = {MONDAY_S // DAY_S: 90, MONDAY_S // DAY_S + 1: 10, MONDAY_S // DAY_S + 2: 0}
    found = of(*hours, known=Known(100, lost_records=3, other=4, day_s=days))
    assert (found.observed_s, found.active_s, found.days) == (105, 105, 2)
    assert (found.refused_s, found.quiet_s, found.near_s) == (14, 80, 3)
    assert (found.refused_days, found.refused_span_s) == (2, DAY_S)
    assert (found.requests, found.messages, found.refused_messages, found.wanted_messages) == (10, 100, 20, 90.0)
    assert found.refusing_per_s == 3.0
    assert (found.minute_per_s, found.calm_minute_per_s, found.quiet_minute_per_s) == (2.0, 0.5, 0.2)
    assert found.minute_bytes_per_s == 100.0
    assert (found.limit, found.limit.changed) == (Limit("topic:orders", 300.0, changed=True), True)
    assert (found.lost_records, found.other) == (3, 4)
    assert of().limit == Limit()


@pytest.mark.parametrize(
    ("hours", "known"),
    [
        ([(0, 0, 0.0)], "none"),
        ([(10, 0, 0.0)], "none"),
        ([(10, 0, 5.0)], "assumed"),
        ([(10, 10, 0.0)], "measured"),
        ([(100, 96, 5.0), (0, 0, 0.0)], "measured"),
        ([(100, 96, 5.0), (10, 0, 1.0)], "assumed"),
    ],
)
def test_what_is_known_of_retries(hours: list[tuple[int, int, float]], known: str) -> None:
    found = [
        HourDemand(refused_requests=refused, identified_requests=identified, asked=100, wanted=100 - less)
        for refused, identified, less in hours
    ]
    assert of(*found).retries == known


def fortnight(per_hour: Any, days: int = 15) -> Demand:
    """Two weeks and a day, in which each hour has what a function of day and hour says."""
    hours = [HourDemand(wanted=per_hour(at // 24, at % 24)) for at in range(24 * days)]
    first = MONDAY_S // DAY_S
    week: Counter[int] = Counter()
    for at in range(24 * days):
        week[hour_of_week(MONDAY_S + at * HOUR_S)] += HOUR_S
    return of(*hours, known=Known(days * DAY_S, day_s={first + day: DAY_S for day in range(days)}, week_s=week))


def test_a_trend_is_found_where_there_is_one() -> None:
    grows = fortnight(lambda day, hour: 1000 + 100 * day if hour in {3, 9, 15} else 0.0)
    # 100 more a day of 1 700 on average.
    assert grows.trend_per_week == pytest.approx(7 * 100 / 1700)
    assert grows.trend_fit == pytest.approx(1)
    even = fortnight(lambda _, hour: 1000.0 if hour == 3 else 0.0)
    assert even.trend_per_week == pytest.approx(0, abs=1e-9)
    assert even.trend_fit == 0
    assert fortnight(lambda *_: 0.0).trend_per_week is None


def test_the_busiest_hour_of_the_week_is_found() -> None:
    mondays = fortnight(lambda day, hour: 12_000.0 if day % 7 == 0 and hour == 9 else 0.0)
    assert mondays.hour_of_week == 9
    assert mondays.hour_per_s == pytest.approx(12_000 / 3600)
    # In most hours nobody asks for anything.
    assert mondays.hour_times is None
    twice = fortnight(lambda day, hour: 7200.0 if day % 7 == 2 and hour == 4 else 3600.0)
    assert (twice.hour_of_week, twice.hour_times) == (2 * 24 + 4, 2.0)


def test_a_short_log_has_neither() -> None:
    short = fortnight(lambda *_: 5.0, days=3)
    assert (short.trend_per_week, short.hour_per_s, short.hour_of_week, short.hour_times) == (None, None, None, None)


def shares(**messages: int) -> list[dict[str, Any]]:
    return [{"name": name, "messages": its, "share": 0.0} for name, its in messages.items()]


def storms() -> Iterator[dict[str, Any]]:
    for day, (big, small) in enumerate(((900, 60), (500, 200))):
        yield {
            "start_s": MONDAY_S + day * DAY_S,
            "messages": big + small + 40,
            "rules": [*shares(**{"topic:orders": big}), *shares(**{"total:topic:*": small})],
            "clients": shares(c9=big, c8=small, c7=40),
            "client_count": 9 - day,
            "users": shares(**{"": big + small + 40}),
            "user_count": 1,
            "producer_groups": shares(batch=big + 20, web=small + 20),
            "producer_group_count": 2,
        }


def test_storms_are_added_up() -> None:
    found = storms_of(storms(), "topic:orders")
    assert (found.count, found.days, found.messages, found.clients) == (2, 2, 1740, 9)
    assert found.top_two_share == pytest.approx(1660 / 1740)
    assert found.own_share == pytest.approx(1400 / 1660)
    assert found.other_rule == "total:topic:*"
    # Who has no name can be given no share.
    assert found.most == (
        Most("client", "c9", pytest.approx(1400 / 1740), 9),
        Most("producer_group", "batch", pytest.approx(1440 / 1740), 2),
    )
    assert storms_of([], "topic:orders") == Storms()
