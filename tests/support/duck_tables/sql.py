"""The tables as SQL for DuckDB, from the table ``records``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import duckdb

_OUTCOMES: Final = ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped", "repeated")
_WHAT: Final = ("requests", "messages", "bytes")
_AMOUNTS: Final = tuple(f"{outcome}_{what}" for outcome in _OUTCOMES for what in _WHAT)
_LISTS: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes", "second_repeated")
_LIMIT: Final = (
    "rule", "rate_per_s", "burst_s", "break_s", "count", "bytes_per_s", "bytes_burst_s", "action", "fair_by",
)  # fmt: skip
_KEY: Final = "instance, kind, name"
_STORM_KEY: Final = f"{_KEY}, shadow"
_WHO: Final = ", ".join(
    ("client", *(f'coalesce("{name}", \'\') AS "{name}"' for name in ("user", "product", "producer_group")))
)
_DAY: Final = "make_date(1970, 1, 1) + CAST({} // 86400 AS INTEGER)"
_EMPTY: Final = "MAP {}::MAP(VARCHAR, STRUCT(requests BIGINT, refused BIGINT))"


def _names(names: tuple[str, ...], each: str = "{0}") -> str:
    return ", ".join(each.format(name) for name in names)


_FLAT: Final = f"""
CREATE OR REPLACE TEMP VIEW flat AS SELECT {_KEY}, at_s AS minute_s, run, n,
    {
    ", ".join(
        f"coalesce({outcome}[{place}], 0) AS {outcome}_{what}"
        for outcome in _OUTCOMES
        for place, what in enumerate(_WHAT, 1)
    )
},
    coalesce(identified, 0) AS identified, coalesce(busy_answers, 0) AS busy_answers,
    coalesce(map_from_entries([{{'k': e.key, 'v': {{'requests': e.value[1], 'refused': e.value[2]}}}}
        FOR e IN map_entries(languages)]), {_EMPTY}) AS languages,
    coalesce(clients, 0) AS clients, coalesce(more_clients, false) AS more_clients,
    coalesce(rule, '') AS rule, rate_per_s, coalesce(burst_s, 1) AS burst_s, coalesce(break_s, 0) AS break_s,
    coalesce("count", 'messages') AS "count", bytes_per_s, coalesce(bytes_burst_s, 1) AS bytes_burst_s,
    coalesce(action, 'reject') AS action, fair_by,
    coalesce(second, []::BIGINT[]) AS second, {_names(_LISTS, "coalesce({0}, []::BIGINT[]) AS {0}")}
FROM records WHERE type = 'traffic'"""
_AS_LONG: Final = "if(len(second_repeated) > 0, second_repeated, [0 FOR _ IN second])"
_IF_ANY: Final = "if(list_sum(second_repeated) > 0, second_repeated, []::BIGINT[])"
_LAST_S: Final = "if(type IN ('traffic', 'heartbeat'), at_s - at_s % 60 + 59, at_s)"
_SEVERAL: Final = f"""
CREATE OR REPLACE TEMP TABLE several AS
SELECT {_KEY}, at_s AS minute_s FROM records WHERE type = 'traffic' GROUP BY ALL HAVING count(*) > 1"""
_MERGED: Final = f"""
CREATE OR REPLACE TEMP VIEW merged AS
WITH parts AS (SELECT flat.* REPLACE ({_AS_LONG} AS second_repeated)
    FROM flat SEMI JOIN several USING ({_KEY}, minute_s)),
totals AS (SELECT {_KEY}, minute_s, {_names(_AMOUNTS, "sum({0})::BIGINT AS {0}")},
    sum(identified)::BIGINT AS identified, sum(busy_answers)::BIGINT AS busy_answers, max(clients) AS clients,
    bool_or(more_clients) OR count(DISTINCT run) > 1 AS more_clients,
    arg_max({{{_names(_LIMIT, "'{0}': {0}")}}}, (n, run)) AS last FROM parts GROUP BY {_KEY}, minute_s),
