"""Lines of the log as Spark reads them: what is a record, what is set aside, and each record once."""

import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from admin.analytics import reading
from admin.rejection_log import records as log

GOOD: dict[str, Any] = {
    "type": "rejection", "v": 1, "instance": "i", "run": "r", "n": 1, "at_s": 1_800_000_000, "kind": "topic",
    "name": "orders", "client": "10.0.0.1", "producer_group": "g", "rule": "rule", "verdict": "refuse", "requests": 2,
    "messages": 3, "bytes": 400, "wait_max_us": 5,
}  # fmt: skip
TRAFFIC: dict[str, Any] = {
    "type": "traffic", "v": 1, "instance": "i", "run": "r", "n": 2, "at_s": 1_800_000_000, "kind": "topic",
    "name": "orders",
}  # fmt: skip


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    """Return lines as they are read from a file; what is no text is written as JSON."""

    def make(*values: object) -> DataFrame:
        file = tmp_path / "a.jsonl"
        texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
        file.write_bytes(b"\n".join(texts))
        return reading.read_lines(spark, [str(file)])

    return make


def test_schema_has_every_field_of_every_record() -> None:
    for record in typing.get_args(log.AnyRecord):
        kind = record.__struct_config__.tag
        known = {field.split()[0] for field in (*reading.HEAD, *reading.TYPES[kind])}
        assert known == {field.name for field in msgspec.structs.fields(record)}, kind


def test_schema_requires_what_has_no_default() -> None:
    head = {field.split()[0] for field in reading.HEAD}
    for record in typing.get_args(log.AnyRecord):
        needed = {field.name for field in msgspec.structs.fields(record) if field.required}
        assert {*reading.REQUIRED[record.__struct_config__.tag]} == needed - head


def test_records_have_the_stated_schema(lines: Callable[..., DataFrame]) -> None:
    parsed = reading.parse(lines(GOOD))
    for frame, ddl in ((parsed.records, reading.RECORDS), (parsed.bad, reading.BAD)):
        stated = StructType.fromDDL(ddl)
        assert [(field.name, field.dataType) for field in frame.schema] == [(f.name, f.dataType) for f in stated]


def test_what_the_writer_writes_is_read_whole(lines: Callable[..., DataFrame]) -> None:
    rejection = log.RejectionRecord(
        v=1, instance="i", run="r", n=1, at_s=60, kind="topic", name='"}{ü', client="c", rule="r", verdict="hold",
        requests=1, messages=2, bytes=3, user="u", product="pika 1.4.4",
    )  # fmt: skip
    traffic = log.TrafficRecord(
        v=1, instance="i", run="r", n=2, at_s=60, kind="topic", name="t", rate_per_s=1.5, action="shadow",
        admitted=log.Amount(1, 2, 3), languages={"JAVA": (3, 1), "": (1, 0)}, clients=2, more_clients=True,
        second=(0, 59), second_admitted=(1, 1), second_refused=(0, 4), second_requests=(1, 5), second_bytes=(9, 9),
    )  # fmt: skip
    heartbeat = log.HeartbeatRecord(
        v=1, instance="i", run="r", n=3, at_s=60, version="1", seconds=60, limiting=False, bypassed_requests={"a/b": 2}
    )
    limit = log.LimitRecord(v=1, instance="i", run="r", n=4, at_s=60, kind="topic", name="a*", rule="x")
    change = log.LimitChangeRecord(v=1, instance="i", run="r", n=5, at_s=60, change_id=1, action="reload")
    texts = [msgspec.json.encode(record).decode() for record in (rejection, traffic, heartbeat, limit, change)]
    parsed = reading.parse(lines(*(text.encode() for text in texts)))
    assert parsed.bad.collect() == []
    found = {row["type"]: row.asDict() for row in parsed.records.collect()}
    for text in texts:
        written = json.loads(text)
        assert {name: found[written["type"]][name] for name in written} == written


