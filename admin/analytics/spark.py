"""Spark for reports: the requirements, a quiet session, and its errors in one line.

Java's output goes to a file, and no temporary file stays behind. Under ``spark-submit`` and Spark Connect, the existing
session is used.
"""

import fcntl
import importlib.util
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Final

from admin.common.errors import OperatorError, SettingsError, StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Requirements.

INSTALL_SPARK: Final = (
    "pip install 'sluice-proxy[spark]', or in a source tree: pip install -c constraints.txt '.[spark]'"
)
INSTALL_JAVA: Final = "apt-get install openjdk-17-jre-headless"
INSTALL_CONNECT: Final = "pip install 'pyspark[connect]'"
OLDEST_JAVA: Final = 17
_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "jinja2")
_CONNECT_PACKAGES: Final = ("grpc", "grpc_status", "zstandard")


def check_requirements(environ: Mapping[str, str] = os.environ, *, java: bool = True) -> None:
    """Check the packages and Java, without starting Spark.

    Args:
        environ: the environment.
        java: Spark runs here, not behind Spark Connect.

    Raises:
        StartError: something is missing; says how to install it.
    """
    missing = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise StartError(f"this needs {' and '.join(missing)}; install with: {INSTALL_SPARK}")
    if not java and any(importlib.util.find_spec(package) is None for package in _CONNECT_PACKAGES):
        raise StartError(f"Spark Connect needs more than Spark; install with: {INSTALL_CONNECT}")
    with suppress(PackageNotFoundError):
        found = version("pyspark")
        if not (4, 3) <= tuple(map(int, re.findall(r"\d+", found)[:2])) < (5, 0):
            raise StartError(f"this needs pyspark 4.3 or a later 4, not {found}; install with: {INSTALL_SPARK}")
    if java and not under_submit(environ) and (why := _without_java(environ)):
        raise StartError(f"this needs Java {OLDEST_JAVA} or newer, {why}; install with: {INSTALL_JAVA}")


