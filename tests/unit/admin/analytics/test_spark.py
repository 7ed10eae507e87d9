"""Spark's requirements, settings and errors. ``tests/spark`` starts it."""

import errno
import os
from math import inf
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkRuntimeError

from admin.analytics import spark
from admin.analytics.spark import SMALL_BYTES, TINY_BYTES, SparkOptions, check_requirements, meaning, short_errors
from admin.common.errors import SettingsError, StartError

_JAVA = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ""), ('openjdk version "25-ea"', ""), ('java version "21" LTS', ""),
        ('version "1.8.0_392"', "is Java 8"), ('openjdk version "11.0.2"', "is Java 11"),
    ],
)  # fmt: skip
def test_java_must_be_new_enough(tmp_path: Path, says: str, why: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    if not why:
        check_requirements({"JAVA_HOME": str(tmp_path)})
        return
    with pytest.raises(
        StartError, match=rf"17 or newer, but {java} {why}; install it, for example with `apt-get install"
    ):
        check_requirements({"JAVA_HOME": str(tmp_path)})


def test_missing_java(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"but java cannot be run: No such file .*; install it, for example with `apt-get"
    ):
        check_requirements({"PATH": str(tmp_path)})
    check_requirements({"PATH": str(tmp_path)}, java=False)
    check_requirements({"PATH": str(tmp_path), "PYSPARK_GATEWAY_PORT": "4711"})


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "find_spec", lambda name: None if name in {"pandas", "jinja2"} else name)
    with pytest.raises(StartError, match=r"requires pandas and jinja2; run `pip install 'sluice-proxy\[spark\]'`"):
        check_requirements(java=False)


@pytest.mark.parametrize("found", ["3.5.1", "4.0.1", "5.0.0.dev1"])
def test_other_versions_of_spark_are_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(spark, "version", lambda _: found)
    with pytest.raises(StartError, match=rf"requires pyspark 4.3 or a later 4.x \(found {found}\); run"):
        check_requirements(java=False)


@pytest.mark.parametrize(
    ("master", "is_local"),
    [("", True), ("local", True), ("local[2]", True), ("spark://a:1", False), ("yarn", False), ("sc://a:1", False)],
)
def test_given_options_win_and_only_a_local_spark_stays_on_this_machine(
    tmp_path: Path,
    master: str,
    *,
    is_local: bool,
) -> None:
    options = SparkOptions(master=master, log_bytes=0)
    assert (options.is_local, options.is_connect) == (is_local, master.startswith("sc:"))
    settings = spark._settings(options, tmp_path, {})
    here = {"spark.local.dir", "spark.driver.host", "spark.driver.bindAddress"} & set(settings)
    assert len(here) == 3 * is_local
    # A session of Spark Connect takes no settings of the driver.
    drivers = [name for name in settings if name.startswith(("spark.driver.", "spark.ui."))]
    assert bool(drivers) is not options.is_connect
    given = {name: f"mine-{at}" for at, name in enumerate(settings)} | {"spark.mine": "7"}
    found = spark._settings(options, tmp_path, given)
    # Java takes the last value of an option.
    assert found.pop(_JAVA, "").endswith(given.pop(_JAVA, ""))
    assert found == given


@pytest.mark.parametrize(
    ("log_bytes", "stages", "partitions", "is_one_compiler"),
    [(0, "false", "1", True), (TINY_BYTES, None, "4", True), (SMALL_BYTES, "false", "4", False),
        (2**30, "false", "32", False), (inf, "false", None, False)],
    ids=["tiny", "small", "large", "larger", "unknown"],
)  # fmt: skip
def test_small_logs_are_planned_and_compiled_less(
    tmp_path: Path, log_bytes: float, stages: str | None, partitions: str | None, *, is_one_compiler: bool
) -> None:
    found = spark._settings(SparkOptions(log_bytes=log_bytes), tmp_path, {})
    assert found.get("spark.sql.codegen.wholeStage") == stages
    assert found.get("spark.sql.shuffle.partitions") == partitions
    assert found.get("spark.sql.adaptive.enabled") == (None if partitions is None else "false")
    assert ("-XX:TieredStopAtLevel=1" in found[_JAVA]) is is_one_compiler


def test_a_local_java_is_given_only_jars_that_it_needs(tmp_path: Path) -> None:
    spark._link_spark(tmp_path)
    installed = Path(pyspark.__file__).parent
    assert (tmp_path / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
    missing = {each.name for each in installed.glob("jars/*.jar")} - {each.name for each in tmp_path.glob("jars/*")}
    assert {name.partition("_")[0] for name in missing} >= {"spark-mllib", "spark-kubernetes"}
    assert {"spark-sql", "spark-core"}.isdisjoint(name.partition("_")[0] for name in missing)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", "out of memory; give it more, e.g. --driver-memory"),
        ("error occurred: Could not reserve enough space for object heap", "--driver-memory is too low"),
        ("Caused by: java.io.IOException: No space left on device", "no space left in --out"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/logs/a.jsonl. SQLSTATE", "/logs/a.jsonl: not found"),
        ("java.io.FileNotFoundException: File file:/logs/b.jsonl does not exist", "/logs/b.jsonl: not found"),
        ("[PATH_NOT_FOUND] Path does not exist: s3a://bucket/logs. Verify", "s3a://bucket/logs: not found"),
        ("java.nio.file.AccessDeniedException: s3a://bucket/out: getFileStatus", "s3a://bucket/out: permission denied"),
        ("Mkdirs failed to create file:/out/x (exists=false)", "/out/x: permission denied"),
        ("ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "--conf spark.jars"),
        ('UnsupportedFileSystemException: No FileSystem for scheme "gs"', "Spark has no file system for gs"),
        ("All masters are unresponsive! Giving up.", "--master is invalid or unreachable"),
        ("py4j.protocol.Py4JNetworkError: Answer from Java side is empty", "Java process exited unexpectedly"),
        ("Traceback\npyspark.errors.AnalysisException: [SOME] A new one.\n\tat java", "Spark failed: A new one"),
        ("Py4JJavaError: calling o48.\n: java.lang.X: Old\nCaused by: java.lang.Y: New", "Spark failed: java.lang.X"),
    ],
)  # fmt: skip
def test_errors_that_an_operator_can_act_on(said: str, words: str) -> None:
    found = meaning(said)
    assert words in found
    assert "\n" not in found


def test_an_error_of_spark_is_one_line_also_behind_another_and_the_log_has_it_whole(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    error = KeyError("p")
    error.__context__ = PySparkRuntimeError("it broke", {}, {})
    with pytest.raises(StartError, match=rf"Spark failed: it broke; see {log}$"), short_errors(log):
        raise error
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize("file", [None, "/out/_files.json"])
def test_a_file_that_cannot_be_written_is_named(file: str | None) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    said = f"^cannot read or write {file or 'a file in --out'}: no space left"
    with pytest.raises(StartError, match=said), short_errors(Path()):
        raise error


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "pipe"), SettingsError("ours"), ZeroDivisionError()])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, short_errors(Path()):
        raise error
    assert caught.value is error
