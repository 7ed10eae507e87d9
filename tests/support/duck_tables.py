"""The tables of a report by another engine: DuckDB's SQL over the same files, independent of the Spark code."""

import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import duckdb

_WHAT: Final = ("requests", "messages", "bytes")
_OUTCOMES: Final = ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped", "repeated")
_LISTS: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes")
_TYPES: Final = {
    "VARCHAR": "type instance run kind name client user product producer_group rule verdict count action fair_by by"
    " reason version fair_by_before fair_by_after killed_run fleet",
    "BIGINT": "v n at_s requests messages bytes wait_max_us busy_answers clients change_id connections other"
    " lost_records identified seconds",
    "DOUBLE": "rate_per_s burst_s break_s bytes_per_s bytes_burst_s max_delay_s rate_before_per_s rate_after_per_s",
    "BOOLEAN": "limiting more_clients",
    "MAP(VARCHAR, BIGINT[])": "languages",
    "MAP(VARCHAR, BIGINT)": "bypassed_requests",
    "BIGINT[]": " ".join(("second", "second_repeated", *_LISTS, *_OUTCOMES)),
}
_DEFAULTS: Final = {
    **dict.fromkeys(("user", "product", "producer_group", "rule", "by", "reason", "fleet"), "''"),
    **dict.fromkeys(("wait_max_us", "busy_answers", "clients", "connections", "other", "lost_records"), "0"),
    "identified": "0",
    "burst_s": "1",
    "break_s": "0",
    "count": "'messages'",
    "bytes_burst_s": "1",
    "action": "'reject'",
    "max_delay_s": "2",
    "limiting": "true",
    "more_clients": "false",
    **dict.fromkeys(("second", "second_repeated", *_LISTS), "[]::BIGINT[]"),
    **dict.fromkeys(_OUTCOMES, "[0, 0, 0]"),
    "languages": "MAP {}::MAP(VARCHAR, BIGINT[])",
    "bypassed_requests": "MAP {}::MAP(VARCHAR, BIGINT)",
}
_GOOD: Final = f"""
    v = 1 AND instance IS NOT NULL AND run IS NOT NULL AND n >= 1 AND at_s >= 0 AND CASE type
    WHEN 'rejection' THEN kind IS NOT NULL AND name IS NOT NULL AND client IS NOT NULL AND rule IS NOT NULL
        AND verdict IN ('refuse', 'shadow', 'hold') AND requests >= 0 AND messages >= 0 AND bytes >= 0
    WHEN 'traffic' THEN kind IS NOT NULL AND name IS NOT NULL AND at_s % 60 = 0
        AND {" AND ".join(f"coalesce(len({name}), 0) = coalesce(len(second), 0)" for name in _LISTS)}
    WHEN 'limit' THEN kind IS NOT NULL AND name IS NOT NULL
    WHEN 'limit_change' THEN change_id IS NOT NULL AND action IS NOT NULL
    WHEN 'heartbeat' THEN version IS NOT NULL AND seconds >= 0
    ELSE false END"""
