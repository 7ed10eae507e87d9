"""From files of the rejection log to records: each line parsed and checked by Spark, each record once.

Columns and checks are made from ``admin.rejection_log.records``, which defines the format.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import inspect
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics.inputs import Found
from admin.analytics.tables import SECONDS, sql_type
from admin.analytics.words import HOUR_S
from admin.common.numbers import LATEST_S
from admin.rejection_log.records import VERSION, AnyRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES: Final = {
    info.cls.__struct_config__.tag: info
    for info in map(inspect.type_info, AnyRecord.__args__)
    if isinstance(info, inspect.StructType)
}
_PACKED_BYTES: Final = 64 << 10  # read at a time: what follows a member of a packed file is copied
_UNPACKED_BYTES: Final = 4 << 20


def _bounds(name: str, info: inspect.Type) -> Iterator[tuple[str, str, str]]:
    """Yield what is bounded in a field, how, and by what."""
    match info:
        case inspect.UnionType():
            yield from _bounds(name, info.types[0])
        case inspect.IntType() | inspect.FloatType():
            yield from ((name, sign, bound) for sign, bound in _signs(info))
        case inspect.LiteralType():
            yield name, "IN", f"({', '.join(map(repr, info.values))})"
        case inspect.VarTupleType(item_type=inspect.IntType() as item):
            yield f"size({name})", "<=", str(info.max_length)
            yield from _items(name, item)
        case inspect.DictType(value_type=inspect.IntType() as value):
            yield from _items(f"map_values({name})", value)
        case inspect.DictType(value_type=inspect.TupleType(item_types=(value, *_))):
            yield from _items(f"flatten(map_values({name}))", value)
        case inspect.StructType(fields=fields):
            yield f"size({name})", "<=", str(len(fields))
            yield from _items(name, fields[0].type)


def _items(name: str, info: inspect.Type) -> Iterator[tuple[str, str, str]]:
    return ((f"array_{'min' if sign == '>=' else 'max'}({name})", sign, bound) for sign, bound in _signs(info))


def _signs(info: Any) -> Iterator[tuple[str, str]]:
    """Yield the bounds of a number that its type in Spark does not have itself."""
    for sign, bound in ((">=", info.ge), ("<=", info.le), ("<", info.lt)):
        if bound is not None and bound < 2**63 - 1:
            yield sign, str(bound)


_SAME_SECONDS: Final = (
    *(f"coalesce(size({name}), 0) = coalesce(size(second), 0)" for name in SECONDS[:-1]),
    "coalesce(size(second_repeated), 0) IN (0, coalesce(size(second), 0))",
    "(type != 'traffic' OR at_s % 60 = 0)",
)
_LISTS: Final = ", ".join(f"coalesce({name}, array())" for name in ("second", *SECONDS))
# Hardly any line has a null at all.
_NO_NULLS: Final = f"""(NOT contains(value, 'null') OR NOT exists(concat({_LISTS},
    coalesce(flatten(map_values(languages)), IF(languages IS NULL, array(), array(NULL)))), x -> x IS NULL))"""
FIELDS: Final[dict[str, str]] = {
    "type": "STRING",
    **{field.name: sql_type(field.type) for info in _TYPES.values() for field in info.fields},
}  # of records, with Spark's types


def _complete() -> str:
    required = {tag: {field.name for field in info.fields if field.required} for tag, info in _TYPES.items()}
    of_all = set.intersection(*required.values())
    cases = (f"WHEN '{tag}' THEN {_are_there(names - of_all)}" for tag, names in required.items())
    return f"{_are_there(of_all)} AND CASE type {' '.join(cases)} END"


def _are_there(names: Iterable[str]) -> str:
    return " AND ".join(f"`{name}` IS NOT NULL" for name in sorted(names)) or "true"


def _in_range() -> str:
    """Return one condition for all types: what a type has no field for is not there, and right.

    Bounds that are the same are checked together, which Spark compiles in a fraction of the time.
    """
    same: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for tag, info in _TYPES.items():
        for field in info.fields:
            others = (of.type for each in _TYPES.values() for of in each.fields if of.name == field.name)
            differs = any(other != field.type for other in others)
            for what, sign, bound in _bounds(f"`{field.name}`", field.type):
                only = f"type != '{tag}' OR " if differs and sign == "IN" else ""
                if what not in (of := same[only, sign, bound]):
                    of.append(what)
    conditions = [*_SAME_SECONDS, _NO_NULLS]
    for (only, sign, bound), found in same.items():
        all_of = {">=": "least", "<=": "greatest", "<": "greatest"}.get(sign)
        together = [f"{all_of}({', '.join(found)})"] if all_of and len(found) > 1 else found
        conditions += [f"({only}coalesce({each} {sign} {bound}, true))" for each in together]
    return " AND ".join(conditions)


# Two objects in one line are not one: a brace that is followed by another and a key is in no text, whose quotes are
# escaped. Patterns are slow, so they are only for lines that are not as Sluice writes them, or have a second brace.
_WHY: Final = rf"""CASE
WHEN damage IS NOT NULL THEN damage
WHEN NOT is_valid_utf8(value) THEN 'not UTF-8'
WHEN bad IS NOT NULL
    OR NOT (startswith(value, '{{') AND endswith(value, '}}') OR value RLIKE r'^\s*\{{(?s:.*)\}}\s*$')
    OR (locate('{{', value, 2) > 0 AND value RLIKE r'\}}\s*\{{\s*"\w+"\s*:')
    THEN 'not one JSON object with fields of the right types'
