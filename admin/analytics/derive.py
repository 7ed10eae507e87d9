"""From records to tables: the same for a batch job and for each batch of a stream.

Everything here is DataFrame in, DataFrame out. What rules did is added up twice, and all else comes from these two,
which are far smaller than the log: by second and resource, and by client and *slot*, a stretch of an hour that is short
enough that no storm can end in it. Neither puts one busy resource into one task.

Each table is one SQL query: Spark's planner looks at a query once, but at a chain of DataFrame calls once a call.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import tables
from admin.analytics.options import Options
from admin.analytics.reading import OUTCOMES, SECONDS
from admin.analytics.tables import AMOUNTS, LIMIT_KEY, WHO_KEY, Table
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S
from admin.rejection_log.records import LimitFields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Tables:
    """Tables by name, each planned when it is asked for, and computed when it is written."""

    def __init__(self, makers: Mapping[str, Callable[[], "DataFrame"]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> "DataFrame":
        return _shaped(self._makers[name](), tables.TABLES[name])


@dataclass(frozen=True)
class Derived:
    """What records come to.

    Attributes:
        tables: by name, with the columns of ``tables.TABLES``.
        kept: what several of them are made from.
    """

    tables: Tables
    kept: list["DataFrame"]

    def frame(self, table: Table, out: str, days: Container[date]) -> "DataFrame":
        """Return a table; hours are made of the minutes already written in ``out``, which are faster to read again."""
        if table is not tables.HOURS:
            return self.tables[table.name]
        return hours_of(tables.read(self.kept[0].sparkSession, out, tables.MINUTES, days))

    def release(self) -> None:
        """Let go of the memory and disk that is held while the tables are written."""
        for frame in self.kept:
            frame.unpersist()


def derive(records: "DataFrame", options: Options, newest: "DataFrame | None" = None) -> Derived:
    """Make all tables of some records.

    Args:
        records: as ``reading.RECORDS``, each once; all of the days that are to be written, and, for storms over
            midnight, of the days before and after as far as these storms reach.
        options: what is asked for.
        newest: ``instance`` and ``newest_s``, the last second that is known of, where ``records`` are not all there
            are; it says which storms may go on.
    """
    if options.since_s is not None:
        records = records.where(f"at_s >= {options.since_s}")
    if options.until_s is not None:
        records = records.where(f"at_s < {options.until_s}")
    session = records.sparkSession
    slots = _by_slot(records, options.storm_gap_s).persist(StorageLevel.MEMORY_AND_DISK)
    seconds = _by_second(records).persist(StorageLevel.MEMORY_AND_DISK)
    kept = [slots, seconds]
    ends = records.groupBy("instance").agg(F.expr(NEWEST)) if newest is None else newest
    makers = {
        "minutes": lambda: _minutes(records, seconds, kept),
        "hours": lambda: hours_of(_minutes(records, seconds, kept)),
        "refusals": lambda: session.sql(_REFUSALS, slots=slots),
        "storms": lambda: _storms(slots, seconds, ends, options),
        "culprits": lambda: _culprits(slots, options),
        "limits": lambda: session.sql(_LIMITS, records=records),
        "limit_changes": lambda: session.sql(_LIMIT_CHANGES, records=records),
        "coverage": lambda: session.sql(_COVERAGE, records=records),
    }
    return Derived(Tables(makers), kept)


def _minutes(records: "DataFrame", seconds: "DataFrame", kept: list["DataFrame"]) -> "DataFrame":
    """Return minutes; runs two small jobs, so that the many rows of traffic need not be shuffled to meet few others."""
    session = records.sparkSession
    several = session.sql(_SEVERAL, records=records).persist(StorageLevel.MEMORY_AND_DISK)
    waits = session.sql(_WAITS, seconds=seconds).persist(StorageLevel.MEMORY_AND_DISK)
    kept += (several, waits)
    return session.sql(_MINUTES, records=records, several=_sent(several), waits=_sent(waits))


def _sent(frame: "DataFrame") -> "DataFrame":
    """Have a frame sent to every task if it has few rows."""
    return frame.hint("broadcast") if frame.count() <= _FEW else frame


def _by_slot(records: "DataFrame", gap_s: int) -> "DataFrame":
    """Add up rejections of the same key in each slot.

    Two seconds of a slot are at most the gap apart, so all refusals of a resource in a slot are of one storm; and it
    lies within an hour.

    Args:
        records: all.
        gap_s: at most so far apart are the refusals of a storm.
    """
    return records.sparkSession.sql(
        f"""SELECT instance, kind, name, {_list(WHO_KEY, "coalesce(`{0}`, '') AS `{0}`")}, rule, verdict,
            at_s - at_s % {HOUR_S} AS hour_s, at_s % {HOUR_S} DIV {gap_s + 1} AS slot,
            sum(requests) AS requests, sum(messages) AS messages, sum(bytes) AS bytes,
            max(coalesce(wait_max_us, 0)) AS wait_max_us
        FROM {{records}} WHERE type = 'rejection' GROUP BY ALL""",
        records=records,
    )


def _by_second(records: "DataFrame") -> "DataFrame":
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


def _storms(slots: "DataFrame", seconds: "DataFrame", newest: "DataFrame", options: Options) -> "DataFrame":
    """Find the storms: refusals of one resource without a long pause in between.

    Sessions are found by looking back at the refusal before, not by Spark's ``session_window``: filters on its window
    are moved below the merging of sessions, and give other sessions. The result is the same, and the tests hold it
    against ``session_window`` without filters.

    Args:
        slots: from ``_by_slot`` with the same gap.
        seconds: from ``_by_second``.
        newest: ``instance`` and ``newest_s``.
        options: the gap, and how many clients, users and producer groups are listed.
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
    SELECT instance, kind, name, start_s, client, `user`, producer_group, rule, sum(o.messages) AS messages
    FROM {{{{slots}}}} o JOIN (SELECT instance, kind, name, hour_s, slot, start_s FROM started)
        USING (instance, kind, name, hour_s, slot)
    WHERE verdict = 'refuse' GROUP BY ALL
), each AS (
    SELECT instance, kind, name, start_s, messages,
        inline(array(struct(1 AS what, client AS who), struct(2 AS what, producer_group AS who),
            struct(3 AS what, rule AS who), struct(4 AS what, `user` AS who)))
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
        array_sort(collect_list(IF(what = 4, struct(rank, who, messages), NULL))) AS users,
        max(IF(what = 1, names, NULL)) AS client_count, max(IF(what = 2, names, NULL)) AS producer_group_count,
        max(IF(what = 4, names, NULL)) AS user_count
    FROM ranked WHERE rank <= {{top}} OR what = 3 GROUP BY ALL
)
SELECT instance, kind, name, start_s, last_s + 1 AS end_s, requests, messages, bytes, wait_max_us, refused_seconds,
    peak.per_s AS peak_per_s, -peak.minus_at_s AS peak_at_s,
    {
    ", ".join(
        f"transform({name}, x -> named_struct('name', x.who, 'messages', x.messages, 'share',"
        f" IF(messages = 0, 0D, x.messages / messages))) AS {name}"
        for name in ("rules", "clients", "users", "producer_groups")
    )
},
    client_count, user_count, producer_group_count, last_s + {{gap_s}} >= coalesce(newest_s, 0) AS is_open,
    date_from_unix_date(CAST(start_s DIV {DAY_S} AS INT)) AS dt
