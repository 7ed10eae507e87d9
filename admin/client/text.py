"""Formats rows and times, and parses durations and rates."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from admin.common.columns import Column
from admin.common.errors import SettingsError
from admin.common.numbers import number, per_second, percent, short_span, span
from admin.common.tables import Rows
from proxy.flow.alarms import size_text

RIGHT: Final = frozenset({"rate", "count", "share", "bytes", "seconds", "milliseconds"})
_USUAL: Final = ("reject", "off", "running")
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART: Final = r"(\d+(?:\.\d+)?)(ms|min|[smhdw])"


def as_json(value: object) -> str:
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return msgspec.json.format(raw, indent=2).decode()


def read_seconds(text: str, flag: str) -> float:
    """Parse a duration such as ``90``, ``15m`` or ``1h30m``, and return seconds. Raises SettingsError."""
    seconds = math.nan
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        seconds = float(text)
    elif re.fullmatch(f"(?:{_PART})+", text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))
    if not seconds > 0:
        raise SettingsError(f"{flag} {text}: must be a duration like 90s, 15m, 2h, 1h30m or 7d")
    return seconds


def read_rate(text: str) -> float | str | None:
    """Parse a rate such as ``500``, ``500/s`` or ``unlimited``. Return None if it is invalid."""
    if text == "unlimited":
        return text
    try:
        rate = float(text.lower().removesuffix("/s"))
    except ValueError:
        return None
    return rate if 0 <= rate < math.inf else None


def moment(text: str | None) -> str:
    """Format an ISO 8601 timestamp in local time."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""
    except ValueError:
        return str(text)


def until(text: str) -> str:
    try:
        left_s = (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return text
    return f"{moment(text)} (in {span(max(0.0, left_s))})"


def standing(edit: Mapping[str, Any]) -> str:
    ends = f", until {until(edit['expires_at'])}" if edit.get("expires_at") else ""
    reason = f": {edit['reason']}" if edit["reason"] else ""
    fleet = edit.get("fleet")
    where = f" for the fleet, on {fleet['member']}" if fleet else ""
    return f"change {edit['change_id']} by {edit['by']}{where}, {moment(edit['at'])}{ends}{reason}"


def limiting(now: Mapping[str, Any]) -> str:
    if not now["limiting"] or "all" in now["off"]:
        return "OFF: everything passes"
    return f"on, OFF for {', '.join(now['off'])}" if now["off"] else "on"


def passing(rates: Mapping[str, float]) -> str:
    shadowed = f", {per_second(rates['shadowed'])} would be refused" if rates["shadowed"] else ""
    return f"{per_second(rates['passed'])} passed, {per_second(rates['refused'])} refused{shadowed}"


def listing(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as a table, leaving out columns that would be empty."""
    shown = [column for column in columns if column.cli]
    cells = ([cell(column, row, shown) for column in shown] for row in rows)
    right = (at for at, column in enumerate(shown) if column.format in RIGHT)
    return "\n".join(Rows([column.title.lower() for column in shown], cells, right).used().lines())


def cell(column: Column, row: Mapping[str, Any], columns: Iterable[Column] = ()) -> str:
    """Format one cell. If ``columns`` contains a column for the kind, the name is shown without the kind."""
    value: Any = row
    for key in column.field.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    match column.format:
        case "name":
            kind = "" if any(each.name == "kind" for each in columns) else row.get("kind", "")
            return f"{kind} {value or ''}".strip()
        case "client":
            return _client(row)
        case "links":
            links, waiting = row.get("links") or (), sum(link["waits_ms"] > 0 for link in row.get("links") or ())
            attached = len(links) + row.get("more_links", 0)
            return f"{attached}, {waiting} waiting" if waiting else str(attached or "")
        case "list":
            more = row.get(f"more_{column.name}")
            return ", ".join(value or ()) + (f" and {more} more" if more else "")
    if isinstance(value, Mapping):
        value = sum(value.values())
    if value is None or value in _USUAL or (not value and column.optional):
        return ""
    match column.format:
        case "state":
            return "in flow" if value == "flow" else str(value)
        case "flag":
            return "yes" if value else ""
        case "rate":
            return per_second(value)
        case "count":
            return number(value)
        case "share":
            return percent(value)
        case "bytes":
            return size_text(value)
        case "seconds":
            return short_span(value) if value else ""
        case "milliseconds":
            return (f"{value} ms" if value < 1000 else short_span(value / 1000)) if value else ""
        case "age" | "time":
            return moment(value)
    return str(value)


def _client(row: Mapping[str, Any]) -> str:
    client = row["client"]
    user, certificate = client.get("user"), row.get("certificate")
    marks = ", ".join(filter(None, ("exempt" if row.get("exempt") else "", row.get("tls"))))
    parts = (
        client.get("id"),
        user and f"({user})",
        certificate and f"(certificate {certificate})",
        client.get("product") or client.get("language"),
        client.get("version"),
        marks and f"[{marks}]",
    )
    return " ".join(filter(None, parts))
