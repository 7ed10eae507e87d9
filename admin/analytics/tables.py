"""Defines, writes and reads a report's Parquet tables.

Files are ``OUT/<table>/dt=<day>/*.parquet``. A row belongs to the UTC day on which its period starts. Times are whole
seconds since 1970 UTC. The columns ``…_at`` contain the same times as TIMESTAMPs. Shares are between 0 and 1. A report
replaces the days in its period.
"""

import shutil
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import inspect, structs
from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_type

from admin.rejection_log.records import LimitFields
from limiter.counting.rejections import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RESOURCE: Final = "instance STRING, kind STRING, name STRING"
RESOURCE_KEY: Final = ("instance", "kind", "name")  # a fleet's shared limits have their own instance
WHO_KEY: Final = ("client", "user", "product", "producer_group")
NAMED: Final = {"rules": "rule", "clients": "client", "users": "user", "producer_groups": "producer_group"}
"""Maps each list of shares in a storm to its column of refusals."""
SECONDS: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes", "second_repeated")
"""Lists parallel to ``second``, except that the last one is empty if all its values are 0."""
_WHO: Final = ", ".join(f"{name} STRING" for name in WHO_KEY)


def arrow_type(info: inspect.Type) -> pa.DataType:
    match info:
        case inspect.UnionType():
            return arrow_type(info.types[0])
        case inspect.IntType():
            return pa.int64()
        case inspect.FloatType():
            return pa.float64()
        case inspect.BoolType():
            return pa.bool_()
        case inspect.VarTupleType() | inspect.TupleType() | inspect.StructType():
            return pa.list_(pa.int64())
        case inspect.DictType(value_type=value):
            return pa.map_(pa.string(), arrow_type(value))
    return pa.string()


_OF_LIMIT: Final = [field for field in structs.fields(LimitFields) if not field.required]
LIMIT_FIELDS: Final = tuple(each.name for each in _OF_LIMIT)
_LIMIT: Final = ", ".join(
    f"{each.name} {from_arrow_type(arrow_type(inspect.type_info(each.type))).simpleString().upper()}"
    for each in _OF_LIMIT
)
AMOUNTS: Final = tuple(
    f"{outcome}_{what}" for outcome in (*OUTCOMES, "repeated") for what in ("requests", "messages", "bytes")
)
_REFUSED: Final = "requests BIGINT, messages BIGINT, bytes BIGINT, wait_max_us BIGINT"
_SHARES: Final = "ARRAY<STRUCT<name: STRING, messages: BIGINT, share: DOUBLE>>"
_MOMENTS: Final = ("minute", "start", "flood", "end", "peak_at", "at", "seen", "hour", "first_minute", "last_minute")


@dataclass(frozen=True)
class Table:
    name: str
    columns: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.split()[0] for column in _columns(self.columns))

    @property
    def moments(self) -> dict[str, str]:
        """Maps each column that holds a time in seconds to the name of its TIMESTAMP column."""
        names = [name for name in self.names if name.endswith("_s") and name.removesuffix("_s") in _MOMENTS]
        return {name: name.removesuffix("_s") + ("" if name.endswith("at_s") else "_at") for name in names}

    @property
    def ddl_columns(self) -> tuple[str, ...]:
        *columns, day = _columns(self.columns)
        return (*columns, *(f"{name} TIMESTAMP" for name in self.moments.values()), day)


def _columns(ddl: str) -> list[str]:
    parts, depth = [""], 0
    for character in ddl:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