FROM totals JOIN lists USING (instance, kind, name, start_s) LEFT JOIN {{{{newest}}}} USING (instance)"""


def _culprits(slots: "DataFrame", options: Options) -> "DataFrame":
    """Rank who was refused by the messages refused to them, of each resource and day; ties go by name.

    Args:
        slots: from ``_by_slot``.
        options: how many of each resource and day.
    """
    return slots.sparkSession.sql(
        f"""WITH whom AS (
            SELECT instance, kind, name, date_from_unix_date(CAST(hour_s DIV {DAY_S} AS INT)) AS dt, {_WHO},
                sum(requests) AS requests, sum(messages) AS messages, sum(bytes) AS bytes
            FROM {{slots}} WHERE verdict = 'refuse' GROUP BY ALL
        ), ranked AS (
            SELECT *, sum(messages) OVER (PARTITION BY instance, kind, name, dt) AS total,
                row_number() OVER (PARTITION BY instance, kind, name, dt
                    ORDER BY messages DESC, {_WHO}) AS rank
            FROM whom
        )
        SELECT instance, kind, name, {_WHO}, requests, messages, bytes,
            IF(total = 0, 0D, messages / total) AS share, rank, dt
        FROM ranked WHERE rank <= {options.top}""",
        slots=slots,
    )


def hours_of(minutes: "DataFrame") -> "DataFrame":
    """Add up minutes by hour."""
    return _shaped(minutes.sparkSession.sql(_HOURS, minutes=minutes), tables.HOURS)


NEWEST: Final = f"max(at_s + IF(type IN ('traffic', 'heartbeat'), {MINUTE_S - 1}, 0)) AS newest_s"
"""The last second that records are of, in SQL."""


def _shaped(frame: "DataFrame", table: tables.Table) -> "DataFrame":
    """Give a frame exactly the columns and types of its table."""
    columns = (column.split(" ", 1) for column in table.columns)
    return frame.selectExpr(*(f"CAST(`{name}` AS {kind}) AS `{name}`" for name, kind in columns))


def _list(names: tuple[str, ...], each: str = "{0}") -> str:
    return ", ".join(each.format(name) for name in names)


def _day(at: str) -> str:
    """Return the day that a column of seconds is in."""
    return f"date_from_unix_date(CAST({at} DIV {DAY_S} AS INT)) AS dt"


_WHO: Final = _list(WHO_KEY, "`{0}`")
_KEY: Final = "instance, kind, name, minute_s"
_FEW: Final = 200_000
"""A frame of up to this many rows is sent to every task."""
_SUMMED: Final = (*AMOUNTS, "busy_answers")
_DEFAULTS: Final = {
    each.name: f"{each.default:g}D" if isinstance(each.default, float) else f"'{each.default}'"
    for each in msgspec.structs.fields(LimitFields)
    if not each.required and each.default is not None
}
_LIMIT_FIELDS: Final = ", ".join(
    f"coalesce({name}, {_DEFAULTS[name]}) AS {name}" if name in _DEFAULTS else name for name in LIMIT_KEY
)
_NO_LANGUAGES: Final = "CAST(map() AS MAP<STRING, STRUCT<requests: BIGINT, refused: BIGINT>>)"
_DEMAND: Final = ("admitted", "shadowed", "bypassed", "exempt", "refused", "dropped")
_SEVERAL: Final = """
SELECT instance, kind, name, at_s AS minute_s FROM {records} WHERE type = 'traffic' GROUP BY ALL HAVING count(*) > 1"""
_WAITS: Final = f"""
SELECT instance, kind, name, at_s - at_s % {MINUTE_S} AS minute_s, max(wait_max_us) AS wait_max_us
FROM {{seconds}} GROUP BY ALL"""
# Only minutes of which there are several records are taken apart, into cells: one of each second, of each language, and
# one of the record as a whole.
_MINUTES: Final = f"""
WITH flat AS (
    SELECT instance, kind, name, at_s AS minute_s, run, n,
        {
    ", ".join(
        f"coalesce({outcome}[{place}], 0) AS {outcome}_{what}"
        for outcome in OUTCOMES
        for place, what in enumerate(("requests", "messages", "bytes"))
    )
},
        coalesce(busy_answers, 0) AS busy_answers,
        coalesce(transform_values(languages, (k, v) -> named_struct('requests', v[0], 'refused', v[1])),
            {_NO_LANGUAGES}) AS languages,
        coalesce(clients, 0) AS clients, coalesce(more_clients, false) AS more_clients, {_LIMIT_FIELDS},
        coalesce(second, CAST(array() AS ARRAY<INT>)) AS second,
        {_list(SECONDS, "coalesce({0}, CAST(array() AS ARRAY<BIGINT>)) AS {0}")}
    FROM {{records}} WHERE type = 'traffic'
), cells AS (
    SELECT {_KEY}, run, n, {_list(_SUMMED)}, clients, {_list(LIMIT_KEY)}, inline(concat(
        array(named_struct('cell', CAST(NULL AS INT), 'language', CAST(NULL AS STRING),
            'w', 0L, 'x', 0L, 'y', 0L, 'z', 0L)),
        transform(map_entries(languages), e -> named_struct('cell', CAST(NULL AS INT), 'language', e.key,
            'w', e.value.requests, 'x', e.value.refused, 'y', 0L, 'z', 0L)),
        transform(arrays_zip(second, {_list(SECONDS)}), s -> named_struct('cell', s.second,
            'language', CAST(NULL AS STRING), {
    ", ".join(f"'{short}', s.{name}" for short, name in zip("wxyz", SECONDS, strict=True))
}))))
    FROM flat LEFT SEMI JOIN {{several}} USING ({_KEY})
), summed AS (
    SELECT {_KEY}, cell, language, cell IS NULL AND language IS NULL AS whole, {_list(_SUMMED, "sum({0}) AS {0}")},
        max(clients) AS clients, max_by(struct({_list(LIMIT_KEY)}), struct(n, run)) AS held,
        sum(w) AS w, sum(x) AS x, sum(y) AS y, sum(z) AS z
    FROM cells GROUP BY {_KEY}, cell, language
), gathered AS (
    SELECT {_KEY}, {_list(_SUMMED, "max(IF(whole, {0}, NULL)) AS {0}")},
        array_sort(collect_list(IF(language IS NULL, NULL, struct(language, struct(w AS requests, x AS refused)))))
            AS languages,
        max(IF(whole, clients, NULL)) AS clients, max(IF(whole, held, NULL)) AS held,
        array_sort(collect_list(IF(cell IS NULL, NULL, struct(cell, w, x, y, z)))) AS at
    FROM summed GROUP BY {_KEY}
), every AS (
    SELECT flat.* EXCEPT (run, n) FROM flat LEFT ANTI JOIN {{several}} USING ({_KEY})
    UNION ALL SELECT {_KEY}, {_list(_SUMMED)}, map_from_entries(languages), clients, true,
        {_list(LIMIT_KEY, "held.{0}")}, at.cell, at.w, at.x, at.y, at.z FROM gathered
)
SELECT * EXCEPT (wait_max_us), coalesce(wait_max_us, 0) AS wait_max_us,
    {" + ".join(f"{outcome}_messages" for outcome in _DEMAND)} AS demand_messages,
    coalesce(array_max(zip_with(second_admitted, second_refused, (a, r) -> a + r)), 0) AS demand_peak_per_s,
    coalesce(array_max(second_refused), 0) AS refused_peak_per_s, {_day("minute_s")}
