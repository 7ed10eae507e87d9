"""Files of a rejection log, as others can write them: each line is a record, or counted as unreadable.

Records are turned into text without control characters, and added up for the page.

The first byte of an input selects lines of records, or a packed file of lines.
"""

import gzip
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from admin.analytics.log import _unpacked
from admin.rejection_log.history import _History, _Reading, decoded
from admin.rejection_log.records import (
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
    line_of,
)
from admin.rejection_log.tail import _Reader, order, text_of
from limiter.counting.rejections import Amount
from limiter.rules.resource import Resource

# An hour of seconds is added up, whatever was read.
STEPS: Final = (3_000_000, 10_000)
_RECORDS, _PACKED = b"r", b"p"
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


def run(data: bytes) -> None:
    what, content = data[:1], data[1:]
    if what == _PACKED:
        list(_unpacked(memoryview(content)))
    else:
        _read_records(content)


def _read_records(content: bytes) -> None:
    lines = content.split(b"\n")
    records = list(_Reader().records(lines))
    _say(records)
    history = _History(_ORDERS, 3600, _UNTIL_S)
    for line in lines:
        if (record := decoded(line)) is not None:
            history.add(record)
    msgspec.json.encode(history.answer(_Reading(0)))


def _say(records: Iterable[AnyRecord]) -> None:
    for record in sorted(records, key=order):
        assert text_of(record).isprintable()
