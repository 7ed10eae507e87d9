"""Starts Spark quietly, and shortens its errors to one line.

Java's output is written to a file. With ``spark-submit`` or Spark Connect, the existing session is used.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from admin.common.errors import OperatorError, StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OLDEST_JAVA: Final = 17
_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy", "jinja2")


def check_requirements(environ: Mapping[str, str] = os.environ, *, java: bool = True) -> None:
    """Raise StartError if a required package is missing or, with ``java``, if Java is missing or too old."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if "pyspark" not in missing and not (4, 3) <= tuple(map(int, version("pyspark").split(".")[:2])) < (5,):
        missing = [f"pyspark 4.3 or a later 4.x (found {version('pyspark')})", *missing]
    if missing:
        how = "`pip install 'sluice-proxy[spark]'` (in a source tree: `pip install '.[spark]'`)"
        raise StartError(f"`sluice report` requires {' and '.join(missing)}; run {how}")
    if java and not under_submit(environ) and (why := _without_java(environ)):
        how = f"`apt-get install openjdk-{OLDEST_JAVA}-jre-headless`"
        raise StartError(
            f"`sluice report` requires Java {OLDEST_JAVA} or newer, but {why}; install it, for example with {how}"
        )


def under_submit(environ: Mapping[str, str] = os.environ) -> bool:
    return "PYSPARK_GATEWAY_PORT" in environ


