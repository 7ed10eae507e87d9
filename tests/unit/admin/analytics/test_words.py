import pytest
import report_results as made
from report_results import NOON_S

from admin.analytics import words


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "unlimited"), (0, "0/s"), (500.0, "500/s"), (1234.5, "1,234/s"), (12.5, "12.5/s"), (0.25, "0.25/s"),
        (1.26e-5, "0.0000126/s"),
    ],
)  # fmt: skip
def test_rate(rate: float | None, text: str) -> None:
    assert words.rate(rate) == text


def test_a_span_within_a_day_has_the_day_once() -> None:
    assert words.span(NOON_S, NOON_S + 243) == "2026-11-21 12:00:00 to 12:04:03 UTC (4 min 3 s)"
    assert words.span(NOON_S, NOON_S + 86_400) == "2026-11-21 12:00:00 to 2026-11-22 12:00:00 UTC (1 d)"


def test_change_has_the_rate_before_and_after() -> None:
    assert words.change(made.advice("t", "raise", 300.0, 450.0)) == "300/s → 450/s"
    assert words.change(made.advice("t", "new", None, 5.0)) == "unlimited → 5/s"
    assert words.change(made.advice("t", "keep", 5.0)) == "5/s"
    bytes_too = made.advice("t", "raise", 5.0, 6.0, bytes_per_s=4096.0, count="requests")
    assert words.change(bytes_too) == "5 requests/s → 6 requests/s, 4,096 bytes/s"
    shared = made.advice("t", "share", 300.0, 300.0, fair_by="producer_group")
    assert words.change(shared) == "300/s, in fair shares by producer group"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (300.0, 450.0, "300/s → 450/s"), (None, 1000.0, "own limit: none → 1,000/s"),
        (1000.0, None, "own limit: 1,000/s → none"), (None, None, ""),
    ],
)  # fmt: skip
def test_edit_of_a_limit(before: float | None, after: float | None, text: str) -> None:
    assert words.edit({"rate_before_per_s": before, "rate_after_per_s": after}) == text


def test_replay_says_what_retries_change() -> None:
    sides = {"current": made.replay(21, 0.021), "recommended": made.replay(0, 0.0)}
    assert words.replayed(made.advice("t", "raise", 1.0, 2.0)) == ""
    assert words.replayed(made.advice("t", "raise", 1.0, 2.0, **sides, retries="measured")) == "2.1% → 0%"
    sides["recommended_uncorrected"] = made.replay(4, 0.004)
    said = words.replayed(made.advice("t", "raise", 1.0, 2.0, **sides, retries="assumed"))
    assert said == "2.1% → 0% (0.4% if nobody retries)"
    others = {"others_current": made.replay(3, 0.03), "others": made.replay(0, 0.0)}
    assert words.replayed(made.advice("t", "share", 1.0, **others)) == "others 3% → 0%"


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [
        (112, 100, "+12%"), (60, 100, "\N{MINUS SIGN}40%"), (1000, 1001, "as before"), (5, 0, "new"),
        (0, 5, "none now"), (0, 0, ""), (1300, 100, "+1,200%"),
    ],
)  # fmt: skip
def test_growth(now: int, before: int, text: str) -> None:
    assert words.growth(now, before) == text


def test_offers_and_limits_without_refusals_are_not_for_everybody() -> None:
    assert not words.is_default(made.advice("t", "lower", 9.0, 5.0, only_with="lower"))
    assert not words.needs_reading(made.advice("t", "keep", 9.0, current=made.replay(0, 0.0)))
    assert words.needs_reading(made.advice("t", "keep", 9.0, current=made.replay(3, 0.1)))
