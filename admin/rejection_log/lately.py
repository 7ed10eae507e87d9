"""What became of one resource of late, read from the sidecar's own rejection log.

It reads the files of the last hour, those that are being written and the minute under way. It must never cost the data
path: it reads on a thread, one reader at a time, in pieces with pauses between them, so many bytes and so long at most;
the answer says if that was not all. A line is only decoded if it has the very name in it.
"""

import gzip
import math
import operator
import os
import time
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec
import trio

from admin.common.clock import write_time
from admin.common.disk import open_to_read, words_for
from admin.rejection_log import write_ahead
from admin.rejection_log.aggregate import MINUTE_S, minute_of
from admin.rejection_log.folder import FileName, finished_name, open_name, write_ahead_name
from admin.rejection_log.records import (
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitFields,
    RejectionRecord,
    TrafficRecord,
)
from admin.wire import RefusedClient, ResourceHistory
from limiter.counting.rejections import DID, OTHER
from limiter.rules.resource import Resource
from limiter.rules.rule import Count

MAX_SECONDS: Final = 3600
"""The longest time that can be asked for."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""So much is read for one answer, the latest first."""
MAX_S: Final = 2.0
"""So long it is read."""
KEPT_S: Final = 5.0
"""An answer is given again for so long."""
SHOWN_CLIENTS: Final = 100
MAX_CLIENTS: Final = 10_000
"""Told apart in one answer; the others are together under ``_other``."""

_PATIENCE_S: Final = 15.0
"""A disk that takes longer is told of."""
_STEPS: Final = 900
_MAX_KEPT: Final = 32
_PIECE_BYTES: Final = 128 * 1024
_LINE_BYTES: Final = 4 * 1024 * 1024
_PAUSE_S: Final = 0.001
_GZIP: Final = ".gz"
_HEARTBEAT: Final = b'"type":"heartbeat"'
_LIMIT_CHANGE: Final = b'"type":"limit_change"'

_decoder: Final[msgspec.json.Decoder[AnyRecord]] = msgspec.json.Decoder(AnyRecord)


class Lately:
    """Answers what became of a resource of late.

    Args:
        directory: of the log; None if there is none.
        why: why there is none; empty if nobody wanted one.
        wall_s: the wall clock, in seconds since 1970.
        max_bytes: read for one answer.
    """

    def __init__(
        self,
        directory: Path | None = None,
        why: str = "",
        *,
        wall_s: Callable[[], float] = time.time,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._directory, self._wall_s, self._max_bytes = directory, wall_s, max_bytes
        self._why = why or "the rejection log is off, so nothing is known of the past"
        self._lock, self._limiter = trio.Lock(), trio.CapacityLimiter(1)
        self._kept: dict[tuple[Resource, int], tuple[float, ResourceHistory]] = {}

    async def of(self, resource: Resource, seconds: int) -> ResourceHistory:
        """Return what became of a resource in the last seconds; ``problem`` says what could not be read."""
        until_s = int(self._wall_s())
        if self._directory is None:
            return Found(resource, seconds, until_s).answer(problem=self._why)
        with trio.move_on_after(_PATIENCE_S):
            async with self._lock:
                return await self._kept_or_read(self._directory, resource, seconds)
        problem = f"{self._directory}: the disk has not answered for {_PATIENCE_S:.0f} s"
        return Found(resource, seconds, until_s).answer(problem=problem)

    async def _kept_or_read(self, directory: Path, resource: Resource, seconds: int) -> ResourceHistory:
        now_s = trio.current_time()
        self._kept = {key: one for key, one in self._kept.items() if now_s - one[0] < KEPT_S}
        kept = self._kept.get((resource, seconds))
        if kept is not None:
            return kept[1]
        work = partial(read, directory, resource, seconds, int(self._wall_s()), self._max_bytes)
        # The limiter, too: a thread that was given up because its disk hangs still reads.
        history = await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)
        if len(self._kept) < _MAX_KEPT:
            self._kept[resource, seconds] = (now_s, history)
        return history


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