_KEY: Final = "instance, kind, name"
_MINUTE: Final = f"{_KEY}, minute_s"
_STORM: Final = f"{_KEY}, shadow, start_s"
_WHO: Final = 'client, "user", product, producer_group'
_LIMIT: Final = (
    "rate_per_s", "burst_s", "break_s", "count", "bytes_per_s", "bytes_burst_s", "action", "fair_by", "max_delay_s",
    "fleet",
)  # fmt: skip
_DAY: Final = "make_date(1970, 1, 1) + CAST({} // 86400 AS INTEGER) AS dt"
_LAST_S: Final = (
    "at_s + CASE type WHEN 'traffic' THEN coalesce(list_max(second), 0)"
    " WHEN 'heartbeat' THEN greatest(seconds, 1) - 1 ELSE 0 END"
)
_SUMS: Final = ", ".join(f"sum({what})::BIGINT AS {what}" for what in _WHAT)
_AMOUNTS: Final = ", ".join(
    f"sum({outcome}[{place}])::BIGINT AS {outcome}_{what}"
    for outcome in _OUTCOMES
    for place, what in enumerate(_WHAT, 1)
)
_SECONDS: Final = (*_LISTS, "second_repeated", "second_shadowed")
_MINUTES: Final = f"""
WITH parts AS (SELECT *, at_s AS minute_s, coalesce(list_max(second), -1) AS last FROM records WHERE type = 'traffic'),
refused AS (SELECT *, at_s - at_s % 60 AS minute_s FROM records WHERE type = 'rejection'),
totals AS (SELECT {_MINUTE}, {_AMOUNTS}, sum(identified)::BIGINT AS identified,
    sum(busy_answers)::BIGINT AS busy_answers, max(clients) AS clients,
    bool_or(more_clients) OR count(DISTINCT run) > 1 AS more_clients,
    {", ".join(f"arg_max_null({name}, (last, n, run)) AS {name}" for name in ("rule", *_LIMIT))}
    FROM parts GROUP BY ALL),
spoken AS (SELECT {_MINUTE}, e.key AS language,
    {{'requests': sum(e.value[1])::BIGINT, 'refused': sum(e.value[2])::BIGINT}} AS its
    FROM (SELECT {_MINUTE}, unnest(map_entries(languages)) AS e FROM parts) GROUP BY ALL),
languages AS (SELECT {_MINUTE}, map(list(language ORDER BY language), list(its ORDER BY language)) AS languages
    FROM spoken GROUP BY ALL),
would AS (SELECT {_MINUTE}, at_s % 60 AS second, sum(messages) AS second_shadowed FROM refused
    WHERE verdict = 'shadow' GROUP BY ALL),
each AS (SELECT {_MINUTE}, unnest(second) AS second, {", ".join(f"unnest({name}) AS {name}" for name in _LISTS)},
    unnest(if(len(second_repeated) > 0, second_repeated, [0 FOR _ IN second])) AS second_repeated FROM parts),
by_second AS (SELECT {_MINUTE}, second, coalesce(any_value(second_shadowed), 0)::BIGINT AS second_shadowed,
    {", ".join(f"sum({name})::BIGINT AS {name}" for name in _SECONDS[:-1])}
    FROM each LEFT JOIN would USING ({_MINUTE}, second) GROUP BY ALL),
seconds AS (SELECT {_MINUTE}, list(second ORDER BY second) AS second, max(second_refused) AS refused_peak_per_s,
    max(second_admitted + second_refused) AS demand_peak_per_s,
    {", ".join(f"list({name} ORDER BY second) AS {name}" for name in _SECONDS)} FROM by_second GROUP BY {_MINUTE}),
waits AS (SELECT {_MINUTE}, max(wait_max_us) AS wait_max_us FROM refused GROUP BY ALL)
SELECT * REPLACE (coalesce(languages, MAP {{}}) AS languages, coalesce(second, []) AS second,
    {", ".join(f"coalesce({name}, []) AS {name}" for name in _LISTS)},
    {", ".join(f"if(list_sum({name}) > 0, {name}, []) AS {name}" for name in _SECONDS[-2:])},
    coalesce(demand_peak_per_s, 0) AS demand_peak_per_s, coalesce(refused_peak_per_s, 0) AS refused_peak_per_s,
    coalesce(wait_max_us, 0) AS wait_max_us),
    admitted_messages + shadowed_messages + bypassed_messages + exempt_messages + refused_messages + dropped_messages
        AS demand_messages, {_DAY.format("minute_s")}
FROM totals LEFT JOIN languages USING ({_MINUTE}) LEFT JOIN seconds USING ({_MINUTE}) LEFT JOIN waits USING ({_MINUTE})
"""
_CULPRITS: Final = f"""
WITH whom AS (SELECT {_KEY}, {_WHO}, {_DAY.format("at_s")}, {_SUMS} FROM records
    WHERE type = 'rejection' AND verdict = 'refuse' GROUP BY ALL)
SELECT *, if(sum(messages) OVER day = 0, 0, messages / sum(messages) OVER day)::DOUBLE AS share,
    (row_number() OVER (day ORDER BY messages DESC, {_WHO}))::INTEGER AS rank
FROM whom WINDOW day AS (PARTITION BY {_KEY}, dt) QUALIFY rank <= 10"""


def _named(name: str, what: str, top: str = "") -> str:
    """Return a list of a storm: the most refused callers."""
    return f"""{name} AS (SELECT {_STORM}, count(*) AS {name[:-1]}_count, list({{'name': "{what}", 'messages': messages,
        'share': if(total = 0, 0, messages / total)::DOUBLE}} ORDER BY messages DESC, "{what}"){top} AS {name} FROM (
    SELECT {_STORM}, "{what}", sum(messages)::BIGINT AS messages,
        (sum(sum(messages)) OVER (PARTITION BY {_STORM}))::BIGINT AS total
    FROM parts GROUP BY {_STORM}, "{what}") GROUP BY {_STORM})"""


