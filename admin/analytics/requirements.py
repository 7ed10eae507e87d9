"""What a report needs of a machine besides Sluice, looked at before any of it is started."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from admin.common.errors import StartError

INSTALL_SPARK: Final = (
    "pip install 'sluice-proxy[spark]', or where Sluice's source is: pip install -c constraints.txt '.[spark]'"
)
INSTALL_JAVA: Final = "apt-get install openjdk-17-jre-headless"
INSTALL_CONNECT: Final = "pip install 'pyspark[connect]'"
OLDEST_JAVA: Final = 17


def check_requirements(environ: Mapping[str, str] = os.environ, *, java: bool = True) -> None:
    """Look whether Spark can be run here, without running it.

    Args:
        environ: the environment.
        java: it runs here, and is not spoken to by Spark Connect.

    Raises:
        StartError: what is missing, and how to install it.
    """
    missing = [package for package in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(package) is None]
    if missing:
        raise StartError(f"this needs {' and '.join(missing)}; install with: {INSTALL_SPARK}")
    if not java and any(importlib.util.find_spec(package) is None for package in ("grpc", "grpc_status", "zstandard")):
        raise StartError(f"Spark Connect needs more than Spark; install with: {INSTALL_CONNECT}")
    with suppress(PackageNotFoundError):
        found = version("pyspark")
        if not (4, 3) <= tuple(map(int, re.findall(r"\d+", found)[:2])) < (5, 0):
            raise StartError(f"this needs pyspark 4.3 or a later 4, and here is {found}; install with: {INSTALL_SPARK}")
    if java and not under_submit(environ):
        _check_java(environ)


def under_submit(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether ``spark-submit`` started this process, so that its Java process is there already."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _check_java(environ: Mapping[str, str]) -> None:
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    install = f"install with: {INSTALL_JAVA}"
    if java is None:
        raise StartError(f"this needs Java {OLDEST_JAVA} or newer, and here is none; {install}")
    where = " (JAVA_HOME)" if home else ""
    try:
        said = _said_by(java)
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or "no answer"
        raise StartError(
            f"this needs Java {OLDEST_JAVA} or newer, and {java}{where} cannot be run: {why}; {install}"
        ) from error
    # "17.0.15", "21", "1.8.0_392", "25-ea"
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said)
    if found is None:
        raise StartError(
            f"this needs Java {OLDEST_JAVA} or newer, and {java}{where} does not say what it is; {install}"
        )
    if int(found[1]) < OLDEST_JAVA:
        raise StartError(f"this needs Java {OLDEST_JAVA} or newer, and {java}{where} is Java {found[1]}; {install}")


@cache
def _said_by(java: str) -> str:
    answer = subprocess.run(  # noqa: S603 - the program that Spark will run, without a shell
        [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    return answer.stderr + answer.stdout