spoken AS (SELECT {_KEY}, minute_s, e.key AS language, sum(e.value.requests)::BIGINT AS requests,
    sum(e.value.refused)::BIGINT AS refused
    FROM (SELECT {_KEY}, minute_s, unnest(map_entries(languages)) AS e FROM parts) GROUP BY ALL),
languages AS (SELECT {_KEY}, minute_s, map(list(language), list({{'requests': requests, 'refused': refused}}))
    AS languages FROM spoken GROUP BY ALL),
each AS (SELECT {_KEY}, minute_s, unnest(second) AS second, {_names(_LISTS, "unnest({0}) AS {0}")} FROM parts),
by_second AS (SELECT {_KEY}, minute_s, second, {_names(_LISTS, "sum({0})::BIGINT AS {0}")} FROM each GROUP BY ALL),
seconds AS (SELECT {_KEY}, minute_s, list(second ORDER BY second) AS second,
    {_names(_LISTS, "list({0} ORDER BY second) AS {0}")} FROM by_second GROUP BY {_KEY}, minute_s)
SELECT {_KEY}, minute_s, {_names(_AMOUNTS)}, identified, busy_answers,
    coalesce(languages, {_EMPTY}) AS languages, clients, more_clients,
    {_names(_LIMIT, "last.{0} AS {0}")}, coalesce(second, []::BIGINT[]) AS second,
    {_names(_LISTS[:-1], "coalesce({0}, []::BIGINT[]) AS {0}")}, {_IF_ANY} AS second_repeated
FROM totals LEFT JOIN languages USING ({_KEY}, minute_s) LEFT JOIN seconds USING ({_KEY}, minute_s)"""
_MINUTES: Final = f"""
WITH waits AS (SELECT {_KEY}, at_s - at_s % 60 AS minute_s, max(coalesce(wait_max_us, 0)) AS wait_max_us
    FROM records WHERE type = 'rejection' GROUP BY ALL),
shadowed AS (SELECT {_KEY}, at_s - at_s % 60 AS minute_s, map(list(at_s % 60), list(messages)) AS would FROM (
    SELECT {_KEY}, at_s, sum(messages)::BIGINT AS messages FROM records
    WHERE type = 'rejection' AND verdict = 'shadow' GROUP BY ALL) GROUP BY {_KEY}, minute_s),
every AS (SELECT * EXCLUDE (run, n) FROM flat ANTI JOIN several USING ({_KEY}, minute_s) UNION ALL FROM merged)
SELECT every.*, if(list_sum([coalesce(would[each], 0) FOR each IN second]) > 0,
        [coalesce(would[each], 0) FOR each IN second], []::BIGINT[]) AS second_shadowed,
    admitted_messages + shadowed_messages + bypassed_messages + exempt_messages + refused_messages + dropped_messages
        AS demand_messages,
    coalesce(list_max([z[1] + z[2] FOR z IN list_zip(second_admitted, second_refused)]), 0) AS demand_peak_per_s,
    coalesce(list_max(second_refused), 0) AS refused_peak_per_s,
    coalesce(wait_max_us, 0) AS wait_max_us, {_DAY.format("minute_s")} AS dt
FROM every LEFT JOIN waits USING ({_KEY}, minute_s) LEFT JOIN shadowed USING ({_KEY}, minute_s)"""
_HOURS: Final = f"""
WITH by_minute AS (SELECT *, minute_s - minute_s % 3600 AS hour_s FROM duck_minutes),
spoken AS (SELECT {_KEY}, hour_s, e.key AS language, sum(e.value.requests)::BIGINT AS requests,
    sum(e.value.refused)::BIGINT AS refused
    FROM (SELECT {_KEY}, hour_s, unnest(map_entries(languages)) AS e FROM by_minute) GROUP BY ALL),
languages AS (SELECT {_KEY}, hour_s, map(list(language), list({{'requests': requests, 'refused': refused}}))
    AS languages FROM spoken GROUP BY ALL),
