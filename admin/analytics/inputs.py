"""Finds log files.

As in Spark, names that begin with a dot or an underscore are ignored. Files are also skipped if they were last written
more than an hour before the period, or if their folder's name contains a date more than a day outside the period.
"""

import glob
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from admin.analytics.words import counted
from admin.common.disk import open_to_read
from admin.common.errors import StartError
from admin.common.numbers import MAX_TIMESTAMP_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDINGS: Final = (".jsonl", ".jsonl.gz")  # files named explicitly may have any ending
_HIDDEN: Final = (".", "_")
_ALLOWED_S: Final = 3600
_DATE: Final = re.compile(r"(?<!\d)20\d\d-\d\d-\d\d(?!\d)")
_CLOCK_S: Final = 600


class SkippedInput(NamedTuple):
    """A file of which ``lines`` lines were skipped. If ``lines`` is 0, the whole file was skipped."""

    file: str
    reason: str
    lines: int = 0
    example: str = ""


class File(NamedTuple):
    path: str
    size_bytes: int
    written_s: float

    @property
    def exists(self) -> bool:
        return "://" in self.path or Path(self.path).exists()


@dataclass(frozen=True)
class Found:
    logs: tuple[str, ...]
    files: tuple[File, ...]
    skipped: tuple[SkippedInput, ...] = ()
    outside: int = 0

    @property
    def shown(self) -> list[str]:
        """The logs, with user names and queries removed from URLs because they may be secret."""
        return [re.sub(r"://[^/@]*@", "://", log).partition("?")[0] if "://" in log else log for log in self.logs]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def unpacked_bytes(self) -> int:
        return sum(file.size_bytes * (10 if file.path.endswith(".gz") else 1) for file in self.files)

    def spark_paths(self, *, packed: bool) -> list[str]:
        """Return the paths of either the compressed (``packed``) or the uncompressed files, escaped for Spark."""
        return [
            ("" if "://" in file.path else "file://") + re.sub(r"([\\{}\[\]*?])", r"\\\1", file.path)
            for file in self.files
            if file.path.endswith(".gz") is packed and file.exists
        ]

    def vanished(self) -> list[SkippedInput]:
        return [SkippedInput(file.path, "was deleted while being read") for file in self.files if not file.exists]


def find(
    logs: Sequence[str], since_s: int | None = None, until_s: int | None = None, session: "SparkSession | None" = None
) -> Found:
    """Find the log files for a period, given in seconds since 1970. Raises StartError if there are none.

    Without a ``session``, URLs cannot be listed and are skipped.
    """
    files: dict[str, File] = {}
    outside: set[str] = set()
    skipped: dict[str, str] = {}
    for root, file in _listed(logs, session, skipped):
        if _is_outside(file, root, since_s, until_s):
            outside.add(file.path)
        else:
            files[file.path] = file
    aside = tuple(SkippedInput(file, reason) for file, reason in sorted(skipped.items()))
    if files or (session is None and any("://" in log for log in logs)):
        return Found(tuple(logs), tuple(files[path] for path in sorted(files)), aside, len(outside - files.keys()))
    if outside:
        raise StartError(
            f"nothing to report: found {counted(len(outside), 'log file')}, but none for the requested period;"
            " check --since and --until"
        )
    lines = [f"{each.file}: {each.reason}" for each in aside[:5]]
    lines = lines or [f"{log}: contains no rejection log files ({', '.join(ENDINGS)})" for log in logs]
    raise StartError([*lines, "nothing to report; pass the directory that contains Sluice's rejection log"])


