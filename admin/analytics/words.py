"""Formats times, amounts, rates, limits and resources for reports."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from admin.common import numbers
from admin.common.numbers import percent as percent  # noqa: PLC0414 - exported
from admin.common.numbers import span as duration
from admin.common.recommendations import TO_DO, Recommendation, refusals
from limiter.rules.rule import ADAPTIVE_NAME, with_shares

Row = Mapping[str, Any]

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
NOT_KNOWN: Final = "Not enough time without refusals to tell demand from a flood"


def moment(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(start_s: int, end_s: int) -> str:
    start, end = moment(start_s), moment(end_s)
    return f"{start} to {end[11:] if start[:10] == end[:10] else end} UTC ({duration(end_s - start_s)})"


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    shown = [*names[:most], *([f"{len(names) - most:,} more"] if len(names) > most else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def rate(per_s: float | None, unit: str = "") -> str:
    if per_s is None:
        return "unlimited"
    unit = f" {unit}" if unit else ""
    decimals = 0 if per_s >= 100 else 1 if per_s >= 1 else 3
    return f"{numbers.number(per_s, decimals, grouped=True)}{unit}/s"


def growth(now: int, before: int) -> str:
    return f"{now / before - 1:+,.0%}".replace("-", "\N{MINUS SIGN}") if before else "new" if now else ""


def resource(kind: str, name: str) -> str:
    """Return a resource's kind and name, or only its name if the kind is a protocol's main kind."""
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - Spark's executors have no protocols

    firsts = (each.name for protocol in own_protocols() for each in protocol.kinds[:1])
    return name if kind in firsts else f"{kind} {name}"


def place(of: Row, sidecars: int) -> str:
    """Return a location, such as ``on eu-0``, or an empty string if there is only one sidecar."""
    if of.get("sidecars", 1) > 1:
        return f"on {counted(of['sidecars'], 'sidecar')}"
    return f"on {of['instance']}" if sidecars > 1 else ""


def caller(of: Row) -> str:
    known = [f"{what} {of[name]}" for name, what in (("user", "user"), ("producer_group", "group")) if of[name]]
    return f"{of['client']} ({', '.join(known)})" if known else str(of["client"])


def change(of: Row) -> str:
    """Format a recommended change, such as ``300/s → 450/s``, or ``300/s`` if nothing changes."""
    parts = []
    for name, unit in (("rate_per_s", "requests" if of["count"] == "requests" else ""), ("bytes_per_s", "bytes")):
        now, then = of[name], of[f"recommended_{name}"]
        if unit == "bytes" and now is None and then is None:
            continue
        same = then in {None, now} or of["action"] in {"keep", "unused"}
        parts.append(rate(now, unit) if same else f"{rate(now, unit)} → {rate(then, unit)}")
    return with_shares(", ".join(parts), of["fair_by"])


def replayed(of: Row) -> str:
    return refusals(msgspec.convert(of, Recommendation))


def edit(of: Row) -> str:
    """Format a change that was made to a limit at run time, such as ``own limit: none → 450/s``."""
    before, after = (
        "none" if (per_s := of[f"rate_{when}_per_s"]) is None else with_shares(rate(per_s), of[f"fair_by_{when}"])
        for when in ("before", "after")
    )
    own = "own limit: " if "none" in {before, after} else ""
    return f"{own}{before} → {after}" if before != after or not own else ""


def cause(rule: str) -> str:
    return f"{rule} (the broker was at capacity)" if rule.startswith(ADAPTIVE_NAME) else rule


def is_default(of: Row) -> bool:
    """Return whether ``sluice limits apply`` applies this recommendation by default."""
    return of["action"] in TO_DO and not of["only_with"]


def needs_reading(of: Row) -> bool:
    """Return whether a recommendation changes a limit, or keeps one that refused messages."""
    known = (of["backtest"]["current"], of["backtest"]["logged"])
    return is_default(of) or (not of["only_with"] and any(each and each["refused_messages"] for each in known))
