"""Compares a report's recommendations with the current limits, and prepares the edits that apply them."""

from typing import Any, Final

from admin.common import numbers
from admin.common.recommendations import TO_DO, Recommendation
from admin.edits.model import MAX_REASON, LimitEntry

_Rates = tuple[float | None, float | None]
_TOLERANCE: Final = 1e-6


def no_change_reason(each: Recommendation) -> str:
    """Return why a recommendation changes nothing, or an empty string if it would change a limit."""
    if each.action not in TO_DO:
        return "no change is recommended" if each.action == "keep" else "never used; unset it if it is not needed"
    if (each.recommended_rate_per_s == 0 and each.rate_per_s != 0) or (
        each.recommended_bytes_per_s == 0 and each.bytes_per_s != 0
    ):
        return "a rate of 0 refuses everything; if that is intended, set it with `sluice limits set`"
    if each.recommended_rate_per_s is None and each.recommended_bytes_per_s is None and each.fair_by is None:
        return "no rate is recommended"
    if not each.name.isprintable():
        return "its name contains control characters, which are not allowed"
    return ""


def not_applicable_reason(each: Recommendation, entry: LimitEntry) -> str:
    """Return why a recommendation cannot be applied to the current limit, or an empty string if it can."""
    limit = entry.limit
    if limit.get("exempt"):
        return "exempt, so it is never limited"
    if limit.get("between") is not None or limit.get("days") is not None:
        return "its limit applies only during certain hours; change it in the configuration"
    same = _same(_in_force(limit), _recommended(each)) and each.fair_by in (None, limit.get("fair_by"))
    if same and entry.exact and entry.rule == f"{entry.kind}:{entry.name}":
        return "already active"
    if each.fair_by is not None and limit.get("warm_up_s"):
        return "warm-up cannot be combined with fair shares; choose one with `sluice limits set`"
    return ""


def changed_since(each: Recommendation, entry: LimitEntry) -> str:
    """Return how the limit has changed since the recommendation was made, or an empty string if it has not."""
    now, then, counts = (
        _in_force(entry.limit),
        (each.rate_per_s, each.bytes_per_s),
        entry.limit.get("count", "messages"),
    )
    if _same(now, then) and counts == each.count:
        return ""
    if _text(*now) == _text(*then):
        return f"the limit has changed and now counts {counts}"
    return f"the limit is now {_text(*now)}, but was {_text(*then)} in the report"


def change_of(each: Recommendation) -> str:
    return f"{_text(each.rate_per_s, each.bytes_per_s)} → {_text(*_recommended(each))}"


def fields_of(each: Recommendation, entry: LimitEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if each.recommended_rate_per_s is not None:
        fields |= {"rate": each.recommended_rate_per_s, "count": each.count}
    if each.recommended_bytes_per_s is not None:
        fields["bytes_per_s"] = each.recommended_bytes_per_s
    if each.fair_by is not None:
        fields["fair_by"] = each.fair_by
        if each.max_fair_keys is not None:
            fields["max_fair_keys"] = each.max_fair_keys
    if entry.limit.get("action") == "off":
        # Recommendations assume that the limit is enforced, so remove the action.
        fields["action"] = None
    return fields


def reason_of(each: Recommendation, before: str = "") -> str:
    evidence = f"{each.evidence} Confidence: {each.confidence}."
    reason = f"{before}: {evidence}" if before else evidence
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 1] + "…"


def _recommended(each: Recommendation) -> _Rates:
    rate = each.rate_per_s if each.recommended_rate_per_s is None else each.recommended_rate_per_s
    size = each.bytes_per_s if each.recommended_bytes_per_s is None else each.recommended_bytes_per_s
    return rate, size


def _in_force(limit: dict[str, Any]) -> _Rates:
    if limit.get("action") == "off":
        return None, None
    rate, size = limit.get("rate"), limit.get("bytes_per_s")
    return (rate if isinstance(rate, int | float) else None), size


def _same(one: _Rates, other: _Rates) -> bool:
    return all(
        (a is None) == (b is None) and (a is None or b is None or abs(a - b) <= _TOLERANCE * max(1.0, abs(a)))
        for a, b in zip(one, other, strict=True)
    )


def _text(rate: float | None, size: float | None) -> str:
    parts = ([] if rate is None else [f"{numbers.limit(rate)}/s"]) + (
        [] if size is None else [f"{numbers.limit(size)} bytes/s"]
    )
    return " + ".join(parts) or "unlimited"
