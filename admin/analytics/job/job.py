"""``sluice report`` as a whole: check what is given, start Spark, run the job, and say what was found.

Everything that can be wrong with what was given is found before Java is started.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
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
    from rich.console import Console

_FOLLOWED: Final = "_follow.json"
_LOG: Final = Path("_logs", "spark.log")
_LITTLE_BYTES: Final = 64 * 1024 * 1024
"""A report of smaller logs is done before Java has compiled its best."""


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
    log = place.files.absolute() / _LOG
    with OutLock(place.files) as lock, _progress(_console()) as step:
        brief = not found.addresses and found.size_bytes < _LITTLE_BYTES
        with open_session(replace(wish.spark, log=log, brief=brief)) as session, in_words(log):
            lock.owned_by(java_pid(session))
            read = make_tables(session, found, place.tables, wish.options, step)
            findings = publish(session, place, wish.options, read, step)
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
    from admin.analytics.job.follow import FollowSettings, follow, sources  # noqa: PLC0415 - batch jobs go without
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
        link=str(place.html.absolute()),
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


@contextmanager
def _progress(console: "Console") -> Iterator[Callable[[str], object]]:
    """Show on a terminal what is being done and for how long; yield what to call with each next step."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting Spark")
        yield lambda what: progress.update(task, description=what)
