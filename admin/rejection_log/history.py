"""Reads up to an hour of a resource's history from the sidecar's rejection log.

Only one request at a time may read the log, and the time and bytes that it may use are bounded.
"""

import math
import os
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
import trio

from admin.common.disk import open_to_read, os_error_text
from admin.rejection_log.files import file_name
from admin.rejection_log.records import (
    MINUTE_S,
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    RejectionRecord,
    TrafficRecord,
    minute_of,
)
from admin.wire import RefusedClient, ResourceHistory
from limiter.counting.rejections import DID, OTHER
from limiter.rules.resource import Resource
from limiter.rules.rule import Count
from proxy.common.clock import write_time

MAX_SECONDS: Final = 3600
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of bytes to read for a request, beginning with the latest."""
MAX_S: Final = 2.0
SHOWN_CLIENTS: Final = 100
MAX_CLIENTS: Final = 10_000
"""Maximum number of clients counted by name."""

_TIMEOUT_S: Final = 15.0
_MAX_STEPS: Final = 900
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
_HEARTBEAT: Final = b'"type":"heartbeat"'

_Found = TypeVar("_Found")

_decoder: Final[msgspec.json.Decoder[AnyRecord]] = msgspec.json.Decoder(AnyRecord)


class HistoryReader:
    """Reads histories. If ``directory`` is None, ``why`` is the reason, or empty if the log is off."""

    def __init__(
        self, directory: Path | None = None, why: str = "", *, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._directory, self._wall_s = directory, wall_s
        self._why = why or "the rejection log is off, so there is no history"
        self._limiter = trio.CapacityLimiter(1)

    async def of(self, resource: Resource, seconds: int) -> ResourceHistory:
        """Return a resource's history over the last ``seconds``. If it cannot be read, ``problem`` is set."""
        until_s = int(self._wall_s())
        found: ResourceHistory | str = self._why
        if self._directory is not None:
            work = partial(read, self._directory, resource, seconds, until_s)
            found = await read_with_timeout(work, self._directory, self._limiter)
        return _History(resource, seconds, until_s).answer(_Reading(0), found) if isinstance(found, str) else found


async def read_with_timeout(work: Callable[[], _Found], path: Path, limiter: trio.CapacityLimiter) -> _Found | str:
    """Run ``work`` on a thread. Return its result, or an error message if the disk hangs.

    A thread that hangs continues to count towards ``limiter``.
    """
    with trio.move_on_after(_TIMEOUT_S):
        return await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)
    return f"{path}: the disk has not responded for {_TIMEOUT_S:.0f} s"


def read(
    directory: Path, resource: Resource, seconds: int, until_s: int, max_bytes: int = MAX_BYTES
) -> ResourceHistory:
    history, reading = _History(resource, seconds, until_s), _Reading(max_bytes)
    problems: list[str] = []
    try:
        files = _files(directory, history.begin_s - MINUTE_S)
    except OSError as error:
        return history.answer(reading, f"{directory}: {os_error_text(error)}")
    needle = needle_of(resource)
    for path in files:
        try:
            for line in reading.lines(path):
                if (needle in line or _HEARTBEAT in line) and (record := decoded(line)) is not None:
                    history.add(record)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{path}: {os_error_text(error)}")
        if reading.cut:
            break
    return history.answer(reading, "; ".join(problems[:3]) or None)


class _Key(NamedTuple):
    client: str
    user: str
    product: str
    producer_group: str


_OTHERS: Final = _Key(OTHER, "", "", "")


@dataclass(slots=True)
class _Client:
    requests: int = 0
    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DID, 0))
    rules: dict[str, None] = field(default_factory=dict)
    last_s: int = 0


