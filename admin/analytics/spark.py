"""Spark, as reports use it: whether it can run here, a quiet session, and what its errors mean in a line.

A session begins with a Java process of its own, whose output goes to a file, and ends with it: nothing is left running
and nothing is left in the temporary directory. Where a session is there already (``spark-submit``), it is used.
"""

import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

from admin.analytics.requirements import check_requirements, under_submit
from admin.common.errors import OperatorError, SettingsError, StartError

if TYPE_CHECKING:
    from pyspark import SparkConf
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
    text = f"{error}\n{text}"
    for pattern, words in _MEANINGS:
        if found := re.search(pattern, text):
            return words.format(*(_place(group) for group in found.groups() if group))
    if _is_lost(error):
        return "Spark's Java process ended in the middle; it may have been killed for want of memory (--driver-memory)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A failed job begins with where it failed; the cause is what matters.
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = _INDEX.sub("", (causes or lines or [type(error).__name__])[0])
    return f"Spark failed: {first[:_LONGEST].rstrip('.')}"


LOCAL: Final = "local[*]"
"""All of this machine."""
BRIEF_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java's first compiler alone; the room for what it compiles would be 48 MB then, which the code that Spark makes of
queries fills within minutes, and Java compiles nothing more."""

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
_JAVA_END_S: Final = 20.0
"""How long a Java process may take to end."""


@dataclass(frozen=True)
class SparkOptions:
    """How Spark is run.

    Attributes:
        master: where: ``local[2]``, ``spark://HOST:PORT``, ``k8s://…``, ``yarn``; empty is what ``spark-submit`` was
            told, or else all of this machine.
        driver_memory: of the Java process here, as ``1g`` or ``512m``.
        conf: Spark's own options, which win.
        log: file for what Spark says; None lets it go.
        brief: there is little to do, for which Java need not compile its best.
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


@contextmanager
def open_session(options: SparkOptions) -> Iterator["SparkSession"]:
    """Start Spark, and end it and its Java process with the block.

    Args:
        options: how it is run.

    Raises:
        StartError: it did not start; a line says why and where its own words are.
    """
    check_requirements()
    if under_submit():
        with _submitted(options) as session:
            yield session
        return
    with _scratch() as scratch, _log_stream(options.log) as stream:
        conf = _conf(options, scratch)
        with _quiet(), _java(options, conf, stream), _session(options, conf) as session:
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


@contextmanager
def _submitted(options: SparkOptions) -> Iterator["SparkSession"]:
    """Use what ``spark-submit`` has prepared; its options win, and its Java process is its own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    builder = SparkSession.builder.appName("sluice report")
    if options.master:
        builder = builder.master(options.master)
    for key, value in (*_SESSION, *options.conf):
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


_SESSION: Final = (
    ("spark.sql.session.timeZone", "UTC"),
    ("spark.sql.sources.partitionOverwriteMode", "dynamic"),
    # Rows go into files of their type or day as they come, without being sorted first.
    ("spark.sql.maxConcurrentOutputFileWriters", "16"),
    # Java compiles no method that is longer, and interprets a whole stage of a query for each row; Spark then makes
    # several short ones of it.
    ("spark.sql.codegen.hugeMethodLimit", "8000"),
    # Otherwise each word of a query is noted with the line of Python that said it, which takes seconds.
    ("spark.python.sql.dataFrameDebugging.enabled", "false"),
)
"""What the results, and the time to plan them, depend on, wherever Spark runs."""


def _conf(options: SparkOptions, scratch: Path) -> "SparkConf":
    from pyspark import SparkConf  # noqa: PLC0415 - as above

    given = dict(options.conf)
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(options.master or LOCAL)
    conf.setAppName("sluice report")
    conf.set("spark.driver.memory", options.driver_memory)
    conf.set("spark.ui.enabled", "false")
    conf.set("spark.ui.showConsoleProgress", "false")
    for key, value in _SESSION:
        conf.set(key, value)
    if options.is_local:
        conf.set("spark.driver.host", _LOOPBACK)
        conf.set("spark.driver.bindAddress", _LOOPBACK)
        conf.set("spark.local.dir", str(scratch))
        # Shuffles of one process: what is small is joined or merged into few tasks by adaptive execution.
        conf.set("spark.sql.shuffle.partitions", str(max(4, 2 * (os.cpu_count() or 1))))
    java = f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile=file:{scratch / 'log4j2.properties'}"
    if options.brief:
        java += f" {BRIEF_JAVA}"
    for key, value in given.items():
        conf.set(key, value)
    conf.set("spark.driver.extraJavaOptions", f"{java} {given.get('spark.driver.extraJavaOptions', '')}".strip())
    return conf


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
def _java(options: SparkOptions, conf: "SparkConf", stream: IO[bytes]) -> Iterator[None]:
    """Run the Java process that Spark's Python side talks to."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - as above
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above

    # Only spark-submit reads this option.
    if (python := dict(options.conf).get("spark.pyspark.python")) is not None:
        os.environ.setdefault("PYSPARK_PYTHON", python)
    if options.is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    launch: Callable[..., Any] = launch_gateway
    gateway = None
    try:
        with _interrupted_later():
            try:
                gateway = launch(conf, {"stdout": stream, "stderr": stream})
            except PySparkRuntimeError as error:
                raise StartError(_why_no_start(options)) from error
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - as its constructor does
        yield
    finally:
        if gateway is not None:
            _end(gateway)


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


def _end(gateway: Any) -> None:
    """Let the Java process go, so that another can be started."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    process: subprocess.Popen[bytes] = gateway.proc
    with suppress(Exception):  # it may be gone already
        gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001 - there is no other way to have a second one
    SparkContext._jvm = None  # noqa: SLF001 - as above
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_JAVA_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _session(options: SparkOptions, conf: "SparkConf") -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    session = None
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        try:
            session = SparkSession.builder.config(conf=conf).getOrCreate()
            if threading.current_thread() is threading.main_thread():
                # Spark has put its own there.
                signal.signal(signal.SIGINT, on_interrupt)
        except Exception as error:  # whatever Spark raises, it has not started
            raise StartError(_why_no_start(options)) from error
        yield session
    finally:
        if session is not None:
            # The Java process may be gone, or the master.
            with suppress(Exception), warnings.catch_warnings(action="ignore"):
                session.stop()


def java_pid(session: "SparkSession") -> int:
    """Return the number of a session's Java process."""
    jvm: Any = session._jvm  # noqa: SLF001 - Java's own view of its process has no other way in
    return int(jvm.java.lang.ProcessHandle.current().pid())


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
    (r"Could not parse Master URL: '?([^'\n]*)'?", "--master {master}: not a master that Spark knows"),
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
