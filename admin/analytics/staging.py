"""What a stream has read so far, kept as Parquet, so that any day's tables can be made again from all its records.

::

    OUT/_follow.json                       what is followed, and what the tables were made with
    OUT/_checkpoint/                       Spark's own: which files make up which batch
    OUT/_records/batch=<id>/dt=<day>/      records of one batch; written anew when the batch is
    OUT/_records/day=<day>/upto=<id>/      records of one day of all batches up to this one, which they replace
    OUT/_newest/<id>.json                  the newest second of each instance, as of that batch
    OUT/_bad/batch=<id>/                   lines that could not be understood

A batch that Spark runs again, because the process was killed in the middle, consists of the same files and overwrites
what it left. Nothing is ever dropped: however late a record comes, its day is made from all records. Small files are
put together into one per day. Here is no table, no query and no alert; OUT is a folder of this machine or one that the
whole cluster mounts.
"""

import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics.reading import BAD, RECORDS, parse, written
from admin.analytics.tables import overwrite
from admin.analytics.words import DAY_S
from admin.common.disk import replace_durably
from admin.common.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACT_AT: Final = 32
"""A day's files are put together once this many batches have added to it."""
_NEWEST_KEPT: Final = 16
_COMPACTING: Final = ".compacting"


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What ``_follow.json`` says.

    Attributes:
        version: of the layout of staged records.
        logs: what is followed, sorted.
        made_with: what changes the tables of a day; empty until the first ones are whole.
    """

    version: int
    logs: tuple[str, ...]
    made_with: str = ""


VERSION: Final = 1
"""Version of the layout."""


class Staging:
    """The staged records in OUT.

    Args:
        session: of Spark.
        out: the directory.
    """

    def __init__(self, session: "SparkSession", out: Path) -> None:
        self._session = session
        self._out = out
        self._records, self._bad, self._newest = out / "_records", out / "_bad", out / "_newest"
        self._note = out / "_follow.json"
        self.checkpoint = out / "_checkpoint"

    def open(self, logs: Iterable[str]) -> Followed:
        """Look whether what is here belongs to these logs, or begin.

        Raises:
            StartError: it belongs to others, or to another version, or a part of it is gone.
        """
        wanted = tuple(sorted(logs))
        again = f"remove {self.checkpoint}, {self._records} and {self._note} to read all logs again"
        try:
            found = msgspec.json.decode(self._note.read_bytes(), type=Followed)
        except FileNotFoundError:
            if any(path.exists() for path in (self.checkpoint, self._records)):
                raise StartError(f"{self._note}: is missing beside the rest of what was followed; {again}") from None
            found = Followed(version=VERSION, logs=wanted)
            self.note(found)
        except msgspec.DecodeError:
            raise StartError(f"{self._note}: is damaged; {again}") from None
        if found.version != VERSION:
            raise StartError(
                f"{self._out}: was followed by another version of Sluice (layout {found.version}, this one has"
                f" {VERSION}); use that one, or {again}"
            )
        if found.logs != wanted:
            raise StartError(
                f"{self._out}: follows {', '.join(found.logs)}, not {', '.join(wanted)}; choose another directory with"
                f" --out, or {again}"
            )
        if self._records.exists() and not self.checkpoint.exists():
            raise StartError(f"{self.checkpoint}: is missing beside the records that were read; {again}")
        self._clean()
        return found

    def note(self, followed: Followed) -> None:
        """Write down what is followed, durably."""
        replace_durably(self._note, [msgspec.json.encode(followed)])

    def last_committed(self) -> int:
        """Return the last batch that Spark will not run again; -1 is none."""
        return max(_numbers(self.checkpoint / "commits", r"(\d+)"), default=-1)

    def stage(self, batch: int, lines: "DataFrame") -> tuple[int, int]:
        """Keep what the lines of a batch say, in place of what was kept of it before.

        Args:
            batch: number of the batch.
            lines: ``value`` and ``file``.

        Returns:
            how many records there are, and how many bad lines.
        """
        from pyspark.sql import Observation  # noqa: PLC0415 - beside the session that it needs

        read, understood = Observation(), Observation()
        one = F.count(F.lit(1)).alias("count")
        parsed = parse(written(lines).observe(read, one))
        rows = parsed.records.withColumn("dt", F.to_date(F.timestamp_seconds("at_s"))).observe(understood, one)
        overwrite(rows, str(self._batch(batch)), "dt")
        records = int(understood.get["count"])
        bad = int(read.get["count"]) - records
        folder = self._bad / f"batch={batch}"
        if bad:
            # Rarely: it reads the lines once more.
            overwrite(parse(lines).bad, str(folder))
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return records, bad

    def bad(self) -> "DataFrame | None":
        """Return the lines of all batches that could not be understood, as ``reading.BAD``; None without any."""
        folders = [str(path) for path in sorted(self._bad.glob("batch=*"))]
        return self._session.read.schema(BAD).parquet(*folders) if folders else None

    def days_of(self, batch: int) -> frozenset[date]:
        """Return the days that a batch has records of."""
        return frozenset(_dates(self._batch(batch), "dt="))

    def days(self, upto: int) -> frozenset[date]:
        """Return the days that there are records of, in batches up to one."""
        found = set(_dates(self._records, "day="))
        for batch in self._batches(upto):
            found |= self.days_of(batch)
        return frozenset(found)

    def read(self, days: Collection[date], upto: int) -> "DataFrame":
        """Return the records of some days, in batches up to one; duplicates are still in it."""
        return self._read([str(path) for day in sorted(days) for path in self._paths(day, upto)])

    def read_batch(self, batch: int) -> "DataFrame":
        """Return the records of a batch."""
        return self._read([str(path) for path in sorted(self._batch(batch).glob("dt=*"))])

    def _read(self, paths: list[str]) -> "DataFrame":
        if not paths:
            return self._session.createDataFrame([], RECORDS)
        return self._session.read.schema(RECORDS).parquet(*paths)

    def newest(self, batch: int) -> dict[str, int]:
        """Return the newest second of each instance as of a batch; of none, nothing."""
        known = [number for number in _numbers(self._newest, r"(\d+)\.json") if number <= batch]
        if not known:
            return {}
        content = (self._newest / f"{max(known)}.json").read_bytes()
        return msgspec.json.decode(content, type=dict[str, int])

    def note_newest(self, batch: int, newest: dict[str, int]) -> None:
        """Keep the newest second of each instance as of a batch."""
        self._newest.mkdir(exist_ok=True)
        replace_durably(self._newest / f"{batch}.json", [msgspec.json.encode(newest)])
        for number in sorted(_numbers(self._newest, r"(\d+)\.json"))[:-_NEWEST_KEPT]:
            (self._newest / f"{number}.json").unlink(missing_ok=True)

    def storm_days(self, days: Collection[date], gap_s: int, upto: int) -> frozenset[date]:
        """Return days, with those that a storm could reach them from or reach into over midnight.

        Args:
            days: any.
            gap_s: most seconds between refusals of one storm.
            upto: the last batch that counts.
        """
        there = self.days(upto)
        found, looked_at = frozenset(days) & there, frozenset[date]()
        while new := found - looked_at:
            near = {day + timedelta(offset) for day in new for offset in (-1, 0, 1)} & there
            looked_at |= new
            if near <= found and len(near) == 1:
                continue
            for midnight in self._crossed(near, gap_s, upto):
                found |= {midnight - timedelta(1), midnight} & there
        return found

    def compact(self, upto: int, least: int = COMPACT_AT) -> int:
        """Put the small files of days together.

        Args:
            upto: the last batch that Spark will not run again.
            least: only of days that so many batches have added to.

        Returns:
            how many days were.
        """
        batches = {batch: self.days_of(batch) for batch in self._batches(upto)}
        count = 0
        for day in sorted({day for days in batches.values() for day in days}):
            merged = self._merged(day)
            if sum(day in days for batch, days in batches.items() if batch > merged) < least:
                continue
            count += 1
            beside = self._records / _COMPACTING
            rows = self.read([day], upto)
            overwrite(rows.coalesce(1).sortWithinPartitions("type", "at_s"), str(beside))
            folder = self._records / f"day={day.isoformat()}"
            folder.mkdir(exist_ok=True)
            # From this moment on it stands for the batches, whether they are gone or not.
            beside.rename(folder / f"upto={upto}")
        self._clean()
        return count

    def _crossed(self, days: Collection[date], gap_s: int, upto: int) -> list[date]:
        """Return the midnights at the beginning of a day that refusals of one resource are close to on both sides."""
        near = (
            self.read(days, upto)
            .where("type = 'rejection'")
            .where((F.col("at_s") % DAY_S < gap_s) | (F.col("at_s") % DAY_S >= DAY_S - gap_s))
            .select("instance", "kind", "name", "at_s")
            .withColumn("midnight_s", F.floor((F.col("at_s") + gap_s) / DAY_S) * DAY_S)
        )
        before = F.col("at_s") < F.col("midnight_s")
        rows = (
            near.groupBy("instance", "kind", "name", "midnight_s")
            .agg(
                F.max(F.when(before, F.col("at_s"))).alias("last_s"),
                F.min(F.when(~before, F.col("at_s"))).alias("first_s"),
            )
            .where(f"first_s - last_s <= {gap_s}")
            .select(F.to_date(F.timestamp_seconds("midnight_s")).alias("day"))
            .distinct()
            .collect()
        )
        return [row["day"] for row in rows]

    def _batch(self, batch: int) -> Path:
        return self._records / f"batch={batch}"

    def _batches(self, upto: int) -> list[int]:
        return sorted(batch for batch in _numbers(self._records, r"batch=(\d+)") if batch <= upto)

    def _merged(self, day: date) -> int:
        """Return the last batch whose records of a day have been put together; -1 is none."""
        return max(_numbers(self._records / f"day={day.isoformat()}", r"upto=(\d+)"), default=-1)

    def _paths(self, day: date, upto: int) -> list[Path]:
        merged = self._merged(day)
        found = [self._records / f"day={day.isoformat()}" / f"upto={merged}"] if merged >= 0 else []
        for batch in self._batches(upto):
            path = self._batch(batch) / f"dt={day.isoformat()}"
            if batch > merged and path.exists():
                found.append(path)
        return found

    def _clean(self) -> None:
        """Remove what has been put together, and what killed jobs have left."""
        shutil.rmtree(self._records / _COMPACTING, ignore_errors=True)
        for day in _dates(self._records, "day="):
            merged = self._merged(day)
            folder = self._records / f"day={day.isoformat()}"
            for number in _numbers(folder, r"upto=(\d+)"):
                if number < merged:
                    shutil.rmtree(folder / f"upto={number}", ignore_errors=True)
            for batch in self._batches(merged):
                shutil.rmtree(self._batch(batch) / f"dt={day.isoformat()}", ignore_errors=True)
        committed = self.last_committed()
        for batch in self._batches(committed):
            if not self.days_of(batch):
                shutil.rmtree(self._batch(batch), ignore_errors=True)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _numbers(folder: Path, pattern: str) -> list[int]:
    return [int(found[1]) for name in _names(folder) if (found := re.fullmatch(pattern, name))]


def _dates(folder: Path, prefix: str) -> list[date]:
    found = []
    for name in _names(folder):
        if name.startswith(prefix):
            with suppress(ValueError):
                found.append(date.fromisoformat(name.removeprefix(prefix)))
    return found
