"""The ``sluice report`` command, which evaluates the rejection log.

Only this module imports ``admin.analytics``, and only when needed, because Spark is optional and slow to import.
"""

import math
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from cyclopts import App, Parameter
from cyclopts.validators import Number

from admin.cli.options import ASK, PLAIN, FileName
from admin.client.text import read_seconds
from admin.common.errors import SettingsError
from admin.common.numbers import MAX_TIMESTAMP_S
from admin.common.tables import printable
from limiter.rules.rule import MAX_RATE_PER_S

if TYPE_CHECKING:
    from admin.analytics.options import Try

_EPILOGUE: Final = (
    "LOGS are folders, files (.jsonl, .jsonl.gz), patterns, or addresses that Spark can read (s3a://…, hdfs://…). "
    "Folders are read recursively. Duplicate records are counted once. Damaged records are skipped.\n\n"
    "The command replaces the tables in --out for the days from --since to --until and keeps those for other days. If "
    "you keep tables over time, report on entire days, because a storm that crosses --since or --until is cut off "
    "there. Without --since and --until, the command replaces all days and removes days that the logs no longer "
    "cover.\n\n"
    "--out contains a self-contained page (report.html), recommendations for `sluice limits apply` "
    "(recommendations.json), a folder of Parquet files for each table, and Spark's log (_logs/spark.log). The tables "
    "minutes, refusals, storms, culprits, limits, limit_changes and coverage are partitioned by day. The table "
    "recommendations is not. If --out is an address, only the tables are written there. Everything else is written to "
    "./sluice-report.\n\n"
    "A TIME is in UTC (2026-11-21, 2026-11-21T13:30), has an offset (2026-11-21T13:30+01:00), or is a duration before "
    "now (90m, 36h, 7d). The period is extended to full minutes.\n\n"
    "--once is intended for timers. It recomputes only the hours that new files cover, from all files that are "
    "present. It keeps everything else in --out, including the tables that were made from deleted files.\n\n"
    "The command requires Java 17 or newer and pip install 'sluice-proxy[spark]'. `sluice report tail` requires "
    "neither. For large logs, raise --driver-memory, and make sure that --out and TMPDIR each have as much free disk "
    "space as the logs occupy. On a cluster, use --master or spark-submit.\n\n"
    "Exit codes: 0 success, 1 not possible here or now, 2 invalid command line, 128 + N terminated by signal N."
)
TAIL_EPILOGUE: Final = (
    "The command requires neither Spark nor Java. It also reads files that are still being written.\n\n"
    "Without PATHS, it reads the log of the sidecar that SLUICE_URL or SLUICE_PROFILE selects. If that sidecar is "
    "unreachable, it reads all logs of this user on this machine.\n\n"
    "Exit codes: 0 success, 1 the log cannot be read."
)

app = App(
    name="report",
    help="Report on refusals and the clients that caused them, and recommend limits, based on the rejection log.",
    help_epilogue=_EPILOGUE,
    default_parameter=PLAIN,
    usage="Usage: sluice report [LOGS…] [OPTIONS]\n       sluice report tail [PATHS…] [OPTIONS]",
)

Files = tuple[FileName, ...]
Time = Annotated[str | None, Parameter(metavar="TIME")]
Directory = Annotated[FileName, Parameter(metavar="DIRECTORY")]
File = Annotated[FileName | None, Parameter(metavar="FILE")]
_MINUTE_S: Final = 60
"""Traffic is recorded per minute, so a partial minute would have refusals without demand."""
_MIN_KIB: Final = 512 << 10
_MIN_RATE: Final = 1e-6
"""The resolution of limits."""


