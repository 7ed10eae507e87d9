"""Files of a rejection log, as others can write them: what is read is a record, and the rest is counted as unreadable.

What is a record is put in words without anything that would give a terminal orders, is added up for the page, and is
gathered for a report; what is noted in case of a crash is written as records that are read again.

The first byte of an input says what it is: lines of records, lines of a write-ahead file, or a file of lines that is
packed.
"""

import gzip
from collections.abc import Iterable
from datetime import UTC
from typing import Any, Final

import msgspec

from admin.analytics.lines import Wanted, _Gathering, _unpacked
from admin.rejection_log import write_ahead
from admin.rejection_log.composing import Composer, line_of
from admin.rejection_log.lately import Found, lines_with, needle_of
from admin.rejection_log.lately import _decoded as decoded_lately
from admin.rejection_log.records import (
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
)
from admin.rejection_log.tail import _order, _Reader, worded
from limiter.counting.rejections import Amount
from limiter.rules.resource import Resource

#: An hour of seconds is added up, whatever was read.
STEPS: Final = (3_000_000, 10_000)
_RECORDS, _AHEAD, _PACKED = b"r", b"a", b"p"
_MINUTE_S: Final = 1_763_942_400
_ORDERS: Final = Resource("topic", "orders")
_UNTIL_S: Final = _MINUTE_S + 120


def seeds() -> Iterable[bytes]:
    """Return one of each line."""
    every: dict[str, Any] = {"v": VERSION, "instance": "a", "run": "r", "at_s": _MINUTE_S}
    topic: dict[str, Any] = {"kind": "topic", "name": "orders", "rule": "topic:orders"}
    counts: dict[str, Any] = {"requests": 3, "messages": 4, "bytes": 500}
    records: tuple[msgspec.Struct, ...] = (
        RejectionRecord(n=1, client="10.0.0.1", user="u", verdict="refuse", wait_max_us=7, **every, **topic, **counts),
        TrafficRecord(
            n=2,
            admitted=Amount(1, 2, 300),
            refused=Amount(2, 2, 200),
            repeated=Amount(1, 1, 100),
            identified=2,
            busy_answers=2,
            languages={"JAVA": (3, 2)},
            clients=1,
            rate_per_s=500.0,
            bytes_per_s=1e6,
            second=(3, 59),
            second_admitted=(1, 1),
            second_refused=(2, 0),
            second_requests=(2, 1),
            second_bytes=(400, 100),
            **every,
            **topic,
        ),
        LimitRecord(n=3, rate_per_s=5.0, action="delay", fair_by="client", **every, **topic),
        LimitChangeRecord(
            n=4, change_id=7, action="set", by="alice", reason="why", **every, kind="topic", name="orders"
        ),
        HeartbeatRecord(n=5, version="0.1.0", connections=3, limiting=True, seconds=60, **every),
    )
    lines = [line_of(record) for record in records]
    for line in lines:
        yield _RECORDS + line
    yield _RECORDS + b"".join(lines)
    yield _PACKED + gzip.compress(b"".join(lines), mtime=0)
    ahead = (
        write_ahead.Header(write_ahead.VERSION, "a", "r", "0.1.0", _MINUTE_S, 7, 100),
        write_ahead.Seen(
            "topic",
            "orders",
            {"rate_per_s": 5.0},
            _MINUTE_S + 3,
            {"admitted": Amount(1, 2, 3)},
            busy_answers=0,
            languages={"JAVA": (1, 0)},
            clients=("10.0.0.1",),
            more_clients=False,
        ),
        write_ahead.Commit(8, 7, 1, 0, limiting=True, lost_records=0),
    )
    yield _AHEAD + b"\n".join(map(msgspec.json.encode, ahead))


def run(data: bytes) -> None:
    """Try an input."""
    what, content = data[:1], data[1:]
    if what == _AHEAD:
        _read_ahead(content)
    elif what == _PACKED:
        gathering = _Gathering(Wanted())
        for line in _unpacked(content, "file.gz", gathering.bad):
            gathering.take(line, "file.gz")
        gathering.flush()
    else:
        _read_records(content)


def _read_records(content: bytes) -> None:
    lines = content.split(b"\n")
    records = list(_Reader().records(lines))
    _say(records)
    found = Found(_ORDERS, 3600, _UNTIL_S)
    for line in lines_with(content + b"\n", (needle_of(_ORDERS), b'"type":"heartbeat"')):
        if (record := decoded_lately(line)) is not None:
            found.add(record)
    msgspec.json.encode(found.answer())
    gathering = _Gathering(Wanted())
    for line in lines:
        gathering.take(line, "file")
    rows = gathering.flush().to_pylist()
    gathered = sum(row["records"] for row in rows if not row["reason"])
    bad = sum(row["records"] for row in rows if row["reason"])
    assert gathered <= len(records)
    assert gathered + bad <= len(lines)


def _say(records: Iterable[AnyRecord]) -> None:
    for record in sorted(records, key=_order):
        said = worded(record, UTC)
        assert "\n" not in said.text
        assert said.text.isprintable()


def _read_ahead(content: bytes) -> None:
    left = None
    for each in write_ahead.read(content.split(b"\n")):
        left = each or left
    if left is None:
        return
    found = Found(_ORDERS, 3600, _UNTIL_S)
    found.add_minute_under_way(left)
    msgspec.json.encode(found.answer())
    # As recovery does it after a crash.
    composer = Composer(left.header.instance, left.header.run, left.last.n)
    lines = [
        composer.traffic(left.minute.at_s, resource, traffic, left.limits.get(resource, {}))
        for resource, traffic in left.minute
    ]
    lines.append(
        composer.heartbeat(
            left.minute, version=left.header.sluice, limiting=left.last.limiting, lost_records=left.last.lost_records
        )
    )
    for line in lines:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
