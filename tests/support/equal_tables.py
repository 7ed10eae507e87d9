"""Comparison of the tables of two reports, by DuckDB, which made neither."""

from pathlib import Path

import duckdb

from admin.analytics import tables


def unequal(ours: Path, theirs: Path) -> dict[str, tuple[int, int]]:
    """Return, of each table, how many rows only the one and only the other has; of equal tables nothing."""
    found = {}
    with duckdb.connect() as engine:
        for table in tables.BY_DAY:
            one, other = (_rows(engine, out, table) for out in (ours, theirs))
            if one is None or other is None:
                only = [0 if rows is None else _count(engine, f"SELECT * FROM {rows}") for rows in (one, other)]
                if any(only):
                    found[table.name] = (only[0], only[1])
                continue
            only = [
                _count(engine, f"SELECT * FROM {left} EXCEPT ALL SELECT * FROM {right}")
                for left, right in ((one, other), (other, one))
            ]
            if any(only):
                found[table.name] = (only[0], only[1])
    return found


def count(out: Path, table: tables.Table) -> int:
    """Return how many rows a table has."""
    with duckdb.connect() as engine:
        rows = _rows(engine, out, table)
        return 0 if rows is None else _count(engine, f"SELECT * FROM {rows}")


def _rows(engine: duckdb.DuckDBPyConnection, out: Path, table: tables.Table) -> str | None:
    """Return what to select the rows of a table from; None if it has none."""
    name = f'"{out}_{table.name}"'
    if not list((out / table.name).glob("dt=*/*.parquet")):
        return None
    # As text: maps and lists have no order that every engine agrees on, but they have one in the files.
    engine.execute(
        f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT CAST(COLUMNS(*) AS VARCHAR) FROM"
        f" read_parquet('{out}/{table.name}/dt=*/*.parquet', hive_partitioning=true)"
    )
    return name


def _count(engine: duckdb.DuckDBPyConnection, query: str) -> int:
    row = engine.execute(f"SELECT count(*) FROM ({query})").fetchone()
    assert row is not None
    return int(row[0])