totals AS (SELECT {_KEY}, hour_s, count(*) AS minutes, min(minute_s) AS first_minute_s, max(minute_s) AS last_minute_s,
    {_names(_AMOUNTS, "sum({0})::BIGINT AS {0}")}, sum(identified)::BIGINT AS identified,
    sum(busy_answers)::BIGINT AS busy_answers, max(clients) AS clients, bool_or(more_clients) AS more_clients,
    arg_max({{{_names(_LIMIT, "'{0}': {0}")}}}, minute_s) AS last,
    sum(demand_messages)::BIGINT AS demand_messages, max(demand_peak_per_s) AS demand_peak_per_s,
    max(demand_messages) AS demand_peak_per_minute, max(refused_peak_per_s) AS refused_peak_per_s,
    max(wait_max_us) AS wait_max_us FROM by_minute GROUP BY {_KEY}, hour_s)
SELECT {_KEY}, hour_s, minutes, first_minute_s, last_minute_s, {_names(_AMOUNTS)}, identified, busy_answers,
    coalesce(languages, {_EMPTY}) AS languages, clients, more_clients,
    {_names(_LIMIT, "last.{0} AS {0}")}, demand_messages, demand_peak_per_s, demand_peak_per_minute,
    refused_peak_per_s, wait_max_us, {_DAY.format("hour_s")} AS dt
FROM totals LEFT JOIN languages USING ({_KEY}, hour_s)"""
_REFUSALS: Final = f"""
SELECT {_KEY}, at_s - at_s % 3600 AS hour_s, {_WHO}, rule, verdict,
    {_names(_WHAT, "sum({0})::BIGINT AS {0}")}, max(coalesce(wait_max_us, 0)) AS wait_max_us,
    {_DAY.format("(at_s - at_s % 3600)")} AS dt
FROM records WHERE type = 'rejection' GROUP BY ALL"""
_CULPRITS: Final = f"""
WITH whom AS (SELECT {_KEY}, {_DAY.format("at_s")} AS dt, {_WHO},
    {_names(_WHAT, "sum({0})::BIGINT AS {0}")} FROM records
    WHERE type = 'rejection' AND verdict = 'refuse' GROUP BY ALL)
SELECT {_KEY}, client, "user", product, producer_group, {_names(_WHAT)},
    CASE WHEN sum(messages) OVER everyone = 0 THEN 0.0 ELSE messages::DOUBLE / (sum(messages) OVER everyone)::DOUBLE END
        AS share,
    (row_number() OVER (everyone ORDER BY messages DESC, client, "user", product, producer_group))::INTEGER AS rank, dt
FROM whom WINDOW everyone AS (PARTITION BY {_KEY}, dt) QUALIFY rank <= 10"""
_SECONDS: Final = f"""
CREATE OR REPLACE TEMP TABLE refused_seconds AS
WITH per_second AS (SELECT {_KEY}, verdict = 'shadow' AS shadow, at_s, {_names(_WHAT, "sum({0})::BIGINT AS {0}")},
    max(coalesce(wait_max_us, 0)) AS wait_max_us
    FROM records WHERE type = 'rejection' AND verdict != 'hold' GROUP BY ALL),
marked AS (SELECT *, coalesce(at_s - lag(at_s) OVER resource > {{gap}}, true) AS begins FROM per_second
    WINDOW resource AS (PARTITION BY {_STORM_KEY} ORDER BY at_s))
