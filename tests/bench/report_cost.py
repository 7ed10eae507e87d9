"""What a report costs: time, processor and Spark's jobs for a small log and for one of five days, in one run."""

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve()
ROOT: Final = HERE.parents[2]
SUPPORT: Final = HERE.parents[1] / "support"
SLUICE: Final = Path(sys.executable).with_name("sluice")
_ADOPT_ORPHANS: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
_LOOK_S: Final = 0.1
_FLOOR: Final = """
from pyspark.sql import SparkSession
session = SparkSession.builder.getOrCreate()
assert session.range(1).count() == 1
session.stop()
"""
_COUNT: Final = """
import sys
from pathlib import Path
from log_truth import count
print(count(Path(sys.argv[1])).records)
"""


@dataclass(frozen=True)
class Cost:
    """Of one command."""

    wall_s: float
    cpu_s: float
    peak_mib: float = 0.0
    python_workers_s: float = 0.0
    tasks_s: float = 0.0
    jobs: int = 0
    executions: int = 0
    stages: int = 0
    tasks: int = 0
    records: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="What `sluice report` costs, beside an empty Spark and a plain count.")
    parser.add_argument("--logs", default="small,large", help="which: small, large, or folders; with commas")
    parser.add_argument("--rounds", type=int, default=1, help="of each; the cheapest is told (1)")
    parser.add_argument("--growth", default="", help="millions of records beside DuckDB, with commas")
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE for Spark")
    parser.add_argument("--dir", type=Path, help="for logs and tables; kept if it is given")
    parser.add_argument("--json", type=Path, help="write all figures here, too")
    given = parser.parse_args(arguments)
    adopt_orphans()
    folder = given.dir or Path(tempfile.mkdtemp(prefix="report-cost-"))
    try:
        found = _measure(given, folder)
    finally:
        if given.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    if given.json is not None:
        given.json.write_text(json.dumps({name: asdict(cost) for name, cost in found.items()}, indent=2) + "\n")
    print(_text(found))
    if given.growth:
        growth = [sys.executable, str(HERE.with_name("report_growth.py")), "--records", given.growth]
        return subprocess.run(growth, check=False, cwd=ROOT).returncode
    return 0


def adopt_orphans() -> None:
    """Have what Spark leaves behind waited for here, whoever started it, so that its time counts."""
    ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def _measure(given: argparse.Namespace, folder: Path) -> dict[str, Cost]:
    found: dict[str, Cost] = {}

    def note(name: str, cost: Cost) -> None:
        print(f"{name}: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s", file=sys.stderr, flush=True)
        found[name] = min(found.get(name, cost), cost, key=lambda each: each.cpu_s)

    for _ in range(given.rounds):
        note("an empty Spark", floor(folder))
        note("an empty Spark, Java's first compiler", floor(folder, "-XX:TieredStopAtLevel=1"))
        for name in given.logs.split(","):
            logs, records = _logs(name, folder)
            note(f"report, {name}: {records}", report(logs, folder, given.conf))
            note(f"plain count, {name}: {records}", count(logs))
    return found


def _logs(name: str, folder: Path) -> tuple[Path, str]:
    """Return a log and what is in it; the two with names are made if they are not there yet."""
    sys.path[:0] = [str(SUPPORT), str(ROOT)]
    from log_truth.making import BIG, make  # noqa: PLC0415 - here they are found
    from small_log import SmallLog  # noqa: PLC0415 - likewise

    logs = folder / f"logs-{name}"
    if name not in {"small", "large"}:
        logs = Path(name)
        return logs, f"{sum(file.stat().st_size for file in logs.rglob('*.jsonl*')):,} bytes"
    told = folder / f"{name}.txt"
    if not told.exists():
        shutil.rmtree(logs, ignore_errors=True)
        if name == "small":
            small = SmallLog(minutes=110)
            small.write(logs / "a.jsonl")
            told.write_text(f"{len(small.records):,} records")
        else:
            made = make(logs, BIG)
            told.write_text(f"{made.truth.records:,} records, {made.duplicates:,} copies")
    return logs, told.read_text()


def floor(folder: Path, java: str = "") -> Cost:
    """Measure a Spark that does next to nothing."""
    conf = folder / "floor-conf"
    conf.mkdir(exist_ok=True)
    events = _fresh(folder / "events")
    settings = {**_event_log(events), **_LOCAL, "spark.ui.enabled": "false", "spark.driver.memory": "1g"}
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.level=off {java}".strip()
    lines = "".join(f"{key} {value}\n" for key, value in settings.items())
    (conf / "spark-defaults.conf").write_text(lines)
    (conf / "log4j2.properties").write_text("rootLogger.level = off\n")
    command = [sys.executable, "-c", _FLOOR]
    return run(command, events, {"SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"})


