"""Reading logs with DuckDB: each record once, and nothing that is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import duckdb

_AMOUNTS: Final = ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped", "repeated")
_LISTS: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes")
_COLUMNS: Final = {
    **dict.fromkeys(
        (
            "type", "instance", "run", "kind", "name", "client", "user", "product", "producer_group", "rule",
            "verdict", "count", "action", "fair_by", "by", "reason", "version",
        ),
        "VARCHAR",
    ),
    **dict.fromkeys(
        (
            "n", "at_s", "requests", "messages", "bytes", "wait_max_us", "busy_answers", "clients", "change_id",
            "connections", "other", "lost_records", "identified",
        ),
        "BIGINT",
    ),
    **dict.fromkeys(
        (
            "rate_per_s", "burst_s", "break_s", "bytes_per_s", "bytes_burst_s", "rate_before_per_s",
            "rate_after_per_s",
        ),
        "DOUBLE",
    ),
    "v": "INTEGER",
    "seconds": "INTEGER",
    "limiting": "BOOLEAN",
    "more_clients": "BOOLEAN",
    "second": "BIGINT[]",
    "languages": "MAP(VARCHAR, BIGINT[])",
    "bypassed_requests": "MAP(VARCHAR, BIGINT)",
    **dict.fromkeys((*_AMOUNTS, *_LISTS, "second_repeated"), "BIGINT[]"),
}  # fmt: skip
_GOOD: Final = f"""
    v = 1 AND instance IS NOT NULL AND run IS NOT NULL AND n >= 1 AND at_s >= 0 AND CASE type
    WHEN 'rejection' THEN kind IS NOT NULL AND name IS NOT NULL AND client IS NOT NULL AND rule IS NOT NULL
        AND verdict IN ('refuse', 'shadow', 'hold') AND requests >= 0 AND messages >= 0 AND bytes >= 0
    WHEN 'traffic' THEN kind IS NOT NULL AND name IS NOT NULL
        AND {" AND ".join(f"coalesce(len({name}), 0) = coalesce(len(second), 0)" for name in _LISTS)}
        AND coalesce(len(second_repeated), 0) IN (0, coalesce(len(second), 0)) AND at_s % 60 = 0
    WHEN 'limit' THEN kind IS NOT NULL AND name IS NOT NULL
    WHEN 'limit_change' THEN change_id IS NOT NULL AND action IS NOT NULL
    WHEN 'heartbeat' THEN version IS NOT NULL AND seconds IS NOT NULL
    ELSE false END"""


def load(duck: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> tuple[int, int]:
    """Make the tables ``records`` and ``copies``; return how many lines were bad, and how many records duplicates."""
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _COLUMNS.items())
    duck.execute(
        "CREATE OR REPLACE TABLE lines AS SELECT * FROM read_json(?, format = 'newline_delimited', "
        f"ignore_errors = true, filename = true, columns = {{{columns}}})",
        [[str(file) for file in files]],
    )
    bad = _number(duck, f"SELECT count(*) FROM lines WHERE ({_GOOD}) IS NOT true")
    duplicates = _number(
        duck,
        f"""SELECT coalesce(sum(records - bits), 0) FROM (
            SELECT count(*) AS records, bit_count(bit_or((1::UBIGINT << (n % 64)::UBIGINT)))::BIGINT AS bits
            FROM lines WHERE ({_GOOD}) GROUP BY run, n // 64)""",
    )
    once = "QUALIFY row_number() OVER (PARTITION BY run, n ORDER BY filename) = 1" if duplicates else ""
    duck.execute(f"CREATE OR REPLACE VIEW records AS SELECT * FROM lines WHERE ({_GOOD}) {once}")
    if duplicates:
        duck.execute("CREATE OR REPLACE TABLE distinct_records AS FROM records")
        duck.execute("CREATE OR REPLACE VIEW records AS FROM distinct_records")
    duck.execute(
        "CREATE OR REPLACE TABLE copies AS SELECT instance, run, at_s - at_s % 3600 AS hour_s, "
        f"count(*) - count(DISTINCT n) AS copies FROM lines WHERE ({_GOOD}) AND {duplicates > 0} GROUP BY ALL"
    )
    return bad, duplicates


def _number(duck: duckdb.DuckDBPyConnection, query: str) -> int:
    row = duck.execute(query).fetchone()
    if row is None:
        raise ValueError(f"no answer to {query}")
    return int(row[0])
