"""Spark's requirements, settings and errors. ``tests/spark`` starts it."""

import errno
import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError

from admin.analytics import spark
from admin.analytics.spark import SparkOptions, check_requirements, in_words, meaning
from admin.common.errors import SettingsError, StartError

_JAVA = "spark.driver.extraJavaOptions"
_MIB = 1024 * 1024


def _java(folder: Path, says: str) -> dict[str, str]:
    """Return an environment whose Java says this."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    java.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize(
    "says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25-ea"', 'java version "21" LTS']
)
def test_java_that_is_new_enough(tmp_path: Path, says: str) -> None:
    check_requirements(_java(tmp_path, says))


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ('version "1.8.0_392"', "is Java 8"),
        ('openjdk version "11.0.2"', "is Java 11"),
        ("island", "does not tell its version"),
    ],
)
def test_java_that_is_too_old(tmp_path: Path, says: str, why: str) -> None:
    with pytest.raises(
        StartError, match=rf"17 or newer, .*\(JAVA_HOME\) {why}; install with: apt-get install openjdk-17"
    ):
        check_requirements(_java(tmp_path, says))


def test_missing_java(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="none is installed; install with: apt-get install openjdk-17-jre-headless"):
        check_requirements({"PATH": str(tmp_path)})
    with pytest.raises(StartError, match=rf"{tmp_path}.*\(JAVA_HOME\) cannot be run: No such file"):
        check_requirements({"JAVA_HOME": str(tmp_path)})
    check_requirements({"PATH": str(tmp_path)}, java=False)
    check_requirements({"PATH": str(tmp_path), "PYSPARK_GATEWAY_PORT": "4711"})


def _without(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Replace what is installed: all requirements of extras, of these versions."""
    needs = {
        "sluice-proxy": ["trio>=0.35", "pyspark<5,>=4.3; extra == 'spark'", "pandas<3,>=2.2; extra == 'spark'"],
        "pyspark": ['grpcio>=1.76.0; extra == "connect"'],
    }

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(spark, "requires", needs.get)
    monkeypatch.setattr(spark, "version", version)


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch)
    with pytest.raises(
        StartError, match=r"needs pyspark and pandas; install with: pip install 'sluice-proxy\[spark\]'"
    ):
        check_requirements({})
    _without(monkeypatch, pyspark="4.3.0", pandas="2.2.3")
    with pytest.raises(StartError, match=r"Spark Connect needs grpcio; install with: pip install 'pyspark\[connect\]'"):
        check_requirements(java=False)
    _without(monkeypatch, pyspark="4.10.1", pandas="2.2", grpcio="1.76.0")
    check_requirements(java=False)


@pytest.mark.parametrize("found", ["3.5.1", "4.0.1", "5.0.0"])
def test_other_versions_of_spark_are_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    _without(monkeypatch, pyspark=found, pandas="2.2.3")
    with pytest.raises(StartError, match=rf"needs pyspark<5,>=4.3 \(not {found}\); install"):
        check_requirements({})


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        ("", True),
        ("local", True),
        ("local[2]", True),
        ("spark://a:7077", False),
        ("yarn", False),
        ("sc://a:15002", False),
    ],
)
def test_master(tmp_path: Path, master: str, is_local: bool) -> None:  # noqa: FBT001 - expected
    options = SparkOptions(master=master, log_bytes=0)
    assert (options.is_local, options.is_connect) == (is_local, master.startswith("sc:"))
    found = spark._settings(options, tmp_path, {})
    here = {"spark.local.dir", "spark.driver.host", "spark.driver.bindAddress"} & set(found)
    assert len(here) == 3 * is_local
    # A session of Spark Connect takes no settings of the driver.
    drivers = [name for name in found if name.startswith(("spark.driver.", "spark.ui."))]
    assert bool(drivers) is not options.is_connect


@pytest.mark.parametrize(
    ("log_bytes", "compiles_sql", "is_adaptive", "first_compiler"),
    [(0, False, False, True), (10 * _MIB, True, False, True), (100 * _MIB, True, True, False)],
    ids=["tiny", "small", "large"],
)
def test_small_logs_are_planned_and_compiled_less(
    tmp_path: Path,
    log_bytes: int,
    *,
    compiles_sql: bool,
    is_adaptive: bool,
    first_compiler: bool,
) -> None:
    found = spark._settings(SparkOptions(log_bytes=log_bytes), tmp_path, {})
    assert ("spark.sql.codegen.wholeStage" not in found) is compiles_sql
    assert (found.get("spark.sql.adaptive.enabled", "true") == "true") is is_adaptive
    assert ("-XX:TieredStopAtLevel=1" in found[_JAVA]) is first_compiler


