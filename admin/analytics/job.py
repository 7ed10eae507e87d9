"""``sluice report`` as it is asked for: check what is given, start Spark, and have it done.

Everything that can be wrong with what was given is found before Spark is started; what ``making`` needs is imported
while its Java starts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from admin.analytics import inputs
from admin.analytics.once import Seen
from admin.analytics.options import Options
from admin.analytics.out import OutLock
from admin.analytics.spark import FEW_BYTES, SparkOptions, beside, in_words, open_session
from admin.common.errors import SettingsError, StartError

if TYPE_CHECKING:
    from rich.console import Console

REPORT_HTML: Final = "report.html"
DEFAULT_OUT: Final = "sluice-report"
_LOG: Final = Path("_logs", "spark.log")
_MAKING: Final = "admin.analytics.making"


@dataclass(frozen=True)
class Place:
    """Where a report goes.

    Attributes:
        tables: directory or address of the tables.
        files: directory of what is for people and for ``sluice limits apply``.
        html: the page.
    """

    tables: str
    files: Path
    html: Path

    @classmethod
    def of(cls, out: str, html: Path | None) -> "Place":
        """Return the places of a report.

        Args:
            out: directory or address; of an address, only the tables go there, and the rest here.
            html: the page's, if it goes elsewhere.
        """
        files = Path(DEFAULT_OUT) if "://" in out else Path(out)
        return cls(out.rstrip("/") if "://" in out else str(files.absolute()), files, html or files / REPORT_HTML)


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
        once: read only files that are new, and keep all that is there besides.
    """

    logs: tuple[str, ...]
    out: str
    html: Path | None
    options: Options
    spark: SparkOptions
    json: bool = False
    once: bool = False


def report_logs(wish: Wish) -> int:
    """Make a report.

    Returns:
        The exit code.

    Raises:
        OperatorError: what is wrong.
    """
    place = Place.of(wish.out, wish.html)
    if wish.once and "://" in wish.out:
        raise SettingsError(f"--out {wish.out}: must be a directory with --once")
    logs = wish.logs or _default_logs()
    _check_places(place, logs)
    found = inputs.find(logs, wish.options.since_s, wish.options.until_s)
    if not wish.once and Seen.is_kept(place.files):
        raise SettingsError(f"--out {wish.out}: is kept up to date by --once; choose another directory, or add --once")
    log = place.files.absolute() / _LOG
    with OutLock(place.files), _progress(_console()) as step:
        seen = Seen.read(place.files, wish.options) if wish.once else None
        # How much there is at addresses is not known yet.
        size_bytes = inf if any("://" in each for each in logs) else found.unpacked_bytes
        how = replace(wish.spark, log=log, brief=size_bytes < FEW_BYTES)
        beside(partial(import_module, _MAKING))
        with open_session(how) as session, in_words(log):
            making = import_module(_MAKING)
            found = inputs.find_at(session, found, wish.options.since_s, wish.options.until_s)
            findings = making.make_report(session, place, found, wish, seen=seen, step=step)
    making.tell(findings, None if wish.json else place.html)
    return 0


def _console() -> "Console":
    from rich.console import Console  # noqa: PLC0415 - takes its time

    return Console(stderr=True, highlight=False)


def _default_logs() -> tuple[str, ...]:
    from admin.config.folders import default_logs  # noqa: PLC0415 - as above

    return tuple(map(str, default_logs()))


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
