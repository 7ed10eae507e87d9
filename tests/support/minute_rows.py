"""Rows of the tables that recommendations are made from, by hand: what was asked for, second by second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from admin.analytics import tables
from admin.analytics.reading import OUTCOMES

MONDAY_S = 1_763_942_400
"""2025-11-24 00:00 UTC."""


class Asked(NamedTuple):
    """What was asked for in one second: messages admitted and refused; requests and bytes of all."""

    admitted: int
    refused: int = 0
    requests: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class Limit:
    rule: str = ""
    rate_per_s: float | None = None
    burst_s: float = 1.0
    break_s: float = 1.0
    count: str = "messages"
    bytes_per_s: float | None = None
    bytes_burst_s: float = 1.0
    action: str = "reject"


def minute(
    name: str,
    minute_s: int,
    seconds: Mapping[int, Asked],
    limit: Limit,
    *,
    language: str = "GO",
    instance: str = "a",
) -> dict[str, Any]:
    """Make a row of ``minutes``; requests are as many as messages where they are 0."""
    found = {at: each._replace(requests=each.requests or each.admitted + each.refused) for at, each in seconds.items()}
    row: dict[str, Any] = {f"{outcome}_{what}": 0 for outcome in OUTCOMES for what in ("requests", "messages", "bytes")}
    requests = sum(each.requests for each in found.values())
    refused = sum(round(each.requests * each.refused / (each.admitted + each.refused)) for each in found.values())
    row |= {
        "instance": instance,
        "kind": "topic",
        "name": name,
        "minute_s": minute_s,
        "admitted_requests": requests - refused,
        "admitted_messages": sum(each.admitted for each in found.values()),
        "admitted_bytes": sum(each.size_bytes for each in found.values()),
        "refused_requests": refused,
        "refused_messages": sum(each.refused for each in found.values()),
        "busy_answers": refused,
        "languages": {language: (requests, refused)},
        "clients": 1,
        "more_clients": False,
        **{key: getattr(limit, key) for key in tables.LIMIT_KEY},
        "second": list(found),
        "second_admitted": [each.admitted for each in found.values()],
        "second_refused": [each.refused for each in found.values()],
        "second_requests": [each.requests for each in found.values()],
        "second_bytes": [each.size_bytes for each in found.values()],
        "demand_messages": sum(each.admitted + each.refused for each in found.values()),
        "demand_peak_per_s": max(each.admitted + each.refused for each in found.values()),
        "refused_peak_per_s": max(each.refused for each in found.values()),
        "wait_max_us": 0,
        "dt": tables.day_of(minute_s),
    }
    return row


def hours_of(minutes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make those columns of ``hours`` that recommendations need."""
    found: dict[tuple[str, str, str, int], int] = {}
    for row in minutes:
        key = (row["instance"], row["kind"], row["name"], row["minute_s"] - row["minute_s"] % 3600)
        found[key] = found.get(key, 0) + row["demand_messages"]
    return [
        {"instance": instance, "kind": kind, "name": name, "hour_s": hour_s, "demand_messages": demand}
        | {"dt": tables.day_of(hour_s)}
        for (instance, kind, name, hour_s), demand in found.items()
    ]


def coverage(hours: Sequence[int], seconds: int = 3600, *, instance: str = "a", lost: int = 0) -> list[dict[str, Any]]:
    """Make rows of ``coverage``: these hours, so many seconds of each."""
    return [
        {"instance": instance, "run": "r", "hour_s": hour_s, "minutes": 60, "seconds": seconds}
        | {"first_minute_s": hour_s, "last_minute_s": hour_s + 3540, "limiting_off_minutes": 0, "connections_max": 1}
        | {"bypassed_requests": 0, "other": 0, "lost_records": lost, "records": 100}
        | {"first_n": at * 100 + 1, "last_n": at * 100 + 100, "version": "1", "dt": tables.day_of(hour_s)}
        for at, hour_s in enumerate(hours)
    ]


def frame(spark: SparkSession, table: tables.Table, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Make a table of rows; columns that they do not have are null."""
    names = [column.split()[0] for column in table.columns]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], table.ddl)
