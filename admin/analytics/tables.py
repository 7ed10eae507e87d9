"""The Parquet tables of a report: what is in them, how they are written, how they are read.

A table lies in ``OUT/<table>/dt=<day>/*.parquet``. The day (UTC) is that on which the period of a row begins. Readers
that use this pattern never see the remains of a killed job: Spark writes aside and moves whole days. A run replaces the
days of its range and leaves all others, so it can be repeated.

Times are whole seconds since 1970 UTC. Shares are between 0 and 1.
"""

import errno
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from admin.analytics.reading import LIMIT, OUTCOMES, SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCRATCH: Final = "_scratch"

RESOURCE: Final = ("instance STRING", "kind STRING", "name STRING")
"""What limits are of: each instance has its own."""
RESOURCE_KEY: Final = ("instance", "kind", "name")
_WHO: Final = ("client STRING", "user STRING", "product STRING", "producer_group STRING")
WHO_KEY: Final = tuple(field.split()[0] for field in _WHO)
"""Who was refused; all but the client may be empty."""
_DAY: Final = ("dt DATE",)
LIMIT_FIELDS: Final = tuple(field for field in LIMIT if field not in {"kind STRING", "name STRING"})
LIMIT_KEY: Final = tuple(field.split()[0] for field in LIMIT_FIELDS)
_AMOUNTS: Final = tuple(
    f"{outcome}_{what} BIGINT" for outcome in OUTCOMES for what in ("requests", "messages", "bytes")
)
AMOUNTS: Final = tuple(field.split()[0] for field in _AMOUNTS)
_SHARES: Final = "ARRAY<STRUCT<name: STRING, messages: BIGINT, share: DOUBLE>>"
_TRAFFIC: Final = (
    *_AMOUNTS,
    "busy_answers BIGINT",
    "languages MAP<STRING, STRUCT<requests: BIGINT, refused: BIGINT>>",
    "clients BIGINT",
    "more_clients BOOLEAN",
    *LIMIT_FIELDS,
)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: of its folder.
        columns: as ``name TYPE``, ``dt`` last if it has days.
        order: how rows are sorted within a file, so that readers can skip most of it.
    """

    name: str
    columns: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def ddl(self) -> str:
        """The schema, as Spark reads it."""
        return ", ".join(self.columns)


MINUTES: Final = Table(
    "minutes",
    (
        *RESOURCE,
        "minute_s BIGINT",
        *_TRAFFIC,
        "second ARRAY<INT>",
        *(f"{seconds} ARRAY<BIGINT>" for seconds in SECONDS),
        "demand_messages BIGINT",
        "demand_peak_per_s BIGINT",
        "refused_peak_per_s BIGINT",
        "wait_max_us BIGINT",
        *_DAY,
    ),
    ("instance", "kind", "name", "minute_s"),
)
"""One row for each resource and minute with requests. ``demand_messages`` is what reached the broker
(admitted, shadowed, bypassed, exempt) and what did not (refused, dropped); ``demand_peak_per_s`` and
``refused_peak_per_s`` are of its busiest second. The limit is the one at the end of the minute. Several records of the
minute add up; ``clients`` is then the largest of them, and ``more_clients`` is set."""
HOURS: Final = Table(
    "hours",
    (
        *RESOURCE,
        "hour_s BIGINT",
        "minutes BIGINT",
        *_TRAFFIC,
        "demand_messages BIGINT",
        "demand_peak_per_s BIGINT",
        "demand_peak_per_minute BIGINT",
        "refused_peak_per_s BIGINT",
        "wait_max_us BIGINT",
        *_DAY,
    ),
    ("instance", "kind", "name", "hour_s"),
)
"""Sums of ``minutes``; the column ``minutes`` is their number. ``clients`` is that of the minute with the most clients,
and the limit is that of the last minute."""
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
    ("instance", "kind", "name", "hour_s", *WHO_KEY, "rule", "verdict"),
)
"""What rules did, by client, user, product, producer group and hour."""
STORMS: Final = Table(
    "storms",
    (
        *RESOURCE,
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
    ("instance", "kind", "name", "start_s"),
)
"""Refusals of one resource whose seconds are at most the gap apart. ``end_s`` is the end of the last such second, so
``end_s - start_s`` is how long it lasted; ``refused_seconds`` is how many of these seconds refused something.
``peak_at_s`` is the first of the seconds with most messages refused. The lists are in order of messages, then name;
those of clients, users and producer groups hold the first few. It is open if its instance's log ends before the gap
does."""
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
    ("instance", "kind", "name", "rank"),
)
"""Who was refused most on a day, for each resource: rank 1 and so on; ties by client, user, product, producer group."""
LIMITS: Final = Table(
    "limits",
    (*RESOURCE, *LIMIT_FIELDS, "seen_s BIGINT", *_DAY),
    ("instance", "kind", "name", "rule"),
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
    ("instance", "at_s", "run", "n"),
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
        "first_n BIGINT",
        "last_n BIGINT",
        "version STRING",
        *_DAY,
    ),
    ("instance", "hour_s", "run"),
)
"""What is known of each run in each hour: minutes with a heartbeat and the seconds recorded in them. ``lost_records``
is what the run had lost so far by its own count (the largest of a run is its sum). ``records`` are those that begin in
the hour, ``first_n`` to ``last_n`` their numbers: over a whole run, ``last_n - first_n + 1 - records`` are missing."""
RECOMMENDATIONS: Final = "recommendations"
"""Its columns are ``recommend``'s."""