_STORMS: Final = f"""
WITH refused AS (SELECT *, verdict = 'shadow' AS shadow FROM records WHERE type = 'rejection' AND verdict != 'hold'),
marked AS (SELECT *, coalesce(at_s - lag(at_s) OVER (PARTITION BY {_KEY}, shadow ORDER BY at_s) > 30, true) AS begins
    FROM refused),
parts AS (SELECT *, max(at_s) FILTER (begins) OVER (PARTITION BY {_KEY}, shadow ORDER BY at_s) AS start_s FROM marked),
by_second AS (SELECT {_STORM}, at_s, {_SUMS}, max(wait_max_us) AS wait_max_us FROM parts GROUP BY ALL),
{_named("rules", "rule")}, {_named("clients", "client", "[:10]")}, {_named("users", "user", "[:10]")},
{_named("producer_groups", "producer_group", "[:10]")},
storms AS (SELECT {_STORM}, max(at_s) + 1 AS end_s, {_SUMS}, max(wait_max_us) AS wait_max_us,
    count(*) AS refused_seconds, max(messages) AS peak_per_s, arg_max(at_s, (messages, -at_s)) AS peak_at_s
    FROM by_second GROUP BY {_STORM}),
newest AS (SELECT instance, max({_LAST_S}) AS newest_s
    FROM records GROUP BY instance),
begun AS (SELECT *, coalesce(start_s - max(end_s) OVER (PARTITION BY kind, name, shadow
    ORDER BY start_s, end_s, instance ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) >= 30, true) AS begins
    FROM storms),
floods AS (SELECT *, max(start_s) FILTER (begins) OVER (PARTITION BY kind, name, shadow
    ORDER BY start_s, end_s, instance ROWS UNBOUNDED PRECEDING) AS flood_s FROM begun)
SELECT * EXCLUDE (begins, newest_s), end_s - 1 + 30 >= newest_s AS is_open, {_DAY.format("start_s")},
    (SELECT count(DISTINCT o.instance) FROM floods o WHERE (o.kind, o.name, o.shadow, o.flood_s)
        = (floods.kind, floods.name, floods.shadow, floods.flood_s)) AS sidecars
FROM floods JOIN rules USING ({_STORM}) JOIN clients USING ({_STORM}) JOIN users USING ({_STORM})
JOIN producer_groups USING ({_STORM}) JOIN newest USING (instance)"""
_COVERAGE: Final = f"""
WITH hourly AS (SELECT *, at_s - at_s % 3600 AS hour_s FROM records),
again AS (SELECT instance, run, at_s - at_s % 3600 AS hour_s, count(*) - count(DISTINCT n) AS copies
    FROM lines WHERE good GROUP BY ALL),
numbers AS (SELECT instance, run, hour_s, count(*) AS records, min(n) AS first_n, max(n) AS last_n,
    max({_LAST_S}) AS newest_s FROM hourly GROUP BY ALL),
beats AS (SELECT instance, run, hour_s, at_s - at_s % 60 AS minute_s, sum(seconds) AS seconds,
    bool_and(limiting) AS limiting, max(connections) AS connections, sum(other) AS other,
    sum(list_sum(map_values(bypassed_requests))) AS bypassed, max(lost_records) AS lost_records,
    max(version) AS version, max(killed_run) AS killed_run, max(fleet) AS fleet
    FROM hourly WHERE type = 'heartbeat' GROUP BY ALL),
hours AS (SELECT instance, run, hour_s, min(minute_s) AS first_minute_s, max(minute_s) AS last_minute_s,
    count(*) AS minutes, sum(seconds)::BIGINT AS seconds, count(*) FILTER (NOT limiting) AS limiting_off_minutes,
    max(connections) AS connections_max, sum(bypassed)::BIGINT AS bypassed_requests, sum(other)::BIGINT AS other,
    max(lost_records) AS lost_records, arg_max(version, minute_s) AS version,
    max(killed_run) AS killed_run, max(fleet) AS fleet FROM beats GROUP BY ALL)
SELECT * REPLACE (coalesce(version, '') AS version, coalesce(killed_run, '') AS killed_run,
    coalesce(fleet, '') AS fleet, coalesce(bypassed_requests, 0) AS bypassed_requests,
    {", ".join(f"coalesce({name}, 0) AS {name}" for name in (
        "minutes", "seconds", "limiting_off_minutes", "connections_max", "other", "lost_records"))}),
    {_DAY.format("hour_s")}
FROM numbers LEFT JOIN hours USING (instance, run, hour_s) JOIN again USING (instance, run, hour_s)"""  # fmt: skip
TABLES: Final = {
    "minutes": _MINUTES,
    "refusals": f"SELECT {_KEY}, at_s, {_WHO}, rule, verdict, {_SUMS}, max(wait_max_us) AS wait_max_us,"
    f" {_DAY.format('at_s')} FROM records WHERE type = 'rejection' GROUP BY ALL",
    "coverage": _COVERAGE,
    "limits": f"SELECT {_KEY}, rule, {', '.join(f'arg_max_null({name}, (at_s, n, run)) AS {name}' for name in _LIMIT)},"
    f" max(at_s) AS seen_s, {_DAY.format('at_s')} FROM records WHERE type = 'limit' GROUP BY {_KEY}, rule, dt",
    "limit_changes": "SELECT instance, run, n, at_s, change_id, action, coalesce(kind, '') AS kind, coalesce(name, '')"
    f' AS name, rate_before_per_s, rate_after_per_s, fair_by_before, fair_by_after, "by", reason, {_DAY.format("at_s")}'
    " FROM records WHERE type = 'limit_change'",
    "storms": _STORMS,
    "culprits": _CULPRITS,
}


