"""The last hour of one resource, read from the sidecar's own rejection log, on a thread and within bounds.

One reader at a time reads a bounded number of bytes for a bounded time; the answer says if there was more. Lines are
decoded only if the name is in them.
"""

import math
import os
import time
from array import array
from collections import Counter
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
from admin.rejection_log.files import file_name
from admin.rejection_log.records import (
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    RejectionRecord,
    TrafficRecord,
)
from admin.rejection_log.totals import MINUTE_S, minute_of
from admin.wire import RefusedClient, ResourceHistory
from limiter.counting.rejections import DID, OTHER
from limiter.rules.resource import Resource
from limiter.rules.rule import Count

MAX_SECONDS: Final = 3600
"""The longest time that can be asked for."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Read for one answer, the latest first."""
MAX_S: Final = 2.0
"""Spent reading for one answer."""
KEPT_S: Final = 5.0
"""For how long an answer is given again."""
SHOWN_CLIENTS: Final = 100
MAX_CLIENTS: Final = 10_000
"""Told apart in one answer; the others are together under ``_other``."""

_PATIENCE_S: Final = 15.0
_STEPS: Final = 900
_MAX_KEPT: Final = 32
_PIECE_BYTES: Final = 128 * 1024
_LINE_BYTES: Final = 4 * 1024 * 1024
_HEARTBEAT: Final = b'"type":"heartbeat"'
_LIMIT_CHANGE: Final = b'"type":"limit_change"'

_decoder: Final[msgspec.json.Decoder[AnyRecord]] = msgspec.json.Decoder(AnyRecord)


class HistoryReader:
    """Answers questions about the past of a resource.

    Args:
        directory: of the log; None if there is none.
        why: why there is none; empty if it is off.
        wall_s: the wall clock, in seconds since 1970.
    """

    def __init__(
        self, directory: Path | None = None, why: str = "", *, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._directory, self._wall_s = directory, wall_s
        self._why = why or "the rejection log is off, so nothing is known of the past"
        self._lock, self._limiter = trio.Lock(), trio.CapacityLimiter(1)
        self._kept: dict[tuple[Resource, int], tuple[float, ResourceHistory]] = {}

    async def of(self, resource: Resource, seconds: int) -> ResourceHistory:
        """Return what became of a resource in the last seconds; ``problem`` says what could not be read."""
        problem = self._why
        if (directory := self._directory) is not None:
            problem = f"{directory}: the disk has not answered for {_PATIENCE_S:.0f} s"
            with trio.move_on_after(_PATIENCE_S):
                async with self._lock:
                    return await self._kept_or_read(directory, resource, seconds)
        return _Found(resource, seconds, int(self._wall_s())).answer(_Reading(0), problem)

    async def _kept_or_read(self, directory: Path, resource: Resource, seconds: int) -> ResourceHistory:
        now_s = trio.current_time()
        self._kept = {key: one for key, one in self._kept.items() if now_s - one[0] < KEPT_S}
        if (kept := self._kept.get((resource, seconds))) is not None:
            return kept[1]
        work = partial(read, directory, resource, seconds, int(self._wall_s()))
        # The limiter, too, as a thread that was given up because its disk hangs still reads.
        history = await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)
        if len(self._kept) < _MAX_KEPT:
            self._kept[resource, seconds] = (now_s, history)
        return history


def read(
    directory: Path, resource: Resource, seconds: int, until_s: int, max_bytes: int = MAX_BYTES
) -> ResourceHistory:
    """Read what a log says of a resource in the seconds up to ``until_s``, in seconds since 1970."""
    found, reading = _Found(resource, seconds, until_s), _Reading(max_bytes)
    problems: list[str] = []
    try:
        files = _files(directory, found.begin_s - MINUTE_S)
    except OSError as error:
        return found.answer(reading, f"{directory}: {words_for(error)}")
    needles = (needle_of(resource), _HEARTBEAT, _LIMIT_CHANGE)
    for path in files:
        try:
            for piece in reading.end_of(path):
                for line in lines_with(piece, needles):
                    if (record := decoded(line)) is not None:
                        found.add(record)
        except FileNotFoundError:
            # Deleted since, as the oldest are.
            continue
        except OSError as error:
            problems.append(f"{path}: {words_for(error)}")
        if reading.cut:
            break
    return found.answer(reading, "; ".join(problems[:3]) or None)


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