def _without_java(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    try:
        ran = subprocess.run(  # noqa: S603 - the program that Spark will run, without a shell
            [java, "-version"], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"{java} cannot be run: {error.strerror}"
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return f"{java} is Java {found[1]}" if found and int(found[1]) < OLDEST_JAVA else ""


_ADDRESS: Final = r"[^\n]*?((?:\b\w+:/?)?/[^\s'\"`,()]+)"
_MEANINGS: Final = {
    r"OutOfMemoryError|GC overhead limit|Java heap space":
        "Spark ran out of memory; give it more, e.g. --driver-memory 2g, or shorten the period with --since",
    r"Could not reserve enough space|Cannot allocate memory|[Hh]eap size|System memory \d+ must be at least":
        "--driver-memory is too low for Spark, or more than Java can allocate",
    r"No space left on device|Disk quota exceeded":
        "no space left in --out or in the temporary directory (set TMPDIR to use another)",
    rf"(?:PATH_NOT_FOUND|FileNotFoundException|does not exist:|No such file or directory:){_ADDRESS}":
        "{}: not found; check the address, and that all machines of the cluster can read it",
    rf"(?:AccessControlException|AccessDeniedException|Permission denied|Mkdirs failed to create){_ADDRESS}":
        "{}: permission denied; choose another path, or run the report as another user",
    r"(?:Class (\S+FileSystem) not found|No FileSystem for scheme \"?(\w+)\"?)":
        "Spark has no file system for {}; add one, e.g. --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2",
    r"Could not parse Master|Master must|All masters are unresponsive|Failed to connect to|removed our application":
        "--master is invalid or unreachable; use local[2], spark://HOST:PORT, yarn, k8s://… or sc://HOST",
    r"Py4JNetworkError|ConnectionRefusedError|ConnectionResetError|<exception str\(\) failed>":
        "Spark's Java process exited unexpectedly; if memory is short, change --driver-memory",
}  # fmt: skip
"""Explanations of Spark's errors. The first match is used."""


@contextmanager
def short_errors(log: Path) -> Iterator[None]:
    """Turn errors into one-line StartErrors. Spark's full error is appended to ``log``."""
    try:
        yield
    except (OperatorError, BrokenPipeError):
        raise
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        if not re.search(r"py4j|pyspark[/.]", text):
            if isinstance(error, OSError) and error.strerror:
                file = error.filename or "a file in --out"
                raise StartError(f"cannot read or write {file}: {error.strerror.lower()}") from error
            raise
        with suppress(OSError), log.open("a", encoding="utf-8") as stream:
            stream.write(text)
        raise StartError(f"{meaning(text)}; see {log}") from error


def meaning(text: str) -> str:
    for pattern, said in _MEANINGS.items():
        if found := re.search(pattern, text):
            places = (re.sub(r"^file:/+", "/", each.rstrip(".,;:'\"`")) for each in found.groups() if each)
            return said.format(*places)
    # Java writes ": java.X: Words", and PySpark writes "pyspark.errors.X: [CLASS] Words".
    patterns = (r"^: (.+)", r"^(?:Exception in .+ )?[\w.]+(?:Exception|Error): (?:\[\S*\] )*(.+)")
    found = next(filter(None, (re.search(pattern, text, re.MULTILINE) for pattern in patterns)), None)
    return f"Spark failed: {found[1][:300].rstrip('.')}" if found else "Spark failed"


TINY_BYTES: Final = 10 * 1024 * 1024  # below this, planning and compiling take the most time
SMALL_BYTES: Final = 100 * 1024 * 1024  # below this, Java's optimizing compiler costs more time than it saves
_JAVA: Final = (
    "-XX:ReservedCodeCacheSize=128m -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)  # Spark starts 10% faster if Java does not verify its classes
_LARGE_JAVA: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the defaults. This saves 30 of 215 CPU seconds for a million records."""
_ALWAYS: Final = {
    # Otherwise, each call records its line of Python, which takes seconds in total.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
    # Log files are small. By default, each task would read only 32 of them.
    "spark.sql.files.openCostInBytes": "65536",
}
# Otherwise, Spark generates methods that are too large for Java's optimizing compiler. This saves 28 of 161 CPU seconds
# for a million records.
_LARGE: Final = {"spark.sql.codegen.wholeStage": "false"}
_TINY: Final = {**_LARGE, "spark.sql.shuffle.partitions": "1", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
TASK_BYTES: Final = 32 * 1024 * 1024
_UNUSED: Final = re.compile(
    r"spark-(mllib|graphx|streaming|kubernetes|yarn|hive|connect|pipelines|repl)_|kubernetes-|volcano-|vertx-|derby"
    r"|hive-(?!storage-api)|datanucleus-|netty-tcnative-|breeze|spire|algebra|arpack|JTransforms|scala-compiler|jline"
)
"""Jars that local reports do not need. Java finds classes faster without them."""


@dataclass(frozen=True)
class SparkOptions:
    # local[2], spark://HOST:PORT, k8s://…, yarn, or sc://HOST:PORT. If empty, spark-submit's master or this machine.
    master: str = ""
    driver_memory: str = "1g"
    conf: tuple[tuple[str, str], ...] = ()
    log: Path | None = None
    log_bytes: float = inf

    @property
    def is_local(self) -> bool:
        return self.master in {"", "local"} or self.master.startswith("local[")

    @property
    def is_connect(self) -> bool:
        return self.master.startswith("sc://")


@contextmanager
def open_session(options: SparkOptions) -> Iterator["SparkSession"]:
    """Start Spark, and stop it when the block ends. Raises StartError."""
    log = options.log or Path(os.devnull)
    session = None
    with tempfile.TemporaryDirectory(prefix="sluice-report-", ignore_cleanup_errors=True) as scratch:
        try:
            with _signals_deferred():
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_bytes(b"")
                try:
                    session = _start(options, Path(scratch), log)
                except Exception as error:
                    why = meaning(f"{log.read_text(encoding='utf-8', errors='replace')}\n{error}")
                    raise StartError(f"Spark did not start: {why.removeprefix('Spark failed: ')}; see {log}") from error
            yield session
        finally:
            # The Java process or the master may be gone.
            with suppress(Exception), warnings.catch_warnings(action="ignore"):
                if session is not None:
                    session.stop()


def _start(options: SparkOptions, scratch: Path, log: Path) -> "SparkSession":
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an optional extra
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    # This logger prints query plans on the terminal.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    # Only spark-submit reads this option.
    if (python := dict(options.conf).get("spark.pyspark.python")) is not None:
        os.environ.setdefault("PYSPARK_PYTHON", python)
    settings = _settings(options, scratch, _given(options))
    if options.is_connect:
        return SparkSession.builder.remote(options.master).config(map={**settings}).getOrCreate()
    if under_submit():
        return SparkSession.builder.config(map={**settings}).getOrCreate()
    if is_linked := options.is_local and "SPARK_HOME" not in os.environ:
        _link_spark(scratch)
        os.environ["SPARK_HOME"] = str(scratch)
    if options.is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setAll(list(settings.items()))
    with log.open("ab") as output:
        gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    if is_linked:
        del os.environ["SPARK_HOME"]
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def _given(options: SparkOptions) -> dict[str, str]:
    if not under_submit():
        return dict(options.conf)
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above

    conf = SparkConf().setAll(list(options.conf))
    if options.master:
        conf.setMaster(options.master)
    return dict(SparkContext.getOrCreate(conf).getConf().getAll())


def _settings(options: SparkOptions, scratch: Path, given: dict[str, str]) -> dict[str, str]:
    is_small = options.log_bytes < SMALL_BYTES
    settings = dict(_ALWAYS)
    if options.log_bytes < inf:
        # With a fixed number of tasks, Spark does not have to determine it at run time.
        tasks = max(4, int(options.log_bytes) // TASK_BYTES)
        settings |= {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": str(tasks)}
    if options.log_bytes < TINY_BYTES:
        settings |= _TINY
    elif not is_small:
        settings |= _LARGE
    if under_submit() or options.is_connect:
        return settings | given
    its = given.get("spark.driver.extraJavaOptions", "")
    # Java accepts only one collector option. The default here is single-threaded, because the other cores are busy.
    collector = "" if re.search(r"-XX:\+Use\w+GC", its) else "-XX:+UseSerialGC"
    java = (
        f"-Djava.io.tmpdir={scratch}",
        _JAVA,
        "-XX:TieredStopAtLevel=1" if is_small else _LARGE_JAVA,
        collector,
        its,
    )
    settings |= {
        "spark.app.name": "sluice report",
        "spark.master": options.master or "local[*]",
        "spark.driver.memory": options.driver_memory,
        "spark.log.level": "WARN",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if options.is_local:
        here = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        settings |= here | {"spark.local.dir": str(scratch)}
    return settings | given | {"spark.driver.extraJavaOptions": " ".join(filter(None, java))}


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals until the block ends, because Java cannot be stopped while it is starting."""
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()
    for number in noted:
        signal.raise_signal(number)


def _link_spark(scratch: Path) -> None:
    import pyspark  # noqa: PLC0415 - as above

    installed = Path(pyspark.__file__).parent
    (scratch / "jars").mkdir()
    for path in (*installed.glob("bin"), *installed.glob("conf"), *installed.glob("jars/*.jar")):
        if not _UNUSED.match(path.name):
            (scratch / path.relative_to(installed)).symlink_to(path)
