"""Compiles the tests' Java programs, once per version of a directory."""

import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from harness.paths import PARTS, program, rocketmq_classpath


@functools.cache
def compiled_java(sources: Path, classpath: str = "") -> Path:
    files = sorted(sources.glob("*.java"))
    classpath = classpath or rocketmq_classpath()
    digest = hashlib.sha256(b"\0".join([classpath.encode(), *(file.read_bytes() for file in files)])).hexdigest()
    classes = PARTS / "classes" / digest[:16]
    if not classes.is_dir():
        classes.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=classes.parent))
        subprocess.run([program("javac"), "-cp", classpath, "-d", str(made), *map(str, files)], check=True)
        try:
            made.rename(classes)
        except OSError:
            # Another process was faster.
            shutil.rmtree(made)
    return classes
