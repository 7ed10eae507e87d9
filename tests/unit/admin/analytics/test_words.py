import pytest
import report_results as made
from report_results import NOON_S

from admin.analytics import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (243, "4 min 3 s"), (3600, "1 h"), (90_000, "1 d 1 h"), (86_430, "1 d")],
)
def test_duration(seconds: int, text: str) -> None:
    assert words.duration(seconds) == text


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
    assert words.span(NOON_S, NOON_S + 243) == "2026-11-21 12:00:00 to 12:04:03 (4 min 3 s)"
    assert words.span(NOON_S, NOON_S + 86_400) == "2026-11-21 12:00:00 to 2026-11-22 12:00:00 (1 d)"


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
        (0, 5, "none now"), (0, 0, ""), (1200, 100, "12 times"),
    ],
)  # fmt: skip
def test_growth(now: int, before: int, text: str) -> None:
    assert words.growth(now, before) == text


def test_offers_are_not_changes() -> None:
    counts = {"raise": 3, "lower": 2, "new": 1, "share": 1, "keep": 9}
    assert words.to_change(made.totals(recommendations=counts, offered={"lower": 2, "raise": 1})) == 4
    assert not words.is_default(made.advice("t", "lower", 9.0, 5.0, only_with="lower"))
    assert not words.needs_reading(made.advice("t", "keep", 9.0, current=made.replay(0, 0.0)))
    assert words.needs_reading(made.advice("t", "keep", 9.0, current=made.replay(3, 0.1)))


def test_lede_is_plain_english() -> None:
    assert words.lede(made.results()) == (
        "From 2026-11-21 12:00:00 to 18:00:00 UTC (6 h), 2 sidecars refused 2,188,979 of 13,393,530 messages (16.3%):"
        " 5 storms on 4 resources. 1 storm may not be over. Limits in shadow mode would have refused 88,000 messages"
        " in 1 storm; all passed."
    )
    quiet = made.results(instance_count=1, totals=made.totals(admitted=9_000, held=8_500))
    assert words.lede(quiet).endswith(
        "1 sidecar refused none of 9,000 messages. 8,500 messages had to wait for a limit."
    )


def test_clocks_that_are_ahead_are_named() -> None:
    clocks = [{"instance": name, "ahead_s": ahead_s} for name, ahead_s in (("b", 7200), ("a", 7200), ("c", 660))]
    assert words.unknowns(made.empty() | {"clocks": clocks}) == [
        "The log of c ends 11 min after the others: its clock may be ahead.",
        "The logs of a and b end 2 h after the others: their clocks may be ahead.",
    ]


def test_missing_minutes_say_whether_the_sidecar_was_running() -> None:
    totals = made.totals(gap_minutes=5, missing_minutes=2)
    assert words.unknowns(made.empty() | {"totals": totals}) == [
        "3 minutes without records: the sidecar was not running.",
        "2 minutes without records although the sidecar was running: its records are missing.",
    ]


def test_storms_of_one_resource_at_one_time_are_one_flood() -> None:
    def storm(instance: str, start: int, messages: int, sidecars: int = 2, name: str = "orders") -> dict[str, object]:
        clients = made.shares(messages, (f"of-{instance}", 0.6), ("both", 0.4))
        return made.storm(name, start, 60, messages, instance=instance, sidecars=sidecars, clients=clients)

    storms = [
        storm("a", 0, 100),
        storm("b", 85, 300),
        storm("a", 500, 50),
        storm("b", 510, 50),
        storm("a", 0, 7, 1, "x"),
    ]
    first, second, alone = words.floods(made.results(storms=storms))
    assert (first["start_s"], first["end_s"], first["messages"]) == (NOON_S, NOON_S + 145, 400)
    assert first["instances"] == ["b", "a"]
    assert [(each["name"], each["messages"], each["share"]) for each in first["clients"]] == [
        ("of-b", 180, 0.45), ("both", 160, 0.4), ("of-a", 60, 0.15),
    ]  # fmt: skip
    assert first["client_count"] == 3
    assert (second["messages"], second["sidecars"]) == (100, 2)
    assert words.located(second, 2) == "orders at 2 sidecars"
    assert words.located(alone, 2) == "x on a"
    assert words.located(alone, 1) == "x"
