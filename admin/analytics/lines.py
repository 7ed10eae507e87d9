"""From files of the log to their lines by resource and hour: what each line says, and what could not be understood.

``gather`` runs where the files are read, on batches of Arrow; ``admin.rejection_log.records`` is the one definition of
the format. What is of one resource and hour is put together as it stands, so that few rows are moved to where
``combine`` reads them again. Lines that are no records, and files that end in the middle, become rows of their own.
"""

import gc
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from admin.analytics.tables import RESOURCE, arrow_schema
from admin.analytics.words import HOUR_S, MINUTE_S
from admin.common.numbers import LATEST_S
from admin.rejection_log.records import VERSION, AnyRecord, RejectionRecord, TrafficRecord

VERSIONS: Final = (VERSION,)
"""Versions of the lines that are understood."""
GATHERED: Final = arrow_schema((
    *RESOURCE, "hour_s BIGINT", "lines BINARY", "records BIGINT", "wanted BIGINT", "first_s BIGINT", "last_s BIGINT",
    "file STRING", "reason STRING",
))  # fmt: skip
"""Rows of ``gather``. Of records: a resource (kind and name are empty for what is of the whole sidecar), an hour, their
``lines``, how many, how many of the time that was asked for, and from when to when. Of what could not be understood:
``reason`` and ``file``, how many lines as ``records`` (0: it is about the whole file), and the beginning of one as
``lines``."""

_SHOWN: Final = 200
"""Characters of a bad line that are kept."""
_HELD_BYTES: Final = 8 << 20
"""So much is put together before it is handed on."""
_READ_BYTES: Final = 1 << 20
_UNPACKED_BYTES: Final = 16 << 20
"""At a time: what is packed may be a thousand times as long."""
_LINE_BYTES: Final = 16 << 20
"""No line is so long: of one that is, without an end perhaps, the beginning is kept, which is no record."""
_GZIP: Final = 31
"""zlib: expect a gzip header."""
_BLANK: Final = b" \t\r\n"

_decoder: Final = msgspec.json.Decoder(AnyRecord)
decode: Callable[[bytes], AnyRecord] = _decoder.decode
decode_lines: Callable[[bytes], list[AnyRecord]] = _decoder.decode_lines


@contextmanager
def without_gc() -> Iterator[None]:
    """Keep Python from looking for cycles, which records have none of: a fifth of the time would go there."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Wanted:
    """The time that is asked for.

    Attributes:
        since_s: in seconds since 1970; None is from the beginning.
        until_s: None is to the end.
        hours: beginnings of the only hours; None is all.
    """

    since_s: int | None = None
    until_s: int | None = None
    hours: frozenset[int] | None = None

    def __contains__(self, at_s: int) -> bool:
        return (
            (self.since_s is None or at_s >= self.since_s)
            and (self.until_s is None or at_s < self.until_s)
            and (self.hours is None or at_s - at_s % HOUR_S in self.hours)
        )


def gather(wanted: Wanted) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what puts lines together: from batches of ``value`` (bytes) and ``file`` to ``GATHERED``.

    A value is one line, or all of a file whose name ends in ``.gz``.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gathering = _Gathering(wanted)
        with without_gc():
            for batch in batches:
                for value, file in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    if file.endswith(".gz"):
                        for line in _unpacked(value, file, gathering.bad):
                            gathering.take(line, file)
                            if gathering.size_bytes > _HELD_BYTES:
                                yield gathering.flush()
                    else:
                        gathering.take(value, file)
                if gathering.size_bytes > _HELD_BYTES:
                    yield gathering.flush()
            yield gathering.flush()

    return run


class _Held:
    """Lines of one resource and hour."""

    __slots__ = ("count", "first_s", "last_s", "lines")

    def __init__(self, at_s: int) -> None:
        self.lines: list[bytes] = []
        self.count = 0
        self.first_s = self.last_s = at_s


class _Gathering:
    def __init__(self, wanted: Wanted) -> None:
        self._all = wanted == Wanted()
        self._wanted = wanted
        self._held: dict[tuple[str, str, str, int], _Held] = {}
        #: By file and reason: how many lines, and one of them.
        self._bad: dict[tuple[str, str], list[Any]] = {}
        self.size_bytes = 0

    def bad(self, line: bytes | None, file: str, reason: str) -> None:
        """Note what could not be understood."""
        shown = b"" if line is None else line.decode("utf-8", "replace")[:_SHOWN].encode()
        found = self._bad.setdefault((file, reason), [0, shown])
        found[0] += line is not None
        found[1] = min(found[1], shown)

    def take(self, line: bytes, file: str) -> None:
        """Take one line."""
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if line.strip(_BLANK):
                self.bad(line, file, reason_of(line, error))
            return
        if record.v not in VERSIONS:
            self.bad(line, file, _of_version(record.v))
            return
        if isinstance(record, TrafficRecord) and not _fits(record):
            self.bad(line, file, "a value is out of range")
            return
        at_s = record.at_s
        if isinstance(record, RejectionRecord | TrafficRecord):
            key = (record.instance, record.kind, record.name, at_s - at_s % HOUR_S)
        else:
            key = (record.instance, "", "", at_s - at_s % HOUR_S)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(at_s)
        held.count += 1
        if self._all or at_s in self._wanted:
            held.lines.append(line)
            self.size_bytes += len(line)
        if at_s < held.first_s:
            held.first_s = at_s
        elif at_s > held.last_s:
            held.last_s = at_s

    def flush(self) -> pa.RecordBatch:
        """Return what has been put together, and begin anew."""
        held, bad = self._held, self._bad
        self._held, self._bad, self.size_bytes = {}, {}, 0
        keys, all_of = list(held), list(held.values())
        none = [None] * len(bad)
        return pa.RecordBatch.from_pydict(
            {
                **{name: [key[at] for key in keys] + none for at, name in enumerate(GATHERED.names[:4])},
                "lines": [b"\n".join(each.lines) for each in all_of] + [line for _, line in bad.values()],
                "records": [each.count for each in all_of] + [count for count, _ in bad.values()],
                "wanted": [len(each.lines) for each in all_of] + none,
                "first_s": [each.first_s for each in all_of] + none,
                "last_s": [each.last_s for each in all_of] + none,
                "file": [None] * len(keys) + [file for file, _ in bad],
                "reason": [None] * len(keys) + [reason for _, reason in bad],
            },
            schema=GATHERED,
        )


class _Moment(msgspec.Struct):
    """As much of a line as says when it is of."""

    at_s: int


HOURS_IN: Final = arrow_schema(("file STRING", "hours ARRAY<BIGINT>"))
"""Rows of ``hours_in``: a file, and the beginnings of the hours that its records are of."""


def hours_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Look which hours the records of files are of: from batches as ``gather`` takes them to ``HOURS_IN``."""
    at_of = msgspec.json.Decoder(_Moment).decode
    found: dict[str, set[int]] = {}
    for batch in batches:
        for value, file in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            for line in _unpacked(value, file, _nobody) if file.endswith(".gz") else (value,):
                try:
                    at_s = at_of(line).at_s
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue
                if 0 <= at_s <= LATEST_S:
                    found.setdefault(file, set()).add(at_s - at_s % HOUR_S)
    rows = [{"file": file, "hours": sorted(hours)} for file, hours in found.items()]
    yield pa.RecordBatch.from_pylist(rows, schema=HOURS_IN)


