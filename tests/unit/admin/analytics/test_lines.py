"""Lines of the log: what is a record, what is set aside and why, and what is put together by resource and hour."""

import gzip
import json
import random
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from admin.analytics import lines
from admin.analytics.lines import GATHERED, HOURS_IN, Wanted, gather, hours_in
from admin.rejection_log.records import (
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
)
from limiter.counting.rejections import Amount

_HOUR_S = 1_800_000_000
_FILE = "file:/logs/a.jsonl"
_ALL = Wanted()
_PACKED = "file:/logs/a.jsonl.gz"
GOOD: dict[str, Any] = {
    "type": "rejection", "v": 1, "instance": "i", "run": "r", "n": 1, "at_s": _HOUR_S, "kind": "topic",
    "name": "orders", "client": "10.0.0.1", "producer_group": "g", "rule": "rule", "verdict": "refuse", "requests": 2,
    "messages": 3, "bytes": 400, "wait_max_us": 5,
}  # fmt: skip
TRAFFIC: dict[str, Any] = {
    "type": "traffic",
    "v": 1,
    "instance": "i",
    "run": "r",
    "n": 2,
    "at_s": _HOUR_S,
    "kind": "topic",
    "name": "orders",
}
CHANGE: dict[str, Any] = {
    "type": "limit_change", "v": 1, "instance": "i", "run": "r", "n": 3, "at_s": _HOUR_S, "change_id": 1,
    "action": "set",
}  # fmt: skip
TWO_SECONDS = {f"second_{what}": [1, 1] for what in ("admitted", "refused", "requests", "bytes")}
NO_OBJECT = "not one JSON object with fields of the right types"
MISSING = "a field is missing"
OUT_OF_RANGE = "a value is out of range"
TEXT = json.dumps(GOOD).encode()


def _line(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def _batch(values: Sequence[bytes], file: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "file": [file] * len(values)})


def _gathered(values: Iterable[object], file: str = _FILE, wanted: Wanted = _ALL) -> list[dict[str, Any]]:
    batches = list(gather(wanted)([_batch([_line(value) for value in values], file)]))
    assert all(batch.schema == GATHERED for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def _good(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["reason"] is None]


def _bad(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    return {row["reason"]: row["records"] for row in rows if row["reason"] is not None}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x00\xff\xfe junk \x80", "not UTF-8"),
        (TEXT.replace(b'"orders"', b'"ord\xffers"'), "not UTF-8"),
        (TEXT[:-20], NO_OBJECT),
        (17, NO_OBJECT),
        (None, NO_OBJECT),
        ([GOOD], NO_OBJECT),
        (TEXT + TEXT, NO_OBJECT),
        (TEXT + b" }", NO_OBJECT),
        (TEXT + b" and more", NO_OBJECT),
        (b"[" * 20_000, NO_OBJECT),
        (b'{"a":' * 20_000, NO_OBJECT),
        ({**GOOD, "n": "one"}, NO_OBJECT),
        ({**GOOD, "n": 1.5}, NO_OBJECT),
        ({**GOOD, "client": None}, NO_OBJECT),
        ({**GOOD, "v": "1"}, NO_OBJECT),
        ({**GOOD, "v": True}, NO_OBJECT),
        ({**GOOD, "v": None}, "no schema version"),
        ({}, "no schema version"),
        ({**GOOD, "v": 2}, "schema version 2"),
        # Each of damaged ones would be a reason of its own.
        ({**GOOD, "v": 20_261}, "no schema version"),
        ({**GOOD, "v": -1}, "no schema version"),
        ({"v": 3, "type": "rumour"}, "schema version 3"),
        ({**GOOD, "type": "rumour"}, "unknown type of record"),
        ({**GOOD, "type": None}, "unknown type of record"),
        ({key: value for key, value in GOOD.items() if key != "type"}, "unknown type of record"),
        ({key: value for key, value in GOOD.items() if key != "client"}, MISSING),
        ({key: value for key, value in GOOD.items() if key != "run"}, MISSING),
        ({**GOOD, "n": 0}, OUT_OF_RANGE),
        ({**GOOD, "n": 2**63}, OUT_OF_RANGE),
        ({**TRAFFIC, "rate_per_s": 1e308}, OUT_OF_RANGE),
        ({**TRAFFIC, "bytes_per_s": -1}, OUT_OF_RANGE),
        ({**TRAFFIC, "burst_s": -1}, OUT_OF_RANGE),
        ({**TRAFFIC, "break_s": 3601}, OUT_OF_RANGE),
        ({**CHANGE, "rate_after_per_s": 2e9}, OUT_OF_RANGE),
        ({**CHANGE, "change_id": 2**63}, OUT_OF_RANGE),
        ({**CHANGE, "change_id": -(2**63)}, OUT_OF_RANGE),
        ({**GOOD, "messages": -1}, OUT_OF_RANGE),
        ({**GOOD, "bytes": 10**13}, OUT_OF_RANGE),
        ({**GOOD, "at_s": -1}, OUT_OF_RANGE),
        ({**GOOD, "at_s": 10**12}, OUT_OF_RANGE),
        # The minute that begins then ends in the year 10000.
        ({**TRAFFIC, "at_s": 253_402_300_740}, OUT_OF_RANGE),
        ({**GOOD, "verdict": "maybe"}, OUT_OF_RANGE),
        ({**TRAFFIC, "admitted": [1, -2, 3]}, OUT_OF_RANGE),
        ({**TRAFFIC, "at_s": _HOUR_S + 1}, OUT_OF_RANGE),
        ({**TRAFFIC, "second": [1, 2], "second_admitted": [1]}, OUT_OF_RANGE),
        ({**TRAFFIC, "second": [1, 60], **TWO_SECONDS}, OUT_OF_RANGE),
        ({**TRAFFIC, "second": [1, 2], **TWO_SECONDS, "second_repeated": [1]}, OUT_OF_RANGE),
        ({**TRAFFIC, "second_admitted": [1]}, OUT_OF_RANGE),
        ({**TRAFFIC, "second": [0] * 61}, OUT_OF_RANGE),
    ],
)
def test_a_line_that_is_no_record_is_set_aside_with_the_reason(value: object, reason: str) -> None:
    line = _line(value)
    (row,) = _gathered([line])
    assert (row["file"], row["reason"], row["records"]) == (_FILE, reason, 1)
    shown = row["lines"].decode()
    assert shown == line.decode("utf-8", "replace")[:200]
    assert [row[name] for name in ("instance", "kind", "name", "hour_s", "first_s", "last_s", "wanted")] == [None] * 7