SELECT * EXCLUDE (begins), max(at_s) FILTER (begins) OVER (PARTITION BY {_STORM_KEY} ORDER BY at_s) AS start_s
FROM marked"""


def _share(what: str, name: str, *, top: int | None) -> str:
    some = f"[:{top}]" if top else ""
    return f"""{name} AS (SELECT {_STORM_KEY}, start_s, count(*) AS names,
    (list({{'name': what, 'messages': messages, 'share': CASE WHEN total = 0 THEN 0.0
        ELSE messages::DOUBLE / total::DOUBLE END}} ORDER BY messages DESC, what)){some} AS entries FROM (
    SELECT {_STORM_KEY}, start_s, {what} AS what, sum(messages)::BIGINT AS messages,
        (sum(sum(messages)) OVER (PARTITION BY {_STORM_KEY}, start_s))::BIGINT AS total
    FROM of_storm GROUP BY {_STORM_KEY}, start_s, {what}) GROUP BY {_STORM_KEY}, start_s)"""


_STORMS: Final = f"""
WITH of_storm AS (SELECT r.*, s.shadow, s.start_s, coalesce(producer_group, '') AS who_for,
    coalesce("user", '') AS who_as FROM records r
    JOIN (SELECT {_STORM_KEY}, at_s, start_s FROM refused_seconds) s
    ON (r.instance, r.kind, r.name, r.verdict = 'shadow', r.at_s) = (s.instance, s.kind, s.name, s.shadow, s.at_s)
    WHERE type = 'rejection' AND verdict != 'hold'),
{_share("client", "of_clients", top=10)}, {_share("who_for", "of_groups", top=10)},
{_share("who_as", "of_users", top=10)}, {_share("rule", "of_rules", top=None)},
storms AS (SELECT {_STORM_KEY}, start_s, max(at_s) + 1 AS end_s, {_names(_WHAT, "sum({0})::BIGINT AS {0}")},
    max(wait_max_us) AS wait_max_us, count(*) AS refused_seconds, max(messages) AS peak_per_s,
    arg_max(at_s, (messages, -at_s)) AS peak_at_s FROM refused_seconds GROUP BY {_STORM_KEY}, start_s),
newest AS (SELECT instance, max({_LAST_S}) AS newest_s
    FROM records GROUP BY instance)
SELECT {_STORM_KEY}, start_s, end_s, {_names(_WHAT)}, wait_max_us, refused_seconds, peak_per_s, peak_at_s,
    of_rules.entries AS rules, of_clients.entries AS clients, of_clients.names AS client_count,
    of_users.entries AS users, of_users.names AS user_count,
    of_groups.entries AS producer_groups, of_groups.names AS producer_group_count,
    end_s - 1 + {{gap}} >= newest_s AS is_open, {_DAY.format("start_s")} AS dt
FROM storms JOIN of_clients USING ({_STORM_KEY}, start_s) JOIN of_groups USING ({_STORM_KEY}, start_s)
JOIN of_rules USING ({_STORM_KEY}, start_s) JOIN of_users USING ({_STORM_KEY}, start_s) JOIN newest USING (instance)"""
_LIMITS: Final = f"""
SELECT {_KEY}, coalesce(rule, '') AS rule, {_names(_LIMIT[1:], "arg_max_null({0}, (at_s, run, n)) AS {0}")},
    max(at_s) AS seen_s, {_DAY.format("at_s")} AS dt
FROM (SELECT * REPLACE (coalesce(burst_s, 1) AS burst_s, coalesce(break_s, 0) AS break_s,
    coalesce("count", 'messages') AS "count", coalesce(bytes_burst_s, 1) AS bytes_burst_s,
    coalesce(action, 'reject') AS action) FROM records WHERE type = 'limit')
GROUP BY {_KEY}, coalesce(rule, ''), dt"""
_LIMIT_CHANGES: Final = f"""
SELECT instance, run, n, at_s, change_id, action, coalesce(kind, '') AS kind, coalesce(name, '') AS name,
    rate_before_per_s, rate_after_per_s, coalesce("by", '') AS "by", coalesce(reason, '') AS reason,
    {_DAY.format("at_s")} AS dt
FROM records WHERE type = 'limit_change'"""
_COVERAGE: Final = f"""
WITH hourly AS (SELECT *, at_s - at_s % 3600 AS hour_s FROM records),
numbers AS (SELECT instance, run, hour_s, count(*) AS records, min(n) AS first_n, max(n) AS last_n,
    max({_LAST_S}) AS newest_s FROM hourly GROUP BY ALL),
beats AS (SELECT instance, run, hour_s, at_s - at_s % 60 AS minute_s, sum(seconds) AS seconds,
    bool_and(coalesce(limiting, true)) AS limiting, max(coalesce(connections, 0)) AS connections,
    sum(coalesce(list_sum(map_values(bypassed_requests)), 0)) AS bypassed, sum(coalesce(other, 0)) AS other,
    max(coalesce(lost_records, 0)) AS lost_records, max(version) AS version
    FROM hourly WHERE type = 'heartbeat' GROUP BY ALL),
