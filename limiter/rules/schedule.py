"""Schedules define the weekly hours when a rule applies, in a given time zone.

When clocks are set forward, the skipped hours do not occur. When they are set back, the repeated hours occur twice.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from limiter.rules.errors import RuleError

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY: Final = frozenset(range(len(DAYS)))
_BETWEEN: Final = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_DAY_MINUTES: Final = 24 * 60
# Longer than the longest time between changes: a clock change can skip the only hour in a week.
_LOOK_AHEAD: Final = timedelta(days=15)


@dataclass(frozen=True)
class Hours:
    from_minute: int
    to_minute: int  # exclusive, 1 to 1440. On the next day if not later than ``from_minute``
    days: frozenset[int]  # the days on which the period starts, as indexes into DAYS
    time_zone: str

    def __str__(self) -> str:
        between = f"{_clock(self.from_minute)}-{_clock(self.to_minute)}"
        days = "" if self.days == EVERY_DAY else " " + ",".join(DAYS[day] for day in sorted(self.days))
        return f"{between}{days} {self.time_zone}"

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)

    def holds(self, at: datetime) -> bool:
        """Return whether ``at`` is within the hours. ``at`` must have a time zone."""
        local = at.astimezone(self._zone)
        minute, today = local.hour * 60 + local.minute, local.weekday()
        if self.from_minute < self.to_minute:
            return today in self.days and self.from_minute <= minute < self.to_minute
        yesterday = (today - 1) % len(DAYS)
        return (today in self.days and minute >= self.from_minute) or (
            yesterday in self.days and minute < self.to_minute
        )

    def next_change(self, after: datetime) -> datetime | None:
        """Return the UTC time at which ``holds`` will next change, or None if it never will."""
        holds_now = self.holds(after)
        moment = after.astimezone(UTC)
        last = moment + _LOOK_AHEAD
        while moment < last:
            moment = self._next_edge(moment)
            if self.holds(moment) != holds_now:
                return moment
        return None

    def _next_edge(self, moment: datetime) -> datetime:
        local = moment.astimezone(self._zone).replace(tzinfo=None)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        shown = min(
            midnight + timedelta(days=days, minutes=minute % _DAY_MINUTES)
            for days in (0, 1)
            for minute in (self.from_minute, self.to_minute)
            if midnight + timedelta(days=days, minutes=minute % _DAY_MINUTES) > local
        )
        edge = moment + (shown - local)
        offset = self._offset(moment)
        if self._offset(edge) == offset:
            return edge
        before = moment.replace(microsecond=0)
        while edge - before > timedelta(seconds=1):
            middle = before + timedelta(seconds=(edge - before) // timedelta(seconds=2))
            if self._offset(middle) == offset:
                before = middle
            else:
                edge = middle
        return edge

    def _offset(self, moment: datetime) -> timedelta | None:
        return moment.astimezone(self._zone).utcoffset()


def read_hours(between: str | None, days: Iterable[str], time_zone: str) -> Hours:
    """Parse a schedule.

    Args:
        between: ``HH:MM-HH:MM``, up to 24:00. None for the whole day.
        days: names from DAYS. Empty for every day.
        time_zone: an IANA name, or ``UTC``.

    Raises:
        RuleError: an argument is invalid.
    """
    from_minute, to_minute = (0, _DAY_MINUTES) if between is None else _read_between(between)
    wanted = set()
    for day in days:
        if day not in DAYS:
            raise RuleError(f"unknown day {day!r}", ", ".join(DAYS), "days")
        wanted.add(DAYS.index(day))
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # A directory in the database raises OSError. A path outside the database raises ValueError.
        raise RuleError(
            f"unknown time_zone {time_zone!r}", 'a name like "Europe/Berlin", or "UTC"', "time_zone"
        ) from None
    return Hours(from_minute, to_minute, frozenset(wanted) or EVERY_DAY, time_zone)


def _read_between(text: str) -> tuple[int, int]:
    found = _BETWEEN.fullmatch(text)
    if found is None:
        raise RuleError(f"invalid between {text!r}", "HH:MM-HH:MM, for example 09:00-18:00", "between")
    from_hour, from_minute, to_hour, to_minute = map(int, found.groups())
    begin, end = from_hour * 60 + from_minute, to_hour * 60 + to_minute
    if begin >= _DAY_MINUTES or end > _DAY_MINUTES or max(from_minute, to_minute) > 59:
        raise RuleError(f"invalid between {text!r}", "times of the day from 00:00 to 24:00", "between")
    end = end or _DAY_MINUTES
    if begin == end:
        what = f"between {text!r} is empty"
        raise RuleError(what, "two different times; omit it to apply the rule at all times", "between")
    return begin, end


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
