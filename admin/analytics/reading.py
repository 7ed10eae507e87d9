"""From lines of the log to records: what each line says, what could not be understood, and each record once.

``parse`` is the same for a batch and for a stream. No Python runs on a row.
"""

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.rejection_log.records import VERSION, AnyRecord, LimitFields, Record
from limiter.counting.rejections import Amount, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The lines of the rejection log as Spark reads them.
#
# ``admin.rejection_log.records`` is the definition of the format: every field of every record is here, by the same
# name. A line is read with all fields of all types, since Spark reads a line once only that way; what does not belong
# to a record's type is null.
VERSIONS: Final = (VERSION,)
"""Versions of the lines that are understood."""

_NARROW: Final = {"v": "INT", "seconds": "INT", "second": "ARRAY<INT>"}
_SQL: Final = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", Amount: "ARRAY<BIGINT>"}


def _columns(record: type[msgspec.Struct], without: Container[str] = ()) -> tuple[str, ...]:
    """Return the fields of a record as ``name TYPE``."""
    return tuple(
        f"{each.name} {_NARROW.get(each.name) or _sql(each.type)}"
        for each in msgspec.structs.fields(record)
        if each.name not in without
    )


def _sql(type_: Any) -> str:
    """Return Spark's name of a type; what may be None is null there."""
    origin, args = get_origin(type_), get_args(type_)
    if origin is UnionType:
        return _sql(args[0])
    if origin is tuple:
        return f"ARRAY<{_sql(args[0])}>"
    return f"MAP<STRING, {_sql(args[1])}>" if origin is dict else _SQL.get(type_, "STRING")


HEAD: Final = _columns(Record)
"""What every record has."""
_IN_HEAD: Final = frozenset(Record.__struct_fields__)
LIMIT: Final = _columns(LimitFields, _IN_HEAD)
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)
"""Each an amount: requests, messages, bytes."""
SECONDS: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes")
"""Lists beside ``second``, as long as it is."""
TYPES: Final[dict[str, tuple[str, ...]]] = {
    str(record.__struct_config__.tag): _columns(record, _IN_HEAD) for record in get_args(AnyRecord)
}
"""The types of records, each with its fields besides those of all."""
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    str(record.__struct_config__.tag): tuple(
        each.name for each in msgspec.structs.fields(record) if each.required and each.name not in _IN_HEAD
    )
    for record in get_args(AnyRecord)
}
"""What a record of this type cannot do without; whatever else is left out has its default."""


_FIELDS: Final = tuple(dict.fromkeys(field for group in (("type STRING", *HEAD), *TYPES.values()) for field in group))
"""The fields of all types together, each once, as ``name TYPE``."""
_NAMES: Final = tuple(field.split()[0] for field in _FIELDS)
RECORDS: Final = ", ".join((*_FIELDS, "file STRING"))
"""What parsed records are, as a DDL schema; ``file`` is the one they were read from."""
BAD: Final = "file STRING, reason STRING, line STRING"
"""What could not be understood: where it was, why not, and the beginning of the line."""


LARGEST: Final = 10**12
"""No count of one record is larger: more would be a broken line, and sums of these cannot overflow."""
_LAST_S: Final = 253_402_300_799
"""End of the year 9999."""
_BLOCK_BYTES: Final = 16 * 1024 * 1024
_SHOWN: Final = 200
"""Characters of a bad line that are kept."""
_BAD_TYPE: Final = "_bad"
_CORRUPT: Final = "_corrupt_record"


@dataclass(frozen=True)
class Parsed:
    """What lines say.

    Attributes:
        records: as ``RECORDS``. Duplicates are still in it.
        bad: as ``BAD``.
    """

    records: "DataFrame"
    bad: "DataFrame"


@dataclass(frozen=True)
class Staged:
    """What lines said, written down.

    Attributes:
        parsed: the records and the bad lines, as they are read from there.
        records: how many records there are.
        bad: how many bad lines.
        wanted: how many of the records were asked for.
        first_s: second of the first record; None without records.
        last_s: second of the last one.
    """

    parsed: Parsed
    records: int
    bad: int
    wanted: int
    first_s: int | None
    last_s: int | None


def read_lines(session: "SparkSession", paths: list[str]) -> "DataFrame":
    """Return the lines of files as ``value`` and the file of each as ``file``.

    Args:
        session: of Spark.
        paths: files; at least one.
    """
    lines = session.read.option("ignoreCorruptFiles", "true").option("ignoreMissingFiles", "true").text(paths)
    return lines.select("value", F.col("_metadata.file_path").alias("file"))