WHEN v IS NULL OR v NOT BETWEEN 1 AND 99 THEN 'no schema version'
WHEN v != {VERSION} THEN concat('schema version ', v)
WHEN type IS NULL OR type NOT IN ({", ".join(map(repr, _TYPES))}) THEN 'unknown type of record'
WHEN NOT ({_complete()}) THEN 'a field is missing'
WHEN NOT ({_in_range()}) THEN 'a value is out of range'
END"""


def read(session: "SparkSession", found: Found) -> "DataFrame":
    """Return lines: the fields of records, and of what is none its ``file``, ``why`` and an ``example``."""
    schema = ", ".join(f"`{name}` {type_}" for name, type_ in (*FIELDS.items(), ("bad", "STRING")))
    parsed = F.from_json("value", schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"})
    return (
        _lines(session, found)
        .where(r"damage IS NOT NULL OR startswith(value, '{') OR value RLIKE r'\S'")
        # A generator parses each line once; otherwise it may be parsed for each field.
        .select("value", "file", "damage", F.inline_outer(F.array(parsed)))
        .withColumn("why", F.expr(_WHY))
        .select(
            F.expr("IF(why IS NULL, NULL, file) AS file"),
            "why",
            F.expr("IF(why IS NULL, NULL, left(make_valid_utf8(value), 200)) AS example"),
            F.expr("damage IS NOT NULL AS is_file"),
            *FIELDS,
        )
    )


def _lines(session: "SparkSession", found: Found) -> "DataFrame":
    """Return lines as ``value``, the ``file`` of each, and ``damage`` where a packed file could not be read on."""
    frames = []
    if any(not file.path.endswith(".gz") for file in found.files):
        lines = session.read.option("ignoreMissingFiles", "true").text(found.spark_paths(packed=False))
        frames.append(lines.selectExpr("value", "_metadata.file_path AS file", "CAST(NULL AS STRING) AS damage"))
    if any(file.path.endswith(".gz") for file in found.files):
        reader = session.read.format("binaryFile").option("ignoreMissingFiles", "true")
        packed = reader.load(found.spark_paths(packed=True)).selectExpr("content", "_metadata.file_path AS file")
        unpacked = packed.mapInArrow(_unpack, "value BINARY, file STRING, damage STRING")
        frames.append(unpacked.selectExpr("CAST(value AS STRING) AS value", "file", "damage"))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for content, file in zip(batch.column(0), batch.column(1).to_pylist(), strict=True):
            begun: list[bytes] = []
            damage = None
            try:
                for piece in _pieces(memoryview(content.as_buffer())):
                    first, *lines = piece.split(b"\n")
                    begun.append(first)
                    if lines:
                        yield _rows([b"".join(begun), *lines[:-1]], file)
                        begun = lines[-1:]
            except (zlib.error, EOFError):
                damage = "is damaged or ends in the middle; what follows was not read"
            yield _rows([b"".join(begun)], file, damage)


def _rows(lines: Sequence[bytes], file: str, damage: str | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(lines, pa.binary()), pa.repeat(file, len(lines)), pa.array([damage] * len(lines), pa.string())],
        ["value", "file", "damage"],
    )


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


def hours_of(session: "SparkSession", found: Found) -> "DataFrame":
    """Return each ``file``, and the beginnings of the ``hours`` that its records are of."""
    at_s = F.expr("try_cast(get_json_object(value, '$.at_s') AS BIGINT)")
    hours = _lines(session, found).select("file", (at_s - at_s % HOUR_S).alias("hour_s"))
    return hours.where(F.col("hour_s").between(0, LATEST_S)).groupBy("file").agg(F.collect_set("hour_s").alias("hours"))
