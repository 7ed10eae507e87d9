"""The columns of the table of limits: what each sorts by."""

import math
from collections.abc import Callable
from typing import Any, Final

from admin import wire
from admin.board.line import REFUSED, SHADOWED, VERDICTS, Line
from limiter.resource import Resource
from limiter.rules import RuleSet

_NEVER: Final = ""
#: After every moment that is ever written.
_FOR_GOOD: Final = "~"

_PASSED, _BYPASSED = VERDICTS.index("pass"), VERDICTS.index("bypass")


def sort_key(column: wire.LimitColumn, rules: RuleSet, *, descending: bool) -> Callable[[Line], Any] | None:
    """Return what a column sorts by; None is the order that lines have anyway.

    Of equal ones those that were asked for come first, whatever the direction: nobody looks for a default that
    nothing falls under.
    """

    def limit(line: Line) -> float:
        if line.entry is not None:
            rate = line.entry.limit.get("rate")
            return float(rate) if isinstance(rate, int | float) else math.inf
        rate_per_s = rules.match(Resource(line.kind, line.name)).rate_per_s
        return math.inf if rate_per_s is None else rate_per_s

    def rule(line: Line) -> str:
        return line.entry.rule if line.entry is not None else rules.match(Resource(line.kind, line.name)).name

    keys: dict[wire.LimitColumn, Callable[[Line], Any] | None] = {
        "name": None,
        "kind": lambda line: line.kind,
        "limit": limit,
        "rule": rule,
        "passed": _moved(_PASSED),
        "refused": _moved(REFUSED),
        "shadowed": _moved(SHADOWED),
        "bypassed": _moved(_BYPASSED),
        "used": lambda line: -1.0 if line.used_ratio is None else line.used_ratio,
        "wait": lambda line: line.wait_until_ns,
        "last_refused": lambda line: line.last_refused_ns or 0,
        "edited": lambda line: line.entry.edit.at if line.entry is not None and line.entry.edit else _NEVER,
        "expires": _expires,
    }
    key = keys[column]
    if key is None:
        return None
    return lambda line: (key(line), (line.seen_ns is not None) == descending)


def _moved(verdict: int) -> Callable[[Line], int]:
    """Return what sorts by the messages of one verdict in the last sample."""
    return lambda line: line.moved(verdict)


def _expires(line: Line) -> str:
    edit = line.entry.edit if line.entry is not None else None
    return edit.expires_at or _FOR_GOOD if edit is not None else _FOR_GOOD
