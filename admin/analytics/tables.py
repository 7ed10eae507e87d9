"""The Parquet tables of a report: what is in them, how they are written, how they are read.

A table lies in ``OUT/<table>/dt=<day>/*.parquet``. The day (UTC) is that on which the period of a row begins. Times are
whole seconds since 1970 UTC, and beside each stands the same as a TIMESTAMP, in ``…_at``. Shares are between 0 and 1.

In a directory all tables are written aside first, and then put in place day by day, by renaming: readers see a whole
day or another whole day, and a job that is killed leaves whole days. At an address Spark replaces the days itself.
"""

import ctypes
import os
import secrets
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from admin.analytics.figures import HourDemand, Seconds
from admin.analytics.spark import beside
from admin.common.disk import sync_directory
from admin.common.errors import StartError
from admin.rejection_log.records import LimitFields, Record
from limiter.counting.rejections import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RESOURCE: Final = ("instance STRING", "kind STRING", "name STRING")
"""What limits are of: each instance has its own."""
RESOURCE_KEY: Final = ("instance", "kind", "name")
_WHO: Final = ("client STRING", "user STRING", "product STRING", "producer_group STRING")
WHO_KEY: Final = tuple(field.split()[0] for field in _WHO)
"""Who was refused; all but the client may be empty."""
_DAY: Final = ("dt DATE",)
_SQL: Final = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}


def _sql(type_: Any) -> str:
    """Return Spark's name of a type; what may be None is null there."""
    origin, args = get_origin(type_), get_args(type_)
    if origin in {Union, UnionType}:
        return _sql(args[0])
    if type_ == Seconds:
        # Lists side by side take less than a list of pairs.
        return "STRUCT<values: ARRAY<DOUBLE>, seconds: ARRAY<BIGINT>>"
    if origin is tuple:
        return f"ARRAY<{_sql(args[0])}>"
    return _SQL.get(type_, "STRING")


def _fields(type_: type[Any], without: Container[str] = ()) -> tuple[str, ...]:
    """Return the attributes of a class as ``name TYPE``."""
    return tuple(f"{name} {_sql(hint)}" for name, hint in get_type_hints(type_).items() if name not in without)


def _struct(fields: Iterable[str]) -> str:
    return f"STRUCT<{', '.join(field.replace(' ', ': ', 1) for field in fields)}>"


