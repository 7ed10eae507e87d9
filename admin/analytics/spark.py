"""Spark, as reports use it: whether it can run here, a quiet session, and what its errors mean in a line.

What Java says goes to a file, and nothing is left in the temporary directory. Where a session is there already
(``spark-submit``, Spark Connect), it is used.
"""

import fcntl
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Final, TypeVar

from admin.analytics.requirements import check_requirements, under_submit
from admin.common.errors import OperatorError, SettingsError, StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark's errors mean, in a line for people; its own words go to its log.
#
# A Spark error is pages of Java. What an operator can do something about is recognised by the few words that Java,
# Hadoop and Spark have for it; of anything else the first line is shown.
_LONGEST: Final = 300
"""Characters of a line that is Spark's own."""
_INDEX: Final = re.compile(r"^(?:\[[A-Z_.0-9]+\] )+")


def _place(text: str) -> str:
    """Write a path as people know it."""
    return re.sub(r"^file:/+", "/", text.rstrip(".,;:'\"`"))


_MEANINGS: Final = (
    (
        r"java\.lang\.OutOfMemoryError|GC overhead limit|Java heap space|SparkOutOfMemoryError",
        "Spark ran out of memory: give it more with --driver-memory, as 2g, or a shorter time with --since",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        (
            "no space left on the device: of --out, or of the temporary directory (TMPDIR chooses another);"
            " what was there before is still whole"
        ),
    ),
    (
        r"(?:PATH_NOT_FOUND\]? ?|FileNotFoundException: |does not exist: )[^\n]*?(\b(?!file:)\w+://[^\s'\"`,]+)",
        "{}: nothing is there; see whether the address is right",
    ),
    (
        r"(?:PATH_NOT_FOUND\]? ?|FileNotFoundException: (?:File )?|does not exist: )[^\n]*?((?:file:)?/[^\s'\"`,]+)",
        "{}: vanished while it was read; run it again",
    ),
    (
        r"(?:AccessControlException|AccessDeniedException|Permission denied)[^\n]*?((?:\b\w+:/?)?/[^\s'\"`,()]+)",
        "{}: permission denied; choose another place or run it as another user",
    ),
    (
        r"(?:AccessControlException|AccessDeniedException|Permission denied)",
        "permission denied; choose another --out or run it as another user",
    ),
    (
        r"Mkdirs failed to create (?:file:)?(/\S+)",
        "{}: cannot be made; choose another --out",
    ),
    (
        r"(?:Class (\S+FileSystem) not found|No FileSystem for scheme \"?(\w+)\"?)",
        (
            "no reader for {} here; let Spark fetch it, as with "
            "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2"
        ),
    ),
    (
        r"(?:All masters are unresponsive|Failed to connect to master|Master removed our application)",
        "the Spark master does not answer, or has no room for this; see --master",
    ),
    (r"Input/output error", "the disk cannot be read or written (input/output error)"),
    (
        r"(?:CANNOT_READ_FILE_FOOTER|is not a Parquet file)[^\n]*?((?:file:)?/[^\s'\"`,()]+)",
        "{}: is no table of a report; choose another --out, or delete it",
    ),
)
"""What to look for in an error with all its causes, and what it means; the first that fits. Places go into the gaps."""


@contextmanager
def in_words(log: Path | None) -> Iterator[None]:
    """Turn what Spark raises into a line, with the rest in its log.

    Args:
        log: Spark's log, to which the error is appended; None keeps it nowhere.

    Raises:
        StartError: Spark failed, or a file cannot be read or written.
    """
    try:
        yield
    except Exception as error:
        first = _first_of_sparks(error)
        if isinstance(error, OperatorError | BrokenPipeError):
            raise
        if first is None and isinstance(error, OSError) and error.strerror:
            file = error.filename or "a file in --out"
            raise StartError(f"{file}: cannot be read or written: {error.strerror.lower()}") from error
        if first is None:
            raise
        text = "".join(traceback.format_exception(error))
        if log is not None:
            with suppress(OSError), log.open("a", encoding="utf-8") as stream:
                stream.write(text)
        raise StartError(meaning(first, text) + (f"; see {log}" if log is not None else "")) from error


