"""How limits, times and changes are written for people, and how durations and rates are read from them."""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from admin import numbers
from admin.client.errors import RefusedError
from admin.live.model import Change, RuleInForce, Standing
from admin.numbers import number
from limiter.patterns import DEFAULT_PATTERN

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|min|[smhdw]))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])")
_RATE: Final = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?)(?:/s)?")
_SMALL: Final = {"rate", "bytes_per_s", "count", "exempt"}
"""What a limit's short form says already."""


def read_seconds(text: str, flag: str) -> float:
    """Read a duration: ``90``, ``90s``, ``15m``, ``1h30m``.

    Raises:
        RefusedError: it is none.
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
        RefusedError: it is none.
    """
    if text == "unlimited":
        return text
    found = _RATE.fullmatch(text.lower())
    if found is None or not math.isfinite(float(found[1])):
        raise RefusedError(f'RATE {text}: must be a number of at least 0, like 500 or 500/s, or "unlimited"')
    return float(found[1])


def short(limit: Mapping[str, Any] | None) -> str:
    """Write a limit, or a switch, in short; all else that it says is ``further``."""
    if limit is None:
        return "none"
    if "limiting" in limit:
        return "on" if limit["limiting"] else "off"
    if limit.get("exempt"):
        return "exempt"
    parts = []
    rate, bytes_per_s = limit.get("rate"), limit.get("bytes_per_s")
    if isinstance(rate, int | float):
        parts.append(f"{numbers.limit(rate)}{' requests' if limit.get('count') == 'requests' else ''}/s")
    if bytes_per_s is not None:
        parts.append(f"{numbers.limit(bytes_per_s)} bytes/s")
    text = " + ".join(parts) or "unlimited"
    return f"off ({text})" if limit.get("action") == "off" else text


def further(limit: Mapping[str, Any] | None) -> dict[str, str]:
    """Write what a limit says besides its short form, as far as it matters beside the rest."""
    limit = limit or {}
    idle = {
        "bytes_burst_s": limit.get("bytes_per_s") is None,
        "max_delay_s": limit.get("action") != "delay",
        "max_fair_keys": limit.get("fair_by") is None,
        "time_zone": limit.get("between") is None and limit.get("days") is None,
        "warm_up_s": not limit.get("warm_up_s"),
        "limiting": True,
    } | dict.fromkeys(_SMALL, True)
    return {
        key: value_text(value)
        for key, value in limit.items()
        if not idle.get(key) and value is not None and value is not False
    }


def value_text(value: object) -> str:
    """Write one field of a limit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def target(text: str) -> str:
    """Write the target of a change as it is typed: ``limits/topic/orders`` becomes ``topic orders``."""
    what, _, rest = text.partition("/")
    if what == "limits":
        return " ".join(rest.split("/", 1))
    return f"switch {rest}" if what == "switches" else text


def moment(text: str) -> str:
    """Write a time of the API on this machine's clock."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text


def until(text: str, now: datetime | None = None) -> str:
    """Write when something ends, and how long that is from now."""
    try:
        left_s = (datetime.fromisoformat(text) - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, TypeError):
        return text
    return f"{moment(text)} (in {span(max(0.0, left_s))})"


def span(seconds: float) -> str:
    """Write a length of time in one or two units."""
    whole = round(seconds)
    for unit, size, smaller, small in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def difference(change: Change) -> str:
    """Write what a change did: ``500/s → 1000/s, burst_s 1 → 2``, or ``500/s (by orders-*) → 1000/s``."""
    parts = []
    old, new = _side(change.old, change.old_rule), _side(change.new, change.new_rule)
    parts.append(old if old == new else f"{old} → {new}")
    before, after = further(change.old), further(change.new)
    if change.old is None:
        before = after
    keys = [*before, *(key for key in after if key not in before)] if change.new is not None else []
    parts += [
        f"{key} {before.get(key, 'not set')} → {after.get(key, 'not set')}"
        for key in keys
        if before.get(key) != after.get(key)
    ]
    return ", ".join(parts)


def _side(limit: Mapping[str, Any] | None, rule: RuleInForce | None) -> str:
    """Write a limit in short; where there is none of that very name, the one in force and whose it is."""
    if limit is not None or rule is None:
        return short(limit)
    # The kind is said already.
    pattern = rule.rule.partition(":")[2]
    return f"{rule.limit_text} (by {'the default' if pattern == DEFAULT_PATTERN else pattern})"


def change_lines(change: Change, *, dry_run: bool = False) -> Iterator[str]:
    """Say what a write did, or would do."""
    would = "would change: " if dry_run else ""
    yield f"{would}{target(change.target)}: {difference(change)}"
    if change.expires_at is not None:
        yield f"   until {until(change.expires_at)}"
    if not dry_run:
        where = "" if change.durable else ", until the restart only"
        yield f"   change {change.id} by {change.by}{where}; `sluice audit revert {change.id}` undoes it"


def standing(edit: Standing) -> str:
    """Say who put an edit there, and why."""
    parts = [f"change {edit.change_id} by {edit.by}, {moment(edit.at)}"]
    if edit.expires_at is not None:
        parts.append(f"until {until(edit.expires_at)}")
    return ", ".join(parts) + (f": {edit.reason}" if edit.reason else "")