FROM every LEFT JOIN {{waits}} USING ({_KEY})"""
_HOURS: Final = f"""
WITH each AS (
    SELECT *, minute_s - minute_s % {HOUR_S} AS hour_s,
        posexplode_outer(map_entries(languages)) AS (place, spoken)
    FROM {{minutes}}
), by_language AS (
    SELECT instance, kind, name, hour_s, spoken.key AS language, sum(spoken.value.requests) AS spoken_requests,
        sum(spoken.value.refused) AS spoken_refused, sum(IF(place > 0, 0, 1)) AS minutes,
        {_list((*_SUMMED, "demand_messages"), "sum(IF(place > 0, 0, {0})) AS {0}")},
        max(clients) AS clients, max(more_clients) AS more_clients, max(minute_s) AS minute_s,
        max(demand_peak_per_s) AS demand_peak_per_s, max(demand_messages) AS demand_peak_per_minute,
        max(refused_peak_per_s) AS refused_peak_per_s, max(wait_max_us) AS wait_max_us
    FROM each GROUP BY ALL
), by_hour AS (
    SELECT instance, kind, name, hour_s, sum(minutes) AS minutes,
        {_list((*_SUMMED, "demand_messages"), "sum({0}) AS {0}")},
        map_from_entries(array_sort(collect_list(IF(language IS NULL, NULL,
            struct(language, struct(spoken_requests AS requests, spoken_refused AS refused)))))) AS languages,
        max(clients) AS clients, max(more_clients) AS more_clients, max(minute_s) AS minute_s,
        max(demand_peak_per_s) AS demand_peak_per_s, max(demand_peak_per_minute) AS demand_peak_per_minute,
        max(refused_peak_per_s) AS refused_peak_per_s, max(wait_max_us) AS wait_max_us
    FROM by_language GROUP BY ALL
)
SELECT *, {_day("hour_s")}
FROM by_hour JOIN (SELECT {_KEY}, {_list(LIMIT_KEY)} FROM {{minutes}}) USING ({_KEY})"""
_REFUSALS: Final = f"""
SELECT instance, kind, name, hour_s, {_WHO}, rule, verdict, sum(requests) AS requests,
    sum(messages) AS messages, sum(bytes) AS bytes, max(wait_max_us) AS wait_max_us, {_day("hour_s")}