TWO_SECONDS = {name: [1, 1] for name in reading.SECONDS}
NO_OBJECT = "not one JSON object with fields of the right types"
MISSING = "a field is missing"
OUT_OF_RANGE = "a value is out of range"
TEXT = json.dumps(GOOD).encode()
BAD: list[tuple[object, str]] = [
    (b"\x00\xff\xfe junk \x80", "not UTF-8"),
    (TEXT.replace(b'"orders"', b'"ord\xffers"'), "not UTF-8"),
    (TEXT[:-20], NO_OBJECT),
    (17, NO_OBJECT),
    ([GOOD], NO_OBJECT),
    (TEXT + TEXT, NO_OBJECT),
    (TEXT + b" }", NO_OBJECT),
    (TEXT + b" and more", NO_OBJECT),
    ({**GOOD, "n": "one"}, NO_OBJECT),
    ({**GOOD, "n": 1.5}, NO_OBJECT),
    ({**GOOD, "v": None}, "no schema version"),
    ({**GOOD, "v": 2}, "schema version 2"),
    ({**GOOD, "type": "rumour"}, "unknown type of record"),
    ({**GOOD, "type": None}, "unknown type of record"),
    ({**GOOD, "client": None}, MISSING),
    ({**GOOD, "run": None}, MISSING),
    ({**GOOD, "messages": -1}, OUT_OF_RANGE),
    ({**GOOD, "bytes": 10**13}, OUT_OF_RANGE),
    ({**GOOD, "at_s": -1}, OUT_OF_RANGE),
    ({**GOOD, "verdict": "maybe"}, OUT_OF_RANGE),
    ({**TRAFFIC, "admitted": [1, 2]}, OUT_OF_RANGE),
    ({**TRAFFIC, "admitted": [1, None, 2]}, OUT_OF_RANGE),
    ({**TRAFFIC, "second": [1, 2], "second_admitted": [1]}, OUT_OF_RANGE),
    ({**TRAFFIC, "second": [1, 60], **TWO_SECONDS}, OUT_OF_RANGE),
    ({**TRAFFIC, "second": [1, None], **TWO_SECONDS}, OUT_OF_RANGE),
    ({**TRAFFIC, "second_admitted": [1]}, OUT_OF_RANGE),
]


def test_a_line_that_is_no_record_is_set_aside_with_the_reason(lines: Callable[..., DataFrame]) -> None:
    good = [GOOD, TRAFFIC, {**TRAFFIC, "n": 3, "second": [1, 2], **TWO_SECONDS}]
    parsed = reading.parse(lines(*good, b"", *(line for line, _ in BAD), b"  "))
    assert sorted(row["n"] for row in parsed.records.collect()) == [1, 2, 3]
    rows = parsed.bad.collect()
    assert [row["reason"] for row in rows] == [reason for _, reason in BAD]
    assert all(row["file"].endswith("/a.jsonl") for row in rows)


def test_only_some_columns_asked_for_changes_nothing(lines: Callable[..., DataFrame]) -> None:
    records = reading.parse(lines(GOOD, {**GOOD, "wait_max_us": "long"})).records
    assert records.select("n").count() == 1
    assert records.count() == 1


def test_a_record_more_than_once_is_there_once(lines: Callable[..., DataFrame]) -> None:
    # Numbers 1, 1, 4, 4 have the count, the sum, the least and the greatest of 1, 2, 3, 4.
    numbers = [1, 1, 4, 4, 64, 65, 200_000]
    records = reading.parse(lines(*({**GOOD, "n": n} for n in numbers), {**GOOD, "run": "other", "n": 1})).records
    once = reading.distinct(records)
    assert once.dropped == 2
    assert sorted((row["run"], row["n"]) for row in once.records.collect()) == [
        ("other", 1), ("r", 1), ("r", 4), ("r", 64), ("r", 65), ("r", 200_000),
    ]  # fmt: skip


def test_records_without_duplicates_are_not_shuffled(lines: Callable[..., DataFrame]) -> None:
    records = reading.parse(lines(GOOD, TRAFFIC)).records
    assert reading.distinct(records).records is records