LIMIT_FIELDS: Final = _fields(LimitFields, {*get_type_hints(Record), "kind", "name"})
LIMIT_KEY: Final = tuple(field.split()[0] for field in LIMIT_FIELDS)
AMOUNTS: Final = tuple(
    f"{outcome}_{what}" for outcome in (*OUTCOMES, "repeated") for what in ("requests", "messages", "bytes")
)
_SHARES: Final = "ARRAY<STRUCT<name: STRING, messages: BIGINT, share: DOUBLE>>"
_TRAFFIC: Final = (
    *(f"{name} BIGINT" for name in AMOUNTS),
    "identified BIGINT",
    "busy_answers BIGINT",
    "languages MAP<STRING, STRUCT<requests: BIGINT, refused: BIGINT>>",
    "clients BIGINT",
    "more_clients BOOLEAN",
    *LIMIT_FIELDS,
)
SECONDS: Final = (
    "second_admitted", "second_refused", "second_requests", "second_bytes", "second_repeated", "second_shadowed"
)  # fmt: skip
"""Lists beside ``second``, as long as it is; the last two are empty where nothing is in them."""
_PART: Final = (
    "shadow BOOLEAN",
    "start_s BIGINT",
    "last_s BIGINT",
    "requests BIGINT",
    "messages BIGINT",
    "bytes BIGINT",
    "wait_max_us BIGINT",
    "refused_seconds BIGINT",
    "peak_per_s BIGINT",
    "peak_at_s BIGINT",
    *(
        f"{who} ARRAY<STRUCT<name: STRING, messages: BIGINT>>"
        for who in ("rules", "clients", "users", "producer_groups")
    ),
)  # fmt: skip
PART_KEY: Final = tuple(field.split()[0] for field in _PART)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: of its folder.
        columns: as ``name TYPE``, ``dt`` last.
    """

    name: str
    columns: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.split()[0] for column in self.columns)

    @property
    def moments(self) -> dict[str, str]:
        """Columns of seconds since 1970, and the names of the same as timestamps."""
        names = [name for name in self.names if name.endswith("_s") and name.removesuffix("_s") in _MOMENTS]
        return {name: name.removesuffix("_s") + ("" if name.endswith("at_s") else "_at") for name in names}

    @property
    def schema(self) -> "StructType":
        """The schema as it is written, with timestamps."""
        from pyspark.sql.types import DateType, TimestampType  # noqa: PLC0415 - executors go without it

        found = in_spark(arrow_schema(self.columns[:-1]))
        for name in self.moments.values():
            found = found.add(name, TimestampType())
        return found.add("dt", DateType())

    @property
    def ddl_columns(self) -> tuple[str, ...]:
        """The columns as they are written, with timestamps."""
        *columns, day = self.columns
        return (*columns, *(f"{name} TIMESTAMP" for name in self.moments.values()), day)


_MOMENTS: Final = frozenset(
    ("minute", "hour", "start", "end", "peak_at", "at", "seen", "first_minute", "last_minute"),
)
MINUTES: Final = Table(
    "minutes",
    (
        *RESOURCE,
        "minute_s BIGINT",
        *_TRAFFIC,
        "second ARRAY<BIGINT>",
        *(f"{seconds} ARRAY<BIGINT>" for seconds in SECONDS),
        "demand_messages BIGINT",
        "demand_peak_per_s BIGINT",
        "refused_peak_per_s BIGINT",
        "wait_max_us BIGINT",
        *_DAY,
    ),
)
"""One row for each resource and minute with requests. ``demand_messages`` is what reached the broker
(admitted, shadowed, bypassed, exempt) and what did not (refused, dropped); ``demand_peak_per_s`` and
``refused_peak_per_s`` are of its busiest second. ``second_shadowed`` is what limits that only shadow would have
refused, and ``second_repeated`` what had been refused a moment before and came again. The limit is the one at the
end of the minute. Several records of the minute add up; ``clients`` is then the largest of them, and ``more_clients``
is set if they are of several runs."""
HOURS: Final = Table(
    "hours",
    (
        *RESOURCE,
        "hour_s BIGINT",
        "minutes BIGINT",
        "first_minute_s BIGINT",
        "last_minute_s BIGINT",
        *_TRAFFIC,
        "demand_messages BIGINT",
        "demand_peak_per_s BIGINT",
        "demand_peak_per_minute BIGINT",
        "refused_peak_per_s BIGINT",
        "wait_max_us BIGINT",
        f"demand {_struct(_fields(HourDemand))}",
        f"storm_parts ARRAY<{_struct(_PART)}>",
        *_DAY,
    ),
)
"""Sums of ``minutes``; the column ``minutes`` is their number. ``clients`` is that of the minute with the most clients,
and the limit is that of the last minute. ``demand`` is what recommendations are made from, with histograms of its
seconds, and ``storm_parts`` what storms are put together from. Where refusals are known, but their traffic is not,
there are 0 minutes."""
REFUSALS: Final = Table(
    "refusals",
    (
        *RESOURCE,
        "hour_s BIGINT",
        *_WHO,
        "rule STRING",
        "verdict STRING",
        "requests BIGINT",
        "messages BIGINT",
        "bytes BIGINT",
        "wait_max_us BIGINT",
        *_DAY,
    ),
)
"""What rules did, by client, user, product, producer group and hour."""
STORMS: Final = Table(
    "storms",
    (
        *RESOURCE,
        "shadow BOOLEAN",
        "start_s BIGINT",
        "end_s BIGINT",
        "requests BIGINT",
        "messages BIGINT",
        "bytes BIGINT",
        "wait_max_us BIGINT",
        "refused_seconds BIGINT",
        "peak_per_s BIGINT",
        "peak_at_s BIGINT",
        f"rules {_SHARES}",
        f"clients {_SHARES}",
        "client_count BIGINT",
        f"users {_SHARES}",
        "user_count BIGINT",
        f"producer_groups {_SHARES}",
        "producer_group_count BIGINT",
        "is_open BOOLEAN",
        *_DAY,
    ),
)
"""Refusals of one resource whose seconds are at most the gap apart. With ``shadow`` nothing was refused: it is what a
limit that only shadows would have. ``end_s`` is the end of the last such second, so ``end_s - start_s`` is how long it
lasted; ``refused_seconds`` is how many of these seconds refused something. ``peak_at_s`` is the first of the seconds
with most messages refused. The lists are in order of messages, then name; those of clients, users and producer groups
hold the first few. It is open if its instance's log ends before the gap does."""
CULPRITS: Final = Table(
    "culprits",
    (
        *RESOURCE,
        *_WHO,
        "requests BIGINT",
        "messages BIGINT",
        "bytes BIGINT",
        "share DOUBLE",
        "rank INT",
        *_DAY,
    ),
)
"""Who was refused most on a day, for each resource: rank 1 and so on; ties by client, user, product, producer group."""
LIMITS: Final = Table(
    "limits",
    (*RESOURCE, *LIMIT_FIELDS, "seen_s BIGINT", *_DAY),
)
"""The rules for resources, as last recorded on a day. ``name`` is the pattern."""
LIMIT_CHANGES: Final = Table(
    "limit_changes",
    (
        "instance STRING",
        "run STRING",
        "n BIGINT",
        "at_s BIGINT",
        "change_id BIGINT",
        "action STRING",
        "kind STRING",
        "name STRING",
        "rate_before_per_s DOUBLE",
        "rate_after_per_s DOUBLE",
        "by STRING",
        "reason STRING",
        *_DAY,
    ),
)
"""As in the log."""
COVERAGE: Final = Table(
    "coverage",
    (
        "instance STRING",
        "run STRING",
        "hour_s BIGINT",
        "minutes BIGINT",
        "seconds BIGINT",
        "first_minute_s BIGINT",
        "last_minute_s BIGINT",
        "limiting_off_minutes BIGINT",
        "connections_max BIGINT",
        "bypassed_requests BIGINT",
        "other BIGINT",
        "lost_records BIGINT",
        "records BIGINT",
        "copies BIGINT",
        "first_n BIGINT",
        "last_n BIGINT",
        "newest_s BIGINT",
        "version STRING",
        *_DAY,
    ),
)
"""What is known of each run in each hour: minutes with a heartbeat and the seconds recorded in them. ``lost_records``
is what the run had lost so far by its own count (the largest of a run is its sum). ``records`` are those that begin in
the hour, each once, ``first_n`` to ``last_n`` their numbers: over a whole run, ``last_n - first_n + 1 - records`` are
missing. ``copies`` were there once more. ``newest_s`` is the last second that any of them is of."""
RECOMMENDATIONS: Final = "recommendations"
"""Its columns are ``kernels.SETTLED``."""

