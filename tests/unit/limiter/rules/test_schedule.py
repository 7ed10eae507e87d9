from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.rules.errors import RuleError
from limiter.rules.schedule import DAYS, Hours, read_hours

MINUTE = timedelta(minutes=1)
# Zones and days with clock changes: by an hour, by half an hour, over midnight, over a whole day.
JUMPS = (
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 3, 8, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 2, 18, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 6, 1, tzinfo=UTC)),
    ("UTC", datetime(2026, 6, 1, tzinfo=UTC)),
)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def shown(hours: Hours, at: datetime) -> bool:
    """Say whether the clocks show a time within the hours, by definition."""
    local = at.astimezone(ZoneInfo(hours.time_zone))
    minute = local.hour * 60 + local.minute
    days = {DAYS[day] for day in hours.days}
    if hours.from_minute < hours.to_minute:
        return hours.from_minute <= minute < hours.to_minute and DAYS[local.weekday()] in days
    if minute >= hours.from_minute:
        return DAYS[local.weekday()] in days
    return minute < hours.to_minute and DAYS[local.weekday() - 1] in days


def schedules(time_zone: str) -> st.SearchStrategy[Hours]:
    minutes = st.one_of(st.sampled_from([0, 1, 60, 90, 120, 150, 180, 1380, 1439, 1440]), st.integers(0, 1440))
    pairs = st.tuples(minutes, minutes).filter(lambda pair: pair[0] < 1440 and pair[1] > 0 and pair[0] != pair[1])
    days = st.frozensets(st.integers(0, 6), min_size=1)
    return st.builds(lambda pair, on: Hours(*pair, on, time_zone), pairs, days)


@given(st.sampled_from(JUMPS).flatmap(lambda jump: st.tuples(schedules(jump[0]), st.just(jump[1]))))
def test_hours_hold_at_every_minute_that_the_clocks_show(case: tuple[Hours, datetime]) -> None:
    hours, day = case
    for minute in range(-12 * 60, 36 * 60):
        moment = day + minute * MINUTE
        assert hours.holds(moment) == shown(hours, moment), moment


@given(
    st.sampled_from(JUMPS).flatmap(lambda jump: st.tuples(schedules(jump[0]), st.just(jump[1]))),
    st.integers(-36 * 3600, 36 * 3600),
)
def test_next_change_is_the_first_minute_at_which_it_is_otherwise(case: tuple[Hours, datetime], second: int) -> None:
    hours, day = case
    after = day + timedelta(seconds=second)
    change = hours.next_change(after)
    minute = after.replace(second=0) + MINUTE
    last = change or after + timedelta(days=3)
    while minute < min(last, after + timedelta(days=3)):
        assert hours.holds(minute) == hours.holds(after), minute
        minute += MINUTE
    if change is not None:
        assert change > after
        assert hours.holds(change) != hours.holds(after) == hours.holds(change - timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("between", "days", "after", "change"),
    [
        ("09:00-18:00", (), "2026-06-01 08:00", "2026-06-01 09:00"),
        ("09:00-18:00", (), "2026-06-01 09:00", "2026-06-01 18:00"),
        ("09:00-18:00", (), "2026-06-01 18:00", "2026-06-02 09:00"),
        ("09:00-18:00", ("mon",), "2026-06-01 18:00", "2026-06-08 09:00"),
        ("22:00-06:00", ("fri",), "2026-06-05 22:00", "2026-06-06 06:00"),
        ("22:00-06:00", ("fri", "sat"), "2026-06-06 06:00", "2026-06-06 22:00"),
        ("22:00-24:00", (), "2026-06-01 22:30", "2026-06-02 00:00"),
        (None, ("sat", "sun"), "2026-06-06 12:00", "2026-06-08 00:00"),
        (None, (), "2026-06-06 12:00", None),
        ("00:00-24:00", (), "2026-06-06 12:00", None),
    ],
)
def test_next_change_of_some_schedules(
    between: str | None, days: tuple[str, ...], after: str, change: str | None
) -> None:
    found = read_hours(between, days, "UTC").next_change(utc(after))

    assert found == (None if change is None else utc(change))


def test_skipped_hours_do_not_come_and_the_rest_begins_with_the_jump() -> None:
    # Berlin, 29 March 2026: from 02:00 to 03:00.
    assert read_hours("02:00-03:00", ["sun"], "Europe/Berlin").next_change(utc("2026-03-28 12:00")) == utc(
        "2026-04-05 00:00"
    )
    assert read_hours("02:30-05:00", (), "Europe/Berlin").next_change(utc("2026-03-28 12:00")) == utc(
        "2026-03-29 01:00"
    )


def test_hours_that_are_shown_twice_come_twice() -> None:
    # Berlin, 25 October 2026: from 03:00 back to 02:00.
    hours = read_hours("02:30-02:45", (), "Europe/Berlin")
    changes = [utc("2026-10-24 12:00")]
    for _ in range(4):
        found = hours.next_change(changes[-1])
        assert found is not None
        changes.append(found)

    assert [f"{change:%H:%M}" for change in changes[1:]] == ["00:30", "00:45", "01:30", "01:45"]


@pytest.mark.parametrize(
    ("between", "days", "text"),
    [
        ("09:00-18:00", ("tue", "mon"), "09:00-18:00 mon,tue UTC"),
        ("22:00-00:00", (), "22:00-24:00 UTC"),
        (None, ("sun",), "00:00-24:00 sun UTC"),
        (None, DAYS, "00:00-24:00 UTC"),
    ],
)
def test_schedule_is_read_and_written(between: str | None, days: tuple[str, ...], text: str) -> None:
    assert str(read_hours(between, days, "UTC")) == text


@pytest.mark.parametrize(
    "between",
    [
        "",
        "9:00-18:00",
        "09:00",
        "09:00 - 18:00",
        "09:60-10:00",
        "24:00-01:00",
        "09:00-24:01",
        "25:00-26:00",
        "\u0660\u0669:00-10:00",
    ],
)
def test_hours_that_are_none_are_refused(between: str) -> None:
    with pytest.raises(RuleError, match="between ") as error:
        read_hours(between, (), "UTC")

    assert error.value.attribute == "between"
    assert ":00" in error.value.allowed


@pytest.mark.parametrize("day", ["monday", "Mon", "", "0"])
def test_unknown_day_is_refused_with_the_allowed_ones(day: str) -> None:
    with pytest.raises(RuleError, match=f"unknown day {day!r}; allowed: mon, tue, wed, thu, fri, sat, sun"):
        read_hours(None, ["mon", day], "UTC")


@pytest.mark.parametrize(
    "zone", ["", "Berlin", "Europe/", "Europe", "../Europe/Berlin", "/etc/localtime", "a\0b", "CEST+2"]
)
def test_an_invalid_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(RuleError, match='allowed: a name like "Europe/Berlin", or "UTC"'):
        read_hours(None, (), zone)
