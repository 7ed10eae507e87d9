"""Records by hand, second by second, and what a report's kernels make of them: rows of its tables, without Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from admin.analytics.combine import combine, unpack
from admin.analytics.lines import GATHERED, Wanted, gather
from admin.rejection_log.records import (
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
)
from limiter.counting.rejections import Amount

MONDAY_S = 1_763_942_400
"""2025-11-24 00:00 UTC."""
_EVERYTHING = Wanted()
Rows = dict[str, list[dict[str, Any]]]
"""By table."""


class Asked(NamedTuple):
    """What was asked for in one second: messages admitted and refused; of all, requests, bytes and repeated
    messages.
    """

    admitted: int
    refused: int = 0
    requests: int = 0
    size_bytes: int = 0
    repeated: int = 0


@dataclass(frozen=True)
class Limit:
    """As ``admin.rejection_log.records.LimitFields`` has it."""

    rule: str = ""
    rate_per_s: float | None = None
    burst_s: float = 1.0
    break_s: float = 1.0
    count: Any = "messages"
    bytes_per_s: float | None = None
    bytes_burst_s: float = 1.0
    action: Any = "reject"
    fair_by: Any = None


class Run:
    """Makes the records of one sidecar's run, in ``records``."""

    def __init__(self, instance: str = "a", run: str = "r") -> None:
        self._head: dict[str, Any] = {"v": VERSION, "instance": instance, "run": run}
        self.records: list[AnyRecord] = []

    def _next(self, at_s: int) -> dict[str, Any]:
        return {**self._head, "n": len(self.records) + 1, "at_s": at_s}

    def traffic(
        self,
        minute_s: int,
        seconds: Mapping[int, Asked],
        limit: Limit = Limit(),
        *,
        name: str = "orders",
        language: str = "GO",
        **fields: Any,
    ) -> TrafficRecord:
        """Add a minute; all amounts and lists are of ``seconds`` where ``fields`` do not say otherwise."""
        of = {at: each._replace(requests=each.requests or each.admitted + each.refused) for at, each in seconds.items()}
        requests = sum(each.requests for each in of.values())
        refused = sum(
            max(1, round(each.requests * each.refused / (each.admitted + each.refused)))
            for each in of.values()
            if each.refused
        )
        messages, not_admitted = (sum(each[place] for each in of.values()) for place in (0, 1))
        size_bytes, repeated = (sum(each[place] for each in of.values()) for place in (3, 4))
        given: dict[str, Any] = {
            **asdict(limit),
            "admitted": Amount(requests - refused, messages, size_bytes),
            "refused": Amount(refused, not_admitted, 0),
            "repeated": Amount(repeated, repeated, 0),
            "busy_answers": refused,
            "languages": {language: (requests, refused)},
            "clients": 1,
            "second": tuple(of),
            "second_admitted": tuple(each.admitted for each in of.values()),
            "second_refused": tuple(each.refused for each in of.values()),
            "second_requests": tuple(each.requests for each in of.values()),
            "second_bytes": tuple(each.size_bytes for each in of.values()),
            "second_repeated": tuple(each.repeated for each in of.values()) if repeated else (),
        }
        record = TrafficRecord(**self._next(minute_s), kind="topic", name=name, **(given | fields))
        self.records.append(record)
        return record

    def rejection(self, at_s: int, messages: int = 1, *, name: str = "orders", **fields: Any) -> None:
        """Add what was refused to a client in a second."""
        given: dict[str, Any] = {"client": "c", "rule": "topic:orders", "verdict": "refuse", "requests": messages}
        given |= {"messages": messages, "bytes": 100 * messages}
        self.records.append(RejectionRecord(**self._next(at_s), kind="topic", name=name, **(given | fields)))

    def heartbeat(self, minute_s: int, **fields: Any) -> None:
        """Add a minute in which the sidecar ran."""
        given = {"version": "1", "seconds": 60} | fields
        self.records.append(HeartbeatRecord(**self._next(minute_s), **given))

    def limit(self, at_s: int, limit: Limit, *, name: str = "orders", **fields: Any) -> None:
        """Add a rule."""
        self.records.append(LimitRecord(**self._next(at_s), kind="topic", name=name, **(asdict(limit) | fields)))

    def other(self, record: type[AnyRecord], at_s: int, **fields: Any) -> None:
        """Add a record as it is."""
        self.records.append(record(**self._next(at_s), **fields))


def lines_of(records: Iterable[AnyRecord]) -> list[bytes]:
    """Return the lines of records."""
    return [msgspec.json.encode(record) for record in records]


def rows_of(
    lines: Sequence[bytes], *, gap_s: int = 30, attempts: Mapping[str, int] | None = None, wanted: Wanted = _EVERYTHING
) -> Rows:
    """Return the rows of all tables; of lines that are no records, those of ``bad``."""
    batch = pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.binary()), "file": ["file:/a.jsonl"] * len(lines)})
    # As Spark does it: by resource and hour, and what has none comes first.
    order = [(name, "ascending") for name in GATHERED.names[:4]]
    gathered = pa.Table.from_batches(gather(wanted)([batch])).sort_by(order)
    return rows_in(combine(gap_s, attempts or {})(gathered.to_batches(max_chunksize=2)))


def rows_in(batches: Iterable[pa.RecordBatch]) -> Rows:
    """Return the rows of batches of ``combine.COMBINED``, by table."""
    found: Rows = {}
    for batch in batches:
        for row in batch.to_pylist():
            packed = pa.RecordBatch.from_pydict({"rows": [row["rows"]]})
            for rows in unpack(row["made"])([packed]):
                found.setdefault(row["made"], []).extend(rows.to_pylist())
    return found