BY_DAY: Final = (MINUTES, HOURS, REFUSALS, STORMS, CULPRITS, LIMITS, LIMIT_CHANGES, COVERAGE)
TABLES: Final[Mapping[str, Table]] = {table.name: table for table in BY_DAY}


def arrow_type(sql: str) -> pa.DataType:
    """Return Arrow's type of a column's, as Spark exchanges it with Python."""
    if sql in _ARROW:
        return _ARROW[sql]
    outer, _, inner = sql.removesuffix(">").partition("<")
    parts = _split(inner)
    if outer == "ARRAY":
        return pa.list_(arrow_type(inner))
    if outer == "MAP":
        return pa.map_(arrow_type(parts[0]), arrow_type(parts[1]))
    return pa.struct([(name, arrow_type(type_)) for name, type_ in (part.split(": ", 1) for part in parts)])


def arrow_struct(columns: Iterable[str]) -> pa.StructType:
    """Return Arrow's type of rows of such columns."""
    return pa.struct([(name, arrow_type(type_)) for name, type_ in (column.split(" ", 1) for column in columns)])


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """Return Arrow's schema of such columns."""
    return pa.schema(list(arrow_struct(columns)))


_ARROW: Final = {
    "STRING": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(), "BINARY": pa.binary(),
}  # fmt: skip


