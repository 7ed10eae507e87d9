"""Processor time of `sluice report`, next to an empty Spark session and to DuckDB's tables of the same log."""

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_PATH: Final = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support")))
_ADOPT_ORPHANS: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
_START_S: Final = 1_792_713_600
_RESOURCES: Final = 1000
_FILE_LINES: Final = 200_000
_EMPTY: Final = """
import sys
from admin.analytics.spark import SparkOptions, open_session
with open_session(SparkOptions(master="local[2]", log_bytes=int(sys.argv[1]))) as session:
    assert session.range(1).count() == 1
"""
_DUCK: Final = """
import sys
from pathlib import Path
from duck_tables import DuckTables
print(DuckTables(Path(sys.argv[1]), Path(sys.argv[2])).records)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CPU seconds of a report, an empty Spark session and DuckDB's tables.")
    parser.add_argument("--records", default="300,100000", help="of each log, with commas; 1000000 are 0.5 GB")
    parser.add_argument("--rounds", type=int, default=3, help="of each; the median counts (3)")
    parser.add_argument("--dir", type=Path, help="for logs, which are kept there and used again")
    given = parser.parse_args(arguments)
    # Spark's Python workers may outlive their parent. Their time counts, too.
    ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    folder = given.dir or Path(tempfile.mkdtemp(prefix="report-cost-"))
    print(f"load average {os.getloadavg()[0]:.1f}; CPU seconds, and seconds by the clock in brackets\n")
    print("| records | MB | empty session | report | ratio | DuckDB's tables | ratio |\n|---|---|---|---|---|---|---|")
    try:
        for records in map(int, given.records.split(",")):
            print(_row(folder.absolute(), records, given.rounds), flush=True)
    finally:
        if given.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _row(folder: Path, records: int, rounds: int) -> str:
    logs = folder / f"log-{records}"
    if not logs.exists():
        made = folder / "half"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        _make(made, records)
        made.rename(logs)
    size = sum(file.stat().st_size for file in logs.iterdir())

    def report(scratch: Path) -> list[str]:
        return [str(Path(sys.executable).with_name("sluice")), "report", str(logs), "--out", str(scratch / "out"),
            "--master", "local[2]", "--json"]  # fmt: skip

    commands: tuple[Callable[[Path], list[str]], ...] = (
        lambda _: [sys.executable, "-c", _EMPTY, str(size)],
        report,
        lambda scratch: [sys.executable, "-c", _DUCK, str(logs), str(scratch)],
    )
    cells: list[list[tuple[float, float]]] = [[], [], []]
    for _ in range(rounds):
        for cell, command in zip(cells, commands, strict=True):
            cell.append(_cost(command))
    (empty, _), (its, _), (duck, _) = costs = [
        (median(cpu for cpu, _ in cell), median(wall for _, wall in cell)) for cell in cells
    ]
    first, second, third = (f"{cpu:.1f} ({wall:.1f})" for cpu, wall in costs)
    return f"| {records} | {size / 1e6:.1f} | {first} | {second} | {its / empty:.1f} | {third} | {its / duck:.1f} |"


def _cost(command: Callable[[Path], list[str]]) -> tuple[float, float]:
    """Run a command. Return its processor and wall-clock seconds, with those of all processes below it."""
    with tempfile.TemporaryDirectory(prefix="report-cost-") as scratch:
        before, began = _children_s(), time.monotonic()
        words = command(Path(scratch))
        done = subprocess.run(
            words, env=os.environ | {"PYTHONPATH": _PATH}, cwd=scratch, capture_output=True, text=True, check=False
        )
        wall = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"{words[:2]} failed: {done.stderr[-2000:]}")
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return _children_s() - before, wall


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _make(folder: Path, records: int) -> None:
    lines = _lines(records)
    for number in range(-(-records // _FILE_LINES)):
        with (folder / f"{number:04d}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(islice(lines, min(_FILE_LINES, records - number * _FILE_LINES)))


def _lines(records: int) -> Iterator[str]:
    """Yield records of one sidecar, minute by minute: three of five are refusals of a few resources in turn."""
    draw = Random(1)
    active = max(3, min(_RESOURCES, records // 600))
    minute_s, n = _START_S, 0

    def record(type_: str, at_s: int, **fields: object) -> str:
        nonlocal n
        n += 1
        head = {"type": type_, "v": 1, "instance": "broker:10911", "run": "r", "n": n, "at_s": at_s}
        return json.dumps(head | fields, separators=(",", ":")) + "\n"

    while True:
        stormy = draw.sample(range(active), max(1, active // 20))
        for second in range(60):
            for resource_ in stormy if second < 30 else ():
                messages = draw.randrange(1, 50)
                yield record(
                    "rejection", minute_s + second, kind="topic", name=f"orders-{resource_}", rule=f"r{resource_}",
                    client=f"10.0.0.{draw.randrange(40)}", producer_group="g", verdict="refuse", requests=messages,
                    messages=messages, bytes=300 * messages, wait_max_us=900,
                )  # fmt: skip
        for resource_ in range(active):
            seconds = sorted(draw.sample(range(60), 20))
            admitted = [draw.randrange(1, 60) for _ in seconds]
            refused = [draw.randrange(1, 50) if resource_ in stormy and at < 30 else 0 for at in seconds]
            asked = [one + other for one, other in zip(admitted, refused, strict=True)]
            yield record(
                "traffic", minute_s, kind="topic", name=f"orders-{resource_}", rule=f"r{resource_}", rate_per_s=50.0,
                admitted=[sum(admitted), sum(admitted), 300 * sum(admitted)], clients=9,
                refused=[sum(refused), sum(refused), 300 * sum(refused)], second=seconds,
                second_admitted=admitted, second_refused=refused, second_requests=asked,
                languages={"JAVA": [sum(asked), sum(refused)]}, second_bytes=[300 * each for each in asked],
            )  # fmt: skip
        yield record("heartbeat", minute_s, version="1", seconds=60, connections=9)
        minute_s += 60


if __name__ == "__main__":
    sys.exit(main())