@app.default
def report(
    logs: Files = (),
    /,
    *,
    since: Time = None,
    until: Time = None,
    out: Directory = "sluice-report",
    html: File = None,
    json: bool = False,
    storm_gap: Annotated[str, Parameter(metavar="SECONDS")] = "30s",
    headroom: Annotated[str, Parameter(metavar="SHARE")] = "0.2",
    once: bool = False,
    attempts: Annotated[tuple[str, ...], Parameter(metavar="LANGUAGE=N")] = (),
    try_: Annotated[tuple[str, ...], Parameter(name="--try", metavar="KIND:NAME=RATE")] = (),
    master: Annotated[str, Parameter(metavar="MASTER")] = "",
    driver_memory: Annotated[str, Parameter(metavar="SIZE")] = "1g",
    conf: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE")] = (),
) -> int:
    """Report on refusals and the clients that caused them, and recommend limits.

    Args:
        logs: rejection logs (this machine's log)
        since: only records since this time
        until: only records before this time
        out: output folder (./sluice-report)
        html: file for the page, instead of report.html in --out
        json: print the report as JSON
        storm_gap: longest gap between refusals in the same storm (30s)
        headroom: margin above the demand, as a fraction of the demand (0.2)
        once: process only new files; for timers
        attempts: how often clients in a language try to send a message; repeatable
        try_: also show the effect of this limit; repeatable
        master: where Spark runs: local[2], spark://HOST:PORT, yarn, k8s://… (this machine)
        driver_memory: memory of Spark's driver process (1g)
        conf: Spark option; repeatable
    """
    from admin.analytics.options import Options, default_attempts  # noqa: PLC0415 - see the module
    from admin.analytics.spark import SparkOptions, check_requirements  # noqa: PLC0415 - see the module

    now = datetime.now(UTC)
    since_s, until_s = read_time(since, "--since", now), read_time(until, "--until", now)
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise SettingsError(f"--since {since} must be earlier than --until {until}")
    if once and (since_s is not None or until_s is not None):
        raise SettingsError("--since and --until cannot be combined with --once, which keeps the tables of all days")
    if once and "://" in str(out):
        raise SettingsError(f"--out {out}: must be a local directory if --once is given")
    options = Options(
        storm_gap_s=_gap(storm_gap),
        since_s=None if since_s is None else since_s - since_s % _MINUTE_S,
        until_s=None if until_s is None else until_s + -until_s % _MINUTE_S,
        headroom=_number(
            f"--headroom {headroom}", headroom, "a number from 0 to 10; 0.2 adds a fifth", least=0, most=10
        ),
        attempts=_attempts(attempts, default_attempts()),
        tries=tuple(map(_try, try_)),
    )
    spark = SparkOptions(master=master, driver_memory=_memory(driver_memory), conf=read_conf(conf))
    check_requirements(java=not spark.is_connect)
    from admin.analytics import job  # noqa: PLC0415 - see the module

    spec = job.ReportSpec(
        logs=tuple(map(str, logs)),
        out=str(out),
        html=None if html is None else Path(html),
        options=options,
        spark=spark,
        json=json,
        once=once,
    )
    with _ended_in_order():
        return job.report_logs(spec)