FROM {{slots}} GROUP BY ALL"""
_LIMITS: Final = f"""
SELECT instance, kind, name, last.*, seen_s, dt FROM (
    SELECT instance, kind, name, dt, max(at_s) AS seen_s,
        max_by(struct({_list(LIMIT_KEY)}), struct(at_s, run, n)) AS last
    FROM (SELECT instance, kind, name, run, n, at_s, {_LIMIT_FIELDS}, {_day("at_s")}
        FROM {{records}} WHERE type = 'limit')
    GROUP BY instance, kind, name, rule, dt)"""
_LIMIT_CHANGES: Final = f"""
SELECT instance, run, n, at_s, change_id, action, coalesce(kind, '') AS kind, coalesce(name, '') AS name,
    rate_before_per_s, rate_after_per_s, coalesce(`by`, '') AS `by`, coalesce(reason, '') AS reason, {_day("at_s")}
FROM {{records}} WHERE type = 'limit_change'"""
_COVERAGE: Final = f"""
WITH numbers AS (
    SELECT instance, run, at_s - at_s % {HOUR_S} AS hour_s, count(*) AS records, min(n) AS first_n, max(n) AS last_n
    FROM {{records}} GROUP BY ALL
), beats AS (
    SELECT instance, run, at_s - at_s % {HOUR_S} AS hour_s, at_s - at_s % {MINUTE_S} AS minute_s,
        sum(seconds) AS seconds, min(coalesce(limiting, true)) AS limiting,
        max(coalesce(connections, 0)) AS connections,
        sum(coalesce(aggregate(map_values(bypassed_requests), 0L, (a, b) -> a + b), 0L)) AS bypassed,
        sum(coalesce(other, 0)) AS other, max(coalesce(lost_records, 0)) AS lost_records, max(version) AS version
    FROM {{records}} WHERE type = 'heartbeat' GROUP BY ALL
), hours AS (
    SELECT instance, run, hour_s, count(*) AS minutes, sum(least(seconds, {MINUTE_S})) AS seconds,
        min(minute_s) AS first_minute_s, max(minute_s) AS last_minute_s,
        count_if(NOT limiting) AS limiting_off_minutes, max(connections) AS connections_max,
        sum(bypassed) AS bypassed_requests, sum(other) AS other, max(lost_records) AS lost_records,
        max_by(version, minute_s) AS version
    FROM beats GROUP BY ALL
)
SELECT instance, run, hour_s,
    {
    _list(
        ("minutes", "seconds", "limiting_off_minutes", "connections_max", "bypassed_requests", "other", "lost_records"),
        "coalesce({0}, 0) AS {0}",
    )
},
    first_minute_s, last_minute_s, records, first_n, last_n, coalesce(version, '') AS version, {_day("hour_s")}
FROM numbers LEFT JOIN hours USING (instance, run, hour_s)"""
