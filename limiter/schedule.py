"""Schedules: the hours at which a rule holds, in the local time of some place.

Everything here is a function of the moment it is asked about; what tells the time and wakes up when a rule
begins or ends to hold is the data path.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from limiter.errors import RuleError

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_BETWEEN = re.compile(r"([0-2][0-9]):([0-5][0-9])-([0-2][0-9]):([0-5][0-9])")
_DAY_MINUTES: Final = 24 * 60
#: The longest that one state can last: all but one day of a week, and what a change of the clocks adds.
_LOOK_AHEAD_DAYS: Final = 9


@dataclass(frozen=True)
class Hours:
    """Stretches of time that come back every week.

    Attributes:
        from_minute: minute of the day at which one begins, 0 to 1439.
        to_minute: minute of the day before which it ends, 1 to 1440. Not after ``from_minute`` means the next day:
            such a stretch belongs to the day on which it begins.
        days: on which they begin, as indexes into DAYS.
        time_zone: name of the place in the IANA database whose clocks count.
    """

    from_minute: int
    to_minute: int
    days: frozenset[int]
    time_zone: str

    def __str__(self) -> str:
        """Return it as people read it: ``09:00-18:00 mon,tue Europe/Berlin``."""
        between = f"{_clock(self.from_minute)}-{_clock(self.to_minute)}"
        days = "" if len(self.days) == len(DAYS) else " " + ",".join(DAYS[day] for day in sorted(self.days))
        return f"{between}{days} {self.time_zone}"

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)

    def holds(self, at: datetime) -> bool:
        """Say whether a moment lies within one of the stretches; ``at`` knows its time zone."""
        today = at.astimezone(self._zone).date()
        return any(begins <= at < ends for begins, ends in self._stretches(today, 1))

    def next_change(self, after: datetime) -> datetime | None:
        """Return the first moment after ``after`` at which ``holds`` changes, in UTC; None if it never does."""
        now = self.holds(after)
        today = after.astimezone(self._zone).date()
        edges = sorted({edge for stretch in self._stretches(today, _LOOK_AHEAD_DAYS) for edge in stretch})
        for moment in edges:
            if moment > after and self.holds(moment) != now:
                return moment.astimezone(UTC)
        return None

    def _stretches(self, first: date, days: int) -> Iterable[tuple[datetime, datetime]]:
        """Yield the stretches that begin from the day before ``first`` on."""
        for offset in range(-1, days):
            day = first + timedelta(days=offset)
            if day.weekday() in self.days:
                over_night = self.to_minute <= self.from_minute
                yield self._moment(day, self.from_minute), self._moment(day, self.to_minute + over_night * _DAY_MINUTES)

    def _moment(self, day: date, minute: int) -> datetime:
        """Return the moment at which the clocks there show a time; one that they skip is where they skip it."""
        days, minute = divmod(minute, _DAY_MINUTES)
        local = datetime.combine(day + timedelta(days=days), time(*divmod(minute, 60)), self._zone)
        return local.astimezone(UTC)


def read_hours(between: str | None, days: Iterable[str], time_zone: str) -> Hours:
    """Read a schedule as operators write it.

    Args:
        between: ``HH:MM-HH:MM``, up to 24:00; None for the whole day.
        days: names from DAYS; none for every day.
        time_zone: a name of the IANA database, or ``UTC``.

    Raises:
        RuleError: one of them cannot be read.
    """
    from_minute, to_minute = 0, _DAY_MINUTES
    if between is not None:
        found = _BETWEEN.fullmatch(between)
        if found is None:
            raise RuleError(f"between {between!r}", "HH:MM-HH:MM, for example 09:00-18:00")
        from_hour, from_min, to_hour, to_min = map(int, found.groups())
        from_minute, to_minute = from_hour * 60 + from_min, to_hour * 60 + to_min
        if from_minute >= _DAY_MINUTES or not 0 < (to_minute or _DAY_MINUTES) <= _DAY_MINUTES:
            raise RuleError(f"between {between!r}", "times of the day from 00:00 to 24:00")
        to_minute = to_minute or _DAY_MINUTES
        if from_minute == to_minute:
            raise RuleError(f"between {between!r} is no time at all", "two different times; leave it out for always")
    wanted = []
    for day in days:
        if day not in DAYS:
            raise RuleError(f"day {day!r}", ", ".join(DAYS))
        wanted.append(DAYS.index(day))
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RuleError(f"time_zone {time_zone!r}", 'a name like "Europe/Berlin", or "UTC"') from None
    return Hours(from_minute, to_minute, frozenset(wanted) or frozenset(range(len(DAYS))), time_zone)


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