def report(logs: Path, folder: Path, conf: Sequence[str] = ()) -> Cost:
    """Measure a report of logs into a fresh directory."""
    out, events = folder / "out", _fresh(folder / "events")
    shutil.rmtree(out, ignore_errors=True)
    command = [str(SLUICE), "report", str(logs), "--out", str(out), "--json", "--master", "local[2]"]
    for key, value in _event_log(events).items():
        command += ["--conf", f"{key}={value}"]
    cost = run([*command, *(f"--conf={word}" for word in conf)], events)
    shutil.rmtree(out)
    return cost


def count(logs: Path) -> Cost:
    """Measure the count in plain Python."""
    return run([sys.executable, "-c", _COUNT, str(logs)], None, {"PYTHONPATH": str(SUPPORT)})


_LOCAL: Final = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def _event_log(events: Path) -> dict[str, str]:
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run(command: Sequence[str], events: Path | None, env: dict[str, str] | None = None) -> Cost:
    """Run a command to its end, and that of all that it has started."""
    before = _children_s()
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=answer, stderr=said, env={**os.environ, **(env or {})}
        )
        looking = _Looking(process.pid)
        with looking:
            process.wait()
            _wait_for_orphans()
        wall_s = time.monotonic() - began_s
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {said.read().decode(errors='replace')}")
        answer.seek(0)
        text = answer.read()
    # Spark's daemon ignores the ends of its children: what time they took nobody is told.
    cpu_s = max(_children_s() - before, looking.seen_s)
    cost = Cost(wall_s, cpu_s, looking.peak_mib, looking.python_workers_s)
    if text.startswith(b"{"):
        cost = replace(cost, records=json.loads(text)["inputs"]["records"])
    return cost if events is None else _with_events(cost, events)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait_for_orphans() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class _Looking:
    """Looks at the processes below one while they are there."""

    def __init__(self, pid: int) -> None:
        self.peak_mib = 0.0
        self._pid = pid
        self._own_s: dict[int, float] = {}
        self._python: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def python_workers_s(self) -> float:
        return sum(self._own_s[pid] for pid in self._python)

    @property
    def seen_s(self) -> float:
        """Return the processor time of all of them, as far as it was seen: short ones are missing."""
        return sum(self._own_s.values())

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            pages = 0
            for pid in (self._pid, *below(self._pid)):
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
                except OSError:
                    continue
                pages += int(fields[21])
                # Its own time alone: each of its children is looked at by itself.
                self._own_s[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                if b"\0-m\0pyspark.daemon" in command or b"\0-m\0admin.analytics.workers" in command:
                    self._python.add(pid)
            self.peak_mib = max(self.peak_mib, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def below(pid: int) -> list[int]:
    """Return the processes below one."""
    found: list[int] = []
    # Any of these may have ended meanwhile.
    with suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            for word in (task / "children").read_text(encoding="ascii").split():
                found += [int(word), *below(int(word))]
    return found


def _with_events(cost: Cost, events: Path) -> Cost:
    """Read Spark's event log: a line of JSON for each event."""
    counts = dict.fromkeys(("JobStart", "StageCompleted", "TaskEnd", "SQLExecutionStart"), 0)
    tasks_ns = 0
    (log,) = (file for file in events.iterdir() if not file.name.startswith("."))
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            kind = event["Event"].rpartition(".")[2].removeprefix("SparkListener")
            if kind in counts:
                counts[kind] += 1
            if kind == "TaskEnd" and (metrics := event.get("Task Metrics")):
                tasks_ns += metrics["Executor CPU Time"] + metrics["Executor Deserialize CPU Time"]
    return replace(
        cost,
        tasks_s=tasks_ns / 1e9,
        jobs=counts["JobStart"],
        executions=counts["SQLExecutionStart"],
        stages=counts["StageCompleted"],
        tasks=counts["TaskEnd"],
    )


_HEADINGS: Final = (
    "",
    "wall s",
    "CPU s",
    "in tasks",
    "in Python workers",
    "peak MiB",
    "jobs",
    "SQL",
    "stages",
    "tasks",
)


def _text(found: dict[str, Cost]) -> str:
    """Lay out the figures as a table of Markdown."""
    lines = [" | ".join(_HEADINGS), "|".join(["---"] * len(_HEADINGS))]
    for name, cost in found.items():
        seconds = (cost.wall_s, cost.cpu_s, cost.tasks_s, cost.python_workers_s)
        counts = (round(cost.peak_mib), cost.jobs, cost.executions, cost.stages, cost.tasks)
        lines.append(" | ".join([name, *(f"{each:.1f}" for each in seconds), *map(str, counts)]))
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