def _listed(logs: Sequence[str], session: "SparkSession | None", skipped: dict[str, str]) -> Iterator[tuple[str, File]]:
    for log in logs:
        if "://" in log:
            if session is not None:
                yield from _at(log, session)
            continue
        path = Path(log).absolute()
        path = path.resolve() if ".." in path.parts else Path("/", *path.parts[1:])
        named = [path]
        if not os.path.lexists(path):
            named = list(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - absolute patterns
        if not named:
            skipped[log] = "no match" if glob.has_magic(log) else "no such file or folder"
        for path in named:
            for file in _below(path, skipped) if path.is_dir() else (path,):
                if status := _look(file, skipped):
                    root = path if path.is_dir() else path.parent
                    yield str(root), File(str(file), status.st_size, status.st_mtime)


def _at(log: str, session: "SparkSession") -> Iterator[tuple[str, File]]:
    scheme, _, rest = log.partition("://")
    address = f"{scheme}://{rest.rstrip('/')}{'' if '/' in rest.rstrip('/') else '/'}"
    reader = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    found = reader.option("pathGlobFilter", "*.{jsonl,jsonl.gz}").load(address)
    for row in found.selectExpr("path", "length", "unix_millis(modificationTime) AS written_ms").collect():
        yield address, File(re.sub("^file:/+", "/", row["path"]), row["length"], row["written_ms"] / 1000)


def _is_outside(file: File, root: str, since_s: int | None, until_s: int | None) -> bool:
    if since_s is not None and file.written_s < since_s - _ALLOWED_S:
        return True
    try:
        day = date.fromisoformat(_DATE.findall(file.path.removeprefix(root).rpartition("/")[0])[-1])
    except (IndexError, ValueError):
        return False
    near = timedelta(days=1)
    if since_s is not None and day + near < datetime.fromtimestamp(since_s, UTC).date():
        return True
    return until_s is not None and day - near > datetime.fromtimestamp(until_s - 1, UTC).date()


def _below(folder: Path, skipped: dict[str, str]) -> Iterator[Path]:
    seen: set[str] = set()
    unread = skipped.setdefault
    for directory, folders, files in os.walk(
        folder, onerror=lambda error: unread(str(error.filename), _why(error)), followlinks=True
    ):
        if (real := os.path.realpath(directory)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        yield from (Path(directory, name) for name in files if name.endswith(ENDINGS) and not name.startswith(_HIDDEN))


def _look(file: Path, skipped: dict[str, str]) -> os.stat_result | None:
    # Hadoop takes a colon for the end of a URL's scheme, and only reads names in UTF-8.
    if ":" in file.name or str(file).encode(errors="replace") != os.fsencode(file):
        skipped[os.fsdecode(os.fsencode(file)).encode(errors="replace").decode()] = "has a name that Spark cannot read"
        return None
    try:
        os.close(open_to_read(file))
        if not file.name.startswith(_HIDDEN):
            return file.stat()
        skipped[str(file)] = "is hidden, or still being written"
    except OSError as error:
        skipped[str(file)] = _why(error)
    return None


def _why(error: OSError) -> str:
    return f"cannot be read: {(error.strerror or str(error)).lower()}"


class _Last(msgspec.Struct):
    instance: str
    at_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_S)]


def clocks(files: Sequence[File]) -> list[dict[str, Any]]:
    """Return the sidecars whose clocks disagree with the modification times of their files.

    A file is normally modified at most two minutes after its last record. If it was modified before that record, the
    sidecar's clock was ahead. If it was modified later, the clock was behind, or the file is a copy. The clock is
    reported as behind only if the gap is about the same for all of the sidecar's files.
    """
    ends = defaultdict[str, list[tuple[int, float]]](list)
    for file in files[:: len(files) // 1000 + 1]:
        with suppress(OSError, msgspec.MsgspecError), Path(file.path).open("rb") as stream:
            stream.seek(max(0, file.size_bytes - 64 * 1024))
            last = msgspec.json.decode(stream.read().rstrip().rpartition(b"\n")[2], type=_Last)
            ends[last.instance].append((last.at_s, last.at_s - file.written_s))
    found = []
    for instance, its in sorted(ends.items()):
        records, ahead = zip(*its, strict=True)
        is_constant = max(records) - min(records) > 2 * _CLOCK_S > 2 * (max(ahead) - min(ahead))
        if max(ahead) > _CLOCK_S or (max(ahead) < -_CLOCK_S and is_constant):
            found.append({"instance": instance, "ahead_s": round(max(ahead))})
    return found
