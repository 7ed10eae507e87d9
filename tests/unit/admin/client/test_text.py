from datetime import UTC, datetime, timedelta

import pytest
from changes import make

from admin.client.api import change_lines
from admin.client.text import read_rate, read_seconds, until
from admin.common.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("15min", 900), ("1h30m", 5400), ("1.5h", 5400), ("7d", 604_800)],
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert read_seconds(text, "--ttl") == seconds


@pytest.mark.parametrize("text", ["", "0", "-5s", "5y", "m", "5 m", "1h 30m", "nan"])
def test_an_invalid_duration_names_the_flag(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--ttl .*: must be a duration like 90s"):
        read_seconds(text, "--ttl")


@pytest.mark.parametrize(
    ("text", "rate"),
    [("500", 500), ("500/s", 500), ("0.5", 0.5), ("1e3/s", 1000), ("0", 0), ("unlimited", "unlimited")]
    + [(word, None) for word in ("", "fast", "-1", "inf", "nan", "1e999", "500/min", "0x10")],
)
def test_a_rate_is_read_as_on_the_command_line_of_run(text: str, rate: object) -> None:
    assert read_rate(text) == rate


def test_a_change_names_its_author_and_its_undo() -> None:
    assert list(change_lines(make(old={"rate": 1}, new={"rate": 2}, durable=False))) == [
        "topic a: 1/s → 2/s",
        "   change 17 by ada, lost on restart; `sluice audit revert 17` undoes it",
    ]
    dry_run = make(id=0, old={"rate": 1}, new={"rate": 2})
    assert list(change_lines(dry_run, dry_run=True)) == ["would change: topic a: 1/s → 2/s"]


def test_an_end_states_the_time_until_then() -> None:
    now = datetime.now(UTC)
    assert until((now + timedelta(days=90, minutes=1)).isoformat()).endswith(" (in 90 d)")
    assert until((now - timedelta(hours=1)).isoformat()).endswith(" (in 0 s)")
    assert until("soon") == "soon"