hours AS (SELECT instance, run, hour_s, count(*) AS minutes, sum(least(seconds, 60))::BIGINT AS seconds,
    min(minute_s) AS first_minute_s, max(minute_s) AS last_minute_s,
    count(*) FILTER (NOT limiting) AS limiting_off_minutes, max(connections) AS connections_max,
    sum(bypassed)::BIGINT AS bypassed_requests, sum(other)::BIGINT AS other, max(lost_records) AS lost_records,
    arg_max(version, minute_s) AS version FROM beats GROUP BY ALL)
SELECT instance, run, hour_s, coalesce(minutes, 0) AS minutes, coalesce(seconds, 0) AS seconds, first_minute_s,
    last_minute_s, coalesce(limiting_off_minutes, 0) AS limiting_off_minutes,
    coalesce(connections_max, 0) AS connections_max, coalesce(bypassed_requests, 0) AS bypassed_requests,
    coalesce(other, 0) AS other, coalesce(lost_records, 0) AS lost_records, records,
    coalesce(copies, 0) AS copies, first_n, last_n, newest_s, coalesce(version, '') AS version,
    {_DAY.format("hour_s")} AS dt
FROM numbers LEFT JOIN hours USING (instance, run, hour_s) LEFT JOIN copies USING (instance, run, hour_s)"""
TABLES: Final = {
    "minutes": _MINUTES,
    "hours": _HOURS,
    "refusals": _REFUSALS,
    "storms": _STORMS,
    "culprits": _CULPRITS,
    "limits": _LIMITS,
    "limit_changes": _LIMIT_CHANGES,
    "coverage": _COVERAGE,
}


def create(duck: duckdb.DuckDBPyConnection, gap_s: int = 30) -> None:
    """Make the tables from ``records``, each as ``duck_<name>``."""
    for name, statement in _statements(gap_s):
        duck.execute(f"CREATE OR REPLACE TABLE duck_{name} AS {statement}" if name else statement)


def _statements(gap_s: int) -> Iterator[tuple[str, str]]:
    """Yield what is done one after another: what makes a table with its name, what only prepares without one."""
    for statement in (_FLAT, _SEVERAL, _MERGED, _SECONDS.format(gap=gap_s)):
        yield "", statement
    for name, query in TABLES.items():
        yield name, query.replace("{gap}", str(gap_s))


def write(duck: duckdb.DuckDBPyConnection, out: Path, done: Callable[[str], None], gap_s: int = 30) -> None:
    """Write the tables from ``records`` as Parquet by day; hours are made from the minutes that were written."""
    for name, statement in _statements(gap_s):
        if not name:
            duck.execute(statement)
            continue
        duck.execute(
            f"COPY ({statement}) TO '{out / name}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (dt), OVERWRITE)"
        )
        if name == "minutes":
            duck.execute(
                f"CREATE OR REPLACE TEMP VIEW duck_minutes AS FROM "
                f"read_parquet('{out / name}/dt=*/*.parquet', hive_partitioning = true)"
            )
        done(name)


def differences(
    duck: duckdb.DuckDBPyConnection, name: str, out: Path, columns: tuple[str, ...], where: str = "true"
) -> list[tuple[object, ...]]:
    """Return rows that are in only one of both tables, with the side first, or not as often in the other; some
    of them.
    """
    kinds = {str(row[0]): str(row[1]) for row in duck.execute(f"DESCRIBE duck_{name}").fetchall()}
    same = ", ".join(
        f"list_sort(map_entries({column}))::VARCHAR AS {column}"
        if kinds[column].startswith("MAP")
        else f'CAST("{column}" AS {kinds[column]}) AS "{column}"'
        for column in columns
    )
    theirs = f"SELECT {same} FROM duck_{name}"
    ours = f"SELECT {same} FROM read_parquet('{out}/{name}/dt=*/*.parquet', hive_partitioning = true) WHERE {where}"
    found: list[tuple[object, ...]] = []
    for side, one, other in (("only Spark", ours, theirs), ("only DuckDB", theirs, ours)):
        found += duck.execute(f"SELECT '{side}', * FROM ({one} EXCEPT ALL {other}) LIMIT 3").fetchall()
    return found
