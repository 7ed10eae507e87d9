"""What is done with each batch of a stream: stage it, make the tables of its days anew, tell about storms.

Where batches come from and when they end is ``follow``; how records are kept is ``staging``; which storms are told is
``alerts``.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import tables, words
from admin.analytics.alerts import LEAST_REFUSED, RECENT_S, Ledger, Sighting
from admin.analytics.derive import NEWEST, derive
from admin.analytics.digest import storm
from admin.analytics.options import Options
from admin.analytics.reading import distinct, restage
from admin.analytics.staging import Followed, Staging
from admin.analytics.webhook import WebhookSettings
from admin.analytics.words import DAY_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

MADE_BY: Final = 2
"""Version of the code that makes tables; a follower that finds tables of another one makes them all anew."""
WATERMARK_S: Final = 600
"""Records of an instance come at most this much later than its newest one; after that its storm is over. Even later
ones still count."""
_SILENT: Final = 6
"""The storm of an instance that has gone silent is over after this many times the watermark."""
_COMPACT_EVERY: Final = 8


@dataclass(frozen=True, kw_only=True)
class FollowSettings:
    """How it follows.

    Attributes:
        once: take what is there and end.
        trigger_s: seconds between looks for new files.
        batch_bytes: of files in one batch, about.
        refresh_s: least seconds between recommendations and pages.
        webhook: where alerts go; None is nowhere.
        link: where the report is, for people who get an alert.
    """

    once: bool = False
    trigger_s: float = 30.0
    batch_bytes: int = 1024 * 1024 * 1024
    refresh_s: float = 300.0
    webhook: WebhookSettings | None = None
    link: str = ""


class Batches:
    """What is done with each batch; called by Spark, one at a time.

    Attributes:
        ledger: of alerts; None tells nobody.
        refresh: see ``follow``; None does not.
        stopping: no further batch is begun.
        error: what went wrong in the last one.
    """

    def __init__(
        self,
        session: "SparkSession",
        out: Path,
        staging: Staging,
        *,
        options: Options,
        settings: FollowSettings,
        console: "Console",
    ) -> None:
        self._session, self._out, self._staging = session, out, staging
        self._options, self._settings, self._console = options, settings, console
        self.ledger: Ledger | None = None
        self.refresh: Callable[[], object] | None = None
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.last = ""
        self._refreshed_at_s = float("-inf")

    def __call__(self, lines: "DataFrame", batch: int) -> None:
        """Stage a batch, make the tables of its days anew, tell about storms."""
        if self.stopping.is_set():
            # Spark takes the same batch again after the next start.
            raise StoppedError
        try:
            self._take(lines, batch)
        except BaseException as error:
            self.error = error
            raise

    def make_anew(self, followed: Followed) -> None:
        """Make all tables of all staged days, if they were made with something else, and write that down."""
        options = replace(self._options, headroom=0.0, capacity_per_s=None)
        made_with = f"{MADE_BY} {options}"
        if followed.made_with == made_with:
            return
        upto = self._staging.last_committed()
        if days := self._staging.days(upto):
            self._rewrite(days, days, self._staging.newest(upto), upto)
        self._staging.note(Followed(version=followed.version, logs=followed.logs, made_with=made_with))

    def _take(self, lines: "DataFrame", batch: int) -> None:
        began_s = time.monotonic()
        records, bad = self._staging.stage(batch, lines.select("value", "file"))
        before = self._staging.newest(batch - 1)
        newest, files = dict(before), 0
        staged = self._staging.read_batch(batch).groupBy("instance")
        for row in staged.agg(F.expr(NEWEST), F.count_distinct("file").alias("files")).collect():
            newest[row["instance"]] = max(row["newest_s"], before.get(row["instance"], row["newest_s"]))
            files += row["files"]
        self._staging.note_newest(batch, newest)
        touched = self._staging.days_of(batch)
        # Newer records of an instance close its open storms, on whichever day they are.
        ends = {
            tables.day_of(at_s)
            for instance, newest_s in before.items()
            if newest[instance] != newest_s
            for at_s in (newest_s, newest_s - self._options.storm_gap_s)
        }
        storm_days = self._staging.storm_days(touched | ends, self._options.storm_gap_s, batch)
        if touched:
            self._rewrite(touched, storm_days, newest, batch)
        if self.ledger is not None:
            self._tell(self.ledger, storm_days, newest)
        if batch % _COMPACT_EVERY == 0:
            # Only what Spark will not run again.
            self._staging.compact(batch - 1)
        now_s = time.monotonic()
        if self.refresh is not None and now_s - self._refreshed_at_s >= self._settings.refresh_s:
            self.refresh()
            self._refreshed_at_s = now_s
        took_s = time.monotonic() - began_s
        self._progress(batch, files=files, records=records, bad=bad, newest=newest, took_s=took_s)

    def _rewrite(
        self, days: Collection[date], storm_days: frozenset[date], newest: Mapping[str, int], upto: int
    ) -> None:
        """Make the tables of days, and the storms of more days."""
        newest_frame = self._session.createDataFrame(list(newest.items()), "instance STRING, newest_s BIGINT")
        out, wanted = str(self._out), frozenset(days)
        with tables.scratch(self._session, out) as scratch:
            once = distinct(self._staging.read(storm_days | wanted, upto))
            records = restage(once.records, f"{scratch}/once") if once.dropped else once.records
            derived = derive(records, self._options, newest_frame)
            try:
                for table in tables.BY_DAY:
                    frame = derived.frame(table, out, wanted)
                    if table is tables.STORMS:
                        tables.write(frame, out, table, storm_days)
                    else:
                        tables.write(frame.where(F.col("dt").isin(*wanted)), out, table, wanted)
            finally:
                derived.release()

    def _tell(self, ledger: Ledger, days: Collection[date], newest: Mapping[str, int]) -> None:
        """Look which storms of the days, and of those that were told, begin or end."""
        known = ledger.unfinished
        wanted = {*days, *(tables.day_of(alert.start_s) for alert in known)}
        told = {(alert.instance, alert.kind, alert.name) for alert in known}
        recent_s = int(time.time()) - RECENT_S
        rows = [
            row
            for row in tables.read(self._session, str(self._out), tables.STORMS, wanted)
            .where(F.col("messages") >= LEAST_REFUSED)
            .collect()
            if row["end_s"] >= recent_s or (row["instance"], row["kind"], row["name"]) in told
        ]
        limits = self._limits({(row["instance"], row["kind"], row["name"]) for row in rows}, wanted)
        ledger.update(
            Sighting(
                storm(row),
                is_over=self._is_over(row["instance"], row["end_s"], newest),
                limit_per_s=limits.get((row["instance"], row["kind"], row["name"])),
            )
            for row in rows
        )

    def _is_over(self, instance: str, end_s: int, newest: Mapping[str, int]) -> bool:
        waited_s = end_s + self._options.storm_gap_s
        late_s = WATERMARK_S
        own_s = newest.get(instance, 0)
        return waited_s + late_s <= own_s or waited_s + _SILENT * late_s <= max(newest.values(), default=0)

    def _limits(
        self, resources: Collection[tuple[str, str, str]], days: Collection[date]
    ) -> dict[tuple[str, str, str], float | None]:
        """Return the limits in force of resources, as of their last minute in some days."""
        if not resources:
            return {}
        wanted = self._session.createDataFrame(sorted(resources), "instance STRING, kind STRING, name STRING")
        rows = (
            tables.read(self._session, str(self._out), tables.MINUTES, days)
            .join(F.broadcast(wanted), list(tables.RESOURCE_KEY))
            .groupBy(*tables.RESOURCE_KEY)
            .agg(F.max_by("rate_per_s", "minute_s").alias("rate_per_s"))
            .collect()
        )
        return {(row["instance"], row["kind"], row["name"]): row["rate_per_s"] for row in rows}

    def _progress(
        self, batch: int, *, files: int, records: int, bad: int, newest: Mapping[str, int], took_s: float
    ) -> None:
        latest = max(newest.values(), default=0)
        said = [f"batch {batch}: {words.counted(files, 'file')}", f"{records:,} records"]
        if bad:
            said.append(f"{bad} bad lines")
        if latest:
            said.append(f"up to {words.moment(latest)}")
            said.append(f"watermark {words.moment(latest - WATERMARK_S)[11:]}")
        said.append(f"{words.counted(self._going(newest), 'storm')} going on")
        if self.ledger is not None and (pending := self.ledger.pending):
            said.append(f"{pending} alerts wait")
        said.append(f"{took_s:.1f} s")
        self.last = ", ".join(said)
        if not self._console.is_terminal:
            say(self._console, self.last)

    @contextmanager
    def shown(self) -> Iterator[Callable[[], object]]:
        """Show on a terminal what the last batch was: yield what brings it up to date."""
        if not self._console.is_terminal:
            yield lambda: None
            return
        waiting = "looking for files of the rejection log"
        with self._console.status(waiting) as status:
            yield lambda: status.update(self.last or waiting)

    def _going(self, newest: Mapping[str, int]) -> int:
        """Count the storms that may go on."""
        if not newest:
            return 0
        days = {tables.day_of(at_s - back_s) for at_s in newest.values() for back_s in (0, DAY_S)}
        return tables.read(self._session, str(self._out), tables.STORMS, days).where("is_open").count()


class StoppedError(Exception):
    """A batch was not begun because the process is about to end."""


def say(console: "Console", line: str) -> None:
    """Tell people something, in a line."""
    console.print(f"sluice: {line}", markup=False, highlight=False, soft_wrap=True)
