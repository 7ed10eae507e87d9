"""``sluice report tail``: the end of a rejection log for people, and what is added to it while they look.

It reads all log files, compressed or not. Lines that it cannot read are counted.
"""

import errno
import gzip
import os
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, get_args

import msgspec
import trio

from admin.common import numbers
from admin.common.disk import open_to_read, words_for
from admin.common.errors import StartError
from admin.common.numbers import measured
from admin.common.tables import printable
from admin.rejection_log.records import (
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitFields,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
)
from admin.rejection_log.totals import MINUTE_S
from limiter.counting.rejections import DID, Amount, Outcome

Tone = Literal["plain", "bad", "good", "faint"]

_US_PER_S: Final = 1_000_000
_KB: Final = 1000
_LOOK_S: Final = 0.5
_PIECE_BYTES: Final = 64 * 1024
_LINE_BYTES: Final = 4 * 1024 * 1024
"""No record is so long."""
_RECORD_BYTES: Final = 4096
_MAX_LINES: Final = 1_000_000
_GZIP: Final = ".gz"
_ENDINGS: Final = (".jsonl", f".jsonl{_GZIP}")
_COLOURS: Final[dict[Tone, str]] = {"plain": "", "bad": "\x1b[31m", "good": "", "faint": "\x1b[2m"}
_NO_COLOUR: Final = "\x1b[0m"
_WHAT_WIDTH: Final = 8

_decoder: Final = msgspec.json.Decoder(AnyRecord)


class _Version(msgspec.Struct):
    v: int = 0


_version_of: Final = msgspec.json.Decoder(_Version)


def tail(paths: Sequence[Path], lines: int = 10, follow: bool = False) -> int:  # noqa: FBT001, FBT002 - a flag of the command
    """Print the last records of files, and of all files below folders, in order of time.

    Args:
        paths: files and folders.
        lines: number of records.
        follow: go on with what is added, until Ctrl-C.

    Returns:
        The exit code: 0, or 1 if a file could not be read.

    Raises:
        StartError: a path is not there, or there is nothing to read.
    """
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            words = "is not there" if error.errno in {errno.ENOENT, errno.ENOTDIR} else words_for(error)
            raise StartError(f"{printable(str(path))}: {words}") from None
    reader, printer = _Reader(), _Printer()
    try:
        files = reader.find(paths)
        if not files and not follow and not reader.unreadable_files:
            raise StartError([f"{printable(str(path))}: no file of a rejection log in it" for path in paths])
        printer.print(reader.last(files, min(lines, _MAX_LINES)))
        if follow:
            trio.run(_follow, paths, reader, printer)
    finally:
        reader.say()
    return 1 if reader.unreadable_files else 0


async def _follow(paths: Sequence[Path], reader: "_Reader", printer: "_Printer") -> None:
    while True:
        await trio.sleep(_LOOK_S)
        printer.print(reader.added(reader.find(paths)))


_Found = tuple[Path, os.stat_result]