class DuckTables:
    """The tables of a folder of logs.

    ``scratch``: directory for unpacked files. ``since_s``: leaves out earlier records. ``until_s``: leaves out records
    from this second on.
    """

    def __init__(self, folder: Path, scratch: Path, since_s: int = 0, until_s: int = 1 << 40) -> None:
        self._duck = duckdb.connect()
        columns = ", ".join(f"'{name}': '{kind}'" for kind, names in _TYPES.items() for name in names.split())
        defaults = ", ".join(f'coalesce("{name}", {value}) AS "{name}"' for name, value in _DEFAULTS.items())
        self._duck.execute(
            f"CREATE TABLE lines AS SELECT coalesce({_GOOD}, false) AS good, * REPLACE ({defaults})"
            " FROM read_json(?, format = 'newline_delimited', ignore_errors = true, filename = true,"
            f" columns = {{{columns}}})",
            [[str(file) for file in _plain(folder, scratch)]],
        )
        (self.bad_lines,) = self._row("SELECT count(*) FROM lines WHERE NOT good")
        self._duck.execute("DELETE FROM lines WHERE at_s < ? OR at_s >= ?", [since_s, until_s])
        self._duck.execute(
            "CREATE TABLE records AS FROM lines WHERE good"
            " QUALIFY row_number() OVER (PARTITION BY run, n ORDER BY filename) = 1"
        )
        (self.records,) = self._row("SELECT count(*) FROM records")
        (self.copies,) = self._row("SELECT count(*) FROM lines WHERE good")
        self.copies -= self.records
        for name, query in TABLES.items():
            self._duck.execute(f"CREATE TABLE {name} AS {query}")

    def _row(self, query: str) -> tuple[int, ...]:
        row: tuple[int, ...] | None = self._duck.execute(query).fetchone()
        assert row is not None
        return row

    def count(self, what: str) -> int:
        """Return the number of rows of a table, or of some rows, as ``storms WHERE shadow``."""
        return self._row(f"SELECT count(*) FROM {what}")[0]

    def differences(self, name: str, out: Path, columns: Sequence[str]) -> list[tuple[object, ...]]:
        """Return rows that are in only one of both tables, or not equally often."""
        kinds = {str(row[0]): str(row[1]) for row in self._duck.execute(f"DESCRIBE {name}").fetchall()}
        # As text: lists and maps are in order.
        same = ", ".join(f'CAST("{column}" AS {kinds[column]})::VARCHAR AS "{column}"' for column in columns)
        ours = f"SELECT {same} FROM {name}"
        theirs = f"SELECT {same} FROM read_parquet('{out}/{name}/dt=*/*.parquet', hive_partitioning = true)"
        found: list[tuple[object, ...]] = []
        for side, one, other in (("only Spark", theirs, ours), ("only DuckDB", ours, theirs)):
            found += self._duck.execute(f"SELECT '{side}', * FROM ({one} EXCEPT ALL {other}) LIMIT 3").fetchall()
        return found


def unequal(one: Path, other: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return, for each different table of two reports, some rows that are in one of them only."""
    found: dict[str, list[tuple[object, ...]]] = {}
    with duckdb.connect() as duck:
        for name in (*TABLES, "recommendations"):
            there = [out / name for out in (one, other) if next((out / name).glob("**/*.parquet"), None)]
            # As text: lists and maps are in the same order, too.
            rows = [
                "SELECT CAST(COLUMNS(*) AS VARCHAR)"
                f" FROM read_parquet('{table}/**/*.parquet', hive_partitioning = true)"
                for table in there
            ]
            if len(rows) == 1:
                found[name] = [(f"only {there[0]}",)]
            for query in (" EXCEPT ALL ".join(each) for each in (rows, rows[::-1]) if len(rows) > 1):
                if different := duck.execute(f"{query} LIMIT 3").fetchall():
                    found[name] = [*found.get(name, ()), *different]
    return found


def _plain(folder: Path, scratch: Path) -> list[Path]:
    """Return the files of logs, unpacked as far as possible."""
    found = []
    for number, file in enumerate(sorted(folder.rglob("*.jsonl*"))):
        if file.name.startswith((".", "_")):
            continue
        if file.suffix == ".gz":
            plain = scratch / f"{number}.jsonl"
            with suppress(zlib.error):
                plain.write_bytes(zlib.decompressobj(31).decompress(file.read_bytes()))
                found.append(plain)
        else:
            found.append(file)
    return found
