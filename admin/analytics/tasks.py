"""What ``recommend`` has Spark's Python do with each row, wherever that runs: figures in, a decision out.

Apart from it because an executor needs no more than this: the ``limiter`` package, this one, and the standard library.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from admin.analytics import advice
from admin.analytics.advice import Advice
from admin.analytics.demand import of_row
from admin.analytics.figures import Limit
from admin.analytics.tables import LIMIT_KEY

if TYPE_CHECKING:
    from pyspark.sql import Row


def decided(row: "Row", headroom: float, *, limit_all: bool) -> tuple[Any, ...]:
    """Decide about a row of ``demand``; returns a row of ``recommend.DECIDED``."""
    demand = of_row(row)
    found = advice.decide(demand, headroom, limit_all=limit_all)
    sums = (row["messages"], row["wanted_messages"], row["refused_messages"], advice.messages_each(demand))
    return (*found, row["limit"], *sums)


def shared(row: "Row", levels: Mapping[str, float], capacity_per_s: float) -> tuple[Any, ...]:
    """Put a decision under the capacity of its instance; a row of ``recommend.DECIDED``, as it returns one."""
    by_itself = Advice(*row[: len(Advice._fields)])
    level = levels.get(by_itself.instance)
    found = advice.share_out(by_itself, level, capacity_per_s, row["messages_each"])
    return (*found, *row[len(Advice._fields) :])


def settled(row: "Row") -> tuple[Any, ...]:
    """Make a row of the table from a decision and its backtest."""
    wanted = row["wanted_messages"] or 0.0
    messages = row["messages"]

    def share(refused: int | None, of: float) -> float | None:
        return None if refused is None else min(1.0, refused / of) if of else 0.0

    # Nothing to replay: nothing can have been refused.
    current = 0 if row["current_refused"] is None and _limits(row["limit"]) else row["current_refused"]
    recommended = row["recommended_refused"]
    if recommended is None and (row["recommended_rate_per_s"] or row["recommended_bytes_per_s"]):
        recommended = 0
    by_itself = Advice(*(row[name] for name in Advice._fields))
    current_share = share(current, messages)
    recommended_share = share(recommended, wanted)
    found = advice.settle(by_itself, current_share, recommended_share)
    if found.action == "keep":
        # The same limit, and of the same messages: those that were retries are among what it refuses.
        recommended, recommended_share = current, current_share
    error = None if current is None or not messages else (row["error"] or 0) / messages
    return (
        *found[:4],
        row["limit"]["rule"],
        row["limit"]["count"],
        *found[4:10],
        messages,
        wanted,
        row["refused_messages"],
        current,
        current_share,
        recommended,
        recommended_share,
        error,
    )


def _limits(limit: "Row") -> bool:
    return limit["action"] != "off" and (limit["rate_per_s"] is not None or limit["bytes_per_s"] is not None)


def of_unused(row: "Row") -> tuple[Any, ...]:
    """Make a row of the table from a limit that nobody used."""
    limit = Limit(**{name: row["limit"][name] for name in LIMIT_KEY})
    found = advice.unused(
        row["instance"], row["kind"], row["name"], limit, row["observed_s"], lost_records=row["lost_records"]
    )
    return (*found[:4], limit.rule, limit.count, *found[4:10], 0, 0.0, 0, None, None, None, None, None)