MINUTES: Final = Table(
    "minutes",
    f"{_RESOURCE}, minute_s BIGINT, {', '.join(f'{name} BIGINT' for name in AMOUNTS)}, identified BIGINT,"
    " busy_answers BIGINT, languages MAP<STRING, STRUCT<requests: BIGINT, refused: BIGINT>>, clients BIGINT,"
    f" more_clients BOOLEAN, {_LIMIT}, second ARRAY<BIGINT>, second_admitted ARRAY<BIGINT>,"
    " second_refused ARRAY<BIGINT>, second_requests ARRAY<BIGINT>, second_bytes ARRAY<BIGINT>,"
    " second_repeated ARRAY<BIGINT>, second_shadowed ARRAY<BIGINT>, demand_messages BIGINT, demand_peak_per_s BIGINT,"
    " refused_peak_per_s BIGINT, wait_max_us BIGINT, dt DATE",
)
"""One row for each resource and minute with requests. Counts are the sums of all records of the minute.
``demand_messages`` counts the messages that were forwarded to the broker (admitted, shadowed, bypassed, exempt) and
those that were not (refused, dropped). ``demand_peak_per_s`` and ``refused_peak_per_s`` are the values of the busiest
second. ``second_shadowed`` counts messages that only shadow limits would have refused. ``second_repeated`` counts
repeats of recently refused messages. Both are empty if all values are 0. The limit is the one at the end of the minute.
If more than one run recorded the minute, ``clients`` is the largest count of a run, and ``more_clients`` is set.
"""
REFUSALS: Final = Table(
    "refusals", f"{_RESOURCE}, at_s BIGINT, {_WHO}, rule STRING, verdict STRING, {_REFUSED}, dt DATE"
)
"""Requests that a rule refused or held, or that a shadow rule would have refused, per second and caller. A caller is a
combination of client, user, product and producer group.
"""
STORMS: Final = Table(
    "storms",
    f"{_RESOURCE}, shadow BOOLEAN, start_s BIGINT, end_s BIGINT, {_REFUSED}, refused_seconds BIGINT,"
    f" peak_per_s BIGINT, peak_at_s BIGINT, rules {_SHARES}, clients {_SHARES}, users {_SHARES},"
    f" producer_groups {_SHARES}, client_count BIGINT, user_count BIGINT, producer_group_count BIGINT,"
    " is_open BOOLEAN, flood_s BIGINT, sidecars BIGINT, dt DATE",
)
"""A storm is a series of refusals of one resource without a pause longer than ``--storm-gap``. If ``shadow`` is set,
nothing was refused, but a shadow limit would have refused the messages. ``end_s`` is the end of the last second with a
refusal, and ``refused_seconds`` is the number of such seconds. ``peak_at_s`` is the first second with the most refused
messages. Lists are sorted by messages, then by name. Lists of callers contain only the first few. ``is_open`` is set if
the log ends too soon to tell whether the storm was over. A resource's storms on different sidecars have the same
``flood_s`` if no pause separates them, and ``sidecars`` is the number of these sidecars.
"""
CULPRITS: Final = Table(
    "culprits",
    f"{_RESOURCE}, {_WHO}, requests BIGINT, messages BIGINT, bytes BIGINT, share DOUBLE, rank INT, dt DATE",
)
"""The callers with the most refused messages, for each resource and day. Ranks begin at 1. Ties are ranked by client,
user, product and producer group.
"""
LIMITS: Final = Table("limits", f"{_RESOURCE}, {_LIMIT}, seen_s BIGINT, dt DATE")
"""The rules for resources, as last recorded on each day. ``name`` is the rule's pattern."""
LIMIT_CHANGES: Final = Table(
    "limit_changes",
    "instance STRING, run STRING, n BIGINT, at_s BIGINT, change_id BIGINT, action STRING, kind STRING, name STRING,"
    " rate_before_per_s DOUBLE, rate_after_per_s DOUBLE, fair_by_before STRING, fair_by_after STRING, by STRING,"
    " reason STRING, dt DATE",
)
"""Changes that were made to limits at run time."""
COVERAGE: Final = Table(
    "coverage",
    "instance STRING, run STRING, hour_s BIGINT, minutes BIGINT, seconds BIGINT, first_minute_s BIGINT,"
    " last_minute_s BIGINT, limiting_off_minutes BIGINT, connections_max BIGINT, bypassed_requests BIGINT,"
    " other BIGINT, lost_records BIGINT, records BIGINT, copies BIGINT, first_n BIGINT, last_n BIGINT,"
    " newest_s BIGINT, version STRING, killed_run STRING, fleet STRING, dt DATE",
)
"""The time that each run recorded in each hour. ``minutes`` counts the minutes with a heartbeat, and ``seconds`` counts
the seconds recorded in them. A minute has more than 60 seconds if the clock was set back. ``lost_records`` counts the
records that the run had lost so far, so its largest value is the total. ``records`` counts the distinct records that
begin in the hour, numbered from ``first_n`` to ``last_n``, and ``copies`` counts duplicates. Over a complete run,
``last_n - first_n + 1 - records`` records are missing. ``newest_s`` is the last second that a record covers.
``killed_run`` is the previous run if it was killed. ``fleet`` is the run's fleet, if any.
"""
BY_DAY: Final = (MINUTES, REFUSALS, STORMS, CULPRITS, LIMITS, LIMIT_CHANGES, COVERAGE)