class _History:
    def __init__(self, resource: Resource, seconds: int, until_s: int) -> None:
        self.resource = resource
        self.begin_s, self.until_s = until_s - seconds, until_s
        self._seconds = seconds
        self._passed, self._refused, self._dropped, self._held = (array("d", bytes(8 * seconds)) for _ in range(4))
        self._known = bytearray(seconds)
        #: The records by their last second.
        self._limits: dict[int, TrafficRecord] = {}
        self._clients: dict[_Key, _Client] = {}
        self._others_together = False

    def add(self, record: AnyRecord) -> None:
        if record.v != VERSION or not self.begin_s - MINUTE_S < record.at_s <= self.until_s:
            return
        match record:
            case HeartbeatRecord():
                first = max(record.at_s - self.begin_s, 0)
                end = max(first, min(record.at_s + record.seconds - self.begin_s, self._seconds))
                self._known[first:end] = b"\1" * (end - first)
                self._others_together |= record.other > 0
            case TrafficRecord():
                self._add_traffic(record)
            case RejectionRecord() if record.at_s >= self.begin_s:
                self._add_rejection(record)
            case _:
                pass

    def _add_traffic(self, record: TrafficRecord) -> None:
        first = record.at_s - self.begin_s
        # A record only has totals for dropped and held messages, so spread them over its seconds.
        dropped = record.dropped.messages
        held_in = record.second or range(MINUTE_S)
        for offset, passed, stopped in zip(record.second, record.second_admitted, record.second_refused, strict=False):
            dropped_now = min(stopped, dropped)
            dropped -= dropped_now
            if 0 <= first + offset < self._seconds:
                self._passed[first + offset] += passed
                self._dropped[first + offset] += dropped_now
                self._refused[first + offset] += stopped - dropped_now
        for offset in held_in if record.held.messages else ():
            if 0 <= first + offset < self._seconds:
                self._held[first + offset] += record.held.messages / len(held_in)
        self._limits[record.at_s + (record.second[-1] if record.second else 0)] = record

    def _add_rejection(self, record: RejectionRecord) -> None:
        key = _Key(record.client, record.user, record.product, record.producer_group)
        if key not in self._clients and len(self._clients) >= MAX_CLIENTS:
            key = _OTHERS
        client = self._clients.setdefault(key, _Client())
        client.requests += record.requests
        client.messages[record.verdict] += record.messages
        client.rules[record.rule] = None
        client.last_s = max(client.last_s, record.at_s)

    def answer(self, reading: "_Reading", problem: str | None = None) -> ResourceHistory:
        step_s = math.ceil(self._seconds / _MAX_STEPS)
        unknown_s = min(max(0, reading.whole_from_s - self.begin_s), self._seconds)
        self._known[:unknown_s] = bytes(unknown_s)
        steps = range(0, self._seconds, step_s)
        known = [sum(self._known[at : at + step_s]) for at in steps]

        def rates(counts: "array[float]") -> tuple[float | None, ...]:
            sums = (sum(counts[at : at + step_s]) for at in steps)
            return tuple(round(total / of, 2) if of else None for total, of in zip(sums, known, strict=True))

        limits, count = self._limits_by_step(step_s)
        clients = sorted(
            self._clients.items(), key=lambda each: (-each[1].messages["refuse"], -each[1].requests, each[0])
        )
        first = self._known.find(1)
        all_refused = sum(client.messages["refuse"] for client in self._clients.values())
        return ResourceHistory(
            kind=self.resource.kind,
            name=self.resource.name,
            begin_at=_iso(self.begin_s),
            step_s=step_s,
            seconds=tuple(known),
            passed=rates(self._passed),
            refused=rates(self._refused),
            dropped=rates(self._dropped),
            held=rates(self._held),
            limit=limits,
            limit_count=count,
            known_from=None if first < 0 else _iso(self.begin_s + first),
            clients=tuple(
                RefusedClient(
                    **key._asdict(),
                    rules=tuple(client.rules),
                    requests=client.requests,
                    share=round(client.messages["refuse"] / all_refused, 4) if all_refused else 0,
                    messages_refused=client.messages["refuse"],
                    messages_shadowed=client.messages["shadow"],
                    messages_held=client.messages["hold"],
                    last_at=_iso(client.last_s),
                )
                for key, client in clients[:SHOWN_CLIENTS]
            ),
            more_clients=max(0, len(clients) - SHOWN_CLIENTS),
            messages_refused=all_refused,
            others_together=self._others_together,
            bytes_read=reading.read_bytes,
            cut=reading.cut,
            problem=problem,
        )

    def _limits_by_step(self, step_s: int) -> tuple[tuple[float | None, ...], Count]:
        """Return the limit at each step, and the unit that the latest limit counts.

        A change can appear up to ten seconds early, because a record contains only the limit at its end.
        """
        records = [record for _, record in sorted(self._limits.items())]
        limits: list[float | None] = []
        place, rate = 0, None
        for at_s in range(self.begin_s, self.until_s, step_s):
            while place < len(records) and _first_second(records[place]) < at_s + step_s:
                rate = None if records[place].action == "off" else records[place].rate_per_s
                place += 1
            limits.append(rate)
        return tuple(limits), records[-1].count if records else "messages"


def _first_second(record: TrafficRecord) -> int:
    return record.at_s + (record.second[0] if record.second else 0)


class _Reading:
    """Reads lines until a bound on the bytes or the time is reached.

    Attributes:
        cut: Whether a bound was reached.
        whole_from_s: The time, in seconds since 1970, from which no record is missing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.read_bytes = self.whole_from_s = 0
        self.cut = False
        self._max_bytes, self._deadline_s = max_bytes, time.monotonic() + MAX_S

    def lines(self, path: Path) -> Iterator[bytes]:
        """Yield a file's lines. If the file has more bytes than may still be read, yield only the last lines."""
        with os.fdopen(open_to_read(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            room_bytes = max(0, self._max_bytes - self.read_bytes)
            if size > room_bytes:
                self.cut = True
                file.seek(size - room_bytes)
                file.readline(_MAX_LINE_BYTES)
                begin = file.tell()
                first = decoded(file.readline(_MAX_LINE_BYTES))
                file.seek(begin)
                # Earlier records of the same minute may be missing.
                self.whole_from_s = minute_of(first.at_s) + MINUTE_S if first is not None else 0
            while line := file.readline(_MAX_LINE_BYTES):
                if self.read_bytes + len(line) > self._max_bytes or time.monotonic() > self._deadline_s:
                    self.cut = True
                    return
                self.read_bytes += len(line)
                yield line


def _iso(at_s: int) -> str:
    return write_time(datetime.fromtimestamp(at_s, UTC))


def _files(directory: Path, since_s: int) -> list[Path]:
    found: list[tuple[float, Path]] = []
    for entry in os.scandir(directory):
        with suppress(FileNotFoundError):
            if str(file_name(entry.name)) == entry.name and (written_s := entry.stat().st_mtime) >= since_s:
                found.append((written_s, Path(entry.path)))
    return [path for _, path in sorted(found, reverse=True)]


def needle_of(resource: Resource) -> bytes:
    """Return the JSON of a resource's kind and name, which occurs in every line about the resource."""
    return b'"kind":%b,"name":%b' % (msgspec.json.encode(resource.kind), msgspec.json.encode(resource.name))


def decoded(line: bytes) -> AnyRecord | None:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