def _first_of_sparks(error: BaseException | None) -> BaseException | None:
    """Return what went wrong first with Spark: when Java is gone, letting go of things fails as well."""
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - an optional extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    found = None
    while error is not None:
        # What Java raised has been put into words by Spark's Python side, if that could.
        is_its_words = isinstance(found, PySparkException) and isinstance(error, Py4JJavaError)
        if (isinstance(error, PySparkException | Py4JError) or _is_lost(error)) and not is_its_words:
            found = error
        error = error.__cause__ or error.__context__
    return found


def _is_lost(error: BaseException) -> bool:
    """Tell whether the Java process is gone."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - as above

    return isinstance(error, Py4JNetworkError | ConnectionRefusedError | ConnectionResetError)


def meaning(error: BaseException, text: str = "") -> str:
    """Say in a line what Spark's error means.

    Args:
        error: what was raised.
        text: the error with all its causes, where it says more.
    """
    try:
        said = str(error)
    except OSError:
        # It is Java that would say it.
        said = None
    text = f"{said}\n{text}"
    for pattern, words in _MEANINGS:
        if found := re.search(pattern, text):
            return words.format(*(_place(group) for group in found.groups() if group))
    if said is None or _is_lost(error):
        return "Spark's Java process ended in the middle; it may have been killed for want of memory (--driver-memory)"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # A failed job begins with where it failed; the cause is what matters.
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = _INDEX.sub("", (causes or lines or [type(error).__name__])[0])
    return f"Spark failed: {first[:_LONGEST].rstrip('.')}"


FEW_BYTES: Final = 100 * 1024 * 1024
"""Logs of up to so much are little: few tasks, nothing planned anew while it runs."""
_T = TypeVar("_T")
LOCAL: Final = "local[*]"
"""All of this machine."""
_JAVA: Final = (
    "-XX:ReservedCodeCacheSize=128m -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Spark's own classes are not verified, which takes a tenth of the start: who could change these could change all."""