@dataclass(frozen=True)
class Days:
    """An inclusive range of UTC days. None means unbounded."""

    first: date | None = None
    last: date | None = None

    def __contains__(self, day: object) -> bool:
        return isinstance(day, date) and (self.first or day) <= day <= (self.last or day)

    @classmethod
    def of_seconds(cls, since_s: int | None, until_s: int | None) -> "Days":
        return cls(None if since_s is None else day_of(since_s), None if until_s is None else day_of(until_s - 1))


ALL_DAYS: Final = Days()


def day_of(at_s: int) -> date:
    return datetime.fromtimestamp(at_s, UTC).date()


class Store:
    def __init__(self, session: "SparkSession", out: str) -> None:
        self._session, self._out = session, out
        self._is_address = "://" in out

    def path(self, name: str) -> str:
        return f"{self._out}/{name}"

    def write(self, frame: "DataFrame", table: Table, days: Container[date]) -> None:
        """Replace the stored days that ``frame`` has rows for. Delete the days in ``days`` that it has no rows for."""
        moments = (f"timestamp_seconds({name}) AS `{at}`" for name, at in table.moments.items())
        rows = frame.selectExpr(*(f"`{name}`" for name in table.names[:-1]), *moments, "dt")
        made = Observation()
        writer = rows.observe(made, F.expr("collect_set(dt) AS days")).write.mode("overwrite").partitionBy("dt")
        # A maximum would make Spark sort rows by day. Blocks are small, because each task keeps one in memory.
        writer = writer.option("maxRecordsPerFile", 0).option("parquet.block.size", 32 * 1024 * 1024)
        there = self._days(table)
        writer.option("partitionOverwriteMode", "dynamic").parquet(self.path(table.name))
        for day in there - set(made.get["days"]):
            if day in days:
                self._remove(table, day)

    def read(self, table: Table, days: Days = ALL_DAYS) -> "DataFrame":
        """Return a table, or an empty one if it does not exist."""
        ddl = ", ".join(table.ddl_columns)
        frame = None
        if self._is_address or next(Path(self.path(table.name)).glob("dt=*/*.parquet"), None) is not None:
            with suppress(*([AnalysisException] if self._is_address else [])):
                found = self._session.read.schema(ddl).parquet(self.path(table.name))
                # Spark Connect detects a missing table only when the schema is used.
                frame = found if found.schema else None
        frame = self._session.createDataFrame([], ddl) if frame is None else frame
        if days.first is not None:
            frame = frame.where(f"dt >= DATE'{days.first.isoformat()}'")
        if days.last is not None:
            frame = frame.where(f"dt <= DATE'{days.last.isoformat()}'")
        return frame

    def _days(self, table: Table) -> set[date]:
        if self._is_address:
            return {row["dt"] for row in self.read(table).select("dt").distinct().collect()}
        found = set()
        for path in Path(self.path(table.name)).glob("dt=*"):
            with suppress(ValueError):
                found.add(date.fromisoformat(path.name.removeprefix("dt=")))
        return found

    def _remove(self, table: Table, day: date) -> None:
        path = f"{self.path(table.name)}/dt={day.isoformat()}"
        if self._is_address:
            self.read(table).drop("dt").limit(0).write.mode("overwrite").parquet(path)
        else:
            shutil.rmtree(path)
