"""``sluice report``: what was refused, by whom, and what the limits should be, from the rejection log.

Only this imports ``admin.analytics``, and only when it is run: Spark is an optional extra that takes its time.
"""

import math
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

from cyclopts import App, Parameter

from admin.cli.options import FileName, Flag, Switch
from admin.common.clock import LATEST_S
from admin.common.errors import SettingsError
from admin.common.tables import printable
from limiter.rules.rule import MAX_RATE_PER_S

if TYPE_CHECKING:
    from admin.analytics.options import Try

_EPILOGUE: Final = (
    "LOGS are folders, files (.jsonl, .jsonl.gz), patterns, or addresses that Spark can read (s3a://…, hdfs://…). "
    "Folders are read with everything in them. Duplicate records count once, and a second run gives the same tables. "
    "Unreadable records are counted and left out.\n\n"
    "The command writes the days from --since to --until anew in --out, from these logs and this time alone. Other "
    "days stay. If you keep tables there, give whole days: a storm that crosses the ends is cut. Without --since and "
    "--until it writes all days anew, and removes days that the logs no longer cover.\n\n"
    "--out contains report.html, one self-contained page; recommendations.json for `sluice limits apply`; a folder of "
    "Parquet for each table (minutes, hours, refusals, storms, culprits, limits, limit_changes and coverage by day, "
    "recommendations as a whole); and _logs/spark.log. If --out is an address, the tables go there, and the rest goes "
    "to ./sluice-report.\n\n"
    "A TIME is in UTC (2026-11-21, 2026-11-21T13:30) or has an offset (2026-11-21T13:30+01:00); or it is a time ago: "
    "90m, 36h, 7d. It is extended to whole minutes.\n\n"
    "--once is for a timer: only hours that new files are of are made anew, from the files that are there. Everything "
    "else in --out is kept, also what was made of files that are gone.\n\n"
    "The command needs Java 17 or newer and pip install 'sluice-proxy[spark]'; `sluice report tail` needs neither. For "
    "large logs, raise --driver-memory, and keep as much disk space as the logs take in --out and in TMPDIR. On a "
    "cluster, use --master or spark-submit.\n\n"
    "Exit codes: 0 done, 1 not possible here or now, 2 wrong command line, 128 + N ended by signal N."
)
TAIL_EPILOGUE: Final = (
    "It needs neither Spark nor Java. It also reads unfinished files.\n\n"
    "Without PATHS it reads the log of the sidecar that other commands ask (SLUICE_URL, SLUICE_PROFILE), or, if that "
    "does not answer, all logs of this machine and user.\n\nExit codes: 0 done, 1 the log cannot be read."
)

app = App(
    name="report",
    help="Report what was refused, who was refused, and what the limits should be, from the rejection log.",
    help_epilogue=_EPILOGUE,
    usage="Usage: sluice report [LOGS…] [OPTIONS]\n       sluice report tail [PATHS…] [OPTIONS]",
)

Logs = Annotated[
    tuple[FileName, ...],
    Parameter(help="where the rejection log is (this machine's log)", show_default=False, negative=""),
]
_TIME: Final = "TIME"
_MINUTE_S: Final = 60
"""Traffic is recorded by the minute: with a part of one, what was refused in it would have no demand beside it."""
_AGO: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:min|[smhdw]))+")
_MEMORY: Final = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_MEMORY_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST_MEMORY: Final = 512 << 20


