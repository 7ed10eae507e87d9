"""Manages a report's output directory. For ``--once``, this includes a list of the log files read so far.

The list, ``OUT/_files.json``, contains the hours that each file covers. The hours that new files cover are recomputed
from all files that cover them. Files can therefore arrive in any order, and a killed run can be repeated. If one of
these files has been deleted, its records are lost, and the report says so.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from admin.analytics.inputs import File, Found, SkippedInput
from admin.analytics.options import Options
from admin.analytics.words import DAY_S, counted
from admin.common.disk import FileLock, LockedError, os_error_text, replace_durably
from admin.common.errors import StartError

if TYPE_CHECKING:
    from admin.analytics.report import Frames, Tools

_FILE: Final = "_files.json"
_KEPT_S: Final = 35 * DAY_S
VERSION: Final = 2  # increase when the list or the computation of the tables changes


def locked(out: Path) -> "closing[FileLock]":
    """Create the output directory if necessary, and lock it against other reports. Raises StartError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return closing(FileLock(out / "_lock"))
    except LockedError:
        raise StartError(
            f"{out} is in use by another `sluice report`; wait for it to finish, or choose another directory with --out"
        ) from None
    except OSError as error:
        why = "it cannot be created" if isinstance(error, FileNotFoundError) else os_error_text(error)
        raise StartError(f"{out} cannot be used: {why}; choose another directory with --out") from None


def write_file(path: Path, pieces: Iterable[bytes]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, pieces)
        path.chmod(0o644)
    except OSError as error:
        raise StartError(f"cannot write {path}: {os_error_text(error)}") from error


class _Read(msgspec.Struct):
    size_bytes: int
    written_s: float
    hours: list[int] = []
    set_aside: list[dict[str, Any]] = []


class _Kept(msgspec.Struct):
    version: int
    made_with: str
    files: dict[str, _Read]


@dataclass
class Seen:
    path: Path
    kept: _Kept

    @classmethod
    def read(cls, out: Path, options: Options) -> Self:
        """Read the list of files. Raises StartError if the report in this directory cannot be updated."""
        path = out / _FILE
        made_with = msgspec.json.encode((options.storm_gap_s, sorted(options.attempts.items()))).decode()
        again = f"remove {out} to process all logs again, or choose another directory with --out"
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            if (out / "minutes").exists():
                raise StartError(f"{out} contains a report made without --once; {again}") from None
            return cls(path, _Kept(VERSION, made_with, {}))
        except (OSError, msgspec.DecodeError) as error:
            raise StartError(f"cannot read {path}: {error}; {again}") from None
        if kept.version != VERSION or kept.made_with != made_with:
            raise StartError(
                f"the report in {out} was made by another version, or with a different --storm-gap or --attempts;"
                f" {again}"
            )
        return cls(path, kept)

    @property
    def log_bytes(self) -> int:
        return 30 * sum(file.stat().st_size for file in self.path.parent.glob("minutes/dt=*/*.parquet"))

    @staticmethod
    def is_kept(out: Path) -> bool:
        return (out / _FILE).exists()

    def take(self, tools: "Tools", found: Found, options: Options) -> "tuple[Frames, dict[str, Any]]":
        """Read the new files. Return the tables, and statistics about all files read so far."""
        from admin.analytics.report import read_tables  # noqa: PLC0415 - imported while Java starts

        files = self.kept.files
        known = {(path, each.size_bytes, each.written_s) for path, each in files.items()}
        new = tuple(file for file in found.files if file not in known)
        frames = self._read_new(tools, found, new, options) if new else read_tables(tools)
        set_aside = [each for file in files.values() for each in file.set_aside]
        set_aside += [each._asdict() for each in found.skipped]
        records, copies = frames.coverage.selectExpr("sum(records)", "sum(copies)").collect()[0]
        return frames, {
            "logs": found.shown,
            "files": len(files),
            "size_bytes": sum(each.size_bytes for each in files.values()),
            "records": records or 0,
            "duplicates": copies or 0,
            "bad_lines": sum(each["lines"] for each in set_aside),
            "skipped_files": len({each["file"] for each in set_aside if not each["lines"]}),
            "outside_files": 0,
            "set_aside": set_aside,
        }

    def _read_new(self, tools: "Tools", found: Found, new: tuple[File, ...], options: Options) -> "Frames":
        from admin.analytics.report import hours_of, make_tables  # noqa: PLC0415 - as above

        files, changed = self.kept.files, {file.path for file in new}
        tools.step(f"checking {counted(len(new), 'new file')}")
        hours_by_file = hours_of(tools, replace(found, files=new))
        hours = {hour for file in new if file.path in files for hour in files[file.path].hours}
        hours.update(*hours_by_file.values())
        if hours and not self.path.exists():
            # Mark the tables as made by ``--once``, in case this run is killed.
            self._write()
        for path, size_bytes, written_s in new:
            files[path] = _Read(size_bytes, written_s, sorted(hours_by_file[path]))
        unnamed = sorted(
            path for path in files.keys() - {file.path for file in found.files} if os.access(path, os.R_OK)
        )
        there = (*found.files, *(File(path, files[path].size_bytes, files[path].written_s) for path in unnamed))
        again = tuple(file for file in there if file.path in changed or not hours.isdisjoint(files[file.path].hours))
        frames, inputs = make_tables(tools, replace(found, files=again), options, frozenset(hours))
        aside = defaultdict[str, list[dict[str, Any]]](list)
        for each in inputs["set_aside"]:
            aside[each["file"]].append(each)
        for path, *_ in again:
            files[path].set_aside = aside[path]
        newest_s = max((each.hours[-1] for each in files.values() if each.hours), default=0)
        for path in files.keys() - {file.path for file in there}:
            if not hours.isdisjoint(files[path].hours):
                gone = SkippedInput(path, "was deleted, and an hour was recomputed without it")
                files[path].set_aside = [gone._asdict()]
            if not files[path].hours or files[path].hours[-1] < newest_s - _KEPT_S:
                del files[path]
        self._write()
        return frames

    def _write(self) -> None:
        write_file(self.path, [msgspec.json.encode(self.kept)])
