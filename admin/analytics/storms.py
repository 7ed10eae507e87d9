"""Storms: refusals of one resource without a long pause in between; and the two sums of refusals all else is made from.

Sessions are found by looking back at the refusal before, not by Spark's ``session_window``: filters on its window are
moved below the merging of sessions, and give other sessions. The result is the same, and the tests hold it against
``session_window`` without filters: refusals at most the gap apart are of one storm.
"""

from typing import TYPE_CHECKING

from admin.analytics.options import Options
from admin.analytics.words import DAY_S, HOUR_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def by_slot(records: "DataFrame", gap_s: int) -> "DataFrame":
    """Add up rejections of the same key in each slot.

    Two seconds of a slot are at most the gap apart, so all refusals of a resource in a slot are of one storm; and it
    lies within an hour.

    Args:
        records: all.
        gap_s: at most so far apart are the refusals of a storm.
    """
    return records.sparkSession.sql(
        f"""SELECT instance, kind, name, client, coalesce(producer_group, '') AS producer_group, rule, verdict,
            at_s - at_s % {HOUR_S} AS hour_s, at_s % {HOUR_S} DIV {gap_s + 1} AS slot,
            sum(requests) AS requests, sum(messages) AS messages, sum(bytes) AS bytes,
            max(coalesce(wait_max_us, 0)) AS wait_max_us
        FROM {{records}} WHERE type = 'rejection' GROUP BY ALL""",
        records=records,
    )


def by_second(records: "DataFrame") -> "DataFrame":
    """Add up what was refused of each resource in each second.

    Args:
        records: all.

    Returns:
        ``refused_wait_us`` is the longest wait of what was refused, ``wait_max_us`` of all that rules did.
    """
    return records.sparkSession.sql(
        f"""SELECT instance, kind, name, at_s - at_s % {HOUR_S} AS hour_s, at_s,
            max(verdict = 'refuse') AS refused,
            sum(IF(verdict = 'refuse', requests, 0)) AS requests,
            sum(IF(verdict = 'refuse', messages, 0)) AS messages,
            sum(IF(verdict = 'refuse', bytes, 0)) AS bytes,
            max(IF(verdict = 'refuse', coalesce(wait_max_us, 0), 0)) AS refused_wait_us,
            max(coalesce(wait_max_us, 0)) AS wait_max_us
        FROM {{records}} WHERE type = 'rejection' GROUP BY ALL""",
        records=records,
    )


def storms(slots: "DataFrame", seconds: "DataFrame", newest: "DataFrame", options: Options) -> "DataFrame":
    """Find the storms.

    Args:
        slots: from ``by_slot`` with the same gap.
        seconds: from ``by_second``.
        newest: ``instance`` and ``newest_s``.
        options: the gap, and how many clients and producer groups are listed.
    """
    return slots.sparkSession.sql(
        _STORMS.format(gap_s=options.storm_gap_s, top=options.top), slots=slots, seconds=seconds, newest=newest
    )


# The peak of a slot and its second are one number, so that Spark need not sort to find the greatest.
_STORMS = f"""
WITH sums AS (
    SELECT instance, kind, name, hour_s, at_s % {HOUR_S} DIV ({{gap_s}} + 1) AS slot,
        min(at_s) AS first_s, max(at_s) AS last_s, sum(requests) AS requests, sum(messages) AS messages,
        sum(bytes) AS bytes, max(refused_wait_us) AS wait_max_us, count(*) AS refused_seconds,
        max(messages * {HOUR_S} + {HOUR_S - 1} - at_s % {HOUR_S}) AS peak
    FROM {{{{seconds}}}} WHERE refused GROUP BY ALL
), marked AS (
    SELECT *, IF(first_s - lag(last_s) OVER resource <= {{gap_s}}, NULL, first_s) AS begins FROM sums
    WINDOW resource AS (PARTITION BY instance, kind, name ORDER BY first_s)
), started AS (
    SELECT *, max(begins) OVER (PARTITION BY instance, kind, name ORDER BY first_s
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS start_s
    FROM marked
), totals AS (
    SELECT instance, kind, name, start_s, max(last_s) AS last_s, sum(requests) AS requests,
        sum(messages) AS messages, sum(bytes) AS bytes, max(wait_max_us) AS wait_max_us,
        sum(refused_seconds) AS refused_seconds,
        max(struct(peak DIV {HOUR_S} AS per_s, peak % {HOUR_S} - hour_s - {HOUR_S - 1} AS minus_at_s)) AS peak
    FROM started GROUP BY ALL
), whom AS (
    SELECT instance, kind, name, start_s, client, producer_group, rule, sum(o.messages) AS messages
    FROM {{{{slots}}}} o JOIN (SELECT instance, kind, name, hour_s, slot, start_s FROM started)
        USING (instance, kind, name, hour_s, slot)
    WHERE verdict = 'refuse' GROUP BY ALL
), each AS (
    SELECT instance, kind, name, start_s, messages,
        inline(array(struct(1 AS what, client AS who), struct(2 AS what, producer_group AS who),
            struct(3 AS what, rule AS who)))
    FROM whom
), counted AS (
    SELECT instance, kind, name, start_s, what, who, sum(messages) AS messages FROM each GROUP BY ALL
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY instance, kind, name, start_s, what ORDER BY messages DESC, who) AS rank,
        count(*) OVER (PARTITION BY instance, kind, name, start_s, what) AS names
    FROM counted
), lists AS (
    SELECT instance, kind, name, start_s,
        array_sort(collect_list(IF(what = 1, struct(rank, who, messages), NULL))) AS clients,
        array_sort(collect_list(IF(what = 2, struct(rank, who, messages), NULL))) AS producer_groups,
        array_sort(collect_list(IF(what = 3, struct(rank, who, messages), NULL))) AS rules,
        max(IF(what = 1, names, NULL)) AS client_count, max(IF(what = 2, names, NULL)) AS producer_group_count
    FROM ranked WHERE rank <= {{top}} OR what = 3 GROUP BY ALL
)
SELECT instance, kind, name, start_s, last_s + 1 AS end_s, requests, messages, bytes, wait_max_us, refused_seconds,
    peak.per_s AS peak_per_s, -peak.minus_at_s AS peak_at_s,
    {
    ", ".join(
        f"transform({name}, x -> named_struct('name', x.who, 'messages', x.messages, 'share',"
        f" IF(messages = 0, 0D, x.messages / messages))) AS {name}"
        for name in ("rules", "clients", "producer_groups")
    )
},
    client_count, producer_group_count, last_s + {{gap_s}} >= coalesce(newest_s, 0) AS is_open,
    date_from_unix_date(CAST(start_s DIV {DAY_S} AS INT)) AS dt
FROM totals JOIN lists USING (instance, kind, name, start_s) LEFT JOIN {{{{newest}}}} USING (instance)"""


# Who was refused most of each resource on each day. Exact; ties are broken by name.
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
