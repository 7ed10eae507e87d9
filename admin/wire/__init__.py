"""What the HTTP API and those who ask it agree on: its paths, the form of its errors and of its answers.

Plain data. What is told of limits and changes is in ``admin.live.model``, of requests in ``proxy.question``; here is
what the API itself makes. Times are ISO 8601 in UTC.
"""

from typing import Final, Literal

from admin.live.model import MAX_REASON, MAX_TTL_S
from admin.wire.figures import History, RuleRates, Verdicts
from admin.wire.pages import (
    AuditPage,
    Changes,
    ClosedConnection,
    ConnectionPage,
    ConnectionRow,
    Defaults,
    Drift,
    LimitPage,
    LiveFigures,
    Row,
    RowTotals,
    RulePage,
    RuleRow,
    Switches,
    WhoAmI,
)
from admin.wire.problems import FieldProblem, Problem, problem_body
from admin.wire.states import (
    BypassCount,
    Bypassed,
    Edits,
    Expiring,
    Held,
    LaneState,
    Limiters,
    ListenerReach,
    Rates,
    RejectionLog,
    State,
    Totals,
)

__all__ = [
    "BASE",
    "DEFAULT_PAGE",
    "EVENT_STREAM",
    "EXPLAIN",
    "MAX_EDITS",
    "MAX_PAGE",
    "MAX_REASON",
    "MAX_TTL_S",
    "PROBLEM",
    "AuditPage",
    "BypassCount",
    "Bypassed",
    "Changes",
    "ClosedConnection",
    "ConnectionColumn",
    "ConnectionPage",
    "ConnectionRow",
    "Defaults",
    "Drift",
    "Edits",
    "Expiring",
    "FieldProblem",
    "Filter",
    "Held",
    "History",
    "LaneState",
    "LimitColumn",
    "LimitPage",
    "Limiters",
    "ListenerReach",
    "LiveFigures",
    "Order",
    "Problem",
    "Rates",
    "RejectionLog",
    "Row",
    "RowTotals",
    "RulePage",
    "RuleRates",
    "RuleRow",
    "State",
    "Switches",
    "Totals",
    "Verdicts",
    "WhoAmI",
    "problem_body",
]

BASE: Final = "/api/v1"
"""What the API's paths begin with."""

EXPLAIN: Final = f"{BASE}/explain"
"""What would limit a request: GET with ``kind``, ``name`` and, if they matter, ``client``, ``producer_group``,
``listener``, ``at``; the answer is a ``question.Explanation``."""

PROBLEM: Final = "application/problem+json"
EVENT_STREAM: Final = "text/event-stream"

MAX_PAGE: Final = 500
"""Rows in one answer."""
DEFAULT_PAGE: Final = 100
MAX_EDITS: Final = 10_000
"""Edits in one batch."""

Filter = Literal["limited", "edited", "near", "shadowed", "overridden"]
"""``overridden`` is another word for ``edited``."""
Order = Literal["asc", "desc"]
LimitColumn = Literal[
    "name",
    "kind",
    "limit",
    "rule",
    "passed",
    "refused",
    "shadowed",
    "bypassed",
    "used",
    "wait",
    "last_refused",
    "edited",
    "expires",
]
ConnectionColumn = Literal["id", "peer", "client", "listener", "age", "bytes", "requests", "refused", "in_flight"]