@app.default
def report(
    logs: Logs = (),
    /,
    *,
    since: Annotated[str | None, Flag(help="leave out everything before", metavar=_TIME)] = None,
    until: Annotated[str | None, Flag(help="leave out everything from then on", metavar=_TIME)] = None,
    out: Annotated[FileName, Flag(help="folder for tables and page (./sluice-report)", metavar="DIRECTORY")] = (
        "sluice-report"
    ),
    html: Annotated[FileName | None, Flag(help="write the page here instead", metavar="FILE")] = None,
    json: Annotated[bool, Switch(help="print the report as JSON")] = False,
    storm_gap: Annotated[
        str, Flag(help="refusals further apart than this are two storms (30s)", metavar="SECONDS")
    ] = "30s",
    headroom: Annotated[str, Flag(help="margin above the demand, as a share of it (0.2)", metavar="SHARE")] = "0.2",
    capacity: Annotated[
        str | None, Flag(help="messages per second that the broker can take in all", metavar="RATE")
    ] = None,
    once: Annotated[
        bool, Switch(help="read only what is new since the last time, and keep all that is there; for timers")
    ] = False,
    attempts: Annotated[
        tuple[str, ...],
        Flag(help="how often clients of a language try in all; may be repeated", metavar="LANGUAGE=N", negative=""),
    ] = (),
    try_: Annotated[
        tuple[str, ...],
        Flag(
            name="--try",
            help="say what this rate would have refused; may be repeated",
            metavar="KIND:NAME=RATE",
            negative="",
        ),
    ] = (),
    master: Annotated[
        str, Flag(help="where Spark runs: local[2], spark://HOST:PORT, yarn, k8s://… (this machine)", metavar="MASTER")
    ] = "",
    driver_memory: Annotated[str, Flag(help="memory of Spark's driver process (1g)", metavar="SIZE")] = "1g",
    conf: Annotated[
        tuple[str, ...], Flag(help="a Spark option; may be repeated", metavar="KEY=VALUE", negative="")
    ] = (),
) -> int:
    """Report what was refused, who was refused, and what the limits should be."""
    from admin.analytics.options import Options  # noqa: PLC0415 - see the module
    from admin.analytics.requirements import check_requirements  # noqa: PLC0415 - see the module
    from admin.analytics.retries import default_attempts  # noqa: PLC0415 - see the module
    from admin.analytics.spark import SparkOptions, read_conf  # noqa: PLC0415 - see the module

    now = datetime.now(UTC)
    since_s, until_s = read_time(since, "--since", now), read_time(until, "--until", now)
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise SettingsError(f"--since {since}, --until {until}: nothing is between them")
    if once and (since_s is not None or until_s is not None):
        raise SettingsError("--since, --until: not with --once, which keeps the tables of all days")
    options = Options(
        storm_gap_s=_gap(storm_gap),
        since_s=None if since_s is None else since_s - since_s % _MINUTE_S,
        until_s=None if until_s is None else until_s + -until_s % _MINUTE_S,
        headroom=_headroom(headroom),
        capacity_per_s=_capacity(capacity),
        attempts=_attempts(attempts, default_attempts()),
        tries=tuple(map(_try, try_)),
    )
    spark = SparkOptions(master=master, driver_memory=_memory(driver_memory), conf=read_conf(conf))
    check_requirements(java=not spark.is_connect)
    from admin.analytics import job  # noqa: PLC0415 - see the module

    wish = job.Wish(
        logs=tuple(map(str, logs)),
        out=str(out),
        html=None if html is None else Path(html),
        options=options,
        spark=spark,
        json=json,
        once=once,
    )
    with _ended_in_order():
        return job.report_logs(wish)


@app.command(help_epilogue=TAIL_EPILOGUE)
def tail(
    paths: Annotated[
        tuple[FileName, ...],
        Parameter(help="folders or files of the log (the sidecar's log)", show_default=False, negative=""),
    ] = (),
    /,
    *,
    lines: Annotated[int, Flag(name=("--lines", "-n"), help="number of records (10)", metavar="N")] = 10,
    follow: Annotated[bool, Switch(name=("--follow", "-f"), help="keep printing new records")] = False,
) -> int:
    """Print the latest records of the rejection log in readable form."""
    from admin.config.folders import default_logs  # noqa: PLC0415 - as in report
    from admin.rejection_log.tail import tail as show  # noqa: PLC0415 - as in report

    if lines < 0:
        raise SettingsError(f"--lines {lines}: must be at least 0")
    folders = [Path(path) for path in paths]
    if not folders:
        folders = _own_log() or default_logs()
        for folder in folders:
            _tell(f"reading {folder}{_age(folder)}")
    return show(folders, lines, follow)


def _own_log() -> list[Path]:
    """Return the log of the sidecar that other commands ask; nothing if that does not say it.

    Raises:
        SettingsError: it has none, or on another machine; or what says which sidecar it is, is wrong.
    """
    from admin.cli.options import ASK  # noqa: PLC0415 - as in report
    from admin.client import NoAnswerError, NotPermittedError  # noqa: PLC0415 - as in report
    from admin.client.api import Api, path  # noqa: PLC0415 - as in report
    from admin.wire import State  # noqa: PLC0415 - as in report

    try:
        with Api(ASK.target()) as api:
            directory = api.get(path("state")).read(State).rejection_log.directory
            url = api.url
    except (NoAnswerError, NotPermittedError) as error:
        _tell(f"{error}; until then, these are all logs of this machine and user")
        return []
    if directory is None:
        raise SettingsError(f"the Sluice at {url} keeps no rejection log; see `sluice state`, or name a folder")
    if not Path(directory).is_dir():
        raise SettingsError(f"the Sluice at {url} keeps its log in {directory}, which is not on this machine")
    return [Path(directory)]