def in_spark(schema: pa.Schema) -> "StructType":
    """Return Spark's schema of Arrow's. As words Java would have to parse it, which takes it its time."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - executors go without it

    return from_arrow_schema(schema)


def _split(inner: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(inner):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append(inner[begin:at].strip())
            begin = at + 1
    return [*parts, inner[begin:].strip()]


@dataclass(frozen=True)
class Days:
    """A range of days, both ends included; None is open."""

    first: date | None = None
    last: date | None = None

    def __contains__(self, day: object) -> bool:
        if not isinstance(day, date):
            return False
        return (self.first is None or self.first <= day) and (self.last is None or day <= self.last)

    @classmethod
    def of_seconds(cls, since_s: int | None, until_s: int | None) -> "Days":
        """Return the days that the seconds from ``since_s`` up to, without, ``until_s`` are in."""
        return cls(
            None if since_s is None else day_of(since_s),
            None if until_s is None else day_of(until_s - 1),
        )


def day_of(at_s: int) -> date:
    """Return the day, UTC, of a second."""
    return datetime.fromtimestamp(at_s, UTC).date()


class Store:
    """The tables of a report, in a directory or at an address.

    Args:
        session: of Spark.
        out: directory or address of all tables.
    """

    def __init__(self, session: "SparkSession", out: str) -> None:
        self._session, self._out = session, out
        self._is_address = "://" in out
        # What a killed report's Java process may still write lies elsewhere.
        self._where = f"{out}/{_SCRATCH}" + ("" if self._is_address else f"/{secrets.token_hex(4)}")
        self._aside = Path(self._where, "aside")

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """Give a place beside the tables for what a job needs while it runs.

        It is removed, also what a killed job left there; at an address its rows are, and an empty folder stays.
        """
        if not self._is_address:
            shutil.rmtree(Path(self._out, _SCRATCH), ignore_errors=True)
        try:
            yield self._where
        finally:
            if self._is_address:
                # With partitions, of which there is none, nothing is written.
                nothing = self._session.range(0).selectExpr("id", "id AS made").write.partitionBy("made")
                for name in ("combined", "judged"):
                    nothing.mode("overwrite").parquet(f"{self._where}/{name}")
            else:
                shutil.rmtree(Path(self._out, _SCRATCH), ignore_errors=True)

    def write(self, frames: Mapping[Table, "DataFrame"], days: Container[date]) -> None:
        """Replace days of tables: all are made first, and then put in place.

        Args:
            frames: the new rows of each table; all days of theirs are replaced.
            days: those of them of which there is no row are removed.

        Raises:
            OSError: they cannot be put in place.
        """
        # While one is planned another can be computed.
        for each in [beside(partial(self._write_days, frame, table)) for table, frame in frames.items()]:
            each.result()
        if not self._is_address and not self._aside.exists():
            raise StartError(
                f"{self._out}: Spark has written nothing there, so it runs elsewhere and has no such folder; give --out"
                " a folder that it shares, or an address"
            )
        for table in frames:
            if self._is_address:
                self._clear_days(frames[table], table, days)
            else:
                self._swap_days(table, days)

    def replace(self, frame: "DataFrame", name: str) -> None:
        """Write a table that is not by day; the one that is there stays until the new one is complete.

        Raises:
            OSError: it cannot be put in place.
        """
        if self._is_address:
            frame.write.mode("overwrite").parquet(f"{self._out}/{name}")
            return
        frame.write.mode("overwrite").parquet(str(self._aside / name))
        _swap(self._aside / name, Path(self._out, name))

    def path(self, name: str) -> str:
        """Return the directory or address of a table."""
        return f"{self._out}/{name}"

    def read(self, table: Table, days: Days = Days()) -> "DataFrame":
        """Read a table; of one that is not there, no rows.

        Args:
            table: which.
            days: only these.
        """
        frame = self._existing(f"{self._out}/{table.name}", table)
        if days.first is not None:
            frame = frame.where(f"dt >= DATE'{days.first.isoformat()}'")
        if days.last is not None:
            frame = frame.where(f"dt <= DATE'{days.last.isoformat()}'")
        return frame

    def _existing(self, path: str, table: Table) -> "DataFrame":
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - executors go without it
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it

        if self._is_address or next(Path(path).glob("dt=*/*.parquet"), None) is not None:
            try:
                return self._session.read.schema(table.schema).parquet(path)
            except AnalysisException:
                if not self._is_address:
                    raise
        nothing = (F.lit(None).cast(field.dataType).alias(field.name) for field in table.schema)
        return self._session.range(0).select(*nothing)

    def _rows(self, frame: "DataFrame", table: Table) -> "DataFrame":
        """Return the rows as they are written: with timestamps."""
        columns = (f"timestamp_seconds({name}) AS `{at}`" for name, at in table.moments.items())
        return frame.selectExpr(*(f"`{name}`" for name in table.names[:-1]), *columns, "dt")

    def _write_days(self, frame: "DataFrame", table: Table) -> None:
        rows = self._rows(frame, table)
        where = f"{self._out}/{table.name}" if self._is_address else str(self._aside / table.name)
        writer = rows.write.mode("overwrite").partitionBy("dt")
        # Otherwise rows are sorted by day first.
        writer = writer.option("maxRecordsPerFile", 0).option("parquet.block.size", _WRITTEN_BYTES)
        writer.option("partitionOverwriteMode", "dynamic" if self._is_address else "static").parquet(where)

    def _swap_days(self, table: Table, days: Container[date]) -> None:
        there = Path(self._out, table.name)
        there.mkdir(parents=True, exist_ok=True)
        made = {path.name for path in (self._aside / table.name).glob("dt=*")}
        for name in sorted(made):
            _swap(self._aside / table.name / name, there / name)
        for path in list(there.glob("dt=*")):
            if path.name not in made and _day_in(path.name, days):
                gone = self._aside / f"{table.name}-{path.name}"
                path.rename(gone)
        sync_directory(there)

    def _clear_days(self, frame: "DataFrame", table: Table, days: Container[date]) -> None:
        """Empty the days that there is nothing of any more: at an address, Spark replaces only those with rows."""
        made = {row["dt"] for row in frame.select("dt").distinct().collect()}
        there = self._existing(f"{self._out}/{table.name}", table)
        for row in there.select("dt").distinct().collect():
            if row["dt"] not in made and row["dt"] in days:
                path = f"{self._out}/{table.name}/dt={row['dt'].isoformat()}"
                there.drop("dt").limit(0).write.mode("overwrite").parquet(path)


def _swap(new: Path, old: Path) -> None:
    """Put a directory in another's place, at once where the file system can; the other one is where this one was.

    Raises:
        OSError: it cannot be.
    """
    if not old.exists():
        old.parent.mkdir(parents=True, exist_ok=True)
        new.rename(old)
        return
    if _exchange(new, old):
        return
    gone = new.with_name(f"{new.name}.old")
    old.rename(gone)
    new.rename(old)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories exchange their names (Linux's ``renameat2``); False where that is not possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        renameat2 = libc.renameat2
    except AttributeError:
        return False
    done = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return bool(done == 0)


_WRITTEN_BYTES: Final = 32 * 1024 * 1024
"""Of a file so much is held until it is written, for each task that writes."""
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_SCRATCH: Final = "_scratch"


def _day_in(name: str, days: Container[date]) -> bool:
    try:
        return date.fromisoformat(name.removeprefix("dt=")) in days
    except ValueError:
        return False