def test_what_is_set_aside_is_counted_by_file_and_reason_and_keeps_no_good_line() -> None:
    rows = _gathered([GOOD, 17, b"junk", {**TRAFFIC, "second": [1, 2], **TWO_SECONDS}, {**GOOD, "v": 2}, b"x" * 999])
    assert _bad(rows) == {NO_OBJECT: 3, "schema version 2": 1}
    assert sum(row["records"] for row in _good(rows)) == 2


def test_of_a_glued_and_of_a_torn_line_only_these_are_lost() -> None:
    rows = _gathered([TEXT, TEXT[:-7], _line(TRAFFIC) + TEXT, _line({**GOOD, "n": 9})])
    (row,) = _good(rows)
    assert row["records"] == 2
    assert _bad(rows) == {NO_OBJECT: 2}


def test_nothing_in_a_line_is_nothing() -> None:
    assert _gathered([b"", b"   ", b"\t\r"]) == []
    assert _gathered([]) == []


def test_what_the_writer_writes_is_kept_as_it_is() -> None:
    head = {"v": 1, "instance": "i", "run": "r", "at_s": 60}
    of = {**head, "kind": "topic", "name": '"}{ü'}
    records: list[AnyRecord] = [
        RejectionRecord(
            **of, n=1, client="c", rule="r", verdict="hold", requests=1, messages=2, bytes=3, user="u",
            product="pika 1.4.4",
        ),
        TrafficRecord(
            **of, n=2, rate_per_s=1.5, action="shadow", admitted=Amount(1, 2, 3),
            languages={"JAVA": (3, 1), "": (1, 0)},
            clients=2, more_clients=True, second=(0, 59), second_admitted=(1, 1), second_refused=(0, 4),
            second_requests=(1, 5), second_bytes=(9, 9), repeated=Amount(1, 1, 1), identified=4, second_repeated=(0, 1),
        ),
        HeartbeatRecord(**head, n=3, version="1", seconds=60, limiting=False, bypassed_requests={"a/b": 2}),
        LimitRecord(**{**of, "name": "a*"}, n=4, rule="x"),
        LimitChangeRecord(**head, n=5, change_id=1, action="reload"),
    ]  # fmt: skip
    texts = [msgspec.json.encode(record) for record in records]
    rows = _gathered(texts)
    assert _bad(rows) == {}
    # What is of the whole sidecar has neither kind nor name.
    assert {(row["kind"], row["name"]): row["lines"].split(b"\n") for row in rows} == {
        ("topic", '"}{ü'): texts[:2],
        ("", ""): texts[2:],
    }
    assert [lines.decode(text) for text in texts] == records