def _age(folder: Path) -> str:
    """Say how long ago a log was written to; nothing if it has no files."""
    from admin.common.numbers import span  # noqa: PLC0415 - as in report

    files = (file for file in folder.iterdir() if ".jsonl" in file.name)
    newest_s = max((file.stat().st_mtime for file in files), default=None)
    return "" if newest_s is None else f", last written {span(max(0.0, time.time() - newest_s))} ago"


def _tell(line: str) -> None:
    # Not among the records, which may be on their way into a pipe.
    print(f"sluice: {printable(line)}", file=sys.stderr)  # noqa: T201 - for people


def read_time(text: str | None, flag: str, now: datetime) -> int | None:
    """Read a time: a date or a date and time, UTC if it does not say, or so long ago.

    Raises:
        SettingsError: it is none.
    """
    if text is None:
        return None
    words = text.strip()
    if _AGO.fullmatch(words):
        from admin.client.words import read_seconds  # noqa: PLC0415 - as in report

        at_s = now.timestamp() - read_seconds(words, flag)
    else:
        try:
            found = datetime.fromisoformat(words)
        except ValueError:
            raise SettingsError(
                f"{flag} {text}: must be a time like 2026-11-21, 2026-11-21T13:30, or so long ago: 36h, 7d"
            ) from None
        at_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not 0 <= at_s <= LATEST_S:
        raise SettingsError(f"{flag} {text}: must be from 1970 to 9999")
    return int(at_s)


def _memory(text: str) -> str:
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise SettingsError(f"--driver-memory {text}: must be a size like 1g or 1500m")
    if int(found[1]) * _MEMORY_BYTES[found[2].lower()] < _LEAST_MEMORY:
        raise SettingsError(f"--driver-memory {text}: Spark needs 512m at least")
    return text.lower()


def _gap(text: str) -> int:
    from admin.client import RefusedError  # noqa: PLC0415 - as in report
    from admin.client.words import read_seconds  # noqa: PLC0415 - as in report

    try:
        seconds = read_seconds(text, "--storm-gap")
    except RefusedError:
        seconds = 0.0
    if seconds != int(seconds) or not 1 <= seconds <= 3600:
        raise SettingsError(f"--storm-gap {text}: must be whole seconds, from 1s to 1h, as 30s")
    return int(seconds)


def _number(text: str) -> float:
    """Read a number; what is none is none of those that may be given."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _headroom(text: str) -> float:
    if not 0 <= (share := _number(text)) <= 10:
        raise SettingsError(f"--headroom {text}: must be a number from 0 to 10; 0.2 is a fifth more than is needed")
    return share


def _attempts(words: tuple[str, ...], known: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for word in words:
        language, equals, number = word.partition("=")
        if not (language and equals and number.isdecimal() and 1 <= int(number) <= 100):
            raise SettingsError(f"--attempts {word}: must be LANGUAGE=N, 1 to 100, as JAVA=1")
        # As clients write it.
        found[language.upper()] = int(number)
    if unknown := found.keys() - known.keys():
        raise SettingsError(f"--attempts {min(unknown)}: must be a language as clients name it: {', '.join(known)}")
    return dict(known) | found


def _try(word: str) -> "Try":
    from admin.analytics.options import Try  # noqa: PLC0415 - as in report

    what, equals, rate = word.rpartition("=")
    kind, colon, name = what.partition(":")
    per_s = _number(rate.removesuffix("/s"))
    if not (equals and colon and kind and name and 0 < per_s <= MAX_RATE_PER_S):
        raise SettingsError(
            f"--try {word}: must be KIND:NAME=RATE, as topic:orders=150/s, with a rate up to {MAX_RATE_PER_S:,}/s"
        )
    return Try(kind, name, per_s)


def _capacity(text: str | None) -> float | None:
    if text is None:
        return None
    if not 0 < (rate := _number(text.removesuffix("/s"))) < math.inf:
        raise SettingsError(f"--capacity {text}: must be a number of messages per second above 0, as 50000")
    return rate


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C leave no Java process and no temporary file, whatever else fails because of them."""
    noted: list[int] = []

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        noted.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Exception:
        # What was under way fails in many ways when it is interrupted.
        if not noted:
            raise
        sys.exit(128 + noted[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
