"""``sluice report tail``: the end of a rejection log for people, and what is added to it while they look.

It reads finished files, compressed or not, and those that are being written. What it cannot read it counts.
"""

import errno
import gzip
import os
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
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
from admin.rejection_log.aggregate import MINUTE_S
from admin.rejection_log.folder import open_name
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
from limiter.counting.rejections import DID, Amount, Outcome

Tone = Literal["plain", "bad", "good", "faint"]

_US_PER_S: Final = 1_000_000
_KB: Final = 1000


# Records of the rejection log as people read them: one line each, in plain words.
#
# Names come from clients: what would give a terminal orders is written as an escape.
class Worded(NamedTuple):
    """A record in words.

    Attributes:
        when: on somebody's clock.
        what: one word of what it is about.
        text: the rest.
        tone: how it is to be shown.
    """

    when: str
    what: str
    text: str
    tone: Tone


def worded(record: AnyRecord, zone: tzinfo | None = None) -> Worded:
    """Put a record in words; times are those of a zone, or of this machine's."""
    moment = datetime.fromtimestamp(record.at_s, UTC).astimezone(zone)
    when = moment.strftime("%Y-%m-%d %H:%M:%S")
    match record:
        case RejectionRecord():
            tone: Tone = "bad" if record.verdict == "refuse" else "plain"
            return Worded(when, DID[record.verdict], printable(", ".join(_rejection(record))), tone)
        case TrafficRecord():
            return Worded(when, "minute", printable(", ".join(_traffic(record))), "good")
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
    if record.seconds < MINUTE_S:
        yield f"{record.seconds} s recorded"
    for handler, requests in record.bypassed_requests.items():
        yield f"{requests} requests bypassed {handler}"
    if record.other:
        yield f"{record.other} counted under _other"
    if record.lost_records:
        yield f"{record.lost_records} records lost so far"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def size(size_bytes: int) -> str:
    """Write a number of bytes with three digits that count."""
    figure, units = float(size_bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while figure >= _KB and len(units) > 1:
        figure /= _KB
        units.pop(0)
    return f"{figure:.3g} {units[0]}" if figure < _KB else f"{figure:.0f} {units[0]}"


_LOOK_S: Final = 0.5
"""Twice for each second that is written."""
_PIECE_BYTES: Final = 1024 * 1024
_LINE_BYTES: Final = 4 * _PIECE_BYTES
"""No record is so long; of a line that is only the end is read."""
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
    """Print the last records, in order of time.

    Args:
        paths: files, and folders with all that is below them.
        lines: so many records.
        follow: go on with what is added, until Ctrl-C.

    Returns:
        The exit code: 0, or 1 if something could not be read at all.

    Raises:
        StartError: a path is not there, or there is nothing to read.
    """
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            gone = error.errno in {errno.ENOENT, errno.ENOTDIR}
            words = "is not there" if gone else words_for(error)
            raise StartError(f"{printable(str(path))}: {words}") from None
    lines = min(lines, _MAX_LINES)
    reader = _Reader()
    printer = _Printer()
    try:
        files = _find(paths, reader)
        if not files and not follow and not reader.unreadable_files:
            raise StartError([f"{printable(str(path))}: no file of a rejection log in it" for path in paths])
        offsets = {_identity(status): status.st_size for path, status in files if path.suffix != _GZIP}
        printer.print(_last(files, lines, reader))
        if follow:
            trio.run(_follow, paths, offsets, reader, printer)
    finally:
        reader.say()
    return 1 if reader.unreadable_files else 0


def _is_newer(line: bytes) -> bool:
    try:
        return _version_of.decode(line).v > VERSION
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class _Reader:
    """Decodes lines, and counts what it cannot read."""

    def __init__(self) -> None:
        self.unreadable_files: dict[Path, str] = {}
        self._bad = 0
        self._newer = 0

    def records(self, lines: Iterable[bytes]) -> Iterator[AnyRecord]:
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

    def cannot(self, path: Path, error: OSError | EOFError | zlib.error) -> None:
        """Note that something cannot be read."""
        words = words_for(error) if isinstance(error, OSError) and error.errno else str(error)
        self.unreadable_files[path] = words

    def say(self) -> None:
        """Tell what could not be read."""
        found = [f"{printable(str(path))}: {words}" for path, words in self.unreadable_files.items()]
        if self._bad:
            found.append(f"lines that could not be read: {self._bad}")
        if self._newer:
            found.append(f"lines of another version of Sluice's log: {self._newer}")
        for line in found:
            print(f"sluice: {line}", file=sys.stderr)  # noqa: T201 - the command line speaks to people here


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


def _find(paths: Sequence[Path], reader: _Reader) -> list[tuple[Path, os.stat_result]]:
    """Return all log files below some paths with their status, the latest written first."""
    found: dict[Path, os.stat_result] = {}
    for path in _files(paths, reader):
        try:
            found[path] = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            reader.cannot(path, error)
    return sorted(found.items(), key=lambda item: item[1].st_mtime_ns, reverse=True)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _files(paths: Sequence[Path], reader: _Reader) -> Iterator[Path]:
    def cannot(error: OSError) -> None:
        reader.cannot(Path(error.filename or ""), error)

    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, _, names in os.walk(path, onerror=cannot):
            for name in names:
                visible = name.endswith(_ENDINGS) and not name.startswith(".")
                if visible or open_name(name) is not None:
                    yield Path(folder, name)


def _last(files: Sequence[tuple[Path, os.stat_result]], count: int, reader: _Reader) -> list[AnyRecord]:
    """Return the last records of all files, each once, in order."""
    best: dict[tuple[str, int], AnyRecord] = {}
    for path, status in files if count else ():
        # What was written last before the oldest of these cannot be later than it.
        if len(best) >= count and status.st_mtime < min(map(_order, best.values()))[0]:
            break
        try:
            for record in reader.records(_last_lines(path, status.st_size, count)):
                best[record.run, record.n] = record
        except (OSError, EOFError, zlib.error) as error:
            reader.cannot(path, error)
        best = {(record.run, record.n): record for record in nlargest(count, best.values(), key=_order)}
    return sorted(best.values(), key=_order)


def _order(record: AnyRecord) -> tuple[int, str, int]:
    """Return what records are sorted by: when they were written, which is a minute later for those of a minute."""
    minute = MINUTE_S if isinstance(record, TrafficRecord | HeartbeatRecord) else 0
    return record.at_s + minute, record.run, record.n


def _last_lines(path: Path, size: int, count: int) -> list[bytes]:
    """Return the last whole lines within so many bytes of a file."""
    if path.suffix == _GZIP:
        with os.fdopen(open_to_read(path), "rb") as packed, gzip.open(packed) as unpacked:
            return list(deque(_whole_lines(unpacked), count))
    with os.fdopen(open_to_read(path), "rb") as file:
        begin, rest = size, b""
        while begin > 0 and rest.count(b"\n") <= count and len(rest) <= max(_LINE_BYTES, count * _RECORD_BYTES):
            step = min(begin, max(_PIECE_BYTES // 16, len(rest)))
            begin -= step
            file.seek(begin)
            rest = file.read(step) + rest
        lines = rest[: rest.rfind(b"\n") + 1].split(b"\n")[:-1]
        return lines[-count:] if begin == 0 or len(lines) > count else lines[1:]


def _whole_lines(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines of a file that end, and of one that is too long its end."""
    while line := file.readline(_LINE_BYTES):
        if line.endswith(b"\n"):
            yield line


async def _follow(
    paths: Sequence[Path], offsets: dict[tuple[int, int], int], reader: _Reader, printer: _Printer
) -> None:
    """Print what is added to files, whatever they are called meanwhile, and what is in new ones."""
    whole: dict[tuple[int, int], int] = {}
    while True:
        await trio.sleep(_LOOK_S)
        records: list[AnyRecord] = []
        for path, status in _find(paths, reader):
            # What is compressed now was read when it was not.
            if path.suffix == _GZIP:
                continue
            identity = _identity(status)
            at = min(whole.get(identity, offsets.get(identity, 0)), status.st_size)
            try:
                with os.fdopen(open_to_read(path), "rb") as file:
                    at = _begin_of_line(file, at) if identity not in whole else at
                    whole[identity] = at
                    if status.st_size > at:
                        lines, whole[identity] = _added(file, at)
                        records += reader.records(lines)
            except FileNotFoundError:
                # It has got its name, or was deleted.
                continue
            except OSError as error:
                reader.cannot(path, error)
        printer.print(sorted(records, key=_order))


def _begin_of_line(file: BinaryIO, at: int) -> int:
    """Return where the line begins that was not whole yet when the file was read before."""
    while at > 0:
        step = min(at, _PIECE_BYTES)
        file.seek(at - step)
        newline = file.read(step).rfind(b"\n")
        if newline >= 0:
            return at - step + newline + 1
        at -= step
    return 0


def _added(file: BinaryIO, at: int) -> tuple[list[bytes], int]:
    """Return the whole lines from a place on, and the place behind them."""
    file.seek(at)
    data = file.read(_LINE_BYTES)
    whole = data.rfind(b"\n") + 1
    if not whole and len(data) == _LINE_BYTES:
        # Too long for a record: go on behind it.
        whole = len(data)
    return data[:whole].split(b"\n"), at + whole
