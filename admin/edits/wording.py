"""What a change did, in short words: for the command line, and for the log.

Plain text of plain data; what reads and writes durations and rates on the command line is ``admin.client.words``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from admin.common import numbers
from admin.common.numbers import number
from admin.config.limit_fields import FIELDS
from admin.edits.model import Change, RuleInForce
from limiter.rules.patterns import DEFAULT_PATTERN

_SMALL: Final = {"rate", "bytes_per_s", "count", "exempt"}
"""What a limit's short form says already."""
_NOT_SAID: Final = ("confirm", "broker")
"""What is so of nearly every limit."""


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
    return {
        each.key: value_text(value)
        for each in FIELDS
        if each.key not in _SMALL
        and (value := limit.get(each.key)) is not None
        # What is nothing by default, and what another field would have to give a meaning, is not worth a word.
        and (value or value != each.default)
        and (each.key, value) != _NOT_SAID
        and each.matters(limit)
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
    if what == "spool":
        return f"spool of {' '.join(rest.split('/', 1))}"
    return f"switch {rest}" if what == "switches" else text


def difference(change: Change) -> str:
    """Write what a change did: ``500/s → 1000/s, burst_s 1 → 2``, or ``500/s (by orders-*) → 1000/s``."""
    if change.action in {"reset", "purge"}:
        return change.action
    old, new = sides(change)
    return ", ".join([old if old == new else f"{old} → {new}", *fields(change)])


def sides(change: Change) -> tuple[str, str]:
    """Write what was in force before a change, and what is since, in short."""
    return _side(change.old, change.old_rule), _side(change.new, change.new_rule)


def fields(change: Change) -> Iterator[str]:
    """Write each field that a change changed, besides what the short form says: ``burst_s 1 → 2``."""
    if change.old is None or change.new is None:
        return
    before, after = further(change.old), further(change.new)
    for key in dict.fromkeys((*before, *after)):
        # What matters only beside another field comes and goes with that; by itself it has not changed.
        if change.old.get(key) != change.new.get(key) and before.get(key) != after.get(key):
            yield f"{key} {before.get(key, 'not set')} → {after.get(key, 'not set')}"


def _side(limit: Mapping[str, Any] | None, rule: RuleInForce | None) -> str:
    """Write a limit in short; where there is none of that very name, the one in force and whose it is."""
    if limit is not None or rule is None:
        return short(limit)
    # The kind is said already.
    pattern = rule.rule.partition(":")[2]
    return f"{rule.limit_text} (by {'the default' if pattern == DEFAULT_PATTERN else pattern})"