def under_submit(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether ``spark-submit`` started this process, with a Java process of its own."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _without_java(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    if java is None:
        return "and none is installed"
    java_named = f"{java} (JAVA_HOME)" if home else java
    try:
        answer = _version_of(java)
    except (OSError, subprocess.SubprocessError) as error:
        return f"and {java_named} cannot be run: {getattr(error, 'strerror', None) or 'no answer'}"
    # "17.0.15", "21", "1.8.0_392", "25-ea"
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', answer)
    if found is None:
        return f"and {java_named} does not tell its version"
    return f"and {java_named} is Java {found[1]}" if int(found[1]) < OLDEST_JAVA else ""


@cache
def _version_of(java: str) -> str:
    answer = subprocess.run(  # noqa: S603 - the program that Spark will run, without a shell
        [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    return answer.stderr + answer.stdout


# Errors. A Spark error is pages of Java: those that an operator can act on are recognised by their words.

_PLACE: Final = r"[^\n]*?((?:\b\w+:/?)?/[^\s'\"`,()]+)"
_DENIED: Final = r"(?:AccessControlException|AccessDeniedException|Permission denied)"
_MISSING: Final = r"(?:PATH_NOT_FOUND\]? ?|FileNotFoundException: (?:File )?|does not exist: )"
_MEANINGS: Final = (
    (
        r"java\.lang\.OutOfMemoryError|GC overhead limit|Java heap space|SparkOutOfMemoryError",
        "Spark ran out of memory: give it more with --driver-memory, as 2g, or a shorter time with --since",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        (
            "no space left on the device of --out or of the temporary directory (TMPDIR chooses another);"
            " earlier results are intact"
        ),
    ),
    (_MISSING + r"[^\n]*?(\b(?!file:)\w+://[^\s'\"`,]+)", "{}: not found; check the address"),
    (_MISSING + r"[^\n]*?((?:file:)?/[^\s'\"`,]+)", "{}: vanished while it was read; run it again"),
    (_DENIED + _PLACE, "{}: permission denied; choose another place or run it as another user"),
    (_DENIED, "permission denied; choose another --out or run it as another user"),
    (r"Mkdirs failed to create (?:file:)?(/\S+)", "{}: cannot be made; choose another --out"),
    (
        r"(?:Class (\S+FileSystem) not found|No FileSystem for scheme \"?(\w+)\"?)",
        "no reader for {} here; let Spark fetch it: --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2",
    ),
    (
        r"(?:All masters are unresponsive|Failed to connect to master|Master removed our application)",
        "the Spark master does not answer or has no room for this; check --master",
    ),
    (r"Input/output error", "the disk cannot be read or written (input/output error)"),
    (
        r"(?:CANNOT_READ_FILE_FOOTER|is not a Parquet file)" + _PLACE,
        "{}: not a table of a report; choose another --out, or delete it",
    ),
)
"""Patterns of errors and their meanings; the first match counts."""
_LONGEST: Final = 300


@contextmanager
def in_words(log: Path | None) -> Iterator[None]:
    """Turn errors of Spark into one line; append the whole error to the log, if there is one.

    Raises:
        StartError: Spark failed, or a file cannot be read or written.
    """
    try:
        yield
    except (OperatorError, BrokenPipeError):
        raise
    except Exception as error:
        first = _first_of_spark(error)
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


def _first_of_spark(error: BaseException | None) -> BaseException | None:
    """Return the first error of Spark in a chain: once Java is gone, clean-up fails as well."""
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - an optional extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    found = None
    while error is not None:
        # Spark's Python side has translated this one.
        is_translated = isinstance(found, PySparkException) and isinstance(error, Py4JJavaError)
        if (isinstance(error, PySparkException | Py4JError) or _is_lost(error)) and not is_translated:
            found = error
        error = error.__cause__ or error.__context__
    return found


def _is_lost(error: BaseException) -> bool:
    """Tell whether the Java process is gone."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - as above

    return isinstance(error, Py4JNetworkError | ConnectionRefusedError | ConnectionResetError)


def meaning(error: BaseException, text: str = "") -> str:
    """Return one line for an error of Spark; ``text`` is the error with all its causes."""
    try:
        message: str | None = str(error)
    except OSError:  # Java writes the message.
        message = None
    for pattern, said in _MEANINGS:
        if found := re.search(pattern, f"{message}\n{text}"):
            places = (re.sub(r"^file:/+", "/", each.rstrip(".,;:'\"`")) for each in found.groups() if each)
            return said.format(*places)
    if message is None or _is_lost(error):
        return "Spark's Java process ended unexpectedly; it may have been killed for lack of memory (--driver-memory)"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = re.sub(r"^(?:\[[A-Z_.0-9]+\] )+", "", (causes or lines or [type(error).__name__])[0])
    return f"Spark failed: {first[:_LONGEST].rstrip('.')}"


# The session.

TINY_BYTES: Final = 10 * 1024 * 1024
"""Below this, planning and compiling take most of the time."""
SMALL_BYTES: Final = 100 * 1024 * 1024
"""Below this, Java's second compiler and adaptive plans cost more than they save."""
LOCAL: Final = "local[*]"
_JAVA: Final = (
    "-XX:ReservedCodeCacheSize=128m -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:-DontCompileHugeMethods"
)
"""Spark's own classes are not verified, which saves a tenth of the start."""
_SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1"
_LARGE_JAVA: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the defaults: a million records took 185 CPU seconds, and 215 with the defaults."""
_ALWAYS: Final = {
    # Otherwise each call is noted with its line of Python, which takes seconds.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Small listings need no job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
}
_SMALL: Final = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
_TINY: Final = {
    **_SMALL,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_SCRATCH: Final = "sluice-report-"
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
_NO_START: Final = (
    (
        r"(?:Invalid (?:maximum|initial) heap size|Too small maximum heap|NumberFormatException.*memory)",
        "--driver-memory {memory}: not a size that Java takes; as 1g or 512m",
    ),
    (
        r"(?:heap size .* exceeds|Could not reserve enough space|Cannot allocate memory)",
        "--driver-memory {memory}: more than this machine has",
    ),
    (r"System memory \d+ must be at least", "--driver-memory {memory}: too small; Spark needs at least 512m"),
    (r"Could not parse Master URL", "--master {master}: must be local[2], spark://HOST:PORT, yarn, k8s://… or sc://HOST"),
    (r"(?:All masters are unresponsive|Failed to connect to)", "--master {master}: no answer"),
)  # fmt: skip
"""Patterns in Spark's log after a failed start, and their meanings."""


@dataclass(frozen=True)
class SparkOptions:
    """How Spark is run.

    Attributes:
        master: ``local[2]``, ``spark://HOST:PORT``, ``k8s://…``, ``yarn``, ``sc://HOST:PORT`` (Spark Connect); empty is
            the master of ``spark-submit``, or else all of this machine.
        driver_memory: of the Java process here, as ``1g`` or ``512m``.
        conf: Spark's own options, which win.
        log: file for Spark's output; None discards it.
        log_bytes: size of the rejection log, unpacked.
    """

    master: str = ""
    driver_memory: str = "1g"
    conf: tuple[tuple[str, str], ...] = ()
    log: Path | None = None
    log_bytes: float = inf

    @property
    def is_local(self) -> bool:
        """Only this machine is used."""
        return self.master in {"", "local"} or self.master.startswith("local[")

    @property
    def is_connect(self) -> bool:
        """Spark Connect is used."""
        return self.master.startswith("sc://")


def read_conf(given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read options of Spark, ``KEY=VALUE``.

    Raises:
        SettingsError: one is malformed.
    """
    found = [word.partition("=") for word in given]
    for word, (key, equals, _) in zip(given, found, strict=True):
        if not equals or not key.startswith("spark."):
            raise SettingsError(f"--conf {word}: must be KEY=VALUE with a key of Spark, as spark.executor.memory=2g")
    return tuple((key, value) for key, _, value in found)


@contextmanager
def open_session(options: SparkOptions) -> Iterator["SparkSession"]:
    """Start Spark, and stop it with the block.

    Raises:
        StartError: it did not start; says why, and where its log is.
    """
    check_requirements(java=not options.is_connect)
    with _scratch() as scratch, _log_stream(options.log) as stream:
        session = None
        try:
            try:
                with _signals_deferred(), _output_to(stream), _home(options, scratch):
                    session = _start(options, scratch)
            except Exception as error:
                raise StartError(_why_no_start(options)) from error
            yield session
        finally:
            # The Java process or the master may be gone.
            with suppress(Exception), warnings.catch_warnings(action="ignore"):
                if session is not None:
                    session.stop()


def _start(options: SparkOptions, scratch: Path) -> "SparkSession":
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    # It writes whole query plans to the terminal.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    # Only spark-submit reads this option.
    if (python := dict(options.conf).get("spark.pyspark.python")) is not None:
        os.environ.setdefault("PYSPARK_PYTHON", python)
    if options.is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder
    if options.is_connect:
        builder = builder.remote(options.master)
    elif not under_submit():
        builder = builder.config(map={"spark.app.name": "sluice report", "spark.master": options.master or LOCAL})
    settings = _settings(options, scratch, _given(options))
    return builder.config(map=dict(settings)).getOrCreate()


def _given(options: SparkOptions) -> dict[str, str]:
    """Return the options that were given to Spark, by ``--conf`` or ``spark-submit``."""
    if not under_submit():
        return dict(options.conf)
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above

    conf = SparkConf().setAll(list(options.conf))
    if options.master:
        conf.setMaster(options.master)
    return dict(SparkContext.getOrCreate(conf).getConf().getAll())


def _settings(options: SparkOptions, scratch: Path, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return Spark's options: ours, unless others were given."""
    is_small = options.log_bytes < SMALL_BYTES
    settings: dict[str, str] = _ALWAYS | (_TINY if options.log_bytes < TINY_BYTES else _SMALL if is_small else {})
    starts_java = not under_submit() and not options.is_connect
    if starts_java:
        settings |= {
            "spark.driver.memory": options.driver_memory,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
    if starts_java and options.is_local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch),
        }
    settings |= given
    if starts_java:
        its = given.get("spark.driver.extraJavaOptions", "")
        java = f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile=file:{scratch / 'log4j2.properties'}"
        # Java takes one collector only. This one has a single thread: the others are busy.
        collector = "" if re.search(r"-XX:\+Use\w+GC", its) else "-XX:+UseSerialGC"
        compiler = _SMALL_JAVA if is_small else _LARGE_JAVA
        settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, (java, _JAVA, compiler, collector, its)))
    return settings


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a temporary directory, and remove those of killed processes."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{_SCRATCH}*"):
        with suppress(OSError), (old / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    try:
        directory = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    except OSError as error:
        why = error.strerror or error
        raise StartError(f"cannot make a temporary directory in {parent}: {why}; TMPDIR chooses another") from error
    try:
        with (directory / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _log_stream(log: Path | None) -> Iterator[IO[bytes]]:
    """Open the log of this run; that of the last one is replaced."""
    log = log or Path(os.devnull)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        stream = log.open("ab")
        if log.is_file():
            stream.truncate(0)
    except OSError as error:
        raise StartError(f"{log}: cannot be written: {error.strerror or error}; --out chooses another place") from error
    with stream:
        yield stream


@contextmanager
def _output_to(stream: IO[bytes]) -> Iterator[None]:
    """Redirect the output of child processes to a file."""
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
def _signals_deferred() -> Iterator[None]:
    """Defer the first SIGINT or SIGTERM: Java must have started before it can be stopped."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted and callable(handler := before[signal.Signals(number)]):
            handler(number, frame)
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
    """Link Spark without its machine learning, which takes a second to load, and its archive of uncompiled Python."""
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


def _why_no_start(options: SparkOptions) -> str:
    if options.log is None:
        return "Spark did not start"
    with suppress(OSError):
        text = options.log.read_text(encoding="utf-8", errors="replace")
        for pattern, said in _NO_START:
            if re.search(pattern, text):
                return said.format(memory=options.driver_memory, master=options.master or LOCAL)
    return f"Spark did not start; see {options.log}"
