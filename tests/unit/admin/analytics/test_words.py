import pytest

from admin.analytics import words
from admin.analytics.findings import LimitChange, Totals
from admin.common.recommendations import Backtest, Recommendation, Replay, refusals


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (243, "4 min 3 s"), (3600, "1 h"), (90_000, "1 d 1 h"), (86_430, "1 d")],
)
def test_durations_have_the_two_largest_units(seconds: int, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (1, "100%"), (0.0214, "2.1%"), (0.5, "50%"), (0.0000001, "<0.1%"), (0.9999, ">99.9%")],
)
def test_a_share_is_never_rounded_to_nothing_or_all(share: float, text: str) -> None:
    assert words.percent(share) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "unlimited"),
        (0, "0/s"),
        (500.0, "500/s"),
        (1234.5, "1,234/s"),
        (12.5, "12.5/s"),
        (0.25, "0.25/s"),
        (1.26e-5, "0.0000126/s"),
    ],
)
def test_rates_have_the_figures_that_matter(rate: float | None, text: str) -> None:
    assert words.rate(rate) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (265_000_000, "265 MB"), (3e15, "3000.0 TB")]
)
def test_sizes_go_by_thousands(size: int, text: str) -> None:
    assert words.size(size) == text


def test_a_span_within_a_day_says_the_day_once() -> None:
    assert words.span(1_795_262_400, 1_795_262_643) == "2026-11-21 12:00:00 to 12:04:03 (4 min 3 s)"
    assert words.span(1_795_262_400, 1_795_348_800) == "2026-11-21 12:00:00 to 2026-11-22 12:00:00 (1 d)"


def _recommendation(**fields: object) -> Recommendation:
    return Recommendation(instance="a", kind="topic", name="t", **{"action": "raise", **fields})  # type: ignore[arg-type]


def test_a_change_says_what_was_and_what_will_be() -> None:
    assert words.change(_recommendation(rate_per_s=300.0, recommended_rate_per_s=450.0)) == "300/s → 450/s"
    assert words.change(_recommendation(recommended_rate_per_s=5.0, action="new")) == "unlimited → 5/s"
    assert words.change(_recommendation(rate_per_s=5.0, action="keep")) == "5/s"
    bytes_too = _recommendation(rate_per_s=5.0, recommended_rate_per_s=6.0, bytes_per_s=4096.0, count="requests")
    assert words.change(bytes_too) == "5 requests/s → 6 requests/s, 4,096 bytes/s"


def _change(before: float | None, after: float | None) -> LimitChange:
    rates = {"rate_before_per_s": before, "rate_after_per_s": after}
    return LimitChange(instance="a", at_s=0, change_id=1, action="set", **rates)


def test_an_edit_says_what_a_resources_own_limit_was_and_became() -> None:
    assert words.edit(_change(300, 450)) == "300/s → 450/s"
    assert words.edit(_change(None, 1000)) == "own limit: none → 1,000/s"
    assert words.edit(_change(1000, None)) == "own limit: 1,000/s → none"
    assert words.edit(_change(None, None)) == ""


def test_what_would_be_refused_is_said_of_what_was_replayed() -> None:
    test = Backtest(current=Replay(refused_messages=21, refused_share=0.021))
    assert refusals(_recommendation(backtest=test)) == "2.1%"
    assert refusals(_recommendation()) == ""
    test = Backtest(
        current=Replay(refused_messages=21, refused_share=0.021),
        recommended=Replay(refused_messages=0, refused_share=0.0),
        recommended_uncorrected=Replay(refused_messages=4, refused_share=0.004),
    )
    assert refusals(_recommendation(backtest=test, retries="measured")) == "2.1% → 0%"
    assert refusals(_recommendation(backtest=test, retries="assumed")) == "2.1% → 0% (0.4% if nobody retries)"
    test = Backtest(
        others_current=Replay(refused_messages=3, refused_share=0.03),
        others=Replay(refused_messages=0, refused_share=0.0),
    )
    assert refusals(_recommendation(backtest=test)) == "others 3% → 0%"


def test_fair_shares_are_a_change() -> None:
    shared = _recommendation(rate_per_s=300.0, action="share", recommended_rate_per_s=300.0, fair_by="producer_group")
    assert words.change(shared) == "300/s, in fair shares by producer group"


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [
        (112, 100, "+12%"),
        (60, 100, "\N{MINUS SIGN}40%"),
        (1000, 1001, "as before"),
        (5, 0, "new"),
        (0, 5, "none now"),
        (0, 0, ""),
        (1200, 100, "12 times"),
    ],
)
def test_growth_is_said_as_people_would(now: int, before: int, text: str) -> None:
    assert words.growth(now, before) == text


def test_limits_to_change_are_without_what_is_only_offered() -> None:
    totals = Totals(
        recommendations={"raise": 3, "lower": 2, "new": 1, "share": 1, "keep": 9}, offered={"lower": 2, "raise": 1}
    )
    assert words.to_change(totals) == 4


def test_what_limits_in_shadow_would_have_refused_is_a_sentence_of_its_own() -> None:
    assert words.shadowed(Totals()) == ""
    said = "Limits in shadow would have refused 1 message; these passed."
    assert words.shadowed(Totals(shadowed=1)) == said
