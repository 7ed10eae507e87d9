from datetime import UTC, datetime

import pytest
from changes import make

from admin.client import RefusedError, words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("15min", 900), ("1h30m", 5400), ("1.5h", 5400), ("7d", 604_800)],
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert words.read_seconds(text, "--ttl") == seconds


@pytest.mark.parametrize("text", ["", "0", "-5s", "5y", "m", "5 m", "1h 30m", "nan"])
def test_what_is_no_time_names_the_flag(text: str) -> None:
    with pytest.raises(RefusedError, match=r"^--ttl .*: must be a time like 90s"):
        words.read_seconds(text, "--ttl")


@pytest.mark.parametrize(("text", "rate"), [("500", 500), ("500/s", 500), ("0.5", 0.5), ("1e3/s", 1000), ("0", 0)])
def test_a_rate_is_read_as_on_the_command_line_of_run(text: str, rate: float) -> None:
    assert words.read_rate(text) == rate


def test_unlimited_is_a_rate_of_its_own() -> None:
    assert words.read_rate("unlimited") == "unlimited"


@pytest.mark.parametrize("text", ["", "fast", "-1", "inf", "1e999", "500/min", "0x10"])
def test_what_is_no_rate_names_the_argument(text: str) -> None:
    with pytest.raises(RefusedError, match=r"^RATE .*: must be a number of at least 0"):
        words.read_rate(text)


def test_a_change_says_who_made_it_and_how_it_is_undone() -> None:
    assert list(words.change_lines(make(old={"rate": 1}, new={"rate": 2}, durable=False))) == [
        "topic a: 1/s → 2/s",
        "   change 17 by ada, until the restart only; `sluice audit revert 17` undoes it",
    ]


def test_a_dry_run_has_no_number() -> None:
    assert list(words.change_lines(make(id=0, old={"rate": 1}, new={"rate": 2}), dry_run=True)) == [
        "would change: topic a: 1/s → 2/s"
    ]


def test_an_end_says_how_long_it_is_until_then() -> None:
    now = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
    assert words.until("2026-11-21T20:15:00.000Z", now).endswith(" (in 15 min)")
    assert words.until("2026-11-21T19:15:00.000Z", now).endswith(" (in 0 s)")
    assert words.until("soon", now) == "soon"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (90, "1 min 30 s"), (3600, "1 h"), (5400, "1 h 30 min"), (90_000, "1 d 1 h")]
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert words.span(seconds) == text