def written(lines: "DataFrame") -> "DataFrame":
    """Return the lines that are not blank."""
    # Trimming at the end would look at all of each line.
    return lines.where(r"trim(LEADING ' \t\r' FROM value) != ''")


def parse(lines: "DataFrame") -> Parsed:
    """Read lines; blank ones are nothing.

    Args:
        lines: ``value`` and ``file``.
    """
    return _parted(_judged(lines))


def stage(lines: "DataFrame", folder: str, wanted: str = "true") -> Staged:
    """Read lines once and write what they say as Parquet, from which each table is made faster than from lines.

    Args:
        lines: ``value`` and ``file``.
        folder: directory or address; what is there is replaced.
        wanted: a condition on records, in SQL; how many meet it is counted on the way.
    """
    from pyspark.sql import Observation  # noqa: PLC0415 - beside the session that it needs

    seen, good = Observation(), "_why IS NULL"
    judged = _judged(lines).observe(
        seen,
        F.expr(f"count_if({good}) AS records"),
        F.expr(f"count_if(NOT {good}) AS bad"),
        F.expr(f"count_if({good} AND {wanted}) AS wanted"),
        F.expr(f"min(IF({good}, at_s, NULL)) AS first_s"),
        F.expr(f"max(IF({good}, at_s, NULL)) AS last_s"),
    )
    said = _written(judged, folder)
    return Staged(_parted(said), **seen.get)


def restage(records: "DataFrame", folder: str) -> "DataFrame":
    """Write records as Parquet and return them from there, as ``stage`` does.

    Args:
        records: as ``RECORDS``.
        folder: directory or address; what is there is replaced.
    """
    good = records.selectExpr("*", "CAST(NULL AS STRING) AS _why", "CAST(NULL AS STRING) AS _line")
    return _parted(_written(good, folder)).records


def _written(judged: "DataFrame", folder: str) -> "DataFrame":
    """Write what ``_judged`` returns, and return it from there."""
    (
        judged.withColumn("type", F.expr(f"IF(_why IS NULL, type, '{_BAD_TYPE}')"))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "static")
        # Each task writes files of all types at once, and each of these buffers so much.
        .option("parquet.block.size", _BLOCK_BYTES)
        .partitionBy("type")
        .parquet(folder)
    )
    return judged.sparkSession.read.schema(f"{RECORDS}, _why STRING, _line STRING").parquet(folder)


def _parted(judged: "DataFrame") -> Parsed:
    return Parsed(
        judged.where(f"_why IS NULL AND type != '{_BAD_TYPE}'").select(*_NAMES, "file"),
        judged.where("_why IS NOT NULL").selectExpr("file", "_why AS reason", "_line AS line"),
    )


