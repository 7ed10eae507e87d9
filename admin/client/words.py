"""How times and changes are written for people, and durations and rates are read."""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from admin.client import RefusedError
from admin.common.numbers import span
from admin.edits.model import ActiveEdit, Change
from admin.edits.wording import difference, target

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|min|[smhdw]))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])")
_RATE: Final = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?)(?:/s)?")


def read_seconds(text: str, flag: str) -> float:
    """Read a duration: ``90``, ``90s``, ``15m``, ``1h30m``.

    Raises:
        RefusedError: it is invalid.
    """
    seconds = math.nan
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        seconds = float(text)
    elif _DURATION.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if not seconds > 0:
        raise RefusedError(f"{flag} {text}: must be a time like 90s, 15m, 2h, 1h30m or 7d")
    return seconds


def read_rate(text: str) -> float | str:
    """Read a rate: ``500``, ``500/s`` or ``unlimited``.

    Raises:
        RefusedError: it is invalid.
    """
    if text == "unlimited":
        return text
    found = _RATE.fullmatch(text.lower())
    if found is None or not math.isfinite(float(found[1])):
        raise RefusedError(f'RATE {text}: must be a number of at least 0, like 500 or 500/s, or "unlimited"')
    return float(found[1])


def is_rate(text: str) -> bool:
    """Return whether ``read_rate`` reads it."""
    return text == "unlimited" or _RATE.fullmatch(text.lower()) is not None


def moment(text: str) -> str:
    """Write a time of the API in local time."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text


def until(text: str, now: datetime | None = None) -> str:
    """Write when something ends, and in how long."""
    try:
        left_s = (datetime.fromisoformat(text) - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, TypeError):
        return text
    return f"{moment(text)} (in {span(max(0.0, left_s))})"


def change_lines(change: Change, *, dry_run: bool = False) -> Iterator[str]:
    """Describe a change, or a dry run."""
    would = "would change: " if dry_run else ""
    yield f"{would}{target(change.target)}: {difference(change)}"
    before = change.before.expires_at if change.before is not None else None
    if change.expires_at is not None:
        as_before = ", as before; --ttl never lets it stay" if before == change.expires_at else ""
        yield f"   until {until(change.expires_at)}{as_before}"
    elif before is not None and change.action == "set":
        yield f"   for good; the edit before it would have ended {until(before)}"
    cleared = {"reset": "cleared", "purge": "purged"}.get(change.action)
    yield from (f"   {cleared}: {line}" for line in change.details if cleared)
    if cleared:
        yield f"   change {change.id} by {change.by}"
    elif not dry_run:
        where = "" if change.durable else ", until the restart only"
        yield f"   change {change.id} by {change.by}{where}; `sluice audit revert {change.id}` undoes it"


def standing(edit: ActiveEdit) -> str:
    """Say who made an edit, and why."""
    parts = [f"change {edit.change_id} by {edit.by}, {moment(edit.at)}"]
    if edit.expires_at is not None:
        parts.append(f"until {until(edit.expires_at)}")
    return ", ".join(parts) + (f": {edit.reason}" if edit.reason else "")
