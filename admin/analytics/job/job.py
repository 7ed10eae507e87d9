"""``sluice report`` as a whole: what is given is looked at, Spark is started, the job runs, people are told.

Everything that can be wrong with what was given is found before Java is started.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import msgspec

from admin.analytics import inputs
from admin.analytics.findings import Findings
from admin.analytics.job.report import Place, coming_in, make_tables, publish
from admin.analytics.options import Options
from admin.analytics.out import OutLock
from admin.analytics.spark import SparkOptions, in_words, java_pid, open_session
from admin.analytics.summary import summary
from admin.common.environment import ENV_WEBHOOK_TOKEN
from admin.common.errors import SettingsError, StartError
from admin.rejection_log.places import usual_logs
from admin.run.check import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

_FOLLOWED: Final = "_follow.json"
_LOG: Final = Path("_logs", "spark.log")
_LITTLE_BYTES: Final = 64 * 1024 * 1024
"""Of logs: a report of less is done before Java has compiled its best."""
_TICK_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a report is asked for.

    Attributes:
        logs: as given; none are this machine's.
        out: directory or address.
        html: where the page goes, if not into ``out``.
        options: what the tables are made with.
        spark: how Spark is run.
        json: print JSON.
    """

    logs: tuple[str, ...]
    out: str
    html: Path | None
    options: Options
    spark: SparkOptions
    json: bool


def report_logs(wish: Wish) -> int:
    """Run the batch job.

    Returns:
        The exit code.

    Raises:
        OperatorError: what is wrong.
    """
    place = Place.of(wish.out, wish.html)
    logs = wish.logs or tuple(map(str, usual_logs()))
    _check_places(place, logs)
    found = inputs.find(logs)
    if (place.files / _FOLLOWED).exists():
        raise SettingsError(f"--out {wish.out}: is kept up to date by --follow; choose another directory")
    console = _console()
    log = place.files.absolute() / _LOG
    with OutLock(place.files) as lock, _progress(console) as progress:
        progress.step("starting Spark")
        brief = not found.addresses and found.size_bytes < _LITTLE_BYTES
        with open_session(replace(wish.spark, log=log, brief=brief)) as session, in_words(log):
            lock.owned_by(java_pid(session))
            progress.session = session
            read = make_tables(session, found, place.tables, wish.options, progress.step)
            findings = publish(session, place, wish.options, read, progress.step)
            progress.session = None
    if wish.json:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())  # noqa: T201 - what was asked for
    else:
        show(summary(findings, place.html))
    return 0


def follow_logs(wish: Wish, *, once: bool, webhook: str | None) -> int:
    """Run the stream.

    Returns:
        The exit code.

    Raises:
        OperatorError: what is wrong.
    """
    from admin.analytics.alerts import AlertSettings  # noqa: PLC0415 - batch jobs go without
    from admin.analytics.job.follow import FollowSettings, follow, sources  # noqa: PLC0415 - as above
    from admin.analytics.staging import Staging  # noqa: PLC0415 - as above
    from admin.analytics.webhook import read_settings  # noqa: PLC0415 - as above

    if "://" in wish.out:
        raise SettingsError(f"--out {wish.out}: must be a directory with --follow; the cluster must see it, too")
    place = Place.of(wish.out, wish.html)
    logs = wish.logs or tuple(map(str, usual_logs()))
    _check_places(place, logs)
    settings = FollowSettings(
        once=once,
        webhook=None if webhook is None else read_settings(webhook, os.environ.get(ENV_WEBHOOK_TOKEN, "")),
        alerts=AlertSettings(link=str(place.html.absolute())),
    )
    found = sources(logs)
    console = _console()
    log = place.files.absolute() / _LOG
    told: list[Findings] = []
    with open_session(replace(wish.spark, log=log)) as session, in_words(log):

        def refresh() -> None:
            came = coming_in(logs, Staging(session, place.files).bad())
            told[:] = [publish(session, place, wish.options, came)]

        follow(session, found, place.files, options=wish.options, settings=settings, refresh=refresh, console=console)
    if once and told:
        show(summary(told[0], place.html))
    return 0


def _console() -> "Console":
    from rich.console import Console  # noqa: PLC0415 - takes its time

    return Console(stderr=True, highlight=False)


def _check_places(place: Place, logs: tuple[str, ...]) -> None:
    """Refuse to write among the logs: the next report would read what this one wrote.

    Raises:
        SettingsError: it would be.
    """
    files = place.files.resolve()
    if files.exists() and not files.is_dir():
        raise StartError(f"--out {place.files}: is a file; choose a directory")
    for log in logs:
        if "://" in log:
            continue
        folder = Path(log).resolve()
        if folder.is_dir() and files.is_relative_to(folder):
            raise SettingsError(f"--out {place.files}: lies within the logs, {log}; choose a place outside of them")
    if place.html.is_dir():
        raise SettingsError(f"--html {place.html}: is a directory; name a file")


class _Progress:
    """What is being done, for a terminal; nothing for a pipe.

    Attributes:
        session: of Spark; says how far it is.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._what = ""
        self._ended = Event()
        self.session: SparkSession | None = None

    def step(self, what: str) -> None:
        """Say what is being done now."""
        self._what = what

    def words(self) -> str:
        """Return the line to be shown."""
        elapsed_s = int(time.monotonic() - self._began_s)
        line = f"{elapsed_s // 60}:{elapsed_s % 60:02}  {self._what}"
        session = self.session
        if session is not None:
            done, of_all = _tasks(session)
            if of_all:
                line += f"  {done:,} of {of_all:,} tasks"
        return line

    def run(self) -> None:
        """Show it until it is ended."""
        from rich.text import Text  # noqa: PLC0415 - as above

        with self._console.status(Text(self.words())) as status:
            while not self._ended.wait(_TICK_S):
                status.update(Text(self.words()))

    def end(self) -> None:
        """Show no more."""
        self._ended.set()


def _tasks(session: "SparkSession") -> tuple[int, int]:
    """Return how many tasks of the stages that run are done, and how many there are."""
    try:
        tracker = session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # noqa: BLE001 - Spark may be ending, and nobody depends on this
        return 0, 0
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


@contextmanager
def _progress(console: "Console") -> Iterator[_Progress]:
    progress = _Progress(console)
    if not console.is_terminal:
        yield progress
        return
    thread = Thread(target=progress.run, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        progress.session = None
        progress.end()
        thread.join()
