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
    """Compile all programs of a directory and return the directory of the classes."""
    classes = Path(tempfile.mkdtemp(prefix="sluice-tests-java-"))
    atexit.register(shutil.rmtree, classes, ignore_errors=True)
    files = [str(file) for file in sorted(sources.glob("*.java"))]
    subprocess.run([program("javac"), "-cp", classpath or rocketmq_classpath(), "-d", str(classes), *files], check=True)
    return classes