class _Found:
    """What was found of one resource, second by second."""

    def __init__(self, resource: Resource, seconds: int, until_s: int) -> None:
        self.resource = resource
        self.begin_s, self.until_s = until_s - seconds, until_s
        self._seconds = seconds
        #: Messages that reached the broker, those that did not, and of these the ones that a rule refused.
        self._passed, self._stopped, self._refused = (array("q", bytes(8 * seconds)) for _ in range(3))
        #: Minutes in which some of what did not reach the broker was dropped, not refused.
        self._dropped: set[int] = set()
        self._held: Counter[int] = Counter()
        self._known = bytearray(seconds)
        #: The records with the limit at their end, by their last second, and when any limit was changed.
        self._limits: dict[int, TrafficRecord] = {}
        self._changes: list[int] = []
        self._clients: dict[_Key, _Client] = {}
        self._others_together = False

    def add(self, record: AnyRecord) -> None:
        """Add a record; those of other times, which a clock that was set may write, say nothing here."""
        if record.v != VERSION or not self.begin_s - MINUTE_S < record.at_s <= self.until_s:
            return
        match record:
            case HeartbeatRecord():
                first = max(record.at_s - self.begin_s, 0)
                # A heartbeat of few seconds can end before the first second here.
                end = max(first, min(record.at_s + record.seconds - self.begin_s, self._seconds))
                self._known[first:end] = b"\1" * (end - first)
                self._others_together |= record.other > 0
            case TrafficRecord():
                self._add_traffic(record)
            case LimitChangeRecord():
                self._changes.append(record.at_s)
            case RejectionRecord() if record.at_s >= self.begin_s:
                self._add_rejection(record)
            case _:
                pass

    def _add_traffic(self, record: TrafficRecord) -> None:
        for offset, passed, stopped in zip(record.second, record.second_admitted, record.second_refused, strict=False):
            index = record.at_s + offset - self.begin_s
            if 0 <= index < self._seconds:
                self._passed[index] += passed
                self._stopped[index] += stopped
        if record.held.messages:
            self._held[minute_of(record.at_s)] += record.held.messages
        if record.dropped.messages:
            self._dropped.add(minute_of(record.at_s))
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
        if record.verdict == "refuse" and record.at_s < self.until_s:
            self._refused[record.at_s - self.begin_s] += record.messages

    def answer(self, reading: "_Reading", problem: str | None = None) -> ResourceHistory:
        """Put it together in steps of a few seconds."""
        step_s = math.ceil(self._seconds / _STEPS)
        unknown_s = min(max(0, reading.whole_from_s - self.begin_s), self._seconds)
        self._known[:unknown_s] = bytes(unknown_s)
        steps = range(0, self._seconds, step_s)
        known = [sum(self._known[at : at + step_s]) for at in steps]

        def rates(counts: "array[int] | array[float]") -> tuple[float | None, ...]:
            sums = (sum(counts[at : at + step_s]) for at in steps)
            return tuple(round(total / of, 2) if of else None for total, of in zip(sums, known, strict=True))

        dropped = array("q", bytes(8 * self._seconds))
        for index in self._of_minutes(self._dropped):
            dropped[index] = max(0, self._stopped[index] - self._refused[index])
        refused = array("q", (stopped - less for stopped, less in zip(self._stopped, dropped, strict=True)))
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
            refused=rates(refused),
            dropped=rates(dropped),
            held=rates(self._held_by_second()),
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

    def _of_minutes(self, minutes: set[int]) -> Iterator[int]:
        return (index for index in range(self._seconds) if minute_of(self.begin_s + index) in minutes)

    def _held_by_second(self) -> "array[float]":
        """Spread what was held in a minute over the seconds of it that are known."""
        held = array("d", bytes(8 * self._seconds))
        unknown = Counter(minute_of(self.begin_s + index) for index in range(self._seconds) if not self._known[index])
        for index in self._of_minutes(set(self._held)):
            minute_s = minute_of(self.begin_s + index)
            # The minute under way goes on behind the end.
            ahead_s = max(0, minute_s + MINUTE_S - self.until_s)
            held[index] = self._held[minute_s] / max(1, MINUTE_S - unknown[minute_s] - ahead_s)
        return held

    def _limits_by_step(self, step_s: int) -> tuple[tuple[float | None, ...], Count]:
        """Return the rate in force at each step, None where there is none or it is not known, and what it counts."""
        count: Count = "messages"
        #: From when on which rate was in force.
        known: list[tuple[int, float | None]] = []
        before_s = 0
        for last_s, record in sorted(self._limits.items()):
            rate = None if record.action == "off" else record.rate_per_s
            count = record.count
            begin_s = record.at_s + (record.second[0] if record.second else 0)
            if known and rate != known[-1][1]:
                # A record has the limit of its end.
                begin_s = max((each for each in self._changes if before_s < each <= last_s), default=begin_s)
            known.append((begin_s, rate))
            before_s = last_s
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
        read_bytes: already.
        cut: there was more.
        whole_from_s: what is older was not read to its beginning.
    """

    def __init__(self, max_bytes: int) -> None:
        self.read_bytes = self.whole_from_s = 0
        self.cut = False
        self._max_bytes, self._deadline_s = max_bytes, time.monotonic() + MAX_S

    def end_of(self, path: Path) -> Iterator[bytes]:
        """Yield what there is room for of a file, in pieces of whole lines; of one that is too large it is the end."""
        with os.fdopen(open_to_read(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            room_bytes = max(0, self._max_bytes - self.read_bytes)
            if size > room_bytes:
                self.cut = True
                file.seek(size - room_bytes)
                # The end of a line that begins before.
                file.readline(_LINE_BYTES)
                begin = file.tell()
                first = decoded(file.readline(_LINE_BYTES))
                file.seek(begin)
                # There may be records of its minute before it.
                self.whole_from_s = minute_of(first.at_s) + MINUTE_S if first is not None else 0
            for piece in pieces(file):
                if self.read_bytes >= self._max_bytes or time.monotonic() > self._deadline_s:
                    self.cut = True
                    return
                self.read_bytes += len(piece)
                yield piece


def _iso(at_s: int) -> str:
    return write_time(datetime.fromtimestamp(at_s, UTC))


def _files(directory: Path, since_s: int) -> list[Path]:
    """Return the log files that were written since a moment and not compressed, the latest first."""
    found: list[tuple[float, Path]] = []
    for entry in os.scandir(directory):
        with suppress(FileNotFoundError):
            if str(file_name(entry.name)) == entry.name and (written_s := entry.stat().st_mtime) >= since_s:
                found.append((written_s, Path(entry.path)))
    return [path for _, path in sorted(found, reverse=True)]


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines in pieces."""
    rest = b""
    while piece := file.read(_PIECE_BYTES):
        data = rest + piece
        end = data.rfind(b"\n") + 1
        yield data[:end]
        # No line is so long.
        rest = data[end:] if len(data) - end <= _LINE_BYTES else b""


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


def decoded(line: bytes) -> AnyRecord | None:
    """Read a record; None if it is none."""
    try:
        record: AnyRecord = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record