def _nobody(_line: None, _file: str, _reason: str) -> None:
    pass


def _unpacked(content: bytes, file: str, bad: Callable[[None, str, str], None]) -> Iterator[bytes]:
    """Yield the lines of a gzip file as far as it is whole; say where it is not."""
    # A line in hand is put together once, however small its pieces are.
    begun: list[bytes] = []
    size_bytes, why = 0, None
    try:
        for piece in _inflated(content, zlib.decompressobj(_GZIP), _READ_BYTES):
            first, *lines = piece.split(b"\n")
            if size_bytes < _LINE_BYTES:
                begun.append(first)
                size_bytes += len(first)
            if lines:
                yield b"".join(begun)
                yield from lines[:-1]
                begun, size_bytes = lines[-1:], len(lines[-1])
    except zlib.error:
        why = "is no gzip, or damaged; what is before the damage was read"
    except EOFError:
        why = "ends in the middle; what is there was read"
    yield b"".join(begun)
    if why is not None:
        bad(None, file, why)


def _inflated(content: bytes, reader: "zlib._Decompress", step: int) -> Iterator[bytes]:
    """Yield what is packed, in pieces.

    Raises:
        zlib.error: it is damaged here.
        EOFError: it ends in the middle.
    """
    for at in range(0, len(content), step):
        data = content[at : at + step]
        while data:
            before = reader.copy() if step > 1 else None
            try:
                yield reader.decompress(data, _UNPACKED_BYTES)
            except zlib.error:
                if before is not None:
                    # Byte by byte it gives what is before the damage.
                    yield from _inflated(data, before, 1)
                raise
            data = reader.unconsumed_tail
            if reader.eof:
                # Zeros may fill up what is behind the last member.
                data = reader.unused_data.lstrip(b"\0")
                reader = zlib.decompressobj(_GZIP) if data else reader
    if content and not reader.eof:
        raise EOFError


_NOT_AN_OBJECT: Final = "not one JSON object with fields of the right types"


def reason_of(line: bytes, error: Exception) -> str:
    """Say why a line is no record, in words that do not tell one line from another."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return _NOT_AN_OBJECT
    if not isinstance(found, dict):
        return _NOT_AN_OBJECT
    version = found.get("v")
    if version is None:
        return "no schema version"
    if version not in VERSIONS and isinstance(version, int):
        return _of_version(version)
    text = str(error)
    if "$.type`" in text or "type" not in found:
        return "unknown type of record"
    if "missing required field" in text:
        return "a field is missing"
    # What is not of the right type, but for these, is told as that; the rest is about values.
    is_type = re.match(r"Expected `[^`]*`, got `", text) is not None
    return _NOT_AN_OBJECT if is_type else "a value is out of range"


def _of_version(version: int) -> str:
    # Damaged numbers must not be as many reasons.
    return f"schema version {version}" if 0 < version < 100 else "no schema version"


def _fits(record: TrafficRecord) -> bool:
    """Say whether a minute begins where minutes begin, and its lists are of the same seconds."""
    count = len(record.second)
    return (
        record.at_s % MINUTE_S == 0
        and count == len(record.second_admitted) == len(record.second_refused)
        and count == len(record.second_requests) == len(record.second_bytes)
        and len(record.second_repeated) in {0, count}
    )