class Found:
    """What was found of one resource, second by second.

    Args:
        resource: which one.
        seconds: so many, up to ``until_s``.
        until_s: in seconds since 1970.
    """

    def __init__(self, resource: Resource, seconds: int, until_s: int) -> None:
        self.resource = resource
        self.begin_s, self.until_s = until_s - seconds, until_s
        self._seconds = seconds
        #: Messages that reached the broker, those that did not, and of these the ones that a rule refused.
        self._passed, self._stopped, self._refused = (array("q", bytes(8 * seconds)) for _ in range(3))
        #: Minutes in which some of what did not reach the broker was dropped, not refused.
        self._dropped: set[int] = set()
        self._held = array("d", bytes(8 * seconds))
        self._known = bytearray(seconds)
        #: The limit at the end of each minute, and when any limit was changed.
        self._limits: dict[int, LimitFields | dict[str, object]] = {}
        self._changes: set[int] = set()
        self._clients: dict[_Key, _Client] = {}
        #: Minutes of a run that are in the log: what was kept of them for the case of a crash is the same again.
        self._minutes: set[tuple[str, int]] = set()
        self._others_together = False

    def add(self, record: AnyRecord) -> None:
        """Add a record; those of other times, which a clock that was set may write, say nothing here."""
        if record.v != VERSION or not self.begin_s - MINUTE_S < record.at_s <= self.until_s:
            return
        match record:
            case HeartbeatRecord():
                self._minutes.add((record.run, record.at_s))
                # If less than a minute was recorded, the record does not say which part of it.
                self._know(record.at_s, record.at_s + MINUTE_S)
                self._others_together |= record.other > 0
            case TrafficRecord():
                self._know(record.at_s, record.at_s + MINUTE_S)
                columns = (record.second, record.second_admitted, record.second_refused)
                self._add_minute(record.at_s, columns, record.held.messages, record)
                if record.dropped.messages:
                    self._dropped.add(record.at_s)
            case LimitChangeRecord():
                self._changes.add(record.at_s)
            case RejectionRecord() if record.at_s >= self.begin_s:
                self._add_rejection(record)
            case _:
                pass

    def add_minute_under_way(self, left: write_ahead.Left) -> None:
        """Add what is noted of the minute that has no records yet."""
        minute = left.minute
        if (left.header.run, minute.at_s) in self._minutes:
            return
        covered = minute.covered
        for offset in range(MINUTE_S):
            if covered >> offset & 1:
                self._know(minute.at_s + offset, minute.at_s + offset + 1)
        for resource, traffic in minute:
            if resource == self.resource:
                amounts = traffic.amounts()
                held = amounts.get("held")
                if "dropped" in amounts:
                    self._dropped.add(minute.at_s)
                columns = tuple(traffic.seconds()[:3])
                seconds = max(1, covered.bit_count())
                self._add_minute(minute.at_s, columns, held.messages if held else 0, left.limits[resource], seconds)

    def _know(self, from_s: int, until_s: int) -> None:
        first, end = max(from_s, self.begin_s), min(until_s, self.until_s)
        if first < end:
            self._known[first - self.begin_s : end - self.begin_s] = b"\1" * (end - first)

    def _add_minute(
        self,
        at_s: int,
        columns: tuple[tuple[int, ...], ...],
        held: int,
        limit: LimitFields | dict[str, object],
        seconds: int = MINUTE_S,
    ) -> None:
        for offset, passed, stopped in zip(*columns, strict=False):
            index = at_s + offset - self.begin_s
            if 0 <= index < self._seconds:
                self._passed[index] += passed
                self._stopped[index] += stopped
        if held:
            for index in range(max(0, at_s - self.begin_s), min(self._seconds, at_s + seconds - self.begin_s)):
                self._held[index] += held / seconds
        self._limits[at_s] = limit

    def _add_rejection(self, record: RejectionRecord) -> None:
        key = _Key(record.client, record.user, record.product, record.producer_group)
        if key not in self._clients and len(self._clients) >= MAX_CLIENTS:
            key = _OTHERS
        client = self._clients.setdefault(key, _Client())
        client.requests += record.requests
        client.messages[record.verdict] += record.messages
        client.rules[record.rule] = None
        client.last_s = max(client.last_s, record.at_s)
        if record.verdict == "refuse" and record.at_s < self.until_s:
            self._refused[record.at_s - self.begin_s] += record.messages

    def answer(self, problem: str | None = None, reading: "_Reading | None" = None) -> ResourceHistory:
        """Put it together in steps of a few seconds.

        Args:
            problem: what could not be read.
            reading: how much was read.
        """
        reading = reading or _Reading(0)
        step_s = math.ceil(self._seconds / _STEPS)
        unknown_s = min(max(0, reading.whole_from_s - self.begin_s), self._seconds)
        self._known[:unknown_s] = bytes(unknown_s)
        known = [sum(self._known[at : at + step_s]) for at in range(0, self._seconds, step_s)]

        def rates(counts: "array[int] | array[float]") -> tuple[float | None, ...]:
            sums = (sum(counts[at : at + step_s]) for at in range(0, self._seconds, step_s))
            return tuple(round(total / of, 2) if of else None for total, of in zip(sums, known, strict=True))

        dropped = array("q", bytes(8 * self._seconds))
        for minute_s in self._dropped:
            for at_s in range(max(minute_s, self.begin_s), min(minute_s + MINUTE_S, self.until_s)):
                index = at_s - self.begin_s
                dropped[index] = max(0, self._stopped[index] - self._refused[index])
        refused = array("q", map(operator.sub, self._stopped, dropped))
        limits, count = self._limits_by_step(step_s)
        clients = sorted(
            self._clients.items(), key=lambda each: (-each[1].messages["refuse"], -each[1].requests, each[0])
        )
        all_refused = sum(client.messages["refuse"] for client in self._clients.values())
        first = self._known.find(1)
        return ResourceHistory(
            kind=self.resource.kind,
            name=self.resource.name,
            begin_at=_iso(self.begin_s),
            step_s=step_s,
            seconds=tuple(known),
            passed=rates(self._passed),
            refused=rates(refused),
            dropped=rates(dropped),
            held=rates(self._held),
            limit=limits,
            limit_count=count,
            known_from=None if first < 0 else _iso(self.begin_s + first),
            clients=tuple(
                RefusedClient(
                    client=key.client,
                    user=key.user,
                    product=key.product,
                    producer_group=key.producer_group,
                    rules=tuple(client.rules),
                    requests=client.requests,
                    messages_refused=client.messages["refuse"],
                    messages_shadowed=client.messages["shadow"],
                    messages_held=client.messages["hold"],
                    share=round(client.messages["refuse"] / all_refused, 4) if all_refused else 0,
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
        """Return the rate in force at each step, None where there is none or nobody knows, and what it counts."""
        count: Count = "messages"
        #: From when on which rate was in force.
        known: list[tuple[int, float | None]] = []
        end_s = 0
        for at_s, limit in sorted(self._limits.items()):
            fields = limit if isinstance(limit, dict) else msgspec.structs.asdict(limit)
            off = fields.get("action", "reject") == "off"
            found = None if off else fields.get("rate_per_s")
            rate = found if isinstance(found, int | float) else None
            count = "requests" if fields.get("count") == "requests" else "messages"
            begin_s = at_s
            if known and rate != known[-1][1]:
                # A minute has the limit of its end.
                changes = [each for each in self._changes if end_s <= each < at_s + MINUTE_S]
                begin_s = max(changes, default=at_s)
            known.append((begin_s, rate))
            end_s = at_s + MINUTE_S
        limits: list[float | None] = []
        in_force: float | None = None
        for at_s in range(self.begin_s, self.until_s, step_s):
            while known and known[0][0] < at_s + step_s:
                in_force = known.pop(0)[1]
            limits.append(in_force)
        return tuple(limits), count


class _Reading:
    """How much may be read, and how much was.

    Attributes:
        read_bytes: so many were.
        cut: that was not all there is.
        whole_from_s: what is older was not read to its beginning.
    """

    def __init__(self, max_bytes: int) -> None:
        self.read_bytes = self.whole_from_s = 0
        self.cut = False
        self._max_bytes, self._deadline_s = max_bytes, time.monotonic() + MAX_S

    @property
    def room_bytes(self) -> int:
        """So many may be read yet."""
        return max(0, self._max_bytes - self.read_bytes)

    def pieces(self, file: "BinaryIO | gzip.GzipFile") -> Iterator[bytes]:
        """Yield whole lines in pieces, as far as there is room and time."""
        for piece in pieces(file):
            if not self.room_bytes or time.monotonic() > self._deadline_s:
                self.cut = True
                return
            self.read_bytes += len(piece)
            yield piece


def read(
    directory: Path, resource: Resource, seconds: int, until_s: int, max_bytes: int = MAX_BYTES
) -> ResourceHistory:
    """Read what a log says of a resource; blocks, with pauses in which others run.

    Args:
        directory: of the log.
        resource: which one.
        seconds: so many, up to ``until_s``.
        until_s: in seconds since 1970.
        max_bytes: read at most.
    """
    found, reading = Found(resource, seconds, until_s), _Reading(max_bytes)
    since_s = found.begin_s - MINUTE_S
    problems: list[str] = []
    try:
        # First: what is not in the log yet when that is read is in here.
        under_way = list(_minutes_under_way(directory, resource, since_s, reading, problems))
        files = _files(directory, since_s)
    except OSError as error:
        return found.answer(f"{directory}: {words_for(error)}")
    needle = needle_of(resource)
    for file in files:
        try:
            for piece in _tail(file, reading):
                for line in lines_with(piece, (needle, _HEARTBEAT, _LIMIT_CHANGE)):
                    if (record := _decoded(line)) is not None:
                        found.add(record)
        except (OSError, EOFError, zlib.error) as error:
            problems += _problem(file.path, error)
        if reading.cut:
            break
    for left in under_way:
        found.add_minute_under_way(left)
    return found.answer("; ".join(problems[:3]) or None, reading)


def _problem(path: Path | str, error: Exception) -> tuple[str, ...]:
    """Say what is wrong with one file; nothing if it was deleted since, as the oldest are."""
    if isinstance(error, FileNotFoundError):
        return ()
    return (f"{path}: {words_for(error) if isinstance(error, OSError) else error}",)


def _iso(at_s: int) -> str:
    return write_time(datetime.fromtimestamp(at_s, UTC))


def _decoded(line: bytes) -> AnyRecord | None:
    try:
        record: AnyRecord = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record


class _File(NamedTuple):
    written_ns: int
    path: Path
    name: FileName


def _files(directory: Path, since_s: int) -> list[_File]:
    """Return the log files that were written since a moment, each once, the latest first."""
    found: dict[FileName, _File] = {}
    for entry in os.scandir(directory):
        name = finished_name(entry.name) or open_name(entry.name)
        with suppress(FileNotFoundError):
            if name is not None and (written_ns := entry.stat().st_mtime_ns) >= since_s * 1_000_000_000:
                found[name] = _File(written_ns, Path(entry.path), name)
    return sorted(found.values(), reverse=True)


def _minutes_under_way(
    directory: Path, resource: Resource, since_s: int, reading: _Reading, problems: list[str]
) -> Iterator[write_ahead.Left]:
    """Yield what is noted of a resource in minutes that have no records; add what cannot be read to the problems."""
    begins = (b'["begin",', b'["traffic",%b,%b,' % tuple(map(msgspec.json.encode, resource)), b'["commit",')
    for entry in os.scandir(directory):
        if write_ahead_name(entry.name) is None:
            continue
        try:
            if entry.stat().st_mtime < since_s:
                continue
            with os.fdopen(open_to_read(Path(entry.path)), "rb") as file:
                pieces_ = reading.pieces(file)
                lines = [line for piece in pieces_ for line in piece.split(b"\n") if line.startswith(begins)]
        except OSError as error:
            problems += _problem(entry.path, error)
            continue
        yield from (left for left in write_ahead.read(lines) if left is not None)


def _tail(file: _File, reading: _Reading) -> Iterator[bytes]:
    """Yield what there is room for of a file, in pieces of whole lines; of one that is too large it is the end."""
    try:
        descriptor = open_to_read(file.path)
    except FileNotFoundError:
        # It has got its name since.
        descriptor = open_to_read(file.path.with_name(file.name.finished))
    with os.fdopen(descriptor, "rb") as plain:
        if file.path.suffix == _GZIP:
            with gzip.open(plain) as unpacked:
                yield from reading.pieces(unpacked)
            return
        size = os.fstat(plain.fileno()).st_size
        if size > reading.room_bytes:
            reading.cut = True
            plain.seek(size - reading.room_bytes)
            # The end of a line that begins before.
            plain.readline(_LINE_BYTES)
            begin = plain.tell()
            first = _decoded(plain.readline(_LINE_BYTES))
            plain.seek(begin)
            # Of the minute that it is of there may be records before it.
            reading.whole_from_s = minute_of(first.at_s) + MINUTE_S if first is not None else 0
        yield from reading.pieces(plain)


def pieces(file: "BinaryIO | gzip.GzipFile") -> Iterator[bytes]:
    """Yield whole lines in pieces, with a pause after each, as a thread that computes holds up the event loop.

    A piece may be empty: who reads can stop in a file without lines, too, which may be long unpacked.
    """
    rest = b""
    while piece := file.read(_PIECE_BYTES):
        data = rest + piece
        end = data.rfind(b"\n") + 1
        yield data[:end]
        # No line is so long.
        rest = data[end:] if len(data) - end <= _LINE_BYTES else b""
        time.sleep(_PAUSE_S)


def needle_of(resource: Resource) -> bytes:
    """Return what stands in each line of JSON about a resource, as Sluice writes it: its kind, then its name."""
    return b'"kind":%b,"name":%b' % (msgspec.json.encode(resource.kind), msgspec.json.encode(resource.name))


def lines_with(data: bytes, needles: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield the lines that have one of the needles, in no order; a line that has two comes twice."""
    for needle in needles:
        at = data.find(needle)
        while at >= 0:
            end = data.find(b"\n", at)
            yield data[data.rfind(b"\n", 0, at) + 1 : end]
            at = data.find(needle, end)
