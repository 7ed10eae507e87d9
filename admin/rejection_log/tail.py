"""Implements ``sluice report tail``."""

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
from typing import Any, Final

import msgspec
import trio

from admin.common.disk import open_to_read, os_error_text
from admin.common.errors import StartError
from admin.common.tables import printable
from admin.rejection_log.records import MINUTE_S, VERSION, AnyRecord, HeartbeatRecord, RejectionRecord, TrafficRecord
from limiter.counting.rejections import Amount
from limiter.rules.rule import ADAPTIVE_NAME

_POLL_S: Final = 0.5
_LINE_BYTES: Final = 4 * 1024 * 1024
_MAX_LINES: Final = 1_000_000
_GZIP: Final = ".gz"
_ENDINGS: Final = (".jsonl", f".jsonl{_GZIP}")
_LEFT_OUT: Final = frozenset({"v", "run", "n", "at_s", "type", "kind", "name", "languages", "second"})
"""Fields that are not shown as ``key=value``."""
_COLOURS: Final = {"rejection": "\x1b[31m", "limit": "\x1b[2m", "heartbeat": "\x1b[2m"}
_NO_COLOUR: Final = "\x1b[0m"

_decoder: Final = msgspec.json.Decoder(AnyRecord)


def tail(paths: Sequence[Path], lines: int = 10, follow: bool = False) -> int:  # noqa: FBT001, FBT002 - a flag
    """Print the last records of log files and folders in chronological order. Return 1 if a file could not be read.

    Raises:
        StartError: a path does not exist, or contains no log files.
    """
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            words = "no such file or folder" if error.errno in {errno.ENOENT, errno.ENOTDIR} else os_error_text(error)
            raise StartError(f"{printable(str(path))}: {words}") from None
    reader = _Reader()
    try:
        files = reader.find(paths)
        if not files and not follow and not reader.problems:
            raise StartError([f"{printable(str(path))} contains no rejection log files" for path in paths])
        _print(reader.last(files, min(lines, _MAX_LINES)))
        if follow:
            trio.run(_follow, paths, reader)
    finally:
        reader.print_problems()
    return 1 if reader.problems else 0


async def _follow(paths: Sequence[Path], reader: "_Reader") -> None:
    while True:
        await trio.sleep(_POLL_S)
        _print(reader.added(reader.find(paths)))


_Found = tuple[Path, os.stat_result]


class _Reader:
    def __init__(self) -> None:
        self.problems: dict[Path, str] = {}
        self._unreadable_lines = 0
        #: The end of the last complete line that was read.
        self._read_to: dict[Path, int] = {}

    def find(self, paths: Sequence[Path]) -> list[_Found]:
        """Return all log files, most recently written first."""
        found: dict[Path, os.stat_result] = {}
        for path in self._files(paths):
            try:
                found[path] = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                self._cannot_read(path, error)
        return sorted(found.items(), key=lambda item: item[1].st_mtime_ns, reverse=True)

    def last(self, files: Sequence[_Found], count: int) -> list[AnyRecord]:
        """Return the last ``count`` records in chronological order, without duplicates."""
        best: dict[tuple[str, int], AnyRecord] = {}
        for path, status in files:
            # The file is older than all records found so far, so it has no later ones.
            if len(best) >= count and (not best or status.st_mtime < min(map(order, best.values()))[0]):
                self._read_to[path] = status.st_size
                continue
            best |= {(record.run, record.n): record for record in self.records(deque(self._new_lines(path), count))}
            best = {(record.run, record.n): record for record in nlargest(count, best.values(), key=order)}
        return sorted(best.values(), key=order)

    def added(self, files: Sequence[_Found]) -> list[AnyRecord]:
        # The content of a compressed file was read before it was compressed.
        growing = (path for path, _ in files if path.suffix != _GZIP)
        return sorted((record for path in growing for record in self.records(self._new_lines(path))), key=order)

    def records(self, lines: Iterable[bytes]) -> Iterator[AnyRecord]:
        for line in lines:
            try:
                record = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._unreadable_lines += bool(line.strip())
                continue
            if record.v == VERSION:
                yield record
            else:
                self._unreadable_lines += 1

    def print_problems(self) -> None:
        found = [f"{printable(str(path))}: {words}" for path, words in self.problems.items()]
        if self._unreadable_lines:
            found.append(f"lines that are unreadable or from another version: {self._unreadable_lines}")
        for line in found:
            print(f"sluice: {line}", file=sys.stderr)  # noqa: T201 - output of the command

    def _files(self, paths: Sequence[Path]) -> Iterator[Path]:
        def cannot_read(error: OSError) -> None:
            self._cannot_read(Path(error.filename or ""), error)

        for path in paths:
            if not path.is_dir():
                yield path
                continue
            for folder, _, names in os.walk(path, onerror=cannot_read):
                yield from (
                    Path(folder, name) for name in names if name.endswith(_ENDINGS) and not name.startswith(".")
                )

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        try:
            with os.fdopen(open_to_read(path), "rb") as file:
                # The file may have shrunk: if the disk is full, the sidecar truncates partial lines.
                file.seek(min(self._read_to.get(path, 0), os.fstat(file.fileno()).st_size))
                with gzip.open(file) if path.suffix == _GZIP else file as unpacked:
                    while line := unpacked.readline(_LINE_BYTES):
                        is_whole = line.endswith(b"\n")
                        if is_whole or len(line) == _LINE_BYTES:
                            self._read_to[path] = unpacked.tell()
                        if is_whole:
                            yield line
        except FileNotFoundError:
            pass
        except (OSError, EOFError, zlib.error) as error:
            self._cannot_read(path, error)

    def _cannot_read(self, path: Path, error: OSError | EOFError | zlib.error) -> None:
        words = os_error_text(error) if isinstance(error, OSError) and error.errno else str(error)
        self.problems[path] = words


def order(record: AnyRecord) -> tuple[int, str, int]:
    """Return a sort key that approximates the time when the record was written."""
    at_s = record.at_s
    if isinstance(record, TrafficRecord):
        at_s += record.second[-1] + 1 if record.second else MINUTE_S
    elif isinstance(record, HeartbeatRecord):
        at_s += record.seconds
    return at_s, record.run, record.n


def _print(records: Iterable[AnyRecord]) -> None:
    for record in records:
        line = text_of(record)
        if (colour := _COLOURS.get(_type_of(record))) and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            line = f"{colour}{line}{_NO_COLOUR}"
        print(line, flush=True)  # noqa: T201 - output of the command


def text_of(record: AnyRecord) -> str:
    when = datetime.fromtimestamp(record.at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    fields: dict[str, Any] = msgspec.to_builtins(record)
    for key, value in fields.items():
        if isinstance(getattr(record, key, None), Amount):
            fields[key] = dict(zip(("requests", "messages", "bytes"), value, strict=True))
    subject = [fields[key] for key in ("kind", "name") if fields.get(key)]
    shown = [
        f"{key}={_value(value)}"
        for key, value in fields.items()
        if key not in _LEFT_OUT and not key.startswith("second_") and value is not None
    ]
    if isinstance(record, RejectionRecord) and record.rule.startswith(ADAPTIVE_NAME):
        shown.append("(the broker was at capacity)")
    return printable(" ".join((when, f"{_type_of(record):<12}", *map(_value, subject), *shown)))


def _type_of(record: AnyRecord) -> str:
    return str(record.__struct_config__.tag)


def _value(value: object) -> str:
    if isinstance(value, str) and value and not any(each in value for each in ' "=\n\t'):
        return value
    return msgspec.json.encode(value).decode()