def test_lines_of_a_resource_and_hour_come_together() -> None:
    at = [(0, "a"), (3599, "a"), (3600, "a"), (5, "b")]
    rows = _gathered({**GOOD, "n": n, "at_s": _HOUR_S + at_s, "name": name} for n, (at_s, name) in enumerate(at, 1))
    assert [(row["name"], row["hour_s"] - _HOUR_S, row["records"], row["first_s"], row["last_s"]) for row in rows] == [
        ("a", 0, 2, _HOUR_S, _HOUR_S + 3599),
        ("a", 3600, 1, _HOUR_S + 3600, _HOUR_S + 3600),
        ("b", 0, 1, _HOUR_S + 5, _HOUR_S + 5),
    ]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (Wanted(), [0, 3599, 3600, 7200]),
        (Wanted(since_s=_HOUR_S + 3599), [3599, 3600, 7200]),
        (Wanted(until_s=_HOUR_S + 3600), [0, 3599]),
        (Wanted(since_s=_HOUR_S + 1, until_s=_HOUR_S + 3601), [3599, 3600]),
        (Wanted(hours=frozenset([_HOUR_S, _HOUR_S + 7200])), [0, 3599, 7200]),
        (Wanted(hours=frozenset()), []),
    ],
)
def test_only_the_time_that_is_asked_for_is_kept_and_all_is_counted(wanted: Wanted, kept: list[int]) -> None:
    rows = _gathered(({**GOOD, "n": 1 + at, "at_s": _HOUR_S + at} for at in (0, 3599, 3600, 7200)), wanted=wanted)
    found = [json.loads(line)["at_s"] - _HOUR_S for row in rows for line in row["lines"].splitlines()]
    assert sorted(found) == kept
    assert sum(row["wanted"] for row in rows) == len(kept)
    assert sum(row["records"] for row in rows) == 4
    assert (min(row["first_s"] for row in rows), max(row["last_s"] for row in rows)) == (_HOUR_S, _HOUR_S + 7200)


def test_much_is_handed_on_in_pieces_of_which_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_HELD_BYTES", 1000)
    values = [_line({**GOOD, "n": n}) for n in range(1, 101)]
    plain = [_batch(values[at : at + 5], _FILE) for at in range(0, 100, 5)]
    packed = [_batch([gzip.compress(b"\n".join(values))], _PACKED)]
    for batches in (plain, packed):
        found = list(gather(Wanted())(batches))
        assert len(found) > 10
        kept = [line for batch in found for row in batch.to_pylist() for line in row["lines"].split(b"\n")]
        assert kept == values


def _records(count: int) -> list[bytes]:
    # Hardly to be packed, so that there are several of the pieces that files are read by.
    draw = random.Random(4)
    return [_line({**GOOD, "n": n, "client": draw.randbytes(40).hex()}) for n in range(1, count + 1)]


def test_a_packed_file_is_read_whole_whatever_it_is_packed_in() -> None:
    values = _records(60)
    text = b"\n".join(values) + b"\n"
    middle = len(text) // 2
    members = gzip.compress(text[:middle]) + gzip.compress(b"") + gzip.compress(text[middle:])
    for content in (gzip.compress(text), gzip.compress(text[:-1]), members):
        (row,) = _gathered([content], _PACKED)
        assert row["lines"].split(b"\n") == values


def test_members_may_end_anywhere_in_the_pieces_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    values = _records(40)
    content = b"".join(gzip.compress(value + b"\n") for value in values)
    for size in (1, 7, len(gzip.compress(values[0] + b"\n")), 4096):
        monkeypatch.setattr(lines, "_READ_BYTES", size)
        (row,) = _gathered([content], _PACKED)
        assert row["lines"].split(b"\n") == values


