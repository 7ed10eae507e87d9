"""The report's tables by another engine: DuckDB's SQL over the same files, written apart from the Spark code."""

from duck_tables.reading import load
from duck_tables.sql import TABLES, create, differences, write

__all__ = ["TABLES", "create", "differences", "load", "write"]
