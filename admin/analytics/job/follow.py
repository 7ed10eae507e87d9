"""``sluice report --follow``: the tables of a batch job, kept up to date as files of the log come in.

Spark's Structured Streaming says which files are new and remembers, in its checkpoint, which were taken. Each batch is
staged (see ``staging``), and then the tables of the days that it has records of are made again, from all records of
these days, by the same ``parse`` and ``derive`` as in a batch job. So it does not matter in which order files come, how
late, how often, or where the process was killed: the tables are those that a batch job makes of the same files. The
watermark drops nothing; it only says when a storm is over.

How logs are read, what tables hold and who is told about storms is decided elsewhere.
"""

import glob
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics.alerts import Ledger
from admin.analytics.job.batches import WATERMARK_S, Batches, FollowSettings, StoppedError, say
from admin.analytics.options import Options
from admin.analytics.out import OutLock
from admin.analytics.spark import java_pid
from admin.analytics.staging import Staging
from admin.analytics.webhook import Webhook
from admin.common.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console

__all__ = ["FollowSettings", "follow", "sources"]

_FILES: Final = "*.{jsonl,jsonl.gz}"
_MAX_FILE_AGE: Final = "3650d"
"""Spark ignores files that are so much older than the newest one."""
_DRAIN_ONCE_S: Final = 20.0
_POLL_S: Final = 1
_TIME: Final = r"timestamp_seconds(try_cast(regexp_extract(value, '\"at_s\":\\s*(\\d{1,11})', 1) AS BIGINT))"
"""The time of a line, in SQL, for the watermark that Spark's own progress shows."""


def follow(
    session: "SparkSession",
    logs: Sequence[str],
    out: Path,
    *,
    options: Options,
    settings: FollowSettings,
    refresh: Callable[[], object],
    console: "Console",
) -> int:
    """Keep the tables in a directory up to date, until SIGINT or SIGTERM, or until nothing is new.

    Args:
        session: of Spark.
        logs: folders, patterns of folders, or addresses.
        out: the directory.
        options: what the tables are made with; no range of time.
        settings: how.
        refresh: makes what depends on all tables: recommendations, the page.
        console: for progress; of the standard error output.

    Returns:
        The exit code.

    Raises:
        OperatorError: what cannot be followed, and why.
    """
    found = sources(logs)
    with ExitStack() as stack:
        lock = stack.enter_context(OutLock(out))
        lock.owned_by(java_pid(session))
        staging = Staging(session, out)
        followed = staging.open(found)
        batches = Batches(session, out, staging, options=options, settings=settings, console=console)
        if settings.webhook is not None:
            batches.ledger = Ledger(out / "_alerts", settings.link, time.time, lambda line: say(console, line))
            drain_s = _DRAIN_ONCE_S if settings.once else 0.0
            stack.enter_context(Webhook(settings.webhook, batches.ledger, drain_s=drain_s))
        batches.make_anew(followed)
        if not settings.once:
            batches.refresh = refresh
        stopping = stack.enter_context(_signals())
        batches.stopping = stopping
        query = _start(session, found, staging, settings, batches)
        _wait(query, batches, stopping)
        if settings.once and not stopping.is_set():
            refresh()
    return 0


def sources(logs: Sequence[str]) -> tuple[str, ...]:
    """Return what Spark is to look at: addresses as they are, folders and patterns with their whole path.

    Raises:
        SettingsError: one is no folder.
    """
    found = set()
    for log in logs:
        if "://" in log:
            found.add(log.rstrip("/"))
            continue
        path = Path(log).absolute()
        if path.is_dir():
            found.add(str(path.resolve()))
        elif path.exists():
            raise SettingsError(f"{log}: is a file, and only folders are followed; name {path.parent}")
        elif not glob.has_magic(log):
            raise SettingsError(f"{log}: no such folder; name the one that Sluice writes its rejection log to")
        elif not any(Path(each).is_dir() for each in glob.iglob(str(path))):  # noqa: PTH207 - absolute patterns
            raise SettingsError(f"{log}: no folder is named like that yet")
        else:
            found.add(str(path))
    return tuple(sorted(found))


def _start(
    session: "SparkSession", found: Sequence[str], staging: Staging, settings: FollowSettings, batches: Batches
) -> "StreamingQuery":
    def lines(source: str) -> "DataFrame":
        return (
            session.readStream.format("text")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", _FILES)
            .option("maxFileAge", _MAX_FILE_AGE)
            .option("maxBytesPerTrigger", str(settings.batch_bytes))
            .option("ignoreCorruptFiles", "true")
            .option("ignoreMissingFiles", "true")
            .load(source)
            .select("value", F.col("_metadata.file_path").alias("file"), F.expr(_TIME).alias("at"))
            .withWatermark("at", f"{WATERMARK_S} seconds")
        )

    writer = (
        reduce(lambda one, other: one.unionByName(other), map(lines, found))
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(staging.checkpoint))
        .queryName("sluice report")
    )
    writer = (
        writer.trigger(availableNow=True)
        if settings.once
        else writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds")
    )
    return writer.start()


def _wait(query: "StreamingQuery", batches: Batches, stopping: threading.Event) -> None:
    """Wait for the end of a query; what ended it is raised.

    Raises:
        OperatorError: the checkpoint is no good, or a batch says so.
    """
    with batches.shown() as show:
        try:
            while query.isActive:
                if stopping.is_set() and not query.status["isTriggerActive"]:
                    query.stop()
                    return
                query.awaitTermination(_POLL_S)
                show()
            failure = query.exception()
        except Exception:
            failure = query.exception()
            if failure is None:
                raise
    if failure is None or isinstance(batches.error, StoppedError) or (stopping.is_set() and batches.error is None):
        return
    if batches.error is not None:
        raise batches.error
    raise failure


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Take the first SIGINT or SIGTERM as a wish to end after the current batch; the second one ends at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
