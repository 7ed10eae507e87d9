"""Compiles the Java programs of the tests, each directory of them once in a run of the tests."""

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from harness.paths import program, rocketmq_classpath


@functools.cache
def compiled_java(sources: Path, classpath: str = "") -> Path:
    """Compile all programs of a directory and return the directory of the classes.

    Args:
        sources: the directory.
        classpath: what they are compiled against; RocketMQ's jars if not given.

    Raises:
        MissingPartError: the compiler or the jars are not here.
        subprocess.CalledProcessError: one of them does not compile; what the compiler says is on standard error.
    """
    classes = Path(tempfile.mkdtemp(prefix="sluice-tests-java-"))
    atexit.register(shutil.rmtree, classes, ignore_errors=True)
    files = [str(file) for file in sorted(sources.glob("*.java"))]
    subprocess.run([program("javac"), "-cp", classpath or rocketmq_classpath(), "-d", str(classes), *files], check=True)
    return classes
