"""Guava's RateLimiter in a Java process: fetched and compiled, started, warmed up, called, ended."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from peers import BENCH, BenchError

SOURCE = BENCH / "guava" / "Decisions.java"
POM = BENCH / "guava" / "pom.xml"
BUILT = BENCH.parents[1] / ".parts" / "guava"

FETCH_DEADLINE_S = 300.0
WARMUP_S = 2.0


def build() -> None:
    """Fetch Guava from Maven Central and compile the program, unless both are up to date."""
    stamp = BUILT / ".stamp"
    if stamp.exists() and stamp.stat().st_mtime >= max(each.stat().st_mtime for each in (SOURCE, POM)):
        return
    for tool, package in (("mvn", "maven"), ("javac", "default-jdk-headless")):
        if shutil.which(tool) is None:
            raise BenchError(
                f"the comparison with Guava needs {tool}: install it with `apt-get install {package}`, "
                "or leave the row decisions out"
            )
    shutil.rmtree(BUILT, ignore_errors=True)
    jars = BUILT / "lib"
    for command in (
        ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"],
        ["javac", "-Xlint:all", "-Xlint:-classfile", "-cp", f"{jars}/*", "-d", str(BUILT / "classes"), str(SOURCE)],
    ):
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_DEADLINE_S)
        if made.returncode:
            raise BenchError(f"{command[0]} failed: {(made.stdout + made.stderr).strip()[-2000:]}")
    stamp.touch()


@contextlib.contextmanager
def started() -> Iterator[Callable[[float], float]]:
    """Run the warm program. Yields a function that decides for some seconds and returns the nanoseconds of one
    decision.
    """
    classes = f"{BUILT / 'classes'}:{_jars(BUILT / 'lib')}"
    # One core without a concurrent collector, as it hardly allocates.
    command = ["java", "-XX:+UseSerialGC", "-Xms64m", "-Xmx64m", "-cp", classes, "Decisions"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ns_per_decision(seconds: float) -> float:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            child.stdin.write(f"{seconds}\n")
            child.stdin.flush()
            said = child.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            raise BenchError(f"Guava's program ended: {child.stderr.read().strip()[-2000:]}")
        return float(said)

    with child:
        try:
            ns_per_decision(WARMUP_S)
            yield ns_per_decision
        finally:
            child.kill()


def _jars(folder: Path) -> str:
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))
