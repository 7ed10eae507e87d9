"""Decodes rejection log files into the types of ``admin.rejection_log.records``, and explains invalid lines."""

import codecs
import gzip
import io
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, repeat
from operator import add, ge
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import inspect, structs
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from admin.analytics.inputs import ENDINGS, Found
from admin.analytics.tables import arrow_type
from admin.analytics.words import DAY_S, HOUR_S, MINUTE_S
from admin.rejection_log.records import VERSION, AnyRecord, HeartbeatRecord, Record, TrafficRecord
from limiter.counting.rejections import Amount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Rows = Iterator[pa.RecordBatch]
_Lines = Iterable[tuple[bytes | None, str]]  # (line, file), or (None, file) if the rest is damaged
_Parse = Callable[[_Lines], _Rows]
_TAGS: Final[dict[type[Record], str]] = {type_: type_.__struct_config__.tag for type_ in AnyRecord.__args__}
_OLDEST_S: Final = 1_577_836_800  # 2020, before Sluice existed
_UNPACKED_BYTES: Final = 4 << 20
_MAX_RECORD_BYTES: Final = 4 << 20
_AT_ONCE: Final = 20_000


def _fields_of(type_: type[Record]) -> list[tuple[str, pa.DataType]]:
    fields = structs.fields(type_)[len(Record.__struct_fields__) :]
    return [(each.name, arrow_type(inspect.type_info(each.type))) for each in fields]


_STRING, _INT = pa.string(), pa.int64()
_RECORD: Final = [
    *(("instance", _STRING), ("run", _STRING), ("n", _INT), ("at_s", _INT), ("last_s", _INT)),
    *((tag, pa.struct(_fields_of(type_))) for type_, tag in _TAGS.items()),
]
RECORD: Final = tuple(name for name, _ in _RECORD)
"""The columns of a record. ``last_s`` is its last second. Each record type has a struct column."""
_LINES: Final = pa.schema(
    [*_RECORD, ("file", _STRING), ("why", _STRING), ("example", _STRING), ("is_file", pa.bool_())]
)
_HOURS: Final = pa.schema([("file", _STRING), ("hour_s", _INT)])


def read(session: "SparkSession", found: Found, *, in_process: bool) -> "DataFrame":
    """Return a row for each record and for each invalid line.

    Rows for invalid lines have the columns ``file``, ``why`` and ``example``. With ``in_process``, local files are read
    without Spark.
    """
    return _rows(session, found, partial(_parsed, _latest_s()), _LINES, in_process=in_process)


def hours_of(session: "SparkSession", found: Found, *, in_process: bool) -> "DataFrame":
    hours = _rows(session, found, partial(_hours, _latest_s()), _HOURS, in_process=in_process)
    return hours.groupBy("file").agg(F.collect_set("hour_s").alias("hours"))


def _latest_s() -> int:
    return int(time.time()) + DAY_S


def _rows(session: "SparkSession", found: Found, parse: _Parse, columns: pa.Schema, *, in_process: bool) -> "DataFrame":
    schema = from_arrow_schema(columns)
    # Files with other names are left to Spark, which decompresses files according to their names.
    if in_process and all("://" not in file.path and file.path.endswith(ENDINGS) for file in found.files):
        paths = ((file.path, Path(file.path).as_uri()) for file in found.files)
        pairs = ((line, address) for path, address in paths for line in _lines_of(path))
        batches = list(_in_parts(parse, pairs))
        table = pa.Table.from_batches(batches) if batches else columns.empty_table()
        return session.createDataFrame(table, schema)
    frames = []
    if any(not file.path.endswith(".gz") for file in found.files):
        reader = session.read.option("ignoreMissingFiles", "true").option("lineSep", "\n")
        lines = reader.text(found.spark_paths(packed=False))
        frames.append(
            lines.selectExpr("CAST(value AS BINARY)", "_metadata.file_path").mapInArrow(_of_lines(parse), schema)
        )
    if any(file.path.endswith(".gz") for file in found.files):
        packed = session.read.format("binaryFile").option("ignoreMissingFiles", "true")
        contents = packed.load(found.spark_paths(packed=True)).selectExpr("content", "_metadata.file_path")
        frames.append(contents.mapInArrow(_of_packed(parse), schema))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _lines_of(path: str) -> Iterator[bytes | None]:
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return
    yield from _unpacked(memoryview(content)) if path.endswith(".gz") else _split([content])