@pytest.mark.parametrize("master", ["", "spark://a:7077", "yarn", "sc://a:15002"])
def test_given_options_win(tmp_path: Path, master: str) -> None:
    names = spark._settings(SparkOptions(master=master, log_bytes=0), tmp_path, {})
    given = {name: f"mine-{at}" for at, name in enumerate(names)} | {"spark.mine": "7"}
    found = spark._settings(SparkOptions(master=master, log_bytes=0), tmp_path, given)
    # Java takes the last value of an option.
    assert found.pop(_JAVA, "").endswith(given.pop(_JAVA, ""))
    assert found == given


def test_local_java_has_all_of_spark_but_its_machine_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with spark._home(SparkOptions(master="local[2]"), tmp_path):
        assert os.environ["SPARK_HOME"] == str(tmp_path)
        installed = Path(pyspark.__file__).parent
        assert (tmp_path / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
        missing = {each.name for each in installed.glob("jars/*.jar")} - {each.name for each in tmp_path.glob("jars/*")}
        assert {name.partition("_")[0] for name in missing} == {"spark-mllib"}
    with spark._home(SparkOptions(master="spark://a:7077"), tmp_path):
        assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark._home(SparkOptions(), tmp_path):
        assert os.environ["SPARK_HOME"] == "/opt/spark"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", "out of memory: give it more with --driver-memory"),
        ("error occurred: Could not reserve enough space for object heap", "Java cannot get the memory"),
        ("Caused by: java.io.IOException: No space left on device", "no space left in --out"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/logs/a.jsonl. SQLSTATE", "/logs/a.jsonl: not found"),
        ("java.io.FileNotFoundException: File file:/logs/b.jsonl does not exist", "/logs/b.jsonl: not found"),
        ("[PATH_NOT_FOUND] Path does not exist: s3a://bucket/logs. Verify", "s3a://bucket/logs: not found"),
        ("FileNotFoundException: No such file or directory: s3a://b/a.jsonl", "s3a://b/a.jsonl: not found"),
        ("java.nio.file.AccessDeniedException: /out/minutes", "/out/minutes: permission denied"),
        ("java.nio.file.AccessDeniedException: s3a://bucket/out: getFileStatus", "s3a://bucket/out: permission denied"),
        ("Mkdirs failed to create file:/out/x (exists=false)", "/out/x: permission denied"),
        ("ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "--conf spark.jars"),
        ('UnsupportedFileSystemException: No FileSystem for scheme "gs"', "no reader for gs here"),
        ("All masters are unresponsive! Giving up.", "no such --master, or it does not answer"),
        ("py4j.protocol.Py4JNetworkError: Answer from Java side is empty", "Java process ended unexpectedly"),
        ("Traceback\npyspark.errors.AnalysisException: [SOME] A new one.\n\tat java", "Spark failed: A new one"),
        ("Py4JJavaError: calling o48.\n: java.lang.X: Old\nCaused by: java.lang.Y: New", "Spark failed: java.lang.X"),
    ],
)  # fmt: skip
def test_errors_that_an_operator_can_act_on(said: str, words: str) -> None:
    found = meaning(said)
    assert words in found
    assert "\n" not in found


def test_the_whole_error_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    with pytest.raises(StartError, match=rf"Spark failed: it broke; see {log}$"), in_words(log):
        raise PySparkRuntimeError("it broke", {}, {})
    assert "Traceback" in log.read_text()


def test_an_error_of_spark_behind_another_counts() -> None:
    error = KeyError("p")
    error.__context__ = Py4JError("Java heap space")
    with pytest.raises(StartError, match="out of memory"), in_words(None):
        raise error


def test_java_that_cannot_say_what_is_wrong() -> None:
    class UnspokenError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    error = UnspokenError()
    error.__context__ = ConnectionRefusedError()
    with pytest.raises(StartError, match="Java process ended unexpectedly"), in_words(None):
        raise error


@pytest.mark.parametrize("file", [None, "/out/_files.json"])
def test_a_file_that_cannot_be_written_is_named(file: str | None) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    said = f"^{file or 'a file in --out'}: cannot be read or written: no space left"
    with pytest.raises(StartError, match=said), in_words(None):
        raise error


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "pipe"), SettingsError("ours"), ZeroDivisionError()])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, in_words(None):
        raise error
    assert caught.value is error