_GARBAGE: Final = "-XX:+UseSerialGC"
"""One thread for it: as many are at work as there are processors. Java starts with one such option only."""
_BRIEF_JAVA: Final = "-XX:TieredStopAtLevel=1"
"""Java's first compiler alone: what there is to do is done before more would pay."""
_LONG_JAVA: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the defaults: its best compiler takes only what is used most. A report of a million records took 185 CPU
seconds with these, 215 with the defaults, and 222 with the first compiler alone; of half a million 89, 125 and 97."""
_WORKERS: Final = "admin.analytics.workers"
_LOOPBACK: Final = "127.0.0.1"
_SCRATCH: Final = "sluice-report-"
"""Beginning of the names of temporary directories."""
_LOCK: Final = "lock"
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
_LONGEST_LOG: Final = 16 * 1024 * 1024
"""A longer log is begun anew."""
_BEGUN: Final = "--- sluice report starts Spark ---\n"
"""Marks a start in the log, before Spark says anything."""


@dataclass(frozen=True)
class SparkOptions:
    """How Spark is run.

    Attributes:
        master: where: ``local[2]``, ``spark://HOST:PORT``, ``k8s://…``, ``yarn``, ``sc://HOST:PORT`` (Spark Connect);
            empty is what ``spark-submit`` was told, or else all of this machine.
        driver_memory: of the Java process here, as ``1g`` or ``512m``.
        conf: Spark's own options, which win.
        log: file for what Spark says; None lets it go.
        brief: there is little to do, for which neither Java nor Spark need plan or compile their best.
    """

    master: str = ""
    driver_memory: str = "1g"
    conf: tuple[tuple[str, str], ...] = ()
    log: Path | None = None
    brief: bool = False

    @property
    def is_local(self) -> bool:
        """Nothing but this machine is used."""
        return self.master in {"", "local"} or self.master.startswith("local[")

    @property
    def is_connect(self) -> bool:
        """Spark runs elsewhere, and is spoken to by Spark Connect."""
        return self.master.startswith("sc://")


@contextmanager
def open_session(options: SparkOptions) -> Iterator["SparkSession"]:
    """Start Spark, and stop it with the block; its Java process ends with this one.

    Args:
        options: how it is run.

    Raises:
        StartError: it did not start; a line says why and where its own words are.
    """
    check_requirements(java=not options.is_connect)
    with (
        _scratch() as scratch,
        _log_stream(options.log) as stream,
        _quiet(),
        _session(options, scratch, stream) as session,
    ):
        yield session


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the Python side of Spark logs off the terminal; what went wrong is said once, by us."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an optional extra that takes its time

    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    # It writes whole query plans to the standard error output.
    queries = PySparkLogger.getLogger("SQLQueryContextLogger")
    was_disabled, queries.disabled = queries.disabled, True
    try:
        yield
    finally:
        queries.disabled = was_disabled
        logging.root.removeHandler(handler)


_ALWAYS: Final = {
    # Otherwise each word of a query is noted with the line of Python that said it, which takes seconds.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Both Java and Python hold several such.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # A job of its own that looks for files is for more of them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
}
_BRIEF: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # With it, what plain Python runs in is not what SQL's Python can run in.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
"""Most time of a small job goes by before the first row: in planning and compiling."""


def given_options(options: SparkOptions) -> dict[str, str]:
    """Return what Spark was told. ``spark-submit`` was told some of it: who asks it begins to use it."""
    if not under_submit():
        return dict(options.conf)
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above

    conf = SparkConf().setAll(list(options.conf))
    if options.master:
        conf.setMaster(options.master)
    return dict(SparkContext.getOrCreate(conf).getConf().getAll())


def _settings(options: SparkOptions, scratch: Path, given: dict[str, str]) -> dict[str, str]:
    """Return Spark's options: ours, as far as nobody gave others."""
    settings = dict(_ALWAYS)
    if options.brief:
        settings |= _BRIEF
    if not under_submit() and not options.is_connect:
        settings |= {
            "spark.driver.memory": options.driver_memory,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
    if options.is_local and not under_submit():
        settings |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": str(scratch),
        }
        if os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
            settings["spark.python.daemon.module"] = _WORKERS
    settings |= given
    if not under_submit() and not options.is_connect:
        java = f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile=file:{scratch / 'log4j2.properties'}"
        java += f" {_JAVA} {_BRIEF_JAVA if options.brief else _LONG_JAVA}"
        its = given.get("spark.driver.extraJavaOptions", "")
        java += f" {_GARBAGE}" * (re.search(r"-XX:\+Use\w+GC", its) is None)
        settings["spark.driver.extraJavaOptions"] = f"{java} {its}".strip()
    return settings


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a temporary directory; those that killed processes have left are removed."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{_SCRATCH}*"):
        with suppress(OSError), (old / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    try:
        directory = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    except OSError as error:
        raise StartError(
            f"cannot make a temporary directory in {parent}: {error.strerror or error}; TMPDIR chooses another"
        ) from error
    try:
        with (directory / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _log_stream(log: Path | None) -> Iterator[IO[bytes]]:
    """Open the file for what Spark says."""
    log = log or Path(os.devnull)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        is_long = log.exists() and log.stat().st_size > _LONGEST_LOG
        stream = log.open("wb" if is_long else "ab")
    except OSError as error:
        raise StartError(f"{log}: cannot be written: {error.strerror or error}; --out chooses another place") from error
    with stream:
        stream.write(_BEGUN.encode())
        stream.flush()
        yield stream


@contextmanager
def _said_to(stream: IO[bytes]) -> Iterator[None]:
    """Have processes that are started meanwhile say to a file what they would say to the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in kept:
            os.dup2(stream.fileno(), number)
        yield
    finally:
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM wait: whoever starts a process has to know it before it can be ended."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted and callable(at_once := before[signal.Signals(number)]):
            at_once(number, frame)
        noted.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if noted:
        signal.raise_signal(noted[0])


@contextmanager
def _home(options: SparkOptions, scratch: Path) -> Iterator[None]:
    """Let Java find all of Spark but its machine learning, which takes a second to make itself known to each session.

    Nor is its archive of Python's source there: without it, Spark's Python takes what is installed, and is compiled.
    """
    if not options.is_local or under_submit() or "SPARK_HOME" in os.environ:
        yield
        return
    import pyspark  # noqa: PLC0415 - as above

    installed = Path(pyspark.__file__).parent
    (scratch / "jars").mkdir()
    for path in (*installed.glob("bin"), *installed.glob("conf"), *installed.glob("jars/*.jar")):
        if not path.name.startswith("spark-mllib_"):
            (scratch / path.relative_to(installed)).symlink_to(path)
    os.environ["SPARK_HOME"] = str(scratch)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


@contextmanager
def _session(options: SparkOptions, scratch: Path, stream: IO[bytes]) -> Iterator["SparkSession"]:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    builder = SparkSession.builder
    named = (("spark.app.name", "sluice report"), ("spark.master", options.master or LOCAL))
    if options.is_connect:
        builder = builder.remote(options.master)
    elif not under_submit():
        builder = builder.config(map=dict(named))
    # Only spark-submit reads this option.
    if (python := dict(options.conf).get("spark.pyspark.python")) is not None:
        os.environ.setdefault("PYSPARK_PYTHON", python)
    if options.is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    session = None
    try:
        try:
            with _interrupted_later(), _said_to(stream), _home(options, scratch):
                settings = _settings(options, scratch, given_options(options))
                for key, value in settings.items():
                    builder = builder.config(key, value)
                if options.brief and options.is_local and not under_submit():
                    # Spark's Python starts while its SQL does: either takes a second.
                    context = SparkContext.getOrCreate(SparkConf().setAll([*settings.items(), *named]))
                    beside(context.parallelize([0], 1).map(_as_it_is).collect)
                session = builder.getOrCreate()
        except Exception as error:  # whatever Spark raises, it has not started
            raise StartError(_why_no_start(options)) from error
        yield session
    finally:
        if session is not None:
            _stop(session, options)


def beside(work: Callable[[], _T]) -> Future[_T]:
    """Do something on a thread that whoever ends does not wait for."""
    future = Future[_T]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is for who asks
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _as_it_is(value: int) -> int:
    return value


def _stop(session: "SparkSession", options: SparkOptions) -> None:
    # The Java process may be gone, or the master.
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        java = None if options.is_connect else session.sparkContext._jsc  # noqa: SLF001 - see below
        if java is None:
            session.stop()
            return
        # Java stops at once. What else there is to stop is a thread that looks only once a second whether it is to end.
        java.stop()
        beside(session.stop)


def _why_no_start(options: SparkOptions) -> str:
    """Find in Spark's own log why it did not start this time."""
    said = ""
    if options.log is not None:
        with suppress(OSError):
            said = options.log.read_text(encoding="utf-8", errors="replace").rpartition(_BEGUN)[2]
    for pattern, meaning in _NO_START:
        if found := re.search(pattern, said):
            return meaning.format(*found.groups(), memory=options.driver_memory, master=options.master or LOCAL)
    where = f"; see {options.log}" if options.log is not None else ""
    return f"Spark did not start{where}"


_NO_START: Final = (
    (
        r"(?:Invalid (?:maximum|initial) heap size|Too small maximum heap|NumberFormatException.*memory)[^\n]*",
        "--driver-memory {memory}: not a size that Java takes; as 1g or 512m",
    ),
    (
        r"(?:heap size .* exceeds|Could not reserve enough space|Cannot allocate memory)",
        "--driver-memory {memory}: more than this machine has",
    ),
    (
        r"System memory \d+ must be at least (\d+)",
        "--driver-memory {memory}: too small; Spark wants 512m at least",
    ),
    (
        r"Could not parse Master URL: '?([^'\n]*)'?",
        "--master {master}: must be local[2], spark://HOST:PORT, yarn, k8s://… or sc://HOST",
    ),
    (r"(?:All masters are unresponsive|Failed to connect to)", "--master {master}: nobody answers there"),
)
"""What is found in Spark's log when it does not start, and what that means."""


def read_conf(given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read ``KEY=VALUE`` words.

    Raises:
        SettingsError: one is not that.
    """
    found = []
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key.startswith("spark."):
            raise SettingsError(
                f"--conf {word}: must be KEY=VALUE with one of Spark's keys, as spark.executor.memory=2g"
            )
        found.append((key, value))
    return tuple(found)
