import pytest

from proxy.flow.periods import Periods


def test_periods_include_the_current_one() -> None:
    periods = Periods()
    assert (periods.total, periods.total_ns(100), periods.since_ns) == (0, 0, None)
    periods.begin(10)
    assert (periods.total, periods.total_ns(15), periods.since_ns) == (1, 5, 10)
    periods.end(20)
    assert (periods.total, periods.total_ns(100), periods.since_ns) == (1, 10, None)
    periods.begin(30)
    periods.begin(35)
    assert (periods.total, periods.total_ns(40), periods.since_ns) == (2, 20, 30)


def test_end_without_a_beginning_is_nothing() -> None:
    periods = Periods()
    periods.end(10)
    assert not periods.is_recent(10, 5)
    periods.begin(20)
    periods.end(30)
    periods.end(40)
    assert periods.total_ns(50) == 10
    assert periods.ended_ns == 30


def test_share_is_of_about_the_last_minute() -> None:
    s = 1_000_000_000
    periods = Periods()
    assert periods.share(0) == periods.share(1_000 * s) == 0
    for second in range(1_000, 1_300):
        periods.begin(second * s)
        periods.end(second * s + s // 4)
    assert periods.share(1_300 * s) == pytest.approx(0.25, abs=0.01)
    assert periods.share(1_360 * s) < 0.04
    periods.begin(2_000 * s)
    assert periods.share(2_005 * s) < 0.2 < periods.share(2_010 * s)
    assert periods.share(2_120 * s) > 0.98


def test_recent_means_active_or_ended_within_the_window() -> None:
    periods = Periods()
    assert not periods.is_recent(0, 5)
    periods.begin(10)
    assert periods.is_recent(1000, 5)
    periods.end(1000)
    assert periods.is_recent(1004, 5)
    assert not periods.is_recent(1005, 5)
