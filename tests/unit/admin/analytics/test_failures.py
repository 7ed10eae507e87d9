import errno
import os
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from admin.analytics.spark import in_words, meaning
from admin.common.errors import SettingsError, StartError


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", "out of memory: give it more with --driver-memory"),
        ("Caused by: java.io.IOException: No space left on device", "no space left on the device"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/logs/a.jsonl. SQLSTATE",
            "/logs/a.jsonl: vanished while it was read",
        ),
        ("java.io.FileNotFoundException: File file:/logs/b.jsonl does not exist", "/logs/b.jsonl: vanished"),
        (
            "[PATH_NOT_FOUND] Path does not exist: s3a://bucket/logs. Verify the spelling",
            "s3a://bucket/logs: nothing is there",
        ),
        (
            "java.io.FileNotFoundException: No such file or directory: s3a://bucket/logs/a.jsonl",
            "s3a://bucket/logs/a.jsonl: nothing is there",
        ),
        ("java.nio.file.AccessDeniedException: /out/minutes", "/out/minutes: permission denied"),
        ("java.nio.file.AccessDeniedException: s3a://bucket/out: getFileStatus", "s3a://bucket/out: permission denied"),
        ("Mkdirs failed to create file:/out/x (exists=false)", "/out/x: cannot be made"),
        (
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "--conf spark.jars",
        ),
        ('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"', "no reader for gs here"),
        ("All masters are unresponsive! Giving up.", "the Spark master does not answer"),
        ("[SOME_ERROR] [OTHER] Something new.\n\tat java.lang", "Spark failed: Something new"),
    ],
)
def test_what_an_operator_can_change_is_said_in_their_words(said: str, words: str) -> None:
    found = meaning(Py4JError(said))
    assert words in found
    assert "\n" not in found


def test_a_java_process_that_is_gone_is_said() -> None:
    assert "Java process ended in the middle" in meaning(Py4JNetworkError("Answer from Java side is empty"))


def test_a_java_that_is_gone_cannot_say_why() -> None:
    class UnspokenError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert "Java process ended in the middle" in meaning(UnspokenError())


def test_the_whole_error_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    with pytest.raises(StartError, match=rf"Spark failed: .*; see {log}$"), in_words(log):
        raise PySparkRuntimeError("it broke", {}, {})
    assert "Traceback" in log.read_text()


def test_the_first_error_counts_and_not_those_of_letting_go(tmp_path: Path) -> None:
    def fail() -> None:
        try:
            raise Py4JError("Java heap space")
        finally:
            raise KeyError("p")

    with pytest.raises(StartError, match="out of memory"), in_words(None):
        fail()


@pytest.mark.parametrize("file", [None, "/out/_files.json"])
def test_a_file_that_cannot_be_written_is_named_if_python_knows_it(file: str | None) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    said = f"^{file or 'a file in --out'}: cannot be read or written: no space left"
    with pytest.raises(StartError, match=said), in_words(None):
        raise error


def test_who_has_read_enough_is_no_error_of_ours() -> None:
    with pytest.raises(BrokenPipeError), in_words(None):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def test_errors_that_are_not_sparks_stay_as_they_are() -> None:
    with pytest.raises(SettingsError), in_words(None):
        raise SettingsError("ours")
    with pytest.raises(ZeroDivisionError), in_words(None):
        _ = 1 / 0