def _judged(lines: "DataFrame") -> "DataFrame":
    """Return what lines say, with ``_why`` one is bad and its beginning as ``_line``, or null for both."""
    said = F.from_json(
        "value",
        f"{', '.join(_FIELDS)}, {_CORRUPT} STRING",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    # A generator, since Spark would otherwise copy the reading of the line into every place that looks at a field.
    return (
        written(lines)
        .select("value", "file", F.inline(F.array(said)))
        .withColumn("_why", F.expr(_REASON))
        .selectExpr(
            *_NAMES,
            "file",
            "_why",
            f"IF(_why IS NULL, NULL, left(make_valid_utf8(value), {_SHOWN})) AS _line",
        )
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(repr(value) for value in values)


def _within(name: str) -> str:
    return f"coalesce({name}, 0) BETWEEN 0 AND {LARGEST}"


def _counts(names: Iterable[str]) -> str:
    return " AND ".join(f"array_min({name}) >= 0 AND array_max({name}) <= {LARGEST}" for name in names)


def _no_nulls(names: Iterable[str]) -> str:
    return " AND ".join(f"coalesce(array_position(transform({name}, x -> x IS NULL), true), 0) = 0" for name in names)


_AMOUNTS_FIT: Final = " AND ".join(f"({name} IS NULL OR size({name}) = 3 AND {_counts([name])})" for name in OUTCOMES)
_SECONDS_FIT: Final = f"""CASE WHEN second IS NULL OR size(second) = 0 THEN
        {" AND ".join(f"coalesce(size({name}), 0) <= 0" for name in SECONDS)}
    ELSE size(second) <= 60 AND array_min(second) >= 0 AND array_max(second) < 60 AND {_counts(SECONDS)} AND
        {" AND ".join(f"size({name}) = size(second)" for name in SECONDS)} END"""
# Looking at each element is slow, and hardly any line says null at all.
_LISTS_FULL: Final = f"(NOT contains(value, 'null') OR {_no_nulls((*OUTCOMES, 'second', *SECONDS))})"
# A second record glued to the first would go unread, since Spark stops at the end of the first. Most lines have one
# brace, at the end, which is looked for in bytes, as that is quicker than by character.
_READ: Final = f"""{_CORRUPT} IS NULL AND
    (NOT contains(substring(CAST(value AS BINARY), 1, octet_length(value) - 1), X'7D') AND endswith(value, '}}')
        OR coalesce(json_array_length(concat('[', value, ']')) = 1, false))"""
_COMPLETE: Final = f"""instance IS NOT NULL AND run IS NOT NULL AND n IS NOT NULL AND at_s IS NOT NULL AND CASE type
    {
    " ".join(
        f"WHEN '{kind}' THEN {' AND '.join(f'{name} IS NOT NULL' for name in names)}"
        for kind, names in REQUIRED.items()
    )
} END"""
_PLAUSIBLE: Final = f"""(n >= 1 AND at_s BETWEEN 0 AND {_LAST_S} AND CASE type
    WHEN 'rejection' THEN verdict IN ('refuse', 'shadow', 'hold') AND
        {" AND ".join(_within(name) for name in ("requests", "messages", "bytes", "wait_max_us"))}
    WHEN 'traffic' THEN at_s % 60 = 0 AND {_within("busy_answers")} AND {_within("clients")}
        AND {_AMOUNTS_FIT} AND {_SECONDS_FIT} AND {_LISTS_FULL}
    WHEN 'heartbeat' THEN seconds BETWEEN 0 AND 60 AND
        {" AND ".join(_within(name) for name in ("connections", "other", "lost_records"))}
    ELSE true END)"""


_REASON: Final = f"""CASE
    WHEN NOT is_valid_utf8(value) THEN 'not UTF-8'
    WHEN NOT ({_READ}) THEN 'not one JSON object with fields of the right types'
    WHEN v IS NULL THEN 'no schema version'
    WHEN v NOT IN ({_listed(VERSIONS)}) THEN concat('schema version ', v)
    WHEN type IS NULL OR type NOT IN ({_listed(REQUIRED)}) THEN 'unknown type of record'
    WHEN NOT ({_COMPLETE}) THEN 'a field is missing'
    WHEN NOT coalesce({_PLAUSIBLE}, false) THEN 'a value is out of range' END"""


_PART_BITS: Final = 16
"""Copies are dropped from parts of a run with this many numbers, as a power of two, and only where there are some."""


@dataclass(frozen=True)
class Distinct:
    """Records, each once.

    Attributes:
        records: these.
        dropped: how many were there once more.
    """

    records: "DataFrame"
    dropped: int


def distinct(records: "DataFrame") -> Distinct:
    """Leave out records whose ``run`` and ``n`` are there already; runs a small job to see whether there are any.

    Within a run numbers are taken in blocks of 64, one bit each, so that a record more than once shows as a block with
    fewer bits than records. Only the parts of runs that have such blocks are shuffled.

    Args:
        records: as ``RECORDS``; read twice, so rather from a cache or from Parquet than from lines.
    """
    words = (
        records.groupBy("run", F.expr("shiftright(n, 6)").alias("word"))
        .agg(F.count("*").alias("records"), F.expr("bit_or(shiftleft(1L, cast(n & 63 AS INT)))").alias("bits"))
        .where(F.expr("records > bit_count(bits)"))
    )
    part = f"shiftright(n, {_PART_BITS})"
    found = (
        words.groupBy("run", F.expr(f"shiftright(word, {_PART_BITS - 6})").alias("part"))
        .agg(F.expr("sum(records - bit_count(bits))").alias("more"))
        .collect()
    )
    if not found:
        return Distinct(records, 0)
    # As text, and made by Java alone: a list of rows would start Python on the executors.
    text = "\n".join(json.dumps({"run": row["run"], "part": row["part"]}) for row in found)
    listed = records.sparkSession.range(1).select(F.explode(F.split(F.lit(text), "\n")).alias("line"))
    marks = F.broadcast(listed.select(F.from_json("line", "run STRING, part BIGINT").alias("m")).select("m.*"))
    keyed = records.withColumn("part", F.expr(part))
    single = keyed.join(marks, ["run", "part"], "left_anti")
    # Of equal ones that of the first file, so that it is the same each time.
    chosen = keyed.join(marks, ["run", "part"], "left_semi")
    columns = [F.col(name) for name in records.columns if name not in {"run", "n"}]
    first = (
        chosen.groupBy("run", "n").agg(F.min_by(F.struct(*columns), F.col("file")).alias("r")).select("run", "n", "r.*")
    )
    return Distinct(
        single.select(*records.columns).unionByName(first.select(*records.columns)),
        sum(int(row["more"]) for row in found),
    )
