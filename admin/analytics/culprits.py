"""Culprits: who was refused most of each resource on each day. Exact; ties are broken by name."""

from typing import TYPE_CHECKING

from admin.analytics.options import Options
from admin.analytics.tables import DAY_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def culprits(slots: "DataFrame", options: Options) -> "DataFrame":
    """Rank clients and producer groups by the messages that were refused to them.

    Args:
        slots: from ``storms.by_slot``.
        options: how many of each resource and day.
    """
    return slots.sparkSession.sql(
        f"""WITH whom AS (
            SELECT instance, kind, name, date_from_unix_date(CAST(hour_s DIV {DAY_S} AS INT)) AS dt, client,
                producer_group, sum(requests) AS requests, sum(messages) AS messages, sum(bytes) AS bytes
            FROM {{slots}} WHERE verdict = 'refuse' GROUP BY ALL
        ), ranked AS (
            SELECT *, sum(messages) OVER (PARTITION BY instance, kind, name, dt) AS total,
                row_number() OVER (PARTITION BY instance, kind, name, dt
                    ORDER BY messages DESC, client, producer_group) AS rank
            FROM whom
        )
        SELECT instance, kind, name, client, producer_group, requests, messages, bytes,
            IF(total = 0, 0D, messages / total) AS share, rank, dt
        FROM ranked WHERE rank <= {options.top}""",
        slots=slots,
    )
