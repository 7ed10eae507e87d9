import pytest

from proxy.flow.spells import Spells


def test_spells_add_up_with_the_current_one() -> None:
    spells = Spells()
    assert (spells.total, spells.together_ns(100), spells.since_ns) == (0, 0, None)
    spells.begin(10)
    assert (spells.total, spells.together_ns(15), spells.since_ns) == (1, 5, 10)
    spells.end(20)
    assert (spells.total, spells.together_ns(100), spells.since_ns) == (1, 10, None)
    spells.begin(30)
    spells.begin(35)
    assert (spells.total, spells.together_ns(40), spells.since_ns) == (2, 20, 30)


def test_end_without_a_beginning_is_nothing() -> None:
    spells = Spells()
    spells.end(10)
    assert not spells.lately(10, 5)
    spells.begin(20)
    spells.end(30)
    spells.end(40)
    assert spells.together_ns(50) == 10
    assert spells.ended_ns == 30


def test_share_is_of_about_the_last_minute() -> None:
    s = 1_000_000_000
    spells = Spells()
    assert spells.share(0) == spells.share(1_000 * s) == 0
    for second in range(1_000, 1_300):
        spells.begin(second * s)
        spells.end(second * s + s // 4)
    assert spells.share(1_300 * s) == pytest.approx(0.25, abs=0.01)
    assert spells.share(1_360 * s) < 0.04
    spells.begin(2_000 * s)
    assert spells.share(2_005 * s) < 0.2 < spells.share(2_010 * s)
    assert spells.share(2_120 * s) > 0.98


def test_lately_is_now_or_less_than_so_long_ago() -> None:
    spells = Spells()
    assert not spells.lately(0, 5)
    spells.begin(10)
    assert spells.lately(1000, 5)
    spells.end(1000)
    assert spells.lately(1004, 5)
    assert not spells.lately(1005, 5)
