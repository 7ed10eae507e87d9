"""The machine of the figures: its suitability, its description, and its other work."""

import argparse
import os
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers import LOAD_CORE, PROXY_CORE, BenchError

Work = tuple[Callable[[], object], int]
"""The measured code, and the number of pieces per call."""

# Above this share of other work the figures come with a warning.
QUIET = 0.05


def check() -> None:
    """Raise BenchError if the figures would mean nothing."""
    if platform.system() != "Linux":
        raise BenchError("the bench runs on Linux only: it pins processes and reads /proc")
    cores = os.sched_getaffinity(0)
    if not {PROXY_CORE, LOAD_CORE} <= cores:
        raise BenchError(f"the bench needs cores 0 and 1, one for the proxy and one for the load; it may use {cores}")
    for tool in ("taskset", "setpriv"):
        if shutil.which(tool) is None:
            raise BenchError(f"the bench needs {tool}: install it with `apt-get install util-linux`")


def described() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name"))
    return {
        "cpu": next(models, platform.machine()),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_share() -> float:
    """Measure for a second how busy all cores are. Before and after the run that is other work."""

    def times() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    total, idle = times()
    time.sleep(1)
    total_later, idle_later = times()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def one_thread(prog: str, doc: str | None, *, is_compiled: bool) -> argparse.Namespace:
    """Read the options of a bench of the compiled extension, ``rounds``, ``seconds`` and ``json``. Stay on one core."""
    parser = argparse.ArgumentParser(prog=prog, description=doc)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    if not is_compiled:
        parser.error("the compiled extension is not installed: make native")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return given


def ns_per_piece(work: Work, seconds: float) -> float:
    """Work for ``seconds``. Return the nanoseconds of processor time per piece."""
    call, pieces = work
    looks = max(1, 1000 // pieces)
    calls = 0
    start_ns = now_ns = time.thread_time_ns()
    until_ns = start_ns + round(seconds * 1e9)
    while now_ns < until_ns:
        for _ in range(looks):
            call()
        calls += looks
        now_ns = time.thread_time_ns()
    return (now_ns - start_ns) / calls / pieces