def test_a_torn_packed_file_is_read_as_far_as_it_goes_and_said() -> None:
    values = _records(3000)
    whole = gzip.compress(b"\n".join(values) + b"\n")
    (row, *set_aside) = _gathered([whole[: len(whole) // 2]], _PACKED)
    read = row["lines"].split(b"\n")
    assert 1000 < len(read) < 2000
    assert read == values[: len(read)]
    # The line that it ends in is no record, either.
    assert _bad(set_aside) == {NO_OBJECT: 1, "ends in the middle; what is there was read": 0}
    assert {row["file"] for row in set_aside} == {_PACKED}


def test_a_damaged_packed_file_is_read_up_to_the_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    values = _records(3000)
    whole = gzip.compress(b"\n".join(values) + b"\n")
    small = gzip.compress(values[0] + b"\n")
    middle = len(whole) // 2
    cases = [
        # Its check sum, something behind it, and in the middle of what is packed.
        (whole[:-8] + b"\0" * 8, 3000, 3000),
        (small + small + b"no gzip", 2, 2),
        (small + whole[:middle] + b"\0" * 400 + whole[middle + 400 :], 1000, 2000),
    ]
    for size in (lines._READ_BYTES, 5000):
        monkeypatch.setattr(lines, "_READ_BYTES", size)
        for content, least, most in cases:
            rows = _gathered([content], _PACKED)
            assert least <= sum(row["records"] for row in _good(rows)) <= most
            assert "is no gzip, or damaged; what is before the damage was read" in _bad(rows)


def test_of_a_packed_line_without_an_end_the_beginning_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_LINE_BYTES", 1000)
    monkeypatch.setattr(lines, "_UNPACKED_BYTES", 300)
    content = gzip.compress(TEXT + b"\n" + b"x" * 100_000 + b"\n" + TEXT)
    unpacked = list(lines._unpacked(content, _PACKED, lines._nobody))
    assert (unpacked[0], set(unpacked[1]), unpacked[2:]) == (TEXT, {ord("x")}, [TEXT])
    assert 1000 <= len(unpacked[1]) < 1300
    rows = _gathered([content], _PACKED)
    assert (_bad(rows), sum(row["records"] for row in _good(rows))) == ({NO_OBJECT: 1}, 2)


def test_a_damaged_packed_line_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is before the damage comes byte by byte: copied anew with each of them, a long line would take hours.
    monkeypatch.setattr(lines, "_UNPACKED_BYTES", 300)
    content = gzip.compress(b"x" * 100_000)[:-8] + b"\0" * 8
    assert list(lines._unpacked(content, _PACKED, lines._nobody)) == [b"x" * 100_000]
    monkeypatch.setattr(lines, "_LINE_BYTES", 1000)
    (unpacked,) = lines._unpacked(content, _PACKED, lines._nobody)
    assert (set(unpacked), 1000 <= len(unpacked) < 1300) == ({ord("x")}, True)


@pytest.mark.parametrize("content", [b"no gzip at all", TEXT, zlib.compress(TEXT)], ids=["junk", "text", "zlib"])
def test_what_is_no_gzip_is_said(content: bytes) -> None:
    (row,) = _gathered([content], _PACKED)
    assert (row["reason"], row["records"], row["lines"]) == (
        "is no gzip, or damaged; what is before the damage was read", 0, b""
    )  # fmt: skip


def test_hours_are_of_the_records_of_each_file() -> None:
    # The clock of the second one was set once it ran.
    at = (60, 30, 90, _HOUR_S + 5)
    batches = [
        _batch([_line({**GOOD, "at_s": at_s}) for at_s in at[:3]], "file:/a"),
        _batch([b"junk", b"\xff", b"", _line({"at_s": -5}), _line({"at_s": "7"}), b"[" * 20_000], "file:/junk"),
        _batch([gzip.compress(b"\n".join(_line({**GOOD, "at_s": at_s}) for at_s in at))[:-9]], "file:/b.gz"),
        _batch([_line({**GOOD, "at_s": 3700})], "file:/a"),
    ]
    (found,) = hours_in(batches)
    assert found.schema == HOURS_IN
    assert {row["file"]: row["hours"] for row in found.to_pylist()} == {
        "file:/a": [0, 3600],
        "file:/b.gz": [0, _HOUR_S],
    }
