"""Describes changes briefly, for the command line and the log."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import structlog

from admin.common import numbers
from admin.common.numbers import number
from admin.config.limit_fields import FIELDS
from admin.edits.model import SWITCHES, Change
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.rule import DEFAULT_FLOOR_PER_S, FOR_THE_FLEET, adaptive_text, with_shares
from proxy.control import Cleared
from proxy.stats.flow import Purged

_log = structlog.get_logger(__name__)

_MAX_LOGGED: Final = 20

_SMALL: Final = {"rate", "bytes_per_s", "count", "exempt", "fair_by", "adaptive", "floor", "ceiling", "fleet"}
#: Values that are not shown, because almost all limits have them.
_NOT_SAID: Final[Mapping[str, object]] = {"confirm": "broker", "weight": 1}


def short(limit: Mapping[str, Any] | None) -> str:
    """Format the main fields of a limit. ``further`` formats the others."""
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
    if limit.get("adaptive"):
        parts = [adaptive_text(limit.get("floor", DEFAULT_FLOOR_PER_S), limit.get("ceiling"))]
    text = with_shares(" + ".join(parts) or "unlimited", limit.get("fair_by"))
    if limit.get("fleet"):
        text += FOR_THE_FLEET
    return f"off ({text})" if limit.get("action") == "off" else text


def further(limit: Mapping[str, Any] | None) -> dict[str, str]:
    """Format the fields that have an effect and are not in the short form."""
    limit = limit or {}
    return {
        each.key: value_text(value)
        for each in FIELDS
        if each.key not in _SMALL
        and (value := limit.get(each.key)) is not None
        and (value or value != each.default)
        and _NOT_SAID.get(each.key) != value
        and each.matters(limit)
    }


def value_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def target(text: str) -> str:
    """Format a target like the arguments of a command. ``limits/topic/orders`` becomes ``topic orders``."""
    what, _, rest = text.partition("/")
    if what == "limits":
        return " ".join(rest.split("/", 1))
    if what == "spool":
        return f"spool of {' '.join(rest.split('/', 1))}"
    return f"switch {rest}" if what == "switches" else text


def difference(change: Change) -> str:
    """Format a change, such as ``500/s → 1000/s, burst_s 1 → 2`` or ``500/s (by orders-*) → 1000/s``."""
    if change.action in {"reset", "purge"}:
        return change.action
    old, new = sides(change)
    return ", ".join([old if old == new else f"{old} → {new}", *fields(change)])


def sides(change: Change) -> tuple[str, str]:
    return _side(change.old, change.old_rule), _side(change.new, change.new_rule)


def fields(change: Change) -> Iterator[str]:
    """Format the changed fields that are not in the short form, such as ``burst_s 1 → 2``."""
    if change.old is None or change.new is None or change.old_rule or change.new_rule:
        return
    before, after = further(change.old), further(change.new)
    for key in dict.fromkeys((*before, *after)):
        # A field without effect is not shown, so it may appear or disappear although its value stays the same.
        if change.old.get(key) != change.new.get(key) and before.get(key) != after.get(key):
            otherwise = value_text(_NOT_SAID.get(key, "not set"))
            yield f"{key} {before.get(key, otherwise)} → {after.get(key, otherwise)}"


def _side(limit: Mapping[str, Any] | None, rule: str) -> str:
    if not rule:
        return short(limit)
    pattern = rule.partition(":")[2]
    return f"{short(limit)} (by {'the default' if pattern == DEFAULT_PATTERN else pattern})"


def log_changes(changes: Sequence[Change]) -> None:
    edits = [change for change in changes if change.action != "reload"]
    for change in edits[:_MAX_LOGGED]:
        event = "switch changed" if change.target.startswith(SWITCHES) else "limit changed"
        event = {"purge": "spool purged", "expire": "edit expired"}.get(change.action, event)
        about = {"purged": "; ".join(change.details)}
        if change.action != "purge":
            before, after = sides(change)
            about = {
                "action": change.action if change.reverts is None else f"revert of {change.reverts}",
                "before": before,
                "after": after,
                "cleared" if change.action == "reset" else "details": "; ".join(change.details),
                "fields": ", ".join(fields(change)).replace("→", "->"),
                "until": change.expires_at or ("" if change.durable or change.new is None else "next restart"),
            }
        about |= {"reason": change.reason, "address": change.address, "member": change.member}
        given = {key: value for key, value in about.items() if value}
        _log.info(event, what=target(change.target), by=change.by, change=change.id, **given)
    if rest := edits[_MAX_LOGGED:]:
        _log.info(
            "omitted further changes in the batch; see the audit trail",
            not_logged=len(rest),
            by=", ".join(dict.fromkeys(change.by for change in rest)),
            first_change=rest[0].id,
            last_change=rest[-1].id,
        )


def cleared_lines(cleared: Cleared) -> list[str]:
    if not cleared.limiters:
        return ["nothing to reset: the limit was never used, or does not apply now"]
    what = (
        (cleared.limiters, "{} limiter{} refilled"),
        (cleared.debt_messages, "a debt of {} messages or requests"),
        (cleared.debt_bytes, "a debt of {} bytes"),
        (cleared.open_breakers, "{} open breaker{}"),
        (cleared.shares, "{} fair share{}"),
    )
    return [text.format(number(amount), "s" * (amount != 1)) for amount, text in what if amount]


def purged_lines(purged: Purged) -> list[str]:
    what = ((purged.refused, "{} message{} refused"), (purged.dropped, "{} message{} dropped"))
    said = [text.format(amount, "s" * (amount != 1)) for amount, text in what if amount]
    return said or ["no messages were spooled"]
