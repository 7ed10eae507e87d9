"""The report's tables by another engine: DuckDB's SQL over the same files, written apart from the Spark code.

The tests hold Spark's tables against these; the bench compares the time. Records are read by DuckDB's own JSON reader,
sessions are found by its window functions.
"""

from duck_tables.reading import load
from duck_tables.sql import TABLES, create, differences, write

__all__ = ["TABLES", "create", "differences", "load", "write"]
