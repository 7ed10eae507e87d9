"""``sluice report --once``: reads only what is new, and keeps all that is there besides.

``OUT/_files.json`` says which files have been read, and which hours each of them has records of. Hours that new files
touch are made anew, from all files that have records of them; all others stay as they are, though the files that they
were made of may be gone by now. So it may be run by a timer, once a minute or once a day, over any amount of log, and
it makes no difference when files come, or where it was killed: the same hours are made again. Only where a file comes
late for an hour of which others are gone, what those had of it is lost, and the report says so.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from admin.analytics.findings import Inputs, SetAside
from admin.analytics.inputs import File, Found
from admin.analytics.options import Options
from admin.analytics.out import write_file
from admin.analytics.words import DAY_S, counted
from admin.common.errors import StartError

if TYPE_CHECKING:
    from admin.analytics.report import Tools

_FILE: Final = "_files.json"
_KEPT_S: Final = 35 * DAY_S
_GONE: Final = "is gone, and an hour of it was made anew without it"
VERSION: Final = 1
"""Of the file, and of what tables are made of records."""


class _Read(msgspec.Struct, frozen=True):
    """A file that was read.

    Attributes:
        size_bytes: of it.
        written_s: when it was last written.
        hours: beginnings of the hours that it has records of; a clock that was set may put years between them.
        set_aside: what of it could not be understood.
    """

    size_bytes: int
    written_s: float
    hours: tuple[int, ...] = ()
    set_aside: tuple[SetAside, ...] = ()


class _Kept(msgspec.Struct, kw_only=True):
    version: int
    made_with: str
    files: dict[str, _Read] = {}


@dataclass
class Seen:
    """Which files have been read.

    Attributes:
        path: where that is written.
        kept: what is.
    """

    path: Path
    kept: _Kept

    @classmethod
    def read(cls, out: Path, options: Options) -> Self:
        """Look what was read into a directory before; nothing if it is new.

        Raises:
            StartError: it was made in another way, or the file is damaged.
        """
        path = out / _FILE
        made_with = msgspec.json.encode((options.storm_gap_s, sorted(options.attempts.items()))).decode()
        again = f"remove {out} to read all logs again, or choose another --out"
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            if (out / "minutes").exists():
                raise StartError(f"{out}: has a report that --once did not make; {again}") from None
            return cls(path, _Kept(version=VERSION, made_with=made_with))
        except (OSError, msgspec.DecodeError) as error:
            raise StartError(f"{path}: cannot be read: {error}; {again}") from None
        if kept.version != VERSION or kept.made_with != made_with:
            raise StartError(f"{out}: was made by another version, --storm-gap or --attempts; {again}")
        return cls(path, kept)

    @staticmethod
    def is_kept(out: Path) -> bool:
        """Say whether a directory is kept up to date in this way."""
        return (out / _FILE).exists()

    def take(self, tools: "Tools", found: Found, options: Options) -> Inputs:
        """Read what is new.

        Returns:
            what has been read so far.
        """
        from admin.analytics.lines import Wanted  # noqa: PLC0415 - it is imported while Java starts
        from admin.analytics.report import hours_of, make_tables  # noqa: PLC0415 - as above

        kept = self.kept
        new = {file.path: file for file in found.files if not self._is_known(file)}
        if new:
            tools.step(f"looking into {counted(len(new), 'new file')}")
            of = hours_of(tools, replace(found, files=tuple(new.values())))
            read = {path: _Read(file.size_bytes, file.written_s, tuple(sorted(of[path]))) for path, file in new.items()}
            # What a file that has changed had before is made anew, too.
            touched = (*read.values(), *(kept.files[path] for path in read if path in kept.files))
            hours = frozenset(hour for each in touched for hour in each.hours)
            if hours and not self.path.exists():
                # Killed from here on, what is there by then is known to be of this kind.
                self._write()
            kept.files |= read
            again = tuple(
                file for file in found.files if file.path in new or not hours.isdisjoint(kept.files[file.path].hours)
            )
            its = make_tables(tools, replace(found, files=again), options, Wanted(hours=hours))
            for file in again:
                of_it = tuple(each for each in its.set_aside if each.file == file.path)
                kept.files[file.path] = msgspec.structs.replace(kept.files[file.path], set_aside=of_it)
            for path in kept.files.keys() - {file.path for file in found.files}:
                if not hours.isdisjoint(kept.files[path].hours):
                    kept.files[path] = msgspec.structs.replace(
                        kept.files[path], set_aside=(SetAside(file=path, reason=_GONE),)
                    )
            self._forget({file.path for file in found.files})
            self._write()
        set_aside = (*(each for file in kept.files.values() for each in file.set_aside), *found.skipped)
        return Inputs(
            logs=found.logs,
            files=len(kept.files),
            size_bytes=sum(each.size_bytes for each in kept.files.values()),
            bad_lines=sum(each.lines for each in set_aside),
            skipped_files=len({each.file for each in set_aside if not each.lines}),
            set_aside=set_aside,
        )

    def _forget(self, there: set[str]) -> None:
        """Forget files that have been gone for long: nothing of their hours comes any more."""
        files = self.kept.files
        newest_s = max((each.hours[-1] for each in files.values() if each.hours), default=0)
        for path in files.keys() - there:
            if not files[path].hours or files[path].hours[-1] < newest_s - _KEPT_S:
                del files[path]

    def _write(self) -> None:
        write_file(self.path, [msgspec.json.encode(self.kept)])

    def _is_known(self, file: File) -> bool:
        read = self.kept.files.get(file.path)
        return read is not None and (read.size_bytes, read.written_s) == (file.size_bytes, file.written_s)