@app.command(help_epilogue=TAIL_EPILOGUE)
def tail(
    paths: Files = (),
    /,
    *,
    lines: Annotated[int, Parameter(name=("--lines", "-n"), metavar="N", validator=Number(gte=0))] = 10,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> int:
    """Print the latest records of the rejection log in readable form.

    Args:
        paths: folders or files of the log (the sidecar's log)
        lines: number of records (10)
        follow: keep printing new records
    """
    from admin.config.folders import default_logs  # noqa: PLC0415 - as in report
    from admin.rejection_log.tail import tail as show  # noqa: PLC0415 - as in report

    folders = [Path(path) for path in paths]
    if not folders:
        folders = _own_log() or default_logs()
        for folder in folders:
            _tell(f"reading {folder}")
    return show(folders, lines, follow)


def _own_log() -> list[Path]:
    from admin.client.api import Api, ApiError  # noqa: PLC0415 - as in report

    try:
        with Api(ASK.target()) as api:
            url, directory = api.url, api.get("state").read(dict[str, Any])["rejection_log"]["directory"]
    except ApiError as error:
        _tell(f"{error}; showing all logs of this user on this machine")
        return []
    if directory is None:
        raise SettingsError(f"the Sluice at {url} does not write a rejection log; pass the path of a log")
    if not Path(directory).is_dir():
        raise SettingsError(
            f"the Sluice at {url} writes its rejection log to {directory}, which does not exist on this machine; run"
            " the command on Sluice's machine"
        )
    return [Path(directory)]


def _tell(line: str) -> None:
    # Do not print to stdout, because records may be piped.
    print(f"sluice: {printable(line)}", file=sys.stderr)  # noqa: T201 - for people


def read_time(text: str | None, flag: str, now: datetime) -> int | None:
    """Parse a time (UTC by default) or a duration before now. Raises SettingsError."""
    if text is None:
        return None
    words = text.strip()
    try:
        if re.fullmatch(r"(?:\d+(?:\.\d+)?(?:min|[smhdw]))+", words):
            at_s = now.timestamp() - read_seconds(words, flag)
        else:
            found = datetime.fromisoformat(words)
            at_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        example = "2026-11-21 or 2026-11-21T13:30, or a duration before now, like 36h or 7d"
        raise SettingsError(f"{flag} {text}: must be a time like {example}") from None
    if not 0 <= at_s <= MAX_TIMESTAMP_S:
        raise SettingsError(f"{flag} {text}: must be between the years 1970 and 9999")
    return int(at_s)


def _memory(text: str) -> str:
    found = re.fullmatch(r"(\d+)([kmgt])b?", text.lower())
    if found is None or int(found[1]) << 10 * "kmgt".index(found[2]) < _MIN_KIB:
        raise SettingsError(f"--driver-memory {text}: must be a size like 1g or 1500m; Spark needs at least 512m")
    return text.lower()


def read_conf(words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.startswith("spark."):
            raise SettingsError(
                f"--conf {word}: must be KEY=VALUE, where KEY is a Spark setting, like spark.executor.memory=2g"
            )
        found.append((key, value))
    return tuple(found)


def _gap(text: str) -> int:
    seconds = read_seconds(text, "--storm-gap")
    if seconds != int(seconds) or not 1 <= seconds <= 3600:
        raise SettingsError(f"--storm-gap {text}: must be a whole number of seconds from 1s to 1h, like 30s")
    return int(seconds)


def _number(given: str, text: str, must: str, *, least: float, most: float) -> float:
    try:
        number = float(text.removesuffix("/s"))
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise SettingsError(f"{given}: must be {must}")
    return number


def _attempts(words: tuple[str, ...], known: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for word in words:
        language, equals, number = word.partition("=")
        if not (language and equals and number.isdecimal() and 1 <= int(number) <= 100):
            raise SettingsError(f"--attempts {word}: must be LANGUAGE=N with N from 1 to 100, like JAVA=1")
        found[language.upper()] = int(number)
    if unknown := found.keys() - known.keys():
        raise SettingsError(f"--attempts {min(unknown)}: unknown client language; must be one of {', '.join(known)}")
    return dict(known) | found


def _try(word: str) -> "Try":
    from admin.analytics.options import Try  # noqa: PLC0415 - as in report

    what, equals, rate = word.rpartition("=")
    kind, colon, name = what.partition(":")
    must = f"KIND:NAME=RATE, like topic:orders=150/s, with a rate up to {MAX_RATE_PER_S:,}/s"
    if not (equals and colon and kind and name):
        raise SettingsError(f"--try {word}: must be {must}")
    return Try(kind, name, _number(f"--try {word}", rate, must, least=_MIN_RATE, most=MAX_RATE_PER_S))


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Stop Java and remove temporary files on SIGTERM and Ctrl-C."""
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
        if not noted:
            raise
        sys.exit(128 + noted[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
