"""What a report says of a log, as far as that can be known: from its JSON, and its tables as anybody reads them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from log_truth.truth import Resource, Storm, Truth

_OUTCOMES: Final = ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped")


def reported(out: Path, findings: dict[str, Any]) -> Truth:
    """Return what a report says."""
    inputs, coverage = findings["inputs"], findings["coverage"]
    # Lines of a file that are no records are set aside, too; of a file that is damaged no number of lines is known.
    damaged = frozenset(Path(each["file"]).name for each in inputs["set_aside"] if not each.get("lines"))
    if len(damaged) != inputs["skipped_files"]:
        raise ValueError(f"{inputs['skipped_files']} files are set aside, but {len(damaged)} are named: {damaged}")
    with duckdb.connect() as duck:
        return Truth(
            records=inputs["records"],
            bad_lines=inputs["bad_lines"],
            damaged=damaged,
            storms=frozenset(_storms(duck, out)),
            totals=_totals(duck, out),
            p99_per_s=p99_per_s(out),
            minutes={each["instance"]: each["minutes"] for each in coverage},
            gap_minutes={each["instance"]: each.get("gap_minutes", 0) for each in coverage},
            lost_records={each["instance"]: each.get("lost_records", 0) for each in coverage},
        )


def _table(out: Path, name: str) -> str:
    return f"read_parquet('{out}/{name}/dt=*/*.parquet', hive_partitioning = true)"


def _storms(duck: duckdb.DuckDBPyConnection, out: Path) -> list[Storm]:
    columns = "instance, kind, name, shadow, start_s, end_s, messages, clients, client_count"
    found = []
    for *resource, shadow, start_s, end_s, messages, clients, how_many in duck.execute(
        f"SELECT {columns} FROM {_table(out, 'storms')}"
    ).fetchall():
        shares = tuple(sorted((each["name"], each["messages"]) for each in clients))
        if len(shares) != how_many:
            raise ValueError(f"{resource} at {start_s}: {how_many} clients, and {len(shares)} of them listed")
        found.append(Storm(_resource(resource), shadow, start_s, end_s, messages, shares))
    if len(set(found)) != len(found):
        raise ValueError("a storm is there twice")
    return found


def _resource(words: Sequence[str]) -> Resource:
    instance, kind, name = words
    return instance, kind, name


def _totals(duck: duckdb.DuckDBPyConnection, out: Path) -> dict[Resource, dict[str, tuple[int, int, int]]]:
    sums = ", ".join(
        f"sum({outcome}_{what})::BIGINT" for outcome in _OUTCOMES for what in ("requests", "messages", "bytes")
    )
    found = {}
    query = f"SELECT instance, kind, name, {sums} FROM {_table(out, 'hours')} GROUP BY ALL HAVING sum(minutes) > 0"
    for row in duck.execute(query).fetchall():
        amounts = {outcome: row[3 + 3 * at : 6 + 3 * at] for at, outcome in enumerate(_OUTCOMES)}
        found[_resource(row[:3])] = {outcome: amount for outcome, amount in amounts.items() if any(amount)}
    return found


_MINUTES: Final = """
SELECT instance, kind, name, value::DOUBLE, count(*) FROM
    (SELECT instance, kind, name, unnest(second_admitted) + unnest(second_refused) AS value FROM {minutes})
GROUP BY ALL"""
_HOURS: Final = """
WITH histograms AS (
    SELECT instance, kind, name, demand.calm AS its FROM {hours}
    UNION ALL SELECT instance, kind, name, demand.loud_asked FROM {hours})
SELECT instance, kind, name, value, sum(seconds)::BIGINT FROM
    (SELECT instance, kind, name, unnest(its.values) AS value, unnest(its.seconds) AS seconds FROM histograms)
GROUP BY ALL"""


def p99_per_s(out: Path, *, by_minutes: bool = False) -> dict[Resource, float]:
    """Return the 99th percentile of what was asked for in a second, by resource, as ``Truth`` has it."""
    tables = {name: _table(out, name) for name in ("minutes", "hours", "coverage")}
    seconds = defaultdict[Resource, Counter[float]](Counter)
    with duckdb.connect() as duck:
        observed = duck.execute("SELECT instance, sum(seconds)::BIGINT FROM {coverage} GROUP BY ALL".format(**tables))
        observed_s = dict(observed.fetchall())
        query = (_MINUTES if by_minutes else _HOURS).format(**tables)
        for *words, value, many in duck.execute(query).fetchall():
            seconds[_resource(words)][value] += many
        found = {}
        for resource, values in seconds.items():
            values[0.0] += max(0, observed_s[resource[0]] - values.total())
            row = duck.execute(
                "SELECT quantile_cont(value::DOUBLE, 0.99) FROM "
                "(SELECT unnest(repeat([each.value], each.many)) AS value FROM (SELECT unnest(?) AS each))",
                [[{"value": value, "many": many} for value, many in values.items()]],
            ).fetchone()
            if row is None:
                raise ValueError(f"no percentile of {resource}")
            found[resource] = row[0]
    return found


def days_of(out: Path, table: str) -> dict[str, tuple[int, int]]:
    """Return what the rows of each day of a table are, in brief: how many, and a sum that hardly any others have."""
    with duckdb.connect() as duck:
        # The order within a map says nothing.
        maps = "EXCLUDE (languages)" if table in {"minutes", "hours"} else ""
        query = f"""SELECT dt::VARCHAR, count(*), bit_xor(hash(rows))
            FROM (SELECT * {maps} FROM {_table(out, table)}) AS rows GROUP BY dt"""
        return {day: (many, brief) for day, many, brief in duck.execute(query).fetchall()}
