"""``sluice report`` as a whole: check what is given, start Spark, make the tables, and write what is for people.

Everything that can be wrong with what was given is found before Spark is started.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from admin.analytics import inputs, page
from admin.analytics.digest import Digest, Picked
from admin.analytics.findings import Findings
from admin.analytics.lines import Wanted
from admin.analytics.once import Seen
from admin.analytics.options import Options
from admin.analytics.out import OutLock, write_file
from admin.analytics.report import FEW_BYTES, SHORT_BYTES, Recommended, Tools, make_tables, recommend, tasks_of
from admin.analytics.spark import SparkOptions, given_options, in_words, open_session
from admin.analytics.summary import summary
from admin.analytics.tables import Store
from admin.common.errors import SettingsError, StartError
from admin.common.recommendations import Period, RecommendationsFile
from admin.rejection_log.places import usual_logs
from admin.run.check import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

RECOMMENDATIONS_JSON: Final = "recommendations.json"
REPORT_HTML: Final = "report.html"
DEFAULT_OUT: Final = "sluice-report"
_LOG: Final = Path("_logs", "spark.log")
_MOST_SET_ASIDE: Final = 50


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
    logs = wish.logs or tuple(map(str, usual_logs()))
    _check_places(place, logs)
    found = inputs.find(logs, wish.options.since_s, wish.options.until_s)
    if wish.once:
        Seen.read(place.files, wish.options)
    elif Seen.is_kept(place.files):
        raise SettingsError(f"--out {wish.out}: is kept up to date by --once; choose another directory, or add --once")
    log = place.files.absolute() / _LOG
    with OutLock(place.files), _progress(_console()) as step:
        # How much there is at addresses is not known yet.
        size_bytes = inf if any("://" in each for each in logs) else found.unpacked_bytes
        how = replace(wish.spark, log=log, brief=size_bytes < FEW_BYTES, short=size_bytes < SHORT_BYTES)
        with open_session(how) as session, in_words(log):
            found = inputs.find_at(session, found, wish.options.since_s, wish.options.until_s)
            findings = _report(session, place, found, wish, step)
    if wish.json:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())  # noqa: T201 - what was asked for
    else:
        show(summary(findings, place.html))
    return 0


def _report(
    session: "SparkSession", place: Place, found: inputs.Found, wish: Wish, step: Callable[[str], object]
) -> Findings:
    options = wish.options
    store = Store(session, place.tables, few=found.unpacked_bytes < FEW_BYTES)
    with store.scratch() as scratch:
        # Who runs a cluster may have said how many.
        tasks = given_options(wish.spark).get("spark.sql.shuffle.partitions", "")
        tools = Tools(
            session,
            store,
            scratch,
            int(tasks) if tasks.isdecimal() else tasks_of(found.unpacked_bytes, _cores(wish.spark)),
            step,
        )
        if wish.once:
            read = Seen.read(place.files, options).take(tools, found, options)
        else:
            read = make_tables(tools, found, options, Wanted(options.since_s, options.until_s))
        recommended = recommend(tools, options)
        step("gathering what was found")
        made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        digest = Digest(session, store, options, recommended.instances)
        picked = Picked(digest.storms[0], options.tries)
        _write_recommendations(place.files / RECOMMENDATIONS_JSON, made_at, recommended, picked)
        of_all = recommended.instances.values()
        read = msgspec.structs.replace(
            read,
            records=read.records or sum(each.records for each in of_all),
            duplicates=read.duplicates or sum(each.copies for each in of_all),
            set_aside=read.set_aside[:_MOST_SET_ASIDE],
            outside_files=found.outside,
        )
        findings = digest.findings(made_at, str(place.files), read, picked, recommended.decided)
    step("writing the page")
    write_file(place.html, [page.render(findings).encode()])
    return findings


def _write_recommendations(path: Path, made_at: str, recommended: Recommended, picked: Picked) -> None:
    """Write the file of recommendations, and pick those that are shown."""
    head = RecommendationsFile(
        made_at=made_at, period=_period(recommended), instances=tuple(sorted(recommended.instances))
    )

    def pieces() -> Iterator[bytes]:
        # All but the closing of the empty list and of the object.
        yield msgspec.json.encode(head).removesuffix(b"]}")
        for at, each in enumerate(recommended.all()):
            picked.add(each)
            yield (b",\n" if at else b"\n") + msgspec.json.encode(each)
        yield b"\n]}\n"

    write_file(path, pieces())


def _period(recommended: Recommended) -> Period:
    known = [each.coverage for each in recommended.instances.values() if each.coverage is not None]
    return Period(
        from_s=min((each.from_s for each in known), default=None),
        until_s=max((each.until_s for each in known), default=None),
    )


def _cores(spark: SparkOptions) -> int:
    """Return how many tasks run at a time at least: those of this machine, if Spark runs here."""
    named = spark.master.removeprefix("local[").removesuffix("]")
    return int(named) if named.isdecimal() else os.cpu_count() or 1


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