BY_DAY: Final = (MINUTES, HOURS, REFUSALS, STORMS, CULPRITS, LIMITS, LIMIT_CHANGES, COVERAGE)
"""What ``derive`` makes."""
TABLES: Final[Mapping[str, Table]] = {table.name: table for table in BY_DAY}


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


def write(frame: "DataFrame", out: str, table: Table, days: Container[date]) -> None:
    """Replace days of a table.

    A job that is killed in here leaves whole days only, old ones or new ones; the next run puts it right.

    Args:
        frame: the new rows; all days of theirs are replaced.
        out: directory or address of all tables.
        table: which.
        days: those of them of which there is no row are removed.
    """
    folder = _Folder(frame.sparkSession, f"{out}/{table.name}")
    folder.clean()
    before = folder.days()
    rows = frame.select(*(column.split()[0] for column in table.columns))
    (
        rows.hint("rebalance", "dt")
        .sortWithinPartitions("dt", *table.order)
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        .option("compression", "zstd")
        .partitionBy("dt")
        .parquet(folder.path)
    )
    # A day that was replaced has files of other names.
    for day, files in folder.days().items():
        if files and files == before.get(day) and day in days:
            folder.remove(f"dt={day.isoformat()}")


def overwrite(frame: "DataFrame", folder: str, *partitions: str) -> None:
    """Write rows as Parquet in place of all that is in a folder.

    Args:
        frame: the rows.
        folder: directory or address.
        partitions: columns that make a folder of their own for each value.
    """
    writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "static").option("compression", "zstd")
    writer.partitionBy(*partitions).parquet(folder)


def replace(frame: "DataFrame", out: str, name: str) -> str:
    """Write a table that is not by day; the one that is there stays until the new one is complete.

    Args:
        frame: the rows.
        out: directory or address of all tables.
        name: of the table.

    Returns:
        its directory or address.
    """
    folder, aside = _Folder(frame.sparkSession, out), f"_{name}"
    overwrite(frame, f"{out}/{aside}")
    folder.remove(name)
    folder.rename(aside, name)
    return f"{out}/{name}"


def read(session: "SparkSession", out: str, table: Table, days: Container[date] = Days()) -> "DataFrame":
    """Read a table; of one that is not there, no rows.

    Args:
        session: of Spark.
        out: directory or address of all tables.
        table: which.
        days: only these.
    """
    folder = _Folder(session, f"{out}/{table.name}")
    found = [
        f"{folder.path}/dt={day.isoformat()}/*.parquet" for day, files in folder.days().items() if files and day in days
    ]
    if not found:
        # Made by Java alone; an empty list would start Python on the executors.
        columns = (column.split(" ", 1) for column in table.columns)
        return session.range(0).selectExpr(*(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in columns))
    return session.read.schema(table.ddl).option("basePath", folder.path).parquet(*found)


@contextmanager
def scratch(session: "SparkSession", out: str) -> Iterator[str]:
    """Give a place beside the tables for what a job needs while it runs, and remove it; also what a killed one left.

    Args:
        session: of Spark.
        out: directory or address of all tables.
    """
    folder = _Folder(session, out)
    folder.remove(_SCRATCH)
    try:
        yield f"{out}/{_SCRATCH}"
    finally:
        folder.remove(_SCRATCH)


class _Folder:
    """A table's folder, wherever Spark can write: the names of its files, and removing them."""

    def __init__(self, session: "SparkSession", path: str) -> None:
        self.path = path
        jvm: Any = session._jvm  # noqa: SLF001 - the file systems that Spark knows have no other way in
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files = self._path(path).getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001

    def names(self, below: str = "") -> tuple[str, ...]:
        """Return what is in the folder, or in one below; nothing if it is not there."""
        path = self._path(f"{self.path}/{below}" if below else self.path)
        if not self._files.exists(path):
            return ()
        return tuple(sorted(str(status.getPath().getName()) for status in self._files.listStatus(path)))

    def days(self) -> dict[date, frozenset[str]]:
        """Return the days that are there with their files of rows."""
        found = {}
        for name in self.names():
            if name.startswith("dt="):
                try:
                    day = date.fromisoformat(name.removeprefix("dt="))
                except ValueError:
                    continue
                found[day] = frozenset(file for file in self.names(name) if file.endswith(".parquet"))
        return found

    def remove(self, below: str) -> None:
        """Remove a folder in this one and all that is in it."""
        self._files.delete(self._path(f"{self.path}/{below}"), True)

    def rename(self, before: str, after: str) -> None:
        """Give something in this folder another name.

        Raises:
            OSError: it did not work.
        """
        if not self._files.rename(self._path(f"{self.path}/{before}"), self._path(f"{self.path}/{after}")):
            raise OSError(errno.EIO, f"cannot be renamed to {after}", f"{self.path}/{before}")

    def clean(self) -> None:
        """Remove what jobs that were killed have left."""
        for name in self.names():
            if name.startswith((".spark-staging-", "_temporary")):
                self.remove(name)