class _Reader:
    """Reads files, remembers how far, and counts what it cannot read."""

    def __init__(self) -> None:
        self.unreadable_files: dict[Path, str] = {}
        self._bad = self._newer = 0
        #: The end of the last whole line that was read, by file, whatever that is called meanwhile.
        self._read: dict[tuple[int, int], int] = {}

    def find(self, paths: Sequence[Path]) -> list[_Found]:
        """Return all log files below some paths with their status, the latest written first."""
        found: dict[Path, os.stat_result] = {}
        for path in self._files(paths):
            try:
                found[path] = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                self._cannot(path, error)
        return sorted(found.items(), key=lambda item: item[1].st_mtime_ns, reverse=True)

    def last(self, files: Sequence[_Found], count: int) -> list[AnyRecord]:
        """Return the last records of all files, each once, in order."""
        best: dict[tuple[str, int], AnyRecord] = {}
        for path, status in files:
            self._read[_identity(status)] = status.st_size
            # What was written last before the oldest of these cannot be later than it.
            if len(best) >= count and (not best or status.st_mtime < min(map(order, best.values()))[0]):
                continue
            try:
                lines, end = _last_lines(path, status.st_size, count)
                self._read[_identity(status)] = end
                best |= {(record.run, record.n): record for record in self.records(lines)}
            except (OSError, EOFError, zlib.error) as error:
                self._cannot(path, error)
            best = {(record.run, record.n): record for record in nlargest(count, best.values(), key=order)}
        return sorted(best.values(), key=order)

    def added(self, files: Sequence[_Found]) -> list[AnyRecord]:
        """Return the records that were added to files, or are in new ones, in order."""
        records: list[AnyRecord] = []
        for path, status in files:
            # What is compressed now was read when it was not.
            if path.suffix == _GZIP:
                continue
            identity = _identity(status)
            at = self._read[identity] = min(self._read.get(identity, 0), status.st_size)
            if status.st_size == at:
                continue
            try:
                with os.fdopen(open_to_read(path), "rb") as file:
                    file.seek(at)
                    data = file.read(_LINE_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._cannot(path, error)
                continue
            whole = data.rfind(b"\n") + 1
            # Too long for a record: go on behind it.
            self._read[identity] = at + (len(data) if not whole and len(data) == _LINE_BYTES else whole)
            records += self.records(data[:whole].split(b"\n"))
        return sorted(records, key=order)

    def records(self, lines: Iterable[bytes]) -> Iterator[AnyRecord]:
        """Yield the records among lines."""
        for line in lines:
            if not line.strip():
                continue
            try:
                record = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._newer += (newer := _is_newer(line))
                self._bad += not newer
                continue
            if record.v != VERSION:
                self._newer += 1
            else:
                yield record

    def say(self) -> None:
        """Print what could not be read."""
        found = [f"{printable(str(path))}: {words}" for path, words in self.unreadable_files.items()]
        if self._bad:
            found.append(f"lines that could not be read: {self._bad}")
        if self._newer:
            found.append(f"lines of another version of Sluice's log: {self._newer}")
        for line in found:
            print(f"sluice: {line}", file=sys.stderr)  # noqa: T201 - the command line speaks to people here

    def _files(self, paths: Sequence[Path]) -> Iterator[Path]:
        def cannot(error: OSError) -> None:
            self._cannot(Path(error.filename or ""), error)

        for path in paths:
            if not path.is_dir():
                yield path
                continue
            for folder, _, names in os.walk(path, onerror=cannot):
                yield from (
                    Path(folder, name) for name in names if name.endswith(_ENDINGS) and not name.startswith(".")
                )

    def _cannot(self, path: Path, error: OSError | EOFError | zlib.error) -> None:
        words = words_for(error) if isinstance(error, OSError) and error.errno else str(error)
        self.unreadable_files[path] = words


def _is_newer(line: bytes) -> bool:
    try:
        return _version_of.decode(line).v > VERSION
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def order(record: AnyRecord) -> tuple[int, str, int]:
    """Return what records are sorted by: about when they were written."""
    at_s = record.at_s
    if isinstance(record, TrafficRecord):
        at_s += record.second[-1] + 1 if record.second else MINUTE_S
    elif isinstance(record, HeartbeatRecord):
        at_s += record.seconds
    return at_s, record.run, record.n


def _last_lines(path: Path, size: int, count: int) -> tuple[list[bytes], int]:
    """Return the last whole lines within so many bytes of a file, and where they end."""
    with os.fdopen(open_to_read(path), "rb") as file:
        if path.suffix == _GZIP:
            with gzip.open(file) as unpacked:
                return list(deque(_whole_lines(unpacked), count)), size
        begin, rest = size, b""
        while begin > 0 and rest.count(b"\n") <= count and len(rest) <= max(_LINE_BYTES, count * _RECORD_BYTES):
            step = min(begin, max(_PIECE_BYTES, len(rest)))
            begin -= step
            file.seek(begin)
            rest = file.read(step) + rest
    whole = rest.rfind(b"\n") + 1
    lines = rest[:whole].split(b"\n")[:-1]
    first = 0 if begin == 0 else 1
    return lines[max(first, len(lines) - count) :], begin + whole


def _whole_lines(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines of a file that end, and of one that is too long its end."""
    while line := file.readline(_LINE_BYTES):
        if line.endswith(b"\n"):
            yield line


class _Printer:
    """Prints records, with a line above them where it is another sidecar's turn."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._colours = _COLOURS if terminal else dict.fromkeys(_COLOURS, "")
        self._instance: str | None = None

    def print(self, records: Sequence[AnyRecord]) -> None:
        instances = {record.instance for record in records}
        several = len(instances | ({self._instance} if self._instance else set())) > 1
        text = []
        for record in records:
            if record.instance != self._instance:
                if several:
                    text.append(f"==> {printable(record.instance)} <==")
                self._instance = record.instance
            line = worded(record)
            colour = self._colours[line.tone]
            text.append(f"{line.when}  {colour}{line.what:<{_WHAT_WIDTH}} {line.text}{_NO_COLOUR if colour else ''}")
        if text:
            print("\n".join(text), flush=True)  # noqa: T201 - the command line speaks to people here


class Worded(NamedTuple):
    """A record in words: local time, one word for what it is about, the rest, and how to show it."""

    when: str
    what: str
    text: str
    tone: Tone


def worded(record: AnyRecord) -> Worded:
    """Put a record in words. Names come from clients, so control characters are written as escapes."""
    when = datetime.fromtimestamp(record.at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    match record:
        case RejectionRecord():
            tone: Tone = "bad" if record.verdict == "refuse" else "plain"
            return Worded(when, DID[record.verdict], printable(", ".join(_rejection(record))), tone)
        case TrafficRecord():
            return Worded(when, "traffic", printable(", ".join(_traffic(record))), "good")
        case LimitRecord():
            text = f"{record.kind} {record.name}: {_limit(record)}"
            return Worded(when, "limit", printable(text), "faint")
        case LimitChangeRecord():
            return Worded(when, "changed", printable(_change(record)), "plain")
        case HeartbeatRecord():
            return Worded(when, "alive", printable(", ".join(_heartbeat(record))), "faint")


def _rejection(record: RejectionRecord) -> Iterator[str]:
    by = "" if record.rule == f"{record.kind}:{record.name}" else f" by {record.rule}"
    yield f"{record.kind} {record.name}: {_counted(record.requests, 'request')}{by}"
    if record.messages != record.requests:
        yield _counted(record.messages, "message")
    # What waits for credit has no size yet.
    yield "waited for credit" if record.verdict == "hold" and not record.bytes else size(record.bytes)
    who = ", ".join(filter(None, (record.user, record.producer_group, record.product)))
    yield f"from {record.client}" + (f" ({who})" if who else "")
    if record.wait_max_us:
        yield f"wait {measured(record.wait_max_us / _US_PER_S)} s"


def _traffic(record: TrafficRecord) -> Iterator[str]:
    outcomes: list[tuple[str, Amount]] = [(outcome, getattr(record, outcome)) for outcome in get_args(Outcome)]
    parts = [f"{amount.messages} {word}" for word, amount in outcomes if amount.requests or amount.messages]
    yield f"{record.kind} {record.name}: messages {', '.join(parts) or 'none'}"
    peak = max((sum(pair) for pair in zip(record.second_admitted, record.second_refused, strict=False)), default=0)
    if peak:
        yield f"at most {peak}/s"
    yield f"limit {_limit(record)}"
    if record.clients:
        yield _counted(record.clients, "client") + (" or more" if record.more_clients else "")


def _limit(limit: LimitFields) -> str:
    unit = " requests" if limit.count == "requests" else ""
    parts = [] if limit.rate_per_s is None else [f"{numbers.limit(limit.rate_per_s)}{unit}/s"]
    if limit.bytes_per_s is not None:
        parts.append(f"{numbers.limit(limit.bytes_per_s)} bytes/s")
    text = " + ".join(parts) or "none"
    return text if limit.action == "reject" or not parts else f"{text} ({limit.action})"


def _change(record: LimitChangeRecord) -> str:
    target = f"{record.kind} {record.name}".strip() or "configuration"
    # Of what else a limit can say the record has nothing.
    same = not record.name or record.rate_before_per_s == record.rate_after_per_s
    rates = "" if same else f" {_rate(record.rate_before_per_s)} -> {_rate(record.rate_after_per_s)}"
    reason = f": {record.reason}" if record.reason else ""
    return f"{target}{rates}, {record.action} by {record.by or 'nobody'}, change {record.change_id}{reason}"


def _rate(rate: float | None) -> str:
    return "none" if rate is None else f"{numbers.limit(rate)}/s"


def _heartbeat(record: HeartbeatRecord) -> Iterator[str]:
    yield f"Sluice {record.version}"
    yield _counted(record.connections, "connection")
    if not record.limiting:
        yield "limiting OFF"
    yield f"{record.seconds} s recorded"
    for handler, requests in record.bypassed_requests.items():
        yield f"{requests} requests bypassed {handler}"
    if record.other:
        yield f"{record.other} counted under _other"
    if record.lost_records:
        yield f"{record.lost_records} records lost so far"
    if record.killed_run:
        yield f"run {record.killed_run} was killed after record {record.killed_n}"
    if record.ends:
        yield "ends"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def size(size_bytes: int) -> str:
    """Write a number of bytes with three digits that count."""
    figure, units = float(size_bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while figure >= _KB and len(units) > 1:
        figure /= _KB
        units.pop(0)
    return f"{figure:.3g} {units[0]}" if figure < _KB else f"{figure:.0f} {units[0]}"
