"""PerfTest, RabbitMQ's own load generator: one run of it, and what it printed."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness.paths import program, rabbitmq_classpath
from harness.process import ManagedProcess

WARMUP_S = 2
"""Seconds of each run that do not count: Java compiles."""
#: Beyond what it was told to run: Java's start, and its threads' end.
END_DEADLINE_S = 45.0
_SECOND = re.compile(r"time:? [\d.]+ ?s, .*")
# It is warm at once, and keeps its threads to itself.
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def ran(address: str, *arguments: str, seconds: int, scratch: Path) -> list[str]:
    """Run PerfTest against ``host:port`` for so many seconds, and return the lines it printed."""
    command = [
        *(program("java"), *_JAVA, "-cp", rabbitmq_classpath(), "com.rabbitmq.perf.PerfTest"),
        *("--uri", f"amqp://{address}", "--time", str(seconds), "--predeclared", "--exchange", ""),
        *arguments,
    ]
    with ManagedProcess("PerfTest", command, log=scratch / "perf-test.log", cwd=scratch) as process:
        process.wait(timeout_s=seconds + END_DEADLINE_S)
        return process.lines


def warm(lines: Sequence[str]) -> list[str]:
    """Return what it printed of each second once it is warm."""
    return [line for line in lines if _SECOND.search(line)][WARMUP_S:]