def _of_lines(parse: _Parse) -> Callable[[Iterator[pa.RecordBatch]], _Rows]:
    def run(batches: Iterator[pa.RecordBatch]) -> _Rows:
        for batch in batches:
            yield from parse(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    return run


def _of_packed(parse: _Parse) -> Callable[[Iterator[pa.RecordBatch]], _Rows]:
    def run(batches: Iterator[pa.RecordBatch]) -> _Rows:
        for batch in batches:
            for content, file in zip(batch.column(0), batch.column(1).to_pylist(), strict=True):
                lines = _unpacked(memoryview(content.as_buffer()))
                yield from _in_parts(parse, zip(lines, repeat(file), strict=False))

    return run


def _in_parts(parse: _Parse, pairs: Iterator[tuple[bytes | None, str]]) -> _Rows:
    while some := list(islice(pairs, _AT_ONCE)):
        yield from parse(some)


def _unpacked(content: memoryview) -> Iterator[bytes | None]:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            # ``read`` would lose the valid data before any damage.
            yield from _split(iter(partial(stream.read1, _UNPACKED_BYTES), b""))
    except (OSError, zlib.error, EOFError):
        yield None


def _split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    begun = bytearray()
    is_first = True
    for piece in pieces:
        first, *lines = piece.split(b"\n")
        if len(begun) < _MAX_RECORD_BYTES:
            begun += first.removeprefix(codecs.BOM_UTF8) if is_first else first
        is_first = False
        if lines:
            yield bytes(begun)
            yield from lines[:-1]
            begun = bytearray(lines[-1])
    yield bytes(begun)


_DAMAGED: Final = "is damaged or truncated; the rest was not read"


class _Head(msgspec.Struct):
    v: int | None = None
    type: str | None = None
    at_s: int = 0


_record: Final = msgspec.json.Decoder(AnyRecord).decode
_head: Final = msgspec.json.Decoder(_Head).decode
_NO_RECORD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _parsed(latest_s: int, pairs: _Lines) -> _Rows:
    records: defaultdict[type[Any], list[Any]] = defaultdict(list)
    aside: list[tuple[str, str, str | None, bool]] = []
    for line, file in pairs:
        if line is None:
            aside.append((file, _DAMAGED, None, True))
            continue
        try:
            record = _record(line)
        except _NO_RECORD as error:
            why = _why_not(line, str(error))
        else:
            why = _why_invalid(record, latest_s)
            if not why:
                records[type(record)].append(record)
        if why:
            aside.append((file, why, line[:1000].decode(errors="replace")[:200], False))
    for type_, its in records.items():
        yield _batch(_values(type_, its), _LINES)
    if aside:
        columns = zip(*aside, strict=True)
        yield _batch(dict(zip(("file", "why", "example", "is_file"), columns, strict=True)), _LINES)


def _why_invalid(record: AnyRecord, latest_s: int) -> str:
    if record.v != VERSION:
        return _other_version(record.v)
    if record.at_s < _OLDEST_S:
        return "its time is before 2020, so the clock was not set"
    if record.at_s > latest_s:
        return "its time is more than a day in the future"
    if isinstance(record, TrafficRecord):
        second = record.second
        count = len(second)
        is_whole = (
            len(record.second_admitted) == len(record.second_refused) == count
            and len(record.second_requests) == len(record.second_bytes) == count
            and len(record.second_repeated) in {0, count}
        )
        if not is_whole or record.at_s % MINUTE_S or any(map(ge, second, second[1:])):
            return _OUT_OF_RANGE
    return ""


def _other_version(version: int | None) -> str:
    return f"unsupported schema version {version}" if version and 1 <= version <= 99 else "no schema version"


_OUT_OF_RANGE: Final = "a value is out of range"
_NO_OBJECT: Final = "not a JSON object with fields of the right types"


def _why_not(line: bytes, error: str) -> str:
    if not line.strip():
        return ""
    try:
        line.decode()
        head = _head(line)
    except UnicodeDecodeError:
        return "not UTF-8"
    except _NO_RECORD:
        return _NO_OBJECT
    if head.v != VERSION:
        return _other_version(head.v)
    if head.type not in _TAGS.values():
        return "unknown record type"
    if error.startswith("Object missing required field"):
        return "a field is missing"
    return _NO_OBJECT if error.startswith("Expected") and ", got `" in error else _OUT_OF_RANGE


def _hours(latest_s: int, pairs: _Lines) -> _Rows:
    hours = set()
    for line, file in pairs:
        with suppress(*_NO_RECORD):
            at_s = _head(line or b"").at_s
            if _OLDEST_S <= at_s <= latest_s:
                hours.add((file, at_s - at_s % HOUR_S))
    if hours:
        yield _batch(dict(zip(_HOURS.names, zip(*hours, strict=True), strict=True)), _HOURS)


def _values(type_: type[Record], records: Sequence[Any]) -> dict[str, Any]:
    columns = dict(zip(type_.__struct_fields__, zip(*map(structs.astuple, records), strict=True), strict=True))
    at_s, lasts = columns["at_s"], [0] * len(records)
    if type_ is TrafficRecord:
        lasts = [max(each, default=0) for each in columns["second"]]
    elif type_ is HeartbeatRecord:
        lasts = [max(0, each - 1) for each in columns["seconds"]]
    return columns | {"last_s": list(map(add, at_s, lasts)), _TAGS[type_]: columns}


def _batch(values: dict[str, Any], columns: pa.Schema) -> pa.RecordBatch:
    count = len(next(iter(values.values())))
    arrays = [
        _column(values[each.name], each.type) if each.name in values else pa.nulls(count, each.type) for each in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _column(values: Any, type_: pa.DataType) -> pa.Array:
    if pa.types.is_struct(type_):
        return pa.StructArray.from_arrays([_column(values[each.name], each.type) for each in type_], fields=list(type_))
    if pa.types.is_list(type_):
        if isinstance(values[0], Amount):
            values = list(map(structs.astuple, values))
        ends = np.zeros(len(values) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
        return pa.ListArray.from_arrays(ends, pa.array(list(chain.from_iterable(values)), type_.value_type))
    if pa.types.is_map(type_):
        values = [list(each.items()) for each in values]
    return pa.array(values, type_)
