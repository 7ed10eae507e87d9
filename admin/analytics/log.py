"""From files of the rejection log to records: ``admin.rejection_log.records`` says what a line must be.

Lines are decoded by the types that the log is written with. What is no record is set aside with the reason.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import inspect, structs
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics.inputs import Found
from admin.analytics.tables import ARROW, sql_type
from admin.analytics.words import HOUR_S, MINUTE_S
from admin.common.numbers import LATEST_S
from admin.rejection_log.records import VERSION, AnyRecord, HeartbeatRecord, Record, TrafficRecord
from limiter.counting.rejections import Amount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Rows = Iterator[pa.RecordBatch]
_Parse = Callable[[Iterable[bytes], Callable[[int], str]], _Rows]  # lines, and of which file each is
_TAGS: Final[dict[type[Record], str]] = {type_: type_.__struct_config__.tag for type_ in AnyRecord.__args__}
_OLDEST_S: Final = 1_577_836_800  # 2020: there was no Sluice before
_PACKED_BYTES: Final = 64 << 10  # read at a time: what follows a member of a packed file is copied
_UNPACKED_BYTES: Final = 4 << 20

_Columns = dict[str, Any]  # name to Spark's type, or for a struct to its columns
_OF_ALL: Final = {"instance": "STRING", "run": "STRING", "n": "BIGINT", "at_s": "BIGINT", "last_s": "BIGINT"}


def _own(type_: type[Record]) -> _Columns:
    fields = structs.fields(type_)[len(Record.__struct_fields__) :]
    return {each.name: sql_type(inspect.type_info(each.type)) for each in fields}


RECORD: Final[_Columns] = _OF_ALL | {tag: _own(type_) for type_, tag in _TAGS.items()}
"""What all records have, with the last second that each is of, and a struct for each type."""
_LINES: Final[_Columns] = {**RECORD, "file": "STRING", "why": "STRING", "example": "STRING", "is_file": "BOOLEAN"}
_HOURS: Final[_Columns] = {"file": "STRING", "hour_s": "BIGINT"}


def read(session: "SparkSession", found: Found, *, here: bool) -> "DataFrame":
    """Return lines: the columns of ``RECORD``, and of what is none its ``file``, ``why`` and an ``example``.

    With ``here``, this process reads the files unless they are at addresses; otherwise Spark does.
    """
    return _scan(session, found, _parsed, _LINES, here=here)


def hours_of(session: "SparkSession", found: Found, *, here: bool) -> "DataFrame":
    """Return each ``file``, and the beginnings of the ``hours`` that its records are of."""
    hours = _scan(session, found, _hours, _HOURS, here=here)
    return hours.groupBy("file").agg(F.collect_set("hour_s").alias("hours"))


def _scan(session: "SparkSession", found: Found, parse: _Parse, columns: _Columns, *, here: bool) -> "DataFrame":
    ddl = _ddl(columns)
    if here and not any("://" in file.path for file in found.files):
        batches = [batch for file in found.files for batch in _of_file(file.path, parse)]
        table = pa.Table.from_batches(batches) if batches else _schema(columns).empty_table()
        return session.createDataFrame(table, ddl)
    frames = []
    if any(not file.path.endswith(".gz") for file in found.files):
        reader = session.read.option("ignoreMissingFiles", "true").option("lineSep", "\n")
        lines = reader.text(found.spark_paths(packed=False))
        frames.append(
            lines.selectExpr("CAST(value AS BINARY)", "_metadata.file_path").mapInArrow(_of_lines(parse), ddl)
        )
    if any(file.path.endswith(".gz") for file in found.files):
        packed = session.read.format("binaryFile").option("ignoreMissingFiles", "true")
        contents = packed.load(found.spark_paths(packed=True)).selectExpr("content", "_metadata.file_path")
        frames.append(contents.mapInArrow(_of_packed(parse), ddl))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _of_file(path: str, parse: _Parse) -> _Rows:
    with suppress(FileNotFoundError):
        content = Path(path).read_bytes()
        address = Path(path).absolute().as_uri()
        if path.endswith(".gz"):
            yield from _unpacked(memoryview(content), address, parse)
        else:
            yield from parse(content.split(b"\n"), lambda _: address)


def _of_lines(parse: _Parse) -> Callable[[Iterator[pa.RecordBatch]], _Rows]:
    def run(batches: Iterator[pa.RecordBatch]) -> _Rows:
        for batch in batches:
            lines, files = batch.columns
            yield from parse(lines.to_pylist(), partial(_file_at, files))

    return run


def _file_at(files: pa.Array, at: int) -> str:
    return files[at].as_py()  # type: ignore[no-any-return]


def _of_packed(parse: _Parse) -> Callable[[Iterator[pa.RecordBatch]], _Rows]:
    def run(batches: Iterator[pa.RecordBatch]) -> _Rows:
        for batch in batches:
            for content, file in zip(*batch.columns, strict=True):
                yield from _unpacked(memoryview(content.as_buffer()), file.as_py(), parse)

    return run


def _unpacked(content: memoryview, file: str, parse: _Parse) -> _Rows:
    begun: list[bytes] = []
    try:
        for piece in _pieces(content):
            first, *lines = piece.split(b"\n")
            begun.append(first)
            if lines:
                yield from parse([b"".join(begun), *lines[:-1]], lambda _: file)
                begun = lines[-1:]
        yield from parse([b"".join(begun)], lambda _: file)
    except (zlib.error, EOFError):
        if parse is _parsed:
            yield _batch({"file": [file], "why": [_DAMAGED], "is_file": [True]}, _LINES)


_DAMAGED: Final = "is damaged or ends in the middle; what follows was not read"


def _pieces(packed: memoryview) -> Iterator[bytes]:
    """Yield what is packed, of one member or several.

    Raises:
        zlib.error: it is damaged.
        EOFError: it ends in the middle.
    """
    reader, rest, at = None, b"", 0
    while rest or at < len(packed) or reader is not None:
        if not rest:
            rest, at = bytes(packed[at : at + _PACKED_BYTES]), at + _PACKED_BYTES
        if reader is None:
            # Members may be filled up with zeros.
            if not (rest := rest.lstrip(b"\0")):
                continue
            reader = zlib.decompressobj(zlib.MAX_WBITS | 16)  # with a header of gzip
        piece = reader.decompress(rest, _UNPACKED_BYTES)
        if not rest and not piece and not reader.eof:
            raise EOFError
        yield piece
        rest = reader.unused_data if reader.eof else reader.unconsumed_tail
        reader = None if reader.eof else reader


# Lines.


class _Head(msgspec.Struct):
    v: int | None = None
    type: str | None = None
    at_s: int = 0


_record: Final = msgspec.json.Decoder(AnyRecord).decode
_head: Final = msgspec.json.Decoder(_Head).decode
_NO_RECORD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _parsed(lines: Iterable[bytes], file_of: Callable[[int], str]) -> _Rows:
    records: defaultdict[type[Any], list[Any]] = defaultdict(list)
    aside = []
    for at, line in enumerate(lines):
        try:
            record = _record(line)
        except _NO_RECORD as error:
            why = _reason(line, error)
        else:
            why = _oddness(record)
            if not why:
                records[type(record)].append(record)
        if why:
            aside.append((file_of(at), why, line[:1000].decode(errors="replace")[:200]))
    for type_, its in records.items():
        yield _batch(_values(type_, its), _LINES)
    if aside:
        columns = dict(zip(("file", "why", "example"), zip(*aside, strict=True), strict=True))
        yield _batch(columns | {"is_file": [False] * len(aside)}, _LINES)


def _oddness(record: AnyRecord) -> str:
    """Return what is wrong with a record beyond its types."""
    if record.v != VERSION:
        return f"schema version {record.v}" if 1 <= record.v <= _MOST_VERSIONS else "no schema version"
    if record.at_s < _OLDEST_S:
        return "its time is before 2020, as of a clock that was not set"
    if isinstance(record, TrafficRecord):
        count = len(record.second)
        is_whole = (
            len(record.second_admitted) == len(record.second_refused) == count
            and len(record.second_requests) == len(record.second_bytes) == count
            and len(record.second_repeated) in {0, count}
        )
        if not is_whole or record.at_s % MINUTE_S:
            return _OUT_OF_RANGE
    return ""


_MOST_VERSIONS: Final = 99  # each would be a reason of its own
_OUT_OF_RANGE: Final = "a value is out of range"
_NO_OBJECT: Final = "not one JSON object with fields of the right types"


def _reason(line: bytes, error: Exception) -> str:
    """Return why a line is no record; nothing if it is blank."""
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
        return f"schema version {head.v}" if head.v and 1 <= head.v <= _MOST_VERSIONS else "no schema version"
    if head.type not in _TAGS.values():
        return "unknown type of record"
    if "missing required field" in str(error):
        return "a field is missing"
    return _NO_OBJECT if ", got `" in str(error) else _OUT_OF_RANGE


def _hours(lines: Iterable[bytes], file_of: Callable[[int], str]) -> _Rows:
    hours = set()
    for at, line in enumerate(lines):
        with suppress(*_NO_RECORD):
            at_s = _head(line).at_s
            if _OLDEST_S <= at_s <= LATEST_S:
                hours.add((file_of(at), at_s - at_s % HOUR_S))
    if hours:
        yield _batch(dict(zip(_HOURS, zip(*hours, strict=True), strict=True)), _HOURS)


# Columns.


def _values(type_: type[Record], records: Sequence[Any]) -> dict[str, Any]:
    columns = dict(zip(type_.__struct_fields__, zip(*map(structs.astuple, records), strict=True), strict=True))
    at_s, lasts = columns["at_s"], [0] * len(records)
    if type_ is TrafficRecord:
        lasts = [max(each, default=0) for each in columns["second"]]
    elif type_ is HeartbeatRecord:
        lasts = [max(0, each - 1) for each in columns["seconds"]]
    return columns | {"last_s": list(map(add, at_s, lasts)), _TAGS[type_]: columns}


def _ddl(columns: _Columns) -> str:
    types = {name: type_ if isinstance(type_, str) else f"STRUCT<{_ddl(type_)}>" for name, type_ in columns.items()}
    return ", ".join(f"`{name}` {type_}" for name, type_ in types.items())


def _arrow(type_: str | _Columns) -> pa.DataType:
    return ARROW[type_] if isinstance(type_, str) else pa.struct(_schema(type_))


def _schema(columns: _Columns) -> pa.Schema:
    return pa.schema([(name, _arrow(type_)) for name, type_ in columns.items()])


def _batch(values: dict[str, Any], columns: _Columns) -> pa.RecordBatch:
    """Return columns, with nulls where there are no values."""
    count = len(next(iter(values.values())))
    arrays = [
        _column(values[name], type_) if name in values else pa.nulls(count, _arrow(type_))
        for name, type_ in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(columns))


def _column(values: Any, type_: str | _Columns) -> pa.Array:
    if not isinstance(type_, str):
        arrays = [_column(values[name], of) for name, of in type_.items()]
        return pa.StructArray.from_arrays(arrays, fields=list(_schema(type_)))
    arrow = ARROW[type_]
    if pa.types.is_list(arrow):
        if isinstance(values[0], Amount):
            values = list(map(structs.astuple, values))
        ends = np.zeros(len(values) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
        return pa.ListArray.from_arrays(ends, pa.array(list(chain.from_iterable(values)), arrow.value_type))
    if pa.types.is_map(arrow):
        values = [list(each.items()) for each in values]
    return pa.array(values, arrow)
